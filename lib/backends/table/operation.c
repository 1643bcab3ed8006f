/*
 * operation.c - the operation that the core started: connect, end the operation with its event, or
 * try again later. Called by the protocols and the slots; calls the connection and ready().
 */
#include "store.h"

#include <stdio.h>
#include <string.h>

void sql_connect(struct sql_store *be)
{
    be->outage.retry_at = DLOCK_NEVER;
    if (be->conn->state == CONN_UP)
        be->protocol->ready(be);
    else if (!sql_conn_is_open(be->conn))
        be->driver->open(be, dlock_min(be->op_until, sql_now(be) + be->spec->connect_timeout));
}

bool sql_new_token(struct sql_store *be)
{
    struct dlock_error err;
    int rc = dlock_token_new(be->spec->env, be->token);
    if (rc == 0)
        return true;
    dlock_fail(&err, DLOCK_EOS, -rc, "no random numbers: %s", strerror(-rc));
    sql_fail(be, &err);
    return false;
}

/* For comments in SQL: percent-encoded, so without quotes and without the end of a comment. */
void sql_describe(struct sql_store *be, enum dlock_record as)
{
    char *buf = as == RECORD_WAITS ? be->waiter : be->holder;
    if (dlock_identity_format(be->spec->identity, as, buf, sizeof(be->holder)) < 0)
        snprintf(buf, sizeof(be->holder), "dlock1 pid=%ld", be->spec->identity->pid);
}

void sql_granted(struct sql_store *be, int64_t from)
{
    sql_op_done(be);
    be->granted = true;
    struct dlock_event *ev = events_add(&be->events, EV_GRANTED);
    ev->from = from;
    ev->ttl = be->spec->ttl;
    ev->fence = be->fence;
    ev->slot = be->slot;
    memcpy(ev->token, be->token, sizeof(ev->token));
}

void sql_busy(struct sql_store *be, const struct dlock_info *info)
{
    sql_op_done(be);
    events_add(&be->events, EV_BUSY)->info = info;
    sql_close(be);
}

void sql_skipped(struct sql_store *be)
{
    sql_op_done(be);
    events_add(&be->events, EV_SKIPPED)->run = &be->run;
    sql_close(be);
}

struct dlock_event *sql_stepped(struct sql_store *be, bool done)
{
    sql_op_done(be);
    struct dlock_event *ev = events_add(&be->events, EV_STEPPED);
    ev->stepped = done;
    return ev;
}

void sql_in_grace(struct sql_store *be, int64_t left_ms)
{
    char left[32];
    if (!be->warned_grace) {
        be->warned_grace = true;
        dlock_fail_at(
            &events_add(&be->events, EV_NOTICE)->error, DLOCK_EBUSY, 0, sql_where(be),
            "the server started or was promoted recently, and grants locks in %s (restart-grace)",
            dlock_format_duration(left_ms * DLOCK_MSEC, left, sizeof(left)));
    }
    if (!be->acquire.wait) {
        sql_busy(be, NULL);
        return;
    }
    events_add(&be->events, EV_WAITING);
    be->op_until = DLOCK_NEVER;
    /* Before half a ttl has passed, since the server ends a session that is silent for a ttl. */
    int64_t pause = dlock_min(left_ms + 10, dlock_min(5000, be->spec->ttl / DLOCK_MSEC / 2));
    be->acquire.try_at = sql_now(be) + pause * DLOCK_MSEC;
}

void sql_renewed(struct sql_store *be, int64_t from, const char *breaker)
{
    sql_op_done(be);
    struct dlock_event *ev = events_add(&be->events, EV_RENEWED);
    ev->from = from;
    ev->ttl = be->spec->ttl;
    ev->broken = breaker != NULL;
    if (breaker && !breaker[0])
        breaker = "an unknown client";
    if (breaker)
        dlock_broken(&ev->error, be->spec, breaker, strlen(breaker));
}

void sql_unclear(struct sql_store *be, const struct dlock_error *err)
{
    sql_op_done(be);
    events_add(&be->events, EV_UNCLEAR)->error = *err;
}

void sql_released(struct sql_store *be, enum dlock_release_how how, const struct dlock_error *err)
{
    sql_op_done(be);
    sql_close(be);
    be->granted = false;
    be->release.until = DLOCK_NEVER;
    outage_none(&be->outage);
    struct dlock_event *ev = events_add(&be->events, EV_RELEASED);
    ev->how = how;
    if (err)
        ev->error = *err;
}

void sql_fail(struct sql_store *be, const struct dlock_error *err)
{
    struct dlock_error why = *err; /* err may be in the connection */
    /* The core calls release next, which cancels what the session is busy with. */
    if (be->op != SQL_OP_ACQUIRE || !be->protocol->session || !sql_is_busy(be))
        sql_close(be);
    sql_op_done(be);
    events_add(&be->events, EV_FAILED)->error = why;
}

void sql_try_later(struct sql_store *be, const struct dlock_error *err, bool transient)
{
    struct dlock_error why = *err; /* err may be in the connection */
    be->acquire.try_at = DLOCK_NEVER;
    if (be->contact.pending) {
        if (!transient) {
            sql_fail(be, &why);
            return;
        }
        sql_close(be);
        be->contact.refusal = why;
        be->outage.retry_at = sql_now(be) + dlock_backoff_next(&be->outage.pause, be->spec->env);
        return;
    }
    be->op_until = DLOCK_NEVER;
    /* sql_fail() may leave the session open: release waits for the cancel, unlike an exit. */
    if (outage_goes_on(&be->outage, be->spec, &be->events, &why))
        sql_close(be);
    else
        sql_fail(be, &why);
}

size_t sql_read_comment(const char *query, struct dlock_info *info, const char **begin)
{
    const char *end;
    /* The blank of the beginning is not that of the end: any user can run such a query. */
    if (strncmp(query, "/* ", 3) != 0 || !(end = strstr(query + 3, " */")))
        return 0;
    *begin = query + 3;
    size_t len = (size_t)(end - *begin);
    return dlock_identity_parse(*begin, len, info) ? len : 0;
}
