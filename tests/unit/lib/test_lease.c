/* The lease as a state machine: all transitions, and all edges of the timeline. */
#include "lease.h"
#include "unit.h"
#include "util.h"

#include <errno.h>

#define S DLOCK_SEC
#define MS DLOCK_MSEC

static struct lease_config config(int64_t ttl, int64_t grace)
{
    return (struct lease_config){.ttl = ttl, .grace = grace};
}

/* Both clocks show the same, where the test says nothing else. */
static struct dlock_clocks both(int64_t t)
{
    return (struct dlock_clocks){.boot = t, .raw = t};
}

static enum lease_do step(struct lease *l, int64_t now, const struct dlock_event *ev)
{
    return lease_step(l, both(now), ev);
}

/* The step after an event. */
static enum lease_do on(struct lease *l, int64_t now, struct dlock_event ev)
{
    return step(l, now, &ev);
}

static int64_t wake(const struct lease *l, int64_t now)
{
    return lease_wake(l, both(now));
}

static struct dlock_event event(enum dlock_ev type, int64_t from, int64_t ttl)
{
    return (struct dlock_event){.type = type, .from = from, .ttl = ttl};
}
static struct dlock_event granted(int64_t from)
{
    return event(EV_GRANTED, from, 10 * S);
}
static struct dlock_event renewed(int64_t from)
{
    return event(EV_RENEWED, from, 10 * S);
}

/* 10 s, grace 1 s, sent at 100 s: deadline 109.898, kill 109.398, term 108.398, usable 8.398. */
#define SENT (100 * S)
#define DEADLINE (SENT + 10 * S - 100 * MS - 2 * MS)
#define KILL_AT (DEADLINE - 500 * MS)
#define TERM_AT (KILL_AT - 1 * S)
#define USABLE (TERM_AT - SENT)
#define TROUBLE_AT (SENT + USABLE / 2)

static struct lease acquiring_with(struct lease_config c)
{
    struct lease l;
    lease_acquire(&l, &c);
    return l;
}
static struct lease acquiring(void)
{
    return acquiring_with(config(10 * S, 1 * S));
}
/* Of a store that confirms only older requests. */
static struct lease lagging(void)
{
    return acquiring_with((struct lease_config){.ttl = 12 * S, .grace = 1 * S, .lag = true});
}

static struct lease granted_at(int64_t now)
{
    struct lease l = acquiring();
    CHECK_INT(on(&l, now, granted(SENT)), LEASE_START);
    CHECK_INT(step(&l, now, NULL), LEASE_NOTHING);
    return l;
}

/* The margin is at least 50 ms. A store that lags renews every sixth of the ttl. */
TEST(timeline)
{
    static const struct {
        struct lease_config c;
        int64_t deadline, kill_at, term_at, renew_at;
    } rows[] = {
        {{.ttl = 10 * S, .grace = 1 * S}, 9898 * MS, 9398 * MS, 8398 * MS, 8398 * MS / 3},
        {{.ttl = 1 * S, .grace = 100 * MS}, 988 * MS, 938 * MS, 838 * MS, 838 * MS / 3},
        {{.ttl = 12 * S, .grace = S, .lag = true}, 11878 * MS, 11278 * MS, 10278 * MS, 2 * S},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        struct dlock_times t;
        lease_timeline(&t, &rows[i].c, rows[i].c.ttl, SENT, 0);
        CHECK_INT(t.deadline, SENT + rows[i].deadline);
        CHECK_INT(dlock_hard_at(&t), SENT + (rows[i].deadline + rows[i].kill_at) / 2);
        CHECK_INT(t.kill_at, SENT + rows[i].kill_at);
        CHECK_INT(t.term_at, SENT + rows[i].term_at);
        CHECK_INT(t.renew_at, SENT + rows[i].renew_at);
    }
}

TEST(without_a_lease_nothing_expires)
{
    struct lease_config c = config(DLOCK_NEVER, 5 * S);
    struct lease l = acquiring_with(c);
    CHECK_INT(lease_check(&c, NULL), 0);
    CHECK_INT(on(&l, SENT + 500 * S, event(EV_GRANTED, SENT, DLOCK_NEVER)), LEASE_START);
    CHECK_INT(step(&l, SENT + 100000 * S, NULL), LEASE_NOTHING);
    CHECK_INT(wake(&l, SENT), DLOCK_NEVER);
    /* The clock of the kernel may be anywhere against the other one, which does not count here. */
    CHECK_INT(lease_step(&l, (struct dlock_clocks){SENT, SENT * 9}, NULL), LEASE_NOTHING);
    CHECK_INT(lease_time_left(lease_end(&l), both(SENT * 9)), DLOCK_NEVER);
}

