/*
 * acquire.c - our node: how it comes into the queue, how it becomes first, how it is deleted.
 *
 * As in ZooKeeper's lock recipe, with three differences. The node's name carries a GUID, by which
 * we find our node again when the answer to the create was lost. When the node in front of ours is
 * gone, we look at the whole queue, whose owner may have died before its turn. And the wait goes on
 * across connections, as long as the session lives.
 *
 * Each waiter reads in the data of the node in front how close it is to the lock (enum zk_rank).
 */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A node in front of ours, with a watch. */
struct zk_watched {
    char *path;
    unsigned serial; /* of the get with the watch; 0: none */
};

/* -------------------------------------------------------------------- helpers */

enum zk_verdict zk_released(struct zk_backend *be, enum dlock_release_how how)
{
    be->release.how = how;
    return ZK_RELEASED;
}

static const char *last_part(const char *path)
{
    return strrchr(path, '/') + 1;
}

/* Set *path to the path of a child of the lock; false: out of memory. */
static bool set_child(char **path, const struct zk_backend *be, const char *child)
{
    char *made;
    if (asprintf(&made, "%s/%s", be->lock.parent, child) < 0)
        return false;
    free(*path);
    *path = made;
    return true;
}

static bool has_our_stem(const struct zk_backend *be, const char *name)
{
    const char *stem = last_part(be->node.stem);
    return strncmp(name, stem, strlen(stem)) == 0;
}

/* Our place in the queue is being given up, without a release. */
static bool is_leaving(const struct zk_backend *be)
{
    return be->acquire.stage == STAGE_BUSY || be->acquire.stage == STAGE_SKIPPED;
}

/* ------------------------------------------------------------------- requests */

static zk_answer_fn node_created, part_made, queue_listed, node_sought, self_read, touched_read,
    pred_read, front_read, node_deleted;

static void ask_create(struct zk_backend *be, zk_answer_fn *answered, const char *path,
                       const char *data, int flags)
{
    zk_conn_ask(be->session.conn, &(struct zk_request){.call = ZK_CREATE,
                                                       .answered = answered,
                                                       .path = path,
                                                       .data = data,
                                                       .acl = be->lock.acl,
                                                       .flags = flags});
}

enum zk_verdict zk_delete_node(struct zk_backend *be)
{
    be->node.delete_serial = zk_ask(be, ZK_DELETE, node_deleted, be->node.path);
    return ZK_GOES_ON;
}

static enum zk_verdict ask_queue(struct zk_backend *be)
{
    zk_ask_list(be, queue_listed);
    return ZK_GOES_ON;
}

static void ask_front(struct zk_backend *be)
{
    be->acquire.front.serial = zk_ask(be, ZK_GET, front_read, be->acquire.front.path);
}

static void watch(struct zk_backend *be, struct zk_watched *w)
{
    w->serial = zk_ask(be, ZK_GET_WATCHED, pred_read, w->path);
}

/* The watched node of this request, or NULL. */
static struct zk_watched *watched_by(const struct zk_backend *be, unsigned serial)
{
    for (int i = 0; serial != 0 && i < be->acquire.watch.n; i++)
        if (be->acquire.watch.nodes[i].serial == serial)
            return &be->acquire.watch.nodes[i];
    return NULL;
}

/* Ignore all watches from now on. */
static void forget_watches(struct zk_backend *be)
{
    for (int i = 0; i < be->acquire.watch.n; i++)
        free(be->acquire.watch.nodes[i].path);
    free(be->acquire.watch.nodes);
    be->acquire.watch.nodes = NULL;
    be->acquire.watch.n = 0;
}

void zk_forget_requests(struct zk_backend *be)
{
    forget_watches(be);
    be->list_serial = be->acquire.front.serial = be->run.serial = 0;
    be->node.self_serial = be->node.delete_serial = 0;
    if (be->node.state == NODE_ASKED)
        be->node.state = NODE_UNCLEAR;
}

/*
 * A watched node is gone, or its word has changed: look at the queue once, however many watches
 * fire.
 */
