/* wire/conn.c - see wire/conn.h. */
#include "conn.h"

#include "calls.h"
#include "util.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

struct request;

struct zk_conn {
    zhandle_t *zh;
    unsigned serial;
    int wake; /* eventfd */

    struct zk_calls calls;

    pthread_mutex_t lock; /* for all below */
    struct zk_msg *first, **last;
    struct request *pending;
};

/* What a completion needs to know; freed by it, or with the session, since not all are called at its end. */
struct request {
    struct request *next, **at; /* among its session's */
    struct zk_conn *conn;
    int tag;
    unsigned serial;
};

/* -------------------------------------------------------------------- mailbox */

void zk_msg_free(struct zk_msg *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->nnames; i++)
        free(m->names[i]);
    free(m->names);
    free(m->data);
    free(m);
}

static struct zk_msg *msg_new(enum zk_what what)
{
    struct zk_msg *m = calloc(1, sizeof *m);
    if (!m)
        abort(); /* what is lost here would be waited for until the lease ends */
    m->what = what;
    return m;
}

static void msg_data(struct zk_msg *m, const char *data, int len)
{
    if (!data || len < 0)
        return;
    m->data = malloc((size_t)len + 1);
    if (!m->data)
        abort();
    memcpy(m->data, data, (size_t)len);
    m->data[len] = '\0';
    m->len = len;
}

