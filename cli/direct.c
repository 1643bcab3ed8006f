/*
 * direct.c - a command under a plain file lock. The lock is the kernel's, lives on a descriptor
 * that the command inherits, and cannot be lost: there is no guard, and we are the command's
 * parent.
 *
 * With -o and --slots too where a guard could not find the command's tree (struct command, alone): then the
 * descriptor is ours only, as with flock(1).
 */
#include "direct.h"

#include "forward.h"
#include "inner.h"
#include "messages.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define SWEEP_EVERY (100 * DLOCK_MSEC)

struct hold {
    struct command *c;
    dlock *lk;
    pid_t pid;           /* the command's */
    int exec_fd;         /* -1: the exec is done */
    struct inner *inner; /* NULL: not possible */
    struct forward forward;
};

static struct spawn describe(const struct hold *h)
{
    return (struct spawn){
        .argv = h->c->o->command,
        .sig = h->c->sig,
        .keeper_fd = -1,
        .not_after = DLOCK_NEVER,
        .inherit_fd = command_inherits(h->c, h->lk) ? dlock_fd(h->lk) : -1,
        .name = dlock_name(h->lk),
        .token = dlock_token(h->lk),
        .fence = dlock_fence(h->lk),
        .slot = dlock_slot(h->lk) + 1,
        .held = h->c->held,
        .nheld = h->c->nheld,
    };
}

/* Keep our own descriptors and those of the handle; a pipe of the caller must end when the command ends it. */
static void let_go(const struct hold *h)
{
    struct pollfd used[DLOCK_POLL_MAX];
    int keep[DLOCK_POLL_MAX + 6], n = 0;
    int64_t unused;
    int nused = dlock_interest(h->lk, used, DLOCK_POLL_MAX, &unused);

    keep[n++] = h->c->sig->fd;
    keep[n++] = h->exec_fd;
    keep[n++] = dlock_fd(h->lk);
    keep[n++] = events_fd(h->c->events);
    keep[n++] = inner_fd(h->inner);
    keep[n++] = inner_listen_fd(h->inner);
    for (int i = 0; i < nused; i++)
        keep[n++] = used[i].fd;
    fds_let_go(keep, n);
}

