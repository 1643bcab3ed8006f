/*
 * script.c - calls the Lua scripts of a lock in Redis, and reads their answers. See script.h for
 * keys and messages; scripts/embed.awk makes redis_scripts.h of scripts/NAME.lua.
 *
 * EVALSHA saves the server the reading of up to 13 KB of text for each call. A server forgets its
 * scripts when it restarts, a replica may not have had them, and SCRIPT FLUSH comes at any time:
 * then the answer is NOSCRIPT, nothing was run, and from then on this connection gets the texts.
 */
#include "script.h"

#include "redis_scripts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OVER " over=1"              /* behind the value of a holder that has released the lock */
#define BROKEN " break=1"           /* behind the value of a holder whose hold is broken */
#define LAST (RUN_RECORD_MAX + 128) /* bytes of the last argument of a script */
#define WORDS 12                    /* of a command at most */
#define VOTED_RUN 11                /* elements of a vote with a run record */
#define SHARED "dlock:shared:"      /* NAME, with shared holders or holders of slots */

/* ------------------------------------------------------------------ the names */

int redis_script_init(struct redis_script *s, const char *name, int db)
{
    /* A hash tag: the first '{', the first '}' behind, a byte between them [cluster spec]. */
    const char *open = strchr(name, '{');
    const char *shut = open ? strchr(open, '}') : NULL;
    bool tag = shut && shut > open + 1;
    /* The second colon keeps the name "{x}" apart from the name "x". */
    *s = (struct redis_script){.name = strdup(name)};
    if (asprintf(&s->prefix, "%s%s%s:dlock:", tag ? "" : "{", name, tag ? ":" : "}") < 0)
        s->prefix = NULL;
    if (!s->prefix || asprintf(&s->once, "%sonce", s->prefix) < 0)
        s->once = NULL;
    if (!s->name || !s->once) {
        redis_script_done(s);
        return DLOCK_ENOMEM;
    }
    s->torn = !tag && strchr(name, '}');
    snprintf(s->db, sizeof(s->db), "%d", db);
    return 0;
}

void redis_script_done(struct redis_script *s)
{
    free(s->name);
    free(s->prefix);
    free(s->once);
    *s = (struct redis_script){0};
}

/* ------------------------------------------------------------------- commands */

static const struct lua *const scripts[] = {
    [SCRIPT_TRY] = &lua_try,
    [SCRIPT_RENEW] = &lua_renew,
    [SCRIPT_LEAVE] = &lua_leave,
    [SCRIPT_DROP] = &lua_drop,
    [SCRIPT_VOTE] = &lua_vote,
    [SCRIPT_KEEP] = &lua_keep,
    [SCRIPT_UNVOTE] = &lua_unvote,
    [SCRIPT_STATUS] = &lua_status,
    [SCRIPT_BREAK] = &lua_break,
    [SCRIPT_FORGET] = &lua_forget,
    [SCRIPT_FORGET_VOTE] = &lua_forget_vote,
    [SCRIPT_LIST] = &lua_list,
};

const struct lua *redis_script_lua(enum redis_script_op op)
{
    return scripts[op];
}

/* The command, the script, the number of KEYS, KEYS, ARGV. */
struct words {
    int n;
    const char *at[WORDS];
};

/* A script that was sent by its SHA-1, still unanswered. */
struct redis_conn_script {
    enum redis_script_op op;
    bool followed; /* another script was sent since */
    int n;
    char words[]; /* from the number of KEYS on, each with a '\0' */
};

static bool is_undo(enum redis_script_op op)
{
    return op == SCRIPT_LEAVE || op == SCRIPT_DROP || op == SCRIPT_UNVOTE;
}

static int send_script(struct redis_conn *c, int tag, enum redis_script_op op, bool at_once,
                       struct words *w)
{
    struct redis_conn_script *script = NULL;
    size_t size = 0;
    if (c->script)
        c->script->followed = true;
    for (int i = 2; i < w->n; i++)
        size += strlen(w->at[i]) + 1;
    if (!c->script && !c->by_text && !at_once && redis_conn_is_open(c) &&
        (script = malloc(sizeof(*script) + size))) {
        *script = (struct redis_conn_script){.op = op, .n = w->n};
        char *p = script->words;
        for (int i = 2; i < w->n; i++)
            p = stpcpy(p, w->at[i]) + 1;
    }
    w->at[0] = script ? "EVALSHA" : "EVAL";
    w->at[1] = script ? scripts[op]->sha1 : scripts[op]->text;
    int rc = redis_conn_send(c, tag, w->n, w->at);
    if (rc != 0) {
        free(script);
    } else if (script) {
        c->tags[c->ntags - 1].sha1 = true;
        c->script = script;
    }
    return rc;
}

