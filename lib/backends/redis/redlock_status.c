/*
 * redlock_status.c - the steps of a query, on all servers. The lock is held where a majority of the
 * servers names the same holder, or the same reader. Where fewer name it, but the silent servers
 * may, too, the lock is neither held nor free, and the read fails.
 *
 * A mark counts on a majority. Marks on fewer servers are taken back; the holder would ignore them.
 * A lock is freed on all servers that can be reached, and no majority is left to the holder. All
 * servers remove a run record and older records.
 */
#include "redlock_servers.h"

#include <string.h>

void redlock_rest(struct dlock_be *dlock_be)
{
    struct redlock_backend *be = redlock_of(dlock_be);
    for_each_server (be, s) {
        freeReplyObject(s->reply);
        s->reply = NULL;
    }
    be->status.part = LIST_HOLDERS;
    be->status.server = 0;
    be->status.at = be->status.nlisted = 0;
}

static void send_step(struct redlock_backend *be, struct redlock_server *s, bool undo)
{
    struct redis_script_args args;
    char by[DLOCK_BREAKER_SIZE];
    enum redis_script_op op = redis_script_step(&args, be->spec, be->status.order, by);
    if (op == SCRIPT_FORGET)
        op = SCRIPT_FORGET_VOTE;
    if (undo)
        args.how = "undo";
    redlock_send(be, s, KIND_STATUS, op, &args);
}

void redlock_step(struct dlock_be *dlock_be, const struct dlock_order *order)
{
    struct redlock_backend *be = redlock_of(dlock_be);
    struct dlock_error err;
    redlock_begin(be, OP_STATUS);
    be->status.order = order;
    be->until = order->until;
    if (redlock_check_peers(be, &err) != 0) {
        redlock_end(be, EV_FAILED)->error = err;
        return;
    }
    for_each_server (be, s)
        if (redlock_reach(be, s, be->until))
            send_step(be, s, false);
}

static void status_answered(struct redlock_backend *be, struct redlock_server *s,
                            struct redis_conn_reply *rep)
{
    struct redis_script_state state;
    enum redis_script_stepped what;
    if (be->op != OP_STATUS || rep->tag != REDLOCK_TAG(be->serial, KIND_STATUS))
        return;
    enum dlock_step step = be->status.order->what;
    if (s->node.cmd.auth_failed || rep->r->type == REDIS_REPLY_ERROR) {
        redlock_refused(be, s, rep->r);
    } else if ((step == STEP_READ ? redis_script_state(rep->r, &state)
                                  : redis_script_stepped(rep->r, &what)) != 0) {
        redlock_misread(s, step == STEP_MARK || step == STEP_FREE ? "a break" : "a query");
    } else if (step == STEP_READ) {
        s->answer = A_YES;
        s->reply = rep->r;
        rep->r = NULL;
    } else if (what == STEPPED_FOREIGN) {
        s->answer = A_FOREIGN;
        redis_script_no_mark(be->spec, &s->error);
    } else if (what == STEPPED_RECORD) {
        s->answer = A_FOREIGN;
        redlock_run_foreign(be, s, &s->error);
    } else {
        s->answer = what == STEPPED_DONE ? A_YES : A_GONE;
    }
}

/* ------------------------------------------------------------------- the run record */

static bool state_of(const struct redlock_server *s, struct redis_script_state *state)
{
    return s->reply && redis_script_state(s->reply, state) == 0;
}

static bool run_of(const struct redlock_server *s, struct dlock_run *run)
{
    struct redis_script_state state;
    return state_of(s, &state) && run_record_parse(state.run, state.run_len, state.now_ms, run);
}

/* The last run, as be->run. False: there is no record. */
static bool find_run(struct redlock_backend *be)
{
    struct dlock_run runs[REDLOCK_NODES];
    int n = 0;
    for_each_server (be, s)
        n += run_of(s, &runs[n]);
    const struct dlock_run *last = quorum_run(runs, n, be->quorum);
    if (last)
        be->run = *last;
    return last;
}

/* ------------------------------------------------------------------ holders, waiters */

/*
 * How many servers name holder at of this server, which is info then. 0: an earlier server names
 * the holder, too.
 */
static int named(const struct redlock_backend *be, const struct redlock_server *server, size_t at,
                 struct dlock_info *info)
{
    struct redis_script_state s, other;
    struct quorum_hold holds[REDLOCK_NODES], hold;
    struct dlock_info marked = {0};
    size_t len, n;
    int count = 0;
    const char *value = state_of(server, &s) ? redis_script_value_at(&s, at, &len) : NULL;
    for_each_server (be, o) {
        size_t holders = value && state_of(o, &other) ? redis_script_holders(&other) : 0;
        for (size_t h = 0; h < holders; h++) {
            const char *same = redis_script_value_at(&other, h, &n);
            if (!same || n != len || memcmp(same, value, len) != 0 ||
                !redis_script_holder_at(&other, h, info))
                continue;
            if (o < server)
                return 0;
            holds[count++] = (struct quorum_hold){info->left_ns, other.fence, info->broken};
            if (info->broken)
                marked = *info;
            break;
        }
    }
    if (count == 0)
        return 0;
    hold = quorum_hold(holds, count, be->quorum);
    if (hold.marked)
        *info = marked;
    info->broken = hold.marked; /* fewer marks break no hold */
    info->left_ns = hold.left_ns;
    info->fence = info->foreign ? 0 : hold.fence;
    return count;
}

static bool next_holder(struct redlock_backend *be, const struct redlock_server *server,
                        const struct redis_script_state *s, struct dlock_info *info)
{
    while (be->status.at < redis_script_holders(s))
        if (named(be, server, be->status.at++, info) >= be->quorum)
            return true;
    return false;
}

