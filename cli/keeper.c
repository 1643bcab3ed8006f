/*
 * keeper.c - acquires a lock, and keeps it while the command runs under a guard: one loop, from the
 * first request to the end of the release, with one poll() over the store, the signals and the
 * guard.
 *
 * The keeper decides nothing about time (lib/lease.c does) and kills nothing while the guard lives:
 * it passes on what each of them must know. Store -> guard: the times of the lease, and orders to
 * end the tree. Guard -> store: the release, once the command has ended and, where it was being
 * ended, its tree is gone.
 *
 * For a lease the guard is forked before a library is loaded, a socket opened or a thread started:
 * the command can inherit nothing of ours, and a threaded process never forks. For a file lock with
 * -o it is forked at the grant, and keeps the descriptor instead of the command. Other file locks
 * need no guard: there the loop ends at the grant.
 */
#include "keeper.h"

#include "guard.h"
#include "messages.h"
#include "open.h"
#include "util.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How long a release is tried: of a place in the queue, of a lost lock, and when a signal comes meanwhile. */
#define CANCEL_TIME DLOCK_SEC
#define LOST_TIME (500 * DLOCK_MSEC)
#define HURRY_TIME (300 * DLOCK_MSEC)

/* The first line about a wait, and the next ones. */
#define WAIT_REPORT_AFTER DLOCK_SEC
#define WAIT_REPORT_EVERY (5 * DLOCK_SEC)

#define SWEEP_EVERY (100 * DLOCK_MSEC)
/* How long a dismissed guard may take to exit; before a command has run, -w has 100 ms of tolerance. */
#define GUARD_EXITS DLOCK_SEC
#define GUARD_EXITS_IDLE (30 * DLOCK_MSEC)

enum keeper_phase {
    KEEPER_ACQUIRING, /* waiting for the lock; a signal cancels */
    KEEPER_STARTING,  /* granted: the guard has been told to start the command */
    KEEPER_RUNNING,   /* the command runs */
    KEEPER_RELEASING, /* it has ended, or never ran: the lock is being released, the guard exits */
    KEEPER_OVER,
    KEEPER_HANDED_OVER /* granted, and no guard is needed: the command is not ours */
};

enum keeper_guard {
    UNGUARDED,
    GUARDED,    /* there is a guard: its pid and socket are valid */
    GUARD_LEFT, /* its end of the socket is closed, when there was nothing left to guard */
    GUARD_DIED  /* its end of the socket is closed too early: its orphans have come to us */
};

struct keeper {
    struct command *c;
    dlock *lk;
    enum keeper_phase phase;
    int die_sig; /* a signal cancelled the wait: die by it */
    int code;    /* exit code of a wait that ended without the lock */

    struct dlock_times times; /* the lease as the guard knows it */
    bool lost;                /* any evidence of loss: the exit code is 79, not the command's */
    bool lost_reported;       /* one line about the loss is enough */
    bool loss_to_report;      /* the guard noticed it first */

    enum keeper_guard guard_state;
    struct guard guard;
    bool guard_reaped; /* often before its EOF is read: its number may be another's by now */
    int guard_unfit;   /* an errno: why it could not set itself up */
    int64_t start_by;  /* it was told to start the command: killed if it has not by then */
    int64_t exit_by;   /* it was told to exit: killed if it has not by then */
    int64_t sweep_at;  /* it died: kill its orphans again at this time */
    bool ending;       /* it was told to end the tree */
    bool tree_empty;

    struct {
        int64_t since;
        struct dlock_info holder; /* last seen */
        bool have_holder;
        int place;         /* in the queue; 0: unknown */
        bool news;         /* since the last line about it */
        int64_t report_at; /* not before this time */
    } wait;
};

static const struct options *options_of(const struct keeper *k)
{
    return k->c->o;
}

/* May a loss end the command? */
static bool may_end(const struct keeper *k)
{
    return options_of(k)->on_lost != DLOCK_LOST_WARN;
}

