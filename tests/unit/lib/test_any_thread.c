/*
 * The calls that only ask for times, in another thread than the one that drives the handle or set.
 * tags: thread
 */
#include "fake_env.h"

#include <stdatomic.h>

#define SEEN 50 /* holds and pauses that the asking thread must see */
#define ROUNDS 1000000

static struct stub stubs[2];
static dlock *set;
static atomic_int held, idle, wrong;

static void *asks(void *over)
{
    const dlock *d = dlock_at(set, 0);
    bool was_held = false;
    while (!*(atomic_bool *)over) {
        int64_t left = dlock_time_left(d), end = dlock_deadline(d), all = dlock_time_left(set);
        wrong += left < 0 || left > 10 * S || all < 0 || all > 10 * S;
        wrong += end != 0 && end <= dlock_now();
        held += all > 0 && !was_held;
        idle += all == 0 && was_held;
        was_held = all > 0;
    }
    return NULL;
}

static void drive_until(enum dlock_report_type type)
{
    const struct dlock_report *r;
    do
        r = dlock_process(set, NULL, 0);
    while (r && r->type != type);
    REQUIRE(r);
}

/* The store grants a lock as of now: the clock is read as a backend reads it. */
static void grant(int i)
{
    const struct dlock_env *noting = dlock_at(set, i)->spec.env;
    clock_now = noting->now(noting->ctx);
    stub_says(&stubs[i],
              (struct dlock_event){.type = EV_GRANTED, .from = clock_now, .ttl = 10 * S});
}

static void hold_once(void)
{
    CHECK_INT(dlock_start_acquire(set, NULL), 0);
    grant(0);
    CHECK(!dlock_process(set, NULL, 0));
    grant(1);
    drive_until(DLOCK_REPORT_ACQUIRED);
    CHECK(dlock_time_left(set) > 9 * S);
    clock_now = dlock_now();
    CHECK_INT(dlock_start_renew(set, NULL), 0);
    drive_until(DLOCK_REPORT_EXTENDED);
    CHECK_INT(dlock_start_release(set, 0, NULL), 0);
    CHECK_INT(dlock_time_left(set), 0);
    drive_until(DLOCK_REPORT_RELEASED);
}

TEST(any_thread_may_ask_for_times_while_another_drives)
{
    atomic_bool over = false;
    pthread_t t;
    dlock *locks[2];
    for (int i = 0; i < 2; i++) {
        stubs[i].answers = true;
        locks[i] = fake_lock(&stubs[i], i ? "b" : "a");
        lock_set_env(locks[i], &dlock_env_system, 10 * S);
    }
    REQUIRE_INT(dlock_open_set(&set, locks, 2, DLOCK_NEVER, NULL), 0);
    REQUIRE_INT(pthread_create(&t, NULL, asks, &over), 0);
    for (int i = 0; i < ROUNDS && (held < SEEN || idle < SEEN); i++)
        hold_once();
    over = true;
    CHECK_INT(pthread_join(t, NULL), 0);
    CHECK(held >= SEEN && idle >= SEEN);
    CHECK_INT(wrong, 0);
    dlock_close(set);
}

UNIT_MAIN
