/*
 * tree.h - what the witnesses share: the clock, a descriptor that the kernel frees early, and a
 * grandchild that outlives its parents.
 */
#ifndef TREE_H
#define TREE_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
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

/* A process that can still run, and has the witness that is open as fd; 0: there is none. */
static long living_holder(int fd)
{
    DIR *all = opendir("/proc");
    struct stat mine, st;
    struct dirent *e, *f;
    long found = 0;
    if (!all || fstat(fd, &mine) != 0)
        _exit(99);
    while (found == 0 && (e = readdir(all))) {
        char path[300];
        snprintf(path, sizeof path, "/proc/%s/fd", e->d_name);
        /* A dying process has no table of descriptors any more. */
        DIR *fds = atol(e->d_name) > 0 ? opendir(path) : NULL;
        while (fds && found == 0 && (f = readdir(fds)))
            if (atol(f->d_name) >= WITNESS_FD && fstatat(dirfd(fds), f->d_name, &st, 0) == 0 &&
                st.st_dev == mine.st_dev && st.st_ino == mine.st_ino)
                found = atol(e->d_name);
        if (fds)
            closedir(fds);
    }
    closedir(all);
    return found;
}

/*
 * Lock the witness that is open as fd; false: another process is inside, *who, or 0. A process of
 * which only the kernel still frees the files runs no more and does not count: of several
 * processes that die at once, each gives up its share of the lock before its share of the witness,
 * and whoever reads /proc/PID/fdinfo has a share for that moment.
 */
static bool lock_witness(int fd, int how, long *who)
{
    int64_t end = now_ns() + 1000000000;
    *who = 0;
    while (flock(fd, how | LOCK_NB) != 0)
        if ((*who = living_holder(fd)) != 0 || now_ns() > end)
            return false;
    return true;
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
    pid_t child = fork();
    if (child == 0) {
        setsid();
        signal(SIGTERM, SIG_IGN);
        close(ends[0]);
        if (fork() != 0)
            _exit(0);
        sleep_until(until);
        _exit(0);
    }
    /* Until it is gone, the child in between has a share of the witness, too. */
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    close(ends[1]);
    return ends[0];
}

#endif