static int send_text(struct redis_conn *c, int tag, const struct redis_conn_script *s)
{
    const char *argv[WORDS] = {"EVAL", scripts[s->op]->text}, *p = s->words;
    for (int i = 2; i < s->n; i++, p += strlen(p) + 1)
        argv[i] = p;
    return redis_conn_send(c, tag, s->n, argv);
}

/*
 * The server does not know the script, or does not let us call it so: a user may have +eval without
 * +evalsha, and a configuration may have renamed the command.
 */
static bool is_unknown(const redisReply *r)
{
    if (r->type != REDIS_REPLY_ERROR)
        return false;
    return strncmp(r->str, "NOSCRIPT", 8) == 0 ||
           (strncmp(r->str, "NOPERM", 6) == 0 && strstr(r->str, "'evalsha'")) ||
           (strstr(r->str, "unknown command") && strstr(r->str, "EVALSHA"));
}

/* True: not the reply. The text was sent, or the script was given up. */
static bool unknown(struct redis_conn *c, const struct redis_conn_reply *rep)
{
    struct redis_conn_script *s = c->script;
    bool gone = false;
    c->script = NULL;
    if (is_unknown(rep->r)) {
        bool undo = is_undo(s->op);
        c->by_text = true;
        gone = undo || s->followed || !c->auth_failed;
        if ((undo || (gone && !s->followed)) && send_text(c, rep->tag, s) == 0) {
            c->tags[c->ntags - 1].sent = rep->sent;
            c->tags[c->ntags - 1].why = rep->why;
            redis_conn_flush(c);
        }
    }
    free(s);
    return gone;
}

int redis_script_why(const struct redis_script *s, struct redis_conn *c, int tag, bool together)
{
    const char *ask[] = {"EVAL", lua_why.text, "0", s->name, s->db, s->prefix, together ? "s" : ""};
    return redis_conn_send(c, tag, DLOCK_LEN(ask), ask);
}

/*
 * Keep an error that says too little, and ask for more under the same tag: the command still counts
 * as unanswered. All usable servers have EVAL: where it is unknown, is the server a Sentinel?
 * False: the reply is no such error.
 */
static bool ask_why(struct redis_conn *c, const struct redis_conn_reply *rep)
{
    const char *text = rep->r->type == REDIS_REPLY_ERROR ? rep->r->str : "";
    bool no_eval = strstr(text, "unknown command") && strstr(text, "EVAL");
    if (rep->why != WHY_MAY || c->unclear.r ||
        !(no_eval || (!c->auth_failed && redis_conn_is_vague(text))))
        return false;
    c->unclear = *rep;
    if ((no_eval ? redis_conn_send(c, rep->tag, 1, (const char *const[]){"ROLE"})
                 : redis_script_why(c->lock, c, rep->tag, c->together)) == 0) {
        c->tags[c->ntags - 1].why = WHY_IS;
        redis_conn_flush(c);
    }
    return true;
}

/*
 * The kept error; with why in its place if that is a known explanation. NULL: the connection has
 * failed, but the command was answered.
 */
static void explained(struct redis_conn *c, struct redis_conn_reply *rep, redisReply *why)
{
    *rep = c->unclear;
    c->unclear.r = NULL;
    for (int i = 0; i < c->ntags; i++)
        if (c->tags[i].why == WHY_IS)
            c->tags[i].tag = 0;
    c->is_sentinel = why && redis_conn_has_role(why, "sentinel");
    if (c->is_sentinel && c->auth_failed)
        redis_conn_sentinel_error(&c->error, c->where);
    if (why && redis_conn_explains(why)) {
        redisReply *vague = rep->r;
        rep->r = why;
        why = vague;
    }
    freeReplyObject(why);
}

int redis_script_next(struct redis_conn *c, struct redis_conn_reply *rep)
{
    int rc;
    while ((rc = redis_conn_next(c, rep)) == 1) {
        if (rep->why == WHY_IS)
            break;
        if (rep->sha1 && unknown(c, rep))
            freeReplyObject(rep->r);
        else if (!ask_why(c, rep))
            return 1;
    }
    if (!c->unclear.r || rc == 0)
        return rc;
    explained(c, rep, rc == 1 ? rep->r : NULL);
    return 1;
}

