/* modes.h - the modes of the program, for main's table. Each returns the exit code. */
#ifndef CLI_MODES_H
#define CLI_MODES_H

#include "options.h"
#include "signals.h"

/* run.c: MODE_RUN: acquire, run the command, release. May die by a signal instead. */
int run_mode(const struct options *, const struct sigstate *);
/* status.c: MODE_STATUS and MODE_SCHEMA. */
int status_mode(const struct options *, const struct sigstate *);
int schema_mode(const struct options *, const struct sigstate *);
/* forget.c: MODE_FORGET. */
int forget_mode(const struct options *, const struct sigstate *);
/* list.c: MODE_LIST and MODE_PRINT_NAMES. */
int list_mode(const struct options *, const struct sigstate *);
int names_mode(const struct options *, const struct sigstate *);
/* break.c: MODE_BREAK. check.c: MODE_CHECK. */
int break_mode(const struct options *, const struct sigstate *);
int check_mode(const struct options *, const struct sigstate *);
/* held_mode.c: MODE_HELD. */
int held_mode(const struct options *, const struct sigstate *);
/* unlock.c: MODE_FD and MODE_UNLOCK, flock(1)'s descriptor form. */
int fdlock_mode(const struct options *, const struct sigstate *);

#endif
