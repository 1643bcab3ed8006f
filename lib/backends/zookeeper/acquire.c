/*
 * acquire.c - our node: how it comes into the queue, how it becomes first, how it is deleted.
 *
 * As in ZooKeeper's lock recipe, but: the node's name carries a GUID, so that we find our node again when the answer to
 * the create was lost; when the node in front of ours is gone, we look at the whole queue, since its owner may have died
 * before it was first; and all of it goes on across connections, as long as the session lives.
 *
 * Each waiter reads in the data of the node that it waits for how close it is to the lock (enum zk_rank).
 */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* *path becomes that of the lock's child; false: out of memory. */
static bool set_child(char **path, const struct zk_backend *be, const char *child)
{
    char *made;
    if (asprintf(&made, "%s/%s", be->lock.parent, child) < 0)
        return false;
    free(*path);
    *path = made;
    return true;
}

/* ------------------------------------------------------------------- requests */

static unsigned ask_children(struct zk_backend *be, enum zk_tag tag)
{
    return zk_conn_ask(
        be->session.conn,
        &(struct zk_request){.call = ZK_CHILDREN, .tag = (int)tag, .path = be->lock.parent});
}

static unsigned ask_node(struct zk_backend *be, enum zk_tag tag, const char *path, bool watch)
{
    return zk_conn_ask(
        be->session.conn,
        &(struct zk_request){.call = ZK_GET, .tag = (int)tag, .path = path, .watch = watch});
}

static unsigned ask_delete(struct zk_backend *be, enum zk_tag tag, const char *path)
{
    return zk_conn_ask(be->session.conn,
                       &(struct zk_request){.call = ZK_DELETE, .tag = (int)tag, .path = path});
}

static void ask_create(struct zk_backend *be, enum zk_tag tag, const char *path, const char *data,
                       int flags)
{
    zk_conn_ask(be->session.conn, &(struct zk_request){.call = ZK_CREATE,
                                                       .tag = (int)tag,
                                                       .path = path,
                                                       .data = data,
                                                       .acl = be->lock.acl,
                                                       .flags = flags});
}

void zk_delete_node(struct zk_backend *be)
{
    be->release.serial = ask_delete(be, T_DELETE, be->node.path);
}

/* Our place in the queue is being given up, without a release. */
static bool is_leaving(const struct zk_backend *be)
{
    return be->acquire.stage == STAGE_BUSY || be->acquire.stage == STAGE_SKIPPED;
}

static void list(struct zk_backend *be)
{
    be->acquire.list_serial = ask_children(be, T_LIST);
}

static void watch(struct zk_backend *be, struct zk_watched *w)
{
    w->serial = ask_node(be, T_PRED, w->path, true);
}

/* That of the request with this serial, or NULL. */
static struct zk_watched *watched_by(const struct zk_backend *be, unsigned serial)
{
    for (int i = 0; serial != 0 && i < be->acquire.nwatched; i++)
        if (be->acquire.watched[i].serial == serial)
            return &be->acquire.watched[i];
    return NULL;
}

void zk_forget_watches(struct zk_backend *be)
{
    for (int i = 0; i < be->acquire.nwatched; i++)
        free(be->acquire.watched[i].path);
    free(be->acquire.watched);
    be->acquire.watched = NULL;
    be->acquire.nwatched = 0;
}

/* A node that we watched is gone, or its word has changed: look at the queue, once, however many watches fire. */
static void look_again(struct zk_backend *be)
{
    zk_forget_watches(be);
    list(be);
}

static enum zk_verdict create(struct zk_backend *be, struct dlock_error *err)
{
    if (!be->node.stem && zk_new_stem(be, err) < 0)
        return ZK_FAILED;
    be->node.state = NODE_ASKED;
    be->node.create_sent = zk_now(be);
    be->acquire.rank = RANK_BEHIND;
    be->acquire.place = 0;
    be->acquire.followed = false;
    /* Most are granted at once: then its times are right. */
    zk_set_record(be, RECORD_HOLDS, WORD_WAITS);
    ask_create(be, T_CREATE, be->node.stem, be->lock.record, ZOO_EPHEMERAL | ZOO_SEQUENCE);
    /* In the same round trip: a session's requests are served in order. */
    list(be);
    return ZK_GOES_ON;
}

