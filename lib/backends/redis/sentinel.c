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
#define TAG_LISTEN 2
#define TAG_QUORUM 3
#define LISTEN_AGAIN (5 * DLOCK_SEC)

struct sentinel {
    char where[300];
    struct redis_node node; /* cmd: a round's question; wake: announcements */
    enum {
        SAYS_NOTHING,         /* not yet */
        SAYS_MASTER,          /* named */
        SAYS_UNKNOWN,         /* the service is unknown there */
        SAYS_FAILED           /* error */
    } says;                   /* in this round */
    struct redis_named named; /* compared as text, never looked up here */
    struct dlock_peer at;     /* the address of the sentinel that has answered */
    bool has_quorum;          /* it could start a failover: a check asks */
    char no_quorum[200];      /* why it could not; "" */
    struct dlock_error error;
};

struct redis_sentinel {
    const struct dlock_spec *spec;
    char *service;
    char *secret; /* the sentinels' password, not the master's */
    struct sentinel one[SENTINEL_MAX];
    int n, quorum;
    int64_t since, until; /* of the round; since 0: there was none yet */
    int64_t listen_at;    /* when to subscribe where we are not; DLOCK_NEVER */
    bool announced;       /* a switch was announced */
    bool asks_quorum;     /* of a check */

    enum { SEEK_NOTHING, SEEK_ASKING, SEEK_RESOLVING } seek; /* for connections in RC_WAITING */
    bool failed;   /* the last search: no sentinel has named a master that can be connected to */
    bool checking; /* a switch was announced: a round will tell whether the master has moved */
    struct redis_named master; /* of the present or last connection of cmd */
    struct redis_addr addr;
};

/* ------------------------------------------------------------- open and close */

int redis_sentinel_open(struct redis_route *r, struct dlock_error *err)
{
    struct dlock_uri *uri = r->spec->uri;
    const char *service = uri->path + 1, *slash = strchr(service, '/');
    const char *file = dlock_uri_param(uri, "sentinel-password-file");
    struct redis_sentinel *m = r->sentinel = calloc(1, sizeof(*m));
    if (!m)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    m->spec = r->spec;
    m->listen_at = DLOCK_NEVER;
    if (uri->nhosts > SENTINEL_MAX)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, uri->where,
                             "%d sentinels are more than the %d that are asked", uri->nhosts,
                             SENTINEL_MAX);
    m->service = strndup(service, slash ? (size_t)(slash - service) : strlen(service));
    if (!m->service)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    const struct dlock_host credentials = {.user = (char *)dlock_uri_param(uri, "sentinel-user")};
    int rc = file ? dlock_read_secret(&m->secret, file, err) : 0;
    if (rc != 0)
        return rc;
    m->n = uri->nhosts;
    m->quorum = m->n / 2 + 1;
    for (int i = 0; i < m->n; i++) {
        struct sentinel *one = &m->one[i];
        snprintf(one->where, sizeof(one->where), "sentinel %s:%u", uri->hosts[i].host,
                 uri->hosts[i].port);
        redis_node_init(&one->node, r->spec->env, one->where, NULL);
        redis_node_credentials(&one->node, &credentials, m->secret, file);
    }
    return 0;
}

void redis_sentinel_close_in_child(struct redis_route *r)
{
    struct redis_sentinel *m = r->sentinel;
    if (!m)
        return;
    for (int i = 0; i < m->n; i++)
        redis_node_close_in_child(&m->one[i].node);
    redis_addr_close_in_child(&m->addr);
}

void redis_sentinel_close(struct redis_route *r)
{
    struct redis_sentinel *m = r->sentinel;
    if (!m)
        return;
    for (int i = 0; i < m->n; i++)
        redis_node_done(&m->one[i].node);
    free(m->service);
    dlock_wipe(m->secret);
    redis_addr_done(&m->addr);
    free(m);
    r->sentinel = NULL;
}

/* -------------------------------------------------------------------- a round */

static void open_conn(const struct redis_sentinel *m, int i, struct redis_conn *c, int64_t until)
{
    struct dlock_peer peers[REDIS_CONN_PEERS];
    int n = 0;
    for (int k = 0; k < m->spec->npeers && n < REDIS_CONN_PEERS; k++)
        if (m->spec->peers[k].host == i)
            peers[n++] = m->spec->peers[k];
    /* n is 0 where the name could not be resolved: the connection fails, and says so. */
    (void)redis_conn_open(c, NULL, until, peers, n);
}

