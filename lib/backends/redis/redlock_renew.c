/*
 * redlock_renew.c - renewals, and the release.
 *
 * The lease counts from the time at which a majority had last confirmed. A minority that has lost the lock
 * (restarted without its data) is given it again, while our own validity lasts; a majority that has lost it
 * may have given it to somebody else meanwhile: that is a certain loss.
 */
#include "redlock.h"

#include <string.h>

/* For a server that has lost the connection, and for the undoing of what was not even granted. */
#define RELEASE_PATIENCE (200 * DLOCK_MSEC)

/* ------------------------------------------------------------------------- renew */

void redlock_renew(struct dlock_be *be)
{
    be->doing = DO_RENEW;
    redlock_begin(be);
    be->proven = false;
    be->op_until = be->began + be->spec->op_timeout;
    for (int i = 0; i < be->n; i++) {
        struct redlock_node *n = &be->nodes[i];
        if (!redlock_reach(be, n, be->op_until))
            continue;
        n->answer = A_PENDING;
        (void)redis_script_keep(&be->script, &n->cmd, REDLOCK_TAG(be->op, K_RENEW), be->value,
                                be->spec->ttl, be->fence, false, be->restart_grace);
        redis_conn_flush(&n->cmd);
    }
}

static int count_lost(const struct dlock_be *be)
{
    int lost = 0;
    for (int i = 0; i < be->n; i++)
        lost += be->nodes[i].gone;
    return lost;
}

static void say_lost(const struct dlock_be *be, struct dlock_error *err)
{
    const struct dlock_info *info = NULL;
    const char *name = be->spec->uri->name;
    int lost = count_lost(be);

    for (int i = 0; i < be->n; i++)
        if (be->nodes[i].answer == A_BUSY)
            info = &be->nodes[i].info;
    if (info == NULL)
        dlock_fail(
            err, DLOCK_ELOST, 0,
            "the lock '%s' is gone on %d of %d servers: it expired, was deleted, or they lost it",
            name, lost, be->n);
    else if (info->foreign)
        dlock_fail(err, DLOCK_ELOST, 0,
                   "the lock '%s' is not ours on %d of %d servers: another program took it", name,
                   lost, be->n);
    else
        dlock_fail(err, DLOCK_ELOST, 0,
                   "the lock '%s' is not ours on %d of %d servers: %s@%s, pid %ld took it", name,
                   lost, be->n, info->user, info->host, info->pid);
}

/*
 * A majority of the servers has lost it, or has another one's: whatever was confirmed otherwise. Half of an even
 * number is none: as long as the other half is ours, nobody can have it.
 */
static bool tell_lost(struct dlock_be *be)
{
    if (be->lost || count_lost(be) < be->quorum)
        return false;
    be->lost = true;
    say_lost(be, &events_add(&be->events, EV_LOST)->error);
    return true;
}

/* Of what was confirmed by a server, or by a majority. See lease.h for the drift. */
static bool still_valid(const struct dlock_be *be, int64_t from)
{
    int64_t ttl = be->spec->ttl;
    return from != 0 && redlock_now(be) < from + ttl - ttl / 100 - 2 * DLOCK_MSEC;
}

/* forgotten: in a restart so short a time ago that the server has voted for nobody since. */
static void not_ours(struct dlock_be *be, struct redlock_node *n, const char *found, size_t len,
                     bool forgotten)
{
    bool was_valid = still_valid(be, redlock_from(be));
    n->gone |= !forgotten;
    n->lost |= n->gone && still_valid(be, n->from);
    n->from = 0;
    n->answer = A_GONE;
    if (found != NULL) {
        n->answer = A_BUSY;
        redis_script_holder(found, len, &n->info);
    } else if (was_valid && count_lost(be) < be->quorum) {
        n->answer = A_PENDING;
        n->touched = true;
        (void)redis_script_keep(&be->script, &n->cmd, REDLOCK_TAG(be->op, K_HEAL), be->value,
                                be->spec->ttl, be->fence, true, be->restart_grace);
        redis_conn_flush(&n->cmd);
    }
    /* The renewal has ended without this answer. */
    if (be->doing == DO_NOTHING)
        tell_lost(be);
}

/* Was it sent for the lock that we have, not for an earlier one that was given back meanwhile? */
static bool of_this_lock(const struct dlock_be *be, int tag)
{
    return be->granted &&
           ((REDLOCK_TAG_OP(tag) - be->vote_op) & REDLOCK_OPS) <= be->op - be->vote_op;
}

