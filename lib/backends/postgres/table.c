/*
 * table.c - ?mode=lease: a row of a table is the lock, and expires by the server's clock. Exclusive locks, and what does
 * not depend on the kind; table_shared.c has the rest.
 *
 *   name text primary key | fence bigint | owner text | expires timestamptz | holder text
 *   | freed timestamptz: the last release | passed bigint: see below
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
 * promotion of a standby that has the row loses the lock.
 *
 * Waiters connected directly stand in line. The ticket of a waiter is the server's time of its first try, and stays its
 * own when it connects anew. It stands in the session's application_name (dlock:KEY:TICKET), which every role may read.
 * A try counts the tickets before its own, and with k of them it may take the lock only once that has been free for
 * turn(k): 0, 0.8, 1.2, 1.5 s and so on, below 2.8 s for any k. So a waiter that does not answer delays the others, but
 * not by more than that. A waiter that is granted the lock in spite of others before it writes its ticket into passed:
 * all tickets below count no more. The waiters of these, if they are alive, get a new one with their next try.
 *
 * A release calls the first few, each for its turn. All waiters poll within that same 2.8 s, so a call that is lost,
 * and the silence of all that were called, cost no more. At the end of a dead holder's lease each has its turn, too.
 * Behind a pooler waiters only poll, without order, and after those in line.
 *
 * Not guaranteed: the server's clock decides; when it steps forward, a lease ends early. When it steps back, new tickets
 * are before old ones. Another role can set an application_name as well, and so delay each grant by 2.8 s.
 */
#include "table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_ALONE DLOCK_SEC             /* between tries of a waiter that no release can wake */
#define POLL_IN_LINE (2500 * DLOCK_MSEC) /* ... and of one that is in line */
#define JITTER (200 * DLOCK_MSEC)
#define SWEEP_ONE_OF 100
/*
 * A name with a date in it leaves its row behind. It goes with its run record if that is a week old; for shorter records
 * each run here deletes two rows on average.
 */
#define SWEEP_ONE_OF_RUNS 10
#define CUT_OFF                                                                                    \
    (6 * DLOCK_SEC) /* a client that is cut off keeps the row at most so long, and 2 s */

/* ------------------------------------------------------------------ statements */

/* The enum above a statement: the columns of its answer. $1: the lock's name. $2: our token, or as noted. */
#define GRACE "pg_catalog.make_interval(secs => @G)"

/*
 * $5: our ticket, 0: none. $6: the pid of a session that is in line: it leaves that when the lock is granted. h: the row
 * as we see it; m: our ticket from now on; t: how many are before us (NULL: not looked), and our turn. $7: 1 to look in
 * any case, to tell our place. The turn is decided in the row, too, but as with a held lock, the row is not touched
 * before it.
 *
 * @T: the table. @H: the second one. @R: the third one. @W: a comment with our record. @C: the channel that wakes a waiter, less its pid. @G: the
 * restart grace in seconds. @0, @1 and @2: the parts of grace_text, or what stands for them without a grace.
 */
enum {
    R_FENCE,
    R_PID,
    R_HOLDER,
    R_HELD_FENCE,
    R_LEFT,
    R_TOKEN,
    R_GRACE,
    R_OWNER,
    R_TICKET,
    R_AHEAD,
    R_TURN, /* in ms: from now on; of a held lock, from its expiry on */
    R_NAMED,
    R_COLUMNS
};
/* clang-format off */
static const char try_text[] =
    "@WWITH @0"
    "h AS MATERIALIZED (SELECT r.holder, r.fence, r.owner, r.expires, r.passed, "
        "GREATEST(r.expires, r.freed) AS since FROM @T r WHERE r.name" EQ "$1" TEXT "), "
    "m AS MATERIALIZED (SELECT p.passed, CASE WHEN $5" BIGINT GT "p.passed THEN $5" BIGINT " "
        "ELSE GREATEST(" TICKET_NOW ", p.passed" PLUS "1) END AS ticket "
        "FROM (SELECT COALESCE((SELECT h.passed FROM h), 0) AS passed OFFSET 0) p), "
    "t AS MATERIALIZED (SELECT w.ahead, "
        "pg_catalog.make_interval(secs => " TURN("COALESCE(w.ahead, 0)") ") AS turn FROM (SELECT "
        "CASE WHEN EXISTS (SELECT 1 FROM h WHERE h.since" GT "(" NOW MINUS ANY_TURN ") "
            "AND ($7" INT EQ "1 OR h.expires" LT "(" NOW PLUS ANY_TURN "))) "
        "THEN (SELECT pg_catalog.count(DISTINCT a.application_name) " IN_LINE
            GT BEHIND_TICKET("SELECT m.passed FROM m") "AND a.application_name" AS_CODES
            LT WITH_TICKET("SELECT m.ticket FROM m") ") END AS ahead OFFSET 0) w), "
    "got AS (INSERT INTO @T AS l (name, fence, owner, expires, holder, passed) "
        "SELECT $1" TEXT ", " TICKET_NOW ", $2" TEXT ", " NOW PLUS TTL ", $4" TEXT ", "
        "CASE WHEN t.ahead" GT "0 THEN (SELECT m.ticket FROM m)" MINUS "1 END "
        "FROM (SELECT " DURABLE " AS done OFFSET 0) s CROSS JOIN t WHERE s.done IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM h WHERE h.expires" GT NOW " "
            "OR (h.since" LE NOW " AND h.since" GT "(" NOW MINUS "t.turn))) @1"
        "ON CONFLICT (name) DO UPDATE SET (fence, owner, expires, holder, passed) = "
        "ROW(GREATEST(l.fence" PLUS "1, EXCLUDED.fence), EXCLUDED.owner, " NOW PLUS TTL ", "
        "EXCLUDED.holder, GREATEST(l.passed, EXCLUDED.passed)) "
        "WHERE l.expires" LE NOW " AND (GREATEST(l.expires, l.freed)" GT NOW " OR "
        "GREATEST(l.expires, l.freed)" LE "(" NOW MINUS "(SELECT t.turn FROM t))) "
        "RETURNING l.fence) "
    "SELECT g.fence, pg_catalog.pg_backend_pid(), o.holder, o.fence, "
        "(EXTRACT(epoch FROM o.expires" MINUS NOW ")" MILLISECONDS ", $2" TEXT ", @2, o.owner, "
        "(SELECT m.ticket FROM m), t.ahead, (EXTRACT(epoch FROM CASE WHEN o.expires IS NULL "
            "THEN LEAST(t.turn, COALESCE((SELECT h.since FROM h "
                "WHERE h.since" GT "(" NOW MINUS ANY_TURN ")), " NOW ")" PLUS "t.turn" MINUS NOW ") "
            "ELSE t.turn END)" MILLISECONDS ", "
        "CASE WHEN g.fence IS NOT NULL AND pg_catalog.pg_backend_pid()" EQ "$6" INT " "
        "THEN pg_catalog.set_config('application_name', '@A', false) END "
    "FROM t LEFT JOIN got g ON true LEFT JOIN h o ON o.expires" GT NOW;
