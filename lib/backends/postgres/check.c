/* check.c - --check: the connection, the server's version, and a pooler. */
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
static void certificate(struct sql_store *be, bool near)
{
    int64_t ends = certificate_ends(pg(be)->conn.pq);
    if (!near && !verifies(pg(be)->conn.pq))
        finding_warn(&be->found, "certificate: not verified; use sslmode=verify-full");
    else if (ends > 0)
        findings_add_certificate(&be->found, ends);
}

static void connection(struct sql_store *be)
{
    PGconn *pq = pg(be)->conn.pq;
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

static void version(struct sql_store *be)
{
    int n = PQserverVersion(pg(be)->conn.pq);
    const char *text = PQparameterStatus(pg(be)->conn.pq, "server_version");
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

static void pooler(struct sql_store *be, const struct sql_rows *rows)
{
    if (sql_number(rows, 0, "pid") == be->conn->session)
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

void pg_check(struct sql_store *be, const struct sql_rows *rows)
{
    connection(be);
    version(be);
    if (rows)
        pooler(be, rows);
}
