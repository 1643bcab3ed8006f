/*
 * run.c - take the lock, run the command, give the lock back. Two ways: with a guard (every lease, and
 * file locks with -o), or directly (plain file locks, which the kernel keeps for as long as the command
 * holds the descriptor).
 */
#include "run.h"

#include "keeper.h"
#include "spawn.h"
#include "uri.h"
#include "util.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* On top of what is in use: all that an answer may be long, and stacks for the libraries' threads. */
#define MEMORY_MORE ((rlim_t)64 << 20)
#define STACKS_MORE 16
#define STACK_USUAL ((rlim_t)8 << 20)

struct dlock_uri *lock_uri(const struct options *o, int *code)
{
    struct dlock_error err = {0};
    struct dlock_uri *uri = NULL;
    char *text = NULL;
    int rc = 0;
    if (o->lock[0] == '@')
        rc = dlock_default_uri(&text, o->lock + 1, getenv("DLOCK_STORE"), &err);
    if (rc == 0)
        rc = dlock_uri_parse(&uri, text ? text : o->lock, &err);
    if (rc < 0)
        *code = say_error(o, &err);
    if (text)
        explicit_bzero(text, strlen(text));
    free(text);
    return uri;
}

/*
 * What others are shown of the command: its first word. Its arguments stay here: they may hold a password,
 * and a store is read on other machines and kept in backups. --note is there for whatever may be told.
 */
static const char *command_text(const struct options *o, char *buf, size_t size)
{
    if (!o->command)
        return NULL;
    const char *word = o->command[0];
    size_t len = strlen(word);
    if (o->shell_string) {
        word = o->shell_string + strspn(o->shell_string, " \t\n");
        len = strcspn(word, " \t\n;|&<>()");
    }
    snprintf(buf, size, "%.*s", (int)dlock_min((int64_t)len, 255), word);
    return buf;
}

/*
 * A command that changes to another user (sudo) can neither be signalled nor killed by us afterwards: say
 * so, with -v, before it matters. The search is execvp's.
 */
static void warn_setuid(const struct options *o)
{
    const char *path = getenv("PATH"), *word = o->command[0];
    char file[PATH_MAX];
    struct stat st;
    if (!o->verbose || geteuid() == 0)
        return;
    for (const char *end; path; path = *end ? end + 1 : NULL) {
        end = strchrnul(path, ':');
        if (strchr(word, '/'))
            snprintf(file, sizeof file, "%s", word);
        else
            snprintf(file, sizeof file, "%.*s/%s", (int)(end - path), path, word);
        if (access(file, X_OK) == 0 && stat(file, &st) == 0 && S_ISREG(st.st_mode))
            break;
        file[0] = '\0';
    }
    if (path && file[0] && (st.st_mode & (S_ISUID | S_ISGID)))
        say("'%s' changes its user: dlock cannot end it when the lock is lost; run dlock itself "
            "that "
            "way instead ('sudo dlock ...')",
            word);
}

dlock *open_lock(const struct options *o, struct dlock_uri **uri, int *code)
{
    char text[512];
    struct dlock_error err;
    struct dlock_options lo = DLOCK_OPTIONS_INIT;
    dlock *lk = NULL;
    lo.mode = o->lock_mode;
    lo.ttl_ns = o->ttl_ns;
    /* Killed without being asked: the time for asking need not be kept free. */
    lo.grace_ns = o->on_lost == DLOCK_LOST_KILL ? 0 : o->grace_ns;
    lo.wait_ns = o->nonblock ? 0 : o->wait_ns;
    lo.connect_timeout_ns = o->connect_timeout_ns;
    lo.command = command_text(o, text, sizeof text);
    lo.note = o->note;
    if (dlock_open_uri(&lk, uri, &lo, &err) < 0)
        *code = say_error(o, &err);
    return lk;
}

/*
 * How long an answer is only the server says, and libpq (unlike hiredis here) asks for as much at once. So this
 * process has a bound, which malloc then meets, as on a full machine. The guard never has it: from there the
 * command inherits the caller's limits.
 */
void bound_memory(void)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they map terabytes */
    unsigned long used = 0;
    struct rlimit data, stack;
    FILE *f = fopen("/proc/self/statm", "re");
    bool known = f && fscanf(f, "%*u %*u %*u %*u %*u %lu", &used) == 1;
    if (f)
        fclose(f);
    if (!known || getrlimit(RLIMIT_DATA, &data) != 0 || getrlimit(RLIMIT_STACK, &stack) != 0)
        return;
    rlim_t each = stack.rlim_cur == RLIM_INFINITY ? STACK_USUAL : stack.rlim_cur;
    if (each > RLIM_INFINITY / 2 / STACKS_MORE)
        return;
    rlim_t most = used * (rlim_t)sysconf(_SC_PAGESIZE) + MEMORY_MORE + each * STACKS_MORE;
    if (data.rlim_cur > most) /* which RLIM_INFINITY is */
        data.rlim_cur = most;
    setrlimit(RLIMIT_DATA, &data);
#endif
}

