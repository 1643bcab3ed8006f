/*
 * renew.c - renewals, the release, and the undoing of earlier tries whose answers never came.
 *
 * Renewal and release name the lock's value, so neither touches what is somebody else's by now. A renewal without
 * a clear answer is reported as unclear, and the next one may begin on another connection; such a release is sent
 * again until its time is up.
 */
#include "redis.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------- undo */

/* To a node of a cluster that has the lock only half: NAME alone. */
static void send_undo(struct dlock_be *be, int tag, const char *value, const char *id)
{
    redis_cluster_asking(be);
    if (be->cluster.ask != 0)
        (void)redis_script_drop(&be->script, &be->cmd, tag, value);
    else
        (void)redis_script_leave(&be->script, &be->cmd, tag, value, id);
}

void redis_undo_stale(struct dlock_be *be)
{
    if (redis_conn_is_open(&be->cmd) && redis_conn_waits(&be->cmd, T_UNDO))
        return;
    be->undo_at = 0;
    for (int i = 0; i < be->nstale; i++)
        send_undo(be, T_UNDO, be->stale[i], "");
}

static void forget_one(struct dlock_be *be, int i)
{
    free(be->stale[i]);
    be->nstale--;
    memmove(be->stale + i, be->stale + i + 1, sizeof(be->stale[0]) * (size_t)(be->nstale - i));
}

void redis_forget_stale(struct dlock_be *be, int n)
{
    while (n-- > 0 && be->nstale > 0)
        forget_one(be, 0);
}

/* An error (LOADING, READONLY) has undone nothing: the value stays for the next batch. */
void redis_undo_answered(struct dlock_be *be, const redisReply *r)
{
    if (r->type == REDIS_REPLY_ERROR)
        be->undo_at++;
    else if (be->undo_at < be->nstale)
        forget_one(be, be->undo_at);
}

/* ---------------------------------------------------------------------- renew */

void redis_send_renew(struct dlock_be *be)
{
    if (redis_conn_is_open(&be->cmd))
        redis_sentinel_question(be, DLOCK_NEVER); /* a new connection begins with it */
    redis_connect(be, &be->cmd, be->op_until);
    redis_cluster_asking(be);
    (void)redis_script_renew(&be->script, &be->cmd, T_RENEW, be->value, be->spec->ttl);
    redis_conn_flush(&be->cmd);
}

void redis_renew(struct dlock_be *be)
{
    bool under_way = be->doing == DO_RENEW;

    be->unasked = false;
    be->doing = DO_RENEW;
    be->op_until = redis_now(be) + be->spec->op_timeout;
    if (!under_way) {
        redis_cluster_begin(be);
        redis_send_renew(be);
    }
}

void redis_renew_move(struct dlock_be *be)
{
    redis_conn_close(&be->cmd);
    be->proof.what = PROOF_NOTHING;
    if (be->doing != DO_RENEW) {
        be->doing = DO_RENEW;
        be->unasked = true;
        be->op_until = redis_now(be) + be->spec->op_timeout;
    }
    redis_send_renew(be);
}

static void end_renew(struct dlock_be *be)
{
    be->doing = DO_NOTHING;
    be->op_until = DLOCK_NEVER;
    be->proof.what = PROOF_NOTHING;
}

void redis_renew_unclear(struct dlock_be *be, const struct dlock_error *err)
{
    end_renew(be);
    if (!be->unasked)
        events_add(&be->events, EV_UNCLEAR)->error = *err;
}

void redis_renewed(struct dlock_be *be, const struct redis_proof *p)
{
    end_renew(be);
    if (p->what == PROOF_LOSS) {
        events_add(&be->events, EV_LOST)->error = p->lost;
    } else if (!be->unasked) {
        struct dlock_event *ev = events_add(&be->events, EV_RENEWED);
        ev->from = p->sent;
        ev->ttl = be->spec->ttl;
    }
    if (p->what != PROOF_LOSS) {
        redis_cluster_learn(be);
        redis_conn_flush(&be->cmd);
    }
}

