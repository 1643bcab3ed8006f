/*
 * redlock_node.c - one server of a Redlock: reach it, count what it says, remember what is to be undone there.
 */
#include "redlock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A server that has answered none of so many commands gets no new ones. */
#define BACKLOG 6
/* How long one server may keep a decision waiting once a majority has answered [Redlock: 5 to 50 ms]. */
#define PATIENCE (50 * DLOCK_MSEC)

/* ---------------------------------------------------------------- connections */

void redlock_begin(struct dlock_be *be)
{
    be->op++;
    be->began = redlock_now(be);
    be->patient_until = DLOCK_NEVER;
    for (int i = 0; i < be->n; i++) {
        struct redlock_node *n = &be->nodes[i];
        n->answer = A_NONE;
        n->raised = n->raise_out = n->undo_out = false;
        if (be->proven || !be->granted)
            n->gone = n->lost = false;
        n->error.code = 0;
    }
}

static bool one_address(const struct dlock_peer *a, const struct dlock_peer *b)
{
    return a->len == b->len && memcmp(&a->addr, &b->addr, a->len) == 0;
}

/* Is it an address of the n-th name? */
static bool belongs(const struct dlock_be *be, const struct dlock_peer *p, int host)
{
    for (int i = 0; i < be->spec->npeers; i++)
        if (be->spec->peers[i].host == host && one_address(&be->spec->peers[i], p))
            return true;
    return false;
}

/* Two names can come to mean one address while we run: then it is the first one's. */
static bool taken(const struct dlock_be *be, const struct dlock_peer *p, int host)
{
    for (int i = 0; i < host; i++)
        if (belongs(be, p, i))
            return true;
    return false;
}

/* Connected to what is another one's address by now (they are used again where servers move around)? */
static bool strayed(const struct dlock_be *be, const struct redlock_node *n)
{
    const struct redis_conn *c = &n->cmd;
    const struct dlock_peer *p =
        &c->peers[c->state == RC_UP ? c->good : (c->good + c->tried - 1) % c->npeers];
    bool own = belongs(be, p, n->host), others = false;
    for (int i = 0; i < be->n && !own; i++)
        others |= i != n->host && belongs(be, p, i);
    return own ? taken(be, p, n->host) : others;
}

void redlock_open(struct dlock_be *be, struct redlock_node *n, struct redis_conn *c, int64_t until)
{
    struct dlock_peer peers[REDIS_CONN_PEERS];
    int np = 0;
    for (int i = 0; i < be->spec->npeers && np < REDIS_CONN_PEERS; i++)
        if (be->spec->peers[i].host == n->host && !taken(be, &be->spec->peers[i], n->host))
            peers[np++] = be->spec->peers[i];
    c->tls = be->tls;
    c->tls_host = be->spec->uri->hosts[n->host].host;
    (void)redis_conn_open(c, be->spec->env, peers, np, &n->auth, n->where, until);
}

/* Behind commands that have not been answered for so long nothing is to be expected on this connection. */
static bool stuck(const struct dlock_be *be, const struct redlock_node *n)
{
    int64_t old = redlock_now(be) - be->spec->op_timeout;
    return n->cmd.ntags >= BACKLOG ||
           (n->cmd.ntags > 0 && n->cmd.tags[0].sent != 0 && n->cmd.tags[0].sent < old);
}

bool redlock_reach(struct dlock_be *be, struct redlock_node *n, int64_t until)
{
    if (n->same) {
        n->answer = A_FAILED;
        n->error = n->last;
        return false;
    }
    if (redis_conn_is_open(&n->cmd) && stuck(be, n)) {
        dlock_fail(&n->error, DLOCK_EUNAVAIL, 0, "%s: no answer", n->cmd.peer_text);
        redlock_drop(be, n);
        n->retry_at = 0;
    }
    if (redis_conn_is_open(&n->cmd) && strayed(be, n)) {
        redlock_drop(be, n);
        n->from = 0;
        n->retry_at = 0;
    }
    if (redis_conn_is_open(&n->cmd))
        return true;
    if (redlock_now(be) < n->retry_at) {
        n->answer = A_FAILED;
        n->error = n->last;
        return false;
    }
    n->tracking = TRACK_OFF;
    redlock_open(be, n, &n->cmd, until);
    return true; /* a failure shows up as its state */
}

