/* conn.c - see conn.h. */
#include "conn.h"

#include "util.h"

#include <errmsg.h>
#include <errno.h>
#include <fcntl.h>
#include <mysqld_error.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Errors of MySQL or MariaDB alone. */
#define MARIADB_STATEMENT_TIMEOUT 1969
#define MYSQL_STATEMENT_TIMEOUT 3024
#define CONNECTION_KILLED 1927
#define IDLE_TOO_LONG 4031
#define READ_ONLY_MODE 1836
#define CHANGED_SINCE_READ 1020 /* MariaDB's innodb_snapshot_isolation */

struct my_session {
    /* Caller and thread share it, and the last to leave frees it. */
    enum { RUNNING, ENDED, DROPPED } _Atomic state;
    struct dlock_helper helper; /* a byte hands the fields below over */
    /* Another descriptor of the server's socket, to shut it down; -1: not connected. */
    _Atomic int server;
    MYSQL *my; /* the thread's */
    struct my_login login;
    bool up;
    unsigned long id;
    char version[64];
    struct sql_message message;
    struct sql_reply reply;
    bool broken; /* the connection failed: login.error, login.text */
};

static void free_session(struct my_session *s)
{
    if (s->server >= 0)
        close(s->server);
    my_login_free(&s->login);
    sql_message_free(&s->message);
    sql_reply_done(&s->reply);
    free(s);
}

/* ---------------------------------------------------------------- the thread */

struct my_rows {
    struct sql_rows rows;
    MYSQL_RES *res;
    MYSQL_ROW row[];
};

static const char *field(const struct sql_rows *rows, int row, const char *column, bool *there)
{
    const struct my_rows *mine = (const struct my_rows *)rows;
    const MYSQL_FIELD *fields = mysql_fetch_fields(mine->res);
    unsigned n = mysql_num_fields(mine->res), i = 0;
    while (i < n && strcmp(fields[i].name, column) != 0)
        i++;
    *there = i < n;
    return i < n && row < rows->n ? mine->row[row][i] : NULL;
}

static void free_rows(struct sql_rows *rows)
{
    mysql_free_result(((struct my_rows *)rows)->res);
    free(rows);
}

static void set_fault(struct sql_reply *r, unsigned error, const char *text)
{
    static const struct {
        unsigned error;
        enum sql_fault fault;
    } faults[] = {
        {ER_NO_SUCH_TABLE, SQL_NO_TABLE},
        {ER_TABLE_EXISTS_ERROR, SQL_EXISTS},
        {ER_DATA_OUT_OF_RANGE, SQL_RANGE},
        {ER_WARN_DATA_OUT_OF_RANGE, SQL_RANGE},
        {ER_OPTION_PREVENTS_STATEMENT, SQL_READ_ONLY},
        {ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION, SQL_READ_ONLY},
        {READ_ONLY_MODE, SQL_READ_ONLY},
        {ER_TABLEACCESS_DENIED_ERROR, SQL_REFUSED},
        {ER_COLUMNACCESS_DENIED_ERROR, SQL_REFUSED},
        {ER_DBACCESS_DENIED_ERROR, SQL_REFUSED},
        {ER_KEY_DOES_NOT_EXISTS, SQL_REFUSED}, /* a view has no keys */
        {ER_BAD_FIELD_ERROR, SQL_REFUSED},
        {ER_VIEW_INVALID, SQL_REFUSED},
        {ER_LOCK_WAIT_TIMEOUT, SQL_PASSES},
        {ER_LOCK_DEADLOCK, SQL_PASSES},
        {ER_QUERY_INTERRUPTED, SQL_PASSES},
        {ER_CANT_UPDATE_WITH_READLOCK, SQL_PASSES},
        {ER_OUTOFMEMORY, SQL_PASSES},
        {ER_OUT_OF_RESOURCES, SQL_PASSES},
        {ER_DISK_FULL, SQL_PASSES},
        {ER_RECORD_FILE_FULL, SQL_PASSES},
        {ER_SERVER_SHUTDOWN, SQL_PASSES},
        {MARIADB_STATEMENT_TIMEOUT, SQL_PASSES},
        {MYSQL_STATEMENT_TIMEOUT, SQL_PASSES},
        {CHANGED_SINCE_READ, SQL_PASSES},
    };
    r->fault = SQL_OTHER;
    for (size_t i = 0; i < DLOCK_LEN(faults); i++)
        if (faults[i].error == error)
            r->fault = faults[i].fault;
    snprintf(r->state, sizeof(r->state), "%u", error % 100000);
    dlock_clean_words(r->text, sizeof(r->text), text, strcspn(text, "\n"));
}

