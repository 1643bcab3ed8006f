/*
 * test_redis.c - the Redis backend's slots, driven by a small poll loop against a scripted server.
 * With a real one: tests/contract, tests/system/redis.
 */
#include "unit.h"

#include "backends/redis/operation.h"
#include "scripted.h"
#include "uri.h"
#include "util.h"

extern const struct dlock_backend dlock_backend_redis;

static const struct dlock_backend *const redis = &dlock_backend_redis;
static const struct dlock_hold no_hold;

struct user {
    struct dlock_uri *uri;
    struct dlock_spec spec;
    struct dlock_identity identity;
    struct dlock_be *be;
};

/* text: "redis://h:1#name"; peer: where that is, NULL for a socket. */
static bool user_open_at(struct user *u, const char *text, const struct dlock_peer *peer,
                         int64_t ttl)
{
    struct dlock_error err = {0};
    memset(u, 0, sizeof(*u));
    if (dlock_uri_parse(&u->uri, text, &err) != 0)
        return unit_fail(UNIT_AT, "%s", err.msg);
    dlock_identity_init(&u->identity, "unit", "");
    u->spec = (struct dlock_spec){
        .env = &dlock_env_system,
        .uri = u->uri,
        .peers = peer,
        .npeers = peer != NULL,
        .ttl = ttl,
        .connect_timeout = 2 * DLOCK_SEC,
        .op_timeout = DLOCK_SEC / 2,
        .identity = &u->identity,
        .hold = &no_hold,
    };
    if (redis->open(&u->be, &u->spec, &err) != 0)
        return unit_fail(UNIT_AT, "%s", err.msg);
    return true;
}

static int warnings; /* seen by turn() */

/* One turn of the event loop. True: an event that ends something, or tells of the lock. */
static bool turn(struct user *u, struct dlock_event *ev)
{
    struct pollfd p[8];
    int64_t wake = DLOCK_NEVER;
    int n = redis->interest(u->be, p, 8, &wake);
    poll(p, (nfds_t)n, wake <= dlock_now() ? 0 : 5);
    for (; redis->process(u->be, p, n, ev) == 1; n = 0) {
        warnings += ev->type == EV_NOTICE && ev->error.code != 0;
        if (ev->type != EV_NOTICE && ev->type != EV_WAITING && ev->type != EV_AWAY &&
            ev->type != EV_BACK)
            return true;
    }
    return false;
}

static void user_close(struct user *u)
{
    redis->close(u->be);
    dlock_uri_free(u->uri);
}

/* ------------------------------------------------- the table, a scripted server */

#define GRANTED "*5\r\n$7\r\ngranted\r\n$2\r\n17\r\n:1000\r\n:0\r\n$0\r\n\r\n"
#define OURS "*2\r\n:1\r\n$-1\r\n"
#define NOT_OURS "*2\r\n:0\r\n$-1\r\n"
#define HANG_UP NULL

/*
 * What the client has asked behind *at, in its order: 'E' for a script, 'I' for an INFO, 'H' for a
 * HELLO, 'C' for a CLIENT, 0 for no more.
 */
static char next_asked(const struct server *s, size_t *at)
{
    static const char *const words[] = {"\nEVAL\r", "\nEVALSHA\r", "\nINFO\r", "\nHELLO\r",
                                        "\nCLIENT\r"};
    const char *first = NULL;
    for (size_t i = 0; i < DLOCK_LEN(words); i++) {
        const char *p = strstr(s->got + *at, words[i]);
        if (p != NULL && (first == NULL || p < first))
            first = p;
    }
    if (first == NULL)
        return 0;
    *at = (size_t)(first - s->got) + 1;
    return *(first + 1);
}

/*
 * Drive u until it has an event; the server answers the n-th EVAL with say[n] (HANG_UP: closes the
 * connection instead, without an answer), and the rest with a refusal.
 */
static enum dlock_ev play(struct user *u, struct server *s, const char *const *say, int nsay,
                          int *said, struct dlock_event *ev)
{
    for (int64_t end = SECS(3); dlock_now() < end;) {
        if (turn(u, ev))
            return ev->type;
        server_step(s);
        size_t at = s->seen;
        for (char asked; (asked = next_asked(s, &at)) != 0 && (asked != 'E' || *said < nsay);
             s->seen = at) {
            const char *text = asked == 'I'   ? "-NOPERM no INFO\r\n"
                               : asked != 'E' ? "-ERR unknown command\r\n"
                                              : say[(*said)++];
            if (text != HANG_UP) {
                server_say(s, text, strlen(text));
                continue;
            }
            close(s->cfd);
            s->cfd = -1;
        }
    }
    return EV_NONE;
}

