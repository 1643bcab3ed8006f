/*
 * confirm.c - the connection to the server of the lock, and the confirmation of the server's
 * answers. See route.h.
 *
 * WAIT goes out behind the answer, not behind the question: a connection that waits for replicas
 * serves nothing else, and a waiter must hear at once that the lock is free.
 *
 * Redis 8 and Valkey 8 wait for the last write of this connection [measured], and answer at once
 * where the connection has written nothing. So a script whose answer is confirmed writes each time,
 * also where it finds its work done by an earlier request (tests/system/redis/replicas.bats).
 */
#include "route.h"

#include <stdio.h>
#include <string.h>

#define SERVER_TICK (120 * DLOCK_MSEC)

void redis_route_connect(struct redis_route *r, struct redis_conn *c, int64_t until)
{
    if (redis_conn_is_open(c) || redis_cluster_connect(r, c, until))
        return;
    if (r->sentinel) {
        redis_sentinel_connect(r, c, until);
        return;
    }
    if (r->is_unix)
        (void)redis_conn_open(c, NULL, until, &r->unix_peer, 1);
    else
        (void)redis_conn_open(c, r->spec->uri->hosts[0].host, until, r->spec->peers,
                              r->spec->npeers);
}

/* --------------------------------------------------------------- confirmation */

void redis_route_ask_confirmation(struct redis_route *r, bool replicas, int64_t fresh,
                                  int64_t until)
{
    r->replicas = replicas && r->wait_replicas > 0 ? CONFIRM_ASKED : CONFIRM_YES;
    r->fresh = fresh;
    if (fresh != 0)
        redis_sentinel_question(r, fresh);
    if (r->replicas != CONFIRM_ASKED)
        return;
    char replica_count[24], timeout[24];
    const char *argv[] = {"WAIT", replica_count, timeout};
    int64_t left = dlock_min(until - spec_now(r->spec), r->spec->op_timeout);
    /* WAIT should answer, with the number, before we give up. Servers look every 100 ms. */
    int64_t ms = dlock_max(1, dlock_max(left / 2, left - SERVER_TICK) / DLOCK_MSEC);
    snprintf(replica_count, sizeof(replica_count), "%u", r->wait_replicas);
    snprintf(timeout, sizeof(timeout), "%lld", (long long)ms);
    (void)redis_conn_send(&r->node->cmd, T_WAIT, DLOCK_LEN(argv), argv);
    redis_conn_flush(&r->node->cmd);
}

void redis_route_replicas_answered(struct redis_route *r, const redisReply *reply)
{
    const char *where = r->spec->uri->where;
    r->replicas = CONFIRM_MISSING;
    if (reply->type == REDIS_REPLY_ERROR) {
        redis_conn_reply_error(&r->missing, &r->node->cmd, reply->str);
        if (redis_conn_classify(reply->str) == RE_REPLICA)
            r->replicas = CONFIRM_REFUSED; /* a failover: a waiter goes on */
    } else if (reply->type != REDIS_REPLY_INTEGER) {
        dlock_fail_at(&r->missing, DLOCK_EPROTO, 0, where, "unexpected answer to WAIT");
    } else if (reply->integer < (long long)r->wait_replicas) {
        dlock_fail_at(&r->missing, DLOCK_EUNAVAIL, 0, where,
                      "only %lld of %u replicas have confirmed (wait-replicas)", reply->integer,
                      r->wait_replicas);
    } else {
        r->replicas = CONFIRM_YES;
    }
}

enum redis_confirmed redis_route_confirm(const struct redis_route *r, struct dlock_error *err)
{
    if (r->replicas != CONFIRM_YES) {
        *err = r->missing;
        return r->replicas;
    }
    enum redis_confirmed c = redis_sentinel_answer(r, r->fresh);
    if (c == CONFIRM_REFUSED)
        redis_sentinel_doubt(r, err);
    return c;
}

void redis_route_unconfirmed(const struct redis_route *r, struct dlock_error *err)
{
    if (r->replicas == CONFIRM_ASKED)
        dlock_fail_at(err, DLOCK_EUNAVAIL, 0, r->spec->uri->where,
                      "%u replicas have not confirmed in time (wait-replicas)", r->wait_replicas);
    else if (r->sentinel)
        redis_sentinel_doubt(r, err);
}
