/*
 * fail_call FILE CASE CMD...: run CMD, a dlock of whose system calls one fails, and wait until its
 * last process is gone. CASE is ROLE:CALL:K:ERRNO: the K-th CALL of that process is not done and
 * has this error; "trace": nothing fails, FILE lists the cases of this run; "-": nothing is
 * watched.
 *
 * FILE: "struck"; "exit CODE NS" (CLOCK_BOOTTIME; 128+N: killed); "hangs" if CMD took too long;
 * "left NAME" for each process that outlives CMD for too long. "case ROLE:CALL:K:ERRNO" and
 * "unknown NUMBER" for a call that the table below does not list.
 *
 * The roles: the keeper; its child (the witness or, where there is none, the later command), its
 * grandchild (the guard) and its great-grandchild (the later command, and before it the process
 * that makes its group). The command itself, whose program is another one, is left alone, and so is
 * the dynamic linker on its way to main(), which ends the process in its own words. The kernel asks
 * about each call (seccomp_unotify(2)), so that threads and processes are told apart and no call is
 * done twice.
 */
#ifndef __LP64__
int main(void)
{
    return 77; /* the table is that of 64-bit machines */
}
#else
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HANG_MS 20000
#define LEFT_MS 2500

/* The errors that a sound kernel, a full machine or a container's filter may give. */
static const struct call {
    int number;
    const char *name;
    int errors[4];
} calls[] = {
#define CALL(name, ...)                                                                            \
    {                                                                                              \
        SYS_##name, #name,                                                                         \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
    CALL(accept4, EMFILE, ECONNABORTED),
    CALL(bind, EADDRINUSE, ENOMEM),
    CALL(chdir, EACCES),
    CALL(clock_nanosleep, EINTR),
    CALL(clone, EAGAIN, ENOMEM),
    CALL(clone3, EAGAIN, ENOSYS),
    CALL(connect, ECONNREFUSED, ENOMEM, EINTR),
    CALL(dup, EMFILE),
    CALL(dup3, EINTR),
    CALL(epoll_create1, EMFILE),
    CALL(epoll_ctl, ENOMEM, ENOSPC),
    CALL(epoll_pwait, EINTR),
    CALL(eventfd2, EMFILE),
    CALL(execve, ENOMEM, EACCES),
    CALL(faccessat, EACCES),
    CALL(faccessat2, ENOSYS),
    CALL(fchmod, EPERM),
    CALL(fchown, EPERM),
    CALL(fcntl, EMFILE, ENOMEM),
    CALL(fdatasync, EIO),
    CALL(flock, EINTR, ENOLCK),
    CALL(fstat, EIO, ENOMEM),
    CALL(fstatfs, EIO),
    CALL(fsync, EIO, ENOSPC),
    CALL(ftruncate, EIO),
    CALL(getcwd, ENOENT),
    CALL(getdents64, EIO),
    CALL(getpeername, ENOBUFS),
    CALL(getrandom, EINTR, ENOSYS),
    CALL(getsockname, ENOBUFS),
    CALL(getsockopt, ENOMEM),
    CALL(ioctl, ENOTTY, EIO),
    CALL(kill, EPERM, ESRCH),
    CALL(linkat, EPERM),
    CALL(listen, EADDRINUSE),
    CALL(lseek, EIO),
    CALL(mkdirat, ENOSPC),
    CALL(mmap, ENOMEM),
    CALL(mprotect, ENOMEM),
    CALL(mremap, ENOMEM),
    CALL(newfstatat, EACCES, ENOMEM),
    CALL(openat, EMFILE, EACCES, EIO),
    CALL(pidfd_open, EMFILE, ENOSYS),
    CALL(pidfd_send_signal, EPERM),
    CALL(pipe2, EMFILE),
    CALL(ppoll, EINTR, ENOMEM),
    CALL(prctl, EPERM),
    CALL(pread64, EIO),
    CALL(prlimit64, EPERM),
    CALL(pwrite64, EIO, ENOSPC),
    CALL(read, EINTR, EIO),
    CALL(readlinkat, EACCES),
    CALL(recvfrom, EINTR, ENOMEM, ECONNRESET),
    CALL(recvmsg, EINTR, ENOMEM, ECONNRESET),
    CALL(renameat, EIO),
    CALL(rt_sigtimedwait, EINTR),
    CALL(sendmsg, EINTR, ENOBUFS),
    CALL(sendto, EINTR, ENOBUFS, EPIPE),
    CALL(setpgid, EPERM),
    CALL(setsid, EPERM),
    CALL(setsockopt, ENOMEM),
    CALL(shutdown, ENOTCONN),
    CALL(signalfd4, EMFILE),
    CALL(socket, EMFILE, EAFNOSUPPORT),
    CALL(socketpair, EMFILE),
    CALL(statfs, EIO),
    CALL(statx, EACCES, ENOSYS),
    CALL(timer_create, EAGAIN),
    CALL(timer_settime, EINVAL),
    CALL(timerfd_create, EMFILE),
    CALL(timerfd_settime, EINVAL),
    CALL(unlinkat, EIO),
    CALL(wait4, EINTR),
    CALL(waitid, EINTR),
    CALL(write, EINTR, EIO, ENOSPC),
    CALL(writev, EINTR, EIO),
/* Older forms, which newer machines do not have. */
#ifdef SYS_open
    CALL(access, EACCES),
    CALL(arch_prctl),
    CALL(dup2, EINTR),
    CALL(epoll_wait, EINTR),
    CALL(fork, EAGAIN),
    CALL(getdents, EIO),
    CALL(lstat, EACCES),
    CALL(mkdir, ENOSPC),
    CALL(open, EMFILE, EACCES),
    CALL(pipe, EMFILE),
    CALL(poll, EINTR, ENOMEM),
    CALL(readlink, EACCES),
    CALL(rename, EIO),
    CALL(stat, EACCES),
    CALL(unlink, EIO),
    CALL(vfork, EAGAIN),
#endif
    /* What fails in no sound kernel, or not when used as it is here: a close() that does not close,
       a signal mask that is not taken, a brk() that moves nothing. */
    CALL(brk),
    CALL(clock_getres),
    CALL(clock_gettime),
    CALL(close),
    CALL(close_range),
    CALL(exit),
    CALL(exit_group),
    CALL(futex),
    CALL(getegid),
    CALL(geteuid),
    CALL(getgid),
    CALL(getpgid),
    CALL(getpgrp),
    CALL(getpid),
    CALL(getppid),
    CALL(getsid),
    CALL(gettid),
    CALL(getuid),
    CALL(madvise),
    CALL(membarrier),
    CALL(munmap),
    CALL(restart_syscall),
    CALL(rseq),
    CALL(rt_sigaction),
    CALL(rt_sigpending),
    CALL(rt_sigprocmask),
    CALL(rt_sigreturn),
    CALL(sched_getaffinity),
    CALL(sched_getparam),
    CALL(sched_getscheduler),
    CALL(sched_yield),
    CALL(set_robust_list),
    CALL(set_tid_address),
    CALL(sysinfo),
    CALL(tgkill),
    CALL(umask),
    CALL(uname),
#undef CALL
};
#define CALLS (sizeof calls / sizeof *calls)

enum role { KEEPER, CHILD, GRANDCHILD, GREAT_GRANDCHILD, ROLES, NOT_OURS = ROLES };
static const char *const role_names[ROLES] = {"keeper", "child", "grandchild", "great-grandchild"};

static FILE *report;
static pid_t root;
static struct stat program;
static bool tracing;
static struct {
    enum role role;
    const struct call *call;
    int k, error;
} wanted;
static int counts[ROLES][CALLS];

static void must(bool good, const char *what)
{
    if (good)
        return;
    perror(what);
    exit(99);
}

static int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* ----------------------------------------------------------------- whose call is it? --- */

static struct task {
    pid_t thread, process;
    enum role role;
} tasks[4096];
static int ntasks;

static struct task *find_task(pid_t process)
{
    for (int i = ntasks; i-- > 0;)
        if (tasks[i].process == process)
            return &tasks[i];
    return NULL;
}

static void read_status(pid_t thread, pid_t *process, pid_t *parent)
{
    char path[64], line[256];
    *process = thread, *parent = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)thread);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "Tgid: %d", process) == 1 || sscanf(line, "PPid: %d", parent) == 1)
            continue;
    if (f)
        fclose(f);
}