static enum zk_verdict look_again(struct zk_backend *be)
{
    forget_watches(be);
    return ask_queue(be);
}

static enum zk_verdict create(struct zk_backend *be)
{
    if (!be->node.stem && zk_new_stem(be, &be->err) < 0)
        return ZK_FAILED;
    be->node.state = NODE_ASKED;
    be->node.create_sent = zk_now(be);
    be->acquire.rank = RANK_BEHIND;
    be->acquire.place = 0;
    be->acquire.followed = false;
    be->node.version = 0;
    be->node.mark.by[0] = '\0';
    /* Most nodes are granted at once, and then the record's times are right. */
    zk_set_data(be, RECORD_HOLDS, WORD_WAITS);
    ask_create(be, node_created, be->node.stem, be->node.data.text, ZOO_EPHEMERAL | ZOO_SEQUENCE);
    /* In the same round trip: a session's requests are served in order. */
    return ask_queue(be);
}

/* -------------------------------------------------------------------- parents */

/* The length of path up to the end of the part behind at. */
static size_t part_end(const char *path, size_t at)
{
    return at + 1 + strcspn(path + at + 1, "/");
}

/* Make the part of length making.len. */
static enum zk_verdict make_part(struct zk_backend *be)
{
    size_t len = be->making.len;
    char *path = strndup(be->making.path, len);
    if (!path)
        return zk_no_memory(be);
    /* The server deletes an idle empty container. */
    bool container =
        be->making.path == be->lock.parent && len > be->lock.chroot_len && !be->making.flat;
    ask_create(be, part_made, path, "", container ? ZOO_CONTAINER : ZOO_PERSISTENT);
    free(path);
    return ZK_GOES_ON;
}

enum zk_verdict zk_make(struct zk_backend *be, const char *path)
{
    be->making.path = path;
    be->making.len = strlen(path);
    return make_part(be);
}

static enum zk_verdict part_made(struct zk_backend *be, const struct zk_msg *m)
{
    const char *path = be->making.path;
    size_t len = be->making.len;
    if ((be->op != ZK_OP_ACQUIRE && be->op != ZK_OP_RELEASE && !zk_run_begins(be)) || len == 0)
        return ZK_GOES_ON;
    if (m->rc == ZNONODE) {
        /* Upwards, not from the root: making an existing node may need a right we lack. */
        while (len > 1 && path[len - 1] != '/')
            len--;
        be->making.len = len > 1 ? len - 1 : part_end(path, 0);
    } else if (m->rc == ZUNIMPLEMENTED && !be->making.flat) {
        be->making.flat = true;
    } else if (m->rc != ZOK && m->rc != ZNODEEXISTS) {
        return zk_failed(be, m->rc, "cannot create the parent node");
    } else {
        be->making.len = len == strlen(path) ? 0 : part_end(path, len);
    }
    if (be->making.len > 0)
        return make_part(be);
    if (path == be->lock.parent)
        return create(be);
    be->advance_at = 0;
    return ZK_GOES_ON;
}

/* -------------------------------------------------------------------- advance */

/*
 * The create was not answered: is the node there? This server may lag behind the server of the
 * create, so it catches up first.
 */
static enum zk_verdict find(struct zk_backend *be)
{
    zk_ask(be, ZK_SYNC, NULL, be->lock.parent);
    zk_ask_list(be, node_sought);
    return ZK_GOES_ON;
}

static enum zk_verdict give_back(struct zk_backend *be)
{
    /* Without a session the create was not sent. */
    if (be->node.state == NODE_NONE || be->session.id == 0)
        return zk_released(be, be->hold.grant == GRANT_LOST ? DLOCK_RELEASE_NOT_OURS
                                                            : DLOCK_RELEASE_NOTHING);
    /* The answer to the create, or to the delete, comes first. */
    if (be->node.state == NODE_ASKED || be->node.delete_serial != 0 || !be->session.connected)
        return ZK_GOES_ON;
    if (be->node.state == NODE_UNCLEAR)
        return find(be);
    return ZK_MAY_DELETE;
}

