/*
 * redis.c - a lock in one Redis server (6.0 or later, Valkey, and compatible servers).
 *
 * The lock is a string key set with NX and PX semantics by a script, so that dlock and clients that
 * use SET NX PX exclude each other. An acquire is a single script, pipelined behind AUTH; so is a
 * release. A waiter stands in a queue in the server, and is woken on a second connection; the first
 * waiter also watches the key (client-side caching), and so notices an expiry or another program's
 * DEL. Timers stand behind every message. script.h has keys and messages.
 *
 * This file runs the operation under way (acquire.c, renew.c, status.c): it takes the node's
 * replies (node.c), asks the route whether they count (route.h), and moves the operation on.
 *
 * Not guaranteed: the lock lives in one server's memory. A server that loses the key (restart
 * without persistence, promotion of a replica that lacks the key, eviction, a jump of its clock)
 * grants the lock again while the holder's command may still run; restart-grace covers restarts.
 */
#include "operation.h"
#include "params.h"

#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

/* ------------------------------------------------------------- open and close */

static int read_spec(struct redis_backend *be, struct dlock_error *err)
{
    static const struct dlock_host none;
    const struct dlock_spec *spec = be->spec;
    struct dlock_uri *uri = spec->uri;
    const struct dlock_host *host = uri->nhosts > 0 ? &uri->hosts[0] : &none;
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int rc = redis_params_read(spec, &be->script, &be->restart_grace, err);
    if (rc == 0 && strcmp(uri->scheme, "rediss") == 0)
        rc = tls_config_from_uri(spec, &be->tls, err);
    if (rc != 0)
        return rc;
    const char *replicas = dlock_uri_param(uri, "wait-replicas");
    int64_t count = 0;
    if (replicas && (!dlock_read_number(replicas, strlen(replicas), &count) || count > 1000))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "wait-replicas=%s: a number from 0 to 1000",
                          replicas);
    be->route.wait_replicas = (unsigned)count;
    be->route.is_unix = strcmp(uri->scheme, "redis+unix") == 0;
    if (be->route.is_unix) {
        if (strlen(uri->path) == 0 || strlen(uri->path) >= sizeof(un.sun_path))
            return dlock_fail(err, DLOCK_EUSAGE, 0, "'%s': the path of a socket has 1 to %zu bytes",
                              uri->path, sizeof(un.sun_path) - 1);
        strcpy(un.sun_path, uri->path);
        memcpy(&be->route.unix_peer.addr, &un, sizeof(un));
        be->route.unix_peer.len = sizeof(un);
    }
    if (strcmp(uri->scheme, "redis+sentinel") == 0 &&
        (rc = redis_sentinel_open(&be->route, err)) != 0)
        return rc;
    redis_node_init(&be->node, spec->env, uri->where, be->tls);
    if (host->password)
        (void)dlock_uri_param(uri, "password-file"); /* marks the parameter as used */
    else
        rc = redis_param_secret(spec, &be->secret, err);
    redis_node_credentials(&be->node, host, be->secret, dlock_uri_peek(uri, "password-file"));
    return rc;
}

static void be_close(struct dlock_be *dlock_be)
{
    struct redis_backend *be = redis_of(dlock_be);
    if (!be)
        return;
    redis_node_done(&be->node);
    redis_addr_done(&be->route.cluster.addr);
    redis_sentinel_close(&be->route);
    redis_drop_listing(be);
    redis_check_drop(be);
    redis_list_drop(be);
    redis_script_done(&be->script);
    tls_config_free(be->tls);
    free(be->acquire.channel);
    free(be->value);
    dlock_wipe(be->secret);
    free(be);
}

static void be_close_in_child(struct dlock_be *dlock_be)
{
    struct redis_backend *be = redis_of(dlock_be);
    redis_node_close_in_child(&be->node);
    redis_addr_close_in_child(&be->route.cluster.addr);
    redis_sentinel_close_in_child(&be->route);
    be_close(dlock_be);
}

static int be_open(struct dlock_be **out, const struct dlock_spec *spec, struct dlock_error *err)
{
    struct redis_backend *be = calloc(1, sizeof(*be));
    if (!be)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    be->spec = spec;
    be->until = be->acquire.next_at = be->release.until = DLOCK_NEVER;
    outage_none(&be->out);
    be->route.spec = spec;
    be->route.script = &be->script;
    be->route.node = &be->node;
    int rc = read_spec(be, err);
    if (rc != 0) {
        be_close((struct dlock_be *)be);
        return rc;
    }
    struct dlock_error warning;
    if (tls_config_warns(be->tls, redis_where(be), &warning))
        events_add(&be->events, EV_NOTICE)->error = warning;
    *out = (struct dlock_be *)be;
    return 0;
}

/* -------------------------------------------------------------------- replies */

