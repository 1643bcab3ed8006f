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
 * options_need_guard() it is forked at the grant, and keeps the descriptor instead of the command. Other file locks
 * need no guard: there the loop ends at the grant.
 */
#include "keeper.h"

#include "guard.h"
#include "inner.h"
#include "messages.h"
#include "open.h"
#include "report.h"
#include "util.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* How long a release is tried: of a place in the queue, of a lost lock, and when a signal comes meanwhile. */
#define CANCEL_TIME DLOCK_SEC
#define LOST_TIME (500 * DLOCK_MSEC)
#define HURRY_TIME (300 * DLOCK_MSEC)

#define SWEEP_EVERY (100 * DLOCK_MSEC)
/* How long a dismissed guard may take to exit; before a command has run, -w has 100 ms of tolerance. */
#define GUARD_EXITS DLOCK_SEC
#define GUARD_EXITS_IDLE (30 * DLOCK_MSEC)
/* How late it may be to end the command by --max-run. */
#define GUARD_ENDS DLOCK_SEC

#define OVERRUN_EXIT 124 /* as timeout(1) */

enum keeper_phase {
    KEEPER_ACQUIRING, /* waiting for the lock; a signal cancels */
    KEEPER_STARTING,  /* granted: the guard has been told to start the command */
    KEEPER_RUNNING,   /* the command runs, or only inner dlocks that it left behind */
    KEEPER_STAYING, /* it has ended, and the lock stays held for --min-hold: nothing is guarded any more */
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

enum keeper_end {
    KEEPER_SPARES, /* what the command leaves behind is left alone */
    KEEPER_ENDS,   /* the guard was told to end the tree, or does so by --max-run */
    KEEPER_KILLS   /* and it was reported that the tree is sent SIGKILL */
};

struct keeper {
    struct command *c;
    dlock *lk;                   /* LOCK */
    dlock *locks[DLOCK_SET_MAX]; /* it and those of --also */
    int nlocks;
    dlock_set *set;      /* it and those of --also; NULL: there is no --also */
    struct inner *inner; /* NULL: not held, or not possible */
    bool inner_asked;    /* those that are left were asked to end with the command's tree */
    enum keeper_phase phase;
    int die_sig; /* a signal cancelled the wait: die by it */
    int code;    /* exit code of a wait that ended without the lock */

    struct dlock_times times; /* the lease as the guard knows it */
    struct loss loss;         /* any loss: the exit code is 79, not the command's */
    bool guard_timed_out; /* in this turn the guard has said that the time of the lease was over */

    bool overrun;        /* --max-run has passed, and ends what runs under the lock */
    int64_t run_until;   /* when it passes, by our clock */
    int64_t end_by;      /* it has passed: the guard is killed if it has not said so by then */
    int64_t inner_until; /* inner dlocks that are left then are killed */

    enum keeper_guard guard_state;
    struct guard guard;
    struct forward_untold untold; /* signals for the command */
    bool guard_reaped;   /* often before its EOF is read: its number may be another's by now */
    int guard_unfit;     /* an errno: why it could not set itself up */
    int64_t start_by;    /* it was told to start the command: killed if it has not by then */
    int64_t exit_by;     /* it was told to exit: killed if it has not by then */
    int64_t sweep_at;    /* it died: kill its orphans again at this time */
    enum keeper_end end; /* of the command's tree */
    bool tree_empty;

    int64_t
        stay_until; /* --min-hold: the command has ended, and the lock stays held; DLOCK_NEVER: not so */
    bool stay_told;
    bool hurried;       /* a signal has ended that wait, or came when only inner dlocks were left */
    int64_t release_by; /* while releasing: when it is given up */
    bool success;       /* --once: what the release records */
    bool unrecorded;    /* ... and has not confirmed */

