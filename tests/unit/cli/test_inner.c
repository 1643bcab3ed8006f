/* test_inner.c - the socket of a holder: what a query is told, and that it counts for nothing. */
#include "inner.h"
#include "unit.h"
#include "util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define KEY "a key\nof the lock"

/* A holder of a file's lock, and one client. */
static struct fixture {
    char file[40];
    dlock *lk;
    struct inner *in;
    int fd;
} f;

static void set_up(void)
{
    struct dlock_options o;
    dlock_options_init(&o, sizeof o);
    int fd;
    strcpy(f.file, "/tmp/test_inner.XXXXXX");
    fd = mkstemp(f.file);
    close(fd);
    CHECK(fd >= 0 && dlock_open(&f.lk, f.file, &o, NULL) == 0 && dlock_acquire(f.lk, NULL) == 0);
    f.in = inner_open(NULL, &(struct inner_lock){f.lk, KEY}, 1);
    CHECK(f.in != NULL);
    f.fd = -1;
}

static void tear_down(void)
{
    if (f.fd >= 0)
        close(f.fd);
    inner_close(f.in);
    dlock_close(f.lk);
    unlink(f.file);
}

/* q: a query of the client. */
#define INNER_TEST(name)                                                                           \
    static void with_holder_##name(struct nested_request q, struct nested_reply r);                \
    TEST(name)                                                                                     \
    {                                                                                              \
        set_up();                                                                                  \
        with_holder_##name(query(), (struct nested_reply){0});                                     \
        tear_down();                                                                               \
    }                                                                                              \
    static void with_holder_##name(struct nested_request q, struct nested_reply r)

static bool reach(void)
{
    struct sockaddr_un a;
    socklen_t len = nested_address(&a, inner_socket(f.in));
    if (f.fd >= 0)
        close(f.fd);
    f.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return f.fd >= 0 && connect(f.fd, (struct sockaddr *)&a, len) == 0;
}

static struct nested_request query(void)
{
    struct nested_request q = {.version = NESTED_VERSION, .mode = NESTED_QUERY};
    strcpy(q.token, dlock_token(f.lk));
    nested_digests(q.key, nested_digest(KEY), nested_digest(dlock_name(f.lk)));
    return q;
}

/*
 * The type of the reply to this request, of which `more` bytes follow its key; 0: the connection is
 * closed without one.
 */
static int reply_to(const struct nested_request *q, int more, struct nested_reply *r)
{
    size_t len = offsetof(struct nested_request, key) + strlen(q->key);
    if (!CHECK(reach()) || !CHECK(send(f.fd, q, len + (size_t)more, MSG_NOSIGNAL) > 0))
        return -1;
    inner_turn(f.in);
    ssize_t n = recv(f.fd, r, sizeof(*r), 0);
    if (n != (ssize_t)sizeof(*r))
        n = recv(f.fd, r, sizeof(*r), 0); /* behind ECONNRESET: our request was not read */
    return n == (ssize_t)sizeof(*r) ? r->type : 0;
}

static bool is_closed(void)
{
    return recv(f.fd, &(char){0}, 1, 0) == 0;
}

INNER_TEST(a_query_is_answered_and_closed_and_does_not_count)
{
    CHECK_INT(reply_to(&q, 0, &r), NESTED_HELD);
    CHECK(r.left == DLOCK_NEVER);
    CHECK_STR(r.text, f.file);
    CHECK_INT(inner_count(f.in), 0);
    CHECK(is_closed());
    /* An inner one counts until it leaves. */
    strcpy(q.key, KEY);
    q.mode = DLOCK_MODE_EXCLUSIVE;
    CHECK_INT(reply_to(&q, 0, &r), NESTED_HELD);
    CHECK_INT(inner_count(f.in), 1);
    close(f.fd);
    f.fd = -1;
    inner_turn(f.in);
    CHECK_INT(inner_count(f.in), 0);
}

