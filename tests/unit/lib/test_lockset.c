/* Several locks (lib/lockset.c) over backends and a clock of the test. */
#include "lock.h"
#include "unit.h"

#include "util.h"
#include <unistd.h>

#define S DLOCK_SEC
#define MS DLOCK_MSEC

static int64_t clock_now;
static int64_t get_now(void *ctx)
{
    (void)ctx;
    return clock_now;
}
static int64_t get_raw(void *ctx)
{
    (void)ctx;
    return clock_now - 300 * S;
}
static int get_random(void *ctx, void *buf, size_t len)
{
    (void)ctx;
    memset(buf, 7, len);
    return 0;
}
static const struct dlock_env env = {.now = get_now, .raw = get_raw, .random = get_random};

/* Each store notes its calls, also in one string for all: "A" acquire, "R" release and the lock's letter. */
struct stub {
    char letter;
    int acquires, renews, releases;
    bool wait, silent;
    struct dlock_event say[4];
    int n;
};
static char calls[200];

static struct stub *stub_of(struct dlock_be *b)
{
    return (struct stub *)b;
}
static void note(char what, const struct stub *st)
{
    size_t n = strlen(calls);
    snprintf(calls + n, sizeof calls - n, "%c%c ", what, st->letter);
}
static void say(struct stub *st, struct dlock_event ev)
{
    st->say[st->n++] = ev;
}
static void be_acquire(struct dlock_be *b, bool wait)
{
    struct stub *st = stub_of(b);
    st->acquires++;
    st->wait = wait;
    note('A', st);
}
static void be_renew(struct dlock_be *b)
{
    struct stub *st = stub_of(b);
    st->renews++;
    if (!st->silent)
        say(st, (struct dlock_event){.type = EV_RENEWED, .from = clock_now, .ttl = 10 * S});
}
static void be_release(struct dlock_be *b, int64_t until)
{
    struct stub *st = stub_of(b);
    (void)until;
    st->releases++;
    st->n = 0;
    note('R', st);
    say(st, (struct dlock_event){.type = EV_RELEASED,
                                 .how = st->silent ? DLOCK_RELEASE_UNCLEAR : DLOCK_RELEASE_CLEAN});
}
static int be_interest(struct dlock_be *b, struct pollfd *p, int cap, int64_t *wake)
{
    (void)b;
    (void)p;
    (void)cap;
    (void)wake;
    return 0;
}
static int be_process(struct dlock_be *b, const struct pollfd *p, int n, struct dlock_event *ev)
{
    struct stub *st = stub_of(b);
    (void)p;
    (void)n;
    if (st->n == 0)
        return 0;
    *ev = st->say[0];
    memmove(st->say, st->say + 1, sizeof st->say[0] * (size_t)--st->n);
    return 1;
}
static void be_close(struct dlock_be *b)
{
    (void)b;
}

static const struct dlock_backend table = {
    .name = "stub",
    .caps = CAP_LEASE | CAP_FENCE,
    .acquire = be_acquire,
    .renew = be_renew,
    .release = be_release,
    .interest = be_interest,
    .process = be_process,
    .close = be_close,
};

static struct stub stubs[3];
static dlock *locks[3];
static dlock_set *set;
static struct dlock_report r;
static const dlock *which;

static dlock *make_lock(struct stub *st, const char *name)
{
    dlock *d = calloc(1, sizeof *d);
    d->uri = calloc(1, sizeof *d->uri);
    d->uri->scheme = strdup("stub");
    d->uri->name = strdup(name);
    d->uri->where = strdup("stub://");
    d->table = &table;
    d->be = (struct dlock_be *)st;
    d->owner = getpid();
    dlock_options_init(&d->opt, sizeof d->opt);
    d->lease_cfg = (struct lease_config){.ttl = 10 * S, .grace = 1 * S};
    lock_set_env(d, &env, 10 * S);
    d->spec.uri = d->uri;
    return d;
}

/* The locks c, a and b, in this order: they are taken in the order of their names. */
static void make(int64_t wait)
{
    static const char *const names[] = {"c", "a", "b"};
    clock_now = 1000 * S;
    calls[0] = '\0';
    memset(stubs, 0, sizeof stubs);
    for (int i = 0; i < 3; i++) {
        stubs[i].letter = names[i][0];
        locks[i] = make_lock(&stubs[i], names[i]);
    }
    CHECK_INT(dlock_set_open(&set, locks, 3, wait, NULL), 0);
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
    const struct dlock_report *got = dlock_set_process(set, NULL, 0);
    if (got)
        r = *got;
    which = r.lock;
    return got ? r.type : DLOCK_REPORT_NONE;
}