void redis_script_resend_undo(struct redis_conn *c)
{
    if (c->state == RC_UP && c->script && is_undo(c->script->op))
        (void)send_text(c, 0, c->script);
}

/* In ms, rounded up: the server's lease must not be shorter than the core's. */
static long long msec(int64_t ns)
{
    return (ns + DLOCK_MSEC - 1) / DLOCK_MSEC;
}

/* The last argument of a script, of several words: see scripts/NAME.lua. */
static void last_argument(char last[LAST], enum redis_script_op op,
                          const struct redis_script_args *a)
{
    long long grace = msec(a->grace), least = msec(a->least), once = msec(a->once);
    char run[RUN_RECORD_MAX + 32] = "";
    if (a->record)
        snprintf(run, sizeof(run), " %lld %s", msec(a->kept), a->record);
    if (op == SCRIPT_TRY)
        snprintf(last, LAST, "%lld %lld %lld%s", grace, once, least, a->later ? " later" : "");
    else if (op == SCRIPT_VOTE)
        snprintf(last, LAST, "%lld%s", grace, a->once > 0 ? " run" : "");
    else if (op == SCRIPT_KEEP)
        snprintf(last, LAST, "%lld%s", grace, run);
    else if (op == SCRIPT_UNVOTE)
        snprintf(last, LAST, "%lld %lld%s", grace, least, run);
    else if (a->once > 0) /* leave, drop: parts/finish.lua */
        snprintf(last, LAST, "%lld %s %d %lld", least, run_record_state(a->state), a->status, once);
    else
        snprintf(last, LAST, "%lld", least);
}

bool redis_script_run(struct redis_script_args *args, const struct dlock_spec *spec,
                      const char *token, uint64_t fence, bool ended, char text[RUN_RECORD_MAX])
{
    struct dlock_run run = {
        .state = DLOCK_RUN_RUNNING, .status = -1, .fence = fence, .kept_ns = spec->once};
    char who[RUN_RECORD_MAX];
    snprintf(run.token, sizeof(run.token), "%s", token);
    if (ended)
        run_record_end(spec, &run);
    args->record = text;
    args->kept = dlock_min(spec->once, DLOCK_NEVER / 2) + spec->ttl;
    return run_record_who(spec, who, sizeof(who)) >= 0 &&
           run_record_format(&run, who, text, RUN_RECORD_MAX) >= 0;
}

enum redis_script_op redis_script_step(struct redis_script_args *args,
                                       const struct dlock_spec *spec,
                                       const struct dlock_order *order, char by[DLOCK_BREAKER_SIZE])
{
    *args = (struct redis_script_args){0};
    if (order->what == STEP_READ) {
        args->with_record = order->question->what == ASK_FORGET;
        return SCRIPT_STATUS;
    }
    if (order->what == STEP_FORGET) {
        args->token = order->run->token;
        args->fence = order->run->fence;
        return SCRIPT_FORGET;
    }
    args->token = order->holder->token;
    args->by = dlock_breaker(spec->identity, by);
    args->how = order->what == STEP_MARK ? "mark" : "force";
    return SCRIPT_BREAK;
}

