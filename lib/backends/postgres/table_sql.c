/* table_sql.c - what the lease table sends to the server; the statements are in sql/table*.sql. */
#include "postgres_sql.h"
#include "table.h"

#include <stdlib.h>
#include <string.h>

/* A client that is cut off keeps the row at most so long, and 2 s. */
#define CUT_OFF (6 * DLOCK_SEC)

/* As the statement check lists them: 23 is the type int. */
static const char lock_columns[] = "name 25 950 t,fence 20 0 t,owner 25 100 t,expires 1184 0 t,"
                                   "holder 25 100 t,freed 1184 0 f,passed 20 0 f";
static const char holder_columns[] = "name 25 950 t,token 25 100 t,epoch 25 100 t,slots 23 0 t,"
                                     "place 20 0 t,expires 1184 0 t,holder 25 100 t";
static const char run_columns[] =
    "name 25 950 t,state 25 100 t,status 23 0 f,fence 20 0 t,owner 25 100 t,host 25 100 t,"
    "pid 20 0 t,username 25 100 t,command 25 100 t,note 25 100 t,began 1184 0 t,ended 1184 0 f,"
    "expires 1184 0 t";

/* The rest of --min-hold, after the grant. */
static int64_t min_hold_left(const struct pg_backend *be)
{
    return be->spec->min_hold > 0 ? dlock_max(0, be->spec->hold->until - pg_now(be)) : 0;
}

/* The duration of a grant or a renewal. */
static int64_t lasts_ms(const struct pg_backend *be)
{
    int64_t least = be->granted ? min_hold_left(be) : be->spec->min_hold;
    return dlock_max(be->spec->ttl, least) / DLOCK_MSEC;
}

int64_t table_stays_ms(const struct pg_backend *be)
{
    int64_t left = be->granted ? min_hold_left(be) : 0;
    return left > 0 ? left / DLOCK_MSEC + 1 : 0;
}

char *table_schema(const struct pg_backend *be)
{
    const struct table_state *t = &be->table;
    char *schema = strndup(t->name, (size_t)(strstr(t->name, "\".\"") + 1 - t->name));
    if (!schema)
        return NULL;
    char *text =
        sql_text(NULL,
                 STATEMENTS(sql_table_schema, sql_table_shared_schema, sql_table_runs_schema,
                            sql_table_grant_schema),
                 PLACES({"table", t->name, 0}, {"holders", t->holders, 0}, {"runs", t->runs, 0},
                        {"schema", schema, 0}, {"mark", t->role ? "" : "-- ", 0},
                        {"role", t->role ? t->role : "ROLE", 0}));
    free(schema);
    return text;
}

static void add_check(struct pg_message *m, const struct pg_backend *be, const char *table,
                      const char *columns, int number)
{
    sql_add(m, be->table.unsure ? sql_table_check : sql_table_glance,
            PLACES({"checked", table, 0}, {"owner", be->table.owner, 0}, {"columns", columns, 0},
                   {"number", NULL, number}),
            NULL);
}

void table_send(struct pg_backend *be, enum pg_tag tag, enum table_more more,
                const struct pg_place *own, const char *const *statements)
{
    struct pg_message m = {.n = 0};
    struct pg_keepalives keep = pg_keepalives(dlock_min(be->spec->ttl, CUT_OFF));
    const struct dlock_identity *who = be->spec->identity;
    int pid = PQbackendPID(be->conn.pq);
    const char *grace_left = be->restart_grace > 0 ? "current_setting('dlock.grace')::bigint" : "0";
    const struct pg_place common[] = {
        /* the lock and the hold */
        {"table", be->table.name, 0},
        {"holders", be->table.holders, 0},
        {"runs", be->table.runs, 0},
        {"name", be->spec->uri->name, 0},
        {"token", be->token, 0},
        {"holder", be->holder, 0},
        {"ttl", NULL, lasts_ms(be)},
        {"grace", NULL, be->restart_grace / DLOCK_MSEC},
        {"grace_left", grace_left, 0},
        /* the line */
        {"app", be->app, 0},
        {"session", be->session, 0},
        {"channel", be->table.channel, 0},
        {"line_key", NULL, be->table.line_key},
        {"waiter", be->waiter, 0},
        {"ticket", NULL, be->table.line.ticket},
        {"pid", NULL, pid},
        {"pid_in_line", NULL, be->table.line.joined ? pid : 0},
        /* the run record */
        {"once", NULL, be->spec->once / DLOCK_MSEC},
        {"begins", NULL, be->spec->hold->begin != RUN_LATER},
        {"host", who->host, 0},
        {"user", who->user, 0},
        {"command", who->command, 0},
        {"note", who->note, 0},
        {"client_pid", NULL, who->pid},
        {NULL, NULL, 0},
    };
    if (be->conn.state != PC_UP)
        return;
    if (be->conn.guarded)
        add_check(&m, be, be->table.name, lock_columns, 1);
    bool holders = more == AND_HOLDERS && !be->table.checked.holders;
    bool runs = more == AND_RUNS && !be->table.checked.runs;
    if (holders)
        add_check(&m, be, be->table.holders, holder_columns, 2);
    if (runs)
        add_check(&m, be, be->table.runs, run_columns, 3);
    if (holders || runs)
        sql_add(&m, sql_table_alive,
                PLACES({"idle", NULL, keep.idle}, {"interval", NULL, keep.interval},
                       {"count", NULL, keep.count}, {"pid", NULL, pid}),
                NULL);
    for (; *statements; statements++)
        if (*statements != sql_table_grace || be->restart_grace > 0)
            sql_add(&m, *statements, own, common);
    sql_send(&be->conn, (int)tag, &m);
}

void table_not_ours(const struct pg_backend *be, const struct pg_reply *r, int code,
                    struct dlock_error *err)
{
    if (r->sqlstate[0] || pg_unconfirmed(r))
        pg_conn_reply_error(&be->conn, r, err);
    else
        dlock_fail_at(err, code, 0, pg_where(be),
                      "unexpected answer to the lock query: does a pooler mix up its sessions?");
}
