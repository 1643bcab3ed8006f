/*
 * proc_locks.h - holders and waiters of a file lock, as this machine's kernel knows them; for the
 * backend and for dlock's descriptor form.
 */
#ifndef DLOCK_PROC_LOCKS_H
#define DLOCK_PROC_LOCKS_H

#include "dlock.h"

#include <sys/types.h>

enum proc_locks_kind {
    PROC_LOCKS_FLOCK, /* flock(2) */
    PROC_LOCKS_FCNTL, /* fcntl(2), of a process or of an open file description, on any part of the file */
    PROC_LOCKS_LEASE /* leases (F_SETLEASE) that keep others from opening the file to read */
};

/* A file as the kernel names it in /proc/locks, and which of its locks to look for. */
struct proc_locks_file {
    dev_t dev;
    ino_t ino;
    bool exact; /* false (btrfs): several files may have the same name there */
    enum proc_locks_kind kind;
};

struct proc_lock {
    long
        pid; /* the process that took the lock, 0: unknown; others may keep the descriptor after its end */
    bool waiter, shared;
    bool
        unnamed; /* not even a process that has the file open can be told from those of another lock */
    int place; /* of a waiter, from 1 */
};

/* The name of fd's file; fd may be an O_PATH one. 0 or -errno. */
int proc_locks_file(int fd, struct proc_locks_file *);
/* Fill at most max entries, holders first. Returns their number, or -errno. */
int proc_locks_read(const struct proc_locks_file *, struct proc_lock *, int max);
/* Has the process pid a lock of that kind on the file, as far as can be seen? Also true without a right to look. */
bool proc_locks_may_have(long pid, const struct proc_locks_file *);
/* Does /proc/locks show every lock of this kernel, those of other PID namespaces too? */
bool proc_locks_complete(void);
/*
 * Fill *info for l. A holder's pid is that of a process that has the lock now: the one that took it, else one that has
 * the open file from it; 0, and no user and command, if none is known.
 */
void proc_locks_describe(const struct proc_lock *l, const struct proc_locks_file *,
                         struct dlock_info *info);

#endif
