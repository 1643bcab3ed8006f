/* The handle (lib/lock.c) over a backend and a clock of the test: time bounds, and undoing. */
#include "fake_env.h"
#include "nested.h"

static struct stub be;

static struct dlock_uri uri = {
    .scheme = (char[]){"stub"}, .name = (char[]){"job"}, .where = (char[]){"stub://"}};

static dlock lk;

static void make(dlock *d, int64_t wait)
{
    memset(&be, 0, sizeof be);
    clock_now = 1000 * S;
    raw_minus_boot = -300 * S;
    fake_handle(d, &uri, &be);
    d->opt.wait_ns = wait;
}

static void start(int64_t wait)
{
    make(&lk, wait);
    dlock_start_acquire(&lk, NULL);
}

static void say(struct dlock_event ev)
{
    stub_says(&be, ev);
}

/* The backend has read its clock at this time, with the present difference of the clocks. */
static int64_t read_at(const dlock *d, int64_t time)
{
    int64_t now = clock_now;
    clock_now = time;
    CHECK_INT(d->spec.env->now(d->spec.env->ctx), time);
    clock_now = now;
    return time;
}

static struct dlock_event granted(int64_t from)
{
    return (struct dlock_event){
        .type = EV_GRANTED, .from = from, .ttl = 10 * S, .fence = 42, .token = "t"};
}

static struct dlock_event of(enum dlock_ev type)
{
    return (struct dlock_event){.type = type};
}
static struct dlock_event at_place(enum dlock_ev type, const struct dlock_info *info, int place)
{
    return (struct dlock_event){.type = type, .info = info, .place = place};
}
static struct dlock_event of_run(enum dlock_ev type, const struct dlock_run *run)
{
    return (struct dlock_event){.type = type, .run = run};
}
static struct dlock_event released(enum dlock_release_how how)
{
    return (struct dlock_event){.type = EV_RELEASED, .how = how};
}
static struct dlock_event renewed(const dlock *d)
{
    return (struct dlock_event){.type = EV_RENEWED, .from = read_at(d, clock_now), .ttl = 10 * S};
}
static struct dlock_event event_at(enum dlock_ev type, const struct dlock_site *at,
                                   const char *cause)
{
    struct dlock_event ev = {.type = type};
    dlock_fail_site(&ev.error, type == EV_LOST ? DLOCK_ELOST : DLOCK_EUNAVAIL, 0, at, "%s", cause);
    return ev;
}
static struct dlock_event trouble(enum dlock_ev type, const char *cause)
{
    return event_at(type, &(struct dlock_site){.where = "stub://"}, cause);
}
static struct dlock_event failed(enum dlock_ev type, int code, const char *cause)
{
    struct dlock_event ev = {.type = type};
    dlock_fail(&ev.error, code, 0, "%s", cause);
    return ev;
}

static struct dlock_report r;
static enum dlock_report_type next(dlock *d)
{
    const struct dlock_report *got = dlock_process(d, NULL, 0);
    if (got)
        r = *got;
    return got ? r.type : DLOCK_REPORT_NONE;
}

/* The next report of the handle; the report after an event, after a time, at a time. */
#define NEXT(type) CHECK_INT(next(&lk), DLOCK_REPORT_##type)
#define ON(event, type) (say(event), NEXT(type))
#define AFTER(ns, type) (clock_now += (ns), NEXT(type))
#define AT(time, type) (clock_now = (time), NEXT(type))

static int64_t wake(dlock *d)
{
    struct pollfd p[8];
    int64_t at;
    dlock_interest(d, p, 8, &at);
    return at;
}

TEST(tells_once_of_ignored_parameters)
{
    struct dlock_param params[] = {
        {.key = "pool", .value = "hunter", .used = true, .ignored = true},
        {.key = "ttl", .value = "hunter", .used = true},
        {.key = "max", .value = "hunter", .used = true, .ignored = true}};
    make(&lk, DLOCK_NEVER);
    lk.uri->params = params;
    lk.uri->nparams = DLOCK_LEN(params);
    lk.say_ignored = true;
    dlock_start_acquire(&lk, NULL);
    CHECK_INT(wake(&lk), 0);
    NEXT(NOTICE);
    CHECK_INT(r.error.code, 0); /* for -v only */
    CHECK_HAS(r.error.msg, "ignored the parameters of other programs: pool, max");
    CHECK_NULL(strstr(r.error.msg, "hunter"));
    ON(granted(read_at(&lk, clock_now)), ACQUIRED);
    NEXT(NONE);
    lk.uri->params = NULL;
    lk.uri->nparams = 0;
}

TEST(acquire_renew_release)
{
    start(DLOCK_NEVER);
    CHECK(be.wait);
    NEXT(NONE);
    ON(granted(read_at(&lk, clock_now)), ACQUIRED);
    CHECK_INT(r.fence, 42);
    CHECK_STR(r.token, "t");
    CHECK_INT(dlock_deadline(&lk), 1000 * S + 9898 * MS);
    NEXT(NONE);
    AT(wake(&lk), NONE);
    CHECK_INT(be.renews, 1);
    ON(renewed(&lk), EXTENDED);
    CHECK_INT(r.times.deadline, clock_now + 9898 * MS);
    dlock_start_release(&lk, clock_now + 1 * S, NULL);
    CHECK_INT(be.releases, 1);
    ON(released(DLOCK_RELEASE_CLEAN), RELEASED);
    CHECK_INT(r.how, DLOCK_RELEASE_CLEAN);
    CHECK_INT(dlock_deadline(&lk), 0);
    CHECK_INT(wake(&lk), DLOCK_NEVER);
}

TEST(a_release_that_is_answered_after_the_lease_says_nothing_of_the_run)
{
    for (int late = 0; late < 2; late++) {
        start(DLOCK_NEVER);
        ON(granted(read_at(&lk, clock_now)), ACQUIRED);
        clock_now = r.times.deadline - 1;
        dlock_start_release(&lk, clock_now + 1 * S, NULL);
        clock_now += late;
        ON(released(DLOCK_RELEASE_NOT_OURS), RELEASED);
        CHECK_INT(r.how, late ? DLOCK_RELEASE_UNCLEAR : DLOCK_RELEASE_NOT_OURS);
        CHECK_INT(r.error.code, late ? DLOCK_EUNAVAIL : 0);
    }
}

