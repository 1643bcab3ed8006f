/*
 * guard.c - the dead man's switch.
 *
 * The guard is the command's parent and knows the lease's times. The guard kills the whole tree
 * when the keeper's end of the socket closes, and ends the tree by two clocks when the keeper
 * stops extending: a time has passed when either clock has reached it. A timer of the kernel kills
 * a guard that is stopped, before hard_at, and the parent-death signal then kills the command.
 *
 * The witness is the guard's parent, and has no other child: when the guard is killed, all that
 * comes to the witness is the tree. The witness shares the guard's memory and descriptors, so that
 * it costs little, keeps what the guard keeps, and goes on where the guard was: it kills the tree
 * in the guard's loop.
 *
 * The guard also ends the tree when the command has run for max_run, whatever the keeper does.
 *
 * Every turn of the loop checks everything: messages first (an EXTEND that is waiting in the
 * socket must count), then children, then the clock. The guard blocks only in ppoll, allocates
 * nothing and uses no library.
 */
#include "guard.h"

#include "proc.h"
#include "process_tree.h"
#include "spawn.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A guard that has not sent SIGKILL for this long after the grace of max_run is stopped. */
#define KILL_TURN DLOCK_SEC
#define KILL_PAUSE_MIN DLOCK_MSEC
#define KILL_PAUSE_MAX (100 * DLOCK_MSEC)
#define KILL_PASSES 256
/* So many processes in a pass may keep us from the processor. */
#define STORM 64
/* A process that accepted SIGKILL and still exists after this time is in uninterruptible sleep. */
#define STUCK_AFTER DLOCK_SEC
#define AHEAD_TIME DLOCK_SEC
/* A pass of SIGTERM takes no longer, without a time for SIGKILL either. */
#define TERM_MAX (10 * DLOCK_SEC)

enum guard_phase {
    GUARD_IDLE, /* no command yet */
    GUARD_RUNNING,
    GUARD_TERMINATING, /* TERM sent, KILL at kill_time() */
    GUARD_KILLING,     /* SIGKILL until no child is left */
    GUARD_EMPTY        /* no child is left, and none will come: G_TREE_EMPTY has been posted */
};

/*
 * `pkill -9 dlock` kills every process with "dlock" in its name, with -f in its command line: the
 * keeper's end must leave a guard that ends the tree. The kernel keeps 15 bytes of a name.
 */
#define NAME "lock-guard"
#define WITNESS_NAME "lock-witness"

#define OUT_FIRST G_READY
#define OUT_COUNT (G_STUCK - G_READY + 1)

/* The guard's stack begins so many bytes from that of the witness, which only waits meanwhile. */
#define WITNESS_STACK 16384

struct guard_state {
    const struct guard_config *cfg;
    int sock, sigfd, timerfd, exec_fd;
    int lock_fds[DLOCK_SET_MAX]; /* what the locks end with: open until the guard exits */
    int nlock_fds;
    bool fd_lost; /* a descriptor was sent, but our table of descriptors was full */
    timer_t hard_timer;

    struct spawn spawn;
    struct spawn_child ahead; /* forked while the store works */
    int64_t ahead_until;      /* a waiter keeps no child, and little memory; DLOCK_NEVER: done */

    enum guard_phase phase;
    pid_t command;   /* 0: not started, or reaped: the pid may be reused */
    pid_t group;     /* 0, or the group made for the command, which may have left the group */
    bool start_seen; /* a second START is ignored */
    bool exec_failed;
    bool ended; /* the command ran when its end began */
    bool keeper_gone;
    bool timed_out; /* term_at has passed without an EXTEND: final, GUARD_TIMED_OUT */
    int64_t term_at, kill_at, hard_at, raw_minus_boot;
    int64_t end_kill_at; /* of the keeper's own END; DLOCK_NEVER: none */
    int64_t run_until;   /* end of max_run; DLOCK_NEVER: no limit, or not started */
    int64_t run_kill_at; /* after max_run: when KILL follows; DLOCK_NEVER: TERM was not sent */
    int64_t wake_set;    /* the turn that timerfd is set for; DLOCK_NEVER: none */
    struct {
        int64_t since, pause;
        int64_t seen_at; /* when /proc last showed the tree */
        bool stuck_reported, overrun_reported, hurried;
    } killing;

