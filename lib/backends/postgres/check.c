/*
 * check.c - --check: what a run would meet on this server. The questions are SELECTs of catalogues
 * and settings (sql/check.sql); nothing is locked or written. The lease table is then looked at by
 * the statement that also precedes each run (table_found).
 *
 * libpq does not tell the certificate of the server.
 */
#include "postgres.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { C_PID, C_CLOCK, C_LEVEL, C_TEXT, C_COLUMNS };

#define CLOCK_SLACK_MS 1000
#define OLDEST 120000
#define WITH_IDLE_TIMEOUT 140000

__attribute__((format(printf, 4, 5))) static void add(struct pg_backend *be,
                                                      enum dlock_finding level, int code,
                                                      const char *fmt, ...)
{
    struct pg_finding *f = &be->check.list[be->check.n];
    va_list ap;
    if (be->check.n == (int)DLOCK_LEN(be->check.list))
        return;
    be->check.n++;
    *f = (struct pg_finding){.level = level, .error.code = code};
    va_start(ap, fmt);
    vsnprintf(f->error.msg, sizeof(f->error.msg), fmt, ap);
    va_end(ap);
}

static void connection(struct pg_backend *be)
{
    PGconn *pq = be->conn.pq;
    const char *at = PQhost(pq), *tls = PQsslAttribute(pq, "protocol");
    const char *address = PQhostaddr(pq);
    bool near =
        *at == '/' || *at == '@' || strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
    bool same = strcmp(at, address) == 0 || !*address;
    add(be, near || tls ? DLOCK_FINDING_OK : DLOCK_FINDING_WARNING, 0,
        "connection: %s%s%s%s port %s, user %s, database %s, %s%s", at, same ? "" : " (",
        same ? "" : address, same ? "" : ")", PQport(pq), PQuser(pq), PQdb(pq),
        tls ? tls : "no TLS", near || tls ? "" : "; use sslmode=verify-full");
}

static void version(struct pg_backend *be)
{
    int n = PQserverVersion(be->conn.pq);
    const char *text = PQparameterStatus(be->conn.pq, "server_version");
    if (n < OLDEST)
        add(be, DLOCK_FINDING_FAILURE, DLOCK_EUNUSABLE,
            "version: PostgreSQL %s is too old; 12 or later is needed", text ? text : "?");
    else if (n < WITH_IDLE_TIMEOUT && be->protocol->session)
        add(be, DLOCK_FINDING_WARNING, 0,
            "version: PostgreSQL %s does not end a silent session, so the lock of a stopped "
            "machine stays held until TCP gives up; use 14 or later",
            text ? text : "?");
    else
        add(be, DLOCK_FINDING_OK, 0, "version: PostgreSQL %s", text ? text : "?");
}

static void pooler(struct pg_backend *be, const PGresult *rows)
{
    if (pg_number(rows, 0, C_PID) == PQbackendPID(be->conn.pq))
        add(be, DLOCK_FINDING_OK, 0, "pooler: none");
    else if (be->protocol->session)
        add(be, DLOCK_FINDING_FAILURE, DLOCK_EUSAGE,
            "pooler: it would keep an advisory lock for other clients; connect to the server "
            "itself, or write " URI_PARAM("?mode=lease"));
    else
        add(be, DLOCK_FINDING_WARNING, 0,
            "pooler: waiters poll once a second, in no order; connect to the server itself");
}

static void clock_of(struct pg_backend *be, const PGresult *rows)
{
    int64_t off = pg_ms(rows, 0, C_CLOCK) - dlock_wall() / DLOCK_MSEC;
    int64_t by = off < 0 ? -off : off;
    char text[32];
    if (by > CLOCK_SLACK_MS)
        add(be, DLOCK_FINDING_WARNING, 0,
            "clock: the server is %s %s this machine, so times are shown wrong; set the clocks",
            dlock_format_duration(by * DLOCK_MSEC, text, sizeof(text)),
            off > 0 ? "ahead of" : "behind");
    else
        add(be, DLOCK_FINDING_OK, 0, "clock: as this machine's");
}

static void refusal(struct pg_backend *be, const char *subject, const struct pg_reply *r)
{
    struct dlock_error err;
    int code = pg_conn_reply_error(&be->conn, r, &err);
    add(be, DLOCK_FINDING_FAILURE, code, "%s: %.200s", subject, r->text);
}

static void finish(struct pg_backend *be)
{
    be->check.tells = true;
    be->op_until = DLOCK_NEVER;
    pg_conn_close(&be->conn);
}

void pg_check_begin(struct pg_backend *be)
{
    be->check.n = be->check.next = 0;
    be->check.second = be->check.tells = false;
    be->protocol->send_check(be, true);
}

static void first_answered(struct pg_backend *be, const struct pg_reply *r)
{
    connection(be);
    version(be);
    if (r->sqlstate[0] || !r->rows || PQntuples(r->rows) == 0 || PQnfields(r->rows) != C_COLUMNS) {
        refusal(be, "right", r);
        finish(be);
        return;
    }
    pooler(be, r->rows);
    clock_of(be, r->rows);
    for (int i = 0; i < PQntuples(r->rows); i++) {
        int64_t level = pg_number(r->rows, i, C_LEVEL);
        add(be,
            level == 0   ? DLOCK_FINDING_OK
            : level == 1 ? DLOCK_FINDING_WARNING
                         : DLOCK_FINDING_FAILURE,
            level > 1 ? DLOCK_EPERM : 0, "%s", pg_text(r->rows, i, C_TEXT));
    }
    be->check.second = true;
    if (!be->protocol->send_check(be, false))
        finish(be);
}

void pg_check_answered(struct pg_backend *be, const struct pg_reply *r)
{
    if (!be->check.second) {
        first_answered(be, r);
        return;
    }
    if (!r->sqlstate[0])
        add(be, DLOCK_FINDING_OK, 0, "table: as --schema prints it");
    else if (strcmp(r->sqlstate, "42P01") != 0) /* missing: told already */
        refusal(be, "table", r);
    finish(be);
}

int pg_check_next(struct pg_backend *be, struct dlock_event *ev)
{
    if (be->check.next < be->check.n) {
        const struct pg_finding *f = &be->check.list[be->check.next++];
        *ev = (struct dlock_event){.type = EV_FINDING, .finding = f->level, .error = f->error};
        return 1;
    }
    be->check.tells = false;
    pg_op_done(be);
    *ev = (struct dlock_event){.type = EV_DONE};
    return 1;
}
