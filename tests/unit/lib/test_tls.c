/*
 * test_tls.c - a connection to Redis over TLS, with a toy instead of OpenSSL: it sends "HI name.",
 * the server answers "ok" or "no", and then one bit of every byte is inverted.
 * tests/system/redis/tls.bats tests OpenSSL.
 */
#include "unit.h"

#include "backends/redis/conn.h"
#include "scripted.h"

struct tls {
    char in[4096], out[65536];
    size_t nin, nout;
    bool said;
    const char *name;
};

static int alive; /* connections that were not freed */

static int toy_start(struct tls **out, struct tls_ctx *ctx, const char *name,
                     struct dlock_error *err)
{
    (void)ctx;
    (void)err;
    *out = calloc(1, sizeof **out);
    (*out)->name = name;
    alive++;
    return *out ? 0 : DLOCK_ENOMEM;
}

static void toy_end(struct tls *t)
{
    alive--;
    free(t);
}

static int toy_feed(struct tls *t, const void *p, size_t n, struct dlock_error *err)
{
    if (n > sizeof t->in - t->nin)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "toy");
    memcpy(t->in + t->nin, p, n);
    t->nin += n;
    return 0;
}

static size_t toy_wire(struct tls *t, const char **p)
{
    *p = t->out;
    return t->nout;
}

static void toy_sent(struct tls *t, size_t n)
{
    t->nout -= n;
    memmove(t->out, t->out + n, t->nout);
}

static void drop_in(struct tls *t, size_t n)
{
    t->nin -= n;
    memmove(t->in, t->in + n, t->nin);
}

static int toy_handshake(struct tls *t, struct dlock_error *err)
{
    if (!t->said)
        t->nout = (size_t)snprintf(t->out, sizeof t->out, "HI %s.", t->name);
    t->said = true;
    if (t->nin < 2)
        return 0;
    if (memcmp(t->in, "ok", 2) != 0)
        return dlock_fail(err, DLOCK_EUNAVAIL, 0, "toy: refused");
    drop_in(t, 2);
    return 1;
}

static int toy_encrypt(struct tls *t, const void *p, size_t n, struct dlock_error *err)
{
    const char *text = p;
    (void)err;
    while (n-- > 0)
        t->out[t->nout++] = (char)(*text++ ^ 32);
    return 0;
}

static int toy_decrypt(struct tls *t, void *p, size_t size, struct dlock_error *err)
{
    char *text = p;
    size_t n = t->nin < size ? t->nin : size;
    (void)err;
    for (size_t i = 0; i < n; i++)
        text[i] = (char)(t->in[i] ^ 32);
    drop_in(t, n);
    return (int)n;
}

static void toy_bye(struct tls *t)
{
    t->nout += (size_t)snprintf(t->out + t->nout, sizeof t->out - t->nout, "BYE");
}

static const struct tls_table toy = {
    .start = toy_start,
    .end = toy_end,
    .feed = toy_feed,
    .wire = toy_wire,
    .sent = toy_sent,
    .handshake = toy_handshake,
    .encrypt = toy_encrypt,
    .decrypt = toy_decrypt,
    .bye = toy_bye,
};
static struct tls_config config = {.table = &toy};

/* --------------------------------------------------------------------------- */

static void crank(struct redis_conn *c, struct server *s)
{
    struct pollfd p;
    int64_t wake = DLOCK_NEVER;
    int n = redis_conn_interest(c, &p, &wake);
    poll(&p, (nfds_t)n, 10);
    redis_conn_work(c);
    server_step(s);
}

static int open_to(struct redis_conn *c, const struct dlock_peer *peers, int n, int64_t until)
{
    static const char *const ping = "PING";
    const char *argv[] = {ping};
    c->env = &dlock_env_system;
    c->where = "w";
    c->auth.password = "secret";
    c->tls = &config;
    int rc = redis_conn_open(c, "name", until, peers, n);
    if (rc == 0)
        rc = redis_conn_send(c, 1, 1, argv);
    redis_conn_flush(c);
    return rc;
}

/* Wait until the server has that many bytes, or the connection has failed. */
static bool told(struct redis_conn *c, struct server *s, size_t n)
{
    for (int64_t end = SECS(5); dlock_now() < end && s->len < n && c->state != RC_FAILED;)
        crank(c, s);
    return s->len >= n;
}

static const char hello[] = "HI name.";
#define HELLO (sizeof hello - 1)

static void turn(char *p, size_t n)
{
    while (n-- > 0)
        *p++ ^= 32;
}

