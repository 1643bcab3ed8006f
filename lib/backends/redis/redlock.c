/*
 * redlock.c - a lock on a majority of independent Redis servers (the Redlock algorithm [Sanfilippo 2014,
 * redis.io/docs "Distributed locks with Redis"], with fencing tokens).
 *
 * All servers run the scripts of a lock in one Redis (script.h) under one loop: acquire is a round of
 * votes, and a second one that raises the voters' fence counters; renewals and the release go to all. So
 * other Redlock clients exclude dlock and are excluded by it.
 *
 * Files: redlock.c the loop; redlock_open.c the URI's parameters; redlock_node.c one server;
 * redlock_vote.c acquire; redlock_renew.c renew and release; redlock_status.c
 * status.
 *
 * Not guaranteed: the same as with one server, for a majority of them. A server that comes back without its
 * data does not vote for a ttl (restart-grace), so that it cannot help somebody else to a lock that still runs.
 */
#include "redlock.h"

#include <stdlib.h>
#include <string.h>

static void be_close(struct dlock_be *be)
{
    if (be == NULL)
        return;
    redlock_drop_listing(be);
    redlock_wait_close(be);
    for (int i = 0; i < be->n; i++) {
        struct redlock_node *n = &be->nodes[i];
        redis_conn_close(&n->cmd);
        redis_conn_close(&n->wake);
        while (n->nstale > 0)
            free(n->stale[--n->nstale]);
    }
    free(be->nodes);
    tls_config_free(be->tls);
    redis_script_done(&be->script);
    free(be->value);
    if (be->secret != NULL)
        explicit_bzero(be->secret, strlen(be->secret));
    free(be->secret);
    free(be);
}

static int be_open(struct dlock_be **out, const struct dlock_spec *spec, struct dlock_error *err)
{
    struct dlock_be *be = calloc(1, sizeof(*be));
    if (be == NULL)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    be->spec = spec;
    be->op_until = be->try_at = be->not_before = be->patient_until = be->told_at = DLOCK_NEVER;
    outage_over(&be->out);
    int rc = redlock_check_spec(be, err);
    if (rc != 0) {
        be_close(be);
        return rc;
    }
    struct dlock_error warning;
    if (tls_config_warns(be->tls, spec->uri->where, &warning))
        events_add(&be->events, EV_NOTICE)->error = warning;
    *out = be;
    return 0;
}

/* ---------------------------------------------------------------------- driving */

/* An error (LOADING, READONLY) has undone nothing: the value stays for the next time. */
static void stale_answered(struct redlock_node *n, const redisReply *r)
{
    if (n->nstale == 0 || r->type == REDIS_REPLY_ERROR)
        return;
    free(n->stale[0]);
    n->nstale--;
    memmove(n->stale, n->stale + 1, sizeof(n->stale[0]) * (size_t)n->nstale);
}

/* Once a lock, when its command is already on its way. One line is enough for all of the servers. */
static void ask_memory(struct dlock_be *be)
{
    const char *argv[] = {"INFO", "memory"};
    be->check = CHECK_ASKED;
    for (int i = 0; i < be->n; i++) {
        struct redis_conn *c = &be->nodes[i].cmd;
        if (c->state == RC_UP && c->ntags < 4 &&
            redis_conn_send(c, REDLOCK_TAG(be->op, K_MEMORY), 2, argv, (size_t[]){4, 6}) == 0)
            redis_conn_flush(c);
    }
}

static void memory_answered(struct dlock_be *be, struct redlock_node *n, const redisReply *r)
{
    struct dlock_error warning;
    if (be->check == CHECK_TOLD || r->type != REDIS_REPLY_STRING || be->events.n > EVENTS_MAX / 2 ||
        !redis_check_eviction(r->str, (size_t)r->len, n->where, &warning))
        return;
    be->check = CHECK_TOLD;
    events_add(&be->events, EV_NOTICE)->error = warning;
}

/* True: the reply was kept. */
static bool answered(struct dlock_be *be, struct redlock_node *n,
                     const struct redis_conn_reply *rep)
{
    bool current = REDLOCK_TAG_OP(rep->tag) == (be->op & REDLOCK_OPS);
    switch ((enum redlock_kind)(rep->tag & 15)) {
    case K_VOTE:
        redlock_vote_answered(be, n, rep);
        break;
    case K_RAISE:
        redlock_raise_answered(be, n, rep);
        break;
    case K_STALE:
        stale_answered(n, rep->r);
        break;
    case K_RENEW:
    case K_HEAL:
        redlock_renew_answered(be, n, rep);
        break;
    case K_LEAVE:
        redlock_leave_answered(be, n, rep);
        break;
    case K_ASK:
        return current && be->doing == DO_ASK && !be->listing &&
               redlock_ask_answered(be, n, rep->r);
    case K_TRACK:
        redlock_track_answered(n, rep->r);
        break;
    case K_UNDO:
        if (current && be->doing == DO_ACQUIRE && rep->r->type == REDIS_REPLY_ERROR)
            redlock_remember(n, be->value);
        break;
    case K_ID:
    case K_WAKE:
    case K_INVALIDATE:
        break;
    case K_MEMORY:
        memory_answered(be, n, rep->r);
        break;
    }
    return false;
}

