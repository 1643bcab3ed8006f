/*
 * table_runs.c - the run records of --once in the lease table.
 *
 * A third table, whose name is the first one's and "_runs", has the last run of each name:
 *
 *   name text primary key | state text: running, failed, succeeded | status int: NULL unknown | fence bigint | owner text:
 *   the token of the hold | host, pid, username, command, note | began, ended timestamptz | expires timestamptz: how long
 *   the record is kept
 *
 * The record is read in a statement behind the one that is granted the lock, in the same message and so in the same
 * transaction. In the same statement it would be read as it was before that statement waited for the row: 20 of 20 runners
 * missed the success of the one that they had waited for. For the same reason a release locks the row in a statement of
 * its own: one that comes again, its first answer lost, then sees what the first one wrote. (Where the role's default is a
 * stricter isolation level, the first statement fails if the row was changed meanwhile, and all is tried again.)
 *
 * Who finds a success gives the lock back in that statement, and calls the next in line. All others write that they run:
 * a store that cannot take it undoes the grant. The end is written by the statement that releases, only if the lock was
 * still ours: then nobody else can have begun a run.
 */
#include "run_record.h"
#include "table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ statements */

/* @R: the third table. */
static const char runs_schema[] =
    "CREATE TABLE IF NOT EXISTS @R (name pg_catalog.text COLLATE pg_catalog.\"C\" PRIMARY KEY, "
    "state pg_catalog.text NOT NULL, status pg_catalog.int4, fence pg_catalog.int8 NOT NULL, "
    "owner pg_catalog.text NOT NULL, host pg_catalog.text NOT NULL, pid pg_catalog.int8 NOT NULL, "
    "username pg_catalog.text NOT NULL, command pg_catalog.text NOT NULL, "
    "note pg_catalog.text NOT NULL, began pg_catalog.timestamptz NOT NULL, "
    "ended pg_catalog.timestamptz, expires pg_catalog.timestamptz NOT NULL, "
    "UNIQUE (expires, name))";
static const char run_columns[] =
    "began 1184 0 t,command 25 100 t,ended 1184 0 f,expires 1184 0 t,fence 20 0 t,host 25 100 t,"
    "name 25 950 t,note 25 100 t,owner 25 100 t,pid 20 0 t,state 25 100 t,status 23 0 f,"
    "username 25 100 t";

#define COLUMNS                                                                                    \
    "(name, state, status, fence, owner, host, pid, username, command, note, began, ended, expires)"

/* clang-format off */
/* Did a dlock write the row r? Only then it is sent, so that no size and no character of it can do harm. */
#define VALID                                                                                      \
    "((r.state" EQ "'running' AND r.ended IS NULL) OR ((r.state" EQ "'failed' OR r.state" EQ "'succeeded') " \
        "AND pg_catalog.isfinite(r.ended))) IS TRUE AND COALESCE(r.status, 0)" GE "0 AND COALESCE(r.status, 0)" LE "255 " \
    "AND r.fence" GE "0 AND r.pid" GE "0 AND r.owner OPERATOR(pg_catalog.~) '^[0-9a-f]{32}$' "     \
    "AND pg_catalog.isfinite(r.began) AND r.began" GT "'epoch'::pg_catalog.timestamptz AND pg_catalog.isfinite(r.expires) " \
    "AND pg_catalog.octet_length(r.host)" LT "256 AND pg_catalog.octet_length(r.username)" LT "64 " \
    "AND pg_catalog.octet_length(r.command)" LT "256 AND pg_catalog.octet_length(r.note)" LT "256 " \
    "AND (pg_catalog.concat(r.host, r.username, r.command, r.note)" AS_CODES " OPERATOR(pg_catalog.!~) '[[:cntrl:]]')"

