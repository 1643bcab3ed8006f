/*
 * file.c - backend "file": flock(2), or fcntl(2) where the caller asks for it.
 *
 * A bare path is locked exactly as flock(1) does it, so both exclude each other; the file is never
 * written to. A named lock is the file DIR/NAME.lock, with a fencing token in a file beside it
 * (record.c). A slot is a byte lock beside a shared flock(2) (slots.c). The run record of a named lock is a file too,
 * beside it or in the state directory (once.c); it is read and written under the lock.
 *
 * The kernel keeps the lock on the open file: it cannot expire, and is free when the last
 * descriptor is closed, including those that children inherited. That is why release closes and
 * never unlocks. After each grant the path is checked again: a lock on a file that was unlinked or
 * replaced meanwhile excludes no other process, so the new file is locked instead.
 *
 * Not guaranteed: an order among waiters, of any kind; exclusion of other machines on a network file system that
 * is mounted with local locks (a notice says so); exclusion if the file is replaced while the lock is
 * held. Opening a file and reading /proc are not asynchronous: on a dead file server a slot blocks.
 */
#include "file.h"
#include "flock_wait.h"
#include "once.h"
#include "slot_wait.h"
#include "slots.h"
#include "util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/*
 * When a waiter looks for the holder and its own place: most waits are over before that. A moment before the caller
 * shows it, after a second, so that its first line has it.
 */
#define FIRST_LOOK (950 * DLOCK_MSEC)
#define NEXT_LOOK (5 * DLOCK_SEC)

/* A file that is replaced again and again: retry, with pauses in which the core can check its timers. */
#define ROUNDS_AT_ONCE 10
#define ROUNDS_PAUSE (2 * DLOCK_MSEC)
#define ROUNDS_MAX 1000

/* How long a try without waiting bears with a sweeper of run records, which is done in a moment unless it is stopped. */
#define SWEEP_TIME (100 * DLOCK_MSEC)

/* Between tries to open a file on which another process has a lease. */
#define LEASED_PAUSE (2 * DLOCK_MSEC)
#define LEASED_PAUSE_MAX (100 * DLOCK_MSEC)

enum file_op {
    OP_IDLE,
    OP_TRYING, /* again at acquire.retry_at: the file is replaced, or under a lease or a claim of another process */
    OP_WAITING,      /* a thread waits in flock(2) */
    OP_WAITING_SLOT, /* no slot is free: again when slots.wait says so */
    OP_HELD,
    OP_CANCELLING /* the thread was asked to end; it is left behind at release.until */
};

struct file_backend {
    const struct dlock_spec *spec;
    struct file_place place;
    enum file_op op;
    int fd; /* of the lock file; -1: none */
    bool told_network;
    struct {
        bool wait;
        int64_t from;
        char token[DLOCK_TOKEN_LEN + 1];
        bool told;  /* that the lock is held */
        int rounds; /* how often the file was replaced meanwhile */
        int64_t retry_at;
        bool leased; /* for a lease, and told so */
        struct dlock_backoff pause;
        struct flock_wait *thread;
        int64_t look_at;          /* the next look for the holder and our place */
        struct dlock_info holder; /* as last reported */
        bool have_holder;
        int place; /* as last reported; -1: nothing was reported */
    } acquire;
    struct {
        bool registered; /* fd, with spec->slots */
        bool waits;      /* wait is in use */
        struct slot_wait wait;
        int held;
    } slots;
    struct {
        struct once_place place;
        struct dlock_run run; /* ours, or that of the one that makes us skip ours */
        char who[RUN_RECORD_MAX];
    } once;
    struct {
        int64_t until;
    } release;
    struct {
        struct file_holders found;
        int next; /* of found, to be handed out; -1: no query is under way */
        bool has_run;
        struct dlock_run run;
    } status;
    struct dlock_event out[4]; /* notices, and the event behind them */
    int nout;
};

static struct file_backend *self(struct dlock_be *be)
{
    return (struct file_backend *)be;
}

static int64_t now_of(const struct file_backend *b)
{
    return b->spec->env->now(b->spec->env->ctx);
}

static struct dlock_event *put(struct file_backend *b, enum dlock_ev type)
{
    struct dlock_event *ev = &b->out[b->nout++];

