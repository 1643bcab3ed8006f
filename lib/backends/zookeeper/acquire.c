/*
 * acquire.c - a place in the line: our node, and the one in front of it.
 *
 * As in ZooKeeper's lock recipe, but: the node's name carries a GUID, so that one whose answer was lost is found
 * again; after the predecessor has gone we look at the whole line, for it may have died before it was its
 * turn; and all of it goes on across connections, as long as the session lives.
 */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void zk_list(struct dlock_be *be)
{
    be->list_serial = zk_conn_children(be->conn, T_LIST, be->parent);
}

static void create(struct dlock_be *be)
{
    struct dlock_error err;
    if (!be->stem && zk_new_stem(be, &err) < 0) {
        zk_fail(be, &err);
        return;
    }
    be->node = NODE_ASKED;
    be->create_sent = zk_now(be);
    zk_conn_create(be->conn, T_CREATE, be->stem, be->record, be->acl, ZOO_EPHEMERAL | ZOO_SEQUENCE);
    /* Behind it in the same round trip: a session's requests are served in their order. */
    zk_list(be);
}

void zk_stand_in_line(struct dlock_be *be)
{
    be->again = false;
    switch (be->node) {
    case NODE_NONE:
        if (be->making == 0)
            create(be);
        else
            zk_on_parent(be, NULL);
        break;
    case NODE_ASKED:
        break; /* its answer will say */
    case NODE_UNCLEAR:
        /* This server may be behind the one that we have asked: it catches up first. */
        zk_conn_sync(be->conn, T_SYNC, be->parent);
        be->list_serial = zk_conn_children(be->conn, T_FIND, be->parent);
        break;
    case NODE_THERE:
        if (be->busy) {
            be->delete_serial = zk_conn_delete(be->conn, T_DELETE, be->path);
            break;
        }
        zk_list(be);
        zk_beat(be);
        break;
    }
}

void zk_node_gone(struct dlock_be *be)
{
    be->node = NODE_NONE;
    be->pred_serial = be->who_serial = 0;
    be->ripe = false;
    be->again = true;
    be->again_at = 0;
}