TEST(a_release_of_a_lost_lock_says_so_also_after_the_lease)
{
    start(DLOCK_NEVER);
    ON(granted(read_at(&lk, clock_now)), ACQUIRED);
    int64_t deadline = r.times.deadline;
    ON(failed(EV_LOST, DLOCK_ELOST, "gone"), LOST);
    clock_now = deadline + 1 * S;
    dlock_start_release(&lk, clock_now + 1 * S, NULL);
    ON(released(DLOCK_RELEASE_NOT_OURS), RELEASED);
    CHECK_INT(r.how, DLOCK_RELEASE_NOT_OURS);
}

TEST(a_wait_ends_on_time_and_leaves_the_queue)
{
    struct dlock_info holder = {.pid = 99};
    start(300 * MS);
    ON(at_place(EV_WAITING, &holder, 2), WAITING);
    CHECK_INT(r.place, 2);
    CHECK_INT(r.info->pid, 99);
    CHECK_INT(wake(&lk), 1000 * S + 300 * MS);
    AFTER(300 * MS, NONE);
    CHECK_INT(be.releases, 1);
    CHECK(be.until <= clock_now + 90 * MS); /* -w may be late by 100 ms at most */
    ON(released(DLOCK_RELEASE_UNCLEAR), BUSY);
    CHECK_INT(r.info->pid, 99);
}

TEST(no_answer_is_never_busy)
{
    start(300 * MS);
    AFTER(300 * MS, NONE);
    ON(released(DLOCK_RELEASE_UNCLEAR), FAILED);
    CHECK_INT(r.error.code, DLOCK_EUNAVAIL);
    CHECK(strstr(r.error.msg, "no answer within 300 ms") != NULL);
}

TEST(first_contact_is_bounded_only_until_the_first_answer)
{
    start(DLOCK_NEVER);
    CHECK(wake(&lk) < 1000 * S + 5200 * MS);
    ON(of(EV_WAITING), WAITING);
    AFTER(3600 * S, NONE);
    CHECK_INT(be.releases, 0);
    start(DLOCK_NEVER);
    AFTER(6 * S, NONE);
    CHECK_INT(be.releases, 1);
    ON(of(EV_RELEASED), FAILED);
    CHECK_INT(r.error.code, DLOCK_EUNAVAIL);
}

/* --- outages while waiting --- */

/* It waits in the queue, and then the connection is lost. */
static void lose(int64_t wait)
{
    start(wait);
    ON(of(EV_WAITING), WAITING);
    clock_now += 1 * S;
    ON(trouble(EV_AWAY, "connection lost"), TROUBLE);
    CHECK_STR(r.error.msg, "connection lost");
    CHECK_INT(r.since, 1001 * S);
}

TEST(an_outage_of_a_waiter_is_reported_once_and_has_no_bound_of_its_own)
{
    lose(DLOCK_NEVER);
    for (int i = 0; i < 100; i++) {
        clock_now += 3600 * S;
        ON(trouble(EV_AWAY, "cannot connect"), NONE);
    }
    CHECK_INT(be.releases, 0);
    ON(of(EV_BACK), RECOVERED);
    CHECK_INT(r.since, 1001 * S);
    NEXT(NONE);
    ON(trouble(EV_AWAY, "cannot connect"), TROUBLE);
}

TEST(a_wait_that_ends_in_an_outage_is_not_busy)
{
    lose(60 * S);
    clock_now += 10 * S;
    ON(trouble(EV_AWAY, "cannot connect"), NONE);
    CHECK_INT(wake(&lk), 1060 * S);
    AT(1060 * S, NONE);
    CHECK_INT(be.releases, 1);
    CHECK(be.until <= clock_now + 90 * MS);
    ON(released(DLOCK_RELEASE_UNCLEAR), FAILED);
    CHECK_INT(r.error.code, DLOCK_EUNAVAIL);
    CHECK_STR(r.error.msg, "stub://: cannot connect; no answer for 59 s (lock 'job')");
}

/* The cause may be long, may name the lock already, and may have the words of that. */
TEST(a_wait_that_ends_in_an_outage_says_why_and_names_the_lock_once)
{
    static const char *const whys[] = {"refused", "refused (the key (lock 'x'))", "refused"};
    char want[1024], many[401] = "";
    memset(many, 'h', sizeof(many) - 1);
    for (int i = 0; i < 6; i++) {
        struct dlock_site at = {.where = i < 4 ? "stub://" : many, .lock = i % 2 ? "job" : NULL};
        lose(60 * S);
        snprintf(want, sizeof(want), "%s: %s", at.where, whys[i / 2]);
        ON(event_at(EV_AWAY, &at, whys[i / 2]), NONE);
        AT(1060 * S, NONE);
        ON(of(EV_RELEASED), FAILED);
        snprintf(want + strlen(want), sizeof(want) - strlen(want),
                 "; no answer for 59 s (lock 'job')");
        CHECK_STR(r.error.msg, want);
    }
}

TEST(a_wait_that_ends_after_an_outage_is_busy)
{
    lose(60 * S);
    ON(of(EV_BACK), RECOVERED);
    AT(1060 * S, NONE);
    ON(of(EV_RELEASED), BUSY);
}

TEST(a_wait_ends_at_once_with_what_an_outage_does_not_explain)
{
    lose(60 * S);
    ON(failed(EV_FAILED, DLOCK_EPERM, "wrong password"), NONE);
    ON(of(EV_RELEASED), FAILED);
    CHECK_STR(r.error.msg, "wrong password");
}

/* A connection lost before the first answer, or in a single try, is no outage of a waiter. */
TEST(only_a_waiter_has_an_outage)
{
    start(DLOCK_NEVER);
    ON(trouble(EV_AWAY, "connection lost"), NONE);
    start(0);
    ON(trouble(EV_AWAY, "connection lost"), NONE);
}

/* --- the first contact, again and again --- */

