/*
 * Whole lines to a descriptor or a file, without waiting (cli/sink.c).
 * tags: thread
 */
#include "sink.h"
#include "unit.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

/* Of the test that runs, or of the last test. */
static struct sink *s;
static int p[2] = {-1, -1}; /* a pipe, or a pair of sockets; the sink has the second */

static bool open_sink(const char *at)
{
    struct dlock_error err = {0};
    sink_close(s);
    s = NULL;
    return CHECK_INT(sink_open(&s, at, &err), 0) || unit_fail(UNIT_AT, "%s", err.msg);
}

static bool open_fd(int fd)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", fd);
    return open_sink(text);
}

/* A sink on a new pipe of one page. */
static bool begin(void)
{
    close(p[0]);
    return pipe(p) == 0 && fcntl(p[0], F_SETFL, O_NONBLOCK) == 0 &&
           CHECK_INT(fcntl(p[1], F_SETPIPE_SZ, 4096), 4096) && open_fd(p[1]);
}

/* A line of size bytes that begins with a number. */
static void put_line(int number, size_t size, bool last)
{
    char line[SINK_LINE];
    memset(line, '.', size);
    line[snprintf(line, sizeof(line), "%d", number)] = ' ';
    line[size - 1] = '\n';
    sink_put(s, line, size, last);
}

/* Take all that is in a pipe; how many lines, each with the next number from *number on. */
static int read_lines(int fd, int *number)
{
    static char buf[1 << 20];
    int lines = 0;
    ssize_t n;
    size_t all = 0;
    while (all < sizeof(buf) - 1 && (n = read(fd, buf + all, sizeof(buf) - 1 - all)) > 0)
        all += (size_t)n;
    buf[all] = '\0';
    for (char *at = buf, *end; *at; at = end + 1) {
        end = strchr(at, '\n');
        if (!CHECK(end != NULL))
            break;
        CHECK_INT(atoi(at), *number);
        ++*number;
        lines++;
    }
    return lines;
}

TEST(a_slow_reader_loses_no_line_until_too_much_is_kept_and_then_the_newest)
{
    int number = 0, i;
    REQUIRE(begin());
    int64_t start = dlock_now();
    for (i = 0; i < 20; i++)
        put_line(i, 1000, false);
    CHECK(dlock_now() - start < unit_bound(DLOCK_SEC));
    /* Four in the pipe, four kept, one place for the last line. */
    CHECK_INT(sink_dropped(s), 12);
    struct pollfd pfd;
    CHECK_INT(sink_interest(s, &pfd), 1);
    CHECK_INT(poll(&pfd, 1, 0), 0);
    put_line(8, SINK_LINE, true);
    CHECK_INT(sink_dropped(s), 12);
    CHECK_INT(read_lines(p[0], &number), 4);
    CHECK_INT(poll(&pfd, 1, 0), 1);
    sink_flush(s, 0);
    CHECK_INT(read_lines(p[0], &number), 4);
    sink_flush(s, 0);
    CHECK_INT(read_lines(p[0], &number), 1);
    CHECK_INT(sink_interest(s, &pfd), 0);
}

TEST(a_flush_waits_for_the_reader_but_not_longer_than_it_may)
{
    REQUIRE(begin());
    put_line(1, 4000, false);
    put_line(2, 4000, false);
    int64_t start = dlock_now();
    sink_flush(s, 30);
    int64_t took = dlock_now() - start;
    CHECK(took >= 30 * DLOCK_MSEC && took < unit_bound(DLOCK_SEC));
}

TEST(a_reader_that_is_gone_costs_lines_and_sends_no_signal)
{
    sigset_t mask, pending;
    sigemptyset(&mask);
    sigaddset(&mask, SIGPIPE);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    REQUIRE(begin());
    close(p[0]);
    p[0] = -1;
    put_line(1, 100, false);
    put_line(2, 100, false);
    CHECK_INT(sink_dropped(s), 2);
    struct pollfd pfd;
    CHECK_INT(sink_interest(s, &pfd), 0);
    sigpending(&pending);
    CHECK(!sigismember(&pending, SIGPIPE));
    sigprocmask(SIG_UNBLOCK, &mask, NULL);
}

TEST(a_socket_is_written_without_waiting)
{
    int number = 0, i;
    close(p[0]);
    REQUIRE_INT(socketpair(AF_UNIX, SOCK_STREAM, 0, p), 0);
    fcntl(p[0], F_SETFL, O_NONBLOCK);
    /* Whatever the machine's default is (net.core.wmem_default). */
    CHECK_INT(setsockopt(p[1], SOL_SOCKET, SO_SNDBUF, &(int){65536}, sizeof(int)), 0);
    REQUIRE(open_fd(p[1]));
    for (i = 0; i < 500; i++)
        put_line(i, 1000, false);
    unsigned long dropped = sink_dropped(s);
    CHECK(dropped > 0);
    int got = read_lines(p[0], &number);
    sink_flush(s, 0);
    got += read_lines(p[0], &number);
    CHECK_INT(got + (int)dropped, 500);
}

/* A file whose descriptor is appending, in a directory of its own. */
static int temp_file(char path[64])
{
    snprintf(path, 64, "/tmp/test_sink.XXXXXX");
    return mkstemp(path);
}

