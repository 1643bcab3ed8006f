/* blocking.c - the blocking calls of dlock.h: the same handle or set, driven by a poll() loop of our own. */
#include "lock.h"
#include "util.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

/* So long after the end of a release we still wait for its report, which should be there. */
#define LATE_REPORT DLOCK_SEC

/* One handle or one set, and what they have in common. */
struct driven {
    dlock *lk;
    dlock_set *set;
    struct pollfd *pfd;
    int cap;
};

enum next { NEXT_REPORT, NEXT_OVER, NEXT_CANCELED, NEXT_FAILED };

static enum dlock_state state_of(const struct driven *d)
{
    return d->set ? dlock_set_state(d->set) : dlock_state(d->lk);
}

static const struct dlock_report *process(const struct driven *d, int n)
{
    return d->set ? dlock_set_process(d->set, d->pfd, n) : dlock_process(d->lk, d->pfd, n);
}

static int interest(const struct driven *d, int64_t *wake_at)
{
    return d->set ? dlock_set_interest(d->set, d->pfd, d->cap, wake_at)
                  : dlock_interest(d->lk, d->pfd, d->cap, wake_at);
}

static int start_release(const struct driven *d, int64_t until, struct dlock_error *err)
{
    return d->set ? dlock_set_start_release(d->set, until, err)
                  : dlock_start_release(d->lk, until, err);
}

static const dlock *lock_at(const struct driven *d, int i)
{
    if (d->set)
        return dlock_set_at(d->set, i);
    return i == 0 ? d->lk : NULL;
}

/* Adds the descriptors that interrupt us behind the n of the lock. Returns how many. */
static int add_cancel(const struct driven *d, int n)
{
    const dlock *lk;
    int more = 0;
    for (int i = 0; (lk = lock_at(d, i)); i++)
        if (lk->opt.cancel_fd >= 0)
            d->pfd[n + more++] = (struct pollfd){.fd = lk->opt.cancel_fd, .events = POLLIN};
    return more;
}

static bool is_ready(const struct pollfd *pfd, int n)
{
    while (n > 0 && pfd[n - 1].revents == 0)
        n--;
    return n > 0;
}

/*
 * The next report, or why there is none. It looks at the descriptors once at least, whatever the time is, and before
 * anything is judged by time: the caller may have been away for longer than the store has to answer. NEXT_FAILED leaves
 * errno.
 */
static enum next next_report(const struct driven *d, int64_t until, bool cancelable,
                             const struct dlock_report **r)
{
    for (bool looked = false;; looked = true) {
        int64_t wake_at, now = dlock_now();
        if (looked && now >= until)
            return NEXT_OVER;
        int n = interest(d, &wake_at), more = cancelable ? add_cancel(d, n) : 0;
        int ms = looked ? dlock_poll_ms(now, dlock_min(wake_at, until)) : 0;
        int got = poll(d->pfd, (nfds_t)(n + more), ms);
        if (got < 0 && errno != EINTR)
            return NEXT_FAILED;
        /* First what has come: a caller that ends its work in spite of cancel_fd must not lose the lock. */
        if ((*r = process(d, got > 0 ? n : 0)))
            return NEXT_REPORT;
        if (got > 0 && is_ready(d->pfd + n, more))
            return NEXT_CANCELED;
    }
}

/* Give up an acquire, so that the handle is idle again. */
static void undo(const struct driven *d, enum next why)
{
    int64_t until = dlock_now() + (why == NEXT_FAILED ? 0 : UNDO_TIME);
    const struct dlock_report *r;
    if (start_release(d, until, NULL) < 0)
        return;
    while (next_report(d, until + LATE_REPORT, false, &r) == NEXT_REPORT)
        if (r->type == DLOCK_REPORT_RELEASED && state_of(d) == DLOCK_STATE_IDLE)
            return;
}

/* The store before the text of an error, unless the text names it: a bare file's store is itself. */
static const char *store_of(const dlock *lk)
{
    return strcmp(dlock_where(lk), dlock_name(lk)) == 0 ? NULL : dlock_where(lk);
}

static int interrupted(const dlock *lk, enum next why, const char *what, struct dlock_error *err)
{
    int e = errno;
    if (why == NEXT_CANCELED)
        return dlock_fail_at(err, DLOCK_ECANCELED, 0, store_of(lk),
                             "%s of the lock '%s' was interrupted", what, dlock_name(lk));
    return dlock_fail_at(err, DLOCK_EOS, e, store_of(lk), "%s of the lock '%s' cannot wait: %s",
                         what, dlock_name(lk), strerror(e));
}

static int pass(const struct dlock_error *from, struct dlock_error *err)
{
    if (err)
        *err = *from;
    return from->code;
}

/* An acquire is under way. */
static int acquire(const struct driven *d, struct dlock_error *err)
{
    const struct dlock_report *r;
    enum next next;
    while ((next = next_report(d, DLOCK_NEVER, true, &r)) == NEXT_REPORT) {
        switch (r->type) {
        case DLOCK_REPORT_ACQUIRED:
            return 0;
        case DLOCK_REPORT_SKIPPED:
            return DLOCK_SKIPPED;
        case DLOCK_REPORT_BUSY:
            return dlock_fail_at(err, DLOCK_EBUSY, 0, store_of(r->lock),
                                 "the lock '%s' is held by others", dlock_name(r->lock));
        case DLOCK_REPORT_FAILED:
            return pass(&r->error, err);
        default:
            break;
        }
    }
    int rc = interrupted(lock_at(d, 0), next, "the acquire", err);
    undo(d, next);
    return rc;
}

