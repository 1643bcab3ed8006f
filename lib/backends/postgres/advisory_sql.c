/*
 * advisory_sql.c - see advisory_sql.h.
 *
 * A statement that sets or locks something is a chain of steps. Each step is a sub-select of its own, behind OFFSET 0 so
 * that the planner does not merge it, and depends on the step before it by CASE: that is the only order of evaluation
 * that SQL promises. The first one compares the backend's pid, and all others depend on it; one that undoes another names
 * all that must come before it.
 *
 * The main key is taken by the lock functions' own rules; it excludes all other clients. Beside it
 *
 *   turnstile  is passed by readers and slots, in shared mode, on their way to the main key. A writer that has to wait
 *              keeps it exclusively, so that it waits only for the readers that are in. Not for long, a writer that
 *              waits in chunks never gets between readers that come without pause [measured].
 *   size       the key first_size + N is shared by all that want one of N slots, holders and waiters. It is taken while
 *              no other client looks at these keys (the key sizes), so that all of them have the same N.
 *   gate       is the line of those that wait for a slot: exclusively by the first one, who alone waits for the main key
 *              and for a slot. A newcomer passes it in shared mode, which fails while another one waits.
 *   slot i     is held exclusively.
 */
#include "advisory_sql.h"
#include "sql.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 1, 2))) static char *format(const char *fmt, ...)
{
    char *text;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    return n < 0 ? NULL : text;
}

/* A stream into *text, for finish(). NULL: out of memory. */
static FILE *begin(char **text, size_t *size)
{
    *text = NULL;
    return open_memstream(text, size);
}

static char *finish(FILE *f, char **text)
{
    return fclose(f) == 0 ? *text : (free(*text), NULL);
}

static bool is_shared(const struct pg_backend *be)
{
    return be->spec->mode != DLOCK_MODE_EXCLUSIVE;
}

/* "_shared" or "": how we lock the turnstile and the main key. */
static const char *shared_suffix(const struct pg_backend *be)
{
    return is_shared(be) ? "_shared" : "";
}

/* A record for pg_stat_activity. more: further " key=value" pairs. */
static char *comment(const struct pg_backend *be, const char *record, const char *more)
{
    char kind[64] = "";
    if (be->spec->mode == DLOCK_MODE_SHARED)
        snprintf(kind, sizeof(kind), " shared=1");
    else if (be->slot > 0)
        snprintf(kind, sizeof(kind), " slots=%u slot=%d", be->spec->slots, be->slot);
    else if (be->spec->mode == DLOCK_MODE_SLOTS)
        snprintf(kind, sizeof(kind), " slots=%u", be->spec->slots);
    return format("/* %s ttl=%" PRId64 "%s%s */ ", record, adv_ttl_ms(be), more, kind);
}

/* ------------------------------------------------------------------------- try */

/* An argument of a function, with a comma. */
static void put_setting(FILE *f, const char *name, int64_t value, const char *unit)
{
    fprintf(f, "pg_catalog.set_config('%s','%" PRId64 "%s',false),", name, value, unit);
}

static bool has_idle(const struct pg_backend *be)
{
    return PQserverVersion(be->conn.pq) >= WITH_IDLE_TIMEOUT;
}

/*
 * The session's settings, as arguments of a function: the lease, and that the server notices a dead client while it
 * waits. The server's time-outs for statements are meant for queries, not for locks.
 */
static void put_settings(FILE *f, const struct pg_backend *be)
{
    struct pg_keepalives keep = pg_keepalives(be->spec->ttl);
    if (has_idle(be)) {
        /* Servers on other systems refuse it. */
        fputs("CASE WHEN pg_catalog.version()" MATCHES "'%linux%' THEN "
              "pg_catalog.set_config('client_connection_check_interval','1s',false) END,",
              f);
    }
    if (PQserverVersion(be->conn.pq) >= 170000)
        put_setting(f, "transaction_timeout", 0, "");
    put_setting(f, "tcp_keepalives_idle", keep.idle, "");
    put_setting(f, "tcp_keepalives_interval", keep.interval, "");
    put_setting(f, "tcp_keepalives_count", keep.count, "");
    put_setting(f, "tcp_user_timeout", dlock_min(adv_ttl_ms(be), INT32_MAX), "");
    put_setting(f, "statement_timeout", 0, "");
    if (be->spec->mode == DLOCK_MODE_SLOTS)
        put_setting(f, "lock_timeout", 0, "");
}

