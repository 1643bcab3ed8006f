/*
 * lockset.c - several locks, all or none.
 *
 * Each lock is a handle (lock.c) with its own lease. The set takes them one after the other in one order for all
 * processes, drives them all, so that those that are held are renewed while the next one is waited for, and makes one
 * lease of theirs: it ends when the first of them does.
 *
 * A set goes from SET_IDLE through SET_ACQUIRING to SET_HELD, and through SET_RELEASING back to SET_IDLE. An acquire that
 * makes no progress, or loses a lock, goes through SET_RELEASING and SET_PAUSING to SET_ACQUIRING again.
 */
#include "lock.h"

#include "driven.h"
#include "util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* So long a set that holds some of its locks waits for the next one: two sets may be waiting for each other. */
#define NO_PROGRESS (10 * DLOCK_SEC)
/* The pause before it begins again: random, so that one of the two comes first. */
#define AGAIN_BASE (100 * DLOCK_MSEC)
#define AGAIN_MAX DLOCK_SEC

enum set_phase { SET_IDLE, SET_ACQUIRING, SET_PAUSING, SET_HELD, SET_RELEASING };

/* What follows when all locks have been given back. */
enum set_then { SET_RELEASED, SET_BUSY, SET_SKIPPED, SET_FAILED, SET_AGAIN };

struct member {
    dlock *lk;
    int place;     /* in the order of dlock_set_open() */
    bool held;     /* its lease counts */
    bool troubled; /* held, and not renewed for half of its time */
    bool releasing;
    struct dlock_times times;
};

struct dlock_set {
    struct member at[DLOCK_SET_MAX]; /* in the order in which they are taken */
    int n;
    int next; /* while acquiring: the one that is waited for; those before it are held */
    const struct dlock_env *env;
    int64_t wait_ns, wait_until;
    enum set_phase phase;
    enum set_then then;
    int64_t
        give_up_at; /* while acquiring, with one held: without progress until then they are given back */
    int64_t again_at; /* SET_PAUSING */
    struct dlock_backoff again_pause;
    struct dlock_backoff failures; /* pauses between acquires that fail: dlock_report.retry_at */
    enum dlock_release_how how;    /* while releasing: the worst so far */

    bool lost;                  /* LOST was reported, of one of them */
    struct dlock_report report; /* it waits to be given; NONE: none */
    struct dlock_report given;  /* the last one */
    struct poller *poller;      /* or NULL */

    /* The end of an acquire that did not succeed: told when all is given back. */
    const dlock *end_which;
    struct dlock_error why;
    int64_t retry_at;     /* SET_FAILED */
    struct dlock_run run; /* SET_SKIPPED */
};

static int64_t now_of(const dlock_set *s)
{
    return s->env->now(s->env->ctx);
}

/* --- opening ---------------------------------------------------------------------------------- */

static int compare(const dlock *a, const dlock *b)
{
    int c = strcmp(dlock_name(a), dlock_name(b));
    if (c == 0)
        c = strcmp(dlock_backend_name(a), dlock_backend_name(b));
    return c != 0 ? c : strcmp(dlock_where(a), dlock_where(b));
}

static int by_order(const void *a, const void *b)
{
    return compare(((const struct member *)a)->lk, ((const struct member *)b)->lk);
}

int dlock_set_open(dlock_set **out, dlock *const *locks, int n, int64_t wait_ns,
                   struct dlock_error *err)
{
    if (n < 1 || n > DLOCK_SET_MAX)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "a set has 1 to %d locks, not %d", DLOCK_SET_MAX,
                          n);
    if (wait_ns < 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "a time-out must be greater than zero");
    for (int i = 0; i < n; i++) {
        enum dlock_state is = dlock_state(locks[i]);
        if (is != DLOCK_STATE_IDLE || locks[i]->in_set)
            return lock_refuse(is, locks[i]->in_set, "dlock_set_open()", err);
    }
    dlock_set *s = calloc(1, sizeof(*s));
    if (!s)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    s->n = n;
    s->wait_ns = wait_ns;
    s->env = locks[0]->env;
    s->failures = (struct dlock_backoff){.base = AGAIN_BASE, .max = AGAIN_MAX};
    for (int i = 0; i < n; i++)
        s->at[i] = (struct member){.lk = locks[i], .place = i};
    qsort(s->at, (size_t)n, sizeof(s->at[0]), by_order);
    for (int i = 1; i < n; i++) {
        const dlock *lk = s->at[i].lk;
        if (compare(s->at[i - 1].lk, lk) != 0)
            continue;
        free(s);
        return dlock_fail_lock(err, DLOCK_EUSAGE, 0, lk->uri, "the same lock is named twice");
    }
    for (int i = 0; i < n; i++) {
        locks[i]->in_set = true;
        if (locks[i]
                ->poller) /* nothing to do there any more: its descriptor is silent from now on */
            poller_update(locks[i]->poller, NULL, 0, DLOCK_NEVER);
    }
    *out = s;
    return 0;
}

