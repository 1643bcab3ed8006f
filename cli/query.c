/* query.c - see query.h. */
#include "query.h"

#include "messages.h"
#include "open.h"
#include "util.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int keep(struct found *f, const struct dlock_info *info)
{
    if (f->n == f->cap) {
        size_t cap = f->cap ? f->cap * 2 : 4;
        struct dlock_info *more = realloc(f->all, cap * sizeof(*more));
        if (!more)
            return -1;
        f->all = more;
        f->cap = cap;
    }
    f->all[f->n++] = *info;
    return 0;
}

bool query_crashed(const struct found *f)
{
    if (!f->has_run || f->run.state != DLOCK_RUN_RUNNING)
        return false;
    for (size_t i = 0; i < f->n; i++) {
        const struct dlock_info *h = &f->all[i];
        if (!h->waiter && !h->over && (!h->token[0] || strcmp(h->token, f->run.token) == 0))
            return false;
    }
    return true;
}

const struct dlock_info *query_holder(const struct found *f)
{
    for (size_t i = 0; i < f->n; i++)
        if (!f->all[i].waiter)
            return &f->all[i];
    return NULL;
}

void query_free(struct found *f)
{
    free(f->all);
    *f = (struct found){0};
}

bool query_signals(const struct sigstate *sig, dlock *lk)
{
    struct signalfd_siginfo si;
    bool stopped = false;
    while (signals_read(sig, &si)) {
        int n = (int)si.ssi_signo;
        if (signals_stops(n)) {
            signals_stop_self(n);
            stopped = true;
        } else if (signals_cancels(n)) {
            dlock_close(lk);
            signals_die(n);
        }
    }
    return stopped;
}

int query_run(const struct options *o, const struct sigstate *sig, dlock *lk, struct found *f)
{
    const struct dlock_report *r;
    struct pollfd pfd[DLOCK_POLL_MAX + 1];
    int n = 0;
    for (;;) {
        while ((r = dlock_process(lk, pfd, n))) {
            n = 0;
            if (r->type == DLOCK_REPORT_FAILED)
                return message_error(o, &r->error);
            if (r->type == DLOCK_REPORT_DONE) {
                snprintf(f->why_free, sizeof(f->why_free), "%.63s", r->error.msg);
                return -1;
            }
            if (r->type == DLOCK_REPORT_BUSY) {
                f->busy = true;
                return o->conflict_code;
            }
            if (r->type == DLOCK_REPORT_RUN) {
                f->run = *r->run;
                f->has_run = true;
            }
            if (r->type == DLOCK_REPORT_NOTICE)
                message_notice(o, &r->error);
            if (r->type == DLOCK_REPORT_INFO && keep(f, r->info) < 0) {
                message("out of memory");
                return dlock_error_exit(DLOCK_ENOMEM);
            }
        }
        int64_t wake_at;
        n = dlock_interest(lk, pfd, DLOCK_POLL_MAX, &wake_at);
        pfd[n] = (struct pollfd){.fd = sig->fd, .events = POLLIN};
        if (poll(pfd, (nfds_t)n + 1, dlock_poll_ms(dlock_now(), wake_at)) < 0)
            n = 0;
        query_signals(sig, lk);
    }
}

dlock *query_open(const struct options *o, int *code)
{
    struct dlock_uri *uri = open_uri(o, o->lock, code);
    if (!uri)
        return NULL;
    open_bound_memory();
    return open_handle(o, o->lock_mode, &uri, &(struct open_how){0}, code);
}
