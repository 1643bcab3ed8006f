/*
 * lock.c - a lock handle: the core between a backend's protocol and the caller that wants the lock. It owns
 * what is policy and the same for every store: the bounds on waiting and on first contact, the lease, undoing
 * what is unclear, trying again.
 *
 * A handle goes from LOCK_IDLE through LOCK_RESOLVING (names to addresses; skipped when they are known) to
 * LOCK_ACQUIRING and LOCK_HELD, or to LOCK_ASKING, and through LOCK_RELEASING back to LOCK_IDLE. A first contact that
 * has failed goes through LOCK_PAUSING to LOCK_RESOLVING again, if the options say so. lease.c makes the decisions
 * about time while the lock is held; dlock_process() carries them out.
 */
#include "lock.h"

#include "driven.h"
#include "nested.h"
#include "util.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * A backend bounds the first contact more exactly, and knows why there is none: our bound comes after its own, also where
 * this process gets the processor late.
 */
#define CONTACT_SLACK (100 * DLOCK_MSEC)
#define UNUSABLE_MAX 3
#define RESOLVE_AGAIN (10 * DLOCK_SEC)
#define RETRY_BASE (100 * DLOCK_MSEC) /* pauses between tries of the first contact */
#define RETRY_MAX DLOCK_SEC
#define LONGEST (3650 * 24 * 3600 * DLOCK_SEC)

/* --- clocks ----------------------------------------------------------------------------------- */

/* The backend's clock. An event says from which of its readings the lease counts: note the other clock beside each. */
static int64_t noted_now(void *ctx)
{
    dlock *d = ctx;
    struct dlock_clocks now = dlock_clocks_read(d->env);
    lease_clocks_note(&d->clocks, now);
    return now.boot;
}

static int64_t noted_raw(void *ctx)
{
    const dlock *d = ctx;
    return d->env->raw(d->env->ctx);
}

static int noted_random(void *ctx, void *buf, size_t len)
{
    const dlock *d = ctx;
    return d->env->random(d->env->ctx, buf, len);
}

void lock_set_env(dlock *d, const struct dlock_env *env, int64_t ttl)
{
    d->env = env;
    d->noting_env = (struct dlock_env){noted_now, noted_raw, noted_random, d};
    d->spec.env = &d->noting_env;
    lease_clocks_init(&d->clocks, ttl);
}

static int64_t now_of(const dlock *d)
{
    return d->env->now(d->env->ctx);
}

static struct dlock_clocks clocks_of(const dlock *d)
{
    return dlock_clocks_read(d->env);
}

/* The backend runs an operation, or holds the lock. */
static bool backend_works(const dlock *d)
{
    return d->phase != LOCK_IDLE && d->phase != LOCK_RESOLVING && d->phase != LOCK_PAUSING;
}

/* --- opening ---------------------------------------------------------------------------------- */

static int check_once(const struct dlock_options *o, const struct dlock_backend *be,
                      struct dlock_error *err)
{
    if (o->once_ns < 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "the time of a run record must be greater than zero");
    if (o->mode != DLOCK_MODE_EXCLUSIVE)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "run records (once) are for exclusive locks");
    /* Refused there, once it is certain that the outer one holds the lock. */
    if (be->caps & CAP_NESTED)
        return 0;
    if (!(be->caps & CAP_ONCE))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "run records (once) are not available for %s%s%s",
                          be->name, be->no_once ? ": " : "", be->no_once ? be->no_once : "");
    return 0;
}

static int check_options(const struct dlock_options *o, const struct dlock_backend *be,
                         struct dlock_error *err)
{
    if ((unsigned)o->mode > DLOCK_MODE_SLOTS || (unsigned)o->holder > DLOCK_HOLDER_NEVER)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "mode or holder of struct dlock_options has no such value");
    if (o->mode == DLOCK_MODE_SHARED && !(be->caps & CAP_SHARED))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "shared locks are not available for %s", be->name);
    if (o->mode == DLOCK_MODE_SLOTS && !(be->caps & CAP_SLOTS))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "slots are not available for %s%s%s", be->name,
                          be->no_slots ? ": " : "", be->no_slots ? be->no_slots : "");
    if (o->mode == DLOCK_MODE_SLOTS && (o->slots < 1 || o->slots > DLOCK_SLOTS_MAX))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "the number of slots must be from 1 to %d",
                          DLOCK_SLOTS_MAX);
    if (o->once_ns != 0) {
        int rc = check_once(o, be, err);
        if (rc < 0)
            return rc;
    }
    if (o->min_hold_ns < 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "a least hold must not be negative");
    if (o->fcntl && !(be->caps & CAP_FD))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "fcntl(2) locks are for files: not for %s",
                          be->name);
    if (o->connect_timeout_ns <= 0 || o->wait_ns < 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "a time-out must be greater than zero");
    /* For a file as well, which has no lease: its lock may move to another store. */
    if (o->ttl_ns < LEASE_MIN_TTL)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "a ttl must be at least 1 s");
    if (o->grace_ns < -1)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "a grace must not be negative");
    return 0;
}

