/*
 * forward.h - the signals that are on their way to the command, in the order in which they came.
 *
 * A signal that a process sent waits for FORWARD_WAIT. If the guard gets it too, from the same
 * sender, then it went to the whole job, as from systemd: the command has its own and gets no
 * other, unless the guard sees that it has none. The same signal from the same sender within that
 * time is one: timeout(1) signals dlock, and then its group. The command gets a signal at the end
 * of the time, so a repeated one is never lost.
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
    int32_t
        sender;   /* pid; 0: outside of our pid namespace; FORWARD_NO_SENDER: no process sent it */
    uint32_t uid; /* the sender's */
    int64_t at;   /* when it came */
};

#define FORWARD_NO_SENDER (-1)

struct forward {
    struct {
        struct forward_signal s;
        int64_t until;
        bool shared; /* the guard got it too: it only waits for repetitions */
    } waiting[FORWARD_MAX];
    int nwaiting;
    struct forward_signal
        copies[FORWARD_MAX]; /* to the guard, and the keeper has not told of its own yet */
    int ncopies;
};

/*
 * Those that the keeper could not tell the guard of: it does not run, or more come than it takes.
 * They stay in their order. More than there are signals, so that where all places are taken one
 * number has two of them.
 */
#define FORWARD_UNTOLD_MAX 128
struct forward_untold {
    struct forward_signal at[FORWARD_UNTOLD_MAX];
    int n;
};

/* at: now. */
struct forward_signal forward_describe(const struct signalfd_siginfo *, int64_t at);
/*
 * A signal for the command. Returns 0, or one that must be sent at once, as there is no room for
 * it.
 */
int forward_add(struct forward *, const struct forward_signal *);
/*
 * The guard's own copy of a signal. Add it before forward_take, and the keeper's may follow later.
 */
void forward_copy(struct forward *, const struct forward_signal *);
/*
 * The next signal whose time is over, or 0. Call it until then. *shared: the guard got it too, so
 * the command needs it only if it has no copy of its own.
 */
int forward_take(struct forward *, int64_t now, bool *shared);
/* When to call forward_take again; DLOCK_NEVER: after the next signal. */
int64_t forward_wake(const struct forward *);
/*
 * One more, behind the others. It replaces the last one if it repeats it; without room the first
 * one goes that comes again later.
 */
void forward_keep(struct forward_untold *, const struct forward_signal *);
/* The guard has been told of the first one. */
void forward_told(struct forward_untold *);

#endif
