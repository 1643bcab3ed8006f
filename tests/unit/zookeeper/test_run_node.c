/*
 * test_run_node.c - the run records of --once in ZooKeeper: their paths, their days, their text.
 * Other releases must find and read them.
 */
#include "unit.h"

#include "user.h"

TEST(a_record_has_one_path)
{
    static const struct {
        const char *uri, *path, *index;
    } rows[] = {
        {"zk://h#job", "/dlock-once/r/fa/job", "/dlock-once/d/2026-11-23/fa/job"},
        {"zk://h/a/b/#job", "/a/b/dlock-once/r/fa/job", "/a/b/dlock-once/d/2026-11-23/fa/job"},
        {"zk://h/a#b/c", "/a/dlock-once/r/b8/b%2Fc", "/a/dlock-once/d/2026-11-23/b8/b%2Fc"},
        {"zk://h#b%252Fc", "/dlock-once/r/f0/b%252Fc", "/dlock-once/d/2026-11-23/f0/b%252Fc"},
        {"zk://h#%C3%A4%20x", "/dlock-once/r/6d/\xc3\xa4 x",
         "/dlock-once/d/2026-11-23/6d/\xc3\xa4 x"},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        if (!CHECK_INT(open_uri(rows[i].uri), 0))
            continue;
        CHECK_STR(u.be.run.path.record, rows[i].path);
        char *index = zk_index_path(&u.be, "2026-11-23", u.be.run.path.place);
        CHECK_STR(index, rows[i].index);
        free(index);
        index = zk_index_path(&u.be, "2026-11-23", "");
        CHECK(index && strncmp(index, rows[i].index, strlen(index)) == 0 &&
              index[strlen(index) - 1] == '3');
        free(index);
    }
}

TEST(no_lock_is_where_the_records_are)
{
    static const char *const bad[] = {
        "zk://h#dlock-once",     "zk://h#dlock-once/r/00/x",  "zk://h#dlock-once2",
        "zk://h/a#dlock-once-x", "zk://h/a/dlock-once#r",     "zk://h/dlock-once/r#00/x",
        "zk://h#a/dlock-once",   "zk://h#a/dlock-once/d/day",
    };
    check_refused(bad, DLOCK_LEN(bad), "run records");
    static const char *const good[] = {"zk://h#dlock-onc", "zk://h#xdlock-once",
                                       "zk://h#a/dlock-once2"};
    for (size_t i = 0; i < DLOCK_LEN(good); i++)
        CHECK_INT(open_uri(good[i]), 0);
}

TEST(days_are_those_of_utc)
{
    static const struct {
        int64_t ms;
        const char *day;
    } rows[] = {
        {0, "1970-01-01"},
        {-5, "1970-01-01"},
        {INT64_C(1795391999999), "2026-11-22"},
        {INT64_C(1795392000000), "2026-11-23"},
        {INT64_C(1709164800000), "2024-02-29"},
        {INT64_C(253402300799999), "9999-12-31"},
        {INT64_MAX, "9999-12-31"},
    };
    char day[ZK_DAY_LEN + 1];
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        zk_day(rows[i].ms, day);
        CHECK_STR(day, rows[i].day);
        CHECK(zk_is_day(day));
    }
    static const char *const bad[] = {"",           "2026-11-2",  "2026-11-230",
                                      "2026/11/23", "x026-11-23", "20261-1-23"};
    for (size_t i = 0; i < DLOCK_LEN(bad); i++)
        CHECK(!zk_is_day(bad[i]));
}

#define TOKEN "0123456789abcdef0123456789abcdef"
#define WHO "dlock1 host=web1 pid=7 user=joe since=5 waited=0 cmd=x note="

/* A get of a node that was set at 1000000 and has this data. */
static struct zk_msg node(const char *data, int len)
{
    return (struct zk_msg){.data = (char *)(uintptr_t)data,
                           .len = len,
                           .stat = {.version = 3, .mtime = 1000000, .dataLength = len}};
}