static void set_lease(dlock *d, const struct dlock_options *o)
{
    bool leased = d->table->caps & CAP_LEASE;
    d->lease_cfg = (struct lease_config){
        .ttl = leased ? o->ttl_ns : DLOCK_NEVER,
        .grace = o->grace_ns >= 0 ? o->grace_ns : lease_default_grace(o->ttl_ns),
        .lag = d->table->caps & CAP_LAG,
        .follows = d->table->caps & CAP_NESTED,
        .default_grace = o->grace_ns < 0,
    };
}

static void set_spec(dlock *d, const struct dlock_options *o)
{
    struct dlock_times t;
    lease_timeline(&t, &d->lease_cfg, o->ttl_ns, 0, 0);
    dlock_identity_init(&d->identity, o->command, o->note);
    d->spec = (struct dlock_spec){
        .uri = d->uri,
        .mode = o->mode,
        .fcntl = o->fcntl,
        .slots = o->mode == DLOCK_MODE_SLOTS ? o->slots : 0,
        .ttl = o->ttl_ns,
        .least_ttl = lease_least_ttl(&d->lease_cfg),
        .connect_timeout = o->connect_timeout_ns,
        /* Three tries fit between the first renewal and the second: one lost packet costs nothing. */
        .op_timeout = dlock_min(o->connect_timeout_ns, dlock_max(UNDO_BRIEF, t.term_at / 6)),
        .identity = &d->identity,
        .holder = o->holder,
        .once = o->once_ns,
        .min_hold = o->min_hold_ns,
        .hold = &d->hold,
        .tls = dlock_registry_tls,
    };
    lock_set_env(d, &dlock_env_system, o->ttl_ns);
}

static const struct dlock_backend *find_table(const dlock *d, struct dlock_error *err)
{
    if (!d->spec.outer)
        return dlock_registry_find(d->uri->scheme, err);
    return dlock_registry_hold(d->uri->scheme) & CAP_FD ? &dlock_nested_local : &dlock_nested_lease;
}

/* A time of more than ten years is without end for us, and must not overflow where a store counts in other units. */
static int64_t bounded(int64_t ns)
{
    return dlock_min(ns, LONGEST);
}

static int open_backend(dlock *d, const struct dlock_options *from,
                        const struct nested_outer *outer, struct dlock_error *err)
{
    struct dlock_options *o = &d->opt;
    struct dlock_error why;
    int rc = dlock_options_read(o, from, err);
    if (rc < 0)
        return rc;
    o->ttl_ns = bounded(o->ttl_ns);
    o->grace_ns = bounded(o->grace_ns);
    o->connect_timeout_ns = bounded(o->connect_timeout_ns);
    o->once_ns = bounded(o->once_ns);
    o->min_hold_ns = bounded(o->min_hold_ns);
    d->spec.outer = outer;
    d->table = find_table(d, &why);
    if (!d->table) {
        if (err)
            *err = why;
        return why.code;
    }
    rc = check_options(o, d->table, err);
    if (rc < 0)
        return rc;
    set_lease(d, o);
    rc = lease_check(&d->lease_cfg, err);
    if (rc < 0)
        return rc;
    set_spec(d, o);
    o->command = o->note = NULL; /* copied into d->identity */
    d->spec.outer = outer;
    rc = d->table->open(&d->be, &d->spec, err);
    if (rc < 0)
        return rc;
    d->wait_until = d->contact_by = DLOCK_NEVER;
    if (outer) /* its backend has read the URI's parameters */
        return 0;
    d->say_ignored = dlock_uri_ignored(d->uri, NULL, 0);
    return dlock_uri_check_params(d->uri, err);
}

int dlock_open_nested(dlock **out, struct dlock_uri **uri, const struct nested_outer *outer,
                      const struct dlock_options *o, struct dlock_error *err)
{
    dlock *d = calloc(1, sizeof(*d));
    int rc = DLOCK_ENOMEM;
    if (d) {
        d->uri = *uri;
        d->owner = getpid();
        d->failures = (struct dlock_backoff){.base = RETRY_BASE, .max = RETRY_MAX};
        rc = open_backend(d, o, outer, err);
    } else {
        dlock_fail(err, rc, 0, "out of memory");
        dlock_uri_free(*uri);
    }
    *uri = NULL;
    if (rc < 0)
        lock_close(d);
    else
        *out = d;
    return rc;
}

int dlock_open_uri(dlock **out, struct dlock_uri **uri, const struct dlock_options *o,
                   struct dlock_error *err)
{
    return dlock_open_nested(out, uri, NULL, o, err);
}

int dlock_open(dlock **out, const char *text, const struct dlock_options *o,
               struct dlock_error *err)
{
    struct dlock_uri *uri;
    if (!out || !text)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "dlock_open() needs a URI, and a place for the handle");
    int rc = dlock_uri_parse(&uri, text, err);
    return rc < 0 ? rc : dlock_open_uri(out, &uri, o, err);
}

void lock_close(dlock *d)
{
    bool foreign;
    if (!d)
        return;
    foreign = lock_is_foreign(d);
    if (d->be && foreign && d->table->close_in_child)
        d->table->close_in_child(d->be);
    else if (d->be && !foreign)
        d->table->close(d->be);
    if (foreign)
        dlock_resolver_close_in_child(d->names.resolver);
    else
        dlock_resolver_free(d->names.resolver);
    poller_close(d->poller);
    free(d->names.peers);
    dlock_uri_free(d->uri);
    free(d);
}

/* --- reports and requests --------------------------------------------------------------------- */

