/* report.c - see report.h. */
#include "report.h"

#include "messages.h"
#include "util.h"

#include <stdio.h>
#include <string.h>

/*
 * Lines about a wait: the first after WAIT_FIRST, the next every WAIT_EVERY, and a line for each
 * new holder. New holders come in bursts where jobs are short: the pause between their lines begins
 * with WAIT_FIRST and doubles up to WAIT_EVERY; a quiet WAIT_EVERY resets the pause. A drawn line
 * is redrawn every WAIT_REDRAW.
 */
#define WAIT_FIRST DLOCK_SEC
#define WAIT_REDRAW DLOCK_SEC
#define WAIT_EVERY (30 * DLOCK_SEC)
/* Between two events about the wait. */
#define EVENT_EVERY DLOCK_SEC

/* The beginning of a message, as of message_lock(). */
static const char *subject(const struct report *r, const char *words, char *buf)
{
    if (r->lk)
        return message_lock(r->lk, words, buf);
    snprintf(buf, LOCK_TEXT_MAX, "%sdescriptor %d", words, r->o->fd);
    return buf;
}

/* "'nightly'", without the store. */
static const char *short_text(const struct report *r, const dlock *lk, char *buf)
{
    if (lk)
        snprintf(buf, LOCK_TEXT_MAX, "'%s'", dlock_name(lk));
    else
        subject(r, "", buf);
    return buf;
}

/* -------------------------------------------------------------- wait --- */

void report_begin(struct report *r, const struct options *o, const dlock *lk, struct events *e)
{
    *r = (struct report){.o = o, .events = e, .outcome = EVENTS_ERROR};
    if (lk)
        report_lock(r, lk);
    r->wait.since = dlock_now();
    r->wait.waiting = true;
    r->wait.place = -1;
    r->wait.report_at = r->wait.news_at = r->wait.since + WAIT_FIRST;
    r->wait.pause = WAIT_FIRST;
    r->wait.fg_at = DLOCK_NEVER;
}

void report_lock(struct report *r, const dlock *lk)
{
    r->lk = r->first = r->wait.lk = lk;
    events_set_lock(r->events, dlock_name(lk), dlock_where(lk));
}

void report_about(struct report *r, const dlock *lk)
{
    if (lk == r->lk)
        return;
    r->lk = lk;
    events_set_lock(r->events, dlock_name(lk), dlock_where(lk));
}

/* The wait is for the lock of the latest report. */
static void waits_for_this(struct report *r)
{
    if (r->wait.lk == r->lk)
        return;
    r->wait.lk = r->lk;
    r->wait.have_holder = r->wait.kept = r->wait.answered = r->wait.away = r->wait.news = false;
    r->wait.event_news = false;
    r->wait.place = -1;
}

static bool is_local(const dlock *lk)
{
    return !lk || dlock_is_local(lk);
}

static bool same_holder(const struct dlock_info *a, const struct dlock_info *b)
{
    return a->pid == b->pid && a->since_ms == b->since_ms && a->fence == b->fence &&
           a->mode == b->mode && a->foreign == b->foreign && a->over == b->over &&
           strcmp(a->host, b->host) == 0 && strcmp(a->user, b->user) == 0 &&
           strcmp(a->command, b->command) == 0 && strcmp(a->note, b->note) == 0;
}

/* Write the event about the newest state of the wait, if it is due. */
static void tell_event(struct report *r, int64_t now)
{
    if (!r->wait.waiting || !r->wait.event_news || now < r->wait.event_at || !r->events)
        return;
    r->wait.event_news = false;
    r->wait.event_at = now + EVENT_EVERY;
    events_waiting(r->events, dlock_name(r->wait.lk), dlock_where(r->wait.lk),
                   r->wait.have_holder ? &r->wait.holder : NULL, r->wait.place, now);
}

