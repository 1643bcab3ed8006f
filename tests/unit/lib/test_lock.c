/* The handle (lib/lock.c) over a backend and a clock of the test: its time bounds, and how it undoes. */
#include "lock.h"
#include "unit.h"
#include "util.h"

#define S DLOCK_SEC
#define MS DLOCK_MSEC

static int64_t clock_now, raw_minus_boot;
static int64_t get_now(void *ctx)
{
    (void)ctx;
    return clock_now;
}
static int64_t get_raw(void *ctx)
{
    (void)ctx;
    return clock_now + raw_minus_boot;
}
static int get_random(void *ctx, void *buf, size_t len)
{
    (void)ctx;
    memset(buf, 7, len);
    return 0;
}
static const struct dlock_env env = {.now = get_now, .raw = get_raw, .random = get_random};

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
    raw_minus_boot = -300 * S;
    d->uri = &uri;
    d->table = &table;
    d->opt = (struct dlock_options)DLOCK_OPTIONS_INIT;
    d->opt.wait_ns = wait;
    d->lease_cfg = (struct lease_config){.ttl = 10 * S, .grace = 1 * S};
    lock_set_env(d, &env, 10 * S);
    d->spec.uri = &uri;
}

static void say(struct dlock_event ev)
{
    be.say[be.n++] = ev;
}

/* The backend has read its clock at that time, when the difference of the clocks was as it is now. */
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
    say(granted(read_at(&d, clock_now)));
    CHECK_INT(next(&d), DLOCK_R_ACQUIRED);
    CHECK_INT(r.fence, 42);
    CHECK_STR(r.token, "t");
    CHECK_INT(dlock_deadline(&d), 1000 * S + 9898 * MS);
    CHECK_INT(next(&d), DLOCK_R_NONE);
    clock_now = wake(&d);
    CHECK_INT(next(&d), DLOCK_R_NONE);
    CHECK_INT(be.renews, 1);
    say((struct dlock_event){.type = EV_RENEWED, .from = read_at(&d, clock_now), .ttl = 10 * S});
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
    say(granted(read_at(&d, 1000 * S)));
    CHECK_INT(next(&d), DLOCK_R_NONE);
    CHECK_INT(be.renews, 1);
    CHECK_INT(dlock_deadline(&d), 0);
    say((struct dlock_event){.type = EV_RENEWED, .from = read_at(&d, clock_now), .ttl = 10 * S});
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
    say(granted(read_at(&d, 1000 * S)));
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
    say(granted(read_at(&d, 1000 * S)));
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
    say(granted(read_at(d, clock_now)));
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

/* --- two clocks -------------------------------------------------------------------------------- */

TEST(the_time_left_is_by_the_clock_that_says_less)
{
    dlock d;
    hold(&d);
    CHECK_INT(dlock_time_left(&d), 9898 * MS);
    clock_now += 1 * S;
    raw_minus_boot += 1 * S;
    CHECK_INT(dlock_time_left(&d), 7898 * MS);
    raw_minus_boot -= 5 * S;
    CHECK_INT(dlock_time_left(&d), 8898 * MS);
    raw_minus_boot += 50 * S;
    CHECK_INT(dlock_time_left(&d), 0);
    dlock_start_release(&d, clock_now);
    CHECK_INT(dlock_time_left(&d), 0);
}

/*
 * A machine and a store, by random. The raw clock is right. CLOCK_BOOTTIME is slewed by up to 10 % in either
 * direction, and jumps when the machine has slept; poll() waits by the same rate, but does not count the sleep.
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
    /* The request under way: when it is sent and answered (by the raw clock), and what both clocks were when it was. */
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

/* Wait as poll() does, with requests and answers as events; in pieces, since the slew changes and the machine sleeps. */
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
            say((struct dlock_event){.type = EV_UNCLEAR});
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
        if (r.type == DLOCK_R_TERM)
            m->ending = m->from;
        if (r.type == DLOCK_R_LOST)
            m->killed = true;
        /* Not much too early either: the difference of the clocks is known for each half of the ttl. */
        if (r.type == DLOCK_R_TERM && !m->slept && !CHECK(!before(m->from, USABLE - 550 * MS)))
            return false;
    }
    if (m->d.phase != LOCK_HELD || m->killed)
        return CHECK_INT(
            dlock_time_left(&m->d) > 0 && !m->d.lease.certain && m->d.phase != LOCK_HELD, 0);
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
    dlock_start_acquire(&m->d);
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
