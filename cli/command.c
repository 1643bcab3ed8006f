/* command.c - the command under the lock: signals, stops, and the exit code. */
#include "command.h"

#include "lease.h"
#include "messages.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void add_held(struct command *c, const char *key, const dlock *lk, const char *socket)
{
    struct held *e = &c->held[c->nheld];

    if (!key)
        return;
    e->digest = nested_digest(key);
    e->name = nested_digest(dlock_name(lk));
    snprintf(e->token, sizeof(e->token), "%s", dlock_token(lk));
    snprintf(e->socket, sizeof(e->socket), "%s", socket);
    c->nheld++;
}

void command_set_held(struct command *c, const dlock *const *locks, int n, const char *socket)
{
    for (int i = 1; i <= n; i++)
        add_held(c, c->lock[i % n].key, locks[i % n], socket);
    if (c->lock[0].nested && c->nheld > 0)
        c->tree.marker = held_add(c->marker, getenv("DLOCK_HELD"), c->held, c->nheld);
    else
        c->tree.marker = spawn_marker(c->marker, dlock_token(locks[0]));
}

void command_set_file(struct command *c, int i, int fd)
{
    struct stat st;

    if (fd < 0 || c->lock[i].nested || fstat(fd, &st) != 0)
        return;
    free(c->lock[i].key);
    c->lock[i].key = nested_file_key(&st, c->o->fcntl);
}

/* Not where the guard has it; and of a slot never, also when -s runs in that of an outer dlock. */
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
 * Must this signal be forwarded to the command? Not when the terminal has sent it to the command as
 * well (terminal: we have one and share our group with the command), and not when we caused it
 * ourselves. A signal that a process sent is forwarded every time.
 */
static bool must_forward(const struct signalfd_siginfo *si, bool terminal)
{
    int sig = (int)si->ssi_signo;

    if (sig == SIGCHLD)
        return false;
    if (sig == SIGPIPE && si->ssi_pid == (uint32_t)getpid())
        return false; /* our own line to a closed stderr */
    if (si->ssi_code != SI_KERNEL)
        return true;
    switch (sig) {
    case SIGINT:
    case SIGQUIT:
    case SIGTSTP:
    case SIGTTIN:
    case SIGTTOU:
    case SIGWINCH:
        return !terminal;
    case SIGHUP:
    case SIGCONT:
        /*
         * The kernel sends a hang-up to the session's leader first: if that is us, we forward it.
         */
        return !terminal || getsid(0) == getpid();
    case SIGPIPE:
    case SIGXCPU:
    case SIGXFSZ:
        return false;
    default:
        return true; /* SIGALRM for instance: an alarm(2) of the caller outlives its exec of us */
    }
}

int command_signal(struct command *c, const struct signalfd_siginfo *si)
{
    int sig = (int)si->ssi_signo;

    c->continued |= sig == SIGCONT;
    if (must_forward(si, c->terminal)) {
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
 * The shell sees its job as stopped only when we are stopped, too. But a SIGCONT that is waiting
 * for us was for the whole job: then the command runs again, or will, and nothing would continue
 * us. (A stop that the terminal sends later removes a SIGCONT that is still waiting: this is never
 * an old one.)
 */
void command_follow_stop(struct command *c)
{
    if (command_job_stopped(c) && !c->continued)
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
        message(
            "process %d cannot be killed (it runs as another user, or hangs in the kernel): the lock is kept until the process is gone",
            (int)pid);
    else
        message(
            "/proc does not show which processes of the command are left: the lock is kept until they end");
}

/*
 * What cannot be found may be in the shell only, or is a whole command line in one word. The cause
 * is said too: of a script whose interpreter is missing the kernel says the same.
 */
static void report_exec_error(const char *word, int sys)
{
    if (sys == ENOENT && strpbrk(word, " \t\n"))
        message("cannot run '%s': for a whole command line use -c (%s)", word, strerror(sys));
    else if (sys == ENOENT && *word && !strchr(word, '/'))
        message("cannot run '%s': for a shell function or builtin use -c (%s)", word,
                strerror(sys));
    else
        message("cannot run '%s': %s", word, strerror(sys));
}

static int never_ran(const struct command *c)
{
    if (c->exec_error == SPAWN_TOO_LATE) {
        message("the command was not run: the lease was over before it could start");
        return dlock_error_exit(DLOCK_EUNAVAIL);
    }
    if (c->exec_error & SPAWN_FORK_FAILED) {
        message("cannot fork the command: %s", strerror(c->exec_error & ~SPAWN_FORK_FAILED));
        return dlock_error_exit(DLOCK_EOS);
    }
    report_exec_error(c->o->command[0], c->exec_error);
    return spawn_exec_code(c->exec_error);
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
