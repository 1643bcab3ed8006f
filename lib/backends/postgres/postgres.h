/* postgres.h - the PostgreSQL backend: its state, and what its two modes share. */
#ifndef DLOCK_PG_H
#define DLOCK_PG_H

#include "backends/networked.h"
#include "conn.h"
#include "findings.h"

/* The unfinished operation that the core started. */
enum pg_op { PG_OP_NONE, PG_OP_ACQUIRE, PG_OP_RENEW, PG_OP_RELEASE, PG_OP_STATUS };

/* The purpose of a request. */
enum pg_tag {
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

/* keys.c: the keys of an advisory lock beside its main key. */
struct pg_keys {
    char name[256]; /* hashed: the lock's name, or NUL and the number of ?key= */
    size_t name_len;
    int64_t turnstile;  /* held exclusively by a waiting writer; readers and slots pass it */
    int64_t gate;       /* of the waiters for a slot */
    int64_t first_size; /* plus N: held shared by each holder of N slots and each waiter */
    int64_t sizes;      /* held while a client looks at the sizes */
    char channel[24];   /* NOTIFY: a slot was given back */
};

struct pg_backend;

/* A mode. Its slots are called in any state of the connection, ready only when that is idle. */
struct pg_protocol {
    /*
     * The session holds the lock, and its end releases it. Otherwise a table does: with records of
     * --once, and with --min-hold a lock stays held after a release, until the expiry.
     */
    bool session;

    void (*acquire)(struct pg_backend *);
    void (*renew)(struct pg_backend *);
    void (*release)(struct pg_backend *); /* at most until release.until */

    /* The connection is up. */
    void (*ready)(struct pg_backend *);
    /* Replace an error by its meaning. True: the request was sent again. NULL: nothing to do. */
    bool (*found)(struct pg_backend *, struct pg_reply *);
    /* A request was answered; not called for T_STATUS. */
    void (*answered)(struct pg_backend *, const struct pg_reply *);
    /* The connection failed, and is closed already. */
    void (*failed)(struct pg_backend *, const struct dlock_error *);
    /* The first contact of an acquire is given up; the connection follows. NULL: nothing to do. */
    void (*abandon)(struct pg_backend *);
    /* Handle what is due. */
    void (*timeout)(struct pg_backend *, int64_t now);

    /* May replace an answer to T_STATUS. True: the answer to a further request counts. NULL: no. */
    bool (*more_status)(struct pg_backend *, struct pg_reply *);
    /* Of an answer to T_STATUS: its columns; a row. False: neither a holder nor a waiter. */
    const char *status_columns;
    bool (*read_info)(const PGresult *, int row, struct dlock_info *);
    /* Send T_STATUS for ASK_CHECK, the first or the second question. False: there is no second. */
    bool (*send_check)(struct pg_backend *, bool first);
    /* Send T_STATUS for a list, behind status.after; the columns of the answer; read a row. */
    void (*send_list)(struct pg_backend *);
    const char *list_columns;
    void (*read_entry)(struct pg_backend *, int row, struct dlock_entry *);
    /* The statements that make the tables, malloc'ed or NULL. The slot is NULL: no table. */
    char *(*schema)(const struct pg_backend *);
};
extern const struct pg_protocol pg_advisory, pg_table;

/* Advisory mode. */
struct adv_state {
    /* From the URI. The main key: as arguments of the lock functions, and in a comment. */
    bool fair, renew_writes;
    char key[96], key_id[32];
    uint32_t high, low; /* the main key as classid, objid, objsubid of pg_locks */
    int sub;
    char number[32]; /* the main key in decimal */
    struct pg_keys keys;

    /* What the session has in this acquire. */
    struct {
        bool turn;    /* the turnstile, while the session waits for the main key */
        bool main;    /* the main key */
        bool size;    /* the key for the number of slots */
        bool gate;    /* the gate: this client is the first in line for a slot */
        bool listens; /* LISTEN: of each slot that is given back */
    } has;
    enum { WAIT_TURN, WAIT_MAIN, WAIT_GATE } awaits;

    bool polls; /* no DO blocks for this role: try once a second instead of waiting */
    bool warned_old;
    unsigned chunks;      /* in this acquire */
    int64_t renewed_from; /* of a heartbeat answered after its renew had ended; 0: none */

