/*
 * advisory.c - a session-level advisory lock; the session's idle time-out is the lease.
 *
 *   try      one statement: settings, lock, fence          renew    any statement: it restarts the idle time
 *   wait     pg_advisory_lock for 0.9 s at a time          release  pg_advisory_unlock, then the session ends
 *
 * Nothing may be set or locked on a session that is not ours alone. A pooler shows by the backend's pid,
 * which is not the one that the connection began with, so all of it hangs on that in SQL: through a pooler
 * the statement does nothing [measured with PgBouncer]. The same for a standby, whose advisory locks are
 * nobody else's.
 *
 * Waiting is cut into chunks since a statement that waits holds a snapshot, and CREATE INDEX CONCURRENTLY
 * in the holder's command would wait for it, for ever. In a DO block because a lock_timeout that nobody
 * catches writes two lines into the server's log each time.
 *
 * Files: advisory.c acquire and waiting; advisory_sql.c the statements; advisory_renew.c renew and release.
 */
#include "advisory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHO_EVERY 32 /* chunks between two looks at who holds it */
#define OLDEST 120000

/* ----------------------------------------------------------------- what is sent */

static void bound(struct dlock_be *be, int64_t more)
{
    if (!be->first)
        be->op_until = pg_now(be) + more + pg_patience(be);
}

static void try_now(struct dlock_be *be)
{
    be->try_at = DLOCK_NEVER;
    bound(be, 0);
    pg_send(be, T_TRY, pg_advisory_lock_sql(be, true));
}

static void wait_on(struct dlock_be *be)
{
    if (!be->wait || be->chunks++ % WHO_EVERY == 0) {
        bound(be, 0);
        pg_send(be, T_WHO, pg_ask_sql(be, false));
        return;
    }
    if (be->polls) {
        be->op_until = DLOCK_NEVER;
        be->try_at = pg_now(be) + CHUNK_MS * DLOCK_MSEC;
        return;
    }
    bound(be, CHUNK_MS * DLOCK_MSEC);
    if (be->fair)
        be->op_until = DLOCK_NEVER;
    pg_send(be, T_WAIT, pg_advisory_wait_sql(be));
}

static void adv_ready(struct dlock_be *be)
{
    int version = PQserverVersion(be->conn.pq);
    struct dlock_error err;
    if (be->doing == PG_ASK) {
        pg_send(be, T_ASK, pg_ask_sql(be, true));
        return;
    }
    if (be->doing != PG_ACQUIRE)
        return;
    if (version < OLDEST) {
        dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: PostgreSQL %d is too old: 12 or later is needed",
                   pg_where(be), version / 10000);
        pg_fail(be, &err);
        return;
    }
    if (version < WITH_IDLE_TIMEOUT && !be->told_old) {
        be->told_old = true;
        dlock_fail(&events_add(&be->events, EV_NOTICE)->error, 0, 0,
                   "%s: PostgreSQL %d does not end a silent session: if this machine stops, the "
                   "lock stays "
                   "until TCP gives up (14 and later end it after the ttl)",
                   pg_where(be), version / 10000);
    }
    try_now(be);
}

/* --------------------------------------------------------------------- answers */

/* "0/16B3748" of "000000010000000000000001": (timeline << 48) | (position >> 3). 0: not understood. */
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

static void granted(struct dlock_be *be, const struct pg_reply *r)
{
    struct dlock_error err;
    be->fence = make_fence(pg_text(r->rows, 0, R_LSN), pg_text(r->rows, 0, R_WAL));
    if (be->fence == 0) {
        dlock_fail(&err, DLOCK_EPROTO, 0,
                   "%s: no fencing token can be made of the log position '%.20s' in '%.30s'",
                   pg_where(be), pg_text(r->rows, 0, R_LSN), pg_text(r->rows, 0, R_WAL));
        pg_fail(be, &err);
        return;
    }
    be->granted = true;
    be->doing = PG_NOTHING;
    be->op_until = DLOCK_NEVER;
    struct dlock_event *ev = events_add(&be->events, EV_GRANTED);
    ev->from = r->sent;
    ev->ttl = be->spec->ttl;
    ev->fence = be->fence;
    memcpy(ev->token, be->token, sizeof ev->token);
}

