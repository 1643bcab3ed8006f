/*
 * keeper.c - the keeper's loop: one poll() over the store, the signals and the guard. It decides nothing
 * about time (lib/lease.c does) and kills nobody (the guard does): it passes on what each must know.
 */
#include "keeper.h"

#include "lease.h"
#include "spawn.h"
#include "util.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SAY_AFTER DLOCK_SEC
#define SAY_AGAIN (5 * DLOCK_SEC)
#define SWEEP_EVERY (100 * DLOCK_MSEC)
#define GUARD_LEAVES DLOCK_SEC
/* One that has never started a command: -w has 100 ms of tolerance. */
#define GUARD_LEAVES_IDLE (30 * DLOCK_MSEC)
/* How long a release is tried: leaving a queue, giving back what we hold, and what is lost anyway. */
#define CANCEL_TIME DLOCK_SEC
#define LOST_TIME (500 * DLOCK_MSEC)
#define HURRY_TIME (300 * DLOCK_MSEC)

static int64_t grace_of(const struct keeper *k)
{
    if (k->o->grace_ns >= 0)
        return k->o->grace_ns;
    return lease_default_grace(dlock_is_local(k->lk) ? DLOCK_NEVER : k->o->ttl_ns);
}

static bool may_end(const struct keeper *k)
{
    return k->o->on_lost != DLOCK_LOST_WARN;
}

/* --- to the guard -------------------------------------------------------------------------------- */

static int tell_guard(struct keeper *k, enum guard_msg_type type, int arg,
                      const struct dlock_times *t)
{
    struct guard_msg m = {.type = (int32_t)type, .arg = arg};
    m.term_at = t ? t->term_at : DLOCK_NEVER;
    m.kill_at = t ? t->kill_at : DLOCK_NEVER;
    m.hard_at = t ? t->hard_at : DLOCK_NEVER;
    int pass = -1;
    if (type == G_START) {
        pass = dlock_session_fd(k->lk);
        m.fence = dlock_fence(k->lk);
        snprintf(m.token, sizeof m.token, "%s", dlock_token(k->lk));
    }
    int rc = k->guarded && !k->guard_gone ? guard_send(&k->guard, &m, pass) : 0;
    /*
     * A dead guard shows as EOF. A full socket means that it does not run (stopped?): what it misses of
     * signals and times its kernel timer makes up for; an order to end the tree cannot wait for that.
     */
    if (rc < 0 && rc != -EPIPE && type == G_END)
        kill(k->guard.pid, SIGKILL);
    return rc;
}

static void end_tree(struct keeper *k, int sig, int64_t kill_at)
{
    struct dlock_times t = {.term_at = DLOCK_NEVER, .kill_at = kill_at, .hard_at = DLOCK_NEVER};
    k->ending = true;
    tell_guard(k, G_END, sig, &t);
}

/* Nothing is left to guard. One that does not go (stopped?) is killed a moment later. */
static void dismiss_guard(struct keeper *k)
{
    if (!k->guarded || k->guard_gone)
        return;
    tell_guard(k, G_DETACH, 0, NULL);
    k->guard_by = dlock_now() + (k->exited ? GUARD_LEAVES : GUARD_LEAVES_IDLE);
}

/* It ends here, with or without the lock; the guard goes, then the loop does. */
static void over(struct keeper *k)
{
    if (k->phase < K_RELEASE)
        dismiss_guard(k);
    k->phase = K_OVER;
}

static void give_back(struct keeper *k, int64_t time)
{
    dismiss_guard(k);
    k->phase = K_RELEASE;
    dlock_start_release(k->lk, dlock_now() + time);
}

/*
 * The command is over: is anything of it left that must end first? What it left in the background by its
 * own will is left alone, as flock -o does.
 */
