/*
 * lock.c - a handle for one lock: the core between a backend's protocol and the caller. The policy
 * for all stores is here: the bounds on waiting and on first contact, the lease, the undoing of
 * unclear requests, retries.
 *
 * The handle goes from LOCK_IDLE through LOCK_RESOLVING (names to addresses; skipped when known) to
 * LOCK_ACQUIRING and LOCK_HELD, or to LOCK_ASKING, and through LOCK_RELEASING back to LOCK_IDLE.
 * After a failed first contact, if the options say so, LOCK_PAUSING leads to LOCK_RESOLVING again.
 * While the lock is held lease.c decides what the time demands; lock_process() carries that out.
 */
#include "lock.h"

#include "nested.h"
#include "util.h"

#include <errno.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * A backend bounds the first contact more exactly, and knows the cause of a failure: the core's
 * bound comes after the backend's, also where this process is scheduled late.
 */
#define CONTACT_SLACK (100 * DLOCK_MSEC)
#define UNUSABLE_MAX 3
#define RESOLVE_AGAIN (10 * DLOCK_SEC)
#define RETRY_BASE (100 * DLOCK_MSEC) /* pauses between tries of the first contact */
#define RETRY_MAX DLOCK_SEC
/* Ten years: a longer time must not overflow where a store counts in other units. */
#define LONGEST (3650 * 24 * 3600 * DLOCK_SEC)

/* --- clocks ----------------------------------------------------------------------------------- */

/*
 * The backend's clock. An event tells from which reading the lease counts: note the other clock
 * beside each reading.
 */
static int64_t noted_now(void *ctx)
{
    dlock *d = ctx;
    struct dlock_clocks now = dlock_clocks_read(d->head.env);
    lease_clocks_note(&d->clocks, now);
    return now.boot;
}

static int64_t noted_raw(void *ctx)
{
    const dlock *d = ctx;
    return d->head.env->raw(d->head.env->ctx);
}

static int noted_random(void *ctx, void *buf, size_t len)
{
    const dlock *d = ctx;
    return d->head.env->random(d->head.env->ctx, buf, len);
}

void lock_set_env(dlock *d, const struct dlock_env *env, int64_t ttl)
{
    d->head.env = env;
    d->noting_env = (struct dlock_env){noted_now, noted_raw, noted_random, d};
    d->spec.env = &d->noting_env;
    lease_clocks_init(&d->clocks, ttl);
}

static int64_t now_of(const dlock *d)
{
    return d->head.env->now(d->head.env->ctx);
}

/* The backend runs an operation, or holds the lock. */
static bool backend_works(const dlock *d)
{
    return d->phase != LOCK_IDLE && d->phase != LOCK_RESOLVING && d->phase != LOCK_PAUSING;
}

/* Call after each step of the lease and each change from or to LOCK_HELD. */
static void publish_end(dlock *d)
{
    struct dlock_clocks end = {0};
    if (d->phase == LOCK_HELD)
        end = lease_end(&d->lease);
    d->end_boot = end.boot;
    d->end_raw = end.raw;
}

/* --- opening ---------------------------------------------------------------------------------- */

static int usage(struct dlock_error *err, const char *text)
{
    return dlock_fail(err, DLOCK_EUSAGE, 0, "%s", text);
}

/* why: the backend's words, or NULL. */
static int unavailable(struct dlock_error *err, const char *what, const struct dlock_backend *be,
                       const char *why)
{
    return dlock_fail(err, DLOCK_EUSAGE, 0, "%s are not available for %s%s%s", what, be->name,
                      why ? ": " : "", why ? why : "");
}

static int check_options(const struct dlock_options *o, const struct dlock_backend *be,
                         struct dlock_error *err)
{
    bool slots = o->mode == DLOCK_MODE_SLOTS;
    if ((unsigned)o->mode > DLOCK_MODE_SLOTS || (unsigned)o->holder > DLOCK_HOLDER_NEVER)
        return usage(err, "mode or holder of struct dlock_options has no such value");
    if (o->mode == DLOCK_MODE_SHARED && !(be->caps & CAP_SHARED))
        return unavailable(err, "shared locks", be, NULL);
    if (slots && !(be->caps & CAP_SLOTS))
        return unavailable(err, "slots", be, be->no_slots);
    if (slots && (o->slots < 1 || o->slots > DLOCK_SLOTS_MAX))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "the number of slots must be from 1 to %d",
                          DLOCK_SLOTS_MAX);
    if (!slots && o->slots > 0)
        return usage(err, "slots of struct dlock_options needs the mode DLOCK_MODE_SLOTS");
    if (o->once_ns < 0)
        return usage(err, "the time of a run record must be greater than zero");
    if (o->once_ns > 0 && o->mode != DLOCK_MODE_EXCLUSIVE)
        return usage(err, "run records (once) are for exclusive locks");
    /* A nested dlock refuses later, once it is certain that the outer dlock holds the lock. */
    if (o->once_ns > 0 && !(be->caps & (CAP_ONCE | CAP_NESTED)))
        return unavailable(err, "run records (once)", be, be->no_once);
    if (o->min_hold_ns < 0)
        return usage(err, "a least hold must not be negative");
    if (o->fcntl && !(be->caps & CAP_FD))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "fcntl(2) locks are for files: not for %s",
                          be->name);
    if (o->wait_ns < 0)
        return usage(err, "wait_ns must not be negative (0: one try, DLOCK_NEVER: no limit)");
    if (o->connect_timeout_ns <= 0)
        return usage(err, "connect_timeout_ns must be greater than zero");
    /* Also for a file, which has no lease: its lock may move to another store. */
    if (o->ttl_ns < LEASE_MIN_TTL)
        return usage(err, "a ttl must be at least 1 s");
    if (o->grace_ns < -1)
        return usage(err, "a grace must not be negative");
    return 0;
}