int redis_script_send(const struct redis_script *s, struct redis_conn *c, int tag,
                      enum redis_script_op op, const struct redis_script_args *a)
{
    char ttl[24], kept[24], fence[24], count[24], last[LAST];
    char back[REDIS_SCRIPT_KIND + DLOCK_TOKEN_LEN + 24];
    const char *id = a->id ? a->id : "";
    snprintf(ttl, sizeof(ttl), "%lld", msec(a->ttl));
    snprintf(kept, sizeof(kept), "%lld", msec(a->kept));
    snprintf(fence, sizeof(fence), "%llu", (unsigned long long)a->fence);
    snprintf(count, sizeof(count), "%u", a->count);
    snprintf(back, sizeof(back), "%s@%lld", id, (long long)a->ticket);
    last_argument(last, op, a);
    const char *const own[][5] = {
        [SCRIPT_TRY] = {a->value, a->ticket > 0 ? back : id, ttl, last},
        [SCRIPT_RENEW] = {a->value, ttl, a->kept > 0 ? kept : NULL},
        [SCRIPT_LEAVE] = {a->value, id, last},
        [SCRIPT_DROP] = {a->value, last},
        [SCRIPT_VOTE] = {a->value, id, ttl, last},
        [SCRIPT_KEEP] = {a->value, ttl, fence, a->heal ? "1" : "0", last},
        [SCRIPT_UNVOTE] = {a->value, id, last},
        [SCRIPT_STATUS] = {NULL},
        [SCRIPT_BREAK] = {a->token, a->by, a->how},
        [SCRIPT_FORGET] = {a->token},
        [SCRIPT_FORGET_VOTE] = {a->token, fence},
        [SCRIPT_LIST] = {a->cursor, count, a->all ? "all" : ""},
    };
    struct words w = {.n = 6, .at = {NULL, NULL, "1", s->name, s->db, s->prefix}};
    if (op == SCRIPT_LIST) /* no keys, no prefix */
        w = (struct words){.n = 4, .at = {NULL, NULL, "0", s->db}};
    else if (op == SCRIPT_FORGET || a->with_record)
        w = (struct words){.n = 7, .at = {NULL, NULL, "2", s->name, s->once, s->db, s->prefix}};
    for (int i = 0; i < 5 && own[op][i]; i++)
        w.at[w.n++] = own[op][i];
    int rc = send_script(c, tag, op, a->at_once, &w);
    if (rc == 0) {
        c->lock = s;
        c->together = a->value && strchr("sn", *a->value);
        c->tags[c->ntags - 1].why = a->at_once || op == SCRIPT_LIST ? WHY_NOT : WHY_MAY;
    }
    return rc;
}

/*
 * PTTL, not a script: the only command of a waiter whose wait goes on unchanged. Where the SELECT
 * is refused the scripts are, too.
 */
int redis_script_look(const struct redis_script *s, struct redis_conn *c, int tag, int shared_tag)
{
    const char *select[] = {"SELECT", s->db}, *pttl[] = {"PTTL", s->name};
    const char *range[] = {"GETRANGE", s->name, "0", "12"};
    if (strcmp(s->db, "0") != 0)
        (void)redis_conn_send(c, 0, 2, select);
    if (shared_tag != 0)
        (void)redis_conn_send(c, shared_tag, 4, range);
    return redis_conn_send(c, tag, 2, pttl);
}

int redis_script_look_claim(const struct redis_script *s, struct redis_conn *c, int tag)
{
    char *key;
    if (asprintf(&key, "%sclaim", s->prefix) < 0)
        return DLOCK_ENOMEM;
    const char *pttl[] = {"PTTL", key};
    int rc = redis_conn_send(c, tag, 2, pttl);
    free(key);
    return rc;
}

/* -------------------------------------------------------------------- answers */

/*
 * Another program may have written the values, or another server than Redis the reply: check each
 * field.
 */

static bool is_string(const redisReply *r)
{
    return r->type == REDIS_REPLY_STRING || r->type == REDIS_REPLY_STATUS;
}

static uint64_t to_fence(const redisReply *r)
{
    int64_t fence;
    return dlock_read_number(r->str, strlen(r->str), &fence) ? (uint64_t)fence : 0;
}

/*
 * ms, or -1. Another program's lease may last for centuries: the sum of now and several of these
 * must fit 64 bits of ns.
 */
static int64_t to_left(const redisReply *r)
{
    return dlock_max(-1, dlock_min(r->integer, INT64_MAX / 4 / DLOCK_MSEC));
}

/* The same bounds; 0: no such element. */
static int64_t number_at(const redisReply *r, size_t i)
{
    const int64_t most = INT64_MAX / 4 / DLOCK_MSEC;
    if (i >= r->elements || r->element[i]->type != REDIS_REPLY_INTEGER)
        return 0;
    return dlock_max(-most, dlock_min(r->element[i]->integer, most));
}

/* The element with the server's clock, or a ticket; 0: none. */
static int64_t clock_at(const redisReply *r, size_t i)
{
    if (i >= r->elements || r->element[i]->type != REDIS_REPLY_INTEGER)
        return 0;
    return dlock_max(0, r->element[i]->integer);
}

/* The index of the word in the first element of an answer; n: unknown. */
static size_t first_word(const redisReply *r, const char *const *words, size_t n)
{
    size_t i = 0;
    while (i < n && strcmp(words[i], r->element[0]->str) != 0)
        i++;
    return i;
}