    *ev = (struct dlock_event){.type = type, .ttl = DLOCK_NEVER};
    return ev;
}

static int take(struct file_backend *b, struct dlock_event *ev)
{
    *ev = b->out[0];
    memmove(b->out, b->out + 1, sizeof(b->out[0]) * (size_t)--b->nout);
    return 1;
}

static bool wants_slot(const struct file_backend *b)
{
    return b->spec->mode == DLOCK_MODE_SLOTS;
}

static void end_slot_wait(struct file_backend *b)
{
    if (b->slots.waits)
        slot_wait_end(&b->slots.wait);
    b->slots.waits = false;
}

static void drop_fd(struct file_backend *b)
{
    end_slot_wait(b);
    if (b->fd >= 0)
        close(b->fd);
    b->fd = -1;
    b->slots.registered = false;
}

/*
 * Drop a lock that was perhaps taken but never reported as granted. Only here it may be unlocked: no
 * work runs under it, and a child that the host program forked in this moment must not keep it.
 */
static void drop_unheld(struct file_backend *b)
{
    if (b->fd >= 0 && wants_slot(b))
        slots_drop(b->fd);
    if (b->fd >= 0)
        flock_try(b->fd, LOCK_UN, b->place.fcntl);
    drop_fd(b);
}

static void failed(struct file_backend *b, const struct dlock_error *err)
{
    drop_unheld(b);
    b->op = OP_IDLE;
    put(b, EV_FAILED)->error = *err;
}

static void failed_flock(struct file_backend *b, int sys)
{
    struct dlock_error err;

    dlock_fail(&err, DLOCK_EOS, sys, "cannot lock %s%s%s: %s", b->place.path,
               b->place.named ? "/" : "", b->place.lock, strerror(sys));
    failed(b, &err);
}

/* ------------------------------------------------------------- acquire --- */

/* For -v: where "@name" is. */
static void tell_path(struct file_backend *b)
{
    if (b->place.named)
        dlock_fail(&put(b, EV_NOTICE)->error, 0, 0, "the lock is the file %s/%s", b->place.path,
                   b->place.lock);
}

static void tell_network(struct file_backend *b)
{
    const char *type;
    bool warn;

    if (b->told_network || !file_on_network(b->fd, &type, &warn))
        return;
    b->told_network = true;
    dlock_fail(
        &put(b, EV_NOTICE)->error, warn ? DLOCK_ELOST : 0, 0,
        "%s is on a network file system (%s): whether the lock excludes other machines depends on how it is mounted (not with local_lock or nolock)",
        b->place.path, type);
}

/* Its servers and other machines may know flock(2), but nothing of our bytes, and inotify reports no close there. */
static bool failed_network(struct file_backend *b)
{
    struct dlock_error err;
    const char *type;
    bool warn;

    if (!file_on_network(b->fd, &type, &warn))
        return false;
    dlock_fail(
        &err, DLOCK_EUSAGE, 0,
        "%s%s%s is on a network file system (%s): slots need a file of this machine, or a lock server",
        b->place.path, b->place.named ? "/" : "", b->place.lock, type);
    failed(b, &err);
    return true;
}

static int lock_op(const struct file_backend *b)
{
    return b->spec->mode == DLOCK_MODE_EXCLUSIVE ? LOCK_EX : LOCK_SH;
}

/* 0: the lock is ours; an errno; -1 with err: the file could not be opened again. */
static int try_lock(struct file_backend *b, struct dlock_error *err)
{
    int op = lock_op(b);
    int sys = flock_try(b->fd, op, b->place.fcntl);

    if ((sys != EBADF && sys != EIO) || op == LOCK_SH || b->place.fcntl)
        return sys;
    /* NFS turns it into a byte-range lock; an exclusive one needs a writable descriptor. */
    drop_fd(b);
    if (file_open(&b->place, FILE_FOR_NFS_LOCK, &b->fd, err) < 0)
        return -1;
    return flock_try(b->fd, op, false);
}

/* The holder as of now, and our place in the queue. */
static bool find_holder(struct file_backend *b, struct dlock_info *info, int *place)
{
    *place = 0;
    if (b->fd < 0)
        return file_lease_holder(&b->place, info);
    return file_first_holder(&b->place, b->fd, b->spec->identity->pid, info, place);
}