/* The columns of a record: V_... behind those of the statement. */
enum { V_STATE, V_STATUS, V_FENCE, V_OWNER, V_HOST, V_PID, V_USER, V_COMMAND, V_NOTE, V_BEGAN, V_ENDED, V_AGE, V_KEPT, V_COLUMNS };
#define UNIX_MS(x) "(EXTRACT(epoch FROM " x ")" MILLISECONDS
#define RECORD                                                                                     \
    "r.state, r.status, r.fence, r.owner, r.host, r.pid, r.username, r.command, r.note, "          \
    UNIX_MS("r.began") ", " UNIX_MS("r.ended") ", "                                                \
    UNIX_MS(NOW MINUS "COALESCE(r.ended, r.began)") ", " UNIX_MS("r.expires" MINUS "COALESCE(r.ended, r.began)")

/*
 * Behind the try: if that was granted (g). $3: --once, in seconds: how long a success counts, and how long our record is
 * kept. $4 to $8: who we are. k: the record that is there; s: what comes of it; n: the new one.
 */
enum { B_PID, B_TOKEN, B_FENCE, B_WHAT, B_BEGAN, B_CALLED, B_RECORD, B_COLUMNS = B_RECORD + V_COLUMNS };
enum { WHAT_RUN, WHAT_SKIP, WHAT_FOREIGN };
static const char begin_text[] =
    "WITH g AS MATERIALIZED (SELECT l.fence, " NOW " AS began FROM @T l WHERE l.name" EQ "$1" TEXT " AND l.owner" EQ "$2" TEXT "), "
    "k AS MATERIALIZED (SELECT " VALID " AS valid, (r.state" EQ "'succeeded' AND r.ended" GT "(" NOW MINUS TTL ")) AS done "
        "FROM @R r WHERE r.name" EQ "$1" TEXT " AND EXISTS (SELECT 1 FROM g)), "
    "s AS MATERIALIZED (SELECT g.fence, g.began, CASE WHEN NOT k.valid THEN 2 WHEN k.done THEN 1 ELSE 0 END AS what "
        "FROM g LEFT JOIN k ON true), "
    "u AS (UPDATE @T l SET (expires, owner, freed) = ROW('-infinity'::pg_catalog.timestamptz, ''" TEXT ", " NOW ") "
        "FROM s WHERE s.what" GT "0 AND l.name" EQ "$1" TEXT " AND l.owner" EQ "$2" TEXT " "
        "RETURNING COALESCE(l.passed, 0) AS passed, true AS whole, 0 AS used), "
    CALLS_OTHERS ", "
    "n AS (INSERT INTO @R AS o " COLUMNS " SELECT $1" TEXT ", 'running', NULL" INT ", s.fence, $2" TEXT ", $4" TEXT ", $5" BIGINT ", "
        "$6" TEXT ", $7" TEXT ", $8" TEXT ", s.began, NULL::pg_catalog.timestamptz, s.began" PLUS TTL " FROM s WHERE s.what" EQ "0 "
        "ON CONFLICT (name) DO UPDATE SET (state, status, fence, owner, host, pid, username, command, note, began, ended, expires) = "
        "ROW(EXCLUDED.state, EXCLUDED.status, EXCLUDED.fence, EXCLUDED.owner, EXCLUDED.host, EXCLUDED.pid, "
        "EXCLUDED.username, EXCLUDED.command, EXCLUDED.note, EXCLUDED.began, EXCLUDED.ended, EXCLUDED.expires)) "
    "SELECT pg_catalog.pg_backend_pid(), $2" TEXT ", s.fence, s.what, " UNIX_MS("s.began") ", "
        "(SELECT pg_catalog.count(*) FROM c), " RECORD " FROM s LEFT JOIN @R r ON s.what" EQ "1 AND r.name" EQ "$1" TEXT;

/*
 * $3: for how long the lock stays held, 0: not. $4: the state. $5: the status, -1: unknown. $6 to $10: who we are. $11: when
 * we began. $12: for how long the record is kept. It is made anew if a person has removed it; another one's stays.
 */
