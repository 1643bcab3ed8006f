/*
 * script.h - the Lua scripts of a lock in Redis, scripts/NAME.lua: arguments and answers.
 *
 * Keys of the lock NAME (PREFIX is "{NAME}:dlock:", or "NAME::dlock:" where NAME has a hash tag, so
 * that all of them share a cluster slot and no two names share a key):
 *   NAME           the value of an exclusive holder, "<token> <holder record> ttl=<ms>", PX ttl.
 *                  Clients that use SET NX PX exclude it and are excluded. With shared holders and
 *                  holders of slots: "dlock:shared:<epoch>"; the epoch is the token of the first
 *                  holder, PX the latest expiry. A holder that has released the lock within its
 *                  --min-hold: its value and " over=1". A holder whose hold is broken: its value
 *                  and " break=1"
 *   PREFIXholders:<epoch>
 *                  zset of these holders' values, "s:<token> ..." shared, "n3:<token> ..." of 3
 *                  slots; scores: scripts/parts/holders.lua. Expires with NAME
 *   PREFIXfence    decimal, the last fencing token, at most 2^52; expires after max(24 h, 10 x ttl)
 *                  of disuse; list.lua finds an exclusive hold by it
 *   PREFIXqueue    zset of waiter ids, "s:" or "n3:" in front as in a value; score: the ticket
 *                  (time of arrival in us, the server's clock; 4e15 more after a call without a
 *                  retry: the waiter stands behind the others until its next try). A waiter that
 *                  comes back without an entry gets the entry again with its old ticket
 *   PREFIXwaiters  hash: waiter id -> "<alive until, ms> <claim until, ms or 0> <record>"
 *   PREFIXonce     the record of --once (run_record.h); expires one ttl after the writer's --once,
 *                  counted from its last write
 *   PREFIXlongest  Redlock: the largest ttl of this epoch's shared holders, ms; also its PX
 *   PREFIXbreak:<token>
 *                  who has broken this hold: "<ms> <user@host, note>"; expires a ttl after the
 *                  lease that the holder had
 *   PREFIXclaim    exists while called waiters have a claim to the free lock (at most 1 s)
 * and the channel PREFIXwake:<waiter id>, on which the scripts publish
 *   go      the lock is free for your kind, and your turn has come
 *   head    you are the first of the queue now: watch NAME; "head <ms> <value>": NAME was granted
 *           just now, for so long
 *   second  you are the second now
 *   ping    no meaning; a waiter that receives a ping is alive
 */
#ifndef DLOCK_REDIS_SCRIPT_H
#define DLOCK_REDIS_SCRIPT_H

#include "conn.h"
#include "run_record.h"

#include <string.h>

#define REDIS_SCRIPT_CLAIM (1000 * DLOCK_MSEC) /* in which a waiter that was called must retry */
#define REDIS_SCRIPT_MAX_WAITERS 1000          /* listed by status */

struct redis_script {
    char *name, *prefix, *once; /* malloc'ed; once: the key PREFIXonce */
    char db[16];
    bool torn; /* in a cluster the other keys of this NAME would be in another slot */
};
/* 0 or DLOCK_ENOMEM. done: fine on zeroed memory. */
int redis_script_init(struct redis_script *, const char *name, int db);
void redis_script_done(struct redis_script *);

/* ------------------------------------------------------------------- commands */

/* An operation is one script, scripts/NAME.lua, and so atomic. */
enum redis_script_op {
    SCRIPT_TRY,         /* take the lock, or (with an id) join the queue */
    SCRIPT_RENEW,       /* extend the lease if the lock is ours */
    SCRIPT_LEAVE,       /* delete our lock, leave the queue, call the next waiter */
    SCRIPT_DROP,        /* delete our lock, and leave the queue alone */
    SCRIPT_VOTE,        /* Redlock: a try on one server. A value is sent to each server once */
    SCRIPT_KEEP,        /* Redlock: renew the vote, raise the fence counter, write the run record */
    SCRIPT_UNVOTE,      /* Redlock: the release on one server; write the run record */
    SCRIPT_STATUS,      /* the holder, the waiters, the run record */
    SCRIPT_BREAK,       /* mark the hold of a holder, or free it */
    SCRIPT_FORGET,      /* remove the run record with this token */
    SCRIPT_FORGET_VOTE, /* the same on one of several servers, which may have an older record */
    SCRIPT_LIST         /* a page of the locks in the server */
};

