/* keeper.h - the keeper's state: one struct, shared by run.c (the way in and out) and keeper.c (the loop). */
#ifndef CLI_KEEPER_H
#define CLI_KEEPER_H

#include "guard.h"
#include "run.h"
#include "spawn.h"

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
    struct tree tree;
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
/* keeper.c: turn until the phase reaches K_GRANTED (once) or K_OVER. */
void keeper_loop(struct keeper *);
/* After K_GRANTED: tell the guard to start the command. */
void keeper_start(struct keeper *);

#endif
