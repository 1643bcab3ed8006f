/* server_check.c - see server_check.h. */
#include "server_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLUSTER_SLOTS 16384

/* What to do stands behind a semicolon; in errors.c and health.c, behind a colon. */
static void advise(char *text)
{
    static const char *const in_front[] = {"): ", " a right: ", " has none: "};
    for (size_t i = 0; i < DLOCK_LEN(in_front); i++) {
        char *at = strstr(text, in_front[i]);
        if (at)
            at[strlen(in_front[i]) - 2] = ';';
    }
}

static void found_error(struct redis_check *c, enum dlock_finding level, const char *subject,
                        const struct dlock_error *err)
{
    struct dlock_error cause;
    dlock_error_cause(&cause, err, c->node->cmd.where);
    advise(cause.msg);
    findings_add(c->found, level, err->code, "%s: %s", subject, cause.msg);
}

/* ------------------------------------------------------------------ the questions */

/* Which servers are asked. */
enum wanted { ALWAYS, IN_CLUSTER, WITH_REPLICAS, WITH_LEAST };

static const struct {
    enum redis_question q;
    enum wanted wanted;
    int argc;
    const char *argv[3];
} calls[] = {
    {Q_FSYNC, ALWAYS, 3, {"CONFIG", "GET", "appendfsync"}},
    {Q_IDLE, ALWAYS, 3, {"CONFIG", "GET", "timeout"}},
    {Q_KEEPALIVE, ALWAYS, 3, {"CONFIG", "GET", "tcp-keepalive"}},
    /* No script has this name. */
    {Q_EVALSHA, ALWAYS, 3, {"EVALSHA", "0000000000000000000000000000000000000000", "0"}},
    {Q_TRACKING, ALWAYS, 3, {"CLIENT", "TRACKING", "OFF"}},
    {Q_NUMSUB, ALWAYS, 2, {"PUBSUB", "NUMSUB"}},
    {Q_CLUSTER, IN_CLUSTER, 2, {"CLUSTER", "INFO"}},
    {Q_NODES, IN_CLUSTER, 2, {"CLUSTER", "NODES"}},
    {Q_LAG, WITH_LEAST, 3, {"CONFIG", "GET", "min-replicas-max-lag"}},
    {Q_WAIT, WITH_REPLICAS, 3, {"WAIT", "0", "1"}},
    /* Last: it holds for the next command. */
    {Q_ASKING, IN_CLUSTER, 1, {"ASKING"}},
};

void redis_check_begin(struct redis_check *c)
{
    for (int q = 0; q < QUESTIONS; q++) {
        if (c->said[q])
            freeReplyObject(c->said[q]);
        c->said[q] = NULL;
    }
    c->nasked = c->nsaid = 0;
    c->wake = SUB_NOT;
    c->error.code = c->wake_error.code = 0;
}

static bool is_text(const redisReply *r)
{
    return r && r->type == REDIS_REPLY_STRING;
}

static bool is_refused(const redisReply *r)
{
    return r && r->type == REDIS_REPLY_ERROR;
}

/* A line of INFO, or of CLUSTER INFO. */
static bool info(const struct redis_check *c, enum redis_question q, const char *key, char *out,
                 size_t size)
{
    const redisReply *r = c->said[q];
    out[0] = '\0';
    return is_text(r) && redis_info_value(r->str, (size_t)r->len, key, out, size);
}

static int64_t number(const struct redis_check *c, enum redis_question q, const char *key)
{
    char text[32];
    int64_t n;
    return info(c, q, key, text, sizeof(text)) && dlock_read_number(text, strlen(text), &n) ? n
                                                                                            : -1;
}

/* Only a server that wants replicas before it writes (min-replicas-to-write) has this line. */
static int64_t replicas_in_step(const struct redis_check *c)
{
    return number(c, Q_INFO, "min_slaves_good_slaves");
}

static bool in_cluster(const struct redis_check *c)
{
    return number(c, Q_INFO, "cluster_enabled") == 1;
}

