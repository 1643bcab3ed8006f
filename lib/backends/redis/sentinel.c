/*
 * sentinel.c - a lock in the master behind Sentinel: find the master, and follow it when it moves.
 *
 * A round asks all sentinels in parallel, each on a new connection that ends with the answer: an
 * answer must be fresh to count, and a sentinel that hangs in a round gets a new connection in the
 * next round. Beside the rounds we listen for +switch-master, which says when a new round is worth
 * while. A majority is counted among the sentinels that the URI names. The sentinels' own opinion
 * of a majority is not asked for: they need not agree with each other at every moment, and a
 * sentinel may be cut off from the rest.
 *
 * Every new connection to the master begins with a round, and with ROLE: nothing is remembered from
 * earlier connections. A master that is cut off from its sentinels goes on confirming requests
 * after a promotion, so neither a grant nor a renewal counts before a majority names the server
 * that sent it (confirm.c).
 */
#include "route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define SENTINEL_MAX 8
#define SENTINEL_PAUSE (100 * DLOCK_MSEC) /* between rounds caused by announcements */
#define TAG_ASK 1
#define TAG_HEAR 2
#define LISTEN_AGAIN (5 * DLOCK_SEC)
#define CHANNEL "+switch-master"

/* As a sentinel writes the address: compared as text, never looked up here. */
struct sentinel_addr {
    char host[REDIS_ADDR_HOST];
    unsigned port;
};

enum sentinel_says {
    SAYS_NOTHING, /* not yet */
    SAYS_MASTER,  /* named */
    SAYS_UNKNOWN, /* the service is unknown there */
    SAYS_FAILED   /* error */
};

struct sentinel {
    char where[300];
    struct redis_conn ask, hear;
    enum sentinel_says says; /* in this round */
    struct sentinel_addr named;
    struct dlock_peer at; /* the address of the sentinel that has answered */
    struct dlock_error error;
};

struct sentinels {
    const struct dlock_spec *spec;
    char *service;
    struct redis_conn_auth auth; /* the sentinels', not the master's */
    char *secret;
    struct sentinel one[SENTINEL_MAX];
    int n;
    int64_t since, until; /* of the round; since 0: there was none yet */
    int64_t listen_at;    /* when to subscribe where we are not; DLOCK_NEVER */
    bool heard;
};

static int64_t now_of(const struct sentinels *s)
{
    return s->spec->env->now(s->spec->env->ctx);
}

/* ------------------------------------------------------------- open and close */

/*
 * The hosts of spec->uri, the service of its path, and ?sentinel-user= ?sentinel-password-file=. 0,
 * or a negative code. sentinels_close() is fine on zeroed memory and sends nothing.
 */
static int sentinels_open(struct sentinels *s, const struct dlock_spec *spec,
                          struct dlock_error *err)
{
    const struct dlock_uri *uri = spec->uri;
    const char *service = uri->path + 1, *slash = strchr(service, '/');
    const char *file = dlock_uri_param(spec->uri, "sentinel-password-file");

    *s = (struct sentinels){.spec = spec, .listen_at = DLOCK_NEVER};
    if (uri->nhosts > SENTINEL_MAX)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, uri->where,
                             "%d sentinels are more than the %d that are asked", uri->nhosts,
                             SENTINEL_MAX);
    s->n = uri->nhosts;
    for (int i = 0; i < s->n; i++) {
        snprintf(s->one[i].where, sizeof(s->one[i].where), "sentinel %s:%u", uri->hosts[i].host,
                 uri->hosts[i].port);
        s->one[i].ask.fd = s->one[i].hear.fd = -1;
    }
    s->service = strndup(service, slash ? (size_t)(slash - service) : strlen(service));
    if (!s->service)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    s->auth.user = dlock_uri_param(spec->uri, "sentinel-user");
    if (file) {
        int rc = dlock_read_secret(&s->secret, file, err);
        if (rc != 0)
            return rc;
        s->auth.password = s->secret;
    } else if (s->auth.user && *s->auth.user != '\0') {
        s->auth.password = ""; /* "nopass" */
    }
    return 0;
}

