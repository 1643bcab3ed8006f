/* errors.c - the meaning of Redis' error replies for a lock, and the messages for them. */
#include "conn.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------- meanings */

/* The first words of our scripts' own errors: scripts/parts/wrong.lua, scripts/why.lua. */
#define FOREIGN "FOREIGN "
#define LACKS "LACKS "
#define NOCOMMAND "NOCOMMAND "
/* Redis' error inside a script, which does not name the command. */
#define INSIDE "command called from"

struct meaning {
    enum redis_conn_class class;
    int code;
    const char *what;
    const char *advice; /* NULL: none */
};

static const struct meaning
    need_password = {RE_PERM, DLOCK_EPERM, "a password is needed",
                     "set REDISCLI_AUTH, or write " URI_PARAM("?password-file=FILE")},
    wrong_password = {RE_PERM, DLOCK_EPERM, "the user or password is wrong",
                      "check the URI, REDISCLI_AUTH or ?password-file="},
    protected_mode = {RE_PERM, DLOCK_EPERM, "the server refuses clients from other hosts",
                      "set a password there or turn its protected mode off"},
    no_permission = {RE_PERM, DLOCK_EPERM, "the ACL user lacks a right",
                     "see dlock-redis(7) for the rule it needs"},
    lacks = {RE_PERM, DLOCK_EPERM, "the ACL user lacks a right", "ACL SETUSER USER"},
    foreign = {RE_TYPE, DLOCK_EDATA, "a key of the lock was written by another program", NULL},
    wrong_type = {RE_TYPE, DLOCK_EDATA, "a key of the lock is not a string", NULL},
    transient = {RE_TRANSIENT, DLOCK_EUNAVAIL, "the server refuses", NULL},
    replica = {RE_REPLICA, DLOCK_EUNAVAIL, "the server is a replica", "name the master"},
    other_node = {RE_CLUSTER, DLOCK_EUNAVAIL,
                  "the server is a cluster node that does not own this lock's slot", NULL},
    refused = {RE_REFUSED, DLOCK_EUNAVAIL, "the server refuses", NULL},
    only_db_0 = {RE_OTHER, DLOCK_EUSAGE, "the server is a cluster node: it has only database 0",
                 NULL},
    no_db = {RE_OTHER, DLOCK_EUSAGE, "the server has no such database", NULL},
    too_old = {RE_OTHER, DLOCK_EUNUSABLE, "Redis 6.0 or later is needed", NULL},
    no_command = {RE_OTHER, DLOCK_EUNUSABLE, "the server does not know",
                  "use Redis 6.0 or later, and undo its rename-command there"},
    unexpected = {RE_OTHER, DLOCK_EPROTO, "unexpected error", NULL};

/* The first row that has its word in the text decides. */
static const struct {
    const char *word;
    const struct meaning *meaning;
} words[] = {
    {FOREIGN, &foreign},
    {LACKS, &lacks},
    {"NOAUTH", &need_password},
    {"unauthenticated", &need_password}, /* 7.0: a long command before AUTH */
    {"WRONGPASS", &wrong_password},
    {"invalid password", &wrong_password}, /* before 6.0.0 final, and some services */
    {"DENIED", &protected_mode},
    {"NOPERM", &no_permission},
    {"user executing the script", &no_permission}, /* 7.0: NOPERM inside a script */
    {"ACL failure in script", &no_permission},     /* 7.2 and later: the same */
    {"WRONGTYPE", &wrong_type},
    {"LOADING", &transient},
    {"BUSY ", &transient},
    {"TRYAGAIN", &transient},
    {"non local key", &transient}, /* the slot is being moved: this key is on a different node */
    {"MASTERDOWN", &transient},
    {"CLUSTERDOWN", &transient},
    {"READONLY", &replica},
    {"UNBLOCKED", &replica}, /* the reply to WAIT when the server became a replica */
    {"MOVED ", &other_node},
    {"ASK ", &other_node},
    {"MISCONF", &refused},
    {"OOM ", &refused},
    {"NOREPLICAS", &refused},
    {"max number of clients", &refused},
    {"not allowed in cluster mode", &only_db_0},
    {"DB index", &no_db},
    {"unknown command", &no_command},
    {INSIDE, &no_command},
    {"non deterministic", &too_old},
};

/*
 * At the beginning of a word, anywhere in text: before Redis 7 an error inside a script is wrapped
 * in "ERR Error running script (call to f_...): ... -READONLY ...".
 */
static bool has_word(const char *text, const char *word)
{
    for (const char *p = strstr(text, word); p; p = strstr(p + 1, word))
        if (p == text || !isalpha((unsigned char)p[-1]))
            return true;
    return false;
}

static const struct meaning *meaning_of(const char *text)
{
    for (size_t i = 0; i < DLOCK_LEN(words); i++)
        if (has_word(text, words[i].word))
            return words[i].meaning;
    return &unexpected;
}

enum redis_conn_class redis_conn_classify(const char *text)
{
    return meaning_of(text)->class;
}

bool redis_conn_is_vague(const char *text)
{
    const struct meaning *m = meaning_of(text);
    return m == &no_permission || m == &wrong_type || (m == &no_command && strstr(text, INSIDE));
}

