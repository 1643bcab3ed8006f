/*
 * messages.h - lines on stderr, "dlock: ...". No call blocks: a line for which the reader has no
 * room is kept for the next call or message_flush().
 */
#ifndef CLI_MESSAGES_H
#define CLI_MESSAGES_H

#include "options.h"

#include <stddef.h>
#include <stdint.h>

/* Room for the longest LOCK, its name twice, and words: a cut could hide where a secret begins. */
#define LOCK_TEXT_MAX 9000

void message(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/*
 * A text for a terminal or a log: control characters are cleaned, and secrets hidden. room: of buf.
 * cut: the end of text is missing.
 */
void message_clean(char *buf, size_t room, const char *text, bool cut);

/* The subject of a line. */
enum message_subject {
    ABOUT_ERROR,     /* a failure */
    ABOUT_LOSS,      /* the lock is lost */
    ABOUT_TROUBLE,   /* the lock may be lost soon, or may not exclude other holders */
    ABOUT_TIMEOUT,   /* -w ran out */
    ABOUT_RELEASE,   /* an unconfirmed release */
    ABOUT_HELD,      /* -n, and the lock is held */
    ABOUT_WAIT,      /* the progress of a wait */
    ABOUT_CONDITION, /* the set-up of the store */
    ABOUT_DETAIL     /* for -v */
};
/*
 * Is a line with this subject printed? Errors and losses: always. Trouble, time-outs and
 * unconfirmed releases: without -q. Details: with -v. The rest: at a terminal, in CI and with -v.
 */
bool message_tells(const struct options *, enum message_subject);
/* The subject of a busy lock: ABOUT_HELD or ABOUT_TIMEOUT. */
enum message_subject message_about_busy(const struct options *);
/*
 * Name the lock in a message, with words before its name: "redis://h:6379/0: the lock 'nightly'". A
 * bare file is both store and lock: "the lock '/run/lock/x'". Returns buf.
 */
const char *message_lock(const dlock *, const char *words, char buf[LOCK_TEXT_MAX]);
/* DLOCK_REPORT_NOTICE. */
void message_notice(const struct options *, const struct dlock_error *);
/* Print err (DLOCK_EBUSY: if the options want that) and return its exit code. */
int message_error(const struct options *, const struct dlock_error *err);
/* The text of the last line, "" before the first one. */
const char *message_last(void);
/* Write the kept lines, waiting at most wait_ms for the reader. main calls this before the exit. */
void message_flush(int wait_ms);

/* "2m10s", "5m", "1h3m", "1.5s", "250ms": at most two units, rounded down. Returns buf. */
const char *message_duration(int64_t ns, char *buf, size_t size);
#define HOLDER_TEXT_MAX 1400
/* "held for 5m by root@ci-4, pid 812 (deploy.sh), note "disk 2"". NULL: unknown. Returns buf. */
const char *message_holder(const struct dlock_info *, char *buf, size_t size);
/* For --status: "root@ci-4, pid 812 (deploy.sh), since 2026-11-20 17:00:03 +0100 ...". */
const char *message_process(const struct dlock_info *, char *buf, size_t size);
/* "root@ci-4, pid 812 (deploy.sh)". Returns buf. */
const char *message_who(const struct dlock_info *, char *buf, size_t size);

/* A holder whose hold is marked: "being broken by root@db1, note "stuck", since 5s". */
const char *message_broken(const struct dlock_info *, char *buf, size_t size);

/*
 * The record of a run: "succeeded 5m ago by root@ci-4, pid 812 (deploy.sh), note "disk 2"", "failed
 * 5m ago with status 3 by ...", "began 5m ago by ...". crashed: "began 5m ago and did not end:
 * crashed; by ...". Returns buf.
 */
#define RUN_TEXT_MAX 1400
const char *message_run(const struct dlock_run *, bool crashed, char *buf, size_t size);

/*
 * The drawn line: message_draw() overwrites the terminal's last line again and again. A message
 * replaces the drawn line, and message_erase() leaves an empty line.
 */
/* Is stderr a terminal that can erase, and this process in the foreground? */
bool message_draws(void);
/* The same in the background too: fg may bring a running process forward without a signal. */
bool message_could_draw(void);
/* Does nothing while the terminal is stopped. */
void message_draw(const char *text);
void message_erase(void);
/* Cut text, valid UTF-8, to fit into this many columns. Returns how many it takes at most. */
int message_fit(char *text, int columns);

#endif
