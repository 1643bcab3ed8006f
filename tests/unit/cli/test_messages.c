/*
 * How holders, waiters and waits are described, and a line is cut for a terminal (cli/messages.c,
 * cli/report.c).
 */
#include "messages.h"
#include "report.h"
#include "unit.h"
#include "util.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

TEST(durations_have_two_units_at_most)
{
    static const struct {
        int64_t ns;
        const char *want;
    } rows[] = {
        {-1, "0ms"},
        {0, "0ms"},
        {999 * DLOCK_MSEC + 999999, "999ms"},
        {DLOCK_SEC, "1s"},
        {1399 * DLOCK_MSEC, "1.3s"},
        {9999 * DLOCK_MSEC, "9.9s"},
        {10900 * DLOCK_MSEC, "10s"},
        {59 * DLOCK_SEC, "59s"},
        {60 * DLOCK_SEC, "1m"},
        {130 * DLOCK_SEC, "2m10s"},
        {600 * DLOCK_SEC, "10m"},
        {3599 * DLOCK_SEC, "59m59s"},
        {3600 * DLOCK_SEC + 59 * DLOCK_SEC, "1h"},
        {3780 * DLOCK_SEC, "1h3m"},
        {86399 * DLOCK_SEC, "23h59m"},
        {86400 * DLOCK_SEC, "1d"},
        {9 * 86400 * DLOCK_SEC + 43200 * DLOCK_SEC, "9d12h"},
        {INT64_C(36525) * 86400 * DLOCK_SEC, "36525d"},
    };
    char text[32];
    for (size_t i = 0; i < DLOCK_LEN(rows); i++)
        CHECK_STR(message_duration(rows[i].ns, text, sizeof(text)), rows[i].want);
}

TEST(a_holder_is_described_by_what_is_known)
{
    static const struct dlock_info rows[] = {
        {.user = "root", .host = "ci-4", .pid = 812, .command = "deploy.sh", .note = "disk 2"},
        {.user = "root", .host = "ci-4", .pid = 812},
        {.user = "root", .pid = 812, .command = "sh"},
        {.host = "ci-4", .pid = 812, .command = "sh"},
        {.pid = 812, .command = "flock x"},
        {.host = "ci-4"},
        {.host = "ci-4", .foreign = true, .command = "Curator"},
        {.foreign = true},
        {.foreign = true, .left_ns = DLOCK_NEVER},
        {.host = "ci-4", .left_ns = DLOCK_NEVER},
        {.foreign = true, .left_ns = DLOCK_NEVER, .pid = 812, .command = "flock x"},
        {.user = "root", .host = "ci-4"},
        {.pid = 1, .mode = DLOCK_MODE_SHARED},
        {.pid = 1, .note = "say \"no\" \\ or, pid 2"},
        {.pid = 1, .note = "redis://me:a\"b@h:1/0 ends"},
    };
    static const char *const want[] = {
        "held by root@ci-4, pid 812 (deploy.sh), note \"disk 2\"",
        "held by root@ci-4, pid 812",
        "held by root, pid 812 (sh)",
        "held by ci-4, pid 812 (sh)",
        "held by pid 812 (flock x)",
        "held by another process on ci-4",
        "held by a program that is not dlock on ci-4 (Curator)",
        "held by a program that is not dlock",
        "held by a program that is not dlock, in a key that never expires",
        "held by a process that cannot be seen from here",
        "held by pid 812 (flock x)",
        "held by root@ci-4",
        "held (shared) by pid 1",
        "held by pid 1, note \"say \\\"no\\\" \\\\ or, pid 2\"",
        "held by pid 1, note \"redis://***@h:1/0 ends\"",
    };
    char text[1400];
    for (size_t i = 0; i < DLOCK_LEN(rows); i++)
        CHECK_STR(message_holder(&rows[i], text, sizeof(text)), want[i]);
    CHECK_STR(message_holder(NULL, text, sizeof(text)), "held by another process");
}

