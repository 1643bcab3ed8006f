/*
 * guard.c - the dead man's switch, and how it comes into being.
 *
 * The guard is the command's parent and knows two times. It kills the whole tree when the keeper's end
 * of the socket closes, and ends it by the clock when the keeper stops extending. Two kernel means
 * stand behind it, should it be stopped or killed itself: a timer that kills the guard at hard_at,
 * and the parent-death signal that then kills the command.
 *
 * It never blocks but in ppoll and allocates nothing, in none of its files: guard_loop.c (orders and events),
 * guard_clock.c (when), guard_tree.c (the end of the tree), guard_msg.c (the socket).
 */
#include "guard_state.h"

#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* 0, or an errno: without every part of it the guard must not start a command. */
static int prepare(struct guard_state *g)
{
    struct sigevent ev = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    sigset_t all, chld;

    /*
     * A group of its own: Ctrl-Z stops the terminal's foreground group, and a guard that sleeps
     * with its command guards nothing. Only where the caller's group has no number (it is outside of our
     * pid namespace, at whose edge we stand) the command could not be put back into it: there the guard
     * stays, and takes part in nothing, as it blocks every signal.
     */
    if ((g->cfg->own_group || g->caller_group > 0) && setpgid(0, 0) != 0)
        return errno;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        return errno;
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* undone in the command by its exec */
    prctl(PR_SET_NAME, "dlock-guard", 0, 0, 0);

    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    g->sigfd = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK);
    g->timerfd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (g->sigfd < 0 || g->timerfd < 0)
        return errno;
    if (timer_create(CLOCK_BOOTTIME, &ev, &g->hard_timer) != 0)
        return errno;
    return 0;
}

static _Noreturn void guard_main(const struct guard_config *cfg, int sock, pid_t caller_group)
{
    struct guard_state g = {
        .cfg = cfg,
        .caller_group = caller_group,
        .sock = sock,
        .exec_fd = -1,
        .lease_fd = -1,
        .term_at = DLOCK_NEVER,
        .kill_at = DLOCK_NEVER,
        .hard_at = DLOCK_NEVER,
        .end_kill_at = DLOCK_NEVER,
        .wake_set = DLOCK_NEVER,
    };

    close(cfg->sig->fd); /* the keeper's; our own knows SIGCHLD only */
    if (prepare(&g) != 0)
        _exit(71);
    guard_loop(&g);
}

int guard_fork(struct guard *out, const struct guard_config *cfg)
{
    pid_t group = getpgrp(), pid;
    int ends[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return -errno;
    pid = fork();
    if (pid < 0) {
        int err = errno;
        close(ends[0]);
        close(ends[1]);
        return -err;
    }
    if (pid == 0) {
        /* With a copy of the keeper's end open here, its EOF would never come. */
        close(ends[0]);
        guard_main(cfg, ends[1], group);
    }
    close(ends[1]);
    out->pid = pid;
    out->fd = ends[0];
    return 0;
}
