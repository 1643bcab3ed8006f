/*
 * advisory.c - a session-level advisory lock; the session's idle time-out is the lease.
 *
 *   try      one statement: settings, lock, fence          renew    any statement: it restarts the idle time
 *   wait     pg_advisory_lock for 0.9 s at a time          release  pg_advisory_unlock, then the session ends
 *
 * Nothing may be set or locked on a session that is not ours alone. A pooler shows by the backend's pid,
 * which is not the one that the connection began with, so all of it hangs on that in SQL: through a pooler
 * the statement does nothing [measured with PgBouncer]. The same for a standby, whose advisory locks are
 * nobody else's.
 *
 * Waiting is cut into chunks since a statement that waits holds a snapshot, and CREATE INDEX CONCURRENTLY
 * in the holder's command would wait for it, for ever. In a DO block because a lock_timeout that nobody
 * catches writes two lines into the server's log each time.
 */
#include "postgres.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHO_EVERY 32 /* chunks between two looks at who holds it */
#define OLDEST 120000

#define CHUNK_MS 900             /* one statement waits no longer */
#define WITH_IDLE_TIMEOUT 140000 /* the first version that ends a silent session */

static int64_t ttl_ms(const struct dlock_be *be)
{
    return be->spec->ttl / DLOCK_MSEC;
}

/* ------------------------------------------------------------------ statements */

/* Who we are, for pg_stat_activity. what: more of "key=value", with a space in front. */
static char *comment(const struct dlock_be *be, const char *what)
{
    char *text;
    return asprintf(&text, "/* %s ttl=%" PRId64 "%s */ ", be->record, ttl_ms(be), what) < 0 ? NULL
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
        put_setting(f, "idle_session_timeout", ttl_ms(be), "ms");
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
    put_setting(f, "tcp_user_timeout", dlock_min(ttl_ms(be), INT32_MAX), "");
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

/* Look at the session and the server, and take the lock (try) or its fence only. Answers one row of these. */
enum { R_PID, R_STANDBY, R_GRACE, R_IDLE, R_LOCKED, R_LSN, R_WAL, R_COLUMNS };
/*
 * Each step in a sub-select of its own, behind OFFSET 0 so that the planner leaves it there, each hanging
 * on the one before by CASE: that is the only order of evaluation that SQL promises.
 */
static char *lock_sql(const struct dlock_be *be, bool try)
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

/* Wait for the lock, CHUNK_MS or fairly without end. Answers our token: it is ours. */
static char *wait_sql(const struct dlock_be *be)
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

static char *beat_sql(const struct dlock_be *be)
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

static char *unlock_sql(const struct dlock_be *be)
{
    char *sql;
    int rc = asprintf(&sql,
                      "SELECT CASE WHEN pg_catalog.pg_backend_pid() = %d THEN "
                      "pg_catalog.pg_advisory_unlock(%s) END::int",
                      PQbackendPID(be->conn.pq), be->key);
    return rc < 0 ? NULL : sql;
}

/* ---------------------------------------------------------------------- status */

enum { I_PID, I_GRANTED, I_SHARED, I_USER, I_QUERY, I_CLIENT, I_BEGIN, I_IDLE, I_APP };

/*
 * A waiter asks anew about once a second and is in no list for a moment between: whoever said last that it
 * waits for this lock, and is not listed, is such a one.
 */
#define LOCKS                                                                                      \
    "FROM pg_catalog.pg_locks l WHERE l.locktype = 'advisory' AND %s AND l.database = "            \
    "(SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())"

static char *status_sql(const struct dlock_be *be, bool waiters)
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

static void adv_read_info(struct dlock_be *be, const PGresult *res, int i, struct dlock_info *info)
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

/* --------------------------------------------------------------------- acquire */

static void bound(struct dlock_be *be, int64_t more)
{
    if (!be->first)
        be->op_until = pg_now(be) + more + pg_patience(be);
}

static void try_now(struct dlock_be *be)
{
    be->try_at = DLOCK_NEVER;
    bound(be, 0);
    pg_send(be, T_TRY, lock_sql(be, true));
}

static void wait_on(struct dlock_be *be)
{
    if (!be->wait || be->chunks++ % WHO_EVERY == 0) {
        bound(be, 0);
        pg_send(be, T_WHO, status_sql(be, false));
        return;
    }
    if (be->polls) {
        be->op_until = DLOCK_NEVER;
        be->try_at = pg_now(be) + CHUNK_MS * DLOCK_MSEC;
        return;
    }
    bound(be, CHUNK_MS * DLOCK_MSEC);
    if (be->fair)
        be->op_until = DLOCK_NEVER;
    pg_send(be, T_WAIT, wait_sql(be));
}

static void adv_ready(struct dlock_be *be)
{
    int version = PQserverVersion(be->conn.pq);
    struct dlock_error err;
    if (be->doing == PG_ASK) {
        pg_send(be, T_ASK, status_sql(be, true));
        return;
    }
    if (be->doing != PG_ACQUIRE)
        return;
    if (version < OLDEST) {
        dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: PostgreSQL %d is too old: 12 or later is needed",
                   pg_where(be), version / 10000);
        pg_fail(be, &err);
        return;
    }
    if (version < WITH_IDLE_TIMEOUT && !be->told_old) {
        be->told_old = true;
        dlock_fail(&events_add(&be->events, EV_NOTICE)->error, 0, 0,
                   "%s: PostgreSQL %d does not end a silent session: if this machine stops, the "
                   "lock stays "
                   "until TCP gives up (14 and later end it after the ttl)",
                   pg_where(be), version / 10000);
    }
    try_now(be);
}

