/* networked.h - what networked backends share besides the contract: an event queue, and riding out an outage. */
#ifndef DLOCK_NETWORKED_H
#define DLOCK_NETWORKED_H

#include "backend.h"
#include "util.h"

#define EVENTS_MAX 8

/* Events that process() has not handed out yet, oldest first. */
struct event_queue {
    struct dlock_event at[EVENTS_MAX];
    int n;
};

/*
 * Queue an event; the caller fills in all but its type. It replaces the last one if that has the same type or the
 * queue is full, so that an ending event always finds room.
 */
struct dlock_event *events_add(struct event_queue *, enum dlock_ev);
/* Take the oldest one. False: there is none. */
bool events_take(struct event_queue *, struct dlock_event *);

/* Failures of a connection, ridden out for at most one ttl. */
struct outage {
    int64_t since;    /* 0: none */
    int64_t retry_at; /* DLOCK_NEVER: nothing to retry */
    struct dlock_backoff pause;
};

void outage_over(struct outage *);
/*
 * One more failure: sets retry_at; the first one queues EV_NOTICE. False: it cannot be ridden out (not a network
 * failure), or has lasted for a whole ttl.
 */
bool outage_goes_on(struct outage *, const struct dlock_spec *, struct event_queue *,
                    const struct dlock_error *);

/* Fill err: "WHERE: no answer within N s"; returns its code. */
int no_answer(struct dlock_error *err, const struct dlock_spec *, int64_t waited);

#endif
