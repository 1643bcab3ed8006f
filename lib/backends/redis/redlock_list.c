/*
 * redlock_list.c - --list: each server sends a page of names (paging.h); then all servers are asked
 * for the status of each new name, and redlock_status.c decides as for --status. So a lock that
 * fewer servers than a majority have is free here, too. Then the next pages.
 *
 * A server that fails or stays silent is reported once, and not asked again.
 */
#include "paging.h"
#include "redlock_servers.h"
#include "seen.h"

#include <fnmatch.h>
#include <stdlib.h>

/* How long a server may delay the list once a majority has answered. */
#define LIST_PATIENCE (1000 * DLOCK_MSEC)

enum list_round { ROUND_PAGES, ROUND_STATUS };

struct redlock_list {
    enum list_round round;
    struct list_server {
        struct redis_paging paging;
        bool last; /* the server has sent its last page */
        bool out;
        int64_t hidden;
    } server[REDLOCK_NODES];
    struct redis_seen seen;
    char **names; /* of the last pages, without those of earlier pages; malloc'ed */
    size_t n, cap, at;
    bool no_memory;
    struct redis_script script; /* of names[at - 1] */
    bool ready;                 /* ROUND_STATUS is over, and the lock is handed out next, or was */
    bool decided;
    int64_t unread;         /* locks whose status a majority refuses */
    struct dlock_error why; /* with unread */
    struct dlock_info holder;
    struct dlock_entry entry;
};

static struct list_server *part_of(const struct redlock_backend *be, const struct redlock_server *s)
{
    return &be->list->server[s - be->servers];
}

static void drop_names(struct redlock_list *l)
{
    while (l->n > 0)
        free(l->names[--l->n]);
    l->at = 0;
}

void redlock_list_drop(struct redlock_backend *be)
{
    struct redlock_list *l = be->list;
    if (!l)
        return;
    /* An error of a late reply would be explained by l->script. */
    for_each_server (be, s)
        if (s->answer == A_PENDING)
            redlock_drop(be, s);
    drop_names(l);
    free(l->names);
    redis_seen_done(&l->seen);
    redis_script_done(&l->script);
    free(l);
    be->list = NULL;
}

bool redlock_list_ready(const struct redlock_backend *be)
{
    return be->list && be->list->ready;
}

static void fail(struct redlock_backend *be, const struct dlock_error *err)
{
    redlock_list_drop(be);
    redlock_end(be, EV_FAILED)->error = *err;
}

static void fail_no_memory(struct redlock_backend *be)
{
    struct dlock_error err;
    dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
    fail(be, &err);
}

/* --------------------------------------------------------------------- rounds */

static void ask_all(struct redlock_backend *be, enum list_round round)
{
    struct redlock_list *l = be->list;
    redlock_begin(be, OP_LIST);
    be->until = be->began + be->spec->connect_timeout;
    l->round = round;
    for_each_server (be, s) {
        const struct list_server *part = part_of(be, s);
        int tag = REDLOCK_TAG(be->serial, KIND_LIST);
        if (part->out) {
            s->answer = A_FAILED;
            s->error = s->last;
        } else if (round == ROUND_PAGES && part->last) {
            s->answer = A_YES;
        } else if (redlock_reach(be, s, be->until)) {
            if (round == ROUND_PAGES)
                redis_paging_send(&part->paging, &be->script, &s->node.cmd, tag,
                                  be->status.question->all);
            else
                (void)redis_script_send(&l->script, &s->node.cmd, tag, SCRIPT_STATUS,
                                        &(struct redis_script_args){.value = NULL});
            redis_conn_flush(&s->node.cmd);
        }
    }
}

static void end_list(struct redlock_backend *be)
{
    struct redlock_list *l = be->list;
    int64_t hidden = 0;
    struct dlock_error note;
    for (int i = 0; i < be->n; i++)
        hidden = dlock_max(hidden, l->server[i].hidden);
    if (hidden + l->unread > 0) {
        dlock_fail_at(&note, DLOCK_EPERM, 0, be->spec->uri->where, "%lld locks are not listed: %s",
                      (long long)(hidden + l->unread),
                      l->unread > 0 ? l->why.msg : "the user has no right to read them");
        note.code = 0;
        redlock_notice(be, &note);
    }
    redlock_list_drop(be);
    redlock_end(be, EV_DONE);
}

/* Ask for the status of the next name, or for the next pages, or end. */
static void go_on(struct redlock_backend *be)
{
    struct redlock_list *l = be->list;
    bool more = false;
    for (int i = 0; i < be->n; i++)
        more |= !l->server[i].out && !l->server[i].last;
    if (l->at < l->n) {
        redis_script_done(&l->script);
        if (redis_script_init(&l->script, l->names[l->at++], atoi(be->script.db)) != 0)
            fail_no_memory(be);
        else
            ask_all(be, ROUND_STATUS);
    } else if (more) {
        drop_names(l);
        ask_all(be, ROUND_PAGES);
    } else {
        end_list(be);
    }
}

void redlock_list(struct redlock_backend *be)
{
    struct redlock_list *l = be->list = calloc(1, sizeof(*l));
    struct dlock_error err;
    redlock_begin(be, OP_LIST);
    if (!l) {
        fail_no_memory(be);
    } else if (redlock_check_peers(be, &err) != 0) {
        fail(be, &err);
    } else {
        for (int i = 0; i < be->n; i++)
            redis_paging_start(&l->server[i].paging);
        dlock_fail_at(&err, 0, 0, be->spec->uri->where,
                      "locks that dlock has not taken are not listed");
        redlock_notice(be, &err);
        go_on(be);
    }
}