static int64_t wake(void)
{
    struct pollfd pfd[3 * DLOCK_POLL_MAX];
    int64_t at;
    dlock_set_interest(set, pfd, 3 * DLOCK_POLL_MAX, &at);
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
    say(named(letter), ev);
}

/* The store has answered: the lock is another's. */
static void waits(char letter)
{
    say(named(letter), (struct dlock_event){.type = EV_WAITING});
    CHECK_INT(next(), DLOCK_REPORT_WAITING);
}

static void grant_all(void)
{
    for (const char *c = "abc"; *c; c++) {
        grant(*c, (char[]){'t', *c, '\0'});
        if (*c != 'c')
            CHECK_INT(next(), DLOCK_REPORT_NONE);
    }
    CHECK_INT(next(), DLOCK_REPORT_ACQUIRED);
}

static void done(void)
{
    dlock_set_close(set);
}

TEST(one_order_and_all_or_none)
{
    make(DLOCK_NEVER);
    dlock_set_start_acquire(set, NULL);
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    CHECK_STR(calls, "Aa ");
    clock_is(1001 * S);
    grant('a', "ta");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    CHECK_STR(calls, "Aa Ab ");
    clock_is(1002 * S);
    grant('b', "tb");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    CHECK_INT(dlock_set_time_left(set), 0);
    clock_is(1003 * S);
    grant('c', "tc");
    CHECK_INT(next(), DLOCK_REPORT_ACQUIRED);
    CHECK(!which);
    CHECK_STR(calls, "Aa Ab Ac ");
    /* The lease of a is the oldest. */
    CHECK_INT(r.times.deadline, locks[1]->lease.times.deadline);
    CHECK_INT(r.times.term_at, locks[1]->lease.times.term_at);
    CHECK_INT(dlock_set_time_left(set), dlock_time_left(locks[1]));
    /* As they were given. */
    CHECK_STR(dlock_name(dlock_set_at(set, 0)), "c");
    CHECK_STR(dlock_token(dlock_set_at(set, 0)), "tc");
    CHECK_STR(dlock_name(dlock_set_at(set, 2)), "b");
    CHECK(!dlock_set_at(set, 3));
    dlock_set_start_release(set, clock_now + S, NULL);
    CHECK_INT(next(), DLOCK_REPORT_RELEASED);
    CHECK(!which);
    CHECK_INT(r.how, DLOCK_RELEASE_CLEAN);
    CHECK_STR(calls, "Aa Ab Ac Rc Rb Ra ");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    done();
}

TEST(the_same_lock_twice_is_refused)
{
    struct dlock_error err;
    make(0);
    dlock *c = make_lock(&stubs[0], "c"), *two[] = {c, c};
    dlock_set *other = NULL;
    CHECK_INT(dlock_set_open(&other, locks, 1, 0, &err), DLOCK_EUSAGE);
    CHECK_HAS(err.msg, "the handle belongs to a set");
    CHECK_INT(dlock_set_open(&other, two, 2, 0, &err), DLOCK_EUSAGE);
    CHECK_HAS(err.msg, "named twice (lock 'c')");
    CHECK(!other);
    CHECK_INT(dlock_set_open(&other, two, 0, 0, NULL), DLOCK_EUSAGE);
    CHECK_INT(dlock_set_open(&other, two, DLOCK_SET_MAX + 1, 0, NULL), DLOCK_EUSAGE);
    CHECK_INT(dlock_set_open(&other, two, 1, -1, NULL), DLOCK_EUSAGE);
    dlock_close(c);
    done();
}

TEST(one_that_is_busy_gives_all_back)
{
    struct dlock_info info = {.pid = 7, .token = "other"};
    make(0);
    dlock_set_start_acquire(set, NULL);
    grant('a', "ta");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    CHECK(!named('b')->wait);
    say(named('b'), (struct dlock_event){.type = EV_BUSY, .info = &info});
    CHECK_INT(next(), DLOCK_REPORT_BUSY);
    CHECK_STR(dlock_name(which), "b");
    CHECK_INT(r.info->pid, 7);
    CHECK_STR(calls, "Aa Ab Ra ");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    done();
}