/* -------------------------------------------------------------------- parents */

/* The length of path up to the end of the part that begins behind at. */
static size_t part_end(const char *path, size_t at)
{
    return at + 1 + strcspn(path + at + 1, "/");
}

/* The length of path up to the end of the part above the one that ends at at. */
static size_t part_above(const char *path, size_t at)
{
    while (at > 1 && path[at - 1] != '/')
        at--;
    return at > 1 ? at - 1 : part_end(path, 0);
}

/* Make the part of length making.len. */
static enum zk_verdict make_parent(struct zk_backend *be, struct dlock_error *err)
{
    size_t len = be->making.len;
    char *path = strndup(be->making.path, len);
    if (!path)
        return zk_no_memory(err);
    /* The server deletes a container that has been empty for a while. */
    bool container = be->making.path == be->lock.parent && len > be->lock.chroot_len &&
                     !be->acquire.flat_parents;
    ask_create(be, T_PARENT, path, "", container ? ZOO_CONTAINER : ZOO_PERSISTENT);
    free(path);
    return ZK_GOES_ON;
}

enum zk_verdict zk_make(struct zk_backend *be, const char *path, struct dlock_error *err)
{
    be->making.path = path;
    be->making.len = strlen(path);
    return make_parent(be, err);
}

static enum zk_verdict on_parent(struct zk_backend *be, const struct zk_msg *m,
                                 struct dlock_error *err)
{
    const char *path = be->making.path;
    size_t len = be->making.len;
    if ((be->op != OP_ACQUIRE && be->op != OP_RELEASE) || len == 0)
        return ZK_GOES_ON;
    switch (m->rc) {
    case ZOK:
    case ZNODEEXISTS:
        be->making.len = len == strlen(path) ? 0 : part_end(path, len);
        if (be->making.len > 0)
            return make_parent(be, err);
        if (path == be->lock.parent)
            return create(be, err);
        be->again_at = 0;
        return ZK_GOES_ON;
    case ZNONODE:
        /* Upwards, not from the root: to make a node that exists may need a right that we do not have. */
        be->making.len = part_above(path, len);
        return make_parent(be, err);
    case ZUNIMPLEMENTED:
        if (be->acquire.flat_parents)
            break;
        be->acquire.flat_parents = true;
        return make_parent(be, err);
    default:
        break;
    }
    return zk_failed(be, m->rc, "cannot create the parent node", err);
}

/* -------------------------------------------------------------- the next step */

/* The create was not answered: is the node there? This server may lag behind the other one, so it catches up first. */
static void find(struct zk_backend *be)
{
    zk_conn_ask(be->session.conn,
                &(struct zk_request){.call = ZK_SYNC, .tag = T_SYNC, .path = be->lock.parent});
    be->acquire.list_serial = ask_children(be, T_FIND);
}

static enum zk_verdict stand_in_line(struct zk_backend *be, struct dlock_error *err)
{
    switch (be->node.state) {
    case NODE_NONE:
        return be->making.len == 0 ? create(be, err) : make_parent(be, err);
    case NODE_ASKED:
        break; /* the answer decides */
    case NODE_UNCLEAR:
        find(be);
        break;
    case NODE_THERE:
        if (is_leaving(be)) {
            zk_delete_node(be);
            break;
        }
        /* This server may be behind the one that told us of a grant: it must tell us again. */
        free(be->acquire.heard);
        be->acquire.heard = NULL;
        list(be);
        zk_beat(be);
        break;
    }
    return ZK_GOES_ON;
}

static enum zk_verdict give_back(struct zk_backend *be, struct dlock_error *err)
{
    switch (be->node.state) {
    case NODE_NONE:
        return zk_released(be, be->grant == GRANT_LOST ? DLOCK_RELEASE_NOT_OURS
                                                       : DLOCK_RELEASE_NOTHING);
    case NODE_ASKED:
        break; /* its answer first */
    case NODE_UNCLEAR:
        if (be->session.connected)
            find(be);
        break;
    case NODE_THERE:
        if (!be->session.connected || be->release.serial != 0)
            break;
        if (zk_run_ends(be))
            return zk_run_end(be, err);
        zk_delete_node(be);
        break;
    }
    return ZK_GOES_ON;
}

