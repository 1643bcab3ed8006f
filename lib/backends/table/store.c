/*
 * store.c - a store in SQL: the slots of the contract.
 *
 * store.c      drives the connection and the timers, and hands answers, errors and time-outs to the
 *              protocol, which decides through operation.c what comes next
 * operation.c  what each protocol does to the operation: connect, end, try again later
 * list.c       the locks of the store; check.c: what a run would meet
 * table.c      the lease table; shared.c: shared locks and slots; break.c: break a hold; runs.c:
 *              run records; send.c: what is sent
 * compose.c    statements with their places filled in; rows.c: answers
 */
#include "store.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------- slots */

static struct sql_store *self(struct dlock_be *be)
{
    return (struct sql_store *)be;
}

void sql_store_init(struct sql_store *be, const struct dlock_spec *spec,
                    const struct sql_driver *driver, struct sql_conn *conn)
{
    be->spec = spec;
    be->driver = driver;
    be->conn = conn;
    be->op_until = be->release.until = be->acquire.try_at = DLOCK_NEVER;
    outage_none(&be->outage);
}

void sql_store_done(struct sql_store *be)
{
    sql_close(be);
    sql_rows_free(be->status.rows);
    sql_rows_free(be->status.first);
    findings_drop(&be->found);
    free(be->table.name);
    free(be->table.holders);
    free(be->table.runs);
    free(be->table.schema);
    free(be->table.role);
}

static void start(struct sql_store *be, enum sql_op op)
{
    be->op = op;
    be->op_until = sql_now(be) + be->spec->connect_timeout;
    be->contact.pending = true;
    be->contact.refusal.code = 0;
    outage_none(&be->outage);
}

void sql_slot_acquire(struct dlock_be *slot, bool wait)
{
    struct sql_store *be = self(slot);
    start(be, SQL_OP_ACQUIRE);
    be->acquire.wait = wait;
    be->acquire.try_at = DLOCK_NEVER;
    sql_describe(be, RECORD_WAITS);
    be->granted = be->warned_grace = false;
    be->fence = 0;
    be->slot = 0;
    if (sql_new_token(be))
        be->protocol->acquire(be);
}

const struct dlock_error *sql_slot_refusal(const struct dlock_be *slot)
{
    return &((const struct sql_store *)slot)->contact.refusal;
}

bool sql_slot_stays(struct dlock_be *slot)
{
    return !self(slot)->protocol->session;
}

void sql_slot_renew(struct dlock_be *slot)
{
    struct sql_store *be = self(slot);
    be->op = SQL_OP_RENEW;
    be->op_until = sql_now(be) + be->spec->op_timeout;
    be->protocol->renew(be);
}

static void drop_rows(struct sql_store *be)
{
    sql_rows_free(be->status.rows);
    be->status.rows = NULL;
    be->status.next = be->status.place = 0;
}

void sql_slot_release(struct dlock_be *slot, int64_t until)
{
    struct sql_store *be = self(slot);
    be->events.n = 0;
    drop_rows(be);
    findings_drop(&be->found);
    be->release.until = until;
    if (be->op == SQL_OP_RELEASE)
        return;
    be->op = SQL_OP_RELEASE;
    be->op_until = be->acquire.try_at = DLOCK_NEVER;
    be->contact.pending = false;
    be->contact.refusal.code = 0;
    outage_none(&be->outage);
    be->protocol->release(be);
}

void sql_slot_ask(struct dlock_be *slot, const struct dlock_question *question)
{
    struct sql_store *be = self(slot);
    start(be, SQL_OP_STATUS);
    be->question = question;
    be->status.after[0] = '\0';
    be->status.partial = false;
    be->check_second = false;
    findings_drop(&be->found);
    sql_connect(be);
}

void sql_slot_step(struct dlock_be *slot, const struct dlock_order *order)
{
    struct sql_store *be = self(slot);
    drop_rows(be);
    start(be, SQL_OP_STATUS);
    be->op_until = order->until;
    be->question = order->question;
    be->order = order;
    be->status.keeps = be->status.keeps && order->what == STEP_READ;
    if (!be->protocol->step || be->protocol->step(be))
        sql_connect(be);
}

bool sql_slot_next(struct dlock_be *slot, struct dlock_info *info)
{
    struct sql_store *be = self(slot);
    int n = be->status.rows ? be->status.rows->n : 0;
    while (be->status.next < n) {
        if (!be->protocol->read_info(be->status.rows, be->status.next++, info))
            continue;
        if (info->waiter)
            info->place = ++be->status.place;
        return true;
    }
    return false;
}

void sql_slot_rest(struct dlock_be *slot)
{
    struct sql_store *be = self(slot);
    drop_rows(be);
    if (!be->status.keeps)
        sql_close(be);
}

int sql_slot_schema(struct dlock_be *slot, char **out, struct dlock_error *err)
{
    struct sql_store *be = self(slot);
    if (!be->protocol->schema)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(be),
                             "advisory locks need no table (?mode=lease does)");
    char *text = be->protocol->schema(be);
    if (!text)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    *out = text;
    return 0;
}

