/* direct.h - runs a command under a plain file lock, without a guard. */
#ifndef CLI_DIRECT_H
#define CLI_DIRECT_H

#include "command.h"

/*
 * Run the command under the lock that lk holds; it inherits the descriptor. We are its parent and
 * do the signal, terminal and tree work. Closes lk. Returns the exit code; may die by a signal
 * instead. With -F it becomes the command, and returns only when exec failed.
 */
int direct_run(struct command *, dlock *lk);

#endif
