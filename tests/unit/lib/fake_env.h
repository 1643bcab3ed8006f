/* fake_env.h - the clocks and the randomness of a test. Time passes only where the test says so. */
#ifndef FAKE_ENV_H
#define FAKE_ENV_H

#include "lock.h"
#include "unit.h"

#include "util.h"
#include <unistd.h>

#define S DLOCK_SEC
#define MS DLOCK_MSEC

static int64_t clock_now, raw_minus_boot;

static int64_t get_now(void *ctx)
{
    (void)ctx;
    return clock_now;
}
static int64_t get_raw(void *ctx)
{
    (void)ctx;
    return clock_now + raw_minus_boot;
}
static int get_random(void *ctx, void *buf, size_t len)
{
    (void)ctx;
    memset(buf, 7, len);
    return 0;
}
static const struct dlock_env env = {.now = get_now, .raw = get_raw, .random = get_random};

/* A handle over a backend of the test: ttl 10 s, grace 1 s: usable 8.398 s (see test_lease.c). */
static inline void fake_handle(dlock *d, struct dlock_uri *uri, const struct dlock_backend *table)
{
    memset(d, 0, sizeof *d);
    d->uri = d->spec.uri = uri;
    d->table = table;
    d->owner = getpid();
    dlock_options_init(&d->opt, sizeof d->opt);
    d->lease_cfg = (struct lease_config){.ttl = 10 * S, .grace = 1 * S};
    lock_set_env(d, &env, 10 * S);
}

static inline bool asks_for_dispatch(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

#endif
