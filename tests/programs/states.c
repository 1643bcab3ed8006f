/*
 * states.c - every call in every state: what it returns, and in which state the handle is then.
 *
 *     states URI [TAKE]
 *
 * TAKE is a shell command that takes the lock URI away from its holder; without one nothing can be lost there. The table
 * goes to standard output, a line for each state and call: STATE CALL RESULT STATE. Another handle holds the lock
 * where an acquire must not end.
 */
#include "lib.h"

#include <sys/wait.h>

#define NOSUCH "00000000000000000000000000000000"

static const char *uri, *take;
static dlock *holder;

static const char *const names[] = {"IDLE", "ACQUIRING", "ASKING", "HELD",
                                    "LOST", "RELEASING", "FOREIGN"};

/* A handle in that state. */
static dlock *in_state(enum dlock_state s)
{
    /* A renewal notices a loss: soon. */
    int64_t ttl = (s == DLOCK_STATE_LOST ? 1 : 3) * DLOCK_SEC;
    dlock *lk = open_lock(uri, ttl, DLOCK_NEVER);
    switch (s) {
    case DLOCK_STATE_ACQUIRING:
        holder = open_lock(uri, 30 * DLOCK_SEC, DLOCK_NEVER);
        CODE(dlock_acquire(holder, &err), 0);
        CODE(dlock_start_acquire(lk, &err), 0);
        until_report(lk, DLOCK_REPORT_WAITING, 5 * DLOCK_SEC);
        break;
    case DLOCK_STATE_ASKING:
        CODE(dlock_start_status(lk, &err), 0);
        break;
    case DLOCK_STATE_HELD:
    case DLOCK_STATE_FOREIGN:
        CODE(dlock_acquire(lk, &err), 0);
        break;
    case DLOCK_STATE_LOST:
        CODE(dlock_acquire(lk, &err), 0);
        IS(system(take), 0);
        until_report(lk, DLOCK_REPORT_LOST, 5 * DLOCK_SEC);
        break;
    case DLOCK_STATE_RELEASING:
        CODE(dlock_acquire(lk, &err), 0);
        CODE(dlock_start_release(lk, dlock_now() + 5 * DLOCK_SEC, &err), 0);
        break;
    case DLOCK_STATE_IDLE:
        break;
    }
    if (s != DLOCK_STATE_FOREIGN)
        IS(dlock_state(lk), s);
    return lk;
}

/* The handle is idle, and the lock is free; what is left of it is over. */
static void done(dlock *lk, dlock *copy)
{
    if (copy)
        dlock_close(copy);
    else if (dlock_state(lk) != DLOCK_STATE_IDLE)
        (void)dlock_release(lk, 5 * DLOCK_SEC, NULL);
    if (lk)
        dlock_close(lk);
    if (holder) {
        CODE(dlock_release(holder, 5 * DLOCK_SEC, &err), 0);
        dlock_close(holder);
        holder = NULL;
    }
}

/* -------------------------------------------------------------------- calls */

static int start_acquire(dlock *lk)
{
    return dlock_start_acquire(lk, &err);
}
static int start_status(dlock *lk)
{
    return dlock_start_status(lk, &err);
}
static int start_forget(dlock *lk)
{
    return dlock_start_forget(lk, NOSUCH, &err);
}
static int start_release(dlock *lk)
{
    return dlock_start_release(lk, dlock_now() + 5 * DLOCK_SEC, &err);
}
static int note_result(dlock *lk)
{
    return dlock_note_result(lk, true, 0, &err);
}
static int acquire(dlock *lk)
{
    return dlock_acquire(lk, &err);
}
static int keep(dlock *lk)
{
    return dlock_keep(lk, dlock_now() + 30 * DLOCK_MSEC, &err);
}
static int release(dlock *lk)
{
    return dlock_release(lk, 5 * DLOCK_SEC, &err);
}
static int poll_fd(dlock *lk)
{
    int fd = dlock_poll_fd(lk, &err);
    return fd >= 0 ? 0 : fd;
}
static int interest(dlock *lk)
{
    struct pollfd pfd[DLOCK_POLL_MAX];
    int64_t wake_at;
    (void)dlock_interest(lk, pfd, DLOCK_POLL_MAX, &wake_at);
    return dlock_interest(lk, NULL, 0, &wake_at); /* no room: none */
}
static int set_open(dlock *lk)
{
    dlock_set *set;
    int rc = dlock_set_open(&set, &lk, 1, DLOCK_NEVER, &err);
    if (rc == 0)
        FAIL("a set was made of one that is not idle");
    return rc;
}
/* What has only to be harmless. */
static int questions(dlock *lk)
{
    int64_t left = dlock_time_left(lk), until = dlock_deadline(lk);
    bool held = dlock_state(lk) == DLOCK_STATE_HELD;
    if (held != (left > 0) && dlock_state(lk) != DLOCK_STATE_LOST)
        FAIL("time left %" PRId64 " in state %d", left, dlock_state(lk));
    if (!held && until != 0 && dlock_state(lk) != DLOCK_STATE_LOST)
        FAIL("a deadline without a hold");
    MUST(dlock_name(lk)[0] && dlock_where(lk)[0] && dlock_backend_name(lk)[0]);
    MUST(dlock_token(lk) && dlock_fence_text(lk));
    MUST(dlock_user(lk) == NULL);
    (void)dlock_fence(lk);
    (void)dlock_slot(lk);
    (void)dlock_min_hold_left(lk);
    (void)dlock_is_local(lk);
    (void)dlock_fd(lk);
    (void)dlock_session_fd(lk);
    return 0;
}

