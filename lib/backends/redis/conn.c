/*
 * conn.c - one connection to a Redis server: from address to address, the handshake, the greeting, the end. See
 * conn.h. What goes over its socket: conn_io.c; what comes back: conn_replies.c.
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
#include <sys/un.h>
#include <unistd.h>

#define REDIS_CONN_MIN_SHARE (250 * DLOCK_MSEC)

/* ------------------------------------------------------------------- failing */

void redis_conn_drop_socket(struct redis_conn *c)
{
    if (redis_conn_is_open(c) && c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    if (c->tls != NULL)
        tls_end(c->tls, &c->session);
}

/* The reader stays: replies that came before the failure are still to be handed out. */
int redis_conn_fail(struct redis_conn *c, int code, int sys, const char *text)
{
    redis_conn_drop_socket(c);
    c->state = RC_FAILED;
    if (c->auth_failed || c->tls_failed) /* the reason, whatever came after it */
        return c->error.code;
    if (sys != 0)
        dlock_fail(&c->error, code, sys, "%s: %s: %s", c->peer_text, text, strerror(sys));
    else
        dlock_fail(&c->error, code, 0, "%s: %s", c->peer_text, text);
    return code;
}

/* ---------------------------------------------------------------- connecting */

static void name_peer(struct redis_conn *c, const struct dlock_peer *p)
{
    const void *a = &p->addr;
    char ip[INET6_ADDRSTRLEN] = "?";
    if (p->addr.ss_family == AF_UNIX) {
        const struct sockaddr_un *un = a;
        dlock_clean_text(c->peer_text, sizeof(c->peer_text), un->sun_path, strlen(un->sun_path));
    } else {
        const struct sockaddr_in6 *in6 = a;
        const struct sockaddr_in *in = a;
        bool v6 = p->addr.ss_family == AF_INET6;
        char numeric[INET6_ADDRSTRLEN + 16];
        inet_ntop(p->addr.ss_family, v6 ? (const void *)&in6->sin6_addr : &in->sin_addr, ip,
                  sizeof(ip));
        snprintf(numeric, sizeof(numeric), v6 ? "[%s]:%u" : "%s:%u", ip,
                 ntohs(v6 ? in6->sin6_port : in->sin_port));
        if (strcmp(numeric, c->where) == 0)
            snprintf(c->peer_text, sizeof(c->peer_text), "%s", numeric);
        else
            snprintf(c->peer_text, sizeof(c->peer_text), "%s (%s)", c->where, numeric);
    }
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
    /* All of it is advice: our own deadlines decide, so a failure does not matter. */
    if (family == AF_UNIX)
        return;
    for (size_t i = 0; i < DLOCK_LEN(opts); i++)
        (void)setsockopt(fd, opts[i].level, opts[i].name, &opts[i].value, sizeof(opts[i].value));
}

/* Start with the next address. 0: under way or connected; negative: none is left, and the last one's error stands. */
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
            redis_conn_fail(c, code, errno, "cannot open a socket");
            continue;
        }
        c->state = RC_CONNECTING;
        tune_socket(c->fd, p->addr.ss_family);
        /* Everybody gets an equal share of what is left, so that one silent address does not use up all of it. */
        c->next_at =
            left == 1 ? c->until : now + dlock_max((c->until - now) / left, REDIS_CONN_MIN_SHARE);
        if (connect(c->fd, (const struct sockaddr *)&p->addr, p->len) == 0 ||
            errno == EINPROGRESS || errno == EINTR)
            return 0;
        /* Unix socket: EAGAIN is a full backlog, which poll() would not report. */
        code = redis_conn_fail(c, errno == EACCES || errno == EPERM ? DLOCK_EPERM : DLOCK_EUNAVAIL,
                               errno, "cannot connect");
    }
    return code;
}

static bool queue_auth(struct redis_conn *c)
{
    const char *argv[3] = {"AUTH", c->auth.user, c->auth.password};
    size_t len[3];
    int argc = 3;
    if (c->auth.password == NULL)
        return true;
    if (c->auth.user == NULL || *c->auth.user == '\0') {
        argv[1] = c->auth.password;
        argc = 2;
    }
    for (int i = 0; i < argc; i++)
        len[i] = strlen(argv[i]);
    return redis_conn_send(c, REDIS_CONN_AUTH, argc, argv, len) == 0;
}

