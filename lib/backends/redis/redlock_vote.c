/*
 * redlock_vote.c - acquire: rounds of votes, until one has a majority.
 *
 * A round asks all servers at once. With a majority of votes the fencing token is the highest of the
 * voters' counters, and a second round raises their counters to it: whoever wins next has a majority, too,
 * so at least one of its voters knows this token, and gives a higher one. Without the second round tokens go
 * backwards where majorities overlap in a server that had counted less.
 *
 * A round without a majority is given back everywhere before anything else happens. Nobody's word: the
 * pauses are random, so that two who have split the votes do not do so for ever.
 */
#include "redlock.h"

#include <stdlib.h>
#include <string.h>

#define UNDO_TIME                                                                                  \
    (50 * DLOCK_MSEC) /* how long the next round waits for one that does not confirm */
#define HEAR_ALL (200 * DLOCK_MSEC) /* for the message of a failure */
#define SPLITS 10 /* rounds that one who does not wait tries while nobody has the lock */

static void fail_acquire(struct dlock_be *be, const struct dlock_error *err)
{
    redlock_wait_close(be);
    be->doing = DO_NOTHING;
    events_add(&be->events, EV_FAILED)->error = *err;
}

/* A fresh token and value. False: the acquire has failed. */
static bool new_value(struct dlock_be *be)
{
    struct dlock_error err;
    int rc = dlock_token_new(be->spec->env, be->token);
    free(be->value);
    be->value = rc == 0 ? redis_script_value(be->token, be->spec->who) : NULL;
    if (be->value != NULL)
        return true;
    if (rc != 0)
        dlock_fail(&err, DLOCK_EOS, -rc, "no random numbers: %s", strerror(-rc));
    else
        dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
    fail_acquire(be, &err);
    return false;
}

/* Has it not answered all of what it was sent before? (AUTH is in front on a new connection.) */
static bool behind(const struct redlock_node *n)
{
    for (int i = 0; i < n->cmd.ntags; i++)
        if (n->cmd.tags[i].tag >= 0)
            return true;
    return false;
}

static void ask_vote(struct dlock_be *be, struct redlock_node *n)
{
    n->freed = n->touched = false;
    n->from = 0;
    if (!redlock_reach(be, n, be->op_until))
        return;
    if (behind(n)) { /* it may be stopped: what it has not answered would pile up */
        n->answer = A_LATE;
        return;
    }
    bool in_line = be->id[0] != '\0' && n->wake_state == WAKE_READY;
    redlock_undo_stale(be, n);
    redlock_track(be, n);
    n->answer = A_PENDING;
    n->touched = true;
    n->queued = n->queued || in_line;
    (void)redis_script_vote(&be->script, &n->cmd, REDLOCK_TAG(be->op, K_VOTE), be->value,
                            in_line ? be->id : "", be->spec->ttl, be->restart_grace);
    redis_conn_flush(&n->cmd);
}

static void start_round(struct dlock_be *be)
{
    redlock_begin(be);
    be->stage = ST_VOTE;
    be->try_at = be->not_before = be->told_at = DLOCK_NEVER;
    be->twice = false;
    be->fence = 0;
    be->holder = NULL;
    be->why.code = 0;
    if (!be->first)
        be->op_until = be->began + be->spec->op_timeout;
    if (!new_value(be))
        return;
    for (int i = 0; i < be->n; i++)
        ask_vote(be, &be->nodes[i]);
}

void redlock_acquire(struct dlock_be *be, bool wait)
{
    struct dlock_error err;

    be->doing = DO_ACQUIRE;
    be->wait = wait;
    be->first = true;
    be->granted = be->lost = be->told_grace = false;
    be->splits = be->told_place = be->place = 0;
    be->told_holder = 0;
    be->id[0] = '\0';
    be->split_pause = (struct dlock_backoff){
        .base = 10 * DLOCK_MSEC, .max = (wait ? 400 : 80) * DLOCK_MSEC, .cur = 10 * DLOCK_MSEC};
    outage_over(&be->out);
    be->op_until = redlock_now(be) + be->spec->connect_timeout;
    if (redlock_check_peers(be, &err) != 0)
        fail_acquire(be, &err);
    else
        start_round(be);
}

