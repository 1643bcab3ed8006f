/* wire/conn.c - see wire/conn.h. */
#include "conn.h"

#include "calls.h"
#include "util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
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

struct zk_conn {
    zhandle_t *zh;
    unsigned serial;
    int wake; /* eventfd */

    pthread_mutex_t lock; /* for all below but calls */
    struct zk_msg *first, **last;
    struct request *pending;
    bool dropped;      /* a message or a request was dropped, and no ZK_DROPPED has said so yet */
    clientid_t client; /* the session, as of its last connection */

    struct zk_calls calls;
};

/*
 * The context of a completion. The completion frees the context; the end of the session frees the
 * contexts of uncalled completions. The answer is allocated ahead: each sent request is answered.
 */
struct request {
    struct request *next, **at; /* in c->pending */
    struct zk_conn *conn;
    struct zk_msg *answer; /* NULL: already answered */
    /* multi: written by the library until the completion */
    zoo_op_result_t results[ZK_OPS_MAX];
    struct Stat stats[ZK_OPS_MAX];
    int nops;
};

/* -------------------------------------------------------------------- mailbox */

void zk_msg_done(struct zk_msg *m)
{
    for (int i = 0; i < m->nnames; i++)
        free(m->names[i]);
    free(m->names);
    free(m->data);
    *m = (struct zk_msg){0};
}

