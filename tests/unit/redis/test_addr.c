/*
 * test_addr.c - an address that a server names: "host:port" is split; numbers at once, names by the
 * helper thread.
 */
#include "unit.h"

#include "backends/redis/addr.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

TEST(splits_host_and_port)
{
    static const struct {
        const char *text, *host;
        int port; /* 0: refused */
    } t[] = {
        {"10.0.0.1:6379", "10.0.0.1", 6379},
        {"::1:7000", "::1", 7000},
        {"[::1]:7000", "::1", 7000},
        {"fe80::1%eth0:7000", "fe80::1%eth0", 7000},
        {"db-1.my_net.example:65535", "db-1.my_net.example", 65535},
        {":6379", "", 6379},
        {"host", "", 0},
        {"host:", "", 0},
        {"host:0", "", 0},
        {"host:65536", "", 0},
        {"host:18446744073709551617", "", 0},
        {"host:63x", "", 0},
        {"ho st:6379", "", 0},
        {"h\033[2J:6379", "", 0},
        {"", "", 0},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        struct redis_named to;
        bool good = redis_addr_split(t[i].text, strlen(t[i].text), &to);
        if (!CHECK_INT(good, t[i].port > 0))
            printf("# '%s'\n", t[i].text);
        if (!good)
            continue;
        CHECK_STR(to.host, t[i].host);
        CHECK_INT(to.port, t[i].port);
    }
    char host[REDIS_ADDR_HOST], longest[REDIS_ADDR_HOST + 1];
    memset(longest, 'a', sizeof(longest));
    CHECK(redis_addr_host(longest, REDIS_ADDR_HOST - 1, host));
    CHECK(!redis_addr_host(longest, REDIS_ADDR_HOST, host));
    CHECK(!redis_addr_host("a\0b", 3, host));
}

TEST(a_number_is_found_at_once)
{
    struct redis_addr a;
    struct dlock_error err = {0};
    REQUIRE_INT(redis_addr_start(&a, &(struct redis_named){"127.0.0.2", 6380}, &err), 1);
    CHECK_INT(a.npeers, 1);
    CHECK_INT(redis_addr_fd(&a), -1);
    const struct sockaddr_in *in = (const struct sockaddr_in *)&a.peers[0].addr;
    CHECK_INT(ntohs(in->sin_port), 6380);
    CHECK_INT(ntohl(in->sin_addr.s_addr), INADDR_LOOPBACK + 1);
    CHECK_INT(redis_addr_result(&a, &err), 1);
    redis_addr_done(&a);
    redis_addr_done(&a);
    REQUIRE_INT(redis_addr_start(&a, &(struct redis_named){"::1", 6380}, &err), 1);
    CHECK_INT(a.peers[0].addr.ss_family, AF_INET6);
    redis_addr_done(&a);
    CHECK_INT(redis_addr_start(&a, &(struct redis_named){"", 6380}, &err), DLOCK_EPROTO);
    CHECK_INT(redis_addr_start(&a, &(struct redis_named){"h", 0}, &err), DLOCK_EPROTO);
}

/* Wait for the result of the look-up; -1000: none. */
static int finish(struct redis_addr *a, int rc, struct dlock_error *err)
{
    while (rc == 0) {
        struct pollfd p = {.fd = redis_addr_fd(a), .events = POLLIN};
        if (p.fd >= 0 && poll(&p, 1, 30000) <= 0)
            return -1000;
        rc = redis_addr_result(a, err);
    }
    return rc;
}

TEST(a_name_is_found_later)
{
    struct redis_addr a;
    struct dlock_error err = {0};
    CHECK_INT(
        finish(&a, redis_addr_start(&a, &(struct redis_named){"localhost", 6379}, &err), &err), 1);
    CHECK(a.npeers > 0);
    redis_addr_done(&a);
    int rc = redis_addr_start(&a, &(struct redis_named){"no-such-host.invalid", 6379}, &err);
    CHECK(rc == 0); /* not in the caller's thread */
    CHECK_INT(finish(&a, rc, &err), DLOCK_EUNAVAIL);
    CHECK_HAS(err.msg, "no-such-host.invalid");
    redis_addr_done(&a);
    CHECK_INT(redis_addr_start(&a, &(struct redis_named){"also-none.invalid", 6379}, &err), 0);
    redis_addr_done(&a); /* while the look-up is under way */
    CHECK_INT(redis_addr_fd(&a), -1);
}

UNIT_MAIN
