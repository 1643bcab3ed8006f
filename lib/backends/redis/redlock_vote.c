/*
 * redlock_vote.c - acquire: rounds of votes, until one has a majority.
 *
 * A round asks all servers at once. With a majority of votes the fencing token is the highest of the
 * voters' counters, and a second round raises their counters to it: the next holder needs a majority, too,
 * so at least one of its voters knows this token, and gives a higher one. Without the second round tokens go
 * backwards where majorities overlap in a server with a lower counter.
 *
 * A reader's (a shared holder's) vote raises no counter; its token is the highest of its voters' counters, too, and is
 * confirmed by a majority in the same second round. So of a reader R and a writer W that hold the lock one after the
 * other, two majorities have a server in common: one confirmed the earlier holder's token, the other voted for the
 * later one. On that server the later vote was given after the earlier one had ended, so after the token was confirmed
 * there. W before R: R's voter had a counter of at least W's token, so R's token is not below it. R before W: W's voter
 * had at least R's token and counted one more, so W's token is above it. A server that has lost its counter begins at
 * its clock, for a reader as well.
 *
 * The votes of a round without a majority are given back everywhere before anything else happens. Then the
 * pauses are random, so that two clients that have split the votes do not do so indefinitely.
 *
 * Each server has a queue of its own (script.h), and wakes the first waiter in it when the lock is free there.
 * The queues may differ, so they decide nothing: they keep all but a few waiters from rushing at a lock that was
 * released. A waiter that a majority has woken asks for votes at once. One that fewer servers have woken asks a little
 * later: one server may have lost the key, or have another queue. Timers stand behind every wake-up.
 */
#include "redlock_servers.h"

#include <stdlib.h>
#include <string.h>

#define UNDO_TIME                                                                                  \
    (50 * DLOCK_MSEC) /* how long the next round waits for an undo that is not confirmed */
#define HEAR_ALL                                                                                   \
    (200 * DLOCK_MSEC) /* a round that cannot win waits so long for all, for its message */
#define SPLITS 10      /* rounds that a client without -w tries while the votes are split */
#define POLL_PAUSE (200 * DLOCK_MSEC) /* where the servers cannot report changes */
#define PLACE_STEP (100 * DLOCK_MSEC) /* between the rounds of the waiters behind the first one */
#define FEW_PAUSE (30 * DLOCK_MSEC)   /* woken by less than a majority */
#define HEAD_PAUSE (5 * DLOCK_MSEC)   /* several servers report it at about the same time */
#define CLAIM_SLACK (20 * DLOCK_MSEC)
#define CHANGED_STEP (100 * DLOCK_MSEC) /* between rounds because readers have renewed the lock */

static int64_t jitter(const struct redlock_backend *be, int64_t max)
{
    uint64_t r;
    if (be->spec->env->random(be->spec->env->ctx, &r, sizeof(r)) < 0)
        return max;
    return (int64_t)(r % (uint64_t)max);
}

/* --------------------------------------------------------------------- connections */

void redlock_wait_close(struct redlock_backend *be)
{
    for (int i = 0; i < be->n; i++) {
        redis_node_unsubscribe(&be->servers[i].node);
        be->servers[i].wake_retry_at = DLOCK_NEVER;
    }
    free(be->acquire.channel);
    be->acquire.channel = NULL;
}

/* Subscribe before joining the queue: no wake-up is lost, and a waiter that cannot be reached does not count. */
static void wake_start(struct redlock_backend *be, struct redlock_server *s)
{
    int64_t until = redlock_now(be) + be->spec->connect_timeout;
    s->wake_retry_at = DLOCK_NEVER;
    redlock_connect(be, s, &s->node.wake, until);
    redis_node_subscribe(&s->node, be->acquire.channel, until);
}

static bool new_id(struct redlock_backend *be)
{
    char *id = be->acquire.id;
    return id[0] != '\0' ||
           dlock_token_new(be->spec->env, id + strlen(redis_script_kind(be->spec, id))) == 0;
}

static void wait_start(struct redlock_backend *be)
{
    if (be->acquire.channel)
        return;
    if (new_id(be))
        be->acquire.channel = redis_script_channel(&be->script, be->acquire.id);
    if (!be->acquire.channel) {
        be->acquire.id[0] = '\0'; /* no server can wake us: the timers remain */
        return;
    }
    for (int i = 0; i < be->n; i++)
        wake_start(be, &be->servers[i]);
}

/* Nothing is reported: the server's other connection has the same trouble. */
static void wake_failed(struct redlock_backend *be, struct redlock_server *s)
{
    redis_node_unsubscribe(&s->node);
    if (be->op == OP_ACQUIRE)
        s->wake_retry_at = redlock_now(be) + dlock_backoff_next(&s->wake_pause, be->spec->env);
}

/* We are the first waiter there, and the server does not report every change yet. */
static bool may_track(const struct redlock_server *s)
{
    return s->place == 1 && redis_node_may_track(&s->node);
}

