/* guard_state.h - what the files guard*.c share: the guard's state, and what each does for the others. */
#ifndef CLI_GUARD_STATE_H
#define CLI_GUARD_STATE_H

#include "guard.h"

#include <time.h>

#define GUARD_OUT_FIRST G_STARTED
#define GUARD_OUT_COUNT (G_STUCK - G_STARTED + 1)

enum guard_phase {
    PHASE_IDLE, /* no command yet */
    PHASE_RUN,
    PHASE_TERM, /* TERM sent, KILL at guard_kill_time() */
    PHASE_KILL, /* SIGKILL until no child is left */
    PHASE_EMPTY /* no child is left, and none will come: TREE_EMPTY has been posted */
};

struct guard_state {
    const struct guard_config *cfg;
    pid_t caller_group;
    int sock, sigfd, timerfd, exec_fd;
    int lease_fd; /* the connection that the lease hangs on, or -1: open for as long as we are */
    timer_t hard_timer;

    enum guard_phase phase;
    pid_t command; /* 0: not started, or reaped: its number must not be used any more */
    bool used;     /* START has been seen: there is no second one */
    bool exec_failed;
    bool keeper_gone;
    bool lease_over; /* term_at has passed without an EXTEND: final */
    bool stuck_said;
    int64_t term_at, kill_at, hard_at;
    int64_t end_kill_at; /* of the keeper's own END; DLOCK_NEVER: none */
    int64_t kill_since, kill_pause;
    int64_t seen_at;  /* /proc showed the tree, while killing */
    int64_t wake_set; /* what timerfd is set to */

    /* At most one message of each type waits for room in the socket; sent in the order of types. */
    struct guard_msg out[GUARD_OUT_COUNT];
    unsigned pending;
};

/* guard_msg.c: fd is the socket. *passed: the descriptor that came with the message, or -1; LOST: there was no room for it. */
#define GUARD_PASSED_LOST (-2)
/* 1, 0 (none now), -1 (EOF). */
int guard_receive(int fd, struct guard_msg *, int *passed);
/* 0 or -errno; pass: -1, or a descriptor to go along. */
int guard_transmit(int fd, const struct guard_msg *, int pass);
/* Send what waits, as far as there is room. */
void guard_flush(struct guard_state *);
/* A message for the keeper, sent as soon as there is room; it takes the place of one of its type that waits. */
void guard_post(struct guard_state *, int type, int arg);

/* guard_clock.c: when to send SIGKILL, once the tree has been asked to end. */
int64_t guard_kill_time(const struct guard_state *);
/* The kernel's timer: it works while the guard is stopped. After every change of phase or times. */
void guard_set_hard_timer(const struct guard_state *);
/* When the next turn is due without an event; DLOCK_NEVER: not by the clock. */
int64_t guard_next_wake(const struct guard_state *);
void guard_set_wake(struct guard_state *, int64_t at);

/* guard_tree.c: SIGKILL from now on, if there is a command (guard_kill_tree does it, turn by turn). */
void guard_begin_kill(struct guard_state *);
/* SIGTERM, if that has not been sent; at or after guard_kill_time() SIGKILL instead. */
void guard_begin_term(struct guard_state *);
/* Has exec succeeded, or failed? Tells the keeper, once. */
void guard_check_exec(struct guard_state *);
/* Take in every dead child, orphans that came to us included. Returns how many. */
int guard_reap(struct guard_state *);
/* As many passes of SIGKILL as find somebody dead. */
void guard_kill_tree(struct guard_state *);

/* guard_loop.c: turn after turn; it ends by _exit() only. */
_Noreturn void guard_loop(struct guard_state *);

#endif
