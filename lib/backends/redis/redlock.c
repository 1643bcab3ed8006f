/*
 * redlock.c - a lock on a majority of independent Redis servers (the Redlock algorithm [Sanfilippo
 * 2014, redis.io/docs "Distributed locks with Redis"], with fencing tokens).
 *
 * All servers run the scripts of a lock in one Redis (script.h) under one loop. Acquire is a round
 * of votes, and a second round that raises the voters' fence counters; renewals and the release go
 * to all servers. So dlock and other Redlock clients exclude each other. Readers (shared holders)
 * need a majority, too: two majorities have a server in common, and a server has either readers or
 * a writer. Slots would have to be counted by a single server: where each server counts by itself,
 * 3 holders fit 2 slots on 3 servers.
 *
 * This file runs the operation under way: redlock_vote.c acquires, redlock_renew.c renews and
 * releases, redlock_status.c carries out the steps of a query, redlock_list.c asks for all locks.
 * redlock_servers.c reaches the servers, each of which is a node (node.c). quorum.c counts their
 * answers, redlock_young.c knows which votes count after a restart.
 *
 * Not guaranteed: the same as with one server, for a majority of the servers. A server that comes
 * back without its data does not vote for a ttl (restart-grace), so that it cannot vote for a
 * second client while the lock is still held.
 */
#include "params.h"
#include "redlock_servers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct redlock_operation *const operations[] = {
    [OP_NONE] = NULL,
    [OP_ACQUIRE] = &redlock_op_acquire,
    [OP_RENEW] = &redlock_op_renew,
    [OP_RELEASE] = &redlock_op_release,
    [OP_STATUS] = &redlock_op_status,
    [OP_CHECK] = &redlock_op_check,
    [OP_LIST] = &redlock_op_list,
};

/* ------------------------------------------------------------- open and close */

static int read_spec(struct redlock_backend *be, struct dlock_error *err)
{
    const struct dlock_spec *spec = be->spec;
    const struct dlock_uri *uri = spec->uri;
    int rc;
    if (uri->nhosts > REDLOCK_NODES)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%d servers: a redlock has at most %d", uri->nhosts,
                          REDLOCK_NODES);
    be->restart_grace = -1;
    if ((rc = redis_params_read(spec, &be->script, &be->restart_grace, err)) != 0 ||
        (strcmp(uri->scheme, "redlocks") == 0 &&
         (rc = tls_config_from_uri(spec, &be->tls, err)) != 0) ||
        (rc = redis_param_secret(spec, &be->secret, err)) != 0)
        return rc;
    /* A given restart-grace promises that no client has a larger ttl. */
    be->unreported_ttl = be->restart_grace < 0 ? REDLOCK_LONGEST_TTL : be->restart_grace;
    if (be->restart_grace < 0)
        be->restart_grace = redlock_lease(spec);
    be->servers = calloc((size_t)uri->nhosts, sizeof(*be->servers));
    if (!be->servers)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    be->n = uri->nhosts;
    be->quorum = quorum_of(be->n);
    for (int i = 0; i < be->n; i++) {
        const struct dlock_host *h = &uri->hosts[i];
        struct redlock_server *s = &be->servers[i];
        bool v6 = strchr(h->host, ':') != NULL;
        s->host = i;
        snprintf(s->where, sizeof(s->where), v6 ? "[%s]:%u" : "%s:%u", h->host, h->port);
        s->wake_retry_at = DLOCK_NEVER;
        s->pause = s->wake_pause = (struct dlock_backoff){
            .base = 50 * DLOCK_MSEC, .max = DLOCK_SEC, .cur = 50 * DLOCK_MSEC};
        redis_node_init(&s->node, spec->env, s->where, be->tls);
        redis_node_credentials(&s->node, h, be->secret, dlock_uri_peek(uri, "password-file"));
    }
    return 0;
}

