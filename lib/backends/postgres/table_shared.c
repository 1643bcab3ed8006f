/*
 * table_shared.c - shared locks and slots in the lease table.
 *
 * A second table, whose name is the first one's and "_holders", has a row for each holder:
 *
 *   name text, token text: primary key | epoch text | slots int: 0 shared, else N | place bigint: the slot, from 1
 *   | expires timestamptz | holder text
 *
 * While there are any, the name's row has the owner shared:EPOCH and the expiry of the latest of them: so it excludes
 * exclusive clients, which look at that row alone. An epoch begins with the first holder and ends when none lives any
 * more; its rows have its name, and those of an older one count nothing. EPOCH is the server's time in microseconds and
 * the first holder's token.
 *
 * Each change of the holders (grant, renewal, release) is one message of two statements, and one transaction: the first
 * locks the name's row, the second reads, counts and writes. A statement sees what was committed before it began, so the
 * one that waited for the row would count without what it waited for. Where the role's default is a stricter isolation
 * level, both see the same; but then the first one fails if the row was changed meanwhile, and each change of the holders
 * changes it. Therefore no BEGIN is needed, whose transaction an error would leave open.
 *
 * A try first reads without a lock, and only if there is room for it, a second message locks and counts again.
 *
 * The fence is that of the last exclusive grant: holders that stand together have the same number. The next exclusive
 * grant has a greater one.
 *
 * Waiters stand in the line of table.c, and their place in it has their kind. In the way of a reader are the writers
 * before it; in that of a slot also the slots before it, as far as there is not one for each. A waiting writer also keeps
 * a row in the second table, with the epoch "" and the ticket as its place: none with a later ticket joins while that lives. The line
 * alone would not do, since a stopped writer stays in it, and one behind a pooler is not in it at all. A writer in line
 * without such a row is respected in the first seconds of an epoch, as it may not have noticed that yet.
 */
#include "table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NOTICE_LIFE (9 * DLOCK_SEC)

/* ------------------------------------------------------------------ statements */

/* @H: the second table. $1: the lock's name. $2: our token. */
static const char shared_schema[] =
    "CREATE TABLE IF NOT EXISTS @H (name pg_catalog.text COLLATE pg_catalog.\"C\", "
    "token pg_catalog.text, epoch pg_catalog.text NOT NULL, slots pg_catalog.int4 NOT NULL, "
    "place pg_catalog.int8 NOT NULL, expires pg_catalog.timestamptz NOT NULL, "
    "holder pg_catalog.text NOT NULL, PRIMARY KEY (name, token))";
/* 23 is the type int; see table_check. */
static const char holder_columns[] =
    "epoch 25 100 t,expires 1184 0 t,holder 25 100 t,name 25 950 t,"
    "place 20 0 t,slots 23 0 t,token 25 100 t";

/* The holder column of the name's row: the record, and which slot it has. */
#define WITH_SLOT(record, slots, place)                                                            \
    "pg_catalog.concat(" record TEXT ", CASE WHEN " slots GT                                       \
    "0 THEN pg_catalog.concat(' slots=', " slots ", ' slot=', " place ") END)"

/* A notice of a writer that is before the ticket t. */
#define NOTICES(d, passed, t) d ".epoch" EQ "'' AND " d ".place" GT passed " AND " d ".place" LT t

/*
 * $3: our ticket, 0: none. $4: our kind. $5: N, 0: shared. $6: 1 to look at the line in any case. $7: an orphaned token.
 * $8: the first table: any role can stand in the line, but only one that may use the table can say that N is another one.
 * h: the name's row; m: our ticket from now on; d: the rows of the second table; o: those of the living epoch; w: the
 * notices of writers before us; q: the line before us.
 */
