/*
 * store.h - a store in SQL: the slots of the contract, the operation that the core started, and the
 * connection, which a driver makes. What a lock is, a protocol decides: the lease table (table.h),
 * or a lock of the server's sessions (postgres/advisory.c).
 */
#ifndef DLOCK_SQL_STORE_H
#define DLOCK_SQL_STORE_H

#include "backends/networked.h"
#include "findings.h"
#include "sql.h"

/* The unfinished operation that the core started. */
enum sql_op { SQL_OP_NONE, SQL_OP_ACQUIRE, SQL_OP_RENEW, SQL_OP_RELEASE, SQL_OP_STATUS };

/* The purpose of a request. */
enum sql_tag {
    T_TRY = 1,
    T_HOLDER,
    T_WAIT,
    T_CONFIRM,
    T_RENEW,
    T_RELEASE,
    T_LEAVE, /* without a look at the waiters: T_CALL may have to follow */
    T_CALL,
    T_UNDO,
    T_STATUS,
    T_LISTEN,
    T_LISTENING,
    T_SCHEMA,
    T_SWEEP,
    T_NOTICE,
    T_FORGET,
    T_BREAK,
    T_FREE,
    T_BREAKER
};

struct sql_store;

/* ---------------------------------------------------------------- connection */

enum sql_conn_state { CONN_CLOSED, CONN_CONNECTING, CONN_UP, CONN_FAILED };

/* A connection; the first member of the driver's own. */
struct sql_conn {
    enum sql_conn_state state;
    int64_t next_at; /* CONN_CONNECTING: work() is due */
    int unanswered;  /* requests that were sent */
    int64_t session; /* CONN_UP: the session's number, as the server told it first */
    bool guarded;    /* set when connected; the owner clears it when the tables are checked */
    /*
     * A single request at a time, since a pooler may be in between. PgBouncer before 1.21 takes a
     * session for free at the first answer, and may send our next answer to the session's next
     * client.
     */
    bool one_by_one;
    /* CONN_FAILED */
    struct dlock_error error;
    bool transient; /* the server is starting, or has no free connection: try again */
};

static inline bool sql_conn_is_open(const struct sql_conn *c)
{
    return c->state == CONN_CONNECTING || c->state == CONN_UP;
}

struct sql_driver {
    const char *server; /* its name, for people */
    const char *client; /* the program that reads --schema */
    bool hex;           /* see sql_add() */
    bool one_by_one;    /* of every connection */
    /* Start to connect, at most until then: CONN_UP or CONN_FAILED follows. */
    void (*open)(struct sql_store *, int64_t until);
    /* Why this server, which understands the protocol, is refused. NULL: it is not. */
    const char *(*refused)(const struct sql_store *);
    /* The descriptor to poll, of an open connection. Changes from address to address. */
    int (*fd)(const struct sql_conn *);
    /* What to wait for: fills in *pfd, only lowers *wake_at; returns the number of entries. */
    int (*interest)(const struct sql_conn *, struct pollfd *, int64_t *wake_at);
    /* Handle what poll() found, and the time. */
    void (*work)(struct sql_conn *);
    /*
     * One transaction; the message may have to queue, and is left empty. One answer: the error that
     * ended the message, or the last result with rows.
     */
    void (*send)(struct sql_conn *, struct sql_message *);
    /* 1: an answer, for sql_reply_done() to free; 0: none; negative: the connection has failed. */
    int (*next)(struct sql_conn *, struct sql_reply *);
    /* Fill err from an answer that is an error, unconfirmed or not ours; returns its code. */
    int (*error)(const struct sql_conn *, const struct sql_reply *, struct dlock_error *);
    /* In any state; the server frees the session at once. */
    void (*close)(struct sql_conn *);
    /* The same in a child of the process that opened the connection: nothing is sent. */
    void (*close_in_child)(struct sql_conn *);
    /* --check: findings about the connection, the server and its clock; rows: of the answer. */
    void (*check)(struct sql_store *, const struct sql_rows *);
};

/* ------------------------------------------------------------------ protocol */

/* Its slots are called in any state of the connection, ready only when that is idle. */
struct sql_protocol {
    /*
     * The session holds the lock, and its end releases it. Otherwise a table does: with records of
     * --once, and with --min-hold a lock stays held after a release, until the expiry.
     */
    bool session;

    void (*acquire)(struct sql_store *);
    void (*renew)(struct sql_store *);
    void (*release)(struct sql_store *); /* at most until release.until */
    /* Before a step of a query. False: it has failed. NULL: nothing to do. */
    bool (*step)(struct sql_store *);

    /* The connection is up. */
    void (*ready)(struct sql_store *);
    /* Replace an error by its meaning. True: the request was sent again. NULL: nothing to do. */
    bool (*found)(struct sql_store *, struct sql_reply *);
    /* A request was answered; not called for T_STATUS. */
    void (*answered)(struct sql_store *, const struct sql_reply *);
    /* The connection failed, and is closed already. */
    void (*failed)(struct sql_store *, const struct dlock_error *);
    /* The first contact of an acquire is given up; the connection follows. NULL: nothing to do. */
    void (*abandon)(struct sql_store *);
    /* Handle what is due. */
    void (*timeout)(struct sql_store *, int64_t now);

