/* lock.h - the state of a lock: for the core, and for unit tests, which inject a clock. */
#ifndef DLOCK_LOCK_H
#define DLOCK_LOCK_H

#include "ask.h"
#include "handle.h"
#include "lease.h"

/* The part of -w's 100 ms tolerance that is left for an orderly exit from the queue. */
#define UNDO_BRIEF (60 * DLOCK_MSEC)
/* Undo after a failure that no -w bounds. */
#define UNDO_TIME (500 * DLOCK_MSEC)
/* Until when to undo a failed acquire. wait_until: the end of -w; DLOCK_NEVER: none. */
static inline int64_t lock_undo_until(int64_t now, int64_t wait_until)
{
    int64_t until = now + UNDO_TIME;
    if (wait_until == DLOCK_NEVER)
        return until;
    return dlock_min(until, dlock_after(dlock_max(now, wait_until), UNDO_BRIEF));
}

enum lock_phase {
    LOCK_IDLE,
    LOCK_RESOLVING, /* names to addresses, before the first contact */
    LOCK_PAUSING,   /* the first contact has failed; the next try is at retry_at */
    LOCK_ACQUIRING,
    LOCK_HELD,
    LOCK_RELEASING, /* or undoing an acquire */
    LOCK_ASKING     /* a status query, or an order to forget a record */
};

/* What follows a release: a report, another acquire at once, or a pause and a first contact. */
enum lock_then { THEN_RELEASED, THEN_BUSY, THEN_FAILED, THEN_AGAIN, THEN_RETRY };

struct dlock {
    struct handle head;
    struct dlock_env noting_env; /* the backend's env: notes each reading in clocks */
    struct lease_clocks clocks;
    struct dlock_options opt;
    struct dlock_uri *uri;
    const struct dlock_backend *table;
    struct dlock_be *be;
    struct dlock_spec spec;
    struct dlock_identity identity;
    struct dlock_hold hold; /* spec.hold */
    struct lease_config lease_cfg;
    struct lease lease;
    /*
     * lease_end() while the lock is held, else 0, for the calls that any thread may make. Each
     * clock's end is a promise of its own: a reader that sees one old and one new end takes the
     * earlier of two valid ends.
     */
    _Atomic int64_t end_boot, end_raw;

    struct {
        struct dlock_resolver *resolver; /* a look-up under way, or NULL */
        struct dlock_peer *peers;        /* spec.peers, owned by the handle */
        int64_t resolved_at;             /* when the last look-up ended or began */
        int64_t partly_at;               /* from then on the hosts with an address must suffice */
    } names;

    enum lock_phase phase;
    enum lock_phase want; /* LOCK_ACQUIRING or LOCK_ASKING, once the names are resolved */
    enum lock_then then;
    bool was_lost;      /* the loss was reported before the release */
    int64_t asked_at;   /* when the caller began */
    int64_t wait_until; /* -w */
    int64_t contact_by; /* --connect-timeout */
    bool contacted;     /* the store has answered at least once */
    bool unanswered;    /* the backend's current acquire has no answer yet */
    bool begins_again;  /* in a set: the store answered an earlier try, this is no first contact */
    bool say_ignored;   /* parameters of the URI are ignored, and no report has said so yet */
    int unusable;       /* how often this acquire was granted too late */

    int64_t retry_at; /* LOCK_PAUSING */
    struct dlock_backoff retry_pause;
    int64_t away_since; /* begin of a reported outage during a wait; 0: none */
    int64_t back_since; /* away_since of an outage whose end is not reported yet; 0: none */

    uint64_t fence;
    char fence_text[24];
    int slot;             /* counted from 1; 0: none */
    enum dlock_mode mode; /* of the hold: with CAP_NESTED, the outer's */
    unsigned slots;
    char token[DLOCK_TOKEN_LEN + 1];
    struct dlock_info holder; /* as last seen while waiting; or whose hold is to be broken */
    bool have_holder;
    struct ask ask;                   /* LOCK_ASKING, of a question in steps */
    struct dlock_question question;   /* LOCK_ASKING; its holder is the handle's */
    char record[DLOCK_TOKEN_LEN + 1]; /* question.token */
    bool broken;                      /* while held: another process has marked the hold */
    struct dlock_error why; /* the latest reason for trouble; while held: since the last renewal */
    struct dlock_error end; /* why TERM or LOST was reported */
    int64_t lease_due;      /* lease_wake() as of the last dlock_interest() */
    struct dlock_backoff failures; /* pauses between failing calls: dlock_report.retry_at */
    struct dlock_report report;    /* to be given next; NONE: none */
    struct dlock_report given;     /* the last one given */
};

/* Give the handle, and through spec.env its backend, these clocks. ttl: asked of the store. */
void lock_set_env(dlock *, const struct dlock_env *, int64_t ttl);
/* Of a handle that is a lock; the operations below are also for a set, which drives its locks. */
extern const struct handle_ops lock_ops;
void lock_start_acquire(dlock *);
void lock_start_release(dlock *, int64_t until);
void lock_start_renew(dlock *);
/*
 * Held in a set that is complete: with spec.once, have the run recorded as running. True: the
 * record is there, or there is none. False: call again. A report FAILED may follow.
 */
bool lock_begin_run(dlock *);
int lock_interest(dlock *, struct pollfd *, int cap, int64_t *wake_at);
const struct dlock_report *lock_process(dlock *, const struct pollfd *, int n);
void lock_close(dlock *);
enum dlock_state lock_state(const dlock *);

/* TERM or LOST was reported for this hold. */
bool lock_is_ending(const dlock *);
/*
 * The wait ends now: has the store not answered since it began, or since an outage began? Then err
 * is the failure. waited: since it began.
 */
bool lock_unanswered(const dlock *, int64_t waited, struct dlock_error *err);
/* Does this report, not given yet, end an acquire or a query, which goes on until then? */
bool lock_end_waits(const struct dlock_report *);
/* dlock_report.retry_at after this failure. */
int64_t lock_retry_at(const struct dlock_error *, struct dlock_backoff *, const struct dlock_env *);
/* dlock_report.kept, during a wait or after one that ended without the lock. */
bool lock_kept(const dlock *);

#endif
