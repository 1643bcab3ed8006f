/*
 * test_long_hold.c - a hold of 17 days: 200 000 renewals, decided by the lease and done by the
 * Redis backend, with a clock that this test turns. Nothing grows.
 */
#include "unit.h"

#include "backend.h"
#include "lease.h"
#include "scripted.h"
#include "uri.h"
#include "util.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>

extern const struct dlock_backend dlock_backend_redis;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RENEWALS 50000
#else
#define RENEWALS 200000
#endif
#define HANG_UP_EVERY 10000 /* renewals: then the server closes the connection, without an answer */

#define GRANTED "*5\r\n$7\r\ngranted\r\n$2\r\n17\r\n:30000\r\n:0\r\n$0\r\n\r\n"
#define OURS "*2\r\n:1\r\n$-1\r\n"
#define TTL (30 * DLOCK_SEC)

static int64_t turned; /* the time of both clocks */
#define TURNED ((struct dlock_clocks){.boot = turned, .raw = turned})

static int64_t the_time(void *ctx)
{
    (void)ctx;
    return turned;
}

static int no_random(void *ctx, void *buf, size_t len)
{
    (void)ctx;
    memset(buf, 7, len);
    return 0;
}

static const struct dlock_env env = {.now = the_time, .random = no_random};

static const struct dlock_hold no_hold;

struct hold {
    struct server s;
    struct dlock_uri *uri;
    struct dlock_spec spec;
    struct dlock_identity identity;
    struct dlock_be *be;
    struct lease lease;
    int hang_ups;
};

/*
 * Answer the commands that have come, in their order: an EVAL with text (NULL: hang up instead),
 * others with a refusal. False: no EVAL has come.
 */
static bool serve(struct server *s, const char *text)
{
    static const char refusal[] = "-NOPERM no\r\n";
    bool eval = false;
    s->len = 0;
    server_step(s);
    s->got[s->len] = '\0';
    for (const char *p = s->got; (p = strchr(p, '*')) != NULL; p++) {
        if (p != s->got && p[-1] != '\n')
            continue;
        const char *word = strchr(p, '$');
        word = word ? strchr(word, '\n') : NULL;
        if (word == NULL)
            continue;
        if (strncmp(word, "\nEVAL", 5) != 0) {
            server_say(s, refusal, strlen(refusal));
            continue;
        }
        eval = true;
        if (text != NULL) {
            server_say(s, text, strlen(text));
        } else {
            close(s->cfd);
            s->cfd = -1;
        }
    }
    return eval;
}

/* Drive it until there is an event that concerns the lease. */
static bool drive(struct hold *h, const char *text, struct dlock_event *ev)
{
    const struct dlock_backend *t = &dlock_backend_redis;
    bool said = false;
    for (int turn = 0; turn < 1000; turn++) {
        struct pollfd p[8];
        int64_t wake = DLOCK_NEVER;
        int n = t->interest(h->be, p, 8, &wake);
        poll(p, (nfds_t)n, turn < 10 ? 0 : 1);
        for (; t->process(h->be, p, n, ev) == 1; n = 0)
            if (ev->type != EV_NOTICE && ev->type != EV_WAITING)
                return true;
        said = said || serve(&h->s, text);
    }
    return CHECK_FAIL("no event; the server was %s", said ? "asked" : "not asked");
}

static bool hold_open(struct hold *h)
{
    const struct lease_config cfg = {.ttl = TTL, .grace = lease_default_grace(TTL)};
    struct dlock_event ev;
    struct dlock_error err = {0};
    memset(h, 0, sizeof *h);
    turned = DLOCK_SEC;
    if (!server_open(&h->s) || dlock_uri_parse(&h->uri, "redis://h:1#n", &err) != 0)
        return CHECK_FAIL("%s", err.msg);
    dlock_identity_init(&h->identity, "unit", "");
    h->spec = (struct dlock_spec){
        .env = &env,
        .uri = h->uri,
        .peers = &h->s.peer,
        .npeers = 1,
        .ttl = TTL,
        .connect_timeout = 5 * DLOCK_SEC,
        .op_timeout = 4 * DLOCK_SEC,
        .identity = &h->identity,
        .hold = &no_hold,
    };
    if (dlock_backend_redis.open(&h->be, &h->spec, &err) != 0)
        return CHECK_FAIL("%s", err.msg);
    lease_acquire(&h->lease, &cfg);
    dlock_backend_redis.acquire(h->be, false);
    return drive(h, GRANTED, &ev) && CHECK_INT(ev.type, EV_GRANTED) &&
           CHECK_INT(lease_step(&h->lease, TURNED, &ev), LEASE_START);
}

/* The next renewal of the lease, with the server's answer; the deadline moves. */
static bool one_renewal(struct hold *h, bool hang_up)
{
    struct dlock_event ev;
    int64_t deadline = h->lease.times.deadline, due = lease_wake(&h->lease, TURNED);
    if (!CHECK(due > turned && due < h->lease.times.term_at))
        return false;
    turned = due;
    if (!CHECK_INT(lease_step(&h->lease, TURNED, NULL), LEASE_RENEW))
        return false;
    dlock_backend_redis.renew(h->be);
    if (!drive(h, hang_up ? NULL : OURS, &ev))
        return false;
    if (hang_up) {
        h->hang_ups++;
        return CHECK_INT(ev.type, EV_UNCLEAR) &&
               CHECK_INT(lease_step(&h->lease, TURNED, &ev), LEASE_NOTHING);
    }
    return CHECK_INT(ev.type, EV_RENEWED) &&
           CHECK_INT(lease_step(&h->lease, TURNED, &ev), LEASE_EXTEND) &&
           CHECK(h->lease.times.deadline > deadline);
}

static int next_fd(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(fd);
    return fd;
}

TEST(two_weeks_of_renewals)
{
    struct hold h;
    size_t used = 0;
    int fd = -1;
    REQUIRE(hold_open(&h));
    const int renewals = unit_emulated() ? RENEWALS / 10 : RENEWALS;
    for (int i = 1; i <= renewals; i++) {
        bool hang_up = i % HANG_UP_EVERY == 0;
        if (!one_renewal(&h, hang_up)) {
            CHECK_FAIL("renewal %d", i);
            return;
        }
        if (i == HANG_UP_EVERY + 100) { /* every kind of event has happened once */
            used = mallinfo2().uordblks;
            fd = next_fd();
        }
    }
    CHECK_INT(h.hang_ups, renewals / HANG_UP_EVERY);
    CHECK(one_renewal(&h, false)); /* connected again */
    if (!CHECK(mallinfo2().uordblks <= used + 16384))
        printf("# %zu bytes in use, %zu in the beginning\n", mallinfo2().uordblks, used);
    CHECK_INT(next_fd(), fd);
    /* Days of renewals every 7.7 s. */
    CHECK(turned > renewals * (7 * DLOCK_SEC));
    CHECK_INT(h.s.accepted, 1 + h.hang_ups);
    dlock_backend_redis.close(h.be);
    dlock_uri_free(h.uri);
    server_close(&h.s);
}

UNIT_MAIN
