/*
 * guard.c - the dead man's switch, and how it comes into being.
 *
 * The guard is the command's parent and knows two times. It kills the whole tree when the keeper's end
 * of the socket closes, and ends it by the clock when the keeper stops extending. Two kernel means
 * stand behind it, should it be stopped or killed itself: a timer that kills the guard at hard_at,
 * and the parent-death signal that then kills the command.
 *
 * It never blocks but in ppoll, allocates nothing and uses no library.
 */
#include "guard.h"

#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PASSED_LOST (-2)
#define OUT_FIRST G_STARTED
#define OUT_COUNT (G_STUCK - G_STARTED + 1)

enum guard_phase {
    PHASE_IDLE, /* no command yet */
    PHASE_RUN,
    PHASE_TERM, /* TERM sent, KILL at kill_time() */
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
    struct guard_msg out[OUT_COUNT];
    unsigned pending;
};

/* ----------------------------------------------------------- messages --- */

static int passed_fd(struct msghdr *msg)
{
    struct cmsghdr *c = CMSG_FIRSTHDR(msg);
    int fd = msg->msg_flags & MSG_CTRUNC ? PASSED_LOST : -1;
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof fd))
        memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

/* 1, 0 (none now), -1 (EOF). */
static int receive(int fd, struct guard_msg *m, int *passed)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control;

    for (int tries = 0; tries < 8; tries++) {
        struct iovec iov = {.iov_base = m, .iov_len = sizeof *m};
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control};
        ssize_t n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n == (ssize_t)sizeof *m) {
            *passed = passed_fd(&msg);
            return 1;
        }
        if (n == 0)
            return -1;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return 0;
        /*
         * ECONNRESET: the other end closed with messages of ours unread. It is reported once and
         * before what the other end had sent, a DETACH for instance: read on.
         */
    }
    return -1;
}

static int transmit(int fd, const struct guard_msg *m, int pass)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = (void *)m, .iov_len = sizeof *m};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    if (pass >= 0) {
        memset(&control, 0, sizeof control);
        control.align.cmsg_level = SOL_SOCKET;
        control.align.cmsg_type = SCM_RIGHTS;
        control.align.cmsg_len = CMSG_LEN(sizeof pass);
        memcpy(CMSG_DATA(&control.align), &pass, sizeof pass);
        msg.msg_control = &control;
        msg.msg_controllen = sizeof control;
    }
    do
        n = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

static void flush(struct guard_state *g)
{
    for (int i = 0; i < OUT_COUNT && !g->keeper_gone; i++) {
        if (!(g->pending & 1U << i))
            continue;
        /* A keeper that is gone shows in receive(), behind what it sent last. */
        if (transmit(g->sock, &g->out[i], -1) == -EAGAIN)
            return;
        g->pending &= ~(1U << i);
    }
}

static void post(struct guard_state *g, int type, int arg)
{
    int i = type - OUT_FIRST;

    g->out[i] = (struct guard_msg){.type = type, .arg = arg};
    if (g->lease_over)
        g->out[i].flags |= GUARD_TIMED_OUT;
    g->pending |= 1U << i;
    flush(g);
}

/* -------------------------------------------------------------- clock --- */

#define KILL_TURN DLOCK_SEC /* no turn for so long while killing: stopped */

static struct itimerspec at_time(int64_t at)
{
    struct itimerspec when = {0};

    if (at != DLOCK_NEVER) {
        at = at > 0 ? at : 1; /* zero would disarm it */
        when.it_value.tv_sec = at / DLOCK_SEC;
        when.it_value.tv_nsec = at % DLOCK_SEC;
    }
    return when;
}

/* When to send SIGKILL, once the tree has been asked to end. */
static int64_t kill_time(const struct guard_state *g)
{
    if (g->cfg->warn_only || g->end_kill_at < g->kill_at)
        return g->end_kill_at;
    return g->kill_at;
}

/*
 * When the kernel's timer is to end the guard. A guard that has begun to kill must not be killed before the
 * end while it is at work; but the keeper waits for it, and one that has been stopped is in its way: the
 * keeper ends the tree itself then. With the keeper gone there is nobody who would.
 */
