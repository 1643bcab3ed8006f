/*
 * redlock_status.c - status: the lock is held where a majority of the servers names the same
 * holder, or the same reader. --forget asks the same first, for the newest run record; then all
 * servers remove this record and older records.
 */
#include "redlock_servers.h"

#include <stdio.h>
#include <string.h>

void redlock_drop_listing(struct redlock_backend *be)
{
    for (int i = 0; i < be->n; i++) {
        if (be->status.replies[i])
            freeReplyObject(be->status.replies[i]);
        be->status.replies[i] = NULL;
    }
    be->status.listing = false;
}

static void fail(struct redlock_backend *be, const struct dlock_error *err)
{
    redlock_drop_listing(be);
    redlock_end(be, EV_FAILED)->error = *err;
}

void redlock_status(struct redlock_backend *be)
{
    struct dlock_error err;
    be->status.forgetting = false;
    redlock_begin(be, OP_STATUS);
    be->until = be->began + be->spec->connect_timeout;
    if (redlock_check_peers(be, &err) != 0) {
        fail(be, &err);
        return;
    }
    for_each_server (be, s) {
        if (!redlock_reach(be, s, be->until))
            continue;
        s->answer = A_PENDING;
        redlock_send(be, s, K_STATUS, SCRIPT_STATUS, &(struct redis_script_args){.value = NULL});
    }
}

static void status_answered(struct redlock_backend *be, struct redlock_server *s,
                            struct redis_conn_reply *rep)
{
    struct redis_script_state state;
    enum redis_script_forgot what;
    const char *type;
    bool forgetting = be->status.forgetting;
    if (be->op != OP_STATUS || be->status.listing ||
        rep->tag != REDLOCK_TAG(be->serial, forgetting ? K_FORGET : K_STATUS))
        return;
    if (s->node.cmd.auth_failed || rep->r->type == REDIS_REPLY_ERROR) {
        redlock_refused(be, s, rep->r);
    } else if ((forgetting ? redis_script_forgot(rep->r, &what, &type)
                           : redis_script_state(rep->r, &state)) != 0) {
        redlock_misread(s, "a query");
    } else if (!forgetting) {
        s->answer = A_YES;
        be->status.replies[s - be->servers] = rep->r;
        rep->r = NULL;
    } else if (what == RF_RECORD) {
        s->answer = A_TYPE;
        redlock_run_foreign(be, s, &s->error);
    } else {
        s->answer = what == RF_DONE ? A_YES : what == RF_BUSY ? A_BUSY : A_GONE;
    }
}

static bool state_of(const struct redlock_backend *be, int i, struct redis_script_state *s)
{
    return be->status.replies[i] && redis_script_state(be->status.replies[i], s) == 0;
}

static bool run_of(const struct redlock_backend *be, int i, struct dlock_run *run)
{
    struct redis_script_state s;
    return state_of(be, i, &s) && run_record_parse(s.run, s.run_len, s.now_ms, run);
}

/* The last run, as be->run. False: there is no record. */
static bool find_run(struct redlock_backend *be)
{
    struct dlock_run run, newest[2]; /* of the runs that have ended, and that still run */
    bool found[2] = {false, false};
    int recorded = 0;
    for (int i = 0; i < be->n; i++) {
        if (!run_of(be, i, &run))
            continue;
        int running = run.state == DLOCK_RUN_RUNNING;
        if (!found[running] || run.fence > newest[running].fence)
            newest[running] = run;
        found[running] = true;
    }
    /* Fewer servers than a majority may have recorded a run that was never granted the lock. */
    for (int i = 0; i < be->n && found[1]; i++)
        recorded += run_of(be, i, &run) && strcmp(run.token, newest[1].token) == 0;
    if (found[1] && (!found[0] || (recorded >= be->quorum && newest[1].fence > newest[0].fence)))
        be->run = newest[1];
    else if (found[0])
        be->run = newest[0];
    return found[0] || found[1];
}

void redlock_status_first(struct redlock_backend *be)
{
    be->status.part = LIST_HOLDERS;
    be->status.server = 0;
    be->status.at = be->status.nlisted = 0;
}

