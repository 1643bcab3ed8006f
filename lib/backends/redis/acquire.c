/*
 * acquire.c - acquire: the first try, standing in the queue, and the second connection on which a waiter is woken.
 */
#include "redis.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_PAUSE (200 * DLOCK_MSEC) /* of the first in line, where the server cannot tell it */
#define PLACE_STEP (100 * DLOCK_MSEC) /* between the tries of those behind it */
#define LISTEN_LATER DLOCK_SEC        /* most commands have ended by then */

/* -------------------------------------------------------------------- ends */

void redis_wake_close(struct dlock_be *be)
{
    redis_conn_close(&be->wake);
    be->wake_state = WAKE_OFF;
    be->wake_until = be->wake_out.retry_at = DLOCK_NEVER;
}

void redis_wait_fail(struct dlock_be *be, const struct dlock_error *err)
{
    redis_wake_close(be);
    be->doing = DO_NOTHING;
    be->proof.what = PROOF_NOTHING;
    events_add(&be->events, EV_FAILED)->error = *err;
}

/* -------------------------------------------------------------------- outages */

static void outage(struct dlock_be *be, struct outage *o, const struct dlock_error *err)
{
    if (!outage_goes_on(o, be->spec, &be->events, err))
        redis_wait_fail(be, err);
}

/* A fresh token and value. False: the acquire has failed. */
static bool new_value(struct dlock_be *be)
{
    int rc = dlock_token_new(be->spec->env, be->token);
    free(be->value);
    be->value = rc == 0 ? redis_script_value(be->token, be->spec->who) : NULL;
    be->tried = false;
    if (be->value != NULL)
        return true;
    struct dlock_error err;
    if (rc != 0)
        dlock_fail(&err, DLOCK_EOS, -rc, "no random numbers: %s", strerror(-rc));
    else
        dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
    redis_wait_fail(be, &err);
    return false;
}

/*
 * Give cmd up. A try that is unanswered may be served later: a stopped server executes what is in its
 * socket buffers when it goes on [measured]. So the undo is sent behind it, and the next try has another
 * value, which that undo does not touch; it is sent again on the next connection, because one that waits for replicas
 * drops what is behind. False: the acquire has failed.
 */
static bool give_up_cmd(struct dlock_be *be)
{
    bool unclear = be->tried && be->cmd.written;

    be->proof.what = PROOF_NOTHING;
    if (unclear && be->cmd.state == RC_UP)
        (void)redis_script_leave(&be->script, &be->cmd, T_UNDO, be->value, "");
    redis_close_cmd(be);
    be->op_until = DLOCK_NEVER;
    if (!unclear) {
        be->tried = false;
        return true;
    }
    if (be->nstale == REDIS_STALE)
        redis_forget_stale(be, 1);
    be->stale[be->nstale++] = be->value;
    be->value = NULL;
    return new_value(be);
}

/* First contact: the trouble may pass; op_until still bounds it, and then this is what is said. */
static void first_later(struct dlock_be *be, const struct dlock_error *err)
{
    be->refused = *err;
    be->cmd_out.retry_at = redis_now(be) + dlock_backoff_next(&be->cmd_out.pause, be->spec->env);
}

/* First contact, and the server may be replaced: another look within the same time. */
static bool try_again_first(struct dlock_be *be, const struct dlock_error *err)
{
    int64_t until = be->op_until;

    if (!give_up_cmd(be))
        return false;
    be->op_until = until;
    be->refused = *err;
    be->cmd_out.retry_at = redis_now(be) + dlock_backoff_next(&be->cmd_out.pause, be->spec->env);
    return true;
}

void redis_wait_trouble(struct dlock_be *be, const struct dlock_error *why)
{
    struct dlock_error err = *why; /* of cmd, which is closed here */

    if (!be->first) {
        if (give_up_cmd(be))
            outage(be, &be->cmd_out, &err);
        return;
    }
    if (be->cluster.known && !be->cmd.written && err.code == DLOCK_EUNAVAIL) {
        /* The node that has the slot is down; its replica may be about to take over. */
        redis_close_cmd(be);
        be->tried = false;
        first_later(be, &err);
        return;
    }
    if (redis_sentinel_worth_retry(be, &err)) {
        (void)try_again_first(be, &err);
        return;
    }
    /* tried stays where the server may have seen it: the core's release undoes it */
    be->tried = be->tried && be->cmd.written;
    redis_conn_close(&be->cmd);
    be->op_until = DLOCK_NEVER;
    be->leave_lost = false;
    redis_wait_fail(be, &err);
}

