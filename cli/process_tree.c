/*
 * process_tree.c - find, signal and reap all descendants.
 *
 * Two kernel facts carry this file. A child subreaper never loses a descendant: when a parent dies,
 * its children come to us, so "no child left" is proof that the whole tree is gone. And a pid that
 * has not been reaped cannot be used again: our own children may be signalled by number, as we
 * alone reap them. Every other pid read from /proc may name a stranger a moment later; those are
 * held by a pidfd first, then checked to descend from us, then signalled through the pidfd.
 *
 * One pass can miss what is forked, or moves to another parent, while it runs. So ending a tree
 * means pass, reap, and pass again until no child is left; and a pass of SIGTERM, which nobody shall get
 * twice, goes on with those that have come to us meanwhile.
 *
 * The second fact has a price: orphans of children that we inherited come to us as well. Where there are
 * such children the environment tells who is whose (struct tree, marker; inherited.c).
 */
#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

/* Needs CONFIG_PROC_CHILDREN; without it all of /proc is read. A test renames it. */
#ifndef TREE_CHILDREN
#define TREE_CHILDREN "/children"
#endif

/* Generations of parents that may die while one pass goes on. */
#define ORPHAN_ROUNDS 16

struct link {
    pid_t pid, parent;
};

/*
 * Work space of one pass, valid in one call only (known[] in inherited.c is the only other state). Static
 * because the guard must not allocate and the stack may be small; pages that are not used cost nothing.
 * What does not fit waits for the next pass.
 */
static struct link work[TREE_WORK_MAX];
static int nwork;
static struct link snapshot[TREE_WORK_MAX];
static int nsnapshot;

static void add_work(pid_t pid, pid_t parent)
{
    if (nwork < TREE_WORK_MAX)
        work[nwork++] = (struct link){pid, parent};
}

