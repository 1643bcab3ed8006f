/* redlock.h - what the files redlock*.c share. */
#ifndef DLOCK_REDLOCK_H
#define DLOCK_REDLOCK_H

#include "common.h"
#include "rconn.h"
#include "redis_checks.h"
#include "rscript.h"

#define REDLOCK_NODES ((DLOCK_POLL_MAX - 1) / 2 < 15 ? (DLOCK_POLL_MAX - 1) / 2 : 15)
#define REDLOCK_STALE 4

enum redlock_doing { DO_NOTHING, DO_ACQUIRE, DO_RENEW, DO_RELEASE, DO_ASK };

/* Where an acquire is. */
enum redlock_stage {
    ST_VOTE,  /* asked all for their vote */
    ST_RAISE, /* a majority has voted: their fence counters are raised to the token */
    ST_UNDO,  /* no majority: votes are given back */
    ST_PAUSE  /* until try_at, or until a majority may be free */
};

/* The tag of a command is its kind and the number of the operation that it belongs to. */
enum redlock_kind {
    K_VOTE = 1,
    K_RAISE,
    K_UNDO,
    K_STALE,
    K_RENEW,
    K_HEAL,
    K_LEAVE,
    K_ASK,
    K_TRACK,
    K_ID, /* these three on the waiter's connection */
    K_WAKE,
    K_INVALIDATE,
    K_MEMORY
};
#define REDLOCK_OPS 0x7ffffffu
#define REDLOCK_TAG(op, kind) ((int)((REDLOCK_OPS & (op)) << 4 | (unsigned)(kind)))
#define REDLOCK_TAG_OP(tag) ((unsigned)(tag) >> 4 & REDLOCK_OPS)

/* What a node has said in the operation under way. */
enum redlock_answer {
    A_NONE,    /* not asked */
    A_PENDING, /* asked */
    A_YES,     /* vote, renewal, release: ours */
    A_BUSY,    /* vote: held by others. renewal, release: not ours, there is another one's */
    A_GONE,    /* renewal, release: nothing there */
    A_GRACE,   /* vote: not up for long enough */
    A_TYPE,    /* foreign type */
    A_REFUSED, /* an error reply */
    A_FAILED,  /* not reachable */
    A_LATE     /* still busy with earlier commands: not asked */
};

enum redlock_wake { WAKE_OFF, WAKE_STARTING, WAKE_READY };
enum redlock_tracking { TRACK_OFF, TRACK_ON, TRACK_REFUSED };

struct redlock_node {
    int host; /* in the URI */
    char where[300];
    struct rconn cmd, wake;
    struct rconn_auth auth;

    bool same; /* another one of the list is the same server: it has no vote */

    /* The operation under way. */
    enum redlock_answer answer;
    bool raised;    /* ST_RAISE: confirmed */
    bool raise_out; /* ST_RAISE: asked */
    bool gone; /* renewal: it was not ours, in this one or in those before it that proved nothing */
    bool lost; /* gone, before its time */
    bool undo_out; /* a vote of the round is being given back */
    uint64_t fence;
    int64_t left_ms; /* as struct rscript_tried */
    int place;
    uint64_t holder; /* a digest of the holder's value; 0: free */
    struct dlock_error error;
    struct dlock_info info; /* A_BUSY: the holder */

    int64_t from;               /* when what it confirmed last for the value was sent; 0: nothing */
    bool touched;               /* the value may be there */
    bool queued;                /* we may be in its line */
    bool left;                  /* a release was sent and its answer never came */
    char *stale[REDLOCK_STALE]; /* values that it may still set when it goes on: to be undone */
    int nstale;
    struct redis_clock clock;

    /* Trouble. */
    bool down;               /* told of */
    struct dlock_error last; /* why it could not be used */
    int64_t retry_at;
    struct dlock_backoff pause;

    /* Waiting. */
    enum redlock_wake wake_state;
    enum redlock_tracking tracking;
    bool can_track, freed; /* freed: said so since the last round, or voted for us in it */
    long long wake_id;
    int64_t wake_until, wake_retry;
    struct dlock_backoff wake_pause;
};

/* A waiter that has been shown: several servers know it. */
struct redlock_listed {
    long pid;
    int64_t since_ms;
    uint64_t host; /* a digest */
};

struct dlock_be {
    const struct dlock_spec *spec;
    struct rscript script;
    int64_t restart_grace;
    char *secret;
    struct rtls_config *tls; /* NULL: without */
    struct redlock_node *nodes;
    int n, quorum;

    enum redlock_doing doing;
    enum redlock_stage stage;
    unsigned op, vote_op; /* numbers of the operation, and of the one that was granted */
    int64_t began, op_until;
    int64_t patient_until; /* a majority has answered: the others get until then */
    int64_t stepped; /* the time that the last step went by: what lies before it has been seen */

    char token[DLOCK_TOKEN_LEN + 1], *value;
    uint64_t fence;
    bool granted, lost; /* lost: told of */
    bool proven;        /* the lock was granted, or renewed, by the last operation */
    enum { CHECK_NOT, CHECK_DUE, CHECK_ASKED, CHECK_TOLD } check; /* do they evict locks? */

