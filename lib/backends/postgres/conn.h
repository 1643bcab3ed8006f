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
#include "backend.h"

#include <libpq-fe.h>
#include <net/if.h>
#include <netinet/in.h>
#include <string.h>

#define PG_PARAMS 64
#define PG_ADDRESSES 16
#define PG_REQUESTS 6
#define PG_STATEMENTS 8
#define PG_VALUES 12
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

/* A message of several statements with text parameters; owns its texts. */
struct pg_message {
    int tag, n;
    struct pg_statement {
        char *sql; /* NULL: there was no memory for the statement */
        int n;
        char *values[PG_VALUES];
    } list[PG_STATEMENTS];
};

/* The answer to one request. */
struct pg_reply {
    int tag;
    int64_t sent; /* the clock before the first byte of the request could leave */
    /*
     * The last result with rows; else the last without, or NULL. A result with a column set_config
     * first is no answer.
     */
    PGresult *rows;
    char sqlstate[6]; /* "": no error */
    bool unclear;   /* the error is libpq's, out of memory say: the request may have been served */
    char text[256]; /* of the error */
    char warning[256]; /* see pg_unconfirmed(); "": none */
};

/* In seconds: each end gives up a silent peer between ttl and ttl + 2 s. */
struct pg_keepalives {
    int64_t idle, interval, count;
};
struct pg_keepalives pg_keepalives(int64_t ttl);

/* Read the password's file, if any, into settings. 0 or a negative code. */
int pg_read_password(struct pg_settings *, struct dlock_error *);

enum pg_conn_state { PC_CLOSED, PC_CONNECTING, PC_UP, PC_FAILED };

struct pg_conn {
    /* Several requests at a time, with parameters; else a single request of several statements. */
    bool pipeline; /* set before the first open */
    bool guarded;  /* set when connected; the owner clears it when the tables are checked */
    /* The lock is held: a refused secret, or a file that cannot be read, is an outage. */
    bool held;

    const struct dlock_env *env;
    struct pg_settings *settings;
    const char *where;
    PGconn *pq;
    enum pg_conn_state state;

    struct {
        struct pg_address {
            int host;
            char text[INET6_ADDRSTRLEN + IF_NAMESIZE + 1]; /* "": a Unix socket */
        } list[PG_ADDRESSES];
        int n, tried;
        bool read_only;             /* a server refused to write; see only_primary() */
        int good;                   /* the address that worked last time comes first */
        int64_t until;              /* for all addresses */
        int64_t next_at;            /* for the current address */
        struct pg_attempt *attempt; /* PC_CONNECTING; NULL: not begun */
    } address;

    /* Sent and not answered, oldest first. */
    struct {
        struct {
            int tag;
            int64_t sent;
        } list[PG_REQUESTS];
        int n;
        bool unflushed;        /* libpq has bytes that the socket did not take yet */
        struct pg_reply reply; /* to the oldest, as far as it has arrived */
    } requests;

    /*
     * A single request at a time, since a pooler may be in between. PgBouncer before 1.21 takes a
     * session for free at the first answer, and may send our next answer to the session's next
     * client.
     */
    bool one_by_one;
    struct {
        struct pg_message list[PG_REQUESTS];
        int n;
    } queue;

    /* The least number of any NOTIFY since the owner set -1; text that is no number counts as 0. */
    int64_t notified;
    char notice[PG_NOTICE]; /* what stood behind this number; "": nothing, or too much */

    /* PC_FAILED */
    struct dlock_error error;
    bool transient;      /* the server is starting, or has no free connection: try again */
    int unanswered;      /* the tag of the oldest request without an answer; 0: none */
    char why_ended[256]; /* why the server ends the session */
};

/*
 * Start to connect: each address of settings->hosts in turn. Errors show as PC_FAILED. spec and
 * settings stay the caller's, and valid until close. held: see struct pg_conn.
 */
void pg_conn_open(struct pg_conn *, const struct dlock_spec *, struct pg_settings *, int64_t until,
                  bool held);