    struct forward forward;
    uint64_t handled; /* signals that the command was seen to catch, to ignore or to block */

    /* At most one message of each type waits for room in the socket; sent in the order of types. */
    struct guard_msg out[OUT_COUNT];
    unsigned pending;
};

/* ---------------------------------------------------------- messages --- */

/* A descriptor was sent, but our process could not open more descriptors. */
#define PASSED_LOST (-2)

/* 1, 0 (none now), -1 (EOF). *passed: the descriptor with the message, -1 or PASSED_LOST. */
static int receive(int sock, struct guard_msg *m, int *passed)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control;
    for (int tries = 0; tries < 8; tries++) {
        struct iovec iov = {.iov_base = m, .iov_len = sizeof(*m)};
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
        ssize_t n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n == (ssize_t)sizeof(*m)) {
            struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
            *passed = msg.msg_flags & MSG_CTRUNC ? PASSED_LOST : -1;
            if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
                c->cmsg_len == CMSG_LEN(sizeof(*passed)))
                memcpy(passed, CMSG_DATA(c), sizeof(*passed));
            return 1;
        }
        if (n == 0)
            return -1;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        /*
         * ECONNRESET: the peer closed with messages of ours unread. The error comes once, before
         * the peer's last messages, a DETACH for instance: read on.
         */
    }
    return -1;
}

/* Send the pending messages, as far as there is room. */
static void flush(struct guard_state *g)
{
    for (int i = 0; i < OUT_COUNT && !g->keeper_gone; i++) {
        if (!(g->pending & 1U << i))
            continue;
        /* The keeper's death shows in receive(), behind its last messages. */
        if (fds_send(g->sock, &g->out[i], sizeof(g->out[i]), -1) == -EAGAIN)
            return;
        g->pending &= ~(1U << i);
    }
}

/* Send the keeper a message as soon as there is room, instead of a pending message of its type. */
static void post(struct guard_state *g, int type, int arg)
{
    int i = type - OUT_FIRST;
    g->out[i] = (struct guard_msg){.type = type, .arg = arg, .signal.at = dlock_now()};
    if (g->timed_out)
        g->out[i].flags |= GUARD_TIMED_OUT;
    g->pending |= 1U << i;
    flush(g);
}

/* ------------------------------------------------------------- clock --- */

static struct itimerspec at_time(int64_t at)
{
    struct itimerspec when = {0};
    if (at != DLOCK_NEVER) {
        at = at > 0 ? at : 1; /* zero would disarm the timer */
        when.it_value.tv_sec = at / DLOCK_SEC;
        when.it_value.tv_nsec = (long)(at % DLOCK_SEC);
    }
    return when;
}

/* A time of the lease has passed when lease_now() has reached it. */
static int64_t lease_now(const struct guard_state *g)
{
    return dlock_lease_now(g->raw_minus_boot);
}

/* When to send SIGKILL, once the tree has been asked to end. */
static int64_t kill_time(const struct guard_state *g)
{
    int64_t at = dlock_min(g->end_kill_at, g->run_kill_at);
    return g->cfg->warn_only ? at : dlock_min(at, g->kill_at);
}

/*
 * When the tree would have to be dead if this guard were stopped: the kernel's timer kills the
 * guard before. DLOCK_NEVER: no such time. Not when max_run passes: after a suspend the living
 * guard still sends TERM then, and the keeper notices a stopped guard.
 */
static int64_t dead_time(const struct guard_state *g)
{
    bool ending = g->phase == GUARD_TERMINATING;
    int64_t at = DLOCK_NEVER;
    if (ending && g->run_kill_at != DLOCK_NEVER)
        at = g->run_kill_at + KILL_TURN;
    if ((ending || g->phase == GUARD_RUNNING) && !g->cfg->warn_only)
        at = dlock_min(at, g->hard_at);
    return at;
}

/*
 * Set the kernel's timer, which kills a stopped guard, after every change of phase or times. Its
 * clock, CLOCK_BOOTTIME, may be slewed: the timer is set to a part of the time left, and set
 * again by the living guard, which wakes up for that (set_wake). A guard that kills the tree is
 * left to finish: the witness continues it when it is stopped.
 */
