/*
 * lockset.c - a handle for several locks: all or none.
 *
 * Each lock has a handle of its own (lock.c), with its own lease. All processes take the locks of a
 * set in the same order. The set drives all its locks: held locks are renewed during the wait for
 * the next lock. The lease of the set ends with the first lease of a lock.
 *
 * A set goes from SET_IDLE through SET_ACQUIRING to SET_HELD, and through SET_RELEASING back to
 * SET_IDLE. An acquire that makes no progress, or loses a lock, goes through SET_RELEASING and
 * SET_PAUSING to SET_ACQUIRING again.
 */
#include "lock.h"

#include "nested.h"
#include "util.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How long a set with held locks waits for the next lock: two sets may wait for each other. */
#define NO_PROGRESS (10 * DLOCK_SEC)
/* The pause before a set begins again: random, so that one of two sets comes first. */
#define AGAIN_BASE (100 * DLOCK_MSEC)
#define AGAIN_MAX DLOCK_SEC

enum set_phase { SET_IDLE, SET_ACQUIRING, SET_PAUSING, SET_HELD, SET_RELEASING };

/* A dlock of dlock.h: see set_of(). */
struct lockset {
    struct handle head;
    dlock *at[DLOCK_SET_MAX];     /* in the order in which the locks are taken */
    dlock *opened[DLOCK_SET_MAX]; /* in the order of dlock_open_set() */
    int n;
    int next; /* while acquiring: the lock waited for; all locks before are held */
    int64_t wait_ns, wait_until;
    _Atomic enum set_phase phase; /* any thread may call dlock_time_left() */
    int64_t give_up_at; /* while acquiring: without progress until then the locks are given back */
    int64_t again_at;   /* SET_PAUSING */
    struct dlock_backoff again_pause;
    struct dlock_backoff failures; /* pauses between failing acquires: dlock_report.retry_at */

    /*
     * SET_RELEASING: the report that follows; type NONE: another acquire, after a pause. how: of
     * RELEASED, the worst so far.
     */
    struct dlock_report end;
    int64_t release_until;
    struct dlock_run run; /* end.run */

    struct dlock_report report; /* to be given next; NONE: none */
    struct dlock_report given;  /* the last one given */
};

static struct lockset *set_of(const dlock *d)
{
    return (struct lockset *)d;
}

static int64_t now_of(const struct lockset *s)
{
    return s->head.env->now(s->head.env->ctx);
}

/* --- reports ---------------------------------------------------------------------------------- */

static struct dlock_report report_of(enum dlock_report_type type, const dlock *which)
{
    return (struct dlock_report){.type = type,
                                 .lock = which,
                                 .token = which ? which->token : "",
                                 .fence = which ? which->fence : 0};
}

/*
 * The earliest of each time. raw_minus_boot is the least of all locks: so by the second clock, too,
 * each time passes no later than the time of its own lock.
 */
static struct dlock_times earliest(const struct lockset *s)
{
    struct dlock_times t = s->at[0]->lease.times;
    for (int i = 1; i < s->n; i++) {
        const struct dlock_times *m = &s->at[i]->lease.times;
        t.renew_at = dlock_min(t.renew_at, m->renew_at);
        t.term_at = dlock_min(t.term_at, m->term_at);
        t.kill_at = dlock_min(t.kill_at, m->kill_at);
        t.deadline = dlock_min(t.deadline, m->deadline);
        t.raw_minus_boot = dlock_min(t.raw_minus_boot, m->raw_minus_boot);
    }
    return t;
}

/* --- giving back ------------------------------------------------------------------------------ */

static bool is_unreleased(const dlock *lk)
{
    enum dlock_state is = lock_state(lk);
    return is == DLOCK_STATE_HELD || is == DLOCK_STATE_LOST;
}

/*
 * The release of a lock that records a success is held back until the other locks are released: one
 * of them may turn out to be lost, and then the run has failed. True: a release is under way, or
 * those held back have begun now.
 */
static bool release_goes_on(struct lockset *s)
{
    bool any = false;
    for (int i = 0; i < s->n; i++)
        if (lock_state(s->at[i]) != DLOCK_STATE_IDLE && !is_unreleased(s->at[i]))
            return true;
    for (int i = s->n - 1; i >= 0; i--)
        if (is_unreleased(s->at[i])) {
            lock_start_release(s->at[i], s->release_until);
            any = true;
        }
    return any;
}

/*
 * Release from the lock taken last to the first, all at once: a silent store must not cost the
 * other locks. Before a record, the others get half of the time. end: the report that follows.
 */
