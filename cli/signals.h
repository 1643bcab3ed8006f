/*
 * signals.h - the caller's signal state, kept to be handed to the command unchanged, and our
 * signalfd.
 */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

#include <signal.h>
#include <stdbool.h>
#include <sys/signalfd.h>

struct sigstate {
    sigset_t caller_mask; /* as dlock was started */
    sigset_t ours;        /* blocked, read from fd: SIGCHLD, and what the caller did not ignore */
    sigset_t ignored;     /* by the caller: stays so, is not forwarded */
    bool chld_ignored;    /* by the caller, and so in the command; we need the default */
    bool xfsz_default;    /* as the caller had it; we ignore it, as we do a full disk */
    int fd;               /* signalfd, CLOEXEC, non-blocking */
};

/* First in main: note mask and dispositions, block, make the signalfd. 0 or -errno. */
int signals_init(struct sigstate *);
/* In the forked command, just before exec: exactly what the caller had. Async-signal-safe. */
void signals_restore(const struct sigstate *);
/* One pending signal from fd. 1, or 0 when there is none. */
int signals_read(const struct sigstate *, struct signalfd_siginfo *);
/* TSTP, TTIN, TTOU: the terminal's stop signals. */
bool signals_stops(int sig);
/* True for the signals that cancel a wait: HUP INT TERM QUIT USR1 USR2 ALRM PIPE. */
bool signals_cancels(int sig);
/* Is it our terminal's Ctrl-C or Ctrl-\, which its foreground group gets? terminal: we have one. */
bool signals_interrupts(const struct signalfd_siginfo *, bool terminal);
/* Die by sig: default disposition, unblocked, no core. PID 1, which survives: exit 128+sig. */
_Noreturn void signals_die(int sig);
/* Stop ourselves by sig (TSTP, TTIN, TTOU) as the kernel would have; returns after SIGCONT. */
void signals_stop_self(int sig);

#endif
