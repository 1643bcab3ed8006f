/* spawn.h - fork and exec the command exactly as the caller would have run it. */
#ifndef CLI_SPAWN_H
#define CLI_SPAWN_H

#include "dlock.h"
#include "signals.h"

#include <stdint.h>
#include <sys/types.h>

struct spawn {
    char *const *argv;
    const struct sigstate *sig;
    bool own_group;   /* no controlling terminal: a process group of its own */
    pid_t join_group; /* 0, or the group to join: the guard's own differs from the caller's */
    bool
        die_with_parent; /* PR_SET_PDEATHSIG SIGKILL (guard only: a direct file lock's command outlives us) */
    int keeper_fd; /* -1, or the guard's socket: the child does not exec once its peer is gone */
    int64_t not_after; /* nor when this time (term_at) has passed; DLOCK_NEVER: no limit */
    int inherit_fd;    /* -1, or a descriptor that the command is to inherit (file lock) */
    const char *name;  /* DLOCK_NAME; NULL: none */
    const char *token; /* DLOCK_TOKEN; NULL: none */
    uint64_t fence;    /* DLOCK_FENCE; 0: unset */
};

/*
 * Returns the child's pid and *exec_fd: it reads EOF once exec has succeeded, or an int: the errno of
 * a failed exec, or SPAWN_TOO_LATE, SPAWN_KEEPER_GONE. Never blocks on it. -errno when fork failed.
 */
#define SPAWN_TOO_LATE 10001
#define SPAWN_KEEPER_GONE 10002
pid_t spawn_command(const struct spawn *, int *exec_fd);
/*
 * Read exec_fd. True once the result is known: then *why is 0 (exec succeeded), an errno, or SPAWN_*, and the
 * descriptor is closed and -1. Blocks until then unless the descriptor is O_NONBLOCK.
 */
bool spawn_exec_result(int *exec_fd, int *why);
/*
 * What this command and what it starts have in their environment, and nobody else (struct tree, marker):
 * in buf, which must live as long as the tree. NULL without a token.
 */
#define SPAWN_MARKER_SIZE (sizeof "DLOCK_TOKEN=" + DLOCK_TOKEN_LEN)
const char *spawn_marker(char buf[SPAWN_MARKER_SIZE], const char *token);
/*
 * The last step, in the process that is to become the command: environment, descriptor, signals, exec
 * (by PATH, and by /bin/sh where the kernel knows no format, as execvp(3) does).
 * Returns the errno when exec failed. For spawn_command and -F.
 */
int spawn_exec(const struct spawn *);
/*
 * At the start of main: where 0, 1 or 2 are closed, put /dev/null there, CLOEXEC, so that nothing of
 * ours lands on them and the command finds them closed again. 0 or -errno.
 */
int fds_plug(void);
/* The exit code for a failed exec: 127 (ENOENT, ENOTDIR), 126 otherwise. */
int spawn_exec_code(int sys);
/* Is there a controlling terminal? */
bool spawn_has_terminal(void);
/*
 * Let go of the caller's descriptors: 0 and 1 become /dev/null, 2 stays, everything above that is not
 * in keep is closed. keep (-1 allowed in it) is sorted in place.
 */
void fds_let_go(int *keep, int n);

#endif
