/*
 * conn.c - one connection to a Redis server. See conn.h.
 *
 * The life of a connection: an address after the other until one accepts, the TLS handshake, the greeting (AUTH, ROLE)
 * in front of the caller's commands, replies, the close. The replies to the greeting are judged here; the caller sees
 * only its own.
 *
 * Bounds against a peer that does not speak Redis: a reply has at most REDIS_CONN_MAX_REPLY bytes and MAX_ITEMS array
 * entries, and is at most MAX_DEPTH arrays deep.
 */
#include "conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MIN_SHARE (250 * DLOCK_MSEC) /* of the time, for each address */
#define MAX_ITEMS 4096
#define MAX_DEPTH 8 /* hiredis 0.14 has this limit itself, later ones none */

/* -------------------------------------------------------------------- failing */

static void drop_socket(struct redis_conn *c)
{
    if (redis_conn_is_open(c) && c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    if (c->tls)
        tls_end(c->tls, &c->session);
}

/*
 * State RC_FAILED, and error says why, unless it has the reason already. sys: an errno, or 0. Returns error's code. The
 * reader stays: the replies that came before the failure can still be taken.
 */
static int conn_fail(struct redis_conn *c, int code, int sys, const char *text)
{
    drop_socket(c);
    c->state = RC_FAILED;
    if (c->auth_failed || c->tls_failed) /* error has the reason */
        return c->error.code;
    const struct dlock_site at = {.where = c->where, .address = c->address[0] ? c->address : NULL};
    if (sys != 0)
        return dlock_fail_site(&c->error, code, sys, &at, "%s: %s", text, strerror(sys));
    return dlock_fail_site(&c->error, code, 0, &at, "%s", text);
}

/* --------------------------------------------------------------------- reader */

/* hiredis believes the header of an array: "*2000000000" would allocate 16 GB before the first entry came. */
static void *bounded_array(const redisReadTask *task, redis_conn_elements elements)
{
    struct redis_conn *c = task->privdata;
    int depth = 0; /* is bounded because freeReplyObject() recurses */
    for (const redisReadTask *t = task; t; t = t->parent)
        depth++;
    c->out_of_bounds = depth > MAX_DEPTH || elements > MAX_ITEMS;
    return c->out_of_bounds ? NULL : c->create_array(task, elements);
}

static void drop_reader(struct redis_conn *c)
{
    if (c->reader)
        redisReaderFree(c->reader);
    c->reader = NULL;
}

static bool new_reader(struct redis_conn *c)
{
    c->reader = redisReaderCreate();
    if (!c->reader)
        return false;
    c->fn = *c->reader->fn;
    c->create_array = c->fn.createArray;
    c->fn.createArray = bounded_array;
    c->reader->fn = &c->fn;
    c->reader->privdata = c;
    return true;
}

/* hiredis says "out of memory", too, when our bounds refuse an array. It allocates for a text only what has come. */
static int fail_reader(struct redis_conn *c)
{
    char t[192];
    if (c->reader->err == REDIS_ERR_OOM && !c->out_of_bounds)
        return conn_fail(c, DLOCK_ENOMEM, 0, "out of memory");
    snprintf(t, sizeof(t), "the answer is not the Redis protocol: %.127s",
             c->out_of_bounds ? "an array is too large" : c->reader->errstr);
    return conn_fail(c, DLOCK_EPROTO, 0, t);
}

/* -------------------------------------------------------------------- sending */

static bool out_reserve(struct redis_conn *c, size_t more)
{
    size_t size = c->out_size > 0 ? c->out_size : 4096;
    if (c->out_len + more <= c->out_size)
        return true;
    while (size < c->out_len + more)
        size *= 2;
    char *p = malloc(size);
    if (!p)
        return false;
    if (c->out_len > 0)
        memcpy(p, c->out, c->out_len);
    if (c->out) {
        /* The old buffer may hold the password of AUTH; realloc() would leave it in freed memory. */
        explicit_bzero(c->out, c->out_size);
        free(c->out);
    }
    c->out = p;
    c->out_size = size;
    return true;
}

int redis_conn_send(struct redis_conn *c, int tag, int argc, const char **argv, const size_t *len)
{
    char *cmd = NULL;
    long long n = -1; /* hiredis 1.1: long long, int before */

    if (!redis_conn_is_open(c))
        return DLOCK_EUNAVAIL;
    if (c->ntags < REDIS_CONN_TAGS)
        n = redisFormatCommandArgv(&cmd, argc, argv, len);
    if (n < 0 || !out_reserve(c, (size_t)n)) {
        redisFreeCommand(cmd);
        return conn_fail(c, DLOCK_ENOMEM, 0, "out of memory");
    }
    memcpy(c->out + c->out_len, cmd, (size_t)n);
    c->out_len += (size_t)n;
    if (tag == REDIS_CONN_AUTH)
        explicit_bzero(cmd, (size_t)n);
    redisFreeCommand(cmd);
    c->tags[c->ntags++] = (struct redis_conn_tag){.tag = tag};
    return 0;
}

/* All queued bytes are encrypted at once: what TLS has encrypted must be sent. */
static void flush_tls(struct redis_conn *c)
{
    struct dlock_error err;
    int rc = c->tls->table->encrypt(c->session, c->out, c->out_len, &err);
    if (c->out_len > 0)
        explicit_bzero(c->out, c->out_len);
    c->out_len = 0;
    if (rc != 0)
        conn_fail(c, rc, 0, err.msg);
    else if (tls_send(c->tls, c->session, c->fd))
        c->written = true;
}

static bool has_output(const struct redis_conn *c)
{
    return c->out_len > 0 || (c->session && tls_has_output(c->tls, c->session));
}

/* As far as the socket takes it. A broken socket is left to receive(): the server may have sent the reason before. */
static void flush_plain(struct redis_conn *c)
{
    size_t done = 0;
    while (done < c->out_len) {
        ssize_t n = send(c->fd, c->out + done, c->out_len - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (n < 0) {
            done = c->out_len;
            break;
        }
        done += (size_t)n;
        c->written = true;
    }
    memmove(c->out, c->out + done, c->out_len - done);
    explicit_bzero(c->out + c->out_len - done, done);
    c->out_len -= done;
}

void redis_conn_flush(struct redis_conn *c)
{
    if (c->state != RC_UP || !has_output(c))
        return;
    /* The lease counts from before the first byte could have left. */
    int64_t now = c->env->now(c->env->ctx);
    for (int i = 0; i < c->ntags; i++)
        if (c->tags[i].sent == 0)
            c->tags[i].sent = now;
    if (c->session)
        flush_tls(c);
    else
        flush_plain(c);
}

/* ----------------------------------------------------------------- connecting */

/* Is the address one of the hosts in where? */
static bool has_address(const char *where, const char *address)
{
    size_t n = strlen(address);
    for (const char *p = where; (p = strstr(p, address)); p++)
        if ((p == where || strchr("/,", p[-1])) && (p[n] == '\0' || strchr("/,", p[n])))
            return true;
    return false;
}

static void name_peer(struct redis_conn *c, const struct dlock_peer *p)
{
    const void *a = &p->addr;
    const struct sockaddr_in6 *in6 = a;
    const struct sockaddr_in *in = a;
    bool v6 = p->addr.ss_family == AF_INET6;
    char ip[INET6_ADDRSTRLEN] = "?";
    c->address[0] = '\0';
    if (p->addr.ss_family == AF_UNIX) /* where has the path */
        return;
    inet_ntop(p->addr.ss_family, v6 ? (const void *)&in6->sin6_addr : &in->sin_addr, ip,
              sizeof(ip));
    snprintf(c->address, sizeof(c->address), v6 ? "[%s]:%u" : "%s:%u", ip,
             ntohs(v6 ? in6->sin6_port : in->sin_port));
    if (has_address(c->where, c->address))
        c->address[0] = '\0';
}

static void tune_socket(int fd, int family)
{
    static const struct {
        int level, name, value;
    } opts[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},   {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, 15}, {IPPROTO_TCP, TCP_KEEPINTVL, 5},
        {IPPROTO_TCP, TCP_KEEPCNT, 3},
    };
    /* These only help: our own deadlines decide, so a failure does not matter. */
    if (family == AF_UNIX)
        return;
    for (size_t i = 0; i < DLOCK_LEN(opts); i++)
        (void)setsockopt(fd, opts[i].level, opts[i].name, &opts[i].value, sizeof(opts[i].value));
}

/* Try the next address. 0: connecting or connected; negative: none is left, and error is that of the last one. */
static int connect_next(struct redis_conn *c)
{
    int code = DLOCK_EUNAVAIL;
    while (c->tried < c->npeers) {
        const struct dlock_peer *p = &c->peers[(c->good + c->tried) % c->npeers];
        int64_t now = c->env->now(c->env->ctx);
        int left = c->npeers - c->tried;

        name_peer(c, p);
        c->tried++;
        c->fd = socket(p->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (c->fd < 0) {
            code = errno == EAFNOSUPPORT ? DLOCK_EUNAVAIL : DLOCK_EOS;
            conn_fail(c, code, errno, "cannot open a socket");
            continue;
        }
        c->state = RC_CONNECTING;
        tune_socket(c->fd, p->addr.ss_family);
        /* Each address gets an equal share of the time left, so that a silent one does not use up all of it. */
        c->next_at = left == 1 ? c->until : now + dlock_max((c->until - now) / left, MIN_SHARE);
        if (connect(c->fd, (const struct sockaddr *)&p->addr, p->len) == 0 ||
            errno == EINPROGRESS || errno == EINTR)
            return 0;
        /* Unix socket: EAGAIN is a full backlog, which poll() would not report. */
        code = conn_fail(c, errno == EACCES || errno == EPERM ? DLOCK_EPERM : DLOCK_EUNAVAIL, errno,
                         "cannot connect");
    }
    return code;
}

static bool queue_auth(struct redis_conn *c)
{
    const char *argv[3] = {"AUTH", c->auth.user, c->auth.password};
    size_t len[3];
    int argc = 3;
    if (!c->auth.password)
        return true;
    if (!c->auth.user || *c->auth.user == '\0') {
        argv[1] = c->auth.password;
        argc = 2;
    }
    for (int i = 0; i < argc; i++)
        len[i] = strlen(argv[i]);
    return redis_conn_send(c, REDIS_CONN_AUTH, argc, argv, len) == 0;
}

/* Our own commands, in front of the caller's. */
static int queue_greeting(struct redis_conn *c)
{
    const char *role = "ROLE";
    size_t len = strlen(role);
    if (!queue_auth(c) ||
        (c->only_master && redis_conn_send(c, REDIS_CONN_ROLE, 1, &role, &len) != 0))
        return DLOCK_ENOMEM;
    return 0;
}

int redis_conn_open_later(struct redis_conn *c, const struct dlock_env *env,
                          const struct redis_conn_auth *auth, const char *where, int64_t until)
{
    struct redis_conn old = *c;

    redis_conn_close(c);
    memset(c, 0, sizeof(*c));
    c->fd = -1;
    c->env = env;
    c->good = old.good;
    c->push = old.push;
    c->only_master = old.only_master;
    c->tls = old.tls;
    c->tls_host = old.tls_host;
    c->auth = *auth;
    c->where = where;
    c->until = until;
    c->address[0] = '\0';
    if (!new_reader(c))
        return conn_fail(c, DLOCK_ENOMEM, 0, "out of memory");
    c->state = RC_WAITING;
    return queue_greeting(c);
}

int redis_conn_aim(struct redis_conn *c, const struct dlock_peer *peers, int npeers)
{
    c->npeers = npeers < REDIS_CONN_PEERS ? npeers : REDIS_CONN_PEERS;
    if (c->npeers == 0)
        return conn_fail(c, DLOCK_EUNAVAIL, 0, "no address known");
    memcpy(c->peers, peers, sizeof(*peers) * (size_t)c->npeers);
    c->good = c->good < c->npeers ? c->good : 0;
    return connect_next(c);
}

void redis_conn_give_up(struct redis_conn *c, const struct dlock_error *why)
{
    c->state = RC_FAILED;
    c->error = *why;
}

int redis_conn_open(struct redis_conn *c, const struct dlock_env *env,
                    const struct dlock_peer *peers, int npeers, const struct redis_conn_auth *auth,
                    const char *where, int64_t until)
{
    int rc = redis_conn_open_later(c, env, auth, where, until);
    return rc == 0 ? redis_conn_aim(c, peers, npeers) : rc;
}

/* ------------------------------------------------------------------ coming up */

static void is_up(struct redis_conn *c)
{
    c->state = RC_UP;
    c->tls_failed = false;
    c->good = (c->good + c->tried - 1) % c->npeers;
    redis_conn_flush(c);
}

static void handshake_failed(struct redis_conn *c, const struct dlock_error *err)
{
    conn_fail(c, err->code, 0, err->msg);
    c->tls_failed = true;
    connect_next(c);
}

static void go_on_with_handshake(struct redis_conn *c)
{
    struct dlock_error err;
    int rc = tls_shake(c->tls, c->session, c->fd, &c->fed, &err);
    if (rc == 0 && c->env->now(c->env->ctx) < c->next_at)
        return;
    if (rc == 0)
        dlock_fail(&err, DLOCK_EUNAVAIL, 0,
                   "no answer to the TLS handshake: does the server speak TLS on this port?");
    c->fed = 0;
    if (rc == 1)
        is_up(c);
    else
        handshake_failed(c, &err);
}

static void connected(struct redis_conn *c)
{
    struct dlock_error err;
    if (!c->tls) {
        is_up(c);
        return;
    }
    c->state = RC_HANDSHAKE;
    if (tls_start(c->tls, &c->session, c->tls_host, &err) == 0)
        go_on_with_handshake(c);
    else
        handshake_failed(c, &err);
}

static void finish_connect(struct redis_conn *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLOUT};
    int sys = 0;
    socklen_t len = sizeof(sys);

    if (poll(&p, 1, 0) == 0) {
        if (c->env->now(c->env->ctx) < c->next_at)
            return;
        conn_fail(c, DLOCK_EUNAVAIL, 0, "no answer to the connection request");
        if (c->tried < c->npeers)
            connect_next(c);
        return;
    }
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &sys, &len) != 0)
        sys = errno;
    if (sys != 0) {
        conn_fail(c, DLOCK_EUNAVAIL, sys, "cannot connect");
        connect_next(c);
        return;
    }
    connected(c);
}

