/*
 * lease.c - the statements of the lease table, and who waits for it.
 *
 * A waiter has a row in the second table, whose place is its ticket: the server's time of its first
 * try. Its session holds a named lock, which nobody waits for: it tells all others that the session
 * lives, and which one to call. The waiter sleeps in the server (SLEEP), and a release calls the
 * first one by KILL QUERY, for which an account needs no right over its own sessions. A call that
 * comes late hits a statement that is repeated. The sleep is short, so a lost call costs little: a
 * session whose client was stopped says nothing for a second after its sleep, and ends
 * (wait_timeout).
 *
 * As in PostgreSQL's line, a try counts the tickets before its own, and with k of them takes the
 * lock only once it has been free for turn(k), below 2.8 s.
 *
 * Behind a proxy no session is ours: the row itself lives for five seconds, each poll writes it
 * anew, and nobody is called.
 */
#include "mysql.h"

#define SQL_TEXTS
#include "mysql_sql.h"

#include <stdio.h>
#include <string.h>

#define my_table_runs_schema NULL /* the record is in the lock's row */
#define my_table_take NULL
#define my_table_lock_row NULL
#define my_table_shared_free NULL
#define my_table_shared_lock NULL
#define my_table_shared_schema NULL
#define my_table_shared_call my_table_call
#define my_table_shared_notice NULL /* the row in the line is one */
#define my_table_shared_withdraw NULL
#define INIT(name) .name = my_table_##name,

#define NEAR 4 /* of the first waiters each sleeps shorter: the call may be lost */
#define SLEEP_NEAR (1000 * DLOCK_MSEC)
#define POLL_EACH (50 * DLOCK_MSEC) /* behind a proxy, times the waiters before us */
#define POLL_MOST (1000 * DLOCK_MSEC)

static void line_reset(struct sql_store *be, bool acquire)
{
    if (!acquire)
        return;
    my(be)->in_line = false;
    snprintf(my(be)->line, sizeof(my(be)->line), "w%s", be->token);
}

static void line_places(const struct sql_store *be, struct sql_place *at)
{
    const struct sql_place places[] = {
        {"line", my(be)->line, 0},
        {"before", NULL, be->table.line.ticket > 0 ? be->table.line.ticket : INT64_MAX / 2},
        {"version", NULL, my(be)->version},
        {"grace_left", be->restart_grace > 0 ? "@grace" : "0", 0},
        {"stays", NULL, 0},
        {"idle", NULL, 2 * be->spec->ttl / DLOCK_SEC + 60},
        {"schema_name", my(be)->schema_name, 0},
        {"plain_table", my(be)->table_name, 0},
        {"plain_holders", my(be)->holders_name, 0},
    };
    memcpy(at, places, sizeof(places));
}

static void join_line(struct sql_store *be, const char *statement)
{
    int64_t kind = be->spec->mode == DLOCK_MODE_EXCLUSIVE ? -1 : (int64_t)be->spec->slots;
    be->table.line.joined = my(be)->in_line = true;
    table_send(be, T_LISTEN, AND_HOLDERS, PLACES({"kind", NULL, kind}), STATEMENTS(statement));
}

static void line_wait(struct sql_store *be, const struct table_refusal *why, bool stands)
{
    int64_t now = sql_now(be), most = why->ahead < NEAR ? SLEEP_NEAR : INT64_MAX / 2;
    my(be)->version = sql_number(why->rows, 0, "version");
    be->table.line.polls = !why->direct;
    table_try_in_time(be, why);
    if (!why->direct) {
        join_line(be, my_table_join_polling);
        be->acquire.try_at =
            dlock_min(be->acquire.try_at,
                      now + dlock_min(POLL_MOST, POLL_EACH * (1 + dlock_max(0, why->ahead))));
    } else if (!stands) {
        join_line(be, my_table_join);
        table_send_try(be); /* a release that came before has not called us */
    } else {
        int64_t time = dlock_min(be->acquire.try_at - now, most);
        be->acquire.try_at = DLOCK_NEVER;
        be->op_until = now + time + sql_patience(be);
        table_send(be, T_WAIT, NO_MORE, PLACES({"ms", NULL, dlock_max(1, time / DLOCK_MSEC)}),
                   STATEMENTS(my_table_sleep));
    }
}

static void line_answered(struct sql_store *be, const struct sql_reply *r)
{
    if (r->tag == T_WAIT && be->op == SQL_OP_ACQUIRE)
        table_send_try(be);
    else if (r->fault != SQL_OK && be->op == SQL_OP_ACQUIRE)
        be->table.line.joined = false; /* the next refusal joins again */
}

static void line_granted(struct sql_store *be, const struct sql_reply *r)
{
    (void)r;
    if (my(be)->in_line)
        table_send(be, T_LISTEN, NO_MORE, NULL, STATEMENTS(my_table_left));
    my(be)->in_line = false;
}

/* Readers and slots change two rows, and call in the same message. */
static const char *line_leave(const struct sql_store *be)
{
    return table_is_shared(be) ? NULL : my_table_leave;
}

/* The session may sleep in the server: leave the line by another one. */
static bool line_give_up(struct sql_store *be)
{
    if (my(be)->in_line && sql_is_busy(be))
        sql_close(be);
    return my(be)->in_line;
}

static const struct table_line line = {
    .reset = line_reset,
    .places = line_places,
    .wait = line_wait,
    .answered = line_answered,
    .granted = line_granted,
    .leave = line_leave,
    .give_up = line_give_up,
};

static void guard(const struct sql_store *be, struct sql_message *m, bool holders, bool runs)
{
    struct sql_place places[TABLE_LINE_PLACES] = {{NULL, NULL, 0}};
    (void)holders;
    (void)runs;
    line_places(be, places);
    if (be->conn->guarded)
        sql_add(m, my_table_guard, places, NULL, true);
}

const struct table_dialect my_lease = {
    .check = my_table_check,
    .check_end = my_table_check_end,
    .line = &line,
    .guard = guard,
    TABLE_STATEMENTS(INIT) /* the last: each ends with a comma */
};