enum zk_verdict zk_node_step(struct zk_backend *be, struct dlock_error *err)
{
    return be->op == OP_RELEASE ? give_back(be, err) : stand_in_line(be, err);
}

/* ------------------------------------------------------------------- our node */

enum zk_verdict zk_node_gone(struct zk_backend *be)
{
    be->node.state = NODE_NONE;
    be->run.written = false;
    zk_forget_watches(be);
    be->acquire.front_serial = 0;
    be->acquire.stage = STAGE_QUEUE;
    be->again_at = 0;
    return ZK_GOES_ON;
}

/* Is the path that the server returns for our create a node of ours? If not, this is no answer: we look for our node. */
static bool is_ours(const struct zk_backend *be, const struct zk_msg *m)
{
    int64_t seq;
    return m->data && strncmp(m->data, be->node.stem, strlen(be->node.stem)) == 0 &&
           zk_sequence(m->data, &seq) && m->stat.ephemeralOwner == be->session.id;
}

static enum zk_verdict on_created(struct zk_backend *be, struct zk_msg *m, struct dlock_error *err)
{
    if (be->node.state != NODE_ASKED)
        return ZK_GOES_ON;
    if (m->rc == ZOK && is_ours(be, m)) {
        free(be->node.path);
        be->node.path = m->data;
        m->data = NULL;
        be->node.state = NODE_THERE;
        be->node.fence = (uint64_t)m->stat.czxid;
        be->node.told = be->lock.edition;
        zk_note_time(be, m->stat.ctime);
        zk_heard(&be->session, be->node.create_sent);
        be->session.beat.next_at = be->node.create_sent + be->session.timeout / 6;
    } else if (m->rc == ZOK || m->rc == ZK_NOMEMORY || zk_transient(m->rc)) {
        be->node.state = NODE_UNCLEAR;
        zk_again(be);
    } else {
        be->node.state = NODE_NONE;
    }
    if (be->op == OP_RELEASE)
        return be->node.state == NODE_UNCLEAR ? ZK_GOES_ON : give_back(be, err);
    if (be->op != OP_ACQUIRE || be->node.state != NODE_NONE)
        return ZK_GOES_ON;
    if (m->rc != ZNONODE)
        return zk_failed(be, m->rc, "cannot join the queue", err);
    return zk_make(be, be->lock.parent, err);
}

static bool has_our_stem(const struct zk_backend *be, const char *name)
{
    const char *stem = last_part(be->node.stem);
    return strncmp(name, stem, strlen(stem)) == 0;
}

static enum zk_verdict on_found(struct zk_backend *be, const struct zk_msg *m,
                                struct dlock_error *err)
{
    const char *found = NULL;
    if (m->serial != be->acquire.list_serial || be->node.state != NODE_UNCLEAR)
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return zk_failed(be, m->rc, "cannot read the queue", err);
    for (int i = 0; i < m->nnames && !found; i++)
        if (has_our_stem(be, m->names[i]))
            found = m->names[i];
    if (!found) {
        be->node.state = NODE_NONE;
        if (be->op == OP_RELEASE)
            return give_back(be, err);
        zk_again(be);
        return ZK_GOES_ON;
    }
    /*
     * The GUID in its name was made for this session alone, which still lives: it is ours. (Another session's nodes have
     * another GUID: the stem ends with the session.) T_SELF gets the fence.
     */
    if (!set_child(&be->node.path, be, found))
        return zk_no_memory(err);
    be->node.state = NODE_THERE;
    be->node.fence = 0;
    be->node.told = be->lock.edition;
    be->session.beat.next_at = zk_now(be);
    if (be->op == OP_RELEASE)
        return give_back(be, err);
    be->acquire.front_serial = ask_node(be, T_SELF, be->node.path, false);
    list(be);
    return ZK_GOES_ON;
}

/* The node that was found: is it this session's, and what is its fence? */
static enum zk_verdict on_self(struct zk_backend *be, const struct zk_msg *m,
                               struct dlock_error *err)
{
    if (m->serial != be->acquire.front_serial || be->node.state != NODE_THERE ||
        be->op != OP_ACQUIRE)
        return ZK_GOES_ON;
    if (m->rc == ZNONODE || (m->rc == ZOK && m->stat.ephemeralOwner != be->session.id))
        return zk_node_gone(be);
    if (m->rc == ZOK) {
        be->node.fence = (uint64_t)m->stat.czxid;
        zk_note_time(be, m->stat.ctime);
        return ZK_GOES_ON;
    }
    if (zk_transient(m->rc))
        be->node.state = NODE_UNCLEAR;
    return zk_failed(be, m->rc, "cannot read our node", err);
}

