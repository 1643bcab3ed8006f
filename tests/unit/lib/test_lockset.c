/* Several locks (lib/lockset.c) over backends and a clock of the test. */
#include "fake_env.h"

static struct stub stubs[3];
static dlock *locks[3];
static dlock *set;
static struct dlock_report r;
static const dlock *which;

/* The locks c, a and b, in this order: they are taken in the order of their names. */
static void make(int64_t wait)
{
    static const char *const names[] = {"c", "a", "b"};
    dlock_close(set); /* of the test before */
    clock_now = 1000 * S;
    raw_minus_boot = -300 * S;
    calls[0] = '\0';
    memset(stubs, 0, sizeof stubs);
    for (int i = 0; i < 3; i++) {
        stubs[i].letter = names[i][0];
        stubs[i].answers = true;
        locks[i] = fake_lock(&stubs[i], names[i]);
    }
    CHECK_INT(dlock_open_set(&set, locks, 3, wait, NULL), 0);
}

static struct stub *named(char letter)
{
    for (int i = 0; i < 3; i++)
        if (stubs[i].letter == letter)
            return &stubs[i];
    return NULL;
}

static enum dlock_report_type next(void)
{
    const struct dlock_report *got = dlock_process(set, NULL, 0);
    if (got)
        r = *got;
    which = r.lock;
    return got ? r.type : DLOCK_REPORT_NONE;
}

#define NEXT(type) CHECK_INT(next(), DLOCK_REPORT_##type)

static int64_t wake(void)
{
    struct pollfd pfd[3 * DLOCK_POLL_MAX];
    int64_t at;
    dlock_interest(set, pfd, 3 * DLOCK_POLL_MAX, &at);
    return at;
}

/* The clock says this, as the backend reads it when it sends something. */
static void clock_is(int64_t at)
{
    clock_now = at;
    for (int i = 0; i < 3; i++)
        (void)locks[i]->spec.env->now(locks[i]->spec.env->ctx);
}

static void grant(char letter, const char *token)
{
    struct dlock_event ev = {.type = EV_GRANTED, .from = clock_now, .ttl = 10 * S, .fence = 42};
    clock_is(clock_now);
    snprintf(ev.token, sizeof ev.token, "%s", token);
    stub_says(named(letter), ev);
}

static void lose(char letter)
{
    stub_says(named(letter), (struct dlock_event){.type = EV_LOST, .error.code = DLOCK_ELOST});
}

/* The store of this lock does not answer. */
static void no_answer(char letter)
{
    stub_says(named(letter), (struct dlock_event){.type = EV_FAILED, .error.code = DLOCK_EUNAVAIL});
}

#define GRANT(letter, token, type) (grant(letter, token), NEXT(type))
#define AT(time, type) (clock_is(time), NEXT(type))

/* The store answers that the lock is held. */
static void waits(char letter)
{
    stub_says(named(letter), (struct dlock_event){.type = EV_WAITING});
    NEXT(WAITING);
}

static void grant_all(void)
{
    for (const char *c = "abc"; *c; c++) {
        grant(*c, (char[]){'t', *c, '\0'});
        if (*c != 'c')
            NEXT(NONE);
    }
    NEXT(ACQUIRED);
}

static void start(int64_t wait)
{
    make(wait);
    dlock_start_acquire(set, NULL);
}

static void start_with_min_hold(void)
{
    make(DLOCK_NEVER);
    for (int i = 0; i < 3; i++)
        locks[i]->spec.min_hold = 3600 * S;
    dlock_start_acquire(set, NULL);
}

/* The set holds a, and waits for b. */
static void start_with_a(int64_t wait)
{
    start(wait);
    GRANT('a', "ta", NONE);
}

