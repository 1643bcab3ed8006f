/*
 * test_random_faults.c - several Redlock clients and their servers under random faults, in the
 * test's own time: servers stop and go on (and then serve old commands), cut their connections,
 * restart empty; clients sleep past their leases. The test fails, and names the seed, on two valid
 * leases at once, a fence that does not grow, a client that loops idly, and a lock that cannot be
 * acquired after the last fault. Every other run has clients with unequal ttls, the largest of
 * which is their restart grace. In most of these runs one client, two or all are readers, which may
 * hold the lock together. In every fourth run all clients have --once, and the test fails on a
 * grant after a confirmed success, and on a skipped run without a success. DLOCK_RANDOM_RUNS,
 * DLOCK_RANDOM_SEED: how many runs, and the first seed.
 */
#include "fakenodes.h"

#define LONGEST (10 * DLOCK_SEC)
#define OP DLOCK_SEC
#define CLIENTS 3
#define STEPS 250

enum doing { IDLE, ASKING, HELD, RENEWING, LEAVING };

struct client {
    struct world w;
    enum doing doing;
    bool waits;
    bool valid; /* it may work until deadline() */
    int64_t from, sleeps_until;
};

struct arena {
    struct client c[CLIENTS];
    struct fake *f;                         /* the first client's */
    int n;                                  /* servers */
    uint64_t fence, writer_fence;           /* the greatest; that of the last writer */
    int grants, together, renewals, losses; /* together: readers beside readers */
    int skips;
    bool calm;            /* no more faults, no client wants the lock */
    bool tried, recorded; /* --once: a success was to be recorded; that was confirmed */
};

static unsigned long seed;
static uint64_t state;

static unsigned below(unsigned n)
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)(state >> 33) % n;
}

/* As the core counts it; see lease.h. */
static int64_t deadline(const struct client *c)
{
    return c->from + c->w.spec.ttl - c->w.spec.ttl / 100 - 2 * DLOCK_MSEC;
}

static bool works(const struct client *c)
{
    return c->valid && fake_clock < deadline(c);
}

static void end(struct client *c, bool success)
{
    c->valid = false;
    c->doing = LEAVING;
    c->w.hold =
        (struct dlock_hold){.ended = success, .success = success, .status = success ? 0 : -1};
    dlock_backend_redlock.release(c->w.be, fake_clock + (below(4) == 0 ? MSEC(50) : 5 * DLOCK_SEC));
}

static void leave(struct client *c)
{
    end(c, false);
}

static void granted(struct arena *a, struct client *c, const struct dlock_event *ev)
{
    c->from = ev->from;
    c->valid = true;
    c->doing = HELD;
    if (!works(c)) {
        leave(c);
        return;
    }
    if (a->recorded)
        unit_fail(UNIT_AT, "seed %lu: %td runs again", seed, c - a->c);
    a->grants++;
    bool reads = c->w.spec.mode == DLOCK_MODE_SHARED;
    for (int i = 0; i < CLIENTS; i++) {
        if (&a->c[i] == c || !works(&a->c[i]))
            continue;
        if (!reads || a->c[i].w.spec.mode != DLOCK_MODE_SHARED)
            unit_fail(UNIT_AT, "seed %lu: %d and %td hold it at once", seed, i, c - a->c);
        a->together++;
    }
    if (reads ? ev->fence < a->writer_fence : ev->fence <= a->fence)
        unit_fail(UNIT_AT, "seed %lu: fence %" PRIu64 " after %" PRIu64, seed, ev->fence, a->fence);
    a->fence = ev->fence > a->fence ? ev->fence : a->fence;
    if (!reads)
        a->writer_fence = ev->fence;
}

static void happens(struct arena *a, struct client *c, const struct dlock_event *ev)
{
    switch (ev->type) {
    case EV_GRANTED:
        granted(a, c, ev);
        break;
    case EV_RENEWED:
        c->from = ev->from > c->from ? ev->from : c->from;
        c->doing = HELD;
        a->renewals++;
        break;
    case EV_UNCLEAR:
        c->doing = HELD;
        break;
    case EV_LOST:
        a->losses++;
        leave(c);
        break;
    case EV_FAILED:
        leave(c);
        break;
    case EV_SKIPPED:
        a->skips++;
        if (!a->tried)
            unit_fail(UNIT_AT, "seed %lu: %td is skipped", seed, c - a->c);
        c->doing = IDLE;
        break;
    case EV_RELEASED:
        a->recorded |= c->w.hold.success && ev->how == DLOCK_RELEASE_CLEAN;
        c->w.hold.success = false;
        c->doing = IDLE;
        break;
    case EV_BUSY:
        c->doing = IDLE;
        break;
    default:
        break;
    }
}

