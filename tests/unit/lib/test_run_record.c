/* The record of --once as text (lib/run_record.c): written, read, and not believed. */
#include "run_record.h"
#include "unit.h"
#include "util.h"

#define MS DLOCK_MSEC
#define TOKEN "0123456789abcdef0123456789abcdef"
#define WHO "dlock1 host=h9 pid=77 user=ann since=5 cmd=job.sh note=disk%202"

static struct dlock_hold hold;
static struct dlock_uri uri = {.name = (char[]){"job"}, .where = (char[]){"stub://h"}};
static const struct dlock_spec spec = {.uri = &uri, .hold = &hold};

static bool parse(const char *text, int64_t now_ms, struct dlock_run *r)
{
    return run_record_parse(text, strlen(text), now_ms, r);
}

TEST(what_is_written_is_read_again)
{
    static const enum dlock_run_state states[] = {DLOCK_RUN_RUNNING, DLOCK_RUN_FAILED,
                                                  DLOCK_RUN_SUCCEEDED};
    for (int i = 0; i < 3; i++) {
        struct dlock_run r = {.state = states[i],
                              .status = (int[]){-1, 255, 0}[i],
                              .fence = (uint64_t[]){0, 1, INT64_MAX - 1}[i],
                              .token = TOKEN,
                              .begin_ms = 1790000000000,
                              .end_ms = i ? 1790000005000 : 0,
                              .kept_ns = 3600 * DLOCK_SEC};
        struct dlock_run got;
        char text[RUN_RECORD_MAX];
        int n = run_record_format(&r, WHO, text, sizeof text);
        CHECK_INT(n, strlen(text));
        if (!CHECK(run_record_parse(text, (size_t)n, 1790000065000, &got)))
            continue;
        CHECK_INT(got.state, r.state);
        CHECK_INT(got.status, r.status);
        CHECK(got.fence == r.fence);
        CHECK_STR(got.token, TOKEN);
        CHECK_INT(got.begin_ms, r.begin_ms);
        CHECK_INT(got.end_ms, r.end_ms);
        CHECK_INT(got.kept_ns, r.kept_ns);
        CHECK_INT(got.age_ns / MS, i ? 60000 : 65000);
        CHECK_INT(got.pid, 77);
        CHECK_STR(got.host, "h9");
        CHECK_STR(got.user, "ann");
        CHECK_STR(got.command, "job.sh");
        CHECK_STR(got.note, "disk 2");
    }
}

/* Hosts run different releases: this form stays. */
TEST(the_form_is_frozen)
{
    struct dlock_run r = {.state = DLOCK_RUN_SUCCEEDED,
                          .status = 24,
                          .fence = 7,
                          .token = TOKEN,
                          .begin_ms = 1000,
                          .end_ms = 2000,
                          .kept_ns = 2592000 * DLOCK_SEC};
    char text[RUN_RECORD_MAX];
    run_record_format(&r, WHO, text, sizeof text);
    CHECK_STR(text, "dlock-run1 succeeded 24 7 " TOKEN " 1000 2000 2592000000 " WHO);
    CHECK_INT(run_record_format(&r, WHO, text, 60), -1);
}

TEST(a_record_of_the_longest_holder_fits)
{
    static struct dlock_identity who;
    const struct dlock_spec s = {.uri = &uri, .identity = &who};
    struct dlock_run r = {.state = DLOCK_RUN_SUCCEEDED,
                          .status = -1,
                          .fence = INT64_MAX - 1,
                          .token = TOKEN,
                          .begin_ms = INT64_MAX / 2,
                          .end_ms = INT64_MAX / 2,
                          .kept_ns = DLOCK_NEVER};
    char text[RUN_RECORD_MAX], part[RUN_RECORD_MAX];
    memset(who.host, 'h', sizeof who.host - 1);
    memset(who.user, 'u', sizeof who.user - 1);
    /* Each of these bytes is written as three. */
    memset(who.command, '%', sizeof who.command - 1);
    memset(who.note, '%', sizeof who.note - 1);
    who.pid = 4194304;
    who.since_ms = INT64_MAX / 2;
    CHECK(run_record_who(&s, part, sizeof part) > 0);
    int n = run_record_format(&r, part, text, sizeof text);
    CHECK(n > 0 && run_record_parse(text, (size_t)n, 0, &r));
    CHECK_INT(r.pid, 4194304);
}

