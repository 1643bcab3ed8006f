/*
 * report.h - messages and events of a run. The keeper calls this object when something happens, and
 * the object decides what is printed, how, and when. No call blocks or changes the run.
 */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include "events.h"
#include "options.h"

/* The loss of the lock: one value for the whole run. */
enum loss_kind {
    LOSS_NONE,
    LOSS_UNREPORTED, /* noticed by the guard: the store may say the cause in the same turn */
    LOSS_EXPIRED,    /* the lease was not renewed in time */
    LOSS_BROKEN,     /* --break: cause: by whom; the command ends even with --on-lost warn */
    LOSS_CERTAIN,    /* the store says that the lock is not ours */
    LOSS_AT_RELEASE, /* the store says so when the lock is released */
    LOSS_WITH_RECORD /* the same, and the release should have recorded a success (--once) */
};

struct loss {
    enum loss_kind kind;
    char cause[sizeof((struct dlock_error){0}.msg)]; /* "": unknown */
};

struct report {
    const struct options *o;
    const dlock *lk;    /* NULL: the lock is on the descriptor of the options */
    const dlock *first; /* of a set: LOCK, which is what the run waits for and gets */
    struct events *events;
    struct {
        const dlock *lk; /* of a set: the lock that is waited for, if known */
        int64_t since;
        struct dlock_info holder, reported; /* last seen; last printed */
        bool have_holder;
        bool kept;         /* for an earlier waiter: the holder would share the lock */
        int place;         /* in the queue; 0: unknown; -1: the store has not said yet */
        bool waiting;      /* not granted, refused or cancelled yet */
        bool answered;     /* the store says that we must wait */
        bool away;         /* the store does not answer now */
        bool said;         /* a line about the wait was printed */
        bool news;         /* a new holder since the last line */
        int64_t report_at; /* time of the next line about the wait */
        int64_t news_at;   /* the same if there is news */
        int64_t pause;     /* between two lines about news */
        int64_t fg_at;     /* in the background: time to check for the foreground */
        bool event_news;   /* since the last event about the wait */
        int64_t event_at;  /* no event about the wait before this time */
    } wait;
    enum events_outcome outcome; /* of a wait that ended without the lock */
};

/* The wait for lk (may be NULL) begins. The caller may close lk before the report ends. */
void report_begin(struct report *, const struct options *, const dlock *lk, struct events *);
/* The wait, which has begun without a lock, is for lk. */
void report_lock(struct report *, const dlock *lk);
/* The following reports are about this lock of a set. */
void report_about(struct report *, const dlock *);
/* DLOCK_REPORT_WAITING. An event for each change, but at most one a second. */
void report_waiting(struct report *, const struct dlock_report *);
/* DLOCK_REPORT_ACQUIRED. */
void report_granted(struct report *);
/* The socket for inner dlocks could not be made; sys: errno. */
void report_no_inner(const struct report *, int sys);
/* DLOCK_REPORT_BUSY: the wait has ended without the lock. */
void report_busy(struct report *, const struct dlock_info *, bool kept);
/*
 * The holder is a dlock above this process: no wait would end. info: the holder in the store; or
 * err: the holder's own answer. Printed without -q, also with -n: the script has a mistake.
 */
void report_own(struct report *, const struct dlock_info *, const struct dlock_error *err);
/* The attempt continues with the handle lk. above: at another dlock above this process. */
void report_again(struct report *, const dlock *lk, const struct dlock_error *why, bool above);
/* DLOCK_REPORT_FAILED. Returns the exit code. */
int report_failed(struct report *, const struct dlock_error *);
/* A signal or an error ends the wait. */
void report_cancelled(struct report *);
/* This process was stopped and continues, maybe in the background. Before: message_erase(). */
void report_continue(struct report *);
/* DLOCK_REPORT_TROUBLE, DLOCK_REPORT_RECOVERED: while waiting or holding. */
void report_trouble(struct report *, const struct dlock_report *);
void report_recovered(struct report *, const struct dlock_report *);
/* --max-run has passed. left: the command has ended, but inner dlocks still run under the lock. */
void report_overrun(const struct report *, bool left);
/* ended: the command has ended before the loss. */
void report_lost(const struct report *, const struct loss *, bool ended);
/* The store has not confirmed the release; err: its reason, or empty. */
void report_release_unclear(const struct report *, const struct dlock_error *);

/* DLOCK_REPORT_SKIPPED: the wait has ended without the lock. */
void report_skipped(struct report *, const struct dlock_run *);
/* --min-hold: the command has ended, and the lock stays held for left ns. */
void report_stays(const struct report *, int64_t left);
/* --once: the command has succeeded, but the store has not confirmed the run record. */
void report_unrecorded(const struct report *, const struct dlock_error *);

/* DLOCK_REPORT_RELEASED. */
void report_released(struct report *, enum dlock_release_how);
/* The run is over. end: the outcome without its reason. Waits for a slow reader of the events. */
void report_end(struct report *, const struct loss *, struct events_end end);

/* The time of the next report_tick(), or DLOCK_NEVER. */
int64_t report_wake(const struct report *);
void report_tick(struct report *, int64_t now);
/* The line about the wait at this time, for report_tick() and tests. Returns buf. */
const char *report_wait_text(const struct report *, int64_t now, char *buf, size_t size);

#endif
