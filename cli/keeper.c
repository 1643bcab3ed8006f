/*
 * keeper.c - acquires a lock, and keeps the lock while the command runs under a guard: one loop,
 * from the first request to the end of the release, with one poll() over store, signals and guard.
 *
 * The keeper decides nothing about time (lib/lease.c does) and kills nothing while the guard lives:
 * it passes messages on. Store -> guard: the times of the lease, and orders to end the tree. Guard
 * -> store: the release, once the command has ended and, where dlock ends it, its tree is gone.
 *
 * For a lease the guard is forked before a library is loaded, a socket opened or a thread started:
 * the command can inherit nothing of ours, and a threaded process never forks. For a file lock with
 * options_need_guard() the guard is forked at the grant, and keeps the descriptor instead of the
 * command. Plain file locks need no guard: the loop ends at the grant.
 */
#include "command.h"
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

/* How long a release is tried: of a place in the queue, of a lost lock, and after a signal. */
#define CANCEL_TIME DLOCK_SEC
#define LOST_TIME (500 * DLOCK_MSEC)
#define HURRY_TIME (300 * DLOCK_MSEC)

#define SETTLE_TIME DLOCK_SEC
#define SWEEP_EVERY (100 * DLOCK_MSEC)
/* Between two looks for a module that is missing. */
#define OPEN_AGAIN (250 * DLOCK_MSEC)
/* How long a dismissed guard may take to exit; before a command has run, -w tolerates 100 ms. */
#define GUARD_EXITS DLOCK_SEC
#define GUARD_EXITS_IDLE (30 * DLOCK_MSEC)
/* How late the guard may end the command by --max-run. */
#define GUARD_ENDS DLOCK_SEC

#define OVERRUN_EXIT 124 /* as timeout(1) */
/* The most descriptors of LOCK and all locks of --also. */
#define STORE_POLL_MAX (DLOCK_SET_MAX * DLOCK_POLL_MAX)

enum keeper_phase {
    KEEPER_ACQUIRING, /* waiting for the lock; a signal cancels */
    KEEPER_STARTING,  /* granted: the guard has been told to start the command */
    KEEPER_RUNNING,   /* the command runs, or only inner dlocks that the command left behind */
    KEEPER_ENDING,    /* the guard was told to end the tree, or does so by --max-run, or has died */
    KEEPER_KILLING,   /* the same, and the SIGKILL for the tree was reported */
    KEEPER_STAYING, /* the command has ended, --min-hold keeps the lock, the guard was dismissed */
    KEEPER_RELEASING,  /* the command has ended or never ran: the lock is being released */
    KEEPER_OVER,       /* the loop ends once the guard has exited */
    KEEPER_HANDED_OVER /* granted, and no guard is needed: the caller runs the command */
};

/* What must end before the lock is released, once the command has ended. */
enum keeper_wait {
    WAIT_TREE,  /* descendants of the command */
    WAIT_INNER, /* inner dlocks, wherever they run */
    WAIT_HOLD,  /* --min-hold */
    WAIT_NOTHING
};

enum keeper_guard {
    UNGUARDED,
    GUARDED,      /* guard and witness run */
    GUARD_REAPED, /* the witness has ended; the socket may still have the last messages */
    GUARD_LEFT    /* both have ended */
};

/* Each runs once, when run_timers() finds that its time has passed. */
enum keeper_timer {
    SWEEP_AGAIN,    /* guard and witness have died: kill their orphans once more */
    STAY_ENDS,      /* --min-hold is over: after_exit() releases the lock */
    RUN_ENDS,       /* --max-run passes, by our clock */
    INNER_ENDS,     /* --max-run and the grace have passed: kill inner dlocks */
    GUARD_ENDS_RUN, /* --max-run has passed, and the guard has not said so: kill the guard */
    GUARD_ANSWERS,  /* the guard was told to start or to exit, and has not: kill the guard */
    SETTLED,        /* this run takes long: give back memory */
    KEEPER_TIMERS
};

struct keeper {
    struct command *c;
    dlock *store;        /* LOCK, or the set of LOCK and those of --also; NULL: not opened */
    struct inner *inner; /* NULL: before the grant, or no socket could be opened */
    struct report report;

    enum keeper_phase phase;
    int64_t at[KEEPER_TIMERS]; /* DLOCK_NEVER: not set */
    struct dlock_times times;  /* the lease as the guard knows it */
    struct loss loss;          /* any loss: the exit code is 79, not the command's */
    int die_sig;               /* the signal that cancelled the wait: die by it */
    int code;                  /* exit code of a wait that ended without the lock */
    bool tree_empty;           /* the command has ended, and no descendant is left */
    bool inner_asked;          /* inner dlocks were asked to end with the tree */
    bool ended;                /* the command ended after dlock had begun to end it */
    bool overrun;              /* --max-run: what runs under the lock is being ended */
    bool hurried; /* a signal has ended the stay, or came when only inner dlocks were left */

    struct {
        enum keeper_guard state;
        bool died; /* guard or witness ended too early: the tree is being killed, or is gone */
        struct guard link;
        struct forward_unsent unsent; /* signals for the command */
        bool timed_out; /* in this turn the guard has said that the lease's time was over */
        int unfit;      /* the errno with which the guard could not set itself up */
    } guard;
    struct {
        int64_t until; /* when the release is given up */
        enum { RECORD_NONE, RECORD_SUCCESS, RECORD_UNCONFIRMED } record; /* --once */
    } release;
};

/* May a loss end the command? */
static bool may_end(const struct keeper *k)
{
    return k->c->o->on_lost != ON_LOST_WARN || k->loss.kind == LOSS_BROKEN;
}

static bool is_lost(const struct keeper *k)
{
    return k->loss.kind != LOSS_NONE;
}

/* Has the guard's socket not ended yet? */
static bool is_guarded(const struct keeper *k)
{
    return k->guard.state == GUARDED || k->guard.state == GUARD_REAPED;
}