static void make_retry(int64_t wait)
{
    make(&lk, wait);
    lk.opt.retry = true;
    dlock_start_acquire(&lk, NULL);
}

/* The acquire under way fails, and is undone; nothing is reported after the first time. */
static void fail_once(enum dlock_report_type first)
{
    int releases = be.releases;
    ON(trouble(EV_FAILED, "cannot connect"), NONE);
    CHECK_INT(be.releases, releases + 1);
    say(released(DLOCK_RELEASE_NOTHING));
    CHECK_INT(next(&lk), first);
}

/* Wait for the next try. */
static void await_try(void)
{
    int acquires = be.acquires;
    int64_t at = wake(&lk);
    CHECK(at > clock_now && at <= clock_now + 1 * S);
    AT(at, NONE);
    CHECK_INT(be.acquires, acquires + 1);
}

TEST(a_store_that_cannot_be_reached_fails_at_once)
{
    start(DLOCK_NEVER);
    fail_once(DLOCK_REPORT_FAILED);
    CHECK_INT(r.error.code, DLOCK_EUNAVAIL);
    make_retry(0); /* a single try it is */
    fail_once(DLOCK_REPORT_FAILED);
}

TEST(the_first_contact_is_tried_again_until_there_is_an_answer)
{
    make_retry(DLOCK_NEVER);
    clock_now += 100 * MS;
    fail_once(DLOCK_REPORT_TROUBLE);
    CHECK_STR(r.error.msg, "cannot connect");
    CHECK_INT(r.since, 1000 * S);
    for (int i = 0; i < 1000; i++) {
        await_try();
        fail_once(DLOCK_REPORT_NONE);
    }
    await_try();
    ON(at_place(EV_WAITING, NULL, 3), RECOVERED);
    CHECK_INT(r.since, 1000 * S);
    NEXT(WAITING);
    CHECK_INT(r.place, 3);
    /* From now on it is a wait like any other. */
    fail_once(DLOCK_REPORT_FAILED);
}

TEST(a_server_that_is_silent_at_first_contact_is_tried_again)
{
    make_retry(DLOCK_NEVER);
    AT(wake(&lk), NONE);
    CHECK_INT(be.releases, 1); /* it may have served the request */
    ON(released(DLOCK_RELEASE_UNCLEAR), TROUBLE);
    CHECK_STR(r.error.msg, "no answer within 5 s");
    await_try();
    ON(granted(read_at(&lk, clock_now)), RECOVERED);
    CHECK_INT(wake(&lk), 0);
    NEXT(ACQUIRED);
}

TEST(a_wait_bounds_the_tries_of_the_first_contact)
{
    make_retry(10 * S);
    fail_once(DLOCK_REPORT_TROUBLE);
    while (clock_now < 1009 * S) {
        await_try();
        fail_once(DLOCK_REPORT_NONE);
    }
    lk.retry_at = DLOCK_NEVER; /* in a pause */
    CHECK_INT(wake(&lk), 1010 * S);
    AT(1010 * S, FAILED);
    CHECK_INT(r.error.code, DLOCK_EUNAVAIL);
    CHECK_STR(r.error.msg, "stub://: cannot connect; no answer for 10 s (lock 'job')");
    make_retry(1 * S);
    fail_once(DLOCK_REPORT_TROUBLE);
    await_try();
    AT(1001 * S, NONE); /* in a try */
    CHECK(be.until <= clock_now + 90 * MS);
    ON(of(EV_RELEASED), FAILED);
    CHECK_STR(r.error.msg, "stub://: cannot connect; no answer for 1 s (lock 'job')");
}

TEST(what_is_refused_at_first_contact_is_not_tried_again)
{
    static const int codes[] = {DLOCK_EUSAGE, DLOCK_EDATA,  DLOCK_ENOBACKEND, DLOCK_EUNUSABLE,
                                DLOCK_EOS,    DLOCK_EPROTO, DLOCK_EPERM};
    for (size_t i = 0; i < DLOCK_LEN(codes); i++) {
        make_retry(DLOCK_NEVER);
        fail_once(DLOCK_REPORT_TROUBLE);
        await_try();
        ON(failed(EV_FAILED, codes[i], "no"), NONE);
        ON(of(EV_RELEASED), FAILED);
        CHECK_STR(r.error.msg, codes[i] == DLOCK_EPROTO ? "stub://: no (lock 'job')" : "no");
    }
}

TEST(a_lack_of_memory_or_descriptors_may_pass)
{
    static const struct {
        int code, sys;
        bool passes;
    } rows[] = {{DLOCK_ENOMEM, 0, true},
                {DLOCK_EOS, EMFILE, true},
                {DLOCK_EOS, ENFILE, true},
                {DLOCK_EOS, EACCES, false}};
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        make_retry(DLOCK_NEVER);
        struct dlock_event ev = failed(EV_FAILED, rows[i].code, "no");
        ev.error.sys = rows[i].sys;
        ON(ev, NONE);
        ON(of(EV_RELEASED), FAILED);
        CHECK((r.retry_at != DLOCK_NEVER) == rows[i].passes);
    }
}

TEST(a_pause_between_tries_is_cancelled_at_once)
{
    make_retry(DLOCK_NEVER);
    fail_once(DLOCK_REPORT_TROUBLE);
    dlock_start_release(&lk, clock_now + 1 * S, NULL);
    CHECK_INT(be.releases, 1);
    NEXT(RELEASED);
    CHECK_INT(r.how, DLOCK_RELEASE_NOTHING);
    AFTER(60 * S, NONE);
    CHECK_INT(be.acquires, 1);
}

/* A waiter whose grant came too late acquires again, as a waiter, also during an outage. */
TEST(a_waiter_that_begins_anew_rides_out_an_outage)
{
    start(60 * S);
    ON(of(EV_WAITING), WAITING);
    clock_now += 20 * S; /* we were stopped */
    ON(granted(read_at(&lk, 1000 * S)), NONE);
    ON(released(DLOCK_RELEASE_UNCLEAR), NONE);
    fail_once(DLOCK_REPORT_TROUBLE);
    CHECK_INT(r.since, 1020 * S);
    await_try();
    ON(of(EV_WAITING), RECOVERED);
    NEXT(WAITING);
}