void redlock_node_well(struct redlock_node *n)
{
    n->down = false;
    n->retry_at = 0;
    dlock_backoff_reset(&n->pause);
}

static void tell_down(struct dlock_be *be, struct redlock_node *n)
{
    /* Never at the expense of what ends an operation. */
    if (n->down || be->events.n > EVENTS_MAX / 2)
        return;
    n->down = true;
    struct dlock_event *ev = events_add(&be->events, EV_NOTICE);
    dlock_fail(&ev->error, 0, 0, "%s (one of %d servers)", n->error.msg, be->n);
}

void redlock_remember(struct redlock_node *n, const char *value)
{
    if (n->nstale == REDLOCK_STALE) {
        free(n->stale[0]); /* runs out by itself */
        memmove(n->stale, n->stale + 1, sizeof(n->stale[0]) * (size_t)--n->nstale);
    }
    char *copy = strdup(value);
    if (copy != NULL)
        n->stale[n->nstale++] = copy;
}

void redlock_forget(struct redlock_node *n, const char *value)
{
    int kept = 0;
    for (int i = 0; i < n->nstale; i++) {
        if (strcmp(n->stale[i], value) == 0)
            free(n->stale[i]);
        else
            n->stale[kept++] = n->stale[i];
    }
    n->nstale = kept;
}

void redlock_undo_stale(struct dlock_be *be, struct redlock_node *n)
{
    if (redis_conn_waits(&n->cmd, REDLOCK_TAG(0, K_STALE)))
        return;
    for (int i = 0; i < n->nstale; i++)
        (void)redis_script_leave(&be->script, &n->cmd, REDLOCK_TAG(0, K_STALE), n->stale[i], "");
}

/*
 * May there be a vote for us that is not undone for certain? A stopped server executes what is in its socket
 * buffers when it goes on [measured], also after we have closed.
 */
static bool unclear_vote(const struct dlock_be *be, const struct redlock_node *n)
{
    return be->doing == DO_ACQUIRE && n->touched && n->cmd.written;
}

void redlock_drop(struct dlock_be *be, struct redlock_node *n)
{
    if (unclear_vote(be, n)) {
        if (n->cmd.state == RC_UP && !n->undo_out)
            (void)redis_script_leave(&be->script, &n->cmd, REDLOCK_TAG(be->op, K_UNDO), be->value,
                                     "");
        redlock_remember(n, be->value);
    }
    if (be->doing == DO_RELEASE && n->cmd.written &&
        redis_conn_waits(&n->cmd, REDLOCK_TAG(be->op, K_LEAVE)))
        n->left = true;
    redis_conn_close(&n->cmd);
    n->tracking = TRACK_OFF;
}

void redlock_node_failed(struct dlock_be *be, struct redlock_node *n)
{
    n->error = n->last = n->cmd.error;
    if (n->answer == A_PENDING)
        n->answer = A_FAILED;
    if (be->doing == DO_ACQUIRE && !n->cmd.written)
        n->touched = false; /* the vote has never left */
    redlock_drop(be, n);
    n->retry_at = redlock_now(be) + dlock_backoff_next(&n->pause, be->spec->env);
    tell_down(be, n);
}

