/*
 * list.c - --list: the locks of a server that are held or waited for, page by page (paging.h). In a
 * cluster each master that serves slots is asked in turn.
 *
 * A lock is found by the keys that dlock keeps beside NAME: the fence counter, which lives for a
 * day after the grant or the last refresh by a renewal, the queue, and the zset of shared holders.
 * So the lock of another program is not found.
 */
#include "operation.h"
#include "paging.h"
#include "seen.h"

#include <stdlib.h>

enum list_step { LIST_MODE, LIST_NODES, LIST_PAGE };

struct redis_list {
    enum list_step step;         /* of the question under way */
    struct redis_named *masters; /* of a cluster, without those that were asked */
    int nmasters;
    struct redis_paging paging;
    redisReply *reply; /* handed out lock by lock; NULL: none */
    struct redis_script_page page;
    size_t at;
    int64_t hidden;
    struct redis_seen seen;
    struct dlock_entry entry;
};

void redis_list_drop(struct redis_backend *be)
{
    if (!be->list)
        return;
    if (be->list->reply)
        freeReplyObject(be->list->reply);
    redis_seen_done(&be->list->seen);
    free(be->list->masters);
    free(be->list);
    be->list = NULL;
}

bool redis_list_ready(const struct redis_backend *be)
{
    return be->list && be->list->reply;
}

static void fail(struct redis_backend *be, const struct dlock_error *err)
{
    redis_list_drop(be);
    redis_end(be, EV_FAILED)->error = *err;
}

static void send_question(struct redis_backend *be)
{
    struct redis_conn *cmd = &be->node.cmd;
    struct redis_list *l = be->list;
    be->out.retry_at = DLOCK_NEVER;
    redis_route_connect(&be->route, cmd, be->until);
    if (l->step == LIST_MODE)
        (void)redis_conn_send(cmd, T_LIST, 2, (const char *const[]){"HELLO", "2"});
    else if (l->step == LIST_NODES)
        (void)redis_conn_send(cmd, T_LIST, 2, (const char *const[]){"CLUSTER", "NODES"});
    else
        redis_paging_send(&l->paging, &be->script, cmd, T_LIST, be->status.question->all);
    redis_conn_flush(cmd);
}

/* The next question of the list. */
static void ask(struct redis_backend *be, enum list_step step)
{
    be->until = spec_now(be->spec) + be->spec->connect_timeout;
    be->refused.code = 0;
    be->list->step = step;
    send_question(be);
}

void redis_list(struct redis_backend *be)
{
    struct dlock_error err;
    redis_begin(be, &redis_op_list);
    be->list = calloc(1, sizeof(*be->list));
    if (!be->list) {
        dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
        fail(be, &err);
        return;
    }
    redis_paging_start(&be->list->paging);
    struct dlock_error *note = &events_add(&be->events, EV_NOTICE)->error;
    dlock_fail_at(note, DLOCK_EUSAGE, 0, redis_where(be),
                  "locks that dlock has not taken are not listed");
    note->code = 0;
    ask(be, be->route.sentinel ? LIST_PAGE : LIST_MODE);
}

/* This server's keys are listed. False: each server was asked. */
static bool next_master(struct redis_backend *be)
{
    struct redis_list *l = be->list;
    if (l->nmasters == 0)
        return false;
    redis_cluster_visit(&be->route, &l->masters[--l->nmasters]);
    redis_paging_start(&l->paging);
    ask(be, LIST_PAGE);
    return true;
}

/* The answer to CLUSTER NODES. False: err says why. */
static bool take_nodes(struct redis_backend *be, const redisReply *r, struct dlock_error *err)
{
    struct redis_list *l = be->list;
    bool ours = false;
    int n = DLOCK_EPROTO;
    if (r->type == REDIS_REPLY_STRING)
        n = redis_cluster_masters(&be->route, r->str, &ours, &l->masters);
    l->nmasters = n > 0 ? n : 0;
    if (n < 0) {
        dlock_fail_at(err, n, 0, redis_where(be), "unexpected answer to CLUSTER NODES");
        return false;
    }
    if (ours) {
        ask(be, LIST_PAGE);
    } else if (!next_master(be)) {
        dlock_fail_at(err, DLOCK_EUNUSABLE, 0, redis_where(be),
                      "no node of the cluster has a slot");
        return false;
    }
    return true;
}

static void failed(struct redis_backend *be, const struct dlock_error *err)
{
    redis_node_close(&be->node);
    if (redis_sentinel_worth_retry(&be->route, err, be->until))
        redis_retry_later(be, err);
    else
        fail(be, err);
}

static void answered(struct redis_backend *be, struct redis_conn_reply *rep)
{
    struct redis_list *l = be->list;
    redisReply *r = rep->r;
    struct dlock_error err;
    if (be->node.cmd.auth_failed) {
        err = be->node.cmd.error;
    } else if (l->step == LIST_MODE) {
        ask(be, redis_cluster_mode(r) ? LIST_NODES : LIST_PAGE);
        return;
    } else if (r->type == REDIS_REPLY_ERROR) {
        redis_cluster_error(&be->route, &err, r->str);
        if (redis_conn_classify(r->str) == RE_TRANSIENT && err.code == DLOCK_EUNAVAIL) {
            redis_retry_later(be, &err);
            return;
        }
    } else if (l->step == LIST_NODES) {
        if (take_nodes(be, r, &err))
            return;
    } else if (redis_paging_take(&l->paging, r, &l->page) != 0) {
        dlock_fail_at(&err, DLOCK_EPROTO, 0, redis_where(be), "unexpected answer to a list");
    } else {
        be->until = DLOCK_NEVER;
        events_add(&be->events, EV_BACK); /* there may be many keys, and no lock */
        l->reply = r;
        rep->r = NULL;
        l->at = 0;
        l->hidden += l->page.hidden;
        return;
    }
    fail(be, &err);
}

const struct redis_operation redis_op_list = {
    .tag = T_LIST,
    .again = send_question,
    .answered = answered,
    .failed = failed,
    .unanswered = fail,
};

/* The page is handed out: ask for the next page, or end. */
static int next_page(struct redis_backend *be, struct dlock_event *ev)
{
    struct redis_list *l = be->list;
    bool last = l->page.last;
    freeReplyObject(l->reply);
    l->reply = NULL;
    if (!last) {
        ask(be, LIST_PAGE);
        return 0;
    }
    if (next_master(be))
        return 0;
    if (l->hidden > 0) {
        struct dlock_error *note = &events_add(&be->events, EV_NOTICE)->error;
        dlock_fail_at(note, DLOCK_EPERM, 0, redis_where(be),
                      "%lld locks are not listed: the user has no right to read them",
                      (long long)l->hidden);
        note->code = 0;
    }
    redis_list_drop(be);
    redis_end(be, EV_DONE);
    return events_take(&be->events, ev);
}

int redis_list_next(struct redis_backend *be, struct dlock_event *ev)
{
    struct redis_list *l = be->list;
    struct dlock_error err;
    while (l->reply && l->at < l->page.nlocks) {
        if (!redis_script_listed(l->page.locks[l->at++], &l->entry, &be->info))
            continue;
        switch (redis_seen_add(&l->seen, l->entry.name)) {
        case SEEN_NEW:
            *ev = (struct dlock_event){.type = EV_ENTRY, .entry = &l->entry};
            return 1;
        case SEEN_BEFORE:
            break;
        case SEEN_NO_MEMORY:
            dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
            fail(be, &err);
            return events_take(&be->events, ev);
        }
    }
    return l->reply ? next_page(be, ev) : 0;
}