enum {
    L_PID,
    L_TOKEN,
    L_GRACE,
    L_STATE,
    L_OWNER,
    L_HOLDER,
    L_FENCE,
    L_LEFT,
    L_FREE, /* since when in ms, of a free lock */
    L_YOUNG,
    L_ORPHAN,
    L_TICKET,
    L_BARRED, /* in ms, for how long the notice of a writer still lives; 0: there is none */
    L_USED,
    L_OTHER, /* another number of slots is held */
    L_SLOT_LEFT,
    L_SLOT_FREE, /* since when in ms the last one that came back has been free */
    L_AHEAD,
    L_WRITERS,
    L_SLOTS,
    L_OTHER_KIND, /* another number of slots is waited for */
    L_COLUMNS
};
enum state { FREE, EXCLUSIVE, SHARED };
/* clang-format off */
static const char look_text[] =
    "@WWITH @0"
    "h AS MATERIALIZED (SELECT r.holder, r.fence, r.owner, r.expires, r.passed, r.freed, r.expires" GT NOW " AS held, "
        "r.owner" MATCHES "'" SHARED_OWNER "%' AS shared FROM @T r WHERE r.name" EQ "$1" TEXT "), "
    "m AS MATERIALIZED (SELECT p.passed, CASE WHEN $3" BIGINT GT "p.passed THEN $3" BIGINT " "
        "ELSE GREATEST(" TICKET_NOW ", p.passed" PLUS "1) END AS ticket "
        "FROM (SELECT COALESCE((SELECT h.passed FROM h), 0) AS passed OFFSET 0) p), "
    "d AS MATERIALIZED (SELECT c.token, c.epoch, c.slots, c.place, c.expires, c.expires" GT NOW " AS live "
        "FROM @H c WHERE c.name" EQ "$1" TEXT "), "
    "o AS MATERIALIZED (SELECT pg_catalog.count(*) FILTER (WHERE d.live AND d.slots" GT "0) AS used, "
        "pg_catalog.max(d.slots) FILTER (WHERE d.live AND d.slots" GT "0 AND d.slots" NE "$5" INT ") AS other, "
        "pg_catalog.min(d.expires) FILTER (WHERE d.live AND d.slots" GT "0) AS ends, "
        "pg_catalog.max(d.expires) FILTER (WHERE NOT d.live AND d.slots" GT "0) AS ended, "
        "pg_catalog.count(*) FILTER (WHERE d.live AND d.token" EQ "$7" TEXT ") AS orphan "
        "FROM d JOIN h ON h.held AND h.owner" EQ "d.epoch), "
    "w AS MATERIALIZED (SELECT pg_catalog.max(d.expires) AS until FROM d CROSS JOIN m "
        "WHERE d.live AND " NOTICES("d", "m.passed", "m.ticket") "), "
    "q AS MATERIALIZED (SELECT pg_catalog.count(DISTINCT a.place) AS ahead, "
        "pg_catalog.count(DISTINCT a.place) FILTER (WHERE a.kind" EQ "'') AS writers, "
        "pg_catalog.count(DISTINCT a.place) FILTER (WHERE a.kind" MATCHES "'n%') AS slots, "
        "pg_catalog.max(a.kind) FILTER (WHERE a.kind" MATCHES "'n%' AND a.kind" NE "$4" TEXT " "
            "AND pg_catalog.has_table_privilege(a.usesysid, pg_catalog.to_regclass($8" TEXT ")::pg_catalog.oid, 'UPDATE')) AS other "
        "FROM (SELECT a.usesysid, a.application_name AS place, " KIND_OF("a.application_name") " AS kind " IN_LINE
            GT BEHIND_TICKET("SELECT m.passed FROM m") "AND a.application_name" AS_CODES
            LT WITH_TICKET("SELECT m.ticket FROM m") "AND ($6" INT EQ "1 OR NOT EXISTS (SELECT 1 FROM h "
                "WHERE NOT h.shared AND h.expires" GT "(" NOW PLUS ANY_TURN ")))) a) "
    "SELECT pg_catalog.pg_backend_pid(), $2" TEXT ", @2, "
        "CASE WHEN h.held IS NOT TRUE THEN 0 WHEN h.shared THEN 2 ELSE 1 END, h.owner, h.holder, h.fence, "
        "CASE WHEN h.held THEN (EXTRACT(epoch FROM h.expires" MINUS NOW ")" MILLISECONDS " END, "
        "CASE WHEN h.held THEN 0 ELSE COALESCE((EXTRACT(epoch FROM " NOW MINUS
            "GREATEST(h.expires, h.freed, '2000-01-01'::pg_catalog.timestamptz))" MILLISECONDS ", 3600000) END, "
        "CASE WHEN h.owner" AS_CODES LT "pg_catalog.concat('" SHARED_OWNER "', pg_catalog.lpad((" TICKET_NOW
            MINUS "2800000)" TEXT ", 16, '0')) THEN 0 ELSE 1 END, "
        "o.orphan, m.ticket, COALESCE((EXTRACT(epoch FROM w.until" MINUS NOW ")" MILLISECONDS PLUS "1, 0), "
        "o.used, o.other, (EXTRACT(epoch FROM o.ends" MINUS NOW ")" MILLISECONDS ", "
        "COALESCE((EXTRACT(epoch FROM " NOW MINUS "GREATEST(o.ended, h.freed))" MILLISECONDS ", 3600000), "
        "CASE WHEN $6" INT EQ "1 OR q.ahead" GT "0 THEN q.ahead END, q.writers, q.slots, q.other "
    "FROM m CROSS JOIN o CROSS JOIN w CROSS JOIN q LEFT JOIN h ON true";

