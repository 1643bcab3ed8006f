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

static struct dlock_resolver *start(const char *text)
{
    struct dlock_resolver *r = NULL;
    struct dlock_uri *uri = NULL;
    struct dlock_error err = {0};

    if (dlock_uri_parse(&uri, text, &err) < 0 || dlock_resolver_start(&r, uri, &err) < 0)
        CHECK_FAIL("%s: %s", text, err.msg);
    dlock_uri_free(uri); /* nothing of it may be needed later */
    return r;
}

static int finish(struct dlock_resolver *r, struct dlock_peer **peers, int *n,
                  struct dlock_error *err)
{
    struct pollfd p = {.fd = dlock_resolver_fd(r), .events = POLLIN};
    int rc;

    while ((rc = dlock_resolver_result(r, peers, n, err)) == 0)
        if (p.fd < 0 || poll(&p, 1, 30000) <= 0)
            return -1000;
    return rc;
}

static const char *show(const struct dlock_peer *p, char *buf, size_t size)
{
    char ip[INET6_ADDRSTRLEN] = "?";
    unsigned port = 0;

    if (p->addr.ss_family == AF_INET) {
        const struct sockaddr_in *a = (const struct sockaddr_in *)&p->addr;
        inet_ntop(AF_INET, &a->sin_addr, ip, sizeof(ip));
        port = ntohs(a->sin_port);
    } else if (p->addr.ss_family == AF_INET6) {
        const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)&p->addr;
        inet_ntop(AF_INET6, &a->sin6_addr, ip, sizeof(ip));
        port = ntohs(a->sin6_port);
    }
    snprintf(buf, size, "%d:%s:%u", p->host, ip, port);
    return buf;
}

TEST(numbers_need_no_thread)
{
    struct dlock_resolver *r = start("redlock://10.0.0.1,[2001:db8::1]:7000,10.0.0.3:99#x");
    struct dlock_peer *peers = NULL;
    int n = 0;
    char buf[80];

    REQUIRE(r);
    CHECK_INT(dlock_resolver_fd(r), -1);
    CHECK_INT(finish(r, &peers, &n, NULL), 1);
    REQUIRE_INT(n, 3);
    CHECK_STR(show(&peers[0], buf, sizeof(buf)), "0:10.0.0.1:6379");
    CHECK_STR(show(&peers[1], buf, sizeof(buf)), "1:2001:db8::1:7000");
    CHECK_STR(show(&peers[2], buf, sizeof(buf)), "2:10.0.0.3:99");
    CHECK_INT(peers[0].len, sizeof(struct sockaddr_in));
    CHECK_INT(peers[1].len, sizeof(struct sockaddr_in6));
    free(peers);
    dlock_resolver_free(r);
}

TEST(nothing_to_resolve)
{
    static const char *const none[] = {"./file",
                                       "redis+unix:///run/redis.sock#x",
                                       "postgres:///db#x",
                                       "redis+unix://u:p@/run/redis.sock#x",
                                       "postgres://u@/db#x",
                                       "postgres://%2Frun%2Fpostgresql/db#x"};

    for (size_t i = 0; i < DLOCK_LEN(none); i++) {
        struct dlock_resolver *r = start(none[i]);
        struct dlock_peer *peers = NULL;
        int n = -1;

        REQUIRE(r);
        CHECK_INT(dlock_resolver_fd(r), -1);
        CHECK_INT(finish(r, &peers, &n, NULL), 1);
        CHECK_INT(n, 0);
        free(peers);
        dlock_resolver_free(r);
    }
}

TEST(a_name)
{
    struct dlock_resolver *r = start("redis://localhost:1234#x");
    struct dlock_peer *peers = NULL;
    int n = 0;
    char buf[80];

    REQUIRE(r);
    CHECK(dlock_resolver_fd(r) >= 0);
    CHECK(fcntl(dlock_resolver_fd(r), F_GETFD) & FD_CLOEXEC);
    CHECK_INT(finish(r, &peers, &n, NULL), 1);
    CHECK(n >= 1);
    for (int i = 0; i < n; i++) {
        show(&peers[i], buf, sizeof(buf));
        CHECK(strcmp(buf, "0:127.0.0.1:1234") == 0 || strcmp(buf, "0:::1:1234") == 0);
    }
    free(peers);
    /* A second call returns the same. */
    CHECK_INT(dlock_resolver_result(r, &peers, &n, NULL), 1);
    free(peers);
    dlock_resolver_free(r);
}

