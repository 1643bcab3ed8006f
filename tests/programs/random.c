/*
 * random.c - calls at random moments on one handle after the other: no crash, no leak, no hang, and
 * the state as the table of dlock.h says.
 *
 *     random SEED CALLS URI...
 *
 * Several handles for each URI compete for its lock, and some of them are sets. What the table says
 * of a call is compared with what it does; who holds a lock is counted: one at a time. At the end
 * all is released, and the locks are free. Not a part of the suite: it is for hours of its own,
 * under the sanitizers.
 */
#include "lib.h"

#include <sys/eventfd.h>
#include <time.h>

#define PER_URI 3
#define MOST 16

static dlock *lk[MOST];
static dlock_set *set;
static bool endless[MOST]; /* its acquire waits without end */
static int
    owner[MOST]; /* of each URI: the handle that believes to hold it; -1: none; MOST: the set */
static int n, uris, fd, reports[32];
static char **uri;

static int below(int end)
{
    return (int)(random() % end);
}

static dlock *open_one(int i)
{
    struct dlock_options o;
    dlock *d;
    dlock_options_init(&o, sizeof o);
    o.ttl_ns = (4 + below(3)) * DLOCK_SEC;
    o.wait_ns = below(3) ? below(400) * DLOCK_MSEC : DLOCK_NEVER;
    endless[i] = o.wait_ns == DLOCK_NEVER;
    o.retry = below(2);
    o.cancel_fd = fd;
    o.min_hold_ns = below(4) ? 0 : below(300) * DLOCK_MSEC;
    CODE(dlock_open(&d, uri[i / PER_URI], &o, &err), 0);
    if (below(2))
        MUST(dlock_poll_fd(d, &err) >= 0);
    return d;
}

static void took(int u, int who)
{
    if (owner[u] >= 0 && owner[u] != who)
        FAIL("%s is held by %d and %d", uri[u], owner[u], who);
    owner[u] = who;
}

static void gave(int u, int who)
{
    if (owner[u] == who)
        owner[u] = -1;
}

static void on_report(int i, const struct dlock_report *r)
{
    reports[r->type]++;
    if (r->type == DLOCK_REPORT_LOST)
        FAIL("%s lost: %s", uri[i / PER_URI], r->error.msg);
    if (r->type == DLOCK_REPORT_FAILED && !dlock_error_retryable(r->error.code) &&
        r->error.code != DLOCK_EUSAGE) /* no records there */
        FAIL("%s failed: %s", uri[i / PER_URI], r->error.msg);
    if (r->type == DLOCK_REPORT_ACQUIRED)
        took(i / PER_URI, i);
    if (r->type == DLOCK_REPORT_RELEASED && r->how == DLOCK_RELEASE_NOT_OURS)
        FAIL("%s: not ours", uri[i / PER_URI]);
}

static void turn(int i)
{
    struct pollfd pfd[DLOCK_POLL_MAX];
    const struct dlock_report *r;
    int64_t wake;
    int most = below(3) ? 1000 : 1, got = 0;
    if (below(2)) {
        while (most-- > 0 && (r = dlock_dispatch(lk[i])))
            on_report(i, r);
        return;
    }
    int m = dlock_interest(lk[i], pfd, DLOCK_POLL_MAX, &wake);
    if (poll(pfd, (nfds_t)m, 0) > 0)
        got = m;
    while (most-- > 0 && (r = dlock_process(lk[i], pfd, got))) {
        got = 0;
        on_report(i, r);
    }
}

static void set_report(const struct dlock_report *r)
{
    reports[r->type]++;
    if (r->type == DLOCK_REPORT_LOST)
        FAIL("set lost: %s", r->error.msg);
    if (r->type == DLOCK_REPORT_ACQUIRED)
        for (int u = 0; u < uris; u++)
            took(u, MOST);
}

static void set_turn(void)
{
    const struct dlock_report *r;
    int most = below(3) ? 1000 : 1;
    while (most-- > 0 && (r = dlock_set_dispatch(set)))
        set_report(r);
}

static void all_turn(void)
{
    for (int i = 0; i < n; i++)
        turn(i);
    set_turn();
}

/* What the table says of calls that change the state: 1 allowed. */
static void expect_code(const char *what, int i, int rc, bool allowed)
{
    if (allowed != (rc != DLOCK_EUSAGE))
        FAIL("%s on %d (%s): %s", what, i, uri[i / PER_URI], dlock_error_name(rc));
}

