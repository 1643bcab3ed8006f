/*
 * test_redlock.c - the Redlock backend's slots against scripted servers, with the test's own clock:
 * each transition, and no busy loop by wake-ups in the past.
 */
#include "fakenodes.h"

#define TTL (30 * DLOCK_SEC)
#define OP (4 * DLOCK_SEC)

static struct world w; /* of the test that runs, or of the last test */

static const char other[] = "0123456789abcdef0123456789abcdef dlock1 host=x pid=1 user=u since=1";

static bool start(int n, int64_t ttl, int64_t op_timeout)
{
    if (w.be)
        world_close(&w);
    return world_open(&w, n, ttl, op_timeout);
}

/* How many servers still have the key. */
static int left(void)
{
    int keys = 0;
    for (int i = 0; i < w.n; i++)
        keys += w.f[i].value[0] != '\0';
    return keys;
}

/* On the first n servers: the value of the key ("": free); do they stop at this kind of command? */
static void set(int n, const char *value)
{
    for (int i = 0; i < n; i++)
        snprintf(w.f[i].value, sizeof(w.f[i].value), "%s", value);
}
static void slow(int n, enum fake_kind kind, bool on)
{
    for (int i = 0; i < n; i++)
        w.f[i].slow[kind] = on;
}

/* Let the time pass. EV_NONE: nothing ends until then; else the operation ends like that. */
static bool until(int64_t by, enum dlock_ev ends)
{
    pass(&w, by);
    return CHECK_INT(w.ended.type, ends);
}

static bool acquire(bool wait, int64_t by, enum dlock_ev ends)
{
    ACQUIRE(&w, wait);
    return until(by, ends);
}

static bool renew(int64_t by, enum dlock_ev ends)
{
    RENEW(&w);
    return until(by, ends);
}

static bool grant(void)
{
    return acquire(false, MSEC(10), EV_GRANTED);
}

/* A client that holds the lock of n servers. */
static bool start_held(int n)
{
    return start(n, TTL, OP) && grant();
}

static bool give_back(enum dlock_release_how how)
{
    RELEASE(&w);
    pass(&w, 6 * DLOCK_SEC);
    return CHECK_INT(w.ended.type, EV_RELEASED) && CHECK_INT(w.ended.how, how);
}

TEST(grant_renew_release)
{
    REQUIRE(start(3, TTL, OP));
    w.f[0].fence = 7;
    w.f[2].fence = 40;
    int64_t before = fake_clock;
    REQUIRE(grant());
    CHECK_INT(w.ended.fence, 41);
    CHECK_INT(w.f[0].fence, 41);
    CHECK(w.ended.from >= before && w.ended.from <= fake_clock);
    fake_clock += 8 * DLOCK_SEC;
    before = fake_clock;
    CHECK(renew(MSEC(10), EV_RENEWED));
    CHECK_INT(w.ended.from, before);
    CHECK(give_back(DLOCK_RELEASE_CLEAN));
    CHECK_INT(left(), 0);
}

/*
 * The votes behind the token may be over before the second round confirms them. A holder in between
 * leaves a higher counter on the server that votes late (tests/model/redlock.pml). While the votes
 * stand, that is impossible, and the late vote stands in for one that is not confirmed.
 */
TEST(a_late_vote_with_a_higher_counter_confirms_no_token_of_old_votes)
{
    for (int late = 0; late < 2; late++) {
        REQUIRE(start(3, 4 * DLOCK_SEC, OP));
        w.f[0].fence = w.f[1].fence = 7;
        w.f[2].fence = 40;
        w.f[1].slow[F_KEEP] = w.f[2].slow[F_VOTE] = true;
        CHECK(acquire(true, late ? 2100 * DLOCK_MSEC : MSEC(10), EV_NONE));
        CHECK(w.f[1].held[F_KEEP]);
        w.f[2].slow[F_VOTE] = false;
        CHECK(until(20 * DLOCK_SEC, EV_GRANTED));
        CHECK((w.ended.fence > 40) == (late == 1));
    }
}

#define THIS_YEAR INT64_C(1790000000000000) /* of the counters, us */
#define YEARS(n) (INT64_C(366) * 86400 * 1000000 * (n))

TEST(a_counter_far_ahead_has_no_vote)
{
    static const int64_t now = THIS_YEAR, lost = 0, near = THIS_YEAR + YEARS(9),
                         far = THIS_YEAR + YEARS(11);
    const struct {
        int n, late; /* late: this server votes last (-1: none), with dead: never */
        bool dead;
        int64_t fence[5], token; /* token 0: none */
    } t[] = {
        {3, -1, false, {now, near, now}, near + 1},
        {3, 2, false, {now, far, now}, now + 1},
        {3, 0, false, {now, far, now}, now + 1},
        {3, 1, false, {now, far, now}, now + 1},
        {3, 2, false, {lost, now, now}, now + 1},
        {3, 2, true, {now, far, now}, 0},
        {2, -1, false, {now, far}, 0},
        {1, -1, false, {far}, far + 1},
        {5, -1, false, {now, far, far, now, now}, now + 1},
        {5, 0, true, {now, far, far, now, now}, 0},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        REQUIRE(start(t[i].n, TTL, OP));
        for (int k = 0; k < t[i].n; k++) {
            w.f[k].fence = t[i].fence[k];
            w.f[k].slow[F_VOTE] = k == t[i].late;
        }
        ACQUIRE(&w, false);
        /* A majority of the others ends the round in this time. */
        pass(&w, t[i].late >= 0 ? MSEC(20) : DLOCK_SEC);
        if (t[i].late >= 0 && !t[i].dead)
            slow(t[i].n, F_VOTE, false);
        if (w.ended.type == EV_NONE)
            pass(&w, DLOCK_SEC);
        bool ok = t[i].token != 0 ? CHECK_INT(w.ended.fence, t[i].token)
                                  : CHECK_INT(w.ended.type, EV_FAILED) &&
                                        CHECK_INT(w.ended.error.code, DLOCK_EDATA);
        for (int k = 0; k < t[i].n; k++) /* counters follow the token, or their own vote */
            ok &= CHECK_INT(w.f[k].fence <= dlock_max(t[i].token, t[i].fence[k] + 1), true);
        if (!ok)
            printf("# %zu: %s\n", i, w.ended.error.msg);
    }
}