/* Locks the name's row; the first holder makes it. */
static const char lock_text[] =
    "INSERT INTO @T AS l (name, fence, owner, expires, holder) "
    "VALUES ($1" TEXT ", " TICKET_NOW ", '', '-infinity', '') ON CONFLICT (name) DO UPDATE SET freed = l.freed";

/*
 * $3: the ttl. $4: our record. $5: our ticket. $6: N, 0: shared. $7: the pid of a session that is in line. $8: tickets
 * that are passed. e: the epoch that lives or that we begin; d: the slots that are held; g: what we get; p: the rows of
 * older epochs go, and what has expired.
 */
enum { G_FENCE, G_SLOT, G_EPOCH, G_PID, G_TOKEN, G_NAMED, G_COLUMNS };
static const char grant_text[] =
    "@WWITH @0"
    "e AS MATERIALIZED (SELECT CASE WHEN h.expires" GT NOW " THEN h.owner ELSE pg_catalog.concat('" SHARED_OWNER "', "
        "pg_catalog.lpad((" TICKET_NOW ")" TEXT ", 16, '0'), ':', $2" TEXT ") END AS epoch, h.fence, "
        "COALESCE(h.passed, 0) AS passed, h.expires FROM @T h WHERE h.name" EQ "$1" TEXT " "
        "AND (h.expires" LE NOW " OR h.owner" MATCHES "'" SHARED_OWNER "%')), "
    "d AS MATERIALIZED (SELECT c.slots, c.place FROM @H c JOIN e ON c.epoch" EQ "e.epoch "
        "WHERE c.name" EQ "$1" TEXT " AND c.slots" GT "0 AND c.expires" GT NOW "), "
    "g AS MATERIALIZED (SELECT e.epoch, e.fence, " NOW PLUS TTL " AS until, "
        "(SELECT pg_catalog.min(i) FROM pg_catalog.generate_series(1, $6" INT ") i "
            "WHERE NOT EXISTS (SELECT 1 FROM d WHERE d.place" EQ "i)) AS slot "
        "FROM e CROSS JOIN (SELECT " DURABLE " AS done OFFSET 0) s WHERE s.done IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM @H c WHERE c.name" EQ "$1" TEXT " AND c.expires" GT NOW " "
            "AND " NOTICES("c", "e.passed", "$5" BIGINT) ") "
        "AND ($6" INT EQ "0 OR ((SELECT pg_catalog.count(*) FROM d)" LT "$6" INT " "
            "AND NOT EXISTS (SELECT 1 FROM d WHERE d.slots" NE "$6" INT "))) @1), "
    "u AS (UPDATE @T l SET (owner, expires, holder, passed) = ROW(g.epoch, GREATEST(l.expires, g.until), " WITH_SLOT("$4", "$6" INT, "g.slot") ", "
        "CASE WHEN $8" BIGINT GT "0 THEN GREATEST(l.passed, $8" BIGINT ") ELSE l.passed END) "
        "FROM g WHERE l.name" EQ "$1" TEXT "), "
    "p AS (DELETE FROM @H c WHERE c.name" EQ "$1" TEXT " AND EXISTS (SELECT 1 FROM g) "
        "AND (c.expires" LE NOW " OR (c.epoch" NE "'' AND c.epoch" NE "(SELECT g.epoch FROM g)))), "
    "i AS (INSERT INTO @H (name, token, epoch, slots, place, expires, holder) "
        "SELECT $1" TEXT ", $2" TEXT ", g.epoch, $6" INT ", COALESCE(g.slot, 0), g.until, $4" TEXT " "
        "FROM g) "
    "SELECT g.fence, g.slot, g.epoch, pg_catalog.pg_backend_pid(), $2" TEXT ", "
        "CASE WHEN g.fence IS NOT NULL AND pg_catalog.pg_backend_pid()" EQ "$7" INT " "
        "THEN pg_catalog.set_config('application_name', '@A', false) END FROM (SELECT 1) x LEFT JOIN g ON true";