/* -------------------------------------------------------------------- answers */

/* False: out of memory. */
static bool add_name(struct redlock_list *l, const char *name)
{
    if (l->n == l->cap) {
        size_t cap = l->cap > 0 ? 2 * l->cap : 64;
        char **more = realloc(l->names, cap * sizeof(*more));
        if (!more)
            return false;
        l->names = more;
        l->cap = cap;
    }
    l->names[l->n] = strdup(name);
    return l->names[l->n] && ++l->n;
}

static void take_page(struct redlock_backend *be, struct redlock_server *s, const redisReply *r)
{
    struct redlock_list *l = be->list;
    struct list_server *part = part_of(be, s);
    struct redis_script_page page;
    struct dlock_entry entry;
    struct dlock_info info;
    if (redis_paging_take(&part->paging, r, &page) != 0) {
        redlock_misread(s, "a list");
        s->last = s->error;
        return;
    }
    s->answer = A_YES;
    part->last = page.last;
    part->hidden += page.hidden;
    for (size_t i = 0; i < page.nlocks && !l->no_memory; i++) {
        /* The core drops other names, but their status would be asked for first. */
        if (!redis_script_listed(page.locks[i], &entry, &info) ||
            fnmatch(be->spec->uri->name, entry.name, 0) != 0)
            continue;
        enum redis_seen_add seen = redis_seen_add(&l->seen, entry.name);
        l->no_memory = seen == SEEN_NO_MEMORY || (seen == SEEN_NEW && !add_name(l, entry.name));
    }
}

static void list_answered(struct redlock_backend *be, struct redlock_server *s,
                          struct redis_conn_reply *rep)
{
    struct redis_script_state state;
    bool refused = rep->r->type == REDIS_REPLY_ERROR;
    if (be->op != OP_LIST || rep->tag != REDLOCK_TAG(be->serial, KIND_LIST) || be->list->ready)
        return;
    if (s->node.cmd.auth_failed || (refused && be->list->round == ROUND_PAGES)) {
        redlock_refused(be, s, rep->r);
    } else if (refused) { /* this lock's keys may be the reason: the server stays */
        s->answer = A_REFUSED;
        redis_conn_reply_error(&s->error, &s->node.cmd, rep->r->str);
    } else if (be->list->round == ROUND_PAGES) {
        take_page(be, s, rep->r);
    } else if (redis_script_state(rep->r, &state) != 0) {
        redlock_misread(s, "a query");
    } else {
        s->answer = A_YES;
        s->reply = rep->r;
        rep->r = NULL;
    }
}

/* May the round still wait for the servers that have not answered? */
static bool waits(struct redlock_backend *be, int64_t now)
{
    int answered = redlock_count(be, A_YES) + redlock_count(be, A_REFUSED);
    if (redlock_count(be, A_PENDING) == 0)
        return false;
    if (answered >= be->quorum && be->patient_until == DLOCK_NEVER)
        be->patient_until = now + LIST_PATIENCE;
    return now < dlock_min(be->until, be->patient_until);
}

static void list_step(struct redlock_backend *be, int64_t now)
{
    struct redlock_list *l = be->list;
    struct dlock_error err;
    int usable = 0;
    if (l->ready || waits(be, now))
        return;
    for_each_server (be, s) {
        struct list_server *part = part_of(be, s);
        if (s->answer == A_PENDING)
            redlock_silent(be, s);
        if (s->answer == A_FAILED || (s->answer == A_REFUSED && l->round == ROUND_PAGES))
            part->out = true;
        if (part->out)
            redlock_report_down(be, s);
        usable += !part->out;
    }
    if (l->no_memory) {
        fail_no_memory(be);
    } else if (usable < be->quorum) {
        redlock_no_quorum(be, &err);
        fail(be, &err);
    } else if (l->round == ROUND_PAGES) {
        events_add(&be->events, EV_BACK); /* there may be many keys, and no lock */
        go_on(be);
    } else if (redlock_count(be, A_YES) >= be->quorum) {
        l->ready = true;
    } else {
        redlock_no_quorum(be, &l->why);
        l->unread++;
        go_on(be);
    }
}

const struct redlock_operation redlock_op_list = {
    .answered = list_answered,
    .step = list_step,
    .wake_at = redlock_wake_at,
};

/* The lock's entry, from the replies. */
static void decide(struct redlock_backend *be)
{
    struct redlock_list *l = be->list;
    struct dlock_info info;
    l->entry = (struct dlock_entry){.name = l->names[l->at - 1]};
    while (redlock_next((struct dlock_be *)be, &info)) {
        if (info.waiter)
            l->entry.waiters++;
        else if (l->entry.holders++ == 0)
            l->holder = info;
    }
    if (l->entry.holders > 1)
        l->holder.left_ns = -1;
    if (l->entry.holders > 0)
        l->entry.holder = &l->holder;
}

int redlock_list_next(struct redlock_backend *be, struct dlock_event *ev)
{
    struct redlock_list *l = be->list;
    if (!l->ready)
        return 0;
    if (!l->decided) {
        l->decided = true;
        *ev = (struct dlock_event){.type = EV_ENTRY, .entry = &l->entry};
        decide(be);
        return 1;
    }
    l->ready = l->decided = false;
    go_on(be);
    return events_take(&be->events, ev);
}
