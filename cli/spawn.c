/* spawn.c - fork and exec of the command; the descriptors that it and we keep. */
#include "spawn.h"

#include "util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* The most stack that our calls use: whole pages, less than the gap below a stack. */
#define STACK_USED ((uintptr_t)256 << 10)

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

/* Without /dev, in a chroot for example, a descriptor that can be neither read nor written. */
static int open_plug(void)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    return fd >= 0 ? fd : open("/", O_PATH | O_CLOEXEC);
}

int fds_plug(void)
{
    int fd;
    do {
        fd = open_plug();
        if (fd < 0)
            return -errno;
    } while (fd <= 2);
    close(fd);
    return 0;
}

static bool in_list(const int *list, int n, int fd)
{
    for (int i = 0; i < n; i++)
        if (list[i] == fd)
            return true;
    return false;
}

/* close_range(2) came with Linux 5.9. readdir(3) would allocate. */
static void close_listed(const int *keep, int n)
{
    _Alignas(struct dirent) char buf[2048];
    int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long len;
    if (dir < 0) {
        for (int fd = 3; fd < 1024; fd++)
            if (!in_list(keep, n, fd))
                close(fd);
        return;
    }
    while ((len = syscall(SYS_getdents64, dir, buf, sizeof(buf))) > 0) {
        for (long at = 0; at < len;) {
            const struct dirent *e = (const struct dirent *)(const void *)(buf + at);
            int fd = atoi(e->d_name);
            if (fd > 2 && fd != dir && !in_list(keep, n, fd))
                close(fd);
            at += e->d_reclen;
        }
    }
    close(dir);
}

void fds_let_go(int *keep, int n)
{
    int null = open_plug();
    unsigned from = 3;
    if (null >= 0) {
        dup2(null, 0);
        dup2(null, 1);
        if (null > 2)
            close(null);
    } else { /* no descriptor is free: a pipe must still end when the command ends it */
        close(0);
        close(1);
    }
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && keep[j - 1] > keep[j]; j--) {
            int t = keep[j];
            keep[j] = keep[j - 1];
            keep[j - 1] = t;
        }
    for (int i = 0; i < n; i++) {
        if (keep[i] < (int)from)
            continue;
        if ((unsigned)keep[i] > from && syscall(SYS_close_range, from, keep[i] - 1, 0) != 0) {
            close_listed(keep, n);
            return;
        }
        from = (unsigned)keep[i] + 1;
    }
    if (syscall(SYS_close_range, from, ~0U, 0) != 0)
        close_listed(keep, n);
}

/* Never inlined: the caller's frame must lie above the part of the stack that is given back. */
__attribute__((noinline)) void memory_let_go(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
#ifndef __hppa__ /* there the stack grows upwards */
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    /* The frames of the calls below need less than a page. */
    uintptr_t end = ((uintptr_t)__builtin_frame_address(0) - page) & ~(page - 1);
    madvise((void *)(end - STACK_USED), STACK_USED, MADV_DONTNEED);
#endif
}

int fds_send(int sock, const void *m, size_t size, int pass)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = (void *)(uintptr_t)m, .iov_len = size};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;
    if (pass >= 0) {
        memset(&control, 0, sizeof(control));
        control.align.cmsg_level = SOL_SOCKET;
        control.align.cmsg_type = SCM_RIGHTS;
        control.align.cmsg_len = CMSG_LEN(sizeof(pass));
        memcpy(CMSG_DATA(&control.align), &pass, sizeof(pass));
        msg.msg_control = &control;
        msg.msg_controllen = sizeof(control);
    }
    do
        n = sendmsg(sock, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return dlock_may_send_later(errno) ? -EAGAIN : -errno;
    return 0;
}

/*
 * Without a value the variable is removed: an outer dlock's would name the wrong lock. False: out
 * of memory.
 */
static bool give(const char *name, const char *value)
{
    return (value && *value ? setenv(name, value, 1) : unsetenv(name)) == 0;
}

/* has: false removes the variable. */
static bool give_number(const char *name, bool has, uint64_t value)
{
    char digits[24];
    snprintf(digits, sizeof(digits), "%" PRIu64, value);
    return give(name, has ? digits : NULL);
}

