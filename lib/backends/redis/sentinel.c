/*
 * sentinel.c - whom the sentinels of a Redis service take for its master. See sentinel.h.
 *
 * A majority is one of the sentinels that the URI names. Theirs alone is not asked for: the sentinels need not
 * agree with each other at every moment, and one of them may be cut off from the others.
 */
#include "sentinel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define TAG_ASK 1
#define TAG_HEAR 2
#define LISTEN_AGAIN (5 * DLOCK_SEC)
#define CHANNEL "+switch-master"

static int64_t now_of(const struct sentinels *s)
{
    return s->spec->env->now(s->spec->env->ctx);
}

/* ------------------------------------------------------------- open and close */

static int find_auth(struct sentinels *s, struct dlock_error *err)
{
    const char *file = dlock_uri_param(s->spec->uri, "sentinel-password-file");
    int rc;

    s->auth.user = dlock_uri_param(s->spec->uri, "sentinel-user");
    if (file != NULL) {
        if ((rc = dlock_read_secret(&s->secret, file, err)) != 0)
            return rc;
        s->auth.password = s->secret;
    } else if (s->auth.user != NULL && *s->auth.user != '\0') {
        s->auth.password = ""; /* "nopass" */
    }
    return 0;
}

int sentinels_open(struct sentinels *s, const struct dlock_spec *spec, struct dlock_error *err)
{
    const struct dlock_uri *uri = spec->uri;
    const char *service = uri->path + 1, *slash = strchr(service, '/');

    *s = (struct sentinels){.spec = spec, .listen_at = DLOCK_NEVER};
    if (uri->nhosts > SENTINEL_MAX)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "%s: %d sentinels are more than the %d that are asked", uri->where,
                          uri->nhosts, SENTINEL_MAX);
    s->n = uri->nhosts;
    for (int i = 0; i < s->n; i++) {
        snprintf(s->one[i].where, sizeof(s->one[i].where), "sentinel %s:%u", uri->hosts[i].host,
                 uri->hosts[i].port);
        s->one[i].ask.fd = s->one[i].hear.fd = -1;
    }
    s->service = strndup(service, slash != NULL ? (size_t)(slash - service) : strlen(service));
    if (s->service == NULL)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    return find_auth(s, err);
}

void sentinels_close(struct sentinels *s)
{
    for (int i = 0; i < s->n; i++) {
        redis_conn_close(&s->one[i].ask);
        redis_conn_close(&s->one[i].hear);
    }
    free(s->service);
    if (s->secret != NULL)
        explicit_bzero(s->secret, strlen(s->secret));
    free(s->secret);
    *s = (struct sentinels){0};
}

/* -------------------------------------------------------------------- a round */

static void failed(struct sentinel *one, const struct dlock_error *why)
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

void sentinels_ask(struct sentinels *s, int64_t until)
{
    const char *argv[] = {"SENTINEL", "get-master-addr-by-name", s->service};
    size_t len[] = {strlen(argv[0]), strlen(argv[1]), strlen(argv[2])};

    s->since = now_of(s);
    s->until = until;
    s->first_at = 0;
    for (int i = 0; i < s->n; i++) {
        struct sentinel *one = &s->one[i];
        redis_conn_close(&one->ask);
        one->says = SAYS_NOTHING;
        open_conn(s, i, &one->ask, until);
        (void)redis_conn_send(&one->ask, TAG_ASK, DLOCK_LEN(argv), argv, len);
        redis_conn_flush(&one->ask);
    }
}