/* Begin a round: only its answers count. A sentinel without an answer by until has failed. */
static void begin_round(struct redis_sentinel *m, int64_t until)
{
    const char *argv[] = {"SENTINEL", "get-master-addr-by-name", m->service};
    const char *quorum[] = {"SENTINEL", "CKQUORUM", m->service};
    m->since = spec_now(m->spec);
    m->until = until;
    for (int i = 0; i < m->n; i++) {
        struct redis_conn *ask = &m->one[i].node.cmd;
        redis_conn_close(ask);
        m->one[i].says = SAYS_NOTHING;
        m->one[i].has_quorum = false;
        m->one[i].no_quorum[0] = '\0';
        open_conn(m, i, ask, until);
        /* First: the answer to the other question ends the connection. */
        if (m->asks_quorum)
            (void)redis_conn_send(ask, TAG_QUORUM, DLOCK_LEN(quorum), quorum);
        (void)redis_conn_send(ask, TAG_ASK, DLOCK_LEN(argv), argv);
        redis_conn_flush(ask);
    }
}

static bool read_address(const redisReply *r, struct redis_named *a)
{
    char text[REDIS_ADDR_HOST + 8];
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 ||
        r->element[0]->type != REDIS_REPLY_STRING || r->element[1]->type != REDIS_REPLY_STRING)
        return false;
    int n = snprintf(text, sizeof(text), "%s:%s", r->element[0]->str, r->element[1]->str);
    return n < (int)sizeof(text) && redis_addr_split(text, (size_t)n, a) && a->host[0] != '\0';
}

static void ask_answered(struct sentinel *one, const redisReply *r)
{
    struct dlock_error *err = &one->error;
    one->says = SAYS_FAILED;
    /* The generic texts are about the master's credentials. */
    if (one->node.cmd.auth_failed) {
        dlock_fail_at(err, DLOCK_EPERM, 0, one->where,
                      "user or password refused: check sentinel-user= and sentinel-password-file=");
    } else if (r->type == REDIS_REPLY_NIL) {
        one->says = SAYS_UNKNOWN;
    } else if (r->type != REDIS_REPLY_ERROR && read_address(r, &one->named)) {
        one->says = SAYS_MASTER;
        one->at = one->node.cmd.peers[one->node.cmd.good];
    } else if (r->type != REDIS_REPLY_ERROR) {
        dlock_fail_at(err, DLOCK_EPROTO, 0, one->where, "unexpected answer");
    } else if (strstr(r->str, "NOAUTH")) {
        dlock_fail_at(err, DLOCK_EPERM, 0, one->where,
                      "a password is needed: write " URI_PARAM("?sentinel-password-file=FILE"));
    } else if (strstr(r->str, "unknown command")) {
        dlock_fail_at(err, DLOCK_EPROTO, 0, one->where,
                      "this is no sentinel; redis:// is for a server without them");
    } else {
        redis_conn_reply_error(err, &one->node.cmd, r->str);
    }
    redis_conn_close(&one->node.cmd);
}

static void quorum_answered(struct sentinel *one, const redisReply *r)
{
    static const char none[] = "NOQUORUM ";
    one->has_quorum = r->type == REDIS_REPLY_STATUS;
    if (r->type == REDIS_REPLY_ERROR && strncmp(r->str, none, strlen(none)) == 0)
        snprintf(one->no_quorum, sizeof(one->no_quorum), "%s", r->str + strlen(none));
}

/* Take the answers of a round; the round ends at until. */
static void take_answers(const struct redis_sentinel *m, struct sentinel *one, int64_t now)
{
    struct redis_conn *ask = &one->node.cmd;
    struct redis_conn_reply rep;
    int rc = 0;
    while (ask->state != RC_CLOSED && (rc = redis_conn_next(ask, &rep)) == 1) {
        if (rep.tag == TAG_QUORUM)
            quorum_answered(one, rep.r);
        else
            ask_answered(one, rep.r);
        freeReplyObject(rep.r);
    }
    if (rc >= 0 && (ask->state == RC_CLOSED || now < m->until))
        return;
    one->says = SAYS_FAILED;
    one->error = ask->error;
    if (rc == 0)
        dlock_fail_at(&one->error, DLOCK_EUNAVAIL, 0, one->where, "no answer");
    redis_conn_close(ask);
}

/* -------------------------------------------------------------------- counting */

