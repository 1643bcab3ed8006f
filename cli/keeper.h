/* keeper.h - acquires a lock, and keeps the lock while the command runs under a guard. */
#ifndef CLI_KEEPER_H
#define CLI_KEEPER_H

#include "command.h"
#include "uri.h"

/*
 * Acquire the locks, run the command under a guard, end what must be ended, release. uris: of LOCK,
 * then of --also; each is taken over and set to NULL. Returns the exit code, after the handles are
 * closed; may die by a signal instead.
 *
 * A plain file lock needs no guard, and for a command that is alone a guard is useless: when such a
 * lock is granted, *held becomes the handle, which the caller closes, the command has not been
 * started, and the result is 0. Else *held stays unchanged.
 */
int keeper_run(struct command *, struct dlock_uri **uris, dlock **held);

#endif
