/* status.c - the status of a lock: its children in their order, and what each node's data says. */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Nodes beyond these are counted, but their data is not read. */
#define ASK_MAX 1000
#define GONE (-1)

void zk_status_drop(struct zk_backend *be)
{
    free(be->status.found);
    free(be->status.gets);
    be->status.found = NULL;
    be->status.gets = NULL;
    be->status.n = be->status.next = be->status.left = 0;
    be->status.read_run = be->status.has_run = false;
}

void zk_status_ask(struct zk_backend *be)
{
    be->status.list_serial = zk_conn_ask(
        be->session.conn,
        &(struct zk_request){.call = ZK_CHILDREN, .tag = T_LIST, .path = be->lock.parent});
    /* Behind the list, for --forget: a run that begins between them has changed the record. */
    zk_ask_record(be);
}

/* A request has failed: ask for all of it again if the connection was at fault. */
static enum zk_verdict failed(struct zk_backend *be, int rc, struct dlock_error *err)
{
    zk_status_drop(be);
    if (zk_transient(rc)) {
        be->again_at = zk_now(be);
        return ZK_GOES_ON;
    }
    zk_error(be, rc, "cannot read the queue", err);
    return ZK_FAILED;
}

static bool ask_info(struct zk_backend *be, int i, const char *name)
{
    struct dlock_info *info = &be->status.found[i];
    char *path;
    if (asprintf(&path, "%s/%s", be->lock.parent, name) < 0)
        return false;
    /* The name, which tells the program, is kept here until the data comes. */
    dlock_clean_text(info->command, sizeof(info->command), name, strlen(name));
    be->status.gets[i] = zk_conn_ask(
        be->session.conn, &(struct zk_request){.call = ZK_GET, .tag = T_INFO, .path = path});
    be->status.left++;
    free(path);
    return true;
}

/* All data is asked for at once. False: out of memory. */
static bool ask_each(struct zk_backend *be, const struct zk_child *line, int n)
{
    be->status.found = calloc((size_t)n + 1, sizeof(*be->status.found));
    be->status.gets = calloc((size_t)n + 1, sizeof(*be->status.gets));
    if (!be->status.found || !be->status.gets)
        return false;
    be->status.n = n;
    for (int i = 0; i < n; i++) {
        struct dlock_info *info = &be->status.found[i];
        *info = (struct dlock_info){.left_ns = -1,
                                    .waited_ms = -1,
                                    .foreign = true,
                                    .mode = line[i].mode,
                                    .slots = line[i].slots,
                                    .waiter = line[i].place > 0,
                                    .place = line[i].place};
        if (i < ASK_MAX && !ask_info(be, i, line[i].name))
            return false;
    }
    return true;
}

static void contact_made_if_complete(struct zk_backend *be)
{
    if (zk_status_complete(be))
        be->contact_until = DLOCK_NEVER;
}

static enum zk_verdict on_list(struct zk_backend *be, const struct zk_msg *m,
                               struct dlock_error *err)
{
    int n;
    if (m->serial != be->status.list_serial)
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return failed(be, m->rc, err);
    zk_status_drop(be);
    struct zk_child *line = zk_line(m->names, m->nnames, &n);
    if (!line || !ask_each(be, line, n)) {
        free(line);
        return failed(be, ZK_NOMEMORY, err);
    }
    free(line);
    contact_made_if_complete(be);
    return ZK_GOES_ON;
}

static enum zk_verdict on_info(struct zk_backend *be, const struct zk_msg *m,
                               struct dlock_error *err)
{
    int i = 0;
    while (i < be->status.n && be->status.gets[i] != m->serial)
        i++;
    if (i == be->status.n) /* from an attempt before this one */
        return ZK_GOES_ON;
    if (m->rc != ZOK && m->rc != ZNONODE)
        return failed(be, m->rc, err);
    struct dlock_info *info = &be->status.found[i];
    if (m->rc == ZNONODE) {
        info->place = GONE;
    } else {
        struct dlock_info was = *info;
        zk_read_info(was.command, was.waiter, m->data, m->len, &m->stat, info);
        info->place = was.place;
    }
    be->status.gets[i] = 0;
    be->status.left--;
    contact_made_if_complete(be);
    return ZK_GOES_ON;
}

/* A query writes nothing, so the server has told no time. */
static int64_t wall_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / DLOCK_MSEC;
}

/* Where there is none that can be read, that is told, and the rest is shown. */
static enum zk_verdict on_record(struct zk_backend *be, const struct zk_msg *m,
                                 struct dlock_error *err)
{
    struct dlock_error why = {0};
    const char *foreign = NULL;
    if (m->serial != be->run.serial)
        return ZK_GOES_ON;
    if (zk_transient(m->rc) || m->rc == ZK_NOMEMORY)
        return failed(be, m->rc, err);
    if (m->rc != ZOK && m->rc != ZNONODE)
        zk_error(be, m->rc, "cannot read the run record", &why);
    else if (m->rc == ZOK && (foreign = zk_read_run(m, wall_ms(), &be->run.found)))
        zk_foreign_run(be, foreign, &why);
    if (why.code != 0)
        events_add(&be->events, EV_NOTICE)->error = why;
    be->status.read_run = true;
    be->status.has_run = m->rc == ZOK && !foreign;
    contact_made_if_complete(be);
    return ZK_GOES_ON;
}

enum zk_verdict zk_status_answer(struct zk_backend *be, const struct zk_msg *m,
                                 struct dlock_error *err)
{
    switch (m->tag) {
    case T_LIST:
        return on_list(be, m, err);
    case T_INFO:
        return on_info(be, m, err);
    case T_RECORD:
        return on_record(be, m, err);
    default:
        return ZK_GOES_ON;
    }
}

const struct dlock_info *zk_status_next(struct zk_backend *be)
{
    while (be->status.next < be->status.n) {
        const struct dlock_info *info = &be->status.found[be->status.next++];
        if (info->place != GONE)
            return info;
    }
    return NULL;
}
