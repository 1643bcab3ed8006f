/*
 * direct.c - a command under a plain file lock. The lock is the kernel's, lives on a descriptor that the
 * command inherits, and cannot be lost: there is no guard, and we are the command's parent.
 */
#include "guard.h"
#include "lease.h"
#include "run.h"
#include "spawn.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SWEEP_PAUSE_MS 100

struct hold {
    dlock *lk;
    const struct options *o;
    const struct sigstate *sig;
    struct process_tree tree;
    char marker[SPAWN_MARKER_SIZE]; /* of the tree */
    pid_t command;
    int exec_fd;    /* -1: the exec is done */
    int exec_error; /* 0, or why it failed */
    bool terminal;  /* the command shares our group and our terminal */
    bool exited;
    int status;     /* of the command, once it has exited */
    int stopped_by; /* the signal that stopped the command, by the last word about it; 0: it runs */
    bool continued; /* a SIGCONT has come */
    bool ended;     /* TERM, INT, HUP or QUIT was passed on */
    int terminal_sig; /* INT or QUIT that the terminal sent to us and to the command */
};

static struct spawn describe(dlock *lk, const struct options *o, const struct sigstate *sig)
{
    return (struct spawn){
        .argv = o->command,
        .sig = sig,
        .keeper_fd = -1,
        .not_after = DLOCK_NEVER,
        .inherit_fd = dlock_fd(lk),
        .name = dlock_name(lk),
        .token = dlock_token(lk),
        .fence = dlock_fence(lk),
    };
}

void direct_exec(dlock *lk, const struct options *o, const struct sigstate *sig)
{
    struct spawn sp = describe(lk, o, sig);

    exit(exec_failed(o, spawn_exec(&sp)));
}

/* Keep what we and the handle use; a pipe of the caller must end when the command ends it. */
static void let_go(const struct hold *h)
{
    struct pollfd used[DLOCK_POLL_MAX];
    int keep[DLOCK_POLL_MAX + 3], n = 0;
    int64_t unused;
    int nused = dlock_interest(h->lk, used, DLOCK_POLL_MAX, &unused);

    keep[n++] = h->sig->fd;
    keep[n++] = h->exec_fd;
    keep[n++] = dlock_fd(h->lk);
    for (int i = 0; i < nused; i++)
        keep[n++] = used[i].fd;
    fds_let_go(keep, n);
}

static void check_exec(struct hold *h)
{
    int why;
    ssize_t n;

    do
        n = read(h->exec_fd, &why, sizeof why);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)sizeof why)
        h->exec_error = why;
    close(h->exec_fd);
    h->exec_fd = -1;
}

static void pass_on(struct hold *h, int sig)
{
    if (h->exited)
        return; /* its number may be another's by now */
    if (signals_ends(sig))
        h->ended = true;
    if (h->terminal || kill(-h->command, sig) != 0)
        kill(h->command, sig);
}

/* True when a child has something to tell. */
static bool take_signals(struct hold *h)
{
    struct signalfd_siginfo si;
    bool child = false;

    while (signals_read(h->sig, &si)) {
        int sig = (int)si.ssi_signo;
        h->continued |= sig == SIGCONT;
        if (sig == SIGCHLD)
            child = true;
        else if (signals_for_command(&si, h->terminal))
            pass_on(h, sig);
        else if (h->terminal && si.ssi_code == SI_KERNEL && (sig == SIGINT || sig == SIGQUIT))
            h->terminal_sig = sig;
    }
    return child;
}

/* The last word of waitpid(2) counts: somebody may have continued the command meanwhile. */
static void look_at_command(struct hold *h)
{
    int st;

    while (!h->exited && waitpid(h->command, &st, WNOHANG | WUNTRACED | WCONTINUED) == h->command) {
        if (WIFSTOPPED(st)) {
            h->stopped_by = WSTOPSIG(st);
        } else if (WIFCONTINUED(st)) {
            h->stopped_by = 0;
        } else {
            h->exited = true;
            h->status = st;
        }
    }
    if (!h->exited) /* orphans that came to us */
        h->exited = process_tree_reap(&h->tree, h->command, &h->status);
}

/* Has the command been stopped as a job of the terminal's? */
static bool job_stopped(const struct hold *h)
{
    return !h->exited && h->terminal &&
           (h->stopped_by == SIGTSTP || h->stopped_by == SIGTTIN || h->stopped_by == SIGTTOU);
}