/*
 * Keep a result: the last one with rows counts. Its first column may be "finding": not NULL, it is
 * the error of a statement of ours.
 */
static void take_result(struct sql_reply *r, MYSQL_RES *res)
{
    size_t n = mysql_num_rows(res);
    struct my_rows *rows;
    bool there;
    if (n == 0 && r->rows && r->rows->n > 0) {
        mysql_free_result(res);
        return;
    }
    if (!(rows = malloc(sizeof(*rows) + n * sizeof(rows->row[0])))) {
        mysql_free_result(res);
        r->unclear = true;
        set_fault(r, CR_OUT_OF_MEMORY, "out of memory");
        return;
    }
    *rows = (struct my_rows){.rows = {.n = (int)n, .field = field, .free = free_rows}, .res = res};
    for (size_t i = 0; i < n; i++)
        rows->row[i] = mysql_fetch_row(res);
    const char *finding = rows->rows.n > 0 ? field(&rows->rows, 0, "finding", &there) : NULL;
    if (finding) {
        r->fault = strcmp(finding, "read-only") == 0 ? SQL_READ_ONLY : SQL_REFUSED;
        snprintf(r->state, sizeof(r->state), "0");
        dlock_clean_text(r->text, sizeof(r->text), finding, strlen(finding));
        free_rows(&rows->rows);
        return;
    }
    sql_rows_free(r->rows);
    r->rows = &rows->rows;
}

/*
 * Interrupted by a person (KILL QUERY), or rolled back: each statement of ours is conditional, and
 * may be repeated.
 */
static bool repeats(unsigned error)
{
    return error == ER_QUERY_INTERRUPTED || error == ER_LOCK_DEADLOCK ||
           error == CHANGED_SINCE_READ;
}

/* An error of libmariadb is one of the connection. */
static bool ends_session(unsigned error)
{
    return (error >= CR_MIN_ERROR && error <= CR_MAX_ERROR) || error == ER_SERVER_SHUTDOWN ||
           error == CONNECTION_KILLED || error == IDLE_TOO_LONG;
}

/* The number of rows that the last UPDATE changed, in the place {changed}. */
static void put_changed(char *sql, unsigned long long changed)
{
    static const char place[] = "{changed}";
    char number[sizeof(place)];
    snprintf(number, sizeof(number), "%-*llu", (int)strlen(place), changed % 1000);
    for (char *at = sql; (at = strstr(at, place)); at += strlen(place))
        memcpy(at, number, strlen(place));
}

/*
 * Run one statement, so many times at most. 0, or the error. An interruption may come behind the
 * commit: then the statement's repeat changes nothing, and the reply is unclear.
 */
static unsigned run_statement(MYSQL *my, const char *sql, int times, struct sql_reply *r,
                              unsigned long long *changed)
{
    unsigned error = 0;
    bool interrupted = false;
    for (int i = 0; i < times; i++) {
        MYSQL_RES *res = NULL;
        if (mysql_real_query(my, sql, strlen(sql)) == 0)
            res = mysql_store_result(my);
        error = mysql_errno(my);
        if (error == 0 && res)
            take_result(r, res);
        else if (res)
            mysql_free_result(res);
        if (error == 0 && *sql == 'U') /* an UPDATE: no other statement of ours begins so */
            *changed = mysql_affected_rows(my);
        interrupted = interrupted || (error == ER_QUERY_INTERRUPTED && *sql == 'U');
        if (!repeats(error))
            break;
    }
    r->unclear = r->unclear || (interrupted && (error != 0 || *changed == 0));
    return error;
}

/*
 * A semicolon and the end of the line separate statements. Each commits: an error behind an update
 * leaves the message served in part.
 */