/*
 * How long the server still grants nothing after its start or promotion, in ms. A primary has a walwriter, and a
 * standby has none; but only a role with pg_read_all_stats may read when it began. For others a promotion is at least
 * as late as the last transaction that the standby replayed; renewals see to it that there is one (adv_renew_sql).
 */
static void put_grace(FILE *f, const struct pg_backend *be)
{
    fprintf(f,
            "%" PRId64 MINUS "(EXTRACT(epoch FROM " NOW MINUS
            "GREATEST(pg_catalog.pg_postmaster_start_time(), "
            "pg_catalog.pg_stat_get_bgwriter_stat_reset_time(), "
            "pg_catalog.pg_last_xact_replay_timestamp(), "
            "(SELECT pg_catalog.max(a.backend_start) "
            "FROM pg_catalog.pg_stat_get_activity(NULL) a "
            "WHERE a.backend_type" EQ "'walwriter')))" MILLISECONDS,
            be->restart_grace / DLOCK_MSEC);
}

/* The fence is the position of this record in the write-ahead log. */
#define EMIT "pg_catalog.pg_logical_emit_message(true, 'dlock', ''" TEXT ")"

/* One more step: "NAME.ok" is its result. */
__attribute__((format(printf, 3, 4))) static void step(FILE *f, const char *name, const char *fmt,
                                                       ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs(" CROSS JOIN LATERAL (SELECT ", f);
    vfprintf(f, fmt, ap);
    fprintf(f, " AS ok OFFSET 0) %s", name);
    va_end(ap);
}

/* How the steps of a kind tell their results: the columns R_LOCKED and R_TURN to R_SLOT, written in SQL. */
struct outcome {
    const char *locked, *turn, *main, *size, *other, *slot;
};

/* A writer; wait: it takes the turnstile when the main key is taken, so that no reader comes before it. */
static struct outcome put_writer(FILE *f, const struct pg_backend *be)
{
    int64_t turnstile = be->advisory.keys.turnstile;
    struct outcome out = {.locked = "m.ok", .turn = "false", .main = "m.ok"};
    if (be->advisory.has.main)
        step(f, "m", "o.ok");
    else
        step(f, "m", "CASE WHEN o.ok THEN pg_catalog.pg_try_advisory_lock(%s) END",
             be->advisory.key);
    if (be->advisory.has.turn) {
        step(f, "t",
             "CASE WHEN m.ok THEN NOT pg_catalog.pg_advisory_unlock('%" PRId64 "'" BIGINT
             ") ELSE true END",
             turnstile);
        out.turn = "t.ok";
    } else if (be->acquire.wait && !be->advisory.has.main) {
        step(f, "t",
             "CASE WHEN NOT m.ok THEN pg_catalog.pg_try_advisory_lock('%" PRId64 "'" BIGINT ") END",
             turnstile);
        out.turn = "t.ok";
    }
    return out;
}

/*
 * Through the turnstile to the main key, behind the step prior. It is left behind with the main key; without it, it is
 * kept where keep says.
 */
static void put_pass(FILE *f, const struct pg_backend *be, const char *prior, bool keep)
{
    int64_t turnstile = be->advisory.keys.turnstile;
    bool has_main = be->advisory.has.main, has_turn = be->advisory.has.turn;
    if (has_turn || has_main)
        step(f, "t", "%s.ok", prior);
    else
        step(f, "t",
             "CASE WHEN %s.ok THEN pg_catalog.pg_try_advisory_lock_shared('%" PRId64 "'" BIGINT
             ") END",
             prior, turnstile);
    if (has_main)
        step(f, "m", "t.ok");
    else
        step(f, "m", "CASE WHEN t.ok THEN pg_catalog.pg_try_advisory_lock_shared(%s) END",
             be->advisory.key);
    if (has_main && !has_turn)
        step(f, "d", "true");
    else
        step(f, "d",
             "CASE WHEN %s THEN pg_catalog.pg_advisory_unlock_shared('%" PRId64 "'" BIGINT ") END",
             keep ? "m.ok" : "m.ok OR t.ok", turnstile);
}

