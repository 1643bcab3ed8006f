/*
 * advisory.c - a session-level advisory lock; the session's idle time-out is the lease.
 *
 *   try      settings, then one statement: lock and fence
 *   wait     pg_advisory_lock for 0.9 s at a time
 *   renew    any statement: it restarts the idle time
 *   release  pg_advisory_unlock, then the session ends
 *
 * Readers and slots hold the same key in shared mode; their further keys are in advisory_sql.c. The
 * first client in line for a slot waits without a statement: a returned slot is notified (NOTIFY).
 *
 * Nothing may be set or locked on a session that is shared with other clients. Behind a pooler the
 * pid of the backend differs from the pid at the connection's begin, so every setting and lock
 * checks the pid in SQL: through a pooler the statement does nothing [measured with PgBouncer]. The
 * same holds for a standby, whose advisory locks exclude no client of the primary.
 *
 * Waiting is cut into chunks, since a waiting statement holds a snapshot, and CREATE INDEX
 * CONCURRENTLY in the holder's command would wait for the snapshot indefinitely. A DO block catches
 * the lock_timeout, which otherwise writes two lines into the server's log each time.
 */
#include "advisory_sql.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OLDEST 120000
#define HOLDER_EVERY 32 /* chunks from one look at the holder to the next */
#define POLL_MS 1000    /* the first in line for a slot looks again: a holder may have crashed */

/* ---------------------------------------------------------------------- status */

#define TRY_COLUMNS "wal grace lease main turn lsn"
#define SESSION_COLUMNS                                                                            \
    "pid granted shared slots usename query client begin_ms idle_ms application_name session "     \
    "breaker broken_ms"

/* The number in our own " key=N" of a comment; -1: none. */
static int64_t comment_number(const char *text, size_t len, const char *key)
{
    const char *at = memmem(text, len, key, strlen(key));
    return at ? strtoll(at + strlen(key), NULL, 10) : -1;
}

/* The locks tell the kind of a session; of a waiter without locks for a moment, the comment. */
static void read_kind(const struct sql_rows *res, int i, const char *record, size_t len,
                      struct dlock_info *info)
{
    int64_t slots = sql_number(res, i, "slots");
    if (slots == 0 && len > 0 && info->waiter)
        slots = dlock_max(0, comment_number(record, len, " slots="));
    if (slots > 0) {
        info->mode = DLOCK_MODE_SLOTS;
        info->slots = (unsigned)dlock_min(slots, DLOCK_SLOTS_MAX);
        if (len > 0 && !info->waiter)
            info->slot = (int)dlock_min(dlock_max(0, comment_number(record, len, " slot=")),
                                        DLOCK_SLOTS_MAX);
    } else if (sql_true(res, i, "shared") ||
               (len > 0 && info->waiter && comment_number(record, len, " shared=") == 1)) {
        info->mode = DLOCK_MODE_SHARED;
    }
}

static void read_mark(const struct sql_rows *res, int i, struct dlock_info *info)
{
    const char *breaker = sql_text(res, i, "breaker");
    info->broken = !sql_null(res, i, "breaker");
    dlock_clean_text(info->broken_by, sizeof(info->broken_by), breaker, strlen(breaker));
    info->broken_ms = sql_number(res, i, "broken_ms");
}

static void read_info(const struct sql_rows *res, int i, struct dlock_info *info)
{
    const char *begin;
    *info = (struct dlock_info){.left_ns = -1, .waited_ms = -1, .mode = DLOCK_MODE_EXCLUSIVE};
    info->waiter = !sql_true(res, i, "granted");
    read_mark(res, i, info);
    size_t len = sql_read_comment(sql_text(res, i, "query"), info, &begin);
    read_kind(res, i, begin, len, info);
    if (len > 0) {
        int64_t ttl = comment_number(begin, len, " ttl=");
        int64_t fence = comment_number(begin, len, " fence=");
        if (ttl > 0 && !info->waiter)
            info->left_ns =
                dlock_max(0, dlock_min(ttl, INT32_MAX) - sql_ms(res, i, "idle_ms")) * DLOCK_MSEC;
        if (fence > 0 && !info->waiter)
            info->fence = (uint64_t)fence;
        /* The record of the newest try is a holder's. */
        if (info->waiter && info->waited_ms >= 0) {
            info->since_ms -= info->waited_ms;
            info->waited_ms = -1;
        }
        return;
    }
    /* A foreign program, or a dlock whose queries our role may not read. */
    const char *app = sql_text(res, i, "application_name"), *user = sql_text(res, i, "usename");
    const char *client = sql_text(res, i, "client");
    info->foreign = strncmp(app, "dlock:", 6) != 0;
    info->pid = (long)sql_number(res, i, "pid");
    info->server_pid = true;
    dlock_clean_text(info->user, sizeof(info->user), user, strlen(user));
    if (!info->foreign) {
        /* A waiter begins a session to wait; the time of a grant is in the unreadable query. */
        if (info->waiter)
            info->since_ms = sql_number(res, i, "begin_ms");
        return;
    }
    info->left_ns = DLOCK_NEVER;
    dlock_clean_text(info->host, sizeof(info->host), client, strlen(client));
    dlock_clean_text(info->command, sizeof(info->command), app, strlen(app));
}

