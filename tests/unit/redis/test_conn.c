/*
 * test_conn.c - one connection to Redis against a scripted server: hostile replies, one byte at a
 * time, a first address that refuses, refused passwords, replicas.
 */
#include "unit.h"

#include "backends/redis/script.h"
#include "scripted.h"

#include <errno.h>

/* Of the test that runs, or of the last test. */
static struct server s;
static struct redis_conn c;
static struct redis_conn_reply rep;

/* One turn of the event loop: at most 10 ms. */
static void crank(void)
{
    struct pollfd p;
    int64_t wake = DLOCK_NEVER;
    int n = redis_conn_interest(&c, &p, &wake);
    poll(&p, (nfds_t)n, 10);
    redis_conn_work(&c);
    if (s.lfd > 0)
        server_step(&s);
}

/* A new connection to the server. later: the address is not known yet. */
static int open_conn(const char *password, bool later)
{
    c.env = &dlock_env_system;
    c.where = "w";
    c.auth.password = password;
    return later ? redis_conn_open_later(&c, NULL, SECS(5))
                 : redis_conn_open(&c, NULL, SECS(5), &s.peer, 1);
}

static void end(void)
{
    redis_conn_close(&c);
    c = (struct redis_conn){0};
    if (s.lfd > 0)
        server_close(&s);
    s.lfd = 0;
}

/* A connection to a new server, or later to that. */
static bool begin(const char *password, bool later)
{
    end();
    return server_open(&s) && CHECK_INT(open_conn(password, later), 0);
}

static void ping(int tag)
{
    const char *argv[] = {"PING"};
    (void)redis_conn_send(&c, tag, 1, argv);
    redis_conn_flush(&c);
}

/* Wait until the server has received the commands. */
static bool settle(void)
{
    for (int64_t until = SECS(5); dlock_now() < until && s.len == 0;)
        crank();
    return s.len > 0;
}

/* A new connection on which the server has received a PING, with AUTH in front of it. */
static bool pinged(const char *password)
{
    if (!begin(password, false))
        return false;
    ping(1);
    return settle();
}

static void say(const char *text)
{
    server_say(&s, text, strlen(text));
}

/* Wait for the next reply, or a failure. */
static int await(void)
{
    int rc = 0;
    for (int64_t until = SECS(5); dlock_now() < until && (rc = redis_conn_next(&c, &rep)) == 0;)
        crank();
    return rc;
}

/* The same: the type of the reply, which is that to a command with that tag, or the failure. */
static int await_type(int tag)
{
    int rc = await();
    if (rc == 1) {
        CHECK_INT(rep.tag, tag);
        rc = rep.r->type;
        freeReplyObject(rep.r);
    }
    return rc;
}

/* One PING, to which the server sends text: the code of the failure, or the type of the reply. */
static int answer(const char *text)
{
    if (!pinged(NULL))
        return -1000;
    say(text);
    (void)shutdown(s.cfd, SHUT_WR);
    return await_type(1);
}

TEST(replies_good_and_bad)
{
    static const struct {
        const char *text;
        int want;
        const char *seems; /* in the message; NULL: anything */
    } t[] = {
        {"+PONG\r\n", REDIS_REPLY_STATUS, NULL},
        {"-ERR x\r\n", REDIS_REPLY_ERROR, NULL},
        {"", DLOCK_EUNAVAIL, "closed the connection without an answer (is it a Redis server?)"},
        {"+PON", DLOCK_EUNAVAIL, NULL},
        {"*3\r\n:1\r\n", DLOCK_EUNAVAIL, NULL},
        {"HTTP/1.1 400 Bad Request\r\n\r\n", DLOCK_EPROTO, "the answer is an HTTP server's: "},
        {"\x15\x03\x01", DLOCK_EPROTO, "the answer is a TLS server's (rediss://): "},
        {"ERROR", DLOCK_EPROTO, "the answer is not the Redis protocol: "},
        {"*2000000000\r\n", DLOCK_EPROTO, NULL},
        {"*-5\r\n", DLOCK_EPROTO, NULL},
        {"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", DLOCK_EPROTO,
         NULL},
        {"$-7\r\n", DLOCK_EPROTO, NULL},
        /* RESP3. */
        {"_\r\n", REDIS_REPLY_NIL, NULL},
        {"=6\r\ntxt:%x\r\n", REDIS_REPLY_STRING, NULL},
        {"%1\r\n+a\r\n_\r\n", REDIS_REPLY_ARRAY, NULL},
        {"%3000\r\n", DLOCK_EPROTO, NULL},
        {"%1111111111111111111111111111111111111111\r\n", DLOCK_EPROTO, NULL},
        {":99999999999999999999999\r\n", DLOCK_EPROTO, NULL},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        if (!CHECK_INT(answer(t[i].text), t[i].want))
            printf("# answer %zu: %s\n", i, c.error.msg);
        else if (t[i].seems)
            CHECK_HAS(c.error.msg, t[i].seems);
    }
}

