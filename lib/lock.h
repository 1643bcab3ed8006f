/* lock.h - what a handle is made of: for the files lock*.c alone (and their tests, which inject a clock). */
#ifndef DLOCK_LOCK_H
#define DLOCK_LOCK_H

#include "backend.h"
#include "lease.h"

/* What is left of -w's 100 ms tolerance for leaving the queue in an orderly way. */
#define LOCK_UNDO_BRIEF (60 * DLOCK_MSEC)

enum lock_phase {
    PH_IDLE,
    PH_RESOLVING, /* names to addresses, first contact */
    PH_ACQUIRING,
    PH_HELD,
    PH_RELEASING,
    PH_ASKING
};

/* What a release is for, and so what is reported when it is done. */
enum lock_then { THEN_RELEASED, THEN_BUSY, THEN_FAILED, THEN_AGAIN };

struct dlock {
    struct dlock_options opt;
    struct dlock_uri *uri;
    const struct dlock_backend *table;
    struct dlock_be *be;
    struct dlock_spec spec;
    struct dlock_who who;
    struct lease_config lease_cfg;
    struct lease lease;

    struct dlock_resolver *resolver; /* a look-up under way, or NULL */
    struct dlock_peer *peers;
    int64_t resolved_at;
    int64_t partly_at; /* from then on, the names that have an address must do */

    enum lock_phase phase, want;
    enum lock_then then;
    int64_t wait_until; /* -w */
    int64_t contact_by; /* --connect-timeout */
    bool contacted;     /* the store has answered at least once */
    int unusable;       /* grants that came too late, in this acquire */

    uint64_t fence;
    char token[DLOCK_TOKEN_LEN + 1];
    struct dlock_info holder; /* as last seen while waiting */
    bool have_holder;
    struct dlock_error why; /* the latest reason for trouble */
    struct dlock_report report;
};

static inline int64_t lock_now(const dlock *d)
{
    return d->spec.env->now(d->spec.env->ctx);
}

/* lock.c: the addresses are known: begin what is wanted; or it has failed, and why says for what reason. */
void lock_ask_backend(dlock *);
void lock_report_failed(dlock *);

/* lock_names.c: while a look-up is under way: what has it brought? */
void lock_resolved(dlock *);
/* The store may have moved: look again, beside whatever goes on with the addresses we have. */
void lock_resolve_again(dlock *);

#endif