/* An error reply, or what AUTH was answered. */
void redlock_node_refused(struct dlock_be *be, struct redlock_node *n, const redisReply *r)
{
    n->answer = A_REFUSED;
    if (n->cmd.auth_failed)
        n->error = n->cmd.error;
    else
        redis_conn_reply_error(&n->error, n->where, &n->auth, r->str);
    n->last = n->error;
    if (n->cmd.auth_failed || redis_conn_classify(r->str) != RE_TRANSIENT)
        redlock_drop(be, n);
    n->retry_at = redlock_now(be) + dlock_backoff_next(&n->pause, be->spec->env);
    tell_down(be, n);
}

void redlock_clock(struct dlock_be *be, struct redlock_node *n, int64_t theirs_ms, int64_t sent)
{
    int64_t jump = redis_clock_told(&n->clock, theirs_ms, sent, redlock_now(be));
    if (jump != 0 && be->events.n <= EVENTS_MAX / 2)
        redis_clock_warning(jump, n->where, &events_add(&be->events, EV_NOTICE)->error);
}

/* ------------------------------------------------------------------- counting */

uint64_t redlock_digest(const char *text, size_t len)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)text[i]) * 1099511628211u;
    return h | 1;
}

int redlock_count(const struct dlock_be *be, enum redlock_answer what)
{
    int count = 0;
    for (int i = 0; i < be->n; i++)
        count += be->nodes[i].answer == what;
    return count;
}

int64_t redlock_from(const struct dlock_be *be)
{
    int64_t best = 0;
    for (int i = 0; i < be->n; i++) {
        int64_t t = be->nodes[i].from;
        int newer = 0;
        for (int k = 0; k < be->n; k++)
            newer += be->nodes[k].from >= t;
        if (newer >= be->quorum)
            best = dlock_max(best, t);
    }
    return best;
}

bool redlock_patient(struct dlock_be *be, int answered, int64_t now)
{
    if (answered >= be->quorum && be->patient_until == DLOCK_NEVER)
        /* A distant majority says how long the way is. */
        be->patient_until = now + dlock_max(PATIENCE, 2 * (now - be->began));
    return now < dlock_min(be->op_until, be->patient_until);
}

/* The most telling of the nodes' errors of that code (0: of any). */
static const struct dlock_error *some_error(const struct dlock_be *be, int code)
{
    for (int i = 0; i < be->n; i++) {
        const struct redlock_node *n = &be->nodes[i];
        if (n->error.code != 0 && (code == 0 || n->error.code == code))
            return &n->error;
    }
    return NULL;
}

int redlock_no_quorum(const struct dlock_be *be, struct dlock_error *err)
{
    /* What is wrong with so many that the others are no majority? One that talks nonsense counts as one that is away. */
    static const int codes[] = {DLOCK_EPERM, DLOCK_EDATA, DLOCK_EUSAGE, DLOCK_EOS};
    int usable = be->n, code = DLOCK_EUNAVAIL;

    for (int i = 0; i < be->n; i++)
        usable -= be->nodes[i].error.code != 0 || be->nodes[i].answer == A_PENDING ||
                  be->nodes[i].answer == A_LATE || be->nodes[i].answer == A_FAILED;
    for (size_t c = 0; c < DLOCK_LEN(codes) && code == DLOCK_EUNAVAIL; c++) {
        int with = 0;
        for (int i = 0; i < be->n; i++)
            with += be->nodes[i].error.code == codes[c];
        if (with > 0 && usable + with >= be->quorum)
            code = codes[c];
    }
    const struct dlock_error *why = some_error(be, code);
    char silent[340] = "";
    if (why == NULL)
        why = some_error(be, 0);
    for (int i = 0; i < be->n && why == NULL && silent[0] == '\0'; i++)
        if (be->nodes[i].answer == A_PENDING || be->nodes[i].answer == A_LATE)
            snprintf(silent, sizeof(silent), "%s: no answer", be->nodes[i].where);
    return dlock_fail(err, code, why != NULL ? why->sys : 0,
                      "%s: only %d of %d servers can be used, %d are needed; %s",
                      be->spec->uri->where, usable, be->n, be->quorum,
                      why != NULL ? why->msg : silent);
}