TEST(default_grace)
{
    CHECK_INT(lease_default_grace(30 * S), 5 * S);
    CHECK_INT(lease_default_grace(60 * S), 5 * S);
    CHECK_INT(lease_default_grace(6 * S), 1 * S);
    CHECK_INT(lease_default_grace(DLOCK_NEVER), 5 * S);
}

static int check(int64_t ttl, int64_t grace, bool lag, struct dlock_error *err)
{
    struct lease_config c = config(ttl, grace);
    c.lag = lag;
    return lease_check(&c, err);
}

TEST(checks_that_ttl_leaves_room_for_grace)
{
    struct dlock_error err;
    CHECK_INT(check(30 * S, 5 * S, false, NULL), 0);
    CHECK_INT(check(1 * S, 1 * S / 6, false, NULL), 0);
    CHECK_INT(check(1 * S, 1 * S / 6, true, NULL), 0);
    CHECK_INT(check(1 * S - 1, 0, false, NULL), DLOCK_EUSAGE);
    CHECK_INT(check(30 * S, 18 * S, false, NULL), 0);
    CHECK_INT(check(30 * S, 19 * S, false, &err), DLOCK_EUSAGE);
    CHECK(strstr(err.msg, "31.4 s") != NULL); /* the smallest that works, in steps of 100 ms */
    CHECK_INT(check(31400 * MS, 19 * S, false, NULL), 0);
    CHECK_INT(check(31300 * MS, 19 * S, false, NULL), DLOCK_EUSAGE);
    CHECK_INT(check(30 * S, 8 * S, true, NULL), 0);
    CHECK_INT(check(30 * S, 9 * S, true, NULL), DLOCK_EUSAGE);
    CHECK_INT(check(INT64_MAX / 8, INT64_MAX / 16, false, NULL), 0);
}

TEST(start_then_renewals)
{
    struct lease l = granted_at(SENT + 5 * MS);
    int64_t due = SENT + USABLE / 3;
    CHECK_INT(wake(&l, SENT), due);
    CHECK_INT(step(&l, due - 1, NULL), LEASE_NOTHING);
    CHECK_INT(step(&l, due, NULL), LEASE_RENEW);
    CHECK_INT(step(&l, due, NULL), LEASE_NOTHING); /* one outstanding */
    /* A wait by a clock that is slewed by 10 % is not too long. */
    CHECK_INT(wake(&l, due), TROUBLE_AT - (TROUBLE_AT - due) / 10);
    CHECK_INT(wake(&l, TROUBLE_AT - 1000), TROUBLE_AT);
    CHECK_INT(on(&l, due + 3 * MS, renewed(due)), LEASE_EXTEND);
    CHECK_INT(l.times.deadline, DEADLINE + due - SENT);
    CHECK_INT(step(&l, due + 3 * MS, NULL), LEASE_NOTHING);
    CHECK_INT(wake(&l, due + 3 * MS), due + USABLE / 3);
}

TEST(a_confirmation_never_moves_the_deadline_back)
{
    struct lease l = granted_at(SENT);
    CHECK_INT(on(&l, SENT + 1, renewed(SENT - 1 * S)), LEASE_NOTHING);
    CHECK_INT(l.times.deadline, DEADLINE);
}

TEST(unclear_is_retried_with_growing_pauses_until_the_end)
{
    struct lease l = granted_at(SENT);
    int64_t now = l.times.renew_at, last = 0;
    int tries = 0, troubles = 0;
    while (now < TERM_AT) {
        enum lease_do todo = step(&l, now, NULL);
        troubles += todo == LEASE_TROUBLE;
        if (todo == LEASE_RENEW) {
            CHECK_INT(on(&l, now, event(EV_UNCLEAR, 0, 0)), LEASE_NOTHING);
            CHECK(now - last <= 1 * S || tries == 0);
            last = now;
            tries++;
        }
        CHECK(wake(&l, now) > now);
        now = wake(&l, now);
    }
    CHECK_INT(now, TERM_AT);
    CHECK(tries >= 8 && tries <= 30);
    CHECK_INT(troubles, 1);
    CHECK_INT(step(&l, now, NULL), LEASE_TERM);
}

/* The time from an early renewal to the next, after these failures; sys: of the last. */
static int64_t pause_after(struct lease *l, int64_t at, int failures, int sys)
{
    struct dlock_event ev = event(EV_UNCLEAR, 0, 0);
    int64_t before = at;
    for (int i = 0; i < failures; i++) {
        ev.error.sys = i == failures - 1 ? sys : 0;
        CHECK_INT(step(l, at, NULL), LEASE_RENEW);
        CHECK_INT(on(l, at + 1 * MS, ev), LEASE_NOTHING);
        before = at;
        at = wake(l, at + 1 * MS);
    }
    return at - before;
}

