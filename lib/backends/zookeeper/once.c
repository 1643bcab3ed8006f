/*
 * once.c - the run record of --once: read at our turn, written with the grant, or in a set with a
 * renewal, and with the release.
 *
 * When our node is the first, no client but us writes the record: a release deletes its node and
 * writes the end of its run in one multi, so what we read then has the end of each run before ours.
 * "running" is written by a multi that sets our node, too, so the write fails if our node is gone,
 * and tells the server's time. The end is written by the multi that deletes our node: a late
 * holder, without a node, writes nothing.
 */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The operations of the multis, in their order. */
enum { MULTI_NODE, MULTI_RECORD, MULTI_INDEX };

enum zk_verdict zk_foreign_run(struct zk_backend *be, const char *what)
{
    char text[RUN_RECORD_MAX];
    snprintf(text, sizeof(text), "%s (%s)", what, be->run.path.record);
    run_record_foreign(&be->err, be->spec, text);
    return ZK_FAILED;
}

/* ------------------------------------------------------------------ the multi */

/* Write be->run.mine into the record, together with a step of our node. */
static enum zk_verdict ask_multi(struct zk_backend *be, zk_answer_fn *answered,
                                 struct zk_request node, unsigned *serial)
{
    struct zk_request ops[ZK_OPS_MAX] = {node};
    char text[RUN_RECORD_MAX], *index = NULL;
    int n = MULTI_INDEX;
    int64_t kept = dlock_min(be->spec->once / DLOCK_MSEC, INT64_MAX / 4);
    const char *day = be->run.day.wanted;
    zk_day(zk_server_ms(be) + kept, be->run.day.wanted);
    zk_format_run(be, &be->run.mine, day, text);
    ops[MULTI_RECORD] = (struct zk_request){.call = be->run.found.there ? ZK_SET : ZK_CREATE,
                                            .path = be->run.path.record,
                                            .data = text,
                                            .acl = be->lock.acl,
                                            .version = be->run.found.version};
    /* The record's own day has its index node already. */
    if (strcmp(day, be->run.found.day) != 0 && strcmp(day, be->run.day.met) != 0) {
        index = zk_index_path(be, day, be->run.path.place);
        if (!index)
            return zk_no_memory(be);
        ops[n++] = (struct zk_request){.call = ZK_CREATE, .path = index, .acl = be->lock.acl};
    }
    *serial = zk_ask_multi(be, answered, ops, n);
    free(index);
    return ZK_GOES_ON;
}

/* Make the nodes above path, then write again. Takes over path. */
static enum zk_verdict make_above(struct zk_backend *be, char *path)
{
    free(be->run.path.above);
    be->run.path.above = path;
    if (!path)
        return zk_no_memory(be);
    *strrchr(path, '/') = '\0';
    return zk_make(be, path);
}

/*
 * A multi was refused. If the record or the index node is not as we know it: get it right. what:
 * the failed step.
 */
static enum zk_verdict mend(struct zk_backend *be, const struct zk_msg *m, const char *what)
{
    bool changed = m->rc == ZNONODE || m->rc == ZNODEEXISTS || m->rc == ZBADVERSION;
    if (m->failed == MULTI_INDEX && m->rc == ZNONODE)
        return make_above(be, zk_index_path(be, be->run.day.wanted, be->run.path.place));
    if (m->failed == MULTI_RECORD && m->rc == ZNONODE && !be->run.found.there)
        return make_above(be, strdup(be->run.path.record));
    if (m->failed == MULTI_INDEX && m->rc == ZNODEEXISTS) {
        memcpy(be->run.day.met, be->run.day.wanted, sizeof(be->run.day.met));
        be->advance_at = 0;
    } else if (m->failed == MULTI_RECORD && changed) {
        zk_ask_record(be, zk_record_read);
    } else {
        return zk_failed(be, m->rc, what);
    }
    return ZK_GOES_ON;
}

const char *zk_take_record(struct zk_backend *be, const struct zk_msg *m, int64_t now_ms)
{
    be->run.serial = 0;
    be->run.found.there = false;
    be->run.found.day[0] = '\0';
    return m->rc == ZOK ? zk_read_run(m, now_ms, &be->run.found) : NULL;
}

