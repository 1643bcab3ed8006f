/*
 * keeper.c - the keeper's loop: one poll() over the store, the signals and the guard. It decides nothing
 * about time (lib/lease.c does) and kills nobody (the guard does): it passes on what each must know.
 */
#include "keeper.h"

#include "util.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define SAY_AFTER DLOCK_SEC

/* --- signals ------------------------------------------------------------------------------------- */

static void reap(struct keeper *k)
{
    int status;
    tree_reap(&k->tree, k->guarded ? k->guard.pid : 0, &status);
    if (k->guard_died && k->sweep_at != DLOCK_NEVER)
        keeper_sweep(k);
}

/* Our own line to a closed stderr. */
static bool own_pipe(const struct signalfd_siginfo *si)
{
    return si->ssi_signo == SIGPIPE && si->ssi_pid == (uint32_t)getpid();
}

static void signal_while_waiting(struct keeper *k, const struct signalfd_siginfo *si)
{
    int sig = (int)si->ssi_signo;
    if (sig == SIGTSTP || sig == SIGTTIN || sig == SIGTTOU) {
        signals_stop_self(sig);
    } else if (signals_cancels(sig) && !own_pipe(si)) {
        k->die_sig = sig;
        keeper_give_back(k, KEEPER_CANCEL_TIME);
    }
}

/* Ctrl-C or Ctrl-\ */
static bool from_terminal(const struct keeper *k, const struct signalfd_siginfo *si)
{
    return k->terminal && si->ssi_code == SI_KERNEL &&
           (si->ssi_signo == SIGINT || si->ssi_signo == SIGQUIT);
}

/*
 * Between grant and exec nobody can say whether the command was in the terminal's group already: so it is
 * not to start, or to end, and we die by the signal as we would have a moment earlier.
 */
static void signal_while_starting(struct keeper *k, int sig)
{
    k->die_sig = sig;
    if (!k->ending)
        keeper_end_tree(k, SIGTERM, dlock_now() + keeper_grace(k));
}

static void on_signal(struct keeper *k, const struct signalfd_siginfo *si)
{
    int sig = (int)si->ssi_signo;
    if (sig == SIGCHLD) {
        reap(k);
        return;
    }
    k->continued |= sig == SIGCONT;
    if (k->phase == K_ACQUIRE) {
        signal_while_waiting(k, si);
    } else if (k->phase >= K_RELEASE) {
        /* Somebody is in a hurry; a reconnect gets its chance, then the lease ends by itself. */
        if (k->phase == K_RELEASE && signals_cancels(sig) && !own_pipe(si))
            dlock_start_release(k->lk, dlock_now() + KEEPER_HURRY_TIME);
    } else if (k->phase == K_START && from_terminal(k, si)) {
        signal_while_starting(k, sig);
    } else if (signals_for_command(si, k->terminal)) {
        k->end_signal |= signals_ends(sig);
        keeper_tell_guard(k, G_SIGNAL, sig, NULL);
    } else if (from_terminal(k, si)) {
        k->terminal_sig = sig;
    }
}

/* --- the loop ------------------------------------------------------------------------------------ */

static int64_t own_wake(const struct keeper *k)
{
    int64_t at = dlock_min(dlock_min(k->sweep_at, k->guard_by), k->start_by);
    if (k->phase == K_ACQUIRE && k->news)
        at = dlock_min(at, k->say_at);
    return at;
}

static void own_timers(struct keeper *k)
{
    int64_t now = dlock_now();
    keeper_say_waiting(k, now);
    if (now >= k->sweep_at)
        keeper_sweep(k);
    if (now >= k->start_by) {
        k->start_by = DLOCK_NEVER;
        kill(k->guard.pid, SIGKILL);
    }
    if (now >= k->guard_by) {
        /* It does not leave (stopped?). Nothing is left that it guards. */
        k->guard_by = DLOCK_NEVER;
        kill(k->guard.pid, SIGKILL);
    }
}

/* Wait until something happens. Nanoseconds: a lease can be short, and poll() rounds to milliseconds. */
static int wait_for_events(struct pollfd *pfd, int n, int64_t wake_at)
{
    struct timespec ts, *bound = NULL;
    if (wake_at != DLOCK_NEVER) {
        int64_t left = dlock_max(0, wake_at - dlock_now());
        left = dlock_min(left, 3600 * DLOCK_SEC);
        ts = (struct timespec){.tv_sec = left / DLOCK_SEC, .tv_nsec = left % DLOCK_SEC};
        bound = &ts;
    }
    int got = ppoll(pfd, (nfds_t)n, bound, NULL);
    /* No memory in the kernel: going round without a pause would take the processor from all others. */
    if (got < 0 && errno != EINTR)
        nanosleep(&(struct timespec){.tv_nsec = 5 * DLOCK_MSEC}, NULL);
    return got;
}

void keeper_read_signals(struct keeper *k)
{
    struct signalfd_siginfo si;
    while (signals_read(k->sig, &si))
        on_signal(k, &si);
}

static bool finished(const struct keeper *k)
{
    return k->phase == K_GRANTED || (k->phase == K_OVER && (!k->guarded || k->guard_gone));
}

void keeper_init(struct keeper *k)
{
    k->phase = K_ACQUIRE;
    k->guard.fd = -1;
    k->sweep_at = k->guard_by = k->start_by = DLOCK_NEVER;
    k->say_at = dlock_now() + SAY_AFTER;
}

void keeper_loop(struct keeper *k)
{
    struct pollfd pfd[DLOCK_POLL_MAX + 2];
    keeper_read_store(k, NULL, 0);
    while (!finished(k)) {
        int64_t wake_at = DLOCK_NEVER;
        int n = k->phase == K_OVER ? 0 : dlock_interest(k->lk, pfd, DLOCK_POLL_MAX, &wake_at);
        int store = n;
        pfd[n++] = (struct pollfd){.fd = k->sig->fd, .events = POLLIN};
        if (k->guarded && !k->guard_gone)
            pfd[n++] = (struct pollfd){.fd = k->guard.fd, .events = POLLIN};
        int got = wait_for_events(pfd, n, dlock_min(wake_at, own_wake(k)));
        if (got < 0)
            store = 0;
        /* The guard first: that the command has ended matters more than what the store says about its lock. */
        keeper_read_guard(k);
        keeper_read_signals(k);
        keeper_read_store(k, pfd, store);
        own_timers(k);
    }
}