static void start_listing(struct redlock_backend *be)
{
    struct redis_script_state s;
    struct dlock_run run;
    struct dlock_error err;
    be->until = DLOCK_NEVER;
    be->status.listing = true;
    redlock_status_first(be);
    for (int i = 0; i < be->n; i++)
        if (state_of(be, i, &s) && s.run_len > 0 && !run_of(be, i, &run)) {
            redlock_run_foreign(be, &be->servers[i], &err);
            redlock_notice(be, &err); /* the first server's: the others' say the same */
            break;
        }
    if (find_run(be))
        events_add(&be->events, EV_RUN)->run = &be->run;
}

/* ------------------------------------------------------------------------- forget */

static void fail_changed(struct redlock_backend *be)
{
    struct dlock_error err;
    dlock_fail_lock(&err, DLOCK_EBUSY, 0, be->spec->uri,
                    "the record has changed: it is that of another run now");
    fail(be, &err);
}

/* A majority has told its records: remove the newest record from all servers. */
static void start_forget(struct redlock_backend *be)
{
    struct redis_script_state state;
    struct dlock_error err;
    bool found = find_run(be);
    int holding = 0;
    if (found && strcmp(be->run.token, be->status.question->token) != 0) {
        fail_changed(be);
        return;
    }
    for (int i = 0; i < be->n; i++)
        holding += state_of(be, i, &state) && state.held && state.len > DLOCK_TOKEN_LEN &&
                   memcmp(state.value, be->run.token, DLOCK_TOKEN_LEN) == 0;
    bool goes_on = be->run.state == DLOCK_RUN_RUNNING && holding >= be->quorum;
    /* "No record" needs a majority, too: foreign data may have replaced a record. */
    for (int i = 0; i < be->n && !found; i++) {
        if (!state_of(be, i, &state) || state.run_len == 0)
            continue;
        be->servers[i].answer = A_TYPE;
        redlock_run_foreign(be, &be->servers[i], &be->servers[i].error);
    }
    if (!found && redlock_count(be, A_YES) < be->quorum) {
        redlock_no_quorum(be, &err);
        fail(be, &err);
        return;
    }
    if (!found || goes_on) {
        redlock_drop_listing(be);
        redlock_end(be, found ? EV_BUSY : EV_DONE);
        return;
    }
    redlock_drop_listing(be);
    be->status.forgetting = true;
    be->patient_until = DLOCK_NEVER;
    for_each_server (be, s) {
        if (s->answer != A_YES && s->answer != A_PENDING)
            continue;
        s->answer = A_PENDING;
        redlock_send(be, s, K_FORGET, SCRIPT_FORGET_VOTE,
                     &(struct redis_script_args){.token = be->run.token, .fence = be->run.fence});
    }
}

static void step_forget(struct redlock_backend *be, int64_t now)
{
    int yes = redlock_count(be, A_YES), pending = redlock_count(be, A_PENDING);
    int answered = yes + redlock_count(be, A_BUSY) + redlock_count(be, A_GONE);
    struct dlock_error err;
    if (pending > 0 && now < be->until && redlock_patient(be, answered, now))
        return;
    if (yes >= be->quorum) {
        /* A client that gets the vote of a remaining server finds the success, and spreads it. */
        if (yes < be->n)
            dlock_fail_at(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EUNAVAIL, 0,
                          be->spec->uri->where,
                          "only %d of %d servers have removed the record, and a success that "
                          "another one has counts: forget it again when all can be reached",
                          yes, be->n);
        redlock_end(be, EV_DONE);
    } else if (answered >= be->quorum) {
        fail_changed(be);
    } else {
        redlock_no_quorum(be, &err);
        fail(be, &err);
    }
}

static void status_step(struct redlock_backend *be, int64_t now)
{
    int yes = redlock_count(be, A_YES), pending = redlock_count(be, A_PENDING);
    struct dlock_error err;
    if (be->status.listing)
        return;
    if (be->status.forgetting) {
        step_forget(be, now);
    } else if (yes >= be->quorum && (pending == 0 || !redlock_patient(be, yes, now))) {
        if (be->status.question->what == ASK_FORGET)
            start_forget(be);
        else
            start_listing(be);
    } else if (yes < be->quorum && (pending == 0 || now >= be->until)) {
        redlock_no_quorum(be, &err);
        fail(be, &err);
    }
}