static bool file_look(struct dlock_be *be, struct dlock_info *info)
{
    int place;

    return find_holder(self(be), info, &place);
}

/* Look for the holder and for our place when it is time, and report them if they have changed. */
static void look_in_time(struct file_backend *b)
{
    struct dlock_info old = b->acquire.holder;
    bool had = b->acquire.have_holder;
    int place;

    if (now_of(b) < b->acquire.look_at)
        return;
    b->acquire.look_at = now_of(b) + NEXT_LOOK;
    b->acquire.have_holder = find_holder(b, &b->acquire.holder, &place);
    bool news = had != b->acquire.have_holder || place != b->acquire.place ||
                (had && (old.pid != b->acquire.holder.pid || old.fence != b->acquire.holder.fence ||
                         strcmp(old.command, b->acquire.holder.command) != 0));
    if (!news)
        return;
    b->acquire.place = place;
    struct dlock_event *ev = put(b, EV_WAITING);
    ev->info = b->acquire.have_holder ? &b->acquire.holder : NULL;
    ev->place = place;
}

/* One try, and the lock is held. */
static void busy(struct file_backend *b)
{
    struct dlock_event *ev = put(b, EV_BUSY);

    if (b->spec->holder != DLOCK_HOLDER_NEVER && find_holder(b, &b->acquire.holder, &ev->place))
        ev->info = &b->acquire.holder;
    drop_unheld(b);
    b->op = OP_IDLE;
}

/* A wait begins: the store has answered. Who holds the lock follows, if it lasts and the caller wants to know. */
static void tell_wait(struct file_backend *b)
{
    if (b->acquire.told)
        return;
    b->acquire.told = true;
    if (b->spec->holder == DLOCK_HOLDER_WAITING)
        b->acquire.look_at = now_of(b) + FIRST_LOOK;
    put(b, EV_WAITING)->place = -1;
}

/*
 * A file could not be opened: at once when another process has a lease on it. That is as if it held the lock, but
 * nothing can be waited for.
 */
static void failed_or_leased(struct file_backend *b, const struct dlock_error *err)
{
    if (err->sys != EWOULDBLOCK) {
        failed(b, err);
        return;
    }
    drop_unheld(b);
    if (!b->acquire.leased)
        dlock_fail(&put(b, EV_NOTICE)->error, 0, 0, "%s", err->msg);
    b->acquire.leased = true;
    if (!b->acquire.wait) {
        busy(b);
        return;
    }
    tell_wait(b);
    b->op = OP_TRYING;
    b->acquire.retry_at = now_of(b) + dlock_backoff_next(&b->acquire.pause, b->spec->env);
}

static void blocked(struct file_backend *b)
{
    struct dlock_error err;

    if (!b->acquire.wait) {
        busy(b);
        return;
    }
    if (wants_slot(b))
        slots_show_waiter(b->fd, b->spec->identity->pid);
    if (flock_wait_start(&b->acquire.thread, b->fd, lock_op(b), b->place.fcntl) < 0) {
        dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
        failed(b, &err);
        return;
    }
    b->op = OP_WAITING;
    b->acquire.rounds = 0;
    tell_wait(b);
}

/* All slots are taken. They are waited for without the shared lock, so that an exclusive waiter has a chance. */
static void no_slot(struct file_backend *b)
{
    flock_try(b->fd, LOCK_UN, false);
    if (!b->acquire.wait) {
        busy(b);
        return;
    }
    slots_show_waiter(b->fd, b->spec->identity->pid);
    if (!b->slots.waits)
        slot_wait_start(&b->slots.wait, b->fd, now_of(b));
    b->slots.waits = true;
    b->op = OP_WAITING_SLOT;
    b->acquire.rounds = 0;
    tell_wait(b);
}

static void failed_number(struct file_backend *b, unsigned in_use)
{
    struct dlock_error err;

    dlock_fail(&err, DLOCK_EDATA, 0,
               "%s%s%s: in use with %u slots, which are not %u: give all its users the same number",
               b->place.path, b->place.named ? "/" : "", b->place.lock, in_use, b->spec->slots);
    failed(b, &err);
}