static void ask(struct redis_check *c, enum redis_question q, int tag, int argc,
                const char *const *argv)
{
    if (redis_conn_send(&c->node->cmd, tag, argc, argv) == 0)
        redis_check_asked(c, q);
}

/* The server's clock against ours, at about the same moment. */
static void note_clock(struct redis_check *c, const struct redis_conn_reply *rep)
{
    const redisReply *r = rep->r;
    int64_t sec, us, took = spec_now(c->spec) - rep->sent;
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 || !is_text(r->element[0]) ||
        !is_text(r->element[1]) || rep->sent <= 0 || took < 0 ||
        !dlock_read_number(r->element[0]->str, (size_t)r->element[0]->len, &sec) ||
        !dlock_read_number(r->element[1]->str, (size_t)r->element[1]->len, &us) ||
        sec > INT64_MAX / 4 / DLOCK_SEC || us >= 1000 * 1000)
        return;
    c->ahead = sec * DLOCK_SEC + us * 1000 - (dlock_wall() - took / 2);
    c->within = took / 2 + DLOCK_MSEC;
}

/* Nothing is served without a log-in (DENIED: to other hosts). */
static bool needs_password(const redisReply *r)
{
    return is_refused(r) &&
           (strncmp(r->str, "NOAUTH", 6) == 0 || strncmp(r->str, "DENIED", 6) == 0);
}

void redis_check_answered(struct redis_check *c, struct redis_conn_reply *rep)
{
    static const char *const info_all[] = {"INFO"}, *const now[] = {"TIME"};
    if (c->nsaid == c->nasked)
        return;
    enum redis_question q = c->asked[c->nsaid++];
    c->said[q] = rep->r;
    if (q == Q_TIME)
        note_clock(c, rep);
    rep->r = NULL;
    if (q == Q_STATUS && needs_password(c->said[q])) {
        redis_conn_reply_error(&c->error, &c->node->cmd, c->said[q]->str);
    } else if (q == Q_STATUS) {
        ask(c, Q_INFO, rep->tag, 1, info_all);
        ask(c, Q_TIME, rep->tag, 1, now);
    } else if (q == Q_INFO) {
        char kind[REDIS_SCRIPT_KIND];
        bool together = *redis_script_kind(c->spec, kind) != '\0';
        if (redis_script_why(c->script, &c->node->cmd, rep->tag, together) == 0)
            redis_check_asked(c, Q_RIGHTS);
        for (size_t i = 0; i < DLOCK_LEN(calls); i++)
            if (calls[i].wanted == ALWAYS || (calls[i].wanted == IN_CLUSTER && in_cluster(c)) ||
                (calls[i].wanted == WITH_REPLICAS && c->wait_replicas > 0) ||
                (calls[i].wanted == WITH_LEAST && replicas_in_step(c) >= 0))
                ask(c, calls[i].q, rep->tag, calls[i].argc, calls[i].argv);
    }
    redis_conn_flush(&c->node->cmd);
}

/* -------------------------------------------------------- the second connection */

void redis_check_subscribe(struct redis_check *c, int64_t until)
{
    char id[REDIS_SCRIPT_KIND + DLOCK_TOKEN_LEN + 1] = "";
    char *channel = redis_script_channel(c->script, c->spec, id);
    c->wake = channel ? SUB_ASKED : SUB_OVER;
    if (channel)
        redis_node_subscribe(c->node, channel, until);
    else
        dlock_fail(&c->wake_error, DLOCK_ENOMEM, 0, "out of memory");
    free(channel);
}

void redis_check_subscribe_failed(struct redis_check *c, const struct dlock_error *err)
{
    c->wake_error = *err;
    c->wake = SUB_OVER;
}

void redis_check_subscribe_answered(struct redis_check *c, const struct redis_conn_reply *rep)
{
    struct dlock_error err;
    enum redis_wake_reply reply = redis_node_wake_answered(c->node, rep, &err);
    if (reply == REPLY_REFUSED)
        redis_check_subscribe_failed(c, &err);
    else if (reply == REPLY_SUBSCRIBED)
        c->wake = SUB_OVER;
}