/* clang-format on */

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

static const char renew_text[] =
    "WITH u AS (UPDATE @T l SET expires = " NOW PLUS TTL " " OUR_ROW "AND l.fence" EQ "$4" BIGINT
    " RETURNING 1) "
    "SELECT (SELECT pg_catalog.count(*) FROM u), o.holder, $2" TEXT " " OTHERS_ROW;

/* clang-format off */
static const char release_text[] =
    "WITH u AS (UPDATE @T l SET (expires, owner, freed) = "
        "ROW('-infinity'::pg_catalog.timestamptz, ''" TEXT ", " NOW ") " OUR_ROW
        "RETURNING COALESCE(l.passed, 0) AS passed, true AS whole, 0 AS used), "
    CALLS
    "SELECT (SELECT pg_catalog.count(*) FROM u), o.holder, $2" TEXT ", "
        "(SELECT pg_catalog.count(*) FROM c) " OTHERS_ROW;
/* $3: for how long it stays held. */
static const char stay_text[] =
    "WITH u AS (UPDATE @T l SET (expires, owner) = "
        "ROW(LEAST(l.expires, " NOW PLUS TTL "), pg_catalog.concat('" OVER_OWNER "', l.owner)) " OUR_ROW
        "RETURNING COALESCE(l.passed, 0) AS passed, true AS whole, 0 AS used, " MS_UNTIL("l.expires") PLUS "1 AS stays), "
    CALLS_LATER
    "SELECT (SELECT pg_catalog.count(*) FROM u), o.holder, $2" TEXT ", "
        "(SELECT pg_catalog.count(*) FROM c) " OTHERS_ROW;
/* clang-format on */

const char table_lock_row[] = "SELECT 1 FROM @T l WHERE l.name" EQ "$1" TEXT " FOR UPDATE";

/* Rows that were unused for a week. */
static const char sweep_text[] =
    "DELETE FROM @T d WHERE d.name" EQ "ANY (SELECT t.name FROM @T t "
    "WHERE t.name" NE "'' AND t.expires" LT "(" NOW MINUS "'7 days'" INTERVAL ") "
    "AND t.fence" LT LONG_UNUSED "LIMIT 20 FOR UPDATE SKIP LOCKED)";

/* Waiters that were passed come last, and behind them $2, if there is that table. Of a shared lock this row stands for all holders; see more_status(). */
/* clang-format off */
static const char status_text[] =
    "SELECT 0, t.holder, t.fence, (EXTRACT(epoch FROM t.expires" MINUS NOW ")" MILLISECONDS ", ''" TEXT ", 0, "
        "CASE WHEN t.owner" MATCHES "'" SHARED_OWNER "%' THEN 's' ELSE '' END, 0, " IS_OVER("t.owner") " "
        "FROM @T t WHERE t.name" EQ "$1" TEXT " AND t.expires" GT NOW " UNION ALL " STATUS_WAITERS
    " UNION ALL SELECT 2, '', 0, 0, '', 0, '', 0, 0 WHERE pg_catalog.to_regclass($2" TEXT ") IS NOT NULL";
/* clang-format on */

static const char schema_text[] =
    "CREATE TABLE IF NOT EXISTS @T (name pg_catalog.text COLLATE pg_catalog.\"C\" PRIMARY KEY, "
    "fence pg_catalog.int8 NOT NULL, owner pg_catalog.text NOT NULL, "
    "expires pg_catalog.timestamptz NOT NULL, holder pg_catalog.text NOT NULL, "
    "freed pg_catalog.timestamptz, passed pg_catalog.int8)";