/* --------------------------------------------------------------------- answers */

/* "0/16B3748" of "000000010000000000000001": (timeline << 48) | (position >> 3). 0: not understood. */
static uint64_t make_fence(const char *lsn, const char *wal)
{
    char part[9] = "";
    unsigned high, low;
    char rest;
    if (sscanf(lsn, "%8X/%8X%c", &high, &low, &rest) != 2 || strlen(wal) != 24)
        return 0;
    memcpy(part, wal, 8);
    uint64_t timeline = strtoul(part, NULL, 16), position = ((uint64_t)high << 32 | low) >> 3;
    if (timeline == 0 || timeline > 0x7fff || position >> 48)
        return 0;
    return timeline << 48 | position;
}

static void granted(struct dlock_be *be, const struct pg_reply *r)
{
    struct dlock_error err;
    be->fence = make_fence(pg_text(r->rows, 0, R_LSN), pg_text(r->rows, 0, R_WAL));
    if (be->fence == 0) {
        dlock_fail(&err, DLOCK_EPROTO, 0,
                   "%s: no fencing token can be made of the log position '%.20s' in '%.30s'",
                   pg_where(be), pg_text(r->rows, 0, R_LSN), pg_text(r->rows, 0, R_WAL));
        pg_fail(be, &err);
        return;
    }
    be->granted = true;
    be->doing = PG_NOTHING;
    be->op_until = DLOCK_NEVER;
    struct dlock_event *ev = events_add(&be->events, EV_GRANTED);
    ev->from = r->sent;
    ev->ttl = be->spec->ttl;
    ev->fence = be->fence;
    memcpy(ev->token, be->token, sizeof ev->token);
}

static void tell_grace(struct dlock_be *be, int64_t left_ms)
{
    char left[32];
    if (!be->told_grace) {
        be->told_grace = true;
        dlock_fail(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EBUSY, 0,
                   "%s: the server was started a short while ago, and its locks are granted in %s "
                   "(restart-grace)",
                   pg_where(be), dlock_format_duration(left_ms * DLOCK_MSEC, left, sizeof left));
    }
    if (be->wait) {
        events_add(&be->events, EV_WAITING);
        be->op_until = DLOCK_NEVER;
        /* The server ends a session that is silent for a ttl. */
        be->try_at =
            pg_now(be) + dlock_min(left_ms + 10, dlock_min(5000, ttl_ms(be) / 2)) * DLOCK_MSEC;
        return;
    }
    events_add(&be->events, EV_BUSY);
    be->doing = PG_NOTHING;
    pg_conn_close(&be->conn);
}

