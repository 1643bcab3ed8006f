/* postgres.h - what the files of the PostgreSQL backend share. */
#ifndef DLOCK_PG_H
#define DLOCK_PG_H

#include "backends/networked.h"
#include "conn.h"

enum pg_doing { PG_NOTHING, PG_ACQUIRE, PG_RENEW, PG_RELEASE, PG_ASK };
enum pg_tag {
    T_TRY = 1,
    T_WHO,
    T_WAIT,
    T_CONFIRM,
    T_BEAT,
    T_RELEASE,
    T_UNDO,
    T_ASK,
    T_LISTEN,
    T_SCHEMA,
    T_SWEEP
};

struct dlock_be;

/* The two modes. All of it is called with the connection in any state but for ready (PC_UP, idle). */
struct pg_protocol {
    bool pipeline; /* for pg_conn */
    void (*abandon)(
        struct dlock_be
            *); /* the connection is about to be given up with a try unanswered; or NULL */
    void (*acquire)(struct dlock_be *);                           /* be->wait says how */
    void (*ready)(struct dlock_be *);                             /* the connection has come up */
    void (*answered)(struct dlock_be *, const struct pg_reply *); /* a request is answered */
    void (*failed)(struct dlock_be *,
                   const struct dlock_error *); /* the connection is gone (closed already) */
    void (*renew)(struct dlock_be *);
    void (*release)(struct dlock_be *);              /* be->rel_until says by when */
    void (*timeout)(struct dlock_be *, int64_t now); /* whatever is due */
    void (*read_info)(struct dlock_be *, const PGresult *, int row, struct dlock_info *);
    char *(*schema)(
        const struct dlock_be *); /* the statement that makes the table, malloc'ed; or NULL */
};
extern const struct pg_protocol pg_advisory, pg_table;

struct dlock_be {
    const struct dlock_spec *spec;
    const struct pg_protocol *protocol;
    struct pg_settings set;
    char *secret;        /* password from a file; zeroed when freed */
    char app[32];        /* application_name */
    char key[64];        /* advisory: as arguments of the lock functions */
    char key_id[32];     /* ... in a comment */
    char where_key[160]; /* ... as a condition on pg_locks */
    char channel[64];
    char *table; /* lease mode: schema.name, quoted */
    char waiter_app[40];
    int64_t restart_grace;
    bool fair, renew_writes;
    char keepalive[2][24]; /* fair: as libpq's parameters */
    char record[1024];     /* who we are */

    struct pg_conn conn;
    enum pg_doing doing;
    int64_t op_until; /* of what is outstanding; DLOCK_NEVER: unbounded */
    int64_t rel_until, try_at;
    bool wait, first; /* first: no answer to a try yet in this acquire */
    bool granted;
    char token[DLOCK_TOKEN_LEN + 1];
    uint64_t fence;
    struct outage outage;
    struct dlock_error refused; /* first contact: what the server said instead of an answer; or 0 */

    /* advisory */
    bool polls; /* no DO blocks for this role: try instead of waiting in line */
    bool told_old, told_grace;
    unsigned chunks;
    int64_t
        beat_sent; /* a heartbeat was answered after it had been called unclear: 0, or when it was sent */
    bool beat_called; /* the core waits for the answer */

    /* lease mode */
    bool tried; /* a try with this token was sent, and not answered by "no" */
    bool ghost; /* ... on a connection that broke: to be undone before another one */
    char ghost_token[DLOCK_TOKEN_LEN + 1]; /* ... and once more if it is served only after that */
    bool listening;                        /* a release can call us */
    bool made_table;
    bool release_sent, release_lost; /* lost: its answer never came */

    PGresult *listing; /* the answer to ask, given out row by row */
    int list_at, place;
    struct dlock_info info;
    struct event_queue events;
};

static inline int64_t pg_now(const struct dlock_be *be)
{
    return be->spec->env->now(be->spec->env->ctx);
}
/* How long an answer to a try is waited for: longer than to a renewal, for the disk has a part in it. */
static inline int64_t pg_patience(const struct dlock_be *be)
{
    return dlock_min(be->spec->connect_timeout, dlock_max(be->spec->op_timeout, DLOCK_SEC));
}
static inline const char *pg_where(const struct dlock_be *be)
{
    return be->spec->uri->where;
}

/* uri.c: fill in what comes from spec; 0 or a negative code. pg_done frees it. */
int pg_check_spec(struct dlock_be *, struct dlock_error *);
void pg_done(struct dlock_be *);

/* postgres.c */
/* Begin to connect unless open, bounded by op_until; protocol->ready or ->failed follows. */
void pg_connect(struct dlock_be *);
/* The acquire, the ask is over without success: EV_FAILED. The connection is closed. */
void pg_fail(struct dlock_be *, const struct dlock_error *);
/* Give up the connection; try again after a pause, or fail. */
void pg_try_later(struct dlock_be *, const struct dlock_error *, bool transient);
/* A fresh owner token. False: the acquire has failed. */
bool pg_new_token(struct dlock_be *);
/* Send sql (malloc'ed; NULL: out of memory) and free it. */
void pg_send(struct dlock_be *, enum pg_tag, char *sql);
void pg_send_params(struct dlock_be *, enum pg_tag, char *sql, int n, const char *const *values);
void pg_end_release(struct dlock_be *, enum dlock_how, const struct dlock_error *);
/* A text field of a row, "" when NULL; a number, 0 when NULL. */
const char *pg_text(const PGresult *, int row, int col);
int64_t pg_number(const PGresult *, int row, int col);
/* Exactly one row of n columns? */
bool pg_one_row(const struct pg_reply *, int n);
/* The record in the comment in front of a query; its length with *begin, or 0: there is none. */
size_t pg_read_comment(const char *query, struct dlock_info *, const char **begin);

#endif
