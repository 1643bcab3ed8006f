/* redis.h - what the files redis*.c share. */
#ifndef DLOCK_REDIS_H
#define DLOCK_REDIS_H

#include "backends/networked.h"
#include "cluster.h"
#include "conn.h"
#include "health.h"
#include "script.h"

#define REDIS_STALE 4
#define REDIS_CLAIM_SLACK (20 * DLOCK_MSEC) /* over what one who was called may take */

enum redis_doing { DO_NOTHING, DO_ACQUIRE, DO_RENEW, DO_RELEASE, DO_ASK };

enum redis_tag {
    T_NONE, /* whatever is answered to it */
    T_TRY,
    T_UNDO,
    T_TRACK,
    T_RENEW,
    T_LEAVE,
    T_ASK,
    T_MEMORY,
    T_PERSISTENCE,
    T_WAIT,
    T_HELLO,
    T_NODES,
    W_ID,
    W_WAKE,
    W_INVALIDATE
};

enum redis_wake { WAKE_OFF, WAKE_STARTING, WAKE_READY };
enum redis_tracking { TRACK_OFF, TRACK_ON, TRACK_REFUSED };

/* An answer that does not count yet (confirm.c). */
enum redis_proof_of { PROOF_NOTHING, PROOF_GRANT, PROOF_RENEWAL, PROOF_LOSS };
struct redis_proof {
    enum redis_proof_of what;
    int64_t sent;            /* of what it is the answer to */
    uint64_t fence;          /* GRANT */
    struct dlock_error lost; /* LOSS: why */
    bool replicas;           /* enough of them have it */
};

struct redis_sentinel; /* master.c */

struct dlock_be {
    const struct dlock_spec *spec;
    struct redis_script script;
    int64_t restart_grace;
    unsigned wait_replicas;
    struct redis_sentinel *sentinel; /* NULL: the address is that of the server */
    char *secret;                    /* password from file or environment; zeroed when freed */
    struct redis_conn_auth auth;
    struct dlock_peer unix_peer;
    bool is_unix;
    struct tls_config *tls; /* NULL: without */

    struct redis_cluster cluster;
    struct redis_conn cmd, wake;
    enum redis_doing doing;
    int64_t op_until; /* of what is outstanding on cmd */
    struct redis_proof proof;
    bool unasked; /* DO_RENEW, which the core has not asked for: the master has moved */

    /* The lock's value is new for each acquire, and for each connection that was given up with a try unanswered. */
    char token[DLOCK_TOKEN_LEN + 1], *value;
    char *stale[REDIS_STALE]; /* earlier values that a late server may still set: to be undone */
    int nstale;
    int undo_at; /* the one of stale whose undo is answered next */
    bool granted;
    bool tried;  /* a try with this value was sent and not answered by "no" */
    bool queued; /* we have an entry in the queue, or may have */

    /* acquire */
    bool wait, first; /* first: no answer to a try yet in this acquire */
    bool enqueue;     /* subscribed: tries may stand in line */
    bool again;       /* woken while a try was outstanding */
    bool told_grace;
    char id[DLOCK_TOKEN_LEN + 1]; /* as a waiter; the same across reconnects */
    char *channel;
    enum redis_wake wake_state;
    enum redis_tracking tracking;
    bool can_track;
    long long wake_id;
    int64_t wake_until, try_at;
    struct outage cmd_out, wake_out;
    struct dlock_error refused; /* first contact: what the server said instead of an answer; or 0 */
    int place;
    char holder_token[DLOCK_TOKEN_LEN + 1]; /* last reported */

    /* release */
    int64_t rel_until;
    bool leave_lost; /* a release was sent and its answer never came */

    /* ask */
    redisReply *listing;
    size_t list_at;
    struct redis_script_state list;

    struct redis_checks checks;
    struct redis_clock clock;   /* since the grant */
    struct dlock_peer clock_of; /* whose */

    struct dlock_info info;
    struct event_queue events;
};