/* The majority hangs while a client waits: rounds come and go, without a busy loop in between. */
TEST(a_hung_majority_causes_no_busy_loop)
{
    REQUIRE(start(3, TTL, OP));
    set(3, other);
    CHECK(acquire(true, MSEC(500), EV_NONE));
    w.f[1].slow[F_VOTE] = w.f[2].slow[F_VOTE] = true;
    w.f[0].value[0] = '\0';
    CHECK_INT(w.away, 0);
    CHECK(until(10 * TTL, EV_NONE));
    CHECK(w.away > 0);
    CHECK_INT(w.back, 0);
    w.f[1].slow[F_VOTE] = w.f[2].slow[F_VOTE] = false;
    w.f[1].value[0] = '\0';
    CHECK(until(20 * DLOCK_SEC, EV_GRANTED));
    CHECK_INT(w.back, 1);
    CHECK(give_back(DLOCK_RELEASE_CLEAN));
}

/* A server has a holder, so the round waits for a moment only; then a server is slow to confirm. */
TEST(a_slow_confirmation_causes_no_busy_loop)
{
    REQUIRE(start(3, TTL, OP));
    strcpy(w.f[0].value, other);
    w.f[2].slow[F_VOTE] = true;
    ACQUIRE(&w, false);
    pass(&w, MSEC(20));
    w.f[2].slow[F_VOTE] = false;
    w.f[2].slow[F_KEEP] = true;
    CHECK(until(DLOCK_SEC, EV_NONE));
    w.f[2].slow[F_KEEP] = false;
    CHECK(until(MSEC(10), EV_GRANTED));
}

/* A vote was lost with the connection, without need: its pending undo must not look like a loss. */
TEST(a_connection_lost_in_the_vote_is_no_loss_at_the_release)
{
    REQUIRE(start(3, TTL, OP));
    slow(2, F_KEEP, true);
    w.f[2].slow[F_VOTE] = true;
    ACQUIRE(&w, false);
    pass(&w, MSEC(5));
    fake_cut(&w.f[2], false);
    pass(&w, MSEC(5));
    w.f[0].slow[F_KEEP] = w.f[1].slow[F_KEEP] = w.f[2].slow[F_VOTE] = false;
    REQUIRE(until(MSEC(5), EV_GRANTED));
    fake_clock += 8 * DLOCK_SEC;
    CHECK(renew(DLOCK_SEC, EV_RENEWED));
    pass(&w, MSEC(100)); /* the third has the lock again */
    CHECK_INT(left(), 3);
    fake_cut(&w.f[1], true);
    int64_t before = fake_clock;
    CHECK(give_back(DLOCK_RELEASE_CLEAN));
    CHECK(fake_clock - before < DLOCK_SEC);
}

/* The process may lose the processor between a step and poll(): it misses no deadline. */
TEST(a_deadline_that_passes_before_poll_is_not_missed)
{
    struct pollfd p[DLOCK_POLL_MAX];
    REQUIRE(start_held(3));
    w.f[2].slow[F_LEAVE] = true;
    RELEASE(&w);
    CHECK(settle(&w) < fake_clock + MSEC(100));
    fake_clock += MSEC(60);
    int64_t wake = DLOCK_NEVER;
    dlock_backend_redlock.interest(w.be, p, DLOCK_POLL_MAX, &wake);
    CHECK(wake <= fake_clock);
    CHECK(until(DLOCK_SEC, EV_RELEASED));
}

/* Answers take 80 ms, an operation may take 128 ms: the halves of a round are two operations. */
TEST(a_slow_majority_is_enough_for_a_waiter)
{
    REQUIRE(start(3, DLOCK_SEC, MSEC(128)));
    set(3, other);
    ACQUIRE(&w, true);
    pass(&w, MSEC(100));
    set(3, "");
    slow(3, F_VOTE, true);
    slow(3, F_KEEP, true);
    for (int i = 0; i < 1000 && !w.f[2].held[F_VOTE]; i++)
        pass(&w, MSEC(1));
    pass(&w, MSEC(80));
    slow(3, F_VOTE, false);
    pass(&w, MSEC(80));
    slow(3, F_KEEP, false);
    CHECK(until(MSEC(5), EV_GRANTED));
}

/* Of an even number: half of them emptied get the lock again, one more is a loss. */
TEST(half_of_the_servers_is_no_majority)
{
    for (int n = 2; n <= 4; n += 2) {
        REQUIRE(start_held(n));
        fake_clock += 8 * DLOCK_SEC;
        set(n / 2, "");
        CHECK(renew(DLOCK_SEC, EV_RENEWED));
        CHECK_INT(left(), n);
        set(n / 2 + 1, "");
        CHECK(renew(DLOCK_SEC, EV_LOST));
        REQUIRE(start_held(n));
        set(n / 2, "");
        CHECK(give_back(DLOCK_RELEASE_CLEAN));
        REQUIRE(grant());
        set(n / 2 + 1, "");
        CHECK(give_back(DLOCK_RELEASE_NOT_OURS));
    }
}

