/*
 * acquire.c - acquire: the first try, the queue, and the connection on which a waiter is woken.
 *
 * A script tries, and queues the waiter where the lock is not granted. The first try does not
 * queue: a waiter joins the queue once it is subscribed on the second connection, so that no
 * wake-up is lost and an unreachable waiter does not count. Every wake-up is followed by a try; a
 * timer stands behind each. Where the waiters in front are silent no message comes
 * (scripts/parts/queue.lua), so a waiter also looks now and then whether the lock is still held
 * (PTTL).
 */
#include "operation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of the first waiter, where the server cannot report changes. */
#define POLL_PAUSE (200 * DLOCK_MSEC)
#define PLACE_STEP (100 * DLOCK_MSEC) /* between the tries of the waiters behind the first */
#define CLAIM_STEP (4 * DLOCK_MSEC)   /* the same when claims have ended, and for all together */
#define CLAIM_STEPS (80 * DLOCK_MSEC)
#define LOOK_SECOND (500 * DLOCK_MSEC) /* looks of the second waiter, and of those behind */
#define LOOK_OTHERS (1500 * DLOCK_MSEC)
#define CHANGED_STEP (100 * DLOCK_MSEC) /* between tries because NAME has changed */
#define LISTEN_LATER DLOCK_SEC          /* most commands have ended by then */
#define FIRST_VERDICT DLOCK_SEC         /* how old the sentinels' verdict on a first try may be */

/* Try or look at that time, unless something is due before. */
static void plan(struct redis_backend *be, enum redis_next what, int64_t at)
{
    if (at >= be->acquire.next_at)
        return;
    be->acquire.next_at = at;
    be->acquire.next = what;
}

/* ----------------------------------------------------------------------- ends */

static void wake_close(struct redis_backend *be)
{
    redis_node_unsubscribe(&be->node);
    be->acquire.back = be->acquire.ticket > 0;
    if (be->acquire.stage != STAGE_FIRST_TRY)
        be->acquire.stage = STAGE_UNSUBSCRIBED;
}

static void fail(struct redis_backend *be, const struct dlock_error *err)
{
    wake_close(be);
    redis_end(be, EV_FAILED)->error = *err;
}

/* No answer on cmd after the first contact: retry later, or fail. */
static void ride_out(struct redis_backend *be, const struct dlock_error *err)
{
    if (!outage_goes_on(&be->out, be->spec, &be->events, err))
        fail(be, err);
}

/* A fresh token and value. False: the acquire has failed. */
static bool new_value(struct redis_backend *be)
{
    struct dlock_error err;
    be->claim = CLAIM_NONE;
    if (redis_script_new_value(be->spec, be->spec->ttl, be->token, &be->value, &err) == 0)
        return true;
    fail(be, &err);
    return false;
}

/*
 * Give cmd up. The server may still serve an unanswered try (node.c): its undo is sent behind the
 * try, and again on the next connection, because a connection that waits for replicas drops the
 * commands behind. The next try has a new value. False: the acquire has failed.
 */
static bool give_up_cmd(struct redis_backend *be)
{
    struct redis_conn *cmd = &be->node.cmd;
    bool unclear = be->claim == CLAIM_TRIED && cmd->written;
    be->answer.what = ANSWER_NONE;
    if (unclear && cmd->state == RC_UP)
        (void)redis_script_send(&be->script, cmd, T_UNDO, SCRIPT_LEAVE,
                                &(struct redis_script_args){.value = be->value, .at_once = true});
    redis_node_close(&be->node);
    be->until = be->acquire.next_at = DLOCK_NEVER;
    be->claim = CLAIM_NONE;
    if (!unclear)
        return true;
    redis_node_remember(&be->node, be->value);
    be->value = NULL;
    return new_value(be);
}

/* First contact, and the server may be replaced: look again within the same time. */
static void start_over(struct redis_backend *be, const struct dlock_error *err)
{
    int64_t until = be->until;
    if (!give_up_cmd(be))
        return;
    be->until = until;
    redis_retry_later(be, err);
}

