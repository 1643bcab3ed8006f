/*
 * operation.h - a lock in one Redis server, and its operations. redis.c runs the operation under
 * way: it passes on the replies, and the answers of the route (route.h).
 */
#ifndef DLOCK_REDIS_OPERATION_H
#define DLOCK_REDIS_OPERATION_H

#include "backends/networked.h"
#include "route.h"
#include "run_record.h"
#include "server_check.h"

#define REDIS_CLAIM_SLACK (20 * DLOCK_MSEC) /* beyond what a waiter that was woken may take */

/* Tags of commands on cmd; see also redis_route_tag. */
enum redis_tag {
    T_NONE,
    T_TRY,
    T_UNDO,
    T_TRACK,
    T_LOOK,
    T_LOOK_SHARED,
    T_LOOK_CLAIM,
    T_RENEW,
    T_LEAVE,
    T_STATUS,
    T_LIST,
    T_INFO,
    T_CHECK
};

/* What the server may hold for our value. */
enum redis_claim {
    CLAIM_NONE,   /* nothing: no try, or refused */
    CLAIM_TRIED,  /* unknown: a try was sent */
    CLAIM_GRANTED /* the lock, since the grant was reported */
};

/* An answer that does not count before the route has confirmed it. */
enum redis_answer_of { ANSWER_NONE, ANSWER_GRANT, ANSWER_RENEWAL, ANSWER_LOSS, ANSWER_RECORD };
struct redis_answer {
    enum redis_answer_of what;
    int64_t sent;           /* when the request left */
    uint64_t fence;         /* GRANT */
    int slot;               /* GRANT */
    struct dlock_error why; /* LOSS: why; RENEWAL: by whom the hold is broken, or code 0 */
};

/* Where an acquire is. */
enum redis_stage {
    STAGE_FIRST_TRY,    /* no try has been answered: until is the end of the first contact */
    STAGE_UNSUBSCRIBED, /* wake is closed: tries do not join the queue, and open wake again */
    STAGE_SUBSCRIBING,  /* wake opens: the try that joins the queue follows */
    STAGE_MOVING,       /* as SUBSCRIBING, at the node that has the slot now: no try before */
    STAGE_QUEUED        /* subscribed: woken by messages, and at next_at */
};

struct redis_backend {
    const struct dlock_spec *spec;
    struct redis_script script;
    int64_t restart_grace;
    char *secret;           /* password from file or environment; zeroed when freed */
    struct tls_config *tls; /* NULL: without */
    struct redis_node node;
    struct redis_route route;

    const struct redis_operation *op; /* under way; NULL: none */
    int64_t until;                    /* when what is outstanding on cmd counts as unanswered */
    struct redis_answer answer;       /* waits for a confirmation */
    struct outage out;                /* no answer on cmd; retry_at: when to send again */
    struct dlock_error refused; /* first contact: what the server said instead of an answer; or 0 */

    /* New for each acquire, and after a connection was given up with a try unanswered. */
    char token[DLOCK_TOKEN_LEN + 1], *value;
    enum redis_claim claim;
    uint64_t fence;        /* CLAIM_GRANTED */
    int64_t fence_kept_at; /* by env->now: when the fence counter's expiry was last set */
    bool queued;           /* we have an entry in the queue, or may have */

    struct redis_acquiring {
        enum redis_stage stage;
        bool wait;
        bool again; /* woken while a try was outstanding */
        bool grace_reported;
        /* Of the waiter; kept across reconnects. "": not needed yet. */
        char id[REDIS_SCRIPT_KIND + DLOCK_TOKEN_LEN + 1];
        char *channel;
        int64_t ticket; /* of our place in the queue, as the server last said; 0: none yet */
        bool back; /* wake was closed since: the place may be lost, so a try tells the ticket */
        enum redis_next { NEXT_TRY, NEXT_LOOK } next;
        int64_t next_at;    /* a look: is the lock still held? */
        int64_t refresh_at; /* when our entry in the queue needs another try */
        int64_t changed_at; /* of the last try because NAME had changed */
        bool together;      /* the last look: shared holders have the lock, or those of slots */
        struct dlock_backoff wake_pause; /* between failures of wake */
        int wake_failures;               /* since the last subscription */
        int place;
        char holder_token[DLOCK_TOKEN_LEN + 1]; /* last reported */
    } acquire;
    struct {
        int64_t until;
        bool answer_lost;         /* a release was sent, and never answered */
        struct dlock_error doubt; /* why no answer has counted yet; code 0: none */
    } release;
    struct {
        const struct dlock_question *question; /* a list */
        const struct dlock_order *order;
        redisReply *listing; /* of the last STEP_READ, handed out entry by entry; NULL: none */
        size_t at;           /* the next entry */
        int place;
        struct redis_script_state state; /* in listing */
    } status;

    struct redis_check *checking; /* NULL: no check is under way */
    struct findings found;        /* of a check */

    struct redis_list *list; /* list.c; NULL: no list under way */

    struct redis_checks checks;
    struct dlock_info info;
    struct dlock_run run;
    struct event_queue events;
};