void redlock_renew_answered(struct dlock_be *be, struct redlock_node *n,
                            const struct redis_conn_reply *rep)
{
    const char *found;
    size_t len;
    bool ours;
    bool current =
        rep->tag == REDLOCK_TAG(be->op, K_RENEW) || rep->tag == REDLOCK_TAG(be->op, K_HEAL);

    if (n->cmd.auth_failed || rep->r->type == REDIS_REPLY_ERROR) {
        if (current)
            redlock_node_refused(be, n, rep->r);
        return;
    }
    if (redis_script_owned(rep->r, &ours, &found, &len) != 0) {
        if (!current)
            return;
        n->answer = A_REFUSED;
        dlock_fail(&n->error, DLOCK_EPROTO, 0, "%s: unexpected answer to a renewal", n->where);
        redlock_drop(be, n);
        return;
    }
    redlock_node_well(n);
    redlock_clock(be, n, redis_script_owned_at(rep->r), rep->sent);
    if (ours && of_this_lock(be, rep->tag)) {
        n->from = dlock_max(n->from, rep->sent);
        if (current)
            n->answer = A_YES;
    } else if (current && be->granted) {
        not_ours(be, n, found, len, redis_script_forgotten(rep->r));
    }
}

/*
 * Servers that are meant to forget nothing have lost it, and together with those that do not answer they are a majority:
 * all of these may have lost it, given it to somebody and been given it again by us, one by one.
 */
static bool doubtful(const struct dlock_be *be, struct dlock_error *err)
{
    int lost = 0, silent = 0, gone = count_lost(be);

    for (int i = 0; i < be->n; i++) {
        const struct redlock_node *n = &be->nodes[i];
        lost += n->lost;
        silent += !n->gone && !n->same && n->answer != A_YES && n->answer != A_GONE;
    }
    if (lost == 0 || gone + silent < be->quorum)
        return false;
    dlock_fail(err, DLOCK_EUNAVAIL, 0,
               "the lock '%s' was gone on %d of %d servers, and %d do not answer",
               be->spec->uri->name, gone, be->n, silent);
    return true;
}

static void renewed(struct dlock_be *be)
{
    struct dlock_event *ev = events_add(&be->events, EV_RENEWED);
    ev->from = redlock_from(be);
    ev->ttl = be->spec->ttl;
    for (int i = 0; i < be->n; i++)
        if (be->nodes[i].answer == A_FAILED)
            ev->error = be->nodes[i].error;
    be->proven = true;
}

void redlock_renew_step(struct dlock_be *be, int64_t now)
{
    int yes = redlock_count(be, A_YES), pending = redlock_count(be, A_PENDING), healed = 0;
    struct dlock_error doubt;

    for (int i = 0; i < be->n; i++)
        healed += be->nodes[i].answer == A_YES && be->nodes[i].gone;
    bool patient = redlock_patient(be, yes, now), heard = pending == 0 || !patient;
    if (tell_lost(be)) {
        ;
    } else if (yes - healed >= be->quorum ||
               (yes >= be->quorum && heard && !doubtful(be, &doubt))) {
        /* Where healed ones make the majority, the others are heard first: they may have lost it, too. */
        renewed(be);
    } else if (pending > 0 && yes + pending >= be->quorum && now < be->op_until) {
        return;
    } else if (yes >= be->quorum) {
        events_add(&be->events, EV_UNCLEAR)->error = doubt;
    } else {
        redlock_no_quorum(be, &events_add(&be->events, EV_UNCLEAR)->error);
    }
    be->doing = DO_NOTHING;
    be->op_until = DLOCK_NEVER;
}

/* ------------------------------------------------------------------------ release */

/* Requests are served in order, so this goes out behind whatever is still unanswered and undoes that too. */
static void leave(struct dlock_be *be, struct redlock_node *n)
{
    bool open = redis_conn_is_open(&n->cmd) && n->cmd.ntags < REDIS_CONN_TAGS - REDLOCK_STALE - 1;
    if (!open && !redlock_reach(be, n, be->op_until))
        return;
    redlock_undo_stale(be, n);
    n->answer = A_PENDING;
    (void)redis_script_unvote(&be->script, &n->cmd, REDLOCK_TAG(be->op, K_LEAVE), be->value,
                              n->queued ? be->id : "", be->restart_grace);
    redis_conn_flush(&n->cmd);
}

/* Is there, or may there be, anything of ours? */
static bool concerned(const struct dlock_be *be, const struct redlock_node *n)
{
    if (n->same)
        return false; /* undone under its other name; the second answer would look like a loss */
    if (be->granted)
        return true;
    if (n->touched && redis_conn_is_open(&n->cmd) && !n->cmd.written)
        return false; /* the vote has never left */
    /* Whose connection is gone stands in no line. */
    return n->touched || n->nstale > 0 || (n->queued && redis_conn_is_open(&n->cmd));
}

