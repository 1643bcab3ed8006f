/*
 * run_node.c - where the run record of a lock is, and what the data of its node says. Names and
 * text alone.
 *
 * The record: CHROOT/dlock-once/r/SHARD/NAME, with the data "RECORD day=DAY" (run_record.h). An
 * empty index node CHROOT/dlock-once/d/DAY/SHARD/NAME says that the record expires on this day, so
 * that old records are found without reading all records. SHARD: two hexadecimal digits, so that no
 * list of children becomes longer than a server sends. NAME: the lock's, '/' and '%' as %2F and
 * %25. DAY: "2026-12-31", UTC.
 *
 * The server's time: begin and end of a run are times of the node's Stat. The data has the begin,
 * too, since the mtime becomes the end; and the end, for human readers.
 */
#include "zookeeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DAY_KEY " day="
#define DAY_SIZE (sizeof(DAY_KEY) - 1 + ZK_DAY_LEN)

int zk_set_run_paths(struct zk_backend *be, struct dlock_error *err)
{
    const char *name = be->spec->uri->name;
    int chroot = (int)be->lock.chroot_len;
    /* FNV-1a, folded. Hosts with different releases must find the same shard. */
    uint32_t h = 2166136261U;
    for (const unsigned char *c = (const unsigned char *)name; *c; c++)
        h = (h ^ *c) * 16777619U;
    h = (h ^ h >> 8 ^ h >> 16 ^ h >> 24) & 0xff;
    char *p = be->run.path.place = malloc(4 + 3 * strlen(name));
    if (!p)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    p += sprintf(p, "%02x/", (unsigned)h);
    for (; *name; name++) {
        if (*name == '/' || *name == '%')
            p += sprintf(p, "%%%02X", (unsigned char)*name);
        else
            *p++ = *name;
    }
    *p = '\0';
    if (asprintf(&be->run.path.base, "%.*s/" ZK_ONCE, chroot, be->lock.parent) < 0)
        be->run.path.base = NULL;
    else
        be->run.path.record = zk_run_path(be, be->run.path.place);
    return be->run.path.record ? 0 : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

char *zk_run_path(const struct zk_backend *be, const char *place)
{
    char *path;
    return asprintf(&path, "%s/r/%s", be->run.path.base, place) < 0 ? NULL : path;
}

char *zk_index_path(const struct zk_backend *be, const char *day, const char *place)
{
    char *path;
    int n = asprintf(&path, "%s/d%s%s%s%s", be->run.path.base, *day ? "/" : "", day,
                     *place ? "/" : "", place);
    return n < 0 ? NULL : path;
}

void zk_day(int64_t ms, char day[ZK_DAY_LEN + 1])
{
    static const int64_t last = INT64_C(253402300799); /* second of the year 9999 */
    time_t s = (time_t)dlock_min(dlock_max(ms / 1000, 0), last);
    struct tm tm;
    gmtime_r(&s, &tm);
    strftime(day, ZK_DAY_LEN + 1, "%Y-%m-%d", &tm);
}

bool zk_is_day(const char *s)
{
    for (int i = 0; i < ZK_DAY_LEN; i++)
        if (i == 4 || i == 7 ? s[i] != '-' : s[i] < '0' || s[i] > '9')
            return false;
    return s[ZK_DAY_LEN] == '\0';
}

int64_t zk_run_over_ms(const struct dlock_run *r)
{
    int64_t since = r->end_ms ? r->end_ms : r->begin_ms;
    return since + dlock_min(r->kept_ns / DLOCK_MSEC, INT64_MAX / 2 - since);
}

void zk_format_run(const struct zk_backend *be, const struct dlock_run *r, const char *day,
                   char text[RUN_RECORD_MAX])
{
    char who[RUN_RECORD_MAX];
    int n = run_record_who(be->spec, who, sizeof(who));
    if (n < 0) /* like zk_set_data() */
        snprintf(who, sizeof(who), "dlock1");
    n = run_record_format(r, who, text, RUN_RECORD_MAX - DAY_SIZE);
    snprintf(text + dlock_max(n, 0), DAY_SIZE + 1, DAY_KEY "%s", day);
}

const char *zk_read_run(const struct zk_msg *m, int64_t now_ms, struct zk_run *r)
{
    struct dlock_run run;
    if (m->stat.ephemeralOwner != 0)
        return "an ephemeral node";
    if (m->stat.numChildren > 0)
        return "a node with children";
    if (!run_record_parse(m->data, (size_t)m->len, now_ms, &run))
        return m->len == 0 ? "an empty node" : "a node with other data";
    int64_t at_ms = zk_stat_ms(m->stat.mtime);
    if (run.state == DLOCK_RUN_RUNNING)
        run.begin_ms = at_ms;
    else
        run.end_ms = at_ms;
    /* The time in the data is the writer's: a time in the future remains. */
    run.age_ns = dlock_min(run.age_ns, run_record_age(now_ms - at_ms));
    r->there = true;
    r->version = m->stat.version;
    r->run = run;
    /* The day at the end of the data; "": no valid day. */
    const char *key = (size_t)m->len > DAY_SIZE ? m->data + m->len - DAY_SIZE : NULL;
    r->day[0] = '\0';
    if (!key || memcmp(key, DAY_KEY, sizeof(DAY_KEY) - 1) != 0)
        return NULL;
    memcpy(r->day, key + sizeof(DAY_KEY) - 1, ZK_DAY_LEN);
    r->day[ZK_DAY_LEN] = '\0';
    if (!zk_is_day(r->day))
        r->day[0] = '\0';
    return NULL;
}