INNER_TEST(a_query_that_proves_nothing_has_no_answer)
{
    const struct nested_request good = q;
    q.token[0] ^= 1;
    CHECK_INT(reply_to(&q, 0, &r), 0);
    q = good;
    q.version--;
    CHECK_INT(reply_to(&q, 0, &r), 0);
    q = good;
    q.mode = DLOCK_MODE_EXCLUSIVE;
    CHECK_INT(reply_to(&q, 0, &r), 0);
    q = good;
    CHECK_INT(reply_to(&q, 1, &r), 0);
    CHECK_INT(reply_to(&q, -1, &r), 0);
    CHECK_INT(reply_to(&q, -(int)offsetof(struct nested_request, key), &r), 0);
    nested_digests(q.key, nested_digest(KEY) + 1, nested_digest(dlock_name(f.lk)));
    CHECK_INT(reply_to(&q, 0, &r), 0);
    nested_digests(q.key, nested_digest(KEY), nested_digest("another"));
    CHECK_INT(reply_to(&q, 0, &r), 0);
    CHECK_INT(reply_to(&good, 0, &r), NESTED_HELD);
}

INNER_TEST(a_lock_that_is_ending_is_not_held)
{
    inner_ending(f.in);
    CHECK_INT(reply_to(&q, 0, &r), NESTED_LOST);
    CHECK(r.left <= 0);
    CHECK_STR(r.text, f.file);
    inner_lost(f.in, "x");
    CHECK_INT(reply_to(&q, 0, &r), NESTED_LOST);
    inner_stop(f.in);
    CHECK(!reach());
}

INNER_TEST(a_query_is_answered_where_an_inner_one_is_one_too_many)
{
    struct rlimit old, few;
    getrlimit(RLIMIT_NOFILE, &old);
    few = old;
    few.rlim_cur = (rlim_t)inner_listen_fd(f.in) + 8;
    setrlimit(RLIMIT_NOFILE, &few);
    CHECK_INT(reply_to(&q, 0, &r), NESTED_HELD);
    strcpy(q.key, KEY);
    q.mode = DLOCK_MODE_EXCLUSIVE;
    CHECK_INT(reply_to(&q, 0, &r), NESTED_FULL);
    /* It has not asked yet. */
    CHECK(reach());
    inner_turn(f.in);
    CHECK(recv(f.fd, &r, sizeof(r), 0) == (ssize_t)sizeof(r) && r.type == NESTED_FULL);
    CHECK(is_closed());
    CHECK_INT(inner_count(f.in), 0);
    setrlimit(RLIMIT_NOFILE, &old);
}

/* Open n connections that prove nothing. */
static void open_silent(int *fds, int n)
{
    for (int i = 0; i < n && CHECK(reach()); i++) {
        inner_turn(f.in);
        fds[i] = f.fd;
        f.fd = -1;
    }
}

INNER_TEST(connections_that_prove_nothing_keep_no_inner_one_out)
{
    struct rlimit old, limit;
    int fds[520];
    getrlimit(RLIMIT_NOFILE, &old);
    limit = old;
    limit.rlim_cur = 2000;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    strcpy(q.key, KEY);
    q.mode = DLOCK_MODE_EXCLUSIVE;
    open_silent(fds, 520);
    CHECK_INT(reply_to(&q, 0, &r), NESTED_HELD);
    for (int i = 0; i < 520; i++)
        close(fds[i]);
    close(f.fd);
    f.fd = -1;
    for (int i = 0; i < 20; i++)
        inner_turn(f.in);
    /* The same where no descriptor is left for one more connection. */
    open_silent(fds, 5);
    limit.rlim_cur = (rlim_t)fds[4] + 8;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK_INT(reply_to(&q, 0, &r), NESTED_HELD);
    CHECK_INT(inner_count(f.in), 1);
    setrlimit(RLIMIT_NOFILE, &old);
    for (int i = 0; i < 5; i++)
        close(fds[i]);
}

UNIT_MAIN
