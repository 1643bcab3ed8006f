/*
 * break.c - break a hold: mark the holder's node, or delete the node by force.
 *
 * The mark stands in the node's data, and is set with the version that was read. The holder writes
 * its node as a heartbeat, with the version that it knows: the mark refuses the next heartbeat, and
 * the holder reads the node. So a hold without a mark costs no request. A dlock from before marks
 * would overwrite the mark, and tells so by the missing ZK_MARKS.
 *
 * The czxid of a node names the hold: a lock that changes hands has another node.
 */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The data of further holders is not read. */
#define ASK_MAX 1000

static zk_answer_fn holder_changed;

void zk_break_drop(struct zk_backend *be)
{
    for (int i = 0; i < be->breaking.n; i++)
        free(be->breaking.nodes[i].path);
    free(be->breaking.nodes);
    be->breaking.nodes = NULL;
    be->breaking.n = be->breaking.left = 0;
    be->breaking.serial = 0;
    be->breaking.busy = false;
}

static enum zk_verdict unmarkable(struct zk_backend *be, const struct zk_msg *m)
{
    struct dlock_info info;
    bool dlocks = dlock_identity_parse(m->data, (size_t)m->len, &info);
    dlock_fail_lock(&be->err, DLOCK_EUNUSABLE, 0, be->spec->uri,
                    "its holder is %s, which heeds no marks: use --force",
                    dlocks ? "an older dlock" : "another program");
    return ZK_FAILED;
}

/* m: the node of the hold to break. */
static enum zk_verdict break_node(struct zk_backend *be, const struct zk_msg *m, const char *path)
{
    struct zk_request q = {
        .call = ZK_DELETE, .answered = holder_changed, .path = path, .version = m->stat.version};
    struct zk_mark mark;
    char data[ZK_DATA_MAX], text[ZK_MARK_MAX];
    if (!be->question->force) {
        if (!zk_takes_marks(m->data, m->len) || m->len > (int)(ZK_DATA_MAX - ZK_MARK_MAX))
            return unmarkable(be, m);
        if (zk_read_mark(m->data, m->len, &mark))
            return ZK_MARKED;
        dlock_breaker(be->spec->identity, mark.by);
        mark.at_ms = dlock_wall() / DLOCK_MSEC;
        zk_format_mark(&mark, text);
        snprintf(data, sizeof(data), "%s%s", m->data, text);
        q.call = ZK_SET;
        q.data = data;
    }
    unsigned serial = zk_conn_ask(be->session.conn, &q);
    zk_break_drop(be);
    be->breaking.serial = serial;
    return ZK_GOES_ON;
}

static enum zk_verdict holder_changed(struct zk_backend *be, const struct zk_msg *m)
{
    if (m->serial != be->breaking.serial)
        return ZK_GOES_ON;
    if (m->rc == ZOK)
        return be->question->force ? ZK_DONE : ZK_MARKED;
    if (m->rc != ZBADVERSION && m->rc != ZNONODE)
        return zk_failed(be, m->rc,
                         be->question->force ? "cannot delete the holder's node"
                                             : "cannot mark the holder's node");
    zk_break_ask(be); /* a heartbeat came in between, or the hold has ended */
    return ZK_GOES_ON;
}

static enum zk_verdict holder_read(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_watched *node = be->breaking.nodes;
    int i = 0;
    while (i < be->breaking.n && node[i].serial != m->serial)
        i++;
    if (i == be->breaking.n) /* from an earlier attempt */
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return zk_failed(be, m->rc, "cannot read the holder's node");
    be->breaking.left--;
    if (m->rc == ZOK && (uint64_t)m->stat.czxid == be->question->holder->fence)
        return break_node(be, m, node[i].path);
    if (m->rc == ZOK && !be->breaking.busy) {
        be->breaking.busy = true;
        zk_read_info(strrchr(node[i].path, '/') + 1, false, m->data, m->len, &m->stat,
                     &be->breaking.info);
    }
    if (be->breaking.left > 0)
        return ZK_GOES_ON;
    return be->breaking.busy ? ZK_BUSY : ZK_DONE;
}

static enum zk_verdict holders_listed(struct zk_backend *be, const struct zk_msg *m)
{
    int n = 0;
    if (m->serial != be->list_serial)
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return zk_failed(be, m->rc, "cannot read the queue");
    struct zk_child *line = zk_line(m->names, m->nnames, &n);
    struct zk_watched *nodes = be->breaking.nodes = calloc((size_t)n + 1, sizeof(*nodes));
    bool asked = line && nodes;
    for (int i = 0; asked && i < n && be->breaking.n < ASK_MAX; i++) {
        struct zk_watched *node = &nodes[be->breaking.n];
        if (line[i].place > 0)
            continue;
        asked = asprintf(&node->path, "%s/%s", be->lock.parent, line[i].name) >= 0;
        if (!asked)
            break;
        node->serial = zk_ask(be, ZK_GET, holder_read, node->path);
        be->breaking.n++;
        be->breaking.left++;
    }
    free(line);
    if (!asked)
        return zk_failed(be, ZK_NOMEMORY, "cannot read the queue");
    return be->breaking.n > 0 ? ZK_GOES_ON : ZK_DONE;
}

void zk_break_ask(struct zk_backend *be)
{
    zk_break_drop(be);
    zk_ask_list(be, holders_listed);
}