TEST(one_order_and_all_or_none)
{
    start(DLOCK_NEVER);
    NEXT(NONE);
    CHECK_STR(calls, "Aa ");
    clock_is(1001 * S);
    GRANT('a', "ta", NONE);
    CHECK_STR(calls, "Aa Ab ");
    clock_is(1002 * S);
    GRANT('b', "tb", NONE);
    CHECK_INT(dlock_time_left(set), 0);
    clock_is(1003 * S);
    GRANT('c', "tc", ACQUIRED);
    CHECK(!which);
    CHECK_STR(calls, "Aa Ab Ac ");
    /* The lease of a is the oldest. */
    CHECK_INT(r.times.deadline, locks[1]->lease.times.deadline);
    CHECK_INT(r.times.term_at, locks[1]->lease.times.term_at);
    CHECK_INT(dlock_time_left(set), dlock_time_left(locks[1]));
    CHECK_INT(dlock_deadline(set), dlock_deadline(locks[1]));
    /* As they were given. */
    CHECK_STR(dlock_name(dlock_at(set, 0)), "c");
    CHECK_STR(dlock_token(dlock_at(set, 0)), "tc");
    CHECK_STR(dlock_name(dlock_at(set, 2)), "b");
    CHECK(!dlock_at(set, 3));
    dlock_start_release(set, clock_now + S, NULL);
    NEXT(RELEASED);
    CHECK(!which);
    CHECK_INT(r.how, DLOCK_RELEASE_CLEAN);
    CHECK_STR(calls, "Aa Ab Ac Rc Rb Ra ");
    NEXT(NONE);
}

TEST(the_same_lock_twice_is_refused)
{
    struct dlock_error err;
    make(0);
    dlock *c = fake_lock(&stubs[0], "c"), *two[] = {c, c};
    dlock *other = NULL;
    CHECK_INT(dlock_open_set(&other, locks, 1, 0, &err), DLOCK_EUSAGE);
    CHECK_HAS(err.msg, "the handle belongs to a set");
    CHECK_INT(dlock_open_set(&other, two, 2, 0, &err), DLOCK_EUSAGE);
    CHECK_HAS(err.msg, "named twice (lock 'c')");
    CHECK(!other);
    CHECK_INT(dlock_open_set(&other, two, 0, 0, NULL), DLOCK_EUSAGE);
    CHECK_INT(dlock_open_set(&other, two, DLOCK_SET_MAX + 1, 0, NULL), DLOCK_EUSAGE);
    CHECK_INT(dlock_open_set(&other, two, 1, -1, NULL), DLOCK_EUSAGE);
    dlock_close(c);
}

TEST(a_set_in_a_set_is_refused)
{
    struct dlock_error err;
    dlock *other = NULL;
    make(0);
    CHECK_INT(dlock_open_set(&other, &set, 1, 0, &err), DLOCK_EUSAGE);
    CHECK_HAS(err.msg, "a part of another set");
    CHECK(!other);
}

TEST(a_set_answers_no_queries)
{
    struct dlock_error err;
    const struct dlock_info holder = {.pid = 1};
    make(0);
    CHECK_INT(dlock_start_status(set, &err), DLOCK_EUSAGE);
    CHECK_HAS(err.msg, "dlock_start_status(): not possible for a set of locks");
    CHECK_INT(dlock_start_forget(set, "t", &err), DLOCK_EUSAGE);
    CHECK_INT(dlock_start_break(set, &holder, false, &err), DLOCK_EUSAGE);
    CHECK_INT(dlock_start_list(set, &err), DLOCK_EUSAGE);
    CHECK_INT(dlock_start_check(set, &err), DLOCK_EUSAGE);
    CHECK_INT(dlock_state(set), DLOCK_STATE_IDLE);
    CHECK_INT(stubs[0].asks + stubs[1].asks + stubs[2].asks, 0);
}

TEST(one_that_is_busy_gives_all_back)
{
    struct dlock_info info = {.pid = 7, .token = "other"};
    start_with_a(0);
    CHECK(!named('b')->wait);
    stub_says(named('b'), (struct dlock_event){.type = EV_BUSY, .info = &info});
    NEXT(BUSY);
    CHECK_STR(dlock_name(which), "b");
    CHECK_INT(r.info->pid, 7);
    CHECK_STR(calls, "Aa Ab Ra ");
    NEXT(NONE);
}

TEST(an_alias_of_a_lock_of_the_set_is_refused)
{
    struct dlock_info info = {.pid = 7, .token = "ta"};
    for (int waits = 0; waits < 2; waits++) {
        start_with_a(waits ? DLOCK_NEVER : 0);
        stub_says(named('b'),
                  (struct dlock_event){.type = waits ? EV_WAITING : EV_BUSY, .info = &info});
        NEXT(FAILED);
        CHECK_INT(r.error.code, DLOCK_EUSAGE);
        CHECK_HAS(r.error.msg, "the same lock as stub:// (lock 'a')");
        CHECK_INT(named('a')->releases, 1);
    }
}

