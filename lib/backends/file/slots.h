/*
 * slots.h - the slots of a lock file: byte locks of the open file description (fcntl(2), F_OFD_SETLK) far behind its end,
 * beside a shared flock(2). Like that one they belong to the open file, and end with its last close.
 */
#ifndef DLOCK_SLOTS_H
#define DLOCK_SLOTS_H

#include <stdbool.h>

/*
 * Say that fd is used with n slots, until it is closed. 0; an errno; EWOULDBLOCK: another program has locked these bytes.
 * *other: 0, or the number that others use; then fd is of no use. Of two callers at the same time with different numbers
 * at least one is told so. fd must be open for reading and writing.
 */
int slots_register(int fd, unsigned n, unsigned *other);
/* Take the lowest free slot for the process pid. *slot: from 0. 0 or an errno; EWOULDBLOCK: there is none. */
int slots_take(int fd, unsigned n, long pid, int *slot);
/* Show that the process pid waits for a slot, until slots_take() succeeds. */
void slots_show_waiter(int fd, long pid);
/* Give up all of this, also where a child has a copy of fd. */
void slots_drop(int fd);

/* A holder, or a waiter, other than fd itself. */
struct slot_user {
    bool waiter;
    int slot; /* of a holder, from 0 */
    long pid; /* as in its own PID namespace */
};
/*
 * Fill at most max entries, holders first, and return how many there are of them; takes no lock. *number: how many slots
 * there are, 0: the file is not used with slots. fd may be open for reading only.
 */
int slots_list(int fd, struct slot_user *, int max, unsigned *number);

#endif