/* The children that one thread has forked. */
static void add_thread_children(pid_t tid, pid_t pid)
{
    char buf[4096];
    pid_t child = 0;
    ssize_t n;
    int fd = tree_open_task(pid, tid, TREE_CHILDREN);

    if (fd < 0)
        return;
    while ((n = read(fd, buf, sizeof buf)) > 0) {
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

static void snapshot_one(pid_t pid, pid_t unused)
{
    struct tree_stat st;

    (void)unused;
    if (nsnapshot < TREE_WORK_MAX && tree_read_stat(pid, &st))
        snapshot[nsnapshot++] = (struct link){pid, st.ppid};
}

/* Put the children of pid on the work list. Any of its threads may be a parent. */
static void add_children(pid_t pid, long threads)
{
    if (nsnapshot > 0) {
        for (int i = 0; i < nsnapshot; i++)
            if (snapshot[i].parent == pid)
                add_work(snapshot[i].pid, pid);
        return;
    }
    if (threads == 1) {
        add_thread_children(pid, pid);
        return;
    }
    int dir = tree_open_proc(pid, "/task");
    if (dir >= 0) {
        tree_each_number(dir, add_thread_children, pid);
        close(dir);
    }
}

static bool is_spared(const struct tree *t, pid_t pid)
{
    for (int i = 0; i < t->nspared; i++)
        if (t->spared[i] == pid)
            return true;
    return false;
}

/* Is there any child at all? One system call, and right even where there is no /proc. */
static bool any_child(void)
{
    siginfo_t info;

    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 || errno != ECHILD;
}

/* Put our own children on the work list, as they are now. 0 or -errno. */
static int add_own_children(void)
{
    pid_t self = getpid();
    int fd;

    nsnapshot = 0;
    fd = tree_open_task(self, self, TREE_CHILDREN);
    if (fd >= 0) {
        close(fd);
    } else {
        int dir = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0)
            return -errno;
        tree_each_number(dir, snapshot_one, 0);
        close(dir);
        if (nsnapshot == 0)
            return -ENOENT;
    }
    add_children(self, 0);
    return 0;
}

/* Fill the work list with our own children. 0 or -errno, also when there are some and none is shown. */
static int list_children(void)
{
    bool some = any_child(); /* nobody but us reaps them: they are still there below */
    int err;

    nwork = 0;
    if (!tree_proc_is_ours())
        return -ENOENT;
    err = add_own_children();
    return err == 0 && some && nwork == 0 ? -ENOENT : err;
}

bool tree_visible(void)
{
    return list_children() == 0;
}

/* The same, spared ones left out. */
static int start_pass(const struct tree *t)
{
    int err = list_children(), kept = 0;

    for (int i = 0; i < nwork; i++)
        if (!is_spared(t, work[i].pid))
            work[kept++] = work[i];
    nwork = kept;
    return err;
}

/* ------------------------------------------------------------ strangers --- */

enum tree_whose { TREE_THEIRS, TREE_OURS, TREE_UNCLEAR };

/* Is marker one of the strings in this environ file? TREE_UNCLEAR: it is empty. */
static enum tree_whose search(int fd, const char *marker)
{
    enum tree_whose whose = TREE_UNCLEAR;
    bool same = true;
    char buf[4096];
    size_t at = 0;
    ssize_t n;

    while ((n = read(fd, buf, sizeof buf)) > 0) {
        whose = TREE_THEIRS;
        for (ssize_t i = 0; i < n; i++) {
            same = same && buf[i] == marker[at];
            if (same && !buf[i])
                return TREE_OURS;
            at = same ? at + 1 : 0;
            if (!buf[i]) { /* the next string starts */
                same = true;
                at = 0;
            }
        }
    }
    return whose;
}

static enum tree_whose whose_task(pid_t pid, pid_t tid, const char *marker)
{
    struct tree_stat st;

    /* Again when it seems to be empty by its own will: an exec may have ended between the two looks. */
    for (int tries = 0; tries < 3; tries++) {
        int fd = tree_open_task(pid, tid, "/environ");
        enum tree_whose whose = fd >= 0 ? search(fd, marker) : TREE_UNCLEAR;
        if (fd >= 0)
            close(fd);
        else if (errno != ESRCH &&
                 (!tree_parse_stat(tree_open_task(pid, tid, "/stat"), &st) || st.mapped))
            return TREE_THEIRS; /* hidden; what the dead had is for root alone, also where they were ours */
        if (whose != TREE_UNCLEAR || !tree_parse_stat(tree_open_task(pid, tid, "/stat"), &st) ||
            !st.memory)
            return whose;
    }
    return TREE_THEIRS;
}

/* Whose is the process? The first of its threads that knows. Arguments and result for tree_each_number. */
static const char *wanted;
static enum tree_whose verdict;

static void ask_task(pid_t tid, pid_t pid)
{
    if (verdict == TREE_UNCLEAR)
        verdict = whose_task(pid, tid, wanted);
}

/*
 * TREE_UNCLEAR is a process that dies or executes a program just now. It must count, as what it has started may
 * become our child only a moment later. Its main thread alone may be dead: the other ones know.
 */
static enum tree_whose tree_whose(pid_t pid, const char *marker)
{
    int dir;

    wanted = marker;
    verdict = whose_task(pid, pid, marker);
    if (verdict == TREE_UNCLEAR && (dir = tree_open_proc(pid, "/task")) >= 0) {
        tree_each_number(dir, ask_task, pid);
        close(dir);
    }
    return verdict;
}

/*
 * Once a descendant, always a descendant: whoever was seen in the tree is remembered, since without its
 * parent, with an environment of its own, or dying nobody could tell any more. A number alone may be used
 * again, together with the time of its start it is not.
 */
static struct known {
    pid_t pid;
    long start;
} known[TREE_WORK_MAX];
static int nknown;

static bool tree_is_known(pid_t pid)
{
    struct tree_stat st;

    for (int i = 0; i < nknown; i++)
        if (known[i].pid == pid && tree_read_stat(pid, &st) && st.start == known[i].start)
            return true;
    return false;
}

static void tree_remember(pid_t pid, long start)
{
    for (int i = 0; i < nknown; i++)
        if (known[i].pid == pid && known[i].start == start)
            return;
    if (nknown < TREE_WORK_MAX)
        known[nknown++] = (struct known){pid, start};
}

static void tree_forget_the_dead(void)
{
    struct tree_stat st;
    int kept = 0;

    for (int i = 0; i < nknown; i++)
        if (tree_read_stat(known[i].pid, &st) && st.start == known[i].start)
            known[kept++] = known[i];
    nknown = kept;
}

static bool has_strangers(const struct tree *t)
{
    return t->marker && t->nspared > 0;
}

static bool is_stranger(const struct tree *t, pid_t pid, bool unclear_too)
{
    enum tree_whose whose = tree_is_known(pid) ? TREE_OURS : tree_whose(pid, t->marker);

    return whose == TREE_THEIRS || (whose == TREE_UNCLEAR && !unclear_too);
}

/* Take our children that are not of the tree off the work list. */
static void drop_strangers(const struct tree *t, bool unclear_too)
{
    int kept = 0;

    if (!has_strangers(t))
        return;
    for (int i = 0; i < nwork; i++)
        if (!is_stranger(t, work[i].pid, unclear_too))
            work[kept++] = work[i];
    nwork = kept;
}

/* -------------------------------------------------------------- signals --- */

/*
 * Is a process with this parent one of ours? Its parent is the one whose list it was found on; or,
 * when that one has died since, we or a subreaper below us. Once a descendant, always a descendant.
 */
static bool descends(pid_t ppid, pid_t parent)
{
    pid_t self = getpid();
    struct tree_stat st;

    for (int depth = 0; depth < 256; depth++) {
        if (ppid == parent || ppid == self)
            return true;
        if (ppid <= 1 || !tree_read_stat(ppid, &st))
            return false;
        ppid = st.ppid;
    }
    return false;
}

/* By pidfd, or by number for our own unreaped children and on kernels without pidfds. 0 or errno. */
static int send_one(pid_t pid, int pidfd, int sig)
{
    if (pidfd >= 0) {
        if (syscall(SYS_pidfd_send_signal, pidfd, sig, NULL, 0) == 0)
            return 0;
        /* Linux 5.1 and 5.2: the call is there, but refuses what is not a /proc directory. */
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
 * Signal one process and put its children on the list. SIGKILL goes first (to our own children it has
 * been sent already): from then on it cannot fork, so the list read afterwards is complete. Any other
 * signal goes last: a process that dies by it at once would take its list of children along. 0 or errno.
 */
static int visit(struct link at, int pidfd, int sig, bool strangers)
{
    bool own = at.parent == getpid();
    struct tree_stat st;
    int err, before = nwork;

    if (!tree_read_stat(at.pid, &st)) {
        /* hidepid= hides other users', and who hides its memory (a dlock): a child of ours is one all the same */
        err = own && sig != SIGKILL ? send_signal(at.pid, pidfd, sig) : send_one(at.pid, pidfd, 0);
        return own || err == EPERM ? err : ESRCH;
    }
    if (!own && !descends(st.ppid, at.parent))
        return ESRCH;
    if (strangers)
        tree_remember(at.pid, st.start);
    if (sig == SIGKILL && !own && send_one(at.pid, pidfd, SIGKILL) == ESRCH)
        return ESRCH;
    if ((st.state != 'Z' || st.threads > 1) && !(strangers && sig == SIGKILL))
        add_children(at.pid, st.threads);
    err = sig == SIGKILL ? send_one(at.pid, pidfd, 0) : send_signal(at.pid, pidfd, sig);
    if (err == ESRCH)
        nwork = before; /* reaped meanwhile: the list may be that of a stranger with its number */
    return err;
}

/* Visit the work list from that place on. It grows behind the place where we are: parents before children. */
static int visit_all(int from, int sig, bool strangers, pid_t *unkillable)
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
        err = visit(work[i], pidfd, sig, strangers);
        if (pidfd >= 0)
            close(pidfd);
        if (err != ESRCH)
            found++;
        if (err == EPERM && unkillable && *unkillable == 0)
            *unkillable = work[i].pid;
    }
    return found;
}

static bool on_list(pid_t pid, int n)
{
    for (int i = 0; i < n; i++)
        if (work[i].pid == pid)
            return true;
    return false;
}

/* As the start of a process is counted (proc(5), starttime). */
static long ticks_now(void)
{
    struct timespec ts;
    long hz = sysconf(_SC_CLK_TCK);

    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (long)ts.tv_sec * hz + ts.tv_nsec / (1000000000 / hz);
}

/*
 * Whoever lost its parent while the pass went on has come to us, maybe without having been seen. Not those who
 * began after it did: they may be what others do on being told to end.
 */
static void add_orphans(const struct tree *t, long before)
{
    int seen = nwork, kept = nwork;
    struct tree_stat st;

    if (add_own_children() < 0)
        return;
    for (int i = seen; i < nwork; i++)
        if (!is_spared(t, work[i].pid) && !on_list(work[i].pid, seen) &&
            tree_read_stat(work[i].pid, &st) && st.start < before &&
            !(has_strangers(t) && is_stranger(t, work[i].pid, false)))
            work[kept++] = work[i];
    nwork = kept;
}

int tree_signal(const struct tree *t, int sig, pid_t *unkillable)
{
    bool strangers = has_strangers(t);
    long began = ticks_now();
    int err = start_pass(t), own, found;

    if (unkillable)
        *unkillable = 0;
    if (err < 0)
        return err;
    if (strangers) {
        tree_forget_the_dead();
        drop_strangers(t, false);
    }
    own = nwork;
    if (strangers && sig == SIGKILL)
        visit_all(0, 0, true, NULL); /* see them all before the first one dies */
    /*
     * Our own children need no look at /proc: against something that forks fast, every microsecond
     * until the last SIGKILL counts. All that they leave behind is among them in the next pass.
     */
    for (int i = 0; i < own && sig == SIGKILL; i++)
        kill(work[i].pid, SIGKILL);
    found = visit_all(0, sig, strangers, unkillable);
    /* There is a next pass of SIGKILL, but each gets any other signal once. */
    for (int i = 0; i < ORPHAN_ROUNDS && sig != SIGKILL; i++) {
        int from = nwork;
        add_orphans(t, began);
        if (nwork == from)
            break;
        found += visit_all(from, sig, strangers, unkillable);
    }
    return found;
}

int tree_init(struct tree *t)
{
    int err;

    t->nspared = 0;
    t->marker = NULL;
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        return -errno;
    if (!any_child())
        return 0;
    err = start_pass(t);
    if (err < 0)
        return err;
    if (nwork > TREE_SPARED_MAX)
        return -E2BIG;
    for (int i = 0; i < nwork; i++)
        t->spared[t->nspared++] = work[i].pid;
    return 0;
}

int tree_count(const struct tree *t)
{
    if (!any_child())
        return 0;
    if (start_pass(t) == 0) {
        drop_strangers(t, true);
        return nwork;
    }
    return 1; /* without /proc all we know is that there is somebody */
}

bool tree_reap(const struct tree *t, pid_t watch, int *status)
{
    bool seen = false;
    pid_t pid;
    int st;

    if (t->nspared == 0) {
        while ((pid = waitpid(-1, &st, WNOHANG | __WALL)) > 0) {
            if (pid == watch) {
                seen = true;
                *status = st;
            }
        }
        return seen;
    }
    /* A spared child that is reaped gives its number free, for a descendant to be spared by mistake. */
    if (watch > 0 && waitpid(watch, &st, WNOHANG | __WALL) == watch) {
        seen = true;
        *status = st;
    }
    if (start_pass(t) == 0)
        for (int i = 0; i < nwork; i++)
            if (work[i].pid != watch)
                waitpid(work[i].pid, NULL, WNOHANG | __WALL);
    return seen;
}

pid_t tree_living(const struct tree *t)
{
    struct tree_stat st;

    if (start_pass(t) < 0)
        return 0;
    drop_strangers(t, false);
    for (int i = 0; i < nwork; i++)
        if (tree_read_stat(work[i].pid, &st) && st.state != 'Z')
            return work[i].pid;
    return 0;
}