enum zk_verdict zk_node_advance(struct zk_backend *be)
{
    if (be->op == ZK_OP_RELEASE)
        return give_back(be);
    switch (be->node.state) {
    case NODE_NONE:
        return be->making.len == 0 ? create(be) : make_part(be);
    case NODE_ASKED:
        break; /* the answer to the create decides */
    case NODE_UNCLEAR:
        return find(be);
    case NODE_THERE:
        if (is_leaving(be))
            return zk_delete_node(be);
        /* This server may lag behind our last server, and must tell us of a grant again. */
        free(be->acquire.watch.granted);
        be->acquire.watch.granted = NULL;
        ask_queue(be);
        zk_beat(be);
        break;
    }
    return ZK_GOES_ON;
}

/* ------------------------------------------------------------------- our node */

enum zk_verdict zk_node_gone(struct zk_backend *be)
{
    be->node.state = NODE_NONE;
    be->run.running.written = false;
    zk_forget_requests(be);
    be->acquire.stage = STAGE_QUEUE;
    be->advance_at = 0;
    return ZK_GOES_ON;
}

static enum zk_verdict node_created(struct zk_backend *be, const struct zk_msg *m)
{
    int64_t seq;
    if (be->node.state != NODE_ASKED)
        return ZK_GOES_ON;
    /* An answer without the name of our node is no answer: then we look for our node. */
    bool ours = m->rc == ZOK && m->data &&
                strncmp(m->data, be->node.stem, strlen(be->node.stem)) == 0 &&
                zk_sequence(m->data, &seq) && m->stat.ephemeralOwner == be->session.id;
    if (ours && set_child(&be->node.path, be, last_part(m->data))) {
        be->node.state = NODE_THERE;
        be->node.fence = (uint64_t)m->stat.czxid;
        be->node.data.confirmed = be->node.data.edition;
        zk_note_time(be, m->stat.ctime);
        zk_lease_confirm(&be->session, be->node.create_sent, true);
        be->session.beat.next_at = be->node.create_sent + be->session.timeout / 6;
    } else if (m->rc == ZOK || m->rc == ZK_NOMEMORY || zk_transient(m->rc)) {
        /* Without a session the create was not sent. */
        be->node.state = be->session.id == 0 ? NODE_NONE : NODE_UNCLEAR;
        zk_retry(be);
    } else {
        be->node.state = NODE_NONE;
    }
    if (be->op == ZK_OP_RELEASE && be->node.state != NODE_UNCLEAR)
        return give_back(be);
    if (be->op != ZK_OP_ACQUIRE || be->node.state != NODE_NONE)
        return ZK_GOES_ON;
    if (m->rc != ZNONODE)
        return zk_failed(be, m->rc, "cannot join the queue");
    return zk_make(be, be->lock.parent);
}

/* The list, asked for by find(). */
static enum zk_verdict node_sought(struct zk_backend *be, const struct zk_msg *m)
{
    const char *found = NULL;
    if (m->serial != be->list_serial || be->node.state != NODE_UNCLEAR)
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return zk_failed(be, m->rc, "cannot read the queue");
    for (int i = 0; i < m->nnames && !found; i++)
        if (has_our_stem(be, m->names[i]))
            found = m->names[i];
    if (!found) {
        be->node.state = NODE_NONE;
        return be->op == ZK_OP_RELEASE ? give_back(be) : zk_retry(be);
    }
    /*
     * The node is ours: the GUID in its name was made for this session alone, which still lives.
     * (Each session makes a new GUID: the stem ends with the session.) self_read() gets the fence.
     */
    if (!set_child(&be->node.path, be, found))
        return zk_no_memory(be);
    be->node.state = NODE_THERE;
    be->node.fence = 0;
    be->node.data.confirmed = be->node.data.edition;
    be->session.beat.next_at = zk_now(be);
    if (be->op == ZK_OP_RELEASE)
        return give_back(be);
    be->node.self_serial = zk_ask(be, ZK_GET, self_read, be->node.path);
    return ask_queue(be);
}