struct tally {
    int pending, unknown;
    int votes;                       /* for first */
    const struct redis_named *first; /* most named; with equal votes the first in the list */
    const struct dlock_error *error; /* a missing permission, else the first */
};

static int votes_for(const struct redis_sentinel *m, const struct redis_named *a)
{
    int votes = 0;
    for (int i = 0; i < m->n; i++) {
        const struct sentinel *one = &m->one[i];
        bool again = false; /* a sentinel with two names in the URI has a single vote */
        for (int k = 0; k < i; k++)
            again |= m->one[k].says == SAYS_MASTER && redis_same_peer(&m->one[k].at, &one->at);
        votes += one->says == SAYS_MASTER && !again && one->named.port == a->port &&
                 strcasecmp(one->named.host, a->host) == 0;
    }
    return votes;
}

static struct tally count(const struct redis_sentinel *m)
{
    struct tally t = {0};
    for (int i = 0; i < m->n; i++) {
        const struct sentinel *one = &m->one[i];
        int votes = one->says == SAYS_MASTER ? votes_for(m, &one->named) : 0;
        t.pending += one->says == SAYS_NOTHING;
        t.unknown += one->says == SAYS_UNKNOWN;
        if (one->says == SAYS_FAILED &&
            (!t.error || (t.error->code != DLOCK_EPERM && one->error.code == DLOCK_EPERM)))
            t.error = &one->error;
        if (votes > t.votes) {
            t.votes = votes;
            t.first = &one->named;
        }
    }
    return t;
}

enum redis_confirmed redis_sentinel_answer(const struct redis_route *r, int64_t fresh)
{
    const struct redis_sentinel *m = r->sentinel;
    if (!m)
        return CONFIRM_YES;
    if (m->since < fresh)
        return CONFIRM_ASKED;
    struct tally t = count(m);
    if (votes_for(m, &m->master) >= m->quorum)
        return CONFIRM_YES;
    if (t.votes >= m->quorum)
        return CONFIRM_MOVED;
    return t.votes + t.pending < m->quorum || t.pending == 0 ? CONFIRM_REFUSED : CONFIRM_ASKED;
}

void redis_sentinel_ask_quorum(struct redis_route *r, bool ask)
{
    if (r->sentinel)
        r->sentinel->asks_quorum = ask;
}

bool redis_sentinel_survey(const struct redis_route *r, struct redis_survey *s)
{
    const struct redis_sentinel *m = r->sentinel;
    *s = (struct redis_survey){0};
    if (!m)
        return false;
    struct tally t = count(m);
    *s = (struct redis_survey){.pending = t.pending > 0,
                               .votes = votes_for(m, &m->master),
                               .n = m->n,
                               .quorum = m->quorum,
                               .master = &m->master,
                               .error = t.error};
    for (int i = 0; i < m->n; i++) {
        s->quorate += m->one[i].has_quorum;
        if (m->one[i].no_quorum[0] != '\0' && !s->no_quorum) {
            s->no_quorum = m->one[i].no_quorum;
            s->doubter = m->one[i].where;
        }
    }
    return !s->pending;
}

/* Too few sentinels name this master. Returns err's code. */
static int too_few(const struct redis_sentinel *m, const struct redis_named *a,
                   struct dlock_error *err)
{
    struct tally t = count(m);
    int votes = votes_for(m, a);
    return dlock_fail_at(err, DLOCK_EUNAVAIL, 0, m->spec->uri->where,
                         "%d of %d sentinels name%s %s:%u as the master, %d must%s%s", votes, m->n,
                         votes == 1 ? "s" : "", a->host, a->port, m->quorum, t.error ? "; " : "",
                         t.error ? t.error->msg : "");
}

void redis_sentinel_doubt(const struct redis_route *r, struct dlock_error *err)
{
    too_few(r->sentinel, &r->sentinel->master, err);
}

/*
 * The master named by a majority. 1; 0: not yet; negative: no majority is possible in this round. A
 * server that fewer sentinels name is not even connected to: a single sentinel must not decide
 * which server gets the password.
 */