TEST(an_alias_of_a_lock_of_the_set_is_refused)
{
    struct dlock_info info = {.pid = 7, .token = "ta"};
    for (int waits = 0; waits < 2; waits++) {
        make(waits ? DLOCK_NEVER : 0);
        dlock_set_start_acquire(set, NULL);
        grant('a', "ta");
        CHECK_INT(next(), DLOCK_REPORT_NONE);
        say(named('b'), (struct dlock_event){.type = waits ? EV_WAITING : EV_BUSY, .info = &info});
        CHECK_INT(next(), DLOCK_REPORT_FAILED);
        CHECK_INT(r.error.code, DLOCK_EUSAGE);
        CHECK_HAS(r.error.msg, "the same lock as stub:// (lock 'a')");
        CHECK_INT(named('a')->releases, 1);
        done();
    }
}

TEST(held_locks_are_renewed_while_the_next_is_waited_for)
{
    make(DLOCK_NEVER);
    dlock_set_start_acquire(set, NULL);
    grant('a', "ta");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    waits('b');
    for (int i = 0; i < 9; i++) {
        clock_is(clock_now + S);
        CHECK_INT(next(), DLOCK_REPORT_NONE);
    }
    CHECK_INT(named('a')->renews, 3);
    grant('b', "tb");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    grant('c', "tc");
    CHECK_INT(next(), DLOCK_REPORT_ACQUIRED);
    CHECK_INT(r.times.deadline, locks[1]->lease.times.deadline);
    done();
}

TEST(without_progress_all_are_given_back_and_taken_again)
{
    make(DLOCK_NEVER);
    dlock_set_start_acquire(set, NULL);
    grant('a', "ta");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    waits('b');
    int64_t end = clock_now + 10 * S;
    while (clock_now < end) {
        CHECK(wake() <= end);
        clock_is(dlock_min(end, dlock_max(clock_now + MS, wake())));
        if (clock_now < end)
            CHECK_INT(next(), DLOCK_REPORT_NONE);
    }
    CHECK_INT(next(), DLOCK_REPORT_NOTICE);
    CHECK_STR(dlock_name(which), "b");
    CHECK_HAS(r.error.msg, "the lock 'b' was not free for 10 s while others were held");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    CHECK_STR(calls, "Aa Ab Rb Ra ");
    int64_t again = wake();
    CHECK(again > clock_now && again <= clock_now + S);
    clock_is(again);
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    CHECK_STR(calls, "Aa Ab Rb Ra Aa ");
    /* The first one is waited for as long as it takes. */
    waits('a');
    clock_is(clock_now + 60 * S);
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    grant_all();
    done();
}

/* No answer from this one's store. */
static void no_answer(char letter)
{
    say(named(letter), (struct dlock_event){.type = EV_FAILED, .error.code = DLOCK_EUNAVAIL});
}

TEST(a_set_that_begins_again_rides_out_an_outage_of_a_store_that_it_has_reached)
{
    make(DLOCK_NEVER);
    dlock_set_start_acquire(set, NULL);
    grant('a', "ta");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    say(named('a'), (struct dlock_event){.type = EV_LOST, .error.code = DLOCK_ELOST});
    CHECK_INT(next(), DLOCK_REPORT_NOTICE);
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    clock_is(wake());
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    for (int i = 0; i < 3; i++) {
        no_answer('a');
        CHECK_INT(next(), i == 0 ? DLOCK_REPORT_TROUBLE : DLOCK_REPORT_NONE);
        clock_is(wake());
        CHECK_INT(next(), DLOCK_REPORT_NONE);
    }
    CHECK_INT(named('a')->acquires, 5);
    grant('a', "ta");
    CHECK_INT(next(), DLOCK_REPORT_RECOVERED);
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    /* The store of b has not answered yet. */
    no_answer('b');
    CHECK_INT(next(), DLOCK_REPORT_FAILED);
    CHECK_STR(dlock_name(which), "b");
    /* Another acquire has a first contact of its own. */
    dlock_set_start_acquire(set, NULL);
    no_answer('a');
    CHECK_INT(next(), DLOCK_REPORT_FAILED);
    done();
}