/* The lock for messages: "redis://h:6379/0: 'nightly'". A bare file is lock and store in one: "'/run/lock/x'". */
static const char *lock_text(const struct keeper *k, char *buf)
{
    const char *name = dlock_name(k->lk), *where = dlock_where(k->lk);

    if (strcmp(where, name) == 0)
        snprintf(buf, LOCK_TEXT_MAX, "'%s'", name);
    else
        snprintf(buf, LOCK_TEXT_MAX, "%s: '%s'", where, name);
    return buf;
}

/* ------------------------------------------------------ to the guard --- */

static void kill_guard(const struct keeper *k)
{
    if (!k->guard_reaped)
        kill(k->guard.pid, SIGKILL);
}

/* 0 or -errno, as of guard_send. t: the times, or NULL. Without a guard nothing is sent. */
static int tell_guard(struct keeper *k, enum guard_msg_type type, int arg,
                      const struct dlock_times *t)
{
    struct guard_msg m = {.type = (int32_t)type, .arg = arg};
    int pass = -1, rc;

    if (k->guard_state != GUARDED)
        return 0;
    m.term_at = t ? t->term_at : DLOCK_NEVER;
    m.kill_at = t ? t->kill_at : DLOCK_NEVER;
    m.hard_at = t ? t->hard_at : DLOCK_NEVER;
    m.raw_minus_boot = t ? t->raw_minus_boot : DLOCK_RAW_NEVER;
    if (type == G_START) {
        pass = dlock_session_fd(k->lk);
        m.fence = dlock_fence(k->lk);
        snprintf(m.token, sizeof(m.token), "%s", dlock_token(k->lk));
    }
    rc = guard_send(&k->guard, &m, pass);
    /*
     * A dead guard shows as EOF. A full socket means that the guard does not run (stopped?): for
     * signals and times that it misses, its kernel timer makes up; an order to end the tree cannot
     * wait for that.
     */
    if (rc < 0 && rc != -EPIPE && type == G_END)
        kill_guard(k);
    return rc;
}

/* Have the guard end the whole tree: SIGTERM, then KILL at kill_at, or SIGKILL at once. */
static void end_tree(struct keeper *k, int sig, int64_t kill_at)
{
    struct dlock_times t = {.term_at = DLOCK_NEVER, .kill_at = kill_at, .hard_at = DLOCK_NEVER};

    k->ending = true;
    tell_guard(k, G_END, sig, &t);
}

/* A time of the lease has passed when this has reached it: the guard reads its times by this clock. */
static int64_t lease_now(const struct keeper *k)
{
    return dlock_lease_now(k->times.raw_minus_boot);
}

/* The guard has no work left. If it does not exit (stopped?) it is killed a moment later. */
static void dismiss_guard(struct keeper *k)
{
    if (k->guard_state != GUARDED)
        return;
    tell_guard(k, G_DETACH, 0, NULL);
    k->exit_by = dlock_now() + (k->c->exited ? GUARD_EXITS : GUARD_EXITS_IDLE);
}

/* ----------------------------------------------------------- phases --- */

/* With or without the lock: the guard exits, then the loop ends. */
static void finish(struct keeper *k)
{
    if (k->phase < KEEPER_RELEASING)
        dismiss_guard(k);
    k->phase = KEEPER_OVER;
}

/* Release the lock, trying for at most that long. */
static void release(struct keeper *k, int64_t time)
{
    dismiss_guard(k);
    k->phase = KEEPER_RELEASING;
    dlock_start_release(k->lk, dlock_now() + time);
}

/*
 * When the command has ended: is anything left of it that must end first? What it left in the
 * background of its own accord is left alone, as flock -o does.
 */
