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
 *
 * Not guaranteed: the server's clock decides; when the clock steps forward, a lease ends early.
 * When the clock steps back, new tickets are before old tickets. A foreign role can set such an
 * application_name as well, and so delay each grant by 2.8 s.
 */
#include "table.h"
#include "postgres_sql.h"
#include "run_record.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_ALONE DLOCK_SEC             /* between tries of a waiter that no release can wake */
#define POLL_IN_LINE (2500 * DLOCK_MSEC) /* between tries of a waiter in line */
#define SILENT_AFTER (4 * POLL_IN_LINE)  /* --status: for a waiter in line, since the last try */
#define JITTER (200 * DLOCK_MSEC)
#define AWAIT_CHUNKS 3 /* as in await */
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
    " holder held_fence left_ms grace_ms owner ticket ahead turn_ms fence_before awaited before"
#define RENEW_COLUMNS "renewed holder token"

/* Other clients thwart two, one for each table that we need; more only where tables are dropped. */
#define CREATES_MAX 5
#define FINDING "dlock finding: " /* in the error of the statement check */

/* ----------------------------------------------------------------- what is sent */

static bool is_shared(const struct pg_backend *be)
{
    return be->spec->mode != DLOCK_MODE_EXCLUSIVE;
}

void table_trying(struct pg_backend *be)
{
    be->acquire.try_at = DLOCK_NEVER;
    be->conn.notified = -1;
    if (!be->contact.pending)
        be->op_until = pg_now(be) + pg_patience(be);
    be->table.try = TRY_SENT;
}

static void send_try(struct pg_backend *be)
{
    if (is_shared(be)) {
        shared_send_try(be);
        return;
    }
    table_trying(be);
    pg_describe(be, RECORD_HOLDS);
    if (be->table.take) {
        table_send(be, T_TRY, NO_MORE, NULL, STATEMENTS(sql_table_take));
        return;
    }
    const struct pg_place *own = PLACES({"look", NULL, be->table.line.tries++ % LOOK_ONE_OF == 0},
                                        {"called", NULL, be->table.line.called});
    if (be->spec->once > 0)
        table_send(be, T_TRY, AND_RUNS, own,
                   STATEMENTS(sql_table_grace, sql_table_try, sql_table_runs_begin));
    else
        table_send(be, T_TRY, NO_MORE, own, STATEMENTS(sql_table_grace, sql_table_try));
}

