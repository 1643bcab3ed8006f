/* networked.c - see networked.h. */
#include "networked.h"

#include <string.h>

struct dlock_event *events_add(struct event_queue *q, enum dlock_ev type)
{
    struct dlock_event *ev;
    if (q->n > 0 && (q->at[q->n - 1].type == type || q->n == EVENTS_MAX))
        ev = &q->at[q->n - 1];
    else
        ev = &q->at[q->n++];
    *ev = (struct dlock_event){.type = type};
    return ev;
}

bool events_take(struct event_queue *q, struct dlock_event *ev)
{
    if (q->n == 0)
        return false;
    *ev = q->at[0];
    memmove(q->at, q->at + 1, sizeof(q->at[0]) * (size_t)--q->n);
    return true;
}

void outage_over(struct outage *o)
{
    *o = (struct outage){
        .retry_at = DLOCK_NEVER,
        .pause = {.base = 50 * DLOCK_MSEC, .max = DLOCK_SEC},
    };
    dlock_backoff_reset(&o->pause);
}

bool outage_goes_on(struct outage *o, const struct dlock_spec *spec, struct event_queue *q,
                    const struct dlock_error *err)
{
    int64_t now = spec->env->now(spec->env->ctx);
    char ttl[32];
    if (err->code != DLOCK_EUNAVAIL)
        return false;
    if (o->since == 0) {
        o->since = now;
        dlock_fail(&events_add(q, EV_NOTICE)->error, err->code, err->sys,
                   "%s; trying again for up to %s", err->msg,
                   dlock_format_duration(spec->ttl, ttl, sizeof(ttl)));
    }
    int64_t left = o->since + spec->ttl - now;
    if (left <= 0)
        return false;
    o->retry_at = now + dlock_min(left, dlock_backoff_next(&o->pause, spec->env));
    return true;
}

int no_answer(struct dlock_error *err, const struct dlock_spec *spec, int64_t waited)
{
    char text[32];
    return dlock_fail(err, DLOCK_EUNAVAIL, 0, "%s: no answer within %s", spec->uri->where,
                      dlock_format_duration(waited, text, sizeof(text)));
}
