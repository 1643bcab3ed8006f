/*
 * conn.c - one connection to a Redis server. See conn.h.
 *
 * The life of a connection: address after address until a server accepts, the TLS handshake, the
 * greeting (AUTH, ROLE) in front of the caller's commands, replies, the close. The replies to the
 * greeting are judged here; the caller sees the replies to its own commands only.
 *
 * Bounds against a peer without the Redis protocol: a reply has at most REDIS_CONN_MAX_REPLY bytes
 * and MAX_ITEMS array entries, and is at most MAX_DEPTH arrays deep.
 */
#include "conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MIN_SHARE (250 * DLOCK_MSEC) /* the least time for each address */
#define MAX_ITEMS 4096
#define MAX_DEPTH 8 /* hiredis 0.14 has the same limit, later releases have none */

/* -------------------------------------------------------------------- failing */

static void drop_socket(struct redis_conn *c)
{
    if (redis_conn_is_open(c) && c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    if (c->tls)
        tls_end(c->tls, &c->session);
}

/* For a while not all places where a secret is kept have the new one: outlive this. See held. */
static int as_outage(const struct redis_conn *c, int code)
{
    bool refused = code == DLOCK_EPERM || code == DLOCK_EUNUSABLE || code == DLOCK_EUSAGE;
    return c->held && refused ? DLOCK_EUNAVAIL : code;
}

/*
 * State RC_FAILED, and error says why, unless error has the reason already. sys: an errno, or 0.
 * Returns error's code. The reader stays: earlier replies can still be taken.
 */
static int conn_fail(struct redis_conn *c, int code, int sys, const char *text)
{
    drop_socket(c);
    c->state = RC_FAILED;
    if (c->auth_failed || c->tls_failed)
        return c->error.code;
    code = as_outage(c, code);
    const struct dlock_site at = {.where = c->where, .address = c->address[0] ? c->address : NULL};
    if (sys != 0)
        return dlock_fail_site(&c->error, code, sys, &at, "%s: %s", text, strerror(sys));
    return dlock_fail_site(&c->error, code, 0, &at, "%s", text);
}

/* --------------------------------------------------------------------- reader */

/* hiredis believes an array's header: "*2000000000" would allocate 16 GB at once. */
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

/*
 * hiredis says "out of memory", too, when our bounds refuse an array. For a text hiredis allocates
 * only the bytes that have come.
 */
static int fail_reader(struct redis_conn *c)
{
    char t[192];
    if (c->reader->err == REDIS_ERR_OOM && !c->out_of_bounds)
        return conn_fail(c, DLOCK_ENOMEM, 0, "out of memory");
    snprintf(t, sizeof(t), "the answer is %s: %.127s",
             c->other_protocol ? c->other_protocol : "not the Redis protocol",
             c->out_of_bounds ? "an array is too large" : c->reader->errstr);
    return conn_fail(c, DLOCK_EPROTO, 0, t);
}

/* -------------------------------------------------------------------- sending */

#define HEADER 26 /* bytes of put_header() at most, and of a word's end */

/* "*3\r\n" in front of a command, "$5\r\n" in front of a word. */
static char *put_header(char *p, char kind, size_t n)
{
    char digits[20];
    int k = 0;
    do
        digits[k++] = (char)('0' + n % 10);
    while ((n /= 10) > 0);
    *p++ = kind;
    while (k > 0)
        *p++ = digits[--k];
    return mempcpy(p, "\r\n", 2);
}

/* Not by redisFormatCommandArgv(), whose printf for each word is a tenth of a Redlock client. */
int redis_conn_send(struct redis_conn *c, int tag, int argc, const char *const *argv)
{
    size_t size = c->out_size > 0 ? c->out_size : 4096, need = c->out_len + HEADER;
    char *out = c->out, *p;
    if (!redis_conn_is_open(c))
        return DLOCK_EUNAVAIL;
    for (int i = 0; i < argc; i++)
        need += HEADER + strlen(argv[i]);
    while (size < need)
        size *= 2;
    if (c->ntags == REDIS_CONN_TAGS || (size > c->out_size && !(out = malloc(size))))
        return conn_fail(c, DLOCK_ENOMEM, 0, "out of memory");
    if (c->out && out != c->out) {
        /* The old buffer may hold AUTH's password; realloc() would leave it in freed memory. */
        memcpy(out, c->out, c->out_len);
        explicit_bzero(c->out, c->out_size);
        free(c->out);
    }
    c->out = out;
    c->out_size = size;
    p = put_header(out + c->out_len, '*', (size_t)argc);
    for (int i = 0; i < argc; i++) {
        size_t len = strlen(argv[i]);
        p = mempcpy(put_header(p, '$', len), argv[i], len);
        p = mempcpy(p, "\r\n", 2);
    }
    c->out_len = (size_t)(p - out);
    c->tags[c->ntags++] = (struct redis_conn_tag){.tag = tag};
    return 0;
}

void redis_conn_track(struct redis_conn *c, int hello_tag)
{
    /* RESP3: in RESP2 a connection that hears of changes takes no other commands. */
    static const char *const hello[] = {"HELLO", "3"};
    static const char *const track[] = {"CLIENT", "TRACKING", "ON", "NOLOOP"};
    if (c->tracks)
        return;
    c->tracks = true;
    (void)redis_conn_send(c, REDIS_CONN_TRACK, 4, track);
    (void)redis_conn_send(c, hello_tag, 2, hello);
}

static bool has_output(const struct redis_conn *c)
{
    return c->out_len > 0 || (c->session && tls_has_output(c->tls, c->session));
}

void redis_conn_flush(struct redis_conn *c)
{
    struct dlock_error err;
    size_t done = 0;
    if (c->state != RC_UP || !has_output(c))
        return;
    /* The lease counts from before the first byte could have left. */
    int64_t now = c->env->now(c->env->ctx);
    for (int i = 0; i < c->ntags; i++)
        if (c->tags[i].sent == 0)
            c->tags[i].sent = now;
    if (c->session) {
        /* All queued bytes are encrypted at once: what TLS has encrypted must be sent. */
        int rc = c->tls->table->encrypt(c->session, c->out, c->out_len, &err);
        if (c->out_len > 0)
            explicit_bzero(c->out, c->out_len);
        c->out_len = 0;
        if (rc != 0)
            conn_fail(c, rc, 0, err.msg);
        else if (tls_send(c->tls, c->session, c->fd))
            c->written = true;
        return;
    }
    while (done < c->out_len) {
        ssize_t n = send(c->fd, c->out + done, c->out_len - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && dlock_may_send_later(errno))
            break;
        /* receive() reports a broken socket: the server may have sent the reason before. */
        done = n < 0 ? c->out_len : done + (size_t)n;
        c->written = c->written || n >= 0;
    }
    memmove(c->out, c->out + done, c->out_len - done);
    explicit_bzero(c->out + c->out_len - done, done);
    c->out_len -= done;
}

/* ----------------------------------------------------------------- connecting */

const char *redis_peer_text(const struct dlock_peer *p, char buf[REDIS_PEER_TEXT])
{
    const void *a = &p->addr;
    const struct sockaddr_in6 *in6 = a;
    const struct sockaddr_in *in = a;
    bool v6 = p->addr.ss_family == AF_INET6;
    char ip[INET6_ADDRSTRLEN] = "?";
    buf[0] = '\0';
    if (p->addr.ss_family == AF_UNIX)
        return buf;
    inet_ntop(p->addr.ss_family, v6 ? (const void *)&in6->sin6_addr : &in->sin_addr, ip,
              sizeof(ip));
    snprintf(buf, REDIS_PEER_TEXT, v6 ? "[%s]:%u" : "%s:%u", ip,
             ntohs(v6 ? in6->sin6_port : in->sin_port));
    return buf;
}

/* address: the peer's, unless where has the address already (or, of a socket, the path). */
static void name_peer(struct redis_conn *c, const struct dlock_peer *p)
{
    size_t n = strlen(redis_peer_text(p, c->address));
    if (n == 0)
        return;
    for (const char *at = c->where; (at = strstr(at, c->address)); at++)
        if ((at == c->where || strchr("/,", at[-1])) && (at[n] == '\0' || strchr("/,", at[n]))) {
            c->address[0] = '\0';
            return;
        }
}

/* Keep-alive and no delay only help: our own deadlines decide, so a failure does not matter. */
static const struct {
    int level, name, value;
} socket_options[] = {
    {IPPROTO_TCP, TCP_NODELAY, 1},   {SOL_SOCKET, SO_KEEPALIVE, 1}, {IPPROTO_TCP, TCP_KEEPIDLE, 15},
    {IPPROTO_TCP, TCP_KEEPINTVL, 5}, {IPPROTO_TCP, TCP_KEEPCNT, 3},
};

/* Try the next address. 0: connecting or connected; negative: no address is left. */
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
        for (size_t i = 0; i < DLOCK_LEN(socket_options) && p->addr.ss_family != AF_UNIX; i++)
            (void)setsockopt(c->fd, socket_options[i].level, socket_options[i].name,
                             &socket_options[i].value, sizeof(int));
        /* A silent address uses up no more than its share of the time left. */
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

/* The password may have changed since the last connection. 0 or a negative code. */
static int read_password(struct redis_conn *c)
{
    struct dlock_error err;
    char *text;
    if (!c->auth.file)
        return 0;
    int rc = dlock_read_secret(&text, c->auth.file, &err);
    if (rc != 0)
        return conn_fail(c, rc, 0, err.msg);
    dlock_wipe(c->secret);
    c->auth.password = c->secret = text;
    return 0;
}

int redis_conn_open_later(struct redis_conn *c, const char *tls_host, int64_t until)
{
    const size_t kept = offsetof(struct redis_conn, tls_host);
    redis_conn_close(c);
    memset((char *)c + kept, 0, sizeof(*c) - kept);
    snprintf(c->tls_host, sizeof(c->tls_host), "%s", tls_host ? tls_host : "");
    c->until = until;
    c->reader = redisReaderCreate();
    if (!c->reader)
        return conn_fail(c, DLOCK_ENOMEM, 0, "out of memory");
    c->fn = *c->reader->fn;
    c->create_array = c->fn.createArray;
    c->fn.createArray = bounded_array;
    c->reader->fn = &c->fn;
    c->reader->privdata = c;
    int rc = read_password(c);
    if (rc != 0)
        return rc;
    c->state = RC_WAITING;
    /* Our own commands, in front of the caller's. */
    if (c->auth.password) {
        /* A default user without a password would take any behind its name, and say nothing. */
        bool named = c->auth.user && *c->auth.user != '\0' && strcmp(c->auth.user, "default") != 0;
        const char *argv[] = {"AUTH", named ? c->auth.user : c->auth.password, c->auth.password};
        if (redis_conn_send(c, REDIS_CONN_AUTH, named ? 3 : 2, argv) != 0)
            return DLOCK_ENOMEM;
    }
    if (c->only_master && redis_conn_send(c, REDIS_CONN_ROLE, 1, (const char *[]){"ROLE"}) != 0)
        return DLOCK_ENOMEM;
    return 0;
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
    c->error.code = as_outage(c, why->code);
}

int redis_conn_open(struct redis_conn *c, const char *tls_host, int64_t until,
                    const struct dlock_peer *peers, int npeers)
{
    int rc = redis_conn_open_later(c, tls_host, until);
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

static void shake(struct redis_conn *c)
{
    struct tls_socket from = {.fd = c->fd, .got = &c->fed, .limit = TLS_MAX_HANDSHAKE};
    struct dlock_error err;
    int rc = c->session ? 0 : tls_start(c->tls, &c->session, c->tls_host, &err);
    if (rc == 0)
        rc = tls_shake(c->tls, c->session, &from, &err);
    if (rc == 0 && c->env->now(c->env->ctx) < c->next_at)
        return;
    if (rc == 0)
        dlock_fail(&err, DLOCK_EUNAVAIL, 0,
                   "no answer to the TLS handshake: does the server speak TLS on this port?");
    c->fed = 0;
    if (rc == 1) {
        is_up(c);
        return;
    }
    conn_fail(c, err.code, 0, err.msg);
    c->tls_failed = true;
    connect_next(c);
}

static void finish_connect(struct redis_conn *c)
{
    struct pollfd p = {.fd = c->fd, .events = POLLOUT};
    int sys = 0;
    socklen_t len = sizeof(sys);
    bool answered = poll(&p, 1, 0) != 0;
    if (!answered && c->env->now(c->env->ctx) < c->next_at)
        return;
    if (answered && getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &sys, &len) != 0)
        sys = errno;
    if (!answered || sys != 0) {
        conn_fail(c, DLOCK_EUNAVAIL, sys,
                  answered ? "cannot connect" : "no answer to the connection request");
        connect_next(c);
    } else if (c->tls) {
        c->state = RC_HANDSHAKE;
        shake(c);
    } else {
        is_up(c);
    }
}

/* ------------------------------------------------------------------ receiving */

/*
 * The number of bytes that came; 0: none now, or enough for now: the complete replies are to be
 * taken first. Negative: failed.
 */
static ssize_t receive(struct redis_conn *c, char *buf, size_t size)
{
    struct tls_socket from = {.fd = c->fd, .got = &c->fed, .limit = REDIS_CONN_MAX_REPLY};
    struct dlock_error err;
    ssize_t n;
    if (c->session) {
        n = tls_receive(c->tls, c->session, &from, buf, size, &err);
        if (n < 0)
            conn_fail(c, (int)n, 0, err.msg);
        return n;
    }
    if (c->fed > REDIS_CONN_MAX_REPLY)
        return 0;
    do
        n = recv(c->fd, buf, size, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n > 0) {
        c->fed += (size_t)n;
        return n;
    }
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    const char *hint = c->answered ? "" : " without an answer (is it a Redis server?)";
    char text[96];
    snprintf(text, sizeof(text), "%s%s",
             n < 0 ? "connection lost" : "the server closed the connection", hint);
    return conn_fail(c, DLOCK_EUNAVAIL, n < 0 ? errno : 0, text);
}

/* The other protocol that the first bytes of a server belong to, or NULL. */
static const char *find_protocol(const char *buf, size_t n)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *what;
    } known[] = {{"HTTP/", 5, "an HTTP server's"},
                 {"SSH-", 4, "an SSH server's"},
                 {"\x15\x03", 2, "a TLS server's (rediss://)"},
                 {"E\0", 2, "a PostgreSQL server's"}};
    for (size_t i = 0; i < DLOCK_LEN(known); i++)
        if (n >= known[i].n && memcmp(buf, known[i].bytes, known[i].n) == 0)
            return known[i].what;
    return NULL;
}

