/*
 * renew.c - renewals, and the release.
 *
 * Both name the lock's value, so neither touches another client's lock. A renewal without a clear
 * answer is reported as unclear, and the next renewal may begin on another connection; such a
 * release is sent again until the time is up.
 */
#include "operation.h"

#include <stdio.h>

/* The fence counter expires a day after the grant, and --list finds the hold by the counter. */
#define FENCE_KEPT(ttl) dlock_max(24 * 3600 * DLOCK_SEC, 10 * (ttl))
#define FENCE_REFRESH (8 * 3600 * DLOCK_SEC)

/* Say how the lock was lost. jump: of the server's clock, or 0. */
static void name_found(const struct redis_backend *be, struct dlock_error *err,
                       const struct redis_script_owned *o, int64_t jump)
{
    struct dlock_info info;
    char text[96], holder[sizeof(err->msg)];
    const char *cause = "the key expired, was deleted, or was lost by the server";
    if (o->found)
        redis_script_holder(o->found, o->len, &info);
    if (o->found && info.foreign) {
        cause = "another program took the lock";
    } else if (o->found) {
        snprintf(holder, sizeof(holder), "%s@%s, pid %ld holds the lock now", info.user, info.host,
                 info.pid);
        cause = holder;
    }
    dlock_fail_at(err, DLOCK_ELOST, 0, redis_where(be), "%s%s%s", cause, jump != 0 ? "; " : "",
                  jump != 0 ? redis_clock_text(jump, text, sizeof(text)) : "");
}

/*
 * An error reply (a replica now, or no rights on this connection): fill err. The next attempt needs
 * a new connection, unless the error is transient.
 */
static void read_refusal(struct redis_backend *be, const redisReply *r, struct dlock_error *err)
{
    struct redis_conn *cmd = &be->node.cmd;
    if (cmd->auth_failed) {
        *err = cmd->error;
        redis_node_close(&be->node);
        return;
    }
    enum redis_conn_class class = redis_conn_classify(r->str);
    redis_cluster_error(&be->route, err, r->str);
    if (!redis_cluster_lost(&be->route, r->str) && class == RE_TRANSIENT)
        return;
    if (class == RE_REPLICA)
        redis_conn_close_replica(cmd);
    redis_node_close(&be->node);
}

/* ---------------------------------------------------------------------- renew */

static bool begins(const struct redis_backend *be)
{
    return be->spec->hold->begin == RUN_NOW;
}

static void send_renew(struct redis_backend *be)
{
    struct redis_conn *cmd = &be->node.cmd;
    /* With --min-hold the lock must stay held even if we never speak again. */
    struct redis_script_args args = {.ttl = dlock_max(be->spec->ttl, spec_stay(be->spec)),
                                     .value = be->value};
    char text[RUN_RECORD_MAX];
    if (redis_conn_is_open(cmd))
        redis_sentinel_question(&be->route, DLOCK_NEVER); /* a new connection begins by asking */
    bool exclusive = be->spec->mode == DLOCK_MODE_EXCLUSIVE;
    int64_t now = spec_now(be->spec);
    redis_route_connect(&be->route, cmd, be->until);
    /* Readers and slots renew the same key for each other. */
    if (exclusive) {
        redis_conn_track(cmd, T_HELLO);
        be->route.cluster.hello_sent = true;
    }
    if (redis_cluster_asks(&be->route))
        redis_node_asking(&be->node);
    /* RUN_NOW: the script of a Redlock server renews as well, and writes the record. */
    if (begins(be)) {
        (void)redis_script_run(&args, be->spec, be->token, be->fence, false, text);
    } else if (exclusive && now - be->fence_kept_at >= FENCE_REFRESH) {
        args.kept = FENCE_KEPT(args.ttl);
        be->fence_kept_at = now;
    }
    (void)redis_script_send(&be->script, cmd, T_RENEW, begins(be) ? SCRIPT_KEEP : SCRIPT_RENEW,
                            &args);
    redis_conn_flush(cmd);
}