static void send_signal(const struct hold *h, int sig)
{
    /* Once it has been reaped its pid may be reused. */
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

/* Only the last state of waitpid(2) counts: the command may have been continued meanwhile. */
static void check_command(struct hold *h)
{
    struct command *c = h->c;
    int st;

    while (!c->exited && waitpid(h->pid, &st, WNOHANG | WUNTRACED | WCONTINUED) == h->pid) {
        if (WIFSTOPPED(st)) {
            c->stopped_by = WSTOPSIG(st);
        } else if (WIFCONTINUED(st)) {
            c->stopped_by = 0;
        } else {
            c->exited = true;
            c->status = st;
        }
    }
    if (!c->exited) /* orphans that came to us */
        c->exited = process_tree_reap(&c->tree, h->pid, &c->status);
}

static void on_child(struct hold *h)
{
    h->c->continued = false;
    do
        check_command(h);
    while (command_job_stopped(h->c) && take_signals(h));
    command_follow_stop(h->c);
}

static void check_exec(struct hold *h)
{
    spawn_exec_result(&h->exec_fd, &h->c->exec_error);
}

static void wait_for_exit(struct hold *h)
{
    while (!h->c->exited) {
        struct pollfd p[4] = {
            {.fd = h->c->sig->fd, .events = POLLIN},
            {.fd = h->exec_fd, .events = POLLIN},
            {.fd = inner_fd(h->inner), .events = POLLIN},
        };
        nfds_t n = 3 + (nfds_t)events_interest(h->c->events, &p[3]);
        int64_t wake = dlock_min(forward_wake(&h->forward), inner_wake(h->inner));
        if (poll(p, n, dlock_poll_ms(dlock_now(), wake)) < 0)
            continue;
        inner_turn(h->inner);
        events_turn(h->c->events, dlock_now());
        if (p[1].revents)
            check_exec(h);
        /* All signals before the children: a command that died by Ctrl-C is judged with our own Ctrl-C in view. */
        if (p[0].revents && take_signals(h))
            on_child(h);
        send_signals(h);
    }
    if (h->exec_fd >= 0)
        check_exec(h);
}

/*
 * Sleep until a signal or for ns, or less: inner dlocks and queries are served. Signals have no other effect now: SIGCHLD
 * only wakes us.
 */
static void pause_for(const struct hold *h, int64_t ns)
{
    struct pollfd p[2] = {
        {.fd = h->c->sig->fd, .events = POLLIN},
        {.fd = inner_fd(h->inner), .events = POLLIN},
    };
    struct signalfd_siginfo si;
    int64_t now = dlock_now();

    poll(p, 2, dlock_poll_ms(now, dlock_min(now + ns, inner_wake(h->inner))));
    while (signals_read(h->c->sig, &si))
        ;
    inner_turn(h->inner);
}

static void kill_rest(const struct hold *h)
{
    int64_t since = dlock_now();
    pid_t stuck;

    while (process_tree_sweep(&h->c->tree, &stuck) > 0) {
        if (!stuck && dlock_now() - since > DLOCK_SEC)
            stuck = process_tree_living(&h->c->tree);
        if (stuck)
            command_report_stuck(h->c, stuck);
        pause_for(h, SWEEP_EVERY);
    }
}

/* The command ended after a signal that asked for it: what is left of it ends too, before the lock is released. */
static void end_rest(const struct hold *h)
{
    const struct process_tree *tree = &h->c->tree;
    int64_t grace = command_grace(h->c);
    int64_t kill_at = dlock_now() + grace, left;

    if (process_tree_count(tree) == 0)
        return;
    if (!process_tree_visible()) {
        message("processes that '%s' left behind are not ended: /proc does not show them",
                h->c->o->command[0]);
        return;
    }
    if (grace > 0)
        process_tree_signal(tree, SIGTERM, NULL);
    while ((left = kill_at - dlock_now()) > 0) {
        process_tree_reap(tree, 0, NULL);
        if (process_tree_count(tree) == 0)
            return;
        pause_for(h, left < DLOCK_SEC ? left : DLOCK_SEC);
    }
    kill_rest(h);
}

/* Only inner dlocks are left. Signals are for them; orphans of the command come to us, and end. */
static void wait_for_inner(struct hold *h)
{
    for (inner_settle(h->inner); inner_count(h->inner) > 0;) {
        struct pollfd p[2] = {
            {.fd = h->c->sig->fd, .events = POLLIN},
            {.fd = inner_fd(h->inner), .events = POLLIN},
        };
        struct signalfd_siginfo si;
        poll(p, 2, dlock_poll_ms(dlock_now(), inner_wake(h->inner)));
        while (signals_read(h->c->sig, &si))
            if (command_ends((int)si.ssi_signo))
                inner_ask_to_end(h->inner);
        process_tree_reap(&h->c->tree, 0, NULL);
        events_turn(h->c->events, dlock_now());
        inner_turn(h->inner);
    }
}

static void run_command(struct hold *h)
{
    const dlock *lk = h->lk;

    command_set_file(h->c, 0, dlock_fd(lk));
    h->inner = inner_open(&(struct inner_lock){lk, h->c->lock[0].key}, 1);
    command_set_held(h->c, &lk, 1, inner_socket(h->inner));
    struct spawn sp = describe(h);
    h->pid = spawn_command(&sp, &h->exec_fd);
    if (h->pid < 0) {
        h->c->exec_error = -h->pid | SPAWN_FORK_FAILED;
        return;
    }
    let_go(h);
    events_start_thread(h->c->events);
    wait_for_exit(h);
    if (h->c->end_signal && !h->c->alone)
        end_rest(h);
    if (h->c->end_signal)
        inner_ask_to_end(h->inner);
    wait_for_inner(h);
}

int direct_run(struct command *c, dlock *lk)
{
    struct hold h = {.c = c, .lk = lk, .exec_fd = -1};

    if (c->o->no_fork) {
        struct spawn sp = describe(&h);
        events_flush(c->events);
        c->exec_error = spawn_exec(&sp);
    } else {
        run_command(&h);
    }
    inner_close(h.inner);
    dlock_close(lk);
    events_released(c->events, "closed", dlock_now());
    return command_exit_code(c);
}