/* A release, or T_UNDO: of what a try with this token may have got. stays_ms: see table.h. */
static void send_give_back(struct pg_backend *be, enum pg_tag tag, const char *token,
                           int64_t stays_ms)
{
    /* Again: the lock on the row makes this commit wait for the standby as the first did. */
    bool again = tag == T_RELEASE && be->table.release == RELEASE_UNCLEAR;
    if (is_shared(be))
        shared_send_give_back(be, tag, token, stays_ms);
    else
        table_send(be, tag, NO_MORE, PLACES({"token", token, 0}, {"stays", NULL, stays_ms}),
                   again ? STATEMENTS(sql_table_lock_row, sql_table_release)
                         : STATEMENTS(sql_table_release));
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
static const char *brief_release(const struct pg_backend *be)
{
    if (is_shared(be))
        return be->table.line.tries <= 1 ? sql_table_shared_leave : NULL;
    if (be->table.line.ticket == 0)
        return sql_table_leave;
    return knows_next(be->table.line.next) ? sql_table_hand_on : NULL;
}

static void send_release(struct pg_backend *be)
{
    bool brief = be->granted && table_stays_ms(be) == 0 && be->table.release == RELEASE_UNSENT;
    const char *leave = brief ? brief_release(be) : NULL;
    if (be->table.release == RELEASE_UNSENT)
        be->table.release = RELEASE_SENT; /* once unclear, always unclear */
    if (run_record_begun(be->spec) && be->granted)
        runs_send_release(be);
    else if (leave && is_shared(be))
        table_send(be, T_LEAVE, AND_HOLDERS, NULL, STATEMENTS(sql_table_lock_row, leave));
    else if (leave)
        table_send(be, T_LEAVE, NO_MORE, PLACES({"next", be->table.line.next, 0}),
                   STATEMENTS(leave));
    else
        send_give_back(be, T_RELEASE, be->token, table_stays_ms(be));
}

static int64_t random_part(const struct pg_backend *be, int64_t most)
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
static void maybe_sweep(struct pg_backend *be)
{
    if (be->spec->once > 0)
        table_send(
            be, T_SWEEP, AND_RUNS, NULL,
            STATEMENTS(
                sql_table_runs_sweep)); /* with dates in their names, each run leaves a record */
    if (random_part(be, be->spec->once > 0 ? SWEEP_ONE_OF_RUNS : SWEEP_ONE_OF) != 0)
        return;
    table_send(be, T_SWEEP, NO_MORE, NULL, STATEMENTS(sql_table_sweep));
    if (is_shared(be))
        table_send(be, T_SWEEP, AND_HOLDERS, NULL, STATEMENTS(sql_table_shared_sweep));
}

/* --------------------------------------------------------------------- acquire */

static void forget_call(struct pg_backend *be)
{
    be->table.line.called = 0;
    be->table.line.next[0] = '\0';
}

static void table_acquire(struct pg_backend *be)
{
    be->table.take = be->spec->once == 0 && be->restart_grace == 0;
    be->table.try = TRY_NONE;
    be->table.orphan[0] = '\0';
    be->table.creates = 0;
    be->table.line.ticket = 0;
    be->table.line.tries = be->table.line.place = 0;
    forget_call(be);
    be->table.release = RELEASE_UNSENT;
    be->table.notice.at = 0;
    memcpy(be->table.notice.token, be->token, sizeof(be->table.notice.token));
    pg_connect(be);
}

/* An unanswered try may be served later: the undo follows on the same connection. */
static void table_abandon(struct pg_backend *be)
{
    if (be->table.try != TRY_NONE && be->conn.state == PC_UP && pg_conn_busy(&be->conn))
        send_release(be);
}

static void orphan_try(struct pg_backend *be)
{
    if (be->table.try == TRY_SENT)
        be->table.try = TRY_ORPHANED;
}

/* Only another program writes such a row. Returns DLOCK_EDATA. */
static int bad_row(const struct pg_backend *be, struct dlock_error *err)
{
    return dlock_fail_at(err, DLOCK_EDATA, 0, pg_where(be),
                         "the fence (or passed) in the row of '%s' in %s is not between 1 and "
                         "2^63 - 2: correct the row, or delete it while the lock is free",
                         be->spec->uri->name, be->table.name);
}

void table_granted(struct pg_backend *be, int64_t from)
{
    struct dlock_error err;
    if (be->fence == 0 || be->fence > INT64_MAX) { /* the release undoes the grant */
        bad_row(be, &err);
        pg_fail(be, &err);
        return;
    }
    be->table.release = RELEASE_UNSENT;
    be->table.line.joined = false;
    be->table.line.awaited = 0;
    shared_withdraw_notice(be);
    if (be->conn.one_by_one)
        maybe_sweep(be);
    pg_granted(be, from);
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

/*
 * A release has called us for a number of ms from now on: "0 FENCE NEXT" the first in line, so that
 * the try need not look at the line. Any role can NOTIFY any text, but not know the fence.
 */
static void heed_call(struct pg_backend *be)
{
    int64_t turn = dlock_min(be->conn.notified, LONGEST_TURN / DLOCK_MSEC) * DLOCK_MSEC;
    char *next;
    if (be->conn.notified >= 0)
        be->acquire.try_at = dlock_min(be->acquire.try_at, pg_now(be) + turn);
    if (be->conn.notified == 0) {
        be->table.line.called = dlock_max(0, strtoll(be->conn.notice, &next, 10));
        snprintf(be->table.line.next, PG_NOTICE, "%s", *next == ' ' ? next + 1 : "");
    }
    be->conn.notified = -1;
}

static int64_t next_poll(const struct pg_backend *be)
{
    return pg_now(be) + POLL_IN_LINE - random_part(be, JITTER);
}

/* Far behind in line: wait in the server, at most until the next try is due. */
static void await_in_line(struct pg_backend *be)
{
    int64_t ms = (be->acquire.try_at - pg_now(be)) / DLOCK_MSEC;
    if (ms < AWAIT_CHUNKS)
        return;
    be->op_until = be->acquire.try_at + pg_patience(be);
    be->acquire.try_at = DLOCK_NEVER;
    table_send(
        be, T_WAIT, NO_MORE,
        PLACES({"awaited", NULL, be->table.line.awaited}, {"chunk", NULL, ms / AWAIT_CHUNKS}),
        STATEMENTS(sql_table_await_settings, sql_table_await, sql_table_awaited));
}

/* Wait for a call, and poll: also at our turn after the lease, as the holder may be dead. */
static void try_again_in_time(struct pg_backend *be, const struct table_refusal *why)
{
    int64_t now = pg_now(be), turn = now + (dlock_max(0, why->turn_ms) + 1) * DLOCK_MSEC;
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
    heed_call(be);
    if (be->table.line.awaited > 0)
        await_in_line(be);
}

/*
 * Is this waiter far behind, if the try has looked? A writer with a notice must withdraw that at
 * once, and keeps the connection free.
 */
static void note_distance(struct pg_backend *be, const struct table_refusal *why)
{
    if (why->ahead >= 0) {
        be->table.line.awaited = why->awaited;
        be->table.line.before = why->before;
    }
    if (is_shared(be) || be->table.line.no_await || be->table.notice.at != 0)
        be->table.line.awaited = 0;
}

static void start_listening(struct pg_backend *be)
{
    be->table.line.awaited = 0;
    be->op_until = pg_now(be) + pg_patience(be);
    table_send(be, T_LISTENING, NO_MORE, PLACES({"before", NULL, be->table.line.before}),
               STATEMENTS(sql_table_listen, sql_table_next_in_line));
}

static void await_answered(struct pg_backend *be, const struct pg_reply *r)
{
    bool answered = pg_one_row(r, "gone held");
    if (!answered)
        be->table.line.no_await = true;
    if (!answered || pg_true(r->rows, 0, "gone")) {
        start_listening(be);
    } else if (pg_true(r->rows, 0, "held") && be->table.line.tries % LOOK_ONE_OF != 0) {
        be->table.line.tries++;
        be->acquire.try_at = next_poll(be);
        await_in_line(be);
    } else {
        send_try(be);
    }
}

static void listening(struct pg_backend *be, const struct pg_reply *r)
{
    if (!pg_one_row(r, "in_line") || !pg_true(r->rows, 0, "in_line")) {
        send_try(be);
        return;
    }
    be->op_until = DLOCK_NEVER;
    be->acquire.try_at = next_poll(be);
    heed_call(be);
}

/*
 * Only a session of our own bears the ticket: behind a pooler the next client would inherit the
 * ticket. From now on later tries count this waiter, and releases call this waiter. An earlier
 * release did not call, so try again, unless far behind.
 */
static void join_line(struct pg_backend *be, const struct table_refusal *why)
{
    char ticket[24], kind[8];
    bool fresh = !be->table.line.joined;
    be->table.line.joined = true;
    shared_kind(be->spec, kind);
    snprintf(ticket, sizeof(ticket), "%016" PRId64, be->table.line.ticket);
    note_distance(be, why);
    if (be->table.line.awaited == 0)
        table_send(be, T_LISTEN, NO_MORE, NULL, STATEMENTS(sql_table_listen));
    table_send(be, T_LISTEN, NO_MORE,
               PLACES({"ticket", ticket, 0}, {"kind", kind, 0}, {"fresh", NULL, fresh}),
               STATEMENTS(sql_table_stand_in_line));
    if (be->table.line.awaited == 0)
        send_try(be);
    else
        try_again_in_time(be, why);
}

static void wait_on(struct pg_backend *be, const struct table_refusal *why)
{
    bool direct = why->direct && !be->table.line.no_listen;
    bool stands = be->table.line.joined && be->table.line.ticket == why->ticket;
    bool awaits = be->table.line.awaited > 0;
    bool shared = why->held && strncmp(why->owner, SHARED_OWNER, strlen(SHARED_OWNER)) == 0;
    struct dlock_event *ev = events_add(&be->events, EV_WAITING);
    ev->info = why->info;
    if (why->ahead >= 0)
        be->table.line.place = (int)why->ahead + 1;
    ev->place = direct ? be->table.line.place : 0;
    be->table.line.ticket = why->ticket;
    /* A writer tells later waiters, before all further messages. */
    if (!is_shared(be) && shared && pg_now(be) >= be->table.notice.at)
        shared_send_notice(be);
    if (why->info && be->table.orphan[0] && strcmp(why->owner, be->table.orphan) == 0) {
        /* Our orphan waited for the row, in a session that missed the broken connection. */
        send_give_back(be, T_UNDO, be->table.orphan, 0);
        be->table.orphan[0] = '\0';
        send_try(be);
    } else if (direct && !stands) {
        join_line(be, why);
    } else {
        if (awaits)
            note_distance(be, why);
        if (awaits && be->table.line.awaited == 0)
            start_listening(be);
        else
            try_again_in_time(be, why);
    }
}

void table_refused(struct pg_backend *be, const struct table_refusal *why)
{
    be->table.try = TRY_NONE;
    forget_call(be);
    /* Our caller may find from the token that the caller itself is the holder. */
    if (why->info)
        table_read_owner(&be->info, why->owner);
    if (be->acquire.wait)
        wait_on(be, why);
    else
        pg_busy(be, why->info);
}

static void not_granted(struct pg_backend *be, const struct pg_reply *r)
{
    struct table_refusal why = {
        .owner = pg_text(r->rows, 0, "owner"),
        .direct = pg_number(r->rows, 0, "pid") == PQbackendPID(be->conn.pq),
        .ticket = pg_number(r->rows, 0, "ticket"),
        .ahead = pg_null(r->rows, 0, "ahead") ? -1 : pg_number(r->rows, 0, "ahead"),
        .held = !pg_null(r->rows, 0, "left_ms"),
        .left_ms = pg_ms(r->rows, 0, "left_ms"),
        .turn_ms = pg_ms(r->rows, 0, "turn_ms"),
        .awaited = (int)pg_number(r->rows, 0, "awaited"),
        .before = (int)pg_number(r->rows, 0, "before"),
    };
    be->table.try = TRY_NONE;
    if (why.held) {
        table_read_holder(&be->info, pg_text(r->rows, 0, "holder"), why.left_ms,
                          pg_number(r->rows, 0, "held_fence"));
        bool shared = strncmp(why.owner, SHARED_OWNER, strlen(SHARED_OWNER)) == 0;
        if (shared && be->info.mode == DLOCK_MODE_EXCLUSIVE)
            be->info.mode = DLOCK_MODE_SHARED;
        why.info = &be->info;
    }
    if (!why.held && pg_ms(r->rows, 0, "grace_ms") > 0)
        pg_in_grace(be, pg_ms(r->rows, 0, "grace_ms"));
    else
        table_refused(be, &why);
}

static void create_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    /*
     * 23505, 42P07, 42710 (the row type): a second client created a table at the same time. That
     * has rolled back the whole request: the next try finds the other table missing, and creates.
     */
    if (!r->sqlstate[0] || strcmp(r->sqlstate, "23505") == 0 || strcmp(r->sqlstate, "42P07") == 0 ||
        strcmp(r->sqlstate, "42710") == 0) {
        send_try(be);
        return;
    }
    int code = pg_conn_reply_error(&be->conn, r, &err);
    dlock_fail_at(&err, code, 0, pg_where(be),
                  "the table for %s does not exist and cannot be created: %s; as a role with that "
                  "permission run: dlock --schema LOCK | psql ...",
                  be->table.lacks == be->table.runs      ? "run records"
                  : be->table.lacks == be->table.holders ? "holders"
                                                         : "locks",
                  r->text);
    be->table.creates = 0;
    pg_try_later(be, &err, false);
}

void table_try_failed(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    be->table.try = TRY_NONE;
    if (strcmp(r->sqlstate, "42P01") == 0 && be->table.creates < CREATES_MAX) {
        be->table.lacks = strstr(r->text, be->table.holders) ? be->table.holders
                          : strstr(r->text, be->table.runs)  ? be->table.runs
                                                             : be->table.name;
        be->table.creates++;
        /* Without the check: CREATE TABLE runs no code of a table that was made meanwhile. */
        be->conn.guarded = false;
        table_send(be, T_SCHEMA, NO_MORE, NULL,
                   STATEMENTS(sql_table_schema, is_shared(be)        ? sql_table_shared_schema
                                                : be->spec->once > 0 ? sql_table_runs_schema
                                                                     : NULL));
        be->conn.guarded = true;
        return;
    }
    if (strcmp(r->sqlstate, "22003") == 0) /* a sum beyond bigint */
        bad_row(be, &err);
    else
        pg_conn_reply_error(&be->conn, r, &err);
    bool transient = strncmp(r->sqlstate, "53", 2) == 0 || strncmp(r->sqlstate, "57", 2) == 0 ||
                     strncmp(r->sqlstate, "40", 2) == 0 || strcmp(r->sqlstate, "55P03") == 0;
    pg_try_later(be, &err, transient);
}

/* See table_try_is_ours(). */
static bool is_ours(const struct pg_backend *be, const struct pg_reply *r, const char *columns)
{
    return pg_one_row(r, columns) && strcmp(pg_text(r->rows, 0, "token"), be->token) == 0;
}

bool table_try_is_ours(struct pg_backend *be, const struct pg_reply *r, const char *columns)
{
    struct dlock_error err;
    if (!is_ours(be, r, columns)) {
        table_not_ours(be, r, DLOCK_EPROTO, &err);
        pg_fail(be, &err);
        return false;
    }
    be->conn.one_by_one = pg_number(r->rows, 0, "pid") != PQbackendPID(be->conn.pq);
    be->contact.pending = false;
    outage_over(&be->outage, &be->events);
    return true;
}

static void try_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    bool take = be->table.take;
    be->table.take = false;
    if (pg_unconfirmed(r)) {
        pg_conn_reply_error(&be->conn, r, &err);
        orphan_try(be); /* perhaps granted, or skipped: undo, then try again */
        pg_try_later(be, &err, true);
    } else if (take && !r->sqlstate[0] && r->rows && PQntuples(r->rows) == 0) {
        be->table.try = TRY_NONE;
        send_try(be);
    } else if (is_shared(be)) {
        shared_answered(be, r, take);
    } else if (r->sqlstate[0]) {
        table_try_failed(be, r);
    } else if (be->spec->once > 0 && runs_answered(be, r)) {
        return;
    } else if (table_try_is_ours(be, r, take ? TAKE_COLUMNS : TRY_COLUMNS)) {
        be->fence = (uint64_t)pg_number(r->rows, 0, "fence");
        if (pg_null(r->rows, 0, "fence"))
            not_granted(be, r);
        else {
            /* Else the call was forged, or another client has had the lock since. */
            if (take || pg_number(r->rows, 0, "fence_before") != be->table.line.called ||
                pg_number(r->rows, 0, "ticket") != be->table.line.ticket)
                forget_call(be);
            table_granted(be, r->sent);
        }
    }
}