/* The token is the session's: each hold has a session of its own. */
static bool read_status(const struct sql_rows *res, int i, struct dlock_info *info)
{
    read_info(res, i, info);
    snprintf(info->token, sizeof(info->token), "%.*s", DLOCK_TOKEN_LEN,
             sql_text(res, i, "session"));
    return true;
}

/* ---------------------------------------------------------------- acquire: send */

/* Bound the time for the next answer; the server takes more ns by itself. */
static void bound_answer(struct sql_store *be, int64_t more)
{
    if (!be->contact.pending)
        be->op_until = sql_now(be) + more + sql_patience(be);
}

static void send_try(struct sql_store *be)
{
    be->acquire.try_at = DLOCK_NEVER;
    pg(be)->conn.notified = -1;
    bound_answer(be, 0);
    sql_describe(be, RECORD_HOLDS);
    adv_request(be, T_TRY);
}

static void pause_try(struct sql_store *be, int64_t ms)
{
    be->op_until = DLOCK_NEVER;
    be->acquire.try_at = sql_now(be) + ms * DLOCK_MSEC;
}

/* Wait for the next key. */
static void send_wait(struct sql_store *be)
{
    bool gate = be->spec->mode == DLOCK_MODE_SLOTS && !pg(be)->advisory.has.gate;
    pg(be)->advisory.awaits = gate ? WAIT_GATE : pg(be)->advisory.has.turn ? WAIT_MAIN : WAIT_TURN;
    bound_answer(be, CHUNK_MS * DLOCK_MSEC);
    if (pg(be)->advisory.fair)
        be->op_until = DLOCK_NEVER;
    adv_request(be, T_WAIT);
}

/* The lock is held: ask for the holder, or wait for the lock. */
static void ask_or_wait(struct sql_store *be)
{
    if (!be->acquire.wait || pg(be)->advisory.chunks++ % HOLDER_EVERY == 0) {
        bound_answer(be, 0);
        adv_request(be, T_HOLDER);
    } else if (pg(be)->advisory.polls) {
        pause_try(be, dlock_min(CHUNK_MS, adv_wait_idle_ms(be) / 2));
    } else if (!pg(be)->advisory.has.gate || !pg(be)->advisory.has.main) {
        send_wait(be);
    } else if (!pg(be)->advisory.has.listens) {
        /* All slots are taken: look when a slot is given back, and each second. */
        bound_answer(be, 0);
        adv_request(be, T_LISTEN);
    } else if (pg(be)->conn.notified >= 0) {
        send_try(be);
    } else {
        pause_try(be, dlock_min(POLL_MS, adv_wait_idle_ms(be) / 2));
    }
}

static void adv_send_list(struct sql_store *be)
{
    adv_request(be, T_STATUS);
}

static void adv_read_entry(struct sql_store *be, int i, struct dlock_entry *entry)
{
    const struct sql_rows *rows = be->status.rows;
    const char *name = sql_text(rows, i, "name");
    bool held = sql_number(rows, i, "holders") > 0;
    dlock_clean_text(be->name, sizeof(be->name), name, strlen(name));
    if (held)
        read_status(rows, i, &be->info);
    if (held && strcmp(sql_text(rows, i, "query"), "<insufficient privilege>") == 0)
        sql_list_partial(be, "the host and the command of other roles are not shown to this role "
                             "(pg_read_all_stats)");
    *entry = (struct dlock_entry){.name = be->name,
                                  .holders = sql_count(rows, i, "holders"),
                                  .waiters = sql_count(rows, i, "waiters"),
                                  .holder = held ? &be->info : NULL};
}

static bool adv_send_check(struct sql_store *be, bool first)
{
    if (first)
        adv_request(be, T_STATUS);
    return first;
}