/* The script's arguments; the rest is zero. Times in ns. */
struct redis_script_args {
    const char *value;
    const char *id; /* of the waiter; NULL or "": neither in the queue nor to join */
    /*
     * try: of a waiter that comes back, and keeps its place; 0: none. A server that was started
     * just now answers RS_GRACE until it has heard of all its waiters.
     */
    int64_t ticket;
    int64_t ttl;       /* try, renew, vote, keep */
    int64_t grace;     /* restart grace; keep, unvote: 0: no answer is redis_script_forgotten() */
    int64_t least;     /* try, leave, drop, unvote: our lock stays held so long */
    uint64_t fence;    /* keep: 0: leave the counter; forget_vote */
    bool heal;         /* keep: set the lock where free, or beside other shared holders */
    const char *token; /* forget, forget_vote: of the run; break: of the holder */
    const char *by;    /* break: the text of the mark (dlock_breaker()) */
    const char *how;   /* break: "mark", "force", "undo" */
    /* status: only a node with the record's key may answer. A slot moves to another key by key. */
    bool with_record;
    /*
     * 0: no run records. try: skip if a run has succeeded within this time; keep our record for as
     * long. vote: the answer tells the record. leave, drop: record the end of the run, for as long;
     * the answer is also "ours" where an earlier such command has recorded the end.
     */
    int64_t once;
    bool later;                 /* try, with once: write no record, the run begins later */
    enum dlock_run_state state; /* leave, drop, with once: the end */
    int status;
    /*
     * keep, unvote: a run record (run_record.h) to write if the vote is ours and no newer record is
     * there. With 0 as the begin, both times are the server's. NULL: none.
     */
    const char *record;
    /* For how long the record is kept; renew: the fence counter, 0: its expiry stays. */
    int64_t kept;
    const char *cursor; /* list: of the page, "0": the first */
    bool all;           /* list: free locks with a run record, too */
    unsigned count;     /* list: how many keys to look at */
    bool at_once;       /* send the text: the caller may not read the answer */
};

/*
 * keep, unvote: the record of our run, in text; servers fill in the times. ended: by spec->hold.
 * Kept a ttl longer than it counts, for a second release. False: no room, and text is cut.
 */
bool redis_script_run(struct redis_script_args *, const struct dlock_spec *, const char *token,
                      uint64_t fence, bool ended, char text[RUN_RECORD_MAX]);

/*
 * The script of a step (SCRIPT_FORGET for STEP_FORGET), with its arguments; by: room for an
 * argument.
 */
enum redis_script_op redis_script_step(struct redis_script_args *, const struct dlock_spec *,
                                       const struct dlock_order *, char by[DLOCK_BREAKER_SIZE]);
/*
 * Queue the script under tag, named by its SHA-1; returns as redis_conn_send. Where the server does
 * not know the script, redis_script_next() sends the text. A script behind an unanswered script is
 * sent by its text at once, and gives the script in front up: the text of a try is not sent behind
 * its undo, and there is no reply. LEAVE, DROP and UNVOTE are always sent again.
 */
int redis_script_send(const struct redis_script *, struct redis_conn *, int tag,
                      enum redis_script_op, const struct redis_script_args *);
/*
 * As redis_conn_next, where scripts are sent. A reply's sent is the time of the first request. An
 * error that does not name the missing right, or the foreign key, is kept until a further script
 * (why.lua) has found out, or the connection has failed; the error that EVAL is unknown, until ROLE
 * has told whether the server is a Sentinel.
 */
int redis_script_next(struct redis_conn *, struct redis_conn_reply *);
/*
 * Queue scripts/why.lua, which changes nothing: an error (redis_conn_explains()) where the user
 * lacks a right, or a key is foreign. together: also the rights of shared holders and slots.
 */
int redis_script_why(const struct redis_script *, struct redis_conn *, int tag, bool together);
/* Before the connection is closed: the text of an unanswered LEAVE, DROP or UNVOTE. */
void redis_script_resend_undo(struct redis_conn *);

/*
 * Plain commands: is the lock held? A free lock: does another waiter have a claim? shared_tag (0:
 * none), asked before: do shared holders or holders of slots have the lock?
 */