/* A renewal with 1 and 2 out of reach, 0 emptied before. */
static bool renew_with_one_emptied(enum dlock_ev ends)
{
    fake_clock += 5 * DLOCK_SEC;
    w.f[0].value[0] = '\0';
    w.f[1].stopped = w.f[2].stopped = true;
    RENEW(&w);
    pass(&w, OP);
    bool ok = CHECK_INT(w.ended.type, ends);
    w.f[1].stopped = w.f[2].stopped = false;
    return ok && CHECK_INT(w.f[0].value[0] != '\0', 1); /* it has the lock again */
}

/* Set again on each server that comes back, the lock would seem never lost. */
TEST(a_majority_that_lost_it_does_not_get_it_back_one_by_one)
{
    for (int released = 0; released <= 1; released++) {
        REQUIRE(start_held(5));
        REQUIRE(renew_with_one_emptied(EV_UNCLEAR));
        CHECK(strstr(w.ended.error.msg, "gone on 1 of 5 servers, and 2 do not answer") != NULL);
        w.f[1].value[0] = w.f[2].value[0] = '\0';
        if (released) {
            CHECK(give_back(DLOCK_RELEASE_NOT_OURS));
        } else {
            CHECK(renew(OP, EV_LOST));
        }
    }
}

/* The others have it: only a minority has lost it, and the doubt ends. */
TEST(a_lost_minority_raises_no_doubt_once_the_others_answer)
{
    REQUIRE(start_held(5));
    for (int i = 0; i < 3; i++) {
        REQUIRE(renew_with_one_emptied(EV_UNCLEAR));
        CHECK(renew(OP, EV_RENEWED));
    }
    CHECK(give_back(DLOCK_RELEASE_CLEAN));
}

/* A server away for longer than the ttl has lost nothing: it may come back while two servers go. */
TEST(a_server_whose_lease_ran_out_raises_no_doubt)
{
    REQUIRE(start_held(5));
    w.f[0].stopped = true;
    for (int i = 0; i < 4; i++) {
        fake_clock += 9 * DLOCK_SEC;
        CHECK(renew(OP, EV_RENEWED));
    }
    w.f[0].stopped = false;
    CHECK(renew_with_one_emptied(EV_RENEWED));
    CHECK(give_back(DLOCK_RELEASE_CLEAN));
}

/* Found after the grant: no vote under the second name, in renewals either, and no busy loop. */
TEST(one_server_under_two_names_is_found_late)
{
    REQUIRE(start(3, TTL, OP));
    world_aim(&w, 1, 0, 2);
    w.f[0].slow[F_VOTE] = true;
    w.f[0].first_slow = 1;
    REQUIRE(grant());
    w.f[0].slow[F_VOTE] = false;
    pass(&w, MSEC(10));
    CHECK_INT(w.notices, 1);
    w.f[2].slow[F_KEEP] = true;
    CHECK(renew(5 * DLOCK_SEC, EV_UNCLEAR));
    w.f[2].slow[F_KEEP] = false;
    CHECK(renew(MSEC(10), EV_RENEWED));
    fake_cut(&w.f[0], false);
    settle(&w);
    w.f[2].slow[F_LEAVE] = true;
    RELEASE(&w);
    pass(&w, DLOCK_SEC);
    w.f[2].slow[F_LEAVE] = false;
    CHECK(until(DLOCK_SEC, EV_RELEASED));
    CHECK_INT(w.ended.how, DLOCK_RELEASE_CLEAN);
    CHECK_INT(left(), 0);
}

/* A new look-up gives a server's address to a different name: its answer counts once. */
TEST(an_address_that_moves_to_another_name_is_counted_once)
{
    for (int both = 0; both < 2; both++) {
        REQUIRE(start_held(3));
        fake_clock += 8 * DLOCK_SEC;
        fake_cut(&w.f[1], true);
        fake_cut(&w.f[2], true);
        settle(&w);
        fake_clock += 2 * DLOCK_SEC;
        world_aim(&w, 1, 0, 1);
        world_aim(&w, 0, both ? 0 : 1, 1);
        CHECK(renew(5 * DLOCK_SEC, EV_UNCLEAR));
    }
}

/* A program may take SET ... EX 9999999999 for no expiry: a waiter asks now and then, no more. */
TEST(a_lock_for_three_centuries_is_waited_for_quietly)
{
    REQUIRE(start(3, TTL, OP));
    for (int i = 0; i < 3; i++) {
        strcpy(w.f[i].value, "x");
        w.f[i].left_ms = 9999999999000;
    }
    CHECK(acquire(true, 10 * DLOCK_SEC, EV_NONE));
    CHECK(w.f[0].served[F_VOTE] < 60);
}

/* The message "head" comes behind the votes of a round that has not ended yet. */
TEST(a_wake_up_in_the_middle_of_a_round_is_heard)
{
    REQUIRE(start(3, TTL, OP));
    set(3, other);
    for (int i = 0; i < 3; i++)
        w.f[i].place = 2;
    ACQUIRE(&w, true);
    pass(&w, DLOCK_SEC);
    slow(3, F_LEAVE, true);
    slow(3, F_VOTE, true);
    for (int i = 0; i < 20000 && !w.f[2].held[F_VOTE]; i++)
        pass(&w, MSEC(1));
    fake_call(&w.f[0], "head");
    settle(&w);
    slow(3, F_LEAVE, false);
    slow(3, F_VOTE, false);
    settle(&w);
    set(3, "");
    CHECK(until(MSEC(100), EV_GRANTED));
}

