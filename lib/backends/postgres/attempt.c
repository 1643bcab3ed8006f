/* attempt.c - see attempt.h. */
#include "attempt.h"

#include "util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct pg_attempt {
    /* ALONE: no thread. Else caller and thread share it, and the last to leave frees it. */
    enum { ALONE, RUNNING, ENDED, DROPPED } _Atomic state;
    PGconn *_Atomic pq; /* the thread's while RUNNING; NULL: not made yet */
    PostgresPollingStatusType want;
    struct dlock_helper helper; /* each side closes its end to tell the other side */
    size_t size; /* of the whole allocation, wiped at the end: there may be a password */
    const char **keys, **values;
    const char *lists[]; /* keys and values, and the copied texts behind the lists */
};

static void free_attempt(struct pg_attempt *a)
{
    explicit_bzero(a, a->size);
    free(a);
}

static void ignore_notice(void *arg, const PGresult *res)
{
    (void)arg;
    (void)res;
}

static void begin(struct pg_attempt *a, const char *const *keys, const char *const *values)
{
    PGconn *pq = PQconnectStartParams(keys, values, 0);
    a->pq = pq;
    if (!pq || PQstatus(pq) == CONNECTION_BAD) {
        a->want = PGRES_POLLING_FAILED;
        return;
    }
    a->want = PGRES_POLLING_WRITING;
    PQsetErrorVerbosity(pq, PQERRORS_VERBOSE);
    PQsetNoticeReceiver(pq, ignore_notice, NULL);
}

static bool is_unfinished(const struct pg_attempt *a)
{
    return a->want == PGRES_POLLING_READING || a->want == PGRES_POLLING_WRITING;
}

static struct pollfd server(const struct pg_attempt *a)
{
    return (struct pollfd){.fd = PQsocket(a->pq),
                           .events = a->want == PGRES_POLLING_READING ? POLLIN : POLLOUT};
}

const PQconninfoOption *pg_option(const PQconninfoOption *all, const char *keyword)
{
    while (all && all->keyword && strcmp(all->keyword, keyword) != 0)
        all++;
    return all && all->keyword ? all : NULL;
}

int pg_conn_loads_code(PGconn *pq)
{
    PQconninfoOption *all = PQconninfo(pq);
    const PQconninfoOption *o = pg_option(all, "sslkey");
    int rc = !all ? -ENOMEM : o && o->val && pg_loads_code(o->val);
    PQconninfoFree(all);
    return rc;
}

/* Only libpq has read a service. It has sent nothing yet, and not looked at the key. */
static void check_service(struct pg_attempt *a)
{
    int rc = is_unfinished(a) ? pg_conn_loads_code(a->pq) : 0;
    if (rc != 0)
        a->want = PGRES_POLLING_FAILED;
    if (rc < 0) {
        PQfinish(a->pq);
        a->pq = NULL;
    }
}

static void *run(void *arg)
{
    struct pg_attempt *a = arg;
    int fd = a->helper.thread_fd;
    if (!a->pq) {
        begin(a, a->keys, a->values);
        check_service(a);
    }
    while (is_unfinished(a)) {
        /* The caller sends nothing: its end of the socket pair is closed. */
        struct pollfd p[] = {server(a), {.fd = fd, .events = POLLIN}};
        /* Without poll() PQconnectPoll would take an unfinished connect() for a finished call. */
        int got = poll(p, 2, -1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 || p[1].revents != 0)
            break;
        a->want = PQconnectPoll(a->pq);
    }
    if (atomic_exchange(&a->state, ENDED) == DROPPED) {
        PQfinish(a->pq);
        free_attempt(a);
    }
    dlock_helper_close(fd);
    return NULL;
}

/* 0 or a negative errno: the attempt is as it was. */
static int start_thread(struct pg_attempt *a)
{
    a->state = RUNNING;
    int rc = dlock_helper_start(&a->helper, run, a);
    if (rc != 0)
        a->state = ALONE;
    return rc;
}

static const char *copy(char **at, const char *text)
{
    char *begin_of_copy = *at;
    *at = stpcpy(begin_of_copy, text) + 1;
    return begin_of_copy;
}

