/*
 * sink.h - write whole lines to a descriptor of the caller or to a file, without waiting for the
 * reader. A line is a single write(2) of at most SINK_LINE bytes. A line for which the reader has
 * no room is kept, or, where too much is kept, dropped and counted.
 */
#ifndef CLI_SINK_H
#define CLI_SINK_H

#include "dlock.h"

#include <poll.h>
#include <stddef.h>

/* PIPE_BUF: a pipe takes so much whole, and does not mix it with the writes of other processes. */
#define SINK_LINE 4096

struct sink;

/*
 * where: the number of the caller's descriptor, or a path. Lines are appended to a file; a missing
 * file is created. The command does not inherit a descriptor above 2. 0, or DLOCK_EUSAGE,
 * DLOCK_ECREATE, DLOCK_EPERM, DLOCK_ENOMEM with *out untouched.
 */
int sink_open(struct sink **out, const char *where, struct dlock_error *err);
/* Open the pipe or terminal of fd again, with O_NONBLOCK and close-on-exec; -1: not possible. */
int sink_reopen(int fd);
/* The descriptor to keep open when others are closed. */
int sink_fd(const struct sink *);
/*
 * A write to a file may wait for a slow disk, which poll(2) does not show: from now on a thread
 * makes such writes, if there is memory for a thread. Call after the last fork.
 */
void sink_start_thread(struct sink *);
/* Write a line, with its '\n', of at most SINK_LINE bytes. The last line has a place reserved. */
void sink_put(struct sink *, const char *line, size_t len, bool last);
/* Write the kept lines, waiting at most wait_ms. */
void sink_flush(struct sink *, int wait_ms);
/* 1 while lines are kept, and sink_flush has work once *p is ready; else 0. */
int sink_interest(const struct sink *, struct pollfd *p);
/* The number of dropped lines. */
unsigned long sink_dropped(const struct sink *);
/* Count a line that could not be made. */
void sink_drop(struct sink *);
/* Drops the kept lines. NULL is fine. */
void sink_close(struct sink *);

#endif