int redis_script_tried(const redisReply *r, struct redis_script_tried *t)
{
    static const char *const words[] = {"granted", "busy",  "claim",   "grace",
                                        "twice",   "slots", "skipped", "record"};
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 5 ||
        (r->elements > 9 && r->elements != VOTED_RUN) || !is_string(r->element[0]) ||
        !is_string(r->element[1]) || r->element[2]->type != REDIS_REPLY_INTEGER ||
        r->element[3]->type != REDIS_REPLY_INTEGER || !is_string(r->element[4]))
        return DLOCK_EPROTO;
    size_t status = first_word(r, words, DLOCK_LEN(words));
    if (status == DLOCK_LEN(words))
        return DLOCK_EPROTO;
    *t = (struct redis_script_tried){
        .status = (enum redis_script_status)status,
        .fence = to_fence(r->element[1]),
        .left_ms = to_left(r->element[2]),
        .place = (int)dlock_max(0, dlock_min(r->element[3]->integer, INT32_MAX)),
        .slot = (int)dlock_max(0, dlock_min(r->element[3]->integer, DLOCK_SLOTS_MAX)),
        .holder = r->element[4]->str,
        .holder_len = (size_t)r->element[4]->len,
        .now_ms = clock_at(r, 5),
        .up_ms = number_at(r, 6),
        .longest_ms = dlock_max(0, number_at(r, 7)),
        .ticket = clock_at(r, 8),
        .kept_ms = number_at(r, 10),
    };
    if (r->elements == VOTED_RUN && is_string(r->element[9])) {
        t->run = r->element[9]->str;
        t->run_len = (size_t)r->element[9]->len;
    }
    return t->status == RS_GRANTED && t->fence == 0 ? DLOCK_EPROTO : 0;
}

bool redis_script_looked(const redisReply *r, int64_t *left_ms)
{
    if (r->type != REDIS_REPLY_INTEGER || r->integer < -1)
        return false;
    *left_ms = to_left(r);
    return true;
}

bool redis_script_shared(const redisReply *r)
{
    return r->type == REDIS_REPLY_STRING && strcmp(r->str, SHARED) == 0;
}

int redis_script_owned(const redisReply *r, struct redis_script_owned *o)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 1 ||
        r->element[0]->type != REDIS_REPLY_INTEGER)
        return DLOCK_EPROTO;
    *o = (struct redis_script_owned){
        .ours = r->element[0]->integer == 1,
        .forgotten = r->element[0]->integer == 2,
        .recorded = number_at(r, 3) == 1,
        .now_ms = clock_at(r, 2),
    };
    if (r->elements > 1 && is_string(r->element[1])) {
        o->found = r->element[1]->str;
        o->len = (size_t)r->element[1]->len;
        o->foreign = r->element[0]->integer == 3;
    }
    return 0;
}

int redis_script_state(const redisReply *r, struct redis_script_state *s)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 8 ||
        r->element[0]->type != REDIS_REPLY_INTEGER || !is_string(r->element[1]) ||
        r->element[2]->type != REDIS_REPLY_INTEGER || r->element[3]->type != REDIS_REPLY_INTEGER ||
        !is_string(r->element[4]) || r->element[5]->type != REDIS_REPLY_ARRAY ||
        !is_string(r->element[6]) || r->element[7]->type != REDIS_REPLY_ARRAY)
        return DLOCK_EPROTO;
    *s = (struct redis_script_state){
        .held = r->element[0]->integer != 0,
        .value = r->element[1]->str,
        .len = (size_t)r->element[1]->len,
        .now_ms = r->element[2]->integer,
        .left_ms = to_left(r->element[3]),
        .fence = to_fence(r->element[4]),
        .together = r->element[5]->element,
        .ntogether = r->element[5]->elements,
        .run = r->element[6]->str,
        .run_len = (size_t)r->element[6]->len,
        .marks = r->element[7]->element,
        .nmarks = r->element[7]->elements,
        .waiters = r->element + 8,
        .nwaiters = r->elements - 8,
    };
    return 0;
}

int redis_script_stepped(const redisReply *r, enum redis_script_stepped *what)
{
    static const char *const words[] = {"done", "changed", "foreign", "record"};
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 1 || !is_string(r->element[0]))
        return DLOCK_EPROTO;
    size_t word = first_word(r, words, DLOCK_LEN(words));
    if (word == DLOCK_LEN(words))
        return DLOCK_EPROTO;
    *what = (enum redis_script_stepped)word;
    return 0;
}

int redis_script_no_mark(const struct dlock_spec *spec, struct dlock_error *err)
{
    return dlock_fail_lock(err, DLOCK_EUNUSABLE, 0, spec->uri,
                           "another program holds the lock, and no mark reaches it: to free the "
                           "lock beside that program, use --force");
}