/* -------------------------------------------------------------------- being woken */

static int count_freed(const struct redlock_backend *be)
{
    int freed = 0;
    for (int i = 0; i < be->n; i++)
        freed += be->servers[i].freed;
    return freed;
}

/* Ask for votes at that time. In the middle of a round: its votes may be older than the wake-up. */
static void look_at(struct redlock_backend *be, int64_t at)
{
    int64_t *when = be->acquire.stage == ST_PAUSE ? &be->acquire.try_at : &be->acquire.told_at;
    if (be->op == OP_ACQUIRE)
        *when = dlock_min(*when, at);
}

static void freed(struct redlock_backend *be, struct redlock_server *s)
{
    int64_t now = redlock_now(be);
    if (s->freed)
        return;
    s->freed = true;
    look_at(be, count_freed(be) >= be->quorum ? now : now + FEW_PAUSE + jitter(be, 2 * FEW_PAUSE));
}

/* NAME has changed. Each renewal of each reader is such a change; that the last one has left, RS_GO says. */
static void changed(struct redlock_backend *be, struct redlock_server *s)
{
    if (s->info.mode != DLOCK_MODE_EXCLUSIVE)
        look_at(be, dlock_max(redlock_now(be) + HEAD_PAUSE, be->began + CHANGED_STEP));
    else
        freed(be, s);
}

static void woken(struct redlock_backend *be, struct redlock_server *s, const redisReply *r)
{
    switch (redis_script_called(&be->script, r)) {
    case RS_CHANGED:
        changed(be, s);
        break;
    case RS_NEXT:
        look_at(be, redlock_now(be) + REDIS_SCRIPT_CLAIM + CLAIM_SLACK);
        break;
    case RS_GO:
        s->place = 1;
        freed(be, s);
        break;
    case RS_HEAD:
        s->place = 1;
        look_at(be, redlock_now(be) + HEAD_PAUSE);
        break;
    case RS_SECOND: /* each round joins all queues: the place in one of them decides nothing */
    case RS_NOTHING:
        break;
    }
}

/* One more server can wake us. The next round joins its queue. */
static void ready(struct redlock_backend *be, struct redlock_server *s)
{
    int count = 0, hoped = 0;
    dlock_backoff_reset(&s->wake_pause);
    for (int i = 0; i < be->n; i++) {
        count += be->servers[i].node.wake_state == WAKE_READY;
        hoped += be->servers[i].node.wake_state == WAKE_STARTING;
    }
    look_at(be, redlock_now(be) + (hoped == 0 ? 0 : count >= be->quorum ? FEW_PAUSE : POLL_PAUSE));
}

static void heard(struct redlock_backend *be, struct redlock_server *s,
                  const struct redis_conn_reply *rep)
{
    struct dlock_error err;

    switch (redis_node_heard(&s->node, rep, s->where, &err)) {
    case HEARD_MESSAGE:
        woken(be, s, rep->r);
        break;
    case HEARD_READY:
        ready(be, s);
        break;
    case HEARD_FAILED:
        wake_failed(be, s);
        break;
    case HEARD_NOTHING:
        break;
    }
}

/* ------------------------------------------------------------------- young servers */

/*
 * A server that was restarted may have forgotten a vote for a client whose lease still runs, for as long as that
 * client's ttl. So a server is young, and its vote does not count, while it has been up for less than the largest ttl
 * of all clients of the lock: ours, and those of the holders and the waiters that the servers report. As long as a
 * server has not answered there may be a larger one.
 */

/* A server has timed out after this time at the latest. */
#define HEAR_OTHERS DLOCK_SEC

static int64_t in_ms(int64_t ns)
{
    return (ns + DLOCK_MSEC - 1) / DLOCK_MSEC;
}

/*
 * How long a server must have been up for its vote to count, as far as the servers have told. The last word of a server
 * that does not answer any more counts, too: it may be cut off from us only, and the holder may still run.
 */
static int64_t age_ms(const struct redlock_backend *be)
{
    int64_t age = in_ms(be->restart_grace);
    for (int i = 0; i < be->n && age > 0; i++)
        age = dlock_max(age, be->servers[i].longest_ms);
    return age;
}

/* The holder or the waiters there have this ttl. */
static void note_ttl(struct redlock_server *s, const struct redis_script_tried *t)
{
    int64_t ttl = 0;
    if (t->status == RS_BUSY && (ttl = redis_script_ttl(t->holder, t->holder_len)) == 0)
        ttl = dlock_max(in_ms(REDLOCK_LONGEST_TTL), t->left_ms);
    s->longest_ms = dlock_max(ttl, t->longest_ms);
}

/* Does it owe us answers? (On a new connection AUTH is in front.) */
static bool behind(const struct redlock_server *s)
{
    for (int i = 0; i < s->node.cmd.ntags; i++)
        if (s->node.cmd.tags[i].tag >= 0)
            return true;
    return false;
}

