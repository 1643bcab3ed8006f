/* flock_wait.h - wait for flock(2) beside a poll loop. */
#ifndef DLOCK_FLOCKWAIT_H
#define DLOCK_FLOCKWAIT_H

#include <poll.h>
#include <stdint.h>

struct dlock_flockwait;

/*
 * Begin to wait for op (LOCK_SH or LOCK_EX) on fd, which stays the caller's. A wait that was
 * cancelled may have taken the lock all the same: the caller closes fd (or unlocks it, or tries
 * once more) when dlock_flockwait_check has said that the wait is over. Returns 0 or -ENOMEM.
 */
int dlock_flockwait_start(struct dlock_flockwait **, int fd, int op);
/* What to poll for, at most one entry. *wake_at is only lowered; now is on its clock. */
int dlock_flockwait_interest(const struct dlock_flockwait *, struct pollfd *, int cap, int64_t now,
                             int64_t *wake_at);
/* 1: over, *sys is 0 (locked), ECANCELED, or the errno of flock(2). 0: not yet. Never blocks. */
int dlock_flockwait_check(struct dlock_flockwait *, int *sys);
/* Ask the wait to end. Never blocks: go on with interest and check. */
void dlock_flockwait_cancel(struct dlock_flockwait *);
/* Ends a wait that is not over, within 100 ms. NULL is fine. */
void dlock_flockwait_free(struct dlock_flockwait *);

#endif