/* LOCK (0), or a lock of --also; NULL: not opened, or past the last. */
static const dlock *lock_at(const struct keeper *k, int i)
{
    return k->store ? dlock_at(k->store, i) : NULL;
}

static void store_release(struct keeper *k, int64_t until)
{
    k->release.until = until;
    dlock_start_release(k->store, until, NULL);
}

/* ------------------------------------------------------ to the guard --- */

/*
 * A guard that has never told its pid has no command: the witness is killed instead. But a witness
 * that ends the tree of a dead guard is left to finish, however long a process keeps it waiting.
 */
static void kill_guard(const struct keeper *k)
{
    const struct guard *g = &k->guard.link;
    pid_t pid = g->pid > 0 ? g->pid : k->guard.died && !k->tree_empty ? 0 : g->witness;
    if (is_guarded(k) && pid > 0)
        kill(pid, SIGKILL);
}

/* Without a guard nothing is sent. t: the times, or NULL. 0 or -errno, as of guard_send(). */
static int tell_guard(struct keeper *k, enum guard_msg_type type, int arg,
                      const struct dlock_times *t)
{
    struct guard_msg m = {.type = (int32_t)type, .arg = arg};
    int pass = -1, rc;
    if (!is_guarded(k))
        return 0;
    m.term_at = t ? t->term_at : DLOCK_NEVER;
    m.kill_at = t ? t->kill_at : DLOCK_NEVER;
    m.hard_at = t ? dlock_hard_at(t) : DLOCK_NEVER;
    m.raw_minus_boot = t ? t->raw_minus_boot : DLOCK_RAW_NEVER;
    if (type == G_START || type == G_ALSO) {
        int i = type == G_ALSO ? arg - 1 : 0;
        const dlock *lk = lock_at(k, i);
        /* The guard keeps this descriptor open: the command does not inherit the files of a set. */
        pass = k->c->o->nalso > 0 ? dlock_fd(lk) : -1;
        pass = pass >= 0 ? pass : dlock_session_fd(lk);
        m.fence = dlock_fence(lk);
        m.slot = dlock_slot(lk) + 1;
        if (i < k->c->nheld) /* LOCK's entry is the last */
            m.held = k->c->held[(i > 0 ? i : k->c->nheld) - 1];
        snprintf(m.token, sizeof(m.token), "%s", dlock_token(lk));
    }
    rc = guard_send(&k->guard.link, &m, pass);
    /*
     * A dead guard shows as EOF. A full socket means that the guard does not run (stopped?): for
     * missed times its kernel timer makes up; an order to end the tree cannot wait for the timer.
     */
    if (rc < 0 && rc != -EPIPE && type == G_END)
        kill_guard(k);
    return rc;
}

/* Have the guard end the whole tree: SIGTERM, then KILL at kill_at, or SIGKILL at once. */
static void end_tree(struct keeper *k, int sig, int64_t kill_at)
{
    struct dlock_times t = {.term_at = DLOCK_NEVER, .kill_at = kill_at, .deadline = DLOCK_NEVER};
    if (k->phase < KEEPER_ENDING)
        k->phase = KEEPER_ENDING;
    tell_guard(k, G_END, sig, &t);
}

/* Report, once, that the tree is sent SIGKILL. */
static void report_killed(struct keeper *k)
{
    if (k->phase >= KEEPER_KILLING)
        return;
    k->phase = KEEPER_KILLING;
    events_kill(k->c->events);
}

/* A time of the lease has passed when lease_now() has reached it, for keeper and guard alike. */
static int64_t lease_now(const struct keeper *k)
{
    return dlock_lease_now(k->times.raw_minus_boot);
}

