/*
 * file.c - backend "file": flock(2).
 *
 * A bare path is locked exactly as flock(1) does it, so both exclude each other; the file is never
 * written to. A named lock is the file DIR/NAME.lock, with a fencing token in a file beside it
 * (record.c). The lock is the kernel's: it lives on the open file, cannot expire, and is free
 * when the last descriptor is closed, a child's that inherited it included. That is why release
 * closes and never unlocks. After each grant the path is looked at again: a lock on a file that was
 * unlinked or replaced meanwhile excludes nobody, so the new file is locked instead.
 *
 * Not guaranteed: an order among waiters; exclusion of other machines on a network file system that
 * is mounted with local locks (a notice says so); exclusion when somebody replaces the file while
 * the lock is held. Opening a file and reading /proc are not asynchronous: on a dead file server a
 * slot blocks.
 */
#include "file.h"
#include "flock_wait.h"
#include "util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/*
 * The place in the line is known only when the thread stands in it: look again soon, then rarely.
 */
#define FIRST_LOOK (500 * DLOCK_MSEC)
#define NEXT_LOOK (5 * DLOCK_SEC)

/* A file that is replaced again and again: go on, but let the core's clock have its say. */
#define ROUNDS_AT_ONCE 10
#define ROUNDS_PAUSE (2 * DLOCK_MSEC)
#define ROUNDS_MAX 1000

enum state {
    ST_IDLE,
    ST_TRYING,  /* again at retry_at */
    ST_WAITING, /* a thread stands in line */
    ST_HELD,
    ST_CANCEL /* the thread is asked to end, at the latest at until */
};

struct dlock_be {
    const struct dlock_spec *spec;
    struct file_place place;
    enum state state;
    bool wait, told_network;
    int fd; /* -1: none */
    struct dlock_flockwait *waiter;
    int64_t from, retry_at, look_at, until;
    int rounds;
    char token[DLOCK_TOKEN_LEN + 1];
    struct dlock_info info;
    bool have_info;
    int told_place;
    struct file_holders holders;
    int next_holder;           /* of holders, to be handed out; -1: no answer under way */
    struct dlock_event out[3]; /* a notice, and what it stands before */
    int nout;
};

static int64_t now_of(const struct dlock_be *b)
{
    return b->spec->env->now(b->spec->env->ctx);
}

static struct dlock_event *put(struct dlock_be *b, enum dlock_ev type)
{
    struct dlock_event *ev = &b->out[b->nout++];

    *ev = (struct dlock_event){.type = type, .ttl = DLOCK_NEVER};
    return ev;
}

static int take(struct dlock_be *b, struct dlock_event *ev)
{
    *ev = b->out[0];
    memmove(b->out, b->out + 1, sizeof(b->out[0]) * (size_t)--b->nout);
    return 1;
}

static void drop_fd(struct dlock_be *b)
{
    if (b->fd >= 0)
        close(b->fd);
    b->fd = -1;
}

/*
 * Let go of a lock that was perhaps taken and never handed out. Only here it may be unlocked:
 * nobody relies on it, and a child that the host program forked in this moment must not keep it.
 */
static void drop_unheld(struct dlock_be *b)
{
    if (b->fd >= 0)
        flock(b->fd, LOCK_UN);
    drop_fd(b);
}

static void failed(struct dlock_be *b, const struct dlock_error *err)
{
    drop_unheld(b);
    b->state = ST_IDLE;
    put(b, EV_FAILED)->error = *err;
}

static void failed_flock(struct dlock_be *b, int sys)
{
    struct dlock_error err;

    dlock_fail(&err, DLOCK_EOS, sys, "cannot lock %s%s%s: %s", b->place.path,
               b->place.named ? "/" : "", b->place.lock, strerror(sys));
    failed(b, &err);
}

/* ------------------------------------------------------------- acquire --- */

static void tell_network(struct dlock_be *b)
{
    const char *type;
    bool warn;

    if (b->told_network || !file_on_network(b->fd, &type, &warn))
        return;
    b->told_network = true;
    dlock_fail(
        &put(b, EV_NOTICE)->error, warn ? DLOCK_EUNAVAIL : 0, 0,
        "%s is on a network file system (%s): whether the lock excludes other machines depends on how it is mounted (not with local_lock or nolock)",
        b->place.path, type);
}

/* An errno, 0 when the lock is ours. */
static int try_lock(struct dlock_be *b, struct dlock_error *err)
{
    int op = b->spec->mode == DLOCK_SHARED ? LOCK_SH : LOCK_EX;
    int sys = flock(b->fd, op | LOCK_NB) == 0 ? 0 : errno;

    if ((sys != EBADF && sys != EIO) || op == LOCK_SH)
        return sys;
    /* NFS makes a byte-range lock of it, and an exclusive one needs a descriptor that can write. */
    drop_fd(b);
    if (file_open(&b->place, FILE_FOR_NFS_LOCK, &b->fd, err) < 0)
        return -1;
    return flock(b->fd, op | LOCK_NB) == 0 ? 0 : errno;
}

