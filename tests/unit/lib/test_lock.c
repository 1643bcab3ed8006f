/* The handle (lib/lock.c) over a backend and a clock of the test: its time bounds, and how it undoes. */
#include "lock.h"
#include "unit.h"
#include "util.h"

#define S DLOCK_SEC
#define MS DLOCK_MSEC

static int64_t clock_now;
static int64_t get_now(void *ctx)
{
    (void)ctx;
    return clock_now;
}
static int get_random(void *ctx, void *buf, size_t len)
{
    (void)ctx;
    memset(buf, 7, len);
    return 0;
}
static const struct dlock_env env = {.now = get_now, .random = get_random};

/* The calls that the backend received, and the events that it will report. */
static struct {
    int acquires, renews, releases, asks;
    bool wait;
    int64_t until;
    struct dlock_event say[4];
    int n;
} be;

static void be_acquire(struct dlock_be *b, bool wait)
{
    (void)b;
    be.acquires++;
    be.wait = wait;
}
static void be_renew(struct dlock_be *b)
{
    (void)b;
    be.renews++;
}
static void be_release(struct dlock_be *b, int64_t until)
{
    (void)b;
    be.releases++;
    be.until = until;
    be.n = 0;
}
static void be_ask(struct dlock_be *b, enum dlock_ask what, const char *arg)
{
    (void)b;
    (void)what;
    (void)arg;
    be.asks++;
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
    (void)b;
    (void)p;
    (void)n;
    if (be.n == 0)
        return 0;
    *ev = be.say[0];
    memmove(be.say, be.say + 1, sizeof be.say[0] * (size_t)--be.n);
    return 1;
}

static const struct dlock_backend table = {
    .name = "stub",
    .caps = CAP_LEASE | CAP_FENCE,
    .acquire = be_acquire,
    .renew = be_renew,
    .release = be_release,
    .ask = be_ask,
    .interest = be_interest,
    .process = be_process,
};

static struct dlock_uri uri = {
    .scheme = (char[]){"stub"}, .name = (char[]){"job"}, .where = (char[]){"stub://"}};

/* ttl 10 s, grace 1 s: usable 8.398 s (see test_lease.c). */
static void make(dlock *d, int64_t wait)
{
    memset(d, 0, sizeof *d);
    memset(&be, 0, sizeof be);
    clock_now = 1000 * S;
    d->uri = &uri;
    d->table = &table;
    d->opt = (struct dlock_options)DLOCK_OPTIONS_INIT;
    d->opt.wait_ns = wait;
    d->lease_cfg = (struct lease_config){.ttl = 10 * S, .grace = 1 * S};
    d->spec.env = &env;
    d->spec.uri = &uri;
}

static void say(struct dlock_event ev)
{
    be.say[be.n++] = ev;
}

static struct dlock_event granted(int64_t from)
{
    return (struct dlock_event){
        .type = EV_GRANTED, .from = from, .ttl = 10 * S, .fence = 42, .token = "t"};
}

static struct dlock_report r;
static enum dlock_report_type next(dlock *d)
{
    return dlock_process(d, NULL, 0, &r) ? r.type : DLOCK_R_NONE;
}

static int64_t wake(dlock *d)
{
    struct pollfd p[8];
    int64_t at;
    dlock_interest(d, p, 8, &at);
    return at;
}

TEST(acquire_renew_release)
{
    dlock d;
    make(&d, DLOCK_NEVER);
    dlock_start_acquire(&d);
    CHECK(be.wait);
    CHECK_INT(next(&d), DLOCK_R_NONE);
    say(granted(clock_now));
    CHECK_INT(next(&d), DLOCK_R_ACQUIRED);
    CHECK_INT(r.fence, 42);
    CHECK_STR(r.token, "t");
    CHECK_INT(dlock_deadline(&d), 1000 * S + 9898 * MS);
    CHECK_INT(next(&d), DLOCK_R_NONE);
    clock_now = wake(&d);
    CHECK_INT(next(&d), DLOCK_R_NONE);
    CHECK_INT(be.renews, 1);
    say((struct dlock_event){.type = EV_RENEWED, .from = clock_now, .ttl = 10 * S});
    CHECK_INT(next(&d), DLOCK_R_EXTENDED);
    CHECK_INT(r.times.deadline, clock_now + 9898 * MS);
    dlock_start_release(&d, clock_now + 1 * S);
    CHECK_INT(be.releases, 1);
    say((struct dlock_event){.type = EV_RELEASED, .how = DLOCK_REL_CLEAN});
    CHECK_INT(next(&d), DLOCK_R_RELEASED);
    CHECK_INT(r.how, DLOCK_REL_CLEAN);
    CHECK_INT(dlock_deadline(&d), 0);
    CHECK_INT(wake(&d), DLOCK_NEVER);
}

