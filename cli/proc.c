/* proc.c - what /proc says about processes, read without allocating. */
#include "proc.h"

#include "util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Open /proc/PID followed by file. A descriptor, or -1 with errno. */
static int open_proc(pid_t pid, const char *file)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d%s", (int)pid, file);
    return open(path, O_RDONLY | O_CLOEXEC);
}

int proc_open_task(pid_t pid, pid_t tid, const char *name)
{
    char file[48];
    snprintf(file, sizeof(file), "/task/%d%s", (int)tid, name);
    return open_proc(pid, file);
}

/* The k-th field of /proc/PID/stat. Field 3 (the state) follows the command's name. */
static const char *field(const char *p, int k)
{
    for (int i = 3; i < k && p; i++) {
        p = strchr(p, ' ');
        if (p)
            p++;
    }
    return p;
}

/*
 * The kernel's numbers have 64 bits (addresses of a 64-bit process, times), whatever a long has
 * here.
 */
static uint64_t number(const char *p)
{
    uint64_t n = 0;
    for (; p && *p >= '0' && *p <= '9'; p++)
        n = n * 10 + (uint64_t)(*p - '0');
    return n;
}

/* What a stat file says; false: nothing. Closes fd (-1: could not be opened). */
static bool parse_stat(int fd, struct proc_stat *st)
{
    char buf[1024];
    if (fd < 0)
        return false;
    ssize_t n = read(fd, buf, sizeof(buf) - 1);
    close(fd);
    if (n <= 0)
        return false;
    buf[n] = '\0';
    /* The name may hold anything, also spaces and parentheses; what follows it cannot. */
    char *end = strrchr(buf, ')');
    if (!end || end[1] != ' ')
        return false;
    st->pid = (pid_t)number(buf);
    st->state = end[2];
    st->ppid = (pid_t)number(field(end + 2, 4));
    st->foreground = (pid_t)number(field(end + 2, 8)); /* tpgid, -1: none */
    st->threads = (int)number(field(end + 2, 20));
    st->start = number(field(end + 2, 22));
    st->mapped = number(field(end + 2, 23)) > 0; /* vsize */
    return true;
}

bool proc_read_stat(pid_t pid, struct proc_stat *st)
{
    return parse_stat(open_proc(pid, "/stat"), st);
}

bool proc_descends(pid_t pid, pid_t from)
{
    struct proc_stat st;
    for (int depth = 0; pid > 0 && pid != from && depth < 4096; depth++)
        pid = proc_read_stat(pid, &st) ? st.ppid : 0;
    return pid > 0 && pid == from;
}

/* The text behind the name of a line of a status file, or NULL. */
static const char *status_line(const char *text, const char *name)
{
    size_t n = strlen(name);
    while (text && (strncmp(text, name, n) != 0 || text[n] != ':')) {
        text = strchr(text, '\n');
        text = text ? text + 1 : NULL;
    }
    return text ? text + n + 1 + strspn(text + n + 1, "\t ") : NULL;
}

static bool signal_set(const char *text, const char *name, uint64_t *set)
{
    const char *p = status_line(text, name);
    if (!p)
        return false;
    for (*set = 0; dlock_hex(*p) >= 0; p++)
        *set = *set << 4 | (uint64_t)dlock_hex(*p);
    return true;
}

/* What a status file says about signals. Closes fd (-1: could not be opened). */
static bool parse_signals(int fd, struct proc_signals *s)
{
    char buf[8192];
    size_t len = 0;
    ssize_t n;
    uint64_t shared;
    if (fd < 0)
        return false;
    while (len < sizeof(buf) - 1 && (n = read(fd, buf + len, sizeof(buf) - 1 - len)) > 0)
        len += (size_t)n;
    close(fd);
    buf[len] = '\0';
    const char *state = status_line(buf, "State"), *dump = status_line(buf, "CoreDumping");
    if (!state || !signal_set(buf, "SigPnd", &s->pending) || !signal_set(buf, "ShdPnd", &shared) ||
        !signal_set(buf, "SigBlk", &s->blocked) || !signal_set(buf, "SigIgn", &s->ignored) ||
        !signal_set(buf, "SigCgt", &s->caught))
        return false;
    s->pending |= shared;
    /* A process that exits has given its memory back before anything else. */
    s->living = !strchr("ZXt", *state) && status_line(buf, "VmSize") && !(dump && *dump == '1');
    return true;
}

/* Which system call? A process that has been woken up counts as running before it runs. */
static void parse_call(int fd, struct proc_signals *s)
{
    /* 177, 421: of a 32-bit process on a 64-bit kernel; elsewhere these calls do not wait. */
    static const uint64_t waits[] = {SYS_rt_sigtimedwait, 177, 421};
    char buf[256];
    ssize_t n;
    s->asleep = s->waits = false;
    if (fd < 0)
        return;
    n = read(fd, buf, sizeof(buf) - 1);
    close(fd);
    if (n <= 0 || buf[0] < '0' || buf[0] > '9')
        return;
    buf[n] = '\0';
    s->asleep = true;
    for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++)
        s->waits |= number(buf) == waits[i];
}

bool proc_read_signals(pid_t pid, struct proc_signals *s)
{
    if (!parse_signals(open_proc(pid, "/status"), s))
        return false;
    parse_call(open_proc(pid, "/syscall"), s);
    return true;
}

/* With _FILE_OFFSET_BITS=64 the C library's struct is the kernel's. */
_Static_assert(sizeof(((struct dirent *)0)->d_ino) == 8 &&
                   sizeof(((struct dirent *)0)->d_off) == 8 &&
                   offsetof(struct dirent, d_name) == 19,
               "struct dirent is not what getdents64 fills");

/* Call each for every entry of a directory that is a number. readdir(3) would allocate. */
static void each_number(int dir, void (*each)(pid_t number, void *arg), void *arg)
{
    _Alignas(struct dirent) char buf[4096];
    long n;
    while ((n = syscall(SYS_getdents64, dir, buf, sizeof(buf))) > 0) {
        for (long at = 0; at < n;) {
            const struct dirent *e = (const struct dirent *)(const void *)(buf + at);
            int64_t pid;
            if (dlock_read_number(e->d_name, strlen(e->d_name), &pid) && pid > 0 &&
                pid <= INT32_MAX)
                each((pid_t)pid, arg);
            at += e->d_reclen;
        }
    }
}

void proc_each_thread(pid_t pid, void (*each)(pid_t tid, void *arg), void *arg)
{
    int dir = open_proc(pid, "/task");
    if (dir < 0)
        return;
    each_number(dir, each, arg);
    close(dir);
}

int proc_each_process(void (*each)(pid_t pid, void *arg), void *arg)
{
    int dir = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return -errno;
    each_number(dir, each, arg);
    close(dir);
    return 0;
}

/*
 * A /proc of another pid namespace shows other processes under the same pids. Our own pid may
 * agree by chance, but hardly our parent's as well.
 */
bool proc_is_ours(void)
{
    pid_t before = getppid();
    struct proc_stat st;
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (!parse_stat(fd, &st) || st.pid != getpid())
        return false;
    return st.ppid == before || st.ppid == getppid(); /* the parent may die at any time */
}
