/* command.c - the command under the lock: signals, stops, and the exit code. */
#include "command.h"

#include "lease.h"
#include "messages.h"
#include "open.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

void command_set_held(struct command *c, const dlock *store, const char *socket)
{
    int n = c->o->nalso + 1;
    for (int i = 1; i <= n; i++) { /* LOCK is the last */
        const dlock *lk = dlock_at(store, i % n);
        const char *key = c->lock[i % n].key;
        if (!key)
            continue;
        struct held *e = &c->held[c->nheld++];
        e->digest = nested_digest(key);
        e->name = nested_digest(dlock_name(lk));
        snprintf(e->token, sizeof(e->token), "%s", dlock_token(lk));
        snprintf(e->socket, sizeof(e->socket), "%s", socket);
    }
}

void command_set_file(struct command *c, int i, int fd)
{
    struct stat st;
    if (fd < 0 || c->lock[i].nested || fstat(fd, &st) != 0)
        return;
    free(c->lock[i].key);
    c->lock[i].key = nested_file_key(&st, c->o->fcntl);
}

void command_tell_removed(const struct command *c, const dlock *store)
{
    char path[PATH_MAX];
    const dlock *lk;
    /* The release of a run with a record compares, too, and may end in a loss. */
    for (int i = c->o->once_ns != 0 ? 1 : 0; c->nheld > 0 && (lk = dlock_at(store, i)); i++) {
        const struct command_lock *l = &c->lock[i];
        const struct dlock_uri *uri = dlock_uri_of(lk);
        if (l->nested || !l->key || !open_path(uri, path))
            continue;
        errno = 0;
        char *there = open_key(uri, c->o->fcntl);
        bool other = there ? strcmp(there, l->key) != 0 : errno == ENOENT || errno == ENOTDIR;
        if (other && message_tells(c->o, ABOUT_TROUBLE))
            message("the lock file %s was removed or replaced during the run: "
                    "another run may have been beside this one",
                    path);
        free(there);
    }
}

/* A guard keeps the descriptor itself. A slot is never inherited, also with -s below --slots. */
bool command_inherits(const struct command *c, const dlock *lk)
{
    struct nested_hold hold;
    dlock_describe(lk, &hold);
    return !options_need_guard(c->o) && hold.mode != DLOCK_MODE_SLOTS;
}

/* If the command ends after one of these was forwarded, its descendants are ended too. */
bool command_ends(int sig)
{
    return sig == SIGTERM || sig == SIGINT || sig == SIGHUP || sig == SIGQUIT;
}

/*
 * A signal is not forwarded when the terminal has sent it to the command as well (terminal: we have
 * one and share our group with the command), nor when we caused it ourselves. A signal from a
 * process always is.
 */
int command_signal(struct command *c, const struct signalfd_siginfo *si)
{
    int sig = (int)si->ssi_signo;
    bool forward = true;
    if (sig == SIGCONT)
        c->continued_at = dlock_now();
    if (si->ssi_code != SI_KERNEL) {
        /* Our own line to a closed stderr sends SIGPIPE. */
        forward = sig != SIGPIPE || si->ssi_pid != (uint32_t)getpid();
    } else {
        switch (sig) {
        case SIGINT:
        case SIGQUIT:
        case SIGTSTP:
        case SIGTTIN:
        case SIGTTOU:
        case SIGWINCH:
            forward = !c->terminal;
            break;
        case SIGHUP:
        case SIGCONT:
            /* The kernel sends a hang-up to the session's leader first: then we forward it. */
            forward = !c->terminal || getsid(0) == getpid();
            break;
        case SIGPIPE:
        case SIGXCPU:
            forward = false;
            break;
        default: /* SIGALRM for instance: an alarm(2) of the caller outlives its exec of us */
            break;
        }
    }
    if (forward) {
        c->end_signal |= command_ends(sig);
        return sig;
    }
    if (signals_interrupts(si, c->terminal))
        c->terminal_sig = sig;
    return 0;
}

bool command_job_stopped(const struct command *c)
{
    return !c->exited && c->terminal && signals_stops(c->stopped_by);
}

/*
 * The shell sees its job as stopped only when we are stopped, too. But a SIGCONT that we read after
 * the stop was seen was for the whole job: the command runs again, or will, and nothing would
 * continue us. (A later stop by the terminal removes a SIGCONT that waits for us, so a SIGCONT is
 * never older than a stop that is seen after it was read.)
 */
void command_follow_stop(struct command *c)
{
    if (command_job_stopped(c) && c->continued_at <= c->stopped_at)
        signals_stop_self(c->stopped_by);
    c->stopped_by = 0; /* a report from before our own stop must not stop us again */
}