static void call(int i)
{
    enum dlock_state is = dlock_state(lk[i]);
    int u = i / PER_URI, rc;
    bool idle = is == DLOCK_STATE_IDLE;
    if (below(5) == 0)
        MUST(eventfd_write(fd, 1) == 0);
    switch (below(14)) {
    case 0:
    case 1:
    case 2:
        rc = dlock_start_acquire(lk[i], &err);
        expect_code("start_acquire", i, rc, idle);
        break;
    case 3:
        rc = dlock_start_status(lk[i], &err);
        expect_code("start_status", i, rc, idle);
        break;
    case 4:
        rc = dlock_start_forget(lk[i], "00000000000000000000000000000000", &err);
        expect_code("start_forget", i, rc, idle);
        break;
    case 5:
    case 6:
        gave(u, i);
        CODE(dlock_start_release(
                 lk[i], dlock_now() + (below(3) - 1) * DLOCK_SEC + below(1000) * DLOCK_MSEC, &err),
             0);
        IS(dlock_state(lk[i]), DLOCK_STATE_RELEASING);
        break;
    case 7:
        if (endless[i])
            MUST(eventfd_write(fd, 1) == 0);
        rc = dlock_acquire(lk[i], &err);
        expect_code("acquire", i, rc, idle);
        if (rc == 0)
            took(u, i);
        if (idle)
            IS(dlock_state(lk[i]), rc == 0 ? DLOCK_STATE_HELD : DLOCK_STATE_IDLE);
        break;
    case 8:
        rc = dlock_keep(lk[i], below(2) ? 0 : dlock_now() + below(30) * DLOCK_MSEC, &err);
        expect_code("keep", i, rc, is == DLOCK_STATE_HELD || is == DLOCK_STATE_LOST);
        if (rc == DLOCK_ELOST)
            FAIL("lost: %s", err.msg);
        break;
    case 9:
        gave(u, i);
        rc = dlock_release(lk[i], below(3) ? 2 * DLOCK_SEC : 0, &err);
        if (rc != 0 && rc != DLOCK_EUNAVAIL)
            FAIL("release: %s", err.msg);
        IS(dlock_state(lk[i]), DLOCK_STATE_IDLE);
        break;
    case 10:
        expect_code("note", i, dlock_note_result(lk[i], true, 0, &err), is == DLOCK_STATE_HELD);
        break;
    case 11:
        gave(u, i);
        dlock_close(lk[i]);
        lk[i] = open_one(i);
        break;
    case 12:
        MUST(dlock_poll_fd(lk[i], &err) >= 0);
        break;
    case 13:
        MUST((is == DLOCK_STATE_HELD || is == DLOCK_STATE_ACQUIRING) ||
             dlock_time_left(lk[i]) == 0);
        break;
    }
    eventfd_t none;
    (void)eventfd_read(fd, &none);
}

static void set_call(void)
{
    enum dlock_state is = dlock_set_state(set);
    bool idle = is == DLOCK_STATE_IDLE;
    int rc;
    if (below(3) == 0)
        MUST(eventfd_write(fd, 1) == 0);
    switch (below(6)) {
    case 0:
    case 1:
        rc = dlock_set_start_acquire(set, &err);
        if (idle != (rc == 0))
            FAIL("set acquire: %s", err.msg);
        break;
    case 2:
        for (int u = 0; u < uris; u++)
            gave(u, MOST);
        CODE(dlock_set_start_release(set, dlock_now() + below(2000) * DLOCK_MSEC, &err), 0);
        IS(dlock_set_state(set), DLOCK_STATE_RELEASING);
        break;
    case 3:
        rc = dlock_set_acquire(set, &err);
        if (rc == 0)
            for (int u = 0; u < uris; u++)
                took(u, MOST);
        if (idle)
            IS(dlock_set_state(set), rc == 0 ? DLOCK_STATE_HELD : DLOCK_STATE_IDLE);
        else
            IS(rc, DLOCK_EUSAGE);
        break;
    case 4:
        rc = dlock_set_keep(set, 0, &err);
        if ((rc == DLOCK_EUSAGE) != (is != DLOCK_STATE_HELD))
            FAIL("set keep in %d: %s", is, dlock_error_name(rc));
        break;
    case 5:
        for (int u = 0; u < uris; u++)
            gave(u, MOST);
        rc = dlock_set_release(set, 2 * DLOCK_SEC, &err);
        if (rc != 0 && rc != DLOCK_EUNAVAIL)
            FAIL("set release: %s", err.msg);
        IS(dlock_set_state(set), DLOCK_STATE_IDLE);
        break;
    }
    eventfd_t none;
    (void)eventfd_read(fd, &none);
}

int main(int argc, char **argv)
{
    MUST(argc >= 4 && (argc - 3) * PER_URI <= MOST);
    dlock *of_set[MOST];
    int calls = atoi(argv[2]);
    srandom((unsigned)atoi(argv[1]));
    uri = argv + 3;
    uris = argc - 3;
    fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (n = 0; n < uris * PER_URI; n++)
        lk[n] = open_one(n);
    for (int u = 0; u < uris; u++) {
        struct dlock_options o;
        dlock_options_init(&o, sizeof o);
        o.ttl_ns = 5 * DLOCK_SEC;
        o.cancel_fd = u == 0 ? fd : -1;
        owner[u] = -1;
        CODE(dlock_open(&of_set[u], uri[u], &o, &err), 0);
    }
    CODE(dlock_set_open(&set, of_set, uris, DLOCK_SEC, &err), 0);
    alarm(600);
    for (int c = 0; c < calls; c++) {
        if (below(8) == 0) {
            set_call();
        } else {
            call(below(n));
        }
        all_turn();
        struct timespec t = {0, below(4) * 1000000};
        if (below(3) == 0)
            nanosleep(&t, NULL);
    }
    for (int i = 0; i < n; i++) {
        int rc = dlock_release(lk[i], 5 * DLOCK_SEC, &err);
        if (rc != 0 && rc != DLOCK_EUNAVAIL)
            FAIL("the last release: %s", err.msg);
        dlock_close(lk[i]);
    }
    (void)dlock_set_release(set, 5 * DLOCK_SEC, NULL);
    dlock_set_close(set);
    for (int u = 0; u < uris; u++) {
        dlock *d = open_lock(uri[u], 3 * DLOCK_SEC, 8 * DLOCK_SEC);
        CODE(dlock_acquire(d, &err), 0);
        CODE(dlock_release(d, 5 * DLOCK_SEC, &err), 0);
        dlock_close(d);
    }
    for (int i = 0; i <= DLOCK_REPORT_FAILED; i++)
        printf("%d:%d ", i, reports[i]);
    printf("\n");
    close(fd);
    return 0;
}
