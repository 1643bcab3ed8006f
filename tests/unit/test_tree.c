/* test_tree.c - finding and ending descendants. The source is included: the fallback is switched on by name. */
static const char *children_file = "/children";
#define TREE_CHILDREN children_file
#include "../../cli/tree.c"

#include "dlock.h"
#include "unit.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

static struct tree tree;

/* A pipe that every process of a tree inherits: it reads EOF when the last one is dead. */
static int witness[2];

static void witness_open(void)
{
    if (pipe2(witness, O_CLOEXEC) != 0)
        abort();
}

static bool witness_dead(void)
{
    char c;

    if (witness[1] >= 0)
        close(witness[1]);
    witness[1] = -1;
    fcntl(witness[0], F_SETFL, O_NONBLOCK);
    return read(witness[0], &c, 1) == 0;
}

/* Wait until the processes of a tree have said that they are there. */
static void await(int fd, int n)
{
    char c;

    for (int i = 0; i < n; i++)
        if (read(fd, &c, 1) != 1)
            abort();
}

static int ready[2];

static void here(void)
{
    if (write(ready[1], "x", 1) != 1)
        _exit(1);
}

static _Noreturn void sleeper(void)
{
    here();
    alarm(60); /* a test that fails leaves nobody behind for long */
    for (;;)
        pause();
}

static void setup(void)
{
    memset(&tree, 0, sizeof tree);
    if (tree_init(&tree) != 0 || pipe2(ready, O_CLOEXEC) != 0)
        abort();
    witness_open();
}

static void teardown(void)
{
    close(ready[0]);
    close(ready[1]);
    close(witness[0]);
    if (witness[1] >= 0)
        close(witness[1]);
}

