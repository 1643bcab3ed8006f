/*
 * guard_clock.c - when the guard acts, and the two timers behind it: one that wakes the loop, one of the
 * kernel's that kills the guard. It reads the times and the phase, and changes neither.
 */
#include "guard_state.h"

#include <sys/timerfd.h>

#define KILL_TURN DLOCK_SEC /* no turn for so long while killing: stopped */

static struct itimerspec at_time(int64_t at)
{
    struct itimerspec when = {0};

    if (at != DLOCK_NEVER) {
        at = at > 0 ? at : 1; /* zero would disarm it */
        when.it_value.tv_sec = at / DLOCK_SEC;
        when.it_value.tv_nsec = at % DLOCK_SEC;
    }
    return when;
}

/* When to send SIGKILL, once the tree has been asked to end. */
int64_t guard_kill_time(const struct guard_state *g)
{
    if (g->cfg->warn_only || g->end_kill_at < g->kill_at)
        return g->end_kill_at;
    return g->kill_at;
}

/*
 * When the kernel's timer is to end the guard. A guard that has begun to kill must not be killed before the
 * end while it is at work; but the keeper waits for it, and one that has been stopped is in its way: the
 * keeper ends the tree itself then. With the keeper gone there is nobody who would.
 */
static int64_t hard_time(const struct guard_state *g)
{
    bool lease =
        g->term_at != DLOCK_NEVER || g->kill_at != DLOCK_NEVER || g->hard_at != DLOCK_NEVER;

    if (g->phase == PHASE_RUN || g->phase == PHASE_TERM)
        return g->cfg->warn_only ? DLOCK_NEVER : g->hard_at;
    if (g->phase == PHASE_KILL && lease && !g->keeper_gone)
        return dlock_now() + KILL_TURN;
    return DLOCK_NEVER;
}

/* The kernel's timer: it works while the guard is stopped. */
void guard_set_hard_timer(const struct guard_state *g)
{
    struct itimerspec when = at_time(hard_time(g));

    timer_settime(g->hard_timer, TIMER_ABSTIME, &when, NULL);
}

/* poll's own time-out does not count the time a machine sleeps; a timerfd on CLOCK_BOOTTIME does. */
void guard_set_wake(struct guard_state *g, int64_t at)
{
    struct itimerspec when = at_time(at);

    if (at == g->wake_set)
        return;
    timerfd_settime(g->timerfd, TFD_TIMER_ABSTIME, &when, NULL);
    g->wake_set = at;
}

int64_t guard_next_wake(const struct guard_state *g)
{
    switch (g->phase) {
    case PHASE_RUN:
        return g->cfg->warn_only ? DLOCK_NEVER : g->term_at;
    case PHASE_TERM:
        if (g->cfg->warn_only || g->lease_over || guard_kill_time(g) < g->term_at)
            return guard_kill_time(g);
        return g->term_at;
    case PHASE_KILL:
        return dlock_now() + g->kill_pause;
    default:
        return DLOCK_NEVER;
    }
}
