/*
 * break_file.c - --break of a file lock. The kernel holds the lock for the processes that have the
 * locked file open, so nothing but their end frees it: they get TERM, or KILL with --force. A dlock
 * passes TERM on to its command; after flock(1) its command keeps the file open, and is next.
 */
#include "backends/file/proc_locks.h"
#include "break.h"
#include "messages.h"
#include "open.h"
#include "pidfd.h"
#include "query.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define LOOKS 5 /* for a holder that a status query shows, and /proc/locks does not */
#define HOLDERS_MAX (DLOCK_SLOTS_MAX + 24) /* all slots, and some shared ones */

/* A hold in /proc/locks: the process that took the lock, which may have passed it on, or ended. */
struct file_hold {
    struct proc_locks_file file;
    long taker;
    bool queued; /* a waiter was seen, who may have the lock by now */
};

/*
 * The entry of the hold. False: it is over. In a PID namespace the entry loses its pid when the
 * taker ends: a hold that is shared, or waited for, cannot be told from others then, and counts as
 * over.
 */
static bool find_hold(struct file_hold *h, struct proc_lock *out)
{
    struct proc_lock all[HOLDERS_MAX];
    int n = proc_locks_read(&h->file, all, HOLDERS_MAX);
    for (int i = 0; i < n; i++)
        h->queued |= all[i].waiter;
    for (int i = 0; i < n; i++) {
        bool ended = all[i].pid == 0 && !all[i].unnamed && !all[i].shared && !h->queued;
        if (all[i].waiter || (all[i].pid != h->taker && !ended))
            continue;
        *out = all[i];
        return true;
    }
    return false;
}

/* The process that has the lock of this entry now; 0: not known. */
static long process_of(const struct file_hold *h, const struct proc_lock *l)
{
    struct dlock_info info;
    proc_locks_describe(l, &h->file, &info);
    return info.pid;
}

/* Find the hold that a status query has shown. False: /proc/locks does not show it. */
static bool find_shown(const struct options *o, const dlock *lk, const struct dlock_info *hold,
                       struct file_hold *h)
{
    struct proc_lock all[HOLDERS_MAX];
    char path[PATH_MAX];
    int fd = -1, n = 0;
    h->queued = false;
    if (hold->pid > 0 && open_path(dlock_uri_of(lk), path))
        fd = open(path, O_PATH | O_CLOEXEC);
    if (fd >= 0 && proc_locks_file(fd, &h->file) == 0) {
        h->file.kind = o->fcntl ? PROC_LOCKS_FCNTL : PROC_LOCKS_FLOCK;
        n = proc_locks_read(&h->file, all, HOLDERS_MAX);
    }
    if (fd >= 0)
        close(fd);
    for (int i = 0; i < n; i++) {
        h->taker = all[i].pid;
        if (!all[i].waiter && !all[i].unnamed && process_of(h, &all[i]) == hold->pid)
            return true;
    }
    return false;
}

/* To a process that still has the lock: the pid cannot be in use again meanwhile. 0 or an errno. */
static int send_signal(struct file_hold *h, long pid, int sig)
{
    int fd = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0), sys = 0;
    struct proc_lock l;
    if (fd < 0)
        return errno == ESRCH ? 0 : errno;
    bool has = find_hold(h, &l) && process_of(h, &l) == pid;
    if (has && syscall(SYS_pidfd_send_signal, fd, sig, NULL, 0) != 0)
        sys = errno == ESRCH ? 0 : errno;
    else if (has && sig == SIGTERM) /* a stopped process obeys only then */
        syscall(SYS_pidfd_send_signal, fd, SIGCONT, NULL, 0);
    close(fd);
    return sys;
}

/* Signal each process that has the lock in turn, until the hold is over. */
static int end_hold(const struct options *o, const struct sigstate *sig, dlock *lk,
                    const struct dlock_info *hold, struct file_hold *h)
{
    int64_t until = dlock_after(dlock_now(), break_time(o, hold)), pause = BREAK_LOOK_FIRST;
    const char *sent = o->force ? "KILL was sent to the holder" : "TERM was sent to the holder";
    char lock[LOCK_TEXT_MAX];
    struct proc_lock l;
    long asked = 0;
    while (find_hold(h, &l)) {
        long pid = process_of(h, &l);
        /*
         * The kernel tells no taker of a lock of fcntl(2) on an open file: another process with the
         * lock is the next holder. Or it is this process, by a descriptor that it has inherited.
         */
        if (pid == getpid() || (h->taker < 0 && pid != hold->pid))
            break;
        int sys = pid > 0 && pid != asked ? send_signal(h, pid, o->force ? SIGKILL : SIGTERM) : 0;
        if (sys != 0) {
            message("%s: cannot signal its holder, pid %ld: %s; %s", message_lock(lk, "", lock),
                    pid, strerror(sys), asked ? sent : "nothing was done");
            return dlock_error_exit(sys == EPERM ? DLOCK_EPERM : DLOCK_EOS);
        }
        asked = pid > 0 ? pid : asked;
        if (dlock_now() >= until) {
            message("%s is still held by pid %ld; %s", message_lock(lk, "", lock), asked, sent);
            return o->conflict_code;
        }
        query_pause(sig, lk, sent, dlock_min(pause, until - dlock_now()));
        pause = dlock_min(pause * 2, BREAK_LOOK_MOST);
    }
    return -1;
}

static int unreachable(const dlock *lk, const struct dlock_info *hold)
{
    char lock[LOCK_TEXT_MAX];
    message_lock(lk, "", lock);
    if (hold->pid > 0)
        message("%s: its holder cannot be signalled from here: run \"kill %ld\" on %s", lock,
                hold->pid, hold->host[0] ? hold->host : "its machine");
    else
        message("%s: its holder cannot be seen from here: look for it on the other machines "
                "and in the containers that use this file",
                lock);
    return dlock_error_exit(DLOCK_EUNUSABLE);
}

int break_file(const struct options *o, const struct sigstate *sig, dlock *lk,
               const struct dlock_info *hold)
{
    struct dlock_info there = *hold;
    /* A holder that executes a program just now shows no descriptors: look again. */
    for (int looks = 1;; looks++) {
        struct found now = {0};
        struct file_hold h;
        dlock_start_status(lk, NULL);
        int code = query_run(o, sig, lk, &now);
        const struct dlock_info *same = query_same_hold(&now, hold), *other = query_holder(&now);
        bool over = code < 0 && !same;
        if (same)
            there = *same;
        if (over && other && hold->mode == DLOCK_MODE_EXCLUSIVE)
            code = break_changed(o, lk, other);
        query_free(&now);
        if (over || code >= 0)
            return code;
        if (find_shown(o, lk, &there, &h))
            return end_hold(o, sig, lk, &there, &h);
        if (looks == LOOKS)
            return unreachable(lk, &there);
        query_pause(sig, lk, "nothing was done", BREAK_LOOK_FIRST);
    }
}
