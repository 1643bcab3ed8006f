/*
 * redlock_renew.c - renewals, and the release.
 *
 * The lease counts from the time at which a majority had last confirmed. A minority that has lost
 * the lock (restarted without its data) is given the lock again while our own validity lasts. A
 * majority that has lost the lock may have granted it to a different client meanwhile: a certain
 * loss.
 */
#include "redlock_servers.h"

/* How long a release tries a lost connection again, and waits for the undo of an ungranted lock. */
#define RELEASE_PATIENCE (200 * DLOCK_MSEC)

/* ------------------------------------------------------------------------- renew */

void redlock_renew(struct dlock_be *dlock_be)
{
    struct redlock_backend *be = redlock_of(dlock_be);
    redlock_begin(be, OP_RENEW);
    be->proven = false;
    be->until = be->began + be->spec->op_timeout;
    for_each_server (be, s) {
        s->mark = MARK_NONE;
        s->retry_at = 0; /* the lease has its own pauses */
        if (redlock_reach(be, s, be->until))
            redlock_keep(be, s, KIND_RENEW);
    }
}

static int count_lost(const struct redlock_backend *be)
{
    int lost = 0;
    for_each_server (be, s)
        lost += s->loss != LOSS_NONE;
    return lost;
}

static void lost_error(const struct redlock_backend *be, struct dlock_error *err)
{
    const struct dlock_info *info = NULL;
    int lost = count_lost(be);
    for_each_server (be, s)
        if (s->answer == A_BUSY)
            info = &s->info;
    if (!info)
        dlock_fail(err, DLOCK_ELOST, 0,
                   "gone on %d of %d servers: the key expired, was deleted, or was lost by them",
                   lost, be->n);
    else if (info->foreign)
        dlock_fail(err, DLOCK_ELOST, 0,
                   "not ours on %d of %d servers: another program took the lock", lost, be->n);
    else
        dlock_fail(err, DLOCK_ELOST, 0,
                   "not ours on %d of %d servers: %s@%s, pid %ld took the lock", lost, be->n,
                   info->user, info->host, info->pid);
}

/*
 * The lock is lost when a majority of the servers has lost it or granted it to a different client,
 * even where the remaining servers have confirmed the renewal. Half of an even number is no
 * majority: as long as half of the servers are ours, no client can get the lock.
 */
static bool report_lost(struct redlock_backend *be)
{
    if (be->claim == CLAIM_LOST || count_lost(be) < be->quorum)
        return false;
    be->claim = CLAIM_LOST;
    lost_error(be, &events_add(&be->events, EV_LOST)->error);
    return true;
}

/* from: when a server, or a majority, has last confirmed. See lease.h for the drift. */
static bool still_valid(const struct redlock_backend *be, int64_t from)
{
    int64_t ttl = be->spec->ttl;
    return from != 0 && spec_now(be->spec) < from + ttl - ttl / 100 - 2 * DLOCK_MSEC;
}

/* A server that has forgotten the vote was restarted too recently to have voted since. */
static void not_ours(struct redlock_backend *be, struct redlock_server *s,
                     const struct redis_script_owned *o)
{
    bool was_valid = still_valid(be, redlock_from(be));
    if (!o->forgotten && s->loss == LOSS_NONE)
        s->loss = LOSS_GONE;
    if (s->loss == LOSS_GONE && still_valid(be, s->from))
        s->loss = LOSS_EARLY;
    s->from = 0;
    s->answer = A_GONE;
    s->mark = o->found ? MARK_NONE : MARK_LOST;
    if (o->found) {
        s->answer = A_BUSY;
        redis_script_holder(o->found, o->len, &s->info);
    } else if (was_valid && count_lost(be) < be->quorum) {
        s->touched = true;
        redlock_keep(be, s, KIND_HEAL);
    }
    /* The renewal has ended before this answer. */
    if (be->op == OP_NONE)
        report_lost(be);
}

static void read_mark(struct redlock_backend *be, struct redlock_server *s,
                      struct redis_script_owned *o)
{
    int64_t when_ms;
    if (!o->found)
        return;
    const char *by = redis_script_mark(o->found, &o->len, &when_ms);
    dlock_broken(&be->broken, be->spec, by, o->len);
    s->mark = MARK_SEEN;
}