static const char lock_columns[] = "expires 1184 0 t,fence 20 0 t,freed 1184 0 f,holder 25 100 t,"
                                   "name 25 950 t,owner 25 100 t,passed 20 0 f";

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
 * $1: the table. $2: a role that is trusted, too. $3: its columns. $4: its number, for the finding. t: the table; r: a role that has power over it. 6171 is
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
const char table_check[] =
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
    "SELECT pg_catalog.concat('" FINDING "', $4" TEXT ", f.text, ';')" INT " FROM (SELECT COALESCE("
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
        "ORDER BY a.attname) AS list FROM a) s WHERE (s.list" EQ "$3" TEXT ") IS NOT TRUE), "
    "(SELECT pg_catalog.concat('it has the constraint ', k.conname) FROM t "
        "JOIN pg_catalog.pg_constraint k ON k.conrelid" EQ "t.oid AND k.contype" NE "'p' "
        "AND k.contype" NE "'n' AND k.contype" NE "'u' LIMIT 1), "
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

void table_seconds(char *buf, size_t size, int64_t ns)
{
    snprintf(buf, size, "%" PRId64 ".%03d", ns / DLOCK_SEC, (int)(ns % DLOCK_SEC / DLOCK_MSEC));
}

/* What is left of --min-hold, after the grant. */
static int64_t min_hold_left(const struct pg_backend *be)
{
    return be->spec->min_hold > 0 ? dlock_max(0, be->spec->hold->until - pg_now(be)) : 0;
}

void table_lasts(const struct pg_backend *be, char *buf, size_t size)
{
    int64_t least = be->granted ? min_hold_left(be) : be->spec->min_hold;
    table_seconds(buf, size, dlock_max(be->spec->ttl, least));
}

bool table_stays(const struct pg_backend *be, char *buf, size_t size)
{
    int64_t left = be->granted ? min_hold_left(be) : 0;
    table_seconds(buf, size, left > 0 ? left + DLOCK_MSEC : 0);
    return left > 0;
}

