/*
 * check.c - --check of a lock in one Redis server, behind Sentinel, or in a cluster. The script of
 * --status leads to the server with the lock; there all questions of server_check.h are asked.
 */
#include "operation.h"

#include <stdio.h>
#include <stdlib.h>

static void send_first(struct redis_backend *be)
{
    struct redis_conn *cmd = &be->node.cmd;
    struct redis_check *c = be->checking;
    be->out.retry_at = DLOCK_NEVER;
    redis_check_begin(c);
    redis_route_connect(&be->route, cmd, be->until);
    if (redis_cluster_asks(&be->route))
        redis_node_asking(&be->node);
    if (redis_script_send(&be->script, cmd, T_CHECK, SCRIPT_STATUS,
                          &(struct redis_script_args){0}) == 0)
        redis_check_asked(c, Q_STATUS);
    redis_conn_flush(cmd);
}

void redis_check(struct redis_backend *be)
{
    struct redis_check *c = be->checking = calloc(1, sizeof(*c));
    struct dlock_error err;
    redis_begin(be, &redis_op_check);
    if (!c) {
        dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
        redis_end(be, EV_FAILED)->error = err;
        return;
    }
    redis_sentinel_ask_quorum(&be->route, true);
    *c = (struct redis_check){.spec = be->spec,
                              .script = &be->script,
                              .node = &be->node,
                              .found = &be->found,
                              .restart_grace = be->restart_grace,
                              .wait_replicas = be->route.wait_replicas};
    send_first(be);
}

static void end_check(struct redis_backend *be)
{
    if (be->checking)
        redis_check_done(be->checking);
    free(be->checking);
    be->checking = NULL;
    redis_sentinel_ask_quorum(&be->route, false);
}

void redis_check_drop(struct redis_backend *be)
{
    end_check(be);
    findings_drop(&be->found);
}

/* How many of the sentinels answer, and name the same master. */
static void judge_sentinels(struct redis_backend *be)
{
    struct redis_survey s;
    if (!redis_sentinel_survey(&be->route, &s))
        return;
    enum dlock_finding level = s.votes < s.n || s.n < 3 ? DLOCK_FINDING_WARNING : DLOCK_FINDING_OK;
    findings_add(&be->found, level, 0,
                 "sentinels: %d of %d name %s:%u as the master, %d must%s%s%s", s.votes, s.n,
                 s.master->host, s.master->port, s.quorum, s.n < 3 || s.error ? "; " : "",
                 s.error ? s.error->msg : "",
                 s.error   ? ""
                 : s.n < 3 ? "name at least three in the URI, or none may fail"
                           : "");
    if (s.no_quorum)
        finding_warn(&be->found,
                     "failover: none is possible, says %s: %s; start the missing sentinels, or "
                     "lower their quorum",
                     s.doubter, s.no_quorum);
    else if (s.quorate > 0)
        finding_ok(&be->found, "failover: %d sentinels can start it", s.quorate);
    else
        finding_ok(&be->found, "failover: not known: SENTINEL CKQUORUM is not allowed");
}

/* All has been answered, or the time is over. */
static void finish(struct redis_backend *be)
{
    struct redis_check *c = be->checking;
    bool up = c->error.code == 0;
    if (up)
        judge_sentinels(be);
    (void)redis_check_judge(c);
    redis_idle(be);
    end_check(be);
    be->found.ended = true;
}

static void failed(struct redis_backend *be, const struct dlock_error *err)
{
    struct redis_check *c = be->checking;
    redis_node_close(&be->node);
    /* In a cluster the node's replica may be about to take over. */
    if (c->nsaid == 0 && ((be->route.cluster.known && err->code == DLOCK_EUNAVAIL) ||
                          redis_sentinel_worth_retry(&be->route, err, be->until))) {
        redis_retry_later(be, err);
        return;
    }
    c->error = *err;
    finish(be);
}

/* The answer to the first question. True: ask it again later, or nothing more. */
static bool answered_first(struct redis_backend *be, const redisReply *r)
{
    struct redis_check *c = be->checking;
    struct dlock_error err;
    if (r->type != REDIS_REPLY_ERROR)
        return false;
    enum redis_conn_class class = redis_conn_classify(r->str);
    redis_cluster_error(&be->route, &err, r->str);
    if (redis_cluster_lost(&be->route, r->str))
        redis_node_close(&be->node);
    if (err.code == DLOCK_EUNAVAIL && (class == RE_TRANSIENT || class == RE_CLUSTER))
        redis_retry_later(be, &err);
    else if (class == RE_CLUSTER)
        c->error = err; /* a cluster cannot have this lock */
    else
        return false;
    return true;
}

static void answered(struct redis_backend *be, struct redis_conn_reply *rep)
{
    struct redis_check *c = be->checking;
    if (be->node.cmd.auth_failed) {
        struct dlock_error err = be->node.cmd.error;
        failed(be, &err);
        return;
    }
    if (c->nsaid == 0) {
        if (answered_first(be, rep->r))
            return;
        redis_route_connect(&be->route, &be->node.wake, be->until);
        redis_check_subscribe(c, be->until);
    }
    redis_check_answered(c, rep);
}

void redis_check_wake_answered(struct redis_backend *be, const struct redis_conn_reply *rep)
{
    redis_check_subscribe_answered(be->checking, rep);
}

void redis_check_wake_failed(struct redis_backend *be, const struct dlock_error *err)
{
    struct dlock_error why = *err;
    redis_wake_drop(be);
    redis_check_subscribe_failed(be->checking, &why);
}

static void due(struct redis_backend *be, int64_t now)
{
    struct redis_check *c = be->checking;
    struct redis_survey s;
    if (now >= be->until) {
        if (c->nsaid == 0) {
            redis_no_answer(be, &c->error, be->spec->connect_timeout);
            c->error = be->refused.code != 0 ? be->refused : c->error;
            redis_conn_close(&be->node.cmd);
        }
        finish(be);
    } else if (now >= be->out.retry_at) {
        redis_cluster_begin(&be->route);
        send_first(be);
    } else if (be->out.retry_at == DLOCK_NEVER && redis_check_is_complete(c) &&
               (redis_sentinel_survey(&be->route, &s) || !s.pending)) {
        finish(be);
    }
}

static int64_t wake_at(const struct redis_backend *be)
{
    return be->out.retry_at;
}

const struct redis_operation redis_op_check = {
    .tag = T_CHECK,
    .again = send_first,
    .answered = answered,
    .failed = failed,
    .due = due,
    .wake_at = wake_at,
};
