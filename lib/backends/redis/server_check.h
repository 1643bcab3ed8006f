/*
 * server_check.h - the questions of --check to one Redis server, and what the answers say. check.c
 * asks one server, redlock_check.c each server of a Redlock.
 *
 * All questions are calls that change nothing, and no lock is taken. The rights are tried out, not
 * asked for by ACL DRYRUN: few users may call that, Redis 6 does not know it, and it overlooks a
 * renamed command. So a refused call leaves an entry in the server's ACL LOG.
 */
#ifndef DLOCK_REDIS_SERVER_CHECK_H
#define DLOCK_REDIS_SERVER_CHECK_H

#include "backends/networked.h"
#include "findings.h"
#include "node.h"

enum redis_question {
    Q_STATUS, /* the caller's: it finds the server, and runs a script */
    Q_INFO,   /* the answer decides what else is asked */
    Q_TIME,
    Q_RIGHTS,
    Q_FSYNC,
    Q_IDLE,
    Q_KEEPALIVE,
    Q_EVALSHA,
    Q_TRACKING,
    Q_NUMSUB,
    Q_CLUSTER,
    Q_NODES,
    Q_ASKING,
    Q_WAIT,
    Q_LAG,
    QUESTIONS
};

/* The fields up to wait_replicas are set before, and not owned; the others are zeros. */
struct redis_check {
    const struct dlock_spec *spec;
    const struct redis_script *script;
    struct redis_node *node;
    struct findings *found;
    int64_t restart_grace; /* 0: none */
    unsigned wait_replicas;

    enum redis_question asked[QUESTIONS]; /* in this order, and answered so */
    int nasked, nsaid;
    redisReply *said[QUESTIONS];                /* NULL: not asked, or no answer */
    enum { SUB_NOT, SUB_ASKED, SUB_OVER } wake; /* the second connection, of a waiter */
    struct dlock_error wake_error;              /* code 0: a waiter can be woken */
    struct dlock_error error; /* code 0; no connection, or the log-in was refused */

    /* For comparisons; "" or 0: not known. */
    char version[48], run_id[48], policy[32];
    int64_t ahead, within; /* the clock is ahead of ours, so exactly (ns); within 0: not known */
};

/* A new check of this server: nothing is asked yet. */
void redis_check_begin(struct redis_check *);
/* The caller has queued Q_STATUS. */
static inline void redis_check_asked(struct redis_check *c, enum redis_question q)
{
    c->asked[c->nasked++] = q;
}
/* A reply in this order; r becomes NULL. The next questions are queued under the same tag. */
void redis_check_answered(struct redis_check *, struct redis_conn_reply *);
/* wake begins to connect: subscribe as a waiter would. */
void redis_check_subscribe(struct redis_check *, int64_t until);
/* A reply on wake; wake has failed, for this reason. */
void redis_check_subscribe_answered(struct redis_check *, const struct redis_conn_reply *);
void redis_check_subscribe_failed(struct redis_check *, const struct dlock_error *);
/* Has all been answered, or can no more come? */
bool redis_check_is_complete(const struct redis_check *);
/* The findings of all answers so far; closes wake. False: a run could not use the server. */
bool redis_check_judge(struct redis_check *);
/* Free the answers. Fine on zeroed memory. */
void redis_check_done(struct redis_check *);

#endif