static void put_filled(const struct pg_backend *be, const char *text, FILE *f)
{
    char grace[32];
    table_seconds(grace, sizeof(grace), be->restart_grace);
    for (const char *p = text; *p; p++) {
        if (*p != '@')
            fputc(*p, f);
        else if (*++p == 'T')
            fputs(be->table.name, f);
        else if (*p == 'H')
            fputs(be->table.holders, f);
        else if (*p == 'R')
            fputs(be->table.runs, f);
        else if (*p == 'A')
            fputs(be->app, f);
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

char *table_fill(const struct pg_backend *be, const char *text)
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
    char *first = table_fill(be, schema_text), *second = table_fill(be, be->table.shared->schema);
    char *third = table_fill(be, be->table.more->schema), *all;
    if (!first || !second || !third || asprintf(&all, "%s; %s; %s", first, second, third) < 0)
        all = NULL;
    free(first);
    free(second);
    free(third);
    return all;
}

/* ----------------------------------------------------------------- what is sent */

void table_send(struct pg_backend *be, enum pg_tag tag, struct pg_statement *all, int n)
{
    for (int i = 0; i < n; i++)
        all[i].sql = table_fill(be, all[i].sql);
    pg_conn_send_all(&be->conn, (int)tag, all, n);
    for (int i = 0; i < n; i++)
        free((char *)all[i].sql);
}

/*
 * A network that is cut within a message leaves the row locked, which all renewals would wait for, until the server takes
 * the client for dead: by default after two hours. Behind a pooler ($1: the pid) the session is not ours to set. This has
 * no row: the answer is that of another statement.
 */
static const char alive_text[] =
    "SELECT 1 FROM (SELECT CASE WHEN pg_catalog.pg_backend_pid()" EQ "$1" INT
    " THEN pg_catalog.concat("
    "pg_catalog.set_config('tcp_keepalives_idle', $2" TEXT ", false), "
    "pg_catalog.set_config('tcp_keepalives_interval', $3" TEXT ", false), "
    "pg_catalog.set_config('tcp_keepalives_count', $4" TEXT ", false)) ELSE '-' END AS set "
    "OFFSET 0) s WHERE s.set" EQ "''";

struct alive {
    char text[4][24];
    const char *values[4];
};

static void fill_alive(const struct pg_backend *be, struct alive *a)
{
    struct pg_keepalives keep = pg_keepalives(dlock_min(be->spec->ttl, CUT_OFF));
    int64_t all[] = {PQbackendPID(be->conn.pq), keep.idle, keep.interval, keep.count};
    for (int i = 0; i < 4; i++) {
        snprintf(a->text[i], sizeof(a->text[i]), "%" PRId64, all[i]);
        a->values[i] = a->text[i];
    }
}

void table_send_checked(struct pg_backend *be, enum pg_tag tag, const struct table_more *more,
                        const struct pg_statement *all, int n)
{
    struct pg_statement list[PG_STATEMENTS] = {
        {table_check, 4,
         (const char *const[]){more->name, be->table.owner, more->columns, more->number}}};
    struct alive alive;
    int first = more->checked || be->conn.state != PC_UP ? 0 : 2;
    if (first > 0) {
        fill_alive(be, &alive);
        list[1] = (struct pg_statement){alive_text, 4, alive.values};
    }
    for (int i = 0; i < n; i++)
        list[first + i] = all[i];
    table_send(be, tag, list, first + n);
}

static void send_text(struct pg_backend *be, enum pg_tag tag, const char *text, int n,
                      const char *const *values)
{
    table_send(be, tag, &(struct pg_statement){text, n, values}, 1);
}

static bool is_shared(const struct pg_backend *be)
{
    return be->spec->mode != DLOCK_MODE_EXCLUSIVE;
}

/* Does our release write the end of a run? */
static bool records_end(const struct pg_backend *be)
{
    return be->spec->once > 0 && be->granted;
}

void table_trying(struct pg_backend *be)
{
    be->acquire.try_at = DLOCK_NEVER;
    be->conn.notified = -1;
    if (!be->contact.pending)
        be->op_until = pg_now(be) + pg_patience(be);
    be->table.try = TRY_SENT;
}

static void send_try(struct pg_backend *be)
{
    char ttl[32], ticket[24], pid[16];
    if (is_shared(be)) {
        be->table.shared->send_try(be);
        return;
    }
    bool look = be->table.tries++ % LOOK_ONE_OF == 0;
    table_trying(be);
    table_lasts(be, ttl, sizeof(ttl));
    snprintf(ticket, sizeof(ticket), "%" PRId64, be->table.ticket);
    snprintf(pid, sizeof(pid), "%d", be->table.in_line ? PQbackendPID(be->conn.pq) : 0);
    pg_describe(be, RECORD_HOLDS);
    struct pg_statement try = {try_text, 7,
                               (const char *const[]){be->spec->uri->name, be->token, ttl,
                                                     be->holder, ticket, pid, look ? "1" : "0"}};
    if (be->spec->once > 0)
        be->table.more->send_try(be, &try);
    else
        table_send(be, T_TRY, &try, 1);
}

static void send_renew(struct pg_backend *be)
{
    char ttl[32], fence[24];
    if (is_shared(be)) {
        be->table.shared->send_renew(be);
        return;
    }
    table_lasts(be, ttl, sizeof(ttl));
    snprintf(fence, sizeof(fence), "%" PRIu64, be->fence);
    send_text(be, T_RENEW, renew_text, 4,
              (const char *const[]){be->spec->uri->name, be->token, ttl, fence});
}

/* left: as in struct table_shared. */
static void send_give_back(struct pg_backend *be, enum pg_tag tag, const char *token,
                           const char *left)
{
    if (is_shared(be))
        be->table.shared->send_give_back(be, tag, token, left);
    else
        send_text(be, tag, left ? stay_text : release_text, left ? 3 : 2,
                  (const char *const[]){be->spec->uri->name, token, left});
}

static void send_release(struct pg_backend *be)
{
    char left[32];
    if (be->table.release == RELEASE_UNSENT)
        be->table.release = RELEASE_SENT; /* once unheard, always unheard */
    if (records_end(be))
        be->table.more->send_release(be);
    else
        send_give_back(be, T_RELEASE, be->token, table_stays(be, left, sizeof(left)) ? left : NULL);
}

/* A release of what a try with this token may have got. */
static void send_undo(struct pg_backend *be, const char *token)
{
    send_give_back(be, T_UNDO, token, NULL);
}

static void send_status(struct pg_backend *be)
{
    be->table.look = LOOK_FIRST;
    send_text(be, T_STATUS, status_text, 2,
              (const char *const[]){be->spec->uri->name, be->table.runs});
}

/*
 * Set application_name, only on a session that is ours alone: behind a pooler another client would inherit it. From now
 * on the others count this waiter, and a release can call it. An earlier one did not, so another try follows.
 */
static void send_stand_in_line(struct pg_backend *be)
{
    char sql[256], kind[8];
    be->table.in_line = true;
    be->table.shared->kind(be->spec, kind);
    snprintf(sql, sizeof(sql), "LISTEN \"%s%d\"", be->table.channel, PQbackendPID(be->conn.pq));
    pg_conn_send(&be->conn, T_LISTEN, sql, 0, NULL);
    snprintf(sql, sizeof(sql),
             "SELECT CASE WHEN pg_catalog.pg_backend_pid()" EQ "%d THEN "
             "pg_catalog.set_config('application_name', '%s:%016" PRId64 "%s', false) END",
             PQbackendPID(be->conn.pq), be->app, be->table.ticket, kind);
    pg_conn_send(&be->conn, T_LISTEN, sql, 0, NULL);
    send_try(be);
}

static int64_t random_part(const struct pg_backend *be, int64_t most)
{
    uint32_t r = 0;
    (void)be->spec->env->random(be->spec->env->ctx, &r, sizeof(r));
    return (int64_t)r % most;
}

/*
 * One release in a hundred (of --once, in ten) deletes unused rows: behind the release on the same connection, where
 * nothing waits for it. Through a pooler nothing may follow the release that we wait for, so there the grants do it.
 */
static void maybe_sweep(struct pg_backend *be)
{
    if (be->spec->once > 0)
        be->table.more->send_sweep(be); /* with dates in their names, each run leaves a record */
    if (random_part(be, be->spec->once > 0 ? SWEEP_ONE_OF_RUNS : SWEEP_ONE_OF) != 0)
        return;
    send_text(be, T_SWEEP, sweep_text, 0, NULL);
    if (is_shared(be))
        be->table.shared->send_sweep(be);
}

/* --------------------------------------------------------------------- acquire */

static void table_acquire(struct pg_backend *be)
{
    be->table.try = TRY_NONE;
    be->table.orphan[0] = '\0';
    be->table.created = false;
    be->table.ticket = 0;
    be->table.tries = be->table.place = 0;
    be->table.release = RELEASE_UNSENT;
    be->table.notice_at = 0;
    memcpy(be->table.notice, be->token, sizeof(be->table.notice));
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

void table_granted(struct pg_backend *be, int64_t from)
{
    be->table.release = RELEASE_UNSENT;
    be->table.in_line = false;
    be->table.shared->withdraw_notice(be);
    if (be->conn.one_by_one)
        maybe_sweep(be);
    pg_granted(be, from);
}

/* Behind the record of one that holds a slot. */
static void read_slot(struct dlock_info *info, const char *holder)
{
    const char *at = strstr(holder, " slots=");
    unsigned n = 0, slot = 0;
    if (!at || sscanf(at, " slots=%4u slot=%4u", &n, &slot) != 2 || n > DLOCK_SLOTS_MAX || slot > n)
        return;
    info->mode = DLOCK_MODE_SLOTS;
    info->slots = n;
    info->slot = (int)slot;
}

void table_read_holder(struct dlock_info *info, const char *holder, int64_t left_ms, int64_t fence)
{
    *info = (struct dlock_info){
        .left_ns = left_ms * DLOCK_MSEC, .waited_ms = -1, .fence = (uint64_t)fence};
    info->foreign = !dlock_identity_parse(holder, strlen(holder), info);
    read_slot(info, holder);
}

/* A release has called us, for a number of ms from now on. Any role can NOTIFY, so the number may be anything. */
static void heed_call(struct pg_backend *be)
{
    int64_t turn = dlock_min(be->conn.notified, LONGEST_TURN / DLOCK_MSEC) * DLOCK_MSEC;
    if (be->conn.notified >= 0)
        be->acquire.try_at = dlock_min(be->acquire.try_at, pg_now(be) + turn);
    be->conn.notified = -1;
}

/* Wait for a call, and poll: also at our turn after the end of the lease, as the holder may be dead. */
static void try_again_in_time(struct pg_backend *be, const struct table_refusal *why)
{
    int64_t now = pg_now(be), turn = now + (dlock_max(0, why->turn_ms) + 1) * DLOCK_MSEC;
    int64_t jitter = random_part(be, JITTER), poll = POLL_IN_LINE - jitter;
    if (be->table.notice_at != 0 && be->table.notice_at != DLOCK_NEVER)
        poll = dlock_min(poll, be->table.shared->notice_life(be) / 3);
    be->op_until = DLOCK_NEVER;
    if (!why->held && why->turn_ms <= 0)
        /* another client was faster; our snapshot is too old to show its row */
        be->acquire.try_at = now + jitter;
    else if (!why->held)
        be->acquire.try_at = turn;
    else if (be->table.in_line)
        be->acquire.try_at = dlock_min(now + poll, turn + why->left_ms * DLOCK_MSEC);
    else
        be->acquire.try_at = dlock_min(now + POLL_ALONE, turn + why->left_ms * DLOCK_MSEC) + jitter;
    heed_call(be);
}

/* A writer waits for readers or slots: tell those that come later. In front of all else, so that it is there in time. */
static void give_notice(struct pg_backend *be, const struct table_refusal *why)
{
    bool shared = why->held && strncmp(why->owner, SHARED_OWNER, strlen(SHARED_OWNER)) == 0;
    if (!is_shared(be) && shared && pg_now(be) >= be->table.notice_at)
        be->table.shared->send_notice(be);
}

static void wait_on(struct pg_backend *be, const struct table_refusal *why)
{
    bool direct = why->direct && !be->table.deaf;
    bool stands = be->table.in_line && be->table.ticket == why->ticket;
    struct dlock_event *ev = events_add(&be->events, EV_WAITING);
    ev->info = why->info;
    if (why->ahead >= 0)
        be->table.place = (int)why->ahead + 1;
    ev->place = direct ? be->table.place : 0;
    be->table.ticket = why->ticket;
    give_notice(be, why);
    if (why->info && be->table.orphan[0] && strcmp(why->owner, be->table.orphan) == 0) {
        /* Our own: the orphan waited for the row, in a session that did not notice that the connection broke. */
        send_undo(be, be->table.orphan);
        be->table.orphan[0] = '\0';
        send_try(be);
    } else if (direct && !stands) {
        send_stand_in_line(be);
    } else {
        try_again_in_time(be, why);
    }
}

void table_refused(struct pg_backend *be, const struct table_refusal *why)
{
    be->table.try = TRY_NONE;
    /* Our caller may find that it waits for itself. */
    if (why->info && strspn(why->owner, "0123456789abcdef") == DLOCK_TOKEN_LEN &&
        why->owner[DLOCK_TOKEN_LEN] == '\0')
        memcpy(be->info.token, why->owner, DLOCK_TOKEN_LEN + 1);
    be->info.over = why->info && strncmp(why->owner, OVER_OWNER, strlen(OVER_OWNER)) == 0;
    if (be->acquire.wait)
        wait_on(be, why);
    else
        pg_busy(be, why->info);
}

static void not_granted(struct pg_backend *be, const struct pg_reply *r)
{
    struct table_refusal why = {
        .owner = pg_text(r->rows, 0, R_OWNER),
        .direct = pg_number(r->rows, 0, R_PID) == PQbackendPID(be->conn.pq),
        .ticket = pg_number(r->rows, 0, R_TICKET),
        .ahead = PQgetisnull(r->rows, 0, R_AHEAD) ? -1 : pg_number(r->rows, 0, R_AHEAD),
        .held = !PQgetisnull(r->rows, 0, R_LEFT),
        .left_ms = pg_ms(r->rows, 0, R_LEFT),
        .turn_ms = pg_ms(r->rows, 0, R_TURN),
    };
    be->table.try = TRY_NONE;
    if (why.held) {
        table_read_holder(&be->info, pg_text(r->rows, 0, R_HOLDER), why.left_ms,
                          pg_number(r->rows, 0, R_HELD_FENCE));
        bool shared = strncmp(why.owner, SHARED_OWNER, strlen(SHARED_OWNER)) == 0;
        if (shared && be->info.mode == DLOCK_MODE_EXCLUSIVE)
            be->info.mode = DLOCK_MODE_SHARED;
        why.info = &be->info;
    }
    if (!why.held && pg_ms(r->rows, 0, R_GRACE) > 0)
        pg_in_grace(be, pg_ms(r->rows, 0, R_GRACE));
    else
        table_refused(be, &why);
}

static void create_table(struct pg_backend *be)
{
    be->table.created = true;
    be->table.try = TRY_NONE;
    be->conn.guarded = false; /* it runs no code of a table that another client made meanwhile */
    table_send(be, T_SCHEMA,
               (struct pg_statement[]){
                   {schema_text, 0, NULL},
                   {is_shared(be) ? be->table.shared->schema : be->table.more->schema, 0, NULL}},
               is_shared(be) || be->spec->once > 0 ? 2 : 1);
    be->conn.guarded = true;
}

static void create_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    /* 23505, 42P07, 42710 (its type): another client created it at the same time. */
    if (!r->sqlstate[0] || strcmp(r->sqlstate, "23505") == 0 || strcmp(r->sqlstate, "42P07") == 0 ||
        strcmp(r->sqlstate, "42710") == 0) {
        send_try(be);
        return;
    }
    bool second = be->table.lacks == be->table.holders, third = be->table.lacks == be->table.runs;
    char *ddl = third ? NULL : table_fill(be, second ? be->table.shared->schema : schema_text);
    int code = pg_conn_reply_error(&be->conn, r, &err);
    dlock_fail_at(
        &err, code, 0, pg_where(be),
        "the table for %s does not exist and cannot be created: %s; a role with that permission must run: %s",
        third    ? "run records"
        : second ? "holders"
                 : "locks",
        r->text,
        ddl ? ddl : "what dlock --schema prints"); /* all of it, which is too long for a message */
    free(ddl);
    be->table.created = false;
    pg_try_later(be, &err, false);
}

void table_try_failed(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    be->table.try = TRY_NONE;
    if (strcmp(r->sqlstate, "42P01") == 0 && !be->table.created) {
        be->table.lacks = strstr(r->text, be->table.holders) ? be->table.holders
                          : strstr(r->text, be->table.runs)  ? be->table.runs
                                                             : be->table.name;
        create_table(be);
        return;
    }
    pg_conn_reply_error(&be->conn, r, &err);
    bool transient = strncmp(r->sqlstate, "53", 2) == 0 || strncmp(r->sqlstate, "57", 2) == 0 ||
                     strncmp(r->sqlstate, "40", 2) == 0 || strcmp(r->sqlstate, "55P03") == 0;
    pg_try_later(be, &err, transient);
}

/* See table_try_is_ours(). */
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
        dlock_fail_at(err, code, 0, pg_where(be),
                      "unexpected answer to the lock query: does a pooler mix up its sessions?");
}