/* m: our node, as it is. A mark stays in the data that we write. */
static void note_node(struct zk_backend *be, const struct zk_msg *m)
{
    char *text = be->node.data.text, mark[ZK_MARK_MAX];
    bool marked = be->node.mark.by[0];
    be->node.version = m->stat.version;
    be->node.fence = (uint64_t)m->stat.czxid;
    if (!marked && zk_read_mark(m->data, m->len, &be->node.mark)) {
        zk_format_mark(&be->node.mark, mark);
        strncat(text, mark, sizeof(be->node.data.text) - strlen(text) - 1);
        be->node.data.edition++;
    }
    if (strcmp(m->data, text) == 0)
        be->node.data.confirmed = be->node.data.edition;
}

/* The found node: does this session own the node, and what is the fence? */
static enum zk_verdict self_read(struct zk_backend *be, const struct zk_msg *m)
{
    if (m->serial != be->node.self_serial || be->node.state != NODE_THERE ||
        be->op != ZK_OP_ACQUIRE)
        return ZK_GOES_ON;
    if (m->rc == ZNONODE || (m->rc == ZOK && m->stat.ephemeralOwner != be->session.id))
        return zk_node_gone(be);
    if (m->rc == ZOK) {
        note_node(be, m);
        zk_note_time(be, m->stat.ctime);
        return ZK_GOES_ON;
    }
    if (zk_transient(m->rc))
        be->node.state = NODE_UNCLEAR;
    return zk_failed(be, m->rc, "cannot read our node");
}

enum zk_verdict zk_not_ours(struct zk_backend *be)
{
    dlock_fail_at(&be->err, DLOCK_ELOST, 0, zk_where(be), "its node is gone");
    return zk_released(be, DLOCK_RELEASE_NOT_OURS);
}

enum zk_verdict zk_node_touched(struct zk_backend *be)
{
    be->node.self_serial = zk_ask(be, ZK_GET, touched_read, be->node.path);
    return ZK_GOES_ON;
}

/*
 * Our node was changed: marked by a client that breaks our hold, touched by a foreign client, or
 * written by a heartbeat of ours whose answer was lost. This ends the refused heartbeat.
 */
static enum zk_verdict touched_read(struct zk_backend *be, const struct zk_msg *m)
{
    if (m->serial != be->node.self_serial || be->node.state != NODE_THERE)
        return ZK_GOES_ON;
    be->node.self_serial = 0;
    if (m->rc == ZOK)
        note_node(be, m);
    if (m->rc == ZOK && (be->acquire.stage == STAGE_RECORD || zk_run_begins(be)))
        be->advance_at = 0; /* a run record's multi was refused */
    return zk_beat_answered(be, m);
}

enum zk_verdict zk_beat_answered(struct zk_backend *be, const struct zk_msg *m)
{
    bool held = be->hold.grant == GRANT_HELD, old_lease = be->acquire.stage == STAGE_LEASE;
    bool renewing =
        be->op == ZK_OP_HOLD && be->hold.renew_until != DLOCK_NEVER && !zk_run_begins(be);
    /* The heartbeat was sent before our delete. */
    if (be->op == ZK_OP_RELEASE && held && m->rc == ZNONODE)
        return zk_not_ours(be);
    if (be->op != ZK_OP_HOLD && (be->op != ZK_OP_ACQUIRE || is_leaving(be)))
        return ZK_GOES_ON; /* the delete of our node decides */
    if (m->rc == ZBADVERSION)
        return zk_node_touched(be);
    if (be->op == ZK_OP_ACQUIRE && m->rc == ZNONODE)
        return zk_node_gone(be);
    if (m->rc == ZNONODE) {
        be->node.state = NODE_NONE;
        return held ? ZK_LOST : ZK_GOES_ON;
    }
    if (renewing && m->rc != ZOK) {
        zk_error(be, m->rc, "the renewal failed");
        return ZK_FAILED;
    }
    /* There is no grant without a write. */
    if (old_lease && m->rc != ZOK && !zk_transient(m->rc))
        return zk_failed(be, m->rc, "cannot write to our node");
    if (old_lease && m->rc == ZOK)
        ask_queue(be);
    /* Our node's data was changed after the heartbeat was sent. */
    if (m->rc == ZOK && be->node.data.confirmed != be->node.data.edition)
        zk_beat(be);
    return renewing ? ZK_RENEWED : ZK_GOES_ON;
}

