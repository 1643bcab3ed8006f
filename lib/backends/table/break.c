/*
 * break.c - break a hold in the lease table.
 *
 * A mark goes in front of the owner: "break:" and the token. The expiry stays, and no other client
 * gets the lock earlier. The holder's next renewal finds the mark, and the release accepts it; a
 * dlock without marks finds that its token is gone, and ends its command as after a loss. By whom
 * and when is appended to the holder's record, whose readers skip unknown keys: the table needs no
 * new column.
 *
 * A hold is freed as by the holder's own release, which calls the next waiters.
 */
#include "table.h"

#include <stdio.h>
#include <string.h>

static void send_free(struct sql_store *be)
{
    const struct dlock_info *h = be->order->holder;
    bool shared = h->mode != DLOCK_MODE_EXCLUSIVE;
    char token[sizeof(h->token) + sizeof(OVER_OWNER)];
    snprintf(token, sizeof(token), "%s%s", h->over ? OVER_OWNER : "", h->token);
    table_send(be, T_FREE, shared ? AND_HOLDERS : NO_MORE,
               PLACES({"token", token, 0}, {"stays", NULL, 0}),
               STATEMENTS(be->sql->lock_row, shared ? be->sql->shared_release : be->sql->release));
}

static void send_mark(struct sql_store *be)
{
    const struct dlock_info *h = be->order->holder;
    bool shared = h->mode != DLOCK_MODE_EXCLUSIVE;
    char breaker[DLOCK_BREAKER_SIZE];
    table_send(
        be, T_BREAK, shared ? AND_HOLDERS : NO_MORE,
        PLACES({"token", h->token, 0}, {"breaker", dlock_breaker(be->spec->identity, breaker), 0}),
        STATEMENTS(be->sql->lock_row, shared ? be->sql->shared_mark : be->sql->mark));
}

void break_send(struct sql_store *be)
{
    const struct dlock_info *h = be->order->holder;
    bool force = be->order->what == STEP_FREE;
    struct dlock_error err;
    if (!h->token[0]) {
        dlock_fail_lock(&err, DLOCK_EUNUSABLE, 0, be->spec->uri,
                        "no dlock wrote the holder's row: correct the row in %s", be->table.name);
        sql_fail(be, &err);
    } else if (h->foreign && !force) {
        dlock_fail_lock(&err, DLOCK_EUNUSABLE, 0, be->spec->uri,
                        "the holder is no dlock, and may not notice a mark: use --force");
        sql_fail(be, &err);
    } else {
        (force ? send_free : send_mark)(be);
    }
}

void break_answered(struct sql_store *be, const struct sql_reply *r)
{
    const char *done = r->tag == T_FREE ? "released" : "marked";
    bool no_table = r->fault == SQL_NO_TABLE;
    struct dlock_error err;
    if (!no_table && (!sql_one_row(r, done) || sql_unconfirmed(r))) {
        table_not_ours(be, r, DLOCK_EPROTO, &err);
        sql_fail(be, &err);
        return;
    }
    sql_stepped(be, !no_table && sql_number(r->rows, 0, done) == 1);
}
