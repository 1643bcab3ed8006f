/*
 * status.c - the status of a lock: one script that only reads, its answer given out entry by entry.
 */
#include "redis.h"

#include <string.h>

void redis_drop_listing(struct dlock_be *be)
{
    if (be->listing != NULL)
        freeReplyObject(be->listing);
    be->listing = NULL;
}

void redis_ask_now(struct dlock_be *be)
{
    be->cmd_out.retry_at = DLOCK_NEVER;
    redis_connect(be, &be->cmd, be->op_until);
    redis_cluster_asking(be);
    (void)redis_script_status(&be->script, &be->cmd, T_ASK);
    redis_conn_flush(&be->cmd);
}

/* What is the trouble may pass; op_until still bounds it. */
void redis_ask_later(struct dlock_be *be, const struct dlock_error *err)
{
    be->refused = *err;
    be->cmd_out.retry_at = redis_now(be) + dlock_backoff_next(&be->cmd_out.pause, be->spec->env);
}

void redis_ask_failed(struct dlock_be *be, const struct dlock_error *err)
{
    be->doing = DO_NOTHING;
    be->op_until = DLOCK_NEVER;
    events_add(&be->events, EV_FAILED)->error = *err;
}

/* The connection has failed. */
void redis_ask_lost(struct dlock_be *be, const struct dlock_error *err)
{
    if (!redis_sentinel_worth_retry(be, err)) {
        redis_ask_failed(be, err);
        return;
    }
    be->refused = *err;
    be->cmd_out.retry_at = redis_now(be) + dlock_backoff_next(&be->cmd_out.pause, be->spec->env);
}

void redis_ask(struct dlock_be *be, enum dlock_ask what, const char *arg)
{
    struct dlock_error err;
    (void)arg;
    be->op_until = redis_now(be) + be->spec->connect_timeout;
    be->refused.code = 0;
    outage_over(&be->cmd_out);
    redis_cluster_begin(be);
    be->doing = DO_ASK;
    if (what != ASK_STATUS) {
        dlock_fail(&err, DLOCK_EUSAGE, 0, "not yet supported for redis");
        redis_ask_failed(be, &err);
        return;
    }
    redis_ask_now(be);
}

/* True: the reply is kept, and given out entry by entry. */
bool redis_ask_answered(struct dlock_be *be, redisReply *r)
{
    struct dlock_error err;
    if (be->cmd.auth_failed) {
        err = be->cmd.error;
    } else if (r->type == REDIS_REPLY_ERROR) {
        enum redis_conn_class class = redis_conn_classify(r->str);
        redis_reply_error(be, &err, r->str);
        if (redis_cluster_lost(be, r->str))
            redis_close_cmd(be);
        if (err.code == DLOCK_EUNAVAIL && (class == RE_TRANSIENT || class == RE_CLUSTER)) {
            redis_ask_later(be, &err);
            return false;
        }
    } else if (redis_script_state(r, &be->list) != 0) {
        dlock_fail(&err, DLOCK_EPROTO, 0, "%s: unexpected answer to a query", redis_where(be));
    } else {
        be->op_until = DLOCK_NEVER;
        be->listing = r;
        be->list_at = 0;
        be->place = 0;
        return true;
    }
    redis_ask_failed(be, &err);
    return false;
}

/* The next entry of the listing; list_at 0 is the holder. False: that was all. */
static bool next_listed(struct dlock_be *be)
{
    const struct redis_script_state *l = &be->list;
    while (be->list_at <= l->nwaiters) {
        size_t i = be->list_at++;
        if (i == 0 && l->held) {
            redis_script_holder(l->value, l->len, &be->info);
            be->info.left_ns = l->left_ms < 0 ? DLOCK_NEVER : l->left_ms * DLOCK_MSEC;
            be->info.fence = be->info.foreign ? 0 : l->fence;
            return true;
        }
        if (i > 0 && l->waiters[i - 1]->type == REDIS_REPLY_STRING &&
            redis_script_waiter(l->waiters[i - 1]->str, (size_t)l->waiters[i - 1]->len, l->now_ms,
                                &be->info)) {
            be->info.place = ++be->place;
            return true;
        }
    }
    return false;
}

int redis_give_listed(struct dlock_be *be, struct dlock_event *ev)
{
    if (next_listed(be)) {
        *ev = (struct dlock_event){.type = EV_INFO, .info = &be->info};
        return 1;
    }
    redis_drop_listing(be);
    be->doing = DO_NOTHING;
    *ev = (struct dlock_event){.type = EV_DONE};
    return 1;
}
