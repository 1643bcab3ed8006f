/*
 * keeper_store.c - what the store says of the lock: the guard gets the times and the orders that follow from
 * it, the user the words.
 */
#include "keeper.h"

#include "util.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SAY_AGAIN (5 * DLOCK_SEC)

void keeper_tell_lost(struct keeper *k, const char *what, const char *why)
{
    char lock[SAY_LOCK_MAX];
    k->lost = true;
    if (!k->told_lost)
        say("%s: the lock %s%s%s%s", say_lock(k->lk, lock, sizeof lock), what, why[0] ? ": " : "",
            why,
            keeper_may_end(k) ? "; ending the command" : "; the command goes on (--on-lost warn)");
    k->told_lost = true;
}

static void on_busy(struct keeper *k, const struct dlock_info *info)
{
    char lock[SAY_LOCK_MAX], who[SAY_LOCK_MAX], by[SAY_LOCK_MAX + 16], waited[32];
    if (!k->o->quiet) {
        say_lock(k->lk, lock, sizeof lock);
        if (info)
            snprintf(by, sizeof by, "held by %s", say_holder(info, who, sizeof who));
        else /* free, but kept for the first in line, or the store grants nothing yet */
            snprintf(by, sizeof by, "not to be had");
        if (k->o->nonblock)
            say("%s is %s", lock, by);
        else
            say("%s is still %s after %s", lock, by,
                dlock_format_duration(k->o->wait_ns, waited, sizeof waited));
    }
    k->code = k->o->conflict_code;
    keeper_over(k);
}

static void on_released(struct keeper *k, const struct dlock_report *r)
{
    char lock[SAY_LOCK_MAX];
    const char *colon = r->error.msg[0] ? ": " : "";
    say_lock(k->lk, lock, sizeof lock);
    if (r->how == DLOCK_REL_NOT_OURS && !k->lost) {
        say("%s was not ours any more when it was released%s%s", lock, colon, r->error.msg);
        k->lost = true;
    }
    if (r->how == DLOCK_REL_UNCLEAR && !k->lost && !k->die_sig)
        say("%s: no answer to the release%s%s; it ends with its ttl", lock, colon, r->error.msg);
    keeper_over(k);
}

static void on_report(struct keeper *k, const struct dlock_report *r)
{
    switch (r->type) {
    case DLOCK_R_WAITING:
        k->have_holder = r->info != NULL;
        if (r->info)
            k->holder = *r->info;
        k->place = r->place;
        k->news = true;
        break;
    case DLOCK_R_ACQUIRED:
        k->times = r->times;
        k->phase = K_GRANTED;
        break;
    case DLOCK_R_BUSY:
        on_busy(k, r->info);
        break;
    case DLOCK_R_FAILED:
        k->code = say_error(k->o, &r->error);
        keeper_over(k);
        break;
    case DLOCK_R_EXTENDED:
        k->times = r->times;
        keeper_tell_guard(k, G_EXTEND, 0, &r->times);
        break;
    /* First the deed, then the word. */
    case DLOCK_R_TERM:
        if (keeper_may_end(k))
            keeper_end_tree(k, SIGTERM, r->times.kill_at);
        keeper_tell_lost(k, "could not be renewed in time", r->error.msg);
        break;
    case DLOCK_R_LOST:
        if (keeper_may_end(k))
            keeper_end_tree(k, SIGKILL, 0);
        keeper_tell_lost(k, "is lost", r->error.msg);
        break;
    case DLOCK_R_RELEASED:
        on_released(k, r);
        break;
    case DLOCK_R_NOTICE:
        if (r->error.code ? !k->o->quiet : k->o->verbose)
            say("%s", r->error.msg);
        break;
    default:
        break;
    }
}

void keeper_say_waiting(struct keeper *k, int64_t now)
{
    char who[SAY_LOCK_MAX], ahead[64] = "";
    if (k->phase != K_ACQUIRE || !k->news || now < k->say_at)
        return;
    k->news = false;
    k->say_at = now + SAY_AGAIN;
    if (k->o->quiet || !(k->o->verbose || isatty(STDERR_FILENO)))
        return;
    if (k->place > 1)
        snprintf(ahead, sizeof ahead, ", %d in the queue before us", k->place - 1);
    say_holder(k->have_holder ? &k->holder : &(struct dlock_info){0}, who, sizeof who);
    bool bare = strcmp(dlock_where(k->lk), dlock_name(k->lk)) == 0;
    say("waiting for '%s'%s%s%s, held by %s%s", dlock_name(k->lk), bare ? "" : " (",
        bare ? "" : dlock_where(k->lk), bare ? "" : ")", who, ahead);
}

void keeper_read_store(struct keeper *k, const struct pollfd *pfd, int n)
{
    struct dlock_report r;
    enum keeper_phase before = k->phase;
    while (k->phase != K_OVER && dlock_process(k->lk, pfd, n, &r)) {
        on_report(k, &r);
        pfd = NULL;
        n = 0;
        if (before == K_ACQUIRE && k->phase == K_GRANTED)
            return;
    }
}
