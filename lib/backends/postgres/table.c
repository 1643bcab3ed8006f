/*
 * table.c - ?mode=lease: a row of a table is the lock, and expires by the server's clock.
 *
 *   name text primary key | fence bigint | owner text | expires timestamptz | holder text
 *
 * All that decides a grant is in the lock's own row, so one INSERT ... ON CONFLICT DO UPDATE ... WHERE expires <=
 * clock_timestamp() decides it: the second client waits for the row and then sees what the first one wrote. owner
 * is a new token for each grant; renew and release name it. The fence is the larger of the stored one plus one and
 * the server's time in microseconds, so unused rows can be deleted.
 *
 * A refused INSERT, too, locks the row and commits: the polls of many waiters would keep the holder from its renewal.
 * So a try only reads while the row that it sees is held.
 *
 * No session is needed, so this works through a pooler in transaction mode, and neither a reconnect nor the
 * promotion of a standby that has the row loses the lock. Waiters connected directly LISTEN, and a release wakes
 * two of them (one might be about to leave); they also poll, and behind a pooler they only poll.
 *
 * Not guaranteed: the server's clock decides; when it steps forward, a lease ends early.
 */
#include "postgres.h"
#include "sql.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_ALONE DLOCK_SEC           /* between tries of a waiter that no release can wake */
#define POLL_LISTENING (5 * DLOCK_SEC) /* ... and of one that listens */
#define JITTER (200 * DLOCK_MSEC)
#define SWEEP_ONE_OF 100

/* ------------------------------------------------------------------ statements */

/* The enum above a statement: the columns of its answer. $1: the lock's name. $2: our token, or as noted. */
#define GRACE "pg_catalog.make_interval(secs => @G)"
#define TTL "pg_catalog.make_interval(secs => $3::pg_catalog.float8)"

/*
 * @T: the table. @W: a comment with our record. @C: the channel that wakes a waiter, less its pid. @G: the
 * restart grace in seconds. @0, @1 and @2: the parts of grace_text, or what stands for them without a grace.
 */
enum { R_FENCE, R_PID, R_HOLDER, R_HELD_FENCE, R_LEFT, R_TOKEN, R_GRACE, R_OWNER, R_COLUMNS };
static const char try_text[] =
    "@WWITH @0got AS (INSERT INTO @T AS l (name, fence, owner, expires, holder) "
    "SELECT $1" TEXT ", (EXTRACT(epoch FROM " NOW ")" MICROSECONDS ", $2" TEXT ", " NOW PLUS TTL
    ", $4" TEXT " FROM (SELECT " DURABLE " AS done OFFSET 0) s WHERE s.done IS NOT NULL "
    "AND NOT EXISTS (SELECT 1 FROM @T h WHERE h.name" EQ "$1" TEXT " AND h.expires" GT NOW ") @1"
    "ON CONFLICT (name) DO UPDATE SET (fence, owner, expires, holder) = "
    "ROW(GREATEST(l.fence" PLUS "1, EXCLUDED.fence), EXCLUDED.owner, " NOW PLUS TTL ", "
    "EXCLUDED.holder) WHERE l.expires" LE NOW " RETURNING l.fence) "
    "SELECT g.fence, pg_catalog.pg_backend_pid(), o.holder, o.fence, "
    "(EXTRACT(epoch FROM o.expires" MINUS NOW ")" MILLISECONDS ", $2" TEXT ", @2, o.owner "
    "FROM (SELECT 1) x LEFT JOIN got g ON true "
    "LEFT JOIN @T o ON o.name" EQ "$1" TEXT " AND o.expires" GT NOW;

/*
 * A promoted standby may lack the newest rows. The row of the empty name remembers the timeline and when it was first
 * seen. The try that sees another one writes that, and is refused; so are all others for the length of the grace from
 * then on. On timeline 1 no server was ever promoted.
 */
static const char *const grace_text[][2] = {
    {"k AS MATERIALIZED (SELECT w.timeline, CASE WHEN w.timeline" EQ "'00000001' "
     "THEN 'epoch'::pg_catalog.timestamptz ELSE (SELECT m.expires FROM @T m WHERE m.name" EQ "'' "
     "AND m.owner" EQ "w.timeline) END AS seen FROM (SELECT pg_catalog.substr("
     "pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8) AS timeline OFFSET 0) w), "
     "n AS (INSERT INTO @T AS l (name, fence, owner, expires, holder) "
     "SELECT '', 0, k.timeline, " NOW ", '' FROM k WHERE k.seen IS NULL "
     "ON CONFLICT (name) DO UPDATE SET (owner, expires) = ROW(EXCLUDED.owner, EXCLUDED.expires) "
     "WHERE l.owner" NE "EXCLUDED.owner), ",
     ""},
    {"AND EXISTS (SELECT 1 FROM k WHERE k.seen" LE "(" NOW MINUS GRACE ")) ", ""},
    {"(SELECT (EXTRACT(epoch FROM COALESCE(k.seen, " NOW ")" PLUS GRACE MINUS NOW ")" MILLISECONDS
     " FROM k)",
     "0"},
};

