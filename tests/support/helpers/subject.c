/*
 * subject.c - a command for dlock that records what happens to it.
 *
 *     subject DIR [-t] [-k] [-n] [-r CODE] [-u FILE] [-m MSEC]
 *
 * DIR/events gets a line for the start and for each signal ("WHO start PID NS", "WHO sig N NS",
 * CLOCK_BOOTTIME). DIR/beat, an array of int64, has the last sign of life of each process.
 * DIR/witness is locked (flock) while any of them lives; if it is locked already, "WHO overlap" and
 * exit code 99.
 *   -t  four processes: main, a child, a grandchild in a session of its own, a daemon (double fork)
 *   -k  go on after TERM, INT, HUP and QUIT (default: die by them); -n: all but main go on
 *   -u  end when FILE exists; -m: end after so long (default 30000); -r: with this code
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MAIN, CHILD, SESSION, DAEMON, WHO_COUNT };
static const char *const names[WHO_COUNT] = {"main", "child", "session", "daemon"};

static int events, who = MAIN;
static volatile int64_t *beat;

static int64_t now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

static void tell(const char *what, int arg)
{
    char line[96];
    int n = snprintf(line, sizeof line, "%s %s %d %lld\n", names[who], what, arg, (long long)now());
    if (write(events, line, (size_t)n) != n)
        _exit(98);
}

static int open_in(const char *dir, const char *file, int flags)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    int fd = open(path, flags | O_CREAT, 0600);
    if (fd < 0) {
        perror(path);
        exit(98);
    }
    return fd;
}

static void die_by(int sig)
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, sig);
    signal(sig, SIG_DFL);
    raise(sig);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
}

static void make_tree(void)
{
    if (fork() == 0) {
        who = CHILD;
        if (fork() == 0) {
            who = SESSION;
            setsid();
        }
    } else if (fork() == 0) {
        if (fork() != 0)
            _exit(0);
        who = DAEMON;
        setsid();
    }
}

int main(int argc, char **argv)
{
    int tree = 0, keep_on = 0, others_keep_on = 0, code = 0, c;
    const char *until = NULL;
    int64_t life = 30000;
    if (argc < 2)
        return 64;
    const char *dir = argv[1];
    while ((c = getopt(argc - 1, argv + 1, "tknr:u:m:")) != -1) {
        switch (c) {
        case 't':
            tree = 1;
            break;
        case 'k':
            keep_on = 1;
            break;
        case 'n':
            others_keep_on = 1;
            break;
        case 'r':
            code = atoi(optarg);
            break;
        case 'u':
            until = optarg;
            break;
        case 'm':
            life = atoi(optarg);
            break;
        default:
            return 64;
        }
    }
    events = open_in(dir, "events", O_WRONLY | O_APPEND);
    int fd = open_in(dir, "beat", O_RDWR);
    if (ftruncate(fd, sizeof(int64_t) * WHO_COUNT) != 0)
        return 98;
    beat = mmap(NULL, sizeof(int64_t) * WHO_COUNT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (beat == MAP_FAILED)
        return 98;
    int witness = open_in(dir, "witness", O_RDWR);
    if (flock(witness, LOCK_EX | LOCK_NB) != 0) {
        tell("overlap", errno);
        return 99;
    }
    /* Signals are taken in turn, between two beats; those that stop us do so. */
    sigset_t taken;
    sigfillset(&taken);
    sigdelset(&taken, SIGTSTP);
    sigdelset(&taken, SIGTTIN);
    sigdelset(&taken, SIGTTOU);
    sigdelset(&taken, SIGCHLD);
    sigprocmask(SIG_BLOCK, &taken, NULL);
    int64_t end = now() + life * 1000000;
    if (tree)
        make_tree();
    beat[who] = now();
    tell("start", (int)getpid());
    const struct timespec pause = {.tv_nsec = 500000};
    while (now() < end) {
        int sig = sigtimedwait(&taken, NULL, &pause);
        beat[who] = now();
        if (sig > 0) {
            tell("sig", sig);
            int ends = sig == SIGTERM || sig == SIGINT || sig == SIGHUP || sig == SIGQUIT;
            if (ends && !keep_on && !(others_keep_on && who != MAIN))
                die_by(sig);
        }
        if (who == MAIN && until && access(until, F_OK) == 0)
            break;
    }
    return code;
}