/* ----------------------------------------------------------------------- renew */

/* The row is not ours: who holds the lock. */
static void describe_row(const struct pg_backend *be, const struct pg_reply *r,
                         struct dlock_error *err)
{
    struct dlock_info info;
    if (pg_null(r->rows, 0, "holder")) {
        dlock_fail_at(err, DLOCK_ELOST, 0, pg_where(be),
                      "the lease expired, or its row was changed");
        return;
    }
    table_read_holder(&info, pg_text(r->rows, 0, "holder"), 0, 0);
    dlock_fail_at(err, DLOCK_ELOST, 0, pg_where(be), "%s@%s, pid %ld holds the lock now", info.user,
                  info.host, info.pid);
}

static void renew_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    struct dlock_info info;
    bool ours = is_ours(be, r, RENEW_COLUMNS), unconfirmed = pg_unconfirmed(r);
    bool lost = ours && pg_number(r->rows, 0, "renewed") == 0;
    if (be->spec->hold->begin == RUN_NOW && !unconfirmed && runs_begun(be, r))
        return;
    if (!ours || (!lost && unconfirmed)) { /* the next renewal writes again, and so waits again */
        table_not_ours(be, r, DLOCK_EUNAVAIL, &err);
        /* Perhaps "read-only": by now another server may be the primary. */
        pg_conn_close(&be->conn);
        pg_unclear(be, &err);
    } else if (!lost && !pg_null(r->rows, 0, "holder")) {
        table_read_holder(&info, pg_text(r->rows, 0, "holder"), 0, 0);
        pg_renewed(be, r->sent, info.broken_by);
    } else if (!lost) {
        pg_renewed(be, r->sent, NULL);
    } else {
        pg_op_done(be);
        describe_row(be, r, &events_add(&be->events, EV_LOST)->error);
    }
}