static void set_hard_timer(const struct guard_state *g)
{
    int64_t dead_at = dead_time(g), at = DLOCK_NEVER;
    if (dead_at != DLOCK_NEVER)
        at = dlock_now() + dlock_wait_part(dead_at - lease_now(g));
    struct itimerspec when = at_time(at);
    timer_settime(g->hard_timer, TIMER_ABSTIME, &when, NULL);
}

/* When a lease that is not extended is over, if the lease ends the tree and has not done so. */
static int64_t lease_end(const struct guard_state *g)
{
    return g->cfg->warn_only || g->timed_out ? DLOCK_NEVER : g->term_at;
}

/*
 * Set the timer of the next turn. poll's own time-out does not count the time a machine sleeps; a
 * timerfd on CLOCK_BOOTTIME does.
 */
static void set_wake(struct guard_state *g)
{
    int64_t now = lease_now(g), turn = DLOCK_NEVER, at = DLOCK_NEVER, dead_at = dead_time(g);
    /* The time of the lease at which the next turn is due without an event. */
    if (g->phase == GUARD_IDLE)
        turn = g->ahead_until;
    else if (g->phase == GUARD_RUNNING)
        turn = dlock_min(lease_end(g), g->run_until);
    else if (g->phase == GUARD_TERMINATING)
        turn = dlock_min(lease_end(g), kill_time(g));
    else if (g->phase == GUARD_KILLING)
        turn = now + g->killing.pause;
    if (turn == g->wake_set)
        return;
    if (turn != DLOCK_NEVER) {
        /* Not too late by either clock, and well before the kernel's timer ends a busy guard. */
        int64_t wait = dlock_wait_part(turn - now);
        if (dead_at != DLOCK_NEVER)
            wait = dlock_min(wait, dlock_max(DLOCK_MSEC, (dead_at - now) / 2));
        at = dlock_now() + wait;
    }
    struct itimerspec when = at_time(at);
    timerfd_settime(g->timerfd, TFD_TIMER_ABSTIME, &when, NULL);
    g->wake_set = turn;
}

/* ----------------------------------------------------- end of the tree --- */

/*
 * Against a storm of processes: go ahead of all that want the processor. Not without need, and once
 * for guard and witness: a filter of system calls may kill us for it.
 */
static void hurry(struct guard_state *g)
{
    const struct sched_param first = {.sched_priority = 1};
    struct rlimit limit;
    if (g->killing.hurried)
        return;
    g->killing.hurried = true;
    /* A finite RLIMIT_RTTIME would end us instead. */
    bool allowed = getrlimit(RLIMIT_RTTIME, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
    if (!allowed || sched_setscheduler(0, SCHED_FIFO, &first) != 0)
        setpriority(PRIO_PROCESS, 0, -20);
}

/* From now on kill_tree() sends SIGKILL, turn by turn, if there is a command. */
static void begin_kill(struct guard_state *g)
{
    if (g->phase != GUARD_RUNNING && g->phase != GUARD_TERMINATING)
        return;
    g->phase = GUARD_KILLING;
    g->ended |= g->command > 0;
    g->killing.since = g->killing.seen_at = dlock_now();
    g->killing.pause = KILL_PAUSE_MIN;
    set_hard_timer(g);
}

/*
 * Send a signal to the command's group, or only to the command once it has left the group: the
 * number may belong to unrelated processes by now. Nothing once the command has been reaped.
 */
static void send_signal(const struct guard_state *g, int sig)
{
    if (g->command <= 0 || sig <= 0)
        return;
    if (g->group > 0 && getpgid(g->command) == g->group && kill(-g->group, sig) == 0)
        return;
    kill(g->command, sig);
}

/* SIGTERM, unless sent before; at or after kill_time() SIGKILL instead. */
static void begin_term(struct guard_state *g)
{
    if (g->phase != GUARD_RUNNING)
        return;
    if (lease_now(g) >= kill_time(g)) {
        begin_kill(g);
        return;
    }
    g->phase = GUARD_TERMINATING;
    g->ended |= g->command > 0;
    if (process_tree_term(dlock_now() + dlock_min(kill_time(g) - lease_now(g), TERM_MAX)) < 0 &&
        g->command > 0) {
        kill(g->command, SIGTERM);
        kill(g->command, SIGCONT);
    }
}

/* Has exec succeeded, or failed? Tells the keeper, once. */
static void check_exec(struct guard_state *g)
{
    int why;
    if (g->exec_fd < 0 || !spawn_exec_result(&g->exec_fd, &why))
        return;
    g->exec_failed = why != 0;
    if (g->exec_failed)
        post(g, G_EXEC_FAILED, why);
    else
        post(g, G_STARTED, g->command);
}

/* Reap every dead child, orphans that came to us included. Returns how many. */
static int reap(struct guard_state *g)
{
    int status, reaped = 0;
    pid_t pid;
    if (g->phase == GUARD_IDLE || g->phase == GUARD_EMPTY)
        return 0;
    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED | __WALL)) > 0) {
        if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
            if (pid == g->command && g->phase != GUARD_KILLING)
                post(g, G_STOPPED, WIFSTOPPED(status) ? WSTOPSIG(status) : 0);
            continue;
        }
        reaped++;
        if (pid != g->command)
            continue;
        check_exec(g);
        g->command = 0;
        /* If exec failed, the status is only of our own child. */
        if (!g->exec_failed)
            post(g, G_EXITED, status);
    }
    if (pid < 0 && errno == ECHILD) {
        g->phase = GUARD_EMPTY;
        set_hard_timer(g);
        post(g, G_TREE_EMPTY, 0);
    }
    return reaped;
}