static void after_exit(struct keeper *k)
{
    bool died = k->guard_state == GUARD_DIED;

    if (!k->c->exited || k->phase >= KEEPER_RELEASING)
        return;
    bool must_end = k->ending || k->c->end_signal || (k->lost && may_end(k)) || died;
    if (must_end && !k->tree_empty) {
        if (!k->ending && !died)
            end_tree(k, SIGTERM, lease_now(k) + command_grace(k->c));
        return;
    }
    release(k, k->lost ? LOST_TIME : options_of(k)->connect_timeout_ns);
}

/* The lock is granted: have the guard start the command. */
static void start_command(struct keeper *k)
{
    int rc;

    k->phase = KEEPER_STARTING;
    command_set_token(k->c, dlock_token(k->lk));
    /* A guard that is stopped would keep us renewing a lock under which nothing runs. */
    k->start_by = k->times.term_at;
    rc = tell_guard(k, G_START, 0, &k->times);
    if (rc == 0 || rc == -EPIPE)
        return;
    /* The order was not sent, and no answer would ever come: the lock would be renewed for nothing. */
    k->c->exec_error = -rc | SPAWN_FORK_FAILED;
    k->c->exited = k->tree_empty = true;
    after_exit(k);
}

/* lock_fd: -1, or the file lock's descriptor, which the guard keeps. 0, or an exit code after the message. */
static int fork_guard(struct keeper *k, const char *name, int lock_fd)
{
    struct guard_config cfg = {
        .sig = k->c->sig,
        .argv = options_of(k)->command,
        .name = name,
        .own_group = !k->c->terminal,
        .warn_only = !may_end(k),
        .title = options_of(k)->title,
        .title_size = options_of(k)->title_size,
        .lock_fd = lock_fd,
    };
    int rc = guard_fork(&k->guard, &cfg);

    if (rc < 0) {
        message("cannot fork the guard: %s", strerror(-rc));
        return dlock_error_exit(DLOCK_EOS);
    }
    k->guard_state = GUARDED;
    /* Kept open here, the caller's pipes would not end when the command ends. */
    fds_let_go((int[]){k->c->sig->fd, k->guard.fd, lock_fd}, 3);
    return 0;
}

static void on_granted(struct keeper *k, const struct dlock_times *times)
{
    char lock[LOCK_TEXT_MAX];

    k->times = *times;
    if (options_of(k)->verbose)
        message_took(lock_text(k, lock), k->wait.since);
    if (k->guard_state == UNGUARDED && (!options_of(k)->close_fd || k->c->alone)) {
        k->phase = KEEPER_HANDED_OVER;
        return;
    }
    if (k->guard_state == UNGUARDED)
        k->code = fork_guard(k, dlock_name(k->lk), dlock_fd(k->lk));
    if (k->guard_state == UNGUARDED)
        finish(k);
    else
        start_command(k);
}

/* ----------------------------------------------------------- signals --- */

/* The guard is dead: kill its orphans, which have come to us. */
static void sweep(struct keeper *k)
{
    pid_t stuck = 0;
    int left = process_tree_sweep(&k->c->tree, &stuck);

    if (left > 0) {
        if (stuck > 0)
            command_report_stuck(k->c, stuck);
        k->sweep_at = dlock_now() + SWEEP_EVERY;
        return;
    }
    k->sweep_at = DLOCK_NEVER;
    k->c->exited = k->tree_empty = true;
    after_exit(k);
}

static void on_child(struct keeper *k)
{
    bool wait_for_guard = k->guard_state != UNGUARDED && !k->guard_reaped;
    int status;

    if (process_tree_reap(&k->c->tree, wait_for_guard ? k->guard.pid : 0, &status))
        k->guard_reaped = true;
    if (k->sweep_at != DLOCK_NEVER)
        sweep(k);
}

/* From our own line to a closed stderr. */
static bool own_pipe(const struct signalfd_siginfo *si)
{
    return si->ssi_signo == SIGPIPE && si->ssi_pid == (uint32_t)getpid();
}

static void signal_while_acquiring(struct keeper *k, const struct signalfd_siginfo *si)
{
    int sig = (int)si->ssi_signo;

    if (signals_stops(sig)) {
        signals_stop_self(sig);
    } else if (signals_cancels(sig) && !own_pipe(si)) {
        k->die_sig = sig;
        release(k, CANCEL_TIME);
    }
}