/* The guard has no work left. A guard that does not exit (stopped?) is killed a moment later. */
static void dismiss_guard(struct keeper *k)
{
    int64_t time = k->c->exited ? GUARD_EXITS : GUARD_EXITS_IDLE;
    if (!is_guarded(k))
        return;
    tell_guard(k, G_DETACH, 0, NULL);
    k->at[GUARD_ANSWERS] = dlock_min(k->at[GUARD_ANSWERS], dlock_now() + time);
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

/* Release the lock, trying for at most this long. */
static void release(struct keeper *k, int64_t time)
{
    if (!k->store) { /* not opened yet: there is nothing to release */
        finish(k);
        return;
    }
    report_cancelled(&k->report);
    inner_stop(k->inner);
    command_tell_removed(k->c, k->store);
    k->phase = KEEPER_RELEASING;
    k->at[RUN_ENDS] = k->at[GUARD_ENDS_RUN] = k->at[INNER_ENDS] = DLOCK_NEVER;
    store_release(k, dlock_now() + time);
    dismiss_guard(k); /* the guard exits while the store works */
}

/* The one place that sets the loss: the first evidence with a cause counts, and is told. */
static void lose(struct keeper *k, enum loss_kind kind, const char *cause)
{
    if (k->loss.kind > LOSS_UNREPORTED && kind != LOSS_WITH_RECORD)
        return;
    k->loss.kind = kind;
    if (kind == LOSS_UNREPORTED)
        return;
    snprintf(k->loss.cause, sizeof(k->loss.cause), "%s", cause);
    inner_ending(k->inner);
    report_lost(&k->report, &k->loss, k->phase == KEEPER_STAYING);
}

/*
 * --min-hold: how long must we stay with the lock after the command's end? A store with an expiry
 * keeps the lock by itself. A command that never ran, a lost lock, and a signal that asked this run
 * to end need no time.
 */
static int64_t min_hold_left(const struct keeper *k)
{
    const struct command *c = k->c;
    if (k->hurried || k->die_sig || c->end_signal ||
        (WIFSIGNALED(c->status) && WTERMSIG(c->status) == c->terminal_sig))
        return 0;
    return is_lost(k) || k->guard.died ? 0 : dlock_min_hold_left(k->store);
}

/* Nothing runs under the lock any more. --once: the release writes the result in the same step. */
static void release_after_run(struct keeper *k)
{
    const struct options *o = k->c->o;
    int status = k->c->status, error = k->c->exec_error;
    int result = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    int64_t time = o->connect_timeout_ns, left = dlock_time_left(lock_at(k, 0));
    if (o->once_ns > 0) {
        if (k->guard.died || error == SPAWN_TOO_LATE || error & SPAWN_FORK_FAILED)
            result = -1; /* the end of the command is unknown */
        else if (k->overrun)
            result = OVERRUN_EXIT;
        else if (error)
            result = spawn_exec_code(error);
        bool success = error == 0 && WIFEXITED(status) && !is_lost(k) && !k->overrun &&
                       !k->die_sig && options_success(o, result);
        k->release.record = success ? RECORD_SUCCESS : RECORD_NONE;
        dlock_note_result(k->store, success, result, NULL);
    }
    if (is_lost(k))
        time = LOST_TIME;
    else if (k->release.record == RECORD_SUCCESS && left != DLOCK_NEVER)
        time = dlock_max(time, left); /* no other holder can have the lock before */
    release(k, time);
}

/* Does dlock end what runs under the lock? While we stay, no guard could end descendants. */
static bool is_ending(const struct keeper *k)
{
    return k->phase < KEEPER_STAYING &&
           (k->phase >= KEEPER_ENDING || k->c->end_signal || (is_lost(k) && may_end(k)));
}

/*
 * The command has ended. Processes that the command left in the background are left alone, as with
 * flock -o, unless dlock ends the tree. hold_left: min_hold_left().
 */
static enum keeper_wait waits_for(const struct keeper *k, int64_t hold_left)
{
    if (is_ending(k) && !k->tree_empty)
        return WAIT_TREE;
    if (inner_count(k->inner) > 0)
        return WAIT_INNER;
    return hold_left > 0 ? WAIT_HOLD : WAIT_NOTHING;
}

/* After each turn, and each message of the guard: release the lock as soon as nothing runs. */
static void after_exit(struct keeper *k)
{
    if (!k->c->exited || k->phase >= KEEPER_RELEASING)
        return;
    inner_settle(k->inner);
    int64_t left = min_hold_left(k);
    k->at[STAY_ENDS] = DLOCK_NEVER;
    switch (waits_for(k, left)) {
    case WAIT_TREE:
        if (k->phase < KEEPER_ENDING)
            end_tree(k, SIGTERM, lease_now(k) + command_grace(k->c));
        break;
    case WAIT_INNER:
        /* The inner dlocks that are left are no descendants of the command. */
        if (is_ending(k) && !k->inner_asked)
            inner_ask_to_end(k->inner, true);
        k->inner_asked |= is_ending(k);
        break;
    case WAIT_HOLD:
        k->at[STAY_ENDS] = dlock_now() + left;
        if (k->phase == KEEPER_STAYING)
            break;
        report_stays(&k->report, left);
        dismiss_guard(k);
        k->phase = KEEPER_STAYING;
        k->at[GUARD_ENDS_RUN] = DLOCK_NEVER;
        break;
    case WAIT_NOTHING:
        release_after_run(k);
        break;
    }
}

/* The command never ran. error: as struct command's exec_error. */
static void on_exec_failed(struct keeper *k, int error)
{
    k->c->exec_error = error;
    k->c->exited = k->tree_empty = true;
    dlock_end_min_hold(k->store);
}

/* --max-run has passed. sig: the tree is sent SIGTERM, and the grace begins, or SIGKILL. */
static void on_overrun(struct keeper *k, int sig)
{
    int64_t grace = sig == SIGTERM ? command_grace(k->c) : 0;
    bool staying = k->phase == KEEPER_STAYING;
    if (k->phase >= KEEPER_RELEASING || (k->c->exited && waits_for(k, 0) == WAIT_NOTHING))
        return;
    if (!k->overrun) {
        k->overrun = k->inner_asked = true;
        if (k->phase < KEEPER_ENDING)
            k->phase = KEEPER_ENDING;
        k->at[RUN_ENDS] = k->at[GUARD_ENDS_RUN] = DLOCK_NEVER;
        k->at[INNER_ENDS] = dlock_now() + grace;
        inner_ask_to_end(k->inner, staying); /* else the guard ends our descendants */
        report_about(&k->report, lock_at(k, 0));
        report_overrun(&k->report, k->c->exited);
        if (sig == SIGTERM)
            events_term(k->c->events, grace);
    }
    if (sig == SIGKILL)
        report_killed(k);
}

/* The lock is granted: have the guard start the command. */
static void start_command(struct keeper *k)
{
    struct inner_lock inner[DLOCK_SET_MAX];
    const dlock *lk;
    int rc = 0, n = 0;
    k->phase = KEEPER_STARTING;
    for (; (lk = lock_at(k, n)); n++) {
        command_set_file(k->c, n, dlock_fd(lk));
        inner[n] = (struct inner_lock){lk, k->c->lock[n].key};
    }
    /* Before the command starts, which may start dlocks that name our locks. */
    k->inner = inner_open(k->inner, inner, n);
    if (!k->inner)
        report_no_inner(&k->report, errno);
    command_set_held(k->c, k->store, inner_socket(k->inner));
    /* A guard that is stopped would keep us renewing a lock under which nothing runs. */
    k->at[GUARD_ANSWERS] = k->times.term_at;
    for (int i = 1; i < n && rc == 0; i++)
        rc = tell_guard(k, G_ALSO, i + 1, NULL);
    if (rc == 0)
        rc = tell_guard(k, G_START, 0, &k->times);
    /* The order was not sent, and no answer would come: the lock would be renewed for nothing. */
    if (rc < 0 && rc != -EPIPE)
        on_exec_failed(k, -rc | SPAWN_FORK_FAILED);
}

/* lock_fd: -1, or a file lock's, which the guard keeps. 0, or an exit code after the message. */
static int fork_guard(struct keeper *k, const char *name, int lock_fd)
{
    struct guard_config cfg = {
        .sig = k->c->sig,
        .argv = k->c->o->command,
        .name = name,
        .dlock_pid = getpid(),
        .own_group = !k->c->terminal,
        .warn_only = !may_end(k),
        .max_run = k->c->o->max_run_ns,
        .grace = command_grace(k->c),
        .title = k->c->o->title,
        .title_size = k->c->o->title_size,
        .lock_fd = lock_fd,
        .tty = &k->c->tty,
    };
    int rc = guard_fork(&k->guard.link, &cfg);
    if (rc < 0) {
        message("cannot fork the guard: %s", strerror(-rc));
        return dlock_error_exit(DLOCK_EOS);
    }
    k->guard.state = GUARDED;
    /* Kept open here, the caller's pipes would not end when the command ends. */
    const dlock *lk = lock_at(k, 0);
    int session_fd = lk ? dlock_session_fd(lk) : -1, n = 6;
    int keep[6 + DLOCK_FDS_MAX] = {k->c->sig->fd, k->guard.link.fd,        lock_fd,
                                   session_fd,    events_fd(k->c->events), k->c->tty.fd};
    if (lk)
        n += dlock_own_fds(lk, keep + n);
    fds_let_go(keep, n);
    events_start_thread(k->c->events); /* no fork follows */
    return 0;
}

static void on_granted(struct keeper *k, const struct dlock_times *times)
{
    bool guarded = k->guard.state != UNGUARDED;
    const dlock *lk = lock_at(k, 0);
    k->times = *times;
    report_granted(&k->report);
    /*
     * A guard is useless for a file lock that the command inherits, and where the guard could not
     * find the command's tree, but for --max-run: there the guard ends the command, at least.
     */
    if (!guarded && (command_inherits(k->c, lk) ||
                     (!options_must_guard(k->c->o) && (k->c->alone || !process_tree_visible())))) {
        k->phase = KEEPER_HANDED_OVER;
        return;
    }
    if (!guarded)
        k->code = fork_guard(k, dlock_name(lk), dlock_fd(lk));
    if (k->guard.state == UNGUARDED)
        finish(k);
    else
        start_command(k);
}

/* ----------------------------------------------------------- signals --- */

/*
 * Guard and witness are dead: kill their orphans, which have come to us, unless we had children
 * before, which cannot be told from the orphans.
 */
static void sweep(struct keeper *k)
{
    pid_t stuck = 0;
    int left = k->c->inherited ? 0 : process_tree_sweep(&stuck);
    if (left > 0) {
        if (stuck > 0)
            command_report_stuck(k->c, stuck);
        k->at[SWEEP_AGAIN] = dlock_now() + SWEEP_EVERY;
        return;
    }
    k->at[SWEEP_AGAIN] = DLOCK_NEVER;
    k->c->exited = k->tree_empty = true;
}

/* Signals for the command, as far as the guard takes them. */
static void tell_signals(struct keeper *k)
{
    while (k->guard.unsent.n > 0 && is_guarded(k)) {
        struct guard_msg m = {.type = G_SIGNAL, .signal = k->guard.unsent.at[0]};
        if (guard_send(&k->guard.link, &m, -1) == -EAGAIN)
            return;
        forward_sent(&k->guard.unsent);
    }
}

static void report_died(const struct keeper *k, bool witness, pid_t pid, const char *consequence)
{
    int why = k->guard.unfit;
    if (why == EXDEV)
        message("the children of this process are in another PID namespace: use 'unshare --fork'");
    else if (why)
        message("cannot set up the guard process: %s%s", strerror(why),
                why == EAGAIN ? " (see the limits 'ulimit -u' and 'ulimit -i')" : "");
    else
        message("the %s process %d was killed: %s", witness ? "witness" : "guard", (int)pid,
                consequence);
}

/* In the words of the message. */
static const char *what_follows(const struct keeper *k, bool witness)
{
    if (!is_guarded(k) && k->c->inherited)
        return "descendants of the command may go on";
    return witness ? "ending the command"
                   : "ending the command (its own timer kills it if it cannot run for too long)";
}

/*
 * The guard ended too early, or the witness did. The other one kills the tree, the witness unasked;
 * if that one is gone, too, we kill the tree.
 */
static void on_died(struct keeper *k, bool witness, pid_t pid)
{
    if (k->guard.died || k->phase >= KEEPER_STAYING || k->tree_empty)
        return;
    k->guard.died = true;
    k->at[GUARD_ANSWERS] = k->at[GUARD_ENDS_RUN] = DLOCK_NEVER;
    if (k->phase == KEEPER_ACQUIRING) {
        report_died(k, witness, pid, "giving up");
        k->code = dlock_error_exit(DLOCK_EOS);
        release(k, CANCEL_TIME);
        return;
    }
    k->ended = true;
    /* The kernel's timer killed a stopped guard, before hard_at: the lease counts as lost. */
    bool late = lease_now(k) >= k->times.term_at;
    end_tree(k, SIGKILL, 0);
    if (late)
        lose(k, LOSS_UNREPORTED, "");
    inner_lost(k->inner, "a process that guards its command was killed");
    if (!is_guarded(k))
        sweep(k);
    if (late)
        lose(k, LOSS_EXPIRED, "the guard was stopped");
    if (late || k->overrun)
        report_killed(k);
    else
        report_died(k, witness, pid, what_follows(k, witness));
}

static void on_guard_gone(struct keeper *k)
{
    bool reaped = k->guard.state == GUARD_REAPED, died = k->guard.died;
    k->guard.state = GUARD_LEFT;
    k->at[GUARD_ANSWERS] = DLOCK_NEVER;
    close(k->guard.link.fd);
    k->guard.link.fd = -1;
    /* The kernel closed the witness's descriptors as it died: this waits for microseconds. */
    if (!reaped)
        waitpid(k->guard.link.witness, NULL, __WALL);
    const struct guard *g = &k->guard.link;
    on_died(k, g->pid <= 0, g->pid > 0 ? g->pid : g->witness);
    if (died && k->phase < KEEPER_STAYING && !k->tree_empty)
        sweep(k);
}

/* Our children: the witness, and where the witness was killed the guard. */
static void reap(struct keeper *k)
{
    struct guard *g = &k->guard.link;
    pid_t pid;
    int status;
    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED | __WALL)) > 0) {
        if (WIFSTOPPED(status)) {
            if (pid == g->witness || pid == g->pid) /* nobody else would */
                kill(pid, SIGCONT);
        } else if (pid == g->pid) {
            g->pid = 0;
        } else if (pid == g->witness && k->guard.state == GUARDED) {
            k->guard.state = GUARD_REAPED;
            if (!WIFSIGNALED(status))
                g->pid = 0; /* the guard has ended before */
            else if (g->pid == 0)
                on_guard_gone(k);
            else if (kill(g->pid, SIGCONT) == 0) /* it may be stopped, too */
                on_died(k, true, pid);
            g->witness = 0;
        }
    }
}