/* ------------------------------------------------------------------ the queue */

/* Our node says its rank at once: the waiter behind us goes by our word. */
static void set_rank(struct zk_backend *be, enum zk_rank rank)
{
    bool first = be->node.data.kind != RECORD_WAITS, next = rank == RANK_NEXT;
    if (rank <= be->acquire.rank && !first)
        return;
    be->acquire.rank = rank;
    if (!next && !first)
        return; /* the second waiter has the same word as the waiters behind */
    zk_set_data(be, RECORD_WAITS, next ? WORD_NEXT : WORD_WAITS);
    zk_beat(be);
}

/* Watch the nodes that keep our node, line[at], waiting. False: out of memory. */
static bool watch_line(struct zk_backend *be, const struct zk_child *line, int at,
                       const struct zk_wait *w)
{
    int first = w->what == WAIT_NODE ? w->node : 0, last = w->what == WAIT_NODE ? w->node : at - 1;
    forget_watches(be);
    be->acquire.watch.nodes = calloc((size_t)(last - first) + 1, sizeof(*be->acquire.watch.nodes));
    if (!be->acquire.watch.nodes)
        return false;
    for (int i = first; i <= last; i++) {
        struct zk_watched *next = &be->acquire.watch.nodes[be->acquire.watch.n];
        if (w->what == WAIT_SLOT && line[i].mode != DLOCK_MODE_SLOTS)
            continue;
        if (!set_child(&next->path, be, line[i].name))
            return false;
        be->acquire.watch.n++;
        watch(be, next);
    }
    be->acquire.watch.behind_slot = w->what == WAIT_NODE &&
                                    line[w->node].mode == DLOCK_MODE_SLOTS &&
                                    line[w->node].slots == line[at].slots;
    return true;
}

/* Our node, line[at], waits. */
static enum zk_verdict stand_behind(struct zk_backend *be, const struct zk_child *line, int at)
{
    struct zk_wait w = zk_wait_of(line, at);
    if (w.what == WAIT_IN_VAIN) {
        other_slots(&be->err, be->spec, w.slots);
        return ZK_FAILED;
    }
    be->acquire.place = line[at].place;
    be->acquire.rank_by_place = w.rank;
    be->acquire.front.known = false;
    /* A slot shows the holder of a slot, since a reader is not in the way. */
    int front = 0;
    while (line[at].mode == DLOCK_MODE_SLOTS && front < at &&
           !(line[front].mode == DLOCK_MODE_SLOTS && line[front].place == 0))
        front++;
    front = front == at ? 0 : front;
    if (!set_child(&be->acquire.front.path, be, line[front].name))
        return zk_no_memory(be);
    if (!be->acquire.wait) {
        be->acquire.stage = STAGE_BUSY;
        ask_front(be);
        return zk_delete_node(be);
    }
    be->acquire.stage = STAGE_QUEUE;
    be->contact_until = DLOCK_NEVER; /* the first contact is made: now the core ends the wait */
    if (!watch_line(be, line, at, &w))
        return zk_no_memory(be);
    be->acquire.front.watched = w.what == WAIT_NODE && w.node == front;
    if (!be->acquire.front.watched)
        ask_front(be);
    return ZK_GOES_ON;
}

