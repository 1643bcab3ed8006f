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
    PROC_LOCKS_FCNTL, /* fcntl(2), of a process or an open file description, on any bytes */
    PROC_LOCKS_LEASE  /* leases (F_SETLEASE) that let no process open the file to read */
};

/* A file as the kernel names it in /proc/locks, and which of its locks to look for. */
struct proc_locks_file {
    dev_t dev;
    ino_t ino;  /* 0: of all files of the device (proc_locks_read_all) */
    bool exact; /* false (btrfs): several files may have the same name there */
    enum proc_locks_kind kind;
};

struct proc_lock {
    long pid;     /* the process that took the lock, 0: unknown; the descriptor may be passed on */
    bool unnamed; /* no process that has the file open can be named as the holder, either */
    bool waiter, shared;
    int place; /* of a waiter, from 1 */
    ino_t ino;
    /* Of proc_locks_read_all(): a process that has the lock now; -1: none is known. Else 0. */
    long carrier;
};

/* The mount of fd in /proc/self/mountinfo, a line, malloc'ed; NULL: not known, or no memory. */
char *proc_locks_mount(int fd);
/* Find the name of fd's file; fd may be an O_PATH descriptor. 0 or -errno. */
int proc_locks_file(int fd, struct proc_locks_file *);
/* Fill at most max entries, holders first. Returns their number, or -errno. */
int proc_locks_read(const struct proc_locks_file *, struct proc_lock *, int max);

/*
 * All locks of one kind on a device, and the processes that have them, found in one look. Thousands
 * of looks for one file each would take minutes.
 */
struct proc_locks_all {
    struct proc_locks_file file; /* ino 0 */
    struct proc_lock *at;        /* n, by inode, in the kernel's order; room for cap */
    int n, cap;
};
/* 0 or -errno. The caller calls proc_locks_drop(), also after an error. */
int proc_locks_read_all(const struct proc_locks_file *, struct proc_locks_all *);
void proc_locks_drop(struct proc_locks_all *);
/* As proc_locks_read(), for one file of them. */
int proc_locks_pick(const struct proc_locks_all *, ino_t, struct proc_lock *out, int max);

/* Has the process pid a lock of this kind on the file? True also without permission to look. */
bool proc_locks_may_have(long pid, const struct proc_locks_file *);
/* Find the holder of a lock, of flock(2) or fcntl(2), on a removed file that was where fd's is. */
bool proc_locks_removed(int fd, bool fcntl, struct dlock_info *);
/* Does /proc/locks show every lock of this kernel, in all PID namespaces? */
bool proc_locks_complete(void);
/*
 * Fill *info for l. A holder's pid names a process that has the lock now: the process that
 * took it, else a process with the open file; 0, and no user and command, if none is known.
 */
void proc_locks_describe(const struct proc_lock *l, const struct proc_locks_file *,
                         struct dlock_info *info);

#endif
