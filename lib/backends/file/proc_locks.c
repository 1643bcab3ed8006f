/*
 * proc_locks.c - /proc/locks, read for one file.
 *
 *     1: FLOCK  ADVISORY  WRITE 5192 fe:00:10952787 0 EOF
 *     1:  -> FLOCK  ADVISORY  READ 5194 fe:00:10952787 0 EOF
 *
 * "->" marks the waiters for the lock above them. The file may be long, and the kernel takes a spin
 * lock for each read: read rarely.
 */
#include "proc_locks.h"

#include "util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Looks at a long /proc/locks, unless one shows an exclusive holder. */
#define LOOKS 5
/* Looks at a long /proc/locks for all locks of a device. */
#define LOOKS_ALL 2
/* A process with more descriptors is taken for the holder without checking each. */
#define FDS_MAX 2048
/* How many descriptors, of all processes, are looked at in search of the lock: 2 us each. */
#define SCAN_MAX 20000
/* The same in search of all locks of a device. */
#define ALL_MAX 1000000
/* Reading fdinfo of a descriptor of the same file takes as long as so many looks. */
#define READ_COST 10

#ifndef STATX_INO /* musl before 1.2.6 */
#define AT_STATX_DONT_SYNC 0x4000
#define STATX_INO 0x100U
struct statx {
    uint32_t before[8];
    uint64_t stx_ino;
    uint64_t between[12];
    uint32_t stx_dev_major, stx_dev_minor;
    uint64_t behind[14];
};
static int statx(int dir, const char *path, int flags, unsigned mask, struct statx *st)
{
    return (int)syscall(SYS_statx, dir, path, flags, mask, st);
}
#endif

/*
 * Read the first line with this prefix of a file in /proc into line; without the file, or such a
 * line, line is empty.
 */
static bool read_line(const char *path, const char *prefix, char *line, int size)
{
    FILE *f = fopen(path, "re");
    bool found = false;
    while (f && !found && fgets(line, size, f))
        found = strncmp(line, prefix, strlen(prefix)) == 0;
    if (f)
        fclose(f);
    if (!found)
        line[0] = '\0';
    return found;
}

char *proc_locks_mount(int fd)
{
    char path[64], info[256], *line = NULL;
    bool found = false;
    size_t cap = 0;
    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
    if (!read_line(path, "mnt_id:", info, sizeof(info)))
        return NULL;
    long mount = strtol(info + 7, NULL, 10);
    FILE *f = fopen("/proc/self/mountinfo", "re");
    while (f && !found && getline(&line, &cap, f) > 0)
        found = strtol(line, NULL, 10) == mount;
    if (f)
        fclose(f);
    if (!found) {
        free(line);
        line = NULL;
    }
    return line;
}

/* The file system's device number by the mount of fd. It differs from st_dev on btrfs. */
static bool mount_dev(int fd, dev_t *dev)
{
    char *line = proc_locks_mount(fd);
    unsigned major, minor;
    bool found = line && sscanf(line, "%*d %*d %u:%u ", &major, &minor) == 2;
    if (found)
        *dev = makedev(major, minor);
    free(line);
    return found;
}

int proc_locks_file(int fd, struct proc_locks_file *lf)
{
    struct stat st;
    dev_t dev;
    if (fstat(fd, &st) != 0)
        return -errno;
    *lf = (struct proc_locks_file){.dev = st.st_dev, .ino = st.st_ino, .exact = true};
    if (mount_dev(fd, &dev) && dev != st.st_dev) {
        lf->dev = dev;
        lf->exact = false;
    }
    return 0;
}

/*
 * A line of /proc/locks, or of fdinfo after "lock:": is it a lock of the wanted kind on lf? Only a
 * lease that lets no other process open the file to read counts: not a read lease that no process
 * has asked for.
 */
static bool parse_line(const char *s, const struct proc_locks_file *lf, struct proc_lock *l)
{
    char type[16], state[16], access[16];
    unsigned major, minor;
    unsigned long long ino;
    s = strchr(s, ':');
    if (!s)
        return false;
    s += 1 + strspn(s + 1, " ");
    l->waiter = strncmp(s, "->", 2) == 0;
    if (l->waiter)
        s += 2;
    if (sscanf(s, " %15s %15s %15s %ld %x:%x:%llu ", type, state, access, &l->pid, &major, &minor,
               &ino) != 7)
        return false;
    l->shared = strcmp(access, "READ") == 0;
    l->place = 0;
    l->unnamed = false;
    l->ino = (ino_t)ino;
    l->carrier = 0;
    if ((lf->ino != 0 && l->ino != lf->ino) || makedev(major, minor) != lf->dev)
        return false;
    if (lf->kind == PROC_LOCKS_FLOCK)
        return strcmp(type, "FLOCK") == 0;
    if (lf->kind == PROC_LOCKS_FCNTL)
        return strcmp(type, "OFDLCK") == 0 || strcmp(type, "POSIX") == 0;
    bool keeps_out = !l->shared || strcmp(state, "ACTIVE") != 0;
    l->shared = false;
    return strcmp(type, "LEASE") == 0 && keeps_out;
}

