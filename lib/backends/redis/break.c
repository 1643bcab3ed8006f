/*
 * break.c - --break: one script marks the hold of the holder that was shown, or frees the lock by
 * force, or does nothing where the lock has changed hands (scripts/break.lua). status.c sends it.
 *
 * A mark stands behind the holder's value, so the key's expiry and the queue are as before, and no
 * other client gets the lock. The holder's renewals and its release know the mark: the holder ends
 * its work, then releases. A dlock that does not know marks finds that its value is gone: a loss.
 */
#include "break.h"

#include "operation.h"

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

bool redis_break_answered(struct redis_backend *be, const redisReply *r, struct dlock_error *err)
{
    enum redis_script_broke what;
    if (redis_script_broke(r, &what, &be->info) != 0) {
        dlock_fail_at(err, DLOCK_EPROTO, 0, redis_where(be), "unexpected answer to a break");
        return false;
    }
    if (what == RB_FOREIGN) {
        redis_break_foreign(be->spec, err);
        return false;
    }
    struct dlock_event *ev = redis_end(be, what == RB_CHANGED ? EV_BUSY : EV_DONE);
    ev->broken = what == RB_MARKED || what == RB_ALREADY;
    ev->info = what == RB_CHANGED ? &be->info : NULL;
    return true;
}
