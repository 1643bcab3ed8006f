/*
 * table.c - ?mode=lease: a row of a table is the lock, and expires by the server's clock. Exclusive
 * locks, and the parts common to all kinds.
 *
 *   name text primary key | fence bigint | owner text | expires timestamptz | holder text
 *   | freed timestamptz: the last release | passed bigint: see below
 *
 * The lock's own row decides a grant, by a single INSERT ... ON CONFLICT DO UPDATE ... WHERE
 * expires <= clock_timestamp(): the second client waits for the row and then sees what the first
 * client wrote. owner is a new token for each grant; renew and release name the token. The fence is
 * the larger of the stored fence plus one and the server's time in microseconds, so unused rows can
 * be deleted.
 *
 * A refused INSERT, too, locks the row and commits: the polls of many waiters would delay the
 * holder's renewal. So a try only reads while the row is held.
 *
 * No session is needed, so this works through a pooler in transaction mode, and neither a reconnect
 * nor the promotion of a standby with the row loses the lock.
 *
 * Not guaranteed: the server's clock decides; when the clock steps forward, a lease ends early.
 * When the clock steps back, new tickets are before old tickets. A foreign role can set such an
 * application_name as well, and so delay each grant by 2.8 s.
 */
#include "table.h"
#include "run_record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_ALONE DLOCK_SEC             /* between tries of a waiter that no release can wake */
#define POLL_IN_LINE (2500 * DLOCK_MSEC) /* between tries of a waiter in line */
#define SILENT_AFTER (4 * POLL_IN_LINE)  /* --status: for a waiter in line, since the last try */
#define JITTER (200 * DLOCK_MSEC)
#define AWAIT_CHUNKS 3                  /* as in await */
#define GIVE_UP_TIME (250 * DLOCK_MSEC) /* to leave the line without the lock */
#define SWEEP_ONE_OF 100
/*
 * A name with a date leaves a row behind. The row goes with a run record that is a week old; for
 * shorter records each run deletes two rows on average.
 */
#define SWEEP_ONE_OF_RUNS 10

/* Of the answers to the statements take, try and renew. */
#define TAKE_COLUMNS "fence pid token"
#define TRY_COLUMNS                                                                                \
    TAKE_COLUMNS                                                                                   \
    " holder held_fence left_ms grace_ms owner ticket ahead turn_ms"
#define RENEW_COLUMNS "renewed holder token"
#define RELEASED_IN_PART 2 /* in the column released: another client was faster, so again */

/* Other clients thwart two, one for each table that we need; more only where tables are dropped. */
#define CREATES_MAX 5
/* ----------------------------------------------------------------- what is sent */

void table_trying(struct sql_store *be)
{
    be->acquire.try_at = DLOCK_NEVER;
    if (be->sql->line->trying)
        be->sql->line->trying(be);
    if (!be->contact.pending)
        be->op_until = sql_now(be) + sql_patience(be);
    be->table.try = TRY_SENT;
}

void table_send_try(struct sql_store *be)
{
    if (table_is_shared(be)) {
        shared_send_try(be);
        return;
    }
    table_trying(be);
    sql_describe(be, RECORD_HOLDS);
    if (be->table.take) {
        table_send(be, T_TRY, NO_MORE, NULL, STATEMENTS(be->sql->take));
        return;
    }
    const struct sql_place *own = PLACES({"look", NULL, be->table.line.tries++ % LOOK_ONE_OF == 0});
    bool once = be->spec->once > 0;
    table_send(be, T_TRY, once ? AND_RUNS : NO_MORE, own,
               STATEMENTS(be->table.make ? be->sql->make : NULL, be->sql->grace, be->sql->try,
                          once ? be->sql->runs_begin : NULL));
}

/* A release, or T_UNDO: of what a try with this token may have got. stays_ms: see table.h. */
static void send_give_back(struct sql_store *be, enum sql_tag tag, const char *token,
                           int64_t stays_ms)
{
    /* Again: the lock on the row makes this commit wait for the standby as the first did. */
    bool again = tag == T_RELEASE && be->table.release == RELEASE_UNCLEAR;
    if (table_is_shared(be))
        shared_send_give_back(be, tag, token, stays_ms);
    else
        table_send(be, tag, NO_MORE, PLACES({"token", token, 0}, {"stays", NULL, stays_ms}),
                   STATEMENTS(again ? be->sql->lock_row : NULL, be->sql->release));
}

static void send_release(struct sql_store *be)
{
    bool brief = be->granted && table_stays_ms(be) == 0 && be->table.release == RELEASE_UNSENT;
    const char *leave = brief ? be->sql->line->leave(be) : NULL;
    if (be->table.release == RELEASE_UNSENT)
        be->table.release = RELEASE_SENT; /* once unclear, always unclear */
    if (run_record_begun(be->spec) && be->granted)
        runs_send_release(be);
    else if (leave && table_is_shared(be))
        table_send(be, T_LEAVE, AND_HOLDERS, NULL, STATEMENTS(be->sql->lock_row, leave));
    else if (leave)
        table_send(be, T_LEAVE, NO_MORE, NULL, STATEMENTS(leave));
    else
        send_give_back(be, T_RELEASE, be->token, table_stays_ms(be));
}