static int find_master(const struct redis_sentinel *m, struct redis_named *a,
                       struct dlock_error *err)
{
    const char *where = m->spec->uri->where;
    struct tally t = count(m);
    if (t.votes >= m->quorum) {
        *a = *t.first;
        return 1;
    }
    if (t.pending > 0 && (t.votes == 0 || t.votes + t.pending >= m->quorum))
        return 0;
    if (t.votes > 0)
        return too_few(m, t.first, err);
    if (t.unknown > 0)
        return dlock_fail_at(err, DLOCK_EUNAVAIL, 0, where,
                             "no service '%s' (%d of %d have answered): check the service name",
                             m->service, t.unknown, m->n);
    if (t.error->code == DLOCK_EPERM)
        return dlock_fail_at(err, DLOCK_EPERM, 0, where, "%s", t.error->msg);
    return dlock_fail_at(err, t.error->code, t.error->sys, where, "no sentinel of %d answers; %s",
                         m->n, t.error->msg);
}

/* ------------------------------------------------------------------- listening */

void redis_sentinel_listen(struct redis_route *r, int64_t at)
{
    struct redis_sentinel *m = r->sentinel;
    if (!m)
        return;
    if (at != DLOCK_NEVER) {
        m->listen_at = m->listen_at == DLOCK_NEVER ? at : m->listen_at;
        return;
    }
    m->listen_at = DLOCK_NEVER;
    m->announced = m->checking = false;
    for (int i = 0; i < m->n; i++)
        redis_conn_close(&m->one[i].node.wake);
}

/* Not while a round is young: a repeated announcement would keep every round from its end. */
static int64_t announcement_due(const struct redis_sentinel *m)
{
    return m->announced ? m->since + SENTINEL_PAUSE : DLOCK_NEVER;
}

/*
 * True once after a sentinel has announced a switch, or may have done so before we listened: ask
 * again. The announcement stays pending for SENTINEL_PAUSE after a round.
 */
static bool take_announcement(struct redis_sentinel *m)
{
    if (spec_now(m->spec) < announcement_due(m))
        return false;
    m->announced = false;
    return true;
}

static void read_announcements(struct redis_sentinel *m, struct sentinel *one, int64_t now)
{
    size_t len = strlen(m->service);
    struct redis_conn_reply rep;
    int rc = 0;
    while (rc >= 0 && one->node.wake.state != RC_CLOSED &&
           (rc = redis_conn_next(&one->node.wake, &rep)) == 1) {
        if (rep.tag == REDIS_CONN_PUSH) {
            /* "SERVICE OLD-HOST OLD-PORT HOST PORT". A round tells the new master. */
            const redisReply *text = rep.r->element[2];
            m->announced |= text->type == REDIS_REPLY_STRING && (size_t)text->len > len &&
                            memcmp(text->str, m->service, len) == 0 && text->str[len] == ' ';
        } else if (one->node.wake.auth_failed || rep.r->type == REDIS_REPLY_ERROR) {
            rc = DLOCK_EPERM;
        } else {
            m->announced = true; /* an announcement may have come before we listened */
        }
        freeReplyObject(rep.r);
    }
    if (rc >= 0)
        return;
    redis_conn_close(&one->node.wake);
    m->listen_at = dlock_min(m->listen_at, now + LISTEN_AGAIN);
}

/* --------------------------------------------------------------------- driving */

int redis_sentinel_interest(const struct redis_route *r, struct pollfd *pfd, int cap,
                            int64_t *wake_at)
{
    const struct redis_sentinel *m = r->sentinel;
    int n = 0;
    if (!m)
        return 0;
    for (int i = 0; i < m->n; i++) {
        const struct sentinel *one = &m->one[i];
        if (one->node.cmd.state != RC_CLOSED)
            *wake_at = dlock_min(*wake_at, m->until);
        n += redis_node_interest(&one->node, &pfd[n], cap - n, wake_at);
    }
    if (spec_now(m->spec) < announcement_due(m))
        *wake_at = dlock_min(*wake_at, announcement_due(m));
    *wake_at = dlock_min(*wake_at, m->listen_at);
    if (m->seek == SEEK_RESOLVING && n < cap)
        pfd[n++] = (struct pollfd){.fd = redis_addr_fd(&m->addr), .events = POLLIN};
    return n;
}

void redis_sentinel_work(struct redis_route *r, const struct pollfd *pfd, int n)
{
    struct redis_sentinel *m = r->sentinel;
    if (!m)
        return;
    int64_t now = spec_now(m->spec);
    bool subscribe = now >= m->listen_at;
    if (subscribe)
        m->listen_at = DLOCK_NEVER;
    for (int i = 0; i < m->n && subscribe; i++) {
        static const char *const argv[] = {"SUBSCRIBE", "+switch-master"};
        struct redis_conn *c = &m->one[i].node.wake;
        if (redis_conn_is_open(c))
            continue;
        open_conn(m, i, c, now + m->spec->connect_timeout);
        (void)redis_conn_send(c, TAG_LISTEN, 2, argv);
        redis_conn_flush(c);
    }
    for (int i = 0; i < m->n; i++) {
        struct sentinel *one = &m->one[i];
        redis_node_work(&one->node, pfd, n);
        take_answers(m, one, now);
        read_announcements(m, one, now);
    }
}