/* ---------------------------------------------------------------------- answers */

static void ask_raise(struct dlock_be *be, struct redlock_node *n)
{
    n->raise_out = true;
    (void)redis_script_keep(&be->script, &n->cmd, REDLOCK_TAG(be->op, K_RAISE), be->value,
                            be->spec->ttl, be->fence, false, 0);
    redis_conn_flush(&n->cmd);
}

static void voted(struct dlock_be *be, struct redlock_node *n, const struct redis_script_tried *t)
{
    n->left_ms = t->left_ms;
    n->place = t->place;
    n->holder = 0;
    switch (t->status) {
    case RS_GRANTED:
        n->answer = A_YES;
        n->fence = t->fence;
        n->queued = false;
        break;
    case RS_GRACE:
        n->answer = A_GRACE;
        break;
    case RS_TYPE:
        n->answer = A_TYPE;
        char type[32];
        dlock_clean_text(type, sizeof(type), t->holder, t->holder_len);
        dlock_fail(&n->error, DLOCK_EDATA, 0,
                   "%s: the key '%s' is a %s, not a lock of dlock or SET NX; use another name",
                   n->where, be->spec->uri->name, type);
        break;
    case RS_TWICE:
        n->answer = A_REFUSED;
        n->error = n->last;
        be->twice = true;
        be->why = n->last;
        break;
    case RS_BUSY:
    case RS_CLAIM:
        n->answer = A_BUSY;
        n->holder = redlock_digest(t->holder, t->holder_len);
        redis_script_holder(t->holder, t->holder_len, &n->info);
        n->info.left_ns = t->left_ms < 0 ? DLOCK_NEVER : t->left_ms * DLOCK_MSEC;
        break;
    }
    if (n->answer != A_YES)
        n->touched = false;
}

/* It must never be counted, whenever that is found out. */
static void same_server(struct dlock_be *be, struct redlock_node *n, bool current)
{
    n->same = true;
    n->from = 0;
    n->touched = false;
    dlock_fail(
        &n->last, DLOCK_EUSAGE, 0,
        "%s: %s is the same server as another one of the list, and has no vote: a redlock needs "
        "different servers",
        be->spec->uri->where, n->where);
    if (!current && be->events.n <= EVENTS_MAX / 2)
        events_add(&be->events, EV_NOTICE)->error = n->last;
}

void redlock_vote_answered(struct dlock_be *be, struct redlock_node *n,
                           const struct redis_conn_reply *rep)
{
    struct redis_script_tried t;
    bool current = rep->tag == REDLOCK_TAG(be->op, K_VOTE) && be->doing == DO_ACQUIRE;

    if (n->cmd.auth_failed || rep->r->type == REDIS_REPLY_ERROR) {
        /* Refused AUTH: it may have been served as a default user without a password. */
        n->touched = rep->r->type != REDIS_REPLY_ERROR;
        if (current)
            redlock_node_refused(be, n, rep->r);
        return;
    }
    if (redis_script_tried(rep->r, &t) != 0) {
        if (!current)
            return;
        n->answer = A_REFUSED;
        dlock_fail(&n->error, DLOCK_EPROTO, 0, "%s: unexpected answer to the lock script",
                   n->where);
        redlock_drop(be, n);
        return;
    }
    redlock_node_well(n);
    if (t.status == RS_TWICE)
        same_server(be, n, current);
    if (current && be->stage != ST_UNDO) {
        voted(be, n, &t);
        if (n->answer == A_YES)
            n->from = rep->sent;
        if (n->answer == A_YES && be->stage == ST_RAISE)
            ask_raise(be, n);
    } else if (be->granted && t.status == RS_GRANTED &&
               rep->tag == REDLOCK_TAG(be->vote_op, K_VOTE)) {
        n->from = dlock_max(n->from, rep->sent); /* one more, although it was not needed */
    }
}