/* One report waits at most: every event and every step of the lease brings at most one. */
static struct dlock_report *report(dlock *d, enum dlock_report_type type)
{
    memset(&d->report, 0, sizeof(d->report));
    d->report.type = type;
    d->report.times = d->lease.times;
    d->report.fence = d->fence;
    d->report.token = d->token;
    d->report.lock = d;
    return &d->report;
}

int64_t lock_retry_at(int code, struct dlock_backoff *pause, const struct dlock_env *env)
{
    if (!dlock_error_retryable(code))
        return DLOCK_NEVER;
    return env->now(env->ctx) + dlock_backoff_next(pause, env);
}

static void report_failed(dlock *d)
{
    struct dlock_report *r = report(d, DLOCK_REPORT_FAILED);
    r->error = d->why;
    r->retry_at = lock_retry_at(d->why.code, &d->failures, d->env);
    d->phase = LOCK_IDLE;
}

/* The store does not answer: later once more? Only a network failure passes. */
static bool may_retry(const dlock *d)
{
    bool waits = d->opt.retry || d->contacted || d->begins_again;
    return d->want == LOCK_ACQUIRING && d->opt.wait_ns != 0 && waits && d->unanswered &&
           d->why.code == DLOCK_EUNAVAIL;
}

/* d->why: no answer, while we wait. That is reported once, until there is one. */
static void away(dlock *d, int64_t since)
{
    if (d->away_since != 0)
        return;
    d->away_since = since;
    struct dlock_report *r = report(d, DLOCK_REPORT_TROUBLE);
    dlock_error_cause(&r->error, &d->why, d->uri->where);
    r->since = since;
}

static void answered(dlock *d)
{
    d->contacted = true;
    d->unanswered = false;
    dlock_backoff_reset(&d->failures);
    if (d->away_since != 0)
        d->back_since = d->away_since;
    d->away_since = 0;
}

/* The first contact has failed, and nothing is left of it. */
static void pause_contact(dlock *d)
{
    int64_t now = now_of(d);
    d->phase = LOCK_PAUSING;
    d->retry_at = now + dlock_backoff_next(&d->retry_pause, d->env);
    d->contact_by = DLOCK_NEVER;
    away(d, d->contacted ? now : d->asked_at);
}

static void contact_failed(dlock *d)
{
    if (may_retry(d))
        pause_contact(d);
    else
        report_failed(d);
}

/* The addresses are known: begin the acquire or the query. */
static void ask_backend(dlock *d)
{
    if (d->want == LOCK_ASKING) {
        d->phase = LOCK_ASKING;
        d->table->ask(d->be, d->forget[0] ? ASK_FORGET : ASK_STATUS,
                      d->forget[0] ? d->forget : NULL);
        return;
    }
    d->phase = LOCK_ACQUIRING;
    d->unanswered = true;
    d->lost = d->ending = false;
    d->end.code = 0;
    d->fence = 0;
    d->fence_text[0] = '\0';
    d->slot = 0;
    d->hold = (struct dlock_hold){.status = -1};
    d->token[0] = '\0';
    lease_acquire(&d->lease, &d->lease_cfg);
    dlock_identity_begin(&d->identity);
    d->table->acquire(d->be, d->opt.wait_ns != 0);
}

/* --- names ------------------------------------------------------------------------------------ */

static bool has_host(const struct dlock_peer *peers, int n, int host)
{
    for (int i = 0; i < n; i++)
        if (peers[i].host == host)
            return true;
    return false;
}

/* Take these addresses; a host without any keeps its old ones. False: out of memory, all hosts keep them. */
static bool take_peers(dlock *d, struct dlock_peer *peers, int n)
{
    int all = n;
    struct dlock_peer *p = realloc(peers, ((size_t)n + (size_t)d->spec.npeers + 1) * sizeof(*p));
    if (!p) {
        free(peers);
        return false;
    }
    for (int i = 0; i < d->spec.npeers; i++)
        if (!has_host(p, n, d->names.peers[i].host))
            p[all++] = d->names.peers[i];
    free(d->names.peers);
    d->names.peers = p;
    d->spec.peers = p;
    d->spec.npeers = all;
    return true;
}

/* A look-up is under way: take over its addresses. */
static void check_resolver(dlock *d)
{
    struct dlock_peer *peers;
    struct dlock_error why;
    int n;
    int rc = dlock_resolver_result(d->names.resolver, &peers, &n, &why);
    if (rc != 0) {
        dlock_resolver_free(d->names.resolver);
        d->names.resolver = NULL;
        d->names.resolved_at = now_of(d);
    } else if (d->phase == LOCK_RESOLVING && now_of(d) >= d->names.partly_at) {
        /* A name server that is silent about one host of several must not cost the others. */
        rc = dlock_resolver_so_far(d->names.resolver, &peers, &n);
    }
    if (rc == 0)
        return;
    if (rc > 0 && !take_peers(d, peers, n))
        rc = dlock_fail(&why, DLOCK_ENOMEM, 0, "out of memory");
    if (d->phase != LOCK_RESOLVING)
        return; /* a look-up beside a reconnect: when it fails, the old addresses stay */
    if (rc > 0) {
        ask_backend(d);
    } else {
        d->why = why;
        contact_failed(d);
    }
}