static bool runs_program(pid_t thread)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d/exe", (int)thread);
    return stat(path, &st) != 0 || (st.st_ino == program.st_ino && st.st_dev == program.st_dev);
}

static struct task *task_of(pid_t thread)
{
    for (int i = ntasks; i-- > 0;)
        if (tasks[i].thread == thread)
            return &tasks[i];
    must(ntasks < (int)(sizeof tasks / sizeof *tasks), "too many processes");
    struct task t = {.thread = thread, .role = NOT_OURS}, *other;
    pid_t parent;
    read_status(thread, &t.process, &parent);
    if (t.process == root)
        t.role = KEEPER;
    else if ((other = find_task(t.process)) != NULL)
        t.role = other->role;
    else if ((other = find_task(parent)) != NULL && runs_program(thread))
        t.role = other->role < GREAT_GRANDCHILD ? other->role + 1 : other->role;
    tasks[ntasks++] = t;
    return &tasks[ntasks - 1];
}

/* Is this call the dynamic linker's, before any other code of the program has made one? The first
   call behind the exec is. */
static bool is_loading(pid_t thread, uint64_t at)
{
    static enum { EXECUTED, LOADING, LOADED } state;
    static uint64_t begin, end;
    if (state == EXECUTED) {
        char path[64], line[512];
        snprintf(path, sizeof path, "/proc/%d/maps", (int)thread);
        FILE *f = fopen(path, "re");
        while (f && fgets(line, sizeof line, f) &&
               (sscanf(line, "%" SCNx64 "-%" SCNx64, &begin, &end) != 2 || at < begin || at >= end))
            ;
        if (f)
            fclose(f);
        state = LOADING;
    }
    if (state == LOADING && (at < begin || at >= end))
        state = LOADED;
    return state == LOADING;
}