/* When the server counts as silent, although it was asked in this round, or owes us an answer from the last one. */
static int64_t silent_at(const struct redlock_backend *be, const struct redlock_server *s)
{
    const struct redis_conn *cmd = &s->node.cmd;
    int64_t asked = be->began;
    for (int i = 0; i < cmd->ntags && s->answer == A_LATE; i++)
        if (cmd->tags[i].tag >= 0 && cmd->tags[i].sent != 0)
            asked = dlock_min(asked, cmd->tags[i].sent);
    /* The second round needs time, too, before the first contact ends. */
    int64_t until = be->acquire.first ? be->until - (be->until - be->began) / 2 : be->until;
    return dlock_min(until, asked + dlock_min(be->spec->op_timeout, HEAR_OTHERS));
}

/* When all servers have answered or timed out: 0, now, or that time. */
static int64_t heard_at(const struct redlock_backend *be)
{
    int64_t at = 0;
    for (int i = 0; i < be->n; i++) {
        const struct redlock_server *s = &be->servers[i];
        if (s->answer == A_PENDING || (s->answer == A_LATE && behind(s)))
            at = dlock_max(at, silent_at(be, s));
    }
    return at;
}

/* How long a server must have been up for its vote to count now. 0: the restart grace is off. */
static int64_t needed_ms(const struct redlock_backend *be, int64_t now)
{
    int64_t age = age_ms(be);
    return age > 0 && now < heard_at(be) ? dlock_max(age, in_ms(be->unheard_ttl)) : age;
}

/* Its vote does not count. The value stays there as long as the lock is ours; otherwise it is undone with the round. */
static void discount(struct redlock_server *s)
{
    s->answer = A_GRACE;
    s->from = 0;
}

/* A majority has voted: without the young servers? False: that is not known yet. */
static bool weigh(struct redlock_backend *be, int64_t now)
{
    int64_t needed = needed_ms(be, now);
    int old = 0;
    for (int i = 0; i < be->n; i++)
        old += be->servers[i].answer == A_YES && be->servers[i].up_ms >= needed;
    if (old < be->quorum && now < heard_at(be))
        return false;
    for (int i = 0; i < be->n; i++)
        if (be->servers[i].answer == A_YES && be->servers[i].up_ms < needed)
            discount(&be->servers[i]);
    return true;
}

/* When a young server is old enough, by what the servers have told in this round. */
static int64_t grace_left_ms(const struct redlock_backend *be, const struct redlock_server *s)
{
    return dlock_max(0, age_ms(be) - s->up_ms);
}

/* --------------------------------------------------------------------------- timers */

/* When the lock may be free on this server, as far as its answer tells. */
static int64_t free_at(const struct redlock_backend *be, const struct redlock_server *s,
                       int64_t now)
{
    if (s->answer == A_GRACE)
        return now + grace_left_ms(be, s) * DLOCK_MSEC;
    if (s->freed || s->answer == A_YES)
        return now;
    if (s->answer != A_BUSY || s->left_ms < 0)
        return DLOCK_NEVER;
    return now + s->left_ms * DLOCK_MSEC + DLOCK_MSEC;
}

static int64_t next_try(const struct redlock_backend *be)
{
    int64_t now = redlock_now(be), at = DLOCK_NEVER;
    int place = INT32_MAX, tracked = 0, unknown = 0;

    if (count_freed(be) >= be->quorum)
        return now;
    for (int i = 0; i < be->n; i++) {
        const struct redlock_server *s = &be->servers[i];
        int earlier = 0;
        int64_t t = free_at(be, s, now);
        for (int k = 0; k < be->n; k++)
            earlier += free_at(be, &be->servers[k], now) <= t;
        if (earlier >= be->quorum)
            at = dlock_min(at, t);
        if (s->answer == A_BUSY)
            place = s->place < place ? s->place : place;
        tracked += s->node.tracking == TRACK_ON;
        unknown += s->answer == A_BUSY && may_track(s);
    }
    if (place == INT32_MAX)
        place = 1;
    if (at != DLOCK_NEVER)
        at += (place - 1) * PLACE_STEP + jitter(be, 10 * DLOCK_MSEC);
    at = dlock_min(at, now + be->spec->ttl / 3);
    if (unknown > 0) /* the key may have changed before the server tracked it */
        return now + HEAD_PAUSE;
    if (place == 1 && tracked < be->quorum)
        at = dlock_min(at, now + POLL_PAUSE + jitter(be, POLL_PAUSE / 4));
    return at;
}

static int64_t wait_wake_at(const struct redlock_backend *be)
{
    int64_t at = DLOCK_NEVER;
    for (int i = 0; i < be->n; i++)
        at = dlock_min(at, dlock_min(be->servers[i].node.wake_until, be->servers[i].wake_retry_at));
    return at;
}

