/*
 * sink.h - whole lines to a descriptor of the caller's or to a file, without ever waiting for the
 * reader. A line is one write(2) of at most SINK_LINE bytes; what the reader has no room for is kept,
 * and dropped and counted when too much is kept.
 */
#ifndef CLI_SINK_H
#define CLI_SINK_H

#include "dlock.h"

#include <poll.h>
#include <stddef.h>

#define SINK_LINE                                                                                  \
    4096 /* PIPE_BUF: what a pipe takes whole, and does not mix with what others write */

struct sink;

/*
 * where: the number of a descriptor that the caller passed, or a path. A file is appended to, and
 * created if it is missing. The program that we execute does not get the descriptor, unless it is 0, 1
 * or 2. 0, or DLOCK_EUSAGE, DLOCK_ECREATE, DLOCK_EPERM, DLOCK_ENOMEM; then *out is untouched.
 */
int sink_open(struct sink **out, const char *where, struct dlock_error *err);
/* Another open file of the same pipe or terminal, O_NONBLOCK and close-on-exec; -1: not possible. */
int sink_reopen(int fd);
/* What to keep open when other descriptors are closed. */
int sink_fd(const struct sink *);
/*
 * A write to a file may wait for a slow disk, which poll(2) does not tell. From now on a thread does
 * what may wait; else, and without the memory for a thread, nothing changes. Not before a fork.
 */
void sink_start_thread(struct sink *);
/*
 * Write a line, with its '\n'; len: at most SINK_LINE. Room for one line is left for the last one,
 * behind which none may follow.
 */
void sink_put(struct sink *, const char *line, size_t len, bool last);
/* Write what is kept, for at most that long. */
void sink_flush(struct sink *, int wait_ms);
/* 1 when lines are kept: then sink_flush has work once *p is ready; else 0. */
int sink_interest(const struct sink *, struct pollfd *p);
/* How many lines were dropped. */
unsigned long sink_dropped(struct sink *);
/* A line that could not even be made. */
void sink_drop(struct sink *);
/* Drops what is kept. NULL is fine. */
void sink_close(struct sink *);

#endif
