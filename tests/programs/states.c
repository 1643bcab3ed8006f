/*
 * states.c - every call in every state: its result, and the state of the handle or set afterwards.
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
static struct thing in_state(enum dlock_state s)
{
    /* A renewal notices a loss: soon. */
    int64_t ttl = (s == DLOCK_STATE_LOST ? 1 : 3) * DLOCK_SEC;
    struct thing t = {.lk = open_lock(uris[0], ttl, DLOCK_NEVER)};
    if (n_uris == 2) {
        dlock *both[] = {t.lk, open_lock(uris[1], ttl, 0)};
        CODE(dlock_set_open(&t.set, both, 2, DLOCK_NEVER, &err), 0);
        t.lk = NULL;
    }
    switch (s) {
    case DLOCK_STATE_ACQUIRING:
        holder = open_lock(uris[n_uris - 1], 30 * DLOCK_SEC, DLOCK_NEVER);
        CODE(dlock_acquire(holder, &err), 0);
        CODE(CALL(&t, start_acquire, &err), 0);
        until_report(&t, DLOCK_REPORT_WAITING, 5 * DLOCK_SEC);
        if (t.set)
            IS(dlock_state(dlock_set_at(t.set, 0)), DLOCK_STATE_HELD);
        break;
    case DLOCK_STATE_ASKING:
        CODE(dlock_start_status(t.lk, &err), 0);
        break;
    case DLOCK_STATE_HELD:
    case DLOCK_STATE_FOREIGN:
    case DLOCK_STATE_LOST:
    case DLOCK_STATE_RELEASING:
        CODE(CALL(&t, acquire, &err), 0);
        break;
    case DLOCK_STATE_IDLE:
        break;
    }
    if (s == DLOCK_STATE_LOST) {
        IS(system(take), 0);
        until_report(&t, DLOCK_REPORT_LOST, 5 * DLOCK_SEC);
    } else if (s == DLOCK_STATE_RELEASING) {
        CODE(CALL(&t, start_release, dlock_now() + 5 * DLOCK_SEC, &err), 0);
    }
    if (s != DLOCK_STATE_FOREIGN)
        IS(state_of(&t), s);
    return t;
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

static int start_acquire(const struct thing *t)
{
    return CALL(t, start_acquire, &err);
}
static int start_status(const struct thing *t)
{
    return dlock_start_status(t->lk, &err);
}
static int start_forget(const struct thing *t)
{
    return dlock_start_forget(t->lk, NOSUCH, &err);
}
static int start_release(const struct thing *t)
{
    return CALL(t, start_release, dlock_now() + 5 * DLOCK_SEC, &err);
}
static int start_renew(const struct thing *t)
{
    return CALL(t, start_renew, &err);
}
static int note_result(const struct thing *t)
{
    return dlock_note_result(t->lk, true, 0, &err);
}
static int acquire(const struct thing *t)
{
    return CALL(t, acquire, &err);
}
static int keep(const struct thing *t)
{
    return CALL(t, keep, dlock_now() + 30 * DLOCK_MSEC, &err);
}
static int renew_now(const struct thing *t)
{
    return CALL(t, renew_now, dlock_now() + 5 * DLOCK_SEC, &err);
}
static int release(const struct thing *t)
{
    return CALL(t, release, 5 * DLOCK_SEC, &err);
}
static int poll_fd(const struct thing *t)
{
    int fd = CALL(t, poll_fd, &err);
    return fd >= 0 ? 0 : fd;
}
static int interest(const struct thing *t)
{
    struct pollfd pfd[2 * DLOCK_POLL_MAX];
    int64_t wake_at;
    (void)CALL(t, interest, pfd, 2 * DLOCK_POLL_MAX, &wake_at);
    return CALL(t, interest, NULL, 0, &wake_at); /* no room: none */
}
static int set_open(const struct thing *t)
{
    dlock *lk = t->lk;
    dlock_set *set;
    int rc = dlock_set_open(&set, &lk, 1, DLOCK_NEVER, &err);
    if (rc == 0)
        FAIL("a set was made of a handle that is not idle");
    return rc;
}

