/*
 * advisory_break.c - break the hold of a session.
 *
 * A mark is a further key, held exclusively by the session of the client that breaks the hold. Each
 * renewal tries this key; a holder that does not get it reads the name of that session, and ends
 * its command. The mark ends with our session, so the connection stays open after the answer. A
 * session is named by its pid and begin: a process that has the pid by now is left alone.
 *
 * By force: pg_terminate_backend(). The answer is an error unless the role is the holder's, or a
 * member of pg_signal_backend.
 */
#include "advisory_sql.h"

#include <stdio.h>
#include <string.h>

#define AGAIN (20 * DLOCK_MSEC)

void adv_break_send(struct pg_backend *be)
{
    const struct dlock_info *h = be->question->holder;
    struct dlock_error err;
    bool force = be->question->force;
    be->acquire.try_at = DLOCK_NEVER;
    if (h->foreign && !force) {
        dlock_fail_lock(&err, DLOCK_EUNUSABLE, 0, be->spec->uri,
                        "the holder is no dlock, and would not notice a mark: use --force");
        pg_fail(be, &err);
        return;
    }
    snprintf(be->advisory.breaks.session, sizeof(be->advisory.breaks.session), "%s", h->token);
    adv_request(be, force ? T_FREE : T_BREAK);
}

static void done(struct pg_backend *be, bool broken)
{
    pg_op_done(be);
    struct dlock_event *ev = events_add(&be->events, EV_DONE);
    ev->broken = broken;
    be->advisory.breaks.keeps = broken;
    if (broken)
        snprintf(ev->error.msg, sizeof(ev->error.msg), "the mark ends with this process");
    else
        pg_conn_close(&be->conn);
}

/* The hold is over: who has the lock now? */
static void holder_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (r->sqlstate[0] || !r->rows) {
        pg_conn_reply_error(&be->conn, r, &err);
        pg_fail(be, &err);
    } else if (PQntuples(r->rows) == 0) {
        done(be, false);
    } else {
        adv_read_info(r->rows, 0, &be->info);
        pg_busy(be, &be->info);
    }
}

void adv_break_answered(struct pg_backend *be, const struct pg_reply *r)
{
    struct dlock_error err;
    bool forced = r->tag == T_FREE;
    if (r->tag == T_HOLDER) {
        holder_answered(be, r);
    } else if (!pg_one_row(r, B_COLUMNS)) {
        adv_refusal(be, r, &err);
        pg_fail(be, &err);
    } else if (!pg_true(r->rows, 0, B_SHOWN) && be->advisory.breaks.ended) {
        done(be, false);
    } else if (!pg_true(r->rows, 0, B_SHOWN)) {
        adv_request(be, T_HOLDER);
    } else if (pg_true(r->rows, 0, B_OLD)) {
        dlock_fail_lock(&err, DLOCK_EUNUSABLE, 0, be->spec->uri,
                        "the holder is an older dlock, and would not notice a mark: use --force");
        pg_fail(be, &err);
    } else if (!forced && (pg_true(r->rows, 0, B_DONE) || pg_true(r->rows, 0, B_OTHER))) {
        done(be, true);
    } else { /* the holder renews just now, or its session is about to end */
        be->advisory.breaks.ended = forced;
        be->acquire.try_at = pg_now(be) + AGAIN;
    }
}