TEST(a_lost_connection_makes_the_renewal_due_at_once)
{
    struct lease l = granted_at(SENT);
    int64_t now = SENT + 1 * S;
    CHECK_INT(on(&l, now, event(EV_AWAY, 0, 0)), LEASE_RENEW);
    CHECK_INT(on(&l, now + 3 * MS, renewed(now)), LEASE_EXTEND);
    CHECK_INT(wake(&l, now + 3 * MS), now + USABLE / 3);
    /* The server hangs up again and again: two renewals a second. */
    CHECK_INT(on(&l, now + 4 * MS, event(EV_AWAY, 0, 0)), LEASE_NOTHING);
    CHECK_INT(wake(&l, now + 4 * MS), now + 500 * MS);
    /* Another server has its own pauses. */
    struct dlock_event other = event(EV_AWAY, 0, 0);
    other.server = 1;
    CHECK_INT(on(&l, now + 5 * MS, other), LEASE_RENEW);
    /* Another client has changed the lock, perhaps behind the request that is confirmed. */
    other.type = EV_CHANGED;
    CHECK_INT(on(&l, now + 6 * MS, other), LEASE_NOTHING);
    CHECK_INT(on(&l, now + 7 * MS, renewed(now + 5 * MS)), LEASE_EXTEND);
    CHECK_INT(wake(&l, now + 7 * MS), now + 505 * MS);
    CHECK_INT(step(&l, now + 505 * MS, NULL), LEASE_RENEW);
    CHECK_INT(on(&l, now + 506 * MS, renewed(now + 505 * MS)), LEASE_EXTEND);
    CHECK_INT(wake(&l, now + 506 * MS), now + 505 * MS + USABLE / 3);
}

/* A short command costs nothing more, and neither does a short ttl. */
TEST(a_store_that_tells_of_changes_is_asked_to_soon_after_the_grant)
{
    for (int i = 0; i < 2; i++) {
        struct lease_config c = config(i == 0 ? 10 * S : 2 * S, 500 * MS);
        c.tells = true;
        struct lease l = acquiring_with(c);
        CHECK_INT(on(&l, SENT, event(EV_GRANTED, SENT, c.ttl)), LEASE_START);
        int64_t due = dlock_min(SENT + 1 * S, l.times.renew_at);
        CHECK_INT(wake(&l, SENT), due);
        struct lease lost = l;
        CHECK_INT(on(&lost, SENT + 1, event(EV_AWAY, 0, 0)), LEASE_RENEW);
        CHECK_INT(step(&l, due, NULL), LEASE_RENEW);
        CHECK_INT(on(&l, due, event(EV_RENEWED, due, c.ttl)), LEASE_EXTEND);
        CHECK_INT(wake(&l, due), l.times.renew_at);
    }
}

TEST(early_renewals_are_retried_soon_only_where_none_listens)
{
    for (int failures = 1; failures <= 4; failures++) {
        struct lease l = granted_at(SENT), r = granted_at(SENT), late = granted_at(SENT);
        CHECK_INT(on(&l, SENT, event(EV_AWAY, 0, 0)), LEASE_RENEW);
        l.renewing = false;
        int64_t pause = pause_after(&l, SENT, failures, 0);
        CHECK_INT(pause, 500 * MS);
        CHECK_INT(on(&r, SENT, event(EV_AWAY, 0, 0)), LEASE_RENEW);
        r.renewing = false;
        CHECK(pause_after(&r, SENT, failures, ECONNREFUSED) <= 101 * MS);
        /* The regular time comes first. */
        CHECK_INT(on(&late, late.times.renew_at - 10 * MS, event(EV_AWAY, 0, 0)), LEASE_RENEW);
        late.renewing = false;
        CHECK(pause_after(&late, late.times.renew_at - 10 * MS, failures, 0) <= 81 * MS);
    }
}

/* ZooKeeper's client connects again by itself, and hears of the end of its session. */
TEST(a_lost_connection_of_a_store_with_lag_changes_nothing)
{
    struct lease l = lagging();
    struct dlock_event ev = event(EV_GRANTED, SENT, 12 * S);
    ev.asked = SENT;
    CHECK_INT(on(&l, SENT, ev), LEASE_START);
    int64_t due = wake(&l, SENT);
    CHECK_INT(on(&l, SENT + 1 * S, event(EV_AWAY, 0, 0)), LEASE_NOTHING);
    CHECK_INT(wake(&l, SENT + 1 * S), due);
}

