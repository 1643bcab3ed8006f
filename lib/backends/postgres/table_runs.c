/*
 * table_runs.c - the run records of --once in the lease table.
 *
 * A third table, whose name is the first one's and "_runs", has the last run of each name:
 *
 *   name text primary key | state text: running, failed, succeeded | status int: NULL unknown
 *   | fence bigint | owner text: the token of the hold | host, pid, username, command, note
 *   | began, ended timestamptz | expires timestamptz: how long the record is kept
 *
 * The record is read in a statement behind the try, in the same message and transaction. In a
 * single statement with the try, 20 of 20 runners missed the success of the runner before. Likewise
 * a release locks the row in a separate statement: a repeated release, after a lost answer, then
 * sees the writes of the first. (Where the role's default is a stricter isolation level, the first
 * statement fails if the row was changed meanwhile, and all is tried again.)
 *
 * A runner that finds a success gives the lock back in the same statement, and calls the next in
 * line. Any other runner writes the state running: a store that cannot take the record undoes the
 * grant. In a set a later renewal writes the state. The end is written by the releasing statement,
 * and only if the lock was still ours: then no further client can have begun a run.
 */
#include "postgres_sql.h"
#include "run_record.h"
#include "table.h"

#include <stdio.h>
#include <string.h>

/* The columns of the fragment record, V_..., come last in the statements begin and status. */
enum {
    V_STATE,
    V_STATUS,
    V_FENCE,
    V_OWNER,
    V_HOST,
    V_PID,
    V_USER,
    V_COMMAND,
    V_NOTE,
    V_BEGAN,
    V_ENDED,
    V_AGE,
    V_KEPT,
    V_COLUMNS
};
enum {
    B_PID,
    B_TOKEN,
    B_FENCE,
    B_WHAT,
    B_BEGAN,
    B_CALLED,
    B_RECORD,
    B_COLUMNS = B_RECORD + V_COLUMNS
};
enum { WHAT_RUN, WHAT_AHEAD, WHAT_SKIP, WHAT_FOREIGN };
enum { E_WRITTEN = U_RELEASE_COLUMNS, E_ENDED };
enum { Q_VALID, Q_RECORD };
enum { F_FORGOTTEN, F_OTHER, F_VALID, F_COLUMNS }; /* only the first is needed */

/* ----------------------------------------------------------------- what is sent */

void runs_send_release(struct pg_backend *be)
{
    struct dlock_run end;
    run_record_end(be->spec, &end);
    /* A connection that is silent may hide a server that is back. */
    be->op_until = pg_now(be) + pg_patience(be);
    table_send(be, T_RELEASE, AND_RUNS,
               PLACES({"stays", NULL, table_stays_ms(be)},
                      {"state", run_record_state(end.state), 0}, {"status", NULL, end.status},
                      {"began", NULL, be->run.begin_ms}),
               STATEMENTS(sql_table_lock_row, sql_table_runs_end));
}

void runs_send_forget(struct pg_backend *be)
{
    table_send(be, T_FORGET, AND_RUNS, PLACES({"token", be->order->run->token, 0}),
               STATEMENTS(sql_table_lock_row, sql_table_runs_forget));
}

/* --------------------------------------------------------------------- answers */

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
        .age_ns = run_record_age(pg_number(rows, 0, at + V_AGE)),
        .kept_ns = dlock_max(0, run_record_age(pg_number(rows, 0, at + V_KEPT))),
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

bool runs_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (!r->rows || PQnfields(r->rows) != B_COLUMNS)
        return false;
    if (!table_try_is_ours(be, r, B_COLUMNS, B_PID, B_TOKEN))
        return true;
    be->fence = (uint64_t)pg_number(r->rows, 0, B_FENCE);
    int64_t what = pg_number(r->rows, 0, B_WHAT), began = pg_number(r->rows, 0, B_BEGAN);
    if (what == WHAT_AHEAD) {
        read_record(&be->run, r->rows, B_RECORD);
        if (run_record_ahead(&be->run, be->spec, &err))
            events_add(&be->events, EV_NOTICE)->error = err;
    }
    be->run.begin_ms = began;
    if (what < WHAT_SKIP) {
        table_granted(be, r->sent);
        return true;
    }
    be->table.try = TRY_NONE;
    shared_withdraw_notice(be);
    if (what == WHAT_SKIP) {
        read_record(&be->run, r->rows, B_RECORD);
        pg_skipped(be);
    } else {
        foreign(be, &err);
        pg_fail(be, &err);
    }
    return true;
}

bool runs_begun(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (!pg_one_row(r, B_COLUMNS) || strcmp(pg_text(r->rows, 0, B_TOKEN), be->token) != 0)
        return false;
    be->run.begin_ms = pg_number(r->rows, 0, B_BEGAN);
    if (pg_number(r->rows, 0, B_WHAT) < WHAT_SKIP) {
        pg_renewed(be, r->sent, NULL);
    } else {
        foreign(be, &err);
        pg_unclear(be, &err);
    }
    return true;
}

enum table_end runs_ended(const struct pg_backend *be, const struct pg_reply *r,
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

int runs_read_status(struct pg_backend *be, const struct pg_reply *r, struct dlock_error *err)
{
    if (!r->rows || PQntuples(r->rows) == 0)
        return 0;
    if (pg_number(r->rows, 0, Q_VALID) != 1)
        return foreign(be, err);
    read_record(&be->run, r->rows, Q_RECORD);
    return 1;
}

void runs_forgotten(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    bool no_table = strcmp(r->sqlstate, "42P01") == 0; /* the record has gone with it */
    if (!no_table && (!pg_one_row(r, F_COLUMNS) || pg_unconfirmed(r))) {
        pg_conn_reply_error(&be->conn, r, &err);
        pg_fail(be, &err);
        return;
    }
    pg_stepped(be, !no_table && pg_number(r->rows, 0, F_FORGOTTEN) == 1);
}
