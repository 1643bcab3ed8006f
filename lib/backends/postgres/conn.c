/* conn.c - see conn.h. */
#include "conn.h"

#include "util.h"

#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIN_SHARE (250 * DLOCK_MSEC)

/* ------------------------------------------------------------------- failing */

/* The first line of a message of libpq or the server. */
static void first_line(char *dst, size_t size, const char *text)
{
    dlock_clean_words(dst, size, text, strcspn(text, "\n"));
}

static void drop(struct pg_conn *c, void (*finish)(PGconn *))
{
    pg_attempt_drop(c->address.attempt);
    c->address.attempt = NULL;
    PQclear(c->requests.rows);
    c->requests.rows = NULL;
    sql_reply_done(&c->requests.reply);
    while (c->queue.n > 0)
        sql_message_free(&c->queue.list[--c->queue.n]);
    if (c->pq)
        finish(c->pq);
    c->pq = NULL;
    c->base.unanswered = 0;
    c->requests.unflushed = false;
}

static int conn_fail(struct pg_conn *c, int code, const char *text)
{
    char line[256];
    first_line(line, sizeof(line), c->why_ended[0] ? c->why_ended : text);
    if (!line[0])
        snprintf(line, sizeof(line), "the connection was closed");
    c->unanswered_tag = c->base.unanswered > 0 ? c->requests.list[0].tag : 0;
    /* A session that is alive has its lock until the guard, too, has closed the connection. */
    drop(c, pg_finish_silently);
    c->base.state = CONN_FAILED;
    return dlock_fail_at(&c->base.error, code, 0, c->where, "%s", line);
}

void pg_conn_fail_no_memory(struct pg_conn *c)
{
    if (c->base.state != CONN_UP)
        return;
    c->why_ended[0] = '\0';
    conn_fail(c, DLOCK_ENOMEM, "out of memory");
}

/* DLOCK_ENOMEM: we end a session that was alive, for lack of memory. */
static int fail_pq(struct pg_conn *c)
{
    const char *text = PQerrorMessage(c->pq);
    bool ours =
        PQstatus(c->pq) == CONNECTION_OK && !c->why_ended[0] && pg_conn_says_no_memory(text);
    return conn_fail(c, ours ? DLOCK_ENOMEM : DLOCK_EUNAVAIL, text);
}

/*
 * With PQERRORS_VERBOSE the server's refusal reads "... FATAL:  28P01: text". Only these five
 * characters are never translated. They are cut out of text. sqlstate "": the error is libpq's.
 */
