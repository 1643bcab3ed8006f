/*
 * zookeeper.c - a lock in ZooKeeper: an ephemeral sequential node below the lock's own node. An
 * exclusive node holds when it is the lowest, a shared node when no exclusive node is lower, one of
 * N slots when, besides, fewer than N slots are lower. This file has the slots of the contract,
 * drives the operations and ends them; the other files report to it:
 *
 * session.c  the session and its heartbeats: the lease   acquire.c  our node, in the queue
 * status.c   read a lock, break a hold, forget a run     queue.c    node names of each program
 * once.c     the run record of --once                    sweep.c    remove expired run records
 * run_node.c names and text of run records               list.c     all locks of a chroot
 * check.c    what a run would meet                       words.c    what a server says of itself
 * uri.c      the URI                                     wire/      libzookeeper and its socket
 *
 * Not guaranteed: the server may end a session although we live (a pause, or clock speeds that
 * differ by more than 1 %). The deadline of the lease covers this.
 */
#include "zookeeper.h"

#include <stdlib.h>
#include <string.h>

#ifndef DLOCK_BUILD_ID
#define DLOCK_BUILD_ID DLOCK_VERSION
#endif

/* How long a release waits for the rest of a sweep. */
#define SWEEP_WAIT (200 * DLOCK_MSEC)

static struct zk_backend *self(struct dlock_be *be)
{
    return (struct zk_backend *)be;
}

/* ------------------------------------------------------- the end of an operation */

/* End the session, and with it our node, the stem of its name and the outstanding requests. */
static void leave(struct zk_backend *be)
{
    zk_session_close(be);
    free(be->node.stem);
    be->node.stem = NULL;
    be->node.state = NODE_NONE;
    be->acquire.stage = STAGE_QUEUE;
    be->making.len = 0;
    zk_forget_requests(be);
    be->run.running.written = false;
    be->run.day.met[0] = '\0';
    zk_sweep_end(be);
    zk_list_forget(be);
    be->advance_at = DLOCK_NEVER;
}

static void idle(struct zk_backend *be)
{
    be->op = ZK_OP_NONE;
    be->contact_until = be->hold.renew_until = be->release.until = DLOCK_NEVER;
    be->acquire.stage = STAGE_QUEUE;
    be->release.sweeping = false;
}

/* Drop what a query has found. */
static void drop_found(struct zk_backend *be)
{
    zk_step_drop(be);
    zk_list_drop(be);
    zk_check_drop(be);
}

/* The operation is over, and so is its session. */
static struct dlock_event *finish(struct zk_backend *be, enum dlock_ev how)
{
    leave(be);
    idle(be);
    return events_add(&be->events, how);
}

/* be->err: why, if it has a code. */
static void released(struct zk_backend *be, enum dlock_release_how how)
{
    struct dlock_event *ev = finish(be, EV_RELEASED);
    be->hold.grant = NOT_GRANTED;
    outage_none(&be->outage);
    ev->how = how;
    if (how != DLOCK_RELEASE_CLEAN && be->err.code != 0)
        ev->error = be->err;
}

/* The acquire or the query has failed. The core undoes a node that may exist by a release. */
static void failed(struct zk_backend *be)
{
    if (be->node.state == NODE_NONE || be->session.id == 0)
        leave(be);
    idle(be);
    drop_found(be);
    events_add(&be->events, EV_FAILED)->error = be->err;
}

static void unclear(struct zk_backend *be)
{
    be->hold.renew_until = DLOCK_NEVER;
    events_add(&be->events, EV_UNCLEAR)->error = be->err;
}

static void renewed(struct zk_backend *be)
{
    struct dlock_event *ev = events_add(&be->events, EV_RENEWED);
    be->hold.renew_until = DLOCK_NEVER;
    ev->from = be->session.lease.sent[0];
    ev->ttl = be->session.timeout;
    ev->broken = be->node.mark.by[0];
    if (ev->broken)
        dlock_broken(&ev->error, be->spec, be->node.mark.by, strlen(be->node.mark.by));
}

