/*
 * table_break.c - break a hold in the lease table.
 *
 * A mark goes in front of the owner: "break:" and the token. The expiry stays, and no other client
 * gets the lock earlier. The holder's next renewal finds the mark, and the release accepts it; a
 * dlock without marks finds that its token is gone, and ends its command as after a loss. By whom
 * and when is appended to the holder's record, whose readers skip unknown keys: the table needs no
 * new column.
 *
 * A hold that is over (--min-hold), or --force: the row is freed as by the holder's own release,
 * which calls the next waiters.
 */
#include "postgres_sql.h"
#include "table.h"

#include <stdio.h>
#include <string.h>

/* The columns of the answer to a mark: marked; the hold's owner now; the holder of the lock now. */
enum { B_MARKED, B_NOW, B_OWNER, B_HOLDER, B_FENCE, B_LEFT, B_COLUMNS };

static void send_free(struct pg_backend *be, bool over)
{
    const struct dlock_info *h = be->question->holder;
    bool shared = h->mode != DLOCK_MODE_EXCLUSIVE;
    char token[sizeof(h->token) + sizeof(OVER_OWNER)];
    snprintf(token, sizeof(token), "%s%s", over ? OVER_OWNER : "", h->token);
    table_send(
        be, T_FREE, shared ? AND_HOLDERS : NO_MORE, PLACES({"token", token, 0}, {"stays", NULL, 0}),
        STATEMENTS(sql_table_lock_row, shared ? sql_table_shared_release : sql_table_release));
}

void break_send(struct pg_backend *be)
{
    const struct dlock_info *h = be->question->holder;
    bool shared = h->mode != DLOCK_MODE_EXCLUSIVE, force = be->question->force;
    char breaker[DLOCK_BREAKER_SIZE];
    struct dlock_error err;
    if (!h->token[0]) { /* written by no dlock, or changed while the status looked: look again */
        table_send(be, T_HOLDER, shared ? AND_HOLDERS : NO_MORE,
                   PLACES({"runs_name", be->table.runs, 0}),
                   STATEMENTS(shared ? sql_table_shared_status : sql_table_status));
    } else if (h->foreign && !force) {
        dlock_fail_lock(&err, DLOCK_EUNUSABLE, 0, be->spec->uri,
                        "the holder is no dlock, and may not notice a mark: use --force");
        pg_fail(be, &err);
    } else if (force || h->over) {
        send_free(be, h->over);
    } else {
        table_send(be, T_BREAK, shared ? AND_HOLDERS : NO_MORE,
                   PLACES({"token", h->token, 0},
                          {"breaker", dlock_breaker(be->spec->identity, breaker), 0}),
                   STATEMENTS(sql_table_lock_row, shared ? sql_table_shared_mark : sql_table_mark));
    }
}

/* broken: marked, and not over yet. */
static void done(struct pg_backend *be, bool broken)
{
    pg_op_done(be);
    events_add(&be->events, EV_DONE)->broken = broken;
    pg_conn_close(&be->conn);
}

/* The answer is an error, or no answer to our statement. columns -1: of a status. */
static bool is_refusal(struct pg_backend *be, const struct pg_reply *r, int columns)
{
    struct dlock_error err;
    if (columns < 0 ? !r->sqlstate[0] && r->rows : pg_one_row(r, columns) && !pg_unconfirmed(r))
        return false;
    if (strcmp(r->sqlstate, "42P01") == 0) { /* no table: no lock is held */
        done(be, false);
        return true;
    }
    table_not_ours(be, r, DLOCK_EPROTO, &err);
    pg_fail(be, &err);
    return true;
}

static void freed(struct pg_backend *be, const struct pg_reply *r)
{
    if (is_refusal(be, r, U_RELEASE_COLUMNS))
        return;
    if (pg_number(r->rows, 0, U_OURS) == 1 || PQgetisnull(r->rows, 0, U_HOLDER)) {
        done(be, false);
        return;
    }
    table_read_holder(&be->info, pg_text(r->rows, 0, U_HOLDER), -1, 0);
    pg_busy(be, &be->info);
}

/* The second look at a hold without a token: is it as it was shown? */
static void looked_again(struct pg_backend *be, const struct pg_reply *r)
{
    const struct dlock_info *h = be->question->holder;
    struct dlock_error err;
    if (is_refusal(be, r, -1))
        return;
    /* Holders come first. */
    if (PQntuples(r->rows) == 0 || !be->protocol->read_info(r->rows, 0, &be->info) ||
        be->info.waiter) {
        done(be, false);
    } else if (be->info.token[0] || be->info.fence != h->fence) { /* each grant raises the fence */
        pg_busy(be, &be->info);
    } else {
        dlock_fail_lock(&err, DLOCK_EUNUSABLE, 0, be->spec->uri,
                        "no dlock wrote the holder's row: correct the row in %s", be->table.name);
        pg_fail(be, &err);
    }
}

void break_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_info was = {0};
    if (r->tag == T_HOLDER) {
        looked_again(be, r);
        return;
    }
    if (r->tag == T_FREE) {
        freed(be, r);
        return;
    }
    if (is_refusal(be, r, B_COLUMNS))
        return;
    table_read_owner(&was, pg_text(r->rows, 0, B_NOW));
    bool same = strcmp(was.token, be->question->holder->token) == 0;
    if (pg_number(r->rows, 0, B_MARKED) == 1 || (same && was.broken)) {
        done(be, true);
    } else if (same && was.over) {
        send_free(be, true); /* the command has ended meanwhile */
    } else if (PQgetisnull(r->rows, 0, B_OWNER)) {
        done(be, false);
    } else {
        table_read_holder(&be->info, pg_text(r->rows, 0, B_HOLDER), pg_ms(r->rows, 0, B_LEFT),
                          pg_number(r->rows, 0, B_FENCE));
        table_read_owner(&be->info, pg_text(r->rows, 0, B_OWNER));
        pg_busy(be, &be->info);
    }
}
