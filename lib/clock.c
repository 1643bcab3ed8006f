/* clock.c - the two clocks and the source of randomness. */
#include "util.h"

#include <errno.h>
#include <sys/random.h>
#include <time.h>

static int64_t read_clock(clockid_t clock)
{
    struct timespec ts = {0};
    clock_gettime(clock, &ts);
    return (int64_t)ts.tv_sec * DLOCK_SEC + ts.tv_nsec;
}

int64_t dlock_now(void)
{
    /* BOOTTIME counts suspend: a lease expires on the server while this machine sleeps. */
    return read_clock(CLOCK_BOOTTIME);
}

int64_t dlock_wall(void)
{
    return dlock_max(DLOCK_MSEC, read_clock(CLOCK_REALTIME));
}

static int64_t system_now(void *ctx)
{
    (void)ctx;
    return dlock_now();
}

static int64_t system_raw(void *ctx)
{
    (void)ctx;
    return read_clock(CLOCK_MONOTONIC_RAW);
}

struct dlock_clocks dlock_clocks_read(const struct dlock_env *env)
{
    struct dlock_clocks c;
    c.raw = env->raw(env->ctx);
    c.boot = env->now(env->ctx);
    return c;
}

int64_t dlock_lease_now(int64_t raw_minus_boot)
{
    return dlock_later_clock(dlock_clocks_read(&dlock_env_system), raw_minus_boot);
}

static int system_random(void *ctx, void *buf, size_t len)
{
    unsigned char *p = buf;
    (void)ctx;
    while (len > 0) {
        ssize_t n = getrandom(p, len, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

const struct dlock_env dlock_env_system = {
    .now = system_now, .raw = system_raw, .random = system_random};