static void release_all(struct lockset *s, struct dlock_report end, int64_t until)
{
    bool unused = s->phase == SET_ACQUIRING; /* no work was done under the held locks */
    /* A lock that is released already has reported how. */
    end.how = s->phase == SET_RELEASING ? s->end.how : DLOCK_RELEASE_NOTHING;
    s->end = end;
    s->phase = SET_RELEASING;
    s->release_until = until;
    bool records = false;
    for (int i = 0; i < s->n; i++)
        records = records || (is_unreleased(s->at[i]) && s->at[i]->hold.success);
    if (records && until != DLOCK_NEVER)
        until -= dlock_max(0, until - now_of(s)) / 2;
    for (int i = s->n - 1; i >= 0; i--) {
        if (unused)
            dlock_end_min_hold(s->at[i]);
        if (!is_unreleased(s->at[i]) || !s->at[i]->hold.success)
            lock_start_release(s->at[i], until);
    }
    release_goes_on(s);
}

/* The acquire ends, or begins again, with this report once all locks are given back. */
static void give_back(struct lockset *s, struct dlock_report end)
{
    release_all(s, end, lock_undo_until(now_of(s), s->wait_until));
}

static struct dlock_report failed(struct lockset *s, const dlock *which,
                                  const struct dlock_error *why)
{
    struct dlock_report r = report_of(DLOCK_REPORT_FAILED, which);
    r.error = *why;
    r.retry_at = lock_retry_at(why, &s->failures, s->head.env);
    return r;
}

static void give_back_failed(struct lockset *s, const dlock *which, const struct dlock_error *why)
{
    give_back(s, failed(s, which, why));
}

/* The held locks cannot be kept, because of which: begin again later, if the caller waits. */
static void begin_again(struct lockset *s, const dlock *which, bool lost)
{
    const char *what = lost ? "was lost before the others were held"
                            : "was not free for 10 s while others were held";
    struct dlock_report again = report_of(DLOCK_REPORT_NONE, which);
    /* The failure, should the wait end in the pause; none: the lock is busy. */
    if (lost)
        dlock_fail_at(&again.error, DLOCK_EUNAVAIL, 0, dlock_where(which),
                      "the lock '%s' %s: all are given back", dlock_name(which), what);
    else
        (void)lock_unanswered(which, NO_PROGRESS, &again.error);
    if (s->wait_ns == 0) {
        give_back_failed(s, which, &again.error);
        return;
    }
    /* The wait goes on, and rides out an outage of a store reached before. */
    for (int i = 0; i < s->n; i++)
        s->at[i]->begins_again |= s->at[i]->contacted;
    give_back(s, again);
    s->report = report_of(DLOCK_REPORT_NOTICE, which);
    dlock_fail_at(&s->report.error, DLOCK_OK, 0, dlock_where(which),
                  "the lock '%s' %s: all are given back and taken again", dlock_name(which), what);
}

static struct dlock_report busy(const dlock *which)
{
    struct dlock_report r = report_of(DLOCK_REPORT_BUSY, which);
    r.info = which->have_holder ? &which->holder : NULL;
    r.kept = lock_kept(which);
    return r;
}

/* --- taking ----------------------------------------------------------------------------------- */

/* Two names mean one lock: the set would wait for itself. */
static void refuse_alias(struct lockset *s, const dlock *lk, const dlock *held)
{
    struct dlock_error why;
    dlock_fail_lock(&why, DLOCK_EUSAGE, 0, lk->uri,
                    "this is the same lock as %s (lock '%s'): name it once", dlock_where(held),
                    dlock_name(held));
    give_back_failed(s, lk, &why);
}

/* Ask for the next lock. -w bounds the set: the handle gets the rest of that time. */
static void take_next(struct lockset *s)
{
    dlock *lk = s->at[s->next];
    int64_t now = now_of(s);
    for (int i = 0; lk->table->is_file && i < s->next; i++) {
        const dlock *held = s->at[i];
        int fd = held->table->inherit_fd ? held->table->inherit_fd(held->be, false) : -1;
        if (fd >= 0 && lk->table->is_file(lk->be, fd)) {
            refuse_alias(s, lk, held);
            return;
        }
    }
    if (s->wait_ns == 0 || s->wait_until == DLOCK_NEVER)
        lk->opt.wait_ns = s->wait_ns;
    else
        lk->opt.wait_ns = dlock_max(1, s->wait_until - now);
    s->give_up_at = s->next > 0 && s->wait_ns != 0 ? now + NO_PROGRESS : DLOCK_NEVER;
    lock_start_acquire(lk);
}