/*
 * For a lock of an open file description the kernel gives the pid -1. A process that has the file
 * open can be found, but not which of several such locks it has: name a process for the first lock
 * only.
 */
static void settle_pids(struct proc_lock *all, int holders, int n)
{
    bool named = false;
    for (int i = 0; i < n; i++) {
        if (all[i].pid >= 0)
            continue;
        all[i].unnamed = i >= holders || named;
        named = true;
        if (all[i].unnamed)
            all[i].pid = 0;
    }
}

/*
 * Add l behind the *holders holders and the waiters of out, n in all. Waiters stand below a shared
 * holder in /proc/locks: more holders may follow.
 */
static void place(struct proc_lock *out, int *holders, int n, const struct proc_lock *l)
{
    if (l->waiter) {
        out[n] = *l;
        out[n].place = n - *holders + 1;
        return;
    }
    memmove(out + *holders + 1, out + *holders, sizeof(*l) * (size_t)(n - *holders));
    out[(*holders)++] = *l;
}

/* A read(2) gives a page of /proc/locks at most, of one moment, if the buffer has room for it. */
static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static FILE *open_locks(void)
{
    FILE *f = fopen("/proc/locks", "re");
    if (f)
        setvbuf(f, NULL, _IOFBF, page_size());
    return f;
}

/* Is this lock among the n that are known? Two such locks of one process count as one, too. */
static bool shown(const struct proc_lock *all, int n, const struct proc_lock *l)
{
    for (int i = 0; i < n; i++)
        if (all[i].ino == l->ino && all[i].pid == l->pid && all[i].waiter == l->waiter &&
            all[i].shared == l->shared)
            return true;
    return false;
}

bool proc_locks_complete(void)
{
    char link[64];
    ssize_t n = readlink("/proc/self/ns/pid", link, sizeof(link) - 1);
    if (n < 0)
        return false;
    link[n] = '\0';
    /* PROC_PID_INIT_INO: a namespace but the first hides outer processes' locks. */
    return strcmp(link, "pid:[4026531836]") == 0;
}

/* --------------------------------------------------------- the process --- */

/* Which locks carries() looks for, of the file lf or, with all, of all its files. */
struct wanted {
    const struct proc_locks_file *lf;
    long owner; /* the process that took the lock; 0: any */
    /* Only locks whose taker has ended, which a PID namespace's /proc/locks lacks. */
    bool ended;
    const char *link;       /* what /proc shows for the file; NULL: by inode */
    struct proc_lock *seen; /* for the lock that was found; may be NULL */
    struct proc_locks_all *all;
};

/* The first lock of this inode in all. */
static struct proc_lock *first_of(const struct proc_locks_all *all, ino_t ino)
{
    int low = 0, high = all->n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (all->at[middle].ino < ino)
            low = middle + 1;
        else
            high = middle;
    }
    return low < all->n && all->at[low].ino == ino ? &all->at[low] : NULL;
}

/* pid has the lock l: note this for the first such lock in all without a process. */
static void note_carrier(struct proc_locks_all *all, const struct proc_lock *l, long pid)
{
    struct proc_lock *known = first_of(all, l->ino), *end = all->at + all->n;
    for (; known && known < end && known->ino == l->ino; known++) {
        if (known->waiter || known->carrier != 0 || known->pid != l->pid)
            continue;
        known->carrier = pid;
        return;
    }
}

/* Add l, at the end. 0 or ENOMEM. */
static int add_lock(struct proc_locks_all *all, const struct proc_lock *l)
{
    if (all->n == all->cap) {
        int cap = all->cap ? all->cap * 2 : 256;
        struct proc_lock *more = realloc(all->at, (size_t)cap * sizeof(*more));
        if (!more)
            return ENOMEM;
        all->at = more;
        all->cap = cap;
    }
    all->at[all->n] = *l;
    all->at[all->n].place = all->n;
    all->n++;
    return 0;
}