/* What goes in front of the caller's commands. */
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
    snprintf(c->peer_text, sizeof(c->peer_text), "%s", where);
    if (!redis_conn_new_reader(c))
        return redis_conn_fail(c, DLOCK_ENOMEM, 0, "out of memory");
    c->state = RC_WAITING;
    return queue_greeting(c);
}

int redis_conn_aim(struct redis_conn *c, const struct dlock_peer *peers, int npeers)
{
    c->npeers = npeers < REDIS_CONN_PEERS ? npeers : REDIS_CONN_PEERS;
    if (c->npeers == 0)
        return redis_conn_fail(c, DLOCK_EUNAVAIL, 0, "no address known");
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

/* -------------------------------------------------------------------- coming up */

static void is_up(struct redis_conn *c)
{
    c->state = RC_UP;
    c->tls_failed = false;
    c->good = (c->good + c->tried - 1) % c->npeers;
    redis_conn_flush(c);
}

static void no_handshake(struct redis_conn *c, const struct dlock_error *err)
{
    redis_conn_fail(c, err->code, 0, err->msg);
    c->tls_failed = true;
    connect_next(c);
}

static void go_on_shaking(struct redis_conn *c)
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
        no_handshake(c, &err);
}

static void connected(struct redis_conn *c)
{
    struct dlock_error err;
    if (c->tls == NULL) {
        is_up(c);
        return;
    }
    c->state = RC_HANDSHAKE;
    if (tls_start(c->tls, &c->session, c->tls_host, &err) == 0)
        go_on_shaking(c);
    else
        no_handshake(c, &err);
}

static void finish_connect(struct redis_conn *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLOUT};
    int sys = 0;
    socklen_t len = sizeof(sys);

    if (poll(&p, 1, 0) == 0) {
        if (c->env->now(c->env->ctx) < c->next_at)
            return;
        redis_conn_fail(c, DLOCK_EUNAVAIL, 0, "no answer to the connection request");
        if (c->tried < c->npeers)
            connect_next(c);
        return;
    }
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &sys, &len) != 0)
        sys = errno;
    if (sys != 0) {
        redis_conn_fail(c, DLOCK_EUNAVAIL, sys, "cannot connect");
        connect_next(c);
        return;
    }
    connected(c);
}

void redis_conn_work(struct redis_conn *c)
{
    char buf[16384];
    ssize_t n;

    if (c->state == RC_CONNECTING)
        finish_connect(c);
    else if (c->state == RC_HANDSHAKE)
        go_on_shaking(c);
    if (c->state != RC_UP)
        return;
    redis_conn_flush(c);
    while (c->state == RC_UP && (n = redis_conn_receive(c, buf, sizeof(buf))) > 0) {
        c->answered = true;
        if (redisReaderFeed(c->reader, buf, (size_t)n) != REDIS_OK)
            redis_conn_fail_reader(c);
    }
}

/* ------------------------------------------------------------------- closing */

/*
 * A close() with unread input sends RST, and that can throw away commands (our undo) which the server
 * has not read yet. So: send, say that no more comes, read what is there, then close.
 */
static void close_gently(struct redis_conn *c)
{
    char buf[4096];
    int rounds = 64;

    redis_conn_flush(c);
    if (c->session != NULL) {
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
    redis_conn_drop_socket(c);
    c->state = RC_CLOSED;
    if (c->reader != NULL)
        redisReaderFree(c->reader);
    c->reader = NULL;
    if (c->out != NULL)
        explicit_bzero(c->out, c->out_size);
    free(c->out);
    c->out = NULL;
    c->out_len = c->out_size = 0;
    c->ntags = 0;
}

void redis_conn_close_replica(struct redis_conn *c)
{
    redis_conn_close(c);
    if (c->npeers > 0)
        c->good = (c->good + 1) % c->npeers;
}