TEST(no_command_leaves_before_the_end_of_the_handshake)
{
    static const char want[] = "*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n*1\r\n$4\r\nPING\r\n";
    char answer[] = "+OK\r\n+PONG\r\n";
    struct server s;
    struct redis_conn c = {0};
    struct redis_conn_reply rep = {0};
    int rc = 0;
    REQUIRE(server_open(&s));
    REQUIRE_INT(open_to(&c, &s.peer, 1, SECS(5)), 0);
    REQUIRE(told(&c, &s, HELLO));
    server_say(&s, "o", 1);
    for (int i = 0; i < 3; i++)
        crank(&c, &s);
    CHECK_INT(c.state, RC_HANDSHAKE);
    CHECK_INT(s.len, HELLO);
    CHECK(!c.written);
    int64_t before = dlock_now();
    server_say(&s, "k", 1);
    REQUIRE(told(&c, &s, HELLO + sizeof want - 1));
    CHECK(c.written);
    CHECK(memcmp(s.got, hello, HELLO) == 0);
    turn(s.got + HELLO, s.len - HELLO);
    CHECK_STR(s.got + HELLO, want);
    turn(answer, sizeof answer - 1);
    for (size_t i = 0; i < sizeof answer - 1; i++) {
        server_say(&s, answer + i, 1);
        crank(&c, &s);
    }
    for (int64_t end = SECS(5); dlock_now() < end && (rc = redis_conn_next(&c, &rep)) == 0;)
        crank(&c, &s);
    REQUIRE_INT(rc, 1);
    CHECK_STR(rep.r->str, "PONG");
    CHECK(rep.sent >= before);
    freeReplyObject(rep.r);
    redis_conn_close(&c);
    CHECK_INT(alive, 0);
    server_close(&s);
}

TEST(close_sends_the_queued_commands_and_then_bye)
{
    struct server s;
    struct redis_conn c = {0};
    const char *argv[] = {"QUIT"};
    REQUIRE(server_open(&s));
    REQUIRE_INT(open_to(&c, &s.peer, 1, SECS(5)), 0);
    REQUIRE(told(&c, &s, HELLO));
    server_say(&s, "ok", 2);
    REQUIRE(told(&c, &s, HELLO + 40));
    REQUIRE_INT(redis_conn_send(&c, 2, 1, argv), 0);
    redis_conn_close(&c);
    for (int i = 0; i < 100 && s.cfd >= 0; i++)
        server_step(&s);
    CHECK(s.len > 3 && memcmp(s.got + s.len - 3, "BYE", 3) == 0);
    turn(s.got, s.len);
    CHECK_HAS(s.got + s.len - 3 - 14, "*1\r\n$4\r\nQUIT\r\n");
    CHECK_INT(alive, 0);
    server_close(&s);
}

TEST(after_a_refusal_the_next_address_is_tried_and_the_refusal_stays_the_error)
{
    struct server bad, good, dead;
    struct redis_conn c = {0};
    struct dlock_peer peers[2];
    REQUIRE(server_open(&bad) && server_open(&good) && server_open(&dead));
    server_close(&dead); /* now its port refuses */
    peers[0] = bad.peer;
    peers[1] = good.peer;
    REQUIRE_INT(open_to(&c, peers, 2, SECS(5)), 0);
    REQUIRE(told(&c, &bad, HELLO));
    server_say(&bad, "no", 2);
    REQUIRE(told(&c, &good, HELLO));
    CHECK_INT(bad.len, HELLO);
    server_say(&good, "ok", 2);
    REQUIRE(told(&c, &good, HELLO + 40));
    CHECK_INT(c.good, 1);
    CHECK(!c.tls_failed);
    redis_conn_close(&c);
    close(bad.cfd);
    bad.cfd = -1;
    c = (struct redis_conn){0};
    bad.len = 0;
    peers[1] = dead.peer;
    REQUIRE_INT(open_to(&c, peers, 2, SECS(5)), 0);
    REQUIRE(told(&c, &bad, HELLO));
    server_say(&bad, "no", 2);
    for (int64_t end = SECS(5); dlock_now() < end && c.state != RC_FAILED;)
        crank(&c, &bad);
    CHECK_INT(c.error.code, DLOCK_EUNAVAIL);
    CHECK_HAS(c.error.msg, "toy: refused"); /* not "connection refused" */
    CHECK(!c.written);
    CHECK_INT(bad.len, HELLO);
    redis_conn_close(&c);
    CHECK_INT(alive, 0);
    server_close(&bad);
    server_close(&good);
}

TEST(a_silent_server_gets_only_its_share_of_the_time)
{
    struct server silent, good;
    struct redis_conn c = {0};
    struct dlock_peer peers[2];
    REQUIRE(server_open(&silent) && server_open(&good));
    peers[0] = silent.peer;
    peers[1] = good.peer;
    int64_t begin = dlock_now();
    REQUIRE_INT(open_to(&c, peers, 2, begin + DLOCK_SEC), 0);
    REQUIRE(told(&c, &good, HELLO));
    CHECK(dlock_now() - begin >= 400 * DLOCK_MSEC);
    for (int64_t end = SECS(5); dlock_now() < end && c.state != RC_FAILED;)
        crank(&c, &good);
    CHECK(dlock_now() - begin >= DLOCK_SEC);
    CHECK_HAS(c.error.msg, "no answer to the TLS handshake");
    CHECK(!c.written);
    redis_conn_close(&c);
    CHECK_INT(alive, 0);
    server_close(&silent);
    server_close(&good);
}

UNIT_MAIN