TEST(term_then_kill_and_renewals_go_on)
{
    struct lease l = granted_at(SENT);
    CHECK_INT(step(&l, l.times.renew_at, NULL), LEASE_RENEW);
    CHECK_INT(step(&l, TERM_AT - 1, NULL), LEASE_TROUBLE);
    CHECK_INT(step(&l, TERM_AT - 1, NULL), LEASE_NOTHING);
    CHECK_INT(step(&l, TERM_AT, NULL), LEASE_TERM);
    CHECK_INT(wake(&l, KILL_AT - 1000), KILL_AT);
    /* A renewal during the grace keeps others out, but does not move kill_at. */
    CHECK_INT(on(&l, TERM_AT + 1, renewed(TERM_AT)), LEASE_EXTEND);
    CHECK_INT(l.times.kill_at, KILL_AT);
    CHECK_INT(l.times.deadline, DEADLINE + TERM_AT - SENT);
    CHECK_INT(step(&l, KILL_AT - 1, NULL), LEASE_NOTHING);
    CHECK_INT(step(&l, KILL_AT, NULL), LEASE_KILL);
    CHECK_INT(step(&l, KILL_AT + 1, NULL), LEASE_NOTHING);
    CHECK_INT(step(&l, l.times.renew_at, NULL), LEASE_RENEW);
}

static struct dlock_event broken(int64_t from)
{
    struct dlock_event ev = renewed(from);
    ev.broken = true;
    return ev;
}

TEST(a_broken_hold_ends_now_and_is_renewed_until_the_release)
{
    struct lease l = granted_at(SENT);
    int64_t now = l.times.renew_at + 5 * MS, asked = l.times.renew_at;
    CHECK_INT(step(&l, asked, NULL), LEASE_RENEW);
    CHECK_INT(on(&l, now, broken(asked)), LEASE_TERM);
    CHECK_INT(l.times.kill_at, now + 1 * S);
    CHECK_INT(l.times.deadline, DEADLINE + asked - SENT); /* no other holder before */
    CHECK_INT(step(&l, now + 1, NULL), LEASE_NOTHING);
    /* The mark is told again: neither a second TERM, nor another kill_at. */
    CHECK_INT(step(&l, l.times.renew_at, NULL), LEASE_KILL);
    CHECK_INT(step(&l, l.times.renew_at, NULL), LEASE_RENEW);
    CHECK_INT(on(&l, l.times.renew_at + 1, broken(l.times.renew_at)), LEASE_EXTEND);
    CHECK_INT(step(&l, DEADLINE + 5 * S, NULL), LEASE_RENEW);
}

TEST(a_broken_hold_without_grace_is_killed_at_once)
{
    struct lease l = acquiring_with(config(10 * S, 0));
    CHECK_INT(on(&l, SENT, granted(SENT)), LEASE_START);
    CHECK_INT(on(&l, SENT + 1 * S, broken(SENT + 1 * S)), LEASE_KILL);
}

TEST(a_break_during_the_grace_grants_no_more_time)
{
    struct lease l = granted_at(SENT);
    CHECK_INT(step(&l, l.times.renew_at, NULL), LEASE_RENEW);
    CHECK_INT(step(&l, TERM_AT, NULL), LEASE_TERM);
    CHECK_INT(on(&l, TERM_AT + 300 * MS, broken(TERM_AT + 200 * MS)), LEASE_EXTEND);
    CHECK_INT(l.times.kill_at, KILL_AT);
    CHECK_INT(step(&l, KILL_AT, NULL), LEASE_KILL);
}

TEST(a_grant_that_is_broken_before_its_start_is_unusable)
{
    struct lease l = acquiring();
    CHECK_INT(on(&l, SENT + 3 * S, granted(SENT)), LEASE_RENEW);
    CHECK_INT(on(&l, SENT + 3 * S, broken(SENT + 3 * S)), LEASE_UNUSABLE);
}

TEST(certain_loss_kills_at_once)
{
    struct lease l = granted_at(SENT);
    CHECK_INT(on(&l, SENT + 1, event(EV_LOST, 0, 0)), LEASE_KILL);
    CHECK_INT(step(&l, SENT + 2, NULL), LEASE_NOTHING);
    CHECK_INT(step(&l, DEADLINE, NULL), LEASE_NOTHING); /* and is never renewed again */
    CHECK_INT(wake(&l, DEADLINE), DLOCK_NEVER);
    CHECK_INT(on(&l, SENT + 3, event(EV_LOST, 0, 0)), LEASE_NOTHING); /* said once */
}

TEST(loss_during_grace_kills)
{
    struct lease l = granted_at(SENT);
    l.renewing = true;
    CHECK_INT(step(&l, TERM_AT, NULL), LEASE_TERM);
    CHECK_INT(on(&l, TERM_AT + 1, event(EV_LOST, 0, 0)), LEASE_KILL);
}