static int64_t hard_time(const struct guard_state *g)
{
    bool lease =
        g->term_at != DLOCK_NEVER || g->kill_at != DLOCK_NEVER || g->hard_at != DLOCK_NEVER;

    if (g->phase == PHASE_RUN || g->phase == PHASE_TERM)
        return g->cfg->warn_only ? DLOCK_NEVER : g->hard_at;
    if (g->phase == PHASE_KILL && lease && !g->keeper_gone)
        return dlock_now() + KILL_TURN;
    return DLOCK_NEVER;
}

/* The kernel's timer: it works while the guard is stopped. */
static void set_hard_timer(const struct guard_state *g)
{
    struct itimerspec when = at_time(hard_time(g));

    timer_settime(g->hard_timer, TIMER_ABSTIME, &when, NULL);
}

/* poll's own time-out does not count the time a machine sleeps; a timerfd on CLOCK_BOOTTIME does. */
static void set_wake(struct guard_state *g, int64_t at)
{
    struct itimerspec when = at_time(at);

    if (at == g->wake_set)
        return;
    timerfd_settime(g->timerfd, TFD_TIMER_ABSTIME, &when, NULL);
    g->wake_set = at;
}

static int64_t next_wake(const struct guard_state *g)
{
    switch (g->phase) {
    case PHASE_RUN:
        return g->cfg->warn_only ? DLOCK_NEVER : g->term_at;
    case PHASE_TERM:
        if (g->cfg->warn_only || g->lease_over || kill_time(g) < g->term_at)
            return kill_time(g);
        return g->term_at;
    case PHASE_KILL:
        return dlock_now() + g->kill_pause;
    default:
        return DLOCK_NEVER;
    }
}

/* ----------------------------------------------------------- the tree --- */

#define KILL_PAUSE_MIN DLOCK_MSEC
#define KILL_PAUSE_MAX (100 * DLOCK_MSEC)
#define STUCK_AFTER                                                                                \
    DLOCK_SEC /* SIGKILL sent and accepted, yet still there: uninterruptible sleep */
#define KILL_PASSES 256

static const struct tree nobody_spared;

static void begin_kill(struct guard_state *g)
{
    if (g->phase != PHASE_RUN && g->phase != PHASE_TERM)
        return;
    g->phase = PHASE_KILL;
    g->kill_since = g->seen_at = dlock_now();
    g->kill_pause = KILL_PAUSE_MIN;
}

static void begin_term(struct guard_state *g)
{
    if (g->phase != PHASE_RUN)
        return;
    if (dlock_now() >= kill_time(g)) {
        begin_kill(g);
        return;
    }
    g->phase = PHASE_TERM;
    if (tree_signal(&nobody_spared, SIGTERM, NULL) < 0 && g->command > 0) {
        kill(g->command, SIGTERM);
        kill(g->command, SIGCONT);
    }
}

/* EOF: exec has replaced the child. An int: why it could not. */
static void check_exec(struct guard_state *g)
{
    int why = 0;
    ssize_t n;

    if (g->exec_fd < 0)
        return;
    n = read(g->exec_fd, &why, sizeof why);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    close(g->exec_fd);
    g->exec_fd = -1;
    g->exec_failed = n == (ssize_t)sizeof why;
    if (g->exec_failed)
        post(g, G_EXEC_FAILED, why);
    else
        post(g, G_STARTED, g->command);
}

static void command_ended(struct guard_state *g, int status)
{
    check_exec(g);
    g->command = 0;
    /* A command that has never been one has no status worth telling. */
    if (!g->exec_failed)
        post(g, G_EXITED, status);
}

/* Take in every dead child, orphans that came to us included. Returns how many. */
static int reap(struct guard_state *g)
{
    int status, reaped = 0;
    pid_t pid;

    if (g->phase == PHASE_IDLE || g->phase == PHASE_EMPTY)
        return 0;
    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED | __WALL)) > 0) {
        if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
            if (pid == g->command)
                post(g, G_STOPPED, WIFSTOPPED(status) ? WSTOPSIG(status) : 0);
            continue;
        }
        reaped++;
        if (pid == g->command)
            command_ended(g, status);
    }
    if (pid < 0 && errno == ECHILD) {
        g->phase = PHASE_EMPTY;
        set_hard_timer(g);
        post(g, G_TREE_EMPTY, 0);
    }
    return reaped;
}

static void say_stuck(struct guard_state *g, pid_t pid)
{
    if (!g->stuck_said) {
        g->stuck_said = true;
        post(g, G_STUCK, pid);
    }
}