static const struct {
    const char *name;
    int (*call)(dlock *);
    bool not_idle; /* not for that state */
} calls[] = {
    {"start_acquire", start_acquire, false},
    {"start_status", start_status, false},
    {"start_forget", start_forget, false},
    {"start_release", start_release, false},
    {"note_result", note_result, false},
    {"acquire", acquire, false},
    {"keep", keep, false},
    {"release", release, false},
    {"interest", interest, false},
    {"poll_fd", poll_fd, false},
    {"questions", questions, false},
    {"set_open", set_open, true},
};

/* In a child, with the parent's handle: the result goes through the exit status. */
static int in_child(dlock *lk, int (*call)(dlock *))
{
    int status;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int rc = call(lk);
        MUST(dlock_state(lk) == DLOCK_STATE_FOREIGN);
        MUST(dlock_process(lk, NULL, 0) == NULL && dlock_dispatch(lk) == NULL);
        dlock_close(lk);
        _exit(-rc);
    }
    MUST(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return -WEXITSTATUS(status);
}

/* Whatever a child did: nobody else gets the lock, and its holder does not lose it. */
static void still_held(dlock *lk)
{
    dlock *other = open_lock(uri, 3 * DLOCK_SEC, 0);
    CODE(dlock_acquire(other, &err), DLOCK_EBUSY);
    dlock_close(other);
    CODE(dlock_keep(lk, 0, &err), 0);
}

static void try(enum dlock_state s, size_t i)
{
    dlock *lk = in_state(s);
    int rc;
    memset(&err, 0, sizeof err);
    if (s == DLOCK_STATE_FOREIGN)
        rc = in_child(lk, calls[i].call);
    else
        rc = calls[i].call(lk);
    if (rc < 0 && s != DLOCK_STATE_FOREIGN && !err.msg[0])
        FAIL("%s: no message", calls[i].name);
    printf("%s %s %s %s\n", names[s], calls[i].name, dlock_error_name(rc), names[dlock_state(lk)]);
    if (s == DLOCK_STATE_FOREIGN)
        still_held(lk);
    done(lk, NULL);
}

/* Closed in that state: of a lock of its own, since what is left of it may stay for the ttl. */
static void try_close(enum dlock_state s)
{
    const char *all = uri;
    char own[1024];
    snprintf(own, sizeof own, "%s-%d", uri, s);
    if (s != DLOCK_STATE_LOST) /* TAKE is for that one */
        uri = own;
    done(NULL, in_state(s));
    printf("%s close\n", names[s]);
    uri = all;
}

int main(int argc, char **argv)
{
    MUST(argc >= 2);
    uri = argv[1];
    take = argc > 2 ? argv[2] : NULL;
    for (int s = 0; s <= DLOCK_STATE_FOREIGN; s++) {
        if (s == DLOCK_STATE_LOST && !take)
            continue;
        for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
            if (!(calls[i].not_idle && s == DLOCK_STATE_IDLE))
                try((enum dlock_state)s, i);
        if (s != DLOCK_STATE_FOREIGN)
            try_close((enum dlock_state)s);
    }
    return 0;
}