TEST(the_age_of_a_grant_decides_and_no_grant_starts_after_a_cancel)
{
    static const struct {
        int64_t age;
        enum lease_do todo;
    } rows[] = {{USABLE / 4, LEASE_START},
                {USABLE / 4 + 1, LEASE_RENEW},
                {USABLE - 1, LEASE_RENEW},
                {USABLE, LEASE_UNUSABLE}};
    struct lease l = lagging();
    CHECK_INT(on(&l, SENT + 6 * S, event(EV_GRANTED, SENT, 12 * S)), LEASE_START);
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        l = acquiring();
        CHECK_INT(on(&l, SENT + rows[i].age, granted(SENT)), rows[i].todo);
    }
    l = acquiring();
    lease_release(&l);
    CHECK_INT(on(&l, SENT, granted(SENT)), LEASE_NOTHING);
}

TEST(a_late_grant_is_confirmed_first)
{
    struct lease l = acquiring();
    int64_t now = SENT + USABLE / 4 + 1;
    CHECK_INT(on(&l, now, granted(SENT)), LEASE_RENEW);
    CHECK_INT(step(&l, now, NULL), LEASE_NOTHING);
    CHECK_INT(on(&l, now + 5 * MS, renewed(now)), LEASE_START);
    CHECK_INT(l.sent, now);
}

TEST(a_late_grant_that_is_lost_or_runs_out_is_unusable)
{
    int64_t now = SENT + USABLE / 2;
    struct lease l = acquiring();
    CHECK_INT(on(&l, now, granted(SENT)), LEASE_RENEW);
    CHECK_INT(on(&l, now, event(EV_LOST, 0, 0)), LEASE_KILL);
    l = acquiring();
    CHECK_INT(on(&l, now, granted(SENT)), LEASE_RENEW);
    CHECK_INT(on(&l, now, event(EV_UNCLEAR, 0, 0)), LEASE_NOTHING);
    CHECK_INT(step(&l, TERM_AT, NULL), LEASE_UNUSABLE);
    CHECK_INT(step(&l, TERM_AT, NULL), LEASE_NOTHING);
}

TEST(a_store_too_slow_for_the_ttl_is_unusable)
{
    struct lease l = acquiring();
    int64_t now = SENT + USABLE / 3;
    CHECK_INT(on(&l, now, granted(SENT)), LEASE_RENEW);
    CHECK_INT(on(&l, now + USABLE / 2 + 2, renewed(now)), LEASE_UNUSABLE);
}

TEST(started_twice_is_impossible)
{
    struct lease l = granted_at(SENT);
    CHECK_INT(on(&l, SENT + 2, granted(SENT + 1)), LEASE_NOTHING);
    CHECK_INT(l.sent, SENT);
}

/* The confirmed send time is old: the next heartbeat counts from the last one. */
TEST(a_lag_store_renews_a_sixth_after_the_last_renewal)
{
    struct lease l = lagging();
    struct dlock_event grant = event(EV_GRANTED, SENT, 12 * S);
    grant.asked = SENT + 5 * S;
    CHECK_INT(step(&l, SENT + 5 * S, &grant), LEASE_START);
    CHECK_INT(wake(&l, SENT + 5 * S), SENT + 7 * S);
    CHECK_INT(step(&l, SENT + 7 * S, NULL), LEASE_RENEW);
    /* First not newer than the confirmed time, then newer. */
    for (int i = 0; i < 2; i++) {
        int64_t began = SENT + (7 + 2 * i) * S;
        CHECK_INT(on(&l, began + 1 * MS, event(EV_RENEWED, SENT + i * 3 * S, 12 * S)),
                  i ? LEASE_EXTEND : LEASE_NOTHING);
        CHECK_INT(step(&l, began + 2 * MS, NULL), LEASE_NOTHING);
        CHECK_INT(l.times.renew_at, began + 2 * S);
        CHECK_INT(step(&l, began + 2 * S, NULL), LEASE_RENEW);
    }
    CHECK_INT(l.times.deadline, SENT + 3 * S + 12 * S - 122 * MS);
}

TEST(the_least_ttl_for_a_grace)
{
    struct lease_config c = config(30 * S, 5 * S);
    c.default_grace = true;
    CHECK_INT(lease_least_ttl(&c), 1 * S);
    c.default_grace = false;
    CHECK(lease_least_ttl(&c) > 7 * S && lease_least_ttl(&c) < 9 * S);
}

TEST(a_negotiated_ttl_brings_its_own_default_grace)
{
    struct lease l =
        acquiring_with((struct lease_config){.ttl = 30 * S, .grace = 5 * S, .default_grace = true});
    CHECK_INT(on(&l, SENT, event(EV_GRANTED, SENT, 12 * S)), LEASE_START);
    CHECK_INT(l.times.kill_at - l.times.term_at, 2 * S);
}

TEST(release_ends_everything)
{
    struct lease l = granted_at(SENT);
    lease_release(&l);
    CHECK_INT(step(&l, KILL_AT, NULL), LEASE_NOTHING);
    CHECK_INT(on(&l, KILL_AT, renewed(SENT + 1)), LEASE_NOTHING);
    CHECK_INT(wake(&l, KILL_AT), DLOCK_NEVER);
}

