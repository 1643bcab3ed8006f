/*
 * table.h - what the two files of the lease table share: table.c, exclusive locks and all that does not depend on the
 * kind, and table_shared.c, shared locks and slots.
 */
#ifndef DLOCK_PG_TABLE_H
#define DLOCK_PG_TABLE_H

#include "postgres.h"
#include "sql.h"

#define LONGEST_TURN (2800 * DLOCK_MSEC) /* see TURN */
#define LOOK_ONE_OF 12 /* every half a minute, a waiter in line looks at its place */

/*
 * The line. @A: the application_name of our sessions; that of a waiter adds a colon, its ticket of 16 digits, and its
 * kind: nothing (exclusive), "s" (shared) or "n3" (one of 3 slots). So it is above @A: and below @A; where characters are
 * compared by their codes. Another role may have made it up: a kind is parsed only where it has the right form.
 *
 * Not the view pg_stat_activity but the function behind it: the view takes long to plan.
 */
#define FLOAT "::pg_catalog.float8"
#define AS_CODES " COLLATE pg_catalog.\"C\""
#define IN_LINE                                                                                    \
    "FROM pg_catalog.pg_stat_get_activity(NULL) a WHERE a.datid" EQ "(SELECT d.oid FROM "          \
    "pg_catalog.pg_database d WHERE d.datname" EQ "pg_catalog.current_database()) "                \
    "AND a.application_name" AS_CODES
#define WITH_TICKET(x) "pg_catalog.concat('@A:', pg_catalog.lpad((" x ")" TEXT ", 16, '0')) "
#define BEHIND_TICKET(x) "pg_catalog.concat('@A:', pg_catalog.lpad((" x ")" TEXT ", 16, '0'), '~') "
#define KIND_OF(x) "pg_catalog.substr(" x ", 40)" /* behind "dlock:", 16 digits, a colon and 16 */
#define TICKET_NOW "(EXTRACT(epoch FROM " NOW ")" MICROSECONDS
/* With so many before: for how long the lock must have been free, in seconds. It grows towards LONGEST_TURN. */
#define TURN(places)                                                                               \
    "(((" places ")" FLOAT TIMES "2.8)" DIVIDED_BY "((" places ")" FLOAT PLUS "2.5))"
/*
 * The line is not looked at where that decides nothing, as it takes the server milliseconds per 1000 connections: when
 * the lock has been free for longer than this, and is there for all; and when it stays held for longer, until our next
 * try or call.
 */
#define ANY_TURN "'3 seconds'" INTERVAL
#define TTL "pg_catalog.make_interval(secs => $3::pg_catalog.float8)"

/* The owner of the name's row while readers or slots hold the lock begins so. */
#define SHARED_OWNER "shared:"
/*
 * --min-hold: what a holder that has released the lock is called until its time is over; its token follows. So a renewal
 * that is late cannot prolong it.
 */
#define OVER_OWNER "over:"
#define IS_OVER(x) "CASE WHEN " x MATCHES "'" OVER_OWNER "%' THEN 1 ELSE 0 END"
#define MS_UNTIL(x) "(EXTRACT(epoch FROM " x MINUS NOW ")" MILLISECONDS

/*
 * Who is called by a release. u: at most one row; passed: as in the name's row; whole: the lock is free for all, else
 * only slots; used: how many slots are still held. ahead: how many before a waiter stand in its way. A reader has only
 * writers in its way, a slot also the slots before it, as far as there is not one for each. All with none in their way
 * are called, and of the others as many as make four, each with the number of ms until its turn.
 */
