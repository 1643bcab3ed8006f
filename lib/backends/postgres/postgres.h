/* postgres.h - the PostgreSQL backend: its state, and what its two modes share. */
#ifndef DLOCK_PG_H
#define DLOCK_PG_H

#include "backends/table/table.h"
#include "conn.h"

extern const struct sql_protocol pg_advisory;
extern const struct table_dialect pg_lease;

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
        bool ended; /* the session, by us */
    } breaks;
};

/* Lease mode: line.c, trust.c. */
struct lease_state {
    const char *owner; /* a further role that is trusted with the tables, or "" */
    bool unsure;       /* the statement glance does not do: send check */

    char channel[64];     /* of a waiter, less the pid */
    int64_t line_key;     /* of an advisory lock that the waiters in line share */
    int awaited;          /* the pid of the waiter that we wait for in the server; 0: we LISTEN */
    int before;           /* the pid of the next waiter before us */
    bool no_await;        /* the server refused that wait */
    int64_t called;       /* the fence of the hold whose release called us as the first; 0: none */
    char next[PG_NOTICE]; /* the waiters behind us, as that release says; "": unknown */
};

#define SESSION_NAME "dlock: "

struct pg_backend {
    struct sql_store store;

    /* From the URI and spec, by pg_settings_init(). */
    struct pg_settings settings;
    struct {
        char *host, *port; /* libpq's lists of the hosts behind "//", or NULL */
    } named;
    char keepalive[3][24]; /* ?fair=1: values in settings */
    char app[32];          /* "dlock:" and the hash of the lock */
    /* application_name: "dlock: NAME" for people, or app. A waiter in line (line.c) has app. */
    char session[64];

    struct pg_conn conn;
    struct adv_state advisory;
    struct lease_state lease;
};

static inline struct pg_backend *pg(const struct sql_store *be)
{
    return (struct pg_backend *)be;
}

/*
 * uri.c: fill in what comes from spec and spec->uri; reads only files. 0 or a negative code;
 * _done() is due in any case.
 */
int pg_settings_init(struct pg_backend *, struct dlock_error *);
void pg_settings_done(struct pg_backend *);
/*
 * foreign.c: parameters for other programs; called when our own and libpq's are marked as used.
 * no_table: lease mode without table=. *sslmode: libpq's sslmode by all parameters, or NULL; of
 * uri, or constant. 0 or a negative code.
 */
int pg_foreign_params(struct dlock_uri *, bool no_table, const char **sslmode,
                      struct dlock_error *);
/* The refusal of run records in advisory mode; returns its code. */
int pg_no_records(const struct sql_store *, struct dlock_error *);

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

/* trust.c: of struct table_dialect. */
void pg_guard(const struct sql_store *, struct sql_message *, bool holders, bool runs);
bool pg_found(struct sql_store *, struct sql_reply *);
/* line.c: likewise. */
extern const struct table_line pg_line;

/* check.c: of struct sql_driver. */
void pg_check(struct sql_store *, const struct sql_rows *);

#endif