TEST(busy_ends_a_try)
{
    struct dlock_info holder = {.pid = 5};
    start(0);
    CHECK(!be.wait);
    ON(at_place(EV_BUSY, &holder, 0), BUSY);
    CHECK_INT(r.info->pid, 5);
    CHECK_INT(be.releases, 0);
}

TEST(a_late_grant_is_renewed_before_it_counts)
{
    start(DLOCK_NEVER);
    clock_now += 3 * S;
    ON(granted(read_at(&lk, 1000 * S)), NONE);
    CHECK_INT(be.renews, 1);
    CHECK_INT(dlock_deadline(&lk), 0);
    ON(renewed(&lk), ACQUIRED);
}

TEST(an_unusable_grant_is_released_and_the_wait_goes_on)
{
    start(60 * S);
    ON(of(EV_WAITING), WAITING);
    clock_now += 20 * S; /* we were stopped */
    ON(granted(read_at(&lk, 1000 * S)), NONE);
    CHECK_INT(be.releases, 1);
    ON(released(DLOCK_RELEASE_CLEAN), NONE);
    CHECK_INT(be.acquires, 2);
    AFTER(40 * S, NONE); /* the whole wait is still bounded */
    CHECK_INT(be.releases, 2);
    ON(of(EV_RELEASED), BUSY);
}

TEST(an_unusable_grant_fails_a_try)
{
    start(0);
    clock_now += 20 * S;
    lk.contacted = true;
    ON(granted(read_at(&lk, 1000 * S)), NONE);
    ON(released(DLOCK_RELEASE_CLEAN), FAILED);
    CHECK_INT(r.error.code, DLOCK_EUNAVAIL);
    CHECK_INT(be.acquires, 1);
}

static void hold(void)
{
    start(DLOCK_NEVER);
    ON(granted(read_at(&lk, clock_now)), ACQUIRED);
}

TEST(certain_loss_is_reported_at_once)
{
    hold();
    ON(failed(EV_LOST, DLOCK_ELOST, "gone"), LOST);
    CHECK_STR(r.error.msg, "gone");
    CHECK_INT(dlock_deadline(&lk), 0);
}

TEST(coming_loss_says_why)
{
    hold();
    clock_now = wake(&lk);
    next(&lk);
    ON(failed(EV_UNCLEAR, DLOCK_EUNAVAIL, "no answer"), NONE);
    AT(lk.lease.times.term_at, TERM);
    CHECK_STR(r.error.msg, "no answer");
    AT(lk.lease.times.kill_at, LOST);
}

/* Sleeps as poll() would, until a report or until this time. */
static enum dlock_report_type next_by(int64_t time)
{
    enum dlock_report_type type;
    while ((type = next(&lk)) == DLOCK_REPORT_NONE && clock_now < time)
        clock_now = dlock_min(wake(&lk), time);
    return type;
}

static struct dlock_event unclear(const char *cause)
{
    return event_at(EV_UNCLEAR, &(struct dlock_site){0}, cause);
}

TEST(trouble_says_since_when_and_why_until_a_renewal)
{
    hold();
    CHECK_INT(next_by(lk.lease.times.renew_at), DLOCK_REPORT_NONE);
    CHECK_INT(be.renews, 1);
    say(unclear("refused"));
    CHECK_INT(next_by(1003 * S), DLOCK_REPORT_NONE);
    say(unclear("refused again"));
    CHECK_INT(next_by(1020 * S), DLOCK_REPORT_TROUBLE);
    CHECK_INT(clock_now, 1000 * S + 4199 * MS);
    CHECK_INT(r.since, 1000 * S);
    CHECK_INT(r.times.term_at, 1000 * S + 8398 * MS);
    CHECK_INT(r.times.kill_at, 1000 * S + 9398 * MS);
    CHECK_STR(r.error.msg, "refused again");
    CHECK_INT(next_by(1006 * S), DLOCK_REPORT_NONE);
    say(renewed(&lk));
    AFTER(5 * MS, EXTENDED);
    NEXT(RECOVERED);
    CHECK_INT(r.since, 1000 * S);
    CHECK_INT(r.times.term_at, 1006 * S + 8398 * MS);
    NEXT(NONE);
}

/* A reason from the wait, or from before the last renewal, is none. */
TEST(trouble_never_has_an_old_reason)
{
    make(&lk, DLOCK_NEVER);
    dlock_fail(&lk.why, DLOCK_EUNAVAIL, 0, "from the wait");
    dlock_start_acquire(&lk, NULL);
    ON(granted(read_at(&lk, clock_now)), ACQUIRED);
    for (int i = 0; i < 2; i++) {
        int64_t from = clock_now;
        CHECK_INT(next_by(from + 20 * S), DLOCK_REPORT_TROUBLE);
        /* The renewal began after a third of 8.398 s. */
        CHECK_STR(r.error.msg, "no answer within 1.4 s");
        CHECK_INT(r.error.code, DLOCK_EUNAVAIL);
        say(unclear("from before the renewal"));
        CHECK_INT(next_by(clock_now + 100 * MS), DLOCK_REPORT_NONE);
        ON(renewed(&lk), EXTENDED);
        NEXT(RECOVERED);
    }
    CHECK_INT(next_by(clock_now + 20 * S), DLOCK_REPORT_TROUBLE);
    CHECK_INT(next_by(clock_now + 20 * S), DLOCK_REPORT_TERM);
    CHECK_STR(r.error.msg, "no answer within 5.599 s");
}

