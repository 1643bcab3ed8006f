/* Errors, and the small helpers: clock, tokens, pauses. */
#include "unit.h"
#include "util.h"

#include <errno.h>
#include <time.h>

TEST(each_report_has_a_name)
{
    for (int i = DLOCK_REPORT_NONE; i <= DLOCK_REPORT_FINDING; i++)
        if (dlock_report_name((enum dlock_report_type)i)[0] < 'A')
            CHECK_FAIL("%d: %s", i, dlock_report_name((enum dlock_report_type)i));
    CHECK_STR(dlock_report_name(DLOCK_REPORT_NONE), "NONE");
    CHECK_STR(dlock_report_name(DLOCK_REPORT_RELEASED), "RELEASED");
    CHECK_STR(dlock_report_name(DLOCK_REPORT_FINDING), "FINDING");
    CHECK_STR(dlock_report_name((enum dlock_report_type)(DLOCK_REPORT_FINDING + 1)), "?");
    CHECK_STR(dlock_report_name((enum dlock_report_type) - 1), "?");
}

TEST(table)
{
    CHECK_INT(dlock_error_exit(DLOCK_OK), 0);
    CHECK_INT(dlock_error_exit(DLOCK_EUSAGE), 64);
    CHECK_INT(dlock_error_exit(DLOCK_EDATA), 65);
    CHECK_INT(dlock_error_exit(DLOCK_EUNAVAIL), 69);
    CHECK_INT(dlock_error_exit(DLOCK_ENOBACKEND), 69);
    CHECK_INT(dlock_error_exit(DLOCK_EUNUSABLE), 69);
    CHECK_INT(dlock_error_exit(DLOCK_EOS), 71);
    CHECK_INT(dlock_error_exit(DLOCK_ENOMEM), 71);
    CHECK_INT(dlock_error_exit(DLOCK_ECREATE), 73);
    CHECK_INT(dlock_error_exit(DLOCK_EBUSY), 75);
    CHECK_INT(dlock_error_exit(DLOCK_EPROTO), 76);
    CHECK_INT(dlock_error_exit(DLOCK_EPERM), 77);
    CHECK_INT(dlock_error_exit(DLOCK_ELOST), 79);
    CHECK_STR(dlock_error_name(DLOCK_EBUSY), "DLOCK_EBUSY");
    CHECK_STR(dlock_error_name(DLOCK_ELOST), "DLOCK_ELOST");
    CHECK_STR(dlock_error_name(DLOCK_OK), "DLOCK_OK");
    CHECK_STR(dlock_error_text(DLOCK_EBUSY), "the lock is held by others");
    CHECK(dlock_error_retryable(DLOCK_EBUSY));
    CHECK(dlock_error_retryable(DLOCK_EUNAVAIL));
    CHECK(!dlock_error_retryable(DLOCK_EPERM));
    CHECK(!dlock_error_retryable(DLOCK_EUNUSABLE));
    CHECK(!dlock_error_retryable(DLOCK_OK));
}

/* Any number has a text, and only success has exit code 0. */
TEST(no_such_code)
{
    static const int codes[] = {1, 75, DLOCK_ECANCELED - 1, -1000, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < DLOCK_LEN(codes); i++) {
        CHECK_INT(dlock_error_exit(codes[i]), 71);
        CHECK(dlock_error_text(codes[i])[0]);
        CHECK(dlock_error_name(codes[i])[0]);
        CHECK(!dlock_error_retryable(codes[i]));
    }
}

TEST(fail_fills)
{
    struct dlock_error err;
    char big[2000];
    errno = EXDEV;
    CHECK_INT(dlock_fail(&err, DLOCK_EPERM, EACCES, "%s: %d", "a\nb\x1b[1m\x7f", 7), DLOCK_EPERM);
    CHECK_INT(errno, EXDEV);
    CHECK_INT(err.code, DLOCK_EPERM);
    CHECK_INT(err.sys, EACCES);
    CHECK_STR(err.msg, "a?b?[1m?: 7");
    CHECK_INT(dlock_fail(NULL, DLOCK_EBUSY, 0, "x"), DLOCK_EBUSY);
    /* a message that contains the former one */
    dlock_fail(&err, DLOCK_EPERM, 0, "one");
    dlock_fail(&err, err.code, 0, "zero: %s", err.msg);
    CHECK_STR(err.msg, "zero: one");
    dlock_fail(&err, DLOCK_EUNAVAIL, 0, "host: cannot connect: %s", "");
    CHECK_STR(err.msg, "host: cannot connect");
    /* cut between characters */
    memset(big, 'x', sizeof(big));
    memcpy(big + 510, "\xc3\xa4", 3);
    dlock_fail(&err, DLOCK_EPERM, 0, "%s", big);
    CHECK_INT(strlen(err.msg), 510);
}

static int fixed_random(void *ctx, void *buf, size_t len)
{
    if (!ctx)
        return -EIO;
    memset(buf, *(unsigned char *)ctx, len);
    return 0;
}