/* cmd is useless: the acquire goes on if possible. */
static void trouble(struct redis_backend *be, const struct dlock_error *why)
{
    struct dlock_error err = *why; /* of cmd, which is closed here */
    const struct redis_conn *cmd = &be->node.cmd;
    if (be->acquire.stage != STAGE_FIRST_TRY) {
        if (give_up_cmd(be))
            ride_out(be, &err);
        return;
    }
    if (be->route.cluster.known && !cmd->written && err.code == DLOCK_EUNAVAIL) {
        /* The slot's node is down; its replica may be about to take over. */
        redis_node_close(&be->node);
        be->claim = CLAIM_NONE;
        redis_retry_later(be, &err);
        return;
    }
    if (redis_sentinel_worth_retry(&be->route, &err, be->until)) {
        start_over(be, &err);
        return;
    }
    /* Where the server may have seen the try, the claim stays for the core's release to undo. */
    if (!cmd->written)
        be->claim = CLAIM_NONE;
    redis_conn_close(&be->node.cmd);
    be->release.answer_lost = false;
    fail(be, &err);
}

/* ------------------------------------------------------- the wake-up connection */

static void wake_start(struct redis_backend *be)
{
    struct dlock_error err;
    int64_t until = spec_now(be->spec) + be->spec->connect_timeout;
    free(be->acquire.channel);
    be->acquire.channel = redis_script_channel(&be->script, be->spec, be->acquire.id);
    if (!be->acquire.channel) {
        dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
        fail(be, &err);
        return;
    }
    be->acquire.stage = STAGE_SUBSCRIBING;
    redis_route_connect(&be->route, &be->node.wake, until);
    redis_node_subscribe(&be->node, be->acquire.channel, until);
    /* For the loss of this node. */
    redis_cluster_learn(&be->route);
    redis_conn_flush(&be->node.cmd);
}

void redis_wake_drop(struct redis_backend *be)
{
    wake_close(be);
    /* Join the queue again when the waiter can be reached again. */
    be->acquire.next_at = DLOCK_NEVER;
}

/*
 * The next try tells whether the server answers at all, and opens wake again. Where only wake is
 * refused, the waiter lives by such tries alone: no outage, and a single notice.
 */
void redis_acquire_wake_failed(struct redis_backend *be, const struct dlock_error *err)
{
    bool moving = be->acquire.stage == STAGE_MOVING;
    redis_wake_drop(be);
    if (be->op != &redis_op_acquire)
        return;
    if (err->code != DLOCK_EUNAVAIL) {
        fail(be, err);
        return;
    }
    if (moving) { /* the node that has the lock is away, and the others only say so */
        ride_out(be, err);
        return;
    }
    if (++be->acquire.wake_failures == 2 && be->out.since == 0)
        dlock_fail(&events_add(&be->events, EV_NOTICE)->error, err->code, err->sys,
                   "no second connection for wake-ups: "
                   "this waiter asks for the lock about once a second: %s",
                   err->msg);
    int64_t pause = dlock_backoff_next(&be->acquire.wake_pause, be->spec->env);
    if (be->out.since == 0) /* an outage has its own time */
        plan(be, NEXT_TRY, spec_now(be->spec) + pause);
}

/* ---------------------------------------------------------------------- tries */

static bool may_track(const struct redis_backend *be)
{
    return be->acquire.place == 1 && redis_node_may_track(&be->node);
}