enum zk_verdict zk_not_ours(struct zk_backend *be, struct dlock_error *err)
{
    dlock_fail_at(err, DLOCK_ELOST, 0, zk_where(be), "its node is gone");
    return zk_released(be, DLOCK_RELEASE_NOT_OURS);
}

static enum zk_verdict on_beat(struct zk_backend *be, const struct zk_msg *m,
                               struct dlock_error *err)
{
    /* It was sent before our delete. */
    if (be->op == OP_RELEASE && be->grant == GRANT_HELD && m->rc == ZNONODE)
        return zk_not_ours(be, err);
    if (be->op != OP_ACQUIRE || is_leaving(be))
        return ZK_GOES_ON; /* the delete of the node decides */
    if (m->rc == ZNONODE)
        return zk_node_gone(be);
    if (m->rc == ZOK && be->acquire.stage == STAGE_RIPENING)
        list(be);
    /* There is no grant without a write. */
    if (m->rc != ZOK && be->acquire.stage == STAGE_RIPENING && !zk_transient(m->rc))
        return zk_failed(be, m->rc, "cannot write to our node", err);
    /* The record has changed meanwhile. */
    if (m->rc == ZOK && be->node.told != be->lock.edition)
        zk_beat(be);
    return ZK_GOES_ON;
}

/* ------------------------------------------------------------------ the queue */

/* How our node stands in the queue. */
enum standing {
    NOT_IN_LINE, /* our node is gone */
    HAS_ORPHANS, /* there are other nodes of this session: creates that were served after we had given them up */
    NUMBERS_USED_UP, /* the server's counter stops there; nodes with the same number have no order */
    BEHIND,          /* others are in front that exclude us */
    UNVERIFIED,      /* our turn; but our node was found, and the look at it has failed */
    LEASE_TOO_OLD,   /* our turn; but after an outage the command would be ended at once */
    OUR_TURN
};

static bool is_orphan(const struct zk_backend *be, const char *name)
{
    return has_our_stem(be, name) && strcmp(name, last_part(be->node.path)) != 0;
}

bool zk_lease_is_old(const struct zk_backend *be)
{
    return zk_now(be) - zk_lease_from(&be->session) > be->session.timeout / 24 * 13;
}

/* *at: the index of our node. */
static enum standing standing(const struct zk_backend *be, const struct zk_child *line, int n,
                              int *at)
{
    bool orphans = false;
    for (int i = 0; i < n; i++)
        orphans = orphans || is_orphan(be, line[i].name);
    for (*at = 0; *at < n && strcmp(line[*at].name, last_part(be->node.path)) != 0; ++*at)
        ;
    if (orphans)
        return HAS_ORPHANS;
    if (*at == n)
        return NOT_IN_LINE;
    if (line[0].seq < 0 || line[n - 1].seq >= INT32_MAX)
        return NUMBERS_USED_UP;
    if (line[*at].place > 0)
        return BEHIND;
    if (be->node.fence == 0)
        return UNVERIFIED;
    if (zk_lease_is_old(be))
        return LEASE_TOO_OLD;
    return OUR_TURN;
}

/* The first contact was a success: now the wait is the core's to end. */
static void contact_made(struct zk_backend *be)
{
    be->contact_until = DLOCK_NEVER;
}

/* Our node says it at once: the waiter behind us goes by it. */
static void set_rank(struct zk_backend *be, enum zk_rank rank)
{
    bool first = be->lock.record_of != RECORD_WAITS;
    if (rank <= be->acquire.rank && !first)
        return;
    bool next = rank == RANK_NEXT;
    be->acquire.rank = rank;
    if (!next && !first)
        return; /* the second one says the same as the others */
    zk_set_record(be, RECORD_WAITS, next ? WORD_NEXT : WORD_WAITS);
    zk_beat(be);
}

/* The holder that is shown to our node, line[at]: for a slot one of those, since a reader is not in its way. */
static int front_of(const struct zk_child *line, int at)
{
    for (int i = 0; i < at && line[at].mode == DLOCK_MODE_SLOTS; i++)
        if (line[i].mode == DLOCK_MODE_SLOTS && line[i].place == 0)
            return i;
    return 0;
}