    /* acquire */
    bool wait, first, told_grace;
    char id[DLOCK_TOKEN_LEN + 1], *channel;
    int splits; /* rounds in a row without a winner */
    int64_t not_before, try_at;
    int64_t told_at; /* try_at at the latest: somebody has called us in the middle of a round */
    enum dlock_ev outcome;  /* ST_UNDO: what follows; EV_WAITING: another round */
    struct dlock_error why; /* of EV_FAILED, or of an outage (else code 0) */
    bool twice;             /* one server has two names */
    struct outage out;
    struct dlock_backoff split_pause;
    struct redlock_node *holder; /* one that knows who holds it, or NULL */
    bool definite, split;        /* a majority names the same holder; nobody has one */
    uint64_t told_holder;
    int told_place, place;

    /* ask */
    redisReply *replies[REDLOCK_NODES];
    bool listing;
    redisReply *list_held; /* the one of replies that names the holder */
    int list_node;
    size_t list_at, nlisted;
    struct redlock_listed listed[200];
    uint64_t list_fence;
    int64_t list_left_ms;

    struct dlock_info info;
    struct event_queue events;
};

static inline int64_t redlock_now(const struct dlock_be *be)
{
    return be->spec->env->now(be->spec->env->ctx);
}

/* redlock_open.c: fill in what comes from spec; 0 or a negative code. */
int redlock_check_spec(struct dlock_be *, struct dlock_error *);
/* Are two of the names one address? Needs the peers. 0 or DLOCK_EUSAGE. */
int redlock_check_peers(struct dlock_be *, struct dlock_error *);

/* redlock_node.c: one server. */
/* A new operation: nobody has answered anything. */
void redlock_begin(struct dlock_be *);
/* Begin to connect one of its two connections. */
void redlock_open(struct dlock_be *, struct redlock_node *, struct rconn *, int64_t until);
/*
 * True: commands can be queued for it in this operation. If not, its answer says why: it could not be reached
 * a moment ago, or has not answered earlier commands.
 */
bool redlock_reach(struct dlock_be *, struct redlock_node *, int64_t until);
/* What earlier rounds may have left there: remember it; undo it, in front of a new vote. */
void redlock_remember(struct redlock_node *, const char *value);
void redlock_forget(struct redlock_node *, const char *value);
void redlock_undo_stale(struct dlock_be *, struct redlock_node *);
/* Close cmd. A vote that has no answer may still be served: the undo goes behind it, and again on the next connection. */
void redlock_drop(struct dlock_be *, struct redlock_node *);
/* cmd has failed. */
void redlock_node_failed(struct dlock_be *, struct redlock_node *);
void redlock_node_well(struct redlock_node *);
void redlock_node_refused(struct dlock_be *, struct redlock_node *, const redisReply *);
/* 64 bits of a text: enough to see whether two servers mean the same one. */
uint64_t redlock_digest(const char *, size_t len);
int redlock_count(const struct dlock_be *, enum redlock_answer);
/* The time at which a majority had last confirmed: the lease counts from there. 0: no majority has. */
int64_t redlock_from(const struct dlock_be *);
/* May the operation still wait for who has not answered? Once a majority has, only for a moment. */
bool redlock_patient(struct dlock_be *, int answered, int64_t now);
/* "only 2 of 5 servers can be used, 3 are needed; WHY": fills err, returns its code. */
int redlock_no_quorum(const struct dlock_be *, struct dlock_error *);

/* redlock_round.c: acquire. */
void redlock_acquire(struct dlock_be *, bool wait);
void redlock_vote_answered(struct dlock_be *, struct redlock_node *, const struct rconn_reply *);
void redlock_raise_answered(struct dlock_be *, struct redlock_node *, const struct rconn_reply *);
void redlock_round_step(struct dlock_be *, int64_t now);
int64_t redlock_round_wake_at(const struct dlock_be *);

/* redlock_wait.c: standing in line. */
void redlock_wait_start(struct dlock_be *);
void redlock_wait_close(struct dlock_be *);
/* In front of a vote: where we are first in line, the server tells us of every change. */
void redlock_track(struct dlock_be *, struct redlock_node *);
void redlock_track_answered(struct redlock_node *, const redisReply *);
void redlock_wake_answered(struct dlock_be *, struct redlock_node *, const struct rconn_reply *);
void redlock_wake_failed(struct dlock_be *, struct redlock_node *);
void redlock_wait_timers(struct dlock_be *, int64_t now);
int64_t redlock_wait_wake_at(const struct dlock_be *);
/* When to vote again if nobody wakes us. */
int64_t redlock_next_try(const struct dlock_be *);

/* What time the server says it is: tells of jumps. */
void redlock_clock(struct dlock_be *, struct redlock_node *, int64_t theirs_ms, int64_t sent);

/* redlock_keep.c: renew and release. */
void redlock_renew(struct dlock_be *);
void redlock_renew_answered(struct dlock_be *, struct redlock_node *, const struct rconn_reply *);
void redlock_renew_step(struct dlock_be *, int64_t now);
void redlock_release(struct dlock_be *, int64_t until);
void redlock_leave_answered(struct dlock_be *, struct redlock_node *, const struct rconn_reply *);
void redlock_release_step(struct dlock_be *, int64_t now);
int64_t redlock_release_wake_at(const struct dlock_be *);

/* redlock_ask.c: status. */
void redlock_ask(struct dlock_be *, enum dlock_ask, const char *arg);
/* True: the reply is kept. */
bool redlock_ask_answered(struct dlock_be *, struct redlock_node *, redisReply *);
void redlock_ask_step(struct dlock_be *, int64_t now);
int redlock_give_listed(struct dlock_be *, struct dlock_event *);
void redlock_drop_listing(struct dlock_be *);

#endif