/* --------------------------------------------------------------------- release */

static void table_release(struct pg_backend *be)
{
    shared_withdraw_notice(be);
    if (!be->granted && be->table.try == TRY_NONE)
        pg_released(be, DLOCK_RELEASE_NOTHING, NULL);
    else
        pg_connect(be);
}

/* No more tries. err: why the release, or the call behind it, was not answered. */
static void give_release_up(struct pg_backend *be, const struct dlock_error *err)
{
    if (be->table.release == RELEASE_DONE)
        pg_released(be, DLOCK_RELEASE_CLEAN, NULL);
    else
        pg_released(be, DLOCK_RELEASE_UNCLEAR, err);
}

/* unclear: the release may have been served. */
static void release_failed(struct pg_backend *be, bool unclear, const struct dlock_error *err)
{
    int64_t now = pg_now(be);
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
static void call_waiters(struct pg_backend *be)
{
    be->table.release = RELEASE_DONE;
    if (is_shared(be))
        table_send(be, T_CALL, AND_HOLDERS, NULL, STATEMENTS(sql_table_shared_call));
    else
        table_send(be, T_CALL, NO_MORE, NULL, STATEMENTS(sql_table_call));
}

static void release_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    bool records = run_record_begun(be->spec) && be->granted; /* the end of a run */
    bool nothing = !r->sqlstate[0] && r->rows && pg_has(r->rows, RELEASE_COLUMNS) &&
                   (PQntuples(r->rows) == 0 || pg_number(r->rows, 0, "released") == 0);
    const char *columns = records ? RUNS_END_COLUMNS : RELEASE_COLUMNS;
    enum table_end end = END_UNKNOWN;
    if (records && is_ours(be, r, columns))
        end = runs_ended(be, r, &err);
    if (r->tag == T_CALL) {
        pg_released(be, DLOCK_RELEASE_CLEAN, NULL);
    } else if (r->tag == T_LEAVE && nothing) {
        send_give_back(be, T_RELEASE, be->token, 0);
    } else if (end == END_NOT_RECORDED) {
        pg_released(be, DLOCK_RELEASE_UNCLEAR, &err);
    } else if (!is_ours(be, r, columns) ||
               (pg_unconfirmed(r) && (!nothing || be->table.release == RELEASE_UNCLEAR))) {
        table_not_ours(be, r, DLOCK_EUNAVAIL, &err);
        pg_conn_close(&be->conn);
        release_failed(be, r->unclear || !r->sqlstate[0], &err);
    } else if (r->tag == T_LEAVE && pg_number(r->rows, 0, "called") > 0) {
        call_waiters(be);
    } else if (end == END_RECORDED || pg_number(r->rows, 0, "released") == 1) {
        pg_released(be, DLOCK_RELEASE_CLEAN, NULL);
    } else if (be->granted && be->table.release == RELEASE_UNCLEAR) {
        /* The answer that never came may have asked for the call. */
        call_waiters(be);
    } else if (be->granted) {
        describe_row(be, r, &err);
        pg_released(be, DLOCK_RELEASE_NOT_OURS, &err);
    } else {
        pg_released(be, DLOCK_RELEASE_NOTHING, NULL);
    }
}

