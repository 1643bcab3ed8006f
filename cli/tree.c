/*
 * tree.c - find, signal and reap all descendants.
 *
 * Two kernel facts carry this file. A child subreaper never loses a descendant: when a parent dies,
 * its children come to us, so "no child left" is proof that the whole tree is gone. And a pid that
 * has not been reaped cannot be used again: our own children may be signalled by number, as we
 * alone reap them. Every other pid read from /proc may name a stranger a moment later; those are
 * held by a pidfd first, then checked to descend from us, then signalled through the pidfd.
 *
 * One pass can miss what is forked, or moves to another parent, while it runs. So ending a tree
 * means pass, reap, and pass again until no child is left.
 */
#include "tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
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

#define WORK_MAX 32768

struct link {
    pid_t pid, parent;
};

/*
 * Work space of one pass, the only state in this file and valid in one call only. Static because
 * the guard must not allocate and the stack may be small; pages that are not used cost nothing.
 * What does not fit waits for the next pass.
 */
static struct link work[WORK_MAX];
static int nwork;
static struct link snapshot[WORK_MAX];
static int nsnapshot;

struct proc_stat {
    char state;
    pid_t ppid;
    long threads;
};

static char *put_text(char *to, const char *text)
{
    while (*text)
        *to++ = *text++;
    *to = '\0';
    return to;
}

static char *put_pid(char *to, pid_t pid)
{
    char digits[16];
    size_t n = sizeof digits;

    digits[--n] = '\0';
    do
        digits[--n] = (char)('0' + pid % 10);
    while ((pid /= 10) > 0);
    return put_text(to, digits + n);
}

static pid_t parse_pid(const char *text)
{
    pid_t pid = 0;

    if (!*text)
        return 0;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || pid > INT32_MAX / 10 - 1)
            return 0;
        pid = pid * 10 + (*text - '0');
    }
    return pid;
}

