/*
 * keeper_guard.c - the keeper and its guard: what it is told, from the start of the command to the leave that
 * comes before the release, what it says, and what is left to do when it is dead.
 */
#include "keeper.h"

#include "lease.h"
#include "spawn.h"
#include "util.h"

#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SWEEP_EVERY (100 * DLOCK_MSEC)
#define GUARD_LEAVES DLOCK_SEC
/* One that has never started a command: -w has 100 ms of tolerance. */
#define GUARD_LEAVES_IDLE (30 * DLOCK_MSEC)

int64_t keeper_grace(const struct keeper *k)
{
    if (k->o->grace_ns >= 0)
        return k->o->grace_ns;
    return lease_default_grace(dlock_is_local(k->lk) ? DLOCK_NEVER : k->o->ttl_ns);
}

bool keeper_may_end(const struct keeper *k)
{
    return k->o->on_lost != DLOCK_LOST_WARN;
}

/* --- to the guard -------------------------------------------------------------------------------- */

int keeper_tell_guard(struct keeper *k, enum guard_msg_type type, int arg,
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

void keeper_end_tree(struct keeper *k, int sig, int64_t kill_at)
{
    struct dlock_times t = {.term_at = DLOCK_NEVER, .kill_at = kill_at, .hard_at = DLOCK_NEVER};
    k->ending = true;
    keeper_tell_guard(k, G_END, sig, &t);
}

/* Nothing is left to guard. One that does not go (stopped?) is killed a moment later. */
static void dismiss_guard(struct keeper *k)
{
    if (!k->guarded || k->guard_gone)
        return;
    keeper_tell_guard(k, G_DETACH, 0, NULL);
    k->guard_by = dlock_now() + (k->exited ? GUARD_LEAVES : GUARD_LEAVES_IDLE);
}

/* It ends here, with or without the lock; the guard goes, then the loop does. */
void keeper_over(struct keeper *k)
{
    if (k->phase < K_RELEASE)
        dismiss_guard(k);
    k->phase = K_OVER;
}

void keeper_give_back(struct keeper *k, int64_t time)
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
    bool must_end = k->ending || k->end_signal || (k->lost && keeper_may_end(k)) || k->guard_died;
    if (must_end && !k->tree_empty) {
        if (!k->ending && !k->guard_died)
            keeper_end_tree(k, SIGTERM, dlock_now() + keeper_grace(k));
        return;
    }
    keeper_give_back(k, k->lost ? KEEPER_LOST_TIME : k->o->connect_timeout_ns);
}

void keeper_start(struct keeper *k)
{
    k->phase = K_START;
    k->tree.marker = spawn_marker(k->marker, dlock_token(k->lk));
    /* A guard that is stopped would keep us renewing a lock under which nothing runs. */
    k->start_by = k->times.term_at;
    int rc = keeper_tell_guard(k, G_START, 0, &k->times);
    if (rc == 0 || rc == -EPIPE)
        return;
    /* It was not told, and would never answer: the lock would be renewed for nobody. */
    k->exec_error = -rc | GUARD_FORK_FAILED;
    k->exited = k->tree_empty = true;
    after_exit(k);
}

/* --- what the guard says ------------------------------------------------------------------------- */

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
    keeper_read_signals(k);
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
        keeper_tell_lost(k, "could not be renewed in time", "");
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
        keeper_read_signals(k);
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
void keeper_sweep(struct keeper *k)
{
    pid_t stuck = 0;
    int left = process_tree_sweep(&k->tree, &stuck);
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
        keeper_give_back(k, KEEPER_CANCEL_TIME);
        return;
    }
    /* Its kernel timer ends a guard that was stopped for too long: then the lease is as good as over. */
    bool late = dlock_now() >= k->times.kill_at;
    k->lost |= late;
    keeper_sweep(k);
    if (late)
        keeper_tell_lost(k, "could not be renewed in time", "the guard was stopped");
    else
        say("the guard process %d was killed: the command is ended", (int)k->guard.pid);
}

void keeper_read_guard(struct keeper *k)
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