/* No more can be done for the operation. */
static void give_up(struct zk_backend *be)
{
    if (be->op == ZK_OP_RELEASE) /* our node goes with the session */
        released(be, DLOCK_RELEASE_UNCLEAR);
    else if (be->op != ZK_OP_NONE && be->op != ZK_OP_HOLD)
        failed(be);
}

static void granted(struct zk_backend *be)
{
    bool written = be->run.running.written;
    struct dlock_event *ev = events_add(&be->events, EV_GRANTED);
    be->op = ZK_OP_HOLD;
    be->hold.grant = GRANT_HELD;
    be->contact_until = be->session.beat.next_at = DLOCK_NEVER;
    zk_forget_requests(be);
    be->acquire.stage = STAGE_QUEUE;
    /* Our node says that it holds: by a heartbeat, or already with the run record. */
    if (!written || be->node.data.kind != RECORD_HOLDS ||
        be->node.data.confirmed != be->node.data.edition) {
        zk_set_data(be, RECORD_HOLDS, WORD_HELD);
        /*
         * For the waiter behind us. A node first at once has the right times, and few wait behind
         * it yet. But a slot right behind ours may have looked before us, and wait for our word.
         */
        if (be->acquire.place > 0 || be->acquire.followed)
            zk_beat(be);
    }
    if (written)
        zk_sweep(be);
    ev->from = be->session.lease.sent[0];
    ev->ttl = be->session.timeout;
    ev->asked = dlock_max(be->node.create_sent, be->session.beat.sent);
    if (written)
        ev->asked = dlock_max(ev->asked, be->run.running.sent);
    ev->fence = be->node.fence;
    memcpy(ev->token, be->node.token, sizeof(ev->token));
}

static void lost(struct zk_backend *be, const char *why)
{
    be->hold.grant = GRANT_LOST;
    be->hold.renew_until = DLOCK_NEVER;
    dlock_fail_at(&events_add(&be->events, EV_LOST)->error, DLOCK_ELOST, 0, zk_where(be), "%s",
                  why);
}

/* An operation has come so far: go on, or end it. */
static void conclude(struct zk_backend *be, enum zk_verdict v)
{
    struct dlock_event *ev;
    if (be->op == ZK_OP_STEP && (v == ZK_DONE || v == ZK_BUSY)) {
        idle(be); /* the session stays for the next step, or until the end of the query */
        zk_step_end(be, v == ZK_DONE);
        return;
    }
    switch (v) {
    case ZK_GOES_ON:
        break;
    case ZK_TURN:
        conclude(be, zk_run_turn(be));
        break;
    case ZK_GRANTED:
        if (be->op != ZK_OP_HOLD) {
            granted(be);
        } else if (be->hold.renew_until != DLOCK_NEVER) {
            /* The run of a set has begun. A renewal given up is repeated, and finds the record. */
            renewed(be);
            zk_sweep(be);
        }
        break;
    case ZK_BUSY:
        ev = finish(be, EV_BUSY);
        ev->place = be->acquire.place;
        ev->info = be->acquire.front.known ? &be->acquire.front.info : NULL;
        break;
    case ZK_SKIPPED:
        finish(be, EV_SKIPPED)->run = &be->run.found.run;
        break;
    case ZK_DONE:
        finish(be, EV_DONE);
        break;
    case ZK_RENEWED:
        renewed(be);
        break;
    case ZK_LOST:
        lost(be, "its node is gone");
        break;
    case ZK_MAY_DELETE:
        conclude(be, zk_run_end(be));
        break;
    case ZK_RELEASED:
        be->hold.grant = NOT_GRANTED;
        /* The lock is free. The command may have been shorter than the sweep that began with it. */
        be->release.sweeping = be->release.how == DLOCK_RELEASE_CLEAN && zk_sweep_goes_on(be);
        if (be->release.sweeping)
            be->release.until = dlock_min(be->release.until, zk_now(be) + SWEEP_WAIT);
        else
            released(be, be->release.how);
        break;
    case ZK_FAILED:
        if (be->op == ZK_OP_HOLD && be->hold.renew_until != DLOCK_NEVER)
            unclear(be);
        else
            give_up(be);
        break;
    }
}

