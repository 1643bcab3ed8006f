/*
 * lock.c - a lock handle: the core between a backend's protocol and whoever wants the lock. It owns what
 * is policy and the same for every store: the bounds on waiting and on first contact, the lease, undoing what
 * is unclear, trying again. How it is made: lock_open.c; its name look-ups: lock_names.c.
 */
#include "lock.h"

#include "util.h"

#include <string.h>

/* Undo after a failure that no -w bounds. */
#define UNDO_TIME (500 * DLOCK_MSEC)
/* The backend has its own, more exact idea of the first contact's end: ours stands behind it. */
#define CONTACT_SLACK (30 * DLOCK_MSEC)
#define UNUSABLE_MAX 3

/* One report waits at most: every event and every step of the lease brings at most one. */
static struct dlock_report *report(dlock *d, enum dlock_report_type type)
{
    memset(&d->report, 0, sizeof d->report);
    d->report.type = type;
    d->report.times = d->lease.times;
    d->report.fence = d->fence;
    d->report.token = d->token;
    return &d->report;
}

void lock_report_failed(dlock *d)
{
    report(d, DLOCK_R_FAILED)->error = d->why;
    d->phase = PH_IDLE;
}

/* --- starting ------------------------------------------------------------------------------------ */

static bool needs_resolver(const dlock *d)
{
    return d->uri->nhosts > 0 && !d->peers;
}

void lock_ask_backend(dlock *d)
{
    if (d->want == PH_ASKING) {
        d->phase = PH_ASKING;
        d->table->ask(d->be, ASK_STATUS, NULL);
        return;
    }
    d->phase = PH_ACQUIRING;
    d->fence = 0;
    d->token[0] = '\0';
    lease_init(&d->lease, &d->lease_cfg);
    lease_acquire(&d->lease);
    d->table->acquire(d->be, d->opt.wait_ns != 0);
}

static void begin(dlock *d, enum lock_phase want)
{
    int64_t now = lock_now(d);
    d->want = want;
    d->contacted = false;
    d->contact_by = now + d->opt.connect_timeout_ns;
    if (d->contact_by < DLOCK_NEVER - CONTACT_SLACK)
        d->contact_by += CONTACT_SLACK;
    if (!needs_resolver(d)) {
        lock_ask_backend(d);
        return;
    }
    d->phase = PH_RESOLVING;
    d->partly_at = now + (dlock_min(d->contact_by, d->wait_until) - now) / 2;
    if (!d->resolver && dlock_resolver_start(&d->resolver, d->uri, &d->why) < 0)
        lock_report_failed(d);
}

void dlock_start_acquire(dlock *d)
{
    int64_t wait = d->opt.wait_ns, now = lock_now(d);
    d->wait_until = wait == 0 || wait >= DLOCK_NEVER - now ? DLOCK_NEVER : now + wait;
    d->unusable = 0;
    begin(d, PH_ACQUIRING);
}

void dlock_start_status(dlock *d)
{
    d->wait_until = DLOCK_NEVER;
    begin(d, PH_ASKING);
}

/* Give back or undo; then_ says what is reported once the backend has done it. */
static void release_then(dlock *d, enum lock_then then_, int64_t until)
{
    d->then = then_;
    d->phase = PH_RELEASING;
    lease_release(&d->lease);
    d->table->release(d->be, until);
}

void dlock_start_release(dlock *d, int64_t until)
{
    if (d->phase == PH_IDLE || d->phase == PH_RESOLVING) {
        d->phase = PH_IDLE;
        report(d, DLOCK_R_RELEASED)->how = DLOCK_REL_NOTHING;
        return;
    }
    d->report.type = DLOCK_R_NONE; /* what was about to be said is void */
    release_then(d, THEN_RELEASED, until);
}

/* --- what happens -------------------------------------------------------------------------------- */

static int64_t undo_until(const dlock *d)
{
    int64_t now = lock_now(d), until = now + UNDO_TIME;
    if (d->wait_until != DLOCK_NEVER)
        until = dlock_min(until, dlock_max(now, d->wait_until) + LOCK_UNDO_BRIEF);
    return until;
}