/* Before the shared lock is tried. False: failed, busy or waiting. */
static bool registered(struct file_backend *b)
{
    unsigned other;
    int sys;

    if (!wants_slot(b) || b->slots.registered)
        return true;
    sys = slots_register(b->fd, b->spec->slots, &other);
    b->slots.registered = sys == 0 && other == 0;
    if (other != 0)
        failed_number(b, other);
    else if (sys == EWOULDBLOCK)
        no_slot(b);
    else if (sys != 0)
        failed_flock(b, sys);
    return b->slots.registered;
}

/* Under the shared lock. False: failed, busy or waiting. */
static bool have_slot(struct file_backend *b)
{
    int sys = slots_take(b->fd, b->spec->slots, b->spec->identity->pid, &b->slots.held);

    if (sys == EWOULDBLOCK)
        no_slot(b);
    else if (sys != 0)
        failed_flock(b, sys);
    return sys == 0;
}

/* Only an exclusive holder has a token of its own. The others have the last one's: 0 before there was one. */
static int get_fence(struct file_backend *b, uint64_t *fence, struct dlock_error *err)
{
    struct file_record last;
    int rc;

    *fence = 0;
    if (!b->place.named)
        return 0;
    if (b->spec->mode == DLOCK_MODE_EXCLUSIVE)
        return file_record_write(&b->place, b->fd, b->spec->identity, b->acquire.token, fence, err);
    rc = file_record_read(&b->place, &last, err);
    *fence = last.fence;
    return rc;
}

/* Under the lock: has a run succeeded already? Then it is left to the next in line. True: no. False: skipped, or failed. */
static bool must_run(struct file_backend *b)
{
    struct dlock_error err;
    int rc;

    if (b->spec->once == 0)
        return true;
    rc = once_read(&b->once.place, b->spec, &b->once.run, &err);
    if (rc == 1 && run_record_skips(&b->once.run, b->spec->once)) {
        drop_unheld(b);
        b->op = OP_IDLE;
        put(b, EV_SKIPPED)->run = &b->once.run;
        return false;
    }
    if (rc < 0)
        failed_or_leased(b, &err);
    return rc >= 0;
}

/* The record of our run, which begins. 0 or a negative DLOCK_E*. */
static int begin_run(struct file_backend *b, uint64_t fence, struct dlock_error *err)
{
    struct dlock_run *r = &b->once.run;

    if (b->spec->once == 0)
        return 0;
    *r = (struct dlock_run){.state = DLOCK_RUN_RUNNING, .status = -1, .begin_ms = once_now()};
    r->kept_ns = b->spec->once;
    r->fence = fence;
    memcpy(r->token, b->acquire.token, sizeof(r->token));
    if (run_record_who(b->spec, b->once.who, sizeof(b->once.who)) < 0)
        return dlock_fail(err, DLOCK_EOS, 0, "the run record has no room for its owner");
    return once_write(&b->once.place, b->fd, r, b->once.who, err);
}

/*
 * The end of our run, while the lock is ours. How the release ends, err: why it is not clean. Not ours any more: the file
 * was replaced, and another run may hold that lock.
 */
static enum dlock_release_how end_run(struct file_backend *b, struct dlock_error *err)
{
    struct dlock_run *r = &b->once.run, there;
    int rc = file_is_current(&b->place, b->fd, err);

    if (rc == 1) {
        rc = once_read(&b->once.place, b->spec, &there, err);
        /* One that was removed is written again. */
        rc = rc < 0 ? rc : rc == 0 || strcmp(there.token, r->token) == 0;
    }
    if (rc == 0) {
        dlock_fail(err, DLOCK_ELOST, 0, "the lock file %s/%s, or the run record, was replaced",
                   b->place.path, b->place.lock);
        return DLOCK_RELEASE_NOT_OURS;
    }
    run_record_end(b->spec, r);
    r->end_ms = once_now();
    if (rc < 0 || once_write(&b->once.place, b->fd, r, b->once.who, err) < 0)
        return DLOCK_RELEASE_UNCLEAR;
    once_sweep(&b->once.place, b->spec, b->fd);
    return DLOCK_RELEASE_CLEAN;
}

