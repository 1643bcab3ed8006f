/*
 * redlock_run.c - the run records of --once.
 *
 * Each server has a record, written only by a client that holds the lock there. Of several records
 * the end of the newest run counts. Fencing tokens tell which run is the newest, because the
 * servers' clocks differ. The age of a record is measured by the clock of its server.
 *
 * A record counts if it may be on so many servers that no majority is without it (2 of 3, 2 of 4,
 * 3 of 5): on the voters that have it and on the servers that have not voted. So a single server
 * of three, with a forged record or with the record of a success that was never confirmed (79),
 * decides nothing. A missing vote that could decide is waited for, as for the votes of young
 * servers. If it does not come, the record counts: rather is a run skipped than a success repeated.
 *
 * Why no second run follows a success that a majority has recorded. The next client needs the votes
 * of a majority. Each server with the record either tells it with its vote, which was given after
 * the record was written, or has not voted: so the record counts. Between a vote and its end no
 * other client writes there, and a vote changes no record. So the client sees the success before it
 * writes anything. Only a client with the votes of a majority, and without a success that counts,
 * records in the second round that its run begins. A vote that comes later cannot change that: it
 * makes the servers without a vote fewer. Servers that lose the record are too few as long as the
 * others with it still meet every majority.
 *
 * Why "failed" with a higher token makes an older success void, and "running" does not. An end is
 * written by a client that was granted the lock, and the tokens of such clients have the order of
 * the grants: the client had found no success within the time for which it asked. "running" may be
 * left by a round whose second half has failed. The token of "running" has no order with the tokens
 * of grants: a later grant by other servers may have a lower token.
 *
 * A client that skips its run gives the record of the success to the voters that lack it.
 */
#include "redlock_servers.h"

void redlock_run_foreign(const struct redlock_backend *be, const struct redlock_server *s,
                         struct dlock_error *err)
{
    dlock_fail_at(err, DLOCK_EDATA, 0, s->where,
                  "the key '%sonce' is in the place of the run record, and dlock has not written "
                  "it: remove it, or use another name",
                  be->script.prefix);
}

void redlock_run_read(struct redlock_backend *be, struct redlock_server *s,
                      const struct redis_script_tried *t)
{
    struct dlock_error err;
    s->once.found = t->run;
    if (!s->once.found)
        return;
    if (run_record_parse(t->run, t->run_len, t->now_ms, &s->once.run)) {
        memcpy(s->once.text, t->run, t->run_len);
        s->once.text[t->run_len] = '\0';
        s->once.kept = t->kept_ms > 0 ? t->kept_ms * DLOCK_MSEC : s->once.run.kept_ns;
        s->once.found = !run_record_ahead(&s->once.run, be->spec, &err);
        if (!s->once.found && !be->acquire.ahead_reported)
            events_add(&be->events, EV_NOTICE)->error = err;
        be->acquire.ahead_reported |= !s->once.found;
        return;
    }
    /* The server keeps our vote until the round or the lock is given back. */
    s->once.found = false;
    s->answer = A_FOREIGN;
    redlock_run_foreign(be, s, &s->error);
}

static bool has_record(const struct redlock_server *s)
{
    return s->answer == A_YES && s->once.found;
}

/* Both servers have the same end of the same run, and both or neither skip ours. */
static bool same_end(const struct redlock_backend *be, const struct redlock_server *s,
                     const struct redlock_server *o)
{
    const struct dlock_run *a = &s->once.run, *b = &o->once.run;
    return has_record(s) && has_record(o) && strcmp(a->token, b->token) == 0 &&
           a->fence == b->fence && a->state == b->state &&
           run_record_skips(a, be->spec->once) == run_record_skips(b, be->spec->once);
}

/* The newest end of a run that counts if so many silent servers know it, too. */
static const struct redlock_server *last_end(const struct redlock_backend *be, int silent)
{
    const struct redlock_server *newest = NULL;
    for (int i = 0; i < be->n && be->spec->once > 0; i++) {
        const struct redlock_server *s = &be->servers[i];
        int with = silent;
        for (int k = 0; k < be->n; k++)
            with += same_end(be, s, &be->servers[k]);
        if (has_record(s) && with > be->n - be->quorum && s->once.run.state != DLOCK_RUN_RUNNING &&
            (!newest || s->once.run.fence > newest->once.run.fence))
            newest = s;
    }
    return newest;
}

const struct redlock_server *redlock_run_success(const struct redlock_backend *be, bool *sure)
{
    const struct redlock_server *last = last_end(be, be->n - redlock_count(be, A_YES));
    *sure = last == last_end(be, 0);
    return last && run_record_skips(&last->once.run, be->spec->once) ? last : NULL;
}

void redlock_run_skip(struct redlock_backend *be, struct redlock_server *s,
                      const struct redlock_server *success)
{
    struct redis_script_args args = {.value = be->value};
    if (!same_end(be, s, success)) {
        args.record = success->once.text;
        args.kept = success->once.kept;
    }
    redlock_send(be, s, KIND_UNDO, SCRIPT_UNVOTE, &args);
}

void redlock_run_end(struct redlock_backend *be, struct redlock_server *s)
{
    struct redis_script_args args = {
        .value = be->value, .id = s->queued ? be->acquire.id : NULL, .grace = be->restart_grace};
    char text[RUN_RECORD_MAX];
    if (be->claim == CLAIM_GRANTED) {
        args.least = spec_stay(be->spec);
        if (run_record_begun(be->spec) &&
            !redis_script_run(&args, be->spec, be->token, be->fence, true, text))
            args.record = NULL;
    }
    redlock_send(be, s, KIND_LEAVE, SCRIPT_UNVOTE, &args);
}
