/*
 * process_tree.c - find, signal and reap all descendants.
 *
 * Two kernel facts carry this file. A child subreaper never loses a descendant: when a parent dies,
 * its children come to us, so "no child left" proves the end of the whole tree. And a pid that
 * has not been reaped cannot be used again: our own children may be signalled by number, as we
 * alone reap them. Every other pid read from /proc may name an unrelated process a moment later;
 * such a process is held by a pidfd first, then checked to descend from us, then signalled through
 * the pidfd.
 *
 * A pass can miss a process that is forked, or moves to another parent, while it runs. So ending
 * a tree means pass, reap, and pass again until no child is left; and a pass of SIGTERM, which no
 * process shall get twice, goes on with the orphans that came to us meanwhile.
 *
 * Where each killed process makes room for a new one (a fork bomb at a limit of processes), passes
 * of SIGKILL alone may never end. So a tree that has outlived the first one is stopped: a process
 * that is stopped does not fork. Not sooner: SIGKILL reaches a frozen cgroup, too, where SIGSTOP
 * waits.
 */
#include "process_tree.h"

#include "pidfd.h"
#include "proc.h"
#include "util.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Needs CONFIG_PROC_CHILDREN; without it all of /proc is read. A test renames it. */
#ifndef TREE_CHILDREN
#define TREE_CHILDREN "/children"
#endif

/* Processes in a pass; the rest waits for the next pass. */
#define WORK_MAX 32768
/* Passes that stop a tree, and the ns between two. */
#define FREEZE_PASSES 64
#define FREEZE_PAUSE_MIN 100000
#define FREEZE_PAUSE_MAX 1000000
/* Generations of parents that may die during a pass. */
#define ORPHAN_ROUNDS 16
/* No new pass of a sweep begins later. */
#define SWEEP_TIME (100 * DLOCK_MSEC)

struct link {
    pid_t pid, parent;
};

/*
 * Work space of one pass. Static because the guard must not allocate and the stack may be small;
 * unused pages cost nothing. Only killed outlives a call.
 */
static struct link work[WORK_MAX];
static struct link snapshot[WORK_MAX];
static int nwork, nsnapshot;
static int nrunning; /* ran when a pass of SIGSTOP came to them */
static bool killed;  /* the first pass of SIGKILL is over */

/* ---------------------------------------------------------- children --- */

static void add_work(pid_t pid, pid_t parent)
{
    if (nwork < WORK_MAX)
        work[nwork++] = (struct link){pid, parent};
}

/* The children of a thread. arg: the pid of its process. */
static void add_thread_children(pid_t tid, void *arg)
{
    char buf[4096];
    pid_t pid = *(const pid_t *)arg, child = 0;
    ssize_t n;
    int fd = proc_open_task(pid, tid, TREE_CHILDREN);
    if (fd < 0)
        return;
    while ((n = read(fd, buf, sizeof(buf))) > 0) {
        for (ssize_t i = 0; i < n; i++) {
            if (buf[i] >= '0' && buf[i] <= '9') {
                child = child * 10 + (buf[i] - '0');
            } else if (child > 0) {
                add_work(child, pid);
                child = 0;
            }
        }
    }
    if (child > 0)
        add_work(child, pid);
    close(fd);
}

static void snapshot_one(pid_t pid, void *unused)
{
    struct proc_stat st;
    (void)unused;
    if (nsnapshot < WORK_MAX && proc_read_stat(pid, &st))
        snapshot[nsnapshot++] = (struct link){pid, st.ppid};
}

/*
 * Put the children of pid on the work list. Any thread may be a parent. threads: how many pid has;
 * 0: unknown.
 */
static void add_children(pid_t pid, int threads)
{
    if (nsnapshot > 0) {
        for (int i = 0; i < nsnapshot; i++)
            if (snapshot[i].parent == pid)
                add_work(snapshot[i].pid, pid);
    } else if (threads == 1) {
        add_thread_children(pid, &pid);
    } else {
        proc_each_thread(pid, add_thread_children, &pid);
    }
}

/* Is there any child? A single system call, right even without /proc. */
static bool any_child(void)
{
    siginfo_t info;
    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 || errno != ECHILD;
}

/* Put our own children on the work list. some: there may be children. 0 or -errno. */
static int add_own_children(bool some)
{
    pid_t self = getpid();
    int fd = proc_open_task(self, self, TREE_CHILDREN);
    nsnapshot = 0;
    if (fd >= 0) {
        close(fd);
    } else {
        int err = proc_each_process(snapshot_one, NULL);
        if (err < 0)
            return err;
        if (nsnapshot == 0)
            return -ENOENT;
    }
    if (some)
        add_children(self, 0);
    return 0;
}