/* ----------------------------------------------------------------------- slots */

static void table_send_list(struct pg_backend *be);
static bool table_send_check(struct pg_backend *be, bool first);

static void table_ready(struct pg_backend *be)
{
    const struct pg_place *fence = PLACES({"fence", NULL, (int64_t)be->fence});
    be->table.line.joined = be->table.line.no_listen = false;
    be->table.line.called = be->table.line.awaited = 0;
    /* A step of a query may follow a read, whose check of the second or third table has failed. */
    if (be->op == PG_OP_STATUS)
        be->conn.guarded = true;
    if (be->conn.guarded) /* nothing is checked yet */
        be->table.checked.holders = be->table.checked.runs = false;
    switch (be->op) {
    case PG_OP_ACQUIRE:
        /* Undo the try of the connection before, then try with another token. */
        if (be->table.try == TRY_ORPHANED) {
            send_give_back(be, T_UNDO, be->token, 0);
            be->table.try = TRY_SENT;
            memcpy(be->table.orphan, be->token, sizeof(be->table.orphan));
            if (!pg_new_token(be))
                return;
        }
        send_try(be);
        break;
    case PG_OP_RENEW:
        if (is_shared(be))
            table_send(be, T_RENEW, AND_HOLDERS, PLACES({"epoch", be->table.epoch, 0}),
                       STATEMENTS(sql_table_lock_row, sql_table_shared_renew));
        else if (be->spec->hold->begin == RUN_NOW)
            table_send(be, T_RENEW, AND_RUNS, fence,
                       STATEMENTS(sql_table_renew, sql_table_runs_begin));
        else
            table_send(be, T_RENEW, NO_MORE, fence, STATEMENTS(sql_table_renew));
        break;
    case PG_OP_RELEASE:
        send_release(be);
        if (be->granted && !be->conn.one_by_one)
            maybe_sweep(be);
        break;
    case PG_OP_STATUS:
        PQclear(be->status.first);
        be->status.first = NULL;
        be->status.run = false;
        be->status.record = (struct dlock_error){0};
        be->table.look = LOOK_FIRST;
        if (be->question->what == ASK_CHECK && be->check_second)
            table_send_check(be, false); /* unsure */
        else if (be->question->what == ASK_CHECK)
            pg_check_begin(be);
        else if (be->question->what == ASK_LIST)
            table_send_list(be);
        else if (be->order->what == STEP_FORGET)
            runs_send_forget(be);
        else if (be->order->what != STEP_READ)
            break_send(be);
        else
            table_send(be, T_STATUS, NO_MORE, PLACES({"runs_name", be->table.runs, 0}),
                       STATEMENTS(sql_table_status));
        break;
    case PG_OP_NONE:
        break;
    }
}

