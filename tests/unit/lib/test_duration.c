/* Durations: every documented form is accepted, all others are refused. */
#include "unit.h"
#include "util.h"

#include <locale.h>

TEST(good_durations)
{
    static const struct {
        const char *text;
        int64_t ns;
    } good[] = {
        {"0", 0},
        {"10", 10 * DLOCK_SEC},
        {"0.5", DLOCK_SEC / 2},
        {".5", DLOCK_SEC / 2},
        {"5.", 5 * DLOCK_SEC},
        {"5.s", 5 * DLOCK_SEC},
        {"500ms", 500 * DLOCK_MSEC},
        {"0.25ms", 250000},
        {"30s", 30 * DLOCK_SEC},
        {"1.5m", 90 * DLOCK_SEC},
        {"2h", 7200 * DLOCK_SEC},
        {"1d", 86400 * DLOCK_SEC},
        {"0.1d", 8640 * DLOCK_SEC},
        {"007", 7 * DLOCK_SEC},
        {"0000000000000000000000000000001", DLOCK_SEC},
        {"1.000000001", DLOCK_SEC + 1},
        {"1.0000000019", DLOCK_SEC + 1},
        {"0.00000000000000000000000000000000000001", 0},
        {"36525d", INT64_C(36525) * 86400 * DLOCK_SEC},
        {"3155760000", INT64_C(3155760000) * DLOCK_SEC},
        /* Words, as systemd has them. */
        {"100msec", 100 * DLOCK_MSEC},
        {"100msecs", 100 * DLOCK_MSEC},
        {"5sec", 5 * DLOCK_SEC},
        {"5secs", 5 * DLOCK_SEC},
        {"1second", DLOCK_SEC},
        {"5seconds", 5 * DLOCK_SEC},
        {"10min", 600 * DLOCK_SEC},
        {"10mins", 600 * DLOCK_SEC},
        {"1minute", 60 * DLOCK_SEC},
        {"1.5minutes", 90 * DLOCK_SEC},
        {"1hr", 3600 * DLOCK_SEC},
        {"2hrs", 7200 * DLOCK_SEC},
        {"1hour", 3600 * DLOCK_SEC},
        {"2hours", 7200 * DLOCK_SEC},
        {"1day", 86400 * DLOCK_SEC},
        {"2days", 172800 * DLOCK_SEC},
        /* Several parts, as Go has them. */
        {"1h30m", 5400 * DLOCK_SEC},
        {"1m30s", 90 * DLOCK_SEC},
        {"1h30min", 5400 * DLOCK_SEC},
        {"1hr30mins", 5400 * DLOCK_SEC},
        {"2h5m10.5s", 7510 * DLOCK_SEC + DLOCK_SEC / 2},
        {"1h0m0s", 3600 * DLOCK_SEC},
        {"1d2h3m4s5ms", 93784 * DLOCK_SEC + 5 * DLOCK_MSEC},
        {"1h1ms", 3600 * DLOCK_SEC + DLOCK_MSEC},
        {"0h90m", 5400 * DLOCK_SEC},
        {"1h.5m", 3630 * DLOCK_SEC},
        {"36524d24h", INT64_C(36525) * 86400 * DLOCK_SEC},
    };
    for (size_t i = 0; i < DLOCK_LEN(good); i++) {
        int64_t ns = -7;
        struct dlock_error err = {0};
        if (dlock_parse_duration(good[i].text, &ns, &err) != 0 || ns != good[i].ns)
            CHECK_FAIL("\"%s\" is %" PRId64 " (%s)", good[i].text, ns, err.msg);
    }
}

static void is_refused(const char *text, const char *why)
{
    int64_t ns = -7;
    struct dlock_error err = {0};
    char want[200], clean[200];
    if (dlock_parse_duration(text, &ns, &err) != DLOCK_EUSAGE)
        CHECK_FAIL("\"%s\" was accepted as %" PRId64, text, ns);
    CHECK_INT(ns, -7);
    CHECK_INT(err.code, DLOCK_EUSAGE);
    snprintf(want, sizeof(want), "\"%s\" is %s", text, why);
    dlock_clean_text(clean, sizeof(clean), want, strlen(want));
    CHECK_STR(err.msg, clean);
}

