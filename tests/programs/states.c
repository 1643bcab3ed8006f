/*
 * states.c - every call in every state: its result, and the state of the handle afterwards.
 *
 *     states URI [TAKE]
 *     states set URI URI [TAKE]     the calls on a set of both
 *
 * TAKE is a shell command that takes the lock of the
 * last URI away from its holder; without TAKE nothing can be lost. The table goes to standard
 * output, a line for each state and call: STATE CALL RESULT STATE. In ACQUIRING another handle
 * holds the lock of the last URI; a set then holds its first lock.
 */
#include "lib.h"

#include <sys/wait.h>

#define NOSUCH "00000000000000000000000000000000"

static char **uris;
static int n_uris;
static const char *take;
static dlock *holder;

static const char *const names[] = {"IDLE", "ACQUIRING", "ASKING", "HELD",
                                    "LOST", "RELEASING", "FOREIGN"};

/* A handle or a set in this state. */
static dlock *in_state(enum dlock_state s)
{
    /* A renewal notices a loss: soon. */
    int64_t ttl = (s == DLOCK_STATE_LOST ? 1 : 3) * DLOCK_SEC;
    dlock *d = open_lock(uris[0], ttl, DLOCK_NEVER);
    if (n_uris == 2) {
        dlock *both[] = {d, open_lock(uris[1], ttl, 0)};
        CODE(dlock_open_set(&d, both, 2, DLOCK_NEVER, &err), 0);
    }
    switch (s) {
    case DLOCK_STATE_ACQUIRING:
        holder = open_lock(uris[n_uris - 1], 30 * DLOCK_SEC, DLOCK_NEVER);
        CODE(dlock_acquire(holder, &err), 0);
        CODE(dlock_start_acquire(d, &err), 0);
        until_report(d, DLOCK_REPORT_WAITING, 5 * DLOCK_SEC);
        if (n_uris == 2)
            IS(dlock_state(dlock_at(d, 0)), DLOCK_STATE_HELD);
        break;
    case DLOCK_STATE_ASKING:
        CODE(dlock_start_status(d, &err), 0);
        break;
    case DLOCK_STATE_HELD:
    case DLOCK_STATE_FOREIGN:
    case DLOCK_STATE_LOST:
    case DLOCK_STATE_RELEASING:
        CODE(dlock_acquire(d, &err), 0);
        break;
    case DLOCK_STATE_IDLE:
        break;
    }
    if (s == DLOCK_STATE_LOST) {
        IS(system(take), 0);
        until_report(d, DLOCK_REPORT_LOST, 5 * DLOCK_SEC);
    } else if (s == DLOCK_STATE_RELEASING) {
        CODE(dlock_start_release(d, dlock_now() + 5 * DLOCK_SEC, &err), 0);
    }
    if (s != DLOCK_STATE_FOREIGN)
        IS(dlock_state(d), s);
    return d;
}

static void release_holder(void)
{
    if (!holder)
        return;
    CODE(dlock_release(holder, 5 * DLOCK_SEC, &err), 0);
    dlock_close(holder);
    holder = NULL;
}

/* -------------------------------------------------------------------- calls */

static int start_acquire(dlock *d)
{
    return dlock_start_acquire(d, &err);
}
static int start_status(dlock *d)
{
    return dlock_start_status(d, &err);
}
static int start_forget(dlock *d)
{
    return dlock_start_forget(d, NOSUCH, &err);
}
static int start_release(dlock *d)
{
    return dlock_start_release(d, dlock_now() + 5 * DLOCK_SEC, &err);
}
static int start_renew(dlock *d)
{
    return dlock_start_renew(d, &err);
}
static int note_result(dlock *d)
{
    return dlock_note_result(d, true, 0, &err);
}
static int acquire(dlock *d)
{
    return dlock_acquire(d, &err);
}
static int keep(dlock *d)
{
    return dlock_keep(d, dlock_now() + 30 * DLOCK_MSEC, &err);
}
static int renew_now(dlock *d)
{
    return dlock_renew_now(d, dlock_now() + 5 * DLOCK_SEC, &err);
}
static int release(dlock *d)
{
    return dlock_release(d, 5 * DLOCK_SEC, &err);
}
static int poll_fd(dlock *d)
{
    int fd = dlock_poll_fd(d, &err);
    return fd >= 0 ? 0 : fd;
}
static int interest(dlock *d)
{
    struct pollfd pfd[2 * DLOCK_POLL_MAX];
    int64_t wake_at;
    (void)dlock_interest(d, pfd, 2 * DLOCK_POLL_MAX, &wake_at);
    return dlock_interest(d, NULL, 0, &wake_at); /* no room: none */
}
static int open_set(dlock *d)
{
    dlock *set;
    int rc = dlock_open_set(&set, &d, 1, DLOCK_NEVER, &err);
    if (rc == 0)
        FAIL("a set was made of a handle that is not idle, or is a set");
    return rc;
}

