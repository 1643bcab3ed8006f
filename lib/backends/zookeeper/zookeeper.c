/*
 * zookeeper.c - a lock in ZooKeeper: an ephemeral sequential node below the lock's own; the lowest holds.
 * The slots of the contract, and how a hold ends.
 *
 * session.c  the session
 * acquire.c  the place in the line    heartbeat.c  the lease         queue.c  how others name their nodes
 * uri.c  the URI                  status.c   status            wire/conn.c    the library
 *
 * Not guaranteed: a session that a server has expired is over although we live (pauses, clocks that
 * run at different speeds beyond 1 %): that is what the lease's deadline is for.
 */
#include "zookeeper.h"

#include <stdlib.h>
#include <string.h>

#ifndef DLOCK_BUILD_ID
#define DLOCK_BUILD_ID DLOCK_VERSION
#endif

/* How long a process that ends waits until its session is closed, too. */
#define FAREWELL (200 * DLOCK_MSEC)

/* ------------------------------------------------------------------------ the end */

void zk_released(struct dlock_be *be, enum dlock_how how, const struct dlock_error *err)
{
    zk_leave(be);
    be->doing = ZK_NOTHING;
    be->held = be->lost = be->renewing = be->busy = false;
    be->op_until = be->rel_until = be->renew_until = DLOCK_NEVER;
    outage_over(&be->outage);
    struct dlock_event *ev = events_add(&be->events, EV_RELEASED);
    ev->how = how;
    if (err)
        ev->error = *err;
}

void zk_give_back(struct dlock_be *be)
{
    switch (be->node) {
    case NODE_NONE:
        zk_released(be, be->lost ? DLOCK_REL_NOT_OURS : DLOCK_REL_NOTHING, NULL);
        break;
    case NODE_ASKED:
        break; /* its answer first */
    case NODE_UNCLEAR:
        if (be->connected)
            zk_stand_in_line(be);
        break;
    case NODE_THERE:
        if (be->connected && be->delete_serial == 0)
            be->delete_serial = zk_conn_delete(be->conn, T_DELETE, be->path);
        break;
    }
}

void zk_again(struct dlock_be *be)
{
    be->again = true;
    be->again_at = zk_now(be) + 20 * DLOCK_MSEC;
}

static void on_deleted(struct dlock_be *be, const struct zk_msg *m)
{
    struct dlock_error err;
    if (m->serial != be->delete_serial)
        return;
    be->delete_serial = 0;
    if (m->rc != ZOK && m->rc != ZNONODE) {
        /* Whatever it is: when it cannot be deleted, it goes with the session. */
        if (zk_transient(m->rc)) {
            be->delete_lost = true;
            zk_again(be);
        } else if (be->busy) {
            be->node = NODE_NONE;
            zk_busy_over(be);
        } else if (be->doing == ZK_RELEASE) {
            zk_error(be, m->rc, "our node cannot be deleted", &err);
            zk_released(be, DLOCK_REL_UNCLEAR, &err);
        }
        return;
    }
    be->node = NODE_NONE;
    if (be->busy) {
        zk_busy_over(be);
    } else if (be->doing == ZK_RELEASE) {
        bool gone = be->held && m->rc == ZNONODE && !be->delete_lost;
        if (gone)
            dlock_fail(&err, DLOCK_ELOST, 0,
                       "%s: the lock '%s' is not ours any more: its node is gone", zk_where(be),
                       be->spec->uri->name);
        zk_released(be,
                    gone       ? DLOCK_REL_NOT_OURS
                    : be->held ? DLOCK_REL_CLEAN
                               : DLOCK_REL_NOTHING,
                    gone ? &err : NULL);
    }
}

/* ---------------------------------------------------------------------- slots */

static void be_close(struct dlock_be *be)
{
    if (!be)
        return;
    if (be->conn)
        zk_leave(be);
    zk_ending_wait(be->ending, dlock_min(FAREWELL, dlock_max(0, be->leave_by - zk_now(be))));
    zk_drop_listing(be);
    zk_done(be);
    free(be);
}

