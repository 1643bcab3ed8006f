/*
 * run.c - one run from start to exit code: take the lock, run the command, release the lock. Every
 * lease, and file locks with options_need_guard(), run under a guard. Plain file locks run without:
 * the kernel keeps the lock for as long as the command has the descriptor.
 */
#include "backend.h"
#include "command.h"
#include "held.h"
#include "messages.h"
#include "modes.h"
#include "open.h"
#include "util.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Get ready to end all that the command starts. 0, or an exit code after the message. */
static int prepare_tree(struct command *c)
{
    char why[200] = "/proc does not show this process's children: mount /proc";
    bool guarded = !c->local || options_need_guard(c->o);
    int rc = guarded && !process_tree_visible() ? -ENOENT : process_tree_init();
    c->inherited = rc == 1;
    if (rc == 0 || (rc == 1 && guarded))
        return 0;
    if (rc == 1)
        snprintf(why, sizeof(why), "this process had children before ('exec dlock' in a shell?)");
    else if (rc != -ENOENT)
        snprintf(why, sizeof(why), "cannot become the reaper of the command's children: %s",
                 strerror(-rc));
    if (!c->local || options_must_guard(c->o)) {
        message("dlock could not end the command and its descendants%s: %s",
                c->local ? "" : " when the lock is lost", why);
        return dlock_error_exit(DLOCK_EOS);
    }
    /* A file lock cannot be lost: the command runs as under flock(1). */
    c->alone = true;
    if (message_tells(c->o, ABOUT_DETAIL))
        message("signals go to the command only, and its descendants will not be ended: %s", why);
    return 0;
}

/* Check what must be right before anything is started. 0, or an exit code after the message. */
static int prepare(struct command *c)
{
    const struct options *o = c->o;
    char path[PATH_MAX];
    if (o->no_fork && !c->local) {
        message("--no-fork is for file locks: a lease needs a process that renews it");
        return dlock_error_exit(DLOCK_EUSAGE);
    }
    if (o->fcntl && !c->local) {
        message("--fcntl is for file locks");
        return dlock_error_exit(DLOCK_EUSAGE);
    }
    if (!c->local && access("/dev/null", R_OK | W_OK) != 0) {
        message("cannot use /dev/null, which a lease needs: %s", strerror(errno));
        return dlock_error_exit(DLOCK_EOS);
    }
    /* A command that changes to another user (sudo) can be neither signalled nor killed by us. */
    if (!c->local && message_tells(o, ABOUT_DETAIL) && geteuid() != 0 &&
        command_find(o->command[0], path) & (S_ISUID | S_ISGID))
        message("'%s' changes its user: dlock cannot end it when the lock is lost; "
                "run dlock itself that way instead ('sudo dlock ...')",
                o->command[0]);
    c->terminal = terminal_open(&c->tty);
    return o->no_fork ? 0 : prepare_tree(c);
}

/*
 * Note the lock's key for dlocks below and above this process. The file of a file lock may be
 * missing: then the key is known once the lock is granted.
 */
static void find_outer(struct command *c, int i, const struct dlock_uri *uri)
{
    struct command_lock *l = &c->lock[i];
    l->key = open_key(uri, c->o->fcntl);
    bool found = l->key && held_above(getenv("DLOCK_HELD"), nested_digest(l->key), &l->outer);
    /*
     * sudo, su -l and env -i remove DLOCK_HELD: a waiter looks for the holder above itself, once
     * the wait has lasted for a second.
     */
    c->may_be_own |= found || (!c->o->nonblock && c->o->wait_ns > DLOCK_SEC);
    if (!found || c->o->no_fork || c->o->no_reentrant || strcmp(l->outer.socket, "-") == 0)
        return;
    c->nested = l->nested = true;
    l->outer.key = l->key;
}

static int run(struct command *c)
{
    dlock *held = NULL;
    struct dlock_uri *uris[DLOCK_SET_MAX] = {NULL};
    int code = open_uris(c->o, uris);
    if (code == 0) {
        open_tell_names(c->o, uris);
        /*
         * Known before the store's module is loaded: the guard of a lease is forked before that.
         * Several locks are held as a lease is, even if all of them are files.
         */
        c->local = c->o->nalso == 0 && dlock_registry_hold(uris[0]->scheme) & CAP_FD;
        for (int i = 0; i <= c->o->nalso; i++)
            find_outer(c, i, uris[i]);
        code = prepare(c);
    }
    if (code == 0)
        code = keeper_run(c, uris, &held);
    for (int i = 0; i < DLOCK_SET_MAX; i++)
        dlock_uri_free(uris[i]);
    if (!held)
        return code;
    /* The terminal may have hung up during the wait, as under nohup. */
    c->terminal = c->terminal && tcgetpgrp(c->tty.fd) >= 0;
    return direct_run(c, held);
}

/*
 * Open the place of --events or of its default DLOCK_EVENTS. The command gets this variable with a
 * file, as it gets the other defaults, but not with a descriptor, which is closed to the command: a
 * dlock below would fail, or write into another file.
 */
static int open_events(struct command *c, struct dlock_error *err)
{
    const char *where = c->o->events;
    bool by_default = where && where == getenv("DLOCK_EVENTS");
    bool is_fd = where && where[strspn(where, "0123456789")] == '\0';
    struct dlock_error why;
    if (by_default && !is_fd && dlock_env_is_foreign())
        return dlock_fail(err, DLOCK_EPERM, 0,
                          "DLOCK_EVENTS names a file and was set by a user with fewer rights "
                          "(sudo): use --events");
    int rc = events_open(&c->events, where, c->o->syslog, &why);
    if (rc < 0)
        return dlock_fail(err, rc, why.sys, "%s%s", why.msg, by_default ? " (DLOCK_EVENTS)" : "");
    if (by_default && is_fd)
        unsetenv("DLOCK_EVENTS");
    return 0;
}

int run_mode(const struct options *o, const struct sigstate *sig)
{
    static struct command c; /* not on the stack: most of its pages are never used */
    struct dlock_error err;
    c.o = o;
    c.sig = sig;
    if (open_events(&c, &err) < 0)
        return message_error(o, &err);
    int code = run(&c);
    for (int i = 0; i < DLOCK_SET_MAX; i++)
        free(c.lock[i].key);
    /* A failure before the wait. Later failures have been told. */
    events_end(c.events,
               &(struct events_end){
                   .outcome = EVENTS_ERROR, .status = -1, .code = code, .reason = message_last()},
               dlock_now());
    events_close(c.events);
    return code;
}
