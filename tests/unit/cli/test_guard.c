/*
 * test_guard.c - the dead man's switch, driven by a keeper that is this program. Every process of a
 * tree inherits the writing end of one pipe, the witness: its EOF is the moment at which the whole
 * tree is dead.
 */
#include "command.h"
#include "guard.h"
#include "process_tree.h"
#include "spawn.h"
#include "util.h"

#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SOON (50 * DLOCK_MSEC)
#define LATE (10 * DLOCK_SEC)

static struct sigstate sig;
static struct guard guard;
static struct guard_config config;
static int witness, say_fd; /* say_fd: what the command writes to descriptor 9 */
static struct guard_msg last;
static int64_t raw_minus_boot = DLOCK_RAW_NEVER; /* of the times that are sent */

/* ----------------------------------------------------------- the driver --- */

static int64_t after(int64_t ns)
{
    return dlock_now() + ns;
}

static void moved_to(int fd, int number)
{
    if (dup2(fd, number) < 0)
        abort();
    close(fd);
}

static void open_pipe(int ends[2])
{
    int made[2];
    if (pipe2(made, O_CLOEXEC) != 0)
        abort();
    for (int i = 0; i < 2; i++) {
        ends[i] = fcntl(made[i], F_DUPFD_CLOEXEC, 20);
        close(made[i]);
    }
}

/* Of all processors since boot. */
struct ticks {
    long long idle, all;
};
static struct ticks began; /* when the command of this test was chosen */

static struct ticks read_ticks(void)
{
    struct ticks t = {0};
    FILE *f = fopen("/proc/stat", "r");
    long long n;
    if (!f)
        return t;
    if (fscanf(f, "cpu") == 0)
        /* user nice system idle iowait irq softirq steal */
        for (int i = 0; i < 8 && fscanf(f, "%lld", &n) == 1; i++) {
            t.all += n;
            t.idle += i == 3 || i == 4 ? n : 0;
        }
    fclose(f);
    return t;
}

static void command_is(char *const *argv)
{
    int w[2], s[2];
    began = read_ticks();
    config = (struct guard_config){.sig = &sig, .argv = argv, .name = "t", .lock_fd = -1};
    config.own_group = true;
    /* Not 8 and 9 at first, which a pipe may get: the caller may have left us descriptors. */
    open_pipe(w);
    open_pipe(s);
    witness = w[0];
    say_fd = s[0];
    moved_to(w[1], 8);
    moved_to(s[1], 9);
}

#define SHELL(script) ((char *const[]){"/bin/sh", "-c", script, NULL})

/* Only the guard and what it starts have the witness from here on. */
static void fork_guard(void)
{
    if (guard_fork(&guard, &config) != 0)
        abort();
    close(8);
    close(9);
    struct pollfd p = {.fd = guard.fd, .events = POLLIN};
    if (poll(&p, 1, (int)(LATE / DLOCK_MSEC)) <= 0 || guard_recv(&guard, &last) != 0)
        abort();
}

static void set_up(char *const *argv)
{
    command_is(argv);
    fork_guard();
}

static void send_times(int type, int arg, int64_t term, int64_t kill, int64_t hard)
{
    struct guard_msg m = {.type = type, .arg = arg, .fence = 42, .token = "abc"};
    m.term_at = term;
    m.kill_at = kill;
    m.hard_at = hard;
    m.raw_minus_boot = raw_minus_boot;
    guard_send(&guard, &m, -1);
}

static void order(int type, int arg)
{
    send_times(type, arg, DLOCK_NEVER, DLOCK_NEVER, DLOCK_NEVER);
}

static void keeper_dies(void)
{
    close(guard.fd);
    guard.fd = -1;
}

/* One that we sent to the keeper. */
static void signal_command(int number)
{
    struct guard_msg m = {.type = G_SIGNAL};
    m.signal = (struct forward_signal){
        .sig = number, .sender = getpid(), .uid = getuid(), .at = dlock_now()};
    guard_send(&guard, &m, -1);
}