void dlock_set_close(dlock_set *s)
{
    if (!s)
        return;
    for (int i = s->n - 1; i >= 0; i--)
        lock_close(s->at[i].lk);
    poller_close(s->poller);
    free(s);
}

/* --- reports ---------------------------------------------------------------------------------- */

static struct dlock_report *report(dlock_set *s, enum dlock_report_type type, const dlock *which)
{
    memset(&s->report, 0, sizeof(s->report));
    s->report.type = type;
    s->report.lock = which;
    s->report.token = which ? which->token : "";
    s->report.fence = which ? which->fence : 0;
    return &s->report;
}

/*
 * The earliest of each time. The difference of the clocks is the least of all: so each time passes by the second clock
 * too at the latest when that of the lock which it belongs to does.
 */
static struct dlock_times earliest(const dlock_set *s)
{
    struct dlock_times t = s->at[0].times;
    for (int i = 1; i < s->n; i++) {
        const struct dlock_times *m = &s->at[i].times;
        t.renew_at = dlock_min(t.renew_at, m->renew_at);
        t.term_at = dlock_min(t.term_at, m->term_at);
        t.kill_at = dlock_min(t.kill_at, m->kill_at);
        t.deadline = dlock_min(t.deadline, m->deadline);
        t.raw_minus_boot = dlock_min(t.raw_minus_boot, m->raw_minus_boot);
    }
    return t;
}

/* --- giving back ------------------------------------------------------------------------------ */

static bool all_released(const dlock_set *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->at[i].releasing)
            return false;
    return true;
}

/* From the one that was taken last to the first. All of them at once: one that does not answer must not cost the others. */
static void release_all(dlock_set *s, enum set_then then_, int64_t until)
{
    bool unused = s->phase == SET_ACQUIRING; /* no work was done under those that are held */
    if (s->phase != SET_RELEASING) /* else a lock that was released already has told how */
        s->how = DLOCK_RELEASE_NOTHING;
    s->then = then_;
    s->phase = SET_RELEASING;
    for (int i = s->n - 1; i >= 0; i--) {
        s->at[i].held = s->at[i].troubled = false;
        s->at[i].releasing = true;
        if (unused)
            dlock_end_min_hold(s->at[i].lk);
        lock_start_release(s->at[i].lk, until);
    }
}

static int64_t undo_until(const dlock_set *s)
{
    return lock_undo_until(now_of(s), s->wait_until);
}

static void give_back(dlock_set *s, enum set_then then_, const dlock *which,
                      const struct dlock_error *why)
{
    s->end_which = which;
    s->why = *why;
    s->retry_at = lock_retry_at(why->code, &s->failures, s->env);
    release_all(s, then_, undo_until(s));
}

/* The locks that are held cannot be kept: begin again later, if the caller waits. */
static void begin_again(dlock_set *s, const dlock *which, const char *what)
{
    struct dlock_error why;
    bool waits = s->wait_ns != 0;
    dlock_fail_at(&why, waits ? DLOCK_OK : DLOCK_EUNAVAIL, 0, dlock_where(which),
                  "the lock '%s' %s: all are given back%s", dlock_name(which), what,
                  waits ? " and taken again" : "");
    /* The wait goes on, and rides out an outage of a store that it has reached. */
    for (int i = 0; i < s->n; i++)
        s->at[i].lk->begins_again |= s->at[i].lk->contacted;
    give_back(s, waits ? SET_AGAIN : SET_FAILED, which, &why);
    if (waits)
        report(s, DLOCK_REPORT_NOTICE, which)->error = why;
}

/* --- taking ----------------------------------------------------------------------------------- */

/* Of those that are held, the one whose file it is, too. */
static const dlock *same_file(const dlock_set *s, const dlock *lk)
{
    for (int i = 0; lk->table->is_file && i < s->next; i++) {
        int fd = dlock_fd(s->at[i].lk);
        if (fd >= 0 && lk->table->is_file(lk->be, fd))
            return s->at[i].lk;
    }
    return NULL;
}

