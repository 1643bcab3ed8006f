/* spawn.c - fork and exec of the command; the descriptors that it and we keep. */
#include "spawn.h"

#include "util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

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
    return n < 0 ? -errno : 0;
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

const char *spawn_marker(char buf[SPAWN_MARKER_SIZE], const char *token)
{
    if (!token || !*token)
        return NULL;
    snprintf(buf, SPAWN_MARKER_SIZE, "DLOCK_TOKEN=%s", token);
    return buf;
}

int spawn_exec(const struct spawn *sp)
{
    char name[32], held[HELD_SIZE];
    bool ok = give("DLOCK_NAME", sp->name) && give("DLOCK_TOKEN", sp->token) &&
              give_number("DLOCK_FENCE", sp->fence > 0, sp->fence) &&
              give_number("DLOCK_SLOT", sp->slot > 0, (uint64_t)sp->slot - 1);

    for (int i = 2; i <= DLOCK_SET_MAX; i++) {
        uint64_t fence = sp->also_fences ? sp->also_fences[i - 2] : 0;
        snprintf(name, sizeof(name), "DLOCK_FENCE_%d", i);
        ok = ok && give_number(name, fence > 0, fence);
    }
    if (sp->nheld > 0)
        ok = ok && give("DLOCK_HELD", held_add(held, getenv("DLOCK_HELD"), sp->held, sp->nheld) +
                                          strlen(HELD_NAME));
    if (!ok)
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
    if (sp->not_after != DLOCK_NEVER && dlock_lease_now(sp->raw_minus_boot) >= sp->not_after)
        return SPAWN_TOO_LATE;
    return 0;
}

/* Of one spawn_command. Each pair is a pipe. */
struct start {
    pid_t parent;
    /*
     * vfork(2): our process sleeps until the exec, and the child sets the command's environment in
     * our memory, where nothing reads the variables later. Not for the guard, which watches the
     * lease's times beside an exec from a slow disk.
     */
    bool quick;
    int go[2];     /* a byte: groups and sessions are as they must be; -1: no pipe needed */
    int result[2]; /* why the command could not be executed; EOF: it was */
};

static void close_pipe(const int ends[2])
{
    for (int i = 0; i < 2; i++)
        if (ends[i] >= 0)
            close(ends[i]);
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

static int become_command(const struct spawn *sp, const struct start *s)
{
    char go;
    int why;

    if (s->quick)
        outlast_ctrl_z();
    if (sp->die_with_parent) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0)
            return errno;
        /* A parent that died before the call above sends no signal. */
        if (getppid() != s->parent)
            return SPAWN_KEEPER_GONE;
    }
    if (s->go[0] >= 0) {
        close(s->go[1]); /* or EOF would never come */
        if (read(s->go[0], &go, 1) != 1)
            return SPAWN_KEEPER_GONE;
    }
    why = last_check(sp);
    return why ? why : spawn_exec(sp);
}

/* SIGKILL, as a stopped child would never exit. */
static void end_child(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, __WALL);
}

/*
 * A process group without a leader begins with this child, which exits at once: a zombie stays in
 * its group until it is reaped, and no other process or group can get its number before. vfork(2)
 * takes 40 us, a third of fork(2).
 */
static pid_t fork_leader(void)
{
    pid_t pid = vfork();

    if (pid == 0)
        _exit(0);
    if (pid < 0)
        return -errno;
    if (setpgid(pid, pid) != 0) {
        int err = errno;
        end_child(pid);
        return -err;
    }
    return pid;
}

/* Fork the command and let it go. Its pid, or -errno. */
static pid_t fork_command(const struct spawn *sp, const struct start *s)
{
    pid_t pid = s->quick ? vfork() : fork();
    int why = 0;

    if (pid < 0)
        return -errno;
    if (pid == 0) {
        why = become_command(sp, s);
        while (write(s->result[1], &why, sizeof(why)) < 0 && errno == EINTR)
            ;
        _exit(spawn_exec_code(why));
    }
    /*
     * While the command waits: nothing that it does to its process group may reach us. In the order
     * that the kernel wants: only a process of the same session can be put into a group.
     */
    if ((sp->group && setpgid(pid, *sp->group) != 0) || (sp->leave_session && setsid() < 0) ||
        (s->go[1] >= 0 && write(s->go[1], "", 1) != 1))
        why = errno;
    if (why) {
        end_child(pid);
        return -why;
    }
    return pid;
}

pid_t spawn_command(const struct spawn *sp, int *exec_fd)
{
    bool quick = !sp->group && !sp->leave_session && !sp->die_with_parent;
    struct start s = {.parent = getpid(), .quick = quick, .go = {-1, -1}};
    int why = last_check(sp);
    pid_t leader = 0, pid;

    if (why)
        return -why;
    if (pipe2(s.result, O_CLOEXEC) != 0)
        return -errno;
    if ((sp->group || sp->leave_session) && pipe2(s.go, O_CLOEXEC) != 0) {
        why = errno;
        close_pipe(s.result);
        return -why;
    }
    if (sp->group && (leader = fork_leader()) > 0)
        *sp->group = leader;
    pid = leader < 0 ? leader : fork_command(sp, &s);
    if (leader > 0) /* the group exists as long as the command is in it */
        end_child(leader);
    close_pipe(s.go);
    close(s.result[1]);
    if (pid < 0)
        close(s.result[0]);
    else
        *exec_fd = s.result[0];
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
