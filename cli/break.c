/*
 * break.c - --break LOCK: take the lock away from a holder. The hold is marked, and the living
 * holder ends its own command before the lock is free; --force frees the lock at once.
 */
#include "messages.h"
#include "modes.h"
#include "query.h"
#include "util.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Between two looks whether the hold is over. */
#define LOOK_FIRST (50 * DLOCK_MSEC)
#define LOOK_MOST (500 * DLOCK_MSEC)

/* --holder: a token, or HOST:PID. */
static bool is_meant(const struct dlock_info *h, const char *id)
{
    const char *colon = strrchr(id, ':');
    if (h->token[0] && strcmp(h->token, id) == 0)
        return true;
    return colon && strlen(h->host) == (size_t)(colon - id) &&
           strncmp(h->host, id, (size_t)(colon - id)) == 0 && strtol(colon + 1, NULL, 10) == h->pid;
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

static bool same_hold(const struct dlock_info *a, const struct dlock_info *b)
{
    if (a->token[0] || b->token[0])
        return strcmp(a->token, b->token) == 0;
    return a->pid == b->pid && a->since_ms == b->since_ms && strcmp(a->host, b->host) == 0;
}

static bool still_held(const struct found *f, const struct dlock_info *hold)
{
    for (size_t i = 0; i < f->n; i++)
        if (!f->all[i].waiter && same_hold(&f->all[i], hold))
            return true;
    return false;
}

static void pause_for(const struct sigstate *sig, dlock *lk, const char *dying, int64_t ns)
{
    struct pollfd p = {.fd = sig->fd, .events = POLLIN};
    int64_t until = dlock_now() + ns;
    while (poll(&p, 1, dlock_poll_ms(dlock_now(), until)) != 0)
        query_signals(sig, lk, dying);
}

/* Wait until the hold is over. An outage of the store ends the wait only with its time. */
static int await_end(const struct options *o, const struct sigstate *sig, dlock *lk,
                     const struct dlock_info *hold, const char *dying)
{
    int64_t left = hold->left_ns == DLOCK_NEVER ? 0 : hold->left_ns;
    int64_t grace = dlock_max(o->grace_ns, 5 * DLOCK_SEC), pause = LOOK_FIRST;
    int64_t until =
        dlock_now() +
        (o->wait_ns != DLOCK_NEVER ? o->wait_ns : dlock_max(left, o->ttl_ns) + grace + DLOCK_SEC);
    char lock[LOCK_TEXT_MAX], holder[HOLDER_TEXT_MAX];
    for (;;) {
        struct found f = {.dying = dying};
        dlock_start_status(lk, NULL);
        int code = query_run(o, sig, lk, &f);
        bool held = code >= 0 || still_held(&f, hold);
        query_free(&f);
        if (!held)
            return 0;
        if (dlock_now() >= until) {
            if (code < 0)
                message("%s is still held: %s; the mark stays", message_lock(lk, "", lock),
                        message_process(hold, holder, sizeof(holder)));
            return code < 0 ? o->conflict_code : code;
        }
        pause_for(sig, lk, dying, dlock_min(pause, until - dlock_now()));
        pause = dlock_min(pause * 2, LOOK_MOST);
    }
}

/* The holder was shown, and the user agrees. */
static int break_hold(const struct options *o, const struct sigstate *sig, dlock *lk,
                      const struct dlock_info *hold)
{
    struct found f = {0};
    struct dlock_error err;
    char lock[LOCK_TEXT_MAX], holder[HOLDER_TEXT_MAX], dying[256];
    if (dlock_start_break(lk, hold, o->force, &err) < 0)
        return message_error(o, &err);
    int code = query_run(o, sig, lk, &f);
    message_lock(lk, "", lock);
    if (code >= 0) {
        if (f.busy && message_tells(o, ABOUT_TIMEOUT))
            message("%s has changed hands, nothing was done: %s", lock,
                    f.has_holder ? message_holder(&f.holder, holder, sizeof(holder)) : "held");
        query_free(&f);
        return code;
    }
    if (o->force)
        message("%s was freed by force: its command may still run beside the next one", lock);
    if (f.marked) {
        snprintf(dying, sizeof(dying), "%s",
                 f.why_free[0] ? f.why_free : "the mark stays: its holder will end its command");
        code = await_end(o, sig, lk, hold, dying);
    }
    if (code < 0)
        code = 0;
    if (code == 0 && message_tells(o, ABOUT_HELD))
        message("broken: %s, %s", lock, message_process(hold, holder, sizeof(holder)));
    query_free(&f);
    return code;
}

int break_mode(const struct options *o, const struct sigstate *sig)
{
    struct found f = {0};
    int code = 0;
    if (!query_may_ask(o, "--break"))
        return dlock_error_exit(DLOCK_EUSAGE);
    dlock *lk = query_open(o, &code);
    if (!lk)
        return code;
    dlock_start_status(lk, NULL);
    code = query_run(o, sig, lk, &f);
    if (code < 0)
        status_print(o, lk, &f);
    const struct dlock_info *hold = code < 0 ? pick(o, lk, &f, &code) : NULL;
    if (hold && !o->yes) {
        fflush(stdout);
        if (!query_agreed(sig, "break? [y/N] "))
            code = QUERY_REFUSED;
        /* Servers close a connection that is idle for long. */
        dlock_close(lk);
        lk = code < 0 ? query_open(o, &code) : NULL;
    }
    if (hold && code < 0)
        code = break_hold(o, sig, lk, hold);
    query_free(&f);
    dlock_close(lk);
    return code;
}
