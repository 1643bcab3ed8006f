/*
 * table_sql.c - the statements of mode=lease, and how they are sent. See table.c for what they rest on.
 */
#include "table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* A grant, a renewal or a release that a crash of the server undoes would be none. */
#define DURABLE                                                                                    \
    "pg_catalog.set_config('synchronous_commit', CASE "                                            \
    "pg_catalog.current_setting('synchronous_commit') WHEN 'off' THEN 'local' ELSE "               \
    "pg_catalog.current_setting('synchronous_commit') END, true)"
#define NOW "pg_catalog.clock_timestamp()"
#define TTL "pg_catalog.make_interval(secs => $3::float8)"
#define MICROSECONDS "(EXTRACT(epoch FROM " NOW ") * 1000000)::bigint"

/* ------------------------------------------------------------------ statements */

/* @T: the table. @W: who we are, in a comment. @C: the channel on which a waiter is called, its pid behind it. */
static const char try_text[] =
    "@WWITH got AS (INSERT INTO @T AS l (name, fence, owner, expires, holder) "
    "SELECT $1, " MICROSECONDS ", $2, " NOW " + " TTL ", $4 "
    "FROM (SELECT " DURABLE " AS done OFFSET 0) s WHERE s.done IS NOT NULL "
    "ON CONFLICT (name) DO UPDATE SET fence = GREATEST(l.fence + 1, EXCLUDED.fence), "
    "owner = EXCLUDED.owner, expires = " NOW " + " TTL ", holder = EXCLUDED.holder "
    "WHERE l.expires <= " NOW " RETURNING l.fence) "
    "SELECT g.fence, pg_catalog.pg_backend_pid(), o.holder, o.fence, "
    "(EXTRACT(epoch FROM o.expires - " NOW ") * 1000)::bigint, $2::text "
    "FROM (SELECT 1) x LEFT JOIN got g ON true "
    "LEFT JOIN @T o ON o.name = $1 AND o.expires > " NOW;

static const char renew_text[] =
    "WITH u AS (UPDATE @T l SET expires = " NOW " + " TTL " FROM (SELECT " DURABLE
    " AS done OFFSET 0) s WHERE s.done IS NOT NULL AND l.name = $1 AND l.owner = $2 "
    "AND l.fence = $4::bigint AND l.expires > " NOW " RETURNING 1) "
    "SELECT (SELECT pg_catalog.count(*) FROM u), o.holder, $2::text FROM (SELECT 1) x "
    "LEFT JOIN @T o ON o.name = $1 AND o.owner <> $2 AND o.expires > " NOW;

/* Two of those who wait are called. The function behind pg_stat_activity, because that view takes long to plan. */
static const char release_text[] =
    "WITH u AS (UPDATE @T l SET expires = '-infinity', owner = '' FROM (SELECT " DURABLE
    " AS done OFFSET 0) s WHERE s.done IS NOT NULL AND l.name = $1 AND l.owner = $2 "
    "AND l.expires > " NOW " RETURNING 1), "
    "w AS (SELECT a.pid FROM pg_catalog.pg_stat_get_activity(NULL) a WHERE a.application_name = $3 "
    "AND a.datid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = "
    "pg_catalog.current_database()) AND EXISTS (SELECT 1 FROM u) ORDER BY a.backend_start, a.pid "
    "LIMIT 2), "
    "c AS (SELECT pg_catalog.pg_notify('@C' || w.pid, '') FROM w) "
    "SELECT (SELECT pg_catalog.count(*) FROM u), o.holder, $2::text, (SELECT pg_catalog.count(*) "
    "FROM c) "
    "FROM (SELECT 1) x LEFT JOIN @T o ON o.name = $1 AND o.owner <> $2 AND o.expires > " NOW;

/* Rows that nobody has used for a week. */
static const char sweep_text[] =
    "DELETE FROM @T d WHERE d.name IN (SELECT t.name FROM @T t WHERE "
    "t.expires < " NOW " - '7 days'::interval AND t.fence < " MICROSECONDS " - 604800000000 "
    "LIMIT 20 FOR UPDATE SKIP LOCKED)";

static const char ask_text[] =
    "SELECT 0, t.holder, t.fence, (EXTRACT(epoch FROM t.expires - " NOW
    ") * 1000)::bigint, ''::text, 0 "
    "FROM @T t WHERE t.name = $1 AND t.expires > " NOW " UNION ALL "
    "(SELECT 1, w.query, 0, 0, w.usename::text, w.pid FROM pg_catalog.pg_stat_activity w WHERE "
    "w.application_name = $2 AND w.datname = pg_catalog.current_database() "
    "ORDER BY w.backend_start, w.pid)";