static void report_stuck(struct guard_state *g, pid_t pid)
{
    if (!g->killing.stuck_reported) {
        g->killing.stuck_reported = true;
        post(g, G_STUCK, pid);
    }
}

/* Pass after pass while each finds a dead process, whose children come to us meanwhile. */
static void kill_tree(struct guard_state *g)
{
    int reaped = 0;
    for (int i = 0; i < KILL_PASSES && g->phase == GUARD_KILLING; i++) {
        pid_t refused;
        int found = process_tree_kill(&refused);
        if (found > STORM)
            hurry(g);
        if (found < 0) {
            send_signal(g, SIGKILL); /* without /proc: the command, and its group */
        } else {
            g->killing.seen_at = dlock_now();
            if (refused > 0)
                report_stuck(g, refused);
        }
        if (g->run_kill_at != DLOCK_NEVER && !g->killing.overrun_reported) {
            g->killing.overrun_reported = true;
            post(g, G_OVERRUN, SIGKILL);
        }
        int n = reap(g);
        reaped += n;
        if (n == 0)
            break;
    }
    if (g->phase != GUARD_KILLING)
        return;
    g->killing.pause = reaped ? KILL_PAUSE_MIN : dlock_min(g->killing.pause * 2, KILL_PAUSE_MAX);
    /* Too long: is there a process that does not die, or does /proc not show the tree any more? */
    int64_t now = dlock_now();
    if (g->killing.stuck_reported || now - g->killing.since <= STUCK_AFTER)
        return;
    pid_t pid = process_tree_living();
    if (pid > 0 || now - g->killing.seen_at > STUCK_AFTER)
        report_stuck(g, pid);
}

/* ----------------------------------------------------------- signals --- */

/*
 * How the command handles its signals. Noted at every occasion: a handler may set the default again
 * before it does its work, and does not expect the same signal once more.
 */
static bool look_at_signals(struct guard_state *g, struct proc_signals *s)
{
    if (g->command <= 0 || !proc_read_signals(g->command, s))
        return false;
    check_exec(g);
    g->handled |= s->caught | s->ignored;
    /* sigwait(3) and signalfd(2) take blocked signals. Before the exec all are blocked. */
    if (g->exec_fd < 0)
        g->handled |= s->waits ? UINT64_MAX : s->blocked;
    return true;
}

static void note_signals(struct guard_state *g)
{
    struct proc_signals unused;
    look_at_signals(g, &unused);
}

/*
 * Both keeper and guard got this signal. Has the command no copy, as after killall(1) by the name
 * of our file? It has none if the copy would have killed the command, and the command lives. The
 * answer for a running command is unknown: it may be on its way out of sigwait(3).
 */
