#include "lease.h"

#include <errno.h>

#define MARGIN_MIN (50 * DLOCK_MSEC)
#define DRIFT_FIXED (2 * DLOCK_MSEC)
#define GRACE_MAX (5 * DLOCK_SEC)

/* Pause after an unclear renewal: short for a lost packet, then longer for a dead server. */
#define RETRY_FIRST (10 * DLOCK_MSEC)
#define RETRY_MAX DLOCK_SEC
/* A store that refuses connections may be about to come back, perhaps without the lock. */
#define RETRY_REFUSED (100 * DLOCK_MSEC)
/* Between renewals before renew_at: a server may accept and close again and again. */
#define EARLY_PAUSE (DLOCK_SEC / 2)
#define TELL_LATER DLOCK_SEC /* with CAP_TELLS: most commands have ended by then */

void lease_clocks_init(struct lease_clocks *c, int64_t ttl)
{
    *c = (struct lease_clocks){.width = dlock_max(ttl, LEASE_MIN_TTL) / 2};
}

static int64_t window_end(const struct lease_clocks *c, int64_t boot)
{
    return boot / c->width * c->width + c->width;
}

void lease_clocks_note(struct lease_clocks *c, struct dlock_clocks now)
{
    int64_t end = window_end(c, now.boot), difference = now.raw - now.boot;
    int i = (int)(end / c->width % LEASE_WINDOWS);
    if (c->window[i].end != end || difference < c->window[i].least)
        c->window[i].least = difference;
    c->window[i].end = end;
}

int64_t lease_clocks_difference(const struct lease_clocks *c, int64_t boot)
{
    int64_t end = window_end(c, boot);
    int i = (int)(end / c->width % LEASE_WINDOWS);
    return c->window[i].end == end ? c->window[i].least : -DLOCK_RAW_NEVER;
}

int64_t lease_default_grace(int64_t ttl)
{
    return ttl == DLOCK_NEVER ? GRACE_MAX : dlock_min(GRACE_MAX, ttl / 6);
}

void lease_timeline(struct dlock_times *t, const struct lease_config *cfg, int64_t ttl,
                    int64_t sent, int64_t raw_minus_boot)
{
    if (ttl == DLOCK_NEVER) {
        *t = (struct dlock_times){DLOCK_NEVER, DLOCK_NEVER, DLOCK_NEVER, DLOCK_NEVER,
                                  DLOCK_RAW_NEVER};
        return;
    }
    int64_t margin = dlock_max(MARGIN_MIN, ttl / 20);
    t->deadline = sent + ttl - (ttl / 100 + DRIFT_FIXED);
    t->kill_at = t->deadline - margin;
    t->term_at = t->kill_at - cfg->grace;
    t->raw_minus_boot = raw_minus_boot;
    t->renew_at = sent + (cfg->lag ? ttl / 6 : (t->term_at - sent) / 3);
}

static bool fits(const struct lease_config *cfg, int64_t ttl)
{
    struct dlock_times t;
    lease_timeline(&t, cfg, ttl, 0, 0);
    return ttl >= LEASE_MIN_TTL && t.term_at >= (cfg->lag ? ttl / 3 * 2 : ttl / 3);
}

/* The smallest ttl, in steps of 100 ms, with room for this grace. */
static int64_t smallest_ttl(const struct lease_config *cfg)
{
    const int64_t step = 100 * DLOCK_MSEC;
    int64_t low = LEASE_MIN_TTL / step, high = low;
    while (!fits(cfg, high * step) && high < INT64_MAX / step / 4)
        high *= 2;
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        if (fits(cfg, mid * step))
            high = mid;
        else
            low = mid + 1;
    }
    return high * step;
}

int64_t lease_least_ttl(const struct lease_config *cfg)
{
    return cfg->default_grace ? LEASE_MIN_TTL : smallest_ttl(cfg);
}

