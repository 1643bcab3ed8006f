/*
 * check.c - --check: what a run would meet on this server. The questions are SELECTs of catalogues
 * and settings (sql/check.sql); nothing is locked or written. The lease table is then looked at by
 * the statement that also precedes each run (table_found).
 *
 * libpq does not tell the certificate of the server.
 */
#include "postgres.h"

#include <string.h>

enum { C_PID, C_CLOCK, C_LEVEL, C_TEXT, C_COLUMNS };

#define OLDEST 120000
#define WITH_IDLE_TIMEOUT 140000

static void connection(struct pg_backend *be)
{
    PGconn *pq = be->conn.pq;
    const char *at = PQhost(pq), *tls = PQsslAttribute(pq, "protocol");
    const char *address = PQhostaddr(pq);
    bool near =
        *at == '/' || *at == '@' || strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
    bool same = strcmp(at, address) == 0 || !*address;
    findings_add(&be->found, near || tls ? DLOCK_FINDING_OK : DLOCK_FINDING_WARNING, 0,
                 "connection: %s%s%s%s port %s, user %s, database %s, %s%s", at, same ? "" : " (",
                 same ? "" : address, same ? "" : ")", PQport(pq), PQuser(pq), PQdb(pq),
                 tls ? tls : "no TLS", near || tls ? "" : "; use sslmode=verify-full");
}

static void version(struct pg_backend *be)
{
    int n = PQserverVersion(be->conn.pq);
    const char *text = PQparameterStatus(be->conn.pq, "server_version");
    if (n < OLDEST)
        finding_fail(&be->found, DLOCK_EUNUSABLE,
                     "version: PostgreSQL %s is too old; 12 or later is needed", text ? text : "?");
    else if (n < WITH_IDLE_TIMEOUT && be->protocol->session)
        finding_warn(
            &be->found,
            "version: PostgreSQL %s does not end a silent session, so the lock of a stopped "
            "machine stays held until TCP gives up; use 14 or later",
            text ? text : "?");
    else
        finding_ok(&be->found, "version: PostgreSQL %s", text ? text : "?");
}

static void pooler(struct pg_backend *be, const PGresult *rows)
{
    if (pg_number(rows, 0, C_PID) == PQbackendPID(be->conn.pq))
        finding_ok(&be->found, "pooler: none");
    else if (be->protocol->session)
        finding_fail(
            &be->found, DLOCK_EUSAGE,
            "pooler: it would keep an advisory lock for other clients; connect to the server "
            "itself, or write " URI_PARAM("?mode=lease"));
    else
        finding_warn(
            &be->found,
            "pooler: waiters poll once a second, in no order; connect to the server itself");
}

static void clock_of(struct pg_backend *be, const PGresult *rows)
{
    int64_t off = pg_ms(rows, 0, C_CLOCK) - dlock_wall() / DLOCK_MSEC;
    int64_t by = off < 0 ? -off : off;
    char text[32];
    if (by > FINDING_CLOCKS_APART / DLOCK_MSEC)
        finding_warn(
            &be->found,
            "clock: the server is %s %s this machine, so times are shown wrong; set the clocks",
            dlock_format_duration(by * DLOCK_MSEC, text, sizeof(text)),
            off > 0 ? "ahead of" : "behind");
    else
        finding_ok(&be->found, "clock: as this machine's");
}

static void refusal(struct pg_backend *be, const char *subject, const struct pg_reply *r)
{
    struct dlock_error err;
    int code = pg_conn_reply_error(&be->conn, r, &err);
    finding_fail(&be->found, code, "%s: %.200s", subject, r->text);
}

static void finish(struct pg_backend *be)
{
    pg_conn_close(&be->conn);
    pg_op_done(be);
    be->found.ended = true;
}

void pg_check_begin(struct pg_backend *be)
{
    findings_drop(&be->found);
    be->check_second = false;
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
        findings_add(&be->found,
                     level == 0   ? DLOCK_FINDING_OK
                     : level == 1 ? DLOCK_FINDING_WARNING
                                  : DLOCK_FINDING_FAILURE,
                     level > 1 ? DLOCK_EPERM : 0, "%s", pg_text(r->rows, i, C_TEXT));
    }
    be->check_second = true;
    if (!be->protocol->send_check(be, false))
        finish(be);
}

void pg_check_answered(struct pg_backend *be, const struct pg_reply *r)
{
    if (!be->check_second) {
        first_answered(be, r);
        return;
    }
    if (!r->sqlstate[0])
        finding_ok(&be->found, "table: as --schema prints it");
    else if (strcmp(r->sqlstate, "42P01") != 0) /* missing: told already */
        refusal(be, "table", r);
    finish(be);
}