    /* Our hold is marked: who breaks it is asked once. */
    struct {
        bool marked, known;
        int64_t from; /* of the heartbeat that found the mark */
        char breaker[128];
    } broken;
    /* We break the hold of this session: as in the status. "": none. */
    struct {
        char session[DLOCK_TOKEN_LEN + 1];
        bool keeps; /* the connection has the mark: keep it open until the close */
        bool ended; /* the session, by us */
    } breaks;
};

/* Lease mode. */
struct table_state {
    /* From the URI: "schema.name", quoted; the channel of a waiter, less the pid. */
    char *name, channel[64];
    int64_t line_key;     /* of an advisory lock that the waiters in line share */
    char *holders, *runs; /* the second and the third table, likewise */
    const char *owner;    /* a further role that is trusted with the tables, or "" */
    char *role;           /* of the URI, quoted; NULL: it names none */

    /* token: not tried, or refused; sent, perhaps granted; sent on a connection that broke. */
    enum { TRY_NONE, TRY_SENT, TRY_ORPHANED } try;
    /* An orphaned token, undone, whose try may still be served. "": none. */
    char orphan[DLOCK_TOKEN_LEN + 1];
    int creates;       /* how often CREATE TABLE was sent in this acquire */
    const char *lacks; /* the missing table */
    bool unsure;       /* the statement glance does not do: send check */
    struct {           /* in this connection: the table is ours */
        bool holders, runs;
    } checked;
    struct {
        int64_t ticket; /* our place, as the server's time in us; 0: none yet */
        int place;      /* in line, when we last looked; 0: unknown */
        int tries;      /* of this acquire */
        bool joined;    /* this session bears the ticket, and LISTENs */
        bool no_listen; /* the server refused LISTEN */
        int awaited;    /* the pid of the waiter that we wait for in the server; 0: we LISTEN */
        int before;     /* the pid of the next waiter before us */
        bool no_await;  /* the server refused that wait */
        int64_t called; /* the fence of the hold whose release called us as the first; 0: none */
        char next[PG_NOTICE]; /* the waiters behind us, as that release says; "": unknown */
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
    bool take; /* the next try is the statement take, or free */
};

#define LIST_PAGE 1000 /* locks in an answer: libpq keeps all of it in memory */
#define SESSION_NAME "dlock: "

struct pg_backend {
    const struct dlock_spec *spec;
    const struct pg_protocol *protocol;

    /* From the URI and spec, by pg_settings_init(). */
    struct pg_settings settings;
    struct {
        char *host, *port; /* libpq's lists of the hosts behind "//", or NULL */
    } named;
    char keepalive[3][24]; /* ?fair=1: values in settings */
    char app[32];          /* "dlock:" and the hash of the lock */
    /* application_name: "dlock: NAME" for people, or app. A waiter in line (table.c) has app. */
    char session[64];
    /* Our records as a waiter, and as the holder from the newest try on. */
    char waiter[1024], holder[1024];

    struct pg_conn conn;
    struct outage outage;
    enum pg_op op;
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
        PGresult *rows;
        PGresult *first; /* the answer where a second request is refused */
        int next, place;
        bool run;                  /* run holds a run record */
        struct dlock_error record; /* why the run record cannot be used; code 0: it can */
        char after[1024];          /* ASK_LIST: the last name of the page before */
        bool partial;              /* ASK_LIST: our role may not see all; a notice says so */
    } status;
    const struct dlock_question *question; /* PG_OP_STATUS */
    const struct dlock_order *order;       /* the same, of a question in steps */

    struct adv_state advisory;
    struct table_state table;