int lease_check(const struct lease_config *cfg, struct dlock_error *err)
{
    char ttl[32], grace[32], least[32];
    if (cfg->ttl == DLOCK_NEVER || fits(cfg, cfg->ttl))
        return 0;
    dlock_format_duration(cfg->ttl, ttl, sizeof(ttl));
    dlock_format_duration(cfg->grace, grace, sizeof(grace));
    dlock_format_duration(smallest_ttl(cfg), least, sizeof(least));
    if (cfg->ttl < LEASE_MIN_TTL)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "a ttl of %s is too short: at least %s", ttl,
                          least);
    return dlock_fail(err, DLOCK_EUSAGE, 0,
                      "a ttl of %s leaves too little time beside a grace of %s: use a ttl of at "
                      "least %s, or a shorter grace",
                      ttl, grace, least);
}

void lease_acquire(struct lease *l, const struct lease_config *cfg)
{
    *l = (struct lease){
        .cfg = *cfg, .ttl = cfg->ttl, .state = LEASE_ACQUIRING, .early_at = DLOCK_NEVER};
}

/* Is the lease renewed by this process? */
static bool is_renewed(const struct lease *l)
{
    return l->state != LEASE_GONE && !l->cfg.follows && l->ttl != DLOCK_NEVER;
}

void lease_renew_now(struct lease *l, int64_t now)
{
    if (!is_renewed(l))
        return;
    l->times.renew_at = dlock_min(l->times.renew_at, now);
    l->wanted = true;
}

void lease_release(struct lease *l)
{
    l->state = LEASE_IDLE;
    l->renewing = l->start_due = l->extend_due = false;
}

/*
 * With CAP_LAG a renewal counts only when the next renewal, sent a third of the ttl later, is
 * answered. After an outage the regular renewals may all be too early or too late for that: then
 * renew more often.
 */
static int64_t lag_pause(const struct lease *l)
{
    return l->times.term_at - l->asked < l->ttl / 4 ? l->ttl / 24 : l->ttl / 6;
}

/*
 * When half of the time to term_at has passed. With CAP_LAG the confirmed send time is up to two
 * thirds of the ttl old while all is well: there the time counts from when the renewal is due.
 */
static int64_t half_gone(const struct lease *l)
{
    int64_t from = l->cfg.lag ? l->times.renew_at : l->sent;
    return l->ttl == DLOCK_NEVER ? DLOCK_NEVER : from + (l->times.term_at - from) / 2;
}

/* A process that was stopped asks late, and gives the store the same time to answer. */
static int64_t trouble_at(const struct lease *l)
{
    int64_t late = l->first_asked == 0 ? 0 : dlock_max(0, l->first_asked - l->times.renew_at);
    return l->ttl == DLOCK_NEVER ? DLOCK_NEVER : half_gone(l) + late;
}

/* Take over a confirmed send time. Deadlines only move forward: an older time is ignored. */
static bool confirm(struct lease *l, int64_t from, int64_t raw_minus_boot, int64_t ttl)
{
    if (l->sent != 0 && from <= l->sent)
        return false;
    l->sent = from;
    l->ttl = ttl;
    if (l->cfg.default_grace && ttl != l->cfg.ttl) {
        l->cfg.ttl = ttl;
        l->cfg.grace = lease_default_grace(ttl);
    }
    l->first_asked = 0;
    struct dlock_times old = l->times;
    lease_timeline(&l->times, &l->cfg, ttl, from, raw_minus_boot);
    if (l->cfg.lag && ttl != DLOCK_NEVER)
        l->times.renew_at = l->asked + lag_pause(l);
    /* The work is ending: the lock is kept meanwhile, but kill_at stays, by either clock. */
    if (l->state >= LEASE_ENDING)
        l->times.kill_at = old.kill_at + dlock_min(0, old.raw_minus_boot - raw_minus_boot);
    return true;
}

/* A time of the lease has passed when the result has reached that time. */
static int64_t later_clock(const struct lease *l, struct dlock_clocks now)
{
    return dlock_later_clock(now, l->times.raw_minus_boot);
}