/* Two names mean one lock: we would wait for ourselves. */
static void refuse_alias(dlock_set *s, const dlock *lk, const dlock *other)
{
    struct dlock_error why;
    dlock_fail_lock(&why, DLOCK_EUSAGE, 0, lk->uri,
                    "this is the same lock as %s (lock '%s'): name it once", dlock_where(other),
                    dlock_name(other));
    give_back(s, SET_FAILED, lk, &why);
}

/* Ask for the next lock. -w bounds the set: the handle has what is left of it. */
static void take_next(dlock_set *s)
{
    dlock *lk = s->at[s->next].lk;
    const dlock *same = same_file(s, lk);
    int64_t now = now_of(s);
    if (same) {
        refuse_alias(s, lk, same);
        return;
    }
    if (s->wait_ns == 0 || s->wait_until == DLOCK_NEVER)
        lk->opt.wait_ns = s->wait_ns;
    else
        lk->opt.wait_ns = dlock_max(1, s->wait_until - now);
    s->give_up_at = s->next > 0 && s->wait_ns != 0 ? now + NO_PROGRESS : DLOCK_NEVER;
    lock_start_acquire(lk);
}

static void take_first(dlock_set *s)
{
    s->phase = SET_ACQUIRING;
    s->next = 0;
    take_next(s);
}

/* Of those that are held, the one whose token the holder has. */
static const dlock *own_holder(const dlock_set *s, const struct dlock_info *info)
{
    for (int i = 0; info && info->token[0] && i < s->next; i++)
        if (strcmp(s->at[i].lk->token, info->token) == 0)
            return s->at[i].lk;
    return NULL;
}

/* All are held. One that has not been renewed for long must be first: the work needs time. */
static bool complete(const dlock_set *s)
{
    for (int i = 0; i < s->n; i++)
        if (!s->at[i].held || s->at[i].troubled)
            return false;
    return true;
}

static const dlock *first_troubled(const dlock_set *s)
{
    for (int i = 0; i < s->n; i++)
        if (s->at[i].troubled)
            return s->at[i].lk;
    return NULL;
}

static void check_complete(dlock_set *s)
{
    if (s->phase != SET_ACQUIRING || !complete(s))
        return;
    s->phase = SET_HELD;
    s->lost = false;
    dlock_backoff_reset(&s->failures);
    report(s, DLOCK_REPORT_ACQUIRED, NULL)->times = earliest(s);
}

/* --- what happens ----------------------------------------------------------------------------- */

/* A report of a handle, as it is. */
static void pass_on(dlock_set *s, const struct dlock_report *r)
{
    s->report = *r;
}

static void on_acquired(dlock_set *s, struct member *m, const struct dlock_report *r)
{
    m->held = true;
    m->times = r->times;
    if (++s->next < s->n)
        take_next(s);
    else
        s->give_up_at = DLOCK_NEVER;
}

/* While locks are taken. */
static void while_acquiring(dlock_set *s, struct member *m, const struct dlock_report *r)
{
    const dlock *own;
    switch (r->type) {
    case DLOCK_REPORT_ACQUIRED:
        on_acquired(s, m, r);
        break;
    case DLOCK_REPORT_WAITING:
    case DLOCK_REPORT_BUSY:
        own = own_holder(s, r->info);
        if (own)
            refuse_alias(s, m->lk, own);
        else if (r->type == DLOCK_REPORT_BUSY)
            give_back(s, SET_BUSY, m->lk, &r->error);
        else
            pass_on(s, r);
        break;
    case DLOCK_REPORT_SKIPPED:
        s->run = *r->run;
        give_back(s, SET_SKIPPED, m->lk, &r->error);
        break;
    case DLOCK_REPORT_FAILED:
        give_back(s, SET_FAILED, m->lk, &r->error);
        break;
    case DLOCK_REPORT_TERM:
    case DLOCK_REPORT_LOST:
        begin_again(s, m->lk, "was lost before the others were held");
        break;
    case DLOCK_REPORT_EXTENDED:
        m->times = r->times;
        break;
    case DLOCK_REPORT_TROUBLE:
    case DLOCK_REPORT_RECOVERED:
        m->troubled = m->held && r->type == DLOCK_REPORT_TROUBLE;
        pass_on(s, r);
        break;
    default:
        pass_on(s, r);
    }
}

static void while_held(dlock_set *s, struct member *m, const struct dlock_report *r)
{
    if (r->type == DLOCK_REPORT_EXTENDED) {
        m->times = r->times;
        report(s, DLOCK_REPORT_EXTENDED, NULL)->times = earliest(s);
        return;
    }
    pass_on(s, r);
    s->report.times = earliest(s);
}

