/*
 * forget.c - remove the run record of a lock, together with the record's index node, if the record
 * is still as it was shown and its run has ended.
 */
#include "zookeeper.h"

#include <stdlib.h>
#include <string.h>

static zk_answer_fn record_removed;

static enum zk_verdict record_changed(struct zk_backend *be)
{
    dlock_fail_lock(&be->err, DLOCK_EBUSY, 0, be->spec->uri,
                    "the record has changed since it was shown");
    return ZK_FAILED;
}

static enum zk_verdict ask_removal(struct zk_backend *be)
{
    const struct zk_run *f = &be->run.found;
    char *index = zk_index_path(be, f->day, be->run.path.place);
    struct zk_request ops[] = {
        {.call = ZK_DELETE, .path = be->run.path.record, .version = f->version},
        {.call = ZK_DELETE, .path = index, .version = -1}};
    if (!index)
        return zk_failed(be, ZK_NOMEMORY, "cannot remove the run record");
    be->run.serial = zk_ask_multi(be, record_removed, ops, *f->day ? 2 : 1);
    free(index);
    return ZK_GOES_ON;
}

static enum zk_verdict record_removed(struct zk_backend *be, const struct zk_msg *m)
{
    if (m->serial != be->run.serial)
        return ZK_GOES_ON;
    if (m->rc == ZOK || (m->failed == 0 && m->rc == ZNONODE))
        return ZK_DONE;
    if (m->failed == 0 && m->rc == ZBADVERSION)
        return record_changed(be);
    if (m->failed == 1 && m->rc == ZNONODE) {
        be->run.found.day[0] = '\0';
        return ask_removal(be);
    }
    return zk_failed(be, m->rc, "cannot remove the run record");
}

static enum zk_verdict shown_record_read(struct zk_backend *be, const struct zk_msg *m)
{
    if (m->serial != be->run.serial)
        return ZK_GOES_ON;
    if (m->rc == ZNONODE)
        return ZK_DONE;
    if (m->rc != ZOK)
        return zk_failed(be, m->rc, "cannot read the run record");
    const char *foreign = zk_read_run(m, 0, &be->run.found);
    if (foreign)
        return zk_foreign_run(be, foreign);
    if (strcmp(be->run.found.run.token, be->question->token) != 0)
        return record_changed(be);
    if (be->run.found.run.state == DLOCK_RUN_RUNNING && be->forget.held)
        return ZK_BUSY;
    return ask_removal(be);
}

static enum zk_verdict holders_listed(struct zk_backend *be, const struct zk_msg *m)
{
    int64_t seq;
    if (m->serial != be->list_serial)
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return zk_failed(be, m->rc, "cannot read the queue");
    be->forget.held = false;
    for (int i = 0; i < m->nnames; i++)
        be->forget.held = be->forget.held || zk_sequence(m->names[i], &seq);
    return ZK_GOES_ON;
}

void zk_forget_ask(struct zk_backend *be)
{
    zk_ask_list(be, holders_listed);
    /* Behind the list: a run begun between the two has changed the record. */
    zk_ask_record(be, shown_record_read);
}
