/*
 * poller.c - one descriptor for any kind of event loop, in place of a changing set of descriptors.
 *
 * The caller polls the outer epoll instance, which has a timer and an inner instance with the
 * descriptors of the set. The kernel removes a descriptor from an epoll instance when the last copy
 * is closed, and a child of this process may have a copy: then the instance goes on reporting a
 * connection that we have closed, and no call can remove the descriptor, whose number is gone, or
 * belongs to another file (epoll(7), "Questions and answers", Q6). So as soon as the set has other
 * descriptors, the inner instance is made anew: the end of the instance itself is known.
 */
#include "util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

struct poller {
    int outer, inner, timer;
    int64_t wake_at;                            /* the timer's; DLOCK_NEVER: not set */
    int n, fds[DLOCK_SET_MAX * DLOCK_POLL_MAX]; /* what inner has */
};

static int add(int epoll, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev);
}

static void set_timer(struct poller *p, int64_t at)
{
    struct itimerspec t = {0};
    if (at == p->wake_at)
        return;
    p->wake_at = at;
    if (at != DLOCK_NEVER) {
        at = dlock_max(1, at); /* 0 would stop the timer */
        t.it_value.tv_sec = (time_t)(at / DLOCK_SEC);
        t.it_value.tv_nsec = (long)(at % DLOCK_SEC);
    }
    timerfd_settime(p->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

void poller_kick(struct poller *p)
{
    set_timer(p, 0);
}

int poller_fd(struct poller **out, struct dlock_error *err)
{
    if (*out)
        return (*out)->outer;
    struct poller *p = calloc(1, sizeof(*p));
    if (!p)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    p->inner = -1;
    p->wake_at = DLOCK_NEVER;
    p->outer = epoll_create1(EPOLL_CLOEXEC);
    p->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (p->outer < 0 || p->timer < 0 || add(p->outer, p->timer) != 0) {
        int e = errno;
        poller_close(p);
        return dlock_fail(err, DLOCK_EOS, e, "cannot watch the lock's descriptors: %s",
                          strerror(e));
    }
    poller_kick(p);
    *out = p;
    return p->outer;
}

/* ------------------------------------------------------------ descriptors */

static void drop_inner(struct poller *p)
{
    if (p->inner >= 0) {
        /* A child may have a copy of inner, too: the close alone would not remove it. */
        epoll_ctl(p->outer, EPOLL_CTL_DEL, p->inner, NULL);
        close(p->inner);
    }
    p->inner = -1;
}

/* False: a watched number is another file now, or there is no memory. */
static bool watch(const struct poller *p, const struct pollfd *pfd, int n, int how)
{
    for (int i = 0; i < n; i++) {
        /* The events of poll(2) that we use have the same numbers in epoll(7). */
        struct epoll_event ev = {.events = (unsigned short)pfd[i].events, .data.fd = pfd[i].fd};
        if (epoll_ctl(p->inner, how, pfd[i].fd, &ev) != 0)
            return false;
    }
    return true;
}

static bool update_set(struct poller *p, const struct pollfd *pfd, int n)
{
    bool same = p->inner >= 0 && n == p->n;
    for (int i = 0; i < n; i++) {
        same = same && p->fds[i] == pfd[i].fd;
        p->fds[i] = pfd[i].fd;
    }
    if (same && watch(p, pfd, n, EPOLL_CTL_MOD))
        return true;
    drop_inner(p);
    p->n = n;
    p->inner = epoll_create1(EPOLL_CLOEXEC);
    return p->inner >= 0 && add(p->outer, p->inner) == 0 && watch(p, pfd, n, EPOLL_CTL_ADD);
}

void poller_update(struct poller *p, const struct pollfd *pfd, int n, int64_t wake_at)
{
    if (!update_set(p, pfd, n)) {
        drop_inner(p);
        wake_at = dlock_min(wake_at, dlock_now() + POLLER_LOOK_AGAIN);
    }
    set_timer(p, wake_at);
}

void poller_close(struct poller *p)
{
    if (!p)
        return;
    const int fds[] = {p->inner, p->timer, p->outer};
    for (size_t i = 0; i < DLOCK_LEN(fds); i++)
        if (fds[i] >= 0)
            close(fds[i]);
    free(p);
}