static bool worse(enum dlock_release_how a, enum dlock_release_how b)
{
    static const int weight[] = {[DLOCK_RELEASE_NOTHING] = 0,
                                 [DLOCK_RELEASE_CLEAN] = 1,
                                 [DLOCK_RELEASE_UNCLEAR] = 2,
                                 [DLOCK_RELEASE_NOT_OURS] = 3};
    return weight[a] > weight[b];
}

static void report_busy(dlock_set *s)
{
    s->phase = SET_IDLE;
    struct dlock_report *r = report(s, DLOCK_REPORT_BUSY, s->end_which);
    r->info = s->end_which->have_holder ? &s->end_which->holder : NULL;
    r->kept = lock_kept(s->end_which);
}

/* All locks have been given back: what was to follow. */
static void after_release(dlock_set *s)
{
    if (s->phase != SET_RELEASING || !all_released(s))
        return;
    s->phase = SET_IDLE;
    switch (s->then) {
    case SET_AGAIN:
        s->phase = SET_PAUSING;
        s->again_at = now_of(s) + dlock_backoff_next(&s->again_pause, s->env);
        break;
    case SET_BUSY:
        report_busy(s);
        break;
    case SET_SKIPPED:
        report(s, DLOCK_REPORT_SKIPPED, s->end_which)->run = &s->run;
        break;
    case SET_FAILED:
        report(s, DLOCK_REPORT_FAILED, s->end_which)->error = s->why;
        s->report.retry_at = s->retry_at;
        break;
    case SET_RELEASED:
        report(s, DLOCK_REPORT_RELEASED, NULL)->how = s->how;
        break;
    }
}

/* Only the ends of the releases matter, and of them what is not as it should be. */
static void while_releasing(dlock_set *s, struct member *m, const struct dlock_report *r)
{
    if (r->type != DLOCK_REPORT_RELEASED)
        return;
    m->releasing = false;
    if (worse(r->how, s->how))
        s->how = r->how;
    if (s->then == SET_RELEASED && worse(r->how, DLOCK_RELEASE_CLEAN))
        pass_on(s, r);
}

static void on_report(dlock_set *s, struct member *m, const struct dlock_report *r)
{
    if (s->phase == SET_ACQUIRING)
        while_acquiring(s, m, r);
    else if (s->phase == SET_HELD)
        while_held(s, m, r);
    else if (s->phase == SET_RELEASING)
        while_releasing(s, m, r);
}

/* All are held, but one is not renewed, and -w is over. */
static void end_troubled(dlock_set *s)
{
    const dlock *lk = first_troubled(s);
    struct dlock_error why;
    dlock_fail_at(&why, DLOCK_EUNAVAIL, 0, dlock_where(lk),
                  "the store does not renew the lock '%s'", dlock_name(lk));
    give_back(s, SET_FAILED, lk, &why);
}

static void on_time(dlock_set *s)
{
    int64_t now = now_of(s);
    bool over = now >= s->wait_until;
    if (s->phase == SET_ACQUIRING && s->next == s->n && over)
        end_troubled(s);
    else if (s->phase == SET_ACQUIRING && now >= s->give_up_at)
        begin_again(s, s->at[s->next].lk, "was not free for 10 s while others were held");
    else if (s->phase == SET_PAUSING && over)
        report_busy(s);
    else if (s->phase == SET_PAUSING && now >= s->again_at)
        take_first(s);
}

/* --- the loop --------------------------------------------------------------------------------- */

