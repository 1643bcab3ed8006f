/* networked.h - what networked backends share besides the contract: a queue of events, trouble that is ridden out. */
#ifndef DLOCK_COMMON_H
#define DLOCK_COMMON_H

#include "backend.h"
#include "util.h"

#define EVENTS_MAX 8

/* Events that process() has not handed out yet. */
struct event_queue {
    struct dlock_event at[EVENTS_MAX];
    int n;
};

/* Queue an event, zeroed but for its type. News replaces older news of its kind, so that an ending event finds room. */
struct dlock_event *events_add(struct event_queue *, enum dlock_ev);
/* Take the oldest one; false: none. */
bool events_take(struct event_queue *, struct dlock_event *);

/* Trouble with a connection that is ridden out for up to one ttl. */
struct outage {
    int64_t since;    /* 0: none */
    int64_t retry_at; /* DLOCK_NEVER: nothing to retry */
    struct dlock_backoff pause;
};

void outage_over(struct outage *);
/*
 * One more failure: sets retry_at, and tells of the first one by EV_NOTICE. False: this cannot be ridden
 * out (no network trouble), or it has lasted for a whole ttl.
 */
bool outage_goes_on(struct outage *, const struct dlock_spec *, struct event_queue *,
                    const struct dlock_error *);

/* "WHERE: no answer within N s" */
int no_answer(struct dlock_error *, const struct dlock_spec *, int64_t waited);

#endif