/* An inner dlock has nothing to do with the store's. */
static bool has_hosts(const dlock *d)
{
    return d->uri->nhosts > 0 && !(d->table->caps & CAP_NESTED);
}

/* The store may have moved: look its names up again, while work goes on with the addresses we have. */
static void resolve_again(dlock *d)
{
    /* Several times within the ttl: a holder does not ride out an outage for longer. */
    int64_t pause = dlock_min(RESOLVE_AGAIN, dlock_max(d->opt.ttl_ns / 6, DLOCK_SEC));
    if (d->names.resolver || !has_hosts(d) || now_of(d) - d->names.resolved_at < pause)
        return;
    d->names.resolved_at = now_of(d);
    dlock_resolver_start(&d->names.resolver, d->uri, NULL);
}

/* --- start and release ------------------------------------------------------------------------ */

static void contact(dlock *d)
{
    int64_t now = now_of(d);
    d->contact_by = dlock_after(now, d->opt.connect_timeout_ns + CONTACT_SLACK);
    d->phase = LOCK_RESOLVING;
    d->names.partly_at = now + (dlock_min(d->contact_by, d->wait_until) - now) / 2;
    if (!has_hosts(d) || d->names.peers)
        ask_backend(d);
    else if (!d->names.resolver && dlock_resolver_start(&d->names.resolver, d->uri, &d->why) < 0)
        contact_failed(d);
}

static void contact_again(dlock *d)
{
    contact(d);
    if (d->phase == LOCK_ACQUIRING)
        resolve_again(d); /* for the next time: it has the old addresses now */
}

/* The descriptor of dlock_poll_fd() asks for dlock_dispatch(): it cannot know what changes now. */
static void kick(const dlock *d)
{
    if (d->poller && !d->in_set)
        poller_kick(d->poller);
}

static void begin(dlock *d, enum lock_phase want)
{
    d->want = want;
    d->asked_at = now_of(d);
    d->contacted = false;
    d->unanswered = true;
    d->away_since = d->back_since = 0;
    d->retry_pause = (struct dlock_backoff){.base = RETRY_BASE, .max = RETRY_MAX};
    contact(d);
    kick(d);
}

void lock_start_acquire(dlock *d)
{
    int64_t wait = d->opt.wait_ns;
    d->wait_until = wait == 0 ? DLOCK_NEVER : dlock_after(now_of(d), wait);
    d->unusable = 0;
    begin(d, LOCK_ACQUIRING);
}

static void start_asking(dlock *d, const char *forget)
{
    snprintf(d->forget, sizeof(d->forget), "%s", forget);
    d->wait_until = DLOCK_NEVER;
    begin(d, LOCK_ASKING);
}

/* Release or undo; then_ says what follows when the backend has done it. */
static void release_then(dlock *d, enum lock_then then_, int64_t until)
{
    d->then = then_;
    if (d->phase == LOCK_ACQUIRING)
        d->hold.until = 0; /* no work was done under it */
    d->phase = LOCK_RELEASING;
    lease_release(&d->lease);
    d->table->release(d->be, until);
}

void lock_start_release(dlock *d, int64_t until)
{
    d->back_since = 0; /* a report that waits is void */
    kick(d);
    if (backend_works(d)) {
        d->report.type = DLOCK_REPORT_NONE;
        release_then(d, THEN_RELEASED, until);
    } else if (d->report.type != DLOCK_REPORT_RELEASED) {
        d->phase = LOCK_IDLE;
        report(d, DLOCK_REPORT_RELEASED)->how = DLOCK_RELEASE_NOTHING;
    }
}

/* --- what happens ----------------------------------------------------------------------------- */

static int64_t undo_until(const dlock *d)
{
    return lock_undo_until(now_of(d), d->wait_until);
}

/* d->why: the try has failed. */
static void try_failed(dlock *d)
{
    if (backend_works(d))
        release_then(d, may_retry(d) ? THEN_RETRY : THEN_FAILED, undo_until(d));
    else
        contact_failed(d);
}

/* d->why: nothing is tried any more. */
static void end_failed(dlock *d)
{
    if (backend_works(d))
        release_then(d, THEN_FAILED, undo_until(d));
    else
        report_failed(d);
}

/* Granted too late to be used: give it back, and queue again if the caller waits. */
static void give_back_late(dlock *d)
{
    bool again = d->opt.wait_ns != 0 && ++d->unusable < UNUSABLE_MAX;
    dlock_fail_at(
        &d->why, DLOCK_EUNAVAIL, 0, d->uri->where,
        "the lock '%s' was granted too late to be used: the store is slow, or this machine was stopped; a longer ttl helps",
        d->uri->name);
    release_then(d, again ? THEN_AGAIN : THEN_FAILED, undo_until(d));
}