/* -------------------------------------------------------------------- driving */

static void send_renewal(struct zk_backend *be)
{
    if (!zk_run_begins(be))
        zk_beat(be);
    else if (be->session.connected)
        zk_ask_record(be, zk_record_read);
}

/* Connected, or time to go on: do what the operation needs next. */
static void advance(struct zk_backend *be)
{
    be->err.code = 0;
    be->advance_at = DLOCK_NEVER;
    if (be->release.sweeping)
        return;
    if (be->op == ZK_OP_ACQUIRE || be->op == ZK_OP_RELEASE)
        conclude(be, zk_node_advance(be));
    else if (be->op == ZK_OP_STEP)
        conclude(be, zk_step_ask(be));
    else if (be->op == ZK_OP_LIST)
        conclude(be, zk_list_ask(be));
    else if (be->op == ZK_OP_CHECK)
        conclude(be, zk_check_ask(be));
    else if (be->op == ZK_OP_HOLD && be->hold.renew_until != DLOCK_NEVER)
        send_renewal(be);
}

static void connect_or_fail(struct zk_backend *be)
{
    if (!zk_session_open(be))
        failed(be);
    /* The library sends the create as soon as there is a session; credentials must come first. */
    else if (be->op == ZK_OP_ACQUIRE && !be->lock.credentials)
        advance(be);
}

static void on_expired(struct zk_backend *be)
{
    static const char why[] = "the server has ended the session";
    bool held = be->hold.grant == GRANT_HELD;
    if (be->release.sweeping) {
        released(be, be->release.how);
        return;
    }
    leave(be);
    if (be->op == ZK_OP_ACQUIRE || zk_is_query(be)) {
        connect_or_fail(be); /* at the end of the queue, with a new session */
    } else if (be->op == ZK_OP_HOLD && held) {
        lost(be, why);
    } else if (be->op == ZK_OP_RELEASE) {
        dlock_fail_at(&be->err, held ? DLOCK_ELOST : DLOCK_EUNAVAIL, 0, zk_where(be), "%s", why);
        released(be, !held                        ? DLOCK_RELEASE_NOTHING
                     : be->node.delete_unanswered ? DLOCK_RELEASE_UNCLEAR
                                                  : DLOCK_RELEASE_NOT_OURS);
    }
}

static void on_message(struct zk_backend *be, enum zk_news news, const struct zk_msg *m)
{
    be->err.code = 0;
    if (news == NEWS_BEAT)
        conclude(be, zk_beat_answered(be, m));
    else if (m->what == ZK_WATCH)
        conclude(be, zk_watch_fired(be, m));
    else if (m->answered) /* when the operation has failed, the answer to its create may come */
        conclude(be, m->answered(be, m));
}

static void take_news(struct zk_backend *be)
{
    /* The event queue is short: its events are handed out in between. */
    while (be->session.conn && be->events.n < EVENTS_MAX / 2) {
        struct zk_msg m = {0};
        enum zk_news news = zk_session_next(be, &m);
        switch (news) {
        case NEWS_NONE:
            return;
        case NEWS_CONNECTED:
            advance(be);
            break;
        case NEWS_RESUMED:
            zk_forget_requests(be);
            break;
        case NEWS_EXPIRED:
            on_expired(be);
            break;
        case NEWS_SHORTER: /* the command cannot get less time than it was told */
            lost(be, "the server grants shorter sessions now");
            break;
        case NEWS_FAILED:
            give_up(be);
            break;
        case NEWS_BEAT:
        case NEWS_MESSAGE:
            on_message(be, news, &m);
            break;
        }
        zk_msg_done(&m);
    }
}