bool redis_check_is_complete(const struct redis_check *c)
{
    return c->error.code != 0 || (c->nasked > 0 && c->nsaid == c->nasked && c->wake == SUB_OVER);
}

void redis_check_done(struct redis_check *c)
{
    redis_check_begin(c);
}

/* ----------------------------------------------------- the connection and rights */

static void judge_certificate(struct redis_check *c, int64_t ends)
{
    const struct redis_conn *cmd = &c->node->cmd;
    struct dlock_error warning;
    if (tls_config_warns(cmd->tls, cmd->where, &warning))
        finding_warn(c->found,
                     "certificate: not verified; leave insecure=1 out, or give ?cacert=FILE");
    else if (ends > 0)
        findings_add_certificate(c->found, ends);
}

static void judge_connection(struct redis_check *c)
{
    const struct redis_conn *cmd = &c->node->cmd;
    char address[REDIS_PEER_TEXT];
    const char *peer = redis_peer_text(&cmd->peers[cmd->good], address);
    struct dlock_error warning;
    int64_t ends = 0;
    const char *version = cmd->session ? cmd->tls->table->about(cmd->session, &ends) : "no TLS";
    finding_ok(c->found, "connect: %s, %s", *peer != '\0' ? peer : "a socket of this machine",
               version);
    if (cmd->session)
        judge_certificate(c, ends);
    if (redis_check_password(cmd, &warning))
        found_error(c, DLOCK_FINDING_WARNING, "log-in", &warning);
    else if (cmd->auth.password && cmd->auth.user && *cmd->auth.user != '\0')
        finding_ok(c->found, "log-in: as user %s", cmd->auth.user);
    else
        finding_ok(c->found, "log-in: as the default user, %s password",
                   cmd->auth.password ? "by" : "without a");
}

/* No answer, or only that the log-in is refused, or that this store cannot have the lock. */
static void judge_no_contact(struct redis_check *c)
{
    struct dlock_error cause;
    dlock_error_cause(&cause, &c->error, c->node->cmd.where);
    if (c->error.code == DLOCK_EPERM) {
        advise(cause.msg);
        finding_fail(c->found, DLOCK_EPERM, "log-in: %s", cause.msg);
    } else if (c->error.code == DLOCK_EUSAGE) {
        finding_fail(c->found, DLOCK_EUSAGE, "lock: %s; change the URI", cause.msg);
    } else {
        finding_fail(c->found, c->error.code,
                     "connect: %s; check the address, the server and the network", cause.msg);
    }
}

/* An error reply as a failure. Returns false. */
static bool found_refusal(struct redis_check *c, const char *subject, const redisReply *r)
{
    const struct redis_conn *cmd = &c->node->cmd;
    struct dlock_error err;
    redis_conn_reply_error(&err, cmd, r->str);
    found_error(c, DLOCK_FINDING_FAILURE, subject, &err);
    return false;
}

/*
 * The rights in a script, and whether there is foreign data. A lock works without INFO, unless with
 * a restart grace; judge_info() warns.
 */
static bool judge_script(struct redis_check *c)
{
    const redisReply *why = c->said[Q_RIGHTS], *status = c->said[Q_STATUS];
    const struct redis_conn_auth secret = {.password = c->node->cmd.auth.password};
    enum redis_conn_class class = is_refused(why) ? redis_conn_classify(why->str) : RE_OTHER;
    const char *topic = class == RE_PERM ? "rights" : class == RE_TYPE ? "name" : "commands";
    char rules[400];
    if (class == RE_PERM && redis_conn_explains(why)) {
        redis_conn_show(rules, sizeof(rules), &secret, strchr(why->str, ' ') + 1);
        if (strcmp(rules, "+info") == 0 && c->restart_grace == 0)
            return true;
        finding_fail(c->found, DLOCK_EPERM, "rights: the user lacks some; ACL SETUSER USER %s",
                     rules);
        return false;
    }
    if (class == RE_PERM || (why && redis_conn_explains(why)))
        return found_refusal(c, topic, why);
    if (is_refused(status) && redis_conn_classify(status->str) != RE_REPLICA)
        return found_refusal(c, "script", status);
    return true;
}