/*
 * Between grant and exec we cannot know whether the command was in the terminal's group already: so
 * it must not start, or must end, and we die by the signal as we would have a moment earlier.
 */
static void interrupt_while_starting(struct keeper *k, int sig)
{
    k->die_sig = sig;
    if (!k->ending)
        end_tree(k, SIGTERM, lease_now(k) + command_grace(k->c));
}

/* The guard decides when, and whether the command has got it already. */
static void pass_on(const struct keeper *k, const struct signalfd_siginfo *si)
{
    struct guard_msg m = {.type = G_SIGNAL, .signal = forward_describe(si, dlock_now())};

    if (k->guard_state == GUARDED)
        guard_send(&k->guard, &m, -1);
}

static void on_signal(struct keeper *k, const struct signalfd_siginfo *si)
{
    int sig = (int)si->ssi_signo;

    if (sig == SIGCHLD) {
        on_child(k);
    } else if (k->phase == KEEPER_ACQUIRING) {
        signal_while_acquiring(k, si);
    } else if (k->phase >= KEEPER_RELEASING) {
        /* The sender is in a hurry: time for one reconnect, then the lease is left to expire. */
        if (k->phase == KEEPER_RELEASING && signals_cancels(sig) && !own_pipe(si))
            dlock_start_release(k->lk, dlock_now() + HURRY_TIME);
    } else if (k->phase == KEEPER_STARTING && signals_interrupts(si, k->c->terminal)) {
        interrupt_while_starting(k, sig);
    } else if (command_signal(k->c, si)) {
        pass_on(k, si);
    }
}

static void read_signals(struct keeper *k)
{
    struct signalfd_siginfo si;

    while (signals_read(k->c->sig, &si))
        on_signal(k, &si);
}

/* ------------------------------------------------------------- store --- */

#define HOLDER_TEXT_MAX 1024

/* The lock is lost: noted, and said once. what: "is lost"; why: more about it, or "". */
static void on_lost(struct keeper *k, const char *what, const char *why)
{
    char lock[LOCK_TEXT_MAX];

    k->lost = true;
    if (!k->lost_reported)
        message("%s: the lock %s%s%s%s", lock_text(k, lock), what, why[0] ? ": " : "", why,
                may_end(k) ? "; ending the command" : "; the command continues (--on-lost warn)");
    k->lost_reported = true;
}

static void on_busy(struct keeper *k, const struct dlock_info *info)
{
    const struct options *o = options_of(k);
    char lock[LOCK_TEXT_MAX], holder[HOLDER_TEXT_MAX], why[HOLDER_TEXT_MAX + 16], waited[32];

    if (!o->quiet) {
        lock_text(k, lock);
        if (info)
            snprintf(why, sizeof(why), "held by %s", message_holder(info, holder, sizeof(holder)));
        else if (k->c->local)
            snprintf(why, sizeof(why), "held by another process");
        else /* free, but kept for the first waiter, or the store grants nothing yet */
            snprintf(why, sizeof(why), "not available yet");
        if (o->nonblock)
            message("%s is %s", lock, why);
        else
            message("%s is still %s after %s", lock, why,
                    dlock_format_duration(o->wait_ns, waited, sizeof(waited)));
    }
    k->code = o->conflict_code;
    finish(k);
}

/* The store has not confirmed the release: it was silent, or says why. */
static void release_unclear(const struct keeper *k, const struct dlock_error *err)
{
    char lock[LOCK_TEXT_MAX];

    if (err->code == 0 || err->code == DLOCK_EUNAVAIL)
        message("%s: no answer to the release%s%s; the lock expires with its ttl",
                lock_text(k, lock), err->msg[0] ? ": " : "", err->msg);
    else /* the store may have done part of it */
        message("the release of '%s' failed: %s; the lock ends with its ttl at the latest",
                dlock_name(k->lk), err->msg);
}

