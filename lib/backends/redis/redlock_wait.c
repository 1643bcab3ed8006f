/*
 * redlock_wait.c - standing in line at several servers at once.
 *
 * Each server has a line of its own (script.h), and tells the first one in it when the lock is free there.
 * The lines may differ, so they decide nothing: they keep all but a few from rushing at a lock that has
 * been given back. Who has been told by a majority votes again at once, who has been told by fewer a little
 * later, since it may be a server that has lost the key, or the line of another one. Timers stand behind it.
 */
#include "redlock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_PAUSE (200 * DLOCK_MSEC) /* where the servers cannot tell of foreign releases */
#define PLACE_STEP (100 * DLOCK_MSEC) /* between the rounds of those behind the first one */
#define FEW_PAUSE (30 * DLOCK_MSEC)   /* told by less than a majority */
#define HEAD_PAUSE (5 * DLOCK_MSEC)   /* several servers say it at about the same time */
#define CLAIM_SLACK (20 * DLOCK_MSEC)

static int64_t jitter(const struct dlock_be *be, int64_t max)
{
    uint64_t r;
    if (be->spec->env->random(be->spec->env->ctx, &r, sizeof(r)) < 0)
        return max;
    return (int64_t)(r % (uint64_t)max);
}

/* --------------------------------------------------------------------- connections */

static void wake_close(struct redlock_node *n)
{
    redis_conn_close(&n->wake);
    n->wake_state = WAKE_OFF;
    n->tracking = n->tracking == TRACK_REFUSED ? TRACK_REFUSED : TRACK_OFF;
    n->wake_until = DLOCK_NEVER;
}

void redlock_wait_close(struct dlock_be *be)
{
    for (int i = 0; i < be->n; i++) {
        wake_close(&be->nodes[i]);
        be->nodes[i].wake_retry = DLOCK_NEVER;
    }
    free(be->channel);
    be->channel = NULL;
}

/* Subscribe before standing in line: no wake is lost, and a waiter whom nobody can reach is dead. */
static void wake_start(struct dlock_be *be, struct redlock_node *n)
{
    n->wake.push = true;
    n->wake_state = WAKE_STARTING;
    n->wake_retry = DLOCK_NEVER;
    n->wake_until = redlock_now(be) + be->spec->connect_timeout;
    n->can_track = false;
    n->wake_id = 0;
    redlock_open(be, n, &n->wake, n->wake_until);
    redis_script_subscribe(&n->wake, be->channel, K_ID, K_WAKE, K_INVALIDATE);
    redis_conn_flush(&n->wake);
}

void redlock_wait_start(struct dlock_be *be)
{
    if (be->channel != NULL)
        return;
    if (be->id[0] != '\0' || dlock_token_new(be->spec->env, be->id) == 0)
        be->channel = redis_script_channel(&be->script, be->id);
    if (be->channel == NULL) {
        be->id[0] = '\0'; /* nobody can call us: the timers are left */
        return;
    }
    for (int i = 0; i < be->n; i++)
        wake_start(be, &be->nodes[i]);
}

/* Nothing is said: the node's other connection tells of the same trouble. */
void redlock_wake_failed(struct dlock_be *be, struct redlock_node *n)
{
    wake_close(n);
    if (be->doing == DO_ACQUIRE)
        n->wake_retry = redlock_now(be) + dlock_backoff_next(&n->wake_pause, be->spec->env);
}

/* ------------------------------------------------------------------------ tracking */

void redlock_track(struct dlock_be *be, struct redlock_node *n)
{
    if (n->place == 1 && n->wake_state == WAKE_READY && n->can_track && n->tracking == TRACK_OFF &&
        redis_script_track(&n->cmd, REDLOCK_TAG(be->op, K_TRACK), n->wake_id))
        n->tracking = TRACK_ON;
}

void redlock_track_answered(struct redlock_node *n, const redisReply *r)
{
    if (r->type == REDIS_REPLY_ERROR)
        n->tracking = TRACK_REFUSED;
}

/* -------------------------------------------------------------------- being woken */

static int count_freed(const struct dlock_be *be)
{
    int freed = 0;
    for (int i = 0; i < be->n; i++)
        freed += be->nodes[i].freed;
    return freed;
}

/* In the middle of a round: its votes may be older than the call. */
static void look_at(struct dlock_be *be, int64_t at)
{
    int64_t *when = be->stage == ST_PAUSE ? &be->try_at : &be->told_at;
    if (be->doing == DO_ACQUIRE)
        *when = dlock_min(*when, at);
}

static void freed(struct dlock_be *be, struct redlock_node *n)
{
    int64_t now = redlock_now(be);
    if (n->freed)
        return;
    n->freed = true;
    look_at(be, count_freed(be) >= be->quorum ? now : now + FEW_PAUSE + jitter(be, 2 * FEW_PAUSE));
}