static void on_signal(struct keeper *k, const struct signalfd_siginfo *si)
{
    int sig = (int)si->ssi_signo;
    /* Our own line to a closed stderr sends SIGPIPE. */
    bool own = sig == SIGPIPE && si->ssi_pid == (uint32_t)getpid();
    bool cancels = signals_cancels(sig) && !own, staying = k->phase == KEEPER_STAYING;
    if (sig == SIGCHLD) {
        reap(k);
        if (k->at[SWEEP_AGAIN] != DLOCK_NEVER)
            sweep(k);
    } else if (k->phase == KEEPER_ACQUIRING) {
        if (signals_stops(sig)) {
            message_erase(); /* the shell writes its own line now */
            signals_stop_self(sig);
        } else if (sig == SIGCONT) {
            report_continue(&k->report);
        } else if (cancels) {
            k->die_sig = sig;
            release(k, CANCEL_TIME);
        }
    } else if (k->phase >= KEEPER_RELEASING) {
        /*
         * The sender is in a hurry: time for one reconnect, then the lease is left to expire.
         * Repeated signals (a key that is held down) do not prolong the release.
         */
        if (k->phase == KEEPER_RELEASING && cancels)
            store_release(k, dlock_min(k->release.until, dlock_now() + HURRY_TIME));
    } else if (staying || (k->c->exited && (k->phase < KEEPER_ENDING || k->tree_empty) &&
                           inner_count(k->inner) > 0)) {
        /* No command is left, only inner dlocks or --min-hold. At a terminal a stop is for us. */
        if (staying && signals_stops(sig))
            signals_stop_self(sig);
        if (command_ends(sig)) {
            k->hurried = true;
            inner_ask_to_end(k->inner, true);
        }
    } else if (k->phase == KEEPER_STARTING && signals_interrupts(si, k->c->terminal)) {
        /*
         * Between grant and exec the command may be in the terminal's group, or not yet: the
         * command must not start, or must end, and we die by the signal as a moment earlier.
         */
        k->die_sig = sig;
        end_tree(k, SIGTERM, lease_now(k) + command_grace(k->c));
    } else if (command_signal(k->c, si)) {
        /* The guard decides when, and whether the command has got the signal already. */
        struct forward_signal s = forward_describe(si, dlock_now());
        forward_keep(&k->guard.unsent, &s);
        tell_signals(k);
    }
}