/*
 * Is the hold broken? A majority has the mark, or had it: a server that has lost the lock counts
 * beside a mark, since the mark may have been lost with the lock. *open: silent servers can decide.
 */
static bool is_broken(const struct redlock_backend *be, bool *open)
{
    int seen = 0, lost = 0, pending = redlock_count(be, A_PENDING);
    for_each_server (be, s) {
        seen += s->mark == MARK_SEEN;
        lost += s->mark == MARK_LOST;
    }
    bool broken = seen > 0 && seen + lost >= be->quorum;
    *open = !broken && seen > 0 && seen + lost + pending >= be->quorum;
    return broken;
}

static void renew_answered(struct redlock_backend *be, struct redlock_server *s,
                           struct redis_conn_reply *rep)
{
    struct redis_script_owned o;
    bool current = rep->tag == REDLOCK_TAG(be->serial, KIND_RENEW) ||
                   rep->tag == REDLOCK_TAG(be->serial, KIND_HEAL);
    if (s->node.cmd.auth_failed || rep->r->type == REDIS_REPLY_ERROR) {
        if (current)
            redlock_refused(be, s, rep->r);
        return;
    }
    if (redis_script_owned(rep->r, &o) != 0) {
        if (!current)
            return;
        redlock_misread(s, "a renewal");
        redlock_drop(be, s);
        return;
    }
    redlock_well(s);
    int64_t jump = redis_node_clock(&s->node, o.now_ms, rep->sent, spec_now(be->spec));
    if (jump != 0) {
        struct dlock_error warning;
        redis_clock_warning(jump, s->where, &warning);
        redlock_notice(be, &warning);
    }
    /* Sent for the lock we hold, not for an earlier lock released meanwhile? */
    unsigned since_vote = (REDLOCK_TAG_SERIAL(rep->tag) - be->vote_serial) & REDLOCK_SERIALS;
    if (o.ours && be->claim != CLAIM_NONE && since_vote <= be->serial - be->vote_serial) {
        s->from = dlock_max(s->from, rep->sent);
        if (!current)
            return;
        read_mark(be, s, &o);
        /* With RUN_NOW the server must have the record, too. Before it is healed it has none. */
        bool recorded = o.recorded || be->spec->hold->begin != RUN_NOW;
        s->answer = recorded ? A_YES : s->loss != LOSS_NONE ? A_GONE : A_FOREIGN;
        if (s->answer == A_FOREIGN)
            redlock_run_foreign(be, s, &s->error);
    } else if (current && be->claim != CLAIM_NONE) {
        not_ours(be, s, &o);
    }
}

/*
 * True: servers that should forget nothing have lost the lock, and together with the silent servers
 * they are a majority. All of them may have lost the lock and granted it to a different client,
 * before we set it again, server by server.
 */
static bool doubtful(const struct redlock_backend *be, struct dlock_error *err)
{
    int lost = 0, silent = 0, gone = count_lost(be);
    for_each_server (be, s) {
        lost += s->loss == LOSS_EARLY;
        silent += s->loss == LOSS_NONE && !s->same && s->answer != A_YES && s->answer != A_GONE;
    }
    if (lost == 0 || gone + silent < be->quorum)
        return false;
    dlock_fail(err, DLOCK_EUNAVAIL, 0,
               "the lock was gone on %d of %d servers, and %d do not answer", gone, be->n, silent);
    return true;
}