TEST(an_endless_reply_fails_the_connection)
{
    static char junk[65536];
    int rc = 0;
    memset(junk, 'x', sizeof(junk));
    REQUIRE(pinged(NULL));
    say("$900000000\r\n");
    for (int i = 0; i < 1000 && rc == 0; i++) {
        server_say(&s, junk, sizeof(junk));
        crank();
        rc = redis_conn_next(&c, &rep);
    }
    CHECK_INT(rc, DLOCK_EPROTO);
}

TEST(auth_goes_first_and_replies_may_come_byte_by_byte)
{
    static const char text[] = "+OK\r\n*2\r\n$3\r\nabc\r\n:42\r\n+PONG\r\n";
    REQUIRE(begin("secret", false));
    int64_t before = dlock_now();
    ping(1);
    ping(2);
    REQUIRE(settle());
    CHECK(strncmp(s.got, "*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n*1\r\n$4\r\nPING", 38) == 0);
    for (size_t i = 0; i < sizeof(text) - 1; i++) {
        if (i == 22) { /* one byte is missing */
            CHECK_INT(redis_conn_next(&c, &rep), 0);
        }
        server_say(&s, text + i, 1);
        crank();
    }
    REQUIRE_INT(await(), 1);
    CHECK_INT(rep.tag, 1);
    CHECK(rep.sent >= before && rep.sent <= dlock_now());
    CHECK_INT(rep.r->elements, 2);
    freeReplyObject(rep.r);
    REQUIRE_INT(await(), 1);
    CHECK_INT(rep.tag, 2);
    freeReplyObject(rep.r);
    CHECK_INT(redis_conn_next(&c, &rep), 0);
}

/* RESP3, byte by byte: a change is told between the replies, and in front of the first. */
TEST(changes_are_told_between_replies)
{
    static const char text[] = "+OK\r\n%1\r\n$5\r\nproto\r\n:3\r\n>2\r\n$10\r\ninvalidate\r\n_\r\n"
                               "*2\r\n$3\r\n_\r\n\r\n_\r\n"
                               ">2\r\n$10\r\ninvalidate\r\n*1\r\n$4\r\n%3\r\n\r\n";
    static const struct {
        int tag, elements;
    } want[] = {{7, 2}, {REDIS_CONN_PUSH, 2}, {1, 2}, {REDIS_CONN_PUSH, 2}};
    REQUIRE(begin(NULL, false));
    redis_conn_track(&c, 7);
    redis_conn_track(&c, 7); /* once for each connection */
    ping(1);
    REQUIRE(settle());
    for (size_t i = 0, got = 0; i < strlen(text); i++) {
        server_say(&s, text + i, 1);
        crank();
        while (redis_conn_next(&c, &rep) == 1) {
            REQUIRE(got < DLOCK_LEN(want));
            CHECK_INT(rep.tag, want[got].tag);
            CHECK_INT((int)rep.r->elements, want[got].elements);
            if (got == 2)
                CHECK_STR(rep.r->element[0]->str, "_\r\n");
            got++;
            freeReplyObject(rep.r);
        }
        if (i == strlen(text) - 1)
            CHECK_INT((int)got, 4);
    }
    CHECK_INT(c.ntags, 0);
}

