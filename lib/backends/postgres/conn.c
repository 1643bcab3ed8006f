/* conn.c - see conn.h. */
#include "conn.h"

#include "util.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIN_SHARE (250 * DLOCK_MSEC)

/* ------------------------------------------------------------------- failing */

/* The first line of what libpq or the server says, without its end. */
static void first_line(char *dst, size_t size, const char *text)
{
    dlock_clean_text(dst, size, text, strcspn(text, "\n"));
}

static void free_later(struct pg_later *l)
{
    free(l->sql);
    for (int i = 0; i < l->n; i++)
        free(l->values[i]);
}

static void drop(struct pg_conn *c)
{
    pg_conn_done(&c->reply);
    while (c->nlater > 0)
        free_later(&c->later[--c->nlater]);
    if (c->pq)
        PQfinish(c->pq);
    c->pq = NULL;
    c->nrequests = 0;
    c->unsent = false;
}

static int conn_fail(struct pg_conn *c, int code, const char *text)
{
    char line[256];
    first_line(line, sizeof line, c->last_words[0] ? c->last_words : text);
    drop(c);
    c->state = PC_FAILED;
    return dlock_fail(&c->error, code, 0, "%s: %s", c->where, line);
}

void pg_conn_no_memory(struct pg_conn *c)
{
    c->last_words[0] = '\0';
    conn_fail(c, DLOCK_ENOMEM, "out of memory");
}

bool pg_conn_says_no_memory(const char *text)
{
    return strstr(text, "out of memory") != NULL;
}

/* ENOMEM: it is we who end it, for want of memory; up to now the session was there. */
static int fail_pq(struct pg_conn *c)
{
    const char *text = PQerrorMessage(c->pq);
    bool ours =
        PQstatus(c->pq) == CONNECTION_OK && !c->last_words[0] && pg_conn_says_no_memory(text);
    return conn_fail(c, ours ? DLOCK_ENOMEM : DLOCK_EUNAVAIL,
                     *text ? text : "the connection was closed");
}

static bool is_state(const char *s)
{
    return strspn(s, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") >= 5 && s[5] == ':' && s[6] == ' ';
}

/*
 * With PQERRORS_VERBOSE the server's refusal reads "... FATAL:  28P01: text": the five characters are the
 * only thing in it that no translation changes. They are cut out of text. sqlstate "": not the server's.
 */
static void take_state(char *text, char sqlstate[6])
{
    sqlstate[0] = '\0';
    for (char *s = strstr(text, ":  "); s; s = strstr(s + 1, ":  ")) {
        if (!is_state(s + 3))
            continue;
        memcpy(sqlstate, s + 3, 5);
        sqlstate[5] = '\0';
        memmove(s + 2, s + 10, strlen(s + 10) + 1);
        return;
    }
}

/* 53: out of something, "too many clients". 57P01..3: going down, crashed, starting. */
static bool is_transient(const char *sqlstate)
{
    return strncmp(sqlstate, "53", 2) == 0 || strncmp(sqlstate, "57P0", 4) == 0;
}

static int code_of(const char *sqlstate)
{
    if (strncmp(sqlstate, "28", 2) == 0 || strcmp(sqlstate, "42501") == 0)
        return DLOCK_EPERM;
    return DLOCK_EUNAVAIL;
}

/* ---------------------------------------------------------------- connecting */

static bool is_local(const char *host)
{
    return *host == '\0' || *host == '/' || *host == '@';
}

static void add_try(struct pg_conn *c, int host, const struct dlock_peer *p)
{
    struct pg_try *t = &c->tries[c->ntries];
    t->host = host;
    t->addr[0] = '\0';
    if (c->ntries == PG_TRIES ||
        (p && getnameinfo((const struct sockaddr *)&p->addr, p->len, t->addr, sizeof t->addr, NULL,
                          0, NI_NUMERICHOST) != 0))
        return;
    c->ntries++;
}

/* Host by host in the URI's order, and of each all its addresses. */
static void list_tries(struct pg_conn *c, const struct dlock_spec *spec)
{
    c->ntries = 0;
    for (int i = 0; i < c->set->nhosts; i++) {
        if (is_local(c->set->hosts[i]))
            add_try(c, i, NULL);
        for (int k = 0; k < spec->npeers; k++)
            if (spec->peers[k].host == i)
                add_try(c, i, &spec->peers[k]);
    }
}

/* What the server says without being asked: why it is about to end the session. */
static void on_notice(void *arg, const PGresult *res)
{
    struct pg_conn *c = arg;
    const char *severity = PQresultErrorField(res, PG_DIAG_SEVERITY_NONLOCALIZED);
    const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    if (severity && text && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0))
        snprintf(c->last_words, sizeof c->last_words, "the server ended the session: %s", text);
}