static void answered(struct redis_backend *be, struct redis_conn_reply *rep)
{
    const struct redis_operation *op = be->op;
    struct dlock_error err;
    if (op && rep->tag == (int)op->tag && !be->node.cmd.auth_failed) {
        enum redis_verdict v = redis_cluster_judge(&be->route, rep->r, be->op != &redis_op_acquire);
        if (v != ROUTE_PASS) { /* a redirection: send the command again, to another node */
            redis_node_close(&be->node);
            (v == ROUTE_MOVED && op->moved_slot ? op->moved_slot : op->again)(be);
            return;
        }
    }
    switch (rep->tag) {
    case REDIS_CONN_PUSH:
        if (be->claim == CLAIM_GRANTED && redis_script_changed(&be->script, rep->r))
            events_add(&be->events, EV_CHANGED);
        break;
    case T_UNDO:
        redis_node_undo_answered(&be->node, rep->r);
        break;
    case T_TRACK:
        redis_node_track_answered(&be->node, rep->r);
        break;
    case T_LOOK:
    case T_LOOK_SHARED:
    case T_LOOK_CLAIM:
        redis_acquire_looked(be, rep->tag, rep->r);
        break;
    case T_INFO:
        redis_checks_answered(&be->checks, rep->r, redis_where(be), be->spec->ttl,
                              be->restart_grace);
        break;
    case T_WAIT:
        redis_route_replicas_answered(&be->route, rep->r);
        break;
    case T_HELLO:
    case T_NODES:
        if (!redis_cluster_answered(&be->route, rep, &err) && be->op == &redis_op_acquire)
            redis_op_acquire.refused(be, &err, true); /* the release undoes the try behind */
        break;
    default:
        if (op && rep->tag == (int)op->tag)
            op->answered(be, rep);
    }
}

/* The idle cmd of a holder is useless: is the lock still there? */
static void ask_now(struct redis_backend *be, const struct dlock_error *err)
{
    if (be->claim == CLAIM_GRANTED)
        events_add(&be->events, EV_AWAY)->error = *err;
    redis_node_close(&be->node);
}

/* The master has moved: say so, and take the operation under way there. */
static void follow(struct redis_backend *be)
{
    const struct redis_operation *op = be->op;
    struct dlock_error *note = &events_add(&be->events, EV_NOTICE)->error;
    redis_sentinel_doubt(&be->route, note);
    note->code = 0;
    if (op && op->moved)
        op->moved(be);
    else if (!op)
        ask_now(be, note);
}

/* Does the operation's pending answer count? */
static void confirm(struct redis_backend *be)
{
    const struct redis_operation *op = be->op;
    struct redis_answer a = be->answer;
    struct dlock_error err;
    if (a.what == ANSWER_NONE)
        return;
    enum redis_confirmed c = redis_route_confirm(&be->route, &err);
    if (c == CONFIRM_ASKED)
        return;
    if (c == CONFIRM_MOVED) {
        follow(be);
        return;
    }
    be->answer.what = ANSWER_NONE;
    if (c == CONFIRM_YES)
        op->confirmed(be, &a);
    else
        op->refused(be, &err, c == CONFIRM_MISSING);
}

static void cmd_failed(struct redis_backend *be)
{
    const struct redis_operation *op = be->op;
    struct dlock_error err = be->node.cmd.error;
    /* A server may close an idle connection: the next request opens a new one. */
    if (!op) {
        ask_now(be, &err);
    } else if (op->idle_closed && op->idle_closed(be, &err)) {
        redis_node_close(&be->node);
    } else if (redis_cluster_elsewhere(&be->route)) {
        redis_node_close(&be->node);
        op->again(be);
    } else {
        op->failed(be, &err);
    }
}

static void take_replies(struct redis_backend *be)
{
    struct redis_conn *cmd = &be->node.cmd, *wake = &be->node.wake;
    struct redis_conn_reply rep;
    int rc = 0;
    while (cmd->state != RC_CLOSED && (rc = redis_script_next(cmd, &rep)) == 1) {
        answered(be, &rep);
        freeReplyObject(rep.r); /* NULL: kept */
        confirm(be);
    }
    if (rc < 0 && cmd->state == RC_FAILED)
        cmd_failed(be);
    rc = 0;
    while (wake->state != RC_CLOSED && (rc = redis_conn_next(wake, &rep)) == 1) {
        if (be->op == &redis_op_check)
            redis_check_wake_answered(be, &rep);
        else
            redis_acquire_wake_answered(be, &rep);
        freeReplyObject(rep.r);
    }
    if (rc < 0 && wake->state == RC_FAILED && be->op == &redis_op_check)
        redis_check_wake_failed(be, &wake->error);
    else if (rc < 0 && wake->state == RC_FAILED)
        redis_acquire_wake_failed(be, &wake->error); /* stays when wake is closed */
}

