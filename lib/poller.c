/*
 * poller.c - one descriptor for an event loop of any kind, in place of a set of descriptors that
 * changes.
 *
 * The outer epoll instance is what the caller polls. It has a timer and an inner instance, which
 * has the descriptors of the set. The kernel removes a descriptor from an epoll instance when its
 * last copy is closed, and a child of this process may have one: then the instance goes on
 * reporting a connection that we have closed, and no call can remove it, for its number is gone, or
 * is another file's (epoll(7), "Questions and answers", Q6). So as soon as a descriptor has left
 * the set, the inner instance is made anew; and of itself we know when it is closed.
 */
#include "util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* The descriptors of the set could not be watched: look at them so often. */
#define LOOK_AGAIN (20 * DLOCK_MSEC)

struct poller {
    int outer, inner, timer;
    int64_t wake_at; /* the timer's; DLOCK_NEVER: it is not set */
    int n, room;
    struct pollfd *set; /* what inner has */
};

static int add(int epoll, int fd, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.fd = fd};
    return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev);
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static int open_poller(struct poller **out, struct dlock_error *err)
{
    struct poller *p = calloc(1, sizeof(*p));
    if (!p)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    p->inner = -1;
    p->wake_at = DLOCK_NEVER;
    p->outer = epoll_create1(EPOLL_CLOEXEC);
    p->timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (p->outer < 0 || p->timer < 0 || add(p->outer, p->timer, EPOLLIN) != 0) {
        int e = errno;
        poller_close(p);
        return dlock_fail(err, DLOCK_EOS, e, "cannot watch the lock's descriptors: %s",
                          strerror(e));
    }
    *out = p;
    return 0;
}

static void set_timer(struct poller *p, int64_t at)
{
    struct itimerspec t = {0};
    if (at == p->wake_at)
        return;
    p->wake_at = at;
    if (at != DLOCK_NEVER) {
        at = dlock_max(1, at); /* 0 would stop it */
        t.it_value.tv_sec = (time_t)(at / DLOCK_SEC);
        t.it_value.tv_nsec = (long)(at % DLOCK_SEC);
    }
    timerfd_settime(p->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

void poller_kick(struct poller *p)
{
    set_timer(p, 0);
}

int poller_fd(struct poller **p, struct dlock_error *err)
{
    if (!*p) {
        int rc = open_poller(p, err);
        if (rc < 0)
            return rc;
        poller_kick(*p);
    }
    return (*p)->outer;
}

/* ------------------------------------------------------------ descriptors */

/* The events of poll(2) that we use have the same numbers in epoll(7). */
static uint32_t events_of(const struct pollfd *pfd)
{
    return (uint32_t)(unsigned short)pfd->events;
}

static bool has(const struct pollfd *set, int n, int fd)
{
    while (n > 0 && set[n - 1].fd != fd)
        n--;
    return n > 0;
}

/* Has one of them left the set? */
static bool some_left(const struct poller *p, const struct pollfd *pfd, int n)
{
    for (int i = 0; i < p->n; i++)
        if (!has(pfd, n, p->set[i].fd))
            return true;
    return false;
}

static void drop_inner(struct poller *p)
{
    /* By hand, for a child may have a copy of this one, too. */
    if (p->inner >= 0)
        epoll_ctl(p->outer, EPOLL_CTL_DEL, p->inner, NULL);
    close_fd(&p->inner);
    p->n = 0;
}

static bool make_inner(struct poller *p)
{
    drop_inner(p);
    p->inner = epoll_create1(EPOLL_CLOEXEC);
    if (p->inner < 0)
        return false;
    if (add(p->outer, p->inner, EPOLLIN) == 0)
        return true;
    close_fd(&p->inner);
    return false;
}

/*
 * Watch these. False: one that we believed to be there is another file now, or there is no memory.
 */
static bool watch(struct poller *p, const struct pollfd *pfd, int n)
{
    for (int i = 0; i < n; i++) {
        struct epoll_event ev = {.events = events_of(&pfd[i]), .data.fd = pfd[i].fd};
        bool there = has(p->set, p->n, pfd[i].fd);
        if (epoll_ctl(p->inner, there ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, pfd[i].fd, &ev) != 0)
            return false;
    }
    return true;
}

static bool remember(struct poller *p, const struct pollfd *pfd, int n)
{
    if (n > p->room) {
        struct pollfd *set = realloc(p->set, (size_t)n * sizeof(*set));
        if (!set)
            return false;
        p->set = set;
        p->room = n;
    }
    if (n > 0)
        memcpy(p->set, pfd, (size_t)n * sizeof(*pfd));
    p->n = n;
    return true;
}

static bool update_set(struct poller *p, const struct pollfd *pfd, int n)
{
    if ((p->inner < 0 || some_left(p, pfd, n)) && !make_inner(p))
        return false;
    if (!watch(p, pfd, n) && (!make_inner(p) || !watch(p, pfd, n)))
        return false;
    return remember(p, pfd, n);
}

void poller_update(struct poller *p, const struct pollfd *pfd, int n, int64_t wake_at)
{
    if (!update_set(p, pfd, n)) {
        drop_inner(p);
        wake_at = dlock_min(wake_at, dlock_now() + LOOK_AGAIN);
    }
    set_timer(p, wake_at);
}

void poller_close(struct poller *p)
{
    if (!p)
        return;
    close_fd(&p->inner);
    close_fd(&p->timer);
    close_fd(&p->outer);
    free(p->set);
    free(p);
}
