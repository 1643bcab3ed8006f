/* run.h - the modes of the program. Each returns the exit code. */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "options.h"
#include "process_tree.h"
#include "signals.h"

struct dlock_uri;

/* run.c: the URI behind LOCK, parsed ("@name" stands for one); NULL after the error was printed, with its exit code. */
struct dlock_uri *lock_uri(const struct options *, int *code);
/* A handle as the options ask for. Takes *uri over and sets it to NULL. NULL after the error was printed, with its exit code. */
dlock *open_lock(const struct options *, struct dlock_uri **uri, int *code);
/* An answer without end meets "out of memory". Not in a process that is to become the command, or to fork it. */
void bound_memory(void);
/* Says that the command cannot be run; its exit code. */
int exec_failed(const struct options *, int why);
/* run.c: acquire, run the command, release. */
int run_mode(const struct options *, const struct sigstate *);
/* status.c */
int status_mode(const struct options *, const struct sigstate *);
int schema_mode(const struct options *, const struct sigstate *);
/* unlock.c: MODE_FD and MODE_UNLOCK: flock(1)'s descriptor form. */
int fdlock_mode(const struct options *, const struct sigstate *);

/*
 * direct.c: the command under a file lock without a guard: the keeper is the parent and does the signal,
 * terminal and tree work; the command inherits the descriptor. Returns the exit code, after the lock's
 * descriptor was closed by dlock_close or the caller. -F: execs directly (does not return on success).
 */
int direct_hold(dlock *, const struct options *, const struct sigstate *,
                const struct process_tree *);
_Noreturn void direct_exec(dlock *, const struct options *, const struct sigstate *);

/*
 * messages.c: everything dlock says goes to stderr as one line: "dlock: ...". It never blocks: what its reader
 * does not take waits for the next line or for say_flush (main calls it before the exit).
 */
void say_flush(int wait_ms);
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void say_verbose(const struct options *, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Prints err (unless -q and the code is EBUSY) and returns the exit code for it. */
int say_error(const struct options *, const struct dlock_error *);
/* The lock for messages: "redis://h:6379/0: 'nightly'", or "'/run/lock/x'". */
#define SAY_LOCK_MAX 1024
const char *say_lock(const dlock *, char *buf, size_t size);
/* "2026-11-20 17:00:03", local time. */
const char *say_time(int64_t unix_ms, char *buf, size_t size);
/* "pid 123 (backup.sh -v) on web1 by root, since 2026-11-20 17:00:03" from what is known. */
const char *say_holder(const struct dlock_info *, char *buf, size_t size);

#endif