/* ------------------------------------------------------------------ connecting */

void redis_sentinel_connect(struct redis_route *r, struct redis_conn *c, int64_t until)
{
    struct redis_sentinel *m = r->sentinel;
    const struct redis_conn *cmd = &r->node->cmd;
    bool shared = m->seek != SEEK_NOTHING &&
                  (r->node->cmd.state == RC_WAITING || r->node->wake.state == RC_WAITING);
    int64_t now = spec_now(r->spec);
    c->only_master = true;
    if (redis_conn_open_later(c, NULL, until) != 0 || shared)
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
    /* A little early, for an error that names the sentinels, not the master, as silent. */
    begin_round(m, until - (until - now) / 8);
}

bool redis_sentinel_seek(struct redis_route *r)
{
    struct redis_sentinel *m = r->sentinel;
    struct redis_conn *cmd = &r->node->cmd, *wake = &r->node->wake;
    struct dlock_error err;
    bool for_good = true, found = false, nodes_differ = false;
    int rc = 0;
    if (!m)
        return false;
    if (m->seek == SEEK_ASKING) {
        rc = find_master(m, &m->master, &err);
        for_good = count(m).votes == 0; /* else the sentinels may be about to agree */
        if (rc > 0) {
            m->seek = SEEK_RESOLVING;
            rc = redis_addr_start(&m->addr, &m->master, &err);
        }
    } else if (m->seek == SEEK_RESOLVING) {
        rc = redis_addr_result(&m->addr, &err);
    }
    if (rc == 0)
        return false;
    m->seek = SEEK_NOTHING;
    if (rc < 0) {
        m->failed = for_good;
        if (cmd->state == RC_WAITING)
            redis_conn_give_up(cmd, &err);
        if (wake->state == RC_WAITING)
            redis_conn_give_up(wake, &err);
        return false;
    }
    for (int i = 0; i < m->addr.npeers; i++)
        found |= redis_same_peer(&m->addr.peers[i], &wake->peers[wake->good]);
    if (cmd->state == RC_WAITING) {
        nodes_differ = wake->state == RC_CONNECTING || (wake->state == RC_UP && !found);
        (void)redis_conn_aim(cmd, m->addr.peers, m->addr.npeers);
    }
    if (wake->state == RC_WAITING)
        (void)redis_conn_aim(wake, m->addr.peers, m->addr.npeers);
    return nodes_differ;
}

bool redis_sentinel_worth_retry(const struct redis_route *r, const struct dlock_error *err,
                                int64_t until)
{
    return r->sentinel && !r->sentinel->failed && err->code == DLOCK_EUNAVAIL &&
           spec_now(r->spec) < until;
}

/* ------------------------------------------------------------------- following */

void redis_sentinel_question(struct redis_route *r, int64_t newer_than)
{
    struct redis_sentinel *m = r->sentinel;
    if (m && m->seek == SEEK_NOTHING && m->since < newer_than)
        begin_round(m, spec_now(r->spec) + r->spec->op_timeout);
}

enum redis_watch redis_sentinel_watch(struct redis_route *r, bool acquiring, bool granted,
                                      bool renewing)
{
    struct redis_sentinel *m = r->sentinel;
    enum redis_watch result = WATCH_NOTHING;
    if (!m || m->seek != SEEK_NOTHING) /* an announcement stays pending until then */
        return WATCH_NOTHING;
    if (take_announcement(m)) {
        if (acquiring && r->node->cmd.state == RC_CLOSED)
            result = WATCH_RETRY;
        else if (acquiring || granted)
            m->checking = true;
        if (m->checking)
            redis_sentinel_question(r, DLOCK_NEVER);
    }
    if (!m->checking && !(renewing && redis_conn_is_open(&r->node->cmd)))
        return result;
    enum redis_confirmed a = redis_sentinel_answer(r, 0);
    if (a != CONFIRM_ASKED)
        m->checking = false;
    return a == CONFIRM_MOVED && (acquiring || granted) ? WATCH_MOVED : result;
}
