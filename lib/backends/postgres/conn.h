/*
 * conn.h - one connection to PostgreSQL, through libpq, that never blocks.
 *
 * libpq would look up names itself and wait for each server as long as the network does. So it is given
 * one numeric address at a time, and the time for each is ours. Everything else (TLS, authentication,
 * service files, passwords) is libpq's business.
 */
#ifndef DLOCK_PGCONN_H
#define DLOCK_PGCONN_H

#include "backend.h"

#include <libpq-fe.h>
#include <net/if.h>
#include <netinet/in.h>

#define PG_PARAMS 64
#define PG_TRIES 16
#define PG_REQUESTS 4
#define PG_VALUES 4

/* What every connection is made with. The first three are filled in for each try. */
enum { PG_HOST, PG_HOSTADDR, PG_PORT, PG_FIRST_PARAM };
struct pg_settings {
    const char *keys[PG_PARAMS + 2], *values[PG_PARAMS + 2];
    int n;
    char **ports,
        **hosts; /* as libpq knows them, one for each of the URI's hosts; hosts[i] "": the default socket */
    int nhosts;
};

enum pg_conn_state { PC_CLOSED, PC_CONNECTING, PC_UP, PC_FAILED };

struct pg_request {
    int tag;
    int64_t sent; /* the clock before its first byte could leave */
};

/* A request with its parameters that waits for the answer to the one before it. */
struct pg_later {
    int tag, n;
    char *sql, *values[PG_VALUES];
};

struct pg_try {
    int host;
    char addr[INET6_ADDRSTRLEN + IF_NAMESIZE + 1]; /* "": a Unix socket */
};

/*
 * The answer to one request. rows: the last result that had any, or NULL. sqlstate "": no error. unheard: libpq's own
 * complaint, of memory say; the server may have done what it was asked for.
 */
struct pg_reply {
    int tag;
    int64_t sent;
    PGresult *rows;
    char sqlstate[6];
    bool unheard;
    char text[256];
};

struct pg_conn {
    const struct dlock_env *env;
    struct pg_settings *set;
    const char *where;
    bool
        pipeline; /* several requests at a time, with parameters; else one, of several statements */

    PGconn *pq;
    enum pg_conn_state state;
    PostgresPollingStatusType want;
    bool unsent;
    struct pg_try tries[PG_TRIES];
    int ntries, tried, good;
    int64_t until, next_at;

    struct pg_request requests[PG_REQUESTS]; /* oldest first */
    int nrequests;
    /*
     * A pooler stands between us and the server, or may: one request at a time. PgBouncer before 1.21 takes a session for
     * free at the first answer, and gives the next one to whoever has got that session by then.
     */
    bool alone;
    struct pg_later later[PG_REQUESTS];
    int nlater;
    struct pg_reply reply; /* being collected for the oldest */
    bool notified;         /* a NOTIFY has come; the owner clears it */
    struct dlock_error error;
    bool transient;       /* the failure passes by itself: the server is starting, or is full */
    char last_words[256]; /* of the server: why it ends the session */
};

/* Begin to connect; until bounds it. What goes wrong shows as PC_FAILED with error set. */
void pg_conn_open(struct pg_conn *, const struct dlock_spec *, struct pg_settings *, int64_t until);
static inline bool pg_conn_is_open(const struct pg_conn *c)
{
    return c->state == PC_CONNECTING || c->state == PC_UP;
}
static inline bool pg_conn_busy(const struct pg_conn *c)
{
    return c->nrequests > 0;
}
/* PC_UP: send sql. Without pipeline: several statements in one message, and only while not busy. */
void pg_conn_send(struct pg_conn *, int tag, const char *sql);
/* pipeline: one statement with text parameters, at most PG_VALUES. It waits its turn when the connection is for one alone. */
void pg_conn_send_params(struct pg_conn *, int tag, const char *sql, int n,
                         const char *const *values);
/* As if the connection had failed, so that whoever waits for an answer learns it. */
void pg_conn_no_memory(struct pg_conn *);
/* libpq tells this by its text alone (which nobody translates: dlock does not call setlocale(3)). */
bool pg_conn_says_no_memory(const char *text);
/* Ask the server to cancel what runs, from a thread that nobody waits for; its answer to the request comes as ever. */
void pg_conn_cancel(const struct pg_conn *);
/* Handle what poll() found, and the time. */
void pg_conn_work(struct pg_conn *);
/* 1: an answer, to be given to pg_conn_done; 0: none; negative: the connection has failed. */
int pg_conn_next(struct pg_conn *, struct pg_reply *);
void pg_conn_done(struct pg_reply *);
int pg_conn_interest(const struct pg_conn *, struct pollfd *, int64_t *wake_at);
/* Any state. Says goodbye, so that the server frees the session at once. */
void pg_conn_close(struct pg_conn *);
/* The code and text of an answer that is an error. */
int pg_conn_reply_error(const struct pg_conn *, const struct pg_reply *, struct dlock_error *);

#endif