static bool is_missed(struct guard_state *g, int sig)
{
    struct proc_signals s;
    uint64_t bit = UINT64_C(1) << (sig - 1);
    bool kills = sig != SIGCHLD && sig != SIGCONT && sig != SIGURG && sig != SIGWINCH &&
                 !signals_stops(sig); /* by default */
    return kills && look_at_signals(g, &s) && s.living && s.asleep && !(s.pending & bit) &&
           !(g->handled & bit);
}

/*
 * Read our own signals: SIGCHLD, and copies of signals to the whole job. Not to the end: a process
 * may send without a pause.
 */
static void read_signals(struct guard_state *g)
{
    struct signalfd_siginfo si[16];
    int64_t now = dlock_now();
    bool came = false;
    ssize_t n;
    for (int i = 0; i < 4 && (n = read(g->sigfd, si, sizeof(si))) > 0; i++)
        for (size_t k = 0; k < (size_t)n / sizeof(si[0]); k++) {
            struct forward_signal s = forward_describe(&si[k], now);
            if (g->command > 0)
                forward_copy(&g->forward, &s);
            came |= s.sig != SIGCHLD;
        }
    if (came)
        note_signals(g);
}

/* ------------------------------------------------------------ orders --- */

static void take_times(struct guard_state *g, const struct guard_msg *m)
{
    if (g->timed_out) {
        /* The end has begun: either clock may bring KILL forward, and neither may put it off. */
        int64_t by_raw = dlock_min(0, m->raw_minus_boot - g->raw_minus_boot);
        g->kill_at = dlock_min(g->kill_at, m->kill_at + by_raw);
        return;
    }
    g->term_at = m->term_at;
    g->kill_at = m->kill_at;
    g->hard_at = m->hard_at;
    g->raw_minus_boot = m->raw_minus_boot;
    g->wake_set = DLOCK_NEVER; /* until the end of this turn */
    set_hard_timer(g);
}

/*
 * Fork the child that becomes the command, unless the command will share the terminal's process
 * group, whose signals the child would keep until the exec.
 */
static void fork_ahead(struct guard_state *g)
{
    g->ahead_until = dlock_now() + AHEAD_TIME;
    if (g->phase == GUARD_IDLE && g->cfg->own_group)
        spawn_ahead(&g->ahead, &g->spawn);
}

static void drop_ahead(struct guard_state *g)
{
    if (g->ahead.pid)
        spawn_drop(&g->ahead);
    g->ahead_until = DLOCK_NEVER;
}

/* START was not obeyed. why: as of G_EXEC_FAILED. */
static void refuse(struct guard_state *g, int why)
{
    drop_ahead(g);
    g->phase = GUARD_EMPTY;
    post(g, G_EXEC_FAILED, why);
    post(g, G_TREE_EMPTY, 0);
}

/*
 * Once the command has been forked we must not keep the caller's descriptors, directory and session
 * in use. The title that ps(1) shows, our name and the keeper's pid, goes where the command's words
 * were. Before the fork no title is needed: nothing is lost when the guard is killed along with
 * the keeper.
 */
static void let_go(struct guard_state *g)
{
    const struct guard_config *cfg = g->cfg;
    int keep[6 + DLOCK_SET_MAX] = {g->sock,    g->sigfd,     g->timerfd,
                                   g->exec_fd, cfg->lock_fd, cfg->tty ? cfg->tty->fd : -1};
    char text[40];
    size_t n = (size_t)snprintf(text, sizeof(text), NAME " of %d", (int)cfg->dlock_pid);
    if (cfg->title_size > 0) {
        /* Too little room: part of a pid would be another pid. */
        if (n >= cfg->title_size)
            n = cfg->title_size < sizeof(NAME) ? cfg->title_size - 1 : sizeof(NAME) - 1;
        memset(cfg->title, 0, cfg->title_size);
        memcpy(cfg->title, text, n);
    }
    memcpy(keep + 6, g->lock_fds, sizeof(g->lock_fds[0]) * (size_t)g->nlock_fds);
    fds_let_go(keep, 6 + g->nlock_fds);
    /* Takes 80 us, which a command with a group of its own need not wait for. */
    if (g->group > 0)
        setsid(); /* a process that leads no group is never refused */
    if (chdir("/") != 0) {
        /* then an umount has to wait for us */
    }
}