/* May this descriptor have a wanted lock? */
static bool may_be(const struct wanted *w, int dir, const char *fd)
{
    char link[PATH_MAX + 16];
    struct statx st;
    if (w->link) {
        ssize_t n = readlinkat(dir, fd, link, sizeof(link));
        return n > 0 && (size_t)n == strlen(w->link) && memcmp(link, w->link, (size_t)n) == 0;
    }
    /* Cheaper than to read fdinfo of each descriptor, and asks no file server. */
    if (statx(dir, fd, AT_STATX_DONT_SYNC, STATX_INO, &st) != 0)
        return false;
    if (!w->all)
        return st.stx_ino == w->lf->ino;
    if (!w->ended)
        return first_of(w->all, (ino_t)st.stx_ino) != NULL;
    return !w->lf->exact || makedev(st.stx_dev_major, st.stx_dev_minor) == w->lf->dev;
}

/* pid has the lock l, whose taker has ended: add it. Without memory it is not shown. */
static void note_ended(struct proc_locks_all *all, struct proc_lock *l, long pid)
{
    if (l->pid != 0 || shown(all->at, all->n, l))
        return;
    l->carrier = pid;
    add_lock(all, l);
}

/*
 * Does pid have a descriptor with a wanted lock? 1, 0, or -1: no permission to look, or *fds, how
 * many may be looked at, is used up. With all: note each lock, and go on.
 */
