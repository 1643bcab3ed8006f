/* advisory_sql.h - what advisory mode sends to the server, and the columns of the answers. */
#ifndef DLOCK_PG_ADVISORY_SQL_H
#define DLOCK_PG_ADVISORY_SQL_H

#include "postgres.h"

#define WITH_IDLE_TIMEOUT 140000 /* the first version that ends a silent session */
#define CHUNK_MS 900             /* one statement waits no longer */
#define WAIT_IDLE_MS 3000 /* a waiter that is silent for so long, or for a ttl, loses its place */

/* In the error of the statement gate. */
#define FOUND_POOLER "dlock finding: pooler;"
#define FOUND_STANDBY "dlock finding: standby;"

/* Each message is malloc'ed; NULL: out of memory. */

/* The answer to a try, or to a confirmation, which follows a wait that brought the main key. */
enum {
    R_WAL,
    R_GRACE,
    R_LEASE,
    R_MAIN,
    R_TURN,
    R_LSN, /* NULL: not granted */
    R_COLUMNS,
    R_SIZE = R_COLUMNS, /* of a try for a slot */
    R_OTHER,            /* a number of slots in use that differs from ours; 0: none */
    R_SLOT,             /* counted from 1; 0: none */
    R_SLOT_COLUMNS
};
char *adv_try_sql(const struct pg_backend *);
char *adv_confirm_sql(const struct pg_backend *);

/*
 * Wait for the key of be->advisory.awaits, for CHUNK_MS, or with ?fair=1 without end. The answer is
 * our token if we have got the key.
 */
char *adv_wait_sql(const struct pg_backend *);
/* Hear of each slot that is given back. Answers our token. */
char *adv_listen_sql(const struct pg_backend *);
char *adv_renew_sql(const struct pg_backend *);
/* Answers true if we still had all granted locks. */
char *adv_unlock_sql(const struct pg_backend *);

/* Sessions that hold the lock or wait for it, and the last query of each. */
enum { S_PID, S_GRANTED, S_SHARED, S_SLOTS, S_USER, S_QUERY, S_CLIENT, S_BEGIN, S_IDLE, S_APP };
/* At most a single holder. */
char *adv_holder_sql(const struct pg_backend *);
char *adv_status_sql(const struct pg_backend *);

static inline int64_t adv_ttl_ms(const struct pg_backend *be)
{
    return be->spec->ttl / DLOCK_MSEC;
}
/* The longest silence of a waiter. */
static inline int64_t adv_wait_idle_ms(const struct pg_backend *be)
{
    return dlock_min(adv_ttl_ms(be), WAIT_IDLE_MS);
}

#endif
