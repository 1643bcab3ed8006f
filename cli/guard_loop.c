/*
 * guard_loop.c - the guard at work: what the keeper orders, what the clock says, and the loop that looks at
 * both and at the children.
 *
 * Every turn of it looks at everything: messages first (an EXTEND that is waiting in the socket must
 * count), then children, then the clock.
 */
#include "guard_state.h"

#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

static void take_times(struct guard_state *g, const struct guard_msg *m)
{
    if (!g->lease_over) {
        g->term_at = m->term_at;
        g->kill_at = m->kill_at;
    } else if (m->kill_at < g->kill_at) {
        g->kill_at = m->kill_at; /* the end has begun and comes no later than it was going to */
    }
    g->hard_at = m->hard_at;
    guard_set_hard_timer(g);
}

/* Once the command has been forked the caller's descriptors and directory are held up no longer. */
static void let_go(struct guard_state *g)
{
    int keep[] = {g->sock, g->sigfd, g->timerfd, g->exec_fd, g->cfg->lock_fd, g->lease_fd};

    fds_let_go(keep, (int)(sizeof keep / sizeof keep[0]));
    if (chdir("/") != 0) {
        /* then an umount has to wait for us */
    }
}

static void refuse(struct guard_state *g, int why)
{
    g->phase = PHASE_EMPTY;
    guard_post(g, G_EXEC_FAILED, why);
    guard_post(g, G_TREE_EMPTY, 0);
}

/* lease_lost: without a copy of its connection the lock would be free before the tree is gone. */
static void start(struct guard_state *g, const struct guard_msg *m, bool lease_lost)
{
    struct spawn sp = {
        .argv = g->cfg->argv,
        .sig = g->cfg->sig,
        .own_group = g->cfg->own_group,
        .join_group = g->cfg->own_group ? 0 : g->caller_group,
        .die_with_parent = true,
        .keeper_fd = g->sock,
        .not_after = m->term_at,
        .inherit_fd = -1,
        .name = g->cfg->name,
        .token = m->token,
        .fence = m->fence,
    };
    pid_t pid;

    if (g->used)
        return;
    g->used = true;
    if (lease_lost) {
        refuse(g, GUARD_FORK_FAILED | EMFILE);
        return;
    }
    /* The timer runs before there is anything to guard: no moment without it. */
    if (dlock_now() < m->term_at)
        g->phase = PHASE_RUN;
    take_times(g, m);
    pid = spawn_command(&sp, &g->exec_fd);
    if (pid < 0) {
        refuse(g, -pid >= SPAWN_TOO_LATE ? -pid : GUARD_FORK_FAILED | -pid);
        guard_set_hard_timer(g);
        return;
    }
    g->command = pid;
    fcntl(g->exec_fd, F_SETFL, O_NONBLOCK);
    let_go(g);
}

static void forward(const struct guard_state *g, int sig)
{
    if (g->command <= 0 || sig <= 0)
        return;
    if (!g->cfg->own_group || kill(-g->command, sig) != 0)
        kill(g->command, sig);
}

static void end(struct guard_state *g, const struct guard_msg *m)
{
    if (g->phase == PHASE_IDLE) {
        g->used = true; /* no START after this */
        g->phase = PHASE_EMPTY;
        guard_post(g, G_TREE_EMPTY, 0);
    } else if (m->arg == SIGKILL) {
        guard_begin_kill(g);
    } else {
        if (m->kill_at < g->end_kill_at)
            g->end_kill_at = m->kill_at;
        guard_begin_term(g);
    }
}

static void obey(struct guard_state *g, const struct guard_msg *m, bool lease_lost)
{
    switch (m->type) {
    case G_START:
        start(g, m, lease_lost);
        break;
    case G_EXTEND:
        if (g->used)
            take_times(g, m);
        break;
    case G_SIGNAL:
        forward(g, m->arg);
        break;
    case G_END:
        end(g, m);
        break;
    case G_DETACH:
        _exit(0);
    default:
        break;
    }
}

static void read_orders(struct guard_state *g)
{
    struct guard_msg m;
    int got, fd;

    while (!g->keeper_gone && (got = guard_receive(g->sock, &m, &fd)) != 0) {
        if (got < 0) {
            g->keeper_gone = true;
            return;
        }
        if (fd >= 0 && g->lease_fd < 0)
            g->lease_fd = fd;
        obey(g, &m, fd == GUARD_PASSED_LOST);
    }
}

static void look_at_clock(struct guard_state *g)
{
    int64_t now = dlock_now();

    if (g->phase != PHASE_RUN && g->phase != PHASE_TERM)
        return;
    if (!g->cfg->warn_only && !g->lease_over && now >= g->term_at) {
        g->lease_over = true;
        guard_begin_term(g);
    }
    if (g->phase == PHASE_TERM && now >= guard_kill_time(g))
        guard_begin_kill(g);
}

static void turn(struct guard_state *g)
{
    read_orders(g);
    guard_check_exec(g);
    guard_reap(g);
    if (g->keeper_gone)
        guard_begin_kill(g);
    look_at_clock(g);
    if (g->phase == PHASE_KILL)
        guard_kill_tree(g);
    if (g->keeper_gone && (g->phase == PHASE_IDLE || g->phase == PHASE_EMPTY))
        _exit(0);
    guard_flush(g);
}

static void wait_for_something(struct guard_state *g)
{
    struct pollfd p[] = {
        {.fd = g->sigfd, .events = POLLIN},
        {.fd = g->timerfd, .events = POLLIN},
        {.fd = g->exec_fd, .events = POLLIN},
        {.fd = g->keeper_gone ? -1 : g->sock,
         .events = (short)(g->pending ? POLLIN | POLLOUT : POLLIN)},
    };
    char drain[16 * sizeof(struct signalfd_siginfo)];
    uint64_t ticks;

    guard_set_wake(g, guard_next_wake(g));
    if (ppoll(p, sizeof p / sizeof p[0], NULL, NULL) <= 0)
        return;
    if (p[0].revents)
        while (read(g->sigfd, drain, sizeof drain) > 0)
            ;
    if (p[1].revents && read(g->timerfd, &ticks, sizeof ticks) > 0)
        g->wake_set = DLOCK_NEVER;
}

_Noreturn void guard_loop(struct guard_state *g)
{
    for (;;) {
        turn(g);
        wait_for_something(g);
    }
}
