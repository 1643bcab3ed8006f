/* forget.c - --forget LOCK: remove the record of --once, if it is still the one that is shown. */
#include "messages.h"
#include "modes.h"
#include "query.h"
#include "util.h"

#include <stdio.h>
#include <unistd.h>

/* Does the user want it? Asks at a terminal. */
static bool agreed(void)
{
    char line[16];

    fputs("Forget it, so that the command may run again? [y/N] ", stderr);
    fflush(stderr);
    return fgets(line, sizeof(line), stdin) && (line[0] == 'y' || line[0] == 'Y');
}

static int forget(const struct options *o, const struct sigstate *sig, dlock *lk,
                  const struct found *shown)
{
    struct found f = {0};
    int code;

    dlock_start_forget(lk, shown->run.token);
    code = query_run(o, sig, lk, &f);
    query_free(&f);
    if (code == dlock_error_exit(DLOCK_EBUSY) && !o->quiet)
        message("'%s' (%s) is running", dlock_name(lk), dlock_where(lk));
    return code < 0 ? 0 : code;
}

int forget_mode(const struct options *o, const struct sigstate *sig)
{
    struct found f = {0};
    char text[1400];
    int code = 0;
    dlock *lk = query_open(o, &code);

    if (!lk)
        return code;
    dlock_start_status(lk);
    code = query_run(o, sig, lk, &f);
    if (code < 0) {
        code = 0;
        if (f.has_run)
            printf("'%s' (%s) %s\n", dlock_name(lk), dlock_where(lk),
                   message_run(&f.run, text, sizeof(text)));
        else
            printf("'%s' (%s) has no record\n", dlock_name(lk), dlock_where(lk));
        fflush(stdout);
        if (f.has_run && (o->yes || agreed()))
            code = forget(o, sig, lk, &f);
    }
    query_free(&f);
    dlock_close(lk);
    return code;
}
