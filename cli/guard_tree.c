/*
 * guard_tree.c - the end of the command and of its tree: who is asked, who is killed, who is reaped, and who
 * does not die. How descendants are found is process_tree.c's.
 */
#include "guard_state.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define KILL_PAUSE_MIN DLOCK_MSEC
#define KILL_PAUSE_MAX (100 * DLOCK_MSEC)
#define STUCK_AFTER                                                                                \
    DLOCK_SEC /* SIGKILL sent and accepted, yet still there: uninterruptible sleep */
#define KILL_PASSES 256

static const struct tree nobody_spared;

void guard_begin_kill(struct guard_state *g)
{
    if (g->phase != PHASE_RUN && g->phase != PHASE_TERM)
        return;
    g->phase = PHASE_KILL;
    g->kill_since = g->seen_at = dlock_now();
    g->kill_pause = KILL_PAUSE_MIN;
}

void guard_begin_term(struct guard_state *g)
{
    if (g->phase != PHASE_RUN)
        return;
    if (dlock_now() >= guard_kill_time(g)) {
        guard_begin_kill(g);
        return;
    }
    g->phase = PHASE_TERM;
    if (tree_signal(&nobody_spared, SIGTERM, NULL) < 0 && g->command > 0) {
        kill(g->command, SIGTERM);
        kill(g->command, SIGCONT);
    }
}

/* EOF: exec has replaced the child. An int: why it could not. */
void guard_check_exec(struct guard_state *g)
{
    int why = 0;
    ssize_t n;

    if (g->exec_fd < 0)
        return;
    n = read(g->exec_fd, &why, sizeof why);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    close(g->exec_fd);
    g->exec_fd = -1;
    g->exec_failed = n == (ssize_t)sizeof why;
    if (g->exec_failed)
        guard_post(g, G_EXEC_FAILED, why);
    else
        guard_post(g, G_STARTED, g->command);
}

static void command_ended(struct guard_state *g, int status)
{
    guard_check_exec(g);
    g->command = 0;
    /* A command that has never been one has no status worth telling. */
    if (!g->exec_failed)
        guard_post(g, G_EXITED, status);
}

/* Take in every dead child, orphans that came to us included. Returns how many. */
int guard_reap(struct guard_state *g)
{
    int status, reaped = 0;
    pid_t pid;

    if (g->phase == PHASE_IDLE || g->phase == PHASE_EMPTY)
        return 0;
    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED | __WALL)) > 0) {
        if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
            if (pid == g->command)
                guard_post(g, G_STOPPED, WIFSTOPPED(status) ? WSTOPSIG(status) : 0);
            continue;
        }
        reaped++;
        if (pid == g->command)
            command_ended(g, status);
    }
    if (pid < 0 && errno == ECHILD) {
        g->phase = PHASE_EMPTY;
        guard_set_hard_timer(g);
        guard_post(g, G_TREE_EMPTY, 0);
    }
    return reaped;
}

static void say_stuck(struct guard_state *g, pid_t pid)
{
    if (!g->stuck_said) {
        g->stuck_said = true;
        guard_post(g, G_STUCK, pid);
    }
}

/* It takes too long: is there one that does not die, or do we not see who is left? */
static void look_who_is_stuck(struct guard_state *g)
{
    int64_t now = dlock_now();
    pid_t pid;

    if (g->stuck_said || now - g->kill_since <= STUCK_AFTER)
        return;
    pid = tree_living(&nobody_spared);
    if (pid > 0 || now - g->seen_at > STUCK_AFTER)
        say_stuck(g, pid);
}

/* One pass of SIGKILL over the tree. */
static void kill_pass(struct guard_state *g)
{
    pid_t refused;

    if (tree_signal(&nobody_spared, SIGKILL, &refused) < 0) {
        /* No /proc to look into: the command itself, and its group while its number is its own. */
        if (g->command > 0 && g->cfg->own_group)
            kill(-g->command, SIGKILL);
        if (g->command > 0)
            kill(g->command, SIGKILL);
        return;
    }
    g->seen_at = dlock_now();
    if (refused > 0)
        say_stuck(g, refused);
}

/* Pass after pass while each finds somebody dead; children of the dead come to us meanwhile. */
void guard_kill_tree(struct guard_state *g)
{
    int reaped = 0;

    for (int i = 0; i < KILL_PASSES && g->phase == PHASE_KILL; i++) {
        kill_pass(g);
        guard_set_hard_timer(g); /* after the first pass: what counts there is speed */
        int n = guard_reap(g);
        reaped += n;
        if (n == 0)
            break;
    }
    if (g->phase != PHASE_KILL)
        return;
    g->kill_pause = reaped ? KILL_PAUSE_MIN : g->kill_pause * 2;
    if (g->kill_pause > KILL_PAUSE_MAX)
        g->kill_pause = KILL_PAUSE_MAX;
    look_who_is_stuck(g);
}

/* --------------------------------------------------------- keeper's side --- */

int guard_sweep(const struct tree *tree, pid_t *unkillable)
{
    int left = tree_count(tree), before;

    if (unkillable)
        *unkillable = 0;
    for (int i = 0; i < KILL_PASSES && left > 0; i++) {
        before = left;
        tree_signal(tree, SIGKILL, unkillable);
        tree_reap(tree, 0, NULL);
        left = tree_count(tree);
        if (left == before)
            break;
    }
    return left;
}
