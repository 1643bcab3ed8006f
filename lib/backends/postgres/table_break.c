/*
 * table_break.c - break a hold in the lease table.
 *
 * A mark goes in front of the owner: "break:" and the token. The expiry stays, and no other client
 * gets the lock earlier. The holder's next renewal finds the mark, and the release accepts it; a
 * dlock without marks finds that its token is gone, and ends its command as after a loss. By whom
 * and when is appended to the holder's record, whose readers skip unknown keys: the table needs no
 * new column.
 *
 * A hold is freed as by the holder's own release, which calls the next waiters.
 */
#include "postgres_sql.h"
#include "table.h"

#include <stdio.h>
#include <string.h>

static void send_free(struct pg_backend *be)
{
    const struct dlock_info *h = be->order->holder;
    bool shared = h->mode != DLOCK_MODE_EXCLUSIVE;
    char token[sizeof(h->token) + sizeof(OVER_OWNER)];
    snprintf(token, sizeof(token), "%s%s", h->over ? OVER_OWNER : "", h->token);
    table_send(
        be, T_FREE, shared ? AND_HOLDERS : NO_MORE, PLACES({"token", token, 0}, {"stays", NULL, 0}),
        STATEMENTS(sql_table_lock_row, shared ? sql_table_shared_release : sql_table_release));
}

static void send_mark(struct pg_backend *be)
{
    const struct dlock_info *h = be->order->holder;
    bool shared = h->mode != DLOCK_MODE_EXCLUSIVE;
    char breaker[DLOCK_BREAKER_SIZE];
    table_send(
        be, T_BREAK, shared ? AND_HOLDERS : NO_MORE,
        PLACES({"token", h->token, 0}, {"breaker", dlock_breaker(be->spec->identity, breaker), 0}),
        STATEMENTS(sql_table_lock_row, shared ? sql_table_shared_mark : sql_table_mark));
}

void break_send(struct pg_backend *be)
{
    const struct dlock_info *h = be->order->holder;
    bool force = be->order->what == STEP_FREE;
    struct dlock_error err;
    if (!h->token[0]) {
        dlock_fail_lock(&err, DLOCK_EUNUSABLE, 0, be->spec->uri,
                        "no dlock wrote the holder's row: correct the row in %s", be->table.name);
        pg_fail(be, &err);
    } else if (h->foreign && !force) {
        dlock_fail_lock(&err, DLOCK_EUNUSABLE, 0, be->spec->uri,
                        "the holder is no dlock, and may not notice a mark: use --force");
        pg_fail(be, &err);
    } else {
        (force ? send_free : send_mark)(be);
    }
}

void break_answered(struct pg_backend *be, const struct pg_reply *r)
{
    const char *done = r->tag == T_FREE ? "released" : "marked";
    bool no_table = strcmp(r->sqlstate, "42P01") == 0;
    struct dlock_error err;
    if (!no_table && (!pg_one_row(r, done) || pg_unconfirmed(r))) {
        table_not_ours(be, r, DLOCK_EPROTO, &err);
        pg_fail(be, &err);
        return;
    }
    pg_stepped(be, !no_table && pg_number(r->rows, 0, done) == 1);
}
