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

static struct process_tree tree;

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
static int block[2]; /* nothing is ever written to this pipe */

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
    memset(&tree, 0, sizeof tree);
    if (process_tree_init(&tree) != 0 || pipe2(ready, O_CLOEXEC) != 0 ||
        pipe2(block, O_CLOEXEC) != 0 || pipe2(witness, O_CLOEXEC) != 0)
        abort();
}

static void teardown(void)
{
    close(ready[0]);
    close(ready[1]);
    close(block[0]);
    close(block[1]);
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
    while (process_tree_count(&tree) > 0) {
        process_tree_signal(&tree, SIGKILL, NULL);
        process_tree_reap(&tree, 0, NULL);
        if (dlock_now() - from > 10 * DLOCK_SEC)
            return -1;
    }
    return dlock_now() - from;
}

/* The tree, which was asked to end, is gone within 5 s. */
static void ends_by_itself(void)
{
    int64_t until = dlock_now() + 5 * DLOCK_SEC;
    while (process_tree_count(&tree) > 0 && dlock_now() < until)
        process_tree_reap(&tree, 0, NULL);
    CHECK_INT(process_tree_count(&tree), 0);
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
    for (int i = 0; i < 1000 && process_tree_count(&tree) < 2; i++)
        usleep(1000);
    CHECK(process_tree_count(&tree) >= 2);
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
    CHECK_INT(process_tree_signal(&tree, SIGTERM, NULL), 100);
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
    CHECK_INT(process_tree_signal(&tree, SIGTERM, NULL), 2);
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

TREE_TEST(leaves_inherited_processes_alone)
{
    pid_t old = fork_pair();
    REQUIRE_INT(process_tree_init(&tree), 0);
    CHECK_INT(tree.ninherited, 1);
    CHECK_INT(process_tree_count(&tree), 0);
    fan(3);
    CHECK_INT(process_tree_count(&tree), 1);
    CHECK(kill_all() >= 0);
    CHECK_INT(waitpid(old, NULL, WNOHANG), 0);
    CHECK(!witness_dead());
    tree.ninherited = 0;
    CHECK(kill_all() >= 0);
    CHECK(witness_dead());
}

TREE_TEST(reaps_all_but_inherited_children)
{
    int st = -1;
    pid_t old = fork_zombie(3);
    REQUIRE_INT(process_tree_init(&tree), 0);
    CHECK_INT(tree.ninherited, 1);
    pid_t watch = fork_zombie(5);
    CHECK(process_tree_reap(&tree, watch, &st));
    CHECK_INT(WEXITSTATUS(st), 5);
    CHECK_INT(process_tree_count(&tree), 0);
    CHECK_INT(waitpid(old, &st, WNOHANG), old);
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
    CHECK_INT(process_tree_signal(&tree, SIGCONT, NULL), 2);
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
        if (process_tree_init(&tree) != 0 || setresuid(65534, 65534, 65534) != 0)
            _exit(2);
        tree.ninherited = 0;
        _exit(process_tree_signal(&tree, SIGKILL, &refused) == 1 && refused == mine ? 0 : 1);
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
    CHECK_INT(visit((struct link){getppid(), work[0].pid}, -1, SIGCONT, true), ESRCH);
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

/* Every process forks again and again; the bound is there only to end a test that fails. */
TREE_TEST(outgrows_a_fork_bomb)
{
    enum { MAX = 3000 };
    if (unit_emulated())
        SKIP("a race against time");
        /* Of moderate speed: a much faster one takes the processor from the test that ends it. */
#ifdef __SANITIZE_ADDRESS__
    const unsigned pause_us = 150000; /* a fork takes long here, and so does everything else */
#else
    const unsigned pause_us = 100000;
#endif
    int *n = mmap(NULL, sizeof *n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(n != MAP_FAILED);
    if (fork() == 0) {
        here();
        while (__atomic_add_fetch(n, 1, __ATOMIC_SEQ_CST) < MAX) {
            fork();
            usleep(pause_us);
        }
        sleeper();
    }
    await(ready[0], 1);
    usleep(7 * pause_us);
    int at = *n;
    is_killed_within(10 * DLOCK_SEC, "fork bomb");
    printf("# forks: %d at the start, %d at the end\n", at, *n);
    CHECK(*n < MAX);
}

/* ------------------------------------------------------------ what /proc shows --- */

#define NOT_ALLOWED 77

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
    return setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0 ? 0 : 9;
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
    if (process_tree_signal(&tree, SIGTERM, NULL) != 1)
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

/* ------------------------------------------------------------ inherited --- */

static char *const marked[] = {"A=1", "DLOCK_TOKEN=0123", "B=DLOCK_TOKEN=9", NULL};
static char *const other[] = {"A=DLOCK_TOKEN=0123", "DLOCK_TOKEN=01234", "DLOCK_TOKEN=012",
                              "DLOCK_TOKEN=", NULL};
static char *const empty[] = {NULL};

/* exec a shell with that environment; it writes to descriptor 9 when it runs. */
static _Noreturn void become(char *const env[], const char *script)
{
    if (dup2(ready[1], 9) == 9 && dup2(block[0], 8) == 8)
        execve("/bin/sh", (char *[]){"sh", "-c", (char *)(uintptr_t)script, NULL}, env);
    _exit(1);
}

static pid_t child_with(char *const env[], const char *script)
{
    pid_t pid = fork();
    if (pid == 0)
        become(env, script);
    return pid;
}

/* Without another exec the environment stays as it is. */
#define SLEEP "printf x >&9; read x <&8"

/* An inherited child that exits when it is told to and leaves a child of its own behind. */
static pid_t old_child(int tell_fd, char *const env[])
{
    pid_t pid = fork();
    char c;
    if (pid == 0) {
        here();
        if (read(tell_fd, &c, 1) != 1 || fork() != 0)
            _exit(0);
        become(env, SLEEP);
    }
    await(ready[0], 1);
    return pid;
}

/* How many children a process without threads has, zombies too; -1: this /proc does not show it. */
static int children_of(pid_t pid)
{
    char path[64], buf[256];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)pid, (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t len = read(fd, buf, sizeof buf);
    close(fd);
    for (ssize_t i = 0; i < len; i++)
        n += buf[i] == ' ';
    return n;
}

static void leaves_the_orphans(char *const env[], bool term)
{
    struct proc_stat st;
    int tell[2];
    setup();
    REQUIRE_INT(pipe2(tell, O_CLOEXEC), 0);
    pid_t old = old_child(tell[0], env);
    REQUIRE_INT(process_tree_init(&tree), 0);
    CHECK_INT(tree.ninherited, 1);
    tree.marker = marked[1];
    CHECK_INT(write(tell[1], "x", 1), 1);
    await(ready[0], 1);
    CHECK_INT(process_tree_count(&tree), 0);
    CHECK_INT(process_tree_signal(&tree, SIGTERM, NULL), 0);
    CHECK_INT(process_tree_living(&tree), 0);
    /* The command: a child of its own, one without the environment, an orphan. */
    pid_t shell = child_with(marked, "(" SLEEP ") & env -i sh -c 'trap \"\" TERM; " SLEEP
                                     "' & ((" SLEEP ") &); wait");
    await(ready[0], 3);
    /* Until the parent of the orphan is gone, and the shell waits for the other two. */
    for (int i = 0; i < 5000 && (process_tree_count(&tree) < 2 || children_of(shell) > 2); i++)
        usleep(1000);
    process_tree_reap(&tree, 0, NULL);
    CHECK_INT(process_tree_count(&tree), 2);
    CHECK(process_tree_living(&tree) > 0);
    if (term) /* seen from now on: a process that ignores TERM, an orphan soon, is killed as well */
        CHECK_INT(process_tree_signal(&tree, SIGTERM, NULL), 4);
    CHECK(kill_all() >= 0);
    /* The inherited orphan is alive, the only child; without a marker it would be dead. */
    CHECK_INT(waitpid(old, NULL, 0), old);
    CHECK_INT(waitpid(-1, NULL, WNOHANG), 0);
    REQUIRE_INT(list_children(), 0); /* old has been reaped */
    CHECK_INT(nwork, 1);
    CHECK(proc_read_stat(work[0].pid, &st) && st.state != 'Z');
    tree.marker = NULL;
    CHECK(kill_all() >= 0);
    close(tell[0]);
    close(tell[1]);
    teardown();
}

TEST(leaves_inherited_orphans_alone_also_without_an_environment)
{
    for (int term = 0; term < 2; term++) {
        leaves_the_orphans(other, term);
        leaves_the_orphans(empty, term);
    }
}

TREE_TEST(finds_a_marker_between_two_reads)
{
    static char big[4096 + 64];
    char *const env[] = {big, marked[1], NULL};
    for (int shift = 0; shift < 20; shift++) {
        memset(big, 'x', sizeof big - 1);
        big[4096 - 20 + shift] = '\0';
        pid_t pid = child_with(env, SLEEP);
        await(ready[0], 1);
        CHECK_INT(origin_of(pid, marked[1]), ORIGIN_TREE);
        CHECK_INT(origin_of(pid, "DLOCK_TOKEN=01234"), ORIGIN_INHERITED);
        CHECK(kill_all() >= 0);
    }
}

/*
 * A process that dies or is in an exec shows no environment: it counts until its origin is clear.
 */
TREE_TEST(counts_a_dying_process)
{
    fork_sleeper(true);
    REQUIRE_INT(process_tree_init(&tree), 0);
    tree.marker = marked[1];
    pid_t pid = child_with(other, "exit 0");
    waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED | WNOWAIT);
    CHECK_INT(origin_of(pid, marked[1]), ORIGIN_UNCLEAR);
    CHECK_INT(process_tree_count(&tree), 1);
    CHECK_INT(process_tree_living(&tree), 0);
    process_tree_reap(&tree, 0, NULL);
    CHECK_INT(process_tree_count(&tree), 0);
    tree.ninherited = 0;
    CHECK(kill_all() >= 0);
}

static void *lives_on(void *arg)
{
    here();
    for (;;)
        pause();
    return arg;
}

/* When the main thread has ended, only the other threads show the environment. */
TREE_TEST(reads_the_environment_of_threads)
{
    extern char **environ;
    struct proc_stat st = {0};
    if (!environ[0])
        SKIP("no environment");
    pid_t pid = fork();
    if (pid == 0) {
        pthread_t t;
        alarm(60);
        if (pthread_create(&t, NULL, lives_on, NULL) != 0)
            _exit(1);
        pthread_exit(NULL);
    }
    await(ready[0], 1);
    for (int i = 0; i < 1000 && st.state != 'Z'; i++) {
        usleep(1000);
        CHECK(proc_read_stat(pid, &st));
    }
    CHECK_INT(st.state, 'Z');
    CHECK_INT(origin_of(pid, environ[0]), ORIGIN_TREE);
    CHECK_INT(origin_of(pid, "no=such"), ORIGIN_INHERITED);
    CHECK(kill_all() >= 0);
}

UNIT_MAIN