/* The next message; -1 at EOF, 0 when none came in time. */
static int hear(void)
{
    struct pollfd p = {.fd = guard.fd, .events = POLLIN};
    int got;
    memset(&last, 0, sizeof last);
    while ((got = guard_recv(&guard, &last)) == 0)
        if (poll(&p, 1, (int)(LATE / DLOCK_MSEC)) <= 0)
            return 0;
    return got < 0 ? -1 : last.type;
}

/* When did the tree die? DLOCK_NEVER: it lives. */
static int64_t death(int64_t within)
{
    struct pollfd p = {.fd = witness, .events = POLLIN};
    return poll(&p, 1, (int)(within / DLOCK_MSEC)) > 0 ? dlock_now() : DLOCK_NEVER;
}

static bool alive(void)
{
    return death(0) == DLOCK_NEVER;
}

/* Wait until the command has written n bytes: its processes are there. */
static bool await(int n)
{
    struct pollfd p = {.fd = say_fd, .events = POLLIN};
    char c;
    while (n-- > 0)
        if (poll(&p, 1, (int)(LATE / DLOCK_MSEC)) <= 0 || read(say_fd, &c, 1) != 1)
            return false;
    return true;
}

static void sweep_all(void)
{
    for (int64_t until = after(LATE); process_tree_sweep(NULL) > 0 && dlock_now() < until;)
        usleep(500);
}

static void clean_up(void)
{
    if (guard.fd >= 0)
        keeper_dies();
    sweep_all();
    CHECK_INT(process_tree_count(), 0);
    close(witness);
    close(say_fd);
    raw_minus_boot = DLOCK_RAW_NEVER;
}

#define GUARD_TEST(test) TEST_WITHIN(, clean_up(), test)

static void heard_flags(int type, int flags)
{
    CHECK_INT(hear(), type);
    CHECK_INT(last.flags, flags);
}

static void detach(void)
{
    order(G_DETACH, 0);
    CHECK_INT(hear(), -1);
}

static void ended_by(int number, int flags)
{
    heard_flags(G_EXITED, flags);
    CHECK(WIFSIGNALED(last.arg) && WTERMSIG(last.arg) == number);
}

/* A guard whose command has been started. */
static bool start_until(char *const *argv, int64_t term, int64_t kill, int64_t hard)
{
    set_up(argv);
    send_times(G_START, 0, term, kill, hard);
    return CHECK_INT(hear(), G_STARTED);
}

static void start(char *const *argv)
{
    start_until(argv, DLOCK_NEVER, DLOCK_NEVER, DLOCK_NEVER);
}

/* The 50 ms hold on a machine with a processor to spare; tests or a build may run beside us. */
static bool busy(void)
{
    double load = 0;
    int running = 0;
    FILE *f = fopen("/proc/loadavg", "r");
    if (f) {
        if (fscanf(f, "%lf %*f %*f %d", &load, &running) != 2)
            running = 0;
        fclose(f);
    }
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    /* The load is of the last minute, running of this moment: a delay may show in neither. */
    struct ticks now = read_ticks();
    bool no_idle = (now.idle - began.idle) * 2 < now.all - began.all;
    return load > (double)processors || running > processors || no_idle || unit_emulated();
}

static bool in_window(int64_t at, int64_t from, int64_t width)
{
    if (at > from + width && busy())
        width += 2 * DLOCK_SEC;
    if (at >= from && at <= from + width)
        return true;
    return CHECK_FAIL("%" PRId64 " us after the time, not in 0..%" PRId64, (at - from) / 1000,
                      width / 1000);
}

/* The tree dies within width of that time. what: for the log. */
static void dies_at(int64_t from, int64_t width, const char *what)
{
    int64_t at = death(LATE);
    in_window(at, from, width);
    printf("# %s: dead after %" PRId64 " us\n", what, (at - from) / 1000);
}

/* Five processes: a shell that ignores TERM, its child, a grandchild in a session of its own. */
#define STUBBORN                                                                                   \
    "trap '' TERM; sleep 60 & (sleep 60 & printf x >&9; wait) & "                                  \
    "setsid sh -c 'printf x >&9; sleep 60' & printf x >&9; wait; sleep 60"

