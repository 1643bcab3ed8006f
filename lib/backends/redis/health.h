/*
 * health.h - what a Redis server's own set-up means for the locks in it, and whether its clock jumps.
 * For every backend that locks in Redis; nothing here sends or waits by itself.
 */
#ifndef DLOCK_REDIS_CHECKS_H
#define DLOCK_REDIS_CHECKS_H

#include "conn.h"

/* ------------------------------------------------------------------------ INFO */

/*
 * The value of "key:value" in the text of an INFO answer, cut to size and fit for a message. False, and out is
 * empty: there is no such line.
 */
bool redis_info_value(const char *info, size_t len, const char *key, char *out, size_t size);
/* "INFO memory": true: keys with an expiry may be evicted; warning is filled in (EV_NOTICE). */
bool redis_check_eviction(const char *info, size_t len, const char *where,
                          struct dlock_error *warning);
/*
 * "INFO persistence": true: the server's crash loses the lock, and no restart grace (ns) of at least the ttl
 * (ns) keeps others out meanwhile; warning is filled in.
 */
bool redis_check_persistence(const char *info, size_t len, const char *where, int64_t ttl,
                             int64_t grace, struct dlock_error *warning);

/* Both, asked once for each handle after its first grant. Zeroed: not asked yet. */
struct redis_checks {
    bool due, asked, refused;
    struct dlock_error told[2]; /* not handed out yet */
    int ntold;
};

/* Granted: to be asked when the command has been started. */
void redis_checks_granted(struct redis_checks *);
/* Queue what is due, under these tags, and write it. persistence: is it of interest? */
void redis_checks_ask(struct redis_checks *, struct redis_conn *, int memory_tag,
                      int persistence_tag, bool persistence);
void redis_checks_memory(struct redis_checks *, const redisReply *, const char *where);
void redis_checks_persistence(struct redis_checks *, const redisReply *, const char *where,
                              int64_t ttl, int64_t grace);
/* The next one to be told (as EV_NOTICE); false: none. */
bool redis_checks_take(struct redis_checks *, struct dlock_error *);

/* ----------------------------------------------------------------------- clock */

/*
 * The server's wall clock against ours (BOOTTIME): between which values its lead was when it was last told, ns.
 * Zeroed: not known.
 */
struct redis_clock {
    int64_t least, most;
    int64_t at; /* our clock then; 0: never told */
};

/*
 * The server has said that it is theirs_ms (Unix, ms; 0: it has not said) in an answer that came at received to
 * what left at sent (both ns, our clock). Returns by how much its clock has jumped since the last time, ns;
 * 0: not by more than round trips, drift and 0.5 s explain.
 */
int64_t redis_clock_told(struct redis_clock *, int64_t theirs_ms, int64_t sent, int64_t received);
/* "the server's clock was set forward by 60 s": a piece of a message. */
const char *redis_clock_text(int64_t jump, char *buf, size_t size);
/* The whole warning. */
void redis_clock_warning(int64_t jump, const char *where, struct dlock_error *warning);

#endif