static void take_replies(struct dlock_be *be, struct redlock_node *n)
{
    struct redis_conn_reply rep;
    int rc = 0;
    while (n->cmd.state != RC_CLOSED && (rc = redis_conn_next(&n->cmd, &rep)) == 1)
        if (!answered(be, n, &rep))
            freeReplyObject(rep.r);
    if (rc < 0 && n->cmd.state == RC_FAILED)
        redlock_node_failed(be, n);
    rc = 0;
    while (n->wake.state != RC_CLOSED && (rc = redis_conn_next(&n->wake, &rep)) == 1) {
        redlock_wake_answered(be, n, &rep);
        freeReplyObject(rep.r);
    }
    if (rc < 0 && n->wake.state == RC_FAILED)
        redlock_wake_failed(be, n);
}

static void step(struct dlock_be *be)
{
    int64_t now = be->stepped = redlock_now(be);
    switch (be->doing) {
    case DO_ACQUIRE:
        redlock_round_step(be, now);
        if (be->doing == DO_ACQUIRE)
            redlock_wait_timers(be, now);
        break;
    case DO_RENEW:
        redlock_renew_step(be, now);
        break;
    case DO_RELEASE:
        redlock_release_step(be, now);
        break;
    case DO_ASK:
        redlock_ask_step(be, now);
        break;
    case DO_NOTHING:
        break;
    }
}

static int64_t wake_at(const struct dlock_be *be)
{
    int64_t at = be->op_until;
    if (be->patient_until > be->stepped) /* else it has been seen */
        at = dlock_min(at, be->patient_until);
    switch (be->doing) {
    case DO_ACQUIRE:
        return dlock_min(redlock_round_wake_at(be), redlock_wait_wake_at(be));
    case DO_RELEASE:
        return dlock_min(at, redlock_release_wake_at(be));
    case DO_RENEW:
    case DO_ASK:
        return at;
    case DO_NOTHING:
        break;
    }
    return DLOCK_NEVER;
}

static int be_interest(struct dlock_be *be, struct pollfd *pfd, int cap, int64_t *wake)
{
    int n = 0;
    for (int i = 0; i < be->n; i++) {
        if (cap > n)
            n += redis_conn_interest(&be->nodes[i].cmd, &pfd[n], wake);
        if (cap > n)
            n += redis_conn_interest(&be->nodes[i].wake, &pfd[n], wake);
    }
    *wake = dlock_min(*wake, wake_at(be));
    if (be->events.n > 0 || be->listing)
        *wake = 0;
    return n;
}

static void work(struct redis_conn *c, const struct pollfd *pfd, int n, int64_t now)
{
    if (!redis_conn_is_open(c))
        return;
    bool due = redis_conn_is_connecting(c) && now >= c->next_at;
    for (int i = 0; i < n && !due; i++)
        due = pfd[i].fd == c->fd && pfd[i].revents != 0;
    if (due)
        redis_conn_work(c);
}

static int be_process(struct dlock_be *be, const struct pollfd *pfd, int n, struct dlock_event *ev)
{
    int64_t now = redlock_now(be);
    for (int i = 0; i < be->n; i++) {
        work(&be->nodes[i].cmd, pfd, n, now);
        work(&be->nodes[i].wake, pfd, n, now);
    }
    /* All of them first: what one step closes, another's descriptor may get the number of. */
    for (int i = 0; i < be->n; i++)
        take_replies(be, &be->nodes[i]);
    step(be);
    if (events_take(&be->events, ev))
        return 1;
    if (be->granted && be->check == CHECK_DUE)
        ask_memory(be);
    return be->listing ? redlock_give_listed(be, ev) : 0;
}

static const char *const schemes[] = {"redlock", "redlocks", NULL};

const struct dlock_backend dlock_backend_redlock = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_VERSION,
    .name = "redlock",
    .package = "dlock",
    .schemes = schemes,
    .caps = CAP_FENCE | CAP_LEASE,
    .open = be_open,
    .acquire = redlock_acquire,
    .renew = redlock_renew,
    .release = redlock_release,
    .ask = redlock_ask,
    .interest = be_interest,
    .process = be_process,
    .close = be_close,
};