static bool start_try(struct pg_conn *c, const struct pg_try *t)
{
    struct pg_settings *s = c->set;
    s->values[PG_HOST] = s->hosts[t->host];
    s->values[PG_HOSTADDR] = t->addr;
    s->values[PG_PORT] = s->ports[t->host];
    c->pq = PQconnectStartParams(s->keys, s->values, 0);
    if (!c->pq || PQstatus(c->pq) == CONNECTION_BAD)
        return false;
    PQsetErrorVerbosity(c->pq, PQERRORS_VERBOSE);
    PQsetNoticeReceiver(c->pq, on_notice, c);
    c->want = PGRES_POLLING_WRITING;
    return true;
}

/* Why this try failed; true when the next address is worth one. */
static bool try_failed(struct pg_conn *c, const char *why)
{
    char text[1024], sqlstate[6];
    bool password = c->pq && PQconnectionNeedsPassword(c->pq);
    snprintf(text, sizeof text, "%s", why ? why : c->pq ? PQerrorMessage(c->pq) : "out of memory");
    take_state(text, sqlstate);
    c->transient = is_transient(sqlstate);
    c->last_words[0] = '\0';
    int code = password ? DLOCK_EPERM : code_of(sqlstate);
    conn_fail(c, code, text);
    return code == DLOCK_EUNAVAIL;
}

static void connect_next(struct pg_conn *c)
{
    while (c->tried < c->ntries) {
        const struct pg_try *t = &c->tries[(c->good + c->tried) % c->ntries];
        int64_t now = c->env->now(c->env->ctx);
        int left = c->ntries - c->tried++;
        /* An equal share of what is left for each, so that one silent address does not use up all of it. */
        c->next_at = left == 1 ? c->until : now + dlock_max((c->until - now) / left, MIN_SHARE);
        c->state = PC_CONNECTING;
        if (start_try(c, t))
            return;
        if (!try_failed(c, NULL))
            return;
    }
}

void pg_conn_open(struct pg_conn *c, const struct dlock_spec *spec, struct pg_settings *set,
                  int64_t until)
{
    int good = c->good;
    bool pipeline = c->pipeline;
    pg_conn_close(c);
    *c = (struct pg_conn){
        .env = spec->env,
        .set = set,
        .where = spec->uri->where,
        .pipeline = pipeline,
        .until = until,
    };
    list_tries(c, spec);
    c->good = good < c->ntries ? good : 0;
    if (c->ntries == 0)
        conn_fail(c, DLOCK_EUNAVAIL, "no address known");
    else
        connect_next(c);
}

/* No Linux has such a pid: a pooler makes up a random one, to know a request to cancel by. */
static bool is_no_pid(int pid)
{
    return pid <= 0 || pid > 4194304;
}

static void connected(struct pg_conn *c)
{
    c->alone = is_no_pid(PQbackendPID(c->pq));
    c->good = (c->good + c->tried - 1) % c->ntries;
    c->state = PC_UP;
    PQsetErrorVerbosity(c->pq, PQERRORS_TERSE);
    if (PQsetnonblocking(c->pq, 1) != 0 || (c->pipeline && !PQenterPipelineMode(c->pq)))
        fail_pq(c);
}