static void start(struct guard_state *g, const struct guard_msg *m)
{
    struct spawn_grant *grant = &g->spawn.grant;
    pid_t pid;
    if (g->start_seen)
        return;
    g->start_seen = true;
    /* A lock without a copy of its descriptor would be free before the tree is gone. */
    if (g->fd_lost) {
        refuse(g, SPAWN_FORK_FAILED | EMFILE);
        return;
    }
    grant->not_after = m->term_at;
    grant->raw_minus_boot = m->raw_minus_boot;
    grant->fence = m->fence;
    grant->slot = m->slot;
    memcpy(grant->token, m->token, sizeof(grant->token));
    /* The timer is set before the fork: the command is never without it. */
    if (dlock_lease_now(m->raw_minus_boot) < m->term_at)
        g->phase = GUARD_RUNNING;
    take_times(g, m);
    pid = spawn_command(&g->ahead, &g->spawn, &g->exec_fd);
    read_signals(g); /* earlier signals: the command was not there to get a copy */
    if (pid < 0) {
        refuse(g, -pid >= SPAWN_TOO_LATE ? -pid : SPAWN_FORK_FAILED | -pid);
        set_hard_timer(g);
        return;
    }
    g->command = pid;
    if (g->cfg->max_run > 0)
        g->run_until = dlock_now() + g->cfg->max_run;
    fcntl(g->exec_fd, F_SETFL, O_NONBLOCK);
    let_go(g);
}

static void note_held(struct spawn_grant *grant, const struct held *e)
{
    if (e->socket[0] && grant->nheld < DLOCK_SET_MAX)
        grant->held[grant->nheld++] = *e;
}

static void obey(struct guard_state *g, const struct guard_msg *m)
{
    switch (m->type) {
    case G_START:
        note_held(&g->spawn.grant, &m->held);
        start(g, m);
        break;
    case G_ALSO:
        note_held(&g->spawn.grant, &m->held);
        if (m->arg >= 2 && m->arg <= DLOCK_SET_MAX)
            g->spawn.grant.also_fences[m->arg - 2] = m->fence;
        break;
    case G_EXTEND:
        if (g->start_seen)
            take_times(g, m);
        note_signals(g);
        break;
    case G_SIGNAL:
        send_signal(g, forward_add(&g->forward, &m->signal));
        break;
    case G_END:
        if (g->phase == GUARD_IDLE) {
            g->start_seen = true; /* no START after this */
            drop_ahead(g);
            g->phase = GUARD_EMPTY;
            post(g, G_TREE_EMPTY, 0);
        } else if (m->arg == SIGKILL) {
            begin_kill(g);
        } else {
            g->end_kill_at = dlock_min(g->end_kill_at, m->kill_at);
            begin_term(g);
        }
        break;
    case G_DETACH:
        drop_ahead(g);
        _exit(0);
    default:
        break;
    }
}

/* -------------------------------------------------------------- loop --- */

static void check_clock(struct guard_state *g)
{
    int64_t now = lease_now(g);
    if (g->phase != GUARD_RUNNING && g->phase != GUARD_TERMINATING)
        return;
    if (now >= lease_end(g)) {
        g->timed_out = true;
        begin_term(g);
    }
    if (g->phase == GUARD_RUNNING && now >= g->run_until) {
        g->run_kill_at = lease_now(g) + g->cfg->grace;
        begin_term(g);
        if (g->phase == GUARD_TERMINATING) {
            /* The timer before the message: from then on the keeper relies on the timer. */
            set_hard_timer(g);
            post(g, G_OVERRUN, SIGTERM);
        }
    }
    if (g->phase == GUARD_TERMINATING && now >= kill_time(g))
        begin_kill(g);
}

/*
 * The keeper is gone, and the tree: exit, after what the keeper would have done for the terminal.
 * We are in another session, where tcgetpgrp(3) is refused: its leader tells the foreground.
 */
static _Noreturn void leave(struct guard_state *g)
{
    const struct terminal *tty = g->cfg->tty;
    struct proc_stat leader;
    if (g->ended && tty && proc_read_stat(tty->session, &leader)) {
        while (g->nlock_fds > 0) /* the lock first: the terminal may keep us waiting */
            close(g->lock_fds[--g->nlock_fds]);
        close(g->cfg->lock_fd);
        terminal_restore(tty, leader.foreground);
    }
    _exit(0);
}

