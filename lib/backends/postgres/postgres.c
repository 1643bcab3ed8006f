/*
 * postgres.c - a lock in PostgreSQL: the slots of the contract, and what the two modes share.
 *
 * advisory.c  the default: a session's advisory lock, with the session's idle time-out as the
 *             lease; advisory_break.c: break a hold
 * table.c     ?mode=lease: a row in a table; table_shared.c: shared locks and slots in the table;
 *             table_break.c: break a hold; table_runs.c: run records; table_sql.c: what is sent
 * operation.c what both modes do to the operation: connect, end, try again later
 * uri.c       the URI, and libpq's settings
 * list.c      the locks of the store; check.c: what a run would meet
 * conn.c      one connection
 * attempt.c   libpq connects, in a thread where libpq may block
 *
 * postgres.c drives the connection and the timers, and hands answers, errors and time-outs to the
 * mode, which decides through operation.c what comes next.
 *
 * Not guaranteed: only the primary knows the lock. When a standby is promoted while the old primary
 * and a holder connected there live on, the new primary knows nothing of the lock (?renew=write
 * helps where a synchronous standby is required).
 */
#include "postgres.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DLOCK_BUILD_ID
#define DLOCK_BUILD_ID DLOCK_VERSION
#endif

/* ---------------------------------------------------------------------- slots */

static struct pg_backend *self(struct dlock_be *be)
{
    return (struct pg_backend *)be;
}

static void slot_close(struct dlock_be *slot)
{
    struct pg_backend *be = self(slot);
    if (!be)
        return;
    pg_conn_close(&be->conn);
    PQclear(be->status.rows);
    PQclear(be->status.first);
    findings_drop(&be->found);
    pg_settings_done(be);
    free(be);
}

static void slot_close_in_child(struct dlock_be *slot)
{
    pg_conn_close_in_child(&self(slot)->conn);
    slot_close(slot);
}

static int slot_open(struct dlock_be **out, const struct dlock_spec *spec, struct dlock_error *err)
{
    struct pg_backend *be = calloc(1, sizeof(*be));
    if (!be)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    be->spec = spec;
    be->op_until = be->release.until = be->acquire.try_at = DLOCK_NEVER;
    outage_none(&be->outage);
    int rc = pg_settings_init(be, err);
    if (rc < 0) {
        slot_close((struct dlock_be *)be);
        return rc;
    }
    be->conn.pipeline = !be->protocol->session;
    *out = (struct dlock_be *)be;
    return 0;
}

static void start(struct pg_backend *be, enum pg_op op)
{
    be->op = op;
    be->op_until = pg_now(be) + be->spec->connect_timeout;
    be->contact.pending = true;
    be->contact.refusal.code = 0;
    outage_none(&be->outage);
}

static void slot_acquire(struct dlock_be *slot, bool wait)
{
    struct pg_backend *be = self(slot);
    start(be, PG_OP_ACQUIRE);
    be->acquire.wait = wait;
    be->acquire.try_at = DLOCK_NEVER;
    pg_describe(be, RECORD_WAITS);
    be->granted = be->warned_grace = false;
    be->fence = 0;
    be->slot = 0;
    if (pg_new_token(be))
        be->protocol->acquire(be);
}

static const struct dlock_error *slot_refusal(const struct dlock_be *slot)
{
    return &((const struct pg_backend *)slot)->contact.refusal;
}

static bool slot_stays(struct dlock_be *slot)
{
    return !self(slot)->protocol->session;
}

static void slot_renew(struct dlock_be *slot)
{
    struct pg_backend *be = self(slot);
    be->op = PG_OP_RENEW;
    be->op_until = pg_now(be) + be->spec->op_timeout;
    be->protocol->renew(be);
}

static void drop_rows(struct pg_backend *be)
{
    PQclear(be->status.rows);
    be->status.rows = NULL;
    be->status.next = be->status.place = 0;
}

static void slot_release(struct dlock_be *slot, int64_t until)
{
    struct pg_backend *be = self(slot);
    be->events.n = 0;
    drop_rows(be);
    findings_drop(&be->found);
    be->release.until = until;
    if (be->op == PG_OP_RELEASE)
        return;
    be->op = PG_OP_RELEASE;
    be->op_until = be->acquire.try_at = DLOCK_NEVER;
    be->contact.pending = false;
    be->contact.refusal.code = 0;
    outage_none(&be->outage);
    be->protocol->release(be);
}