static int lost(const dlock *lk, struct dlock_error *err)
{
    return dlock_fail_at(
        err, DLOCK_ELOST, lk->end.sys, store_of(lk), "the lock '%s' %s: %s", dlock_name(lk),
        lk->end.code == DLOCK_ELOST ? "is lost" : "could not be renewed in time", lk->end.msg);
}

/* One that is lost, or whose term_at has passed; NULL: none. */
static const dlock *ending(const struct driven *d)
{
    const dlock *lk;
    for (int i = 0; (lk = lock_at(d, i)); i++)
        if (lk->lost || lk->ending)
            return lk;
    return NULL;
}

static int keep(const struct driven *d, int64_t until, struct dlock_error *err)
{
    const struct dlock_report *r;
    enum dlock_state is = state_of(d);
    bool in_set = !d->set && d->lk->in_set;
    enum next next = NEXT_OVER;
    if (in_set || (is != DLOCK_STATE_HELD && is != DLOCK_STATE_LOST))
        return lock_refuse(is, in_set, d->set ? "dlock_set_keep()" : "dlock_keep()", err);
    if (ending(d))
        until = 0; /* once more, for what the store has to say */
    while (state_of(d) == DLOCK_STATE_HELD &&
           (next = next_report(d, until, true, &r)) == NEXT_REPORT)
        if (r->type == DLOCK_REPORT_TERM)
            break;
    const dlock *lk = ending(d);
    if (lk)
        return lost(lk, err);
    return next == NEXT_OVER ? 0 : interrupted(lock_at(d, 0), next, "the renewal", err);
}

static int unclear(const struct dlock_report *r, const dlock *lk, struct dlock_error *err)
{
    if (r && dlock_is_local(lk)) /* it is free: only its run record was not written */
        return dlock_fail_at(err, r->error.code, r->error.sys, store_of(lk),
                             "the end of the run under the lock '%s' is not recorded: %s",
                             dlock_name(lk), r->error.msg);
    if (!r || r->error.code == 0 || r->error.code == DLOCK_EUNAVAIL)
        return dlock_fail_at(err, DLOCK_EUNAVAIL, 0, store_of(lk),
                             "no answer to the release of '%s': it ends with its ttl",
                             dlock_name(lk));
    return dlock_fail_at(err, r->error.code, r->error.sys, store_of(lk),
                         "the release of '%s' failed: %s; it ends with its ttl at the latest",
                         dlock_name(lk), r->error.msg);
}

/* A release is under way. Of a set, the first lock that was not released well decides. */
static int finish_release(const struct driven *d, int64_t until, struct dlock_error *err)
{
    const struct dlock_report *r;
    int rc = 0;
    while (next_report(d, dlock_after(until, LATE_REPORT), false, &r) == NEXT_REPORT) {
        const dlock *lk = r->lock ? r->lock : lock_at(d, 0);
        if (r->type != DLOCK_REPORT_RELEASED)
            continue;
        if (rc == 0 && r->how == DLOCK_RELEASE_NOT_OURS)
            rc = dlock_fail_at(err, DLOCK_ELOST, 0, store_of(lk),
                               "the lock '%s' was not ours any more", dlock_name(lk));
        else if (rc == 0 && r->how == DLOCK_RELEASE_UNCLEAR)
            rc = unclear(r, lk, err);
        if (!d->set || !r->lock)
            return rc;
    }
    return rc < 0 ? rc : unclear(NULL, lock_at(d, 0), err);
}

static int release(const struct driven *d, int64_t timeout_ns, struct dlock_error *err)
{
    int64_t until = dlock_after(dlock_now(), dlock_max(0, timeout_ns));
    int rc = start_release(d, until, err);
    return rc < 0 ? rc : finish_release(d, until, err);
}

/* --------------------------------------------------------------- one lock */

#define DRIVE_LOCK(name, lock)                                                                     \
    struct pollfd pfd_of_lock[DLOCK_POLL_MAX + 1];                                                 \
    const struct driven name = {.lk = (lock), .pfd = pfd_of_lock, .cap = DLOCK_POLL_MAX}

int dlock_acquire(dlock *lk, struct dlock_error *err)
{
    DRIVE_LOCK(d, lk);
    int rc = dlock_start_acquire(lk, err);
    return rc < 0 ? rc : acquire(&d, err);
}

int dlock_keep(dlock *lk, int64_t until, struct dlock_error *err)
{
    DRIVE_LOCK(d, lk);
    return keep(&d, until, err);
}

int dlock_release(dlock *lk, int64_t timeout_ns, struct dlock_error *err)
{
    DRIVE_LOCK(d, lk);
    return release(&d, timeout_ns, err);
}

/* ------------------------------------------------------------------ a set */

#define SET_POLL (DLOCK_SET_MAX * (DLOCK_POLL_MAX + 1))
#define DRIVE_SET(name, of)                                                                        \
    struct pollfd pfd_of_set[SET_POLL];                                                            \
    const struct driven name = {                                                                   \
        .set = (of), .pfd = pfd_of_set, .cap = DLOCK_SET_MAX * DLOCK_POLL_MAX}

int dlock_set_acquire(dlock_set *s, struct dlock_error *err)
{
    DRIVE_SET(d, s);
    int rc = dlock_set_start_acquire(s, err);
    return rc < 0 ? rc : acquire(&d, err);
}

int dlock_set_keep(dlock_set *s, int64_t until, struct dlock_error *err)
{
    DRIVE_SET(d, s);
    return keep(&d, until, err);
}

int dlock_set_release(dlock_set *s, int64_t timeout_ns, struct dlock_error *err)
{
    DRIVE_SET(d, s);
    return release(&d, timeout_ns, err);
}