/* -------------------------------------------------------------------- driving */

static void status_answered(struct sql_store *be, struct sql_reply *r)
{
    struct dlock_error err;
    if (be->question->what == ASK_CHECK) {
        sql_check_answered(be, r);
        return;
    }
    if (be->protocol->more_status && be->protocol->more_status(be, r))
        return;
    /* Without a table no lock was ever taken. */
    bool no_table = r->fault == SQL_NO_TABLE && be->protocol->schema;
    bool lists = be->question->what == ASK_LIST;
    const char *columns = lists ? be->protocol->list_columns : be->protocol->status_columns;
    if (!no_table && (r->fault != SQL_OK || !r->rows || !sql_has(r->rows, columns))) {
        sql_error(be, r, &err);
        sql_fail(be, &err);
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
    sql_op_done(be);
    struct dlock_event *ev = events_add(&be->events, lists ? EV_DONE : EV_READ);
    if (!lists && be->status.run)
        ev->run = &be->run;
    if (!lists)
        ev->error = be->status.record;
}

static void take_replies(struct sql_store *be)
{
    struct sql_reply r;
    int rc = 0;
    while (be->conn->state != CONN_CLOSED && (rc = be->driver->next(be->conn, &r)) == 1) {
        if (r.fault != SQL_OK && be->protocol->found && be->protocol->found(be, &r))
            ; /* another answer follows */
        else if (r.tag == T_STATUS && be->op == SQL_OP_STATUS)
            status_answered(be, &r);
        else
            be->protocol->answered(be, &r);
        sql_reply_done(&r);
    }
    if (rc < 0 && be->conn->state == CONN_FAILED) {
        struct dlock_error err = be->conn->error;
        sql_close(be);
        if (be->op == SQL_OP_STATUS)
            sql_try_later(be, &err, be->conn->transient);
        else
            be->protocol->failed(be, &err);
    }
}

static void drive(struct sql_store *be)
{
    struct dlock_error err;
    bool connecting = be->conn->state == CONN_CONNECTING;
    bool first = be->op == SQL_OP_ACQUIRE || be->op == SQL_OP_STATUS;
    be->driver->work(be->conn);
    if (!connecting || be->conn->state != CONN_UP)
        return;
    const char *refused = first && be->driver->refused ? be->driver->refused(be) : NULL;
    if (refused) {
        dlock_fail_at(&err, DLOCK_EUNUSABLE, 0, sql_where(be), "%s", refused);
        sql_fail(be, &err);
        return;
    }
    be->protocol->ready(be);
}

static void timers(struct sql_store *be)
{
    struct dlock_error err;
    char text[32];
    int64_t now = sql_now(be);
    if (be->conn->state == CONN_CONNECTING && now >= be->conn->next_at)
        drive(be);
    if (be->op == SQL_OP_NONE)
        return;
    if (be->contact.pending && now >= be->op_until) {
        /* The time for the first contact is over. */
        if (be->contact.refusal.code != 0)
            err = be->contact.refusal;
        else if (be->conn->state == CONN_UP)
            no_answer(&err, be->spec, be->spec->connect_timeout);
        else
            dlock_fail_lock(&err, DLOCK_EUNAVAIL, 0, be->spec->uri,
                            "no answer within %s: is a %s server there?",
                            dlock_format_duration(be->spec->connect_timeout, text, sizeof(text)),
                            be->driver->server);
        if (be->op == SQL_OP_ACQUIRE && be->protocol->abandon)
            be->protocol->abandon(be);
        sql_fail(be, &err);
    } else if (now >= be->outage.retry_at) {
        sql_connect(be);
    } else {
        be->protocol->timeout(be, now);
    }
}

/* Rows of a list are handed out. */
static bool lists(const struct sql_store *be)
{
    return be->op == SQL_OP_STATUS && be->status.rows;
}

int sql_slot_interest(struct dlock_be *slot, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    struct sql_store *be = self(slot);
    int n = cap > 0 ? be->driver->interest(be->conn, pfd, wake_at) : 0;
    if (be->op != SQL_OP_NONE) {
        *wake_at = dlock_min(*wake_at, dlock_min(be->op_until, be->release.until));
        *wake_at = dlock_min(*wake_at, dlock_min(be->acquire.try_at, be->outage.retry_at));
    }
    if (be->events.n > 0 || lists(be) || be->found.ended)
        *wake_at = 0;
    return n;
}

int sql_slot_process(struct dlock_be *slot, const struct pollfd *pfd, int n, struct dlock_event *ev)
{
    struct sql_store *be = self(slot);
    bool ready = false;
    for (int i = 0; i < n && sql_conn_is_open(be->conn); i++)
        ready = ready || (pfd[i].revents != 0 && pfd[i].fd == be->driver->fd(be->conn));
    if (ready)
        drive(be);
    take_replies(be);
    timers(be);
    take_replies(be); /* a send that failed at once */
    if (events_take(&be->events, ev))
        return 1;
    return lists(be) ? sql_list_next(be, ev) : findings_take(&be->found, ev);
}
