/*
 * advisory.c - a session-level advisory lock; the session's idle time-out is the lease.
 *
 *   try      one statement: settings, lock, fence          renew    any statement: it restarts the idle time
 *   wait     pg_advisory_lock for 0.9 s at a time          release  pg_advisory_unlock, then the session ends
 *
 * Nothing may be set or locked on a session that other clients use as well. Behind a pooler the backend's pid is
 * not the one that the connection began with, so every setting and lock depends on that pid in SQL: through a
 * pooler the statement does nothing [measured with PgBouncer]. The same holds for a standby: its advisory locks
 * exclude no client of the primary.
 *
 * Waiting is cut into chunks, since a waiting statement holds a snapshot, and CREATE INDEX CONCURRENTLY in the
 * holder's command would wait for it indefinitely. A DO block catches the lock_timeout, which otherwise writes two
 * lines into the server's log each time.
 */
#include "postgres.h"
#include "sql.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OLDEST 120000
#define WITH_IDLE_TIMEOUT 140000 /* the first version that ends a silent session */
#define CHUNK_MS 900             /* one statement waits no longer */
#define HOLDER_EVERY 32          /* chunks from one look at the holder to the next */

static int64_t ttl_ms(const struct pg_backend *be)
{
    return be->spec->ttl / DLOCK_MSEC;
}

/* ------------------------------------------------------------------ statements */

/* Every statement is malloc'ed; NULL: out of memory. */
__attribute__((format(printf, 1, 2))) static char *format(const char *fmt, ...)
{
    char *text;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    return n < 0 ? NULL : text;
}

/* A record for pg_stat_activity. more: further " key=value" pairs. */
static char *comment(const struct pg_backend *be, const char *record, const char *more)
{
    return format("/* %s ttl=%" PRId64 "%s */ ", record, ttl_ms(be), more);
}

/* An argument of a function, with a comma. */
static void put_setting(FILE *f, const char *name, int64_t value, const char *unit)
{
    fprintf(f, "pg_catalog.set_config('%s','%" PRId64 "%s',false),", name, value, unit);
}

/*
 * The session's settings, as arguments of a function: the lease, and that the server notices a dead client while it
 * waits. The server's time-outs for statements are meant for queries, not for locks.
 */
static char *settings_sql(const struct pg_backend *be)
{
    int version = PQserverVersion(be->conn.pq);
    struct pg_keepalives keep = pg_keepalives(be->spec->ttl);
    char *sql = NULL;
    size_t size;
    FILE *f = open_memstream(&sql, &size);
    if (!f)
        return NULL;
    if (version >= WITH_IDLE_TIMEOUT) {
        put_setting(f, "idle_session_timeout", ttl_ms(be), "ms");
        /* Servers on other systems refuse it. */
        fputs("CASE WHEN pg_catalog.version()" MATCHES "'%linux%' THEN "
              "pg_catalog.set_config('client_connection_check_interval','1s',false) END,",
              f);
    }
    if (version >= 170000)
        put_setting(f, "transaction_timeout", 0, "");
    put_setting(f, "tcp_keepalives_idle", keep.idle, "");
    put_setting(f, "tcp_keepalives_interval", keep.interval, "");
    put_setting(f, "tcp_keepalives_count", keep.count, "");
    put_setting(f, "tcp_user_timeout", dlock_min(ttl_ms(be), INT32_MAX), "");
    put_setting(f, "statement_timeout", 0, "");
    return fclose(f) == 0 ? sql : (free(sql), NULL);
}

/*
 * How long the server still grants nothing after its start or promotion, in ms. A primary has a walwriter, and a
 * standby has none; but only a role with pg_read_all_stats may read when it began. For others a promotion is at least
 * as late as the last transaction that the standby replayed; renewals see to it that there is one (renew_sql).
 */