static int64_t random_part(const struct sql_store *be, int64_t most)
{
    uint32_t r = 0;
    (void)be->spec->env->random(be->spec->env->ctx, &r, sizeof(r));
    return (int64_t)r % most;
}

/*
 * A release in a hundred (of --once, in ten) deletes unused rows: behind the release on the same
 * connection, where nothing waits. Through a pooler nothing may follow the release, so there the
 * grants delete.
 */
static void maybe_sweep(struct sql_store *be)
{
    if (be->spec->once > 0)
        table_send(
            be, T_SWEEP, AND_RUNS, NULL,
            STATEMENTS(
                be->sql->runs_sweep)); /* with dates in their names, each run leaves a record */
    if (random_part(be, be->spec->once > 0 ? SWEEP_ONE_OF_RUNS : SWEEP_ONE_OF) != 0)
        return;
    table_send(be, T_SWEEP, NO_MORE, NULL, STATEMENTS(be->sql->sweep));
    if (table_is_shared(be))
        table_send(be, T_SWEEP, AND_HOLDERS, NULL, STATEMENTS(be->sql->shared_sweep));
}

/* --------------------------------------------------------------------- acquire */

static void table_acquire(struct sql_store *be)
{
    be->table.make = false;
    be->table.take = be->spec->once == 0 && be->restart_grace == 0 &&
                     (table_is_shared(be) ? be->sql->shared_free : be->sql->take);
    be->table.try = TRY_NONE;
    be->table.orphan[0] = '\0';
    be->table.creates = 0;
    be->table.line.ticket = 0;
    be->table.line.tries = be->table.line.place = 0;
    be->sql->line->reset(be, true);
    be->table.release = RELEASE_UNSENT;
    be->table.notice.at = 0;
    memcpy(be->table.notice.token, be->token, sizeof(be->table.notice.token));
    sql_connect(be);
}

/* An unanswered try may be served later: the undo follows on the same connection. */
static void table_abandon(struct sql_store *be)
{
    if (be->table.try != TRY_NONE && be->conn->state == CONN_UP && sql_is_busy(be))
        send_release(be);
}

static void orphan_try(struct sql_store *be)
{
    if (be->table.try == TRY_SENT)
        be->table.try = TRY_ORPHANED;
}

/* Only another program writes such a row. Returns DLOCK_EDATA. */
static int bad_row(const struct sql_store *be, struct dlock_error *err)
{
    return dlock_fail_at(err, DLOCK_EDATA, 0, sql_where(be),
                         "the fence (or passed) in the row of '%s' in %s is not between 1 and "
                         "2^63 - 2: correct the row, or delete it while the lock is free",
                         be->spec->uri->name, be->table.name);
}

void table_granted(struct sql_store *be, const struct sql_reply *r)
{
    struct dlock_error err;
    if (be->fence == 0 || be->fence > INT64_MAX) { /* the release undoes the grant */
        bad_row(be, &err);
        sql_fail(be, &err);
        return;
    }
    be->table.release = RELEASE_UNSENT;
    be->sql->line->granted(be, r);
    be->table.line.joined = false;
    shared_withdraw_notice(be);
    if (be->conn->one_by_one)
        maybe_sweep(be);
    sql_granted(be, r->sent);
}

void table_read_holder(struct dlock_info *info, const char *holder, int64_t left_ms, int64_t fence)
{
    *info = (struct dlock_info){
        .left_ns = left_ms * DLOCK_MSEC, .waited_ms = -1, .fence = (uint64_t)dlock_max(0, fence)};
    info->foreign = !dlock_identity_parse(holder, strlen(holder), info);
    /* Behind the record of a holder of a slot. */
    unsigned n = 0, slot = 0;
    const char *at = strstr(holder, " slots=");
    if (at && sscanf(at, " slots=%4u slot=%4u", &n, &slot) == 2 && n <= DLOCK_SLOTS_MAX &&
        slot <= n) {
        info->mode = DLOCK_MODE_SLOTS;
        info->slots = n;
        info->slot = (int)slot;
    }
}

/* The text behind the prefix; NULL: it does not begin so. */
static const char *behind(const char *text, const char *prefix)
{
    size_t len = strlen(prefix);
    return strncmp(text, prefix, len) == 0 ? text + len : NULL;
}

void table_read_owner(struct dlock_info *info, const char *owner)
{
    const char *over = behind(owner, OVER_OWNER), *broken = behind(owner, BREAK_OWNER);
    const char *token = over ? over : broken ? broken : owner;
    info->over = over != NULL;
    info->broken = broken != NULL;
    if (!broken) {
        info->broken_by[0] = '\0';
        info->broken_ms = 0;
    }
    if (!behind(token, SHARED_OWNER) && strlen(token) <= DLOCK_TOKEN_LEN)
        dlock_clean_text(info->token, sizeof(info->token), token, strlen(token));
}