TEST(a_server_that_hangs_up_instead_of_telling_is_not_asked_on_the_next_connection)
{
    REQUIRE(begin(NULL, false));
    for (int i = 0; i < 3; i++) {
        redis_conn_track(&c, 7);
        CHECK_INT(c.ntags, i == 1 ? 0 : 2);
        ping(1);
        REQUIRE(settle());
        close(s.cfd);
        s.cfd = -1;
        s.len = s.seen = 0;
        CHECK(await() < 0);
        redis_conn_close(&c);
        REQUIRE_INT(open_conn(NULL, false), 0);
    }
}

TEST(a_refused_auth_is_the_error_and_the_next_reply_still_comes)
{
    static const struct {
        const char *text;
        bool failed, ignored;
    } t[] = {
        {"-WRONGPASS no\r\n-NOAUTH no\r\n", true, false},
        {"-ERR AUTH <password> called without any password configured for the default user.\r\n"
         "+PONG\r\n",
         false, true},
        {"-ERR Client sent AUTH, but no password is set\r\n+PONG\r\n", false, true},
        {"+OK\r\n+PONG\r\n", false, false},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        REQUIRE(pinged("secret"));
        say(t[i].text);
        REQUIRE_INT(await(), 1);
        freeReplyObject(rep.r);
        CHECK_INT(c.auth_failed, t[i].failed);
        CHECK_INT(c.auth_ignored, t[i].ignored);
        CHECK_INT(c.error.code, t[i].failed ? DLOCK_EPERM : 0);
        CHECK(strstr(c.error.msg, "secret") == NULL);
    }
}

TEST(the_next_address_is_tried_and_remembered)
{
    struct server dead;
    end();
    c.env = &dlock_env_system;
    c.where = "w";
    REQUIRE(server_open(&s) && server_open(&dead));
    server_close(&dead); /* now its port refuses */
    struct dlock_peer peers[] = {dead.peer, s.peer};
    for (int i = 0; i < 2; i++) {
        s.len = 0;
        REQUIRE_INT(redis_conn_open(&c, NULL, SECS(5), peers, 2), 0);
        ping(1);
        REQUIRE(settle());
        CHECK_INT(c.good, 1);
        CHECK_INT(c.tried, i == 0 ? 2 : 1);
        redis_conn_close(&c);
        close(s.cfd);
        s.cfd = -1;
    }
    CHECK_INT(redis_conn_open(&c, NULL, SECS(5), peers, 1), 0);
    CHECK_INT(await(), DLOCK_EUNAVAIL);
    CHECK_INT(c.error.sys, ECONNREFUSED);
    CHECK(!c.written);
}

TEST(too_many_unanswered_commands_fail_the_connection)
{
    REQUIRE(begin(NULL, false));
    for (int i = 0; i < REDIS_CONN_TAGS + 1; i++)
        ping(1);
    CHECK_INT(c.state, RC_FAILED);
}

/* The server can read the command although we close with unread input. */
TEST(close_does_not_reset)
{
    char buf[256];
    REQUIRE(pinged(NULL));
    say("+PONG\r\n+PONG\r\n");
    ping(2);
    redis_conn_close(&c);
    ssize_t n = recv(s.cfd, buf, sizeof(buf), 0);
    CHECK_INT(n, 14);
    CHECK_INT(recv(s.cfd, buf, sizeof(buf), 0), 0); /* FIN, not ECONNRESET */
}

/* --------------------------------------------------------------- error replies */