static struct outcome put_reader(FILE *f, const struct pg_backend *be)
{
    put_pass(f, be, "o", be->acquire.wait);
    return (struct outcome){.locked = "m.ok", .turn = "t.ok AND NOT d.ok IS TRUE", .main = "m.ok"};
}

/* Take the key that tells N, unless there is one for another N: n.ok is that, or 0; r.ok: ours is taken. */
static void put_size(FILE *f, const struct pg_backend *be)
{
    const struct pg_keys *keys = &be->advisory.keys;
    unsigned high = (unsigned)((uint64_t)keys->first_size >> 32);
    uint32_t low = (uint32_t)keys->first_size;
    step(f, "x",
         "CASE WHEN o.ok THEN pg_catalog.concat(pg_catalog.pg_advisory_lock('%" PRId64 "'" BIGINT
         ")) IS NOT NULL END",
         keys->sizes);
    step(f, "n",
         "CASE WHEN x.ok THEN (SELECT COALESCE(pg_catalog.max(l.objid" BIGINT MINUS "'%" PRIu32
         "'" BIGINT "), 0) FROM pg_catalog.pg_locks l WHERE x.ok AND " ADVISORY_HERE
         " AND l.classid" EQ "'%u'::pg_catalog.oid AND l.objsubid" EQ "1 AND '%" PRIu32
         "'" BIGINT LT "l.objid" BIGINT " AND l.objid" BIGINT LE "'%" PRIu32 "'" BIGINT
         " AND l.objid" BIGINT NE "'%" PRIu32 "'" BIGINT ") END",
         low, high, low, low + DLOCK_SLOTS_MAX, low + be->spec->slots);
    step(f, "k",
         "CASE WHEN n.ok" EQ "0 THEN pg_catalog.pg_try_advisory_lock_shared('%" PRId64 "'" BIGINT
         ") END",
         keys->first_size + be->spec->slots);
    step(f, "r",
         "CASE WHEN x.ok THEN CASE WHEN k.ok THEN pg_catalog.pg_advisory_unlock('%" PRId64
         "'" BIGINT ") ELSE NOT pg_catalog.pg_advisory_unlock('%" PRId64 "'" BIGINT ") END END",
         keys->sizes, keys->sizes);
}

/* The first slot that is free: p.ok is its number, counted from 1. */
static void put_slot(FILE *f, const struct pg_backend *be)
{
    fputs(" CROSS JOIN LATERAL (SELECT CASE WHEN m.ok THEN (SELECT k.ordinality FROM "
          "pg_catalog.unnest('{",
          f);
    for (unsigned i = 0; i < be->spec->slots; i++)
        fprintf(f, "%s%" PRId64, i > 0 ? "," : "", pg_slot_key(&be->advisory.keys, (int)i));
    fputs("}'::pg_catalog.int8[]) WITH ORDINALITY k "
          "WHERE m.ok AND pg_catalog.pg_try_advisory_lock(k.k) LIMIT 1) END AS ok OFFSET 0) p",
          f);
}

/* What a newcomer has taken on its way goes back where it found no slot; and the gate, where it did. */
static void put_leave(FILE *f, const struct pg_backend *be)
{
    int64_t gate = be->advisory.keys.gate;
    if (be->advisory.has.gate) {
        step(f, "b",
             "CASE WHEN p.ok IS NOT NULL THEN pg_catalog.pg_advisory_unlock('%" PRId64 "'" BIGINT
             ") END",
             gate);
        return;
    }
    step(f, "a",
         "CASE WHEN m.ok AND p.ok IS NULL THEN pg_catalog.pg_advisory_unlock_shared(%s) END",
         be->advisory.key);
    if (!be->advisory.polls)
        step(f, "b",
             "CASE WHEN p.ok IS NOT NULL OR q.ok THEN "
             "pg_catalog.pg_advisory_unlock_shared('%" PRId64 "'" BIGINT ") END",
             gate);
    if (!be->acquire.wait)
        step(f, "c",
             "CASE WHEN r.ok AND p.ok IS NULL THEN pg_catalog.pg_advisory_unlock_shared('%" PRId64
             "'" BIGINT ") END",
             be->advisory.keys.first_size + be->spec->slots);
}

