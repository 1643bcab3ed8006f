/* kind.h - a holder or waiter and how it shares the lock, for people and for programs. */
#ifndef CLI_KIND_H
#define CLI_KIND_H

#include "dlock.h"
#include "json.h"

#define KIND_TEXT_SIZE 48

/* "", " (shared)", " (slot 2 of 3)", or of a waiter " (for one of 3 slots)". Returns buf. */
const char *kind_text(const struct dlock_info *, char buf[KIND_TEXT_SIZE]);
/* The holder of a file lock that no process of this PID namespace has, and no record names. */
bool kind_is_unknown(const struct dlock_info *);
/* The members mode, slots and slot; none for an exclusive lock. */
void kind_json(struct json *, const struct dlock_info *);
/* The process: host, pid, user, command and note. cut: for a line of --events. */
void kind_json_process(struct json *, const struct dlock_info *, bool cut);
/* The same with the members of kind_json, and since when. */
void kind_json_holder(struct json *, const struct dlock_info *, bool cut);
/* A holder or waiter in full, for a query: its lease, fence, token and mark, too. */
void kind_json_hold(struct json *, const struct dlock_info *);
/* The process that a run record names, as a holder. */
struct dlock_info kind_of_run(const struct dlock_run *);

#endif