static void on_released(struct keeper *k, const struct dlock_report *r)
{
    char lock[LOCK_TEXT_MAX];
    const char *colon = r->error.msg[0] ? ": " : "";

    lock_text(k, lock);
    if (r->how == DLOCK_REL_NOT_OURS && !k->lost) {
        message("%s was not ours any more when it was released%s%s", lock, colon, r->error.msg);
        k->lost = true;
    }
    if (r->how == DLOCK_REL_UNCLEAR && !k->lost && !k->die_sig)
        release_unclear(k, &r->error);
    finish(k);
}

static void on_waiting(struct keeper *k, const struct dlock_report *r)
{
    if (r->place < 0)
        return;
    k->wait.have_holder = r->info;
    if (r->info)
        k->wait.holder = *r->info;
    k->wait.place = r->place;
    k->wait.news = true;
}

static void on_report(struct keeper *k, const struct dlock_report *r)
{
    switch (r->type) {
    case DLOCK_R_WAITING:
        on_waiting(k, r);
        break;
    case DLOCK_R_ACQUIRED:
        on_granted(k, &r->times);
        break;
    case DLOCK_R_BUSY:
        on_busy(k, r->info);
        break;
    case DLOCK_R_FAILED:
        k->code = message_error(options_of(k), &r->error);
        finish(k);
        break;
    case DLOCK_R_EXTENDED:
        k->times = r->times;
        tell_guard(k, G_EXTEND, 0, &r->times);
        break;
    /* First the order, then the message about it. */
    case DLOCK_R_TERM:
        if (may_end(k))
            end_tree(k, SIGTERM, r->times.kill_at);
        on_lost(k, "could not be renewed in time", r->error.msg);
        break;
    case DLOCK_R_LOST:
        if (may_end(k))
            end_tree(k, SIGKILL, 0);
        on_lost(k, "is lost", r->error.msg);
        break;
    case DLOCK_R_RELEASED:
        on_released(k, r);
        break;
    case DLOCK_R_NOTICE:
        if (r->error.code ? !options_of(k)->quiet : options_of(k)->verbose)
            message("%s", r->error.msg);
        break;
    default:
        break;
    }
}

/* Act on all reports; pfd, n: as of dlock_process. */
static void read_store(struct keeper *k, const struct pollfd *pfd, int n)
{
    struct dlock_report r;

    while (k->phase < KEEPER_OVER && dlock_process(k->lk, pfd, n, &r)) {
        on_report(k, &r);
        pfd = NULL;
        n = 0;
    }
}

/* Say who holds the lock, when that is new and it is time to say so. */
static void report_wait(struct keeper *k, int64_t now)
{
    const struct options *o = options_of(k);
    const char *name = dlock_name(k->lk), *where = dlock_where(k->lk);
    char holder[HOLDER_TEXT_MAX], ahead[64] = "";

    if (k->phase != KEEPER_ACQUIRING || !k->wait.news || now < k->wait.report_at)
        return;
    k->wait.news = false;
    k->wait.report_at = now + WAIT_REPORT_EVERY;
    if (!message_tells_wait(o))
        return;
    if (k->wait.place > 1)
        snprintf(ahead, sizeof(ahead), ", %d in the queue before us", k->wait.place - 1);
    message_holder(k->wait.have_holder ? &k->wait.holder : &(struct dlock_info){.waited_ms = -1},
                   holder, sizeof(holder));
    bool bare = strcmp(where, name) == 0;
    message("waiting for '%s'%s%s%s, held by %s%s", name, bare ? "" : " (", bare ? "" : where,
            bare ? "" : ")", holder, ahead);
}

/* ---------------------------------------------------- from the guard --- */

/*
 * Called when the socket is empty: only the guard's last report counts. Outside of a terminal we go
 * on renewing while the command is stopped.
 */
