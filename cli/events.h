/*
 * events.h - what happens in a run, as lines of JSON for a program (--events): EVENTS in dlock(1) is the
 * schema. The object knows the run's times and counts; its caller says what happened.
 *
 * A struct events * may be NULL: then there is no --events, and each function does nothing. None of
 * them blocks, but for events_end and events_flush.
 */
#ifndef CLI_EVENTS_H
#define CLI_EVENTS_H

#include "dlock.h"

struct events;

/* where: as of sink_open; NULL: *out is NULL. 0, or an error as there. The run's time starts here. */
int events_open(struct events **out, const char *where, struct dlock_error *err);
/* What to keep open when other descriptors are closed; -1 for NULL. */
int events_fd(const struct events *);
/* No fork comes any more: a slow disk delays nothing from now on (sink_start_thread). */
void events_start_thread(struct events *);
/* The lock of the following lines. */
void events_set_lock(struct events *, const char *lock, const char *store);

/*
 * holder: NULL: unknown. place: 0: unknown. A line for each change, but at most one a second; now: by
 * dlock_now(). events_wake is when to call events_turn, which writes the line that was held back.
 */
void events_waiting(struct events *, const struct dlock_info *holder, int place, int64_t now);
int64_t events_wake(const struct events *);
void events_turn(struct events *, int64_t now);

/* held: its mode, slots, slot and fence. left: the rest of the lease in ns; DLOCK_NEVER: it has no end. */
void events_granted(struct events *, const struct dlock_info *held, int64_t left, int64_t now);
/* A renewal was confirmed: only counted. */
void events_renewed(struct events *);
/* why: a text, "" for unknown; since: by dlock_now(); term_in: ns until the command is ended, -1 while waiting. */
void events_trouble(struct events *, const char *why, int64_t since, int64_t term_in, int64_t now);
void events_recovered(struct events *, int64_t since, int64_t now);
void events_lost(struct events *, const char *why);
/* The command is sent SIGTERM because of the lock, or of --max-run; kill_in: ns until SIGKILL follows. */
void events_term(struct events *, int64_t kill_in);
void events_kill(struct events *);
/* how: a word of the schema. */
void events_released(struct events *, const char *how, int64_t now);

enum events_outcome {
    EVENTS_EXITED,    /* the command has ended, and the lock was held to its end */
    EVENTS_BUSY,      /* -n, and the lock is held */
    EVENTS_TIMEOUT,   /* -w has run out */
    EVENTS_CANCELLED, /* a signal ended the wait */
    EVENTS_LOST,
    EVENTS_OVERRUN, /* --max-run has passed, and what ran under the lock was ended */
    EVENTS_SKIPPED, /* --once, and the command has succeeded already */
    EVENTS_UNRECORDED, /* --once: it has succeeded now, and the store has not confirmed the record of it */
    EVENTS_UNAVAILABLE, /* the store did not answer */
    EVENTS_NOT_RUN,     /* the lock was granted, and the command could not be executed */
    EVENTS_ERROR        /* any other failure */
};

struct events_end {
    enum events_outcome outcome;
    int status; /* the command's wait status; -1: it has not run to its end */
    int code;   /* exit code of dlock; as a shell shows it (128+N) when dlock dies by a signal */
    const char *reason; /* NULL or "": none */
};

/* The last line; nothing is held any more, so this waits for a slow reader, for 100 ms at most. Only the first call counts. */
void events_end(struct events *, const struct events_end *, int64_t now);
/* Before the exec of -F, as events_end. */
void events_flush(struct events *);
/* For the loop: 1 if *p has been set, and events_turn has work once it is ready; else 0. */
int events_interest(const struct events *, struct pollfd *p);
void events_close(struct events *);

#endif