/* $4: the epoch. Both the name's row and our own must still be ours. */
static const char renew_text[] =
    "WITH u AS (UPDATE @H c SET expires = n.until FROM (SELECT " DURABLE " AS done, " NOW PLUS TTL " AS until OFFSET 0) n "
        "WHERE n.done IS NOT NULL AND c.name" EQ "$1" TEXT " AND c.token" EQ "$2" TEXT " AND c.epoch" EQ "$4" TEXT " "
        "AND c.expires" GT NOW " AND EXISTS (SELECT 1 FROM @T l WHERE l.name" EQ "$1" TEXT " "
            "AND l.owner" EQ "$4" TEXT " AND l.expires" GT NOW ") RETURNING c.expires), "
    "v AS (UPDATE @T l SET expires = GREATEST(l.expires, u.expires) FROM u WHERE l.name" EQ "$1" TEXT " RETURNING 1) "
    "SELECT (SELECT pg_catalog.count(*) FROM v), o.holder, $2" TEXT " FROM (SELECT 1) x LEFT JOIN @T o "
        "ON o.name" EQ "$1" TEXT " AND o.owner" NE "$4" TEXT " AND o.expires" GT NOW;

/* z: our row; k: the holders that are left. */
static const char release_text[] =
    "WITH z AS (DELETE FROM @H c WHERE (SELECT " DURABLE ") IS NOT NULL "
        "AND c.name" EQ "$1" TEXT " AND c.token" EQ "$2" TEXT " RETURNING c.epoch, c.slots, c.expires" GT NOW " AS live), "
    "k AS (SELECT pg_catalog.count(*) AS n, pg_catalog.count(*) FILTER (WHERE c.slots" GT "0) AS used, "
        "pg_catalog.max(c.expires) AS until, (pg_catalog.array_agg(" WITH_SLOT("c.holder", "c.slots", "c.place") " "
        "ORDER BY c.expires DESC))[1] AS holder FROM @H c JOIN z ON c.epoch" EQ "z.epoch "
        "WHERE c.name" EQ "$1" TEXT " AND c.token" NE "$2" TEXT " AND c.expires" GT NOW "), "
    "y AS (UPDATE @T l SET (expires, owner, holder, freed) = ROW("
        "CASE WHEN k.n" EQ "0 THEN '-infinity'::pg_catalog.timestamptz ELSE k.until END, "
        "CASE WHEN k.n" EQ "0 THEN ''" TEXT " ELSE l.owner END, COALESCE(k.holder, l.holder), "
        "CASE WHEN k.n" EQ "0 OR z.slots" GT "0 THEN " NOW " ELSE l.freed END) FROM z CROSS JOIN k "
        "WHERE l.name" EQ "$1" TEXT " AND l.owner" EQ "z.epoch "
        "RETURNING COALESCE(l.passed, 0) AS passed, k.n" EQ "0 AS whole, k.used, z.slots, z.live), "
    "u AS (SELECT y.passed, y.whole, y.used FROM y WHERE y.whole OR y.slots" GT "0), "
    CALLS
    "SELECT (SELECT pg_catalog.count(*) FROM y WHERE y.live), o.holder, $2" TEXT ", "
        "(SELECT pg_catalog.count(*) FROM c) FROM (SELECT 1) x LEFT JOIN @T o ON o.name" EQ "$1" TEXT " "
        "AND NOT (o.owner" MATCHES "'" SHARED_OWNER "%') AND o.expires" GT NOW;

