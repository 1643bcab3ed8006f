/*
 * leader.c - many locks in one epoll(7) loop, beside the program's own descriptors.
 *
 *     leader [-t TTL] LOCK...
 *
 * Holds each lock for as long as the program runs: acquires a lost lock again, and retries a failed
 * acquire when the library says that a retry makes sense. SIGINT and SIGTERM release all locks.
 *
 *     cc leader.c $(pkg-config --cflags --libs libdlock) -o leader
 */
#include <dlock.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct job {
    dlock *lk;
    int64_t again_at; /* when to acquire again; DLOCK_NEVER: no retry is due */
    bool over;        /* released for good, or hopeless */
};

static int epoll_fd, signal_fd, jobs_left;
static bool ending;

/* The descriptor of a handle stays the same until the handle is closed. */
static int watch(int fd, struct job *j)
{
    struct epoll_event ev;
    ev.events = EPOLLIN;
    ev.data.ptr = j;
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &ev);
}

static void say(const struct job *j, const char *what, const char *more)
{
    printf("%s %s%s%s\n", dlock_name(j->lk), what, more[0] ? ": " : "", more);
    fflush(stdout);
}

static void acquire(struct job *j)
{
    struct dlock_error err;
    j->again_at = DLOCK_NEVER;
    if (dlock_start_acquire(j->lk, &err) < 0)
        fprintf(stderr, "leader: %s\n", err.msg);
}

static void release(struct job *j)
{
    dlock_start_release(j->lk, dlock_now() + 5 * DLOCK_SEC, NULL);
}

static void end(struct job *j)
{
    j->over = true;
    jobs_left--;
}

static void on_report(struct job *j, const struct dlock_report *r)
{
    switch (r->type) {
    case DLOCK_REPORT_ACQUIRED:
        say(j, "held, fence", dlock_fence_text(j->lk));
        break;
    case DLOCK_REPORT_TERM: /* the time left is for ending the work */
    case DLOCK_REPORT_LOST:
        say(j, "lost", r->error.msg);
        release(j);
        break;
    case DLOCK_REPORT_FAILED:
        say(j, "failed", r->error.msg);
        j->again_at = r->retry_at;
        /* Hopeless: nothing is held, and nothing under way. */
        if (r->retry_at == DLOCK_NEVER)
            end(j);
        break;
    case DLOCK_REPORT_RELEASED:
        if (ending)
            end(j);
        else
            acquire(j); /* after a loss */
        break;
    default: /* details */
        break;
    }
}

/* Until the library has no more reports: only then is its descriptor up to date. */
static void drive(struct job *j)
{
    const struct dlock_report *r;
    while ((r = dlock_dispatch(j->lk)))
        on_report(j, r);
}

static void end_all(struct job *jobs, int n)
{
    if (ending)
        return;
    ending = true;
    for (int i = 0; i < n; i++) {
        jobs[i].again_at = DLOCK_NEVER;
        if (!jobs[i].over)
            release(&jobs[i]);
    }
}

/* Start the retries that are due. Returns the time-out for epoll_wait(2). */
static int due(struct job *jobs, int n)
{
    int64_t now = dlock_now(), next = DLOCK_NEVER;
    for (int i = 0; i < n; i++) {
        if (jobs[i].again_at <= now)
            acquire(&jobs[i]);
        if (jobs[i].again_at < next)
            next = jobs[i].again_at;
    }
    if (next == DLOCK_NEVER)
        return -1;
    return (int)((next - now) / DLOCK_MSEC) + 1;
}

static int run(struct job *jobs, int n)
{
    struct epoll_event ready[16];
    struct signalfd_siginfo si;
    while (jobs_left > 0) {
        int got = epoll_wait(epoll_fd, ready, 16, due(jobs, n));
        for (int i = 0; i < got; i++) {
            if (ready[i].data.ptr)
                drive((struct job *)ready[i].data.ptr);
            else if (read(signal_fd, &si, sizeof(si)) > 0)
                end_all(jobs, n);
        }
    }
    return EXIT_SUCCESS;
}

static int signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static bool open_job(struct job *j, const char *uri, int ttl)
{
    struct dlock_options o;
    struct dlock_error err;
    dlock_options_init(&o, sizeof(o));
    o.ttl_ns = ttl * DLOCK_SEC;
    j->again_at = DLOCK_NEVER;
    int fd = dlock_open(&j->lk, uri, &o, &err);
    if (fd == 0)
        fd = dlock_poll_fd(j->lk, &err);
    if (fd < 0)
        fprintf(stderr, "leader: %s\n", err.msg);
    else if (watch(fd, j) == 0)
        return true;
    else
        perror("leader: epoll_ctl");
    return false;
}

int main(int argc, char **argv)
{
    bool has_ttl = argc > 2 && strcmp(argv[1], "-t") == 0;
    char **locks = argv + (has_ttl ? 3 : 1);
    int n = argc - (has_ttl ? 3 : 1), ttl = has_ttl ? atoi(argv[2]) : 30, code = EXIT_FAILURE;
    struct job *jobs = (struct job *)calloc((size_t)n + 1, sizeof(*jobs));
    signal_fd = signals();
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (!jobs || epoll_fd < 0 || signal_fd < 0 || watch(signal_fd, NULL) != 0) {
        perror("leader");
        return EXIT_FAILURE;
    }
    while (jobs_left < n && open_job(&jobs[jobs_left], locks[jobs_left], ttl))
        jobs_left++;
    if (n > 0 && jobs_left == n) {
        for (int i = 0; i < n; i++)
            acquire(&jobs[i]);
        code = run(jobs, n);
    }
    for (int i = 0; i < n; i++)
        dlock_close(jobs[i].lk);
    free(jobs);
    close(epoll_fd);
    close(signal_fd);
    return code;
}