static void take_first(struct lockset *s)
{
    s->phase = SET_ACQUIRING;
    s->next = 0;
    take_next(s);
}

/*
 * The held lock with this holder; NULL: none. Stores without tokens: this process is the holder, by
 * an acquire that began at the same moment.
 */
static const dlock *own_holder(const struct lockset *s, const struct dlock_info *info)
{
    for (int i = 0; info && i < s->next; i++) {
        const struct dlock_identity *id = &s->at[i]->identity;
        bool same = info->pid == id->pid && strcmp(info->host, id->host) == 0 &&
                    info->since_ms - dlock_max(0, info->waited_ms) == id->since_ms;
        if (info->token[0] ? strcmp(s->at[i]->token, info->token) == 0 : same)
            return s->at[i];
    }
    return NULL;
}

/*
 * All locks are held: a lock without a renewal for half of its time, or with a run that is not
 * recorded as running yet; NULL: none. The runs begin when no lock is in trouble.
 */
static const dlock *first_unready(const struct lockset *s)
{
    const dlock *unready = NULL;
    for (int i = 0; i < s->n; i++)
        if (s->at[i]->lease.troubled)
            return s->at[i];
    for (int i = 0; i < s->n; i++)
        if (!lock_begin_run(s->at[i]))
            unready = s->at[i];
    return unready;
}

/* --- what happens ----------------------------------------------------------------------------- */

static void while_acquiring(struct lockset *s, const dlock *lk, const struct dlock_report *r)
{
    struct dlock_report end;
    const dlock *own;
    switch (r->type) {
    case DLOCK_REPORT_ACQUIRED:
        s->give_up_at = DLOCK_NEVER;
        if (++s->next < s->n)
            take_next(s);
        break;
    case DLOCK_REPORT_WAITING:
    case DLOCK_REPORT_BUSY:
        own = own_holder(s, r->info);
        if (own)
            refuse_alias(s, lk, own);
        else if (r->type == DLOCK_REPORT_BUSY)
            give_back(s, busy(lk));
        else
            s->report = *r;
        break;
    case DLOCK_REPORT_SKIPPED:
        s->run = *r->run; /* the store's run lasts only until the next call */
        end = report_of(DLOCK_REPORT_SKIPPED, lk);
        end.run = &s->run;
        give_back(s, end);
        break;
    case DLOCK_REPORT_FAILED:
        give_back_failed(s, lk, &r->error);
        break;
    case DLOCK_REPORT_TERM:
    case DLOCK_REPORT_LOST:
        begin_again(s, lk, true);
        break;
    case DLOCK_REPORT_EXTENDED:
        break;
    default:
        s->report = *r;
    }
}

static void on_report(struct lockset *s, const dlock *lk, const struct dlock_report *r)
{
    /* How bad an end of a release is. */
    static const int weight[] = {[DLOCK_RELEASE_NOTHING] = 0,
                                 [DLOCK_RELEASE_CLEAN] = 1,
                                 [DLOCK_RELEASE_UNCLEAR] = 2,
                                 [DLOCK_RELEASE_NOT_OURS] = 3};
    if (s->phase == SET_ACQUIRING) {
        while_acquiring(s, lk, r);
    } else if (s->phase == SET_HELD) {
        s->report = r->type == DLOCK_REPORT_EXTENDED ? report_of(DLOCK_REPORT_EXTENDED, NULL) : *r;
        s->report.times = earliest(s);
    } else if (s->phase == SET_RELEASING && r->type == DLOCK_REPORT_RELEASED) {
        for (int i = 0; i < s->n && r->how == DLOCK_RELEASE_NOT_OURS; i++)
            if (is_unreleased(s->at[i]) && s->at[i]->hold.success)
                dlock_note_result(s->at[i], false, s->at[i]->hold.status, NULL);
        if (weight[r->how] > weight[s->end.how])
            s->end.how = r->how;
        /* Only an unconfirmed release is reported for its lock. */
        if (s->end.type == DLOCK_REPORT_RELEASED && weight[r->how] > weight[DLOCK_RELEASE_CLEAN])
            s->report = *r;
    }
}