    /* May replace an answer to T_STATUS. True: the answer to a further request counts. NULL: no. */
    bool (*more_status)(struct sql_store *, struct sql_reply *);
    /* Of an answer to T_STATUS: its columns; a row. False: neither a holder nor a waiter. */
    const char *status_columns;
    bool (*read_info)(const struct sql_rows *, int row, struct dlock_info *);
    /* Send T_STATUS for ASK_CHECK, the first or the second question. False: there is no second. */
    bool (*send_check)(struct sql_store *, bool first);
    /* Send T_STATUS for a list, behind status.after; the columns of the answer; read a row. */
    void (*send_list)(struct sql_store *);
    const char *list_columns;
    void (*read_entry)(struct sql_store *, int row, struct dlock_entry *);
    /* The statements that make the tables, malloc'ed or NULL. The slot is NULL: no table. */
    char *(*schema)(const struct sql_store *);
};

/* --------------------------------------------------------------------- store */

/* Lease mode; see table.h. */
struct table_state {
    /* From the URI, quoted: the tables of the locks, the holders and the run records. */
    char *name, *holders, *runs;
    char *schema, *role; /* of the first, and of the URI, quoted; role NULL: it names none */

    /* token: not tried, or refused; sent, perhaps granted; sent on a connection that broke. */
    enum { TRY_NONE, TRY_SENT, TRY_ORPHANED } try;
    /* An orphaned token, undone, whose try may still be served. "": none. */
    char orphan[DLOCK_TOKEN_LEN + 1];
    int creates;       /* how often CREATE TABLE was sent in this acquire */
    const char *lacks; /* the missing table */
    bool take, make;   /* the next try is the statement take, or free; makes the row */
    struct {           /* in this connection: the table is ours */
        bool holders, runs;
    } checked;
    struct {
        int64_t ticket; /* our place, as the server's time in us; 0: none yet */
        int place;      /* in line, when we last looked; 0: unknown */
        int tries;      /* of this acquire */
        bool joined;    /* this session bears the ticket, and is called */
        bool polls;     /* no session of the server can stand in line */
    } line;
    struct {        /* of a waiting writer, to readers and slots */
        int64_t at; /* of the next notice; 0: none was written */
        char token[DLOCK_TOKEN_LEN + 1];
    } notice;
    char epoch[80]; /* of the holders beside us */

    enum { LOOK_FIRST, LOOK_HOLDERS, LOOK_RUN } look; /* the table that a status reads */
    /*
     * UNCLEAR: the answer never came, so the release may have been served. DONE: served, and the
     * waiters are being called.
     */
    enum { RELEASE_UNSENT, RELEASE_SENT, RELEASE_UNCLEAR, RELEASE_DONE } release;
};

#define LIST_PAGE 1000 /* locks in an answer: the driver keeps all of it in memory */

/* The first member of the backend's own. */
struct sql_store {
    const struct dlock_spec *spec;
    const struct sql_driver *driver;
    const struct sql_protocol *protocol;
    const struct table_dialect *sql; /* lease mode */
    struct sql_conn *conn;
    /* Our records as a waiter, and as the holder from the newest try on. */
    char waiter[1024], holder[1024];

    struct outage outage;
    enum sql_op op;
    int64_t op_until; /* for the answer to op; DLOCK_NEVER: unbounded */
    bool granted;
    char token[DLOCK_TOKEN_LEN + 1];
    uint64_t fence;
    int slot; /* DLOCK_MODE_SLOTS: as in dlock_event */

    /* From the URI: after a start or promotion a server grants nothing for so long. 0: off. */
    int64_t restart_grace;
    bool warned_grace; /* in this acquire */

    /* An acquire until the first answer to a try; a status; refusal: of a release, too. */
    struct {
        bool pending;
        struct dlock_error refusal; /* a transient error; code 0: none */
    } contact;
    struct {
        bool wait;
        int64_t try_at;
    } acquire;
    struct {
        int64_t until;
    } release;
    /* rows: the answer, handed out row by row; NULL: none. */
    struct {
        struct sql_rows *rows;
        struct sql_rows *first; /* the answer where a second request is refused */
        int next, place;
        bool keeps;                /* the session has a mark: keep it open until the close */
        bool run;                  /* run holds a run record */
        struct dlock_error record; /* why the run record cannot be used; code 0: it can */
        char after[1024];          /* ASK_LIST: the last name of the page before */
        bool partial;              /* ASK_LIST: our role may not see all; a notice says so */
    } status;
    const struct dlock_question *question; /* SQL_OP_STATUS */
    const struct dlock_order *order;       /* the same, of a question in steps */

    struct table_state table;

    struct dlock_info info; /* for events */
    struct findings found;  /* of a check */
    bool check_second;      /* the second question of a check was asked */
    struct dlock_run run;
    struct dlock_entry entry;
    char name[1024]; /* of entry */
    struct event_queue events;
};