/* How often the client has sent word. */
static int times(const struct server *s, const char *word)
{
    int n = 0;
    for (const char *p = s->got; (p = strstr(p, word)) != NULL; p++)
        n++;
    return n;
}

static struct scene {
    struct server s;
    struct user u;
    const char *const *say; /* for play() */
    int nsay, said;
    struct dlock_event ev; /* the last */
} sc;                      /* of the test that runs, or of the last test */

static bool begin_at(const char *uri, const char *const *say, int nsay)
{
    if (sc.u.be) {
        user_close(&sc.u);
        server_close(&sc.s);
    }
    sc = (struct scene){.say = say, .nsay = nsay};
    return server_open(&sc.s) && user_open_at(&sc.u, uri, &sc.s.peer, 2 * DLOCK_SEC);
}

static bool begin(const char *const *say, int nsay)
{
    return begin_at("redis://h:1#n", say, nsay);
}

static enum dlock_ev next(void)
{
    return play(&sc.u, &sc.s, sc.say, sc.nsay, &sc.said, &sc.ev);
}

static enum dlock_ev acquire(bool wait)
{
    redis->acquire(sc.u.be, wait);
    return next();
}

static enum dlock_ev renew(void)
{
    redis->renew(sc.u.be);
    return next();
}

static enum dlock_ev release(int64_t until)
{
    redis->release(sc.u.be, until);
    return next();
}

static struct redis_node *node(void)
{
    return &((struct redis_backend *)sc.u.be)->node;
}

static int unanswered(void)
{
    return node()->cmd.ntags;
}

TEST(loading_at_first_contact_is_retried)
{
    static const char *const say[] = {"-LOADING x\r\n", "-BUSY x\r\n", GRANTED, OURS};
    REQUIRE(begin(say, 4));
    CHECK_INT(acquire(false), EV_GRANTED);
    CHECK_INT(sc.ev.fence, 17);
    CHECK_INT(sc.said, 3);
    CHECK_INT(release(SECS(1)), EV_RELEASED);
    CHECK_INT(sc.ev.how, DLOCK_RELEASE_CLEAN);
}

TEST(refusals_of_an_acquire)
{
    static const struct {
        const char *say[2]; /* to the try, and to the question why */
        int nsay, code;
        const char *why; /* at the end of the message */
    } t[] = {
        {{"-READONLY x\r\n"}, 1, DLOCK_EUNAVAIL, "name the master"},
        {{"-MOVED 1 h:1\r\n"}, 1, DLOCK_EUNAVAIL, ""},
        {{"-OOM x\r\n"}, 1, DLOCK_EUNAVAIL, ""},
        {{"+OK\r\n"}, 1, DLOCK_EPROTO, ""},
        {{HANG_UP}, 1, DLOCK_EUNAVAIL, ""},
        {{"$-1\r\n"}, 1, DLOCK_EPROTO, ""},
        {{"-FOREIGN the key 'x' is a hash\r\n"}, 1, DLOCK_EDATA, ": the key 'x' is a hash"},
        {{"-WRONGTYPE x\r\n", "-FOREIGN the key 'y'\r\n"}, 2, DLOCK_EDATA, ": the key 'y'"},
        {{"-NOPERM x\r\n", "-LACKS +get\r\n"}, 2, DLOCK_EPERM, ": ACL SETUSER USER +get"},
        /* The first answer counts without a usable second one. */
        {{"-NOPERM x\r\n", "-OOM x\r\n"}, 2, DLOCK_EPERM, "dlock-redis(7) for the rule it needs"},
        {{"-NOPERM x\r\n", "*0\r\n"}, 2, DLOCK_EPERM, "dlock-redis(7) for the rule it needs"},
        {{"-NOPERM x\r\n", HANG_UP}, 2, DLOCK_EPERM, "dlock-redis(7) for the rule it needs"},
        {{"-WRONGTYPE x\r\n"}, 1, DLOCK_EDATA, "not a string (WRONGTYPE x)"},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        REQUIRE(begin(t[i].say, t[i].nsay));
        CHECK_INT(acquire(true), EV_FAILED);
        const char *msg = sc.ev.error.msg;
        size_t n = strlen(msg), m = strlen(t[i].why);
        if (!CHECK_INT(sc.ev.error.code, t[i].code) ||
            !CHECK(n >= m && strcmp(msg + n - m, t[i].why) == 0))
            printf("# %zu: %s\n", i, sc.ev.error.msg);
    }
}