/* Act on everything that is due. */
static void turn(struct guard_state *g)
{
    struct guard_msg m;
    int sig, got, fd;
    bool shared;
    while (!g->keeper_gone && (got = receive(g->sock, &m, &fd)) != 0) {
        g->keeper_gone = got < 0;
        if (got < 0)
            break;
        if (fd >= 0 && g->nlock_fds < DLOCK_SET_MAX)
            g->lock_fds[g->nlock_fds++] = fd;
        g->fd_lost |= fd == PASSED_LOST;
        obey(g, &m);
    }
    /* Our own signals first: they may show that the command has a copy of the keeper's signals. */
    read_signals(g);
    while ((sig = forward_take(&g->forward, dlock_now(), &shared)) > 0)
        if (!shared || is_missed(g, sig))
            send_signal(g, sig);
    check_exec(g);
    reap(g);
    if (g->keeper_gone)
        begin_kill(g);
    check_clock(g);
    if (g->phase == GUARD_KILLING)
        kill_tree(g);
    if (g->keeper_gone)
        drop_ahead(g);
    if (dlock_now() >= g->ahead_until) {
        drop_ahead(g);
        memory_let_go();
    }
    if (g->keeper_gone && (g->phase == GUARD_IDLE || g->phase == GUARD_EMPTY))
        leave(g);
    flush(g);
}

static void wait_for_event(struct guard_state *g)
{
    struct pollfd p[] = {
        {.fd = g->sigfd, .events = POLLIN},
        {.fd = g->timerfd, .events = POLLIN},
        {.fd = g->exec_fd, .events = POLLIN},
        {.fd = g->keeper_gone ? -1 : g->sock,
         .events = (short)(g->pending ? POLLIN | POLLOUT : POLLIN)},
    };
    int64_t signal_at = forward_wake(&g->forward);
    struct timespec ts, *bound = NULL;
    uint64_t ticks;
    set_wake(g);
    if (signal_at != DLOCK_NEVER) {
        int64_t left = dlock_max(0, signal_at - dlock_now());
        ts = (struct timespec){.tv_nsec = (long)dlock_min(left, FORWARD_WAIT)};
        bound = &ts;
    }
    if (ppoll(p, sizeof(p) / sizeof(p[0]), bound, NULL) <= 0)
        return;
    if (p[1].revents && read(g->timerfd, &ticks, sizeof(ticks)) > 0) {
        g->wake_set = DLOCK_NEVER;
        set_hard_timer(g);
    }
}

/* ------------------------------------------------------------- start --- */

static _Noreturn void unfit(int sock, int why)
{
    struct guard_msg m = {.type = G_UNFIT, .arg = why};
    fds_send(sock, &m, sizeof(m), -1);
    _exit(71);
}

/* Unless every step succeeds the guard must not start a command. */
static int guard_main(void *arg)
{
    struct sigevent ev = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct guard_state *g = arg;
    prctl(PR_SET_NAME, NAME, 0, 0, 0);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0 ||
        timer_create(CLOCK_BOOTTIME, &ev, &g->hard_timer) != 0)
        unfit(g->sock, errno);
    post(g, G_READY, (int)getpid());
    turn(g);
    fork_ahead(g);
    for (;; turn(g))
        wait_for_event(g);
}

/*
 * The guard was killed, at any point of its work: a lock of the C library may never be unlocked, so
 * nothing is allocated or forked from here on.
 */
static _Noreturn void take_over(struct guard_state *g, pid_t guard)
{
    g->ahead.pid = 0; /* our child now; it does not outlive its parent */
    g->ahead_until = DLOCK_NEVER;
    g->start_seen = true;
    post(g, G_KILLED, guard);
    if (g->phase == GUARD_IDLE)
        g->phase = GUARD_RUNNING;
    begin_kill(g);
    for (turn(g); g->phase != GUARD_EMPTY || g->pending; turn(g))
        wait_for_event(g);
    _exit(0);
}

/*
 * Wait until the guard is gone. The guard runs at the same time and shares errno with us, so errno
 * tells nothing here. The guard stays a zombie until we exit: the keeper may signal its number.
 */