static void granted(struct dlock_be *b)
{
    struct dlock_error err;
    uint64_t fence = 0;

    if (b->place.named && b->spec->mode == DLOCK_EXCLUSIVE &&
        file_record_write(&b->place, b->fd, b->spec->who, b->token, &fence, &err) < 0) {
        failed(b, &err);
        return;
    }
    b->state = ST_HELD;
    struct dlock_event *ev = put(b, EV_GRANTED);
    ev->from = b->from;
    ev->fence = fence;
    memcpy(ev->token, b->token, sizeof(ev->token));
}

/* Look who holds it, and say so when that is news. */
static void look(struct dlock_be *b, enum dlock_ev type)
{
    struct dlock_info old = b->info;
    bool had = b->have_info;
    int place;

    b->have_info = file_first_holder(&b->place, b->fd, b->spec->who->pid, &b->info, &place);
    bool news = had != b->have_info || place != b->told_place ||
                (had && (old.pid != b->info.pid || old.fence != b->info.fence ||
                         strcmp(old.command, b->info.command) != 0));
    if (type == EV_WAITING && b->told_place >= 0 && !news)
        return;
    b->told_place = place;
    struct dlock_event *ev = put(b, type);
    ev->info = b->have_info ? &b->info : NULL;
    ev->place = place;
}

static void blocked(struct dlock_be *b)
{
    int op = b->spec->mode == DLOCK_SHARED ? LOCK_SH : LOCK_EX;
    struct dlock_error err;

    if (!b->wait) {
        look(b, EV_BUSY);
        drop_unheld(b);
        b->state = ST_IDLE;
        return;
    }
    if (dlock_flockwait_start(&b->waiter, b->fd, op) < 0) {
        dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
        failed(b, &err);
        return;
    }
    b->state = ST_WAITING;
    b->rounds = 0;
    b->look_at = now_of(b) + FIRST_LOOK;
    look(b, EV_WAITING);
}

/*
 * The lock is ours on b->fd: of use only if that is still the file. True: over; false: once more.
 */
static bool locked(struct dlock_be *b)
{
    struct dlock_error err;
    int rc = file_is_current(&b->place, b->fd, &err);

    if (rc == 1) {
        granted(b);
        return true;
    }
    if (rc < 0) {
        failed(b, &err);
        return true;
    }
    drop_fd(b);
    if (++b->rounds < ROUNDS_MAX)
        return false;
    dlock_fail(&err, DLOCK_ECREATE, 0, "%s%s%s was replaced %d times while it was being locked",
               b->place.path, b->place.named ? "/" : "", b->place.lock, b->rounds);
    failed(b, &err);
    return true;
}

/* One try. True: over, or a thread waits. */
static bool attempt(struct dlock_be *b)
{
    struct dlock_error err;
    int sys;

    if (file_open_dir(&b->place, &err) < 0 ||
        file_open(&b->place, FILE_FOR_LOCK, &b->fd, &err) < 0) {
        failed(b, &err);
        return true;
    }
    tell_network(b);
    sys = try_lock(b, &err);
    if (sys == 0)
        return locked(b);
    if (sys == EWOULDBLOCK)
        blocked(b);
    else if (sys < 0)
        failed(b, &err);
    else
        failed_flock(b, sys);
    return true;
}

static void try_now(struct dlock_be *b)
{
    for (int i = 0; i < ROUNDS_AT_ONCE; i++)
        if (attempt(b))
            return;
    b->state = ST_TRYING;
    b->retry_at = now_of(b) + ROUNDS_PAUSE;
}

static void file_acquire(struct dlock_be *b, bool wait)
{
    struct dlock_error err;
    int rc;

    b->from = now_of(b);
    b->wait = wait;
    b->rounds = 0;
    b->have_info = false;
    b->told_place = -1;
    rc = dlock_token_new(b->spec->env, b->token);
    if (rc < 0) {
        dlock_fail(&err, DLOCK_EOS, -rc, "cannot make an owner token: %s", strerror(-rc));
        failed(b, &err);
        return;
    }
    try_now(b);
}

/* ------------------------------------------------- waiting and release --- */

static void waiting(struct dlock_be *b)
{
    int sys;

    if (dlock_flockwait_check(b->waiter, &sys)) {
        dlock_flockwait_free(b->waiter);
        b->waiter = NULL;
        if (sys != 0)
            failed_flock(b, sys);
        else if (!locked(b))
            try_now(b);
        return;
    }
    if (now_of(b) >= b->look_at) {
        b->look_at = now_of(b) + NEXT_LOOK;
        look(b, EV_WAITING);
    }
}

static void cancelling(struct dlock_be *b)
{
    int sys;

    if (!dlock_flockwait_check(b->waiter, &sys) && now_of(b) < b->until)
        return;
    dlock_flockwait_free(b->waiter);
    b->waiter = NULL;
    drop_unheld(b);
    b->state = ST_IDLE;
    put(b, EV_RELEASED)->how = DLOCK_REL_NOTHING;
}

