/*
 * operation.c - the operation that the core started: connect, end the operation with its event, or
 * try again later. Called by the modes and the slots; calls the connection and the mode's ready().
 */
#include "postgres.h"

#include <stdio.h>
#include <string.h>

void pg_connect(struct pg_backend *be)
{
    be->outage.retry_at = DLOCK_NEVER;
    if (be->conn.state == PC_UP)
        be->protocol->ready(be);
    else if (!pg_conn_is_open(&be->conn))
        pg_conn_open(&be->conn, be->spec, &be->settings,
                     dlock_min(be->op_until, pg_now(be) + be->spec->connect_timeout), be->granted);
}

bool pg_new_token(struct pg_backend *be)
{
    struct dlock_error err;
    int rc = dlock_token_new(be->spec->env, be->token);
    if (rc == 0)
        return true;
    dlock_fail(&err, DLOCK_EOS, -rc, "no random numbers: %s", strerror(-rc));
    pg_fail(be, &err);
    return false;
}

/* For comments in SQL: percent-encoded, so without quotes and without the end of a comment. */
void pg_describe(struct pg_backend *be, enum dlock_record as)
{
    char *buf = as == RECORD_WAITS ? be->waiter : be->holder;
    if (dlock_identity_format(be->spec->identity, as, buf, sizeof(be->holder)) < 0)
        snprintf(buf, sizeof(be->holder), "dlock1 pid=%ld", be->spec->identity->pid);
}

void pg_granted(struct pg_backend *be, int64_t from)
{
    pg_op_done(be);
    be->granted = true;
    struct dlock_event *ev = events_add(&be->events, EV_GRANTED);
    ev->from = from;
    ev->ttl = be->spec->ttl;
    ev->fence = be->fence;
    ev->slot = be->slot;
    memcpy(ev->token, be->token, sizeof(ev->token));
}

void pg_busy(struct pg_backend *be, const struct dlock_info *info)
{
    pg_op_done(be);
    events_add(&be->events, EV_BUSY)->info = info;
    pg_conn_close(&be->conn);
}

void pg_skipped(struct pg_backend *be)
{
    pg_op_done(be);
    events_add(&be->events, EV_SKIPPED)->run = &be->run;
    pg_conn_close(&be->conn);
}

struct dlock_event *pg_stepped(struct pg_backend *be, bool done)
{
    pg_op_done(be);
    struct dlock_event *ev = events_add(&be->events, EV_STEPPED);
    ev->stepped = done;
    return ev;
}

void pg_in_grace(struct pg_backend *be, int64_t left_ms)
{
    char left[32];
    if (!be->warned_grace) {
        be->warned_grace = true;
        dlock_fail_at(
            &events_add(&be->events, EV_NOTICE)->error, DLOCK_EBUSY, 0, pg_where(be),
            "the server started or was promoted recently, and grants locks in %s (restart-grace)",
            dlock_format_duration(left_ms * DLOCK_MSEC, left, sizeof(left)));
    }
    if (!be->acquire.wait) {
        pg_busy(be, NULL);
        return;
    }
    events_add(&be->events, EV_WAITING);
    be->op_until = DLOCK_NEVER;
    /* Before half a ttl has passed, since the server ends a session that is silent for a ttl. */
    int64_t pause = dlock_min(left_ms + 10, dlock_min(5000, be->spec->ttl / DLOCK_MSEC / 2));
    be->acquire.try_at = pg_now(be) + pause * DLOCK_MSEC;
}

void pg_renewed(struct pg_backend *be, int64_t from, const char *breaker)
{
    pg_op_done(be);
    struct dlock_event *ev = events_add(&be->events, EV_RENEWED);
    ev->from = from;
    ev->ttl = be->spec->ttl;
    ev->broken = breaker != NULL;
    if (breaker && !breaker[0])
        breaker = "an unknown client";
    if (breaker)
        dlock_broken(&ev->error, be->spec, breaker, strlen(breaker));
}

void pg_unclear(struct pg_backend *be, const struct dlock_error *err)
{
    pg_op_done(be);
    events_add(&be->events, EV_UNCLEAR)->error = *err;
}

void pg_released(struct pg_backend *be, enum dlock_release_how how, const struct dlock_error *err)
{
    pg_op_done(be);
    pg_conn_close(&be->conn);
    be->granted = false;
    be->release.until = DLOCK_NEVER;
    outage_none(&be->outage);
    struct dlock_event *ev = events_add(&be->events, EV_RELEASED);
    ev->how = how;
    if (err)
        ev->error = *err;
}

void pg_fail(struct pg_backend *be, const struct dlock_error *err)
{
    struct dlock_error why = *err; /* err may be in the connection */
    /* The core calls release next, which cancels what the session is busy with. */
    if (be->op != PG_OP_ACQUIRE || !be->protocol->session || !pg_conn_busy(&be->conn))
        pg_conn_close(&be->conn);
    pg_op_done(be);
    events_add(&be->events, EV_FAILED)->error = why;
}

void pg_try_later(struct pg_backend *be, const struct dlock_error *err, bool transient)
{
    struct dlock_error why = *err; /* err may be in the connection */
    be->acquire.try_at = DLOCK_NEVER;
    if (be->contact.pending) {
        if (!transient) {
            pg_fail(be, &why);
            return;
        }
        pg_conn_close(&be->conn);
        be->contact.refusal = why;
        be->outage.retry_at = pg_now(be) + dlock_backoff_next(&be->outage.pause, be->spec->env);
        return;
    }
    be->op_until = DLOCK_NEVER;
    /* pg_fail() may leave the session open: release waits for the cancel, unlike an exit. */
    if (outage_goes_on(&be->outage, be->spec, &be->events, &why))
        pg_conn_close(&be->conn);
    else
        pg_fail(be, &why);
}

size_t pg_read_comment(const char *query, struct dlock_info *info, const char **begin)
{
    const char *end;
    /* The blank of the beginning is not that of the end: any user can run such a query. */
    if (strncmp(query, "/* ", 3) != 0 || !(end = strstr(query + 3, " */")))
        return 0;
    *begin = query + 3;
    size_t len = (size_t)(end - *begin);
    return dlock_identity_parse(*begin, len, info) ? len : 0;
}
