/*
 * sweep.c - remove expired run records. Each run with --once looks at one day of the past, at some
 * shards of this day, and removes SWEEP_MAX records at most: the cost of a run does not grow with
 * the number of records.
 *
 * A record goes in one multi with its index node, and by its version. Index nodes of the past are
 * never made again, so a late sweeper cannot remove a record made meanwhile. An index node without
 * a record, or with a record of a new day, goes alone. A sweep is optional: the next run repeats
 * what failed.
 */
#include "zookeeper.h"

#include <stdlib.h>
#include <string.h>

static zk_answer_fn sweep_answered;

/* Ask about a path, which is freed. Returns the serial; 0: no path, for want of memory. */
static unsigned ask(struct zk_backend *be, enum zk_call call, char *path)
{
    unsigned serial = path ? zk_ask(be, call, sweep_answered, path) : 0;
    be->sweep.asked += serial != 0;
    free(path);
    return serial;
}

bool zk_sweep_goes_on(const struct zk_backend *be)
{
    return be->sweep.asked > 0 && be->session.conn && be->session.connected;
}

void zk_sweep_end(struct zk_backend *be)
{
    for (int i = 0; i < SWEEP_MAX; i++)
        free(be->sweep.records[i].place);
    memset(&be->sweep, 0, sizeof(be->sweep));
}

void zk_sweep(struct zk_backend *be)
{
    zk_sweep_end(be);
    zk_day(zk_server_ms(be), be->sweep.today);
    be->sweep.list_serial = ask(be, ZK_CHILDREN, zk_index_path(be, "", ""));
}

static unsigned random_below(struct zk_backend *be, unsigned n)
{
    unsigned r = 0;
    be->spec->env->random(be->spec->env->ctx, &r, sizeof(r));
    return n > 0 ? r % n : 0;
}

/*
 * Choose a day of the past at random: runs at the same time choose different days, and an
 * undeletable day does not stop all runs.
 */
static void choose_day(struct zk_backend *be, const struct zk_msg *m)
{
    unsigned n = (unsigned)m->nnames, first = random_below(be, n);
    for (unsigned i = 0; i < n; i++) {
        const char *day = m->names[(first + i) % n];
        if (!zk_is_day(day) || strcmp(day, be->sweep.today) >= 0)
            continue;
        memcpy(be->sweep.day, day, sizeof(be->sweep.day));
        be->sweep.list_serial = ask(be, ZK_CHILDREN, zk_index_path(be, day, ""));
        return;
    }
}

static void choose_shards(struct zk_backend *be, const struct zk_msg *m)
{
    unsigned n = (unsigned)m->nnames, first = random_below(be, n);
    int asked = 0;
    be->sweep.whole = m->rc == ZOK && n <= SWEEP_SHARDS;
    for (unsigned i = 0; i < n && asked < SWEEP_SHARDS; i++) {
        const char *shard = m->names[(first + i) % n];
        if (dlock_hex(shard[0]) < 0 || dlock_hex(shard[1]) < 0 || shard[2] != '\0')
            continue;
        memcpy(be->sweep.shards[asked].name, shard, sizeof(be->sweep.shards[asked].name));
        be->sweep.shards[asked++].serial =
            ask(be, ZK_CHILDREN, zk_index_path(be, be->sweep.day, shard));
    }
}

/* The index nodes of a shard: get their records. */
static void get_records(struct zk_backend *be, const struct zk_msg *m, int at)
{
    int i = 0;
    if (m->rc != ZOK)
        return;
    for (; i < m->nnames && be->sweep.n < SWEEP_MAX; i++) {
        char *place;
        if (asprintf(&place, "%s/%s", be->sweep.shards[at].name, m->names[i]) < 0)
            continue;
        be->sweep.records[be->sweep.n].place = place;
        be->sweep.records[be->sweep.n++].serial = ask(be, ZK_GET, zk_run_path(be, place));
    }
    be->sweep.shards[at].emptied = i == m->nnames;
}

/* Remove an expired record with its index node, or an index node without a record. */
static void remove_record(struct zk_backend *be, const struct zk_msg *m, int i)
{
    struct zk_run r = {0};
    if (m->rc != ZOK && m->rc != ZNONODE)
        return;
    bool both =
        m->rc == ZOK && !zk_read_run(m, zk_server_ms(be), &r) && strcmp(r.day, be->sweep.day) == 0;
    if (both && zk_run_over_ms(&r.run) > zk_server_ms(be))
        return; /* the record's day and time do not agree */
    char *index = zk_index_path(be, be->sweep.day, be->sweep.records[i].place);
    char *record = zk_run_path(be, be->sweep.records[i].place);
    struct zk_request ops[] = {{.call = ZK_DELETE, .path = index, .version = -1},
                               {.call = ZK_DELETE, .path = record, .version = r.version}};
    if (index && record) {
        be->sweep.asked++;
        zk_ask_multi(be, sweep_answered, ops, both ? 2 : 1);
    }
    free(index);
    free(record);
}

/* All answers are there: delete the nodes, which may be empty now. The server keeps the rest. */
static void delete_empty(struct zk_backend *be)
{
    const char *day = be->sweep.day;
    bool all = be->sweep.whole;
    for (int i = 0; i < SWEEP_SHARDS && *day; i++) {
        if (be->sweep.shards[i].emptied)
            ask(be, ZK_DELETE, zk_index_path(be, day, be->sweep.shards[i].name));
        else if (be->sweep.shards[i].name[0])
            all = false;
    }
    if (all && *day)
        ask(be, ZK_DELETE, zk_index_path(be, day, ""));
    be->sweep.day[0] = '\0';
}

static enum zk_verdict sweep_answered(struct zk_backend *be, const struct zk_msg *m)
{
    if (be->sweep.asked == 0) /* the answer belongs to an earlier sweep */
        return ZK_GOES_ON;
    if (zk_transient(m->rc)) {
        zk_sweep_end(be);
        return ZK_GOES_ON;
    }
    be->sweep.asked--;
    if (m->serial == be->sweep.list_serial && !be->sweep.day[0])
        choose_day(be, m);
    else if (m->serial == be->sweep.list_serial)
        choose_shards(be, m);
    for (int i = 0; i < SWEEP_SHARDS; i++)
        if (m->serial == be->sweep.shards[i].serial)
            get_records(be, m, i);
    for (int i = 0; i < SWEEP_MAX; i++)
        if (m->serial == be->sweep.records[i].serial)
            remove_record(be, m, i);
    if (be->sweep.asked == 0)
        delete_empty(be);
    return ZK_GOES_ON;
}