TEST(a_wait_ends_on_time_and_leaves_the_queue)
{
    dlock d;
    struct dlock_info holder = {.pid = 99};
    make(&d, 300 * MS);
    dlock_start_acquire(&d);
    say((struct dlock_event){.type = EV_WAITING, .info = &holder, .place = 2});
    CHECK_INT(next(&d), DLOCK_R_WAITING);
    CHECK_INT(r.place, 2);
    CHECK_INT(r.info->pid, 99);
    CHECK_INT(wake(&d), 1000 * S + 300 * MS);
    clock_now += 300 * MS;
    CHECK_INT(next(&d), DLOCK_R_NONE);
    CHECK_INT(be.releases, 1);
    CHECK(be.until <= clock_now + 90 * MS); /* -w may be late by 100 ms at most */
    say((struct dlock_event){.type = EV_RELEASED, .how = DLOCK_REL_UNCLEAR});
    CHECK_INT(next(&d), DLOCK_R_BUSY);
    CHECK_INT(r.info->pid, 99);
}

TEST(no_answer_is_never_busy)
{
    dlock d;
    make(&d, 300 * MS);
    dlock_start_acquire(&d);
    clock_now += 300 * MS;
    CHECK_INT(next(&d), DLOCK_R_NONE);
    say((struct dlock_event){.type = EV_RELEASED, .how = DLOCK_REL_UNCLEAR});
    CHECK_INT(next(&d), DLOCK_R_FAILED);
    CHECK_INT(r.error.code, DLOCK_EUNAVAIL);
    CHECK(strstr(r.error.msg, "no answer within 300 ms") != NULL);
}

TEST(first_contact_is_bounded_only_until_the_first_answer)
{
    dlock d;
    make(&d, DLOCK_NEVER);
    dlock_start_acquire(&d);
    CHECK(wake(&d) < 1000 * S + 5100 * MS);
    say((struct dlock_event){.type = EV_WAITING});
    CHECK_INT(next(&d), DLOCK_R_WAITING);
    clock_now += 3600 * S;
    CHECK_INT(next(&d), DLOCK_R_NONE);
    CHECK_INT(be.releases, 0);
    make(&d, DLOCK_NEVER);
    dlock_start_acquire(&d);
    clock_now += 6 * S;
    CHECK_INT(next(&d), DLOCK_R_NONE);
    CHECK_INT(be.releases, 1);
    say((struct dlock_event){.type = EV_RELEASED});
    CHECK_INT(next(&d), DLOCK_R_FAILED);
    CHECK_INT(r.error.code, DLOCK_EUNAVAIL);
}

TEST(a_failed_acquire_is_undone_before_it_is_reported)
{
    dlock d;
    make(&d, 0);
    dlock_start_acquire(&d);
    CHECK(!be.wait);
    struct dlock_event ev = {.type = EV_FAILED};
    dlock_fail(&ev.error, DLOCK_EPERM, 0, "no");
    say(ev);
    CHECK_INT(next(&d), DLOCK_R_NONE);
    CHECK_INT(be.releases, 1);
    say((struct dlock_event){.type = EV_RELEASED, .how = DLOCK_REL_CLEAN});
    CHECK_INT(next(&d), DLOCK_R_FAILED);
    CHECK_INT(r.error.code, DLOCK_EPERM);
}

TEST(busy_ends_a_try)
{
    dlock d;
    struct dlock_info holder = {.pid = 5};
    make(&d, 0);
    dlock_start_acquire(&d);
    say((struct dlock_event){.type = EV_BUSY, .info = &holder});
    CHECK_INT(next(&d), DLOCK_R_BUSY);
    CHECK_INT(r.info->pid, 5);
    CHECK_INT(be.releases, 0);
}

