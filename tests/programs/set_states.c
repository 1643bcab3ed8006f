/*
 * set_states.c - as states.c, for a set of two locks.
 *
 *     set_states URI URI [TAKE]
 *
 * TAKE is a shell command that takes the lock of the second URI away from its holder. In ACQUIRING the set holds the first
 * lock, and waits for the second, which is another handle's.
 */
#include "lib.h"

#include <sys/wait.h>

static char **uris;
static const char *take;
static dlock *holder;

static const char *const names[] = {"IDLE", "ACQUIRING", "ASKING", "HELD",
                                    "LOST", "RELEASING", "FOREIGN"};

/* As until_report(). */
static void until_set_report(dlock_set *s, enum dlock_report_type type)
{
    int64_t until = dlock_now() + 5 * DLOCK_SEC, wake_at;
    struct pollfd pfd[2 * DLOCK_POLL_MAX];
    int n = 0;
    for (;;) {
        const struct dlock_report *r;
        while ((r = dlock_set_process(s, pfd, n))) {
            n = 0;
            if (r->type == type)
                return;
        }
        int64_t now = dlock_now();
        if (now >= until)
            FAIL("no report %d in time", type);
        n = dlock_set_interest(s, pfd, 2 * DLOCK_POLL_MAX, &wake_at);
        wake_at = wake_at < until ? wake_at : until;
        if (poll(pfd, (nfds_t)n, wake_at <= now ? 0 : (int)((wake_at - now) / DLOCK_MSEC) + 1) <= 0)
            n = 0;
    }
}

static dlock_set *open_set(int64_t ttl)
{
    dlock *lk[2];
    dlock_set *s;
    for (int i = 0; i < 2; i++)
        lk[i] = open_lock(uris[i], ttl, 0);
    CODE(dlock_set_open(&s, lk, 2, DLOCK_NEVER, &err), 0);
    return s;
}

/* A set in that state. */
static dlock_set *in_state(enum dlock_state state)
{
    /* A loss is noticed with the next renewal. */
    dlock_set *s = open_set(state == DLOCK_STATE_LOST ? DLOCK_SEC : 3 * DLOCK_SEC);
    switch (state) {
    case DLOCK_STATE_ACQUIRING:
        holder = open_lock(uris[1], 30 * DLOCK_SEC, DLOCK_NEVER);
        CODE(dlock_acquire(holder, &err), 0);
        CODE(dlock_set_start_acquire(s, &err), 0);
        until_set_report(s, DLOCK_REPORT_WAITING);
        IS(dlock_state(dlock_set_at(s, 0)), DLOCK_STATE_HELD);
        break;
    case DLOCK_STATE_HELD:
    case DLOCK_STATE_FOREIGN:
        CODE(dlock_set_acquire(s, &err), 0);
        break;
    case DLOCK_STATE_LOST:
        CODE(dlock_set_acquire(s, &err), 0);
        IS(system(take), 0);
        until_set_report(s, DLOCK_REPORT_LOST);
        break;
    case DLOCK_STATE_RELEASING:
        CODE(dlock_set_acquire(s, &err), 0);
        CODE(dlock_set_start_release(s, dlock_now() + 5 * DLOCK_SEC, &err), 0);
        break;
    default:
        break;
    }
    if (state != DLOCK_STATE_FOREIGN)
        IS(dlock_set_state(s), state);
    return s;
}

/* -------------------------------------------------------------------- calls */