static void post(struct zk_conn *c, struct zk_msg *m)
{
    const uint64_t one = 1;
    pthread_mutex_lock(&c->lock);
    *c->last = m;
    c->last = &m->next;
    pthread_mutex_unlock(&c->lock);
    while (write(c->wake, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

struct zk_msg *zk_conn_next(struct zk_conn *c)
{
    uint64_t n;
    pthread_mutex_lock(&c->lock);
    struct zk_msg *m = c->first;
    if (m) {
        c->first = m->next;
        if (!c->first)
            c->last = &c->first;
        m->next = NULL;
    } else {
        /* Under the lock: who posts next makes it readable again. */
        while (read(c->wake, &n, sizeof n) < 0 && errno == EINTR)
            ;
    }
    pthread_mutex_unlock(&c->lock);
    return m;
}

int zk_conn_fd(const struct zk_conn *c)
{
    return c->wake;
}

/* A server that the library could not connect to, or understand. */
static void on_trouble(struct zk_calls *calls, int err, const struct sockaddr_storage *addr)
{
    struct zk_conn *c = (struct zk_conn *)((char *)calls - offsetof(struct zk_conn, calls));
    struct zk_msg *m = msg_new(ZK_TROUBLE);
    m->rc = err;
    msg_data(m, (const char *)addr, sizeof *addr);
    post(c, m);
}

bool zk_conn_cut(struct zk_conn *c)
{
    return zk_calls_cut(&c->calls);
}

/* ------------------------------------------------------------------ callbacks */

static void on_session(zhandle_t *zh, int type, int state, const char *path, void *ctx)
{
    struct zk_conn *c = ctx;
    (void)zh;
    (void)path;
    if (type != ZOO_SESSION_EVENT)
        return;
    struct zk_msg *m = msg_new(ZK_STATE);
    m->state = state;
    post(c, m);
}

static void forget(struct request *r)
{
    pthread_mutex_t *lock = &r->conn->lock;
    pthread_mutex_lock(lock);
    *r->at = r->next;
    if (r->next)
        r->next->at = r->at;
    pthread_mutex_unlock(lock);
    free(r);
}

static struct zk_msg *answer(const void *data, int rc, struct zk_conn **c)
{
    struct request *r = (struct request *)data;
    struct zk_msg *m = msg_new(ZK_ANSWER);
    m->tag = r->tag;
    m->serial = r->serial;
    m->rc = rc;
    *c = r->conn;
    forget(r);
    return m;
}

static void on_void(int rc, const void *data)
{
    struct zk_conn *c;
    struct zk_msg *m = answer(data, rc, &c);
    post(c, m);
}

static void on_string(int rc, const char *value, const void *data)
{
    struct zk_conn *c;
    struct zk_msg *m = answer(data, rc, &c);
    if (rc == ZOK && value)
        msg_data(m, value, (int)strlen(value));
    post(c, m);
}

static void on_created(int rc, const char *value, const struct Stat *stat, const void *data)
{
    struct zk_conn *c;
    struct zk_msg *m = answer(data, rc, &c);
    if (rc == ZOK && value)
        msg_data(m, value, (int)strlen(value));
    if (rc == ZOK && stat)
        m->stat = *stat;
    post(c, m);
}

static void on_stat(int rc, const struct Stat *stat, const void *data)
{
    struct zk_conn *c;
    struct zk_msg *m = answer(data, rc, &c);
    if (rc == ZOK && stat)
        m->stat = *stat;
    post(c, m);
}

static void on_data(int rc, const char *value, int len, const struct Stat *stat, const void *data)
{
    struct zk_conn *c;
    struct zk_msg *m = answer(data, rc, &c);
    if (rc == ZOK)
        msg_data(m, len > 0 ? value : "", len > 0 ? len : 0);
    if (rc == ZOK && stat)
        m->stat = *stat;
    post(c, m);
}

static void on_strings(int rc, const struct String_vector *v, const void *data)
{
    struct zk_conn *c;
    struct zk_msg *m = answer(data, rc, &c);
    if (rc == ZOK && v && v->count > 0) {
        m->names = calloc((size_t)v->count, sizeof *m->names);
        for (int i = 0; m->names && i < v->count; i++)
            if (v->data[i] && (m->names[m->nnames] = strdup(v->data[i])))
                m->nnames++;
        if (m->nnames < v->count)
            abort(); /* a list without some of its names would grant the lock */
    }
    post(c, m);
}

/* The context is the serial of the request that has set the watch. */
static void on_watch(zhandle_t *zh, int type, int state, const char *path, void *ctx)
{
    (void)state;
    (void)path;
    if (type == ZOO_SESSION_EVENT) /* told to every watcher; it stays armed */
        return;
    struct zk_msg *m = msg_new(ZK_WATCH);
    m->serial = (unsigned)(uintptr_t)ctx;
    m->event = type;
    post((struct zk_conn *)zoo_get_context(zh), m);
}

static void no_log(const char *line)
{
    (void)line;
}

/* ------------------------------------------------------------------- requests */

static struct request *request(struct zk_conn *c, int tag)
{
    struct request *r = calloc(1, sizeof *r);
    if (!r)
        abort();
    if (++c->serial == 0)
        c->serial = 1;
    r->conn = c;
    r->tag = tag;
    r->serial = c->serial;
    pthread_mutex_lock(&c->lock);
    r->next = c->pending;
    r->at = &c->pending;
    if (r->next)
        r->next->at = &r->next;
    c->pending = r;
    pthread_mutex_unlock(&c->lock);
    return r;
}

/* rc: the library's answer to the sending; serial: since r may be gone already. */
static unsigned sent(struct zk_conn *c, struct request *r, int rc, unsigned serial)
{
    if (rc == ZOK)
        return serial;
    struct zk_msg *m = answer(r, rc, &c);
    post(c, m);
    return serial;
}

unsigned zk_conn_create(struct zk_conn *c, int tag, const char *path, const char *data,
                        const struct ACL_vector *acl, int flags)
{
    struct request *r = request(c, tag);
    unsigned serial = r->serial;
    int len = data ? (int)strlen(data) : 0;
    return sent(c, r, zoo_acreate2(c->zh, path, data ? data : "", len, acl, flags, on_created, r),
                serial);
}

unsigned zk_conn_children(struct zk_conn *c, int tag, const char *path)
{
    struct request *r = request(c, tag);
    unsigned serial = r->serial;
    return sent(c, r, zoo_aget_children(c->zh, path, 0, on_strings, r), serial);
}

unsigned zk_conn_get(struct zk_conn *c, int tag, const char *path, bool watch)
{
    struct request *r = request(c, tag);
    unsigned serial = r->serial;
    void *ctx = (void *)(uintptr_t)serial;
    return sent(c, r, zoo_awget(c->zh, path, watch ? on_watch : NULL, ctx, on_data, r), serial);
}

unsigned zk_conn_set(struct zk_conn *c, int tag, const char *path, const char *data)
{
    struct request *r = request(c, tag);
    unsigned serial = r->serial;
    return sent(c, r, zoo_aset(c->zh, path, data, (int)strlen(data), -1, on_stat, r), serial);
}

unsigned zk_conn_delete(struct zk_conn *c, int tag, const char *path)
{
    struct request *r = request(c, tag);
    unsigned serial = r->serial;
    return sent(c, r, zoo_adelete(c->zh, path, -1, on_void, r), serial);
}

unsigned zk_conn_sync(struct zk_conn *c, int tag, const char *path)
{
    struct request *r = request(c, tag);
    unsigned serial = r->serial;
    return sent(c, r, zoo_async(c->zh, path, on_string, r), serial);
}

unsigned zk_conn_auth(struct zk_conn *c, int tag, const char *scheme, const char *cert)
{
    struct request *r = request(c, tag);
    unsigned serial = r->serial;
    return sent(c, r, zoo_add_auth(c->zh, scheme, cert, (int)strlen(cert), on_void, r), serial);
}

int zk_conn_timeout_ms(struct zk_conn *c)
{
    return zoo_recv_timeout(c->zh);
}

int64_t zk_conn_session(struct zk_conn *c)
{
    return zoo_client_id(c->zh)->client_id;
}

/* -------------------------------------------------------------- begin and end */

static void conn_free(struct zk_conn *c)
{
    struct zk_msg *m;
    while ((m = c->first)) {
        c->first = m->next;
        zk_msg_free(m);
    }
    while (c->pending) {
        struct request *r = c->pending;
        c->pending = r->next;
        free(r);
    }
    close(c->wake);
    pthread_mutex_destroy(&c->lock);
    zk_calls_done(&c->calls);
    free(c);
}

int zk_conn_open(struct zk_conn **out, const char *servers, int timeout_ms, struct dlock_error *err)
{
    struct zk_conn *c = calloc(1, sizeof *c);
    sigset_t all, old;
    if (!c)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    zk_calls_init(&c->calls, on_trouble);
    c->last = &c->first;
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&c->lock, NULL);
    if (c->wake < 0) {
        int e = errno;
        conn_free(c);
        return dlock_fail(err, DLOCK_EOS, e, "eventfd: %s", strerror(e));
    }
    /* We shuffle: the library would seed the random(3) of the program for it. */
    zoo_deterministic_conn_order(1);
    zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
    /* Its threads inherit the mask; signals are for the caller's. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    zk_calls_of(&c->calls, false);
    c->zh = zookeeper_init2(servers, on_session, timeout_ms, NULL, c, ZOO_NO_LOG_CLIENTENV, no_log);
    int e = errno;
    zk_calls_of(NULL, false);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!c->zh) {
        conn_free(c);
        return dlock_fail(err, DLOCK_EOS, e, "libzookeeper: no handle: %s", strerror(e));
    }
    *out = c;
    return 0;
}

/* Who waits for the end, and who brings it about: the last one frees it. */
struct zk_ending {
    struct zk_conn *conn;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool done, left;
};

static void ending_free(struct zk_ending *e)
{
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->cond);
    free(e);
}

static void *end(void *p)
{
    struct zk_ending *e = p;
    zk_calls_of(&e->conn->calls, true);
    zookeeper_close(e->conn->zh);
    zk_calls_of(NULL, false);
    conn_free(e->conn);
    pthread_mutex_lock(&e->lock);
    e->done = true;
    bool left = e->left;
    pthread_cond_signal(&e->cond);
    pthread_mutex_unlock(&e->lock);
    if (left)
        ending_free(e);
    return NULL;
}

static struct zk_ending *ending_new(struct zk_conn *c)
{
    struct zk_ending *e = calloc(1, sizeof *e);
    pthread_condattr_t attr;
    if (!e)
        return NULL;
    e->conn = c;
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->cond, &attr);
    pthread_condattr_destroy(&attr);
    return e;
}

struct zk_ending *zk_conn_close(struct zk_conn *c)
{
    struct zk_ending *e = c ? ending_new(c) : NULL;
    pthread_t thread;
    sigset_t all, old;
    if (!e)
        return NULL; /* out of memory: its threads stay until the process ends */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&thread, NULL, end, e);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        ending_free(e);
        return NULL;
    }
    pthread_detach(thread);
    return e;
}

void zk_ending_wait(struct zk_ending *e, int64_t wait)
{
    struct timespec until;
    if (!e)
        return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    wait += (int64_t)until.tv_sec * DLOCK_SEC + until.tv_nsec;
    until = (struct timespec){.tv_sec = wait / DLOCK_SEC, .tv_nsec = wait % DLOCK_SEC};
    pthread_mutex_lock(&e->lock);
    while (!e->done && pthread_cond_timedwait(&e->cond, &e->lock, &until) == 0)
        ;
    bool done = e->done;
    e->left = true;
    pthread_mutex_unlock(&e->lock);
    if (done)
        ending_free(e);
}