/* --min-hold: our row stays for $3 more, under another token. It counts as one that is crashed would; whole, used: without it. */
static const char stay_text[] =
    "WITH z AS (UPDATE @H c SET (token, expires) = ROW(pg_catalog.concat('" OVER_OWNER "', c.token), LEAST(c.expires, " NOW PLUS TTL ")) "
        "WHERE (SELECT " DURABLE ") IS NOT NULL AND c.name" EQ "$1" TEXT " AND c.token" EQ "$2" TEXT " "
        "RETURNING c.epoch, c.slots, c.expires, c.expires" GT NOW " AS live), "
    "k AS (SELECT pg_catalog.count(*) AS n, pg_catalog.count(*) FILTER (WHERE c.slots" GT "0) AS used, "
        "pg_catalog.max(c.expires) AS until FROM @H c JOIN z ON c.epoch" EQ "z.epoch "
        "WHERE c.name" EQ "$1" TEXT " AND c.token" NE "$2" TEXT " AND c.expires" GT NOW "), "
    "y AS (UPDATE @T l SET expires = GREATEST(k.until, z.expires) FROM z CROSS JOIN k "
        "WHERE l.name" EQ "$1" TEXT " AND l.owner" EQ "z.epoch RETURNING COALESCE(l.passed, 0) AS passed, "
        "k.n" EQ "0 AS whole, k.used, z.slots, z.live, " MS_UNTIL("z.expires") PLUS "1 AS stays), "
    "u AS (SELECT y.passed, y.whole, y.used, y.stays FROM y WHERE y.whole OR y.slots" GT "0), "
    CALLS_LATER
    "SELECT (SELECT pg_catalog.count(*) FROM y WHERE y.live), o.holder, $2" TEXT ", "
        "(SELECT pg_catalog.count(*) FROM c) FROM (SELECT 1) x LEFT JOIN @T o ON o.name" EQ "$1" TEXT " "
        "AND NOT (o.owner" MATCHES "'" SHARED_OWNER "%') AND o.expires" GT NOW;

static const char sweep_text[] =
    "DELETE FROM @H d WHERE d.token" EQ "ANY (SELECT t.token FROM @H t "
    "WHERE t.expires" LT "(" NOW MINUS "'7 days'" INTERVAL ") LIMIT 20 FOR UPDATE SKIP LOCKED)";

static const char status_text[] =
    "(SELECT 0, c.holder, t.fence, (EXTRACT(epoch FROM c.expires" MINUS NOW ")" MILLISECONDS ", ''" TEXT ", 0, "
        "CASE WHEN c.slots" EQ "0 THEN 's' ELSE pg_catalog.concat('n', c.slots) END, c.place, " IS_OVER("c.token") " "
        "FROM @T t JOIN @H c ON c.name" EQ "t.name AND c.epoch" EQ "t.owner "
        "WHERE t.name" EQ "$1" TEXT " AND t.expires" GT NOW " AND c.expires" GT NOW " ORDER BY c.slots, c.place, c.token) "
    "UNION ALL SELECT 0, t.holder, t.fence, (EXTRACT(epoch FROM t.expires" MINUS NOW ")" MILLISECONDS ", '', 0, 's', 0, 0 "
        "FROM @T t WHERE t.name" EQ "$1" TEXT " AND t.expires" GT NOW " AND NOT EXISTS (SELECT 1 FROM @H c "
        "WHERE c.name" EQ "t.name AND c.epoch" EQ "t.owner AND c.expires" GT NOW ") "
    "UNION ALL " STATUS_WAITERS;

