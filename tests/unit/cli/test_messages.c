/* How holders and waiters are described (cli/messages.c). */
#include "messages.h"
#include "unit.h"
#include "util.h"

#include <time.h>

static int64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

TEST(a_holder_is_described_with_the_time_of_its_grant_and_its_wait)
{
    /* The middle of each unit: the test may be stopped for a while. */
    static const struct {
        int64_t ago_s, waited_ms;
        const char *want;
    } rows[] = {
        {210, -1, " (3 min ago): n"},
        {210, 999, " (3 min ago): n"},
        {210, 45678, " (3 min ago, waited 45 s): n"},
        {5400 + 30, 119999, " (90 min ago, waited 119 s): n"},
        {19800, 120000, " (5 h ago, waited 2 min): n"},
        {9 * 86400 + 43200, 50 * 3600 * 1000, " (9 days ago, waited 2 days): n"},
        /* A clock ahead of ours. */
        {-3600, -1, " +0530: n"},
        {-3600, 7200000, " +0530 (waited 2 h): n"},
    };

    setenv("TZ", "XYZ-5:30", 1);
    tzset();
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        struct dlock_info info = {.pid = 7, .host = "web1", .user = "root", .note = "n"};
        char text[1024];

        info.since_ms = now_ms() - rows[i].ago_s * 1000;
        info.waited_ms = rows[i].waited_ms;
        message_holder(&info, text, sizeof(text));
        CHECK_HAS(text, "pid 7 on web1 by root since 20");
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
    char text[1024];

    setenv("TZ", "XYZ-5:30", 1);
    tzset();
    CHECK_HAS(message_holder(&info, text, sizeof(text)), "pid 7 since 2026-09-21 19:43:20 +0530");
    info.since_ms = 0;
    CHECK_STR(message_holder(&info, text, sizeof(text)), "pid 7");
}

UNIT_MAIN