static void wait_timers(struct redlock_backend *be, int64_t now)
{
    for (int i = 0; i < be->n; i++) {
        struct redlock_server *s = &be->servers[i];
        if (now >= s->node.wake_until)
            wake_failed(be, s);
        if (now >= s->wake_retry_at && be->acquire.channel)
            wake_start(be, s);
    }
}

/* ----------------------------------------------------------------- a round */

static void fail_acquire(struct redlock_backend *be, const struct dlock_error *err)
{
    redlock_wait_close(be);
    redlock_end(be, EV_FAILED)->error = *err;
}

/* A fresh token and value. False: the acquire has failed. */
static bool new_value(struct redlock_backend *be)
{
    struct dlock_error err;
    struct dlock_spec spec = *be->spec;
    int rc = dlock_token_new(be->spec->env, be->token);
    free(be->value);
    spec.ttl = redlock_lease(be->spec);
    be->value = rc == 0 ? redis_script_value(&spec, be->token) : NULL;
    if (be->value)
        return true;
    if (rc != 0)
        dlock_fail(&err, DLOCK_EOS, -rc, "no random numbers: %s", strerror(-rc));
    else
        dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
    fail_acquire(be, &err);
    return false;
}

static void ask_vote(struct redlock_backend *be, struct redlock_server *s, int64_t grace)
{
    s->freed = s->touched = false;
    s->from = 0;
    if (s->longest_ms >= in_ms(REDLOCK_LONGEST_TTL)) /* unknown, and not seen in this round */
        s->longest_ms = 0;
    if (!redlock_reach(be, s, be->until))
        return;
    if (behind(s)) { /* it may be stopped: commands would pile up there */
        s->answer = A_LATE;
        return;
    }
    bool in_queue = be->acquire.id[0] != '\0' && s->node.wake_state == WAKE_READY;
    redlock_undo(be, s);
    if (may_track(s))
        redis_node_track(&s->node, REDLOCK_TAG(be->serial, K_TRACK));
    s->answer = A_PENDING;
    s->touched = true;
    s->queued = s->queued || in_queue;
    (void)(be->spec->once > 0 ? redis_script_vote_once : redis_script_vote)(
        &be->script, &s->node.cmd, REDLOCK_TAG(be->serial, K_VOTE), be->value,
        in_queue ? be->acquire.id : "", redlock_lease(be->spec), grace);
    redis_conn_flush(&s->node.cmd);
}

static void start_round(struct redlock_backend *be)
{
    /* A server that is young by the last round refuses by itself: no vote is given and taken back again and again. */
    int64_t grace = age_ms(be) * DLOCK_MSEC;

    redlock_begin(be, OP_ACQUIRE);
    be->acquire.stage = ST_VOTE;
    be->acquire.try_at = be->acquire.not_before = be->acquire.told_at = DLOCK_NEVER;
    be->acquire.twice = false;
    be->fence = 0;
    be->acquire.holder = NULL;
    be->acquire.why.code = 0;
    if (!be->acquire.first)
        be->until = be->began + be->spec->op_timeout;
    if (!new_value(be))
        return;
    for (int i = 0; i < be->n; i++)
        ask_vote(be, &be->servers[i], grace);
}

void redlock_acquire(struct redlock_backend *be, bool wait)
{
    struct dlock_error err;

    be->op = OP_ACQUIRE;
    be->acquire.wait = wait;
    be->acquire.first = true;
    be->claim = CLAIM_NONE;
    be->acquire.told_grace = be->acquire.told_waiting = false;
    be->acquire.splits = 0;
    be->acquire.told_holder = 0;
    be->acquire.id[0] = '\0';
    be->acquire.split_pause = (struct dlock_backoff){
        .base = 10 * DLOCK_MSEC, .max = (wait ? 400 : 80) * DLOCK_MSEC, .cur = 10 * DLOCK_MSEC};
    outage_none(&be->acquire.out);
    be->until = redlock_now(be) + be->spec->connect_timeout;
    for (int i = 0; i < be->n; i++)
        be->servers[i].longest_ms = 0;
    if (redlock_check_peers(be, &err) != 0)
        fail_acquire(be, &err);
    else
        start_round(be);
}

/* --------------------------------------------------------------- the end of a round */

static void give_back(struct redlock_backend *be, struct redlock_server *s,
                      const struct redlock_server *done)
{
    int tag = REDLOCK_TAG(be->serial, K_UNDO);
    s->undo_sent = true;
    if (done)
        redlock_run_skip(be, s, tag, done);
    else
        (void)redis_script_leave(&be->script, &s->node.cmd, tag, be->value, "");
    redis_conn_flush(&s->node.cmd);
}