/* A renewal has the first three columns; a release also says how many waiters it woke. */
enum { U_OURS, U_HOLDER, U_TOKEN, U_RENEW_COLUMNS, U_RELEASE_COLUMNS };
#define OUR_ROW                                                                                    \
    "FROM (SELECT " DURABLE " AS done OFFSET 0) s WHERE s.done IS NOT NULL "                       \
    "AND l.name" EQ "$1" TEXT " AND l.owner" EQ "$2" TEXT " AND l.expires" GT NOW " "
#define OTHERS_ROW                                                                                 \
    "FROM (SELECT 1) x LEFT JOIN @T o ON o.name" EQ "$1" TEXT " AND o.owner" NE "$2" TEXT          \
    " AND o.expires" GT NOW
static const char renew_text[] =
    "WITH u AS (UPDATE @T l SET expires = " NOW PLUS TTL " " OUR_ROW "AND l.fence" EQ "$4" BIGINT
    " RETURNING 1) "
    "SELECT (SELECT pg_catalog.count(*) FROM u), o.holder, $2" TEXT " " OTHERS_ROW;

/* It wakes two waiters. Not the view pg_stat_activity but the function behind it: the view takes long to plan. */
static const char release_text[] =
    "WITH u AS (UPDATE @T l SET (expires, owner) = ROW('-infinity'::pg_catalog.timestamptz, ''" TEXT
    ") " OUR_ROW "RETURNING 1), "
    "w AS (SELECT a.pid FROM pg_catalog.pg_stat_get_activity(NULL) a "
    "WHERE a.application_name" EQ "$3" TEXT " AND a.datid" EQ "(SELECT d.oid FROM "
    "pg_catalog.pg_database d WHERE d.datname" EQ "pg_catalog.current_database()) "
    "AND EXISTS (SELECT 1 FROM u) ORDER BY a.backend_start, a.pid LIMIT 2), "
    "c AS (SELECT pg_catalog.pg_notify(pg_catalog.concat('@C', w.pid), '') FROM w) "
    "SELECT (SELECT pg_catalog.count(*) FROM u), o.holder, $2" TEXT ", "
    "(SELECT pg_catalog.count(*) FROM c) " OTHERS_ROW;

/* Rows that were unused for a week. */
static const char sweep_text[] =
    "DELETE FROM @T d WHERE d.name" EQ "ANY (SELECT t.name FROM @T t "
    "WHERE t.name" NE "'' AND t.expires" LT "(" NOW MINUS "'7 days'" INTERVAL ") "
    "AND t.fence" LT "((EXTRACT(epoch FROM " NOW ")" MICROSECONDS MINUS "604800000000) "
    "LIMIT 20 FOR UPDATE SKIP LOCKED)";

/* $2: application_name of waiters. */
enum { S_WAITER, S_HOLDER, S_FENCE, S_LEFT, S_USER, S_PID };
static const char status_text[] =
    "SELECT 0, t.holder, t.fence, (EXTRACT(epoch FROM t.expires" MINUS NOW ")" MILLISECONDS ", "
    "''" TEXT ", 0 FROM @T t WHERE t.name" EQ "$1" TEXT " AND t.expires" GT NOW " UNION ALL "
    "(SELECT 1, w.query, 0, 0, w.usename" TEXT ", w.pid FROM pg_catalog.pg_stat_activity w "
    "WHERE w.application_name" EQ "$2" TEXT " AND w.datname" EQ "pg_catalog.current_database() "
    "ORDER BY w.backend_start, w.pid)";

static const char schema_text[] =
    "CREATE TABLE IF NOT EXISTS @T (name pg_catalog.text COLLATE pg_catalog.\"C\" PRIMARY KEY, "
    "fence pg_catalog.int8 NOT NULL, owner pg_catalog.text NOT NULL, "
    "expires pg_catalog.timestamptz NOT NULL, holder pg_catalog.text NOT NULL)";

