/*
 * command.h - the command under the lock: what keeper.c, where a guard is the command's parent, and
 * direct.c, where we are, have in common; and how run.c calls both.
 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "events.h"
#include "options.h"
#include "process_tree.h"
#include "signals.h"
#include "spawn.h"
#include "terminal.h"
#include "uri.h"

#include <limits.h>

struct command_lock {
    char *key;                 /* of nested.h, malloc'ed; NULL: not known (yet) */
    bool nested;               /* by DLOCK_HELD, a dlock above this process holds the lock */
    struct nested_outer outer; /* nested: the dlock above */
    bool ended; /* each dlock above that was asked has ended, or is about to release the lock */
    bool lives; /* a dlock above that was asked may hold the lock, but cannot be reached */
};

struct command {
    const struct options *o;
    const struct sigstate *sig;
    struct events *events; /* NULL: no --events */
    bool local;            /* the kernel keeps the lock on a descriptor: it cannot be lost */
    bool terminal;         /* the command shares our process group and our terminal */
    struct terminal tty;
    bool inherited;  /* dlock had children when it started: its own are not the command's tree */
    bool nested;     /* dlocks above this process hold some of the locks */
    bool may_be_own; /* a holder that we find may be a dlock above this process */
    int nheld;
    bool alone; /* local, its tree unknown: signals and waiting are for the command only */

    bool exited;    /* reaped, or never ran */
    int status;     /* exited: the wait status */
    int exec_error; /* 0, or why it never ran: errno, SPAWN_TOO_LATE, SPAWN_FORK_FAILED|errno */
    int stopped_by; /* the signal that stopped the command, by the last report; 0: it runs */
    int64_t stopped_at, continued_at; /* when that stop was seen; when we last read a SIGCONT */
    bool end_signal;  /* TERM, INT, HUP or QUIT was forwarded: the command's descendants end, too */
    int terminal_sig; /* INT or QUIT that the terminal sent to us and to the command */
    bool stuck_reported;

    /* Last, where pages that are not used take no memory. */
    struct command_lock lock[DLOCK_SET_MAX]; /* LOCK, and those of --also */
    struct held held[DLOCK_SET_MAX];         /* the entries of DLOCK_HELD, LOCK's last */
};

/* Before the command starts. store: the held lock or set; socket: of inner_socket(). */
void command_set_held(struct command *, const dlock *store, const char *socket);
/* The i-th lock is granted: note the key of the file with this descriptor (-1: not a file). */
void command_set_file(struct command *, int i, int fd);
/* Does the command inherit the descriptor of this file lock, so that descendants keep the lock? */
bool command_inherits(const struct command *, const dlock *);
/* Find a command's file as execvp(3) does. Returns its st_mode; 0: there is none. */
mode_t command_find(const char *word, char path[PATH_MAX]);
/* After the run, before the release: was the file of a lock removed or replaced meanwhile? */
void command_tell_removed(const struct command *, const dlock *store);
/* Does this signal ask a command, and what it leaves behind, to end? */
bool command_ends(int sig);
/* A signal that came to us while the command runs: the signal to forward to the command, or 0. */
int command_signal(struct command *, const struct signalfd_siginfo *);
/* Was the command stopped as a job of our terminal? Elsewhere no shell expects us to stop, too. */
bool command_job_stopped(const struct command *);
/* After the job's stop, unless SIGCONT has come: stop ourselves. Returns when continued. */
void command_follow_stop(struct command *);
/* Time in ns from TERM to KILL. */
int64_t command_grace(const struct command *);
/* Say, once, which process keeps the lock from being released; pid 0: /proc does not show it. */
void command_report_stuck(struct command *, pid_t pid);
/*
 * The exit code of a command that has exited or never ran; says why it never ran, and ends the
 * events. Dies by the terminal's signal if the command did: release the lock and close the handle
 * before.
 */
int command_exit_code(const struct command *);

/*
 * keeper.c: acquire the locks, run the command under a guard, end what must be ended, release.
 * uris: of LOCK, then of --also; each is taken over and set to NULL. Returns the exit code, after
 * the handles are closed; may die by a signal instead.
 *
 * A plain file lock needs no guard, and for a command that is alone a guard is useless: when such a
 * lock is granted, *held becomes the handle, which the caller closes, the command has not been
 * started, and the result is 0. Else *held stays unchanged.
 */
int keeper_run(struct command *, struct dlock_uri **uris, dlock **held);
/*
 * direct.c: run the command under the held lock lk, whose descriptor the command inherits. We are
 * the parent and do the signal, terminal and tree work. Closes lk. Returns the exit code; may die
 * by a signal instead. With -F this process becomes the command: returns only when exec failed.
 */
int direct_run(struct command *, dlock *lk);

#endif
