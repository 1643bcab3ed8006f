/*
 * redlock_check.c - --check of a Redlock: the questions of server_check.h to each server, and how
 * the servers differ. A server that a run could not use is a failure only where a majority is
 * missing.
 */
#include "redlock_servers.h"
#include "server_check.h"

#include <stdlib.h>
#include <string.h>

static void end_check(struct redlock_backend *be)
{
    for (int i = 0; be->checking && i < be->n; i++)
        redis_check_done(&be->checking[i]);
    free(be->checking);
    be->checking = NULL;
}

void redlock_check_drop(struct redlock_backend *be)
{
    end_check(be);
    findings_drop(&be->found);
}

static struct redis_check *check_of(const struct redlock_backend *be,
                                    const struct redlock_server *s)
{
    return &be->checking[s - be->servers];
}

static void ask_first(struct redlock_backend *be, struct redlock_server *s)
{
    struct redis_check *c = check_of(be, s);
    if (!redlock_reach(be, s, be->until)) {
        c->error = s->error;
        return;
    }
    redlock_send(be, s, KIND_STATUS, SCRIPT_STATUS, &(struct redis_script_args){0});
    redis_check_asked(c, Q_STATUS);
}

void redlock_check(struct redlock_backend *be)
{
    be->checking = calloc((size_t)be->n, sizeof(*be->checking));
    struct dlock_error err = {0};
    redlock_begin(be, OP_CHECK);
    be->until = be->began + be->spec->connect_timeout;
    if (!be->checking)
        dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
    else
        (void)redlock_check_peers(be, &err);
    if (err.code != 0) {
        redlock_check_drop(be);
        redlock_end(be, EV_FAILED)->error = err;
        return;
    }
    for_each_server (be, s) {
        *check_of(be, s) = (struct redis_check){.spec = be->spec,
                                                .script = &be->script,
                                                .node = &s->node,
                                                .found = &be->found,
                                                .restart_grace = be->restart_grace};
        ask_first(be, s);
    }
}

static void check_answered(struct redlock_backend *be, struct redlock_server *s,
                           struct redis_conn_reply *rep)
{
    struct redis_check *c = check_of(be, s);
    if (be->op != OP_CHECK || rep->tag != REDLOCK_TAG(be->serial, KIND_STATUS))
        return;
    if (s->node.cmd.auth_failed) {
        c->error = s->node.cmd.error;
        return;
    }
    if (c->nsaid == 0) {
        redlock_connect(be, s, &s->node.wake, be->until);
        redis_check_subscribe(c, be->until);
    }
    redis_check_answered(c, rep);
}

void redlock_check_wake_answered(struct redlock_backend *be, struct redlock_server *s,
                                 const struct redis_conn_reply *rep)
{
    redis_check_subscribe_answered(check_of(be, s), rep);
}

void redlock_check_wake_failed(struct redlock_backend *be, struct redlock_server *s)
{
    struct dlock_error why = s->node.wake.error;
    redis_node_unsubscribe(&s->node);
    redis_check_subscribe_failed(check_of(be, s), &why);
}

/* ----------------------------------------------------------------- all servers */

/* The first server that differs from an earlier one in the text at this place of the check. */
static void compare(struct redlock_backend *be, const char *subject, size_t at, const char *advice)
{
    const char *first = NULL, *text;
    int one = 0;
    for (int i = 0; i < be->n; i++) {
        text = (const char *)&be->checking[i] + at;
        if (*text == '\0')
            continue;
        if (first && strcmp(first, text) != 0) {
            finding_warn(&be->found, "%s: %s has %s, %s has %s; %s", subject,
                         be->servers[one].where, first, be->servers[i].where, text, advice);
            return;
        }
        if (!first)
            one = i;
        first = first ? first : text;
    }
}

/* Two names of one server. True: there are none. */
static bool differ(struct redlock_backend *be)
{
    const struct redis_check *c = be->checking;
    bool good = true;
    for (int i = 0; i < be->n; i++)
        for (int j = 0; j < i; j++)
            if (c[i].run_id[0] != '\0' && strcmp(c[i].run_id, c[j].run_id) == 0) {
                finding_fail(&be->found, DLOCK_EUSAGE,
                             "servers: %s and %s are one server; name different servers",
                             be->servers[j].where, be->servers[i].where);
                good = false;
            }
    return good;
}