static void try_now(struct redis_backend *be)
{
    struct redis_node *node = &be->node;
    bool queued = be->acquire.stage == STAGE_QUEUED;
    be->acquire.next_at = DLOCK_NEVER;
    if (be->answer.what != ANSWER_NONE) /* probably granted already */
        return;
    if (redis_conn_is_open(&node->cmd) && redis_conn_waits(&node->cmd, T_TRY)) {
        be->acquire.again = true; /* the answer may be older than what woke us */
        return;
    }
    be->acquire.again = false;
    be->out.retry_at = DLOCK_NEVER;
    if (be->acquire.stage != STAGE_FIRST_TRY)
        be->until = spec_now(be->spec) + be->spec->op_timeout;
    redis_route_connect(&be->route, &node->cmd, be->until);
    redis_node_undo(node, &be->script, T_UNDO, redis_cluster_asks(&be->route));
    /* In front of the try: the server reports changes to keys that are read afterwards. */
    if (may_track(be))
        redis_node_track(node, T_TRACK);
    if (be->script.torn)
        redis_cluster_hello(&be->route); /* answered before the try is */
    if (be->claim == CLAIM_NONE) {
        /* The record tells when the lock was granted. No server can have the old value. */
        char *value = redis_script_value(be->spec, be->spec->ttl, be->token);
        if (value) {
            free(be->value);
            be->value = value;
        }
    }
    be->claim = CLAIM_TRIED;
    be->queued = be->queued || queued;
    (void)redis_script_send(&be->script, &node->cmd, T_TRY, SCRIPT_TRY,
                            &(struct redis_script_args){
                                .value = be->value,
                                .id = queued ? be->acquire.id : NULL,
                                .ticket = be->acquire.back ? be->acquire.ticket : 0,
                                .ttl = be->spec->ttl,
                                .grace = be->restart_grace,
                                .once = be->spec->once,
                                .later = be->spec->hold->begin == RUN_LATER,
                                .least = be->spec->min_hold,
                            });
    redis_conn_flush(&node->cmd);
}

/* Is the lock still held? Where a question does not suffice, or is impossible, a try finds out. */
static void look_now(struct redis_backend *be)
{
    struct redis_node *node = &be->node;
    if (node->cmd.state != RC_UP || redis_conn_waits(&node->cmd, T_TRY) ||
        be->answer.what != ANSWER_NONE || redis_cluster_asks(&be->route)) {
        try_now(be);
        return;
    }
    be->until = dlock_min(be->until, spec_now(be->spec) + be->spec->op_timeout);
    if (may_track(be)) /* the server reports changes to what is read after this */
        redis_node_track(node, T_TRACK);
    be->acquire.together = false;
    (void)redis_script_look(&be->script, &node->cmd, T_LOOK,
                            be->spec->mode == DLOCK_MODE_EXCLUSIVE ? 0 : T_LOOK_SHARED);
    redis_conn_flush(&node->cmd);
}

/* The same try, to another node of the cluster. */
static void try_again(struct redis_backend *be)
{
    int64_t until = be->until;
    be->claim = CLAIM_NONE;
    try_now(be);
    be->until = until;
}

/* A waiter subscribes at the new node first: its place in the queue is still kept. */
static void moved_slot(struct redis_backend *be)
{
    if (be->acquire.id[0] == '\0') {
        try_again(be);
        return;
    }
    be->claim = CLAIM_NONE;
    wake_close(be);
    be->until = be->acquire.next_at = be->out.retry_at = DLOCK_NEVER;
    wake_start(be);
    be->acquire.stage = STAGE_MOVING;
}

/* The master is another server now. */
static void try_there(struct redis_backend *be)
{
    int64_t until = be->until;
    redis_wake_drop(be);
    if (!give_up_cmd(be))
        return;
    be->until = until; /* of a first contact; otherwise set by the try */
    try_now(be);
}

void redis_acquire(struct dlock_be *dlock_be, bool wait)
{
    struct redis_backend *be = redis_of(dlock_be);
    redis_begin(be, &redis_op_acquire);
    be->queued = false;
    be->release.answer_lost = false;
    /* The first try needs no id: only waiters are in the queue. */
    free(be->acquire.channel);
    be->acquire = (struct redis_acquiring){
        .wait = wait,
        .next_at = DLOCK_NEVER,
        .wake_pause = be->out.pause,
    };
    if (new_value(be))
        try_now(be);
}

/* -------------------------------------------------------------------- answers */