TEST(held_locks_are_renewed_while_the_next_is_waited_for)
{
    start_with_a(DLOCK_NEVER);
    waits('b');
    for (int i = 0; i < 9; i++)
        AT(clock_now + S, NONE);
    CHECK_INT(named('a')->renews, 3);
    GRANT('b', "tb", NONE);
    GRANT('c', "tc", ACQUIRED);
    CHECK_INT(r.times.deadline, locks[1]->lease.times.deadline);
}

TEST(without_progress_all_are_given_back_and_taken_again)
{
    start_with_a(DLOCK_NEVER);
    waits('b');
    int64_t end = clock_now + 10 * S;
    while (clock_now < end) {
        CHECK(wake() <= end);
        clock_is(dlock_min(end, dlock_max(clock_now + MS, wake())));
        if (clock_now < end)
            NEXT(NONE);
    }
    NEXT(NOTICE);
    CHECK_STR(dlock_name(which), "b");
    CHECK_HAS(r.error.msg, "the lock 'b' was not free for 10 s while others were held");
    NEXT(NONE);
    CHECK_STR(calls, "Aa Ab Rb Ra ");
    int64_t again = wake();
    CHECK(again > clock_now && again <= clock_now + S);
    AT(again, NONE);
    CHECK_STR(calls, "Aa Ab Rb Ra Aa ");
    /* The first one is waited for as long as it takes. */
    waits('a');
    AT(clock_now + 60 * S, NONE);
    grant_all();
}

TEST(a_set_that_begins_again_rides_out_an_outage_of_a_store_that_it_has_reached)
{
    start_with_a(DLOCK_NEVER);
    lose('a');
    NEXT(NOTICE);
    NEXT(NONE);
    AT(wake(), NONE);
    for (int i = 0; i < 3; i++) {
        no_answer('a');
        CHECK_INT(next(), i == 0 ? DLOCK_REPORT_TROUBLE : DLOCK_REPORT_NONE);
        AT(wake(), NONE);
    }
    CHECK_INT(named('a')->acquires, 5);
    GRANT('a', "ta", RECOVERED);
    NEXT(NONE);
    /* The store of b has not answered yet. */
    no_answer('b');
    NEXT(FAILED);
    CHECK_STR(dlock_name(which), "b");
    /* Another acquire has a first contact of its own. */
    dlock_start_acquire(set, NULL);
    no_answer('a');
    NEXT(FAILED);
}

TEST(a_wait_that_ends_in_the_pause)
{
    static const struct {
        enum { BUSY, SILENT, NEVER_ASKED, LOST } b;
        int report, code;
        const char *text, *which;
    } rows[] = {
        {BUSY, DLOCK_REPORT_BUSY, 0, "", "b"},
        {SILENT, DLOCK_REPORT_FAILED, DLOCK_EUNAVAIL, "; no answer for 10 s (lock 'b')", "b"},
        {NEVER_ASKED, DLOCK_REPORT_FAILED, DLOCK_EUNAVAIL, "no answer within 10 s", "b"},
        {LOST, DLOCK_REPORT_FAILED, DLOCK_EUNAVAIL, "the lock 'a' was lost before the others", "a"},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        make(10 * S + 10 * MS);
        locks[2]->opt.retry = rows[i].b == SILENT;
        locks[2]->opt.connect_timeout_ns = 60 * S;
        dlock_start_acquire(set, NULL);
        GRANT('a', "ta", NONE);
        if (rows[i].b == BUSY)
            waits('b');
        if (rows[i].b == SILENT) {
            no_answer('b');
            NEXT(TROUBLE);
        }
        while (clock_now < 1009 * S)
            AT(clock_now + S, NONE);
        if (rows[i].b == LOST)
            lose('a');
        else
            clock_is(1010 * S);
        NEXT(NOTICE);
        NEXT(NONE);
        clock_is(1010 * S + 10 * MS);
        CHECK_INT(next(), rows[i].report);
        CHECK_INT(r.error.code, rows[i].code);
        CHECK_HAS(r.error.msg, rows[i].text);
        CHECK_STR(dlock_name(which), rows[i].which);
    }
}

