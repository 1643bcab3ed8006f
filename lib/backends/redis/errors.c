/*
 * errors.c - what the error replies of Redis mean to a lock.
 */
#include "conn.h"

#include <ctype.h>
#include <string.h>

/*
 * At the beginning of a word anywhere in text: before Redis 7 an error inside a script is wrapped in
 * "ERR Error running script (call to f_...): ... -READONLY ...".
 */
static bool has_word(const char *text, const char *word)
{
    for (const char *p = strstr(text, word); p != NULL; p = strstr(p + 1, word))
        if (p == text || !isalpha((unsigned char)p[-1]))
            return true;
    return false;
}

enum redis_conn_class redis_conn_classify(const char *text)
{
    static const struct {
        const char *word;
        enum redis_conn_class class;
    } table[] = {
        {"NOAUTH", RE_PERM},
        {"unauthenticated", RE_PERM}, /* 7.0: a long command before AUTH */
        {"WRONGPASS", RE_PERM},
        {"NOPERM", RE_PERM},
        {"DENIED", RE_PERM},
        {"invalid password", RE_PERM},          /* before 6.0.0 final, and some services */
        {"user executing the script", RE_PERM}, /* 7.0: NOPERM inside a script */
        {"ACL failure in script", RE_PERM},     /* 7.2 and later: the same */
        {"WRONGTYPE", RE_TYPE},
        {"LOADING", RE_TRANSIENT},
        {"BUSY ", RE_TRANSIENT},
        {"TRYAGAIN", RE_TRANSIENT},
        {"non local key",
         RE_TRANSIENT}, /* the slot is being moved to another node, this key is not here */
        {"MASTERDOWN", RE_TRANSIENT},
        {"CLUSTERDOWN", RE_TRANSIENT},
        {"READONLY", RE_REPLICA},
        {"UNBLOCKED", RE_REPLICA}, /* to a WAIT: it has become one meanwhile */
        {"MOVED ", RE_CLUSTER},
        {"ASK ", RE_CLUSTER},
        {"MISCONF", RE_REFUSED},
        {"OOM ", RE_REFUSED},
        {"NOREPLICAS", RE_REFUSED},
        {"max number of clients", RE_REFUSED},
    };
    for (size_t i = 0; i < DLOCK_LEN(table); i++)
        if (has_word(text, table[i].word))
            return table[i].class;
    return RE_OTHER;
}

/* -------------------------------------------------------------------- secrets */

#define MIN_QUOTED 8 /* of a quotation that was cut short */

/* How much of p belongs to a quotation of secret: all of it or, where the server cut it, its beginning. */
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

/* text, fit for a message. A user's name is blanked as a word of its own only: it may be "e". */
void redis_conn_show(char *out, size_t size, const struct redis_conn_auth *auth, const char *text)
{
    char t[512];
    size_t used = 0;
    const char *p = text;

    while (*p != '\0' && used + 4 <= sizeof(t)) {
        size_t n = 0;
        if (auth->password != NULL)
            n = quoted(p, auth->password);
        if (n == 0 && auth->user != NULL && (p == text || !in_word(p[-1]))) {
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
    dlock_clean_text(out, size, t, used);
}

/* ----------------------------------------------------------------- explaining */

/* text decides, t is shown. */
static int explain(struct dlock_error *err, const char *where, const char *text, const char *t)
{
    switch (redis_conn_classify(text)) {
    case RE_PERM:
        if (strstr(text, "NOAUTH") != NULL || strstr(text, "unauthenticated") != NULL)
            return dlock_fail(err, DLOCK_EPERM, 0,
                              "%s: a password is needed (%s): set REDISCLI_AUTH, or use "
                              "?password-file=FILE",
                              where, t);
        if (strstr(text, "WRONGPASS") != NULL || strstr(text, "invalid password") != NULL)
            return dlock_fail(err, DLOCK_EPERM, 0,
                              "%s: the user or password is wrong (%s): check the URI, "
                              "REDISCLI_AUTH or ?password-file=",
                              where, t);
        if (strstr(text, "DENIED") != NULL)
            return dlock_fail(err, DLOCK_EPERM, 0,
                              "%s: the server refuses clients from outside (%s): set a password "
                              "there or turn its protected mode off",
                              where, t);
        return dlock_fail(err, DLOCK_EPERM, 0,
                          "%s: the ACL user lacks a right (%s): see the manual for the rule it "
                          "needs",
                          where, t);
    case RE_TYPE:
        return dlock_fail(err, DLOCK_EDATA, 0, "%s: a key of the lock is no string (%s)", where, t);
    case RE_REPLICA:
        return dlock_fail(err, DLOCK_EUNAVAIL, 0,
                          "%s: the server is a replica (%s): name the master", where, t);
    case RE_CLUSTER:
        return dlock_fail(err, DLOCK_EUNAVAIL, 0,
                          "%s: the server is part of a cluster and has not the lock (%s)", where,
                          t);
    case RE_TRANSIENT:
    case RE_REFUSED:
        return dlock_fail(err, DLOCK_EUNAVAIL, 0, "%s: the server refuses: %s", where, t);
    case RE_OTHER:
        break;
    }
    if (strstr(text, "not allowed in cluster mode") != NULL)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "%s: the server is part of a cluster, which has only database 0 (%s)",
                          where, t);
    if (strstr(text, "DB index") != NULL)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s: the server has no such database (%s)", where,
                          t);
    if (strstr(text, "unknown command") != NULL || strstr(text, "Unknown Redis command") != NULL ||
        strstr(text, "non deterministic") != NULL)
        return dlock_fail(err, DLOCK_EUNAVAIL, 0, "%s: Redis 6.0 or later is needed: %s", where, t);
    return dlock_fail(err, DLOCK_EPROTO, 0, "%s: unexpected error: %s", where, t);
}

int redis_conn_reply_error(struct dlock_error *err, const char *where,
                           const struct redis_conn_auth *auth, const char *text)
{
    char t[200];
    redis_conn_show(t, sizeof(t), auth, text);
    return explain(err, where, text, t);
}

int redis_conn_auth_error(struct dlock_error *err, const char *where,
                          const struct redis_conn_auth *auth, const char *text)
{
    /* Error codes are words of capital letters; what is none may be anything. */
    size_t n = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    char word[24] = "no error code", t[24];
    if (n > 0 && n < sizeof(word) && (text[n] == ' ' || text[n] == '\0')) {
        memcpy(word, text, n);
        word[n] = '\0';
    }
    redis_conn_show(t, sizeof(t), auth, word);
    if (redis_conn_classify(text) != RE_OTHER)
        return explain(err, where, text, t);
    if (strstr(text, "unknown command") != NULL)
        return dlock_fail(err, DLOCK_EPERM, 0,
                          "%s: AUTH refused (%s): the server does not know this command; it may "
                          "have been renamed or taken away there",
                          where, t);
    if (strstr(text, "wrong number of arguments") != NULL)
        return dlock_fail(err, DLOCK_EPERM, 0,
                          "%s: AUTH refused (%s): the server knows no users, only a password",
                          where, t);
    return dlock_fail(err, DLOCK_EPERM, 0, "%s: AUTH refused (%s)", where, t);
}
