/* test_health.c - warnings from INFO, and jumps of a server's clock. */
#include "unit.h"

#include "backends/redis/health.h"

#define MEMORY "# Memory\r\nused_memory:1\r\nmaxmemory:1048576\r\nmaxmemory_human:1.00M\r\n"

TEST(finds_values_in_info)
{
    static const char text[] =
        "# Memory\r\nmaxmemory_human:1K\r\nmaxmemory:1024\r\nplain:x\nlast:y";
    static const struct {
        const char *key, *value; /* NULL: no such line */
    } t[] = {
        {"maxmemory", "1024"}, {"maxmemory_human", "1K"}, {"plain", "x"}, {"last", "y"},
        {"max", NULL},         {"# Memory", NULL},        {"", NULL},     {"memory", NULL},
    };
    char out[32];
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        CHECK(redis_info_value(text, strlen(text), t[i].key, out, sizeof(out)) ==
              (t[i].value != NULL));
        CHECK_STR(out, t[i].value != NULL ? t[i].value : "");
    }
    /* Cut at every place: never read behind the end (the sanitizer checks). */
    for (size_t n = 0; n <= strlen(text); n++) {
        char *part = malloc(n + 1);
        REQUIRE(part != NULL);
        memcpy(part, text, n);
        char *exact = realloc(part, n > 0 ? n : 1);
        REQUIRE(exact != NULL);
        (void)redis_info_value(exact, n, "maxmemory", out, sizeof(out));
        (void)redis_info_value(exact, n, "last", out, sizeof(out));
        free(exact);
    }
    CHECK(redis_info_value("a:\033[31mx\r\n", 10, "a", out, sizeof(out)));
    CHECK_STR(out, "?[31mx");
    CHECK(redis_info_value("a:0123456789", 12, "a", out, 5));
    CHECK_STR(out, "0123");
}

TEST(warns_of_eviction)
{
    static const struct {
        const char *info;
        bool warns;
    } t[] = {
        {MEMORY "maxmemory_policy:allkeys-lru\r\n", true},
        {MEMORY "maxmemory_policy:volatile-ttl\r\n", true},
        {MEMORY "maxmemory_policy:noeviction\r\n", false},
        {"maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\n", false},
        {MEMORY, false}, /* no policy */
        {"maxmemory_policy:allkeys-lru\r\n", false},
        {"", false},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        struct dlock_error e = {0};
        if (CHECK(redis_check_eviction(t[i].info, strlen(t[i].info), "h:1", &e) == t[i].warns))
            CHECK((e.code != 0) == t[i].warns);
        else
            printf("# %zu\n", i);
    }
    struct dlock_error e;
    CHECK(redis_check_eviction(t[1].info, strlen(t[1].info), "h:1", &e));
    CHECK_HAS(e.msg, "h:1: ");
    CHECK_HAS(e.msg, "(maxmemory-policy volatile-ttl)");
    CHECK_HAS(e.msg, "noeviction");
}

TEST(warns_without_append_only_file)
{
    static const char off[] = "loading:0\r\naof_enabled:0\r\n", on[] = "aof_enabled:1\r\n";
    struct dlock_error e = {0};
    CHECK(!redis_check_persistence(on, strlen(on), "h:1", DLOCK_SEC, 0, &e));
    CHECK(!redis_check_persistence("", 0, "h:1", DLOCK_SEC, 0, &e));
    CHECK(!redis_check_persistence(off, strlen(off), "h:1", DLOCK_SEC, DLOCK_SEC, &e));
    CHECK_INT(e.code, 0);
    CHECK(redis_check_persistence(off, strlen(off), "h:1", DLOCK_SEC, DLOCK_SEC - 1, &e));
    CHECK(e.code != 0);
    CHECK_HAS(e.msg, "?restart-grace=1s");
    CHECK_HAS(e.msg, "appendonly yes");
    CHECK(redis_check_persistence(off, strlen(off), "h:1", 1500 * DLOCK_MSEC + 1, 0, &e));
    CHECK_HAS(e.msg, "?restart-grace=1501ms");
}

static redisReply text_reply(char *text)
{
    return (redisReply){.type = REDIS_REPLY_STRING, .str = text, .len = strlen(text)};
}

TEST(warnings_come_one_after_the_other)
{
    char evicts[] = "maxmemory:1\r\nmaxmemory_policy:allkeys-lru\r\n",
         forgets[] = "aof_enabled:0\r\n";
    redisReply memory = text_reply(evicts), persistence = text_reply(forgets);
    redisReply refusal = {.type = REDIS_REPLY_ERROR, .str = "NOPERM", .len = 6};
    redisReply odd = {.type = REDIS_REPLY_INTEGER};
    struct redis_checks c = {0};
    struct event_queue none = {0};
    struct dlock_event ev;
    redis_checks_answered(&c, &memory, "h:1", DLOCK_SEC, 0);
    redis_checks_answered(&c, &persistence, "h:1", DLOCK_SEC, 0);
    c.nwarnings = DLOCK_LEN(c.warnings); /* no room: dropped */
    redis_checks_answered(&c, &memory, "h:1", DLOCK_SEC, 0);
    c.nwarnings = 2;
    REQUIRE(redis_checks_take(&c, &none, &ev));
    CHECK_HAS(ev.error.msg, "maxmemory-policy");
    REQUIRE(redis_checks_take(&c, &none, &ev));
    CHECK_HAS(ev.error.msg, "appendonly");
    CHECK(!redis_checks_take(&c, &none, &ev));
    /* A refusal is reported once. */
    redis_checks_answered(&c, &refusal, "h:1", DLOCK_SEC, 0);
    redis_checks_answered(&c, &refusal, "h:1", DLOCK_SEC, 0);
    redis_checks_answered(&c, &odd, "h:1", DLOCK_SEC, 0);
    REQUIRE(redis_checks_take(&c, &none, &ev));
    CHECK_INT(ev.error.code, DLOCK_EUNAVAIL);
    CHECK_HAS(ev.error.msg, "INFO is refused");
    CHECK(!redis_checks_take(&c, &none, &ev));
}

