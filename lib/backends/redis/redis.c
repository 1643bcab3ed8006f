/*
 * redis.c - a lock in one Redis server (6.0 or later, Valkey, and what speaks like them).
 *
 * The lock is a string key set with NX and PX semantics by a script, so that dlock and the clients that
 * do SET NX PX exclude each other. acquire is one EVAL, pipelined behind AUTH; so is release. Who has to
 * wait stands in a queue in the server and holds a second connection, on which it is called when it is its
 * turn; the first in line also watches the key itself (client-side caching: the server tells who read a
 * key that it has changed), so that a lock freed by another program or by expiry is noticed. Timers stand
 * behind every message. script.h has keys and messages.
 *
 * Files: redis.c the loop; open.c the URI's parameters; acquire.c acquire and waiting; renew.c renew and release; status.c status; master.c the master behind Sentinel;
 * cluster.c the way to the node that has the lock; confirm.c what must be confirmed before an answer
 * counts; health.c what is wrong with the server's set-up or clock; conn.c one connection; script.c what
 * runs in the server.
 *
 * Not guaranteed: the lock lives in one server's memory. A server that loses it (restart without
 * persistence, promotion of a replica that lacks the key, eviction, a jump of its clock) gives it to the
 * next one while the holder's command may still run; restart-grace covers the first of these.
 */
#include "redis.h"

#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------- shared */

const char *redis_where(const struct dlock_be *be)
{
    return be->spec->uri->where;
}

void redis_connect(struct dlock_be *be, struct redis_conn *c, int64_t until)
{
    if (redis_conn_is_open(c) || redis_cluster_connect(be, c, until))
        return;
    if (be->sentinel != NULL) {
        redis_sentinel_connect(be, c, until);
        return;
    }
    const struct dlock_peer *peers = be->is_unix ? &be->unix_peer : be->spec->peers;
    int n = be->is_unix ? 1 : be->spec->npeers;
    c->tls = be->tls;
    c->tls_host = be->is_unix ? NULL : be->spec->uri->hosts[0].host;
    (void)redis_conn_open(c, be->spec->env, peers, n, &be->auth, redis_where(be), until);
}

void redis_no_answer(const struct dlock_be *be, struct dlock_error *err, int64_t waited)
{
    no_answer(err, be->spec, waited);
    if (be->cmd.state == RC_FAILED || be->cmd.tls_failed)
        *err = be->cmd.error;
}

int64_t redis_clock_now(struct dlock_be *be, int64_t theirs_ms, int64_t sent)
{
    const struct dlock_peer *p = &be->cmd.peers[be->cmd.good];
    /* After a failover two clocks would be compared that have nothing to do with each other. */
    if (be->clock_of.len != p->len || memcmp(&be->clock_of.addr, &p->addr, p->len) != 0)
        be->clock = (struct redis_clock){0};
    be->clock_of = *p;
    return redis_clock_told(&be->clock, theirs_ms, sent, redis_now(be));
}

void redis_close_cmd(struct dlock_be *be)
{
    redis_conn_close(&be->cmd);
    be->tracking = TRACK_OFF;
}

/* ------------------------------------------------------------- open and close */

static void be_close(struct dlock_be *be);

static int be_open(struct dlock_be **out, const struct dlock_spec *spec, struct dlock_error *err)
{
    struct dlock_be *be = calloc(1, sizeof(*be));
    if (be == NULL)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    be->spec = spec;
    be->op_until = be->try_at = be->wake_until = be->rel_until = DLOCK_NEVER;
    outage_over(&be->cmd_out);
    outage_over(&be->wake_out);
    int rc = redis_check_spec(be, err);
    if (rc != 0) {
        be_close(be);
        return rc;
    }
    struct dlock_error warning;
    if (tls_config_warns(be->tls, redis_where(be), &warning))
        events_add(&be->events, EV_NOTICE)->error = warning;
    *out = be;
    return 0;
}