bool table_try_is_ours(struct pg_backend *be, const struct pg_reply *r, int columns, int pid,
                       int token)
{
    struct dlock_error err;
    if (!is_ours(be, r, columns, token)) {
        not_ours(be, r, DLOCK_EPROTO, &err);
        pg_fail(be, &err);
        return false;
    }
    be->conn.one_by_one = pg_number(r->rows, 0, pid) != PQbackendPID(be->conn.pq);
    be->contact.pending = false;
    outage_over(&be->outage, &be->events);
    return true;
}

static void try_answered(struct pg_backend *be, const struct pg_reply *r)
{
    if (is_shared(be)) {
        be->table.shared->answered(be, r);
    } else if (r->sqlstate[0]) {
        table_try_failed(be, r);
    } else if (be->spec->once > 0 && be->table.more->answered(be, r)) {
        return;
    } else if (table_try_is_ours(be, r, R_COLUMNS, R_PID, R_TOKEN)) {
        be->fence = (uint64_t)pg_number(r->rows, 0, R_FENCE);
        if (PQgetisnull(r->rows, 0, R_FENCE))
            not_granted(be, r);
        else
            table_granted(be, r->sent);
    }
}

/* ----------------------------------------------------------------------- renew */

/* The row is not ours: what we found instead. */
static void describe_row(const struct pg_backend *be, const struct pg_reply *r,
                         struct dlock_error *err)
{
    struct dlock_info info;
    if (PQgetisnull(r->rows, 0, U_HOLDER)) {
        dlock_fail_at(err, DLOCK_ELOST, 0, pg_where(be),
                      "the lease expired, or its row was changed");
        return;
    }
    table_read_holder(&info, pg_text(r->rows, 0, U_HOLDER), 0, 0);
    dlock_fail_at(err, DLOCK_ELOST, 0, pg_where(be), "%s@%s, pid %ld holds the lock now", info.user,
                  info.host, info.pid);
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
    be->table.shared->withdraw_notice(be);
    if (!be->granted && be->table.try == TRY_NONE)
        pg_released(be, DLOCK_RELEASE_NOTHING, NULL);
    else
        pg_connect(be);
}

