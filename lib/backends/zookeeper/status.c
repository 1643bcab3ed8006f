/*
 * status.c - the steps of status, break and forget (ask.h). STEP_READ reads the lock's children in
 * order, the data of each node, and the run record. Of a hold to break, the path, the data and the
 * version are kept. The other steps mark the holder's node, delete the node, or remove the run
 * record with its index node. Each names the version that was read.
 *
 * The mark stands in the node's data. The holder writes its node as a heartbeat, with the version
 * that it knows: the mark refuses the next heartbeat, and the holder reads the node. So a hold
 * without a mark costs no request. A dlock from before marks would overwrite the mark, and tells so
 * by the missing ZK_MARKS.
 */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The data of further nodes is not read; the nodes are counted. */
#define ASK_MAX 1000

/* What STEP_READ has read, besides the run record in be->run.found. */
struct zk_reading {
    int left;                  /* outstanding gets of nodes and of the run record */
    struct dlock_error record; /* why the record cannot be used; code 0: it can */
    struct {                   /* ASK_BREAK: the node of the hold */
        const char *path;      /* of a node below; NULL: the hold was not found */
        char data[ZK_DATA_MAX - ZK_MARK_MAX + 1];
        int len; /* more than data has room for: too long for a mark */
        int32_t version;
    } hold;
    int n, next; /* how many nodes; the next to be handed out */
    struct zk_found {
        struct dlock_info info;
        char *path;      /* NULL: its data is not asked for */
        unsigned serial; /* of the outstanding get; 0: none */
        bool gone;
    } nodes[];
};

void zk_step_drop(struct zk_backend *be)
{
    struct zk_reading *r = be->reading;
    if (!r)
        return;
    for (int i = 0; i < r->n; i++)
        free(r->nodes[i].path);
    free(r);
    be->reading = NULL;
}

static enum dlock_ask question(const struct zk_backend *be)
{
    return be->order->question->what;
}

/* ----------------------------------------------------------------------- read */

static enum zk_verdict answer_read(struct zk_reading *r)
{
    return --r->left == 0 ? ZK_DONE : ZK_GOES_ON;
}

/* A request has failed: ask for everything again if the connection was at fault. */
static enum zk_verdict read_failed(struct zk_backend *be, int rc)
{
    return zk_failed(be, rc, "cannot read the queue");
}

static enum zk_verdict node_read(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_reading *r = be->reading;
    int i = 0;
    while (r && i < r->n && r->nodes[i].serial != m->serial)
        i++;
    if (!r || i == r->n) /* from an earlier attempt, or cancelled */
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return read_failed(be, m->rc);
    struct dlock_info *info = &r->nodes[i].info, was = *info;
    r->nodes[i].gone = m->rc == ZNONODE;
    if (m->rc == ZOK)
        zk_read_info(was.command, was.waiter, m->data, m->len, &m->stat, info);
    info->place = was.place;
    if (m->rc == ZOK && question(be) == ASK_BREAK && !was.waiter &&
        dlock_same_hold(info, be->order->question->holder)) {
        r->hold.path = r->nodes[i].path;
        r->hold.version = m->stat.version;
        r->hold.len = m->len;
        if (m->len < (int)sizeof(r->hold.data))
            memcpy(r->hold.data, m->data, (size_t)m->len + 1);
    }
    r->nodes[i].serial = 0;
    return answer_read(r);
}

/* Ask at once for the data of all nodes in line; of the holders alone, if no waiter matters. */
static enum zk_verdict line_listed(struct zk_backend *be, const struct zk_msg *m)
{
    int n = 0;
    if (be->op != ZK_OP_STEP || m->serial != be->list_serial)
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return read_failed(be, m->rc);
    struct zk_child *line = zk_line(m->names, m->nnames, &n);
    struct zk_reading *r = be->reading =
        line ? calloc(1, sizeof(*r) + (size_t)n * sizeof(*r->nodes)) : NULL;
    bool asked = r;
    if (asked) {
        r->n = n;
        r->left = 1 + (question(be) != ASK_BREAK);
    }
    for (int i = 0; asked && i < n; i++) {
        struct dlock_info *info = &r->nodes[i].info;
        *info = (struct dlock_info){.left_ns = -1,
                                    .waited_ms = -1,
                                    .foreign = true,
                                    .mode = line[i].mode,
                                    .slots = line[i].slots,
                                    .waiter = line[i].place > 0,
                                    .place = line[i].place};
        if (i >= ASK_MAX || (info->waiter && question(be) != ASK_STATUS))
            continue;
        asked = asprintf(&r->nodes[i].path, "%s/%s", be->lock.parent, line[i].name) >= 0;
        if (!asked) {
            r->nodes[i].path = NULL;
            break;
        }
        /* info keeps the name, which tells the program, until the data comes. */
        dlock_clean_text(info->command, sizeof(info->command), line[i].name, strlen(line[i].name));
        r->nodes[i].serial = zk_ask(be, ZK_GET, node_read, r->nodes[i].path);
        r->left++;
    }
    free(line);
    return asked ? answer_read(r) : read_failed(be, ZK_NOMEMORY);
}

