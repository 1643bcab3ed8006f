/*
 * report.h - what a run tells: one object that the keeper calls when something happens, and that decides what is
 * printed about it, how, and when. It never blocks and changes nothing in the run.
 */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include "events.h"
#include "options.h"

/* The loss of the lock: one value for the whole run. */
enum loss_kind {
    LOSS_NONE,
    LOSS_UNTOLD,     /* noticed by the guard: the store may say the cause in the same turn */
    LOSS_EXPIRED,    /* the lease was not renewed in time */
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
    const dlock *lk; /* NULL: the lock is on the descriptor of the options */
    struct events *events;
    struct {
        const dlock *lk; /* of a set: the one that is waited for, as far as is known */
        int64_t since;
        struct dlock_info holder, told; /* last seen; last printed */
        bool have_holder;
        bool kept;         /* for an earlier waiter: the holder would share the lock */
        int place;         /* in the queue; 0: unknown */
        bool waiting;      /* not granted, refused or cancelled yet */
        bool answered;     /* the store says that we must wait */
        bool away;         /* it does not answer now */
        bool said;         /* something was printed about the wait */
        bool news;         /* another holder since the last line */
        int64_t report_at; /* the next line about it */
        int64_t news_at;   /* or at this time, if there is news */
        int64_t pause;     /* between two lines about news */
        int64_t fg_at;     /* in the background: when to look whether we still are */
    } wait;
    enum events_outcome outcome; /* of a wait that ended without the lock */
};

/*
 * The wait for lk begins. The pointers stay the caller's and must outlive the report, but for lk after its close. lk:
 * see above.
 */
void report_begin(struct report *, const struct options *, const dlock *lk, struct events *);
/* What follows is about this lock, one of a set. */
void report_about(struct report *, const dlock *);
/* DLOCK_REPORT_WAITING. */
void report_waiting(struct report *, const struct dlock_report *);
/* DLOCK_REPORT_ACQUIRED. */
void report_granted(struct report *);
/* Inner dlocks cannot be told from others: why, an errno. */
void report_no_inner(const struct report *, int sys);
/* DLOCK_REPORT_BUSY: the wait has ended without the lock. */
void report_busy(struct report *, const struct dlock_info *, bool kept);
/*
 * The holder is a dlock that this one runs under, in vain. info: what the store says of it; or err: what it says itself.
 * Said unless -q is given, also with -n: it is a mistake in a script, and no wait would end.
 */
void report_own(struct report *, const struct dlock_info *, const struct dlock_error *err);
/* The attempt goes on with another handle. */
void report_again(struct report *, const dlock *lk, const struct dlock_error *why);
/* DLOCK_REPORT_FAILED. Returns the exit code for it. */
int report_failed(struct report *, const struct dlock_error *);
/* The wait ends for another reason: a signal, an error. */
void report_cancelled(struct report *);
/* We were stopped and have been continued, perhaps in the background. Before a stop: message_erase(). */
void report_continue(struct report *);
void report_notice(const struct report *, const struct dlock_error *);
/* DLOCK_REPORT_EXTENDED. */
void report_extended(struct report *);
/* DLOCK_REPORT_TROUBLE, DLOCK_REPORT_RECOVERED: of the wait, or of the hold. */
void report_trouble(struct report *, const struct dlock_report *);
void report_recovered(struct report *, const struct dlock_report *);
/* --max-run has passed. left: the command has ended, and dlocks that it left behind run under the lock. */
void report_overrun(const struct report *, bool left);
/* The command is sent SIGTERM, and SIGKILL after left ns: the lock is lost, or --max-run has passed. */
void report_term(const struct report *, int64_t left);
/* The command is sent SIGKILL. */
void report_kill(const struct report *);
/* ended: the command has ended before the loss. */
void report_lost(const struct report *, const struct loss *, bool ended);
/* The store has not confirmed the release: it was silent, or says why. */
void report_release_unclear(const struct report *, const struct dlock_error *);

/* DLOCK_REPORT_SKIPPED: the wait has ended without the lock. */
void report_skipped(struct report *, const struct dlock_run *);
/* --min-hold: the command has ended, and the lock stays held for so long. */
void report_stays(const struct report *, int64_t left);
/* --once: the command has succeeded, and the store has not confirmed the record of it. */
void report_unrecorded(const struct report *, const struct dlock_error *);

/* DLOCK_REPORT_RELEASED. */
void report_released(struct report *, enum dlock_release_how);
/*
 * The run is over; lk may be closed. end: the outcome without its reason. Waits for a slow reader of the
 * events.
 */
void report_end(struct report *, const struct loss *, struct events_end end);

/* When report_tick() is due next; DLOCK_NEVER: not by itself. */
int64_t report_wake(const struct report *);
void report_tick(struct report *, int64_t now);
/* The line about the wait as of now, for report_tick() and tests. Returns buf. */
const char *report_wait_text(const struct report *, int64_t now, char *buf, size_t size);

#endif