/* Why the lease is not renewed: what the store said last; else this process is late itself, or the store is silent. */
static void say_why(const dlock *d, struct dlock_error *err)
{
    const struct lease *l = &d->lease;
    int64_t now = now_of(d), late = d->lease_due > 0 ? now - d->lease_due : 0;
    char text[32];
    if (d->why.code != 0)
        *err = d->why;
    else if (late > (l->times.term_at - l->sent) / 12)
        dlock_fail(
            err, DLOCK_EUNAVAIL, 0,
            "this process did not run for %s: it was stopped, or the machine was asleep or overloaded",
            dlock_format_duration(late, text, sizeof(text)));
    else if (l->renewing)
        dlock_fail(err, DLOCK_EUNAVAIL, 0, "no answer within %s",
                   dlock_format_duration(now - l->asked, text, sizeof(text)));
    else if (d->end.code != 0) /* renewed again, but too late: what TERM had is why */
        *err = d->end;
    if (!err->msg[0])
        dlock_fail(err, err->code != 0 ? err->code : DLOCK_EUNAVAIL, err->sys,
                   err->code == DLOCK_ELOST ? "the store says that the lock is not ours"
                                            : "the store has confirmed no renewal");
}

/* TERM or LOST: the hold is over, or soon will be. */
static void report_end(dlock *d, enum dlock_report_type type)
{
    struct dlock_report *r = report(d, type);
    say_why(d, &r->error);
    d->end = r->error;
}

static void lease_action(dlock *d, enum lease_do todo)
{
    switch (todo) {
    case LEASE_RENEW:
        d->table->renew(d->be);
        break;
    case LEASE_START:
        d->phase = LOCK_HELD;
        report(d, DLOCK_REPORT_ACQUIRED);
        break;
    case LEASE_EXTEND:
        report(d, DLOCK_REPORT_EXTENDED);
        break;
    case LEASE_TROUBLE:
        say_why(d, &report(d, DLOCK_REPORT_TROUBLE)->error);
        d->report.since = d->lease.trouble_since;
        break;
    case LEASE_RECOVERED:
        report(d, DLOCK_REPORT_RECOVERED)->since = d->lease.trouble_since;
        break;
    case LEASE_TERM:
        report_end(d, DLOCK_REPORT_TERM);
        break;
    case LEASE_KILL:
        if (d->phase == LOCK_HELD)
            report_end(d, DLOCK_REPORT_LOST);
        else
            give_back_late(d); /* lost before the work was started */
        break;
    case LEASE_UNUSABLE:
        give_back_late(d);
        break;
    case LEASE_NOTHING:
        break;
    }
}

/* What keeps a reader from joining the readers and slots there are? On files, which have no order, nothing does. */
bool lock_kept(const dlock *d)
{
    return d->have_holder && d->holder.mode != DLOCK_MODE_EXCLUSIVE &&
           d->spec.mode == DLOCK_MODE_SHARED && !(d->table->caps & CAP_FD);
}

/* WAITING or BUSY. */
static struct dlock_report *report_holder(dlock *d, enum dlock_report_type type)
{
    struct dlock_report *r = report(d, type);
    r->info = d->have_holder ? &d->holder : NULL;
    r->kept = lock_kept(d);
    return r;
}

static void on_released(dlock *d, const struct dlock_event *ev)
{
    d->phase = LOCK_IDLE;
    switch (d->then) {
    case THEN_AGAIN:
        ask_backend(d);
        break;
    case THEN_BUSY:
        report_holder(d, DLOCK_REPORT_BUSY);
        break;
    case THEN_FAILED:
        report_failed(d);
        break;
    case THEN_RETRY:
        pause_contact(d);
        break;
    case THEN_RELEASED: {
        struct dlock_report *r = report(d, DLOCK_REPORT_RELEASED);
        r->how = ev->how;
        dlock_error_cause(&r->error, &ev->error, d->uri->where);
        break;
    }
    }
}

/* The store has answered, and may be away now: the acquire goes on. */
static bool waits(const dlock *d)
{
    return d->phase == LOCK_ACQUIRING && d->contacted && d->opt.wait_ns != 0;
}

static void on_event(dlock *d, const struct dlock_event *ev)
{
    switch (ev->type) {
    case EV_WAITING:
    case EV_BUSY:
        answered(d);
        d->have_holder = ev->info;
        if (ev->info)
            d->holder = *ev->info;
        if (ev->type == EV_BUSY)
            d->phase = LOCK_IDLE;
        report_holder(d, ev->type == EV_BUSY ? DLOCK_REPORT_BUSY : DLOCK_REPORT_WAITING)->place =
            ev->place;
        break;
    case EV_GRANTED:
        answered(d);
        d->fence = ev->fence;
        if (d->fence > 0)
            snprintf(d->fence_text, sizeof(d->fence_text), "%" PRIu64, d->fence);
        d->slot = ev->slot;
        d->mode = d->spec.outer ? ev->mode : d->spec.mode;
        d->slots = d->spec.outer ? ev->slots : d->spec.slots;
        if (d->spec.min_hold > 0)
            d->hold.until = now_of(d) + dlock_min(d->spec.min_hold, DLOCK_NEVER - 1 - now_of(d));
        memcpy(d->token, ev->token, sizeof(d->token));
        d->why.code = 0;
        break;
    case EV_UNCLEAR:
        dlock_error_cause(&d->why, &ev->error, d->uri->where);
        resolve_again(d);
        break;
    case EV_LOST:
        dlock_error_cause(&d->why, &ev->error, d->uri->where);
        break;
    case EV_RELEASED:
        on_released(d, ev);
        break;
    case EV_SKIPPED:
        answered(d);
        d->phase = LOCK_IDLE;
        report(d, DLOCK_REPORT_SKIPPED)->run = ev->run;
        break;
    case EV_INFO:
        answered(d);
        report(d, DLOCK_REPORT_INFO)->info = ev->info;
        break;
    case EV_RUN:
        answered(d);
        report(d, DLOCK_REPORT_RUN)->run = ev->run;
        break;
    case EV_DONE:
        d->phase = LOCK_IDLE;
        report(d, DLOCK_REPORT_DONE)->error = ev->error;
        break;
    case EV_NOTICE:
        report(d, DLOCK_REPORT_NOTICE)->error = ev->error;
        if (d->phase == LOCK_ACQUIRING)
            resolve_again(d);
        break;
    case EV_FAILED:
        d->why = ev->error;
        try_failed(d);
        break;
    case EV_RENEWED:
        if (waits(d)) /* granted, but late: that must be renewed first */
            answered(d);
        if (ev->error.code != 0)
            resolve_again(d);
        d->why.code = 0;
        break;
    case EV_AWAY:
        resolve_again(d);
        if (waits(d)) {
            d->why = ev->error;
            away(d, now_of(d));
        }
        break;
    case EV_BACK:
        if (waits(d))
            answered(d);
        break;
    case EV_NONE:
        break;
    }
}

