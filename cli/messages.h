/*
 * messages.h - what dlock writes to stderr: one line each, "dlock: ...". It never blocks: a line
 * that the reader has no room for is kept for the next call or message_flush().
 */
#ifndef CLI_MESSAGES_H
#define CLI_MESSAGES_H

#include "options.h"

#include <stddef.h>
#include <stdint.h>

/* Room for the longest LOCK, its name twice, and some words: a cut could hide which part of it is secret. */
#define LOCK_TEXT_MAX 9000

void message(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Is a wait reported while it lasts? */
bool message_tells_wait(const struct options *);
/* How long it took to get the lock, in the words of flock(1) -v. since: by dlock_now(). */
void message_took(const char *lock, int64_t since);
/* Prints err (unless it is EBUSY and -q was given) and returns the exit code for it. */
int message_error(const struct options *, const struct dlock_error *err);
/* Write the kept lines. Waits at most wait_ms for the reader; main calls it before the exit. */
void message_flush(int wait_ms);

/*
 * What is known of a holder or waiter, in buf, such as "pid 123 (backup.sh) on web1 by root since 2026-11-20
 * 17:00:03 +0100 (3 min ago, waited 45 s): disk 2". Returns buf.
 */
const char *message_holder(const struct dlock_info *, char *buf, size_t size);

#endif
