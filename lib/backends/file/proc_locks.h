/*
 * proc_locks.h - who holds and who waits for flock(2) on a file, as far as this machine's kernel
 * knows.
 */
#ifndef DLOCK_PROCLOCKS_H
#define DLOCK_PROCLOCKS_H

#include "dlock.h"

#include <sys/types.h>

/* A file as the kernel names it in /proc/locks. */
struct dlock_lockfile {
    dev_t dev;
    ino_t ino;
    bool exact; /* false (btrfs): several files may share this name */
};

struct dlock_plock {
    long pid; /* who called flock(2); may be gone while a child keeps the descriptor */
    bool waiter, shared;
    int place; /* of a waiter, from 1 */
};

/* fd may be an O_PATH one. 0 or -errno. */
int dlock_lockfile_of(int fd, struct dlock_lockfile *);
/* At most max entries, holders first. How many, or -errno. */
int dlock_proclocks(const struct dlock_lockfile *, struct dlock_plock *, int max);
/* Does /proc/locks show every flock(2) lock of this kernel, those of other PID namespaces too? */
bool dlock_proclocks_complete(void);
/*
 * Fill *info for l: host, user and command are left empty when the process is known not to hold it
 * any more.
 */
void dlock_proclocks_describe(const struct dlock_plock *l, const struct dlock_lockfile *,
                              struct dlock_info *info);

#endif