static char *grace_sql(const struct pg_backend *be)
{
    return format("%" PRId64 MINUS "(EXTRACT(epoch FROM " NOW MINUS
                  "GREATEST(pg_catalog.pg_postmaster_start_time(), "
                  "pg_catalog.pg_stat_get_bgwriter_stat_reset_time(), "
                  "pg_catalog.pg_last_xact_replay_timestamp(), "
                  "(SELECT pg_catalog.max(a.backend_start) "
                  "FROM pg_catalog.pg_stat_get_activity(NULL) a "
                  "WHERE a.backend_type" EQ "'walwriter')))" MILLISECONDS,
                  be->restart_grace / DLOCK_MSEC);
}

static char *try_lock_sql(const struct pg_backend *be)
{
    return format("pg_catalog.pg_try_advisory_lock(%s)", be->advisory.key);
}

/* The fence is the position of this record in the write-ahead log. */
#define EMIT "pg_catalog.pg_logical_emit_message(true, 'dlock', ''" TEXT ")"

/*
 * Check the session and the server, and take the fence; try: with the settings and the lock before it. Answers one
 * row.
 *
 * Each step is a sub-select of its own, behind OFFSET 0 so that the planner does not merge it, and depends on the
 * step before it by CASE: that is the only order of evaluation that SQL promises.
 */
enum { R_PID, R_STANDBY, R_GRACE, R_IDLE, R_LOCKED, R_LSN, R_WAL, R_COLUMNS };
static char *lock_sql(const struct pg_backend *be, bool try)
{
    /* Only what is needed: a new session has to look up every function that a statement names. */
    bool with_grace = try && be->restart_grace > 0;
    bool with_idle = PQserverVersion(be->conn.pq) >= WITH_IDLE_TIMEOUT;
    char *record = comment(be, be->holder, ""), *sql = NULL;
    char *settings = try ? settings_sql(be) : strdup("");
    char *grace = with_grace ? grace_sql(be) : strdup("0");
    char *locked = try ? try_lock_sql(be) : strdup("true");
    const char *idle = with_idle ? "CASE WHEN s.done IS NOT NULL THEN "
                                   "pg_catalog.current_setting('idle_session_timeout') END"
                                 : "NULL";

    if (record && settings && grace && locked)
        sql = format("%sSELECT g.pid, g.standby" INT ", g.grace, l.idle, l.locked" INT ", f.lsn, "
                     "CASE WHEN f.lsn IS NOT NULL THEN pg_catalog.pg_walfile_name(f.lsn) END "
                     "FROM (SELECT pg_catalog.pg_backend_pid() AS pid, "
                     "pg_catalog.pg_is_in_recovery() AS standby, %s AS grace OFFSET 0) g "
                     "CROSS JOIN LATERAL (SELECT CASE WHEN g.pid" EQ "%d AND NOT g.standby "
                     "THEN pg_catalog.concat(%s'') END AS done OFFSET 0) s "
                     "CROSS JOIN LATERAL (SELECT %s AS idle, "
                     "CASE WHEN s.done IS NOT NULL%s THEN %s END AS locked OFFSET 0) l "
                     "CROSS JOIN LATERAL (SELECT CASE WHEN l.locked THEN "
                     "CASE WHEN " DURABLE " IS NOT NULL THEN " EMIT " END END AS lsn OFFSET 0) f",
                     record, grace, PQbackendPID(be->conn.pq), settings, idle,
                     with_grace ? " AND g.grace" LE "0" : "", locked);
    free(record);
    free(settings);
    free(grace);
    free(locked);
    return sql;
}

/*
 * Wait for the lock, for CHUNK_MS, or with ?fair=1 without end. Answers our token once the lock is ours.
 *
 * For one request to cancel the postmaster sends two signals, to the session and to its process group
 * [PostgreSQL, signal_child()]. The second may come when the first one has been dealt with: so that it
 * is no error in the server's log, it is awaited.
 */
