/*
 * guard.h - the dead man's switch: a process between keeper and command, with a few times and one
 * socket, which ends the command's whole tree when the keeper does not; and the witness, a process
 * between keeper and guard, which ends the tree when the guard is killed.
 */
#ifndef CLI_GUARD_H
#define CLI_GUARD_H

#include "forward.h"
#include "held.h"
#include "signals.h"
#include "terminal.h"

#include <sys/types.h>

enum guard_msg_type {
    /* keeper -> guard */
    G_START = 1, /* times, fence, token: fork the command unless term_at has passed */
    G_ALSO,      /* before G_START: fence of the lock number arg, from 2 on */
    G_EXTEND,    /* times, each by two clocks */
    G_SIGNAL,    /* signal: for the command, or for its group when it has a group of its own */
    /*
     * For the whole tree, arg: SIGTERM (then KILL at kill_at of this message) or SIGKILL (at once).
     * G_TREE_EMPTY follows.
     */
    G_END,
    G_DETACH, /* the command has ended and its background processes stay: exit without killing */
    /* guard -> keeper */
    G_READY,   /* arg: the guard's pid */
    G_KILLED,  /* from the witness: the guard (arg: its pid) was killed, and the tree is ending */
    G_STARTED, /* arg: pid */
    /* arg: errno, SPAWN_TOO_LATE, or SPAWN_FORK_FAILED|errno; G_TREE_EMPTY follows */
    G_EXEC_FAILED,
    G_OVERRUN, /* max_run has passed; arg: the signal for the tree, TERM or KILL */
    /* arg: the signal that stopped the command; 0: the command was continued; signal.at: when */
    G_STOPPED,
    G_EXITED,     /* arg: wait status of the command; flags */
    G_TREE_EMPTY, /* no descendant is left; flags */
    G_STUCK,      /* sent once; arg: a pid that cannot be killed; 0: /proc does not show the tree */
    G_UNFIT       /* arg: errno; the guard could not set itself up, started nothing, and exits */
};

#define GUARD_TIMED_OUT 1 /* flag: the guard began to end the tree by its own clock */

struct guard_msg {
    int32_t type, arg, flags;
    int32_t slot; /* G_START: DLOCK_SLOT, counted from 1; 0: unset */
    int64_t term_at, kill_at, hard_at, raw_minus_boot; /* as in struct dlock_times */
    uint64_t fence;
    struct forward_signal signal;
    char token[DLOCK_TOKEN_LEN + 8];
    struct held held; /* G_START, G_ALSO: for DLOCK_HELD; without a socket: none */
};

struct guard_config {
    const struct sigstate *sig;
    char *const *argv;
    const char *name; /* DLOCK_NAME */
    pid_t dlock_pid;  /* the keeper's, for struct spawn */
    bool own_group; /* no controlling terminal: the command is not in the keeper's process group */
    bool warn_only; /* --on-lost warn: the keeper's death ends the tree, the lease's times do not */
    int64_t max_run; /* ns from the start of the command until its tree is ended; 0: no limit */
    int64_t grace;   /* after max_run: ns from TERM to KILL */
    char *title;     /* the memory of our own argv, or NULL; argv may lie inside */
    size_t title_size;
    int lock_fd; /* -1, or a file lock's descriptor, which the guard keeps (CLOEXEC) */
    const struct terminal *tty; /* without the keeper the guard restores its modes; NULL: none */
};

struct guard {
    pid_t witness; /* our child; exits as the guard did, or when a killed guard's tree is gone */
    pid_t pid;     /* the guard's; 0: not known yet, or the guard was killed */
    int fd;        /* SOCK_SEQPACKET, CLOEXEC, non-blocking; EOF: guard and witness are gone */
};

/*
 * Fork witness and guard, before any library is loaded, thread started or socket opened. Returns 0
 * or -errno in the keeper, and never in those two, which dump no core and cannot be traced by other
 * processes (PR_SET_DUMPABLE 0).
 */
int guard_fork(struct guard *, const struct guard_config *);
/*
 * Send a message to the guard. 0 or -errno (EPIPE: guard and witness are gone; EAGAIN: the socket
 * is full). Never blocks. pass: -1, or with G_START and G_ALSO the descriptor that the lock ends
 * with, a connection or a file. Guard and witness keep a copy open until both have exited: the
 * death of the keeper does not free the lock before the tree is gone.
 */
int guard_send(const struct guard *, const struct guard_msg *, int pass);
/*
 * Take the guard's next message; G_READY is noted here. 1: *m is filled; 0: none now; -1: EOF.
 * Never blocks.
 */
int guard_recv(struct guard *, struct guard_msg *m);

#endif
