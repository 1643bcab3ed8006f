/*
 * line.c - the waiters of the lease table, in the server's sessions.
 *
 * Waiters connected directly stand in line. The ticket of a waiter is the server's time of the
 * first try, also after a reconnect, and stands in the session's application_name
 * (dlock:KEY:TICKET), which every role may read. A try counts the tickets before its own. With k
 * tickets before, the try may take the lock only once the lock has been free for turn(k): 0, 0.8,
 * 1.2, 1.5 s and so on, below 2.8 s for any k. So silent waiters delay a grant by 2.8 s at most. A
 * waiter that is granted the lock before earlier tickets writes its own ticket into passed: all
 * tickets below count no more. Their waiters, if alive, get a new ticket with the next try.
 *
 * A release calls the first few waiters, each for its turn. All waiters poll within the same 2.8 s,
 * so a lost call, or the silence of all called waiters, costs no more. At the end of a dead
 * holder's lease each waiter has its turn, too. Behind a pooler waiters only poll, without order,
 * and after the line.
 *
 * A look at the line takes the server milliseconds per 1000 sessions, and NOTIFY wakes all sessions
 * that LISTEN. So that a hand-off costs the same for any number of waiters:
 *
 *   - The waiters share an advisory lock: where no other session has it, the release of a client
 *     that has not waited, of a reader or of a slot calls nobody.
 *   - The call of the first waiter has the fence of the hold that ended, and the pids of the next
 *     waiters. A try need not look while the row still has that fence, and the release of this
 *     waiter (hand_on) calls the next waiters, and hands the list on. Each waiter has an advisory
 *     lock of its pid alone: the list counts only while its first four waiters are in line, and
 *     while no waiter can have joined before them. Readers and slots look at each try, unless the
 *     lock has been free for longer than the longest turn.
 *   - Only the first eight writers LISTEN. A writer that joins behind them waits in the server
 *     (await), until the waiter eight places before it has left the line.
 */
#include "postgres.h"
#include "postgres_sql.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AWAIT_CHUNKS 3 /* as in await */

static void forget_call(struct sql_store *be)
{
    pg(be)->lease.called = 0;
    pg(be)->lease.next[0] = '\0';
}

static void line_reset(struct sql_store *be, bool acquire)
{
    if (acquire) {
        forget_call(be);
    } else {
        pg(be)->lease.called = 0;
        pg(be)->lease.awaited = 0;
    }
}

static void line_trying(struct sql_store *be)
{
    pg(be)->conn.notified = -1;
}

/*
 * A release has called us for a number of ms from now on: "0 FENCE NEXT" the first in line, so that
 * the try need not look at the line. Any role can NOTIFY any text, but not know the fence.
 */
static void heed_call(struct sql_store *be)
{
    int64_t turn = dlock_min(pg(be)->conn.notified, LONGEST_TURN / DLOCK_MSEC) * DLOCK_MSEC;
    char *next;
    if (pg(be)->conn.notified >= 0)
        be->acquire.try_at = dlock_min(be->acquire.try_at, sql_now(be) + turn);
    if (pg(be)->conn.notified == 0) {
        pg(be)->lease.called = dlock_max(0, strtoll(pg(be)->conn.notice, &next, 10));
        snprintf(pg(be)->lease.next, PG_NOTICE, "%s", *next == ' ' ? next + 1 : "");
    }
    pg(be)->conn.notified = -1;
}

/* Far behind in line: wait in the server, at most until the next try is due. */
static void await_in_line(struct sql_store *be)
{
    int64_t ms = (be->acquire.try_at - sql_now(be)) / DLOCK_MSEC;
    if (ms < AWAIT_CHUNKS)
        return;
    be->op_until = be->acquire.try_at + sql_patience(be);
    be->acquire.try_at = DLOCK_NEVER;
    table_send(be, T_WAIT, NO_MORE,
               PLACES({"awaited", NULL, pg(be)->lease.awaited}, {"chunk", NULL, ms / AWAIT_CHUNKS}),
               STATEMENTS(sql_table_await_settings, sql_table_await, sql_table_awaited));
}

static void wait_on(struct sql_store *be, const struct table_refusal *why)
{
    table_try_in_time(be, why);
    heed_call(be);
    if (pg(be)->lease.awaited > 0)
        await_in_line(be);
}

/*
 * Is this waiter far behind, if the try has looked? A writer with a notice must withdraw that at
 * once, and keeps the connection free.
 */
static void note_distance(struct sql_store *be, const struct table_refusal *why)
{
    if (why->ahead >= 0) {
        bool looked = why->rows && sql_has(why->rows, "awaited before");
        pg(be)->lease.awaited = looked ? (int)sql_number(why->rows, 0, "awaited") : 0;
        pg(be)->lease.before = looked ? (int)sql_number(why->rows, 0, "before") : 0;
    }
    if (table_is_shared(be) || pg(be)->lease.no_await || be->table.notice.at != 0)
        pg(be)->lease.awaited = 0;
}

static void start_listening(struct sql_store *be)
{
    pg(be)->lease.awaited = 0;
    be->op_until = sql_now(be) + sql_patience(be);
    table_send(be, T_LISTENING, NO_MORE, PLACES({"before", NULL, pg(be)->lease.before}),
               STATEMENTS(sql_table_listen, sql_table_next_in_line));
}