TEST(error_replies)
{
    static const struct {
        const char *text;
        enum redis_conn_class class;
        int code;
    } t[] = {
        {"NOAUTH Authentication required.", RE_PERM, DLOCK_EPERM},
        {"WRONGPASS invalid username-password pair", RE_PERM, DLOCK_EPERM},
        {"NOPERM this user has no permissions", RE_PERM, DLOCK_EPERM},
        {"DENIED Redis is running in protected mode", RE_PERM, DLOCK_EPERM},
        {"ERR Protocol error: unauthenticated multibulk length", RE_PERM, DLOCK_EPERM},
        {"ERR The user executing the script can't run this command", RE_PERM, DLOCK_EPERM},
        {"ERR ACL failure in script: User ann has no permissions to run the 'set' command script: "
         "f_1, on @user_script:3.",
         RE_PERM, DLOCK_EPERM},
        {"LOADING Redis is loading the dataset in memory", RE_TRANSIENT, DLOCK_EUNAVAIL},
        {"BUSY Redis is busy running a script", RE_TRANSIENT, DLOCK_EUNAVAIL},
        {"UNBLOCKED force unblock from blocking operation, instance state changed (master -> "
         "replica?)",
         RE_REPLICA, DLOCK_EUNAVAIL},
        {"READONLY You can't write against a read only replica.", RE_REPLICA, DLOCK_EUNAVAIL},
        {"ERR Error running script (call to f_1): @user_script:3: -READONLY You", RE_REPLICA,
         DLOCK_EUNAVAIL},
        {"MOVED 3999 127.0.0.1:6381", RE_CLUSTER, DLOCK_EUNAVAIL},
        {"OOM command not allowed", RE_REFUSED, DLOCK_EUNAVAIL},
        {"MISCONF Redis is configured to save RDB", RE_REFUSED, DLOCK_EUNAVAIL},
        {"ERR max number of clients reached", RE_REFUSED, DLOCK_EUNAVAIL},
        {"WRONGTYPE Operation against a key", RE_TYPE, DLOCK_EDATA},
        {"ERR DB index is out of range", RE_OTHER, DLOCK_EUSAGE},
        {"ERR unknown command `EVAL`", RE_OTHER, DLOCK_EUNUSABLE},
        {"ERR Unknown Redis command called from script script: f_1", RE_OTHER, DLOCK_EUNUSABLE},
        {"NOCOMMAND unknown command TIME", RE_OTHER, DLOCK_EUNUSABLE},
        {"ERR TASK failed", RE_OTHER, DLOCK_EPROTO},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        struct dlock_error err;
        if (!CHECK_INT(redis_conn_classify(t[i].text), t[i].class))
            printf("# %s\n", t[i].text);
        CHECK_INT(redis_conn_reply_error(&err, &(struct redis_conn){.where = "w"}, t[i].text),
                  t[i].code);
        CHECK_INT(err.code, t[i].code);
    }
}

/* Servers quote the words that they did not understand. */
TEST(error_replies_show_no_secret)
{
    static const char long_one[] = "0123456789abcdefghij";
    static const struct {
        const char *user, *password, *text, *want;
    } t[] = {
        {NULL, "pw1", "ERR what is 'pw1' (pw1pw1)?",
         "w: unexpected error (ERR what is '***' (******)?)"},
        {"ann", "pw1", "ERR ann: `pw1`", "w: unexpected error (ERR ***: `***`)"},
        {"e", "pw1", "ERR here e", "w: unexpected error (ERR here ***)"},
        {NULL, "pw1", "ERR pw pw", "w: unexpected error (ERR pw pw)"},
        {"ann", NULL, "ERR ann ", "w: unexpected error (ERR *** )"},
        {"", "", "ERR x", "w: unexpected error (ERR x)"},
        /* cut short by the server */
        {NULL, long_one, "ERR '0123456789ab' x", "w: unexpected error (ERR '***' x)"},
        {NULL, long_one, "ERR unknown command `0123456789ab",
         "w: the server does not know a command (too old, or disabled): use Redis 6.0 or later, "
         "and undo its rename-command there"},
        {NULL, "pw1", "ERR unknown command 'EVAL', with args beginning with: 'pw1' ",
         "w: the server does not know EVAL (too old, or disabled): use Redis 6.0 or later, and "
         "undo its rename-command there"},
        {NULL, NULL, "NOCOMMAND unknown command TIME PUBLISH",
         "w: the server does not know TIME PUBLISH (too old, or disabled): use Redis 6.0 or later, "
         "and undo its rename-command there"},
        /* a sentence of a script: the key may have the user's name */
        {"ann", "pw1", "FOREIGN the key 'ann:x' holds pw1, no", "w: the key 'ann:x' holds ***, no"},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        struct redis_conn asked = {.where = "w", .auth = {t[i].user, t[i].password}};
        struct dlock_error err;
        (void)redis_conn_reply_error(&err, &asked, t[i].text);
        CHECK_STR(err.msg, t[i].want);
    }
}