/* ---------------------------------------------------------------- young servers */

/* 0 and 1 were restarted without their data 30 s ago, longer ago than the newcomer's ttl. */
static bool two_restarted(void)
{
    if (!start(3, 2 * DLOCK_SEC, MSEC(250)))
        return false;
    w.f[0].started = w.f[1].started = fake_clock - 30 * DLOCK_SEC;
    return true;
}

/* By a holder with a ttl of a minute, who renewed it 40 s ago. */
static void hold_third(void)
{
    snprintf(w.f[2].value, sizeof(w.f[2].value), "%s ttl=60000", other);
    w.f[2].ends = fake_clock + 20 * DLOCK_SEC;
}

static bool two_restarted_beside_a_holder(void)
{
    bool ok = two_restarted();
    hold_third();
    return ok;
}

TEST(a_restarted_server_is_young_for_the_ttl_of_the_holder)
{
    REQUIRE(two_restarted_beside_a_holder());
    CHECK(acquire(false, DLOCK_SEC, EV_BUSY));
    CHECK(w.ended.info != NULL && w.ended.info->pid == 1);
    CHECK_INT(w.notices, 1);
    CHECK_INT(left(), 1);
    w.f[0].started = w.f[1].started = fake_clock - 61 * DLOCK_SEC + MSEC(1);
    CHECK(acquire(false, DLOCK_SEC, EV_BUSY));
    fake_clock += MSEC(1);
    CHECK(grant());
}

/* No vote is given and taken back in each round; the newcomer enters once the holder is gone. */
TEST(a_waiter_leaves_young_servers_alone)
{
    REQUIRE(two_restarted_beside_a_holder());
    CHECK(acquire(true, 10 * DLOCK_SEC, EV_NONE));
    CHECK_INT(w.f[0].granted, 1);
    CHECK(w.f[0].served[F_VOTE] > 2 && w.f[0].served[F_VOTE] < 70);
    CHECK_INT(w.notices, 1);
    w.f[2].value[0] = '\0';
    CHECK(until(DLOCK_SEC, EV_GRANTED));
    CHECK_INT(w.notices, 1);
}

/* The lock was released everywhere before its holder's ttl had passed since the servers' start. */
TEST(no_grace_is_told_of_a_holder_that_is_gone)
{
    REQUIRE(two_restarted());
    for (int i = 0; i < 3; i++)
        snprintf(w.f[i].value, sizeof(w.f[i].value), "%s ttl=60000", other);
    CHECK(acquire(true, DLOCK_SEC, EV_NONE));
    set(3, "");
    CHECK(until(DLOCK_SEC, EV_GRANTED));
    CHECK_INT(w.notices, 0);
}

/* A client that waits on one server may have got the lock from the others. */
TEST(a_restarted_server_is_young_for_the_ttl_of_a_waiter)
{
    REQUIRE(two_restarted());
    w.f[2].longest_ms = 60000;
    CHECK(acquire(false, DLOCK_SEC, EV_BUSY));
    CHECK_INT(left(), 0);
    w.f[2].longest_ms = 10000;
    CHECK(grant());
}

TEST(a_young_vote_waits_for_a_busy_server)
{
    REQUIRE(two_restarted_beside_a_holder());
    w.f[2].slow[F_VOTE] = true;
    CHECK(acquire(false, MSEC(240), EV_NONE));
    CHECK_INT(w.f[0].granted, 1);
    w.f[2].slow[F_VOTE] = false;
    CHECK(until(DLOCK_SEC, EV_BUSY));
    CHECK_INT(left(), 1);
    /* It times out. */
    w.f[2].slow[F_VOTE] = true;
    int64_t before = fake_clock;
    CHECK(acquire(false, DLOCK_SEC, EV_GRANTED));
    CHECK_INT(fake_clock - before, MSEC(250));
}

TEST(a_young_vote_waits_for_a_late_answer)
{
    REQUIRE(two_restarted_beside_a_holder());
    w.f[2].slow[F_VOTE] = true;
    for (int i = 0; i < 2; i++)
        snprintf(w.f[i].value, sizeof(w.f[i].value), "%s ttl=1000", other);
    ACQUIRE(&w, true);
    pass(&w, MSEC(50));
    for (int i = 0; i < 2; i++) {
        w.f[i].value[0] = '\0';
        fake_call(&w.f[i], "go");
    }
    pass(&w, MSEC(100));
    CHECK_INT(w.f[0].granted, 1);
    CHECK_INT(w.ended.type, EV_NONE);
    w.f[2].slow[F_VOTE] = false;
    CHECK(until(3 * DLOCK_SEC, EV_NONE));
    CHECK_INT(left(), 1);
    /* It is dead: not waited for, but its last word counts. */
    fake_cut(&w.f[2], true);
    CHECK(until(20 * DLOCK_SEC, EV_NONE));
    CHECK_INT(left(), 1);
    CHECK(until(20 * DLOCK_SEC, EV_GRANTED));
    CHECK(fake_clock >= w.f[0].started + 61 * DLOCK_SEC);
}

