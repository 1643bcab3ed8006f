/*
 * advisory_sql.c - the statements of an advisory lock. See advisory.c for what they may do, and on which session
 * only.
 */
#include "advisory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Who we are, for pg_stat_activity. what: more of "key=value", with a space in front. */
static char *comment(const struct dlock_be *be, const char *what)
{
    char *text;
    return asprintf(&text, "/* %s ttl=%" PRId64 "%s */ ", be->record, pg_advisory_ttl_ms(be),
                    what) < 0
               ? NULL
               : text;
}

static void put_setting(FILE *f, const char *name, int64_t value, const char *unit)
{
    fprintf(f, "pg_catalog.set_config('%s','%" PRId64 "%s',false),", name, value, unit);
}

/*
 * The session's: the lease, and that a dead client is noticed while we wait. The server's time-outs of a
 * statement are for queries, not for locks.
 */
static void put_settings(const struct dlock_be *be, FILE *f, int version)
{
    int64_t third = dlock_max(1, be->spec->ttl / DLOCK_SEC / 3), ninth = dlock_max(1, third / 3);
    if (version >= WITH_IDLE_TIMEOUT) {
        put_setting(f, "idle_session_timeout", pg_advisory_ttl_ms(be), "ms");
        /* Other systems refuse it. */
        fputs("CASE WHEN pg_catalog.version() LIKE '%linux%' THEN "
              "pg_catalog.set_config('client_connection_check_interval','1s',false) END,",
              f);
    }
    if (version >= 170000)
        put_setting(f, "transaction_timeout", 0, "");
    put_setting(f, "tcp_keepalives_idle", third, "");
    put_setting(f, "tcp_keepalives_interval", ninth, "");
    put_setting(f, "tcp_keepalives_count", 3, "");
    put_setting(f, "tcp_user_timeout", dlock_min(pg_advisory_ttl_ms(be), INT32_MAX), "");
    put_setting(f, "statement_timeout", 0, "");
}

/*
 * The fence: the place of a record in the write-ahead log. It counts only once that is on disk, whatever
 * synchronous_commit says: else a crash could hand the same place out again.
 */
#define DURABLE                                                                                    \
    "pg_catalog.set_config('synchronous_commit', CASE "                                            \
    "pg_catalog.current_setting('synchronous_commit') WHEN 'off' THEN 'local' ELSE "               \
    "pg_catalog.current_setting('synchronous_commit') END, true)"
#define EMIT "pg_catalog.pg_logical_emit_message(true, 'dlock', ''::text)"

/*
 * Each step in a sub-select of its own, behind OFFSET 0 so that the planner leaves it there, each hanging
 * on the one before by CASE: that is the only order of evaluation that SQL promises.
 */
char *pg_advisory_lock_sql(const struct dlock_be *be, bool try)
{
    char *sql = NULL, *who = comment(be, "");
    int version = PQserverVersion(be->conn.pq);
    size_t size;
    FILE *f = who ? open_memstream(&sql, &size) : NULL;
    if (!f) {
        free(who);
        return NULL;
    }
    fprintf(f,
            "%sSELECT g.pid, g.standby::int, g.grace, l.idle, l.locked::int, f.lsn, "
            "CASE WHEN f.lsn IS NOT NULL THEN pg_catalog.pg_walfile_name(f.lsn) END "
            "FROM (SELECT pg_catalog.pg_backend_pid() AS pid, pg_catalog.pg_is_in_recovery() AS "
            "standby, ",
            who);
    free(who);
    /* Only what is needed: a new session has to look up every function that a statement names. */
    if (try && be->restart_grace > 0)
        fprintf(f,
                "%" PRId64 " - (EXTRACT(epoch FROM pg_catalog.clock_timestamp() - "
                "GREATEST(pg_catalog.pg_postmaster_start_time(), "
                "pg_catalog.pg_stat_get_bgwriter_stat_reset_time())) * 1000)::bigint",
                be->restart_grace / DLOCK_MSEC);
    else
        fputc('0', f);
    fprintf(f,
            " AS grace OFFSET 0) g CROSS JOIN LATERAL (SELECT CASE WHEN g.pid = %d AND "
            "NOT g.standby THEN pg_catalog.concat(",
            PQbackendPID(be->conn.pq));
    if (try)
        put_settings(be, f, version);
    fputs("'') END AS done OFFSET 0) s CROSS JOIN LATERAL (SELECT ", f);
    fputs(version >= WITH_IDLE_TIMEOUT ? "CASE WHEN s.done IS NOT NULL THEN "
                                         "pg_catalog.current_setting('idle_session_timeout') END"
                                       : "NULL",
          f);
    fprintf(f,
            " AS idle, CASE WHEN s.done IS NOT NULL%s THEN %s%s%s END AS locked OFFSET 0) l "
            "CROSS JOIN LATERAL (SELECT CASE WHEN l.locked THEN CASE WHEN " DURABLE
            " IS NOT NULL THEN " EMIT " END END AS lsn OFFSET 0) f",
            try && be->restart_grace > 0 ? " AND g.grace <= 0" : "",
            try ? "pg_catalog.pg_try_advisory_lock(" : "true", try ? be->key : "", try ? ")" : "");
    return fclose(f) == 0 ? sql : (free(sql), NULL);
}

char *pg_advisory_wait_sql(const struct dlock_be *be)
{
    char what[48], *sql, *who;
    snprintf(what, sizeof what, " wait=%s", be->key_id);
    who = comment(be, what);
    int rc =
        who ? asprintf(
                  &sql,
                  "%sDO $dlock$BEGIN "
                  "IF pg_catalog.pg_backend_pid() = %d AND NOT pg_catalog.pg_is_in_recovery() THEN "
                  "PERFORM pg_catalog.set_config('lock_timeout', '%d', true); "
                  "PERFORM pg_catalog.pg_advisory_lock(%s); "
                  "PERFORM pg_catalog.set_config('dlock.got', '%s', true); "
                  "END IF; "
                  "EXCEPTION WHEN lock_not_available OR query_canceled THEN NULL; "
                  "END$dlock$; SELECT pg_catalog.current_setting('dlock.got', true)",
                  who, PQbackendPID(be->conn.pq), be->fair ? 0 : CHUNK_MS, be->key, be->token)
            : -1;
    free(who);
    return rc < 0 ? NULL : sql;
}

char *pg_advisory_beat_sql(const struct dlock_be *be)
{
    char fence[40], *sql, *who;
    snprintf(fence, sizeof fence, " fence=%" PRIu64, be->fence);
    who = comment(be, fence);
    int rc = who ? asprintf(&sql, "%sSELECT pg_catalog.pg_is_in_recovery()::int%s", who,
                            be->renew_writes ? ", " EMIT : "")
                 : -1;
    free(who);
    return rc < 0 ? NULL : sql;
}

char *pg_advisory_unlock_sql(const struct dlock_be *be)
{
    char *sql;
    int rc = asprintf(&sql,
                      "SELECT CASE WHEN pg_catalog.pg_backend_pid() = %d THEN "
                      "pg_catalog.pg_advisory_unlock(%s) END::int",
                      PQbackendPID(be->conn.pq), be->key);
    return rc < 0 ? NULL : sql;
}