static void stop_with_command(struct keeper *k)
{
    if (command_job_stopped(k->c)) {
        k->c->continued = false;
        read_signals(k);
    }
    command_follow_stop(k->c);
}

static void on_guard(struct keeper *k, const struct guard_msg *m)
{
    /*
     * The store's report of it is due as well, and says why: report_loss waits for it. Not for long: a
     * keeper that is late finds the end of the command behind this message, and then only a release.
     */
    if (m->flags & GUARD_TIMED_OUT) {
        k->lost = k->loss_to_report = true;
        if (lease_now(k) < k->times.kill_at)
            read_store(k, NULL, 0);
    }
    switch (m->type) {
    case G_STARTED:
        if (k->phase == KEEPER_STARTING)
            k->phase = KEEPER_RUNNING;
        k->start_by = DLOCK_NEVER;
        break;
    case G_EXEC_FAILED:
        k->c->exec_error = m->arg;
        k->c->exited = k->tree_empty = true;
        break;
    case G_STOPPED:
        k->c->stopped_by = m->arg;
        break;
    case G_EXITED:
        /*
         * The Ctrl-C that ended it was sent to us before it could be reaped: it belongs to the run,
         * not to the release.
         */
        read_signals(k);
        k->c->status = m->arg;
        k->c->exited = true;
        break;
    case G_TREE_EMPTY:
        k->tree_empty = true;
        break;
    case G_STUCK:
        command_report_stuck(k->c, m->arg);
        break;
    case G_UNFIT:
        k->guard_unfit = m->arg;
        break;
    default:
        break;
    }
    after_exit(k);
}

static void report_guard_gone(const struct keeper *k, const char *consequence)
{
    if (k->guard_unfit)
        message("cannot set up the guard process: %s%s", strerror(k->guard_unfit),
                k->guard_unfit == EAGAIN ? " (too many pending signals: see 'ulimit -i')" : "");
    else
        message("the guard process %d was killed: %s", (int)k->guard.pid, consequence);
}

static void on_guard_gone(struct keeper *k)
{
    k->guard_state = GUARD_LEFT;
    k->exit_by = k->start_by = DLOCK_NEVER;
    close(k->guard.fd);
    k->guard.fd = -1;
    /* The kernel closed its descriptors as it died: this waits for microseconds. */
    if (!k->guard_reaped)
        waitpid(k->guard.pid, NULL, __WALL);
    k->guard_reaped = true;
    if (k->phase >= KEEPER_RELEASING || (k->c->exited && k->tree_empty))
        return;
    k->guard_state = GUARD_DIED;
    if (k->phase == KEEPER_ACQUIRING) {
        report_guard_gone(k, "giving up");
        k->code = dlock_error_exit(DLOCK_EOS);
        release(k, CANCEL_TIME);
        return;
    }
    /*
     * The kernel's timer kills a guard that was stopped for too long, in good time before hard_at. Without a renewal
     * since, the lease must be taken for lost.
     */
    bool late = lease_now(k) >= k->times.term_at;
    k->lost |= late;
    sweep(k);
    if (late)
        on_lost(k, "could not be renewed in time", "the guard was stopped");
    else
        report_guard_gone(
            k, "ending the command (its own timer kills it if it cannot run for too long)");
}