/* An error reply to a try. Nothing was granted: the script sets NAME last. */
static void try_refused(struct redis_backend *be, const char *text)
{
    enum redis_conn_class class = redis_conn_classify(text);
    struct dlock_error err;
    redis_cluster_error(&be->route, &err, text);
    if (redis_cluster_lost(&be->route, text))
        redis_node_close(&be->node);
    bool first = be->acquire.stage == STAGE_FIRST_TRY;
    if (first && err.code == DLOCK_EUNAVAIL && (class == RE_TRANSIENT || class == RE_CLUSTER)) {
        redis_retry_later(be, &err);
        return;
    }
    if (first) {
        if (class == RE_REPLICA && redis_sentinel_worth_retry(&be->route, &err, be->until))
            start_over(be, &err);
        else
            fail(be, &err);
        return;
    }
    be->until = DLOCK_NEVER;
    /* A replica now: another address may be the master. */
    if (class == RE_REPLICA) {
        if (!give_up_cmd(be))
            return;
        redis_conn_close_replica(&be->node.cmd);
    }
    ride_out(be, &err);
}

/* An answer has been understood, and counts. */
static void contacted(struct redis_backend *be)
{
    if (be->acquire.stage == STAGE_FIRST_TRY)
        be->acquire.stage = STAGE_UNSUBSCRIBED;
    be->until = DLOCK_NEVER;
    outage_over(&be->out, &be->events);
}

static void granted(struct redis_backend *be, const struct redis_answer *a)
{
    contacted(be);
    be->claim = CLAIM_GRANTED;
    be->node.cmd.held = true;
    be->fence_kept_at = a->sent;
    be->queued = false;
    wake_close(be);
    redis_checks_granted(&be->checks);
    redis_sentinel_listen(&be->route, spec_now(be->spec) + LISTEN_LATER);
    struct dlock_event *ev = redis_end(be, EV_GRANTED);
    ev->from = a->sent;
    ev->ttl = be->spec->ttl;
    ev->fence = be->fence = a->fence;
    ev->slot = a->slot;
    memcpy(ev->token, be->token, sizeof(ev->token));
}

static void refused(struct redis_backend *be, const struct dlock_error *err, bool for_good)
{
    if (for_good)
        fail(be, err); /* the release that follows undoes the grant */
    else
        trouble(be, err);
}

/* The holder, for EV_BUSY and EV_WAITING, or NULL. */
static const struct dlock_info *holder_info(struct redis_backend *be,
                                            const struct redis_script_tried *t)
{
    if (t->status != RS_BUSY)
        return NULL;
    redis_script_holder(t->holder, t->holder_len, &be->info);
    be->info.left_ns = t->left_ms < 0 ? DLOCK_NEVER : t->left_ms * DLOCK_MSEC;
    return &be->info;
}

static void report_waiting(struct redis_backend *be, const struct redis_script_tried *t)
{
    const struct dlock_info *info = holder_info(be, t);
    const char *token = !info                                ? "-"
                        : info->foreign && t->left_ms < 0    ? "forever"
                        : info->foreign                      ? "foreign"
                        : info->mode != DLOCK_MODE_EXCLUSIVE ? "shared" /* they come and go */
                                                             : info->token;
    if (be->acquire.place == t->place && strcmp(token, be->acquire.holder_token) == 0)
        return;
    snprintf(be->acquire.holder_token, sizeof(be->acquire.holder_token), "%s", token);
    struct dlock_event *ev = events_add(&be->events, EV_WAITING);
    ev->info = info;
    ev->place = t->place;
}

/* How many waiters stand in front of us, as far as we know. */
static int64_t behind(const struct redis_backend *be)
{
    return dlock_max(0, be->acquire.place - 1);
}

/* When to look again after the claims of other waiters have ended: one waiter after the other. */
static int64_t claims_over(const struct redis_backend *be, int64_t left_ms)
{
    return spec_now(be->spec) + left_ms * DLOCK_MSEC + REDIS_CLAIM_SLACK +
           dlock_min(behind(be) * CLAIM_STEP, CLAIM_STEPS);
}

/*
 * When to look whether the lock is still held, or still free after the claims of other waiters. The
 * waiters behind the first also look when the lease ends, in turn: the holder and some waiters may
 * have died together.
 */