static void sentinels_close(struct sentinels *s)
{
    for (int i = 0; i < s->n; i++) {
        redis_conn_close(&s->one[i].ask);
        redis_conn_close(&s->one[i].hear);
    }
    free(s->service);
    if (s->secret)
        explicit_bzero(s->secret, strlen(s->secret));
    free(s->secret);
    *s = (struct sentinels){0};
}

/* -------------------------------------------------------------------- a round */

static void ask_failed(struct sentinel *one, const struct dlock_error *why)
{
    one->says = SAYS_FAILED;
    one->error = *why;
    redis_conn_close(&one->ask);
}

static void open_conn(const struct sentinels *s, int i, struct redis_conn *c, int64_t until)
{
    struct dlock_peer peers[REDIS_CONN_PEERS];
    int n = 0;

    for (int k = 0; k < s->spec->npeers && n < REDIS_CONN_PEERS; k++)
        if (s->spec->peers[k].host == i)
            peers[n++] = s->spec->peers[k];
    /* n is 0 where the name could not be resolved: the connection fails, and says so. */
    (void)redis_conn_open(c, s->spec->env, peers, n, &s->auth, s->one[i].where, until);
}

/*
 * Begin a round; earlier answers no longer count. A sentinel without an answer by until has failed.
 */
static void sentinels_ask(struct sentinels *s, int64_t until)
{
    const char *argv[] = {"SENTINEL", "get-master-addr-by-name", s->service};
    size_t len[] = {strlen(argv[0]), strlen(argv[1]), strlen(argv[2])};

    s->since = now_of(s);
    s->until = until;
    for (int i = 0; i < s->n; i++) {
        struct sentinel *one = &s->one[i];
        redis_conn_close(&one->ask);
        one->says = SAYS_NOTHING;
        open_conn(s, i, &one->ask, until);
        (void)redis_conn_send(&one->ask, TAG_ASK, DLOCK_LEN(argv), argv, len);
        redis_conn_flush(&one->ask);
    }
}

static bool read_address(const redisReply *r, struct sentinel_addr *a)
{
    char text[REDIS_ADDR_HOST + 8];
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 ||
        r->element[0]->type != REDIS_REPLY_STRING || r->element[1]->type != REDIS_REPLY_STRING)
        return false;
    int n = snprintf(text, sizeof(text), "%s:%s", r->element[0]->str, r->element[1]->str);
    return n < (int)sizeof(text) && redis_addr_split(text, (size_t)n, a->host, &a->port) &&
           a->host[0] != '\0';
}

static void ask_answered(struct sentinel *one, const redisReply *r)
{
    struct dlock_error err;
    bool error = r->type == REDIS_REPLY_ERROR;

    if (!one->ask.auth_failed && !error &&
        (r->type == REDIS_REPLY_NIL || read_address(r, &one->named))) {
        one->says = r->type == REDIS_REPLY_NIL ? SAYS_UNKNOWN : SAYS_MASTER;
        if (one->says == SAYS_MASTER)
            one->at = one->ask.peers[one->ask.good];
        redis_conn_close(&one->ask);
        return;
    }
    /* The generic texts are about the master's credentials. */
    if (one->ask.auth_failed)
        dlock_fail_at(&err, DLOCK_EPERM, 0, one->where,
                      "user or password refused: check sentinel-user= and sentinel-password-file=");
    else if (!error)
        dlock_fail_at(&err, DLOCK_EPROTO, 0, one->where, "unexpected answer");
    else if (strstr(r->str, "NOAUTH"))
        dlock_fail_at(&err, DLOCK_EPERM, 0, one->where,
                      "a password is needed: use ?sentinel-password-file=FILE");
    else if (strstr(r->str, "unknown command"))
        dlock_fail_at(&err, DLOCK_EPROTO, 0, one->where,
                      "this is no sentinel; redis:// is for a server without them");
    else
        redis_conn_reply_error(&err, one->where, &one->ask, r->str);
    ask_failed(one, &err);
}

/* Is redis_conn_work due: the socket is ready, or the time of this address is over? */
static bool is_due(const struct redis_conn *c, const struct pollfd *pfd, int n, int64_t now)
{
    if (c->state == RC_CONNECTING && now >= c->next_at)
        return true;
    for (int i = 0; i < n; i++)
        if (pfd[i].fd == c->fd && pfd[i].revents != 0)
            return true;
    return false;
}