/* The commands beside the scripts: a lock works without some of them, but less well. */
static bool judge_calls(struct redis_check *c)
{
    static const struct {
        enum redis_question q;
        const char *rule, *without;
    } calls_of[] = {
        {Q_EVALSHA, "+evalsha", "each request has the text of its script"},
        {Q_TRACKING, "+client|tracking", "the first waiter asks about once a second"},
        {Q_NUMSUB, "+pubsub|numsub", "a killed waiter is not recognised at once"},
        {Q_NODES, "+cluster|nodes", "only the URI's hosts are asked when a node is away"},
        {Q_ASKING, "+asking", "a lock whose slot is being moved cannot be renewed"},
    };
    bool good = true;
    for (size_t i = 0; i < DLOCK_LEN(calls_of); i++) {
        const redisReply *r = c->said[calls_of[i].q];
        enum redis_conn_class class = is_refused(r) ? redis_conn_classify(r->str) : RE_REPLICA;
        bool unknown = is_refused(r) && strstr(r->str, "unknown command");
        if (class != RE_PERM && !unknown)
            continue;
        good = false;
        finding_warn(c->found, "rights: %s is %s: %s; %s%s", calls_of[i].rule + 1,
                     unknown ? "unknown to the server" : "not allowed", calls_of[i].without,
                     unknown ? "undo its rename-command there" : "ACL SETUSER USER ",
                     unknown ? "" : calls_of[i].rule);
    }
    return good;
}

/* A waiter's connection. */
static bool judge_wake(struct redis_check *c)
{
    if (c->wake_error.code != 0)
        found_error(
            c, c->wake_error.code == DLOCK_EUNAVAIL ? DLOCK_FINDING_WARNING : DLOCK_FINDING_FAILURE,
            "waiting", &c->wake_error);
    else if (c->wake == SUB_ASKED)
        finding_warn(c->found,
                     "waiting: no answer on the second connection; see the server's maxclients");
    else if (!c->node->can_track)
        finding_warn(
            c->found,
            "waiting: the server does not tell the first waiter of changes, which then asks about "
            "once a second; ACL SETUSER USER +client|id &" REDIS_SCRIPT_INVALIDATE);
    else
        return true;
    return c->wake_error.code == 0 || c->wake_error.code == DLOCK_EUNAVAIL;
}

static bool judge_rights(struct redis_check *c)
{
    bool script = judge_script(c), calls_good = judge_calls(c);
    size_t before = c->found->n;
    bool wait = judge_wake(c);
    if (script && calls_good && c->found->n == before)
        finding_ok(c->found, "rights: the user has all that this lock needs");
    return script && wait;
}

/* --------------------------------------------------------------- INFO and settings */

/* The version, and the role: a replica grants nothing. */
static bool judge_role(struct redis_check *c)
{
    char role[16], host[64], port[16];
    if (info(c, Q_INFO, "valkey_version", c->version, sizeof(c->version)))
        finding_ok(c->found, "version: Valkey %s", c->version);
    else if (info(c, Q_INFO, "redis_version", c->version, sizeof(c->version)))
        finding_ok(c->found, "version: Redis %s", c->version);
    (void)info(c, Q_INFO, "run_id", c->run_id, sizeof(c->run_id));
    (void)info(c, Q_INFO, "maxmemory_policy", c->policy, sizeof(c->policy));
    if (info(c, Q_INFO, "role", role, sizeof(role)) && strcmp(role, "master") != 0) {
        (void)info(c, Q_INFO, "master_host", host, sizeof(host));
        (void)info(c, Q_INFO, "master_port", port, sizeof(port));
        finding_fail(c->found, DLOCK_EUNAVAIL,
                     "role: a replica of %s:%s; name the master in the URI", host, port);
        return false;
    }
    if (is_refused(c->said[Q_STATUS]) && redis_conn_classify(c->said[Q_STATUS]->str) == RE_REPLICA)
        return found_refusal(c, "role", c->said[Q_STATUS]);
    if (*role != '\0')
        finding_ok(c->found, "role: master");
    return true;
}