static void read_signals(struct keeper *k)
{
    struct signalfd_siginfo si;
    while (signals_read(k->c->sig, &si))
        on_signal(k, &si);
}

/* ------------------------------------------------------------- store --- */

/* Open all handles. waited: this much of -w is over. 0, or a negative DLOCK_E* with err. */
static int open_locks(struct keeper *k, struct dlock_uri **uris, int64_t waited,
                      struct dlock_error *err)
{
    const struct options *o = k->c->o;
    dlock *locks[DLOCK_SET_MAX] = {NULL};
    int rc = 0, n = 0;
    for (; n <= o->nalso; n++) {
        const struct command_lock *l = &k->c->lock[n];
        struct open_how how = {.outer = l->nested ? &l->outer : NULL,
                               .waited = waited,
                               .also = n > 0,
                               .look = k->c->may_be_own};
        enum dlock_mode mode = n == 0 ? o->lock_mode : o->also[n - 1].mode;
        rc = open_lock(&locks[n], o, mode, &uris[n], &how, err);
        if (rc < 0)
            break;
    }
    if (rc == 0 && n > 1)
        rc = dlock_open_set(&k->store, locks, n, open_wait(o, waited), err);
    else if (rc == 0)
        k->store = locks[0];
    while (rc < 0 && n > 0)
        dlock_close(locks[--n]);
    return rc;
}

/* DLOCK_REPORT_WAITING or DLOCK_REPORT_BUSY. A wait for a dlock above this one would never end. */
static void on_holder(struct keeper *k, const struct dlock_report *r)
{
    const struct dlock_info *holder = r->info;
    bool busy = r->type == DLOCK_REPORT_BUSY;
    /* The holder of a file is known only for a message, or when a dlock above may be the holder. */
    bool own = holder && !holder->over && (!k->c->local || k->c->may_be_own);
    /*
     * A dlock above that has ended holds its lock no longer than the store takes to notice, or than
     * its --min-hold.
     */
    for (int i = 0; own && i < DLOCK_SET_MAX; i++)
        own = !k->c->lock[i].ended || strcmp(k->c->lock[i].outer.token, holder->token) != 0;
    own = own && held_by_ancestor(getenv("DLOCK_HELD"), holder);
    if (!busy)
        report_waiting(&k->report, r);
    if (own)
        report_own(&k->report, holder, NULL);
    else if (busy)
        report_busy(&k->report, holder, r->kept);
    else
        return;
    k->code = k->c->o->conflict_code;
    if (busy)
        finish(k);
    else
        release(k, CANCEL_TIME);
}