static int64_t next_look(const struct redis_backend *be, const struct redis_script_tried *t)
{
    int64_t now = spec_now(be->spec), at = now + (behind(be) == 1 ? LOOK_SECOND : LOOK_OTHERS);
    if (t->status == RS_CLAIM)
        return claims_over(be, t->left_ms);
    if (t->status != RS_BUSY)
        return DLOCK_NEVER;
    if (behind(be) == 0)
        return be->node.tracking == TRACK_ON ? DLOCK_NEVER : now + POLL_PAUSE;
    if (t->left_ms >= 0)
        at = dlock_min(at, now + t->left_ms * DLOCK_MSEC + DLOCK_MSEC + behind(be) * PLACE_STEP);
    return at;
}

/* read: t is an answer on cmd, so a server with tracking reports the next change. */
static void wait_on(struct redis_backend *be, const struct redis_script_tried *t, bool read)
{
    int64_t over =
        spec_now(be->spec) + t->left_ms * DLOCK_MSEC + DLOCK_MSEC + behind(be) * PLACE_STEP;
    /* The first waiter watches the lease. A restart grace ends for all: they try in turn. */
    be->acquire.next_at = DLOCK_NEVER;
    plan(be, NEXT_TRY, be->acquire.refresh_at);
    if (t->left_ms >= 0 && t->status != RS_CLAIM && (t->status != RS_BUSY || behind(be) == 0))
        plan(be, NEXT_TRY, over);
    if (may_track(be) || (!read && be->node.tracking == TRACK_ON))
        look_now(be); /* the key may have changed before the tracking */
    else
        plan(be, NEXT_LOOK, next_look(be, t));
}

static void not_granted(struct redis_backend *be, const struct redis_script_tried *t)
{
    char left[32];
    if (t->status == RS_GRACE && be->restart_grace > 0 && !be->acquire.grace_reported) {
        be->acquire.grace_reported = true;
        dlock_fail_at(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EBUSY, 0, redis_where(be),
                      "restart-grace: the server started recently "
                      "and grants nothing for another %s",
                      dlock_format_duration(t->left_ms * DLOCK_MSEC, left, sizeof(left)));
    }
    if (!be->acquire.wait) {
        struct dlock_event *ev = redis_end(be, EV_BUSY);
        ev->info = holder_info(be, t);
        ev->place = t->place;
        return;
    }
    report_waiting(be, t);
    be->acquire.place = t->place;
    /*
     * The server may have dropped an unreachable waiter, or lost the queue. So a waiter that comes
     * back tells its ticket, until the waiter stands in the queue again and may get the lock.
     * (again: the try may be older than the subscription, and without the ticket.)
     */
    if (t->ticket != 0) {
        be->acquire.ticket = t->ticket;
        if (be->acquire.stage == STAGE_QUEUED && !be->acquire.again && t->status != RS_GRACE)
            be->acquire.back = false;
    }
    be->acquire.refresh_at = spec_now(be->spec) + be->spec->ttl / 3;
    redis_sentinel_listen(&be->route, spec_now(be->spec));
    if (redis_cluster_nodes_differ(&be->route))
        wake_close(be);
    if (be->acquire.stage == STAGE_UNSUBSCRIBED)
        wake_start(be);
    else if (be->acquire.stage == STAGE_QUEUED && be->acquire.again)
        try_now(be);
    else if (be->acquire.stage == STAGE_QUEUED)
        wait_on(be, t, true);
}