static char *wait_sql(const struct pg_backend *be)
{
    char more[48];
    snprintf(more, sizeof(more), " wait=%s", be->advisory.key_id);
    char *record = comment(be, be->waiter, more), *sql = NULL;
    if (record)
        sql = format("%sDO $dlock$BEGIN "
                     "IF pg_catalog.pg_backend_pid()" EQ
                     "%d AND NOT pg_catalog.pg_is_in_recovery() THEN "
                     "PERFORM pg_catalog.set_config('lock_timeout', '%d', true); "
                     "PERFORM pg_catalog.pg_advisory_lock(%s); "
                     "PERFORM pg_catalog.set_config('dlock.got', '%s', true); "
                     "END IF; "
                     "EXCEPTION WHEN lock_not_available THEN NULL; "
                     "WHEN query_canceled THEN "
                     "BEGIN PERFORM pg_catalog.pg_sleep(0.01); "
                     "EXCEPTION WHEN query_canceled THEN NULL; END; "
                     "END$dlock$; SELECT pg_catalog.current_setting('dlock.got', true)",
                     record, PQbackendPID(be->conn.pq), be->advisory.fair ? 0 : CHUNK_MS,
                     be->advisory.key, be->token);
    free(record);
    return sql;
}

/* A commit that nothing waits for: a standby has replayed it when it is promoted, see grace_sql(). */
#define EMIT_LATER                                                                                 \
    "CASE WHEN pg_catalog.set_config('synchronous_commit', 'off', true) IS NOT NULL THEN " EMIT    \
    " END"

static char *renew_sql(const struct pg_backend *be)
{
    char more[40];
    snprintf(more, sizeof(more), " fence=%" PRIu64, be->fence);
    const char *write = be->advisory.renew_writes ? ", " EMIT
                        : be->restart_grace > 0   ? ", " EMIT_LATER
                                                  : "";
    char *record = comment(be, be->holder, more), *sql = NULL;
    if (record)
        sql = format("%sSELECT pg_catalog.pg_is_in_recovery()" INT "%s", record, write);
    free(record);
    return sql;
}

static char *unlock_sql(const struct pg_backend *be)
{
    return format("SELECT CASE WHEN pg_catalog.pg_backend_pid()" EQ "%d THEN "
                  "pg_catalog.pg_advisory_unlock(%s) END" INT,
                  PQbackendPID(be->conn.pq), be->advisory.key);
}

/* Sessions that hold the lock or wait for it, from pg_locks, and the last query of each. */
enum { S_PID, S_GRANTED, S_SHARED, S_USER, S_QUERY, S_CLIENT, S_BEGIN, S_IDLE, S_APP };
#define STATUS_LOCKS                                                                               \
    "WITH l AS MATERIALIZED (SELECT l.pid, l.granted, l.mode "                                     \
    "FROM pg_catalog.pg_locks l WHERE l.locktype" EQ "'advisory' AND %s AND l.database" EQ         \
    "(SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname" EQ                               \
    "pg_catalog.current_database())"
#define STATUS_COLUMNS                                                                             \
    "SELECT l.pid, l.granted" INT ", (l.mode" EQ "'ShareLock')" INT ", a.usename, a.query, "       \
    "COALESCE(a.client_hostname, pg_catalog.host(a.client_addr), ''), "                            \
    "(EXTRACT(epoch FROM a.backend_start)" MILLISECONDS ", CASE WHEN a.state" EQ "'idle' THEN "    \
    "(EXTRACT(epoch FROM " NOW MINUS "a.state_change)" MILLISECONDS " ELSE 0 END, "                \
    "a.application_name "
#define STATUS_ORDER                                                                               \
    " l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid" EQ "l.pid "                              \
    "ORDER BY 2 DESC, a.query_start, l.pid"

/* One holder at most. */
static char *holder_sql(const struct pg_backend *be)
{
    return format(STATUS_LOCKS " AND l.granted) " STATUS_COLUMNS
                               "FROM (SELECT l.pid, l.granted, l.mode FROM l)" STATUS_ORDER
                               " LIMIT 1",
                  be->advisory.where_key);
}

