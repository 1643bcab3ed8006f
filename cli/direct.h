/* direct.h - runs a command under a plain file lock, without a guard. */
#ifndef CLI_DIRECT_H
#define CLI_DIRECT_H

#include "command.h"

/*
 * Run the command under the held lock lk, whose descriptor the command inherits. We are the parent
 * and do the signal, terminal and tree work. Closes lk. Returns the exit code; may die by a signal
 * instead. With -F this process becomes the command: returns only when exec failed.
 */
int direct_run(struct command *, dlock *lk);

#endif