static void be_close(struct dlock_be *be)
{
    if (be == NULL)
        return;
    redis_conn_close(&be->cmd);
    redis_conn_close(&be->wake);
    redis_cluster_done(be);
    redis_drop_listing(be);
    redis_forget_stale(be, be->nstale);
    redis_script_done(&be->script);
    tls_config_free(be->tls);
    redis_sentinel_close(be);
    free(be->channel);
    free(be->value);
    if (be->secret != NULL)
        explicit_bzero(be->secret, strlen(be->secret));
    free(be->secret);
    free(be);
}

/* ---------------------------------------------------------------------- driving */

/* True: the reply was kept. */
static bool cmd_answered(struct dlock_be *be, struct redis_conn_reply *rep)
{
    if (redis_cluster_redirected(be, rep))
        return false;
    switch (rep->tag) {
    case T_UNDO:
        redis_undo_answered(be, rep->r);
        break;
    case T_TRACK:
        redis_track_answered(be, rep->r);
        break;
    case T_TRY:
        if (be->doing == DO_ACQUIRE)
            redis_try_answered(be, rep);
        break;
    case T_RENEW:
        if (be->doing == DO_RENEW)
            redis_renew_answered(be, rep);
        break;
    case T_LEAVE:
        if (be->doing == DO_RELEASE)
            redis_leave_answered(be, rep);
        break;
    case T_MEMORY:
        redis_checks_memory(&be->checks, rep->r, redis_where(be));
        break;
    case T_PERSISTENCE:
        redis_checks_persistence(&be->checks, rep->r, redis_where(be), be->spec->ttl,
                                 be->restart_grace);
        break;
    case T_WAIT:
        redis_replicas_answered(be, rep->r);
        break;
    case T_ASK:
        return be->doing == DO_ASK && redis_ask_answered(be, rep->r);
    case T_HELLO:
        redis_cluster_hello_answered(be, rep->r);
        break;
    case T_NODES:
        redis_cluster_nodes_answered(be, rep->r);
        break;
    default:
        break;
    }
    return false;
}

static void cmd_failed(struct dlock_be *be)
{
    struct dlock_error err = be->cmd.error;
    bool leaving =
        be->doing == DO_RELEASE && be->cmd.written && redis_conn_waits(&be->cmd, T_LEAVE);

    if (redis_cluster_elsewhere(be))
        return;
    if (be->doing == DO_ACQUIRE) {
        redis_wait_trouble(be, &err);
        return;
    }
    redis_close_cmd(be);
    if (be->doing == DO_RENEW)
        redis_renew_unclear(be, &err);
    else if (be->doing == DO_ASK && be->cluster.known && err.code == DLOCK_EUNAVAIL)
        redis_ask_later(be, &err); /* its replica may be about to take over */
    else if (be->doing == DO_ASK)
        redis_ask_lost(be, &err);
    else if (be->doing == DO_RELEASE) {
        be->leave_lost = be->leave_lost || leaving;
        redis_leave_retry(be, &err);
    }
}

static void take_replies(struct dlock_be *be)
{
    struct redis_conn_reply rep;
    int rc = 0;
    while (be->cmd.state != RC_CLOSED && (rc = redis_conn_next(&be->cmd, &rep)) == 1)
        if (!cmd_answered(be, &rep))
            freeReplyObject(rep.r);
    if (rc < 0 && be->cmd.state == RC_FAILED)
        cmd_failed(be);
    rc = 0;
    while (be->wake.state != RC_CLOSED && (rc = redis_conn_next(&be->wake, &rep)) == 1) {
        redis_wake_answered(be, &rep);
        freeReplyObject(rep.r);
    }
    if (rc < 0 && be->wake.state == RC_FAILED)
        redis_wake_failed(be);
}