void redis_renew(struct dlock_be *dlock_be)
{
    struct redis_backend *be = redis_of(dlock_be);
    be->op = &redis_op_renew;
    be->until = spec_now(be->spec) + be->spec->op_timeout;
    redis_cluster_begin(&be->route);
    send_renew(be);
}

/* The master is another server now: is the lock there? */
static void renew_there(struct redis_backend *be)
{
    redis_conn_close(&be->node.cmd);
    be->answer.what = ANSWER_NONE;
    send_renew(be);
}

static void unclear(struct redis_backend *be, const struct dlock_error *err)
{
    redis_end(be, EV_UNCLEAR)->error = *err;
}

static void renew_failed(struct redis_backend *be, const struct dlock_error *err)
{
    redis_node_close(&be->node);
    unclear(be, err);
}

static void renewed(struct redis_backend *be, const struct redis_answer *a)
{
    if (a->what == ANSWER_LOSS) {
        redis_end(be, EV_LOST)->error = a->why;
        return;
    }
    struct dlock_event *ev = redis_end(be, EV_RENEWED);
    ev->from = a->sent;
    ev->ttl = be->spec->ttl;
    ev->broken = a->why.code != 0;
    ev->error = a->why;
    redis_cluster_learn(&be->route);
    redis_conn_flush(&be->node.cmd);
}

static void renewal_refused(struct redis_backend *be, const struct dlock_error *err, bool for_good)
{
    (void)for_good;
    unclear(be, err);
}

static void renew_answered(struct redis_backend *be, struct redis_conn_reply *rep)
{
    struct redis_conn *cmd = &be->node.cmd;
    struct redis_script_owned o;
    struct dlock_error err;
    if (cmd->auth_failed || rep->r->type == REDIS_REPLY_ERROR) {
        read_refusal(be, rep->r, &err);
        unclear(be, &err);
        return;
    }
    if (redis_script_owned(rep->r, &o) != 0) {
        dlock_fail_at(&err, DLOCK_EPROTO, 0, redis_where(be), "unexpected answer to a renewal");
        redis_conn_close(cmd);
        unclear(be, &err);
        return;
    }
    if (o.ours && begins(be) && !o.recorded) {
        redis_foreign_record(be, &err, "value");
        unclear(be, &err);
        return;
    }
    int64_t jump = redis_node_clock(&be->node, o.now_ms, rep->sent, spec_now(be->spec));
    be->answer =
        (struct redis_answer){.what = o.ours ? ANSWER_RENEWAL : ANSWER_LOSS, .sent = rep->sent};
    if (!o.ours)
        name_found(be, &be->answer.why, &o, jump);
    else if (jump != 0)
        redis_clock_warning(jump, redis_where(be), &events_add(&be->events, EV_NOTICE)->error);
    if (o.ours && o.found) {
        int64_t when_ms;
        const char *by = redis_script_mark(o.found, &o.len, &when_ms);
        dlock_broken(&be->answer.why, be->spec, by, o.len);
    }
    redis_route_ask_confirmation(&be->route, o.ours, 0, be->until);
}

static void renew_due(struct redis_backend *be, int64_t now)
{
    struct dlock_error err;
    if (now < be->until)
        return;
    no_answer(&err, be->spec, be->spec->op_timeout);
    if (be->answer.what != ANSWER_NONE)
        redis_route_unconfirmed(&be->route, &err);
    redis_cluster_failed(&be->route);
    redis_conn_close(&be->node.cmd);
    unclear(be, &err);
}

const struct redis_operation redis_op_renew = {
    .tag = T_RENEW,
    .again = send_renew,
    .answered = renew_answered,
    .failed = renew_failed,
    .confirmed = renewed,
    .refused = renewal_refused,
    .moved = renew_there,
    .due = renew_due,
};

/* -------------------------------------------------------------------- release */

