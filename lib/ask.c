/* ask.c - see ask.h. */
#include "ask.h"

#include "util.h"

#include <string.h>

/* Each read after the first follows a change by another client. */
#define READS_MAX 16

static void step(struct ask *a, enum dlock_step what)
{
    a->stage = ASKING_STEPS;
    a->order.what = what;
    a->reads += what == STEP_READ;
    a->table->step(a->be, &a->order);
}

void ask_start(struct ask *a, const struct dlock_backend *table, struct dlock_be *be,
               const struct dlock_uri *uri, const struct dlock_question *question, int64_t until)
{
    *a = (struct ask){.table = table, .be = be, .uri = uri, .question = question};
    a->order = (struct dlock_order){
        .until = until, .question = question, .holder = &a->info, .run = &a->run};
    if (question->what == ASK_BREAK && table->no_break)
        a->stage = ASKING_REFUSED;
    else
        step(a, STEP_READ);
}

/* The question is over. Returns its last event. */
static struct dlock_event *end(struct ask *a, struct dlock_event *ev, enum dlock_ev type)
{
    *ev = (struct dlock_event){.type = type};
    a->stage = ASKING_OFF;
    if (a->table->rest)
        a->table->rest(a->be);
    return ev;
}

static void fail(struct ask *a, struct dlock_event *ev, int code, const char *why)
{
    dlock_fail_lock(&end(a, ev, EV_FAILED)->error, code, 0, a->uri, "%s", why);
}

/* --- status ----------------------------------------------------------------------------------- */

/* May this holder be the run of the record? Another program and an unknown holder may be. */
static bool may_run(const struct ask *a, const struct dlock_info *h)
{
    return !h->waiter && !h->over &&
           (h->foreign || !h->token[0] || strcmp(h->token, a->run.token) == 0);
}

/* A record that cannot be used hides no holder and no waiter. */
static void tell(struct ask *a, struct dlock_event *ev)
{
    if (a->table->next(a->be, &a->info)) {
        a->goes_on = a->goes_on || may_run(a, &a->info);
        *ev = (struct dlock_event){.type = EV_INFO, .info = &a->info};
    } else if (a->has_run) {
        a->has_run = false;
        *ev = (struct dlock_event){.type = EV_RUN,
                                   .run = &a->run,
                                   .crashed = a->run.state == DLOCK_RUN_RUNNING && !a->goes_on};
    } else if (a->error.code != 0) {
        *ev = (struct dlock_event){.type = EV_NOTICE, .error = a->error};
        a->error = (struct dlock_error){0};
    } else {
        end(a, ev, EV_DONE)->error = a->error;
    }
}

/* --- break ------------------------------------------------------------------------------------ */

/* The hold as it is now, in a->info. False: it is over. *other: a->info is another hold. */
static bool find_hold(struct ask *a, bool *other)
{
    struct dlock_info now;
    *other = false;
    while (a->table->next(a->be, &now) && !now.waiter) {
        bool same = dlock_same_hold(&now, a->question->holder);
        if (same || !*other)
            a->info = now;
        if (same)
            return true;
        *other = true;
    }
    return false;
}

static void break_hold(struct ask *a, struct dlock_event *ev)
{
    bool other;
    if (find_hold(a, &other))
        step(a, a->question->force || a->info.over ? STEP_FREE : STEP_MARK);
    else if (other)
        end(a, ev, EV_BUSY)->info = &a->info;
    else
        end(a, ev, EV_DONE);
}

/* --- forget ----------------------------------------------------------------------------------- */

static bool run_goes_on(struct ask *a)
{
    struct dlock_info now;
    while (a->run.state == DLOCK_RUN_RUNNING && a->table->next(a->be, &now) && !now.waiter)
        if (may_run(a, &now))
            return true;
    return false;
}

static void forget(struct ask *a, struct dlock_event *ev)
{
    if (!a->has_run)
        end(a, ev, a->error.code != 0 ? EV_FAILED : EV_DONE)->error = a->error;
    else if (strcmp(a->run.token, a->question->token) != 0)
        fail(a, ev, DLOCK_EBUSY, "the record has changed: it is that of another run now");
    else if (run_goes_on(a))
        end(a, ev, EV_BUSY);
    else
        step(a, STEP_FORGET);
}

/* --- all -------------------------------------------------------------------------------------- */

static void was_read(struct ask *a, struct dlock_event *ev)
{
    a->has_run = ev->run;
    if (ev->run)
        a->run = *ev->run;
    a->error = ev->error;
    if (a->question->what == ASK_BREAK) {
        break_hold(a, ev);
    } else if (a->question->what == ASK_FORGET) {
        forget(a, ev);
    } else {
        a->stage = ASKING_TELLS;
        tell(a, ev);
    }
}

static void stepped(struct ask *a, struct dlock_event *ev)
{
    if (ev->stepped) {
        struct dlock_error ends_mark = ev->error;
        end(a, ev, EV_DONE)->broken = a->order.what == STEP_MARK;
        ev->error = ends_mark;
    } else if (a->reads == READS_MAX) {
        fail(a, ev, DLOCK_EUNAVAIL, "the lock changes faster than it can be read");
    } else {
        step(a, STEP_READ);
    }
}

int ask_process(struct ask *a, const struct pollfd *pfd, int n, struct dlock_event *ev)
{
    if (a->stage == ASKING_TELLS) {
        tell(a, ev);
    } else if (a->stage == ASKING_REFUSED) {
        end(a, ev, EV_FAILED);
        dlock_fail_at(&ev->error, DLOCK_EUNUSABLE, 0, a->uri->where, "%s", a->table->no_break);
    } else if (!a->table->process(a->be, pfd, n, ev)) {
        return 0;
    } else if (ev->type == EV_READ || ev->type == EV_STEPPED) {
        (ev->type == EV_READ ? was_read : stepped)(a, ev);
        if (ev->type == EV_READ || ev->type == EV_STEPPED) /* another step was ordered */
            *ev = (struct dlock_event){.type = EV_BACK};
    } else if (ev->type == EV_BUSY || ev->type == EV_FAILED) {
        a->stage = ASKING_OFF;
    }
    return 1;
}