static void no_answer(dlock *d, int64_t waited)
{
    char text[32];
    const char *to = d->phase == LOCK_RESOLVING ? " to the name look-up" : "";
    dlock_fail_lock(&d->why, DLOCK_EUNAVAIL, 0, d->uri, "no answer within %s%s",
                    dlock_format_duration(waited, text, sizeof(text)), to);
}

/* d->why is the latest failure of an outage: say how long that has lasted. What is too long loses its end, not the rest. */
static void still_away(dlock *d)
{
    char lasted[32], rest[sizeof(d->why.msg) / 2];
    int64_t ns = now_of(d) - d->away_since, shown = ns < DLOCK_SEC ? DLOCK_MSEC : 100 * DLOCK_MSEC;
    dlock_format_duration(ns / shown * shown, lasted, sizeof(lasted));
    int len = snprintf(rest, sizeof(rest), "; no answer for %s (lock '%s')", lasted, d->uri->name);
    int room = (int)sizeof(d->why.msg) - 1 - (int)dlock_min(len, (int)sizeof(rest) - 1);
    int end = d->why.cause_at + d->why.cause_len;
    dlock_fail(&d->why, DLOCK_EUNAVAIL, d->why.sys, "%.*s%s", end < room ? end : room, d->why.msg,
               rest);
}

/* Do we wait for an answer that -w and --connect-timeout bound? */
static bool trying(const dlock *d)
{
    return d->phase == LOCK_RESOLVING || d->phase == LOCK_PAUSING || d->phase == LOCK_ACQUIRING ||
           d->phase == LOCK_ASKING;
}

/* The wait is over. For its report, look for the holder where no event has said who it is. */
static void give_up(dlock *d)
{
    int64_t now = now_of(d);
    if (d->table->look && d->opt.holder != DLOCK_HOLDER_NEVER)
        d->have_holder = d->table->look(d->be, &d->holder);
    release_then(d, THEN_BUSY, now + UNDO_BRIEF);
}

static void on_time(dlock *d)
{
    int64_t now = now_of(d);
    if (!trying(d))
        return;
    if (now >= d->wait_until && d->away_since != 0) {
        still_away(d);
        end_failed(d);
    } else if (now >= d->wait_until && d->contacted) {
        give_up(d);
    } else if (now >= d->wait_until) {
        no_answer(d, d->opt.wait_ns);
        end_failed(d);
    } else if (d->phase == LOCK_PAUSING) {
        if (now >= d->retry_at)
            contact_again(d);
    } else if (now >= d->contact_by && !d->contacted) {
        no_answer(d, d->opt.connect_timeout_ns);
        try_failed(d);
    }
}

/* --- the loop --------------------------------------------------------------------------------- */

