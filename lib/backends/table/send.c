/* send.c - what the lease table sends to the server. */
#include "table.h"

#include <stdlib.h>
#include <string.h>

/* The rest of --min-hold, after the grant. */
static int64_t min_hold_left(const struct sql_store *be)
{
    return be->spec->min_hold > 0 ? dlock_max(0, be->spec->hold->until - sql_now(be)) : 0;
}

/* The duration of a grant or a renewal. */
static int64_t lasts_ms(const struct sql_store *be)
{
    int64_t least = be->granted ? min_hold_left(be) : be->spec->min_hold;
    return dlock_max(be->spec->ttl, least) / DLOCK_MSEC;
}

int64_t table_stays_ms(const struct sql_store *be)
{
    int64_t left = be->granted ? min_hold_left(be) : 0;
    return left > 0 ? left / DLOCK_MSEC + 1 : 0;
}

char *table_schema(const struct sql_store *be)
{
    const struct table_state *t = &be->table;
    return sql_compose("", ";\n",
                       STATEMENTS(be->sql->schema, be->sql->shared_schema, be->sql->runs_schema,
                                  be->sql->grant_schema),
                       PLACES({"table", t->name, 0}, {"holders", t->holders, 0},
                              {"runs", t->runs, 0}, {"schema", t->schema, 0},
                              {"mark", t->role ? "" : "-- ", 0},
                              {"role", t->role ? t->role : "ROLE", 0}));
}

void table_send(struct sql_store *be, enum sql_tag tag, enum table_more more,
                const struct sql_place *own, const char *const *statements, size_t n)
{
    struct sql_message m = {.tag = (int)tag};
    const struct dlock_identity *who = be->spec->identity;
    struct sql_place common[TABLE_LINE_PLACES + 24] = {
        /* the lock and the hold */
        {"table", be->table.name, 0},
        {"holders", be->table.holders, 0},
        {"runs", be->table.runs, 0},
        {"name", be->spec->uri->name, 0},
        {"token", be->token, 0},
        {"holder", be->holder, 0},
        {"ttl", NULL, lasts_ms(be)},
        {"grace", NULL, be->restart_grace / DLOCK_MSEC},
        {"waiter", be->waiter, 0},
        {"ticket", NULL, be->table.line.ticket},
        /* the run record */
        {"once", NULL, be->spec->once / DLOCK_MSEC},
        {"begins", NULL, be->spec->hold->begin != RUN_LATER},
        {"host", who->host, 0},
        {"user", who->user, 0},
        {"command", who->command, 0},
        {"note", who->note, 0},
        {"client_pid", NULL, who->pid},
    };
    struct sql_place *line = common;
    if (be->conn->state != CONN_UP)
        return;
    while (line->name)
        line++;
    be->sql->line->places(be, line);
    if (be->sql->path)
        sql_add(&m, be->sql->path, NULL, NULL, be->driver->hex);
    be->sql->guard(be, &m, more == AND_HOLDERS && !be->table.checked.holders,
                   more == AND_RUNS && !be->table.checked.runs);
    for (size_t i = 0; i < n; i++)
        if (statements[i] && (statements[i] != be->sql->grace || be->restart_grace > 0))
            sql_add(&m, statements[i], own, common, be->driver->hex);
    if (m.n > 0)
        be->driver->send(be->conn, &m);
}

void table_not_ours(const struct sql_store *be, const struct sql_reply *r, int code,
                    struct dlock_error *err)
{
    if (r->fault != SQL_OK || sql_unconfirmed(r))
        sql_error(be, r, err);
    else
        dlock_fail_at(err, code, 0, sql_where(be),
                      "unexpected answer to the lock query: does a pooler mix up its sessions?");
}