static _Noreturn void watch(struct guard_state *g, pid_t guard)
{
    siginfo_t info = {0};
    setsid(); /* whatever is sent to the caller's group or session does not reach us */
    for (;;) {
        if (waitid(P_PID, (id_t)guard, &info, WEXITED | WSTOPPED | WNOWAIT) != 0)
            continue;
        if (info.si_code == CLD_EXITED)
            _exit(info.si_status);
        if (info.si_code != CLD_STOPPED)
            take_over(g, guard);
        waitid(P_PID, (id_t)guard, &info, WSTOPPED | WNOHANG); /* this stop has been seen */
        if (g->phase == GUARD_KILLING)
            kill(guard, SIGCONT);
    }
}

static pid_t clone_guard(struct guard_state *g)
{
#ifdef __SANITIZE_THREAD__ /* it can tell threads that share memory, not processes */
    pid_t pid = (pid_t)syscall(SYS_clone, CLONE_FILES | CLONE_FS | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        guard_main(g);
    return pid;
#else
    char *stack = (char *)((uintptr_t)__builtin_frame_address(0) & ~(uintptr_t)63);
#ifdef __hppa__ /* there the stack grows upwards */
    stack += WITNESS_STACK;
#else
    stack -= WITNESS_STACK;
#endif
    return clone(guard_main, stack, CLONE_VM | CLONE_FILES | CLONE_FS | SIGCHLD, g);
#endif
}

/*
 * Ctrl-Z must not stop the two, which are of use only while they run. The guard stays in the
 * caller's group until the command has been forked, and then gets a session of its own
 * (spawn_command). In another group of the caller's session the guard would keep the kernel from
 * taking the command's group for orphaned: Ctrl-Z would stop the command even where no shell could
 * continue the job.
 */
static _Noreturn void witness_main(struct guard_state *g)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        unfit(g->sock, errno);
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* undone by the command's exec */
    prctl(PR_SET_NAME, WITNESS_NAME, 0, 0, 0);
    if (getppid() == 0) /* the keeper is in another pid namespace, whose /proc we would read */
        unfit(g->sock, EXDEV);
    g->sigfd = signalfd(-1, &g->cfg->sig->ours, SFD_CLOEXEC | SFD_NONBLOCK);
    g->timerfd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    if (g->sigfd < 0 || g->timerfd < 0)
        unfit(g->sock, errno);
    pid_t guard = clone_guard(g);
    if (guard < 0)
        unfit(g->sock, errno);
    watch(g, guard);
}

static void describe(struct guard_state *g, const struct guard_config *cfg, int sock)
{
    g->cfg = cfg;
    g->sock = g->spawn.keeper_fd = sock;
    g->exec_fd = g->spawn.inherit_fd = -1;
    g->term_at = g->kill_at = g->hard_at = DLOCK_NEVER;
    g->raw_minus_boot = DLOCK_RAW_NEVER;
    g->end_kill_at = g->run_until = g->run_kill_at = DLOCK_NEVER;
    g->wake_set = g->ahead_until = DLOCK_NEVER;
    g->spawn.argv = cfg->argv;
    g->spawn.sig = cfg->sig;
    g->spawn.group = cfg->own_group ? &g->group : NULL;
    g->spawn.name = cfg->name;
    g->spawn.dlock_pid = cfg->dlock_pid;
}

int guard_fork(struct guard *out, const struct guard_config *cfg)
{
    static struct guard_state g; /* as in run_mode() */
    int ends[2];
    pid_t pid;
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
        close(cfg->sig->fd); /* the keeper's */
        describe(&g, cfg, ends[1]);
        witness_main(&g);
    }
    close(ends[1]);
    *out = (struct guard){.witness = pid, .fd = ends[0]};
    return 0;
}

/* ------------------------------------------------- the keeper's side --- */

int guard_send(const struct guard *g, const struct guard_msg *m, int pass)
{
    return fds_send(g->fd, m, sizeof(*m), pass);
}

int guard_recv(struct guard *g, struct guard_msg *m)
{
    int fd, got; /* the guard passes no descriptor */
    while ((got = receive(g->fd, m, &fd)) > 0 && m->type == G_READY)
        g->pid = m->arg;
    if (got > 0 && m->type == G_KILLED)
        g->pid = 0;
    return got;
}