static void slot_ask(struct dlock_be *slot, const struct dlock_question *question)
{
    struct pg_backend *be = self(slot);
    start(be, PG_OP_STATUS);
    be->question = question;
    be->status.after[0] = '\0';
    be->status.partial = false;
    be->check_second = false;
    findings_drop(&be->found);
    pg_connect(be);
}

static void slot_step(struct dlock_be *slot, const struct dlock_order *order)
{
    struct pg_backend *be = self(slot);
    struct dlock_error err;
    drop_rows(be);
    start(be, PG_OP_STATUS);
    be->op_until = order->until;
    be->question = order->question;
    be->order = order;
    be->advisory.breaks.keeps = be->advisory.breaks.keeps && order->what == STEP_READ;
    be->advisory.breaks.ended = false;
    if (order->question->what == ASK_FORGET && be->protocol->session) {
        pg_no_records(be, &err);
        pg_fail(be, &err);
        return;
    }
    pg_connect(be);
}

static bool slot_next(struct dlock_be *slot, struct dlock_info *info)
{
    struct pg_backend *be = self(slot);
    int n = be->status.rows ? PQntuples(be->status.rows) : 0;
    while (be->status.next < n) {
        if (!be->protocol->read_info(be->status.rows, be->status.next++, info))
            continue;
        if (info->waiter)
            info->place = ++be->status.place;
        return true;
    }
    return false;
}

static void slot_rest(struct dlock_be *slot)
{
    struct pg_backend *be = self(slot);
    drop_rows(be);
    if (!be->advisory.breaks.keeps)
        pg_conn_close(&be->conn);
}

/* In lease mode a connection is only a way to the row. */
static int slot_session_fd(struct dlock_be *slot)
{
    struct pg_backend *be = self(slot);
    bool holds = be->protocol->session && be->granted && be->conn.state == PC_UP;
    return holds ? PQsocket(be->conn.pq) : -1;
}

static int slot_schema(struct dlock_be *slot, char **out, struct dlock_error *err)
{
    struct pg_backend *be = self(slot);
    if (!be->protocol->schema)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, pg_where(be),
                             "advisory locks need no table (?mode=lease does)");
    char *text = be->protocol->schema(be);
    if (!text)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    *out = text;
    return 0;
}

/* -------------------------------------------------------------------- driving */

static void status_answered(struct pg_backend *be, struct pg_reply *r)
{
    struct dlock_error err;
    if (be->question->what == ASK_CHECK) {
        pg_check_answered(be, r);
        return;
    }
    if (be->protocol->more_status && be->protocol->more_status(be, r))
        return;
    /* Without a table no lock was ever taken. */
    bool no_table = strcmp(r->sqlstate, "42P01") == 0 && be->protocol->schema;
    bool lists = be->question->what == ASK_LIST;
    const char *columns = lists ? be->protocol->list_columns : be->protocol->status_columns;
    if (!no_table && (r->sqlstate[0] || !r->rows || !pg_has(r->rows, columns))) {
        pg_conn_reply_error(&be->conn, r, &err);
        pg_fail(be, &err);
        return;
    }
    drop_rows(be);
    be->status.rows = no_table ? NULL : r->rows;
    if (!no_table)
        r->rows = NULL;
    if (lists && !no_table) {
        be->op_until = DLOCK_NEVER;
        return;
    }
    pg_op_done(be);
    struct dlock_event *ev = events_add(&be->events, lists ? EV_DONE : EV_READ);
    if (!lists && be->status.run)
        ev->run = &be->run;
    if (!lists)
        ev->error = be->status.record;
}

static void take_replies(struct pg_backend *be)
{
    struct pg_reply r;
    int rc = 0;
    while (be->conn.state != PC_CLOSED && (rc = pg_conn_next(&be->conn, &r)) == 1) {
        if (r.sqlstate[0] && be->protocol->found && be->protocol->found(be, &r))
            ; /* another answer follows */
        else if (r.tag == T_STATUS && be->op == PG_OP_STATUS)
            status_answered(be, &r);
        else
            be->protocol->answered(be, &r);
        pg_conn_done(&r);
    }
    if (rc < 0 && be->conn.state == PC_FAILED) {
        struct dlock_error err = be->conn.error;
        pg_conn_close(&be->conn);
        if (be->op == PG_OP_STATUS)
            pg_try_later(be, &err, be->conn.transient);
        else
            be->protocol->failed(be, &err);
    }
}

