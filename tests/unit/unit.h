/*
 * unit.h - a small test framework. A unit test is one program:
 *
 *     #include "unit.h"
 *     #include "uri.h"
 *
 *     TEST(parses_a_path)
 *     {
 *         CHECK_STR(uri->scheme, "file");
 *         CHECK_INT(uri->nhosts, 0);
 *         CHECK(uri->bare);
 *     }
 *     UNIT_MAIN
 *
 * TEST registers itself. Every check goes on after a failure; REQUIRE* leave the test. The program
 * prints TAP; a failure shows file, line and both values; the exit code is 1 when anything failed.
 * An argument runs only the tests whose name contains it; none: exit code 1. SKIP("why") ends a
 * test as skipped.
 */
#ifndef UNIT_H
#define UNIT_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct unit_test {
    const char *name;
    void (*fn)(void);
    struct unit_test *next;
};

static struct unit_test *unit_first, **unit_last = &unit_first;
static int unit_failures; /* of the test that runs */
static const char *unit_skipped;

#define TEST(test)                                                                                 \
    static void test_##test(void);                                                                 \
    __attribute__((constructor)) static void register_##test(void)                                 \
    {                                                                                              \
        static struct unit_test t = {#test, test_##test, NULL};                                    \
        *unit_last = &t;                                                                           \
        unit_last = &t.next;                                                                       \
    }                                                                                              \
    static void test_##test(void)

/* A test between two statements, which a failure does not leave out. */
#define TEST_WITHIN(begin, end, test)                                                              \
    static void within_##test(void);                                                               \
    TEST(test)                                                                                     \
    {                                                                                              \
        begin;                                                                                     \
        within_##test();                                                                           \
        end;                                                                                       \
    }                                                                                              \
    static void within_##test(void)

__attribute__((format(printf, 3, 4), unused)) static bool unit_fail(const char *file, int line,
                                                                    const char *fmt, ...)
{
    va_list ap;
    unit_failures++;
    printf("# %s:%d: ", file, line);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    return false;
}

__attribute__((unused)) static bool unit_int(const char *file, int line, const char *expr,
                                             intmax_t got, intmax_t want)
{
    return got == want ||
           unit_fail(file, line, "%s is %" PRIdMAX ", not %" PRIdMAX, expr, got, want);
}

/* Printed so that control characters and the end of the string can be seen. */
__attribute__((unused)) static void unit_quote(const char *s, char *out, size_t size)
{
    size_t n = 0;
    if (!s) {
        snprintf(out, size, "NULL");
        return;
    }
    out[n++] = '"';
    for (; *s && n + 7 < size; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20 || c == 0x7f)
            n += (size_t)snprintf(out + n, size - n, "\\x%02x", c);
        else
            out[n++] = *s;
    }
    snprintf(out + n, size - n, *s ? "...\"" : "\"");
}

__attribute__((unused)) static bool unit_str(const char *file, int line, const char *expr,
                                             const char *got, const char *want)
{
    char g[1100], w[1100];
    if (got == want || (got && want && strcmp(got, want) == 0))
        return true;
    unit_quote(got, g, sizeof(g));
    unit_quote(want, w, sizeof(w));
    return unit_fail(file, line, "%s is %s, not %s", expr, g, w);
}

/* got contains want */
__attribute__((unused)) static bool unit_has(const char *file, int line, const char *expr,
                                             const char *got, const char *want)
{
    char g[1100], w[1100];
    if (got && strstr(got, want))
        return true;
    unit_quote(got, g, sizeof(g));
    unit_quote(want, w, sizeof(w));
    return unit_fail(file, line, "%s is %s, without %s", expr, g, w);
}

#define UNIT_AT __FILE__, __LINE__

#define CHECK(cond) ((cond) ? true : unit_fail(UNIT_AT, "not true: %s", #cond))
#define CHECK_INT(got, want) unit_int(UNIT_AT, #got, (intmax_t)(got), (intmax_t)(want))
#define CHECK_STR(got, want) unit_str(UNIT_AT, #got, (got), (want))
#define CHECK_HAS(got, want) unit_has(UNIT_AT, #got, (got), (want))
#define CHECK_NULL(p) ((p) == NULL ? true : unit_fail(UNIT_AT, "not NULL: %s", #p))
#define CHECK_FAIL(...) unit_fail(UNIT_AT, __VA_ARGS__)

#define UNIT_OR_RETURN(check)                                                                      \
    do {                                                                                           \
        if (!(check))                                                                              \
            return;                                                                                \
    } while (0)
#define REQUIRE(cond) UNIT_OR_RETURN(CHECK(cond))
#define REQUIRE_INT(got, want) UNIT_OR_RETURN(CHECK_INT(got, want))
#define REQUIRE_STR(got, want) UNIT_OR_RETURN(CHECK_STR(got, want))

#define SKIP(why)                                                                                  \
    do {                                                                                           \
        unit_skipped = (why);                                                                      \
        return;                                                                                    \
    } while (0)

/* Is this an emulated machine (tests/platforms)? Its speed and its load say nothing. */
__attribute__((unused)) static bool unit_emulated(void)
{
    return getenv("UNIT_EMULATED") != NULL;
}

/* A slow machine, or one that runs another suite: see tests/run. */
__attribute__((unused)) static bool unit_slow(void)
{
    return getenv("DLOCK_SLOW") != NULL;
}

/* How long something may take that takes less than ns on a machine of its own. */
__attribute__((unused)) static int64_t unit_bound(int64_t ns)
{
    return ns * (unit_emulated() ? 100 : unit_slow() ? 5 : 1);
}

__attribute__((unused)) static int unit_main(int argc, char **argv)
{
    int n = 0, failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (struct unit_test *t = unit_first; t; t = t->next) {
        if (argc > 1 && !strstr(t->name, argv[1]))
            continue;
        unit_failures = 0;
        unit_skipped = NULL;
        t->fn();
        failed += unit_failures > 0;
        printf("%sok %d %s%s%s\n", unit_failures ? "not " : "", ++n, t->name,
               unit_skipped ? " # skip " : "", unit_skipped ? unit_skipped : "");
    }
    printf("1..%d\n", n);
    if (n == 0)
        printf("# no test has \"%s\" in its name\n", argc > 1 ? argv[1] : "");
    return failed > 0 || n == 0;
}

#define UNIT_MAIN                                                                                  \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        return unit_main(argc, argv);                                                              \
    }

#endif
