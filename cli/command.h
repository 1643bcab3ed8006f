/*
 * command.h - the command under the lock: what is known of it, and what is the same whether a guard
 * is its parent (keeper.c) or we are (direct.c).
 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "options.h"
#include "process_tree.h"
#include "signals.h"
#include "spawn.h"

struct command {
    const struct options *o;
    const struct sigstate *sig;
    bool local;               /* the kernel keeps the lock on a descriptor: it cannot be lost */
    bool terminal;            /* the command shares our process group and our terminal */
    struct process_tree tree; /* empty with -F, and when alone */
    bool alone; /* local, its tree unknown: signals and waiting are for the command only */
    char marker[SPAWN_MARKER_SIZE]; /* of the tree */

    bool exited;     /* it has been reaped, or it never ran */
    int status;      /* wait status, once it has exited */
    int exec_error;  /* 0, or why it never ran: an errno, SPAWN_TOO_LATE, SPAWN_FORK_FAILED|errno */
    int stopped_by;  /* the signal that stopped it, by the last report; 0: it runs */
    bool continued;  /* a SIGCONT has come to us since this was cleared */
    bool end_signal; /* a TERM, INT, HUP or QUIT was forwarded: what the command leaves is ended */
    int terminal_sig; /* INT or QUIT that the terminal sent to us and to the command */
    bool stuck_reported;
};

/* Before the command starts: what it leaves behind can be told from inherited processes by the token. */
void command_set_token(struct command *, const char *token);
/* A signal that came to us while the command runs: the signal to forward to it, or 0. */
int command_signal(struct command *, const struct signalfd_siginfo *);
/* Has the command been stopped as a job of our terminal? Elsewhere no shell expects us to stop as well. */
bool command_job_stopped(const struct command *);
/* Stop ourselves as the command's job was stopped, if it was and no SIGCONT has come; returns when continued. */
void command_follow_stop(struct command *);
/* Time in ns from TERM to KILL. */
int64_t command_grace(const struct command *);
/* Say, once, which process keeps the lock from being released; pid 0: /proc does not show it. */
void command_report_stuck(struct command *, pid_t pid);
/*
 * The exit code of a command that has exited or never ran; says why it never ran. Dies by the
 * terminal's signal where the command died by it: release the lock and close the handle before.
 */
int command_exit_code(const struct command *);

#endif
