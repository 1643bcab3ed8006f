/*
 * steps.c - work in steps under a lock, with the blocking calls of libdlock.
 *
 *     steps LOCK [STEPS]
 *
 * A program to copy from: it renews the lock between the steps, and begins no step without enough
 * time left. SIGINT and SIGTERM interrupt a wait and release the lock; a loss ends the work.
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

/* Stands for the work. Each write carries the fence: a system refuses less than the greatest. */
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
        /* Is the lock still ours? The call also reads answers to renewals, and sends renewals. */
        int rc = dlock_keep(lk, 0, err);
        /* Too little time for a step: wait until the store has confirmed a renewal. */
        while (rc == 0 && dlock_time_left(lk) < STEP_TAKES)
            rc = dlock_renew_now(lk, DLOCK_NEVER, err);
        if (rc != 0)
            return rc;
        do_step(i, dlock_fence_text(lk));
    }
    return 0;
}

/* A descriptor for the signals that end the program; it interrupts the library's waits. */
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
    o.retry = true; /* also try a store again that is away at first contact */
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
