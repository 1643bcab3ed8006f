/* Which votes of recently started servers count: the rules, on invented uptimes, ttls and times. */
#include "backends/redis/redlock_young.h"
#include "unit.h"

#define S DLOCK_SEC
#define MS DLOCK_MSEC
#define BEGAN (1000 * S)
#define DAY_MS INT64_C(86400000)
#define YEAR_MS (365 * DAY_MS)

/* n servers that have been up for a year and have voted. Our ttl is 10 s. */
static struct redlock_young round_of(int n)
{
    struct redlock_young y = {.grace = 10 * S,
                              .unreported_ttl = REDLOCK_LONGEST_TTL,
                              .began = BEGAN,
                              .until = BEGAN + 4 * S,
                              .op_timeout = 4 * S,
                              .n = n,
                              .quorum = n / 2 + 1};
    for (int i = 0; i < n; i++) {
        y.server[i].voted = true;
        y.server[i].up_ms = YEAR_MS;
    }
    return y;
}

static void silence(struct redlock_young *y, int i)
{
    y->server[i].voted = false;
    y->server[i].asked = BEGAN;
}

TEST(our_own_ttl_is_the_least_age)
{
    struct redlock_young y = round_of(3);
    CHECK_INT(redlock_young_age_ms(&y), 10000);
    y.server[1].longest_ms = 2000;
    CHECK_INT(redlock_young_age_ms(&y), 10000);
    y.grace = 10 * S + 1; /* rounded up */
    CHECK_INT(redlock_young_age_ms(&y), 10001);
}

TEST(the_largest_reported_ttl_is_the_age)
{
    struct redlock_young y = round_of(5);
    y.server[1].longest_ms = 60000;
    y.server[4].longest_ms = 30000;
    CHECK_INT(redlock_young_age_ms(&y), 60000);
    CHECK_INT(redlock_young_needed_ms(&y, BEGAN), 60000);
    /* The last server's report counts as the first server's does, also without its vote. */
    y.server[4].longest_ms = 90000;
    y.server[4].voted = false;
    CHECK_INT(redlock_young_age_ms(&y), 90000);
}

TEST(an_answer_tells_the_largest_ttl_of_holder_and_waiters)
{
    static const struct {
        bool held;
        int64_t ttl_ms, left_ms, others_ms, longest_ms;
    } t[] = {
        {true, 60000, 20000, 0, 60000},
        {true, 60000, 20000, 90000, 90000},
        {true, 60000, 20000, 30000, 60000},
        /* The rest of a lease is no ttl. */
        {true, 60000, 61000, 0, 60000},
        {true, 60000, -1, 0, 60000},
        /* A free lock has the ttl of its waiters. */
        {false, 0, 0, 0, 0},
        {false, 0, 5000, 0, 0},
        {false, 60000, 5000, 30000, 30000},
        /* The lock of another program counts a day, or its time left. */
        {true, 0, 20000, 0, DAY_MS},
        {true, 0, -1, 0, DAY_MS},
        {true, 0, 3 * DAY_MS, 0, 3 * DAY_MS},
        {true, 0, 3 * DAY_MS, 5 * DAY_MS, 5 * DAY_MS},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++)
        CHECK_INT(redlock_young_longest_ms(t[i].held, t[i].ttl_ms, t[i].left_ms, t[i].others_ms),
                  t[i].longest_ms);
}

TEST(a_silent_servers_last_report_is_kept_but_not_an_unknown_ttl)
{
    CHECK_INT(redlock_young_kept_ms(0), 0);
    CHECK_INT(redlock_young_kept_ms(60000), 60000);
    CHECK_INT(redlock_young_kept_ms(DAY_MS - 1), DAY_MS - 1);
    CHECK_INT(redlock_young_kept_ms(DAY_MS), 0);
    CHECK_INT(redlock_young_kept_ms(3 * DAY_MS), 0);
}

TEST(no_restart_grace_needs_no_age)
{
    struct redlock_young y = round_of(3);
    y.grace = y.unreported_ttl = 0;
    y.server[0].longest_ms = 60000;
    y.server[0].up_ms = y.server[1].up_ms = -5;
    y.server[2].longest_ms = DAY_MS;
    CHECK_INT(redlock_young_age_ms(&y), 0);
    CHECK_INT(redlock_young_needed_ms(&y, BEGAN), 0);
    silence(&y, 2);
    CHECK_INT(redlock_young_needed_ms(&y, BEGAN), 0);
    y.unreported_ttl = REDLOCK_LONGEST_TTL;
    CHECK_INT(redlock_young_needed_ms(&y, BEGAN), 0);
    y.server[0].up_ms = y.server[1].up_ms = 0;
    CHECK(redlock_young_decides(&y, BEGAN));
}

/* Without a silent server nothing is waited for, whatever the votes are worth. */
TEST(a_round_in_which_every_server_has_answered_decides)
{
    struct redlock_young y = round_of(3);
    CHECK_INT(redlock_young_complete_at(&y), 0);
    CHECK(redlock_young_decides(&y, BEGAN));
    y.server[0].up_ms = y.server[1].up_ms = y.server[2].up_ms = 500;
    CHECK(redlock_young_decides(&y, BEGAN));
    CHECK_INT(redlock_young_needed_ms(&y, BEGAN), 10000);
}