const char *redis_script_mark(const char *text, size_t *len, int64_t *when_ms)
{
    size_t digits = strspn(text, "0123456789");
    bool formed = digits > 0 && digits < *len && text[digits] == ' ' &&
                  dlock_read_number(text, digits, when_ms);
    if (!formed)
        *when_ms = 0;
    if (!formed || *len <= digits + 1) { /* the mark's key is gone, or foreign */
        *len = strlen("an unknown client");
        return "an unknown client";
    }
    *len -= digits + 1;
    return text + digits + 1;
}

/* --------------------------------------------------------------------- values */

const char *redis_script_kind(const struct dlock_spec *spec, char buf[REDIS_SCRIPT_KIND])
{
    if (spec->mode == DLOCK_MODE_SLOTS)
        snprintf(buf, REDIS_SCRIPT_KIND, "n%u:", spec->slots % 10000);
    else
        strcpy(buf, spec->mode == DLOCK_MODE_SHARED ? "s:" : "");
    return buf;
}

char *redis_script_value(const struct dlock_spec *spec, int64_t ttl, const char *token)
{
    char record[1024], kind[REDIS_SCRIPT_KIND], *p;
    if (dlock_identity_format(spec->identity, RECORD_HOLDS, record, sizeof(record)) < 0)
        snprintf(record, sizeof(record), "dlock1");
    return asprintf(&p, "%s%s %s ttl=%lld", redis_script_kind(spec, kind), token, record,
                    msec(ttl)) < 0
               ? NULL
               : p;
}

