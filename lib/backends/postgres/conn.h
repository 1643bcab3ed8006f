/*
 * conn.h - one connection to PostgreSQL, through libpq, that never blocks.
 *
 * libpq would look up names, and wait for each server as long as the network does. So libpq gets
 * a single numeric address at a time, and we limit the time for each address. TLS, authentication,
 * service files and passwords are left to libpq; where libpq may block, a thread connects
 * (attempt.h).
 */
#ifndef DLOCK_PG_CONN_H
#define DLOCK_PG_CONN_H

#include "attempt.h"
#include "backends/table/store.h"

#include <libpq-fe.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>

#define PG_PARAMS 64
#define PG_ADDRESSES 16
#define PG_REQUESTS 6
#define PG_NOTICE 512

/* TCP_USER_TIMEOUT (ms) while libpq tries the hosts of a service. TCP takes a second at least. */
#define PG_SERVICE_PATIENCE "1500"

/*
 * target_session_attrs. A standby grants advisory locks that exclude no client of the primary; and
 * a primary is set read-only before another server takes its place.
 */
#define PG_WRITABLE "read-write"
#define PG_PRIMARY "primary"
#define PG_NO_WRITES                                                                               \
    "the database takes no writes: name its new server, or set default_transaction_read_only = off"

/* For PQconnectStartParams(). The first three differ from address to address. */
enum { PG_HOST, PG_HOSTADDR, PG_PORT, PG_FIRST_PARAM, PG_TARGET = PG_FIRST_PARAM };
struct pg_settings {
    const char *keys[PG_PARAMS + 2], *values[PG_PARAMS + 2];
    int n;
    /* For each host of the URI. hosts[i] "": the service's hosts, or the default Unix socket. */
    char **hosts, **ports;
    int nhosts;
    bool service;  /* a service is named */
    bool by_libpq; /* ... and it may name the hosts */
    bool thread;   /* libpq may block before the server has answered */
    /* ?password-file=, read for each connection; NULL: none. password: what it had, owned. */
    const char *password_file;
    char *password;
};

/* In seconds: each end gives up a silent peer between ttl and ttl + 2 s. */
struct pg_keepalives {
    int64_t idle, interval, count;
};
struct pg_keepalives pg_keepalives(int64_t ttl);

/* Read the password's file, if any, into settings. 0 or a negative code. */
int pg_read_password(struct pg_settings *, struct dlock_error *);

struct pg_conn {
    struct sql_conn base;
    /* Several requests at a time, with parameters; else a single request of several statements. */
    bool pipeline; /* set before the first open */
    /* The lock is held: a refused secret, or a file that cannot be read, is an outage. */
    bool held;

    const struct dlock_env *env;
    struct pg_settings *settings;
    const char *where;
    PGconn *pq;

    struct {
        struct pg_address {
            int host;
            char text[INET6_ADDRSTRLEN + IF_NAMESIZE + 1]; /* "": a Unix socket */
        } list[PG_ADDRESSES];
        int n, tried;
        bool read_only;             /* a server refused to write; see only_primary() */
        int good;                   /* the address that worked last time comes first */
        int64_t until;              /* for all addresses */
        struct pg_attempt *attempt; /* CONN_CONNECTING; NULL: not begun */
    } address;

    /* Sent and not answered, oldest first. */
    struct {
        struct {
            int tag;
            int64_t sent;
        } list[PG_REQUESTS];    /* base.unanswered of them */
        bool unflushed;         /* libpq has bytes that the socket did not take yet */
        struct sql_reply reply; /* to the oldest, as far as it has arrived, but for its rows */
        PGresult *rows;         /* a result with a column set_config first is no answer */
    } requests;

    /* base.one_by_one: what is to follow. */
    struct {
        struct sql_message list[PG_REQUESTS];
        int n;
    } queue;

    /* The least number of any NOTIFY since the owner set -1; text that is no number counts as 0. */
    int64_t notified;
    char notice[PG_NOTICE]; /* what stood behind this number; "": nothing, or too much */

    int unanswered_tag;  /* CONN_FAILED: of the oldest request without an answer; 0: none */
    char why_ended[256]; /* why the server ends the session */
};

/*
 * Start to connect: each address of settings->hosts in turn. Errors show as CONN_FAILED. spec and
 * settings stay the caller's, and valid until close. held: see struct pg_conn.
 */
void pg_conn_open(struct pg_conn *, const struct dlock_spec *, struct pg_settings *, int64_t until,
                  bool held);
/*
 * Without pipeline: send statements without parameters. Ignored unless CONN_UP; only while the
 * connection is not busy. tag (not 0) marks the answer. False: there is no memory (sql may be
 * NULL), nothing was sent, and the connection stays as before.
 */
bool pg_conn_send(struct pg_conn *, int tag, const char *sql);
/* End the session for lack of memory. */
void pg_conn_fail_no_memory(struct pg_conn *);
/*
 * Ask the server to cancel the running request, in a detached thread since libpq's call blocks. The
 * request is answered as always.
 */
void pg_conn_cancel(const struct pg_conn *);

/*
 * Of struct sql_driver. A message (with pipeline): each statement sees what was committed before
 * its own begin, so also what was committed while the statement before waited for a lock; where the
 * role's default is a stricter isolation level, the waiting statement fails. An error undoes all
 * statements.
 */
void pg_conn_send_all(struct sql_conn *, struct sql_message *);
int pg_conn_fd(const struct sql_conn *);
int pg_conn_interest(const struct sql_conn *, struct pollfd *, int64_t *wake_at);
void pg_conn_work(struct sql_conn *);
int pg_conn_next(struct sql_conn *, struct sql_reply *);
int pg_conn_reply_error(const struct sql_conn *, const struct sql_reply *, struct dlock_error *err);
void pg_conn_close(struct sql_conn *);
void pg_conn_close_in_child(struct sql_conn *);

/* The result as rows, which own it; of no result, or without memory for the rows, NULL. */
struct sql_rows *pg_rows(PGresult *);
/* Make the answer an error with this SQLSTATE. */
void pg_conn_set_state(struct sql_reply *, const char *state);
/* libpq reports this by text alone (never translated: dlock does not call setlocale(3)). */
static inline bool pg_conn_says_no_memory(const char *text)
{
    return strstr(text, "out of memory") != NULL ||
           strstr(text, "Memory allocation failure") != NULL;
}

#endif
