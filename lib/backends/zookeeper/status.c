/* status.c - the status of a lock: its children in their order, and what each of them holds. */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More of them are counted, but not asked for who they are. */
#define ASK_MAX 1000
#define GONE (-1)

void zk_drop_listing(struct dlock_be *be)
{
    free(be->listing);
    free(be->list_gets);
    be->listing = NULL;
    be->list_gets = NULL;
    be->nlisted = be->list_at = be->list_left = 0;
}

static void ask_over(struct dlock_be *be)
{
    be->doing = ZK_NOTHING;
    be->op_until = DLOCK_NEVER;
    zk_drop_listing(be);
    zk_leave(be);
}

static void fail(struct dlock_be *be, int rc)
{
    struct dlock_error err;
    zk_error(be, rc, "the line cannot be read", &err);
    zk_drop_listing(be);
    zk_fail(be, &err);
}

/* Who they are is asked for all at once; readers at the front hold the lock together. */
static void ask_each(struct dlock_be *be, const struct zk_child *line, int n)
{
    bool holders = true;
    int place = 0;
    for (int i = 0; i < n; i++) {
        struct dlock_info *info = &be->listing[i];
        *info = (struct dlock_info){.left_ns = -1, .foreign = true};
        holders = holders && (i == 0 || (line[0].reader && line[i].reader));
        info->waiter = !holders;
        info->place = holders ? 0 : ++place;
        if (i >= ASK_MAX)
            continue;
        char *path;
        if (asprintf(&path, "%s/%s", be->parent, line[i].name) < 0)
            abort();
        /* The name tells whose program it is, until its data does. */
        dlock_clean_text(info->command, sizeof info->command, line[i].name, strlen(line[i].name));
        be->list_gets[i] = zk_conn_get(be->conn, T_INFO, path, false);
        be->list_left++;
        free(path);
    }
}

void zk_ask_listed(struct dlock_be *be, struct zk_msg *m)
{
    int n;
    if (m->serial != be->list_serial)
        return;
    if (m->rc != ZOK && m->rc != ZNONODE) {
        if (zk_transient(m->rc))
            be->again = true;
        else
            fail(be, m->rc);
        return;
    }
    be->first = false;
    struct zk_child *line = zk_line(m->names, m->nnames, &n);
    zk_drop_listing(be);
    be->listing = calloc((size_t)n + 1, sizeof *be->listing);
    be->list_gets = calloc((size_t)n + 1, sizeof *be->list_gets);
    if (!line || !be->listing || !be->list_gets)
        abort();
    be->nlisted = n;
    ask_each(be, line, n);
    free(line);
    if (be->list_left == 0)
        be->op_until = DLOCK_NEVER;
}

/* One who has gone meanwhile is left out. */
void zk_ask_info(struct dlock_be *be, const struct zk_msg *m)
{
    int i = 0;
    if (be->doing != ZK_ASK || !be->listing)
        return;
    while (i < be->nlisted && be->list_gets[i] != m->serial)
        i++;
    if (i == be->nlisted)
        return;
    if (m->rc != ZOK && m->rc != ZNONODE) {
        if (zk_transient(m->rc)) {
            zk_drop_listing(be);
            be->again = true;
        } else {
            fail(be, m->rc);
        }
        return;
    }
    struct dlock_info *info = &be->listing[i];
    if (m->rc == ZNONODE) {
        info->place = GONE;
    } else {
        char name[sizeof info->command];
        bool waiter = info->waiter;
        int place = info->place;
        memcpy(name, info->command, sizeof name);
        zk_read_info(name, m->data, m->len, &m->stat, info);
        info->waiter = waiter;
        info->place = place;
        if (waiter)
            info->fence = 0;
    }
    be->list_gets[i] = 0;
    if (--be->list_left == 0)
        be->op_until = DLOCK_NEVER;
}

int zk_give_listed(struct dlock_be *be, struct dlock_event *ev)
{
    if (be->list_left > 0)
        return 0;
    while (be->list_at < be->nlisted) {
        be->info = be->listing[be->list_at++];
        if (be->info.place == GONE)
            continue;
        *ev = (struct dlock_event){.type = EV_INFO, .info = &be->info};
        return 1;
    }
    ask_over(be);
    *ev = (struct dlock_event){.type = EV_DONE};
    return 1;
}