static void release_later(struct pg_backend *be, const struct dlock_error *err)
{
    int64_t now = pg_now(be);
    bool transient = err->code == DLOCK_EUNAVAIL || err->code == DLOCK_ENOMEM;
    be->op_until = DLOCK_NEVER;
    if (now >= be->release.until || !transient)
        pg_released(be, DLOCK_RELEASE_UNCLEAR, err);
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
    bool records = records_end(be);
    int columns = records ? be->table.more->end_columns : U_RELEASE_COLUMNS;
    enum table_end end = END_UNKNOWN;
    if (records && is_ours(be, r, columns, U_TOKEN))
        end = be->table.more->ended(be, r, &err);
    if (!is_ours(be, r, columns, U_TOKEN)) {
        not_ours(be, r, DLOCK_EUNAVAIL, &err);
        if (r->unheard || !r->sqlstate[0])
            be->table.release = RELEASE_UNHEARD;
        pg_conn_close(&be->conn);
        release_later(be, &err);
    } else if (end == END_NOT_RECORDED) {
        pg_released(be, DLOCK_RELEASE_UNCLEAR, &err);
    } else if (end == END_RECORDED || pg_number(r->rows, 0, U_OURS) == 1 ||
               (be->granted && be->table.release == RELEASE_UNHEARD)) {
        pg_released(be, DLOCK_RELEASE_CLEAN, NULL);
    } else if (be->granted) {
        describe_row(be, r, &err);
        pg_released(be, DLOCK_RELEASE_NOT_OURS, &err);
    } else {
        pg_released(be, DLOCK_RELEASE_NOTHING, NULL);
    }
}

