/* break.h - what --break in one Redis server and in a Redlock share. */
#ifndef DLOCK_REDIS_BREAK_H
#define DLOCK_REDIS_BREAK_H

#include "backend.h"
#include "script.h"
#include "util.h"

/* The arguments of ASK_BREAK; by: room for an argument. */
void redis_break_args(const struct dlock_spec *, const struct dlock_question *,
                      struct redis_script_args *, char by[DLOCK_BREAKER_SIZE]);
/* The holder is not dlock; returns the code. */
int redis_break_foreign(const struct dlock_spec *, struct dlock_error *);

#endif
