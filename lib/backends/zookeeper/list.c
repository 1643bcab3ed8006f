/*
 * list.c - all locks below the chroot. A lock's name may have several parts, so each node may be a
 * lock, and have locks below. The walk goes down, several nodes at a time: the children of a node
 * are asked for, and where clients stand in line, the data of the first holder.
 *
 * A server sends all children of a node in one answer. Apart from the names still to look at, the
 * walk keeps nothing.
 */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The nodes looked at, at a time: enough for a server to be busy. */
#define LOOKS 64
/* So often is a lock looked at again whose holder was gone before the holder's data was read. */
#define TRIES 3
/* So many children may be too many for a packet of 4 MiB (wire/frame.h). */
#define MANY 16384

enum { LOOK_NONE, LOOK_ASKS, LOOK_FOUND, LOOK_GIVEN };

struct zk_look {
    int stage;
    char *name;      /* of the lock; "": the chroot */
    unsigned serial; /* of the outstanding request; 0: to be asked (again) */
    int tries;
    bool is_read; /* info is filled in */
    struct dlock_info info;
    struct dlock_entry entry;
};

static zk_answer_fn children_listed, holder_read;

/* A node below holds run records (run_node.c). A lock's name cannot begin so. */
#define RECORDS ZK_ONCE "/r"

static bool is_lock(const char *name)
{
    return *name && strncmp(name, ZK_ONCE, sizeof(ZK_ONCE) - 1) != 0;
}

static char *path_of(const struct zk_backend *be, const char *name)
{
    char *path;
    int chroot = (int)be->lock.chroot_len;
    const char *slash = *name || chroot == 0 ? "/" : "";
    return asprintf(&path, "%.*s%s%s", chroot, be->lock.parent, slash, name) < 0 ? NULL : path;
}

static void look_end(struct zk_look *look)
{
    free(look->name);
    look->name = NULL;
    look->stage = LOOK_NONE;
}

void zk_list_drop(struct zk_backend *be)
{
    for (int i = 0; be->list.looks && i < LOOKS; i++)
        look_end(&be->list.looks[i]);
    for (size_t i = 0; i < be->list.n; i++)
        free(be->list.names[i]);
    free(be->list.looks);
    free(be->list.names);
    memset(&be->list, 0, sizeof(be->list));
}

void zk_list_forget(struct zk_backend *be)
{
    for (int i = 0; be->list.looks && i < LOOKS; i++)
        be->list.looks[i].serial = 0;
}

/* Add a name to the names to look at, and take it over. False: out of memory. */
static bool push(struct zk_backend *be, char *name)
{
    size_t cap = be->list.cap ? 2 * be->list.cap : 64;
    if (name && be->list.n == be->list.cap) {
        char **more = realloc(be->list.names, cap * sizeof(*more));
        if (!more) {
            free(name);
            return false;
        }
        be->list.names = more;
        be->list.cap = cap;
    }
    if (name)
        be->list.names[be->list.n++] = name;
    return name;
}

/* Can a lock of this name, or below it, match the pattern? */
static bool may_match(const struct zk_backend *be, const char *name)
{
    const char *pattern = be->spec->uri->name;
    size_t n = strlen(name), fixed = strcspn(pattern, "*?[\\");
    if (n >= fixed)
        return strncmp(name, pattern, fixed) == 0;
    return strncmp(name, pattern, n) == 0 && pattern[n] == '/';
}

/* "/NAME", which no path has, of a lock whose record's node is this. NULL: out of memory. */
static char *name_of_record(const char *node)
{
    const char *end = node + strlen(node);
    char *name = malloc((size_t)(end - node) + 2), *to = name;
    if (!name)
        return NULL;
    *to++ = '/';
    while (node < end) {
        int c = dlock_percent(node, end);
        *to++ = c > 0 ? (char)c : *node;
        node += c > 0 ? 3 : 1;
    }
    *to = '\0';
    return name;
}

