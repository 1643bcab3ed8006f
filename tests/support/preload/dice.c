/*
 * dice.c - LD_PRELOAD: what dlock does once in a while, by chance, it does each time: random numbers of four bytes are 0.
 * Tokens are longer, and stay random.
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