/* -------------------------------------------------- the wake-up connection */

/*
 * Subscribe before standing in line: no wake is lost, and a waiter whom nobody can reach is dead.
 */
static void wake_start(struct dlock_be *be)
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

/* ------------------------------------------------------------------- tries */

static bool may_track(const struct dlock_be *be)
{
    return be->place == 1 && be->enqueue && be->wake_state == WAKE_READY && be->can_track &&
           be->tracking == TRACK_OFF;
}

static void try_now(struct dlock_be *be)
{
    int64_t now = redis_now(be);

    if (be->proof.what != PROOF_NOTHING) { /* granted already, it seems */
        be->try_at = DLOCK_NEVER;
        return;
    }
    if (redis_conn_is_open(&be->cmd) && redis_conn_waits(&be->cmd, T_TRY)) {
        be->again = true; /* the answer may be from before what woke us */
        be->try_at = DLOCK_NEVER;
        return;
    }
    be->again = false;
    be->try_at = be->cmd_out.retry_at = DLOCK_NEVER;
    if (!be->first)
        be->op_until = now + be->spec->op_timeout;
    redis_connect(be, &be->cmd, be->op_until);
    redis_undo_stale(be);
    /* The server tracks what is read after this, so it goes in front of the try. */
    if (may_track(be))
        be->tracking = redis_script_track(&be->cmd, T_TRACK, be->wake_id) ? TRACK_ON : TRACK_OFF;
    if (be->script.torn)
        redis_cluster_hello(be); /* answered before the try is */
    be->tried = true;
    be->queued = be->queued || be->enqueue;
    (void)redis_script_try(&be->script, &be->cmd, T_TRY, be->value, be->enqueue ? be->id : "",
                           be->spec->ttl, be->restart_grace);
    redis_conn_flush(&be->cmd);
}

void redis_try_again(struct dlock_be *be, bool moved)
{
    int64_t until = be->op_until;
    be->tried = false;
    if (moved && be->id[0] != '\0') {
        /* Whoever has been in line subscribes there first: its place is still kept. */
        redis_wake_close(be);
        be->enqueue = false;
        be->op_until = be->try_at = be->cmd_out.retry_at = DLOCK_NEVER;
        wake_start(be);
        return;
    }
    try_now(be);
    be->op_until = until;
}

void redis_wait_move(struct dlock_be *be)
{
    int64_t until = be->op_until;

    redis_wake_drop(be);
    if (!give_up_cmd(be))
        return;
    be->op_until = until; /* of a first contact; otherwise the try sets it */
    try_now(be);
}

void redis_acquire(struct dlock_be *be, bool wait)
{
    int64_t now = redis_now(be);

    be->doing = DO_ACQUIRE;
    be->wait = wait;
    be->first = true;
    be->granted = be->queued = be->enqueue = be->again = be->told_grace = be->leave_lost = false;
    be->place = 0;
    be->holder_token[0] = '\0';
    be->try_at = be->wake_until = DLOCK_NEVER;
    outage_over(&be->cmd_out);
    outage_over(&be->wake_out);
    redis_cluster_begin(be);
    be->refused.code = 0;
    be->op_until = now + be->spec->connect_timeout;
    if (!new_value(be))
        return;
    /* The first try needs no id: only one who waits is in the queue. */
    be->id[0] = '\0';
    try_now(be);
}

/* An error reply to a try. Nothing was granted: the script sets NAME last. */
static void try_refused(struct dlock_be *be, const char *text)
{
    enum redis_conn_class class = redis_conn_classify(text);
    struct dlock_error err;

    redis_reply_error(be, &err, text);
    if (redis_cluster_lost(be, text))
        redis_close_cmd(be);
    if (be->first && err.code == DLOCK_EUNAVAIL && (class == RE_TRANSIENT || class == RE_CLUSTER)) {
        first_later(be, &err);
        return;
    }
    if (be->first) {
        if (class == RE_REPLICA && redis_sentinel_worth_retry(be, &err))
            (void)try_again_first(be, &err);
        else
            redis_wait_fail(be, &err);
        return;
    }
    be->op_until = DLOCK_NEVER;
    /* A replica now: another address may be the master. */
    if (class == RE_REPLICA) {
        if (!give_up_cmd(be))
            return;
        redis_conn_close_replica(&be->cmd);
    }
    outage(be, &be->cmd_out, &err);
}