/*
 * All holders and waiters. A waiter tries anew about once a second, and for a moment in between it is not in
 * pg_locks: its last query says that it waits for this lock.
 */
static char *status_sql(const struct pg_backend *be)
{
    return format(STATUS_LOCKS
                  ") " STATUS_COLUMNS
                  "FROM (SELECT l.pid, l.granted, l.mode FROM l UNION ALL SELECT w.pid, false, "
                  "'ExclusiveLock' FROM pg_catalog.pg_stat_activity w "
                  "WHERE w.datname" EQ "pg_catalog.current_database() "
                  "AND w.query" MATCHES "'/* dlock1 %% wait=%s %%' "
                  "AND w.pid" NE "ALL (SELECT l.pid FROM l))" STATUS_ORDER,
                  be->advisory.where_key, be->advisory.key_id);
}

/* The number in our own " key=N" of a comment; -1: there is none. */
static int64_t comment_number(const char *text, size_t len, const char *key)
{
    const char *at = memmem(text, len, key, strlen(key));
    return at ? strtoll(at + strlen(key), NULL, 10) : -1;
}

static void adv_read_info(const PGresult *res, int i, struct dlock_info *info)
{
    const char *begin;
    *info = (struct dlock_info){.left_ns = -1, .waited_ms = -1, .mode = DLOCK_EXCLUSIVE};
    info->waiter = pg_number(res, i, S_GRANTED) == 0;
    if (pg_number(res, i, S_SHARED))
        info->mode = DLOCK_SHARED;
    size_t len = pg_read_comment(pg_text(res, i, S_QUERY), info, &begin);
    if (len > 0) {
        int64_t ttl = comment_number(begin, len, " ttl=");
        int64_t fence = comment_number(begin, len, " fence=");
        if (ttl > 0 && !info->waiter)
            info->left_ns = dlock_max(0, ttl - pg_number(res, i, S_IDLE)) * DLOCK_MSEC;
        if (fence > 0 && !info->waiter)
            info->fence = (uint64_t)fence;
        return;
    }
    /* Another program, or our role may not read the queries of this dlock: only the session is known. */
    const char *app = pg_text(res, i, S_APP), *user = pg_text(res, i, S_USER);
    const char *client = pg_text(res, i, S_CLIENT);
    info->foreign = strncmp(app, "dlock:", 6) != 0;
    info->pid = (long)pg_number(res, i, S_PID);
    if (!info->foreign) {
        /* A waiter begins its session to wait. When the lock was granted is in the query that we may not read. */
        if (info->waiter)
            info->since_ms = pg_number(res, i, S_BEGIN);
        return;
    }
    info->left_ns = DLOCK_NEVER;
    dlock_clean_text(info->user, sizeof(info->user), user, strlen(user));
    dlock_clean_text(info->host, sizeof(info->host), client, strlen(client));
    dlock_clean_text(info->command, sizeof(info->command), app, strlen(app));
}

/* ---------------------------------------------------------------- acquire: send */

static void send_sql(struct pg_backend *be, enum pg_tag tag, char *sql)
{
    pg_conn_send(&be->conn, (int)tag, sql, 0, NULL);
    free(sql);
}

/* Until when the next answer is due, beyond the more ns that the server takes by itself. */
static void bound_answer(struct pg_backend *be, int64_t more)
{
    if (!be->contact.pending)
        be->op_until = pg_now(be) + more + pg_patience(be);
}

static void send_try(struct pg_backend *be)
{
    be->acquire.try_at = DLOCK_NEVER;
    bound_answer(be, 0);
    pg_describe(be, RECORD_HOLDS);
    send_sql(be, T_TRY, lock_sql(be, true));
}