static struct outcome put_slots(FILE *f, const struct pg_backend *be)
{
    bool first = be->advisory.has.gate;
    if (be->advisory.has.size)
        step(f, "r", "o.ok");
    else
        put_size(f, be);
    if (first || be->advisory.polls)
        step(f, "q", "r.ok");
    else
        step(f, "q",
             "CASE WHEN r.ok THEN pg_catalog.pg_try_advisory_lock_shared('%" PRId64 "'" BIGINT
             ") END",
             be->advisory.keys.gate);
    put_pass(f, be, "q", first);
    put_slot(f, be);
    put_leave(f, be);
    return (struct outcome){
        .locked = "p.ok IS NOT NULL",
        .turn = first ? "t.ok AND NOT m.ok IS TRUE" : "false",
        .main = first ? "m.ok" : "p.ok IS NOT NULL",
        .size = "r.ok",
        .other = be->advisory.has.size ? NULL : "n.ok",
        .slot = "p.ok",
    };
}

static struct outcome put_steps(FILE *f, const struct pg_backend *be)
{
    return be->spec->mode == DLOCK_MODE_EXCLUSIVE ? put_writer(f, be)
           : be->spec->mode == DLOCK_MODE_SHARED  ? put_reader(f, be)
                                                  : put_slots(f, be);
}

static const char * or (const char *column, const char *missing)
{
    return column ? column : missing;
}

/*
 * All columns but the steps themselves. A session that waits may be silent for a shorter time than a holder: a stopped
 * waiter would keep the turnstile or the gate. So the lease is set before the lock, and shortened without it.
 */
static char *put_together(const struct pg_backend *be, const char *from, const char *steps,
                          const struct outcome *out)
{
    char *record = comment(be, be->holder, ""), *sql = NULL, shorter[192] = "";
    if (has_idle(be) && be->acquire.wait)
        snprintf(shorter, sizeof(shorter),
                 " CROSS JOIN LATERAL (SELECT CASE WHEN o.ok AND l.ok IS NOT TRUE THEN "
                 "pg_catalog.set_config('idle_session_timeout','%" PRId64
                 "ms',false) END AS ok OFFSET 0) w",
                 adv_wait_idle_ms(be));
    if (record)
        sql = format("%sSELECT g.pid, g.standby" INT ", g.grace, i.ok, l.ok" INT ", f.ok, "
                     "CASE WHEN f.ok IS NOT NULL THEN pg_catalog.pg_walfile_name(f.ok) END, "
                     "(%s)" INT ", (%s)" INT ", (%s)" INT ", %s, %s FROM %s%s"
                     " CROSS JOIN LATERAL (SELECT %s AS ok OFFSET 0) l"
                     " CROSS JOIN LATERAL (SELECT CASE WHEN l.ok THEN "
                     "CASE WHEN " DURABLE " IS NOT NULL THEN " EMIT " END END AS ok OFFSET 0) f%s",
                     record, or (out->turn, "false"), or (out->main, "false"),
                     or (out->size, "false"), or (out->other, "0"), or (out->slot, "0"), from,
                     steps, out->locked, shorter);
    free(record);
    return sql;
}

/* The first steps: is this session ours alone, and the server no standby (s), and does it grant locks (o)? */
static char *gate_sql(const struct pg_backend *be, bool all_settings)
{
    bool with_grace = all_settings && be->restart_grace > 0;
    size_t size;
    char *sql;
    FILE *f = begin(&sql, &size);
    if (!f)
        return NULL;
    fputs("(SELECT pg_catalog.pg_backend_pid() AS pid, "
          "pg_catalog.pg_is_in_recovery() AS standby, ",
          f);
    /* Only what is needed: a new session has to look up every function that a statement names. */
    if (with_grace)
        put_grace(f, be);
    else
        fputs("0", f);
    fprintf(f,
            " AS grace OFFSET 0) g CROSS JOIN LATERAL (SELECT CASE WHEN g.pid" EQ
            "%d AND NOT g.standby THEN pg_catalog.concat(",
            PQbackendPID(be->conn.pq));
    if (has_idle(be))
        put_setting(f, "idle_session_timeout", adv_ttl_ms(be), "ms");
    if (all_settings)
        put_settings(f, be);
    fputs("'') END AS done OFFSET 0) s", f);
    step(f, "i", "%s",
         has_idle(be) ? "CASE WHEN s.done IS NOT NULL THEN "
                        "pg_catalog.current_setting('idle_session_timeout') END"
                      : "NULL");
    step(f, "o", "s.done IS NOT NULL%s", with_grace ? " AND g.grace" LE "0" : "");
    return finish(f, &sql);
}