int lock_interest(dlock *d, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    int n = 0;
    *wake_at = d->lease_due = lease_wake(&d->lease, clocks_of(d));
    if (trying(d))
        *wake_at = dlock_min(*wake_at,
                             dlock_min(d->wait_until, d->contacted ? DLOCK_NEVER : d->contact_by));
    if (d->report.type != DLOCK_REPORT_NONE || d->say_ignored)
        *wake_at = 0;
    if (d->names.resolver) {
        int fd = dlock_resolver_fd(d->names.resolver);
        if (fd < 0)
            *wake_at = 0;
        else if (n < cap)
            pfd[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
        if (d->phase == LOCK_RESOLVING && now_of(d) < d->names.partly_at)
            *wake_at = dlock_min(*wake_at, d->names.partly_at);
    }
    if (d->phase == LOCK_PAUSING)
        *wake_at = dlock_min(*wake_at, d->retry_at);
    if (d->back_since != 0)
        *wake_at = 0;
    if (backend_works(d))
        n += d->table->interest(d->be, pfd + n, cap - n, wake_at);
    return n;
}

/* What ended an outage may have brought another report, which comes behind. */
static const struct dlock_report *take_report(dlock *d)
{
    if (d->back_since != 0) {
        d->given = (struct dlock_report){
            .type = DLOCK_REPORT_RECOVERED, .token = d->token, .lock = d, .since = d->back_since};
        d->back_since = 0;
        return &d->given;
    }
    d->given = d->report;
    d->report.type = DLOCK_REPORT_NONE;
    d->lost = d->lost || d->given.type == DLOCK_REPORT_LOST;
    d->ending = d->ending || d->given.type == DLOCK_REPORT_TERM;
    return &d->given;
}

/* Before all other reports, once for a handle: what the store's other clients have in the URI, and dlock has no use for. */
static const struct dlock_report *report_ignored(dlock *d)
{
    struct dlock_report *out = &d->given;
    char names[256];
    d->say_ignored = false;
    dlock_uri_ignored(d->uri, names, sizeof(names));
    *out = (struct dlock_report){.type = DLOCK_REPORT_NOTICE, .token = d->token, .lock = d};
    dlock_fail_at(&out->error, DLOCK_OK, 0, d->uri->where,
                  "ignored the parameters of other programs: %s", names);
    return out;
}

static bool concerns_lease(enum dlock_ev type)
{
    return type == EV_GRANTED || type == EV_RENEWED || type == EV_UNCLEAR || type == EV_LOST;
}

/*
 * The lease goes first: what time has decided (an end, a renewal) must not wait behind the store's events.
 * Every event of a backend and every step of the lease brings one report at most.
 */
const struct dlock_report *lock_process(dlock *d, const struct pollfd *pfd, int n)
{
    if (d->say_ignored)
        return report_ignored(d);
    for (;;) {
        if (d->report.type != DLOCK_REPORT_NONE || d->back_since != 0)
            return take_report(d);
        /* The backend may have opened a descriptor of the number that the look-up has closed. */
        bool looks_up = d->names.resolver;
        if (looks_up)
            check_resolver(d);
        if (looks_up && !d->names.resolver)
            n = 0;
        on_time(d);
        enum lease_do todo = lease_step(&d->lease, clocks_of(d), NULL);
        lease_action(d, todo);
        if (todo != LEASE_NOTHING || d->report.type != DLOCK_REPORT_NONE)
            continue;
        if (!backend_works(d))
            return NULL;
        struct dlock_event ev = {0};
        int got = d->table->process(d->be, pfd, n, &ev);
        pfd = NULL;
        n = 0;
        if (!got)
            return NULL;
        on_event(d, &ev);
        if (!concerns_lease(ev.type))
            continue;
        if (!(d->table->caps & CAP_NESTED))
            ev.raw_minus_boot = lease_clocks_difference(&d->clocks, ev.from);
        lease_action(d, lease_step(&d->lease, clocks_of(d), &ev));
    }
}

/* --- the calls of dlock.h, and what each state allows ------------------------------------------ */

bool lock_is_foreign(const dlock *d)
{
    return d->owner != getpid();
}

bool lock_end_waits(const struct dlock_report *waiting)
{
    switch (waiting->type) {
    case DLOCK_REPORT_ACQUIRED:
    case DLOCK_REPORT_BUSY:
    case DLOCK_REPORT_SKIPPED:
    case DLOCK_REPORT_FAILED:
    case DLOCK_REPORT_DONE:
        return true;
    default:
        return false;
    }
}

enum dlock_state lock_state(const dlock *d)
{
    bool undoing = d->phase == LOCK_RELEASING && d->then != THEN_RELEASED;
    if (d->report.type == DLOCK_REPORT_RELEASED)
        return DLOCK_STATE_RELEASING;
    if (undoing || lock_end_waits(&d->report) || d->phase == LOCK_RESOLVING ||
        d->phase == LOCK_PAUSING)
        return d->want == LOCK_ASKING ? DLOCK_STATE_ASKING : DLOCK_STATE_ACQUIRING;
    switch (d->phase) {
    case LOCK_ACQUIRING:
        return DLOCK_STATE_ACQUIRING;
    case LOCK_ASKING:
        return DLOCK_STATE_ASKING;
    case LOCK_HELD:
        return d->lost ? DLOCK_STATE_LOST : DLOCK_STATE_HELD;
    case LOCK_RELEASING:
        return DLOCK_STATE_RELEASING;
    default:
        return DLOCK_STATE_IDLE;
    }
}

enum dlock_state dlock_state(const dlock *d)
{
    return lock_is_foreign(d) ? DLOCK_STATE_FOREIGN : lock_state(d);
}

int lock_refuse(enum dlock_state state, bool in_set, const char *what, struct dlock_error *err)
{
    static const char *const names[] = {
        [DLOCK_STATE_IDLE] = "nothing is held or under way",
        [DLOCK_STATE_ACQUIRING] = "an acquire is under way",
        [DLOCK_STATE_ASKING] = "a query is under way",
        [DLOCK_STATE_HELD] = "the lock is held",
        [DLOCK_STATE_LOST] = "the lock was lost, and has not been released since",
        [DLOCK_STATE_RELEASING] = "a release is under way",
        [DLOCK_STATE_FOREIGN] = "another process has opened this handle",
    };
    return dlock_fail(err, DLOCK_EUSAGE, 0, "%s: not possible now: %s", what,
                      in_set ? "the handle belongs to a set" : names[state]);
}

/* 0 in this state, and outside of a set. */
static int expect(const dlock *d, enum dlock_state state, const char *what, struct dlock_error *err)
{
    enum dlock_state is = dlock_state(d);
    return is == state && !d->in_set ? 0 : lock_refuse(is, d->in_set, what, err);
}

int dlock_start_acquire(dlock *d, struct dlock_error *err)
{
    int rc = expect(d, DLOCK_STATE_IDLE, "dlock_start_acquire()", err);
    if (rc == 0)
        lock_start_acquire(d);
    return rc;
}

int dlock_start_status(dlock *d, struct dlock_error *err)
{
    int rc = expect(d, DLOCK_STATE_IDLE, "dlock_start_status()", err);
    if (rc == 0)
        start_asking(d, "");
    return rc;
}

int dlock_start_forget(dlock *d, const char *token, struct dlock_error *err)
{
    int rc = expect(d, DLOCK_STATE_IDLE, "dlock_start_forget()", err);
    if (rc < 0)
        return rc;
    if (!token || !token[0] || strlen(token) > DLOCK_TOKEN_LEN)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "dlock_start_forget() needs the token of a record");
    start_asking(d, token);
    return 0;
}

