/*
 * redlock_status.c - status: held is what a majority of the servers says.
 */
#include "redlock.h"

#include <stdlib.h>
#include <string.h>

void redlock_drop_listing(struct dlock_be *be)
{
    for (int i = 0; i < be->n; i++) {
        if (be->replies[i] != NULL)
            freeReplyObject(be->replies[i]);
        be->replies[i] = NULL;
    }
    be->listing = false;
}

static void ask_failed(struct dlock_be *be, const struct dlock_error *err)
{
    be->doing = DO_NOTHING;
    be->op_until = DLOCK_NEVER;
    redlock_drop_listing(be);
    events_add(&be->events, EV_FAILED)->error = *err;
}

void redlock_ask(struct dlock_be *be, enum dlock_ask what, const char *arg)
{
    struct dlock_error err;
    (void)arg;
    be->doing = DO_ASK;
    redlock_begin(be);
    be->op_until = be->began + be->spec->connect_timeout;
    if (what != ASK_STATUS)
        dlock_fail(&err, DLOCK_EUSAGE, 0, "not yet supported for redlock");
    else if (redlock_check_peers(be, &err) == 0)
        err.code = 0;
    if (err.code != 0) {
        ask_failed(be, &err);
        return;
    }
    for (int i = 0; i < be->n; i++) {
        struct redlock_node *n = &be->nodes[i];
        if (!redlock_reach(be, n, be->op_until))
            continue;
        n->answer = A_PENDING;
        (void)redis_script_status(&be->script, &n->cmd, REDLOCK_TAG(be->op, K_ASK));
        redis_conn_flush(&n->cmd);
    }
}

/* True: the reply is kept. */
bool redlock_ask_answered(struct dlock_be *be, struct redlock_node *n, redisReply *r)
{
    struct redis_script_state s;
    if (n->cmd.auth_failed || r->type == REDIS_REPLY_ERROR) {
        redlock_node_refused(be, n, r);
        return false;
    }
    if (redis_script_state(r, &s) != 0) {
        n->answer = A_REFUSED;
        dlock_fail(&n->error, DLOCK_EPROTO, 0, "%s: unexpected answer to a query", n->where);
        return false;
    }
    n->answer = A_YES;
    be->replies[n - be->nodes] = r;
    return true;
}

/* How many servers have the same value as i; *fence and *left_ms: the least of theirs, and what a majority has left. */
static int same_holder(const struct dlock_be *be, int i, uint64_t *fence, int64_t *left_ms)
{
    struct redis_script_state a, b;
    int64_t left[REDLOCK_NODES] = {0}; /* for gcc 14, which does not see that a majority sets it */
    int same = 0;

    if (be->replies[i] == NULL || redis_script_state(be->replies[i], &a) != 0 || !a.held)
        return 0;
    *fence = a.fence;
    for (int k = 0; k < be->n; k++) {
        if (be->replies[k] == NULL || redis_script_state(be->replies[k], &b) != 0 || !b.held ||
            a.len != b.len || memcmp(a.value, b.value, a.len) != 0)
            continue;
        /* Failed rounds of others may have raised single counters; nobody's is below the token. */
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

/* The holder whom a majority names. */
static void choose(struct dlock_be *be)
{
    uint64_t fence = 0;
    int64_t left = -1;

    be->list_held = NULL;
    for (int i = 0; i < be->n && be->list_held == NULL; i++) {
        if (same_holder(be, i, &fence, &left) >= be->quorum) {
            be->list_held = be->replies[i];
            be->list_fence = fence;
            be->list_left_ms = left;
        }
    }
    be->listing = true;
    be->list_node = -1;
    be->list_at = be->nlisted = 0;
}

void redlock_ask_step(struct dlock_be *be, int64_t now)
{
    int yes = redlock_count(be, A_YES), pending = redlock_count(be, A_PENDING);
    struct dlock_error err;

    if (be->listing)
        return;
    if (yes >= be->quorum && (pending == 0 || !redlock_patient(be, yes, now))) {
        be->op_until = DLOCK_NEVER;
        choose(be);
    } else if (yes < be->quorum && (pending == 0 || now >= be->op_until)) {
        redlock_no_quorum(be, &err);
        ask_failed(be, &err);
    }
}

/* Has this waiter been named by an earlier server? */
static bool listed_before(struct dlock_be *be, const struct dlock_info *w)
{
    for (size_t i = 0; i < be->nlisted; i++)
        if (be->listed[i].pid == w->pid && be->listed[i].since_ms == w->since_ms &&
            be->listed[i].host == redlock_digest(w->host, strlen(w->host)))
            return true;
    if (be->nlisted == DLOCK_LEN(be->listed))
        return true; /* long enough */
    be->listed[be->nlisted++] = (struct redlock_listed){
        .pid = w->pid, .since_ms = w->since_ms, .host = redlock_digest(w->host, strlen(w->host))};
    return false;
}

/* The next entry: the holder, then the waiters of all servers, each once. False: that was all. */
static bool next_listed(struct dlock_be *be)
{
    struct redis_script_state s;

    if (be->list_node < 0) {
        be->list_node = 0;
        if (be->list_held != NULL) {
            (void)redis_script_state(be->list_held, &s);
            redis_script_holder(s.value, s.len, &be->info);
            be->info.left_ns = be->list_left_ms < 0 ? DLOCK_NEVER : be->list_left_ms * DLOCK_MSEC;
            be->info.fence = be->info.foreign ? 0 : be->list_fence;
            return true;
        }
    }
    for (; be->list_node < be->n; be->list_node++, be->list_at = 0) {
        const redisReply *r = be->replies[be->list_node];
        if (r == NULL || redis_script_state(r, &s) != 0)
            continue;
        while (be->list_at < s.nwaiters) {
            const redisReply *w = s.waiters[be->list_at++];
            /* No place: whose turn it is, is not decided. */
            if (w->type == REDIS_REPLY_STRING &&
                redis_script_waiter(w->str, (size_t)w->len, s.now_ms, &be->info) &&
                !listed_before(be, &be->info))
                return true;
        }
    }
    return false;
}

int redlock_give_listed(struct dlock_be *be, struct dlock_event *ev)
{
    if (next_listed(be)) {
        *ev = (struct dlock_event){.type = EV_INFO, .info = &be->info};
        return 1;
    }
    redlock_drop_listing(be);
    be->doing = DO_NOTHING;
    *ev = (struct dlock_event){.type = EV_DONE};
    return 1;
}
