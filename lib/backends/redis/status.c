/*
 * status.c - the status of a lock: a script that only reads; the answer is handed out entry by
 * entry. It also sends the scripts of --forget, which removes the run record, and of --break
 * (break.c).
 */
#include "break.h"
#include "operation.h"

#include <stdio.h>

static void send_query(struct redis_backend *be)
{
    static const enum redis_script_op scripts[] = {
        [ASK_STATUS] = SCRIPT_STATUS, [ASK_FORGET] = SCRIPT_FORGET, [ASK_BREAK] = SCRIPT_BREAK};
    const struct dlock_question *question = be->status.question;
    struct redis_conn *cmd = &be->node.cmd;
    struct redis_script_args args = {.token = question->token};
    char by[DLOCK_BREAKER_SIZE];
    if (question->what == ASK_BREAK)
        redis_break_args(be->spec, question, &args, by);
    be->out.retry_at = DLOCK_NEVER;
    redis_route_connect(&be->route, cmd, be->until);
    if (redis_cluster_asks(&be->route))
        redis_node_asking(&be->node);
    (void)redis_script_send(&be->script, cmd, T_STATUS, scripts[question->what], &args);
    redis_conn_flush(cmd);
}

static void fail(struct redis_backend *be, const struct dlock_error *err)
{
    redis_end(be, EV_FAILED)->error = *err;
}

void redis_status(struct redis_backend *be)
{
    redis_question_begin(be, OP_STATUS);
    send_query(be);
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

static void answered(struct redis_backend *be, struct redis_conn_reply *rep)
{
    redisReply *r = rep->r;
    bool forgetting = be->status.question->what == ASK_FORGET;
    enum redis_script_forgot what;
    const char *type;
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
    } else if (be->status.question->what == ASK_BREAK) {
        if (redis_break_answered(be, r, &err))
            return;
    } else if ((forgetting ? redis_script_forgot(r, &what, &type)
                           : redis_script_state(r, &be->status.state)) != 0) {
        dlock_fail_at(&err, DLOCK_EPROTO, 0, redis_where(be), "unexpected answer to a query");
    } else if (forgetting && what == RF_RECORD) {
        redis_foreign_record(be, &err, type);
    } else if (forgetting && what == RF_CHANGED) {
        dlock_fail_lock(&err, DLOCK_EBUSY, 0, be->spec->uri,
                        "the record has changed: it is that of another run now");
    } else if (forgetting) {
        redis_end(be, what == RF_BUSY ? EV_BUSY : EV_DONE);
        return;
    } else {
        be->until = DLOCK_NEVER;
        be->status.listing = r;
        rep->r = NULL;
        be->status.at = 0;
        be->status.place = 0;
        const struct redis_script_state *s = &be->status.state;
        /* A holder is shown also beside a foreign run record. */
        if (s->run_len > 0 && run_record_parse(s->run, s->run_len, s->now_ms, &be->run))
            events_add(&be->events, EV_RUN)->run = &be->run;
        else if (s->run_len > 0)
            redis_foreign_record(be, &events_add(&be->events, EV_NOTICE)->error, s->run);
        return;
    }
    fail(be, &err);
}

const struct redis_operation redis_op_status = {
    .tag = T_STATUS,
    .again = send_query,
    .answered = answered,
    .failed = failed,
    .unanswered = fail,
};

/* Fill in be->info: the holder or all holders, then each waiter. False: no more. */
static bool next_entry(struct redis_backend *be)
{
    const struct redis_script_state *s = &be->status.state;
    size_t holders = redis_script_holders(s);
    while (be->status.at < holders)
        if (redis_script_holder_at(s, be->status.at++, &be->info))
            return true;
    while (be->status.at < holders + s->nwaiters) {
        const redisReply *w = s->waiters[be->status.at++ - holders];
        if (w->type == REDIS_REPLY_STRING &&
            redis_script_waiter(w->str, (size_t)w->len, s->now_ms, &be->info)) {
            if (!be->info.silent)
                be->info.place = ++be->status.place;
            return true;
        }
    }
    return false;
}

int redis_status_next(struct redis_backend *be, struct dlock_event *ev)
{
    *ev = (struct dlock_event){.type = EV_INFO, .info = &be->info};
    if (next_entry(be))
        return 1;
    redis_drop_listing(be);
    redis_idle(be);
    *ev = (struct dlock_event){.type = EV_DONE};
    return 1;
}