static void after_exit(struct keeper *k)
{
    if (!k->exited || k->phase >= K_RELEASE)
        return;
    bool must_end = k->ending || k->end_signal || (k->lost && may_end(k)) || k->guard_died;
    if (must_end && !k->tree_empty) {
        if (!k->ending && !k->guard_died)
            end_tree(k, SIGTERM, dlock_now() + grace_of(k));
        return;
    }
    give_back(k, k->lost ? LOST_TIME : k->o->connect_timeout_ns);
}

/* --- what the store says ------------------------------------------------------------------------- */

static void tell_lost(struct keeper *k, const char *what, const char *why)
{
    char lock[SAY_LOCK_MAX];
    k->lost = true;
    if (!k->told_lost)
        say("%s: the lock %s%s%s%s", say_lock(k->lk, lock, sizeof lock), what, why[0] ? ": " : "",
            why, may_end(k) ? "; ending the command" : "; the command goes on (--on-lost warn)");
    k->told_lost = true;
}

static void on_busy(struct keeper *k, const struct dlock_info *info)
{
    char lock[SAY_LOCK_MAX], who[SAY_LOCK_MAX], by[SAY_LOCK_MAX + 16], waited[32];
    if (!k->o->quiet) {
        say_lock(k->lk, lock, sizeof lock);
        if (info)
            snprintf(by, sizeof by, "held by %s", say_holder(info, who, sizeof who));
        else /* free, but kept for the first in line, or the store grants nothing yet */
            snprintf(by, sizeof by, "not to be had");
        if (k->o->nonblock)
            say("%s is %s", lock, by);
        else
            say("%s is still %s after %s", lock, by,
                dlock_format_duration(k->o->wait_ns, waited, sizeof waited));
    }
    k->code = k->o->conflict_code;
    over(k);
}

static void on_released(struct keeper *k, const struct dlock_report *r)
{
    char lock[SAY_LOCK_MAX];
    const char *colon = r->error.msg[0] ? ": " : "";
    say_lock(k->lk, lock, sizeof lock);
    if (r->how == DLOCK_REL_NOT_OURS && !k->lost) {
        say("%s was not ours any more when it was released%s%s", lock, colon, r->error.msg);
        k->lost = true;
    }
    if (r->how == DLOCK_REL_UNCLEAR && !k->lost && !k->die_sig)
        say("%s: no answer to the release%s%s; it ends with its ttl", lock, colon, r->error.msg);
    over(k);
}

static void on_report(struct keeper *k, const struct dlock_report *r)
{
    switch (r->type) {
    case DLOCK_R_WAITING:
        k->have_holder = r->info != NULL;
        if (r->info)
            k->holder = *r->info;
        k->place = r->place;
        k->news = true;
        break;
    case DLOCK_R_ACQUIRED:
        k->times = r->times;
        k->phase = K_GRANTED;
        break;
    case DLOCK_R_BUSY:
        on_busy(k, r->info);
        break;
    case DLOCK_R_FAILED:
        k->code = say_error(k->o, &r->error);
        over(k);
        break;
    case DLOCK_R_EXTENDED:
        k->times = r->times;
        tell_guard(k, G_EXTEND, 0, &r->times);
        break;
    /* First the deed, then the word. */
    case DLOCK_R_TERM:
        if (may_end(k))
            end_tree(k, SIGTERM, r->times.kill_at);
        tell_lost(k, "could not be renewed in time", r->error.msg);
        break;
    case DLOCK_R_LOST:
        if (may_end(k))
            end_tree(k, SIGKILL, 0);
        tell_lost(k, "is lost", r->error.msg);
        break;
    case DLOCK_R_RELEASED:
        on_released(k, r);
        break;
    case DLOCK_R_NOTICE:
        if (r->error.code ? !k->o->quiet : k->o->verbose)
            say("%s", r->error.msg);
        break;
    default:
        break;
    }
}

/* --- what the guard says ------------------------------------------------------------------------- */

static void read_signals(struct keeper *k);

/*
 * Only at a terminal does somebody wait for us to stop as well; elsewhere we go on renewing. Called when
 * the socket is empty: a word from before our own sleep must not stop us again.
 */