static void answer(struct my_session *s)
{
    /* A wait that a person has interrupted is over. */
    int times = s->message.tag == T_WAIT ? 1 : MY_REPEATS;
    unsigned long long changed = 0;
    bool written = false;
    s->reply = (struct sql_reply){.fault = SQL_OK};
    for (int i = 0; i < s->message.n; i++) {
        char *next = NULL;
        for (char *sql = s->message.list[i].sql; sql && s->reply.fault == SQL_OK; sql = next) {
            if ((next = strstr(sql, ";\n"))) {
                *next = '\0';
                next += 2;
            }
            put_changed(sql, changed);
            unsigned error = run_statement(s->my, sql, times, &s->reply, &changed);
            written = written || changed > 0;
            if (error == 0)
                continue;
            set_fault(&s->reply, error, mysql_error(s->my));
            s->reply.unclear = s->reply.unclear || written;
            s->broken = ends_session(error);
            s->login.error = error;
            memcpy(s->login.text, s->reply.text, sizeof(s->login.text));
        }
    }
    sql_message_free(&s->message);
}

static void log_in(struct my_session *s)
{
    s->my = my_login(&s->login);
    if (!s->my)
        return;
    int fd = (int)mysql_get_socket(s->my);
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    s->server = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    s->id = mysql_thread_id(s->my);
    snprintf(s->version, sizeof(s->version), "%.63s", mysql_get_server_info(s->my));
    s->up = s->server >= 0;
    if (!s->up) {
        s->login.error = CR_OUT_OF_MEMORY;
        snprintf(s->login.text, sizeof(s->login.text), "no descriptor: %s", strerror(errno));
    }
}

/* Not safe in two threads at once. */
static void init_library(void)
{
    (void)mysql_library_init(0, NULL, NULL);
}

static void *run(void *arg)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct my_session *s = arg;
    int fd = s->helper.thread_fd;
    char byte = 0;
    pthread_once(&once, init_library);
    mysql_thread_init();
    log_in(s);
    bool goes_on = s->up;
    while (s->state != DROPPED && send(fd, &byte, 1, MSG_NOSIGNAL) == 1 && goes_on &&
           TEMP_FAILURE_RETRY(read(fd, &byte, 1)) == 1) {
        answer(s);
        goes_on = !s->broken;
    }
    /* Says goodbye; but a server that was shut down for us hears nothing. */
    if (s->my)
        mysql_close(s->my);
    mysql_thread_end();
    if (atomic_exchange(&s->state, ENDED) == DROPPED)
        free_session(s);
    dlock_helper_close(fd);
    return NULL;
}

/* ----------------------------------------------------------------- the caller */

/* 0 or a negative errno. */
static int start(struct my_session **out, const struct my_settings *set,
                 const struct dlock_spec *spec, int64_t time)
{
    struct my_session *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->server = -1;
    s->login.seconds = (unsigned)dlock_max(1, time / DLOCK_SEC);
    int rc = my_login_init(&s->login, set, spec) ? 0 : -ENOMEM;
    if (rc == 0)
        rc = dlock_helper_start(&s->helper, run, s);
    if (rc != 0)
        free_session(s);
    else
        *out = s;
    return rc;
}

/* busy: the thread is within libmariadb, which must return at once. */
static void leave(struct my_session *s, bool busy)
{
    struct dlock_helper helper = s->helper; /* the thread may free s, once dropped */
    if (busy && s->server >= 0)
        shutdown(s->server, SHUT_RDWR);
    if (atomic_exchange(&s->state, DROPPED) == ENDED) {
        dlock_helper_join(helper);
        free_session(s);
    } else {
        dlock_helper_leave(helper);
    }
}

static void drop(struct my_conn *c)
{
    bool busy = c->base.state == CONN_CONNECTING || c->base.unanswered > 0;
    if (c->session)
        leave(c->session, busy);
    c->session = NULL;
    c->answered = false;
    c->base.unanswered = 0;
    while (c->queue.n > 0)
        sql_message_free(&c->queue.list[--c->queue.n]);
}