static void set_spec(dlock *d, const struct dlock_options *o, const struct nested_outer *outer)
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
        /* Three tries fit between the first renewal and the second: a lost packet is harmless. */
        .op_timeout = dlock_min(o->connect_timeout_ns, dlock_max(UNDO_BRIEF, t.term_at / 6)),
        .identity = &d->identity,
        .holder = o->holder,
        .once = o->once_ns,
        .min_hold = o->min_hold_ns,
        .hold = &d->hold,
        .tls = dlock_registry_tls,
        .outer = outer,
    };
    lock_set_env(d, &dlock_env_system, o->ttl_ns);
}

static int open_backend(dlock *d, const struct dlock_options *from,
                        const struct nested_outer *outer, struct dlock_error *err)
{
    struct dlock_options *o = &d->opt;
    struct dlock_error why;
    int rc = dlock_options_read(o, from, err);
    if (rc < 0)
        return rc;
    o->ttl_ns = dlock_min(o->ttl_ns, LONGEST);
    o->grace_ns = dlock_min(o->grace_ns, LONGEST);
    o->connect_timeout_ns = dlock_min(o->connect_timeout_ns, LONGEST);
    o->once_ns = dlock_min(o->once_ns, LONGEST);
    o->min_hold_ns = dlock_min(o->min_hold_ns, LONGEST);
    if (!outer)
        d->table = dlock_registry_find(d->uri->scheme, &why);
    else if (dlock_registry_hold(d->uri->scheme) & CAP_FD)
        d->table = &dlock_nested_local;
    else
        d->table = &dlock_nested_lease;
    if (!d->table) {
        if (err)
            *err = why;
        return why.code;
    }
    rc = check_options(o, d->table, err);
    if (rc < 0)
        return rc;
    d->lease_cfg = (struct lease_config){
        .ttl = d->table->caps & CAP_LEASE ? o->ttl_ns : DLOCK_NEVER,
        .grace = o->grace_ns >= 0 ? o->grace_ns : lease_default_grace(o->ttl_ns),
        .lag = d->table->caps & CAP_LAG,
        .tells = d->table->caps & CAP_TELLS && o->mode == DLOCK_MODE_EXCLUSIVE,
        .follows = d->table->caps & CAP_NESTED,
        .default_grace = o->grace_ns < 0,
    };
    rc = lease_check(&d->lease_cfg, err);
    if (rc < 0)
        return rc;
    set_spec(d, o, outer);
    o->command = o->note = NULL; /* copied into d->identity */
    rc = d->table->open(&d->be, &d->spec, err);
    if (rc < 0)
        return rc;
    d->wait_until = d->contact_by = DLOCK_NEVER;
    if (outer) /* the outer dlock's backend has read the URI's parameters */
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
        d->head = (struct handle){.ops = &lock_ops, .owner = getpid()};
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

int dlock_open(dlock **out, const char *text, const struct dlock_options *o,
               struct dlock_error *err)
{
    struct dlock_uri *uri;
    if (!out || !text)
        return usage(err, "dlock_open() needs a URI, and a place for the handle");
    if (text[0] == '@')
        return usage(err, "dlock_open() needs a URI: dlock_default_uri() makes one of an @name; "
                          "a file of that name is ./@...");
    int rc = dlock_uri_parse(&uri, text, err);
    return rc < 0 ? rc : dlock_open_nested(out, &uri, NULL, o, err);
}

void lock_close(dlock *d)
{
    if (!d)
        return;
    if (handle_is_foreign(d)) {
        if (d->be && d->table->close_in_child)
            d->table->close_in_child(d->be);
        dlock_resolver_close_in_child(d->names.resolver);
    } else {
        if (d->be)
            d->table->close(d->be);
        dlock_resolver_free(d->names.resolver);
    }
    poller_close(d->head.poller);
    free(d->names.peers);
    dlock_uri_free(d->uri);
    free(d);
}

/* --- reports and requests --------------------------------------------------------------------- */

/* At most one report waits: an event or a step of the lease brings no more. */
static struct dlock_report *report(dlock *d, enum dlock_report_type type)
{
    d->report = (struct dlock_report){
        .type = type, .times = d->lease.times, .fence = d->fence, .token = d->token, .lock = d};
    return &d->report;
}

int64_t lock_retry_at(const struct dlock_error *why, struct dlock_backoff *pause,
                      const struct dlock_env *env)
{
    /* As a lack of memory passes. */
    bool no_fds = why->code == DLOCK_EOS && (why->sys == EMFILE || why->sys == ENFILE);
    if (!no_fds && !dlock_error_retryable(why->code))
        return DLOCK_NEVER;
    return env->now(env->ctx) + dlock_backoff_next(pause, env);
}

static void report_failed(dlock *d)
{
    struct dlock_report *r = report(d, DLOCK_REPORT_FAILED);
    r->error = d->why;
    if (!dlock_is_local(d) && (d->why.code == DLOCK_EUNAVAIL || d->why.code == DLOCK_EPROTO))
        dlock_error_add_lock(&r->error, d->uri);
    r->retry_at = lock_retry_at(&d->why, &d->failures, d->head.env);
    d->phase = LOCK_IDLE;
}

/* May the store answer later? Only a network failure passes. */
static bool may_retry(const dlock *d)
{
    bool waits = d->opt.retry || d->contacted || d->begins_again;
    return d->want == LOCK_ACQUIRING && d->opt.wait_ns != 0 && waits && d->unanswered &&
           d->why.code == DLOCK_EUNAVAIL;
}

/* An outage during the wait, for d->why: reported once, until the store answers. */
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

/* The first contact has failed for d->why, and nothing is left of it in the store. */
static void pause_contact(dlock *d)
{
    int64_t now = now_of(d);
    d->phase = LOCK_PAUSING;
    d->retry_at = now + dlock_backoff_next(&d->retry_pause, d->head.env);
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

static bool asks_in_steps(const dlock *d)
{
    return d->phase == LOCK_ASKING && ask_in_steps(d->question.what);
}

/* The addresses are known: begin the acquire or the query. */
static void ask_backend(dlock *d)
{
    d->phase = d->want;
    if (asks_in_steps(d)) {
        ask_start(&d->ask, d->table, d->be, d->uri, &d->question,
                  dlock_after(now_of(d), d->opt.connect_timeout_ns));
        return;
    }
    if (d->phase == LOCK_ASKING) {
        d->table->ask(d->be, &d->question);
        return;
    }
    d->unanswered = true;
    d->end.code = 0;
    d->broken = false;
    d->fence = 0;
    d->fence_text[0] = '\0';
    d->slot = 0;
    d->hold = (struct dlock_hold){.status = -1};
    if (d->head.in_set && d->spec.once > 0)
        d->hold.begin = RUN_LATER;
    d->token[0] = '\0';
    lease_acquire(&d->lease, &d->lease_cfg);
    dlock_identity_begin(&d->identity);
    d->table->acquire(d->be, d->opt.wait_ns != 0);
}

/* --- names ------------------------------------------------------------------------------------ */

/* A look-up is under way: take the addresses that it has found. */
static void check_resolver(dlock *d)
{
    /* A name server that is silent about one host must not cost the others. */
    bool partly = d->phase == LOCK_RESOLVING && now_of(d) >= d->names.partly_at;
    struct dlock_peer *peers = d->names.peers;
    struct dlock_error why;
    int rc = dlock_resolver_result(&d->names.resolver, partly, &peers, &d->spec.npeers, &why);
    if (!d->names.resolver)
        d->names.resolved_at = now_of(d);
    if (rc > 0) {
        free(d->names.peers);
        d->spec.peers = d->names.peers = peers;
    }
    if (rc == 0 || d->phase != LOCK_RESOLVING)
        return; /* a look-up beside a reconnect: if it failed, the old addresses stay */
    if (rc > 0) {
        ask_backend(d);
    } else {
        d->why = why;
        contact_failed(d);
    }
}

/* An inner dlock does not contact the URI's hosts. */
static bool has_hosts(const dlock *d)
{
    return d->uri->nhosts > 0 && !(d->table->caps & CAP_NESTED);
}

/* The store may have moved: look its names up again, and go on with the known addresses. */
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

static void begin(dlock *d, enum lock_phase want)
{
    d->want = want;
    d->asked_at = now_of(d);
    d->contacted = false;
    d->unanswered = true;
    d->away_since = d->back_since = 0;
    d->retry_pause = (struct dlock_backoff){.base = RETRY_BASE, .max = RETRY_MAX};
    contact(d);
}

void lock_start_acquire(dlock *d)
{
    int64_t wait = d->opt.wait_ns;
    d->wait_until = wait == 0 ? DLOCK_NEVER : dlock_after(now_of(d), wait);
    d->unusable = 0;
    begin(d, LOCK_ACQUIRING);
}

void lock_start_renew(dlock *d)
{
    lease_renew_now(&d->lease, now_of(d));
}

bool lock_begin_run(dlock *d)
{
    if (d->hold.begin == RUN_BEGINS)
        return true;
    if (d->hold.begin == RUN_NOW || d->lease.renewing) /* a renewal sent before records nothing */
        return false;
    d->hold.begin = RUN_NOW;
    if (d->table->caps & CAP_LEASE)
        lock_start_renew(d);
    else
        d->table->renew(d->be);
    return false;
}

static void start_asking(dlock *d, enum dlock_ask what, bool force)
{
    d->question = (struct dlock_question){
        .what = what, .token = d->record, .holder = &d->holder, .force = force};
    d->wait_until = DLOCK_NEVER;
    handle_kick(d);
    begin(d, LOCK_ASKING);
}

/* Release or undo; then_ says what follows the backend's EV_RELEASED. */
static void release_then(dlock *d, enum lock_then then_, int64_t until)
{
    d->then = then_;
    if (d->phase == LOCK_ACQUIRING)
        d->hold.until = 0; /* no work was done under the lock */
    d->phase = LOCK_RELEASING;
    d->was_lost = d->lease.state >= LEASE_LOST;
    lease_release(&d->lease);
    publish_end(d); /* before another holder is possible */
    d->table->release(d->be, until);
}

void lock_start_release(dlock *d, int64_t until)
{
    d->back_since = 0; /* a report that waits is void */
    if (backend_works(d)) {
        d->report.type = DLOCK_REPORT_NONE;
        release_then(d, THEN_RELEASED, until);
    } else if (d->report.type != DLOCK_REPORT_RELEASED) {
        d->phase = LOCK_IDLE;
        report(d, DLOCK_REPORT_RELEASED)->how = DLOCK_RELEASE_NOTHING;
    }
}

/* --- what happens ----------------------------------------------------------------------------- */

/* d->why: the try has failed. again: try once more, if the options and the failure allow it. */
static void try_failed(dlock *d, bool again)
{
    if (backend_works(d))
        release_then(d, again && may_retry(d) ? THEN_RETRY : THEN_FAILED,
                     lock_undo_until(now_of(d), d->wait_until));
    else if (again)
        contact_failed(d);
    else
        report_failed(d);
}

/* Granted too late to be used: give the lock back, and queue again if the caller waits. */
static void give_back_late(dlock *d)
{
    bool again = d->opt.wait_ns != 0 && ++d->unusable < UNUSABLE_MAX;
    dlock_fail_at(&d->why, DLOCK_EUNAVAIL, 0, d->uri->where,
                  "the lock '%s' was granted too late to be used: the store is slow, or this "
                  "machine was stopped; a longer ttl helps",
                  d->uri->name);
    release_then(d, again ? THEN_AGAIN : THEN_FAILED, lock_undo_until(now_of(d), d->wait_until));
}

/*
 * Why the lease is not renewed: the store's last words; else this process is late itself, or the
 * store is silent.
 */
static void say_why(const dlock *d, struct dlock_error *err)
{
    const struct lease *l = &d->lease;
    int64_t now = now_of(d), late = d->lease_due > 0 ? now - d->lease_due : 0;
    char text[32];
    if (d->why.code != 0)
        *err = d->why;
    else if (late > (l->times.term_at - l->sent) / 12)
        dlock_fail(err, DLOCK_EUNAVAIL, 0,
                   "this process did not run for %s: it was stopped, or the machine was asleep or "
                   "overloaded",
                   dlock_format_duration(late, text, sizeof(text)));
    else if (l->renewing)
        dlock_fail(err, DLOCK_EUNAVAIL, 0, "no answer within %s",
                   dlock_format_duration(now - l->asked, text, sizeof(text)));
    else if (d->end.code != 0) /* renewed again, but after TERM: the cause of TERM stays */
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
    r->broken = d->broken;
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

/* ev: from the backend, or NULL. */
static enum lease_do lease_moves(dlock *d, const struct dlock_event *ev)
{
    enum lease_do todo = lease_step(&d->lease, dlock_clocks_read(d->head.env), ev);
    lease_action(d, todo);
    publish_end(d);
    return todo;
}

/* An earlier waiter keeps a reader from joining readers and slots. Files have no order. */
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
    case THEN_RELEASED:
        report(d, DLOCK_REPORT_RELEASED)->how = ev->how;
        dlock_error_cause(&d->report.error, &ev->error, d->uri->where);
        /* The lease has ended by itself meanwhile: this says nothing about the run. */
        if (ev->how == DLOCK_RELEASE_NOT_OURS && d->table->caps & CAP_LEASE && !d->was_lost &&
            now_of(d) >= d->lease.times.deadline) {
            d->report.how = DLOCK_RELEASE_UNCLEAR;
            dlock_fail(&d->report.error, DLOCK_EUNAVAIL, 0,
                       "the answer came after the end of the lease");
        }
        break;
    }
}

/* The acquire waits, also through an outage: the store has answered before. */
static bool waits(const dlock *d)
{
    return d->phase == LOCK_ACQUIRING && d->contacted && d->opt.wait_ns != 0;
}

static void on_granted(dlock *d, const struct dlock_event *ev)
{
    bool nested = d->spec.outer;
    d->fence = ev->fence;
    if (d->fence > 0)
        snprintf(d->fence_text, sizeof(d->fence_text), "%" PRIu64, d->fence);
    d->slot = ev->slot;
    d->mode = nested ? ev->mode : d->spec.mode;
    d->slots = nested ? ev->slots : d->spec.slots;
    if (d->spec.min_hold > 0)
        d->hold.until = now_of(d) + dlock_min(d->spec.min_hold, DLOCK_NEVER - 1 - now_of(d));
    memcpy(d->token, ev->token, sizeof(d->token));
    d->why.code = 0;
}

/* Of a question (LOCK_ASKING). */
static void on_answer(dlock *d, const struct dlock_event *ev)
{
    answered(d);
    if (ev->type == EV_INFO) {
        report(d, DLOCK_REPORT_INFO)->info = ev->info;
    } else if (ev->type == EV_RUN) {
        report(d, DLOCK_REPORT_RUN)->run = ev->run;
        d->report.crashed = ev->crashed;
    } else if (ev->type == EV_ENTRY && fnmatch(d->uri->name, ev->entry->name, 0) == 0) {
        report(d, DLOCK_REPORT_ENTRY)->entry = ev->entry;
    } else if (ev->type == EV_FINDING) {
        report(d, DLOCK_REPORT_FINDING)->finding = ev->finding;
        d->report.error = ev->error;
    } else if (ev->type == EV_DONE) {
        d->phase = LOCK_IDLE;
        report(d, DLOCK_REPORT_DONE)->error = ev->error;
        d->report.broken = ev->broken;
    }
}

static void on_event(dlock *d, const struct dlock_event *ev)
{
    bool again;
    switch (ev->type) {
    case EV_WAITING:
    case EV_BUSY:
        answered(d);
        d->have_holder = ev->info;
        if (ev->info)
            d->holder = *ev->info;
        if (ev->type == EV_BUSY)
            d->phase = LOCK_IDLE;
        report_holder(d, ev->type == EV_BUSY ? DLOCK_REPORT_BUSY : DLOCK_REPORT_WAITING);
        d->report.place = ev->place;
        break;
    case EV_GRANTED:
        answered(d);
        on_granted(d, ev);
        break;
    case EV_SKIPPED:
        answered(d);
        d->phase = LOCK_IDLE;
        report(d, DLOCK_REPORT_SKIPPED)->run = ev->run;
        break;
    case EV_INFO:
    case EV_RUN:
    case EV_ENTRY:
    case EV_FINDING:
    case EV_DONE:
        on_answer(d, ev);
        break;
    case EV_FAILED:
        d->why = ev->error;
        try_failed(d, true);
        break;
    case EV_RELEASED:
        on_released(d, ev);
        break;
    case EV_NOTICE:
        report(d, DLOCK_REPORT_NOTICE)->error = ev->error;
        if (d->phase == LOCK_ACQUIRING)
            resolve_again(d);
        break;
    case EV_RENEWED:
        if (waits(d)) /* granted, but late: this renewal comes before the start */
            answered(d);
        if (ev->error.code != 0 && !ev->broken)
            resolve_again(d);
        if (d->hold.begin == RUN_NOW)
            d->hold.begin = RUN_BEGINS;
        d->why.code = 0;
        if (ev->broken) {
            dlock_error_cause(&d->why, &ev->error, d->uri->where);
            d->broken = true;
            d->hold.until = 0; /* who breaks a hold does not want the rest of its --min-hold */
        }
        break;
    case EV_LOST:
        dlock_error_cause(&d->why, &ev->error, d->uri->where);
        break;
    case EV_UNCLEAR:
        dlock_error_cause(&d->why, &ev->error, d->uri->where);
        resolve_again(d);
        again = (d->table->caps & CAP_LEASE) && dlock_error_retryable(ev->error.code);
        if (d->hold.begin == RUN_NOW && !again) /* no renewal can record that the run begins */
            report(d, DLOCK_REPORT_FAILED)->error = ev->error;
        break;
    case EV_AWAY:
        resolve_again(d);
        if (waits(d)) {
            d->why = ev->error;
            away(d, now_of(d));
        }
        break;
    case EV_BACK:
        if (waits(d) || d->phase == LOCK_ASKING)
            answered(d);
        break;
    default: /* EV_CHANGED is the lease's; EV_READ and EV_STEPPED are for ask.c */
        break;
    }
}

static void no_answer(const dlock *d, int64_t waited, struct dlock_error *err)
{
    char text[32];
    const char *to = d->phase == LOCK_RESOLVING ? " to the name look-up" : "";
    const struct dlock_error *said =
        d->phase == LOCK_ACQUIRING && d->table->refusal ? d->table->refusal(d->be) : NULL;
    if (said && said->code != 0)
        *err = *said;
    else
        dlock_fail_lock(err, DLOCK_EUNAVAIL, 0, d->uri, "no answer within %s%s",
                        dlock_format_duration(waited, text, sizeof(text)), to);
}

bool lock_unanswered(const dlock *d, int64_t waited, struct dlock_error *err)
{
    char lasted[32], rest[sizeof(d->why.msg) / 2];
    if (d->away_since == 0 && !d->contacted)
        no_answer(d, waited, err);
    if (d->away_since == 0)
        return !d->contacted;
    /*
     * d->why is the latest failure of the outage: add how long the outage has lasted, and the lock.
     * A cause that is too long loses its end.
     */
    int64_t ns = now_of(d) - d->away_since, shown = ns < DLOCK_SEC ? DLOCK_MSEC : 100 * DLOCK_MSEC;
    dlock_format_duration(ns / shown * shown, lasted, sizeof(lasted));
    int len = snprintf(rest, sizeof(rest), "; no answer for %s (lock '%s')", lasted, d->uri->name);
    int room = (int)sizeof(d->why.msg) - 1 - (int)dlock_min(len, (int)sizeof(rest) - 1);
    int end = (int)dlock_min(room, d->why.cause_at + d->why.cause_len);
    dlock_fail(err, DLOCK_EUNAVAIL, d->why.sys, "%.*s%s", end, d->why.msg, rest);
    return true;
}

/* Does an acquire or a query await an answer, which -w and --connect-timeout bound? */
static bool trying(const dlock *d)
{
    return d->phase == LOCK_RESOLVING || d->phase == LOCK_PAUSING || d->phase == LOCK_ACQUIRING ||
           d->phase == LOCK_ASKING;
}

static void on_time(dlock *d)
{
    int64_t now = now_of(d);
    if (!trying(d))
        return;
    if (now >= d->wait_until && lock_unanswered(d, d->opt.wait_ns, &d->why)) {
        try_failed(d, false);
    } else if (now >= d->wait_until) {
        /* For the report, look for the holder where no event has named one. */
        if (d->table->look && d->opt.holder != DLOCK_HOLDER_NEVER)
            d->have_holder = d->table->look(d->be, &d->holder);
        release_then(d, THEN_BUSY, now + UNDO_BRIEF);
    } else if (d->phase == LOCK_PAUSING) {
        if (now < d->retry_at)
            return;
        contact(d);
        if (d->phase == LOCK_ACQUIRING)
            resolve_again(d); /* for the next try: this one has the old addresses */
    } else if (now >= d->contact_by && !d->contacted) {
        no_answer(d, d->opt.connect_timeout_ns, &d->why);
        try_failed(d, true);
    }
}

/* --- the loop --------------------------------------------------------------------------------- */

static bool report_waits(const dlock *d)
{
    return d->say_ignored || d->back_since != 0 || d->report.type != DLOCK_REPORT_NONE;
}

int lock_interest(dlock *d, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    int n = 0;
    *wake_at = d->lease_due = lease_wake(&d->lease, dlock_clocks_read(d->head.env));
    if (trying(d))
        *wake_at = dlock_min(*wake_at,
                             dlock_min(d->wait_until, d->contacted ? DLOCK_NEVER : d->contact_by));
    if (d->phase == LOCK_PAUSING)
        *wake_at = dlock_min(*wake_at, d->retry_at);
    if (report_waits(d))
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
    if (backend_works(d))
        n += d->table->interest(d->be, pfd + n, cap - n, wake_at);
    if (asks_in_steps(d) && ask_ready(&d->ask))
        *wake_at = 0;
    return n;
}

/*
 * Before all other reports, once for a handle: the parameters in the URI that only other clients of
 * the store use. The event that ends an outage may bring a report, which follows RECOVERED.
 */
static const struct dlock_report *take_report(dlock *d)
{
    d->given = (struct dlock_report){.token = d->token, .lock = d};
    if (d->say_ignored) {
        char names[256];
        d->say_ignored = false;
        dlock_uri_ignored(d->uri, names, sizeof(names));
        d->given.type = DLOCK_REPORT_NOTICE;
        dlock_fail_at(&d->given.error, DLOCK_OK, 0, d->uri->where,
                      "ignored the parameters of other programs: %s", names);
    } else if (d->back_since != 0) {
        d->given.type = DLOCK_REPORT_RECOVERED;
        d->given.since = d->back_since;
        d->back_since = 0;
    } else {
        d->given = d->report;
        d->report.type = DLOCK_REPORT_NONE;
    }
    return &d->given;
}

/*
 * The lease goes first: what the time has decided (an end, a renewal) must not wait for the store's
 * events.
 */
const struct dlock_report *lock_process(dlock *d, const struct pollfd *pfd, int n)
{
    for (;;) {
        if (report_waits(d))
            return take_report(d);
        if (d->names.resolver) {
            check_resolver(d);
            if (!d->names.resolver)
                n = 0; /* the backend may have opened a descriptor under the number just closed */
        }
        on_time(d);
        enum lease_do todo = lease_moves(d, NULL);
        if (todo != LEASE_NOTHING || d->report.type != DLOCK_REPORT_NONE)
            continue;
        if (!backend_works(d))
            return NULL;
        struct dlock_event ev = {0};
        int got = asks_in_steps(d) ? ask_process(&d->ask, pfd, n, &ev)
                                   : d->table->process(d->be, pfd, n, &ev);
        pfd = NULL;
        n = 0;
        if (!got)
            return NULL;
        on_event(d, &ev);
        if (ev.type != EV_GRANTED && ev.type != EV_RENEWED && ev.type != EV_UNCLEAR &&
            ev.type != EV_AWAY && ev.type != EV_CHANGED && ev.type != EV_LOST)
            continue;
        if (!(d->table->caps & CAP_NESTED))
            ev.raw_minus_boot = lease_clocks_difference(&d->clocks, ev.from);
        (void)lease_moves(d, &ev);
    }
}

/* --- the operations of a handle --------------------------------------------------------------- */

bool lock_is_ending(const dlock *d)
{
    return d->phase == LOCK_HELD && d->lease.state >= LEASE_ENDING;
}

bool lock_end_waits(const struct dlock_report *r)
{
    return r->type == DLOCK_REPORT_ACQUIRED || r->type == DLOCK_REPORT_BUSY ||
           r->type == DLOCK_REPORT_SKIPPED || r->type == DLOCK_REPORT_FAILED ||
           r->type == DLOCK_REPORT_DONE;
}

enum dlock_state lock_state(const dlock *d)
{
    bool undoing = d->phase == LOCK_RELEASING && d->then != THEN_RELEASED;
    if (d->report.type == DLOCK_REPORT_RELEASED)
        return DLOCK_STATE_RELEASING;
    if (undoing || lock_end_waits(&d->report) || trying(d))
        return d->want == LOCK_ASKING ? DLOCK_STATE_ASKING : DLOCK_STATE_ACQUIRING;
    if (d->phase == LOCK_HELD)
        return d->lease.state >= LEASE_LOST ? DLOCK_STATE_LOST : DLOCK_STATE_HELD;
    return d->phase == LOCK_RELEASING ? DLOCK_STATE_RELEASING : DLOCK_STATE_IDLE;
}

/* Any thread may ask. */
static struct dlock_clocks lock_end(const dlock *d)
{
    return (struct dlock_clocks){.boot = d->end_boot, .raw = d->end_raw};
}

static dlock *lock_at(const dlock *d, int i)
{
    return i == 0 ? (dlock *)d : NULL;
}

const struct handle_ops lock_ops = {
    .state = lock_state,
    .start_acquire = lock_start_acquire,
    .start_release = lock_start_release,
    .start_renew = lock_start_renew,
    .interest = lock_interest,
    .process = lock_process,
    .end = lock_end,
    .at = lock_at,
    .close = lock_close,
};

/* --- queries ---------------------------------------------------------------------------------- */

static bool is_set(const dlock *d)
{
    return handle_of(d)->ops != &lock_ops;
}

static int expect_lock(const dlock *d, const char *call, struct dlock_error *err)
{
    if (!is_set(d))
        return 0;
    return dlock_fail(err, DLOCK_EUSAGE, 0, "%s: not possible for a set of locks", call);
}

/* 0 for a lock in this state, outside of a set. */
static int expect(const dlock *d, enum dlock_state state, const char *what, struct dlock_error *err)
{
    int rc = expect_lock(d, what, err);
    return rc < 0 ? rc : handle_expect(d, state, state, what, err);
}

int dlock_start_status(dlock *d, struct dlock_error *err)
{
    int rc = expect(d, DLOCK_STATE_IDLE, "dlock_start_status()", err);
    if (rc == 0)
        start_asking(d, ASK_STATUS, false);
    return rc;
}

int dlock_start_forget(dlock *d, const char *token, struct dlock_error *err)
{
    int rc = expect(d, DLOCK_STATE_IDLE, "dlock_start_forget()", err);
    if (rc < 0)
        return rc;
    if (!token || !token[0] || strlen(token) > DLOCK_TOKEN_LEN)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "dlock_start_forget() needs the token of a record");
    snprintf(d->record, sizeof(d->record), "%s", token);
    start_asking(d, ASK_FORGET, false);
    return 0;
}