static void await_answered(struct sql_store *be, const struct sql_reply *r)
{
    bool answered = sql_one_row(r, "gone held");
    if (!answered)
        pg(be)->lease.no_await = true;
    if (!answered || sql_true(r->rows, 0, "gone")) {
        start_listening(be);
    } else if (sql_true(r->rows, 0, "held") && be->table.line.tries % LOOK_ONE_OF != 0) {
        be->table.line.tries++;
        be->acquire.try_at = table_next_poll(be);
        await_in_line(be);
    } else {
        table_send_try(be);
    }
}

static void listening(struct sql_store *be, const struct sql_reply *r)
{
    if (!sql_one_row(r, "in_line") || !sql_true(r->rows, 0, "in_line")) {
        table_send_try(be);
        return;
    }
    be->op_until = DLOCK_NEVER;
    be->acquire.try_at = table_next_poll(be);
    heed_call(be);
}

/*
 * Only a session of our own bears the ticket: behind a pooler the next client would inherit the
 * ticket. From now on later tries count this waiter, and releases call this waiter. An earlier
 * release did not call, so try again, unless far behind.
 */
static void join_line(struct sql_store *be, const struct table_refusal *why)
{
    char ticket[24], kind[8];
    bool fresh = !be->table.line.joined;
    be->table.line.joined = true;
    shared_kind(be->spec, kind);
    snprintf(ticket, sizeof(ticket), "%016" PRId64, be->table.line.ticket);
    note_distance(be, why);
    if (pg(be)->lease.awaited == 0)
        table_send(be, T_LISTEN, NO_MORE, NULL, STATEMENTS(sql_table_listen));
    table_send(be, T_LISTEN, NO_MORE,
               PLACES({"ticket", ticket, 0}, {"kind", kind, 0}, {"fresh", NULL, fresh}),
               STATEMENTS(sql_table_stand_in_line));
    if (pg(be)->lease.awaited == 0)
        table_send_try(be);
    else
        wait_on(be, why);
}

static void line_wait(struct sql_store *be, const struct table_refusal *why, bool stands)
{
    bool awaits = pg(be)->lease.awaited > 0;
    forget_call(be);
    if (why->direct && !be->table.line.polls && !stands) {
        join_line(be, why);
        return;
    }
    if (awaits)
        note_distance(be, why);
    if (awaits && pg(be)->lease.awaited == 0)
        start_listening(be);
    else
        wait_on(be, why);
}

static void line_answered(struct sql_store *be, const struct sql_reply *r)
{
    if (r->tag == T_WAIT) {
        if (be->op == SQL_OP_ACQUIRE)
            await_answered(be, r);
    } else if (r->fault != SQL_OK) {
        be->table.line.polls = true; /* polling has to do */
        be->table.line.joined = false;
        if (r->tag == T_LISTENING && be->op == SQL_OP_ACQUIRE)
            table_send_try(be);
    } else if (r->tag == T_LISTENING && be->op == SQL_OP_ACQUIRE) {
        listening(be, r);
    }
}

static void line_granted(struct sql_store *be, const struct sql_reply *r)
{
    pg(be)->lease.awaited = 0;
    /* Else the call was forged, or another client has had the lock since. */
    if (!sql_has(r->rows, "fence_before ticket") ||
        sql_number(r->rows, 0, "fence_before") != pg(be)->lease.called ||
        sql_number(r->rows, 0, "ticket") != be->table.line.ticket)
        forget_call(be);
}

/* A time and at least four pids, for hand_on. Any role can NOTIFY any text. */
static bool knows_next(const char *list)
{
    int numbers = 0;
    size_t len;
    for (; (len = strspn(list, "0123456789")) > 0 && len <= 10; list += len + (list[len] == ','))
        numbers++;
    return *list == '\0' && numbers > 4;
}

/* Where this client has waited, others wait most likely: release also calls them. */
static const char *line_leave(const struct sql_store *be)
{
    if (table_is_shared(be))
        return be->table.line.tries <= 1 ? sql_table_shared_leave : NULL;
    if (be->table.line.ticket == 0)
        return sql_table_leave;
    return knows_next(pg(be)->lease.next) ? sql_table_hand_on : NULL;
}

static void line_places(const struct sql_store *be, struct sql_place *at)
{
    const struct lease_state *lease = &pg(be)->lease;
    const struct sql_place places[] = {
        {"app", pg(be)->app, 0},
        {"session", pg(be)->session, 0},
        {"channel", lease->channel, 0},
        {"line_key", NULL, lease->line_key},
        {"pid", NULL, be->conn->session},
        {"pid_in_line", NULL, be->table.line.joined ? be->conn->session : 0},
        {"called", NULL, lease->called},
        {"next", lease->next, 0},
        {"grace_left", be->restart_grace > 0 ? "current_setting('dlock.grace')::bigint" : "0", 0},
    };
    memcpy(at, places, sizeof(places));
}

const struct table_line pg_line = {
    .reset = line_reset,
    .places = line_places,
    .trying = line_trying,
    .wait = line_wait,
    .answered = line_answered,
    .heed = heed_call,
    .granted = line_granted,
    .leave = line_leave,
};