static void tell_grace(struct dlock_be *be, int64_t left_ms)
{
    char left[32];
    if (!be->told_grace) {
        be->told_grace = true;
        dlock_fail(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EBUSY, 0,
                   "%s: the server was started a short while ago, and its locks are granted in %s "
                   "(restart-grace)",
                   pg_where(be), dlock_format_duration(left_ms * DLOCK_MSEC, left, sizeof left));
    }
    if (be->wait) {
        events_add(&be->events, EV_WAITING);
        be->op_until = DLOCK_NEVER;
        /* The server ends a session that is silent for a ttl. */
        be->try_at =
            pg_now(be) +
            dlock_min(left_ms + 10, dlock_min(5000, pg_advisory_ttl_ms(be) / 2)) * DLOCK_MSEC;
        return;
    }
    events_add(&be->events, EV_BUSY);
    be->doing = PG_NOTHING;
    pg_conn_close(&be->conn);
}

/* A time as the server shows it, "1500ms", "30s", "2min", in the largest unit that is exact; -1: not understood. */
static int64_t shown_ms(const char *text)
{
    static const struct {
        const char *unit;
        int64_t ms;
    } units[] = {{"ms", 1}, {"s", 1000}, {"min", 60000}, {"h", 3600000}, {"d", 86400000}, {"", 1}};
    char *end;
    int64_t n = strtoll(text, &end, 10);
    for (size_t i = 0; end != text && i < DLOCK_LEN(units); i++)
        if (strcmp(end, units[i].unit) == 0)
            return n * units[i].ms;
    return -1;
}

/* Is this session ours alone, and does the server keep our lease? Else it is refused. */
static bool session_fits(struct dlock_be *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (!pg_one_row(r, R_COLUMNS))
        dlock_fail(&err, DLOCK_EPROTO, 0, "%s: unexpected answer to the lock query", pg_where(be));
    else if (pg_number(r->rows, 0, R_PID) != PQbackendPID(be->conn.pq))
        dlock_fail(&err, DLOCK_EUSAGE, 0,
                   "%s: a connection pooler stands between dlock and the server, and would keep an "
                   "advisory "
                   "lock for others: name the server itself, or use ?mode=lease",
                   pg_where(be));
    else if (pg_number(r->rows, 0, R_STANDBY))
        dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: the server is a standby", pg_where(be));
    else if (PQserverVersion(be->conn.pq) >= WITH_IDLE_TIMEOUT &&
             shown_ms(pg_text(r->rows, 0, R_IDLE)) != pg_advisory_ttl_ms(be))
        dlock_fail(&err, DLOCK_EUNAVAIL, 0,
                   "%s: the server did not accept an idle_session_timeout of %" PRId64 " ms",
                   pg_where(be), pg_advisory_ttl_ms(be));
    else
        return true;
    pg_fail(be, &err);
    return false;
}

/* An error may leave the session lock behind although the statement was rolled back: the session ends. */
static void refused(struct dlock_be *be, const struct pg_reply *r)
{
    struct dlock_error err;
    pg_conn_reply_error(&be->conn, r, &err);
    bool class53 = strncmp(r->sqlstate, "53", 2) == 0, class57 = strncmp(r->sqlstate, "57", 2) == 0;
    pg_try_later(be, &err, class53 || class57 || strncmp(r->sqlstate, "40", 2) == 0);
}

static void tried(struct dlock_be *be, const struct pg_reply *r)
{
    if (r->sqlstate[0]) {
        refused(be, r);
        return;
    }
    if (!session_fits(be, r))
        return;
    be->first = false;
    outage_over(&be->outage);
    if (pg_number(r->rows, 0, R_LOCKED))
        granted(be, r);
    else if (be->restart_grace > 0 && pg_number(r->rows, 0, R_GRACE) > 0)
        tell_grace(be, pg_number(r->rows, 0, R_GRACE));
    else
        wait_on(be);
}

/* -n; info: who holds it, or NULL: that is all that is missing. */
static void not_free(struct dlock_be *be, const struct dlock_info *info)
{
    events_add(&be->events, EV_BUSY)->info = info;
    be->doing = PG_NOTHING;
    be->op_until = DLOCK_NEVER;
    pg_conn_close(&be->conn);
}

static void who_answered(struct dlock_be *be, const struct pg_reply *r)
{
    bool known = !r->sqlstate[0] && r->rows && PQntuples(r->rows) > 0;
    if (known)
        pg_read_info(be, r->rows, 0, &be->info);
    if (!be->wait) {
        not_free(be, known ? &be->info : NULL);
        return;
    }
    events_add(&be->events, EV_WAITING)->info = known ? &be->info : NULL;
    wait_on(be);
}