/* Watch what keeps our node, line[at], waiting. False: out of memory. */
static bool watch_line(struct zk_backend *be, const struct zk_child *line, int at,
                       const struct zk_wait *w)
{
    int first = w->what == WAIT_NODE ? w->node : 0, last = w->what == WAIT_NODE ? w->node : at - 1;
    zk_forget_watches(be);
    be->acquire.watched = calloc((size_t)(last - first) + 1, sizeof(*be->acquire.watched));
    if (!be->acquire.watched)
        return false;
    for (int i = first; i <= last; i++) {
        struct zk_watched *next = &be->acquire.watched[be->acquire.nwatched];
        if (w->what == WAIT_SLOT && line[i].mode != DLOCK_MODE_SLOTS)
            continue;
        if (!set_child(&next->path, be, line[i].name))
            return false;
        be->acquire.nwatched++;
        watch(be, next);
    }
    be->acquire.front_watched = w->what == WAIT_NODE && w->node == front_of(line, at);
    be->acquire.behind_slot = w->what == WAIT_NODE && line[w->node].mode == DLOCK_MODE_SLOTS &&
                              line[w->node].slots == line[at].slots;
    return true;
}

/* Behind others that exclude us. */
static enum zk_verdict stand_behind(struct zk_backend *be, const struct zk_child *line, int at,
                                    struct dlock_error *err)
{
    struct zk_wait w = zk_wait_of(line, at);
    if (w.what == WAIT_IN_VAIN) {
        other_slots(err, be->spec, w.slots);
        return ZK_FAILED;
    }
    be->acquire.place = line[at].place;
    be->acquire.rank_by_place = w.rank;
    be->acquire.front_known = false;
    if (!set_child(&be->acquire.front, be, line[front_of(line, at)].name))
        return zk_no_memory(err);
    if (!be->acquire.wait) {
        be->acquire.stage = STAGE_BUSY;
        be->acquire.front_serial = ask_node(be, T_FRONT, be->acquire.front, false);
        zk_delete_node(be);
        return ZK_GOES_ON;
    }
    be->acquire.stage = STAGE_QUEUE;
    contact_made(be);
    if (!watch_line(be, line, at, &w))
        return zk_no_memory(err);
    if (!be->acquire.front_watched)
        be->acquire.front_serial = ask_node(be, T_FRONT, be->acquire.front, false);
    return ZK_GOES_ON;
}

static enum zk_verdict drop_orphans(struct zk_backend *be, const struct zk_child *line, int n,
                                    struct dlock_error *err)
{
    for (int i = 0; i < n; i++) {
        char *path = NULL;
        if (!is_orphan(be, line[i].name))
            continue;
        if (!set_child(&path, be, line[i].name))
            return zk_no_memory(err);
        ask_delete(be, T_ORPHAN, path);
        free(path);
    }
    list(be);
    return ZK_GOES_ON;
}

static enum zk_verdict numbers_used_up(struct zk_backend *be, struct dlock_error *err)
{
    dlock_fail_at(
        err, DLOCK_EUNUSABLE, 0, zk_where(be),
        "the sequence numbers below %s are used up: delete that node while no client waits",
        be->lock.parent);
    return ZK_FAILED;
}

/* A write renews the lease; where no heartbeat was answered in the right time before it, another one, later. */
static enum zk_verdict ripen(struct zk_backend *be)
{
    int64_t soon = zk_now(be) + be->session.timeout / 6;
    if (be->acquire.stage != STAGE_RIPENING) {
        be->acquire.stage = STAGE_RIPENING;
        set_rank(be, RANK_NEXT);
        zk_beat(be);
    }
    be->session.beat.next_at = dlock_min(be->session.beat.next_at, soon);
    if (be->acquire.wait)
        contact_made(be);
    return ZK_GOES_ON;
}

/* Does another slot stand behind line[at]? */
static bool is_followed(const struct zk_child *line, int n, int at)
{
    bool found = false;
    for (int i = at + 1; i < n && !found && line[at].mode == DLOCK_MODE_SLOTS; i++)
        found = line[i].mode == DLOCK_MODE_SLOTS;
    return found;
}

