/*
 * forget.c - --forget LOCK: remove the record of --once, unless it has changed since it was shown.
 */
#include "messages.h"
#include "modes.h"
#include "query.h"
#include "util.h"

#include <stdio.h>
#include <string.h>

static int refuse_running(const struct options *o, const dlock *lk, const struct dlock_run *run)
{
    char lock[LOCK_TEXT_MAX], text[RUN_TEXT_MAX];
    if (message_tells(o, ABOUT_TIMEOUT))
        message("cannot forget: the run is still in progress: %s %s", message_lock(lk, "", lock),
                message_run(run, false, text, sizeof(text)));
    return o->conflict_code;
}

/*
 * Where the status had no record, forget the record of a token that no run has: the store then
 * reports foreign data in the record's place, or a run that has begun meanwhile.
 */
static int forget(const struct options *o, const struct sigstate *sig, dlock *lk,
                  const struct found *shown)
{
    const char *token = shown->has_run ? shown->run.token : "00000000000000000000000000000000";
    char lock[LOCK_TEXT_MAX], text[RUN_TEXT_MAX];
    const struct dlock_info *held = query_holder(shown);
    struct found f = {0};
    struct dlock_error err;
    if (dlock_start_forget(lk, token, &err) < 0) /* dlock has not written this record */
        return message_error(o, &err);
    int code = query_run(o, sig, lk, &f);
    if (!shown->has_run && code < 0 && message_tells(o, ABOUT_TIMEOUT))
        message("%s has no record of a run%s%s", message_lock(lk, "", lock),
                held ? "; the lock is " : "", held ? message_holder(held, text, sizeof(text)) : "");
    else if (shown->has_run && f.busy)
        refuse_running(o, lk, &shown->run);
    else if (shown->has_run && code < 0 && message_tells(o, ABOUT_HELD))
        message("forgotten: %s %s", message_lock(lk, "", lock),
                message_run(&shown->run, shown->crashed, text, sizeof(text)));
    query_free(&f);
    return code < 0 ? 0 : code;
}

int forget_mode(const struct options *o, const struct sigstate *sig)
{
    char lock[LOCK_TEXT_MAX], text[RUN_TEXT_MAX];
    struct found f = {0};
    int code = 0;
    dlock *lk = query_first(o, sig, "--forget", &f, &code);
    if (!lk)
        return code;
    if (code < 0 && f.has_run && f.run.state == DLOCK_RUN_RUNNING && !f.crashed) {
        code = refuse_running(o, lk, &f.run);
    } else if (code < 0 && f.has_run && !o->yes) {
        message("%s %s", message_lock(lk, "", lock),
                message_run(&f.run, f.crashed, text, sizeof(text)));
        if (!query_agreed(sig, "Forget it, so that the command may run again? [y/N] "))
            code = QUERY_REFUSED;
        /* Servers close a connection that is idle for long. */
        dlock_close(lk);
        lk = code < 0 ? query_open(o, &code) : NULL;
    }
    if (code < 0)
        code = forget(o, sig, lk, &f);
    query_free(&f);
    dlock_close(lk);
    return code;
}
