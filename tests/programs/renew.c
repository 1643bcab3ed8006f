/*
 * renew.c - dlock_renew_now(), for a caller that will be busy.
 *
 *     renew URI [TAKE]           what the call says on any store; TAKE: as of states.c
 *     renew URI times N          N renewals in a row, for a test that counts requests
 *     renew URI busy RESULT      busy for two thirds of the ttl, again and again, after a renewal
 *     renew URI careless RESULT  the same after dlock_keep() only
 *                                RESULT: DLOCK_OK or DLOCK_ELOST, what dlock_keep() says in the end
 */
#include "lib.h"

#define TTL (2 * BRIEF_TTL)

static void be_busy(int64_t ns)
{
    struct timespec t = {ns / DLOCK_SEC, ns % DLOCK_SEC};
    nanosleep(&t, NULL);
}

static void renew_twice(dlock *lk)
{
    int64_t before = dlock_now();
    CODE(dlock_renew_now(lk, before + 5 * DLOCK_SEC, &err), 0);
    /* A store with lag counts from an older request. */
    if (strcmp(dlock_backend_name(lk), "zookeeper") != 0)
        MUST(dlock_deadline(lk) > before + TTL / 10 * 9);
    CODE(dlock_start_renew(lk, &err), 0);
    CODE(dlock_renew_now(lk, before + 5 * DLOCK_SEC, &err), 0);
    CODE(dlock_keep(lk, 0, &err), 0);
}

static void on_any_store(dlock *lk, const char *take)
{
    CODE(dlock_renew_now(lk, 0, &err), DLOCK_EUSAGE);
    CODE(dlock_start_renew(lk, &err), DLOCK_EUSAGE);
    CODE(dlock_acquire(lk, &err), 0);
    renew_twice(lk);
    if (take) {
        IS(system(take), 0);
        for (int i = 0; i < 2; i++)
            CODE(dlock_renew_now(lk, dlock_now() + 5 * DLOCK_SEC, &err), DLOCK_ELOST);
        CODE(dlock_start_renew(lk, &err), DLOCK_EUSAGE);
    }
}

int main(int argc, char **argv)
{
    MUST(argc == 2 || argc == 3 || argc == 4);
    dlock *lk = open_lock(argv[1], TTL, 5 * DLOCK_SEC);
    if (argc < 4) {
        on_any_store(lk, argc == 3 ? argv[2] : NULL);
    } else if (strcmp(argv[2], "times") == 0) {
        CODE(dlock_acquire(lk, &err), 0);
        for (int i = 0; i < atoi(argv[3]); i++)
            CODE(dlock_renew_now(lk, DLOCK_NEVER, &err), 0);
    } else {
        int rc = dlock_acquire(lk, &err);
        for (int i = 0; rc == 0 && i < 2; i++) {
            rc = strcmp(argv[2], "busy") == 0 ? dlock_renew_now(lk, DLOCK_NEVER, &err)
                                              : dlock_keep(lk, 0, &err);
            if (rc == 0)
                be_busy(TTL / 3 * 2);
        }
        if (rc == 0)
            rc = dlock_keep(lk, 0, &err);
        if (strcmp(dlock_error_name(rc), argv[3]) != 0)
            FAIL("%s: %s", dlock_error_name(rc), rc < 0 ? err.msg : "");
    }
    (void)dlock_release(lk, 5 * DLOCK_SEC, NULL);
    dlock_close(lk);
    return 0;
}
