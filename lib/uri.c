/*
 * uri.c - the lock's name. A store's ordinary connection string, '#', and the name.
 *
 * Messages quote what is wrong, so that one line is enough to repair it, but nothing that a '@'
 * follows: whoever forgets to encode a '/' or '#' in a password must not find half of it in a log.
 */
#include "uri_parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct uri_rule rules[] = {
    {"file", 0, PATH_FILE, HOST_NONE},
    {"redis", 6379, PATH_DB, HOST_LOCAL},
    {"rediss", 6379, PATH_DB, HOST_LOCAL},
    {"redis+unix", 0, PATH_SOCKET, HOST_NONE},
    {"redis+sentinel", 26379, PATH_SERVICE, HOST_MANY | HOST_REQUIRED},
    {"redlock", 6379, PATH_DB, HOST_MANY | HOST_CREDS | HOST_REQUIRED},
    {"redlocks", 6379, PATH_DB, HOST_MANY | HOST_CREDS | HOST_REQUIRED},
    {"postgres", 5432, PATH_ANY, HOST_MANY | HOST_LIBPQ},
    {"postgresql", 5432, PATH_ANY, HOST_MANY | HOST_LIBPQ},
    {"zk", 2181, PATH_TREE, HOST_MANY | HOST_REQUIRED},
    {"zookeeper", 2181, PATH_TREE, HOST_MANY | HOST_REQUIRED},
    {"fake", 6379, PATH_ANY, HOST_MANY | HOST_CREDS},
};

/* Without a quotation, for what may be a password that lost its '@'. */
int uri_refuse_unseen(const struct uri_parser *ps, const char *why)
{
    return dlock_fail(ps->err, DLOCK_EUSAGE, 0, "bad lock URI: %s", why);
}

int uri_refuse(const struct uri_parser *ps, struct uri_span s, const char *why)
{
    /* s points into the whole text: with a '@' further on, it may be part of a secret. */
    if (s.p >= s.end || strchr(s.p, '@'))
        return uri_refuse_unseen(ps, why);
    return dlock_fail(ps->err, DLOCK_EUSAGE, 0, "bad lock URI: \"%.*s\": %s",
                      s.end - s.p > 80 ? 80 : (int)(s.end - s.p), s.p, why);
}

int uri_no_memory(struct dlock_error *err)
{
    return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

static void wipe(char *s)
{
    if (s)
        explicit_bzero(s, strlen(s));
    free(s);
}

static char *copy(struct uri_span s)
{
    return strndup(s.p, span_len(s));
}

/* Percent-decode s into *out (malloc'ed). what: how a message names s, which may be a secret. */
int uri_decode(const struct uri_parser *ps, struct uri_span s, char **out, const char *what)
{
    char *buf = malloc(span_len(s) + 1), *w = buf;

    if (!buf)
        return uri_no_memory(ps->err);
    for (const char *p = s.p; p < s.end; p++) {
        int hi = 0, lo = 0;

        if (*p != '%') {
            *w++ = *p;
            continue;
        }
        hi = s.end - p > 2 ? dlock_hex(p[1]) : -1;
        lo = s.end - p > 2 ? dlock_hex(p[2]) : -1;
        if (hi < 0 || lo < 0 || hi + lo == 0) {
            *w = '\0';
            wipe(buf);
            return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                              "bad lock URI: in %s, '%%' is not followed by two hexadecimal digits "
                              "(01 to FF; a '%%' itself is %%25)",
                              what);
        }
        *w++ = (char)(hi << 4 | lo);
        p += 2;
    }
    *w = '\0';
    *out = buf;
    return 0;
}

bool uri_is_text(const char *s)
{
    bool good = true;

    for (size_t len = strlen(s), n; good && len > 0; s += n, len -= n)
        n = dlock_text_char(s, len, &good);
    return good;
}

/* ---------------------------------------------------------------- name --- */

/* A file name has 255 bytes; ".lock" takes 5, and '/' and '%' are written as three bytes. */
static bool fits_file_name(const char *name)
{
    size_t n = 0;

    for (; *name; name++)
        n += *name == '/' || *name == '%' ? 3 : 1;
    return n <= 250;
}

static int parse_name(const struct uri_parser *ps, struct uri_span s)
{
    int r = uri_decode(ps, s, &ps->u->name, "the lock's name");

    if (r < 0)
        return r;
    if (!*ps->u->name)
        return uri_refuse(ps, s, "the lock's name after '#' is empty: add one");
    if (!uri_is_text(ps->u->name))
        return uri_refuse(ps, s, "a lock's name must be UTF-8 without control characters");
    if (strlen(ps->u->name) > 255)
        return uri_refuse(ps, s, "a lock's name is at most 255 bytes long");
    if (ps->rule->path == PATH_FILE && !fits_file_name(ps->u->name))
        return uri_refuse(ps, s, "the name of a lock in a directory is at most 250 bytes long");
    return 0;
}