static void stop_with_command(struct keeper *k)
{
    int sig = k->stopped_by;
    k->stopped_by = 0;
    if (!k->terminal || k->exited || (sig != SIGTSTP && sig != SIGTTIN && sig != SIGTTOU))
        return;
    /* A SIGCONT that is waiting for us was for the whole job: the command runs again. */
    k->continued = false;
    read_signals(k);
    if (!k->continued)
        signals_stop_self(sig);
}

static void say_stuck(struct keeper *k, pid_t pid)
{
    if (k->told_stuck)
        return;
    k->told_stuck = true;
    if (pid > 0)
        say("process %d cannot be killed (it runs as another user, or hangs in the kernel): the "
            "lock is "
            "kept until it is gone",
            (int)pid);
    else
        say("what is left of the command cannot be seen (no /proc): the lock is kept until it is "
            "gone");
}

static void on_guard(struct keeper *k, const struct guard_msg *m)
{
    if (m->flags & GUARD_TIMED_OUT)
        tell_lost(k, "could not be renewed in time", "");
    switch (m->type) {
    case G_STARTED:
        if (k->phase == K_START)
            k->phase = K_RUN;
        k->start_by = DLOCK_NEVER;
        break;
    case G_EXEC_FAILED:
        k->exec_error = m->arg;
        k->exited = k->tree_empty = true;
        break;
    case G_STOPPED:
        k->stopped_by = m->arg;
        break;
    case G_EXITED:
        /* The Ctrl-C that ended it was sent to us before it could be reaped: it belongs to the run, not to the release. */
        read_signals(k);
        k->status = m->arg;
        k->exited = true;
        break;
    case G_TREE_EMPTY:
        k->tree_empty = true;
        break;
    case G_STUCK:
        say_stuck(k, m->arg);
        break;
    default:
        break;
    }
    after_exit(k);
}

/* The guard is dead: its orphans have come to us. */
static void sweep(struct keeper *k)
{
    pid_t stuck = 0;
    int left = guard_sweep(&k->tree, &stuck);
    if (left > 0) {
        if (stuck > 0)
            say_stuck(k, stuck);
        k->sweep_at = dlock_now() + SWEEP_EVERY;
        return;
    }
    k->sweep_at = DLOCK_NEVER;
    k->exited = k->tree_empty = true;
    after_exit(k);
}

static void on_guard_gone(struct keeper *k)
{
    k->guard_gone = true;
    k->guard_by = k->start_by = DLOCK_NEVER;
    close(k->guard.fd);
    k->guard.fd = -1;
    /* Its descriptors are closed as part of its death: this waits for microseconds, and leaves no zombie. */
    waitpid(k->guard.pid, NULL, __WALL);
    if (k->phase >= K_RELEASE || (k->exited && k->tree_empty))
        return;
    k->guard_died = true;
    if (k->phase == K_ACQUIRE) {
        say("the guard process %d was killed: giving up", (int)k->guard.pid);
        k->code = dlock_error_exit(DLOCK_EOS);
        give_back(k, CANCEL_TIME);
        return;
    }
    /* Its kernel timer ends a guard that was stopped for too long: then the lease is as good as over. */
    bool late = dlock_now() >= k->times.kill_at;
    k->lost |= late;
    sweep(k);
    if (late)
        tell_lost(k, "could not be renewed in time", "the guard was stopped");
    else
        say("the guard process %d was killed: the command is ended", (int)k->guard.pid);
}

static void read_guard(struct keeper *k)
{
    struct guard_msg m;
    while (k->guarded && !k->guard_gone) {
        int got = guard_recv(&k->guard, &m);
        if (got == 0) {
            stop_with_command(k);
            return;
        }
        if (got < 0)
            on_guard_gone(k);
        else
            on_guard(k, &m);
    }
}

/* --- signals ------------------------------------------------------------------------------------- */