static void compare_clocks(struct redlock_backend *be)
{
    const struct redis_check *c = be->checking, *least = NULL, *most = NULL;
    char by[32];
    for (int i = 0; i < be->n; i++) {
        if (c[i].within == 0)
            continue;
        least = !least || c[i].ahead < least->ahead ? &c[i] : least;
        most = !most || c[i].ahead > most->ahead ? &c[i] : most;
    }
    if (!least || most->ahead - least->ahead <= FINDING_CLOCKS_APART + least->within + most->within)
        return;
    int64_t step = 100 * DLOCK_MSEC;
    dlock_format_duration((most->ahead - least->ahead + step / 2) / step * step, by, sizeof(by));
    finding_warn(&be->found,
                 "clocks: %s is %s ahead of %s; check the time synchronisation of the servers",
                 be->servers[most - c].where, by, be->servers[least - c].where);
}

static void count_servers(struct redlock_backend *be, int usable)
{
    struct dlock_error err;
    if (usable < be->quorum) {
        redlock_no_quorum(be, &err);
        finding_fail(&be->found, err.code, "servers: %d of %d can be used; %d are needed", usable,
                     be->n, be->quorum);
    } else if (be->n < 3) {
        finding_warn(&be->found, "servers: %d, and none may fail; name at least three", be->n);
    } else if (be->n % 2 == 0) {
        finding_warn(&be->found, "servers: %d, and no more may fail than of %d; name an odd number",
                     be->n, be->n - 1);
    } else if (usable < be->n) {
        finding_warn(
            &be->found,
            "servers: %d of %d can be used, %d are needed; mend the others before more fail",
            usable, be->n, be->quorum);
    } else {
        finding_ok(&be->found, "servers: all %d can be used, %d are needed", be->n, be->quorum);
    }
}

/* The findings of one server; its answer and error, for redlock_no_quorum(). */
static void judge_server(struct redlock_backend *be, struct redlock_server *s)
{
    struct findings *f = &be->found;
    size_t i = f->n;
    s->error.code = 0;
    f->server = s->where;
    s->answer = redis_check_judge(check_of(be, s)) ? A_YES : A_REFUSED;
    f->server = NULL;
    while (s->answer == A_REFUSED && i < f->n && f->all[i].level != DLOCK_FINDING_FAILURE)
        i++;
    if (s->answer == A_REFUSED && i < f->n)
        s->error = f->all[i].error;
}

static void finish(struct redlock_backend *be)
{
    for_each_server (be, s)
        judge_server(be, s);
    int usable = redlock_count(be, A_YES);
    for (size_t i = 0; i < be->found.n && usable >= be->quorum; i++)
        if (be->found.all[i].level == DLOCK_FINDING_FAILURE)
            be->found.all[i].level = DLOCK_FINDING_WARNING;
    if (differ(be))
        count_servers(be, usable);
    compare(be, "versions", offsetof(struct redis_check, version), "use one version");
    compare(be, "maxmemory-policy", offsetof(struct redis_check, policy),
            "set noeviction on each server");
    compare_clocks(be);
    end_check(be);
    be->found.ended = true;
    be->op = OP_NONE;
    be->until = DLOCK_NEVER;
}

static void check_step(struct redlock_backend *be, int64_t now)
{
    bool complete = true;
    for_each_server (be, s) {
        struct redis_check *c = check_of(be, s);
        if (s->answer == A_FAILED && c->error.code == 0)
            c->error = s->error;
        if (now >= be->until && c->error.code == 0 && c->nsaid == 0)
            dlock_fail_at(&c->error, DLOCK_EUNAVAIL, 0, s->where, "no answer");
        complete = complete && redis_check_is_complete(c);
    }
    if (complete || now >= be->until)
        finish(be);
}

static int64_t check_wake_at(const struct redlock_backend *be)
{
    return be->until;
}

const struct redlock_operation redlock_op_check = {
    .answered = check_answered,
    .step = check_step,
    .wake_at = check_wake_at,
};