void redlock_raise_answered(struct dlock_be *be, struct redlock_node *n,
                            const struct redis_conn_reply *rep)
{
    const char *found;
    size_t len;
    bool ours;

    if (rep->tag != REDLOCK_TAG(be->op, K_RAISE) || be->doing != DO_ACQUIRE ||
        be->stage != ST_RAISE)
        return;
    if (rep->r->type == REDIS_REPLY_ERROR) {
        redlock_node_refused(be, n, rep->r);
    } else if (redis_script_owned(rep->r, &ours, &found, &len) != 0) {
        n->answer = A_REFUSED;
        dlock_fail(&n->error, DLOCK_EPROTO, 0, "%s: unexpected answer to a renewal", n->where);
    } else if (ours) {
        n->raised = true;
        n->from = rep->sent;
    } else {
        n->answer = A_GONE;
        n->from = 0;
    }
}

/* --------------------------------------------------------------------- outcomes */

static void granted(struct dlock_be *be)
{
    be->granted = be->proven = true;
    be->check = be->check == CHECK_NOT ? CHECK_DUE : be->check;
    be->vote_op = be->op;
    be->doing = DO_NOTHING;
    outage_over(&be->out);
    for (int i = 0; i < be->n; i++) {
        struct redlock_node *n = &be->nodes[i];
        /* "-" is nobody's value: only our place in the line is given up. */
        if (n->queued && redis_conn_is_open(&n->cmd)) {
            (void)redis_script_leave(&be->script, &n->cmd, REDLOCK_TAG(be->op, K_UNDO), "-",
                                     be->id);
            redis_conn_flush(&n->cmd);
        }
        n->queued = false;
        /* A vote that a lost connection took with it is one of the lock now: the release undoes it, and its answer counts. */
        redlock_forget(n, be->value);
    }
    redlock_wait_close(be);
    struct dlock_event *ev = events_add(&be->events, EV_GRANTED);
    ev->from = redlock_from(be);
    ev->ttl = be->spec->ttl;
    ev->fence = be->fence;
    memcpy(ev->token, be->token, sizeof(ev->token));
}

static void start_raise(struct dlock_be *be)
{
    be->stage = ST_RAISE;
    int64_t until = redlock_now(be) + be->spec->op_timeout;
    be->op_until = be->first ? dlock_min(be->op_until, until) : until;
    for (int i = 0; i < be->n; i++)
        if (be->nodes[i].answer == A_YES && be->nodes[i].fence > be->fence)
            be->fence = be->nodes[i].fence;
    for (int i = 0; i < be->n; i++)
        if (be->nodes[i].answer == A_YES)
            ask_raise(be, &be->nodes[i]);
}

/* The holder whom most servers name. */
static void find_holder(struct dlock_be *be)
{
    int most = 0;
    for (int i = 0; i < be->n; i++) {
        int same = 0;
        if (be->nodes[i].answer != A_BUSY)
            continue;
        for (int k = 0; k < be->n; k++)
            same += be->nodes[k].answer == A_BUSY && be->nodes[k].holder == be->nodes[i].holder;
        if (same > most) {
            most = same;
            be->holder = &be->nodes[i];
        }
    }
    be->definite = most >= be->quorum;
}

/* Did some refuse for a reason that passes, such as loading their data? */
static bool passing_trouble(const struct dlock_be *be, int usable)
{
    for (int i = 0; i < be->n; i++)
        usable += be->nodes[i].answer == A_REFUSED && redis_conn_is_open(&be->nodes[i].cmd);
    return usable >= be->quorum;
}