int64_t command_grace(const struct command *c)
{
    if (c->o->grace_ns >= 0)
        return c->o->grace_ns;
    return lease_default_grace(c->local ? DLOCK_NEVER : c->o->ttl_ns);
}

void command_report_stuck(struct command *c, pid_t pid)
{
    if (c->stuck_reported)
        return;
    c->stuck_reported = true;
    if (pid > 0)
        message("process %d cannot be killed (it runs as another user, or hangs in the kernel): "
                "the lock is kept until the process is gone",
                (int)pid);
    else
        message("/proc does not show which processes of the command are left: "
                "the lock is kept until they end");
}

mode_t command_find(const char *word, char path[PATH_MAX])
{
    struct stat st;
    const char *dirs = strchr(word, '/') ? "" : getenv("PATH");
    for (size_t n; dirs; dirs = dirs[n] ? dirs + n + 1 : NULL) {
        n = strcspn(dirs, ":");
        int len = snprintf(path, PATH_MAX, "%.*s%s%s", (int)n, dirs, n > 0 ? "/" : "", word);
        if (len < PATH_MAX && access(path, X_OK) == 0 && stat(path, &st) == 0 &&
            S_ISREG(st.st_mode))
            return st.st_mode;
    }
    return 0;
}

/* Of a file that is there, the kernel says ENOENT, too, when its interpreter is missing. */
static const char *missing_part(const char *path, char *buf, size_t size)
{
    char line[256] = ""; /* as much as the kernel reads */
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, line, sizeof(line) - 1);
    if (fd >= 0)
        close(fd);
    if (n < 2 || line[0] != '#' || line[1] != '!')
        return "the file is there, but its loader is missing";
    char *name = line + 2 + strspn(line + 2, " \t");
    name[strcspn(name, " \t\n")] = '\0';
    if (strchr(name, '\r'))
        return "its first line ends with a carriage return, which names no interpreter";
    snprintf(buf, size, "its interpreter '%s' cannot be run", name);
    return buf;
}

/* Why the command was not found, and what to write. NULL: there is no more to say. */
static const char *not_found(const struct options *o, char *buf, size_t size)
{
    const char *word = o->command[0];
    char path[PATH_MAX];
    if (o->shell_string)
        return "-c needs a shell: set SHELL to one, or unset it";
    if (*word && command_find(word, path))
        return missing_part(path, buf, size);
    if (*word == '-')
        return strcmp(word, "-c") == 0 ? "leave the \"--\" out"
                                       : "options of dlock stand before LOCK";
    if (open_assigned_len(word) > 0)
        return "write env before a variable, or use -c";
    if (strpbrk(word, " \t\n"))
        return "for a whole command line use -c";
    return *word && !strchr(word, '/') ? "for a shell function or builtin use -c" : NULL;
}

/* The exit code of a command that was not executed, after the message. */
static int never_ran(const struct command *c)
{
    const char *word = c->o->command[0];
    char buf[300];
    int sys = c->exec_error;
    if (sys == SPAWN_TOO_LATE) {
        message("the command was not run: the lease was over before it could start");
        return dlock_error_exit(DLOCK_EUNAVAIL);
    }
    if (sys & SPAWN_FORK_FAILED) {
        message("cannot fork the command: %s", strerror(sys & ~SPAWN_FORK_FAILED));
        return dlock_error_exit(DLOCK_EOS);
    }
    const char *hint = NULL;
    if (sys == ENOENT || sys == ENOTDIR || (sys == EACCES && c->o->shell_string))
        hint = not_found(c->o, buf, sizeof(buf));
    size_t name = open_assigned_len(word); /* the value may be a secret */
    message("cannot run '%.*s': %s%s%s%s", (int)(name > 0 ? name : strlen(word)), word,
            hint ? hint : "", hint ? " (" : "", strerror(sys), hint ? ")" : "");
    return spawn_exec_code(sys);
}

int command_exit_code(const struct command *c)
{
    struct events_end end = {.outcome = EVENTS_EXITED, .status = c->status};
    if (c->exec_error)
        end = (struct events_end){.outcome = EVENTS_NOT_RUN,
                                  .status = -1,
                                  .code = never_ran(c),
                                  .reason = message_last()};
    else if (WIFSIGNALED(c->status))
        end.code = 128 + WTERMSIG(c->status);
    else
        end.code = WEXITSTATUS(c->status);
    events_end(c->events, &end, dlock_now());
    /* The shell must see Ctrl-C as well, to leave its loop. */
    if (!c->exec_error && WIFSIGNALED(c->status) && WTERMSIG(c->status) == c->terminal_sig)
        signals_die(c->terminal_sig);
    return end.code;
}