/* A time as the server shows it, "1500ms", "30s", "2min", in the largest unit that is exact; -1: not understood. */
static int64_t shown_ms(const char *text)
{
    static const struct {
        const char *unit;
        int64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"min", 60000}, {"h", 3600000}, {"d", 86400000}, {"", 1}};
    char *end;
    int64_t n = strtoll(text, &end, 10);
    for (size_t i = 0; end != text && i < DLOCK_LEN(units); i++)
        if (strcmp(end, units[i].unit) == 0)
            return n * units[i].ms;
    return -1;
}

/* Is this session ours alone, and does the server keep our lease? Else it is refused. */
static bool session_fits(struct dlock_be *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (!pg_one_row(r, R_COLUMNS))
        dlock_fail(&err, DLOCK_EPROTO, 0, "%s: unexpected answer to the lock query", pg_where(be));
    else if (pg_number(r->rows, 0, R_PID) != PQbackendPID(be->conn.pq))
        dlock_fail(&err, DLOCK_EUSAGE, 0,
                   "%s: a connection pooler stands between dlock and the server, and would keep an "
                   "advisory "
                   "lock for others: name the server itself, or use ?mode=lease",
                   pg_where(be));
    else if (pg_number(r->rows, 0, R_STANDBY))
        dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: the server is a standby", pg_where(be));
    else if (PQserverVersion(be->conn.pq) >= WITH_IDLE_TIMEOUT &&
             shown_ms(pg_text(r->rows, 0, R_IDLE)) != ttl_ms(be))
        dlock_fail(&err, DLOCK_EUNAVAIL, 0,
                   "%s: the server did not accept an idle_session_timeout of %" PRId64 " ms",
                   pg_where(be), ttl_ms(be));
    else
        return true;
    pg_fail(be, &err);
    return false;
}

/* An error may leave the session lock behind although the statement was rolled back: the session ends. */
static void refused(struct dlock_be *be, const struct pg_reply *r)
{
    struct dlock_error err;
    pg_conn_reply_error(&be->conn, r, &err);
    bool class53 = strncmp(r->sqlstate, "53", 2) == 0, class57 = strncmp(r->sqlstate, "57", 2) == 0;
    pg_try_later(be, &err, class53 || class57 || strncmp(r->sqlstate, "40", 2) == 0);
}

static void tried(struct dlock_be *be, const struct pg_reply *r)
{
    if (r->sqlstate[0]) {
        refused(be, r);
        return;
    }
    if (!session_fits(be, r))
        return;
    be->first = false;
    outage_over(&be->outage);
    if (pg_number(r->rows, 0, R_LOCKED))
        granted(be, r);
    else if (be->restart_grace > 0 && pg_number(r->rows, 0, R_GRACE) > 0)
        tell_grace(be, pg_number(r->rows, 0, R_GRACE));
    else
        wait_on(be);
}

/* -n; info: who holds it, or NULL: that is all that is missing. */
static void not_free(struct dlock_be *be, const struct dlock_info *info)
{
    events_add(&be->events, EV_BUSY)->info = info;
    be->doing = PG_NOTHING;
    be->op_until = DLOCK_NEVER;
    pg_conn_close(&be->conn);
}

static void who_answered(struct dlock_be *be, const struct pg_reply *r)
{
    bool known = !r->sqlstate[0] && r->rows && PQntuples(r->rows) > 0;
    if (known)
        adv_read_info(be, r->rows, 0, &be->info);
    if (!be->wait) {
        not_free(be, known ? &be->info : NULL);
        return;
    }
    events_add(&be->events, EV_WAITING)->info = known ? &be->info : NULL;
    wait_on(be);
}