static bool start_stubborn(int64_t term, int64_t kill, int64_t hard)
{
    return start_until(SHELL(STUBBORN), term, kill, hard) && CHECK(await(3));
}

/* ------------------------------------------------- a child ahead of the grant --- */

/* The only child of the guard; 0: none. */
static pid_t guards_child(void)
{
    char path[64];
    int pid = 0;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)guard.pid, (int)guard.pid);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%d", &pid) != 1)
        pid = 0;
    if (f)
        fclose(f);
    return pid;
}

/* The child that waits in its group, whose first process is gone. 0: not in time. */
static pid_t await_child(void)
{
    int64_t until = after(LATE);
    pid_t pid, group;
    do {
        usleep(500);
        pid = guards_child();
        group = pid > 0 ? getpgid(pid) : 0;
    } while ((group <= 0 || group == pid || group == getpgid(0)) && dlock_now() < until);
    return group > 0 && group != pid ? pid : 0;
}

static bool no_child(void)
{
    for (int64_t until = after(LATE); guards_child() != 0; usleep(500))
        if (dlock_now() > until)
            return false;
    return true;
}

GUARD_TEST(forks_the_command_ahead_of_the_grant)
{
    set_up(SHELL("test $(ps -o sid= $$) = $(ps -o sid= $PPID) || exit 7"));
    pid_t pid = await_child();
    CHECK(pid > 0);
    order(G_START, 0);
    CHECK_INT(hear(), G_STARTED);
    CHECK_INT(last.arg, pid);
    CHECK_INT(hear(), G_EXITED);
    CHECK(WIFEXITED(last.arg) && WEXITSTATUS(last.arg) == 7);
    CHECK_INT(hear(), G_TREE_EMPTY);
    detach();
}