/* An unclear answer does not count, and the next renewal comes over a new connection. */
TEST(renewals_clear_and_unclear)
{
    static const char *const say[] = {GRANTED, OURS,       "-LOADING x\r\n", OURS, HANG_UP,
                                      OURS,    "junk\r\n", "*0\r\n",         OURS, NOT_OURS};
    static const enum dlock_ev want[] = {EV_RENEWED, EV_UNCLEAR, EV_RENEWED, EV_UNCLEAR, EV_RENEWED,
                                         EV_UNCLEAR, EV_UNCLEAR, EV_RENEWED, EV_LOST};
    REQUIRE(begin(say, 10));
    REQUIRE_INT(acquire(false), EV_GRANTED);
    for (size_t i = 0; i < DLOCK_LEN(want); i++) {
        if (i == 6 || i == 7) { /* the client has hung up: take the next connection */
            close(sc.s.cfd);
            sc.s.cfd = -1;
        }
        int64_t before = dlock_now();
        if (!CHECK_INT(renew(), want[i]))
            printf("# renewal %zu: %s\n", i, sc.ev.error.msg);
        if (sc.ev.type == EV_RENEWED)
            CHECK(sc.ev.from >= before && sc.ev.from <= dlock_now());
        else
            CHECK(sc.ev.error.code != 0 && sc.ev.error.msg[0] != '\0');
    }
}

/*
 * INFO: not before the grant has been handed out, and neither a renewal nor a release waits for the
 * answers.
 */
TEST(checks_delay_no_other_command)
{
    static const char *const say[] = {GRANTED, OURS, OURS, GRANTED, OURS};
    REQUIRE(begin(say, 5));
    REQUIRE_INT(acquire(false), EV_GRANTED);
    server_step(&sc.s);
    CHECK_NULL(strstr(sc.s.got, "\nINFO\r"));
    CHECK_INT(redis->process(sc.u.be, NULL, 0, &sc.ev), 0);
    CHECK_INT(unanswered(), 2);
    REQUIRE_INT(renew(), EV_RENEWED);
    const char *first = strstr(sc.s.got, "\nINFO\r");
    REQUIRE(first != NULL);
    CHECK_HAS(first, "memory");
    CHECK_HAS(first, "persistence");
    REQUIRE_INT(release(SECS(1)), EV_RELEASED);
    CHECK_INT(sc.ev.how, DLOCK_RELEASE_CLEAN);
    /* Once for a handle. */
    REQUIRE_INT(acquire(false), EV_GRANTED);
    CHECK_INT(redis->process(sc.u.be, NULL, 0, &sc.ev), 0);
    CHECK_INT(unanswered(), 0);
}

/*
 * Their warnings are reported although the release has begun; its result does not depend on them.
 */
TEST(checks_are_reported_during_a_release)
{
    static const char answers[] = "+OK\r\n$14\r\naof_enabled:0\n\r\n" OURS;
    static const char *const say[] = {GRANTED};
    REQUIRE(begin(say, 1));
    REQUIRE_INT(acquire(false), EV_GRANTED);
    CHECK_INT(redis->process(sc.u.be, NULL, 0, &sc.ev), 0);
    redis->release(sc.u.be, SECS(2));
    server_say(&sc.s, answers, strlen(answers));
    struct pollfd p[8];
    int64_t wake = DLOCK_NEVER;
    int n = redis->interest(sc.u.be, p, 8, &wake);
    poll(p, (nfds_t)n, 1000);
    REQUIRE_INT(redis->process(sc.u.be, p, n, &sc.ev), 1);
    CHECK_INT(sc.ev.type, EV_NOTICE);
    CHECK(sc.ev.error.code != 0);
    CHECK_HAS(sc.ev.error.msg, "appendonly");
    REQUIRE_INT(redis->process(sc.u.be, NULL, 0, &sc.ev), 1);
    CHECK_INT(sc.ev.type, EV_RELEASED);
    CHECK_INT(sc.ev.how, DLOCK_RELEASE_CLEAN);
}