void redlock_release(struct dlock_be *be, int64_t until)
{
    be->events.n = 0;
    redlock_drop_listing(be);
    redlock_wait_close(be);
    be->op_until = until;
    if (be->doing == DO_RELEASE)
        return;
    be->doing = DO_RELEASE;
    redlock_begin(be);
    for (int i = 0; i < be->n; i++) {
        struct redlock_node *n = &be->nodes[i];
        n->left = false;
        if (n->touched)
            n->retry_at = 0; /* one more attempt at once, whatever happened a moment ago */
        if (be->value != NULL && concerned(be, n))
            leave(be, n);
        else if (n->touched)
            redis_conn_close(&n->cmd);
    }
}

void redlock_leave_answered(struct dlock_be *be, struct redlock_node *n,
                            const struct redis_conn_reply *rep)
{
    const char *found;
    size_t len;
    bool ours;

    if (rep->tag != REDLOCK_TAG(be->op, K_LEAVE) || be->doing != DO_RELEASE)
        return;
    if (n->cmd.auth_failed || rep->r->type == REDIS_REPLY_ERROR) {
        redlock_node_refused(be, n, rep->r);
    } else if (redis_script_owned(rep->r, &ours, &found, &len) != 0) {
        n->answer = A_REFUSED;
        n->retry_at = redlock_now(be) + dlock_backoff_next(&n->pause, be->spec->env);
        dlock_fail(&n->error, DLOCK_EPROTO, 0, "%s: unexpected answer to a release", n->where);
    } else if (ours || n->left) {
        n->answer = A_YES; /* left: an earlier release was served, its answer lost */
    } else {
        n->gone = !redis_script_forgotten(rep->r);
        n->answer = found != NULL ? A_BUSY : A_GONE;
        if (found != NULL)
            redis_script_holder(found, len, &n->info);
    }
}

static void end_release(struct dlock_be *be, enum dlock_how how, const struct dlock_error *err)
{
    struct dlock_event *ev = events_add(&be->events, EV_RELEASED);
    ev->how = how;
    if (err != NULL)
        ev->error = *err;
    be->doing = DO_NOTHING;
    be->granted = false;
    be->op_until = DLOCK_NEVER;
    for (int i = 0; i < be->n; i++) {
        struct redlock_node *n = &be->nodes[i];
        n->touched = n->queued = n->left = n->freed = false;
        n->from = 0;
        n->place = 0;
    }
}

/* Is there to be one more attempt? */
static bool again(const struct redlock_node *n)
{
    return n->answer == A_FAILED || n->answer == A_REFUSED;
}

/* Once more, where it failed. */
static void leave_again(struct dlock_be *be, int64_t now)
{
    for (int i = 0; i < be->n; i++)
        if (again(&be->nodes[i]) && now >= be->nodes[i].retry_at)
            leave(be, &be->nodes[i]);
}

/* Is there a server that may have a vote for us, and could not be reached? */
static bool owing(const struct dlock_be *be)
{
    for (int i = 0; i < be->n; i++) {
        const struct redlock_node *n = &be->nodes[i];
        if (again(n) && (n->touched || n->nstale > 0))
            return true;
    }
    return false;
}

static int64_t release_patience(const struct dlock_be *be)
{
    return dlock_min(be->op_until, be->began + RELEASE_PATIENCE);
}

int64_t redlock_release_wake_at(const struct dlock_be *be)
{
    int64_t at = release_patience(be) > be->stepped ? release_patience(be) : be->op_until;
    for (int i = 0; i < be->n; i++)
        if (again(&be->nodes[i]))
            at = dlock_min(at, be->nodes[i].retry_at);
    return at;
}

void redlock_release_step(struct dlock_be *be, int64_t now)
{
    int yes = redlock_count(be, A_YES), pending = redlock_count(be, A_PENDING);
    struct dlock_error err;

    if (!be->granted) {
        if ((pending == 0 && !owing(be)) || now >= release_patience(be))
            end_release(be, DLOCK_REL_NOTHING, NULL);
        else
            leave_again(be, now);
        return;
    }
    int lost = count_lost(be);
    int answered = yes + redlock_count(be, A_GONE) + redlock_count(be, A_BUSY);
    /* The servers are heard out, for a moment: who has not confirmed keeps the key for its ttl. */
    bool patient = redlock_patient(be, answered, now);
    bool owed = owing(be) && now < release_patience(be);
    bool heard = !owed && (pending == 0 || !patient);
    /* Ours on so many that the others are no majority; or nothing is left anywhere. */
    bool clean = (answered >= be->quorum && yes > be->n - be->quorum) || answered == be->n;
    if (lost >= be->quorum && heard) {
        say_lost(be, &err);
        end_release(be, DLOCK_REL_NOT_OURS, &err);
    } else if (clean && heard) {
        end_release(be, DLOCK_REL_CLEAN, NULL);
    } else if ((answered >= be->quorum && heard) || now >= be->op_until) {
        dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: %d of %d servers have answered the release",
                   be->spec->uri->where, answered, be->n);
        end_release(be, DLOCK_REL_UNCLEAR, &err);
    } else {
        leave_again(be, now);
    }
}