    struct report report;
};

static const struct options *options_of(const struct keeper *k)
{
    return k->c->o;
}

/* May a loss end the command? */
static bool may_end(const struct keeper *k)
{
    return options_of(k)->on_lost != ON_LOST_WARN;
}

static bool is_lost(const struct keeper *k)
{
    return k->loss.kind != LOSS_NONE;
}

/* ------------------------------------------------- one lock or a set --- */

static void store_acquire(struct keeper *k)
{
    if (k->set)
        dlock_set_start_acquire(k->set, NULL);
    else
        dlock_start_acquire(k->lk, NULL);
}

static void store_release(struct keeper *k, int64_t until)
{
    k->release_by = until;
    if (k->set)
        dlock_set_start_release(k->set, until, NULL);
    else
        dlock_start_release(k->lk, until, NULL);
}

static int store_interest(struct keeper *k, struct pollfd *pfd, int64_t *wake_at)
{
    return k->set ? dlock_set_interest(k->set, pfd, DLOCK_SET_MAX * DLOCK_POLL_MAX, wake_at)
                  : dlock_interest(k->lk, pfd, DLOCK_POLL_MAX, wake_at);
}

static const struct dlock_report *store_process(struct keeper *k, const struct pollfd *pfd, int n)
{
    return k->set ? dlock_set_process(k->set, pfd, n) : dlock_process(k->lk, pfd, n);
}

static void store_close(struct keeper *k)
{
    if (k->set)
        dlock_set_close(k->set);
    else
        dlock_close(k->lk);
}

/* What the guard must keep open: the command does not inherit the files of a set. */
static int descriptor_of(const struct keeper *k, const dlock *lk)
{
    int file = k->set ? dlock_fd(lk) : -1;

    return file >= 0 ? file : dlock_session_fd(lk);
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
    m.hard_at = t ? dlock_hard_at(t) : DLOCK_NEVER;
    m.raw_minus_boot = t ? t->raw_minus_boot : DLOCK_RAW_NEVER;
    if (type == G_START) {
        pass = descriptor_of(k, k->lk);
        m.fence = dlock_fence(k->lk);
        m.slot = dlock_slot(k->lk) + 1;
        if (k->c->nheld > 0)
            m.held = k->c->held[k->c->nheld - 1];
        snprintf(m.token, sizeof(m.token), "%s", dlock_token(k->lk));
    }
    rc = guard_send(&k->guard, &m, pass);
    /*
     * A dead guard shows as EOF. A full socket means that the guard does not run (stopped?): for
     * times that it misses, its kernel timer makes up; an order to end the tree cannot wait for that.
     */
    if (rc < 0 && rc != -EPIPE && type == G_END)
        kill_guard(k);
    return rc;
}

/* The other locks of a set, before START. 0 or -errno. */
static int tell_others(struct keeper *k)
{
    const dlock *lk;
    int rc = 0;

    for (int i = 1; k->set && (lk = dlock_set_at(k->set, i)) && rc == 0; i++) {
        struct guard_msg m = {.type = G_ALSO, .arg = i + 1, .fence = dlock_fence(lk)};
        if (i < k->c->nheld)
            m.held = k->c->held[i - 1];
        rc = guard_send(&k->guard, &m, descriptor_of(k, lk));
    }
    return rc;
}

/* Have the guard end the whole tree: SIGTERM, then KILL at kill_at, or SIGKILL at once. */
static void end_tree(struct keeper *k, int sig, int64_t kill_at)
{
    struct dlock_times t = {.term_at = DLOCK_NEVER, .kill_at = kill_at, .deadline = DLOCK_NEVER};

    k->end = k->end == KEEPER_SPARES ? KEEPER_ENDS : k->end;
    tell_guard(k, G_END, sig, &t);
}

/* Report, once, that the tree is sent SIGKILL. */
static void report_killed(struct keeper *k)
{
    if (k->end != KEEPER_KILLS)
        report_kill(&k->report);
    k->end = KEEPER_KILLS;
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
    report_cancelled(&k->report);
    if (k->phase < KEEPER_RELEASING)
        dismiss_guard(k);
    k->phase = KEEPER_OVER;
}

/* Release the lock, trying for at most that long. */
static void release(struct keeper *k, int64_t time)
{
    report_cancelled(&k->report);
    inner_stop(k->inner);
    dismiss_guard(k);
    k->phase = KEEPER_RELEASING;
    k->run_until = k->end_by = k->inner_until = DLOCK_NEVER;
    store_release(k, dlock_now() + time);
}

/* Has a signal asked this run to end? Its sender does not want to wait for --min-hold. */
static bool told_to_end(const struct keeper *k)
{
    int status = k->c->status;

    return k->hurried || k->die_sig || k->c->end_signal ||
           (WIFSIGNALED(status) && WTERMSIG(status) == k->c->terminal_sig);
}

/*
 * --min-hold: must we stay with the lock after the command's end? A store with an expiry keeps it by itself. What never
 * ran, and a lock that is lost, need no time.
 */
static bool stays(struct keeper *k)
{
    int64_t left = 0;

    for (int i = 0; i < k->nlocks; i++) {
        if (k->c->exec_error)
            dlock_end_min_hold(k->locks[i]);
        left = dlock_max(left, dlock_min_hold_left(k->locks[i]));
    }
    if (left == 0 || is_lost(k) || told_to_end(k) || k->guard_state == GUARD_DIED)
        return false;
    k->stay_until = dlock_now() + left;
    if (!k->stay_told)
        report_stays(&k->report, left);
    k->stay_told = true;
    return true;
}

/* What --once records: how the command has ended, as a shell says it; -1: no process could tell. */
static int recorded_status(const struct keeper *k)
{
    int status = k->c->status, error = k->c->exec_error;

    if (k->guard_state == GUARD_DIED || error == SPAWN_TOO_LATE || error & SPAWN_FORK_FAILED)
        return -1;
    if (k->overrun)
        return OVERRUN_EXIT;
    if (error)
        return spawn_exec_code(error);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* --once: what the release writes into the record, in the same step. */
static void record_result(struct keeper *k)
{
    int code = recorded_status(k);

    if (options_of(k)->once_ns == 0)
        return;
    k->success = k->c->exec_error == 0 && WIFEXITED(k->c->status) && !is_lost(k) && !k->overrun &&
                 !k->die_sig && options_success(options_of(k), code);
    dlock_note_result(k->lk, k->success, code, NULL);
}

/* How long the release is tried. A success that must be recorded: as long as nobody else can have the lock. */
static int64_t release_time(const struct keeper *k)
{
    int64_t time = options_of(k)->connect_timeout_ns, left = dlock_time_left(k->lk);

    if (is_lost(k))
        return LOST_TIME;
    return k->success && left != DLOCK_NEVER ? dlock_max(time, left) : time;
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
    k->stay_until = DLOCK_NEVER; /* an inner dlock may have come meanwhile */
    /* What is left while we stay was left alone before, and no guard could end it. */
    bool must_end = k->phase < KEEPER_STAYING &&
                    (k->end || k->c->end_signal || (is_lost(k) && may_end(k)) || died);
    if (must_end && !k->tree_empty) {
        if (!k->end && !died)
            end_tree(k, SIGTERM, lease_now(k) + command_grace(k->c));
        return;
    }
    inner_settle(k->inner);
    if (inner_count(k->inner) > 0) {
        /* Those that are left are no descendants of the command. */
        if (must_end && !k->inner_asked)
            inner_ask_to_end(k->inner);
        k->inner_asked |= must_end;
        return;
    }
    if (stays(k)) {
        if (k->phase < KEEPER_STAYING)
            dismiss_guard(k);
        k->phase = KEEPER_STAYING;
        k->end_by = DLOCK_NEVER;
        return;
    }
    record_result(k);
    release(k, release_time(k));
}

/* --max-run has passed. sig: what the tree is sent: SIGTERM, and the grace begins, or SIGKILL. */
static void on_overrun(struct keeper *k, int sig)
{
    int64_t grace = sig == SIGTERM ? command_grace(k->c) : 0;
    bool staying = k->phase == KEEPER_STAYING;

    if (k->phase >= KEEPER_RELEASING || (staying && inner_count(k->inner) == 0))
        return;
    if (!k->overrun) {
        k->overrun = k->inner_asked = true;
        k->end = k->end == KEEPER_SPARES ? KEEPER_ENDS : k->end;
        k->run_until = k->end_by = DLOCK_NEVER;
        k->inner_until = dlock_now() + grace;
        if (staying) /* no guard ends the tree */
            inner_ask_to_end(k->inner);
        else
            inner_ask_others_to_end(k->inner);
        report_about(&k->report, k->lk);
        report_overrun(&k->report, k->c->exited);
        if (sig == SIGTERM)
            report_term(&k->report, grace);
    }
    if (sig == SIGKILL)
        report_killed(k);
}

/* By our clock --max-run has passed. The guard ends the tree, if there is one and the guard is not stopped. */
static void run_is_over(struct keeper *k)
{
    k->run_until = DLOCK_NEVER;
    if (k->phase == KEEPER_STAYING && inner_count(k->inner) == 0)
        inner_kill(k->inner, "--max-run has passed"); /* none may come any more */
    else if (k->phase == KEEPER_STAYING || (k->c->exited && k->tree_empty))
        on_overrun(k, SIGTERM);
    else if (k->end)
        k->inner_until = dlock_now() + command_grace(k->c);
    if (k->phase < KEEPER_STAYING && k->guard_state == GUARDED && !k->overrun)
        k->end_by = dlock_now() + GUARD_ENDS + (k->end ? command_grace(k->c) : 0);
}

/* Before the command starts, which may start dlocks that name our locks. */
static void listen_for_inner(struct keeper *k)
{
    const dlock *lks[DLOCK_SET_MAX];
    struct inner_lock locks[DLOCK_SET_MAX];
    int n = options_of(k)->nalso + 1;

    for (int i = 0; i < n; i++) {
        lks[i] = k->set ? dlock_set_at(k->set, i) : k->lk;
        command_set_file(k->c, i, dlock_fd(lks[i]));
        locks[i] = (struct inner_lock){lks[i], k->c->lock[i].key};
    }
    k->inner = inner_open(locks, n);
    if (!k->inner)
        report_no_inner(&k->report, errno);
    command_set_held(k->c, lks, n, inner_socket(k->inner));
}

/* The lock is granted: have the guard start the command. */
static void start_command(struct keeper *k)
{
    int rc;

    k->phase = KEEPER_STARTING;
    listen_for_inner(k);
    /* A guard that is stopped would keep us renewing a lock under which nothing runs. */
    k->start_by = k->times.term_at;
    rc = tell_others(k);
    if (rc == 0)
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
        .max_run = options_of(k)->max_run_ns,
        .grace = command_grace(k->c),
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
    int session_fd = k->lk ? dlock_session_fd(k->lk) : -1, n = 5;
    int keep[5 + DLOCK_FDS_MAX] = {k->c->sig->fd, k->guard.fd, lock_fd, session_fd,
                                   events_fd(k->c->events)};
    if (k->lk)
        n += dlock_own_fds(k->lk, keep + n);
    fds_let_go(keep, n);
    events_start_thread(k->c->events); /* the last fork was this one */
    return 0;
}

/*
 * A file is locked: is a guard of no use? One that cannot find the command's tree is not, but for --max-run: there it
 * ends the command, at least.
 */
static bool is_handed_over(const struct keeper *k)
{
    if (k->guard_state != UNGUARDED)
        return false;
    return command_inherits(k->c, k->lk) ||
           (!options_must_guard(options_of(k)) && (k->c->alone || !process_tree_visible()));
}

static void on_granted(struct keeper *k, const struct dlock_times *times)
{
    k->times = *times;
    report_granted(&k->report);
    if (is_handed_over(k)) {
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
        message_erase(); /* the shell writes its own line now */
        signals_stop_self(sig);
    } else if (sig == SIGCONT) {
        report_continue(&k->report);
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
    if (!k->end)
        end_tree(k, SIGTERM, lease_now(k) + command_grace(k->c));
}

/* Signals for the command, as far as the guard takes them. */
static void tell_signals(struct keeper *k)
{
    while (k->untold.n > 0 && k->guard_state == GUARDED) {
        struct guard_msg m = {.type = G_SIGNAL, .signal = k->untold.at[0]};
        if (guard_send(&k->guard, &m, -1) == -EAGAIN)
            return;
        forward_told(&k->untold);
    }
}

/* The guard decides when, and whether the command has got it already. */
static void pass_on(struct keeper *k, const struct signalfd_siginfo *si)
{
    struct forward_signal s = forward_describe(si, dlock_now());

    forward_keep(&k->untold, &s);
    tell_signals(k);
}

/* The command has ended, with its tree if that was to end, and inner dlocks run under the lock still. */
static bool only_inner_left(const struct keeper *k)
{
    return k->c->exited && (!k->end || k->tree_empty) && inner_count(k->inner) > 0;
}

/* Only the lock is left, for --min-hold. At a terminal a stop is for us: no command will have it. */
static void signal_while_staying(struct keeper *k, int sig)
{
    if (signals_stops(sig))
        signals_stop_self(sig);
    if (command_ends(sig)) {
        k->hurried = true;
        inner_ask_to_end(k->inner);
    }
    after_exit(k);
}

static void on_signal(struct keeper *k, const struct signalfd_siginfo *si)
{
    int sig = (int)si->ssi_signo;

    if (sig == SIGCHLD) {
        on_child(k);
    } else if (k->phase == KEEPER_ACQUIRING) {
        signal_while_acquiring(k, si);
    } else if (k->phase >= KEEPER_RELEASING) {
        /*
         * The sender is in a hurry: time for one reconnect, then the lease is left to expire. One signal behind the other
         * (a key that is held down) does not prolong that.
         */
        if (k->phase == KEEPER_RELEASING && signals_cancels(sig) && !own_pipe(si))
            store_release(k, dlock_min(k->release_by, dlock_now() + HURRY_TIME));
    } else if (k->phase == KEEPER_STAYING) {
        signal_while_staying(k, sig);
    } else if (only_inner_left(k)) {
        if (command_ends(sig)) {
            k->hurried = true; /* nor does it wait for --min-hold after them */
            inner_ask_to_end(k->inner);
        }
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

/* The one place that sets the loss: the first evidence with a cause counts, and is told. */
static void lose(struct keeper *k, enum loss_kind kind, const char *cause)
{
    if (k->loss.kind > LOSS_UNTOLD && kind != LOSS_WITH_RECORD)
        return;
    k->loss.kind = kind;
    if (kind == LOSS_UNTOLD)
        return;
    snprintf(k->loss.cause, sizeof(k->loss.cause), "%s", cause);
    inner_ending(k->inner);
    report_lost(&k->report, &k->loss, k->phase == KEEPER_STAYING);
}

/* Is the holder a dlock above this one? Of a file the holder is known to the talkative only, unless it may be one. */
static bool is_own(const struct keeper *k, const struct dlock_info *info)
{
    /* What was above this one, and is over, holds its lock no longer than the store takes to notice. */
    for (int i = 0; info && i < DLOCK_SET_MAX; i++)
        if (k->c->lock[i].ended && strcmp(k->c->lock[i].outer.token, info->token) == 0)
            return false;
    return info && (!k->c->local || k->c->may_be_own) &&
           held_by_ancestor(getenv("DLOCK_HELD"), info);
}

/* A wait for a dlock above this one would never end. */
static void on_waiting(struct keeper *k, const struct dlock_report *r)
{
    report_waiting(&k->report, r);
    if (!is_own(k, r->info))
        return;
    report_own(&k->report, r->info, NULL);
    k->code = options_of(k)->conflict_code;
    release(k, CANCEL_TIME);
}

static void on_busy(struct keeper *k, const struct dlock_report *r)
{
    if (is_own(k, r->info))
        report_own(&k->report, r->info, NULL);
    else
        report_busy(&k->report, r->info, r->kept);
    k->code = options_of(k)->conflict_code;
    finish(k);
}

/* Handles of LOCK and of --also; waited: this much of -w is over. 0, or an exit code after the message. */
static int open_locks(struct keeper *k, struct dlock_uri **uris, int64_t waited)
{
    const struct options *o = options_of(k);
    dlock *locks[DLOCK_SET_MAX];
    struct dlock_error err;
    int code = 0, n = 0;

    for (; n <= o->nalso && code == 0; n++) {
        const struct command_lock *l = &k->c->lock[n];
        struct open_how how = {.outer = l->nested ? &l->outer : NULL,
                               .waited = waited,
                               .also = n > 0,
                               .look = k->c->may_be_own};
        locks[n] =
            open_handle(o, n == 0 ? o->lock_mode : o->also[n - 1].mode, &uris[n], &how, &code);
        if (!locks[n])
            break;
    }
    if (code == 0 && n > 1 && dlock_set_open(&k->set, locks, n, open_wait(o, waited), &err) < 0)
        code = message_error(o, &err);
    if (code == 0) {
        k->lk = locks[0];
        k->nlocks = n;
        memcpy(k->locks, locks, sizeof(locks));
    } else {
        while (n > 0)
            dlock_close(locks[--n]);
    }
    return code;
}

/* The dlock above this one does not hold the lock any more, or is out of reach: as if there were none. */
static void try_store(struct keeper *k, const struct dlock_error *why)
{
    struct dlock_uri *uris[DLOCK_SET_MAX] = {NULL};

    for (int i = 0; i <= options_of(k)->nalso; i++) {
        const dlock *lk = k->set ? dlock_set_at(k->set, i) : k->lk;
        /* The command may have a file's lock still. */
        k->c->lock[i].ended |= lk == k->report.lk && nested_has_ended(why) && !dlock_is_local(lk);
    }
    store_close(k);
    k->lk = NULL;
    k->set = NULL;
    k->nlocks = 0;
    k->c->nested = false;
    for (int i = 0; i <= options_of(k)->nalso; i++)
        k->c->lock[i].nested = false;
    k->code = open_uris(options_of(k), uris);
    if (k->code == 0)
        k->code = open_locks(k, uris, dlock_now() - k->report.wait.since);
    for (int i = 0; i < DLOCK_SET_MAX; i++)
        dlock_uri_free(uris[i]);
    report_again(&k->report, k->lk, why);
    if (k->lk)
        store_acquire(k);
    else
        finish(k);
}

static void on_failed(struct keeper *k, const struct dlock_error *err)
{
    if (k->c->nested && nested_unreachable(err)) {
        const struct dlock_error why = *err; /* err goes with the handle, which is closed there */
        try_store(k, &why);
        return;
    }
    if (k->c->nested && err->code == DLOCK_EBUSY) {
        report_own(&k->report, NULL, err);
        k->code = options_of(k)->conflict_code;
    } else {
        k->code = report_failed(&k->report, err);
    }
    finish(k);
}

static void on_released(struct keeper *k, const struct dlock_report *r)
{
    const dlock *which = r->lock; /* NULL: all of a set */
    /* Of a set, each lock has told for itself what is not as it should be; the set comes last. */
    bool success = which && which == k->lk && k->success; /* said also if another one is lost */

    if (which && r->how == DLOCK_RELEASE_NOT_OURS && (!is_lost(k) || success))
        lose(k, success ? LOSS_WITH_RECORD : LOSS_AT_RELEASE, r->error.msg);
    if (success && r->how == DLOCK_RELEASE_UNCLEAR) {
        report_unrecorded(&k->report, &r->error);
        k->unrecorded = true;
    } else if (which && r->how == DLOCK_RELEASE_UNCLEAR && !is_lost(k) && !k->die_sig)
        report_release_unclear(&k->report, &r->error);
    if (which && k->set)
        return;
    report_released(&k->report, r->how);
    finish(k);
}

/* DLOCK_REPORT_TERM or DLOCK_REPORT_LOST: first the order, then the message about it. */
static void on_lost(struct keeper *k, const struct dlock_report *r)
{
    bool over = r->type == DLOCK_REPORT_LOST;
    bool staying = k->phase == KEEPER_STAYING; /* only inner dlocks run: no order for the guard */
    bool certain = over && r->error.code == DLOCK_ELOST;

    if (!staying && may_end(k))
        end_tree(k, over ? SIGKILL : SIGTERM, over ? 0 : r->times.kill_at);
    if (over)
        inner_lost(k->inner, r->error.msg);
    lose(k, certain ? LOSS_CERTAIN : LOSS_EXPIRED, r->error.msg);
    if (staying)
        after_exit(k); /* there is nothing to stay for */
    else if (!over && options_of(k)->on_lost == ON_LOST_TERM)
        report_term(&k->report, r->times.kill_at - lease_now(k));
    else if (may_end(k) && !(over && k->guard_timed_out))
        report_killed(k); /* a guard that noticed the loss first may have sent SIGTERM */
}

static void on_report(struct keeper *k, const struct dlock_report *r)
{
    report_about(&k->report, r->lock ? r->lock : k->lk);
    switch (r->type) {
    case DLOCK_REPORT_WAITING:
        on_waiting(k, r);
        break;
    case DLOCK_REPORT_ACQUIRED:
        on_granted(k, &r->times);
        break;
    case DLOCK_REPORT_BUSY:
        on_busy(k, r);
        break;
    case DLOCK_REPORT_SKIPPED:
        report_skipped(&k->report, r->run);
        k->code = options_of(k)->skip_code;
        finish(k);
        break;
    case DLOCK_REPORT_FAILED:
        on_failed(k, &r->error);
        break;
    case DLOCK_REPORT_EXTENDED:
        k->times = r->times;
        tell_guard(k, G_EXTEND, 0, &r->times);
        inner_extended(k->inner);
        report_extended(&k->report);
        break;
    case DLOCK_REPORT_TROUBLE:
        report_trouble(&k->report, r);
        break;
    case DLOCK_REPORT_RECOVERED:
        report_recovered(&k->report, r);
        break;
    case DLOCK_REPORT_TERM:
    case DLOCK_REPORT_LOST:
        on_lost(k, r);
        break;
    case DLOCK_REPORT_RELEASED:
        on_released(k, r);
        break;
    case DLOCK_REPORT_NOTICE:
        report_notice(&k->report, &r->error);
        break;
    default:
        break;
    }
}

/* Act on all reports; pfd, n: as of dlock_process. */
static void read_store(struct keeper *k, const struct pollfd *pfd, int n)
{
    const struct dlock_report *r;

    while (k->phase < KEEPER_OVER && (r = store_process(k, pfd, n))) {
        on_report(k, r);
        pfd = NULL;
        n = 0;
    }
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

/* At kill_at the guard kills by its own clock, and its report may come before the store's. */
static void report_guards_kill(struct keeper *k)
{
    int status = k->c->status;

    if (is_lost(k) && may_end(k) && lease_now(k) >= k->times.kill_at && WIFSIGNALED(status) &&
        WTERMSIG(status) == SIGKILL)
        report_killed(k);
}

static void on_guard(struct keeper *k, const struct guard_msg *m)
{
    /*
     * The store's report of it is due as well, and says why: report_loss waits for it. Not for long: a
     * keeper that is late finds the end of the command behind this message, and then only a release.
     */
    if (m->flags & GUARD_TIMED_OUT) {
        k->guard_timed_out = true;
        lose(k, LOSS_UNTOLD, "");
        read_store(k, NULL, 0);
    }
    switch (m->type) {
    case G_STARTED:
        if (k->phase == KEEPER_STARTING)
            k->phase = KEEPER_RUNNING;
        k->start_by = DLOCK_NEVER;
        if (options_of(k)->max_run_ns > 0 && !k->overrun) {
            k->run_until = dlock_now() + options_of(k)->max_run_ns;
            inner_run_until(k->inner, k->run_until);
        }
        break;
    case G_OVERRUN:
        on_overrun(k, m->arg);
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
        report_guards_kill(k);
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
    if (k->phase >= KEEPER_STAYING || (k->c->exited && k->tree_empty))
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
    if (late)
        lose(k, LOSS_UNTOLD, "");
    inner_lost(k->inner, "its guard was killed");
    sweep(k);
    if (late) {
        lose(k, LOSS_EXPIRED, "the guard was stopped");
        report_killed(k);
    } else if (k->overrun) {
        report_killed(k);
    } else {
        report_guard_gone(
            k, "ending the command (its own timer kills it if it cannot run for too long)");
    }
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
    if (k->guard_timed_out)
        lose(k, LOSS_EXPIRED, "");
    k->guard_timed_out = false;
}

/* -------------------------------------------------------------- loop --- */

/* When a timer of our own is due. */
static int64_t own_wake(const struct keeper *k)
{
    int64_t at =
        dlock_min(dlock_min(k->sweep_at, k->exit_by), dlock_min(k->start_by, k->stay_until));

    at = dlock_min(at, dlock_min(k->run_until, dlock_min(k->end_by, k->inner_until)));
    at = dlock_min(at, inner_wake(k->inner));

    return dlock_min(at, dlock_min(report_wake(&k->report), events_wake(k->c->events)));
}

static void own_timers(struct keeper *k)
{
    int64_t now = dlock_now();

    report_tick(&k->report, now);
    events_turn(k->c->events, now);
    if (now >= k->sweep_at)
        sweep(k);
    if (now >= k->stay_until)
        after_exit(k);
    if (now >= k->run_until)
        run_is_over(k);
    if (now >= k->inner_until) {
        k->inner_until = DLOCK_NEVER;
        inner_kill(k->inner, "--max-run has passed");
    }
    if (now >= k->start_by || now >= k->exit_by || now >= k->end_by) {
        /* The guard does not answer (stopped?). EOF of its socket says what is next. */
        if (now >= k->end_by)
            on_overrun(k, SIGKILL);
        k->start_by = k->exit_by = k->end_by = DLOCK_NEVER;
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
    struct pollfd pfd[DLOCK_SET_MAX * DLOCK_POLL_MAX + 4];

    read_store(k, NULL, 0);
    while (!finished(k)) {
        int64_t wake_at = DLOCK_NEVER;
        int n = 0, nstore;

        if (k->phase < KEEPER_OVER)
            n = store_interest(k, pfd, &wake_at);
        nstore = n;
        pfd[n++] = (struct pollfd){.fd = k->c->sig->fd, .events = POLLIN};
        if (k->guard_state == GUARDED)
            pfd[n++] = (struct pollfd){.fd = k->guard.fd,
                                       .events = k->untold.n > 0 ? POLLIN | POLLOUT : POLLIN};
        if (k->inner)
            pfd[n++] = (struct pollfd){.fd = inner_fd(k->inner), .events = POLLIN};
        n += events_interest(k->c->events, &pfd[n]);
        if (wait_for_events(pfd, n, dlock_min(wake_at, own_wake(k))) < 0)
            nstore = 0;
        /* The guard first: the end of the command matters more than a report of the store. */
        read_guard(k);
        tell_signals(k);
        read_signals(k);
        read_store(k, pfd, nstore);
        report_loss(k);
        if (inner_turn(k->inner))
            after_exit(k);
        own_timers(k);
    }
}

/* Its wait status; -1: not known, or it never ran. */
static int command_status(const struct keeper *k)
{
    bool known = k->c->exited && k->c->exec_error == 0 && k->guard_state != GUARD_DIED;

    return known ? k->c->status : -1;
}

/* The handle is closed first, so that the session in the store ends too before a signal may end us. */
static int exit_code(struct keeper *k)
{
    struct events_end end = {.outcome = k->report.outcome, .status = -1, .code = k->code};

    inner_close(k->inner);
    store_close(k);
    if (k->die_sig) {
        end.outcome = EVENTS_CANCELLED;
        end.code = 128 + k->die_sig;
    } else if (is_lost(k)) {
        end.outcome = EVENTS_LOST;
        end.code = options_of(k)->lost_code;
        end.status = command_status(k);
    } else if (k->overrun) {
        end.outcome = EVENTS_OVERRUN;
        end.code = OVERRUN_EXIT;
        end.status = command_status(k);
    } else if (k->unrecorded) {
        end.outcome = EVENTS_UNRECORDED;
        end.code = options_of(k)->lost_code;
        end.status = command_status(k);
    } else if (k->guard_state == GUARD_DIED) {
        end.code = dlock_error_exit(DLOCK_EOS);
    } else if (k->c->exited) {
        return command_exit_code(k->c);
    }
    report_end(&k->report, &k->loss, end);
    if (k->die_sig)
        signals_die(k->die_sig);
    return end.code;
}

int keeper_run(struct command *c, struct dlock_uri **uris, dlock **held)
{
    struct keeper k = {
        .c = c,
        .guard.fd = -1,
        .start_by = DLOCK_NEVER,
        .exit_by = DLOCK_NEVER,
        .sweep_at = DLOCK_NEVER,
        .stay_until = DLOCK_NEVER,
        .run_until = DLOCK_NEVER,
        .end_by = DLOCK_NEVER,
        .inner_until = DLOCK_NEVER,
    };
    int code = 0;

    if (!c->local) {
        code = fork_guard(&k, uris[0]->name, -1);
        if (code != 0)
            return code;
        open_bound_memory();
    }
    code = open_locks(&k, uris, 0);
    if (code != 0)
        return code; /* the guard exits by itself when our end of its socket closes */
    report_begin(&k.report, c->o, k.lk, c->events);
    store_acquire(&k);
    loop(&k);
    if (k.phase != KEEPER_HANDED_OVER)
        return exit_code(&k);
    *held = k.lk;
    return 0;
}
