/*
 * uri_params.c - the parameters of a parsed URI: read by a backend, known from other programs, or
 * refused.
 */
#include "uri_parts.h"
#include "util.h"

#include <stdio.h>

bool uri_follows_secret(const struct dlock_uri *u, int i)
{
    while (--i >= 0)
        if (dlock_names_secret(u->params[i].key, strlen(u->params[i].key)))
            return true;
    return false;
}

/* The name without case, '_' and '-': clientName is client-name. False: the name is too long. */
static bool fold(char out[URI_SLIPS_MAX + 1], const char *name)
{
    size_t n = 0;
    for (; *name; name++) {
        if (*name == '_' || *name == '-')
            continue;
        if (n == URI_SLIPS_MAX)
            return false;
        out[n++] = *name >= 'A' && *name <= 'Z' ? (char)(*name + 32) : *name;
    }
    out[n] = '\0';
    return true;
}

/* Find the pattern that matches: of "a b*", where "b*" is a prefix. */
static bool is_foreign(const char *folded, const char *patterns, char pattern[URI_SLIPS_MAX + 1])
{
    char f[URI_SLIPS_MAX + 1];
    for (size_t len; *patterns; patterns += len + (patterns[len] == ' ')) {
        len = strcspn(patterns, " ");
        snprintf(pattern, URI_SLIPS_MAX + 1, "%.*s", (int)len, patterns);
        size_t n = fold(f, pattern) ? strcspn(f, "*") : 0;
        if (n > 0 && strncmp(folded, f, n) == 0 && (f[n] == '*' || folded[n] == '\0'))
            return true;
    }
    return false;
}

/* words: "a b", "a, b". Case does not count. */
static bool is_listed(const char *words, const char *value)
{
    for (size_t n; *words; words += n + strspn(words + n, " ,")) {
        n = strcspn(words, " ,");
        if (strlen(value) == n && strncasecmp(words, value, n) == 0)
            return true;
    }
    return false;
}

/* Note a known name that resembles p, unless a better name is noted. */
static void note_hint(struct dlock_param *p, const char *key)
{
    char a[URI_SLIPS_MAX + 1], b[URI_SLIPS_MAX + 1];
    size_t used = strlen(p->hint);
    if (!fold(a, p->key) || !fold(b, key))
        return;
    int n = uri_slips(a, b);
    if (n > (strlen(a) > 6 ? 2 : 1) || n >= (int)strlen(b) || (used > 0 && n > p->differs))
        return;
    if (used > 0 && n < p->differs)
        used = 0;
    if (used + strlen(key) + 3 > sizeof(p->hint) || is_listed(p->hint, key))
        return;
    snprintf(p->hint + used, sizeof(p->hint) - used, "%s%s", used > 0 ? ", " : "", key);
    p->differs = n;
}

void dlock_uri_known(struct dlock_uri *u, const char *key)
{
    for (int i = 0; i < u->nparams; i++)
        if (!u->params[i].used)
            note_hint(&u->params[i], key);
}

static struct dlock_param *find_param(const struct dlock_uri *u, const char *key)
{
    for (int i = 0; i < u->nparams; i++)
        if (strcmp(u->params[i].key, key) == 0)
            return &u->params[i];
    return NULL;
}

const char *dlock_uri_param(struct dlock_uri *u, const char *key)
{
    struct dlock_param *p = find_param(u, key);
    if (!p) {
        dlock_uri_known(u, key);
        return NULL;
    }
    p->used = true;
    return p->value;
}

const char *dlock_uri_peek(const struct dlock_uri *u, const char *key)
{
    const struct dlock_param *p = find_param(u, key);
    return p ? p->value : NULL;
}

/* Host and the key of parameter i may be parts of a password, or the key alone. */
static bool hides_key(const struct dlock_uri *u, int i)
{
    return strchr(strchr(u->raw, '?'), '@') || uri_follows_secret(u, i);
}