/* Has more than 1/part of the usable time passed before the answer came? */
static bool came_late(const struct lease *l, struct dlock_clocks now, int64_t part)
{
    if (l->ttl == DLOCK_NEVER || l->cfg.lag || l->cfg.follows)
        return false;
    return later_clock(l, now) - l->sent > (l->times.term_at - l->sent) / part;
}

/* The renewal under way fulfils earlier demands. */
static void demand(struct lease *l, int64_t now, int64_t at)
{
    bool first = l->renewing && l->asked >= l->demanded_at;
    l->early_at = first ? at : dlock_min(l->early_at, at);
    l->demanded_at = now;
}

/*
 * The hold was broken: the work ends now. The lock stays ours until the release, so no other holder
 * comes before the end of the work.
 */
static void end_early(struct lease *l, struct dlock_clocks now)
{
    if (l->state != LEASE_HELD)
        return;
    l->times.term_at = later_clock(l, now);
    l->times.kill_at = dlock_min(l->times.kill_at, l->times.term_at + l->cfg.grace);
}

static void on_renewed(struct lease *l, struct dlock_clocks now, const struct dlock_event *ev)
{
    l->renewing = false;
    l->retry_at = 0;
    l->pause = 0;
    if (l->asked >= l->demanded_at)
        l->early_at = DLOCK_NEVER;
    bool moved = confirm(l, ev->from, ev->raw_minus_boot, ev->ttl);
    if (!moved && l->cfg.lag) {
        l->times.renew_at = l->asked + lag_pause(l);
        l->first_asked = 0;
    }
    if (l->state == LEASE_CONFIRMING) {
        /* Half is gone again: a store this slow cannot keep a lease of this ttl alive. */
        l->unusable = came_late(l, now, 2);
        l->state = LEASE_HELD;
        l->start_due = true;
    } else if (moved || l->wanted) {
        l->extend_due = true;
        l->recovering |= moved && l->troubled;
    }
    l->wanted = false;
    if (ev->broken)
        end_early(l, now);
}

static void on_event(struct lease *l, struct dlock_clocks now, const struct dlock_event *ev)
{
    bool granted = l->state >= LEASE_CONFIRMING;
    int64_t most = dlock_max(RETRY_FIRST, dlock_min(RETRY_MAX, (l->times.term_at - l->sent) / 12));
    if (ev->type == EV_GRANTED && l->state == LEASE_ACQUIRING) {
        l->asked = ev->asked;
        confirm(l, ev->from, ev->raw_minus_boot, ev->ttl);
        l->start_due = !came_late(l, now, 4);
        l->state = l->start_due ? LEASE_HELD : LEASE_CONFIRMING;
        if (l->cfg.tells)
            demand(l, now.boot, now.boot + TELL_LATER);
    } else if (ev->type == EV_RENEWED && granted) {
        on_renewed(l, now, ev);
    } else if (ev->type == EV_UNCLEAR && granted) {
        l->renewing = false;
        l->pause = dlock_min(most, l->pause ? l->pause * 2 : RETRY_FIRST);
        l->retry_at = now.boot + l->pause;
        if (ev->error.sys == ECONNREFUSED || ev->error.sys == ENOENT) /* no process listens there */
            l->retry_at = now.boot + dlock_min(l->pause, RETRY_REFUSED);
        else if (l->early_at != DLOCK_NEVER)
            l->retry_at =
                dlock_max(l->retry_at, dlock_min(l->asked + EARLY_PAUSE, l->times.renew_at));
    } else if ((ev->type == EV_AWAY || ev->type == EV_CHANGED) && granted && !l->cfg.lag) {
        int64_t *last = &l->early[ev->server % LEASE_SERVERS];
        *last = dlock_max(now.boot, *last + EARLY_PAUSE);
        demand(l, now.boot, *last);
    } else if (ev->type == EV_LOST && granted) {
        l->state = LEASE_GONE;
    }
}

static int64_t next_renewal(const struct lease *l)
{
    int64_t due = dlock_min(l->times.renew_at, l->early_at);
    return dlock_max(l->retry_at, l->state == LEASE_CONFIRMING ? 0 : due);
}

