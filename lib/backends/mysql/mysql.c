/*
 * mysql.c - a lock in MySQL or MariaDB: the lease table of the engine of the SQL stores (../table).
 *
 * lease.c  the statements, and who waits
 * uri.c    the URI; foreign.c: parameters for other programs
 * conn.c   one connection, in a thread; login.c: log in
 *
 * InnoDB decides a grant by one UPDATE of one row; readers and slots change their own row and the
 * lock's row together, if the version of the lock's row is still the one that was read. A message
 * is no transaction: each statement commits, and any cut between two is safe. At worst a lock stays
 * held until its expiry.
 *
 * Not guaranteed: only the primary knows the lock, and replication is asynchronous, unless it is
 * Galera or semi-synchronous. The server's clock decides: a step forward ends leases early.
 */
#include "mysql.h"

#include "util.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DLOCK_BUILD_ID
#define DLOCK_BUILD_ID DLOCK_VERSION
#endif

static void open_conn(struct sql_store *be, int64_t until)
{
    my_conn_open(&my(be)->conn, be->spec, &my(be)->settings, until, be->granted);
}

static void check(struct sql_store *be, const struct sql_rows *rows)
{
    const struct my_settings *set = &my(be)->settings;
    const struct dlock_uri *uri = be->spec->uri;
    bool tls = set->tls >= MY_TLS_REQUIRED, proxy = false;
    findings_add(&be->found, set->socket || tls ? DLOCK_FINDING_OK : DLOCK_FINDING_WARNING, 0,
                 "connection: %s, user %s, database %s%s", set->socket ? set->socket : uri->where,
                 set->user ? set->user : "of this process", set->database,
                 set->socket || tls ? "" : "; use ssl-mode=verify_identity");
    finding_ok(&be->found, "version: %s", my(be)->conn.version);
    if (rows)
        proxy = sql_number(rows, 0, "pid") != be->conn->session;
    if (rows && proxy)
        finding_warn(&be->found,
                     "proxy: waiters poll; connect to the server itself for a line with calls");
    else if (rows)
        finding_ok(&be->found, "proxy: none");
}

static const struct sql_driver driver = {
    .server = "MySQL or MariaDB",
    .client = "mariadb",
    .hex = true,
    .one_by_one = true,
    .open = open_conn,
    .fd = my_conn_fd,
    .interest = my_conn_interest,
    .work = my_conn_work,
    .send = my_conn_send,
    .next = my_conn_next,
    .error = my_conn_error,
    .close = my_conn_close,
    .close_in_child = my_conn_close_in_child,
    .check = check,
};

static void slot_close(struct dlock_be *slot)
{
    struct my_backend *be = (struct my_backend *)slot;
    if (!be)
        return;
    sql_store_done(&be->store);
    my_settings_done(be);
    free(be);
}

static void slot_close_in_child(struct dlock_be *slot)
{
    my_conn_close_in_child(&((struct my_backend *)slot)->conn.base);
    slot_close(slot);
}

static int slot_open(struct dlock_be **out, const struct dlock_spec *spec, struct dlock_error *err)
{
    struct my_backend *be = calloc(1, sizeof(*be));
    if (!be)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    sql_store_init(&be->store, spec, &driver, &be->conn.base);
    be->store.protocol = &table_lease;
    be->store.sql = &my_lease;
    int rc = my_settings_init(be, err);
    if (rc < 0) {
        slot_close((struct dlock_be *)be);
        return rc;
    }
    *out = (struct dlock_be *)be;
    return 0;
}

static const char *const schemes[] = {"mysql", "mariadb", NULL};

const struct dlock_backend DLOCK_BACKEND_SYMBOL(mysql) = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_BUILD_ID,
    .name = "mysql",
    .package = "dlock-mysql",
    .schemes = schemes,
    .caps = CAP_SHARED | CAP_SLOTS | CAP_FENCE | CAP_LEASE | CAP_ONCE,
    .open = slot_open,
    SQL_SLOTS,
    .close = slot_close,
    .close_in_child = slot_close_in_child,
};