/*
 * Is the table what schema_text makes, and nothing more? What else it may have is code of its owner, which our
 * statements would run: triggers, rules, policies, and as early as the server plans them, the expressions of defaults,
 * constraints and indexes. And the schema's owner could put another table in its place; a role with the right to
 * create triggers or foreign keys could add code later. So all of these must be trusted, and then the answer holds for
 * as long as the connection: only a trusted role can change it.
 *
 * A superuser whose session was given another role (ALTER DATABASE ... SET role, which its owner may) is still one: that
 * role's code could take the rights back.
 *
 * $1: the table. $2: a role that is trusted, too. t: the table; r: a role that has power over it. 6171 is
 * pg_database_owner, which stands for the owner of the database; 25, 20, 1184 and 950 are the types text, bigint and
 * timestamptz, and the collation "C".
 *
 * The server can be made to refuse the statement that follows only by an error. So the finding becomes one: it is no
 * number.
 */
#define FINDING "dlock finding: "
/* clang-format off */
#define NOT_TRUSTED                                                                                \
    "((r.rolsuper OR r.rolname" EQ "$2" TEXT                                                       \
    " OR (NOT t.super AND (r.rolname" EQ "CURRENT_USER OR r.oid" EQ "t.datdba))) IS NOT TRUE)"
#define ROLE_OF(x) "CASE WHEN " x EQ "6171::pg_catalog.oid THEN t.datdba ELSE " x " END"
static const char check_text[] =
    "WITH t AS (SELECT c.oid, c.relowner, c.relkind, c.relpersistence, c.relacl, c.relrowsecurity, "
        "c.reloftype, n.nspowner, d.datdba, "
        "(pg_catalog.current_setting('is_superuser')" EQ "'on' OR EXISTS (SELECT 1 FROM "
        "pg_catalog.pg_roles u WHERE u.rolname" EQ "SESSION_USER AND u.rolsuper)) AS super "
        "FROM pg_catalog.pg_class c "
        "JOIN pg_catalog.pg_namespace n ON n.oid" EQ "c.relnamespace "
        "JOIN pg_catalog.pg_database d ON d.datname" EQ "pg_catalog.current_database() "
        "WHERE c.oid" EQ "pg_catalog.to_regclass($1" TEXT ")::pg_catalog.oid), "
    "a AS (SELECT a.attname, a.atttypid, a.attcollation, a.attnotnull, a.attacl, "
        "(a.atthasdef OR a.attidentity" NE "'') AS made FROM t JOIN pg_catalog.pg_attribute a "
        "ON a.attrelid" EQ "t.oid AND a.attnum" GT "0 AND NOT a.attisdropped) "
    "SELECT pg_catalog.concat('" FINDING "', f.text, ';')" INT " FROM (SELECT COALESCE("
    "(SELECT 'missing' WHERE NOT EXISTS (SELECT 1 FROM t)), "
    "(SELECT pg_catalog.concat(o.what, ' is owned by ', r.rolname) FROM t CROSS JOIN LATERAL "
        "(SELECT 'it' AS what, " ROLE_OF("t.relowner") " AS role "
        "UNION ALL SELECT 'its schema', " ROLE_OF("t.nspowner") ") o "
        "LEFT JOIN pg_catalog.pg_roles r ON r.oid" EQ "o.role WHERE " NOT_TRUSTED " LIMIT 1), "
    "(SELECT 'it is not a plain table' FROM t WHERE t.relkind" NE "'r' "
        "OR t.relpersistence" NE "'p' OR t.reloftype" NE "0::pg_catalog.oid), "
    "(SELECT pg_catalog.concat('it has the trigger ', g.tgname) FROM t "
        "JOIN pg_catalog.pg_trigger g ON g.tgrelid" EQ "t.oid LIMIT 1), "
    "(SELECT pg_catalog.concat('it has the rule ', g.rulename) FROM t "
        "JOIN pg_catalog.pg_rewrite g ON g.ev_class" EQ "t.oid LIMIT 1), "
    "(SELECT 'it has row security' FROM t WHERE t.relrowsecurity), "
    "(SELECT 'it inherits or is inherited' FROM t JOIN pg_catalog.pg_inherits i "
        "ON i.inhrelid" EQ "t.oid OR i.inhparent" EQ "t.oid LIMIT 1), "
    "(SELECT pg_catalog.concat('its column ', a.attname, ' has a default') FROM a "
        "WHERE a.made LIMIT 1), "
    "(SELECT 'its columns differ from those of --schema' FROM (SELECT pg_catalog.string_agg("
        "pg_catalog.concat_ws(' ', a.attname, a.atttypid, a.attcollation, a.attnotnull), ',' "
        "ORDER BY a.attname) AS list FROM a) s WHERE (s.list" EQ "'expires 1184 0 t,fence 20 0 t,"
        "holder 25 100 t,name 25 950 t,owner 25 100 t') IS NOT TRUE), "
    "(SELECT pg_catalog.concat('it has the constraint ', k.conname) FROM t "
        "JOIN pg_catalog.pg_constraint k ON k.conrelid" EQ "t.oid AND k.contype" NE "'p' "
        "AND k.contype" NE "'n' LIMIT 1), "
    "(SELECT 'it has an index on an expression' FROM t JOIN pg_catalog.pg_index i "
        "ON i.indrelid" EQ "t.oid AND (i.indexprs IS NOT NULL OR i.indpred IS NOT NULL) LIMIT 1), "
    "(SELECT pg_catalog.concat('it has the statistics ', k.stxname) FROM t "
        "JOIN pg_catalog.pg_statistic_ext k ON k.stxrelid" EQ "t.oid LIMIT 1), "
    "(SELECT pg_catalog.concat(COALESCE(r.rolname" TEXT ", 'PUBLIC'), ' has the privilege ', "
        "x.privilege_type) FROM t CROSS JOIN LATERAL (SELECT t.relacl AS acl "
        "UNION ALL SELECT a.attacl FROM a) l CROSS JOIN LATERAL pg_catalog.aclexplode(l.acl) x "
        "LEFT JOIN pg_catalog.pg_roles r ON r.oid" EQ ROLE_OF("x.grantee") " "
        "WHERE (x.privilege_type" EQ "'TRIGGER' OR x.privilege_type" EQ "'REFERENCES') "
        "AND " NOT_TRUSTED " LIMIT 1)) AS text OFFSET 0) f WHERE f.text IS NOT NULL";