/* -------------------------------------------------------------------- counting */

struct tally {
    int pending, unknown, failed;
    int named;                         /* sentinels that have named a master */
    int votes;                         /* for first */
    const struct sentinel_addr *first; /* most named; with equal votes the first in the list */
    const struct dlock_error *error;   /* a missing permission, else the first */
};

static int votes_for(const struct sentinels *s, const struct sentinel_addr *a)
{
    int votes = 0;
    for (int i = 0; i < s->n; i++) {
        const struct sentinel *one = &s->one[i];
        bool again = false; /* a sentinel with two names in the URI has a single vote */
        for (int k = 0; k < i; k++)
            again |= s->one[k].says == SAYS_MASTER && redis_same_peer(&s->one[k].at, &one->at);
        votes += one->says == SAYS_MASTER && !again && one->named.port == a->port &&
                 strcasecmp(one->named.host, a->host) == 0;
    }
    return votes;
}

static struct tally count(const struct sentinels *s)
{
    struct tally t = {0};
    for (int i = 0; i < s->n; i++) {
        const struct sentinel *one = &s->one[i];
        t.pending += one->says == SAYS_NOTHING;
        t.unknown += one->says == SAYS_UNKNOWN;
        if (one->says == SAYS_FAILED) {
            t.failed++;
            if (!t.error || (t.error->code != DLOCK_EPERM && one->error.code == DLOCK_EPERM))
                t.error = &one->error;
        } else if (one->says == SAYS_MASTER) {
            int n = votes_for(s, &one->named);
            t.named++;
            if (n > t.votes) {
                t.votes = n;
                t.first = &one->named;
            }
        }
    }
    return t;
}

static int quorum(const struct sentinels *s)
{
    return s->n / 2 + 1;
}

/* Does a majority of all sentinels name this master, or is no majority possible in this round? */
static enum redis_mastery sentinels_verdict(const struct sentinels *s,
                                            const struct sentinel_addr *a)
{
    struct tally t = count(s);

    if (votes_for(s, a) >= quorum(s))
        return MASTER_YES;
    if (t.votes >= quorum(s))
        return MASTER_OTHER;
    return t.votes + t.pending < quorum(s) || t.pending == 0 ? MASTER_NO : MASTER_PENDING;
}

/* Why the verdict is not MASTER_YES. Returns err's code. */
static int sentinels_doubt(const struct sentinels *s, const struct sentinel_addr *a,
                           struct dlock_error *err)
{
    struct tally t = count(s);
    int votes = votes_for(s, a);

    return dlock_fail_at(err, DLOCK_EUNAVAIL, 0, s->spec->uri->where,
                         "%d of %d sentinels name%s %s:%u as the master, %d must%s%s", votes, s->n,
                         votes == 1 ? "s" : "", a->host, a->port, quorum(s), t.error ? "; " : "",
                         t.error ? t.error->msg : "");
}

/*
 * The master named by a majority. 1; 0: not yet; negative: no majority is possible in this round. A
 * server that fewer sentinels name is not even connected to: a single sentinel must not decide
 * which server gets the password.
 */
static int sentinels_found(const struct sentinels *s, struct sentinel_addr *a,
                           struct dlock_error *err)
{
    struct tally t = count(s);

    if (t.votes >= quorum(s)) {
        *a = *t.first;
        return 1;
    }
    if (t.pending > 0 && (t.votes == 0 || t.votes + t.pending >= quorum(s)))
        return 0;
    if (t.votes > 0)
        return sentinels_doubt(s, t.first, err);
    const char *where = s->spec->uri->where;
    if (t.unknown > 0)
        return dlock_fail_at(err, DLOCK_EUNAVAIL, 0, where,
                             "no service '%s' (%d of %d have answered): check the service name",
                             s->service, t.unknown, s->n);
    if (t.error->code == DLOCK_EPERM)
        return dlock_fail_at(err, DLOCK_EPERM, 0, where, "%s", t.error->msg);
    return dlock_fail_at(err, t.error->code, t.error->sys, where, "no sentinel of %d answers; %s",
                         s->n, t.error->msg);
}

/* Has a sentinel named a master in the last round? */
static bool sentinels_name_one(const struct sentinels *s)
{
    return count(s).votes > 0;
}