/* ----------------------------------------------------------------------- slots */

static void table_ready(struct pg_backend *be)
{
    be->table.in_line = be->table.deaf = be->table.checked = false;
    if (be->conn.guarded)
        be->table.runs_checked = false; /* it is a new connection */
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
        PQclear(be->status.first);
        be->status.first = NULL;
        be->status.run = false;
        if (be->forget[0])
            be->table.more->send_forget(be);
        else
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
    found += strlen(FINDING);
    const char *table = *found == '2'   ? be->table.holders
                        : *found == '3' ? be->table.runs
                                        : be->table.name;
    snprintf(what, sizeof(what), "%s", *found ? found + 1 : found);
    what[strcspn(what, ";")] = '\0';
    if (strcmp(what, "missing") == 0) {
        strcpy(r->sqlstate, "42P01");
        snprintf(r->text, sizeof(r->text), "the table %s does not exist", table);
    } else {
        strcpy(r->sqlstate, "42501");
        snprintf(r->text, sizeof(r->text), "the table %.70s is not safe to use: %.110s%s", table,
                 what, strstr(what, " is owned by ") ? " (see table-owner= in dlock(1))" : "");
    }
}

/* Its success says that the tables that it used are what they should be. */
static void note_checked(struct pg_backend *be, const struct pg_reply *r)
{
    if (r->sqlstate[0] || r->tag == T_SCHEMA)
        return;
    be->conn.guarded = false;
    if (r->tag == T_NOTICE || (is_shared(be) && r->tag != T_LISTEN && r->tag != T_SWEEP))
        be->table.checked = true;
    if (r->tag == T_TRY && be->spec->once > 0)
        be->table.runs_checked = true;
}

static void forget_answered(struct pg_backend *be, const struct pg_reply *r)
{
    if (strcmp(r->sqlstate, "42P01") == 0) { /* no run was ever recorded */
        pg_op_done(be);
        events_add(&be->events, EV_DONE);
    } else {
        be->table.more->forgotten(be, r);
    }
}