/* What belongs to one lock is empty. */
static void set_questions(dlock *d)
{
    char *schema = NULL;
    for (int i = 0; i < 2; i++)
        MUST(strstr(uris[i], dlock_name(dlock_at(d, i))));
    MUST(!dlock_at(d, 2) && !dlock_at(d, -1));
    MUST(!dlock_name(d)[0] && !dlock_where(d)[0] && !dlock_backend_name(d)[0]);
    MUST(!dlock_token(d)[0] && !dlock_fence_text(d)[0]);
    MUST(!dlock_is_local(d) && dlock_fence(d) == 0);
    IS(dlock_slot(d), -1);
    IS(dlock_fd(d), -1);
    IS(dlock_session_fd(d), -1);
    IS(dlock_poll_max(d), 2 * DLOCK_POLL_MAX);
    CODE(dlock_schema(d, &schema, &err), DLOCK_EUSAGE);
}

/* Calls that need only be harmless. */
static int questions(dlock *d)
{
    int64_t left = dlock_time_left(d);
    enum dlock_state is = dlock_state(d);
    bool held = is == DLOCK_STATE_HELD;
    if (held != (left > 0) && is != DLOCK_STATE_LOST)
        FAIL("time left %" PRId64 " in state %d", left, is);
    if (!held && dlock_deadline(d) != 0 && is != DLOCK_STATE_LOST)
        FAIL("a deadline without a hold");
    MUST(dlock_user(d) == NULL);
    (void)dlock_min_hold_left(d);
    if (n_uris == 2) {
        set_questions(d);
        return 0;
    }
    MUST(dlock_name(d)[0] && dlock_where(d)[0] && dlock_backend_name(d)[0]);
    MUST(dlock_token(d) && dlock_fence_text(d));
    MUST(dlock_at(d, 0) == d && !dlock_at(d, 1) && !dlock_at(d, -1));
    IS(dlock_poll_max(d), DLOCK_POLL_MAX);
    (void)dlock_fence(d);
    (void)dlock_slot(d);
    (void)dlock_is_local(d);
    (void)dlock_fd(d);
    (void)dlock_session_fd(d);
    return 0;
}

/* Only the set drives its handles, in every state. */
static int members(dlock *d)
{
    for (int i = 0; i < 2; i++) {
        dlock *lk = dlock_at(d, i);
        enum dlock_state is = dlock_state(lk);
        struct pollfd pfd[DLOCK_POLL_MAX];
        dlock *other;
        int64_t wake_at;
        CODE(dlock_start_acquire(lk, &err), DLOCK_EUSAGE);
        CODE(dlock_start_status(lk, &err), DLOCK_EUSAGE);
        CODE(dlock_start_release(lk, 0, &err), DLOCK_EUSAGE);
        CODE(dlock_acquire(lk, &err), DLOCK_EUSAGE);
        CODE(dlock_keep(lk, 0, &err), DLOCK_EUSAGE);
        CODE(dlock_start_renew(lk, &err), DLOCK_EUSAGE);
        CODE(dlock_renew_now(lk, 0, &err), DLOCK_EUSAGE);
        CODE(dlock_release(lk, 0, &err), DLOCK_EUSAGE);
        CODE(dlock_poll_fd(lk, &err), DLOCK_EUSAGE);
        CODE(dlock_open_set(&other, &lk, 1, 0, &err), DLOCK_EUSAGE);
        IS(dlock_interest(lk, pfd, DLOCK_POLL_MAX, &wake_at), 0);
        MUST(wake_at == DLOCK_NEVER && !dlock_process(lk, NULL, 0) && !dlock_dispatch(lk));
        dlock_close(lk);
        IS(dlock_state(lk), is);
    }
    return 0;
}