static void drop_holders(struct dlock_be *b)
{
    free(b->holders.info);
    b->holders = (struct file_holders){0};
    b->next_holder = -1;
}

static void file_release(struct dlock_be *b, int64_t until)
{
    bool held = b->state == ST_HELD, told = b->nout == 0;

    if (b->state == ST_CANCEL) {
        b->until = dlock_min(b->until, until);
        return;
    }
    if (b->nout > 0 && b->out[b->nout - 1].type == EV_RELEASED)
        return;
    b->nout = 0;
    drop_holders(b);
    if (b->state == ST_WAITING) {
        b->state = ST_CANCEL;
        b->until = until;
        dlock_flockwait_cancel(b->waiter);
        return;
    }
    if (held && told)
        drop_fd(b); /* never LOCK_UN: a child that inherited it keeps the lock */
    else
        drop_unheld(b);
    b->state = ST_IDLE;
    put(b, EV_RELEASED)->how = held ? DLOCK_REL_CLEAN : DLOCK_REL_NOTHING;
}

/* ----------------------------------------------------------------- ask --- */

static void file_ask(struct dlock_be *b, enum dlock_ask what, const char *arg)
{
    struct dlock_error err;

    (void)arg;
    drop_holders(b);
    if (what != ASK_STATUS) {
        dlock_fail(&err, DLOCK_EUSAGE, 0, "%s is not supported for files",
                   what == ASK_LIST ? "--list" : "--break");
        put(b, EV_FAILED)->error = err;
        return;
    }
    if (file_open_dir(&b->place, &err) < 0) {
        /* No directory, no lock. */
        put(b, err.sys == ENOENT ? EV_DONE : EV_FAILED)->error = err;
        return;
    }
    if (file_status(&b->place, &b->holders, &err) < 0) {
        drop_holders(b);
        put(b, EV_FAILED)->error = err;
        return;
    }
    b->next_holder = 0;
}

static int answer(struct dlock_be *b, struct dlock_event *ev)
{
    *ev = (struct dlock_event){.type = EV_DONE};
    if (b->next_holder < b->holders.n) {
        ev->type = EV_INFO;
        ev->info = &b->holders.info[b->next_holder++];
        ev->place = ev->info->place;
        return 1;
    }
    drop_holders(b);
    return 1;
}

/* ------------------------------------------------------------ the rest --- */

static int file_interest(struct dlock_be *b, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    int64_t now = now_of(b);

    if (b->nout > 0 || b->next_holder >= 0)
        *wake_at = dlock_min(*wake_at, now);
    if (b->state == ST_TRYING)
        *wake_at = dlock_min(*wake_at, b->retry_at);
    if (b->state == ST_WAITING)
        *wake_at = dlock_min(*wake_at, b->look_at);
    if (b->state == ST_CANCEL)
        *wake_at = dlock_min(*wake_at, b->until);
    return b->waiter ? dlock_flockwait_interest(b->waiter, pfd, cap, now, wake_at) : 0;
}

static int file_process(struct dlock_be *b, const struct pollfd *pfd, int n, struct dlock_event *ev)
{
    (void)pfd; /* whether the thread is done is asked of the thread */
    (void)n;
    if (b->nout == 0 && b->state == ST_WAITING)
        waiting(b);
    else if (b->nout == 0 && b->state == ST_CANCEL)
        cancelling(b);
    else if (b->nout == 0 && b->state == ST_TRYING && now_of(b) >= b->retry_at)
        try_now(b);
    if (b->nout > 0)
        return take(b, ev);
    return b->next_holder >= 0 ? answer(b, ev) : 0;
}

static int file_inherit_fd(struct dlock_be *b)
{
    return b->state == ST_HELD ? b->fd : -1;
}

static void file_close(struct dlock_be *b)
{
    if (!b)
        return;
    dlock_flockwait_free(b->waiter);
    drop_fd(b);
    drop_holders(b);
    file_place_done(&b->place);
    free(b);
}

static int file_open_lock(struct dlock_be **out, const struct dlock_spec *spec,
                          struct dlock_error *err)
{
    struct dlock_be *b;
    int rc;

    if (spec->mode == DLOCK_SLOTS)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "slots are not available for file locks");
    b = calloc(1, sizeof(*b));
    if (!b)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    rc = file_place_init(&b->place, spec->uri, err);
    if (rc < 0) {
        free(b);
        return rc;
    }
    b->spec = spec;
    b->fd = b->next_holder = -1;
    *out = b;
    return 0;
}

static const char *const schemes[] = {"file", NULL};

const struct dlock_backend dlock_backend_file = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_VERSION,
    .name = "file",
    .schemes = schemes,
    .caps = CAP_SHARED | CAP_FD | CAP_FENCE,
    .open = file_open_lock,
    .acquire = file_acquire,
    .release = file_release,
    .ask = file_ask,
    .interest = file_interest,
    .process = file_process,
    .inherit_fd = file_inherit_fd,
    .close = file_close,
};