/* done: because a run has succeeded; else NULL. */
static void give_votes_back(struct redlock_backend *be, const struct redlock_server *done)
{
    int64_t now = redlock_now(be);

    be->until = dlock_max(be->until, now + UNDO_TIME);
    /* As long as the round took, but for the time that young votes have waited for silent servers. */
    int64_t took = dlock_min(now, be->patient_until) - be->began;
    be->patient_until = now + dlock_max(UNDO_TIME, dlock_min(took, be->spec->op_timeout));
    be->acquire.stage = ST_UNDO;
    for (int i = 0; i < be->n; i++) {
        struct redlock_server *s = &be->servers[i];
        if (!s->touched || !redis_conn_is_open(&s->node.cmd))
            continue;
        if (!s->node.cmd.written) { /* the vote has never left */
            redis_conn_close(&s->node.cmd);
            s->touched = false;
            continue;
        }
        give_back(be, s, done);
    }
}

/* A majority has voted for us, and one of it knows of the run's success. */
static void skip(struct redlock_backend *be, const struct redlock_server *done)
{
    be->run = done->run;
    be->acquire.outcome = EV_SKIPPED;
    outage_over(&be->acquire.out, &be->events);
    give_votes_back(be, done);
}

/* ---------------------------------------------------------------------- answers */

static void ask_raise(struct redlock_backend *be, struct redlock_server *s)
{
    int tag = REDLOCK_TAG(be->serial, K_RAISE);
    s->raise = RAISE_ASKED;
    if (be->spec->once > 0)
        redlock_run_begin(be, s, tag);
    else
        (void)redis_script_keep(&be->script, &s->node.cmd, tag, be->value, redlock_lease(be->spec),
                                be->fence, false, 0);
    redis_conn_flush(&s->node.cmd);
}

static void voted(struct redlock_backend *be, struct redlock_server *s,
                  const struct redis_script_tried *t)
{
    s->left_ms = t->left_ms;
    s->up_ms = t->up_ms;
    s->place = t->place;
    s->holder = 0;
    switch (t->status) {
    case RS_GRANTED:
        s->answer = A_YES;
        s->fence = t->fence;
        s->queued = false;
        break;
    case RS_GRACE:
        s->answer = A_GRACE;
        break;
    case RS_TYPE:
        s->answer = A_TYPE;
        char type[32];
        dlock_clean_text(type, sizeof(type), t->holder, t->holder_len);
        dlock_fail_at(&s->error, DLOCK_EDATA, 0, s->where,
                      "the key '%s' is a %s, not a lock of dlock or SET NX; use another name",
                      be->spec->uri->name, type);
        break;
    case RS_TWICE:
        s->answer = A_REFUSED;
        s->error = s->last;
        be->acquire.twice = true;
        be->acquire.why = s->last;
        break;
    case RS_BUSY:
    case RS_CLAIM:
    case RS_SLOTS:   /* never asked for */
    case RS_SKIPPED: /* nor these */
    case RS_RECORD:
        s->answer = A_BUSY;
        redis_script_holder(t->holder, t->holder_len, &s->info);
        /* Each server may name another reader, but they hold it together. A free lock is kept for a waiter. */
        s->holder = t->holder_len == 0 ? 0
                    : s->info.mode != DLOCK_MODE_EXCLUSIVE
                        ? 1
                        : redlock_digest(t->holder, t->holder_len);
        s->info.left_ns = t->left_ms < 0 ? DLOCK_NEVER : t->left_ms * DLOCK_MSEC;
        break;
    }
    if (s->answer != A_YES)
        s->touched = false;
}

/* Its votes must not count, neither now nor later. */
static void same_server(struct redlock_backend *be, struct redlock_server *s, bool current)
{
    s->same = true;
    s->from = 0;
    s->touched = false;
    dlock_fail_at(&s->last, DLOCK_EUSAGE, 0, be->spec->uri->where,
                  "%s is another name of a server in the list and has no vote", s->where);
    if (!current && redlock_may_notice(be))
        events_add(&be->events, EV_NOTICE)->error = s->last;
}

/* One more than the majority, whose fence counters are being raised. */
static void voted_late(struct redlock_backend *be, struct redlock_server *s)
{
    const struct redlock_server *done;
    if (s->up_ms < needed_ms(be, redlock_now(be)))
        discount(s);
    else if ((done = redlock_run_success(be)))
        skip(be, done);
    else
        ask_raise(be, s);
}