enum { E_WRITTEN = U_RELEASE_COLUMNS, E_ENDED, E_COLUMNS };
static const char end_text[] =
    "WITH u AS (UPDATE @T l SET (expires, owner, freed) = ROW("
        "CASE WHEN $3::pg_catalog.float8" GT "0 THEN LEAST(l.expires, " NOW PLUS TTL ") ELSE '-infinity'::pg_catalog.timestamptz END, "
        "CASE WHEN $3::pg_catalog.float8" GT "0 THEN pg_catalog.concat('" OVER_OWNER "', l.owner) ELSE ''" TEXT " END, "
        "CASE WHEN $3::pg_catalog.float8" GT "0 THEN l.freed ELSE " NOW " END) " OUR_ROW
        "RETURNING COALESCE(l.passed, 0) AS passed, true AS whole, 0 AS used, l.fence, "
        "CASE WHEN $3::pg_catalog.float8" GT "0 THEN " MS_UNTIL("l.expires") PLUS "1 ELSE 0 END AS stays), "
    CALLS_LATER ", "
    "n AS (INSERT INTO @R AS o " COLUMNS " SELECT $1" TEXT ", $4" TEXT ", CASE WHEN $5" INT GE "0 THEN $5" INT " END, u.fence, "
        "$2" TEXT ", $6" TEXT ", $7" BIGINT ", $8" TEXT ", $9" TEXT ", $10" TEXT ", "
        "pg_catalog.to_timestamp($11::pg_catalog.float8), i.ended, i.ended" PLUS "pg_catalog.make_interval(secs => $12::pg_catalog.float8) "
        "FROM u CROSS JOIN (SELECT " NOW " AS ended OFFSET 0) i "
        "ON CONFLICT (name) DO UPDATE SET (state, status, ended, expires) = "
        "ROW(EXCLUDED.state, EXCLUDED.status, EXCLUDED.ended, EXCLUDED.expires) WHERE o.owner" EQ "$2" TEXT " RETURNING 1) "
    "SELECT (SELECT pg_catalog.count(*) FROM u), o.holder, $2" TEXT ", (SELECT pg_catalog.count(*) FROM c), "
        "(SELECT pg_catalog.count(*) FROM n), (SELECT pg_catalog.count(*) FROM @R e WHERE e.name" EQ "$1" TEXT " "
        "AND e.owner" EQ "$2" TEXT " AND e.state" NE "'running') " OTHERS_ROW;

/*
 * Records whose time is over, and with them the rows of their locks, since no run may ever come again under a name with a
 * date. statement_timestamp() can be looked up in an index. None waits for another: a row that is in use is left.
 */
static const char sweep_text[] =
    "WITH d AS (DELETE FROM @R r WHERE r.name" EQ "ANY (SELECT e.name FROM @R e "
        "WHERE e.expires" LT "pg_catalog.statement_timestamp() ORDER BY e.expires LIMIT 20 FOR UPDATE SKIP LOCKED) RETURNING r.name) "
    "DELETE FROM @T l WHERE l.name" EQ "ANY (SELECT t.name FROM @T t WHERE t.name" EQ "ANY (SELECT d.name FROM d) "
        "AND t.expires" LE NOW " AND t.fence" LT LONG_UNUSED " FOR UPDATE SKIP LOCKED)";

/* v: there is a record; it is sent if it is one. */
enum { Q_VALID, Q_RECORD };
static const char status_text[] =
    "SELECT CASE WHEN v.valid THEN 1 ELSE 0 END, " RECORD " FROM (SELECT " VALID " AS valid FROM @R r WHERE r.name" EQ "$1" TEXT ") v "
    "LEFT JOIN @R r ON v.valid AND r.name" EQ "$1" TEXT;

/* $2: the token of the record. */
enum { F_FORGOTTEN, F_OTHER, F_VALID, F_COLUMNS };
static const char forget_text[] =
    "WITH d AS (DELETE FROM @R r WHERE r.name" EQ "$1" TEXT " AND r.owner" EQ "$2" TEXT " AND NOT (r.state" EQ "'running' "
        "AND EXISTS (SELECT 1 FROM @T l WHERE l.name" EQ "$1" TEXT " AND l.owner" EQ "$2" TEXT " AND l.expires" GT NOW ")) RETURNING 1) "
    "SELECT (SELECT pg_catalog.count(*) FROM d), CASE WHEN r.owner" NE "$2" TEXT " THEN 1 WHEN r.owner" EQ "$2" TEXT " THEN 0 END, "
        "CASE WHEN " VALID " THEN 1 ELSE 0 END "
    "FROM (SELECT 1) x LEFT JOIN @R r ON r.name" EQ "$1" TEXT;