/* Granted, but of no use any more: give it back, and stand in line again where the caller waits. */
static void unusable(dlock *d)
{
    bool again = d->opt.wait_ns != 0 && ++d->unusable < UNUSABLE_MAX;
    dlock_fail(&d->why, DLOCK_EUNAVAIL, 0,
               "%s: the lock '%s' was granted too late to be used: the store is slow, or this "
               "machine was stopped; a longer ttl helps",
               d->uri->where, d->uri->name);
    release_then(d, again ? THEN_AGAIN : THEN_FAILED, undo_until(d));
}

static void lease_action(dlock *d, enum lease_do todo)
{
    switch (todo) {
    case LEASE_RENEW:
        d->table->renew(d->be);
        break;
    case LEASE_START:
        d->phase = PH_HELD;
        report(d, DLOCK_R_ACQUIRED);
        break;
    case LEASE_EXTEND:
        report(d, DLOCK_R_EXTENDED);
        break;
    case LEASE_TERM:
        report(d, DLOCK_R_TERM)->error = d->why;
        break;
    case LEASE_KILL:
        if (d->phase == PH_HELD)
            report(d, DLOCK_R_LOST)->error = d->why;
        else
            unusable(d); /* lost before anything was started under it */
        break;
    case LEASE_UNUSABLE:
        unusable(d);
        break;
    case LEASE_NOTHING:
        break;
    }
}

static void on_released(dlock *d, const struct dlock_event *ev)
{
    d->phase = PH_IDLE;
    switch (d->then) {
    case THEN_AGAIN:
        lock_ask_backend(d);
        break;
    case THEN_BUSY:
        report(d, DLOCK_R_BUSY)->info = d->have_holder ? &d->holder : NULL;
        break;
    case THEN_FAILED:
        lock_report_failed(d);
        break;
    case THEN_RELEASED: {
        struct dlock_report *r = report(d, DLOCK_R_RELEASED);
        r->how = ev->how;
        r->error = ev->error;
        break;
    }
    }
}

static void on_event(dlock *d, const struct dlock_event *ev)
{
    switch (ev->type) {
    case EV_WAITING:
    case EV_BUSY:
        d->contacted = true;
        d->have_holder = ev->info != NULL;
        if (ev->info)
            d->holder = *ev->info;
        if (ev->type == EV_BUSY)
            d->phase = PH_IDLE;
        report(d, ev->type == EV_BUSY ? DLOCK_R_BUSY : DLOCK_R_WAITING)->info =
            d->have_holder ? &d->holder : NULL;
        d->report.place = ev->place;
        break;
    case EV_GRANTED:
        d->contacted = true;
        d->fence = ev->fence;
        memcpy(d->token, ev->token, sizeof d->token);
        break;
    case EV_UNCLEAR:
        d->why = ev->error;
        lock_resolve_again(d);
        break;
    case EV_LOST:
        d->why = ev->error;
        break;
    case EV_RELEASED:
        on_released(d, ev);
        break;
    case EV_INFO:
        d->contacted = true;
        report(d, DLOCK_R_INFO)->info = ev->info;
        break;
    case EV_DONE:
        d->phase = PH_IDLE;
        report(d, DLOCK_R_DONE);
        break;
    case EV_NOTICE:
        report(d, DLOCK_R_NOTICE)->error = ev->error;
        if (d->phase == PH_ACQUIRING)
            lock_resolve_again(d);
        break;
    case EV_FAILED:
        d->why = ev->error;
        release_then(d, THEN_FAILED, undo_until(d));
        break;
    case EV_RENEWED:
        if (ev->error.code != 0)
            lock_resolve_again(d);
        break;
    case EV_NONE:
        break;
    }
}

static void no_answer(dlock *d, int64_t waited)
{
    char text[32];
    dlock_fail(&d->why, DLOCK_EUNAVAIL, 0, "%s: no answer within %s%s (lock '%s')", d->uri->where,
               dlock_format_duration(waited, text, sizeof text),
               d->phase == PH_RESOLVING ? " to the name look-up" : "", d->uri->name);
    if (d->phase == PH_RESOLVING)
        lock_report_failed(d);
    else
        release_then(d, THEN_FAILED, undo_until(d));
}

