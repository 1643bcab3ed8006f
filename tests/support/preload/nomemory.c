/*
 * nomemory.c - LD_PRELOAD: an allocation fails. Only in the program whose name is $NOMEMORY_IN: not in the command
 * that it runs. The $NOMEMORY-th one fails, and with a "+" behind the number all that follow, too. $NOMEMORY_LOG is
 * made when that has happened; with $NOMEMORY_CALLER set it gets a line "N OBJECT OFFSET": the code outside of libc that
 * asked for that memory. NOMEMORY=0 with $NOMEMORY_CALLER: nothing fails, and each allocation gets its line.
 * The file $NOMEMORY_COUNT, 8 bytes long, says how many there were so far.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

static long fail_at;
static bool for_good, callers;
static const char *log_file;
static atomic_long count;
static volatile long *counted;

__attribute__((constructor)) static void begin(void)
{
    const char *at = getenv("NOMEMORY"), *in = getenv("NOMEMORY_IN");
    char *end;
    if (at == NULL || in == NULL || strcmp(program_invocation_short_name, in) != 0)
        return;
    log_file = getenv("NOMEMORY_LOG");
    long n = strtol(at, &end, 10);
    const char *file = getenv("NOMEMORY_COUNT");
    if (file) {
        int fd = open(file, O_RDWR | O_CLOEXEC);
        void *p = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *counted, PROT_WRITE, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            _exit(96);
        counted = p;
        close(fd);
    }
    for_good = *end == '+';
    callers = getenv("NOMEMORY_CALLER") != NULL;
    if (callers) { /* the first call loads a library */
        void *at_once[1];
        backtrace(at_once, 1);
    }
    count = 0;
    fail_at = n == 0 && callers ? LONG_MAX : n;
}

static bool is_libc(const char *object)
{
    const char *name = strrchr(object, '/');
    name = name == NULL ? object : name + 1;
    return strncmp(name, "libc.so", 7) == 0 || strcmp(name, "nomemory.so") == 0;
}

static void log_caller(int fd, long n)
{
    void *frames[24];
    int nframes = backtrace(frames, 24);
    for (int i = 0; i < nframes; i++) {
        Dl_info info;
        char line[512];
        if (dladdr(frames[i], &info) == 0 || is_libc(info.dli_fname))
            continue;
        /* The call, not what is behind it. */
        int len = snprintf(line, sizeof line, "%ld %s 0x%tx\n", n, info.dli_fname,
                           (char *)frames[i] - (char *)info.dli_fbase - 1);
        if (write(fd, line, (size_t)len) < 0)
            return;
        break;
    }
}

static void log_it(long n)
{
    static _Thread_local bool inside;
    int fd = inside ? -1 : open(log_file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0)
        return;
    inside = true;
    if (callers)
        log_caller(fd, n);
    inside = false;
    close(fd);
}

static bool fails(void)
{
    if (fail_at == 0)
        return false;
    long n = ++count;
    if (counted)
        *counted = n;
    if (log_file != NULL && (n == fail_at || fail_at == LONG_MAX))
        log_it(n);
    if (n < fail_at || (n > fail_at && !for_good))
        return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t n)
{
    return fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return fails() ? NULL : __libc_realloc(p, n);
}