/* Drive one client; true: it did something. *wake: when it wants to be woken. */
static bool client_step(struct arena *a, struct client *c, int64_t *wake)
{
    struct pollfd p[DLOCK_POLL_MAX];
    struct dlock_event ev;
    *wake = c->sleeps_until;
    if (fake_clock < c->sleeps_until)
        return false;
    *wake = DLOCK_NEVER;
    int n = dlock_backend_redlock.interest(c->w.be, p, DLOCK_POLL_MAX, wake);
    bool any = poll(p, (nfds_t)n, 0) > 0;
    while (dlock_backend_redlock.process(c->w.be, p, n, &ev) == 1) {
        happens(a, c, &ev);
        any = true;
        n = 0;
    }
    return any;
}

/* With the clock stopped, until all clients are idle. Returns when the first client wakes up. */
static int64_t all_settle(struct arena *a)
{
    int64_t wake = DLOCK_NEVER;
    for (int quiet = 0, turns = 0; quiet < 2 && turns < 2000; turns++) {
        bool any = false;
        wake = DLOCK_NEVER;
        for (int i = 0; i < CLIENTS; i++) {
            int64_t at;
            any |= client_step(a, &a->c[i], &at);
            wake = at < wake ? at : wake;
        }
        for (int i = 0; i < a->n; i++)
            any |= fake_step(&a->f[i]);
        quiet = any ? 0 : quiet + 1;
    }
    return wake;
}

static void all_pass(struct arena *a, int64_t by)
{
    int64_t end = fake_clock + by;
    for (int idle = 0;;) {
        int64_t wake = all_settle(a);
        if (fake_clock >= end)
            return;
        idle = wake <= fake_clock ? idle + 1 : 0;
        if (idle > 2) {
            unit_fail(UNIT_AT, "seed %lu: somebody turns without anything to do", seed);
            return;
        }
        if (idle == 0)
            fake_clock = wake < end ? wake : end;
    }
}

static void act(struct arena *a, struct client *c)
{
    if (fake_clock < c->sleeps_until)
        return;
    if (c->valid && !works(c))
        leave(c); /* the core has ended the command */
    else if (c->doing == IDLE && !a->calm) {
        c->doing = ASKING;
        c->waits = below(3) != 0;
        dlock_backend_redlock.acquire(c->w.be, c->waits);
    } else if (c->doing == ASKING && below(12) == 0) {
        leave(c);
    } else if (c->doing == HELD && below(3) != 0 && !a->calm) {
        c->doing = RENEWING;
        dlock_backend_redlock.renew(c->w.be);
    } else if (c->doing == HELD || (c->doing == RENEWING && below(6) == 0)) {
        bool succeeds = c->valid && c->w.spec.once > 0 && below(5) == 0;
        a->tried |= succeeds;
        end(c, succeeds);
    }
}

static void restart(struct fake *f)
{
    fake_cut(f, false);
    f->value[0] = '\0';
    f->nreaders = 0;
    f->stopped = false;
    f->started = fake_clock;
    /* The record is on the disk, the lock is not. As the script begins anew: the clock in us. */
    f->fence = (fake_clock + f->skew) / 1000;
}

static void fault(struct arena *a)
{
    struct fake *f = &a->f[below((unsigned)a->n)];
    struct client *c = &a->c[below(CLIENTS)];
    switch (below(10)) {
    case 0:
    case 1:
        f->stopped = true;
        break;
    case 2:
    case 3:
    case 4:
        f->stopped = false;
        break;
    case 5:
        fake_cut(f, false);
        break;
    case 6:
        restart(f);
        break;
    case 7:
        c->sleeps_until = fake_clock + (int64_t)below(15) * DLOCK_SEC;
        break;
    default:
        break;
    }
}

static int64_t some_time(void)
{
    static const int64_t most[] = {MSEC(2), MSEC(60), MSEC(800), 4 * DLOCK_SEC};
    return (int64_t)(below(1000) + 1) * most[below(DLOCK_LEN(most))] / 1000;
}