/* Reports about a hold name neither the store nor the lock. */
TEST(a_cause_names_neither_store_nor_lock)
{
    static const struct {
        struct dlock_site at;
        const char *said, *cause;
    } rows[] = {
        {{"stub://", NULL, NULL}, "refused", "refused"},
        {{"stub://", NULL, "job"}, "refused", "refused"},
        {{"stub://", "[::1]:6379", "job"}, "refused: why", "[::1]:6379: refused: why"},
        {{NULL, NULL, NULL}, "stub:// (odd", "stub:// (odd"},
        {{NULL, NULL, NULL}, "stub://: odd (lock 'job')", "stub://: odd (lock 'job')"},
        {{"stub://other", NULL, "job"}, "refused", "stub://other: refused"},
        {{"stub://other", "::1", NULL}, "refused", "stub://other (::1): refused"},
        {{NULL, NULL, NULL}, "refused", "refused"},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        hold();
        AT(lk.lease.times.renew_at, NONE);
        say(event_at(EV_UNCLEAR, &rows[i].at, rows[i].said));
        CHECK_INT(next_by(1020 * S), DLOCK_REPORT_TROUBLE);
        CHECK_STR(r.error.msg, rows[i].cause);
        ON(event_at(EV_LOST, &rows[i].at, rows[i].said), LOST);
        CHECK_STR(r.error.msg, rows[i].cause);
        dlock_start_release(&lk, clock_now, NULL);
        ON(event_at(EV_RELEASED, &rows[i].at, rows[i].said), RELEASED);
        CHECK_STR(r.error.msg, rows[i].cause);
    }
}

/* So that a text that goes on with it never ends in ": ". */
TEST(a_hold_that_ends_always_has_a_cause)
{
    hold();
    AT(lk.lease.times.renew_at, NONE);
    say(event_at(EV_UNCLEAR, &(struct dlock_site){.where = "stub://"}, ""));
    CHECK_INT(next_by(1020 * S), DLOCK_REPORT_TROUBLE);
    CHECK_STR(r.error.msg, "the store has confirmed no renewal");
    struct dlock_event ev = {.type = EV_LOST, .error = {.code = DLOCK_ELOST}};
    ON(ev, LOST);
    CHECK_STR(r.error.msg, "the store says that the lock is not ours");
    CHECK_INT(r.error.code, DLOCK_ELOST);
}

/* Stopped, or asleep, until then: what it says and whether it says that it is late. */
static void check_late(int64_t until, enum dlock_report_type type, const char *late)
{
    hold();
    CHECK_INT(next_by(1001 * S), DLOCK_REPORT_NONE);
    CHECK(wake(&lk) > clock_now);
    clock_now = 1000 * S + until;
    CHECK_INT(next_by(1020 * S), type);
    CHECK_HAS(r.error.msg, late);
    CHECK_INT(be.renews, clock_now < 1000 * S + 8398 * MS);
}

TEST(a_process_that_was_stopped_says_so)
{
    check_late(3 * S, DLOCK_REPORT_TROUBLE, "no answer within 1.4 s");
    check_late(5 * S, DLOCK_REPORT_TROUBLE, "no answer within 1.4 s");
    check_late(8399 * MS, DLOCK_REPORT_TERM, "did not run for 5.6");
    check_late(9399 * MS, DLOCK_REPORT_LOST, "did not run for 6.6");
}

TEST(a_release_discards_reports_that_wait)
{
    start(DLOCK_NEVER);
    dlock_start_release(&lk, clock_now + 1, NULL);
    ON(released(DLOCK_RELEASE_NOTHING), RELEASED);
    NEXT(NONE);
    dlock_start_release(&lk, clock_now + 1, NULL); /* idle: nothing to do, but a report */
    NEXT(RELEASED);
    CHECK_INT(r.how, DLOCK_RELEASE_NOTHING);
    CHECK_INT(be.releases, 1);
}

/* Have the names been looked up again after an outage this long? Numeric names: at once. */
static bool looks_up_after(int64_t pause)
{
    clock_now += pause;
    lk.names.peers[0].len = 0;
    say(trouble(EV_AWAY, "connection lost"));
    if (next(&lk) == DLOCK_REPORT_TROUBLE)
        NEXT(NONE);
    NEXT(NONE);
    return lk.names.peers[0].len > 0;
}

TEST(the_names_are_looked_up_again_several_times_within_the_ttl)
{
    struct dlock_host host = {.host = (char[]){"192.0.2.1"}, .port = 1};
    struct dlock_uri named = uri;
    start(DLOCK_NEVER);
    ON(of(EV_WAITING), WAITING);
    named.hosts = &host;
    named.nhosts = 1;
    lk.uri = lk.spec.uri = &named;
    REQUIRE(lk.names.peers = calloc(1, sizeof(*lk.names.peers)));
    lk.spec.peers = lk.names.peers;
    lk.spec.npeers = 1;
    lk.opt.ttl_ns = 12 * S;
    CHECK(looks_up_after(0));
    CHECK(!looks_up_after(1900 * MS));
    CHECK(looks_up_after(100 * MS));
    lk.opt.ttl_ns = 2 * S;
    CHECK(!looks_up_after(900 * MS));
    CHECK(looks_up_after(100 * MS));
    lk.opt.ttl_ns = 3600 * S;
    CHECK(!looks_up_after(9900 * MS));
    CHECK(looks_up_after(100 * MS));
    CHECK_INT(lk.spec.npeers, 1);
    free(lk.names.peers);
}

TEST(a_status_query_reports_and_ends)
{
    struct dlock_info info = {.pid = 3};
    make(&lk, DLOCK_NEVER);
    dlock_start_status(&lk, NULL);
    CHECK_INT(be.asks, 1);
    CHECK_INT(be.order->until, clock_now + lk.opt.connect_timeout_ns);
    be.holder = &info;
    ON(of(EV_READ), INFO);
    CHECK_INT(r.info->pid, 3);
    NEXT(DONE);
    NEXT(NONE);
}

/* --- run records and least times --- */

static void start_with_min_hold(int64_t min_hold, int64_t wait)
{
    make(&lk, wait);
    lk.spec.min_hold = min_hold;
    dlock_start_acquire(&lk, NULL);
}

TEST(a_skip_ends_an_acquire_with_nothing_held)
{
    static const struct dlock_run run = {.state = DLOCK_RUN_SUCCEEDED, .pid = 7};
    start(5 * S);
    ON(of(EV_WAITING), WAITING);
    ON(of_run(EV_SKIPPED, &run), SKIPPED);
    CHECK_INT(r.run->pid, 7);
    NEXT(NONE);
    CHECK_INT(wake(&lk), DLOCK_NEVER);
    CHECK_INT(be.releases, 0);
    CHECK_INT(dlock_time_left(&lk), 0);
    /* The handle can be used again. */
    dlock_start_acquire(&lk, NULL);
    ON(granted(read_at(&lk, clock_now)), ACQUIRED);
}

