/*
 * proc_locks.c - /proc/locks, read for one file.
 *
 *     1: FLOCK  ADVISORY  WRITE 5192 fe:00:10952787 0 EOF
 *     1:  -> FLOCK  ADVISORY  READ 5194 fe:00:10952787 0 EOF
 *
 * "->" marks the waiters for the lock above them. The file may be long, and reading it takes a spin lock
 * in the kernel: read it rarely.
 */
#include "proc_locks.h"

#include "util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* A process with more descriptors than this is taken for the holder without checking each. */
#define FDS_MAX 2048

static FILE *open_text(const char *path)
{
    return fopen(path, "re");
}

/* The file system's device number by mount id. It differs from st_dev on btrfs. */
static bool mount_dev(long mnt_id, dev_t *dev)
{
    FILE *f = open_text("/proc/self/mountinfo");
    char *line = NULL;
    size_t cap = 0;
    bool found = false;

    while (f && !found && getline(&line, &cap, f) > 0) {
        unsigned major, minor;
        long id;
        if (sscanf(line, "%ld %*d %u:%u ", &id, &major, &minor) == 3 && id == mnt_id) {
            *dev = makedev(major, minor);
            found = true;
        }
    }
    free(line);
    if (f)
        fclose(f);
    return found;
}

static long mount_id(int fd)
{
    char path[64], line[256];
    long id = -1;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
    f = open_text(path);
    while (f && id < 0 && fgets(line, sizeof(line), f))
        if (strncmp(line, "mnt_id:", 7) == 0)
            id = strtol(line + 7, NULL, 10);
    if (f)
        fclose(f);
    return id;
}

int proc_locks_file(int fd, struct proc_locks_file *lf)
{
    struct stat st;
    dev_t dev;

    if (fstat(fd, &st) != 0)
        return -errno;
    *lf = (struct proc_locks_file){.dev = st.st_dev, .ino = st.st_ino, .exact = true};
    if (mount_dev(mount_id(fd), &dev) && dev != st.st_dev) {
        lf->dev = dev;
        lf->exact = false;
    }
    return 0;
}

/* One line of /proc/locks (or after "lock:" in fdinfo): true when it is a flock(2) lock on lf. */
static bool parse_line(const char *s, const struct proc_locks_file *lf, struct proc_lock *l)
{
    char type[16], access[16];
    unsigned major, minor;
    unsigned long ino;

    s = strchr(s, ':');
    if (!s)
        return false;
    s += 1 + strspn(s + 1, " ");
    l->waiter = strncmp(s, "->", 2) == 0;
    if (l->waiter)
        s += 2;
    if (sscanf(s, " %15s %*s %15s %ld %x:%x:%lu ", type, access, &l->pid, &major, &minor, &ino) !=
        6)
        return false;
    l->shared = strcmp(access, "READ") == 0;
    l->place = 0;
    return strcmp(type, "FLOCK") == 0 && ino == lf->ino && makedev(major, minor) == lf->dev;
}

int proc_locks_read(const struct proc_locks_file *lf, struct proc_lock *out, int max)
{
    FILE *f = open_text("/proc/locks");
    int holders = 0, n = 0;
    char line[256];

    if (!f)
        return -errno;
    while (n < max && fgets(line, sizeof(line), f)) {
        struct proc_lock l;
        if (!parse_line(line, lf, &l))
            continue;
        if (l.waiter) {
            out[n++] = l;
            continue;
        }
        /* Waiters stand below one of the shared holders: other holders may follow. */
        memmove(out + holders + 1, out + holders, sizeof(l) * (size_t)(n - holders));
        out[holders++] = l;
        n++;
    }
    fclose(f);
    for (int i = holders; i < n; i++)
        out[i].place = i - holders + 1;
    return n;
}

bool proc_locks_complete(void)
{
    char link[64];
    ssize_t n = readlink("/proc/self/ns/pid", link, sizeof(link) - 1);

    if (n < 0)
        return false;
    link[n] = '\0';
    /* PROC_PID_INIT_INO: any other namespace does not show the locks of processes outside it. */
    return strcmp(link, "pid:[4026531836]") == 0;
}

