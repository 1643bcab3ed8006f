/* test_forward.c - which signals the command gets, and when; times are in ms. */
#include "forward.h"
#include "unit.h"

#include <signal.h>

#define MS DLOCK_MSEC
#define WAIT (FORWARD_WAIT / MS)

static struct forward f;

static struct forward_signal from(int sender, int sig, int64_t ms)
{
    return (struct forward_signal){.sig = sig, .sender = sender, .at = ms * MS};
}

static int to_keeper(int sender, int sig, int64_t ms)
{
    struct forward_signal s = from(sender, sig, ms);
    return forward_add(&f, &s);
}

static void to_guard(int sender, int sig, int64_t ms)
{
    struct forward_signal s = from(sender, sig, ms);
    forward_copy(&f, &s);
}

static int seen_by_guard; /* how many of those whose time was over */

/* Only what the guard has got no copy of. */
static int taken(int64_t ms)
{
    bool shared;
    int sig;
    while ((sig = forward_take(&f, ms * MS, &shared)) != 0 && shared)
        seen_by_guard++;
    return sig;
}

TEST(a_signal_waits_for_a_copy)
{
    f = (struct forward){0};
    CHECK(forward_wake(&f) == DLOCK_NEVER);
    CHECK_INT(to_keeper(7, SIGTERM, 100), 0);
    CHECK_INT(forward_wake(&f), (100 + WAIT) * MS);
    CHECK_INT(taken(100 + WAIT - 1), 0);
    CHECK_INT(taken(100 + WAIT), SIGTERM);
    CHECK_INT(taken(100 + WAIT), 0);
    CHECK(forward_wake(&f) == DLOCK_NEVER);
    /* As from a human, a moment later. */
    to_keeper(7, SIGTERM, 200);
    CHECK_INT(taken(200 + WAIT), SIGTERM);
}

TEST(a_signal_at_the_end_of_time_waits)
{
    struct forward_signal s = {.sig = SIGTERM, .sender = 7, .at = DLOCK_NEVER - 1};
    f = (struct forward){0};
    forward_copy(&f, &s);
    CHECK_INT(forward_add(&f, &s), 0);
    CHECK(forward_wake(&f) == DLOCK_NEVER);
}

TEST(what_the_whole_job_got_is_not_sent_again)
{
    f = (struct forward){0};
    to_keeper(1, SIGTERM, 0);
    to_guard(1, SIGTERM, 5);
    CHECK_INT(forward_wake(&f), WAIT * MS);
    CHECK_INT(taken(5), 0);
    /* To the group as well. */
    to_keeper(1, SIGTERM, 6);
    seen_by_guard = 0;
    CHECK_INT(taken(WAIT - 1), 0);
    CHECK_INT(seen_by_guard, 0);
    CHECK_INT(taken(WAIT), 0);
    CHECK_INT(seen_by_guard, 1);
    CHECK(forward_wake(&f) == DLOCK_NEVER);
    to_guard(1, SIGTERM, 2000);
    to_keeper(1, SIGTERM, 2500); /* it did not get the processor */
    CHECK_INT(taken(5000), 0);
    /* One copy is for one signal. */
    to_keeper(1, SIGTERM, 6000);
    CHECK_INT(taken(6000 + WAIT), SIGTERM);
    /* A guard that was late itself has read all of it before it looks. */
    to_keeper(1, SIGTERM, 7000);
    to_guard(1, SIGTERM, 7500);
    CHECK_INT(taken(7500), 0);
    /* That one is over: the next copy is of the next signal. */
    to_guard(1, SIGTERM, 8000);
    to_keeper(1, SIGTERM, 8001);
    CHECK_INT(taken(9000), 0);
}

TEST(a_copy_of_another_signal_or_sender_or_time_does_not_count)
{
    f = (struct forward){0};
    to_guard(2, SIGTERM, 0);
    to_guard(1, SIGINT, 0);
    to_guard(1, SIGTERM, -1000);
    to_keeper(1, SIGTERM, 0);
    to_guard(2, SIGTERM, 1);
    CHECK_INT(taken(WAIT), SIGTERM);
    struct forward_signal root = from(0, SIGTERM, 100), user = root;
    f = (struct forward){0};
    user.uid = 1000;
    forward_copy(&f, &user);
    forward_add(&f, &root);
    CHECK_INT(taken(100 + WAIT), SIGTERM);
}

TEST(repeated_signals_are_one_that_comes_behind_the_last)
{
    f = (struct forward){0};
    for (int64_t ms = 0; ms < WAIT; ms++)
        to_keeper(7, SIGTERM, ms);
    CHECK_INT(taken(WAIT - 1), 0);
    to_keeper(7, SIGTERM, WAIT);
    CHECK_INT(taken(WAIT), SIGTERM);
    CHECK_INT(taken(2 * WAIT - 1), 0);
    CHECK_INT(taken(2 * WAIT), SIGTERM);
    CHECK_INT(taken(1000), 0);
    /* Two senders are two. */
    to_keeper(7, SIGTERM, 2000);
    to_keeper(8, SIGTERM, 2000);
    to_keeper(7, SIGTERM, 2001);
    to_keeper(8, SIGTERM, 2001);
    CHECK_INT(taken(3000), SIGTERM);
    CHECK_INT(taken(3000), SIGTERM);
    CHECK_INT(taken(3000), 0);
}