static int carries(long pid, const struct wanted *w, int *fds)
{
    char path[64], info[64 + 256], line[256];
    struct dirent *e;
    int found = 0;
    snprintf(path, sizeof(path), "/proc/%ld/fd", pid);
    DIR *d = opendir(path);
    if (!d) /* with hidepid=2 a process of another user seems to be gone */
        return errno == ENOENT && (kill((pid_t)pid, 0) == 0 || errno != EPERM) ? 0 : -1;
    errno = 0;
    while (found == 0 && (e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        if (--*fds < 0) {
            found = -1;
            break;
        }
        if (!may_be(w, dirfd(d), e->d_name))
            continue;
        *fds -= READ_COST;
        snprintf(info, sizeof(info), "/proc/%ld/fdinfo/%s", pid, e->d_name);
        FILE *f = fopen(info, "re");
        while (f && found == 0 && fgets(line, sizeof(line), f)) {
            struct proc_lock l;
            if (strncmp(line, "lock:", 5) != 0 || !parse_line(line + 5, w->lf, &l))
                continue;
            if (w->all && w->ended)
                note_ended(w->all, &l, pid);
            else if (w->all)
                note_carrier(w->all, &l, pid);
            else
                found = w->ended ? l.pid == 0 : w->owner == 0 || l.pid == w->owner;
            if (found && w->seen)
                *w->seen = l;
        }
        if (f)
            fclose(f);
        errno = 0;
    }
    if (found == 0 && errno == EACCES) /* opendir succeeds without permission to read */
        found = -1;
    closedir(d);
    return found;
}

bool proc_locks_may_have(long pid, const struct proc_locks_file *lf)
{
    int fds = FDS_MAX;
    return carries(pid, &(struct wanted){.lf = lf}, &fds) != 0;
}

/*
 * A process with a wanted lock; 0: none known. The calling process is only the last resort. With
 * all: look at each process.
 */
static long carrier(const struct wanted *w)
{
    DIR *d = opendir("/proc");
    struct dirent *e;
    long found = 0;
    int fds = w->all ? ALL_MAX : SCAN_MAX;
    while (d && (found == 0 || found == getpid()) && fds > 0 && (e = readdir(d))) {
        long pid = strtol(e->d_name, NULL, 10);
        if (pid > 0 && carries(pid, w, &fds) == 1)
            found = pid;
    }
    if (d)
        closedir(d);
    return found;
}

/*
 * Does /proc/locks lack a flock(2) whose taker has ended, while another process has it? So it is in
 * a PID namespace (locks_show() in fs/locks.c); fdinfo shows such a lock, with the pid 0.
 */
static bool lacks_ended(const struct proc_locks_file *lf)
{
    return lf->kind == PROC_LOCKS_FLOCK && !proc_locks_complete();
}

int proc_locks_read(const struct proc_locks_file *lf, struct proc_lock *out, int max)
{
    int holders = 0, n = 0;
    size_t length = page_size();
    bool found = false; /* the only holder */
    struct proc_lock orphan;
    const struct wanted w = {.lf = lf, .ended = true, .seen = &orphan};
    /*
     * Locks that come or go between two pages shift the list: it may lack a lock, or repeat one.
     * Take the locks of several looks.
     */
    for (int looks = 0; looks < LOOKS && !found && length >= page_size(); looks++) {
        FILE *f = open_locks();
        char line[256];
        if (!f)
            return -errno;
        length = 0;
        while (n < max && fgets(line, sizeof(line), f)) {
            struct proc_lock l;
            length += strlen(line);
            bool again = looks > 0 || length >= page_size();
            if (!parse_line(line, lf, &l))
                continue;
            /* Locks without a process look all the same: take those of one look. */
            if (l.pid > 0 ? again && shown(out, n, &l) : looks > 0 && n > 0)
                continue;
            found |= !l.waiter && !l.shared;
            place(out, &holders, n++, &l);
        }
        fclose(f);
    }
    settle_pids(out, holders, n);
    orphan.carrier = n < max && !found && lacks_ended(lf) ? carrier(&w) : 0;
    if (orphan.carrier != 0)
        place(out, &holders, n++, &orphan);
    return n;
}

/* The cmdline of pid with blanks for NULs; base: its first word without directories. */
static void read_command(long pid, char *out, size_t size, char *base, size_t base_size)
{
    char path[64], buf[1024], *slash;
    snprintf(path, sizeof(path), "/proc/%ld/cmdline", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, buf, sizeof(buf) - 1) : -1;
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return;
    buf[n] = '\0';
    slash = strrchr(buf, '/');
    snprintf(base, base_size, "%.*s", (int)base_size - 1, slash ? slash + 1 : buf);
    while (n > 0 && buf[n - 1] == '\0')
        n--;
    for (ssize_t i = 0; i < n; i++)
        if (buf[i] == '\0')
            buf[i] = ' ';
    dlock_clean_text(out, size, buf, (size_t)n);
}

/*
 * Has the process that took a lock ended, without its parent having waited for it? Of a process
 * that may not be looked into, as of a dlock of the same user, this is all that can be known.
 */
static bool is_zombie(long pid)
{
    char path[64], line[256];
    snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
    const char *end = read_line(path, "", line, sizeof(line)) ? strrchr(line, ')') : NULL;
    return end && strncmp(end, ") Z", 3) == 0;
}

/* The process that took the lock, if it has the lock still, or may have; else 0. */
static long taker_of(const struct proc_lock *l, const struct proc_locks_file *lf)
{
    int fds = FDS_MAX;
    int found = l->pid > 0 ? carries(l->pid, &(struct wanted){.lf = lf, .owner = l->pid}, &fds) : 0;
    return found == 1 || (found < 0 && !is_zombie(l->pid)) ? l->pid : 0;
}

/*
 * The process that has the lock of l. The lock belongs to the open file: the process that took it
 * may have ended, its pid may be in use again, and a child or the parent may have the descriptor.
 */
static long holder_of(const struct proc_lock *l, const struct proc_locks_file *lf)
{
    if (l->unnamed || l->carrier < 0)
        return 0;
    if (l->carrier > 0)
        return l->carrier;
    long taker = taker_of(l, lf);
    return taker != 0 ? taker : carrier(&(struct wanted){.lf = lf, .owner = l->pid});
}

void proc_locks_describe(const struct proc_lock *l, const struct proc_locks_file *lf,
                         struct dlock_info *info)
{
    char host[sizeof(info->host)] = "", base[64] = "", path[64], line[256];
    unsigned uid;
    *info = (struct dlock_info){
        .waiter = l->waiter,
        .place = l->place,
        .mode = l->shared ? DLOCK_MODE_SHARED : DLOCK_MODE_EXCLUSIVE,
        .pid = l->waiter ? l->pid : holder_of(l, lf),
        .left_ns = l->waiter ? -1 : DLOCK_NEVER,
        .waited_ms = -1,
    };
    if (gethostname(host, sizeof(host) - 1) == 0)
        dlock_clean_text(info->host, sizeof(info->host), host, strlen(host));
    if (info->pid == 0)
        return;
    /* Not the owner of /proc/PID, which is root if the process cannot be traced. */
    snprintf(path, sizeof(path), "/proc/%ld/status", info->pid);
    if (read_line(path, "Uid:", line, sizeof(line)) && sscanf(line, "Uid: %u", &uid) == 1)
        dlock_user_name(uid, info->user, sizeof(info->user));
    read_command(info->pid, info->command, sizeof(info->command), base, sizeof(base));
    info->foreign = strcmp(base, "dlock") != 0;
}

bool proc_locks_removed(int fd, bool fcntl, struct dlock_info *info)
{
    char self[32], link[PATH_MAX + 16];
    struct proc_locks_file lf;
    struct proc_lock l;
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(self, link, PATH_MAX);
    if (n < 0 || proc_locks_file(fd, &lf) < 0)
        return false;
    strcpy(link + n, " (deleted)");
    lf.ino = 0;
    lf.kind = fcntl ? PROC_LOCKS_FCNTL : PROC_LOCKS_FLOCK;
    l.carrier = carrier(&(struct wanted){.lf = &lf, .link = link, .seen = &l});
    if (l.carrier != 0)
        proc_locks_describe(&l, &lf, info);
    return l.carrier != 0;
}

/* --------------------------------------------------- all of a device --- */

/* By inode, then in the kernel's order, which place has during the sort. */
static int by_inode(const void *a, const void *b)
{
    const struct proc_lock *x = a, *y = b;
    if (x->ino != y->ino)
        return x->ino < y->ino ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

/* First the processes that took the locks; if locks are left, all processes. */
static void find_carriers(struct proc_locks_all *all)
{
    const struct wanted w = {.lf = &all->file, .all = all};
    int fds = ALL_MAX, left = 0;
    for (int i = 0; i < all->n; i++) {
        struct proc_lock *l = &all->at[i];
        if (!l->waiter && l->carrier == 0 && l->pid > 0 && carries(l->pid, &w, &fds) < 0 &&
            l->carrier == 0 && !is_zombie(l->pid))
            l->carrier = l->pid;
        left += !l->waiter && l->carrier == 0;
    }
    if (left > 0)
        carrier(&w);
    for (int i = 0; i < all->n && left > 0; i++)
        if (!all->at[i].waiter && all->at[i].carrier == 0)
            all->at[i].carrier = -1;
}

/* By lock, the first sight first. */
static int by_lock(const void *a, const void *b)
{
    const struct proc_lock *x = a, *y = b;
    if (x->ino != y->ino)
        return x->ino < y->ino ? -1 : 1;
    if (x->pid != y->pid)
        return x->pid < y->pid ? -1 : 1;
    if (x->waiter != y->waiter || x->shared != y->shared)
        return x->waiter != y->waiter ? x->waiter - y->waiter : x->shared - y->shared;
    return x->place - y->place;
}

/* Of several looks: keep the first sight of each lock. */
static void drop_doubles(struct proc_locks_all *all)
{
    int kept = 0;
    qsort(all->at, (size_t)all->n, sizeof(*all->at), by_lock);
    for (int i = 0; i < all->n; i++)
        if (kept == 0 || !shown(&all->at[kept - 1], 1, &all->at[i]))
            all->at[kept++] = all->at[i];
    all->n = kept;
}

/* Add the locks of /proc/locks. *length: of the list. 0 or an errno. */
static int add_all(struct proc_locks_all *all, size_t *length)
{
    FILE *f = open_locks();
    char line[256];
    int sys = f ? 0 : errno;
    *length = 0;
    while (f && sys == 0 && fgets(line, sizeof(line), f)) {
        struct proc_lock l;
        *length += strlen(line);
        if (parse_line(line, &all->file, &l))
            sys = add_lock(all, &l);
    }
    if (f)
        fclose(f);
    return sys;
}

int proc_locks_read_all(const struct proc_locks_file *lf, struct proc_locks_all *all)
{
    size_t length = page_size();
    int sys = 0, looks = 0;
    *all = (struct proc_locks_all){.file = *lf};
    all->file.ino = 0;
    /* A long list may lack a lock: take those of several looks. */
    while (sys == 0 && looks < LOOKS_ALL && length >= page_size()) {
        sys = add_all(all, &length);
        looks++;
    }
    if (looks > 1 && all->n > 0)
        drop_doubles(all);
    if (lacks_ended(&all->file))
        carrier(&(struct wanted){.lf = &all->file, .ended = true, .all = all});
    if (all->n > 0)
        qsort(all->at, (size_t)all->n, sizeof(*all->at), by_inode);
    if (sys == 0)
        find_carriers(all);
    return -sys;
}

void proc_locks_drop(struct proc_locks_all *all)
{
    free(all->at);
    *all = (struct proc_locks_all){0};
}

int proc_locks_pick(const struct proc_locks_all *all, ino_t ino, struct proc_lock *out, int max)
{
    const struct proc_lock *l = first_of(all, ino), *end = all->at + all->n;
    int holders = 0, n = 0;
    for (; l && l < end && l->ino == ino && n < max; l++)
        place(out, &holders, n++, l);
    settle_pids(out, holders, n);
    return n;
}