/* clang-format on */

/* ----------------------------------------------------------------- what is sent */

/* In front of them, once for each connection: is the third table what we made? */
static void send_checked(struct pg_backend *be, enum pg_tag tag, const struct pg_statement *all,
                         int n)
{
    const struct table_more third = {be->table.runs, run_columns, "3", be->table.runs_checked};
    table_send_checked(be, tag, &third, all, n);
}

static void runs_send_try(struct pg_backend *be, const struct pg_statement *try)
{
    char once[32], pid[24];
    const struct dlock_identity *who = be->spec->identity;
    table_seconds(once, sizeof(once), be->spec->once);
    snprintf(pid, sizeof(pid), "%ld", who->pid);
    const struct pg_statement all[] = {
        *try,
        {begin_text, 8,
         (const char *const[]){be->spec->uri->name, be->token, once, who->host, pid, who->user,
                               who->command, who->note}}};
    send_checked(be, T_TRY, all, 2);
}

static void runs_send_release(struct pg_backend *be)
{
    char left[32], status[12], pid[24], began[32], once[32];
    const struct dlock_identity *who = be->spec->identity;
    struct dlock_run end;
    run_record_end(be->spec, &end);
    table_stays(be, left, sizeof(left));
    table_seconds(once, sizeof(once), be->spec->once);
    table_seconds(began, sizeof(began), be->run.begin_ms * DLOCK_MSEC);
    snprintf(status, sizeof(status), "%d", end.status);
    snprintf(pid, sizeof(pid), "%ld", who->pid);
    const char *const name[] = {be->spec->uri->name};
    const struct pg_statement all[] = {
        {table_lock_row, 1, name},
        {end_text, 12,
         (const char *const[]){*name, be->token, left, run_record_state(end.state), status,
                               who->host, pid, who->user, who->command, who->note, began, once}}};
    /* A connection that is silent may hide a server that is back. */
    be->op_until = pg_now(be) + pg_patience(be);
    send_checked(be, T_RELEASE, all, 2);
}

static void runs_send_sweep(struct pg_backend *be)
{
    const struct pg_statement all[] = {{sweep_text, 0, NULL}};
    send_checked(be, T_SWEEP, all, 1);
}

static void runs_send_status(struct pg_backend *be)
{
    const struct pg_statement all[] = {
        {status_text, 1, (const char *const[]){be->spec->uri->name}}};
    send_checked(be, T_STATUS, all, 1);
}

static void runs_send_forget(struct pg_backend *be)
{
    const char *const values[] = {be->spec->uri->name, be->forget};
    const struct pg_statement all[] = {{table_lock_row, 1, values}, {forget_text, 2, values}};
    send_checked(be, T_FORGET, all, 2);
}

/* --------------------------------------------------------------------- answers */

static int64_t ns_of(int64_t ms)
{
    return dlock_min(dlock_max(0, ms), INT64_MAX / DLOCK_MSEC) * DLOCK_MSEC;
}

static void copy(char *dst, size_t size, const PGresult *rows, int column)
{
    const char *text = pg_text(rows, 0, column);
    dlock_clean_text(dst, size, text, strlen(text));
}

/* The record in a row, VALID, from this column on. */
static void read_record(struct dlock_run *run, const PGresult *rows, int at)
{
    *run = (struct dlock_run){
        .state = DLOCK_RUN_SUCCEEDED,
        .status = PQgetisnull(rows, 0, at + V_STATUS) ? -1 : (int)pg_number(rows, 0, at + V_STATUS),
        .begin_ms = pg_number(rows, 0, at + V_BEGAN),
        .end_ms = pg_number(rows, 0, at + V_ENDED),
        /* A clock that was set back must not let a success be repeated. */
        .age_ns = ns_of(pg_number(rows, 0, at + V_AGE)),
        .kept_ns = ns_of(pg_number(rows, 0, at + V_KEPT)),
        .fence = (uint64_t)pg_number(rows, 0, at + V_FENCE),
        .pid = (long)pg_number(rows, 0, at + V_PID),
    };
    while (run->state > DLOCK_RUN_RUNNING &&
           strcmp(pg_text(rows, 0, at + V_STATE), run_record_state(run->state)) != 0)
        run->state--;
    copy(run->token, sizeof(run->token), rows, at + V_OWNER);
    copy(run->host, sizeof(run->host), rows, at + V_HOST);
    copy(run->user, sizeof(run->user), rows, at + V_USER);
    copy(run->command, sizeof(run->command), rows, at + V_COMMAND);
    copy(run->note, sizeof(run->note), rows, at + V_NOTE);
}

