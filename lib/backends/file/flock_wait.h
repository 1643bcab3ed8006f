/* flock_wait.h - wait for flock(2) beside a poll loop; for the backend and for dlock's descriptor form. */
#ifndef DLOCK_FLOCK_WAIT_H
#define DLOCK_FLOCK_WAIT_H

#include <poll.h>
#include <stdint.h>

struct flock_wait;

/*
 * Begin to wait for op (LOCK_SH or LOCK_EX) on fd, which stays the caller's. A cancelled wait may still
 * have taken the lock: when flock_wait_check() says that the wait is over, the caller closes fd, unlocks
 * it or tries once more. Returns 0 or -ENOMEM.
 */
int flock_wait_start(struct flock_wait **, int fd, int op);
/* What to poll for: returns 0 or 1 entries. Lowers *wake_at; now is the time on the same clock. */
int flock_wait_interest(const struct flock_wait *, struct pollfd *, int cap, int64_t now,
                        int64_t *wake_at);
/* 1: over, *sys is 0 (locked), ECANCELED, or the errno of flock(2). 0: not yet. Never blocks. */
int flock_wait_check(struct flock_wait *, int *sys);
/* Ask the wait to end. Never blocks: continue with interest and check. */
void flock_wait_cancel(struct flock_wait *);
/* Free; ends a wait that is not over, and blocks for up to 100 ms then. NULL is fine. */
void flock_wait_free(struct flock_wait *);

#endif