/* --- trouble --- */

/* Held, and a renewal without an answer; the trouble is said at half, and once. */
static struct lease troubled(void)
{
    struct lease l = granted_at(SENT + 5 * MS);
    CHECK_INT(step(&l, l.times.renew_at, NULL), LEASE_RENEW);
    CHECK_INT(step(&l, TROUBLE_AT - 1, NULL), LEASE_NOTHING);
    CHECK_INT(wake(&l, TROUBLE_AT - 1), TROUBLE_AT);
    CHECK_INT(step(&l, TROUBLE_AT, NULL), LEASE_TROUBLE);
    CHECK_INT(l.trouble_since, SENT);
    CHECK_INT(step(&l, TROUBLE_AT, NULL), LEASE_NOTHING);
    CHECK_INT(wake(&l, TROUBLE_AT), TERM_AT - (TERM_AT - TROUBLE_AT) / 10);
    CHECK_INT(wake(&l, TERM_AT - 1000), TERM_AT);
    return l;
}

TEST(trouble_at_half_ends_with_a_renewal)
{
    struct lease l = troubled();
    int64_t now = TROUBLE_AT + 1 * S;
    /* One that says nothing new does not count. */
    CHECK_INT(on(&l, now, renewed(SENT)), LEASE_RENEW);
    CHECK_INT(on(&l, now, event(EV_UNCLEAR, 0, 0)), LEASE_NOTHING);
    CHECK_INT(step(&l, now + 1 * S, NULL), LEASE_RENEW);
    CHECK_INT(on(&l, now + 1 * S + 1, renewed(now + 1 * S)), LEASE_EXTEND);
    CHECK_INT(step(&l, now + 1 * S + 1, NULL), LEASE_RECOVERED);
    CHECK_INT(l.trouble_since, SENT);
    CHECK_INT(step(&l, now + 1 * S + 1, NULL), LEASE_NOTHING);
    /* Then the next trouble is said again. */
    CHECK_INT(step(&l, l.times.renew_at, NULL), LEASE_RENEW);
    CHECK_INT(step(&l, now + 1 * S + USABLE / 2, NULL), LEASE_TROUBLE);
    CHECK_INT(l.trouble_since, now + 1 * S);
}

TEST(an_answer_that_takes_half_again_does_not_end_the_trouble)
{
    struct lease l = troubled();
    CHECK_INT(on(&l, SENT + 6 * S, renewed(SENT + 1 * S)), LEASE_RENEW);
    CHECK_INT(step(&l, SENT + 6 * S, NULL), LEASE_EXTEND);
    CHECK_INT(step(&l, SENT + 6 * S, NULL), LEASE_NOTHING);
    CHECK_INT(on(&l, SENT + 6 * S + 1, renewed(SENT + 6 * S)), LEASE_EXTEND);
    CHECK_INT(step(&l, SENT + 6 * S + 1, NULL), LEASE_RECOVERED);
    CHECK_INT(l.trouble_since, SENT);
}

TEST(a_loss_ends_the_trouble_alone)
{
    struct lease l = troubled();
    CHECK_INT(step(&l, TERM_AT, NULL), LEASE_TERM);
    CHECK_INT(on(&l, TERM_AT + 1, renewed(TERM_AT)), LEASE_EXTEND);
    CHECK_INT(step(&l, TERM_AT + 1, NULL), LEASE_NOTHING);
    l = troubled();
    CHECK_INT(on(&l, TROUBLE_AT + 1, event(EV_LOST, 0, 0)), LEASE_KILL);
    CHECK_INT(step(&l, TERM_AT, NULL), LEASE_NOTHING);
    /* A process that was stopped until then. */
    l = granted_at(SENT);
    CHECK_INT(step(&l, TERM_AT, NULL), LEASE_TERM);
    CHECK_INT(step(&l, TERM_AT, NULL), LEASE_RENEW);
    CHECK_INT(step(&l, TERM_AT, NULL), LEASE_NOTHING);
    l = granted_at(SENT);
    CHECK_INT(step(&l, KILL_AT, NULL), LEASE_KILL);
    CHECK_INT(step(&l, KILL_AT, NULL), LEASE_RENEW);
    CHECK_INT(step(&l, KILL_AT, NULL), LEASE_NOTHING);
}