/* An answer has been understood, and counts. */
static void contacted(struct dlock_be *be)
{
    be->first = false;
    be->op_until = DLOCK_NEVER;
    outage_over(&be->cmd_out);
}

void redis_granted(struct dlock_be *be, const struct redis_proof *p)
{
    contacted(be);
    be->granted = true;
    be->queued = false;
    be->doing = DO_NOTHING;
    redis_wake_close(be);
    redis_checks_granted(&be->checks);
    redis_sentinel_listen(be, redis_now(be) + LISTEN_LATER);
    struct dlock_event *ev = events_add(&be->events, EV_GRANTED);
    ev->from = p->sent;
    ev->ttl = be->spec->ttl;
    ev->fence = p->fence;
    memcpy(ev->token, be->token, sizeof(ev->token));
}

/* Who holds it, for EV_BUSY and EV_WAITING; NULL where nobody does. */
static const struct dlock_info *holder_info(struct dlock_be *be, const struct redis_script_tried *t)
{
    if (t->status != RS_BUSY)
        return NULL;
    redis_script_holder(t->holder, t->holder_len, &be->info);
    be->info.left_ns = t->left_ms < 0 ? DLOCK_NEVER : t->left_ms * DLOCK_MSEC;
    return &be->info;
}

static void tell_waiting(struct dlock_be *be, const struct redis_script_tried *t)
{
    const struct dlock_info *info = holder_info(be, t);
    const char *token = info == NULL ? "-" : info->foreign ? "foreign" : info->token;
    if (be->place == t->place && strcmp(token, be->holder_token) == 0)
        return;
    snprintf(be->holder_token, sizeof(be->holder_token), "%s", token);
    struct dlock_event *ev = events_add(&be->events, EV_WAITING);
    ev->info = info;
    ev->place = t->place;
}

static void tell_grace(struct dlock_be *be, const struct redis_script_tried *t)
{
    char left[32];
    if (be->told_grace)
        return;
    be->told_grace = true;
    dlock_fail(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EBUSY, 0,
               "%s: the server was started a short while ago and grants nothing for another %s "
               "(restart-grace)",
               redis_where(be), dlock_format_duration(t->left_ms * DLOCK_MSEC, left, sizeof(left)));
}

/*
 * When to try again if nobody wakes us. The first in line watches the lease itself. Those behind it look
 * a little later, one after the other, since the holder and some in front may have died together. A call
 * that was not answered runs out after a second: then it is the next one's turn.
 */
static int64_t next_try(const struct dlock_be *be, const struct redis_script_tried *t)
{
    int64_t now = redis_now(be), at = now + be->spec->ttl / 3;
    int64_t left = t->left_ms * DLOCK_MSEC, behind = be->place > 1 ? be->place - 1 : 0;

    if (t->status == RS_CLAIM)
        at = dlock_min(at, now + left + REDIS_CLAIM_SLACK + dlock_max(0, behind - 1) * PLACE_STEP);
    else if (t->left_ms >= 0)
        at = dlock_min(at, now + left + DLOCK_MSEC + behind * PLACE_STEP);
    if (be->place == 1 && be->tracking != TRACK_ON)
        at = dlock_min(at, now + POLL_PAUSE);
    return at;
}

static void not_granted(struct dlock_be *be, const struct redis_script_tried *t)
{
    if (t->status == RS_GRACE)
        tell_grace(be, t);
    if (!be->wait) {
        struct dlock_event *ev = events_add(&be->events, EV_BUSY);
        ev->info = holder_info(be, t);
        ev->place = t->place;
        be->doing = DO_NOTHING;
        return;
    }
    tell_waiting(be, t);
    be->place = t->place;
    redis_sentinel_listen(be, redis_now(be));
    if (redis_cluster_strayed(be)) {
        redis_wake_close(be);
        be->enqueue = false;
    }
    if (!be->enqueue) {
        if (be->wake_state == WAKE_OFF && be->wake_out.retry_at == DLOCK_NEVER)
            wake_start(be);
        return;
    }
    if (be->again || may_track(be))
        try_now(be); /* may_track: what was read before the server tracked it may have changed */
    else
        be->try_at = next_try(be, t);
}