/* Only its connection to us is broken. */
TEST(a_holders_ttl_is_not_forgotten_when_its_server_falls_silent)
{
    REQUIRE(two_restarted_beside_a_holder());
    CHECK(acquire(true, DLOCK_SEC, EV_NONE));
    w.f[2].slow[F_VOTE] = true;
    CHECK(until(25 * DLOCK_SEC, EV_NONE));
    CHECK_INT(w.f[0].granted, 1);
    CHECK(until(20 * DLOCK_SEC, EV_GRANTED));
    CHECK(fake_clock >= w.f[0].started + 61 * DLOCK_SEC);
}

/* Until the grant: the others are about to have their fence counters raised. */
TEST(a_busy_server_is_heard_after_it_timed_out)
{
    REQUIRE(two_restarted_beside_a_holder());
    w.f[0].slow[F_KEEP] = w.f[1].slow[F_KEEP] = w.f[2].slow[F_VOTE] = true;
    CHECK(acquire(false, MSEC(260), EV_NONE));
    CHECK(w.f[0].held[F_KEEP] && w.f[1].held[F_KEEP]);
    w.f[2].slow[F_VOTE] = false;
    pass(&w, MSEC(10));
    slow(2, F_KEEP, false);
    CHECK(until(DLOCK_SEC, EV_BUSY));
    CHECK_INT(left(), 1);
}

/* --------------------------------------------------------------------- readers */

static const char reader[] =
    "s:fedcba9876543210fedcba9876543210 dlock1 host=y pid=2 user=u since=1 ttl=30000";

static bool open_reader(int n, int64_t ttl, int64_t op_timeout)
{
    fake_mode = DLOCK_MODE_SHARED;
    bool ok = start(n, ttl, op_timeout);
    fake_mode = DLOCK_MODE_EXCLUSIVE;
    return ok;
}

/* How many readers stand on all servers together. */
static int readers(void)
{
    int n = 0;
    for (int i = 0; i < w.n; i++)
        n += w.f[i].nreaders;
    return n;
}

TEST(readers_stand_together_with_the_highest_fence)
{
    REQUIRE(open_reader(3, TTL, OP));
    for (int i = 0; i < 3; i++)
        fake_admit(&w.f[i], reader, 60000);
    w.f[0].fence = 7;
    w.f[2].fence = 40;
    REQUIRE(grant());
    CHECK_INT(w.ended.fence, 40);
    CHECK_INT(w.f[0].fence, 40);
    CHECK_INT(readers(), 6);
    CHECK(renew(MSEC(10), EV_RENEWED));
    CHECK(give_back(DLOCK_RELEASE_CLEAN));
    CHECK_INT(readers(), 3);
}

/* A writer has the first server: two servers are a majority, but not if a writer waits at one. */
TEST(a_reader_counts_no_server_of_a_writer)
{
    for (int waits = 0; waits < 2; waits++) {
        REQUIRE(open_reader(3, TTL, OP));
        strcpy(w.f[0].value, other);
        REQUIRE(grant());
        CHECK_INT(readers(), 2);
        CHECK(give_back(DLOCK_RELEASE_CLEAN));
        w.f[1].writer_waits = waits;
        if (!waits)
            strcpy(w.f[1].value, other);
        CHECK(acquire(false, 10 * DLOCK_SEC, EV_BUSY));
        CHECK_INT(readers(), 0);
    }
}

/* It was called, and the lock is free until it comes: then there is no holder to name. */
TEST(a_lock_that_is_kept_for_a_writer_has_no_holder)
{
    REQUIRE(open_reader(3, TTL, OP));
    w.f[0].writer_waits = w.f[1].writer_waits = true;
    CHECK(acquire(false, DLOCK_SEC, EV_BUSY));
    CHECK(w.ended.info == NULL);
    CHECK_INT(readers(), 0);
}

TEST(a_reader_is_healed_only_where_no_writer_holds)
{
    REQUIRE(open_reader(5, TTL, OP) && grant());
    fake_clock += 8 * DLOCK_SEC;
    w.f[0].nreaders = 0;
    fake_admit(&w.f[0], reader, 60000); /* of a new epoch */
    fake_take(&w.f[1], other);
    CHECK(renew(DLOCK_SEC, EV_RENEWED));
    settle(&w);
    CHECK_INT(w.f[0].nreaders, 2);
    CHECK_INT(w.f[1].nreaders, 0);
    fake_take(&w.f[2], other);
    fake_take(&w.f[3], "x");
    CHECK(renew(DLOCK_SEC, EV_LOST));
    CHECK(strstr(w.ended.error.msg, "not ours on 3 of 5 servers: ") != NULL);
    CHECK(give_back(DLOCK_RELEASE_NOT_OURS));
}

/* Another reader has got it back there already: it may have forgotten a writer all the same. */
TEST(a_restarted_server_with_readers_is_young)
{
    REQUIRE(open_reader(3, 2 * DLOCK_SEC, MSEC(250)));
    for (int i = 0; i < 2; i++) {
        w.f[i].started = fake_clock - 30 * DLOCK_SEC;
        fake_admit(&w.f[i], reader, 60000);
    }
    hold_third();
    CHECK(acquire(false, DLOCK_SEC, EV_BUSY));
    CHECK_INT(readers(), 2);
    w.f[2].value[0] = '\0';
    CHECK(grant());
}

/* ---------------------------------------------------------------------------- looks */

/* A waiter behind silent waiters: it waits on all three servers. */
static bool wait_third(void)
{
    if (!start(3, TTL, OP))
        return false;
    set(3, other);
    for (int i = 0; i < 3; i++)
        w.f[i].place = 3;
    return acquire(true, DLOCK_SEC, EV_NONE);
}

