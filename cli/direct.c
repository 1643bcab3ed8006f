/*
 * direct.c - a command under a plain file lock. The kernel keeps the lock on a descriptor that the
 * command inherits, so the lock cannot be lost: there is no guard, and we are the command's parent.
 *
 * Also with -o and --slots where a guard could not find the command's tree (struct command, alone):
 * then the descriptor is ours only, as with flock(1).
 */
#include "command.h"
#include "forward.h"
#include "inner.h"
#include "messages.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define SWEEP_EVERY (100 * DLOCK_MSEC)

struct hold {
    struct command *c;
    dlock *lk;
    pid_t pid;           /* the command's */
    struct inner *inner; /* NULL: not possible */
    struct forward forward;
};

static struct spawn describe(const struct hold *h)
{
    struct spawn sp = {
        .argv = h->c->o->command,
        .sig = h->c->sig,
        .keeper_fd = -1,
        .inherit_fd = command_inherits(h->c, h->lk) ? dlock_fd(h->lk) : -1,
        .name = dlock_name(h->lk),
        .dlock_pid = getpid(),
        .grant = {.not_after = DLOCK_NEVER,
                  .fence = dlock_fence(h->lk),
                  .slot = dlock_slot(h->lk) + 1,
                  .nheld = h->c->nheld},
    };
    snprintf(sp.grant.token, sizeof(sp.grant.token), "%s", dlock_token(h->lk));
    memcpy(sp.grant.held, h->c->held, sizeof(sp.grant.held[0]) * (size_t)h->c->nheld);
    return sp;
}

static void send_signal(const struct hold *h, int sig)
{
    /* Once the command has been reaped its pid may be reused. */
    if (sig > 0 && !h->c->exited)
        kill(h->pid, sig);
}

static void send_signals(struct hold *h)
{
    int sig;
    bool shared; /* never: there is no guard */
    while ((sig = forward_take(&h->forward, dlock_now(), &shared)) > 0)
        send_signal(h, sig);
}

/* True when a child has changed its state. */
static bool take_signals(struct hold *h)
{
    struct signalfd_siginfo si;
    bool child = false;
    while (signals_read(h->c->sig, &si)) {
        if (si.ssi_signo == SIGCHLD) {
            child = true;
        } else if (command_signal(h->c, &si)) {
            struct forward_signal s = forward_describe(&si, dlock_now());
            send_signal(h, forward_add(&h->forward, &s));
        }
    }
    send_signals(h);
    return child;
}

static void on_child(struct hold *h)
{
    struct command *c = h->c;
    int st;
    do {
        /* Only the last state of waitpid(2) counts: the command may run again meanwhile. */
        while (!c->exited && waitpid(h->pid, &st, WNOHANG | WUNTRACED | WCONTINUED) == h->pid) {
            if (WIFSTOPPED(st)) {
                c->stopped_by = WSTOPSIG(st);
                c->stopped_at = dlock_now();
            } else if (WIFCONTINUED(st)) {
                c->stopped_by = 0;
            } else {
                c->exited = true;
                c->status = st;
            }
        }
        if (!c->exited) /* orphans that came to us */
            c->exited = process_tree_reap(h->pid, &c->status);
    } while (command_job_stopped(c) && take_signals(h));
    command_follow_stop(c);
}

/* Sleep until a signal or until that time, or less; serve inner dlocks, queries and the events. */
static void sleep_until(const struct hold *h, int64_t until)
{
    struct pollfd p[3] = {
        {.fd = h->c->sig->fd, .events = POLLIN},
        {.fd = inner_fd(h->inner), .events = POLLIN},
    };
    nfds_t n = 2 + (nfds_t)events_interest(h->c->events, &p[2]);
    poll(p, n, dlock_poll_ms(dlock_now(), dlock_min(until, inner_wake(h->inner))));
    inner_turn(h->inner);
    events_turn(h->c->events);
}

