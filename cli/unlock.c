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
#include "report.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

/* Within -w's 100 ms tolerance: how long to wait for a cancelled thread; then it ends with us. */
#define CANCEL_WITHIN (50 * DLOCK_MSEC)

/* As for the file of a LOCK. */
#define FIRST_LOOK (950 * DLOCK_MSEC)
#define LOOK_EVERY (5 * DLOCK_SEC)

struct fdlock {
    const struct options *o;
    const struct sigstate *sig;
    struct flock_wait *waiter;
    int64_t until;   /* -w */
    int64_t look_at; /* when to look for the holder, for the report */
    struct report report;
};

/* The exit code, after the message. */
static int fail(const struct options *o, int sys)
{
    struct dlock_error err;
    bool theirs = sys == EBADF || sys == EINVAL;
    const char *why = "";
    if (sys == EBADF && o->fcntl)
        why = " (with --fcntl a shared lock needs a descriptor that is open for reading, "
              "an exclusive lock for writing)";
    else if (sys == EBADF)
        why = " (on NFS an exclusive lock needs a descriptor that is open for writing)";
    dlock_fail(&err, theirs ? DLOCK_EUSAGE : DLOCK_EOS, sys, "cannot %s descriptor %d: %s%s",
               o->mode == MODE_UNLOCK ? "unlock" : "lock", o->fd, strerror(sys), why);
    return message_error(o, &err);
}

/* NULL: unknown. */
static const struct dlock_info *find_holder(const struct options *o, struct dlock_info *info)
{
    struct proc_locks_file lf;
    struct proc_lock lock;
    if (proc_locks_file(o->fd, &lf) < 0)
        return NULL;
    lf.kind = o->fcntl ? PROC_LOCKS_FCNTL : PROC_LOCKS_FLOCK;
    if (proc_locks_read(&lf, &lock, 1) != 1 || lock.waiter)
        return NULL;
    proc_locks_describe(&lock, &lf, info);
    return info;
}

static int busy(struct fdlock *l)
{
    struct dlock_info info;
    bool tells = message_tells(l->o, message_about_busy(l->o));
    report_busy(&l->report, tells ? find_holder(l->o, &info) : NULL, false);
    return l->o->conflict_code;
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

/* Wait for the lock. 0, or an exit code after the message. */
static int wait_for_lock(struct fdlock *l, int op)
{
    struct dlock_report r = {.type = DLOCK_REPORT_WAITING};
    struct signalfd_siginfo si;
    struct dlock_info info;
    int sys;
    if (flock_wait_start(&l->waiter, l->o->fd, op, l->o->fcntl) < 0)
        return fail(l->o, ENOMEM);
    while (!flock_wait_check(l->waiter, &sys)) {
        if (dlock_now() >= l->until) {
            if (!give_up(l))
                return busy(l); /* exit ends the thread */
            /* The lock may have been granted meanwhile. To lock again tells, and does no harm. */
            sys = flock_try(l->o->fd, op, l->o->fcntl);
            break;
        }
        sleep_until(l, true, dlock_min(l->until, dlock_min(l->look_at, report_wake(&l->report))));
        while (signals_read(l->sig, &si)) {
            int sig = (int)si.ssi_signo;
            if (signals_stops(sig)) {
                message_erase(); /* the shell writes its own line now */
                signals_stop_self(sig);
            }
            if (sig == SIGCONT)
                report_continue(&l->report);
            if (!signals_cancels(sig))
                continue;
            report_cancelled(&l->report);
            /* The lock may have been granted in this moment, and the caller would not know. */
            if (give_up(l))
                flock_try(l->o->fd, LOCK_UN, l->o->fcntl);
            signals_die(sig);
        }
        int64_t now = dlock_now();
        if (now >= l->look_at) {
            l->look_at = now + LOOK_EVERY;
            r.info = find_holder(l->o, &info);
            report_waiting(&l->report, &r);
        }
        report_tick(&l->report, now);
    }
    flock_wait_free(l->waiter);
    if (sys == EWOULDBLOCK)
        return busy(l);
    return sys == 0 ? 0 : fail(l->o, sys);
}

int fdlock_mode(const struct options *o, const struct sigstate *sig)
{
    struct fdlock l = {.o = o, .sig = sig, .look_at = DLOCK_NEVER};
    int op = o->mode == MODE_UNLOCK              ? LOCK_UN
             : o->lock_mode == DLOCK_MODE_SHARED ? LOCK_SH
                                                 : LOCK_EX;
    struct dlock_error err;
    int code = 0;
    report_begin(&l.report, o, NULL, NULL);
    /* A close-on-exec descriptor is one of our own: no caller can have passed it. */
    if (fcntl(o->fd, F_GETFD) != 0) {
        dlock_fail(&err, DLOCK_EUSAGE, EBADF, "descriptor %d is not open", o->fd);
        return message_error(o, &err);
    }
    if (o->mode == MODE_FD && message_tells(o, ABOUT_DETAIL)) {
        char link[32], path[PATH_MAX];
        snprintf(link, sizeof(link), "/proc/self/fd/%d", o->fd);
        message("descriptor %d is %s", o->fd, realpath(link, path) ? path : "no file with a path");
    }
    int64_t now = l.report.wait.since;
    int sys = flock_try(o->fd, op, o->fcntl);
    if (sys != 0 && sys != EWOULDBLOCK)
        return fail(o, sys);
    if (sys != 0 && o->nonblock)
        return busy(&l);
    if (sys != 0) {
        l.until = dlock_after(now, o->wait_ns);
        if (message_tells(o, ABOUT_WAIT))
            l.look_at = now + FIRST_LOOK;
        code = wait_for_lock(&l, op);
    }
    if (code == 0 && o->mode == MODE_FD)
        report_granted(&l.report);
    return code;
}
