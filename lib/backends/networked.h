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

/* The store does not answer while acquire waits: that goes on until the core ends it (-w). */
struct outage {
    int64_t since;    /* the first failure; 0: none */
    int64_t retry_at; /* DLOCK_NEVER: nothing to retry */
    struct dlock_backoff pause;
};

/* There is none: a new start. */
void outage_none(struct outage *);
/* The store has answered. If there was an outage, that queues EV_BACK. */
void outage_over(struct outage *, struct event_queue *);
/* One more failure: sets retry_at, queues EV_AWAY. False: it cannot be ridden out (not DLOCK_EUNAVAIL). */
bool outage_goes_on(struct outage *, const struct dlock_spec *, struct event_queue *,
                    const struct dlock_error *);

/* Fill err: "WHERE: no answer within N s"; returns its code. */
int no_answer(struct dlock_error *err, const struct dlock_spec *, int64_t waited);

/*
 * Fill err: the lock is in use with another number of slots than spec->slots (DLOCK_EDATA, 65); returns its code. It ends
 * an acquire by EV_FAILED, also one that waits: neither number may win.
 */
int other_slots(struct dlock_error *err, const struct dlock_spec *, unsigned in_use);

#endif
