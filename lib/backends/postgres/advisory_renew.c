/*
 * advisory_renew.c - a lock that is held: the heartbeat, and the release.
 *
 * Both go to the one session that has the lock. When that ends, so does the lock.
 */
#include "advisory.h"

#include <string.h>

/* ------------------------------------------------------------------- heartbeat */

static void renewed(struct dlock_be *be, int64_t from)
{
    be->doing = PG_NOTHING;
    be->op_until = DLOCK_NEVER;
    be->beat_sent = 0;
    be->beat_called = false;
    struct dlock_event *ev = events_add(&be->events, EV_RENEWED);
    ev->from = from;
    ev->ttl = be->spec->ttl;
}

/* An answer that is an error ends no session: pg_cancel_backend, say. The next one counts. */
void pg_advisory_beat_answered(struct dlock_be *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (r->sqlstate[0]) {
        if (!be->beat_called)
            return;
        pg_conn_reply_error(&be->conn, r, &err);
        be->doing = PG_NOTHING;
        be->beat_called = false;
        be->op_until = DLOCK_NEVER;
        events_add(&be->events, EV_UNCLEAR)->error = err;
    } else if (be->beat_called) {
        renewed(be, r->sent);
    } else {
        be->beat_sent = r->sent;
    }
}

void pg_advisory_renew(struct dlock_be *be)
{
    be->beat_called = true;
    if (be->beat_sent != 0)
        renewed(be, be->beat_sent);
    else if (!pg_conn_busy(&be->conn)) /* else the answer to the last one still counts */
        pg_send(be, T_BEAT, pg_advisory_beat_sql(be));
}

/* --------------------------------------------------------------------- release */

static void unlock(struct dlock_be *be)
{
    pg_send(be, T_RELEASE, pg_advisory_unlock_sql(be));
}

static void unlocked(struct dlock_be *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (strcmp(r->sqlstate, "57014") == 0) {
        unlock(be); /* our own cancel, late: it was for the request before this one */
    } else if (r->sqlstate[0] || !pg_one_row(r, 1)) {
        pg_conn_reply_error(&be->conn, r, &err);
        pg_end_release(be, DLOCK_REL_UNCLEAR, &err);
    } else if (pg_number(r->rows, 0, 0) == 1) {
        pg_end_release(be, DLOCK_REL_CLEAN, NULL);
    } else {
        dlock_fail(&err, DLOCK_ELOST, 0, "%s: the session did not hold the lock '%s' any more",
                   pg_where(be), be->spec->uri->name);
        pg_end_release(be, DLOCK_REL_NOT_OURS, &err);
    }
}

/* While a release is under way. Nothing granted: the end of the session undoes whatever it was. */
void pg_advisory_answered_late(struct dlock_be *be, const struct pg_reply *r)
{
    if (r->tag == T_RELEASE)
        unlocked(be, r);
    else if (be->granted)
        unlock(be);
    else
        pg_end_release(be, DLOCK_REL_NOTHING, NULL);
}

void pg_advisory_release(struct dlock_be *be)
{
    be->beat_called = false;
    if (be->conn.state == PC_UP)
        pg_conn_work(&be->conn); /* has the session ended just now? */
    if (be->conn.state == PC_FAILED)
        return; /* adv_failed() has the word */
    if (be->conn.state != PC_UP)
        pg_end_release(be, DLOCK_REL_NOTHING, NULL);
    else if (!pg_conn_busy(&be->conn)) {
        if (be->granted)
            unlock(be);
        else
            pg_end_release(be, DLOCK_REL_NOTHING, NULL);
    } else if (!be->granted || be->renew_writes) {
        /*
         * So that we leave the line now and not at the end of the chunk; and for a commit that waits for
         * a standby: such a session looks neither at its socket nor at its idle time, and would keep the lock.
         */
        pg_conn_cancel(&be->conn);
    }
}
