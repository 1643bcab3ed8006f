/* slot_wait.h - when to look for a free slot again; beside a poll loop. */
#ifndef DLOCK_SLOT_WAIT_H
#define DLOCK_SLOT_WAIT_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

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