/* After an error reply that this connection would only repeat. */
static void close_refused(struct dlock_be *be, const redisReply *r)
{
    if (!be->cmd.auth_failed && redis_conn_classify(r->str) == RE_REPLICA)
        redis_conn_close_replica(&be->cmd);
    redis_close_cmd(be);
}

/* The next attempt needs another connection. */
static bool of_no_use(struct dlock_be *be, const redisReply *r)
{
    return be->cmd.auth_failed || redis_cluster_lost(be, r->str) ||
           redis_conn_classify(r->str) != RE_TRANSIENT;
}

/* "it is gone", or who has it now: for messages. */
static void name_found(const struct dlock_be *be, struct dlock_error *err, const char *found,
                       size_t len)
{
    const char *name = be->spec->uri->name;
    struct dlock_info info;
    if (found == NULL) {
        dlock_fail(err, DLOCK_ELOST, 0,
                   "%s: the lock '%s' is gone: it expired, was deleted, or the server lost it",
                   redis_where(be), name);
        return;
    }
    redis_script_holder(found, len, &info);
    if (info.foreign)
        dlock_fail(err, DLOCK_ELOST, 0, "%s: the lock '%s' was taken by another program",
                   redis_where(be), name);
    else
        dlock_fail(err, DLOCK_ELOST, 0, "%s: the lock '%s' is now held by %s@%s, pid %ld",
                   redis_where(be), name, info.user, info.host, info.pid);
}

/* The same, and what the server's clock has to do with it. */
static void say_found(const struct dlock_be *be, struct dlock_error *err, const char *found,
                      size_t len, int64_t jump)
{
    char text[96];
    name_found(be, err, found, len);
    if (jump != 0)
        dlock_fail(err, DLOCK_ELOST, 0, "%s; %s", err->msg,
                   redis_clock_text(jump, text, sizeof(text)));
}

void redis_renew_answered(struct dlock_be *be, const struct redis_conn_reply *rep)
{
    struct dlock_error err;
    const char *found;
    size_t len;
    bool ours;

    if (be->cmd.auth_failed || rep->r->type == REDIS_REPLY_ERROR) {
        if (be->cmd.auth_failed)
            err = be->cmd.error;
        else
            redis_reply_error(be, &err, rep->r->str);
        /* A replica now, or no rights on this connection: the next renewal begins anew. */
        if (of_no_use(be, rep->r))
            close_refused(be, rep->r);
        redis_renew_unclear(be, &err);
        return;
    }
    if (redis_script_owned(rep->r, &ours, &found, &len) != 0) {
        dlock_fail(&err, DLOCK_EPROTO, 0, "%s: unexpected answer to a renewal", redis_where(be));
        redis_conn_close(&be->cmd);
        redis_renew_unclear(be, &err);
        return;
    }
    int64_t jump = redis_clock_now(be, redis_script_owned_at(rep->r), rep->sent);
    struct redis_proof p = {.what = ours ? PROOF_RENEWAL : PROOF_LOSS, .sent = rep->sent};
    if (!ours)
        say_found(be, &p.lost, found, len, jump);
    else if (jump != 0)
        redis_clock_warning(jump, redis_where(be), &events_add(&be->events, EV_NOTICE)->error);
    redis_prove(be, &p);
}

void redis_renew_timers(struct dlock_be *be, int64_t now)
{
    struct dlock_error err;

    if (now >= be->op_until) {
        no_answer(&err, be->spec, be->spec->op_timeout);
        redis_proof_missing(be, &err);
        redis_cluster_failed(be);
        redis_conn_close(&be->cmd);
        redis_renew_unclear(be, &err);
    }
}

/* -------------------------------------------------------------------- release */

static void end_release(struct dlock_be *be, enum dlock_how how, const struct dlock_error *err)
{
    struct dlock_event *ev = events_add(&be->events, EV_RELEASED);
    ev->how = how;
    if (err != NULL)
        ev->error = *err;
    /* What is unanswered would be taken for the answer to the next call. */
    if (be->cmd.ntags > 0 || how == DLOCK_REL_UNCLEAR)
        redis_conn_close(&be->cmd);
    be->doing = DO_NOTHING;
    be->granted = be->tried = be->queued = be->enqueue = be->leave_lost = false;
    be->op_until = be->rel_until = DLOCK_NEVER;
    redis_forget_stale(be, be->nstale);
    outage_over(&be->cmd_out);
}

