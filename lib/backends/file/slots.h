/*
 * slots.h - the slots of a lock file: byte locks of the open file description (fcntl(2),
 * F_OFD_SETLK) far behind its end, beside a shared flock(2). All of them belong to the open file,
 * and end with its last close.
 */
#ifndef DLOCK_SLOTS_H
#define DLOCK_SLOTS_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * Register fd as used with n slots, until it is closed. 0; an errno; EWOULDBLOCK: a foreign program
 * has locked these bytes. *in_use: 0, or the different number in use; then fd is of no use. Of two
 * concurrent callers with different numbers at least one learns of the conflict. fd must be open
 * for reading and writing.
 */
int slots_register(int fd, unsigned n, unsigned *in_use);
/* Take the lowest free slot for process pid. *slot: from 0. 0 or an errno; EWOULDBLOCK: none. */
int slots_take(int fd, unsigned n, long pid, int *slot);
/* Show the process pid as a waiter for a slot, until slots_take() succeeds. */
void slots_show_waiter(int fd, long pid);
/* Give up the number, the slot and the wait, also where a child has a copy of fd. */
void slots_drop(int fd);

/* A holder or a waiter with its own open file, not fd. */
struct slot_user {
    bool waiter;
    int slot; /* of a holder, from 0 */
    long pid; /* as in its own PID namespace */
};
/*
 * Fill at most max entries, holders first, and return their number; takes no lock. *slots: how many
 * slots there are, 0: the file is not used with slots. fd may be open for reading only.
 */
int slots_list(int fd, struct slot_user *, int max, unsigned *slots);

/* When to look for a free slot again; beside a poll loop. */
struct slot_wait {
    int fd;         /* inotify; -1: none, the slots are tried every 50 ms */
    int step;       /* how many tries have followed the last event */
    int64_t since;  /* the last event */
    int64_t try_at; /* the next try */
};

/* Begin to wait: all closes of lock_fd's file from now on count; the first try is due at once. */
void slot_wait_start(struct slot_wait *, int lock_fd, int64_t now);
/* What to poll for: returns 0 or 1 entries. Lowers *wake_at. */
int slot_wait_interest(const struct slot_wait *, struct pollfd *, int cap, int64_t *wake_at);
/* Is a try due? If so, the next try is set. Never blocks. */
bool slot_wait_due(struct slot_wait *, int64_t now);
/* Closing inotify takes the kernel some 10 ms. */
void slot_wait_end(struct slot_wait *);

#endif