void report_waiting(struct report *r, const struct dlock_report *w)
{
    const struct dlock_info *last = &r->wait.reported;
    waits_for_this(r);
    r->wait.answered = true;
    if (w->place < 0)
        return;
    r->wait.event_news |= w->place != r->wait.place || r->wait.have_holder != (w->info != NULL) ||
                          (w->info && !same_holder(w->info, &r->wait.holder));
    r->wait.have_holder = w->info;
    r->wait.kept = w->kept;
    if (w->info)
        r->wait.holder = *w->info;
    r->wait.place = w->place;
    r->wait.news =
        w->info && (w->info->pid != last->pid || strcmp(w->info->host, last->host) != 0 ||
                    strcmp(w->info->token, last->token) != 0);
    tell_event(r, dlock_now());
}

int report_failed(struct report *r, const struct dlock_error *err)
{
    struct dlock_error more;
    if (err->code == DLOCK_EUNAVAIL)
        r->outcome = EVENTS_UNAVAILABLE;
    if (err->code != DLOCK_EUNAVAIL || r->o->retry || r->o->wait_ns == DLOCK_NEVER ||
        dlock_now() - r->wait.since >= r->o->wait_ns)
        return message_error(r->o, err);
    dlock_fail(&more, err->code, err->sys, "%s; with --retry, -w waits for the store, too",
               err->msg);
    return message_error(r->o, &more);
}

void report_cancelled(struct report *r)
{
    r->wait.waiting = false;
    message_erase();
}

void report_continue(struct report *r)
{
    if (r->wait.waiting && message_draws())
        r->wait.report_at = dlock_max(dlock_now(), r->wait.since + WAIT_FIRST);
}

void report_granted(struct report *r)
{
    char lock[LOCK_TEXT_MAX], text[32];
    int64_t waited = dlock_now() - r->wait.since;
    report_cancelled(r);
    if (r->lk) {
        const struct dlock_info held = {.mode = r->o->lock_mode,
                                        .slots = (unsigned)r->o->slots,
                                        .slot = dlock_slot(r->lk) + 1,
                                        .fence = dlock_fence(r->lk)};
        events_granted(r->events, &held, dlock_time_left(r->lk), dlock_now());
    }
    if (r->wait.said || message_tells(r->o, ABOUT_DETAIL))
        message("got %s after %s", short_text(r, r->lk, lock),
                waited < DLOCK_SEC ? dlock_format_duration(waited, text, sizeof(text))
                                   : message_duration(waited, text, sizeof(text)));
}

/* Why the lock is not granted. Returns buf. */
static const char *holder_text(const struct dlock_info *i, bool kept, char *buf, size_t size)
{
    int n = snprintf(buf, size, kept ? "kept for an earlier waiter; " : "");
    message_holder(i, buf + n, size - (size_t)n);
    return buf;
}

void report_busy(struct report *r, const struct dlock_info *info, bool kept)
{
    const struct options *o = r->o;
    char lock[LOCK_TEXT_MAX], holder[HOLDER_TEXT_MAX], waited[32], after[48] = "";
    const char *still = o->nonblock ? "" : "still ";
    report_cancelled(r);
    r->outcome = o->nonblock ? EVENTS_BUSY : EVENTS_TIMEOUT;
    if (!message_tells(o, message_about_busy(o)))
        return;
    subject(r, "", lock);
    if (!o->nonblock)
        snprintf(after, sizeof(after), " after %s",
                 message_duration(o->wait_ns, waited, sizeof(waited)));
    if (info || is_local(r->lk))
        message("%s is %sbusy%s: %s", lock, still, after,
                holder_text(info, kept, holder, sizeof(holder)));
    else /* the lock is kept for the first waiter, or the store does not grant locks yet */
        message("%s is %snot available%s", lock, still, o->nonblock ? " yet" : after);
}