/* Make our own children the work list. 0 or -errno, also when /proc shows none of them. */
static int list_children(void)
{
    bool some = any_child(); /* only we reap our children: they are still there below */
    int err;
    nwork = 0;
    if (!proc_is_ours())
        return -ENOENT;
    err = add_own_children(some);
    return err == 0 && some && nwork == 0 ? -ENOENT : err;
}

bool process_tree_visible(void)
{
    return list_children() == 0;
}

/* ----------------------------------------------------------- signals --- */

/*
 * Does a process with this parent descend from us? Its parent is the process on whose list it was
 * found, or, after the death of that process, we or a subreaper below us.
 */
static bool descends(pid_t ppid, pid_t parent)
{
    pid_t self = getpid();
    struct proc_stat st;
    for (int depth = 0; depth < 256; depth++) {
        if (ppid == parent || ppid == self)
            return true;
        if (ppid <= 1 || !proc_read_stat(ppid, &st))
            return false;
        ppid = st.ppid;
    }
    return false;
}

/*
 * By pidfd, or by number for our own unreaped children and on kernels without pidfds. 0 or errno.
 */
static int send_one(pid_t pid, int pidfd, int sig)
{
    if (pidfd >= 0) {
        if (syscall(SYS_pidfd_send_signal, pidfd, sig, NULL, 0) == 0)
            return 0;
        /* Linux 5.1 and 5.2 have the call, but take only /proc directories. */
        if (errno != ENOSYS && errno != EBADF)
            return errno;
    }
    return kill(pid, sig) == 0 ? 0 : errno;
}

static int send_signal(pid_t pid, int pidfd, int sig)
{
    int err = send_one(pid, pidfd, sig);
    if (err == 0 && sig == SIGTERM)
        send_one(pid, pidfd, SIGCONT);
    return err;
}

/*
 * Signal one process and put its children on the list. SIGKILL and SIGSTOP go first (our own
 * children got them already): from then on the process cannot fork, so the list read afterwards is
 * complete. Any other signal goes last: a process that dies by it at once would take its list of
 * children along. 0 or errno.
 */
static int visit(struct link at, int pidfd, int sig)
{
    bool own = at.parent == getpid(), first = sig == SIGKILL || sig == SIGSTOP;
    struct proc_stat st;
    int err, before = nwork;
    if (!proc_read_stat(at.pid, &st)) {
        /* hidepid= hides other users' processes, a dlock hides itself. Our child exists anyway. */
        err = own && !first ? send_signal(at.pid, pidfd, sig) : send_one(at.pid, pidfd, 0);
        return own || err == EPERM ? err : ESRCH;
    }
    if (!own && !descends(st.ppid, at.parent))
        return ESRCH;
    if (first && !own && send_one(at.pid, pidfd, sig) == ESRCH)
        return ESRCH;
    if (st.state != 'Z' || st.threads > 1)
        add_children(at.pid, st.threads);
    err = first ? send_one(at.pid, pidfd, 0) : send_signal(at.pid, pidfd, sig);
    if (err == ESRCH)
        nwork = before; /* reaped meanwhile: the list may be of a new process with the same pid */
    if (err == 0 && (st.state == 'R' || st.state == 'S') && st.mapped)
        nrunning++;
    return err;
}

/* Visit a process of the work list. False: it is gone. */
static bool visit_at(int i, int sig, pid_t *unkillable)
{
    struct link at = work[i];
    int pidfd = -1;
    if (at.parent != getpid()) {
        pidfd = (int)syscall(SYS_pidfd_open, at.pid, 0);
        if (pidfd < 0 && (errno == ESRCH || errno == EINVAL)) /* gone, or a thread by now */
            return false;
    }
    int err = visit(at, pidfd, sig);
    if (pidfd >= 0)
        close(pidfd);
    if (err == EPERM && unkillable && *unkillable == 0)
        *unkillable = at.pid;
    return err != ESRCH;
}

/*
 * Visit the work list from that place on, until that time. The list grows meanwhile: parents before
 * children.
 */
static int visit_all(int from, int sig, int64_t until, pid_t *unkillable)
{
    int found = 0;
    for (int i = from; i < nwork && dlock_now() < until; i++)
        found += visit_at(i, sig, unkillable);
    return found;
}

/*
 * A process that lost its parent during the pass has come to us, maybe unseen. Processes that
 * started after the pass began (before: its time in ticks) are left out: they may be what others
 * start when they are told to end.
 */