static void woken(struct dlock_be *be, struct redlock_node *n, const redisReply *r)
{
    if (n->wake_state != WAKE_READY)
        return;
    switch (redis_script_called(&be->script, r)) {
    case RS_CHANGED:
        freed(be, n);
        break;
    case RS_NEXT:
        look_at(be, redlock_now(be) + REDIS_SCRIPT_CLAIM + CLAIM_SLACK);
        break;
    case RS_GO:
        n->place = 1;
        freed(be, n);
        break;
    case RS_HEAD:
        n->place = 1;
        look_at(be, redlock_now(be) + HEAD_PAUSE);
        break;
    case RS_NOTHING:
        break;
    }
}

/* Called at one more server. A round makes it known there. */
static void ready(struct dlock_be *be, struct redlock_node *n)
{
    int count = 0, hoped = 0;
    n->wake_state = WAKE_READY;
    n->wake_until = DLOCK_NEVER;
    if (n->tracking == TRACK_ON)
        n->tracking =
            TRACK_OFF; /* a redirection to an earlier connection of ours would lead nowhere */
    dlock_backoff_reset(&n->wake_pause);
    for (int i = 0; i < be->n; i++) {
        count += be->nodes[i].wake_state == WAKE_READY;
        hoped += be->nodes[i].wake_state == WAKE_STARTING;
    }
    look_at(be, redlock_now(be) + (hoped == 0 ? 0 : count >= be->quorum ? FEW_PAUSE : POLL_PAUSE));
}

void redlock_wake_answered(struct dlock_be *be, struct redlock_node *n,
                           const struct redis_conn_reply *rep)
{
    const redisReply *r = rep->r;

    if (n->wake.auth_failed || (rep->tag == K_WAKE && r->type == REDIS_REPLY_ERROR)) {
        redlock_wake_failed(be, n);
        return;
    }
    if (rep->tag == REDIS_CONN_PUSH) {
        woken(be, n, r);
    } else if (rep->tag == K_ID) {
        n->wake_id = r->type == REDIS_REPLY_INTEGER ? r->integer : 0;
    } else if (rep->tag == K_INVALIDATE) {
        n->can_track = r->type != REDIS_REPLY_ERROR && n->wake_id > 0;
        ready(be, n);
    }
}

/* --------------------------------------------------------------------------- timers */

/* When this node may be free, as far as its answer tells. */
static int64_t free_at(const struct redlock_node *n, int64_t now)
{
    if (n->freed || n->answer == A_YES)
        return now;
    if ((n->answer != A_BUSY && n->answer != A_GRACE) || n->left_ms < 0)
        return DLOCK_NEVER;
    return now + n->left_ms * DLOCK_MSEC + DLOCK_MSEC;
}

int64_t redlock_next_try(const struct dlock_be *be)
{
    int64_t now = redlock_now(be), at = DLOCK_NEVER;
    int place = INT32_MAX, tracked = 0, unknown = 0;

    if (count_freed(be) >= be->quorum)
        return now;
    for (int i = 0; i < be->n; i++) {
        const struct redlock_node *n = &be->nodes[i];
        int earlier = 0;
        int64_t t = free_at(n, now);
        for (int k = 0; k < be->n; k++)
            earlier += free_at(&be->nodes[k], now) <= t;
        if (earlier >= be->quorum)
            at = dlock_min(at, t);
        if (n->answer == A_BUSY)
            place = n->place < place ? n->place : place;
        tracked += n->tracking == TRACK_ON;
        unknown += n->answer == A_BUSY && n->place == 1 && n->wake_state == WAKE_READY &&
                   n->can_track && n->tracking == TRACK_OFF;
    }
    if (place == INT32_MAX)
        place = 1;
    if (at != DLOCK_NEVER)
        at += (place - 1) * PLACE_STEP + jitter(be, 10 * DLOCK_MSEC);
    at = dlock_min(at, now + be->spec->ttl / 3);
    if (unknown > 0) /* what was read before the servers tracked it may have changed */
        return now + HEAD_PAUSE;
    if (place == 1 && tracked < be->quorum)
        at = dlock_min(at, now + POLL_PAUSE + jitter(be, POLL_PAUSE / 4));
    return at;
}

int64_t redlock_wait_wake_at(const struct dlock_be *be)
{
    int64_t at = DLOCK_NEVER;
    for (int i = 0; i < be->n; i++)
        at = dlock_min(at, dlock_min(be->nodes[i].wake_until, be->nodes[i].wake_retry));
    return at;
}

void redlock_wait_timers(struct dlock_be *be, int64_t now)
{
    for (int i = 0; i < be->n; i++) {
        struct redlock_node *n = &be->nodes[i];
        if (now >= n->wake_until)
            redlock_wake_failed(be, n);
        if (now >= n->wake_retry && be->channel != NULL)
            wake_start(be, n);
    }
}