int redis_script_look(const struct redis_script *, struct redis_conn *, int tag, int shared_tag);
int redis_script_look_claim(const struct redis_script *, struct redis_conn *, int tag);

/* The text of a script, and the SHA-1 in hexadecimal digits. */
struct lua {
    const char *text, *sha1;
};
const struct lua *redis_script_lua(enum redis_script_op);

/* -------------------------------------------------------------------- answers */

/* 0, or DLOCK_EPROTO where the reply has not the expected form. Not for error replies. */

enum redis_script_status {
    RS_GRANTED,
    RS_BUSY,    /* held */
    RS_CLAIM,   /* free, but another waiter is the first and has been called */
    RS_GRACE,   /* free, but the server has not been up for long enough */
    RS_TWICE,   /* vote: this server has voted for the value before */
    RS_SLOTS,   /* in use with another number of slots */
    RS_SKIPPED, /* with once: a run has succeeded; we have left, and the next waiter is called */
    RS_RECORD   /* with once: the record's key holds foreign data; we have left as well */
};

struct redis_script_tried {
    enum redis_script_status status;
    uint64_t fence;
    int64_t left_ms; /* of the lease, claim or grace; -1: a lock without expiry */
    int place;       /* in the queue; for a client that did not join: the place it would get */
    int slot; /* RS_GRANTED: which one, counted from 1, 0: not for slots. RS_SLOTS: their number */
    /* The value, cut; RS_RECORD: the type; RS_SKIPPED: the record. Part of the reply. */
    const char *holder;
    size_t holder_len;
    int64_t now_ms; /* the server's clock, Unix; 0: unknown */
    /* RS_GRANTED, RS_GRACE, with a grace: for how long the server has been up; may be negative. */
    int64_t up_ms;
    /* vote with a grace: the largest ttl of shared holders and waiters there, or a bit more. */
    int64_t longest_ms;
    int64_t ticket; /* of a waiter that is in the queue now; 0: none */
    /* vote, with once: the record, NULL: none; and how long kept (<= 0: unknown). */
    const char *run;
    size_t run_len;
    int64_t kept_ms;
};
/* try and vote. */
int redis_script_tried(const redisReply *, struct redis_script_tried *);
/* look: true for so long (ms; -1: without expiry). False: no, or the reply is an error. */
bool redis_script_looked(const redisReply *, int64_t *left_ms);
/* look, under shared_tag. */
bool redis_script_shared(const redisReply *);

struct redis_script_owned {
    bool ours;
    bool forgotten; /* keep, unvote: restarted within the grace, so no client has the vote */
    bool recorded;  /* keep, unvote with a record: it is there, by this or an earlier request */
    bool foreign;   /* leave, drop with once: found is the type of foreign data at the record's
                       key; nothing was done */
    /*
     * Part of the reply, or NULL. Not ours: the value there. renew, keep: ours, and the hold is
     * broken: the text of the mark, for redis_script_mark().
     */
    const char *found;
    size_t len;
    int64_t now_ms; /* the server's clock, Unix; 0: unknown */
};
/* leave, unvote, drop, renew, keep. */
int redis_script_owned(const redisReply *, struct redis_script_owned *);

struct redis_script_state {
    bool held;
    const char *value;
    size_t len;
    int64_t now_ms, left_ms; /* the server's clock; -1: no expiry */
    uint64_t fence;
    redisReply **together; /* strings: shared holders, those of slots: redis_script_together */
    size_t ntogether;
    const char *run; /* the run record, "" if there is none; or the type of foreign data */
    size_t run_len;
    redisReply **marks; /* strings: token, blank, text of the mark; or the digest of a value */
    size_t nmarks;
    redisReply **waiters; /* strings: id, blank, and the format of the hash */
    size_t nwaiters;
};
/* status. */
int redis_script_state(const redisReply *, struct redis_script_state *);

/* By whom, in the text of a mark of *len bytes, and when (Unix ms; 0: unknown). Never NULL. */
const char *redis_script_mark(const char *text, size_t *len, int64_t *when_ms);