int64_t table_next_poll(const struct sql_store *be)
{
    return sql_now(be) + POLL_IN_LINE - random_part(be, JITTER);
}

/* Wait for a call, and poll: also at our turn after the lease, as the holder may be dead. */
void table_try_in_time(struct sql_store *be, const struct table_refusal *why)
{
    int64_t now = sql_now(be), turn = now + (dlock_max(0, why->turn_ms) + 1) * DLOCK_MSEC;
    int64_t jitter = random_part(be, JITTER), poll = POLL_IN_LINE - jitter;
    if (be->table.notice.at != 0 && be->table.notice.at != DLOCK_NEVER)
        poll = dlock_min(poll, shared_notice_life(be) / 3);
    be->op_until = DLOCK_NEVER;
    if (!why->held && why->turn_ms <= 0)
        /* another client was faster; our snapshot is too old to show its row */
        be->acquire.try_at = now + jitter;
    else if (!why->held)
        be->acquire.try_at = turn;
    else if (be->table.line.joined)
        be->acquire.try_at = dlock_min(now + poll, turn + why->left_ms * DLOCK_MSEC);
    else
        be->acquire.try_at = dlock_min(now + POLL_ALONE, turn + why->left_ms * DLOCK_MSEC) + jitter;
}

static void wait_on(struct sql_store *be, const struct table_refusal *why)
{
    bool stands = be->table.line.joined && be->table.line.ticket == why->ticket;
    bool shared = why->held && strncmp(why->owner, SHARED_OWNER, strlen(SHARED_OWNER)) == 0;
    struct dlock_event *ev = events_add(&be->events, EV_WAITING);
    ev->info = why->info;
    if (why->ahead >= 0)
        be->table.line.place = (int)why->ahead + 1;
    ev->place = why->direct && !be->table.line.polls ? be->table.line.place : 0;
    be->table.line.ticket = why->ticket;
    /* A writer tells later waiters, before all further messages. */
    if (!table_is_shared(be) && shared && be->sql->shared_notice &&
        sql_now(be) >= be->table.notice.at)
        shared_send_notice(be);
    if (why->info && be->table.orphan[0] && strcmp(why->owner, be->table.orphan) == 0) {
        /* Our orphan waited for the row, in a session that missed the broken connection. */
        send_give_back(be, T_UNDO, be->table.orphan, 0);
        be->table.orphan[0] = '\0';
        table_send_try(be);
    } else {
        be->sql->line->wait(be, why, stands);
    }
}

void table_refused(struct sql_store *be, const struct table_refusal *why)
{
    be->table.try = TRY_NONE;
    /* Our caller may find from the token that the caller itself is the holder. */
    if (why->info)
        table_read_owner(&be->info, why->owner);
    if (be->acquire.wait)
        wait_on(be, why);
    else
        sql_busy(be, why->info);
}

static void not_granted(struct sql_store *be, const struct sql_reply *r)
{
    struct table_refusal why = {
        .owner = sql_text(r->rows, 0, "owner"),
        .direct = sql_number(r->rows, 0, "pid") == be->conn->session,
        .ticket = sql_number(r->rows, 0, "ticket"),
        .ahead = sql_null(r->rows, 0, "ahead") ? -1 : sql_number(r->rows, 0, "ahead"),
        .held = !sql_null(r->rows, 0, "left_ms"),
        .left_ms = sql_ms(r->rows, 0, "left_ms"),
        .turn_ms = sql_ms(r->rows, 0, "turn_ms"),
        .rows = r->rows,
    };
    be->table.try = TRY_NONE;
    if (why.held) {
        table_read_holder(&be->info, sql_text(r->rows, 0, "holder"), why.left_ms,
                          sql_number(r->rows, 0, "held_fence"));
        bool shared = strncmp(why.owner, SHARED_OWNER, strlen(SHARED_OWNER)) == 0;
        if (shared && be->info.mode == DLOCK_MODE_EXCLUSIVE)
            be->info.mode = DLOCK_MODE_SHARED;
        why.info = &be->info;
    }
    if (!why.held && sql_ms(r->rows, 0, "grace_ms") > 0)
        sql_in_grace(be, sql_ms(r->rows, 0, "grace_ms"));
    else
        table_refused(be, &why);
}

static void create_answered(struct sql_store *be, const struct sql_reply *r)
{
    struct dlock_error err;
    /*
     * A second client created a table at the same time. That has rolled back the whole request: the
     * next try finds the other table missing, and creates.
     */
    if (r->fault == SQL_OK || r->fault == SQL_EXISTS) {
        table_send_try(be);
        return;
    }
    int code = sql_error(be, r, &err);
    dlock_fail_at(&err, code, 0, sql_where(be),
                  "the table for %s does not exist and cannot be created: %s; as a role with that "
                  "permission run: dlock --schema LOCK | %s ...",
                  be->table.lacks == be->table.runs      ? "run records"
                  : be->table.lacks == be->table.holders ? "holders"
                                                         : "locks",
                  r->text, be->driver->client);
    be->table.creates = 0;
    sql_try_later(be, &err, false);
}