/* An operation, for redis.c. NULL: never happens. */
struct redis_operation {
    enum redis_tag tag; /* of the command */
    /* Send the command again, to another node. moved_slot: the lock's slot has moved there. */
    void (*again)(struct redis_backend *);
    void (*moved_slot)(struct redis_backend *); /* NULL: as again */
    /* The command was answered. To keep the reply, set r to NULL. */
    void (*answered)(struct redis_backend *, struct redis_conn_reply *);
    /* Before failed. True: the server has closed an idle cmd, which does not matter. */
    bool (*idle_closed)(struct redis_backend *, const struct dlock_error *);
    /* cmd has failed, and is not closed yet. */
    void (*failed)(struct redis_backend *, const struct dlock_error *);
    /* The answer is confirmed, or refused: for good, or for now. */
    void (*confirmed)(struct redis_backend *, const struct redis_answer *);
    void (*refused)(struct redis_backend *, const struct dlock_error *, bool for_good);
    /* The master is another server now. */
    void (*moved)(struct redis_backend *);
    /* Do one thing that is due; when the next one is, besides until. NULL: a question (below). */
    void (*due)(struct redis_backend *, int64_t now);
    int64_t (*wake_at)(const struct redis_backend *);
    /* A question: again() at out.retry_at; there was no good answer until be->until. */
    void (*unanswered)(struct redis_backend *, const struct dlock_error *);
};
extern const struct redis_operation redis_op_acquire, redis_op_renew, redis_op_release,
    redis_op_status, redis_op_check, redis_op_list;

static inline struct redis_backend *redis_of(struct dlock_be *be)
{
    return (struct redis_backend *)be;
}
static inline const char *redis_where(const struct redis_backend *be)
{
    return be->spec->uri->where;
}
/* The operation is over; and with a last event, for the caller to fill in. */
static inline void redis_idle(struct redis_backend *be)
{
    be->op = NULL;
    be->until = DLOCK_NEVER;
    be->answer.what = ANSWER_NONE;
}
static inline struct dlock_event *redis_end(struct redis_backend *be, enum dlock_ev type)
{
    redis_idle(be);
    return events_add(&be->events, type);
}
/* An operation with a first contact begins: an acquire, a question. */
static inline void redis_begin(struct redis_backend *be, const struct redis_operation *op)
{
    be->op = op;
    be->until = spec_now(be->spec) + be->spec->connect_timeout;
    be->refused.code = 0;
    outage_none(&be->out);
    redis_cluster_begin(&be->route);
}
/* First contact: send again later. At be->until the error is reported. */
static inline void redis_retry_later(struct redis_backend *be, const struct dlock_error *err)
{
    be->refused = *err;
    be->out.retry_at = spec_now(be->spec) + dlock_backoff_next(&be->out.pause, be->spec->env);
}
/* no_answer(), or why cmd could not connect, or the error that was to be explained. */
static inline void redis_no_answer(const struct redis_backend *be, struct dlock_error *err,
                                   int64_t waited)
{
    no_answer(err, be->spec, waited);
    if (be->node.cmd.state == RC_FAILED || be->node.cmd.tls_failed)
        *err = be->node.cmd.error;
    else if (be->node.cmd.unclear.r)
        redis_conn_reply_error(err, &be->node.cmd, be->node.cmd.unclear.r->str);
}
static inline void redis_drop_listing(struct redis_backend *be)
{
    if (be->status.listing)
        freeReplyObject(be->status.listing);
    be->status.listing = NULL;
    be->status.state = (struct redis_script_state){0};
}

/* acquire.c */
void redis_acquire(struct dlock_be *, bool wait);
/* An answer under T_LOOK, T_LOOK_SHARED or T_LOOK_CLAIM. */
void redis_acquire_looked(struct redis_backend *, int tag, const redisReply *);
/* wake is useless: join the queue again through a new connection. */
void redis_wake_drop(struct redis_backend *);
/* A reply on wake; wake has failed. */
void redis_acquire_wake_answered(struct redis_backend *, const struct redis_conn_reply *);
void redis_acquire_wake_failed(struct redis_backend *, const struct dlock_error *);

/* renew.c */
void redis_renew(struct dlock_be *);
/* The caller has cancelled the operation under way. */
void redis_release(struct redis_backend *, int64_t until);

/* check.c: as status.c. Begin; a reply on wake, or wake has failed. */
void redis_check(struct redis_backend *);
void redis_check_wake_answered(struct redis_backend *, const struct redis_conn_reply *);
void redis_check_wake_failed(struct redis_backend *, const struct dlock_error *);
/* Cancelled: forget the findings. */
void redis_check_drop(struct redis_backend *);

/* status.c: slots of the contract. */
void redis_step(struct dlock_be *, const struct dlock_order *);
bool redis_next(struct dlock_be *, struct dlock_info *);
void redis_rest(struct dlock_be *);
/* The run record's key holds foreign data of this type. */
void redis_foreign_record(const struct redis_backend *, struct dlock_error *, const char *type);

/* list.c */
void redis_list(struct redis_backend *);
/* With a page: the next lock, or EV_DONE. 1, or 0: none yet. */
int redis_list_next(struct redis_backend *, struct dlock_event *);
bool redis_list_ready(const struct redis_backend *);
void redis_list_drop(struct redis_backend *);

#endif