static char *lock_sql(const struct pg_backend *be, bool all_settings)
{
    size_t size;
    char *steps, *sql = NULL, *from = gate_sql(be, all_settings);
    FILE *f = begin(&steps, &size);
    if (f) {
        struct outcome out = put_steps(f, be);
        steps = finish(f, &steps);
        if (from && steps)
            sql = put_together(be, from, steps, &out);
        free(steps);
    }
    free(from);
    return sql;
}

char *adv_try_sql(const struct pg_backend *be)
{
    return lock_sql(be, true);
}

char *adv_confirm_sql(const struct pg_backend *be)
{
    return lock_sql(be, false);
}

/* ------------------------------------------------------------------------ wait */

/*
 * The lock is taken for the transaction first, and for the session when nothing can interrupt any more: the time-out can
 * fire although the lock was taken, and what belongs to the session stays behind then.
 *
 * For one request to cancel the postmaster sends two signals, to the session and to its process group
 * [PostgreSQL, signal_child()]. The second may come when the first one has been dealt with: so that it
 * is no error in the server's log, it is awaited.
 */
char *adv_wait_sql(const struct pg_backend *be)
{
    char more[48], number[40];
    snprintf(more, sizeof(more), " wait=%s", be->advisory.key_id);
    char *record = comment(be, be->waiter, more), *sql = NULL;
    bool gate = be->advisory.awaits == WAIT_GATE;
    const char *key = be->advisory.key, *how = gate ? "" : shared_suffix(be);
    if (be->advisory.awaits != WAIT_MAIN) {
        snprintf(number, sizeof(number), "'%" PRId64 "'" BIGINT,
                 gate ? be->advisory.keys.gate : be->advisory.keys.turnstile);
        key = number;
    }
    if (record)
        sql = format("%sDO $dlock$BEGIN "
                     "IF pg_catalog.pg_backend_pid()" EQ
                     "%d AND NOT pg_catalog.pg_is_in_recovery() THEN "
                     "PERFORM pg_catalog.set_config('lock_timeout', '%d', true); "
                     "PERFORM pg_catalog.pg_advisory_xact_lock%s(%s); "
                     "PERFORM pg_catalog.pg_advisory_lock%s(%s); "
                     "PERFORM pg_catalog.set_config('dlock.got', '%s', true); "
                     "END IF; "
                     "EXCEPTION WHEN lock_not_available THEN NULL; "
                     "WHEN query_canceled THEN "
                     "BEGIN PERFORM pg_catalog.pg_sleep(0.01); "
                     "EXCEPTION WHEN query_canceled THEN NULL; END; "
                     "END$dlock$; SELECT pg_catalog.current_setting('dlock.got', true)",
                     record, PQbackendPID(be->conn.pq), be->advisory.fair ? 0 : CHUNK_MS, how, key,
                     how, key, be->token);
    free(record);
    return sql;
}

char *adv_listen_sql(const struct pg_backend *be)
{
    char more[48];
    snprintf(more, sizeof(more), " wait=%s", be->advisory.key_id);
    char *record = comment(be, be->waiter, more), *sql = NULL;
    if (record)
        sql = format("%sDO $dlock$BEGIN "
                     "IF pg_catalog.pg_backend_pid()" EQ "%d THEN "
                     "LISTEN %s; "
                     "PERFORM pg_catalog.set_config('dlock.got', '%s', true); "
                     "END IF; END$dlock$; SELECT pg_catalog.current_setting('dlock.got', true)",
                     record, PQbackendPID(be->conn.pq), be->advisory.keys.channel, be->token);
    free(record);
    return sql;
}