static void end_release(struct redis_backend *be, enum dlock_release_how how,
                        const struct dlock_error *err)
{
    struct dlock_event *ev = redis_end(be, EV_RELEASED);
    ev->how = how;
    if (err)
        ev->error = *err;
    /* A reply that is still to come would be taken for the answer to the next call. */
    if (be->node.cmd.ntags > 0 || how == DLOCK_RELEASE_UNCLEAR)
        redis_node_close(&be->node);
    be->claim = CLAIM_NONE;
    be->node.cmd.held = false;
    be->queued = be->release.answer_lost = false;
    be->release.until = DLOCK_NEVER;
    redis_node_forget(&be->node, NULL);
    outage_none(&be->out);
}

/* Requests are served in order, so this goes out behind, and also undoes, unanswered requests. */
static void send_leave(struct redis_backend *be)
{
    bool asking = redis_cluster_asks(&be->route);
    struct redis_script_args args = {.value = be->value, .id = be->queued ? be->acquire.id : NULL};
    struct dlock_run run = {0};
    /* A try without a grant has no end of a hold, and leaves the run record alone. */
    if (be->claim == CLAIM_GRANTED) {
        if (run_record_begun(be->spec)) {
            run_record_end(be->spec, &run);
            args.once = be->spec->once;
        }
        args.least = spec_stay(be->spec);
        args.state = run.state;
        args.status = run.status;
    }
    redis_route_connect(&be->route, &be->node.cmd, be->release.until);
    redis_node_undo(&be->node, &be->script, T_UNDO, asking);
    redis_node_leave(&be->node, &be->script, T_LEAVE, asking, &args);
    redis_conn_flush(&be->node.cmd);
}

static void leave_now(struct redis_backend *be)
{
    be->out.retry_at = DLOCK_NEVER;
    redis_cluster_begin(&be->route);
    send_leave(be);
}

void redis_release(struct redis_backend *be, int64_t until)
{
    struct redis_conn *cmd = &be->node.cmd;
    /* A connection that waits for replicas serves nothing else; the request has been answered. */
    if (be->op == &redis_op_status || be->op == &redis_op_list ||
        (redis_conn_is_open(cmd) && redis_conn_waits(cmd, T_WAIT)) || redis_conn_has_ended(cmd))
        redis_conn_close(cmd);
    if (be->claim == CLAIM_TRIED && !cmd->written) {
        redis_conn_close(cmd); /* the try has never left: a value is used on one connection only */
        be->claim = CLAIM_NONE;
    }
    be->op = &redis_op_release;
    be->answer.what = ANSWER_NONE;
    be->checks.due = false;
    be->until = be->acquire.next_at = DLOCK_NEVER;
    be->release.until = until;
    be->release.answer_lost = false;
    be->release.doubt.code = 0;
    outage_none(&be->out);
    /* Can the server hold anything of ours? */
    if (be->value && (be->claim != CLAIM_NONE || be->queued || be->node.undo.n > 0))
        leave_now(be);
    else
        end_release(be, DLOCK_RELEASE_NOTHING, NULL);
}

/* The release was refused, or the connection has failed: retry while there is time. */
static void leave_later(struct redis_backend *be, const struct dlock_error *err)
{
    int64_t now = spec_now(be->spec);
    be->release.doubt = *err;
    if (now >= be->release.until || !dlock_error_retryable(err->code))
        end_release(be, DLOCK_RELEASE_UNCLEAR, err);
    else
        be->out.retry_at =
            dlock_min(be->release.until, now + dlock_backoff_next(&be->out.pause, be->spec->env));
}

static void drop_answer(struct redis_backend *be)
{
    be->answer.what = ANSWER_NONE;
    be->until = DLOCK_NEVER;
}

static void confirm_record(struct redis_backend *be, int64_t sent)
{
    be->answer = (struct redis_answer){.what = ANSWER_RECORD, .sent = sent};
    be->until = dlock_min(be->release.until, spec_now(be->spec) + be->spec->op_timeout);
    redis_route_ask_confirmation(&be->route, true, sent, be->until);
}

