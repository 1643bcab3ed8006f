/*
 * runs.c - the run records of --once in the lease table.
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
#include "run_record.h"
#include "table.h"

#include <stdio.h>
#include <string.h>

/* Of the fragment record, of the statement begin, and of status. */
#define RECORD_COLUMNS                                                                             \
    "state status run_fence owner host run_pid username command note run_began_ms run_ended_ms "   \
    "age_ms kept_ms"
#define BEGIN_COLUMNS "pid token fence outcome began_ms " RECORD_COLUMNS
#define STATUS_COLUMNS "valid " RECORD_COLUMNS

/* The outcome of the statement begin. */
enum { OUTCOME_RUN, OUTCOME_AHEAD, OUTCOME_SKIP, OUTCOME_FOREIGN };

/* ----------------------------------------------------------------- what is sent */

void runs_send_release(struct sql_store *be)
{
    struct dlock_run end;
    run_record_end(be->spec, &end);
    /* A connection that is silent may hide a server that is back. */
    be->op_until = sql_now(be) + sql_patience(be);
    table_send(be, T_RELEASE, AND_RUNS,
               PLACES({"stays", NULL, table_stays_ms(be)},
                      {"state", run_record_state(end.state), 0}, {"status", NULL, end.status},
                      {"began", NULL, be->run.begin_ms}),
               STATEMENTS(be->sql->lock_row, be->sql->runs_end));
}

void runs_send_forget(struct sql_store *be)
{
    table_send(be, T_FORGET, AND_RUNS, PLACES({"token", be->order->run->token, 0}),
               STATEMENTS(be->sql->lock_row, be->sql->runs_forget));
}

/* --------------------------------------------------------------------- answers */

static void copy(char *dst, size_t size, const struct sql_rows *rows, const char *column)
{
    const char *text = sql_text(rows, 0, column);
    dlock_clean_text(dst, size, text, strlen(text));
}

/* The record in a row, which the fragment valid has let through. */
static void read_record(struct dlock_run *run, const struct sql_rows *rows)
{
    *run = (struct dlock_run){
        .state = DLOCK_RUN_SUCCEEDED,
        .status = sql_null(rows, 0, "status") ? -1 : (int)sql_number(rows, 0, "status"),
        .begin_ms = sql_number(rows, 0, "run_began_ms"),
        .end_ms = sql_number(rows, 0, "run_ended_ms"),
        .age_ns = run_record_age(sql_number(rows, 0, "age_ms")),
        .kept_ns = dlock_max(0, run_record_age(sql_number(rows, 0, "kept_ms"))),
        .fence = (uint64_t)sql_number(rows, 0, "run_fence"),
        .pid = (long)sql_number(rows, 0, "run_pid"),
    };
    while (run->state > DLOCK_RUN_RUNNING &&
           strcmp(sql_text(rows, 0, "state"), run_record_state(run->state)) != 0)
        run->state--;
    copy(run->token, sizeof(run->token), rows, "owner");
    copy(run->host, sizeof(run->host), rows, "host");
    copy(run->user, sizeof(run->user), rows, "username");
    copy(run->command, sizeof(run->command), rows, "command");
    copy(run->note, sizeof(run->note), rows, "note");
}

static int foreign(const struct sql_store *be, struct dlock_error *err)
{
    char what[200];
    snprintf(what, sizeof(what), "a row of %.150s", be->table.runs);
    return run_record_foreign(err, be->spec, what);
}

bool runs_answered(struct sql_store *be, const struct sql_reply *r)
{
    struct dlock_error err;
    if (!r->rows || !sql_has(r->rows, "outcome"))
        return false;
    if (!table_try_is_ours(be, r, BEGIN_COLUMNS))
        return true;
    be->fence = (uint64_t)sql_number(r->rows, 0, "fence");
    int64_t outcome = sql_number(r->rows, 0, "outcome"), began = sql_number(r->rows, 0, "began_ms");
    if (outcome == OUTCOME_AHEAD) {
        read_record(&be->run, r->rows);
        if (run_record_ahead(&be->run, be->spec, &err))
            events_add(&be->events, EV_NOTICE)->error = err;
    }
    be->run.begin_ms = began;
    if (outcome < OUTCOME_SKIP) {
        table_granted(be, r);
        return true;
    }
    be->table.try = TRY_NONE;
    shared_withdraw_notice(be);
    if (outcome == OUTCOME_SKIP) {
        read_record(&be->run, r->rows);
        sql_skipped(be);
    } else {
        foreign(be, &err);
        sql_fail(be, &err);
    }
    return true;
}

bool runs_begun(struct sql_store *be, const struct sql_reply *r)
{
    struct dlock_error err;
    if (!sql_one_row(r, BEGIN_COLUMNS) || strcmp(sql_text(r->rows, 0, "token"), be->token) != 0)
        return false;
    be->run.begin_ms = sql_number(r->rows, 0, "began_ms");
    if (sql_number(r->rows, 0, "outcome") < OUTCOME_SKIP) {
        sql_renewed(be, r->sent, NULL);
    } else {
        foreign(be, &err);
        sql_unclear(be, &err);
    }
    return true;
}

enum table_end runs_ended(const struct sql_store *be, const struct sql_reply *r,
                          struct dlock_error *err)
{
    bool ours = sql_number(r->rows, 0, "released") == 1, success = be->spec->hold->success;
    if (ours ? sql_number(r->rows, 0, "written") == 1 : sql_number(r->rows, 0, "ended") == 1)
        return END_RECORDED;
    if (!ours && (be->table.release != RELEASE_UNCLEAR || !success))
        return END_UNKNOWN;
    dlock_fail_at(err, DLOCK_ELOST, 0, sql_where(be), "another client has changed the run record");
    return END_NOT_RECORDED;
}

int runs_read_status(struct sql_store *be, const struct sql_reply *r, struct dlock_error *err)
{
    if (!r->rows || !sql_has(r->rows, STATUS_COLUMNS))
        return sql_error(be, r, err);
    if (r->rows->n == 0)
        return 0;
    if (!sql_true(r->rows, 0, "valid"))
        return foreign(be, err);
    read_record(&be->run, r->rows);
    return 1;
}

void runs_forgotten(struct sql_store *be, const struct sql_reply *r)
{
    struct dlock_error err;
    bool no_table = r->fault == SQL_NO_TABLE; /* the record has gone with it */
    if (!no_table && (!sql_one_row(r, "forgotten") || sql_unconfirmed(r))) {
        sql_error(be, r, &err);
        sql_fail(be, &err);
        return;
    }
    sql_stepped(be, !no_table && sql_number(r->rows, 0, "forgotten") == 1);
}
