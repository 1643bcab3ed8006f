/*
 * events.h - the events of a run as lines of JSON for a program (--events); the schema is in
 * dlock-formats(5), EVENTS. The object keeps the times and counts of the run. Few of them go to the
 * system's log, too (--syslog).
 *
 * A struct events * may be NULL, without both options: then each function does nothing. Only
 * events_end and events_flush block.
 */
#ifndef CLI_EVENTS_H
#define CLI_EVENTS_H

#include "uri.h"

struct events;

/*
 * where: as for sink_open; NULL: no --events. facility: of the log; 0: no --syslog. The run's time
 * begins. 0, or as of sink_open.
 */
int events_open(struct events **out, const char *where, int facility, struct dlock_error *err);
/* The descriptor to keep open when others are closed, or -1. */
int events_fd(const struct events *);
/* After the last fork: from now on a slow disk delays nothing (sink_start_thread). */
void events_start_thread(struct events *);
/* The lock of the following lines. */
void events_set_lock(struct events *, const char *lock, const char *store);
/* Before any other line: the parts of the lock's URI; path: of a file lock's file, else "". */
void events_start(struct events *, const struct dlock_uri *, const char *path);

/*
 * A wait for this lock, which in a set can be another lock than that of the other lines. Unknown:
 * holder NULL, place 0. now: by dlock_now().
 */
void events_waiting(struct events *, const char *lock, const char *store,
                    const struct dlock_info *holder, int place, int64_t now);

/* held: mode, slots, slot and fence. left: the rest of the lease in ns; DLOCK_NEVER: no lease. */
void events_granted(struct events *, const struct dlock_info *held, int64_t left, int64_t now);
/* Count a confirmed renewal. */
void events_renewed(struct events *);
/* why: "": unknown; since: by dlock_now(); term_in: ns until the command's end, -1: waiting. */
void events_trouble(struct events *, const char *why, int64_t since, int64_t term_in, int64_t now);
void events_recovered(struct events *, int64_t since, int64_t now);
/* broken: by another process with --break. */
void events_lost(struct events *, bool broken, const char *why);
/* The command is sent SIGTERM, for the lock or --max-run; kill_in: ns until SIGKILL. */
void events_term(struct events *, int64_t kill_in);
void events_kill(struct events *);
/* how: a word of the schema. */
void events_released(struct events *, const char *how, int64_t now);

enum events_outcome {
    EVENTS_EXITED,    /* the command has ended under the lock */
    EVENTS_BUSY,      /* -n, and the lock is held */
    EVENTS_TIMEOUT,   /* -w has run out */
    EVENTS_CANCELLED, /* a signal ended the wait */
    EVENTS_LOST,
    EVENTS_OVERRUN,     /* --max-run has passed, and dlock has ended the command */
    EVENTS_SKIPPED,     /* --once, and the command has succeeded already */
    EVENTS_UNRECORDED,  /* --once: the command has succeeded, without a confirmed record */
    EVENTS_UNAVAILABLE, /* the store did not answer */
    EVENTS_NOT_RUN,     /* the lock was granted, but the command could not be executed */
    EVENTS_ERROR        /* any other failure */
};

struct events_end {
    enum events_outcome outcome;
    int status;         /* the command's wait status; -1: the command has not run to its end */
    int code;           /* dlock's exit code; 128+N, as in a shell, when dlock dies by a signal */
    const char *reason; /* NULL or "": none */
};

/* The last line; only the first call counts. Without a lock: waits 100 ms for a slow reader. */
void events_end(struct events *, const struct events_end *, int64_t now);
/* For the exec of -F: wait as events_end does. */
void events_flush(struct events *);
/* 1 if *p is set, and events_turn has work once *p is ready; else 0. */
int events_interest(const struct events *, struct pollfd *p);
/* Write the lines that a slow reader has made wait, as far as there is room. */
void events_turn(struct events *);
void events_close(struct events *);

#endif
