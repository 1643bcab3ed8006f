/* redlock_servers.c - the servers of a Redlock: reach each server, and count the answers. */
#include "redlock_servers.h"

#include <string.h>

/* A server that leaves so many commands unanswered gets no new commands. */
#define BACKLOG 6
/* How long a server may delay a decision once a majority has answered [Redlock: 5 to 50 ms]. */
#define PATIENCE (50 * DLOCK_MSEC)

/* ---------------------------------------------------------------- connections */

/* A server with two names would have two votes. */
int redlock_check_peers(struct redlock_backend *be, struct dlock_error *err)
{
    const struct dlock_peer *p = be->spec->peers;
    for (int i = 0; i < be->spec->npeers; i++)
        for (int k = 0; k < i; k++)
            if (p[i].host != p[k].host && redis_same_peer(&p[i], &p[k]))
                return dlock_fail(err, DLOCK_EUSAGE, 0,
                                  "%s and %s are one address: a redlock needs different servers",
                                  be->servers[p[k].host].where, be->servers[p[i].host].where);
    return 0;
}

void redlock_begin(struct redlock_backend *be, enum redlock_op op)
{
    be->op = op;
    be->serial++;
    be->began = spec_now(be->spec);
    be->patient_until = DLOCK_NEVER;
    redlock_rest((struct dlock_be *)be);
    for_each_server (be, s) {
        s->answer = A_NONE;
        s->raise = RAISE_NONE;
        s->undo_sent = false;
        if (be->proven || be->claim == CLAIM_NONE)
            s->loss = LOSS_NONE;
        s->error.code = 0;
    }
}

/* Does the name at this index resolve to the address? */
static bool belongs(const struct redlock_backend *be, const struct dlock_peer *p, int host)
{
    for (int i = 0; i < be->spec->npeers; i++)
        if (be->spec->peers[i].host == host && redis_same_peer(&be->spec->peers[i], p))
            return true;
    return false;
}

/* Two names can resolve to one address while we run: then the address belongs to the first name. */
static bool taken(const struct redlock_backend *be, const struct dlock_peer *p, int host)
{
    for (int i = 0; i < host; i++)
        if (belongs(be, p, i))
            return true;
    return false;
}

/* Does cmd's address belong to a different name by now? (Moved servers reuse addresses.) */
static bool reassigned(const struct redlock_backend *be, const struct redlock_server *s)
{
    const struct redis_conn *c = &s->node.cmd;
    const struct dlock_peer *p =
        &c->peers[c->state == RC_UP ? c->good : (c->good + c->tried - 1) % c->npeers];
    bool own = belongs(be, p, s->host), others = false;
    for (int i = 0; i < be->n && !own; i++)
        others |= i != s->host && belongs(be, p, i);
    return own ? taken(be, p, s->host) : others;
}

void redlock_connect(struct redlock_backend *be, struct redlock_server *s, struct redis_conn *c,
                     int64_t until)
{
    struct dlock_peer peers[REDIS_CONN_PEERS];
    int np = 0;
    for (int i = 0; i < be->spec->npeers && np < REDIS_CONN_PEERS; i++)
        if (be->spec->peers[i].host == s->host && !taken(be, &be->spec->peers[i], s->host))
            peers[np++] = be->spec->peers[i];
    (void)redis_conn_open(c, be->spec->uri->hosts[s->host].host, until, peers, np);
}

static void drop_silent(struct redlock_backend *be, struct redlock_server *s)
{
    const struct redis_conn *c = &s->node.cmd;
    dlock_fail_site(&s->error, DLOCK_EUNAVAIL, 0,
                    &(struct dlock_site){c->where, c->address[0] ? c->address : NULL, NULL},
                    "no answer");
    redlock_drop(be, s);
}