/*
 * The findings of the statements glance, check and read_only. A finding of the last two becomes an
 * error with a text for people. True: the request, or read_only, was sent.
 */
static bool table_found(struct pg_backend *be, struct pg_reply *r)
{
    const char *found = strstr(r->text, FINDING);
    char what[sizeof(r->text)];
    if (!found && strcmp(r->sqlstate, "25006") == 0) {
        table_send(be, (enum pg_tag)r->tag, NO_MORE, NULL, STATEMENTS(sql_table_read_only));
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
        bool first = !be->table.unsure;
        be->table.unsure = true;
        if (r->tag == T_NOTICE)
            be->table.notice.at = pg_now(be); /* comes again with the next refusal */
        else if (r->tag != T_SWEEP && first) {
            if (be->op == PG_OP_ACQUIRE && be->table.orphan[0])
                send_give_back(be, T_UNDO, be->table.orphan, 0);
            table_ready(be);
        }
        return true;
    }
    strcpy(r->sqlstate, "42501");
    if (strcmp(what, "missing") == 0) {
        strcpy(r->sqlstate, "42P01");
        snprintf(r->text, sizeof(r->text), "the table %s does not exist", table);
    } else if (strcmp(what, "read-only") == 0) {
        strcpy(r->sqlstate, "25006");
        snprintf(r->text, sizeof(r->text), PG_NO_WRITES);
    } else if (behind(what, "read-only ")) {
        snprintf(r->text, sizeof(r->text),
                 "the role cannot write: ALTER ROLE %.150s SET default_transaction_read_only = off",
                 behind(what, "read-only "));
    } else {
        bool owned = strstr(what, " is owned by ") != NULL;
        snprintf(r->text, sizeof(r->text), "the table %.70s is not safe to use: %.110s%s", table,
                 what, owned ? " (see table-owner= in dlock-postgres(7))" : "");
    }
    return false;
}

static void table_answered(struct pg_backend *be, const struct pg_reply *r)
{
    if (!r->sqlstate[0] && r->tag != T_SCHEMA) { /* the tables of this request were checked */
        be->conn.guarded = false;
        if (r->tag == T_NOTICE || (is_shared(be) && r->tag != T_LISTEN && r->tag != T_SWEEP))
            be->table.checked.holders = true;
        if (r->tag == T_TRY && be->spec->once > 0)
            be->table.checked.runs = true;
    }
    if ((r->tag == T_TRY || r->tag == T_CONFIRM) && be->op == PG_OP_ACQUIRE)
        try_answered(be, r);
    else if (r->tag == T_SCHEMA && be->op == PG_OP_ACQUIRE)
        create_answered(be, r);
    else if (r->tag == T_NOTICE && strncmp(r->sqlstate, "42", 2) == 0)
        be->table.notice.at = DLOCK_NEVER; /* no right to the second table */
    else if (r->tag == T_WAIT && be->op == PG_OP_ACQUIRE)
        await_answered(be, r);
    else if ((r->tag == T_LISTEN || r->tag == T_LISTENING) && r->sqlstate[0]) {
        be->table.line.no_listen = true; /* polling has to do */
        be->table.line.joined = false;
        if (r->tag == T_LISTENING && be->op == PG_OP_ACQUIRE)
            send_try(be);
    } else if (r->tag == T_LISTENING && be->op == PG_OP_ACQUIRE)
        listening(be, r);
    else if (r->tag == T_RENEW && be->op == PG_OP_RENEW)
        renew_answered(be, r);
    else if ((r->tag == T_RELEASE || r->tag == T_LEAVE || r->tag == T_CALL) &&
             be->op == PG_OP_RELEASE)
        release_answered(be, r);
    else if (r->tag == T_FORGET && be->op == PG_OP_STATUS)
        runs_forgotten(be, r);
    else if ((r->tag == T_BREAK || r->tag == T_FREE) && be->op == PG_OP_STATUS)
        break_answered(be, r);
}

