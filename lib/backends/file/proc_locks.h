/*
 * proc_locks.h - who holds and who waits for flock(2) on a file, as far as this machine's kernel
 * knows.
 */
#ifndef DLOCK_PROC_LOCKS_H
#define DLOCK_PROC_LOCKS_H

#include "dlock.h"

#include <sys/types.h>

/* A file as the kernel names it in /proc/locks. */
struct proc_locks_file {
    dev_t dev;
    ino_t ino;
    bool exact; /* false (btrfs): several files may share this name */
};

struct proc_lock {
    long pid; /* who called flock(2); may be gone while a child keeps the descriptor */
    bool waiter, shared;
    int place; /* of a waiter, from 1 */
};

/* fd may be an O_PATH one. 0 or -errno. */
int proc_locks_file(int fd, struct proc_locks_file *);
/* At most max entries, holders first. How many, or -errno. */
int proc_locks_read(const struct proc_locks_file *, struct proc_lock *, int max);
/* Does /proc/locks show every flock(2) lock of this kernel, those of other PID namespaces too? */
bool proc_locks_complete(void);
/*
 * Fill *info for l: host, user and command are left empty when the process is known not to hold it
 * any more.
 */
void proc_locks_describe(const struct proc_lock *l, const struct proc_locks_file *,
                         struct dlock_info *info);

#endif