/* clang-format on */

static void format_seconds(char *buf, size_t size, int64_t ns)
{
    snprintf(buf, size, "%" PRId64 ".%03d", ns / DLOCK_SEC, (int)(ns % DLOCK_SEC / DLOCK_MSEC));
}

static void put_filled(const struct pg_backend *be, const char *text, FILE *f)
{
    char grace[32];
    format_seconds(grace, sizeof(grace), be->restart_grace);
    for (const char *p = text; *p; p++) {
        if (*p != '@')
            fputc(*p, f);
        else if (*++p == 'T')
            fputs(be->table.name, f);
        else if (*p == 'C')
            fputs(be->table.channel, f);
        else if (*p == 'G')
            fputs(grace, f);
        else if (*p == 'W')
            fprintf(f, "/* %s */ ", be->waiter);
        else
            put_filled(be, grace_text[*p - '0'][be->restart_grace == 0], f);
    }
}

/* malloc'ed; NULL: out of memory. */
static char *fill(const struct pg_backend *be, const char *text)
{
    char *sql = NULL;
    size_t size;
    FILE *f = open_memstream(&sql, &size);
    if (!f)
        return NULL;
    put_filled(be, text, f);
    return fclose(f) == 0 ? sql : (free(sql), NULL);
}

static char *table_schema(const struct pg_backend *be)
{
    return fill(be, schema_text);
}

/* ----------------------------------------------------------------- what is sent */

static void send_text(struct pg_backend *be, enum pg_tag tag, const char *text, int n,
                      const char *const *values)
{
    char *sql = fill(be, text);
    pg_conn_send(&be->conn, (int)tag, sql, n, values);
    free(sql);
}

static void send_try(struct pg_backend *be)
{
    char ttl[32];
    be->acquire.try_at = DLOCK_NEVER;
    be->conn.notified = false;
    if (!be->contact.pending)
        be->op_until = pg_now(be) + pg_patience(be);
    be->table.try = TRY_SENT;
    format_seconds(ttl, sizeof(ttl), be->spec->ttl);
    pg_describe(be, RECORD_HOLDS);
    send_text(be, T_TRY, try_text, 4,
              (const char *const[]){be->spec->uri->name, be->token, ttl, be->holder});
}

static void send_renew(struct pg_backend *be)
{
    char ttl[32], fence[24];
    format_seconds(ttl, sizeof(ttl), be->spec->ttl);
    snprintf(fence, sizeof(fence), "%" PRIu64, be->fence);
    send_text(be, T_RENEW, renew_text, 4,
              (const char *const[]){be->spec->uri->name, be->token, ttl, fence});
}

static void send_give_back(struct pg_backend *be, enum pg_tag tag, const char *token)
{
    send_text(be, tag, release_text, 3,
              (const char *const[]){be->spec->uri->name, token, be->table.waiter_app});
}