static void on_failed(struct keeper *k, const struct dlock_error *err)
{
    struct dlock_uri *uris[DLOCK_SET_MAX] = {NULL};
    const struct options *o = k->c->o;
    struct dlock_error failure;
    if (!k->c->nested || !nested_unreachable(err)) {
        k->code = o->conflict_code;
        if (k->c->nested && err->code == DLOCK_EBUSY)
            report_own(&k->report, NULL, err);
        else
            k->code = report_failed(&k->report, err);
        finish(k);
        return;
    }
    /*
     * The dlock above has lost the lock, or is out of reach: ask the next dlock above with the lock
     * and, past the last, the store.
     */
    const struct dlock_error why = *err; /* err goes with the handle, which is closed below */
    bool above = false;
    k->c->nested = false;
    const dlock *lk;
    for (int i = 0; (lk = lock_at(k, i)); i++) {
        struct command_lock *l = &k->c->lock[i];
        if (lk == k->report.lk) {
            /* The command of a dlock above may still have a file's lock. */
            l->lives |= !nested_has_ended(&why) || dlock_is_local(lk);
            l->ended = !l->lives;
            above = held_above(getenv("DLOCK_HELD"), nested_digest(l->key), &l->outer);
            l->nested = above;
        }
        k->c->nested |= l->nested;
    }
    dlock_close(k->store);
    k->store = NULL;
    k->code = open_uris(o, uris);
    if (k->code == 0 && open_locks(k, uris, dlock_now() - k->report.wait.since, &failure) < 0)
        k->code = message_error(o, &failure);
    for (int i = 0; i < DLOCK_SET_MAX; i++)
        dlock_uri_free(uris[i]);
    report_again(&k->report, lock_at(k, 0), &why, above);
    if (k->store)
        dlock_start_acquire(k->store, NULL);
    else
        finish(k);
}

static void on_released(struct keeper *k, const struct dlock_report *r)
{
    const dlock *which = r->lock; /* NULL: all locks of a set */
    /*
     * Each lock of a set reports its own failure; the report of the set comes last. The loss of
     * another lock comes before the release that records the run, and makes that a failed one.
     */
    bool success = which && which == lock_at(k, 0) && k->release.record == RECORD_SUCCESS;
    if (which && which != lock_at(k, 0) && r->how == DLOCK_RELEASE_NOT_OURS)
        k->release.record = RECORD_NONE;
    if (which && r->how == DLOCK_RELEASE_NOT_OURS && (!is_lost(k) || success))
        lose(k, success ? LOSS_WITH_RECORD : LOSS_AT_RELEASE, r->error.msg);
    if (success && r->how == DLOCK_RELEASE_UNCLEAR) {
        report_unrecorded(&k->report, &r->error);
        k->release.record = RECORD_UNCONFIRMED;
    } else if (which && r->how == DLOCK_RELEASE_UNCLEAR && !is_lost(k) && !k->die_sig)
        report_release_unclear(&k->report, &r->error);
    if (which && which != k->store)
        return;
    report_released(&k->report, r->how);
    finish(k);
}

/* DLOCK_REPORT_TERM or DLOCK_REPORT_LOST: first the order, then the message about it. */
static void on_lost(struct keeper *k, const struct dlock_report *r)
{
    bool over = r->type == DLOCK_REPORT_LOST;
    bool staying = k->phase == KEEPER_STAYING; /* only inner dlocks run: no order for the guard */
    bool certain = over && r->error.code == DLOCK_ELOST, ends = may_end(k) || r->broken;
    enum loss_kind kind = r->broken ? LOSS_BROKEN : certain ? LOSS_CERTAIN : LOSS_EXPIRED;
    if (!staying && ends)
        end_tree(k, over ? SIGKILL : SIGTERM, over ? 0 : r->times.kill_at);
    if (over)
        inner_lost(k->inner, r->error.msg);
    lose(k, kind, r->error.msg);
    if (staying)
        return;
    if (!over && ends && k->c->o->on_lost != ON_LOST_KILL)
        events_term(k->c->events, r->times.kill_at - lease_now(k));
    else if (ends && !(over && k->guard.timed_out))
        report_killed(k); /* a guard that noticed the loss first may have sent SIGTERM */
}

static void on_report(struct keeper *k, const struct dlock_report *r)
{
    report_about(&k->report, r->lock ? r->lock : lock_at(k, 0));
    switch (r->type) {
    case DLOCK_REPORT_WAITING:
    case DLOCK_REPORT_BUSY:
        on_holder(k, r);
        break;
    case DLOCK_REPORT_ACQUIRED:
        on_granted(k, &r->times);
        break;
    case DLOCK_REPORT_SKIPPED:
        report_skipped(&k->report, r->run);
        k->code = k->c->o->skip_code;
        finish(k);
        break;
    case DLOCK_REPORT_FAILED:
        on_failed(k, &r->error);
        break;
    case DLOCK_REPORT_EXTENDED:
        k->times = r->times;
        tell_guard(k, G_EXTEND, 0, &r->times);
        inner_extended(k->inner);
        events_renewed(k->c->events);
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
        message_notice(k->c->o, &r->error);
        break;
    default:
        break;
    }
}

/* Act on all reports; pfd, n: as of dlock_process(). */
static void read_store(struct keeper *k, const struct pollfd *pfd, int n)
{
    const struct dlock_report *r;
    while (k->phase < KEEPER_OVER && (r = dlock_process(k->store, pfd, n))) {
        on_report(k, r);
        pfd = NULL;
        n = 0;
    }
}