static void waited(struct dlock_be *be, const struct pg_reply *r)
{
    /* No PL/pgSQL for this role or in this database. */
    if (strcmp(r->sqlstate, "42501") == 0 || strcmp(r->sqlstate, "42704") == 0 ||
        strcmp(r->sqlstate, "0A000") == 0) {
        be->polls = true;
        wait_on(be);
    } else if (r->sqlstate[0] || !pg_one_row(r, 1)) {
        refused(be, r);
    } else if (strcmp(pg_text(r->rows, 0, 0), be->token) == 0) {
        /* The lease begins anew: what counts is sent now that the lock is ours. */
        bound(be, 0);
        pg_send(be, T_CONFIRM, lock_sql(be, false));
    } else {
        wait_on(be);
    }
}

static void confirmed(struct dlock_be *be, const struct pg_reply *r)
{
    if (r->sqlstate[0])
        refused(be, r);
    else if (session_fits(be, r))
        granted(be, r);
}

/* ------------------------------------------------------------------- heartbeat */

static void renewed(struct dlock_be *be, int64_t from)
{
    be->doing = PG_NOTHING;
    be->op_until = DLOCK_NEVER;
    be->beat_sent = 0;
    be->beat_called = false;
    struct dlock_event *ev = events_add(&be->events, EV_RENEWED);
    ev->from = from;
    ev->ttl = be->spec->ttl;
}

/* An answer that is an error ends no session: pg_cancel_backend, say. The next one counts. */
static void beat_answered(struct dlock_be *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (r->sqlstate[0]) {
        if (!be->beat_called)
            return;
        pg_conn_reply_error(&be->conn, r, &err);
        be->doing = PG_NOTHING;
        be->beat_called = false;
        be->op_until = DLOCK_NEVER;
        events_add(&be->events, EV_UNCLEAR)->error = err;
    } else if (be->beat_called) {
        renewed(be, r->sent);
    } else {
        be->beat_sent = r->sent;
    }
}

static void adv_renew(struct dlock_be *be)
{
    be->beat_called = true;
    if (be->beat_sent != 0)
        renewed(be, be->beat_sent);
    else if (!pg_conn_busy(&be->conn)) /* else the answer to the last one still counts */
        pg_send(be, T_BEAT, beat_sql(be));
}

/* --------------------------------------------------------------------- release */

static void unlock(struct dlock_be *be)
{
    pg_send(be, T_RELEASE, unlock_sql(be));
}

static void unlocked(struct dlock_be *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (strcmp(r->sqlstate, "57014") == 0) {
        unlock(be); /* our own cancel, late: it was for the request before this one */
    } else if (r->sqlstate[0] || !pg_one_row(r, 1)) {
        pg_conn_reply_error(&be->conn, r, &err);
        pg_end_release(be, DLOCK_REL_UNCLEAR, &err);
    } else if (pg_number(r->rows, 0, 0) == 1) {
        pg_end_release(be, DLOCK_REL_CLEAN, NULL);
    } else {
        dlock_fail(&err, DLOCK_ELOST, 0, "%s: the session did not hold the lock '%s' any more",
                   pg_where(be), be->spec->uri->name);
        pg_end_release(be, DLOCK_REL_NOT_OURS, &err);
    }
}

/* While a release is under way. Nothing granted: the end of the session undoes whatever it was. */
static void answered_late(struct dlock_be *be, const struct pg_reply *r)
{
    if (r->tag == T_RELEASE)
        unlocked(be, r);
    else if (be->granted)
        unlock(be);
    else
        pg_end_release(be, DLOCK_REL_NOTHING, NULL);
}