static void wake(struct zk_conn *c)
{
    const uint64_t one = 1;
    while (write(c->wake, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

static void post(struct zk_conn *c, struct zk_msg *m)
{
    pthread_mutex_lock(&c->lock);
    *c->last = m;
    c->last = &m->next;
    pthread_mutex_unlock(&c->lock);
    wake(c);
}

/* No memory for a message or a request: else the caller would wait until the lease ends. */
static void note_dropped(struct zk_conn *c)
{
    pthread_mutex_lock(&c->lock);
    c->dropped = true;
    pthread_mutex_unlock(&c->lock);
    wake(c);
}

/* A message besides answers; NULL: out of memory, and ZK_DROPPED will tell the caller. */
static struct zk_msg *msg_new(struct zk_conn *c, enum zk_what what)
{
    struct zk_msg *m = calloc(1, sizeof(*m));
    if (m)
        m->what = what;
    else
        note_dropped(c);
    return m;
}

static void set_session(struct zk_msg *m, zhandle_t *zh)
{
    m->session = zoo_client_id(zh)->client_id;
    m->timeout_ms = zoo_recv_timeout(zh);
}

bool zk_conn_next(struct zk_conn *c, struct zk_msg *m)
{
    uint64_t n;
    pthread_mutex_lock(&c->lock);
    struct zk_msg *first = c->first;
    bool dropped = c->dropped, any = dropped || first;
    c->dropped = false;
    if (dropped) {
        *m = (struct zk_msg){.what = ZK_DROPPED, .state = zoo_state(c->zh)};
        set_session(m, c->zh);
    } else if (first) {
        c->first = first->next;
        if (!c->first)
            c->last = &c->first;
        *m = *first;
        free(first);
    } else {
        /* Under the lock: the next post makes the descriptor readable again. */
        while (read(c->wake, &n, sizeof(n)) < 0 && errno == EINTR)
            ;
    }
    pthread_mutex_unlock(&c->lock);
    return any;
}

/* In a thread of the library: a connect has failed, or the packet guard has rejected a packet. */
static void post_trouble(struct zk_calls *calls, int err, const struct sockaddr_storage *addr)
{
    struct zk_conn *c = (struct zk_conn *)((char *)calls - offsetof(struct zk_conn, calls));
    struct zk_msg *m = msg_new(c, ZK_TROUBLE);
    if (!m)
        return;
    m->rc = err;
    m->addr = *addr;
    post(c, m);
}

bool zk_conn_cut(struct zk_conn *c)
{
    return zk_calls_cut(&c->calls);
}

/* -------------------------------------------------------------------- servers */

const char *zk_addr_text(const struct sockaddr_storage *ss, char buf[ZK_ADDR_TEXT], bool brackets)
{
    const struct sockaddr_in *in4 = (const void *)ss;
    const struct sockaddr_in6 *in6 = (const void *)ss;
    bool six = ss->ss_family == AF_INET6;
    char addr[INET6_ADDRSTRLEN] = "?";
    inet_ntop(ss->ss_family, six ? (const void *)&in6->sin6_addr : (const void *)&in4->sin_addr,
              addr, sizeof(addr));
    snprintf(buf, ZK_ADDR_TEXT, six && brackets ? "[%s]:%u" : "%s:%u", addr,
             ntohs(six ? in6->sin6_port : in4->sin_port));
    return buf;
}

/* "addr:port,addr:port"; malloc'ed. NULL: out of memory. */
static char *servers_text(const struct dlock_peer *peers, int n)
{
    size_t size = (size_t)n * ZK_ADDR_TEXT + 1, used = 0;
    char *out = calloc(1, size), text[ZK_ADDR_TEXT];
    /* The library's own format: the port is behind the last colon, IPv6 or not. */
    for (int i = 0; out && i < n; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", used ? "," : "",
                                 zk_addr_text(&peers[i].addr, text, false));
    return out;
}

/*
 * Not by zoo_set_servers(3) where we have the choice: zoo_set_servers takes two ports of an address
 * for the same server, closes the socket in this thread, while the library's own thread uses the
 * socket, and does not report the end of the connection.
 */
bool zk_conn_aim(struct zk_conn *c, const struct dlock_peer *peers, int n)
{
    if (!ZK_GUARDED) {
        char *text = servers_text(peers, n);
        bool aimed = text && zoo_set_servers(c->zh, text) == ZOK;
        free(text);
        return aimed;
    }
    struct sockaddr_storage *to = calloc((size_t)n, sizeof(*to));
    for (int i = 0; to && i < n; i++)
        to[i] = peers[i].addr;
    if (to)
        zk_calls_aim(&c->calls, to, (size_t)n);
    return to;
}

/* ------------------------------------------------------------------ callbacks */

static void on_session(zhandle_t *zh, int type, int state, const char *path, void *ctx)
{
    struct zk_conn *c = ctx;
    (void)path;
    if (type != ZOO_SESSION_EVENT)
        return;
    if (state == ZOO_CONNECTED_STATE) {
        pthread_mutex_lock(&c->lock);
        c->client = *zoo_client_id(zh);
        pthread_mutex_unlock(&c->lock);
    }
    struct zk_msg *m = msg_new(c, ZK_STATE);
    if (!m)
        return;
    m->state = state;
    set_session(m, zh);
    post(c, m);
}

/* The request's answer, to be filled in and posted; NULL: already answered. */
static struct zk_msg *take_answer(struct request *r, int rc)
{
    pthread_mutex_lock(&r->conn->lock);
    struct zk_msg *m = r->answer;
    r->answer = NULL;
    pthread_mutex_unlock(&r->conn->lock);
    if (m)
        m->rc = rc;
    return m;
}

/* The end of a completion: m (or NULL) answers the request. */
static void request_done(struct request *r, struct zk_msg *m)
{
    struct zk_conn *c = r->conn;
    if (m)
        post(c, m);
    pthread_mutex_lock(&c->lock);
    *r->at = r->next;
    if (r->next)
        r->next->at = r->at;
    pthread_mutex_unlock(&c->lock);
    free(r->answer);
    free(r);
}

static void answered(const void *ctx, int rc, const struct Stat *stat, const char *data, int len)
{
    struct request *r = (struct request *)ctx;
    struct zk_msg *m = take_answer(r, rc);
    if (m && rc == ZOK && stat)
        m->stat = *stat;
    if (m && rc == ZOK && data) {
        m->data = malloc((size_t)len + 1);
        m->rc = m->data ? ZOK : ZK_NOMEMORY;
    }
    if (m && m->data) {
        memcpy(m->data, data, (size_t)len);
        m->data[len] = '\0';
        m->len = len;
    }
    request_done(r, m);
}

static void on_void(int rc, const void *ctx)
{
    answered(ctx, rc, NULL, NULL, 0);
}

static void on_string(int rc, const char *value, const void *ctx)
{
    (void)value;
    on_void(rc, ctx);
}

static void on_created(int rc, const char *value, const struct Stat *stat, const void *ctx)
{
    answered(ctx, rc, stat, value, value ? (int)strlen(value) : 0);
}

static void on_stat(int rc, const struct Stat *stat, const void *ctx)
{
    answered(ctx, rc, stat, NULL, 0);
}

static void on_data(int rc, const char *value, int len, const struct Stat *stat, const void *ctx)
{
    answered(ctx, rc, stat, len > 0 ? value : "", len > 0 ? len : 0);
}

static void on_strings(int rc, const struct String_vector *v, const void *data)
{
    struct request *r = (struct request *)data;
    struct zk_msg *m = take_answer(r, rc);
    bool any = m && rc == ZOK && v && v->count > 0;
    if (any)
        m->names = calloc((size_t)v->count, sizeof(*m->names));
    while (any && m->names && m->nnames < v->count) {
        const char *name = v->data[m->nnames];
        if (!name || !(m->names[m->nnames] = strdup(name)))
            break;
        m->nnames++;
    }
    /* All or none: a list without some of its names would grant the lock. */
    if (any && m->nnames < v->count)
        m->rc = ZK_NOMEMORY;
    request_done(r, m);
}

/*
 * The answer has the code of the refused operation. Operations in front of the refused operation
 * have no code of their own, operations behind have ZRUNTIMEINCONSISTENCY.
 */
static void on_multi(int rc, const void *data)
{
    struct request *r = (struct request *)data;
    struct zk_msg *m = take_answer(r, rc);
    for (int i = r->nops; m && i-- > 0;) {
        if (r->results[i].err != ZOK && (r->results[i].err != ZRUNTIMEINCONSISTENCY || rc == ZOK)) {
            m->failed = i;
            m->rc = r->results[i].err;
        }
        if (r->stats[i].mtime != 0)
            m->stat = r->stats[i];
    }
    request_done(r, m);
}

/* The context is the serial of the request for the watch. */
static void on_watch(zhandle_t *zh, int type, int state, const char *path, void *ctx)
{
    struct zk_conn *c = (struct zk_conn *)zoo_get_context(zh);
    (void)state;
    (void)path;
    if (type == ZOO_SESSION_EVENT) /* goes to every watcher; the watch stays set */
        return;
    struct zk_msg *m = msg_new(c, ZK_WATCH);
    if (!m)
        return;
    m->serial = (unsigned)(uintptr_t)ctx;
    m->event = type;
    post(c, m);
}

static void no_log(const char *line)
{
    (void)line;
}

/* ------------------------------------------------------------------- requests */

/*
 * When the session has ended, zoo_amulti(3) frees the path of a wrong operation [libzookeeper 3.8].
 * So it is not called then. The session may also end meanwhile, so the paths are copies, which a
 * failed zoo_amulti may keep.
 */
static int send_multi(zhandle_t *zh, const struct zk_request *q, struct request *r)
{
    zoo_op_t ops[ZK_OPS_MAX];
    char *paths[ZK_OPS_MAX];
    int n = 0, rc = is_unrecoverable(zh);
    while (rc == ZOK && n < q->nops && (paths[n] = strdup(q->ops[n].path)))
        n++;
    if (rc != ZOK || n < q->nops) {
        while (n > 0)
            free(paths[--n]);
        return rc != ZOK ? rc : ZMARSHALLINGERROR; /* out of memory */
    }
    for (int i = 0; i < q->nops; i++) {
        const struct zk_request *o = &q->ops[i];
        const char *data = o->data ? o->data : "";
        int len = (int)strlen(data);
        if (o->call == ZK_CREATE)
            zoo_create_op_init(&ops[i], paths[i], data, len, o->acl, ZOO_PERSISTENT, NULL, 0);
        else if (o->call == ZK_SET)
            zoo_set_op_init(&ops[i], paths[i], data, len, o->version, &r->stats[i]);
        else
            zoo_delete_op_init(&ops[i], paths[i], o->version);
    }
    r->nops = q->nops;
    rc = zoo_amulti(zh, q->nops, ops, r->results, on_multi, r);
    while (rc == ZOK && n > 0)
        free(paths[--n]);
    return rc;
}

/* Returns the library's code. After ZOK r may already be freed. */
static int send_request(zhandle_t *zh, const struct zk_request *q, struct request *r,
                        unsigned serial)
{
    const char *data = q->data ? q->data : "";
    int len = (int)strlen(data);
    switch (q->call) {
    case ZK_AUTH:
        return zoo_add_auth(zh, "digest", data, len, on_void, r);
    case ZK_CREATE:
        return zoo_acreate2(zh, q->path, data, len, q->acl, q->flags, on_created, r);
    case ZK_CHILDREN:
        return zoo_aget_children(zh, q->path, 0, on_strings, r);
    case ZK_GET:
        return zoo_aget(zh, q->path, 0, on_data, r);
    case ZK_GET_WATCHED: /* an exists watch on a missing node would stay on the server */
        return zoo_awget(zh, q->path, on_watch, (void *)(uintptr_t)serial, on_data, r);
    case ZK_SET:
        return zoo_aset(zh, q->path, data, len, q->version, on_stat, r);
    case ZK_DELETE:
        return zoo_adelete(zh, q->path, q->version, on_void, r);
    case ZK_SYNC:
        return zoo_async(zh, q->path, on_string, r);
    case ZK_MULTI:
        return send_multi(zh, q, r);
    }
    return ZBADARGUMENTS;
}

unsigned zk_conn_ask(struct zk_conn *c, const struct zk_request *q)
{
    if (++c->serial == 0)
        c->serial = 1;
    unsigned serial = c->serial;
    struct request *r = calloc(1, sizeof(*r));
    struct zk_msg *m = calloc(1, sizeof(*m));
    if (!r || !m) {
        free(r);
        free(m);
        note_dropped(c);
        return serial;
    }
    *m =
        (struct zk_msg){.what = ZK_ANSWER, .answered = q->answered, .serial = serial, .failed = -1};
    *r = (struct request){.conn = c, .answer = m};
    pthread_mutex_lock(&c->lock);
    r->next = c->pending;
    r->at = &c->pending;
    if (r->next)
        r->next->at = &r->next;
    c->pending = r;
    pthread_mutex_unlock(&c->lock);
    int rc = send_request(c->zh, q, r, serial);
    if (rc == ZMARSHALLINGERROR) {
        /* No memory. The library may already have queued the completion, which needs r. */
        m = take_answer(r, ZK_NOMEMORY);
        if (m)
            post(c, m);
    } else if (rc != ZOK) {
        request_done(r, take_answer(r, rc));
    }
    return serial;
}

/* -------------------------------------------------------------- begin and end */

static void conn_free(struct zk_conn *c)
{
    struct zk_msg *m;
    struct request *r;
    while ((m = c->first)) {
        c->first = m->next;
        zk_msg_done(m);
        free(m);
    }
    while ((r = c->pending)) {
        c->pending = r->next;
        free(r->answer);
        free(r);
    }
    if (c->wake >= 0)
        close(c->wake);
    pthread_mutex_destroy(&c->lock);
    zk_calls_done(&c->calls);
    free(c);
}

/* All of a connection but the library's handle; NULL: err. */
static struct zk_conn *conn_new(struct dlock_error *err)
{
    struct zk_conn *c = malloc(sizeof(*c));
    if (!c) {
        dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
        return NULL;
    }
    /* Few sessions use more than the begin of the ring: the kernel need not give the memory. */
    memset(c, 0, offsetof(struct zk_conn, calls.frame.asked));
    zk_calls_init(&c->calls, post_trouble);
    pthread_mutex_init(&c->lock, NULL);
    c->last = &c->first;
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->wake >= 0)
        return c;
    int sys = errno;
    dlock_fail(err, DLOCK_EOS, sys, "eventfd: %s", strerror(sys));
    conn_free(c);
    return NULL;
}

int zk_conn_open(struct zk_conn **conn, const struct dlock_peer *peers, int n, int timeout_ms,
                 struct dlock_error *err)
{
    struct zk_conn *old = *conn, *c = conn_new(err);
    char *servers = c ? servers_text(peers, n) : NULL;
    clientid_t client;
    sigset_t all, set;
    int e = ENOMEM;
    if (!c)
        return err->code;
    if (old) {
        c->calls.hurry = 0;
        pthread_mutex_lock(&old->lock);
        client = old->client;
        pthread_mutex_unlock(&old->lock);
    }
    /* We shuffle: for shuffling, the library would seed the program's random(3). */
    zoo_deterministic_conn_order(1);
    zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
    /* The library's threads inherit the mask; signals are for the caller's threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &set);
    if (servers)
        e = zk_calls_make_threads(&c->calls);
    zk_calls_of(&c->calls, false);
    if (servers && e == 0) {
        c->zh = zookeeper_init2(servers, on_session, timeout_ms, old ? &client : NULL, c,
                                ZOO_NO_LOG_CLIENTENV, no_log);
        e = errno;
    }
    zk_calls_of(NULL, false);
    zk_calls_dismiss_threads(&c->calls);
    pthread_sigmask(SIG_SETMASK, &set, NULL);
    explicit_bzero(&client, sizeof(client));
    free(servers);
    if (!c->zh) {
        conn_free(c);
        return dlock_fail(err, e == ENOMEM ? DLOCK_ENOMEM : DLOCK_EOS, e,
                          "libzookeeper: no handle: %s", strerror(e));
    }
    if (old) {
        /*
         * The old handle may just have got a connection, by which it would end the session, which
         * the new handle owns now.
         */
        zk_calls_mute(&old->calls);
        zk_conn_close(old, 0);
    }
    *conn = c;
    return c->wake;
}

static void *end(void *p)
{
    struct zk_conn *c = p;
    zk_calls_of(&c->calls, true);
    zookeeper_close(c->zh);
    zk_calls_of(NULL, false);
    conn_free(c);
    return NULL;
}

void zk_conn_close(struct zk_conn *c, int64_t wait)
{
    const struct timespec pause = {.tv_nsec = DLOCK_MSEC};
    pthread_t thread;
    if (ZK_GUARDED || dlock_thread_start(&thread, 0, end, c) != 0) {
        end(c);
        return;
    }
    for (; pthread_tryjoin_np(thread, NULL) != 0; wait -= DLOCK_MSEC) {
        if (wait <= 0) {
            pthread_detach(thread);
            return;
        }
        nanosleep(&pause, NULL);
    }
}

void zk_conn_close_in_child(struct zk_conn *c)
{
    zk_calls_close_in_child(&c->calls);
    close(c->wake);
}