/* What is due by time alone, most urgent first. */
static enum lease_do on_time(struct lease *l, struct dlock_clocks now)
{
    int64_t later = later_clock(l, now);
    if (l->state == LEASE_HELD && later >= l->times.term_at) {
        l->state = LEASE_ENDING;
        l->start_due = l->extend_due = false;
        if (later < l->times.kill_at)
            return LEASE_TERM;
    }
    if (l->state == LEASE_ENDING && later >= l->times.kill_at) {
        l->state = LEASE_LOST;
        return LEASE_KILL;
    }
    if (now.boot >= next_renewal(l) && !l->renewing && is_renewed(l)) {
        l->renewing = true;
        l->asked = now.boot;
        if (l->first_asked == 0)
            l->first_asked = now.boot;
        return LEASE_RENEW;
    }
    return LEASE_NOTHING;
}

enum lease_do lease_step(struct lease *l, struct dlock_clocks now, const struct dlock_event *ev)
{
    bool was_gone = l->state == LEASE_GONE;
    if (ev)
        on_event(l, now, ev);
    if (l->state < LEASE_CONFIRMING)
        return LEASE_NOTHING;
    if (l->state == LEASE_GONE && !was_gone)
        return LEASE_KILL;
    bool starting = l->state == LEASE_CONFIRMING || l->start_due;
    if (starting && (l->unusable || later_clock(l, now) >= l->times.term_at)) {
        l->state = LEASE_IDLE;
        return LEASE_UNUSABLE;
    }
    if (l->start_due) {
        l->start_due = false;
        return LEASE_START;
    }
    enum lease_do todo = on_time(l, now);
    if (todo == LEASE_NOTHING && l->extend_due) {
        l->extend_due = false;
        return LEASE_EXTEND;
    }
    if (todo != LEASE_NOTHING || l->state != LEASE_HELD || l->cfg.follows)
        return todo;
    /* A renewal whose answer took so long that half is gone again does not end the trouble. */
    if (l->recovering && later_clock(l, now) < half_gone(l)) {
        l->troubled = l->recovering = false;
        return LEASE_RECOVERED;
    }
    if (l->troubled || later_clock(l, now) < trouble_at(l))
        return LEASE_NOTHING;
    l->troubled = true;
    l->trouble_since = l->sent;
    return LEASE_TROUBLE;
}

int64_t lease_wake(const struct lease *l, struct dlock_clocks now)
{
    if (l->state < LEASE_CONFIRMING)
        return DLOCK_NEVER;
    if (l->start_due || l->extend_due)
        return 0;
    int64_t end = DLOCK_NEVER, wake = DLOCK_NEVER;
    if (l->state == LEASE_CONFIRMING || l->state == LEASE_HELD)
        end = l->times.term_at;
    else if (l->state == LEASE_ENDING)
        end = l->times.kill_at;
    if (l->state == LEASE_HELD && !l->troubled && !l->cfg.follows)
        end = dlock_min(end, trouble_at(l));
    if (end != DLOCK_NEVER)
        wake = now.boot + dlock_wait_part(end - later_clock(l, now));
    if (!l->renewing && is_renewed(l))
        wake = dlock_min(wake, next_renewal(l));
    return wake;
}

struct dlock_clocks lease_end(const struct lease *l)
{
    bool held = l->state >= LEASE_CONFIRMING && l->state != LEASE_GONE;
    if (!held || l->ttl == DLOCK_NEVER)
        return held ? (struct dlock_clocks){DLOCK_NEVER, DLOCK_NEVER} : (struct dlock_clocks){0};
    return (struct dlock_clocks){.boot = l->times.deadline,
                                 .raw = l->times.deadline + l->times.raw_minus_boot};
}

int64_t lease_time_left(struct dlock_clocks end, struct dlock_clocks now)
{
    if (end.boot == DLOCK_NEVER && end.raw == DLOCK_NEVER)
        return DLOCK_NEVER;
    return dlock_max(0, dlock_min(end.boot - now.boot, end.raw - now.raw));
}