/* Does the variable have dlock's pid, in a process that is not dlock itself (as with -F)? */
static bool names_dlock(const char *variable, pid_t dlock_pid)
{
    const char *value = getenv(variable);
    char digits[24];
    snprintf(digits, sizeof(digits), "%d", (int)dlock_pid);
    return value && strcmp(value, digits) == 0 && getpid() != dlock_pid;
}

/*
 * systemd names the process that its sockets and its watchdog are for, which is dlock: let the
 * command stand in for dlock (sd_listen_fds(3), sd_watchdog_enabled(3)). LISTEN_PIDFDID names the
 * process once more, by the inode of its pidfd; without this variable the pid is enough. False: out
 * of memory.
 */
static bool stand_in(pid_t dlock_pid)
{
    bool ok = true;
    if (names_dlock("LISTEN_PID", dlock_pid))
        ok = give_number("LISTEN_PID", true, (uint64_t)getpid()) && give("LISTEN_PIDFDID", NULL);
    if (names_dlock("WATCHDOG_PID", dlock_pid))
        ok = ok && give_number("WATCHDOG_PID", true, (uint64_t)getpid());
    return ok;
}

/* In the process that becomes the command. False: out of memory. */
static bool set_environment(const struct spawn *sp, const struct spawn_grant *g)
{
    char name[32], held[HELD_SIZE];
    bool ok = stand_in(sp->dlock_pid) && give("DLOCK_NAME", sp->name) &&
              give("DLOCK_TOKEN", g->token) && give_number("DLOCK_FENCE", g->fence > 0, g->fence) &&
              give_number("DLOCK_SLOT", g->slot > 0, (uint64_t)g->slot - 1);
    for (int i = 2; i <= DLOCK_SET_MAX; i++) {
        snprintf(name, sizeof(name), "DLOCK_FENCE_%d", i);
        ok = ok && give_number(name, g->also_fences[i - 2] > 0, g->also_fences[i - 2]);
    }
    if (g->nheld > 0)
        ok = ok && give("DLOCK_HELD", held_add(held, getenv("DLOCK_HELD"), g->held, g->nheld) +
                                          strlen(HELD_NAME));
    return ok;
}

int spawn_exec(const struct spawn *sp)
{
    if (!set_environment(sp, &sp->grant))
        return SPAWN_FORK_FAILED | ENOMEM;
    if (sp->inherit_fd >= 0)
        fcntl(sp->inherit_fd, F_SETFD, 0);
    /* Last: from here on a pending signal may end us, as it would have ended the command. */
    signals_restore(sp->sig);
    /* A text file without "#!" is run by /bin/sh (ENOEXEC), as in shells, env(1) and flock(1). */
    execvp(sp->argv[0], sp->argv);
    return errno;
}

/* 0, or why there must be no exec. */
static int last_check(const struct spawn *sp)
{
    struct pollfd p = {.fd = sp->keeper_fd};
    /* With no events asked for, only POLLHUP and POLLERR come: the other end is closed. */
    if (sp->keeper_fd >= 0 && poll(&p, 1, 0) != 0)
        return SPAWN_KEEPER_GONE;
    if (sp->grant.not_after != DLOCK_NEVER &&
        dlock_lease_now(sp->grant.raw_minus_boot) >= sp->grant.not_after)
        return SPAWN_TOO_LATE;
    return 0;
}

static void do_nothing(int sig)
{
    (void)sig;
}

/* A child that Ctrl-Z stops would keep our process in vfork(2). The exec removes the handlers. */
static void outlast_ctrl_z(void)
{
    static const int stops[] = {SIGTSTP, SIGTTIN, SIGTTOU};
    struct sigaction is;
    for (size_t i = 0; i < sizeof(stops) / sizeof(stops[0]); i++)
        if (sigaction(stops[i], NULL, &is) == 0 && is.sa_handler == SIG_DFL)
            signal(stops[i], do_nothing);
}

/* In the child: sleep until the grant has come. 0, or why there must be no exec. */
static int await_grant(struct spawn *sp, pid_t parent, int go)
{
    char *at = (char *)&sp->grant;
    size_t left = sizeof(sp->grant);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0)
        return errno;
    /* A parent that died before the call above sends no signal. */
    if (getppid() != parent)
        return SPAWN_KEEPER_GONE;
    /* The memory that the variables will take becomes ours while there is time. */
    set_environment(sp, &(struct spawn_grant){0});
    while (left > 0) {
        ssize_t n = read(go, at, left);
        if (n <= 0)
            return SPAWN_KEEPER_GONE;
        at += n;
        left -= (size_t)n;
    }
    return 0;
}

