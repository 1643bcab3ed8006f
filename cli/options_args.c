/*
 * options_args.c - what follows the options: LOCK and its command, or a descriptor. LOCK may hold a password:
 * nothing of it stays in argv.
 */
#include "options_table.h"
#include "uri.h"
#include "util.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define LOCK_MAX 4096

static int take_lock(struct options *o, char *arg, struct dlock_error *err)
{
    size_t len = strlen(arg);

    if (len == 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "the lock's name is empty (an unset variable?)");
    if (len <= LOCK_MAX)
        o->lock = strdup(arg);
    dlock_uri_blank_secrets(arg);
    if (len > LOCK_MAX)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "the lock's name is longer than %d bytes",
                          LOCK_MAX);
    return o->lock ? 0 : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

/* The command as given, or the shell's -c with one string. rest: all that follows LOCK. */
static int take_command(struct options *o, char **rest, int n, struct dlock_error *err)
{
    bool by_shell = n > 0 && (strcmp(rest[0], "-c") == 0 || strcmp(rest[0], "--command") == 0);
    char *shell = getenv("SHELL");

    if (by_shell && n != 2)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s needs exactly one argument: the command line",
                          rest[0]);
    if (!by_shell && n > 0 && strcmp(rest[0], "--") == 0) {
        rest++;
        n--;
    }
    if (n == 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "no command to run: dlock [OPTION...] LOCK COMMAND [ARG...]");
    o->command = calloc((size_t)n + 2, sizeof(*o->command));
    if (!o->command)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    if (by_shell) {
        static char sh[] = "/bin/sh", minus_c[] = "-c";

        o->command[0] = shell && *shell ? shell : sh;
        o->command[1] = minus_c;
        o->command[2] = rest[1];
        o->shell_string = rest[1];
    } else {
        memcpy(o->command, rest, (size_t)n * sizeof(*rest));
    }
    return 0;
}

/* The descriptor form: only a number, no command. */
static int take_fd(struct options *o, char **rest, int n, struct dlock_error *err)
{
    if (n > 1)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "-u takes one descriptor number and no command");
    if (!options_is_number(rest[0]))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "-u needs the number of an open descriptor");
    o->fd = options_read_number(rest[0], INT_MAX);
    if (o->fd < 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "\"%.64s\" is not a descriptor number", rest[0]);
    return 0;
}

int options_take_arguments(struct options *o, char **rest, int n, struct dlock_error *err)
{
    int r;

    if (n == 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "no lock named: dlock [OPTION...] LOCK COMMAND [ARG...]");
    if (o->mode == MODE_RUN && n == 1 && options_is_number(rest[0]))
        o->mode = MODE_FD;
    if (o->mode == MODE_FD)
        return take_fd(o, rest, n, err);
    r = take_lock(o, rest[0],
                  err); /* also where it is refused below, so that nothing shows in ps */
    if (r < 0)
        return r;
    if (o->mode == MODE_UNLOCK)
        return take_fd(o, rest, n, err);
    if (o->mode == MODE_RUN)
        return take_command(o, rest + 1, n - 1, err);
    if (n > 1)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s takes a lock and no command",
                          o->mode == MODE_STATUS ? "--status" : "--schema");
    return 0;
}