TEST(a_holder_is_described_with_how_long_it_has_the_lock)
{
    static const struct {
        int64_t ago_s;
        const char *want;
    } rows[] = {
        /* The middle of each unit: the test may be stopped for a while. */
        {0, "held by pid 7"},
        {210 * 60 + 30, "held for 3h30m by pid 7"},
        {9 * 86400 + 1800, "held for 9d by pid 7"},
        {-3600, "held by pid 7"}, /* a clock ahead of ours */
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        struct dlock_info info = {.pid = 7, .waited_ms = -1};
        char text[1400];
        info.since_ms = now_ms() - rows[i].ago_s * 1000;
        CHECK_STR(message_holder(&info, text, sizeof(text)), rows[i].want);
    }
}

TEST(the_longest_description_is_not_cut)
{
    struct dlock_info info = {.pid = INT32_MAX, .since_ms = 1, .waited_ms = 1000};
    char text[1400];
    memset(info.host, 'h', sizeof(info.host) - 1);
    memset(info.user, 'u', sizeof(info.user) - 1);
    memset(info.command, 'c', sizeof(info.command) - 1);
    memset(info.note, '"', sizeof(info.note) - 1);
    message_holder(&info, text, sizeof(text));
    CHECK_STR(text + strlen(text) - 3, "\\\"\"");
    message_process(&info, text, sizeof(text));
    CHECK_STR(text + strlen(text) - 3, "\\\"\"");
}

TEST(status_shows_the_time_of_the_grant_and_its_wait)
{
    /* The middle of each unit: the test may be stopped for a while. */
    static const struct {
        int64_t ago_s, waited_ms;
        const char *want;
    } rows[] = {
        {210 * 60 + 30, -1, " (3h30m ago), note \"n\""},
        {210 * 60 + 30, 999, " (3h30m ago), note \"n\""},
        {210 * 60 + 30, 45678, " (3h30m ago, waited 45s), note \"n\""},
        {9 * 86400 + 1800, 50 * 3600 * 1000, " (9d ago, waited 2d2h), note \"n\""},
        /* A clock ahead of ours. */
        {-3600, -1, " +0530, note \"n\""},
        {-3600, 7200000, " +0530 (waited 2h), note \"n\""},
    };
    setenv("TZ", "XYZ-5:30", 1);
    tzset();
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        struct dlock_info info = {.pid = 7, .host = "web1", .user = "root", .note = "n"};
        char text[1400];
        info.since_ms = now_ms() - rows[i].ago_s * 1000;
        info.waited_ms = rows[i].waited_ms;
        message_process(&info, text, sizeof(text));
        CHECK_HAS(text, "root@web1, pid 7, since 20");
        CHECK_HAS(text, " +0530");
        if (!CHECK_HAS(text, rows[i].want))
            printf("# row %zu\n", i);
        CHECK(strlen(text) > strlen(rows[i].want) &&
              strcmp(text + strlen(text) - strlen(rows[i].want), rows[i].want) == 0);
    }
}

TEST(times_are_shown_with_their_offset)
{
    struct dlock_info info = {.pid = 7, .since_ms = INT64_C(1790000000123), .waited_ms = -1};
    char text[1400];
    setenv("TZ", "XYZ-5:30", 1);
    tzset();
    CHECK_HAS(message_process(&info, text, sizeof(text)), "pid 7, since 2026-09-21 19:43:20 +0530");
    info.since_ms = 0;
    CHECK_STR(message_process(&info, text, sizeof(text)), "pid 7");
}

/* ---------------------------------------------------------------- wait --- */

/* Without a terminal. */
static struct options waits(int64_t wait_ns)
{
    if (!freopen("/dev/null", "w", stderr))
        printf("# %m\n");
    return (struct options){.mode = MODE_FD, .fd = 9, .wait_ns = wait_ns};
}

#define HOLDER "; held by root@ci-4, pid 812"

