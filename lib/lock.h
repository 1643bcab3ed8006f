/* lock.h - the state of a handle: for lock.c, and for its tests, which inject a clock. */
#ifndef DLOCK_LOCK_H
#define DLOCK_LOCK_H

#include "backend.h"
#include "lease.h"

/* What is left of -w's 100 ms tolerance for leaving the queue in an orderly way. */
#define UNDO_BRIEF (60 * DLOCK_MSEC)
/* Undo after a failure that no -w bounds. */
#define UNDO_TIME (500 * DLOCK_MSEC)
/* Until when an acquire that failed is undone. wait_until: the end of -w; DLOCK_NEVER: none. */
static inline int64_t lock_undo_until(int64_t now, int64_t wait_until)
{
    int64_t until = now + UNDO_TIME;
    if (wait_until == DLOCK_NEVER)
        return until;
    return dlock_min(until, dlock_after(dlock_max(now, wait_until), UNDO_BRIEF));
}

enum lock_phase {
    LOCK_IDLE,
    LOCK_RESOLVING, /* hosts, and their names to addresses, before the first contact */
    LOCK_PAUSING,   /* the first contact has failed, and is tried again at retry_at */
    LOCK_ACQUIRING,
    LOCK_HELD,
    LOCK_RELEASING, /* or undoing an acquire */
    LOCK_ASKING     /* a status query, or an order to forget a record */
};

/* What follows a release: the report, another acquire at once, or another first contact after a pause. */
enum lock_then { THEN_RELEASED, THEN_BUSY, THEN_FAILED, THEN_AGAIN, THEN_RETRY };

struct dlock {
    pid_t owner;                 /* the process that has opened it */
    bool in_set;                 /* only its set may drive it */
    const struct dlock_env *env; /* the clocks */
    struct dlock_env noting_env; /* the same for the backend: what it reads is noted in clocks */
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

    struct {
        struct dlock_resolver *resolver; /* a look-up under way, or NULL */
        struct dlock_peer *peers;        /* spec.peers, which we own */
        int64_t resolved_at;             /* when the last look-up ended or began */
        int64_t partly_at; /* from then on, the names that have an address must suffice */
    } names;

    enum lock_phase phase;
    enum lock_phase want; /* LOCK_ACQUIRING or LOCK_ASKING, once the names are resolved */
    enum lock_then then;
    int64_t asked_at;   /* when the caller began */
    int64_t wait_until; /* -w */
    int64_t contact_by; /* --connect-timeout */
    bool contacted;     /* the store has answered at least once */
    bool begins_again;  /* of a set: it has answered before, so this is no first contact */
    bool say_ignored;   /* parameters of the URI are ignored, and no report has said so yet */
    int unusable;       /* how often this acquire was granted too late */

    bool unanswered;  /* no answer yet to this acquire of the backend */
    int64_t retry_at; /* LOCK_PAUSING */
    struct dlock_backoff retry_pause;
    int64_t away_since; /* an outage while we wait, which was reported; 0: none */
    int64_t back_since; /* the same when it is over, and that is not reported yet; or 0 */

    uint64_t fence;
    int slot;             /* counted from 1; 0: none */
    enum dlock_mode mode; /* of the hold: with CAP_NESTED, the outer's */
    unsigned slots;
    char token[DLOCK_TOKEN_LEN + 1];
    struct dlock_info holder; /* as last seen while waiting */
    bool have_holder;
    char
        forget[DLOCK_TOKEN_LEN + 1]; /* LOCK_ASKING: the record that is to go; "": a status query */
    struct dlock_error why; /* the latest reason for trouble; while held: since the last renewal */
    int64_t lease_due;      /* lease_wake() as of the last dlock_interest() */
    bool lost;              /* held, and LOST was reported */
    bool ending; /* held, and TERM was reported: LOST follows at kill_at, renewed or not */
    struct dlock_error end; /* the cause that LOST or TERM had */
    struct dlock_backoff
        failures; /* pauses between acquires and queries that fail: dlock_report.retry_at */
    char fence_text[24];
    struct dlock_report report; /* it waits to be given; NONE: none */
    struct dlock_report given;  /* the last one */
    struct poller *poller;      /* or NULL */
};

/* Give the handle, and its backend through spec.env, these clocks. ttl: that the store is asked for. */
void lock_set_env(dlock *, const struct dlock_env *, int64_t ttl);
/*
 * What the calls of dlock.h do, without a look at the process and at the state: for sets, which have looked, and for the
 * calls themselves.
 */
void lock_start_acquire(dlock *);
void lock_start_release(dlock *, int64_t until);
int lock_interest(dlock *, struct pollfd *, int cap, int64_t *wake_at);
const struct dlock_report *lock_process(dlock *, const struct pollfd *, int n);
void lock_close(dlock *);
/* dlock_set_process() in the process that opened the set, without a kick for its poller. */
const struct dlock_report *lockset_process(dlock_set *, const struct pollfd *, int n);
/* The state in the process that has opened it. */
enum dlock_state lock_state(const dlock *);
/* Is this another process than the one that has opened the handle? */
bool lock_is_foreign(const dlock *);
/* DLOCK_EUSAGE: "this is not possible in state ...". in_set: the caller is not the handle's set. */
int lock_refuse(enum dlock_state, bool in_set, const char *what, struct dlock_error *);

/* A report that has not been given yet: does it end an acquire or a query, which goes on until then? */
bool lock_end_waits(const struct dlock_report *);
/* dlock_report.retry_at after a failure with this code. */
int64_t lock_retry_at(int code, struct dlock_backoff *, const struct dlock_env *);

/* While waiting, or when that has ended without the lock: dlock_report.kept. */
bool lock_kept(const dlock *);

#endif