static void granted(struct file_backend *b)
{
    struct dlock_error err;
    uint64_t fence;

    if ((wants_slot(b) && !have_slot(b)) || !must_run(b))
        return;
    if (get_fence(b, &fence, &err) < 0 || begin_run(b, fence, &err) < 0) {
        failed_or_leased(b, &err);
        return;
    }
    end_slot_wait(b); /* before the caller forks, which would copy its descriptor */
    b->op = OP_HELD;
    struct dlock_event *ev = put(b, EV_GRANTED);
    ev->from = b->acquire.from;
    ev->fence = fence;
    ev->slot = wants_slot(b) ? b->slots.held + 1 : 0;
    memcpy(ev->token, b->acquire.token, sizeof(ev->token));
}

/* Does nobody sweep our run record? False: once more in a moment. Who is stopped meanwhile is as a holder. */
static bool claimed(struct file_backend *b)
{
    if (b->spec->once == 0 || once_claim(b->fd) == 0)
        return true;
    drop_unheld(b);
    if (!b->acquire.wait && now_of(b) - b->acquire.from > SWEEP_TIME) {
        busy(b);
        return false;
    }
    if (b->acquire.wait)
        tell_wait(b);
    b->op = OP_TRYING;
    b->acquire.retry_at = now_of(b) + dlock_backoff_next(&b->acquire.pause, b->spec->env);
    return false;
}

/* b->fd is locked: a grant if it is still the file that the path names. True: done; false: try again. */
static bool locked(struct file_backend *b)
{
    struct dlock_error err;
    int rc = file_is_current(&b->place, b->fd, &err);

    if (rc == 1) {
        if (claimed(b))
            granted(b);
        return true;
    }
    if (rc < 0) {
        failed(b, &err);
        return true;
    }
    drop_fd(b);
    if (++b->acquire.rounds < ROUNDS_MAX)
        return false;
    dlock_fail(&err, DLOCK_ECREATE, 0, "%s%s%s was replaced %d times while it was being locked",
               b->place.path, b->place.named ? "/" : "", b->place.lock, b->acquire.rounds);
    failed(b, &err);
    return true;
}

/* One try with b->fd. True: done, or waiting. */
static bool attempt_open(struct file_backend *b)
{
    struct dlock_error err;
    int sys;

    if (!registered(b))
        return true;
    sys = try_lock(b, &err);
    if (sys == 0)
        return locked(b);
    if (sys == EWOULDBLOCK)
        blocked(b);
    else if (sys < 0)
        failed_or_leased(b, &err);
    else
        failed_flock(b, sys);
    return true;
}

static bool attempt(struct file_backend *b)
{
    bool write = b->place.fcntl && lock_op(b) == LOCK_EX;
    enum file_how how = wants_slot(b) ? FILE_FOR_SLOTS
                        : write       ? FILE_FOR_WRITE_LOCK
                                      : FILE_FOR_LOCK;
    struct dlock_error err;

    if (file_open(&b->place, how, &b->fd, &err) < 0) {
        failed_or_leased(b, &err);
        return true;
    }
    if (wants_slot(b) && failed_network(b))
        return true;
    tell_network(b);
    return attempt_open(b);
}

static void try_now(struct file_backend *b)
{
    for (int i = 0; i < ROUNDS_AT_ONCE; i++)
        if (attempt(b))
            return;
    b->op = OP_TRYING;
    b->acquire.retry_at = now_of(b) + ROUNDS_PAUSE;
}

static void file_acquire(struct dlock_be *be, bool wait)
{
    struct file_backend *b = self(be);
    struct dlock_error err;
    int rc;

    b->acquire.from = now_of(b);
    b->acquire.wait = wait;
    b->acquire.rounds = 0;
    b->acquire.told = b->acquire.leased = b->acquire.have_holder = false;
    b->acquire.pause = (struct dlock_backoff){.base = LEASED_PAUSE, .max = LEASED_PAUSE_MAX};
    b->acquire.look_at = DLOCK_NEVER;
    b->acquire.place = -1;
    rc = dlock_token_new(b->spec->env, b->acquire.token);
    if (rc < 0) {
        dlock_fail(&err, DLOCK_EOS, -rc, "cannot make an owner token: %s", strerror(-rc));
        failed(b, &err);
        return;
    }
    once_done(&b->once.place);
    if (b->spec->once != 0 && once_open(&b->once.place, &b->place, true, &err) < 0) {
        failed(b, &err);
        return;
    }
    tell_path(b);
    try_now(b);
}

