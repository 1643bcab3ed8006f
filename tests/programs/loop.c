/*
 * loop.c - what interrupts and drives: cancel_fd, dlock_poll_fd(), no room for dlock_interest(),
 * retry_at.
 *
 *     loop URI [STOP]       STOP: a shell command that cuts the connection of URI
 *     loop -d URI           nobody listens there
 */
#include "lib.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>

static void *ring(void *arg)
{
    struct timespec t = {0, 200 * 1000000};
    nanosleep(&t, NULL);
    MUST(eventfd_write(*(int *)arg, 1) == 0);
    return NULL;
}

/* A wait is interrupted, and leaves nothing; so is a renewal, and the lock stays. */
static void canceled(const char *uri)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct dlock_options o;
    dlock *lk, *holder = open_lock(uri, 30 * DLOCK_SEC, DLOCK_NEVER);
    eventfd_t n;
    pthread_t t;
    dlock_options_init(&o, sizeof o);
    o.cancel_fd = fd;
    CODE(dlock_open(&lk, uri, &o, &err), 0);
    CODE(dlock_acquire(holder, &err), 0);
    MUST(pthread_create(&t, NULL, ring, &fd) == 0);
    CODE(dlock_acquire(lk, &err), DLOCK_ECANCELED);
    MUST(dlock_error_retryable(DLOCK_ECANCELED));
    pthread_join(t, NULL);
    IS(dlock_state(lk), DLOCK_STATE_IDLE);
    CODE(dlock_acquire(lk, &err), DLOCK_ECANCELED); /* it rings on */
    MUST(eventfd_read(fd, &n) == 0);
    CODE(dlock_release(holder, 5 * DLOCK_SEC, &err), 0);
    CODE(dlock_acquire(lk, &err), 0);
    MUST(pthread_create(&t, NULL, ring, &fd) == 0);
    CODE(dlock_keep(lk, DLOCK_NEVER, &err), DLOCK_ECANCELED);
    pthread_join(t, NULL);
    IS(dlock_state(lk), DLOCK_STATE_HELD);
    CODE(dlock_release(lk, 5 * DLOCK_SEC, &err), 0);
    dlock_close(lk);
    close(fd);
    /* A descriptor that is not open is a mistake, and interrupts nothing. */
    o.cancel_fd = 999;
    CODE(dlock_open(&lk, uri, &o, &err), 0);
    CODE(dlock_acquire(lk, &err), DLOCK_EUSAGE);
    MUST(strstr(err.msg, "cancel_fd that is not open"));
    IS(dlock_state(lk), DLOCK_STATE_IDLE);
    CODE(dlock_acquire(holder, &err), 0);
    CODE(dlock_acquire(holder, &err), DLOCK_EUSAGE);
    MUST(strstr(err.msg, "dlock_acquire(): not possible now: the lock is held"));
    CODE(dlock_release(holder, 5 * DLOCK_SEC, &err), 0);
    dlock_close(lk);
    dlock_close(holder);
}

/* How often the descriptor was ready within a time; the handle is driven meanwhile. */
static int turns(dlock *lk, int epoll, int64_t within, enum dlock_report_type type, bool *got)
{
    int64_t until = dlock_now() + within, now;
    const struct dlock_report *r;
    struct epoll_event ev;
    int n = 0;
    *got = false;
    while (!*got && (now = dlock_now()) < until) {
        int ms = (int)((until - now) / DLOCK_MSEC) + 1;
        if (epoll_wait(epoll, &ev, 1, ms) <= 0)
            continue;
        n++;
        while ((r = dlock_dispatch(lk))) {
            if (r->type == DLOCK_REPORT_FAILED || r->type == DLOCK_REPORT_LOST)
                FAIL("report %d: %s", r->type, r->error.msg);
            *got = *got || r->type == type;
        }
    }
    return n;
}

/* Cuts the connection, and drives the handle: on a busy machine the cut takes a part of the ttl. */
static int cut(dlock *lk, int epoll, const char *stop)
{
    int n = 0, status;
    bool got;
    pid_t pid = fork(), ended;
    MUST(pid >= 0);
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", stop, (char *)NULL);
        _exit(127);
    }
    while ((ended = waitpid(pid, &status, WNOHANG)) == 0)
        n += turns(lk, epoll, DLOCK_SEC / 50, DLOCK_REPORT_NONE, &got);
    MUST(ended == pid);
    IS(status, 0);
    return n;
}

