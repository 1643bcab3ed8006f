/*
 * fork.c - what a child does with the handle of its parent changes nothing for the parent.
 *
 *     fork [fcntl] held URI [URI2]       while it is held (URI2: a set of both)
 *     fork [fcntl] waits URI [URI2]      while it is waited for
 *     fork connects SILENT               in the first contact, with a server that says nothing
 *     fork names SILENT                  while the name "slow.test" is looked up
 *     fork any URI                       at any moment from the first contact to the grant
 *     fork [fcntl] idles URI             while it is held, by a child that never closes the handle
 *     fork [fcntl] given URI             the same of a file, whose descriptor was asked for
 */
#include "lib.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* A name server that never answers. */
static atomic_bool asked;

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                struct addrinfo **found)
{
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (host && strcmp(host, "slow.test") == 0 && !(hints->ai_flags & AI_NUMERICHOST)) {
        asked = true;
        for (;;)
            pause();
    }
    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    return real(host, port, hints, found);
}

static bool fcntl_locks;

/* ----------------------------------------------------------------- leaks --- */

/* Of a sanitizer: is anything leaked? And what it asks, at exit too: shall it not look? */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));
int __lsan_is_turned_off(void);

/*
 * The child lacks the parent's threads: memory that only they knew counts as leaked. And a child
 * has hung at its exit for ten seconds, perhaps in the search; what exits need not free anything.
 */
static bool no_search;

int __lsan_is_turned_off(void)
{
    return no_search;
}

static int entries(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    MUST(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* ------------------------------------------------------------ lock or set --- */

static dlock *open_with(const char *uri, int64_t wait)
{
    struct dlock_options o;
    dlock *lk = NULL;
    dlock_options_init(&o, sizeof o);
    o.ttl_ns = BRIEF_TTL;
    o.connect_timeout_ns = 10 * DLOCK_SEC;
    o.wait_ns = wait;
    o.fcntl = fcntl_locks;
    CODE(dlock_open(&lk, uri, &o, &err), 0);
    return lk;
}

static dlock *open_one_or_set(char **uris, int n)
{
    dlock *set = NULL;
    if (n == 1)
        return open_with(uris[0], 10 * DLOCK_SEC);
    dlock *both[] = {open_with(uris[0], 0), open_with(uris[1], 0)};
    CODE(dlock_open_set(&set, both, 2, 10 * DLOCK_SEC, &err), 0);
    return set;
}

/* holder: one more handle, which is kept meanwhile, or NULL. */
static void drive_until(dlock *t, dlock *holder, enum dlock_report_type type)
{
    int64_t end = dlock_now() + 10 * DLOCK_SEC;
    const struct dlock_report *r;
    do {
        MUST(dlock_now() < end);
        if (holder)
            CODE(dlock_keep(holder, dlock_now(), &err), 0);
        r = step(t, DLOCK_SEC / 10);
        if (r && (r->type == DLOCK_REPORT_FAILED || r->type == DLOCK_REPORT_LOST))
            FAIL("%s", r->error.msg);
    } while (!r || r->type != type);
}

/* ------------------------------------------------------------ descriptors --- */

#define FDS 256

/* Which are open, and the local port of each that is connected by TCP. */
struct fds {
    bool open[FDS];
    int port[FDS];
};

static int local_port(int fd)
{
    struct sockaddr_storage a, peer;
    socklen_t len = sizeof a, plen = sizeof peer;
    if (getpeername(fd, (struct sockaddr *)&peer, &plen) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &len) != 0)
        return 0;
    if (a.ss_family == AF_INET6)
        return ((struct sockaddr_in6 *)(void *)&a)->sin6_port;
    return a.ss_family == AF_INET ? ((struct sockaddr_in *)(void *)&a)->sin_port : 0;
}

static struct fds fds_now(void)
{
    struct fds f = {0};
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;
    MUST(d);
    while ((e = readdir(d))) {
        int fd = atoi(e->d_name);
        if (e->d_name[0] == '.' || fd == dirfd(d))
            continue;
        if (fd >= FDS) /* inherited: ours are the lowest that are free */
            continue;
        f.open[fd] = true;
        f.port[fd] = local_port(fd);
    }
    closedir(d);
    return f;
}

static void none_left(const struct fds *before)
{
    struct fds now = fds_now();
    for (int fd = 0; fd < FDS; fd++) {
        char link[64], to[256] = "";
        if (now.open[fd] == before->open[fd])
            continue;
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        (void)!readlink(link, to, sizeof to - 1);
        FAIL("descriptor %d (%s) was%s open before dlock_open()", fd, to,
             before->open[fd] ? "" : " not");
    }
}

/* Until then its library may be between socket(2) and telling us of it. */
static bool has_sent(int fd)
{
    struct tcp_info i = {0};
    socklen_t len = sizeof i;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &len) == 0 && i.tcpi_data_segs_out > 0;
}

