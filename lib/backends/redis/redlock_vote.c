/*
 * redlock_vote.c - acquire: rounds of votes, until a round has a majority.
 *
 * A round asks all servers at once. With a majority of votes the fencing token is the highest of
 * the voters' counters, and a second round raises their counters to the token. The next holder
 * needs a majority, too, so at least one of its voters knows this token and gives a higher token.
 * Without the second round tokens go backwards where majorities overlap in a server with a lower
 * counter.
 *
 * A reader's (a shared holder's) vote raises no counter. The reader's token is the highest of its
 * voters' counters, too, and a majority confirms the token in the same second round. Take a reader
 * R and a writer W that hold the lock in turn. Their majorities have a server in common, which
 * confirmed the earlier holder's token and voted for the later holder. The later vote was given
 * after the earlier hold had ended, so after the token had been confirmed. W before R: R's voter
 * had a counter of at least W's token, so R's token is not below W's. R before W: W's voter had at
 * least R's token and counted on, so W's token is above R's. A server without its counter begins at
 * its clock, for a reader as well.
 *
 * Both arguments hold for votes that stay until a majority has confirmed the token. In a round that
 * takes as long as a lease, a vote may expire in between, and a server that votes late confirm in
 * its place (tests/model/redlock.pml). Then a late vote counts only if its counter is not above the
 * token: see end_raise().
 *
 * A counter far ahead of the other voters' was written by another program: its server has no vote
 * in this round, and its counter does not become the token (quorum.h). Tokens grow all the same.
 * The two arguments need the votes that count, in each round a majority, and the majority that
 * confirms: the server in common has a vote that counts, and the counter behind this vote was at
 * least the earlier token since its server confirmed the token.
 *
 * The votes of a round without a majority are given back everywhere before anything else happens.
 * Then the pauses are random, so that two clients do not split the votes indefinitely.
 *
 * Each server has a queue of its own (script.h), and wakes the first waiter in its queue when the
 * lock is free there. The queues may differ, so they decide nothing: they keep all but a few
 * waiters from rushing at a released lock. A waiter woken by a majority asks for votes at
 * once. A waiter woken by fewer servers asks a little later: a single server may have lost the key,
 * or have a different queue. Timers stand behind every wake-up. Behind silent waiters no message
 * comes, so a waiter also looks now and then (PTTL) whether the lock is free on a majority, and no
 * waiter that was called has a claim there.
 *
 * The stages of a round stand below in the order of time; what happens beside the rounds
 * (subscriptions, wake-ups, when to begin the next round) stands in front of them.
 */
#include "redlock_servers.h"

#include <stdlib.h>
#include <string.h>

/* How long the next round waits for an unconfirmed undo. */
#define UNDO_TIME (50 * DLOCK_MSEC)
/* How long a hopeless round waits for all servers, for its message. */
#define ERRORS_TIME (200 * DLOCK_MSEC)
#define SPLITS 10                      /* rounds of a client without -w while the votes are split */
#define POLL_PAUSE (200 * DLOCK_MSEC)  /* between the looks of a first waiter without reports */
#define LOOK_PAUSE (1500 * DLOCK_MSEC) /* between the looks of all other waiters */
#define LOOK_SPREAD (100 * DLOCK_MSEC)
/* between the rounds of the waiters behind the first waiter */
#define PLACE_STEP (100 * DLOCK_MSEC)
#define FEW_PAUSE (30 * DLOCK_MSEC) /* woken by less than a majority */
#define HEAD_PAUSE (5 * DLOCK_MSEC) /* several servers report a change at about the same time */
#define CLAIM_SLACK (20 * DLOCK_MSEC)
#define CHANGED_STEP (100 * DLOCK_MSEC) /* between rounds because readers have renewed the lock */

static int64_t jitter(const struct redlock_backend *be, int64_t max)
{
    uint64_t r;
    if (be->spec->env->random(be->spec->env->ctx, &r, sizeof(r)) < 0)
        return max;
    return (int64_t)(r % (uint64_t)max);
}

/* ------------------------------------------------------------------- young servers */

/* The oldest request (but AUTH and looks) without an answer, from began on; 0: all are answered. */
static int64_t unanswered_since(const struct redlock_server *s, int64_t began)
{
    const struct redis_conn *cmd = &s->node.cmd;
    int64_t since = 0;
    for (int i = 0; i < cmd->ntags; i++)
        if (cmd->tags[i].tag >= 0 && REDLOCK_TAG_KIND(cmd->tags[i].tag) > KIND_CLAIM)
            since = dlock_min(since == 0 ? began : since,
                              cmd->tags[i].sent == 0 ? began : cmd->tags[i].sent);
    return since;
}