TEST(asks_once_and_only_when_connected)
{
    struct redis_checks c = {0};
    struct redis_conn closed = {0};
    redis_checks_granted(&c);
    CHECK(c.due);
    redis_checks_ask(&c, &closed, 1, true);
    CHECK(!c.due);
    CHECK(!c.asked);
    redis_checks_granted(&c);
    CHECK(c.due);
    c.asked = true;
    redis_checks_granted(&c);
    CHECK(!c.due);
}

/* ----------------------------------------------------------------------- clock */

#define WALL INT64_C(1790000000000) /* ms */

TEST(finds_jumps_of_the_clock)
{
    static const struct {
        int64_t ours, theirs; /* ms since the first one */
        int64_t trip;         /* ms: the server reads its clock in the middle */
        int64_t jump;         /* ms; expected, give or take half a trip */
    } t[] = {
        {10000, 10000, 1, 0},         {10000, 10099, 1, 0}, /* drift */
        {10000, 10590, 1, 0},                               /* 0.5 s and drift */
        {10000, 10610, 1, 610},       {10000, 9390, 1, -610},     {10000, 9410, 1, 0},
        {10000, 70000, 1, 60000},     {10000, -50000, 1, -60000}, {10000, 12000, 100, 2000},
        {10000, 10900, 1000, 0},      /* a round trip of a second may explain it */
        {10000, 11700, 1000, 1700},   /* but not this one */
        {1000000, 1010000, 1, 0},     /* 1 % of a long time */
        {1000000, 1011000, 1, 11000}, /* more */
        {60000, 60000, 50000, 0},     /* this process was stopped meanwhile */
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        struct redis_clock c = {0};
        int64_t base = 5 * DLOCK_SEC, sent = base + t[i].ours * DLOCK_MSEC;
        CHECK_INT(redis_clock_jump(&c, WALL, base, base + DLOCK_MSEC), 0);
        int64_t got = redis_clock_jump(&c, WALL + t[i].theirs + t[i].trip / 2, sent,
                                       sent + t[i].trip * DLOCK_MSEC);
        int64_t off = got - t[i].jump * DLOCK_MSEC;
        if (!CHECK(t[i].jump == 0 ? got == 0
                                  : got != 0 && off < 3 * DLOCK_MSEC && -off < 3 * DLOCK_MSEC))
            printf("# %zu: %lld\n", i, (long long)got);
        /* Reported once: from now on the new time counts. */
        sent += 1000 * DLOCK_MSEC + t[i].trip * DLOCK_MSEC;
        CHECK_INT(
            redis_clock_jump(&c, WALL + t[i].theirs + t[i].trip + 1000, sent, sent + DLOCK_MSEC),
            0);
    }
}

TEST(ignores_impossible_clocks)
{
    struct redis_clock c = {0};
    CHECK_INT(redis_clock_jump(&c, WALL, 10 * DLOCK_SEC, 10 * DLOCK_SEC), 0);
    struct redis_clock before = c;
    CHECK_INT(redis_clock_jump(&c, 0, 20 * DLOCK_SEC, 20 * DLOCK_SEC), 0);
    CHECK_INT(redis_clock_jump(&c, -1, 20 * DLOCK_SEC, 20 * DLOCK_SEC), 0);
    CHECK_INT(redis_clock_jump(&c, INT64_MAX, 20 * DLOCK_SEC, 20 * DLOCK_SEC), 0);
    CHECK_INT(redis_clock_jump(&c, WALL, 0, 20 * DLOCK_SEC), 0);
    CHECK_INT(redis_clock_jump(&c, WALL, 20 * DLOCK_SEC, 10 * DLOCK_SEC), 0);
    CHECK(memcmp(&c, &before, sizeof(c)) == 0);
    /* The extremes that are accepted. */
    CHECK(redis_clock_jump(&c, INT64_MAX / 2 / DLOCK_MSEC - 1, 20 * DLOCK_SEC, 20 * DLOCK_SEC) > 0);
    CHECK(redis_clock_jump(&c, 1, 30 * DLOCK_SEC, 30 * DLOCK_SEC) < 0);
}

TEST(messages_about_a_jump)
{
    struct dlock_error e;
    char text[96];
    CHECK_STR(redis_clock_text(59996 * DLOCK_MSEC, text, sizeof(text)),
              "the server's clock was set forward by 60 s");
    CHECK_STR(redis_clock_text(-2040 * DLOCK_MSEC, text, sizeof(text)),
              "the server's clock was set back by 2 s");
    redis_clock_warning(-DLOCK_SEC, "h:1", &e);
    CHECK(e.code != 0);
    CHECK_HAS(e.msg, "h:1: the server's clock was set back by 1 s: leases there last longer");
    redis_clock_warning(DLOCK_SEC, "h:1", &e);
    CHECK_HAS(e.msg, "end early");
}

UNIT_MAIN
