/*
 * file.c - backend "file": flock(2), or fcntl(2) at the caller's request.
 *
 * A bare path is locked exactly as by flock(1), so both exclude each other; the file is never
 * written to. A named lock is the file DIR/NAME.lock, with a fencing token in a file beside
 * (record.c). A slot is a byte lock beside a shared flock(2) (slots.c). The run record of a named
 * lock is a file too, beside the lock or in the state directory (once.c), read and written under
 * the lock.
 *
 * The kernel keeps the lock on the open file: the lock cannot expire, and is free when the file is
 * unlocked or the last descriptor is closed, including descriptors of children. Release unlocks,
 * since a child that the host program has forked must not keep the lock; but not after
 * dlock_fd(): the descriptor was then given to others on purpose, and they keep the lock. After
 * each grant the path is checked again: a lock on a file that was unlinked or replaced meanwhile
 * excludes no other process, so the new file is locked instead.
 *
 * Not guaranteed: an order among waiters; exclusion of other machines on a network file system
 * that is mounted with local locks (a notice says so); exclusion if the file is replaced while the
 * lock is held. Opening a file and reading /proc are not asynchronous: on a dead file server a slot
 * blocks.
 */
#include "file.h"
#include "flock_wait.h"
#include "once.h"
#include "slots.h"
#include "util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/*
 * When a waiter looks for the holder and for its place in the queue: most waits end earlier.
 * Shortly before the second after which the caller prints its first line, so that the line names
 * the holder.
 */
#define FIRST_LOOK (950 * DLOCK_MSEC)
#define NEXT_LOOK (5 * DLOCK_SEC)

/* The file is replaced repeatedly: retry, with pauses in which the core can check its timers. */
#define ROUNDS_AT_ONCE 10
#define ROUNDS_PAUSE (2 * DLOCK_MSEC)
#define ROUNDS_MAX 1000

/* How long acquire(!wait) waits for a sweeper of run records, which is quick unless stopped. */
#define SWEEP_TIME (100 * DLOCK_MSEC)

/* Between tries to open a file on which another process has a lease. */
#define LEASED_PAUSE (2 * DLOCK_MSEC)
#define LEASED_PAUSE_MAX (100 * DLOCK_MSEC)

enum file_op {
    OP_IDLE,
    OP_TRYING,  /* until acquire.retry_at: the file was replaced or is leased, or a sweep goes on */
    OP_WAITING, /* a thread waits in flock(2) */
    OP_WAITING_SLOT, /* no slot is free: tried again when slots.wait says so */
    OP_HELD,
    OP_CANCELLING /* the thread was asked to end, and is left behind at release_until */
};