TEST(only_a_success_within_the_time_of_this_run_skips)
{
    static const struct {
        const char *state;
        int64_t end, now, once;
        bool skips;
    } rows[] = {
        {"succeeded", 5000, 6000, 1001, true},
        {"succeeded", 5000, 6000, 1000, false},
        {"succeeded", 5000, 6000, 999, false},
        {"failed", 5000, 6000, 9999, false},
        {"running", 0, 6000, 9999999, false},
        /* A clock that was set back, or forward by centuries. */
        {"succeeded", 5000, 4000, 1, true},
        {"succeeded", 5000, -1, 1, true},
        {"succeeded", 2000000, 1000000, 1, true},
        {"succeeded", 5000, INT64_MAX / 2, 9999999, false},
        /* A forged record, or a clock that was set back further. */
        {"succeeded", 2000001, 1000000, 9999999, false},
        {"succeeded", INT64_MAX / 2, 0, 9999999, false},
        {"failed", INT64_MAX / 2, 0, 9999999, false},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        struct dlock_run r;
        char text[400];
        snprintf(text, sizeof text, "dlock-run1 %s 0 7 " TOKEN " 1000 %" PRId64 " 60000 %s",
                 rows[i].state, rows[i].end, WHO);
        if (!CHECK(parse(text, rows[i].now, &r)) ||
            !CHECK_INT(run_record_skips(&r, rows[i].once * MS), rows[i].skips))
            printf("# ... row %zu\n", i);
        struct dlock_error why = {.code = 0};
        bool ahead = rows[i].end > rows[i].now + 1000000 && r.state == DLOCK_RUN_SUCCEEDED;
        CHECK_INT(run_record_ahead(&r, &spec, &why), ahead);
        CHECK_INT(why.code, ahead ? DLOCK_ELOST : 0);
    }
}

TEST(the_end_of_a_run_is_that_of_the_hold)
{
    struct dlock_run r = {.state = DLOCK_RUN_RUNNING, .status = -1};
    hold = (struct dlock_hold){.success = true,
                               .status = 3}; /* not ended: cancelled, or never started */
    run_record_end(&spec, &r);
    CHECK_INT(r.state, DLOCK_RUN_FAILED);
    CHECK_INT(r.status, -1);
    hold = (struct dlock_hold){.ended = true, .success = true, .status = 24};
    run_record_end(&spec, &r);
    CHECK_INT(r.state, DLOCK_RUN_SUCCEEDED);
    CHECK_INT(r.status, 24);
    hold = (struct dlock_hold){.ended = true, .status = 137};
    run_record_end(&spec, &r);
    CHECK_INT(r.state, DLOCK_RUN_FAILED);
    CHECK_INT(r.status, 137);
}