enum redis_script_stepped {
    STEPPED_DONE,    /* marked, also by an earlier mark; freed; removed, or there is no record */
    STEPPED_CHANGED, /* nothing was done: not the hold or the record that was read */
    STEPPED_FOREIGN, /* the holder is not dlock: no mark reaches it */
    STEPPED_RECORD   /* forget_vote: foreign data is in the record's place */
};
/* break, forget, forget_vote. */
int redis_script_stepped(const redisReply *, enum redis_script_stepped *);
/* The error of STEPPED_FOREIGN. */
int redis_script_no_mark(const struct dlock_spec *, struct dlock_error *);

struct redis_script_page {
    const char *cursor; /* of the next page; part of the reply */
    bool last;          /* there is none */
    int64_t hidden;     /* locks that the user may not read */
    redisReply **locks; /* redis_script_listed() */
    size_t nlocks;
};
/* list. */
int redis_script_page(const redisReply *, struct redis_script_page *);
/*
 * A lock of a page. entry->name is part of the reply; entry->holder is the given holder, or NULL
 * where the lock is free. False: not in our format.
 */
bool redis_script_listed(const redisReply *, struct dlock_entry *entry, struct dlock_info *holder);

/* --------------------------------------------------------------------- values */

/* The prefix of a value and of a waiter's id: "", "s:" or "n3:". Returns buf. */
#define REDIS_SCRIPT_KIND 8
const char *redis_script_kind(const struct dlock_spec *, char buf[REDIS_SCRIPT_KIND]);
/*
 * The lock's value, from kind, token, holder and lease, for a grant now; the caller frees it. NULL:
 * out of memory. From the record on, also a waiter's record; the wait began at the difference of
 * its two times.
 */
char *redis_script_value(const struct dlock_spec *, int64_t ttl, const char *token);
/* A fresh token, and its value in place of *value. 0, or err's code; then *value is NULL. */
int redis_script_new_value(const struct dlock_spec *, int64_t ttl, char token[DLOCK_TOKEN_LEN + 1],
                           char **value, struct dlock_error *err);
/* The ttl in a value, in ms; 0: none, another program's value. */
int64_t redis_script_ttl(const char *value, size_t len);
/*
 * The holder in a value; foreign: not written by dlock. For "dlock:shared:" unknown. broken: the
 * text of the mark is not known here.
 */
void redis_script_holder(const char *value, size_t len, struct dlock_info *);
/* An element of state's together. False: not in our format. */
bool redis_script_together(const redisReply *, struct dlock_info *);
/* How many holders the state tells: the exclusive holder, or the holders that hold together. */
static inline size_t redis_script_holders(const struct redis_script_state *s)
{
    return s->ntogether > 0 ? s->ntogether : s->held;
}
/* The value of holder i, of *len bytes, without a mark; NULL: not in our format. */
const char *redis_script_value_at(const struct redis_script_state *, size_t i, size_t *len);
/*
 * Holder i, with fence, lease (DLOCK_NEVER: no expiry) and mark. The token of a holder that is not
 * dlock is a digest of the value. False: not in our format.
 */
bool redis_script_holder_at(const struct redis_script_state *, size_t i, struct dlock_info *);
/* A waiter of redis_script_state, silent once its ttl is over; false: an unknown format. */
bool redis_script_waiter(const char *waiter, size_t len, int64_t now_ms, struct dlock_info *);
/* The length of the id, the same on each server. */
static inline size_t redis_script_waiter_id(const char *waiter)
{
    return strcspn(waiter, " ");
}

/* -------------------------------------------------------------------- wake-up */

/*
 * The channel of the waiter id; the caller frees it. id "" becomes a new waiter's. NULL: out of
 * memory, or no random numbers.
 */
char *redis_script_channel(const struct redis_script *, const struct dlock_spec *, char *id);
/* The channel of changed keys. */
#define REDIS_SCRIPT_INVALIDATE "__redis__:invalidate"
/* A reply under REDIS_CONN_PUSH on a connection that is told of changes: has NAME changed? */
bool redis_script_changed(const struct redis_script *, const redisReply *message);

enum redis_script_call {
    RS_NOTHING,
    RS_CHANGED, /* NAME: freed, renewed, or gone */
    RS_GO,
    RS_SECOND,
    RS_HEAD
};
/* The meaning of a message (REDIS_CONN_PUSH). */
enum redis_script_call redis_script_called(const struct redis_script *, const redisReply *message);
/* RS_HEAD, RS_GO: the lease that began just now, as from a try. False: not told. */
bool redis_script_head(const redisReply *message, struct redis_script_tried *);

#endif