/* Is an answer awaited that -w and --connect-timeout bound? */
static bool trying(const dlock *d)
{
    return d->phase == PH_RESOLVING || d->phase == PH_ACQUIRING || d->phase == PH_ASKING;
}

static void on_time(dlock *d)
{
    int64_t now = lock_now(d);
    if (!trying(d))
        return;
    if (now >= d->wait_until) {
        if (d->contacted)
            release_then(d, THEN_BUSY, now + LOCK_UNDO_BRIEF);
        else
            no_answer(d, d->opt.wait_ns);
    } else if (now >= d->contact_by && !d->contacted) {
        no_answer(d, d->opt.connect_timeout_ns);
    }
}

/* --- the loop ------------------------------------------------------------------------------------ */

int dlock_interest(dlock *d, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    int n = 0;
    *wake_at = lease_wake(&d->lease);
    if (trying(d))
        *wake_at = dlock_min(*wake_at,
                             dlock_min(d->wait_until, d->contacted ? DLOCK_NEVER : d->contact_by));
    if (d->report.type != DLOCK_R_NONE)
        *wake_at = 0;
    if (d->resolver) {
        int fd = dlock_resolver_fd(d->resolver);
        if (fd < 0)
            *wake_at = 0;
        else if (n < cap)
            pfd[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
        if (d->phase == PH_RESOLVING && lock_now(d) < d->partly_at)
            *wake_at = dlock_min(*wake_at, d->partly_at);
    }
    if (d->phase != PH_RESOLVING && d->phase != PH_IDLE)
        n += d->table->interest(d->be, pfd + n, cap - n, wake_at);
    return n;
}

static int take_report(dlock *d, struct dlock_report *out)
{
    *out = d->report;
    d->report.type = DLOCK_R_NONE;
    return 1;
}

static bool concerns_lease(enum dlock_ev type)
{
    return type == EV_GRANTED || type == EV_RENEWED || type == EV_UNCLEAR || type == EV_LOST;
}

/*
 * The lease goes first: what time has decided (an end, a renewal) must not wait behind what the store
 * says. Every event of a backend and every step of the lease brings one report at most.
 */
int dlock_process(dlock *d, const struct pollfd *pfd, int n, struct dlock_report *out)
{
    for (;;) {
        if (d->report.type != DLOCK_R_NONE)
            return take_report(d, out);
        if (d->resolver)
            lock_resolved(d);
        on_time(d);
        enum lease_do todo = lease_step(&d->lease, lock_now(d), NULL);
        lease_action(d, todo);
        if (todo != LEASE_NOTHING || d->report.type != DLOCK_R_NONE)
            continue;
        if (d->phase == PH_IDLE || d->phase == PH_RESOLVING)
            return 0;
        struct dlock_event ev = {0};
        int got = d->table->process(d->be, pfd, n, &ev);
        pfd = NULL;
        n = 0;
        if (!got)
            return 0;
        on_event(d, &ev);
        if (concerns_lease(ev.type))
            lease_action(d, lease_step(&d->lease, lock_now(d), &ev));
    }
}

/* --- what is known ------------------------------------------------------------------------------- */

int64_t dlock_deadline(const dlock *d)
{
    return d->phase == PH_HELD && !d->lease.certain ? d->lease.times.deadline : 0;
}

uint64_t dlock_fence(const dlock *d)
{
    return d->fence;
}

const char *dlock_token(const dlock *d)
{
    return d->token;
}

const char *dlock_name(const dlock *d)
{
    return d->uri->name;
}

const char *dlock_where(const dlock *d)
{
    return d->uri->where;
}

const char *dlock_backend_name(const dlock *d)
{
    return d->table->name;
}

bool dlock_is_local(const dlock *d)
{
    return d->table->caps & CAP_FD;
}

int dlock_fd(const dlock *d)
{
    return d->table->inherit_fd && d->phase == PH_HELD ? d->table->inherit_fd(d->be) : -1;
}

int dlock_schema(const dlock *d, char **out, struct dlock_error *err)
{
    if (!d->table->schema)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s: nothing has to be made there beforehand",
                          d->uri->where);
    return d->table->schema(d->be, out, err);
}

int dlock_session_fd(const dlock *d)
{
    return d->table->session_fd && d->phase == PH_HELD ? d->table->session_fd(d->be) : -1;
}