/* $3: for how long it lives. $4: the ticket. What a crash of the server undoes is written again soon. */
static const char notice_text[] =
    "INSERT INTO @H AS n (name, token, epoch, slots, place, expires, holder) "
    "SELECT $1" TEXT ", $2" TEXT ", '', 0, $4" BIGINT ", " NOW PLUS TTL ", '' FROM (SELECT "
        "pg_catalog.set_config('synchronous_commit', 'off', true) AS set OFFSET 0) s WHERE s.set IS NOT NULL "
    "ON CONFLICT (name, token) DO UPDATE SET (place, expires) = ROW(EXCLUDED.place, EXCLUDED.expires) "
    "WHERE n.epoch" EQ "''";
static const char withdraw_text[] =
    "DELETE FROM @H c WHERE c.name" EQ "$1" TEXT " AND c.token" EQ "$2" TEXT " AND c.epoch" EQ "''";
/* clang-format on */

/* ----------------------------------------------------------------- what is sent */

static void shared_kind(const struct dlock_spec *spec, char buf[8])
{
    if (spec->mode == DLOCK_MODE_SLOTS)
        snprintf(buf, 8, "n%u", spec->slots % 10000);
    else
        snprintf(buf, 8, "%s", spec->mode == DLOCK_MODE_SHARED ? "s" : "");
}

/* In front of them, once for each connection: is the second table what we made? */
static void send_checked(struct pg_backend *be, enum pg_tag tag, const struct pg_statement *all,
                         int n)
{
    const struct table_more second = {be->table.holders, holder_columns, "2", be->table.checked};
    table_send_checked(be, tag, &second, all, n);
}

static void shared_send_try(struct pg_backend *be)
{
    char ticket[24], kind[8], slots[12];
    bool look = be->table.tries++ % LOOK_ONE_OF == 0;
    table_trying(be);
    snprintf(ticket, sizeof(ticket), "%" PRId64, be->table.ticket);
    snprintf(slots, sizeof(slots), "%u", be->spec->slots);
    shared_kind(be->spec, kind);
    const struct pg_statement all[] = {
        {look_text, 8,
         (const char *const[]){be->spec->uri->name, be->token, ticket, kind, slots,
                               look ? "1" : "0", be->table.orphan, be->table.name}}};
    send_checked(be, T_TRY, all, 1);
}

/* passed: this many in our way did not take the lock in their turns. */
static void send_grant(struct pg_backend *be, bool passed)
{
    char ttl[32], ticket[24], slots[12], pid[16], behind[24];
    table_trying(be);
    table_lasts(be, ttl, sizeof(ttl));
    snprintf(ticket, sizeof(ticket), "%" PRId64, be->table.ticket);
    snprintf(behind, sizeof(behind), "%" PRId64, passed ? be->table.ticket - 1 : 0);
    snprintf(slots, sizeof(slots), "%u", be->spec->slots);
    snprintf(pid, sizeof(pid), "%d", be->table.in_line ? PQbackendPID(be->conn.pq) : 0);
    pg_describe(be, RECORD_HOLDS);
    const char *const name[] = {be->spec->uri->name};
    const struct pg_statement all[] = {
        {lock_text, 1, name},
        {grant_text, 8,
         (const char *const[]){*name, be->token, ttl, be->holder, ticket, slots, pid, behind}}};
    send_checked(be, T_CONFIRM, all, 2);
}

static void shared_send_renew(struct pg_backend *be)
{
    char ttl[32];
    const char *const name[] = {be->spec->uri->name};
    table_lasts(be, ttl, sizeof(ttl));
    const struct pg_statement all[] = {
        {table_lock_row, 1, name},
        {renew_text, 4, (const char *const[]){*name, be->token, ttl, be->table.epoch}}};
    send_checked(be, T_RENEW, all, 2);
}

