/*
 * redlock_run.c - the run records of --once.
 *
 * Each server has a record, written only by a client that holds the lock there. Of several records
 * the end of the newest run counts. Fencing tokens tell which run is the newest, because the
 * servers' clocks differ. The age of a record is measured by the clock of its server.
 *
 * Why no second run follows a success that a majority has recorded. The next client needs the votes
 * of a majority, so a voter has the record. This vote was given after the record was written, and
 * between a vote and its end no other client writes there. So the client sees the success before it
 * writes anything: a vote changes no record. Only a client with the votes of a majority, and
 * without a success among them, records in the second round that its run begins.
 *
 * Why "failed" with a higher token makes an older success void, and "running" does not. An end is
 * written by a client that was granted the lock, and the tokens of such clients have the order of
 * the grants: the client had found no success within the time for which it asked. "running" may be
 * left by a round whose second half has failed. The token of "running" has no order with the tokens
 * of grants: a later grant by other servers may have a lower token.
 *
 * A success recorded by fewer servers was not confirmed to its client (79). A client that finds
 * such a success respects it all the same, and gives it to the voters that lack it.
 */
#include "redlock_servers.h"

#include <stdio.h>

void redlock_run_foreign(const struct redlock_backend *be, const struct redlock_server *s,
                         struct dlock_error *err)
{
    dlock_fail_at(err, DLOCK_EDATA, 0, s->where,
                  "the key '%sonce' is in the place of the run record, and dlock has not written "
                  "it: remove it, or use another name",
                  be->script.prefix);
}

void redlock_run_read(struct redlock_backend *be, struct redlock_server *s, const redisReply *r)
{
    struct redis_script_tried t;
    const char *text;
    size_t len;
    int64_t kept_ms;

    s->once.found = redis_script_voted_run(r, &text, &len, &kept_ms);
    if (!s->once.found)
        return;
    (void)redis_script_tried(r, &t);
    if (run_record_parse(text, len, t.now_ms, &s->once.run)) {
        memcpy(s->once.text, text, len);
        s->once.text[len] = '\0';
        s->once.kept = kept_ms > 0 ? kept_ms * DLOCK_MSEC : s->once.run.kept_ns;
        return;
    }
    /* The server keeps our vote until the round or the lock is given back. */
    s->once.found = false;
    s->answer = A_TYPE;
    redlock_run_foreign(be, s, &s->error);
}

bool redlock_run_newer(const struct dlock_run *r, const struct dlock_run *than)
{
    return r->fence > than->fence;
}

const struct redlock_server *redlock_run_success(const struct redlock_backend *be)
{
    const struct redlock_server *newest = NULL;

    for (int i = 0; i < be->n && be->spec->once > 0; i++) {
        const struct redlock_server *s = &be->servers[i];
        if (s->answer == A_YES && s->once.found && s->once.run.state != DLOCK_RUN_RUNNING &&
            (!newest || redlock_run_newer(&s->once.run, &newest->once.run)))
            newest = s;
    }
    return newest && run_record_skips(&newest->once.run, be->spec->once) ? newest : NULL;
}

/* Our record; servers fill in the times. Kept a ttl longer than it counts, for a second release. */
static bool our_record(const struct redlock_backend *be, bool ended, char text[RUN_RECORD_MAX],
                       struct redis_script_args *args)
{
    struct dlock_run run = {
        .state = DLOCK_RUN_RUNNING, .status = -1, .fence = be->fence, .kept_ns = be->spec->once};
    char who[RUN_RECORD_MAX];

    memcpy(run.token, be->token, sizeof(run.token));
    if (ended)
        run_record_end(be->spec, &run);
    args->record = text;
    args->kept = dlock_min(be->spec->once, DLOCK_NEVER / 2) + be->spec->ttl;
    return run_record_who(be->spec, who, sizeof(who)) >= 0 &&
           run_record_format(&run, who, text, RUN_RECORD_MAX) >= 0;
}

void redlock_run_begin(struct redlock_backend *be, struct redlock_server *s, int tag)
{
    struct redis_script_args args = {
        .value = be->value, .ttl = redlock_lease(be->spec), .fence = be->fence};
    char text[RUN_RECORD_MAX];

    (void)our_record(be, false, text, &args);
    (void)redis_script_send(&be->script, &s->node.cmd, tag, SCRIPT_KEEP, &args);
}

void redlock_run_skip(struct redlock_backend *be, struct redlock_server *s, int tag,
                      const struct redlock_server *success)
{
    struct redis_script_args args = {.value = be->value};
    /* The texts may differ: each server fills in its own times. */
    bool knows = s->raise == RAISE_NONE && s->answer == A_YES && s->once.found &&
                 s->once.run.state == success->once.run.state &&
                 strcmp(s->once.run.token, success->once.run.token) == 0;

    if (!knows) {
        args.record = success->once.text;
        args.kept = success->once.kept;
    }
    (void)redis_script_send(&be->script, &s->node.cmd, tag, SCRIPT_UNVOTE, &args);
}

void redlock_run_end(struct redlock_backend *be, struct redlock_server *s, int tag)
{
    struct redis_script_args args = {
        .value = be->value, .id = s->queued ? be->acquire.id : NULL, .grace = be->restart_grace};
    char text[RUN_RECORD_MAX];

    if (be->claim == CLAIM_GRANTED) {
        args.least = redlock_stay(be);
        if (be->spec->once > 0 && !our_record(be, true, text, &args))
            args.record = NULL;
    }
    (void)redis_script_send(&be->script, &s->node.cmd, tag, SCRIPT_UNVOTE, &args);
}