TEST(a_hold_has_failed_unless_its_result_says_otherwise)
{
    hold();
    CHECK(!lk.hold.ended && !lk.hold.success && lk.hold.status == -1);
    dlock_note_result(&lk, true, 24, NULL);
    dlock_start_release(&lk, clock_now + S, NULL);
    CHECK(lk.hold.ended && lk.hold.success && lk.hold.status == 24);
    /* A signal hurries the release: the result stays. */
    dlock_start_release(&lk, clock_now + S / 2, NULL);
    CHECK(lk.hold.ended && lk.hold.success && lk.hold.status == 24);
    ON(released(DLOCK_RELEASE_CLEAN), RELEASED);
    dlock_start_acquire(&lk, NULL);
    CHECK(!lk.hold.ended && !lk.hold.success && lk.hold.status == -1);
}

TEST(a_least_time_counts_from_the_grant)
{
    start_with_min_hold(3 * S, DLOCK_NEVER);
    clock_now += 4 * S;
    ON(granted(read_at(&lk, clock_now)), ACQUIRED);
    CHECK_INT(lk.hold.until, clock_now + 3 * S);
    clock_now += S;
    CHECK_INT(dlock_min_hold_left(&lk), 2 * S);
    be.stays = true;
    CHECK_INT(dlock_min_hold_left(&lk), 0);
    be.stays = false;
    clock_now += 4 * S;
    CHECK_INT(dlock_min_hold_left(&lk), 0);
    CHECK_INT(lk.hold.until, clock_now - 2 * S);
    dlock_end_min_hold(&lk);
    CHECK_INT(lk.hold.until, 0);
    start_with_min_hold(DLOCK_NEVER, DLOCK_NEVER); /* no overflow */
    ON(granted(read_at(&lk, clock_now)), ACQUIRED);
    CHECK(lk.hold.until == DLOCK_NEVER - 1);
    CHECK(dlock_min_hold_left(&lk) == DLOCK_NEVER - 1 - clock_now);
}

/* Granted, and no work was started. */
TEST(a_grant_without_work_has_no_least_time)
{
    for (int i = 0; i < 3; i++) {
        start_with_min_hold(3600 * S, 30 * S);
        clock_now += i < 2 ? 3 * S : 20 * S;
        lk.contacted = true;
        say(granted(read_at(&lk, 1000 * S))); /* late: renewed first, or not usable at all */
        NEXT(NONE);
        CHECK_INT(be.renews, i < 2);
        if (i == 0)
            dlock_start_release(&lk, clock_now + S, NULL);
        else if (i == 1)
            AFTER(40 * S, NONE);
        CHECK_INT(be.releases, 1);
        CHECK_INT(lk.hold.until, 0);
    }
}

TEST(a_record_is_forgotten_by_its_token)
{
    static const struct dlock_run run = {.state = DLOCK_RUN_RUNNING, .token = "abc"};
    static const struct dlock_info holder = {.token = "abc"};
    static const struct dlock_event forgotten = {.type = EV_STEPPED, .stepped = true};
    make(&lk, DLOCK_NEVER);
    dlock_start_status(&lk, NULL);
    CHECK_INT(be.order->question->what, ASK_STATUS);
    ON(of_run(EV_READ, &run), RUN);
    CHECK_STR(r.run->token, "abc");
    CHECK(r.crashed);
    NEXT(DONE);
    dlock_start_forget(&lk, "abc", NULL);
    CHECK_INT(be.order->question->what, ASK_FORGET);
    be.holder = &holder;
    ON(of_run(EV_READ, &run), BUSY);
    dlock_start_forget(&lk, "abc", NULL);
    ON(of_run(EV_READ, &run), NONE);
    CHECK_INT(be.order->what, STEP_FORGET);
    CHECK_STR(be.order->run->token, "abc");
    clock_now += lk.opt.connect_timeout_ns + S; /* the store has answered: no first contact */
    ON(forgotten, DONE);
    dlock_start_status(&lk, NULL);
    CHECK_INT(be.order->question->what, ASK_STATUS);
}

/* --- two clocks --- */

TEST(the_time_left_is_by_the_clock_that_says_less)
{
    hold();
    CHECK_INT(dlock_time_left(&lk), 9898 * MS);
    clock_now += 1 * S;
    raw_minus_boot += 1 * S;
    CHECK_INT(dlock_time_left(&lk), 7898 * MS);
    raw_minus_boot -= 5 * S;
    CHECK_INT(dlock_time_left(&lk), 8898 * MS);
    raw_minus_boot += 50 * S;
    CHECK_INT(dlock_time_left(&lk), 0);
    dlock_start_release(&lk, clock_now, NULL);
    CHECK_INT(dlock_time_left(&lk), 0);
}

/*
 * A machine and a store, by random. The raw clock is right. CLOCK_BOOTTIME is slewed by up to 10 %
 * in either direction, and jumps when the machine has slept; poll() waits by the same rate, but
 * does not count the sleep.
 */
#define USABLE (8398 * MS)
#define KILLED (9398 * MS)
#define LEASED (9898 * MS)
/* Our wait may be longer by this. */
#define LATE (MS / 5)
struct machine {
    dlock d;
    uint64_t dice;
    bool healthy; /* the store answers, the machine does not sleep */
    int64_t rate; /* of CLOCK_BOOTTIME, in thousandths */
    bool slept;
    int calls; /* that the backend has received */
    /* The request: when it is sent and answered (raw clock), and both clocks when it was sent. */
    int64_t send_at, answer_at;
    struct dlock_clocks sent;
    struct dlock_clocks answered[16]; /* the latest first */
    struct dlock_clocks from;         /* what the lease counts from; 0: nothing is held */
    struct dlock_clocks ending;       /* the same at TERM; 0: not yet */
    bool killed;
};

