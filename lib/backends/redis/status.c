/*
 * status.c - the steps of a query: a script that reads, and scripts that mark or free a hold, or
 * remove the run record, if nothing has changed since (scripts/break.lua, scripts/forget.lua).
 *
 * A mark stands behind the holder's value, so the key's expiry and the queue are as before, and no
 * other client gets the lock. The holder's renewals and its release know the mark: the holder ends
 * its work, then releases. A dlock that does not know marks finds that its value is gone: a loss.
 */
#include "operation.h"

#include <stdio.h>

static void send_step(struct redis_backend *be)
{
    struct redis_conn *cmd = &be->node.cmd;
    struct redis_script_args args;
    char by[DLOCK_BREAKER_SIZE];
    enum redis_script_op op = redis_script_step(&args, be->spec, be->status.order, by);
    be->out.retry_at = DLOCK_NEVER;
    redis_route_connect(&be->route, cmd, be->until);
    if (redis_cluster_asks(&be->route))
        redis_node_asking(&be->node);
    (void)redis_script_send(&be->script, cmd, T_STATUS, op, &args);
    redis_conn_flush(cmd);
}

static void fail(struct redis_backend *be, const struct dlock_error *err)
{
    redis_end(be, EV_FAILED)->error = *err;
}

void redis_step(struct dlock_be *dlock_be, const struct dlock_order *order)
{
    struct redis_backend *be = redis_of(dlock_be);
    redis_drop_listing(be);
    be->status.order = order;
    redis_begin(be, &redis_op_status);
    be->until = order->until;
    send_step(be);
}

static void failed(struct redis_backend *be, const struct dlock_error *err)
{
    redis_node_close(&be->node);
    /* In a cluster the node's replica may be about to take over. */
    if ((be->route.cluster.known && err->code == DLOCK_EUNAVAIL) ||
        redis_sentinel_worth_retry(&be->route, err, be->until))
        redis_retry_later(be, err);
    else
        fail(be, err);
}

void redis_foreign_record(const struct redis_backend *be, struct dlock_error *err, const char *type)
{
    char what[256];
    snprintf(what, sizeof(what), "a %.32s at the key '%.180s%s'", type, be->script.prefix, "once");
    (void)run_record_foreign(err, be->spec, what);
}

/* Keeps the reply. */
static void was_read(struct redis_backend *be, struct redis_conn_reply *rep)
{
    const struct redis_script_state *s = &be->status.state;
    struct dlock_event *ev = redis_end(be, EV_READ);
    be->status.listing = rep->r;
    rep->r = NULL;
    be->status.at = 0;
    be->status.place = 0;
    if (s->run_len > 0 && run_record_parse(s->run, s->run_len, s->now_ms, &be->run))
        ev->run = &be->run;
    else if (s->run_len > 0)
        redis_foreign_record(be, &ev->error, s->run);
}

static void answered(struct redis_backend *be, struct redis_conn_reply *rep)
{
    redisReply *r = rep->r;
    enum dlock_step step = be->status.order->what;
    enum redis_script_stepped what = STEPPED_CHANGED;
    struct dlock_error err;
    if (be->node.cmd.auth_failed) {
        err = be->node.cmd.error;
    } else if (r->type == REDIS_REPLY_ERROR) {
        enum redis_conn_class class = redis_conn_classify(r->str);
        redis_cluster_error(&be->route, &err, r->str);
        if (redis_cluster_lost(&be->route, r->str))
            redis_node_close(&be->node);
        if (err.code == DLOCK_EUNAVAIL && (class == RE_TRANSIENT || class == RE_CLUSTER)) {
            redis_retry_later(be, &err);
            return;
        }
    } else if ((step == STEP_READ ? redis_script_state(r, &be->status.state)
                                  : redis_script_stepped(r, &what)) != 0) {
        bool breaks = step == STEP_MARK || step == STEP_FREE;
        dlock_fail_at(&err, DLOCK_EPROTO, 0, redis_where(be), "unexpected answer to a %s",
                      breaks ? "break" : "query");
    } else if (what == STEPPED_FOREIGN) {
        redis_script_no_mark(be->spec, &err);
    } else if (step == STEP_READ) {
        was_read(be, rep);
        return;
    } else {
        redis_end(be, EV_STEPPED)->stepped = what == STEPPED_DONE;
        return;
    }
    fail(be, &err);
}

const struct redis_operation redis_op_status = {
    .tag = T_STATUS,
    .again = send_step,
    .answered = answered,
    .failed = failed,
    .unanswered = fail,
};

/* The holder or all holders, then each waiter. */
bool redis_next(struct dlock_be *dlock_be, struct dlock_info *info)
{
    struct redis_backend *be = redis_of(dlock_be);
    const struct redis_script_state *s = &be->status.state;
    size_t holders = redis_script_holders(s);
    while (be->status.at < holders)
        if (redis_script_holder_at(s, be->status.at++, info))
            return true;
    while (be->status.at < holders + s->nwaiters) {
        const redisReply *w = s->waiters[be->status.at++ - holders];
        if (w->type == REDIS_REPLY_STRING &&
            redis_script_waiter(w->str, (size_t)w->len, s->now_ms, info)) {
            if (!info->silent)
                info->place = ++be->status.place;
            return true;
        }
    }
    return false;
}

void redis_rest(struct dlock_be *dlock_be)
{
    redis_drop_listing(redis_of(dlock_be));
}