int dlock_start_break(dlock *d, const struct dlock_info *holder, bool force,
                      struct dlock_error *err)
{
    int rc = expect(d, DLOCK_STATE_IDLE, "dlock_start_break()", err);
    if (rc < 0)
        return rc;
    if (!holder || holder->waiter)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "dlock_start_break() needs a holder");
    d->holder = *holder;
    start_asking(d, ASK_BREAK, force);
    return 0;
}

void dlock_begin_list(dlock *d, bool all)
{
    start_asking(d, ASK_LIST, false);
    d->question.all = all;
}

int dlock_start_list(dlock *d, struct dlock_error *err)
{
    int rc = expect(d, DLOCK_STATE_IDLE, "dlock_start_list()", err);
    if (rc == 0)
        dlock_begin_list(d, false);
    return rc;
}

int dlock_start_check(dlock *d, struct dlock_error *err)
{
    int rc = expect(d, DLOCK_STATE_IDLE, "dlock_start_check()", err);
    if (rc == 0)
        start_asking(d, ASK_CHECK, false);
    return rc;
}

/* --- what is known ---------------------------------------------------------------------------- */

int dlock_note_result(dlock *d, bool success, int status, struct dlock_error *err)
{
    dlock *lk;
    int rc = handle_expect_state(d, DLOCK_STATE_HELD, DLOCK_STATE_LOST, "dlock_note_result()", err);
    if (rc < 0)
        return rc;
    if (status < -1 || status > 255)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "dlock_note_result(): a status is from -1 to 255");
    for (int i = 0; (lk = dlock_at(d, i)); i++) {
        if (is_set(d) && lk->spec.once == 0)
            continue;
        lk->hold.ended = true;
        lk->hold.success = success;
        lk->hold.status = status;
    }
    return 0;
}