TEST(the_time_to_wait_is_that_of_the_set)
{
    start(5 * S);
    clock_is(1003 * S);
    GRANT('a', "ta", NONE);
    CHECK_INT(locks[2]->opt.wait_ns, 2 * S);
    stub_says(named('b'), (struct dlock_event){.type = EV_WAITING});
    NEXT(WAITING);
    CHECK_STR(dlock_name(which), "b");
    AT(1005 * S, BUSY);
    CHECK_STR(dlock_name(which), "b");
    CHECK_INT(named('a')->releases, 1);
}

TEST(a_lock_that_is_lost_while_others_are_waited_for)
{
    start_with_a(DLOCK_NEVER);
    lose('a');
    NEXT(NOTICE);
    CHECK_HAS(r.error.msg, "the lock 'a' was lost before the others were held");
    NEXT(NONE);
    AT(wake(), NONE);
    grant_all();
    start_with_a(0);
    lose('a');
    NEXT(FAILED);
    CHECK_INT(r.error.code, DLOCK_EUNAVAIL);
}

TEST(a_lock_that_is_not_renewed_holds_up_the_start)
{
    start_with_a(30 * S);
    named('a')->silent = true;
    AT(clock_now + 3 * S, NONE);
    AT(clock_now + 2 * S, TROUBLE);
    CHECK_STR(dlock_name(which), "a");
    GRANT('b', "tb", NONE);
    GRANT('c', "tc", NONE);
    stub_says(named('a'),
              (struct dlock_event){.type = EV_RENEWED, .from = clock_now, .ttl = 10 * S});
    NEXT(RECOVERED);
    NEXT(ACQUIRED);
}

TEST(the_loss_of_any_is_the_loss_of_the_set)
{
    start(DLOCK_NEVER);
    grant_all();
    lose('b');
    NEXT(LOST);
    CHECK_STR(dlock_name(which), "b");
    CHECK_INT(r.error.code, DLOCK_ELOST);
    dlock_start_release(set, clock_now + S, NULL);
    NEXT(RELEASED);
    CHECK(!which);
}

TEST(a_renewal_moves_the_earliest_time)
{
    start(DLOCK_NEVER);
    grant_all();
    int64_t before = r.times.deadline;
    clock_is(clock_now + 3 * S);
    for (int i = 0; i < 3; i++)
        NEXT(EXTENDED);
    NEXT(NONE);
    CHECK_INT(r.times.deadline, before + 3 * S);
    named('b')->silent = true;
    AT(clock_now + 3 * S, EXTENDED);
    NEXT(EXTENDED);
    CHECK_INT(r.times.deadline, before + 3 * S);
}

TEST(all_locks_are_renewed_for_the_caller)
{
    struct dlock_error err;
    start(DLOCK_NEVER);
    CHECK_INT(dlock_start_renew(set, &err), DLOCK_EUSAGE);
    grant_all();
    int64_t before = r.times.deadline;
    clock_is(clock_now + S);
    named('b')->silent = true;
    CHECK_INT(dlock_renew_now(set, 0, &err), DLOCK_EUNAVAIL);
    CHECK_HAS(err.msg, "the lock 'b' is confirmed yet");
    named('b')->silent = false;
    stub_says(named('b'),
              (struct dlock_event){.type = EV_RENEWED, .from = clock_now, .ttl = 10 * S});
    clock_is(clock_now + S);
    CHECK_INT(dlock_renew_now(set, 0, &err), 0);
    CHECK_INT(dlock_time_left(set), before - S - clock_now + 2 * S);
    for (const char *c = "abc"; *c; c++)
        CHECK_INT(named(*c)->renews, *c == 'b' ? 1 : 2);
}

/* Also when a second order to release comes in between. */
TEST(a_release_that_is_not_confirmed_is_told_with_its_lock)
{
    for (int orders = 1; orders <= 2; orders++) {
        start(DLOCK_NEVER);
        grant_all();
        named('b')->silent = true;
        dlock_start_release(set, clock_now + S, NULL);
        NEXT(RELEASED);
        CHECK_STR(which ? dlock_name(which) : "", "b");
        CHECK_INT(r.how, DLOCK_RELEASE_UNCLEAR);
        if (orders == 2)
            dlock_start_release(set, clock_now + 2 * S, NULL);
        NEXT(RELEASED);
        CHECK(!which);
        CHECK_INT(r.how, DLOCK_RELEASE_UNCLEAR);
        NEXT(NONE);
    }
}

