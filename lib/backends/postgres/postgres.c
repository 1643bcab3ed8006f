/*
 * postgres.c - a lock in PostgreSQL, by the engine of the SQL stores (../table).
 *
 * advisory.c  the default: a session's advisory lock, with the session's idle time-out as the
 *             lease; advisory_break.c: break a hold
 * lease.c     ?mode=lease: the engine's lease table; line.c: who waits; trust.c: is the table ours?
 * uri.c       the URI, and libpq's settings
 * check.c     what a run would meet
 * conn.c      one connection
 * attempt.c   libpq connects, in a thread where libpq may block
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

/* --------------------------------------------------------------------- driver */

static void open_conn(struct sql_store *be, int64_t until)
{
    pg_conn_open(&pg(be)->conn, be->spec, &pg(be)->settings, until, be->granted);
}

/* CockroachDB has PostgreSQL's protocol and lock functions, but the functions do nothing. */
static const char *refused(const struct sql_store *be)
{
    return PQparameterStatus(pg(be)->conn.pq, "crdb_version")
               ? "this is CockroachDB, whose advisory locks exclude no client: use PostgreSQL"
               : NULL;
}

static const struct sql_driver driver = {
    .server = "PostgreSQL",
    .client = "psql",
    .open = open_conn,
    .refused = refused,
    .fd = pg_conn_fd,
    .interest = pg_conn_interest,
    .work = pg_conn_work,
    .send = pg_conn_send_all,
    .next = pg_conn_next,
    .error = pg_conn_reply_error,
    .close = pg_conn_close,
    .close_in_child = pg_conn_close_in_child,
    .check = pg_check,
};

/* ---------------------------------------------------------------------- slots */

static void slot_close(struct dlock_be *slot)
{
    struct pg_backend *be = (struct pg_backend *)slot;
    if (!be)
        return;
    sql_store_done(&be->store);
    pg_settings_done(be);
    free(be);
}

static void slot_close_in_child(struct dlock_be *slot)
{
    pg_conn_close_in_child(&((struct pg_backend *)slot)->conn.base);
    slot_close(slot);
}

static int slot_open(struct dlock_be **out, const struct dlock_spec *spec, struct dlock_error *err)
{
    struct pg_backend *be = calloc(1, sizeof(*be));
    if (!be)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    sql_store_init(&be->store, spec, &driver, &be->conn.base);
    int rc = pg_settings_init(be, err);
    if (rc < 0) {
        slot_close((struct dlock_be *)be);
        return rc;
    }
    be->conn.pipeline = !be->store.protocol->session;
    *out = (struct dlock_be *)be;
    return 0;
}

/* In lease mode a connection is only a way to the row. */
static int slot_session_fd(struct dlock_be *slot)
{
    struct sql_store *be = (struct sql_store *)slot;
    bool holds = be->protocol->session && be->granted && be->conn->state == CONN_UP;
    return holds ? PQsocket(pg(be)->conn.pq) : -1;
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
    SQL_SLOTS,
    .session_fd = slot_session_fd,
    .close = slot_close,
    .close_in_child = slot_close_in_child,
};