static void adv_release(struct dlock_be *be)
{
    be->beat_called = false;
    if (be->conn.state == PC_UP)
        pg_conn_work(&be->conn); /* has the session ended just now? */
    if (be->conn.state == PC_FAILED)
        return; /* adv_failed() has the word */
    if (be->conn.state != PC_UP)
        pg_end_release(be, DLOCK_REL_NOTHING, NULL);
    else if (!pg_conn_busy(&be->conn)) {
        if (be->granted)
            unlock(be);
        else
            pg_end_release(be, DLOCK_REL_NOTHING, NULL);
    } else if (!be->granted || be->renew_writes) {
        /*
         * So that we leave the line now and not at the end of the chunk; and for a commit that waits for
         * a standby: such a session looks neither at its socket nor at its idle time, and would keep the lock.
         */
        pg_conn_cancel(&be->conn);
    }
}

/* ----------------------------------------------------------------------- slots */

static void adv_answered(struct dlock_be *be, const struct pg_reply *r)
{
    if (be->doing == PG_RELEASE) {
        answered_late(be, r);
        return;
    }
    switch (r->tag) {
    case T_TRY:
        tried(be, r);
        break;
    case T_WHO:
        who_answered(be, r);
        break;
    case T_WAIT:
        waited(be, r);
        break;
    case T_CONFIRM:
        confirmed(be, r);
        break;
    case T_BEAT:
        beat_answered(be, r);
        break;
    default:
        break;
    }
}

/* The session is gone, and with it the lock. */
static void adv_failed(struct dlock_be *be, const struct dlock_error *err)
{
    if (be->doing == PG_ACQUIRE && !be->wait && !be->first) {
        not_free(be, NULL);
    } else if (be->doing == PG_ACQUIRE) {
        pg_try_later(be, err, be->conn.transient);
    } else if (be->doing == PG_RELEASE) {
        bool asked = be->conn.requests[0].tag == T_RELEASE;
        bool until_now = err->code == DLOCK_ENOMEM; /* it was there as long as the command ran */
        pg_end_release(be,
                       !be->granted         ? DLOCK_REL_NOTHING
                       : asked || until_now ? DLOCK_REL_UNCLEAR
                                            : DLOCK_REL_NOT_OURS,
                       err);
    } else if (be->granted) {
        be->granted = be->beat_called = false;
        be->doing = PG_NOTHING;
        be->op_until = DLOCK_NEVER;
        struct dlock_event *ev = events_add(&be->events, EV_LOST);
        ev->error = *err;
        ev->error.code = DLOCK_ELOST;
    }
}

static void adv_timeout(struct dlock_be *be, int64_t now)
{
    struct dlock_error err;
    if (be->doing == PG_RELEASE && now >= be->rel_until) {
        dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: no answer to the release", pg_where(be));
        pg_end_release(be, be->granted ? DLOCK_REL_UNCLEAR : DLOCK_REL_NOTHING, &err);
    } else if (be->doing == PG_RENEW && now >= be->op_until) {
        /* Still on its way, on the only session that can bring it. */
        be->doing = PG_NOTHING;
        be->beat_called = false;
        be->op_until = DLOCK_NEVER;
        no_answer(&events_add(&be->events, EV_UNCLEAR)->error, be->spec, be->spec->op_timeout);
    } else if (be->doing == PG_ACQUIRE && now >= be->op_until && !be->wait && !be->first) {
        not_free(be, NULL);
    } else if (be->doing == PG_ACQUIRE && now >= be->op_until) {
        no_answer(&err, be->spec, pg_patience(be));
        pg_conn_cancel(&be->conn); /* as in adv_release() */
        pg_try_later(be, &err, true);
    } else if (be->doing == PG_ACQUIRE && now >= be->try_at) {
        try_now(be);
    }
}

const struct pg_protocol pg_advisory = {
    .acquire = pg_connect,
    .ready = adv_ready,
    .answered = adv_answered,
    .failed = adv_failed,
    .renew = adv_renew,
    .release = adv_release,
    .timeout = adv_timeout,
    .read_info = adv_read_info,
};