TEST(different_signals_keep_their_order)
{
    static const int sent[] = {SIGTERM, SIGUSR1, SIGTERM, SIGCONT, SIGTSTP, SIGCONT, SIGHUP};
    f = (struct forward){0};
    for (int i = 0; i < 7; i++)
        to_keeper(7, sent[i], i);
    CHECK_INT(taken(WAIT - 1), 0);
    for (int i = 0; i < 7; i++)
        CHECK_INT(taken(1000), sent[i]);
    CHECK_INT(taken(1000), 0);
    /* One that the job got does not hold up those behind it. */
    to_keeper(1, SIGTERM, 2000);
    to_keeper(7, SIGUSR1, 2000);
    to_guard(1, SIGTERM, 2001);
    CHECK_INT(taken(2000 + WAIT), SIGUSR1);
}

TEST(what_no_process_sent_and_cont_are_sent_at_once)
{
    f = (struct forward){0};
    to_guard(FORWARD_NO_SENDER, SIGALRM, 0);
    to_keeper(FORWARD_NO_SENDER, SIGALRM, 0);
    CHECK_INT(forward_wake(&f), 0);
    CHECK_INT(taken(0), SIGALRM);
    to_guard(7, SIGCONT, 1);
    to_keeper(7, SIGCONT, 1);
    to_keeper(7, SIGCONT, 1);
    CHECK_INT(taken(1), SIGCONT);
    CHECK_INT(taken(1), SIGCONT);
    /* But not before an earlier one. */
    to_keeper(7, SIGTERM, 2);
    to_keeper(FORWARD_NO_SENDER, SIGHUP, 3);
    CHECK_INT(taken(3), 0);
    CHECK_INT(taken(2 + WAIT), SIGTERM);
    CHECK_INT(taken(2 + WAIT), SIGHUP);
}

TEST(real_time_signals_are_counted)
{
    f = (struct forward){0};
    for (int i = 0; i < 3; i++)
        to_keeper(7, SIGRTMIN, i);
    to_guard(7, SIGRTMIN, 2);
    CHECK_INT(taken(1000), SIGRTMIN);
    CHECK_INT(taken(1000), SIGRTMIN);
    CHECK_INT(taken(1000), 0);
}

TEST(no_signal_is_lost_without_room)
{
    int sent = 0;
    f = (struct forward){0};
    for (int i = 0; i < 10 * FORWARD_MAX; i++) {
        sent += to_keeper(7, i % 2 ? SIGTERM : SIGHUP, 0) != 0;
        to_guard(i, SIGINT, 0);
    }
    while (taken(1000))
        sent++;
    CHECK_INT(sent, 10 * FORWARD_MAX);
    /* The newest copies count. */
    to_keeper(10 * FORWARD_MAX - 1, SIGINT, 0);
    CHECK_INT(taken(1000), 0);
}

TEST(tells_what_a_process_sent)
{
    struct signalfd_siginfo si = {.ssi_signo = SIGTERM, .ssi_pid = 7, .ssi_uid = 1000};
    static const struct {
        int code, sender;
    } rows[] = {
        {SI_USER, 7},
        {SI_QUEUE, 7},
        {SI_TKILL, 7},
        {SI_KERNEL, FORWARD_NO_SENDER},
        {SI_TIMER, FORWARD_NO_SENDER},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        si.ssi_code = rows[i].code;
        struct forward_signal s = forward_describe(&si, 5);
        CHECK_INT(s.sender, rows[i].sender);
        CHECK(s.sig == SIGTERM && s.uid == 1000 && s.at == 5);
    }
}

static struct forward_unsent unsent;

static void keep(int sender, int sig)
{
    struct forward_signal s = from(sender, sig, 0);
    forward_keep(&unsent, &s);
}

static int first_unsent(void)
{
    int sig = unsent.n > 0 ? unsent.at[0].sig : 0;
    if (sig)
        forward_sent(&unsent);
    return sig;
}

TEST(what_the_guard_does_not_take_stays_in_order)
{
    static const int sent[] = {SIGTERM, SIGTERM, SIGHUP, SIGTERM},
                     kept[] = {SIGTERM, SIGHUP, SIGTERM};
    unsent.n = 0;
    for (size_t i = 0; i < DLOCK_LEN(sent); i++)
        keep(7, sent[i]);
    keep(8, SIGTERM);
    keep(8, SIGRTMIN);
    keep(8, SIGRTMIN);
    for (size_t i = 0; i < DLOCK_LEN(kept); i++)
        CHECK_INT(first_unsent(), kept[i]);
    CHECK_INT(unsent.at[0].sender, 8);
    CHECK_INT(first_unsent(), SIGTERM);
    CHECK_INT(first_unsent(), SIGRTMIN);
    CHECK_INT(first_unsent(), SIGRTMIN);
    CHECK_INT(first_unsent(), 0);
}

TEST(of_too_many_those_stay_that_came_once)
{
    unsent.n = 0;
    keep(7, SIGTERM);
    for (int i = 0; i < FORWARD_UNSENT_MAX; i++)
        keep(7, i % 2 ? SIGUSR1 : SIGUSR2);
    keep(7, SIGINT);
    CHECK_INT(unsent.n, FORWARD_UNSENT_MAX);
    CHECK_INT(unsent.at[FORWARD_UNSENT_MAX - 1].sig, SIGINT);
    CHECK_INT(first_unsent(), SIGTERM);
    /* One more of a number that is there is no loss of another one. */
    keep(7, SIGINT);
    keep(7, SIGHUP);
    keep(7, SIGHUP);
    CHECK_INT(unsent.at[unsent.n - 1].sig, SIGHUP);
    CHECK_INT(unsent.at[unsent.n - 2].sig, SIGINT);
}

UNIT_MAIN