void table_try_failed(struct sql_store *be, const struct sql_reply *r)
{
    struct dlock_error err;
    be->table.try = r->unclear ? TRY_ORPHANED : TRY_NONE;
    if (r->fault == SQL_NO_TABLE && be->table.creates < CREATES_MAX) {
        be->table.lacks = strstr(r->text, be->table.holders) ? be->table.holders
                          : strstr(r->text, be->table.runs)  ? be->table.runs
                                                             : be->table.name;
        be->table.creates++;
        /* Without the check: CREATE TABLE runs no code of a table that was made meanwhile. */
        be->conn->guarded = false;
        table_send(be, T_SCHEMA, NO_MORE, NULL,
                   STATEMENTS(be->sql->schema, table_is_shared(be)  ? be->sql->shared_schema
                                               : be->spec->once > 0 ? be->sql->runs_schema
                                                                    : NULL));
        be->conn->guarded = true;
        return;
    }
    if (r->fault == SQL_RANGE)
        bad_row(be, &err);
    else
        sql_error(be, r, &err);
    sql_try_later(be, &err, r->fault == SQL_PASSES);
}

/* See table_try_is_ours(). */
static bool is_ours(const struct sql_store *be, const struct sql_reply *r, const char *columns)
{
    return sql_one_row(r, columns) && strcmp(sql_text(r->rows, 0, "token"), be->token) == 0;
}

bool table_try_is_ours(struct sql_store *be, const struct sql_reply *r, const char *columns)
{
    struct dlock_error err;
    if (!is_ours(be, r, columns)) {
        table_not_ours(be, r, DLOCK_EPROTO, &err);
        sql_fail(be, &err);
        return false;
    }
    be->conn->one_by_one =
        be->driver->one_by_one || sql_number(r->rows, 0, "pid") != be->conn->session;
    be->contact.pending = false;
    outage_over(&be->outage, &be->events);
    return true;
}

static void try_answered(struct sql_store *be, const struct sql_reply *r)
{
    struct dlock_error err;
    bool take = be->table.take, makes = be->sql->make && !be->table.make;
    be->table.take = false;
    if (sql_unconfirmed(r)) {
        sql_error(be, r, &err);
        orphan_try(be); /* perhaps granted, or skipped: undo, then try again */
        sql_try_later(be, &err, true);
    } else if ((take || makes) && r->fault == SQL_OK && r->rows && r->rows->n == 0) {
        be->table.make = !take; /* there is no row yet */
        be->table.try = TRY_NONE;
        table_send_try(be);
    } else if (table_is_shared(be)) {
        shared_answered(be, r, take);
    } else if (r->fault != SQL_OK) {
        table_try_failed(be, r);
    } else if (be->spec->once > 0 && runs_answered(be, r)) {
        return;
    } else if (table_try_is_ours(be, r, take ? TAKE_COLUMNS : TRY_COLUMNS)) {
        be->fence = (uint64_t)sql_number(r->rows, 0, "fence");
        if (sql_null(r->rows, 0, "fence"))
            not_granted(be, r);
        else
            table_granted(be, r);
    }
}

/* ----------------------------------------------------------------------- renew */

/* The row is not ours: who holds the lock. */
static void describe_row(const struct sql_store *be, const struct sql_reply *r,
                         struct dlock_error *err)
{
    struct dlock_info info;
    if (sql_null(r->rows, 0, "holder")) {
        dlock_fail_at(err, DLOCK_ELOST, 0, sql_where(be),
                      "the lease expired, or its row was changed");
        return;
    }
    table_read_holder(&info, sql_text(r->rows, 0, "holder"), 0, 0);
    dlock_fail_at(err, DLOCK_ELOST, 0, sql_where(be), "%s@%s, pid %ld holds the lock now",
                  info.user, info.host, info.pid);
}

static void renew_answered(struct sql_store *be, const struct sql_reply *r)
{
    struct dlock_error err;
    struct dlock_info info;
    bool ours = is_ours(be, r, RENEW_COLUMNS), unconfirmed = sql_unconfirmed(r);
    bool lost = ours && sql_number(r->rows, 0, "renewed") == 0;
    if (be->spec->hold->begin == RUN_NOW && !unconfirmed && runs_begun(be, r))
        return;
    if (!ours || (!lost && unconfirmed)) { /* the next renewal writes again, and so waits again */
        table_not_ours(be, r, DLOCK_EUNAVAIL, &err);
        /* Perhaps "read-only": by now another server may be the primary. */
        sql_close(be);
        sql_unclear(be, &err);
    } else if (!lost && !sql_null(r->rows, 0, "holder")) {
        table_read_holder(&info, sql_text(r->rows, 0, "holder"), 0, 0);
        sql_renewed(be, r->sent, info.broken_by);
    } else if (!lost) {
        sql_renewed(be, r->sent, NULL);
    } else {
        sql_op_done(be);
        describe_row(be, r, &events_add(&be->events, EV_LOST)->error);
    }
}

