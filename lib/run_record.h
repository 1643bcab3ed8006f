/*
 * run_record.h - the record of --once in the form that most stores keep:
 *
 *   "dlock-run1 STATE STATUS FENCE TOKEN BEGIN END KEPT RECORD"
 *
 * STATE: running, failed or succeeded. STATUS: as in struct dlock_run. FENCE: decimal, 0: none. TOKEN: of the hold.
 * BEGIN, END: Unix ms by the store's clock, END 0 while it runs. KEPT: ms, the writer's --once. RECORD: its holder record
 * (identity.c). A store whose server knows the time lets the server write BEGIN and END.
 */
#ifndef DLOCK_RUN_RECORD_H
#define DLOCK_RUN_RECORD_H

#include "backend.h"

/* With its terminating NUL. */
#define RUN_RECORD_MAX 1200

/*
 * What is kept of spec->identity as the last part, when the record is written: the length, or -1. Where a script puts the
 * record together, it takes this.
 */
int run_record_who(const struct dlock_spec *, char *buf, size_t size);

/* The whole text. kept_ns, status, times, state, fence and token are those of r. Returns the length, or -1 (no room). */
int run_record_format(const struct dlock_run *r, const char *who, char *buf, size_t size);

/*
 * Read such a text. now_ms: the store's clock, for age_ns. False: it is none, or is damaged; *r is untouched. No byte of it
 * is believed: sizes, numbers and characters are checked.
 */
bool run_record_parse(const char *text, size_t len, int64_t now_ms, struct dlock_run *r);

/* Must a run with this spec->once be skipped? */
bool run_record_skips(const struct dlock_run *, int64_t once);

/* What to record at the end of a hold: state, status of r, by spec->hold. */
void run_record_end(const struct dlock_spec *, struct dlock_run *r);

/* Fill err: something that is no run record is in its place (DLOCK_EDATA, 65); returns its code. what: where that is. */
int run_record_foreign(struct dlock_error *err, const struct dlock_spec *, const char *what);

const char *run_record_state(enum dlock_run_state);

#endif
