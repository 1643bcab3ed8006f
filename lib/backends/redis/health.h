/*
 * health.h - warnings about a Redis server: a set-up that loses locks, and a clock that jumps. For
 * every backend with locks in Redis; nothing here waits.
 */
#ifndef DLOCK_REDIS_HEALTH_H
#define DLOCK_REDIS_HEALTH_H

#include "backends/networked.h"
#include "conn.h"

/* ----------------------------------------------------------------------- INFO */

/*
 * The value of the line "key:value" in an INFO reply, cut to size and fit for a message. False, and
 * out is empty: there is no such line.
 */
bool redis_info_value(const char *info, size_t len, const char *key, char *out, size_t size);
/* "INFO memory": true: the server may evict keys with an expiry; warning is for EV_NOTICE. */
bool redis_check_eviction(const char *info, size_t len, const char *where,
                          struct dlock_error *warning);
/*
 * "INFO persistence": true: a crash of the server loses the lock, and no restart grace (ns) of at
 * least the ttl (ns) keeps other clients out meanwhile; warning is for EV_NOTICE.
 */
bool redis_check_persistence(const char *info, size_t len, const char *where, int64_t ttl,
                             int64_t grace, struct dlock_error *warning);

/* INFO is refused. */
void redis_check_refused(const char *where, struct dlock_error *warning);
/* True: a password was sent, and the server has none. */
bool redis_check_password(const struct redis_conn *, struct dlock_error *warning);

/*
 * Both checks, and: was a password needed, is INFO refused? Once for each handle, after its first
 * grant; of several servers with the same trouble the first is named. Zeroed: not asked yet.
 */
struct redis_checks {
    bool due, asked, refused, evicts;
    struct dlock_error warnings[3]; /* not taken yet */
    int nwarnings;
};

/* The lock was granted: redis_checks_ask is due once the command has been started. */
static inline void redis_checks_granted(struct redis_checks *c)
{
    c->due = !c->asked;
}
/* Queue INFO for each section under this tag, and write it. persistence: ask for it too. */
void redis_checks_ask(struct redis_checks *, struct redis_conn *, int tag, bool persistence);
/* A reply under this tag. */
void redis_checks_answered(struct redis_checks *, const redisReply *, const char *where,
                           int64_t ttl, int64_t grace);
/*
 * The next warning. False: none, or the queue has something more important; a release is the last
 * chance.
 */
bool redis_checks_take(struct redis_checks *, const struct event_queue *, struct dlock_event *);

/* ---------------------------------------------------------------------- clock */

/* The bounds of the lead of the server's wall clock over BOOTTIME, ns. Zeroed: unknown. */
struct redis_clock {
    int64_t least, most;
    int64_t at; /* our clock then; 0: never read */
};

/*
 * A reply was received to a command sent earlier (both times ns, our clock), with the server's
 * clock theirs_ms (Unix, ms; 0: not told). Returns the jump of this clock since the last reply, ns;
 * 0: no more than round trips, drift and 0.5 s explain.
 */
int64_t redis_clock_jump(struct redis_clock *, int64_t theirs_ms, int64_t sent, int64_t received);
/* "the server's clock was set forward by 60 s": a part of a message. */
const char *redis_clock_text(int64_t jump, char *buf, size_t size);
/* The whole warning. */
void redis_clock_warning(int64_t jump, const char *where, struct dlock_error *warning);

#endif
