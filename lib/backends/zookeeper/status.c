/* status.c - the status of a lock: its children in order, and the data of each node. */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The data of further nodes is not read; the nodes are counted. */
#define ASK_MAX 1000

void zk_status_drop(struct zk_backend *be)
{
    free(be->status.found);
    be->status.found = NULL;
    be->status.n = be->status.next = be->status.left = 0;
    be->status.read_run = be->status.has_run = false;
}

void zk_status_ask(struct zk_backend *be)
{
    be->status.list_serial = zk_ask(be, ZK_CHILDREN, T_LIST, be->lock.parent);
    /* Behind the list, for --forget: a run begun between the two has changed the record. */
    zk_ask_record(be);
}

/* A request has failed: ask for everything again if the connection was at fault. */
static enum zk_verdict status_failed(struct zk_backend *be, int rc, struct dlock_error *err)
{
    zk_status_drop(be);
    return zk_failed(be, rc, "cannot read the queue", err);
}

/* Ask for the data of all nodes in line at once. False: out of memory. */
static bool ask_nodes(struct zk_backend *be, const struct zk_child *line, int n)
{
    be->status.found = calloc((size_t)n + 1, sizeof(*be->status.found));
    if (!be->status.found)
        return false;
    be->status.n = n;
    for (int i = 0; i < n; i++) {
        struct dlock_info *info = &be->status.found[i].info;
        char *path;
        *info = (struct dlock_info){.left_ns = -1,
                                    .waited_ms = -1,
                                    .foreign = true,
                                    .mode = line[i].mode,
                                    .slots = line[i].slots,
                                    .waiter = line[i].place > 0,
                                    .place = line[i].place};
        if (i >= ASK_MAX)
            continue;
        if (asprintf(&path, "%s/%s", be->lock.parent, line[i].name) < 0)
            return false;
        /* info keeps the name, which tells the program, until the data comes. */
        dlock_clean_text(info->command, sizeof(info->command), line[i].name, strlen(line[i].name));
        be->status.found[i].serial = zk_ask(be, ZK_GET, T_INFO, path);
        be->status.left++;
        free(path);
    }
    return true;
}

static enum zk_verdict line_listed(struct zk_backend *be, const struct zk_msg *m,
                                   struct dlock_error *err)
{
    int n;
    if (m->serial != be->status.list_serial)
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return status_failed(be, m->rc, err);
    zk_status_drop(be);
    struct zk_child *line = zk_line(m->names, m->nnames, &n);
    bool asked = line && ask_nodes(be, line, n);
    free(line);
    return asked ? ZK_GOES_ON : status_failed(be, ZK_NOMEMORY, err);
}

static enum zk_verdict node_read(struct zk_backend *be, const struct zk_msg *m,
                                 struct dlock_error *err)
{
    int i = 0;
    while (i < be->status.n && be->status.found[i].serial != m->serial)
        i++;
    if (i == be->status.n) /* from an earlier attempt */
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return status_failed(be, m->rc, err);
    struct dlock_info *info = &be->status.found[i].info, was = *info;
    be->status.found[i].gone = m->rc == ZNONODE;
    if (m->rc == ZOK)
        zk_read_info(was.command, was.waiter, m->data, m->len, &m->stat, info);
    info->place = was.place;
    be->status.found[i].serial = 0;
    be->status.left--;
    return ZK_GOES_ON;
}

/* A notice tells why a record cannot be read, and the rest is shown. */
static enum zk_verdict record_read(struct zk_backend *be, const struct zk_msg *m,
                                   struct dlock_error *err)
{
    struct dlock_error why = {0};
    struct timespec ts;
    const char *foreign = NULL;
    if (m->serial != be->run.serial)
        return ZK_GOES_ON;
    if (zk_transient(m->rc) || m->rc == ZK_NOMEMORY)
        return status_failed(be, m->rc, err);
    /* Our wall clock: a query writes nothing, so the server has told no time. */
    clock_gettime(CLOCK_REALTIME, &ts);
    int64_t wall_ms = (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / DLOCK_MSEC;
    if (m->rc != ZOK && m->rc != ZNONODE)
        zk_error(be, m->rc, "cannot read the run record", &why);
    else if (m->rc == ZOK && (foreign = zk_read_run(m, wall_ms, &be->run.found)))
        zk_foreign_run(be, foreign, &why);
    if (why.code != 0)
        events_add(&be->events, EV_NOTICE)->error = why;
    be->status.read_run = true;
    be->status.has_run = m->rc == ZOK && !foreign;
    return ZK_GOES_ON;
}

enum zk_verdict zk_status_answer(struct zk_backend *be, const struct zk_msg *m,
                                 struct dlock_error *err)
{
    enum zk_verdict v = ZK_GOES_ON;
    if (m->tag == T_LIST)
        v = line_listed(be, m, err);
    else if (m->tag == T_INFO)
        v = node_read(be, m, err);
    else if (m->tag == T_RECORD)
        v = record_read(be, m, err);
    if (zk_status_complete(be)) /* the first contact was a success */
        be->contact_until = DLOCK_NEVER;
    return v;
}

bool zk_status_next(struct zk_backend *be, struct dlock_event *ev)
{
    while (be->status.next < be->status.n) {
        const struct zk_found *f = &be->status.found[be->status.next++];
        *ev = (struct dlock_event){.type = EV_INFO, .info = &f->info};
        if (!f->gone)
            return true;
    }
    *ev = (struct dlock_event){.type = EV_RUN, .run = &be->run.found.run};
    bool has_run = be->status.has_run;
    be->status.has_run = false;
    return has_run;
}