static void renew_step(struct redlock_backend *be, int64_t now)
{
    int yes = redlock_count(be, A_YES), pending = redlock_count(be, A_PENDING), healed = 0;
    struct dlock_error doubt;
    for_each_server (be, s)
        healed += s->answer == A_YES && s->loss != LOSS_NONE;
    bool patient = redlock_patient(be, yes, now), complete = pending == 0 || !patient;
    bool open, broken = is_broken(be, &open);
    if (report_lost(be)) {
        ;
    } else if (open && patient) {
        return;
    } else if (yes - healed >= be->quorum ||
               (yes >= be->quorum && complete && !doubtful(be, &doubt))) {
        /* A majority with healed servers counts once all have answered: more may have lost it. */
        struct dlock_event *ev = events_add(&be->events, EV_RENEWED);
        ev->from = redlock_from(be);
        ev->ttl = be->spec->ttl;
        for_each_server (be, s)
            if (s->answer == A_FAILED)
                ev->error = s->error;
        ev->broken = broken;
        if (broken)
            ev->error = be->broken;
        be->proven = true;
    } else if (pending > 0 && yes + pending >= be->quorum && now < be->until) {
        return;
    } else if (yes >= be->quorum) {
        events_add(&be->events, EV_UNCLEAR)->error = doubt;
    } else {
        redlock_no_quorum(be, &events_add(&be->events, EV_UNCLEAR)->error);
    }
    be->op = OP_NONE;
    be->until = DLOCK_NEVER;
}

const struct redlock_operation redlock_op_renew = {
    .answered = renew_answered,
    .step = renew_step,
    .wake_at = redlock_wake_at,
};

/* ------------------------------------------------------------------------ release */

/* Servers serve requests in order: the release undoes the unanswered requests in front of it. */
static void leave(struct redlock_backend *be, struct redlock_server *s)
{
    if (redis_conn_has_ended(&s->node.cmd)) {
        redlock_drop(be, s);
        s->retry_at = 0;
    }
    bool open = redis_conn_is_open(&s->node.cmd) &&
                s->node.cmd.ntags < REDIS_CONN_TAGS - REDIS_NODE_UNDO - 1;
    if (!open && !redlock_reach(be, s, be->until))
        return;
    redlock_undo(be, s);
    s->answer = A_PENDING;
    redlock_run_end(be, s);
}

/* May the server hold our lock, our vote, or our place in its queue? */
static bool concerned(const struct redlock_backend *be, const struct redlock_server *s)
{
    if (s->same)
        return false; /* undone under its first name; a second answer would look like a loss */
    if (be->claim != CLAIM_NONE)
        return true;
    if (s->touched && redis_conn_is_open(&s->node.cmd) && !s->node.cmd.written)
        return false; /* the vote has never left */
    /* A waiter without a connection is not in the queue. */
    return s->touched || s->node.undo.n > 0 || (s->queued && redis_conn_is_open(&s->node.cmd));
}

void redlock_release(struct redlock_backend *be, int64_t until)
{
    redlock_begin(be, OP_RELEASE);
    be->until = until;
    for_each_server (be, s) {
        s->left = s->once.written = false;
        if (s->touched)
            s->retry_at = 0; /* try again at once, even after a failure a moment ago */
        if (be->value && concerned(be, s))
            leave(be, s);
        else if (s->touched)
            redis_conn_close(&s->node.cmd);
    }
}

static void leave_answered(struct redlock_backend *be, struct redlock_server *s,
                           struct redis_conn_reply *rep)
{
    struct redis_script_owned o;
    bool granted = be->claim == CLAIM_GRANTED;
    if (rep->tag != REDLOCK_TAG(be->serial, KIND_LEAVE) || be->op != OP_RELEASE)
        return;
    s->error.code = 0;
    if (s->node.cmd.auth_failed || rep->r->type == REDIS_REPLY_ERROR) {
        redlock_refused(be, s, rep->r);
    } else if (redis_script_owned(rep->r, &o) != 0) {
        redlock_misread(s, "a release");
        s->retry_at = spec_now(be->spec) + dlock_backoff_next(&s->pause, be->spec->env);
    } else if (o.ours || o.recorded || (s->left && !(granted && run_record_must(be->spec)))) {
        s->answer = A_YES; /* left: an earlier release was served, its answer lost */
        s->once.written = o.recorded;
    } else {
        s->loss = o.forgotten ? LOSS_NONE : LOSS_GONE;
        s->answer = o.found ? A_BUSY : A_GONE;
        if (o.found)
            redis_script_holder(o.found, o.len, &s->info);
    }
}

static void end_release(struct redlock_backend *be, enum dlock_release_how how,
                        const struct dlock_error *err)
{
    struct dlock_event *ev = redlock_end(be, EV_RELEASED);
    ev->how = how;
    if (err)
        ev->error = *err;
    be->claim = CLAIM_NONE;
    for_each_server (be, s) {
        s->touched = s->queued = s->left = s->freed = s->node.cmd.held = false;
        s->from = 0;
        s->place = 0;
    }
}

