/* lock.h - the state of a handle: for lock.c, and for its tests, which inject a clock. */
#ifndef DLOCK_LOCK_H
#define DLOCK_LOCK_H

#include "backend.h"
#include "lease.h"

enum lock_phase {
    LOCK_IDLE,
    LOCK_RESOLVING, /* hosts, and their names to addresses, before the first contact */
    LOCK_ACQUIRING,
    LOCK_HELD,
    LOCK_RELEASING, /* or undoing an acquire */
    LOCK_ASKING     /* a status query */
};

/* What follows a release: the report, or another acquire. */
enum lock_then { THEN_RELEASED, THEN_BUSY, THEN_FAILED, THEN_AGAIN };

struct dlock {
    const struct dlock_env *env; /* the clocks */
    struct dlock_env noting_env; /* the same for the backend: what it reads is noted in clocks */
    struct lease_clocks clocks;
    struct dlock_options opt;
    struct dlock_uri *uri;
    const struct dlock_backend *table;
    struct dlock_be *be;
    struct dlock_spec spec;
    struct dlock_identity identity;
    struct lease_config lease_cfg;
    struct lease lease;

    struct {
        bool locating; /* the backend finds out the hosts: poll locate_fd */
        int locate_fd;
        struct dlock_resolver *resolver; /* a look-up under way, or NULL */
        struct dlock_peer *peers;        /* spec.peers, which we own */
        int64_t resolved_at;             /* when the last look-up ended or began */
        int64_t partly_at; /* from then on, the names that have an address must suffice */
    } names;

    enum lock_phase phase;
    enum lock_phase want; /* LOCK_ACQUIRING or LOCK_ASKING, once the names are resolved */
    enum lock_then then;
    int64_t wait_until; /* -w */
    int64_t contact_by; /* --connect-timeout */
    bool contacted;     /* the store has answered at least once */
    int unusable;       /* how often this acquire was granted too late */

    uint64_t fence;
    char token[DLOCK_TOKEN_LEN + 1];
    struct dlock_info holder; /* as last seen while waiting */
    bool have_holder;
    struct dlock_error why; /* the latest reason for trouble */
    struct dlock_report report;
};

/* Give the handle, and its backend through spec.env, these clocks. ttl: that the store is asked for. */
void lock_set_env(dlock *, const struct dlock_env *, int64_t ttl);

#endif
