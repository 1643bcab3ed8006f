/* advisory_sql.h - what advisory mode sends to the server. */
#ifndef DLOCK_PG_ADVISORY_SQL_H
#define DLOCK_PG_ADVISORY_SQL_H

#include "postgres.h"

#define WITH_IDLE_TIMEOUT 140000 /* the first version that ends a silent session */
#define CHUNK_MS 900             /* one statement waits no longer */
#define WAIT_IDLE_MS 3000 /* a waiter that is silent for so long, or for a ttl, loses its place */

/*
 * The message of a request, malloc'ed; NULL: out of memory.
 *
 *   T_TRY, T_CONFIRM  a confirmation follows a wait that brought the main key
 *   T_WAIT            for the key of be->advisory.awaits, for CHUNK_MS, or with ?fair=1 without
 *                     end; answers our token if we have got the key
 *   T_LISTEN          hear of each slot that is given back; answers our token
 *   T_RENEW           answers false while a session breaks our hold
 *   T_BREAKER         the name of that session
 *   T_BREAK, T_FREE   see advisory_break.c
 *   T_RELEASE         answers true if we still had all granted locks
 *   T_HOLDER          at most a single holder
 *   T_STATUS          all holders and waiters
 */
char *adv_sql(const struct sql_store *, enum sql_tag);
/* Send the request; for lack of memory the session ends. */
void adv_request(struct sql_store *, enum sql_tag);
/* The meaning of an answer that is an error, or not ours. */
void adv_refusal(const struct sql_store *, const struct sql_reply *, struct dlock_error *);

/* advisory_break.c: T_BREAK and T_FREE. */
void adv_break_send(struct sql_store *);
void adv_break_answered(struct sql_store *, const struct sql_reply *);

static inline int64_t adv_ttl_ms(const struct sql_store *be)
{
    return be->spec->ttl / DLOCK_MSEC;
}
/* The longest silence of a waiter. */
static inline int64_t adv_wait_idle_ms(const struct sql_store *be)
{
    return dlock_min(adv_ttl_ms(be), WAIT_IDLE_MS);
}

#endif
