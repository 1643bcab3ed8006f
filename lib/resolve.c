/*
 * resolve.c - names to addresses, without blocking.
 *
 * getaddrinfo(3) has no time-out and cannot be cancelled. So a thread per name looks the name up,
 * and shares only one reference-counted block of memory with the caller: several slow names take no
 * longer than one. The caller drops its reference when the answer is no longer needed, each thread
 * at its end, perhaps minutes later; the last reference frees the block.
 */
#include "uri.h"
#include "util.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Enough for getaddrinfo(3) and the libraries it loads; a stuck thread should not cost 8 MiB. */
#define STACK_SIZE (256 * 1024)

struct lookup {
    struct dlock_resolver *owner;
    char *name, port[8];
    int index;     /* of the host in the URI */
    int code, sys; /* EAI_*, and errno for EAI_SYSTEM */
    struct addrinfo *found;
};

struct dlock_resolver {
    pthread_mutex_t mutex; /* guards refs, pending, fd, and the results of each look-up */
    int refs;              /* the caller and every thread */
    int pending;           /* look-ups not finished */
    int fd;                /* eventfd; -1: not needed, or the caller has dropped it */
    int n;
    struct lookup lookups[];
};

static int ask(const struct lookup *l, int flags, struct addrinfo **found)
{
    /* Not AI_ADDRCONFIG: it hides ::1 and 127.0.0.1 on machines without any address yet. */
    struct addrinfo hints = {
        .ai_flags = AI_NUMERICSERV | flags, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    return getaddrinfo(l->name, l->port, &hints, found);
}

static void free_all(struct dlock_resolver *r)
{
    for (int i = 0; i < r->n; i++) {
        free(r->lookups[i].name);
        if (r->lookups[i].found)
            freeaddrinfo(r->lookups[i].found);
    }
    free(r);
}

static void unref(struct dlock_resolver *r)
{
    pthread_mutex_lock(&r->mutex);
    int left = --r->refs;
    pthread_mutex_unlock(&r->mutex);
    if (left > 0)
        return;
    pthread_mutex_destroy(&r->mutex);
    free_all(r);
}

static void *run(void *arg)
{
    struct lookup *l = arg;
    struct dlock_resolver *r = l->owner;
    struct addrinfo *found = NULL;
    int code = ask(l, 0, &found), sys = code == EAI_SYSTEM ? errno : 0;
    pthread_mutex_lock(&r->mutex);
    l->code = code;
    l->sys = sys;
    l->found = code == 0 ? found : NULL;
    r->pending--;
    /* Under the mutex: the caller may be closing the descriptor right now. */
    if (r->fd >= 0)
        eventfd_write(r->fd, 1);
    pthread_mutex_unlock(&r->mutex);
    unref(r);
    return NULL;
}

static int start_threads(struct dlock_resolver *r, struct dlock_error *err)
{
    pthread_t thread;
    int e = 0;
    r->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->fd < 0)
        return dlock_fail(err, DLOCK_EOS, errno, "cannot look up names: eventfd: %s",
                          strerror(errno));
    /* No thread reports before all are started: the count must not reach 0 in between. */
    pthread_mutex_lock(&r->mutex);
    for (int i = 0; i < r->n; i++) {
        if (r->lookups[i].code != EAI_NONAME)
            continue;
        e = dlock_thread_start(&thread, STACK_SIZE, run, &r->lookups[i]);
        if (e != 0)
            break;
        pthread_detach(thread);
        r->refs++;
        r->pending++;
    }
    pthread_mutex_unlock(&r->mutex);
    return e == 0 ? 0
                  : dlock_fail(err, e == EAGAIN ? DLOCK_ENOMEM : DLOCK_EOS, e,
                               "cannot look up names: no thread: %s", strerror(e));
}