static void be_close(struct dlock_be *dlock_be)
{
    struct redlock_backend *be = redlock_of(dlock_be);
    if (!be)
        return;
    redlock_rest(dlock_be);
    redlock_list_drop(be);
    redlock_check_drop(be);
    redlock_wait_close(be);
    for_each_server (be, s)
        redis_node_done(&s->node);
    free(be->servers);
    tls_config_free(be->tls);
    redis_script_done(&be->script);
    free(be->value);
    dlock_wipe(be->secret);
    free(be);
}

static void be_close_in_child(struct dlock_be *dlock_be)
{
    struct redlock_backend *be = redlock_of(dlock_be);
    for_each_server (be, s)
        redis_node_close_in_child(&s->node);
    be_close(dlock_be);
}

static int be_open(struct dlock_be **out, const struct dlock_spec *spec, struct dlock_error *err)
{
    struct redlock_backend *be = calloc(1, sizeof(*be));
    if (!be)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    be->spec = spec;
    be->until = be->patient_until = DLOCK_NEVER;
    outage_none(&be->acquire.out);
    int rc = read_spec(be, err);
    if (rc != 0) {
        be_close((struct dlock_be *)be);
        return rc;
    }
    struct dlock_error warning;
    if (tls_config_warns(be->tls, spec->uri->where, &warning))
        events_add(&be->events, EV_NOTICE)->error = warning;
    *out = (struct dlock_be *)be;
    return 0;
}

/* -------------------------------------------------------------------- replies */

static void take_replies(struct redlock_backend *be, struct redlock_server *s)
{
    static const struct redlock_operation *const of_kind[16] = {
        [KIND_VOTE] = &redlock_op_acquire,  [KIND_RAISE] = &redlock_op_acquire,
        [KIND_UNDO] = &redlock_op_acquire,  [KIND_TRACK] = &redlock_op_acquire,
        [KIND_LOOK] = &redlock_op_acquire,  [KIND_CLAIM] = &redlock_op_acquire,
        [KIND_RENEW] = &redlock_op_renew,   [KIND_HEAL] = &redlock_op_renew,
        [KIND_LEAVE] = &redlock_op_release, [KIND_STATUS] = &redlock_op_status,
        [KIND_LIST] = &redlock_op_list,
    };
    struct redis_conn *cmd = &s->node.cmd, *wake = &s->node.wake;
    struct redis_conn_reply rep;
    int rc = 0;
    while (cmd->state != RC_CLOSED && (rc = redis_script_next(cmd, &rep)) == 1) {
        enum redlock_kind kind = REDLOCK_TAG_KIND(rep.tag);
        if (rep.tag == REDIS_CONN_PUSH && be->claim == CLAIM_GRANTED &&
            redis_script_changed(&be->script, rep.r))
            s->doubt = EV_CHANGED;
        else if (kind == KIND_STALE)
            redis_node_undo_answered(&s->node, rep.r);
        else if (kind == KIND_INFO)
            redis_checks_answered(&be->checks, rep.r, s->where, 0, 0);
        else if (kind == KIND_STATUS && be->op == OP_CHECK)
            redlock_op_check.answered(be, s, &rep);
        else if (of_kind[kind])
            of_kind[kind]->answered(be, s, &rep);
        freeReplyObject(rep.r); /* NULL: the operation keeps the reply */
    }
    if (rc < 0 && cmd->state == RC_FAILED)
        redlock_failed(be, s);
    rc = 0;
    while (wake->state != RC_CLOSED && (rc = redis_conn_next(wake, &rep)) == 1) {
        if (be->op == OP_CHECK)
            redlock_check_wake_answered(be, s, &rep);
        else
            redlock_wake_answered(be, s, &rep);
        freeReplyObject(rep.r);
    }
    if (rc < 0 && wake->state == RC_FAILED && be->op == OP_CHECK)
        redlock_check_wake_failed(be, s);
    else if (rc < 0 && wake->state == RC_FAILED)
        redlock_wake_failed(be, s);
}