static void drive(struct pg_backend *be)
{
    struct dlock_error err;
    bool connecting = be->conn.state == PC_CONNECTING;
    bool first = be->op == PG_OP_ACQUIRE || be->op == PG_OP_STATUS;
    pg_conn_work(&be->conn);
    if (!connecting || be->conn.state != PC_UP)
        return;
    /* CockroachDB has PostgreSQL's protocol and lock functions, but the functions do nothing. */
    if (first && PQparameterStatus(be->conn.pq, "crdb_version")) {
        dlock_fail_at(
            &err, DLOCK_EUNUSABLE, 0, pg_where(be),
            "this is CockroachDB, whose advisory locks exclude no client: use PostgreSQL");
        pg_fail(be, &err);
        return;
    }
    be->protocol->ready(be);
}

static void timers(struct pg_backend *be)
{
    struct dlock_error err;
    char text[32];
    int64_t now = pg_now(be);
    if (be->conn.state == PC_CONNECTING && now >= be->conn.address.next_at)
        drive(be);
    if (be->op == PG_OP_NONE)
        return;
    if (be->contact.pending && now >= be->op_until) {
        /* The time for the first contact is over. */
        if (be->contact.refusal.code != 0)
            err = be->contact.refusal;
        else if (be->conn.state == PC_UP)
            no_answer(&err, be->spec, be->spec->connect_timeout);
        else
            dlock_fail_lock(&err, DLOCK_EUNAVAIL, 0, be->spec->uri,
                            "no answer within %s: is a PostgreSQL server there?",
                            dlock_format_duration(be->spec->connect_timeout, text, sizeof(text)));
        if (be->op == PG_OP_ACQUIRE && be->protocol->abandon)
            be->protocol->abandon(be);
        pg_fail(be, &err);
    } else if (now >= be->outage.retry_at) {
        pg_connect(be);
    } else {
        be->protocol->timeout(be, now);
    }
}

/* Rows of a list are handed out. */
static bool lists(const struct pg_backend *be)
{
    return be->op == PG_OP_STATUS && be->status.rows;
}

static int slot_interest(struct dlock_be *slot, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    struct pg_backend *be = self(slot);
    int n = cap > 0 ? pg_conn_interest(&be->conn, pfd, wake_at) : 0;
    if (be->op != PG_OP_NONE) {
        *wake_at = dlock_min(*wake_at, dlock_min(be->op_until, be->release.until));
        *wake_at = dlock_min(*wake_at, dlock_min(be->acquire.try_at, be->outage.retry_at));
    }
    if (be->events.n > 0 || lists(be) || be->found.ended)
        *wake_at = 0;
    return n;
}

static int slot_process(struct dlock_be *slot, const struct pollfd *pfd, int n,
                        struct dlock_event *ev)
{
    struct pg_backend *be = self(slot);
    bool ready = false;
    for (int i = 0; i < n && pg_conn_is_open(&be->conn); i++)
        ready = ready || (pfd[i].revents != 0 && pfd[i].fd == pg_conn_fd(&be->conn));
    if (ready)
        drive(be);
    take_replies(be);
    timers(be);
    take_replies(be); /* a send that failed at once */
    if (events_take(&be->events, ev))
        return 1;
    return lists(be) ? pg_list_next(be, ev) : findings_take(&be->found, ev);
}

static const char *const schemes[] = {"postgres", "postgresql", NULL};

const struct dlock_backend DLOCK_BACKEND_SYMBOL(postgres) = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_BUILD_ID,
    .name = "postgres",
    .package = "dlock-postgres",
    .schemes = schemes,
    .caps = CAP_SHARED | CAP_SLOTS | CAP_FENCE | CAP_LEASE | CAP_ONCE,
    .open = slot_open,
    .acquire = slot_acquire,
    .refusal = slot_refusal,
    .stays = slot_stays,
    .renew = slot_renew,
    .release = slot_release,
    .ask = slot_ask,
    .step = slot_step,
    .next = slot_next,
    .rest = slot_rest,
    .interest = slot_interest,
    .process = slot_process,
    .session_fd = slot_session_fd,
    .schema = slot_schema,
    .close = slot_close,
    .close_in_child = slot_close_in_child,
};