/* ------------------------------------------------------------------------- the kernel asks --- */

static int listen_for_calls(void)
{
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF)};
    struct sock_fprog prog = {.len = 1, .filter = all};
    /* A signal does not interrupt a call that we are asked about (Linux 5.19): it would be counted
       once more. */
    unsigned flags = SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    if (geteuid() != 0)
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &prog);
}

/* The error of this call; 0: it is let through. */
static int judge(const struct seccomp_notif *asked)
{
    struct task *t = task_of((pid_t)asked->pid);
    size_t i = 0;
    if (t->role == NOT_OURS)
        return 0;
    while (i < CALLS && calls[i].number != asked->data.nr)
        i++;
    if (i == CALLS) {
        fprintf(report, "unknown %d\n", asked->data.nr);
        return 0;
    }
    /* The kernel interrupts only a wait that may block (waitpid(2)). */
    const uint64_t *args = (const uint64_t *)asked->data.args;
    if ((calls[i].number == SYS_wait4 && args[2] & WNOHANG) ||
        (calls[i].number == SYS_waitid && args[3] & WNOHANG))
        return 0;
    static bool executed;
    if (!executed) { /* our own child becomes CMD */
        executed = calls[i].number == SYS_execve;
        return 0;
    }
    if (t->role == KEEPER && is_loading(t->thread, asked->data.instruction_pointer))
        return 0;
    int k = ++counts[t->role][i];
    for (const int *e = calls[i].errors; tracing && *e; e++)
        fprintf(report, "case %s:%s:%d:%d\n", role_names[t->role], calls[i].name, k, *e);
    if (wanted.call == &calls[i] && wanted.role == t->role && wanted.k == k) {
        fprintf(report, "struck\n");
        return wanted.error;
    }
    if (calls[i].number == SYS_execve)
        t->role = NOT_OURS;
    return 0;
}

static void answer(int listener)
{
    struct seccomp_notif asked = {0};
    if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0)
        return; /* killed before it was asked about */
    int error = judge(&asked);
    struct seccomp_notif_resp resp = {.id = asked.id, .error = -error};
    if (error == 0)
        resp.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &resp);
}

/* ------------------------------------------------------------------------------- the tree --- */