static void table_answered(struct pg_backend *be, const struct pg_reply *r)
{
    note_checked(be, r);
    if ((r->tag == T_TRY || r->tag == T_CONFIRM) && be->op == OP_ACQUIRE)
        try_answered(be, r);
    else if (r->tag == T_SCHEMA && be->op == OP_ACQUIRE)
        create_answered(be, r);
    else if (r->tag == T_NOTICE && strncmp(r->sqlstate, "42", 2) == 0)
        be->table.notice_at = DLOCK_NEVER; /* no right to the second table */
    else if (r->tag == T_LISTEN && r->sqlstate[0]) {
        be->table.deaf = true; /* polling has to do */
        be->table.in_line = false;
    } else if (r->tag == T_RENEW && be->op == OP_RENEW)
        renew_answered(be, r);
    else if (r->tag == T_RELEASE && be->op == OP_RELEASE)
        release_answered(be, r);
    else if (r->tag == T_FORGET && be->op == OP_STATUS)
        forget_answered(be, r);
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

static void table_timeout(struct pg_backend *be, int64_t now)
{
    struct dlock_error err;
    if (be->op == OP_RELEASE && now >= be->release.until) {
        dlock_fail_at(&err, DLOCK_EUNAVAIL, 0, pg_where(be), "no answer");
        pg_released(be, DLOCK_RELEASE_UNCLEAR, &err);
    } else if (be->op == OP_RELEASE && now >= be->op_until) {
        no_answer(&err, be->spec, pg_patience(be));
        pg_conn_close(&be->conn);
        release_failed(be, &err);
    } else if (be->op == OP_RENEW && now >= be->op_until) {
        no_answer(&err, be->spec, be->spec->op_timeout);
        pg_conn_close(&be->conn);
        pg_unclear(be, &err);
    } else if (be->op == OP_ACQUIRE && now >= be->op_until) {
        acquire_timeout(be);
    } else if (be->op == OP_ACQUIRE && be->conn.state == PC_UP && !pg_conn_busy(&be->conn)) {
        heed_call(be);
        if (now >= be->acquire.try_at)
            send_try(be);
    }
}

unsigned table_slots_of(const char *kind)
{
    unsigned long n = kind[0] == 'n' ? strtoul(kind + 1, NULL, 10) : 0;
    return n <= DLOCK_SLOTS_MAX ? (unsigned)n : 0;
}

static void read_kind(struct dlock_info *info, const char *kind, int64_t slot)
{
    info->mode = kind[0] == 'n'   ? DLOCK_MODE_SLOTS
                 : kind[0] == 's' ? DLOCK_MODE_SHARED
                                  : DLOCK_MODE_EXCLUSIVE;
    info->slots = table_slots_of(kind);
    info->slot = (int)slot;
}

static bool table_read_info(const PGresult *res, int i, struct dlock_info *info)
{
    const char *text = pg_text(res, i, S_HOLDER), *user = pg_text(res, i, S_USER), *begin;
    if (pg_number(res, i, S_WAITER) == 2)
        return false;
    if (!pg_number(res, i, S_WAITER)) {
        table_read_holder(info, text, pg_ms(res, i, S_LEFT), pg_number(res, i, S_FENCE));
        read_kind(info, pg_text(res, i, S_KIND), pg_number(res, i, S_SLOT));
        info->over = pg_number(res, i, S_OVER) != 0;
        return true;
    }
    *info = (struct dlock_info){.waiter = true, .left_ns = -1, .waited_ms = -1};
    if (pg_read_comment(text, info, &begin) == 0) { /* our role may not read this waiter's query */
        info->pid = (long)pg_number(res, i, S_PID);
        dlock_clean_text(info->user, sizeof(info->user), user, strlen(user));
    }
    read_kind(info, pg_text(res, i, S_KIND), 0);
    return true;
}

/* Our role may have no right to the second table: then the name's row has to do. */
static void use_first(struct pg_backend *be, struct pg_reply *r)
{
    if (strncmp(r->sqlstate, "42", 2) == 0) {
        r->sqlstate[0] = '\0';
        PQclear(r->rows);
        r->rows = be->status.first;
    } else {
        PQclear(be->status.first);
    }
    be->status.first = NULL;
}

static bool first_row_is_shared(const PGresult *rows)
{
    return rows && PQntuples(rows) > 0 && !pg_number(rows, 0, S_WAITER) &&
           pg_text(rows, 0, S_KIND)[0] == 's';
}

static bool has_runs(const PGresult *rows)
{
    int n = rows ? PQntuples(rows) : 0;
    return n > 0 && pg_number(rows, n - 1, S_WAITER) == 2;
}

/* What has been found so far is kept while another table is read. */
static void look_on(struct pg_backend *be, struct pg_reply *r)
{
    be->status.first = r->rows;
    r->rows = NULL;
}

/* The answer about the run record: *r becomes that about holders and waiters again, or is an error. */
static void run_looked(struct pg_backend *be, struct pg_reply *r)
{
    struct dlock_error err;
    int rc = 0;
    if (strncmp(r->sqlstate, "42", 2) == 0) {
        /* Who may use the lock's table alone still sees its holders. */
        rc = pg_conn_reply_error(&be->conn, r, &err);
        r->sqlstate[0] = '\0';
    } else if (!r->sqlstate[0]) {
        rc = be->table.more->read_status(be, r, &err);
    }
    /* They are shown also where something else is in the record's place. */
    if (rc < 0)
        events_add(&be->events, EV_NOTICE)->error = err;
    be->status.run = rc == 1;
    PQclear(r->rows);
    r->rows = be->status.first;
    be->status.first = NULL;
}

/*
 * The name's row stands for readers and slots, which are in the second table: that may not exist, so it comes second. The
 * run record is in the third one.
 */
static bool table_more_status(struct pg_backend *be, struct pg_reply *r)
{
    bool runs = has_runs(be->table.look == LOOK_HOLDERS ? be->status.first : r->rows);
    if (be->table.look == LOOK_RUN) {
        run_looked(be, r);
        return false;
    }
    if (be->table.look == LOOK_HOLDERS) {
        use_first(be, r);
    } else if (!r->sqlstate[0] && first_row_is_shared(r->rows)) {
        be->table.look = LOOK_HOLDERS;
        be->conn.guarded = false;
        look_on(be, r);
        be->table.shared->send_status(be);
        be->table.checked = true;
        return true;
    }
    if (r->sqlstate[0] || !runs)
        return false;
    be->table.look = LOOK_RUN;
    be->conn.guarded = false;
    look_on(be, r);
    be->table.more->send_status(be);
    return true;
}

const struct pg_protocol pg_table = {
    .kinds = CAP_SHARED | CAP_SLOTS | CAP_ONCE,
    .stays = true,
    .pipeline = true,
    .guard = table_check,
    .columns = lock_columns,
    .acquire = table_acquire,
    .renew = table_renew,
    .release = table_release,
    .ready = table_ready,
    .read_error = table_read_error,
    .answered = table_answered,
    .failed = table_failed,
    .abandon = table_abandon,
    .timeout = table_timeout,
    .more_status = table_more_status,
    .read_info = table_read_info,
    .schema = table_schema,
};