static const char schema_text[] =
    "CREATE TABLE IF NOT EXISTS @T (name text COLLATE \"C\" PRIMARY KEY, fence bigint NOT NULL, "
    "owner text NOT NULL, expires timestamptz NOT NULL, holder text NOT NULL)";

static char *fill(const struct dlock_be *be, const char *text)
{
    char *sql = NULL;
    size_t size;
    FILE *f = open_memstream(&sql, &size);
    if (!f)
        return NULL;
    for (const char *p = text; *p; p++) {
        if (*p != '@')
            fputc(*p, f);
        else if (*++p == 'T')
            fputs(be->table, f);
        else if (*p == 'C')
            fputs(be->channel, f);
        else
            fprintf(f, "/* %s */ ", be->record);
    }
    return fclose(f) == 0 ? sql : (free(sql), NULL);
}

char *pg_table_schema(const struct dlock_be *be)
{
    return fill(be, schema_text);
}

static void send_text(struct dlock_be *be, enum pg_tag tag, const char *text, int n,
                      const char *const *values)
{
    pg_send_params(be, tag, fill(be, text), n, values);
}

/* ----------------------------------------------------------------- what is sent */

static void seconds_of(char *buf, size_t size, int64_t ns)
{
    snprintf(buf, size, "%" PRId64 ".%03d", ns / DLOCK_SEC, (int)(ns % DLOCK_SEC / DLOCK_MSEC));
}

void pg_table_send_try(struct dlock_be *be)
{
    char ttl[32];
    be->try_at = DLOCK_NEVER;
    be->conn.notified = false;
    if (!be->first)
        be->op_until = pg_now(be) + pg_patience(be);
    be->tried = true;
    seconds_of(ttl, sizeof ttl, be->spec->ttl);
    send_text(be, T_TRY, try_text, 4,
              (const char *const[]){be->spec->uri->name, be->token, ttl, be->record});
}

static void give_back(struct dlock_be *be, enum pg_tag tag, const char *token)
{
    send_text(be, tag, release_text, 3,
              (const char *const[]){be->spec->uri->name, token, be->waiter_app});
}

void pg_table_send_undo(struct dlock_be *be, const char *token)
{
    give_back(be, T_UNDO, token);
}

void pg_table_send_release(struct dlock_be *be)
{
    be->release_sent = true;
    give_back(be, T_RELEASE, be->token);
}

void pg_table_send_sweep(struct dlock_be *be)
{
    send_text(be, T_SWEEP, sweep_text, 0, NULL);
}

void pg_table_send_schema(struct dlock_be *be)
{
    send_text(be, T_SCHEMA, schema_text, 0, NULL);
}

void pg_table_send_ask(struct dlock_be *be)
{
    send_text(be, T_ASK, ask_text, 2, (const char *const[]){be->spec->uri->name, be->waiter_app});
}

void pg_table_send_renew(struct dlock_be *be)
{
    char ttl[32], fence[24];
    seconds_of(ttl, sizeof ttl, be->spec->ttl);
    snprintf(fence, sizeof fence, "%" PRIu64, be->fence);
    send_text(be, T_BEAT, renew_text, 4,
              (const char *const[]){be->spec->uri->name, be->token, ttl, fence});
}

/* Only on a session that is ours alone: behind a pooler it would stay with somebody else's. */
void pg_table_send_name(struct dlock_be *be, const char *app)
{
    char sql[256];
    snprintf(sql, sizeof sql,
             "SELECT CASE WHEN pg_catalog.pg_backend_pid() = %d THEN "
             "pg_catalog.set_config('application_name', '%s', false) END",
             PQbackendPID(be->conn.pq), app);
    pg_conn_send_params(&be->conn, T_LISTEN, sql, 0, NULL);
}

/* The name says who can be called. A release from before that calls nobody, so another try follows. */
void pg_table_send_listen(struct dlock_be *be)
{
    char sql[128];
    be->listening = true;
    snprintf(sql, sizeof sql, "LISTEN \"%s%d\"", be->channel, PQbackendPID(be->conn.pq));
    pg_conn_send_params(&be->conn, T_LISTEN, sql, 0, NULL);
    pg_table_send_name(be, be->waiter_app);
    pg_table_send_try(be);
}
