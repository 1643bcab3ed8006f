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

/* What one sweep looks at, at most. */
#define SWEEP_MAX 20
#define SWEEP_SHARDS 4

struct zk_sweep {
    unsigned asked;       /* outstanding requests; 0: the sweep is over */
    unsigned list_serial; /* of the list of the days, then of a day's shards */
    char today[ZK_DAY_LEN + 1];
    char day[ZK_DAY_LEN + 1]; /* "": not chosen, or done */
    struct {
        unsigned serial;
        char name[3]; /* "": none */
        bool emptied; /* all names of the shard were looked at */
    } shards[SWEEP_SHARDS];
    bool whole; /* the day has no further shards */
    struct {
        unsigned serial;
        char *place; /* SHARD/NAME */
    } records[SWEEP_MAX];
    int n;
};

static zk_answer_fn sweep_answered;

/* Ask about a path, which is freed. Returns the serial; 0: no path, for want of memory. */
static unsigned ask_about(struct zk_backend *be, enum zk_call call, char *path)
{
    unsigned serial = path ? zk_ask(be, call, sweep_answered, path) : 0;
    be->sweep->asked += serial != 0;
    free(path);
    return serial;
}

bool zk_sweep_goes_on(const struct zk_backend *be)
{
    return be->sweep && be->sweep->asked > 0 && be->session.conn && be->session.connected;
}

void zk_sweep_end(struct zk_backend *be)
{
    for (int i = 0; be->sweep && i < SWEEP_MAX; i++)
        free(be->sweep->records[i].place);
    free(be->sweep);
    be->sweep = NULL;
}

void zk_sweep(struct zk_backend *be)
{
    zk_sweep_end(be);
    struct zk_sweep *s = be->sweep = calloc(1, sizeof(*s));
    if (!s)
        return;
    zk_day(zk_server_ms(be), s->today);
    s->list_serial = ask_about(be, ZK_CHILDREN, zk_index_path(be, "", ""));
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
    struct zk_sweep *s = be->sweep;
    unsigned n = (unsigned)m->nnames, first = random_below(be, n);
    for (unsigned i = 0; i < n; i++) {
        const char *day = m->names[(first + i) % n];
        if (!zk_is_day(day) || strcmp(day, s->today) >= 0)
            continue;
        memcpy(s->day, day, sizeof(s->day));
        s->list_serial = ask_about(be, ZK_CHILDREN, zk_index_path(be, day, ""));
        return;
    }
}

static void choose_shards(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_sweep *s = be->sweep;
    unsigned n = (unsigned)m->nnames, first = random_below(be, n);
    int asked = 0;
    s->whole = m->rc == ZOK && n <= SWEEP_SHARDS;
    for (unsigned i = 0; i < n && asked < SWEEP_SHARDS; i++) {
        const char *shard = m->names[(first + i) % n];
        if (dlock_hex(shard[0]) < 0 || dlock_hex(shard[1]) < 0 || shard[2] != '\0')
            continue;
        memcpy(s->shards[asked].name, shard, sizeof(s->shards[asked].name));
        s->shards[asked++].serial = ask_about(be, ZK_CHILDREN, zk_index_path(be, s->day, shard));
    }
}

/* The index nodes of a shard: get their records. */
static void get_records(struct zk_backend *be, const struct zk_msg *m, int at)
{
    struct zk_sweep *s = be->sweep;
    int i = 0;
    if (m->rc != ZOK)
        return;
    for (; i < m->nnames && s->n < SWEEP_MAX; i++) {
        char *place;
        if (asprintf(&place, "%s/%s", s->shards[at].name, m->names[i]) < 0)
            continue;
        s->records[s->n].place = place;
        s->records[s->n++].serial = ask_about(be, ZK_GET, zk_run_path(be, place));
    }
    s->shards[at].emptied = i == m->nnames;
}

/* Remove an expired record with its index node, or an index node without a record. */
static void remove_record(struct zk_backend *be, const struct zk_msg *m, int i)
{
    struct zk_sweep *s = be->sweep;
    struct zk_run r = {0};
    if (m->rc != ZOK && m->rc != ZNONODE)
        return;
    bool both = m->rc == ZOK && !zk_read_run(m, zk_server_ms(be), &r) && strcmp(r.day, s->day) == 0;
    if (both && zk_run_over_ms(&r.run) > zk_server_ms(be))
        return; /* the record's day and time do not agree */
    char *index = zk_index_path(be, s->day, s->records[i].place);
    char *record = zk_run_path(be, s->records[i].place);
    struct zk_request ops[] = {{.call = ZK_DELETE, .path = index, .version = -1},
                               {.call = ZK_DELETE, .path = record, .version = r.version}};
    if (index && record) {
        s->asked++;
        zk_ask_multi(be, sweep_answered, ops, both ? 2 : 1);
    }
    free(index);
    free(record);
}

/* All answers are there: delete the nodes, which may be empty now. The server keeps the rest. */
static void delete_empty(struct zk_backend *be)
{
    struct zk_sweep *s = be->sweep;
    bool all = s->whole;
    for (int i = 0; i < SWEEP_SHARDS && *s->day; i++) {
        if (s->shards[i].emptied)
            ask_about(be, ZK_DELETE, zk_index_path(be, s->day, s->shards[i].name));
        else if (s->shards[i].name[0])
            all = false;
    }
    if (all && *s->day)
        ask_about(be, ZK_DELETE, zk_index_path(be, s->day, ""));
    s->day[0] = '\0';
}

static enum zk_verdict sweep_answered(struct zk_backend *be, const struct zk_msg *m)
{
    struct zk_sweep *s = be->sweep;
    if (!s || s->asked == 0) /* the answer belongs to an earlier sweep */
        return ZK_GOES_ON;
    if (zk_transient(m->rc)) {
        zk_sweep_end(be);
        return ZK_GOES_ON;
    }
    s->asked--;
    if (m->serial == s->list_serial && !s->day[0])
        choose_day(be, m);
    else if (m->serial == s->list_serial)
        choose_shards(be, m);
    for (int i = 0; i < SWEEP_SHARDS; i++)
        if (m->serial == s->shards[i].serial)
            get_records(be, m, i);
    for (int i = 0; i < SWEEP_MAX; i++)
        if (m->serial == s->records[i].serial)
            remove_record(be, m, i);
    if (s->asked == 0)
        delete_empty(be);
    return ZK_GOES_ON;
}
