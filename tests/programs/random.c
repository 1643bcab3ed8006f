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

static struct thing at[MOST + 1]; /* the handles, and the set behind them */
static bool endless[MOST];        /* the handle's acquire waits without end */
static int owner[MOST];           /* of each URI: who holds its lock; -1: nobody */
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

static const char *name_of(int who)
{
    return who == n ? "set" : uri[who / PER_URI];
}

/* Handle or set number who has got its locks. */
static void took(int who)
{
    for (int u = 0; u < uris; u++) {
        if (who < n && u != who / PER_URI)
            continue;
        if (owner[u] >= 0 && owner[u] != who)
            FAIL("%s is held by %d and %d", uri[u], owner[u], who);
        owner[u] = who;
    }
}

static void gave(int who)
{
    for (int u = 0; u < uris; u++)
        if (owner[u] == who)
            owner[u] = -1;
}

static void on_report(int who, const struct dlock_report *r)
{
    reports[r->type]++;
    if (r->type == DLOCK_REPORT_LOST)
        FAIL("%s lost: %s", name_of(who), r->error.msg);
    if (r->type == DLOCK_REPORT_FAILED && who < n && !dlock_error_retryable(r->error.code) &&
        r->error.code != DLOCK_EUSAGE) /* no records there */
        FAIL("%s failed: %s", name_of(who), r->error.msg);
    if (r->type == DLOCK_REPORT_ACQUIRED)
        took(who);
    if (r->type == DLOCK_REPORT_RELEASED && who < n && r->how == DLOCK_RELEASE_NOT_OURS)
        FAIL("%s: not ours", name_of(who));
}

static void turn(int who)
{
    struct pollfd pfd[DLOCK_POLL_MAX];
    const struct dlock_report *r;
    int64_t wake;
    int most = below(3) ? 1000 : 1, got = 0;
    if (who == n || below(2)) {
        while (most-- > 0 && (r = dispatch(&at[who])))
            on_report(who, r);
        return;
    }
    int m = dlock_interest(at[who].lk, pfd, DLOCK_POLL_MAX, &wake);
    if (poll(pfd, (nfds_t)m, 0) > 0)
        got = m;
    while (most-- > 0 && (r = dlock_process(at[who].lk, pfd, got))) {
        got = 0;
        on_report(who, r);
    }
}

/* A call that the table of dlock.h allows in this state, or not. */
static void expect_code(const char *what, int who, int rc, bool allowed)
{
    if (allowed != (rc != DLOCK_EUSAGE))
        FAIL("%s on %d (%s): %s", what, who, name_of(who), dlock_error_name(rc));
}

static void ring(void)
{
    MUST(eventfd_write(fd, 1) == 0);
}

/* A random call; for a set, one of those in the first five groups. */
static void call(int who)
{
    const struct thing *t = &at[who];
    dlock *lk = t->lk;
    enum dlock_state is = state_of(t);
    bool idle = is == DLOCK_STATE_IDLE, held = is == DLOCK_STATE_HELD;
    int64_t until = dlock_now() + (below(3) - 1) * DLOCK_SEC + below(1000) * DLOCK_MSEC;
    int rc;
    eventfd_t none;
    if (below(lk ? 5 : 3) == 0)
        ring();
    switch (below(lk ? 14 : 6)) {
    case 0:
    case 1:
        rc = CALL(t, start_acquire, &err);
        expect_code("start_acquire", who, rc, idle);
        break;
    case 2:
        gave(who);
        CODE(CALL(t, start_release, until, &err), 0);
        IS(state_of(t), DLOCK_STATE_RELEASING);
        break;
    case 3:
        if (lk && endless[who])
            ring();
        rc = CALL(t, acquire, &err);
        expect_code("acquire", who, rc, idle);
        if (rc == 0)
            took(who);
        if (idle)
            IS(state_of(t), rc == 0 ? DLOCK_STATE_HELD : DLOCK_STATE_IDLE);
        break;
    case 4:
        rc = CALL(t, keep, below(2) ? 0 : dlock_now() + below(30) * DLOCK_MSEC, &err);
        expect_code("keep", who, rc, held || is == DLOCK_STATE_LOST);
        if (rc == DLOCK_ELOST)
            FAIL("%s lost: %s", name_of(who), err.msg);
        break;
    case 5:
        gave(who);
        rc = CALL(t, release, !lk || below(3) ? 2 * DLOCK_SEC : 0, &err);
        if (rc != 0 && rc != DLOCK_EUNAVAIL)
            FAIL("release: %s", err.msg);
        IS(state_of(t), DLOCK_STATE_IDLE);
        break;
    case 6:
    case 7:
        rc = dlock_start_acquire(lk, &err);
        expect_code("start_acquire", who, rc, idle);
        break;
    case 8:
        rc = dlock_start_status(lk, &err);
        expect_code("start_status", who, rc, idle);
        break;
    case 9:
        rc = dlock_start_forget(lk, "00000000000000000000000000000000", &err);
        expect_code("start_forget", who, rc, idle);
        break;
    case 10:
        expect_code("note", who, dlock_note_result(lk, true, 0, &err), held);
        break;
    case 11:
        gave(who);
        dlock_close(lk);
        at[who].lk = open_one(who);
        break;
    case 12:
        MUST(dlock_poll_fd(lk, &err) >= 0);
        break;
    case 13:
        MUST(held || is == DLOCK_STATE_ACQUIRING || dlock_time_left(lk) == 0);
        break;
    }
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
        at[n].lk = open_one(n);
    for (int u = 0; u < uris; u++) {
        struct dlock_options o;
        dlock_options_init(&o, sizeof o);
        o.ttl_ns = 5 * DLOCK_SEC;
        o.cancel_fd = u == 0 ? fd : -1;
        owner[u] = -1;
        CODE(dlock_open(&of_set[u], uri[u], &o, &err), 0);
    }
    CODE(dlock_set_open(&at[n].set, of_set, uris, DLOCK_SEC, &err), 0);
    alarm(600);
    for (int c = 0; c < calls; c++) {
        call(below(8) == 0 ? n : below(n));
        for (int i = 0; i <= n; i++)
            turn(i);
        struct timespec t = {0, below(4) * 1000000};
        if (below(3) == 0)
            nanosleep(&t, NULL);
    }
    for (int i = 0; i <= n; i++) {
        int rc = CALL(&at[i], release, 5 * DLOCK_SEC, &err);
        if (i < n && rc != 0 && rc != DLOCK_EUNAVAIL)
            FAIL("the last release: %s", err.msg);
        close_thing(&at[i]);
    }
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