/* Requests are served in order, so this goes out behind whatever is still unanswered and undoes that too. */
void redis_send_leave(struct dlock_be *be)
{
    redis_connect(be, &be->cmd, be->rel_until);
    redis_undo_stale(be);
    send_undo(be, T_LEAVE, be->value, be->queued ? be->id : "");
    redis_conn_flush(&be->cmd);
}

static void leave_now(struct dlock_be *be)
{
    be->cmd_out.retry_at = DLOCK_NEVER;
    redis_cluster_begin(be);
    redis_send_leave(be);
}

void redis_release(struct dlock_be *be, int64_t until)
{
    be->events.n = 0;
    redis_drop_listing(be);
    redis_wake_close(be);
    redis_sentinel_listen(be, DLOCK_NEVER);
    be->proof.what = PROOF_NOTHING;
    if (be->doing == DO_RELEASE) {
        be->rel_until = until;
        return;
    }
    /* While it waits for replicas it would serve nothing else. What that is about has been answered. */
    if (be->doing == DO_ASK || (redis_conn_is_open(&be->cmd) && redis_conn_waits(&be->cmd, T_WAIT)))
        redis_conn_close(&be->cmd);
    if (be->tried && !be->granted && !be->cmd.written) {
        redis_conn_close(
            &be->cmd); /* the try has never left: a value is used on one connection only */
        be->tried = false;
    }
    be->doing = DO_RELEASE;
    be->checks.due = false;
    be->rel_until = until;
    be->op_until = be->try_at = DLOCK_NEVER;
    be->leave_lost = false;
    outage_over(&be->cmd_out);
    if (be->value == NULL || !(be->granted || be->tried || be->queued || be->nstale > 0))
        end_release(be, DLOCK_REL_NOTHING, NULL);
    else
        leave_now(be);
}

void redis_leave_retry(struct dlock_be *be, const struct dlock_error *err)
{
    int64_t now = redis_now(be);
    if (now >= be->rel_until || err->code != DLOCK_EUNAVAIL)
        end_release(be, DLOCK_REL_UNCLEAR, err);
    else
        be->cmd_out.retry_at =
            dlock_min(be->rel_until, now + dlock_backoff_next(&be->cmd_out.pause, be->spec->env));
}

void redis_leave_answered(struct dlock_be *be, const struct redis_conn_reply *rep)
{
    const redisReply *r = rep->r;
    struct dlock_error err;
    const char *found;
    size_t len;
    bool ours;

    if (r->type == REDIS_REPLY_ERROR) {
        redis_reply_error(be, &err, r->str);
        if (be->cmd.auth_failed)
            err = be->cmd.error;
        if (of_no_use(be, r))
            close_refused(be, r);
        redis_leave_retry(be, &err);
    } else if (redis_script_owned(r, &ours, &found, &len) != 0) {
        dlock_fail(&err, DLOCK_EPROTO, 0, "%s: unexpected answer to a release", redis_where(be));
        end_release(be, DLOCK_REL_UNCLEAR, &err);
    } else if (be->nstale > 0) {
        /* The undo in front of it was refused: both again. */
        be->leave_lost = be->leave_lost || ours;
        dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: an earlier, unanswered try could not be undone",
                   redis_where(be));
        redis_leave_retry(be, &err);
    } else if (ours || (be->granted && be->leave_lost)) {
        end_release(be, DLOCK_REL_CLEAN, NULL);
    } else if (be->granted) {
        say_found(be, &err, found, len, redis_clock_now(be, redis_script_owned_at(r), rep->sent));
        end_release(be, DLOCK_REL_NOT_OURS, &err);
    } else {
        end_release(be, DLOCK_REL_NOTHING, NULL);
    }
}

void redis_release_timers(struct dlock_be *be, int64_t now)
{
    struct dlock_error err;

    if (now >= be->rel_until) {
        dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: no answer to the release", redis_where(be));
        end_release(be, DLOCK_REL_UNCLEAR, &err);
    } else if (now >= be->cmd_out.retry_at) {
        leave_now(be);
    }
}