void redis_acquire_looked(struct redis_backend *be, int tag, const redisReply *r)
{
    struct redis_script_tried t = {.status = RS_BUSY};
    struct redis_conn *cmd = &be->node.cmd;
    bool yes = redis_script_looked(r, &t.left_ms);
    if (tag == T_LOOK_SHARED) {
        be->acquire.together = redis_script_shared(r);
        return;
    }
    /* An answer is old with another request behind. */
    if (be->op != &redis_op_acquire || redis_conn_waits(cmd, T_TRY) ||
        redis_conn_waits(cmd, T_LOOK) || redis_conn_waits(cmd, T_LOOK_CLAIM))
        return;
    be->until = DLOCK_NEVER;
    /* wake has failed meanwhile: the next try has its own time. */
    if (be->acquire.stage != STAGE_QUEUED)
        return;
    if (tag == T_LOOK && yes && !be->acquire.together) {
        wait_on(be, &t, true);
    } else if (tag == T_LOOK && !yes && r->type != REDIS_REPLY_ERROR && be->acquire.place > 1) {
        be->until = spec_now(be->spec) + be->spec->op_timeout;
        (void)redis_script_look_claim(&be->script, cmd, T_LOOK_CLAIM);
        redis_conn_flush(cmd);
    } else if (tag == T_LOOK_CLAIM && yes && t.left_ms >= 0 &&
               t.left_ms <= REDIS_SCRIPT_CLAIM / DLOCK_MSEC) {
        /* A longer claim: the server's clock was set back, or a foreign key. */
        plan(be, NEXT_LOOK, claims_over(be, t.left_ms));
    } else {
        try_now(be);
    }
}

static void try_answered(struct redis_backend *be, struct redis_conn_reply *rep)
{
    struct redis_script_tried t;
    struct dlock_error err;
    if (be->node.cmd.auth_failed) {
        err = be->node.cmd.error;
        be->claim = rep->r->type != REDIS_REPLY_ERROR ? CLAIM_TRIED : CLAIM_NONE;
        fail(be, &err);
        return;
    }
    if (rep->r->type == REDIS_REPLY_ERROR) {
        try_refused(be, rep->r->str);
        return;
    }
    if (redis_script_tried(rep->r, &t) != 0) {
        dlock_fail_at(&err, DLOCK_EPROTO, 0, redis_where(be),
                      "unexpected answer to the lock script");
        fail(be, &err);
        return;
    }
    if (t.status == RS_GRANTED) {
        int64_t now = spec_now(be->spec);
        bool first = be->acquire.stage == STAGE_FIRST_TRY;
        if (run_record_parse(t.holder, t.holder_len, t.now_ms, &be->run) &&
            run_record_ahead(&be->run, be->spec, &err))
            events_add(&be->events, EV_NOTICE)->error = err;
        be->node.clock = (struct redis_clock){0};
        (void)redis_node_clock(&be->node, t.now_ms, rep->sent, now);
        if (!first)
            be->until = now + be->spec->op_timeout;
        be->answer = (struct redis_answer){
            .what = ANSWER_GRANT, .sent = rep->sent, .fence = t.fence, .slot = t.slot};
        /*
         * For a waiter only a later verdict of the sentinels counts: a new master may have been
         * promoted behind a cut network meanwhile. For a first try the round that opened its
         * connection is enough.
         */
        int64_t fresh = first ? dlock_min(rep->sent, now - FIRST_VERDICT) : rep->sent;
        redis_route_ask_confirmation(&be->route, true, fresh, be->until);
        return;
    }
    contacted(be);
    be->claim = CLAIM_NONE;
    switch (t.status) {
    case RS_SLOTS:
        (void)other_slots(&err, be->spec, (unsigned)t.slot);
        break;
    case RS_SKIPPED:
    case RS_RECORD: /* the server has taken us out of the queue, and has called the next waiter */
        be->queued = false;
        if (t.status == RS_SKIPPED &&
            run_record_parse(t.holder, t.holder_len, t.now_ms, &be->run)) {
            wake_close(be);
            redis_end(be, EV_SKIPPED)->run = &be->run;
            return;
        }
        redis_foreign_record(be, &err, t.status == RS_RECORD ? t.holder : "string");
        break;
    default:
        not_granted(be, &t);
        return;
    }
    fail(be, &err);
}

/* ---------------------------------------------------------------------- woken */