static inline bool pg_conn_is_open(const struct pg_conn *c)
{
    return c->state == PC_CONNECTING || c->state == PC_UP;
}
static inline bool pg_conn_busy(const struct pg_conn *c)
{
    return c->requests.n > 0;
}
/*
 * Without pipeline: send statements without parameters. Ignored unless PC_UP; only while the
 * connection is not busy. tag (not 0) marks the answer. False: there is no memory (sql may be
 * NULL), nothing was sent, and the connection stays as before.
 */
bool pg_conn_send(struct pg_conn *, int tag, const char *sql);
/* End the session for lack of memory. */
void pg_conn_fail_no_memory(struct pg_conn *);
/*
 * pipeline: one transaction; the message may have to queue, and is left empty. Each statement sees
 * what was committed before its own begin, so also what was committed while the statement before
 * waited for a lock; where the role's default is a stricter isolation level, the waiting statement
 * fails. One answer: the error that undid all statements, or the last result with rows.
 */
void pg_conn_send_all(struct pg_conn *, struct pg_message *);
/*
 * Ask the server to cancel the running request, in a detached thread since libpq's call blocks. The
 * request is answered as always.
 */
void pg_conn_cancel(const struct pg_conn *);
/* The descriptor to poll, of an open connection. Changes from address to address. */
int pg_conn_fd(const struct pg_conn *);
/* What to wait for: fills in *pfd, only lowers *wake_at; returns the number of entries, 0 or 1. */
int pg_conn_interest(const struct pg_conn *, struct pollfd *, int64_t *wake_at);
/* Handle what poll() found, and the time. */
void pg_conn_work(struct pg_conn *);
/* 1: an answer, for pg_conn_done() to free; 0: none; negative: the connection has failed. */
int pg_conn_next(struct pg_conn *, struct pg_reply *);
void pg_conn_done(struct pg_reply *);
/* In any state. Sends a goodbye: the server frees the session at once. */
void pg_conn_close(struct pg_conn *);
/* The same in a child of the process that opened the connection: nothing is sent. */
void pg_conn_close_in_child(struct pg_conn *);

/* Fill err from an answer that is an error, pg_unconfirmed() or not ours; returns its code. */
int pg_conn_reply_error(const struct pg_conn *, const struct pg_reply *, struct dlock_error *err);
/*
 * The answer to a request that has written: did the server warn before the end? Then what was
 * written is visible, and may be missing on the synchronous standby, for example because a person
 * has cancelled the wait. An error has undone the request: false.
 */
static inline bool pg_unconfirmed(const struct pg_reply *r)
{
    return !r->sqlstate[0] && r->warning[0];
}
/* libpq reports this by text alone (never translated: dlock does not call setlocale(3)). */
static inline bool pg_conn_says_no_memory(const char *text)
{
    return strstr(text, "out of memory") != NULL ||
           strstr(text, "Memory allocation failure") != NULL;
}

/*
 * An answer is recognised by the names of its columns, "fence pid token": a server, a pooler or a
 * proxy may send any. An answer that lacks one is not read at all, but is an error.
 */
bool pg_has(const PGresult *, const char *columns);
/* No error, and exactly one row, with these columns? */
bool pg_one_row(const struct pg_reply *, const char *columns);
/* A field of a row. NULL: it is NULL; or there is no such column, which pg_has() excludes. */
const char *pg_field(const PGresult *, int row, const char *column);
static inline bool pg_null(const PGresult *res, int row, const char *column)
{
    return !pg_field(res, row, column);
}
/* The same as text, "" when NULL; a boolean, false when NULL; a number, 0 when NULL. */
static inline const char *pg_text(const PGresult *res, int row, const char *column)
{
    const char *text = pg_field(res, row, column);
    return text ? text : "";
}
static inline bool pg_true(const PGresult *res, int row, const char *column)
{
    return pg_text(res, row, column)[0] == 't';
}
int64_t pg_number(const PGresult *, int row, const char *column);
/* 0 to INT_MAX, whatever the server says. */
int pg_count(const PGresult *, int row, const char *column);
/* Milliseconds of any row: bounded, so that sums with the time fit 64 bits in nanoseconds. */
int64_t pg_ms(const PGresult *, int row, const char *column);

#endif