/* ------------------------------------------------------------ parameters --- */

static bool is_key(struct uri_span s)
{
    if (s.p == s.end)
        return false;
    for (; s.p < s.end; s.p++) {
        bool letter = (*s.p | 32) >= 'a' && (*s.p | 32) <= 'z';

        if (!letter && !(*s.p >= '0' && *s.p <= '9') && !memchr("._-", *s.p, 3))
            return false;
    }
    return true;
}

static int parse_param(const struct uri_parser *ps, struct uri_span s)
{
    struct dlock_uri *u = ps->u;
    struct dlock_param *v = &u->params[u->nparams];
    struct uri_span key = {s.p, span_find(s, '=')};
    struct uri_span value = {key.end < s.end ? key.end + 1 : s.end, s.end};
    char what[64];

    /* A key of other characters is more likely the rest of a password with a '?' in it. */
    if (!is_key(key))
        return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                          "bad lock URI: after '?', expected key=value pairs separated by '&'");
    for (int i = 0; i < u->nparams; i++)
        if (strlen(u->params[i].key) == span_len(key) &&
            memcmp(u->params[i].key, key.p, span_len(key)) == 0)
            return uri_refuse(ps, key, "this parameter is given twice");
    u->nparams++;
    v->key = copy(key);
    if (!v->key)
        return uri_no_memory(ps->err);
    snprintf(what, sizeof(what), "the value of \"%.32s\"", v->key);
    return uri_decode(ps, value, &v->value, what);
}

/* s: all that follows '?'. */
static int parse_query(const struct uri_parser *ps, struct uri_span s)
{
    size_t n = 1;
    int r = 0;

    if (s.p == s.end)
        return 0;
    for (const char *p = s.p; p < s.end; p++)
        n += *p == '&';
    ps->u->params = calloc(n, sizeof(*ps->u->params));
    if (!ps->u->params)
        return uri_no_memory(ps->err);
    while (n-- > 0 && r == 0) {
        struct uri_span one = {s.p, span_find(s, '&')};

        r = parse_param(ps, one);
        s.p = one.end < s.end ? one.end + 1 : s.end;
    }
    return r;
}

/* ------------------------------------------------------------------ whole --- */

/* The store for messages: never user, password or query. */
static char *make_where(const struct dlock_uri *u)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);

    if (!f)
        return NULL;
    fprintf(f, "%s://", u->scheme);
    for (int i = 0; i < u->nhosts; i++) {
        const struct dlock_host *h = &u->hosts[i];
        bool v6 = strchr(h->host, ':') != NULL;

        if (*h->host)
            fprintf(f, v6 ? "%s[%s]:%u" : "%s%s:%u", i > 0 ? "," : "", h->host, h->port);
    }
    fputs(u->path, f);
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

int dlock_uri_settle_where(struct dlock_uri *u, struct dlock_error *err)
{
    char *text = make_where(u);
    if (!text)
        return uri_no_memory(err);
    free(u->where);
    u->where = text;
    return 0;
}

size_t dlock_uri_scheme_len(const char *text)
{
    size_t n = 0;

    while (((text[n] | 32) >= 'a' && (text[n] | 32) <= 'z') ||
           (n > 0 && text[n] && ((text[n] >= '0' && text[n] <= '9') || strchr("+-.", text[n]))))
        n++;
    return strncmp(text + n, "://", 3) == 0 ? n : 0;
}

static void blank(char *p, const char *end)
{
    for (; p < end; p++)
        *p = 'x';
}

static bool names_secret(const char *key, const char *end)
{
    for (; key + 6 <= end; key++)
        if (strncasecmp(key, "secret", 6) == 0 ||
            (key + 8 <= end && strncasecmp(key, "password", 8) == 0))
            return true;
    return false;
}

void dlock_uri_blank_secrets(char *text)
{
    size_t scheme = dlock_uri_scheme_len(text);
    char *start = text + scheme + 3, *end, *at, *p;

    if (scheme == 0)
        return;
    end = strrchr(start, '#');
    end = end ? end : start + strlen(start);
    p = memchr(start, '?', (size_t)(end - start));
    while (p && p < end) {
        char *key = p + 1, *next = memchr(key, '&', (size_t)(end - key));
        char *stop = next ? next : end, *eq = memchr(key, '=', (size_t)(stop - key));

        if (eq && names_secret(key, eq))
            blank(eq + 1, stop);
        p = next;
    }
    /* Only the length shows, and the rest tells which lock it is. */
    at = memrchr(start, '@', (size_t)(end - start));
    blank(start, at ? at : start);
}

static const struct uri_rule *find_rule(const char *scheme)
{
    for (size_t i = 0; i < DLOCK_LEN(rules); i++)
        if (strcmp(rules[i].scheme, scheme) == 0)
            return &rules[i];
    return NULL;
}

