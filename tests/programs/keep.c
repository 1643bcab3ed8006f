/*
 * keep.c - dlock_keep(): it asks without losing the lock, and says so where nothing is held.
 *
 *     keep URI [TAKE]     TAKE: as of states.c
 */
#include "lib.h"

#include <time.h>

static void pause_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

int main(int argc, char **argv)
{
    MUST(argc >= 2);
    dlock *lk = open_lock(argv[1], BRIEF_TTL, 5 * DLOCK_SEC);
    CODE(dlock_keep(lk, dlock_now(), &err), DLOCK_EUSAGE);
    CODE(dlock_keep(lk, DLOCK_NEVER, &err), DLOCK_EUSAGE);
    CODE(dlock_acquire(lk, &err), 0);
    /* "Am I still in?", for longer than the ttl. */
    for (int i = 0; i < BRIEF_TTL / DLOCK_SEC * 15; i++) {
        pause_ms(100);
        CODE(dlock_keep(lk, i % 2 ? dlock_now() : 0, &err), 0);
        MUST(dlock_time_left(lk) > 0);
    }
    int64_t until = dlock_now() + DLOCK_SEC / 5;
    CODE(dlock_keep(lk, until, &err), 0);
    MUST(dlock_now() >= until);
    CODE(dlock_release(lk, 5 * DLOCK_SEC, &err), 0);
    CODE(dlock_keep(lk, 0, &err), DLOCK_EUSAGE);
    CODE(dlock_release(lk, 0, &err), 0);
    if (argc > 2) {
        CODE(dlock_acquire(lk, &err), 0);
        IS(system(argv[2]), 0);
        CODE(dlock_keep(lk, dlock_now() + 5 * DLOCK_SEC, &err), DLOCK_ELOST);
        size_t n = strlen(err.msg);
        MUST(n > 2 && strcmp(err.msg + n - 2, ": ") != 0);
        for (int i = 0; i < 5; i++)
            CODE(dlock_keep(lk, i ? DLOCK_NEVER : 0, &err), DLOCK_ELOST);
        (void)dlock_release(lk, 5 * DLOCK_SEC, NULL);
        CODE(dlock_keep(lk, 0, &err), DLOCK_EUSAGE);
        CODE(dlock_acquire(lk, &err), 0);
        CODE(dlock_keep(lk, 0, &err), 0);
        CODE(dlock_release(lk, DLOCK_NEVER, &err), 0);
    }
    dlock_close(lk);
    return 0;
}
