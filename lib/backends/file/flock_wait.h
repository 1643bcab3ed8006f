/* flock_wait.h - wait for flock(2) beside a poll loop. */
#ifndef DLOCK_FLOCK_WAIT_H
#define DLOCK_FLOCK_WAIT_H

#include <poll.h>
#include <stdint.h>

struct flock_wait;

/*
 * Begin to wait for op (LOCK_SH or LOCK_EX) on fd, which stays the caller's. A wait that was
 * cancelled may have taken the lock all the same: the caller closes fd (or unlocks it, or tries
 * once more) when flock_wait_check has said that the wait is over. Returns 0 or -ENOMEM.
 */
int flock_wait_start(struct flock_wait **, int fd, int op);
/* What to poll for, at most one entry. *wake_at is only lowered; now is on its clock. */
int flock_wait_interest(const struct flock_wait *, struct pollfd *, int cap, int64_t now,
                        int64_t *wake_at);
/* 1: over, *sys is 0 (locked), ECANCELED, or the errno of flock(2). 0: not yet. Never blocks. */
int flock_wait_check(struct flock_wait *, int *sys);
/* Ask the wait to end. Never blocks: go on with interest and check. */
void flock_wait_cancel(struct flock_wait *);
/* Ends a wait that is not over, within 100 ms. NULL is fine. */
void flock_wait_free(struct flock_wait *);

#endif
