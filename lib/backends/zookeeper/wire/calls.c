/* wire/calls.c - see wire/calls.h. */
#include "calls.h"

#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * At its first use in a thread, glibc allocates a module's thread-local memory, and without memory
 * ends the process. It also has some room in each thread from the beginning, which this asks for.
 */
#ifdef __GLIBC__
#define THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))
#else
#define THREAD_LOCAL _Thread_local
#endif

/* The handle of this thread; set where the thread begins. */
static THREAD_LOCAL struct zk_calls *mine;
static THREAD_LOCAL bool leaving; /* in zookeeper_close(3) */

#ifdef ZK_WRAP
#define LONGEST_PAUSE_MS 1000

/* The library's own call, and the call to it, as the linker names them. */
#define WRAPPED(type, call, ...)                                                                   \
    type __real_##call(__VA_ARGS__);                                                               \
    type __wrap_##call(__VA_ARGS__)
WRAPPED(int, pthread_create, pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
WRAPPED(int, getaddrinfo, const char *, const char *, const struct addrinfo *, struct addrinfo **);
WRAPPED(int, socket, int, int, int);
WRAPPED(int, connect, int, const struct sockaddr *, socklen_t);
WRAPPED(int, getsockopt, int, int, int, void *, socklen_t *);
WRAPPED(int, close, int);
WRAPPED(ssize_t, send, int, const void *, size_t, int);
WRAPPED(ssize_t, recv, int, void *, size_t, int);
WRAPPED(ssize_t, read, int, void *, size_t);
WRAPPED(ssize_t, write, int, const void *, size_t);
WRAPPED(int, pipe, int *);
WRAPPED(int, poll, struct pollfd *, nfds_t, int);

/* The library has only to wake a thread: nothing of this fails. */
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
    struct zk_calls *c = mine;
    if (!c)
        return __real_pthread_create(t, attr, fn, arg);
    if (c->started == c->made)
        return EAGAIN;
    struct zk_start *s = &c->start[c->started++];
    s->fn = fn;
    s->arg = arg;
    *t = s->thread;
    sem_post(&s->go);
    return 0;
}

/*
 * The library resolves its servers each time it waits, and asks the kernel for all of this
 * machine's addresses first. We give the library numeric addresses only.
 */
int __wrap_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                       struct addrinfo **found)
{
    struct addrinfo own;
    if (mine && hints) {
        own = *hints;
        own.ai_flags = (own.ai_flags & ~AI_ADDRCONFIG) | AI_NUMERICHOST;
        hints = &own;
    }
    return __real_getaddrinfo(host, port, hints, found);
}

static THREAD_LOCAL struct sockaddr_storage target;

/* The library makes a socket for each connection: the socket must fit the next target. */
int __wrap_socket(int domain, int type, int protocol)
{
    struct zk_calls *c = mine;
    if (!c)
        return __real_socket(domain, type, protocol);
    pthread_mutex_lock(&c->lock);
    c->cut = false;
    zk_frame_begin(&c->frame);
    memset(&target, 0, sizeof(target));
    if (c->nto > 0) {
        target = c->to[c->next++ % c->nto];
        domain = target.ss_family;
    }
    int fd = c->fd = __real_socket(domain, type | SOCK_CLOEXEC, protocol), err = errno;
    pthread_mutex_unlock(&c->lock);
    errno = err;
    return fd;
}

int __wrap_connect(int fd, const struct sockaddr *sa, socklen_t len)
{
    if (!mine)
        return __real_connect(fd, sa, len);
    if (target.ss_family != AF_UNSPEC)
        len =
            target.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    else
        memcpy(&target, sa, len < sizeof(target) ? len : sizeof(target));
    int rc = __real_connect(fd, (const struct sockaddr *)&target, len), err = errno;
    if (rc < 0 && err != EINPROGRESS && err != EWOULDBLOCK)
        mine->trouble(mine, err, &target);
    errno = err;
    return rc;
}

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    struct zk_calls *c = mine;
    int rc = __real_getsockopt(fd, level, name, value, len);
    if (!c)
        return rc;
    pthread_mutex_lock(&c->lock);
    bool cut = c->cut; /* we have shut the connection down ourselves */
    pthread_mutex_unlock(&c->lock);
    int err = !cut && rc == 0 && level == SOL_SOCKET && name == SO_ERROR ? *(int *)value : 0;
    if (err != 0) /* a reset: there was a connection */
        c->trouble(c, err == ECONNRESET || err == EPIPE ? ESHUTDOWN : err, &target);
    return rc;
}