/* What follows, when no lock has more to report. */
static void go_on(struct lockset *s)
{
    int64_t now = now_of(s);
    bool over = now >= s->wait_until;
    if (s->phase == SET_RELEASING) {
        if (release_goes_on(s))
            return;
        s->phase = s->end.type == DLOCK_REPORT_NONE ? SET_PAUSING : SET_IDLE;
        s->report = s->end;
        s->again_at = now + dlock_backoff_next(&s->again_pause, s->head.env);
    }
    if (s->phase == SET_ACQUIRING && s->next == s->n) {
        /* A troubled lock must be renewed first: the work needs time. */
        const dlock *lk = first_unready(s);
        struct dlock_error why;
        if (!lk) {
            s->phase = SET_HELD;
            dlock_backoff_reset(&s->failures);
            s->report = report_of(DLOCK_REPORT_ACQUIRED, NULL);
            s->report.times = earliest(s);
        } else if (over) {
            dlock_fail_at(&why, DLOCK_EUNAVAIL, 0, dlock_where(lk),
                          "the store does not renew the lock '%s'", dlock_name(lk));
            give_back_failed(s, lk, &why);
        }
    } else if (s->phase == SET_ACQUIRING && now >= s->give_up_at) {
        begin_again(s, s->at[s->next], false);
    } else if (s->phase == SET_PAUSING && over) {
        s->phase = SET_IDLE;
        s->report =
            s->end.error.code != 0 ? failed(s, s->end.lock, &s->end.error) : busy(s->end.lock);
    } else if (s->phase == SET_PAUSING && now >= s->again_at) {
        take_first(s);
    }
}

/* --- the loop --------------------------------------------------------------------------------- */

/* Let each lock work until a report of the set is due. */
static const struct dlock_report *set_process(dlock *d, const struct pollfd *pfd, int n)
{
    struct lockset *s = set_of(d);
    const struct dlock_report *r;
    /* A report of one lock may give another lock something to do. */
    for (bool again = true; again && s->report.type == DLOCK_REPORT_NONE; pfd = NULL, n = 0) {
        again = false;
        for (int i = 0; i < s->n; i++) {
            while (s->report.type == DLOCK_REPORT_NONE && (r = lock_process(s->at[i], pfd, n))) {
                on_report(s, s->at[i], r);
                again = true;
                n = 0; /* a number in pfd may be another descriptor's now */
            }
        }
    }
    /* A report that was passed on goes first, then the end of the operation. */
    if (s->report.type == DLOCK_REPORT_NONE)
        go_on(s);
    if (s->report.type == DLOCK_REPORT_NONE)
        return NULL;
    s->given = s->report;
    s->report.type = DLOCK_REPORT_NONE;
    return &s->given;
}

static int set_interest(dlock *d, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    struct lockset *s = set_of(d);
    int n = 0;
    *wake_at = DLOCK_NEVER;
    for (int i = 0; i < s->n; i++) {
        int64_t at;
        n += lock_interest(s->at[i], pfd + n, cap - n, &at);
        *wake_at = dlock_min(*wake_at, at);
    }
    if (s->phase == SET_ACQUIRING)
        *wake_at = dlock_min(*wake_at, s->next == s->n ? s->wait_until : s->give_up_at);
    if (s->phase == SET_PAUSING)
        *wake_at = dlock_min(*wake_at, dlock_min(s->again_at, s->wait_until));
    if (s->report.type != DLOCK_REPORT_NONE)
        *wake_at = 0;
    return n;
}

/* --- the operations of a handle --------------------------------------------------------------- */

static enum dlock_state set_state(const dlock *d)
{
    const struct lockset *s = set_of(d);
    bool undoing = s->phase == SET_RELEASING && s->end.type != DLOCK_REPORT_RELEASED;
    if (undoing || lock_end_waits(&s->report) || s->phase == SET_ACQUIRING ||
        s->phase == SET_PAUSING)
        return DLOCK_STATE_ACQUIRING;
    if (s->phase == SET_RELEASING || s->report.type == DLOCK_REPORT_RELEASED)
        return DLOCK_STATE_RELEASING;
    for (int i = 0; i < s->n && s->phase == SET_HELD; i++)
        if (lock_state(s->at[i]) == DLOCK_STATE_LOST)
            return DLOCK_STATE_LOST;
    return s->phase == SET_HELD ? DLOCK_STATE_HELD : DLOCK_STATE_IDLE;
}

static void set_start_acquire(dlock *d)
{
    struct lockset *s = set_of(d);
    s->wait_until = s->wait_ns == 0 ? DLOCK_NEVER : dlock_after(now_of(s), s->wait_ns);
    s->again_pause = (struct dlock_backoff){.base = AGAIN_BASE, .max = AGAIN_MAX};
    for (int i = 0; i < s->n; i++)
        s->at[i]->begins_again = false;
    take_first(s);
}

static void set_start_release(dlock *d, int64_t until)
{
    struct lockset *s = set_of(d);
    if (s->report.type == DLOCK_REPORT_RELEASED && s->phase == SET_IDLE)
        return; /* over already */
    s->report.type = DLOCK_REPORT_NONE;
    release_all(s, report_of(DLOCK_REPORT_RELEASED, NULL), until);
}