/* The message has the value, and what may be written instead. */
TEST(bad_durations)
{
    static const char why[] = "not a duration: write 10, 0.5, 500ms, 1.5m, 10min, 1h30m or 1d";
    static const char *const bad[] = {
        "",      ".",       "..",     "-1",     "+1",     " 1",     "1 ",       "1 s",  "\t1",
        "1e3",   "1E3",     "0x10",   "inf",    "nan",    "INF",    "infinity", "1,5",  "1.2.3",
        "s",     "ms",      ".s",     "1S",     "1M",     "1hh",    "1H",       "1Min", "1month",
        "1us",   "min",     "1minn",  "1mi",    "1h30",   "130h30", "30m1h",    "1h1h", "1h1hr",
        "1ms1s", "1.5h30m", "1.h30m", "1h 30m", "1h-30m", "1h+30m", "1h,30m",   "h30m", "1h30m!",
        "1h.m",  "1w",      "abc",    "1\n",    "٣"};
    for (size_t i = 0; i < DLOCK_LEN(bad); i++)
        is_refused(bad[i], why);
    is_refused("1h1h99999999999999999999d", why);
    CHECK_INT(dlock_parse_duration("x", &(int64_t){0}, NULL), DLOCK_EUSAGE);
}

TEST(long_durations)
{
    static const char *const bad[] = {"36524d24.1h",
                                      "36525d1ms",
                                      "36526d",
                                      "36525.1d",
                                      "3155760001",
                                      "106752d",
                                      "2562048h",
                                      "36525d99999999999999999999h",
                                      "99999999999999999999h99999999999999999999m",
                                      "3155760000.000000001",
                                      "9223372036854775807",
                                      "9223372036854775808",
                                      "18446744073709551617",
                                      "99999999999999999999999999999999999999",
                                      "99999999999999999999ms"};
    for (size_t i = 0; i < DLOCK_LEN(bad); i++)
        is_refused(bad[i], "too long: at most 100 years");
}

TEST(a_locale_changes_nothing)
{
    int64_t ns = 0;
    setlocale(LC_ALL, "de_DE.UTF-8");
    CHECK_INT(dlock_parse_duration("1.5", &ns, NULL), 0);
    CHECK_INT(ns, 3 * DLOCK_SEC / 2);
    setlocale(LC_ALL, "C");
}

TEST(formats)
{
    static const struct {
        int64_t ns;
        const char *text;
    } rows[] = {
        {0, "0 s"},
        {-5, "0 s"},
        {1, "0.001 ms"},
        {250000, "0.25 ms"},
        {DLOCK_MSEC, "1 ms"},
        {250 * DLOCK_MSEC, "250 ms"},
        {250 * DLOCK_MSEC + 1, "251 ms"},
        {999 * DLOCK_MSEC, "999 ms"},
        {999 * DLOCK_MSEC + 1, "1 s"},
        {DLOCK_SEC, "1 s"},
        {3 * DLOCK_SEC / 2, "1.5 s"},
        {1050 * DLOCK_MSEC, "1.05 s"},
        {1200 * DLOCK_MSEC + 1, "1.201 s"},
        {30 * DLOCK_SEC, "30 s"},
        {7200 * DLOCK_SEC, "7200 s"},
        {DLOCK_NEVER, "no limit"},
        {DLOCK_NEVER - 1, "9223372036.855 s"},
    };
    char buf[64], tiny[4];
    for (size_t i = 0; i < DLOCK_LEN(rows); i++)
        CHECK_STR(dlock_format_duration(rows[i].ns, buf, sizeof(buf)), rows[i].text);
    CHECK_STR(dlock_format_duration(30 * DLOCK_SEC, tiny, sizeof(tiny)), "30 ");
}

UNIT_MAIN