const struct redlock_operation redlock_op_status = {
    .answered = status_answered,
    .step = status_step,
    .wake_at = redlock_wake_at,
};

/*
 * Holder at of server i, as be->info, if a majority of the servers names this holder. The fence is
 * the lowest of their counters: failed rounds raise single counters, and no counter is below the
 * token. False: too few name the holder, or an earlier server has listed the holder.
 */
static bool holder_of_majority(struct redlock_backend *be, int i, size_t at)
{
    struct redis_script_state s, other;
    int64_t left_ns[REDLOCK_NODES];
    uint64_t fence = UINT64_MAX;
    size_t len, n;
    int named = 0, marks = 0;
    struct dlock_info marked;
    const char *value = state_of(be, i, &s) ? redis_script_value_at(&s, at, &len) : NULL;
    for (int k = 0; k < be->n && value; k++) {
        size_t holders = state_of(be, k, &other) ? redis_script_holders(&other) : 0;
        for (size_t h = 0; h < holders; h++) {
            const char *same = redis_script_value_at(&other, h, &n);
            if (!same || n != len || memcmp(same, value, len) != 0 ||
                !redis_script_holder_at(&other, h, &be->info))
                continue;
            if (k < i)
                return false;
            fence = other.fence < fence ? other.fence : fence;
            left_ns[named++] = be->info.left_ns;
            if (be->info.broken) {
                marked = be->info;
                marks++;
            }
            break;
        }
    }
    if (named < be->quorum)
        return false;
    /* Fewer marks break no hold. */
    if (marks >= be->quorum)
        be->info = marked;
    else
        be->info.broken = false;
    be->info.left_ns = redlock_reached(left_ns, named, be->quorum);
    be->info.fence = be->info.foreign ? 0 : fence;
    return true;
}

static bool next_holder(struct redlock_backend *be, const struct redis_script_state *s)
{
    while (be->status.at < redis_script_holders(s))
        if (holder_of_majority(be, be->status.server, be->status.at++))
            return true;
    return false;
}

/*
 * The next waiter of this server, unless an earlier server has named the waiter. (Records differ: a
 * server may have missed the last tries.) Without a place: the queues of the servers may differ.
 */
static bool next_waiter(struct redlock_backend *be, const struct redis_script_state *s)
{
    while (be->status.at < s->nwaiters) {
        const redisReply *w = s->waiters[be->status.at++];
        if (w->type != REDIS_REPLY_STRING ||
            !redis_script_waiter(w->str, (size_t)w->len, s->now_ms, &be->info) ||
            be->info.silent != (be->status.part == LIST_SILENT))
            continue;
        uint64_t id = redlock_digest(w->str, redis_script_waiter_id(w->str));
        size_t i = 0, n = be->status.nlisted;
        while (i < n && be->status.listed[i] != id)
            i++;
        if (i < n || n == DLOCK_LEN(be->status.listed)) /* listed, or the list is long enough */
            continue;
        be->status.listed[be->status.nlisted++] = id;
        return true;
    }
    return false;
}

/* The holders, then the waiters of all servers, each once; the silent ones of every server last. */
bool redlock_status_entry(struct redlock_backend *be)
{
    struct redis_script_state s;
    for (; be->status.part <= LIST_SILENT; be->status.part++, be->status.server = 0)
        for (; be->status.server < be->n; be->status.server++, be->status.at = 0)
            if (state_of(be, be->status.server, &s) &&
                (be->status.part == LIST_HOLDERS ? next_holder(be, &s) : next_waiter(be, &s)))
                return true;
    return false;
}

int redlock_status_next(struct redlock_backend *be, struct dlock_event *ev)
{
    *ev = (struct dlock_event){.type = EV_INFO, .info = &be->info};
    if (redlock_status_entry(be))
        return 1;
    redlock_drop_listing(be);
    be->op = OP_NONE;
    *ev = (struct dlock_event){.type = EV_DONE};
    return 1;
}