/* A release whose answer is lost is sent again; that it then finds no lock is no loss. */
TEST(releases)
{
    static const struct {
        const char *say[3];
        enum dlock_release_how how;
    } t[] = {
        {{GRANTED, OURS, OURS}, DLOCK_RELEASE_CLEAN},
        {{GRANTED, NOT_OURS, OURS}, DLOCK_RELEASE_NOT_OURS},
        {{GRANTED, HANG_UP, OURS}, DLOCK_RELEASE_CLEAN},
        {{GRANTED, HANG_UP, NOT_OURS}, DLOCK_RELEASE_CLEAN},
        {{GRANTED, "-LOADING x\r\n", NOT_OURS}, DLOCK_RELEASE_NOT_OURS},
        {{GRANTED, "-NOPERM x\r\n", OURS}, DLOCK_RELEASE_UNCLEAR},
        {{GRANTED, ":1\r\n", OURS}, DLOCK_RELEASE_UNCLEAR},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        REQUIRE(begin(t[i].say, 3));
        REQUIRE_INT(acquire(false), EV_GRANTED);
        REQUIRE_INT(release(SECS(1)), EV_RELEASED);
        if (!CHECK_INT(sc.ev.how, t[i].how))
            printf("# release %zu: %s\n", i, sc.ev.error.msg);
    }
}

/*
 * A replica, after a failover: the release goes out again over a new connection, as a renewal does.
 */
TEST(a_replica_is_not_asked_twice)
{
    static const char *const say[] = {GRANTED, "-READONLY x\r\n", OURS, "-READONLY x\r\n", OURS};
    REQUIRE(begin(say, 5));
    REQUIRE_INT(acquire(false), EV_GRANTED);
    REQUIRE_INT(renew(), EV_UNCLEAR);
    REQUIRE_INT(renew(), EV_RENEWED);
    CHECK_INT(sc.s.accepted, 2);
    REQUIRE_INT(release(SECS(1)), EV_RELEASED);
    CHECK_INT(sc.ev.how, DLOCK_RELEASE_CLEAN);
    CHECK_INT(sc.said, 5);
    CHECK_INT(sc.s.accepted, 3);
}

#define GRANTED_AT(ms) "*6\r\n$7\r\ngranted\r\n$2\r\n17\r\n:1000\r\n:0\r\n$0\r\n\r\n:" #ms "\r\n"
#define OURS_AT(ms) "*3\r\n:1\r\n$-1\r\n:" #ms "\r\n"

/*
 * A failover to a server with another clock is no jump of a clock; a jump of that server's clock is
 * one.
 */
TEST(a_failover_is_no_clock_jump)
{
    static const char *const first[] = {GRANTED_AT(1790000000000), HANG_UP},
                             *const second[] = {OURS_AT(1790000060000), OURS_AT(1790000120000)};
    struct dlock_event ev;
    struct server other;
    int said = 0;
    REQUIRE(begin(first, 2) && server_open(&other));
    warnings = 0;
    REQUIRE_INT(acquire(false), EV_GRANTED);
    REQUIRE_INT(renew(), EV_UNCLEAR);
    sc.u.spec.peers = &other.peer;
    redis->renew(sc.u.be);
    REQUIRE_INT(play(&sc.u, &other, second, 2, &said, &ev), EV_RENEWED);
    CHECK_INT(warnings, 0);
    redis->renew(sc.u.be);
    REQUIRE_INT(play(&sc.u, &other, second, 2, &said, &ev), EV_RENEWED);
    CHECK_INT(warnings, 1);
    server_close(&other);
}

static int server_port(const struct server *s)
{
    struct sockaddr_in in;
    memcpy(&in, &s->peer.addr, sizeof(in));
    return ntohs(in.sin_port);
}

/* The same answer to each command of that name. */
static void answer_all(struct server *s, const char *name, const char *text)
{
    char word[32];
    snprintf(word, sizeof(word), "\n%s\r", name);
    server_step(s);
    for (char *p; (p = strstr(s->got, word)) != NULL; p[1] = 'x')
        server_say(s, text, strlen(text));
}