/* Our turn, but the lease is too old: after an outage the command would be ended at once. */
static enum zk_verdict renew_lease(struct zk_backend *be)
{
    /*
     * A write renews the lease. Where no heartbeat was answered at the right time before the write,
     * a later write does.
     */
    int64_t soon = zk_now(be) + be->session.timeout / 6;
    if (be->acquire.stage != STAGE_LEASE) {
        be->acquire.stage = STAGE_LEASE;
        set_rank(be, RANK_NEXT);
        zk_beat(be);
    }
    be->session.beat.next_at = dlock_min(be->session.beat.next_at, soon);
    if (be->acquire.wait)
        be->contact_until = DLOCK_NEVER;
    return ZK_GOES_ON;
}

/* How does our node stand among the n nodes in line? */
static enum zk_verdict judge_queue(struct zk_backend *be, const struct zk_child *line, int n)
{
    const char *name = last_part(be->node.path);
    bool orphans = false;
    int at = n;
    for (int i = 0; i < n; i++) {
        char *path = NULL;
        if (strcmp(line[i].name, name) == 0)
            at = i;
        if (at == i || !has_our_stem(be, line[i].name))
            continue;
        /* A second node of this session: a create served after we had given it up. */
        orphans = true;
        if (!set_child(&path, be, line[i].name))
            return zk_no_memory(be);
        zk_ask(be, ZK_DELETE, NULL, path);
        free(path);
    }
    if (orphans)
        return ask_queue(be);
    if (at == n)
        return zk_node_gone(be);
    /* The server's counter stops there, and nodes with the same number have no order. */
    if (line[0].seq < 0 || line[n - 1].seq >= INT32_MAX) {
        dlock_fail_at(
            &be->err, DLOCK_EUNUSABLE, 0, zk_where(be),
            "the sequence numbers below %s are used up: delete that node while no client waits",
            be->lock.parent);
        return ZK_FAILED;
    }
    if (line[at].place > 0)
        return stand_behind(be, line, at);
    if (be->node.fence == 0) { /* our node was found, and the look at it has failed */
        be->node.state = NODE_UNCLEAR;
        return zk_retry(be);
    }
    if (zk_lease_is_old(be))
        return renew_lease(be);
    be->acquire.followed = false;
    for (int i = at + 1; i < n && line[at].mode == DLOCK_MODE_SLOTS; i++)
        be->acquire.followed = be->acquire.followed || line[i].mode == DLOCK_MODE_SLOTS;
    return ZK_TURN;
}

static enum zk_verdict queue_listed(struct zk_backend *be, const struct zk_msg *m)
{
    int n;
    if (m->serial != be->list_serial || be->op != ZK_OP_ACQUIRE || be->node.state != NODE_THERE ||
        is_leaving(be))
        return ZK_GOES_ON;
    if (m->rc == ZNONODE)
        return zk_node_gone(be);
    if (m->rc != ZOK)
        return zk_failed(be, m->rc, "cannot read the queue");
    struct zk_child *line = zk_line(m->names, m->nnames, &n);
    if (!line)
        return zk_no_memory(be);
    enum zk_verdict v = judge_queue(be, line, n);
    free(line);
    return v;
}

/* ------------------------------------------------------------ waiting, or not */

/* m: the answer to a get of the holder's node. */
static void keep_front(struct zk_backend *be, const struct zk_msg *m)
{
    be->acquire.front.known = m->rc == ZOK;
    if (be->acquire.front.known)
        zk_read_info(last_part(be->acquire.front.path), false, m->data, m->len, &m->stat,
                     &be->acquire.front.info);
}

static void tell_waiting(struct zk_backend *be)
{
    struct dlock_event *ev = events_add(&be->events, EV_WAITING);
    ev->place = be->acquire.place;
    ev->info = be->acquire.front.known ? &be->acquire.front.info : NULL;
}

