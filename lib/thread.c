/* thread.c - the threads of the library. */
#include "util.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of a helper: enough for OpenSSL, Kerberos and LDAP; a stuck thread should not cost 8 MiB. */
#define HELPER_STACK (1024 * 1024)
/* With a sanitizer all is slower, and leaks are reported. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LEAVE_MS 300
/* main() of cli/ goes through the exit handlers for their sake: not beside a thread in OpenSSL. */
static void end_at_once(int status, void *arg)
{
    (void)arg;
    _exit(status);
}
#define BEFORE_DETACH() on_exit(end_at_once, NULL)
#else
#define LEAVE_MS 20
#define BEFORE_DETACH() ((void)0)
#endif

int dlock_thread_start(pthread_t *thread, size_t stack, void *(*run)(void *), void *arg)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int e = pthread_attr_init(&attr);
    if (e != 0)
        return e;
    if (stack > 0)
        pthread_attr_setstacksize(&attr, stack);
    sigfillset(&all);
    e = pthread_sigmask(SIG_SETMASK, &all, &old);
    if (e == 0) {
        e = pthread_create(thread, &attr, run, arg);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    pthread_attr_destroy(&attr);
    return e;
}

int dlock_helper_start(struct dlock_helper *h, void *(*run)(void *), void *arg)
{
    int fds[2];
    struct stat st;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        return -errno;
    h->fd = fds[0];
    h->thread_fd = fds[1];
    h->thread_ino = fstat(fds[1], &st) == 0 ? st.st_ino : 0;
    int e = dlock_thread_start(&h->thread, HELPER_STACK, run, arg);
    if (e != 0) {
        close(fds[0]);
        close(fds[1]);
    }
    return -e;
}

void dlock_helper_close(int fd)
{
    /* A fork of the caller may have copies of both ends: close() alone would tell nothing. */
    shutdown(fd, SHUT_RDWR);
    close(fd);
}

void dlock_helper_join(struct dlock_helper h)
{
    close(h.fd);
    pthread_join(h.thread, NULL);
}

void dlock_helper_leave(struct dlock_helper h)
{
    shutdown(h.fd, SHUT_WR);
    /* Not POLLIN: bytes of the thread may be there, unread. The thread closes its end last. */
    struct pollfd p = {.fd = h.fd, .events = POLLRDHUP};
    if (poll(&p, 1, LEAVE_MS) > 0) {
        pthread_join(h.thread, NULL);
    } else {
        BEFORE_DETACH();
        pthread_detach(h.thread);
    }
    dlock_helper_close(h.fd);
}

void dlock_helper_close_in_child(const struct dlock_helper *h)
{
    struct stat st;
    close(h->fd);
    if (fstat(h->thread_fd, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_ino == h->thread_ino)
        close(h->thread_fd);
}