/* ------------------------------------------------------------------- listening */

/* Subscribe to switches, from the time at on; DLOCK_NEVER: no longer. */
static void sentinels_listen(struct sentinels *s, int64_t at)
{
    s->listen_at = at;
    if (at != DLOCK_NEVER)
        return;
    s->heard = false;
    for (int i = 0; i < s->n; i++)
        redis_conn_close(&s->one[i].hear);
}

/* Not while a round is young: a repeated announcement would keep every round from its end. */
static int64_t heeded_at(const struct sentinels *s)
{
    return s->heard ? s->since + SENTINEL_PAUSE : DLOCK_NEVER;
}

/*
 * True once after a sentinel has announced a switch, or may have done so before we listened: ask
 * again. The announcement stays pending for SENTINEL_PAUSE after a round.
 */
static bool sentinels_heard(struct sentinels *s)
{
    if (now_of(s) < heeded_at(s))
        return false;
    s->heard = false;
    return true;
}

/* "SERVICE OLD-HOST OLD-PORT HOST PORT". The server in the text does not matter: a round tells. */
static bool announces(const redisReply *r, const char *service)
{
    size_t len = strlen(service);
    const redisReply *text = r->element[2];
    return text->type == REDIS_REPLY_STRING && (size_t)text->len > len &&
           memcmp(text->str, service, len) == 0 && text->str[len] == ' ';
}

static void work_hear(struct sentinels *s, struct sentinel *one, int64_t now)
{
    struct redis_conn_reply rep;
    int rc = 0;

    while (one->hear.state != RC_CLOSED && (rc = redis_conn_next(&one->hear, &rep)) == 1) {
        if (rep.tag == REDIS_CONN_PUSH)
            s->heard = s->heard || announces(rep.r, s->service);
        else if (one->hear.auth_failed || rep.r->type == REDIS_REPLY_ERROR)
            rc = DLOCK_EPERM;
        else
            s->heard = true; /* an announcement may have come before we listened */
        freeReplyObject(rep.r);
        if (rc < 0)
            break;
    }
    if (rc >= 0)
        return;
    redis_conn_close(&one->hear);
    s->listen_at = dlock_min(s->listen_at, now + LISTEN_AGAIN);
}

/* ------------------------------------------------------------ driving a round */

static int sentinels_interest(const struct sentinels *s, struct pollfd *pfd, int cap,
                              int64_t *wake_at)
{
    int64_t now = now_of(s);
    int n = 0;

    for (int i = 0; i < s->n; i++) {
        const struct sentinel *one = &s->one[i];
        if (one->ask.state != RC_CLOSED)
            *wake_at = dlock_min(*wake_at, s->until);
        if (n < cap)
            n += redis_conn_interest(&one->ask, &pfd[n], wake_at);
        if (n < cap)
            n += redis_conn_interest(&one->hear, &pfd[n], wake_at);
    }
    if (now < heeded_at(s))
        *wake_at = dlock_min(*wake_at, heeded_at(s));
    *wake_at = dlock_min(*wake_at, s->listen_at);
    return n;
}

/* pfd: what sentinels_interest asked for, found by descriptor. */
static void sentinels_work(struct sentinels *s, const struct pollfd *pfd, int n)
{
    struct redis_conn_reply rep;
    struct dlock_error err;
    int64_t now = now_of(s);

    if (now >= s->listen_at) {
        const char *argv[] = {"SUBSCRIBE", CHANNEL};
        s->listen_at = DLOCK_NEVER;
        for (int i = 0; i < s->n; i++) {
            struct redis_conn *c = &s->one[i].hear;
            if (redis_conn_is_open(c))
                continue;
            c->push = true;
            open_conn(s, i, c, now + s->spec->connect_timeout);
            (void)redis_conn_send(c, TAG_HEAR, 2, argv, (size_t[]){9, strlen(CHANNEL)});
            redis_conn_flush(c);
        }
    }
    for (int i = 0; i < s->n; i++) {
        struct sentinel *one = &s->one[i];
        if (is_due(&one->ask, pfd, n, now))
            redis_conn_work(&one->ask);
        int rc = one->ask.state != RC_CLOSED ? redis_conn_next(&one->ask, &rep) : 0;
        if (rc == 1) {
            ask_answered(one, rep.r);
            freeReplyObject(rep.r);
        } else if (rc < 0) {
            err = one->ask.error;
            ask_failed(one, &err);
        } else if (one->ask.state != RC_CLOSED && now >= s->until) {
            dlock_fail_at(&err, DLOCK_EUNAVAIL, 0, one->where, "no answer");
            ask_failed(one, &err);
        }
        if (is_due(&one->hear, pfd, n, now))
            redis_conn_work(&one->hear);
        work_hear(s, one, now);
    }
}