static void take_state(char *text, char sqlstate[6])
{
    sqlstate[0] = '\0';
    for (char *s = strstr(text, ":  "); s; s = strstr(s + 1, ":  ")) {
        if (strspn(s + 3, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") < 5 || s[8] != ':' || s[9] != ' ')
            continue;
        memcpy(sqlstate, s + 3, 5);
        sqlstate[5] = '\0';
        memmove(s + 2, s + 10, strlen(s + 10) + 1);
        return;
    }
}

/*
 * state: the begin of an SQLSTATE, "" for an error of libpq; text: a part of the message, or NULL.
 * 08P01: PgBouncer has one code for all refusals. Neither PgBouncer nor libpq (since dlock does not
 * call setlocale(3)) translates these texts.
 */
static const struct {
    const char *state, *text;
    int code;
} codes[] = {
    {"28", NULL, DLOCK_EPERM},
    {"42501", NULL, DLOCK_EPERM},
    {"08P01", "no such user", DLOCK_EPERM},
    {"08P01", "authentication failed", DLOCK_EPERM},
    {"0A", NULL, DLOCK_EUNUSABLE}, /* not supported */
    {"22", NULL, DLOCK_EUNUSABLE}, /* the server does not understand us or an option of the URI */
    {"3D", NULL, DLOCK_EUNUSABLE}, /* no such database */
    {"3F", NULL, DLOCK_EUNUSABLE}, /* no such schema */
    {"42", NULL, DLOCK_EUNUSABLE}, /* like 22 */
    {"08P01", "no such database", DLOCK_EUNUSABLE},
    {"08P01", "unsupported startup parameter", DLOCK_EUNUSABLE},
    {"", "certificate verify failed", DLOCK_EUNUSABLE},
    {"", "does not match host name", DLOCK_EUNUSABLE},
    {"", "root certificate file", DLOCK_EUNUSABLE},
    {"", "server does not support SSL", DLOCK_EUNUSABLE},
};

static int code_of(const char *sqlstate, const char *text)
{
    if (sqlstate[0] == '\0' && pg_conn_says_no_memory(text))
        return DLOCK_ENOMEM;
    for (size_t i = 0; i < DLOCK_LEN(codes); i++) {
        size_t len = strlen(codes[i].state);
        if ((len > 0 ? strncmp(sqlstate, codes[i].state, len) == 0 : sqlstate[0] == '\0') &&
            (!codes[i].text || strstr(text, codes[i].text)))
            return codes[i].code;
    }
    return DLOCK_EUNAVAIL;
}

/* ---------------------------------------------------------------- connecting */

/*
 * TCP gives up at idle + count * interval. Not before the ttl is over: a server without
 * TCP_USER_TIMEOUT (which only Linux has) would free the lock of a holder that is cut off but still
 * runs. Linux takes an idle time and an interval of 32767 s, and 127 probes, at most.
 */
struct pg_keepalives pg_keepalives(int64_t ttl)
{
    int64_t all = dlock_max(2, (ttl + DLOCK_SEC - 1) / DLOCK_SEC);
    struct pg_keepalives k = {.count = dlock_min(all / 2, 100)};
    k.idle = dlock_min(all - k.count, 32767);
    k.interval = (all - k.idle + k.count - 1) / k.count;
    return k;
}

/*
 * Warnings that a statement of ours can cause, and that say nothing about the commit, by the
 * server's function: the SQLSTATE is 01000 for all, as for a cancelled wait, and the text is
 * translated.
 */
static const char *const harmless[] = {
    "LockRelease",           /* pg_advisory_unlock() without the lock; the answer is false, too */
    "GetNewTransactionId",   /* the database must be vacuumed soon */
    "GetNewMultiXactId",     /* likewise */
    "asyncQueueFillWarning", /* other sessions leave the NOTIFY queue unread; a call was queued */
};

static bool is_harmless(const PGresult *res)
{
    const char *function = PQresultErrorField(res, PG_DIAG_SOURCE_FUNCTION);
    for (size_t i = 0; function && i < DLOCK_LEN(harmless); i++)
        if (strcmp(function, harmless[i]) == 0)
            return true;
    return false;
}

/*
 * A message beside the answers. It may say why the server is about to end the session: 57P01 as a
 * warning does so where the session waits for a standby. libpq hands a message out before the
 * answer to the request that it belongs to.
 */
static void on_notice(void *arg, const PGresult *res)
{
    struct pg_conn *c = arg;
    const char *severity = PQresultErrorField(res, PG_DIAG_SEVERITY_NONLOCALIZED);
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    bool warns = severity && strcmp(severity, "WARNING") == 0;
    bool ends = severity && (strcmp(severity, "FATAL") == 0 || strcmp(severity, "PANIC") == 0);
    if (text && (ends || (warns && state && strcmp(state, "57P01") == 0)))
        snprintf(c->why_ended, sizeof(c->why_ended), "the server ended the session: %s", text);
    if (warns && c->base.unanswered > 0 && !is_harmless(res))
        first_line(c->requests.reply.warning, sizeof(c->requests.reply.warning),
                   text && *text ? text : "a warning without a text");
}

/*
 * libpq cannot read the service that the URI names. libpq says 'service file "PATH" not found' for
 * any error of fopen(3), also for lack of memory. text may be replaced. 0: the error is not about a
 * service.
 */
static int code_of_service(char *text, size_t size)
{
    char path[PATH_MAX];
    if (strncmp(text, "definition of service", strlen("definition of service")) != 0 &&
        !strstr(text, "service file \"") && !strstr(text, "LDAP"))
        return 0;
    if (sscanf(text, "service file \"%4095[^\"]\" not found", path) != 1)
        return DLOCK_EUSAGE;
    if (access(path, R_OK) == 0) {
        snprintf(text, size, "out of memory");
        return DLOCK_ENOMEM;
    }
    if (errno != EACCES)
        return DLOCK_EUSAGE;
    snprintf(text, size, "service file \"%s\" cannot be read: %s", path, strerror(EACCES));
    return DLOCK_EPERM;
}

int pg_read_password(struct pg_settings *s, struct dlock_error *err)
{
    char *text;
    int rc = s->password_file ? dlock_read_secret(&text, s->password_file, err) : 0;
    if (rc != 0 || !s->password_file)
        return rc;
    /* libpq, or the attempt, has a copy. The password of the URI goes before the file's. */
    for (int i = PG_FIRST_PARAM; i < s->n; i++)
        if (s->password && s->values[i] == s->password)
            s->values[i] = text;
    dlock_wipe(s->password);
    s->password = text;
    return 0;
}

/*
 * Each server refuses to write: the default of our role, perhaps. Where the role's transactions are
 * read-only, they are so on each server, and the primary will do. The statements of a mode find out
 * whose default it is. True: the addresses are tried again, for a primary.
 */
static bool only_primary(struct pg_conn *c)
{
    const char **target = &c->settings->values[PG_TARGET];
    if (!c->address.read_only || strcmp(*target, PG_PRIMARY) == 0)
        return false;
    *target = PG_PRIMARY;
    c->address.tried = 0;
    return true;
}

/* This address failed; set the error. True: the next address is worth a try. */
static bool address_failed(struct pg_conn *c, const char *why)
{
    char text[PATH_MAX + 64], sqlstate[6];
    bool password = c->pq && PQconnectionNeedsPassword(c->pq);
    snprintf(text, sizeof(text), "%s", why ? why : c->pq ? PQerrorMessage(c->pq) : "out of memory");
    c->address.read_only |= strstr(text, "session is read-only") != NULL;
    take_state(text, sqlstate);
    /* 53: out of a resource ("too many clients"). 57P01..3: shutting down, crashed, starting. */
    c->base.transient = strncmp(sqlstate, "53", 2) == 0 || strncmp(sqlstate, "57P0", 4) == 0;
    c->why_ended[0] = '\0';
    int code = c->settings->service ? code_of_service(text, sizeof(text)) : 0;
    if (code == 0 && c->settings->service && c->pq && pg_conn_loads_code(c->pq) > 0) {
        snprintf(text, sizeof(text), "the service's " PG_LOADS_CODE);
        code = DLOCK_EUSAGE;
    }
    if (code == 0)
        code = password ? DLOCK_EPERM : code_of(sqlstate, text);
    if (c->held && (code == DLOCK_EPERM || code == DLOCK_EUNUSABLE))
        code = DLOCK_EUNAVAIL;
    conn_fail(c, code, text);
    return code == DLOCK_EUNAVAIL || code == DLOCK_EUNUSABLE;
}

static void connected(struct pg_conn *c)
{
    int pid = PQbackendPID(c->pq);
    /* No pid on Linux: a pooler makes up a random number, to recognise a request to cancel. */
    c->base.session = pid;
    c->base.one_by_one = pid <= 0 || pid > 4194304;
    c->base.guarded = true;
    c->address.good = (c->address.good + c->address.tried - 1) % c->address.n;
    c->base.state = CONN_UP;
    /* Of PG_SERVICE_PATIENCE; on a Unix socket the call fails. */
    if (c->settings->by_libpq)
        setsockopt(PQsocket(c->pq), IPPROTO_TCP, TCP_USER_TIMEOUT, &(int){0}, sizeof(int));
    PQsetErrorVerbosity(c->pq, PQERRORS_TERSE);
    PQsetNoticeReceiver(c->pq, on_notice, c);
    if (PQsetnonblocking(c->pq, 1) != 0 || (c->pipeline && !PQenterPipelineMode(c->pq)))
        fail_pq(c);
}

/* Go on with the running attempt. When it has failed or its time is over, try the next address. */
static void work_connect(struct pg_conn *c)
{
    struct pg_settings *s = c->settings;
    for (;;) {
        char why[128] = "no answer to the connection request";
        int64_t now = c->env->now(c->env->ctx);
        int rc;
        if (c->address.attempt) {
            rc = pg_attempt_work(c->address.attempt, &c->pq);
            if (rc == 0 && now < c->base.next_at)
                return;
            if (rc > 0)
                c->address.attempt = NULL;
            if (rc > 0 && c->pq && PQstatus(c->pq) == CONNECTION_OK) {
                connected(c);
                return;
            }
        } else {
            int left = c->address.n - c->address.tried;
            int64_t time = c->address.until - now;
            const struct pg_address *a =
                &c->address.list[(c->address.good + c->address.tried++) % c->address.n];
            /* Equal shares of the remaining time: a silent address does not use up all of it. */
            c->base.next_at =
                left == 1 ? c->address.until : now + dlock_max(time / left, MIN_SHARE);
            c->base.state = CONN_CONNECTING;
            s->values[PG_HOST] = s->hosts[a->host];
            s->values[PG_HOSTADDR] = a->text;
            s->values[PG_PORT] = s->ports[a->host];
            rc = pg_attempt_start(&c->address.attempt, s->keys, s->values, s->thread);
            if (rc == 0)
                continue;
        }
        if (rc < 0)
            snprintf(why, sizeof(why), "cannot start a thread to connect: %s", strerror(-rc));
        const char *text = rc > 0 ? NULL : rc == -ENOMEM ? "out of memory" : why;
        if (!address_failed(c, text) || (c->address.tried == c->address.n && !only_primary(c)))
            return;
    }
}

void pg_conn_open(struct pg_conn *c, const struct dlock_spec *spec, struct pg_settings *settings,
                  int64_t until, bool held)
{
    int good = c->address.good;
    bool pipeline = c->pipeline;
    struct dlock_error err;
    pg_conn_close(&c->base);
    *c = (struct pg_conn){
        .pipeline = pipeline,
        .held = held,
        .env = spec->env,
        .settings = settings,
        .where = spec->uri->where,
        .address.until = until,
        .notified = -1,
    };
    /* All addresses of the first host of the URI, then of the second, and so on. */
    for (int i = 0; i < settings->nhosts; i++) {
        const char *host = settings->hosts[i];
        bool is_socket = *host == '\0' || *host == '/' || *host == '@';
        for (int k = is_socket ? -1 : 0; k < spec->npeers && c->address.n < PG_ADDRESSES; k++) {
            const struct dlock_peer *p = k >= 0 ? &spec->peers[k] : NULL;
            struct pg_address *a = &c->address.list[c->address.n];
            if (p && p->host != i)
                continue;
            a->host = i;
            if (!p || getnameinfo((const struct sockaddr *)&p->addr, p->len, a->text,
                                  sizeof(a->text), NULL, 0, NI_NUMERICHOST) == 0)
                c->address.n++;
        }
    }
    c->address.good = good < c->address.n ? good : 0;
    settings->values[PG_TARGET] = PG_WRITABLE;
    /* next_at is 0: the next call of pg_conn_work() begins, at once. */
    if (pg_read_password(settings, &err) != 0)
        conn_fail(c, held ? DLOCK_EUNAVAIL : err.code, err.msg);
    else if (c->address.n > 0)
        c->base.state = CONN_CONNECTING;
    else
        conn_fail(c, DLOCK_EUNAVAIL, "no address known");
}

/* ------------------------------------------------------------------- sending */

/* libpq has the request; now: the clock before. */
static void note_sent(struct pg_conn *c, int tag, int64_t now)
{
    c->requests.list[c->base.unanswered].tag = tag;
    c->requests.list[c->base.unanswered++].sent = now;
    int left = PQflush(c->pq);
    if (left < 0)
        fail_pq(c);
    else
        c->requests.unflushed = left > 0;
}

static void send_now(struct pg_conn *c, struct sql_message *m)
{
    int64_t now = c->env->now(c->env->ctx);
    bool ok = c->base.unanswered < PG_REQUESTS;
    for (int i = 0; i < m->n && ok; i++)
        ok = PQsendQueryParams(c->pq, m->list[i].sql, m->list[i].n, NULL,
                               (const char *const *)m->list[i].values, NULL, NULL, 0);
    if (ok && PQpipelineSync(c->pq))
        note_sent(c, m->tag, now);
    else
        fail_pq(c);
    sql_message_free(m);
}

static void send_queued(struct pg_conn *c)
{
    if (c->base.state != CONN_UP || c->base.unanswered > 0 || c->queue.n == 0)
        return;
    struct sql_message m = c->queue.list[0];
    memmove(c->queue.list, c->queue.list + 1, sizeof(m) * (size_t)--c->queue.n);
    send_now(c, &m);
}

void pg_conn_send_all(struct sql_conn *conn, struct sql_message *m)
{
    struct pg_conn *c = (struct pg_conn *)conn;
    bool ok = sql_message_whole(m);
    if (ok && c->base.state == CONN_UP &&
        (c->base.unanswered == 0 || (!c->base.one_by_one && c->queue.n == 0))) {
        send_now(c, m);
        return;
    }
    if (ok && c->base.state == CONN_UP && c->queue.n < PG_REQUESTS) {
        c->queue.list[c->queue.n++] = *m;
        m->n = 0;
        return;
    }
    sql_message_free(m);
    if (!ok)
        pg_conn_fail_no_memory(c);
    else if (c->base.state == CONN_UP)
        conn_fail(c, DLOCK_EUNAVAIL, "no answer to earlier requests");
}

bool pg_conn_send(struct pg_conn *c, int tag, const char *sql)
{
    int64_t now = c->env->now(c->env->ctx);
    if (!sql)
        return false;
    if (c->base.state != CONN_UP)
        return true;
    if (PQsendQuery(c->pq, sql)) {
        note_sent(c, tag, now);
        return true;
    }
    if (PQstatus(c->pq) == CONNECTION_OK && pg_conn_says_no_memory(PQerrorMessage(c->pq)))
        return false;
    fail_pq(c);
    return true;
}

static void *cancel_thread(void *arg)
{
    char text[256];
    PQcancel(arg, text, sizeof(text));
    PQfreeCancel(arg);
    return NULL;
}

/*
 * PQcancel makes a connection and waits for it. The thread owns all data in use; while the server
 * cannot be reached, the thread stays behind. Without a thread we wait out the running chunk.
 */
void pg_conn_cancel(const struct pg_conn *c)
{
    PGcancel *cancel = c->base.state == CONN_UP ? PQgetCancel(c->pq) : NULL;
    pthread_t thread;
    if (!cancel)
        return;
    if (dlock_thread_start(&thread, 0, cancel_thread, cancel) == 0)
        pthread_detach(thread);
    else
        PQfreeCancel(cancel);
}

/* ----------------------------------------------------------------- receiving */

/* The begin of an SQLSTATE; the first that fits counts. */
static const struct {
    const char *state;
    enum sql_fault fault;
} faults[] = {
    {"42P01", SQL_NO_TABLE}, {"23505", SQL_EXISTS}, /* a row of the catalogue */
    {"42P07", SQL_EXISTS},   {"42710", SQL_EXISTS}, /* the row type */
    {"22003", SQL_RANGE},    {"25006", SQL_READ_ONLY}, {"42", SQL_REFUSED},   {"53", SQL_PASSES},
    {"57", SQL_PASSES},      {"40", SQL_PASSES},       {"55P03", SQL_PASSES}, {"", SQL_OTHER},
};

void pg_conn_set_state(struct sql_reply *r, const char *state)
{
    size_t i = 0;
    snprintf(r->state, sizeof(r->state), "%s", state);
    while (strncmp(state, faults[i].state, strlen(faults[i].state)) != 0)
        i++;
    r->fault = faults[i].fault;
}

static void take_error(struct pg_conn *c, const PGresult *res)
{
    struct sql_reply *r = &c->requests.reply;
    const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);
    const char *text = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
    on_notice(c, res);
    if (r->fault != SQL_OK) /* the first error is the cause */
        return;
    r->unclear = !state;
    pg_conn_set_state(r, state ? state : "XX000");
    first_line(r->text, sizeof(r->text), text ? text : PQresultErrorMessage(res));
    if (!r->text[0])
        snprintf(r->text, sizeof(r->text), "an error without a text");
}

struct pg_rows {
    struct sql_rows rows;
    PGresult *res;
};

static const char *field(const struct sql_rows *rows, int row, const char *column, bool *there)
{
    const PGresult *res = ((const struct pg_rows *)rows)->res;
    int n = PQfnumber(res, column);
    *there = n >= 0;
    return n < 0 || row >= rows->n || PQgetisnull(res, row, n) ? NULL : PQgetvalue(res, row, n);
}

static void free_rows(struct sql_rows *rows)
{
    PQclear(((struct pg_rows *)rows)->res);
    free(rows);
}

struct sql_rows *pg_rows(PGresult *res)
{
    struct pg_rows *r = res ? malloc(sizeof(*r)) : NULL;
    if (!r) {
        PQclear(res);
        return NULL;
    }
    *r = (struct pg_rows){.rows = {.n = PQntuples(res), .field = field, .free = free_rows},
                          .res = res};
    return &r->rows;
}

/* True: res ends the oldest request. */
static bool take_result(struct pg_conn *c, PGresult *res)
{
    switch (PQresultStatus(res)) {
    case PGRES_TUPLES_OK:
        /* A statement that sets something is no question. */
        if ((PQnfields(res) > 0 && strcmp(PQfname(res, 0), "set_config") == 0) ||
            (PQntuples(res) == 0 && PQntuples(c->requests.rows) > 0))
            break;
        PQclear(c->requests.rows);
        c->requests.rows = res;
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

/* PQnotifies() also parses unrequested messages such as "terminating connection". */
static void take_notifies(struct pg_conn *c)
{
    PGnotify *n;
    while ((n = PQnotifies(c->pq))) {
        char *rest;
        int64_t number = dlock_max(0, strtoll(n->extra, &rest, 10));
        if (c->notified < 0 || number <= c->notified) {
            c->notified = number;
            snprintf(c->notice, sizeof(c->notice), "%s", strlen(rest) < PG_NOTICE ? rest : "");
        }
        PQfreemem(n);
    }
}

/* Without memory for the rows what was sent may have been served. */
static void take_rows(struct pg_conn *c, struct sql_reply *r)
{
    bool any = c->requests.rows;
    r->rows = pg_rows(c->requests.rows);
    c->requests.rows = NULL;
    if (!any || r->rows || r->fault != SQL_OK)
        return;
    r->unclear = true;
    pg_conn_set_state(r, "XX000");
    snprintf(r->text, sizeof(r->text), "out of memory");
}

int pg_conn_next(struct sql_conn *conn, struct sql_reply *out)
{
    struct pg_conn *c = (struct pg_conn *)conn;
    int gaps = 0;
    if (c->base.state == CONN_FAILED)
        return c->base.error.code;
    while (c->base.state == CONN_UP && c->base.unanswered > 0 && !PQisBusy(c->pq)) {
        PGresult *res = PQgetResult(c->pq);
        /* A result that libpq makes up because the connection broke is no answer. */
        if (PQstatus(c->pq) != CONNECTION_OK) {
            if (res)
                take_error(c, res);
            PQclear(res);
            return fail_pq(c);
        }
        if (!res && c->pipeline && gaps++ < SQL_STATEMENTS)
            continue; /* the gap between a statement and its sync */
        if (res && !take_result(c, res))
            continue;
        *out = c->requests.reply;
        out->tag = c->requests.list[0].tag;
        out->sent = c->requests.list[0].sent;
        memset(&c->requests.reply, 0, sizeof(c->requests.reply));
        take_rows(c, out);
        c->base.unanswered--;
        memmove(c->requests.list, c->requests.list + 1,
                sizeof(c->requests.list[0]) * (size_t)c->base.unanswered);
        take_notifies(c);
        send_queued(c);
        return 1;
    }
    return 0;
}

void pg_conn_work(struct sql_conn *conn)
{
    struct pg_conn *c = (struct pg_conn *)conn;
    if (c->base.state == CONN_CONNECTING) {
        work_connect(c);
        return;
    }
    if (c->base.state != CONN_UP)
        return;
    int left = c->requests.unflushed ? PQflush(c->pq) : 0;
    if (left < 0 || !PQconsumeInput(c->pq)) {
        /* The bytes before the end of the stream may have the server's last message. */
        (void)PQisBusy(c->pq);
        fail_pq(c);
        return;
    }
    c->requests.unflushed = left > 0;
    take_notifies(c);
    if (PQstatus(c->pq) != CONNECTION_OK || (c->why_ended[0] && c->base.unanswered == 0))
        fail_pq(c);
}

int pg_conn_fd(const struct sql_conn *conn)
{
    const struct pg_conn *c = (const struct pg_conn *)conn;
    if (c->base.state == CONN_UP)
        return PQsocket(c->pq);
    return c->address.attempt ? pg_attempt_pollfd(c->address.attempt).fd : -1;
}

int pg_conn_interest(const struct sql_conn *conn, struct pollfd *pfd, int64_t *wake_at)
{
    const struct pg_conn *c = (const struct pg_conn *)conn;
    if (c->base.state == CONN_FAILED)
        *wake_at = 0;
    if (!sql_conn_is_open(conn))
        return 0;
    if (c->base.state == CONN_CONNECTING) {
        *wake_at = dlock_min(*wake_at, c->base.next_at);
        if (!c->address.attempt)
            return 0;
        *pfd = pg_attempt_pollfd(c->address.attempt);
        return 1;
    }
    *pfd = (struct pollfd){.fd = PQsocket(c->pq),
                           .events = c->requests.unflushed ? POLLIN | POLLOUT : POLLIN};
    /* libpq also reads while it sends, and poll() does not show bytes that were read. */
    if (c->base.unanswered > 0 && !PQisBusy(c->pq))
        *wake_at = 0;
    return 1;
}

void pg_conn_close(struct sql_conn *conn)
{
    struct pg_conn *c = (struct pg_conn *)conn;
    drop(c, PQfinish);
    c->base.state = CONN_CLOSED;
}

void pg_conn_close_in_child(struct sql_conn *conn)
{
    struct pg_conn *c = (struct pg_conn *)conn;
    pg_finish_silently(c->pq);
    c->pq = NULL;
    pg_attempt_close_in_child(c->address.attempt);
    c->address.attempt = NULL;
    pg_conn_close(&c->base);
}

int pg_conn_reply_error(const struct sql_conn *conn, const struct sql_reply *r,
                        struct dlock_error *err)
{
    const struct pg_conn *c = (const struct pg_conn *)conn;
    if (sql_unconfirmed(r))
        return dlock_fail_at(err, DLOCK_EUNAVAIL, 0, c->where,
                             "the server did not confirm the commit: %s", r->warning);
    if (r->unclear && pg_conn_says_no_memory(r->text))
        return dlock_fail_at(err, DLOCK_ENOMEM, 0, c->where, "%s", r->text);
    if (r->fault == SQL_OK)
        return dlock_fail_at(err, DLOCK_EPROTO, 0, c->where, "unexpected answer to the lock query");
    return dlock_fail_at(err, code_of(r->state, r->text), 0, c->where, "%s (SQLSTATE %s)", r->text,
                         r->state);
}