static void timers(struct zk_backend *be)
{
    int64_t now = zk_now(be);
    bool no_session = be->session.id == 0;
    char text[32];
    if (now >= be->contact_until && !zk_list_ready(be)) {
        dlock_format_duration(be->spec->connect_timeout, text, sizeof(text));
        be->err = be->refusal;
        if (be->err.code == 0)
            dlock_fail_lock(&be->err, DLOCK_EUNAVAIL, 0, be->spec->uri,
                            "no %s within %s: no answer, or no quorum%s",
                            no_session ? "session" : "answer", text,
                            no_session ? "; is it a ZooKeeper server?" : "");
        failed(be);
    } else if (be->release.sweeping) {
        if (now >= be->release.until || !zk_sweep_goes_on(be))
            released(be, be->release.how);
    } else if (now >= be->release.until) {
        be->err = be->refusal;
        if (be->err.code == 0)
            dlock_fail_at(&be->err, DLOCK_EUNAVAIL, 0, zk_where(be), "no answer");
        released(be, DLOCK_RELEASE_UNCLEAR);
    } else if (now >= be->hold.renew_until) {
        no_answer(&be->err, be->spec, zk_answer_timeout(be));
        unclear(be);
    }
    if (be->session.conn && be->session.connected && now >= be->advance_at)
        advance(be);
}

/* ---------------------------------------------------------------------- slots */

void zk_done(struct zk_backend *be)
{
    drop_found(be);
    zk_sweep_end(be);
    zk_forget_requests(be);
    dlock_wipe(be->lock.credentials);
    free(be->lock.parent);
    free(be->node.stem);
    free(be->node.path);
    free(be->acquire.watch.granted);
    free(be->acquire.front.path);
    free(be->run.path.base);
    free(be->run.path.place);
    free(be->run.path.record);
    free(be->run.path.above);
}

static void be_close(struct dlock_be *b)
{
    if (!b)
        return;
    zk_session_close(self(b));
    zk_done(self(b));
    free(b);
}

static void be_close_in_child(struct dlock_be *b)
{
    struct zk_session *s = &self(b)->session;
    if (s->conn)
        zk_conn_close_in_child(s->conn);
    s->conn = NULL;
    be_close(b);
}

static int be_open(struct dlock_be **out, const struct dlock_spec *spec, struct dlock_error *err)
{
    struct zk_backend *be = calloc(1, sizeof(*be));
    if (!be)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    *out = (struct dlock_be *)be; /* good for close */
    be->spec = spec;
    leave(be);
    idle(be);
    outage_none(&be->outage);
    return zk_check_spec(be, err);
}

static void start(struct zk_backend *be, enum zk_op op)
{
    leave(be); /* a lock not given back in time goes with its session */
    idle(be);
    be->op = op;
    be->hold.grant = NOT_GRANTED;
    be->node.delete_unanswered = be->acquire.front.known = false;
    be->acquire.place = 0;
    be->refusal.code = 0;
    be->contact_until = zk_now(be) + be->spec->connect_timeout;
    outage_none(&be->outage);
    connect_or_fail(be);
}

static void be_acquire(struct dlock_be *b, bool wait)
{
    self(b)->acquire.wait = wait;
    start(self(b), ZK_OP_ACQUIRE);
}

static const struct dlock_error *be_refusal(const struct dlock_be *b)
{
    return &((const struct zk_backend *)b)->refusal;
}

static void be_renew(struct dlock_be *b)
{
    struct zk_backend *be = self(b);
    be->hold.renew_until = zk_now(be) + zk_answer_timeout(be);
    send_renewal(be);
}