/* The data of a watched node. */
static enum zk_verdict pred_read(struct zk_backend *be, const struct zk_msg *m)
{
    const struct zk_watched *w = watched_by(be, m->serial);
    char **granted = &be->acquire.watch.granted;
    if (!w || be->op != ZK_OP_ACQUIRE)
        return ZK_GOES_ON;
    if (m->rc == ZNONODE)
        return look_again(be);
    if (m->rc != ZOK)
        return zk_failed(be, m->rc, "cannot watch the node in front of ours");
    enum zk_word word = zk_read_word(m->data, m->len);
    /*
     * The slot in front has been granted: now we may be the first to wait, and watch the holders.
     * Only once for each node, since its word may be wrong.
     */
    if (be->acquire.watch.behind_slot && word == WORD_HELD &&
        (!*granted || strcmp(*granted, w->path) != 0)) {
        if (!set_child(granted, be, last_part(w->path)))
            return zk_no_memory(be);
        return look_again(be);
    }
    /* The word in front may not say yet what our place says. */
    enum zk_rank rank = word == WORD_HELD   ? RANK_NEXT
                        : word == WORD_NEXT ? RANK_SECOND
                                            : RANK_BEHIND;
    set_rank(be, rank > be->acquire.rank_by_place ? rank : be->acquire.rank_by_place);
    if (be->acquire.front.watched &&
        !be->acquire.front.known) { /* else the watch was only set again */
        keep_front(be, m);
        tell_waiting(be);
    }
    return ZK_GOES_ON;
}

/* STAGE_BUSY ends when our node is gone and the holder is known, STAGE_SKIPPED when it is gone. */
static enum zk_verdict leave_queue(const struct zk_backend *be)
{
    if (be->node.state != NODE_NONE)
        return ZK_GOES_ON;
    if (be->acquire.stage == STAGE_SKIPPED)
        return ZK_SKIPPED;
    return be->acquire.front.serial == 0 ? ZK_BUSY : ZK_GOES_ON;
}

static enum zk_verdict front_read(struct zk_backend *be, const struct zk_msg *m)
{
    if (m->serial != be->acquire.front.serial || be->op != ZK_OP_ACQUIRE)
        return ZK_GOES_ON;
    be->acquire.front.serial = 0;
    keep_front(be, m);
    if (is_leaving(be))
        return leave_queue(be);
    tell_waiting(be);
    return ZK_GOES_ON;
}

static enum zk_verdict node_deleted(struct zk_backend *be, const struct zk_msg *m)
{
    bool gone = m->rc == ZOK || m->rc == ZNONODE;
    if (m->serial != be->node.delete_serial)
        return ZK_GOES_ON;
    be->node.delete_serial = 0;
    if (!gone && zk_transient(m->rc)) {
        be->node.delete_unanswered = true;
        return zk_retry(be);
    }
    /* After a refused delete the node goes with its session. */
    if (gone || is_leaving(be))
        be->node.state = NODE_NONE;
    if (is_leaving(be))
        return leave_queue(be);
    if (be->op != ZK_OP_RELEASE)
        return ZK_GOES_ON;
    if (!gone) {
        zk_error(be, m->rc, "cannot delete our node");
        return zk_released(be, DLOCK_RELEASE_UNCLEAR);
    }
    if (be->hold.grant != GRANT_HELD)
        return zk_released(be, DLOCK_RELEASE_NOTHING);
    if (m->rc == ZOK)
        return zk_released(be, DLOCK_RELEASE_CLEAN);
    if (!be->node.delete_unanswered)
        return zk_not_ours(be);
    /*
     * Most likely our first delete has deleted the node. But after an unanswered heartbeat there
     * was a time in which no answer proved the node's existence.
     */
    const struct zk_session *s = &be->session;
    if (s->beat.sent <= s->lease.sent[s->lease.n - 1])
        return zk_released(be, DLOCK_RELEASE_CLEAN);
    dlock_fail_at(&be->err, DLOCK_EUNAVAIL, 0, zk_where(be),
                  "no answer to the last heartbeat and the first delete; now the node is gone");
    return zk_released(be, DLOCK_RELEASE_UNCLEAR);
}

enum zk_verdict zk_watch_fired(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_watched *w = watched_by(be, m->serial);
    if (!w || be->op != ZK_OP_ACQUIRE || !be->session.connected)
        return ZK_GOES_ON;
    if (m->event != ZOO_CHANGED_EVENT)
        return look_again(be);
    watch(be, w); /* a heartbeat */
    return ZK_GOES_ON;
}