static void add_orphans(uint64_t before)
{
    int listed = nwork, kept = nwork;
    struct proc_stat st;
    if (add_own_children(true) < 0)
        return;
    for (int i = listed; i < nwork; i++) {
        bool known = false;
        for (int k = 0; k < listed && !known; k++)
            known = work[k].pid == work[i].pid;
        if (!known && proc_read_stat(work[i].pid, &st) && st.start < before)
            work[kept++] = work[i];
    }
    nwork = kept;
}

/* SIGKILL or SIGSTOP for all that one pass finds. How many, or -errno. */
static int strike(int sig, pid_t *unkillable)
{
    int err = list_children();
    if (err < 0)
        return err;
    /*
     * Our own children need no look at /proc: against a process that forks fast, every microsecond
     * until the last SIGKILL counts. The next pass finds their orphans among our children.
     */
    for (int i = 0; i < nwork; i++)
        kill(work[i].pid, sig);
    nrunning = 0;
    return visit_all(0, sig, DLOCK_NEVER, unkillable);
}

/*
 * Stop the tree, pass after pass until one finds no process running. The work list has all of it
 * then. How many, or -errno.
 */
static int freeze(void)
{
    long pause = FREEZE_PAUSE_MIN;
    int found = strike(SIGSTOP, NULL);
    for (int i = 1; i < FREEZE_PASSES && found > 0 && nrunning > 0; i++) {
        nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
        pause = pause * 2 < FREEZE_PAUSE_MAX ? pause * 2 : FREEZE_PAUSE_MAX;
        found = strike(SIGSTOP, NULL);
    }
    return found;
}

/* Children before parents: a parent would leave its children to us, for another pass. */
static int kill_frozen(pid_t *unkillable)
{
    int all = nwork, found = 0;
    for (int i = all; i-- > 0; nwork = all) {
        if (work[i].parent == getpid())
            kill(work[i].pid, SIGKILL);
        found += visit_at(i, SIGKILL, unkillable);
    }
    return found;
}

int process_tree_kill(pid_t *unkillable)
{
    if (unkillable)
        *unkillable = 0;
    if (!killed) {
        killed = true;
        return strike(SIGKILL, unkillable);
    }
    int found = freeze();
    return found < 0 ? found : kill_frozen(unkillable);
}

int process_tree_term(int64_t until)
{
    uint64_t hz = (uint64_t)sysconf(_SC_CLK_TCK);
    struct timespec now;
    int found;
    clock_gettime(CLOCK_BOOTTIME, &now);
    /* In the unit of a process's start time (proc(5), starttime). */
    uint64_t began = (uint64_t)now.tv_sec * hz + (uint64_t)now.tv_nsec / (1000000000 / hz);
    int err = list_children();
    if (err < 0)
        return err;
    found = visit_all(0, SIGTERM, until, NULL);
    for (int i = 0; i < ORPHAN_ROUNDS; i++) {
        int from = nwork;
        add_orphans(began);
        if (nwork == from)
            break;
        found += visit_all(from, SIGTERM, until, NULL);
    }
    return found;
}

/* -------------------------------------------------- the tree as a whole --- */

int process_tree_init(void)
{
    if (any_child())
        return 1;
    return prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 ? 0 : -errno;
}

int process_tree_count(void)
{
    if (!any_child())
        return 0;
    /* Without /proc: there is a child, at least. */
    return list_children() == 0 ? nwork : 1;
}

bool process_tree_reap(pid_t watch, int *status)
{
    bool seen_watch = false;
    pid_t pid;
    int st;
    while ((pid = waitpid(-1, &st, WNOHANG | __WALL)) > 0) {
        if (pid == watch) {
            seen_watch = true;
            *status = st;
        }
    }
    return seen_watch;
}

pid_t process_tree_living(void)
{
    struct proc_stat st;
    if (list_children() < 0)
        return 0;
    for (int i = 0; i < nwork; i++)
        if (proc_read_stat(work[i].pid, &st) && st.state != 'Z')
            return work[i].pid;
    return 0;
}

int process_tree_sweep(pid_t *unkillable)
{
    int left = process_tree_count(), before;
    int64_t until = dlock_now() + SWEEP_TIME;
    if (unkillable)
        *unkillable = 0;
    while (left > 0 && dlock_now() < until) {
        before = left;
        process_tree_kill(unkillable);
        process_tree_reap(0, NULL);
        left = process_tree_count();
        if (left == before)
            break;
    }
    return left;
}