TEST(behind_a_line_that_was_cut_the_next_one_begins_on_its_own)
{
    /* The limit of a file's size cuts a write as a full disk may. */
    struct rlimit old, limit;
    char path[64], text[500];
    int fd = temp_file(path);
    REQUIRE(fd >= 0);
    signal(SIGXFSZ, SIG_IGN); /* as signals_init() does */
    getrlimit(RLIMIT_FSIZE, &old);
    REQUIRE(open_sink(path));
    limit = (struct rlimit){250, old.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int i = 0; i < 4; i++)
        put_line(i, 100, false);
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK_INT(sink_dropped(s), 2);
    /* What another has appended stays. */
    CHECK_INT(lseek(fd, 0, SEEK_END), 250);
    CHECK_INT(write(fd, "other", 5), 5);
    put_line(4, 100, false);
    put_line(5, 100, false);
    ssize_t n = pread(fd, text, sizeof(text), 0);
    CHECK_INT(n, 456);
    CHECK(n == 456 && text[199] == '\n' && memcmp(text + 250, "other\n4 .", 9) == 0);
    CHECK(n == 456 && memcmp(text + 355, "\n5 .", 4) == 0);
    close(fd);
    unlink(path);
    signal(SIGXFSZ, SIG_DFL);
}

TEST(a_device_without_room_drops_and_counts)
{
    if (access("/dev/full", W_OK) != 0)
        SKIP("no /dev/full");
    REQUIRE(open_sink("/dev/full"));
    put_line(1, 100, false);
    put_line(2, 100, true);
    CHECK_INT(sink_dropped(s), 2);
}

TEST(a_thread_writes_a_file_and_the_flush_waits_for_it)
{
    char path[64];
    int fd = temp_file(path), number = 0;
    REQUIRE(fd >= 0);
    REQUIRE(open_sink(path));
    put_line(0, 100, false);
    sink_start_thread(s);
    for (int i = 1; i < 200; i++) {
        put_line(i, 100, false);
        sink_flush(s, 5000);
    }
    struct pollfd pfd;
    CHECK_INT(sink_interest(s, &pfd), 0);
    CHECK_INT(sink_dropped(s), 0);
    CHECK_INT(read_lines(fd, &number), 200);
    close(fd);
    unlink(path);
}

TEST(a_thread_writes_where_a_write_may_wait_for_the_reader)
{
    /* The master of a pty has no second open file that could be O_NONBLOCK. */
    static char buf[4096];
    int master = posix_openpt(O_RDWR | O_NOCTTY), i, lines = 0, slave;
    struct termios raw;
    REQUIRE(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    REQUIRE((slave = open(ptsname(master), O_RDWR | O_NOCTTY)) >= 0);
    tcgetattr(slave, &raw);
    cfmakeraw(&raw);
    tcsetattr(slave, TCSANOW, &raw);
    REQUIRE(open_fd(dup(master)));
    sink_start_thread(s);
    struct pollfd pfd;
    for (i = 0; sink_dropped(s) == 0 && i < 1000; i++) {
        put_line(i, 4000, false);
        CHECK_INT(sink_interest(s, &pfd), 0);
        sink_flush(s, 10);
    }
    CHECK(i < 1000);
    /* The thread is amid a write that waits. */
    for (int wanted = i - 1; lines < wanted;) {
        ssize_t n = read(slave, buf, sizeof(buf));
        if (!CHECK(n > 0))
            break;
        for (ssize_t at = 0; at < n; at++)
            lines += buf[at] == '\n';
    }
    sink_flush(s, 5000);
    CHECK_INT(sink_dropped(s), 1);
    close(slave);
    close(master);
}

TEST(a_file_is_made_and_appended_to)
{
    char dir[] = "/tmp/test_sink.XXXXXX", path[64], text[16];
    struct stat st;
    mode_t old = umask(027);
    REQUIRE(mkdtemp(dir) != NULL);
    snprintf(path, sizeof(path), "%s/x", dir);
    /* Two processes that write to it do not mix their lines. */
    struct sink *both[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++)
        REQUIRE_INT(sink_open(&both[i], path, NULL), 0);
    for (int i = 0; i < 3; i++)
        sink_put(both[i % 2], (const char *[]){"a\n", "b\n", "c\n"}[i], 2, true);
    sink_close(both[0]);
    sink_close(both[1]);
    umask(old);
    CHECK_INT(stat(path, &st), 0);
    CHECK_INT(st.st_mode & 0777, 0640);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK_INT(read(fd, text, sizeof(text)), 6);
    CHECK(memcmp(text, "a\nb\nc\n", 6) == 0);
    close(fd);
    unlink(path);
    rmdir(dir);
}

/* tests/system/cli/events.bats has the other refusals. */
TEST(no_descriptor_of_our_own_is_written_to)
{
    struct dlock_error err;
    struct sink *none = NULL;
    char own[16];
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    snprintf(own, sizeof(own), "%d", fd);
    CHECK_INT(sink_open(&none, own, &err), DLOCK_EUSAGE);
    CHECK_HAS(err.msg, "is not open");
    close(fd);
    CHECK_INT(sink_open(&none, "99999999999", &err), DLOCK_EUSAGE);
    CHECK_HAS(err.msg, "is not a descriptor number");
    CHECK_INT(sink_open(&none, "", &err), DLOCK_ECREATE);
    CHECK_HAS(err.msg, "cannot open '' for --events: No such file");
    CHECK_NULL(none);
}

UNIT_MAIN