TEST(errors_of_auth_show_one_word)
{
    static const struct {
        const char *text;
        int code;
        const char *word;
    } t[] = {
        {"ERR unknown command 'AUTH', with args beginning with: 'ann' 'canary' ", DLOCK_EPERM,
         "(ERR)"},
        {"ERR wrong number of arguments for canary", DLOCK_EPERM, "(ERR)"},
        {"WRONGPASS canary", DLOCK_EPERM, "(WRONGPASS)"},
        {"ERR invalid password canary", DLOCK_EPERM, "(ERR)"},
        {"LOADING canary", DLOCK_EUNAVAIL, "LOADING"},
        {"CANARY", DLOCK_EPERM, "(CANARY)"},
        {"canary", DLOCK_EPERM, "(no error code)"},
        {"Canary x", DLOCK_EPERM, "(no error code)"},
        {"", DLOCK_EPERM, "(no error code)"},
    };
    struct redis_conn asked = {.where = "w", .auth = {"ann", "canary"}};
    struct dlock_error err;
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        CHECK_INT(redis_conn_auth_error(&err, &asked, t[i].text), t[i].code);
        if (!CHECK(strstr(err.msg, t[i].word) != NULL) || !CHECK(strstr(err.msg, "canary") == NULL))
            printf("# %s\n", err.msg);
    }
    asked.auth.password = "CANARY";
    (void)redis_conn_auth_error(&err, &asked, "CANARY");
    CHECK(strstr(err.msg, "CANARY") == NULL);
}

/* ------------------------------------------ a later address, and only a master */

TEST(commands_wait_for_the_address)
{
    struct pollfd p;
    int64_t wake = DLOCK_NEVER;
    REQUIRE(begin("secret", true));
    CHECK(redis_conn_is_open(&c));
    ping(7);
    CHECK(redis_conn_waits(&c, 7));
    CHECK_INT(redis_conn_interest(&c, &p, &wake), 0);
    CHECK(wake == DLOCK_NEVER); /* nothing to do before redis_conn_aim */
    redis_conn_work(&c);
    CHECK_INT(redis_conn_next(&c, &rep), 0);
    CHECK_INT(c.state, RC_WAITING);
    CHECK(!c.written);
    REQUIRE_INT(redis_conn_aim(&c, &s.peer, 1), 0);
    int64_t before = dlock_now();
    REQUIRE(settle());
    CHECK_STR(s.got, "*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n*1\r\n$4\r\nPING\r\n");
    say("+OK\r\n+PONG\r\n");
    REQUIRE_INT(await(), 1);
    CHECK_INT(rep.tag, 7);
    CHECK(rep.sent >= before); /* not the time of redis_conn_send */
    freeReplyObject(rep.r);
}

TEST(no_address_is_found)
{
    struct dlock_error why = {.code = DLOCK_EPERM, .msg = "no host says"};
    int64_t wake = DLOCK_NEVER;
    struct pollfd p;
    REQUIRE_INT(open_conn(NULL, true), 0);
    ping(1);
    redis_conn_give_up(&c, &why);
    CHECK(!redis_conn_is_open(&c));
    CHECK_INT(redis_conn_interest(&c, &p, &wake), 0);
    CHECK(wake == 0); /* redis_conn_work is due */
    CHECK_INT(redis_conn_next(&c, &rep), DLOCK_EPERM);
    CHECK_STR(c.error.msg, "no host says");
    redis_conn_close(&c);
    CHECK_INT(c.state, RC_CLOSED);
    REQUIRE_INT(open_conn(NULL, true), 0);
    CHECK_INT(redis_conn_aim(&c, NULL, 0), DLOCK_EUNAVAIL);
    CHECK_INT(c.state, RC_FAILED);
    redis_conn_close(&c);
    REQUIRE_INT(open_conn(NULL, true), 0);
    redis_conn_close(&c); /* while it waits for an address */
    CHECK_INT(c.state, RC_CLOSED);
}