static void adv_ready(struct sql_store *be)
{
    int version = PQserverVersion(pg(be)->conn.pq);
    struct dlock_error err;
    memset(&pg(be)->advisory.has, 0, sizeof(pg(be)->advisory.has));
    if (be->op == SQL_OP_STATUS && be->question->what == ASK_LIST)
        adv_send_list(be);
    else if (be->op == SQL_OP_STATUS && be->question->what == ASK_CHECK)
        sql_check_begin(be);
    else if (be->op == SQL_OP_STATUS && be->order->what == STEP_READ)
        adv_request(be, T_STATUS);
    else if (be->op == SQL_OP_STATUS)
        adv_break_send(be);
    if (be->op != SQL_OP_ACQUIRE)
        return;
    if (version < OLDEST) {
        dlock_fail_at(&err, DLOCK_EUNUSABLE, 0, sql_where(be),
                      "PostgreSQL %d is too old: 12 or later is needed", version / 10000);
        sql_fail(be, &err);
        return;
    }
    if (version < WITH_IDLE_TIMEOUT && !pg(be)->advisory.warned_old) {
        pg(be)->advisory.warned_old = true;
        dlock_fail_at(&events_add(&be->events, EV_NOTICE)->error, 0, 0, sql_where(be),
                      "PostgreSQL %d does not end a silent session: "
                      "if this machine stops, the lock stays held until TCP gives up "
                      "(14 and later end it after the ttl)",
                      version / 10000);
    }
    send_try(be);
}

/* A step of a query begins. */
static bool adv_step(struct sql_store *be)
{
    struct dlock_error err;
    pg(be)->advisory.breaks.ended = false;
    if (be->question->what != ASK_FORGET)
        return true;
    pg_no_records(be, &err);
    sql_fail(be, &err);
    return false;
}

static void adv_acquire(struct sql_store *be)
{
    pg(be)->advisory.chunks = 0;
    pg(be)->advisory.renewed_from = 0;
    memset(&pg(be)->advisory.broken, 0, sizeof(pg(be)->advisory.broken));
    sql_connect(be);
}

/* ------------------------------------------------------------- acquire: answers */

/* "0/16B3748" of "000000010000000000000001": timeline << 48 | position >> 3. 0: not understood. */
static uint64_t make_fence(const char *lsn, const char *wal)
{
    char part[9] = "";
    unsigned high, low;
    char rest;
    if (sscanf(lsn, "%8X/%8X%c", &high, &low, &rest) != 2 || strlen(wal) != 24)
        return 0;
    memcpy(part, wal, 8);
    uint64_t timeline = strtoul(part, NULL, 16), position = ((uint64_t)high << 32 | low) >> 3;
    if (timeline == 0 || timeline > 0x7fff || position >> 48)
        return 0;
    return timeline << 48 | position;
}

static void granted(struct sql_store *be, const struct sql_reply *r)
{
    struct dlock_error err;
    const char *lsn = sql_text(r->rows, 0, "lsn"), *wal = sql_text(r->rows, 0, "wal");
    be->fence = make_fence(lsn, wal);
    if (be->spec->mode == DLOCK_MODE_SLOTS)
        be->slot = (int)sql_number(r->rows, 0, "slot");
    if (be->fence != 0) {
        sql_granted(be, r->sent);
        return;
    }
    dlock_fail_at(&err, DLOCK_EPROTO, 0, sql_where(be),
                  "cannot make a fencing token from log position '%.20s' in '%.30s'", lsn, wal);
    sql_fail(be, &err);
}

/* A time as the server's text: "1500ms", "30s", "2min". -1: not understood. */
static int64_t shown_ms(const char *text)
{
    static const struct {
        const char *unit;
        int64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"min", 60000}, {"h", 3600000}, {"d", 86400000}, {"", 1}};
    char *end;
    int64_t n = strtoll(text, &end, 10);
    for (size_t i = 0; end != text && n >= 0 && i < DLOCK_LEN(units); i++)
        if (strcmp(end, units[i].unit) == 0 && n <= INT64_MAX / units[i].ms)
            return n * units[i].ms;
    return -1;
}

/*
 * Does the server keep our lease, and is the record of a grant on the standby? Otherwise leave the
 * session; acquire goes on or fails.
 */
