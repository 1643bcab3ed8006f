/*
 * sink.c - whole lines to a descriptor or a file, for a writer that must never wait.
 *
 * The reader of a pipe, a socket or a terminal may be slow. The caller's O_NONBLOCK stays as it is:
 * other programs share the flag. So a pipe or a terminal is opened once more through /proc, for an
 * O_NONBLOCK of our own, and a socket has MSG_DONTWAIT. Where a pipe cannot be opened (root's pipe
 * after su(1)), a line is written when poll(2) reports room, which another writer could take in
 * between.
 *
 * A file always has room, but its disk may be slow: a thread makes the writes that may wait.
 */
#include "sink.h"

#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STACK_BYTES (64 << 10)

enum sink_kind { SINK_STREAM, SINK_SOCKET, SINK_FILE };

struct sink {
    int fd;
    enum sink_kind kind;
    bool nonblock; /* a write never waits for a reader */
    bool threaded;
    bool cut; /* the file ends amid a line of ours; only the writer uses this field */
    pthread_t thread;
    pthread_mutex_t lock; /* of all fields below */
    pthread_cond_t changed;
    bool closed;   /* the reader has gone for good */
    bool stopping; /* the thread must end */
    _Atomic unsigned long dropped;
    size_t n;
    char kept[2 * SINK_LINE]; /* whole lines; a part of the first may be written already */
};

/* -------------------------------------------------------------- open --- */

/* O_NONBLOCK: a FIFO without a reader is an error, and no reason to wait. */
static int open_sink(const char *path, struct dlock_error *err)
{
    const int flags = O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    int fd = open(path, flags);
    /* With O_CREAT the kernel may refuse another user's file in /tmp (fs.protected_regular). */
    if (fd < 0 && errno == ENOENT)
        fd = open(path, flags | O_CREAT, 0666);
    if (fd >= 0)
        return fd;
    int sys = errno;
    struct stat st;
    bool fifo = sys == ENXIO && stat(path, &st) == 0 && S_ISFIFO(st.st_mode);
    return dlock_fail(err, sys == EACCES || sys == EPERM ? DLOCK_EPERM : DLOCK_ECREATE, sys,
                      "cannot open '%s' for --events: %s", path,
                      fifo ? "no process has this FIFO open for reading" : strerror(sys));
}

/* Not a pty's master: opening /dev/ptmx again makes a new pty. */
int sink_reopen(int fd)
{
    char path[40], slave[40];
    struct stat st;
    if (fstat(fd, &st) != 0)
        return -1;
    if (!S_ISFIFO(st.st_mode) && (!isatty(fd) || ptsname_r(fd, slave, sizeof(slave)) == 0))
        return -1;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

/*
 * The number stays taken until the exec: else the lock's descriptor, which a command inherits,
 * could get the number. Descriptors 0 to 2 stay open for the command, even if the events go there.
 */
static int take_fd(int fd, struct dlock_error *err)
{
    int own;
    /* A close-on-exec descriptor is our own: the caller cannot have passed it. */
    if (fcntl(fd, F_GETFD) != 0)
        return dlock_fail(err, DLOCK_EUSAGE, EBADF, "option --events: descriptor %d is not open",
                          fd);
    int flags = fcntl(fd, F_GETFL) & O_ACCMODE;
    if (flags != O_WRONLY && flags != O_RDWR)
        return dlock_fail(err, DLOCK_EUSAGE, EBADF,
                          "option --events: descriptor %d is not open for writing", fd);
    own = sink_reopen(fd);
    if (fd > 2)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (own < 0)
        own = fd > 2 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0)
        return dlock_fail(err, DLOCK_EOS, errno, "option --events: cannot use descriptor %d: %s",
                          fd, strerror(errno));
    return own;
}

int sink_open(struct sink **out, const char *where, struct dlock_error *err)
{
    bool number = *where && where[strspn(where, "0123456789")] == '\0';
    pthread_condattr_t attr;
    struct sink *s;
    struct stat st;
    if (number && strlen(where) > 9)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "option --events: \"%.64s\" is not a descriptor number", where);
    s = malloc(sizeof(*s));
    if (!s)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    memset(s, 0, offsetof(struct sink, kept));
    int fd = number ? take_fd(atoi(where), err) : open_sink(where, err);
    if (fd < 0) {
        free(s);
        return fd;
    }
    s->fd = fd;
    if (fstat(fd, &st) != 0)
        s->kind = SINK_STREAM;
    else if (S_ISSOCK(st.st_mode))
        s->kind = SINK_SOCKET;
    else
        s->kind = S_ISREG(st.st_mode) || S_ISBLK(st.st_mode) ? SINK_FILE : SINK_STREAM;
    s->nonblock = s->kind != SINK_STREAM || fcntl(fd, F_GETFL) & O_NONBLOCK;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->changed, &attr);
    pthread_condattr_destroy(&attr);
    *out = s;
    return 0;
}

int sink_fd(const struct sink *s)
{
    return s->fd;
}

/* ------------------------------------------------------------- write --- */

/* Remove the pending signal of a failed write: it would end the program that we execute (-F). */
static void take_back_sigpipe(void)
{
    int sys = errno;
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGPIPE);
    sigtimedwait(&one, NULL, &(struct timespec){0});
    errno = sys;
}

static ssize_t put(const struct sink *s, const char *bytes, size_t len)
{
    if (s->kind == SINK_SOCKET)
        return send(s->fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL);
    ssize_t n = write(s->fd, bytes, len);
    if (n < 0 && errno == EPIPE)
        take_back_sigpipe();
    return n;
}