/* Calls that need only be harmless. */
static int questions(const struct thing *t)
{
    dlock *lk = t->lk;
    int64_t left = lk ? dlock_time_left(lk) : dlock_set_time_left(t->set);
    enum dlock_state is = state_of(t);
    bool held = is == DLOCK_STATE_HELD;
    if (held != (left > 0) && is != DLOCK_STATE_LOST)
        FAIL("time left %" PRId64 " in state %d", left, is);
    if (t->set) {
        for (int i = 0; i < 2; i++)
            MUST(strstr(uris[i], dlock_name(dlock_set_at(t->set, i))));
        MUST(!dlock_set_at(t->set, 2) && !dlock_set_at(t->set, -1));
        return 0;
    }
    if (!held && dlock_deadline(lk) != 0 && is != DLOCK_STATE_LOST)
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

/* Only the set drives its handles, in every state. */
static int members(const struct thing *t)
{
    for (int i = 0; i < 2; i++) {
        dlock *lk = (dlock *)dlock_set_at(t->set, i);
        enum dlock_state is = dlock_state(lk);
        struct pollfd pfd[DLOCK_POLL_MAX];
        dlock_set *other;
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
        CODE(dlock_set_open(&other, &lk, 1, 0, &err), DLOCK_EUSAGE);
        IS(dlock_interest(lk, pfd, DLOCK_POLL_MAX, &wake_at), 0);
        MUST(wake_at == DLOCK_NEVER && !dlock_process(lk, NULL, 0) && !dlock_dispatch(lk));
        dlock_close(lk);
        IS(dlock_state(lk), is);
    }
    return 0;
}

enum kind { BOTH, LOCK, SET };
static const struct {
    const char *name;
    int (*call)(const struct thing *);
    enum kind of;
    bool not_idle; /* not called in IDLE */
} calls[] = {
    {"start_acquire", start_acquire, BOTH, false},
    {"start_status", start_status, LOCK, false},
    {"start_forget", start_forget, LOCK, false},
    {"start_release", start_release, BOTH, false},
    {"start_renew", start_renew, BOTH, false},
    {"note_result", note_result, LOCK, false},
    {"acquire", acquire, BOTH, false},
    {"keep", keep, BOTH, false},
    {"renew_now", renew_now, BOTH, false},
    {"release", release, BOTH, false},
    {"interest", interest, BOTH, false},
    {"poll_fd", poll_fd, BOTH, false},
    {"questions", questions, BOTH, false},
    {"members", members, SET, false},
    {"set_open", set_open, LOCK, true},
};

/* In a child, with the parent's handle or set: the result goes through the exit status. */
static int in_child(const struct thing *t, int (*call)(const struct thing *))
{
    int status;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        int rc = call(t);
        MUST(state_of(t) == DLOCK_STATE_FOREIGN);
        MUST(!CALL(t, process, NULL, 0) && !dispatch(t));
        close_thing(t);
        _exit(-rc);
    }
    MUST(pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    return -WEXITSTATUS(status);
}

static void try(enum dlock_state s, size_t i)
{
    struct thing t = in_state(s);
    bool foreign = s == DLOCK_STATE_FOREIGN;
    memset(&err, 0, sizeof err);
    int rc = foreign ? in_child(&t, calls[i].call) : calls[i].call(&t);
    if (rc < 0 && !foreign && !err.msg[0])
        FAIL("%s: no message", calls[i].name);
    printf("%s %s %s %s\n", names[s], calls[i].name, dlock_error_name(rc), names[state_of(&t)]);
    /* After any call of a child: the locks are held, and not lost. */
    for (int k = 0; foreign && k < n_uris; k++) {
        dlock *other = open_lock(uris[k], 3 * DLOCK_SEC, 0);
        CODE(dlock_acquire(other, &err), DLOCK_EBUSY);
        dlock_close(other);
    }
    if (foreign)
        CODE(CALL(&t, keep, 0, &err), 0);
    if (state_of(&t) != DLOCK_STATE_IDLE)
        (void)CALL(&t, release, 5 * DLOCK_SEC, NULL);
    IS(state_of(&t), DLOCK_STATE_IDLE);
    close_thing(&t);
    release_holder();
}

/* Close a handle in this state, with a lock of its own, since a rest of it may stay for the ttl. */
static void try_close(enum dlock_state s)
{
    char own[1024], *all = uris[0];
    snprintf(own, sizeof own, "%s-%d", all, s);
    if (s != DLOCK_STATE_LOST) /* TAKE is for that lock */
        uris[0] = own;
    struct thing t = in_state(s);
    close_thing(&t);
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
    enum kind other = set ? LOCK : SET;
    for (int s = 0; s <= DLOCK_STATE_FOREIGN; s++) {
        if ((s == DLOCK_STATE_LOST && !take) || (s == DLOCK_STATE_ASKING && set))
            continue;
        for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
            if (calls[i].of != other && !(calls[i].not_idle && s == DLOCK_STATE_IDLE))
                try((enum dlock_state)s, i);
        if (s != DLOCK_STATE_FOREIGN && !set)
            try_close((enum dlock_state)s);
    }
    return 0;
}