static void timers(struct dlock_be *be)
{
    int64_t now = redis_now(be);
    struct dlock_error err;

    if (redis_conn_is_connecting(&be->cmd) && now >= be->cmd.next_at)
        redis_conn_work(&be->cmd);
    if (redis_conn_is_connecting(&be->wake) && now >= be->wake.next_at)
        redis_conn_work(&be->wake);
    switch (be->doing) {
    case DO_ACQUIRE:
        redis_wait_timers(be, now);
        break;
    case DO_RENEW:
        redis_renew_timers(be, now);
        break;
    case DO_ASK:
        if (now >= be->op_until) {
            redis_no_answer(be, &err, be->spec->connect_timeout);
            redis_conn_close(&be->cmd);
            redis_ask_failed(be, be->refused.code != 0 ? &be->refused : &err);
        } else if (now >= be->cmd_out.retry_at) {
            redis_cluster_begin(be);
            redis_ask_now(be);
        }
        break;
    case DO_RELEASE:
        redis_release_timers(be, now);
        break;
    case DO_NOTHING:
        break;
    }
}

static int be_interest(struct dlock_be *be, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    int n = 0;
    if (cap > n)
        n += redis_conn_interest(&be->cmd, &pfd[n], wake_at);
    if (cap > n)
        n += redis_conn_interest(&be->wake, &pfd[n], wake_at);
    n += redis_sentinel_interest(be, pfd + n, cap - n, wake_at);
    if (cap > n)
        n += redis_cluster_interest(be, &pfd[n]);
    if (be->doing != DO_NOTHING)
        *wake_at = dlock_min(*wake_at, dlock_min(be->op_until, be->rel_until));
    if (be->doing == DO_ACQUIRE)
        *wake_at = dlock_min(*wake_at, redis_wait_wake_at(be));
    else if (be->doing != DO_NOTHING)
        *wake_at = dlock_min(*wake_at, be->cmd_out.retry_at);
    if (be->events.n > 0 || be->listing != NULL || be->checks.due || be->checks.ntold > 0)
        *wake_at = 0;
    return n;
}

/*
 * Asked when the grant has been handed out, told as soon as nothing more important is to be; a release is
 * the last chance.
 */
static bool give_checks(struct dlock_be *be, struct dlock_event *ev)
{
    struct dlock_error said;

    if (be->events.n > 0 && be->events.at[0].type != EV_RELEASED)
        return false;
    if (be->checks.due)
        redis_checks_ask(&be->checks, &be->cmd, T_MEMORY, T_PERSISTENCE,
                         be->restart_grace < be->spec->ttl);
    if (!redis_checks_take(&be->checks, &said))
        return false;
    *ev = (struct dlock_event){.type = EV_NOTICE, .error = said};
    return true;
}

static int be_process(struct dlock_be *be, const struct pollfd *pfd, int n, struct dlock_event *ev)
{
    for (int i = 0; i < n; i++) {
        if (pfd[i].revents == 0)
            continue;
        if (redis_conn_is_open(&be->cmd) && pfd[i].fd == be->cmd.fd)
            redis_conn_work(&be->cmd);
        else if (redis_conn_is_open(&be->wake) && pfd[i].fd == be->wake.fd)
            redis_conn_work(&be->wake);
    }
    redis_sentinel_work(be, pfd, n);
    redis_sentinel_step(be);
    redis_cluster_work(be);
    take_replies(be);
    redis_proof_step(be);
    timers(be);
    if (give_checks(be, ev))
        return 1;
    if (events_take(&be->events, ev))
        return 1;
    return be->listing != NULL ? redis_give_listed(be, ev) : 0;
}

static const char *const schemes[] = {"redis", "rediss", "redis+unix", "redis+sentinel", NULL};

const struct dlock_backend dlock_backend_redis = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_VERSION,
    .name = "redis",
    .package = "dlock",
    .schemes = schemes,
    .caps = CAP_FENCE | CAP_LEASE | CAP_FIFO,
    .open = be_open,
    .acquire = redis_acquire,
    .renew = redis_renew,
    .release = redis_release,
    .ask = redis_ask,
    .interest = be_interest,
    .process = be_process,
    .close = be_close,
};