/* Only the server that the sentinels name is asked, even where it answers with a redirection. */
TEST(a_redirection_by_the_sentinels_master_is_not_followed)
{
    static const char *const bad[] = {"-MOVED 1 127.0.0.1:%d\r\n", "-ASK 1 127.0.0.1:%d\r\n",
                                      "-CLUSTERDOWN %d\r\n", "-ERR non local key %d\r\n"};
    for (size_t i = 0; i < DLOCK_LEN(bad); i++) {
        struct server sentinel, master, other;
        char where[300], named[64], text[64];
        struct dlock_event ev = {0};
        struct user u;
        REQUIRE(server_open(&sentinel) && server_open(&master) && server_open(&other));
        snprintf(where, sizeof(where), "redis+sentinel://127.0.0.1:%d/svc#n",
                 server_port(&sentinel));
        REQUIRE(user_open_at(&u, where, &sentinel.peer, 2 * DLOCK_SEC));
        u.spec.connect_timeout = 300 * DLOCK_MSEC;
        snprintf(named, sizeof(named), "*2\r\n$9\r\n127.0.0.1\r\n$5\r\n%05d\r\n",
                 server_port(&master));
        snprintf(text, sizeof(text), bad[i], server_port(&other));
        redis->acquire(u.be, false);
        enum dlock_ev got = EV_NONE;
        for (int64_t end = SECS(3); dlock_now() < end && got == EV_NONE;) {
            if (turn(&u, &ev))
                got = ev.type;
            answer_all(&sentinel, "SENTINEL", named);
            answer_all(&master, "ROLE", "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n");
            answer_all(&other, "ROLE", "*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n");
            answer_all(&master, "EVALSHA", text);
            answer_all(&other, "EVALSHA", GRANTED);
        }
        if (!CHECK_INT(got, EV_FAILED))
            printf("# %s", text);
        CHECK_INT(ev.error.code, DLOCK_EUNAVAIL);
        CHECK_INT(other.accepted, 0);
        user_close(&u);
        server_close(&sentinel);
        server_close(&master);
        server_close(&other);
    }
}

/*
 * Values that a late server may still set: an undo that was answered by an error has undone
 * nothing.
 */
TEST(a_refused_undo_is_sent_again)
{
    static const char *const say[] = {
        GRANTED,           "-LOADING x\r\n",
        NOT_OURS,          OURS,     /* two undos, the release: the first is refused */
        "-READONLY x\r\n", NOT_OURS, /* one undo, the release */
        NOT_OURS,          NOT_OURS,
    };
    REQUIRE(begin(say, 8));
    REQUIRE_INT(acquire(false), EV_GRANTED);
    redis_node_remember(node(), strdup("stale-one"));
    redis_node_remember(node(), strdup("stale-two"));
    REQUIRE_INT(release(SECS(2)), EV_RELEASED);
    CHECK_INT(sc.ev.how, DLOCK_RELEASE_CLEAN);
    CHECK_INT(sc.said, 8);
    CHECK_INT(times(&sc.s, "stale-one"), 3);
    CHECK_INT(times(&sc.s, "stale-two"), 1);
}

/* ------------------------------------------------ a server that does not know the scripts */

#define NOSCRIPT "-NOSCRIPT No matching script. Please use EVAL.\r\n"

#define EVALS times(&sc.s, "\nEVAL\r")
#define EVALSHAS times(&sc.s, "\nEVALSHA\r")

/* Drive u until the server has got n scripts, and answer nothing. */
static bool asked(int n)
{
    struct dlock_event ev;
    for (int64_t end = SECS(3); dlock_now() < end && EVALS + EVALSHAS < n;) {
        if (turn(&sc.u, &ev))
            return unit_fail(UNIT_AT, "event %d", (int)ev.type);
        server_step(&sc.s);
    }
    return EVALS + EVALSHAS == n;
}

static void tell(const char *text)
{
    sc.s.seen = sc.s.len;
    server_say(&sc.s, text, strlen(text));
}

