/*
 * fake_env.h - the clocks, the randomness and the store of a test. Time passes only where the test
 * says so.
 */
#ifndef FAKE_ENV_H
#define FAKE_ENV_H

#include "lock.h"
#include "unit.h"

#include "util.h"
#include <unistd.h>

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

/* The calls that a store received, and the events that it will report. */
struct stub {
    char letter;  /* its name in calls[] */
    bool answers; /* renewals and releases */
    bool silent;  /* ... but not now */
    int acquires, renews, releases, asks;
    bool wait, stays;
    int64_t until;
    const struct dlock_order *order;
    const struct dlock_info *holder; /* of the next read; NULL: free */
    struct dlock_event say[4];
    int n;
    int fd, ready; /* a descriptor to poll, or 0; and how often it was found ready */
    int blind;     /* how often we worked without a look at it, before that */
};
static char calls[200]; /* of all stores with a letter: "A" acquire, "R" release, and its letter */

static void note(char what, const struct stub *st)
{
    size_t n = strlen(calls);
    if (st->letter)
        snprintf(calls + n, sizeof calls - n, "%c%c ", what, st->letter);
}
static void stub_says(struct stub *st, struct dlock_event ev)
{
    st->say[st->n++] = ev;
}
static void be_acquire(struct dlock_be *b, bool wait)
{
    struct stub *st = (struct stub *)b;
    st->acquires++;
    st->wait = wait;
    note('A', st);
}
static void be_renew(struct dlock_be *b)
{
    struct stub *st = (struct stub *)b;
    st->renews++;
    if (st->answers && !st->silent)
        stub_says(st, (struct dlock_event){.type = EV_RENEWED, .from = clock_now, .ttl = 10 * S});
}
static void be_release(struct dlock_be *b, int64_t until)
{
    struct stub *st = (struct stub *)b;
    st->releases++;
    st->until = until;
    st->n = 0;
    note('R', st);
    if (st->answers)
        stub_says(st, (struct dlock_event){.type = EV_RELEASED,
                                           .how = st->silent ? DLOCK_RELEASE_UNCLEAR
                                                             : DLOCK_RELEASE_CLEAN});
}
static void be_step(struct dlock_be *b, const struct dlock_order *order)
{
    struct stub *st = (struct stub *)b;
    st->asks++;
    st->order = order;
}
static bool be_next(struct dlock_be *b, struct dlock_info *info)
{
    struct stub *st = (struct stub *)b;
    bool held = st->holder;
    if (held)
        *info = *st->holder;
    st->holder = NULL;
    return held;
}
static bool be_stays(struct dlock_be *b)
{
    return ((struct stub *)b)->stays;
}
static int be_interest(struct dlock_be *b, struct pollfd *p, int cap, int64_t *wake)
{
    const struct stub *st = (struct stub *)b;
    (void)wake;
    if (st->fd == 0 || cap == 0)
        return 0;
    p[0] = (struct pollfd){.fd = st->fd, .events = POLLIN};
    return 1;
}
static int be_process(struct dlock_be *b, const struct pollfd *p, int n, struct dlock_event *ev)
{
    struct stub *st = (struct stub *)b;
    for (int i = 0; i < n; i++)
        st->ready += p[i].fd == st->fd && p[i].revents != 0;
    st->blind += st->ready == 0;
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
    .stays = be_stays,
    .renew = be_renew,
    .release = be_release,
    .step = be_step,
    .next = be_next,
    .interest = be_interest,
    .process = be_process,
    .close = be_close,
};

/* A handle over this store: ttl 10 s, grace 1 s: usable 8.398 s (see test_lease.c). */
static inline void fake_handle(dlock *d, struct dlock_uri *uri, struct stub *st)
{
    memset(d, 0, sizeof *d);
    d->uri = d->spec.uri = uri;
    d->table = &table;
    d->be = (struct dlock_be *)st;
    d->head = (struct handle){.ops = &lock_ops, .owner = getpid()};
    dlock_options_init(&d->opt, sizeof d->opt);
    d->lease_cfg = (struct lease_config){.ttl = 10 * S, .grace = 1 * S};
    lock_set_env(d, &env, 10 * S);
}

/* The same on the heap, with a name: for a set, which closes its handles. */
static inline dlock *fake_lock(struct stub *st, const char *name)
{
    dlock *d = calloc(1, sizeof *d);
    struct dlock_uri *uri = calloc(1, sizeof *uri);
    uri->scheme = strdup("stub");
    uri->name = strdup(name);
    uri->where = strdup("stub://");
    fake_handle(d, uri, st);
    return d;
}

static inline bool asks_for_dispatch(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

#endif
