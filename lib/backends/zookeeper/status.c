/* status.c - the status of a lock: its children in order, and the data of each node. */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The data of further nodes is not read; the nodes are counted. */
#define ASK_MAX 1000

void zk_status_drop(struct zk_backend *be)
{
    free(be->status.found);
    be->status.found = NULL;
    be->status.n = be->status.next = be->status.left = 0;
    be->status.read_run = be->status.has_run = false;
}

/* A request has failed: ask for everything again if the connection was at fault. */
static enum zk_verdict status_failed(struct zk_backend *be, int rc)
{
    zk_status_drop(be);
    return zk_failed(be, rc, "cannot read the queue");
}

static enum zk_verdict node_read(struct zk_backend *be, const struct zk_msg *m)
{
    int i = 0;
    while (i < be->status.n && be->status.found[i].serial != m->serial)
        i++;
    if (i == be->status.n) /* from an earlier attempt */
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return status_failed(be, m->rc);
    struct dlock_info *info = &be->status.found[i].info, was = *info;
    be->status.found[i].gone = m->rc == ZNONODE;
    if (m->rc == ZOK)
        zk_read_info(was.command, was.waiter, m->data, m->len, &m->stat, info);
    info->place = was.place;
    be->status.found[i].serial = 0;
    be->status.left--;
    return ZK_GOES_ON;
}

/* Ask for the data of all nodes in line at once. */
static enum zk_verdict line_listed(struct zk_backend *be, const struct zk_msg *m)
{
    int n = 0;
    if (m->serial != be->list_serial)
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return status_failed(be, m->rc);
    zk_status_drop(be);
    struct zk_child *line = zk_line(m->names, m->nnames, &n);
    struct zk_found *found = be->status.found = calloc((size_t)n + 1, sizeof(*found));
    bool asked = line && found;
    be->status.n = asked ? n : 0;
    for (int i = 0; asked && i < n; i++) {
        struct dlock_info *info = &found[i].info;
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
        asked = asprintf(&path, "%s/%s", be->lock.parent, line[i].name) >= 0;
        if (!asked)
            break;
        /* info keeps the name, which tells the program, until the data comes. */
        dlock_clean_text(info->command, sizeof(info->command), line[i].name, strlen(line[i].name));
        found[i].serial = zk_ask(be, ZK_GET, node_read, path);
        be->status.left++;
        free(path);
    }
    free(line);
    return asked ? ZK_GOES_ON : status_failed(be, ZK_NOMEMORY);
}

/* A notice tells why a record cannot be read, and the rest is shown. */
static enum zk_verdict record_read(struct zk_backend *be, const struct zk_msg *m)
{
    const char *foreign = NULL;
    if (m->serial != be->run.serial)
        return ZK_GOES_ON;
    if (zk_transient(m->rc) || m->rc == ZK_NOMEMORY)
        return status_failed(be, m->rc);
    /* Our wall clock: a query writes nothing, so the server has told no time. */
    if (m->rc == ZOK)
        foreign = zk_read_run(m, dlock_wall() / DLOCK_MSEC, &be->run.found);
    if (foreign)
        zk_foreign_run(be, foreign);
    else if (m->rc != ZOK && m->rc != ZNONODE)
        zk_error(be, m->rc, "cannot read the run record");
    if (be->err.code != 0)
        events_add(&be->events, EV_NOTICE)->error = be->err;
    be->status.read_run = true;
    be->status.has_run = m->rc == ZOK && !foreign;
    return ZK_GOES_ON;
}

void zk_status_ask(struct zk_backend *be)
{
    zk_ask_list(be, line_listed);
    zk_ask_record(be, record_read);
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
