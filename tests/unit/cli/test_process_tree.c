/*
 * test_process_tree.c - finding and ending descendants. The source is included: the fallback is
 * switched on by name.
 */
static const char *children_file = "/children";
#define TREE_CHILDREN children_file
/* A process can be made to die just before its stat file is read. */
#include "../../../cli/proc.h"
static bool stat_of(pid_t pid, struct proc_stat *st);
#define proc_read_stat stat_of
#include "../../../cli/process_tree.c"
#undef proc_read_stat

#include "dlock.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* A pipe that every process of a tree inherits: it reads EOF when the last process is dead. */
static int witness[2];

static bool witness_dead(void)
{
    char c;
    if (witness[1] >= 0)
        close(witness[1]);
    witness[1] = -1;
    fcntl(witness[0], F_SETFL, O_NONBLOCK);
    return read(witness[0], &c, 1) == 0;
}

/* Wait until n processes have written that they run. */
static void await(int fd, int n)
{
    char c;
    for (int i = 0; i < n; i++)
        if (read(fd, &c, 1) != 1)
            abort();
}

static int ready[2];

#define NOT_ALLOWED 77

static void here(void)
{
    if (write(ready[1], "x", 1) != 1)
        _exit(1);
}

static _Noreturn void sleeper(void)
{
    here();
    alarm(60); /* a test that fails leaves no process behind for long */
    for (;;)
        pause();
}

static void setup(void)
{
    if (process_tree_init() != 0 || pipe2(ready, O_CLOEXEC) != 0 || pipe2(witness, O_CLOEXEC) != 0)
        abort();
}

static void teardown(void)
{
    close(ready[0]);
    close(ready[1]);
    close(witness[0]);
    if (witness[1] >= 0)
        close(witness[1]);
}

#define TREE_TEST(test) TEST_WITHIN(setup(), teardown(), test)

/* dumpable: false for a child like a dlock that is the command. */
static pid_t fork_sleeper(bool dumpable)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_DUMPABLE, dumpable);
        sleeper();
    }
    await(ready[0], 1);
    return pid;
}

/* A parent and its child. */
static pid_t fork_pair(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (fork() == 0)
            sleeper();
        sleeper();
    }
    await(ready[0], 2);
    return pid;
}

/* A child that has exited, and is not reaped. */
static pid_t fork_zombie(int code)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(code);
    waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED | WNOWAIT);
    return pid;
}

/* A chain of depth processes; the last has left its session and lost its parent. */
static void fork_chain(int depth)
{
    if (fork() != 0)
        return;
    signal(SIGTERM, SIG_IGN);
    if (depth > 1) {
        fork_chain(depth - 1);
        sleeper();
    }
    if (fork() == 0) {
        setsid();
        if (fork() != 0)
            _exit(0);
        sleeper();
    }
    sleeper();
}

static void chain(int depth)
{
    fork_chain(depth);
    await(ready[0], depth + 1);
}

static void fan(int n)
{
    if (fork() != 0) {
        await(ready[0], n);
        return;
    }
    for (int i = 1; i < n; i++)
        if (fork() == 0)
            sleeper();
    sleeper();
}

/* Passes until no process is left. Returns how long it took, or -1. */
static int64_t kill_all(void)
{
    int64_t from = dlock_now();
    while (process_tree_count() > 0) {
        process_tree_kill(NULL);
        process_tree_reap(0, NULL);
        if (dlock_now() - from > 10 * DLOCK_SEC)
            return -1;
    }
    return dlock_now() - from;
}

/* The tree, which was asked to end, is gone within 5 s. */
static void ends_by_itself(void)
{
    int64_t until = dlock_now() + 5 * DLOCK_SEC;
    while (process_tree_count() > 0 && dlock_now() < until)
        process_tree_reap(0, NULL);
    CHECK_INT(process_tree_count(), 0);
    kill_all();
}

/* The tree is killed within this time, and no process is left. */
static void is_killed_within(int64_t ns, const char *what)
{
    int64_t took = kill_all();
    CHECK(took >= 0 && took < unit_bound(ns));
    printf("# %s: %" PRId64 " us\n", what, took / 1000);
    CHECK(witness_dead());
}

TREE_TEST(kills_a_deep_tree)
{
    chain(4);
    /* The chain's head, and the orphan of its tail as soon as that has lost its parent. */
    for (int i = 0; i < 1000 && process_tree_count() < 2; i++)
        usleep(1000);
    CHECK(process_tree_count() >= 2);
    is_killed_within(50 * DLOCK_MSEC, "deep tree");
}

TREE_TEST(works_without_children_files)
{
    children_file = "/nosuch";
    chain(4);
    fan(20);
    is_killed_within(DLOCK_SEC, "without children files");
    children_file = "/children";
}