/* --------------------------------------------------------- the process --- */

static bool fdinfo_locks(int dir, const char *name, const struct proc_locks_file *lf)
{
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    bool found = false;
    char line[256];

    if (!f) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    while (!found && fgets(line, sizeof(line), f)) {
        struct proc_lock l;
        found = strncmp(line, "lock:", 5) == 0 && parse_line(line + 5, lf, &l);
    }
    fclose(f);
    return found;
}

/* Does pid have a descriptor with the lock? 1, 0, or -1: no permission to look. */
static int carries(long pid, const struct proc_locks_file *lf)
{
    char path[64];
    struct dirent *e;
    int seen = 0, found = 0;
    DIR *d;

    snprintf(path, sizeof(path), "/proc/%ld/fdinfo", pid);
    d = opendir(path);
    if (!d)
        return errno == ENOENT ? 0 : -1;
    errno = 0;
    while (!found && (e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        if (++seen > FDS_MAX)
            found = -1;
        else
            found = fdinfo_locks(dirfd(d), e->d_name, lf);
    }
    if (seen == 0 && errno != 0)
        found = -1; /* opendir succeeds without permission to read */
    closedir(d);
    return found;
}

/* cmdline of pid with blanks for NULs; base: its first word without directories. */
static void read_command(long pid, char *out, size_t size, char *base, size_t base_size)
{
    char path[64], buf[1024], *slash;
    ssize_t n;
    int fd;

    snprintf(path, sizeof(path), "/proc/%ld/cmdline", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd >= 0 ? read(fd, buf, sizeof(buf) - 1) : -1;
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

/* From its status: the owner of /proc/PID is root if the process cannot be traced. */
static bool read_uid(long pid, unsigned *uid)
{
    char path[64], line[256];
    bool found = false;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%ld/status", pid);
    f = open_text(path);
    while (f && !found && fgets(line, sizeof(line), f))
        found = sscanf(line, "Uid: %u", uid) == 1;
    if (f)
        fclose(f);
    return found;
}

/* Not getpwuid(3): it may ask a directory server, and block. */
static void user_name(unsigned uid, char *out, size_t size)
{
    FILE *f = open_text("/etc/passwd");
    char line[1024];

    snprintf(out, size, "uid:%u", uid);
    while (f && fgets(line, sizeof(line), f)) {
        char *name_end = strchr(line, ':'), *id = name_end ? strchr(name_end + 1, ':') : NULL, *end;
        if (id && strtoul(id + 1, &end, 10) == uid && end > id + 1 && *end == ':') {
            dlock_clean_text(out, size, line, (size_t)(name_end - line));
            break;
        }
    }
    if (f)
        fclose(f);
}

void proc_locks_describe(const struct proc_lock *l, const struct proc_locks_file *lf,
                         struct dlock_info *info)
{
    char host[sizeof(info->host)] = "", base[64] = "";
    unsigned uid;

    *info = (struct dlock_info){
        .waiter = l->waiter,
        .place = l->place,
        .mode = l->shared ? DLOCK_SHARED : DLOCK_EXCLUSIVE,
        .pid = l->pid,
        .left_ns = l->waiter ? -1 : DLOCK_NEVER,
        .waited_ms = -1,
        .foreign = true,
    };
    if (gethostname(host, sizeof(host) - 1) == 0)
        dlock_clean_text(info->host, sizeof(info->host), host, strlen(host));
    /* The lock belongs to the open file: its process may have ended, and pid may be another's by now. */
    if (!l->waiter && carries(l->pid, lf) == 0)
        return;
    if (read_uid(l->pid, &uid))
        user_name(uid, info->user, sizeof(info->user));
    read_command(l->pid, info->command, sizeof(info->command), base, sizeof(base));
    info->foreign = strcmp(base, "dlock") != 0;
}
