/*
 * redlock_break.c - --break: all servers mark the hold (break.c), and the mark counts on a
 * majority. Marks on fewer servers are taken back; the holder would ignore them. By force the lock
 * is freed on all servers that can be reached, and no majority is left to the holder.
 */
#include "break.h"
#include "redlock_servers.h"

static void send_break(struct redlock_backend *be, struct redlock_server *s, bool undo)
{
    struct redis_script_args args;
    char by[DLOCK_BREAKER_SIZE];
    redis_break_args(be->spec, be->status.question, &args, by);
    if (undo)
        args.how = "undo";
    redlock_send(be, s, K_BREAK, SCRIPT_BREAK, &args);
}

void redlock_break(struct redlock_backend *be)
{
    struct dlock_error err = {0};
    redlock_begin(be, OP_BREAK);
    be->until = be->began + be->spec->connect_timeout;
    if (redlock_check_peers(be, &err) != 0) {
        redlock_end(be, EV_FAILED)->error = err;
        return;
    }
    for_each_server (be, s) {
        if (!redlock_reach(be, s, be->until))
            continue;
        s->answer = A_PENDING;
        send_break(be, s, false);
    }
}

static void break_answered(struct redlock_backend *be, struct redlock_server *s,
                           struct redis_conn_reply *rep)
{
    static const enum redlock_answer answers[] = {
        [RB_MARKED] = A_YES,   [RB_ALREADY] = A_YES, [RB_FREED] = A_GONE,  [RB_FREE] = A_GONE,
        [RB_FOREIGN] = A_TYPE, [RB_UNDONE] = A_GONE, [RB_CHANGED] = A_BUSY};
    enum redis_script_broke what;
    if (be->op != OP_BREAK || rep->tag != REDLOCK_TAG(be->serial, K_BREAK))
        return;
    if (s->node.cmd.auth_failed || rep->r->type == REDIS_REPLY_ERROR) {
        redlock_refused(be, s, rep->r);
    } else if (redis_script_broke(rep->r, &what, &s->info) != 0) {
        redlock_misread(s, "a break");
    } else {
        s->answer = answers[what];
        if (what == RB_FOREIGN)
            redis_break_foreign(be->spec, &s->error);
    }
}

/* No majority has the mark. A server that is still asked may set the mark after the question. */
static void take_back(struct redlock_backend *be)
{
    for_each_server (be, s)
        if (s->answer == A_YES || s->answer == A_PENDING)
            send_break(be, s, true);
}

static void fail_break(struct redlock_backend *be)
{
    struct dlock_error err;
    int told = redlock_count(be, A_YES) + redlock_count(be, A_GONE) + redlock_count(be, A_BUSY);
    if (redlock_count(be, A_TYPE) >= be->quorum)
        redis_break_foreign(be->spec, &err);
    else if (told >= be->quorum)
        dlock_fail_lock(&err, DLOCK_EUNAVAIL, 0, be->spec->uri,
                        "%d of %d servers have this holder, %d are needed: nothing was done",
                        redlock_count(be, A_YES), be->n, be->quorum);
    else
        redlock_no_quorum(be, &err);
    redlock_end(be, EV_FAILED)->error = err;
}

static void break_step(struct redlock_backend *be, int64_t now)
{
    int marked = redlock_count(be, A_YES), gone = redlock_count(be, A_GONE);
    int changed = redlock_count(be, A_BUSY);
    int told = marked + gone + changed + redlock_count(be, A_TYPE);
    if (redlock_count(be, A_PENDING) > 0 && now < be->until && redlock_patient(be, told, now))
        return;
    if (marked >= be->quorum || gone >= be->quorum) {
        redlock_end(be, EV_DONE)->broken = marked >= be->quorum;
        return;
    }
    take_back(be);
    if (changed < be->quorum) {
        fail_break(be);
        return;
    }
    struct dlock_event *ev = redlock_end(be, EV_BUSY);
    for_each_server (be, s)
        if (s->answer == A_BUSY)
            ev->info = &s->info;
}

const struct redlock_operation redlock_op_break = {
    .answered = break_answered,
    .step = break_step,
    .wake_at = redlock_wake_at,
};