TEST(the_time_to_wait_is_that_of_the_set)
{
    make(5 * S);
    dlock_set_start_acquire(set, NULL);
    clock_is(1003 * S);
    grant('a', "ta");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    CHECK_INT(locks[2]->opt.wait_ns, 2 * S);
    say(named('b'), (struct dlock_event){.type = EV_WAITING});
    CHECK_INT(next(), DLOCK_REPORT_WAITING);
    CHECK_STR(dlock_name(which), "b");
    clock_is(1005 * S);
    CHECK_INT(next(), DLOCK_REPORT_BUSY);
    CHECK_STR(dlock_name(which), "b");
    CHECK_INT(named('a')->releases, 1);
    done();
}

TEST(a_lock_that_is_lost_while_others_are_waited_for)
{
    make(DLOCK_NEVER);
    dlock_set_start_acquire(set, NULL);
    grant('a', "ta");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    say(named('a'), (struct dlock_event){.type = EV_LOST, .error.code = DLOCK_ELOST});
    CHECK_INT(next(), DLOCK_REPORT_NOTICE);
    CHECK_HAS(r.error.msg, "the lock 'a' was lost before the others were held");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    clock_is(wake());
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    grant_all();
    done();

    make(0);
    dlock_set_start_acquire(set, NULL);
    grant('a', "ta");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    say(named('a'), (struct dlock_event){.type = EV_LOST, .error.code = DLOCK_ELOST});
    CHECK_INT(next(), DLOCK_REPORT_FAILED);
    CHECK_INT(r.error.code, DLOCK_EUNAVAIL);
    done();
}

TEST(a_lock_that_is_not_renewed_holds_up_the_start)
{
    make(30 * S);
    dlock_set_start_acquire(set, NULL);
    grant('a', "ta");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    named('a')->silent = true;
    clock_is(clock_now + 3 * S);
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    clock_is(clock_now + 2 * S);
    CHECK_INT(next(), DLOCK_REPORT_TROUBLE);
    CHECK_STR(dlock_name(which), "a");
    grant('b', "tb");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    grant('c', "tc");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    say(named('a'), (struct dlock_event){.type = EV_RENEWED, .from = clock_now, .ttl = 10 * S});
    CHECK_INT(next(), DLOCK_REPORT_RECOVERED);
    CHECK_INT(next(), DLOCK_REPORT_ACQUIRED);
    done();
}

TEST(the_loss_of_any_is_the_loss_of_the_set)
{
    make(DLOCK_NEVER);
    dlock_set_start_acquire(set, NULL);
    grant_all();
    say(named('b'), (struct dlock_event){.type = EV_LOST, .error.code = DLOCK_ELOST});
    CHECK_INT(next(), DLOCK_REPORT_LOST);
    CHECK_STR(dlock_name(which), "b");
    CHECK_INT(r.error.code, DLOCK_ELOST);
    dlock_set_start_release(set, clock_now + S, NULL);
    CHECK_INT(next(), DLOCK_REPORT_RELEASED);
    CHECK(!which);
    done();
}

TEST(a_renewal_moves_the_earliest_time)
{
    make(DLOCK_NEVER);
    dlock_set_start_acquire(set, NULL);
    grant_all();
    int64_t before = r.times.deadline;
    clock_is(clock_now + 3 * S);
    for (int i = 0; i < 3; i++)
        CHECK_INT(next(), DLOCK_REPORT_EXTENDED);
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    CHECK_INT(r.times.deadline, before + 3 * S);
    named('b')->silent = true;
    clock_is(clock_now + 3 * S);
    CHECK_INT(next(), DLOCK_REPORT_EXTENDED);
    CHECK_INT(next(), DLOCK_REPORT_EXTENDED);
    CHECK_INT(r.times.deadline, before + 3 * S);
    done();
}

TEST(a_release_that_is_not_confirmed_is_told_with_its_lock)
{
    make(DLOCK_NEVER);
    dlock_set_start_acquire(set, NULL);
    grant_all();
    named('b')->silent = true;
    dlock_set_start_release(set, clock_now + S, NULL);
    CHECK_INT(next(), DLOCK_REPORT_RELEASED);
    CHECK_STR(which ? dlock_name(which) : "", "b");
    CHECK_INT(r.how, DLOCK_RELEASE_UNCLEAR);
    CHECK_INT(next(), DLOCK_REPORT_RELEASED);
    CHECK(!which);
    CHECK_INT(r.how, DLOCK_RELEASE_UNCLEAR);
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    done();
}