TEST(only_a_master_is_accepted)
{
    static const struct {
        const char *text;
        int want;
        bool replica;
    } t[] = {
        {"*3\r\n$6\r\nmaster\r\n:42\r\n*0\r\n+PONG\r\n", REDIS_REPLY_STATUS, false},
        {"*5\r\n$5\r\nslave\r\n$1\r\nh\r\n:1\r\n$9\r\nconnected\r\n:1\r\n+PONG\r\n", DLOCK_EUNAVAIL,
         true},
        {"*2\r\n$8\r\nsentinel\r\n*0\r\n+PONG\r\n", DLOCK_EUNAVAIL, true},
        {"-NOPERM no rights to ROLE\r\n+PONG\r\n", DLOCK_EPERM, false},
        {"-LOADING in memory\r\n+PONG\r\n", DLOCK_EUNAVAIL, false},
        {"*0\r\n+PONG\r\n", DLOCK_EUNAVAIL, true},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        end();
        c.only_master = true;
        REQUIRE(server_open(&s));
        REQUIRE_INT(open_conn(NULL, false), 0);
        ping(1);
        REQUIRE(settle());
        CHECK(strncmp(s.got, "*1\r\n$4\r\nROLE\r\n*1\r\n$4\r\nPING", 24) == 0);
        say(t[i].text);
        /* The reply to ROLE is not the caller's. */
        if (!CHECK_INT(await_type(1), t[i].want) || !CHECK_INT(c.is_replica, t[i].replica))
            printf("# answer %zu: %s\n", i, c.error.msg);
        if (t[i].replica)
            CHECK_HAS(c.error.msg, "not the master");
    }
}

/* ------------------------------------------------------- a server without EVAL */

/*
 * What is said about a PING whose answer is that EVAL is unknown, and then the answer to ROLE;
 * NULL: hangs up.
 */
static int without_eval(const char *password, const char *first, const char *role,
                        struct dlock_error *err)
{
    int rc = 0;
    if (!begin(password, false))
        return -1000;
    ping(7);
    c.tags[c.ntags - 1].why = WHY_MAY; /* as a script's */
    if (!settle())
        return -1000;
    say(first);
    for (int64_t until = SECS(5); dlock_now() < until && !strstr(s.got, "ROLE");) {
        CHECK_INT(redis_script_next(&c, &rep), 0);
        crank();
    }
    if (role)
        say(role);
    else
        (void)shutdown(s.cfd, SHUT_WR);
    for (int64_t until = SECS(5); dlock_now() < until && rc == 0; crank())
        rc = redis_script_next(&c, &rep);
    if (rc == 1) {
        CHECK_INT(rep.tag, 7);
        rc = redis_conn_reply_error(err, &c, rep.r->str);
        if (c.auth_failed)
            *err = c.error;
        freeReplyObject(rep.r);
        CHECK(redis_script_next(&c, &rep) <= 0);
    }
    return rc;
}

TEST(a_sentinel_is_recognised)
{
    static const char sentinel[] = "*2\r\n$8\r\nsentinel\r\n*0\r\n",
                      no_eval[] = "-ERR unknown command 'EVAL', with args\r\n";
    struct dlock_error err = {0};
    CHECK_INT(without_eval(NULL, no_eval, sentinel, &err), DLOCK_EUSAGE);
    CHECK_STR(err.msg, "w: this server is a Sentinel: write redis+sentinel://HOST/SERVICE#NAME");
    CHECK_INT(without_eval(NULL, "-ERR unknown command `EVAL`\r\n", sentinel, &err), DLOCK_EUSAGE);
    CHECK_INT(without_eval("pw", "-WRONGPASS x\r\n-ERR unknown command `EVAL`\r\n", sentinel, &err),
              DLOCK_EUSAGE);
    CHECK_HAS(err.msg, "is a Sentinel");
    CHECK_INT(without_eval(NULL, no_eval, "*3\r\n$6\r\nmaster\r\n:42\r\n*0\r\n", &err),
              DLOCK_EUNUSABLE);
    CHECK_HAS(err.msg, "Redis 6.0 or later");
    CHECK_INT(without_eval(NULL, no_eval, "-ERR unknown command 'ROLE'\r\n", &err),
              DLOCK_EUNUSABLE);
    CHECK_INT(without_eval(NULL, no_eval, NULL, &err), DLOCK_EUNUSABLE);
    CHECK_HAS(err.msg, "Redis 6.0 or later");
}

UNIT_MAIN