static void vote_answered(struct redlock_backend *be, struct redlock_server *s,
                          const struct redis_conn_reply *rep)
{
    struct redis_script_tried t;
    bool current = rep->tag == REDLOCK_TAG(be->serial, K_VOTE) && be->op == OP_ACQUIRE;

    if (s->node.cmd.auth_failed || rep->r->type == REDIS_REPLY_ERROR) {
        /* Refused AUTH: it may have been served as a default user without a password. */
        s->touched = rep->r->type != REDIS_REPLY_ERROR;
        if (current)
            redlock_refused(be, s, rep->r);
        return;
    }
    if (redis_script_tried(rep->r, &t) != 0) {
        if (!current)
            return;
        redlock_misread(s, "the lock script");
        redlock_drop(be, s);
        return;
    }
    redlock_well(s);
    if (t.status == RS_TWICE)
        same_server(be, s, current);
    note_ttl(s, &t);
    if (current && be->acquire.stage != ST_UNDO) {
        voted(be, s, &t);
        if (s->answer == A_YES && be->spec->once > 0)
            redlock_run_read(be, s, rep->r);
        if (s->answer == A_YES)
            s->from = rep->sent;
        if (s->answer == A_YES && be->acquire.stage == ST_RAISE)
            voted_late(be, s);
    } else if (be->claim != CLAIM_NONE && t.status == RS_GRANTED &&
               rep->tag == REDLOCK_TAG(be->vote_serial, K_VOTE)) {
        s->from = dlock_max(s->from, rep->sent); /* one more vote than the majority */
    }
}

static void raise_answered(struct redlock_backend *be, struct redlock_server *s,
                           const struct redis_conn_reply *rep)
{
    const char *found;
    size_t len;
    bool ours;

    if (rep->tag != REDLOCK_TAG(be->serial, K_RAISE) || be->op != OP_ACQUIRE ||
        be->acquire.stage != ST_RAISE)
        return;
    if (rep->r->type == REDIS_REPLY_ERROR) {
        redlock_refused(be, s, rep->r);
    } else if (redis_script_owned(rep->r, &ours, &found, &len) != 0) {
        redlock_misread(s, "a renewal");
    } else if (ours && (be->spec->once == 0 || redis_script_recorded(rep->r))) {
        s->raise = RAISE_DONE;
        s->from = rep->sent;
    } else {
        s->answer = A_GONE;
        s->from = 0;
    }
}

/* --------------------------------------------------------------------- outcomes */

/* Those of the servers that have not voted for us. */
static void leave_queues(struct redlock_backend *be)
{
    for (int i = 0; i < be->n; i++) {
        struct redlock_server *s = &be->servers[i];
        /* "-" is no client's value: this only takes us out of the queue. */
        if (s->queued && redis_conn_is_open(&s->node.cmd)) {
            (void)redis_script_leave(&be->script, &s->node.cmd, REDLOCK_TAG(be->serial, K_UNDO),
                                     "-", be->acquire.id);
            redis_conn_flush(&s->node.cmd);
        }
        s->queued = false;
    }
    redlock_wait_close(be);
}

static void granted(struct redlock_backend *be)
{
    be->claim = CLAIM_GRANTED;
    be->proven = true;
    be->check = be->check == CHECK_NOT ? CHECK_DUE : be->check;
    be->vote_serial = be->serial;
    outage_over(&be->acquire.out, &be->events);
    leave_queues(be);
    /* A vote on a lost connection belongs to the lock now: the release undoes it, and its answer counts. */
    for (int i = 0; i < be->n; i++)
        redis_node_forget(&be->servers[i].node, be->value);
    struct dlock_event *ev = redlock_end(be, EV_GRANTED);
    ev->from = redlock_from(be);
    ev->ttl = be->spec->ttl;
    ev->fence = be->fence;
    memcpy(ev->token, be->token, sizeof(ev->token));
}

static void start_raise(struct redlock_backend *be)
{
    const struct redlock_server *done = redlock_run_success(be);
    if (done) {
        skip(be, done);
        return;
    }
    be->acquire.stage = ST_RAISE;
    int64_t until = redlock_now(be) + be->spec->op_timeout;
    be->until = be->acquire.first ? dlock_min(be->until, until) : until;
    for (int i = 0; i < be->n; i++)
        if (be->servers[i].answer == A_YES && be->servers[i].fence > be->fence)
            be->fence = be->servers[i].fence;
    for (int i = 0; i < be->n; i++)
        if (be->servers[i].answer == A_YES)
            ask_raise(be, &be->servers[i]);
}

/* The holder that most servers name. */
static void find_holder(struct redlock_backend *be)
{
    int most = 0;
    for (int i = 0; i < be->n; i++) {
        int same = 0;
        if (be->servers[i].answer != A_BUSY)
            continue;
        for (int k = 0; k < be->n; k++)
            same +=
                be->servers[k].answer == A_BUSY && be->servers[k].holder == be->servers[i].holder;
        if (same > most) {
            most = same;
            be->acquire.holder = &be->servers[i];
        }
    }
    be->acquire.definite = most >= be->quorum;
    if (be->acquire.holder && be->acquire.holder->holder == 0)
        be->acquire.holder = NULL;
}

/* Would there be a majority without the reasons that pass, such as a server that loads its data? */
static bool passing_trouble(const struct redlock_backend *be, int usable)
{
    for (int i = 0; i < be->n; i++)
        usable +=
            be->servers[i].answer == A_REFUSED && redis_conn_is_open(&be->servers[i].node.cmd);
    return usable >= be->quorum;
}