/* A chain of depth processes; the last has left its session and lost its parent. */
static void chain(int depth)
{
    if (fork() != 0)
        return;
    signal(SIGTERM, SIG_IGN);
    if (depth > 1) {
        chain(depth - 1);
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

static void fan(int n)
{
    if (fork() != 0)
        return;
    for (int i = 1; i < n; i++)
        if (fork() == 0)
            sleeper();
    sleeper();
}

/* Passes until nobody is left; how long it took, or -1. */
static int64_t kill_all(void)
{
    int64_t from = dlock_now();

    while (tree_count(&tree) > 0) {
        tree_signal(&tree, SIGKILL, NULL);
        tree_reap(&tree, 0, NULL);
        if (dlock_now() - from > 10 * DLOCK_SEC)
            return -1;
    }
    return dlock_now() - from;
}

TEST(is_visible)
{
    CHECK(tree_visible());
}

TEST(nobody)
{
    setup();
    CHECK_INT(tree_count(&tree), 0);
    CHECK_INT(tree_signal(&tree, SIGKILL, NULL), 0);
    CHECK_INT(tree_living(&tree), 0);
    teardown();
}

TEST(kills_a_deep_tree)
{
    setup();
    chain(4);
    await(ready[0], 5);
    /* The chain's head, and the orphan of its tail as soon as that has lost its parent. */
    for (int i = 0; i < 1000 && tree_count(&tree) < 2; i++)
        usleep(1000);
    CHECK(tree_count(&tree) >= 2);
    int64_t took = kill_all();
    CHECK(took >= 0 && took < 50 * DLOCK_MSEC);
    printf("# deep tree: %" PRId64 " us\n", took / 1000);
    CHECK(witness_dead());
    teardown();
}

TEST(kills_a_wide_tree)
{
    setup();
    fan(200);
    await(ready[0], 200);
    int64_t took = kill_all();
    CHECK(took >= 0 && took < 500 * DLOCK_MSEC);
    printf("# 200 processes: %" PRId64 " us\n", took / 1000);
    CHECK(witness_dead());
    teardown();
}

TEST(works_without_children_files)
{
    setup();
    children_file = "/nosuch";
    chain(4);
    fan(20);
    await(ready[0], 25);
    int64_t took = kill_all();
    CHECK(took >= 0 && took < DLOCK_SEC);
    children_file = "/children";
    CHECK(witness_dead());
    teardown();
}

TEST(term_ends_a_stopped_process)
{
    int st = 0;

    setup();
    pid_t pid = fork();
    if (pid == 0)
        sleeper();
    await(ready[0], 1);
    kill(pid, SIGSTOP);
    waitpid(pid, &st, WUNTRACED);
    CHECK_INT(tree_signal(&tree, SIGTERM, NULL), 1);
    bool gone = false;
    for (int i = 0; i < 2000 && !(gone = tree_reap(&tree, pid, &st)); i++)
        usleep(1000);
    CHECK(gone && WIFSIGNALED(st) && WTERMSIG(st) == SIGTERM);
    kill_all();
    teardown();
}

TEST(one_term_reaches_all)
{
    setup();
    fan(50);
    fan(50);
    await(ready[0], 100);
    CHECK_INT(tree_signal(&tree, SIGTERM, NULL), 100);
    int64_t until = dlock_now() + 5 * DLOCK_SEC;
    while (tree_count(&tree) > 0 && dlock_now() < until)
        tree_reap(&tree, 0, NULL);
    CHECK_INT(tree_count(&tree), 0);
    kill_all();
    teardown();
}

TEST(spares_who_was_there_before)
{
    setup();
    pid_t old = fork();
    if (old == 0) {
        if (fork() == 0)
            sleeper();
        sleeper();
    }
    await(ready[0], 2);
    REQUIRE_INT(tree_init(&tree), 0);
    CHECK_INT(tree.nspared, 1);
    CHECK_INT(tree_count(&tree), 0);
    fan(3);
    await(ready[0], 3);
    CHECK_INT(tree_count(&tree), 1);
    CHECK(kill_all() >= 0);
    CHECK_INT(waitpid(old, NULL, WNOHANG), 0);
    CHECK(!witness_dead());
    tree.nspared = 0;
    CHECK(kill_all() >= 0);
    CHECK(witness_dead());
    teardown();
}

TEST(reaps_but_not_the_spared)
{
    int st = -1;

    setup();
    pid_t old = fork();
    if (old == 0)
        _exit(3);
    waitid(P_PID, (id_t)old, &(siginfo_t){0}, WEXITED | WNOWAIT);
    REQUIRE_INT(tree_init(&tree), 0);
    CHECK_INT(tree.nspared, 1);
    pid_t watch = fork();
    if (watch == 0)
        _exit(5);
    waitid(P_PID, (id_t)watch, &(siginfo_t){0}, WEXITED | WNOWAIT);
    CHECK(tree_reap(&tree, watch, &st));
    CHECK_INT(WEXITSTATUS(st), 5);
    CHECK_INT(tree_count(&tree), 0);
    CHECK_INT(waitpid(old, &st, WNOHANG), old);
    teardown();
}

static void *forks(void *arg)
{
    if (fork() == 0)
        sleeper();
    pause();
    return arg;
}

TEST(finds_the_child_of_a_thread)
{
    setup();
    if (fork() == 0) {
        pthread_t t;
        if (pthread_create(&t, NULL, forks, NULL) != 0)
            _exit(1);
        sleeper();
    }
    await(ready[0], 2);
    CHECK_INT(tree_signal(&tree, SIGCONT, NULL), 2);
    CHECK(kill_all() >= 0);
    CHECK(witness_dead());
    teardown();
}

TEST(names_who_cannot_be_killed)
{
    int st;

    if (geteuid() != 0)
        SKIP("needs root");
    setup();
    pid_t driver = fork();
    if (driver == 0) {
        pid_t mine = fork(), refused = 0;
        if (mine == 0)
            sleeper();
        await(ready[0], 1);
        if (tree_init(&tree) != 0 || setresuid(65534, 65534, 65534) != 0)
            _exit(2);
        tree.nspared = 0;
        _exit(tree_signal(&tree, SIGKILL, &refused) == 1 && refused == mine ? 0 : 1);
    }
    waitpid(driver, &st, 0);
    CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 0);
    CHECK(kill_all() >= 0);
    teardown();
}

TEST(leaves_strangers_alone)
{
    setup();
    fan(1);
    await(ready[0], 1);
    REQUIRE_INT(start_pass(&tree), 0);
    /* Our parent, as if its number had been read from a child's list. */
    CHECK_INT(visit((struct link){getppid(), work[0].pid}, -1, SIGCONT), ESRCH);
    CHECK(!descends(getppid(), work[0].pid) || getppid() == 0);
    /* Whose parent is neither the expected one nor we, but below us: moved to another subreaper. */
    CHECK(descends(work[0].pid, -1));
    CHECK(kill_all() >= 0);
    teardown();
}

/* Processes that do nothing but be somebody else: each forks a successor and ends. */
TEST(outruns_a_hydra)
{
    enum { HEADS = 4, MAX = 200000 };
    setup();
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
    int64_t took = kill_all();
    printf("# hydra: %d forks, %" PRId64 " us\n", *forks_made, took / 1000);
    CHECK(took >= 0);
    CHECK(*forks_made < MAX);
    CHECK(witness_dead());
    teardown();
}

/* Every process forks again and again; the bound is there only to end a test that fails. */
TEST(outgrows_a_fork_bomb)
{
    enum { MAX = 3000 };
    setup();
    /* Who may not be nice -20 for a moment loses against a bomb this fast. */
    unsigned pause_us = setpriority(PRIO_PROCESS, 0, -1) == 0 ? 3000 : 20000;
    setpriority(PRIO_PROCESS, 0, 0);
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
    int64_t took = kill_all();
    printf("# fork bomb: %d forks at the start, %d at the end, %" PRId64 " us\n", at, *n,
           took / 1000);
    CHECK(took >= 0);
    CHECK(*n < MAX);
    CHECK(witness_dead());
    teardown();
}

UNIT_MAIN
