/* query.c - see query.h. */
#include "query.h"

#include "messages.h"
#include "open.h"
#include "util.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

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

const struct dlock_info *query_holder(const struct found *f)
{
    for (size_t i = 0; i < f->n; i++)
        if (!f->all[i].waiter)
            return &f->all[i];
    return NULL;
}

const struct dlock_info *query_same_hold(const struct found *f, const struct dlock_info *hold)
{
    for (size_t i = 0; i < f->n; i++)
        if (!f->all[i].waiter && dlock_same_hold(&f->all[i], hold))
            return &f->all[i];
    return NULL;
}

void query_free(struct found *f)
{
    free(f->all);
    *f = (struct found){0};
}

bool query_signals(const struct sigstate *sig, dlock *lk, const char *dying)
{
    struct signalfd_siginfo si;
    bool stopped = false;
    while (signals_read(sig, &si)) {
        int n = (int)si.ssi_signo;
        if (signals_stops(n)) {
            signals_stop_self(n);
            stopped = true;
        } else if (signals_cancels(n)) {
            if (dying)
                message("%s", dying);
            dlock_close(lk);
            signals_die(n);
        }
    }
    return stopped;
}

void query_pause(const struct sigstate *sig, dlock *lk, const char *dying, int64_t ns)
{
    struct pollfd p = {.fd = sig->fd, .events = POLLIN};
    int64_t until = dlock_now() + ns;
    while (poll(&p, 1, dlock_poll_ms(dlock_now(), until)) != 0)
        query_signals(sig, lk, dying);
}

int query_run(const struct options *o, const struct sigstate *sig, dlock *lk, struct found *f)
{
    const struct dlock_report *r;
    struct pollfd pfd[DLOCK_POLL_MAX + 1];
    int n = 0;
    for (;;) {
        while ((r = dlock_process(lk, pfd, n))) {
            n = 0;
            if (r->type == DLOCK_REPORT_FAILED) {
                f->error = r->error;
                return f->silent ? dlock_error_exit(r->error.code) : message_error(o, &r->error);
            }
            if (r->type == DLOCK_REPORT_DONE) {
                f->marked = r->broken;
                snprintf(f->why_free, sizeof(f->why_free), "%.63s", r->error.msg);
                return -1;
            }
            if (r->type == DLOCK_REPORT_BUSY) {
                f->busy = true;
                f->has_holder = r->info;
                if (r->info)
                    f->holder = *r->info;
                return o->conflict_code;
            }
            if (r->type == DLOCK_REPORT_ENTRY || r->type == DLOCK_REPORT_FINDING)
                f->each(f->arg, r);
            if (r->type == DLOCK_REPORT_RUN) {
                f->run = *r->run;
                f->has_run = true;
                f->crashed = r->crashed;
            }
            if (r->type == DLOCK_REPORT_NOTICE && !f->silent)
                message_notice(o, &r->error);
            if (r->type == DLOCK_REPORT_INFO && keep(f, r->info) < 0) {
                message("out of memory");
                return dlock_error_exit(DLOCK_ENOMEM);
            }
        }
        int64_t wake_at;
        n = dlock_interest(lk, pfd, DLOCK_POLL_MAX, &wake_at);
        if (f->until != 0 && dlock_now() >= f->until)
            return dlock_error_exit(DLOCK_EUNAVAIL);
        if (f->until != 0)
            wake_at = dlock_min(wake_at, f->until);
        pfd[n] = (struct pollfd){.fd = sig->fd, .events = POLLIN};
        if (poll(pfd, (nfds_t)n + 1, dlock_poll_ms(dlock_now(), wake_at)) < 0)
            n = 0;
        query_signals(sig, lk, f->dying);
    }
}

dlock *query_open(const struct options *o, int *code)
{
    struct dlock_uri *uri = open_uri(o, o->lock, code);
    if (!uri)
        return NULL;
    open_bound_memory();
    return open_handle(o, o->lock_mode, &uri, code);
}

dlock *query_first(const struct options *o, const struct sigstate *sig, const char *mode,
                   struct found *f, int *code)
{
    /* Without --yes a terminal is needed for the question. */
    if (!o->yes && !(isatty(STDIN_FILENO) && isatty(STDERR_FILENO))) {
        message("%s asks at a terminal, and there is none: use --yes", mode);
        *code = dlock_error_exit(DLOCK_EUSAGE);
        return NULL;
    }
    dlock *lk = query_open(o, code);
    if (!lk)
        return NULL;
    dlock_start_status(lk, NULL);
    *code = query_run(o, sig, lk, f);
    return lk;
}

/*
 * In the background, stop first, as a job that reads: we block TTIN, so the read would fail.
 * A terminal of another session has no jobs.
 */
static void put_question(const char *question)
{
    pid_t foreground = tcgetpgrp(STDIN_FILENO);
    if (foreground >= 0 && foreground != getpgrp())
        signals_stop_self(SIGTTIN);
    fputs(question, stderr);
}

bool query_agreed(const struct sigstate *sig, const char *question)
{
    struct pollfd p[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = sig->fd, .events = POLLIN}};
    char line[64];
    put_question(question);
    for (;;) {
        int got = poll(p, DLOCK_LEN(p), -1);
        if (got < 0 && errno != EINTR)
            return false;
        if (got > 0 && p[1].revents && query_signals(sig, NULL, NULL))
            put_question(question);
        else if (got > 0 && p[0].revents)
            break;
    }
    ssize_t n = read(STDIN_FILENO, line, sizeof(line) - 1);
    if (n <= 0)
        fputc('\n', stderr);
    line[n > 0 ? n : 0] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    return strcasecmp(line, "y") == 0 || strcasecmp(line, "yes") == 0;
}