static void send_release(struct pg_backend *be)
{
    if (be->table.release == RELEASE_UNSENT)
        be->table.release = RELEASE_SENT; /* once unheard, always unheard */
    send_give_back(be, T_RELEASE, be->token);
}

/* A release of what a try with this token may have got. */
static void send_undo(struct pg_backend *be, const char *token)
{
    send_give_back(be, T_UNDO, token);
}

static void send_status(struct pg_backend *be)
{
    send_text(be, T_STATUS, status_text, 2,
              (const char *const[]){be->spec->uri->name, be->table.waiter_app});
}

/* Set application_name, only on a session that is ours alone: behind a pooler another client would inherit it. */
static void send_app_name(struct pg_backend *be, const char *app)
{
    char sql[256];
    snprintf(sql, sizeof(sql),
             "SELECT CASE WHEN pg_catalog.pg_backend_pid()" EQ "%d THEN "
             "pg_catalog.set_config('application_name', '%s', false) END",
             PQbackendPID(be->conn.pq), app);
    pg_conn_send(&be->conn, T_LISTEN, sql, 0, NULL);
}

/*
 * From now on a release can wake this waiter, which it finds by the application_name. An earlier release did not,
 * so another try follows.
 */
static void send_listen(struct pg_backend *be)
{
    char sql[128];
    be->table.listening = true;
    snprintf(sql, sizeof(sql), "LISTEN \"%s%d\"", be->table.channel, PQbackendPID(be->conn.pq));
    pg_conn_send(&be->conn, T_LISTEN, sql, 0, NULL);
    send_app_name(be, be->table.waiter_app);
    send_try(be);
}

static int64_t random_part(const struct pg_backend *be, int64_t most)
{
    uint32_t r = 0;
    (void)be->spec->env->random(be->spec->env->ctx, &r, sizeof(r));
    return (int64_t)r % most;
}

/*
 * One release in a hundred deletes unused rows: behind the release on the same connection, where nothing waits for
 * it. Through a pooler nothing may follow the release that we wait for, so there one grant in a hundred does it.
 */
static void maybe_sweep(struct pg_backend *be)
{
    if (random_part(be, SWEEP_ONE_OF) == 0)
        send_text(be, T_SWEEP, sweep_text, 0, NULL);
}

/* --------------------------------------------------------------------- acquire */

static void table_acquire(struct pg_backend *be)
{
    be->table.try = TRY_NONE;
    be->table.orphan[0] = '\0';
    be->table.created = false;
    be->table.release = RELEASE_UNSENT;
    pg_connect(be);
}

/* Connected: undo the try of the connection before, then try with another token, which the undo leaves alone. */
static void acquire_ready(struct pg_backend *be)
{
    if (be->table.try == TRY_ORPHANED) {
        send_undo(be, be->token);
        be->table.try = TRY_SENT;
        memcpy(be->table.orphan, be->token, sizeof(be->table.orphan));
        if (!pg_new_token(be))
            return;
    }
    send_try(be);
}

/* An unanswered try may be served later: its undo follows it on the same connection. */
static void table_abandon(struct pg_backend *be)
{
    if (be->table.try != TRY_NONE && be->conn.state == PC_UP && pg_conn_busy(&be->conn))
        send_release(be);
}

static void orphan_try(struct pg_backend *be)
{
    if (be->table.try == TRY_SENT)
        be->table.try = TRY_ORPHANED;
}

static void acquire_timeout(struct pg_backend *be)
{
    struct dlock_error err;
    no_answer(&err, be->spec, pg_patience(be));
    if (be->conn.one_by_one) {
        orphan_try(be); /* nothing may follow the try: its undo goes first on the next connection */
        pg_try_later(be, &err, true);
        return;
    }
    table_abandon(be);
    be->table.try = TRY_NONE;
    if (pg_new_token(be))
        pg_try_later(be, &err, true);
}

static void acquire_failed(struct pg_backend *be, const struct dlock_error *err)
{
    /* At the first contact the core gives up, and its release undoes this try. */
    if (be->contact.pending && !be->conn.transient) {
        pg_fail(be, err);
        return;
    }
    orphan_try(be); /* it may have been served: we would wait for ourselves */
    pg_try_later(be, err, be->conn.transient);
}

static void granted(struct pg_backend *be, const struct pg_reply *r)
{
    be->fence = (uint64_t)pg_number(r->rows, 0, R_FENCE);
    be->table.release = RELEASE_UNSENT;
    if (be->table.listening)
        send_app_name(be, be->app);
    if (be->conn.one_by_one)
        maybe_sweep(be);
    pg_granted(be, r->sent);
}