TEST(a_cancelled_acquire_gives_back_what_it_has)
{
    start_with_a(DLOCK_NEVER);
    dlock_start_release(set, clock_now + S, NULL);
    NEXT(RELEASED);
    CHECK(!which);
    CHECK_STR(calls, "Aa Ab Rb Ra ");
    CHECK_INT(wake(), DLOCK_NEVER);
}

TEST(a_skip_gives_back_the_others_without_a_least_time)
{
    static struct dlock_run run = {.state = DLOCK_RUN_SUCCEEDED, .pid = 7};
    start_with_min_hold();
    GRANT('a', "ta", NONE);
    CHECK(locks[1]->hold.until > clock_now);
    stub_says(named('b'), (struct dlock_event){.type = EV_SKIPPED, .run = &run});
    NEXT(SKIPPED);
    run.pid = 8; /* the store's own: valid until the next call on its handle */
    CHECK_STR(dlock_name(which), "b");
    CHECK_INT(r.run->pid, 7);
    CHECK_STR(calls, "Aa Ab Ra ");
    CHECK_INT(locks[1]->hold.until, 0);
    CHECK_INT(wake(), DLOCK_NEVER);
}

TEST(a_set_that_was_not_complete_has_no_least_time)
{
    start_with_min_hold();
    GRANT('a', "ta", NONE);
    dlock_start_release(set, clock_now + S, NULL);
    CHECK_INT(locks[1]->hold.until, 0);
    start_with_min_hold();
    grant_all();
    dlock_start_release(set, clock_now + S, NULL);
    for (int i = 0; i < 3; i++)
        CHECK_INT(locks[i]->hold.until, clock_now + 3600 * S);
}

/* b has a record of its runs. The set is complete, and the clock is at 1001 s. */
static void start_with_record(int64_t wait)
{
    make(wait);
    locks[2]->spec.once = S;
    dlock_start_acquire(set, NULL);
    for (const char *c = "abc"; *c; c++) {
        CHECK_INT(named('b')->renews, 0);
        grant(*c, (char[]){'t', *c, '\0'});
        NEXT(NONE);
    }
    CHECK_INT(locks[2]->hold.begin, RUN_NOW);
    clock_is(1001 * S);
}

TEST(a_run_begins_when_the_set_is_complete_by_a_renewal_of_its_own)
{
    start_with_record(DLOCK_NEVER);
    CHECK(wake() <= clock_now);
    NEXT(ACQUIRED);
    CHECK_INT(named('a')->renews + named('c')->renews, 0);
    CHECK_INT(named('b')->renews, 1);
    CHECK_INT(locks[2]->hold.begin, RUN_BEGINS);
    CHECK_INT(locks[0]->hold.begin, RUN_BEGINS);
}

TEST(a_renewal_under_way_does_not_begin_the_run)
{
    start_with_a(DLOCK_NEVER);
    locks[1]->spec.once = S;
    locks[1]->hold.begin = RUN_LATER;
    named('a')->silent = true;
    AT(1003 * S, NONE);
    CHECK_INT(named('a')->renews, 1);
    GRANT('b', "tb", NONE);
    GRANT('c', "tc", NONE);
    CHECK_INT(locks[1]->hold.begin, RUN_LATER);
    stub_says(named('a'),
              (struct dlock_event){.type = EV_RENEWED, .from = clock_now, .ttl = 10 * S});
    NEXT(NONE);
    CHECK_INT(locks[1]->hold.begin, RUN_NOW);
    named('a')->silent = false;
    AT(1004 * S, ACQUIRED);
    CHECK_INT(named('a')->renews, 2);
}

