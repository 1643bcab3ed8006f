/*
 * script.h - the Lua scripts of a lock in Redis: texts, arguments, answers.
 *
 * Keys of the lock NAME (PREFIX is "{NAME}:dlock:", or "NAME::dlock:" where NAME has a hash tag of its
 * own, so that all of them share a cluster slot and no two names share a key):
 *   NAME           "<token> <who record>", PX ttl: what every SET NX PX client excludes and is excluded by
 *   PREFIXfence    decimal, the last fencing token; expires after max(24 h, 10 x ttl) of disuse
 *   PREFIXqueue    zset of waiter ids; score: ticket (when it came in us, the server's clock; 4e15 more: it was
 *                  called, did not come, and stands behind the others until it tries again)
 *   PREFIXwaiters  hash: waiter id -> "<alive until, ms> <claim until, ms or 0> <who record>"
 * and the channel PREFIXwake:<waiter id>, on which the server's scripts say
 *   go (it is free and your turn), next (the one before you was called; look in a second),
 *   head (you are the first in line now: watch), ping (nothing: is anybody there?).
 */
#ifndef DLOCK_RSCRIPT_H
#define DLOCK_RSCRIPT_H

#include "conn.h"

#define REDIS_SCRIPT_CLAIM (1000 * DLOCK_MSEC) /* how long one who was called may take */
#define REDIS_SCRIPT_MAX_WAITERS 1000          /* listed by status */

struct redis_script {
    char *name, *prefix; /* malloc'ed */
    char db[16];
    bool torn; /* NAME is such that in a cluster the other keys would be in another slot */
};
/* 0 or DLOCK_ENOMEM. done: fine on zeroed memory. */
int redis_script_init(struct redis_script *, const char *name, int db);
void redis_script_done(struct redis_script *);

enum redis_script_status {
    RS_GRANTED,
    RS_BUSY,  /* held */
    RS_CLAIM, /* free, but someone else is first in line and has been called */
    RS_GRACE, /* free, but the server has not been up for long enough */
    RS_TYPE,  /* foreign type */
    RS_TWICE  /* vote: this server has voted for the value before */
};

struct redis_script_tried {
    enum redis_script_status status;
    uint64_t fence;
    int64_t left_ms;    /* of the lease, claim or grace; -1: a lock without expiry */
    int place;          /* in the queue; where not in it: what it would be */
    const char *holder; /* the value, cut; for RS_TYPE the type. Belongs to the reply */
    size_t holder_len;
    int64_t now_ms; /* RS_GRANTED: the server's clock, Unix; 0: not told */
};

/*
 * One try. id: of the waiter that stands in line where it is not granted; "": do not. Queued under tag;
 * negative: see redis_conn_send.
 */
int redis_script_try(const struct redis_script *, struct redis_conn *, int tag, const char *value,
                     const char *id, int64_t ttl, int64_t grace);
/*
 * One server's vote (Redlock): as a try, but whoever finds it free gets it; the queue only says who is told
 * of a release. A value is sent to each server once.
 */
int redis_script_vote(const struct redis_script *, struct redis_conn *, int tag, const char *value,
                      const char *id, int64_t ttl, int64_t grace);
/*
 * Renew a vote, and raise the server's fence counter to at least that number (0: leave it). heal: where
 * the lock is free, set it.
 */
int redis_script_keep(const struct redis_script *, struct redis_conn *, int tag, const char *value,
                      int64_t ttl, uint64_t fence, bool heal, int64_t grace);
/* redis_script_leave, where votes are withheld for a restart grace. */
int redis_script_unvote(const struct redis_script *, struct redis_conn *, int tag,
                        const char *value, const char *id, int64_t grace);
/* Delete the lock if it is ours, leave the queue (id: "" for neither), call the next. */
int redis_script_leave(const struct redis_script *, struct redis_conn *, int tag, const char *value,
                       const char *id);
/* Delete the lock if it is ours, and leave the queue as it is. */
int redis_script_drop(const struct redis_script *, struct redis_conn *, int tag, const char *value);
int redis_script_renew(const struct redis_script *, struct redis_conn *, int tag, const char *value,
                       int64_t ttl);
int redis_script_status(const struct redis_script *, struct redis_conn *, int tag);

/* 0, or DLOCK_EPROTO when it has not the expected form. Never for error replies. */
int redis_script_tried(const redisReply *, struct redis_script_tried *);
/* leave, drop, renew and keep: was it ours? If not, what is there: found NULL: nothing. */
int redis_script_owned(const redisReply *, bool *ours, const char **found, size_t *len);
/* keep and unvote: not ours, but the server was restarted within the grace, so nobody else's either. */
bool redis_script_forgotten(const redisReply *);
/* The server's clock in the same answer, Unix ms; 0: not told. */
int64_t redis_script_owned_at(const redisReply *);
struct redis_script_state {
    bool held;
    const char *value;
    size_t len;
    int64_t now_ms, left_ms; /* the server's clock; -1: no expiry */
    uint64_t fence;
    redisReply **waiters; /* strings in the hash' format */
    size_t nwaiters;
};
int redis_script_state(const redisReply *, struct redis_script_state *);

/* The channel of a waiter; the caller frees it. */
char *redis_script_channel(const struct redis_script *, const char *id);
/*
 * Queue, under these tags: what the server calls this connection, by which redis_script_track on the other one knows
 * it (CLIENT ID; after SUBSCRIBE nothing can be asked any more, RESP2); being called; being told of changes.
 */
void redis_script_subscribe(struct redis_conn *, const char *channel, int id_tag, int wake_tag,
                            int changed_tag);
/* Queue: tell connection id when keys change that are read from now on. False: see redis_conn_send. */
bool redis_script_track(struct redis_conn *, int tag, long long id);
enum redis_script_call {
    RS_NOTHING,
    RS_CHANGED, /* NAME: freed, renewed, or gone */
    RS_GO,
    RS_NEXT,
    RS_HEAD
};
/* What a message (REDIS_CONN_PUSH) says. */
enum redis_script_call redis_script_called(const struct redis_script *, const redisReply *message);

/* The lock's value from token and who; the caller frees it. NULL: out of memory. */
char *redis_script_value(const char *token, const struct dlock_who *);
/* What a value says about its holder; foreign when dlock did not write it. */
void redis_script_holder(const char *value, size_t len, struct dlock_info *);
/* A waiter's entry; false: dead, or not ours to read. */
bool redis_script_waiter(const char *entry, size_t len, int64_t now_ms, struct dlock_info *);

#endif