/*
 * Returns the number of bytes written, or dropped (*lost). 0: try later. -1: the reader has gone.
 *
 * A nearly full disk would take a part of a line: so ask for the room first. Where the file system
 * cannot say, or another program takes the room, half a line may stay in the file; then '\n' goes
 * before the next line. Truncating the file could remove what another program has appended.
 */
static ssize_t write_line(struct sink *s, const char *line, size_t len, bool *lost)
{
    struct stat st;
    *lost = s->kind == SINK_FILE && fstat(s->fd, &st) == 0 &&
            fallocate(s->fd, FALLOC_FL_KEEP_SIZE, st.st_size, (off_t)len + s->cut) != 0 &&
            (errno == ENOSPC || errno == EDQUOT);
    if (s->cut && !*lost) {
        s->cut = put(s, "\n", 1) != 1;
        *lost = s->cut;
    }
    if (*lost)
        return (ssize_t)len;
    ssize_t n = put(s, line, len);
    if (n > 0 && (size_t)n < len && s->kind == SINK_FILE) {
        *lost = s->cut = true;
        return (ssize_t)len;
    }
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)))
        return n > 0 ? n : 0;
    if (n < 0 && (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN || errno == EBADF))
        return -1;
    *lost = true; /* the disk is full */
    return (ssize_t)len;
}

static size_t first_line(const struct sink *s)
{
    const char *end = memchr(s->kept, '\n', s->n);
    return (size_t)(end - s->kept) + 1;
}

/* n, lost: the result of write_line for the first line. */
static void settle(struct sink *s, ssize_t n, bool lost)
{
    if (n < 0) {
        s->closed = true;
        for (size_t i = 0; i < s->n; i++)
            s->dropped += s->kept[i] == '\n';
        s->n = 0;
        return;
    }
    s->dropped += lost;
    s->n -= (size_t)n;
    memmove(s->kept, s->kept + n, s->n);
}

static bool is_ready(const struct sink *s, int64_t until)
{
    struct pollfd p = {.fd = s->fd, .events = POLLOUT};
    return poll(&p, 1, dlock_poll_ms(dlock_now(), until)) == 1;
}

/* Write first, then poll(2): poll takes a pipe of one page for full when a line is in the pipe. */
static void flush_here(struct sink *s, int64_t until)
{
    bool lost;
    while (s->n > 0 && (s->nonblock || is_ready(s, until))) {
        ssize_t n = write_line(s, s->kept, first_line(s), &lost);
        settle(s, n, lost);
        if (n == 0 && (dlock_now() >= until || !is_ready(s, until)))
            return;
    }
}

/* ------------------------------------------------------------ thread --- */

static void *write_all(void *arg)
{
    struct sink *s = arg;
    bool lost;
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        if (s->n == 0) {
            pthread_cond_wait(&s->changed, &s->lock);
            continue;
        }
        size_t len = first_line(s);
        pthread_mutex_unlock(&s->lock);
        /* The first line stays in its place: others only append. */
        ssize_t n = write_line(s, s->kept, len, &lost);
        pthread_mutex_lock(&s->lock);
        settle(s, n, lost);
        pthread_cond_broadcast(&s->changed);
        if (n == 0) { /* interrupted, or another program has set O_NONBLOCK: do not spin */
            pthread_mutex_unlock(&s->lock);
            nanosleep(&(struct timespec){.tv_nsec = 10 * DLOCK_MSEC}, NULL);
            pthread_mutex_lock(&s->lock);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void sink_start_thread(struct sink *s)
{
    if ((s->kind != SINK_FILE && s->nonblock) || s->threaded)
        return;
    sink_flush(s, 0);
    s->threaded = dlock_thread_start(&s->thread, STACK_BYTES, write_all, s) == 0;
}

/* Wait until all lines are written, at most wait_ms. False: lines are still kept. */
static bool wait_for_thread(struct sink *s, int wait_ms)
{
    struct timespec until;
    int rc = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t ns = until.tv_nsec + wait_ms * DLOCK_MSEC;
    until.tv_sec += (time_t)(ns / DLOCK_SEC);
    until.tv_nsec = (long)(ns % DLOCK_SEC);
    pthread_mutex_lock(&s->lock);
    while (s->n > 0 && rc == 0)
        rc = pthread_cond_timedwait(&s->changed, &s->lock, &until);
    bool empty = s->n == 0;
    pthread_mutex_unlock(&s->lock);
    return empty;
}

/* ------------------------------------------------------------- lines --- */

void sink_put(struct sink *s, const char *line, size_t len, bool last)
{
    size_t room = last ? sizeof(s->kept) : sizeof(s->kept) - SINK_LINE;
    pthread_mutex_lock(&s->lock);
    if (s->closed || len > room || s->n > room - len) {
        s->dropped++;
    } else {
        memcpy(s->kept + s->n, line, len);
        s->n += len;
    }
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    if (!s->threaded)
        flush_here(s, 0);
}

void sink_flush(struct sink *s, int wait_ms)
{
    if (s->threaded)
        wait_for_thread(s, wait_ms);
    else
        flush_here(s, dlock_now() + wait_ms * DLOCK_MSEC);
}

int sink_interest(const struct sink *s, struct pollfd *p)
{
    if (s->threaded || s->n == 0)
        return 0;
    *p = (struct pollfd){.fd = s->fd, .events = POLLOUT};
    return 1;
}

unsigned long sink_dropped(const struct sink *s)
{
    return s->dropped;
}

void sink_drop(struct sink *s)
{
    s->dropped++;
}

void sink_close(struct sink *s)
{
    if (!s)
        return;
    if (s->threaded) {
        /* A write may hang as long as the disk: leave *s to the thread until the process ends. */
        if (!wait_for_thread(s, 0))
            return;
        pthread_mutex_lock(&s->lock);
        s->stopping = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    close(s->fd);
    free(s);
}