static void record_confirmed(struct redis_backend *be, const struct redis_answer *a)
{
    (void)a;
    end_release(be, DLOCK_RELEASE_CLEAN, NULL);
}

/* Release again: the script finds or writes the record, and its answer is confirmed anew. */
static void record_refused(struct redis_backend *be, const struct dlock_error *err, bool for_good)
{
    (void)for_good;
    drop_answer(be);
    leave_later(be, err);
}

/* The master is another server now, which may still have the lock, and the record of the begin. */
static void leave_there(struct redis_backend *be)
{
    drop_answer(be);
    redis_node_close(&be->node);
    leave_now(be);
}

static void leave_failed(struct redis_backend *be, const struct dlock_error *err)
{
    const struct redis_conn *cmd = &be->node.cmd;
    if (cmd->written && redis_conn_waits(cmd, T_LEAVE))
        be->release.answer_lost = true;
    drop_answer(be);
    redis_node_close(&be->node);
    leave_later(be, err);
}

static void leave_answered(struct redis_backend *be, struct redis_conn_reply *rep)
{
    const redisReply *r = rep->r;
    bool granted = be->claim == CLAIM_GRANTED;
    struct redis_script_owned o;
    struct dlock_error err;
    if (r->type == REDIS_REPLY_ERROR) {
        read_refusal(be, r, &err);
        leave_later(be, &err);
    } else if (redis_script_owned(r, &o) != 0) {
        dlock_fail_at(&err, DLOCK_EPROTO, 0, redis_where(be), "unexpected answer to a release");
        end_release(be, DLOCK_RELEASE_UNCLEAR, &err);
    } else if (be->node.undo.n > 0) {
        /* The undo in front was refused: send both again. */
        be->release.answer_lost = be->release.answer_lost || o.ours;
        dlock_fail_at(&err, DLOCK_EUNAVAIL, 0, redis_where(be),
                      "an earlier, unanswered try could not be undone");
        leave_later(be, &err);
    } else if (o.foreign) {
        redis_foreign_record(be, &err, o.found);
        end_release(be, DLOCK_RELEASE_UNCLEAR, &err);
    } else if (o.ours && granted && run_record_must(be->spec)) {
        /* A failover would lose what only the old master has: the route confirms the answer. */
        confirm_record(be, rep->sent);
    } else if (o.ours || (granted && be->release.answer_lost && !run_record_must(be->spec))) {
        end_release(be, DLOCK_RELEASE_CLEAN, NULL);
    } else if (granted) {
        name_found(be, &err, &o,
                   redis_node_clock(&be->node, o.now_ms, rep->sent, spec_now(be->spec)));
        end_release(be, DLOCK_RELEASE_NOT_OURS, &err);
    } else {
        end_release(be, DLOCK_RELEASE_NOTHING, NULL);
    }
}

static void release_due(struct redis_backend *be, int64_t now)
{
    struct dlock_error err = be->release.doubt;
    if (now < be->until && now < be->release.until) {
        if (now >= be->out.retry_at)
            leave_now(be);
        return;
    }
    if (err.code == 0)
        dlock_fail_at(&err, DLOCK_EUNAVAIL, 0, redis_where(be), "no answer");
    if (be->answer.what != ANSWER_NONE)
        redis_route_unconfirmed(&be->route, &err);
    if (now >= be->release.until) {
        end_release(be, DLOCK_RELEASE_UNCLEAR, &err);
    } else {
        redis_node_close(&be->node);
        record_refused(be, &err, false);
    }
}

static int64_t release_wake_at(const struct redis_backend *be)
{
    return dlock_min(be->release.until, be->out.retry_at);
}

const struct redis_operation redis_op_release = {
    .tag = T_LEAVE,
    .again = send_leave,
    .answered = leave_answered,
    .failed = leave_failed,
    .confirmed = record_confirmed,
    .refused = record_refused,
    .moved = leave_there,
    .due = release_due,
    .wake_at = release_wake_at,
};