/* --------------------------------------------------------------------- release */

static void table_release(struct sql_store *be)
{
    shared_withdraw_notice(be);
    bool in_line = !be->granted && be->sql->line->give_up && be->sql->line->give_up(be);
    if (!be->granted && be->table.try == TRY_NONE && !in_line) {
        sql_released(be, DLOCK_RELEASE_NOTHING, NULL);
        return;
    }
    if (in_line && be->table.try == TRY_NONE) /* only the others have something of it */
        be->release.until = dlock_min(be->release.until, sql_now(be) + GIVE_UP_TIME);
    sql_connect(be);
}

/* No more tries. err: why the release, or the call behind it, was not answered. */
static void give_release_up(struct sql_store *be, const struct dlock_error *err)
{
    if (be->table.release == RELEASE_DONE)
        sql_released(be, DLOCK_RELEASE_CLEAN, NULL);
    else if (!be->granted && be->table.try == TRY_NONE)
        sql_released(be, DLOCK_RELEASE_NOTHING, NULL);
    else
        sql_released(be, DLOCK_RELEASE_UNCLEAR, err);
}

/* unclear: the release may have been served. */
static void release_failed(struct sql_store *be, bool unclear, const struct dlock_error *err)
{
    int64_t now = sql_now(be);
    bool transient = err->code == DLOCK_EUNAVAIL || err->code == DLOCK_ENOMEM;
    if (unclear && be->table.release == RELEASE_SENT)
        be->table.release = RELEASE_UNCLEAR;
    be->contact.refusal = *err;
    be->op_until = DLOCK_NEVER;
    if (now >= be->release.until || !transient || be->table.release == RELEASE_DONE)
        give_release_up(be, err);
    else
        be->outage.retry_at = dlock_min(be->release.until,
                                        now + dlock_backoff_next(&be->outage.pause, be->spec->env));
}

/* The lock is released, and the waiters have not been called. */
static void call_waiters(struct sql_store *be)
{
    be->table.release = RELEASE_DONE;
    const char *call = table_is_shared(be) ? be->sql->shared_call : be->sql->call;
    if (call)
        table_send(be, T_CALL, table_is_shared(be) ? AND_HOLDERS : NO_MORE, NULL, STATEMENTS(call));
    else
        sql_released(be, DLOCK_RELEASE_CLEAN, NULL);
}

static void release_answered(struct sql_store *be, const struct sql_reply *r)
{
    struct dlock_error err;
    bool records = run_record_begun(be->spec) && be->granted; /* the end of a run */
    bool nothing = r->fault == SQL_OK && r->rows && sql_has(r->rows, RELEASE_COLUMNS) &&
                   (r->rows->n == 0 || sql_number(r->rows, 0, "released") == 0);
    const char *columns = records ? RUNS_END_COLUMNS : RELEASE_COLUMNS;
    enum table_end end = END_UNKNOWN;
    if (r->unclear && be->table.release == RELEASE_SENT)
        be->table.release = RELEASE_UNCLEAR;
    if (records && is_ours(be, r, columns))
        end = runs_ended(be, r, &err);
    if (r->tag == T_CALL) {
        sql_released(be, DLOCK_RELEASE_CLEAN, NULL);
    } else if (r->tag == T_LEAVE && nothing) {
        send_give_back(be, T_RELEASE, be->token, 0);
    } else if (end == END_NOT_RECORDED) {
        sql_released(be, DLOCK_RELEASE_UNCLEAR, &err);
    } else if (!is_ours(be, r, columns) ||
               (sql_unconfirmed(r) && (!nothing || be->table.release == RELEASE_UNCLEAR))) {
        table_not_ours(be, r, DLOCK_EUNAVAIL, &err);
        sql_close(be);
        release_failed(be, r->fault == SQL_OK, &err);
    } else if (r->tag == T_LEAVE && sql_number(r->rows, 0, "called") > 0) {
        call_waiters(be);
    } else if (sql_number(r->rows, 0, "released") == RELEASED_IN_PART) {
        send_give_back(be, T_RELEASE, be->token, table_stays_ms(be));
    } else if (end == END_RECORDED || sql_number(r->rows, 0, "released") == 1) {
        sql_released(be, DLOCK_RELEASE_CLEAN, NULL);
    } else if (be->granted && be->table.release == RELEASE_UNCLEAR) {
        /* The answer that never came may have asked for the call. */
        call_waiters(be);
    } else if (be->granted) {
        describe_row(be, r, &err);
        sql_released(be, DLOCK_RELEASE_NOT_OURS, &err);
    } else {
        sql_released(be, DLOCK_RELEASE_NOTHING, NULL);
    }
}

/* ----------------------------------------------------------------------- slots */

