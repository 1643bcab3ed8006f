/*
 * threads.c - a handle goes from thread to thread, and threads have handles of their own on one
 * store.
 *
 *     threads URI
 */
#include "lib.h"

#include <link.h>
#include <pthread.h>
#include <stdatomic.h>

#define THREADS 4
#define ROUNDS 3
#define TTL (2 * BRIEF_TTL) /* nine of these programs run at once, with their servers */

static const char *uri;

static dlock *open_own(void)
{
    struct dlock_options o;
    struct dlock_error e;
    dlock *lk = NULL;
    dlock_options_init(&o, sizeof o);
    o.ttl_ns = TTL;
    o.wait_ns = 20 * DLOCK_SEC;
    if (dlock_open(&lk, uri, &o, &e) < 0)
        FAIL("dlock_open: %s", e.msg);
    return lk;
}

/* ---------------------------------------------------------- from one to the next --- */

static dlock *moving;

static void *opens(void *none)
{
    moving = open_own();
    return none;
}
static void *acquires(void *none)
{
    CODE(dlock_acquire(moving, &err), 0);
    return none;
}
static void *keeps(void *none)
{
    CODE(dlock_keep(moving, dlock_now() + TTL / 2, &err), 0);
    return none;
}
static void *releases(void *none)
{
    CODE(dlock_release(moving, 5 * DLOCK_SEC, &err), 0);
    return none;
}

static void in_thread(void *(*f)(void *))
{
    pthread_t t;
    IS(pthread_create(&t, NULL, f, NULL), 0);
    IS(pthread_join(t, NULL), 0);
}

/* -------------------------------------------------------------- at the same time --- */

static atomic_int inside, grants;

static void *contends(void *none)
{
    struct dlock_error e;
    dlock *lk = open_own();
    for (int i = 0; i < ROUNDS; i++) {
        if (dlock_acquire(lk, &e) != 0)
            FAIL("dlock_acquire: %s", e.msg);
        IS(atomic_fetch_add(&inside, 1), 0);
        if (dlock_keep(lk, dlock_now() + DLOCK_SEC / 500, &e) != 0)
            FAIL("dlock_keep: %s", e.msg);
        IS(atomic_fetch_sub(&inside, 1), 1);
        atomic_fetch_add(&grants, 1);
        /* Without an answer in time the lock is free after its ttl, at the latest. */
        int rc = dlock_release(lk, 5 * DLOCK_SEC, &e);
        if (rc != 0 && rc != DLOCK_EUNAVAIL)
            FAIL("dlock_release: %s", e.msg);
    }
    dlock_close(lk);
    return none;
}

/* ----------------------------------------------------------------------- modules --- */

static int count(struct dl_phdr_info *info, size_t size, void *found)
{
    static const char *const names[] = {"/postgres.so", "/mysql.so", "/zookeeper.so", "/tls.so"};
    (void)size;
    for (int i = 0; i < 4; i++) {
        const char *at = strstr(info->dlpi_name, names[i]);
        if (at && strcmp(at, names[i]) == 0)
            ++((int *)found)[i];
    }
    return 0;
}

/* However many handles use it. */
static void each_is_loaded_once(void)
{
    int found[4] = {0};
    dl_iterate_phdr(count, found);
    for (int i = 0; i < 4; i++)
        MUST(found[i] <= 1);
}

int main(int argc, char **argv)
{
    pthread_t t[THREADS];
    MUST(argc == 2);
    uri = argv[1];
    in_thread(opens);
    in_thread(acquires);
    in_thread(keeps);
    in_thread(releases);
    dlock_close(moving);
    for (int i = 0; i < THREADS; i++)
        IS(pthread_create(&t[i], NULL, contends, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        IS(pthread_join(t[i], NULL), 0);
    IS(grants, THREADS * ROUNDS);
    each_is_loaded_once();
    return 0;
}
