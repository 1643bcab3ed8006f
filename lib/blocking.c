/*
 * blocking.c - the blocking calls of dlock.h: a poll() loop of the library drives the handle.
 */
#include "lock.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

/* How long the loop still waits, after the end of a release, for the report that is due. */
#define LATE_REPORT DLOCK_SEC

enum next { NEXT_REPORT, NEXT_OVER, NEXT_CANCELED, NEXT_CLOSED, NEXT_FAILED };

/*
 * The next report, or why there is none. Looks at the descriptors at least once, at any time,
 * before the time decides: the caller may have been away for longer than the store has to answer.
 * NEXT_CLOSED: a cancel_fd is not open. NEXT_FAILED leaves errno.
 */
static enum next next_report(dlock *d, int64_t until, bool cancelable,
                             const struct dlock_report **r)
{
    for (bool looked = false;; looked = true) {
        struct pollfd pfd[HANDLE_POLL_MAX + DLOCK_SET_MAX];
        int64_t wake_at, now = dlock_now();
        const dlock *lk;
        if (looked && now >= until)
            return NEXT_OVER;
        int n = dlock_interest(d, pfd, HANDLE_POLL_MAX, &wake_at), all = n;
        for (int i = 0; cancelable && (lk = dlock_at(d, i)); i++)
            if (lk->opt.cancel_fd >= 0)
                pfd[all++] = (struct pollfd){.fd = lk->opt.cancel_fd, .events = POLLIN};
        int ms = looked ? dlock_poll_ms(now, dlock_min(wake_at, until)) : 0;
        int got = poll(pfd, (nfds_t)all, ms);
        if (got < 0 && errno != EINTR)
            return NEXT_FAILED;
        /* News first: a caller that ends its work in spite of cancel_fd must not lose the lock. */
        *r = dlock_process(d, pfd, got > 0 ? n : 0);
        if (*r)
            return NEXT_REPORT;
        for (int i = n; got > 0 && i < all; i++)
            if (pfd[i].revents != 0)
                return pfd[i].revents & POLLNVAL ? NEXT_CLOSED : NEXT_CANCELED;
    }
}

/* The store, for an error's text; NULL for a bare file, whose name is the store's. */
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
    if (why == NEXT_CLOSED)
        return dlock_fail_at(err, DLOCK_EUSAGE, EBADF, store_of(lk),
                             "%s of the lock '%s' has a cancel_fd that is not open", what,
                             dlock_name(lk));
    return dlock_fail_at(err, DLOCK_EOS, e, store_of(lk), "%s of the lock '%s' cannot wait: %s",
                         what, dlock_name(lk), strerror(e));
}

int dlock_acquire(dlock *d, struct dlock_error *err)
{
    const struct dlock_report *r;
    enum next next;
    const dlock *lk;
    int rc = handle_expect(d, DLOCK_STATE_IDLE, DLOCK_STATE_IDLE, "dlock_acquire()", err);
    for (int i = 0; rc == 0 && (lk = dlock_at(d, i)); i++)
        if (lk->opt.cancel_fd >= 0 && fcntl(lk->opt.cancel_fd, F_GETFD) < 0)
            rc = interrupted(lk, NEXT_CLOSED, "the acquire", err);
    if (rc < 0 || (rc = dlock_start_acquire(d, err)) < 0)
        return rc;
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
            if (err)
                *err = r->error;
            return r->error.code;
        default:
            break;
        }
    }
    rc = interrupted(dlock_at(d, 0), next, "the acquire", err);
    /* Cancel the acquire, so that the handle is idle again. */
    int64_t until = dlock_now() + (next == NEXT_FAILED ? 0 : UNDO_TIME);
    if (dlock_start_release(d, until, NULL) < 0)
        return rc;
    while (next_report(d, until + LATE_REPORT, false, &r) == NEXT_REPORT)
        if (r->type == DLOCK_REPORT_RELEASED && dlock_state(d) == DLOCK_STATE_IDLE)
            break;
    return rc;
}

/* A lock that is lost, or past its term_at; NULL: none. */
static const dlock *ending(dlock *d)
{
    const dlock *lk;
    for (int i = 0; (lk = dlock_at(d, i)); i++)
        if (lock_is_ending(lk))
            return lk;
    return NULL;
}