/* A connection is only a way to the row: no lock is lost, but a holder asks now. */
static void table_failed(struct pg_backend *be, const struct dlock_error *err)
{
    if (be->op == PG_OP_ACQUIRE && be->contact.pending && !be->conn.transient) {
        pg_fail(be, err); /* the core gives up; the release undoes this try */
    } else if (be->op == PG_OP_ACQUIRE) {
        orphan_try(be); /* a served try would make us wait for ourselves */
        pg_try_later(be, err, be->conn.transient);
    } else if (be->op == PG_OP_RENEW) {
        pg_unclear(be, err);
    } else if (be->op == PG_OP_RELEASE) {
        release_failed(be, true, err);
    } else if (be->op == PG_OP_NONE && be->granted) {
        events_add(&be->events, EV_AWAY)->error = *err;
    }
}

static void table_timeout(struct pg_backend *be, int64_t now)
{
    struct dlock_error err;
    if (be->op == PG_OP_RELEASE && now >= be->release.until) {
        err = be->contact.refusal;
        if (err.code == 0)
            dlock_fail_at(&err, DLOCK_EUNAVAIL, 0, pg_where(be), "no answer");
        give_release_up(be, &err);
    } else if ((be->op == PG_OP_RELEASE || be->op == PG_OP_RENEW) && now >= be->op_until) {
        no_answer(&err, be->spec, be->op == PG_OP_RENEW ? be->spec->op_timeout : pg_patience(be));
        pg_conn_close(&be->conn);
        table_failed(be, &err);
    } else if (be->op == PG_OP_ACQUIRE && now >= be->op_until) {
        no_answer(&err, be->spec, pg_patience(be));
        if (be->conn.one_by_one) {
            orphan_try(be); /* nothing may follow the try: undo first on the next connection */
            pg_try_later(be, &err, true);
            return;
        }
        table_abandon(be);
        be->table.try = TRY_NONE;
        if (pg_new_token(be))
            pg_try_later(be, &err, true);
    } else if (be->op == PG_OP_ACQUIRE && be->conn.state == PC_UP && !pg_conn_busy(&be->conn)) {
        heed_call(be);
        if (now >= be->acquire.try_at)
            send_try(be);
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

static bool table_read_info(const PGresult *res, int i, struct dlock_info *info)
{
    const char *text = pg_text(res, i, "holder"), *user = pg_text(res, i, "usename"), *begin;
    if (pg_number(res, i, "what") == 2)
        return false;
    if (!pg_number(res, i, "what")) {
        table_read_holder(info, text, pg_ms(res, i, "left_ms"), pg_number(res, i, "fence"));
        read_kind(info, pg_text(res, i, "kind"), pg_number(res, i, "slot"));
        table_read_owner(info, pg_text(res, i, "owner"));
        return true;
    }
    *info = (struct dlock_info){.waiter = true, .left_ns = -1, .waited_ms = -1};
    if (pg_read_comment(text, info, &begin) == 0) { /* our role may not read this waiter's query */
        info->pid = (long)pg_number(res, i, "pid");
        info->server_pid = true;
        dlock_clean_text(info->user, sizeof(info->user), user, strlen(user));
    }
    info->silent = pg_ms(res, i, "left_ms") > SILENT_AFTER / DLOCK_MSEC;
    read_kind(info, pg_text(res, i, "kind"), 0);
    return true;
}

/* The second question is the check of the tables alone. */
static bool table_send_check(struct pg_backend *be, bool first)
{
    bool runs = be->spec->once > 0;
    enum table_more more = is_shared(be) ? AND_HOLDERS : runs ? AND_RUNS : NO_MORE;
    be->conn.guarded = !first;
    if (first)
        table_send(be, T_STATUS, NO_MORE,
                   PLACES({"table_name", be->table.name, 0},
                          {"holders_name", is_shared(be) ? be->table.holders : "", 0},
                          {"runs_name", runs ? be->table.runs : "", 0},
                          {"renewal", NULL, be->spec->ttl / DLOCK_MSEC / 3}),
                   STATEMENTS(sql_check_table));
    else
        table_send(be, T_STATUS, more, NULL, STATEMENTS(sql_check_end));
    return true;
}

static void table_send_list(struct pg_backend *be)
{
    bool shared = be->table.look == LOOK_HOLDERS;
    table_send(be, T_STATUS, shared ? AND_HOLDERS : NO_MORE,
               PLACES({"after", be->status.after, 0}, {"table_name", be->table.name, 0},
                      {"page", NULL, LIST_PAGE}, {"all", NULL, be->question->all}),
               STATEMENTS(shared ? sql_table_list_shared : sql_table_list));
}

static void table_read_entry(struct pg_backend *be, int i, struct dlock_entry *entry)
{
    const PGresult *rows = be->status.rows;
    const char *name = pg_text(rows, i, "name");
    bool held = pg_true(rows, i, "held");
    dlock_clean_text(be->name, sizeof(be->name), name, strlen(name));
    table_read_holder(&be->info, pg_text(rows, i, "holder"), pg_ms(rows, i, "left_ms"),
                      pg_number(rows, i, "fence"));
    read_kind(&be->info, pg_text(rows, i, "kind"), pg_number(rows, i, "slot"));
    table_read_owner(&be->info, pg_text(rows, i, "owner"));
    *entry = (struct dlock_entry){
        .name = be->name,
        .holders = !held                                   ? 0
                   : !pg_null(rows, i, "holders")          ? pg_count(rows, i, "holders")
                   : be->info.mode == DLOCK_MODE_EXCLUSIVE ? 1
                                                           : -1,
        .waiters = pg_count(rows, i, "waiters"),
        .holder = held ? &be->info : NULL,
    };
}

/* A page with readers or slots is read again, with the second table if our role may. */
static bool more_list(struct pg_backend *be, struct pg_reply *r)
{
    bool refused = be->table.look == LOOK_HOLDERS && strncmp(r->sqlstate, "42", 2) == 0;
    bool shared = false;
    for (int i = 0; r->rows && be->table.look == LOOK_FIRST && i < PQntuples(r->rows); i++)
        shared = shared || pg_text(r->rows, i, "kind")[0] == 's';
    if (refused)
        pg_list_partial(be,
                        "of readers and slots this role sees one holder, and not how many there "
                        "are: the second table is not readable");
    if (!refused && (!shared || be->status.partial))
        return false;
    be->table.look = refused ? LOOK_FIRST : LOOK_HOLDERS;
    be->conn.guarded = be->conn.guarded && refused;
    table_send_list(be);
    return true;
}

/* Read a further table; keep the answer with the holders and waiters. */
static bool look_on(struct pg_backend *be, struct pg_reply *r, bool run)
{
    be->table.look = run ? LOOK_RUN : LOOK_HOLDERS;
    be->conn.guarded = false;
    be->status.first = r->rows;
    r->rows = NULL;
    if (run) {
        table_send(be, T_STATUS, AND_RUNS, NULL, STATEMENTS(sql_table_runs_status));
    } else {
        table_send(be, T_STATUS, AND_HOLDERS, NULL, STATEMENTS(sql_table_shared_status));
        be->table.checked.holders = true;
    }
    return true;
}

/*
 * The name's row stands for readers and slots, which are in the second table. Tables two (which may
 * be missing) and three (the run record) are read later; a role without access to these sees only
 * the name's row.
 */
static bool table_more_status(struct pg_backend *be, struct pg_reply *r)
{
    if (be->question->what == ASK_LIST)
        return more_list(be, r);
    struct dlock_error err;
    bool refused = be->table.look != LOOK_FIRST && strncmp(r->sqlstate, "42", 2) == 0;
    PGresult *first = be->table.look == LOOK_HOLDERS ? be->status.first : r->rows;
    int n = first ? PQntuples(first) : 0;
    bool shared = n > 0 && !pg_number(first, 0, "what") && pg_text(first, 0, "kind")[0] == 's';
    bool runs = n > 0 && pg_number(first, n - 1, "what") == 2 && be->question->what != ASK_BREAK;
    if (be->table.look == LOOK_FIRST) {
        if (r->sqlstate[0])
            return false;
        return (shared || runs) && look_on(be, r, !shared);
    }
    if (be->table.look == LOOK_RUN) {
        int rc = refused          ? pg_conn_reply_error(&be->conn, r, &err)
                 : r->sqlstate[0] ? 0
                                  : runs_read_status(be, r, &err);
        if (rc < 0)
            be->status.record = err;
        be->status.run = rc == 1;
    }
    if (be->table.look == LOOK_RUN || refused) {
        PQclear(r->rows);
        r->rows = be->status.first;
    } else {
        PQclear(be->status.first);
    }
    be->status.first = NULL;
    if (refused)
        r->sqlstate[0] = '\0';
    return be->table.look == LOOK_HOLDERS && !r->sqlstate[0] && runs && look_on(be, r, true);
}

const struct pg_protocol pg_table = {
    .acquire = table_acquire,
    .renew = pg_connect,
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