/*
 * A process group without a leader begins with a child that exits at once: a zombie stays in its
 * group until it is reaped, and no other process or group can get its number before. vfork(2) takes
 * 40 us, a third of fork(2). 0 or an errno.
 */
static int fork_leader(pid_t *leader)
{
    pid_t pid = vfork();
    if (pid == 0)
        _exit(0);
    if (pid < 0)
        return errno;
    *leader = pid;
    return setpgid(pid, pid) == 0 ? 0 : errno;
}

int spawn_ahead(struct spawn_child *child, const struct spawn *sp)
{
    struct spawn own = *sp;
    pid_t parent = getpid(), leader = 0;
    int go[2], result[2], why = 0;
    *child = (struct spawn_child){.pid = 0};
    if (pipe2(result, O_CLOEXEC) != 0)
        return -errno;
    if (pipe2(go, O_CLOEXEC) != 0) {
        why = errno;
        close(result[0]);
        close(result[1]);
        return -why;
    }
    if (sp->group)
        why = fork_leader(&leader);
    if (why == 0 && (child->pid = fork()) < 0)
        why = errno;
    if (why == 0 && child->pid == 0) {
        close(go[1]); /* or EOF would never come */
        why = await_grant(&own, parent, go[0]);
        why = why ? why : last_check(&own);
        why = why ? why : spawn_exec(&own);
        while (write(result[1], &why, sizeof(why)) < 0 && errno == EINTR)
            ;
        _exit(spawn_exec_code(why));
    }
    close(go[0]);
    close(result[1]);
    child->group = leader;
    child->go = go[1];
    child->result = result[0];
    /* In the order that the kernel wants: only a process of our session can be put into a group. */
    if (why == 0 && leader > 0 && setpgid(child->pid, leader) != 0)
        why = errno;
    if (leader > 0) /* the group exists as long as a process is in it */
        waitpid(leader, NULL, __WALL);
    if (why)
        spawn_drop(child);
    return -why;
}

void spawn_drop(struct spawn_child *child)
{
    if (child->pid > 0) {
        kill(child->pid, SIGKILL);
        waitpid(child->pid, NULL, __WALL);
    }
    child->pid = 0;
    close(child->go);
    close(child->result);
}

pid_t spawn_command(struct spawn_child *child, const struct spawn *sp, int *exec_fd)
{
    size_t size = sizeof(sp->grant);
    int why = last_check(sp);
    if (child->pid && waitpid(child->pid, NULL, WNOHANG | __WALL) != 0) {
        child->pid = 0; /* killed: the number may be reused */
        spawn_drop(child);
    }
    if (!child->pid) {
        why = why ? why : -spawn_ahead(child, sp);
        if (why)
            return -why;
        why = last_check(sp);
    }
    /* While the child waits: nothing that the command does to its process group may reach us. */
    if (why == 0 &&
        ((!sp->group && setsid() < 0) || write(child->go, &sp->grant, size) != (ssize_t)size))
        why = errno;
    if (why) {
        spawn_drop(child);
        return -why;
    }
    pid_t pid = child->pid;
    if (sp->group)
        *sp->group = child->group;
    close(child->go);
    child->pid = 0;
    *exec_fd = child->result;
    return pid;
}

pid_t spawn_here(const struct spawn *sp, int *why)
{
    volatile int failure = 0;
    pid_t pid = vfork();
    if (pid == 0) {
        outlast_ctrl_z();
        failure = spawn_exec(sp);
        _exit(spawn_exec_code(failure));
    }
    *why = pid < 0 ? SPAWN_FORK_FAILED | errno : failure;
    return pid;
}

bool spawn_exec_result(int *exec_fd, int *why)
{
    ssize_t n;
    *why = 0;
    do
        n = read(*exec_fd, why, sizeof(*why));
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n != (ssize_t)sizeof(*why))
        *why = 0;
    close(*exec_fd);
    *exec_fd = -1;
    return true;
}

int spawn_exec_code(int sys)
{
    return sys == ENOENT || sys == ENOTDIR ? 127 : 126;
}