/* Comes after the line. Holders and waiters are read also where the record cannot be used. */
static enum zk_verdict record_read(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_reading *r = be->reading;
    if (be->op != ZK_OP_STEP || m->serial != be->run.serial || !r)
        return ZK_GOES_ON;
    if (zk_transient(m->rc) || m->rc == ZK_NOMEMORY)
        return read_failed(be, m->rc);
    /* Our wall clock: a query writes nothing, so the server has told no time. */
    const char *foreign = zk_take_record(be, m, dlock_wall() / DLOCK_MSEC);
    if (foreign)
        zk_foreign_run(be, foreign);
    else if (m->rc != ZOK && m->rc != ZNONODE)
        zk_error(be, m->rc, "cannot read the run record");
    if (be->err.code != 0)
        r->record = be->err;
    return answer_read(r);
}

static enum zk_verdict ask_all(struct zk_backend *be)
{
    zk_step_drop(be);
    be->run.found.there = false;
    zk_ask_list(be, line_listed);
    if (question(be) != ASK_BREAK)
        zk_ask_record(be, record_read);
    return ZK_GOES_ON;
}

bool zk_step_next(struct zk_backend *be, struct dlock_info *info)
{
    struct zk_reading *r = be->reading;
    while (r && r->next < r->n) {
        const struct zk_found *f = &r->nodes[r->next++];
        *info = f->info;
        if (!f->gone)
            return true;
    }
    return false;
}

/* ------------------------------------------------------- mark, free and forget */

/* The answer to a set, a delete or a multi. ZK_BUSY: it is not as read. */
static enum zk_verdict changed(struct zk_backend *be, const struct zk_msg *m)
{
    enum dlock_step step = be->order->what;
    if (be->op != ZK_OP_STEP || m->serial != be->step_serial)
        return ZK_GOES_ON;
    if (m->rc == ZOK)
        return ZK_DONE;
    if (m->rc == ZBADVERSION || m->rc == ZNONODE)
        return ZK_BUSY;
    return zk_failed(be, m->rc,
                     step == STEP_FORGET ? "cannot remove the run record"
                     : step == STEP_MARK ? "cannot mark the holder's node"
                                         : "cannot delete the holder's node");
}

static enum zk_verdict ask_hold(struct zk_backend *be)
{
    const struct zk_reading *r = be->reading;
    struct zk_request q = {
        .call = ZK_DELETE, .answered = changed, .path = r->hold.path, .version = r->hold.version};
    struct zk_mark mark;
    char data[ZK_DATA_MAX], text[ZK_MARK_MAX];
    if (!q.path)
        return ZK_BUSY;
    if (be->order->what == STEP_MARK) {
        if (r->hold.len >= (int)sizeof(r->hold.data) ||
            !zk_takes_marks(r->hold.data, r->hold.len)) {
            dlock_fail_lock(&be->err, DLOCK_EUNUSABLE, 0, be->spec->uri,
                            "its holder is %s, which heeds no marks: use --force",
                            be->order->holder->foreign ? "another program" : "an older dlock");
            return ZK_FAILED;
        }
        if (zk_read_mark(r->hold.data, r->hold.len, &mark))
            return ZK_DONE;
        dlock_breaker(be->spec->identity, mark.by);
        mark.at_ms = dlock_wall() / DLOCK_MSEC;
        zk_format_mark(&mark, text);
        snprintf(data, sizeof(data), "%s%s", r->hold.data, text);
        q.call = ZK_SET;
        q.data = data;
    }
    be->step_serial = zk_conn_ask(be->session.conn, &q);
    return ZK_GOES_ON;
}

static enum zk_verdict record_removed(struct zk_backend *be, const struct zk_msg *m)
{
    if (be->op != ZK_OP_STEP || m->serial != be->step_serial || m->failed != 1 || m->rc != ZNONODE)
        return changed(be, m);
    be->run.found.day[0] = '\0'; /* there is no index node */
    return zk_step_ask(be);
}

static enum zk_verdict ask_forget(struct zk_backend *be)
{
    const struct zk_run *f = &be->run.found;
    char *index = zk_index_path(be, f->day, be->run.path.place);
    struct zk_request ops[] = {
        {.call = ZK_DELETE, .path = be->run.path.record, .version = f->version},
        {.call = ZK_DELETE, .path = index, .version = -1}};
    if (!index)
        return zk_failed(be, ZK_NOMEMORY, "cannot remove the run record");
    be->step_serial = zk_ask_multi(be, record_removed, ops, *f->day ? 2 : 1);
    free(index);
    return ZK_GOES_ON;
}

enum zk_verdict zk_step_ask(struct zk_backend *be)
{
    if (be->order->what == STEP_READ)
        return ask_all(be);
    return be->order->what == STEP_FORGET ? ask_forget(be) : ask_hold(be);
}

void zk_step_end(struct zk_backend *be, bool done)
{
    bool reads = be->order->what == STEP_READ;
    struct dlock_event *ev = events_add(&be->events, reads ? EV_READ : EV_STEPPED);
    ev->stepped = !reads && done;
    ev->run = reads && be->run.found.there ? &be->run.found.run : NULL;
    if (reads)
        ev->error = be->reading->record;
}