TEST(a_waiter_looks_and_leaves_the_lock_to_claims)
{
    REQUIRE(wait_third());
    CHECK_INT(w.f[0].looks, 0);
    CHECK(until(3 * DLOCK_SEC, EV_NONE));
    CHECK_INT(w.f[0].looks, 2);
    int votes = w.f[0].served[F_VOTE];
    /* On a minority a free lock means nothing. */
    set(1, "");
    CHECK(until(2 * DLOCK_SEC, EV_NONE));
    set(3, "");
    for (int i = 0; i < 3; i++)
        w.f[i].claim_ms = 500;
    CHECK(until(1600 * DLOCK_MSEC, EV_NONE));
    CHECK_INT(w.f[0].served[F_VOTE], votes);
    for (int i = 0; i < 3; i++)
        w.f[i].claim_ms = 0;
    CHECK(until(700 * DLOCK_MSEC, EV_GRANTED));
}

/* A server that owes only the answer to a look is asked for its vote. */
TEST(a_wake_up_in_the_middle_of_a_look_is_not_lost)
{
    REQUIRE(wait_third());
    slow(3, F_OTHER, true);
    CHECK(until(DLOCK_SEC, EV_NONE));
    CHECK(w.f[0].held[F_OTHER]);
    set(3, "");
    for (int i = 0; i < 3; i++)
        fake_call(&w.f[i], "go");
    CHECK(until(MSEC(10), EV_NONE));
    slow(3, F_OTHER, false);
    CHECK(until(MSEC(10), EV_GRANTED));
}

/* Each renewal of a reader changes the key that the first waiter watches. */
TEST(a_writer_asks_ten_times_a_second_while_readers_renew)
{
    REQUIRE(start(3, TTL, OP));
    for (int i = 0; i < 3; i++)
        fake_admit(&w.f[i], reader, 60000);
    ACQUIRE(&w, true);
    pass(&w, DLOCK_SEC);
    int before = w.f[0].served[F_VOTE];
    for (int i = 0; i < 200; i++) {
        for (int k = 0; k < 3; k++)
            fake_change(&w.f[k]);
        pass(&w, MSEC(5));
    }
    CHECK(w.f[0].served[F_VOTE] - before >= 5 && w.f[0].served[F_VOTE] - before <= 11);
    for (int k = 0; k < 3; k++) {
        w.f[k].nreaders = 0;
        fake_call(&w.f[k], "go");
    }
    CHECK(until(MSEC(5), EV_GRANTED));
}

/* ---------------------------------------------------------------- --once, --min-hold */

#define ONCE (3600 * DLOCK_SEC)

static bool open_once(void)
{
    fake_once = ONCE;
    bool opened = start(3, TTL, OP);
    fake_once = 0;
    for (int i = 0; opened && i < 3; i++) {
        w.f[i].fence = 10;
        w.f[i].skew = (i - 2) * 5 * DLOCK_SEC;
    }
    return opened;
}

/* A foreign client's record: the run ended (running: began) so long ago by that server's clock. */
static void has_run(struct fake *f, const char *state, int fence, int64_t ago)
{
    long long at = 1790000000000 + (fake_clock + f->skew - ago) / DLOCK_MSEC;
    snprintf(
        f->run, sizeof(f->run),
        "dlock-run1 %s 0 %d 0123456789abcdef0123456789abcd%02d %lld %lld 3600000 dlock1 host=x "
        "pid=1",
        state, fence, fence, at, strcmp(state, "running") == 0 ? 0 : at);
}

static int runs_say(const char *state)
{
    int n = 0;
    for (int i = 0; i < w.n; i++)
        n += strncmp(w.f[i].run + strlen("dlock-run1 "), state, strlen(state)) == 0;
    return n;
}

static bool ends(bool success, enum dlock_release_how how)
{
    w.hold = (struct dlock_hold){.ended = true, .success = success, .status = !success};
    return give_back(how);
}

/* What servers 0, 1, 2 know: a success, a newer failure, a run that has begun; "?": silent. */
TEST(a_record_that_a_majority_may_have_decides)
{
    static const struct {
        const char *know;
        bool skips;
    } cases[] = {{"s--", false}, {"s-r", false}, {"ss-", true}, {"fss", true},  {"ffs", false},
                 {"srs", true},  {"s-?", true},  {"sr?", true}, {"--?", false}, {"fs?", false}};
    for (size_t k = 0; k < DLOCK_LEN(cases); k++) {
        REQUIRE(open_once());
        for (int i = 0; i < 3; i++) {
            const char what = cases[k].know[i];
            if (what == 's')
                has_run(&w.f[i], "succeeded", 10, DLOCK_SEC);
            else if (what == 'f')
                has_run(&w.f[i], "failed", 11, DLOCK_SEC);
            else if (what == 'r')
                has_run(&w.f[i], "running", 99, DLOCK_SEC);
            w.f[i].stopped = what == '?';
        }
        int64_t asked = fake_clock;
        if (!CHECK(acquire(false, 3 * DLOCK_SEC, cases[k].skips ? EV_SKIPPED : EV_GRANTED)))
            unit_fail(UNIT_AT, "%s", cases[k].know);
        /* Only a vote that may decide is waited for. */
        bool waits = w.f[2].stopped && strcmp(cases[k].know, "--?") != 0;
        CHECK((fake_clock - asked >= DLOCK_SEC) == waits);
        CHECK(fake_clock - asked <= DLOCK_SEC + MSEC(100));
        settle(&w);
        if (cases[k].skips) /* the voters get the record, but keep a newer one */
            CHECK_INT(runs_say("succeeded 0 10 "), 3 - w.f[2].stopped - (cases[k].know[0] == 'f'));
        else
            CHECK_INT(runs_say("running -1 "), 3 - w.f[2].stopped);
    }
}

