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

void adv_break_send(struct sql_store *be)
{
    const struct dlock_info *h = be->order->holder;
    struct dlock_error err;
    bool force = be->order->what == STEP_FREE;
    be->acquire.try_at = DLOCK_NEVER;
    if (h->foreign && !force) {
        dlock_fail_lock(&err, DLOCK_EUNUSABLE, 0, be->spec->uri,
                        "the holder is no dlock, and would not notice a mark: use --force");
        sql_fail(be, &err);
        return;
    }
    snprintf(pg(be)->advisory.breaks.session, sizeof(pg(be)->advisory.breaks.session), "%s",
             h->token);
    adv_request(be, force ? T_FREE : T_BREAK);
}

void adv_break_answered(struct sql_store *be, const struct sql_reply *r)
{
    struct dlock_error err;
    bool forced = r->tag == T_FREE;
    if (!sql_one_row(r, forced ? "shown" : "shown old marked")) {
        adv_refusal(be, r, &err);
        sql_fail(be, &err);
    } else if (!sql_true(r->rows, 0, "shown")) {
        sql_stepped(be, pg(be)->advisory.breaks.ended);
    } else if (!forced && sql_true(r->rows, 0, "old")) {
        dlock_fail_lock(&err, DLOCK_EUNUSABLE, 0, be->spec->uri,
                        "the holder is an older dlock, and would not notice a mark: use --force");
        sql_fail(be, &err);
    } else if (!forced && sql_true(r->rows, 0, "marked")) {
        struct dlock_event *ev = sql_stepped(be, true);
        snprintf(ev->error.msg, sizeof(ev->error.msg), "the mark ends with this process");
        be->status.keeps = true;
    } else { /* the holder renews just now, or its session is about to end */
        pg(be)->advisory.breaks.ended = forced;
        be->acquire.try_at = sql_now(be) + AGAIN;
    }
}