/* ---------------------------------------------------- from the guard --- */

static void on_guard(struct keeper *k, const struct guard_msg *m)
{
    /*
     * The store's report of the loss is due as well, and says the cause: read it before the guard's
     * next message, which may be the end of the command, and then there is only a release.
     */
    if (m->flags & GUARD_TIMED_OUT) {
        k->guard.timed_out = true;
        lose(k, LOSS_UNREPORTED, "");
        read_store(k, NULL, 0);
    }
    switch (m->type) {
    case G_STARTED:
        k->at[GUARD_ANSWERS] = DLOCK_NEVER;
        if (k->phase == KEEPER_STARTING)
            k->phase = KEEPER_RUNNING;
        if (k->c->o->max_run_ns > 0 && !k->overrun) {
            k->at[RUN_ENDS] = dlock_now() + k->c->o->max_run_ns;
            inner_run_until(k->inner, k->at[RUN_ENDS]);
        }
        break;
    case G_OVERRUN:
        on_overrun(k, m->arg);
        break;
    case G_EXEC_FAILED:
        on_exec_failed(k, m->arg);
        break;
    case G_STOPPED:
        k->c->stopped_by = m->arg;
        k->c->stopped_at = m->signal.at;
        break;
    case G_EXITED:
        /* A Ctrl-C that ended the command came to us before: it belongs to the run. */
        read_signals(k);
        k->c->status = m->arg;
        k->c->exited = true;
        k->ended = k->phase >= KEEPER_ENDING || m->flags & GUARD_TIMED_OUT;
        break;
    case G_TREE_EMPTY:
        k->tree_empty = true;
        /* A guard that was killed may have said nothing of the command's end. */
        k->c->exited |= k->guard.died;
        /* At kill_at the guard kills by its own clock, maybe before the store's report comes. */
        if (is_lost(k) && may_end(k) && lease_now(k) >= k->times.kill_at &&
            WIFSIGNALED(k->c->status) && WTERMSIG(k->c->status) == SIGKILL)
            report_killed(k);
        break;
    case G_STUCK:
        command_report_stuck(k->c, m->arg);
        break;
    case G_UNFIT:
        k->guard.unfit = m->arg;
        break;
    case G_KILLED:
        on_died(k, false, m->arg);
        break;
    default:
        break;
    }
    after_exit(k);
}

static void read_guard(struct keeper *k)
{
    struct guard_msg m;
    int got;
    while (is_guarded(k) && (got = guard_recv(&k->guard.link, &m)) != 0)
        if (got < 0)
            on_guard_gone(k);
        else
            on_guard(k, &m);
    if (!is_guarded(k))
        return;
    /* Only the last report of a stop counts. Without a terminal we go on renewing meanwhile. */
    if (command_job_stopped(k->c))
        read_signals(k);
    command_follow_stop(k->c);
}

/* -------------------------------------------------------------- loop --- */

static bool is_due(struct keeper *k, enum keeper_timer timer, int64_t now)
{
    if (now < k->at[timer])
        return false;
    k->at[timer] = DLOCK_NEVER;
    return true;
}