static int be_open(struct dlock_be **out, const struct dlock_spec *spec, struct dlock_error *err)
{
    struct dlock_be *be = calloc(1, sizeof *be);
    if (!be)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    be->spec = spec;
    be->op_until = be->rel_until = be->renew_until = DLOCK_NEVER;
    be->next_server_at = be->next_beat_at = be->beat_until = DLOCK_NEVER;
    be->leave_by = DLOCK_NEVER;
    outage_over(&be->outage);
    int rc = zk_check_spec(be, err);
    if (rc < 0) {
        be_close(be);
        return rc;
    }
    *out = be;
    return 0;
}

static void start(struct dlock_be *be, enum zk_doing doing)
{
    be->doing = doing;
    be->first = true;
    be->busy = be->held = be->lost = be->renewing = be->delete_lost = false;
    be->refused.code = 0;
    be->op_until = zk_now(be) + be->spec->connect_timeout;
    outage_over(&be->outage);
    if (be->conn) /* of a lock that was not given back in time: it goes with its session */
        zk_leave(be);
    zk_connect(be);
}

static void be_acquire(struct dlock_be *be, bool wait)
{
    be->wait = wait;
    start(be, ZK_ACQUIRE);
}

static void be_renew(struct dlock_be *be)
{
    zk_renew(be);
}

static void be_release(struct dlock_be *be, int64_t until)
{
    be->events.n = 0;
    zk_drop_listing(be);
    be->rel_until = be->leave_by = until;
    if (be->doing == ZK_RELEASE)
        return;
    be->doing = ZK_RELEASE;
    be->renewing = be->busy = false;
    be->op_until = be->renew_until = be->next_beat_at = be->beat_until = DLOCK_NEVER;
    be->making = 0;
    outage_over(&be->outage);
    zk_give_back(be);
}

static void be_ask(struct dlock_be *be, enum dlock_ask what, const char *arg)
{
    struct dlock_error err;
    (void)arg;
    if (what == ASK_STATUS) {
        start(be, ZK_ASK);
        return;
    }
    dlock_fail(&err, DLOCK_EUSAGE, 0, "not yet supported for zookeeper");
    zk_fail(be, &err);
}

/* -------------------------------------------------------------------- driving */

static void on_answer(struct dlock_be *be, struct zk_msg *m)
{
    if (m->rc == ZOK) {
        be->refused.code = 0;
        if (be->outage.since != 0)
            outage_over(&be->outage);
    }
    switch ((enum zk_tag)m->tag) {
    case T_CREATE:
        zk_on_created(be, m);
        break;
    case T_PARENT:
        zk_on_parent(be, m);
        break;
    case T_LIST:
        if (be->doing == ZK_ASK)
            zk_ask_listed(be, m);
        else
            zk_on_list(be, m);
        break;
    case T_FIND:
        zk_on_found(be, m);
        break;
    case T_SELF:
        zk_on_self(be, m);
        break;
    case T_PRED:
        zk_on_pred(be, m);
        break;
    case T_WHO:
        zk_on_who(be, m);
        break;
    case T_BEAT:
        zk_on_beat(be, m);
        break;
    case T_DELETE:
        on_deleted(be, m);
        break;
    case T_INFO:
        zk_ask_info(be, m);
        break;
    case T_AUTH: /* a refusal comes as the session's state; this one was never sent */
        be->authed = be->authed && m->rc != ZINVALIDSTATE;
        break;
    case T_SYNC:
    case T_ORPHAN:
        break;
    }
}

static void take_messages(struct dlock_be *be)
{
    struct zk_msg *m;
    /* Events are few, the queue of them is short: they are handed out in between. */
    while (be->conn && be->events.n < EVENTS_MAX / 2 && (m = zk_conn_next(be->conn))) {
        switch (m->what) {
        case ZK_STATE:
            zk_on_state(be, m->state);
            break;
        case ZK_ANSWER:
            on_answer(be, m);
            break;
        case ZK_WATCH:
            zk_on_watch(be, m);
            break;
        case ZK_TROUBLE:
            zk_on_trouble(be, m);
            break;
        }
        zk_msg_free(m);
    }
}