/* It takes too long: is there one that does not die, or do we not see who is left? */
static void look_who_is_stuck(struct guard_state *g)
{
    int64_t now = dlock_now();
    pid_t pid;

    if (g->stuck_said || now - g->kill_since <= STUCK_AFTER)
        return;
    pid = tree_living(&nobody_spared);
    if (pid > 0 || now - g->seen_at > STUCK_AFTER)
        say_stuck(g, pid);
}

/* One pass of SIGKILL over the tree. */
static void kill_pass(struct guard_state *g)
{
    pid_t refused;

    if (tree_signal(&nobody_spared, SIGKILL, &refused) < 0) {
        /* No /proc to look into: the command itself, and its group while its number is its own. */
        if (g->command > 0 && g->cfg->own_group)
            kill(-g->command, SIGKILL);
        if (g->command > 0)
            kill(g->command, SIGKILL);
        return;
    }
    g->seen_at = dlock_now();
    if (refused > 0)
        say_stuck(g, refused);
}

/* Pass after pass while each finds somebody dead; children of the dead come to us meanwhile. */
static void kill_tree(struct guard_state *g)
{
    int reaped = 0;

    for (int i = 0; i < KILL_PASSES && g->phase == PHASE_KILL; i++) {
        kill_pass(g);
        set_hard_timer(g); /* after the first pass: what counts there is speed */
        int n = reap(g);
        reaped += n;
        if (n == 0)
            break;
    }
    if (g->phase != PHASE_KILL)
        return;
    g->kill_pause = reaped ? KILL_PAUSE_MIN : g->kill_pause * 2;
    if (g->kill_pause > KILL_PAUSE_MAX)
        g->kill_pause = KILL_PAUSE_MAX;
    look_who_is_stuck(g);
}

/* ------------------------------------------------ orders and the loop --- */

static void take_times(struct guard_state *g, const struct guard_msg *m)
{
    if (!g->lease_over) {
        g->term_at = m->term_at;
        g->kill_at = m->kill_at;
    } else if (m->kill_at < g->kill_at) {
        g->kill_at = m->kill_at; /* the end has begun and comes no later than it was going to */
    }
    g->hard_at = m->hard_at;
    set_hard_timer(g);
}

/* Once the command has been forked the caller's descriptors and directory are held up no longer. */
static void let_go(struct guard_state *g)
{
    int keep[] = {g->sock, g->sigfd, g->timerfd, g->exec_fd, g->cfg->lock_fd, g->lease_fd};

    fds_let_go(keep, (int)(sizeof keep / sizeof keep[0]));
    if (chdir("/") != 0) {
        /* then an umount has to wait for us */
    }
}

static void refuse(struct guard_state *g, int why)
{
    g->phase = PHASE_EMPTY;
    post(g, G_EXEC_FAILED, why);
    post(g, G_TREE_EMPTY, 0);
}

/* lease_lost: without a copy of its connection the lock would be free before the tree is gone. */
static void start(struct guard_state *g, const struct guard_msg *m, bool lease_lost)
{
    struct spawn sp = {
        .argv = g->cfg->argv,
        .sig = g->cfg->sig,
        .own_group = g->cfg->own_group,
        .join_group = g->cfg->own_group ? 0 : g->caller_group,
        .die_with_parent = true,
        .keeper_fd = g->sock,
        .not_after = m->term_at,
        .inherit_fd = -1,
        .name = g->cfg->name,
        .token = m->token,
        .fence = m->fence,
    };
    pid_t pid;

    if (g->used)
        return;
    g->used = true;
    if (lease_lost) {
        refuse(g, GUARD_FORK_FAILED | EMFILE);
        return;
    }
    /* The timer runs before there is anything to guard: no moment without it. */
    if (dlock_now() < m->term_at)
        g->phase = PHASE_RUN;
    take_times(g, m);
    pid = spawn_command(&sp, &g->exec_fd);
    if (pid < 0) {
        refuse(g, -pid >= SPAWN_TOO_LATE ? -pid : GUARD_FORK_FAILED | -pid);
        set_hard_timer(g);
        return;
    }
    g->command = pid;
    fcntl(g->exec_fd, F_SETFL, O_NONBLOCK);
    let_go(g);
}