/* By the result of a call: has the server ended the connection before it said anything? */
static bool hung_up(const struct zk_calls *c, ssize_t n, int err)
{
    bool end = n == 0 || (n < 0 && (err == ECONNRESET || err == EPIPE));
    return end && !c->cut && zk_frame_silent(&c->frame);
}

static bool is_socket(struct zk_calls *c, int fd)
{
    pthread_mutex_lock(&c->lock);
    bool ours = fd == c->fd;
    pthread_mutex_unlock(&c->lock);
    return ours;
}

/*
 * Two threads send: the library's, and the thread that closes. The socket does not block, so the
 * lock is held briefly.
 */
ssize_t __wrap_send(int fd, const void *data, size_t len, int flags)
{
    struct zk_calls *c = mine;
    if (!c)
        return __real_send(fd, data, len, flags);
    pthread_mutex_lock(&c->lock);
    bool ours = fd == c->fd;
    bool muted = ours && c->mute;
    ssize_t n = muted ? -1 : __real_send(fd, data, len, flags);
    int err = muted ? EPIPE : errno;
    if (ours && n > 0)
        zk_frame_sent(&c->frame, data, (size_t)n);
    bool trouble = ours && n < 0 && hung_up(c, n, err);
    pthread_mutex_unlock(&c->lock);
    if (trouble)
        c->trouble(c, ESHUTDOWN, &target);
    errno = err;
    return n;
}

/* An impossible packet ends the connection before the library has its last byte. */
ssize_t __wrap_recv(int fd, void *data, size_t len, int flags)
{
    struct zk_calls *c = mine;
    int trouble = 0;
    if (!c)
        return __real_recv(fd, data, len, flags);
    pthread_mutex_lock(&c->lock);
    bool ours = fd == c->fd;
    if (ours && len > zk_frame_room(&c->frame))
        len = zk_frame_room(&c->frame);
    ssize_t n = __real_recv(fd, data, len, flags);
    int err = errno;
    if (ours && n > 0)
        c->hurry = ZK_HURRY;
    if (ours && n > 0 && !zk_frame_received(&c->frame, data, (size_t)n)) {
        trouble = err = c->frame.opened ? EBADMSG : EPROTO;
        n = -1;
    } else if (ours && len > 0 && hung_up(c, n, err)) {
        trouble = ESHUTDOWN;
    }
    pthread_mutex_unlock(&c->lock);
    if (trouble != 0)
        c->trouble(c, trouble, &target);
    errno = err;
    return n;
}

/* The library uses these calls for its pipe and /dev/urandom. A socket would bypass the guard. */
ssize_t __wrap_read(int fd, void *data, size_t len)
{
    return mine && is_socket(mine, fd) ? __wrap_recv(fd, data, len, 0) : __real_read(fd, data, len);
}

ssize_t __wrap_write(int fd, const void *data, size_t len)
{
    return mine && is_socket(mine, fd) ? __wrap_send(fd, data, len, 0)
                                       : __real_write(fd, data, len);
}

int __wrap_pipe(int *fds)
{
    if (!mine)
        return __real_pipe(fds);
    int rc = pipe2(fds, O_CLOEXEC);
    if (rc == 0)
        memcpy(mine->pipe, fds, sizeof(mine->pipe));
    return rc;
}