static inline int64_t redis_now(const struct dlock_be *be)
{
    return be->spec->env->now(be->spec->env->ctx);
}
const char *redis_where(const struct dlock_be *);
/* Begin to connect unless open; whatever goes wrong shows up as state RC_FAILED in process(). */
void redis_connect(struct dlock_be *, struct redis_conn *, int64_t until);
/* no_answer(), or why cmd did not even get as far as to ask. */
void redis_no_answer(const struct dlock_be *, struct dlock_error *, int64_t waited);
/* What the server behind cmd has said of its clock: redis_clock_told(), begun anew with another server. */
int64_t redis_clock_now(struct dlock_be *, int64_t theirs_ms, int64_t sent);
/* Close cmd; the server's tracking ends with it. */
void redis_close_cmd(struct dlock_be *);

/* cluster.c */
/* A new operation, or another attempt at it: redirections are counted anew, from the node that has the slot. */
void redis_cluster_begin(struct dlock_be *);
/* Connect to where the lock is. False: that is what the URI names. */
bool redis_cluster_connect(struct dlock_be *, struct redis_conn *, int64_t until);
/* The look-up of a node's name: to poll, and to go on with. */
int redis_cluster_interest(const struct dlock_be *, struct pollfd *);
void redis_cluster_work(struct dlock_be *);
/* An answer on cmd. True: it is a redirection and followed; what is being done has been sent again. */
bool redis_cluster_redirected(struct dlock_be *, const struct redis_conn_reply *);
/* cmd has failed. True: another node is asked. */
bool redis_cluster_elsewhere(struct dlock_be *);
/* The node has not answered: ask another one next time. */
void redis_cluster_failed(struct dlock_be *);
/* After this error another node is to be asked next time, so cmd is to be closed. */
bool redis_cluster_lost(struct dlock_be *, const char *text);
/* The waiter's second connection is to another node than cmd. */
bool redis_cluster_strayed(const struct dlock_be *);
/* A lock that cannot be in a cluster. */
bool redis_cluster_refuses(const struct dlock_be *, struct dlock_error *);
/* redis_conn_reply_error, and what only a cluster says. */
int redis_reply_error(struct dlock_be *, struct dlock_error *, const char *text);
/* Queue what goes in front of a command that was sent on. */
void redis_cluster_asking(struct dlock_be *);
/* Queue the question whether it is a cluster, once; and who else is in it, now and then. */
void redis_cluster_hello(struct dlock_be *);
void redis_cluster_learn(struct dlock_be *);
void redis_cluster_hello_answered(struct dlock_be *, const redisReply *);
void redis_cluster_nodes_answered(struct dlock_be *, const redisReply *);
void redis_cluster_done(struct dlock_be *);

/* open.c: fill in what comes from spec; 0 or a negative code. */
int redis_check_spec(struct dlock_be *, struct dlock_error *);

/* renew.c */
/* Queue the undoing of stale values on cmd. One is forgotten when the server has said that it is undone. */
void redis_undo_stale(struct dlock_be *);
void redis_forget_stale(struct dlock_be *, int n);
void redis_undo_answered(struct dlock_be *, const redisReply *);
void redis_renew(struct dlock_be *);
void redis_release(struct dlock_be *, int64_t until);
/* Send the renewal or the release that is under way, after a redirection once more. */
void redis_send_renew(struct dlock_be *);
void redis_send_leave(struct dlock_be *);
void redis_renew_answered(struct dlock_be *, const struct redis_conn_reply *);
void redis_leave_answered(struct dlock_be *, const struct redis_conn_reply *);
/* The end of a renewal. */
void redis_renewed(struct dlock_be *, const struct redis_proof *);
void redis_renew_unclear(struct dlock_be *, const struct dlock_error *);
/* While granted: the master is another one now, so see there at once. */
void redis_renew_move(struct dlock_be *);
/* A release was refused, or the connection has failed under it: once more while there is time. */
void redis_leave_retry(struct dlock_be *, const struct dlock_error *);
/* While one is under way: what is due. */
void redis_renew_timers(struct dlock_be *, int64_t now);
void redis_release_timers(struct dlock_be *, int64_t now);

