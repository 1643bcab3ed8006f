/*
 * Rounds of questions to scripted sentinels: majorities, late or ignorant sentinels; and their
 * announcements.
 */
#include "unit.h"

#include "backends/redis/sentinel.c"
#include "scripted.h"

#define N 3
#define AT_6001 "*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6001\r\n"
#define AT_6002 "*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6002\r\n"
#define UNKNOWN "*-1\r\n"

static const struct redis_named at_6001 = {.host = "127.0.0.1", .port = 6001};
static const struct redis_named at_6002 = {.host = "127.0.0.1", .port = 6002};

/* Of the test that runs, or of the last test. */
static struct group {
    struct server server[N];
    struct dlock_peer peers[N];
    struct dlock_uri *uri;
    struct dlock_spec spec;
    struct redis_route route;
    struct redis_sentinel *m;
} g;

static bool begin(void)
{
    char text[200];
    int ports[N];
    struct dlock_error err;
    if (g.m) {
        redis_sentinel_close(&g.route);
        dlock_uri_free(g.uri);
        for (int i = 0; i < N; i++)
            server_close(&g.server[i]);
    }
    memset(&g, 0, sizeof(g));
    for (int i = 0; i < N; i++) {
        struct sockaddr_in in;
        if (!server_open(&g.server[i]))
            return false;
        g.peers[i] = g.server[i].peer;
        g.peers[i].host = i;
        memcpy(&in, &g.peers[i].addr, sizeof(in));
        ports[i] = ntohs(in.sin_port);
    }
    snprintf(text, sizeof(text), "redis+sentinel://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d/svc#x",
             ports[0], ports[1], ports[2]);
    if (dlock_uri_parse(&g.uri, text, &err) != 0)
        return false;
    g.spec = (struct dlock_spec){.env = &dlock_env_system,
                                 .uri = g.uri,
                                 .peers = g.peers,
                                 .npeers = N,
                                 .connect_timeout = 5 * DLOCK_SEC};
    g.route.spec = &g.spec;
    int rc = redis_sentinel_open(&g.route, &err);
    g.m = g.route.sentinel;
    return rc == 0;
}

static void crank(void)
{
    struct pollfd p[40];
    int64_t wake = DLOCK_NEVER;
    int n = redis_sentinel_interest(&g.route, p, 40, &wake);
    poll(p, (nfds_t)n, 2);
    redis_sentinel_work(&g.route, p, n);
    for (int i = 0; i < N; i++)
        server_step(&g.server[i]);
}

/* Sentinel i has received the question, and gives this answer. */
static bool tell(int i, const char *text)
{
    struct server *s = &g.server[i];
    for (int64_t end = SECS(5); dlock_now() < end && s->len == 0;)
        crank();
    if (!CHECK_HAS(s->got, "$8\r\nSENTINEL\r\n$23\r\nget-master-addr-by-name\r\n$3\r\nsvc\r\n"))
        return false;
    server_say(s, text, strlen(text));
    memset(s->got, 0, s->len);
    s->len = 0;
    return true;
}

static int found(struct redis_named *a, struct dlock_error *err, int64_t end)
{
    int rc;
    while ((rc = find_master(g.m, a, err)) == 0 && dlock_now() < end)
        crank();
    return rc;
}

static enum redis_confirmed verdict(const struct redis_named *of)
{
    g.m->master = *of;
    return redis_sentinel_answer(&g.route, 0);
}

TEST(a_majority_is_enough_at_once)
{
    struct redis_named a;
    struct dlock_error err;
    REQUIRE(begin());
    begin_round(g.m, SECS(5));
    CHECK_INT(found(&a, &err, SECS(0)), 0);
    CHECK_INT(verdict(&at_6001), CONFIRM_ASKED);
    tell(0, AT_6002);
    tell(1, AT_6001);
    tell(2, AT_6001);
    CHECK_INT(found(&a, &err, SECS(5)), 1);
    CHECK_INT(a.port, 6001);
    CHECK_INT(verdict(&at_6001), CONFIRM_YES);
    CHECK_INT(verdict(&at_6002), CONFIRM_MOVED);
    /* Answers of an earlier round do not count. */
    begin_round(g.m, SECS(5));
    CHECK_INT(find_master(g.m, &a, &err), 0);
    CHECK_INT(verdict(&at_6001), CONFIRM_ASKED);
}

