/*
 * proc.c - the kernel's texts about locks, processes and mounts. Other users choose names, command
 * lines and options in them.
 *
 * The input is a list of files: a line "=NAME", the last part of the path, and behind it the text.
 * With a file "denied" a process may not be looked into.
 */
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static struct fuzz input;

/* The text of a file of the input, *n bytes; NULL: there is none. */
static const char *find_file(const char *path, size_t *n)
{
    char head[40];
    const char *name = strrchr(path, '/'), *text = (const char *)input.p, *end = text + input.n;
    name = strstr(path, "/fdinfo/") ? "fdinfo" : name ? name + 1 : path;
    size_t len = (size_t)snprintf(head, sizeof(head), "=%s\n", name);
    const char *at = input.n > 0 ? memmem(text, input.n, head, len) : NULL;
    if (!at || (at > text && at[-1] != '\n')) {
        errno = ENOENT;
        return NULL;
    }
    at += len;
    const char *next = memmem(at, (size_t)(end - at), "\n=", 2);
    *n = (size_t)((next ? next + 1 : end) - at);
    return at;
}

static FILE *open_stream(const char *path)
{
    size_t n;
    const char *text = find_file(path, &n);
    return text && n > 0 ? fmemopen((void *)(uintptr_t)text, n, "r") : NULL;
}

/* A pipe with the text. */
static int open_bytes(const char *path)
{
    size_t n;
    int ends[2];
    const char *text = find_file(path, &n);
    if (!text)
        return -1;
    FUZZ_HOLDS(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0 && write(ends[1], text, n) == (ssize_t)n &&
               close(ends[1]) == 0);
    return ends[0];
}

static DIR *no_directory(void)
{
    size_t n;
    errno = find_file("denied", &n) ? EACCES : ENOENT;
    return NULL;
}

#define fopen(path, mode) open_stream(path)
#define open(path, ...) open_bytes(path)
#define opendir(path) no_directory()
#define kill(pid, sig) (0)
#define sysconf(name) (256L) /* a page: a text of several pages is short */
#define dlock_user_name(uid, buf, size) snprintf(buf, size, "%lu", (unsigned long)(uid))
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../../cli/proc.c"

#include "../../lib/backends/file/proc_locks.c"

#include "../../lib/backends/file/check.c"

#define MOST 6

/* Holders stand in front of waiters, and each can be described. */
static void check_locks(const struct proc_lock *locks, int n, const struct proc_locks_file *lf)
{
    struct dlock_info info;
    bool waits = false;
    FUZZ_HOLDS(n <= MOST);
    for (int i = 0; i < n; i++) {
        FUZZ_HOLDS(locks[i].waiter || !waits);
        waits = locks[i].waiter;
        proc_locks_describe(&locks[i], lf, &info);
        fuzz_clean_info(&info);
        FUZZ_HOLDS(info.pid >= 0 && info.waiter == waits && info.place >= 0);
    }
}

static void read_locks(enum proc_locks_kind kind)
{
    const struct proc_locks_file lf = {.dev = makedev(0xfe, 0), .ino = 42, .kind = kind};
    struct proc_lock some[MOST];
    struct proc_locks_all many;
    check_locks(some, proc_locks_read(&lf, some, MOST), &lf);
    proc_locks_read_all(&lf, &many);
    for (int i = 0; i < many.n; i++) {
        FUZZ_HOLDS(i == 0 || many.at[i - 1].ino <= many.at[i].ino);
        int n = proc_locks_pick(&many, many.at[i].ino, some, MOST);
        FUZZ_HOLDS(n > 0);
        check_locks(some, n, &lf);
    }
    proc_locks_drop(&many);
}

static void read_mount(void)
{
    static const char *const words[] = {"nolock", "local_lock=all", NULL};
    dev_t dev;
    mount_dev(3, &dev);
    mounted_with(3, words);
}

static void read_process(void)
{
    struct proc_stat st;
    struct proc_signals s;
    if (proc_read_stat(1, &st))
        FUZZ_HOLDS(proc_descends(1, 1));
    proc_read_signals(1, &s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input = (struct fuzz){data, size};
    for (int kind = PROC_LOCKS_FLOCK; kind <= PROC_LOCKS_LEASE; kind++)
        read_locks((enum proc_locks_kind)kind);
    read_mount();
    read_process();
    return 0;
}
