/*
 * slew.c - LD_PRELOAD: CLOCK_BOOTTIME of one process loses a tenth, and with it all waits by the kernel, as when a time
 * service slews the clock. CLOCK_MONOTONIC_RAW stays right. $SLEW is the time of CLOCK_BOOTTIME in ns from which on.
 */
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static int64_t since;

__attribute__((constructor)) static void read_since(void)
{
    const char *text = getenv("SLEW");
    since = text ? strtoll(text, NULL, 10) : 0;
    if (since <= 0)
        _exit(96); /* a test without its fault would pass */
}

static int64_t ns_of(const struct timespec *ts)
{
    return (int64_t)ts->tv_sec * 1000000000 + ts->tv_nsec;
}

static struct timespec of_ns(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = (long)(ns % 1000000000)};
}

/* What the kernel calls it, when the process calls it t. */
static struct timespec true_time(struct timespec t)
{
    int64_t ns = ns_of(&t);
    return ns <= since ? t : of_ns(since + (ns - since) * 10 / 9);
}

int clock_gettime(clockid_t clock, struct timespec *ts)
{
    int rc = (int)syscall(SYS_clock_gettime, clock, ts);
    if (rc == 0 && clock == CLOCK_BOOTTIME && ns_of(ts) > since)
        *ts = of_ns(since + (ns_of(ts) - since) / 10 * 9);
    return rc;
}

int timerfd_settime(int fd, int flags, const struct itimerspec *at, struct itimerspec *old)
{
    struct itimerspec to = *at;
    if (flags & TFD_TIMER_ABSTIME)
        to.it_value = true_time(at->it_value);
    return (int)syscall(SYS_timerfd_settime, fd, flags, &to, old);
}

int timer_settime(timer_t timer, int flags, const struct itimerspec *at, struct itimerspec *old)
{
    static int (*next)(timer_t, int, const struct itimerspec *, struct itimerspec *);
    struct itimerspec to = *at;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "timer_settime");
    if (flags & TIMER_ABSTIME)
        to.it_value = true_time(at->it_value);
    return next(timer, flags, &to, old);
}

int ppoll(struct pollfd *p, nfds_t n, const struct timespec *time, const sigset_t *mask)
{
    struct timespec longer = time ? of_ns(ns_of(time) / 9 * 10) : of_ns(0);
    return (int)syscall(SYS_ppoll, p, n, time ? &longer : NULL, mask, sizeof(uint64_t));
}

/* What a program that was built with _FORTIFY_SOURCE calls instead. */
int __ppoll_chk(struct pollfd *p, nfds_t n, const struct timespec *time, const sigset_t *mask,
                size_t size);
int __ppoll_chk(struct pollfd *p, nfds_t n, const struct timespec *time, const sigset_t *mask,
                size_t size)
{
    (void)size;
    return ppoll(p, n, time, mask);
}