static void woken(struct redis_backend *be, const redisReply *r)
{
    const struct redis_conn *cmd = &be->node.cmd;
    struct redis_script_tried t;
    int64_t now = spec_now(be->spec), at = dlock_max(now, be->acquire.changed_at + CHANGED_STEP);
    switch (redis_script_called(&be->script, r)) {
    case RS_CHANGED: /* freed, or renewed: each renewal of each shared holder is such a change */
        if (be->acquire.place != 1)
            break;
        be->acquire.changed_at = at;
        if (at == now)
            try_now(be);
        else
            plan(be, NEXT_TRY, at);
        break;
    case RS_SECOND:
        be->acquire.place = 2;
        if (be->acquire.next_at != DLOCK_NEVER)
            plan(be, NEXT_LOOK, now + LOOK_SECOND);
        break;
    case RS_HEAD:
    case RS_GO:
        /* No try has to ask for a lease that the message tells. */
        if (redis_script_head(r, &t) && cmd->state == RC_UP && !redis_conn_waits(cmd, T_TRY) &&
            be->answer.what == ANSWER_NONE) {
            report_waiting(be, &t);
            be->acquire.place = 1;
            wait_on(be, &t, false);
        } else {
            be->acquire.place = 1;
            try_now(be);
        }
        break;
    case RS_NOTHING:
        break;
    }
}

void redis_acquire_wake_answered(struct redis_backend *be, const struct redis_conn_reply *rep)
{
    struct dlock_error err;
    switch (redis_node_wake_answered(&be->node, rep, &err)) {
    case REPLY_MESSAGE:
        woken(be, rep->r);
        break;
    case REPLY_SUBSCRIBED:
        be->acquire.stage = STAGE_QUEUED;
        be->acquire.wake_failures = 0;
        dlock_backoff_reset(&be->acquire.wake_pause);
        try_now(be);
        break;
    case REPLY_REFUSED:
        redis_acquire_wake_failed(be, &err);
        break;
    case REPLY_NOTHING:
        break;
    }
}

/* ---------------------------------------------------------------------- timers */

static int64_t wake_at(const struct redis_backend *be)
{
    return dlock_min(be->acquire.next_at, dlock_min(be->node.wake_until, be->out.retry_at));
}

static void due(struct redis_backend *be, int64_t now)
{
    bool first = be->acquire.stage == STAGE_FIRST_TRY;
    struct dlock_error err;
    if (now >= be->until) { /* no answer on cmd, or no confirmation */
        redis_no_answer(be, &err, first ? be->spec->connect_timeout : be->spec->op_timeout);
        if (first && be->refused.code != 0)
            err = be->refused;
        if (be->answer.what != ANSWER_NONE)
            redis_route_unconfirmed(&be->route, &err);
        be->until = DLOCK_NEVER;
        redis_cluster_failed(&be->route);
        if (first) /* cmd stays open: the release that follows goes out behind the try */
            fail(be, &err);
        else if (give_up_cmd(be))
            ride_out(be, &err);
    } else if (now >= be->node.wake_until) { /* no subscription in time */
        no_answer(&err, be->spec, be->spec->connect_timeout);
        redis_acquire_wake_failed(be, &err);
    } else if (now >= be->out.retry_at ||
               (now >= be->acquire.next_at && be->acquire.next == NEXT_TRY)) {
        redis_cluster_begin(&be->route);
        try_now(be);
    } else if (now >= be->acquire.next_at) {
        be->acquire.next_at = DLOCK_NEVER;
        plan(be, NEXT_TRY, be->acquire.refresh_at);
        look_now(be);
    }
}

/*
 * Servers and proxies close idle connections: the next try connects again. The first waiter's
 * tracking ended with the connection, so its next try is due soon.
 */
static bool idle_closed(struct redis_backend *be, const struct dlock_error *err)
{
    if (be->acquire.stage == STAGE_FIRST_TRY || be->claim != CLAIM_NONE || be->node.cmd.ntags > 0 ||
        err->code != DLOCK_EUNAVAIL)
        return false;
    if (be->acquire.place == 1 && be->acquire.next_at != DLOCK_NEVER)
        plan(be, NEXT_TRY, spec_now(be->spec) + POLL_PAUSE);
    return true;
}

const struct redis_operation redis_op_acquire = {
    .tag = T_TRY,
    .again = try_again,
    .moved_slot = moved_slot,
    .answered = try_answered,
    .idle_closed = idle_closed,
    .failed = trouble,
    .confirmed = granted,
    .refused = refused,
    .moved = try_there,
    .due = due,
    .wake_at = wake_at,
};