int dlock_resolver_start(struct dlock_resolver **out, const struct dlock_uri *uri,
                         struct dlock_error *err)
{
    size_t n = (size_t)uri->nhosts;
    struct dlock_resolver *r = calloc(1, sizeof(*r) + n * sizeof(r->lookups[0]));
    bool names = false;
    int code = 0;
    if (!r)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    pthread_mutex_init(&r->mutex, NULL);
    r->refs = 1;
    r->fd = -1;
    for (int i = 0; i < uri->nhosts; i++) {
        struct lookup *l = &r->lookups[r->n];
        /* "" and "/dir" are not on the network: a socket's path, or credentials without a host. */
        if (!*uri->hosts[i].host || *uri->hosts[i].host == '/')
            continue;
        r->n++;
        l->owner = r;
        l->index = i;
        l->name = strdup(uri->hosts[i].host);
        snprintf(l->port, sizeof(l->port), "%u", uri->hosts[i].port);
        if (!l->name) {
            code = dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
            break;
        }
        /* Numeric addresses are converted at once. */
        l->code = ask(l, AI_NUMERICHOST, &l->found);
        l->sys = l->code == EAI_SYSTEM ? errno : 0;
        names |= l->code == EAI_NONAME;
    }
    if (code == 0 && names)
        code = start_threads(r, err);
    if (code < 0)
        dlock_resolver_free(r);
    else
        *out = r;
    return code;
}

void dlock_resolver_close_in_child(struct dlock_resolver *r)
{
    if (!r)
        return;
    /*
     * A thread with the mutex at the fork is not here to unlock, and changes nothing. The
     * mutex orders the work of an earlier thread before our reads.
     */
    if (pthread_mutex_trylock(&r->mutex) == 0)
        pthread_mutex_unlock(&r->mutex);
    if (r->fd >= 0)
        close(r->fd);
    free_all(r);
}

int dlock_resolver_fd(const struct dlock_resolver *r)
{
    return r->fd;
}

/*
 * All addresses, host by host in the URI's order; a host without a new address keeps its known
 * addresses. The mutex is held.
 */
static int collect(const struct dlock_resolver *r, struct dlock_peer **peers, int *n,
                   struct dlock_error *err)
{
    const struct lookup *first = &r->lookups[0];
    struct dlock_peer *p;
    size_t found = 0;
    int k = 0;
    for (int i = 0; i < r->n; i++)
        for (const struct addrinfo *a = r->lookups[i].found; a; a = a->ai_next)
            found++;
    if (found == 0 && r->n > 0)
        return dlock_fail(err, first->code == EAI_MEMORY ? DLOCK_ENOMEM : DLOCK_EUNAVAIL,
                          first->sys, "cannot resolve %s: %s", first->name,
                          first->code == EAI_SYSTEM ? strerror(first->sys)
                                                    : gai_strerror(first->code));
    p = calloc(found + (size_t)*n + 1, sizeof(*p)); /* URIs with sockets alone have none */
    if (!p)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    for (int i = 0; i < r->n; i++) {
        const struct lookup *l = &r->lookups[i];
        for (const struct addrinfo *a = l->found; a; a = a->ai_next) {
            if (a->ai_addrlen > sizeof(p[k].addr))
                continue;
            p[k].host = l->index;
            p[k].len = a->ai_addrlen;
            memcpy(&p[k++].addr, a->ai_addr, a->ai_addrlen);
        }
        for (int o = 0; !l->found && o < *n; o++)
            if ((*peers)[o].host == l->index)
                p[k++] = (*peers)[o];
    }
    *peers = p;
    *n = k;
    return 1;
}

int dlock_resolver_result(struct dlock_resolver **r, bool partly, struct dlock_peer **peers, int *n,
                          struct dlock_error *err)
{
    int rc = 0;
    eventfd_t ended;
    pthread_mutex_lock(&(*r)->mutex);
    bool over = (*r)->pending == 0;
    if (!over)
        eventfd_read((*r)->fd, &ended);
    if (over || partly)
        rc = collect(*r, peers, n, err);
    pthread_mutex_unlock(&(*r)->mutex);
    if (!over)
        return rc > 0;
    dlock_resolver_free(*r);
    *r = NULL;
    return rc;
}

void dlock_resolver_free(struct dlock_resolver *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->mutex);
    if (r->fd >= 0)
        close(r->fd);
    r->fd = -1;
    pthread_mutex_unlock(&r->mutex);
    unref(r);
}