static int start_acquire(dlock_set *s)
{
    return dlock_set_start_acquire(s, &err);
}
static int start_release(dlock_set *s)
{
    return dlock_set_start_release(s, dlock_now() + 5 * DLOCK_SEC, &err);
}
static int acquire(dlock_set *s)
{
    return dlock_set_acquire(s, &err);
}
static int keep(dlock_set *s)
{
    return dlock_set_keep(s, dlock_now() + 30 * DLOCK_MSEC, &err);
}
static int release(dlock_set *s)
{
    return dlock_set_release(s, 5 * DLOCK_SEC, &err);
}
static int poll_fd(dlock_set *s)
{
    int fd = dlock_set_poll_fd(s, &err);
    return fd >= 0 ? 0 : fd;
}
static int interest(dlock_set *s)
{
    struct pollfd pfd[2 * DLOCK_POLL_MAX];
    int64_t wake_at;
    (void)dlock_set_interest(s, pfd, 2 * DLOCK_POLL_MAX, &wake_at);
    return dlock_set_interest(s, NULL, 0, &wake_at); /* no room: none */
}
static int questions(dlock_set *s)
{
    int64_t left = dlock_set_time_left(s);
    enum dlock_state is = dlock_set_state(s);
    if ((is == DLOCK_STATE_HELD) != (left > 0) && is != DLOCK_STATE_LOST)
        FAIL("time left %" PRId64 " in state %d", left, is);
    for (int i = 0; i < 2; i++)
        MUST(strstr(uris[i], dlock_name(dlock_set_at(s, i))));
    MUST(!dlock_set_at(s, 2) && !dlock_set_at(s, -1));
    return 0;
}
/* The handles of a set are driven by it alone, in every state. */
static int members(dlock_set *s)
{
    for (int i = 0; i < 2; i++) {
        dlock *lk = (dlock *)dlock_set_at(s, i);
        enum dlock_state is = dlock_state(lk);
        struct pollfd pfd[DLOCK_POLL_MAX];
        dlock_set *other;
        int64_t wake_at;
        CODE(dlock_start_acquire(lk, &err), DLOCK_EUSAGE);
        CODE(dlock_start_status(lk, &err), DLOCK_EUSAGE);
        CODE(dlock_start_release(lk, 0, &err), DLOCK_EUSAGE);
        CODE(dlock_acquire(lk, &err), DLOCK_EUSAGE);
        CODE(dlock_keep(lk, 0, &err), DLOCK_EUSAGE);
        CODE(dlock_release(lk, 0, &err), DLOCK_EUSAGE);
        CODE(dlock_poll_fd(lk, &err), DLOCK_EUSAGE);
        CODE(dlock_set_open(&other, &lk, 1, 0, &err), DLOCK_EUSAGE);
        IS(dlock_interest(lk, pfd, DLOCK_POLL_MAX, &wake_at), 0);
        MUST(wake_at == DLOCK_NEVER && !dlock_process(lk, NULL, 0) && !dlock_dispatch(lk));
        dlock_close(lk);
        IS(dlock_state(lk), is);
    }
    return 0;
}

static const struct {
    const char *name;
    int (*call)(dlock_set *);
} calls[] = {
    {"start_acquire", start_acquire},
    {"start_release", start_release},
    {"acquire", acquire},
    {"keep", keep},
    {"release", release},
    {"interest", interest},
    {"poll_fd", poll_fd},
    {"questions", questions},
    {"members", members},
};

/* In a child, with the parent's set: the result goes through the exit status. */
static int in_child(dlock_set *s, int (*call)(dlock_set *))
{
    int status;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int rc = call(s);
        MUST(dlock_set_state(s) == DLOCK_STATE_FOREIGN);
        MUST(!dlock_set_process(s, NULL, 0) && !dlock_set_dispatch(s));
        dlock_set_close(s);
        _exit(-rc);
    }
    MUST(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return -WEXITSTATUS(status);
}

/* Nobody else gets a lock of the set, and it does not lose it. */
static void still_held(dlock_set *s)
{
    for (int i = 0; i < 2; i++) {
        dlock *other = open_lock(uris[i], 3 * DLOCK_SEC, 0);
        CODE(dlock_acquire(other, &err), DLOCK_EBUSY);
        dlock_close(other);
    }
    CODE(dlock_set_keep(s, 0, &err), 0);
}

static void try(enum dlock_state state, size_t i)
{
    dlock_set *s = in_state(state);
    int rc;
    memset(&err, 0, sizeof err);
    rc = state == DLOCK_STATE_FOREIGN ? in_child(s, calls[i].call) : calls[i].call(s);
    if (rc < 0 && state != DLOCK_STATE_FOREIGN && !err.msg[0])
        FAIL("%s: no message", calls[i].name);
    printf("%s %s %s %s\n", names[state], calls[i].name, dlock_error_name(rc),
           names[dlock_set_state(s)]);
    if (state == DLOCK_STATE_FOREIGN)
        still_held(s);
    if (dlock_set_state(s) != DLOCK_STATE_IDLE)
        (void)dlock_set_release(s, 5 * DLOCK_SEC, NULL);
    IS(dlock_set_state(s), DLOCK_STATE_IDLE);
    dlock_set_close(s);
    if (holder) {
        CODE(dlock_release(holder, 5 * DLOCK_SEC, &err), 0);
        dlock_close(holder);
        holder = NULL;
    }
}

int main(int argc, char **argv)
{
    MUST(argc >= 3);
    uris = argv + 1;
    take = argc > 3 ? argv[3] : NULL;
    for (int s = 0; s <= DLOCK_STATE_FOREIGN; s++)
        for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
            if (s != DLOCK_STATE_ASKING && (s != DLOCK_STATE_LOST || take))
                try((enum dlock_state)s, i);
    return 0;
}
