/*
 * check.c - --check: what a run would meet on this server. The questions are SELECTs of catalogues
 * and settings (sql/check.sql); nothing is locked or written. The lease table is then looked at by
 * the statement that also precedes each run (table_found).
 */
#include "postgres.h"

#include <dlfcn.h>
#include <string.h>
#include <time.h>

#define OLDEST 120000
#define WITH_IDLE_TIMEOUT 140000

/* Does libpq compare the server's certificate with an authority? */
static bool verifies(PGconn *pq)
{
    PQconninfoOption *all = PQconninfo(pq);
    const PQconninfoOption *o = pg_option(all, "sslmode");
    bool yes = o && o->val && strncmp(o->val, "verify-", 7) == 0;
    PQconninfoFree(all);
    return yes;
}

/*
 * When the server's certificate ends, Unix s; 0: unknown. libpq tells only OpenSSL's structure of
 * the connection. The functions for that structure must be those of the very OpenSSL that libpq
 * uses, which need not be the one of dlock's TLS: dlsym(3) on libpq's handle looks into the
 * libraries that libpq needs.
 */
static int64_t certificate_ends(PGconn *pq)
{
    void *ssl = PQsslStruct(pq, "OpenSSL"), *cert;
    Dl_info libpq;
    struct tm end = {0};
    int64_t at = 0;
    if (!ssl || !dladdr((void *)PQsslStruct, &libpq))
        return 0;
    void *so = dlopen(libpq.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!so)
        return 0;
    void *(*peer)(const void *) = dlsym(so, "SSL_get1_peer_certificate");
    const void *(*not_after)(const void *) = dlsym(so, "X509_get0_notAfter");
    int (*to_tm)(const void *, struct tm *) = dlsym(so, "ASN1_TIME_to_tm");
    void (*let_go)(void *) = dlsym(so, "X509_free");
    if (peer && not_after && to_tm && let_go && (cert = peer(ssl)) != NULL) {
        if (to_tm(not_after(cert), &end) == 1)
            at = timegm(&end);
        let_go(cert);
    }
    dlclose(so);
    return at;
}

/* near: the server is on this machine. */
static void certificate(struct pg_backend *be, bool near)
{
    int64_t ends = certificate_ends(be->conn.pq);
    if (!near && !verifies(be->conn.pq))
        finding_warn(&be->found, "certificate: not verified; use sslmode=verify-full");
    else if (ends > 0)
        findings_add_certificate(&be->found, ends);
}

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
    if (tls)
        certificate(be, near);
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
    if (pg_number(rows, 0, "pid") == PQbackendPID(be->conn.pq))
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
    int64_t off = pg_ms(rows, 0, "clock_ms") - dlock_wall() / DLOCK_MSEC;
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
    finding_fail(&be->found, code, "%s: %.200s", subject,
                 r->text[0] ? r->text : "unexpected answer");
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
    if (r->sqlstate[0] || !r->rows || PQntuples(r->rows) == 0 ||
        !pg_has(r->rows, "pid clock_ms level text")) {
        refusal(be, "right", r);
        finish(be);
        return;
    }
    pooler(be, r->rows);
    clock_of(be, r->rows);
    for (int i = 0; i < PQntuples(r->rows); i++) {
        int64_t level = pg_number(r->rows, i, "level");
        findings_add(&be->found,
                     level == 0   ? DLOCK_FINDING_OK
                     : level == 1 ? DLOCK_FINDING_WARNING
                                  : DLOCK_FINDING_FAILURE,
                     level > 2   ? DLOCK_EUNUSABLE
                     : level > 1 ? DLOCK_EPERM
                                 : 0,
                     "%s", pg_text(r->rows, i, "text"));
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
