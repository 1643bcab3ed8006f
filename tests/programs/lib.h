/* lib.h - for the programs that use libdlock as others do: by dlock.h alone. */
#ifndef TESTS_LIB_H
#define TESTS_LIB_H

#include "dlock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Ends the program with 1 and a line that says where. */
#define FAIL(...)                                                                                  \
    do {                                                                                           \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                            \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fputc('\n', stderr);                                                                       \
        exit(1);                                                                                   \
    } while (0)
#define MUST(x)                                                                                    \
    do {                                                                                           \
        if (!(x))                                                                                  \
            FAIL("not so: %s", #x);                                                                \
    } while (0)
#define IS(a, b)                                                                                   \
    do {                                                                                           \
        int64_t is_ = (int64_t)(a), not_ = (int64_t)(b);                                           \
        if (is_ != not_)                                                                           \
            FAIL("%s is %" PRId64 ", not %" PRId64, #a, is_, not_);                                \
    } while (0)
/* A call that fills err: its code. */
#define CODE(call, code)                                                                           \
    do {                                                                                           \
        int rc_ = (call), want_ = (code);                                                          \
        if (rc_ != want_)                                                                          \
            FAIL("%s: %s, not %s: %s", #call, dlock_error_name(rc_), dlock_error_name(want_),      \
                 rc_ < 0 ? err.msg : "");                                                          \
    } while (0)

/* Short, but a process may be kept from running for a second where others are at work. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define BRIEF_TTL (4 * DLOCK_SEC)
#else
#define BRIEF_TTL (2 * DLOCK_SEC)
#endif

static struct dlock_error err;

/* A handle with a ttl, which waits for as long. */
static inline dlock *open_lock(const char *uri, int64_t ttl, int64_t wait)
{
    struct dlock_options o;
    dlock *lk = NULL;
    dlock_options_init(&o, sizeof o);
    o.ttl_ns = ttl;
    o.wait_ns = wait;
    if (dlock_open(&lk, uri, &o, &err) < 0)
        FAIL("dlock_open: %s", err.msg);
    return lk;
}

/* Drive it once, for at most so long. */
static inline const struct dlock_report *step(dlock *t, int64_t within)
{
    struct pollfd pfd[2 * DLOCK_POLL_MAX];
    int64_t wake_at, now = dlock_now();
    const struct dlock_report *r = dlock_process(t, NULL, 0);
    if (r)
        return r;
    int n = dlock_interest(t, pfd, 2 * DLOCK_POLL_MAX, &wake_at);
    wake_at = wake_at < now + within ? wake_at : now + within;
    int64_t left = wake_at > now ? wake_at - now : 0;
    struct timespec ts = {left / DLOCK_SEC, left % DLOCK_SEC};
    n = ppoll(pfd, (nfds_t)n, &ts, NULL) > 0 ? n : 0;
    return dlock_process(t, pfd, n);
}

/* Drive it until a report of that type comes; any other end of an operation fails. */
static inline void until_report(dlock *t, enum dlock_report_type type, int64_t within)
{
    int64_t until = dlock_now() + within;
    for (;;) {
        const struct dlock_report *r = step(t, DLOCK_SEC / 10);
        if (r && r->type == type)
            return;
        if (r && (r->type == DLOCK_REPORT_FAILED || r->type == DLOCK_REPORT_RELEASED ||
                  r->type == DLOCK_REPORT_BUSY))
            FAIL("report %d, not %d: %s", r->type, type, r->error.msg);
        if (!r && dlock_now() >= until)
            FAIL("no report %d in time", type);
    }
}

#endif
