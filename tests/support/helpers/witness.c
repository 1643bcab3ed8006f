/*
 * witness DIR HOLD_MS [tree [CODE]]: the command of the exclusion tests, which dlock cannot fool:
 * the kernel says whether another holder is inside (a flock that every descendant keeps), and a
 * counter that is read and, after a sleep, written without a lock must add up.
 *
 * DIR/witness  the flock                DIR/violations  a line for each refusal
 * DIR/counter  the counter              DIR/history     "enter|exit PID FENCE TIME_NS"
 * tree: a grandchild in a session of its own keeps the witness too, and ignores TERM. CODE: the
 * exit code, 0.
 */
#include "tree.h"

#include <inttypes.h>
#include <string.h>

static void append(const char *file, const char *what)
{
    char line[128];
    const char *fence = getenv("DLOCK_FENCE");
    int n = snprintf(line, sizeof line, "%s %d %s %" PRId64 "\n", what, (int)getpid(),
                     fence ? fence : "0", now_ns());
    int fd = open(file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, line, (size_t)n) != n)
        _exit(99);
    close(fd);
}

static long read_counter(void)
{
    char text[32] = "0";
    int fd = open("counter", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (read(fd, text, sizeof text - 1) < 0)
            _exit(99);
        close(fd);
    }
    return atol(text);
}

static void write_counter(long n)
{
    char text[32];
    /* In place and of one length: SIGKILL finds the old number or the new one, never none. */
    int len = snprintf(text, sizeof text, "%020ld\n", n);
    int fd = open("counter", O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || pwrite(fd, text, (size_t)len, 0) != len)
        _exit(99);
    close(fd);
}

int main(int argc, char **argv)
{
    if (argc < 3 || chdir(argv[1]) != 0)
        return 98;
    int64_t start = now_ns(), until = start + (int64_t)atol(argv[2]) * 1000000;
    int fd = open("witness", O_RDWR | O_CREAT, 0666);
    long who = 0;
    if (fd < 0 || !lock_witness(fd, LOCK_EX, &who)) {
        append("violations", "overlap");
        fprintf(stderr, "inside is %ld\n", who);
        return 97;
    }
    freed_first(fd);
    append("history", "enter");
    long n = read_counter();
    int tree = argc > 3 ? grow_tree(until) : -1;
    sleep_until(until);
    char byte;
    while (tree >= 0 && read(tree, &byte, 1) != 0)
        ;
    write_counter(n + 1);
    append("history", "exit");
    return argc > 4 ? atoi(argv[4]) : 0;
}