static void shared_send_give_back(struct pg_backend *be, enum pg_tag tag, const char *token,
                                  const char *left)
{
    const char *const values[] = {be->spec->uri->name, token, left};
    const struct pg_statement all[] = {{table_lock_row, 1, values},
                                       {left ? stay_text : release_text, left ? 3 : 2, values}};
    send_checked(be, tag, all, 2);
}

static void shared_send_sweep(struct pg_backend *be)
{
    const struct pg_statement all[] = {{sweep_text, 0, NULL}};
    send_checked(be, T_SWEEP, all, 1);
}

static void shared_send_status(struct pg_backend *be)
{
    const char *const values[] = {be->spec->uri->name};
    const struct pg_statement all[] = {{status_text, 1, values}};
    send_checked(be, T_STATUS, all, 1);
}

/* --------------------------------------------------------------- a writer waits */

static int64_t shared_notice_life(const struct pg_backend *be)
{
    return dlock_min(be->spec->ttl, NOTICE_LIFE);
}

static void shared_send_notice(struct pg_backend *be)
{
    char life[32], ticket[24];
    be->table.notice_at = pg_now(be) + shared_notice_life(be) / 4;
    table_seconds(life, sizeof(life), shared_notice_life(be));
    snprintf(ticket, sizeof(ticket), "%" PRId64, be->table.ticket);
    const struct pg_statement all[] = {
        {notice_text, 4,
         (const char *const[]){be->spec->uri->name, be->table.notice, life, ticket}}};
    send_checked(be, T_NOTICE, all, 1);
}

static void shared_withdraw_notice(struct pg_backend *be)
{
    bool given = be->table.notice_at != 0 && be->table.notice_at != DLOCK_NEVER;
    be->table.notice_at = 0;
    if (!given)
        return;
    const struct pg_statement all[] = {
        {withdraw_text, 2, (const char *const[]){be->spec->uri->name, be->table.notice}}};
    send_checked(be, T_NOTICE, all, 1);
}

/* --------------------------------------------------------------------- acquire */

/* TURN, in ms. */
static int64_t turn(int64_t ahead)
{
    return ahead * LONGEST_TURN / DLOCK_MSEC * 2 / (ahead * 2 + 5);
}

static int64_t number(const struct pg_reply *r, int column)
{
    return pg_number(r->rows, 0, column);
}

/* How many that wait are in our way, with so many slots free. */
static int64_t in_our_way(const struct pg_backend *be, const struct pg_reply *r, int64_t room)
{
    int64_t slots = be->spec->slots > 0 ? dlock_max(0, number(r, L_SLOTS) + 1 - room) : 0;
    return number(r, L_WRITERS) + slots;
}

/* The lock is free: our turn may come later. */
static void judge_free(const struct pg_backend *be, const struct pg_reply *r,
                       struct table_refusal *why)
{
    why->turn_ms = turn(in_our_way(be, r, be->spec->slots)) - pg_ms(r->rows, 0, L_FREE);
}

/* It is shared: is there room for one more of our kind? */
static void judge_shared(const struct pg_backend *be, const struct pg_reply *r,
                         struct table_refusal *why)
{
    int64_t room = (int64_t)be->spec->slots - number(r, L_USED);
    why->held = true;
    if (number(r, L_WRITERS) > 0 && number(r, L_YOUNG)) {
        why->left_ms = LONGEST_TURN / DLOCK_MSEC;
    } else if (be->spec->slots == 0) {
        why->held = false;
    } else if (room <= 0) {
        why->left_ms = pg_ms(r->rows, 0, L_SLOT_LEFT);
        why->turn_ms = turn(number(r, L_SLOTS));
    } else {
        why->held = false;
        why->turn_ms =
            turn(dlock_max(0, number(r, L_SLOTS) + 1 - room)) - pg_ms(r->rows, 0, L_SLOT_FREE);
    }
}