static void reap(struct keeper *k)
{
    int status;
    tree_reap(&k->tree, k->guarded ? k->guard.pid : 0, &status);
    if (k->guard_died && k->sweep_at != DLOCK_NEVER)
        sweep(k);
}

/* Our own line to a closed stderr. */
static bool own_pipe(const struct signalfd_siginfo *si)
{
    return si->ssi_signo == SIGPIPE && si->ssi_pid == (uint32_t)getpid();
}

static void signal_while_waiting(struct keeper *k, const struct signalfd_siginfo *si)
{
    int sig = (int)si->ssi_signo;
    if (sig == SIGTSTP || sig == SIGTTIN || sig == SIGTTOU) {
        signals_stop_self(sig);
    } else if (signals_cancels(sig) && !own_pipe(si)) {
        k->die_sig = sig;
        give_back(k, CANCEL_TIME);
    }
}

/* Ctrl-C or Ctrl-\ */
static bool from_terminal(const struct keeper *k, const struct signalfd_siginfo *si)
{
    return k->terminal && si->ssi_code == SI_KERNEL &&
           (si->ssi_signo == SIGINT || si->ssi_signo == SIGQUIT);
}

/*
 * Between grant and exec nobody can say whether the command was in the terminal's group already: so it is
 * not to start, or to end, and we die by the signal as we would have a moment earlier.
 */
static void signal_while_starting(struct keeper *k, int sig)
{
    k->die_sig = sig;
    if (!k->ending)
        end_tree(k, SIGTERM, dlock_now() + grace_of(k));
}

static void on_signal(struct keeper *k, const struct signalfd_siginfo *si)
{
    int sig = (int)si->ssi_signo;
    if (sig == SIGCHLD) {
        reap(k);
        return;
    }
    k->continued |= sig == SIGCONT;
    if (k->phase == K_ACQUIRE) {
        signal_while_waiting(k, si);
    } else if (k->phase >= K_RELEASE) {
        /* Somebody is in a hurry; a reconnect gets its chance, then the lease ends by itself. */
        if (k->phase == K_RELEASE && signals_cancels(sig) && !own_pipe(si))
            dlock_start_release(k->lk, dlock_now() + HURRY_TIME);
    } else if (k->phase == K_START && from_terminal(k, si)) {
        signal_while_starting(k, sig);
    } else if (signals_for_command(si, k->terminal)) {
        k->end_signal |= signals_ends(sig);
        tell_guard(k, G_SIGNAL, sig, NULL);
    } else if (from_terminal(k, si)) {
        k->terminal_sig = sig;
    }
}

/* --- the loop ------------------------------------------------------------------------------------ */

static void say_waiting(struct keeper *k, int64_t now)
{
    char who[SAY_LOCK_MAX], ahead[64] = "";
    if (k->phase != K_ACQUIRE || !k->news || now < k->say_at)
        return;
    k->news = false;
    k->say_at = now + SAY_AGAIN;
    if (k->o->quiet || !(k->o->verbose || isatty(STDERR_FILENO)))
        return;
    if (k->place > 1)
        snprintf(ahead, sizeof ahead, ", %d in the queue before us", k->place - 1);
    say_holder(k->have_holder ? &k->holder : &(struct dlock_info){0}, who, sizeof who);
    bool bare = strcmp(dlock_where(k->lk), dlock_name(k->lk)) == 0;
    say("waiting for '%s'%s%s%s, held by %s%s", dlock_name(k->lk), bare ? "" : " (",
        bare ? "" : dlock_where(k->lk), bare ? "" : ")", who, ahead);
}

static int64_t own_wake(const struct keeper *k)
{
    int64_t at = dlock_min(dlock_min(k->sweep_at, k->guard_by), k->start_by);
    if (k->phase == K_ACQUIRE && k->news)
        at = dlock_min(at, k->say_at);
    return at;
}

