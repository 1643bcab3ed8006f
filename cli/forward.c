/* forward.c - the signals that are on their way to the command. */
#include "forward.h"

#include <signal.h>
#include <string.h>

/* On a busy machine the keeper may tell of its signal long after the guard's copy came. */
#define COPY_LASTS DLOCK_SEC

struct forward_signal forward_describe(const struct signalfd_siginfo *si, int64_t at)
{
    /*
     * kill(2); sigqueue(3), which says who the sender is as kill does; tgkill(2) to our only thread
     */
    bool sent = si->ssi_code == SI_USER || si->ssi_code == SI_QUEUE || si->ssi_code == SI_TKILL;
    return (struct forward_signal){
        .sig = (int32_t)si->ssi_signo,
        .sender = sent ? (int32_t)si->ssi_pid : FORWARD_NO_SENDER,
        .uid = si->ssi_uid,
        .at = at,
    };
}

static bool same(const struct forward_signal *a, const struct forward_signal *b)
{
    return a->sig == b->sig && a->sender == b->sender && a->uid == b->uid;
}

/* The kernel counts real-time signals, and so do we. */
static bool is_counted(int sig)
{
    return sig >= SIGRTMIN;
}

/*
 * Passed on without a wait, and always. The kernel sends nothing to the guard, which has no
 * terminal. A second CONT does no harm, but a late CONT could undo a stop that came after it.
 */
static bool is_urgent(const struct forward_signal *s)
{
    return s->sender == FORWARD_NO_SENDER || s->sig == SIGCONT;
}

/* Remove the i-th of *n entries of an array. */
#define REMOVE(array, n, i)                                                                        \
    memmove(&(array)[i], &(array)[(i) + 1], (size_t)(--*(n) - (i)) * sizeof((array)[0]))

int forward_add(struct forward *f, const struct forward_signal *s)
{
    bool counted = is_counted(s->sig), shared = false;
    int sig = 0;
    /* A repetition of a waiting signal. Not behind another signal: their order would be lost. */
    for (int i = f->nwaiting - 1; i >= 0 && !counted && f->waiting[i].s.sig == s->sig; i--)
        if (same(&f->waiting[i].s, s) && s->at < f->waiting[i].until)
            return 0;
    if (f->nwaiting == FORWARD_MAX) {
        sig = f->waiting[0].shared ? 0 : f->waiting[0].s.sig;
        REMOVE(f->waiting, &f->nwaiting, 0);
    }
    /* The guard may have got a copy already. */
    for (int i = 0; i < f->ncopies && !shared; i++) {
        shared = same(&f->copies[i], s) && s->at - COPY_LASTS < f->copies[i].at;
        if (shared)
            REMOVE(f->copies, &f->ncopies, i);
    }
    f->waiting[f->nwaiting].s = *s;
    f->waiting[f->nwaiting].until = is_urgent(s) ? s->at : dlock_after(s->at, FORWARD_WAIT);
    f->waiting[f->nwaiting].shared = shared;
    f->nwaiting++;
    return sig;
}

void forward_copy(struct forward *f, const struct forward_signal *s)
{
    if (is_urgent(s))
        return;
    for (int i = 0; i < f->nwaiting; i++) {
        bool open = !f->waiting[i].shared || (!is_counted(s->sig) && s->at < f->waiting[i].until);
        if (open && same(&f->waiting[i].s, s)) {
            f->waiting[i].shared = true;
            return;
        }
    }
    if (f->ncopies == FORWARD_MAX)
        REMOVE(f->copies, &f->ncopies, 0);
    f->copies[f->ncopies++] = *s;
}

int forward_take(struct forward *f, int64_t now, bool *shared)
{
    for (int i = 0; i < f->nwaiting; i++) {
        int sig = f->waiting[i].s.sig;
        *shared = f->waiting[i].shared;
        if (now >= f->waiting[i].until) {
            REMOVE(f->waiting, &f->nwaiting, i);
            return sig;
        }
        if (!*shared)
            return 0; /* the signals behind wait, too: the command gets them in this order */
    }
    return 0;
}

int64_t forward_wake(const struct forward *f)
{
    int64_t at = DLOCK_NEVER;
    for (int i = 0; i < f->nwaiting; i++) {
        at = dlock_min(at, f->waiting[i].until);
        if (!f->waiting[i].shared)
            break;
    }
    return at;
}

static bool comes_again(const struct forward_unsent *u, int i)
{
    for (int j = i + 1; j < u->n; j++)
        if (u->at[j].sig == u->at[i].sig)
            return true;
    return false;
}

void forward_keep(struct forward_unsent *u, const struct forward_signal *s)
{
    bool repeated = u->n > 0 && !is_counted(s->sig) && same(&u->at[u->n - 1], s);
    int i = 0;
    if (repeated)
        u->n--;
    if (u->n == FORWARD_UNSENT_MAX) {
        while (i < u->n - 1 && !comes_again(u, i))
            i++;
        REMOVE(u->at, &u->n, i);
    }
    u->at[u->n++] = *s;
}

void forward_sent(struct forward_unsent *u)
{
    REMOVE(u->at, &u->n, 0);
}
