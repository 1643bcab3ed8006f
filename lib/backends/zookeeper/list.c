/*
 * list.c - all locks below the chroot. A lock's name may have several parts, so each node may be a
 * lock, and have locks below. The walk goes down, several nodes at a time: the children of a node
 * are asked for, and where clients stand in line, the data of the first holder.
 *
 * A server sends all children of a node in one answer. Apart from the names still to visit, the
 * walk keeps nothing.
 */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The nodes visited at a time: enough for a server to be busy. */
#define VISITS 64
/* So often is a lock visited again whose holder was gone before the holder's data was read. */
#define TRIES 3
/* So many children may be too many for a packet of 4 MiB (wire/frame.h). */
#define MANY 16384

struct zk_visit {
    enum { VISIT_NONE, VISIT_ASKS, VISIT_FOUND, VISIT_GIVEN } stage;
    char *name;      /* of the lock; "": the chroot */
    unsigned serial; /* of the outstanding request; 0: to be asked (again) */
    int tries;
    struct dlock_info info;
    struct dlock_entry entry;
};

struct zk_walk {
    struct zk_visit visits[VISITS];
    char **names; /* to visit */
    size_t n, cap;
    int hidden; /* nodes without a right to read them */
};

static zk_answer_fn children_listed, holder_read;

/* A node below holds run records (run_node.c). A lock's name cannot begin so. */
#define RECORDS ZK_ONCE "/r"

static bool is_lock(const char *name)
{
    return *name && strncmp(name, ZK_ONCE, sizeof(ZK_ONCE) - 1) != 0;
}

/* The path of a lock's node, or of its child, unless child is NULL. NULL: out of memory. */
static char *path_of(const struct zk_backend *be, const char *name, const char *child)
{
    char *path;
    int chroot = (int)be->lock.chroot_len;
    const char *slash = *name || chroot == 0 ? "/" : "";
    int n = asprintf(&path, "%.*s%s%s%s%s", chroot, be->lock.parent, slash, name, child ? "/" : "",
                     child ? child : "");
    return n < 0 ? NULL : path;
}

static void visit_end(struct zk_visit *v)
{
    free(v->name);
    v->name = NULL;
    v->stage = VISIT_NONE;
}

void zk_list_drop(struct zk_backend *be)
{
    struct zk_walk *w = be->walk;
    if (!w)
        return;
    for (int i = 0; i < VISITS; i++)
        visit_end(&w->visits[i]);
    while (w->n > 0)
        free(w->names[--w->n]);
    free(w->names);
    free(w);
    be->walk = NULL;
}

void zk_list_forget(struct zk_backend *be)
{
    for (int i = 0; be->walk && i < VISITS; i++)
        be->walk->visits[i].serial = 0;
}

/* Add a name to the names to visit, and take it over. False: out of memory. */
static bool push(struct zk_walk *w, char *name)
{
    size_t cap = w->cap ? 2 * w->cap : 64;
    if (name && w->n == w->cap) {
        char **more = realloc(w->names, cap * sizeof(*more));
        if (!more) {
            free(name);
            return false;
        }
        w->names = more;
        w->cap = cap;
    }
    if (name)
        w->names[w->n++] = name;
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
        else if (!push(be->walk, full))
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
    if (!*name && be->question->all && !push(be->walk, strdup(RECORDS)))
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
        else if (!push(be->walk, full))
            return false;
    }
    return true;
}

/* The visit of this request; NULL: the request is not needed any more. */
static struct zk_visit *visit_of(struct zk_backend *be, const struct zk_msg *m)
{
    for (int i = 0; be->walk && i < VISITS; i++) {
        struct zk_visit *v = &be->walk->visits[i];
        if (v->stage != VISIT_ASKS || v->serial != m->serial)
            continue;
        v->serial = 0;
        be->contact_until = zk_now(be) + be->spec->connect_timeout;
        return v;
    }
    return NULL;
}

static bool ask_node(struct zk_backend *be, struct zk_visit *v, const char *child)
{
    char *path = path_of(be, v->name, child);
    bool made = path;
    if (made)
        v->serial =
            zk_ask(be, child ? ZK_GET : ZK_CHILDREN, child ? holder_read : children_listed, path);
    free(path);
    return made;
}

/* Ask on: at most VISITS requests are outstanding. False: out of memory. */
static bool fill(struct zk_backend *be)
{
    struct zk_walk *w = be->walk;
    for (int i = 0; i < VISITS && be->session.connected; i++) {
        struct zk_visit *v = &w->visits[i];
        if (v->stage == VISIT_NONE && w->n > 0)
            *v = (struct zk_visit){.stage = VISIT_ASKS, .name = w->names[--w->n]};
        if (v->stage == VISIT_ASKS && *v->name == '/') { /* of a record: as it is */
            v->entry = (struct dlock_entry){.name = v->name + 1};
            v->stage = VISIT_FOUND;
        }
        if (v->stage == VISIT_ASKS && v->serial == 0 && !ask_node(be, v, NULL))
            return false;
    }
    return true;
}