/* The round, as the rules about young servers see it. */
static struct redlock_young young_of(const struct redlock_backend *be)
{
    struct redlock_young y = {.grace = be->restart_grace,
                              .unreported_ttl = be->unreported_ttl,
                              .began = be->began,
                              .until = be->until,
                              .first_contact = be->acquire.first,
                              .op_timeout = be->spec->op_timeout,
                              .n = be->n,
                              .quorum = be->quorum};
    for (int i = 0; i < be->n; i++) {
        const struct redlock_server *s = &be->servers[i];
        y.server[i].voted = s->answer == A_YES;
        y.server[i].up_ms = s->up_ms;
        y.server[i].longest_ms = s->longest_ms;
        if (s->answer == A_PENDING)
            y.server[i].asked = be->began;
        else if (s->answer == A_LATE)
            y.server[i].asked = unanswered_since(s, be->began);
    }
    return y;
}

/*
 * The vote of a server that has been up for less than least_ms does not count: the value stays
 * there as long as the lock is ours; otherwise the value is undone with the round.
 */
static void discount(struct redlock_server *s, int64_t least_ms)
{
    if (s->answer != A_YES || s->up_ms >= least_ms)
        return;
    s->answer = A_GRACE;
    s->from = 0;
}

/* When a young server is old enough, by the reports in this round. */
static int64_t grace_left_ms(const struct redlock_backend *be, const struct redlock_server *s)
{
    struct redlock_young y = young_of(be);
    return dlock_max(0, redlock_young_age_ms(&y) - s->up_ms);
}

/* ------------------------------------------------------------------ fence counters */

static struct quorum_tally tally(const struct redlock_backend *be)
{
    struct quorum_vote votes[REDLOCK_NODES];
    for (int i = 0; i < be->n; i++)
        votes[i] = (struct quorum_vote){be->servers[i].answer, be->servers[i].fence};
    return quorum_tally(votes, be->n);
}

/* The votes with a counter far ahead are void for the round, as in discount(). */
static void void_ahead(struct redlock_backend *be)
{
    struct quorum_tally t = tally(be);
    for_each_server (be, s) {
        if (!t.ahead[s - be->servers])
            continue;
        s->answer = A_FOREIGN;
        s->from = 0;
        dlock_fail_at(&s->error, DLOCK_EDATA, 0, s->where,
                      "the key '%sfence' holds %llu, more than ten years ahead of the other "
                      "servers: find out who wrote it, then delete it (or set the clocks right)",
                      be->script.prefix, (unsigned long long)s->fence);
        redlock_notice(be, &s->error);
    }
}

/* ------------------------------------------------------- subscriptions and wake-ups */

void redlock_wait_close(struct redlock_backend *be)
{
    for_each_server (be, s) {
        redis_node_unsubscribe(&s->node);
        s->wake_retry_at = DLOCK_NEVER;
    }
    free(be->acquire.channel);
    be->acquire.channel = NULL;
}

/* Before the queue is joined: no wake-up is lost, and an unreachable waiter does not count. */
static void subscribe(struct redlock_backend *be, struct redlock_server *s)
{
    int64_t until = spec_now(be->spec) + be->spec->connect_timeout;
    s->wake_retry_at = DLOCK_NEVER;
    redlock_connect(be, s, &s->node.wake, until);
    redis_node_subscribe(&s->node, be->acquire.channel, until);
}

/* Nothing is reported: the server's cmd has the same trouble. */
void redlock_wake_failed(struct redlock_backend *be, struct redlock_server *s)
{
    redis_node_unsubscribe(&s->node);
    if (be->op == OP_ACQUIRE)
        s->wake_retry_at = spec_now(be->spec) + dlock_backoff_next(&s->wake_pause, be->spec->env);
}

/* We are the first waiter there, and the server does not report every change yet. */
static bool may_track(const struct redlock_server *s)
{
    return s->place == 1 && redis_node_may_track(&s->node);
}

static int count_freed(const struct redlock_backend *be)
{
    int freed = 0;
    for_each_server (be, s)
        freed += s->freed;
    return freed;
}