/* ------------------------------------------------------------------ receiving */

/*
 * The number of bytes that came; 0: none now, or enough for now: the complete replies are to be taken first. Negative:
 * failed.
 */
static ssize_t receive(struct redis_conn *c, char *buf, size_t size)
{
    struct dlock_error err;
    ssize_t n;
    if (c->session) {
        n = tls_receive(c->tls, c->session, c->fd, buf, size, &c->fed, REDIS_CONN_MAX_REPLY, &err);
        if (n < 0)
            conn_fail(c, (int)n, 0, err.msg);
        return n;
    }
    if (c->fed > REDIS_CONN_MAX_REPLY)
        return 0;
    do
        n = recv(c->fd, buf, size, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (n < 0)
        return conn_fail(c, DLOCK_EUNAVAIL, errno, "connection lost");
    if (n == 0)
        return conn_fail(c, DLOCK_EUNAVAIL, 0, "the server closed the connection");
    c->fed += (size_t)n;
    return n;
}

void redis_conn_work(struct redis_conn *c)
{
    char buf[16384];
    ssize_t n;

    if (c->state == RC_CONNECTING)
        finish_connect(c);
    else if (c->state == RC_HANDSHAKE)
        go_on_with_handshake(c);
    if (c->state != RC_UP)
        return;
    redis_conn_flush(c);
    while (c->state == RC_UP && (n = receive(c, buf, sizeof(buf))) > 0) {
        c->answered = true;
        if (redisReaderFeed(c->reader, buf, (size_t)n) != REDIS_OK)
            fail_reader(c);
    }
}

/* -------------------------------------------------------------------- replies */

/* The next complete reply; NULL with *rc 0 (none yet) or negative (failed). */
static redisReply *next_reply(struct redis_conn *c, int *rc)
{
    void *p = NULL;
    *rc = 0;
    if (c->reader && redisReaderGetReply(c->reader, &p) != REDIS_OK) {
        *rc = fail_reader(c);
        drop_reader(c); /* unusable after an error */
        return NULL;
    }
    if (p) {
        c->fed = c->reader->len - c->reader->pos;
        return p;
    }
    if (c->state == RC_FAILED)
        *rc = c->error.code;
    else if (c->fed > REDIS_CONN_MAX_REPLY)
        *rc = conn_fail(c, DLOCK_EPROTO, 0, "the answer is not the Redis protocol: too long");
    return NULL;
}

static bool is_push(const struct redis_conn *c, const redisReply *r)
{
    return c->push && r->type == REDIS_REPLY_ARRAY && r->elements == 3 &&
           r->element[0]->type == REDIS_REPLY_STRING && strcmp(r->element[0]->str, "message") == 0;
}

/* The oldest command without a reply is the one that the next reply answers. */
static struct redis_conn_tag take_tag(struct redis_conn *c)
{
    struct redis_conn_tag first = c->tags[0];
    memmove(c->tags, c->tags + 1, sizeof(c->tags[0]) * (size_t)--c->ntags);
    return first;
}

/* The server says in r why it does not serve us. */
static int fail_with_reply(struct redis_conn *c, const redisReply *r)
{
    drop_socket(c);
    c->state = RC_FAILED;
    return redis_conn_reply_error(&c->error, c->where, c, r->str);
}

/* No command waits for this reply: "-ERR max number of clients reached", "-DENIED". */
static int unasked(struct redis_conn *c, const redisReply *r)
{
    if (r->type == REDIS_REPLY_ERROR && !c->auth_failed)
        return fail_with_reply(c, r);
    return conn_fail(c, DLOCK_EPROTO, 0, "the server sent a reply to no command");
}

/* After a refused AUTH the connection stays: the commands sent behind it may need to be undone on it. */
static void auth_answered(struct redis_conn *c, const redisReply *r)
{
    /* The server has no password (REDISCLI_AUTH may be meant for another one): no harm; redis-cli goes on too. */
    if (r->type != REDIS_REPLY_ERROR || strstr(r->str, "without any password configured"))
        return;
    c->auth_failed = true;
    redis_conn_auth_error(&c->error, c->where, &c->auth, r->str);
}

static bool has_role(const redisReply *r, const char *role)
{
    return r->type == REDIS_REPLY_ARRAY && r->elements > 0 &&
           r->element[0]->type == REDIS_REPLY_STRING && strcmp(r->element[0]->str, role) == 0;
}

/* 0; negative: the server is not the master, so the replies behind this one do not count. */
static int role_answered(struct redis_conn *c, const redisReply *r)
{
    if (c->auth_failed) /* the reason; the replies to the caller's commands are still taken */
        return 0;
    if (r->type == REDIS_REPLY_ERROR)
        return fail_with_reply(c, r);
    if (has_role(r, "master"))
        return 0;
    c->is_replica = true;
    return conn_fail(c, DLOCK_EUNAVAIL, 0, "the server is not the master (any more)");
}

/* Servers that we can use have EVAL, and so have much older ones. */
static bool lacks_eval(const redisReply *r)
{
    return r->type == REDIS_REPLY_ERROR && strstr(r->str, "unknown command") &&
           strstr(r->str, "EVAL");
}

/* Keep this reply until the server has told what it is. */
static int hold(struct redis_conn *c, const struct redis_conn_reply *reply)
{
    const char *role = "ROLE";
    size_t len = strlen(role);

    c->kind = KIND_ASKED;
    c->held = *reply;
    if (redis_conn_send(c, REDIS_CONN_KIND, 1, &role, &len) != 0)
        c->kind = KIND_SERVER;
    redis_conn_flush(c);
    return 0;
}

/* The reply that was kept is due: it is known what the server is, or never will be. */
static bool held_is_due(const struct redis_conn *c)
{
    return c->held.r && (c->kind != KIND_ASKED || c->state == RC_FAILED);
}

static void kind_answered(struct redis_conn *c, const redisReply *r)
{
    c->kind = has_role(r, "sentinel") ? KIND_SENTINEL : KIND_SERVER;
    if (c->kind == KIND_SENTINEL && c->auth_failed)
        redis_conn_sentinel_error(&c->error, c->where);
}

/* Of our own commands. */
static bool is_ours(int tag)
{
    return tag == REDIS_CONN_AUTH || tag == REDIS_CONN_ROLE || tag == REDIS_CONN_KIND;
}

static int ours_answered(struct redis_conn *c, int tag, const redisReply *r)
{
    int rc = 0;
    if (tag == REDIS_CONN_AUTH)
        auth_answered(c, r);
    else if (tag == REDIS_CONN_KIND)
        kind_answered(c, r);
    else
        rc = role_answered(c, r);
    if (rc < 0)
        drop_reader(c);
    return rc;
}

/* Find the command that r answers. 1: the caller's, *out has r; 0: one of ours; negative: failed. */
static int assign(struct redis_conn *c, redisReply *r, struct redis_conn_reply *out)
{
    struct redis_conn_tag of = {.tag = REDIS_CONN_PUSH};
    if (!is_push(c, r)) {
        if (c->ntags == 0)
            return unasked(c, r);
        of = take_tag(c);
    }
    if (is_ours(of.tag))
        return ours_answered(c, of.tag, r);
    *out = (struct redis_conn_reply){.tag = of.tag, .sent = of.sent, .sha1 = of.sha1, .r = r};
    return 1;
}

int redis_conn_next(struct redis_conn *c, struct redis_conn_reply *out)
{
    int rc = 0;
    redisReply *r;
    while (rc == 0 && !held_is_due(c) && (r = next_reply(c, &rc))) {
        rc = assign(c, r, out);
        if (rc != 1)
            freeReplyObject(r);
        else if (c->kind == KIND_ANY && lacks_eval(r))
            rc = hold(c, out);
    }
    if (rc <= 0 && held_is_due(c)) {
        *out = c->held;
        c->held.r = NULL;
        rc = 1;
    }
    return rc;
}

bool redis_conn_waits(const struct redis_conn *c, int tag)
{
    for (int i = 0; i < c->ntags; i++)
        if (c->tags[i].tag == tag)
            return true;
    return false;
}

int redis_conn_interest(const struct redis_conn *c, struct pollfd *pfd, int64_t *wake_at)
{
    if (!redis_conn_is_open(c) || c->state == RC_WAITING) {
        if (c->state == RC_FAILED)
            *wake_at = 0;
        return 0;
    }
    pfd->fd = c->fd;
    pfd->events = c->state == RC_CONNECTING ? POLLOUT : POLLIN;
    if (c->state == RC_HANDSHAKE ? tls_has_output(c->tls, c->session)
                                 : c->state == RC_UP && has_output(c))
        pfd->events |= POLLOUT;
    pfd->revents = 0;
    if (redis_conn_is_connecting(c))
        *wake_at = dlock_min(*wake_at, c->next_at);
    return 1;
}

/* -------------------------------------------------------------------- closing */

/*
 * A close() with unread input sends RST, and then the server may lose commands (our undo) that it has not read yet. So:
 * send, shut down our side, read what has come, then close.
 */
static void close_gently(struct redis_conn *c)
{
    char buf[4096];
    int rounds = 64;

    redis_conn_flush(c);
    if (c->session) {
        c->tls->table->bye(c->session);
        (void)tls_send(c->tls, c->session, c->fd);
    }
    (void)shutdown(c->fd, SHUT_WR);
    while (rounds-- > 0 && recv(c->fd, buf, sizeof(buf), MSG_DONTWAIT) > 0)
        ;
}

void redis_conn_close(struct redis_conn *c)
{
    if (c->state == RC_UP)
        close_gently(c);
    drop_socket(c);
    c->state = RC_CLOSED;
    drop_reader(c);
    if (c->out)
        explicit_bzero(c->out, c->out_size);
    free(c->out);
    c->out = NULL;
    c->out_len = c->out_size = 0;
    c->ntags = 0;
    free(c->script);
    c->script = NULL;
    if (c->held.r)
        freeReplyObject(c->held.r);
    c->held.r = NULL;
}

void redis_conn_close_in_child(struct redis_conn *c)
{
    if (redis_conn_is_open(c) && c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->state = RC_FAILED; /* nobody is told */
    redis_conn_close(c);
}

void redis_conn_close_replica(struct redis_conn *c)
{
    redis_conn_close(c);
    if (c->npeers > 0)
        c->good = (c->good + 1) % c->npeers;
}