static void forward(const struct guard_state *g, int sig)
{
    if (g->command <= 0 || sig <= 0)
        return;
    if (!g->cfg->own_group || kill(-g->command, sig) != 0)
        kill(g->command, sig);
}

static void end(struct guard_state *g, const struct guard_msg *m)
{
    if (g->phase == PHASE_IDLE) {
        g->used = true; /* no START after this */
        g->phase = PHASE_EMPTY;
        post(g, G_TREE_EMPTY, 0);
    } else if (m->arg == SIGKILL) {
        begin_kill(g);
    } else {
        if (m->kill_at < g->end_kill_at)
            g->end_kill_at = m->kill_at;
        begin_term(g);
    }
}

static void obey(struct guard_state *g, const struct guard_msg *m, bool lease_lost)
{
    switch (m->type) {
    case G_START:
        start(g, m, lease_lost);
        break;
    case G_EXTEND:
        if (g->used)
            take_times(g, m);
        break;
    case G_SIGNAL:
        forward(g, m->arg);
        break;
    case G_END:
        end(g, m);
        break;
    case G_DETACH:
        _exit(0);
    default:
        break;
    }
}

static void read_orders(struct guard_state *g)
{
    struct guard_msg m;
    int got, fd;

    while (!g->keeper_gone && (got = receive(g->sock, &m, &fd)) != 0) {
        if (got < 0) {
            g->keeper_gone = true;
            return;
        }
        if (fd >= 0 && g->lease_fd < 0)
            g->lease_fd = fd;
        obey(g, &m, fd == PASSED_LOST);
    }
}

static void look_at_clock(struct guard_state *g)
{
    int64_t now = dlock_now();

    if (g->phase != PHASE_RUN && g->phase != PHASE_TERM)
        return;
    if (!g->cfg->warn_only && !g->lease_over && now >= g->term_at) {
        g->lease_over = true;
        begin_term(g);
    }
    if (g->phase == PHASE_TERM && now >= kill_time(g))
        begin_kill(g);
}

static void turn(struct guard_state *g)
{
    read_orders(g);
    check_exec(g);
    reap(g);
    if (g->keeper_gone)
        begin_kill(g);
    look_at_clock(g);
    if (g->phase == PHASE_KILL)
        kill_tree(g);
    if (g->keeper_gone && (g->phase == PHASE_IDLE || g->phase == PHASE_EMPTY))
        _exit(0);
    flush(g);
}

static void wait_for_something(struct guard_state *g)
{
    struct pollfd p[] = {
        {.fd = g->sigfd, .events = POLLIN},
        {.fd = g->timerfd, .events = POLLIN},
        {.fd = g->exec_fd, .events = POLLIN},
        {.fd = g->keeper_gone ? -1 : g->sock,
         .events = (short)(g->pending ? POLLIN | POLLOUT : POLLIN)},
    };
    char drain[16 * sizeof(struct signalfd_siginfo)];
    uint64_t ticks;

    set_wake(g, next_wake(g));
    if (ppoll(p, sizeof p / sizeof p[0], NULL, NULL) <= 0)
        return;
    if (p[0].revents)
        while (read(g->sigfd, drain, sizeof drain) > 0)
            ;
    if (p[1].revents && read(g->timerfd, &ticks, sizeof ticks) > 0)
        g->wake_set = DLOCK_NEVER;
}

static _Noreturn void run_loop(struct guard_state *g)
{
    for (;;) {
        turn(g);
        wait_for_something(g);
    }
}

/* ---------------------------------------------------------- the start --- */

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
    run_loop(&g);
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

/* -------------------------------------------------- the keeper's side --- */

int guard_send(const struct guard *g, const struct guard_msg *m, int pass)
{
    return transmit(g->fd, m, pass);
}

int guard_recv(const struct guard *g, struct guard_msg *m)
{
    int fd;
    return receive(g->fd, m, &fd); /* the guard passes none */
}

int guard_sweep(const struct tree *tree, pid_t *unkillable)
{
    int left = tree_count(tree), before;

    if (unkillable)
        *unkillable = 0;
    for (int i = 0; i < KILL_PASSES && left > 0; i++) {
        before = left;
        tree_signal(tree, SIGKILL, unkillable);
        tree_reap(tree, 0, NULL);
        left = tree_count(tree);
        if (left == before)
            break;
    }
    return left;
}
