/*
 * command.h - the command under the lock: what is known of it, and what is the same whether a guard
 * is its parent (keeper.c) or we are (direct.c).
 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "events.h"
#include "options.h"
#include "process_tree.h"
#include "signals.h"
#include "spawn.h"

struct command_lock {
    char *key;                 /* of nested.h, malloc'ed; NULL: not known (yet) */
    bool nested;               /* by DLOCK_HELD, a dlock above this one holds it */
    struct nested_outer outer; /* then: that one */
    bool ended;                /* that one has ended, or is about to release the lock */
};

struct command {
    const struct options *o;
    const struct sigstate *sig;
    struct events *events;    /* NULL: no --events */
    bool local;               /* the kernel keeps the lock on a descriptor: it cannot be lost */
    bool terminal;            /* the command shares our process group and our terminal */
    struct process_tree tree; /* empty with -F, and when alone */
    bool alone; /* local, its tree unknown: signals and waiting are for the command only */
    char marker[HELD_SIZE]; /* of the tree */

    struct command_lock lock[DLOCK_SET_MAX]; /* LOCK, and those of --also */
    bool nested;                             /* dlocks above this one hold some of them */
    bool may_be_own;                 /* a holder that we find may be a dlock above this one */
    struct held held[DLOCK_SET_MAX]; /* the entries of DLOCK_HELD, LOCK's last */
    int nheld;

    bool exited;     /* it has been reaped, or it never ran */
    int status;      /* wait status, once it has exited */
    int exec_error;  /* 0, or why it never ran: an errno, SPAWN_TOO_LATE, SPAWN_FORK_FAILED|errno */
    int stopped_by;  /* the signal that stopped it, by the last report; 0: it runs */
    bool continued;  /* a SIGCONT has come to us since this was cleared */
    bool end_signal; /* a TERM, INT, HUP or QUIT was forwarded: what the command leaves is ended */
    int terminal_sig; /* INT or QUIT that the terminal sent to us and to the command */
    bool stuck_reported;
};

/*
 * Before the command starts. n locks are held; socket: of inner_socket(). What the command leaves
 * behind can be told from inherited processes by the token. Those may have the same one where an
 * outer dlock holds the lock: then by our socket, which is new.
 */
void command_set_held(struct command *, const dlock *const *locks, int n, const char *socket);
/*
 * A file is locked, and fd is its descriptor (-1: not a file): only now it is certain which one it
 * is.
 */
void command_set_file(struct command *, int i, int fd);
/*
 * A file is locked: does the command inherit its descriptor, so that what it leaves behind keeps
 * the lock?
 */
bool command_inherits(const struct command *, const dlock *);
/* Does this signal ask a command to end? */
bool command_ends(int sig);
/* A signal that came to us while the command runs: the signal to forward to it, or 0. */
int command_signal(struct command *, const struct signalfd_siginfo *);
/*
 * Has the command been stopped as a job of our terminal? Elsewhere no shell expects us to stop as
 * well.
 */
bool command_job_stopped(const struct command *);
/*
 * Stop ourselves as the command's job was stopped, if it was and no SIGCONT has come; returns when
 * continued.
 */
void command_follow_stop(struct command *);
/* Time in ns from TERM to KILL. */
int64_t command_grace(const struct command *);
/* Say, once, which process keeps the lock from being released; pid 0: /proc does not show it. */
void command_report_stuck(struct command *, pid_t pid);
/*
 * The exit code of a command that has exited or never ran; says why it never ran, and ends the
 * events. Dies by the terminal's signal where the command died by it: release the lock and close
 * the handle before.
 */
int command_exit_code(const struct command *);

#endif
