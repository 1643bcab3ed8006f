/*
 * redlock_servers.h - the servers of a Redlock, and the operations on the lock in the servers.
 * redlock.c gives the operations their replies and the time.
 */
#ifndef DLOCK_REDLOCK_SERVERS_H
#define DLOCK_REDLOCK_SERVERS_H

#include "backends/networked.h"
#include "findings.h"
#include "node.h"
#include "quorum.h"
#include "redlock_young.h"
#include "run_record.h"

#include <string.h>

enum redlock_op { OP_NONE, OP_ACQUIRE, OP_RENEW, OP_RELEASE, OP_STATUS, OP_CHECK, OP_LIST };

/* Where an acquire is. */
enum redlock_stage {
    STAGE_VOTE,  /* all servers are asked for their vote */
    STAGE_RAISE, /* a majority has voted: their fence counters are raised to the token */
    STAGE_UNDO,  /* no majority: votes are given back */
    STAGE_PAUSE  /* until try_at, or until a majority may be free */
};

/* The tag of a command is its kind and the serial number of its operation. */
enum redlock_kind {
    /* Up to KIND_CLAIM: looks of a waiter. The answer to SELECT is not read. */
    KIND_SELECT,
    KIND_LOOK,
    KIND_CLAIM, /* does a waiter that was called have a claim to the free lock? */
    KIND_VOTE,
    KIND_RAISE,
    KIND_UNDO,
    KIND_STALE,
    KIND_RENEW,
    KIND_HEAL,
    KIND_LEAVE,
    KIND_STATUS, /* a step of a query; of a check, too */
    KIND_TRACK,
    KIND_INFO,
    KIND_LIST
};
#define REDLOCK_SERIALS 0x7ffffffu
#define REDLOCK_TAG(serial, kind) ((int)(((serial)&REDLOCK_SERIALS) << 4 | (unsigned)(kind)))
#define REDLOCK_TAG_SERIAL(tag) ((unsigned)(tag) >> 4 & REDLOCK_SERIALS)
#define REDLOCK_TAG_KIND(tag) ((enum redlock_kind)((tag)&15))

/* Is the granted lock still there? */
enum redlock_loss {
    LOSS_NONE,
    LOSS_GONE, /* not ours in this renewal, or in earlier renewals since the last majority */
    LOSS_EARLY /* gone although the server had confirmed our lease for longer */
};

/* Is our hold broken there? A renewal asks. */
enum redlock_mark {
    MARK_NONE,
    MARK_SEEN,
    MARK_LOST /* the lock is gone, and perhaps its mark */
};

struct redlock_server {
    int host; /* in the URI */
    char where[300];
    struct redis_node node;
    bool same; /* a second name of a server in the list: without a vote */

    /* The operation under way. */
    enum redlock_answer answer;
    enum { RAISE_NONE, RAISE_ASKED, RAISE_DONE } raise; /* STAGE_RAISE */
    enum redlock_loss loss;
    enum redlock_mark mark;
    bool undo_sent; /* a vote of the round is being given back */
    uint64_t fence;
    int64_t left_ms, up_ms; /* as struct redis_script_tried */
    int64_t longest_ms;     /* the largest ttl of the other clients there; 0: no client */
    int place;
    uint64_t holder; /* a digest of the holder's value, the same for all readers; 0: free */
    struct dlock_error error;
    struct dlock_info info; /* A_BUSY: the holder */
    redisReply *reply;      /* of the last read: redlock_next() hands it out entry by entry */

    struct {
        bool found; /* a run record came with the vote */
        struct dlock_run run;
        char text[RUN_RECORD_MAX];
        int64_t kept; /* for how long the record stays there */
        bool written; /* release: the end of our run is recorded */
    } once;

    int64_t from; /* when the last confirmed request for the value left; 0: none */
    bool touched; /* the value may be there */
    bool queued;  /* we may be in the server's queue */
    bool left;    /* a release was sent, and the answer never came */
    bool freed;   /* the lock was reported free, or was voted to us, since the last round began */

    enum dlock_ev doubt; /* granted: EV_AWAY or EV_CHANGED is to be handed out; or EV_NONE */

    /* Trouble. */
    bool down;               /* reported */
    bool hung_up;            /* a connection was closed since the last good answer */
    struct dlock_error last; /* why the server could not be used */
    int64_t retry_at, wake_retry_at;
    struct dlock_backoff pause, wake_pause;
};

struct redlock_backend {
    const struct dlock_spec *spec;
    struct redis_script script;
    int64_t restart_grace;
    int64_t unreported_ttl; /* the largest possible ttl of an unreported client */
    char *secret;
    struct tls_config *tls; /* NULL: without */
    struct redlock_server *servers;
    int n, quorum;

    enum redlock_op op;
    unsigned serial, vote_serial; /* of the operation, and of the granted round */
    int64_t began, until;
    int64_t patient_until; /* a majority has answered: how long the silent servers are waited for */
    int64_t stepped;       /* the time of the last step, which has handled all earlier deadlines */