static int start(char **argv, bool watched)
{
    atomic_int *fd =
        mmap(NULL, sizeof *fd, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(fd != MAP_FAILED, "mmap");
    sigset_t none;
    sigemptyset(&none);
    root = fork();
    must(root >= 0, "fork");
    if (root == 0) {
        sigprocmask(SIG_SETMASK, &none, NULL);
        /* From here on a call waits for an answer, so no call may tell of the descriptor. */
        if (watched)
            *fd = listen_for_calls();
        if (!watched || *fd >= 0)
            execv(argv[0], argv);
        _exit(99);
    }
    if (!watched)
        return -1;
    while (*fd == 0)
        sched_yield();
    must(*fd > 0, "seccomp");
    int pidfd = (int)syscall(SYS_pidfd_open, root, 0);
    int listener = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, *fd, 0);
    must(listener >= 0, "pidfd_getfd");
    close(pidfd);
    return listener;
}

/* Each child has come to us, because we are their subreaper. */
static void end_the_rest(const char *word)
{
    int pid;
    do {
        FILE *f = fopen("/proc/thread-self/children", "re");
        must(f != NULL, "/proc/thread-self/children");
        while (fscanf(f, "%d", &pid) == 1) {
            char path[64], name[64] = "?";
            snprintf(path, sizeof path, "/proc/%d/comm", pid);
            FILE *comm = fopen(path, "re");
            if (comm && fgets(name, sizeof name, comm))
                name[strcspn(name, "\n")] = '\0';
            if (comm)
                fclose(comm);
            fprintf(report, "%s %s\n", word, name);
            kill(pid, SIGKILL);
        }
        fclose(f);
        word = "left behind that:";
    } while (waitpid(-1, NULL, 0) > 0);
}

/* True: none is left. */
static bool reap(int64_t *until)
{
    pid_t pid;
    int status;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == root) {
            fprintf(report, "exit %d %lld\n",
                    WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                    (long long)now_ms() * 1000000);
            root = 0;
            *until = now_ms() + LEFT_MS;
        }
    return pid < 0;
}

static void parse_case(char *text)
{
    tracing = strcmp(text, "trace") == 0;
    if (tracing)
        return;
    char *role = strtok(text, ":"), *name = strtok(NULL, ":"), *k = strtok(NULL, ":"),
         *error = strtok(NULL, ":");
    must(error != NULL, "CASE");
    while (wanted.role < ROLES && strcmp(role_names[wanted.role], role) != 0)
        wanted.role++;
    for (size_t i = 0; i < CALLS; i++)
        if (strcmp(calls[i].name, name) == 0)
            wanted.call = &calls[i];
    wanted.k = atoi(k), wanted.error = atoi(error);
    must(wanted.role < ROLES && wanted.call && wanted.k > 0 && wanted.error > 0, "CASE");
}

int main(int argc, char **argv)
{
    must(argc >= 4 && (report = fopen(argv[1], "we")) != NULL, "fail_call FILE CASE CMD...");
    bool watched = strcmp(argv[2], "-") != 0;
    if (watched)
        parse_case(argv[2]);
    must(stat(argv[3], &program) == 0, argv[3]);
    must(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0, "PR_SET_CHILD_SUBREAPER");
    sigset_t chld;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    sigaddset(&chld, SIGTERM); /* without us no call of theirs would work */
    sigprocmask(SIG_BLOCK, &chld, NULL);
    struct pollfd fds[2] = {{.fd = signalfd(-1, &chld, SFD_CLOEXEC | SFD_NONBLOCK)}, {.fd = -1}};
    fds[1].fd = start(argv + 3, watched);
    fds[0].events = fds[1].events = POLLIN;
    int64_t until = now_ms() + HANG_MS;
    for (;;) {
        poll(fds, 2, 100);
        struct signalfd_siginfo came;
        while (read(fds[0].fd, &came, sizeof came) > 0)
            if (came.ssi_signo == SIGTERM)
                until = 0;
        if (fds[1].revents & POLLIN)
            answer(fds[1].fd);
        else if (fds[1].revents)
            fds[1].fd = -1; /* none of them is left */
        if (reap(&until))
            break;
        if (now_ms() >= until) {
            end_the_rest(root ? "hangs" : "left");
            break;
        }
    }
    return fclose(report) != 0;
}
#endif