static bool connected(const struct fds *before)
{
    struct fds now = fds_now();
    for (int fd = 0; fd < FDS; fd++)
        if (now.open[fd] && !before->open[fd] && now.port[fd] != 0 && has_sent(fd))
            return true;
    return false;
}

/* --------------------------------------------------------------- children --- */

enum end { CLOSES, EXITS }; /* EXITS: by exit(3), without a word to the library */

static void refused(dlock *t)
{
    struct pollfd pfd[2 * DLOCK_POLL_MAX];
    int64_t wake_at = 0;
    IS(dlock_state(t), DLOCK_STATE_FOREIGN);
    CODE(dlock_start_acquire(t, &err), DLOCK_EUSAGE);
    CODE(dlock_start_release(t, DLOCK_NEVER, &err), DLOCK_EUSAGE);
    CODE(dlock_acquire(t, &err), DLOCK_EUSAGE);
    CODE(dlock_keep(t, DLOCK_NEVER, &err), DLOCK_EUSAGE);
    CODE(dlock_release(t, DLOCK_NEVER, &err), DLOCK_EUSAGE);
    CODE(dlock_poll_fd(t, &err), DLOCK_EUSAGE);
    IS(dlock_interest(t, pfd, 2 * DLOCK_POLL_MAX, &wake_at), 0);
    IS(wake_at, DLOCK_NEVER);
    MUST(!dlock_process(t, NULL, 0));
    MUST(!dlock_dispatch(t));
    IS(dlock_time_left(t), 0);
}

static void child(dlock *t, dlock *holder, const struct fds *before, enum end how)
{
    alarm(10);
    refused(t);
    if (how == EXITS) {
        no_search = true;
        exit(0);
    }
    dlock_close(t);
    dlock_close(holder);
    if (before)
        none_left(before);
    if (__lsan_do_recoverable_leak_check)
        IS(__lsan_do_recoverable_leak_check(), 0);
    _exit(0);
}

static void go_on(dlock *t, dlock *holder)
{
    int64_t tick = DLOCK_SEC / 100;
    if (holder)
        CODE(dlock_keep(holder, dlock_now(), &err), 0);
    if (dlock_state(t) == DLOCK_STATE_HELD)
        CODE(dlock_keep(t, dlock_now() + tick, &err), 0);
    else
        step(t, tick);
}

/* holder: one more handle, or NULL. before: NULL: what the child has open is not compared. */
static void fork_child(dlock *t, dlock *holder, const struct fds *before, enum end how)
{
    bool threads = entries("/proc/self/task") > 1;
    int status;
    fflush(NULL);
    pid_t pid = fork(), ended;
    MUST(pid >= 0);
    if (pid == 0) {
        no_search = threads;
        child(t, holder, before, how);
    }
    while ((ended = waitpid(pid, &status, WNOHANG)) == 0)
        go_on(t, holder);
    IS(ended, pid);
    if (status != 0)
        FAIL("the child that %s ended with %#x", how == EXITS ? "exits" : "closes", status);
}

/* ----------------------------------------------------------------- phases --- */

static void other_is_refused(const char *uri)
{
    dlock *lk = open_with(uri, 0);
    CODE(dlock_acquire(lk, &err), DLOCK_EBUSY);
    dlock_close(lk);
}

/* Through renewals. True: by the same connections. */
static bool still_held(dlock *t, char **uris, int n, const struct fds *was)
{
    bool same = true;
    CODE(dlock_keep(t, dlock_now() + BRIEF_TTL / 2, &err), 0);
    struct fds is = fds_now();
    /* A server that was not needed for the grant may have been connected later. */
    for (int fd = 0; fd < FDS; fd++)
        same = same && (was->port[fd] == 0 || is.port[fd] == was->port[fd]);
    for (int i = 0; i < n; i++)
        other_is_refused(uris[i]);
    return same;
}

static bool held_by_the_same(char **uris, int n)
{
    struct fds before = fds_now(), was;
    dlock *t = open_one_or_set(uris, n);
    MUST(dlock_poll_fd(t, &err) >= 0); /* with its descriptors */
    CODE(dlock_acquire(t, &err), 0);
    was = fds_now();
    fork_child(t, NULL, &before, CLOSES);
    fork_child(t, NULL, &before, EXITS);
    bool same = still_held(t, uris, n, &was);
    CODE(dlock_release(t, 5 * DLOCK_SEC, &err), 0);
    /* A connection, or a session, may still be ending. */
    fork_child(t, NULL, &before, CLOSES);
    dlock_close(t);
    return same;
}

/* On a busy machine a renewal may get no answer in time, and connect again: not three times. */
static void held(char **uris, int n)
{
    for (int i = 0; i < 3; i++)
        if (held_by_the_same(uris, n))
            return;
    FAIL("it had to connect again");
}