    char token[DLOCK_TOKEN_LEN + 1], *value;
    uint64_t fence;
    enum { CLAIM_NONE, CLAIM_GRANTED, CLAIM_LOST } claim; /* LOST: the loss was reported */
    struct dlock_error broken;                            /* with MARK_SEEN: by whom */
    bool proven;                /* granted or renewed by the last operation */
    struct redis_checks checks; /* do the servers evict locks? */

    struct redlock_acquiring {
        enum redlock_stage stage;
        bool wait, first, grace_reported, wait_reported, ahead_reported;
        char id[REDIS_SCRIPT_KIND + DLOCK_TOKEN_LEN + 1], *channel;
        int splits; /* rounds in a row without a winner */
        int64_t not_before, try_at;
        int64_t try_by;  /* the latest try_at: a server has woken us in the middle of a round */
        int64_t look_at; /* STAGE_PAUSE: is the lock free? */
        enum dlock_ev outcome;  /* STAGE_UNDO: what follows; EV_WAITING: a new round */
        struct dlock_error why; /* the last round had no usable majority (else code 0) */
        bool twice;             /* a server has two names */
        struct outage out;
        struct dlock_backoff split_pause;
        struct redlock_server *holder; /* a server with the holder's record, or NULL */
        bool split;                    /* no client has a majority */
        uint64_t reported_holder;
    } acquire;
    struct {
        const struct dlock_question *question; /* a list */
        const struct dlock_order *order;
        enum { LIST_HOLDERS, LIST_WAITERS, LIST_SILENT } part;
        int server;
        size_t at, nlisted;
        uint64_t listed[200]; /* digests of the ids of waiters: several servers know them */
    } status;

    struct redlock_list *list; /* of redlock_list.c; NULL: no list under way */

    struct redis_check *checking; /* one a server; NULL: no check is under way */
    struct findings found;        /* of a check */

    struct dlock_run run; /* of EV_SKIPPED, EV_RUN */
    struct event_queue events;
};

/* Without servers, as after a refused URI, there is no array either. */
/* clang-format off */
#define for_each_server(be, s) \
    for (struct redlock_server *s = (be)->servers; s && s < (be)->servers + (be)->n; s++)
/* clang-format on */

/* What redlock.c does with an operation. */
struct redlock_operation {
    /* A reply to a command of this kind, maybe an old one. Sets r to NULL to keep the reply. */
    void (*answered)(struct redlock_backend *, struct redlock_server *, struct redis_conn_reply *);
    /* While the operation is under way: act on the answers so far and the time. */
    void (*step)(struct redlock_backend *, int64_t now);
    int64_t (*wake_at)(const struct redlock_backend *);
};
extern const struct redlock_operation redlock_op_acquire, redlock_op_renew, redlock_op_release,
    redlock_op_status, redlock_op_check, redlock_op_list;

static inline struct redlock_backend *redlock_of(struct dlock_be *be)
{
    return (struct redlock_backend *)be;
}
/* End the operation. Returns the last event, to be filled in. */
static inline struct dlock_event *redlock_end(struct redlock_backend *be, enum dlock_ev type)
{
    be->op = OP_NONE;
    be->until = DLOCK_NEVER;
    return events_add(&be->events, type);
}
/* The lease that a vote asks for: also the ttl by which newcomers judge restarted servers. */
static inline int64_t redlock_lease(const struct dlock_spec *spec)
{
    return dlock_max(spec->ttl, spec->min_hold);
}
static inline void redlock_notice(struct redlock_backend *be, const struct dlock_error *err)
{
    events_add(&be->events, EV_NOTICE)->error = *err;
}
/* Send a script to the server, under this kind and the operation's serial number. */
static inline void redlock_send(const struct redlock_backend *be, struct redlock_server *s,
                                enum redlock_kind kind, enum redis_script_op op,
                                const struct redis_script_args *args)
{
    (void)redis_script_send(&be->script, &s->node.cmd, REDLOCK_TAG(be->serial, kind), op, args);
    redis_conn_flush(&s->node.cmd);
}

/* ------------------------------------------------------------- redlock_servers.c */

/* Do two names have the same address? Needs the peers. 0 or DLOCK_EUSAGE. */
int redlock_check_peers(struct redlock_backend *, struct dlock_error *);
/* A new operation: no server has answered anything. */
void redlock_begin(struct redlock_backend *, enum redlock_op);
/* Begin to connect cmd or wake of the server. */
void redlock_connect(struct redlock_backend *, struct redlock_server *, struct redis_conn *,
                     int64_t until);
/*
 * True: the operation's commands can be queued for the server, and its answer is pending. If not,
 * the answer says why: a failure to connect a moment ago, or earlier commands without an answer.
 */
