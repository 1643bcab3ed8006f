/*
 * Look-ups: numeric addresses at once, names in threads; no call blocks.
 * tags: thread
 */
#include "unit.h"
#include "uri.h"
#include "util.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

static struct dlock_resolver *r; /* of the URI that was started last */
static struct dlock_peer *peers;
static int n;
static struct dlock_error err;

static void drop(void)
{
    free(peers);
    dlock_resolver_free(r);
    r = NULL;
    peers = NULL;
    n = 0;
}

static void start(const char *text)
{
    struct dlock_uri *uri = NULL;
    drop();
    err = (struct dlock_error){0};
    if (dlock_uri_parse(&uri, text, &err) < 0 || dlock_resolver_start(&r, uri, &err) < 0)
        CHECK_FAIL("%s: %s", text, err.msg);
    dlock_uri_free(uri); /* nothing of it may be needed later */
}

static int finish(void)
{
    struct pollfd p = {.fd = dlock_resolver_fd(r), .events = POLLIN};
    int rc;
    while ((rc = dlock_resolver_result(&r, false, &peers, &n, &err)) == 0)
        if (p.fd < 0 || poll(&p, 1, 30000) <= 0)
            return -1000;
    CHECK_NULL(r);
    return rc;
}

/* Some peers, as HOST:ADDRESS:PORT. */
static const char *show(int from, int to)
{
    static char buf[400];
    size_t at = 0;
    buf[0] = '\0';
    for (int i = from; i < to; i++) {
        char ip[INET6_ADDRSTRLEN] = "?";
        const struct sockaddr_in *a = (const struct sockaddr_in *)&peers[i].addr;
        const struct sockaddr_in6 *b = (const struct sockaddr_in6 *)&peers[i].addr;
        bool six = peers[i].addr.ss_family == AF_INET6;
        inet_ntop(peers[i].addr.ss_family, six ? (void *)&b->sin6_addr : (void *)&a->sin_addr, ip,
                  sizeof(ip));
        CHECK_INT(peers[i].len, six ? sizeof(*b) : sizeof(*a));
        at += (size_t)snprintf(buf + at, sizeof(buf) - at, "%s%d:%s:%u", i > from ? " " : "",
                               peers[i].host, ip, ntohs(six ? b->sin6_port : a->sin_port));
    }
    return buf;
}

TEST(addresses_and_sockets_need_no_thread)
{
    static const struct {
        const char *uri, *want;
    } rows[] = {
        {"redlock://10.0.0.1,[2001:db8::1]:7000,10.0.0.3:99#x",
         "0:10.0.0.1:6379 1:2001:db8::1:7000 2:10.0.0.3:99"},
        {"./file", ""},
        {"redis+unix:///run/redis.sock#x", ""},
        {"postgres:///db#x", ""},
        {"redis+unix://u:p@/run/redis.sock#x", ""},
        {"postgres://u@/db#x", ""},
        {"postgres://%2Frun%2Fpostgresql/db#x", ""},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        start(rows[i].uri);
        REQUIRE(r);
        CHECK_INT(dlock_resolver_fd(r), -1);
        CHECK_INT(finish(), 1);
        CHECK(n >= 0);
        CHECK_STR(show(0, n), rows[i].want);
    }
}

TEST(a_name)
{
    start("redis://localhost:1234#x");
    REQUIRE(r);
    CHECK(dlock_resolver_fd(r) >= 0);
    CHECK(fcntl(dlock_resolver_fd(r), F_GETFD) & FD_CLOEXEC);
    CHECK_INT(finish(), 1);
    CHECK(n >= 1);
    for (int i = 0; i < n; i++)
        if (strcmp(show(i, i + 1), "0:127.0.0.1:1234") != 0)
            CHECK_STR(show(i, i + 1), "0:::1:1234");
}

TEST(unknown_names)
{
    start("redis://no-such-host.invalid#x");
    REQUIRE(r);
    CHECK_INT(finish(), DLOCK_EUNAVAIL);
    CHECK_INT(err.code, DLOCK_EUNAVAIL);
    CHECK_HAS(err.msg, "cannot resolve no-such-host.invalid: ");
    CHECK_NULL(peers);
    CHECK_INT(n, 0);
}