/* The generic texts speak of the master's credentials. */
static void refused(const struct sentinels *s, struct sentinel *one, const char *text)
{
    struct dlock_error err;

    if (one->ask.auth_failed)
        dlock_fail(&err, DLOCK_EPERM, 0,
                   "%s: user or password refused: check sentinel-user= and sentinel-password-file=",
                   one->where);
    else if (strstr(text, "NOAUTH") != NULL)
        dlock_fail(&err, DLOCK_EPERM, 0,
                   "%s: a password is needed: use ?sentinel-password-file=FILE", one->where);
    else if (strstr(text, "unknown command") != NULL)
        dlock_fail(&err, DLOCK_EPROTO, 0,
                   "%s: this is no sentinel; redis:// is for a server without them", one->where);
    else
        redis_conn_reply_error(&err, one->where, &s->auth, text);
    failed(one, &err);
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

static void answered(struct sentinels *s, struct sentinel *one, const redisReply *r)
{
    struct dlock_error err;

    if (one->ask.auth_failed || r->type == REDIS_REPLY_ERROR) {
        refused(s, one, r->type == REDIS_REPLY_ERROR ? r->str : "");
        return;
    }
    if (r->type == REDIS_REPLY_NIL) {
        one->says = SAYS_UNKNOWN;
    } else if (read_address(r, &one->named)) {
        one->says = SAYS_MASTER;
        one->at = one->ask.peers[one->ask.good];
        if (s->first_at == 0)
            s->first_at = now_of(s);
    } else {
        dlock_fail(&err, DLOCK_EPROTO, 0, "%s: unexpected answer", one->where);
        failed(one, &err);
        return;
    }
    redis_conn_close(&one->ask);
}

/* Is there anything to do? What can be read or written is in pfd; the rest is a matter of time. */
static bool is_due(const struct redis_conn *c, const struct pollfd *pfd, int n, int64_t now)
{
    if (c->state == RC_CONNECTING && now >= c->next_at)
        return true;
    for (int i = 0; i < n; i++)
        if (pfd[i].fd == c->fd && pfd[i].revents != 0)
            return true;
    return false;
}

static void work_ask(struct sentinels *s, struct sentinel *one, int64_t now)
{
    struct redis_conn_reply rep;
    struct dlock_error err;
    int rc = redis_conn_next(&one->ask, &rep);
    if (rc == 1) {
        answered(s, one, rep.r);
        freeReplyObject(rep.r);
    } else if (rc < 0) {
        err = one->ask.error;
        failed(one, &err);
    } else if (now >= s->until) {
        dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: no answer", one->where);
        failed(one, &err);
    }
}

/* -------------------------------------------------------------------- counting */

struct tally {
    int pending, unknown, failed;
    int named; /* how many have named anybody */
    int votes; /* for first */
    const struct sentinel_addr
        *first; /* most named; with equal votes the one named first in the list */
    const struct dlock_error *error; /* the worst: missing rights, else the first */
};

static bool same(const struct sentinel_addr *a, const struct sentinel_addr *b)
{
    return a->port == b->port && strcasecmp(a->host, b->host) == 0;
}

/* One sentinel under two names has one voice. */
static bool has_spoken(const struct sentinels *s, int i)
{
    const struct dlock_peer *at = &s->one[i].at;
    for (int k = 0; k < i; k++)
        if (s->one[k].says == SAYS_MASTER && s->one[k].at.len == at->len &&
            memcmp(&s->one[k].at.addr, &at->addr, at->len) == 0)
            return true;
    return false;
}

static int votes_for(const struct sentinels *s, const struct sentinel_addr *a)
{
    int n = 0;
    for (int i = 0; i < s->n; i++)
        n += s->one[i].says == SAYS_MASTER && same(&s->one[i].named, a) && !has_spoken(s, i);
    return n;
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
            if (t.error == NULL || (t.error->code != DLOCK_EPERM && one->error.code == DLOCK_EPERM))
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

/* Nobody has named a master. */
static int nobody(const struct sentinels *s, const struct tally *t, struct dlock_error *err)
{
    const char *where = s->spec->uri->where;
    if (t->unknown > 0)
        return dlock_fail(err, DLOCK_EUNAVAIL, 0,
                          "%s: the sentinels know no service '%s' (%d of %d have answered): check "
                          "the service name",
                          where, s->service, t->unknown, s->n);
    if (t->error->code == DLOCK_EPERM)
        return dlock_fail(err, DLOCK_EPERM, 0, "%s: %s", where, t->error->msg);
    return dlock_fail(err, t->error->code, t->error->sys, "%s: no sentinel of %d answers; %s",
                      where, s->n, t->error->msg);
}

int sentinels_found(const struct sentinels *s, struct sentinel_addr *a, struct dlock_error *err)
{
    struct tally t = count(s);

    if (t.votes < quorum(s) && t.pending > 0 &&
        (t.votes == 0 || now_of(s) < s->first_at + SENTINEL_PAUSE))
        return 0;
    if (t.votes == 0)
        return nobody(s, &t, err);
    *a = *t.first;
    return 1;
}

enum sentinels_verdict sentinels_verdict(const struct sentinels *s, const struct sentinel_addr *a)
{
    struct tally t = count(s);

    if (votes_for(s, a) >= quorum(s))
        return VERDICT_YES;
    if (t.votes >= quorum(s))
        return VERDICT_OTHER;
    return t.votes + t.pending < quorum(s) || t.pending == 0 ? VERDICT_NONE : VERDICT_PENDING;
}

int sentinels_doubt(const struct sentinels *s, const struct sentinel_addr *a,
                    struct dlock_error *err)
{
    struct tally t = count(s);
    int votes = votes_for(s, a);

    return dlock_fail(err, DLOCK_EUNAVAIL, 0,
                      "%s: %d of %d sentinels name%s %s:%u as the master, %d must%s%s",
                      s->spec->uri->where, votes, s->n, votes == 1 ? "s" : "", a->host, a->port,
                      quorum(s), t.error != NULL ? "; " : "", t.error != NULL ? t.error->msg : "");
}

/* ------------------------------------------------------------------- listening */

void sentinels_listen(struct sentinels *s, int64_t at)
{
    s->listen_at = at;
    if (at != DLOCK_NEVER)
        return;
    s->heard = false;
    for (int i = 0; i < s->n; i++)
        redis_conn_close(&s->one[i].hear);
}

/* Not while a round is young: a sentinel that goes on and on about it would keep all of them from an end. */
static int64_t heeded_at(const struct sentinels *s)
{
    return s->heard ? s->since + SENTINEL_PAUSE : DLOCK_NEVER;
}

bool sentinels_heard(struct sentinels *s)
{
    if (now_of(s) < heeded_at(s))
        return false;
    s->heard = false;
    return true;
}

static void subscribe(struct sentinels *s, int i)
{
    const char *argv[] = {"SUBSCRIBE", CHANNEL};
    struct redis_conn *c = &s->one[i].hear;

    if (redis_conn_is_open(c))
        return;
    c->push = true;
    open_conn(s, i, c, now_of(s) + s->spec->connect_timeout);
    (void)redis_conn_send(c, TAG_HEAR, 2, argv, (size_t[]){9, strlen(CHANNEL)});
    redis_conn_flush(c);
}

/* "SERVICE OLD-HOST OLD-PORT HOST PORT". Whom it names does not matter: a round tells. */
static bool concerns_us(const struct sentinels *s, const redisReply *r)
{
    size_t len = strlen(s->service);
    return r->element[2]->type == REDIS_REPLY_STRING && (size_t)r->element[2]->len > len &&
           memcmp(r->element[2]->str, s->service, len) == 0 && r->element[2]->str[len] == ' ';
}

static void work_hear(struct sentinels *s, struct sentinel *one, int64_t now)
{
    struct redis_conn_reply rep;
    int rc = 0;

    while (one->hear.state != RC_CLOSED && (rc = redis_conn_next(&one->hear, &rep)) == 1) {
        if (rep.tag == REDIS_CONN_PUSH)
            s->heard = s->heard || concerns_us(s, rep.r);
        else if (one->hear.auth_failed || rep.r->type == REDIS_REPLY_ERROR)
            rc = DLOCK_EPERM;
        else
            s->heard = true; /* what was said before we listened */
        freeReplyObject(rep.r);
        if (rc < 0)
            break;
    }
    if (rc >= 0)
        return;
    redis_conn_close(&one->hear);
    s->listen_at = dlock_min(s->listen_at, now + LISTEN_AGAIN);
}

/* --------------------------------------------------------------------- driving */

int sentinels_interest(const struct sentinels *s, struct pollfd *pfd, int cap, int64_t *wake_at)
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
    if (s->first_at != 0 && now < s->first_at + SENTINEL_PAUSE)
        *wake_at = dlock_min(*wake_at, s->first_at + SENTINEL_PAUSE);
    if (now < heeded_at(s))
        *wake_at = dlock_min(*wake_at, heeded_at(s));
    *wake_at = dlock_min(*wake_at, s->listen_at);
    return n;
}

void sentinels_work(struct sentinels *s, const struct pollfd *pfd, int n)
{
    int64_t now = now_of(s);

    if (now >= s->listen_at) {
        s->listen_at = DLOCK_NEVER;
        for (int i = 0; i < s->n; i++)
            subscribe(s, i);
    }
    for (int i = 0; i < s->n; i++) {
        struct sentinel *one = &s->one[i];
        if (is_due(&one->ask, pfd, n, now))
            redis_conn_work(&one->ask);
        if (one->ask.state != RC_CLOSED)
            work_ask(s, one, now);
        if (is_due(&one->hear, pfd, n, now))
            redis_conn_work(&one->hear);
        work_hear(s, one, now);
    }
}