TREE_TEST(one_term_reaches_all)
{
    fan(50);
    fan(50);
    CHECK_INT(process_tree_term(DLOCK_NEVER), 100);
    ends_by_itself();
}

static pid_t dies_when_seen;

static bool stat_of(pid_t pid, struct proc_stat *st)
{
    siginfo_t info;
    if (pid == dies_when_seen) {
        dies_when_seen = 0;
        kill(pid, SIGKILL);
        /* A zombie has no children any more: they have come to us. */
        waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT);
    }
    return proc_read_stat(pid, st);
}

/* A parent dies during the pass: its child, which has come to us since, gets the signal as well. */
static void signals_an_orphan(void)
{
    setup();
    pid_t pid = fork_pair();
    usleep(30000); /* the start of a process is counted in 10 ms */
    dies_when_seen = pid;
    CHECK_INT(process_tree_term(DLOCK_NEVER), 2);
    ends_by_itself();
    teardown();
}

TEST(signals_an_orphan_of_the_pass)
{
    signals_an_orphan();
    children_file = "/no-such-file";
    signals_an_orphan();
    children_file = "/children";
}

TREE_TEST(reaps_all_and_tells_the_end_of_one)
{
    int st = -1;
    fork_zombie(3);
    pid_t watch = fork_zombie(5);
    CHECK(process_tree_reap(watch, &st));
    CHECK_INT(WEXITSTATUS(st), 5);
    CHECK_INT(process_tree_count(), 0);
}

TREE_TEST(wants_no_part_of_the_children_that_were_there_before)
{
    int before = -1;
    fork_sleeper(true);
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    CHECK_INT(process_tree_init(), 1);
    CHECK_INT(prctl(PR_GET_CHILD_SUBREAPER, &before), 0);
    CHECK_INT(before, 0);
    CHECK(kill_all() >= 0);
}

static void *forks(void *arg)
{
    if (fork() == 0)
        sleeper();
    pause();
    return arg;
}

TREE_TEST(finds_the_child_of_a_thread)
{
    if (fork() == 0) {
        pthread_t t;
        if (pthread_create(&t, NULL, forks, NULL) != 0)
            _exit(1);
        sleeper();
    }
    await(ready[0], 2);
    REQUIRE_INT(list_children(), 0);
    CHECK_INT(visit_all(0, SIGCONT, DLOCK_NEVER, NULL), 2);
    CHECK(kill_all() >= 0);
    CHECK(witness_dead());
}

TREE_TEST(names_a_process_that_cannot_be_killed)
{
    int st;
    if (geteuid() != 0)
        SKIP("needs root");
    pid_t driver = fork();
    if (driver == 0) {
        pid_t mine = fork(), refused = 0;
        if (mine == 0)
            sleeper();
        await(ready[0], 1);
        if (setresuid(65534, 65534, 65534) != 0)
            _exit(2);
        _exit(process_tree_kill(&refused) == 1 && refused == mine ? 0 : 1);
    }
    waitpid(driver, &st, 0);
    CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 0);
    CHECK(kill_all() >= 0);
}

TREE_TEST(leaves_unrelated_processes_alone)
{
    fork_sleeper(true);
    REQUIRE_INT(list_children(), 0);
    /* Our parent, as if its pid had been read from a child's list. */
    CHECK_INT(visit((struct link){getppid(), work[0].pid}, -1, SIGCONT), ESRCH);
    CHECK(!descends(getppid(), work[0].pid) || getppid() == 0);
    /* The parent is neither the expected one nor we, but below us: moved to another subreaper. */
    CHECK(descends(work[0].pid, -1));
    CHECK(kill_all() >= 0);
}

