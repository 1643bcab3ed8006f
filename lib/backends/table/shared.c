/*
 * shared.c - shared locks and slots in the lease table.
 *
 * A second table, whose name is the first table's and "_holders", has a row for each holder:
 *
 *   name text, token text: primary key | epoch text | slots int: 0 shared, else N
 *   | place bigint: the slot, from 1 | expires timestamptz | holder text
 *
 * While there are holders, the name's row has the owner shared:EPOCH and the latest expiry, and so
 * excludes exclusive clients, which look at the name's row alone. An epoch begins with the first
 * holder and ends with the last; rows of an older epoch do not count. EPOCH is the server's time in
 * microseconds and the first holder's token.
 *
 * Each change of the holders (grant, renewal, release) is a message of two statements in a single
 * transaction: the first locks the name's row, the second reads, counts and writes. A statement
 * sees the commits before its own begin: a single statement would wait for the row and then count
 * without the new change. Where the role's default is a stricter isolation level, both statements
 * see the same; but then the first fails if the row was changed meanwhile, as by each change of the
 * holders. So no BEGIN is needed, whose transaction an error would leave open.
 *
 * A try first reads without a lock, and only if there is room, a second message locks and counts
 * again. The first try only reads whether the lock is there for all (the statement free), and the
 * release of a client that has not waited calls nobody where the line is empty (leave): both cost
 * the same for any number of sessions.
 *
 * The fence is the fence of the last exclusive grant: concurrent holders have the same number, and
 * the next exclusive grant has a greater number.
 *
 * Waiters stand in the line of table.c, and their place in line has their kind. In the way of a
 * reader are the writers before; in the way of a slot also the slots before, unless each has a free
 * slot. A waiting writer also keeps a row in the second table, with the epoch "" and the ticket as
 * place: no later ticket joins while the row lives. The line alone would not do: a stopped writer
 * stays in line, and a writer behind a pooler is not in line at all. A writer in line without such
 * a row is respected in the first seconds of an epoch, since the writer may not know the epoch yet.
 */
#include "table.h"

#include <stdio.h>
#include <string.h>

#define NOTICE_LIFE (9 * DLOCK_SEC)

/* Of the answers to the statements free, look and grant. */
#define FREE_COLUMNS "pid token ticket"
#define LOOK_COLUMNS                                                                               \
    "pid token grace_ms state owner holder fence left_ms free_ms young orphan ticket barred_ms "   \
    "used other slot_left_ms slot_free_ms ahead writers slots other_kind"
#define GRANT_COLUMNS "fence slot epoch pid token"

/* As the statement look tells it. */
enum state { FREE, EXCLUSIVE, SHARED };

/* ----------------------------------------------------------------- what is sent */

void shared_kind(const struct dlock_spec *spec, char buf[8])
{
    if (spec->mode == DLOCK_MODE_SLOTS)
        snprintf(buf, 8, "n%u", spec->slots % 10000);
    else
        snprintf(buf, 8, "%s", spec->mode == DLOCK_MODE_SHARED ? "s" : "");
}

void shared_send_try(struct sql_store *be)
{
    char kind[8];
    table_trying(be);
    if (be->table.take) {
        table_send(be, T_TRY, AND_HOLDERS, NULL, STATEMENTS(be->sql->shared_free));
        return;
    }
    bool look = be->table.line.tries++ % LOOK_ONE_OF == 0;
    shared_kind(be->spec, kind);
    table_send(
        be, T_TRY, AND_HOLDERS,
        PLACES({"slots", NULL, be->spec->slots}, {"kind", kind, 0}, {"look", NULL, look},
               {"orphan", be->table.orphan, 0}, {"table_name", be->table.name, 0}),
        STATEMENTS(be->table.make ? be->sql->make : NULL, be->sql->grace, be->sql->shared_look));
}

/* passed: waiters in our way did not take the lock in their turns. */
static void send_grant(struct sql_store *be, bool passed)
{
    table_trying(be);
    sql_describe(be, RECORD_HOLDS);
    table_send(be, T_CONFIRM, AND_HOLDERS,
               PLACES({"slots", NULL, be->spec->slots},
                      {"passed", NULL, passed ? be->table.line.ticket - 1 : 0}),
               STATEMENTS(be->sql->grace, be->sql->shared_lock, be->sql->shared_grant));
}

void shared_send_give_back(struct sql_store *be, enum sql_tag tag, const char *token,
                           int64_t stays_ms)
{
    table_send(be, tag, AND_HOLDERS, PLACES({"token", token, 0}, {"stays", NULL, stays_ms}),
               STATEMENTS(be->sql->lock_row,
                          stays_ms > 0 ? be->sql->shared_stay : be->sql->shared_release));
}

/* --------------------------------------------------------------- a writer waits */

int64_t shared_notice_life(const struct sql_store *be)
{
    return dlock_min(be->spec->ttl, NOTICE_LIFE);
}

void shared_send_notice(struct sql_store *be)
{
    be->table.notice.at = sql_now(be) + shared_notice_life(be) / 4;
    table_send(be, T_NOTICE, AND_HOLDERS,
               PLACES({"token", be->table.notice.token, 0},
                      {"life", NULL, shared_notice_life(be) / DLOCK_MSEC}),
               STATEMENTS(be->sql->not_durable, be->sql->shared_notice));
}