TEST(reads_a_record_by_the_times_of_its_node)
{
    static const char text[] =
        "dlock-run1 succeeded 24 77 " TOKEN " 5000 6000 86400000 " WHO " day=2026-11-24";
    struct zk_msg m = node(text, (int)strlen(text));
    struct zk_run r = {.there = false};
    CHECK_NULL(zk_read_run(&m, 1000500, &r));
    CHECK(r.there);
    CHECK_INT(r.version, 3);
    CHECK_STR(r.day, "2026-11-24");
    CHECK_INT(r.run.state, DLOCK_RUN_SUCCEEDED);
    CHECK_INT(r.run.status, 24);
    CHECK_INT(r.run.fence, 77);
    CHECK_STR(r.run.token, TOKEN);
    CHECK_STR(r.run.host, "web1");
    CHECK_INT(r.run.begin_ms, 5000);
    CHECK_INT(r.run.end_ms, 1000000);
    CHECK_INT(r.run.age_ns, 500 * DLOCK_MSEC);
    CHECK_INT(zk_run_over_ms(&r.run), 1000000 + 86400000);
    /* A clock that was set back a little makes nothing older. */
    CHECK_NULL(zk_read_run(&m, 5, &r));
    CHECK_INT(r.run.age_ns, 0);
    CHECK_NULL(zk_read_run(&m, -1, &r));
    CHECK_INT(r.run.age_ns, -1000001 * DLOCK_MSEC);
    /* So does a time of the future in the data, which a stranger may have written now. */
    static const char forged[] =
        "dlock-run1 succeeded 24 77 " TOKEN " 5000 9000000 86400000 " WHO " day=2026-11-24";
    struct zk_msg f = node(forged, (int)strlen(forged));
    CHECK_NULL(zk_read_run(&f, 1000500, &r));
    CHECK_INT(r.run.age_ns, (1000500 - 9000000) * DLOCK_MSEC);
    static const char running[] =
        "dlock-run1 running -1 77 " TOKEN " 5000 0 86400000 " WHO " day=2026-11-24";
    m = node(running, (int)strlen(running));
    CHECK_NULL(zk_read_run(&m, 1000500, &r));
    CHECK_INT(r.run.begin_ms, 1000000);
    CHECK_INT(r.run.end_ms, 0);
    /* Whatever a server says, no sum of it overflows. */
    static const int64_t odd[] = {INT64_MIN, -1, 0, INT64_MAX};
    for (size_t i = 0; i < DLOCK_LEN(odd); i++) {
        m = node(text, (int)strlen(text));
        m.stat.mtime = odd[i];
        CHECK_NULL(zk_read_run(&m, zk_stat_ms(odd[DLOCK_LEN(odd) - 1 - i]), &r));
        CHECK(zk_run_over_ms(&r.run) >= 0);
    }
    /* Without a day, or with something like it. */
    static const char *const ends[] = {"", " day=2026-11-2", " day=2026-11-2x", "day=2026-11-24"};
    for (size_t i = 0; i < DLOCK_LEN(ends); i++) {
        char other[400];
        snprintf(other, sizeof other, "%.*s%s", (int)strlen(text) - 15, text, ends[i]);
        m = node(other, (int)strlen(other));
        CHECK_NULL(zk_read_run(&m, 1000500, &r));
        CHECK_STR(r.day, "");
    }
}

TEST(takes_nothing_else_for_a_record)
{
    static const char text[] =
        "dlock-run1 succeeded 0 77 " TOKEN " 5000 6000 86400000 " WHO " day=2026-11-24";
    struct zk_run r = {.version = 4711};
    struct zk_msg m = node("", 0);
    CHECK_STR(zk_read_run(&m, 0, &r), "an empty node");
    m = node("192.0.2.1", 9);
    CHECK_STR(zk_read_run(&m, 0, &r), "a node with other data");
    m = node(text, 12);
    CHECK_STR(zk_read_run(&m, 0, &r), "a node with other data");
    char *huge = malloc(1 << 20);
    REQUIRE(huge);
    memset(huge, 'x', 1 << 20);
    memcpy(huge, text, strlen(text));
    m = node(huge, 1 << 20);
    CHECK_STR(zk_read_run(&m, 0, &r), "a node with other data");
    free(huge);
    m = node(text, (int)strlen(text));
    m.stat.ephemeralOwner = 1;
    CHECK_STR(zk_read_run(&m, 0, &r), "an ephemeral node");
    m.stat.ephemeralOwner = 0;
    m.stat.numChildren = 1;
    CHECK_STR(zk_read_run(&m, 0, &r), "a node with children");
    CHECK(!r.there && r.version == 4711);
}

TEST(writes_what_it_reads)
{
    char text[RUN_RECORD_MAX];
    struct dlock_run run = {.state = DLOCK_RUN_FAILED,
                            .status = 137,
                            .fence = 9,
                            .token = TOKEN,
                            .begin_ms = 5,
                            .end_ms = 6,
                            .kept_ns = 3600 * DLOCK_SEC};
    REQUIRE_INT(open_uri("zk://h#n"), 0);
    for (int longest = 0; longest < 2; longest++) {
        struct zk_run r;
        zk_format_run(&u.be, &run, "2026-11-24", text);
        struct zk_msg m = node(text, (int)strlen(text));
        CHECK_NULL(zk_read_run(&m, 1000000, &r));
        CHECK_INT(r.run.status, 137);
        CHECK_INT(r.run.kept_ns, run.kept_ns);
        CHECK_STR(r.run.token, TOKEN);
        CHECK_STR(r.day, "2026-11-24");
        /* However long the names are: an encoded byte has three. */
        memset(u.identity.host, '%', sizeof u.identity.host - 1);
        memset(u.identity.user, '%', sizeof u.identity.user - 1);
        memset(u.identity.note, '%', sizeof u.identity.note - 1);
    }
}

UNIT_MAIN
