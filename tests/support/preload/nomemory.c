/*
 * nomemory.c - LD_PRELOAD: an allocation fails. Only in the program whose name is $NOMEMORY_IN: not in the command
 * that it runs. The $NOMEMORY-th one fails, and with a "+" behind the number all that follow, too. $NOMEMORY_LOG is
 * made when that has happened.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

static long fail_at;
static bool for_good;
static const char *log_file;
static atomic_long count;

__attribute__((constructor)) static void begin(void)
{
    const char *at = getenv("NOMEMORY"), *in = getenv("NOMEMORY_IN");
    char *end;
    if (at == NULL || in == NULL || strcmp(program_invocation_short_name, in) != 0)
        return;
    log_file = getenv("NOMEMORY_LOG");
    long n = strtol(at, &end, 10);
    for_good = *end == '+';
    count = 0;
    fail_at = n;
}

static bool fails(void)
{
    if (fail_at == 0)
        return false;
    long n = ++count;
    if (n < fail_at || (n > fail_at && !for_good))
        return false;
    if (n == fail_at && log_file != NULL) {
        int fd = open(log_file, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (fd >= 0)
            close(fd);
    }
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