/* Each process forks a successor and exits. */
TREE_TEST(outruns_a_hydra)
{
    enum { HEADS = 4, MAX = 200000 };
    if (unit_emulated())
        SKIP("a race against time");
    int *forks_made =
        mmap(NULL, sizeof *forks_made, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(forks_made != MAP_FAILED);
    for (int i = 0; i < HEADS; i++) {
        if (fork() == 0) {
            here();
            while (__atomic_add_fetch(forks_made, 1, __ATOMIC_SEQ_CST) < MAX)
                if (fork() != 0)
                    _exit(0);
            _exit(0);
        }
    }
    await(ready[0], HEADS);
    is_killed_within(10 * DLOCK_SEC, "hydra");
    printf("# forks: %d\n", *forks_made);
    CHECK(*forks_made < MAX);
}

/*
 * How a bomb's processes go on: all at once, each after a while, or each behind a child that it
 * waits for. At the limit each process that dies makes room for another one.
 */
enum bomb { BUSY, SLEEPY, PATIENT };

static _Noreturn void explode(enum bomb how)
{
    for (;;) {
        pid_t pid = fork();
        if (how == SLEEPY || pid < 0)
            usleep(how == BUSY ? 0 : 1000);
        if (how == PATIENT && pid > 0)
            waitpid(pid, NULL, 0);
    }
}

/* A user of its own, whose processes alone count. 0: its bomb was ended. */
static int survives(enum bomb how, int size)
{
    struct rlimit limit = {(rlim_t)size, (rlim_t)size};
    int seen = 0;
    process_tree_init();
    if (setrlimit(RLIMIT_NPROC, &limit) != 0 || setresgid(60123, 60123, 60123) != 0 ||
        setresuid(60123, 60123, 60123) != 0)
        return NOT_ALLOWED;
    if (fork() == 0) {
        setpriority(PRIO_PROCESS, 0, 19); /* other tests run beside this one */
        explode(how);
    }
    for (int64_t until = dlock_now() + unit_bound(10 * DLOCK_SEC);
         seen < size / 2 && dlock_now() < until; usleep(10000))
        if (list_children() == 0)
            seen = visit_all(0, 0, DLOCK_NEVER, NULL);
    int64_t took = kill_all();
    printf("# %d processes, mode %d: %" PRId64 " us\n", seen, (int)how, took / 1000);
    fflush(stdout);
    return seen < size / 2 ? 1 : took >= 0 && took < unit_bound(5 * DLOCK_SEC) ? 0 : 2;
}

TREE_TEST(ends_a_fork_bomb_at_its_limit_of_processes)
{
    if (unit_emulated())
        SKIP("a race against time");
    for (enum bomb how = BUSY; how <= PATIENT; how++) {
        int st = -1;
        pid_t pid = fork();
        if (pid == 0)
            _exit(survives(how, 200));
        CHECK_INT(waitpid(pid, &st, 0), pid);
        CHECK(kill_all() >= 0);
        if (WIFEXITED(st) && WEXITSTATUS(st) == NOT_ALLOWED)
            SKIP("needs root");
        CHECK_INT(st, 0);
    }
}

/* ------------------------------------------------------------ what /proc shows --- */

static int sees_a_covered_proc(void)
{
    char self[16];
    if (mount("none", "/proc", "tmpfs", 0, NULL) != 0)
        return NOT_ALLOWED;
    if (process_tree_visible())
        return 1;
    /* Sandboxes make up a /proc/self. */
    snprintf(self, sizeof self, "%d", (int)getpid());
    if (symlink(self, "/proc/self") != 0)
        return 2;
    return process_tree_visible() ? 3 : 0;
}

static int hide_processes(void)
{
    if (mount("none", "/proc", "proc", 0, "hidepid=2") != 0)
        return NOT_ALLOWED;
    /* A login gives root the group 0 as a supplementary one, too, which sees what hidepid hides. */
    if (setgroups(0, NULL) != 0 || setresgid(65534, 65534, 65534) != 0)
        return 9;
    return setresuid(65534, 65534, 65534) == 0 ? 0 : 9;
}

static int sees_hidden_children(void)
{
    int rc = hide_processes(), visible;
    if (rc)
        return rc;
    if (!process_tree_visible())
        return 1;
    pid_t pid = fork_sleeper(false);
    if (!process_tree_visible()) /* our own list shows it all the same */
        return 2;
    children_file = "/nosuch";
    visible = process_tree_visible();
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return visible ? 3 : 0;
}

static int signals_hidden_children(void)
{
    int rc = hide_processes(), st = 0;
    if (rc)
        return rc;
    pid_t pid = fork_sleeper(false);
    if (process_tree_term(DLOCK_NEVER) != 1)
        rc = 1;
    for (int i = 0; i < 500 && waitpid(pid, &st, WNOHANG) == 0; i++)
        usleep(1000);
    if (!WIFSIGNALED(st) || WTERMSIG(st) != SIGTERM)
        rc = rc ? rc : 2;
    kill(pid, SIGKILL);
    return rc;
}

/* Run fn in a child with mounts of its own; its result is 0 for success. */
static void try_with_own_mounts(int (*fn)(void))
{
    int st = -1;
    setup();
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
            _exit(NOT_ALLOWED);
        _exit(fn());
    }
    CHECK_INT(waitpid(pid, &st, 0), pid);
    teardown();
    if (WIFEXITED(st) && WEXITSTATUS(st) == NOT_ALLOWED)
        SKIP("needs the right to mount");
    CHECK_INT(st, 0);
}

TEST(knows_when_proc_shows_nothing)
{
    try_with_own_mounts(sees_a_covered_proc);
}
TEST(knows_when_proc_hides_the_children)
{
    try_with_own_mounts(sees_hidden_children);
}
TEST(terms_a_child_that_proc_hides)
{
    try_with_own_mounts(signals_hidden_children);
}

UNIT_MAIN
