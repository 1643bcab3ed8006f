/*
 * break.c - --break LOCK: take the lock away from a holder. The hold is marked, and the living
 * holder ends its own command before the lock is free; --force frees the lock at once. The holder
 * of a file gets a signal instead (break_file.c).
 */
#include "break.h"
#include "messages.h"
#include "modes.h"
#include "query.h"
#include "util.h"

#include <stdio.h>
#include <string.h>

/* A server that took over may lack the newest writes of the old one. */
#define BREAK_MARK_GONE "the mark is gone, as after a failover: break the hold again"

/* --holder: a token, or HOST:PID. */
static bool is_meant(const struct dlock_info *h, const char *id)
{
    char process[sizeof(h->host) + 24];
    if (h->token[0] && strcmp(h->token, id) == 0)
        return true;
    snprintf(process, sizeof(process), "%s:%ld", h->host, h->pid);
    return h->pid > 0 && strcmp(process, id) == 0;
}

/* The holder to break; NULL after a message, with the exit code. */
static const struct dlock_info *pick(const struct options *o, const dlock *lk,
                                     const struct found *f, int *code)
{
    const struct dlock_info *meant = NULL;
    char lock[LOCK_TEXT_MAX];
    int holders = 0;
    for (size_t i = 0; i < f->n; i++) {
        if (f->all[i].waiter)
            continue;
        holders++;
        if (!meant && (!o->holder || is_meant(&f->all[i], o->holder)))
            meant = &f->all[i];
    }
    if (holders == 0) {
        *code = 0;
        return NULL;
    }
    if (!meant) {
        message("%s has no holder %.200s", message_lock(lk, "", lock), o->holder);
        *code = o->conflict_code;
        return NULL;
    }
    if (holders > 1 && !o->holder) {
        message("%s has %d holders: pick one with --holder HOST:PID", message_lock(lk, "", lock),
                holders);
        *code = dlock_error_exit(DLOCK_EUSAGE);
        return NULL;
    }
    return meant;
}

int64_t break_time(const struct options *o, const struct dlock_info *hold)
{
    int64_t left = hold->left_ns == DLOCK_NEVER ? 0 : hold->left_ns;
    if (o->wait_ns != DLOCK_NEVER)
        return o->wait_ns;
    return dlock_max(left, o->ttl_ns) + dlock_max(o->grace_ns, 5 * DLOCK_SEC) + DLOCK_SEC;
}

/* Wait until the hold is over. An outage of the store is told once, and ends the wait in time. */
static int await_end(const struct options *o, const struct sigstate *sig, dlock *lk,
                     const struct dlock_info *hold, const char *dying)
{
    int64_t until = dlock_after(dlock_now(), break_time(o, hold)), pause = BREAK_LOOK_FIRST;
    char lock[LOCK_TEXT_MAX], holder[HOLDER_TEXT_MAX];
    bool silent = false;
    for (;;) {
        struct found f = {.dying = dying, .silent = silent};
        dlock_start_status(lk, NULL);
        int code = query_run(o, sig, lk, &f);
        const struct dlock_info *same = query_same_hold(&f, hold);
        const char *state = same && !same->broken ? BREAK_MARK_GONE : dying;
        query_free(&f);
        if (code < 0 && !same)
            return -1;
        silent = code >= 0;
        if (dlock_now() >= until) {
            if (code < 0)
                message("%s is still held by %s; %s", message_lock(lk, "", lock),
                        message_process(hold, holder, sizeof(holder)), state);
            return code < 0 ? o->conflict_code : code;
        }
        query_pause(sig, lk, dying, dlock_min(pause, until - dlock_now()));
        pause = dlock_min(pause * 2, BREAK_LOOK_MOST);
    }
}

int break_changed(const struct options *o, const dlock *lk, const struct dlock_info *now)
{
    char lock[LOCK_TEXT_MAX], holder[HOLDER_TEXT_MAX];
    if (message_tells(o, ABOUT_TIMEOUT))
        message("%s has changed hands, nothing was done: %s", message_lock(lk, "", lock),
                now ? message_holder(now, holder, sizeof(holder)) : "held");
    return o->conflict_code;
}

/* The holder was shown, and the user agrees. -1: the hold is over; else an exit code. */
static int break_hold(const struct options *o, const struct sigstate *sig, dlock *lk,
                      const struct dlock_info *hold)
{
    struct found f = {.dying = "the hold may be marked already"};
    struct dlock_error err;
    char lock[LOCK_TEXT_MAX], dying[128];
    if (dlock_start_break(lk, hold, o->force, &err) < 0)
        return message_error(o, &err);
    int code = query_run(o, sig, lk, &f);
    if (f.busy)
        code = break_changed(o, lk, f.has_holder ? &f.holder : NULL);
    if (code < 0 && o->force)
        message("%s was freed by force: its command may still run beside the next one",
                message_lock(lk, "", lock));
    if (code < 0 && f.marked) {
        snprintf(dying, sizeof(dying), "%s",
                 f.why_free[0] ? f.why_free
                               : "the hold stays marked, and its holder will end its command");
        code = await_end(o, sig, lk, hold, dying);
    }
    query_free(&f);
    return code;
}

int break_mode(const struct options *o, const struct sigstate *sig)
{
    char lock[LOCK_TEXT_MAX], holder[HOLDER_TEXT_MAX];
    struct found f = {0};
    int code = 0;
    dlock *lk = query_first(o, sig, "--break", &f, &code);
    if (!lk)
        return code;
    if (code < 0)
        status_print(o, lk, &f);
    const struct dlock_info *hold = code < 0 ? pick(o, lk, &f, &code) : NULL;
    if (hold && !o->yes) {
        fflush(stdout);
        if (!query_agreed(sig, o->force ? "break by force? [y/N] " : "break? [y/N] "))
            code = QUERY_REFUSED;
        /* Servers close a connection that is idle for long. */
        dlock_close(lk);
        lk = code < 0 ? query_open(o, &code) : NULL;
    }
    if (hold && code < 0)
        code = dlock_is_local(lk) ? break_file(o, sig, lk, hold) : break_hold(o, sig, lk, hold);
    if (hold && code < 0 && message_tells(o, ABOUT_HELD))
        message("broken: %s, %s", message_lock(lk, "", lock),
                message_process(hold, holder, sizeof(holder)));
    query_free(&f);
    dlock_close(lk);
    return code < 0 ? 0 : code;
}