bool redlock_reach(struct redlock_backend *, struct redlock_server *, int64_t until);
/* Send the script that raises the fence counter (KIND_RAISE), renews, or heals. */
void redlock_keep(struct redlock_backend *, struct redlock_server *, enum redlock_kind);
/* The server may still set the round's value: undo the value in front of the next vote. */
static inline void redlock_remember(const struct redlock_backend *be, struct redlock_server *s)
{
    redis_node_remember(&s->node, strdup(be->value));
}
/* Undo such values now. */
static inline void redlock_undo(const struct redlock_backend *be, struct redlock_server *s)
{
    redis_node_undo(&s->node, &be->script, REDLOCK_TAG(0, KIND_STALE), false);
}
/* Close cmd. An unanswered vote may still be served: its undo is sent now and on the next cmd. */
void redlock_drop(struct redlock_backend *, struct redlock_server *);
/* The server has left a request unanswered. */
void redlock_silent(struct redlock_backend *, struct redlock_server *);
/* A warning with the server's error; one until its next good answer. */
void redlock_report_down(struct redlock_backend *, struct redlock_server *);
/* cmd has failed. */
void redlock_failed(struct redlock_backend *, struct redlock_server *);
/* A good answer. */
void redlock_well(struct redlock_server *);
/* An error reply, or AUTH was refused. */
void redlock_refused(struct redlock_backend *, struct redlock_server *, const redisReply *);
/* A reply without the expected form: A_REFUSED, and "WHERE: unexpected answer to WHAT". */
void redlock_misread(struct redlock_server *, const char *what);
/* 64 bits of a text: enough to see whether two servers name the same holder. */
uint64_t redlock_digest(const char *, size_t len);
int redlock_count(const struct redlock_backend *, enum redlock_answer);
/* When a majority had last confirmed: the lease counts from there. 0: no majority has. */
int64_t redlock_from(const struct redlock_backend *);
/* May the operation still wait with so many answers? After a majority, only for a moment. */
bool redlock_patient(struct redlock_backend *, int answered, int64_t now);
/* When this wait, or the operation's time, is over. */
int64_t redlock_wake_at(const struct redlock_backend *);
/*
 * Why a server cannot be used: an error with this code, else with any (0: with any), else "WHERE:
 * no answer". Fills why; msg "": all have answered.
 */
void redlock_why(const struct redlock_backend *, int code, struct dlock_error *why);
/* "only 2 of 5 servers can be used, 3 are needed; WHY": fills err, returns its code. */
int redlock_no_quorum(const struct redlock_backend *, struct dlock_error *);

/* ----------------------------------------------------------------- redlock_run.c */

/* Read the run record in the vote. A vote with foreign data in its place does not count. */
void redlock_run_read(struct redlock_backend *, struct redlock_server *,
                      const struct redis_script_tried *);
/* Foreign data is in the place of the server's run record. */
void redlock_run_foreign(const struct redlock_backend *, const struct redlock_server *,
                         struct dlock_error *);
/*
 * A voter with the record of a success that skips our run; NULL: our run may begin. Not sure: the
 * missing votes may decide otherwise.
 */
const struct redlock_server *redlock_run_success(const struct redlock_backend *, bool *sure);
/* Give a vote back because of this success, which a server without the record gets, too. */
void redlock_run_skip(struct redlock_backend *, struct redlock_server *,
                      const struct redlock_server *success);
/* Release the lock there, or keep it for the rest of --min-hold; record the end of the run. */
void redlock_run_end(struct redlock_backend *, struct redlock_server *);
/* ---------------------------------------------------------------- the operations */

void redlock_acquire(struct dlock_be *, bool wait);
/* Close all connections on which a waiter is woken. */
void redlock_wait_close(struct redlock_backend *);
/* On wake: a reply; the connection has failed. */
void redlock_wake_answered(struct redlock_backend *, struct redlock_server *,
                           const struct redis_conn_reply *);
void redlock_wake_failed(struct redlock_backend *, struct redlock_server *);
void redlock_renew(struct dlock_be *);
/* The caller has cancelled what was under way. */
void redlock_release(struct redlock_backend *, int64_t until);
/* Begin; on wake: a reply; the connection has failed. */
void redlock_check(struct redlock_backend *);
void redlock_check_wake_answered(struct redlock_backend *, struct redlock_server *,
                                 const struct redis_conn_reply *);
void redlock_check_wake_failed(struct redlock_backend *, struct redlock_server *);
/* Cancelled: forget the findings. */
void redlock_check_drop(struct redlock_backend *);
/* redlock_status.c: slots of the contract. */
void redlock_step(struct dlock_be *, const struct dlock_order *);
bool redlock_next(struct dlock_be *, struct dlock_info *);
void redlock_rest(struct dlock_be *);
void redlock_list(struct redlock_backend *);
/* During a list: the next lock, or EV_DONE. 1, or 0: none yet. */
int redlock_list_next(struct redlock_backend *, struct dlock_event *);
bool redlock_list_ready(const struct redlock_backend *);
/* The connections with unanswered requests of the list are closed. */
void redlock_list_drop(struct redlock_backend *);

#endif
