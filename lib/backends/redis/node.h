/*
 * node.h - a Redis server: a connection for commands, a connection for wake-ups, and the undo
 * pending there. A lock in one Redis has one node, a Redlock has one for each server.
 */
#ifndef DLOCK_REDIS_NODE_H
#define DLOCK_REDIS_NODE_H

#include "health.h"
#include "script.h"
#include "uri.h"

#include <string.h>

#define REDIS_NODE_UNDO 4

enum redis_wake { WAKE_OFF, WAKE_STARTING, WAKE_READY };
enum redis_tracking { TRACK_OFF, TRACK_ON, TRACK_REFUSED };

/* Zeroed memory, then redis_node_init. */
struct redis_node {
    struct redis_conn cmd;  /* commands */
    struct redis_conn wake; /* subscribed: here the server wakes a waiter */

    enum redis_wake wake_state;
    int64_t wake_until; /* WAKE_STARTING: the end of the attempt; else DLOCK_NEVER */
    long long wake_id;  /* the server's number for wake; 0: not known */
    bool can_track;     /* the server can tell wake of keys that change */
    enum redis_tracking tracking;

    /* Pending undo: values of unanswered tries, which the server may still set. */
    struct {
        char *value[REDIS_NODE_UNDO]; /* oldest first */
        int n;
        int at;   /* the value whose answer comes next; those before it were answered by an error */
        int sent; /* how many answers are still to come */
    } undo;

    struct redis_clock clock;
    struct dlock_peer clock_of; /* the address whose clock that is */
};

/* The pointers are kept. where: for messages; tls NULL: no TLS. */
void redis_node_init(struct redis_node *, const struct dlock_env *, const char *where,
                     struct tls_config *tls);
/* Close both connections, forget what is pending. Fine on zeroed memory. */
void redis_node_done(struct redis_node *);
void redis_node_close_in_child(struct redis_node *); /* as redis_conn_close_in_child() */
/*
 * The credentials for this host of the URI; secret (may be NULL): the password where the URI has
 * none; file (may be NULL): where that password may change. The pointers are kept.
 */
void redis_node_credentials(struct redis_node *, const struct dlock_host *, const char *secret,
                            const char *file);

/* Fill at most cap entries for poll() and lower *wake_at; returns how many. */
int redis_node_interest(const struct redis_node *, struct pollfd *, int cap, int64_t *wake_at);
/*
 * Read and write what poll() has found. An address that was silent for its share of the time gives
 * way to the next address.
 */
void redis_node_work(struct redis_node *, const struct pollfd *, int n);
/* Close cmd, which ends the server's tracking. */
void redis_node_close(struct redis_node *);

/* Two addresses, port included, are the same. */
static inline bool redis_same_peer(const struct dlock_peer *a, const struct dlock_peer *b)
{
    return a->len == b->len && memcmp(&a->addr, &b->addr, a->len) == 0;
}
/* As redis_clock_jump for an answer on cmd; begins anew when the address has changed. */
int64_t redis_node_clock(struct redis_node *, int64_t theirs_ms, int64_t sent, int64_t now);

/* ------------------------------------------------------------------- wake-ups */

/* wake is open (or failed): subscribe to the waiter's channel. */
void redis_node_subscribe(struct redis_node *, const char *channel, int64_t until);
void redis_node_unsubscribe(struct redis_node *);

enum redis_wake_reply {
    REPLY_NOTHING,
    REPLY_SUBSCRIBED, /* subscribed: a waiter can be woken here */
    REPLY_REFUSED,    /* refused: err says why; the caller closes wake */
    REPLY_MESSAGE     /* see redis_script_called */
};
/* A reply on wake. */
enum redis_wake_reply redis_node_wake_answered(struct redis_node *, const struct redis_conn_reply *,
                                               struct dlock_error *err);

/* The slot of both backends: keys expire, and no renewal of ours prolongs another value. */
static inline bool redis_stays(struct dlock_be *be)
{
    return be != NULL;
}

/* The first waiter in the queue could be told of changes to the key, and is not yet. */
static inline bool redis_node_may_track(const struct redis_node *n)
{
    return n->wake_state == WAKE_READY && n->can_track && n->tracking == TRACK_OFF;
}
/* Queue, in front of a try: tell wake when the keys change that the try reads. */
void redis_node_track(struct redis_node *, int tag);
void redis_node_track_answered(struct redis_node *, const redisReply *);

/* --------------------------------------------------------------- pending undo */

/*
 * The server may still set this value (malloc'ed; the node frees it; NULL: ignored). Too many: the
 * oldest is forgotten, and expires.
 */
void redis_node_remember(struct redis_node *, char *value);
/* NULL: all values. */
void redis_node_forget(struct redis_node *, const char *value);
/*
 * Queue the undo of all pending values, unless under way. asking: cmd is connected to the node to
 * which a cluster is moving the slot: only the lock's own key can be there, and each command needs
 * ASKING.
 */
void redis_node_undo(struct redis_node *, const struct redis_script *, int tag, bool asking);
/* The answer to a value's undo. After an error (LOADING, READONLY) the value stays pending. */
void redis_node_undo_answered(struct redis_node *, const redisReply *);
/* Queue SCRIPT_LEAVE; asking: SCRIPT_DROP. */
void redis_node_leave(struct redis_node *, const struct redis_script *, int tag, bool asking,
                      const struct redis_script_args *);
/*
 * Queue ASKING, in front of a command that a cluster has redirected once (-ASK). A script behind is
 * sent by its text.
 */
void redis_node_asking(struct redis_node *);

#endif