/* No more faults: all clients release, and the next one gets the lock. */
static void ends_well(struct arena *a)
{
    a->calm = true;
    for (int i = 0; i < a->n; i++)
        a->f[i].stopped = false;
    for (int t = 0; t < 40; t++) {
        for (int i = 0; i < CLIENTS; i++)
            act(a, &a->c[i]);
        all_pass(a, DLOCK_SEC);
        for (int i = 0; i < CLIENTS; i++)
            if (a->c[i].doing == ASKING)
                leave(&a->c[i]);
    }
    for (int i = 0; i < CLIENTS; i++) {
        struct client *c = &a->c[i];
        if (c->doing != IDLE)
            unit_fail(UNIT_AT, "seed %lu: %d is not idle: %d", seed, i, c->doing);
        int before = a->grants + a->skips;
        c->doing = ASKING;
        dlock_backend_redlock.acquire(c->w.be, false);
        all_pass(a, DLOCK_SEC);
        if (a->grants + a->skips != before + 1)
            unit_fail(UNIT_AT, "seed %lu: %d does not get it: %d", seed, i, c->doing);
        if (c->doing != IDLE)
            leave(c);
        all_pass(a, 2 * DLOCK_SEC);
    }
    for (int i = 0; i < a->n; i++)
        if (a->f[i].value[0] != '\0' || a->f[i].nreaders > 0)
            unit_fail(UNIT_AT, "seed %lu: server %d still has %s", seed, i, a->f[i].value);
}

static bool all_open(struct arena *a)
{
    static const int64_t unequal[CLIENTS] = {LONGEST, 2 * DLOCK_SEC, 5 * DLOCK_SEC};
    a->n = below(2) == 0 ? 3 : 5;
    fake_params = seed % 2 == 0 ? "?restart-grace=10" : "";
    for (int i = 0; i < CLIENTS; i++) {
        struct world *w = &a->c[i].w;
        int64_t ttl = seed % 2 == 0 ? unequal[i] : LONGEST;
        fake_once = seed % 4 == 3 ? 3600 * DLOCK_SEC : 0;
        fake_mode =
            fake_once == 0 && seed / 2 % 8 & 1u << i ? DLOCK_MODE_SHARED : DLOCK_MODE_EXCLUSIVE;
        if (i == 0) {
            if (!world_open(w, a->n, ttl, OP))
                return false;
            continue;
        }
        w->n = a->n;
        for (int k = 0; k < a->n; k++) {
            w->f[k].lfd = -1;
            w->f[k].port = a->c[0].w.f[k].port;
        }
        if (!world_client(w, ttl, OP))
            return false;
    }
    a->f = a->c[0].w.f;
    for (int i = 0; i < a->n; i++) {
        a->f[i].skew = ((int64_t)below(11) - 5) * DLOCK_SEC;
        a->f[i].fence = (fake_clock + a->f[i].skew) / 1000;
    }
    return true;
}

TEST(random_faults)
{
    const char *runs = getenv("DLOCK_RANDOM_RUNS"), *first = getenv("DLOCK_RANDOM_SEED");
    unsigned long from = first != NULL ? strtoul(first, NULL, 10) : 1;
    unsigned long to = from + (runs != NULL ? strtoul(runs, NULL, 10) : 25);
    int grants = 0, together = 0, renewals = 0, losses = 0, skips = 0, recorded = 0;
    for (seed = from; seed < to && unit_failures == 0; seed++) {
        struct arena *a = calloc(1, sizeof(*a));
        REQUIRE(a);
        state = seed;
        REQUIRE(all_open(a));
        for (int step = 0; step < STEPS && unit_failures == 0; step++) {
            act(a, &a->c[below(CLIENTS)]);
            if (below(3) == 0)
                fault(a);
            all_pass(a, some_time());
        }
        if (unit_failures == 0)
            ends_well(a);
        grants += a->grants;
        together += a->together;
        renewals += a->renewals;
        losses += a->losses;
        skips += a->skips;
        recorded += a->recorded;
        for (int i = CLIENTS - 1; i >= 0; i--)
            world_close(&a->c[i].w);
        free(a);
    }
    printf("# %d grants, %d beside another one, %d renewals, %d losses; %d skipped, %d recorded\n",
           grants, together, renewals, losses, skips, recorded);
    /* Otherwise the test shows nothing. */
    if (runs == NULL && first == NULL)
        CHECK(grants > 300 && together > 20 && renewals > 200 && losses > 0 && skips > 20 &&
              recorded > 2);
}

UNIT_MAIN