void report_skipped(struct report *r, const struct dlock_run *run)
{
    char lock[LOCK_TEXT_MAX], text[HOLDER_TEXT_MAX];
    report_cancelled(r);
    r->outcome = EVENTS_SKIPPED;
    if (message_tells(r->o, ABOUT_HELD))
        message("not run: %s %s", subject(r, "", lock),
                message_run(run, false, text, sizeof(text)));
}

void report_stays(const struct report *r, int64_t left)
{
    char lock[LOCK_TEXT_MAX], text[32];
    if (message_tells(r->o, ABOUT_WAIT))
        message("%s stays held for %s (--min-hold); a signal ends this wait", subject(r, "", lock),
                message_duration(left, text, sizeof(text)));
}

void report_unrecorded(const struct report *r, const struct dlock_error *err)
{
    char lock[LOCK_TEXT_MAX];
    message("%s: the command succeeded, but its run is not recorded: %s; another run may follow",
            subject(r, "", lock), err->msg[0] ? err->msg : "no answer");
}

void report_own(struct report *r, const struct dlock_info *info, const struct dlock_error *err)
{
    char lock[LOCK_TEXT_MAX], holder[HOLDER_TEXT_MAX];
    report_cancelled(r);
    r->outcome = EVENTS_BUSY;
    if (!message_tells(r->o, ABOUT_TIMEOUT))
        return;
    if (err)
        message("%s", err->msg);
    else
        message("%s is busy: this dlock runs under its holder, and would wait for itself; %s",
                subject(r, "", lock), message_holder(info, holder, sizeof(holder)));
}

void report_no_inner(const struct report *r, int sys)
{
    if (message_tells(r->o, ABOUT_DETAIL))
        message("a dlock below this one that takes the same lock will be refused: %s",
                strerror(sys));
}

void report_again(struct report *r, const dlock *lk, const struct dlock_error *why, bool above)
{
    r->lk = r->first = r->wait.lk = lk;
    if (message_tells(r->o, ABOUT_DETAIL))
        message("%s; asking the %s", why->msg, above ? "next dlock above" : "store");
}

static int64_t line_at(const struct report *r)
{
    return r->wait.news ? dlock_min(r->wait.report_at, r->wait.news_at) : r->wait.report_at;
}

/* The time of the next line about the wait, or of a look for the foreground. */
static int64_t line_wake(const struct report *r)
{
    bool told = r->wait.waiting && message_tells(r->o, ABOUT_WAIT);
    return told ? dlock_min(line_at(r), r->wait.fg_at) : DLOCK_NEVER;
}

int64_t report_wake(const struct report *r)
{
    bool event = r->events && r->wait.waiting && r->wait.event_news;
    return dlock_min(line_wake(r), event ? r->wait.event_at : DLOCK_NEVER);
}

/* ", 3rd in line"; "" for an unknown place. */
static const char *place_text(int place, char *buf, size_t size)
{
    static const char *const ends[] = {"th", "st", "nd", "rd"};
    int last = place / 10 % 10 == 1 || place % 10 > 3 ? 0 : place % 10;
    if (place > 1)
        snprintf(buf, size, ", %d%s in line", place, ends[last]);
    else
        snprintf(buf, size, "%s", place == 1 ? ", next in line" : "");
    return buf;
}

const char *report_wait_text(const struct report *r, int64_t now, char *buf, size_t size)
{
    char lock[LOCK_TEXT_MAX], other[LOCK_TEXT_MAX], cause[HOLDER_TEXT_MAX] = "";
    char waited[32], limit[32], place[48];
    bool also = r->wait.lk != r->first;
    bool bounded = r->o->wait_ns != DLOCK_NEVER;
    int64_t whole = (now - r->wait.since) / DLOCK_SEC * DLOCK_SEC;
    if (!r->wait.away && (r->wait.have_holder || is_local(r->wait.lk)))
        holder_text(r->wait.have_holder ? &r->wait.holder : NULL, r->wait.kept, cause,
                    sizeof(cause));
    else if (r->wait.away || !r->wait.answered)
        snprintf(cause, sizeof(cause), "no answer%s from %s", r->wait.answered ? "" : " yet",
                 dlock_where(r->wait.lk));
    snprintf(buf, size, "waiting for %s%s%s: %s%s%s%s%s%s", short_text(r, r->first, lock),
             also ? ", now for " : "", also ? short_text(r, r->wait.lk, other) : "",
             message_duration(whole, waited, sizeof(waited)), bounded ? " of " : "",
             bounded ? message_duration(r->o->wait_ns, limit, sizeof(limit)) : "",
             place_text(r->wait.away ? 0 : r->wait.place, place, sizeof(place)),
             cause[0] ? "; " : "", cause);
    return buf;
}