TEST(a_late_grant_is_renewed_before_it_counts)
{
    dlock d;
    make(&d, DLOCK_NEVER);
    dlock_start_acquire(&d);
    clock_now += 3 * S;
    say(granted(1000 * S));
    CHECK_INT(next(&d), DLOCK_R_NONE);
    CHECK_INT(be.renews, 1);
    CHECK_INT(dlock_deadline(&d), 0);
    say((struct dlock_event){.type = EV_RENEWED, .from = clock_now, .ttl = 10 * S});
    CHECK_INT(next(&d), DLOCK_R_ACQUIRED);
}

TEST(an_unusable_grant_is_released_and_the_wait_goes_on)
{
    dlock d;
    make(&d, 60 * S);
    dlock_start_acquire(&d);
    say((struct dlock_event){.type = EV_WAITING});
    CHECK_INT(next(&d), DLOCK_R_WAITING);
    clock_now += 20 * S; /* we were stopped */
    say(granted(1000 * S));
    CHECK_INT(next(&d), DLOCK_R_NONE);
    CHECK_INT(be.releases, 1);
    say((struct dlock_event){.type = EV_RELEASED, .how = DLOCK_REL_CLEAN});
    CHECK_INT(next(&d), DLOCK_R_NONE);
    CHECK_INT(be.acquires, 2);
    clock_now += 40 * S; /* the whole wait is still bounded */
    CHECK_INT(next(&d), DLOCK_R_NONE);
    CHECK_INT(be.releases, 2);
    say((struct dlock_event){.type = EV_RELEASED});
    CHECK_INT(next(&d), DLOCK_R_BUSY);
}

TEST(an_unusable_grant_fails_a_try)
{
    dlock d;
    make(&d, 0);
    dlock_start_acquire(&d);
    clock_now += 20 * S;
    d.contacted = true;
    say(granted(1000 * S));
    CHECK_INT(next(&d), DLOCK_R_NONE);
    say((struct dlock_event){.type = EV_RELEASED, .how = DLOCK_REL_CLEAN});
    CHECK_INT(next(&d), DLOCK_R_FAILED);
    CHECK_INT(r.error.code, DLOCK_EUNAVAIL);
    CHECK_INT(be.acquires, 1);
}

static void hold(dlock *d)
{
    make(d, DLOCK_NEVER);
    dlock_start_acquire(d);
    say(granted(clock_now));
    CHECK_INT(next(d), DLOCK_R_ACQUIRED);
}

TEST(certain_loss_is_reported_at_once)
{
    dlock d;
    hold(&d);
    struct dlock_event ev = {.type = EV_LOST};
    dlock_fail(&ev.error, DLOCK_ELOST, 0, "gone");
    say(ev);
    CHECK_INT(next(&d), DLOCK_R_LOST);
    CHECK_STR(r.error.msg, "gone");
    CHECK_INT(dlock_deadline(&d), 0);
}

TEST(coming_loss_says_why)
{
    dlock d;
    hold(&d);
    clock_now = wake(&d);
    next(&d);
    struct dlock_event ev = {.type = EV_UNCLEAR};
    dlock_fail(&ev.error, DLOCK_EUNAVAIL, 0, "no answer");
    say(ev);
    CHECK_INT(next(&d), DLOCK_R_NONE);
    clock_now = d.lease.times.term_at;
    CHECK_INT(next(&d), DLOCK_R_TERM);
    CHECK_STR(r.error.msg, "no answer");
    clock_now = d.lease.times.kill_at;
    CHECK_INT(next(&d), DLOCK_R_LOST);
}

TEST(a_release_discards_reports_that_wait)
{
    dlock d;
    make(&d, DLOCK_NEVER);
    dlock_start_acquire(&d);
    dlock_start_release(&d, clock_now + 1);
    say((struct dlock_event){.type = EV_RELEASED, .how = DLOCK_REL_NOTHING});
    CHECK_INT(next(&d), DLOCK_R_RELEASED);
    CHECK_INT(next(&d), DLOCK_R_NONE);
    dlock_start_release(&d, clock_now + 1); /* idle: nothing to do, but a report */
    CHECK_INT(next(&d), DLOCK_R_RELEASED);
    CHECK_INT(r.how, DLOCK_REL_NOTHING);
    CHECK_INT(be.releases, 1);
}