/* p matches this pattern of the rule. The message does not quote a value: it may be a password. */
static int apply_foreign(const struct dlock_uri *u, struct dlock_param *p, const char *pattern,
                         const struct dlock_foreign *rule, struct dlock_error *err)
{
    bool hides = hides_key(u, (int)(p - u->params));
    if (rule->how == FOREIGN_RENAMED) {
        const struct dlock_param *ours = find_param(u, rule->text);
        if (ours && ours != p && hides)
            return dlock_fail(err, DLOCK_EUSAGE, 0,
                              "bad lock URI: %s= is given twice, once by another name", rule->text);
        if (ours && ours != p)
            return dlock_fail_at(err, DLOCK_EUSAGE, 0, u->where,
                                 "%s= and %s= are the same: give one of them", p->key, rule->text);
        dlock_wipe(p->key);
        p->key = strdup(rule->text);
        return p->key ? 0 : uri_no_memory(err);
    }
    p->used = rule->how == FOREIGN_AS_OURS && is_listed(rule->values, p->value);
    if (p->used)
        return 0;
    if (hides)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "bad lock URI: a parameter like %s: %s", pattern,
                          rule->text);
    return dlock_fail_at(err, DLOCK_EUSAGE, 0, u->where, "parameter \"%.40s\": %s", p->key,
                         rule->text);
}

int dlock_uri_foreign(struct dlock_uri *u, const char *const *ignored,
                      const struct dlock_foreign *rules_, struct dlock_error *err)
{
    char name[URI_SLIPS_MAX + 1], pattern[URI_SLIPS_MAX + 1];
    int r = 0;
    for (int i = 0; i < u->nparams && r == 0; i++) {
        struct dlock_param *p = &u->params[i];
        const struct dlock_foreign *rule = rules_;
        if (p->used || !fold(name, p->key))
            continue;
        for (const char *const *s = ignored; s && *s && !p->ignored; s++) {
            p->ignored = p->used = is_foreign(name, *s, pattern);
            note_hint(p, *s);
        }
        while (rule->keys && !is_foreign(name, rule->keys, pattern))
            rule++;
        if (!p->used && rule->keys)
            r = apply_foreign(u, p, pattern, rule, err);
    }
    return r;
}

const char *dlock_uri_file_param(const struct dlock_uri *u)
{
    /* In the spelling of fold(). Also of other programs, and as libpq may name them in future. */
    static const char *const parts[] = {"file",   "cert",   "crl",   "service", "hostaddr",
                                        "sslkey", "tlskey", "sslca", "tlsca",   "gssdelegation"};
    char name[URI_SLIPS_MAX + 1];
    for (int i = 0; i < u->nparams; i++) {
        if (!fold(name, u->params[i].key))
            return "unknown";
        for (size_t k = 0; k < DLOCK_LEN(parts); k++)
            if (strstr(name, parts[k]))
                return parts[k];
        /* In the URI of a Redis; PostgreSQL's is a number. */
        if (strcmp(name, "key") == 0 && strncmp(u->scheme, "postgres", 8) != 0)
            return "key";
    }
    return NULL;
}

bool dlock_uri_ignored(const struct dlock_uri *u, char *buf, size_t size)
{
    bool any = false;
    for (int i = 0; i < u->nparams; i++) {
        if (!u->params[i].ignored)
            continue;
        int n = snprintf(buf, size, "%s%s", any ? ", " : "", u->params[i].key);
        any = true;
        if ((size_t)n >= size)
            break; /* full, or none was asked for */
        buf += n;
        size -= (size_t)n;
    }
    return any;
}

const char *dlock_uri_params_text(const struct dlock_uri *u, char *buf, size_t size)
{
    size_t n = 0;
    buf[0] = '\0';
    for (int i = 0; i < u->nparams && n < size; i++) {
        const struct dlock_param *p = &u->params[i];
        if (!p->ignored && !hides_key(u, i) && strcmp(p->key, "user") != 0 &&
            !dlock_names_secret(p->key, strlen(p->key)))
            n += (size_t)snprintf(buf + n, size - n, "%s%s=%s", n > 0 ? "&" : "", p->key, p->value);
    }
    return buf;
}

int dlock_uri_check_params(const struct dlock_uri *u, struct dlock_error *err)
{
    for (int i = 0; i < u->nparams; i++) {
        const struct dlock_param *p = &u->params[i];
        if (p->used)
            continue;
        if (hides_key(u, i))
            return dlock_fail(
                err, DLOCK_EUSAGE, 0,
                "bad lock URI: an unknown parameter after '?' (in a password, write '?' as %%3F "
                "and '&' as %%26)");
        if (is_listed("ttl grace wait timeout once min-hold max-run note slots retry", p->key))
            return dlock_fail_at(err, DLOCK_EUSAGE, 0, u->where,
                                 "unknown parameter \"%s\": it is the option --%s", p->key, p->key);
        if (*p->hint)
            return dlock_fail_at(err, DLOCK_EUSAGE, 0, u->where,
                                 "unknown parameter \"%.64s\"; did you mean %s?", p->key, p->hint);
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, u->where, "unknown parameter \"%.64s\"", p->key);
    }
    return 0;
}