/*
 * zookeeper_close(3) waits until its last request can be sent, and until the server hangs up: not
 * here. The socket has room for the request, and nothing is read any more.
 *
 * The library waits without a socket, for its pipe alone, only when it pauses. Each time
 * all servers have refused a connection, it pauses for a 60th of the session's time-out: dozens of
 * attempts a second. After a session's time-out only waiters are left. For waiters an attempt every
 * quarter of the time-out is soon enough: a starting server gives each session its whole time-out.
 */
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout)
{
    struct zk_calls *c = mine;
    if (leaving)
        return __real_poll(fds, n, 0);
    if (!c || n != 1 || timeout <= 0)
        return __real_poll(fds, n, timeout);
    pthread_mutex_lock(&c->lock);
    bool hurry = c->hurry > 0;
    c->hurry -= hurry;
    pthread_mutex_unlock(&c->lock);
    if (!hurry && timeout <= LONGEST_PAUSE_MS)
        timeout = timeout < LONGEST_PAUSE_MS / 15 ? timeout * 15 : LONGEST_PAUSE_MS;
    return __real_poll(fds, n, timeout);
}

int __wrap_close(int fd)
{
    struct zk_calls *c = mine;
    if (!c)
        return __real_close(fd);
    pthread_mutex_lock(&c->lock);
    int *known[] = {&c->fd, &c->pipe[0], &c->pipe[1]};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (*known[i] == fd)
            *known[i] = -1;
    int rc = __real_close(fd), err = errno;
    pthread_mutex_unlock(&c->lock);
    errno = err;
    return rc;
}
#endif

void zk_calls_init(struct zk_calls *c,
                   void (*on_trouble)(struct zk_calls *, int err, const struct sockaddr_storage *))
{
    pthread_mutex_init(&c->lock, NULL);
    c->fd = c->pipe[0] = c->pipe[1] = -1;
    c->hurry = ZK_HURRY;
    c->trouble = on_trouble;
}

#ifdef ZK_WRAP
static void *begin(void *p)
{
    struct zk_start *s = p;
    while (sem_wait(&s->go) != 0)
        ;
    if (!s->fn)
        return NULL;
    mine = s->calls;
    return s->fn(s->arg);
}

int zk_calls_make_threads(struct zk_calls *c)
{
    for (; c->made < ZK_THREADS; c->made++) {
        struct zk_start *s = &c->start[c->made];
        *s = (struct zk_start){.calls = c};
        sem_init(&s->go, 0, 0);
        int e = dlock_thread_start(&s->thread, 0, begin, s);
        if (e != 0) {
            sem_destroy(&s->go);
            zk_calls_dismiss_threads(c);
            return e;
        }
    }
    return 0;
}

void zk_calls_dismiss_threads(struct zk_calls *c)
{
    while (c->made > c->started) {
        struct zk_start *s = &c->start[--c->made];
        sem_post(&s->go);
        pthread_join(s->thread, NULL);
    }
}
#else
int zk_calls_make_threads(struct zk_calls *c)
{
    (void)c;
    return 0;
}

void zk_calls_dismiss_threads(struct zk_calls *c)
{
    (void)c;
}
#endif

void zk_calls_close_in_child(struct zk_calls *c)
{
    /* Not under the lock, which a thread of the parent process may hold. */
    const int fds[] = {c->fd, c->pipe[0], c->pipe[1]};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

void zk_calls_done(struct zk_calls *c)
{
    while (c->made > 0)
        sem_destroy(&c->start[--c->made].go);
    pthread_mutex_destroy(&c->lock);
    free(c->to);
}

void zk_calls_of(struct zk_calls *c, bool is_leaving)
{
    mine = c;
    leaving = is_leaving;
}

void zk_calls_aim(struct zk_calls *c, struct sockaddr_storage *to, size_t n)
{
    pthread_mutex_lock(&c->lock);
    struct sockaddr_storage *old = c->to;
    c->to = to;
    c->nto = n;
    c->next = 0;
    pthread_mutex_unlock(&c->lock);
    free(old);
}

void zk_calls_mute(struct zk_calls *c)
{
    pthread_mutex_lock(&c->lock);
    c->mute = true;
    pthread_mutex_unlock(&c->lock);
}

bool zk_calls_cut(struct zk_calls *c)
{
    pthread_mutex_lock(&c->lock);
    bool known = c->cut = c->fd >= 0;
    if (known)
        shutdown(c->fd, SHUT_RDWR);
    pthread_mutex_unlock(&c->lock);
    return known;
}
