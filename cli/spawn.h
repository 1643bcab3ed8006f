/* spawn.h - fork and exec the command exactly as the caller would have run it. */
#ifndef CLI_SPAWN_H
#define CLI_SPAWN_H

#include "held.h"
#include "signals.h"

#include "dlock.h"

#include <stdint.h>
#include <sys/types.h>

/* Known at the grant only. */
struct spawn_grant {
    int64_t not_after;      /* no exec after this time (term_at); DLOCK_NEVER: no limit */
    int64_t raw_minus_boot; /* of not_after, as in struct dlock_times */
    uint64_t fence;         /* DLOCK_FENCE; 0: unset */
    uint64_t also_fences[DLOCK_SET_MAX - 1]; /* DLOCK_FENCE_2 and so on; 0: unset */
    int slot;                                /* DLOCK_SLOT, counted from 1; 0: unset */
    char token[DLOCK_TOKEN_LEN + 1];         /* DLOCK_TOKEN; "": unset */
    struct held held[DLOCK_SET_MAX]; /* entries of DLOCK_HELD; none: the variable stays as it is */
    int nheld;
};

struct spawn {
    char *const *argv;
    const struct sigstate *sig;
    /*
     * Of a guarded command. NULL: the command stays in our process group, which we leave for a
     * session of our own. Else the command joins a new group, whose number is stored here, but does
     * not lead the group, so that it can call setsid(2).
     */
    pid_t *group;
    int keeper_fd;    /* -1, or the guard's socket: no exec once its other end is closed */
    int inherit_fd;   /* -1, or the descriptor that the command inherits (file lock) */
    const char *name; /* DLOCK_NAME; NULL: none */
    pid_t dlock_pid;  /* LISTEN_PID and WATCHDOG_PID with this pid become the command's */
    struct spawn_grant grant;
};

#define SPAWN_TOO_LATE 10001
#define SPAWN_KEEPER_GONE 10002
#define SPAWN_FORK_FAILED 0x10000 /* ored with the errno of fork, or of what comes before exec */
/*
 * A child that is forked ahead of the grant, in the group already, while the store works. 0 or a
 * negative errno. pid is 0 after spawn_command and spawn_drop.
 */
struct spawn_child {
    pid_t pid;   /* 0: none */
    pid_t group; /* 0: ours */
    int go;      /* pipe for the grant */
    int result;  /* as exec_fd */
};
int spawn_ahead(struct spawn_child *, const struct spawn *);
void spawn_drop(struct spawn_child *);
/*
 * Have the child execute a guarded command, which the kernel kills when we die; the caller has
 * blocked all signals. Without a child, and for a child that was killed meanwhile, one is forked.
 * Does not wait for the exec. The child's pid, with *exec_fd for spawn_exec_result; or the negative
 * errno of a step before exec, -SPAWN_TOO_LATE or -SPAWN_KEEPER_GONE.
 */
pid_t spawn_command(struct spawn_child *, const struct spawn *, int *exec_fd);
/*
 * Start a command without a guard, by vfork(2): our process sleeps until the exec, also from a slow
 * disk, and the child sets the command's environment in our memory, where nothing reads the
 * variables later. The child's pid, with *why 0 or the errno of a failed exec; -1 where there is no
 * child, with SPAWN_FORK_FAILED ored with an errno.
 */
pid_t spawn_here(const struct spawn *, int *why);
/*
 * Read exec_fd. True once the result is known: *why is 0 (exec succeeded), an errno, or SPAWN_*,
 * and the descriptor is closed and -1. Blocks unless the descriptor is O_NONBLOCK.
 */
bool spawn_exec_result(int *exec_fd, int *why);
/*
 * The last step, in the process that becomes the command: environment, descriptor, signals, exec
 * (by PATH, and by /bin/sh when the kernel does not know the format, as execvp(3) does). Returns
 * the errno when exec failed, SPAWN_FORK_FAILED|ENOMEM when there was no memory for the
 * environment. For spawn_here and -F.
 */
int spawn_exec(const struct spawn *);
/*
 * At the start of main: open /dev/null, else the root directory, CLOEXEC, on each of 0, 1 and 2
 * that is closed: no descriptor of ours gets the number, and the command finds it closed. 0 or
 * -errno.
 */
int fds_plug(void);
/* The exit code for a failed exec: 127 for ENOENT and ENOTDIR, else 126. */
int spawn_exec_code(int sys);
/*
 * Let go of the caller's descriptors: 0 and 1 become /dev/null, 2 stays, everything above that is
 * not in keep is closed. keep (-1 allowed in it) is sorted in place.
 */
void fds_let_go(int *keep, int n);
/*
 * Give free memory back to the kernel, before a long sleep: the heap's, and the part of the stack
 * that earlier calls have used. Only for the main thread.
 */
void memory_let_go(void);
/*
 * Send a message over a SOCK_SEQPACKET. pass: -1, or a descriptor. 0 or -errno; never blocks.
 * EAGAIN: later, when the socket has room, or the kernel the memory for it.
 */
int fds_send(int sock, const void *m, size_t size, int pass);

#endif