static void waited(struct dlock_be *be, const struct pg_reply *r)
{
    /* No PL/pgSQL for this role or in this database. */
    if (strcmp(r->sqlstate, "42501") == 0 || strcmp(r->sqlstate, "42704") == 0 ||
        strcmp(r->sqlstate, "0A000") == 0) {
        be->polls = true;
        wait_on(be);
    } else if (r->sqlstate[0] || !pg_one_row(r, 1)) {
        refused(be, r);
    } else if (strcmp(pg_text(r->rows, 0, 0), be->token) == 0) {
        /* The lease begins anew: what counts is sent now that the lock is ours. */
        bound(be, 0);
        pg_send(be, T_CONFIRM, pg_advisory_lock_sql(be, false));
    } else {
        wait_on(be);
    }
}

static void confirmed(struct dlock_be *be, const struct pg_reply *r)
{
    if (r->sqlstate[0])
        refused(be, r);
    else if (session_fits(be, r))
        granted(be, r);
}

static void adv_answered(struct dlock_be *be, const struct pg_reply *r)
{
    if (be->doing == PG_RELEASE) {
        pg_advisory_answered_late(be, r);
        return;
    }
    switch (r->tag) {
    case T_TRY:
        tried(be, r);
        break;
    case T_WHO:
        who_answered(be, r);
        break;
    case T_WAIT:
        waited(be, r);
        break;
    case T_CONFIRM:
        confirmed(be, r);
        break;
    case T_BEAT:
        pg_advisory_beat_answered(be, r);
        break;
    default:
        break;
    }
}

/* ----------------------------------------------------------------------- slots */

/* The session is gone, and with it the lock. */
static void adv_failed(struct dlock_be *be, const struct dlock_error *err)
{
    if (be->doing == PG_ACQUIRE && !be->wait && !be->first) {
        not_free(be, NULL);
    } else if (be->doing == PG_ACQUIRE) {
        pg_try_later(be, err, be->conn.transient);
    } else if (be->doing == PG_RELEASE) {
        bool asked = be->conn.requests[0].tag == T_RELEASE;
        bool until_now = err->code == DLOCK_ENOMEM; /* it was there as long as the command ran */
        pg_end_release(be,
                       !be->granted         ? DLOCK_REL_NOTHING
                       : asked || until_now ? DLOCK_REL_UNCLEAR
                                            : DLOCK_REL_NOT_OURS,
                       err);
    } else if (be->granted) {
        be->granted = be->beat_called = false;
        be->doing = PG_NOTHING;
        be->op_until = DLOCK_NEVER;
        struct dlock_event *ev = events_add(&be->events, EV_LOST);
        ev->error = *err;
        ev->error.code = DLOCK_ELOST;
    }
}

static void adv_timeout(struct dlock_be *be, int64_t now)
{
    struct dlock_error err;
    if (be->doing == PG_RELEASE && now >= be->rel_until) {
        dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: no answer to the release", pg_where(be));
        pg_end_release(be, be->granted ? DLOCK_REL_UNCLEAR : DLOCK_REL_NOTHING, &err);
    } else if (be->doing == PG_RENEW && now >= be->op_until) {
        /* Still on its way, on the only session that can bring it. */
        be->doing = PG_NOTHING;
        be->beat_called = false;
        be->op_until = DLOCK_NEVER;
        no_answer(&events_add(&be->events, EV_UNCLEAR)->error, be->spec, be->spec->op_timeout);
    } else if (be->doing == PG_ACQUIRE && now >= be->op_until && !be->wait && !be->first) {
        not_free(be, NULL);
    } else if (be->doing == PG_ACQUIRE && now >= be->op_until) {
        no_answer(&err, be->spec, pg_patience(be));
        pg_conn_cancel(&be->conn); /* as in pg_advisory_release() */
        pg_try_later(be, &err, true);
    } else if (be->doing == PG_ACQUIRE && now >= be->try_at) {
        try_now(be);
    }
}

const struct pg_protocol pg_advisory = {
    .acquire = pg_connect,
    .ready = adv_ready,
    .answered = adv_answered,
    .failed = adv_failed,
    .renew = pg_advisory_renew,
    .release = pg_advisory_release,
    .timeout = adv_timeout,
    .read_info = pg_read_info,
};
