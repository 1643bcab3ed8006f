/* driven.h - a lock or a set of locks, for callers that drive both alike: the only such choice. */
#ifndef DLOCK_DRIVEN_H
#define DLOCK_DRIVEN_H

#include "dlock.h"

struct driven {
    dlock *lock;    /* NULL: set */
    dlock_set *set; /* NULL: lock */
};

/* The most descriptors that driven_interest() fills in. */
#define DRIVEN_POLL_MAX (DLOCK_SET_MAX * DLOCK_POLL_MAX)

/* As the calls of dlock.h without "driven". */
enum dlock_state driven_state(struct driven);
int driven_start_acquire(struct driven, struct dlock_error *);
int driven_start_release(struct driven, int64_t until, struct dlock_error *);
int driven_start_renew(struct driven, struct dlock_error *);
int driven_interest(struct driven, struct pollfd pfd[DRIVEN_POLL_MAX], int64_t *wake_at);
const struct dlock_report *driven_process(struct driven, const struct pollfd *, int n);
void driven_close(struct driven);
/* The i-th lock; NULL past the last. */
const dlock *driven_at(struct driven, int i);

/* dlock_dispatch() without its check of the process. poller: of dlock_poll_fd(), or NULL. */
struct poller;
const struct dlock_report *driven_dispatch(struct driven, struct poller *);

#endif
