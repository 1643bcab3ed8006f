/*
 * forget.c - remove the run record of a lock, if it is still the one that was shown and its run does not go on. Its
 * index node goes with it.
 */
#include "zookeeper.h"

#include <stdlib.h>
#include <string.h>

static enum zk_verdict failed(struct zk_backend *be, int rc, const char *what,
                              struct dlock_error *err)
{
    if (zk_transient(rc)) {
        be->again_at = zk_now(be);
        return ZK_GOES_ON;
    }
    zk_error(be, rc, what, err);
    return ZK_FAILED;
}

static enum zk_verdict changed(const struct zk_backend *be, struct dlock_error *err)
{
    dlock_fail_lock(err, DLOCK_EBUSY, 0, be->spec->uri,
                    "the record has changed since it was shown");
    return ZK_FAILED;
}

static enum zk_verdict on_list(struct zk_backend *be, const struct zk_msg *m,
                               struct dlock_error *err)
{
    int n = 0;
    if (m->serial != be->status.list_serial)
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return failed(be, m->rc, "cannot read the queue", err);
    struct zk_child *line = zk_line(m->names, m->nnames, &n);
    if (!line)
        return failed(be, ZK_NOMEMORY, "cannot read the queue", err);
    free(line);
    be->forget.held = n > 0;
    return ZK_GOES_ON;
}

static enum zk_verdict ask_delete(struct zk_backend *be, struct dlock_error *err)
{
    const struct zk_run *f = &be->run.found;
    char *index = zk_index_path(be, f->day, be->run.path.place);
    struct zk_op ops[] = {{.call = ZK_DELETE, .path = be->run.path.record, .version = f->version},
                          {.call = ZK_DELETE, .path = index, .version = -1}};
    if (!index)
        return failed(be, ZK_NOMEMORY, "cannot remove the run record", err);
    be->run.serial = zk_conn_ask(
        be->session.conn, &(struct zk_request){.call = ZK_MULTI,
                                               .tag = T_FORGET,
                                               .ops = ops,
                                               .nops = be->forget.alone || !*f->day ? 1 : 2});
    free(index);
    return ZK_GOES_ON;
}

static enum zk_verdict on_record(struct zk_backend *be, const struct zk_msg *m,
                                 struct dlock_error *err)
{
    if (m->serial != be->run.serial)
        return ZK_GOES_ON;
    if (m->rc == ZNONODE)
        return ZK_DONE;
    if (m->rc != ZOK)
        return failed(be, m->rc, "cannot read the run record", err);
    const char *foreign = zk_read_run(m, 0, &be->run.found);
    if (foreign) {
        zk_foreign_run(be, foreign, err);
        return ZK_FAILED;
    }
    if (strcmp(be->run.found.run.token, be->forget.token) != 0)
        return changed(be, err);
    if (be->run.found.run.state == DLOCK_RUN_RUNNING && be->forget.held)
        return ZK_BUSY;
    return ask_delete(be, err);
}

static enum zk_verdict on_deleted(struct zk_backend *be, const struct zk_msg *m,
                                  struct dlock_error *err)
{
    if (m->serial != be->run.serial)
        return ZK_GOES_ON;
    if (m->rc == ZOK || (m->failed == 0 && m->rc == ZNONODE))
        return ZK_DONE;
    if (m->failed == 0 && m->rc == ZBADVERSION)
        return changed(be, err);
    if (m->failed == 1 && m->rc == ZNONODE) {
        be->forget.alone = true;
        return ask_delete(be, err);
    }
    return failed(be, m->rc, "cannot remove the run record", err);
}

enum zk_verdict zk_forget_answer(struct zk_backend *be, const struct zk_msg *m,
                                 struct dlock_error *err)
{
    switch (m->tag) {
    case T_LIST:
        return on_list(be, m, err);
    case T_RECORD:
        return on_record(be, m, err);
    case T_FORGET:
        return on_deleted(be, m, err);
    default:
        return ZK_GOES_ON;
    }
}
