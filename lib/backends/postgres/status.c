/* status.c - who holds an advisory lock, who waits: from pg_locks, and from the comment in each one's last query. */
#include "postgres.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { I_PID, I_GRANTED, I_SHARED, I_USER, I_QUERY, I_CLIENT, I_BEGIN, I_IDLE, I_APP };

/*
 * A waiter asks anew about once a second and is in no list for a moment between: whoever said last that it
 * waits for this lock, and is not listed, is such a one.
 */
#define LOCKS                                                                                      \
    "FROM pg_catalog.pg_locks l WHERE l.locktype = 'advisory' AND %s AND l.database = "            \
    "(SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())"

char *pg_ask_sql(const struct dlock_be *be, bool waiters)
{
    char *sql;
    int rc = asprintf(
        &sql,
        "WITH l AS MATERIALIZED (SELECT l.pid, l.granted, l.mode " LOCKS "%s) "
        "SELECT l.pid, l.granted::int, (l.mode = 'ShareLock')::int, a.usename, a.query, "
        "COALESCE(a.client_hostname, pg_catalog.host(a.client_addr), ''), "
        "(EXTRACT(epoch FROM a.backend_start) * 1000)::bigint, "
        "CASE WHEN a.state = 'idle' THEN (EXTRACT(epoch FROM pg_catalog.clock_timestamp() - "
        "a.state_change) * "
        "1000)::bigint ELSE 0 END, a.application_name "
        "FROM (SELECT * FROM l%s%s%s) l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid "
        "ORDER BY 2 DESC, a.query_start, l.pid%s",
        be->where_key, waiters ? "" : " AND l.granted",
        waiters
            ? " UNION ALL SELECT w.pid, false, 'ExclusiveLock' FROM pg_catalog.pg_stat_activity w "
              "WHERE w.datname = pg_catalog.current_database() AND w.query LIKE '/* dlock1 % wait="
            : "",
        waiters ? be->key_id : "", waiters ? " %' AND w.pid NOT IN (SELECT l.pid FROM l)" : "",
        waiters ? "" : " LIMIT 1");
    return rc < 0 ? NULL : sql;
}

/* The value of our own " key=N" in a record; -1: it has none. */
static int64_t record_number(const char *text, size_t len, const char *key)
{
    const char *at = memmem(text, len, key, strlen(key));
    return at ? strtoll(at + strlen(key), NULL, 10) : -1;
}

size_t pg_read_comment(const char *query, struct dlock_info *info, const char **begin)
{
    const char *end = strstr(query, " */");
    if (strncmp(query, "/* ", 3) != 0 || !end)
        return 0;
    *begin = query + 3;
    size_t len = (size_t)(end - *begin);
    return dlock_who_parse(*begin, len, info) ? len : 0;
}

void pg_read_info(struct dlock_be *be, const PGresult *res, int i, struct dlock_info *info)
{
    const char *begin;
    (void)be;
    *info = (struct dlock_info){.left_ns = -1, .mode = DLOCK_EXCLUSIVE};
    info->waiter = pg_number(res, i, I_GRANTED) == 0;
    if (pg_number(res, i, I_SHARED))
        info->mode = DLOCK_SHARED;
    size_t len = pg_read_comment(pg_text(res, i, I_QUERY), info, &begin);
    if (len > 0) {
        int64_t ttl = record_number(begin, len, " ttl="),
                fence = record_number(begin, len, " fence=");
        if (ttl > 0 && !info->waiter)
            info->left_ns = dlock_max(0, ttl - pg_number(res, i, I_IDLE)) * DLOCK_MSEC;
        if (fence > 0 && !info->waiter)
            info->fence = (uint64_t)fence;
        return;
    }
    /* Another program, or one of dlock whose queries this role may not read: the session is what we know. */
    const char *app = pg_text(res, i, I_APP), *user = pg_text(res, i, I_USER),
               *client = pg_text(res, i, I_CLIENT);
    info->foreign = strncmp(app, "dlock:", 6) != 0;
    info->pid = (long)pg_number(res, i, I_PID);
    info->since_ms = pg_number(res, i, I_BEGIN);
    if (!info->foreign)
        return;
    info->left_ns = DLOCK_NEVER;
    dlock_clean_text(info->user, sizeof info->user, user, strlen(user));
    dlock_clean_text(info->host, sizeof info->host, client, strlen(client));
    dlock_clean_text(info->command, sizeof info->command, app, strlen(app));
}