bool redlock_reach(struct redlock_backend *be, struct redlock_server *s, int64_t until)
{
    const struct redis_conn *c = &s->node.cmd;
    int64_t now = spec_now(be->spec), oldest = c->ntags > 0 ? c->tags[0].sent : 0;
    bool stuck = c->ntags >= BACKLOG || (oldest != 0 && oldest < now - be->spec->op_timeout);
    if (s->same) {
        s->answer = A_FAILED;
        s->error = s->last;
        return false;
    }
    /* Behind many unanswered commands, or an old one, a new command would stay unanswered, too. */
    if (redis_conn_is_open(c) && stuck) {
        drop_silent(be, s);
        s->retry_at = 0;
    }
    if (redis_conn_is_open(c) && reassigned(be, s)) {
        redlock_drop(be, s);
        s->from = 0;
        s->retry_at = 0;
    }
    s->answer = A_PENDING;
    if (redis_conn_is_open(c))
        return true;
    if (now < s->retry_at) {
        s->answer = A_FAILED;
        s->error = s->last;
        return false;
    }
    s->node.tracking = TRACK_OFF;
    redlock_connect(be, s, &s->node.cmd, until);
    return true; /* a failure shows up as the connection's state */
}

void redlock_keep(struct redlock_backend *be, struct redlock_server *s, enum redlock_kind kind)
{
    const struct dlock_spec *spec = be->spec;
    struct redis_script_args args = {
        .value = be->value, .fence = be->fence, .heal = kind == KIND_HEAL};
    bool record = spec->hold->begin == RUN_NOW;
    char text[RUN_RECORD_MAX];
    if (kind == KIND_RAISE) {
        s->raise = RAISE_ASKED;
        args.ttl = redlock_lease(spec);
        record = run_record_begun(spec);
    } else {
        s->answer = A_PENDING;
        args.ttl = dlock_max(spec->ttl, spec_stay(spec));
        args.grace = be->restart_grace;
        if (spec->mode == DLOCK_MODE_EXCLUSIVE)
            redis_conn_track(&s->node.cmd, REDIS_CONN_TRACK);
    }
    if (record)
        (void)redis_script_run(&args, spec, be->token, be->fence, false, text);
    redlock_send(be, s, kind, SCRIPT_KEEP, &args);
}

void redlock_well(struct redlock_server *s)
{
    s->down = s->hung_up = false;
    s->retry_at = 0;
    dlock_backoff_reset(&s->pause);
}

void redlock_report_down(struct redlock_backend *be, struct redlock_server *s)
{
    struct dlock_error err;
    if (s->down || be->op == OP_CHECK || be->events.n > EVENTS_MAX / 2)
        return;
    s->down = true;
    dlock_fail(&err, 0, 0, "%s (one of %d servers)", s->error.msg, be->n);
    redlock_notice(be, &err);
}

void redlock_drop(struct redlock_backend *be, struct redlock_server *s)
{
    /* The server may have a vote for us, or set it later (node.c). */
    if (be->op == OP_ACQUIRE && s->touched && s->node.cmd.written) {
        if (s->node.cmd.state == RC_UP && !s->undo_sent)
            redlock_send(be, s, KIND_UNDO, SCRIPT_LEAVE,
                         &(struct redis_script_args){.value = be->value});
        redlock_remember(be, s);
    }
    if (be->op == OP_RELEASE && s->node.cmd.written &&
        redis_conn_waits(&s->node.cmd, REDLOCK_TAG(be->serial, KIND_LEAVE)) &&
        !s->node.cmd.unclear.r) /* refused */
        s->left = true;
    redis_node_close(&s->node);
}

void redlock_silent(struct redlock_backend *be, struct redlock_server *s)
{
    s->answer = A_FAILED;
    drop_silent(be, s);
    s->last = s->error;
    redlock_report_down(be, s);
}

void redlock_failed(struct redlock_backend *be, struct redlock_server *s)
{
    /* Servers and proxies close idle connections: reported when the next attempt fails, too. */
    bool idle = s->node.cmd.answered && s->node.cmd.error.code == DLOCK_EUNAVAIL && !s->hung_up;
    bool pending = s->answer == A_PENDING;
    s->error = s->last = s->node.cmd.error;
    if (pending)
        s->answer = A_FAILED;
    if (be->op == OP_ACQUIRE && !s->node.cmd.written)
        s->touched = false; /* the vote has never left */
    redlock_drop(be, s);
    s->retry_at = spec_now(be->spec) + dlock_backoff_next(&s->pause, be->spec->env);
    if (!idle)
        redlock_report_down(be, s);
    /* Once for each good answer: the other servers are well, and are asked, too. */
    if (be->claim == CLAIM_GRANTED && !s->hung_up &&
        (be->op == OP_NONE || (be->op == OP_RENEW && !pending)))
        s->doubt = EV_AWAY;
    s->hung_up = true;
}