static void table_send_list(struct sql_store *be);
static bool table_send_check(struct sql_store *be, bool first);

static void table_ready(struct sql_store *be)
{
    const struct sql_place *fence = PLACES({"fence", NULL, (int64_t)be->fence});
    bool begins = be->spec->hold->begin == RUN_NOW;
    be->table.line.joined = be->table.line.polls = false;
    be->sql->line->reset(be, false);
    /* A step of a query may follow a read, whose check of the second or third table has failed. */
    if (be->op == SQL_OP_STATUS)
        be->conn->guarded = true;
    if (be->conn->guarded) /* nothing is checked yet */
        be->table.checked.holders = be->table.checked.runs = false;
    switch (be->op) {
    case SQL_OP_ACQUIRE:
        /* Undo the try of the connection before, then try with another token. */
        if (be->table.try == TRY_ORPHANED) {
            send_give_back(be, T_UNDO, be->token, 0);
            be->table.try = TRY_SENT;
            memcpy(be->table.orphan, be->token, sizeof(be->table.orphan));
            if (!sql_new_token(be))
                return;
        }
        table_send_try(be);
        break;
    case SQL_OP_RENEW:
        if (table_is_shared(be))
            table_send(be, T_RENEW, AND_HOLDERS, PLACES({"epoch", be->table.epoch, 0}),
                       STATEMENTS(be->sql->lock_row, be->sql->shared_renew));
        else
            table_send(be, T_RENEW, begins ? AND_RUNS : NO_MORE, fence,
                       STATEMENTS(be->sql->renew, begins ? be->sql->runs_begin : NULL));
        break;
    case SQL_OP_RELEASE:
        send_release(be);
        if (be->granted && !be->conn->one_by_one)
            maybe_sweep(be);
        break;
    case SQL_OP_STATUS:
        sql_rows_free(be->status.first);
        be->status.first = NULL;
        be->status.run = false;
        be->status.record = (struct dlock_error){0};
        be->table.look = LOOK_FIRST;
        if (be->question->what == ASK_CHECK && be->check_second)
            table_send_check(be, false); /* unsure */
        else if (be->question->what == ASK_CHECK)
            sql_check_begin(be);
        else if (be->question->what == ASK_LIST)
            table_send_list(be);
        else if (be->order->what == STEP_FORGET)
            runs_send_forget(be);
        else if (be->order->what != STEP_READ)
            break_send(be);
        else
            table_send(be, T_STATUS, NO_MORE, PLACES({"runs_name", be->table.runs, 0}),
                       STATEMENTS(be->sql->status));
        break;
    case SQL_OP_NONE:
        break;
    }
}

void table_ready_again(struct sql_store *be)
{
    if (be->op == SQL_OP_ACQUIRE && be->table.orphan[0])
        send_give_back(be, T_UNDO, be->table.orphan, 0);
    table_ready(be);
}

static bool table_found(struct sql_store *be, struct sql_reply *r)
{
    return be->sql->found && be->sql->found(be, r);
}

static void table_answered(struct sql_store *be, const struct sql_reply *r)
{
    if (r->fault == SQL_OK && r->tag != T_SCHEMA) { /* the tables of this request were checked */
        be->conn->guarded = false;
        if (r->tag == T_NOTICE || (table_is_shared(be) && r->tag != T_LISTEN && r->tag != T_SWEEP))
            be->table.checked.holders = true;
        if (r->tag == T_TRY && be->spec->once > 0)
            be->table.checked.runs = true;
    }
    if ((r->tag == T_TRY || r->tag == T_CONFIRM) && be->op == SQL_OP_ACQUIRE)
        try_answered(be, r);
    else if (r->tag == T_SCHEMA && be->op == SQL_OP_ACQUIRE)
        create_answered(be, r);
    else if (r->tag == T_NOTICE && sql_is_refused(r))
        be->table.notice.at = DLOCK_NEVER; /* no right to the second table */
    else if (r->tag == T_WAIT || r->tag == T_LISTEN || r->tag == T_LISTENING)
        be->sql->line->answered(be, r);
    else if (r->tag == T_RENEW && be->op == SQL_OP_RENEW)
        renew_answered(be, r);
    else if ((r->tag == T_RELEASE || r->tag == T_LEAVE || r->tag == T_CALL) &&
             be->op == SQL_OP_RELEASE)
        release_answered(be, r);
    else if (r->tag == T_FORGET && be->op == SQL_OP_STATUS)
        runs_forgotten(be, r);
    else if ((r->tag == T_BREAK || r->tag == T_FREE) && be->op == SQL_OP_STATUS)
        break_answered(be, r);
}