/* ----------------------------------------------------------------- the master */

enum seek { SEEK_NOTHING, SEEK_ASKING, SEEK_RESOLVING };

struct redis_sentinel {
    struct sentinels s;
    enum seek seek; /* for connections in RC_WAITING */
    bool failed;    /* the last search: no sentinel has named a master that can be connected to */
    bool checking;  /* a switch was announced: a round will tell whether the master has moved */
    struct sentinel_addr master; /* of the present or last connection of cmd */
    struct redis_addr addr;
};

int redis_sentinel_open(struct redis_route *r, struct dlock_error *err)
{
    r->sentinel = calloc(1, sizeof(*r->sentinel));
    if (!r->sentinel)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    return sentinels_open(&r->sentinel->s, r->spec, err);
}

void redis_sentinel_close_in_child(struct redis_route *r)
{
    for (int i = 0; r->sentinel && i < r->sentinel->s.n; i++) {
        redis_conn_close_in_child(&r->sentinel->s.one[i].ask);
        redis_conn_close_in_child(&r->sentinel->s.one[i].hear);
    }
    if (r->sentinel)
        redis_addr_close_in_child(&r->sentinel->addr);
}

void redis_sentinel_close(struct redis_route *r)
{
    if (!r->sentinel)
        return;
    sentinels_close(&r->sentinel->s);
    redis_addr_done(&r->sentinel->addr);
    free(r->sentinel);
    r->sentinel = NULL;
}

/* ------------------------------------------------------------------ connecting */

void redis_sentinel_connect(struct redis_route *r, struct redis_conn *c, int64_t until)
{
    struct redis_sentinel *m = r->sentinel;
    const struct redis_conn *cmd = &r->node->cmd;
    bool shared = m->seek != SEEK_NOTHING &&
                  (r->node->cmd.state == RC_WAITING || r->node->wake.state == RC_WAITING);
    int64_t now = redis_route_now(r);

    c->only_master = true;
    if (redis_conn_open_later(c, r->spec->env, &r->node->auth, r->spec->uri->where, until) != 0 ||
        shared)
        return;
    /* The wake-ups must come from the server with our place in its queue. */
    if (c == &r->node->wake && redis_conn_is_open(cmd) && cmd->state != RC_WAITING) {
        bool up = cmd->state == RC_UP;
        (void)redis_conn_aim(c, up ? &cmd->peers[cmd->good] : cmd->peers, up ? 1 : cmd->npeers);
        return;
    }
    redis_addr_done(&m->addr);
    m->seek = SEEK_ASKING;
    m->failed = m->checking = false;
    /*
     * Somewhat earlier than the caller's time, for an error that names the sentinels, not the
     * master, as silent.
     */
    sentinels_ask(&m->s, until - (until - now) / 8);
}

/* The master is known. True: wake is connected to a different server. */
static bool aim(struct redis_route *r)
{
    struct redis_sentinel *m = r->sentinel;
    struct redis_conn *cmd = &r->node->cmd, *wake = &r->node->wake;
    bool found = false, strayed = false;

    for (int i = 0; i < m->addr.npeers; i++)
        found |= redis_same_peer(&m->addr.peers[i], &wake->peers[wake->good]);
    m->seek = SEEK_NOTHING;
    if (cmd->state == RC_WAITING) {
        strayed = wake->state == RC_CONNECTING || (wake->state == RC_UP && !found);
        (void)redis_conn_aim(cmd, m->addr.peers, m->addr.npeers);
    }
    if (wake->state == RC_WAITING)
        (void)redis_conn_aim(wake, m->addr.peers, m->addr.npeers);
    return strayed;
}