/* One sentinel alone could send the password to any server. */
TEST(one_sentinel_alone_names_no_master)
{
    struct redis_named a = {.port = 0};
    struct dlock_error err;
    REQUIRE(begin());
    int64_t before = dlock_now();
    begin_round(g.m, before + 400 * DLOCK_MSEC);
    tell(1, AT_6002);
    CHECK_INT(found(&a, &err, before + 300 * DLOCK_MSEC), 0);
    CHECK_INT(verdict(&at_6002), CONFIRM_ASKED);
    CHECK_INT(found(&a, &err, SECS(5)), DLOCK_EUNAVAIL);
    CHECK(dlock_now() - before >= 400 * DLOCK_MSEC);
    CHECK_INT(a.port, 0);
    CHECK_HAS(err.msg, "1 of 3 sentinels names 127.0.0.1:6002 as the master, 2 must");
    CHECK_HAS(err.msg, "no answer");
    CHECK(count(g.m).votes > 0);
    CHECK_INT(verdict(&at_6002), CONFIRM_REFUSED);
    CHECK_INT(verdict(&at_6001), CONFIRM_REFUSED);
}

TEST(no_majority_is_left_when_two_sentinels_disagree_and_one_fails)
{
    struct redis_named a;
    struct dlock_error err;
    REQUIRE(begin());
    begin_round(g.m, SECS(60));
    tell(0, AT_6001);
    tell(1, AT_6002);
    CHECK_INT(found(&a, &err, dlock_now() + 20 * DLOCK_MSEC), 0);
    tell(2, UNKNOWN);
    CHECK_INT(found(&a, &err, SECS(5)), DLOCK_EUNAVAIL);
    CHECK_HAS(err.msg, "1 of 3 sentinels names 127.0.0.1:6001 as the master, 2 must");
}

/* "s1,s1.example,s3": two names, one server, and a majority only if it is counted twice. */
TEST(one_sentinel_under_two_names_is_counted_once)
{
    struct dlock_error err;
    REQUIRE(begin());
    g.peers[1] = g.peers[0];
    g.peers[1].host = 1;
    begin_round(g.m, SECS(5));
    for (int i = 0; i < 2; i++) {
        REQUIRE(tell(0, AT_6001));
        close(g.server[0].cfd); /* the next of the two connections */
        g.server[0].cfd = -1;
    }
    for (int64_t end = SECS(5); dlock_now() < end && g.m->one[1].says == SAYS_NOTHING;)
        crank();
    CHECK_INT(g.m->one[0].says, SAYS_MASTER);
    CHECK_INT(g.m->one[1].says, SAYS_MASTER);
    CHECK_INT(verdict(&at_6001), CONFIRM_ASKED);
    tell(2, AT_6002);
    for (int64_t end = SECS(5); dlock_now() < end && g.m->one[2].says == SAYS_NOTHING;)
        crank();
    CHECK_INT(verdict(&at_6001), CONFIRM_REFUSED);
    redis_sentinel_doubt(&g.route, &err);
    CHECK_HAS(err.msg, "1 of 3 sentinels names 127.0.0.1:6001");
}

/* The result of a round in which no sentinel names a master. */
static int nobody(const char *one, const char *two, const char *three, struct dlock_error *err)
{
    struct redis_named a;
    int rc = -1000;
    if (begin()) {
        begin_round(g.m, SECS(5));
        if (tell(0, one) && tell(1, two) && tell(2, three))
            rc = found(&a, err, SECS(5));
        CHECK(rc >= 0 || verdict(&at_6001) == CONFIRM_REFUSED);
        CHECK(rc >= 0 || count(g.m).votes == 0);
    }
    return rc;
}