static void be_release(struct dlock_be *b, int64_t until)
{
    struct zk_backend *be = self(b);
    be->events.n = 0;
    drop_found(be);
    be->release.until = until;
    if (be->op == ZK_OP_RELEASE)
        return;
    be->op = ZK_OP_RELEASE;
    be->contact_until = be->hold.renew_until = DLOCK_NEVER;
    be->session.beat.next_at = be->session.beat.until = DLOCK_NEVER;
    be->acquire.stage = STAGE_QUEUE;
    be->making.len = 0;
    be->refusal.code = 0;
    outage_none(&be->outage);
    advance(be);
}

static void be_ask(struct dlock_be *b, const struct dlock_question *question)
{
    self(b)->question = question;
    start(self(b), question->what == ASK_LIST ? ZK_OP_LIST : ZK_OP_CHECK);
}

static void be_step(struct dlock_be *b, const struct dlock_order *order)
{
    struct zk_backend *be = self(b);
    be->order = order;
    if (be->session.conn && be->session.connected) { /* of the step before */
        be->op = ZK_OP_STEP;
        advance(be);
    } else {
        start(be, ZK_OP_STEP);
    }
    if (be->op != ZK_OP_NONE)
        be->contact_until = order->until;
}

static bool be_next(struct dlock_be *b, struct dlock_info *info)
{
    return zk_step_next(self(b), info);
}

static void be_rest(struct dlock_be *b)
{
    leave(self(b));
    zk_step_drop(self(b));
}

static int be_interest(struct dlock_be *b, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    const struct zk_backend *be = self(b);
    const struct zk_session *s = &be->session;
    int n = 0;
    if (s->conn && cap > 0)
        pfd[n++] = (struct pollfd){.fd = s->fd, .events = POLLIN};
    n += zk_check_interest(be, pfd + n, cap - n, wake_at);
    if (be->op != ZK_OP_NONE) {
        *wake_at = dlock_min(*wake_at, dlock_min(be->contact_until, be->release.until));
        *wake_at = dlock_min(*wake_at, be->hold.renew_until);
        *wake_at = dlock_min(*wake_at, dlock_min(s->beat.next_at, s->beat.until));
        *wake_at = dlock_min(*wake_at, dlock_min(s->servers.next_at, s->away_at));
    }
    if (s->connected)
        *wake_at = dlock_min(*wake_at, be->advance_at);
    if (be->events.n > 0 || zk_list_ready(be) || be->found.ended)
        *wake_at = 0;
    return n;
}

static int be_process(struct dlock_be *b, const struct pollfd *pfd, int n, struct dlock_event *ev)
{
    struct zk_backend *be = self(b);
    (void)pfd;
    (void)n;
    take_news(be);
    timers(be);
    if (events_take(&be->events, ev))
        return 1;
    if (zk_check_words(be)) {
        leave(be);
        idle(be);
    }
    if (findings_take(&be->found, ev))
        return 1;
    if (!zk_list_ready(be))
        return 0;
    ev->type = EV_NONE;
    conclude(be, zk_list_next(be, ev));
    return ev->type != EV_NONE || events_take(&be->events, ev);
}

static const char *const schemes[] = {"zk", "zookeeper", NULL};

const struct dlock_backend DLOCK_BACKEND_SYMBOL(zookeeper) = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_BUILD_ID,
    .name = "zookeeper",
    .package = "dlock-zookeeper",
    .schemes = schemes,
    .caps = CAP_SHARED | CAP_SLOTS | CAP_FENCE | CAP_LEASE | CAP_LAG | CAP_ONCE,
    .open = be_open,
    .acquire = be_acquire,
    .refusal = be_refusal,
    .renew = be_renew,
    .release = be_release,
    .ask = be_ask,
    .step = be_step,
    .next = be_next,
    .rest = be_rest,
    .interest = be_interest,
    .process = be_process,
    .close = be_close,
    .close_in_child = be_close_in_child,
};