static int64_t dice(struct machine *m, int64_t n)
{
    m->dice = m->dice * 6364136223846793005U + 1442695040888963407U;
    return (int64_t)(m->dice >> 33) % n;
}

static int64_t raw_now(void)
{
    return clock_now + raw_minus_boot;
}

static void pass(struct machine *m, int64_t ns)
{
    int64_t boot = ns * m->rate / 1000;
    clock_now += boot;
    raw_minus_boot += ns - boot;
}

/* Wait as poll() does, in pieces: the slew changes, the machine sleeps. */
static void wait_until(struct machine *m, int64_t wake_at)
{
    m->slept = false;
    while (clock_now < wake_at) {
        int64_t left = (wake_at - clock_now) * 1000 / m->rate + 1,
                event = dlock_min(m->send_at, m->answer_at);
        int64_t piece = dlock_min(dice(m, 2 * S), left);
        if (event <= raw_now() + piece) {
            pass(m, dlock_max(0, event - raw_now()));
            return;
        }
        pass(m, piece);
        m->rate = 900 + (dice(m, 3) ? 100 * dice(m, 3) : dice(m, 201));
        if (!m->healthy && dice(m, 200) == 0) {
            int64_t sleep = dice(m, 6 * S);
            clock_now += sleep;
            raw_minus_boot -= sleep;
            wake_at += sleep;
            m->slept = true;
        }
    }
}

/* With CAP_LAG only an older request counts; see zookeeper. */
static struct dlock_clocks counts_from(const struct machine *m)
{
    int i = 0;
    if (m->d.lease_cfg.lag)
        while (i < 15 && m->answered[i + 1].raw &&
               m->answered[i].boot > m->answered[0].boot - 10 * S / 3)
            i++;
    return m->answered[i];
}

static void backend_called(struct machine *m)
{
    if (be.acquires + be.renews > m->calls) {
        m->calls = be.acquires + be.renews;
        m->send_at = raw_now() + dice(m, 20 * MS);
    }
}

static void backend_works(struct machine *m)
{
    if (raw_now() >= m->send_at) {
        m->sent = (struct dlock_clocks){m->d.spec.env->now(m->d.spec.env->ctx), raw_now()};
        m->answer_at = raw_now() + dice(m, m->healthy ? 300 * MS : 3 * S);
        m->send_at = DLOCK_NEVER;
    } else if (raw_now() >= m->answer_at) {
        m->answer_at = DLOCK_NEVER;
        if (!m->healthy && m->from.raw && dice(m, 3)) {
            say(of(EV_UNCLEAR));
            return;
        }
        memmove(m->answered + 1, m->answered, 15 * sizeof m->answered[0]);
        m->answered[0] = m->sent;
        struct dlock_event ev = granted(counts_from(m).boot);
        ev.asked = m->sent.boot;
        ev.type = m->from.raw ? EV_RENEWED : EV_GRANTED;
        m->from = counts_from(m);
        say(ev);
    }
}

static bool before(struct dlock_clocks from, int64_t length)
{
    return clock_now < from.boot + length && raw_now() < from.raw + length;
}

/* All reports; false: one of them breaks a promise. */
static bool hear(struct machine *m)
{
    while (next(&m->d)) {
        if (r.type == DLOCK_REPORT_TERM)
            m->ending = m->from;
        if (r.type == DLOCK_REPORT_LOST)
            m->killed = true;
        /* With CAP_LAG, clocks that differ by 10 % can be trouble. */
        if (r.type == DLOCK_REPORT_TROUBLE && !m->d.lease_cfg.lag && !CHECK(!m->healthy))
            return false;
        /* Hardly too early: the difference of the clocks is known for each half of the ttl. */
        if (r.type == DLOCK_REPORT_TERM && !m->slept && !CHECK(!before(m->from, USABLE - 550 * MS)))
            return false;
    }
    if (m->d.phase != LOCK_HELD || m->killed)
        return CHECK_INT(dlock_time_left(&m->d) > 0 && m->d.lease.state != LEASE_GONE &&
                             m->d.phase != LOCK_HELD,
                         0);
    if (!CHECK(!m->healthy || !m->ending.raw))
        return false;
    int64_t left = dlock_min(m->from.boot - clock_now, m->from.raw - raw_now()) + LEASED;
    return CHECK(dlock_time_left(&m->d) <= dlock_max(0, left)) &&
           CHECK(m->ending.raw ? before(m->ending, KILLED) : before(m->from, USABLE));
}

static bool runs_well(struct machine *m)
{
    make(&m->d, DLOCK_NEVER);
    m->d.opt.connect_timeout_ns = 1000 * S;
    m->d.lease_cfg.lag = dice(m, 2);
    m->rate = 1000;
    m->send_at = m->answer_at = DLOCK_NEVER;
    dlock_start_acquire(&m->d, NULL);
    for (int64_t end = raw_now() + 120 * S; raw_now() < end;) {
        backend_works(m);
        if (!hear(m))
            return false;
        if (m->killed || be.releases) /* or it was granted too late */
            return true;
        backend_called(m);
        wait_until(m, wake(&m->d));
        if (m->d.phase == LOCK_HELD && !m->slept &&
            !CHECK(m->ending.raw ? before(m->ending, KILLED + LATE)
                                 : before(m->from, USABLE + LATE)))
            return false;
    }
    return true;
}

TEST(no_hold_outlasts_either_clock)
{
    int ended = 0;
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        struct machine m = {.dice = seed * 0x9e3779b97f4a7c15U, .healthy = seed % 4 == 0};
        if (!runs_well(&m)) {
            CHECK_FAIL("with seed %d", (int)seed);
            return;
        }
        ended += m.killed;
    }
    CHECK(ended > 200);
}

/* Known from the scheme alone, before a module is loaded; for the modules see their own tests. */
TEST(the_registry_knows_how_a_scheme_holds)
{
    CHECK_INT(dlock_registry_hold("file"), CAP_FD);
#ifdef WITH_REDIS
    CHECK_INT(dlock_registry_hold("redlocks"), CAP_LEASE);
#endif
    CHECK_INT(dlock_registry_hold("etcd"), 0);
}