/* The same with the nodes of run records: those of shards, and in a shard those of locks. */
static bool walk_records(struct zk_backend *be, const char *name, const struct zk_msg *m)
{
    bool in_shard = strlen(name) > strlen(RECORDS);
    for (int i = 0; i < m->nnames; i++) {
        char *full = NULL;
        if (in_shard)
            full = name_of_record(m->names[i]);
        else if (asprintf(&full, "%s/%s", name, m->names[i]) < 0)
            full = NULL;
        if (full && in_shard && (!is_lock(full + 1) || !may_match(be, full + 1)))
            free(full);
        else if (!push(be, full))
            return false;
    }
    return true;
}

/* Put the children below the node name into the walk. False: out of memory. */
static bool walk_down(struct zk_backend *be, const char *name, const struct zk_msg *m)
{
    int64_t seq;
    if (*name && !is_lock(name))
        return walk_records(be, name, m);
    if (!*name && be->question->all && !push(be, strdup(RECORDS)))
        return false;
    for (int i = 0; i < m->nnames; i++) {
        const char *child = m->names[i];
        bool top = !*name, system = be->lock.chroot_len == 0 && strcmp(child, "zookeeper") == 0;
        if (top ? system || !is_lock(child) : zk_sequence(child, &seq))
            continue;
        char *full;
        if (asprintf(&full, "%s%s%s", name, top ? "" : "/", child) < 0)
            return false;
        if (!may_match(be, full))
            free(full);
        else if (!push(be, full))
            return false;
    }
    return true;
}

/* The look of this request; NULL: the request is not needed any more. */
static struct zk_look *look_of(struct zk_backend *be, const struct zk_msg *m)
{
    for (int i = 0; be->list.looks && i < LOOKS; i++) {
        struct zk_look *look = &be->list.looks[i];
        if (look->stage != LOOK_ASKS || look->serial != m->serial)
            continue;
        look->serial = 0;
        be->contact_until = zk_now(be) + be->spec->connect_timeout;
        return look;
    }
    return NULL;
}

static bool ask(struct zk_backend *be, struct zk_look *look, const char *child)
{
    char *path = path_of(be, look->name), *full = NULL;
    bool made = path && (!child || asprintf(&full, "%s/%s", path, child) >= 0);
    if (made)
        look->serial = zk_ask(be, child ? ZK_GET : ZK_CHILDREN,
                              child ? holder_read : children_listed, child ? full : path);
    free(path);
    if (made)
        free(full);
    return made;
}

/* Ask on: at most LOOKS requests are outstanding. False: out of memory. */
static bool fill(struct zk_backend *be)
{
    for (int i = 0; i < LOOKS && be->session.connected; i++) {
        struct zk_look *look = &be->list.looks[i];
        if (look->stage == LOOK_NONE && be->list.n > 0)
            *look = (struct zk_look){.stage = LOOK_ASKS, .name = be->list.names[--be->list.n]};
        if (look->stage == LOOK_ASKS && *look->name == '/') { /* of a record: as it is */
            look->entry = (struct dlock_entry){.name = look->name + 1};
            look->stage = LOOK_FOUND;
        }
        if (look->stage == LOOK_ASKS && look->serial == 0 && !ask(be, look, NULL))
            return false;
    }
    return true;
}

static enum zk_verdict go_on(struct zk_backend *be)
{
    return fill(be) ? ZK_GOES_ON : zk_no_memory(be);
}

/* A request has failed. A node may be gone by now, and a right may be missing below the chroot. */
static enum zk_verdict look_failed(struct zk_backend *be, struct zk_look *look, int rc)
{
    if (zk_transient(rc)) /* the look is asked again */
        return zk_again(be);
    if (rc == ZNOAUTH && *look->name)
        be->list.hidden++;
    else if (rc != ZNONODE)
        return zk_failed(be, rc, "cannot list the locks");
    look_end(look);
    return go_on(be);
}

static enum zk_verdict holder_read(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_look *look = look_of(be, m);
    if (!look)
        return ZK_GOES_ON;
    if (m->rc == ZNONODE && look->tries++ < TRIES)
        return go_on(be);
    if (m->rc != ZOK && m->rc != ZNONODE && m->rc != ZNOAUTH)
        return look_failed(be, look, m->rc);
    if (m->rc == ZOK) {
        char *name = strdup(look->info.command);
        if (!name)
            return zk_no_memory(be);
        zk_read_info(name, false, m->data, m->len, &m->stat, &look->info);
        free(name);
    }
    look->entry.holder = m->rc == ZOK ? &look->info : NULL;
    look->stage = LOOK_FOUND;
    return ZK_GOES_ON;
}

