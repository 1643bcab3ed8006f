/*
 * flock_wait.h - a try to lock an open file, and a wait beside a poll loop; for the backend and for
 * dlock's descriptor form.
 *
 * ofd: not flock(2), but a lock of the open file description on all of the file (fcntl(2),
 * F_OFD_SETLK). Such a lock excludes fcntl(2) locks of other processes, but not flock(2) locks,
 * except on NFS, where the two are the same. It too belongs to the open file. LOCK_EX then needs a
 * descriptor that is open for writing, LOCK_SH for reading: else EBADF.
 */
#ifndef DLOCK_FLOCK_WAIT_H
#define DLOCK_FLOCK_WAIT_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

struct flock_wait;

/* LOCK_SH, LOCK_EX or LOCK_UN, without waiting. 0 or an errno; EWOULDBLOCK: the lock is held. */
int flock_try(int fd, int op, bool ofd);
/*
 * F_RDLCK, F_WRLCK or F_UNLCK on bytes, of the open file description. len 0: to the end, however
 * long the file becomes. Returns as flock_try().
 */
int ofd_try(int fd, short type, int64_t start, int64_t len);
/*
 * Begin to wait for op (LOCK_SH or LOCK_EX) on fd, which stays the caller's. A cancelled wait may
 * still have taken the lock: when flock_wait_check() reports the end of the wait, the caller closes
 * fd, unlocks it or tries once more. Returns 0 or -ENOMEM.
 */
int flock_wait_start(struct flock_wait **, int fd, int op, bool ofd);
/* What to poll for: returns 0 or 1 entries. Lowers *wake_at; now is the time on the same clock. */
int flock_wait_interest(const struct flock_wait *, struct pollfd *, int cap, int64_t now,
                        int64_t *wake_at);
/* 1: over, *sys is 0 (locked), ECANCELED, or the errno of the call. 0: not yet. Never blocks. */
int flock_wait_check(struct flock_wait *, int *sys);
/* Ask the wait to end. Never blocks: continue with interest and check. */
void flock_wait_cancel(struct flock_wait *);
/* Free; first ends an unfinished wait, and blocks for up to 100 ms. NULL is fine. */
void flock_wait_free(struct flock_wait *);
/* Free in a child of the process that started the wait: no thread is there. NULL is fine. */
void flock_wait_close_in_child(struct flock_wait *);

#endif