static inline int64_t sql_now(const struct sql_store *be)
{
    return be->spec->env->now(be->spec->env->ctx);
}
/* The time for the answer to a try: longer than for a renewal, since the disk takes part. */
static inline int64_t sql_patience(const struct sql_store *be)
{
    return dlock_min(be->spec->connect_timeout, dlock_max(be->spec->op_timeout, DLOCK_SEC));
}
static inline const char *sql_where(const struct sql_store *be)
{
    return be->spec->uri->where;
}
static inline void sql_close(struct sql_store *be)
{
    be->driver->close(be->conn);
}
static inline int sql_error(const struct sql_store *be, const struct sql_reply *r,
                            struct dlock_error *err)
{
    return be->driver->error(be->conn, r, err);
}
static inline bool sql_is_busy(const struct sql_store *be)
{
    return be->conn->unanswered > 0;
}

/* The operation has ended. */
static inline void sql_op_done(struct sql_store *be)
{
    be->op = SQL_OP_NONE;
    be->op_until = be->acquire.try_at = DLOCK_NEVER;
}

/* store.c: a zeroed store is ready for its first operation; and its end, without the memory. */
void sql_store_init(struct sql_store *, const struct dlock_spec *, const struct sql_driver *,
                    struct sql_conn *);
void sql_store_done(struct sql_store *);
/* Of struct dlock_backend; the backend itself is a struct sql_store. */
void sql_slot_acquire(struct dlock_be *, bool wait);
const struct dlock_error *sql_slot_refusal(const struct dlock_be *);
bool sql_slot_stays(struct dlock_be *);
void sql_slot_renew(struct dlock_be *);
void sql_slot_release(struct dlock_be *, int64_t until);
void sql_slot_ask(struct dlock_be *, const struct dlock_question *);
void sql_slot_step(struct dlock_be *, const struct dlock_order *);
bool sql_slot_next(struct dlock_be *, struct dlock_info *);
void sql_slot_rest(struct dlock_be *);
int sql_slot_interest(struct dlock_be *, struct pollfd *, int cap, int64_t *wake_at);
int sql_slot_process(struct dlock_be *, const struct pollfd *, int n, struct dlock_event *);
int sql_slot_schema(struct dlock_be *, char **out, struct dlock_error *);
#define SQL_SLOTS                                                                                  \
    .acquire = sql_slot_acquire, .refusal = sql_slot_refusal, .stays = sql_slot_stays,             \
    .renew = sql_slot_renew, .release = sql_slot_release, .ask = sql_slot_ask,                     \
    .step = sql_slot_step, .next = sql_slot_next, .rest = sql_slot_rest,                           \
    .interest = sql_slot_interest, .process = sql_slot_process, .schema = sql_slot_schema

/* operation.c */
/* Connect, at most until op_until: protocol->ready (at once if connected) or ->failed follows. */
void sql_connect(struct sql_store *);
/* A fresh owner token. False: acquire has failed. */
bool sql_new_token(struct sql_store *);

/* Write a record. The record of a holder has the time, so write it for each try. */
void sql_describe(struct sql_store *, enum dlock_record);

/* The ends of an operation; each queues its event. */
/* The lock is ours by a request sent at from; fence is set. */
void sql_granted(struct sql_store *, int64_t from);
/* Held, and acquire does not wait. info: the holder, or NULL. Closes the connection. */
void sql_busy(struct sql_store *, const struct dlock_info *);
/* Not held: the work has been done, as run says. Closes the connection. */
void sql_skipped(struct sql_store *);
/* A step of a query that changes something: done, or not as read. Returns the event. */
struct dlock_event *sql_stepped(struct sql_store *, bool done);
/* Free, but refused for left_ms more by restart_grace: busy, or the next try is set. */
void sql_in_grace(struct sql_store *, int64_t left_ms);
/* breaker: NULL, or who has marked the hold. */
void sql_renewed(struct sql_store *, int64_t from, const char *breaker);
void sql_unclear(struct sql_store *, const struct dlock_error *);
/* Closes the connection. err: NULL, or why the release is not clean. */
void sql_released(struct sql_store *, enum dlock_release_how, const struct dlock_error *err);
/* Acquire or status failed. Closes the connection, unless release has to cancel its request. */
void sql_fail(struct sql_store *, const struct dlock_error *);
/*
 * Acquire or status met an error: close the connection, and connect anew after a pause; or fail.
 * transient: try again even at the first contact (a server that starts).
 */
void sql_try_later(struct sql_store *, const struct dlock_error *, bool transient);

/* Parse the record in the comment before a query. The record's length, with *begin set; 0: none. */
size_t sql_read_comment(const char *query, struct dlock_info *info, const char **begin);

/* list.c: after an answer to ASK_LIST; 0: ask for the next page, which was sent. */
int sql_list_next(struct sql_store *, struct dlock_event *);
/* Tell once that our role does not see all. */
void sql_list_partial(struct sql_store *, const char *what);

/* check.c: begin, once connected; the answer to T_STATUS of ASK_CHECK. */
void sql_check_begin(struct sql_store *);
void sql_check_answered(struct sql_store *, const struct sql_reply *);

#endif