/* Give hiredis the header, with RESP3's types as RESP2's: hiredis 0.14 knows no others. */
static int feed_header(struct redis_conn *c)
{
    char *h = c->header, map[32];
    h[c->header_len] = '\0';
    c->in_line = h[c->header_len - 1] != '\n'; /* too long: hiredis refuses it */
    c->header_len = 0;
    long long n = strtoll(h + 1, NULL, 10);
    if (*h == '_') /* null */
        return redisReaderFeed(c->reader, "$-1\r\n", 5);
    if (*h == '%' && n >= 0 && n <= MAX_ITEMS) {
        snprintf(map, sizeof(map), "*%lld\r\n", 2 * n);
        return redisReaderFeed(c->reader, map, strlen(map));
    }
    if (*h == '>') /* a message */
        *h = '*';
    if (*h == '=') /* a text with a format */
        *h = '$';
    if (*h == '$' && n >= 0)
        c->text_left = (size_t)n + 2;
    return redisReaderFeed(c->reader, h, strlen(h));
}

/* Give hiredis what has come: headers, strings, and lines that RESP2 has, too. */
static int feed(struct redis_conn *c, const char *at, size_t n)
{
    const char *end = at + n;
    while (at < end) {
        size_t part = (size_t)(end - at);
        bool header = c->header_len > 0 || memchr("$*%>=_", *at, 6);
        if (c->text_left == 0 && !c->in_line && header) {
            c->header[c->header_len++] = *at++;
            if ((at[-1] == '\n' || c->header_len == sizeof(c->header) - 1) &&
                feed_header(c) != REDIS_OK)
                return REDIS_ERR;
            continue;
        }
        if (c->text_left > 0) {
            part = part < c->text_left ? part : c->text_left;
            c->text_left -= part;
        } else {
            const char *line = memchr(at, '\n', part);
            c->in_line = !line;
            part = line ? (size_t)(line + 1 - at) : part;
        }
        if (redisReaderFeed(c->reader, at, part) != REDIS_OK)
            return REDIS_ERR;
        at += part;
    }
    return REDIS_OK;
}