/* Ask for votes then, also after a round under way: its votes may be older than the wake-up. */
static void ask_at(struct redlock_backend *be, int64_t at)
{
    int64_t *when = be->acquire.stage == STAGE_PAUSE ? &be->acquire.try_at : &be->acquire.try_by;
    if (be->op == OP_ACQUIRE)
        *when = dlock_min(*when, at);
}

static void server_freed(struct redlock_backend *be, struct redlock_server *s)
{
    int64_t now = spec_now(be->spec);
    if (s->freed)
        return;
    s->freed = true;
    ask_at(be, count_freed(be) >= be->quorum ? now : now + FEW_PAUSE + jitter(be, 2 * FEW_PAUSE));
}

void redlock_wake_answered(struct redlock_backend *be, struct redlock_server *s,
                           const struct redis_conn_reply *rep)
{
    struct dlock_error err;
    enum redis_wake_reply reply = redis_node_wake_answered(&s->node, rep, &err);
    int64_t now = spec_now(be->spec);
    if (reply == REPLY_REFUSED)
        redlock_wake_failed(be, s);
    if (reply == REPLY_SUBSCRIBED) {
        /* The next round joins this server's queue. */
        int ready = 0, starting = 0;
        dlock_backoff_reset(&s->wake_pause);
        for_each_server (be, o) {
            ready += o->node.wake_state == WAKE_READY;
            starting += o->node.wake_state == WAKE_STARTING;
        }
        ask_at(be, now + (starting == 0 ? 0 : ready >= be->quorum ? FEW_PAUSE : POLL_PAUSE));
    }
    if (reply != REPLY_MESSAGE)
        return;
    switch (redis_script_called(&be->script, rep->r)) {
    case RS_CHANGED:
        /* A reader's renewal is a change, too. RS_GO comes when the last reader has left. */
        if (s->info.mode != DLOCK_MODE_EXCLUSIVE)
            ask_at(be, dlock_max(now + HEAD_PAUSE, be->began + CHANGED_STEP));
        else
            server_freed(be, s);
        break;
    case RS_GO:
        s->place = 1;
        server_freed(be, s);
        break;
    case RS_HEAD:
        s->place = 1;
        ask_at(be, now + HEAD_PAUSE);
        break;
    case RS_SECOND: /* each round joins all queues: the place in a single queue decides nothing */
    case RS_NOTHING:
        break;
    }
}

/* --------------------------------------------------------------------------- looks */

/* A server that reports changes, or where the lock is free, is not asked. */
static bool to_look_at(const struct redlock_server *s)
{
    return s->answer == A_BUSY && !s->freed && s->node.tracking != TRACK_ON;
}

static void plan_look(struct redlock_backend *be)
{
    int64_t pause = LOOK_PAUSE;
    int tracked = 0;
    for_each_server (be, s) {
        tracked += s->node.tracking == TRACK_ON;
        if (to_look_at(s) && s->place == 1)
            pause = POLL_PAUSE;
    }
    be->acquire.look_at =
        tracked >= be->quorum ? DLOCK_NEVER : spec_now(be->spec) + pause + jitter(be, LOOK_SPREAD);
}

static void look(struct redlock_backend *be)
{
    plan_look(be);
    for_each_server (be, s) {
        struct redis_conn *cmd = &s->node.cmd;
        if (!to_look_at(s) || cmd->state != RC_UP || cmd->ntags > 0)
            continue;
        (void)redis_script_look(&be->script, cmd, REDLOCK_TAG(be->serial, KIND_LOOK), 0);
        redis_conn_flush(cmd);
    }
}

/* A lock that is free for a majority is free for us after the claim of a waiter that was called. */
static void looked(struct redlock_backend *be, struct redlock_server *s,
                   const struct redis_conn_reply *rep)
{
    bool claims = REDLOCK_TAG_KIND(rep->tag) == KIND_CLAIM;
    int64_t left_ms = 0, now = spec_now(be->spec);
    bool yes = redis_script_looked(rep->r, &left_ms);
    if (be->op != OP_ACQUIRE || be->acquire.stage != STAGE_PAUSE ||
        REDLOCK_TAG_SERIAL(rep->tag) != (be->serial & REDLOCK_SERIALS) ||
        rep->r->type == REDIS_REPLY_ERROR)
        return;
    if (claims && yes && left_ms >= 0 && left_ms <= REDIS_SCRIPT_CLAIM / DLOCK_MSEC) {
        int64_t over = now + left_ms * DLOCK_MSEC + CLAIM_SLACK;
        be->acquire.look_at = dlock_min(be->acquire.look_at, over + jitter(be, LOOK_SPREAD));
    } else if (claims) {
        s->freed = true;
        if (count_freed(be) >= be->quorum)
            ask_at(be, now);
    } else if (!yes) {
        int tag = REDLOCK_TAG(be->serial, KIND_CLAIM);
        (void)redis_script_look_claim(&be->script, &s->node.cmd, tag);
        redis_conn_flush(&s->node.cmd);
    }
}

