/* blocking.c - the blocking calls of dlock.h: the same handle, driven by a poll() loop of our own. */
#include "dlock.h"
#include "util.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

/* The next report, or 0 when the time until has come first. */
static int next_report(dlock *d, int64_t until, struct dlock_report *r)
{
    while (!dlock_process(d, NULL, 0, r)) {
        struct pollfd pfd[DLOCK_POLL_MAX];
        int64_t wake_at, now = dlock_now();
        if (now >= until)
            return 0;
        int n = dlock_interest(d, pfd, DLOCK_POLL_MAX, &wake_at);
        int got = poll(pfd, (nfds_t)n, dlock_poll_ms(now, dlock_min(wake_at, until)));
        if (got > 0 && dlock_process(d, pfd, n, r))
            return 1;
    }
    return 1;
}

int dlock_acquire(dlock *d, struct dlock_error *err)
{
    struct dlock_report r;
    dlock_start_acquire(d);
    while (next_report(d, DLOCK_NEVER, &r)) {
        switch (r.type) {
        case DLOCK_R_ACQUIRED:
            return 0;
        case DLOCK_R_SKIPPED:
            return DLOCK_SKIPPED;
        case DLOCK_R_BUSY:
            return dlock_fail(err, DLOCK_EBUSY, 0, "%s: the lock '%s' is held by others",
                              dlock_where(d), dlock_name(d));
        case DLOCK_R_FAILED:
            if (err)
                *err = r.error;
            return r.error.code;
        default:
            break;
        }
    }
    return dlock_fail(err, DLOCK_EOS, errno, "cannot wait for the lock: %s", strerror(errno));
}

int dlock_keep(dlock *d, int64_t until, struct dlock_error *err)
{
    struct dlock_report r;
    while (next_report(d, until, &r)) {
        if (r.type != DLOCK_R_TERM && r.type != DLOCK_R_LOST)
            continue;
        return dlock_fail(err, DLOCK_ELOST, r.error.sys, "%s: the lock '%s' %s: %s", dlock_where(d),
                          dlock_name(d),
                          r.error.code == DLOCK_ELOST ? "is lost" : "could not be renewed in time",
                          r.error.msg);
    }
    return 0;
}

int dlock_release(dlock *d, int64_t timeout_ns, struct dlock_error *err)
{
    struct dlock_report r;
    int64_t until = dlock_now() + timeout_ns;
    dlock_start_release(d, until);
    while (next_report(d, until + DLOCK_SEC, &r)) {
        if (r.type != DLOCK_R_RELEASED)
            continue;
        if (r.how == DLOCK_REL_NOT_OURS)
            return dlock_fail(err, DLOCK_ELOST, 0, "%s: the lock '%s' was not ours any more",
                              dlock_where(d), dlock_name(d));
        if (r.how != DLOCK_REL_UNCLEAR)
            return 0;
        if (r.error.code == 0 || r.error.code == DLOCK_EUNAVAIL)
            break;
        return dlock_fail(err, r.error.code, r.error.sys,
                          "%s: the release of '%s' failed: %s; it ends with its ttl at the latest",
                          dlock_where(d), dlock_name(d), r.error.msg);
    }
    return dlock_fail(err, DLOCK_EUNAVAIL, 0,
                      "%s: no answer to the release of '%s': it ends with its ttl", dlock_where(d),
                      dlock_name(d));
}