/* A process that was stopped, or asleep: its store may be well. */
TEST(a_renewal_that_begins_late_has_its_time_to_be_answered)
{
    struct lease l = granted_at(SENT);
    int64_t now = TROUBLE_AT + 1 * S;
    CHECK_INT(step(&l, now, NULL), LEASE_RENEW);
    CHECK_INT(on(&l, now + 100 * MS, renewed(now)), LEASE_EXTEND);
    CHECK_INT(step(&l, now + 100 * MS, NULL), LEASE_NOTHING);
    l = granted_at(SENT);
    CHECK_INT(step(&l, now, NULL), LEASE_RENEW);
    CHECK_INT(step(&l, now, NULL), LEASE_NOTHING);
    CHECK_INT(on(&l, now + 1 * S, event(EV_UNCLEAR, 0, 0)), LEASE_NOTHING);
    /* More tries do not give it more time. */
    CHECK_INT(step(&l, now + 1100 * MS, NULL), LEASE_RENEW);
    int64_t at = TROUBLE_AT + now - (SENT + USABLE / 3);
    CHECK_INT(wake(&l, at - 1000), at);
    CHECK_INT(step(&l, at - 1, NULL), LEASE_NOTHING);
    CHECK_INT(step(&l, at, NULL), LEASE_TROUBLE);
}

TEST(a_grant_that_is_not_confirmed_yet_is_in_no_trouble)
{
    struct lease l = acquiring();
    CHECK_INT(on(&l, SENT + USABLE / 3, granted(SENT)), LEASE_RENEW);
    CHECK_INT(step(&l, TROUBLE_AT + 1, NULL), LEASE_NOTHING);
    CHECK(wake(&l, TROUBLE_AT + 1) > TROUBLE_AT + 1);
}

/*
 * 12 s, usable 10.278 s: what is confirmed may be 8 s old when the next renewal is answered. The
 * bound is half-way from when a renewal is due to term_at.
 */
/* One request: the renewal under way counts, also where no time moves. */
TEST(a_renewal_that_the_caller_wants_begins_at_once_unless_one_is_under_way)
{
    struct lease l = granted_at(SENT);
    lease_renew_now(&l, SENT + S);
    CHECK_INT(wake(&l, SENT + S), SENT + S);
    CHECK_INT(step(&l, SENT + S, NULL), LEASE_RENEW);
    lease_renew_now(&l, SENT + 2 * S);
    CHECK_INT(step(&l, SENT + 2 * S, NULL), LEASE_NOTHING);
    CHECK_INT(on(&l, SENT + 2 * S, renewed(SENT + S)), LEASE_EXTEND);
    CHECK_INT(step(&l, SENT + 2 * S, NULL), LEASE_NOTHING);
    CHECK_INT(l.times.term_at, TERM_AT + S);
    l = lagging();
    CHECK_INT(on(&l, SENT, event(EV_GRANTED, SENT, 12 * S)), LEASE_START);
    lease_renew_now(&l, SENT + S);
    CHECK_INT(step(&l, SENT + S, NULL), LEASE_RENEW);
    CHECK_INT(on(&l, SENT + S, event(EV_RENEWED, SENT, 12 * S)), LEASE_EXTEND);
    CHECK_INT(step(&l, SENT + S, NULL), LEASE_NOTHING);
}

TEST(what_another_process_renews_or_nothing_renews_is_not_renewed_for_the_caller)
{
    struct lease_config c[] = {config(DLOCK_NEVER, 5 * S),
                               {.ttl = 10 * S, .grace = 1 * S, .follows = true}};
    for (int i = 0; i < 2; i++) {
        struct lease l = acquiring_with(c[i]);
        CHECK_INT(on(&l, SENT, event(EV_GRANTED, SENT, c[i].ttl)), LEASE_START);
        lease_renew_now(&l, SENT + S);
        CHECK(!l.wanted);
        CHECK_INT(step(&l, SENT + S, NULL), LEASE_NOTHING);
    }
}

TEST(trouble_of_a_lag_store_counts_from_the_renewal)
{
    struct lease l = lagging();
    struct dlock_event grant = event(EV_GRANTED, SENT, 12 * S);
    grant.asked = SENT + 6 * S;
    CHECK_INT(step(&l, SENT + 6 * S, &grant), LEASE_START);
    CHECK_INT(l.times.term_at, SENT + 10278 * MS);
    CHECK_INT(step(&l, SENT + 8 * S, NULL), LEASE_RENEW);
    CHECK_INT(step(&l, SENT + 8 * S + 1139 * MS - 1, NULL), LEASE_NOTHING);
    CHECK_INT(step(&l, SENT + 8 * S + 1139 * MS, NULL), LEASE_TROUBLE);
    /* Answered, but the lease does not get longer by that yet. */
    CHECK_INT(on(&l, SENT + 9500 * MS, event(EV_RENEWED, SENT, 12 * S)), LEASE_RENEW);
    CHECK_INT(step(&l, SENT + 9500 * MS, NULL), LEASE_NOTHING);
    CHECK_INT(on(&l, SENT + 10 * S + 1, event(EV_RENEWED, SENT + 6 * S, 12 * S)), LEASE_EXTEND);
    CHECK_INT(step(&l, SENT + 10 * S + 1, NULL), LEASE_RECOVERED);
}