/* -------------------------------------------------------------------- driving */

static int be_interest(struct dlock_be *dlock_be, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    const struct redlock_backend *be = redlock_of(dlock_be);
    int n = 0;
    for_each_server (be, s)
        n += redis_node_interest(&s->node, pfd + n, cap - n, wake_at);
    if (be->op != OP_NONE)
        *wake_at = dlock_min(*wake_at, operations[be->op]->wake_at(be));
    if (be->found.ended || redlock_list_ready(be))
        *wake_at = 0;
    for_each_server (be, s)
        if (be->events.n > 0 || be->checks.nwarnings > 0 || s->doubt != EV_NONE)
            *wake_at = 0;
    return n;
}

static int be_process(struct dlock_be *dlock_be, const struct pollfd *pfd, int n,
                      struct dlock_event *ev)
{
    struct redlock_backend *be = redlock_of(dlock_be);
    for_each_server (be, s)
        redis_node_work(&s->node, pfd, n);
    /* After the work of all servers: a closed connection's descriptor may be used again. */
    for_each_server (be, s)
        take_replies(be, s);
    be->stepped = spec_now(be->spec);
    if (be->op != OP_NONE)
        operations[be->op]->step(be, be->stepped);
    if (redis_checks_take(&be->checks, &be->events, ev) || events_take(&be->events, ev))
        return 1;
    for_each_server (be, s) {
        if (s->doubt != EV_NONE) {
            *ev = (struct dlock_event){.type = s->doubt, .error = s->last, .server = s->host};
            s->doubt = EV_NONE;
            return 1;
        }
    }
    /* When the command has been started. */
    bool ask = be->claim != CLAIM_NONE && be->checks.due;
    for_each_server (be, s)
        if (ask && s->node.cmd.ntags < 4)
            redis_checks_ask(&be->checks, &s->node.cmd, REDLOCK_TAG(be->serial, KIND_INFO), false);
    if (redis_checks_take(&be->checks, &be->events, ev))
        return 1;
    if (findings_take(&be->found, ev))
        return 1;
    return be->list ? redlock_list_next(be, ev) : 0;
}

/* ------------------------------------------------------------------- the slots */

static const struct dlock_error *be_refusal(const struct dlock_be *be)
{
    return &((const struct redlock_backend *)be)->acquire.why;
}

static void be_ask(struct dlock_be *dlock_be, const struct dlock_question *question)
{
    struct redlock_backend *be = redlock_of(dlock_be);
    be->status.question = question;
    if (question->what == ASK_CHECK)
        redlock_check(be);
    else
        redlock_list(be);
}

static void be_release(struct dlock_be *dlock_be, int64_t until)
{
    struct redlock_backend *be = redlock_of(dlock_be);
    /* The cancelled operation has no events after its release. */
    be->events.n = 0;
    for_each_server (be, s)
        s->doubt = EV_NONE;
    redlock_list_drop(be);
    redlock_check_drop(be);
    redlock_wait_close(be);
    if (be->op == OP_RELEASE)
        be->until = until;
    else
        redlock_release(be, until);
}

static const char *const schemes[] = {"redlock", "redlocks", NULL};

const struct dlock_backend dlock_backend_redlock = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_VERSION,
    .name = "redlock",
    .package = "dlock",
    .schemes = schemes,
    .caps = CAP_SHARED | CAP_FENCE | CAP_LEASE | CAP_TELLS | CAP_ONCE,
    .no_slots = "servers that each count by themselves let in too many (3 holders fit 2 slots on "
                "3 servers)",
    .open = be_open,
    .acquire = redlock_acquire,
    .refusal = be_refusal,
    .stays = redis_stays,
    .renew = redlock_renew,
    .release = be_release,
    .ask = be_ask,
    .step = redlock_step,
    .next = redlock_next,
    .rest = redlock_rest,
    .interest = be_interest,
    .process = be_process,
    .close = be_close,
    .close_in_child = be_close_in_child,
};