/* ------------------------------------------------------------- renew, release */

/* A commit that nothing waits for: a standby has replayed it when it is promoted, see put_grace(). */
#define EMIT_LATER                                                                                 \
    "CASE WHEN pg_catalog.set_config('synchronous_commit', 'off', true) IS NOT NULL THEN " EMIT    \
    " END"

char *adv_renew_sql(const struct pg_backend *be)
{
    char more[40];
    snprintf(more, sizeof(more), " fence=%" PRIu64, be->fence);
    const char *write = be->advisory.renew_writes ? ", " EMIT
                        : be->restart_grace > 0   ? ", " EMIT_LATER
                                                  : "";
    char *record = comment(be, be->holder, more), *sql = NULL;
    if (record)
        sql = format("%sSELECT pg_catalog.pg_is_in_recovery()" INT "%s%s", record, write,
                     be->advisory.has.hears ? "; UNLISTEN *" : "");
    free(record);
    return sql;
}

/* A slot goes back before the gate shows whether another client waits: one that comes later finds the slot. */
static void put_unlock_slot(FILE *f, const struct pg_backend *be)
{
    const struct pg_keys *keys = &be->advisory.keys;
    step(f, "s", "CASE WHEN g.ok THEN pg_catalog.pg_advisory_unlock('%" PRId64 "'" BIGINT ") END",
         pg_slot_key(keys, be->slot - 1));
    step(f, "k",
         "CASE WHEN s.ok IS NOT NULL THEN pg_catalog.pg_advisory_unlock_shared('%" PRId64 "'" BIGINT
         ") END",
         keys->first_size + be->spec->slots);
    step(f, "m",
         "CASE WHEN k.ok IS NOT NULL THEN pg_catalog.pg_advisory_unlock_shared(%s) AND k.ok "
         "AND s.ok END",
         be->advisory.key);
    step(f, "q",
         "CASE WHEN m.ok IS NOT NULL THEN pg_catalog.pg_try_advisory_lock_shared('%" PRId64
         "'" BIGINT ") END",
         keys->gate);
    step(f, "n",
         "CASE WHEN q.ok THEN pg_catalog.pg_advisory_unlock_shared('%" PRId64 "'" BIGINT
         ") WHEN pg_catalog.set_config('synchronous_commit', 'off', true) IS NOT NULL "
         "THEN pg_catalog.concat(pg_catalog.pg_notify('%s', '')) IS NOT NULL END",
         keys->gate, keys->channel);
}

char *adv_unlock_sql(const struct pg_backend *be)
{
    size_t size;
    char *sql;
    FILE *f = begin(&sql, &size);
    if (!f)
        return NULL;
    fprintf(f,
            "SELECT m.ok" INT " FROM (SELECT pg_catalog.pg_backend_pid()" EQ "%d AS ok OFFSET 0) g",
            PQbackendPID(be->conn.pq));
    if (be->spec->mode == DLOCK_MODE_SLOTS)
        put_unlock_slot(f, be);
    else
        step(f, "m", "CASE WHEN g.ok THEN pg_catalog.pg_advisory_unlock%s(%s) END",
             shared_suffix(be), be->advisory.key);
    return finish(f, &sql);
}

/* ---------------------------------------------------------------------- status */

/* A condition on a row of pg_locks. */
static void put_is_key(FILE *f, int64_t key)
{
    fprintf(f,
            "(l.classid" EQ "'%" PRIu32 "'::pg_catalog.oid AND l.objid" EQ "'%" PRIu32
            "'::pg_catalog.oid AND l.objsubid" EQ "1)",
            (uint32_t)((uint64_t)key >> 32), (uint32_t)key);
}

/*
 * l: the locks of this name, with what each is on; s: a row for each session. It holds the lock if it has the main key and
 * waits for nothing more: the first one in line for a slot has the main key, and the gate.
 */