/* ------------------------------------------------------------------ the grant */

enum zk_verdict zk_run_turn(struct zk_backend *be)
{
    if (be->spec->once == 0 || be->run.running.written)
        return ZK_GRANTED;
    be->acquire.stage = STAGE_RECORD;
    zk_ask_record(be, zk_record_read);
    return ZK_GOES_ON;
}

/* Is it time to write "running"? */
static bool at_turn(const struct zk_backend *be)
{
    return (be->op == ZK_OP_ACQUIRE && be->acquire.stage == STAGE_RECORD) || zk_run_begins(be);
}

/* A lease grown old while the record was read and written is renewed first. */
static enum zk_verdict ready(struct zk_backend *be, bool written)
{
    be->run.running.written = be->run.running.written || written;
    if (be->op == ZK_OP_HOLD || !zk_lease_is_old(be))
        return ZK_GRANTED;
    be->advance_at = 0;
    return ZK_GOES_ON;
}

static enum zk_verdict running_answered(struct zk_backend *be, const struct zk_msg *m)
{
    if (!at_turn(be) || m->serial != be->run.serial)
        return ZK_GOES_ON;
    if (m->rc == ZOK) {
        be->run.found.version = be->run.found.there ? be->run.found.version + 1 : 0;
        be->run.found.there = true;
        be->run.mine.begin_ms = zk_stat_ms(m->stat.mtime);
        memcpy(be->run.found.day, be->run.day.wanted, sizeof(be->run.found.day));
        zk_note_time(be, m->stat.mtime);
        zk_lease_confirm(&be->session, be->run.running.sent, true);
        be->node.data.confirmed = be->run.running.edition;
        be->node.version = m->stat.version;
        return ready(be, true);
    }
    if (zk_transient(m->rc))
        return zk_retry(be);
    if (m->failed == MULTI_NODE && m->rc == ZBADVERSION)
        return zk_node_touched(be);
    if (m->failed == MULTI_NODE && be->op == ZK_OP_HOLD) {
        zk_beat(be); /* its answer tells a loss */
        return ZK_GOES_ON;
    }
    if (m->failed == MULTI_NODE && m->rc == ZNONODE)
        return zk_node_gone(be);
    if (m->failed == MULTI_NODE)
        return zk_failed(be, m->rc, "cannot write to our node");
    return mend(be, m, "cannot write the run record");
}

/* Our turn: skip a run that has succeeded, else write "running". Or the run of a set begins. */
static enum zk_verdict record_read_at_turn(struct zk_backend *be, const struct zk_msg *m)
{
    const struct zk_run *f = &be->run.found;
    struct dlock_run *mine = &be->run.mine;
    const char *foreign = zk_take_record(be, m, zk_server_ms(be));
    if (m->rc != ZOK && m->rc != ZNONODE)
        return zk_failed(be, m->rc, "cannot read the run record");
    if (foreign)
        return zk_foreign_run(be, foreign);
    if (f->there && f->run.state == DLOCK_RUN_RUNNING && f->run.fence == be->node.fence &&
        strcmp(f->run.token, be->node.token) == 0) { /* the answer to our multi was lost */
        *mine = f->run;
        return ready(be, true);
    }
    if (be->op == ZK_OP_ACQUIRE && f->there && run_record_ahead(&f->run, be->spec, &be->err))
        events_add(&be->events, EV_NOTICE)->error = be->err;
    if (be->op == ZK_OP_ACQUIRE && f->there && run_record_skips(&f->run, be->spec->once)) {
        be->acquire.stage = STAGE_SKIPPED;
        return zk_delete_node(be);
    }
    if (be->spec->hold->begin == RUN_LATER)
        return ready(be, false);
    *mine = (struct dlock_run){.state = DLOCK_RUN_RUNNING,
                               .status = -1,
                               .fence = be->node.fence,
                               .begin_ms = zk_server_ms(be),
                               .kept_ns = be->spec->once};
    memcpy(mine->token, be->node.token, sizeof(mine->token));
    zk_set_data(be, RECORD_HOLDS, WORD_HELD);
    be->run.running.sent = zk_now(be);
    be->run.running.edition = be->node.data.edition;
    struct zk_request node = {.call = ZK_SET,
                              .path = be->node.path,
                              .data = be->node.data.text,
                              .version = be->node.version};
    return ask_multi(be, running_answered, node, &be->run.serial);
}