static void run_timers(struct keeper *k)
{
    int64_t now = dlock_now(), grace = command_grace(k->c);
    report_tick(&k->report, now);
    events_turn(k->c->events);
    if (is_due(k, SWEEP_AGAIN, now))
        sweep(k);
    if (is_due(k, RUN_ENDS, now)) {
        /* The guard ends the tree, if there is a guard, and the guard is not stopped. */
        bool staying = k->phase == KEEPER_STAYING, ending = k->phase >= KEEPER_ENDING;
        if (staying && inner_count(k->inner) == 0)
            inner_kill(k->inner, "--max-run has passed"); /* none may come any more */
        else if (staying || k->tree_empty)
            on_overrun(k, SIGTERM);
        else if (ending) /* for another reason; inner dlocks have time until then */
            k->at[INNER_ENDS] = dlock_now() + grace;
        if (!staying && is_guarded(k) && !k->overrun && !k->guard.died)
            k->at[GUARD_ENDS_RUN] = dlock_now() + GUARD_ENDS + (ending ? grace : 0);
    }
    if (is_due(k, SETTLED, now))
        memory_let_go();
    if (is_due(k, INNER_ENDS, now))
        inner_kill(k->inner, "--max-run has passed");
    bool overrun = is_due(k, GUARD_ENDS_RUN, now);
    if (is_due(k, GUARD_ANSWERS, now) || overrun) {
        /* The guard does not answer (stopped?). EOF of its socket says what is next. */
        if (overrun)
            on_overrun(k, SIGKILL);
        k->at[GUARD_ANSWERS] = k->at[GUARD_ENDS_RUN] = DLOCK_NEVER;
        if (k->phase >= KEEPER_STAYING)
            tell_guard(k, G_DETACH, 0, NULL); /* it may not have been sent */
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
    /* The kernel is out of memory: a loop without a pause would take the whole processor. */
    if (got < 0 && errno != EINTR)
        nanosleep(&(struct timespec){.tv_nsec = 5 * DLOCK_MSEC}, NULL);
    return got;
}

static void loop(struct keeper *k)
{
    struct pollfd pfd[STORE_POLL_MAX + 4];
    int turn = 0;
    read_store(k, NULL, 0);
    after_exit(k);
    while (k->phase < KEEPER_OVER || (k->phase == KEEPER_OVER && is_guarded(k))) {
        int64_t wake_at = DLOCK_NEVER, *at = k->at;
        int n = 0, nstore;
        if (k->phase < KEEPER_OVER)
            n = dlock_interest(k->store, pfd, STORE_POLL_MAX, &wake_at);
        nstore = n;
        pfd[n++] = (struct pollfd){.fd = k->c->sig->fd, .events = POLLIN};
        if (is_guarded(k))
            pfd[n++] = (struct pollfd){.fd = k->guard.link.fd,
                                       .events = k->guard.unsent.n > 0 ? POLLIN | POLLOUT : POLLIN};
        if (k->inner)
            pfd[n++] = (struct pollfd){.fd = inner_fd(k->inner), .events = POLLIN};
        n += events_interest(k->c->events, &pfd[n]);
        for (; at < k->at + KEEPER_TIMERS; at++)
            wake_at = dlock_min(wake_at, *at);
        wake_at = dlock_min(wake_at, inner_wake(k->inner));
        wake_at = dlock_min(wake_at, report_wake(&k->report));
        /* On the second turn a store at hand has the request. */
        if (turn < 2 && ++turn == 2 && k->phase == KEEPER_ACQUIRING && is_guarded(k))
            k->inner = inner_listen();
        if (wait_for_events(pfd, n, wake_at) < 0)
            nstore = 0;
        /* The guard first: the end of the command matters more than a report of the store. */
        read_guard(k);
        tell_signals(k);
        read_signals(k);
        read_store(k, pfd, nstore);
        /* The guard noticed a loss: told now, unless the store has told the cause meanwhile. */
        if (k->guard.timed_out)
            lose(k, LOSS_EXPIRED, "");
        k->guard.timed_out = false;
        inner_turn(k->inner);
        run_timers(k);
        after_exit(k);
    }
}

/*
 * Open all handles. With --retry, for as long as -w allows, a module that is missing or of another
 * build is tried again: an upgrade replaces the program and its modules one after the other. In the
 * pauses the run may end, by a signal or with the guard. 0, or an exit code after the message.
 */
static int open_when_ready(struct keeper *k, struct dlock_uri **uris)
{
    const struct options *o = k->c->o;
    int64_t since = dlock_now(), until = dlock_after(since, o->wait_ns), next = since;
    struct dlock_error err;
    report_begin(&k->report, o, NULL, k->c->events);
    while (open_locks(k, uris, dlock_now() - since, &err) < 0) {
        bool passes = err.code == DLOCK_ENOBACKEND && err.sys != 0;
        if (!o->retry || !passes || dlock_now() >= until)
            return message_error(o, &err);
        if (next == since && message_tells(o, ABOUT_WAIT))
            message("%s; trying again", err.msg);
        next = dlock_min(until, dlock_now() + OPEN_AGAIN);
        while (k->phase == KEEPER_ACQUIRING && dlock_now() < next) {
            struct pollfd p[] = {{.fd = k->c->sig->fd, .events = POLLIN},
                                 {.fd = k->guard.link.fd, .events = POLLIN}};
            wait_for_events(p, 2, next);
            read_guard(k);
            read_signals(k);
        }
        if (k->phase != KEEPER_ACQUIRING)
            return 0;
        for (int i = 0; i < DLOCK_SET_MAX; i++) {
            dlock_uri_free(uris[i]);
            uris[i] = NULL;
        }
        int code = open_uris(o, uris);
        if (code != 0)
            return code;
    }
    return 0;
}

/* The handle is closed first: the session in the store must end before a signal may end us. */
static int exit_code(struct keeper *k)
{
    const struct command *c = k->c;
    bool known = c->exited && c->exec_error == 0 && !k->guard.died;
    struct events_end end = {.outcome = k->report.outcome, .status = -1, .code = k->code};
    inner_close(k->inner);
    dlock_close(k->store);
    if (k->die_sig) {
        end.outcome = EVENTS_CANCELLED;
        end.code = 128 + k->die_sig;
    } else if (is_lost(k) || k->overrun || k->release.record == RECORD_UNCONFIRMED) {
        end.outcome = is_lost(k) ? EVENTS_LOST : k->overrun ? EVENTS_OVERRUN : EVENTS_UNRECORDED;
        end.code = end.outcome == EVENTS_OVERRUN ? OVERRUN_EXIT : k->c->o->lost_code;
        end.status = known ? c->status : -1;
    } else if (k->guard.died) {
        end.code = dlock_error_exit(DLOCK_EOS);
    } else if (c->exited) {
        return command_exit_code(c);
    }
    report_end(&k->report, &k->loss, end);
    if (k->ended && terminal_restore(&c->tty, tcgetpgrp(c->tty.fd)) &&
        message_tells(c->o, ABOUT_TROUBLE))
        message("the terminal's modes are restored, which the command had changed; "
                "if the screen is wrong, run 'reset'");
    if (k->die_sig)
        signals_die(k->die_sig);
    return end.code;
}

/* The buffer is not needed for the whole run. */
static __attribute__((noinline)) void tell_start(struct events *e, const struct dlock_uri *u)
{
    char path[PATH_MAX];
    open_path(u, path);
    events_start(e, u, path);
}

int keeper_run(struct command *c, struct dlock_uri **uris, dlock **held)
{
    static struct keeper k; /* as in run_mode() */
    int code = 0;
    k.c = c;
    k.guard.link.fd = -1;
    for (int i = 0; i < KEEPER_TIMERS; i++)
        k.at[i] = DLOCK_NEVER;
    if (!c->local) {
        code = fork_guard(&k, uris[0]->name, -1);
        if (code != 0)
            return code;
        open_bound_memory();
    }
    code = open_when_ready(&k, uris);
    if (code != 0)
        return code; /* the guard exits by itself when our end of its socket closes */
    const dlock *lk;
    for (int i = 0; (lk = lock_at(&k, i)); i++) {
        open_tell(c->o, lk);
        if (c->events)
            tell_start(c->events, dlock_uri_of(lk));
    }
    k.at[SETTLED] = dlock_now() + SETTLE_TIME;
    if (k.store) {
        report_lock(&k.report, lock_at(&k, 0));
        dlock_start_acquire(k.store, NULL);
    }
    loop(&k);
    if (k.phase != KEEPER_HANDED_OVER)
        return exit_code(&k);
    *held = k.store;
    return 0;
}
