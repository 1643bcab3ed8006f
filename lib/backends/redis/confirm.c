/*
 * confirm.c - what stands between the master's yes and ours: replicas that have it too (?wait-replicas=N), and
 * a majority of the sentinels that names this master.
 *
 * WAIT goes out behind the answer, not behind the question: a connection that waits serves nothing else, and one
 * who stands in line must hear at once that the lock is free.
 */
#include "redis.h"

#include <stdio.h>
#include <string.h>

#define SERVER_TICK (120 * DLOCK_MSEC)

static bool send_wait(struct dlock_be *be)
{
    char replicas[24], timeout[24];
    const char *argv[] = {"WAIT", replicas, timeout};
    size_t len[DLOCK_LEN(argv)];
    int64_t left = dlock_min(be->op_until - redis_now(be), be->spec->op_timeout);

    /* Its answer says how many there are, so it should come before we stop waiting; servers look every 100 ms. */
    int64_t ms = dlock_max(1, dlock_max(left / 2, left - SERVER_TICK) / DLOCK_MSEC);
    snprintf(replicas, sizeof(replicas), "%u", be->wait_replicas);
    snprintf(timeout, sizeof(timeout), "%lld", (long long)ms);
    for (size_t i = 0; i < DLOCK_LEN(argv); i++)
        len[i] = strlen(argv[i]);
    bool sent = redis_conn_send(&be->cmd, T_WAIT, DLOCK_LEN(argv), argv, len) == 0;
    redis_conn_flush(&be->cmd);
    return sent;
}

/* It does not count. */
static void refuse(struct dlock_be *be, const struct dlock_error *err)
{
    be->proof.what = PROOF_NOTHING;
    if (be->doing == DO_ACQUIRE)
        redis_wait_trouble(be, err);
    else
        redis_renew_unclear(be, err);
}

void redis_proof_step(struct dlock_be *be)
{
    struct redis_proof p = be->proof;
    struct dlock_error err;

    if (p.what == PROOF_NOTHING || !p.replicas)
        return;
    switch (redis_sentinel_answer(be)) {
    case ANSWER_PENDING:
        return;
    case ANSWER_OTHER:
        redis_sentinel_follow(be);
        return;
    case ANSWER_NO:
        redis_sentinel_doubt(be, &err);
        refuse(be, &err);
        return;
    case ANSWER_YES:
        break;
    }
    be->proof.what = PROOF_NOTHING;
    if (p.what == PROOF_GRANT)
        redis_granted(be, &p);
    else
        redis_renewed(be, &p);
}

void redis_prove(struct dlock_be *be, const struct redis_proof *p)
{
    int64_t now = redis_now(be);

    be->proof = *p;
    be->proof.replicas = be->wait_replicas == 0 || p->what == PROOF_LOSS;
    if (p->what == PROOF_GRANT) {
        if (!be->first)
            be->op_until = now + be->spec->op_timeout;
        redis_sentinel_question(be, now - be->spec->ttl / 3);
    }
    if (be->proof.replicas || send_wait(be))
        redis_proof_step(be);
}

void redis_replicas_answered(struct dlock_be *be, const redisReply *r)
{
    struct dlock_error err;

    if (be->proof.what == PROOF_NOTHING)
        return;
    if (r->type == REDIS_REPLY_INTEGER && r->integer >= (long long)be->wait_replicas) {
        be->proof.replicas = true;
        redis_proof_step(be);
        return;
    }
    if (r->type == REDIS_REPLY_ERROR)
        redis_conn_reply_error(&err, redis_where(be), &be->auth, r->str);
    else if (r->type != REDIS_REPLY_INTEGER)
        dlock_fail(&err, DLOCK_EPROTO, 0, "%s: unexpected answer to WAIT", redis_where(be));
    else
        dlock_fail(&err, DLOCK_EUNAVAIL, 0,
                   "%s: only %lld of %u replicas have confirmed (wait-replicas)", redis_where(be),
                   r->integer, be->wait_replicas);
    if (r->type == REDIS_REPLY_ERROR && redis_conn_classify(r->str) == RE_REPLICA) {
        refuse(be, &err); /* that was a failover: who waits goes on */
        return;
    }
    be->proof.what = PROOF_NOTHING;
    if (be->doing == DO_ACQUIRE)
        redis_wait_fail(be, &err); /* what was granted is undone by the release that follows */
    else
        redis_renew_unclear(be, &err);
}

void redis_proof_missing(const struct dlock_be *be, struct dlock_error *err)
{
    if (be->proof.what == PROOF_NOTHING)
        return;
    if (!be->proof.replicas)
        dlock_fail(err, DLOCK_EUNAVAIL, 0,
                   "%s: %u replicas have not confirmed in time (wait-replicas)", redis_where(be),
                   be->wait_replicas);
    else if (be->sentinel != NULL)
        redis_sentinel_doubt(be, err);
}
