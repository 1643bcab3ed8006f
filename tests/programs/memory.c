/*
 * memory.c - memory runs out once, at each point of a lock's life: the N-th allocation fails, for N
 * from 1 until none is left to fail. Each N has a process and a lock of its own. A call may fail
 * then, and says so with DLOCK_ENOMEM; no process dies, no lock is lost, and none is left. (libpq
 * may wait for an answer that it had no memory to take. Then our time-outs end that, and say so.)
 *
 *     memory [-k MSEC] [-n FIRST] [-s STEP] [-t] URI    URI: its name gets ".N"
 *
 * -k: how long the lock is held, so that it is renewed. -n 5 -t: only the fifth, and says where
 * that was. It writes how many calls ended how.
 */
#include "lib.h"

#include <errno.h>
#include <execinfo.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define TTL BRIEF_TTL
#define AT_ONCE 8

static int64_t keep_for;
static bool trace;

/* ------------------------------------------------------------ allocations --- */

static atomic_long allocations, fails_at;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);

static bool fails(void)
{
    long at = atomic_load(&fails_at);
    if (at == 0 || atomic_fetch_add(&allocations, 1) + 1 != at)
        return false;
    if (trace) {
        void *frames[32];
        backtrace_symbols_fd(frames, backtrace(frames, 32), 2);
    }
    errno = ENOMEM;
    return true;
}

void *malloc(size_t n)
{
    return fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return fails() ? NULL : __libc_realloc(p, n);
}
#endif

/* -------------------------------------------------------------- one life --- */

/* Shared by all processes. */
enum call { OPEN, ACQUIRE, KEEP, RELEASE, CALLS };
static const char *const call_names[] = {"open", "acquire", "keep", "release"};
static struct {
    atomic_int ended[CALLS][3]; /* well, without memory, without an answer */
    atomic_int bad;
} * all;

static int said(enum call call, int rc, long n)
{
    bool silent = rc == DLOCK_EUNAVAIL && call != KEEP && strstr(err.msg, "no answer");
    if (rc == 0 || rc == DLOCK_ENOMEM || silent) {
        all->ended[call][rc == 0 ? 0 : silent ? 2 : 1]++;
        return rc;
    }
    all->bad++;
    printf("%ld: %s: %s: %s\n", n, call_names[call], dlock_error_name(rc), err.msg);
    return rc;
}

static void live(const char *uri, long n)
{
    struct dlock_options o;
    dlock *lk = NULL;
    dlock_options_init(&o, sizeof o);
    o.ttl_ns = TTL;
    o.wait_ns = TTL;
    if (said(OPEN, dlock_open(&lk, uri, &o, &err), n) == 0) {
        if (said(ACQUIRE, dlock_acquire(lk, &err), n) == 0) {
            said(KEEP, dlock_keep(lk, dlock_now() + keep_for, &err), n);
            said(RELEASE, dlock_release(lk, DLOCK_SEC, &err), n);
        }
        dlock_close(lk);
    }
}

/* With memory again. What was left in doubt is over with its ttl. */
static void live_again(const char *uri)
{
    dlock *lk = open_lock(uri, TTL, 5 * DLOCK_SEC);
    CODE(dlock_acquire(lk, &err), 0);
    CODE(dlock_release(lk, 5 * DLOCK_SEC, &err), 0);
    dlock_close(lk);
}

static void crashed(int sig)
{
    void *frames[16];
    backtrace_symbols_fd(frames, backtrace(frames, 16), 2);
    signal(sig, SIG_DFL);
    raise(sig);
}

/* Exit code 0: the N-th allocation failed; 2: there were less; 1 (FAIL): the lock is unusable. */
static void child(const char *uri, long n)
{
    char name[1024];
    snprintf(name, sizeof name, "%s.%ld", uri, n);
    void *at_once[1];
    backtrace(at_once, 1); /* loads a library */
    alarm(20);
    if (trace)
        signal(SIGSEGV, crashed);
    fails_at = n;
    live(name, n);
    bool reached = allocations >= n;
    fails_at = 0;
    live_again(name);
    fflush(stdout);
    _exit(reached ? 0 : 2);
}

static struct {
    pid_t pid;
    long n;
} running[AT_ONCE];

/* Room for one more: one process has ended. False: its allocation was not reached. */
static bool reap(int *slot)
{
    int status;
    pid_t pid = wait(&status);
    MUST(pid > 0);
    for (*slot = 0; running[*slot].pid != pid; ++*slot)
        ;
    running[*slot].pid = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) != 1)
        return WEXITSTATUS(status) == 0;
    all->bad++;
    printf("%ld: ended by %s %d\n", running[*slot].n, WIFSIGNALED(status) ? "signal" : "exit code",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return true;
}

static void run_all(const char *uri, long n, long step)
{
    bool more = true;
    int count = 0, slot = 0;
    for (; more; n += step) {
        if (count < AT_ONCE)
            slot = count++;
        else
            more = reap(&slot);
        running[slot].n = n;
        running[slot].pid = fork();
        MUST(running[slot].pid >= 0);
        if (running[slot].pid == 0)
            child(uri, n);
        more = more && !trace;
    }
    while (count-- > 0)
        reap(&slot);
    printf("up to %ld:", n - step);
}

int main(int argc, char **argv)
{
    long n = 1, step = 1;
    int opt;
    while ((opt = getopt(argc, argv, "k:n:s:t")) != -1) {
        if (opt == 'k')
            keep_for = atol(optarg) * DLOCK_MSEC;
        else if (opt == 'n')
            n = atol(optarg);
        else if (opt == 's')
            step = atol(optarg);
        else if (opt == 't')
            trace = true;
    }
    MUST(optind == argc - 1);
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(all != MAP_FAILED);
    setvbuf(stdout, NULL, _IOLBF, 0);
    /* Its modules stay: what the dynamic linker does without memory is its own. */
    dlock_close(open_lock(argv[optind], TTL, 0));
    run_all(argv[optind], n, step);
    for (int i = 0; i < CALLS; i++)
        printf(" %s %d well, %d ENOMEM, %d silent;", call_names[i], all->ended[i][0],
               all->ended[i][1], all->ended[i][2]);
    printf(" %d bad\n", all->bad);
    return all->bad > 0;
}