TEST(a_parsed_uri_is_taken_over_also_on_failure)
{
    struct dlock_options o;
    dlock_options_init(&o, sizeof o);
    struct dlock_uri *u = NULL;
    dlock *d = NULL;
    REQUIRE_INT(dlock_uri_parse(&u, "file:///dir#n", NULL), 0);
    REQUIRE_INT(dlock_open_nested(&d, &u, NULL, &o, NULL), 0);
    CHECK_NULL(u);
    CHECK_STR(dlock_name(d), "n");
    dlock_close(d);
    d = NULL;
    o.mode = DLOCK_MODE_SLOTS;
    REQUIRE_INT(dlock_uri_parse(&u, "file:///dir#n", NULL), 0);
    CHECK_INT(dlock_open_nested(&d, &u, NULL, &o, NULL), DLOCK_EUSAGE);
    CHECK_NULL(u);
    CHECK_NULL(d);
}

TEST(a_slot_is_held_only_while_it_is_held)
{
    struct dlock_event ev;
    start(DLOCK_NEVER);
    ev = granted(read_at(&lk, clock_now));
    ev.slot = 3;
    ON(ev, ACQUIRED);
    CHECK_INT(dlock_slot(&lk), 2);
    dlock_start_release(&lk, clock_now + S, NULL);
    CHECK_INT(dlock_slot(&lk), -1);
}

/* kill_at does not move after TERM: LOST follows, however well the lock is renewed meanwhile. */
TEST(after_term_no_renewal_makes_dlock_keep_say_that_all_is_well)
{
    struct dlock_error err;
    hold();
    clock_now = wake(&lk);
    next(&lk);
    clock_now = lk.lease.times.term_at;
    CHECK_INT(dlock_keep(&lk, 0, &err), DLOCK_ELOST);
    CHECK_HAS(err.msg, "did not run for 4.199");
    say(renewed(&lk));
    CHECK_INT(dlock_keep(&lk, 0, &err), DLOCK_ELOST);
    CHECK(dlock_time_left(&lk) > 9 * S);
    CHECK_INT(dlock_state(&lk), DLOCK_STATE_HELD);
    AT(lk.lease.times.kill_at, LOST);
    CHECK_HAS(r.error.msg, "did not run for 4.199");
}

/*
 * An interrupted program ends its work, and needs its lock for so long. Without a look at the
 * answer, a backend takes a time-out for silence, and disconnects.
 */
TEST(dlock_keep_looks_for_answers_before_the_time_counts_and_when_it_is_interrupted)
{
    struct dlock_error err;
    for (int interrupted = 0; interrupted < 2; interrupted++) {
        int fds[2];
        hold();
        REQUIRE(pipe(fds) == 0 && write(fds[1], "x", 1) == 1);
        be.fd = fds[0];
        be.blind = 0;
        if (interrupted)
            lk.opt.cancel_fd = fds[0];
        CHECK_INT(dlock_keep(&lk, 0, &err), interrupted ? DLOCK_ECANCELED : 0);
        CHECK(interrupted ? be.ready == 1 : be.ready > 0);
        CHECK_INT(be.blind, 0);
        close(fds[0]);
        close(fds[1]);
    }
}

TEST(a_caller_that_will_be_busy_renews_first_by_one_request)
{
    struct dlock_error err;
    hold();
    be.answers = be.silent = true;
    CHECK_INT(dlock_renew_now(&lk, 0, &err), DLOCK_EUNAVAIL);
    CHECK_HAS(err.msg, "no renewal of the lock 'job' is confirmed yet; the lock is still held");
    CHECK_INT(be.renews, 1);
    CHECK_INT(dlock_renew_now(&lk, 0, &err), DLOCK_EUNAVAIL);
    CHECK_INT(be.renews, 1);
    clock_now += S;
    say(renewed(&lk));
    CHECK_INT(dlock_renew_now(&lk, 0, &err), 0);
    CHECK_INT(be.renews, 1);
    be.silent = false;
    clock_now += S;
    CHECK_INT(read_at(&lk, clock_now), clock_now);
    CHECK_INT(dlock_renew_now(&lk, DLOCK_NEVER, &err), 0);
    CHECK_INT(be.renews, 2);
    CHECK_INT(dlock_time_left(&lk), 9898 * MS);
    clock_now = lk.lease.times.term_at;
    CHECK_INT(dlock_renew_now(&lk, DLOCK_NEVER, &err), DLOCK_ELOST);
    CHECK_INT(dlock_renew_now(&lk, DLOCK_NEVER, &err), DLOCK_ELOST);
}

TEST(a_renewal_that_the_caller_wants_is_sent_by_the_loop)
{
    make(&lk, DLOCK_NEVER);
    clock_now = dlock_now(); /* of the kernel's timer, too */
    dlock_start_acquire(&lk, NULL);
    ON(granted(read_at(&lk, clock_now)), ACQUIRED);
    int fd = dlock_poll_fd(&lk, NULL);
    CHECK(!dlock_dispatch(&lk) && !asks_for_dispatch(fd));
    CHECK_INT(dlock_start_renew(&lk, NULL), 0);
    CHECK(asks_for_dispatch(fd));
    CHECK_INT(be.renews, 0);
    CHECK(!dlock_dispatch(&lk));
    CHECK_INT(be.renews, 1);
    ON(renewed(&lk), EXTENDED);
    poller_close(lk.head.poller);
}

/* The descriptor knows nothing of other calls that drive the handle, and must not be silent. */
TEST(the_one_descriptor_asks_for_dispatch_after_other_calls)
{
    make(&lk, DLOCK_NEVER);
    int fd = dlock_poll_fd(&lk, NULL);
    REQUIRE(fd >= 0 && asks_for_dispatch(fd));
    CHECK(!dlock_dispatch(&lk) && !asks_for_dispatch(fd));
    NEXT(NONE);
    CHECK(asks_for_dispatch(fd));
    CHECK(!dlock_dispatch(&lk) && !asks_for_dispatch(fd));
    CHECK_INT(dlock_start_status(&lk, NULL), 0);
    CHECK(asks_for_dispatch(fd));
    poller_close(lk.head.poller);
}

UNIT_MAIN
