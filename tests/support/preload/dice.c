/*
 * dice.c - LD_PRELOAD: random numbers of four bytes are 0, so that dlock always does what it does by chance. Tokens are
 * longer and stay random.
 */
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

ssize_t getrandom(void *p, size_t n, unsigned flags)
{
    if (n != 4)
        return syscall(SYS_getrandom, p, n, flags);
    memset(p, 0, n);
    return 4;
}
