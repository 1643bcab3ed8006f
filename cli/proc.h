/* proc.h - what the files tree*.c share. As in process_tree.h: no library, no allocation. */
#ifndef CLI_TREE_PROC_H
#define CLI_TREE_PROC_H

#include "process_tree.h"

/* So many processes at a time; what there is beyond waits for the next pass. */
#define TREE_WORK_MAX 32768

struct tree_stat {
    char state;
    pid_t pid, ppid;
    long threads, start;
    bool
        mapped; /* it has memory of its own: it is not dead, nor a thread of the kernel; shown to everybody */
    bool memory; /* it has an environment, maybe an empty one: it neither dies nor is in an exec */
};

/* proc.c: open /proc/PID followed by file ("/stat"). A descriptor, or -1 with errno. */
int tree_open_proc(pid_t pid, const char *file);
/* The same for a thread's own: /proc/PID/task/TID. */
int tree_open_task(pid_t pid, pid_t tid, const char *name);
/* What a stat file says; false: nothing, the process is gone or hidden. It closes fd (-1: could not be opened). */
bool tree_parse_stat(int fd, struct tree_stat *);
bool tree_read_stat(pid_t pid, struct tree_stat *);
/* Call each for every entry of a /proc directory that is a number. */
void tree_each_number(int dir, void (*each)(pid_t number, pid_t arg), pid_t arg);
/* Are the numbers in /proc those of our own pid namespace? */
bool tree_proc_is_ours(void);

#endif
