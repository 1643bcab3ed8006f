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

/* What a line is about. */
enum message_subject {
    ABOUT_ERROR,     /* what failed, or cannot be done */
    ABOUT_LOSS,      /* the lock is lost */
    ABOUT_TROUBLE,   /* it is about to be lost, or may not exclude others */
    ABOUT_TIMEOUT,   /* a wait ran out */
    ABOUT_RELEASE,   /* a release that was not confirmed */
    ABOUT_HELD,      /* -n, and the lock is held */
    ABOUT_WAIT,      /* the progress of a wait */
    ABOUT_CONDITION, /* how the store is set up */
    ABOUT_DETAIL     /* for -v */
};
/*
 * Is a line about that printed? Errors and losses: always. Trouble, a wait that ran out and an unconfirmed
 * release: unless -q is given. Details: with -v. The rest: to the talkative, which are a terminal, CI and -v.
 */
bool message_tells(const struct options *, enum message_subject);
/* The subject of a lock that others hold: ABOUT_HELD or ABOUT_TIMEOUT. */
enum message_subject message_about_busy(const struct options *);
/* The subject of a DLOCK_REPORT_NOTICE. */
enum message_subject message_about(const struct dlock_error *notice);
/* How long it took to get the lock, in the words of flock(1) -v. since: by dlock_now(). */
void message_took(const char *lock, int64_t since);
/* Prints err and returns the exit code for it. EBUSY is printed as the options want it. */
int message_error(const struct options *, const struct dlock_error *err);
/* The text of the last line, "" before the first one. */
const char *message_last(void);
/* Write the kept lines. Waits at most wait_ms for the reader; main calls it before the exit. */
void message_flush(int wait_ms);

/* "2m10s", "5m", "1h3m", "1.5s", "250ms": at most two units, rounded down. Returns buf. */
const char *message_duration(int64_t ns, char *buf, size_t size);
/*
 * What is known of a holder, in buf: "held for 5m by root@ci-4, pid 812 (deploy.sh), note "disk 2"". NULL: unknown.
 * Returns buf.
 */
const char *message_holder(const struct dlock_info *, char *buf, size_t size);
/* The same of a holder or waiter for --status: "root@ci-4, pid 812 (deploy.sh), since 2026-11-20 17:00:03 +0100 ...". */
const char *message_process(const struct dlock_info *, char *buf, size_t size);

/*
 * The record of a run: "succeeded 5m ago by root@ci-4, pid 812 (deploy.sh), note "disk 2"", "failed 5m ago with status 3
 * by ...", "began 5m ago by ...". crashed: "began 5m ago and did not end: crashed; by ...". Returns buf.
 */
#define RUN_TEXT_MAX 1400
const char *message_run(const struct dlock_run *, bool crashed, char *buf, size_t size);

/*
 * One line of a terminal that is written again and again. Every other line takes its place, and message_erase()
 * leaves an empty one.
 */
/* Can it be? stderr is a terminal that can erase, and it is ours: not in the background, where a user types. */
bool message_draws(void);
/* The same but for the background: fg may bring us forward, without a signal if we run. */
bool message_could_draw(void);
/* Skipped while the terminal is stopped. */
void message_draw(const char *text);
void message_erase(void);
/* Cut text, valid UTF-8, so that it fits into that many columns. */
void message_fit(char *text, int columns);

#endif