TEST(a_majority_of_old_servers_waits_for_no_silent_server)
{
    struct redlock_young y = round_of(3);
    silence(&y, 2);
    y.server[1].up_ms = DAY_MS;
    CHECK_INT(redlock_young_needed_ms(&y, BEGAN), DAY_MS);
    CHECK(redlock_young_decides(&y, BEGAN));
}

TEST(servers_up_for_less_than_a_day_wait_for_silent_servers)
{
    struct redlock_young y = round_of(3);
    silence(&y, 2);
    y.server[1].up_ms = DAY_MS - 1;
    CHECK(!redlock_young_decides(&y, BEGAN));
    CHECK(!redlock_young_decides(&y, BEGAN + S - 1));
    CHECK_INT(redlock_young_needed_ms(&y, BEGAN + S - 1), DAY_MS);
    /* It has timed out: the reported ttls decide. */
    CHECK_INT(redlock_young_complete_at(&y), BEGAN + S);
    CHECK(redlock_young_decides(&y, BEGAN + S));
    CHECK_INT(redlock_young_needed_ms(&y, BEGAN + S), 10000);
    /* It has answered. */
    y.server[2].asked = 0;
    CHECK(redlock_young_decides(&y, BEGAN));
    CHECK_INT(redlock_young_needed_ms(&y, BEGAN), 10000);
}

/* A server that has no vote for us is no old server, however long it has been up. */
TEST(old_servers_count_by_their_votes)
{
    struct redlock_young y = round_of(5);
    silence(&y, 4);
    y.server[0].up_ms = 1000;
    y.server[1].voted = false;
    CHECK(!redlock_young_decides(&y, BEGAN));
    y.server[1].voted = true;
    CHECK(redlock_young_decides(&y, BEGAN));
}

TEST(a_reported_ttl_above_a_day_needs_that_age_while_a_server_is_silent)
{
    struct redlock_young y = round_of(3);
    silence(&y, 2);
    y.server[0].longest_ms = 3 * DAY_MS;
    y.server[0].up_ms = y.server[1].up_ms = 3 * DAY_MS - 1;
    CHECK_INT(redlock_young_needed_ms(&y, BEGAN), 3 * DAY_MS);
    CHECK(!redlock_young_decides(&y, BEGAN));
}

/* The user says that no client has a larger ttl. */
TEST(a_given_restart_grace_waits_for_no_silent_server)
{
    struct redlock_young y = round_of(3);
    y.grace = y.unreported_ttl = 20 * S;
    silence(&y, 2);
    y.server[0].up_ms = y.server[1].up_ms = 20000;
    CHECK_INT(redlock_young_needed_ms(&y, BEGAN), 20000);
    CHECK(redlock_young_decides(&y, BEGAN));
    /* A larger ttl that a server has reported counts all the same. */
    y.server[2].longest_ms = 60000;
    CHECK_INT(redlock_young_needed_ms(&y, BEGAN), 60000);
    CHECK(!redlock_young_decides(&y, BEGAN));
}

TEST(a_given_restart_grace_that_a_server_has_not_reached_is_no_vote)
{
    struct redlock_young y = round_of(3);
    y.grace = y.unreported_ttl = 40 * S;
    y.server[0].up_ms = 39999;
    CHECK(y.server[0].up_ms < redlock_young_needed_ms(&y, BEGAN));
    y.server[0].up_ms = 40000;
    CHECK(y.server[0].up_ms >= redlock_young_needed_ms(&y, BEGAN));
    y.server[0].up_ms = -1; /* the server's clock was set back */
    CHECK(y.server[0].up_ms < redlock_young_needed_ms(&y, BEGAN));
}

TEST(a_server_times_out_after_the_shortest_of_its_three_times)
{
    struct redlock_young y = round_of(3);
    silence(&y, 0);
    CHECK_INT(redlock_young_complete_at(&y), BEGAN + S);
    y.op_timeout = 250 * MS;
    CHECK_INT(redlock_young_complete_at(&y), BEGAN + 250 * MS);
    y.until = BEGAN + 100 * MS;
    CHECK_INT(redlock_young_complete_at(&y), BEGAN + 100 * MS);
    /* Half of the first contact: the second round needs the rest. */
    y.first_contact = true;
    CHECK_INT(redlock_young_complete_at(&y), BEGAN + 50 * MS);
    y.until = BEGAN + 30 * S;
    CHECK_INT(redlock_young_complete_at(&y), BEGAN + 250 * MS);
}

/* The time of a server that owes an older answer began earlier. */
TEST(the_last_silent_server_ends_the_wait)
{
    struct redlock_young y = round_of(5);
    y.server[1].up_ms = y.server[2].up_ms = 60000;
    silence(&y, 3);
    silence(&y, 4);
    y.server[4].asked = BEGAN - 700 * MS;
    CHECK_INT(redlock_young_complete_at(&y), BEGAN + S);
    y.server[3].asked = BEGAN - 700 * MS;
    y.server[4].asked = BEGAN;
    CHECK_INT(redlock_young_complete_at(&y), BEGAN + S);
    CHECK(!redlock_young_decides(&y, BEGAN + 300 * MS));
    y.server[4].asked = 0;
    CHECK_INT(redlock_young_complete_at(&y), BEGAN + 300 * MS);
    CHECK(!redlock_young_decides(&y, BEGAN + 300 * MS - 1));
    CHECK(redlock_young_decides(&y, BEGAN + 300 * MS));
}

UNIT_MAIN