/* ------------------------------------------------------------------- driving */

static int be_interest(struct dlock_be *dlock_be, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    const struct redis_backend *be = redis_of(dlock_be);
    int n = redis_node_interest(&be->node, pfd, cap, wake_at);
    n += redis_sentinel_interest(&be->route, pfd + n, cap - n, wake_at);
    if (cap > n)
        n += redis_cluster_interest(&be->route, &pfd[n]);
    const struct redis_operation *op = be->op;
    if (op)
        *wake_at = dlock_min(*wake_at, be->until);
    if (op && op->wake_at)
        *wake_at = dlock_min(*wake_at, op->wake_at(be));
    if (op && op->unanswered)
        *wake_at = dlock_min(*wake_at, be->out.retry_at);
    if (be->events.n > 0 || be->found.ended || redis_list_ready(be) || be->checks.due ||
        be->checks.nwarnings > 0)
        *wake_at = 0;
    return n;
}

static void question_due(struct redis_backend *be, const struct redis_operation *op, int64_t now)
{
    struct dlock_error err;
    if (now >= be->until) {
        redis_no_answer(be, &err, be->spec->connect_timeout);
        redis_conn_close(&be->node.cmd);
        op->unanswered(be, be->refused.code != 0 ? &be->refused : &err);
    } else if (now >= be->out.retry_at) {
        redis_cluster_begin(&be->route);
        op->again(be);
    }
}

static int be_process(struct dlock_be *dlock_be, const struct pollfd *pfd, int n,
                      struct dlock_event *ev)
{
    struct redis_backend *be = redis_of(dlock_be);
    redis_node_work(&be->node, pfd, n);
    redis_sentinel_work(&be->route, pfd, n);
    if (redis_sentinel_seek(&be->route))
        redis_wake_drop(be);
    enum redis_watch watch =
        redis_sentinel_watch(&be->route, be->op == &redis_op_acquire, be->claim == CLAIM_GRANTED,
                             be->op == &redis_op_renew);
    if (watch == WATCH_MOVED)
        follow(be);
    else if (watch == WATCH_RETRY)
        be->out.retry_at = dlock_min(be->out.retry_at, spec_now(be->spec));
    redis_cluster_work(&be->route);
    take_replies(be);
    confirm(be);
    int64_t now = spec_now(be->spec);
    const struct redis_operation *op = be->op;
    if (op && op->unanswered)
        question_due(be, op, now);
    else if (op)
        op->due(be, now);
    /* Once the grant has been handed out. */
    if (be->checks.due && (be->events.n == 0 || be->events.at[0].type == EV_RELEASED))
        redis_checks_ask(&be->checks, &be->node.cmd, T_INFO, be->restart_grace < be->spec->ttl);
    if (redis_checks_take(&be->checks, &be->events, ev) || events_take(&be->events, ev))
        return 1;
    if (findings_take(&be->found, ev))
        return 1;
    return be->list ? redis_list_next(be, ev) : 0;
}

/* ------------------------------------------------------------------- the slots */

static void be_ask(struct dlock_be *dlock_be, const struct dlock_question *question)
{
    struct redis_backend *be = redis_of(dlock_be);
    be->status.question = question;
    if (question->what == ASK_CHECK)
        redis_check(be);
    else
        redis_list(be);
}

static void be_release(struct dlock_be *dlock_be, int64_t until)
{
    struct redis_backend *be = redis_of(dlock_be);
    /* No event of the cancelled operation may follow. */
    be->events.n = 0;
    redis_drop_listing(be);
    redis_check_drop(be);
    redis_list_drop(be);
    redis_node_unsubscribe(&be->node);
    redis_sentinel_listen(&be->route, DLOCK_NEVER);
    if (be->op == &redis_op_release)
        be->release.until = until;
    else
        redis_release(be, until);
}

static const struct dlock_error *be_refusal(const struct dlock_be *be)
{
    return &((const struct redis_backend *)be)->refused;
}

static const char *const schemes[] = {"redis", "rediss", "redis+unix", "redis+sentinel", NULL};

const struct dlock_backend dlock_backend_redis = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_VERSION,
    .name = "redis",
    .package = "dlock",
    .schemes = schemes,
    .caps = CAP_SHARED | CAP_SLOTS | CAP_FENCE | CAP_LEASE | CAP_TELLS | CAP_ONCE,
    .open = be_open,
    .acquire = redis_acquire,
    .refusal = be_refusal,
    .stays = redis_stays,
    .renew = redis_renew,
    .release = be_release,
    .ask = be_ask,
    .step = redis_step,
    .next = redis_next,
    .rest = redis_rest,
    .interest = be_interest,
    .process = be_process,
    .close = be_close,
    .close_in_child = be_close_in_child,
};