void shared_withdraw_notice(struct sql_store *be)
{
    bool given = be->table.notice.at != 0 && be->table.notice.at != DLOCK_NEVER;
    be->table.notice.at = 0;
    if (!given)
        return;
    table_send(be, T_NOTICE, AND_HOLDERS, PLACES({"token", be->table.notice.token, 0}),
               STATEMENTS(be->sql->shared_withdraw));
}

/* --------------------------------------------------------------------- acquire */

/* How long the lock must have been free, in ms, below LONGEST_TURN. As in the statement try. */
static int64_t turn(int64_t ahead)
{
    return ahead * LONGEST_TURN / DLOCK_MSEC * 2 / (ahead * 2 + 5);
}

static int64_t number(const struct sql_reply *r, const char *column)
{
    return sql_number(r->rows, 0, column);
}

/* The waiters in our way, with room free slots. */
static int64_t in_our_way(const struct sql_store *be, const struct sql_reply *r, int64_t room)
{
    int64_t slots = be->spec->slots > 0 ? dlock_max(0, number(r, "slots") + 1 - room) : 0;
    return number(r, "writers") + slots;
}

/* Is there room for a further holder of our kind? */
static void judge_shared(const struct sql_store *be, const struct sql_reply *r,
                         struct table_refusal *why)
{
    int64_t room = (int64_t)be->spec->slots - number(r, "used");
    why->held = true;
    if (number(r, "writers") > 0 && number(r, "young")) {
        why->left_ms = LONGEST_TURN / DLOCK_MSEC;
    } else if (be->spec->slots == 0) {
        why->held = false;
    } else if (room <= 0) {
        why->left_ms = sql_ms(r->rows, 0, "slot_left_ms");
        why->turn_ms = turn(number(r, "slots"));
    } else {
        why->held = false;
        why->turn_ms =
            turn(dlock_max(0, number(r, "slots") + 1 - room)) - sql_ms(r->rows, 0, "slot_free_ms");
    }
}

/* When may we have it? Now: not held, and no turn to wait for. */
static void judge(struct sql_store *be, const struct sql_reply *r, struct table_refusal *why)
{
    enum state state = (enum state)number(r, "state");
    *why = (struct table_refusal){
        .owner = number(r, "orphan") > 0 ? be->table.orphan : sql_text(r->rows, 0, "owner"),
        .direct = number(r, "pid") == be->conn->session,
        .ticket = number(r, "ticket"),
        .ahead = sql_null(r->rows, 0, "ahead") ? -1 : number(r, "ahead"),
        .rows = r->rows,
    };
    if (state != FREE) {
        table_read_holder(&be->info, sql_text(r->rows, 0, "holder"), sql_ms(r->rows, 0, "left_ms"),
                          number(r, "fence"));
        if (state == SHARED && be->info.mode == DLOCK_MODE_EXCLUSIVE)
            be->info.mode = DLOCK_MODE_SHARED;
        why->info = &be->info;
    }
    if (state == EXCLUSIVE) {
        why->held = true;
        why->left_ms = sql_ms(r->rows, 0, "left_ms");
        why->turn_ms = turn(in_our_way(be, r, be->spec->slots));
    } else if (sql_ms(r->rows, 0, "barred_ms") > 0) {
        why->held = true;
        why->left_ms = sql_ms(r->rows, 0, "barred_ms");
    } else if (state == FREE) {
        why->turn_ms = turn(in_our_way(be, r, be->spec->slots)) - sql_ms(r->rows, 0, "free_ms");
    } else {
        judge_shared(be, r, why);
    }
}

static void looked(struct sql_store *be, const struct sql_reply *r)
{
    struct table_refusal why;
    struct dlock_error err;
    int64_t room = be->spec->slots;
    /* The number of slots that other clients hold or wait for, if not ours. */
    unsigned other = (unsigned)number(r, "other");
    if (other == 0)
        other = table_slots_of(sql_text(r->rows, 0, "other_kind"));
    be->table.try = TRY_NONE;
    judge(be, r, &why);
    if (other > 0 && room > 0) {
        other_slots(&err, be->spec, other);
        sql_fail(be, &err);
    } else if (why.held || why.turn_ms > 0) {
        table_refused(be, &why);
    } else if (number(r, "grace_ms") > 0) {
        sql_in_grace(be, number(r, "grace_ms"));
    } else {
        be->table.line.ticket = why.ticket;
        send_grant(be, in_our_way(be, r, room - number(r, "used")) > 0);
    }
}

static void grant_answered(struct sql_store *be, const struct sql_reply *r)
{
    if (sql_null(r->rows, 0, "fence")) { /* another client was faster */
        be->table.try = TRY_NONE;
        be->acquire.try_at = sql_now(be) + DLOCK_MSEC;
        return;
    }
    be->fence = (uint64_t)number(r, "fence");
    be->slot = (int)number(r, "slot");
    snprintf(be->table.epoch, sizeof(be->table.epoch), "%s", sql_text(r->rows, 0, "epoch"));
    table_granted(be, r);
}

static void found_free(struct sql_store *be, const struct sql_reply *r)
{
    if (!table_try_is_ours(be, r, FREE_COLUMNS))
        return;
    be->table.line.ticket = number(r, "ticket");
    send_grant(be, false);
}

void shared_answered(struct sql_store *be, const struct sql_reply *r, bool first)
{
    bool look = r->tag == T_TRY;
    if (r->fault != SQL_OK)
        table_try_failed(be, r);
    else if (first)
        found_free(be, r);
    else if (!table_try_is_ours(be, r, look ? LOOK_COLUMNS : GRANT_COLUMNS))
        return;
    else if (look)
        looked(be, r);
    else
        grant_answered(be, r);
}