static void waits(char **uris, int n)
{
    struct fds before = fds_now();
    dlock *holder = open_with(uris[n - 1], 0);
    dlock *t = open_one_or_set(uris, n);
    CODE(dlock_acquire(holder, &err), 0);
    CODE(dlock_start_acquire(t, &err), 0);
    drive_until(t, holder, DLOCK_REPORT_WAITING);
    fork_child(t, holder, &before, CLOSES);
    fork_child(t, holder, &before, EXITS);
    CODE(dlock_keep(holder, dlock_now(), &err), 0);
    CODE(dlock_release(holder, 5 * DLOCK_SEC, &err), 0);
    dlock_close(holder);
    drive_until(t, NULL, DLOCK_REPORT_ACQUIRED);
    for (int i = 0; i < n; i++)
        other_is_refused(uris[i]);
    CODE(dlock_release(t, 5 * DLOCK_SEC, &err), 0);
    dlock_close(t);
}

/* The lock is not acquired: that server never answers. */
static void first_contact(char **uris, bool names)
{
    struct fds before = fds_now();
    dlock *t = open_one_or_set(uris, 1);
    int64_t end = dlock_now() + 5 * DLOCK_SEC;
    CODE(dlock_start_acquire(t, &err), 0);
    do {
        const struct dlock_report *r = step(t, DLOCK_SEC / 100);
        if (r && r->type == DLOCK_REPORT_FAILED)
            FAIL("%s", r->error.msg);
        MUST(dlock_now() < end);
    } while (names ? !asked : !connected(&before));
    fork_child(t, NULL, &before, CLOSES);
    fork_child(t, NULL, &before, EXITS);
    IS(dlock_state(t), DLOCK_STATE_ACQUIRING);
    (void)dlock_release(t, DLOCK_SEC / 10, &err);
    dlock_close(t);
    fflush(NULL);
    _exit(0); /* the look-up goes on */
}

/* The descriptors are not compared: a library may not have told us of a new socket yet. */
static void any_moment(char **uris)
{
    for (int i = 0; i < 12; i++) {
        dlock *t = open_one_or_set(uris, 1);
        int64_t at = dlock_now() + i * DLOCK_SEC / 4000;
        const struct dlock_report *r = NULL;
        CODE(dlock_start_acquire(t, &err), 0);
        while (dlock_now() < at && (!r || r->type != DLOCK_REPORT_ACQUIRED))
            r = step(t, DLOCK_SEC / 10000);
        fork_child(t, NULL, NULL, i % 3 == 2 ? EXITS : CLOSES);
        if (dlock_state(t) != DLOCK_STATE_HELD)
            drive_until(t, NULL, DLOCK_REPORT_ACQUIRED);
        CODE(dlock_keep(t, 0, &err), 0);
        other_is_refused(uris[0]);
        CODE(dlock_release(t, 5 * DLOCK_SEC, &err), 0);
        dlock_close(t);
    }
}

/* given: the child got the descriptor by dlock_fd(), and keeps the lock of a file. */
static void idles(const char *uri, bool given)
{
    dlock *lk = open_with(uri, 0), *next = open_with(uri, 0);
    int ends[2], status;
    char c;
    CODE(dlock_acquire(lk, &err), 0);
    MUST(!given || dlock_fd(lk) >= 0);
    IS(pipe(ends), 0);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        close(ends[1]);
        _exit(read(ends[0], &c, 1) == 0 ? 0 : 1);
    }
    CODE(dlock_release(lk, 5 * DLOCK_SEC, &err), 0);
    CODE(dlock_acquire(next, &err), given ? DLOCK_EBUSY : 0);
    close(ends[1]);
    IS(waitpid(pid, &status, 0), pid);
    IS(status, 0);
    if (given)
        CODE(dlock_acquire(next, &err), 0);
    CODE(dlock_release(next, 5 * DLOCK_SEC, &err), 0);
    dlock_close(next);
    dlock_close(lk);
}

int main(int argc, char **argv)
{
    int i = 1;
    if (argc > i && strcmp(argv[i], "fcntl") == 0) {
        fcntl_locks = true;
        i++;
    }
    MUST(argc >= i + 2);
    const char *phase = argv[i];
    char **uris = argv + i + 1;
    int n = argc - i - 1;
    if (strcmp(phase, "held") == 0)
        held(uris, n);
    else if (strcmp(phase, "waits") == 0)
        waits(uris, n);
    else if (strcmp(phase, "any") == 0)
        any_moment(uris);
    else if (strcmp(phase, "idles") == 0 || strcmp(phase, "given") == 0)
        idles(uris[0], strcmp(phase, "given") == 0);
    else
        first_contact(uris, strcmp(phase, "names") == 0);
    return 0;
}