/* One unknown name of several is no failure; the addresses of the others keep their host index. */
TEST(some_unknown)
{
    start("redlock://no-such-host.invalid,10.0.0.2,localhost#x");
    REQUIRE(r);
    CHECK_INT(finish(), 1);
    CHECK(n >= 2);
    CHECK_INT(peers[0].host, 1);
    for (int i = 1; i < n; i++)
        CHECK_INT(peers[i].host, 2);
}

/*
 * Results before the last look-up has ended: numeric addresses are there at once. A host without a
 * new address keeps its known addresses, also when its look-up has failed.
 */
TEST(partly)
{
    static struct dlock_peer old[2] = {{.host = 0, .len = sizeof(struct sockaddr_in)}, {.host = 2}};
    old[0].addr.ss_family = AF_INET;
    for (int ended = 0; ended < 2; ended++) {
        start("redlock://no-such-host.invalid,10.0.0.2,[::1]#x");
        REQUIRE(r);
        peers = old;
        n = 2;
        REQUIRE_INT(ended ? finish() : dlock_resolver_result(&r, true, &peers, &n, &err), 1);
        CHECK_STR(show(0, n), "0:0.0.0.0:0 1:10.0.0.2:6379 2:::1:6379");
    }
    start("redlock://a.invalid,b.invalid#x");
    REQUIRE(r);
    int rc = dlock_resolver_result(&r, true, &peers, &n, &err);
    CHECK_INT(rc == 0 ? finish() : rc, DLOCK_EUNAVAIL);
    CHECK_HAS(err.msg, "a.invalid");
}

/* Count event descriptors only: a look-up that goes on has sockets in the C library. */
static int count_eventfds(void)
{
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;
    char target[64];
    int count = 0;
    while (d && (e = readdir(d))) {
        ssize_t len = readlinkat(dirfd(d), e->d_name, target, sizeof(target) - 1);
        target[len > 0 ? len : 0] = '\0';
        count += strstr(target, "eventfd") != NULL;
    }
    if (d)
        closedir(d);
    return count;
}

/* Freed while threads run: no wait, no descriptor left, no use of freed memory. */
TEST(abandoned)
{
    drop();
    int before = count_eventfds();
    int64_t t = dlock_now();
    for (int i = 0; i < 20; i++)
        start("redlock://localhost,no-such-host.invalid#x");
    drop();
    CHECK(dlock_now() - t < unit_bound(5 * DLOCK_SEC));
    CHECK_INT(count_eventfds(), before);
    dlock_resolver_free(NULL);
}

/* The caller's mask does not change, and no helper thread gets a signal of the process. */
TEST(signals_stay_ours)
{
    sigset_t before, after, mine, pending;
    sigemptyset(&mine);
    sigaddset(&mine, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &mine, &before);
    start("redis://localhost#x");
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    CHECK_INT(sigismember(&after, SIGUSR1), 1);
    CHECK_INT(sigismember(&after, SIGTERM), 0);
    kill(getpid(), SIGUSR1); /* would end the program in a thread that does not block it */
    sigpending(&pending);
    CHECK_INT(sigismember(&pending, SIGUSR1), 1);
    sigwaitinfo(&mine, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    drop();
}

/* The last test: a leak checker reports the memory of a running thread as a leak. */
TEST(threads_end)
{
#ifdef __SANITIZE_THREAD__
    return; /* has a thread of its own */
#endif
    n = 2;
    for (int i = 0; i < 300 && n > 1; i++) {
        DIR *d = opendir("/proc/self/task");
        struct dirent *e;
        REQUIRE(d);
        for (n = 0; (e = readdir(d));)
            n += e->d_name[0] != '.';
        closedir(d);
        if (n > 1)
            poll(NULL, 0, 100);
    }
    if (n > 1)
        puts("# the name server is silent: a look-up is still under way, and left behind");
}

UNIT_MAIN
