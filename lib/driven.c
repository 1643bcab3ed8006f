/* driven.c - a lock or a set of locks, driven alike. */
#include "driven.h"

#include "lock.h"

#include <poll.h>

enum dlock_state driven_state(struct driven d)
{
    return d.set ? dlock_set_state(d.set) : dlock_state(d.lock);
}

int driven_start_acquire(struct driven d, struct dlock_error *err)
{
    return d.set ? dlock_set_start_acquire(d.set, err) : dlock_start_acquire(d.lock, err);
}

int driven_start_release(struct driven d, int64_t until, struct dlock_error *err)
{
    return d.set ? dlock_set_start_release(d.set, until, err)
                 : dlock_start_release(d.lock, until, err);
}

int driven_start_renew(struct driven d, struct dlock_error *err)
{
    return d.set ? dlock_set_start_renew(d.set, err) : dlock_start_renew(d.lock, err);
}

int driven_interest(struct driven d, struct pollfd pfd[DRIVEN_POLL_MAX], int64_t *wake_at)
{
    return d.set ? dlock_set_interest(d.set, pfd, DRIVEN_POLL_MAX, wake_at)
                 : dlock_interest(d.lock, pfd, DLOCK_POLL_MAX, wake_at);
}

const struct dlock_report *driven_process(struct driven d, const struct pollfd *pfd, int n)
{
    return d.set ? dlock_set_process(d.set, pfd, n) : dlock_process(d.lock, pfd, n);
}

void driven_close(struct driven d)
{
    dlock_set_close(d.set);
    dlock_close(d.lock);
}

const dlock *driven_at(struct driven d, int i)
{
    if (d.set)
        return dlock_set_at(d.set, i);
    return i == 0 ? d.lock : NULL;
}

const struct dlock_report *driven_dispatch(struct driven d, struct poller *p)
{
    struct pollfd pfd[DRIVEN_POLL_MAX];
    int64_t wake_at;
    int n = driven_interest(d, pfd, &wake_at);
    int ready = poll(pfd, (nfds_t)n, 0) > 0 ? n : 0;
    const struct dlock_report *r =
        d.set ? lockset_process(d.set, pfd, ready) : lock_process(d.lock, pfd, ready);
    if (!p)
        return r;
    if (r) {
        /* More may follow, also for a caller with one report in each turn of its loop. */
        poller_kick(p);
        return r;
    }
    n = driven_interest(d, pfd, &wake_at);
    poller_update(p, pfd, n, wake_at);
    return NULL;
}