static void fail(struct dlock_be *be, int rc, const char *what)
{
    struct dlock_error err;
    zk_error(be, rc, what, &err);
    if (be->doing == ZK_RELEASE) /* whatever there is goes with the session */
        zk_released(be, DLOCK_REL_UNCLEAR, &err);
    else
        zk_fail(be, &err);
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

static void make_parent(struct dlock_be *be)
{
    char *path = strndup(be->parent, be->making);
    /* A container goes by itself when nobody has stood below it for a while. */
    bool container = be->making > be->chroot_len && !be->flat_parents;
    if (!path) {
        struct dlock_error err;
        dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
        zk_fail(be, &err);
        return;
    }
    zk_conn_create(be->conn, T_PARENT, path, "", be->acl,
                   container ? ZOO_CONTAINER : ZOO_PERSISTENT);
    free(path);
}

/* m: the answer for the part of length making; NULL: begin with that. */
void zk_on_parent(struct dlock_be *be, const struct zk_msg *m)
{
    size_t whole = strlen(be->parent);
    int rc = m ? m->rc : ZOK;
    if (be->doing != ZK_ACQUIRE || be->making == 0)
        return;
    if (!m) {
        make_parent(be);
    } else if (rc == ZOK || rc == ZNODEEXISTS) {
        if (be->making == whole) {
            be->making = 0;
            create(be);
            return;
        }
        be->making = part_end(be->parent, be->making);
        make_parent(be);
    } else if (rc == ZNONODE) {
        /* Upwards: to make what is there already may need a right that we do not have. */
        be->making = part_above(be->parent, be->making);
        make_parent(be);
    } else if (rc == ZUNIMPLEMENTED && !be->flat_parents) {
        be->flat_parents = true;
        make_parent(be);
    } else if (zk_transient(rc)) {
        zk_again(be);
    } else {
        fail(be, rc, "its parent cannot be made");
    }
}

/* *path becomes that of the child. Without memory: better an end than a place that is not watched. */
static void remember(char **path, const char *parent, const char *child)
{
    free(*path);
    if (asprintf(path, "%s/%s", parent, child) < 0)
        abort();
}

/* ------------------------------------------------------------------- our node */

/* The path that a create was answered with. One that we did not ask for is no answer: we look for ours then. */
static bool is_ours(const struct dlock_be *be, const struct zk_msg *m)
{
    int64_t seq;
    return m->data && strncmp(m->data, be->stem, strlen(be->stem)) == 0 &&
           zk_sequence(m->data, &seq) && m->stat.ephemeralOwner == be->session;
}

void zk_on_created(struct dlock_be *be, const struct zk_msg *m)
{
    if (be->node != NODE_ASKED)
        return;
    if (m->rc == ZOK && is_ours(be, m)) {
        char *path = strdup(m->data);
        if (!path)
            abort();
        free(be->path);
        be->path = path;
        be->node = NODE_THERE;
        be->fence = (uint64_t)m->stat.czxid;
        zk_heard(be, be->create_sent);
        be->next_beat_at = be->create_sent + be->timeout / 6;
    } else if (m->rc == ZOK || zk_transient(m->rc)) {
        be->node = NODE_UNCLEAR;
        zk_again(be);
    } else {
        be->node = NODE_NONE;
    }
    if (be->doing == ZK_RELEASE) {
        if (be->node != NODE_UNCLEAR)
            zk_give_back(be);
    } else if (be->doing == ZK_ACQUIRE && be->node == NODE_NONE) {
        if (m->rc == ZNONODE) {
            be->making = strlen(be->parent);
            make_parent(be);
        } else {
            fail(be, m->rc, "no place in the line");
        }
    }
}

static bool has_our_stem(const struct dlock_be *be, const char *name)
{
    const char *stem = strrchr(be->stem, '/') + 1;
    return strncmp(name, stem, strlen(stem)) == 0;
}

/* Did the create happen whose answer was lost? */
void zk_on_found(struct dlock_be *be, const struct zk_msg *m)
{
    if (m->serial != be->list_serial || be->node != NODE_UNCLEAR)
        return;
    if (m->rc != ZOK && m->rc != ZNONODE) {
        if (zk_transient(m->rc))
            zk_again(be);
        else
            fail(be, m->rc, "the line cannot be read");
        return;
    }
    char *found = NULL;
    for (int i = 0; i < m->nnames && !found; i++)
        if (has_our_stem(be, m->names[i]))
            found = m->names[i];
    if (!found) {
        be->node = NODE_NONE;
        if (be->doing == ZK_RELEASE)
            zk_give_back(be);
        else
            zk_again(be);
        return;
    }
    /*
     * The name's GUID was made for this session alone, which is still the same: it is ours. (A create of a session
     * before it would be another's: zk_leave forgets the name.) Its fence comes with the look at it.
     */
    remember(&be->path, be->parent, found);
    be->node = NODE_THERE;
    be->fence = 0;
    be->next_beat_at = zk_now(be);
    if (be->doing == ZK_RELEASE) {
        zk_give_back(be);
        return;
    }
    be->who_serial = zk_conn_get(be->conn, T_SELF, be->path, false);
    zk_list(be);
}

/* Look at our own node: is it this session's, and what is its fence? */
void zk_on_self(struct dlock_be *be, const struct zk_msg *m)
{
    if (m->serial != be->who_serial || be->node != NODE_THERE || be->doing != ZK_ACQUIRE)
        return;
    if (m->rc == ZOK && m->stat.ephemeralOwner == be->session)
        be->fence = (uint64_t)m->stat.czxid;
    else if (m->rc == ZOK || m->rc == ZNONODE)
        zk_node_gone(be);
    else if (zk_transient(m->rc))
        be->node = NODE_UNCLEAR, zk_again(be);
    else
        fail(be, m->rc, "our node cannot be read");
}

/* ------------------------------------------------------------------- the line */

static void grant(struct dlock_be *be)
{
    struct dlock_event *ev = events_add(&be->events, EV_GRANTED);
    be->doing = ZK_HOLD;
    be->held = true;
    be->op_until = be->next_beat_at = DLOCK_NEVER;
    be->pred_serial = be->who_serial = 0;
    be->ripe = false;
    ev->from = zk_lease_from(be);
    ev->ttl = be->timeout;
    ev->asked = dlock_max(be->create_sent, be->beat_sent);
    ev->fence = be->fence;
    memcpy(ev->token, be->token, sizeof ev->token);
}

static void watch(struct dlock_be *be)
{
    be->pred_serial = zk_conn_get(be->conn, T_PRED, be->pred, true);
}

/* Behind others, at this place (1 is next). */
static void stand_behind(struct dlock_be *be, const struct zk_child *line, int place)
{
    be->place = place;
    be->have_info = false;
    remember(&be->pred, be->parent, line[place - 1].name);
    remember(&be->front, be->parent, line[0].name);
    if (!be->wait) {
        be->busy = true;
        be->who_serial = zk_conn_get(be->conn, T_WHO, be->front, false);
        be->delete_serial = zk_conn_delete(be->conn, T_DELETE, be->path);
    } else {
        be->first = false;
        be->op_until = DLOCK_NEVER;
        watch(be);
        if (place > 1)
            be->who_serial = zk_conn_get(be->conn, T_WHO, be->front, false);
    }
}

/* Nodes of this session but for the one we know: creates that were served after we had given them up. */
static bool drop_orphans(struct dlock_be *be, const struct zk_child *line, int n)
{
    const char *own = strrchr(be->path, '/') + 1;
    bool any = false;
    for (int i = 0; i < n; i++) {
        char *path = NULL;
        if (!has_our_stem(be, line[i].name) || strcmp(line[i].name, own) == 0)
            continue;
        remember(&path, be->parent, line[i].name);
        zk_conn_delete(be->conn, T_ORPHAN, path);
        free(path);
        any = true;
    }
    return any;
}

/* The server's counter stops there, and those with the same number have no order. */
static void exhausted(struct dlock_be *be)
{
    struct dlock_error err;
    dlock_fail(&err, DLOCK_EUNAVAIL, 0,
               "%s: the sequence numbers below %s are used up: delete that node while nobody waits",
               zk_where(be), be->parent);
    zk_fail(be, &err);
}

/* After an outage the last heartbeats are so old that the command would be ended at once. */
static void ripen(struct dlock_be *be)
{
    be->ripe = true;
    be->next_beat_at = dlock_min(be->next_beat_at, zk_now(be) + be->timeout / 6);
    if (be->wait) {
        be->first = false;
        be->op_until = DLOCK_NEVER;
    }
}

void zk_on_list(struct dlock_be *be, const struct zk_msg *m)
{
    if (m->serial != be->list_serial || be->doing != ZK_ACQUIRE || be->node != NODE_THERE ||
        be->busy)
        return;
    if (m->rc == ZNONODE) {
        zk_node_gone(be);
        return;
    }
    if (m->rc != ZOK) {
        if (zk_transient(m->rc))
            zk_again(be);
        else
            fail(be, m->rc, "the line cannot be read");
        return;
    }
    int n, at = 0;
    const char *own = strrchr(be->path, '/') + 1;
    struct zk_child *line = zk_line(m->names, m->nnames, &n);
    if (!line)
        abort();
    while (at < n && strcmp(line[at].name, own) != 0)
        at++;
    if (drop_orphans(be, line, n))
        zk_list(be);
    else if (at == n)
        zk_node_gone(be);
    else if (line[0].seq < 0 || line[n - 1].seq >= INT32_MAX)
        exhausted(be);
    else if (at > 0)
        stand_behind(be, line, at);
    else if (be->fence == 0)
        be->node = NODE_UNCLEAR, zk_again(be); /* adopted, but the look at it failed */
    else if (zk_now(be) - zk_lease_from(be) > be->timeout / 24 * 13)
        ripen(be);
    else
        grant(be);
    free(line);
}

static void tell(struct dlock_be *be, const struct zk_msg *m)
{
    be->have_info = m->rc == ZOK;
    if (be->have_info)
        zk_read_info(strrchr(be->front, '/') + 1, m->data, m->len, &m->stat, &be->info);
}

static void say_waiting(struct dlock_be *be)
{
    struct dlock_event *ev = events_add(&be->events, EV_WAITING);
    ev->place = be->place;
    ev->info = be->have_info ? &be->info : NULL;
}

void zk_on_pred(struct dlock_be *be, const struct zk_msg *m)
{
    if (m->serial != be->pred_serial || be->doing != ZK_ACQUIRE)
        return;
    if (m->rc == ZNONODE) {
        zk_list(be);
    } else if (m->rc == ZOK) {
        if (be->place > 1 || be->have_info)
            return; /* a renewed watch: nothing new */
        tell(be, m);
        say_waiting(be);
    } else if (zk_transient(m->rc)) {
        zk_again(be);
    } else {
        fail(be, m->rc, "the one in front cannot be watched");
    }
}

void zk_on_who(struct dlock_be *be, const struct zk_msg *m)
{
    if (m->serial != be->who_serial || be->doing != ZK_ACQUIRE)
        return;
    be->who_serial = 0;
    tell(be, m);
    if (be->busy)
        zk_busy_over(be);
    else
        say_waiting(be);
}

/* !wait: our node is gone again, and we know whose the lock is. */
void zk_busy_over(struct dlock_be *be)
{
    if (be->who_serial != 0 || be->node != NODE_NONE)
        return;
    be->busy = false;
    be->doing = ZK_NOTHING;
    be->op_until = DLOCK_NEVER;
    zk_leave(be);
    struct dlock_event *ev = events_add(&be->events, EV_BUSY);
    ev->place = be->place;
    ev->info = be->have_info ? &be->info : NULL;
}

void zk_on_watch(struct dlock_be *be, const struct zk_msg *m)
{
    if (m->serial != be->pred_serial || be->doing != ZK_ACQUIRE || !be->connected)
        return;
    if (m->event == ZOO_CHANGED_EVENT)
        watch(be); /* a heartbeat */
    else
        zk_list(be);
}
