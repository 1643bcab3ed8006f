/*
 * postgres.c - a lock in PostgreSQL: the slots of the contract, and what both modes share.
 *
 * advisory.c  the default: a session's advisory lock, with the session's idle time-out as the lease
 * table.c     ?mode=lease: a row in a table
 * uri.c       the URI
 * conn.c      one connection
 *
 * Not guaranteed: the lock is the primary's. A standby that is promoted while the old primary and a holder
 * that it serves live on knows nothing of it (?renew=write helps where a synchronous standby is required).
 */
#include "postgres.h"

#include <stdlib.h>
#include <string.h>

#ifndef DLOCK_BUILD_ID
#define DLOCK_BUILD_ID DLOCK_VERSION
#endif

/* --------------------------------------------------------------------- shared */

void pg_connect(struct dlock_be *be)
{
    be->outage.retry_at = DLOCK_NEVER;
    if (be->conn.state == PC_UP)
        be->protocol->ready(be);
    else if (!pg_conn_is_open(&be->conn))
        pg_conn_open(&be->conn, be->spec, &be->set,
                     dlock_min(be->op_until, pg_now(be) + be->spec->connect_timeout));
}

void pg_fail(struct dlock_be *be, const struct dlock_error *err)
{
    struct dlock_error why = *err; /* it may be the connection's own */
    /* The core calls release now: that cancels what a session is still busy with. */
    if (be->doing != PG_ACQUIRE || be->protocol != &pg_advisory || !pg_conn_busy(&be->conn))
        pg_conn_close(&be->conn);
    be->doing = PG_NOTHING;
    be->op_until = be->try_at = DLOCK_NEVER;
    events_add(&be->events, EV_FAILED)->error = why;
}

void pg_try_later(struct dlock_be *be, const struct dlock_error *err, bool transient)
{
    struct dlock_error why = *err; /* it may be the connection's own */
    be->try_at = DLOCK_NEVER;
    if (be->doing == PG_ASK || be->first) {
        /* First contact: what passes by itself (a server that starts) is worth the time there is. */
        if (!transient) {
            pg_fail(be, &why);
            return;
        }
        pg_conn_close(&be->conn);
        be->refused = why;
        be->outage.retry_at = pg_now(be) + dlock_backoff_next(&be->outage.pause, be->spec->env);
        return;
    }
    be->op_until = DLOCK_NEVER;
    if (outage_goes_on(&be->outage, be->spec, &be->events, &why))
        pg_conn_close(&be->conn);
    else
        pg_fail(be, &why); /* whose release waits for the cancel: an end of the process would not */
}

bool pg_new_token(struct dlock_be *be)
{
    struct dlock_error err;
    int rc = dlock_token_new(be->spec->env, be->token);
    if (rc == 0)
        return true;
    dlock_fail(&err, DLOCK_EOS, -rc, "no random numbers: %s", strerror(-rc));
    pg_fail(be, &err);
    return false;
}

void pg_send_params(struct dlock_be *be, enum pg_tag tag, char *sql, int n,
                    const char *const *values)
{
    if (!sql)
        pg_conn_no_memory(&be->conn);
    else if (be->protocol->pipeline)
        pg_conn_send_params(&be->conn, (int)tag, sql, n, values);
    else
        pg_conn_send(&be->conn, (int)tag, sql);
    free(sql);
}

void pg_send(struct dlock_be *be, enum pg_tag tag, char *sql)
{
    pg_send_params(be, tag, sql, 0, NULL);
}

void pg_end_release(struct dlock_be *be, enum dlock_how how, const struct dlock_error *err)
{
    pg_conn_close(&be->conn);
    be->doing = PG_NOTHING;
    be->granted = be->beat_called = false;
    be->beat_sent = 0;
    be->op_until = be->rel_until = be->try_at = DLOCK_NEVER;
    outage_over(&be->outage);
    struct dlock_event *ev = events_add(&be->events, EV_RELEASED);
    ev->how = how;
    if (err)
        ev->error = *err;
}

const char *pg_text(const PGresult *res, int row, int col)
{
    return PQgetvalue(res, row, col); /* "" for NULL */
}

int64_t pg_number(const PGresult *res, int row, int col)
{
    return strtoll(PQgetvalue(res, row, col), NULL, 10);
}