/* ------------------------------------------------- waiting and release --- */

static void trying(struct file_backend *b)
{
    if (now_of(b) >= b->acquire.retry_at)
        try_now(b);
    if (b->op == OP_TRYING)
        look_in_time(b);
}

static void waiting(struct file_backend *b)
{
    int sys;

    if (flock_wait_check(b->acquire.thread, &sys)) {
        flock_wait_free(b->acquire.thread);
        b->acquire.thread = NULL;
        if (sys != 0)
            failed_flock(b, sys);
        else if (!locked(b))
            try_now(b);
        return;
    }
    look_in_time(b);
}

static void waiting_slot(struct file_backend *b)
{
    if (slot_wait_due(&b->slots.wait, now_of(b)) && !attempt_open(b))
        try_now(b);
    if (b->op == OP_WAITING_SLOT)
        look_in_time(b);
}

static void cancelling(struct file_backend *b)
{
    int sys;

    if (!flock_wait_check(b->acquire.thread, &sys) && now_of(b) < b->release.until)
        return;
    flock_wait_free(b->acquire.thread);
    b->acquire.thread = NULL;
    drop_unheld(b);
    b->op = OP_IDLE;
    put(b, EV_RELEASED)->how = DLOCK_RELEASE_NOTHING;
}

static void drop_holders(struct file_backend *b)
{
    free(b->status.found.info);
    b->status.found = (struct file_holders){0};
    b->status.next = -1;
    b->status.has_run = false;
}

static void file_release(struct dlock_be *be, int64_t until)
{
    struct file_backend *b = self(be);
    bool held = b->op == OP_HELD, told = b->nout == 0;
    enum dlock_release_how how = held ? DLOCK_RELEASE_CLEAN : DLOCK_RELEASE_NOTHING;
    struct dlock_error err = {0};

    if (b->op == OP_CANCELLING) {
        b->release.until = dlock_min(b->release.until, until);
        return;
    }
    if (b->nout > 0 && b->out[b->nout - 1].type == EV_RELEASED)
        return;
    b->nout = 0;
    drop_holders(b);
    if (b->op == OP_WAITING) {
        b->op = OP_CANCELLING;
        b->release.until = until;
        flock_wait_cancel(b->acquire.thread);
        return;
    }
    if (held && told && b->spec->once != 0)
        how = end_run(b, &err);
    if (held && told)
        drop_fd(b); /* not LOCK_UN: a child that inherited it keeps the lock */
    else
        drop_unheld(b);
    b->op = OP_IDLE;
    struct dlock_event *ev = put(b, EV_RELEASED);
    ev->how = how;
    if (how != DLOCK_RELEASE_CLEAN)
        ev->error = err;
}

/* ----------------------------------------------------------------- ask --- */

/* The record for a query. What is wrong with it does not hide the holders. */
static void find_run(struct file_backend *b)
{
    struct dlock_error err;
    int rc;

    if (!b->place.named)
        return;
    once_done(&b->once.place);
    rc = once_open(&b->once.place, &b->place, false, &err);
    if (rc == 0)
        rc = once_read(&b->once.place, b->spec, &b->status.run, &err);
    b->status.has_run = rc == 1;
    if (rc < 0)
        put(b, EV_NOTICE)->error = err;
}

/* Take the lock to remove its record. 0: it is ours; EWOULDBLOCK: held; another errno; -1 with err. */
static int lock_to_forget(struct file_backend *b, struct dlock_error *err)
{
    int sys = 0, rc = 0;

    for (int i = 0; i < ROUNDS_AT_ONCE && rc == 0; i++) {
        drop_fd(b);
        if (file_open(&b->place, FILE_FOR_LOCK, &b->fd, err) < 0)
            return -1;
        sys = try_lock(b, err);
        if (sys != 0)
            return sys;
        rc = file_is_current(&b->place, b->fd, err);
    }
    return rc < 0 ? -1 : rc == 0 ? EAGAIN : 0;
}

static enum dlock_ev forget(struct file_backend *b, const char *token, struct dlock_error *err)
{
    struct dlock_run run;
    int sys, rc = once_open(&b->once.place, &b->place, false, err);

