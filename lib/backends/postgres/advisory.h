/* advisory.h - what the files pg_advisory*.c share. */
#ifndef DLOCK_PG_ADVISORY_H
#define DLOCK_PG_ADVISORY_H

#include "postgres.h"

#define CHUNK_MS 900             /* one statement waits no longer */
#define WITH_IDLE_TIMEOUT 140000 /* the first version that ends a silent session */

static inline int64_t pg_advisory_ttl_ms(const struct dlock_be *be)
{
    return be->spec->ttl / DLOCK_MSEC;
}

/* advisory_sql.c: the statements, malloc'ed; NULL: out of memory. */
/* Look at the session and the server, and take the lock (try) or its fence only. Answers one row of these. */
enum { R_PID, R_STANDBY, R_GRACE, R_IDLE, R_LOCKED, R_LSN, R_WAL, R_COLUMNS };
char *pg_advisory_lock_sql(const struct dlock_be *, bool try);
/* Wait for the lock, CHUNK_MS or fairly without end. Answers our token: it is ours. */
char *pg_advisory_wait_sql(const struct dlock_be *);
char *pg_advisory_beat_sql(const struct dlock_be *);
char *pg_advisory_unlock_sql(const struct dlock_be *);

/* advisory_renew.c */
void pg_advisory_renew(struct dlock_be *);
void pg_advisory_release(struct dlock_be *);
void pg_advisory_beat_answered(struct dlock_be *, const struct pg_reply *);
/* While a release is under way. */
void pg_advisory_answered_late(struct dlock_be *, const struct pg_reply *);

#endif
