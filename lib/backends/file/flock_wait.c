/*
 * flock_wait.c - try to lock, and wait for the lock beside a poll loop, with flock(2) or fcntl(2).
 *
 * A blocking call cannot be polled, so a helper thread makes the call and reports through an
 * eventfd. Cancelling the call needs a signal. The library must not install a handler. It uses
 * the C library's for pthread_cancel, with asynchronous cancellation on around the bare system call
 * and nowhere else: not in the thread's start, where a sanitizer or an allocator may hold a lock.
 * The thread owns no resource there, so nothing can leak.
 *
 * The race: the cancellation may arrive after the kernel has granted the lock and before the thread
 * has reported it. The lock belongs to the open file, not to the thread: the caller joins the
 * thread and closes the descriptor, and so frees a lock without a report.
 *
 * Where no thread can be started (limits, or no libgcc_s, with which glibc unwinds a cancelled
 * thread), the lock is tried again every 10 ms instead.
 */
#include "flock_wait.h"

#include "util.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RETRY_EVERY (10 * DLOCK_MSEC) /* without a thread */
#define JOIN_EVERY (1 * DLOCK_MSEC)   /* while a cancelled thread ends, usually within 0.1 ms */
#define FREE_TRIES 100
/* Enough for a cancelled thread: the signal frame (11 kB with AMX), the unwinder, sanitizers. */
#define STACK_SIZE ((size_t)256 * 1024)

enum phase { STARTING, IN_CALL, NOT_WANTED };

struct flock_wait {
    int fd, op;
    bool ofd;
    int efd;    /* -1: no thread, the lock is tried again and again */
    int result; /* the thread's until joined */
    bool cancelled;
    _Atomic enum phase phase;
    pthread_t thread;
};

int ofd_try(int fd, short type, int64_t start, int64_t len)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};
    if (fcntl(fd, F_OFD_SETLK, &l) == 0)
        return 0;
    /* POSIX lets fcntl(2) say either when the lock is held. */
    return errno == EACCES ? EWOULDBLOCK : errno;
}

static short ofd_type(int op)
{
    return op == LOCK_EX ? F_WRLCK : op == LOCK_SH ? F_RDLCK : F_UNLCK;
}

int flock_try(int fd, int op, bool ofd)
{
    if (ofd)
        return ofd_try(fd, ofd_type(op), 0, 0);
    return flock(fd, op | LOCK_NB) == 0 ? 0 : errno;
}

/* The bare system calls, which are no cancellation points in any C library. */
#ifdef SYS_fcntl64 /* where off_t had 32 bits; struct flock has 64 here (the Makefile's DEFS) */
#define SYS_OFD_WAIT SYS_fcntl64
#else
#define SYS_OFD_WAIT SYS_fcntl
#endif

/* No red zones: they would outlast the cancellation on the stack on which the thread ends. */
#define NOT_ASAN __attribute__((noinline, no_sanitize("address")))

/*
 * The only place where the thread may be cancelled. Afterwards the type is switched back before the
 * state: the signal may arrive late, and glibc 2.36's handler reads only the type, not the state.
 * The thread would end in its last steps, perhaps in the allocator with a lock taken.
 */
NOT_ASAN static int flock_cancellable(int fd, int op, bool ofd)
{
    struct flock all = {.l_type = ofd_type(op), .l_whence = SEEK_SET};
    int old;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    long r = ofd ? syscall(SYS_OFD_WAIT, fd, F_OFD_SETLKW, &all) : syscall(SYS_flock, fd, op);
    int sys = r == 0 ? 0 : errno;
    pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &old);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    return sys;
}

NOT_ASAN static void *wait_main(void *arg)
{
    struct flock_wait *w = arg;
    enum phase expected = STARTING;
    int old, sys;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    /* Cancelled before the call: fd may be a new file by now. */
    if (!atomic_compare_exchange_strong(&w->phase, &expected, IN_CALL))
        return NULL;
    do {
        sys = flock_cancellable(w->fd, w->op, w->ofd);
    } while (sys == EINTR);
    w->result = sys;
    eventfd_write(w->efd, 1);
    return NULL;
}

static bool can_cancel(void)
{
#ifdef __GLIBC__
    /* glibc loads this at the first cancellation, and aborts on failure. Here it may fail. */
    return dlopen("libgcc_s.so.1", RTLD_NOW | RTLD_LOCAL);
#else
    return true;
#endif
}

int flock_wait_start(struct flock_wait **out, int fd, int op, bool ofd)
{
    struct flock_wait *w = malloc(sizeof(*w));
    if (!w)
        return -ENOMEM;
    *w = (struct flock_wait){.fd = fd, .op = op, .ofd = ofd, .efd = -1, .result = ECANCELED};
    if (can_cancel())
        w->efd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->efd >= 0 && dlock_thread_start(&w->thread, STACK_SIZE, wait_main, w) != 0) {
        close(w->efd);
        w->efd = -1;
    }
    *out = w;
    return 0;
}

int flock_wait_interest(const struct flock_wait *w, struct pollfd *pfd, int cap, int64_t now,
                        int64_t *wake_at)
{
    if (w->cancelled)
        *wake_at = dlock_min(*wake_at, now + (w->efd < 0 ? 0 : JOIN_EVERY));
    else if (w->efd < 0)
        *wake_at = dlock_min(*wake_at, now + RETRY_EVERY);
    if (w->efd < 0 || w->cancelled || cap < 1)
        return 0;
    *pfd = (struct pollfd){.fd = w->efd, .events = POLLIN};
    return 1;
}

int flock_wait_check(struct flock_wait *w, int *sys)
{
    if (w->efd >= 0) {
        if (pthread_tryjoin_np(w->thread, NULL) != 0)
            return 0;
        close(w->efd);
        w->efd = -1;
        *sys = w->result;
    } else if (w->cancelled) {
        *sys = ECANCELED;
    } else {
        *sys = flock_try(w->fd, w->op, w->ofd);
        if (*sys == EWOULDBLOCK || *sys == EINTR)
            return 0;
    }
    /* Over: a repeated check says the same, and free has no thread to end. */
    w->cancelled = true;
    return 1;
}

void flock_wait_cancel(struct flock_wait *w)
{
    enum phase expected = STARTING;
    /* A thread reads phase before the call. */
    if (w->efd >= 0 && !w->cancelled &&
        !atomic_compare_exchange_strong(&w->phase, &expected, NOT_WANTED))
        pthread_cancel(w->thread);
    w->cancelled = true;
}

void flock_wait_close_in_child(struct flock_wait *w)
{
    if (w && w->efd >= 0)
        close(w->efd);
    free(w);
}

void flock_wait_free(struct flock_wait *w)
{
    const struct timespec pause = {.tv_nsec = JOIN_EVERY};
    int sys;
    if (!w)
        return;
    flock_wait_cancel(w);
    for (int i = 0; !flock_wait_check(w, &sys); i++) {
        if (i == FREE_TRIES) {
            /*
             * The thread is stuck in an uninterruptible request to a dead file server. Leave it
             * behind with the memory and the eventfd, still in use. When the caller closes
             * the lock's descriptor, the kernel keeps the file until the call returns, and then
             * frees the lock.
             */
            pthread_detach(w->thread);
            return;
        }
        nanosleep(&pause, NULL);
    }
    free(w);
}
