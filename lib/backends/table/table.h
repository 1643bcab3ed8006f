/*
 * table.h - the lease table, in the dialect of a store, and what is shared by its files: table.c
 * (exclusive locks, and the parts common to all kinds), shared.c (shared locks and slots), break.c,
 * runs.c (run records) and send.c.
 */
#ifndef DLOCK_SQL_TABLE_H
#define DLOCK_SQL_TABLE_H

#include "store.h"

#define LONGEST_TURN (2800 * DLOCK_MSEC) /* see turn() */
#define LOOK_ONE_OF 12 /* every half a minute, a waiter in line looks at its place */

/* The owner of the name's row while readers or slots hold the lock begins so. */
#define SHARED_OWNER "shared:"
/* --min-hold: owner after a release; the token follows. A late renewal cannot prolong the hold. */
#define OVER_OWNER "over:"
/* A marked hold: the owner, or the token of a reader or slot; the token follows. */
#define BREAK_OWNER "break:"

#define RELEASE_COLUMNS "released holder token called" /* of the answer to a release */

/* ----------------------------------------------------------------- dialect */

struct table_refusal;

/* The waiters. Slots that are NULL: nothing to do. */
struct table_line {
    /* A new acquire begins, or the connection is another one. */
    void (*reset)(struct sql_store *, bool acquire);
    /* Fill in the line's own places of each message, TABLE_LINE_PLACES at most. */
    void (*places)(const struct sql_store *, struct sql_place *);
    /* A try is about to be sent. */
    void (*trying)(struct sql_store *);
    /*
     * A try was refused, and we wait: join the line, or try again in time. stands: this session has
     * a place in the line, which still counts.
     */
    void (*wait)(struct sql_store *, const struct table_refusal *, bool stands);
    /* The answer to T_WAIT, T_LISTEN or T_LISTENING. */
    void (*answered)(struct sql_store *, const struct sql_reply *);
    /* Calls have perhaps arrived: set acquire.try_at. */
    void (*heed)(struct sql_store *);
    /* We have the lock, by this answer. */
    void (*granted)(struct sql_store *, const struct sql_reply *);
    /* The statement of a release that need not look at the waiters; NULL: this one must. */
    const char *(*leave)(const struct sql_store *);
    /* The acquire ends without the lock. True: release has something of ours to end. */
    bool (*give_up)(struct sql_store *);
};
#define TABLE_LINE_PLACES 16

/*
 * The statements, which are in the folder sql of each store; comments there say what they do. NULL:
 * the store does without.
 */
/* clang-format off */
#define TABLE_STATEMENTS(X)                                                                        \
    X(schema) X(shared_schema) X(runs_schema) X(grant_schema) X(grace) X(make) X(take) X(try)      \
    X(renew) X(release) X(call) X(lock_row) X(mark) X(sweep) X(status) X(list) X(list_shared)      \
    X(shared_free) X(shared_look) X(shared_lock) X(shared_grant) X(shared_renew) X(shared_stay)    \
    X(shared_release) X(shared_call) X(shared_mark) X(shared_sweep) X(shared_status)               \
    X(shared_notice) X(shared_withdraw) X(runs_begin) X(runs_end) X(runs_forget) X(runs_sweep)     \
    X(runs_status)
/* clang-format on */
#define TABLE_STATEMENT_FIELD(name) const char *name;

struct table_dialect {
    const char *path;              /* begins each message */
    const char *not_durable;       /* nothing waits for the commit */
    const char *check, *check_end; /* --check */
    TABLE_STATEMENTS(TABLE_STATEMENT_FIELD)
    const struct table_line *line;
    /*
     * Add what finds out whether the tables are as --schema makes them: that of the locks, where
     * the connection is guarded, and these.
     */
    void (*guard)(const struct sql_store *, struct sql_message *, bool holders, bool runs);
    /* As of struct sql_protocol: an error by guard. */
    bool (*found)(struct sql_store *, struct sql_reply *);
};
extern const struct sql_protocol table_lease;

/* ------------------------------------------------------------------ send.c */

/* Beside the table of the locks. */
enum table_more { NO_MORE, AND_HOLDERS, AND_RUNS };
/*
 * Send the statements in one message, behind a check of the tables once for each connection. own:
 * further places, or NULL.
 */
void table_send(struct sql_store *, enum sql_tag, enum table_more, const struct sql_place *own,
                const char *const *statements, size_t n);
/* The error of an answer that is not ours, or unconfirmed; code: of an answer without sense. */
void table_not_ours(const struct sql_store *, const struct sql_reply *, int code,
                    struct dlock_error *);
/* --min-hold: the rest of the hold after our release, in ms; 0: none. */
int64_t table_stays_ms(const struct sql_store *);
/* sql_protocol.schema */
char *table_schema(const struct sql_store *);

