/*
 * proc.h - reads /proc about processes, without allocating. A process may be gone, and its pid
 * reused, a moment later: the caller's concern.
 */
#ifndef CLI_PROC_H
#define CLI_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct proc_stat {
    char state;
    pid_t pid, ppid;
    pid_t foreground; /* group, of its terminal; 0: it has none */
    int threads;
    uint64_t start; /* in clock ticks since boot: with the pid unique to a process */
    bool mapped;    /* has memory: neither dead nor a kernel thread; visible to every user */
};

/* Signals of a process, and of its first thread; bit N-1 is signal N. */
struct proc_signals {
    uint64_t pending, blocked, ignored, caught;
    bool asleep; /* in a system call; false: it runs, or the kernel does not say */
    bool waits;  /* asleep in sigwait(3) or its like: blocked lacks the awaited signals */
    bool living; /* not dead, dying or held by a debugger, which may keep a signal back */
};

/* Open a file of one thread, such as "/children". A descriptor, or -1 with errno. */
int proc_open_task(pid_t pid, pid_t tid, const char *name);
/* The stat file of a process. False: the process is gone or hidden. */
bool proc_read_stat(pid_t pid, struct proc_stat *);
/* Is pid the process from, or a descendant? False where /proc does not tell. */
bool proc_descends(pid_t pid, pid_t from);
/* The signals of a process. False: gone or hidden, or /proc does not show signals. */
bool proc_read_signals(pid_t pid, struct proc_signals *);
/* Call each for every thread of pid, if pid is not gone or hidden. */
void proc_each_thread(pid_t pid, void (*each)(pid_t tid, void *arg), void *arg);
/* Call each for every process. 0, or -errno when there is no /proc. */
int proc_each_process(void (*each)(pid_t pid, void *arg), void *arg);
/* Does /proc show the pids of our own pid namespace? */
bool proc_is_ours(void);

#endif