/* -------------------------------------------------------------- when to try again */

/* When the lock may be free on this server, by the last answer. */
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

/* When the next round begins, and when a waiter looks before. */
static void plan_round(struct redlock_backend *be)
{
    int64_t now = spec_now(be->spec), when_free[REDLOCK_NODES];
    int n = 0, place = INT32_MAX, unknown = 0;
    for_each_server (be, s) {
        when_free[n++] = free_at(be, s, now);
        if (s->answer == A_BUSY)
            place = s->place < place ? s->place : place;
        unknown += s->answer == A_BUSY && may_track(s);
    }
    if (place == INT32_MAX)
        place = 1;
    /* When a majority is free: all servers but those of a minority. */
    int64_t at = quorum_reached(when_free, n, n - be->quorum + 1);
    if (at != DLOCK_NEVER)
        at += (place - 1) * PLACE_STEP + jitter(be, 10 * DLOCK_MSEC);
    at = dlock_min(at, now + be->spec->ttl / 3);
    if (count_freed(be) >= be->quorum)
        at = now;
    else if (unknown > 0) /* the key may have changed before the server tracked it */
        at = now + HEAD_PAUSE;
    be->acquire.try_at = dlock_min(at, be->acquire.try_by);
    if (be->acquire.wait)
        plan_look(be);
}

/* -------------------------------------------------------------------- the outcomes */

/* Defined below, in their stage. */
static void give_votes_back(struct redlock_backend *be, const struct redlock_server *success);
static void round_lost(struct redlock_backend *be);
static void pause_round(struct redlock_backend *be);

static void fail_acquire(struct redlock_backend *be, const struct dlock_error *err)
{
    redlock_wait_close(be);
    redlock_end(be, EV_FAILED)->error = *err;
}

/* The queues of the servers without a vote for us. */
static void leave_queues(struct redlock_backend *be)
{
    for_each_server (be, s) {
        /* "-" is no client's value: the command only takes us out of the queue. */
        if (s->queued && redis_conn_is_open(&s->node.cmd))
            redlock_send(be, s, KIND_UNDO, SCRIPT_LEAVE,
                         &(struct redis_script_args){.value = "-", .id = be->acquire.id});
        s->queued = false;
    }
    redlock_wait_close(be);
}

static void report_grace(struct redlock_backend *be)
{
    char left[32];
    int64_t ms = 0;
    int grace = 0;
    for_each_server (be, s) {
        int64_t t = s->answer == A_GRACE ? grace_left_ms(be, s) : 0;
        grace += t > 0; /* 0: refused for a client gone since; the next round asks again */
        ms = dlock_max(ms, t);
    }
    if (be->acquire.grace_reported || grace == 0 || be->n - grace >= be->quorum)
        return;
    be->acquire.grace_reported = true;
    dlock_fail_at(&events_add(&be->events, EV_NOTICE)->error, DLOCK_EBUSY, 0, be->spec->uri->where,
                  "restart-grace: %d of %d servers started recently and do not vote for another %s",
                  grace, be->n, dlock_format_duration(ms * DLOCK_MSEC, left, sizeof(left)));
}

/* ------------------------------------------------------------------ stage: votes */

