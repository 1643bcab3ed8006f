/*
 * redlock_status.c - status: the lock is held where a majority of the servers names the same holder.
 */
#include "redlock_servers.h"

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

void redlock_status(struct redlock_backend *be, enum dlock_ask what)
{
    struct dlock_error err = {0};

    redlock_begin(be, OP_STATUS);
    be->until = be->began + be->spec->connect_timeout;
    if (what != ASK_STATUS)
        dlock_fail(&err, DLOCK_EUSAGE, 0, "not yet supported for redlock");
    else
        (void)redlock_check_peers(be, &err);
    if (err.code != 0) {
        fail(be, &err);
        return;
    }
    for (int i = 0; i < be->n; i++) {
        struct redlock_server *s = &be->servers[i];
        if (!redlock_reach(be, s, be->until))
            continue;
        s->answer = A_PENDING;
        (void)redis_script_status(&be->script, &s->node.cmd, REDLOCK_TAG(be->serial, K_STATUS));
        redis_conn_flush(&s->node.cmd);
    }
}

static void answered(struct redlock_backend *be, struct redlock_server *s,
                     struct redis_conn_reply *rep)
{
    struct redis_script_state state;

    if (be->op != OP_STATUS || be->status.listing || rep->tag != REDLOCK_TAG(be->serial, K_STATUS))
        return;
    if (s->node.cmd.auth_failed || rep->r->type == REDIS_REPLY_ERROR) {
        redlock_refused(be, s, rep->r);
    } else if (redis_script_state(rep->r, &state) != 0) {
        redlock_misread(s, "a query");
    } else {
        s->answer = A_YES;
        be->status.replies[s - be->servers] = rep->r;
        rep->r = NULL;
    }
}

/* How many servers have the same value as i; *fence: their lowest; *left_ms: what a majority of them has left. */
static int same_holder(const struct redlock_backend *be, int i, uint64_t *fence, int64_t *left_ms)
{
    struct redis_script_state a, b;
    int64_t left[REDLOCK_NODES] = {0}; /* for gcc 14, which does not see that a majority sets it */
    int same = 0;

    if (!be->status.replies[i] || redis_script_state(be->status.replies[i], &a) != 0 || !a.held)
        return 0;
    *fence = a.fence;
    for (int k = 0; k < be->n; k++) {
        if (!be->status.replies[k] || redis_script_state(be->status.replies[k], &b) != 0 ||
            !b.held || a.len != b.len || memcmp(a.value, b.value, a.len) != 0)
            continue;
        /* Failed rounds of other clients may have raised single counters; none is below the token. */
        *fence = b.fence < *fence ? b.fence : *fence;
        int64_t t = b.left_ms < 0 ? INT64_MAX : b.left_ms;
        int at = same++;
        for (; at > 0 && left[at - 1] < t; at--)
            left[at] = left[at - 1];
        left[at] = t;
    }
    if (same >= be->quorum)
        *left_ms = left[be->quorum - 1] == INT64_MAX ? -1 : left[be->quorum - 1];
    return same;
}

/* The holder that a majority names. */
static void choose(struct redlock_backend *be)
{
    uint64_t fence = 0;
    int64_t left = -1;

    be->status.held = NULL;
    for (int i = 0; i < be->n && !be->status.held; i++) {
        if (same_holder(be, i, &fence, &left) >= be->quorum) {
            be->status.held = be->status.replies[i];
            be->status.fence = fence;
            be->status.left_ms = left;
        }
    }
    be->status.listing = true;
    be->status.server = -1;
    be->status.at = be->status.nlisted = 0;
}

static void step(struct redlock_backend *be, int64_t now)
{
    int yes = redlock_count(be, A_YES), pending = redlock_count(be, A_PENDING);
    struct dlock_error err;

    if (be->status.listing)
        return;
    if (yes >= be->quorum && (pending == 0 || !redlock_patient(be, yes, now))) {
        be->until = DLOCK_NEVER;
        choose(be);
    } else if (yes < be->quorum && (pending == 0 || now >= be->until)) {
        redlock_no_quorum(be, &err);
        fail(be, &err);
    }
}

const struct redlock_operation redlock_op_status = {
    .answered = answered,
    .step = step,
    .wake_at = redlock_wake_at,
};

/* Has an earlier server named this waiter? (Its records differ: a server may have missed its last tries.) */
static bool listed_before(struct redlock_backend *be, const char *waiter)
{
    uint64_t id = redlock_digest(waiter, redis_script_waiter_id(waiter));
    for (size_t i = 0; i < be->status.nlisted; i++)
        if (be->status.listed[i] == id)
            return true;
    if (be->status.nlisted == DLOCK_LEN(be->status.listed))
        return true; /* the list is long enough */
    be->status.listed[be->status.nlisted++] = id;
    return false;
}

/* The next entry: the holder, then the waiters of all servers, each once. False: that was all. */
static bool next_entry(struct redlock_backend *be)
{
    struct redis_script_state s;

    if (be->status.server < 0) {
        be->status.server = 0;
        if (be->status.held) {
            (void)redis_script_state(be->status.held, &s);
            redis_script_holder(s.value, s.len, &be->info);
            be->info.left_ns =
                be->status.left_ms < 0 ? DLOCK_NEVER : be->status.left_ms * DLOCK_MSEC;
            be->info.fence = be->info.foreign ? 0 : be->status.fence;
            return true;
        }
    }
    for (; be->status.server < be->n; be->status.server++, be->status.at = 0) {
        const redisReply *r = be->status.replies[be->status.server];
        if (!r || redis_script_state(r, &s) != 0)
            continue;
        while (be->status.at < s.nwaiters) {
            const redisReply *w = s.waiters[be->status.at++];
            /* Without a place: the queues of the servers may differ. */
            if (w->type == REDIS_REPLY_STRING &&
                redis_script_waiter(w->str, (size_t)w->len, s.now_ms, &be->info) &&
                !listed_before(be, w->str))
                return true;
        }
    }
    return false;
}

int redlock_status_next(struct redlock_backend *be, struct dlock_event *ev)
{
    if (next_entry(be)) {
        *ev = (struct dlock_event){.type = EV_INFO, .info = &be->info};
        return 1;
    }
    redlock_drop_listing(be);
    be->op = OP_NONE;
    *ev = (struct dlock_event){.type = EV_DONE};
    return 1;
}
