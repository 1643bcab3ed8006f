/* zkcalls.c - see zkcalls.h. */
#include "zkcalls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Set where a thread begins. */
static _Thread_local struct zkcalls *mine;
static _Thread_local bool leaving; /* in zookeeper_close(3) */

#ifdef ZK_WRAP
struct start {
    void *(*fn)(void *);
    void *arg;
    struct zkcalls *calls;
};

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __real_socket(int, int, int);
int __real_connect(int, const struct sockaddr *, socklen_t);
int __real_getsockopt(int, int, int, void *, socklen_t *);
int __real_close(int);
int __real_poll(struct pollfd *, nfds_t, int);
int __wrap_poll(struct pollfd *, nfds_t, int);
int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_socket(int, int, int);
int __wrap_connect(int, const struct sockaddr *, socklen_t);
int __wrap_getsockopt(int, int, int, void *, socklen_t *);
int __wrap_close(int);

static void *begin(void *p)
{
    struct start s = *(struct start *)p;
    free(p);
    mine = s.calls;
    return s.fn(s.arg);
}

int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
    struct start *s = mine ? malloc(sizeof *s) : NULL;
    if (!s)
        return __real_pthread_create(t, attr, fn, arg);
    *s = (struct start){fn, arg, mine};
    int rc = __real_pthread_create(t, attr, begin, s);
    if (rc != 0)
        free(s);
    return rc;
}

int __wrap_socket(int domain, int type, int protocol)
{
    struct zkcalls *c = mine;
    if (!c)
        return __real_socket(domain, type, protocol);
    pthread_mutex_lock(&c->lock);
    int fd = c->fd = __real_socket(domain, type | SOCK_CLOEXEC, protocol), err = errno;
    pthread_mutex_unlock(&c->lock);
    errno = err;
    return fd;
}

/* Not connected: who with, and why. */
static void tell_trouble(struct zkcalls *c, const struct sockaddr *sa, int err)
{
    char addr[INET6_ADDRSTRLEN] = "", text[INET6_ADDRSTRLEN + 16];
    unsigned port = 0;
    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)sa;
        inet_ntop(AF_INET, &in->sin_addr, addr, sizeof addr);
        port = ntohs(in->sin_port);
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const void *)sa;
        inet_ntop(AF_INET6, &in->sin6_addr, addr, sizeof addr);
        port = ntohs(in->sin6_port);
    }
    snprintf(text, sizeof text, sa->sa_family == AF_INET6 ? "[%s]:%u" : "%s:%u", addr, port);
    c->trouble(c, err, text);
}

static _Thread_local struct sockaddr_storage target;

int __wrap_connect(int fd, const struct sockaddr *sa, socklen_t len)
{
    int rc = __real_connect(fd, sa, len), err = errno;
    if (mine) {
        memcpy(&target, sa, len < sizeof target ? len : sizeof target);
        if (rc < 0 && err != EINPROGRESS && err != EWOULDBLOCK)
            tell_trouble(mine, sa, err);
    }
    errno = err;
    return rc;
}

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    int rc = __real_getsockopt(fd, level, name, value, len);
    if (mine && rc == 0 && level == SOL_SOCKET && name == SO_ERROR && *(int *)value != 0)
        tell_trouble(mine, (struct sockaddr *)&target, *(int *)value);
    return rc;
}

/* Once it is sent that the session ends, the library waits for the server to hang up. There is no need to. */
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout)
{
    return __real_poll(fds, n, leaving && n == 1 && fds->events == POLLIN ? 0 : timeout);
}

int __wrap_close(int fd)
{
    struct zkcalls *c = mine;
    if (!c)
        return __real_close(fd);
    pthread_mutex_lock(&c->lock);
    if (c->fd == fd)
        c->fd = -1;
    int rc = __real_close(fd), err = errno;
    pthread_mutex_unlock(&c->lock);
    errno = err;
    return rc;
}
#endif

void zkcalls_init(struct zkcalls *c,
                  void (*on_trouble)(struct zkcalls *, int err, const char *addr))
{
    pthread_mutex_init(&c->lock, NULL);
    c->fd = -1;
    c->trouble = on_trouble;
}

void zkcalls_done(struct zkcalls *c)
{
    pthread_mutex_destroy(&c->lock);
}

void zkcalls_of(struct zkcalls *c, bool at_the_end)
{
    mine = c;
    leaving = at_the_end;
}

bool zkcalls_cut(struct zkcalls *c)
{
    pthread_mutex_lock(&c->lock);
    bool known = c->fd >= 0;
    if (known)
        shutdown(c->fd, SHUT_RDWR);
    pthread_mutex_unlock(&c->lock);
    return known;
}