int redis_script_new_value(const struct dlock_spec *spec, int64_t ttl,
                           char token[DLOCK_TOKEN_LEN + 1], char **value, struct dlock_error *err)
{
    int rc = dlock_token_new(spec->env, token);
    free(*value);
    *value = rc == 0 ? redis_script_value(spec, ttl, token) : NULL;
    if (rc != 0)
        return dlock_fail(err, DLOCK_EOS, -rc, "no random numbers: %s", strerror(-rc));
    return *value ? 0 : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

int64_t redis_script_ttl(const char *value, size_t len)
{
    static const char key[] = " ttl=";
    char text[24];
    struct dlock_info info;
    redis_script_holder(value, len, &info);
    const char *at = info.foreign ? NULL : memmem(value, len, key, strlen(key));
    if (!at)
        return 0;
    /* A copy, because the server may have cut the value. */
    snprintf(text, sizeof(text), "%.*s", (int)(len - (size_t)(at - value) - strlen(key)),
             at + strlen(key));
    return dlock_max(0, dlock_min(strtoll(text, NULL, 10), INT64_MAX / 4 / DLOCK_MSEC));
}

/* Read "s:" or "n3:" in front of a value or an id; returns its length, 0: exclusive. */
static size_t read_kind(const char *text, size_t len, struct dlock_info *info)
{
    size_t i = 1;
    unsigned slots = 0;
    info->mode = DLOCK_MODE_EXCLUSIVE;
    if (len >= 2 && memcmp(text, "s:", 2) == 0) {
        info->mode = DLOCK_MODE_SHARED;
        return 2;
    }
    if (len == 0 || text[0] != 'n')
        return 0;
    for (; i < len && i < 6 && text[i] >= '0' && text[i] <= '9'; i++)
        slots = slots * 10 + (unsigned)(text[i] - '0');
    if (i == 1 || i == len || text[i] != ':' || slots == 0)
        return 0;
    info->mode = DLOCK_MODE_SLOTS;
    info->slots = slots;
    return i + 1;
}

/* Does a value of len bytes end so? */
static bool ends_with(const char *value, size_t len, const char *end)
{
    return len > strlen(end) && memcmp(value + len - strlen(end), end, strlen(end)) == 0;
}

void redis_script_holder(const char *value, size_t len, struct dlock_info *info)
{
    *info = (struct dlock_info){.left_ns = -1, .waited_ms = -1};
    size_t kind = read_kind(value, len, info);
    if (len > strlen(SHARED) && memcmp(value, SHARED, strlen(SHARED)) == 0) {
        info->mode = DLOCK_MODE_SHARED;
        return;
    }
    value += kind;
    len -= kind;
    if (len > DLOCK_TOKEN_LEN && value[DLOCK_TOKEN_LEN] == ' ' &&
        strspn(value, "0123456789abcdef") == DLOCK_TOKEN_LEN &&
        dlock_identity_parse(value + DLOCK_TOKEN_LEN + 1, len - DLOCK_TOKEN_LEN - 1, info)) {
        memcpy(info->token, value, DLOCK_TOKEN_LEN);
        info->token[DLOCK_TOKEN_LEN] = '\0';
        info->over = ends_with(value, len, OVER);
        info->broken = ends_with(value, len, BROKEN);
    } else {
        info->mode = DLOCK_MODE_EXCLUSIVE;
        info->slots = 0;
        info->foreign = true;
    }
}

bool redis_script_together(const redisReply *r, struct dlock_info *info)
{
    long long left, slot;
    int at = 0;
    if (r->type != REDIS_REPLY_STRING || sscanf(r->str, "%lld %lld %n", &left, &slot, &at) != 2 ||
        at == 0)
        return false;
    redis_script_holder(r->str + at, (size_t)r->len - (size_t)at, info);
    info->left_ns = dlock_max(0, dlock_min(left, INT64_MAX / 4 / DLOCK_MSEC)) * DLOCK_MSEC;
    info->slot = slot >= 0 && slot <= (long long)info->slots ? (int)slot : 0;
    return !info->foreign;
}

const char *redis_script_value_at(const struct redis_script_state *s, size_t i, size_t *len)
{
    const char *value = s->value;
    *len = s->len;
    if (s->ntogether > 0) {
        const redisReply *r = s->together[i];
        const char *slot = r->type == REDIS_REPLY_STRING ? strchr(r->str, ' ') : NULL;
        value = slot ? strchr(slot + 1, ' ') : NULL;
        if (!value)
            return NULL;
        *len = (size_t)r->len - (size_t)(++value - r->str);
    }
    if (ends_with(value, *len, BROKEN))
        *len -= strlen(BROKEN);
    return value;
}

/* The rest that the state knows of a holder: who has broken the hold, or which value it is. */
static void find_mark(const struct redis_script_state *s, struct dlock_info *info)
{
    for (size_t i = 0; i < s->nmarks; i++) {
        const redisReply *m = s->marks[i];
        size_t len = (size_t)m->len;
        if (m->type != REDIS_REPLY_STRING || len < DLOCK_TOKEN_LEN ||
            strspn(m->str, "0123456789abcdef") != DLOCK_TOKEN_LEN)
            continue;
        if (info->foreign && len == DLOCK_TOKEN_LEN) {
            memcpy(info->token, m->str, DLOCK_TOKEN_LEN + 1);
        } else if (info->broken && len > DLOCK_TOKEN_LEN &&
                   memcmp(m->str, info->token, DLOCK_TOKEN_LEN) == 0) {
            len -= DLOCK_TOKEN_LEN + 1;
            const char *by =
                redis_script_mark(m->str + DLOCK_TOKEN_LEN + 1, &len, &info->broken_ms);
            dlock_clean_text(info->broken_by, sizeof(info->broken_by), by, len);
        }
    }
}

bool redis_script_holder_at(const struct redis_script_state *s, size_t i, struct dlock_info *info)
{
    if (s->ntogether > 0) {
        if (!redis_script_together(s->together[i], info))
            return false;
    } else {
        redis_script_holder(s->value, s->len, info);
        info->left_ns = s->left_ms < 0 ? DLOCK_NEVER : s->left_ms * DLOCK_MSEC;
    }
    info->fence = info->foreign ? 0 : s->fence;
    find_mark(s, info);
    return true;
}

bool redis_script_waiter(const char *waiter, size_t len, int64_t now_ms, struct dlock_info *info)
{
    const char *entry = waiter + redis_script_waiter_id(waiter);
    char *p;
    *info = (struct dlock_info){.waiter = true, .left_ns = -1, .waited_ms = -1};
    (void)read_kind(waiter, len, info);
    long long alive = strtoll(entry, &p, 10);
    if (p == entry || *p != ' ')
        return false;
    info->silent = alive < now_ms;
    (void)strtoll(p, &p, 10);
    if (*p != ' ')
        return false;
    p++;
    if (!dlock_identity_parse(p, len - (size_t)(p - waiter), info))
        return false;
    info->since_ms -= dlock_max(0, dlock_min(info->waited_ms, info->since_ms));
    info->waited_ms = -1;
    return true;
}

/* --------------------------------------------------------------------- listing */

int redis_script_page(const redisReply *r, struct redis_script_page *p)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 2 || !is_string(r->element[0]) ||
        strspn(r->element[0]->str, "0123456789") != (size_t)r->element[0]->len ||
        r->element[0]->len == 0 || r->element[1]->type != REDIS_REPLY_INTEGER)
        return DLOCK_EPROTO;
    *p = (struct redis_script_page){.cursor = r->element[0]->str,
                                    .last = strcmp(r->element[0]->str, "0") == 0,
                                    .hidden = dlock_max(0, r->element[1]->integer),
                                    .locks = r->element + 2,
                                    .nlocks = r->elements - 2};
    return 0;
}

