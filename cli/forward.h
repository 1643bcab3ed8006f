/*
 * forward.h - the signals on their way to the command, in the order in which they came.
 *
 * A signal from a process waits for FORWARD_WAIT. If the guard gets the same signal from the same
 * sender, the signal went to the whole job, as from systemd: the command has a copy, and gets no
 * further copy unless the guard sees that the command has none. A repetition from the same sender
 * within that time counts as the same signal: timeout(1) signals dlock, and then its group. The
 * command gets a signal at the end of the time, so a repeated signal is never lost.
 *
 * Pure: no system call, no allocation. Times are of dlock_now().
 */
#ifndef CLI_FORWARD_H
#define CLI_FORWARD_H

#include "util.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/signalfd.h>

#define FORWARD_WAIT (20 * DLOCK_MSEC)
#define FORWARD_MAX 32

/* A signal that came to the keeper or to the guard. */
struct forward_signal {
    int32_t sig;
    int32_t sender; /* pid; 0: outside of our pid namespace; FORWARD_NO_SENDER: not a process */
    uint32_t uid;   /* the sender's */
    int64_t at;     /* when it came */
};

#define FORWARD_NO_SENDER (-1)

struct forward {
    struct {
        struct forward_signal s;
        int64_t until;
        bool shared; /* the guard got the signal too: the entry waits for repetitions only */
    } waiting[FORWARD_MAX];
    int nwaiting;
    /* The guard's copies of signals that the keeper has not sent yet. */
    struct forward_signal copies[FORWARD_MAX];
    int ncopies;
};

/*
 * Signals that the keeper could not send to the guard, in their order: the guard does not run, or
 * its socket is full. More places than signal numbers: in a full list a number stands twice.
 */
#define FORWARD_UNSENT_MAX 128
struct forward_unsent {
    struct forward_signal at[FORWARD_UNSENT_MAX];
    int n;
};

/* at: now. */
struct forward_signal forward_describe(const struct signalfd_siginfo *, int64_t at);
/* Add a signal for the command. 0, or a signal that must be sent at once, for want of room. */
int forward_add(struct forward *, const struct forward_signal *);
/* The guard got this signal. Call before forward_take; the keeper's copy may follow later. */
void forward_copy(struct forward *, const struct forward_signal *);
/*
 * The next signal whose time is over, or 0; call until 0. *shared: the guard got the signal too, so
 * the command needs it only if the command has no copy.
 */
int forward_take(struct forward *, int64_t now, bool *shared);
/* When to call forward_take again; DLOCK_NEVER: after the next signal. */
int64_t forward_wake(const struct forward *);
/*
 * Append a signal, or replace the last signal by its repetition. A full list drops the first signal
 * whose number comes again later.
 */
void forward_keep(struct forward_unsent *, const struct forward_signal *);
/* The first signal has been sent to the guard. */
void forward_sent(struct forward_unsent *);

#endif