GUARD_TEST(replaces_a_child_that_was_killed)
{
    set_up(SHELL("exit 3"));
    pid_t pid = await_child();
    char state = 0, path[64];
    kill(pid, SIGKILL);
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    for (int64_t until = after(LATE); state != 'Z' && dlock_now() < until; usleep(500)) {
        FILE *f = fopen(path, "r");
        if (f && fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
            state = 0;
        if (f)
            fclose(f);
    }
    order(G_START, 0);
    CHECK_INT(hear(), G_STARTED);
    CHECK(last.arg > 0 && last.arg != pid);
    CHECK_INT(hear(), G_EXITED);
    CHECK(WIFEXITED(last.arg) && WEXITSTATUS(last.arg) == 3);
}

GUARD_TEST(keeps_no_child_during_a_long_wait)
{
    int64_t begin = dlock_now();
    set_up(SHELL("exit 3"));
    CHECK(await_child() > 0);
    CHECK(no_child());
    CHECK(dlock_now() - begin >= DLOCK_SEC);
    order(G_START, 0);
    CHECK_INT(hear(), G_STARTED);
    CHECK_INT(hear(), G_EXITED);
    CHECK(WIFEXITED(last.arg) && WEXITSTATUS(last.arg) == 3);
}

/* The child would keep a signal of the terminal until the exec. */
GUARD_TEST(forks_nothing_ahead_that_shares_the_group)
{
    command_is(SHELL("exit 0"));
    config.own_group = false;
    fork_guard();
    usleep(50000);
    CHECK_INT(guards_child(), 0);
}

/* Also where the order comes before the child: the entry is there once. */
TEST(tells_the_command_what_is_held_above)
{
    struct guard_msg m = {.type = G_START,
                          .term_at = DLOCK_NEVER,
                          .kill_at = DLOCK_NEVER,
                          .hard_at = DLOCK_NEVER,
                          .raw_minus_boot = DLOCK_RAW_NEVER,
                          .token = "0123456789abcdef0123456789abcdef",
                          .held = {1, 2, "0123456789abcdef0123456789abcdef", "sock"}};
    for (int ahead = 0; ahead < 2; ahead++) {
        command_is(SHELL("set -- $DLOCK_HELD; exit $#"));
        config.own_group = ahead;
        fork_guard();
        CHECK(!ahead || await_child() > 0);
        guard_send(&guard, &m, -1);
        CHECK_INT(hear(), G_STARTED);
        CHECK_INT(hear(), G_EXITED);
        CHECK(WIFEXITED(last.arg) && WEXITSTATUS(last.arg) == 1);
        clean_up();
    }
}

/* order: of the keeper; 0: the keeper dies. */
static void leaves_nothing(int type)
{
    siginfo_t ended;
    set_up(SHELL("exit 0"));
    CHECK(await_child() > 0);
    if (type)
        order(type, SIGTERM);
    else
        keeper_dies();
    if (type == G_END)
        CHECK(hear() == G_TREE_EMPTY && last.arg == 0 && guards_child() == 0);
    else if (CHECK_INT(waitid(P_PID, (id_t)guard.witness, &ended, WEXITED | WNOWAIT), 0))
        CHECK(process_tree_count() <= 2); /* witness and guard, zombies */
    clean_up();
}

TEST(leaves_no_child_that_was_forked_ahead)
{
    leaves_nothing(G_DETACH);
    leaves_nothing(G_END);
    leaves_nothing(0);
    set_up(SHELL("exit 0"));
    CHECK(await_child() > 0);
    kill(guard.pid, SIGKILL);
    CHECK(death(LATE) != DLOCK_NEVER);
    clean_up();
}

static void fails_to_start(char *const *argv, int64_t term_at, int why)
{
    set_up(argv);
    send_times(G_START, 0, term_at, DLOCK_NEVER, DLOCK_NEVER);
    CHECK_INT(hear(), G_EXEC_FAILED);
    CHECK_INT(last.arg, why);
    CHECK_INT(hear(), G_TREE_EMPTY);
    detach();
    clean_up();
}

TEST(reports_why_it_cannot_start)
{
    fails_to_start((char *[]){"/nonexistent/x", NULL}, DLOCK_NEVER, ENOENT);
    fails_to_start((char *[]){"/etc/passwd", NULL}, DLOCK_NEVER, EACCES);
    fails_to_start((char *[]){"/etc/passwd/x", NULL}, DLOCK_NEVER, ENOTDIR);
    fails_to_start(SHELL("exit 0"), dlock_now(), SPAWN_TOO_LATE);
    raw_minus_boot = dlock_clocks_read(&dlock_env_system).raw - after(LATE);
    fails_to_start(SHELL("exit 0"), after(LATE), SPAWN_TOO_LATE);
    CHECK_INT(spawn_exec_code(ENOENT), 127);
    CHECK_INT(spawn_exec_code(ENOTDIR), 127);
    CHECK_INT(spawn_exec_code(EACCES), 126);
}

GUARD_TEST(an_end_before_the_start_is_final)
{
    set_up(SHELL("printf x >&9"));
    order(G_END, SIGKILL);
    CHECK_INT(hear(), G_TREE_EMPTY);
    order(G_START, 0);
    detach();
    CHECK(death(LATE) != DLOCK_NEVER);
}

/* ------------------------------------------------------------- the keeper --- */

GUARD_TEST(kills_200_processes_when_the_keeper_is_gone)
{
    start(SHELL("i=0; while [ $i -lt 200 ]; do i=$((i+1)); (printf x >&9; sleep 60) & done; wait"));
    CHECK(await(200));
    int64_t from = dlock_now();
    keeper_dies();
    dies_at(from, 10 * SOON, "keeper gone, 200-401 processes");
}

GUARD_TEST(terms_the_command_when_the_keeper_is_stopped)
{
    int64_t term = after(200 * DLOCK_MSEC);
    set_up(SHELL("sleep 60 & sleep 60"));
    send_times(G_START, 0, term, term + 5 * DLOCK_SEC, term + 6 * DLOCK_SEC);
    dies_at(term, SOON, "term_at");
    CHECK_INT(hear(), G_STARTED);
    ended_by(SIGTERM, GUARD_TIMED_OUT);
    heard_flags(G_TREE_EMPTY, GUARD_TIMED_OUT);
}

/* -------------------------------------------------------------- the guard --- */

GUARD_TEST(an_extension_moves_hard_at)
{
    int64_t from = dlock_now(), hard = from + 200 * DLOCK_MSEC;
    set_up(SHELL("exec sleep 60"));
    send_times(G_START, 0, hard - 2 * DLOCK_MSEC, hard - DLOCK_MSEC, hard);
    hard += 400 * DLOCK_MSEC;
    send_times(G_EXTEND, 0, hard - 2 * DLOCK_MSEC, hard - DLOCK_MSEC, hard);
    CHECK_INT(hear(), G_STARTED);
    usleep(20000);
    kill(guard.pid, SIGSTOP);
    /* The direct child dies with the guard, without a keeper. */
    in_window(death(LATE), hard - (hard - from) / 10, (hard - from) / 10);
}

/* Without an extension. Nine tenths of the time until hard_at are over before term_at. */
GUARD_TEST(a_living_guard_is_not_killed_before_term_at)
{
    int64_t hard = after(2 * DLOCK_SEC), term = hard - 100 * DLOCK_MSEC;
    set_up(SHELL("sleep 60"));
    send_times(G_START, 0, term, term, hard);
    int64_t at = death(LATE);
    /* Without a processor for so long a guard cannot be told from a stopped one. */
    if (at >= term || !busy())
        in_window(at, term, SOON);
}

/* ------------------------------------------------------------- two clocks --- */

/*
 * CLOCK_BOOTTIME is far from these times, CLOCK_MONOTONIC_RAW is not: it reaches the time at in ns.
 */
static void raw_reaches(int64_t at, int64_t ns)
{
    raw_minus_boot = dlock_clocks_read(&dlock_env_system).raw + ns - at;
}

/* At nine tenths of the time until hard_at: the timer's clock may be slewed. */
static void stop_guard(int64_t from, int64_t hard)
{
    const int64_t early = from + DLOCK_SEC * 9 / 5;
    REQUIRE(start_stubborn(hard - 200 * DLOCK_MSEC, hard - 100 * DLOCK_MSEC, hard));
    kill(guard.pid, SIGSTOP);
    CHECK_INT(hear(), G_KILLED);
    in_window(dlock_now(), early, DLOCK_SEC / 5);
    int64_t at = death(LATE);
    in_window(at, early, DLOCK_SEC / 5 + SOON);
    printf("# guard stopped, death to hard_at: %" PRId64 " us\n",
           (early + DLOCK_SEC / 5 - at) / 1000);
}

GUARD_TEST(a_stopped_guard_is_killed_before_hard_at_by_either_clock)
{
    int64_t from = dlock_now();
    stop_guard(from, from + 2 * DLOCK_SEC);
    clean_up();
    from = dlock_now();
    raw_reaches(from + 100 * DLOCK_SEC, 2 * DLOCK_SEC);
    stop_guard(from, from + 100 * DLOCK_SEC);
}

GUARD_TEST(an_extension_moves_the_times_of_both_clocks)
{
    int64_t term = after(100 * DLOCK_SEC), from;
    raw_reaches(term, 10 * DLOCK_SEC);
    start_until(SHELL("exec sleep 60"), term, term, term + DLOCK_SEC);
    usleep(20000); /* the guard sleeps until its next turn */
    from = dlock_now();
    raw_reaches(term, 300 * DLOCK_MSEC);
    send_times(G_EXTEND, 0, term, term, term + DLOCK_SEC);
    in_window(death(LATE), from + 299 * DLOCK_MSEC, SOON);
}

/* A dead command that cannot be reaped as long as we trace it: the guard goes on killing. */
static pid_t start_undying(void)
{
    if (!start_until(SHELL("printf x >&9; exec sleep 60"), after(LATE), after(LATE), after(LATE)) ||
        !CHECK(await(1)))
        return -1;
    pid_t pid = last.arg;
    return CHECK_INT(ptrace(PTRACE_SEIZE, pid, NULL, NULL), 0) ? pid : -1;
}

static void let_die(pid_t pid)
{
    if (pid > 0)
        waitpid(pid, NULL, __WALL);
}

/* No timer ends the guard from then on, and the witness continues it. */
GUARD_TEST(a_guard_that_is_killing_goes_on)
{
    pid_t pid = start_undying();
    REQUIRE(pid > 0);
    order(G_END, SIGKILL);
    CHECK(death(LATE) != DLOCK_NEVER);
    usleep(1500000);
    /* A late EXTEND with past times does no harm either. */
    send_times(G_EXTEND, 0, 1, 1, 1);
    usleep(100000);
    kill(guard.pid, SIGSTOP);
    let_die(pid);
    CHECK_INT(hear(), G_EXITED);
    CHECK_INT(hear(), G_TREE_EMPTY);
}

GUARD_TEST(a_guard_that_is_killing_goes_on_without_a_keeper)
{
    pid_t pid = start_undying();
    REQUIRE(pid > 0);
    keeper_dies();
    CHECK(death(LATE) != DLOCK_NEVER);
    kill(guard.pid, SIGSTOP);
    let_die(pid);
    CHECK_INT(waitpid(guard.witness, NULL, 0), guard.witness);
}

/* A guard whose lock is a pipe; the end that is returned reads EOF when nobody has the lock. */
static int start_with_pipe(void)
{
    int lock[2];
    struct guard_msg m = {
        .type = G_START, .term_at = after(LATE), .raw_minus_boot = raw_minus_boot};
    open_pipe(lock);
    m.kill_at = m.hard_at = m.term_at;
    set_up(SHELL("trap '' TERM; (setsid sh -c 'printf x >&9; sleep 60' &); sleep 60"));
    guard_send(&guard, &m, lock[1]);
    close(lock[1]);
    CHECK_INT(hear(), G_STARTED);
    CHECK(await(1));
    return lock[0];
}

GUARD_TEST(the_witness_kills_the_tree_of_a_killed_guard_and_keeps_the_lock_meanwhile)
{
    int lock = start_with_pipe();
    struct pollfd free_lock = {.fd = lock};
    pid_t pid = last.arg, killed = guard.pid;
    REQUIRE_INT(ptrace(PTRACE_SEIZE, pid, NULL, NULL), 0);
    kill(killed, SIGKILL);
    CHECK_INT(hear(), G_KILLED);
    CHECK_INT(last.arg, killed);
    CHECK_INT(guard.pid, 0);
    CHECK(death(LATE) != DLOCK_NEVER);
    CHECK_INT(poll(&free_lock, 1, 0), 0); /* the command is not reaped */
    let_die(pid);
    ended_by(SIGKILL, 0);
    CHECK_INT(hear(), G_TREE_EMPTY);
    detach();
    CHECK_INT(poll(&free_lock, 1, (int)(LATE / DLOCK_MSEC)), 1);
    close(lock);
}

GUARD_TEST(the_witness_kills_the_tree_without_a_keeper_too)
{
    int lock = start_with_pipe();
    kill(guard.pid, SIGSTOP);
    keeper_dies();
    kill(guard.pid, SIGKILL);
    CHECK(death(LATE) != DLOCK_NEVER);
    CHECK_INT(waitpid(guard.witness, NULL, 0), guard.witness);
    close(lock);
}

GUARD_TEST(a_stopped_witness_does_not_keep_the_guard_from_its_work)
{
    start_stubborn(after(LATE), after(LATE), after(LATE));
    kill(guard.witness, SIGSTOP);
    keeper_dies();
    CHECK(death(LATE) != DLOCK_NEVER);
    kill(guard.witness, SIGCONT);
    CHECK_INT(waitpid(guard.witness, NULL, 0), guard.witness);
}

static bool goes_first(pid_t pid)
{
    struct sched_param param;
    return sched_getscheduler(pid) == SCHED_FIFO
               ? sched_getparam(pid, &param) == 0 && param.sched_priority == 1
               : getpriority(PRIO_PROCESS, (id_t)pid) == -20;
}

/* Where they are many, and only there. */
GUARD_TEST(a_guard_goes_before_the_processes_that_it_kills)
{
    if (geteuid() != 0)
        SKIP("needs the right to a higher priority");
    for (int n = 10; n <= 100; n += 90) {
        char script[100];
        snprintf(script, sizeof(script),
                 "for i in $(seq %d); do sleep 60 & done; printf x >&9; wait", n);
        start(SHELL(script));
        REQUIRE(await(1));
        pid_t pid = last.arg;
        CHECK_INT(ptrace(PTRACE_SEIZE, pid, NULL, NULL), 0);
        order(G_END, SIGKILL);
        CHECK(death(LATE) != DLOCK_NEVER);
        /* The guard counts them when all have died. */
        for (int64_t until = after(LATE); goes_first(guard.pid) != (n > 64) && dlock_now() < until;)
            usleep(1000);
        CHECK_INT(goes_first(guard.pid), n > 64);
        CHECK(!goes_first(pid));
        let_die(pid);
        CHECK_INT(hear(), G_EXITED);
        CHECK_INT(hear(), G_TREE_EMPTY);
        if (n == 10)
            clean_up();
    }
}

GUARD_TEST(reports_that_proc_shows_nothing)
{
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        SKIP("needs the right to mount");
    REQUIRE(start_stubborn(after(LATE), after(LATE), after(LATE)));
    REQUIRE_INT(mount("none", "/proc", "tmpfs", 0, NULL), 0);
    int64_t from = dlock_now();
    order(G_END, SIGKILL);
    CHECK_INT(hear(), G_EXITED);
    CHECK_INT(hear(), G_STUCK);
    CHECK_INT(last.arg, 0);
    int64_t at = dlock_now();
    CHECK_INT(umount("/proc"), 0);
    in_window(at, from + DLOCK_SEC, 4 * SOON);
    CHECK_INT(hear(), G_TREE_EMPTY);
    CHECK(death(LATE) != DLOCK_NEVER);
}

/* ----------------------------------------------------------------- orders --- */

GUARD_TEST(an_end_by_term_lasts_no_longer_than_the_lease)
{
    int64_t kill_at = after(2 * DLOCK_SEC);
    REQUIRE(start_stubborn(kill_at - 500 * DLOCK_MSEC, kill_at, kill_at + DLOCK_SEC));
    send_times(G_END, SIGTERM, DLOCK_NEVER, after(LATE), DLOCK_NEVER);
    /* An extension that comes after term_at ends nothing and saves no process. */
    while (dlock_now() < kill_at - 250 * DLOCK_MSEC)
        usleep(1000);
    send_times(G_EXTEND, 0, after(LATE), after(LATE), kill_at + DLOCK_SEC);
    in_window(death(LATE), kill_at, SOON);
    heard_flags(G_EXITED, GUARD_TIMED_OUT);
}

GUARD_TEST(reports_when_the_background_is_gone)
{
    start(SHELL("sleep 0.2 & exit 0"));
    CHECK_INT(hear(), G_EXITED);
    CHECK(alive());
    CHECK_INT(hear(), G_TREE_EMPTY);
    CHECK(!alive());
}

/* It says which signals it gets. */
#define TELLING                                                                                    \
    SHELL("trap 'printf U >&9' USR1; trap 'printf T >&9' TERM; printf x >&9; "                     \
          "while :; do sleep 0.01; done")

static void start_telling(void)
{
    set_up(TELLING);
    order(G_START, 0);
    CHECK(await(1));
}

GUARD_TEST(a_signal_that_waits_does_not_delay_the_end)
{
    char got;
    start_telling();
    int64_t from = dlock_now();
    signal_command(SIGUSR1);
    keeper_dies();
    in_window(death(LATE), from, FORWARD_WAIT / 2);
    CHECK_INT(read(say_fd, &got, 1), 0);
}

/* Each process that gets USR1 writes a letter. */
#define TELLS_USR1                                                                                 \
    "exec 2>/dev/null; trap 'printf U >&9' USR1; printf x >&9; while :; do sleep 0.01; done"

/* The number of the group that it left is not ours any more. */
GUARD_TEST(a_command_that_left_its_group_gets_the_signals_alone)
{
    char c;
    set_up((char *const[]){"/bin/sh", "-c", "sh -c \"$0\" & exec setsid sh -c \"$0\"", TELLS_USR1,
                           NULL});
    order(G_START, 0);
    CHECK(await(2));
    signal_command(SIGUSR1);
    CHECK(await(1));
    signal_command(SIGKILL);
    CHECK_INT(hear(), G_STARTED);
    CHECK_INT(hear(), G_EXITED);
    CHECK_INT(fcntl(say_fd, F_SETFL, O_NONBLOCK), 0);
    CHECK_INT(read(say_fd, &c, 1), -1);
    CHECK(alive());
}

/* A keeper that reads nothing for a long time loses STOPPED, but not EXITED and TREE_EMPTY. */
GUARD_TEST(a_full_socket_does_not_lose_the_end)
{
    int stops = 0, type = 0, before;
    start(SHELL("exec sleep 60"));
    pid_t pid = last.arg;
    for (int i = 0; i < 1000; i++) {
        kill(pid, SIGSTOP);
        usleep(300);
        kill(pid, SIGCONT);
    }
    kill(pid, SIGKILL);
    usleep(20000);
    do {
        before = type;
        type = hear();
        stops += type == G_STOPPED;
    } while (type > 0 && type != G_TREE_EMPTY);
    CHECK_INT(before, G_EXITED);
    CHECK_INT(type, G_TREE_EMPTY);
    CHECK(stops > 0 && stops < 1000);
}

/* ------------------------------------------------------ signals and spawn --- */

TEST(forwards_signals_not_sent_by_the_terminal)
{
    struct signalfd_siginfo key = {.ssi_signo = SIGINT, .ssi_code = SI_KERNEL};
    struct signalfd_siginfo sent = {.ssi_signo = SIGINT, .ssi_code = SI_USER};
    struct signalfd_siginfo own = {.ssi_signo = SIGPIPE, .ssi_pid = (uint32_t)getpid()};
    struct signalfd_siginfo timer = {.ssi_signo = SIGALRM, .ssi_code = SI_KERNEL};
    struct command ours = {.terminal = true}, other = {.terminal = false};
    CHECK(!sigismember(&sig.ours, SIGSEGV) && sigismember(&sig.ours, SIGRTMIN + 1));
    CHECK_INT(command_signal(&ours, &key), 0);
    CHECK_INT(ours.terminal_sig, SIGINT);
    CHECK_INT(command_signal(&other, &key), SIGINT);
    CHECK_INT(command_signal(&ours, &sent), SIGINT);
    CHECK_INT(command_signal(&ours, &timer), SIGALRM);
    CHECK_INT(command_signal(&other, &own), 0);
}

TEST(forks_nothing_too_late_or_without_a_keeper)
{
    int ends[2], exec_fd;
    struct spawn sp = {.argv = SHELL("exit 0"), .sig = &sig, .inherit_fd = -1};
    struct spawn_child none = {.pid = 0};
    REQUIRE_INT(pipe2(ends, O_CLOEXEC), 0);
    sp.keeper_fd = ends[1];
    sp.grant.not_after = dlock_now();
    CHECK_INT(spawn_command(&none, &sp, &exec_fd), -SPAWN_TOO_LATE);
    sp.grant.not_after = DLOCK_NEVER;
    close(ends[0]);
    CHECK_INT(spawn_command(&none, &sp, &exec_fd), -SPAWN_KEEPER_GONE);
    close(ends[1]);
    CHECK_INT(process_tree_count(), 0);
}

TEST(gives_back_the_stack_that_earlier_calls_have_used)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t frame = (uintptr_t)__builtin_frame_address(0) & ~(page - 1);
    volatile char *used = (volatile char *)(frame - 8 * page);
    unsigned char resident = 0;
    *used = 1;
    CHECK_INT(mincore((void *)(uintptr_t)used, page, &resident), 0);
    CHECK_INT(resident & 1, 1);
    memory_let_go();
    CHECK_INT(mincore((void *)(uintptr_t)used, page, &resident), 0);
    CHECK_INT(resident & 1, 0);
    CHECK_INT(*used, 0);
}

int main(int argc, char **argv)
{
    if (signals_init(&sig) != 0 || process_tree_init() != 0)
        return 1;
    /* Unlike the keeper, a test that hangs must die by a signal. */
    sigprocmask(SIG_SETMASK, &sig.caller_mask, NULL);
    alarm(120);
    return unit_main(argc, argv);
}
