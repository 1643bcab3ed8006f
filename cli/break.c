/*
 * break.c - --break LOCK: take the lock away from a holder. The hold is marked, and the living
 * holder ends its own command before the lock is free; --force frees the lock at once. The holder
 * of a file gets a signal instead.
 */
#include "backends/file/proc_locks.h"
#include "messages.h"
#include "modes.h"
#include "open.h"
#include "pidfd.h"
#include "query.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Between two looks whether the hold is over. */
#define LOOK_FIRST (50 * DLOCK_MSEC)
#define LOOK_MOST (500 * DLOCK_MSEC)
#define LOOKS 5 /* for a holder that a status query shows, and /proc/locks does not */
#define HOLDERS_MAX (DLOCK_SLOTS_MAX + 24) /* all slots, and some shared ones */

/* A server that took over may lack the newest writes of the old one. */
#define MARK_GONE "the mark is gone, as after a failover: break the hold again"

/* --holder: a token, or HOST:PID. */
static bool is_meant(const struct dlock_info *h, const char *id)
{
    char process[sizeof(h->host) + 24];
    if (h->token[0] && strcmp(h->token, id) == 0)
        return true;
    snprintf(process, sizeof(process), "%s:%ld", h->host, h->pid);
    return h->pid > 0 && strcmp(process, id) == 0;
}

/* The holder to break; NULL after a message, with the exit code. */
static const struct dlock_info *pick(const struct options *o, const dlock *lk,
                                     const struct found *f, int *code)
{
    const struct dlock_info *meant = NULL;
    char lock[LOCK_TEXT_MAX];
    int holders = 0;
    for (size_t i = 0; i < f->n; i++) {
        if (f->all[i].waiter)
            continue;
        holders++;
        if (!meant && (!o->holder || is_meant(&f->all[i], o->holder)))
            meant = &f->all[i];
    }
    if (holders == 0) {
        *code = 0;
        return NULL;
    }
    if (!meant) {
        message("%s has no holder %.200s", message_lock(lk, "", lock), o->holder);
        *code = o->conflict_code;
        return NULL;
    }
    if (holders > 1 && !o->holder) {
        message("%s has %d holders: pick one with --holder HOST:PID", message_lock(lk, "", lock),
                holders);
        *code = dlock_error_exit(DLOCK_EUSAGE);
        return NULL;
    }
    return meant;
}

/* How long to wait for the end of the hold. */
static int64_t break_time(const struct options *o, const struct dlock_info *hold)
{
    int64_t left = hold->left_ns == DLOCK_NEVER ? 0 : hold->left_ns;
    if (o->wait_ns != DLOCK_NEVER)
        return o->wait_ns;
    return dlock_max(left, o->ttl_ns) + dlock_max(o->grace_ns, 5 * DLOCK_SEC) + DLOCK_SEC;
}

/* Another process (NULL: not known) has the lock now. Returns the exit code. */
static int break_changed(const struct options *o, const dlock *lk, const struct dlock_info *now)
{
    char lock[LOCK_TEXT_MAX], holder[HOLDER_TEXT_MAX];
    if (message_tells(o, ABOUT_TIMEOUT))
        message("%s has changed hands, nothing was done: %s", message_lock(lk, "", lock),
                now ? message_holder(now, holder, sizeof(holder)) : "held");
    return o->conflict_code;
}

/* ------------------------------------------------- a mark in the store --- */

/* Wait until the hold is over. An outage of the store is told once, and ends the wait in time. */
static int await_end(const struct options *o, const struct sigstate *sig, dlock *lk,
                     const struct dlock_info *hold, const char *dying)
{
    int64_t until = dlock_after(dlock_now(), break_time(o, hold)), pause = LOOK_FIRST;
    char lock[LOCK_TEXT_MAX], holder[HOLDER_TEXT_MAX];
    bool silent = false;
    for (;;) {
        struct found f = {.dying = dying, .silent = silent};
        dlock_start_status(lk, NULL);
        int code = query_run(o, sig, lk, &f);
        const struct dlock_info *same = query_same_hold(&f, hold);
        const char *state = same && !same->broken ? MARK_GONE : dying;
        query_free(&f);
        if (code < 0 && !same)
            return -1;
        silent = code >= 0;
        if (dlock_now() >= until) {
            if (code < 0)
                message("%s is still held by %s; %s", message_lock(lk, "", lock),
                        message_process(hold, holder, sizeof(holder)), state);
            return code < 0 ? o->conflict_code : code;
        }
        query_pause(sig, lk, dying, dlock_min(pause, until - dlock_now()));
        pause = dlock_min(pause * 2, LOOK_MOST);
    }
}

/* The holder was shown, and the user agrees. -1: the hold is over; else an exit code. */
static int break_hold(const struct options *o, const struct sigstate *sig, dlock *lk,
                      const struct dlock_info *hold)
{
    struct found f = {.dying = "the hold may be marked already"};
    struct dlock_error err;
    char lock[LOCK_TEXT_MAX], dying[128];
    if (dlock_start_break(lk, hold, o->force, &err) < 0)
        return message_error(o, &err);
    int code = query_run(o, sig, lk, &f);
    if (f.busy)
        code = break_changed(o, lk, f.has_holder ? &f.holder : NULL);
    if (code < 0 && o->force)
        message("%s was freed by force: its command may still run beside the next one",
                message_lock(lk, "", lock));
    if (code < 0 && f.marked) {
        snprintf(dying, sizeof(dying), "%s",
                 f.why_free[0] ? f.why_free
                               : "the hold stays marked, and its holder will end its command");
        code = await_end(o, sig, lk, hold, dying);
    }
    query_free(&f);
    return code;
}

/* ---------------------------------------------- the processes of a file --- */

/*
 * The kernel holds the lock for the processes that have the locked file open, so nothing but their
 * end frees it: they get TERM, or KILL with --force. A dlock passes TERM on to its command; after
 * flock(1) its command keeps the file open, and is next.
 */

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
    int64_t until = dlock_after(dlock_now(), break_time(o, hold)), pause = LOOK_FIRST;
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
        pause = dlock_min(pause * 2, LOOK_MOST);
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

/* -1: the hold is over; else an exit code. */
static int break_file(const struct options *o, const struct sigstate *sig, dlock *lk,
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
        query_pause(sig, lk, "nothing was done", LOOK_FIRST);
    }
}

/* ---------------------------------------------------------------- both --- */

int break_mode(const struct options *o, const struct sigstate *sig)
{
    char lock[LOCK_TEXT_MAX], holder[HOLDER_TEXT_MAX];
    struct found f = {0};
    int code = 0;
    dlock *lk = query_first(o, sig, "--break", &f, &code);
    if (!lk)
        return code;
    if (code < 0)
        status_print(o, lk, &f);
    const struct dlock_info *hold = code < 0 ? pick(o, lk, &f, &code) : NULL;
    if (hold && !o->yes) {
        fflush(stdout);
        if (!query_agreed(sig, o->force ? "break by force? [y/N] " : "break? [y/N] "))
            code = QUERY_REFUSED;
        /* Servers close a connection that is idle for long. */
        dlock_close(lk);
        lk = code < 0 ? query_open(o, &code) : NULL;
    }
    if (hold && code < 0)
        code = dlock_is_local(lk) ? break_file(o, sig, lk, hold) : break_hold(o, sig, lk, hold);
    if (hold && code < 0 && message_tells(o, ABOUT_HELD))
        message("broken: %s, %s", message_lock(lk, "", lock),
                message_process(hold, holder, sizeof(holder)));
    query_free(&f);
    dlock_close(lk);
    return code < 0 ? 0 : code;
}
