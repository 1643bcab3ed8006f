/*
 * ask.h - status, break and forget: the policy of all stores.
 *
 * A store reads the lock, and carries out conditional steps (enum dlock_step). Here it is decided
 * which step may follow from what was read. Where a step finds a change by another client, the
 * store reads again. So a question ends as by a single conditional step of the store.
 *
 * Without I/O and clock, but for the backend's. While a question is under way, lock.c calls
 * ask_process() instead of the backend's process().
 */
#ifndef DLOCK_ASK_H
#define DLOCK_ASK_H

#include "backend.h"

struct ask {
    const struct dlock_backend *table;
    struct dlock_be *be;
    const struct dlock_uri *uri;
    const struct dlock_question *question;
    enum ask_stage {
        ASKING_OFF,
        ASKING_REFUSED, /* the store cannot break holds */
        ASKING_STEPS,   /* the store carries out the order */
        ASKING_TELLS    /* ASK_STATUS: what was read is handed out */
    } stage;
    struct dlock_order order;
    int reads;
    /* As read last: */
    struct dlock_info info; /* the holder or waiter of the event; ASK_BREAK: the hold */
    struct dlock_run run;
    bool has_run;
    bool goes_on; /* ASKING_TELLS: a holder that was handed out may be the run of the record */
    struct dlock_error error;
};

/* Is this question asked in steps? ASK_LIST and ASK_CHECK are the backend's own. */
static inline bool ask_in_steps(enum dlock_ask what)
{
    return what == ASK_STATUS || what == ASK_BREAK || what == ASK_FORGET;
}
/* Begin. The question stays valid until its last event, or until the backend's release. */
void ask_start(struct ask *, const struct dlock_backend *, struct dlock_be *,
               const struct dlock_uri *, const struct dlock_question *, int64_t until);
/* As the backend's process(), with the events of a question. */
int ask_process(struct ask *, const struct pollfd *, int n, struct dlock_event *);
/* Is there an event to hand out without I/O? */
static inline bool ask_ready(const struct ask *a)
{
    return a->stage == ASKING_REFUSED || a->stage == ASKING_TELLS;
}

#endif