int pg_attempt_start(struct pg_attempt **out, const char *const *keys, const char *const *values,
                     bool thread)
{
    size_t n = 0, length = 0;
    for (; thread && keys[n]; n++)
        length += strlen(keys[n]) + 1 + (values[n] ? strlen(values[n]) + 1 : 0);
    size_t size = sizeof(struct pg_attempt) + 2 * (n + 1) * sizeof(char *) + length;
    struct pg_attempt *a = calloc(1, size);
    if (!a)
        return -ENOMEM;
    a->size = size;
    a->state = ALONE;
    if (!thread) {
        begin(a, keys, values);
        *out = a;
        return 0;
    }
    a->keys = a->lists;
    a->values = a->lists + n + 1;
    char *text = (char *)(a->lists + 2 * (n + 1));
    for (size_t i = 0; i < n; i++) {
        a->keys[i] = copy(&text, keys[i]);
        a->values[i] = values[i] ? copy(&text, values[i]) : NULL;
    }
    int rc = start_thread(a);
    if (rc == 0)
        *out = a;
    else
        free_attempt(a);
    return rc;
}

struct pollfd pg_attempt_pollfd(const struct pg_attempt *a)
{
    return a->state == ALONE ? server(a) : (struct pollfd){.fd = a->helper.fd, .events = POLLIN};
}

/*
 * Will PQconnectPoll() only read what the server has sent, and perhaps send a password? TLS may
 * block (reads files, computes, may use a token, and hides what follows), SCRAM (computes for as
 * long as the server says), GSS (asks a Kerberos server) and an incomplete message. No server sends
 * a request between this look and libpq's: each request follows our answer to the request before.
 */
static bool cannot_block(PGconn *pq)
{
    unsigned char in[4096];
    ConnStatusType at = PQstatus(pq);
    if (at != CONNECTION_SSL_STARTUP && at != CONNECTION_AWAITING_RESPONSE)
        return true;
    ssize_t n = recv(PQsocket(pq), in, sizeof(in), MSG_PEEK | MSG_DONTWAIT);
    if (n <= 0 || in[0] == 'E' || at == CONNECTION_SSL_STARTUP)
        return n <= 0 || in[0] == 'E' || in[0] == 'N';
    /* Authentication requests: 'R', length without 'R', kind (0: accepted; 3, 5: a password). */
    for (ssize_t i = 0; i < n;) {
        uint32_t length, kind;
        if (n - i < 9 || in[i] != 'R')
            return in[i] == 'E';
        memcpy(&length, in + i + 1, sizeof(length));
        memcpy(&kind, in + i + 5, sizeof(kind));
        length = ntohl(length);
        kind = ntohl(kind);
        if (kind == 0)
            return true;
        if ((kind != 3 && kind != 5) || length < 8 || length > (size_t)(n - i) - 1)
            return false;
        i += (ssize_t)length + 1;
    }
    return true;
}

int pg_attempt_work(struct pg_attempt *a, PGconn **out)
{
    while (a->state == ALONE && is_unfinished(a)) {
        struct pollfd p = server(a);
        if (poll(&p, 1, 0) <= 0)
            return 0;
        if (!cannot_block(a->pq))
            return start_thread(a);
        a->want = PQconnectPoll(a->pq);
    }
    if (a->state == RUNNING)
        return 0;
    if (a->state == ENDED) /* joined, the thread is gone before exit handlers run */
        dlock_helper_join(a->helper);
    *out = a->pq;
    free_attempt(a);
    return 1;
}

void pg_finish_silently(PGconn *pq)
{
    int fd = pq ? PQsocket(pq) : -1;
    int null = fd >= 0 ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0 || (null >= 0 && dup3(null, fd, O_CLOEXEC) >= 0))
        PQfinish(pq);
    else
        close(fd); /* the memory leaks */
    if (null >= 0)
        close(null);
}

void pg_attempt_close_in_child(struct pg_attempt *a)
{
    if (!a)
        return;
    PGconn *pq = a->pq;
    if (a->state != ALONE)
        dlock_helper_close_in_child(&a->helper);
    if (a->state != RUNNING)
        pg_finish_silently(pq);
    else if (pq && PQsocket(pq) >= 0)
        close(PQsocket(pq)); /* libpq was at work: no other call of libpq is safe */
    free_attempt(a);
}

void pg_attempt_drop(struct pg_attempt *a)
{
    PGconn *pq = NULL;
    if (!a)
        return;
    if (a->state == ALONE) {
        PQfinish(a->pq);
        free_attempt(a);
        return;
    }
    struct dlock_helper helper = a->helper;
    if (atomic_exchange(&a->state, DROPPED) != RUNNING) {
        a->state = ENDED;
        pg_attempt_work(a, &pq); /* closes fd */
        PQfinish(pq);
        return;
    }
    dlock_helper_leave(helper);
}