static enum zk_verdict look_at(struct zk_backend *be, const struct zk_child *line, int n,
                               struct dlock_error *err)
{
    int at;
    switch (standing(be, line, n, &at)) {
    case NOT_IN_LINE:
        return zk_node_gone(be);
    case HAS_ORPHANS:
        return drop_orphans(be, line, n, err);
    case NUMBERS_USED_UP:
        return numbers_used_up(be, err);
    case BEHIND:
        return stand_behind(be, line, at, err);
    case UNVERIFIED:
        be->node.state = NODE_UNCLEAR;
        zk_again(be);
        return ZK_GOES_ON;
    case LEASE_TOO_OLD:
        return ripen(be);
    case OUR_TURN:
        be->acquire.followed = is_followed(line, n, at);
        return zk_run_turn(be);
    }
    return ZK_GOES_ON;
}

static enum zk_verdict on_list(struct zk_backend *be, const struct zk_msg *m,
                               struct dlock_error *err)
{
    int n;
    if (m->serial != be->acquire.list_serial || be->op != OP_ACQUIRE ||
        be->node.state != NODE_THERE || is_leaving(be))
        return ZK_GOES_ON;
    if (m->rc == ZNONODE)
        return zk_node_gone(be);
    if (m->rc != ZOK)
        return zk_failed(be, m->rc, "cannot read the queue", err);
    struct zk_child *line = zk_line(m->names, m->nnames, &n);
    if (!line)
        return zk_no_memory(err);
    enum zk_verdict v = look_at(be, line, n, err);
    free(line);
    return v;
}

/* ------------------------------------------------------------ waiting, or not */

/* m: that of the node that is shown. */
static void keep_info(struct zk_backend *be, const struct zk_msg *m)
{
    be->acquire.front_known = m->rc == ZOK;
    if (be->acquire.front_known)
        zk_read_info(last_part(be->acquire.front), false, m->data, m->len, &m->stat, &be->info);
}

static void waiting(struct zk_backend *be)
{
    struct dlock_event *ev = events_add(&be->events, EV_WAITING);
    ev->place = be->acquire.place;
    ev->info = be->acquire.front_known ? &be->info : NULL;
}

/* Our rank, from the word of the node that we wait for. It may not say yet what our place does. */
static enum zk_rank rank_behind(const struct zk_backend *be, enum zk_word word)
{
    enum zk_rank told = word == WORD_HELD   ? RANK_NEXT
                        : word == WORD_NEXT ? RANK_SECOND
                                            : RANK_BEHIND;
    return told > be->acquire.rank_by_place ? told : be->acquire.rank_by_place;
}

/*
 * The slot that we wait for has been granted: now we may be the first to wait, and watch the holders. Once for each node:
 * what it says may be wrong. *heard: has it said so just now?
 */
static bool hear(struct zk_backend *be, const struct zk_watched *w, enum zk_word word, bool *heard)
{
    *heard = be->acquire.behind_slot && word == WORD_HELD &&
             (!be->acquire.heard || strcmp(be->acquire.heard, w->path) != 0);
    return !*heard || set_child(&be->acquire.heard, be, last_part(w->path));
}

static enum zk_verdict on_pred(struct zk_backend *be, const struct zk_msg *m,
                               struct dlock_error *err)
{
    const struct zk_watched *w = watched_by(be, m->serial);
    bool heard;
    if (!w || be->op != OP_ACQUIRE)
        return ZK_GOES_ON;
    if (m->rc == ZNONODE) {
        look_again(be);
        return ZK_GOES_ON;
    }
    if (m->rc != ZOK)
        return zk_failed(be, m->rc, "cannot watch the node in front of ours", err);
    enum zk_word word = zk_read_word(m->data, m->len);
    if (!hear(be, w, word, &heard))
        return zk_no_memory(err);
    if (heard) {
        look_again(be);
        return ZK_GOES_ON;
    }
    set_rank(be, rank_behind(be, word));
    if (be->acquire.front_watched &&
        !be->acquire.front_known) { /* else the watch was only set again */
        keep_info(be, m);
        waiting(be);
    }
    return ZK_GOES_ON;
}