TEST(a_wait_is_described_by_its_time_its_place_and_the_holder)
{
    static const struct {
        int64_t waited, limit;
        int place;
        bool known;
        const char *want;
    } rows[] = {
        {1, DLOCK_NEVER, 0, false, "1s; held by another process"},
        {130, 600 * DLOCK_SEC, 3, true, "2m10s of 10m, 3rd in line" HOLDER},
        {5, 5500 * DLOCK_MSEC, 1, true, "5s of 5.5s, next in line" HOLDER},
        {61, DLOCK_NEVER, 2, true, "1m1s, 2nd in line" HOLDER},
        {61, DLOCK_NEVER, 4, true, "1m1s, 4th in line" HOLDER},
        {61, DLOCK_NEVER, 11, true, "1m1s, 11th in line" HOLDER},
        {61, DLOCK_NEVER, 21, true, "1m1s, 21st in line" HOLDER},
        {61, DLOCK_NEVER, 112, true, "1m1s, 112th in line" HOLDER},
        {61, DLOCK_NEVER, 1003, true, "1m1s, 1003rd in line" HOLDER},
    };
    static const char begin[] = "waiting for descriptor 9: ";
    struct dlock_info holder = {.user = "root", .host = "ci-4", .pid = 812};
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        struct options o = waits(rows[i].limit);
        struct dlock_report heard = {.place = rows[i].place,
                                     .info = rows[i].known ? &holder : NULL};
        struct report r;
        char text[4000];
        report_begin(&r, &o, NULL, NULL);
        report_waiting(&r, &heard);
        /* Less than a second more. */
        report_wait_text(&r, r.wait.since + rows[i].waited * DLOCK_SEC + 999 * DLOCK_MSEC, text,
                         sizeof(text));
        CHECK(strncmp(text, begin, strlen(begin)) == 0);
        CHECK_STR(text + strlen(begin), rows[i].want);
    }
}

TEST(a_holder_is_not_named_while_the_store_does_not_answer)
{
    struct dlock_info holder = {.user = "root", .host = "ci-4", .pid = 812};
    struct dlock_report heard = {.place = 2, .info = &holder}, trouble = {.since = dlock_now()};
    struct dlock_options lo;
    dlock_options_init(&lo, sizeof lo);
    struct options o = waits(DLOCK_NEVER);
    char text[4000], held[] = "waiting for 'job': 5s, 2nd in line; held by root@ci-4, pid 812";
    struct report r;
    dlock *lk;
    /* A build without Redis has no store that can be silent. */
    int rc = dlock_open(&lk, "redis://127.0.0.1:1#job", &lo, NULL);
    if (rc == DLOCK_ENOBACKEND || !CHECK_INT(rc, 0))
        return;
    report_begin(&r, &o, lk, NULL);
    int64_t now = r.wait.since + 5 * DLOCK_SEC;
    CHECK_STR(report_wait_text(&r, now, text, sizeof(text)),
              "waiting for 'job': 5s; no answer yet from redis://127.0.0.1:1/0");
    report_waiting(&r, &heard);
    CHECK_STR(report_wait_text(&r, now, text, sizeof(text)), held);
    report_trouble(&r, &trouble);
    CHECK_STR(report_wait_text(&r, now, text, sizeof(text)),
              "waiting for 'job': 5s; no answer from redis://127.0.0.1:1/0");
    report_recovered(&r, &trouble);
    CHECK_STR(report_wait_text(&r, now, text, sizeof(text)), held);
    dlock_close(lk);
}

/*
 * The times (s) at which a line about the wait was due until a time, when the holder changes every
 * change_every.
 */
static size_t lines(int64_t change_every, int64_t until, int64_t *at, size_t max)
{
    struct options o = waits(DLOCK_NEVER);
    struct dlock_info holder = {.pid = 1};
    struct dlock_report heard = {.info = &holder};
    struct report r;
    size_t n = 0;
    setenv("CI", "1", 1);
    report_begin(&r, &o, NULL, NULL);
    report_waiting(&r, &heard);
    for (int64_t t = 0; t < until; t += DLOCK_SEC / 10) {
        if (change_every > 0 && t > 0 && t % change_every == 0) {
            holder.pid++;
            report_waiting(&r, &heard);
        }
        if (r.wait.since + t < report_wake(&r))
            continue;
        if (n < max)
            at[n++] = t / DLOCK_SEC;
        report_tick(&r, r.wait.since + t);
    }
    unsetenv("CI");
    return n;
}