/* --- two clocks --- */

static struct dlock_clocks clocks(int64_t boot, int64_t raw)
{
    return (struct dlock_clocks){.boot = boot, .raw = raw};
}

TEST(the_lease_is_over_when_either_clock_says_so)
{
    for (int by_raw = 0; by_raw < 2; by_raw++) {
        struct lease l = granted_at(SENT);
        struct dlock_clocks before = clocks(SENT, SENT), at = before;
        *(by_raw ? &before.raw : &before.boot) = TERM_AT - 1;
        *(by_raw ? &at.raw : &at.boot) = TERM_AT;
        l.renewing = l.troubled = true;
        CHECK_INT(lease_step(&l, before, NULL), LEASE_NOTHING);
        CHECK_INT(lease_time_left(lease_end(&l), before), DEADLINE - TERM_AT + 1);
        CHECK_INT(lease_step(&l, at, NULL), LEASE_TERM);
        *(by_raw ? &at.raw : &at.boot) = KILL_AT;
        CHECK_INT(lease_step(&l, at, NULL), LEASE_KILL);
        *(by_raw ? &at.raw : &at.boot) = DEADLINE + 1;
        CHECK_INT(lease_time_left(lease_end(&l), at), 0);
    }
}

TEST(trouble_comes_by_the_clock_that_says_less)
{
    for (int by_raw = 0; by_raw < 2; by_raw++) {
        struct lease l = granted_at(SENT);
        struct dlock_clocks at = clocks(SENT, SENT);
        int64_t *ahead = by_raw ? &at.raw : &at.boot;
        l.renewing = true;
        *ahead = TROUBLE_AT - 1;
        CHECK_INT(lease_step(&l, at, NULL), LEASE_NOTHING);
        CHECK_INT(lease_wake(&l, at), at.boot + 1);
        *ahead = TROUBLE_AT;
        CHECK_INT(lease_step(&l, at, NULL), LEASE_TROUBLE);
    }
}

TEST(a_grant_that_is_late_by_either_clock_is_confirmed_first)
{
    struct dlock_event ev = granted(SENT);
    struct lease l = acquiring();
    CHECK_INT(lease_step(&l, clocks(SENT + 1, SENT + USABLE / 4 + 1), &ev), LEASE_RENEW);
    l = acquiring();
    CHECK_INT(lease_step(&l, clocks(SENT + 1, TERM_AT), &ev), LEASE_UNUSABLE);
}

/* A renewal comes during the grace; since the last one CLOCK_BOOTTIME has lost, or won, 1 s. */
TEST(kill_at_moves_by_neither_clock)
{
    for (int64_t won = -1 * S; won <= 1 * S; won += 2 * S) {
        struct lease l = granted_at(SENT);
        struct dlock_event ev = renewed(TERM_AT);
        ev.raw_minus_boot = -won;
        CHECK_INT(step(&l, TERM_AT, NULL), LEASE_TERM);
        CHECK_INT(lease_step(&l, clocks(TERM_AT, TERM_AT - won), &ev),
                  won < 0 ? LEASE_KILL : LEASE_EXTEND);
        CHECK(l.times.kill_at <= KILL_AT);
        CHECK(l.times.kill_at + l.times.raw_minus_boot <= KILL_AT);
        CHECK_INT(l.times.deadline, TERM_AT + DEADLINE - SENT);
    }
}

/* The difference that is remembered for a moment is never more than it was. */
TEST(both_clocks_are_remembered)
{
    struct lease_clocks c;
    lease_clocks_init(&c, 10 * S);
    CHECK_INT(lease_clocks_difference(&c, 1 * S), -DLOCK_RAW_NEVER);
    lease_clocks_note(&c, clocks(101 * S, 1000 * S));
    lease_clocks_note(&c, clocks(103 * S, 1001 * S));
    lease_clocks_note(&c, clocks(107 * S, 1006 * S));
    CHECK_INT(lease_clocks_difference(&c, 101 * S), 898 * S);
    CHECK_INT(lease_clocks_difference(&c, 107 * S), 899 * S);
    CHECK_INT(lease_clocks_difference(&c, 97 * S), -DLOCK_RAW_NEVER);
    for (int i = 0; i < 62; i++)
        lease_clocks_note(&c, clocks((112 + 5 * i) * S, (2000 + 5 * i) * S));
    CHECK_INT(lease_clocks_difference(&c, 101 * S), 898 * S);
    CHECK_INT(lease_clocks_difference(&c, 417 * S), 1888 * S);
    lease_clocks_note(&c, clocks(422 * S, 3000 * S));
    CHECK_INT(lease_clocks_difference(&c, 101 * S), -DLOCK_RAW_NEVER);
    CHECK_INT(lease_clocks_difference(&c, 107 * S), 899 * S);
}

UNIT_MAIN