static int start_guard(struct keeper *k, const char *name, int lock_fd)
{
    struct guard_config cfg = {
        .sig = k->sig,
        .argv = k->o->command,
        .name = name,
        .own_group = !k->terminal,
        .warn_only = k->o->on_lost == DLOCK_LOST_WARN,
        .lock_fd = lock_fd,
    };
    int rc = guard_fork(&k->guard, &cfg);
    if (rc < 0) {
        say("cannot fork the guard: %s", strerror(-rc));
        return dlock_error_exit(DLOCK_EOS);
    }
    k->guarded = true;
    return 0;
}

int exec_failed(const struct options *o, int why)
{
    say("cannot run '%s': %s", o->command[0], strerror(why));
    return spawn_exec_code(why);
}

/* Close the session in the store, too, before a signal may end us. */
static void leave_store(struct keeper *k)
{
    dlock_close(k->lk);
    k->lk = NULL;
}

/* The exit code of a command that is over, or that never was. May die by a signal instead of returning. */
static int outcome(struct keeper *k)
{
    if (k->die_sig || k->exited)
        leave_store(k);
    if (k->die_sig)
        signals_die(k->die_sig);
    if (k->lost)
        return k->o->lost_code;
    if (k->guard_died)
        return dlock_error_exit(DLOCK_EOS);
    if (k->exec_error == SPAWN_TOO_LATE) {
        say("%s: the lease was over before the command could start", "the command was not run");
        return dlock_error_exit(DLOCK_EUNAVAIL);
    }
    if (k->exec_error & GUARD_FORK_FAILED) {
        say("cannot fork the command: %s", strerror(k->exec_error & ~GUARD_FORK_FAILED));
        return dlock_error_exit(DLOCK_EOS);
    }
    if (k->exec_error)
        return exec_failed(k->o, k->exec_error);
    if (!k->exited)
        return k->code;
    if (WIFSIGNALED(k->status)) {
        int sig = WTERMSIG(k->status);
        if (sig == k->terminal_sig)
            signals_die(sig);
        return 128 + sig;
    }
    return WEXITSTATUS(k->status);
}

static int hold_guarded(struct keeper *k)
{
    keeper_start(k);
    keeper_loop(k);
    return outcome(k);
}

/* A lease: the guard is forked before a library is loaded, a socket opened or a thread started. */
static int run_leased(struct keeper *k, struct dlock_uri **uri)
{
    int code = start_guard(k, (*uri)->name, -1);
    if (code != 0)
        return code;
    /* Kept open here, the caller's pipes would not end when the command ends. */
    fds_let_go((int[]){k->sig->fd, k->guard.fd}, 2);
    bound_memory();
    k->lk = open_lock(k->o, uri, &code);
    if (!k->lk)
        return code; /* the guard leaves by itself when our end of its socket closes */
    dlock_start_acquire(k->lk);
    keeper_loop(k);
    return k->phase == K_GRANTED ? hold_guarded(k) : outcome(k);
}

static int run_file(struct keeper *k, struct dlock_uri **uri)
{
    int code = 0;
    k->lk = open_lock(k->o, uri, &code);
    if (!k->lk)
        return code;
    dlock_start_acquire(k->lk);
    keeper_loop(k);
    if (k->phase != K_GRANTED)
        return outcome(k);
    if (k->o->no_fork)
        direct_exec(k->lk, k->o, k->sig);
    if (!k->o->close_fd)
        return direct_hold(k->lk, k->o, k->sig, &k->tree);
    /* -o: the guard, forked once the lock is taken, keeps the descriptor instead of the command. */
    code = start_guard(k, dlock_name(k->lk), dlock_fd(k->lk));
    if (code != 0)
        return code;
    /* As above; a lock that is held needs nothing open but its file. */
    fds_let_go((int[]){k->sig->fd, k->guard.fd, dlock_fd(k->lk)}, 3);
    return hold_guarded(k);
}

/* Whether a guard is needed is known before the store's module is loaded: the guard is forked before that. */
static int run_uri(struct keeper *k, struct dlock_uri **uri)
{
    bool file = dlock_registry_hold((*uri)->scheme) & CAP_FD;
    if (k->o->no_fork && !file) {
        say("--no-fork is for file locks: a lease needs somebody who renews it");
        return dlock_error_exit(DLOCK_EUSAGE);
    }
    if ((!file || k->o->close_fd) && !process_tree_visible()) {
        say("/proc does not show this process's children: the command could not be ended with all "
            "that it "
            "starts when the lock is lost; mount /proc");
        return dlock_error_exit(DLOCK_EOS);
    }
    if (!file)
        warn_setuid(k->o);
    k->terminal = spawn_has_terminal();
    int rc = k->o->no_fork ? 0 : process_tree_init(&k->tree);
    if (rc < 0) {
        say("cannot become the reaper of the command's children: %s", strerror(-rc));
        return dlock_error_exit(DLOCK_EOS);
    }
    return file ? run_file(k, uri) : run_leased(k, uri);
}

int run_mode(const struct options *o, const struct sigstate *sig)
{
    struct keeper k = {.o = o, .sig = sig};
    int code = 0;
    struct dlock_uri *uri = lock_uri(o, &code);
    if (!uri)
        return code;
    keeper_init(&k);
    code = run_uri(&k, &uri);
    dlock_close(k.lk);
    dlock_uri_free(uri);
    return code;
}