/* A failover to a replica loses the writes that the replica has not got. */
static bool judge_replicas(struct redis_check *c)
{
    int64_t replicas = number(c, Q_INFO, "connected_slaves");
    int64_t in_step = replicas_in_step(c);
    if (c->wait_replicas > 0 && is_refused(c->said[Q_WAIT]))
        return found_refusal(c, "replicas", c->said[Q_WAIT]);
    if (replicas >= 0 && replicas < (int64_t)c->wait_replicas) {
        finding_fail(c->found, DLOCK_EUNAVAIL,
                     "replicas: %lld, and wait-replicas=%u needs more; start replicas, or lower "
                     "wait-replicas",
                     (long long)replicas, c->wait_replicas);
        return false;
    }
    if (in_step == 0) {
        finding_fail(c->found, DLOCK_EUNAVAIL,
                     "replicas: none is in step, so the server refuses to write; see its "
                     "min-replicas-to-write");
        return false;
    }
    if (replicas <= 0)
        return true;
    if (c->wait_replicas == 0 && in_step < 0)
        finding_warn(
            c->found,
            "replicas: %lld, and none has to be there for a write: after a failover the lock can "
            "be lost while its command runs; set min-replicas-to-write 1 there%s",
            (long long)replicas,
            c->spec->uri->nhosts > 1 ? "" : ", or write " URI_PARAM("?wait-replicas=1"));
    else
        finding_ok(c->found, "replicas: %lld", (long long)replicas);
    return true;
}

/* The value of a setting; -1 and a finding: not known. */
static const char *setting(struct redis_check *c, enum redis_question q, const char *name)
{
    const redisReply *r = c->said[q];
    if (r && r->type == REDIS_REPLY_ARRAY && r->elements == 2 && is_text(r->element[1]))
        return r->element[1]->str;
    if (is_refused(r))
        finding_ok(c->found, "%s: not known: CONFIG is not allowed", name);
    return NULL;
}

/* A master that is cut off from its replicas writes until they have been silent for so long. */
static void judge_lag(struct redis_check *c)
{
    const char *lag = setting(c, Q_LAG, "min-replicas-max-lag");
    char ttl[32];
    int64_t sec;
    if (!lag || !dlock_read_number(lag, strlen(lag), &sec))
        return;
    if (c->wait_replicas == 0 && sec > c->spec->ttl / DLOCK_SEC)
        finding_warn(c->found,
                     "min-replicas-max-lag: a master without its replicas grants locks for %lld s "
                     "more, longer than the ttl of %s; set it to %lld there, or use a longer --ttl",
                     (long long)sec, dlock_format_duration(c->spec->ttl, ttl, sizeof(ttl)),
                     (long long)dlock_max(1, c->spec->ttl / DLOCK_SEC));
    else
        finding_ok(c->found, "min-replicas-max-lag: %s s", lag);
}

static void judge_persistence(struct redis_check *c)
{
    const redisReply *r = c->said[Q_INFO];
    const char *where = c->node->cmd.where;
    struct dlock_error warning;
    const char *fsync = setting(c, Q_FSYNC, "appendfsync");
    if (redis_check_eviction(r->str, (size_t)r->len, where, &warning))
        found_error(c, DLOCK_FINDING_WARNING, "eviction", &warning);
    else
        finding_ok(c->found, "eviction: none");
    if (redis_check_persistence(r->str, (size_t)r->len, where, c->spec->ttl, c->restart_grace,
                                &warning))
        found_error(c, DLOCK_FINDING_WARNING, "persistence", &warning);
    else if (c->restart_grace >= c->spec->ttl)
        finding_ok(c->found, "persistence: not needed, with the restart grace");
    else if (fsync && strcmp(fsync, "no") == 0)
        finding_warn(
            c->found,
            "persistence: an append-only file with appendfsync no: a crash of its machine can lose "
            "the locks of the last half minute; set appendfsync everysec there, or always");
    else if (fsync && strcmp(fsync, "everysec") == 0)
        finding_ok(
            c->found,
            "persistence: an append-only file; a crash of the machine can lose the last second "
            "(appendfsync everysec)");
    else
        finding_ok(c->found, "persistence: an append-only file");
}