static const struct {
    const char *name;
    int (*call)(dlock *);
    bool of_sets;  /* not called on a lock */
    bool not_idle; /* not called on an idle lock */
} calls[] = {
    {"start_acquire", start_acquire, false, false},
    {"start_status", start_status, false, false},
    {"start_forget", start_forget, false, false},
    {"start_release", start_release, false, false},
    {"start_renew", start_renew, false, false},
    {"note_result", note_result, false, false},
    {"acquire", acquire, false, false},
    {"keep", keep, false, false},
    {"renew_now", renew_now, false, false},
    {"release", release, false, false},
    {"interest", interest, false, false},
    {"poll_fd", poll_fd, false, false},
    {"questions", questions, false, false},
    {"members", members, true, false},
    {"open_set", open_set, false, true},
};

/* In a child, with the parent's handle or set: the result goes through the exit status. */
static int in_child(dlock *d, int (*call)(dlock *))
{
    int status;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int rc = call(d);
        MUST(dlock_state(d) == DLOCK_STATE_FOREIGN);
        MUST(!dlock_process(d, NULL, 0) && !dlock_dispatch(d));
        dlock_close(d);
        _exit(-rc);
    }
    MUST(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return -WEXITSTATUS(status);
}

static void try(enum dlock_state s, size_t i)
{
    dlock *d = in_state(s);
    bool foreign = s == DLOCK_STATE_FOREIGN;
    memset(&err, 0, sizeof err);
    int rc = foreign ? in_child(d, calls[i].call) : calls[i].call(d);
    if (rc < 0 && !foreign && !err.msg[0])
        FAIL("%s: no message", calls[i].name);
    printf("%s %s %s %s\n", names[s], calls[i].name, dlock_error_name(rc), names[dlock_state(d)]);
    /* After any call of a child: the locks are held, and not lost. */
    for (int k = 0; foreign && k < n_uris; k++) {
        dlock *other = open_lock(uris[k], 3 * DLOCK_SEC, 0);
        CODE(dlock_acquire(other, &err), DLOCK_EBUSY);
        dlock_close(other);
    }
    if (foreign)
        CODE(dlock_keep(d, 0, &err), 0);
    if (dlock_state(d) != DLOCK_STATE_IDLE)
        (void)dlock_release(d, 5 * DLOCK_SEC, NULL);
    IS(dlock_state(d), DLOCK_STATE_IDLE);
    dlock_close(d);
    release_holder();
}

/* Close a handle in this state, with a lock of its own, since a rest of it may stay for the ttl. */
static void try_close(enum dlock_state s)
{
    char own[1024], *all = uris[0];
    snprintf(own, sizeof own, "%s-%d", all, s);
    if (s != DLOCK_STATE_LOST) /* TAKE is for that lock */
        uris[0] = own;
    dlock *d = in_state(s);
    dlock_close(d);
    release_holder();
    printf("%s close\n", names[s]);
    uris[0] = all;
}

int main(int argc, char **argv)
{
    bool set = argc > 3 && strcmp(argv[1], "set") == 0;
    MUST(argc >= 2);
    n_uris = set ? 2 : 1;
    uris = argv + (set ? 2 : 1);
    take = uris[n_uris];
    for (int s = 0; s <= DLOCK_STATE_FOREIGN; s++) {
        if ((s == DLOCK_STATE_LOST && !take) || (s == DLOCK_STATE_ASKING && set))
            continue;
        for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
            if (set || !(calls[i].of_sets || (calls[i].not_idle && s == DLOCK_STATE_IDLE)))
                try((enum dlock_state)s, i);
        if (s != DLOCK_STATE_FOREIGN && !set)
            try_close((enum dlock_state)s);
    }
    return 0;
}