static void wait_for_exit(struct hold *h)
{
    while (!h->c->exited) {
        sleep_until(h, forward_wake(&h->forward));
        /* First the signals: a command that died by Ctrl-C is judged with our Ctrl-C in view. */
        if (take_signals(h))
            on_child(h);
    }
}

/* The command has ended. True: a signal asked the command to end. SIGCHLD only wakes us. */
static bool pause_until(const struct hold *h, int64_t until)
{
    struct signalfd_siginfo si;
    bool ends = false;
    sleep_until(h, until);
    while (signals_read(h->c->sig, &si))
        ends |= command_ends((int)si.ssi_signo);
    return ends;
}

/* A signal asked the command to end: end its descendants, too, before the lock is released. */
static void end_rest(const struct hold *h)
{
    int64_t grace = command_grace(h->c), kill_at = dlock_now() + grace;
    pid_t stuck;
    if (process_tree_count() == 0)
        return;
    if (!process_tree_visible()) {
        message("processes that '%s' left behind are not ended: /proc does not show them",
                h->c->o->command[0]);
        return;
    }
    if (grace > 0)
        process_tree_term(kill_at);
    while (dlock_now() < kill_at) {
        process_tree_reap(0, NULL);
        if (process_tree_count() == 0)
            return;
        pause_until(h, dlock_min(kill_at, dlock_now() + DLOCK_SEC));
    }
    while (process_tree_sweep(&stuck) > 0) {
        if (!stuck && dlock_now() > kill_at + DLOCK_SEC)
            stuck = process_tree_living();
        if (stuck)
            command_report_stuck(h->c, stuck);
        pause_until(h, dlock_now() + SWEEP_EVERY);
    }
}

static void run_command(struct hold *h)
{
    struct command *c = h->c;
    const dlock *lk = h->lk;
    struct pollfd used[DLOCK_POLL_MAX];
    int64_t unused;
    command_set_file(c, 0, dlock_fd(lk));
    h->inner = inner_open(NULL, &(struct inner_lock){lk, c->lock[0].key}, 1);
    command_set_held(c, lk, inner_socket(h->inner));
    struct spawn sp = describe(h);
    h->pid = spawn_here(&sp, &c->exec_error);
    if (h->pid < 0)
        return;
    /* The caller's pipes must end when the command ends: keep only what we and the handle use. */
    int keep[5 + DLOCK_FDS_MAX + DLOCK_POLL_MAX] = {c->sig->fd, dlock_fd(lk), events_fd(c->events),
                                                    inner_fd(h->inner), inner_listen_fd(h->inner)};
    int n = 5;
    /* The handle closes these: closed now, their numbers could belong to other files by then. */
    n += dlock_own_fds(lk, keep + n);
    for (int i = 0, nused = dlock_interest(h->lk, used, DLOCK_POLL_MAX, &unused); i < nused; i++)
        keep[n++] = used[i].fd;
    fds_let_go(keep, n);
    events_start_thread(c->events);
    wait_for_exit(h);
    if (c->end_signal && !c->alone)
        end_rest(h);
    if (c->end_signal)
        inner_ask_to_end(h->inner, true);
    /* Inner dlocks may be left, and signals are for them. Orphans of the command come to us. */
    for (inner_settle(h->inner); inner_count(h->inner) > 0;) {
        if (pause_until(h, DLOCK_NEVER))
            inner_ask_to_end(h->inner, true);
        process_tree_reap(0, NULL);
    }
}

int direct_run(struct command *c, dlock *lk)
{
    struct hold h = {.c = c, .lk = lk};
    if (c->o->no_fork) {
        struct spawn sp = describe(&h);
        events_flush(c->events);
        c->exec_error = spawn_exec(&sp);
    } else {
        run_command(&h);
        command_tell_removed(c, lk);
    }
    inner_close(h.inner);
    dlock_close(lk);
    events_released(c->events, "closed", dlock_now());
    return command_exit_code(c);
}
