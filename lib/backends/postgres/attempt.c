/* attempt.c - see attempt.h. */
#include "attempt.h"

#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Enough for OpenSSL, Kerberos and LDAP; a stuck thread should not cost 8 MiB. */
#define STACK_SIZE (1024 * 1024)
/*
 * A thread that is given up ends at once, unless another server keeps libpq waiting. A program may exit then, and
 * exit handlers of OpenSSL destroy what it uses: so it is waited for, but not for long.
 */
#if defined(__SANITIZE_ADDRESS__) ||                                                               \
    defined(__SANITIZE_THREAD__) /* all is slower, and leaks are reported */
#define LEAVE_MS 300
#else
#define LEAVE_MS 20
#endif

/* Shared by the caller and the thread. The one that leaves second frees it. */
struct pg_attempt {
    enum { RUNNING, ENDED, DROPPED } _Atomic state;
    pthread_t thread;
    PGconn *_Atomic pq; /* the thread's until ENDED; NULL: it is not made yet */
    /* The ends of a socket pair: each side closes its own, and the other one sees that. */
    int fd, thread_fd;
    ino_t thread_ino; /* tells whether thread_fd is still that end */
    size_t size;      /* of all of this, wiped at the end: there may be a password */
    const char **keys, **values;
    const char *lists[]; /* these two, and the copied texts behind them */
};

static void free_attempt(struct pg_attempt *a)
{
    explicit_bzero(a, a->size);
    free(a);
}

/* A fork of the caller may have copies of both ends: close() alone would not tell the other side. */
static void close_end(int fd)
{
    shutdown(fd, SHUT_RDWR);
    close(fd);
}

static void ignore_notice(void *arg, const PGresult *res)
{
    (void)arg;
    (void)res;
}

static void work(PGconn *pq, int caller)
{
    PostgresPollingStatusType want = PGRES_POLLING_WRITING;
    while (want == PGRES_POLLING_READING || want == PGRES_POLLING_WRITING) {
        struct pollfd p[] = {
            {.fd = PQsocket(pq), .events = want == PGRES_POLLING_READING ? POLLIN : POLLOUT},
            {.fd = caller, .events = POLLIN}, /* nothing is sent: the end of it */
        };
        /* Not without this look: PQconnectPoll would take an unfinished connect() for a finished one. */
        int got = poll(p, 2, -1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 || p[1].revents != 0)
            return;
        want = PQconnectPoll(pq);
    }
}

static void *run(void *arg)
{
    struct pg_attempt *a = arg;
    int fd = a->thread_fd;
    PGconn *pq = PQconnectStartParams(a->keys, a->values, 0);
    a->pq = pq;
    if (pq && PQstatus(pq) != CONNECTION_BAD) {
        PQsetErrorVerbosity(pq, PQERRORS_VERBOSE);
        PQsetNoticeReceiver(pq, ignore_notice, NULL);
        work(pq, fd);
    }
    if (atomic_exchange(&a->state, ENDED) == DROPPED) {
        PQfinish(pq);
        free_attempt(a);
    }
    close_end(fd);
    return NULL;
}

static char *copy(char **at, const char *text)
{
    char *begin = *at;
    *at = stpcpy(begin, text) + 1;
    return begin;
}

static struct pg_attempt *new_attempt(const char *const *keys, const char *const *values)
{
    size_t n = 0, length = 0;
    for (; keys[n]; n++)
        length += strlen(keys[n]) + 1 + (values[n] ? strlen(values[n]) + 1 : 0);
    size_t size = sizeof(struct pg_attempt) + 2 * (n + 1) * sizeof(char *) + length;
    struct pg_attempt *a = calloc(1, size);
    if (!a)
        return NULL;
    a->size = size;
    a->keys = a->lists;
    a->values = a->lists + n + 1;
    char *text = (char *)(a->lists + 2 * (n + 1));
    for (size_t i = 0; i < n; i++) {
        a->keys[i] = copy(&text, keys[i]);
        a->values[i] = values[i] ? copy(&text, values[i]) : NULL;
    }
    return a;
}

int pg_attempt_start(struct pg_attempt **out, const char *const *keys, const char *const *values)
{
    int fds[2], e;
    struct stat st;
    struct pg_attempt *a = new_attempt(keys, values);
    if (!a)
        return -ENOMEM;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
        e = errno;
        free_attempt(a);
        return -e;
    }
    a->fd = fds[0];
    a->thread_fd = fds[1];
    a->thread_ino = fstat(fds[1], &st) == 0 ? st.st_ino : 0;
    e = dlock_thread_start(&a->thread, STACK_SIZE, run, a);
    if (e != 0) {
        close(fds[0]);
        close(fds[1]);
        free_attempt(a);
        return -e;
    }
    *out = a;
    return 0;
}

int pg_attempt_fd(const struct pg_attempt *a)
{
    return a->fd;
}

/* The state is ENDED: the thread has only to return. Joined, it is gone before exit handlers run. */
static PGconn *finish(struct pg_attempt *a)
{
    PGconn *pq = a->pq;
    pthread_join(a->thread, NULL);
    free_attempt(a);
    return pq;
}

bool pg_attempt_take(struct pg_attempt *a, PGconn **out)
{
    if (atomic_load(&a->state) != ENDED)
        return false;
    close(a->fd);
    *out = finish(a);
    return true;
}

void pg_finish_in_child(PGconn *pq)
{
    int fd = pq ? PQsocket(pq) : -1;
    int null = fd >= 0 ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0 || (null >= 0 && dup3(null, fd, O_CLOEXEC) >= 0))
        PQfinish(pq);
    else
        close(fd); /* the rest is lost */
    if (null >= 0)
        close(null);
}

void pg_attempt_close_in_child(struct pg_attempt *a)
{
    struct stat st;
    if (!a)
        return;
    close(a->fd);
    if (fstat(a->thread_fd, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_ino == a->thread_ino)
        close(a->thread_fd);
    PGconn *pq = a->pq;
    if (atomic_load(&a->state) == ENDED)
        pg_finish_in_child(pq);
    else if (pq && PQsocket(pq) >= 0)
        close(PQsocket(pq)); /* libpq was at work: no other call of it is safe */
    free_attempt(a);
}

void pg_attempt_drop(struct pg_attempt *a)
{
    if (!a)
        return;
    pthread_t thread = a->thread;
    int fd = a->fd;
    shutdown(fd, SHUT_WR);
    if (atomic_exchange(&a->state, DROPPED) != RUNNING) {
        PQfinish(finish(a));
    } else {
        /* It closes its end last. */
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, LEAVE_MS) > 0)
            pthread_join(thread, NULL);
        else
            pthread_detach(thread);
    }
    close_end(fd);
}