static bool check_session(struct sql_store *be, const struct sql_reply *r)
{
    bool slots = be->spec->mode == DLOCK_MODE_SLOTS, unconfirmed = sql_unconfirmed(r);
    bool ours = sql_one_row(r, slots ? TRY_COLUMNS " size other slot" : TRY_COLUMNS);
    struct dlock_error err;
    if (ours && PQserverVersion(pg(be)->conn.pq) >= WITH_IDLE_TIMEOUT &&
        shown_ms(sql_text(r->rows, 0, "lease")) != adv_ttl_ms(be))
        dlock_fail_at(&err, DLOCK_EUNUSABLE, 0, sql_where(be),
                      "the server did not accept an idle_session_timeout of %" PRId64 " ms",
                      adv_ttl_ms(be));
    else if (!ours || unconfirmed)
        sql_error(be, r, &err);
    else
        return true;
    sql_try_later(be, &err, unconfirmed); /* the primary may have changed */
    return false;
}

/*
 * An error may leave the session's lock behind although the message was rolled back, so end the
 * session. The primary may have changed.
 */
static void refused(struct sql_store *be, const struct sql_reply *r)
{
    struct dlock_error err;
    bool transient = strncmp(r->state, "53", 2) == 0 || strncmp(r->state, "57", 2) == 0 ||
                     strncmp(r->state, "40", 2) == 0;
    adv_refusal(be, r, &err);
    sql_try_later(be, &err, transient);
}

static void try_answered(struct sql_store *be, const struct sql_reply *r)
{
    struct dlock_error err;
    if (r->fault != SQL_OK) {
        refused(be, r);
        return;
    }
    if (!check_session(be, r))
        return;
    be->contact.pending = false;
    outage_over(&be->outage, &be->events);
    int64_t grace_ms = be->restart_grace > 0 ? sql_number(r->rows, 0, "grace") : 0;
    bool slots = be->spec->mode == DLOCK_MODE_SLOTS && grace_ms <= 0;
    int64_t other = slots ? sql_number(r->rows, 0, "other") : 0;
    if (grace_ms <= 0) {
        pg(be)->advisory.has.turn = sql_true(r->rows, 0, "turn");
        pg(be)->advisory.has.main = sql_true(r->rows, 0, "main");
        pg(be)->advisory.has.size = slots && sql_true(r->rows, 0, "size");
    }
    if (other > 0) {
        other_slots(&err, be->spec, (unsigned)other);
        sql_fail(be, &err);
    } else if (!sql_null(r->rows, 0, "lsn"))
        granted(be, r);
    else if (grace_ms > 0)
        sql_in_grace(be, grace_ms);
    else
        ask_or_wait(be);
}

static void holder_answered(struct sql_store *be, const struct sql_reply *r)
{
    const struct dlock_info *info = NULL; /* an error, or no holder any more: go on */
    if (sql_one_row(r, SESSION_COLUMNS)) {
        read_info(r->rows, 0, &be->info);
        info = &be->info;
    }
    if (!be->acquire.wait) {
        sql_busy(be, info);
        return;
    }
    events_add(&be->events, EV_WAITING)->info = info;
    ask_or_wait(be);
}

/* Done: the answer is the token of this acquire. Any role may set dlock.got to other values. */
static bool says_done(const struct sql_store *be, const struct sql_reply *r)
{
    return strcmp(sql_text(r->rows, 0, "got"), be->token) == 0;
}

static void wait_answered(struct sql_store *be, const struct sql_reply *r)
{
    if (strcmp(r->state, "42501") == 0 || strcmp(r->state, "42704") == 0 ||
        strcmp(r->state, "0A000") == 0) { /* no PL/pgSQL for this role or in this database */
        pg(be)->advisory.polls = true;
        ask_or_wait(be);
        return;
    }
    if (!sql_one_row(r, "got")) {
        refused(be, r);
        return;
    }
    if (!says_done(be, r)) {
        ask_or_wait(be);
        return;
    }
    switch (pg(be)->advisory.awaits) {
    case WAIT_TURN:
        pg(be)->advisory.has.turn = true;
        send_wait(be);
        break;
    case WAIT_GATE:
        pg(be)->advisory.has.gate = true;
        send_try(be);
        break;
    case WAIT_MAIN:
        pg(be)->advisory.has.main = true;
        if (be->spec->mode == DLOCK_MODE_SLOTS) {
            send_try(be);
            break;
        }
        /* With the main key a lease begins, and counts from the following request. */
        bound_answer(be, 0);
        sql_describe(be, RECORD_HOLDS);
        adv_request(be, T_CONFIRM);
        break;
    }
}

/* ----------------------------------------------------------------------- renew */