void redlock_refused(struct redlock_backend *be, struct redlock_server *s, const redisReply *r)
{
    s->answer = A_REFUSED;
    if (s->node.cmd.auth_failed)
        s->error = s->node.cmd.error;
    else
        redis_conn_reply_error(&s->error, &s->node.cmd, r->str);
    s->last = s->error;
    if (s->node.cmd.auth_failed || redis_conn_classify(r->str) != RE_TRANSIENT)
        redlock_drop(be, s);
    s->retry_at = spec_now(be->spec) + dlock_backoff_next(&s->pause, be->spec->env);
    redlock_report_down(be, s);
}

void redlock_misread(struct redlock_server *s, const char *what)
{
    s->answer = A_REFUSED;
    dlock_fail_at(&s->error, DLOCK_EPROTO, 0, s->where, "unexpected answer to %s", what);
}

/* ------------------------------------------------------------------- counting */

uint64_t redlock_digest(const char *text, size_t len)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)text[i]) * 1099511628211u;
    return h | 1;
}

int redlock_count(const struct redlock_backend *be, enum redlock_answer what)
{
    int count = 0;
    for_each_server (be, s)
        count += s->answer == what;
    return count;
}

int64_t redlock_from(const struct redlock_backend *be)
{
    int64_t from[REDLOCK_NODES];
    for (int i = 0; i < be->n; i++)
        from[i] = be->servers[i].from;
    return quorum_reached(from, be->n, be->quorum);
}

bool redlock_patient(struct redlock_backend *be, int answered, int64_t now)
{
    if (answered >= be->quorum && be->patient_until == DLOCK_NEVER)
        /* The time that a distant majority took shows how long a round trip is. */
        be->patient_until = now + dlock_max(PATIENCE, 2 * (now - be->began));
    return now < dlock_min(be->until, be->patient_until);
}

int64_t redlock_wake_at(const struct redlock_backend *be)
{
    /* Earlier deadlines were handled in the last step. */
    return be->patient_until > be->stepped ? dlock_min(be->until, be->patient_until) : be->until;
}

/* The first server's error with this code (0: with any code). */
static const struct dlock_error *some_error(const struct redlock_backend *be, int code)
{
    for_each_server (be, n) {
        if (n->error.code != 0 && (code == 0 || n->error.code == code))
            return &n->error;
    }
    return NULL;
}

void redlock_why(const struct redlock_backend *be, int code, struct dlock_error *why)
{
    const struct dlock_error *said = some_error(be, code);
    if (!said)
        said = some_error(be, 0);
    *why = said ? *said : (struct dlock_error){0};
    for_each_server (be, s)
        if (why->msg[0] == '\0' && (s->answer == A_PENDING || s->answer == A_LATE))
            dlock_fail_at(why, 0, 0, s->where, "no answer");
}

int redlock_no_quorum(const struct redlock_backend *be, struct dlock_error *err)
{
    /* Which error takes the majority away? A malformed answer counts as no answer. */
    static const int codes[] = {DLOCK_EPERM, DLOCK_EDATA, DLOCK_EUSAGE, DLOCK_EUNUSABLE, DLOCK_EOS};
    int usable = be->n, code = DLOCK_EUNAVAIL;
    for_each_server (be, s)
        usable -= s->error.code != 0 || s->answer == A_PENDING || s->answer == A_LATE ||
                  s->answer == A_FAILED;
    for (size_t c = 0; c < DLOCK_LEN(codes) && code == DLOCK_EUNAVAIL; c++) {
        int with = 0;
        for_each_server (be, s)
            with += s->error.code == codes[c];
        if (with > 0 && usable + with >= be->quorum)
            code = codes[c];
    }
    struct dlock_error why;
    redlock_why(be, code, &why);
    return dlock_fail_at(err, code, why.sys, be->spec->uri->where,
                         "only %d of %d servers can be used, %d are needed; %s", usable, be->n,
                         be->quorum, why.msg);
}
