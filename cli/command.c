/* command.c - the command under the lock: signals, stops, and the exit code. */
#include "command.h"

#include "lease.h"
#include "messages.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void command_set_token(struct command *c, const char *token)
{
    c->tree.marker = spawn_marker(c->marker, token);
}

/* If the command ends after one of these was forwarded, its descendants are ended too. */
static bool ends(int sig)
{
    return sig == SIGTERM || sig == SIGINT || sig == SIGHUP || sig == SIGQUIT;
}

/*
 * Must this signal be forwarded to the command? Not when the terminal has sent it to the command as
 * well (terminal: we have one and share our group with the command), and not when we caused it
 * ourselves. A signal that a process sent is forwarded every time.
 */
static bool must_forward(const struct signalfd_siginfo *si, bool terminal)
{
    int sig = (int)si->ssi_signo;

    if (sig == SIGCHLD)
        return false;
    if (sig == SIGPIPE && si->ssi_pid == (uint32_t)getpid())
        return false; /* our own line to a closed stderr */
    if (si->ssi_code != SI_KERNEL)
        return true;
    switch (sig) {
    case SIGINT:
    case SIGQUIT:
    case SIGTSTP:
    case SIGTTIN:
    case SIGTTOU:
    case SIGWINCH:
        return !terminal;
    case SIGHUP:
    case SIGCONT:
        /* The kernel sends a hang-up to the session's leader first: if that is us, we forward it. */
        return !terminal || getsid(0) == getpid();
    case SIGPIPE:
    case SIGXCPU:
    case SIGXFSZ:
        return false;
    default:
        return true; /* SIGALRM for instance: an alarm(2) of the caller outlives its exec of us */
    }
}

int command_signal(struct command *c, const struct signalfd_siginfo *si)
{
    int sig = (int)si->ssi_signo;

    c->continued |= sig == SIGCONT;
    if (must_forward(si, c->terminal)) {
        c->end_signal |= ends(sig);
        return sig;
    }
    if (signals_interrupts(si, c->terminal))
        c->terminal_sig = sig;
    return 0;
}

bool command_job_stopped(const struct command *c)
{
    return !c->exited && c->terminal && signals_stops(c->stopped_by);
}

/*
 * The shell sees its job as stopped only when we are stopped, too. But a SIGCONT that is waiting
 * for us was for the whole job: then the command runs again, or will, and nothing would continue
 * us. (A stop that the terminal sends later removes a SIGCONT that is still waiting: this is never
 * an old one.)
 */
void command_follow_stop(struct command *c)
{
    if (command_job_stopped(c) && !c->continued)
        signals_stop_self(c->stopped_by);
    c->stopped_by = 0; /* a report from before our own stop must not stop us again */
}

int64_t command_grace(const struct command *c)
{
    if (c->o->grace_ns >= 0)
        return c->o->grace_ns;
    return lease_default_grace(c->local ? DLOCK_NEVER : c->o->ttl_ns);
}

void command_report_stuck(struct command *c, pid_t pid)
{
    if (c->stuck_reported)
        return;
    c->stuck_reported = true;
    if (pid > 0)
        message(
            "process %d cannot be killed (it runs as another user, or hangs in the kernel): the lock is kept until it is gone",
            (int)pid);
    else
        message(
            "/proc does not show what is left of the command: the lock is kept until it is gone");
}

static int never_ran(const struct command *c)
{
    if (c->exec_error == SPAWN_TOO_LATE) {
        message("the command was not run: the lease was over before it could start");
        return dlock_error_exit(DLOCK_EUNAVAIL);
    }
    if (c->exec_error & SPAWN_FORK_FAILED) {
        message("cannot fork the command: %s", strerror(c->exec_error & ~SPAWN_FORK_FAILED));
        return dlock_error_exit(DLOCK_EOS);
    }
    message("cannot run '%s': %s", c->o->command[0], strerror(c->exec_error));
    return spawn_exec_code(c->exec_error);
}

int command_exit_code(const struct command *c)
{
    if (c->exec_error)
        return never_ran(c);
    if (!WIFSIGNALED(c->status))
        return WEXITSTATUS(c->status);
    /* The shell must see Ctrl-C as well, to leave its loop. */
    if (WTERMSIG(c->status) == c->terminal_sig)
        signals_die(c->terminal_sig);
    return 128 + WTERMSIG(c->status);
}