bool redis_conn_explains(const redisReply *r)
{
    const struct meaning *m = r->type == REDIS_REPLY_ERROR ? meaning_of(r->str) : NULL;
    return m == &lacks || m == &foreign ||
           (m == &no_command && strncmp(r->str, NOCOMMAND, strlen(NOCOMMAND)) == 0);
}

/* -------------------------------------------------------------------- secrets */

#define MIN_QUOTED 8 /* bytes of a quotation that the server cut */

/* The length of secret's quotation at p: whole, or the beginning where the server cut it. */
static size_t quoted(const char *p, const char *secret)
{
    size_t n = 0;
    while (secret[n] != '\0' && p[n] == secret[n])
        n++;
    return secret[n] == '\0' || n >= MIN_QUOTED ? n : 0;
}

static bool in_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* A user's name is blanked only as a word of its own: it may be "e". */
void redis_conn_show(char *out, size_t size, const struct redis_conn_auth *auth, const char *text)
{
    char t[512];
    size_t used = 0;
    const char *p = text;
    while (*p != '\0' && used + 4 <= sizeof(t)) {
        size_t n = 0;
        if (auth->password)
            n = quoted(p, auth->password);
        if (n == 0 && auth->user && (p == text || !in_word(p[-1]))) {
            n = quoted(p, auth->user);
            if (in_word(p[n]))
                n = 0;
        }
        if (n == 0) {
            t[used++] = *p++;
            continue;
        }
        memcpy(t + used, "***", 3);
        used += 3;
        p += n;
    }
    dlock_clean_words(out, size, t, used);
}

/* ------------------------------------------------------------------- messages */

static int explain(struct dlock_error *err, const char *where, const struct meaning *m,
                   const char *shown)
{
    return dlock_fail_at(err, m->code, 0, where, "%s (%s)%s%s", m->what, shown,
                         m->advice ? ": " : "", m->advice ? m->advice : "");
}

int redis_conn_sentinel_error(struct dlock_error *err, const char *where)
{
    return dlock_fail_at(err, DLOCK_EUSAGE, 0, where,
                         "this server is a Sentinel: write redis+sentinel://HOST/SERVICE#NAME");
}

/* shown: the reply without secrets. "unknown command 'EVAL', with args beginning with: '0' " */
static int explain_no_command(struct dlock_error *err, const char *where, const char *shown)
{
    static const char says[] = "unknown command";
    const struct meaning *m = &no_command;
    const char *at = strstr(shown, says);
    at = at ? at + strlen(says) + strspn(at + strlen(says), " '`") : "";
    int n = (int)strspn(at, "ABCDEFGHIJKLMNOPQRSTUVWXYZ |");
    return dlock_fail_at(err, m->code, 0, where, "%s %.*s (too old, or disabled): %s", m->what,
                         n > 0 ? n : 9, n > 0 ? at : "a command", m->advice);
}

int redis_conn_reply_error(struct dlock_error *err, const struct redis_conn *c, const char *text)
{
    const char *where = c->where;
    const struct meaning *m = meaning_of(text);
    char shown[200], ours[400];
    if (m == &foreign || m == &lacks) { /* names keys, perhaps with the user's name in them */
        const struct redis_conn_auth secret = {.password = c->auth.password};
        redis_conn_show(ours, sizeof(ours), &secret, strchr(text, ' ') + 1);
        return m == &foreign
                   ? dlock_fail_at(err, m->code, 0, where, "%s", ours)
                   : dlock_fail_at(err, m->code, 0, where, "%s: %s %s", m->what, m->advice, ours);
    }
    if (c->is_sentinel && m == &no_command)
        return redis_conn_sentinel_error(err, where);
    redis_conn_show(shown, sizeof(shown), &c->auth, text);
    if (m == &no_command)
        return explain_no_command(err, where, shown);
    const char *command = m == &no_permission ? strstr(shown, "run the '") : NULL;
    int n = command ? (int)strspn(command += 9, "abcdefghijklmnopqrstuvwxyz|") : 0;
    if (n > 0)
        return dlock_fail_at(err, m->code, 0, where, "%s: %s +%.*s", lacks.what, lacks.advice, n,
                             command);
    return explain(err, where, m, shown);
}

int redis_conn_auth_error(struct dlock_error *err, const struct redis_conn *c, const char *text)
{
    static const struct meaning
        unknown = {RE_PERM, DLOCK_EPERM, "AUTH refused",
                   "the server does not know this command; its configuration may have renamed or "
                   "removed it"},
        no_users = {RE_PERM, DLOCK_EPERM, "AUTH refused",
                    "the server knows no users, only a password"},
        other = {RE_PERM, DLOCK_EPERM, "AUTH refused", NULL};
    const struct meaning *m = meaning_of(text);
    char shown[24], code[24] = "no error code";
    size_t n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    /* An error code is a word of capital letters; any other first word may be part of a secret. */
    if (n > 0 && n < sizeof(code) && (text[n] == ' ' || text[n] == '\0'))
        snprintf(code, sizeof(code), "%.*s", (int)n, text);
    redis_conn_show(shown, sizeof(shown), &c->auth, code);
    if (m->class == RE_OTHER)
        m = strstr(text, "unknown command")             ? &unknown
            : strstr(text, "wrong number of arguments") ? &no_users
                                                        : &other;
    return explain(err, c->where, m, shown);
}