/* The lock is held: ask for the holder, or wait for the lock. */
static void ask_or_wait(struct pg_backend *be)
{
    if (!be->acquire.wait || be->advisory.chunks++ % HOLDER_EVERY == 0) {
        bound_answer(be, 0);
        send_sql(be, T_HOLDER, holder_sql(be));
        return;
    }
    if (be->advisory.polls) {
        be->op_until = DLOCK_NEVER;
        be->acquire.try_at = pg_now(be) + CHUNK_MS * DLOCK_MSEC;
        return;
    }
    bound_answer(be, CHUNK_MS * DLOCK_MSEC);
    if (be->advisory.fair)
        be->op_until = DLOCK_NEVER;
    send_sql(be, T_WAIT, wait_sql(be));
}

static void check_version_and_try(struct pg_backend *be)
{
    int version = PQserverVersion(be->conn.pq);
    struct dlock_error err;
    if (version < OLDEST) {
        dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: PostgreSQL %d is too old: 12 or later is needed",
                   pg_where(be), version / 10000);
        pg_fail(be, &err);
        return;
    }
    if (version < WITH_IDLE_TIMEOUT && !be->advisory.told_old) {
        be->advisory.told_old = true;
        dlock_fail(&events_add(&be->events, EV_NOTICE)->error, 0, 0,
                   "%s: PostgreSQL %d does not end a silent session: "
                   "if this machine stops, the lock stays held until TCP gives up "
                   "(14 and later end it after the ttl)",
                   pg_where(be), version / 10000);
    }
    send_try(be);
}

static void adv_ready(struct pg_backend *be)
{
    if (be->op == OP_STATUS)
        send_sql(be, T_STATUS, status_sql(be));
    else if (be->op == OP_ACQUIRE)
        check_version_and_try(be);
}

static void adv_acquire(struct pg_backend *be)
{
    be->advisory.chunks = 0;
    be->advisory.renewed_from = 0;
    pg_connect(be);
}

/* ------------------------------------------------------------- acquire: answers */

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