static enum dlock_ev judge(struct redlock_backend *be)
{
    int yes = redlock_count(be, A_YES) + redlock_count(be, A_GONE);
    int busy = redlock_count(be, A_BUSY), usable = yes + busy + redlock_count(be, A_GRACE);

    find_holder(be);
    if (be->acquire.twice)
        return EV_FAILED;
    if (usable < be->quorum) {
        redlock_no_quorum(be, &be->acquire.why);
        return be->acquire.first && !passing_trouble(be, usable) ? EV_FAILED : EV_WAITING;
    }
    be->acquire.first = false;
    be->acquire.split = !be->acquire.definite && yes + busy >= be->quorum;
    outage_over(&be->acquire.out, &be->events);
    if (be->acquire.wait)
        return EV_WAITING;
    /* A majority that waits for its restart grace counts as held. Split votes do not. */
    return be->acquire.split && be->acquire.splits < SPLITS ? EV_WAITING : EV_BUSY;
}

static void round_failed(struct redlock_backend *be)
{
    be->acquire.outcome = judge(be);
    if (be->acquire.outcome == EV_FAILED)
        fail_acquire(be, &be->acquire.why); /* the release that follows undoes it */
    else
        give_votes_back(be, NULL);
}

/* ------------------------------------------------------------------------ pauses */

static void tell_waiting(struct redlock_backend *be)
{
    uint64_t holder = be->acquire.holder ? be->acquire.holder->holder : 0;
    if (be->acquire.told_waiting && holder == be->acquire.told_holder)
        return;
    be->acquire.told_holder = holder;
    be->acquire.told_waiting = true;
    struct dlock_event *ev = events_add(&be->events, EV_WAITING);
    ev->info = be->acquire.holder ? &be->acquire.holder->info : NULL;
}

static void tell_grace(struct redlock_backend *be)
{
    char left[32];
    int64_t ms = 0;
    int grace = 0;

    for (int i = 0; i < be->n; i++) {
        int64_t t = be->servers[i].answer == A_GRACE ? grace_left_ms(be, &be->servers[i]) : 0;
        grace += t > 0; /* 0: refused for a client that is gone by now; the next round asks again */
        ms = dlock_max(ms, t);
    }
    if (be->acquire.told_grace || grace == 0 || be->n - grace >= be->quorum)
        return;
    be->acquire.told_grace = true;
    dlock_fail_at(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EBUSY, 0, be->spec->uri->where,
                  "restart-grace: %d of %d servers started recently and do not vote for another %s",
                  grace, be->n, dlock_format_duration(ms * DLOCK_MSEC, left, sizeof(left)));
}

static void pause_round(struct redlock_backend *be)
{
    int64_t now = redlock_now(be);

    be->acquire.stage = ST_PAUSE;
    be->acquire.not_before = now;
    if (be->acquire.why.code != 0 && be->acquire.first) {
        be->acquire.not_before = be->acquire.try_at =
            now + dlock_backoff_next(&be->acquire.split_pause, be->spec->env);
        if (be->acquire.try_at >= be->until)
            fail_acquire(be, &be->acquire.why);
        return;
    }
    if (be->acquire.why.code != 0) {
        if (!outage_goes_on(&be->acquire.out, be->spec, &be->events, &be->acquire.why))
            fail_acquire(be, &be->acquire.why);
        be->acquire.not_before = be->acquire.try_at = be->acquire.out.retry_at;
        return;
    }
    if (be->acquire.wait) {
        tell_grace(be);
        tell_waiting(be);
        wait_start(be);
    }
    if (be->op != OP_ACQUIRE)
        return;
    be->acquire.try_at = dlock_min(next_try(be), be->acquire.told_at);
    if (be->acquire.split) {
        be->acquire.splits++;
        be->acquire.not_before = now + dlock_backoff_next(&be->acquire.split_pause, be->spec->env);
        be->acquire.try_at = be->acquire.not_before;
    } else {
        be->acquire.splits = 0;
        dlock_backoff_reset(&be->acquire.split_pause);
    }
}

static void undone(struct redlock_backend *be)
{
    for (int i = 0; i < be->n; i++) {
        struct redlock_server *s = &be->servers[i];
        if (s->undo_sent && redis_conn_is_open(&s->node.cmd) &&
            redis_conn_waits(&s->node.cmd, REDLOCK_TAG(be->serial, K_UNDO)))
            redlock_remember(be, s);
        s->freed = s->freed || s->answer == A_YES;
        s->touched = false;
        s->from = 0;
    }
    if (be->acquire.outcome == EV_WAITING) {
        pause_round(be);
    } else if (be->acquire.outcome == EV_SKIPPED) {
        leave_queues(be);
        redlock_end(be, EV_SKIPPED)->run = &be->run;
    } else if (be->acquire.outcome == EV_BUSY) {
        tell_grace(be);
        redlock_end(be, EV_BUSY)->info = be->acquire.holder ? &be->acquire.holder->info : NULL;
    } else {
        fail_acquire(be, &be->acquire.why);
    }
}