static void read_guard(struct keeper *k)
{
    struct guard_msg m;

    while (k->guard_state == GUARDED) {
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

/* The guard noticed a loss: report it, unless the store has done so meanwhile, with the reason. */
static void report_loss(struct keeper *k)
{
    if (k->loss_to_report)
        on_lost(k, "could not be renewed in time", "");
    k->loss_to_report = false;
}

/* -------------------------------------------------------------- loop --- */

/* When a timer of our own is due. */
static int64_t own_wake(const struct keeper *k)
{
    int64_t at = dlock_min(dlock_min(k->sweep_at, k->exit_by), k->start_by);

    if (k->phase == KEEPER_ACQUIRING && k->wait.news)
        at = dlock_min(at, k->wait.report_at);
    return at;
}

static void own_timers(struct keeper *k)
{
    int64_t now = dlock_now();

    report_wait(k, now);
    if (now >= k->sweep_at)
        sweep(k);
    if (now >= k->start_by || now >= k->exit_by) {
        /* The guard does not answer (stopped?). EOF of its socket says what is next. */
        k->start_by = k->exit_by = DLOCK_NEVER;
        kill_guard(k);
    }
}

/* In nanoseconds: a lease can be short, and poll() rounds to milliseconds. */
static int wait_for_events(struct pollfd *pfd, int n, int64_t wake_at)
{
    struct timespec ts, *bound = NULL;

    if (wake_at != DLOCK_NEVER) {
        int64_t left = dlock_max(0, wake_at - dlock_now());
        left = dlock_min(left, 3600 * DLOCK_SEC);
        ts = (struct timespec){.tv_sec = left / DLOCK_SEC, .tv_nsec = (long)(left % DLOCK_SEC)};
        bound = &ts;
    }
    int got = ppoll(pfd, (nfds_t)n, bound, NULL);
    /* The kernel is out of memory: to loop without a pause would take the processor from everything else. */
    if (got < 0 && errno != EINTR)
        nanosleep(&(struct timespec){.tv_nsec = 5 * DLOCK_MSEC}, NULL);
    return got;
}

static bool finished(const struct keeper *k)
{
    return k->phase == KEEPER_HANDED_OVER || (k->phase == KEEPER_OVER && k->guard_state != GUARDED);
}

static void loop(struct keeper *k)
{
    struct pollfd pfd[DLOCK_POLL_MAX + 2];

    read_store(k, NULL, 0);
    while (!finished(k)) {
        int64_t wake_at = DLOCK_NEVER;
        int n = 0, nstore;

        if (k->phase < KEEPER_OVER)
            n = dlock_interest(k->lk, pfd, DLOCK_POLL_MAX, &wake_at);
        nstore = n;
        pfd[n++] = (struct pollfd){.fd = k->c->sig->fd, .events = POLLIN};
        if (k->guard_state == GUARDED)
            pfd[n++] = (struct pollfd){.fd = k->guard.fd, .events = POLLIN};
        if (wait_for_events(pfd, n, dlock_min(wake_at, own_wake(k))) < 0)
            nstore = 0;
        /* The guard first: the end of the command matters more than a report of the store. */
        read_guard(k);
        read_signals(k);
        read_store(k, pfd, nstore);
        report_loss(k);
        own_timers(k);
    }
}

/* The handle is closed first, so that the session in the store ends too before a signal may end us. */
static int exit_code(struct keeper *k)
{
    dlock_close(k->lk);
    if (k->die_sig)
        signals_die(k->die_sig);
    if (k->lost)
        return options_of(k)->lost_code;
    if (k->guard_state == GUARD_DIED)
        return dlock_error_exit(DLOCK_EOS);
    return k->c->exited ? command_exit_code(k->c) : k->code;
}

int keeper_run(struct command *c, struct dlock_uri **uri, dlock **held)
{
    struct keeper k = {
        .c = c,
        .guard.fd = -1,
        .start_by = DLOCK_NEVER,
        .exit_by = DLOCK_NEVER,
        .sweep_at = DLOCK_NEVER,
        .wait.report_at = dlock_now() + WAIT_REPORT_AFTER,
    };
    int code = 0;

    if (!c->local) {
        code = fork_guard(&k, (*uri)->name, -1);
        if (code != 0)
            return code;
        open_bound_memory();
    }
    k.lk = open_handle(c->o, uri, &code);
    if (!k.lk)
        return code; /* the guard exits by itself when our end of its socket closes */
    k.wait.since = dlock_now();
    dlock_start_acquire(k.lk);
    loop(&k);
    if (k.phase != KEEPER_HANDED_OVER)
        return exit_code(&k);
    *held = k.lk;
    return 0;
}
