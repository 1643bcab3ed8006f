/*
 * run_record.h - the record of --once in the form of most stores:
 *
 *   "dlock-run1 STATE STATUS FENCE TOKEN BEGIN END KEPT RECORD"
 *
 * STATE: running, failed or succeeded. STATUS: as in struct dlock_run. FENCE: decimal, 0: none.
 * TOKEN: of the hold. BEGIN, END: Unix ms by the store's clock, END 0 during the run. KEPT: ms, the
 * writer's --once. RECORD: its holder record (identity.c). A store whose server knows the time lets
 * the server write BEGIN and END.
 */
#ifndef DLOCK_RUN_RECORD_H
#define DLOCK_RUN_RECORD_H

#include "backend.h"

/* With the terminating NUL. */
#define RUN_RECORD_MAX 1200

/*
 * Format spec->identity as RECORD, also for a script that composes the record. Returns the
 * length, or -1.
 */
int run_record_who(const struct dlock_spec *, char *buf, size_t size);

/* Format the whole record: r, and who as RECORD. Returns the length, or -1 (no room). */
int run_record_format(const struct dlock_run *r, const char *who, char *buf, size_t size);

/*
 * Parse a record. now_ms: the store's clock, for age_ns. False: no record, or a damaged one; *r is
 * untouched. No byte is trusted: sizes, numbers and characters are checked.
 */
bool run_record_parse(const char *text, size_t len, int64_t now_ms, struct dlock_run *r);

/*
 * A record may lie this far in the future, and counts as made now: a clock that was set back must
 * not repeat a success. ntpd makes no larger step by itself. A record beyond is no success, or a
 * forged record could suppress all runs. try.lua and table_runs.sql have the same number.
 */
#define RUN_RECORD_AHEAD_MS 1000000

/* dlock_run.age_ns of a record that was made ms ago. */
int64_t run_record_age(int64_t ms);

/* Must a run with this spec->once be skipped? */
bool run_record_skips(const struct dlock_run *, int64_t once);
/* A success that does not count because it lies in the future: true, and fill in the warning. */
bool run_record_ahead(const struct dlock_run *, const struct dlock_spec *,
                      struct dlock_error *warning);

/* Does the release record the end of a run? Otherwise the run has not begun, or not for sure. */
static inline bool run_record_begun(const struct dlock_spec *spec)
{
    return spec->once > 0 && spec->hold->begin == RUN_BEGINS;
}

/* Does the release record a success? It counts once the store has confirmed the record. */
static inline bool run_record_must(const struct dlock_spec *spec)
{
    return spec->once > 0 && spec->hold->ended && spec->hold->success;
}

/* Set state and status of r at the end of a hold, by spec->hold. */
void run_record_end(const struct dlock_spec *, struct dlock_run *r);

/* Fill err and return its code (DLOCK_EDATA, 65): what, foreign data, is in the record's place. */
int run_record_foreign(struct dlock_error *err, const struct dlock_spec *, const char *what);

const char *run_record_state(enum dlock_run_state);

#endif
