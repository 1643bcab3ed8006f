/* uri_typo.c - refuse an unknown or misspelled scheme, and a path that looks like a URI. */
#include "uri_parts.h"
#include "util.h"

#include <limits.h>
#include <stdio.h>

static bool is_scheme_char(char c, bool first)
{
    if ((c | 32) >= 'a' && (c | 32) <= 'z')
        return true;
    return !first && c && ((c >= '0' && c <= '9') || strchr("+-.", c));
}

size_t uri_scheme_chars(const char *text)
{
    size_t n = 0;
    while (is_scheme_char(text[n], n == 0))
        n++;
    return n;
}

size_t dlock_uri_scheme_len(const char *text)
{
    size_t n = uri_scheme_chars(text);
    return strncmp(text + n, "://", 3) == 0 ? n : 0;
}

int uri_slips(const char *a, const char *b)
{
    int d[URI_SLIPS_MAX + 1][URI_SLIPS_MAX + 1];
    size_t na = strlen(a), nb = strlen(b);
    if (na > URI_SLIPS_MAX || nb > URI_SLIPS_MAX)
        return INT_MAX;
    for (size_t i = 0; i <= na; i++)
        for (size_t k = 0; k <= nb; k++) {
            if (i == 0 || k == 0) {
                d[i][k] = (int)(i + k);
                continue;
            }
            d[i][k] = d[i - 1][k - 1] + (a[i - 1] != b[k - 1]);
            d[i][k] = (int)dlock_min(d[i][k], dlock_min(d[i - 1][k], d[i][k - 1]) + 1);
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
                d[i][k] = (int)dlock_min(d[i][k], d[i - 2][k - 2] + 1);
        }
    return d[na][nb];
}

int uri_unknown_store(const char *scheme, struct dlock_error *err)
{
    /* Other programs' schemes for our stores. */
    static const struct {
        const char *scheme, *ours;
    } names[] = {
        /* Lettuce; there redis+tls is not TLS from the first byte on, which no Redis server has */
        {"redis+ssl", "rediss://"},
        {"redis+tls", "rediss://"},
        {"redis-socket", "redis+unix:///SOCKET?db=N"},
        {"redis-sentinel", "redis+sentinel://S1,S2,S3/SERVICE"},
        {"rediss-sentinel", "redis+sentinel://, which has no TLS yet"},
        {"rediss+sentinel", "redis+sentinel://, which has no TLS yet"},
        /* kombu (Celery), redis-py, go-redis, redis-rb, pomerium */
        {"redis+socket", "redis+unix:///SOCKET?db=N"},
        {"unix", "redis+unix:///SOCKET?db=N"},
        {"sentinel", "redis+sentinel://S1,S2,S3/SERVICE"},
        {"redis+cluster", "redis://MEMBER"},
        {"rediss+cluster", "rediss://MEMBER"},
        /* dj-database-url, django-environ, Rails */
        {"postgis", "postgres://"},
        {"pgsql", "postgres://"},
        {"psql", "postgres://"},
    };
    const char *ours;
    char hint[160] = "";
    for (size_t i = 0; i < DLOCK_LEN(names); i++)
        if (strcmp(names[i].scheme, scheme) == 0)
            snprintf(hint, sizeof(hint), "; write %s", names[i].ours);
    for (size_t i = 0; (ours = uri_scheme(i)) && !*hint; i++)
        if (uri_slips(scheme, ours) == 1)
            snprintf(hint, sizeof(hint), "; did you mean %s://?", ours);
    bool listed = !*hint;
    for (size_t i = 0; listed && (ours = uri_scheme(i)); i++)
        snprintf(hint + strlen(hint), sizeof(hint) - strlen(hint), "%s %s",
                 i == 0 ? "; known:" : ",", ours);
    return dlock_fail(err, DLOCK_EUSAGE, 0, "unknown store \"%.20s://\"%s (a file%s: ./%.20s%s...)",
                      scheme, hint, listed ? "" : " of that name", listed ? "" : scheme,
                      listed ? "" : ":");
}

/* A scheme of ours or of Rails, also in "SCHEME+DRIVER". */
static bool is_ours(struct uri_span s)
{
    struct uri_span head = {s.p, span_find(s, '+')};
    const char *ours;
    for (size_t i = 0; (ours = uri_scheme(i)); i++)
        if (uri_is_word(s, ours) || uri_is_word(head, ours))
            return true;
    return uri_is_word(s, "mysql2") || uri_is_word(s, "trilogy");
}

/* A scheme of other stores that users may lock with. */
static bool is_others(struct uri_span s)
{
    static const char *const words[] = {
        "etcd", "consul", "sqlserver", "mongodb", "dynamodb", "memcache", "memcached", "keydb",
        "nats", "ldap",   "ldaps",     "s3",      "gs",       "http",     "https",
    };
    s.end = span_find(s, '+');
    for (size_t i = 0; i < DLOCK_LEN(words); i++)
        if (uri_is_word(s, words[i]))
            return true;
    return false;
}