static void own_timers(struct keeper *k)
{
    int64_t now = dlock_now();
    say_waiting(k, now);
    if (now >= k->sweep_at)
        sweep(k);
    if (now >= k->start_by) {
        k->start_by = DLOCK_NEVER;
        kill(k->guard.pid, SIGKILL);
    }
    if (now >= k->guard_by) {
        /* It does not leave (stopped?). Nothing is left that it guards. */
        k->guard_by = DLOCK_NEVER;
        kill(k->guard.pid, SIGKILL);
    }
}

/* Wait until something happens. Nanoseconds: a lease can be short, and poll() rounds to milliseconds. */
static int wait_for_events(struct pollfd *pfd, int n, int64_t wake_at)
{
    struct timespec ts, *bound = NULL;
    if (wake_at != DLOCK_NEVER) {
        int64_t left = dlock_max(0, wake_at - dlock_now());
        left = dlock_min(left, 3600 * DLOCK_SEC);
        ts = (struct timespec){.tv_sec = left / DLOCK_SEC, .tv_nsec = left % DLOCK_SEC};
        bound = &ts;
    }
    int got = ppoll(pfd, (nfds_t)n, bound, NULL);
    /* No memory in the kernel: going round without a pause would take the processor from all others. */
    if (got < 0 && errno != EINTR)
        nanosleep(&(struct timespec){.tv_nsec = 5 * DLOCK_MSEC}, NULL);
    return got;
}

static void read_store(struct keeper *k, const struct pollfd *pfd, int n)
{
    struct dlock_report r;
    enum keeper_phase before = k->phase;
    while (k->phase != K_OVER && dlock_process(k->lk, pfd, n, &r)) {
        on_report(k, &r);
        pfd = NULL;
        n = 0;
        if (before == K_ACQUIRE && k->phase == K_GRANTED)
            return;
    }
}

static void read_signals(struct keeper *k)
{
    struct signalfd_siginfo si;
    while (signals_read(k->sig, &si))
        on_signal(k, &si);
}

static bool finished(const struct keeper *k)
{
    return k->phase == K_GRANTED || (k->phase == K_OVER && (!k->guarded || k->guard_gone));
}

void keeper_init(struct keeper *k)
{
    k->phase = K_ACQUIRE;
    k->guard.fd = -1;
    k->sweep_at = k->guard_by = k->start_by = DLOCK_NEVER;
    k->say_at = dlock_now() + SAY_AFTER;
}

void keeper_loop(struct keeper *k)
{
    struct pollfd pfd[DLOCK_POLL_MAX + 2];
    read_store(k, NULL, 0);
    while (!finished(k)) {
        int64_t wake_at = DLOCK_NEVER;
        int n = k->phase == K_OVER ? 0 : dlock_interest(k->lk, pfd, DLOCK_POLL_MAX, &wake_at);
        int store = n;
        pfd[n++] = (struct pollfd){.fd = k->sig->fd, .events = POLLIN};
        if (k->guarded && !k->guard_gone)
            pfd[n++] = (struct pollfd){.fd = k->guard.fd, .events = POLLIN};
        int got = wait_for_events(pfd, n, dlock_min(wake_at, own_wake(k)));
        if (got < 0)
            store = 0;
        /* The guard first: that the command has ended matters more than what the store says about its lock. */
        read_guard(k);
        read_signals(k);
        read_store(k, pfd, store);
        own_timers(k);
    }
}

void keeper_start(struct keeper *k)
{
    k->phase = K_START;
    k->tree.marker = spawn_marker(k->marker, dlock_token(k->lk));
    /* A guard that is stopped would keep us renewing a lock under which nothing runs. */
    k->start_by = k->times.term_at;
    int rc = tell_guard(k, G_START, 0, &k->times);
    if (rc == 0 || rc == -EPIPE)
        return;
    /* It was not told, and would never answer: the lock would be renewed for nobody. */
    k->exec_error = -rc | GUARD_FORK_FAILED;
    k->exited = k->tree_empty = true;
    after_exit(k);
}