/* ----------------------------------------------------------------- table.c */

/* A try was answered, and not granted. */
struct table_refusal {
    const struct dlock_info *info; /* a holder, or NULL: only the line is in our way */
    const char *owner;             /* of the lock; the orphan's token if the orphan holds it */
    bool direct;                   /* answered by the session of our connection */
    int64_t ticket;                /* ours from now on */
    int64_t ahead;                 /* waiters before us in line; -1: unknown */
    bool held; /* try again in left_ms and turn_ms, or earlier; else in turn_ms (0: at once) */
    int64_t left_ms, turn_ms;
    const struct sql_rows *rows; /* the answer to the statement try or look */
};
void table_refused(struct sql_store *, const struct table_refusal *);
/* The answer was an error. Nothing was granted, unless the reply is unclear: then an orphan. */
void table_try_failed(struct sql_store *, const struct sql_reply *);
/*
 * Does the reply answer our own statement: a row with these columns, pid and token among them, and
 * our token? A pooler that mixes up answers (see struct sql_conn) would make us believe in another
 * client's grant. False: the acquire has failed. The first answer also tells whether there is a
 * pooler.
 */
bool table_try_is_ours(struct sql_store *, const struct sql_reply *, const char *columns);
/* Granted by this answer; be->fence and be->slot are set. */
void table_granted(struct sql_store *, const struct sql_reply *);
void table_send_try(struct sql_store *);
/* Set the time of the next try, for a client without calls. */
void table_try_in_time(struct sql_store *, const struct table_refusal *);
/* When a waiter in line polls next. */
int64_t table_next_poll(const struct sql_store *);
static inline bool table_is_shared(const struct sql_store *be)
{
    return be->spec->mode != DLOCK_MODE_EXCLUSIVE;
}
/* Begin anew on this connection, whose tables are to be checked in another way. */
void table_ready_again(struct sql_store *);
/* Before a try: set the state, and the time for the answer. */
void table_trying(struct sql_store *);
/* The number in a kind "n3", as in a place in line; 0: none. */
unsigned table_slots_of(const char *kind);
/* The holder column of a row. An older dlock, or a person, may have written no record. */
void table_read_holder(struct dlock_info *, const char *holder, int64_t left_ms, int64_t fence);
/* The owner of a row, or the token of a reader or slot: token, over and broken. */
void table_read_owner(struct dlock_info *, const char *owner);

/* ---------------------------------------------------------------- shared.c */

void shared_send_try(struct sql_store *);
/* stays_ms: see table_stays_ms(). */
void shared_send_give_back(struct sql_store *, enum sql_tag, const char *token, int64_t stays_ms);
/* T_TRY and T_CONFIRM while an acquire is under way. first: the answer to the statement free. */
void shared_answered(struct sql_store *, const struct sql_reply *, bool first);
/* The kind of this waiter, as in the line. */
void shared_kind(const struct dlock_spec *, char buf[8]);
/*
 * A writer that waits for readers or slots keeps a row in the second table, which later waiters
 * respect. The row lives for shared_notice_life(), and is written anew after a third of the time.
 */
int64_t shared_notice_life(const struct sql_store *);
void shared_send_notice(struct sql_store *);
void shared_withdraw_notice(struct sql_store *);

/* ----------------------------------------------------------------- break.c */

/* STEP_MARK and STEP_FREE: T_BREAK and T_FREE. */
void break_send(struct sql_store *);
void break_answered(struct sql_store *, const struct sql_reply *);

/* ------------------------------------------------------------------ runs.c */

enum table_end {
    END_UNKNOWN, /* only the row of the lock tells */
    END_RECORDED,
    END_NOT_RECORDED
};
#define RUNS_END_COLUMNS RELEASE_COLUMNS " written ended" /* of a release with the end of a run */

/*
 * The answer to a try, or a renewal, with the statement runs_begin. False: the try or renewal in
 * front was refused, and this is its answer.
 */
bool runs_answered(struct sql_store *, const struct sql_reply *);
bool runs_begun(struct sql_store *, const struct sql_reply *);
void runs_send_release(struct sql_store *);
/* The end of our run in the store after runs_send_release(); err: why the end is missing. */
enum table_end runs_ended(const struct sql_store *, const struct sql_reply *,
                          struct dlock_error *err);
/* 1: be->run has the record; 0: no record; negative: the row is foreign. */
int runs_read_status(struct sql_store *, const struct sql_reply *, struct dlock_error *err);
/* STEP_FORGET: T_FORGET. */
void runs_send_forget(struct sql_store *);
void runs_forgotten(struct sql_store *, const struct sql_reply *);

#endif
