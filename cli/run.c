/*
 * run.c - one run from start to exit code: take the lock, run the command, release the lock. Two
 * ways: under a guard (every lease, and file locks with -o), or directly (plain file locks, which
 * the kernel keeps for as long as the command has the descriptor).
 */
#include "backend.h"
#include "direct.h"
#include "keeper.h"
#include "messages.h"
#include "modes.h"
#include "open.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Find the command as execvp(3) does. False: not found. */
static bool find_command(const char *word, struct stat *st)
{
    const char *path = getenv("PATH");
    char file[PATH_MAX];

    for (const char *end; path; path = *end ? end + 1 : NULL) {
        end = strchrnul(path, ':');
        if (strchr(word, '/'))
            snprintf(file, sizeof(file), "%s", word);
        else
            snprintf(file, sizeof(file), "%.*s/%s", (int)(end - path), path, word);
        if (access(file, X_OK) == 0 && stat(file, st) == 0 && S_ISREG(st->st_mode))
            return true;
    }
    return false;
}

/*
 * With -v: a command that changes to another user (sudo) can neither be signalled nor killed by us
 * afterwards. Say so before it matters.
 */
static void warn_setuid(const struct options *o)
{
    const char *word = o->command[0];
    struct stat st;

    if (!o->verbose || geteuid() == 0 || !find_command(word, &st))
        return;
    if (st.st_mode & (S_ISUID | S_ISGID))
        message(
            "'%s' changes its user: dlock cannot end it when the lock is lost; run dlock itself that way instead ('sudo dlock ...')",
            word);
}

/* Is there a controlling terminal? */
static bool has_terminal(void)
{
    int fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);

    if (fd < 0)
        return false;
    close(fd);
    return true;
}

/* Why what the command leaves behind cannot be ended. rc: of process_tree_init. */
static const char *why_alone(int rc, char *buf, size_t size)
{
    if (rc == -ENOENT)
        return "/proc does not show this process's children: mount /proc";
    if (rc == -E2BIG)
        snprintf(buf, size,
                 "this process had more than %d children before ('exec dlock' in a shell?): "
                 "run dlock in a process of its own",
                 PROCESS_TREE_INHERITED_MAX);
    else
        snprintf(buf, size, "cannot become the reaper of the command's children: %s",
                 strerror(-rc));
    return buf;
}

/* Get ready to end all that the command starts. 0, or an exit code after the message. */
static int prepare_tree(struct command *c)
{
    char why[200];
    bool guarded = !c->local || c->o->close_fd;
    int rc = guarded && !process_tree_visible() ? -ENOENT : process_tree_init(&c->tree);

    if (rc == 0)
        return 0;
    if (!c->local) {
        message("the command and what it starts could not be ended when the lock is lost: %s",
                why_alone(rc, why, sizeof(why)));
        return dlock_error_exit(DLOCK_EOS);
    }
    /* A file lock cannot be lost: then it is as with flock(1). */
    c->alone = true;
    if (c->o->verbose)
        message("signals go to the command only, and nothing that it starts will be ended: %s",
                why_alone(rc, why, sizeof(why)));
    return 0;
}

/* What must be right before anything is started. 0, or an exit code after the message. */
static int prepare(struct command *c)
{
    const struct options *o = c->o;

    if (o->no_fork && !c->local) {
        message("--no-fork is for file locks: a lease needs a process that renews it");
        return dlock_error_exit(DLOCK_EUSAGE);
    }
    if (!c->local && access("/dev/null", R_OK | W_OK) != 0) {
        message("cannot use /dev/null, which a lease needs: %s", strerror(errno));
        return dlock_error_exit(DLOCK_EOS);
    }
    if (!c->local)
        warn_setuid(o);
    c->terminal = has_terminal();
    return o->no_fork ? 0 : prepare_tree(c);
}

int run_mode(const struct options *o, const struct sigstate *sig)
{
    struct command c = {.o = o, .sig = sig};
    dlock *held = NULL;
    int code = 0;
    struct dlock_uri *uri = open_uri(o, &code);

    if (!uri)
        return code;
    /* Known before the store's module is loaded: the guard of a lease is forked before that. */
    c.local = dlock_registry_hold(uri->scheme) & CAP_FD;
    code = prepare(&c);
    if (code == 0)
        code = keeper_run(&c, &uri, &held);
    dlock_uri_free(uri);
    if (!held)
        return code;
    c.terminal = has_terminal(); /* it may have hung up during the wait, as under nohup */
    return direct_run(&c, held);
}
