/*
 * status.c - STEP_READ: the lock's children in order, the data of each node, and the run record. Of
 * a hold to break the path, the data and the version are kept for the next step.
 */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The data of further nodes is not read; the nodes are counted. */
#define ASK_MAX 1000

void zk_status_drop(struct zk_backend *be)
{
    for (int i = 0; i < be->status.n; i++)
        free(be->status.found[i].path);
    free(be->status.found);
    free(be->status.hold.data);
    memset(&be->status, 0, sizeof(be->status));
}

/* The state of the read. */
static enum zk_verdict read_on(const struct zk_backend *be)
{
    bool all = be->status.found && be->status.read_run && be->status.left == 0;
    return all ? ZK_DONE : ZK_GOES_ON;
}

static enum dlock_ask question(const struct zk_backend *be)
{
    return be->order->question->what;
}

/* A request has failed: ask for everything again if the connection was at fault. */
static enum zk_verdict status_failed(struct zk_backend *be, int rc)
{
    zk_status_drop(be);
    return zk_failed(be, rc, "cannot read the queue");
}

/* The hold to break, at this path. False: out of memory. */
static bool keep_hold(struct zk_backend *be, const char *path, const struct zk_msg *m)
{
    struct zk_hold *h = &be->status.hold;
    free(h->data);
    h->path = path;
    h->len = m->len;
    h->version = m->stat.version;
    h->data = calloc((size_t)m->len + 1, 1);
    if (h->data && m->len > 0)
        memcpy(h->data, m->data, (size_t)m->len);
    return h->data;
}

static enum zk_verdict node_read(struct zk_backend *be, const struct zk_msg *m)
{
    int i = 0;
    while (i < be->status.n && be->status.found[i].serial != m->serial)
        i++;
    if (i == be->status.n) /* from an earlier attempt, or cancelled */
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return status_failed(be, m->rc);
    struct dlock_info *info = &be->status.found[i].info, was = *info;
    be->status.found[i].gone = m->rc == ZNONODE;
    if (m->rc == ZOK)
        zk_read_info(was.command, was.waiter, m->data, m->len, &m->stat, info);
    info->place = was.place;
    if (m->rc == ZOK && question(be) == ASK_BREAK && !was.waiter &&
        dlock_same_hold(info, be->order->question->holder) &&
        !keep_hold(be, be->status.found[i].path, m))
        return status_failed(be, ZK_NOMEMORY);
    be->status.found[i].serial = 0;
    be->status.left--;
    return read_on(be);
}

/* Ask at once for the data of all nodes in line; of the holders alone, if no waiter matters. */
static enum zk_verdict line_listed(struct zk_backend *be, const struct zk_msg *m)
{
    int n = 0;
    if (be->op != OP_STATUS || m->serial != be->list_serial)
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return status_failed(be, m->rc);
    zk_status_drop(be);
    be->status.read_run = question(be) == ASK_BREAK;
    struct zk_child *line = zk_line(m->names, m->nnames, &n);
    struct zk_found *found = be->status.found = calloc((size_t)n + 1, sizeof(*found));
    bool asked = line && found;
    be->status.n = asked ? n : 0;
    for (int i = 0; asked && i < n; i++) {
        struct dlock_info *info = &found[i].info;
        *info = (struct dlock_info){.left_ns = -1,
                                    .waited_ms = -1,
                                    .foreign = true,
                                    .mode = line[i].mode,
                                    .slots = line[i].slots,
                                    .waiter = line[i].place > 0,
                                    .place = line[i].place};
        if (i >= ASK_MAX || (info->waiter && question(be) != ASK_STATUS))
            continue;
        asked = asprintf(&found[i].path, "%s/%s", be->lock.parent, line[i].name) >= 0;
        if (!asked) {
            found[i].path = NULL;
            break;
        }
        /* info keeps the name, which tells the program, until the data comes. */
        dlock_clean_text(info->command, sizeof(info->command), line[i].name, strlen(line[i].name));
        found[i].serial = zk_ask(be, ZK_GET, node_read, found[i].path);
        be->status.left++;
    }
    free(line);
    return asked ? read_on(be) : status_failed(be, ZK_NOMEMORY);
}

/* Holders and waiters are read also where the record cannot be used. */
static enum zk_verdict record_read(struct zk_backend *be, const struct zk_msg *m)
{
    const char *foreign = NULL;
    if (be->op != OP_STATUS || m->serial != be->run.serial)
        return ZK_GOES_ON;
    if (zk_transient(m->rc) || m->rc == ZK_NOMEMORY)
        return status_failed(be, m->rc);
    /* Our wall clock: a query writes nothing, so the server has told no time. */
    if (m->rc == ZOK)
        foreign = zk_read_run(m, dlock_wall() / DLOCK_MSEC, &be->run.found);
    if (foreign)
        zk_foreign_run(be, foreign);
    else if (m->rc != ZOK && m->rc != ZNONODE)
        zk_error(be, m->rc, "cannot read the run record");
    if (be->err.code != 0)
        be->status.record = be->err;
    be->status.read_run = true;
    be->status.has_run = m->rc == ZOK && !foreign;
    return read_on(be);
}

void zk_status_ask(struct zk_backend *be)
{
    zk_ask_list(be, line_listed);
    if (question(be) != ASK_BREAK)
        zk_ask_record(be, record_read);
}

bool zk_status_next(struct zk_backend *be, struct dlock_info *info)
{
    while (be->status.next < be->status.n) {
        const struct zk_found *f = &be->status.found[be->status.next++];
        *info = f->info;
        if (!f->gone)
            return true;
    }
    return false;
}
