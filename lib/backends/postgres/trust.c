/*
 * trust.c - are the tables of lease mode ours? The statement glance, or check, finds out before the
 * first request of each connection that touches a table; what they find is an error.
 */
#include "postgres.h"
#include "postgres_sql.h"

#include <stdio.h>
#include <string.h>

#define FINDING "dlock finding: " /* in the error of the statements check and read_only */
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

static void add_check(struct sql_message *m, const struct sql_store *be, const char *table,
                      const char *columns, int number)
{
    sql_add(m, pg(be)->lease.unsure ? sql_table_check : sql_table_glance,
            PLACES({"checked", table, 0}, {"owner", pg(be)->lease.owner, 0},
                   {"columns", columns, 0}, {"number", NULL, number}),
            NULL, false);
}

void pg_guard(const struct sql_store *be, struct sql_message *m, bool holders, bool runs)
{
    struct pg_keepalives keep = pg_keepalives(dlock_min(be->spec->ttl, CUT_OFF));
    if (be->conn->guarded)
        add_check(m, be, be->table.name, lock_columns, 1);
    if (holders)
        add_check(m, be, be->table.holders, holder_columns, 2);
    if (runs)
        add_check(m, be, be->table.runs, run_columns, 3);
    if (holders || runs)
        sql_add(m, sql_table_alive,
                PLACES({"idle", NULL, keep.idle}, {"interval", NULL, keep.interval},
                       {"count", NULL, keep.count}, {"pid", NULL, be->conn->session}),
                NULL, false);
}

/*
 * The findings of the statements glance, check and read_only. A finding of the last two becomes an
 * error with a text for people. True: the request, or read_only, was sent.
 */
bool pg_found(struct sql_store *be, struct sql_reply *r)
{
    static const char role[] = "read-only ";
    const char *found = strstr(r->text, FINDING);
    char what[sizeof(r->text)];
    if (!found && r->fault == SQL_READ_ONLY) {
        table_send(be, (enum sql_tag)r->tag, NO_MORE, NULL, STATEMENTS(sql_table_read_only));
        return true;
    }
    if (!found)
        return false;
    found += strlen(FINDING);
    const char *table = *found == '2'   ? be->table.holders
                        : *found == '3' ? be->table.runs
                                        : be->table.name;
    snprintf(what, sizeof(what), "%s", *found ? found + 1 : found);
    what[strcspn(what, ";")] = '\0';
    if (strcmp(what, "unsure") == 0) { /* of glance: ask again, with check */
        bool first = !pg(be)->lease.unsure;
        pg(be)->lease.unsure = true;
        if (r->tag == T_NOTICE)
            be->table.notice.at = sql_now(be); /* comes again with the next refusal */
        else if (r->tag != T_SWEEP && first)
            table_ready_again(be);
        return true;
    }
    pg_conn_set_state(r, "42501");
    if (strcmp(what, "missing") == 0) {
        pg_conn_set_state(r, "42P01");
        snprintf(r->text, sizeof(r->text), "the table %s does not exist", table);
    } else if (strcmp(what, "read-only") == 0) {
        pg_conn_set_state(r, "25006");
        snprintf(r->text, sizeof(r->text), PG_NO_WRITES);
    } else if (strncmp(what, role, strlen(role)) == 0) {
        snprintf(r->text, sizeof(r->text),
                 "the role cannot write: ALTER ROLE %.150s SET default_transaction_read_only = off",
                 what + strlen(role));
    } else {
        bool owned = strstr(what, " is owned by ") != NULL;
        snprintf(r->text, sizeof(r->text), "the table %.70s is not safe to use: %.110s%s", table,
                 what, owned ? " (see table-owner= in dlock-postgres(7))" : "");
    }
    return false;
}
