/*
 * step.c - the steps of a query that change something: mark the holder's node, delete the node, or
 * remove the run record with its index node. Each names the version that was read (status.c).
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

/* The answer to a set, a delete or a multi. ZK_BUSY: it is not as read. */
static enum zk_verdict changed(struct zk_backend *be, const struct zk_msg *m)
{
    enum dlock_step step = be->order->what;
    if (be->op != OP_STEP || m->serial != be->step_serial)
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

static enum zk_verdict unmarkable(struct zk_backend *be)
{
    dlock_fail_lock(&be->err, DLOCK_EUNUSABLE, 0, be->spec->uri,
                    "its holder is %s, which heeds no marks: use --force",
                    be->order->holder->foreign ? "another program" : "an older dlock");
    return ZK_FAILED;
}

static enum zk_verdict ask_hold(struct zk_backend *be)
{
    const struct zk_hold *h = &be->status.hold;
    struct zk_request q = {
        .call = ZK_DELETE, .answered = changed, .path = h->path, .version = h->version};
    struct zk_mark mark;
    char data[ZK_DATA_MAX], text[ZK_MARK_MAX];
    if (!h->path)
        return ZK_BUSY;
    if (be->order->what == STEP_MARK) {
        if (!zk_takes_marks(h->data, h->len) || h->len > (int)(ZK_DATA_MAX - ZK_MARK_MAX))
            return unmarkable(be);
        if (zk_read_mark(h->data, h->len, &mark))
            return ZK_DONE;
        dlock_breaker(be->spec->identity, mark.by);
        mark.at_ms = dlock_wall() / DLOCK_MSEC;
        zk_format_mark(&mark, text);
        snprintf(data, sizeof(data), "%s%s", h->data, text);
        q.call = ZK_SET;
        q.data = data;
    }
    be->step_serial = zk_conn_ask(be->session.conn, &q);
    return ZK_GOES_ON;
}

static enum zk_verdict record_removed(struct zk_backend *be, const struct zk_msg *m)
{
    if (be->op != OP_STEP || m->serial != be->step_serial || m->failed != 1 || m->rc != ZNONODE)
        return changed(be, m);
    be->run.found.day[0] = '\0'; /* there is no index node */
    return zk_step_ask(be);
}

enum zk_verdict zk_step_ask(struct zk_backend *be)
{
    if (be->order->what != STEP_FORGET)
        return ask_hold(be);
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