/* The session holds the lock still, by the heartbeat sent at this time. */
static void renewed(struct sql_store *be, int64_t from)
{
    if (be->op != SQL_OP_RENEW)
        pg(be)->advisory.renewed_from = from;
    else
        sql_renewed(be, from,
                    pg(be)->advisory.broken.marked ? pg(be)->advisory.broken.breaker : NULL);
}

/* A renewal is sent to the session that holds the lock. When the session ends, so does the lock. */
static void adv_renew(struct sql_store *be)
{
    int64_t from = pg(be)->advisory.renewed_from;
    pg(be)->advisory.renewed_from = 0;
    if (from != 0) {
        renewed(be, from);
    } else if (!sql_is_busy(be)) { /* else the answer to the last renewal still counts */
        char *sql = adv_sql(be, T_RENEW);
        struct dlock_error err;
        if (!pg_conn_send(&pg(be)->conn, T_RENEW, sql)) {
            dlock_fail_at(&err, DLOCK_ENOMEM, 0, sql_where(be), "out of memory");
            sql_unclear(be, &err);
        }
        free(sql);
    }
}

/*
 * An error (by pg_cancel_backend, say) ends no session: the next answer counts. 53200: the server
 * has no room for the key of a mark, and has read the renewal.
 */
static void renew_answered(struct sql_store *be, const struct sql_reply *r)
{
    struct dlock_error err;
    bool full = strcmp(r->state, "53200") == 0 && !pg(be)->advisory.renew_writes;
    if (r->fault == SQL_OK)
        pg(be)->advisory.has.listens = false;
    bool unconfirmed = pg(be)->advisory.renew_writes && sql_unconfirmed(r);
    if (unconfirmed || (!full && !sql_one_row(r, "unmarked"))) {
        if (be->op != SQL_OP_RENEW)
            return;
        sql_error(be, r, &err);
        sql_unclear(be, &err);
    } else if (!full && !sql_true(r->rows, 0, "unmarked") && !pg(be)->advisory.broken.known) {
        pg(be)->advisory.broken.marked = true;
        pg(be)->advisory.broken.from = r->sent;
        adv_request(be, T_BREAKER);
    } else {
        renewed(be, r->sent);
    }
}

static void breaker_answered(struct sql_store *be, const struct sql_reply *r)
{
    bool known = sql_one_row(r, "breaker");
    pg(be)->advisory.broken.known = true;
    snprintf(pg(be)->advisory.broken.breaker, sizeof(pg(be)->advisory.broken.breaker), "%s",
             known ? sql_text(r->rows, 0, "breaker") : "");
    renewed(be, pg(be)->advisory.broken.from);
}

/* --------------------------------------------------------------------- release */

/* The connection is idle. Where nothing was granted, the end of the session undoes the rest. */
static void unlock_or_end(struct sql_store *be)
{
    if (be->granted)
        adv_request(be, T_RELEASE);
    else
        sql_released(be, DLOCK_RELEASE_NOTHING, NULL);
}

static void unlock_answered(struct sql_store *be, const struct sql_reply *r)
{
    struct dlock_error err;
    if (strcmp(r->state, "57014") == 0) {
        adv_request(be, T_RELEASE); /* our cancel of the request before came late */
    } else if (!sql_one_row(r, "done")) {
        sql_error(be, r, &err);
        sql_released(be, DLOCK_RELEASE_UNCLEAR, &err);
    } else if (sql_true(r->rows, 0, "done")) {
        sql_released(be, DLOCK_RELEASE_CLEAN, NULL);
    } else {
        dlock_fail_at(&err, DLOCK_ELOST, 0, sql_where(be), "the session no longer holds the lock");
        sql_released(be, DLOCK_RELEASE_NOT_OURS, &err);
    }
}

static void adv_release(struct sql_store *be)
{
    if (be->conn->state == CONN_UP)
        be->driver->work(be->conn); /* has the session ended just now? */
    if (be->conn->state == CONN_FAILED)
        return; /* adv_failed() follows */
    if (be->conn->state != CONN_UP) {
        sql_released(be, DLOCK_RELEASE_NOTHING, NULL);
    } else if (!sql_is_busy(be)) {
        unlock_or_end(be);
    } else if (!be->granted || pg(be)->advisory.renew_writes) {
        /*
         * Leave the queue at once, not at the end of the chunk; and end a commit that waits for a
         * standby: such a session watches neither socket nor idle time, and would keep the lock.
         */
        pg_conn_cancel(&pg(be)->conn);
    }
}

