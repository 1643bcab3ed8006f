/*
 * wake.c - being called while in line: a second connection that has subscribed, and what is said on it. See
 * script.h for the messages.
 */
#include "redis.h"

#include <stdlib.h>

void redis_wake_close(struct dlock_be *be)
{
    redis_conn_close(&be->wake);
    be->wake_state = WAKE_OFF;
    be->wake_until = be->wake_out.retry_at = DLOCK_NEVER;
}

/*
 * Subscribe before standing in line: no wake is lost, and a waiter whom nobody can reach is dead.
 */
void redis_wake_start(struct dlock_be *be)
{
    struct dlock_error err;

    free(be->channel);
    be->channel = NULL;
    if (be->id[0] == '\0' && dlock_token_new(be->spec->env, be->id) != 0)
        be->id[0] = '\0';
    else
        be->channel = redis_script_channel(&be->script, be->id);
    if (be->channel == NULL) {
        dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
        redis_wait_fail(be, &err);
        return;
    }
    be->wake.push = true;
    be->wake_state = WAKE_STARTING;
    be->wake_out.retry_at = DLOCK_NEVER;
    be->wake_until = redis_now(be) + be->spec->connect_timeout;
    be->can_track = false;
    be->wake_id = 0;
    redis_connect(be, &be->wake, be->wake_until);
    redis_script_subscribe(&be->wake, be->channel, W_ID, W_WAKE, W_INVALIDATE);
    redis_conn_flush(&be->wake);
    /* For when this node is gone. */
    redis_cluster_learn(be);
    redis_conn_flush(&be->cmd);
}

void redis_wake_drop(struct dlock_be *be)
{
    redis_wake_close(be);
    be->enqueue = false; /* nobody could reach us: stand in line again once somebody can */
    be->try_at = DLOCK_NEVER;
}

void redis_wake_failed(struct dlock_be *be)
{
    struct dlock_error err = be->wake.error;
    redis_wake_drop(be);
    if (be->doing == DO_ACQUIRE)
        redis_wait_outage(be, &be->wake_out, &err);
}

static void woken(struct dlock_be *be, const redisReply *r)
{
    if (be->wake_state != WAKE_READY || !be->enqueue)
        return;
    switch (redis_script_called(&be->script, r)) {
    case RS_CHANGED:
        if (be->place == 1)
            redis_try_now(be);
        break;
    case RS_NEXT:
        be->try_at = dlock_min(be->try_at, redis_now(be) + REDIS_SCRIPT_CLAIM + REDIS_CLAIM_SLACK);
        break;
    case RS_HEAD:
    case RS_GO:
        be->place = 1;
        redis_try_now(be);
        break;
    case RS_NOTHING:
        break;
    }
}

void redis_wake_answered(struct dlock_be *be, const struct redis_conn_reply *rep)
{
    const redisReply *r = rep->r;
    struct dlock_error err;

    if (be->wake.auth_failed) {
        redis_wake_failed(be);
        return;
    }
    switch (rep->tag) {
    case REDIS_CONN_PUSH:
        woken(be, r);
        return;
    case W_ID:
        be->wake_id = r->type == REDIS_REPLY_INTEGER ? r->integer : 0;
        return;
    case W_WAKE:
        if (r->type != REDIS_REPLY_ERROR)
            return;
        redis_conn_reply_error(&err, redis_where(be), &be->auth, r->str);
        redis_wake_close(be);
        redis_wait_outage(be, &be->wake_out, &err);
        return;
    case W_INVALIDATE:
        /* Without an id or that right: poll. */
        be->can_track = r->type != REDIS_REPLY_ERROR && be->wake_id > 0;
        be->wake_state = WAKE_READY;
        be->wake_until = DLOCK_NEVER;
        be->enqueue = true;
        /* A redirection to an earlier connection of ours would lead nowhere. */
        be->tracking = TRACK_OFF;
        outage_over(&be->wake_out);
        redis_try_now(be);
        return;
    default:
        return;
    }
}

/* Refused (an old proxy, a missing right): the first in line polls instead. */
void redis_track_answered(struct dlock_be *be, const redisReply *r)
{
    if (r->type == REDIS_REPLY_ERROR)
        be->tracking = TRACK_REFUSED;
}
