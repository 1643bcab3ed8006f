/* clock.c - the one clock and the one source of randomness. */
#include "backend.h"

#include <errno.h>
#include <sys/random.h>
#include <time.h>

int64_t dlock_now(void)
{
    struct timespec ts;

    /* BOOTTIME counts suspend: a lease expires on the server while this machine sleeps. */
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * DLOCK_SEC + ts.tv_nsec;
}

static int64_t system_now(void *ctx)
{
    (void)ctx;
    return dlock_now();
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

const struct dlock_env dlock_env_system = {.now = system_now, .random = system_random};