static enum dlock_ev judge(struct dlock_be *be)
{
    int yes = redlock_count(be, A_YES) + redlock_count(be, A_GONE);
    int busy = redlock_count(be, A_BUSY), usable = yes + busy + redlock_count(be, A_GRACE);

    find_holder(be);
    if (be->twice)
        return EV_FAILED;
    if (usable < be->quorum) {
        redlock_no_quorum(be, &be->why);
        return be->first && !passing_trouble(be, usable) ? EV_FAILED : EV_WAITING;
    }
    be->first = false;
    be->split = !be->definite && yes + busy >= be->quorum;
    outage_over(&be->out);
    if (be->wait)
        return EV_WAITING;
    /* A majority that waits for its restart grace counts as held. Split votes do not. */
    return be->split && be->splits < SPLITS ? EV_WAITING : EV_BUSY;
}

static void round_failed(struct dlock_be *be)
{
    int64_t now = redlock_now(be);
    be->outcome = judge(be);
    if (be->outcome == EV_FAILED) {
        fail_acquire(be, &be->why); /* the release that follows undoes it */
        return;
    }
    be->op_until = dlock_max(be->op_until, now + UNDO_TIME);
    be->patient_until =
        now + dlock_max(UNDO_TIME, dlock_min(now - be->began, be->spec->op_timeout));
    be->stage = ST_UNDO;
    for (int i = 0; i < be->n; i++) {
        struct redlock_node *n = &be->nodes[i];
        if (!n->touched || !redis_conn_is_open(&n->cmd))
            continue;
        if (!n->cmd.written) { /* the vote has never left */
            redis_conn_close(&n->cmd);
            n->touched = false;
            continue;
        }
        n->undo_out = true;
        (void)redis_script_leave(&be->script, &n->cmd, REDLOCK_TAG(be->op, K_UNDO), be->value, "");
        redis_conn_flush(&n->cmd);
    }
}

/* ------------------------------------------------------------------------ pauses */

static void tell_waiting(struct dlock_be *be)
{
    uint64_t holder = be->holder != NULL ? be->holder->holder : 0;
    if (be->told_place != 0 && holder == be->told_holder)
        return;
    be->told_holder = holder;
    be->told_place = 1;
    struct dlock_event *ev = events_add(&be->events, EV_WAITING);
    ev->info = be->holder != NULL ? &be->holder->info : NULL;
}

static void tell_grace(struct dlock_be *be)
{
    int grace = redlock_count(be, A_GRACE);
    char left[32];
    int64_t ms = 0;

    if (be->told_grace || grace == 0 || be->n - grace >= be->quorum)
        return;
    be->told_grace = true;
    for (int i = 0; i < be->n; i++)
        if (be->nodes[i].answer == A_GRACE)
            ms = dlock_max(ms, be->nodes[i].left_ms);
    dlock_fail(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EBUSY, 0,
               "%s: %d of %d servers were started a short while ago and do not vote for another %s "
               "(restart-grace)",
               be->spec->uri->where, grace, be->n,
               dlock_format_duration(ms * DLOCK_MSEC, left, sizeof(left)));
}

static void pause_round(struct dlock_be *be)
{
    int64_t now = redlock_now(be);

    be->stage = ST_PAUSE;
    be->not_before = now;
    if (be->why.code != 0 && be->first) {
        be->not_before = be->try_at = now + dlock_backoff_next(&be->split_pause, be->spec->env);
        if (be->try_at >= be->op_until)
            fail_acquire(be, &be->why);
        return;
    }
    if (be->why.code != 0) {
        if (!outage_goes_on(&be->out, be->spec, &be->events, &be->why))
            fail_acquire(be, &be->why);
        be->not_before = be->try_at = be->out.retry_at;
        return;
    }
    if (be->wait) {
        tell_grace(be);
        tell_waiting(be);
        redlock_wait_start(be);
    }
    if (be->doing != DO_ACQUIRE)
        return;
    be->try_at = dlock_min(redlock_next_try(be), be->told_at);
    if (be->split) {
        be->splits++;
        be->not_before = now + dlock_backoff_next(&be->split_pause, be->spec->env);
        be->try_at = be->not_before;
    } else {
        be->splits = 0;
        dlock_backoff_reset(&be->split_pause);
    }
}