void redis_try_answered(struct dlock_be *be, const struct redis_conn_reply *rep)
{
    struct redis_script_tried t;
    struct dlock_error err;

    if (be->cmd.auth_failed) {
        err = be->cmd.error;
        be->tried = rep->r->type != REDIS_REPLY_ERROR;
        redis_wait_fail(be, &err);
        return;
    }
    if (rep->r->type == REDIS_REPLY_ERROR) {
        try_refused(be, rep->r->str);
        return;
    }
    if (redis_script_tried(rep->r, &t) != 0) {
        dlock_fail(&err, DLOCK_EPROTO, 0, "%s: unexpected answer to the lock script",
                   redis_where(be));
        redis_wait_fail(be, &err);
        return;
    }
    if (t.status == RS_GRANTED) {
        be->clock = (struct redis_clock){0};
        (void)redis_clock_now(be, t.now_ms, rep->sent);
        redis_prove(
            be, &(struct redis_proof){.what = PROOF_GRANT, .sent = rep->sent, .fence = t.fence});
        return;
    }
    contacted(be);
    be->tried = false;
    if (t.status == RS_TYPE) {
        char type[32];
        dlock_clean_text(type, sizeof(type), t.holder, t.holder_len);
        dlock_fail(&err, DLOCK_EDATA, 0,
                   "%s: the key '%s' is a %s, not a lock of dlock or SET NX; use another name",
                   redis_where(be), be->spec->uri->name, type);
        redis_wait_fail(be, &err);
        return;
    }
    not_granted(be, &t);
}

/* ------------------------------------------------------------------- woken */

void redis_wake_failed(struct dlock_be *be)
{
    struct dlock_error err = be->wake.error;
    redis_wake_drop(be);
    if (be->doing == DO_ACQUIRE)
        outage(be, &be->wake_out, &err);
}

static void woken(struct dlock_be *be, const redisReply *r)
{
    if (be->wake_state != WAKE_READY || !be->enqueue)
        return;
    switch (redis_script_called(&be->script, r)) {
    case RS_CHANGED:
        if (be->place == 1)
            try_now(be);
        break;
    case RS_NEXT:
        be->try_at = dlock_min(be->try_at, redis_now(be) + REDIS_SCRIPT_CLAIM + REDIS_CLAIM_SLACK);
        break;
    case RS_HEAD:
    case RS_GO:
        be->place = 1;
        try_now(be);
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
        outage(be, &be->wake_out, &err);
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
        try_now(be);
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

/* ---------------------------------------------------------------------- timers */

int64_t redis_wait_wake_at(const struct dlock_be *be)
{
    int64_t at = dlock_min(be->wake_until, be->wake_out.retry_at);
    return dlock_min(at, dlock_min(be->try_at, be->cmd_out.retry_at));
}

void redis_wait_timers(struct dlock_be *be, int64_t now)
{
    struct dlock_error err;

    if (now >= be->op_until) {
        redis_no_answer(be, &err, be->first ? be->spec->connect_timeout : be->spec->op_timeout);
        if (be->first && be->refused.code != 0)
            err = be->refused;
        redis_proof_missing(be, &err);
        be->op_until = DLOCK_NEVER;
        redis_cluster_failed(be);
        if (be->first) {
            /* cmd stays open: the release that follows goes out behind the try */
            redis_wait_fail(be, &err);
            return;
        }
        if (give_up_cmd(be))
            outage(be, &be->cmd_out, &err);
    }
    if (be->doing == DO_ACQUIRE && now >= be->wake_until) {
        no_answer(&err, be->spec, be->spec->connect_timeout);
        redis_wake_close(be);
        be->enqueue = false;
        outage(be, &be->wake_out, &err);
    }
    if (be->doing == DO_ACQUIRE && now >= be->wake_out.retry_at) {
        be->wake_out.retry_at = DLOCK_NEVER;
        if (be->cluster.known && !redis_conn_is_open(&be->cmd))
            be->try_at = now; /* which node has the lock is for a try to find out */
        else
            wake_start(be);
    }
    if (be->doing == DO_ACQUIRE && (now >= be->try_at || now >= be->cmd_out.retry_at)) {
        redis_cluster_begin(be);
        try_now(be);
    }
}