static enum zk_verdict on_watch(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_watched *w = watched_by(be, m->serial);
    if (!w || be->op != OP_ACQUIRE || !be->session.connected)
        return ZK_GOES_ON;
    if (m->event == ZOO_CHANGED_EVENT)
        watch(be, w); /* a heartbeat */
    else
        look_again(be);
    return ZK_GOES_ON;
}

/* STAGE_BUSY is over when our node is gone and the holder is known, STAGE_SKIPPED when it is gone. */
static enum zk_verdict busy_over(const struct zk_backend *be)
{
    if (be->acquire.stage == STAGE_SKIPPED)
        return be->node.state == NODE_NONE ? ZK_SKIPPED : ZK_GOES_ON;
    return be->acquire.front_serial == 0 && be->node.state == NODE_NONE ? ZK_BUSY : ZK_GOES_ON;
}

static enum zk_verdict on_front(struct zk_backend *be, const struct zk_msg *m)
{
    if (m->serial != be->acquire.front_serial || be->op != OP_ACQUIRE)
        return ZK_GOES_ON;
    be->acquire.front_serial = 0;
    keep_info(be, m);
    if (is_leaving(be))
        return busy_over(be);
    waiting(be);
    return ZK_GOES_ON;
}

/* --------------------------------------------------------------------- delete */

/* The delete was refused: the node goes when its session ends. */
static enum zk_verdict not_deleted(struct zk_backend *be, int rc, struct dlock_error *err)
{
    if (zk_transient(rc)) {
        be->release.unanswered = true;
        zk_again(be);
        return ZK_GOES_ON;
    }
    if (is_leaving(be)) {
        be->node.state = NODE_NONE;
        return busy_over(be);
    }
    if (be->op != OP_RELEASE)
        return ZK_GOES_ON;
    zk_error(be, rc, "cannot delete our node", err);
    return zk_released(be, DLOCK_RELEASE_UNCLEAR);
}

static enum zk_verdict on_deleted(struct zk_backend *be, const struct zk_msg *m,
                                  struct dlock_error *err)
{
    if (m->serial != be->release.serial)
        return ZK_GOES_ON;
    be->release.serial = 0;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return not_deleted(be, m->rc, err);
    be->node.state = NODE_NONE;
    if (is_leaving(be))
        return busy_over(be);
    if (be->op != OP_RELEASE)
        return ZK_GOES_ON;
    if (be->grant != GRANT_HELD)
        return zk_released(be, DLOCK_RELEASE_NOTHING);
    if (m->rc == ZOK)
        return zk_released(be, DLOCK_RELEASE_CLEAN);
    if (!be->release.unanswered)
        return zk_not_ours(be, err);
    /* Most likely the node went with our first delete. But there was a time in which nobody told us that it was there. */
    if (!zk_beat_unanswered(&be->session))
        return zk_released(be, DLOCK_RELEASE_CLEAN);
    dlock_fail_at(err, DLOCK_EUNAVAIL, 0, zk_where(be),
                  "no answer to the last heartbeat and the first delete; now the node is gone");
    return zk_released(be, DLOCK_RELEASE_UNCLEAR);
}

/* ------------------------------------------------------------------- messages */

enum zk_verdict zk_node_message(struct zk_backend *be, struct zk_msg *m, struct dlock_error *err)
{
    if (m->what == ZK_WATCH)
        return on_watch(be, m);
    switch ((enum zk_tag)m->tag) {
    case T_BEAT:
        return on_beat(be, m, err);
    case T_CREATE:
        return on_created(be, m, err);
    case T_PARENT:
        return on_parent(be, m, err);
    case T_LIST:
        return on_list(be, m, err);
    case T_FIND:
        return on_found(be, m, err);
    case T_SELF:
        return on_self(be, m, err);
    case T_PRED:
        return on_pred(be, m, err);
    case T_FRONT:
        return on_front(be, m);
    case T_DELETE:
        return on_deleted(be, m, err);
    case T_RECORD:
    case T_RUNNING:
    case T_END:
        return zk_run_message(be, m, err);
    case T_AUTH:
    case T_SYNC:
    case T_ORPHAN:
    case T_INFO:
    case T_FORGET:
    case T_SWEEP_DAYS:
    case T_SWEEP_SHARDS:
    case T_SWEEP_NAMES:
    case T_SWEEP_RECORD:
    case T_SWEPT:
        break;
    }
    return ZK_GOES_ON;
}
