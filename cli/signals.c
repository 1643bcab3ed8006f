/* signals.c - which signals are ours, which are the command's, and how we die or stop by one. */
#include "signals.h"

#include "util.h"

#include <errno.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

/*
 * Never blocked: KILL and STOP cannot be, glibc keeps 32 and 33 for itself (its sigaction(2)
 * refuses them), and a synchronous fault that is blocked kills without calling its handler.
 */
static bool left_alone(int sig)
{
    static const int alone[] = {SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGFPE,
                                SIGILL,  SIGTRAP, SIGSYS,  SIGABRT};
    for (size_t i = 0; i < DLOCK_LEN(alone); i++)
        if (sig == alone[i])
            return true;
    return sig >= 32 && sig < SIGRTMIN;
}

int signals_init(struct sigstate *s)
{
    struct sigaction sa;
    sigemptyset(&s->ours);
    sigemptyset(&s->ignored);
    s->chld_ignored = s->xfsz_default = false;
    s->fd = -1;
    for (int sig = 1; sig <= SIGRTMAX; sig++) {
        if (left_alone(sig) || sigaction(sig, NULL, &sa) != 0)
            continue;
        bool ignored = !(sa.sa_flags & SA_SIGINFO) && sa.sa_handler == SIG_IGN;
        if (sig == SIGCHLD) {
            s->chld_ignored = ignored;
            ignored = false;
        }
        /* "ulimit -f": blocked, it would wait for whoever unblocks it, the command by -F. */
        if (sig == SIGXFSZ && !ignored) {
            s->xfsz_default = signal(sig, SIG_IGN) != SIG_ERR;
            continue;
        }
        /*
         * A signal that is ignored *and* blocked is still queued, and a signalfd would return it:
         * signals that the caller ignored must stay out of the mask.
         */
        sigaddset(ignored ? &s->ignored : &s->ours, sig);
    }
    /* The caller's own blocked signals stay blocked: add, do not replace. */
    if (sigprocmask(SIG_BLOCK, &s->ours, &s->caller_mask) != 0)
        return -errno;
    /* With SIGCHLD ignored the kernel reaps children by itself and no wait status is left. */
    if (s->chld_ignored && signal(SIGCHLD, SIG_DFL) == SIG_ERR)
        return -errno;
    s->fd = signalfd(-1, &s->ours, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->fd < 0 ? -errno : 0;
}

void signals_restore(const struct sigstate *s)
{
    if (s->chld_ignored)
        signal(SIGCHLD, SIG_IGN);
    if (s->xfsz_default)
        signal(SIGXFSZ, SIG_DFL);
    sigprocmask(SIG_SETMASK, &s->caller_mask, NULL);
}

int signals_read(const struct sigstate *s, struct signalfd_siginfo *info)
{
    ssize_t n;
    do
        n = read(s->fd, info, sizeof(*info));
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)sizeof(*info);
}

bool signals_stops(int sig)
{
    return sig == SIGTSTP || sig == SIGTTIN || sig == SIGTTOU;
}

bool signals_cancels(int sig)
{
    return sig == SIGHUP || sig == SIGINT || sig == SIGTERM || sig == SIGQUIT || sig == SIGUSR1 ||
           sig == SIGUSR2 || sig == SIGALRM || sig == SIGPIPE;
}

bool signals_interrupts(const struct signalfd_siginfo *si, bool terminal)
{
    return terminal && si->ssi_code == SI_KERNEL &&
           (si->ssi_signo == SIGINT || si->ssi_signo == SIGQUIT);
}

void signals_die(int sig)
{
    static const struct rlimit none;
    sigset_t one;
    /*
     * The core would be ours, not the command's, and full of secrets. The kernel ignores the limit
     * when core_pattern is a pipe, so we are made undumpable too.
     */
    setrlimit(RLIMIT_CORE, &none);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    signal(sig, SIG_DFL);
    sigemptyset(&one);
    sigaddset(&one, sig);
    raise(sig); /* pending until the next line */
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    _exit(128 + sig); /* the kernel never kills PID 1 by a default disposition */
}

void signals_stop_self(int sig)
{
    sigset_t one, before;
    /*
     * Raise first, then unblock. The terminal's own signal may be pending already; in the other
     * order it would stop us now, and ours again after SIGCONT. SIGCONT removes all pending stop
     * signals.
     */
    raise(sig);
    sigemptyset(&one);
    sigaddset(&one, sig);
    sigprocmask(SIG_UNBLOCK, &one, &before);
    sigprocmask(SIG_SETMASK, &before, NULL);
}