/* Without a connection for that long: have the names been looked up again? Their addresses are numbers: at once. */
static bool looks_up_after(dlock *d, int64_t pause)
{
    clock_now += pause;
    d->names.peers[0].len = 0;
    say((struct dlock_event){.type = EV_AWAY});
    CHECK_INT(next(d), DLOCK_R_NONE);
    CHECK_INT(next(d), DLOCK_R_NONE);
    return d->names.peers[0].len > 0;
}

TEST(the_names_are_looked_up_again_several_times_within_the_ttl)
{
    struct dlock_host host = {.host = (char[]){"192.0.2.1"}, .port = 1};
    struct dlock_uri named = uri;
    dlock d;
    make(&d, DLOCK_NEVER);
    dlock_start_acquire(&d);
    say((struct dlock_event){.type = EV_WAITING});
    CHECK_INT(next(&d), DLOCK_R_WAITING);
    named.hosts = &host;
    named.nhosts = 1;
    d.uri = d.spec.uri = &named;
    REQUIRE(d.names.peers = calloc(1, sizeof(*d.names.peers)));
    d.spec.peers = d.names.peers;
    d.spec.npeers = 1;
    d.opt.ttl_ns = 12 * S;
    CHECK(looks_up_after(&d, 0));
    CHECK(!looks_up_after(&d, 1900 * MS));
    CHECK(looks_up_after(&d, 100 * MS));
    d.opt.ttl_ns = 2 * S;
    CHECK(!looks_up_after(&d, 900 * MS));
    CHECK(looks_up_after(&d, 100 * MS));
    d.opt.ttl_ns = 3600 * S;
    CHECK(!looks_up_after(&d, 9900 * MS));
    CHECK(looks_up_after(&d, 100 * MS));
    CHECK_INT(d.spec.npeers, 1);
    free(d.names.peers);
}

TEST(a_status_query_reports_and_ends)
{
    dlock d;
    struct dlock_info info = {.pid = 3};
    make(&d, DLOCK_NEVER);
    dlock_start_status(&d);
    CHECK_INT(be.asks, 1);
    say((struct dlock_event){.type = EV_INFO, .info = &info});
    say((struct dlock_event){.type = EV_DONE});
    CHECK_INT(next(&d), DLOCK_R_INFO);
    CHECK_INT(r.info->pid, 3);
    CHECK_INT(next(&d), DLOCK_R_DONE);
    CHECK_INT(next(&d), DLOCK_R_NONE);
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
    struct dlock_options o = DLOCK_OPTIONS_INIT;
    struct dlock_uri *u = NULL;
    dlock *d = NULL;
    REQUIRE_INT(dlock_uri_parse(&u, "file:///dir#n", NULL), 0);
    REQUIRE_INT(dlock_open_uri(&d, &u, &o, NULL), 0);
    CHECK_NULL(u);
    CHECK_STR(dlock_name(d), "n");
    dlock_close(d);
    d = NULL;
    o.mode = DLOCK_SLOTS;
    REQUIRE_INT(dlock_uri_parse(&u, "file:///dir#n", NULL), 0);
    CHECK_INT(dlock_open_uri(&d, &u, &o, NULL), DLOCK_EUSAGE);
    CHECK_NULL(u);
    CHECK_NULL(d);
}

TEST(values_of_the_lease_are_checked_for_a_file_too)
{
    static const struct {
        int64_t ttl, grace;
    } rows[] = {{0, -1}, {S - 1, -1}, {-1, -1}, {30 * S, -2}};
    struct dlock_error err;
    dlock *d = NULL;

    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        struct dlock_options o = DLOCK_OPTIONS_INIT;
        o.ttl_ns = rows[i].ttl;
        o.grace_ns = rows[i].grace;
        CHECK_INT(dlock_open(&d, "file:///dir#n", &o, &err), DLOCK_EUSAGE);
        CHECK_HAS(err.msg, rows[i].grace < -1 ? "grace" : "ttl");
        CHECK_NULL(d);
    }
}

UNIT_MAIN