bool redis_sentinel_seek(struct redis_route *r)
{
    struct redis_sentinel *m = r->sentinel;
    struct dlock_error err;
    bool for_good = true;
    int rc = 0;

    if (!m)
        return false;
    if (m->seek == SEEK_ASKING) {
        rc = sentinels_found(&m->s, &m->master, &err);
        for_good = !sentinels_name_one(&m->s); /* else the sentinels may be about to agree */
        if (rc > 0) {
            m->seek = SEEK_RESOLVING;
            rc = redis_addr_start(&m->addr, m->master.host, m->master.port, &err);
        }
    } else if (m->seek == SEEK_RESOLVING) {
        rc = redis_addr_result(&m->addr, &err);
    }
    if (rc < 0) {
        m->seek = SEEK_NOTHING;
        m->failed = for_good;
        if (r->node->cmd.state == RC_WAITING)
            redis_conn_give_up(&r->node->cmd, &err);
        if (r->node->wake.state == RC_WAITING)
            redis_conn_give_up(&r->node->wake, &err);
    }
    return rc > 0 && aim(r);
}

bool redis_sentinel_worth_retry(const struct redis_route *r, const struct dlock_error *err,
                                int64_t until)
{
    return r->sentinel && !r->sentinel->failed && err->code == DLOCK_EUNAVAIL &&
           redis_route_now(r) < until;
}

/* ------------------------------------------------------------------- following */

void redis_sentinel_question(struct redis_route *r, int64_t newer_than)
{
    struct redis_sentinel *m = r->sentinel;
    if (m && m->seek == SEEK_NOTHING && m->s.since < newer_than)
        sentinels_ask(&m->s, redis_route_now(r) + r->spec->op_timeout);
}

enum redis_mastery redis_sentinel_answer(const struct redis_route *r, int64_t fresh)
{
    const struct redis_sentinel *m = r->sentinel;
    if (!m)
        return MASTER_YES;
    return m->s.since < fresh ? MASTER_PENDING : sentinels_verdict(&m->s, &m->master);
}

void redis_sentinel_doubt(const struct redis_route *r, struct dlock_error *err)
{
    sentinels_doubt(&r->sentinel->s, &r->sentinel->master, err);
}

void redis_sentinel_listen(struct redis_route *r, int64_t at)
{
    if (!r->sentinel)
        return;
    if (at == DLOCK_NEVER || r->sentinel->s.listen_at == DLOCK_NEVER)
        sentinels_listen(&r->sentinel->s, at);
    if (at == DLOCK_NEVER)
        r->sentinel->checking = false;
}

enum redis_watch redis_sentinel_watch(struct redis_route *r, bool acquiring, bool granted,
                                      bool renewing)
{
    struct redis_sentinel *m = r->sentinel;
    enum redis_watch result = WATCH_NOTHING;

    if (!m || m->seek != SEEK_NOTHING) /* an announcement stays pending until then */
        return WATCH_NOTHING;
    if (sentinels_heard(&m->s)) {
        if (acquiring && r->node->cmd.state == RC_CLOSED)
            result = WATCH_RETRY;
        else if (acquiring || granted)
            m->checking = true;
        if (m->checking)
            redis_sentinel_question(r, DLOCK_NEVER);
    }
    if (!m->checking && !(renewing && redis_conn_is_open(&r->node->cmd)))
        return result;
    enum redis_mastery a = redis_sentinel_answer(r, 0);
    if (a != MASTER_PENDING)
        m->checking = false;
    return a == MASTER_OTHER && (acquiring || granted) ? WATCH_MOVED : result;
}

/* --------------------------------------------------------------------- driving */

int redis_sentinel_interest(const struct redis_route *r, struct pollfd *pfd, int cap,
                            int64_t *wake_at)
{
    const struct redis_sentinel *m = r->sentinel;
    if (!m)
        return 0;
    int n = sentinels_interest(&m->s, pfd, cap, wake_at);
    if (m->seek == SEEK_RESOLVING && n < cap)
        pfd[n++] = (struct pollfd){.fd = redis_addr_fd(&m->addr), .events = POLLIN};
    return n;
}

void redis_sentinel_work(struct redis_route *r, const struct pollfd *pfd, int n)
{
    if (r->sentinel)
        sentinels_work(&r->sentinel->s, pfd, n);
}
