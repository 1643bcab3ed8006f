/* no_close_range.c - close_range(2) is missing, as before Linux 5.9. */
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

long syscall(long number, ...)
{
    static long (*next)(long, ...);
    long a[6]; /* the kernel takes no more */
    va_list args;
    va_start(args, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    if (number == SYS_close_range) {
        errno = ENOSYS;
        return -1;
    }
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "syscall");
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
