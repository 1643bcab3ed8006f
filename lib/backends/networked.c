/* networked.c - see networked.h. */
#include "networked.h"

#include <string.h>

/* A newer event of this type says all that the older one said. */
static bool is_replaceable(enum dlock_ev type)
{
    return type == EV_WAITING || type == EV_AWAY || type == EV_BACK || type == EV_CHANGED ||
           type == EV_RENEWED;
}

/* Such an event ends no operation: without it the core acts later, or a warning is not told. */
static bool is_droppable(enum dlock_ev type)
{
    return type == EV_NOTICE || (is_replaceable(type) && type != EV_RENEWED);
}

static void drop(struct event_queue *q, int at)
{
    memmove(q->at + at, q->at + at + 1, sizeof(q->at[0]) * (size_t)(--q->n - at));
}

struct dlock_event *events_add(struct event_queue *q, enum dlock_ev type)
{
    int at = 0;
    if (q->n > 0 && q->at[q->n - 1].type == type && is_replaceable(type)) {
        q->n--;
    } else if (q->n == EVENTS_MAX) {
        while (at < EVENTS_MAX - 1 && !is_droppable(q->at[at].type))
            at++;
        drop(q, at);
    }
    q->at[q->n] = (struct dlock_event){.type = type};
    return &q->at[q->n++];
}

bool events_take(struct event_queue *q, struct dlock_event *ev)
{
    if (q->n == 0)
        return false;
    *ev = q->at[0];
    drop(q, 0);
    return true;
}

void outage_none(struct outage *o)
{
    *o = (struct outage){
        .retry_at = DLOCK_NEVER,
        .pause = {.base = 50 * DLOCK_MSEC, .max = DLOCK_SEC},
    };
    dlock_backoff_reset(&o->pause);
}

void outage_over(struct outage *o, struct event_queue *q)
{
    if (o->since != 0)
        events_add(q, EV_BACK);
    outage_none(o);
}

bool outage_goes_on(struct outage *o, const struct dlock_spec *spec, struct event_queue *q,
                    const struct dlock_error *err)
{
    int64_t now = spec->env->now(spec->env->ctx);
    if (err->code != DLOCK_EUNAVAIL)
        return false;
    if (o->since == 0)
        o->since = now;
    o->retry_at = now + dlock_backoff_next(&o->pause, spec->env);
    events_add(q, EV_AWAY)->error = *err;
    return true;
}

int no_answer(struct dlock_error *err, const struct dlock_spec *spec, int64_t waited)
{
    char text[32];
    return dlock_fail_at(err, DLOCK_EUNAVAIL, 0, spec->uri->where, "no answer within %s",
                         dlock_format_duration(waited, text, sizeof(text)));
}

int other_slots(struct dlock_error *err, const struct dlock_spec *spec, unsigned in_use)
{
    return dlock_fail_at(
        err, DLOCK_EDATA, 0, spec->uri->where,
        "in use with %u slots, which are not %u: give all its users the same number (lock "
        "'%s')",
        in_use, spec->slots, spec->uri->name);
}