static void work_connect(struct pg_conn *c)
{
    struct pollfd p = {.fd = PQsocket(c->pq),
                       .events = c->want == PGRES_POLLING_READING ? POLLIN : POLLOUT};
    if (poll(&p, 1, 0) <= 0) { /* PQconnectPoll takes an unfinished connect() for a finished one */
        if (c->env->now(c->env->ctx) >= c->next_at &&
            try_failed(c, "no answer to the connection request"))
            connect_next(c);
        return;
    }
    c->want = PQconnectPoll(c->pq);
    if (c->want == PGRES_POLLING_OK)
        connected(c);
    else if (c->want == PGRES_POLLING_FAILED && try_failed(c, NULL))
        connect_next(c);
}

/* ------------------------------------------------------------------- sending */

static void sent(struct pg_conn *c, int tag, int64_t at, int ok)
{
    if (!ok) {
        fail_pq(c);
        return;
    }
    c->requests[c->nrequests++] = (struct pg_request){.tag = tag, .sent = at};
    int left = PQflush(c->pq);
    if (left < 0)
        fail_pq(c);
    else
        c->unsent = left > 0;
}

void pg_conn_send(struct pg_conn *c, int tag, const char *sql)
{
    if (c->state != PC_UP)
        return;
    int64_t now = c->env->now(c->env->ctx);
    sent(c, tag, now, c->nrequests < PG_REQUESTS && PQsendQuery(c->pq, sql));
}

static void send_params(struct pg_conn *c, int tag, const char *sql, int n,
                        const char *const *values)
{
    int64_t now = c->env->now(c->env->ctx);
    bool ok = c->nrequests < PG_REQUESTS &&
              PQsendQueryParams(c->pq, sql, n, NULL, values, NULL, NULL, 0) &&
              PQpipelineSync(c->pq);
    sent(c, tag, now, ok);
}

static void keep_for_later(struct pg_conn *c, int tag, const char *sql, int n,
                           const char *const *values)
{
    struct pg_later *l = &c->later[c->nlater];
    if (c->nlater == PG_REQUESTS || n > PG_VALUES) {
        conn_fail(c, DLOCK_EUNAVAIL, "no answer to earlier requests");
        return;
    }
    c->nlater++;
    *l = (struct pg_later){.tag = tag, .n = n, .sql = strdup(sql)};
    bool ok = l->sql != NULL;
    for (int i = 0; i < n; i++)
        ok = (l->values[i] = strdup(values[i])) != NULL && ok;
    if (!ok)
        pg_conn_no_memory(c);
}

static void send_later(struct pg_conn *c)
{
    if (c->state != PC_UP || c->nrequests > 0 || c->nlater == 0)
        return;
    struct pg_later l = c->later[0];
    memmove(c->later, c->later + 1, sizeof c->later[0] * (size_t)--c->nlater);
    send_params(c, l.tag, l.sql, l.n, (const char *const *)l.values);
    free_later(&l);
}

void pg_conn_send_params(struct pg_conn *c, int tag, const char *sql, int n,
                         const char *const *values)
{
    if (c->state != PC_UP)
        return;
    if (c->nrequests > 0 && (c->alone || c->nlater > 0))
        keep_for_later(c, tag, sql, n, values);
    else
        send_params(c, tag, sql, n, values);
}

static void *cancel_thread(void *arg)
{
    char text[256];
    PQcancel(arg, text, sizeof text);
    PQfreeCancel(arg);
    return NULL;
}

/*
 * PQcancel makes a connection of its own and waits for it. The thread owns all that it touches; when the
 * server cannot be reached it is left behind. A failure to start it costs the time of one chunk.
 */
void pg_conn_cancel(const struct pg_conn *c)
{
    PGcancel *cancel = c->state == PC_UP ? PQgetCancel(c->pq) : NULL;
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    if (!cancel)
        return;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    if (pthread_create(&thread, &attr, cancel_thread, cancel) != 0)
        PQfreeCancel(cancel);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
}

/* ----------------------------------------------------------------- receiving */

static void take_error(struct pg_conn *c, const PGresult *res)
{
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    on_notice(c, res);
    if (c->reply.sqlstate[0]) /* the first one is the reason */
        return;
    c->reply.unheard = !state;
    snprintf(c->reply.sqlstate, sizeof c->reply.sqlstate, "%s", state ? state : "XX000");
    first_line(c->reply.text, sizeof c->reply.text, text ? text : PQresultErrorMessage(res));
}