/* A connection is only a way to the row: no lock is lost, but a holder asks now. */
static void table_failed(struct sql_store *be, const struct dlock_error *err)
{
    if (be->op == SQL_OP_ACQUIRE && be->contact.pending && !be->conn->transient) {
        sql_fail(be, err); /* the core gives up; the release undoes this try */
    } else if (be->op == SQL_OP_ACQUIRE) {
        orphan_try(be); /* a served try would make us wait for ourselves */
        sql_try_later(be, err, be->conn->transient);
    } else if (be->op == SQL_OP_RENEW) {
        sql_unclear(be, err);
    } else if (be->op == SQL_OP_RELEASE) {
        release_failed(be, true, err);
    } else if (be->op == SQL_OP_NONE && be->granted) {
        events_add(&be->events, EV_AWAY)->error = *err;
    }
}

static void table_timeout(struct sql_store *be, int64_t now)
{
    struct dlock_error err;
    if (be->op == SQL_OP_RELEASE && now >= be->release.until) {
        err = be->contact.refusal;
        if (err.code == 0)
            dlock_fail_at(&err, DLOCK_EUNAVAIL, 0, sql_where(be), "no answer");
        give_release_up(be, &err);
    } else if ((be->op == SQL_OP_RELEASE || be->op == SQL_OP_RENEW) && now >= be->op_until) {
        no_answer(&err, be->spec, be->op == SQL_OP_RENEW ? be->spec->op_timeout : sql_patience(be));
        sql_close(be);
        table_failed(be, &err);
    } else if (be->op == SQL_OP_ACQUIRE && now >= be->op_until) {
        no_answer(&err, be->spec, sql_patience(be));
        if (be->conn->one_by_one) {
            orphan_try(be); /* nothing may follow the try: undo first on the next connection */
            sql_try_later(be, &err, true);
            return;
        }
        table_abandon(be);
        be->table.try = TRY_NONE;
        if (sql_new_token(be))
            sql_try_later(be, &err, true);
    } else if (be->op == SQL_OP_ACQUIRE && be->conn->state == CONN_UP && !sql_is_busy(be)) {
        if (be->sql->line->heed)
            be->sql->line->heed(be);
        if (now >= be->acquire.try_at)
            table_send_try(be);
    }
}

unsigned table_slots_of(const char *kind)
{
    unsigned long n = kind[0] == 'n' ? strtoul(kind + 1, NULL, 10) : 0;
    return n <= DLOCK_SLOTS_MAX ? (unsigned)n : 0;
}

static void read_kind(struct dlock_info *info, const char *kind, int64_t slot)
{
    info->mode = kind[0] == 'n'   ? DLOCK_MODE_SLOTS
                 : kind[0] == 's' ? DLOCK_MODE_SHARED
                                  : DLOCK_MODE_EXCLUSIVE;
    info->slots = table_slots_of(kind);
    info->slot = slot >= 0 && slot <= info->slots ? (int)slot : 0;
}

static bool table_read_info(const struct sql_rows *res, int i, struct dlock_info *info)
{
    const char *text = sql_text(res, i, "holder"), *user = sql_text(res, i, "usename"), *begin;
    if (sql_number(res, i, "what") == 2)
        return false;
    if (!sql_number(res, i, "what")) {
        table_read_holder(info, text, sql_ms(res, i, "left_ms"), sql_number(res, i, "fence"));
        read_kind(info, sql_text(res, i, "kind"), sql_number(res, i, "slot"));
        table_read_owner(info, sql_text(res, i, "owner"));
        return true;
    }
    *info = (struct dlock_info){.waiter = true, .left_ns = -1, .waited_ms = -1};
    if (sql_read_comment(text, info, &begin) == 0) { /* our role may not read this waiter's query */
        info->pid = (long)sql_number(res, i, "pid");
        info->server_pid = true;
        dlock_clean_text(info->user, sizeof(info->user), user, strlen(user));
    }
    info->silent = sql_ms(res, i, "left_ms") > SILENT_AFTER / DLOCK_MSEC;
    read_kind(info, sql_text(res, i, "kind"), 0);
    return true;
}

/* The second question is the check of the tables alone. */
static bool table_send_check(struct sql_store *be, bool first)
{
    bool runs = be->spec->once > 0;
    enum table_more more = table_is_shared(be) ? AND_HOLDERS : runs ? AND_RUNS : NO_MORE;
    be->conn->guarded = !first;
    if (first)
        table_send(be, T_STATUS, NO_MORE,
                   PLACES({"table_name", be->table.name, 0},
                          {"holders_name", table_is_shared(be) ? be->table.holders : "", 0},
                          {"runs_name", runs ? be->table.runs : "", 0},
                          {"renewal", NULL, be->spec->ttl / DLOCK_MSEC / 3}),
                   STATEMENTS(be->sql->check));
    else
        table_send(be, T_STATUS, more, NULL, STATEMENTS(be->sql->check_end));
    return true;
}

static void table_send_list(struct sql_store *be)
{
    bool shared = be->table.look == LOOK_HOLDERS;
    table_send(be, T_STATUS, shared ? AND_HOLDERS : NO_MORE,
               PLACES({"after", be->status.after, 0}, {"table_name", be->table.name, 0},
                      {"page", NULL, LIST_PAGE}, {"all", NULL, be->question->all}),
               STATEMENTS(shared ? be->sql->list_shared : be->sql->list));
}