TEST(foreign_contents_are_refused_and_change_nothing)
{
    static const char *const rows[] = {
        "",
        "x",
        "dlock-run1",
        "dlock-run1 ",
        "dlock-run2 succeeded 0 7 " TOKEN " 1 2 3 " WHO,
        "dlock-run1  succeeded 0 7 " TOKEN " 1 2 3 " WHO,
        " dlock-run1 succeeded 0 7 " TOKEN " 1 2 3 " WHO,
        "dlock-run1 success 0 7 " TOKEN " 1 2 3 " WHO,
        "dlock-run1 succeededsucceeded 0 7 " TOKEN " 1 2 3 " WHO,
        "dlock-run1 succeeded 256 7 " TOKEN " 1 2 3 " WHO,
        "dlock-run1 succeeded -2 7 " TOKEN " 1 2 3 " WHO,
        "dlock-run1 succeeded - 7 " TOKEN " 1 2 3 " WHO,
        "dlock-run1 succeeded 0x1 7 " TOKEN " 1 2 3 " WHO,
        "dlock-run1 succeeded 0 -7 " TOKEN " 1 2 3 " WHO,
        "dlock-run1 succeeded 0 9223372036854775807 " TOKEN " 1 2 3 " WHO,
        "dlock-run1 succeeded 0 99999999999999999999 " TOKEN " 1 2 3 " WHO,
        "dlock-run1 succeeded 0 999999999999999999999999999 " TOKEN " 1 2 3 " WHO,
        "dlock-run1 succeeded 0 7 0123456789abcdef0123456789abcde 1 2 3 " WHO,
        "dlock-run1 succeeded 0 7 0123456789abcdef0123456789abcdefa 1 2 3 " WHO,
        "dlock-run1 succeeded 0 7 0123456789ABCDEF0123456789ABCDEF 1 2 3 " WHO,
        "dlock-run1 succeeded 0 7 " TOKEN " -1 2 3 " WHO,
        "dlock-run1 succeeded 0 7 " TOKEN " 1 9223372036854775807 3 " WHO,
        "dlock-run1 succeeded 0 7 " TOKEN " 1 2 9223372036854775806 " WHO,
        "dlock-run1 succeeded 0 7 " TOKEN " 1 2 3",
        "dlock-run1 succeeded 0 7 " TOKEN " 1 2 3 ",
        "dlock-run1 succeeded 0 7 " TOKEN " 1 2 3 hello",
        "dlock-run1\tsucceeded\t0\t7\t" TOKEN "\t1\t2\t3\t" WHO,
    };
    static const char nul[] = "dlock-run1 succeeded\0 0 7 " TOKEN " 1 2 3 " WHO;
    static char long_one[1 << 20];
    struct dlock_run r, before;
    memset(&r, 0x5a, sizeof r);
    before = r;
    for (size_t i = 0; i < DLOCK_LEN(rows); i++)
        if (parse(rows[i], 5000, &r))
            CHECK_FAIL("accepted: %s", rows[i]);
    CHECK(!run_record_parse(nul, sizeof nul - 1, 5000, &r));
    int n = snprintf(long_one, sizeof long_one, "%s", rows[4]);
    memset(long_one + n, 'x', sizeof long_one - (size_t)n);
    long_one[9] = '1';
    CHECK(!run_record_parse(long_one, sizeof long_one, 5000, &r));
    CHECK(memcmp(&r, &before, sizeof r) == 0);
}

static bool is_clean(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            return false;
    return true;
}

/* Each text is in a block of its own size: what reads behind it is found by AddressSanitizer. */
TEST(no_byte_of_a_record_is_believed)
{
    static const char good[] =
        "dlock-run1 succeeded 0 7 " TOKEN " 1790000000000 1790000005000 3600000 " WHO;
    uint64_t seed = 88172645463325252;
    int read = 0;
    for (int i = 0; i < 20000; i++) {
        size_t len = sizeof good - 1;
        char text[sizeof good + 8];
        memcpy(text, good, sizeof good);
        for (int k = i % 4; k >= 0; k--) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            size_t at = seed % len;
            if (seed >> 40 & 1)
                text[at] = (char)(seed >> 32);
            else if (seed >> 41 & 1)
                len = at ? at : 1;
            else
                text[at] = "0-9 \033\n%"[seed >> 48 & 7];
        }
        char *exact = malloc(len);
        struct dlock_run r;
        memcpy(exact, text, len);
        if (run_record_parse(exact, len, 1790000006000, &r)) {
            read++;
            CHECK(is_clean(r.host) && is_clean(r.user) && is_clean(r.command) && is_clean(r.note));
            CHECK(r.status >= -1 && r.status <= 255 && r.kept_ns >= 0);
            CHECK_INT(strlen(r.token), DLOCK_TOKEN_LEN);
        }
        free(exact);
    }
    CHECK(read > 100 && read < 19000);
}

TEST(the_refusal_says_where_and_what_to_do)
{
    struct dlock_error err;
    CHECK_INT(run_record_foreign(&err, &spec, "the key 'x'"), DLOCK_EDATA);
    CHECK_STR(
        err.msg,
        "stub://h: the key 'x' is in the place of the run record, and dlock has not written it: "
        "remove it, or use another name (lock 'job')");
    CHECK_STR(run_record_state(DLOCK_RUN_FAILED), "failed");
}

UNIT_MAIN