/* -------------------------------------------------------------------- the end */

static enum zk_verdict end_answered(struct zk_backend *be, const struct zk_msg *m)
{
    if (be->op != ZK_OP_RELEASE || m->serial != be->node.delete_serial)
        return ZK_GOES_ON;
    be->node.delete_serial = 0;
    if (m->rc == ZOK) {
        be->node.state = NODE_NONE;
        return zk_released(be, DLOCK_RELEASE_CLEAN);
    }
    if (zk_transient(m->rc)) {
        be->node.delete_unanswered = true;
        return zk_retry(be);
    }
    be->run.node_gone = m->failed == MULTI_NODE && m->rc == ZNONODE;
    if (!be->run.node_gone)
        return mend(be, m, "cannot record the end of the run");
    if (!be->node.delete_unanswered)
        return zk_not_ours(be);
    zk_ask_record(be, zk_record_read);
    return ZK_GOES_ON;
}

/* Does the release write the end of a run? */
static bool run_ends(const struct zk_backend *be)
{
    return run_record_begun(be->spec) && be->hold.grant == GRANT_HELD && be->run.running.written;
}

enum zk_verdict zk_run_end(struct zk_backend *be)
{
    if (!run_ends(be))
        return zk_delete_node(be);
    be->run.serial = 0;
    be->run.mine.end_ms = zk_server_ms(be);
    run_record_end(be->spec, &be->run.mine);
    struct zk_request node = {.call = ZK_DELETE, .path = be->node.path, .version = -1};
    return ask_multi(be, end_answered, node, &be->node.delete_serial);
}

static enum zk_verdict not_recorded(struct zk_backend *be, const char *why)
{
    dlock_fail_at(&be->err, DLOCK_EUNAVAIL, 0, zk_where(be), "%s", why);
    return ZK_FAILED;
}

/*
 * The end was not written: the record is not as we know it, or our node is gone, perhaps by our
 * first try.
 */
static enum zk_verdict record_read_at_end(struct zk_backend *be, const struct zk_msg *m)
{
    const struct zk_run *f = &be->run.found;
    const char *foreign = zk_take_record(be, m, zk_server_ms(be));
    if (zk_transient(m->rc))
        return zk_retry(be);
    if (foreign)
        return not_recorded(be, "the run record has been changed");
    if (m->rc != ZOK && m->rc != ZNONODE)
        return zk_failed(be, m->rc, "cannot read the run record");
    if (!f->there) /* removed since the grant; the index node may be removed, too */
        be->run.day.met[0] = '\0';
    bool ours = f->there && strcmp(f->run.token, be->node.token) == 0;
    bool running = ours && f->run.state == DLOCK_RUN_RUNNING;
    if (be->run.node_gone && running)
        return zk_not_ours(be);
    if (be->run.node_gone && ours)
        return zk_released(be, DLOCK_RELEASE_CLEAN);
    if (be->run.node_gone)
        return not_recorded(be, "no answer to the release; now our node is gone, and the run "
                                "record is another one");
    if (f->there && !running)
        return not_recorded(be, "the run record has been changed");
    be->advance_at = 0;
    return ZK_GOES_ON;
}

enum zk_verdict zk_record_read(struct zk_backend *be, const struct zk_msg *m)
{
    if (m->serial != be->run.serial)
        return ZK_GOES_ON;
    if (be->op == ZK_OP_RELEASE && run_ends(be) && be->node.delete_serial == 0)
        return record_read_at_end(be, m);
    return at_turn(be) ? record_read_at_turn(be, m) : ZK_GOES_ON;
}