TEST(a_vote_that_may_tell_a_success_is_waited_for)
{
    REQUIRE(open_once());
    has_run(&w.f[0], "succeeded", 10, DLOCK_SEC);
    has_run(&w.f[2], "succeeded", 10, DLOCK_SEC);
    w.f[2].slow[F_VOTE] = true;
    CHECK(acquire(false, MSEC(900), EV_NONE));
    w.f[2].slow[F_VOTE] = false;
    CHECK(until(MSEC(10), EV_SKIPPED));
    settle(&w);
    CHECK_INT(runs_say("succeeded 0 10 "), 3);
    CHECK_INT(left(), 0);
}

TEST(a_success_on_a_minority_is_not_recorded)
{
    REQUIRE(open_once() && grant());
    settle(&w);
    w.f[1].stopped = w.f[2].stopped = true;
    int64_t before = fake_clock;
    CHECK(ends(true, DLOCK_RELEASE_UNCLEAR));
    CHECK(fake_clock - before >= 5 * DLOCK_SEC); /* tried for as long as it may */
    CHECK(strstr(w.ended.error.msg, "1 of 3 servers have recorded") != NULL);
    /* Where the lock is gone no end is recorded. */
    REQUIRE(open_once() && grant());
    w.f[1].value[0] = w.f[2].value[0] = '\0';
    CHECK(ends(true, DLOCK_RELEASE_NOT_OURS));
    CHECK_INT(runs_say("succeeded"), 1);
}

/* The release was served, its answers lost: the record tells. Without a record the lock is lost. */
TEST(a_release_that_is_sent_again_finds_its_record)
{
    for (int lost = 0; lost < 2; lost++) {
        REQUIRE(open_once() && grant());
        settle(&w);
        for (int i = 1; i < 3; i++)
            w.f[i].slow[F_LEAVE] = true;
        w.hold = (struct dlock_hold){.ended = true, .success = true};
        RELEASE(&w);
        pass(&w, MSEC(20));
        for (int i = 1; i < 3; i++) {
            if (lost) {
                w.f[i].value[0] = '\0';
            } else {
                char *run = strstr(w.f[i].run, "running -1");
                REQUIRE(run);
                char rest[sizeof(w.f[i].run)];
                snprintf(rest, sizeof(rest), "%s", run + strlen("running -1"));
                snprintf(run, sizeof(w.f[i].run) - (size_t)(run - w.f[i].run), "succeeded 0%s",
                         rest);
                w.f[i].value[0] = '\0';
            }
            w.f[i].slow[F_LEAVE] = false;
            fake_cut(&w.f[i], false);
        }
        CHECK(until(6 * DLOCK_SEC, EV_RELEASED));
        CHECK_INT(w.ended.how, lost ? DLOCK_RELEASE_NOT_OURS : DLOCK_RELEASE_CLEAN);
    }
}

/* --- the steps of a query --- */

static struct dlock_info hold;
static struct dlock_run run;

/* Carry out a step; it ends like that. */
static bool step(enum dlock_step what, enum dlock_ask asks, int64_t by, enum dlock_ev ends)
{
    static struct dlock_question question;
    static struct dlock_order order;
    question = (struct dlock_question){.what = asks};
    order = (struct dlock_order){.what = what,
                                 .until = fake_clock + 5 * DLOCK_SEC,
                                 .question = &question,
                                 .holder = &hold,
                                 .run = &run};
    dlock_backend_redlock.step(w.be, &order);
    return until(by, ends);
}

static bool reads(enum dlock_ask asks, enum dlock_ev ends)
{
    return step(STEP_READ, asks, 6 * DLOCK_SEC, ends);
}

/* How many holders were read; the last one is hold. */
static int holders(void)
{
    int n = 0;
    for (struct dlock_info info; dlock_backend_redlock.next(w.be, &info); n++)
        hold = info;
    dlock_backend_redlock.rest(w.be);
    return n;
}

/* How many servers have a mark on the hold. */
static int marks(void)
{
    int n = 0;
    for (int i = 0; i < w.n; i++)
        n += strstr(w.f[i].value, " break=1") != NULL;
    return n;
}

TEST(a_majority_names_the_holder_and_gets_the_mark)
{
    REQUIRE(start(5, TTL, OP));
    set(3, other);
    w.f[4].stopped = true;
    REQUIRE(reads(ASK_BREAK, EV_READ));
    CHECK_INT(holders(), 1);
    CHECK_INT(strncmp(hold.token, other, DLOCK_TOKEN_LEN), 0);
    CHECK(step(STEP_MARK, ASK_BREAK, 6 * DLOCK_SEC, EV_STEPPED) && CHECK(w.ended.stepped));
    CHECK_INT(marks(), 3);
    REQUIRE(reads(ASK_STATUS, EV_READ));
    CHECK_INT(holders(), 1);
    CHECK(hold.broken);
    /* Where fewer servers have it, the mark is taken back, and counts for nothing. */
    set(5, "");
    set(2, other);
    w.f[3].stopped = false;
    CHECK(step(STEP_MARK, ASK_BREAK, 6 * DLOCK_SEC, EV_STEPPED) && CHECK(!w.ended.stepped));
    (void)settle(&w);
    CHECK_INT(marks(), 0);
    CHECK_INT(left(), 2);
}