int dlock_start_release(dlock *d, int64_t until, struct dlock_error *err)
{
    if (d->in_set || lock_is_foreign(d))
        return lock_refuse(DLOCK_STATE_FOREIGN, d->in_set, "dlock_start_release()", err);
    lock_start_release(d, until);
    return 0;
}

int dlock_note_result(dlock *d, bool success, int status, struct dlock_error *err)
{
    enum dlock_state is = dlock_state(d);
    if (is != DLOCK_STATE_HELD && is != DLOCK_STATE_LOST)
        return lock_refuse(is, false, "dlock_note_result()", err);
    if (status < -1 || status > 255)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "dlock_note_result(): a status is from -1 to 255");
    d->hold.ended = true;
    d->hold.success = success;
    d->hold.status = status;
    return 0;
}

int dlock_interest(dlock *d, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    *wake_at = DLOCK_NEVER;
    return d->in_set || lock_is_foreign(d) ? 0 : lock_interest(d, pfd, cap, wake_at);
}

const struct dlock_report *dlock_process(dlock *d, const struct pollfd *pfd, int n)
{
    if (d->in_set || lock_is_foreign(d))
        return NULL;
    kick(d);
    return lock_process(d, pfd, n);
}

void dlock_close(dlock *d)
{
    if (d && !d->in_set)
        lock_close(d);
}

int dlock_poll_fd(dlock *d, struct dlock_error *err)
{
    if (d->in_set || lock_is_foreign(d))
        return lock_refuse(DLOCK_STATE_FOREIGN, d->in_set, "dlock_poll_fd()", err);
    return poller_fd(&d->poller, err);
}

const struct dlock_report *dlock_dispatch(dlock *d)
{
    if (d->in_set || lock_is_foreign(d))
        return NULL;
    return driven_dispatch((struct driven){.lock = d}, d->poller);
}

/* --- what is known ---------------------------------------------------------------------------- */

int64_t dlock_time_left(const dlock *d)
{
    return d->phase == LOCK_HELD && !lock_is_foreign(d) ? lease_time_left(&d->lease, clocks_of(d))
                                                        : 0;
}

int64_t dlock_deadline(const dlock *d)
{
    bool held = d->phase == LOCK_HELD && !d->lease.certain && !lock_is_foreign(d);
    return held ? d->lease.times.deadline : 0;
}

int dlock_slot(const dlock *d)
{
    return d->phase == LOCK_HELD ? d->slot - 1 : -1;
}

int64_t dlock_min_hold_left(const dlock *d)
{
    if (d->phase != LOCK_HELD || lock_is_foreign(d) || (d->table->stays && d->table->stays(d->be)))
        return 0;
    return dlock_max(0, d->hold.until - now_of(d));
}

void dlock_end_min_hold(dlock *d)
{
    d->hold.until = 0;
}

void dlock_describe(const dlock *d, struct nested_hold *h)
{
    bool nested = d->table->caps & CAP_NESTED;
    *h = (struct nested_hold){
        .from = d->lease.sent,
        .ttl = d->lease.ttl,
        .raw_minus_boot = d->lease.times.raw_minus_boot,
        .end_at = dlock_min(d->lease.times.term_at, nested ? nested_end_at(d->be) : DLOCK_NEVER),
        .fence = d->fence,
        .mode = (int32_t)d->mode,
        .slots = d->slots,
        .slot = d->slot,
    };
}

uint64_t dlock_fence(const dlock *d)
{
    return d->fence;
}

const char *dlock_fence_text(const dlock *d)
{
    return d->fence_text;
}

void *dlock_user(const dlock *d)
{
    return d->opt.user;
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
    return d->table->inherit_fd && d->phase == LOCK_HELD ? d->table->inherit_fd(d->be) : -1;
}

int dlock_schema(const dlock *d, char **out, struct dlock_error *err)
{
    if (!d->table->schema)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, d->uri->where,
                             "nothing has to be made there beforehand");
    return d->table->schema(d->be, out, err);
}

int dlock_own_fds(const dlock *d, int fds[DLOCK_FDS_MAX])
{
    bool has = d->table->own_fds && d->phase == LOCK_HELD;
    return has ? d->table->own_fds(d->be, fds, DLOCK_FDS_MAX) : 0;
}

int dlock_session_fd(const dlock *d)
{
    return d->table->session_fd && d->phase == LOCK_HELD ? d->table->session_fd(d->be) : -1;
}
