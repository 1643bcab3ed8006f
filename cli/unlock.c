/*
 * unlock.c - flock(1)'s descriptor form: lock or unlock a file that the caller has open.
 *
 *     ( dlock -n 9 || exit 1; ... ) 9>lockfile
 *
 * The lock belongs to the open file that we share with the caller, so it stays when we exit. The
 * caller may go on without it: a cancelled wait must not leave the lock behind.
 */
#include "backends/file/flock_wait.h"
#include "backends/file/proc_locks.h"
#include "messages.h"
#include "modes.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>

/* Within -w's 100 ms tolerance: how long to wait for a cancelled thread; then it ends with us. */
#define CANCEL_WITHIN (50 * DLOCK_MSEC)

struct fdlock {
    const struct options *o;
    const struct sigstate *sig;
    struct flock_wait *waiter;
    int64_t until;     /* -w */
    int64_t report_at; /* when to report the wait, with -v */
};

static int fail_flock(const struct options *o, int sys)
{
    struct dlock_error err;
    bool theirs = sys == EBADF || sys == EINVAL;

    dlock_fail(&err, theirs ? DLOCK_EUSAGE : DLOCK_EOS, sys, "cannot %s descriptor %d: %s%s",
               o->mode == MODE_UNLOCK ? "unlock" : "lock", o->fd, strerror(sys),
               sys == EBADF ? " (on NFS an exclusive lock needs one that is open for writing)"
                            : "");
    return message_error(o, &err);
}

/* " by HOLDER" for a message; "" when the holder is unknown. */
static const char *holder(int fd, char *buf, size_t size)
{
    char text[900];
    struct proc_locks_file lf;
    struct proc_lock lock;
    struct dlock_info info;

    buf[0] = '\0';
    if (proc_locks_file(fd, &lf) < 0 || proc_locks_read(&lf, &lock, 1) != 1 || lock.waiter)
        return buf;
    proc_locks_describe(&lock, &lf, &info);
    snprintf(buf, size, " by %s", message_holder(&info, text, sizeof(text)));
    return buf;
}

static int busy(const struct options *o)
{
    struct dlock_error err;
    char held_by[1000], time[32] = "";

    if (!o->nonblock && o->wait_ns > 0 && o->wait_ns < DLOCK_NEVER)
        dlock_format_duration(o->wait_ns, time, sizeof(time));
    dlock_fail(&err, DLOCK_EBUSY, 0, "descriptor %d: the lock is held%s%s%s", o->fd,
               o->quiet ? "" : holder(o->fd, held_by, sizeof(held_by)),
               time[0] ? "; gave up after " : "", time);
    return message_error(o, &err);
}

/* Sleep until the thread reports, until that time, or, with signals, until a signal comes. */
static void sleep_until(const struct fdlock *l, bool signals, int64_t until)
{
    struct pollfd pfd[2] = {{.fd = signals ? l->sig->fd : -1, .events = POLLIN}};
    int n = 1 + flock_wait_interest(l->waiter, pfd + 1, 1, dlock_now(), &until);

    poll(pfd, (nfds_t)n, dlock_poll_ms(dlock_now(), until));
}

/* End the wait, in bounded time. False: the thread is stuck in a request to a dead file server. */
static bool give_up(struct fdlock *l)
{
    int64_t until = dlock_now() + CANCEL_WITHIN;
    int sys;

    flock_wait_cancel(l->waiter);
    while (!flock_wait_check(l->waiter, &sys)) {
        if (dlock_now() >= until)
            return false;
        sleep_until(l, false, until);
    }
    return true;
}

static void read_signals(struct fdlock *l)
{
    struct signalfd_siginfo si;

    while (signals_read(l->sig, &si)) {
        int sig = (int)si.ssi_signo;
        if (signals_stops(sig))
            signals_stop_self(sig);
        if (!signals_cancels(sig))
            continue;
        /* The lock may have been granted in this moment, and the caller would not know. */
        if (give_up(l))
            flock(l->o->fd, LOCK_UN);
        signals_die(sig);
    }
}

static void report_wait(struct fdlock *l)
{
    char held_by[1000];

    if (dlock_now() < l->report_at)
        return;
    l->report_at = DLOCK_NEVER;
    if (l->o->verbose)
        message("descriptor %d: waiting, the lock is held%s", l->o->fd,
                holder(l->o->fd, held_by, sizeof(held_by)));
}

static int wait_for_lock(struct fdlock *l, int op)
{
    int sys;

    if (flock_wait_start(&l->waiter, l->o->fd, op) < 0)
        return fail_flock(l->o, ENOMEM);
    while (!flock_wait_check(l->waiter, &sys)) {
        if (dlock_now() >= l->until) {
            if (!give_up(l))
                return busy(l->o); /* exit ends the thread */
            /* It may have been granted in the last moment: to lock again tells, and does no harm. */
            sys = flock(l->o->fd, op | LOCK_NB) == 0 ? 0 : errno;
            break;
        }
        sleep_until(l, true, dlock_min(l->until, l->report_at));
        read_signals(l);
        report_wait(l);
    }
    flock_wait_free(l->waiter);
    if (sys == EWOULDBLOCK)
        return busy(l->o);
    return sys == 0 ? 0 : fail_flock(l->o, sys);
}

/* Lock it, or unlock it. 0, or an exit code after the message. */
static int lock_fd(const struct options *o, const struct sigstate *sig, int64_t now)
{
    int op = o->mode == MODE_UNLOCK ? LOCK_UN : o->lock_mode == DLOCK_SHARED ? LOCK_SH : LOCK_EX;
    struct fdlock l = {.o = o, .sig = sig, .until = DLOCK_NEVER};

    if (flock(o->fd, op | LOCK_NB) == 0)
        return 0;
    if (errno != EWOULDBLOCK)
        return fail_flock(o, errno);
    if (o->nonblock || o->wait_ns == 0)
        return busy(o);
    if (o->wait_ns < DLOCK_NEVER - now)
        l.until = now + o->wait_ns;
    l.report_at = now + DLOCK_SEC;
    return wait_for_lock(&l, op);
}

int fdlock_mode(const struct options *o, const struct sigstate *sig)
{
    int64_t now = dlock_now();
    struct dlock_error err;
    char text[32];

    /* A close-on-exec descriptor is one of our own: no caller can have passed it. */
    if (fcntl(o->fd, F_GETFD) != 0) {
        dlock_fail(&err, DLOCK_EUSAGE, EBADF, "descriptor %d is not open", o->fd);
        return message_error(o, &err);
    }
    int code = lock_fd(o, sig, now);
    snprintf(text, sizeof(text), "descriptor %d", o->fd);
    if (code == 0 && o->verbose && o->mode == MODE_FD)
        message_took(text, now);
    return code;
}