void redis_conn_work(struct redis_conn *c)
{
    char buf[4096]; /* a waiter's stack stays small */
    ssize_t n;
    if (c->state == RC_CONNECTING)
        finish_connect(c);
    else if (c->state == RC_HANDSHAKE)
        shake(c);
    if (c->state != RC_UP)
        return;
    redis_conn_flush(c);
    while (c->state == RC_UP && (n = receive(c, buf, sizeof(buf))) > 0) {
        if (!c->answered)
            c->other_protocol = find_protocol(buf, (size_t)n);
        c->answered = true;
        if (feed(c, buf, (size_t)n) != REDIS_OK)
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

/* The server says in r why it does not serve us. */
static int fail_with_reply(struct redis_conn *c, const redisReply *r)
{
    drop_socket(c);
    c->state = RC_FAILED;
    return redis_conn_reply_error(&c->error, c, r->str);
}

/* Find the command of this reply. 1: the caller's, *out has r; 0: ours; negative: failed. */
static int assign(struct redis_conn *c, redisReply *r, struct redis_conn_reply *out)
{
    struct redis_conn_tag of = {.tag = REDIS_CONN_PUSH};
    bool is_push = r->type == REDIS_REPLY_ARRAY && r->elements == (c->push ? 3 : 2) &&
                   r->element[0]->type == REDIS_REPLY_STRING &&
                   strcmp(r->element[0]->str, c->push ? "message" : "invalidate") == 0;
    if (!is_push && c->ntags == 0) {
        /* "-ERR max number of clients reached", "-DENIED" */
        if (r->type == REDIS_REPLY_ERROR && !c->auth_failed)
            return fail_with_reply(c, r);
        return conn_fail(c, DLOCK_EPROTO, 0, "the server sent a reply to no command");
    }
    if (!is_push) {
        of = c->tags[0];
        memmove(c->tags, c->tags + 1, sizeof(c->tags[0]) * (size_t)--c->ntags);
    }
    switch (of.tag) {
    case REDIS_CONN_AUTH:
        /*
         * A server without a password does no harm (REDISCLI_AUTH may be meant for another server);
         * redis-cli goes on, too, with a warning. After a refused AUTH the connection stays: the
         * commands sent behind AUTH may need to be undone on it.
         */
        c->auth_ignored = r->type == REDIS_REPLY_ERROR &&
                          (strstr(r->str, "without any password configured") ||
                           strstr(r->str, "no password is set")); /* before Redis 6 */
        if (r->type == REDIS_REPLY_ERROR && !c->auth_ignored) {
            c->auth_failed = true;
            redis_conn_auth_error(&c->error, c, r->str);
            c->error.code = as_outage(c, c->error.code);
        }
        return 0;
    case REDIS_CONN_TRACK: /* refused: the regular renewals have to do */
        /* "-ERR max number of clients reached" answers no command. */
        if (r->type == REDIS_REPLY_ERROR && redis_conn_classify(r->str) == RE_REFUSED)
            return fail_with_reply(c, r);
        return 0;
    case REDIS_CONN_ROLE:
        if (c->auth_failed || redis_conn_has_role(r, "master"))
            return 0;
        drop_reader(c); /* the replies behind this one do not count */
        if (r->type == REDIS_REPLY_ERROR)
            return fail_with_reply(c, r);
        c->is_replica = true;
        return conn_fail(c, DLOCK_EUNAVAIL, 0, "the server is not the master (any more)");
    default:
        *out = (struct redis_conn_reply){
            .tag = of.tag, .sent = of.sent, .sha1 = of.sha1, .why = of.why, .r = r};
        return 1;
    }
}

int redis_conn_next(struct redis_conn *c, struct redis_conn_reply *out)
{
    int rc = 0;
    redisReply *r;
    while (rc == 0 && (r = next_reply(c, &rc))) {
        rc = assign(c, r, out);
        if (rc != 1)
            freeReplyObject(r);
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

bool redis_conn_has_ended(const struct redis_conn *c)
{
    struct pollfd pfd = {.fd = c->fd, .events = POLLRDHUP};
    return c->state == RC_UP && poll(&pfd, 1, 0) > 0;
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

void redis_conn_close(struct redis_conn *c)
{
    char buf[4096];
    /*
     * A close() with unread input sends RST, and then the server may lose commands (our undo) that
     * it has not read yet. So: send, shut down our side, read what has come, then close.
     */
    if (c->state == RC_UP) {
        redis_conn_flush(c);
        if (c->session) {
            c->tls->table->bye(c->session);
            (void)tls_send(c->tls, c->session, c->fd);
        }
        (void)shutdown(c->fd, SHUT_WR);
        for (int i = 0; i < 64 && recv(c->fd, buf, sizeof(buf), MSG_DONTWAIT) > 0; i++)
            ;
    }
    drop_socket(c);
    if (c->state != RC_CLOSED)
        c->tracks = redis_conn_waits(c, REDIS_CONN_TRACK);
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
    if (c->unclear.r)
        freeReplyObject(c->unclear.r);
    c->unclear.r = NULL;
}

void redis_conn_close_in_child(struct redis_conn *c)
{
    if (redis_conn_is_open(c) && c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->state = RC_FAILED; /* the server is told nothing */
    redis_conn_close(c);
}

void redis_conn_close_replica(struct redis_conn *c)
{
    redis_conn_close(c);
    if (c->npeers > 0)
        c->good = (c->good + 1) % c->npeers;
}
