/*
 * kinds DIR OP KIND N HOLD_MS [alone|also...]: the command of the model test (kinds.py). The kernel
 * says whether it may be inside: every descendant keeps these flocks, and a grandchild in a session
 * of its own ignores TERM (alone: there is none).
 *
 *     together   shared for KIND s (shared) and n (one of N slots), exclusive for x (a writer)
 *     seat.K     one of N, the first free one
 *     number.K   K is DLOCK_SLOT
 *     width.N    shared; another N may not be in use
 *     second     exclusive, for those that have a second lock (also)
 *     door       held while several files are looked at
 *
 * DIR/history gets "TIME_NS enter OP SLOT FENCE FENCE_2", "TIME_NS refused OP FILE PID" for each
 * flock that another holder has, and "TIME_NS exit OP", each in one write.
 */
#include "tree.h"

#include <inttypes.h>
#include <string.h>

#define MOST_SLOTS 8

static const char *op;
static long inside; /* who has the file that was refused last */

static void tell(const char *what, const char *more, const char *most)
{
    char line[128];
    int n =
        snprintf(line, sizeof line, "%" PRId64 " %s %s %s %s\n", now_ns(), what, op, more, most);
    int fd = open("history", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || n >= (int)sizeof line || write(fd, line, (size_t)n) != n)
        _exit(99);
    close(fd);
}

/* The descriptor of the file NAME, or NAME.K; -1: another process has it. */
static int take(const char *name, long k, int how)
{
    char file[32];
    snprintf(file, sizeof file, k < 0 ? "%s" : "%s.%ld", name, k);
    int fd = open(file, O_RDWR | O_CREAT, 0666);
    if (fd < 0)
        _exit(99);
    if (how & LOCK_NB ? lock_witness(fd, how, &inside) : flock(fd, how) == 0)
        return freed_first(fd);
    close(fd);
    return -1;
}

static bool refused(const char *what)
{
    char who[32];
    snprintf(who, sizeof who, "%ld", inside);
    tell("refused", what, who);
    return true;
}

/* Behind the door: those outside may leave, but none takes what this one looks at. */
static bool slot_is_taken(long slots, const char *number)
{
    bool bad = false;
    long k = 0;
    while (k < slots && take("seat", k, LOCK_EX | LOCK_NB) < 0)
        k++;
    if (k == slots)
        bad = refused("seat");
    if (number && take("number", atol(number), LOCK_EX | LOCK_NB) < 0)
        bad = refused("number");
    for (k = 1; k <= MOST_SLOTS; k++) {
        int fd = take("width", k, (k == slots ? LOCK_SH : LOCK_EX) | LOCK_NB);
        if (fd < 0)
            bad = refused("width");
        else if (k != slots)
            close(fd);
    }
    return bad;
}

static bool has_word(char **words, const char *word)
{
    while (*words && strcmp(*words, word) != 0)
        words++;
    return *words;
}

int main(int argc, char **argv)
{
    if (argc < 6 || chdir(argv[1]) != 0)
        return 98;
    op = argv[2];
    char kind = argv[3][0], byte, fences[64];
    bool alone = has_word(argv + 6, "alone"), also = has_word(argv + 6, "also");
    const char *fence = getenv("DLOCK_FENCE"), *number = getenv("DLOCK_SLOT");
    const char *second = also ? getenv("DLOCK_FENCE_2") : NULL;
    snprintf(fences, sizeof fences, "%s %s", fence ? fence : "0", second ? second : "0");
    int door = take("door", -1, LOCK_EX);
    tell("enter", number ? number : "-", fences);
    bool bad = take("together", -1, (kind == 'x' ? LOCK_EX : LOCK_SH) | LOCK_NB) < 0 &&
               refused("together");
    if (also && take("second", -1, LOCK_EX | LOCK_NB) < 0)
        bad = refused("second");
    if (kind == 'n' && slot_is_taken(atol(argv[4]), number))
        bad = true;
    close(door);
    if (bad)
        return 97;
    int64_t until = now_ns() + (int64_t)atol(argv[5]) * 1000000;
    int tree = alone ? -1 : grow_tree(until);
    sleep_until(until);
    while (tree >= 0 && read(tree, &byte, 1) != 0)
        ;
    tell("exit", "", "");
    return 0;
}