/* By one descriptor, also when a child has copies of all descriptors, and they change. */
static void one_descriptor(const char *uri, const char *stop)
{
    dlock *lk = open_lock(uri, 2 * DLOCK_SEC, DLOCK_NEVER);
    int epoll = epoll_create1(EPOLL_CLOEXEC), fd = dlock_poll_fd(lk, &err), life[2];
    struct epoll_event ev = {.events = EPOLLIN};
    bool got;
    MUST(fd >= 0 && dlock_poll_fd(lk, &err) == fd);
    MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev) == 0);
    CODE(dlock_start_acquire(lk, &err), 0);
    turns(lk, epoll, 5 * DLOCK_SEC, DLOCK_REPORT_ACQUIRED, &got);
    MUST(got && dlock_poll_fd(lk, &err) == fd);
    /* It keeps the lock, and does not spin. */
    int n = turns(lk, epoll, 5 * DLOCK_SEC / 2, DLOCK_REPORT_NONE, &got);
    if (n > 100)
        FAIL("%d wake-ups in 2.5 s", n);
    CODE(dlock_keep(lk, 0, &err), 0);
    MUST(pipe(life) == 0);
    pid_t pid = fork();
    if (pid == 0) { /* it keeps the copies until the parent is done */
        char c;
        close(life[1]);
        _exit(read(life[0], &c, 1) == 0 ? 0 : 1);
    }
    close(life[0]);
    MUST(pid > 0);
    n = stop ? cut(lk, epoll, stop) : 0;
    n += turns(lk, epoll, 2 * DLOCK_SEC, DLOCK_REPORT_NONE, &got);
    if (n > 200)
        FAIL("%d wake-ups in 2 s after a new connection", n);
    CODE(dlock_keep(lk, 0, &err), 0);
    CODE(dlock_start_release(lk, dlock_now() + 5 * DLOCK_SEC, &err), 0);
    turns(lk, epoll, 5 * DLOCK_SEC, DLOCK_REPORT_RELEASED, &got);
    MUST(got);
    n = turns(lk, epoll, DLOCK_SEC / 2, DLOCK_REPORT_NONE, &got);
    if (n > 20)
        FAIL("%d wake-ups of an idle handle", n);
    close(life[1]);
    MUST(waitpid(pid, NULL, 0) == pid);
    close(epoll);
    dlock_close(lk);
}

/* A caller with room for no descriptor is woken often enough to hold the lock beyond its ttl. */
static void no_room(const char *uri)
{
    dlock *lk = open_lock(uri, BRIEF_TTL, 5 * DLOCK_SEC);
    int64_t until = dlock_now() + 5 * DLOCK_SEC;
    int turns = 0;
    CODE(dlock_start_acquire(lk, &err), 0);
    while (dlock_now() < until) {
        const struct dlock_report *r = dlock_process(lk, NULL, 0);
        int64_t wake_at, now = dlock_now();
        if (r && r->type == DLOCK_REPORT_ACQUIRED) {
            until = now + BRIEF_TTL * 3 / 2;
            turns = 0;
        }
        IS(dlock_interest(lk, NULL, 0, &wake_at), 0);
        int64_t left = wake_at < until ? wake_at - now : until - now;
        if (!r && left > 0)
            poll(NULL, 0, (int)(left / DLOCK_MSEC) + 1);
        turns++;
    }
    IS(dlock_state(lk), DLOCK_STATE_HELD);
    MUST(turns < 1000);
    CODE(dlock_release(lk, 5 * DLOCK_SEC, &err), 0);
    dlock_close(lk);
}

/* A loop that does as it is told makes few tries; and what cannot pass is not tried again. */
static void advice(const char *dead)
{
    dlock *lk = open_lock(dead, 3 * DLOCK_SEC, DLOCK_NEVER);
    int64_t end = dlock_now() + 2 * DLOCK_SEC;
    int tries = 0;
    while (dlock_now() < end) {
        const struct dlock_report *r;
        int64_t wake_at, from = dlock_now();
        CODE(dlock_start_acquire(lk, &err), 0);
        while (!(r = dlock_process(lk, NULL, 0)) || r->type != DLOCK_REPORT_FAILED) {
            struct pollfd pfd[DLOCK_POLL_MAX];
            int n = dlock_interest(lk, pfd, DLOCK_POLL_MAX, &wake_at);
            if (!r && (r = dlock_process(lk, pfd, poll(pfd, (nfds_t)n, 10) > 0 ? n : 0)) &&
                r->type == DLOCK_REPORT_FAILED)
                break;
        }
        tries++;
        MUST(r->retry_at > from && r->retry_at < dlock_now() + 2 * DLOCK_SEC);
        int64_t left = r->retry_at - dlock_now();
        struct timespec t = {left / DLOCK_SEC, left % DLOCK_SEC};
        if (left > 0)
            nanosleep(&t, NULL);
    }
    if (tries > 25)
        FAIL("%d tries in 2 s", tries);
    dlock_close(lk);
}

int main(int argc, char **argv)
{
    MUST(argc >= 2);
    if (strcmp(argv[1], "-d") == 0) {
        advice(argv[2]);
        return 0;
    }
    canceled(argv[1]);
    no_room(argv[1]);
    one_descriptor(argv[1], argc > 2 ? argv[2] : NULL);
    return 0;
}