static void granted(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    const char *lsn = pg_text(r->rows, 0, R_LSN), *wal = pg_text(r->rows, 0, R_WAL);
    be->fence = make_fence(lsn, wal);
    if (be->fence != 0) {
        pg_granted(be, r->sent);
        return;
    }
    dlock_fail(&err, DLOCK_EPROTO, 0,
               "%s: cannot make a fencing token from log position '%.20s' in '%.30s'", pg_where(be),
               lsn, wal);
    pg_fail(be, &err);
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

/* Is this session ours alone, and does the server keep our lease? Otherwise acquire fails. */
static bool check_session(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (!pg_one_row(r, R_COLUMNS))
        dlock_fail(&err, DLOCK_EPROTO, 0, "%s: unexpected answer to the lock query", pg_where(be));
    else if (pg_number(r->rows, 0, R_PID) != PQbackendPID(be->conn.pq))
        dlock_fail(&err, DLOCK_EUSAGE, 0,
                   "%s: this is a connection pooler, which would keep an advisory lock "
                   "for other clients: connect to the server itself, or use ?mode=lease",
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

/* An error may leave the session's lock behind although the statement was rolled back, so the session ends. */
static void refused(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    pg_conn_reply_error(&be->conn, r, &err);
    bool class53 = strncmp(r->sqlstate, "53", 2) == 0, class57 = strncmp(r->sqlstate, "57", 2) == 0;
    pg_try_later(be, &err, class53 || class57 || strncmp(r->sqlstate, "40", 2) == 0);
}

static void try_answered(struct pg_backend *be, const struct pg_reply *r)
{
    if (r->sqlstate[0]) {
        refused(be, r);
        return;
    }
    if (!check_session(be, r))
        return;
    be->contact.pending = false;
    outage_over(&be->outage);
    int64_t grace_ms = be->restart_grace > 0 ? pg_number(r->rows, 0, R_GRACE) : 0;
    if (pg_number(r->rows, 0, R_LOCKED))
        granted(be, r);
    else if (grace_ms > 0)
        pg_in_grace(be, grace_ms);
    else
        ask_or_wait(be);
}

static void holder_answered(struct pg_backend *be, const struct pg_reply *r)
{
    const struct dlock_info *info =
        NULL; /* an error, or no holder any more: nothing else is missing */
    if (!r->sqlstate[0] && r->rows && PQntuples(r->rows) > 0) {
        adv_read_info(r->rows, 0, &be->info);
        info = &be->info;
    }
    if (!be->acquire.wait) {
        pg_busy(be, info);
        return;
    }
    events_add(&be->events, EV_WAITING)->info = info;
    ask_or_wait(be);
}

static void wait_answered(struct pg_backend *be, const struct pg_reply *r)
{
    /* No PL/pgSQL for this role or in this database. */
    if (strcmp(r->sqlstate, "42501") == 0 || strcmp(r->sqlstate, "42704") == 0 ||
        strcmp(r->sqlstate, "0A000") == 0) {
        be->advisory.polls = true;
        ask_or_wait(be);
    } else if (r->sqlstate[0] || !pg_one_row(r, 1)) {
        refused(be, r);
    } else if (strcmp(pg_text(r->rows, 0, 0), be->token) == 0) {
        /* The lease counts from a request that is sent now that the lock is ours. */
        bound_answer(be, 0);
        pg_describe(be, RECORD_HOLDS);
        send_sql(be, T_CONFIRM, lock_sql(be, false));
    } else {
        ask_or_wait(be);
    }
}

static void confirm_answered(struct pg_backend *be, const struct pg_reply *r)
{
    if (r->sqlstate[0])
        refused(be, r);
    else if (check_session(be, r))
        granted(be, r);
}

/* ----------------------------------------------------------------------- renew */

/* A renewal is sent to the session that holds the lock. When the session ends, so does the lock. */
static void adv_renew(struct pg_backend *be)
{
    int64_t from = be->advisory.renewed_from;
    be->advisory.renewed_from = 0;
    if (from != 0)
        pg_renewed(be, from);
    else if (!pg_conn_busy(&be->conn)) /* otherwise the answer to the last one still counts */
        send_sql(be, T_RENEW, renew_sql(be));
}

/* An answer that is an error (to pg_cancel_backend, say) ends no session. The next one counts. */
static void renew_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (be->op != OP_RENEW) {
        if (!r->sqlstate[0])
            be->advisory.renewed_from = r->sent;
    } else if (r->sqlstate[0]) {
        pg_conn_reply_error(&be->conn, r, &err);
        pg_unclear(be, &err);
    } else {
        pg_renewed(be, r->sent);
    }
}

/* --------------------------------------------------------------------- release */

static void send_unlock(struct pg_backend *be)
{
    send_sql(be, T_RELEASE, unlock_sql(be));
}

/* The connection is idle. Where nothing was granted, the end of the session undoes everything else. */
static void unlock_or_end(struct pg_backend *be)
{
    if (be->granted)
        send_unlock(be);
    else
        pg_released(be, DLOCK_REL_NOTHING, NULL);
}

static void unlock_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (strcmp(r->sqlstate, "57014") == 0) {
        send_unlock(be); /* our own cancel came late: it was for the request before this one */
    } else if (r->sqlstate[0] || !pg_one_row(r, 1)) {
        pg_conn_reply_error(&be->conn, r, &err);
        pg_released(be, DLOCK_REL_UNCLEAR, &err);
    } else if (pg_number(r->rows, 0, 0) == 1) {
        pg_released(be, DLOCK_REL_CLEAN, NULL);
    } else {
        dlock_fail(&err, DLOCK_ELOST, 0, "%s: the session no longer holds the lock '%s'",
                   pg_where(be), be->spec->uri->name);
        pg_released(be, DLOCK_REL_NOT_OURS, &err);
    }
}

static void adv_release(struct pg_backend *be)
{
    if (be->conn.state == PC_UP)
        pg_conn_work(&be->conn); /* has the session ended just now? */
    if (be->conn.state == PC_FAILED)
        return; /* adv_failed() follows */
    if (be->conn.state != PC_UP) {
        pg_released(be, DLOCK_REL_NOTHING, NULL);
    } else if (!pg_conn_busy(&be->conn)) {
        unlock_or_end(be);
    } else if (!be->granted || be->advisory.renew_writes) {
        /*
         * To leave the queue now and not at the end of the chunk; and for a commit that waits for a standby: such a
         * session watches neither its socket nor its idle time, and would keep the lock.
         */
        pg_conn_cancel(&be->conn);
    }
}

/* ----------------------------------------------------------------------- slots */

static void adv_answered(struct pg_backend *be, const struct pg_reply *r)
{
    if (be->op == OP_RELEASE) {
        if (r->tag == T_RELEASE)
            unlock_answered(be, r);
        else
            unlock_or_end(be);
        return;
    }
    switch (r->tag) {
    case T_TRY:
        try_answered(be, r);
        break;
    case T_HOLDER:
        holder_answered(be, r);
        break;
    case T_WAIT:
        wait_answered(be, r);
        break;
    case T_CONFIRM:
        confirm_answered(be, r);
        break;
    case T_RENEW:
        renew_answered(be, r);
        break;
    default:
        break;
    }
}

static void release_failed(struct pg_backend *be, const struct dlock_error *err)
{
    /* DLOCK_ENOMEM: we ended the session ourselves, so it was there as long as the command ran. */
    if (!be->granted)
        pg_released(be, DLOCK_REL_NOTHING, err);
    else if (be->conn.unanswered == T_RELEASE || err->code == DLOCK_ENOMEM)
        pg_released(be, DLOCK_REL_UNCLEAR, err);
    else
        pg_released(be, DLOCK_REL_NOT_OURS, err);
}

static void lost(struct pg_backend *be, const struct dlock_error *err)
{
    pg_op_done(be);
    be->granted = false;
    struct dlock_event *ev = events_add(&be->events, EV_LOST);
    ev->error = *err;
    ev->error.code = DLOCK_ELOST;
}

/* The session is gone, and with it the lock. */
static void adv_failed(struct pg_backend *be, const struct dlock_error *err)
{
    if (be->op == OP_ACQUIRE && !be->acquire.wait && !be->contact.pending)
        pg_busy(be, NULL);
    else if (be->op == OP_ACQUIRE)
        pg_try_later(be, err, be->conn.transient);
    else if (be->op == OP_RELEASE)
        release_failed(be, err);
    else if (be->granted)
        lost(be, err);
}

static void acquire_timeout(struct pg_backend *be)
{
    struct dlock_error err;
    if (!be->acquire.wait) {
        pg_busy(be, NULL); /* a try was answered: only the holder is unknown */
        return;
    }
    no_answer(&err, be->spec, pg_patience(be));
    pg_conn_cancel(&be->conn); /* as in adv_release() */
    pg_try_later(be, &err, true);
}

static void adv_timeout(struct pg_backend *be, int64_t now)
{
    struct dlock_error err;
    if (be->op == OP_RELEASE && now >= be->release.until) {
        dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: no answer to the release", pg_where(be));
        pg_released(be, be->granted ? DLOCK_REL_UNCLEAR : DLOCK_REL_NOTHING, &err);
    } else if (be->op == OP_RENEW && now >= be->op_until) {
        /* The answer may still come, and on this session only. */
        no_answer(&err, be->spec, be->spec->op_timeout);
        pg_unclear(be, &err);
    } else if (be->op == OP_ACQUIRE && now >= be->op_until) {
        acquire_timeout(be);
    } else if (be->op == OP_ACQUIRE && now >= be->acquire.try_at) {
        send_try(be);
    }
}

const struct pg_protocol pg_advisory = {
    .session = true,
    .acquire = adv_acquire,
    .renew = adv_renew,
    .release = adv_release,
    .ready = adv_ready,
    .answered = adv_answered,
    .failed = adv_failed,
    .timeout = adv_timeout,
    .read_info = adv_read_info,
};