TEST(a_mark_that_comes_late_is_taken_back_too)
{
    REQUIRE(start(5, TTL, OP));
    set(3, other);
    REQUIRE(reads(ASK_BREAK, EV_READ));
    CHECK_INT(holders(), 1);
    w.f[2].slow[F_BREAK] = true;
    CHECK(step(STEP_MARK, ASK_BREAK, 6 * DLOCK_SEC, EV_STEPPED) && CHECK(!w.ended.stepped));
    CHECK(w.f[2].held[F_BREAK]);
    int served = w.f[2].served[F_BREAK];
    w.f[2].slow[F_BREAK] = false;
    (void)settle(&w);
    CHECK_INT(w.f[2].served[F_BREAK], served + 2);
    CHECK_INT(marks(), 0);
    CHECK_INT(left(), 3);
}

/* Two of three servers answer, and one of these names the holder: the third may name it, too. */
TEST(a_holder_that_silent_servers_may_name_is_neither_there_nor_gone)
{
    static const struct {
        int n, named, silent;
        bool unsure;
    } t[] = {{3, 1, 0, false}, {3, 1, 1, true},  {3, 2, 1, false}, {5, 2, 0, false},
             {5, 2, 1, true},  {5, 1, 1, false}, {5, 1, 2, true},  {5, 3, 2, false}};
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        char text[64];
        REQUIRE(start(t[i].n, TTL, OP));
        set(t[i].named, other);
        for (int k = 0; k < t[i].silent; k++)
            fake_cut(&w.f[t[i].n - 1 - k], true);
        snprintf(text, sizeof(text), "%d of %d servers have this holder, %d are needed", t[i].named,
                 t[i].n, t[i].n / 2 + 1);
        for (int asks = ASK_STATUS; asks <= ASK_FORGET; asks++) {
            if (asks == ASK_LIST || !reads((enum dlock_ask)asks, t[i].unsure ? EV_FAILED : EV_READ))
                continue;
            CHECK_INT(holders(), !t[i].unsure && t[i].named > t[i].n / 2);
            CHECK(!t[i].unsure || strstr(w.ended.error.msg, text));
            CHECK(!t[i].unsure || w.ended.error.code == DLOCK_EUNAVAIL);
        }
    }
}

TEST(a_server_whose_answer_decides_is_waited_for)
{
    for (int held = 0; held < 2; held++) {
        REQUIRE(start(3, TTL, OP));
        set(1, other);
        strcpy(w.f[2].value, held ? other : "");
        w.f[2].slow[F_STATUS] = true;
        CHECK(step(STEP_READ, ASK_STATUS, 2 * DLOCK_SEC, EV_NONE));
        w.f[2].slow[F_STATUS] = false;
        CHECK(until(DLOCK_SEC, EV_READ));
        CHECK_INT(holders(), held);
        /* The others agree: nothing is waited for. */
        set(2, other);
        w.f[2].slow[F_STATUS] = true;
        CHECK(step(STEP_READ, ASK_STATUS, 2 * DLOCK_SEC, EV_READ));
    }
}

TEST(force_frees_all_servers_that_answer)
{
    REQUIRE(start(3, TTL, OP));
    set(3, other);
    REQUIRE(reads(ASK_BREAK, EV_READ));
    CHECK_INT(holders(), 1);
    w.f[0].value[0] = '\0'; /* has lost the lock meanwhile */
    fake_cut(&w.f[2], true);
    CHECK(step(STEP_FREE, ASK_BREAK, 6 * DLOCK_SEC, EV_STEPPED) && CHECK(w.ended.stepped));
    CHECK_INT(left(), 1);
    CHECK(step(STEP_FREE, ASK_BREAK, 6 * DLOCK_SEC, EV_STEPPED) && CHECK(!w.ended.stepped));
    fake_cut(&w.f[1], true);
    CHECK(step(STEP_FREE, ASK_BREAK, 6 * DLOCK_SEC, EV_FAILED));
}

TEST(a_record_is_removed_by_a_majority_and_the_rest_is_told)
{
    static const char text[] = "dlock-run1 failed 1 7 0123456789abcdef0123456789abcdef 1 2 60000 "
                               "dlock1 host=x pid=1 user=u since=1";
    REQUIRE(start(3, TTL, OP));
    for (int i = 0; i < 3; i++)
        strcpy(w.f[i].run, text);
    REQUIRE(reads(ASK_FORGET, EV_READ) && w.ended.run);
    run = *w.ended.run;
    CHECK_INT(run.state, DLOCK_RUN_FAILED);
    fake_cut(&w.f[2], true);
    int notices = w.notices;
    CHECK(step(STEP_FORGET, ASK_FORGET, 6 * DLOCK_SEC, EV_STEPPED) && CHECK(w.ended.stepped));
    CHECK(w.notices > notices);
    CHECK(w.f[0].run[0] == '\0' && w.f[1].run[0] == '\0');
    /* "No record" needs a majority that tells it; a status tells of foreign data anywhere. */
    strcpy(w.f[0].run, "foreign");
    CHECK(reads(ASK_FORGET, EV_FAILED));
    CHECK_INT(w.ended.error.code, DLOCK_EDATA);
    CHECK(reads(ASK_STATUS, EV_READ) && CHECK(!w.ended.run));
    CHECK_INT(w.ended.error.code, DLOCK_EDATA);
    REQUIRE(start(3, TTL, OP));
    strcpy(w.f[0].run, "foreign");
    CHECK(reads(ASK_FORGET, EV_READ) && CHECK(!w.ended.run));
    CHECK_INT(w.ended.error.code, 0);
}

UNIT_MAIN
