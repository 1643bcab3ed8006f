/*
 * break.c - --break: one script marks the hold of the holder that was shown, or frees the lock by
 * force, or does nothing where the lock has changed hands (scripts/break.lua). status.c sends it.
 *
 * A mark stands behind the holder's value, so the key's expiry and the queue are as before, and no
 * other client gets the lock. The holder's renewals and its release know the mark: the holder ends
 * its work, then releases. A dlock that does not know marks finds that its value is gone: a loss.
 */
#include "break.h"

void redis_break_args(const struct dlock_spec *spec, const struct dlock_question *question,
                      struct redis_script_args *args, char by[DLOCK_BREAKER_SIZE])
{
    *args = (struct redis_script_args){.token = question->holder->token,
                                       .by = dlock_breaker(spec->identity, by),
                                       .how = question->force ? "force" : "mark"};
}

int redis_break_foreign(const struct dlock_spec *spec, struct dlock_error *err)
{
    return dlock_fail_lock(err, DLOCK_EUNUSABLE, 0, spec->uri,
                           "another program holds the lock, and no mark reaches it: to free the "
                           "lock beside that program, use --force");
}
