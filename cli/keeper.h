/* keeper.h - the keeper's state: one struct, shared by run.c (the way in and out) and keeper*.c (the loop). */
#ifndef CLI_KEEPER_H
#define CLI_KEEPER_H

#include "guard.h"
#include "run.h"
#include "spawn.h"

/* How long a release is tried: leaving a queue, giving back what we hold, and what is lost anyway. */
#define KEEPER_CANCEL_TIME DLOCK_SEC
#define KEEPER_LOST_TIME (500 * DLOCK_MSEC)
#define KEEPER_HURRY_TIME (300 * DLOCK_MSEC)

enum keeper_phase {
    K_ACQUIRE, /* waiting for the lock; a signal cancels */
    K_GRANTED, /* held, nothing started: the loop returns here, once */
    K_START,   /* the guard has been told to start the command */
    K_RUN,     /* the command runs */
    K_RELEASE, /* it is over: the lock is being given back, the guard leaves */
    K_OVER
};

struct keeper {
    const struct options *o;
    const struct sigstate *sig;
    struct process_tree tree;
    char marker
        [SPAWN_MARKER_SIZE]; /* of the tree: tells it from the children we were executed with */
    dlock *lk;
    enum keeper_phase phase;

    struct guard guard;
    bool guarded;     /* there is a guard (fd and pid are valid) */
    bool guard_gone;  /* its end of the socket is closed */
    bool guard_died;  /* ... although nobody asked it to leave */
    bool terminal;    /* the command shares our process group and terminal */
    int64_t sweep_at; /* the guard died: kill its orphans again at this time */
    int64_t start_by; /* it was told to start the command: killed if it has not answered by then */
    int64_t guard_by; /* it was told to leave: killed if it has not by then */

    bool continued; /* a SIGCONT has come */
    bool told_stuck;
    bool told_lost;  /* one line about the loss is enough */
    bool lost;       /* any evidence of loss: the exit code is 79, whatever the command says */
    bool end_signal; /* a TERM, INT, HUP or QUIT was forwarded: what the command leaves is ended */
    bool ending;     /* the guard was told to end the tree */
    bool exited;     /* the command has been reaped (or never ran) */
    bool tree_empty;
    int stopped_by; /* the signal that stopped the command, by the guard's last word; 0: it runs */
    int status;     /* wait status */
    int exec_error; /* as in G_EXEC_FAILED; 0: it ran */
    int terminal_sig; /* INT or QUIT that the terminal sent to us too */
    int die_sig;      /* a signal cancelled the wait: die by it */
    int code;         /* exit code of a wait that ended without the lock */

    struct dlock_times times; /* the lease as the guard knows it */
    struct dlock_info holder; /* last seen while waiting */
    bool have_holder, news;
    int place;
    int64_t say_at;
};

/* Everything but options, signals, tree, lk and terminal: nothing has happened yet. */
void keeper_init(struct keeper *);
/* Turn until the phase reaches K_GRANTED (once) or K_OVER. */
void keeper_loop(struct keeper *);
/* After K_GRANTED: tell the guard to start the command. */
void keeper_start(struct keeper *);

/* What the files keeper*.c do for each other. keeper.c: act on all signals that have come. */
void keeper_read_signals(struct keeper *);

/* keeper_guard.c: act on all that the guard has said, and on its death. */
void keeper_read_guard(struct keeper *);
/* 0 or -errno, as of guard_send. t: the times, or NULL. To a guard that is gone, or never was, nothing is said. */
int keeper_tell_guard(struct keeper *, enum guard_msg_type, int arg, const struct dlock_times *t);
/* The guard is to end the whole tree: SIGTERM, then KILL at kill_at, or SIGKILL. */
void keeper_end_tree(struct keeper *, int sig, int64_t kill_at);
/* The guard is dead: its orphans have come to us. Again while sweep_at is set. */
void keeper_sweep(struct keeper *);
/* Release the lock, for at most so long; the guard leaves. */
void keeper_give_back(struct keeper *, int64_t time);
/* It ends here, with or without the lock; the guard goes, then the loop does. */
void keeper_over(struct keeper *);
/* From TERM to KILL. */
int64_t keeper_grace(const struct keeper *);
/* May a loss end the command? */
bool keeper_may_end(const struct keeper *);

/* keeper_store.c: act on all that the store has said, until the lock is granted; pfd, n: as of dlock_process. */
void keeper_read_store(struct keeper *, const struct pollfd *pfd, int n);
/* The lock is lost: noted, and said once. what: "is lost"; why: "", or more. */
void keeper_tell_lost(struct keeper *, const char *what, const char *why);
/* For whom we wait, when there is news of it and it is time to say so. */
void keeper_say_waiting(struct keeper *, int64_t now);

#endif