/* When may we have it? Now: not held, and no turn to wait for. */
static void judge(struct pg_backend *be, const struct pg_reply *r, struct table_refusal *why)
{
    enum state state = (enum state)number(r, L_STATE);
    *why = (struct table_refusal){
        .owner = number(r, L_ORPHAN) > 0 ? be->table.orphan : pg_text(r->rows, 0, L_OWNER),
        .direct = number(r, L_PID) == PQbackendPID(be->conn.pq),
        .ticket = number(r, L_TICKET),
        .ahead = PQgetisnull(r->rows, 0, L_AHEAD) ? -1 : number(r, L_AHEAD),
    };
    if (state != FREE) {
        table_read_holder(&be->info, pg_text(r->rows, 0, L_HOLDER), pg_ms(r->rows, 0, L_LEFT),
                          number(r, L_FENCE));
        if (state == SHARED && be->info.mode == DLOCK_MODE_EXCLUSIVE)
            be->info.mode = DLOCK_MODE_SHARED;
        why->info = &be->info;
    }
    if (state == EXCLUSIVE) {
        why->held = true;
        why->left_ms = pg_ms(r->rows, 0, L_LEFT);
        why->turn_ms = turn(in_our_way(be, r, be->spec->slots));
    } else if (pg_ms(r->rows, 0, L_BARRED) > 0) {
        why->held = true;
        why->left_ms = pg_ms(r->rows, 0, L_BARRED);
    } else if (state == FREE) {
        judge_free(be, r, why);
    } else {
        judge_shared(be, r, why);
    }
}

/* The number of slots that others hold or wait for, if it is not ours; else 0. */
static unsigned other_number(const struct pg_backend *be, const struct pg_reply *r)
{
    if (be->spec->slots == 0)
        return 0;
    if (number(r, L_OTHER) > 0)
        return (unsigned)number(r, L_OTHER);
    return table_slots_of(pg_text(r->rows, 0, L_OTHER_KIND));
}

static void looked(struct pg_backend *be, const struct pg_reply *r)
{
    struct table_refusal why;
    struct dlock_error err;
    unsigned other = other_number(be, r);
    int64_t room = be->spec->slots;
    be->table.try = TRY_NONE;
    judge(be, r, &why);
    if (other > 0) {
        other_slots(&err, be->spec, other);
        pg_fail(be, &err);
    } else if (why.held || why.turn_ms > 0) {
        table_refused(be, &why);
    } else if (number(r, L_GRACE) > 0) {
        pg_in_grace(be, number(r, L_GRACE));
    } else {
        be->table.ticket = why.ticket;
        send_grant(be, in_our_way(be, r, room - number(r, L_USED)) > 0);
    }
}

static void grant_answered(struct pg_backend *be, const struct pg_reply *r)
{
    if (PQgetisnull(r->rows, 0, G_FENCE)) { /* another client was faster */
        be->table.try = TRY_NONE;
        be->acquire.try_at = pg_now(be) + DLOCK_MSEC;
        return;
    }
    be->fence = (uint64_t)number(r, G_FENCE);
    be->slot = (int)number(r, G_SLOT);
    snprintf(be->table.epoch, sizeof(be->table.epoch), "%s", pg_text(r->rows, 0, G_EPOCH));
    table_granted(be, r->sent);
}

static void shared_answered(struct pg_backend *be, const struct pg_reply *r)
{
    bool look = r->tag == T_TRY;
    if (r->sqlstate[0])
        table_try_failed(be, r);
    else if (!table_try_is_ours(be, r, look ? L_COLUMNS : G_COLUMNS, look ? L_PID : G_PID,
                                look ? L_TOKEN : G_TOKEN))
        return;
    else if (look)
        looked(be, r);
    else
        grant_answered(be, r);
}

const struct table_shared pg_table_shared = {
    .schema = shared_schema,
    .send_try = shared_send_try,
    .send_renew = shared_send_renew,
    .send_give_back = shared_send_give_back,
    .send_sweep = shared_send_sweep,
    .send_status = shared_send_status,
    .answered = shared_answered,
    .kind = shared_kind,
    .notice_life = shared_notice_life,
    .send_notice = shared_send_notice,
    .withdraw_notice = shared_withdraw_notice,
};
