/*
 * lives DIR WHO MS [tree] [noterm] [bomb]: the witness command of tests/proof. It lives for MS, or
 * until DIR/WHO.end exists. tree: so does a grandchild in a session of its own, whose parent has
 * ended. bomb: so do a hundred processes of another user, which fork all the time; DIR/bomb is
 * locked until the last of them has ended.
 * lives DIR WHO wrapper|grandchild PID: only reports that process.
 *
 * Each process reports itself to the watcher (tests/proof/watch.py) at the socket DIR/watch and
 * goes on when it has the watcher's answer: the watcher then has a pidfd. Every 50 ms a process
 * adds a line to DIR/witness: time, pid, WHO. One O_APPEND write, no lock: a process that is frozen
 * with a lock would stop the others.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static const char *who;

/* By the kernel itself: a fault may have given this process another clock, by a preloaded shim. */
static int64_t now_ns(void)
{
    struct timespec ts;
    syscall(SYS_clock_gettime, CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void report(const char *role, const char *pid)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = "watch"};
    char text[64];
    int n = snprintf(text, sizeof text, "%s %s %s\n", who, role, pid);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0 ||
        write(fd, text, (size_t)n) != n || read(fd, text, 1) != 1) {
        perror("lives: watch");
        _exit(99);
    }
    close(fd);
}

static void add_line(void)
{
    char line[64];
    int n = snprintf(line, sizeof line, "%" PRId64 " %d %s\n", now_ns(), (int)getpid(), who);
    int fd = open("witness", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, line, (size_t)n) != n)
        _exit(99);
    close(fd);
}

static bool over(int64_t until)
{
    char end[32];
    snprintf(end, sizeof end, "%s.end", who);
    return now_ns() >= until || access(end, F_OK) == 0;
}

static void live(const char *role, int64_t until)
{
    report(role, "0");
    while (!over(until)) {
        add_line();
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
}

/* Returns a descriptor that is at its end when the grandchild has ended. */
static int grow(int64_t until)
{
    int ends[2];
    if (pipe(ends) != 0)
        _exit(99);
    if (fork() == 0) {
        setsid();
        close(ends[0]);
        if (fork() == 0)
            live("grandchild", until);
        _exit(0);
    }
    close(ends[1]);
    return ends[0];
}

static void explode(int64_t until)
{
    const struct rlimit limit = {100, 100};
    const id_t user = 50000 + (id_t)getpid() % 10000; /* the limit is that of a user */
    int fd = open("bomb", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fork() != 0)
        return;
    if (fd < 0 || flock(fd, LOCK_EX) != 0 || setrlimit(RLIMIT_NPROC, &limit) != 0 ||
        setgid(user) != 0 || setuid(user) != 0)
        _exit(99);
    setpriority(PRIO_PROCESS, 0, 19); /* other cells run beside this one */
    while (!over(until)) {
        fork();
        usleep(1000);
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    if (argc < 4 || chdir(argv[1]) != 0)
        return 98;
    who = argv[2];
    if (strcmp(argv[3], "wrapper") == 0 || strcmp(argv[3], "grandchild") == 0)
        return report(argv[3], argc > 4 ? argv[4] : "0"), 0;
    int64_t until = now_ns() + (int64_t)atol(argv[3]) * 1000000;
    int tree = -1;
    for (int i = 4; i < argc; i++) {
        if (strcmp(argv[i], "noterm") == 0)
            signal(SIGTERM, SIG_IGN);
        else if (strcmp(argv[i], "tree") == 0)
            tree = grow(until);
        else if (strcmp(argv[i], "bomb") == 0)
            explode(until);
    }
    live("command", until);
    /* A command that ended before its grandchild would have left it behind by its own will. */
    char c;
    while (tree >= 0 && read(tree, &c, 1) < 0 && errno == EINTR)
        ;
    return 0;
}
