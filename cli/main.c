/* main.c - dlock: run a command under a lock. See dlock(1). */
#include "backend.h"
#include "messages.h"
#include "modes.h"
#include "spawn.h"
#include "util.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <unistd.h>

#ifndef DLOCK_BUILD_ID
#define DLOCK_BUILD_ID DLOCK_VERSION
#endif

/* The exit waits this long for a slow reader of the messages; no lock is held any more. */
#define LAST_FLUSH_MS 200

static int print_mode(const struct options *o, const struct sigstate *sig)
{
    const char *name, *note;
    (void)sig;
    if (o->mode == MODE_HELP) {
        options_usage(stdout);
    } else if (o->mode == MODE_PRINT_OPTIONS) {
        options_print_table(stdout);
    } else {
        printf("dlock %s\nbackends:", DLOCK_BUILD_ID);
        for (int i = 0; (name = dlock_registry_name(i, &note)); i++)
            printf(" %s%s%s%s", name, note ? " (" : "", note ? note : "", note ? ")" : "");
        putchar('\n');
    }
    return 0;
}

static int (*const modes[])(const struct options *, const struct sigstate *) = {
    [MODE_RUN] = run_mode,           [MODE_FD] = fdlock_mode,     [MODE_UNLOCK] = fdlock_mode,
    [MODE_STATUS] = status_mode,     [MODE_SCHEMA] = schema_mode, [MODE_FORGET] = forget_mode,
    [MODE_HELP] = print_mode,        [MODE_VERSION] = print_mode, [MODE_PRINT_OPTIONS] = print_mode,
    [MODE_PRINT_NAMES] = names_mode, [MODE_HELD] = held_mode,     [MODE_LIST] = list_mode,
    [MODE_BREAK] = break_mode,       [MODE_CHECK] = check_mode,
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

int main(int argc, char **argv)
{
    struct options o;
    struct sigstate sig;
    struct dlock_error err;
    int rc = fds_plug();
    if (rc == 0)
        rc = signals_init(&sig);
    if (rc < 0) {
        message("cannot set up descriptors and signals: %s", strerror(-rc));
        return dlock_error_exit(DLOCK_EOS);
    }
    if (getauxval(AT_SECURE)) {
        message("refusing to run with another user's rights (setuid, setgid or capabilities)");
        return dlock_error_exit(DLOCK_EPERM);
    }
    /* The keeper knows passwords: no core, no ptrace. A sanitizer's leak checker needs ptrace. */
    if (!SANITIZED)
        prctl(PR_SET_DUMPABLE, 0);
#ifdef M_ARENA_MAX
    /* A heap for each thread of a store's library costs more than the threads could win by it. */
    mallopt(M_ARENA_MAX, 1);
#endif
    if (options_parse(&o, argc, argv, &err) < 0) {
        message("%s", err.msg);
        return dlock_error_exit(err.code);
    }
    int code = modes[o.mode](&o, &sig);
    /* A full disk must not look like success. */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        message("cannot write to standard output: %m");
        code = dlock_error_exit(DLOCK_EOS);
    }
    options_done(&o);
    message_flush(LAST_FLUSH_MS);
    /*
     * Without the libraries' exit handlers: GnuTLS, behind libpq, has one that ends the process
     * with 127 when memory is short, and the thread of an abandoned look-up may still use state
     * that exit handlers destroy. Sanitizers report in theirs.
     */
    if (!SANITIZED)
        _exit(code);
    return code;
}