static void set_start_renew(dlock *d)
{
    for (int i = 0; i < set_of(d)->n; i++)
        lock_start_renew(set_of(d)->at[i]);
}

/* The earliest end. Any thread may ask: the phase is read last. */
static struct dlock_clocks set_end(const dlock *d)
{
    const struct lockset *s = set_of(d);
    struct dlock_clocks end = {.boot = DLOCK_NEVER, .raw = DLOCK_NEVER};
    for (int i = 0; i < s->n; i++) {
        end.boot = dlock_min(end.boot, s->at[i]->end_boot);
        end.raw = dlock_min(end.raw, s->at[i]->end_raw);
    }
    return s->phase == SET_HELD ? end : (struct dlock_clocks){0};
}

static dlock *set_at(const dlock *d, int i)
{
    const struct lockset *s = set_of(d);
    return i >= 0 && i < s->n ? s->opened[i] : NULL;
}

static void set_close(dlock *d)
{
    struct lockset *s = set_of(d);
    for (int i = s->n - 1; i >= 0; i--)
        lock_close(s->at[i]);
    poller_close(s->head.poller);
    free(s);
}

static const struct handle_ops set_ops = {
    .state = set_state,
    .start_acquire = set_start_acquire,
    .start_release = set_start_release,
    .start_renew = set_start_renew,
    .interest = set_interest,
    .process = set_process,
    .end = set_end,
    .at = set_at,
    .close = set_close,
};

/* --- opening ---------------------------------------------------------------------------------- */

/*
 * 0: one lock, in one spelling. In another spelling, which may be another lock, the store decides:
 * see own_holder(), and is_file().
 */
static int compare(const dlock *a, const dlock *b)
{
    int c = strcmp(dlock_name(a), dlock_name(b));
    if (c == 0)
        c = strcmp(dlock_backend_name(a), dlock_backend_name(b));
    if (c != 0)
        return c;
    char *one = nested_key(a->uri), *two = nested_key(b->uri);
    c = one && two ? strcmp(one, two) : 0;
    free(one);
    free(two);
    return c;
}

static int by_order(const void *a, const void *b)
{
    return compare(*(dlock *const *)a, *(dlock *const *)b);
}

static int check_set(dlock *const *locks, int n, int64_t wait_ns, struct dlock_error *err)
{
    int rc = 0;
    if (n < 1 || n > DLOCK_SET_MAX)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "a set has 1 to %d locks, not %d", DLOCK_SET_MAX,
                          n);
    if (wait_ns < 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "wait_ns must not be negative (0: one try, DLOCK_NEVER: no limit)");
    for (int i = 0; i < n && rc == 0; i++) {
        if (handle_of(locks[i])->ops == &set_ops)
            return dlock_fail(err, DLOCK_EUSAGE, 0, "a set cannot be a part of another set");
        rc = handle_expect(locks[i], DLOCK_STATE_IDLE, DLOCK_STATE_IDLE, "dlock_open_set()", err);
    }
    return rc;
}

int dlock_open_set(dlock **out, dlock *const *locks, int n, int64_t wait_ns,
                   struct dlock_error *err)
{
    int rc = check_set(locks, n, wait_ns, err);
    if (rc < 0)
        return rc;
    struct lockset *s = calloc(1, sizeof(*s));
    if (!s)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    s->head = (struct handle){.ops = &set_ops, .owner = getpid(), .env = locks[0]->head.env};
    s->n = n;
    s->wait_ns = wait_ns;
    s->failures = (struct dlock_backoff){.base = AGAIN_BASE, .max = AGAIN_MAX};
    memcpy(s->at, locks, (size_t)n * sizeof(s->at[0]));
    memcpy(s->opened, locks, (size_t)n * sizeof(s->opened[0]));
    qsort(s->at, (size_t)n, sizeof(s->at[0]), by_order);
    for (int i = 1; i < n; i++) {
        const dlock *lk = s->at[i];
        if (compare(s->at[i - 1], lk) != 0)
            continue;
        free(s);
        return dlock_fail_lock(err, DLOCK_EUSAGE, 0, lk->uri, "the same lock is named twice");
    }
    for (int i = 0; i < n; i++) {
        locks[i]->head.in_set = true;
        if (locks[i]->head.poller) /* the lock's own descriptor is silent from now on */
            poller_update(locks[i]->head.poller, NULL, 0, DLOCK_NEVER);
    }
    *out = (dlock *)s;
    return 0;
}
