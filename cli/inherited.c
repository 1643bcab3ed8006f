/*
 * inherited.c - whose is a child, where we were executed with children that are none of ours: by the
 * marker in its environment (struct tree), and by memory.
 */
#include "proc.h"

#include <errno.h>
#include <unistd.h>

/* Is marker one of the strings in this environ file? TREE_UNCLEAR: it is empty. */
static enum tree_whose search(int fd, const char *marker)
{
    enum tree_whose whose = TREE_UNCLEAR;
    bool same = true;
    char buf[4096];
    size_t at = 0;
    ssize_t n;

    while ((n = read(fd, buf, sizeof buf)) > 0) {
        whose = TREE_THEIRS;
        for (ssize_t i = 0; i < n; i++) {
            same = same && buf[i] == marker[at];
            if (same && !buf[i])
                return TREE_OURS;
            at = same ? at + 1 : 0;
            if (!buf[i]) { /* the next string starts */
                same = true;
                at = 0;
            }
        }
    }
    return whose;
}

static enum tree_whose whose_task(pid_t pid, pid_t tid, const char *marker)
{
    struct tree_stat st;

    /* Again when it seems to be empty by its own will: an exec may have ended between the two looks. */
    for (int tries = 0; tries < 3; tries++) {
        int fd = tree_open_task(pid, tid, "/environ");
        enum tree_whose whose = fd >= 0 ? search(fd, marker) : TREE_UNCLEAR;
        if (fd >= 0)
            close(fd);
        else if (errno != ESRCH &&
                 (!tree_parse_stat(tree_open_task(pid, tid, "/stat"), &st) || st.mapped))
            return TREE_THEIRS; /* hidden; what the dead had is for root alone, also where they were ours */
        if (whose != TREE_UNCLEAR || !tree_parse_stat(tree_open_task(pid, tid, "/stat"), &st) ||
            !st.memory)
            return whose;
    }
    return TREE_THEIRS;
}

/* Whose is the process? The first of its threads that knows. Arguments and result for tree_each_number. */
static const char *wanted;
static enum tree_whose verdict;

static void ask_task(pid_t tid, pid_t pid)
{
    if (verdict == TREE_UNCLEAR)
        verdict = whose_task(pid, tid, wanted);
}

/*
 * TREE_UNCLEAR is a process that dies or executes a program just now. It must count, as what it has started may
 * become our child only a moment later. Its main thread alone may be dead: the other ones know.
 */
enum tree_whose tree_whose(pid_t pid, const char *marker)
{
    int dir;

    wanted = marker;
    verdict = whose_task(pid, pid, marker);
    if (verdict == TREE_UNCLEAR && (dir = tree_open_proc(pid, "/task")) >= 0) {
        tree_each_number(dir, ask_task, pid);
        close(dir);
    }
    return verdict;
}

/*
 * Once a descendant, always a descendant: whoever was seen in the tree is remembered, since without its
 * parent, with an environment of its own, or dying nobody could tell any more. A number alone may be used
 * again, together with the time of its start it is not.
 */
static struct known {
    pid_t pid;
    long start;
} known[TREE_WORK_MAX];
static int nknown;

bool tree_is_known(pid_t pid)
{
    struct tree_stat st;

    for (int i = 0; i < nknown; i++)
        if (known[i].pid == pid && tree_read_stat(pid, &st) && st.start == known[i].start)
            return true;
    return false;
}

void tree_remember(pid_t pid, long start)
{
    for (int i = 0; i < nknown; i++)
        if (known[i].pid == pid && known[i].start == start)
            return;
    if (nknown < TREE_WORK_MAX)
        known[nknown++] = (struct known){pid, start};
}

void tree_forget_the_dead(void)
{
    struct tree_stat st;
    int kept = 0;

    for (int i = 0; i < nknown; i++)
        if (tree_read_stat(known[i].pid, &st) && st.start == known[i].start)
            known[kept++] = known[i];
    nknown = kept;
}