static void table_read_entry(struct sql_store *be, int i, struct dlock_entry *entry)
{
    const struct sql_rows *rows = be->status.rows;
    const char *name = sql_text(rows, i, "name");
    bool held = sql_true(rows, i, "held");
    dlock_clean_text(be->name, sizeof(be->name), name, strlen(name));
    table_read_holder(&be->info, sql_text(rows, i, "holder"), sql_ms(rows, i, "left_ms"),
                      sql_number(rows, i, "fence"));
    read_kind(&be->info, sql_text(rows, i, "kind"), sql_number(rows, i, "slot"));
    table_read_owner(&be->info, sql_text(rows, i, "owner"));
    *entry = (struct dlock_entry){
        .name = be->name,
        .holders = !held                                   ? 0
                   : !sql_null(rows, i, "holders")         ? sql_count(rows, i, "holders")
                   : be->info.mode == DLOCK_MODE_EXCLUSIVE ? 1
                                                           : -1,
        .waiters = sql_count(rows, i, "waiters"),
        .holder = held ? &be->info : NULL,
    };
}

/* A page with readers or slots is read again, with the second table if our role may. */
static bool more_list(struct sql_store *be, struct sql_reply *r)
{
    bool refused = be->table.look == LOOK_HOLDERS && sql_is_refused(r);
    bool shared = false;
    for (int i = 0; r->rows && be->table.look == LOOK_FIRST && i < r->rows->n; i++)
        shared = shared || sql_text(r->rows, i, "kind")[0] == 's';
    if (refused)
        sql_list_partial(be,
                         "of readers and slots this role sees one holder, and not how many there "
                         "are: the second table is not readable");
    if (!refused && (!shared || be->status.partial))
        return false;
    be->table.look = refused ? LOOK_FIRST : LOOK_HOLDERS;
    be->conn->guarded = be->conn->guarded && refused;
    table_send_list(be);
    return true;
}

/* Read a further table; keep the answer with the holders and waiters. */
static bool look_on(struct sql_store *be, struct sql_reply *r, bool run)
{
    be->table.look = run ? LOOK_RUN : LOOK_HOLDERS;
    be->conn->guarded = false;
    be->status.first = r->rows;
    r->rows = NULL;
    if (run) {
        table_send(be, T_STATUS, AND_RUNS, NULL, STATEMENTS(be->sql->runs_status));
    } else {
        table_send(be, T_STATUS, AND_HOLDERS, NULL, STATEMENTS(be->sql->shared_status));
        be->table.checked.holders = true;
    }
    return true;
}

/*
 * The name's row stands for readers and slots, which are in the second table. Tables two (which may
 * be missing) and three (the run record) are read later; a role without access to these sees only
 * the name's row.
 */
static bool table_more_status(struct sql_store *be, struct sql_reply *r)
{
    if (be->question->what == ASK_LIST)
        return more_list(be, r);
    struct dlock_error err;
    bool refused = be->table.look != LOOK_FIRST && sql_is_refused(r);
    struct sql_rows *first = be->table.look == LOOK_HOLDERS ? be->status.first : r->rows;
    int n = first ? first->n : 0;
    bool shared = n > 0 && !sql_number(first, 0, "what") && sql_text(first, 0, "kind")[0] == 's';
    bool runs = n > 0 && sql_number(first, n - 1, "what") == 2 && be->question->what != ASK_BREAK;
    if (be->table.look == LOOK_FIRST) {
        if (r->fault != SQL_OK)
            return false;
        return (shared || runs) && look_on(be, r, !shared);
    }
    if (be->table.look == LOOK_RUN) {
        int rc = refused              ? sql_error(be, r, &err)
                 : r->fault != SQL_OK ? 0
                                      : runs_read_status(be, r, &err);
        if (rc < 0)
            be->status.record = err;
        be->status.run = rc == 1;
    }
    if (be->table.look == LOOK_RUN || refused) {
        sql_rows_free(r->rows);
        r->rows = be->status.first;
    } else {
        sql_rows_free(be->status.first);
    }
    be->status.first = NULL;
    if (refused)
        r->fault = SQL_OK;
    return be->table.look == LOOK_HOLDERS && r->fault == SQL_OK && runs && look_on(be, r, true);
}

const struct sql_protocol table_lease = {
    .acquire = table_acquire,
    .renew = sql_connect,
    .release = table_release,
    .ready = table_ready,
    .found = table_found,
    .answered = table_answered,
    .failed = table_failed,
    .abandon = table_abandon,
    .timeout = table_timeout,
    .more_status = table_more_status,
    .status_columns = "what holder fence left_ms usename pid kind slot owner",
    .read_info = table_read_info,
    .send_check = table_send_check,
    .send_list = table_send_list,
    .list_columns = "name held holder fence left_ms owner kind slot holders waiters",
    .read_entry = table_read_entry,
    .schema = table_schema,
};