static bool is_blank_or_quote(char c)
{
    return c && strchr(" \t\n\v\f\r\"'`", c);
}

/* Text stands before the scheme of "://" at slashes. It may be a password: quote the rest only. */
static int refuse_prefix(const char *text, const char *slashes, struct dlock_error *err)
{
    struct uri_span s = {slashes, slashes};
    size_t word = uri_scheme_chars(text);
    if (is_blank_or_quote(*text))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "begins with a %s: remove it",
                          strchr("\"'`", *text) ? "quotation mark" : "blank");
    while (s.p > text && is_scheme_char(s.p[-1], false))
        s.p--;
    while (s.p < s.end && !is_scheme_char(*s.p, true))
        s.p++;
    if (s.p == s.end)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "has no scheme, such as redis, before \"://\"");
    int n = is_ours(s) || is_others(s) ? (int)span_len(s) : 0;
    if (n > 0 && word > 0 && word <= 32 && text[word] == ':' && text + word + 1 == s.p)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "has \"%.*s\" before \"%.*s://\": remove it",
                          (int)word + 1, text, n, s.p);
    return dlock_fail(err, DLOCK_EUSAGE, 0,
                      "has something before \"%.*s://\": remove what is no part of a URI", n, s.p);
}

int dlock_uri_check_typo(const char *text, struct dlock_error *err)
{
    const char *slashes = strstr(text, "://"), *first = strchr(text, '/');
    struct uri_span s = {text, text + uri_scheme_chars(text)};
    int n = (int)span_len(s);
    /* "jdbc:redis:user:password@host"; with "://" it is refused below. */
    if (uri_is_word(s, "jdbc") && *s.end == ':') {
        struct uri_span store = {s.end + 1, s.end + 1 + uri_scheme_chars(s.end + 1)};
        if (*store.end == ':' && strncmp(store.end, "://", 3) != 0)
            return dlock_fail(err, DLOCK_EUSAGE, 0,
                              "begins with \"jdbc:\": remove it, and write SCHEME://...");
    }
    /* "redis:host": the "//" is missing. */
    if (*s.end == ':' && strncmp(s.end, "://", 3) != 0) {
        if (is_ours(s))
            return dlock_fail(err, DLOCK_EUSAGE, 0,
                              "has no \"//\" after \"%.*s:\": write %.*s://...", n, text, n, text);
        if (is_others(s))
            return dlock_fail(err, DLOCK_EUSAGE, 0,
                              "begins with \"%.*s:\", a store unknown to dlock", n, text);
    }
    if (!slashes || dlock_uri_scheme_len(text) > 0)
        return 0;
    /* "dir/x://y" is a path. */
    return slashes < first || is_blank_or_quote(*text) ? refuse_prefix(text, slashes, err) : 0;
}

/* The scheme that a forgotten one probably was: by the host's name or its port. */
static const char *probable_scheme(struct uri_span host, const char *port)
{
    for (size_t i = 0; uri_scheme(i); i++)
        if (uri_is_word(host, uri_scheme(i)))
            return strcmp(uri_scheme(i), "file") == 0 ? "redis" : uri_scheme(i);
    return strncmp(port, ":5432", 5) == 0   ? "postgres"
           : strncmp(port, ":3306", 5) == 0 ? "mysql"
           : strncmp(port, ":2181", 5) == 0 ? "zk"
                                            : "redis";
}

int uri_check_forgotten(const char *text, struct dlock_error *err)
{
    const char *hash = strchr(text, '#');
    struct uri_span host = {text, text + strcspn(text, ":#")};
    const char *port = host.end;
    size_t digits = *port == ':' ? strspn(port + 1, "0123456789") : 0;
    bool has_port = digits >= 1 && digits <= 5 && (!port[1 + digits] || port + 1 + digits == hash);
    if (strchr(text, '/'))
        return 0;
    if (*text == '$')
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "LOCK begins with '$', which the shell did not expand: put it in double "
                          "quotes, or write ./%.64s for a file of that name",
                          text);
    if (!hash && !has_port)
        return 0;
    /* Not quoted: what may be a password stands before a '@', and behind a '=' or ':'. */
    if (strpbrk(text, "@=") || (*port == ':' && !has_port))
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "LOCK has a '#' but no scheme: write a URI, such as "
                          "postgres://HOST/DATABASE#NAME, or ./... for a file of that name");
    return dlock_fail(err, DLOCK_EUSAGE, 0,
                      "LOCK has %s but no scheme: write %s://%.56s%s, or ./%.56s for a file of "
                      "that name",
                      hash ? "a '#'" : "a port", probable_scheme(host, port), text,
                      hash ? "" : "#NAME", text);
}
