/*
 * sweep.c - remove run records that have expired. Each run with --once looks at one day of the past, at some of its
 * shards, and removes SWEEP_MAX records at most: the cost of a run does not grow with their number.
 *
 * A record goes in one multi with its index node, and by its version. Index nodes of the past are never made again, so a
 * sweeper that comes late cannot remove a record that was made meanwhile. An index node whose record is gone, or has
 * another day now, goes alone. All of it is optional: what fails is left for the next run.
 */
#include "zookeeper.h"

#include <stdlib.h>
#include <string.h>

static unsigned ask(struct zk_backend *be, enum zk_call call, enum zk_tag tag, const char *path)
{
    be->sweep.asked++;
    return zk_conn_ask(be->session.conn,
                       &(struct zk_request){.call = call, .tag = (int)tag, .path = path});
}

bool zk_sweep_goes_on(const struct zk_backend *be)
{
    return be->sweep.asked > 0 && be->session.conn && be->session.connected;
}

void zk_sweep_end(struct zk_backend *be)
{
    for (int i = 0; i < SWEEP_MAX; i++)
        free(be->sweep.records[i].place);
    for (int i = 0; i < SWEEP_SHARDS; i++)
        free(be->sweep.shards[i].path);
    memset(&be->sweep, 0, sizeof(be->sweep));
}

void zk_sweep(struct zk_backend *be)
{
    char *path = zk_index_path(be, "", "");
    zk_sweep_end(be);
    zk_day(zk_server_ms(be), be->sweep.today);
    if (!path)
        return;
    path[strlen(path) - 1] = '\0'; /* ".../d" */
    ask(be, ZK_CHILDREN, T_SWEEP_DAYS, path);
    free(path);
}

static unsigned some_number(struct zk_backend *be)
{
    unsigned r = 0;
    be->spec->env->random(be->spec->env->ctx, &r, sizeof(r));
    return r;
}

static bool is_past(const struct zk_backend *be, const char *name)
{
    return zk_is_day(name) && strcmp(name, be->sweep.today) < 0;
}

/* Runs at the same time choose different ones; and none that cannot be removed stops all of them. */
static void on_days(struct zk_backend *be, const struct zk_msg *m)
{
    unsigned n = (unsigned)m->nnames, first = n > 0 ? some_number(be) % n : 0, i = 0;
    while (i < n && !is_past(be, m->names[(first + i) % n]))
        i++;
    char *path = i < n ? zk_index_path(be, m->names[(first + i) % n], "") : NULL;
    if (!path)
        return;
    memcpy(be->sweep.day, m->names[(first + i) % n], sizeof(be->sweep.day));
    ask(be, ZK_CHILDREN, T_SWEEP_SHARDS, path);
    free(path);
}

static bool is_shard(const char *s)
{
    return dlock_hex(s[0]) >= 0 && dlock_hex(s[1]) >= 0 && s[2] == '\0';
}

static void on_shards(struct zk_backend *be, const struct zk_msg *m)
{
    unsigned n = (unsigned)m->nnames, first = n > 0 ? some_number(be) % n : 0;
    int asked = 0;
    be->sweep.whole = n <= SWEEP_SHARDS;
    for (unsigned i = 0; i < n && asked < SWEEP_SHARDS; i++) {
        const char *shard = m->names[(first + i) % n];
        char *path = is_shard(shard) ? zk_index_path(be, be->sweep.day, shard) : NULL;
        if (!path)
            continue;
        be->sweep.shards[asked].path = path;
        be->sweep.shards[asked++].serial = ask(be, ZK_CHILDREN, T_SWEEP_NAMES, path);
    }
}