static enum zk_verdict children_listed(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_look *look = look_of(be, m);
    int n = 0;
    if (!look)
        return ZK_GOES_ON;
    events_add(&be->events, EV_BACK); /* there may be many nodes, and no lock */
    if (m->rc != ZOK)
        return look_failed(be, look, m->rc);
    struct zk_child *line = zk_line(m->names, m->nnames, &n);
    if (!line || (look->tries == 0 && !walk_down(be, look->name, m))) {
        free(line);
        return zk_no_memory(be);
    }
    bool asked = true, held = n > 0 && is_lock(look->name);
    look->entry = (struct dlock_entry){.name = look->name};
    for (int i = 0; i < n; i++) {
        look->entry.holders += line[i].place == 0;
        look->entry.waiters += line[i].place > 0;
    }
    if (held) {
        /* The first in line holds. info keeps the node's name until the data comes. */
        snprintf(look->info.command, sizeof(look->info.command), "%s", line[0].name);
        asked = ask(be, look, line[0].name);
    } else {
        look_end(look);
    }
    free(line);
    return asked ? go_on(be) : zk_no_memory(be);
}

/* The server's answer broke the packet guard: are there too many children? */
static enum zk_verdict chroot_counted(struct zk_backend *be, const struct zk_msg *m)
{
    if (be->op != OP_LIST || m->rc != ZOK || m->stat.numChildren < MANY)
        return ZK_GOES_ON;
    dlock_fail_at(&be->err, DLOCK_EUNUSABLE, 0, zk_where(be),
                  "%d nodes below %.*s/ are too many for an answer of at most 4 MiB: name fewer by "
                  "a longer chroot",
                  m->stat.numChildren, (int)be->lock.chroot_len, be->lock.parent);
    return ZK_FAILED;
}

enum zk_verdict zk_list_ask(struct zk_backend *be)
{
    char *path;
    if (!be->list.looks) {
        be->list.looks = calloc(LOOKS, sizeof(*be->list.looks));
        if (!be->list.looks || !push(be, strdup("")))
            return zk_no_memory(be);
    }
    if (be->refusal.code == DLOCK_EPROTO && (path = path_of(be, ""))) {
        zk_ask(be, ZK_GET, chroot_counted, path);
        free(path);
    }
    return go_on(be);
}

static bool is_over(const struct zk_backend *be)
{
    for (int i = 0; i < LOOKS; i++)
        if (be->list.looks[i].stage != LOOK_NONE)
            return false;
    return be->list.n == 0;
}

bool zk_list_ready(const struct zk_backend *be)
{
    for (int i = 0; be->list.looks && i < LOOKS; i++)
        if (be->list.looks[i].stage >= LOOK_FOUND)
            return true;
    return be->list.looks && is_over(be);
}

enum zk_verdict zk_list_next(struct zk_backend *be, struct dlock_event *ev)
{
    int at = LOOKS;
    for (int i = 0; i < LOOKS; i++) {
        struct zk_look *look = &be->list.looks[i];
        if (look->stage == LOOK_GIVEN)
            look_end(look);
        else if (look->stage == LOOK_FOUND)
            at = i;
    }
    if (!fill(be))
        return zk_no_memory(be);
    if (at < LOOKS) {
        be->list.looks[at].stage = LOOK_GIVEN;
        *ev = (struct dlock_event){.type = EV_ENTRY, .entry = &be->list.looks[at].entry};
    } else if (is_over(be)) {
        if (be->list.hidden > 0)
            dlock_fail_at(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EPERM, 0, zk_where(be),
                          "this user may not read %d of the nodes: their locks are not listed",
                          be->list.hidden);
        zk_list_drop(be);
        return ZK_DONE;
    }
    return ZK_GOES_ON;
}
