/*
 * fixed_random.c - LD_PRELOAD: random numbers of four bytes are $DICE, else 0, so that dlock always
 * does what it does by chance. Tokens are longer and stay random.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

ssize_t getrandom(void *p, size_t n, unsigned flags)
{
    if (n != 4)
        return syscall(SYS_getrandom, p, n, flags);
    const char *dice = getenv("DICE");
    uint32_t number = dice ? (uint32_t)atoi(dice) : 0;
    memcpy(p, &number, n);
    return 4;
}
