/*
 * proc_locks.h - holders and waiters of a flock(2) lock, as this machine's kernel knows them; for the
 * backend and for dlock's descriptor form.
 */
#ifndef DLOCK_PROC_LOCKS_H
#define DLOCK_PROC_LOCKS_H

#include "dlock.h"

#include <sys/types.h>

/* A file as the kernel names it in /proc/locks. */
struct proc_locks_file {
    dev_t dev;
    ino_t ino;
    bool exact; /* false (btrfs): several files may have the same name there */
    bool lease; /* look for leases on it (F_SETLEASE), not for flock(2) locks */
};

struct proc_lock {
    long
        pid; /* the process that called flock(2), 0: unknown; others may keep the descriptor after its end */
    bool waiter, shared;
    int place; /* of a waiter, from 1 */
};

/* The name of fd's file; fd may be an O_PATH one. 0 or -errno. */
int proc_locks_file(int fd, struct proc_locks_file *);
/* Fill at most max entries, holders first. Returns their number, or -errno. */
int proc_locks_read(const struct proc_locks_file *, struct proc_lock *, int max);
/* Does /proc/locks show every flock(2) lock of this kernel, those of other PID namespaces too? */
bool proc_locks_complete(void);
/*
 * Fill *info for l. A holder's pid is that of a process that has the lock now: the one that took it, else one that has
 * the open file from it; 0, and no user and command, if none is known.
 */
void proc_locks_describe(const struct proc_lock *l, const struct proc_locks_file *,
                         struct dlock_info *info);

#endif