/* The hold is over, or soon will be, because of lk. */
static int lost(const dlock *lk, struct dlock_error *err)
{
    const char *what = lk->end.code == DLOCK_ELOST ? "is lost" : "could not be renewed in time";
    return dlock_fail_at(err, DLOCK_ELOST, lk->end.sys, store_of(lk), "the lock '%s' %s: %s",
                         dlock_name(lk), what, lk->end.msg);
}

int dlock_keep(dlock *d, int64_t until, struct dlock_error *err)
{
    const struct dlock_report *r;
    enum next next = NEXT_OVER;
    int rc = handle_expect(d, DLOCK_STATE_HELD, DLOCK_STATE_LOST, "dlock_keep()", err);
    if (rc < 0)
        return rc;
    if (ending(d))
        until = 0; /* once more, for news */
    while (dlock_state(d) == DLOCK_STATE_HELD &&
           (next = next_report(d, until, true, &r)) == NEXT_REPORT)
        if (r->type == DLOCK_REPORT_TERM)
            break;
    if (ending(d))
        return lost(ending(d), err);
    return next == NEXT_OVER ? 0 : interrupted(dlock_at(d, 0), next, "the renewal", err);
}

/* A lock whose renewal for the caller is not confirmed yet; NULL: none. */
static const dlock *unconfirmed(dlock *d)
{
    const dlock *lk;
    for (int i = 0; (lk = dlock_at(d, i)); i++)
        if (lk->lease.wanted)
            return lk;
    return NULL;
}

int dlock_renew_now(dlock *d, int64_t until, struct dlock_error *err)
{
    const struct dlock_report *r;
    enum next next = NEXT_REPORT;
    int rc = handle_expect(d, DLOCK_STATE_HELD, DLOCK_STATE_LOST, "dlock_renew_now()", err);
    if (rc == 0 && ending(d))
        rc = lost(ending(d), err);
    if (rc < 0 || (rc = dlock_start_renew(d, err)) < 0)
        return rc;
    while (unconfirmed(d) && !ending(d) && next == NEXT_REPORT)
        next = next_report(d, until, true, &r);
    const dlock *lk = unconfirmed(d);
    if (ending(d))
        return lost(ending(d), err);
    if (!lk)
        return 0;
    if (next != NEXT_OVER)
        return interrupted(lk, next, "the renewal", err);
    return dlock_fail_at(err, DLOCK_EUNAVAIL, 0, store_of(lk),
                         "no renewal of the lock '%s' is confirmed yet; the lock is still held",
                         dlock_name(lk));
}

/* The release of lk is not confirmed. r: the report of the release; NULL: none has come. */
static int unclear(const struct dlock_report *r, const dlock *lk, struct dlock_error *err)
{
    const char *where = store_of(lk), *name = dlock_name(lk);
    if (r && dlock_is_local(lk)) /* the file is free, but the run's record is not written */
        return dlock_fail_at(err, r->error.code, r->error.sys, where,
                             "the end of the run under the lock '%s' is not recorded: %s", name,
                             r->error.msg);
    if (!r || r->error.code == 0 || r->error.code == DLOCK_EUNAVAIL)
        return dlock_fail_at(err, DLOCK_EUNAVAIL, 0, where,
                             "no answer to the release of '%s': the lock ends with its ttl", name);
    return dlock_fail_at(err, r->error.code, r->error.sys, where,
                         "the release of '%s' failed: %s; the lock ends with its ttl at the latest",
                         name, r->error.msg);
}

/* Of a set, the first lock whose release failed decides. */
int dlock_release(dlock *d, int64_t timeout_ns, struct dlock_error *err)
{
    int64_t until = dlock_after(dlock_now(), dlock_max(0, timeout_ns));
    const struct dlock_report *r;
    int rc = dlock_start_release(d, until, err);
    if (rc < 0)
        return rc;
    while (next_report(d, dlock_after(until, LATE_REPORT), false, &r) == NEXT_REPORT) {
        const dlock *lk = r->lock ? r->lock : dlock_at(d, 0);
        if (r->type != DLOCK_REPORT_RELEASED)
            continue;
        if (rc == 0 && r->how == DLOCK_RELEASE_NOT_OURS)
            rc = dlock_fail_at(err, DLOCK_ELOST, 0, store_of(lk),
                               "the lock '%s' was not ours any more", dlock_name(lk));
        else if (rc == 0 && r->how == DLOCK_RELEASE_UNCLEAR)
            rc = unclear(r, lk, err);
        if (!r->lock || r->lock == d) /* not of one lock of a set */
            return rc;
    }
    return rc < 0 ? rc : unclear(NULL, dlock_at(d, 0), err);
}
