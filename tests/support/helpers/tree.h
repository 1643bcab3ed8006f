/*
 * tree.h - what the witnesses share: the clock, a descriptor that the kernel frees early, and a
 * grandchild that outlives its parents.
 */
#ifndef TREE_H
#define TREE_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void sleep_until(int64_t at)
{
    struct timespec ts = {.tv_sec = at / 1000000000, .tv_nsec = (long)(at % 1000000000)};
    while (clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &ts, NULL) == EINTR)
        ;
}

/*
 * The kernel frees the open files of a dying process one by one, the highest descriptor first
 * (Linux 4.3 and newer). A lock's descriptor that is above the witness is free before the witness,
 * and the next holder would take the dying process for one that still runs. So the witness gets a
 * higher number than all descriptors that the command has inherited.
 */
#define WITNESS_FD 200

static int freed_first(int fd)
{
    int high = fcntl(fd, F_DUPFD, WITNESS_FD);
    if (high < 0)
        _exit(99);
    close(fd);
    return high;
}

/*
 * The grandchild's exit shows as EOF on the pipe, whose descriptor is below the witness: at EOF
 * the witness is free. A command that left the grandchild behind would be "in the background by its
 * own will", which no lock covers.
 */
static int grow_tree(int64_t until)
{
    int ends[2];
    if (pipe(ends) != 0)
        _exit(99);
    if (fork() == 0) {
        setsid();
        signal(SIGTERM, SIG_IGN);
        close(ends[0]);
        if (fork() != 0)
            _exit(0);
        sleep_until(until);
        _exit(0);
    }
    close(ends[1]);
    return ends[0];
}

#endif