/* The parts are joined once, and the cause can be had without the store and the lock. */
TEST(fail_joins_the_parts)
{
    static const struct {
        struct dlock_site at;
        const char *cause, *msg, *alone;
    } rows[] = {
        {{NULL, NULL, NULL}, "refused", "refused", "refused"},
        {{"s://h", NULL, NULL}, "refused", "s://h: refused", "refused"},
        {{"s://h", NULL, NULL}, "", "s://h", ""},
        {{"s://h", "::1", NULL}, "refused", "s://h (::1): refused", "::1: refused"},
        {{"s://h", NULL, "n"}, "refused", "s://h: refused (lock 'n')", "refused"},
        {{"s://h", "::1", "n"}, "no: ", "s://h (::1): no (lock 'n')", "::1: no"},
        {{"h:1", NULL, "n"}, "refused", "h:1: refused (lock 'n')", "h:1: refused"},
        {{"s://h", NULL, NULL}, "s://u:p@h", "s://h: s://***@h", "s://***@h"},
    };
    char big[2000];
    struct dlock_error err, alone;
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        CHECK_INT(dlock_fail_site(&err, DLOCK_EOS, 5, &rows[i].at, "%s", rows[i].cause), DLOCK_EOS);
        CHECK_STR(err.msg, rows[i].msg);
        /* The span of dlock.h: the end of the cause alone, which may have the place in front. */
        snprintf(big, sizeof(big), "%.*s", err.cause_len, err.msg + err.cause_at);
        CHECK(err.cause_len > 0 ? strstr(rows[i].alone, big) != NULL : !rows[i].alone[0]);
        dlock_error_cause(&alone, &err, "s://h");
        CHECK_STR(alone.msg, rows[i].alone);
        CHECK_INT(alone.code, DLOCK_EOS);
        CHECK_INT(alone.sys, 5);
    }
    /* The end of a text that is too long is cut, wherever that is. */
    memset(big, 'x', sizeof(big));
    big[sizeof(big) - 1] = '\0';
    for (int n = 490; n < 520; n++) {
        char lock[600];
        snprintf(lock, sizeof(lock), "%.*s", n, big);
        struct dlock_site at = {"s://h", "::1", lock};
        dlock_fail_site(&err, DLOCK_EOS, 0, &at, "refused");
        CHECK_INT(strlen(err.msg), 511);
        dlock_error_cause(&alone, &err, "s://h");
        CHECK_STR(alone.msg, "::1: refused");
        at = (struct dlock_site){lock, "::1", "job"};
        dlock_fail_site(&err, DLOCK_EOS, 0, &at, "refused");
        CHECK(strncmp(err.msg, lock, strlen(lock) < 511 ? strlen(lock) : 511) == 0);
        dlock_error_cause(&alone, &err, lock);
        CHECK(n > 511 || strlen(alone.msg) <= strlen("::1: refused"));
        at = (struct dlock_site){"s://h", NULL, "job"};
        dlock_fail_site(&err, DLOCK_EOS, 0, &at, "%s", big);
        dlock_error_cause(&alone, &err, "s://h");
        CHECK_INT(strlen(alone.msg), 511 - strlen("s://h: "));
    }
}

TEST(tokens)
{
    unsigned char byte = 0xbd;
    struct dlock_env env = {.random = fixed_random, .ctx = &byte};
    char a[DLOCK_TOKEN_LEN + 1] = "", b[DLOCK_TOKEN_LEN + 1] = "";
    CHECK_INT(dlock_token_new(&env, a), 0);
    CHECK_STR(a, "bdbdbdbdbdbdbdbdbdbdbdbdbdbdbdbd");
    env.ctx = NULL;
    CHECK_INT(dlock_token_new(&env, b), -EIO);
    CHECK_STR(b, "");
    CHECK_INT(dlock_token_new(&dlock_env_system, a), 0);
    CHECK_INT(dlock_token_new(&dlock_env_system, b), 0);
    CHECK_INT(strspn(a, "0123456789abcdef"), DLOCK_TOKEN_LEN);
    CHECK(strcmp(a, b) != 0);
}

TEST(clock_counts_suspend)
{
    struct timespec ts;
    int64_t before, now;
    clock_gettime(CLOCK_BOOTTIME, &ts);
    before = ts.tv_sec * DLOCK_SEC + ts.tv_nsec;
    now = dlock_now();
    CHECK(now >= before && now < before + 60 * DLOCK_SEC);
    CHECK(dlock_env_system.now(dlock_env_system.ctx) >= now);
}

/* Pauses stay within [base/2, cap], and cap doubles up to max. */
TEST(backoff_grows_and_is_bounded)
{
    struct dlock_backoff b = {.base = 100, .max = 1000};
    static const int64_t caps[] = {100, 200, 400, 800, 1000, 1000};
    for (int round = 0; round < 200; round++) {
        dlock_backoff_reset(&b);
        for (size_t i = 0; i < DLOCK_LEN(caps); i++) {
            int64_t p = dlock_backoff_next(&b, &dlock_env_system);
            if (p < 50 || p > caps[i])
                CHECK_FAIL("pause %zu is %" PRId64, i, p);
        }
    }
}

TEST(backoff_extremes)
{
    unsigned char byte = 0xff;
    struct dlock_env env = {.random = fixed_random, .ctx = &byte};
    struct dlock_backoff b = {.base = DLOCK_SEC, .max = DLOCK_NEVER};
    for (int i = 0; i < 200; i++) {
        int64_t p = dlock_backoff_next(&b, &env);
        CHECK(p >= DLOCK_SEC / 2);
    }
    env.ctx = NULL; /* no randomness: the whole cap */
    b = (struct dlock_backoff){.base = 10, .max = 40};
    CHECK_INT(dlock_backoff_next(&b, &env), 10);
    CHECK_INT(dlock_backoff_next(&b, &env), 20);
    CHECK_INT(dlock_backoff_next(&b, &env), 40);
    CHECK_INT(dlock_backoff_next(&b, &env), 40);
    b = (struct dlock_backoff){.base = 10, .max = 0};
    CHECK_INT(dlock_backoff_next(&b, &env), 10);
    CHECK_INT(dlock_backoff_next(&b, &env), 10);
    b = (struct dlock_backoff){0};
    CHECK_INT(dlock_backoff_next(&b, &dlock_env_system), 0);
}

UNIT_MAIN