/* The holder column of a row. An older dlock, or a person, may have written something that is no record. */
static void read_holder(struct dlock_info *info, const char *holder, int64_t left_ms, int64_t fence)
{
    *info = (struct dlock_info){
        .left_ns = left_ms * DLOCK_MSEC, .waited_ms = -1, .fence = (uint64_t)fence};
    info->foreign = !dlock_identity_parse(holder, strlen(holder), info);
}

/* Wait for a release to wake us, and poll: also when the lease ends, as the holder may be dead. */
static void try_again_in_time(struct pg_backend *be, bool held, int64_t left_ms)
{
    int64_t poll = be->table.listening ? POLL_LISTENING : POLL_ALONE;
    int64_t now = pg_now(be), expires = now + dlock_max(0, left_ms) * DLOCK_MSEC + DLOCK_MSEC;
    be->op_until = DLOCK_NEVER;
    if (held)
        be->acquire.try_at = dlock_min(now + poll, expires) + random_part(be, JITTER);
    else /* another client was faster, and this statement's snapshot is too old to show its row */
        be->acquire.try_at = now + random_part(be, JITTER);
    if (be->conn.notified)
        send_try(be);
}

static void not_granted(struct pg_backend *be, const struct pg_reply *r)
{
    bool held = !PQgetisnull(r->rows, 0, R_LEFT);
    const char *holder = pg_text(r->rows, 0, R_HOLDER);
    int64_t left_ms = pg_number(r->rows, 0, R_LEFT);
    be->table.try = TRY_NONE;
    if (held)
        read_holder(&be->info, holder, left_ms, pg_number(r->rows, 0, R_HELD_FENCE));
    if (!held && pg_number(r->rows, 0, R_GRACE) > 0) {
        pg_in_grace(be, pg_number(r->rows, 0, R_GRACE));
        return;
    }
    if (!be->acquire.wait) {
        pg_busy(be, held ? &be->info : NULL);
        return;
    }
    events_add(&be->events, EV_WAITING)->info = held ? &be->info : NULL;
    if (held && be->table.orphan[0] &&
        strcmp(pg_text(r->rows, 0, R_OWNER), be->table.orphan) == 0) {
        /* Our own: the orphan waited for the row, in a session that did not notice that the connection broke. */
        send_undo(be, be->table.orphan);
        be->table.orphan[0] = '\0';
        send_try(be);
    } else if (!be->table.listening && pg_number(r->rows, 0, R_PID) == PQbackendPID(be->conn.pq)) {
        send_listen(be);
    } else {
        try_again_in_time(be, held, left_ms);
    }
}

static void create_table(struct pg_backend *be)
{
    be->table.created = true;
    be->table.try = TRY_NONE;
    be->conn.guarded = false; /* it runs no code of a table that another client made meanwhile */
    send_text(be, T_SCHEMA, schema_text, 0, NULL);
    be->conn.guarded = true;
}

static void create_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    /* 23505, 42P07: another client created it at the same time. */
    if (!r->sqlstate[0] || strcmp(r->sqlstate, "23505") == 0 || strcmp(r->sqlstate, "42P07") == 0) {
        send_try(be);
        return;
    }
    char *ddl = table_schema(be);
    dlock_fail(
        &err, strcmp(r->sqlstate, "42501") == 0 ? DLOCK_EPERM : DLOCK_EUNAVAIL, 0,
        "%s: the table for locks does not exist and cannot be created: %s; a role with that permission must run: %s",
        pg_where(be), r->text, ddl ? ddl : "CREATE TABLE");
    free(ddl);
    pg_fail(be, &err);
}

/* Nothing was granted: the statement was rolled back as a whole. */
static void refused(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    be->table.try = TRY_NONE;
    if (strcmp(r->sqlstate, "42P01") == 0 && !be->table.created) {
        create_table(be);
        return;
    }
    pg_conn_reply_error(&be->conn, r, &err);
    bool transient = strncmp(r->sqlstate, "53", 2) == 0 || strncmp(r->sqlstate, "57", 2) == 0 ||
                     strncmp(r->sqlstate, "40", 2) == 0 || strcmp(r->sqlstate, "55P03") == 0;
    pg_try_later(be, &err, transient);
}

/*
 * Does this answer our own statement? Then it has our token in the given column. A pooler that mixes up the answers
 * of its clients (see struct pg_conn) would make us believe in another client's grant.
 */