bool pg_one_row(const struct pg_reply *r, int n)
{
    return r->sqlstate[0] == '\0' && r->rows && PQntuples(r->rows) == 1 && PQnfields(r->rows) == n;
}

size_t pg_read_comment(const char *query, struct dlock_info *info, const char **begin)
{
    const char *end = strstr(query, " */");
    if (strncmp(query, "/* ", 3) != 0 || !end)
        return 0;
    *begin = query + 3;
    size_t len = (size_t)(end - *begin);
    return dlock_who_parse(*begin, len, info) ? len : 0;
}

/* ---------------------------------------------------------------------- slots */

static void be_close(struct dlock_be *be)
{
    if (!be)
        return;
    pg_conn_close(&be->conn);
    PQclear(be->listing);
    pg_done(be);
    free(be);
}

static int be_open(struct dlock_be **out, const struct dlock_spec *spec, struct dlock_error *err)
{
    struct dlock_be *be = calloc(1, sizeof *be);
    if (!be)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    be->spec = spec;
    be->op_until = be->rel_until = be->try_at = DLOCK_NEVER;
    outage_over(&be->outage);
    int rc = pg_check_spec(be, err);
    if (rc < 0) {
        be_close(be);
        return rc;
    }
    be->conn.pipeline = be->protocol->pipeline;
    *out = be;
    return 0;
}

static void start(struct dlock_be *be, enum pg_doing doing)
{
    be->doing = doing;
    be->first = true;
    be->refused.code = 0;
    be->op_until = pg_now(be) + be->spec->connect_timeout;
    outage_over(&be->outage);
}

static void be_acquire(struct dlock_be *be, bool wait)
{
    start(be, PG_ACQUIRE);
    be->wait = wait;
    be->granted = be->told_grace = false;
    be->fence = 0;
    be->chunks = 0;
    be->try_at = DLOCK_NEVER;
    if (pg_new_token(be))
        be->protocol->acquire(be);
}

static void be_renew(struct dlock_be *be)
{
    be->doing = PG_RENEW;
    be->op_until = pg_now(be) + be->spec->op_timeout;
    be->protocol->renew(be);
}

static void be_release(struct dlock_be *be, int64_t until)
{
    be->events.n = 0;
    PQclear(be->listing);
    be->listing = NULL;
    be->rel_until = until;
    if (be->doing == PG_RELEASE)
        return;
    be->doing = PG_RELEASE;
    be->op_until = be->try_at = DLOCK_NEVER;
    outage_over(&be->outage);
    be->protocol->release(be);
}

static void be_ask(struct dlock_be *be, enum dlock_ask what, const char *arg)
{
    struct dlock_error err;
    (void)arg;
    start(be, PG_ASK);
    if (what == ASK_STATUS) {
        pg_connect(be);
        return;
    }
    dlock_fail(&err, DLOCK_EUSAGE, 0, "not yet supported for postgres");
    pg_fail(be, &err);
}

/* -------------------------------------------------------------------- driving */

static void ask_answered(struct dlock_be *be, struct pg_reply *r)
{
    struct dlock_error err;
    if (strcmp(r->sqlstate, "42P01") == 0 && be->protocol == &pg_table) {
        be->doing = PG_NOTHING; /* no table: nobody has ever taken a lock here */
        be->op_until = DLOCK_NEVER;
        events_add(&be->events, EV_DONE);
        return;
    }
    if (r->sqlstate[0] || !r->rows) {
        pg_conn_reply_error(&be->conn, r, &err);
        pg_fail(be, &err);
        return;
    }
    be->listing = r->rows;
    r->rows = NULL;
    be->list_at = be->place = 0;
    be->op_until = DLOCK_NEVER;
}

static void take_replies(struct dlock_be *be)
{
    struct pg_reply r;
    int rc = 0;
    while (be->conn.state != PC_CLOSED && (rc = pg_conn_next(&be->conn, &r)) == 1) {
        if (r.tag == T_ASK && be->doing == PG_ASK)
            ask_answered(be, &r);
        else
            be->protocol->answered(be, &r);
        pg_conn_done(&r);
    }
    if (rc < 0 && be->conn.state == PC_FAILED) {
        struct dlock_error err = be->conn.error;
        pg_conn_close(&be->conn);
        if (be->doing == PG_ASK)
            pg_try_later(be, &err, be->conn.transient);
        else
            be->protocol->failed(be, &err);
    }
}