TEST(no_sentinel_names_a_master)
{
    struct dlock_error err = {0};
    CHECK_INT(nobody(UNKNOWN, UNKNOWN, UNKNOWN, &err), DLOCK_EUNAVAIL);
    CHECK_HAS(err.msg, "no service 'svc' (3 of 3 have answered): check the service name");
    CHECK_INT(nobody("-ERR x\r\n", UNKNOWN, "-NOAUTH x\r\n", &err), DLOCK_EUNAVAIL);
    CHECK_HAS(err.msg, "(1 of 3 have answered)");
    CHECK_INT(nobody("-ERR x\r\n", "-NOAUTH x\r\n", "-ERR x\r\n", &err), DLOCK_EPERM);
    CHECK_HAS(err.msg, "sentinel-password-file");
    CHECK_INT(nobody("-ERR unknown command 'SENTINEL'\r\n", "-ERR x\r\n", "-ERR x\r\n", &err),
              DLOCK_EPROTO);
    CHECK_HAS(err.msg, "no sentinel");
}

TEST(malformed_answers_are_refused)
{
    static const char *const bad[] = {
        "*2\r\n$9\r\n127.0.0.1\r\n$1\r\n0\r\n",
        "*2\r\n$9\r\n127.0.0.1\r\n$5\r\n65536\r\n",
        "*2\r\n$9\r\n127.0.0.1\r\n$4\r\n60x1\r\n",
        "*2\r\n$0\r\n\r\n$4\r\n6001\r\n",
        "*2\r\n$3\r\na\033b\r\n$4\r\n6001\r\n",
        "*2\r\n$9\r\n127.0.0.1\r\n:6001\r\n",
        "*1\r\n$9\r\n127.0.0.1\r\n",
        "+OK\r\n",
        "HTTP/1.1 400 Bad Request\r\n\r\n",
    };
    for (size_t i = 0; i < DLOCK_LEN(bad); i++) {
        struct dlock_error err = {0};
        if (!CHECK_INT(nobody(bad[i], bad[i], bad[i], &err), DLOCK_EPROTO))
            printf("# answer %zu: %s\n", i, err.msg);
    }
}

static bool heard_within(int ms)
{
    bool heard = false;
    for (int64_t end = dlock_now() + ms * DLOCK_MSEC; dlock_now() < end && !heard;) {
        crank();
        heard = take_announcement(g.m);
    }
    return heard;
}

TEST(an_announced_switch_is_heard)
{
    static const char subscribed[] = "*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n";
    static const char other[] = "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$18\r\nsvc2 h "
                                "6001 h 6002\r\n",
                      ours[] = "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$17\r\nsvc h 6001 "
                               "h 6002\r\n";
    REQUIRE(begin());
    redis_sentinel_listen(&g.route, dlock_now());
    for (int64_t end = SECS(5); dlock_now() < end && g.server[1].len == 0;)
        crank();
    CHECK_HAS(g.server[1].got, "SUBSCRIBE");
    CHECK(!heard_within(10));
    /* An earlier switch may have been missed. */
    server_say(&g.server[1], subscribed, strlen(subscribed));
    CHECK(heard_within(5000));
    CHECK(!take_announcement(g.m));
    server_say(&g.server[1], other, strlen(other));
    CHECK(!heard_within(20));
    server_say(&g.server[1], ours, strlen(ours));
    CHECK(heard_within(5000));
    /* A sentinel that announces it all the time: the round that has just begun still ends. */
    int64_t before = dlock_now();
    begin_round(g.m, SECS(5));
    server_say(&g.server[1], ours, strlen(ours));
    CHECK(heard_within(5000));
    CHECK(dlock_now() - before >= SENTINEL_PAUSE);
    redis_sentinel_listen(&g.route, DLOCK_NEVER);
    CHECK(!heard_within(10));
    for (int i = 0; i < N; i++)
        CHECK_INT(g.m->one[i].node.wake.state, RC_CLOSED);
}

UNIT_MAIN
