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
 * The first fact has a price: orphans of inherited children come to us as well. Where there are
 * inherited children, the environment tells which child belongs to the tree (struct process_tree,
 * marker).
 */
#include "process_tree.h"

#include "pidfd.h"
#include "proc.h"

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
/* Generations of parents that may die during a pass. */
#define ORPHAN_ROUNDS 16
/* Passes of a sweep. */
#define SWEEP_PASSES 256

struct link {
    pid_t pid, parent;
};

/*
 * Work space of one pass. Static because the guard must not allocate and the stack may be small;
 * unused pages cost nothing. seen[] below is the only state that outlives a call.
 */
static struct link work[WORK_MAX];
static struct link snapshot[WORK_MAX];
static int nwork, nsnapshot, nseen; /* on one page */

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

static bool is_inherited(const struct process_tree *t, pid_t pid)
{
    for (int i = 0; i < t->ninherited; i++)
        if (t->inherited[i] == pid)
            return true;
    return false;
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

/* -------------------------------------------- orphans of inherited processes --- */

enum origin {
    ORIGIN_INHERITED, /* its environment lacks the marker: it descends from an inherited child */
    ORIGIN_TREE,
    ORIGIN_UNCLEAR /* it dies or executes a program just now */
};

/* Is marker a string of this environ file? Unclear: the file is empty. */
static enum origin search(int fd, const char *marker)
{
    enum origin origin = ORIGIN_UNCLEAR;
    bool same = true;
    char buf[4096];
    size_t at = 0;
    ssize_t n;
    while ((n = read(fd, buf, sizeof(buf))) > 0) {
        origin = ORIGIN_INHERITED;
        for (ssize_t i = 0; i < n; i++) {
            same = same && buf[i] == marker[at];
            if (same && !buf[i])
                return ORIGIN_TREE;
            at = same ? at + 1 : 0;
            if (!buf[i]) { /* the next string starts */
                same = true;
                at = 0;
            }
        }
    }
    return origin;
}

struct origin_query {
    pid_t pid;
    const char *marker;
    enum origin origin;
};

/* Ask a thread of the process, unless another thread has known the origin. */
static void ask_task(pid_t tid, void *arg)
{
    struct origin_query *q = arg;
    struct proc_stat st;
    /* Repeated when the environment seems empty by choice: an exec may end between two reads. */
    for (int tries = 0; tries < 3 && q->origin == ORIGIN_UNCLEAR; tries++) {
        int fd = proc_open_task(q->pid, tid, "/environ");
        if (fd >= 0) {
            q->origin = search(fd, q->marker);
            close(fd);
        } else if (errno != ESRCH && (!proc_read_task_stat(q->pid, tid, &st) || st.mapped)) {
            /* Hidden. Only root may read the environment of a dead process, even if it was ours. */
            q->origin = ORIGIN_INHERITED;
        }
        if (q->origin != ORIGIN_UNCLEAR || !proc_read_task_stat(q->pid, tid, &st) ||
            !st.environment)
            return;
    }
    if (q->origin == ORIGIN_UNCLEAR)
        q->origin = ORIGIN_INHERITED;
}

/*
 * The origin of a process, from its first thread that knows the origin: the main thread alone may
 * be dead. An unclear process must count, as its children may become ours only a moment later.
 */
static enum origin origin_of(pid_t pid, const char *marker)
{
    struct origin_query q = {.pid = pid, .marker = marker, .origin = ORIGIN_UNCLEAR};
    ask_task(pid, &q);
    if (q.origin == ORIGIN_UNCLEAR)
        proc_each_thread(pid, ask_task, &q);
    return q.origin;
}

/*
 * Once a descendant, always a descendant: every process seen in the tree is remembered, since its
 * origin can no longer be read when its parent is gone and the process is dying, or has another
 * environment. A pid alone may be used again; together with its start time it is not.
 */
static struct seen {
    pid_t pid;
    uint64_t start;
} seen[WORK_MAX];

static bool still_runs(const struct seen *s)
{
    struct proc_stat st;
    return proc_read_stat(s->pid, &st) && st.start == s->start;
}

static void remember(pid_t pid, uint64_t start)
{
    for (int i = 0; i < nseen; i++)
        if (seen[i].pid == pid && seen[i].start == start)
            return;
    if (nseen < WORK_MAX)
        seen[nseen++] = (struct seen){pid, start};
}

/* May a child of ours be an orphan of an inherited child? */
static bool is_mixed(const struct process_tree *t)
{
    return t->marker && t->ninherited > 0;
}

/* Does this child of ours belong to the tree? unclear: the answer for an unclear origin. */
static bool belongs(const struct process_tree *t, pid_t pid, bool unclear)
{
    if (is_inherited(t, pid))
        return false;
    for (int i = 0; i < nseen && is_mixed(t); i++)
        if (seen[i].pid == pid && still_runs(&seen[i]))
            return true;
    enum origin origin = is_mixed(t) ? origin_of(pid, t->marker) : ORIGIN_TREE;
    return origin == ORIGIN_TREE || (origin == ORIGIN_UNCLEAR && unclear);
}

/* Make our children in the tree the work list. 0 or -errno. */
static int start_pass(const struct process_tree *t, bool unclear)
{
    int err = list_children(), kept = 0;
    for (int i = 0; i < nwork && err == 0; i++)
        if (belongs(t, work[i].pid, unclear))
            work[kept++] = work[i];
    nwork = kept;
    return err;
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
 * Signal one process and put its children on the list. SIGKILL goes first (our own children got it
 * already): from then on the process cannot fork, so the list read afterwards is complete. Any
 * other signal goes last: a process that dies by it at once would take its list of children along.
 * 0 or errno.
 */
static int visit(struct link at, int pidfd, int sig, bool mixed)
{
    bool own = at.parent == getpid();
    struct proc_stat st;
    int err, before = nwork;
    if (!proc_read_stat(at.pid, &st)) {
        /* hidepid= hides other users' processes, a dlock hides itself. Our child exists anyway. */
        err = own && sig != SIGKILL ? send_signal(at.pid, pidfd, sig) : send_one(at.pid, pidfd, 0);
        return own || err == EPERM ? err : ESRCH;
    }
    if (!own && !descends(st.ppid, at.parent))
        return ESRCH;
    if (mixed)
        remember(at.pid, st.start);
    if (sig == SIGKILL && !own && send_one(at.pid, pidfd, SIGKILL) == ESRCH)
        return ESRCH;
    if ((st.state != 'Z' || st.threads > 1) && !(mixed && sig == SIGKILL))
        add_children(at.pid, st.threads);
    err = sig == SIGKILL ? send_one(at.pid, pidfd, 0) : send_signal(at.pid, pidfd, sig);
    if (err == ESRCH)
        nwork = before; /* reaped meanwhile: the list may be of a new process with the same pid */
    return err;
}

/* Visit the work list from that place on. The list grows meanwhile: parents before children. */
static int visit_all(int from, int sig, bool mixed, pid_t *unkillable)
{
    pid_t self = getpid();
    int found = 0;
    for (int i = from; i < nwork; i++) {
        int pidfd = -1, err;
        if (work[i].parent != self) {
            pidfd = (int)syscall(SYS_pidfd_open, work[i].pid, 0);
            if (pidfd < 0 && (errno == ESRCH || errno == EINVAL)) /* gone, or a thread by now */
                continue;
        }
        err = visit(work[i], pidfd, sig, mixed);
        if (pidfd >= 0)
            close(pidfd);
        if (err != ESRCH)
            found++;
        if (err == EPERM && unkillable && *unkillable == 0)
            *unkillable = work[i].pid;
    }
    return found;
}

/*
 * A process that lost its parent during the pass has come to us, maybe unseen. Processes that
 * started after the pass began (before: its time in ticks) are left out: they may be what others
 * start when they are told to end.
 */
static void add_orphans(const struct process_tree *t, uint64_t before)
{
    int listed = nwork, kept = nwork;
    struct proc_stat st;
    if (add_own_children(true) < 0)
        return;
    for (int i = listed; i < nwork; i++) {
        bool known = false;
        for (int k = 0; k < listed && !known; k++)
            known = work[k].pid == work[i].pid;
        if (!known && proc_read_stat(work[i].pid, &st) && st.start < before &&
            belongs(t, work[i].pid, false))
            work[kept++] = work[i];
    }
    nwork = kept;
}

int process_tree_signal(const struct process_tree *t, int sig, pid_t *unkillable)
{
    bool mixed = is_mixed(t);
    uint64_t hz = (uint64_t)sysconf(_SC_CLK_TCK);
    struct timespec now;
    int err, own, found, kept = 0;
    clock_gettime(CLOCK_BOOTTIME, &now);
    /* In the unit of a process's start time (proc(5), starttime). */
    uint64_t began = (uint64_t)now.tv_sec * hz + (uint64_t)now.tv_nsec / (1000000000 / hz);
    if (unkillable)
        *unkillable = 0;
    for (int i = 0; i < nseen && mixed; i++)
        if (still_runs(&seen[i]))
            seen[kept++] = seen[i];
    nseen = mixed ? kept : nseen;
    err = start_pass(t, false);
    if (err < 0)
        return err;
    own = nwork;
    if (mixed && sig == SIGKILL)
        visit_all(0, 0, true, NULL); /* see all before the first process dies */
    /*
     * Our own children need no look at /proc: against a process that forks fast, every microsecond
     * until the last SIGKILL counts. The next pass finds their orphans among our children.
     */
    for (int i = 0; i < own && sig == SIGKILL; i++)
        kill(work[i].pid, SIGKILL);
    found = visit_all(0, sig, mixed, unkillable);
    /* SIGKILL is sent in pass after pass; each process gets any other signal once. */
    for (int i = 0; i < ORPHAN_ROUNDS && sig != SIGKILL; i++) {
        int from = nwork;
        add_orphans(t, began);
        if (nwork == from)
            break;
        found += visit_all(from, sig, mixed, unkillable);
    }
    return found;
}

/* -------------------------------------------------- the tree as a whole --- */

int process_tree_init(struct process_tree *t)
{
    int before, err = 0;
    t->ninherited = 0;
    t->marker = NULL;
    /* exec keeps the attribute: the caller may have set it. */
    if (prctl(PR_GET_CHILD_SUBREAPER, &before, 0, 0, 0) != 0 ||
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        return -errno;
    nwork = 0;
    if (any_child())
        err = list_children();
    if (err == 0 && nwork > PROCESS_TREE_INHERITED_MAX)
        err = -E2BIG;
    for (int i = 0; i < nwork && err == 0; i++)
        t->inherited[t->ninherited++] = work[i].pid;
    if (err < 0)
        prctl(PR_SET_CHILD_SUBREAPER, before, 0, 0, 0);
    return err;
}

int process_tree_count(const struct process_tree *t)
{
    if (!any_child())
        return 0;
    /* Without /proc: there is a child, at least. */
    return start_pass(t, true) == 0 ? nwork : 1;
}

bool process_tree_reap(const struct process_tree *t, pid_t watch, int *status)
{
    bool seen_watch = false;
    pid_t pid;
    int st;
    if (t->ninherited == 0) {
        while ((pid = waitpid(-1, &st, WNOHANG | __WALL)) > 0) {
            if (pid == watch) {
                seen_watch = true;
                *status = st;
            }
        }
        return seen_watch;
    }
    /* Inherited children stay zombies: a descendant with the same pid would count as inherited. */
    if (watch > 0 && waitpid(watch, &st, WNOHANG | __WALL) == watch) {
        seen_watch = true;
        *status = st;
    }
    if (list_children() == 0)
        for (int i = 0; i < nwork; i++)
            if (work[i].pid != watch && !is_inherited(t, work[i].pid))
                waitpid(work[i].pid, NULL, WNOHANG | __WALL);
    return seen_watch;
}

pid_t process_tree_living(const struct process_tree *t)
{
    struct proc_stat st;
    if (start_pass(t, false) < 0)
        return 0;
    for (int i = 0; i < nwork; i++)
        if (proc_read_stat(work[i].pid, &st) && st.state != 'Z')
            return work[i].pid;
    return 0;
}

int process_tree_sweep(const struct process_tree *t, pid_t *unkillable)
{
    int left = process_tree_count(t), before;
    if (unkillable)
        *unkillable = 0;
    for (int i = 0; i < SWEEP_PASSES && left > 0; i++) {
        before = left;
        process_tree_signal(t, SIGKILL, unkillable);
        process_tree_reap(t, 0, NULL);
        left = process_tree_count(t);
        if (left == before)
            break;
    }
    return left;
}