static int conn_fail(struct my_conn *c, int code, const char *text)
{
    char line[256];
    snprintf(line, sizeof(line), "%s", *text ? text : "the connection was closed");
    drop(c);
    c->base.state = CONN_FAILED;
    return dlock_fail_at(&c->base.error, code, 0, c->where, "%s", line);
}

void my_conn_open(struct my_conn *c, const struct dlock_spec *spec, struct my_settings *set,
                  int64_t until, bool held)
{
    struct dlock_error err;
    int64_t now = spec->env->now(spec->env->ctx);
    my_conn_close(&c->base);
    *c = (struct my_conn){.env = spec->env, .where = spec->uri->where, .held = held};
    if (set->password_file) {
        char *text;
        if (dlock_read_secret(&text, set->password_file, &err) != 0) {
            conn_fail(c, held ? DLOCK_EUNAVAIL : err.code, err.msg);
            return;
        }
        dlock_wipe(set->password);
        set->password = text;
    }
    int rc = start(&c->session, set, spec, until - now);
    if (rc == -ENOMEM) {
        conn_fail(c, DLOCK_ENOMEM, "out of memory");
    } else if (rc != 0) {
        conn_fail(c, DLOCK_EUNAVAIL, "cannot start a thread to connect");
    } else {
        c->base.state = CONN_CONNECTING;
        c->base.next_at = until;
    }
}

static void hand_over(struct my_conn *c, struct sql_message *m)
{
    char byte = 0;
    c->session->message = *m;
    m->n = 0;
    c->tag = c->session->message.tag;
    c->sent = c->env->now(c->env->ctx);
    c->base.unanswered = 1;
    if (send(c->session->helper.fd, &byte, 1, MSG_NOSIGNAL) != 1)
        conn_fail(c, DLOCK_EUNAVAIL, "");
}

static void send_queued(struct my_conn *c)
{
    if (c->base.state != CONN_UP || c->base.unanswered > 0 || c->queue.n == 0)
        return;
    struct sql_message m = c->queue.list[0];
    memmove(c->queue.list, c->queue.list + 1, sizeof(m) * (size_t)--c->queue.n);
    hand_over(c, &m);
}

void my_conn_send(struct sql_conn *conn, struct sql_message *m)
{
    struct my_conn *c = (struct my_conn *)conn;
    if (!sql_message_whole(m)) {
        sql_message_free(m);
        conn_fail(c, DLOCK_ENOMEM, "out of memory");
    } else if (c->base.state == CONN_UP && c->base.unanswered == 0) {
        hand_over(c, m);
    } else if (c->base.state == CONN_UP && c->queue.n < MY_REQUESTS) {
        c->queue.list[c->queue.n++] = *m;
        m->n = 0;
    } else {
        sql_message_free(m);
        if (c->base.state == CONN_UP)
            conn_fail(c, DLOCK_EUNAVAIL, "no answer to earlier requests");
    }
}

int my_conn_next(struct sql_conn *conn, struct sql_reply *out)
{
    struct my_conn *c = (struct my_conn *)conn;
    if (c->base.state == CONN_FAILED)
        return c->base.error.code;
    if (!c->answered)
        return 0;
    struct my_session *s = c->session;
    c->answered = false;
    if (s->broken) {
        char text[sizeof(s->login.text)];
        memcpy(text, s->login.text, sizeof(text));
        c->base.transient = my_is_transient(s->login.error);
        return conn_fail(c, s->login.error == CR_OUT_OF_MEMORY ? DLOCK_ENOMEM : DLOCK_EUNAVAIL,
                         text);
    }
    *out = s->reply;
    memset(&s->reply, 0, sizeof(s->reply));
    out->tag = c->tag;
    out->sent = c->sent;
    c->base.unanswered = 0;
    send_queued(c);
    return 1;
}

static void logged_in(struct my_conn *c)
{
    struct my_session *s = c->session;
    char text[sizeof(s->login.text)];
    if (s->up) {
        c->base.state = CONN_UP;
        c->base.session = (int64_t)s->id;
        c->base.one_by_one = c->base.guarded = true;
        memcpy(c->version, s->version, sizeof(c->version));
        return;
    }
    int code = my_code(s->login.error);
    if (c->held && (code == DLOCK_EPERM || code == DLOCK_EUNUSABLE))
        code = DLOCK_EUNAVAIL;
    memcpy(text, s->login.text, sizeof(text));
    c->base.transient = my_is_transient(s->login.error);
    conn_fail(c, code, text);
}