static int64_t min_hold_left(const dlock *d)
{
    if (d->phase != LOCK_HELD || (d->table->stays && d->table->stays(d->be)))
        return 0;
    return dlock_max(0, d->hold.until - now_of(d));
}

int64_t dlock_min_hold_left(const dlock *d)
{
    const dlock *lk;
    int64_t left = 0;
    for (int i = 0; !handle_is_foreign(d) && (lk = dlock_at(d, i)); i++)
        left = dlock_max(left, min_hold_left(lk));
    return left;
}

void dlock_end_min_hold(dlock *d)
{
    dlock *lk;
    for (int i = 0; (lk = dlock_at(d, i)); i++)
        lk->hold.until = 0;
}

int dlock_slot(const dlock *d)
{
    return !is_set(d) && d->phase == LOCK_HELD ? d->slot - 1 : -1;
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
    return is_set(d) ? 0 : d->fence;
}

const char *dlock_fence_text(const dlock *d)
{
    return is_set(d) ? "" : d->fence_text;
}

void *dlock_user(const dlock *d)
{
    return is_set(d) ? NULL : d->opt.user;
}

const char *dlock_token(const dlock *d)
{
    return is_set(d) ? "" : d->token;
}

const char *dlock_name(const dlock *d)
{
    return is_set(d) ? "" : d->uri->name;
}

const char *dlock_where(const dlock *d)
{
    return is_set(d) ? "" : d->uri->where;
}

const struct dlock_uri *dlock_uri_of(const dlock *d)
{
    return d->uri;
}

const char *dlock_backend_name(const dlock *d)
{
    return is_set(d) ? "" : d->table->name;
}

bool dlock_is_local(const dlock *d)
{
    return !is_set(d) && (d->table->caps & CAP_FD);
}

int dlock_fd(const dlock *d)
{
    bool has = !is_set(d) && d->table->inherit_fd && d->phase == LOCK_HELD;
    return has ? d->table->inherit_fd(d->be, true) : -1;
}

int dlock_schema(const dlock *d, char **out, struct dlock_error *err)
{
    int rc = expect_lock(d, "dlock_schema()", err);
    if (rc < 0)
        return rc;
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
    bool has = !is_set(d) && d->table->session_fd && d->phase == LOCK_HELD;
    return has ? d->table->session_fd(d->be) : -1;
}