/*
 * The shell's job is stopped only when we are, too. But a SIGCONT that is waiting for us was for the whole
 * job: then the command runs again, or will, and nobody would continue us. (A stop that the terminal sends
 * later removes a SIGCONT that is still waiting: this is never an old one.)
 */
static void reap(struct hold *h)
{
    h->continued = false;
    do
        look_at_command(h);
    while (job_stopped(h) && take_signals(h));
    if (job_stopped(h) && !h->continued)
        signals_stop_self(h->stopped_by);
    h->stopped_by = 0; /* a word from before our own sleep must not stop us again */
}

static void read_signals(struct hold *h)
{
    /* After the rest: a command that died by Ctrl-C is judged with our own Ctrl-C in view. */
    if (take_signals(h))
        reap(h);
}

static void wait_for_exit(struct hold *h)
{
    while (!h->exited) {
        struct pollfd p[] = {
            {.fd = h->sig->fd, .events = POLLIN},
            {.fd = h->exec_fd, .events = POLLIN},
        };
        if (poll(p, 2, -1) < 0)
            continue;
        if (p[1].revents)
            check_exec(h);
        if (p[0].revents)
            read_signals(h);
    }
    if (h->exec_fd >= 0)
        check_exec(h);
}

static void pause_for(const struct hold *h, int64_t ns)
{
    struct pollfd p = {.fd = h->sig->fd, .events = POLLIN};
    struct signalfd_siginfo si;

    if (poll(&p, 1, (int)((ns + DLOCK_MSEC - 1) / DLOCK_MSEC)) > 0)
        while (signals_read(h->sig, &si))
            ; /* only SIGCHLD matters here, and it has done its work: we are awake */
}

static void kill_rest(const struct hold *h)
{
    int64_t since = dlock_now();
    bool said = false;
    pid_t stuck;

    while (process_tree_sweep(&h->tree, &stuck) > 0) {
        if (!stuck && dlock_now() - since > DLOCK_SEC)
            stuck = process_tree_living(&h->tree);
        if (stuck && !said) {
            say("process %d cannot be killed: the lock is kept until it is gone", (int)stuck);
            said = true;
        }
        pause_for(h, SWEEP_PAUSE_MS * DLOCK_MSEC);
    }
}

/* The command ended because it was told to: what is left of it goes too, before the lock does. */
static void end_rest(const struct hold *h)
{
    int64_t grace = h->o->grace_ns >= 0 ? h->o->grace_ns : lease_default_grace(DLOCK_NEVER);
    int64_t kill_at = dlock_now() + grace, left;

    if (process_tree_count(&h->tree) == 0)
        return;
    if (!process_tree_visible()) {
        say("processes that '%s' left behind are not ended: /proc does not show them",
            h->o->command[0]);
        return;
    }
    if (grace > 0)
        process_tree_signal(&h->tree, SIGTERM, NULL);
    while ((left = kill_at - dlock_now()) > 0) {
        process_tree_reap(&h->tree, 0, NULL);
        if (process_tree_count(&h->tree) == 0)
            return;
        pause_for(h, left < DLOCK_SEC ? left : DLOCK_SEC);
    }
    kill_rest(h);
}

static int outcome(const struct hold *h)
{
    if (h->exec_error)
        return exec_failed(h->o, h->exec_error);
    if (!WIFSIGNALED(h->status))
        return WEXITSTATUS(h->status);
    if (WTERMSIG(h->status) == h->terminal_sig) {
        /* So that the shell knows about Ctrl-C as well, and leaves its loop. */
        dlock_close(h->lk);
        signals_die(h->terminal_sig);
    }
    return 128 + WTERMSIG(h->status);
}

int direct_hold(dlock *lk, const struct options *o, const struct sigstate *sig,
                const struct process_tree *tree)
{
    struct hold h = {.lk = lk, .o = o, .sig = sig, .tree = *tree, .exec_fd = -1};
    struct spawn sp = describe(lk, o, sig);

    h.tree.marker = spawn_marker(h.marker, dlock_token(lk));
    h.terminal = spawn_has_terminal();
    sp.own_group = !h.terminal;
    h.command = spawn_command(&sp, &h.exec_fd);
    if (h.command < 0) {
        say("cannot fork the command: %s", strerror(-h.command));
        return dlock_error_exit(DLOCK_EOS);
    }
    let_go(&h);
    wait_for_exit(&h);
    if (h.ended)
        end_rest(&h);
    return outcome(&h);
}