TEST(a_run_that_could_not_begin)
{
    static const struct {
        int code, report;
    } rows[] = {{DLOCK_EDATA, DLOCK_REPORT_FAILED}, {DLOCK_EUNAVAIL, DLOCK_REPORT_NONE}};
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        start_with_record(3 * S);
        named('b')->silent = true;
        NEXT(NONE);
        CHECK(dlock_time_left(locks[0]) > 0);
        CHECK_INT(dlock_time_left(set), 0); /* each lock is held, but no work may start */
        stub_says(named('b'), (struct dlock_event){.type = EV_UNCLEAR, .error.code = rows[i].code});
        CHECK_INT(next(), rows[i].report);
        if (rows[i].report == DLOCK_REPORT_NONE) {
            AT(1003 * S, NONE);
            NEXT(FAILED);
        }
        CHECK_INT(r.error.code, rows[i].code);
        CHECK_STR(dlock_name(which), "b");
        CHECK_STR(calls, "Aa Ab Ac Rc Rb Ra ");
        CHECK_INT(locks[2]->hold.begin, RUN_NOW); /* the release records nothing */
    }
}

TEST(a_note_about_a_set_concerns_all_its_locks)
{
    start_with_min_hold();
    grant_all();
    locks[0]->spec.once = S;
    CHECK_INT(dlock_min_hold_left(set), 3600 * S);
    clock_is(clock_now + S);
    locks[0]->hold.until = locks[1]->hold.until = 0;
    CHECK_INT(dlock_min_hold_left(set), 3599 * S); /* the longest */
    dlock_end_min_hold(set);
    CHECK_INT(dlock_min_hold_left(set), 0);
    CHECK_INT(dlock_note_result(set, true, 256, NULL), DLOCK_EUSAGE);
    CHECK_INT(dlock_note_result(set, true, 3, NULL), 0);
    CHECK(locks[0]->hold.ended && locks[0]->hold.success);
    CHECK_INT(locks[0]->hold.status, 3);
    CHECK(!locks[1]->hold.ended && !locks[1]->hold.success); /* it has no record */
}

/* The last of three descriptors, each of one lock, is ready; the caller has room for cap. */
static int64_t wake_with_room(int cap, const int fds[3])
{
    struct pollfd pfd[3 * DLOCK_POLL_MAX];
    int64_t at;
    make(DLOCK_NEVER);
    dlock_start_acquire(set, NULL);
    for (const char *c = "abc"; *c; c++)
        named(*c)->fd = fds[*c - 'a'];
    grant_all();
    clock_is(clock_now + S);
    CHECK_INT(dlock_interest(set, pfd, cap, &at), dlock_min(cap, 3));
    for (int i = 0; i < 3 && i < cap; i++)
        pfd[i].revents = i == 2 ? POLLIN : 0;
    CHECK(!dlock_process(set, pfd, (int)dlock_min(cap, 3)));
    CHECK_INT(named('a')->ready + named('b')->ready, 0);
    CHECK_INT(named('c')->ready, 1);
    return at - clock_now;
}

TEST(a_caller_without_room_for_all_descriptors_looks_again_soon)
{
    int fds[3], ends[2];
    REQUIRE_INT(pipe(ends), 0);
    REQUIRE_INT(write(ends[1], "", 1), 1);
    fds[0] = ends[1]; /* never to be read from */
    fds[1] = dup(ends[1]);
    fds[2] = ends[0];
    CHECK_INT(wake_with_room(0, fds), 20 * MS);
    CHECK_INT(wake_with_room(2, fds), 20 * MS);
    CHECK(wake_with_room(3, fds) > S);
    CHECK(wake_with_room(3 * DLOCK_POLL_MAX, fds) > S);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
}

TEST(the_descriptor_of_a_handle_is_silent_in_a_set)
{
    make(DLOCK_NEVER);
    dlock_close(set);
    dlock *d = fake_lock(&stubs[0], "d");
    int fd = dlock_poll_fd(d, NULL);
    REQUIRE(fd >= 0 && asks_for_dispatch(fd));
    CHECK_INT(dlock_open_set(&set, &d, 1, DLOCK_NEVER, NULL), 0);
    int all = dlock_poll_fd(set, NULL);
    CHECK(!dlock_dispatch(set) && !asks_for_dispatch(all));
    CHECK(!dlock_process(set, NULL, 0) && asks_for_dispatch(all));
    CHECK(!dlock_dispatch(set) && !asks_for_dispatch(all));
    CHECK_INT(dlock_start_acquire(set, NULL), 0);
    CHECK(!asks_for_dispatch(fd) && asks_for_dispatch(all));
}

UNIT_MAIN