/*
 * The next waiter of this server, unless an earlier server has named the waiter. (Records differ: a
 * server may have missed the last tries.) Without a place: the queues of the servers may differ.
 */
static bool next_waiter(struct redlock_backend *be, const struct redis_script_state *s,
                        struct dlock_info *info)
{
    while (be->status.at < s->nwaiters) {
        const redisReply *w = s->waiters[be->status.at++];
        if (w->type != REDIS_REPLY_STRING ||
            !redis_script_waiter(w->str, (size_t)w->len, s->now_ms, info) ||
            info->silent != (be->status.part == LIST_SILENT))
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
bool redlock_next(struct dlock_be *dlock_be, struct dlock_info *info)
{
    struct redlock_backend *be = redlock_of(dlock_be);
    struct redis_script_state state;
    for (; be->status.part <= LIST_SILENT; be->status.part++, be->status.server = 0) {
        for (; be->status.server < be->n; be->status.server++, be->status.at = 0) {
            const struct redlock_server *s = &be->servers[be->status.server];
            if (state_of(s, &state) &&
                (be->status.part == LIST_HOLDERS ? next_holder(be, s, &state, info)
                                                 : next_waiter(be, &state, info)))
                return true;
        }
    }
    return false;
}

/* ----------------------------------------------------------------------- the answers */

/* No holder has a majority, but one may have: by the servers that have not answered. */
static bool is_unsure(const struct redlock_backend *be, struct dlock_error *err)
{
    struct redis_script_state state;
    struct dlock_info info;
    int most = 0, silent = 0;
    for_each_server (be, s) {
        size_t holders = state_of(s, &state) ? redis_script_holders(&state) : 0;
        silent += !s->reply;
        for (size_t at = 0; at < holders; at++)
            most = (int)dlock_max(most, named(be, s, at, &info));
    }
    if (most == 0 || most >= be->quorum || most + silent < be->quorum)
        return false;
    dlock_fail_lock(err, DLOCK_EUNAVAIL, 0, be->spec->uri,
                    "%d of %d servers have this holder, %d are needed: %s", most, be->n, be->quorum,
                    be->status.order->question->what == ASK_BREAK
                        ? "nothing was done"
                        : "the others must answer to tell whether the lock is held");
    return true;
}

/* A majority has answered, and is sure. */
static void was_read(struct redlock_backend *be)
{
    bool forgets = be->status.order->question->what == ASK_FORGET, found = find_run(be);
    struct redis_script_state state;
    struct dlock_run run;
    struct dlock_error err = {0};
    for_each_server (be, s) {
        if (!state_of(s, &state) || state.run_len == 0 || run_of(s, &run))
            continue;
        s->answer = A_FOREIGN;
        redlock_run_foreign(be, s, &s->error);
        if (err.code == 0) /* the first server's: the others' say the same */
            err = s->error;
    }
    /* "No record" needs a majority, too: foreign data may have replaced a record. */
    if (forgets && !found && redlock_count(be, A_YES) < be->quorum) {
        redlock_no_quorum(be, &redlock_end(be, EV_FAILED)->error);
        return;
    }
    struct dlock_event *ev = redlock_end(be, EV_READ);
    ev->run = found ? &be->run : NULL;
    if (!forgets)
        ev->error = err;
}

/* The servers have answered a step that changes something. */
static void conclude(struct redlock_backend *be)
{
    enum dlock_step step = be->status.order->what;
    int yes = redlock_count(be, A_YES), answered = yes + redlock_count(be, A_GONE);
    bool done = step == STEP_FREE ? yes > 0 && answered >= be->quorum : yes >= be->quorum;
    /* No majority has the mark. A server that is still asked may set the mark after the step. */
    for_each_server (be, s)
        if (step == STEP_MARK && !done && (s->answer == A_YES || s->answer == A_PENDING))
            send_step(be, s, true);
    /* A client that gets the vote of a remaining server finds the success, and spreads it. */
    if (step == STEP_FORGET && done && yes < be->n)
        dlock_fail_at(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EUNAVAIL, 0,
                      be->spec->uri->where,
                      "only %d of %d servers have removed the record, and a success that another "
                      "one has counts: forget it again when all can be reached",
                      yes, be->n);
    if (done || answered >= be->quorum)
        redlock_end(be, EV_STEPPED)->stepped = done;
    else if (step == STEP_MARK && redlock_count(be, A_FOREIGN) >= be->quorum)
        redis_script_no_mark(be->spec, &redlock_end(be, EV_FAILED)->error);
    else
        redlock_no_quorum(be, &redlock_end(be, EV_FAILED)->error);
}

static void status_step(struct redlock_backend *be, int64_t now)
{
    enum dlock_step step = be->status.order->what;
    int yes = redlock_count(be, A_YES), answered = yes + redlock_count(be, A_GONE);
    struct dlock_error err;
    if (step == STEP_MARK)
        answered += redlock_count(be, A_FOREIGN);
    bool pending = redlock_count(be, A_PENDING) > 0;
    if (pending && redlock_patient(be, answered, now))
        return;
    if (step != STEP_READ)
        conclude(be);
    else if (yes < be->quorum)
        redlock_no_quorum(be, &redlock_end(be, EV_FAILED)->error);
    else if (!is_unsure(be, &err))
        was_read(be);
    else if (!pending || now >= be->until) /* a missing answer that decides is waited for */
        redlock_end(be, EV_FAILED)->error = err;
}

const struct redlock_operation redlock_op_status = {
    .answered = status_answered,
    .step = status_step,
    .wake_at = redlock_wake_at,
};