static int interest(dlock_set *s, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        int64_t at;
        n += lock_interest(s->at[i].lk, pfd + n, cap - n, &at);
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

/* Let each handle work until a report of ours is due. True: one of them had something to say. */
static bool drive(dlock_set *s, const struct pollfd *pfd, int n)
{
    const struct dlock_report *r;
    bool said = false;
    for (int i = 0; i < s->n; i++) {
        while (s->report.type == DLOCK_REPORT_NONE && (r = lock_process(s->at[i].lk, pfd, n))) {
            on_report(s, &s->at[i], r);
            said = true;
            n = 0; /* a descriptor may be another one now, under its number */
        }
    }
    return said;
}

const struct dlock_report *lockset_process(dlock_set *s, const struct pollfd *pfd, int n)
{
    /* What one says may give another one something to do. */
    while (s->report.type == DLOCK_REPORT_NONE && drive(s, pfd, n)) {
        pfd = NULL;
        n = 0;
    }
    /* What the last report of a handle has ended comes behind it, if that was passed on. */
    if (s->report.type == DLOCK_REPORT_NONE)
        after_release(s);
    if (s->report.type == DLOCK_REPORT_NONE)
        check_complete(s);
    if (s->report.type == DLOCK_REPORT_NONE)
        on_time(s);
    if (s->report.type == DLOCK_REPORT_NONE)
        return NULL;
    s->given = s->report;
    s->report.type = DLOCK_REPORT_NONE;
    s->lost = s->lost || (s->phase == SET_HELD && s->given.type == DLOCK_REPORT_LOST);
    return &s->given;
}

/* --- the calls of dlock.h, and what each state allows ------------------------------------------ */

static bool is_foreign(const dlock_set *s)
{
    return lock_is_foreign(s->at[0].lk);
}

enum dlock_state dlock_set_state(const dlock_set *s)
{
    bool undoing = s->phase == SET_RELEASING && s->then != SET_RELEASED;
    if (is_foreign(s))
        return DLOCK_STATE_FOREIGN;
    if (undoing || lock_end_waits(&s->report))
        return DLOCK_STATE_ACQUIRING;
    switch (s->phase) {
    case SET_ACQUIRING:
    case SET_PAUSING:
        return DLOCK_STATE_ACQUIRING;
    case SET_HELD:
        return s->lost ? DLOCK_STATE_LOST : DLOCK_STATE_HELD;
    case SET_RELEASING:
        return DLOCK_STATE_RELEASING;
    case SET_IDLE:
        break;
    }
    return s->report.type == DLOCK_REPORT_RELEASED ? DLOCK_STATE_RELEASING : DLOCK_STATE_IDLE;
}

static void kick(const dlock_set *s)
{
    if (s->poller)
        poller_kick(s->poller);
}

int dlock_set_start_acquire(dlock_set *s, struct dlock_error *err)
{
    enum dlock_state is = dlock_set_state(s);
    if (is != DLOCK_STATE_IDLE)
        return lock_refuse(is, false, "dlock_set_start_acquire()", err);
    s->wait_until = s->wait_ns == 0 ? DLOCK_NEVER : dlock_after(now_of(s), s->wait_ns);
    s->again_pause = (struct dlock_backoff){.base = AGAIN_BASE, .max = AGAIN_MAX};
    dlock_backoff_reset(&s->again_pause);
    for (int i = 0; i < s->n; i++)
        s->at[i].lk->begins_again = false;
    kick(s);
    take_first(s);
    return 0;
}

int dlock_set_start_release(dlock_set *s, int64_t until, struct dlock_error *err)
{
    if (is_foreign(s))
        return lock_refuse(DLOCK_STATE_FOREIGN, false, "dlock_set_start_release()", err);
    kick(s);
    if (s->report.type == DLOCK_REPORT_RELEASED && s->phase == SET_IDLE)
        return 0; /* over already */
    s->report.type = DLOCK_REPORT_NONE;
    release_all(s, SET_RELEASED, until);
    return 0;
}

int dlock_set_interest(dlock_set *s, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    *wake_at = DLOCK_NEVER;
    return is_foreign(s) ? 0 : interest(s, pfd, cap, wake_at);
}

const struct dlock_report *dlock_set_process(dlock_set *s, const struct pollfd *pfd, int n)
{
    if (is_foreign(s))
        return NULL;
    kick(s);
    return lockset_process(s, pfd, n);
}

int dlock_set_poll_fd(dlock_set *s, struct dlock_error *err)
{
    if (is_foreign(s))
        return lock_refuse(DLOCK_STATE_FOREIGN, false, "dlock_set_poll_fd()", err);
    return poller_fd(&s->poller, err);
}

const struct dlock_report *dlock_set_dispatch(dlock_set *s)
{
    return is_foreign(s) ? NULL : driven_dispatch((struct driven){.set = s}, s->poller);
}

/* --- what is known ---------------------------------------------------------------------------- */

int64_t dlock_set_time_left(const dlock_set *s)
{
    int64_t left = DLOCK_NEVER;
    for (int i = 0; i < s->n; i++)
        left = dlock_min(left, dlock_time_left(s->at[i].lk));
    return s->phase == SET_HELD && !is_foreign(s) ? left : 0;
}

const dlock *dlock_set_at(const dlock_set *s, int i)
{
    for (int k = 0; k < s->n; k++)
        if (s->at[k].place == i)
            return s->at[k].lk;
    return NULL;
}