static void start_round(struct redlock_backend *be)
{
    /* A server known to be young refuses by itself: no vote is given and taken back each time. */
    struct redlock_young last = young_of(be);
    int64_t grace = redlock_young_age_ms(&last) * DLOCK_MSEC;
    redlock_begin(be, OP_ACQUIRE);
    be->acquire.stage = STAGE_VOTE;
    be->acquire.try_at = be->acquire.not_before = be->acquire.try_by = DLOCK_NEVER;
    be->acquire.look_at = DLOCK_NEVER;
    be->acquire.twice = false;
    be->fence = 0;
    be->acquire.holder = NULL;
    if (!be->acquire.first)
        be->until = be->began + be->spec->op_timeout;
    struct dlock_error err;
    int64_t ttl = redlock_lease(be->spec);
    if (redis_script_new_value(be->spec, ttl, be->token, &be->value, &err) != 0) {
        fail_acquire(be, &err);
        return;
    }
    for_each_server (be, s) {
        s->freed = s->touched = false;
        s->from = 0;
        s->longest_ms = redlock_young_kept_ms(s->longest_ms);
        if (!redlock_reach(be, s, be->until))
            continue;
        if (unanswered_since(s, be->began) != 0) { /* maybe stopped: commands would pile up there */
            s->answer = A_LATE;
            continue;
        }
        bool in_queue = be->acquire.id[0] != '\0' && s->node.wake_state == WAKE_READY;
        redlock_undo(be, s);
        if (may_track(s))
            redis_node_track(&s->node, REDLOCK_TAG(be->serial, KIND_TRACK));
        s->touched = true;
        s->queued = s->queued || in_queue;
        redlock_send(be, s, KIND_VOTE, SCRIPT_VOTE,
                     &(struct redis_script_args){.value = be->value,
                                                 .id = in_queue ? be->acquire.id : NULL,
                                                 .ttl = ttl,
                                                 .grace = grace,
                                                 .once = be->spec->once});
    }
}

void redlock_acquire(struct dlock_be *dlock_be, bool wait)
{
    struct redlock_backend *be = redlock_of(dlock_be);
    struct dlock_error err;
    be->op = OP_ACQUIRE;
    be->claim = CLAIM_NONE;
    be->acquire = (struct redlock_acquiring){
        .wait = wait,
        .first = true,
        .split_pause = {.base = 10 * DLOCK_MSEC,
                        .max = (wait ? 400 : 80) * DLOCK_MSEC,
                        .cur = 10 * DLOCK_MSEC},
    };
    outage_none(&be->acquire.out);
    be->until = spec_now(be->spec) + be->spec->connect_timeout;
    for_each_server (be, s)
        s->longest_ms = 0;
    if (redlock_check_peers(be, &err) != 0)
        fail_acquire(be, &err);
    else
        start_round(be);
}