TEST(an_unknown_name)
{
    struct dlock_resolver *r = start("redis://no-such-host.invalid#x");
    struct dlock_peer *peers = NULL;
    struct dlock_error err = {0};
    int n = -1;

    REQUIRE(r);
    CHECK_INT(finish(r, &peers, &n, &err), DLOCK_EUNAVAIL);
    CHECK_INT(err.code, DLOCK_EUNAVAIL);
    CHECK_HAS(err.msg, "cannot resolve no-such-host.invalid: ");
    CHECK_NULL(peers);
    CHECK_INT(n, -1);
    dlock_resolver_free(r);
}

/* One unknown name of several is no failure; the addresses of the others keep their host index. */
TEST(some_unknown)
{
    struct dlock_resolver *r = start("redlock://no-such-host.invalid,10.0.0.2,localhost#x");
    struct dlock_peer *peers = NULL;
    int n = 0;

    REQUIRE(r);
    CHECK_INT(finish(r, &peers, &n, NULL), 1);
    CHECK(n >= 2);
    CHECK_INT(peers[0].host, 1);
    for (int i = 1; i < n; i++)
        CHECK_INT(peers[i].host, 2);
    free(peers);
    dlock_resolver_free(r);
}

/* Results before the last look-up has ended: numeric addresses are there at once. */
TEST(so_far)
{
    struct dlock_resolver *r = start("redlock://no-such-host.invalid,10.0.0.2,[::1]#x");
    struct dlock_peer *peers = NULL;
    int n = 0;

    REQUIRE(r);
    CHECK_INT(dlock_resolver_so_far(r, &peers, &n), 1);
    REQUIRE_INT(n, 2);
    CHECK_INT(peers[0].host, 1);
    CHECK_INT(peers[1].host, 2);
    free(peers);
    /* The full result still has them. */
    CHECK_INT(finish(r, &peers, &n, NULL), 1);
    CHECK_INT(n, 2);
    free(peers);
    dlock_resolver_free(r);

    r = start("redlock://no-such-host.invalid,b.invalid#x");
    REQUIRE(r);
    CHECK_INT(dlock_resolver_so_far(r, &peers, &n), 0);
    CHECK_INT(finish(r, &peers, &n, NULL), DLOCK_EUNAVAIL);
    CHECK_INT(dlock_resolver_so_far(r, &peers, &n), 0);
    dlock_resolver_free(r);
}

TEST(all_unknown)
{
    struct dlock_resolver *r = start("redlock://a.invalid,b.invalid#x");
    struct dlock_peer *peers = NULL;
    struct dlock_error err = {0};
    int n = 0;

    REQUIRE(r);
    CHECK_INT(finish(r, &peers, &n, &err), DLOCK_EUNAVAIL);
    CHECK_HAS(err.msg, "a.invalid");
    dlock_resolver_free(r);
}

/* Count event descriptors only: a look-up that goes on has sockets in the C library. */
static int count_eventfds(void)
{
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;
    char target[64];
    int n = 0;

    while (d && (e = readdir(d))) {
        ssize_t len = readlinkat(dirfd(d), e->d_name, target, sizeof(target) - 1);
        target[len > 0 ? len : 0] = '\0';
        n += strstr(target, "eventfd") != NULL;
    }
    if (d)
        closedir(d);
    return n;
}

/* Freed while threads run: no wait, no descriptor left, no use of freed memory. */
TEST(abandoned)
{
    int before = count_eventfds();
    int64_t t = dlock_now();

    for (int i = 0; i < 20; i++)
        dlock_resolver_free(start("redlock://localhost,no-such-host.invalid#x"));
    CHECK(dlock_now() - t < unit_bound(5 * DLOCK_SEC));
    CHECK_INT(count_eventfds(), before);
    dlock_resolver_free(NULL);
}

/* The caller's mask does not change, and no helper thread gets a signal of the process. */
TEST(signals_stay_ours)
{
    sigset_t before, after, mine, pending;
    struct dlock_resolver *r;

    sigemptyset(&mine);
    sigaddset(&mine, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &mine, &before);
    r = start("redis://localhost#x");
    pthread_sigmask(SIG_BLOCK, NULL, &after);
    CHECK_INT(sigismember(&after, SIGUSR1), 1);
    CHECK_INT(sigismember(&after, SIGTERM), 0);
    kill(getpid(), SIGUSR1); /* would end the program in a thread that does not block it */
    sigpending(&pending);
    CHECK_INT(sigismember(&pending, SIGUSR1), 1);
    sigwaitinfo(&mine, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    dlock_resolver_free(r);
}

/* The last test: a leak checker reports the memory of a running thread as a leak. */
TEST(threads_end)
{
#ifdef __SANITIZE_THREAD__
    return; /* has a thread of its own */
#endif
    int n = 2;

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