/* ----------------------------------------------------------------------- slots */

static void adv_answered(struct sql_store *be, const struct sql_reply *r)
{
    if (be->op == SQL_OP_STATUS) {
        adv_break_answered(be, r);
        return;
    }
    if (be->op == SQL_OP_RELEASE) {
        if (r->tag == T_RELEASE)
            unlock_answered(be, r);
        else
            unlock_or_end(be);
        return;
    }
    switch (r->tag) {
    case T_TRY:
        try_answered(be, r);
        break;
    case T_HOLDER:
        holder_answered(be, r);
        break;
    case T_WAIT:
        wait_answered(be, r);
        break;
    case T_LISTEN:
        if (!sql_one_row(r, "got") || !says_done(be, r)) {
            refused(be, r);
            break;
        }
        pg(be)->advisory.has.listens = true;
        send_try(be);
        break;
    case T_CONFIRM:
        if (r->fault != SQL_OK)
            refused(be, r);
        else if (check_session(be, r))
            granted(be, r);
        break;
    case T_RENEW:
        renew_answered(be, r);
        break;
    case T_BREAKER:
        breaker_answered(be, r);
        break;
    default:
        break;
    }
}

/* The session is gone, and with it the lock. */
static void adv_failed(struct sql_store *be, const struct dlock_error *err)
{
    if (be->op == SQL_OP_ACQUIRE && !be->acquire.wait && !be->contact.pending) {
        sql_busy(be, NULL);
    } else if (be->op == SQL_OP_ACQUIRE) {
        sql_try_later(be, err, be->conn->transient);
    } else if (be->op == SQL_OP_RELEASE) {
        /* DLOCK_ENOMEM: we ended the session, which was alive as long as the command ran. */
        bool unclear = pg(be)->conn.unanswered_tag == T_RELEASE || err->code == DLOCK_ENOMEM;
        sql_released(be,
                     !be->granted ? DLOCK_RELEASE_NOTHING
                     : unclear    ? DLOCK_RELEASE_UNCLEAR
                                  : DLOCK_RELEASE_NOT_OURS,
                     err);
    } else if (be->granted) {
        sql_op_done(be);
        be->granted = false;
        struct dlock_event *ev = events_add(&be->events, EV_LOST);
        ev->error = *err;
        ev->error.code = DLOCK_ELOST;
    }
}

static void adv_timeout(struct sql_store *be, int64_t now)
{
    /* The first client in line pauses, and was notified. */
    bool slot_is_back = be->acquire.try_at != DLOCK_NEVER && pg(be)->advisory.has.listens &&
                        pg(be)->conn.notified >= 0;
    struct dlock_error err;
    if (be->op == SQL_OP_RELEASE && now >= be->release.until) {
        dlock_fail_at(&err, DLOCK_EUNAVAIL, 0, sql_where(be), "no answer");
        sql_released(be, be->granted ? DLOCK_RELEASE_UNCLEAR : DLOCK_RELEASE_NOTHING, &err);
    } else if (be->op == SQL_OP_RENEW && now >= be->op_until) {
        /* The answer may still come, and on this session only. */
        no_answer(&err, be->spec, be->spec->op_timeout);
        sql_unclear(be, &err);
    } else if (be->op == SQL_OP_ACQUIRE && now >= be->op_until && !be->acquire.wait) {
        sql_busy(be, NULL); /* a try was answered: only the holder is unknown */
    } else if (be->op == SQL_OP_ACQUIRE && now >= be->op_until) {
        no_answer(&err, be->spec, sql_patience(be));
        pg_conn_cancel(&pg(be)->conn); /* as in adv_release() */
        sql_try_later(be, &err, true);
    } else if (be->op == SQL_OP_ACQUIRE && (now >= be->acquire.try_at || slot_is_back)) {
        send_try(be);
    } else if (be->op == SQL_OP_STATUS && now >= be->acquire.try_at) {
        adv_break_send(be);
    }
}

const struct sql_protocol pg_advisory = {
    .session = true,
    .acquire = adv_acquire,
    .renew = adv_renew,
    .release = adv_release,
    .step = adv_step,
    .ready = adv_ready,
    .answered = adv_answered,
    .failed = adv_failed,
    .timeout = adv_timeout,
    .status_columns = SESSION_COLUMNS,
    .read_info = read_status,
    .send_check = adv_send_check,
    .send_list = adv_send_list,
    .list_columns = SESSION_COLUMNS " name holders waiters",
    .read_entry = adv_read_entry,
};
