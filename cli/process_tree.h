/*
 * process_tree.h - all descendants of this process. It must be a child subreaper: then every orphaned
 * descendant becomes our child, and "no child left" means that the whole tree is gone.
 * No library, async-signal-safe where the guard needs it, no allocation.
 */
#ifndef CLI_TREE_H
#define CLI_TREE_H

#include <stdbool.h>
#include <sys/types.h>

#define TREE_SPARED_MAX 64

struct tree {
    /* Children that were here before us (the caller's, inherited through `exec dlock`): never touched. */
    pid_t spared[TREE_SPARED_MAX];
    int nspared;
    /*
     * Looked at only when somebody is spared: the children of those become ours as well when they lose
     * their parent. "NAME=value" as the command has it in its environment, and nobody else: a child of ours
     * is one of the tree when it started with it (all that such a child has started is, too). NULL: every
     * child is. What has changed its environment, or hides it (another user's, a dlock), and had lost its
     * parent before the first signal is left alone: one of ours missed is better than one of theirs killed.
     */
    const char *marker;
};

/* Become subreaper, note the children that exist already; no marker. 0 or -errno. */
int tree_init(struct tree *);
/* False when /proc cannot show our children: then only the direct child can be ended (the caller warns or refuses). */
bool tree_visible(void);
/*
 * Send sig to every descendant that is not spared or a stranger, as found in one pass from the top down
 * (SIGTERM is followed by SIGCONT, so that stopped ones can act on it). Returns how many were found, or
 * -errno. *unkillable (may be NULL): a pid that answered EPERM, else 0.
 */
int tree_signal(const struct tree *, int sig, pid_t *unkillable);
/* Number of children left that are not spared or strangers (zombies count until reaped); it does not reap. */
int tree_count(const struct tree *);
/* Reap every dead child that is not spared, a stranger too, never blocking. True when watch was among them: *status is its wait status. */
bool tree_reap(const struct tree *, pid_t watch, int *status);
/* A child of the tree that is not a zombie, to be named when it does not die; 0: none. */
pid_t tree_living(const struct tree *);

#endif