static void put_sessions(FILE *f, const struct pg_backend *be)
{
    const struct pg_keys *keys = &be->advisory.keys;
    uint32_t low = (uint32_t)keys->first_size;
    fprintf(f, "WITH l AS MATERIALIZED (SELECT l.pid, l.granted, l.mode, CASE WHEN %s THEN 'main' ",
            be->advisory.where_key);
    fputs("WHEN ", f);
    put_is_key(f, keys->turnstile);
    fputs(" THEN 'turn' WHEN ", f);
    put_is_key(f, keys->gate);
    fprintf(f,
            " THEN 'gate' WHEN l.classid" EQ "'%" PRIu32 "'::pg_catalog.oid AND l.objsubid" EQ
            "1 AND '%" PRIu32 "'" BIGINT LT "l.objid" BIGINT " AND l.objid" BIGINT LE "'%" PRIu32
            "'" BIGINT " THEN 'size' END AS what, l.objid" BIGINT MINUS "'%" PRIu32 "'" BIGINT
            " AS size FROM pg_catalog.pg_locks l WHERE " ADVISORY_HERE "), ",
            (uint32_t)((uint64_t)keys->first_size >> 32), low, low + DLOCK_SLOTS_MAX, low);
    fputs("s AS MATERIALIZED (SELECT l.pid, "
          "pg_catalog.bool_or(l.what" EQ "'main' AND l.granted) AND NOT "
          "pg_catalog.bool_or(NOT l.granted OR (l.what" EQ "'gate' AND l.mode" EQ
          "'ExclusiveLock')) AS granted, "
          "COALESCE(pg_catalog.max(CASE WHEN l.granted AND l.what" NE "'size' THEN "
          "CASE WHEN l.what" EQ "'gate' THEN 1 ELSE 2 END END), 0) AS ahead, "
          "pg_catalog.bool_or(l.mode" EQ "'ShareLock') AS shared, "
          "COALESCE(pg_catalog.max(CASE WHEN l.what" EQ "'size' THEN l.size END), 0) AS slots "
          "FROM l WHERE l.what IS NOT NULL GROUP BY l.pid) ",
          f);
}

#define STATUS_COLUMNS                                                                             \
    "SELECT s.pid, s.granted" INT ", s.shared" INT ", s.slots, a.usename, a.query, "               \
    "COALESCE(a.client_hostname, pg_catalog.host(a.client_addr), ''), "                            \
    "(EXTRACT(epoch FROM a.backend_start)" MILLISECONDS ", CASE WHEN a.state" EQ "'idle' THEN "    \
    "(EXTRACT(epoch FROM " NOW MINUS "a.state_change)" MILLISECONDS " ELSE 0 END, "                \
    "a.application_name "
#define STATUS_ORDER                                                                               \
    " s LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid" EQ "s.pid "                              \
    "ORDER BY 2 DESC, s.ahead DESC, a.query_start, s.pid"

/* Of several holders one of a slot: it may be in the way where a shared one is not. */
char *adv_holder_sql(const struct pg_backend *be)
{
    size_t size;
    char *sql;
    FILE *f = begin(&sql, &size);
    if (!f)
        return NULL;
    put_sessions(f, be);
    fputs(STATUS_COLUMNS
          "FROM (SELECT s.pid, s.granted, s.slots AS ahead, s.shared, s.slots FROM s "
          "WHERE s.granted)" STATUS_ORDER " LIMIT 1",
          f);
    return finish(f, &sql);
}

/*
 * All holders and waiters. A waiter tries anew about once a second, and for a moment in between it may not be in
 * pg_locks: its last query says that it waits for this lock.
 */
char *adv_status_sql(const struct pg_backend *be)
{
    size_t size;
    char *sql;
    FILE *f = begin(&sql, &size);
    if (!f)
        return NULL;
    put_sessions(f, be);
    fprintf(f,
            STATUS_COLUMNS "FROM (SELECT s.pid, s.granted, s.ahead, s.shared, s.slots FROM s "
                           "UNION ALL SELECT w.pid, false, 0, false, 0 "
                           "FROM pg_catalog.pg_stat_activity w "
                           "WHERE w.datname" EQ "pg_catalog.current_database() "
                           "AND w.query" MATCHES "'/* dlock1 %% wait=%s %%' "
                           "AND w.pid" NE "ALL (SELECT s.pid FROM s))" STATUS_ORDER,
            be->advisory.key_id);
    return finish(f, &sql);
}
