/*
 * wallclock.c - LD_PRELOAD: the wall clock (CLOCK_REALTIME, gettimeofday, time) of one process jumps; every
 * other clock stays. $WALLCLOCK names a file with one int64 in nanoseconds, which is added; it is mapped,
 * so a jump happens when another process writes it. System calls are made directly: no libc in between.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset;
static bool suspend;

static bool jumps(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE ||
           (clock == CLOCK_BOOTTIME && suspend);
}

__attribute__((constructor)) static void map_offset(void)
{
    const char *file = getenv("WALLCLOCK");
    int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (p == MAP_FAILED)
        _exit(96); /* a test without its fault would pass */
    offset = p;
    suspend = getenv("WALLCLOCK_SUSPEND") != NULL;
}

int clock_gettime(clockid_t clock, struct timespec *ts)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, ts);
    if (rc == 0 && offset && jumps(clock)) {
        int64_t t = (int64_t)ts->tv_sec * 1000000000 + ts->tv_nsec + *offset;
        ts->tv_sec = t / 1000000000;
        ts->tv_nsec = (long)(t % 1000000000);
    }
    return rc;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
    struct timespec ts;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &ts);
    tv->tv_sec = ts.tv_sec;
    tv->tv_usec = ts.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    if (out)
        *out = ts.tv_sec;
    return ts.tv_sec;
}