static void contact_over(struct dlock_be *be)
{
    struct dlock_error err;
    char text[32];
    dlock_format_duration(be->spec->connect_timeout, text, sizeof text);
    if (be->refused.code != 0)
        err = be->refused;
    else
        dlock_fail(&err, DLOCK_EUNAVAIL, 0,
                   "%s: no %s within %s: no answer, or no quorum (lock '%s')", zk_where(be),
                   be->session == 0 ? "session" : "answer", text, be->spec->uri->name);
    zk_fail(be, &err);
}

static void release_over(struct dlock_be *be)
{
    struct dlock_error err;
    dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: no answer in time", zk_where(be));
    zk_released(be, DLOCK_REL_UNCLEAR, &err);
}

static void outage_too_long(struct dlock_be *be)
{
    struct dlock_error err;
    char text[32];
    dlock_format_duration(be->spec->ttl, text, sizeof text);
    dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: no connection for %s (lock '%s')", zk_where(be), text,
               be->spec->uri->name);
    zk_fail(be, &err);
}

/* When a wait without a connection is over. */
static int64_t outage_end(const struct dlock_be *be)
{
    return be->doing == ZK_ACQUIRE && be->outage.since != 0 ? be->outage.since + be->spec->ttl
                                                            : DLOCK_NEVER;
}

static void timers(struct dlock_be *be)
{
    int64_t now = zk_now(be);
    if (be->conn && now >= be->next_server_at) {
        zk_conn_cut(be->conn);
        zk_expect_connection(be);
    }
    if (now >= be->op_until && (be->doing == ZK_ASK || be->doing == ZK_ACQUIRE))
        contact_over(be);
    else if (now >= outage_end(be))
        outage_too_long(be);
    else if (be->doing == ZK_RELEASE && now >= be->rel_until)
        release_over(be);
    if (be->conn)
        zk_beat_timers(be, now);
    if (be->conn && be->connected && be->again && now >= be->again_at) {
        be->again = false;
        if (be->doing == ZK_ACQUIRE)
            zk_stand_in_line(be);
        else if (be->doing == ZK_RELEASE)
            zk_give_back(be);
        else if (be->doing == ZK_ASK)
            zk_list(be);
    }
}

static int be_interest(struct dlock_be *be, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    int n = 0;
    if (be->conn && cap > 0)
        pfd[n++] = (struct pollfd){.fd = zk_conn_fd(be->conn), .events = POLLIN};
    if (be->doing != ZK_NOTHING) {
        *wake_at = dlock_min(*wake_at, dlock_min(be->op_until, be->rel_until));
        *wake_at = dlock_min(*wake_at, dlock_min(be->next_server_at, outage_end(be)));
        *wake_at = dlock_min(*wake_at, dlock_min(be->next_beat_at, be->beat_until));
        *wake_at = dlock_min(*wake_at, be->renew_until);
    }
    if (be->again && be->connected)
        *wake_at = dlock_min(*wake_at, be->again_at);
    if (be->events.n > 0 || (be->listing && be->list_left == 0))
        *wake_at = 0;
    return n;
}

static int be_process(struct dlock_be *be, const struct pollfd *pfd, int n, struct dlock_event *ev)
{
    (void)pfd;
    (void)n;
    take_messages(be);
    timers(be);
    if (events_take(&be->events, ev))
        return 1;
    return be->listing ? zk_give_listed(be, ev) : 0;
}

static const char *const schemes[] = {"zk", "zookeeper", NULL};

const struct dlock_backend DLOCK_BACKEND_SYMBOL(zookeeper) = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_BUILD_ID,
    .name = "zookeeper",
    .package = "dlock-zookeeper",
    .schemes = schemes,
    .caps = CAP_FENCE | CAP_LEASE | CAP_FIFO | CAP_LAG,
    .open = be_open,
    .acquire = be_acquire,
    .renew = be_renew,
    .release = be_release,
    .ask = be_ask,
    .interest = be_interest,
    .process = be_process,
    .close = be_close,
};