static int foreign(const struct pg_backend *be, struct dlock_error *err)
{
    char what[200];
    snprintf(what, sizeof(what), "a row of %.150s", be->table.runs);
    return run_record_foreign(err, be->spec, what);
}

static bool runs_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (!r->rows || PQnfields(r->rows) != B_COLUMNS)
        return false;
    if (!table_try_is_ours(be, r, B_COLUMNS, B_PID, B_TOKEN))
        return true;
    be->fence = (uint64_t)pg_number(r->rows, 0, B_FENCE);
    be->run.begin_ms = pg_number(r->rows, 0, B_BEGAN);
    if (pg_number(r->rows, 0, B_WHAT) == WHAT_RUN) {
        table_granted(be, r->sent);
        return true;
    }
    be->table.try = TRY_NONE;
    be->table.shared->withdraw_notice(be);
    if (pg_number(r->rows, 0, B_WHAT) == WHAT_SKIP) {
        read_record(&be->run, r->rows, B_RECORD);
        pg_skipped(be);
    } else {
        foreign(be, &err);
        pg_fail(be, &err);
    }
    return true;
}

/* As runs_send_release() has left it: what does the store have of our run's end? */
static enum table_end runs_ended(const struct pg_backend *be, const struct pg_reply *r,
                                 struct dlock_error *err)
{
    bool ours = pg_number(r->rows, 0, U_OURS) == 1, success = be->spec->hold->success;
    if (ours ? pg_number(r->rows, 0, E_WRITTEN) == 1 : pg_number(r->rows, 0, E_ENDED) == 1)
        return END_RECORDED;
    if (!ours && (be->table.release != RELEASE_UNHEARD || !success))
        return END_UNKNOWN;
    dlock_fail_at(err, DLOCK_ELOST, 0, pg_where(be), "another client has changed the run record");
    return END_NOT_RECORDED;
}

static int runs_read_status(struct pg_backend *be, const struct pg_reply *r,
                            struct dlock_error *err)
{
    if (!r->rows || PQntuples(r->rows) == 0)
        return 0;
    if (pg_number(r->rows, 0, Q_VALID) != 1)
        return foreign(be, err);
    read_record(&be->run, r->rows, Q_RECORD);
    return 1;
}

static void runs_forgotten(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (r->sqlstate[0] || !pg_one_row(r, F_COLUMNS)) {
        pg_conn_reply_error(&be->conn, r, &err);
        pg_fail(be, &err);
    } else if (pg_number(r->rows, 0, F_FORGOTTEN) == 1 || PQgetisnull(r->rows, 0, F_OTHER)) {
        pg_op_done(be);
        events_add(&be->events, EV_DONE);
        pg_conn_close(&be->conn);
    } else if (pg_number(r->rows, 0, F_VALID) != 1) {
        foreign(be, &err);
        pg_fail(be, &err);
    } else if (pg_number(r->rows, 0, F_OTHER) == 0) {
        pg_busy(be, NULL);
    } else {
        dlock_fail_lock(&err, DLOCK_EBUSY, 0, be->spec->uri,
                        "the record has changed: another run has begun since");
        pg_fail(be, &err);
    }
}

const struct table_runs pg_table_runs = {
    .schema = runs_schema,
    .end_columns = E_COLUMNS,
    .send_try = runs_send_try,
    .answered = runs_answered,
    .send_release = runs_send_release,
    .ended = runs_ended,
    .send_sweep = runs_send_sweep,
    .send_status = runs_send_status,
    .read_status = runs_read_status,
    .send_forget = runs_send_forget,
    .forgotten = runs_forgotten,
};
