/*
 * table.h - shared by the files of the lease table: table.c (exclusive locks, and the parts common
 * to all kinds), table_shared.c (shared locks and slots), table_break.c, table_runs.c (run records)
 * and table_sql.c (what is sent).
 */
#ifndef DLOCK_PG_TABLE_H
#define DLOCK_PG_TABLE_H

#include "postgres.h"
#include "sql.h"

#define LONGEST_TURN (2800 * DLOCK_MSEC) /* see turn() */
#define LOOK_ONE_OF 12 /* every half a minute, a waiter in line looks at its place */

/* The owner of the name's row while readers or slots hold the lock begins so. */
#define SHARED_OWNER "shared:"
/* --min-hold: owner after a release; the token follows. A late renewal cannot prolong the hold. */
#define OVER_OWNER "over:"
/* A marked hold: the owner, or the token of a reader or slot; the token follows. */
#define BREAK_OWNER "break:"

#define RELEASE_COLUMNS "released holder token called" /* of the answer to a release */

/* ------------------------------------------------------------ table_sql.c */

/* Beside the table of the locks. */
enum table_more { NO_MORE, AND_HOLDERS, AND_RUNS };
/*
 * Send the statements in one message, behind a check of the tables once for each connection. own:
 * further places, or NULL.
 */
void table_send(struct pg_backend *, enum pg_tag, enum table_more, const struct pg_place *own,
                const char *const *statements);
/* The error of an answer that is not ours, or unconfirmed; code: of an answer without sense. */
void table_not_ours(const struct pg_backend *, const struct pg_reply *, int code,
                    struct dlock_error *);
/* --min-hold: the rest of the hold after our release, in ms; 0: none. */
int64_t table_stays_ms(const struct pg_backend *);
/* pg_protocol.schema */
char *table_schema(const struct pg_backend *);

/* ---------------------------------------------------------------- table.c */

/* A try was answered, and not granted. */
struct table_refusal {
    const struct dlock_info *info; /* a holder, or NULL: only the line is in our way */
    const char *owner;             /* of the lock; the orphan's token if the orphan holds it */
    bool direct;                   /* answered by the session of our connection */
    int64_t ticket;                /* ours from now on */
    int64_t ahead;                 /* waiters before us in line; -1: unknown */
    bool held; /* try again in left_ms and turn_ms, or earlier; else in turn_ms (0: at once) */
    int64_t left_ms, turn_ms;
    int awaited, before; /* if we looked: pids as in struct table_state; awaited may be 0 */
};
void table_refused(struct pg_backend *, const struct table_refusal *);
/* The answer was an error: nothing was granted, since the message was rolled back as a whole. */
void table_try_failed(struct pg_backend *, const struct pg_reply *);
/*
 * Does the reply answer our own statement: a row with these columns, pid and token among them, and
 * our token? A pooler that mixes up answers (see struct pg_conn) would make us believe in a foreign
 * grant. False: the acquire has failed. The first answer also tells whether there is a pooler.
 */
bool table_try_is_ours(struct pg_backend *, const struct pg_reply *, const char *columns);
/* Granted; be->fence and be->slot are set. */
void table_granted(struct pg_backend *, int64_t from);
/* Before a try: set the state, and the time for the answer. */
void table_trying(struct pg_backend *);
/* The number in a kind "n3", as in a place in line; 0: none. */
unsigned table_slots_of(const char *kind);
/* The holder column of a row. An older dlock, or a person, may have written no record. */
void table_read_holder(struct dlock_info *, const char *holder, int64_t left_ms, int64_t fence);
/* The owner of a row, or the token of a reader or slot: token, over and broken. */
void table_read_owner(struct dlock_info *, const char *owner);

/* --------------------------------------------------------- table_shared.c */

void shared_send_try(struct pg_backend *);
/* stays_ms: see table_stays_ms(). */
void shared_send_give_back(struct pg_backend *, enum pg_tag, const char *token, int64_t stays_ms);
/* T_TRY and T_CONFIRM while an acquire is under way. first: the answer to the statement free. */
void shared_answered(struct pg_backend *, const struct pg_reply *, bool first);
/* The kind of this waiter, as in the line. */
void shared_kind(const struct dlock_spec *, char buf[8]);
/*
 * A writer that waits for readers or slots keeps a row in the second table, which later waiters
 * respect. The row lives for shared_notice_life(), and is written anew after a third of the time.
 */
int64_t shared_notice_life(const struct pg_backend *);
void shared_send_notice(struct pg_backend *);
void shared_withdraw_notice(struct pg_backend *);

/* ---------------------------------------------------------- table_break.c */

/* STEP_MARK and STEP_FREE: T_BREAK and T_FREE. */
void break_send(struct pg_backend *);
void break_answered(struct pg_backend *, const struct pg_reply *);

/* ----------------------------------------------------------- table_runs.c */

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
bool runs_answered(struct pg_backend *, const struct pg_reply *);
bool runs_begun(struct pg_backend *, const struct pg_reply *);
void runs_send_release(struct pg_backend *);
/* The end of our run in the store after runs_send_release(); err: why the end is missing. */
enum table_end runs_ended(const struct pg_backend *, const struct pg_reply *,
                          struct dlock_error *err);
/* 1: be->run has the record; 0: no record; negative: the row is foreign. */
int runs_read_status(struct pg_backend *, const struct pg_reply *, struct dlock_error *err);
/* STEP_FORGET: T_FORGET. */
void runs_send_forget(struct pg_backend *);
void runs_forgotten(struct pg_backend *, const struct pg_reply *);

#endif