static void judge_idle(struct redis_check *c)
{
    const char *idle = setting(c, Q_IDLE, "timeout");
    const char *keepalive = setting(c, Q_KEEPALIVE, "tcp-keepalive");
    char text[32];
    int64_t sec;
    /* A third of the ttl is more than the time between two renewals. */
    if (idle && dlock_read_number(idle, strlen(idle), &sec) && sec > 0 &&
        sec < INT64_MAX / DLOCK_SEC && sec * DLOCK_SEC <= c->spec->ttl / 3)
        finding_warn(
            c->found,
            "timeout: the server closes connections that were idle for %lld s, so each renewal "
            "connects anew; set timeout 0 there, or more than %s",
            (long long)sec, dlock_format_duration(c->spec->ttl / 3, text, sizeof(text)));
    else if (idle)
        finding_ok(c->found, "timeout: %s", strcmp(idle, "0") == 0 ? "none" : idle);
    if (keepalive && strcmp(keepalive, "0") == 0)
        finding_warn(
            c->found,
            "tcp-keepalive: off: a waiter on a machine that has vanished is called in vain; set "
            "tcp-keepalive 300 there");
    else if (keepalive)
        finding_ok(c->found, "tcp-keepalive: %s s", keepalive);
}

static void judge_clock(struct redis_check *c)
{
    int64_t abs = c->ahead < 0 ? -c->ahead : c->ahead;
    char by[32];
    if (c->within == 0)
        return;
    int64_t step = abs > FINDING_CLOCKS_APART ? 100 * DLOCK_MSEC : DLOCK_MSEC;
    dlock_format_duration((dlock_max(abs, c->within) + step / 2) / step * step, by, sizeof(by));
    if (abs > FINDING_CLOCKS_APART + c->within)
        finding_warn(
            c->found,
            "clock: %s %s this machine's, so times of holders and runs are shown wrongly; check "
            "the time synchronisation of both",
            by, c->ahead < 0 ? "behind" : "ahead of");
    else
        finding_ok(c->found, "clock: as this machine's, within %s", by);
}

static void judge_cluster(struct redis_check *c)
{
    int64_t slots = number(c, Q_CLUSTER, "cluster_slots_ok");
    char state[16];
    if (!in_cluster(c))
        return;
    if (!info(c, Q_CLUSTER, "cluster_state", state, sizeof(state)))
        finding_ok(c->found, "cluster: not known: CLUSTER INFO is not allowed");
    else if (strcmp(state, "ok") != 0 || slots != CLUSTER_SLOTS)
        finding_warn(
            c->found,
            "cluster: state %s, %lld of %d slots are served: locks in the others cannot be taken; "
            "see CLUSTER NODES, and redis-cli --cluster check",
            state, (long long)slots, CLUSTER_SLOTS);
    else
        finding_ok(c->found, "cluster: state ok, all slots are served");
}

bool redis_check_judge(struct redis_check *c)
{
    const struct redis_conn *cmd = &c->node->cmd;
    struct dlock_error warning;
    bool good = false;
    if (c->error.code != 0) {
        judge_no_contact(c);
    } else {
        judge_connection(c);
        good = judge_rights(c);
        if (is_text(c->said[Q_INFO])) {
            good = judge_role(c) && good;
            good = judge_replicas(c) && good;
            judge_persistence(c);
        } else if (is_refused(c->said[Q_INFO])) {
            redis_check_refused(cmd->where, &warning);
            found_error(c, DLOCK_FINDING_WARNING, "info", &warning);
        }
        judge_lag(c);
        judge_idle(c);
        judge_clock(c);
        judge_cluster(c);
    }
    redis_node_unsubscribe(c->node);
    return good;
}
