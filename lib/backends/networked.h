/* networked.h - shared by networked backends: an event queue, and riding out an outage. */
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
 * Queue an event; the caller fills in all fields but the type. A newer EV_WAITING, EV_AWAY,
 * EV_BACK, EV_CHANGED or EV_RENEWED (CAP_NESTED: of each of the holder's renewals) replaces the
 * last event if both have the same type.
 *
 * A full queue drops its oldest EV_NOTICE, EV_WAITING, EV_AWAY, EV_BACK or EV_CHANGED. The other
 * events are never lost: at most four of them are in the queue, which are EV_RUN and the end of an
 * operation, EV_LOST, and the EV_RELEASED of a release that the core began before it took them.
 */
struct dlock_event *events_add(struct event_queue *, enum dlock_ev);
/* Take the oldest event. False: the queue is empty. */
bool events_take(struct event_queue *, struct dlock_event *);

/* The store does not answer while acquire waits: the core ends the wait (-w), not the outage. */
struct outage {
    int64_t since;    /* the first failure; 0: none */
    int64_t retry_at; /* DLOCK_NEVER: nothing to retry */
    struct dlock_backoff pause;
};

/* Forget any outage: a new start. */
void outage_none(struct outage *);
/* The store has answered: queue EV_BACK if there was an outage. */
void outage_over(struct outage *, struct event_queue *);
/* A failure: set retry_at, queue EV_AWAY. False: an error must end the operation (not EUNAVAIL). */
bool outage_goes_on(struct outage *, const struct dlock_spec *, struct event_queue *,
                    const struct dlock_error *);

static inline int64_t spec_now(const struct dlock_spec *spec)
{
    return spec->env->now(spec->env->ctx);
}

/* The rest of --min-hold. */
static inline int64_t spec_stay(const struct dlock_spec *spec)
{
    return dlock_max(0, spec->hold->until - spec_now(spec));
}

/* Fill err: "WHERE: no answer within N s"; returns the code. */
int no_answer(struct dlock_error *err, const struct dlock_spec *, int64_t waited);

/*
 * Fill err: the lock is in use with a number of slots that differs from spec->slots (DLOCK_EDATA,
 * 65); returns the code. This ends an acquire by EV_FAILED, even a waiting acquire: neither number
 * may win.
 */
int other_slots(struct dlock_error *err, const struct dlock_spec *, unsigned in_use);

#endif