TEST(a_line_after_a_second_then_every_half_minute_and_for_another_holder)
{
    static const struct {
        int64_t change_every, until;
        size_t n;
        int64_t at[12];
    } rows[] = {
        {0, 100 * DLOCK_SEC, 4, {1, 31, 61, 91}},
        {20 * DLOCK_SEC, 65 * DLOCK_SEC, 4, {1, 20, 40, 60}},
        {45 * DLOCK_SEC, 100 * DLOCK_SEC, 5, {1, 31, 45, 75, 90}},
        /* Short jobs: a pause that grows. */
        {DLOCK_SEC / 2, 120 * DLOCK_SEC, 8, {1, 2, 4, 8, 16, 32, 62, 92}},
        {3 * DLOCK_SEC, 40 * DLOCK_SEC, 6, {1, 3, 6, 10, 18, 34}},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        int64_t at[64];
        size_t n = lines(rows[i].change_every, rows[i].until, at, DLOCK_LEN(at));
        if (!CHECK_INT(n, rows[i].n))
            printf("# row %zu\n", i);
        for (size_t k = 0; k < n && k < rows[i].n; k++)
            if (!CHECK_INT(at[k], rows[i].at[k]))
                printf("# row %zu\n", i);
    }
}

TEST(a_wait_says_nothing_after_a_jump_of_time_but_one_line)
{
    struct options o = waits(DLOCK_NEVER);
    struct report r;
    setenv("CI", "1", 1);
    report_begin(&r, &o, NULL, NULL);
    int64_t later = r.wait.since + 3600 * DLOCK_SEC;
    report_tick(&r, later);
    CHECK(report_wake(&r) == later + 30 * DLOCK_SEC);
    unsetenv("CI");
}

TEST(a_wait_that_is_not_told_has_no_timer)
{
    struct options o = waits(DLOCK_NEVER);
    struct report r;
    setenv("CI", "false", 1);
    report_begin(&r, &o, NULL, NULL);
    CHECK(report_wake(&r) == DLOCK_NEVER);
    setenv("CI", "true", 1);
    CHECK(report_wake(&r) != DLOCK_NEVER);
    o.quiet = true;
    CHECK(report_wake(&r) == DLOCK_NEVER);
    unsetenv("CI");
}

/* ------------------------------------------------------------ terminal --- */

/*
 * In a process of its own: messages of that length to a terminal that no program reads, as many as
 * it could never hold.
 */
static _Noreturn void fill_terminal(int slave, int length)
{
    if (dup2(slave, STDERR_FILENO) < 0)
        _exit(2);
    alarm(40);
    for (int bytes = 0; bytes < 200000; bytes += length)
        message("%*d", length, bytes);
    _exit(0);
}

TEST(a_terminal_without_a_reader_does_not_hold_us_up)
{
    /* Which of them meets a terminal with room for a part depends on the kernel. */
    for (int length = 100; length <= 1900; length += 100) {
        int master = posix_openpt(O_RDWR | O_NOCTTY), status = -1, slave;
        if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0)
            SKIP("no terminal");
        slave = open(ptsname(master), O_RDWR | O_NOCTTY);
        pid_t pid = fork();
        if (pid == 0)
            fill_terminal(slave, length);
        CHECK(waitpid(pid, &status, 0) == pid);
        if (!CHECK_INT(status, 0))
            printf("# length %d\n", length);
        close(slave);
        close(master);
    }
}

TEST(a_line_is_cut_to_the_width_of_a_terminal)
{
    static const struct {
        int columns;
        const char *text, *want;
    } rows[] = {
        {6, "abcdef", "abcdef"},
        {5, "abcdef", "ab..."},
        {4, "abcdef", "a..."},
        {3, "abcdef", ""},
        {0, "abcdef", ""},
        {-3, "abcdef", ""},
        {9, "", ""},
        {6, "äöüéàè", "äöüéàè"},
        {5, "äöüéàè", "äö..."},
        /* They may have two columns. */
        {6, "日本語", "日本語"},
        {5, "日本語", "日..."},
        {6, "ab日本語", "ab..."},
        {5, "😀😀😀", "😀..."},
        {4, "😀😀😀", "..."},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        char text[64];
        snprintf(text, sizeof(text), "%s", rows[i].text);
        message_fit(text, rows[i].columns);
        if (!CHECK_STR(text, rows[i].want))
            printf("# row %zu\n", i);
    }
}

UNIT_MAIN
