/*
 * lease.c - the statements of the lease table, and who waits for it.
 *
 * A waiter has a row in the second table, whose place is its ticket: the server's time of its first
 * try. Its session has a named lock (GET_LOCK), which tells all others that the session lives; the
 * session of a holder has one, too. Each waiter waits for the named lock of the waiter before it,
 * and the first one for that of a holder: so a release wakes one waiter, who then wakes the next
 * one when it leaves the line. Nobody is woken by a lock whose owner was killed, stopped or lost
 * its connection for long; so a wait is short, and a lost wake-up costs little. The session of a
 * stopped client says nothing for a second, and ends (wait_timeout).
 *
 * As in PostgreSQL's line, a try counts the tickets before its own, and with k of them takes the
 * lock only once it has been free for turn(k), below 2.8 s.
 *
 * Behind a proxy no session is ours, and a node of Galera knows no session of another one: there
 * the row itself lives for five seconds, each poll writes it anew, and nobody is woken.
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
#define my_table_call NULL /* who waits for us, wakes by our named lock */
#define my_table_shared_call NULL
#define my_table_shared_notice NULL /* the row in the line is one */
#define my_table_shared_withdraw NULL
#define INIT(name) .name = my_table_##name,

#define NEAR 4 /* of the first waiters each waits shorter: nobody may wake them */
#define IDLE_MOST (600 * DLOCK_MSEC) /* below wait_timeout, see join */
#define ASK_EACH (100 * DLOCK_MSEC)
#define WAIT_NEAR (1000 * DLOCK_MSEC)
#define POLL_EACH (50 * DLOCK_MSEC) /* where nobody is woken, times the waiters before us */

static void line_reset(struct sql_store *be, bool acquire)
{
    if (!acquire)
        return;
    my(be)->in_line = my(be)->galera = false;
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
        {"table_bare", my(be)->table_name, 0},
        {"holders_bare", my(be)->holders_name, 0},
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
    int64_t now = sql_now(be), most = why->ahead < NEAR ? WAIT_NEAR : INT64_MAX / 2;
    my(be)->version = sql_number(why->rows, 0, "version");
    be->table.line.polls = !why->direct || my(be)->galera;
    table_try_in_time(be, why);
    if (be->table.line.polls) {
        join_line(be, my_table_join_polling);
        be->acquire.try_at =
            dlock_min(be->acquire.try_at,
                      now + dlock_min(IDLE_MOST, POLL_EACH * (1 + dlock_max(0, why->ahead))));
    } else if (!stands) {
        join_line(be, my_table_join);
        table_send_try(be); /* a release that came before has not woken us */
    } else if (be->spec->slots > 0 && why->ahead == 0 &&
               strncmp(why->owner, SHARED_OWNER, strlen(SHARED_OWNER)) == 0) {
        /* Any of several holders may give back a slot: only the first in line asks. */
        be->acquire.try_at = dlock_min(be->acquire.try_at, now + ASK_EACH);
    } else {
        my(be)->due = dlock_min(be->acquire.try_at, now + most);
        be->acquire.try_at = DLOCK_NEVER;
        be->op_until = my(be)->due + sql_patience(be);
        table_send(be, T_WAIT, NO_MORE,
                   PLACES({"ms", NULL, dlock_max(1, (my(be)->due - now) / DLOCK_MSEC)}),
                   STATEMENTS(my_table_wait));
    }
}

static void line_answered(struct sql_store *be, const struct sql_reply *r)
{
    if (r->tag == T_WAIT && be->op == SQL_OP_ACQUIRE && sql_one_row(r, "woken changed") &&
        !sql_true(r->rows, 0, "woken") && !sql_true(r->rows, 0, "changed")) {
        /* The time is over, or there is no session to wait for. Ours may not be idle for long. */
        be->op_until = DLOCK_NEVER;
        be->acquire.try_at = dlock_min(my(be)->due, sql_now(be) + IDLE_MOST);
    } else if (r->tag == T_WAIT && be->op == SQL_OP_ACQUIRE) {
        table_send_try(be);
    } else if (r->tag == T_LISTEN && sql_one_row(r, "galera")) {
        my(be)->galera = sql_true(r->rows, 0, "galera");
    } else if (r->fault != SQL_OK && be->op == SQL_OP_ACQUIRE) {
        be->table.line.joined = false; /* the next refusal joins again */
    }
}

static void line_granted(struct sql_store *be, const struct sql_reply *r)
{
    (void)r;
    if (my(be)->in_line)
        table_send(be, T_LISTEN, NO_MORE, NULL, STATEMENTS(my_table_left));
    my(be)->in_line = false;
}

/* Readers and slots change two rows. */
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