/* The store part s (all of it) and, after '#', the name. */
static int parse_store(const struct uri_parser *ps, struct uri_span s, const char *hash)
{
    struct dlock_uri *u = ps->u;
    struct uri_span query = {span_find(s, '?'), s.end}, rest = {s.p, query.p}, path;
    int r;

    if (query.p < query.end)
        query.p++;
    path = (struct uri_span){span_find(rest, '/'), rest.end};
    u->bare = ps->rule->path == PATH_FILE && !hash;
    if (ps->rule->path == PATH_FILE && path.p - rest.p == 9 &&
        strncasecmp(rest.p, "localhost", 9) == 0)
        rest.p = path.p;
    r = uri_parse_authority(ps, (struct uri_span){rest.p, path.p});
    if (r == 0)
        r = uri_parse_path(ps, path);
    if (r == 0)
        r = parse_query(ps, query);
    if (r < 0)
        return r;
    if (hash)
        return parse_name(ps, (struct uri_span){hash + 1, hash + strlen(hash)});
    if (!u->bare)
        return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                          "the lock URI names a store but no lock: add '#NAME' at its end");
    u->name = strdup(u->path);
    return u->name ? 0 : uri_no_memory(ps->err);
}

static int parse_uri(struct uri_parser *ps, const char *text, size_t scheme_len)
{
    struct dlock_uri *u = ps->u;
    const char *hash = strrchr(text, '#');
    struct uri_span store = {text, hash ? hash : text + strlen(text)};
    int r;

    u->scheme = copy((struct uri_span){text, text + scheme_len});
    u->raw = copy(store);
    if (!u->scheme || !u->raw)
        return uri_no_memory(ps->err);
    for (char *p = u->scheme; *p; p++)
        *p = *p >= 'A' && *p <= 'Z' ? (char)(*p + 32) : *p;
    ps->rule = find_rule(u->scheme);
    if (!ps->rule)
        return dlock_fail(
            ps->err, DLOCK_EUSAGE, 0,
            "\"%.32s://\" is no kind of store that dlock knows (a file of that name: ./%.32s:...)",
            u->scheme, u->scheme);
    store.p += scheme_len + 3;
    r = parse_store(ps, store, hash);
    if (r < 0)
        return r;
    u->where = ps->rule->path == PATH_FILE ? strdup(u->path) : make_where(u);
    return u->where ? 0 : uri_no_memory(ps->err);
}

/* A path, byte for byte. */
static int parse_plain(const struct uri_parser *ps, const char *text)
{
    struct dlock_uri *u = ps->u;

    if (!*text)
        return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                          "the lock's name is empty (an unset variable?)");
    if (*text == '#')
        return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                          "\"%.80s\": is the variable before '#' empty? (write ./%.80s for a file)",
                          text, text);
    if (*text == '@')
        return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                          "\"%.80s\" is not a URI (write ./%.80s for a file)", text, text);
    u->bare = true;
    u->scheme = strdup("file");
    u->raw = strdup(text);
    u->path = strdup(text);
    u->name = strdup(text);
    u->where = strdup(text);
    return u->scheme && u->raw && u->path && u->name && u->where ? 0 : uri_no_memory(ps->err);
}

int dlock_uri_parse(struct dlock_uri **out, const char *text, struct dlock_error *err)
{
    struct uri_parser ps = {.u = calloc(1, sizeof(*ps.u)), .err = err};
    size_t scheme_len = dlock_uri_scheme_len(text);
    int r;

    if (!ps.u)
        return uri_no_memory(err);
    r = scheme_len > 0 ? parse_uri(&ps, text, scheme_len) : parse_plain(&ps, text);
    if (r < 0)
        dlock_uri_free(ps.u);
    else
        *out = ps.u;
    return r;
}

void dlock_uri_free(struct dlock_uri *u)
{
    if (!u)
        return;
    for (int i = 0; i < u->nhosts; i++) {
        wipe(u->hosts[i].host);
        wipe(u->hosts[i].user);
        wipe(u->hosts[i].password);
    }
    for (int i = 0; i < u->nparams; i++) {
        wipe(u->params[i].key);
        wipe(u->params[i].value);
    }
    free(u->hosts);
    free(u->params);
    wipe(u->scheme);
    wipe(u->raw);
    wipe(u->path);
    wipe(u->name);
    wipe(u->where);
    free(u);
}

const char *dlock_uri_param(struct dlock_uri *u, const char *key)
{
    for (int i = 0; i < u->nparams; i++) {
        if (strcmp(u->params[i].key, key) == 0) {
            u->params[i].used = true;
            return u->params[i].value;
        }
    }
    return NULL;
}

int dlock_uri_check_params(const struct dlock_uri *u, struct dlock_error *err)
{
    for (int i = 0; i < u->nparams; i++)
        if (!u->params[i].used)
            return dlock_fail(err, DLOCK_EUSAGE, 0, "%s: unknown parameter \"%.64s\"", u->where,
                              u->params[i].key);
    return 0;
}
