/*
 * process_tree.h - all descendants of this process, a child subreaper: every orphaned descendant
 * becomes our child, and "no child left" means "the tree is gone". No library, no allocation.
 *
 * Children that existed before us (the caller's, inherited through `exec dlock`) are no part of the
 * tree: they and their descendants are never signalled.
 */
#ifndef CLI_PROCESS_TREE_H
#define CLI_PROCESS_TREE_H

#include <stdbool.h>
#include <sys/types.h>

#define PROCESS_TREE_INHERITED_MAX 64

struct process_tree {
    pid_t inherited[PROCESS_TREE_INHERITED_MAX];
    int ninherited;
    /*
     * Matters only when children were inherited: orphans of inherited children become ours as
     * well. Only the command has the marker, "NAME=value", in its environment: a child of ours
     * started with the marker belongs to the tree, and so do its descendants. NULL: every child
     * belongs to the tree. A process with a changed or hidden environment (another user's, a
     * dlock), which lost its parent before the first signal, is left alone: to miss our process is
     * better than to kill a stranger's.
     */
    const char *marker;
};

/*
 * Become a subreaper and note the existing children; no marker yet. 0 or -errno (E2BIG: too many
 * children; ENOENT: /proc does not show them), with the subreaper attribute as before.
 */
int process_tree_init(struct process_tree *);
/*
 * False when /proc cannot show our children: then only the direct child can be ended, and the
 * caller warns or refuses.
 */
bool process_tree_visible(void);
/*
 * Send sig to every process of the tree found in a pass from the top down. SIGTERM is followed by
 * SIGCONT, for stopped processes. Returns how many were found, or -errno. *unkillable (may be
 * NULL): a pid with the answer EPERM, else 0.
 */
int process_tree_signal(const struct process_tree *, int sig, pid_t *unkillable);
/* The number of our children that belong to the tree, zombies included. Reaps nothing. */
int process_tree_count(const struct process_tree *);
/*
 * Reap every dead child except inherited children, orphans included; never blocks. True when watch
 * was reaped: *status is its wait status.
 */
bool process_tree_reap(const struct process_tree *, pid_t watch, int *status);
/* A child of the tree that has not died, for a message; 0: none. */
pid_t process_tree_living(const struct process_tree *);
/*
 * SIGKILL the tree and reap it, as many passes as find a dead process. Returns how many children
 * are left; above 0, call again every 100 ms or at SIGCHLD. Never blocks.
 * *unkillable: as of process_tree_signal().
 */
int process_tree_sweep(const struct process_tree *, pid_t *unkillable);

#endif