    if (rc == 0)
        rc = once_read(&b->once.place, b->spec, &run, err);
    if (rc <= 0)
        return rc < 0 ? EV_FAILED : EV_DONE;
    sys = lock_to_forget(b, err);
    if (sys < 0)
        return EV_FAILED;
    /* Once more: it may have changed before we had the lock. */
    rc = once_read(&b->once.place, b->spec, &run, err);
    if (rc <= 0)
        return rc < 0 ? EV_FAILED : EV_DONE;
    if (strcmp(run.token, token) != 0) {
        dlock_fail(err, DLOCK_EBUSY, 0, "%s/%s: the record has changed: look at it again",
                   b->place.path, b->once.place.name);
        return EV_FAILED;
    }
    if (sys == EWOULDBLOCK && run.state == DLOCK_RUN_RUNNING)
        return EV_BUSY;
    if (sys != 0) {
        dlock_fail(err, sys == EWOULDBLOCK ? DLOCK_EBUSY : DLOCK_EOS, sys,
                   "%s/%s: cannot lock the file to remove its run record: %s", b->place.path,
                   b->place.lock, sys == EWOULDBLOCK ? "the lock is held" : strerror(sys));
        return EV_FAILED;
    }
    return once_remove(&b->once.place, err) < 0 ? EV_FAILED : EV_DONE;
}

static void file_forget(struct file_backend *b, const char *token)
{
    struct dlock_error err = {0};
    enum dlock_ev end = EV_DONE;

    once_done(&b->once.place);
    if (b->place.named)
        end = forget(b, token, &err);
    drop_unheld(b);
    struct dlock_event *ev = put(b, end);
    if (end == EV_FAILED)
        ev->error = err;
}

static void file_ask(struct dlock_be *be, enum dlock_ask what, const char *arg)
{
    struct file_backend *b = self(be);
    struct dlock_error err;

    drop_holders(b);
    if (what == ASK_FORGET) {
        file_forget(b, arg);
        return;
    }
    if (what != ASK_STATUS) {
        dlock_fail(&err, DLOCK_EUSAGE, 0, "%s is not supported for files",
                   what == ASK_LIST ? "a list of locks" : "to break a lock");
        put(b, EV_FAILED)->error = err;
        return;
    }
    tell_path(b);
    if (file_status(&b->place, &b->status.found, &err) < 0) {
        drop_holders(b);
        put(b, EV_FAILED)->error = err;
        return;
    }
    b->status.next = 0;
    find_run(b);
}

static int answer(struct file_backend *b, struct dlock_event *ev)
{
    *ev = (struct dlock_event){.type = EV_DONE};
    if (b->status.next < b->status.found.n) {
        ev->type = EV_INFO;
        ev->info = &b->status.found.info[b->status.next++];
        ev->place = ev->info->place;
        return 1;
    }
    if (b->status.has_run) {
        b->status.has_run = false;
        ev->type = EV_RUN;
        ev->run = &b->status.run;
        return 1;
    }
    if (b->status.found.no_file)
        dlock_fail(&ev->error, 0, 0, "no such file");
    drop_holders(b);
    return 1;
}

/* ------------------------------------------------------------ the rest --- */

static int file_interest(struct dlock_be *be, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    struct file_backend *b = self(be);
    int64_t now = now_of(b);

    if (b->nout > 0 || b->status.next >= 0)
        *wake_at = dlock_min(*wake_at, now);
    if (b->op == OP_TRYING)
        *wake_at = dlock_min(*wake_at, b->acquire.retry_at);
    if (b->op == OP_TRYING || b->op == OP_WAITING || b->op == OP_WAITING_SLOT)
        *wake_at = dlock_min(*wake_at, b->acquire.look_at);
    if (b->op == OP_CANCELLING)
        *wake_at = dlock_min(*wake_at, b->release.until);
    if (b->op == OP_WAITING_SLOT)
        return slot_wait_interest(&b->slots.wait, pfd, cap, wake_at);
    return b->acquire.thread ? flock_wait_interest(b->acquire.thread, pfd, cap, now, wake_at) : 0;
}

