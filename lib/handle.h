/*
 * handle.h - what the two kinds of handle have in common. A dlock of dlock.h is a lock (lock.c) or
 * a set of locks (lockset.c).
 */
#ifndef DLOCK_HANDLE_H
#define DLOCK_HANDLE_H

#include "util.h"

#include <poll.h>
#include <sys/types.h>

/* The most descriptors of a handle. */
#define HANDLE_POLL_MAX (DLOCK_SET_MAX * DLOCK_POLL_MAX)

/*
 * The calls of dlock.h, as each kind of handle carries them out. handle.c has checked the process
 * that calls, that no set drives the handle, and the state.
 */
struct handle_ops {
    /* Not DLOCK_STATE_FOREIGN. */
    enum dlock_state (*state)(const dlock *);
    void (*start_acquire)(dlock *);
    void (*start_release)(dlock *, int64_t until);
    void (*start_renew)(dlock *);
    int (*interest)(dlock *, struct pollfd *, int cap, int64_t *wake_at);
    const struct dlock_report *(*process)(dlock *, const struct pollfd *, int n);
    /* The end of the lease by each clock; 0: nothing is held. Any thread may ask. */
    struct dlock_clocks (*end)(const dlock *);
    /* The i-th lock of a set; the only lock of a lock is the lock itself. NULL past the last. */
    dlock *(*at)(const dlock *, int i);
    /* In a child process, too, and for a handle whose open has failed. */
    void (*close)(dlock *);
};

/* The first member of each kind of handle. */
struct handle {
    const struct handle_ops *ops;
    pid_t owner;                 /* the process that opened the handle */
    bool in_set;                 /* only its set may drive the handle */
    bool crowded;                /* the caller's last dlock_interest() had no room for all */
    const struct dlock_env *env; /* the clocks */
    struct poller *poller;       /* of dlock_poll_fd(), or NULL */
};

static inline struct handle *handle_of(const dlock *d)
{
    return (struct handle *)d;
}

/* Was the handle opened by another process? */
bool handle_is_foreign(const dlock *);
/* 0 in one of two states, for a handle outside of a set; else DLOCK_EUSAGE, about this call. */
int handle_expect(const dlock *, enum dlock_state, enum dlock_state, const char *call,
                  struct dlock_error *);
/* The same, also for a handle of a set. */
int handle_expect_state(const dlock *, enum dlock_state, enum dlock_state, const char *call,
                        struct dlock_error *);
/* Something has begun: make the descriptor of dlock_poll_fd() ask for dlock_dispatch(). */
void handle_kick(const dlock *);

#endif