static void undone(struct dlock_be *be)
{
    for (int i = 0; i < be->n; i++) {
        struct redlock_node *n = &be->nodes[i];
        if (n->undo_out && redis_conn_is_open(&n->cmd) &&
            redis_conn_waits(&n->cmd, REDLOCK_TAG(be->op, K_UNDO)))
            redlock_remember(n, be->value);
        n->freed = n->freed || n->answer == A_YES;
        n->touched = false;
        n->from = 0;
    }
    if (be->outcome == EV_WAITING) {
        pause_round(be);
    } else if (be->outcome == EV_BUSY) {
        tell_grace(be);
        be->doing = DO_NOTHING;
        events_add(&be->events, EV_BUSY)->info = be->holder != NULL ? &be->holder->info : NULL;
    } else {
        fail_acquire(be, &be->why);
    }
}

/* ----------------------------------------------------------------------- stepping */

/* Has the round no chance any more? Where nobody could hold, all are heard first, for the message. */
static bool hopeless(struct dlock_be *be, int yes, int pending, int64_t now)
{
    int usable = yes + redlock_count(be, A_BUSY) + redlock_count(be, A_GRACE);
    bool patient = redlock_patient(be, usable, now);
    if (be->twice)
        return true;
    if (yes + pending < be->quorum && (usable >= be->quorum || pending == 0))
        return true;
    return !patient || (yes + pending < be->quorum && now >= be->began + HEAR_ALL);
}

static void step_raise(struct dlock_be *be, int64_t now)
{
    int raised = 0, open = redlock_count(be, A_PENDING);
    for (int i = 0; i < be->n; i++) {
        const struct redlock_node *n = &be->nodes[i];
        raised += n->raised;
        open += n->answer == A_YES && n->raise_out && !n->raised &&
                redis_conn_waits(&n->cmd, REDLOCK_TAG(be->op, K_RAISE));
    }
    if (be->twice)
        round_failed(be);
    else if (raised >= be->quorum)
        granted(be);
    else if (raised + open < be->quorum || now >= be->op_until)
        round_failed(be);
}

static bool undo_waits(const struct dlock_be *be)
{
    for (int i = 0; i < be->n; i++)
        if (be->nodes[i].undo_out && redis_conn_is_open(&be->nodes[i].cmd) &&
            redis_conn_waits(&be->nodes[i].cmd, REDLOCK_TAG(be->op, K_UNDO)))
            return true;
    return false;
}

void redlock_round_step(struct dlock_be *be, int64_t now)
{
    int yes = redlock_count(be, A_YES);

    if (be->stage == ST_PAUSE && now >= be->try_at && now >= be->not_before)
        start_round(be);
    else if (be->stage == ST_VOTE && yes >= be->quorum && !be->twice)
        start_raise(be);
    else if (be->stage == ST_VOTE && hopeless(be, yes, redlock_count(be, A_PENDING), now))
        round_failed(be);
    else if (be->stage == ST_RAISE)
        step_raise(be, now);
    if (be->doing == DO_ACQUIRE && be->stage == ST_UNDO &&
        (!undo_waits(be) || now >= be->patient_until))
        undone(be);
}

int64_t redlock_round_wake_at(const struct dlock_be *be)
{
    int64_t at = dlock_min(be->op_until, be->patient_until);
    switch (be->stage) {
    case ST_VOTE:
        return be->stepped < be->began + HEAR_ALL ? dlock_min(at, be->began + HEAR_ALL) : at;
    case ST_RAISE:
        return be->op_until;
    case ST_UNDO:
        return be->patient_until;
    case ST_PAUSE:
        break;
    }
    return dlock_max(be->try_at, be->not_before);
}