    struct dlock_info info; /* for events */
    struct findings found;  /* of a check */
    bool check_second;      /* the second question of a check was asked */
    struct dlock_run run;
    struct dlock_entry entry;
    char name[1024]; /* of entry */
    struct event_queue events;
};

static inline int64_t pg_now(const struct pg_backend *be)
{
    return be->spec->env->now(be->spec->env->ctx);
}
/* The time for the answer to a try: longer than for a renewal, since the disk takes part. */
static inline int64_t pg_patience(const struct pg_backend *be)
{
    return dlock_min(be->spec->connect_timeout, dlock_max(be->spec->op_timeout, DLOCK_SEC));
}
static inline const char *pg_where(const struct pg_backend *be)
{
    return be->spec->uri->where;
}

/* The operation has ended. */
static inline void pg_op_done(struct pg_backend *be)
{
    be->op = PG_OP_NONE;
    be->op_until = be->acquire.try_at = DLOCK_NEVER;
}

/*
 * uri.c: fill in what comes from spec and spec->uri; reads only files. 0 or a negative code;
 * _done() is due in any case.
 */
int pg_settings_init(struct pg_backend *, struct dlock_error *);
/*
 * foreign.c: parameters for other programs; called when our own and libpq's are marked as used.
 * no_table: lease mode without table=. *sslmode: libpq's sslmode by all parameters, or NULL; of
 * uri, or constant. 0 or a negative code.
 */
int pg_foreign_params(struct dlock_uri *, bool no_table, const char **sslmode,
                      struct dlock_error *);
/* The refusal of run records in advisory mode; returns its code. */
int pg_no_records(const struct pg_backend *, struct dlock_error *);
void pg_settings_done(struct pg_backend *);

/* keys.c */
/*
 * The first eight bytes of SHA-256, big-endian. Not OpenSSL's SHA-256, which would read a
 * configuration and initialise all of OpenSSL: 1 to 2 ms that a connection without TLS and password
 * need not spend.
 */
uint64_t pg_hash(const char *text, size_t len);
/* given: the number of ?key= stands for the name. */
void pg_keys_init(struct pg_backend *, bool given);
/* Slot i, counted from 0. */
int64_t pg_slot_key(const struct pg_keys *, int i);
/* The mark on the hold of the session with this pid; and what is hashed before the pid, in hex. */
int64_t pg_mark_key(const struct pg_keys *, long pid);
void pg_mark_begin(const struct pg_keys *, char *hex);

/* operation.c */
/* Connect, at most until op_until: protocol->ready (at once if connected) or ->failed follows. */
void pg_connect(struct pg_backend *);
/* A fresh owner token. False: acquire has failed. */
bool pg_new_token(struct pg_backend *);

/* Write a record. The record of a holder has the time, so write it for each try. */
void pg_describe(struct pg_backend *, enum dlock_record);

/* The ends of an operation; each queues its event. */
/* The lock is ours by a request sent at from; fence is set. */
void pg_granted(struct pg_backend *, int64_t from);
/* Held, and acquire does not wait. info: the holder, or NULL. Closes the connection. */
void pg_busy(struct pg_backend *, const struct dlock_info *);
/* Not held: the work has been done, as run says. Closes the connection. */
void pg_skipped(struct pg_backend *);
/* A step of a query that changes something: done, or not as read. Returns the event. */
struct dlock_event *pg_stepped(struct pg_backend *, bool done);
/* Free, but refused for left_ms more by restart_grace: busy, or the next try is set. */
void pg_in_grace(struct pg_backend *, int64_t left_ms);
/* breaker: NULL, or who has marked the hold. */
void pg_renewed(struct pg_backend *, int64_t from, const char *breaker);
void pg_unclear(struct pg_backend *, const struct dlock_error *);
/* Closes the connection. err: NULL, or why the release is not clean. */
void pg_released(struct pg_backend *, enum dlock_release_how, const struct dlock_error *err);
/* Acquire or status failed. Closes the connection, unless release has to cancel its request. */
void pg_fail(struct pg_backend *, const struct dlock_error *);
/*
 * Acquire or status met an error: close the connection, and connect anew after a pause; or fail.
 * transient: try again even at the first contact (a server that starts).
 */
void pg_try_later(struct pg_backend *, const struct dlock_error *, bool transient);

/* list.c: after an answer to ASK_LIST; 0: ask for the next page, which was sent. */
int pg_list_next(struct pg_backend *, struct dlock_event *);
/* Tell once that our role does not see all. */
void pg_list_partial(struct pg_backend *, const char *what);

/* check.c: begin, once connected; the answer to T_STATUS of ASK_CHECK. */
void pg_check_begin(struct pg_backend *);
void pg_check_answered(struct pg_backend *, const struct pg_reply *);

/* Parse the record in the comment before a query. The record's length, with *begin set; 0: none. */
size_t pg_read_comment(const char *query, struct dlock_info *info, const char **begin);

#endif
