/*
 * steps.c - work in steps under a lock, with the blocking calls of libdlock.
 *
 *     steps LOCK [STEPS]
 *
 * It is right to copy from: the lock is renewed between the steps, no step begins without enough
 * time left, SIGINT and SIGTERM interrupt a wait and give the lock back, and a lock that is lost
 * ends the work.
 *
 *     cc steps.c $(pkg-config --cflags --libs libdlock) -o steps
 */
#include <dlock.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>

#define STEP_TAKES (DLOCK_SEC / 5) /* at most; a step that may take longer needs a longer ttl */

/*
 * Stands for the work. The fence goes with each write: a system that has seen a greater one refuses
 * it.
 */
static void do_step(int i, const char *fence)
{
    struct timespec t = {0, 100 * 1000 * 1000};
    nanosleep(&t, NULL);
    printf("step %d with fence %s\n", i, fence);
    fflush(stdout);
}

/* 0, or the error that ends the work. */
static int work(dlock *lk, int steps, struct dlock_error *err)
{
    for (int i = 1; i <= steps; i++) {
        /* Is it still ours? This also reads the answers to renewals, and sends the next one. */
        int rc = dlock_keep(lk, 0, err);
        /* A renewal is under way, or the store is slow: wait until it has confirmed enough. */
        while (rc == 0 && dlock_time_left(lk) < STEP_TAKES)
            rc = dlock_keep(lk, dlock_now() + DLOCK_SEC / 50, err);
        if (rc != 0)
            return rc;
        do_step(i, dlock_fence_text(lk));
    }
    return 0;
}

/* The signals that end the program become a descriptor, which interrupts the library's waits. */
static int signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC);
}

int main(int argc, char **argv)
{
    struct dlock_options o;
    struct dlock_error err;
    dlock *lk;

    if (argc < 2) {
        fprintf(stderr, "usage: steps LOCK [STEPS]\n");
        return EXIT_FAILURE;
    }
    dlock_options_init(&o, sizeof(o));
    o.ttl_ns = 10 * DLOCK_SEC;
    o.wait_ns = 60 * DLOCK_SEC;
    o.retry = true; /* a store that is away at the first contact is tried again, too */
    o.note = "an example";
    o.cancel_fd = signals();
    if (dlock_open(&lk, argv[1], &o, &err) < 0) {
        fprintf(stderr, "steps: %s\n", err.msg);
        return EXIT_FAILURE;
    }
    int rc = dlock_acquire(lk, &err);
    if (rc < 0) {
        fprintf(stderr, "steps: %s\n", err.msg);
        dlock_close(lk);
        return EXIT_FAILURE;
    }
    rc = work(lk, argc > 2 ? atoi(argv[2]) : 3, &err);
    if (rc < 0)
        fprintf(stderr, "steps: %s\n", err.msg);
    /* Also after a loss: something of the lock may still be in the store. */
    int released = dlock_release(lk, 5 * DLOCK_SEC, &err);
    if (released < 0 && rc == 0)
        fprintf(stderr, "steps: %s\n", err.msg);
    dlock_close(lk);
    return rc < 0 || released < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
