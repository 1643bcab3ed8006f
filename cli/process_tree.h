/*
 * process_tree.h - all descendants of this process, a child subreaper: every orphaned descendant
 * becomes our child, and "no child left" means "the tree is gone". No library, no allocation.
 */
#ifndef CLI_PROCESS_TREE_H
#define CLI_PROCESS_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Become a subreaper. 0 or -errno. 1: there are children already (the caller's, inherited through
 * `exec dlock`), and nothing has changed: they, and in a subreaper their orphans, would look like
 * the tree.
 */
int process_tree_init(void);
/*
 * False when /proc cannot show our children: then only the direct child can be ended, and the
 * caller warns or refuses.
 */
bool process_tree_visible(void);
/*
 * SIGTERM to every process of the tree, from the top down, once for each; then SIGCONT, for stopped
 * processes. until (dlock_now()): the pass ends then, finished or not. Returns how many were found,
 * or -errno.
 */
int process_tree_term(int64_t until);
/*
 * One pass of SIGKILL; a tree that has survived the first one is stopped before. Returns how many
 * processes were found, or -errno. *unkillable (may be NULL): a pid with the answer EPERM, else 0.
 * Takes microseconds for each process, and up to 0.1 s for a tree that still grows.
 */
int process_tree_kill(pid_t *unkillable);
/* The number of our children, zombies included. Reaps nothing. */
int process_tree_count(void);
/*
 * Reap every dead child, orphans included; never blocks. True when watch was reaped: *status is its
 * wait status.
 */
bool process_tree_reap(pid_t watch, int *status);
/* A child that has not died, for a message; 0: none. */
pid_t process_tree_living(void);
/*
 * Kill the tree and reap it, as many passes as find a dead process. Returns how many children are
 * left; above 0, call again every 100 ms or at SIGCHLD. Takes 0.2 s at most.
 * *unkillable: as of process_tree_kill().
 */
int process_tree_sweep(pid_t *unkillable);

#endif