/*
 * confirm.c: prove takes an answer that is to count once it is confirmed; step looks whether it is. At once
 * where nothing is asked for: then redis_granted or redis_renewed is called.
 */
void redis_prove(struct dlock_be *, const struct redis_proof *);
void redis_proof_step(struct dlock_be *);
void redis_replicas_answered(struct dlock_be *, const redisReply *);
/* After a time-out: writes err anew where the reason is known better. */
void redis_proof_missing(const struct dlock_be *, struct dlock_error *);

/* master.c: all of it does nothing, and the answer is yes, where there is no Sentinel. */
enum redis_answer { ANSWER_PENDING, ANSWER_YES, ANSWER_OTHER, ANSWER_NO };
int redis_sentinel_open(struct dlock_be *, struct dlock_error *);
void redis_sentinel_close(struct dlock_be *);
void redis_sentinel_connect(struct dlock_be *, struct redis_conn *, int64_t until);
/* First contact: the sentinels have named somebody, but he does not serve us (yet). */
bool redis_sentinel_worth_retry(const struct dlock_be *, const struct dlock_error *);
/* Ask the sentinels again, unless the last round is newer. */
void redis_sentinel_question(struct dlock_be *, int64_t newer_than);
/* Does a majority say, in this round, that we talk to the master? */
enum redis_answer redis_sentinel_answer(const struct dlock_be *);
void redis_sentinel_doubt(const struct dlock_be *, struct dlock_error *);
/* Be told when the master moves; DLOCK_NEVER: no longer. */
void redis_sentinel_listen(struct dlock_be *, int64_t at);
/* The answer is OTHER: go there, with whatever is being done. */
void redis_sentinel_follow(struct dlock_be *);
void redis_sentinel_step(struct dlock_be *);
int redis_sentinel_interest(const struct dlock_be *, struct pollfd *, int cap, int64_t *wake_at);
void redis_sentinel_work(struct dlock_be *, const struct pollfd *, int n);

/* acquire.c: acquire */
void redis_granted(struct dlock_be *, const struct redis_proof *);
/* The acquire has failed for good; or cmd is of no use any more, and it goes on if it can; or elsewhere. */
void redis_wait_fail(struct dlock_be *, const struct dlock_error *);
void redis_wait_trouble(struct dlock_be *, const struct dlock_error *);
void redis_wait_move(struct dlock_be *);
void redis_acquire(struct dlock_be *, bool wait);
/* After a redirection (moved) or a failure to connect: the same try, to another node. */
void redis_try_again(struct dlock_be *, bool moved);
void redis_try_answered(struct dlock_be *, const struct redis_conn_reply *);
void redis_wait_timers(struct dlock_be *, int64_t now);
int64_t redis_wait_wake_at(const struct dlock_be *);

/* On wake, the connection on which a waiter is woken. */
void redis_wake_close(struct dlock_be *);
void redis_wake_drop(struct dlock_be *); /* it is of no use any more */
void redis_wake_failed(struct dlock_be *);
void redis_wake_answered(struct dlock_be *, const struct redis_conn_reply *);
void redis_track_answered(struct dlock_be *, const redisReply *);

/* status.c */
void redis_ask(struct dlock_be *, enum dlock_ask, const char *arg);
void redis_ask_now(struct dlock_be *);
void redis_ask_later(struct dlock_be *, const struct dlock_error *);
void redis_ask_failed(struct dlock_be *, const struct dlock_error *);
void redis_ask_lost(struct dlock_be *, const struct dlock_error *);
/* True: the reply is kept. */
bool redis_ask_answered(struct dlock_be *, redisReply *);
int redis_give_listed(struct dlock_be *, struct dlock_event *);
void redis_drop_listing(struct dlock_be *);

#endif