/* The server's answer, from the reply. */
static void read_vote(struct redlock_backend *be, struct redlock_server *s,
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
    case RS_TWICE:
        s->answer = A_REFUSED;
        s->error = s->last;
        be->acquire.twice = true;
        be->acquire.why = s->last;
        break;
    case RS_BUSY:
    case RS_CLAIM:
    case RS_SLOTS:   /* never asked for */
    case RS_SKIPPED: /* never asked for */
    case RS_RECORD:
        s->answer = A_BUSY;
        redis_script_holder(t->holder, t->holder_len, &s->info);
        /* Readers count as one holder, whichever is named. A free lock is kept for a waiter. */
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

static void vote_answered(struct redlock_backend *be, struct redlock_server *s,
                          const struct redis_conn_reply *rep)
{
    struct redis_script_tried t;
    bool current = rep->tag == REDLOCK_TAG(be->serial, KIND_VOTE) && be->op == OP_ACQUIRE;
    if (s->node.cmd.auth_failed || rep->r->type == REDIS_REPLY_ERROR) {
        /* AUTH refused: a default user without a password may still have been served. */
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
    if (t.status == RS_TWICE) {
        /* The votes under this name must not count, neither now nor later. */
        s->same = true;
        s->from = 0;
        s->touched = false;
        dlock_fail_at(&s->last, DLOCK_EUSAGE, 0, be->spec->uri->where,
                      "%s is another name of a server in the list and has no vote", s->where);
        if (!current)
            redlock_notice(be, &s->last);
    }
    bool held = t.status == RS_BUSY;
    int64_t ttl_ms = held ? redis_script_ttl(t.holder, t.holder_len) : 0;
    s->longest_ms = redlock_young_longest_ms(held, ttl_ms, t.left_ms, t.longest_ms);
    if (!current || be->acquire.stage == STAGE_UNDO) {
        /* A vote for the granted lock, after the majority's. */
        if (be->claim != CLAIM_NONE && t.status == RS_GRANTED &&
            rep->tag == REDLOCK_TAG(be->vote_serial, KIND_VOTE))
            s->from = dlock_max(s->from, rep->sent);
        return;
    }
    read_vote(be, s, &t);
    if (s->answer == A_YES && be->spec->once > 0)
        redlock_run_read(be, s, &t);
    if (s->answer != A_YES)
        return;
    s->from = rep->sent;
    if (be->acquire.stage != STAGE_RAISE)
        return;
    /* The counters of a majority are being raised: this voter's, too. */
    struct redlock_young y = young_of(be);
    discount(s, redlock_young_needed_ms(&y, spec_now(be->spec)));
    void_ahead(be);
    if (s->answer == A_YES)
        redlock_keep(be, s, KIND_RAISE);
}

/* A majority has voted: skip the run, or begin to raise the fence counters to the token. */
static void round_won(struct redlock_backend *be, uint64_t token, bool more_may_answer)
{
    bool sure;
    const struct redlock_server *success = redlock_run_success(be, &sure);
    if (!sure && more_may_answer)
        return;
    if (success) {
        be->run = success->once.run;
        be->acquire.outcome = EV_SKIPPED;
        outage_over(&be->acquire.out, &be->events);
        give_votes_back(be, success);
        return;
    }
    be->acquire.stage = STAGE_RAISE;
    be->until = dlock_min(be->acquire.first ? be->until : DLOCK_NEVER,
                          spec_now(be->spec) + be->spec->op_timeout);
    be->fence = token;
    for_each_server (be, s)
        if (s->answer == A_YES)
            redlock_keep(be, s, KIND_RAISE);
}

/* Count the votes so far: is the round won, lost, or still open? */
static void end_votes(struct redlock_backend *be, int64_t now)
{
    struct redlock_young y = young_of(be);
    struct quorum_tally t = tally(be);
    /* The patience with the remaining servers begins when a majority can be used. */
    bool patient = redlock_patient(be, t.voted + t.denied, now);
    if (be->acquire.twice) {
        round_lost(be);
        return;
    }
    if (t.voted >= be->quorum) {
        if (!redlock_young_decides(&y, now))
            return;
        for_each_server (be, s)
            discount(s, redlock_young_needed_ms(&y, now));
        t = tally(be);
    }
    enum quorum_round round = quorum_round(&t, now >= be->began + ERRORS_TIME);
    if (round == ROUND_OPEN && patient)
        return;
    void_ahead(be);
    if (round == ROUND_WON)
        round_won(be, t.token, now < redlock_young_complete_at(&y));
    else
        round_lost(be);
}

/* ----------------------------------------------------------- stage: raise the fences */

static void raise_answered(struct redlock_backend *be, struct redlock_server *s,
                           const struct redis_conn_reply *rep)
{
    struct redis_script_owned o;
    if (rep->tag != REDLOCK_TAG(be->serial, KIND_RAISE) || be->op != OP_ACQUIRE ||
        be->acquire.stage != STAGE_RAISE)
        return;
    if (rep->r->type == REDIS_REPLY_ERROR) {
        redlock_refused(be, s, rep->r);
    } else if (redis_script_owned(rep->r, &o) != 0) {
        redlock_misread(s, "a renewal");
    } else if (o.ours && (!run_record_begun(be->spec) || o.recorded)) {
        s->raise = RAISE_DONE;
        s->from = rep->sent;
    } else {
        s->answer = A_GONE;
        s->from = 0;
    }
}

static void end_raise(struct redlock_backend *be, int64_t now)
{
    /* A server may have reported a larger ttl after its time-out. */
    struct redlock_young y = young_of(be);
    for_each_server (be, s)
        discount(s, redlock_young_age_ms(&y));
    int raised = 0, open = redlock_count(be, A_PENDING);
    /*
     * For half a ttl the votes behind the token stand, whatever the clocks: nobody else can have
     * held the lock since. Later another client may have, and the higher counter of a late vote be
     * that client's token.
     */
    bool stand = now < be->began + be->spec->ttl / 2;
    for_each_server (be, s) {
        if (!stand && s->fence > be->fence)
            continue;
        raised += s->answer == A_YES && s->raise == RAISE_DONE;
        open += s->answer == A_YES && s->raise == RAISE_ASKED &&
                redis_conn_waits(&s->node.cmd, REDLOCK_TAG(be->serial, KIND_RAISE));
    }
    if (be->acquire.twice || raised < be->quorum) {
        if (be->acquire.twice || raised + open < be->quorum || now >= be->until)
            round_lost(be);
        return;
    }
    be->claim = CLAIM_GRANTED;
    be->proven = true;
    redis_checks_granted(&be->checks);
    be->vote_serial = be->serial;
    outage_over(&be->acquire.out, &be->events);
    leave_queues(be);
    /* A vote on a lost connection belongs to the lock now: the release undoes it, and counts. */
    for_each_server (be, s) {
        redis_node_forget(&s->node, be->value);
        s->node.cmd.held = true;
    }
    struct dlock_event *ev = redlock_end(be, EV_GRANTED);
    ev->from = redlock_from(be);
    ev->ttl = be->spec->ttl;
    ev->fence = be->fence;
    memcpy(ev->token, be->token, sizeof(ev->token));
}

/* ------------------------------------------------- stage: give the votes back */

static void round_lost(struct redlock_backend *be)
{
    int yes = redlock_count(be, A_YES) + redlock_count(be, A_GONE);
    int busy = redlock_count(be, A_BUSY), usable = yes + busy + redlock_count(be, A_GRACE);
    /* The holder named by most servers. */
    int most = 0;
    for_each_server (be, s) {
        int same = 0;
        for_each_server (be, o)
            same += o->answer == A_BUSY && o->holder == s->holder;
        if (s->answer == A_BUSY && same > most) {
            most = same;
            be->acquire.holder = s;
        }
    }
    if (be->acquire.holder && be->acquire.holder->holder == 0)
        be->acquire.holder = NULL;
    if (be->acquire.twice) {
        be->acquire.outcome = EV_FAILED;
    } else if (usable < be->quorum) {
        redlock_no_quorum(be, &be->acquire.why);
        /* Without passing troubles, such as a server loading its data. */
        for_each_server (be, s)
            usable += s->answer == A_REFUSED && redis_conn_is_open(&s->node.cmd);
        be->acquire.outcome = be->acquire.first && usable < be->quorum ? EV_FAILED : EV_WAITING;
    } else {
        be->acquire.first = false;
        be->acquire.why.code = 0;
        be->acquire.split = most < be->quorum && yes + busy >= be->quorum;
        outage_over(&be->acquire.out, &be->events);
        /* A majority within its restart grace counts as held. Split votes do not. */
        bool again = be->acquire.wait || (be->acquire.split && be->acquire.splits < SPLITS);
        be->acquire.outcome = again ? EV_WAITING : EV_BUSY;
    }
    if (be->acquire.outcome == EV_FAILED)
        fail_acquire(be, &be->acquire.why); /* the release afterwards undoes the votes */
    else
        give_votes_back(be, NULL);
}

/* success: because a run has succeeded; else NULL. */
static void give_votes_back(struct redlock_backend *be, const struct redlock_server *success)
{
    int64_t now = spec_now(be->spec);
    be->until = dlock_max(be->until, now + UNDO_TIME);
    /* As long as the round took, less the time in which young votes waited for silent servers. */
    int64_t took = dlock_min(now, be->patient_until) - be->began;
    be->patient_until = now + dlock_max(UNDO_TIME, dlock_min(took, be->spec->op_timeout));
    be->acquire.stage = STAGE_UNDO;
    for_each_server (be, s) {
        if (!s->touched || !redis_conn_is_open(&s->node.cmd))
            continue;
        if (!s->node.cmd.written) { /* the vote has never left */
            redis_conn_close(&s->node.cmd);
            s->touched = false;
            continue;
        }
        s->undo_sent = true;
        if (success)
            redlock_run_skip(be, s, success);
        else
            redlock_send(be, s, KIND_UNDO, SCRIPT_LEAVE,
                         &(struct redis_script_args){.value = be->value});
    }
}

static bool undo_waits(const struct redlock_backend *be, const struct redlock_server *s)
{
    return s->undo_sent && redis_conn_is_open(&s->node.cmd) &&
           redis_conn_waits(&s->node.cmd, REDLOCK_TAG(be->serial, KIND_UNDO));
}

static void end_undo(struct redlock_backend *be, int64_t now)
{
    for (int i = 0; i < be->n && now < be->patient_until; i++)
        if (undo_waits(be, &be->servers[i]))
            return;
    for_each_server (be, s) {
        if (undo_waits(be, s))
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
    } else {
        report_grace(be);
        redlock_end(be, EV_BUSY)->info = be->acquire.holder ? &be->acquire.holder->info : NULL;
    }
}

/* -------------------------------------------------------------------- stage: pause */

static void pause_round(struct redlock_backend *be)
{
    int64_t now = spec_now(be->spec);
    be->acquire.stage = STAGE_PAUSE;
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
        const struct redlock_server *named = be->acquire.holder;
        uint64_t holder = named ? named->holder : 0;
        report_grace(be);
        if (!be->acquire.wait_reported || holder != be->acquire.reported_holder)
            events_add(&be->events, EV_WAITING)->info = named ? &named->info : NULL;
        be->acquire.reported_holder = holder;
        be->acquire.wait_reported = true;
        bool subscribed = be->acquire.channel;
        if (!subscribed)
            be->acquire.channel = redis_script_channel(&be->script, be->spec, be->acquire.id);
        if (!be->acquire.channel)
            be->acquire.id[0] = '\0'; /* no server can wake us: the timers remain */
        for_each_server (be, s)
            if (!subscribed && be->acquire.channel)
                subscribe(be, s);
    }
    plan_round(be);
    if (be->acquire.split) {
        be->acquire.splits++;
        be->acquire.not_before = now + dlock_backoff_next(&be->acquire.split_pause, be->spec->env);
        be->acquire.try_at = be->acquire.not_before;
    } else {
        be->acquire.splits = 0;
        dlock_backoff_reset(&be->acquire.split_pause);
    }
}

/* ----------------------------------------------------------------------- driving */

static void acquire_step(struct redlock_backend *be, int64_t now)
{
    if (be->acquire.stage == STAGE_PAUSE && now >= be->acquire.try_at &&
        now >= be->acquire.not_before)
        start_round(be);
    else if (be->acquire.stage == STAGE_PAUSE && now >= be->acquire.look_at)
        look(be);
    else if (be->acquire.stage == STAGE_VOTE)
        end_votes(be, now);
    else if (be->acquire.stage == STAGE_RAISE)
        end_raise(be, now);
    if (be->op == OP_ACQUIRE && be->acquire.stage == STAGE_UNDO)
        end_undo(be, now);
    for (int i = 0; i < be->n && be->op == OP_ACQUIRE; i++) {
        struct redlock_server *s = &be->servers[i];
        if (now >= s->node.wake_until)
            redlock_wake_failed(be, s);
        if (now >= s->wake_retry_at && be->acquire.channel)
            subscribe(be, s);
    }
}

static int64_t acquire_wake_at(const struct redlock_backend *be)
{
    struct redlock_young y = young_of(be);
    int64_t at = DLOCK_NEVER, complete = redlock_young_complete_at(&y);
    switch (be->acquire.stage) {
    case STAGE_VOTE:
        at = redlock_wake_at(be);
        if (complete > be->stepped)
            at = dlock_min(at, complete);
        if (be->stepped < be->began + ERRORS_TIME)
            at = dlock_min(at, be->began + ERRORS_TIME);
        break;
    case STAGE_RAISE:
        at = be->until;
        break;
    case STAGE_UNDO:
        at = be->patient_until;
        break;
    case STAGE_PAUSE:
        at = dlock_max(be->acquire.try_at, be->acquire.not_before);
        at = dlock_min(at, be->acquire.look_at);
        break;
    }
    for_each_server (be, s)
        at = dlock_min(at, dlock_min(s->node.wake_until, s->wake_retry_at));
    return at;
}

static void acquire_answered(struct redlock_backend *be, struct redlock_server *s,
                             struct redis_conn_reply *rep)
{
    switch (REDLOCK_TAG_KIND(rep->tag)) {
    case KIND_VOTE:
        vote_answered(be, s, rep);
        break;
    case KIND_RAISE:
        raise_answered(be, s, rep);
        break;
    case KIND_UNDO:
        if (be->op == OP_ACQUIRE && rep->tag == REDLOCK_TAG(be->serial, KIND_UNDO) &&
            rep->r->type == REDIS_REPLY_ERROR)
            redlock_remember(be, s);
        break;
    case KIND_TRACK:
        redis_node_track_answered(&s->node, rep->r);
        break;
    case KIND_LOOK:
    case KIND_CLAIM:
        looked(be, s, rep);
        break;
    default:
        break;
    }
}

const struct redlock_operation redlock_op_acquire = {
    .answered = acquire_answered,
    .step = acquire_step,
    .wake_at = acquire_wake_at,
};