static int open_proc(pid_t pid, const char *file)
{
    char path[64];

    put_text(put_pid(put_text(path, "/proc/"), pid), file);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* The k-th field of /proc/PID/stat, counted from 3 (the state) just behind the command's name. */
static const char *field(const char *p, int k)
{
    for (int i = 3; i < k && p; i++) {
        p = strchr(p, ' ');
        if (p)
            p++;
    }
    return p;
}

static long number(const char *p)
{
    long n = 0;

    for (; p && *p >= '0' && *p <= '9'; p++)
        n = n * 10 + (*p - '0');
    return n;
}

static bool read_stat(pid_t pid, struct proc_stat *st)
{
    char buf[1024];
    int fd = open_proc(pid, "/stat");
    ssize_t n;

    if (fd < 0)
        return false;
    n = read(fd, buf, sizeof buf - 1);
    close(fd);
    if (n <= 0)
        return false;
    buf[n] = '\0';

    /* The name may hold anything, spaces and parentheses too; nothing behind it does. */
    char *end = strrchr(buf, ')');
    if (!end || end[1] != ' ')
        return false;
    st->state = end[2];
    st->ppid = (pid_t)number(field(end + 2, 4));
    st->threads = number(field(end + 2, 20));
    return true;
}

static void add_work(pid_t pid, pid_t parent)
{
    if (nwork < WORK_MAX)
        work[nwork++] = (struct link){pid, parent};
}

/* Call each for every entry of a /proc directory that is a number. readdir(3) would allocate. */
static void each_number(int dir, void (*each)(pid_t number, pid_t arg), pid_t arg)
{
    _Alignas(struct dirent64) char buf[4096];
    long n;

    while ((n = syscall(SYS_getdents64, dir, buf, sizeof buf)) > 0) {
        for (long at = 0; at < n;) {
            const struct dirent64 *e = (const struct dirent64 *)(const void *)(buf + at);
            pid_t pid = parse_pid(e->d_name);
            if (pid > 0)
                each(pid, arg);
            at += e->d_reclen;
        }
    }
}

static int open_children(pid_t pid, pid_t tid)
{
    char file[48];

    put_text(put_pid(put_text(file, "/task/"), tid), TREE_CHILDREN);
    return open_proc(pid, file);
}

/* The children that one thread has forked. */
static void add_thread_children(pid_t tid, pid_t pid)
{
    char buf[4096];
    pid_t child = 0;
    ssize_t n;
    int fd = open_children(pid, tid);

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
    struct proc_stat st;

    (void)unused;
    if (nsnapshot < WORK_MAX && read_stat(pid, &st))
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
    int dir = open_proc(pid, "/task");
    if (dir >= 0) {
        each_number(dir, add_thread_children, pid);
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

bool tree_visible(void)
{
    char name[16];
    ssize_t n = readlink("/proc/self", name, sizeof name - 1);

    /*
     * A /proc that belongs to another pid namespace shows that namespace's numbers: to us they
     * would be strangers.
     */
    if (n <= 0)
        return false;
    name[n] = '\0';
    return parse_pid(name) == getpid();
}

/* Fill the work list with our own children, spared ones left out. 0 or -errno. */
static int start_pass(const struct tree *t)
{
    pid_t self = getpid();
    int fd, kept = 0;

    nwork = nsnapshot = 0;
    if (!tree_visible())
        return -ENOENT;
    fd = open_children(self, self);
    if (fd >= 0) {
        close(fd);
    } else {
        int dir = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0)
            return -errno;
        each_number(dir, snapshot_one, 0);
        close(dir);
        if (nsnapshot == 0)
            return -ENOENT;
    }
    add_children(self, 0);
    for (int i = 0; i < nwork; i++)
        if (!is_spared(t, work[i].pid))
            work[kept++] = work[i];
    nwork = kept;
    return 0;
}

/*
 * Is a process with this parent one of ours? Its parent is the one whose list it was found on; or,
 * when that one has died since, we or a subreaper below us. Once a descendant, always a descendant.
 */
static bool descends(pid_t ppid, pid_t parent)
{
    pid_t self = getpid();
    struct proc_stat st;

    for (int depth = 0; depth < 256; depth++) {
        if (ppid == parent || ppid == self)
            return true;
        if (ppid <= 1 || !read_stat(ppid, &st))
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
static int visit(struct link at, int pidfd, int sig)
{
    struct proc_stat st;
    int err, before = nwork;

    if (!read_stat(at.pid, &st))
        return send_one(at.pid, pidfd, 0) == EPERM ? EPERM
                                                   : ESRCH; /* hidepid= hides other users' */
    if (at.parent != getpid() && !descends(st.ppid, at.parent))
        return ESRCH;
    if (sig == SIGKILL && at.parent != getpid() && send_one(at.pid, pidfd, SIGKILL) == ESRCH)
        return ESRCH;
    if (st.state != 'Z' || st.threads > 1)
        add_children(at.pid, st.threads);
    err = sig == SIGKILL ? send_one(at.pid, pidfd, 0) : send_signal(at.pid, pidfd, sig);
    if (err == ESRCH)
        nwork = before; /* reaped meanwhile: the list may be that of a stranger with its number */
    return err;
}

int tree_signal(const struct tree *t, int sig, pid_t *unkillable)
{
    pid_t self = getpid();
    int err = start_pass(t), found = 0;

    if (unkillable)
        *unkillable = 0;
    if (err < 0)
        return err;
    /*
     * Our own children need no look at /proc: against something that forks fast, every microsecond
     * until the last SIGKILL counts. All that they leave behind is among them in the next pass.
     */
    for (int i = 0, own = nwork; i < own && sig == SIGKILL; i++)
        kill(work[i].pid, SIGKILL);
    /* The list grows behind the place where we are: parents before children. */
    for (int i = 0; i < nwork; i++) {
        int pidfd = -1;
        if (work[i].parent != self) {
            pidfd = (int)syscall(SYS_pidfd_open, work[i].pid, 0);
            if (pidfd < 0 && (errno == ESRCH || errno == EINVAL)) /* gone, or a thread by now */
                continue;
        }
        err = visit(work[i], pidfd, sig);
        if (pidfd >= 0)
            close(pidfd);
        if (err != ESRCH)
            found++;
        if (err == EPERM && unkillable && *unkillable == 0)
            *unkillable = work[i].pid;
    }
    return found;
}

/* Is there any child at all? One system call, and right even where there is no /proc. */
static bool any_child(void)
{
    siginfo_t info;

    return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0 || errno != ECHILD;
}

int tree_init(struct tree *t)
{
    int err;

    t->nspared = 0;
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
    if (start_pass(t) == 0)
        return nwork;
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
    struct proc_stat st;

    if (start_pass(t) == 0)
        for (int i = 0; i < nwork; i++)
            if (read_stat(work[i].pid, &st) && st.state != 'Z')
                return work[i].pid;
    return 0;
}