struct file_backend {
    const struct dlock_spec *spec;
    struct file_place place;
    enum file_op op;
    int fd;         /* of the lock file; -1: none */
    bool fd_shared; /* others have copies of fd, and with these the lock */
    bool network_reported;
    struct {
        bool wait;
        int64_t from;
        char token[DLOCK_TOKEN_LEN + 1];
        bool reported; /* the wait */
        int rounds;    /* how often the file was replaced meanwhile */
        int64_t retry_at;
        bool leased; /* the lease on the file was reported */
        struct dlock_backoff pause;
        struct flock_wait *thread;
        int64_t look_at;          /* the next look for the holder and our place */
        struct dlock_info holder; /* as last reported */
        bool have_holder;
        int place; /* as last reported; -1: nothing was reported */
    } acquire;
    struct {
        bool registered; /* fd, with spec->slots */
        struct slot_wait wait;
        int held;
    } slots;
    struct {
        struct once_place place;
        struct dlock_run run; /* our run, or the success for which we skip our run */
        char who[RUN_RECORD_MAX];
    } once;
    int64_t release_until;
    struct {
        struct file_holders found;
        int next; /* of found, to be handed out */
        struct dlock_run run;
    } status;
    struct {
        struct file_list of;
        bool on; /* a list is under way */
    } list;
    struct findings found;     /* of a check */
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

static bool wants_slot(const struct file_backend *b)
{
    return b->spec->mode == DLOCK_MODE_SLOTS;
}

static void drop_fd(struct file_backend *b)
{
    slot_wait_end(&b->slots.wait);
    if (b->fd >= 0)
        close(b->fd);
    b->fd = -1;
    b->fd_shared = b->slots.registered = false;
}

/*
 * Drop the lock, which may be held, or taken but never reported as granted. A child that the host
 * program has forked must not keep the lock; a process that got the descriptor on purpose keeps it.
 */
static void drop_lock(struct file_backend *b)
{
    bool unlocks = b->fd >= 0 && !b->fd_shared;
    if (unlocks && wants_slot(b))
        slots_drop(b->fd);
    if (unlocks)
        flock_try(b->fd, LOCK_UN, b->place.fcntl);
    drop_fd(b);
}

/* The operation ends with EV_FAILED. Returns the event's error, for the caller to fill in. */
static struct dlock_error *failed(struct file_backend *b)
{
    drop_lock(b);
    b->op = OP_IDLE;
    return &put(b, EV_FAILED)->error;
}

static void failed_flock(struct file_backend *b, int sys)
{
    dlock_fail(failed(b), DLOCK_EOS, sys, "cannot lock %s: %s", b->place.where, strerror(sys));
}

/* ------------------------------------------------------------- acquire --- */

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
    /* NFS turns flock(2) into a byte-range lock; LOCK_EX needs a writable descriptor. */
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

/* The lock is held, and the caller does not wait. */
static void busy(struct file_backend *b)
{
    struct dlock_event *ev = put(b, EV_BUSY);
    if (b->spec->holder != DLOCK_HOLDER_NEVER && find_holder(b, &b->acquire.holder, &ev->place))
        ev->info = &b->acquire.holder;
    drop_lock(b);
    b->op = OP_IDLE;
}

/* The wait begins. The holder is reported later, if the wait lasts and the caller wants to know. */
static void tell_wait(struct file_backend *b)
{
    if (b->acquire.reported)
        return;
    b->acquire.reported = true;
    if (b->spec->holder == DLOCK_HOLDER_WAITING)
        b->acquire.look_at = now_of(b) + FIRST_LOOK;
    put(b, EV_WAITING)->place = -1;
}

static void try_later(struct file_backend *b)
{
    if (b->acquire.wait)
        tell_wait(b);
    b->op = OP_TRYING;
    b->acquire.retry_at = now_of(b) + dlock_backoff_next(&b->acquire.pause, b->spec->env);
}

/*
 * A file could not be opened. With EWOULDBLOCK a process has a lease on the file, and counts
 * as a holder of the lock, but no call waits for the end of a lease.
 */
static void failed_or_leased(struct file_backend *b, const struct dlock_error *err)
{
    if (err->sys != EWOULDBLOCK) {
        *failed(b) = *err;
        return;
    }
    drop_lock(b);
    if (!b->acquire.leased)
        dlock_fail(&put(b, EV_NOTICE)->error, 0, 0, "%s", err->msg);
    b->acquire.leased = true;
    if (b->acquire.wait)
        try_later(b);
    else
        busy(b);
}

/* All slots are taken. Wait without the shared lock, so that an exclusive waiter has a chance. */
static void no_slot(struct file_backend *b)
{
    flock_try(b->fd, LOCK_UN, false);
    if (!b->acquire.wait) {
        busy(b);
        return;
    }
    slots_show_waiter(b->fd, b->spec->identity->pid);
    if (b->op != OP_WAITING_SLOT) {
        slot_wait_end(&b->slots.wait);
        slot_wait_start(&b->slots.wait, b->fd, now_of(b));
    }
    b->op = OP_WAITING_SLOT;
    b->acquire.rounds = 0;
    tell_wait(b);
}

/* Record the begin of our run, or note it for later. 0 or a negative DLOCK_E*. */
static int begin_run(struct file_backend *b, uint64_t fence, struct dlock_error *err)
{
    struct dlock_run *r = &b->once.run;
    *r = (struct dlock_run){
        .state = DLOCK_RUN_RUNNING, .status = -1, .begin_ms = dlock_wall() / DLOCK_MSEC};
    r->kept_ns = b->spec->once;
    r->fence = fence;
    memcpy(r->token, b->acquire.token, sizeof(r->token));
    if (run_record_who(b->spec, b->once.who, sizeof(b->once.who)) < 0)
        return dlock_fail(err, DLOCK_EOS, 0, "the run record has no room for its owner");
    if (b->spec->hold->begin == RUN_LATER)
        return 0;
    return once_write(&b->once.place, b->fd, r, b->once.who, err);
}

static void replaced(const struct file_backend *b, struct dlock_error *err)
{
    dlock_fail(err, DLOCK_ELOST, 0, "the lock file %s, or the run record, was replaced",
               b->place.where);
}

/*
 * Record the end of our run, while the lock is ours. Returns how the release ends; err: why it is
 * not clean. After the lock's file was replaced another run may hold the lock.
 */
static enum dlock_release_how end_run(struct file_backend *b, struct dlock_error *err)
{
    struct dlock_run *r = &b->once.run, there;
    int rc = file_is_current(&b->place, b->fd, err);
    if (rc == 1) {
        rc = once_read(&b->once.place, b->spec, &there, err);
        /* A removed record is written again. */
        rc = rc < 0 ? rc : rc == 0 || strcmp(there.token, r->token) == 0;
    }
    if (rc == 0) {
        replaced(b, err);
        return DLOCK_RELEASE_NOT_OURS;
    }
    run_record_end(b->spec, r);
    r->end_ms = dlock_wall() / DLOCK_MSEC;
    if (rc < 0 || once_write(&b->once.place, b->fd, r, b->once.who, err) < 0)
        return DLOCK_RELEASE_UNCLEAR;
    once_sweep(&b->once.place, b->spec, b->fd);
    return DLOCK_RELEASE_CLEAN;
}

/* Under the lock of the right file: take a slot, skip the run or begin it, and report the grant. */
static void granted(struct file_backend *b)
{
    const struct dlock_spec *spec = b->spec;
    struct file_record last = {0};
    struct dlock_info info;
    struct dlock_error err;
    int rc = 0;
    if (wants_slot(b)) {
        int sys = slots_take(b->fd, spec->slots, spec->identity->pid, &b->slots.held);
        if (sys == EWOULDBLOCK)
            no_slot(b);
        else if (sys != 0)
            failed_flock(b, sys);
        if (sys != 0)
            return;
    }
    if (spec->once != 0)
        rc = once_read(&b->once.place, spec, &b->once.run, &err);
    if (rc == 1 && run_record_ahead(&b->once.run, spec, &err))
        put(b, EV_NOTICE)->error = err;
    if (rc == 1 && run_record_skips(&b->once.run, spec->once)) {
        drop_lock(b);
        b->op = OP_IDLE;
        put(b, EV_SKIPPED)->run = &b->once.run;
        return;
    }
    /* An exclusive holder gets a new fencing token, a shared holder the last token, or 0. */
    if (rc >= 0 && b->place.named && spec->mode == DLOCK_MODE_EXCLUSIVE)
        rc = file_record_write(&b->place, b->fd, spec->identity, b->acquire.token, &last.fence,
                               &err);
    else if (rc >= 0 && b->place.named)
        rc = file_record_read(&b->place, &last, &err);
    if (rc >= 0 && spec->once != 0)
        rc = begin_run(b, last.fence, &err);
    if (rc < 0) {
        failed_or_leased(b, &err);
        return;
    }
    if (b->place.made && spec->holder == DLOCK_HOLDER_WAITING &&
        proc_locks_removed(b->fd, b->place.fcntl, &info))
        dlock_fail(&put(b, EV_NOTICE)->error, DLOCK_EBUSY, 0,
                   "the lock file %s is new: pid %ld (%.*s) holds a removed one, and both run now: "
                   "let nothing remove lock files",
                   b->place.where, info.pid,
                   (int)dlock_min(60, (int64_t)strcspn(info.command, " ")), info.command);
    b->place.made = false;
    slot_wait_end(&b->slots.wait); /* before the caller forks, and copies the descriptor */
    b->op = OP_HELD;
    struct dlock_event *ev = put(b, EV_GRANTED);
    ev->from = b->acquire.from;
    ev->fence = last.fence;
    ev->slot = wants_slot(b) ? b->slots.held + 1 : 0;
    memcpy(ev->token, b->acquire.token, sizeof(ev->token));
}

/* b->fd is locked: a grant if the path still names this file. False: try again. */
static bool locked(struct file_backend *b)
{
    struct dlock_error err;
    int rc = file_is_current(&b->place, b->fd, &err);
    if (rc == 0) {
        drop_fd(b);
        b->op = OP_TRYING; /* no wait for a slot of the old file goes on */
        if (++b->acquire.rounds < ROUNDS_MAX)
            return false;
        dlock_fail(failed(b), DLOCK_ECREATE, 0,
                   "%s was replaced %d times while it was being locked", b->place.where,
                   b->acquire.rounds);
    } else if (rc < 0) {
        *failed(b) = err;
    } else if (b->spec->once != 0 && once_claim(b->fd) != 0) {
        /* The run record is being swept. A stopped sweeper counts as a holder. */
        drop_lock(b);
        if (!b->acquire.wait && now_of(b) - b->acquire.from > SWEEP_TIME)
            busy(b);
        else
            try_later(b);
    } else {
        granted(b);
    }
    return true;
}

/* One try with the open file. False: the file was replaced, so try again. */
static bool try_open_file(struct file_backend *b)
{
    const struct dlock_spec *spec = b->spec;
    struct dlock_error err;
    unsigned in_use;
    int sys;
    if (wants_slot(b) && !b->slots.registered) {
        sys = slots_register(b->fd, spec->slots, &in_use);
        b->slots.registered = sys == 0 && in_use == 0;
        if (in_use != 0)
            dlock_fail(failed(b), DLOCK_EDATA, 0,
                       "%s: in use with %u slots, which are not %u: "
                       "give all its users the same number",
                       b->place.where, in_use, spec->slots);
        else if (sys == EWOULDBLOCK)
            no_slot(b);
        else if (sys != 0)
            failed_flock(b, sys);
        if (!b->slots.registered)
            return true;
    }
    sys = try_lock(b, &err);
    if (sys == 0)
        return locked(b);
    if (sys < 0) {
        failed_or_leased(b, &err);
    } else if (sys != EWOULDBLOCK) {
        failed_flock(b, sys);
    } else if (!b->acquire.wait) {
        busy(b);
    } else {
        if (wants_slot(b))
            slots_show_waiter(b->fd, spec->identity->pid);
        if (flock_wait_start(&b->acquire.thread, b->fd, lock_op(b), b->place.fcntl) < 0) {
            dlock_fail(failed(b), DLOCK_ENOMEM, 0, "out of memory");
            return true;
        }
        b->op = OP_WAITING;
        b->acquire.rounds = 0;
        tell_wait(b);
    }
    return true;
}

/* Open the file and try, more than once if the file was replaced meanwhile. */
static void try_now(struct file_backend *b)
{
    bool write = b->place.fcntl && lock_op(b) == LOCK_EX;
    enum file_how how = wants_slot(b) ? FILE_FOR_SLOTS
                        : write       ? FILE_FOR_WRITE_LOCK
                                      : FILE_FOR_LOCK;
    struct dlock_error err;
    for (int i = 0; i < ROUNDS_AT_ONCE; i++) {
        if (file_open(&b->place, how, &b->fd, &err) < 0) {
            failed_or_leased(b, &err);
            return;
        }
        const struct file_network *net = file_network(b->fd);
        if (net && wants_slot(b)) {
            /* Other machines see flock(2) at best, but not our bytes; inotify reports no close. */
            dlock_fail(failed(b), DLOCK_EUSAGE, 0,
                       "%s is on a network file system (%s): "
                       "slots need a file of this machine, or a lock server",
                       b->place.where, net->name);
            return;
        }
        if (net && !b->network_reported) {
            b->network_reported = true;
            dlock_fail(&put(b, EV_NOTICE)->error, net->warn ? DLOCK_ELOST : 0, 0,
                       "%s is on a network file system (%s): whether the lock excludes other "
                       "machines depends on how it is mounted (not with local_lock or nolock)",
                       b->place.path, net->name);
        }
        if (try_open_file(b))
            return;
    }
    b->op = OP_TRYING;
    b->acquire.retry_at = now_of(b) + ROUNDS_PAUSE;
}

static void file_acquire(struct dlock_be *be, bool wait)
{
    struct file_backend *b = self(be);
    struct dlock_error err;
    b->acquire.from = now_of(b);
    b->acquire.wait = wait;
    b->acquire.rounds = 0;
    b->acquire.reported = b->acquire.leased = b->acquire.have_holder = false;
    b->acquire.pause = (struct dlock_backoff){.base = LEASED_PAUSE, .max = LEASED_PAUSE_MAX};
    b->acquire.look_at = DLOCK_NEVER;
    b->acquire.place = -1;
    int rc = dlock_token_new(b->spec->env, b->acquire.token);
    if (rc < 0) {
        dlock_fail(failed(b), DLOCK_EOS, -rc, "cannot make an owner token: %s", strerror(-rc));
        return;
    }
    once_done(&b->once.place);
    if (b->spec->once != 0 && once_open(&b->once.place, &b->place, true, &err) < 0) {
        *failed(b) = err;
        return;
    }
    try_now(b);
}

/* ------------------------------------------------- waiting and release --- */

static void proceed(struct file_backend *b)
{
    int sys;
    switch (b->op) {
    case OP_TRYING:
        if (now_of(b) >= b->acquire.retry_at)
            try_now(b);
        break;
    case OP_WAITING_SLOT:
        if (slot_wait_due(&b->slots.wait, now_of(b)) && !try_open_file(b))
            try_now(b);
        break;
    case OP_WAITING:
        if (!flock_wait_check(b->acquire.thread, &sys))
            break;
        flock_wait_free(b->acquire.thread);
        b->acquire.thread = NULL;
        if (sys != 0)
            failed_flock(b, sys);
        else if (!locked(b))
            try_now(b);
        break;
    case OP_CANCELLING:
        if (!flock_wait_check(b->acquire.thread, &sys) && now_of(b) < b->release_until)
            break;
        flock_wait_free(b->acquire.thread);
        b->acquire.thread = NULL;
        drop_lock(b);
        b->op = OP_IDLE;
        put(b, EV_RELEASED)->how = DLOCK_RELEASE_NOTHING;
        break;
    case OP_IDLE:
    case OP_HELD:
        break;
    }
}

static bool is_waiting(const struct file_backend *b)
{
    return b->op == OP_TRYING || b->op == OP_WAITING || b->op == OP_WAITING_SLOT;
}

/* When the time has come, look for the holder and for our place, and report changes. */
static void look_in_time(struct file_backend *b)
{
    struct dlock_info *info = &b->acquire.holder, old = *info;
    bool had = b->acquire.have_holder;
    int place;
    if (!is_waiting(b) || now_of(b) < b->acquire.look_at)
        return;
    b->acquire.look_at = now_of(b) + NEXT_LOOK;
    b->acquire.have_holder = find_holder(b, info, &place);
    if (had == b->acquire.have_holder && place == b->acquire.place &&
        (!had || (old.pid == info->pid && old.fence == info->fence &&
                  strcmp(old.command, info->command) == 0)))
        return;
    b->acquire.place = place;
    struct dlock_event *ev = put(b, EV_WAITING);
    ev->info = b->acquire.have_holder ? info : NULL;
    ev->place = place;
}

static void drop_holders(struct file_backend *b)
{
    free(b->status.found.info);
    memset(&b->status, 0, sizeof(b->status));
    if (b->list.on)
        file_list_done(&b->list.of);
    b->list.on = false;
    findings_drop(&b->found);
}

/* RUN_NOW: there is no lease to renew. */
static void file_renew(struct dlock_be *be)
{
    struct file_backend *b = self(be);
    struct dlock_error err = {0};
    struct dlock_run there;
    int rc = file_is_current(&b->place, b->fd, &err);
    if (rc == 0)
        replaced(b, &err);
    else if (rc == 1 && (once_read(&b->once.place, b->spec, &there, &err) < 0 ||
                         begin_run(b, b->once.run.fence, &err) < 0))
        rc = -1;
    struct dlock_event *ev = put(b, rc == 1 ? EV_RENEWED : rc == 0 ? EV_LOST : EV_UNCLEAR);
    ev->from = now_of(b);
    ev->ttl = DLOCK_NEVER;
    ev->error = err;
}

static void file_release(struct dlock_be *be, int64_t until)
{
    struct file_backend *b = self(be);
    bool held = b->op == OP_HELD, reported = b->nout == 0;
    enum dlock_release_how how = held ? DLOCK_RELEASE_CLEAN : DLOCK_RELEASE_NOTHING;
    struct dlock_error err = {0};
    if (b->op == OP_CANCELLING) {
        b->release_until = dlock_min(b->release_until, until);
        return;
    }
    if (b->nout > 0 && b->out[b->nout - 1].type == EV_RELEASED)
        return;
    b->nout = 0;
    drop_holders(b);
    if (b->op == OP_WAITING) {
        b->op = OP_CANCELLING;
        b->release_until = until;
        flock_wait_cancel(b->acquire.thread);
        return;
    }
    if (held && reported && run_record_begun(b->spec))
        how = end_run(b, &err);
    drop_lock(b);
    b->op = OP_IDLE;
    struct dlock_event *ev = put(b, EV_RELEASED);
    ev->how = how;
    if (how != DLOCK_RELEASE_CLEAN)
        ev->error = err;
}

/* ----------------------------------------------------------------- ask --- */

static void read_lock(struct file_backend *b)
{
    struct dlock_error err = {0};
    if (file_status(&b->place, NULL, &b->status.found, &err) < 0) {
        put(b, EV_FAILED)->error = err;
        return;
    }
    struct dlock_event *ev = put(b, EV_READ);
    int rc = b->place.named ? once_open(&b->once.place, &b->place, false, &ev->error) : 0;
    if (rc == 0 && b->place.named)
        rc = once_read(&b->once.place, b->spec, &b->status.run, &ev->error);
    if (rc == 1)
        ev->run = &b->status.run;
    if (rc >= 0 && b->status.found.no_file)
        dlock_fail(&ev->error, 0, 0, "no such file");
}

/* Remove the run record if it is as read. Returns the event that ends the step. */
static enum dlock_ev forget(struct file_backend *b, const struct dlock_run *as, bool *stepped,
                            struct dlock_error *err)
{
    struct dlock_run run;
    int sys = 0, current = 0;
    for (int i = 0; i < ROUNDS_AT_ONCE && sys == 0 && current == 0; i++) {
        drop_fd(b);
        if (file_open(&b->place, FILE_FOR_LOCK, &b->fd, err) < 0)
            return EV_FAILED;
        sys = try_lock(b, err);
        if (sys == 0)
            current = file_is_current(&b->place, b->fd, err);
        if (sys < 0 || current < 0)
            return EV_FAILED;
    }
    if (current == 0 && sys == 0)
        sys = EWOULDBLOCK;
    /* The record may have changed before we had the lock. */
    int rc = once_read(&b->once.place, b->spec, &run, err);
    if (rc < 0)
        return EV_FAILED;
    if (rc == 0 || strcmp(run.token, as->token) != 0 || run.state != as->state)
        return EV_STEPPED;
    if (sys == EWOULDBLOCK && run.state == DLOCK_RUN_RUNNING)
        return EV_BUSY;
    if (sys != 0) {
        dlock_fail(err, sys == EWOULDBLOCK ? DLOCK_EBUSY : DLOCK_EOS, sys,
                   "%s: cannot lock the file to remove its run record: %s", b->place.where,
                   sys == EWOULDBLOCK ? "the lock is held" : strerror(sys));
        return EV_FAILED;
    }
    *stepped = once_remove(&b->once.place, err) >= 0;
    return *stepped ? EV_STEPPED : EV_FAILED;
}

/* STEP_READ or STEP_FORGET: no_break. */
static void file_step(struct dlock_be *be, const struct dlock_order *order)
{
    struct file_backend *b = self(be);
    struct dlock_error err = {0};
    bool stepped = false;
    drop_holders(b);
    if (order->what == STEP_READ) {
        read_lock(b);
        return;
    }
    enum dlock_ev end = forget(b, order->run, &stepped, &err);
    drop_lock(b);
    struct dlock_event *ev = put(b, end);
    ev->stepped = stepped;
    if (end == EV_FAILED)
        ev->error = err;
}

static bool file_next(struct dlock_be *be, struct dlock_info *info)
{
    struct file_backend *b = self(be);
    bool more = b->status.next < b->status.found.n;
    if (more)
        *info = b->status.found.info[b->status.next++];
    return more;
}

static void file_rest(struct dlock_be *be)
{
    drop_holders(self(be));
}

static void start_list(struct file_backend *b)
{
    struct dlock_error err = {0}, notice = {0};
    int rc = file_list_start(&b->list.of, &b->place, &notice, &err);
    b->list.on = true;
    if (notice.code != 0)
        put(b, EV_NOTICE)->error = notice;
    if (rc == 0)
        return;
    drop_holders(b);
    put(b, EV_FAILED)->error = err;
}

/* The next event of the list. */
static void answer_list(struct file_backend *b, struct dlock_event *ev)
{
    struct file_list *l = &b->list.of;
    struct dlock_error err = {0};
    int rc = file_list_next(l, &err);
    if (rc == 0 && l->hidden) {
        l->hidden = false;
        *ev = (struct dlock_event){.type = EV_NOTICE};
        dlock_fail(
            &ev->error, DLOCK_EPERM, 0,
            "/proc hides the processes of other users: of some holders only the pid is known");
        return;
    }
    *ev = (struct dlock_event){.type = rc == 1 ? EV_ENTRY : rc < 0 ? EV_FAILED : EV_DONE};
    if (rc == 1) {
        ev->entry = &l->entry;
        return;
    }
    ev->error = err;
    if (rc == 0 && l->no_dir)
        dlock_fail(&ev->error, 0, 0, "no such directory");
    drop_holders(b);
}

static void file_ask(struct dlock_be *be, const struct dlock_question *question)
{
    struct file_backend *b = self(be);
    drop_holders(b);
    if (question->what == ASK_LIST)
        start_list(b);
    else
        file_check(&b->place, b->spec, &b->found);
}

/* ------------------------------------------------------------ the rest --- */

static int file_interest(struct dlock_be *be, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    struct file_backend *b = self(be);
    int64_t now = now_of(b);
    if (b->nout > 0 || b->list.on || b->found.ended)
        *wake_at = dlock_min(*wake_at, now);
    if (b->op == OP_TRYING)
        *wake_at = dlock_min(*wake_at, b->acquire.retry_at);
    if (is_waiting(b))
        *wake_at = dlock_min(*wake_at, b->acquire.look_at);
    if (b->op == OP_CANCELLING)
        *wake_at = dlock_min(*wake_at, b->release_until);
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
    if (b->nout == 0)
        proceed(b);
    if (b->nout == 0)
        look_in_time(b);
    if (b->nout > 0) {
        *ev = b->out[0];
        memmove(b->out, b->out + 1, sizeof(b->out[0]) * (size_t)--b->nout);
        return 1;
    }
    if (!b->list.on)
        return findings_take(&b->found, ev);
    answer_list(b, ev);
    return 1;
}

static int file_inherit_fd(struct dlock_be *be, bool shared)
{
    struct file_backend *b = self(be);
    if (b->op != OP_HELD)
        return -1;
    b->fd_shared |= shared;
    return b->fd;
}

static int file_own_fds(struct dlock_be *be, int *fds, int cap)
{
    const struct once_place *o = &self(be)->once.place;
    int all[] = {self(be)->place.dir, o->shards, o->path ? o->dir : -1}, n = 0;
    for (size_t i = 0; i < DLOCK_LEN(all) && n < cap; i++)
        if (all[i] >= 0)
            fds[n++] = all[i];
    return n;
}

static bool file_is_file(struct dlock_be *be, int fd)
{
    return file_is_current(&self(be)->place, fd, NULL) == 1;
}

static char *file_path(const struct dlock_uri *uri)
{
    struct file_place place;
    return file_place_init(&place, uri, NULL) < 0 ? NULL : place.where;
}

static void free_all(struct file_backend *b)
{
    flock_wait_free(b->acquire.thread);
    drop_fd(b);
    drop_holders(b);
    once_done(&b->once.place);
    file_place_done(&b->place);
    free(b);
}

static void file_close(struct dlock_be *be)
{
    struct file_backend *b = self(be);
    if (b && b->op == OP_HELD)
        drop_lock(b);
    if (b)
        free_all(b);
}

/* The child closes its copy of the descriptor. To unlock would take the parent's lock. */
static void file_close_in_child(struct dlock_be *be)
{
    struct file_backend *b = self(be);
    flock_wait_close_in_child(b->acquire.thread);
    b->acquire.thread = NULL;
    free_all(b);
}

static int file_open_lock(struct dlock_be **out, const struct dlock_spec *spec,
                          struct dlock_error *err)
{
    if (spec->mode == DLOCK_MODE_SLOTS && spec->fcntl)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "slots are byte locks beside one of flock(2): not with fcntl(2) locks");
    struct file_backend *b = calloc(1, sizeof(*b));
    if (!b)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    *out = (struct dlock_be *)b;
    b->spec = spec;
    b->fd = -1;
    b->slots.wait.fd = -1;
    b->once.place = ONCE_NOWHERE;
    int rc = file_place_init(&b->place, spec->uri, err);
    /* Holders of both kinds of lock would run, and write the token, at the same time. */
    if (rc == 0 && spec->fcntl && b->place.named)
        rc = dlock_fail(err, DLOCK_EUSAGE, 0,
                        "fcntl(2) locks are for a file's path: "
                        "a named lock is always one of flock(2)");
    if (rc == 0 && spec->once != 0 && !b->place.named)
        rc = dlock_fail(err, DLOCK_EUSAGE, 0,
                        "--once needs a place for its record, and dlock never writes to a bare "
                        "file: name a lock in a directory on disk (file:///DIRECTORY#NAME), or "
                        "@NAME");
    b->place.fcntl = spec->fcntl;
    return rc;
}

static const char *const schemes[] = {"file", NULL};

const struct dlock_backend dlock_backend_file = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_VERSION,
    .name = "file",
    .schemes = schemes,
    .caps = CAP_SHARED | CAP_SLOTS | CAP_FD | CAP_FENCE | CAP_ONCE,
    .no_break =
        "the kernel keeps this lock for the processes that have the file open: end them, as "
        "dlock --break does",
    .open = file_open_lock,
    .acquire = file_acquire,
    .renew = file_renew,
    .release = file_release,
    .look = file_look,
    .ask = file_ask,
    .step = file_step,
    .next = file_next,
    .rest = file_rest,
    .interest = file_interest,
    .process = file_process,
    .inherit_fd = file_inherit_fd,
    .is_file = file_is_file,
    .path = file_path,
    .own_fds = file_own_fds,
    .close = file_close,
    .close_in_child = file_close_in_child,
};