static int file_process(struct dlock_be *be, const struct pollfd *pfd, int n,
                        struct dlock_event *ev)
{
    struct file_backend *b = self(be);
    (void)pfd; /* flock_wait_check() asks the thread itself */
    (void)n;
    if (b->nout == 0 && b->op == OP_WAITING)
        waiting(b);
    else if (b->nout == 0 && b->op == OP_WAITING_SLOT)
        waiting_slot(b);
    else if (b->nout == 0 && b->op == OP_CANCELLING)
        cancelling(b);
    else if (b->nout == 0 && b->op == OP_TRYING)
        trying(b);
    if (b->nout > 0)
        return take(b, ev);
    return b->status.next >= 0 ? answer(b, ev) : 0;
}

static int file_inherit_fd(struct dlock_be *be)
{
    struct file_backend *b = self(be);
    return b->op == OP_HELD ? b->fd : -1;
}

static int file_own_fds(struct dlock_be *be, int *fds, int cap)
{
    struct file_backend *b = self(be);
    int all[] = {b->place.dir, b->once.place.shards, b->once.place.path ? b->once.place.dir : -1},
        n = 0;

    for (size_t i = 0; i < DLOCK_LEN(all) && n < cap; i++)
        if (all[i] >= 0)
            fds[n++] = all[i];
    return n;
}

static bool file_is_file(struct dlock_be *be, int fd)
{
    return file_is_current(&self(be)->place, fd, NULL) == 1;
}

static bool file_stat(const struct dlock_uri *uri, struct stat *st)
{
    struct file_place place;
    bool found = file_place_init(&place, uri, NULL) == 0 && file_find(&place, st);

    file_place_done(&place);
    return found;
}

static void file_close(struct dlock_be *be)
{
    struct file_backend *b = self(be);
    if (!b)
        return;
    flock_wait_free(b->acquire.thread);
    drop_fd(b);
    drop_holders(b);
    once_done(&b->once.place);
    file_place_done(&b->place);
    free(b);
}

/* Its copy of the descriptor keeps no lock for longer than the other process does. */
static void file_close_in_child(struct dlock_be *be)
{
    struct file_backend *b = self(be);
    flock_wait_close_in_child(b->acquire.thread);
    b->acquire.thread = NULL;
    file_close(be);
}

static int file_open_lock(struct dlock_be **out, const struct dlock_spec *spec,
                          struct dlock_error *err)
{
    struct file_backend *b;
    int rc;

    if (spec->mode == DLOCK_MODE_SLOTS && spec->fcntl)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "slots are byte locks beside one of flock(2): not with fcntl(2) locks");
    b = calloc(1, sizeof(*b));
    if (!b)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    rc = file_place_init(&b->place, spec->uri, err);
    /* Its file is dlock's own, and holders of both kinds of lock would run, and write the token, at the same time. */
    if (rc == 0 && spec->fcntl && b->place.named)
        rc = dlock_fail(
            err, DLOCK_EUSAGE, 0,
            "fcntl(2) locks are for a file's path: a named lock is always one of flock(2)");
    if (rc == 0 && spec->once != 0 && !b->place.named)
        rc = dlock_fail(
            err, DLOCK_EUSAGE, 0,
            "--once needs a place for its record, and dlock never writes to a bare file: "
            "name a lock in a directory on disk (file:///DIRECTORY#NAME), or @NAME");
    b->place.fcntl = spec->fcntl;
    if (rc < 0) {
        free(b);
        return rc;
    }
    b->spec = spec;
    b->fd = b->status.next = -1;
    b->once.place = ONCE_NOWHERE;
    *out = (struct dlock_be *)b;
    return 0;
}

static const char *const schemes[] = {"file", NULL};

const struct dlock_backend dlock_backend_file = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_VERSION,
    .name = "file",
    .schemes = schemes,
    .caps = CAP_SHARED | CAP_SLOTS | CAP_FD | CAP_FENCE | CAP_ONCE,
    .open = file_open_lock,
    .acquire = file_acquire,
    .release = file_release,
    .look = file_look,
    .ask = file_ask,
    .interest = file_interest,
    .process = file_process,
    .inherit_fd = file_inherit_fd,
    .is_file = file_is_file,
    .stat = file_stat,
    .own_fds = file_own_fds,
    .close = file_close,
    .close_in_child = file_close_in_child,
};