/* clang-format off */
#define CALLS_IN(but, ms) \
    "q AS (SELECT a.pid, a.place, a.kind, pg_catalog.count(*) OVER b AS before, " \
        "pg_catalog.count(*) FILTER (WHERE a.kind" EQ "'') OVER b AS writers, " \
        "pg_catalog.count(*) FILTER (WHERE a.kind" MATCHES "'n%') OVER b AS slots FROM " \
        "(SELECT a.pid, a.application_name AS place, " KIND_OF("a.application_name") " AS kind " IN_LINE GT \
            BEHIND_TICKET("SELECT u.passed FROM u") "AND a.application_name" AS_CODES LT \
            "'@A;' " but "AND EXISTS (SELECT 1 FROM u)) a " \
        "WINDOW b AS (ORDER BY a.place" AS_CODES " RANGE UNBOUNDED PRECEDING EXCLUDE GROUP)), " \
    "r AS (SELECT q.pid, q.place, CASE WHEN NOT u.whole AND (q.kind" NE "'' AND q.kind" NE "'s' " \
            "AND q.writers" EQ "0) IS NOT TRUE THEN NULL WHEN q.kind" EQ "'' THEN q.before " \
        "WHEN q.kind" EQ "'s' THEN q.writers " \
        "WHEN q.kind OPERATOR(pg_catalog.~) '^n[0-9]{1,4}$' THEN q.writers" PLUS \
            "GREATEST(0, q.slots" PLUS "1" PLUS "u.used" MINUS "pg_catalog.substr(q.kind, 2)" INT ") END " \
        "AS ahead FROM q CROSS JOIN u), " \
    "w AS (SELECT r.pid, r.ahead, pg_catalog.row_number() OVER (ORDER BY r.ahead, r.place" AS_CODES ") AS nth " \
        "FROM r WHERE r.ahead IS NOT NULL), " \
    "c AS (SELECT pg_catalog.pg_notify(pg_catalog.concat('@C', w.pid), " \
        "((" TURN("w.ahead") TIMES "1000)" BIGINT ms ")" TEXT ") FROM w WHERE w.ahead" EQ "0 OR w.nth" LE "4) "
#define CALLS CALLS_IN("", "")
/* Within a transaction the line is as it was first seen, when we stood in it. */
#define CALLS_OTHERS CALLS_IN("AND a.pid" NE "pg_catalog.pg_backend_pid() ", "")
/* The lock stays held for a while: u also has stays, the ms that this takes. So they find the lock free when they come. */
#define CALLS_LATER CALLS_IN("", PLUS "(SELECT u.stays FROM u)")
/* clang-format on */

#define OUR_ROW                                                                                    \
    "FROM (SELECT " DURABLE " AS done OFFSET 0) s WHERE s.done IS NOT NULL "                       \
    "AND l.name" EQ "$1" TEXT " AND l.owner" EQ "$2" TEXT " AND l.expires" GT NOW " "
#define OTHERS_ROW                                                                                 \
    "FROM (SELECT 1) x LEFT JOIN @T o ON o.name" EQ "$1" TEXT " AND o.owner" NE "$2" TEXT          \
    " AND o.expires" GT NOW
/* Of the row t: its fence is from a week ago, by the clock of the server. */
#define LONG_UNUSED "((EXTRACT(epoch FROM " NOW ")" MICROSECONDS MINUS "604800000000) "

/* The first columns of the answer to a renewal; a release also says how many waiters it woke. */
enum { U_OURS, U_HOLDER, U_TOKEN, U_RENEW_COLUMNS, U_RELEASE_COLUMNS };

/* A row of a status. Kind: as in the line. */
enum { S_WAITER, S_HOLDER, S_FENCE, S_LEFT, S_USER, S_PID, S_KIND, S_SLOT, S_OVER };
#define STATUS_WAITERS                                                                             \
    "(SELECT 1, w.query, 0, 0, w.usename" TEXT ", w.pid, " KIND_OF(                                \
        "w.application_name") ", 0, 0 FROM pg_catalog.pg_stat_activity w "                         \
                              "WHERE w.application_name" AS_CODES GT                               \
                              "'@A:' AND w.application_name" AS_CODES LT "'@A;' "                  \
                              "AND w.datname" EQ                                                   \
                              "pg_catalog.current_database() ORDER BY w.application_name" AS_CODES \
                                  LE WITH_TICKET(                                                  \
                                      "COALESCE((SELECT p.passed FROM @T p WHERE p.name" EQ        \
                                      "$1" TEXT "), 0)") ", w.application_name" AS_CODES           \
                                                         ", w.pid)"

/* ---------------------------------------------------------------- table.c */

/* A try was answered, and not granted. */
struct table_refusal {
    const struct dlock_info *info; /* a holder, or NULL: none is in our way but the line */
    const char *owner;             /* of the lock; our orphan's token if that has it */
    bool direct;                   /* the answer is from the session that we are connected to */
    int64_t ticket;                /* ours from now on */
    int64_t ahead;                 /* how many are before us in line; -1: not looked */
    bool held; /* try again in left_ms and turn_ms, or earlier; else in turn_ms (0: at once) */
    int64_t left_ms, turn_ms;
};
void table_refused(struct pg_backend *, const struct table_refusal *);
/* The answer was an error: nothing was granted, since the message was rolled back as a whole. */
void table_try_failed(struct pg_backend *, const struct pg_reply *);
/*
 * Does this answer our own statement? Then it has our token in the given column. A pooler that mixes up the answers
 * of its clients (see struct pg_conn) would make us believe in another client's grant. False: the acquire has failed.
 * At the first answer we also learn here whether there is a pooler.
 */