void report_tick(struct report *r, int64_t now)
{
    char text[LOCK_TEXT_MAX + HOLDER_TEXT_MAX];
    tell_event(r, now);
    if (now < line_wake(r))
        return;
    bool draws = message_draws();
    r->wait.fg_at = !draws && message_could_draw() ? now + WAIT_REDRAW : DLOCK_NEVER;
    if (!draws && now < line_at(r))
        return;
    report_wait_text(r, now, text, sizeof(text));
    if (draws) {
        message_draw(text);
        r->wait.news = false;
        /* At a full second of the wait, so that the line shows every second. */
        r->wait.report_at = now + WAIT_REDRAW - (now - r->wait.since) % WAIT_REDRAW;
        r->wait.news_at = r->wait.report_at; /* not at each of many short jobs */
    } else {
        message("%s", text);
        if (r->wait.news && r->wait.said) {
            bool burst = now - r->wait.news_at < WAIT_EVERY;
            r->wait.pause = burst ? dlock_min(2 * r->wait.pause, WAIT_EVERY) : WAIT_FIRST;
        }
        if (r->wait.have_holder)
            r->wait.reported = r->wait.holder;
        r->wait.news = false;
        r->wait.report_at = now + WAIT_EVERY;
        r->wait.news_at = now + r->wait.pause;
    }
    r->wait.said = true;
}

/* ----------------------------------------------------------- trouble --- */

/* To a tenth of a second. */
static const char *tenths(int64_t ns, char *buf, size_t size)
{
    const int64_t tenth = 100 * DLOCK_MSEC;
    return dlock_format_duration(ns < DLOCK_SEC ? ns : (ns + tenth / 2) / tenth * tenth, buf, size);
}

void report_trouble(struct report *r, const struct dlock_report *t)
{
    const struct dlock_times *times = &t->times;
    bool warn = r->o->on_lost == ON_LOST_WARN;
    const char *colon = t->error.msg[0] ? ": " : "";
    char lock[LOCK_TEXT_MAX], since[32], left[32];
    int64_t at = warn ? times->deadline : times->term_at;
    int64_t now = dlock_lease_now(times->raw_minus_boot);
    events_trouble(r->events, t->error.msg, t->since,
                   r->wait.waiting ? -1 : dlock_max(0, times->term_at - now), dlock_now());
    /* Not for a lock of a set that is held already. */
    if (r->wait.waiting && !(r->lk && dlock_time_left(r->lk) > 0)) {
        waits_for_this(r);
        r->wait.away = true;
    }
    if (!message_tells(r->o, r->wait.waiting ? ABOUT_WAIT : ABOUT_TROUBLE))
        return;
    r->wait.said = true;
    if (r->wait.waiting)
        message("%s: waiting without a connection%s%s", subject(r, "", lock), colon, t->error.msg);
    else
        message("%s has not been renewed for %s%s%s; %s in %s unless the store answers",
                subject(r, "the lock ", lock), tenths(dlock_now() - t->since, since, sizeof(since)),
                colon, t->error.msg, warn ? "it expires" : "the command will be ended",
                tenths(at - now, left, sizeof(left)));
}