/* The lease counts from the first request. After that answer the connection gets the texts. */
TEST(the_text_is_sent_where_the_script_is_unknown)
{
    static const char *const unknown[] = {
        NOSCRIPT,
        "-NOPERM this user has no permissions to run the 'evalsha' command\r\n",
    };
    const char *const say[] = {GRANTED, OURS, OURS};
    for (size_t i = 0; i < DLOCK_LEN(unknown); i++) {
        REQUIRE(begin(say, 3));
        redis->acquire(sc.u.be, false);
        REQUIRE(asked(1));
        int64_t heard = dlock_now();
        tell(unknown[i]);
        REQUIRE_INT(next(), EV_GRANTED);
        CHECK(sc.ev.from < heard);
        REQUIRE_INT(renew(), EV_RENEWED);
        REQUIRE_INT(release(SECS(1)), EV_RELEASED);
        CHECK_INT(sc.ev.how, DLOCK_RELEASE_CLEAN);
        CHECK_INT(EVALSHAS, 1);
        CHECK_INT(EVALS, 3);
    }
}

/* The script of the try is not known, and neither is that of the release. */
TEST(a_release_of_an_unknown_script_counts_once_its_text_was_run)
{
    static const char *const say[] = {GRANTED, OURS, NOSCRIPT, OURS, NOSCRIPT, OURS};
    REQUIRE(begin(say, 6));
    REQUIRE_INT(acquire(false), EV_GRANTED);
    REQUIRE_INT(renew(), EV_RENEWED);
    REQUIRE_INT(release(SECS(1)), EV_RELEASED);
    CHECK_INT(sc.ev.how, DLOCK_RELEASE_CLEAN);
    CHECK_INT(sc.said, 4);
    CHECK_INT(EVALSHAS, 3);
    CHECK_INT(EVALS, 1);
}

/*
 * The undo was sent by its text behind the try: a try that is sent again would come behind its
 * undo.
 */
TEST(a_given_up_try_is_not_sent_again)
{
    REQUIRE(begin(NULL, 0));
    redis->acquire(sc.u.be, true);
    REQUIRE(asked(1));
    redis->release(sc.u.be, SECS(1));
    REQUIRE(asked(2));
    CHECK_INT(EVALSHAS, 1);
    CHECK_INT(EVALS, 1);
    tell(NOSCRIPT NOT_OURS);
    REQUIRE_INT(next(), EV_RELEASED);
    CHECK_INT(sc.ev.how, DLOCK_RELEASE_NOTHING);
    server_step(&sc.s);
    CHECK_INT(EVALSHAS + EVALS, 2);
}

/* The undo goes in front of the next try, which is sent by its hash again. */
TEST(an_undo_is_sent_by_its_text)
{
    static const char *const say[] = {NOT_OURS, GRANTED};
    REQUIRE(begin(say, 2));
    redis->acquire(sc.u.be, false);
    REQUIRE(asked(1));
    redis_node_remember(node(), strdup("stale"));
    tell("-LOADING x\r\n");
    REQUIRE_INT(next(), EV_GRANTED);
    CHECK_INT(EVALS, 1);
    const char *undo = strstr(sc.s.got, "\nEVAL\r");
    REQUIRE(undo != NULL);
    CHECK_HAS(undo, "stale");
}

/* Nobody will read the answer: NOSCRIPT would leave the lock there for its ttl. */
TEST(the_last_word_on_a_connection_is_a_text)
{
    static const char *const say[] = {GRANTED};
    REQUIRE(begin(say, 1));
    REQUIRE_INT(acquire(false), EV_GRANTED);
    redis->release(sc.u.be, dlock_now() + 100 * DLOCK_MSEC);
    REQUIRE(asked(2));
    CHECK_INT(EVALS, 0);
    sc.s.seen = sc.s.len;
    REQUIRE_INT(next(), EV_RELEASED);
    CHECK_INT(sc.ev.how, DLOCK_RELEASE_UNCLEAR);
    server_step(&sc.s);
    CHECK_INT(EVALS, 1);
}

/*
 * A default user without a password knows no script: nothing was granted, and nothing is sent
 * again.
 */
TEST(a_refused_password_and_an_unknown_script)
{
    REQUIRE(begin_at("redis://:pw@h:1#n", NULL, 0));
    redis->acquire(sc.u.be, false);
    REQUIRE(asked(1));
    tell("-WRONGPASS x\r\n" NOSCRIPT);
    REQUIRE_INT(next(), EV_FAILED);
    CHECK_INT(sc.ev.error.code, DLOCK_EPERM);
    REQUIRE_INT(release(SECS(1)), EV_RELEASED);
    CHECK_INT(sc.ev.how, DLOCK_RELEASE_NOTHING);
    CHECK_INT(EVALSHAS + EVALS, 1);
}

UNIT_MAIN