static bool is_ours(const struct pg_backend *be, const struct pg_reply *r, int columns, int column)
{
    return pg_one_row(r, columns) && strcmp(pg_text(r->rows, 0, column), be->token) == 0;
}

/* Why it does not: the server's error; or the answer makes no sense, which is an error with this code. */
static void not_ours(const struct pg_backend *be, const struct pg_reply *r, int code,
                     struct dlock_error *err)
{
    if (r->sqlstate[0])
        pg_conn_reply_error(&be->conn, r, err);
    else
        dlock_fail(err, code, 0,
                   "%s: unexpected answer to the lock query: does a pooler mix up its sessions?",
                   pg_where(be));
}

static void try_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (r->sqlstate[0]) {
        refused(be, r);
    } else if (!is_ours(be, r, R_COLUMNS, R_TOKEN)) {
        not_ours(be, r, DLOCK_EPROTO, &err);
        pg_fail(be, &err);
    } else {
        be->conn.one_by_one = pg_number(r->rows, 0, R_PID) != PQbackendPID(be->conn.pq);
        be->contact.pending = false;
        outage_over(&be->outage);
        if (PQgetisnull(r->rows, 0, R_FENCE))
            not_granted(be, r);
        else
            granted(be, r);
    }
}

/* ----------------------------------------------------------------------- renew */

/* The row is not ours: what we found instead. */
static void describe_row(const struct pg_backend *be, const struct pg_reply *r,
                         struct dlock_error *err)
{
    struct dlock_info info;
    if (PQgetisnull(r->rows, 0, U_HOLDER)) {
        dlock_fail(err, DLOCK_ELOST, 0,
                   "%s: the lock '%s' is gone: it expired, or its row was changed", pg_where(be),
                   be->spec->uri->name);
        return;
    }
    read_holder(&info, pg_text(r->rows, 0, U_HOLDER), 0, 0);
    dlock_fail(err, DLOCK_ELOST, 0, "%s: the lock '%s' is now held by %s@%s, pid %ld", pg_where(be),
               be->spec->uri->name, info.user, info.host, info.pid);
}

static void table_renew(struct pg_backend *be)
{
    pg_connect(be);
}

static void renew_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (!is_ours(be, r, U_RENEW_COLUMNS, U_TOKEN)) {
        not_ours(be, r, DLOCK_EUNAVAIL, &err);
        /* Perhaps "read-only": by now another server may be the primary. */
        pg_conn_close(&be->conn);
        pg_unclear(be, &err);
    } else if (pg_number(r->rows, 0, U_OURS) == 1) {
        pg_renewed(be, r->sent);
    } else {
        pg_op_done(be);
        describe_row(be, r, &events_add(&be->events, EV_LOST)->error);
    }
}

/* --------------------------------------------------------------------- release */

static void table_release(struct pg_backend *be)
{
    if (!be->granted && be->table.try == TRY_NONE)
        pg_released(be, DLOCK_REL_NOTHING, NULL);
    else
        pg_connect(be);
}

static void release_later(struct pg_backend *be, const struct dlock_error *err)
{
    int64_t now = pg_now(be);
    bool transient = err->code == DLOCK_EUNAVAIL || err->code == DLOCK_ENOMEM;
    if (now >= be->release.until || !transient)
        pg_released(be, DLOCK_REL_UNCLEAR, err);
    else
        be->outage.retry_at = dlock_min(be->release.until,
                                        now + dlock_backoff_next(&be->outage.pause, be->spec->env));
}

static void release_failed(struct pg_backend *be, const struct dlock_error *err)
{
    if (be->table.release == RELEASE_SENT)
        be->table.release = RELEASE_UNHEARD;
    release_later(be, err);
}

static void release_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (!is_ours(be, r, U_RELEASE_COLUMNS, U_TOKEN)) {
        not_ours(be, r, DLOCK_EUNAVAIL, &err);
        if (r->unheard || !r->sqlstate[0])
            be->table.release = RELEASE_UNHEARD;
        pg_conn_close(&be->conn);
        release_later(be, &err);
    } else if (pg_number(r->rows, 0, U_OURS) == 1 ||
               (be->granted && be->table.release == RELEASE_UNHEARD)) {
        pg_released(be, DLOCK_REL_CLEAN, NULL);
    } else if (be->granted) {
        describe_row(be, r, &err);
        pg_released(be, DLOCK_REL_NOT_OURS, &err);
    } else {
        pg_released(be, DLOCK_REL_NOTHING, NULL);
    }
}

/* ----------------------------------------------------------------------- slots */