/* The record of an index node: is it to go, too? */
static void look_at(struct zk_backend *be, const char *shard, const char *name)
{
    char **place = &be->sweep.records[be->sweep.n].place, *path = NULL;
    if (asprintf(place, "%s/%s", shard, name) < 0)
        *place = NULL;
    else
        path = zk_run_path(be, *place);
    if (!path)
        return;
    be->sweep.records[be->sweep.n++].serial = ask(be, ZK_GET, T_SWEEP_RECORD, path);
    free(path);
}

static void on_names(struct zk_backend *be, const struct zk_msg *m)
{
    int at = 0, i = 0;
    while (at < SWEEP_SHARDS && be->sweep.shards[at].serial != m->serial)
        at++;
    if (at == SWEEP_SHARDS || m->rc != ZOK)
        return;
    const char *shard = strrchr(be->sweep.shards[at].path, '/') + 1;
    for (; i < m->nnames && be->sweep.n < SWEEP_MAX; i++)
        look_at(be, shard, m->names[i]);
    be->sweep.shards[at].emptied = i == m->nnames;
}

/* *r: it is the record of this day's index node, and has expired. False: that node stands for no record. */
static bool has_record(const struct zk_backend *be, const struct zk_msg *m, struct zk_run *r)
{
    return m->rc == ZOK && !zk_read_run(m, zk_server_ms(be), r) &&
           strcmp(r->day, be->sweep.day) == 0;
}

static void on_swept_record(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_run r = {0};
    int i = 0;
    while (i < be->sweep.n && be->sweep.records[i].serial != m->serial)
        i++;
    if (i == be->sweep.n || (m->rc != ZOK && m->rc != ZNONODE))
        return;
    bool both = has_record(be, m, &r);
    if (both && zk_run_over_ms(&r.run) > zk_server_ms(be))
        return; /* its day and its time do not agree */
    char *index = zk_index_path(be, be->sweep.day, be->sweep.records[i].place);
    char *record = zk_run_path(be, be->sweep.records[i].place);
    struct zk_op ops[] = {{.call = ZK_DELETE, .path = index, .version = -1},
                          {.call = ZK_DELETE, .path = record, .version = r.version}};
    if (index && record) {
        be->sweep.asked++;
        zk_conn_ask(be->session.conn,
                    &(struct zk_request){
                        .call = ZK_MULTI, .tag = T_SWEPT, .ops = ops, .nops = both ? 2 : 1});
    }
    free(index);
    free(record);
}

/* All answers are there: delete the nodes that may be empty now. The server keeps those that are not. */
static void clear(struct zk_backend *be)
{
    if (be->sweep.cleared || !be->sweep.day[0] || !zk_is_day(be->sweep.day))
        return;
    be->sweep.cleared = true;
    bool all = be->sweep.whole;
    for (int i = 0; i < SWEEP_SHARDS; i++) {
        if (!be->sweep.shards[i].path)
            continue;
        if (be->sweep.shards[i].emptied)
            ask(be, ZK_DELETE, T_SWEPT, be->sweep.shards[i].path);
        else
            all = false;
    }
    char *day = all ? zk_index_path(be, be->sweep.day, "") : NULL;
    if (day)
        ask(be, ZK_DELETE, T_SWEPT, day);
    free(day);
}

bool zk_sweep_message(struct zk_backend *be, const struct zk_msg *m)
{
    if (m->what != ZK_ANSWER || m->tag < T_SWEEP_DAYS || m->tag > T_SWEPT)
        return false;
    if (be->sweep.asked == 0) /* of one before */
        return true;
    if (zk_transient(m->rc)) {
        zk_sweep_end(be);
        return true;
    }
    be->sweep.asked--;
    if (m->tag == T_SWEEP_DAYS)
        on_days(be, m);
    else if (m->tag == T_SWEEP_SHARDS && m->rc == ZOK)
        on_shards(be, m);
    else if (m->tag == T_SWEEP_NAMES)
        on_names(be, m);
    else if (m->tag == T_SWEEP_RECORD)
        on_swept_record(be, m);
    if (be->sweep.asked == 0)
        clear(be);
    return true;
}