void my_conn_work(struct sql_conn *conn)
{
    struct my_conn *c = (struct my_conn *)conn;
    char byte;
    if (!sql_conn_is_open(conn))
        return;
    ssize_t n = recv(c->session->helper.fd, &byte, 1, MSG_DONTWAIT);
    if (n == 1 && c->base.state == CONN_CONNECTING)
        logged_in(c);
    else if (n == 1)
        c->answered = true;
    else if (n == 0)
        conn_fail(c, DLOCK_EUNAVAIL, "");
    else if (c->base.state == CONN_CONNECTING && c->env->now(c->env->ctx) >= c->base.next_at)
        conn_fail(c, DLOCK_EUNAVAIL, "no answer to the connection request");
    struct pollfd p = {.fd = my_conn_fd(conn), .events = POLLIN};
    /* Between two messages the server says nothing, unless it ends the session. */
    if (c->base.state == CONN_UP && c->base.unanswered == 0 && poll(&p, 1, 0) > 0)
        conn_fail(c, DLOCK_EUNAVAIL, "the server ended the session");
}

int my_conn_fd(const struct sql_conn *conn)
{
    const struct my_conn *c = (const struct my_conn *)conn;
    bool idle = c->base.state == CONN_UP && c->base.unanswered == 0;
    return !c->session ? -1 : idle ? c->session->server : c->session->helper.fd;
}

int my_conn_interest(const struct sql_conn *conn, struct pollfd *pfd, int64_t *wake_at)
{
    const struct my_conn *c = (const struct my_conn *)conn;
    if (c->base.state == CONN_FAILED || c->answered)
        *wake_at = 0;
    if (!sql_conn_is_open(conn))
        return 0;
    if (c->base.state == CONN_CONNECTING)
        *wake_at = dlock_min(*wake_at, c->base.next_at);
    *pfd = (struct pollfd){.fd = my_conn_fd(conn), .events = POLLIN};
    return 1;
}

void my_conn_close(struct sql_conn *conn)
{
    drop((struct my_conn *)conn);
    conn->state = CONN_CLOSED;
}

/* The goodbye goes to /dev/null, also with TLS. */
static void silence(int fd)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup3(null, fd, O_CLOEXEC) < 0)
        close(fd);
    if (null >= 0)
        close(null);
}

void my_conn_close_in_child(struct sql_conn *conn)
{
    struct my_conn *c = (struct my_conn *)conn;
    struct my_session *s = c->session;
    bool idle = c->base.state == CONN_UP && c->base.unanswered == 0;
    c->session = NULL;
    if (s) {
        dlock_helper_close_in_child(&s->helper);
        /* The thread was at work: no call of libmariadb is safe, and its memory leaks. */
        if (s->server >= 0)
            silence((int)mysql_get_socket(s->my));
        if (idle)
            mysql_close(s->my);
        else if (s->server >= 0)
            close((int)mysql_get_socket(s->my));
        free_session(s);
    }
    my_conn_close(conn);
}

int my_conn_error(const struct sql_conn *conn, const struct sql_reply *r, struct dlock_error *err)
{
    const struct my_conn *c = (const struct my_conn *)conn;
    unsigned error = (unsigned)strtoul(r->state, NULL, 10);
    if (r->fault == SQL_OK)
        return dlock_fail_at(err, DLOCK_EPROTO, 0, c->where, "unexpected answer to the lock query");
    if (r->fault == SQL_READ_ONLY)
        return dlock_fail_at(err, DLOCK_EUNAVAIL, 0, c->where,
                             "the server takes no writes (read_only): name its primary");
    if (error == 0) /* a finding of ours */
        return dlock_fail_at(err, DLOCK_EPERM, 0, c->where, "%s", r->text);
    return dlock_fail_at(err, my_code(error), 0, c->where, "%s (error %s)", r->text, r->state);
}