static void table_ready(struct pg_backend *be)
{
    be->table.listening = false;
    switch (be->op) {
    case OP_ACQUIRE:
        acquire_ready(be);
        break;
    case OP_RENEW:
        send_renew(be);
        break;
    case OP_RELEASE:
        send_release(be);
        if (be->granted && !be->conn.one_by_one)
            maybe_sweep(be);
        break;
    case OP_STATUS:
        send_status(be);
        break;
    case OP_NONE:
        break;
    }
}

/* A finding of check_text becomes the error that it stands for. */
static void table_read_error(const struct pg_backend *be, struct pg_reply *r)
{
    const char *found = strstr(r->text, FINDING);
    char what[sizeof(r->text)];
    if (strcmp(r->sqlstate, "22P02") != 0 || !found)
        return;
    snprintf(what, sizeof(what), "%s", found + strlen(FINDING));
    what[strcspn(what, ";")] = '\0';
    if (strcmp(what, "missing") == 0) {
        strcpy(r->sqlstate, "42P01");
        snprintf(r->text, sizeof(r->text), "the table %s does not exist", be->table.name);
    } else {
        strcpy(r->sqlstate, "42501");
        snprintf(r->text, sizeof(r->text), "the table %.70s is not safe to use: %.110s%s",
                 be->table.name, what,
                 strstr(what, " is owned by ") ? " (see table-owner= in dlock(1))" : "");
    }
}

static void table_answered(struct pg_backend *be, const struct pg_reply *r)
{
    if (!r->sqlstate[0] && r->tag != T_SCHEMA)
        be->conn.guarded = false;
    if (r->tag == T_TRY && be->op == OP_ACQUIRE)
        try_answered(be, r);
    else if (r->tag == T_SCHEMA && be->op == OP_ACQUIRE)
        create_answered(be, r);
    else if (r->tag == T_LISTEN && r->sqlstate[0])
        be->table.listening = false; /* polling has to do */
    else if (r->tag == T_RENEW && be->op == OP_RENEW)
        renew_answered(be, r);
    else if (r->tag == T_RELEASE && be->op == OP_RELEASE)
        release_answered(be, r);
}

/* A connection is only a way to the row, so this loses no lock. */
static void table_failed(struct pg_backend *be, const struct dlock_error *err)
{
    if (be->op == OP_ACQUIRE)
        acquire_failed(be, err);
    else if (be->op == OP_RENEW)
        pg_unclear(be, err);
    else if (be->op == OP_RELEASE)
        release_failed(be, err);
}

static bool try_is_due(const struct pg_backend *be, int64_t now)
{
    return be->conn.state == PC_UP && !pg_conn_busy(&be->conn) &&
           (now >= be->acquire.try_at || be->conn.notified);
}

static void table_timeout(struct pg_backend *be, int64_t now)
{
    struct dlock_error err;
    if (be->op == OP_RELEASE && now >= be->release.until) {
        dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: no answer to the release", pg_where(be));
        pg_released(be, DLOCK_REL_UNCLEAR, &err);
    } else if (be->op == OP_RENEW && now >= be->op_until) {
        no_answer(&err, be->spec, be->spec->op_timeout);
        pg_conn_close(&be->conn);
        pg_unclear(be, &err);
    } else if (be->op == OP_ACQUIRE && now >= be->op_until) {
        acquire_timeout(be);
    } else if (be->op == OP_ACQUIRE && try_is_due(be, now)) {
        send_try(be);
    }
}

static void table_read_info(const PGresult *res, int i, struct dlock_info *info)
{
    const char *text = pg_text(res, i, S_HOLDER), *user = pg_text(res, i, S_USER), *begin;
    if (!pg_number(res, i, S_WAITER)) {
        read_holder(info, text, pg_number(res, i, S_LEFT), pg_number(res, i, S_FENCE));
        return;
    }
    *info = (struct dlock_info){.waiter = true, .left_ns = -1, .waited_ms = -1};
    if (pg_read_comment(text, info, &begin) == 0) { /* our role may not read this waiter's query */
        info->pid = (long)pg_number(res, i, S_PID);
        dlock_clean_text(info->user, sizeof(info->user), user, strlen(user));
    }
}

const struct pg_protocol pg_table = {
    .pipeline = true,
    .guard = check_text,
    .acquire = table_acquire,
    .renew = table_renew,
    .release = table_release,
    .ready = table_ready,
    .read_error = table_read_error,
    .answered = table_answered,
    .failed = table_failed,
    .abandon = table_abandon,
    .timeout = table_timeout,
    .read_info = table_read_info,
    .schema = table_schema,
};