void report_recovered(struct report *r, const struct dlock_report *t)
{
    char lock[LOCK_TEXT_MAX], since[32];
    events_recovered(r->events, t->since, dlock_now());
    if (r->lk == r->wait.lk)
        r->wait.away = false;
    if (!message_tells(r->o, r->wait.waiting ? ABOUT_WAIT : ABOUT_TROUBLE))
        return;
    tenths(dlock_now() - t->since, since, sizeof(since));
    if (r->wait.waiting)
        message("%s: connected again after %s", subject(r, "", lock), since);
    else
        message("%s is renewed again after %s", subject(r, "the lock ", lock), since);
}

/* -------------------------------------------------------------- hold --- */

void report_overrun(const struct report *r, bool left)
{
    char lock[LOCK_TEXT_MAX], limit[32];
    message("%s has not ended within %s (--max-run); ending it",
            subject(r, left ? "a dlock under the lock " : "the command under the lock ", lock),
            dlock_format_duration(r->o->max_run_ns, limit, sizeof(limit)));
}

/* How the lock was lost, in the words of a message. */
static const char *loss_text(enum loss_kind kind)
{
    switch (kind) {
    case LOSS_BROKEN:
        return "was broken";
    case LOSS_CERTAIN:
        return "is lost";
    case LOSS_AT_RELEASE:
    case LOSS_WITH_RECORD:
        return "was not ours any more when it was released";
    default:
        return "could not be renewed in time";
    }
}

void report_lost(const struct report *r, const struct loss *l, bool ended)
{
    const char *what = loss_text(l->kind), *consequence = "; ending the command";
    char lock[LOCK_TEXT_MAX];
    if (l->kind == LOSS_AT_RELEASE)
        consequence = "";
    else if (l->kind == LOSS_WITH_RECORD)
        consequence = "; the command succeeded, but its run is not recorded";
    else if (ended)
        consequence = "; the command has ended";
    else if (r->o->on_lost == ON_LOST_WARN && l->kind != LOSS_BROKEN)
        consequence = "; the command continues (--on-lost warn)";
    const char *join = l->kind == LOSS_BROKEN ? " " : ": ";
    events_lost(r->events, l->kind == LOSS_BROKEN, l->cause[0] ? l->cause : what);
    message("%s %s%s%s%s", subject(r, "the lock ", lock), what, l->cause[0] ? join : "", l->cause,
            consequence);
}

/* ----------------------------------------------------------- release --- */

void report_release_unclear(const struct report *r, const struct dlock_error *err)
{
    char lock[LOCK_TEXT_MAX];
    if (!message_tells(r->o, ABOUT_RELEASE))
        return;
    /* A file is free, and only its run record is missing. Other stores may have released. */
    if (dlock_is_local(r->lk))
        message("%s: the end of the run is not recorded: %s", subject(r, "", lock), err->msg);
    else
        message("%s is not confirmed: %s; the lock ends with its ttl%s at the latest",
                subject(r, "the release of ", lock), err->msg[0] ? err->msg : "no answer",
                r->o->min_hold_ns ? " or --min-hold" : "");
}

void report_released(struct report *r, enum dlock_release_how how)
{
    static const char *const words[] = {
        [DLOCK_RELEASE_CLEAN] = "confirmed",
        [DLOCK_RELEASE_NOT_OURS] = "not-ours",
        [DLOCK_RELEASE_UNCLEAR] = "unconfirmed",
        [DLOCK_RELEASE_NOTHING] = "nothing",
    };
    events_released(r->events, words[how], dlock_now());
}

void report_end(struct report *r, const struct loss *l, struct events_end end)
{
    if (end.outcome == EVENTS_UNAVAILABLE || end.outcome == EVENTS_ERROR)
        end.reason = message_last();
    else if (l->kind != LOSS_NONE)
        end.reason = l->cause[0] ? l->cause : loss_text(l->kind);
    events_end(r->events, &end, dlock_now());
}