bool redis_script_listed(const redisReply *r, struct dlock_entry *entry, struct dlock_info *holder)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 7 || !is_string(r->element[0]) ||
        r->element[1]->type != REDIS_REPLY_INTEGER || !is_string(r->element[2]) ||
        r->element[3]->type != REDIS_REPLY_INTEGER || r->element[4]->type != REDIS_REPLY_INTEGER ||
        !is_string(r->element[5]) || !is_string(r->element[6]))
        return false;
    const redisReply *name = r->element[0], *value = r->element[5];
    *entry = (struct dlock_entry){
        .name = name->str,
        .holders = (int)dlock_max(0, dlock_min(r->element[3]->integer, INT32_MAX)),
        .waiters = (int)dlock_max(0, dlock_min(r->element[4]->integer, INT32_MAX))};
    if (name->len == 0 || strlen(name->str) != (size_t)name->len)
        return false;
    if (entry->holders == 0)
        return true;
    redis_script_holder(value->str, (size_t)value->len, holder);
    int64_t left = to_left(r->element[1]);
    size_t len = (size_t)r->element[6]->len;
    holder->left_ns = entry->holders > 1 ? -1 : left < 0 ? DLOCK_NEVER : left * DLOCK_MSEC;
    holder->fence = holder->foreign ? 0 : to_fence(r->element[2]);
    if (holder->broken) {
        const char *by = redis_script_mark(r->element[6]->str, &len, &holder->broken_ms);
        dlock_clean_text(holder->broken_by, sizeof(holder->broken_by), by, len);
    }
    entry->holder = holder;
    return true;
}

/* -------------------------------------------------------------------- wake-up */

char *redis_script_channel(const struct redis_script *s, const struct dlock_spec *spec, char *id)
{
    char *p;
    if (id[0] == '\0' &&
        dlock_token_new(spec->env, id + strlen(redis_script_kind(spec, id))) != 0) {
        id[0] = '\0';
        return NULL;
    }
    return asprintf(&p, "%swake:%s", s->prefix, id) < 0 ? NULL : p;
}

bool redis_script_changed(const struct redis_script *s, const redisReply *message)
{
    const redisReply *keys = message->element[message->elements - 1];
    size_t len = strlen(s->name);
    if (keys->type != REDIS_REPLY_ARRAY)
        return true; /* NULL: everything was flushed */
    for (size_t i = 0; i < keys->elements; i++) {
        const redisReply *k = keys->element[i];
        if (k->type == REDIS_REPLY_STRING && (size_t)k->len == len &&
            memcmp(k->str, s->name, len) == 0)
            return true;
    }
    return false;
}

enum redis_script_call redis_script_called(const struct redis_script *s, const redisReply *message)
{
    const redisReply *from = message->element[1], *what = message->element[2];
    if (from->type == REDIS_REPLY_STRING && strcmp(from->str, REDIS_SCRIPT_INVALIDATE) == 0)
        return redis_script_changed(s, message) ? RS_CHANGED : RS_NOTHING;
    if (what->type != REDIS_REPLY_STRING)
        return RS_NOTHING;
    return strcmp(what->str, "go") == 0          ? RS_GO
           : strcmp(what->str, "second") == 0    ? RS_SECOND
           : strcmp(what->str, "head") == 0      ? RS_HEAD
           : strncmp(what->str, "head ", 5) == 0 ? RS_HEAD
                                                 : RS_NOTHING;
}

bool redis_script_head(const redisReply *message, struct redis_script_tried *t)
{
    const redisReply *what = message->element[2];
    long long ms;
    int at = 0;
    if (sscanf(what->str, "head %lld %n", &ms, &at) != 1 || at == 0 || ms <= 0)
        return false;
    *t = (struct redis_script_tried){
        .status = RS_BUSY,
        .left_ms = dlock_min(ms, INT64_MAX / 4 / DLOCK_MSEC),
        .place = 1,
        .holder = what->str + at,
        .holder_len = (size_t)what->len - (size_t)at,
    };
    return true;
}