/* True: res ends the oldest request. */
static bool take_result(struct pg_conn *c, PGresult *res)
{
    switch (PQresultStatus(res)) {
    case PGRES_TUPLES_OK:
        PQclear(c->reply.rows);
        c->reply.rows = res;
        return false;
    case PGRES_PIPELINE_SYNC:
        PQclear(res);
        return true;
    case PGRES_COMMAND_OK:
    case PGRES_EMPTY_QUERY:
    case PGRES_PIPELINE_ABORTED:
        break;
    default:
        take_error(c, res);
        break;
    }
    PQclear(res);
    return false;
}

static void finish_request(struct pg_conn *c, struct pg_reply *out)
{
    *out = c->reply;
    out->tag = c->requests[0].tag;
    out->sent = c->requests[0].sent;
    memset(&c->reply, 0, sizeof c->reply);
    c->nrequests--;
    memmove(c->requests, c->requests + 1, sizeof c->requests[0] * (size_t)c->nrequests);
}

/* Also parses what came unasked, "terminating connection" say. */
static void take_notifies(struct pg_conn *c)
{
    PGnotify *n;
    while ((n = PQnotifies(c->pq))) {
        PQfreemem(n);
        c->notified = true;
    }
}

int pg_conn_next(struct pg_conn *c, struct pg_reply *out)
{
    int gaps = 0;
    if (c->state == PC_FAILED)
        return c->error.code;
    while (c->state == PC_UP && c->nrequests > 0 && !PQisBusy(c->pq)) {
        PGresult *res = PQgetResult(c->pq);
        /* A result that libpq made up because the connection broke is no answer. */
        if (PQstatus(c->pq) != CONNECTION_OK) {
            if (res)
                take_error(c, res);
            PQclear(res);
            return fail_pq(c);
        }
        if (!res && c->pipeline && gaps++ < PG_REQUESTS)
            continue; /* between a statement and its sync */
        if (res && !take_result(c, res))
            continue;
        finish_request(c, out);
        take_notifies(c);
        send_later(c);
        return 1;
    }
    return 0;
}

void pg_conn_done(struct pg_reply *r)
{
    PQclear(r->rows);
    memset(r, 0, sizeof *r);
}

static void work_up(struct pg_conn *c)
{
    int left = c->unsent ? PQflush(c->pq) : 0;
    if (left < 0 || !PQconsumeInput(c->pq)) {
        /* Its last words may be in what was read before the end of the stream. */
        (void)PQisBusy(c->pq);
        fail_pq(c);
        return;
    }
    c->unsent = left > 0;
    take_notifies(c);
    if (PQstatus(c->pq) != CONNECTION_OK || (c->last_words[0] && c->nrequests == 0))
        fail_pq(c);
}

void pg_conn_work(struct pg_conn *c)
{
    if (c->state == PC_CONNECTING)
        work_connect(c);
    else if (c->state == PC_UP)
        work_up(c);
}

int pg_conn_interest(const struct pg_conn *c, struct pollfd *pfd, int64_t *wake_at)
{
    if (c->state == PC_FAILED)
        *wake_at = 0;
    if (!pg_conn_is_open(c))
        return 0;
    pfd->fd = PQsocket(c->pq); /* it can be another one at each turn while connecting */
    pfd->revents = 0;
    if (c->state == PC_CONNECTING) {
        pfd->events = c->want == PGRES_POLLING_READING ? POLLIN : POLLOUT;
        *wake_at = dlock_min(*wake_at, c->next_at);
        return 1;
    }
    pfd->events = c->unsent ? POLLIN | POLLOUT : POLLIN;
    /* libpq reads while it sends, too: what it has already, poll() does not show. */
    if (c->nrequests > 0 && !PQisBusy(c->pq))
        *wake_at = 0;
    return 1;
}

void pg_conn_close(struct pg_conn *c)
{
    drop(c);
    c->state = PC_CLOSED;
}

int pg_conn_reply_error(const struct pg_conn *c, const struct pg_reply *r, struct dlock_error *err)
{
    return dlock_fail(err, code_of(r->sqlstate), 0, "%s: %s (SQLSTATE %s)", c->where, r->text,
                      r->sqlstate);
}