TEST(a_cancelled_acquire_gives_back_what_it_has)
{
    make(DLOCK_NEVER);
    dlock_set_start_acquire(set, NULL);
    grant('a', "ta");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    dlock_set_start_release(set, clock_now + S, NULL);
    CHECK_INT(next(), DLOCK_REPORT_RELEASED);
    CHECK(!which);
    CHECK_STR(calls, "Aa Ab Rb Ra ");
    CHECK_INT(wake(), DLOCK_NEVER);
    done();
}

TEST(a_skip_gives_back_the_others_without_a_least_time)
{
    static struct dlock_run run = {.state = DLOCK_RUN_SUCCEEDED, .pid = 7};
    make(DLOCK_NEVER);
    for (int i = 0; i < 3; i++)
        locks[i]->spec.min_hold = 3600 * S;
    dlock_set_start_acquire(set, NULL);
    grant('a', "ta");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    CHECK(locks[1]->hold.until > clock_now);
    say(named('b'), (struct dlock_event){.type = EV_SKIPPED, .run = &run});
    CHECK_INT(next(), DLOCK_REPORT_SKIPPED);
    run.pid = 8; /* the store's own: valid until the next call on its handle */
    CHECK_STR(dlock_name(which), "b");
    CHECK_INT(r.run->pid, 7);
    CHECK_STR(calls, "Aa Ab Ra ");
    CHECK_INT(locks[1]->hold.until, 0);
    CHECK_INT(wake(), DLOCK_NEVER);
    done();
}

TEST(a_set_that_was_not_complete_has_no_least_time)
{
    make(DLOCK_NEVER);
    for (int i = 0; i < 3; i++)
        locks[i]->spec.min_hold = 3600 * S;
    dlock_set_start_acquire(set, NULL);
    grant('a', "ta");
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    dlock_set_start_release(set, clock_now + S, NULL);
    CHECK_INT(locks[1]->hold.until, 0);
    done();
    make(DLOCK_NEVER);
    for (int i = 0; i < 3; i++)
        locks[i]->spec.min_hold = 3600 * S;
    dlock_set_start_acquire(set, NULL);
    grant_all();
    dlock_set_start_release(set, clock_now + S, NULL);
    for (int i = 0; i < 3; i++)
        CHECK_INT(locks[i]->hold.until, clock_now + 3600 * S);
    done();
}

TEST(a_second_order_to_release_does_not_forget_what_was_not_confirmed)
{
    make(DLOCK_NEVER);
    dlock_set_start_acquire(set, NULL);
    grant_all();
    named('b')->silent = true;
    dlock_set_start_release(set, clock_now + S, NULL);
    CHECK_INT(next(), DLOCK_REPORT_RELEASED);
    CHECK_STR(which ? dlock_name(which) : "", "b");
    dlock_set_start_release(set, clock_now + 2 * S, NULL);
    CHECK_INT(next(), DLOCK_REPORT_RELEASED);
    CHECK(!which);
    CHECK_INT(r.how, DLOCK_RELEASE_UNCLEAR);
    CHECK_INT(next(), DLOCK_REPORT_NONE);
    done();
}

static bool asks_for_dispatch(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

TEST(the_descriptor_of_a_handle_is_silent_in_a_set)
{
    make(DLOCK_NEVER);
    dlock_set_close(set);
    dlock *d = make_lock(&stubs[0], "d");
    int fd = dlock_poll_fd(d, NULL);
    REQUIRE(fd >= 0 && asks_for_dispatch(fd));
    CHECK_INT(dlock_set_open(&set, &d, 1, DLOCK_NEVER, NULL), 0);
    int all = dlock_set_poll_fd(set, NULL);
    CHECK(!dlock_set_dispatch(set) && !asks_for_dispatch(all));
    CHECK(!dlock_set_process(set, NULL, 0) && asks_for_dispatch(all));
    CHECK(!dlock_set_dispatch(set) && !asks_for_dispatch(all));
    CHECK_INT(dlock_set_start_acquire(set, NULL), 0);
    CHECK(!asks_for_dispatch(fd) && asks_for_dispatch(all));
    done();
}

UNIT_MAIN