/* One step of the connection; whoever waits for it to come up is told. */
static void drive(struct dlock_be *be)
{
    bool connecting = be->conn.state == PC_CONNECTING;
    pg_conn_work(&be->conn);
    if (connecting && be->conn.state == PC_UP)
        be->protocol->ready(be);
}

static void contact_over(struct dlock_be *be)
{
    struct dlock_error err;
    if (be->refused.code != 0)
        err = be->refused;
    else
        no_answer(&err, be->spec, be->spec->connect_timeout);
    if (be->doing == PG_ACQUIRE && be->protocol->abandon)
        be->protocol->abandon(be);
    pg_fail(be, &err);
}

static void timers(struct dlock_be *be)
{
    int64_t now = pg_now(be);
    if (be->conn.state == PC_CONNECTING && now >= be->conn.next_at)
        drive(be);
    if (be->doing == PG_NOTHING)
        return;
    if (now >= be->op_until && (be->doing == PG_ASK || (be->doing == PG_ACQUIRE && be->first)))
        contact_over(be);
    else if (now >= be->outage.retry_at)
        pg_connect(be);
    else
        be->protocol->timeout(be, now);
}

static int be_interest(struct dlock_be *be, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    int n = cap > 0 ? pg_conn_interest(&be->conn, pfd, wake_at) : 0;
    if (be->doing != PG_NOTHING) {
        *wake_at = dlock_min(*wake_at, dlock_min(be->op_until, be->rel_until));
        *wake_at = dlock_min(*wake_at, dlock_min(be->try_at, be->outage.retry_at));
    }
    if (be->events.n > 0 || be->listing)
        *wake_at = 0;
    return n;
}

static int give_listed(struct dlock_be *be, struct dlock_event *ev)
{
    if (be->list_at < PQntuples(be->listing)) {
        be->protocol->read_info(be, be->listing, be->list_at++, &be->info);
        if (be->info.waiter)
            be->info.place = ++be->place;
        *ev = (struct dlock_event){.type = EV_INFO, .info = &be->info};
        return 1;
    }
    PQclear(be->listing);
    be->listing = NULL;
    be->doing = PG_NOTHING;
    pg_conn_close(&be->conn);
    *ev = (struct dlock_event){.type = EV_DONE};
    return 1;
}

static int be_process(struct dlock_be *be, const struct pollfd *pfd, int n, struct dlock_event *ev)
{
    bool ready = false;
    for (int i = 0; i < n; i++)
        ready |=
            pfd[i].revents != 0 && pg_conn_is_open(&be->conn) && pfd[i].fd == PQsocket(be->conn.pq);
    if (ready)
        drive(be);
    take_replies(be);
    timers(be);
    take_replies(be); /* a send that failed at once */
    if (events_take(&be->events, ev))
        return 1;
    return be->listing ? give_listed(be, ev) : 0;
}

/* In lease mode a connection is only a way to the row. */
static int be_session_fd(struct dlock_be *be)
{
    return be->protocol == &pg_advisory && be->granted && be->conn.state == PC_UP
               ? PQsocket(be->conn.pq)
               : -1;
}

static int be_schema(struct dlock_be *be, char **out, struct dlock_error *err)
{
    if (!be->protocol->schema)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "%s: advisory locks need no table (?mode=lease does)", pg_where(be));
    char *text = be->protocol->schema(be);
    if (!text)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    *out = text;
    return 0;
}

static const char *const schemes[] = {"postgres", "postgresql", NULL};

const struct dlock_backend DLOCK_BACKEND_SYMBOL(postgres) = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_BUILD_ID,
    .name = "postgres",
    .package = "dlock-postgres",
    .schemes = schemes,
    .caps = CAP_FENCE | CAP_LEASE,
    .open = be_open,
    .acquire = be_acquire,
    .renew = be_renew,
    .release = be_release,
    .ask = be_ask,
    .interest = be_interest,
    .process = be_process,
    .session_fd = be_session_fd,
    .schema = be_schema,
    .close = be_close,
};