static enum zk_verdict go_on(struct zk_backend *be)
{
    return fill(be) ? ZK_GOES_ON : zk_no_memory(be);
}

/* A request has failed. A node may be gone by now, and a right may be missing below the chroot. */
static enum zk_verdict visit_failed(struct zk_backend *be, struct zk_visit *v, int rc)
{
    if (zk_transient(rc)) /* the visit is asked again */
        return zk_retry(be);
    if (rc == ZNOAUTH && *v->name)
        be->walk->hidden++;
    else if (rc != ZNONODE)
        return zk_failed(be, rc, "cannot list the locks");
    visit_end(v);
    return go_on(be);
}

static enum zk_verdict holder_read(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_visit *v = visit_of(be, m);
    if (!v)
        return ZK_GOES_ON;
    if (m->rc == ZNONODE && v->tries++ < TRIES)
        return go_on(be);
    if (m->rc != ZOK && m->rc != ZNONODE && m->rc != ZNOAUTH)
        return visit_failed(be, v, m->rc);
    const struct dlock_info was = v->info; /* with the node's name */
    if (m->rc == ZOK)
        zk_read_info(was.command, false, m->data, m->len, &m->stat, &v->info);
    v->entry.holder = m->rc == ZOK ? &v->info : NULL;
    v->stage = VISIT_FOUND;
    return ZK_GOES_ON;
}

static enum zk_verdict children_listed(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_visit *v = visit_of(be, m);
    int n = 0;
    if (!v)
        return ZK_GOES_ON;
    events_add(&be->events, EV_BACK); /* there may be many nodes, and no lock */
    if (m->rc != ZOK)
        return visit_failed(be, v, m->rc);
    struct zk_child *line = zk_line(m->names, m->nnames, &n);
    if (!line || (v->tries == 0 && !walk_down(be, v->name, m))) {
        free(line);
        return zk_no_memory(be);
    }
    bool asked = true, held = n > 0 && is_lock(v->name);
    v->entry = (struct dlock_entry){.name = v->name};
    for (int i = 0; i < n; i++) {
        v->entry.holders += line[i].place == 0;
        v->entry.waiters += line[i].place > 0;
    }
    if (held) {
        /* The first in line holds. info keeps the node's name until the data comes. */
        snprintf(v->info.command, sizeof(v->info.command), "%s", line[0].name);
        asked = ask_node(be, v, line[0].name);
    } else {
        visit_end(v);
    }
    free(line);
    return asked ? go_on(be) : zk_no_memory(be);
}

/* The server's answer broke the packet guard: are there too many children? */
static enum zk_verdict chroot_counted(struct zk_backend *be, const struct zk_msg *m)
{
    if (be->op != ZK_OP_LIST || m->rc != ZOK || m->stat.numChildren < MANY)
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
    if (!be->walk) {
        be->walk = calloc(1, sizeof(*be->walk));
        if (!be->walk || !push(be->walk, strdup("")))
            return zk_no_memory(be);
    }
    if (be->refusal.code == DLOCK_EPROTO && (path = path_of(be, "", NULL))) {
        zk_ask(be, ZK_GET, chroot_counted, path);
        free(path);
    }
    return go_on(be);
}

static bool is_over(const struct zk_walk *w)
{
    for (int i = 0; i < VISITS; i++)
        if (w->visits[i].stage != VISIT_NONE)
            return false;
    return w->n == 0;
}

bool zk_list_ready(const struct zk_backend *be)
{
    for (int i = 0; be->walk && i < VISITS; i++)
        if (be->walk->visits[i].stage >= VISIT_FOUND)
            return true;
    return be->walk && is_over(be->walk);
}

enum zk_verdict zk_list_next(struct zk_backend *be, struct dlock_event *ev)
{
    struct zk_walk *w = be->walk;
    struct zk_visit *found = NULL;
    for (int i = 0; i < VISITS; i++) {
        struct zk_visit *v = &w->visits[i];
        if (v->stage == VISIT_GIVEN)
            visit_end(v);
        else if (v->stage == VISIT_FOUND)
            found = v;
    }
    if (!fill(be))
        return zk_no_memory(be);
    if (found) {
        found->stage = VISIT_GIVEN;
        *ev = (struct dlock_event){.type = EV_ENTRY, .entry = &found->entry};
    } else if (is_over(w)) {
        if (w->hidden > 0)
            dlock_fail_at(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EPERM, 0, zk_where(be),
                          "this user may not read %d of the nodes: their locks are not listed",
                          w->hidden);
        zk_list_drop(be);
        return ZK_DONE;
    }
    return ZK_GOES_ON;
}
