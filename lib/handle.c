/*
 * handle.c - the calls of dlock.h that a lock and a set of locks have in common: the checks of
 * process, set and state, and the descriptor of dlock_poll_fd().
 */
#include "handle.h"

#include "lease.h"

#include <string.h>
#include <unistd.h>

/* --- what each state allows ------------------------------------------------------------------- */

bool handle_is_foreign(const dlock *d)
{
    return handle_of(d)->owner != getpid();
}

enum dlock_state dlock_state(const dlock *d)
{
    return handle_is_foreign(d) ? DLOCK_STATE_FOREIGN : handle_of(d)->ops->state(d);
}

static int refuse(enum dlock_state state, bool in_set, const char *call, struct dlock_error *err)
{
    static const char *const names[] = {
        [DLOCK_STATE_IDLE] = "nothing is held or under way",
        [DLOCK_STATE_ACQUIRING] = "an acquire is under way",
        [DLOCK_STATE_ASKING] = "a query is under way",
        [DLOCK_STATE_HELD] = "the lock is held",
        [DLOCK_STATE_LOST] = "the lock was lost, and has not been released since",
        [DLOCK_STATE_RELEASING] = "a release is under way",
        [DLOCK_STATE_FOREIGN] = "another process has opened this handle",
    };
    return dlock_fail(err, DLOCK_EUSAGE, 0, "%s: not possible now: %s", call,
                      in_set ? "the handle belongs to a set" : names[state]);
}

int handle_expect_state(const dlock *d, enum dlock_state a, enum dlock_state b, const char *call,
                        struct dlock_error *err)
{
    enum dlock_state is = dlock_state(d);
    return is == a || is == b ? 0 : refuse(is, false, call, err);
}

int handle_expect(const dlock *d, enum dlock_state a, enum dlock_state b, const char *call,
                  struct dlock_error *err)
{
    if (handle_of(d)->in_set)
        return refuse(DLOCK_STATE_IDLE, true, call, err);
    return handle_expect_state(d, a, b, call, err);
}

/* May this process drive the handle, in whatever state? */
static bool is_driven_here(const dlock *d)
{
    return !handle_of(d)->in_set && !handle_is_foreign(d);
}

/* 0, or DLOCK_EUSAGE. */
static int expect_driven_here(const dlock *d, const char *call, struct dlock_error *err)
{
    bool in_set = handle_of(d)->in_set;
    return is_driven_here(d) ? 0 : refuse(DLOCK_STATE_FOREIGN, in_set, call, err);
}

/* --- start ------------------------------------------------------------------------------------ */

void handle_kick(const dlock *d)
{
    if (handle_of(d)->poller)
        poller_kick(handle_of(d)->poller);
}

int dlock_start_acquire(dlock *d, struct dlock_error *err)
{
    int rc = handle_expect(d, DLOCK_STATE_IDLE, DLOCK_STATE_IDLE, "dlock_start_acquire()", err);
    if (rc < 0)
        return rc;
    handle_kick(d);
    handle_of(d)->ops->start_acquire(d);
    return 0;
}

int dlock_start_release(dlock *d, int64_t until, struct dlock_error *err)
{
    int rc = expect_driven_here(d, "dlock_start_release()", err);
    if (rc < 0)
        return rc;
    handle_kick(d);
    handle_of(d)->ops->start_release(d, until);
    return 0;
}

int dlock_start_renew(dlock *d, struct dlock_error *err)
{
    int rc = handle_expect(d, DLOCK_STATE_HELD, DLOCK_STATE_HELD, "dlock_start_renew()", err);
    if (rc < 0)
        return rc;
    handle_kick(d);
    handle_of(d)->ops->start_renew(d);
    return 0;
}

/* --- the loop --------------------------------------------------------------------------------- */

int dlock_poll_max(const dlock *d)
{
    int n = 0;
    while (dlock_at(d, n))
        n++;
    return n * DLOCK_POLL_MAX;
}

/* A caller whose room is too small looks again soon, and dlock_process() polls the rest. */
static int crowded_interest(dlock *d, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    struct handle *h = handle_of(d);
    struct pollfd all[HANDLE_POLL_MAX];
    int n = h->ops->interest(d, all, HANDLE_POLL_MAX, wake_at);
    h->crowded = n > cap;
    if (h->crowded) {
        *wake_at = dlock_min(*wake_at, h->env->now(h->env->ctx) + POLLER_LOOK_AGAIN);
        n = (int)dlock_max(0, cap);
    }
    if (n > 0)
        memcpy(pfd, all, (size_t)n * sizeof(*pfd));
    return n;
}

int dlock_interest(dlock *d, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    struct handle *h = handle_of(d);
    *wake_at = DLOCK_NEVER;
    if (!is_driven_here(d))
        return 0;
    if (cap < dlock_poll_max(d))
        return crowded_interest(d, pfd, cap, wake_at);
    h->crowded = false;
    return h->ops->interest(d, pfd, cap, wake_at);
}

/* Process with all descriptors that are ready now. */
static const struct dlock_report *poll_and_process(dlock *d)
{
    const struct handle_ops *ops = handle_of(d)->ops;
    struct pollfd pfd[HANDLE_POLL_MAX];
    int64_t wake_at;
    int n = ops->interest(d, pfd, HANDLE_POLL_MAX, &wake_at);
    return ops->process(d, pfd, poll(pfd, (nfds_t)n, 0) > 0 ? n : 0);
}

const struct dlock_report *dlock_process(dlock *d, const struct pollfd *pfd, int n)
{
    if (!is_driven_here(d))
        return NULL;
    handle_kick(d);
    return handle_of(d)->crowded ? poll_and_process(d) : handle_of(d)->ops->process(d, pfd, n);
}

int dlock_poll_fd(dlock *d, struct dlock_error *err)
{
    int rc = expect_driven_here(d, "dlock_poll_fd()", err);
    return rc < 0 ? rc : poller_fd(&handle_of(d)->poller, err);
}

const struct dlock_report *dlock_dispatch(dlock *d)
{
    struct pollfd pfd[HANDLE_POLL_MAX];
    int64_t wake_at;
    if (!is_driven_here(d))
        return NULL;
    struct handle *h = handle_of(d);
    const struct dlock_report *r = poll_and_process(d);
    if (r) {
        /* More may follow, also for a caller with one report in each turn of its loop. */
        handle_kick(d);
    } else if (h->poller) {
        int n = h->ops->interest(d, pfd, HANDLE_POLL_MAX, &wake_at);
        poller_update(h->poller, pfd, n, wake_at);
    }
    return r;
}

void dlock_close(dlock *d)
{
    if (d && !handle_of(d)->in_set)
        handle_of(d)->ops->close(d);
}

/* --- what is known ---------------------------------------------------------------------------- */

dlock *dlock_at(const dlock *d, int i)
{
    return handle_of(d)->ops->at(d, i);
}

/* Any thread may ask while another thread drives the handle: read only what does not change. */
int64_t dlock_time_left(const dlock *d)
{
    const struct handle *h = handle_of(d);
    return handle_is_foreign(d) ? 0 : lease_time_left(h->ops->end(d), dlock_clocks_read(h->env));
}

int64_t dlock_deadline(const dlock *d)
{
    return handle_is_foreign(d) ? 0 : handle_of(d)->ops->end(d).boot;
}