bool table_try_is_ours(struct pg_backend *, const struct pg_reply *, int columns, int pid,
                       int token);
/* Granted; be->fence and be->slot are set. */
void table_granted(struct pg_backend *, int64_t from);
/* What is to be done before a try: the state, and the time for its answer. */
void table_trying(struct pg_backend *);
/* The number in a kind as in a place in line, "n3"; 0: it has none. */
unsigned table_slots_of(const char *kind);
/* The holder column of a row. An older dlock, or a person, may have written something that is no record. */
void table_read_holder(struct dlock_info *, const char *holder, int64_t left_ms, int64_t fence);
/* text with its @ replaced, malloc'ed; NULL: out of memory. */
char *table_fill(const struct pg_backend *, const char *text);
/* n statements in one message; the texts are filled in. */
void table_send(struct pg_backend *, enum pg_tag, struct pg_statement *, int n);
/* A number of seconds for make_interval(). */
void table_seconds(char *buf, size_t size, int64_t ns);
/* The same: for how long a grant or a renewal is to last. */
void table_lasts(const struct pg_backend *, char *buf, size_t size);
/* The same: for how long the lock stays held after our release. False: it does not. */
bool table_stays(const struct pg_backend *, char *buf, size_t size);
extern const char table_check[];
/* Locks the name's row, if there is one. */
extern const char table_lock_row[];

/* A table beside the first one. */
struct table_more {
    const char *name, *columns; /* columns, number: for table_check */
    const char *number;
    bool checked;
};
/* table_send(); in front of them, once for each connection: is that table what we made? */
void table_send_checked(struct pg_backend *, enum pg_tag, const struct table_more *,
                        const struct pg_statement *, int n);

/* --------------------------------------------------------- table_shared.c */

/* What table.c calls; that file does not know the other one, which builds on it. */
struct table_shared {
    const char *schema; /* the statement that makes the second table */
    void (*send_try)(struct pg_backend *);
    void (*send_renew)(struct pg_backend *);
    /* left: a number of seconds for which the lock stays held; NULL: it does not. */
    void (*send_give_back)(struct pg_backend *, enum pg_tag, const char *token, const char *left);
    void (*send_sweep)(struct pg_backend *);
    void (*send_status)(struct pg_backend *);
    /* T_TRY and T_CONFIRM while an acquire is under way. */
    void (*answered)(struct pg_backend *, const struct pg_reply *);
    /* The kind of this waiter, as it stands in the line. */
    void (*kind)(const struct dlock_spec *, char buf[8]);
    /*
     * A writer that waits for readers or slots keeps a row in the second table, which later ones respect; it lives for
     * notice_life(), and is written anew after a third of that.
     */
    int64_t (*notice_life)(const struct pg_backend *);
    void (*send_notice)(struct pg_backend *);
    void (*withdraw_notice)(struct pg_backend *);
};

/* ----------------------------------------------------------- table_runs.c */

enum table_end {
    END_UNKNOWN, /* the row of the lock says it all */
    END_RECORDED,
    END_NOT_RECORDED
};

/* What table.c calls, with spec->once, for a status and to forget; as with struct table_shared. */
struct table_runs {
    const char *schema;
    int end_columns; /* in the answer to a release */
    /* The try, and what comes of it if it is granted. */
    void (*send_try)(struct pg_backend *, const struct pg_statement *try);
    /* False: this answers the try itself, which was not granted. */
    bool (*answered)(struct pg_backend *, const struct pg_reply *);
    void (*send_release)(struct pg_backend *);
    /* What the store has of our run's end; err: why not. */
    enum table_end (*ended)(const struct pg_backend *, const struct pg_reply *,
                            struct dlock_error *err);
    void (*send_sweep)(struct pg_backend *);
    void (*send_status)(struct pg_backend *);
    /* 1: there is a record, now in run; 0: there is none; negative: it is not one of ours. */
    int (*read_status)(struct pg_backend *, const struct pg_reply *, struct dlock_error *err);
    void (*send_forget)(struct pg_backend *);
    void (*forgotten)(struct pg_backend *, const struct pg_reply *);
};

#endif