/* ----------------------------------------------------------------------- stepping */

/* Has the round no chance any more? Where no majority can be used, wait for all answers, for the message. */
static bool hopeless(struct redlock_backend *be, int yes, int pending, int64_t now)
{
    int usable = yes + redlock_count(be, A_BUSY) + redlock_count(be, A_GRACE);
    bool patient = redlock_patient(be, usable, now);
    if (be->acquire.twice)
        return true;
    if (yes + pending < be->quorum && (usable >= be->quorum || pending == 0))
        return true;
    return !patient || (yes + pending < be->quorum && now >= be->began + HEAR_ALL);
}

static void step_raise(struct redlock_backend *be, int64_t now)
{
    /* A server that was silent too long has told a larger ttl after all. */
    for (int i = 0; i < be->n; i++)
        if (be->servers[i].answer == A_YES && be->servers[i].up_ms < age_ms(be))
            discount(&be->servers[i]);

    int raised = 0, open = redlock_count(be, A_PENDING);
    for (int i = 0; i < be->n; i++) {
        const struct redlock_server *s = &be->servers[i];
        raised += s->answer == A_YES && s->raise == RAISE_DONE;
        open += s->answer == A_YES && s->raise == RAISE_ASKED &&
                redis_conn_waits(&s->node.cmd, REDLOCK_TAG(be->serial, K_RAISE));
    }
    if (be->acquire.twice)
        round_failed(be);
    else if (raised >= be->quorum)
        granted(be);
    else if (raised + open < be->quorum || now >= be->until)
        round_failed(be);
}

static bool undo_waits(const struct redlock_backend *be)
{
    for (int i = 0; i < be->n; i++)
        if (be->servers[i].undo_sent && redis_conn_is_open(&be->servers[i].node.cmd) &&
            redis_conn_waits(&be->servers[i].node.cmd, REDLOCK_TAG(be->serial, K_UNDO)))
            return true;
    return false;
}

static void vote_step(struct redlock_backend *be, int64_t now)
{
    bool majority = redlock_count(be, A_YES) >= be->quorum && !be->acquire.twice;

    /* The others have been waited for since a majority voted. */
    if (majority)
        (void)redlock_patient(be, be->quorum, now);
    if (majority && !weigh(be, now))
        return;
    int yes = redlock_count(be, A_YES);
    if (majority && yes >= be->quorum)
        start_raise(be);
    else if (hopeless(be, yes, redlock_count(be, A_PENDING), now))
        round_failed(be);
}

static void round_step(struct redlock_backend *be, int64_t now)
{
    if (be->acquire.stage == ST_PAUSE && now >= be->acquire.try_at && now >= be->acquire.not_before)
        start_round(be);
    else if (be->acquire.stage == ST_VOTE)
        vote_step(be, now);
    else if (be->acquire.stage == ST_RAISE)
        step_raise(be, now);
    if (be->op == OP_ACQUIRE && be->acquire.stage == ST_UNDO &&
        (!undo_waits(be) || now >= be->patient_until))
        undone(be);
}

static int64_t round_wake_at(const struct redlock_backend *be)
{
    int64_t at = redlock_wake_at(be), heard;
    switch (be->acquire.stage) {
    case ST_VOTE:
        heard = heard_at(be);
        at = heard > be->stepped ? dlock_min(at, heard) : at;
        return be->stepped < be->began + HEAR_ALL ? dlock_min(at, be->began + HEAR_ALL) : at;
    case ST_RAISE:
        return be->until;
    case ST_UNDO:
        return be->patient_until;
    case ST_PAUSE:
        break;
    }
    return dlock_max(be->acquire.try_at, be->acquire.not_before);
}

static void step(struct redlock_backend *be, int64_t now)
{
    round_step(be, now);
    if (be->op == OP_ACQUIRE)
        wait_timers(be, now);
}

static int64_t wake_at(const struct redlock_backend *be)
{
    return dlock_min(round_wake_at(be), wait_wake_at(be));
}

static void answered(struct redlock_backend *be, struct redlock_server *s,
                     struct redis_conn_reply *rep)
{
    switch (REDLOCK_TAG_KIND(rep->tag)) {
    case K_VOTE:
        vote_answered(be, s, rep);
        break;
    case K_RAISE:
        raise_answered(be, s, rep);
        break;
    case K_UNDO:
        if (be->op == OP_ACQUIRE && rep->tag == REDLOCK_TAG(be->serial, K_UNDO) &&
            rep->r->type == REDIS_REPLY_ERROR)
            redlock_remember(be, s);
        break;
    case K_TRACK:
        redis_node_track_answered(&s->node, rep->r);
        break;
    default:
        break;
    }
}

const struct redlock_operation redlock_op_acquire = {
    .answered = answered,
    .step = step,
    .wake_at = wake_at,
    .heard = heard,
    .wake_failed = wake_failed,
};