/* The server refuses the release: the user lacks a right, and will lack it next time, too. */
static bool forbids(const struct redlock_server *s)
{
    return s->answer == A_REFUSED && s->error.code == DLOCK_EPERM;
}

/* Should the release be sent once more? */
static bool again(const struct redlock_server *s)
{
    return s->answer == A_FAILED || (s->answer == A_REFUSED && !forbids(s));
}

static void leave_again(struct redlock_backend *be, int64_t now)
{
    for_each_server (be, s)
        if (again(s) && now >= s->retry_at)
            leave(be, s);
}

static int64_t release_patience(const struct redlock_backend *be)
{
    return dlock_min(be->until, be->began + RELEASE_PATIENCE);
}

static int64_t release_wake_at(const struct redlock_backend *be)
{
    int64_t at = redlock_wake_at(be);
    if (release_patience(be) > be->stepped)
        at = dlock_min(at, release_patience(be));
    for_each_server (be, s)
        if (again(s))
            at = dlock_min(at, s->retry_at);
    return at;
}

static void release_step(struct redlock_backend *be, int64_t now)
{
    int yes = 0, answered = 0, pending = 0, recorded = 0, recordable = 0, retried = 0;
    bool unreached = false; /* a server possibly with a vote for us could not be reached */
    const struct dlock_error *forbidden = NULL;
    struct dlock_error err, why;
    for_each_server (be, s) {
        yes += s->answer == A_YES;
        answered += s->answer == A_YES || s->answer == A_GONE || s->answer == A_BUSY;
        pending += s->answer == A_PENDING;
        recorded += s->once.written;
        recordable += s->once.written || again(s) || s->answer == A_PENDING || s->answer == A_LATE;
        retried += again(s);
        unreached = unreached || (again(s) && (s->touched || s->node.undo.n > 0));
        if (forbids(s))
            forbidden = &s->error;
    }
    unreached = unreached && now < release_patience(be);
    if (be->claim == CLAIM_NONE) {
        if ((pending == 0 && !unreached) || now >= release_patience(be))
            end_release(be, DLOCK_RELEASE_NOTHING, NULL);
        else
            leave_again(be, now);
        return;
    }
    /* Wait for all servers, for a moment: an unconfirmed server keeps the key for its ttl. */
    bool patient = redlock_patient(be, answered, now);
    bool complete = !unreached && (pending == 0 || !patient);
    /* Without the servers that were ours no majority is left; or all servers have answered. */
    bool clean = (answered >= be->quorum && yes > be->n - be->quorum) || answered == be->n;
    bool must_record = be->claim == CLAIM_GRANTED && run_record_must(be->spec);
    bool unrecorded = must_record && recorded < be->quorum;
    if (unrecorded && recordable >= be->quorum && now < be->until) {
        leave_again(be, now);
    } else if (count_lost(be) >= be->quorum && complete) {
        lost_error(be, &err);
        end_release(be, DLOCK_RELEASE_NOT_OURS, &err);
    } else if (clean && complete && !unrecorded) {
        end_release(be, DLOCK_RELEASE_CLEAN, NULL);
    } else if (pending == 0 && forbidden && retried == 0) {
        end_release(be, DLOCK_RELEASE_UNCLEAR, forbidden);
    } else if ((answered >= be->quorum && complete) || now >= be->until) {
        redlock_why(be, 0, &why);
        dlock_fail_at(&err, DLOCK_EUNAVAIL, 0, be->spec->uri->where,
                      unrecorded ? "%d of %d servers have recorded the end of the run, a majority "
                                   "is needed%s%s"
                                 : "%d of %d servers have answered the release%s%s",
                      unrecorded ? recorded : answered, be->n, why.msg[0] ? "; " : "", why.msg);
        end_release(be, DLOCK_RELEASE_UNCLEAR, &err);
    } else {
        leave_again(be, now);
    }
}

const struct redlock_operation redlock_op_release = {
    .answered = leave_answered,
    .step = release_step,
    .wake_at = release_wake_at,
};
