/* break.h - what break.c and break_file.c share. */
#ifndef CLI_BREAK_H
#define CLI_BREAK_H

#include "options.h"
#include "signals.h"

/* Between two looks whether the hold is over. */
#define BREAK_LOOK_FIRST (50 * DLOCK_MSEC)
#define BREAK_LOOK_MOST (500 * DLOCK_MSEC)

/* break.c: how long to wait for the end of the hold. */
int64_t break_time(const struct options *, const struct dlock_info *hold);
/* break.c: another process (NULL: not known) has the lock now. Returns the exit code. */
int break_changed(const struct options *, const dlock *, const struct dlock_info *now);
/* break_file.c: end a hold of a file. -1: the hold is over; else an exit code. */
int break_file(const struct options *, const struct sigstate *, dlock *,
               const struct dlock_info *hold);

#endif
