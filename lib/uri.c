/*
 * uri.c - the lock's name: a store's ordinary connection string, '#', and the name.
 *
 * The text is cut at the last '#', then at '?', then at the first '/': authority (credentials and hosts), path,
 * parameters, name. What is special about a scheme stands in one table of rules.
 *
 * Messages quote what is wrong, so that one line is enough to repair it, but nothing that a '@' follows: a
 * password with a '/' or '#' that was not encoded must not appear in a log, not even in part.
 */
#include "uri.h"

#include "util.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

enum path_kind { PATH_FILE, PATH_DB, PATH_SERVICE, PATH_SOCKET, PATH_TREE, PATH_ANY };

enum {
    HOST_MANY = 1,  /* a comma list */
    HOST_CREDS = 2, /* each host may bring its own user:pass@ */
    HOST_REQUIRED = 4,
    HOST_NONE = 8,
    HOST_LOCAL = 16, /* without a host: 127.0.0.1 */
    HOST_LIBPQ = 32  /* libpq checks the list: sockets as hosts, empty ports */
};

/* What is special about a scheme. */
struct uri_rule {
    const char *scheme;
    unsigned short port;
    enum path_kind path;
    int hosts;
};

/* A piece of the text. */
struct uri_span {
    const char *p, *end;
};

struct uri_parser {
    struct dlock_uri *u;
    const struct uri_rule *rule;
    struct dlock_error *err;
};

static inline size_t span_len(struct uri_span s)
{
    return (size_t)(s.end - s.p);
}

/* The first c in s, or s.end. */
static inline const char *span_find(struct uri_span s, char c)
{
    const char *q = s.p < s.end ? memchr(s.p, c, span_len(s)) : NULL;

    return q ? q : s.end;
}

/* The last c in s, or NULL. */
static inline const char *span_rfind(struct uri_span s, char c)
{
    return s.p < s.end ? memrchr(s.p, c, span_len(s)) : NULL;
}

static const struct uri_rule rules[] = {
    {"file", 0, PATH_FILE, HOST_NONE},
    {"redis", 6379, PATH_DB, HOST_LOCAL},
    {"rediss", 6379, PATH_DB, HOST_LOCAL},
    {"valkey", 6379, PATH_DB, HOST_LOCAL},
    {"valkeys", 6379, PATH_DB, HOST_LOCAL},
    {"redis+unix", 0, PATH_SOCKET, HOST_NONE},
    {"redis+sentinel", 26379, PATH_SERVICE, HOST_MANY | HOST_REQUIRED},
    {"redlock", 6379, PATH_DB, HOST_MANY | HOST_CREDS | HOST_REQUIRED},
    {"redlocks", 6379, PATH_DB, HOST_MANY | HOST_CREDS | HOST_REQUIRED},
    {"postgres", 5432, PATH_ANY, HOST_MANY | HOST_LIBPQ},
    {"postgresql", 5432, PATH_ANY, HOST_MANY | HOST_LIBPQ},
    {"zk", 2181, PATH_TREE, HOST_MANY | HOST_REQUIRED},
    {"zookeeper", 2181, PATH_TREE, HOST_MANY | HOST_REQUIRED},
    {"fake", 6379, PATH_ANY,
     HOST_MANY | HOST_CREDS}, /* for tests; the last one, see unknown_store() */
};

/* Refuse without a quotation: the text may be a password that lost its '@'. */
static int refuse_unseen(const struct uri_parser *ps, const char *why)
{
    return dlock_fail(ps->err, DLOCK_EUSAGE, 0, "bad lock URI: %s", why);
}

static int refuse(const struct uri_parser *ps, struct uri_span s, const char *why)
{
    /* s points into the whole text: with a '@' further on, it may be part of a secret. */
    if (s.p >= s.end || strchr(s.p, '@'))
        return refuse_unseen(ps, why);
    return dlock_fail(ps->err, DLOCK_EUSAGE, 0, "bad lock URI: \"%.*s\": %s",
                      s.end - s.p > 80 ? 80 : (int)(s.end - s.p), s.p, why);
}

static int no_memory(struct dlock_error *err)
{
    return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

static void wipe(char *s)
{
    if (s)
        explicit_bzero(s, strlen(s));
    free(s);
}

static bool is_word(struct uri_span s, const char *word)
{
    return strlen(word) == span_len(s) && strncasecmp(word, s.p, span_len(s)) == 0;
}

static char *copy(struct uri_span s)
{
    return strndup(s.p, span_len(s));
}

/* Percent-decode s into *out (malloc'ed). what: the name of s in messages: s itself may be a secret. */
static int decode(const struct uri_parser *ps, struct uri_span s, char **out, const char *what)
{
    char *buf = malloc(span_len(s) + 1), *w = buf;

    if (!buf)
        return no_memory(ps->err);
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
            return dlock_fail(
                ps->err, DLOCK_EUSAGE, 0,
                "bad lock URI: in %s, '%%' is not followed by two hexadecimal digits (01 to FF; a '%%' itself is %%25)",
                what);
        }
        *w++ = (char)(hi << 4 | lo);
        p += 2;
    }
    *w = '\0';
    *out = buf;
    return 0;
}

static bool is_text(const char *s)
{
    bool good = true;

    for (size_t len = strlen(s), n; good && len > 0; s += n, len -= n)
        n = dlock_text_char(s, len, &good);
    return good;
}

/* ------------------------------------------------------------------ name --- */

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
    int r = decode(ps, s, &ps->u->name, "the lock's name");

    if (r < 0)
        return r;
    if (!*ps->u->name)
        return refuse(ps, s, "the lock's name after '#' is empty: add one");
    if (!is_text(ps->u->name))
        return refuse(ps, s, "a lock's name must be UTF-8 without control characters");
    if (strlen(ps->u->name) > 255)
        return refuse(ps, s, "a lock's name is at most 255 bytes long");
    if (ps->rule->path == PATH_FILE && !fits_file_name(ps->u->name))
        return refuse(ps, s, "the name of a lock in a directory is at most 250 bytes long");
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

/* After a password with a '&' that was not encoded, the rest of it looks like a parameter. */
static bool follows_secret(const struct dlock_uri *u, int i)
{
    while (--i >= 0)
        if (dlock_names_secret(u->params[i].key, strlen(u->params[i].key)))
            return true;
    return false;
}

/* "?a=1?b=2": from two texts that were put together. Before it was decoded: %3F is a part of a value. */
static int refuse_second(const struct uri_parser *ps, struct uri_span s, const char *mark)
{
    struct uri_span key = {s.p, span_find(s, '=')}, next = {mark + 1, s.end};

    key.end = key.end < mark ? key.end : mark;
    next.end = span_find(next, '=');
    if (!is_key(next) || follows_secret(ps->u, ps->u->nparams) || strchr(s.p, '@') ||
        dlock_names_secret(key.p, span_len(key)))
        return refuse_unseen(ps, "a second '?': use & here (write a '?' in a value as %3F)");
    return dlock_fail(
        ps->err, DLOCK_EUSAGE, 0,
        "bad lock URI: a second '?', before \"%.*s\": use & here (write a '?' in a value as %%3F)",
        span_len(next) > 64 ? 64 : (int)span_len(next), next.p);
}

static int parse_param(const struct uri_parser *ps, struct uri_span s)
{
    struct dlock_uri *u = ps->u;
    struct dlock_param *v = &u->params[u->nparams];
    struct uri_span key = {s.p, span_find(s, '=')};
    struct uri_span value = {key.end < s.end ? key.end + 1 : s.end, s.end};
    const char *mark = span_find(s, '?');
    bool hide = strchr(s.p, '@') || follows_secret(u, u->nparams);
    char what[64];

    if (mark < s.end)
        return refuse_second(ps, s, mark);
    /* A key with other characters is probably the rest of a password with a '?' in it. */
    if (!is_key(key))
        return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                          "bad lock URI: after '?', expected key=value pairs separated by '&'");
    for (int i = 0; i < u->nparams; i++)
        if (strlen(u->params[i].key) == span_len(key) &&
            memcmp(u->params[i].key, key.p, span_len(key)) == 0)
            return hide ? refuse_unseen(ps, "a parameter is given twice")
                        : refuse(ps, key, "this parameter is given twice");
    u->nparams++;
    v->key = copy(key);
    if (!v->key)
        return no_memory(ps->err);
    /* With a '@' further on, the key may be a part of a password with a '?' in it. */
    if (hide)
        snprintf(what, sizeof(what), "the value of a parameter");
    else
        snprintf(what, sizeof(what), "the value of \"%.32s\"", v->key);
    return decode(ps, value, &v->value, what);
}

/* s: all text after the '?'. */
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
        return no_memory(ps->err);
    while (n-- > 0 && r == 0) {
        struct uri_span one = {s.p, span_find(s, '&')};

        r = parse_param(ps, one);
        s.p = one.end < s.end ? one.end + 1 : s.end;
    }
    return r;
}

/* ----------------------------------------------------------------- hosts --- */

/* user, user:pass or :pass; an empty one counts as not given: it may come from an empty variable. */
static int parse_userinfo(const struct uri_parser *ps, struct dlock_host *h, struct uri_span s)
{
    struct uri_span user = {s.p, span_find(s, ':')};
    struct uri_span pass = {user.end < s.end ? user.end + 1 : s.end, s.end};
    int r = 0;

    if (user.p < user.end)
        r = decode(ps, user, &h->user, "the user name");
    if (r == 0 && pass.p < pass.end)
        r = decode(ps, pass, &h->password, "the password");
    return r;
}

static bool is_number(struct uri_span s)
{
    while (s.p < s.end && *s.p >= '0' && *s.p <= '9')
        s.p++;
    return s.p == s.end;
}

static int parse_port(const struct uri_parser *ps, struct dlock_host *h, struct uri_span s)
{
    unsigned n = 0;

    if (s.p == s.end && (ps->rule->hosts & HOST_LIBPQ))
        return 0;
    for (const char *p = s.p; p < s.end && n <= 65535; p++)
        n = *p >= '0' && *p <= '9' ? 10 * n + (unsigned)(*p - '0') : 65536;
    if (n > 65535 && !is_number(s))
        return refuse_unseen(ps, "the port after the host is not a number from 1 to 65535");
    if (n < 1 || n > 65535)
        return refuse(ps, s, "a port is a number from 1 to 65535");
    h->port = (unsigned short)n;
    h->has_port = true;
    return 0;
}

static bool is_ipv6(const char *text)
{
    char buf[INET6_ADDRSTRLEN];
    struct in6_addr addr;
    size_t n = strcspn(text, "%"); /* a zone follows */

    if (n >= sizeof(buf) || (text[n] && !text[n + 1]) || !is_text(text))
        return false;
    memcpy(buf, text, n);
    buf[n] = '\0';
    return inet_pton(AF_INET6, buf, &addr) == 1;
}

static bool is_host_name(const char *s)
{
    for (; *s; s++) {
        bool letter = (*s | 32) >= 'a' && (*s | 32) <= 'z';

        if (!letter && !(*s >= '0' && *s <= '9') && !strchr("-._", *s))
            return false;
    }
    return true;
}

static int parse_brackets(const struct uri_parser *ps, struct dlock_host *h, struct uri_span s)
{
    struct uri_span in = {s.p + 1, span_find(s, ']')};
    int r;

    if (in.end == s.end)
        return refuse(ps, s, "']' is missing after the IPv6 address");
    r = decode(ps, in, &h->host, "the host");
    if (r < 0)
        return r;
    if (!is_ipv6(h->host))
        return refuse(ps, s, "this is not an IPv6 address");
    s.p = in.end + 1;
    if (s.p == s.end)
        return 0;
    if (*s.p != ':')
        return refuse(ps, s, "only \":PORT\" may follow an IPv6 address");
    s.p++;
    return parse_port(ps, h, s);
}

/* HOST, HOST:PORT or [IPV6]:PORT, without user and password. */
static int parse_host(const struct uri_parser *ps, struct dlock_host *h, struct uri_span s)
{
    struct uri_span name = {s.p, span_find(s, ':')}, port = {name.end + 1, s.end};
    int r;

    h->port = ps->rule->port;
    if (s.p < s.end && *s.p == '[')
        return parse_brackets(ps, h, s);
    if (name.end < s.end && span_find(port, ':') < s.end)
        return refuse_unseen(
            ps, "a host has more than one ':' (an IPv6 address needs brackets: [::1]:6379)");
    r = decode(ps, name, &h->host, "the host");
    if (r == 0 && name.end < s.end)
        r = parse_port(ps, h, port);
    if (r < 0 || (ps->rule->hosts & HOST_LIBPQ))
        return r;
    if (!is_host_name(h->host))
        return refuse(ps, name, "a host name has letters, digits, '-' and '.' only");
    if (!*h->host && name.end < s.end)
        return refuse(ps, s, "a port without a host");
    return 0;
}

/* One entry of the list. The credentials of the whole list (without HOST_CREDS) are parsed before. */
static int parse_entry(const struct uri_parser *ps, struct uri_span s)
{
    struct dlock_host *h = &ps->u->hosts[ps->u->nhosts++];
    const char *at = ps->rule->hosts & HOST_CREDS ? span_rfind(s, '@') : NULL;
    int r = 0;

    if (at) {
        r = parse_userinfo(ps, h, (struct uri_span){s.p, at});
        s.p = at + 1;
    }
    return r < 0 ? r : parse_host(ps, h, s);
}

/* The same server twice would have two votes, or hide a missing standby. */
static int check_twice(const struct uri_parser *ps)
{
    const struct dlock_uri *u = ps->u;

    for (int i = 0; i < u->nhosts; i++)
        for (int k = 0; k < i; k++)
            if (u->hosts[i].port == u->hosts[k].port &&
                strcasecmp(u->hosts[i].host, u->hosts[k].host) == 0)
                return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                                  "bad lock URI: the host \"%s:%u\" is named twice",
                                  u->hosts[i].host, u->hosts[i].port);
    return 0;
}

static int share_credentials(const struct uri_parser *ps)
{
    struct dlock_host *h = ps->u->hosts;

    for (int i = 1; i < ps->u->nhosts; i++)
        if (h[i].user || h[i].password)
            return 0;
    for (int i = 1; i < ps->u->nhosts; i++) {
        if (h[0].user && !(h[i].user = strdup(h[0].user)))
            return no_memory(ps->err);
        if (h[0].password && !(h[i].password = strdup(h[0].password)))
            return no_memory(ps->err);
    }
    return 0;
}

/* A list without a host: 127.0.0.1, an entry that holds only credentials, or no entry. */
static int settle_no_host(const struct uri_parser *ps, struct uri_span s)
{
    struct dlock_uri *u = ps->u;

    if (ps->rule->hosts & HOST_REQUIRED)
        return refuse(ps, s, "the host is missing");
    if (ps->rule->hosts & HOST_LOCAL) {
        free(u->hosts[0].host);
        u->hosts[0].host = strdup("127.0.0.1");
        return u->hosts[0].host ? 0 : no_memory(ps->err);
    }
    if (!u->hosts[0].user && !u->hosts[0].password && !u->hosts[0].has_port) {
        free(u->hosts[0].host);
        u->hosts[0].host = NULL;
        u->nhosts = 0;
    }
    return 0;
}

/* Refuse a list of hosts. After a ':' it is not quoted: "user:password" may be all of it, with the '@' forgotten. */
static int refuse_hosts(const struct uri_parser *ps, struct uri_span list, const char *why)
{
    return span_find(list, ':') < list.end ? refuse_unseen(ps, why) : refuse(ps, list, why);
}

static int parse_list(const struct uri_parser *ps, struct uri_span s)
{
    struct dlock_uri *u = ps->u;
    struct uri_span all = s;
    int r = 0;

    u->nhosts = 0;
    for (;;) {
        struct uri_span one = {s.p, ps->rule->hosts & HOST_MANY ? span_find(s, ',') : s.end};

        r = parse_entry(ps, one);
        if (r < 0 || one.end == s.end)
            break;
        s.p = one.end + 1;
    }
    if (r < 0)
        return r;
    if (u->nhosts == 1 && !*u->hosts[0].host)
        return settle_no_host(ps, s);
    for (int i = 0; i < u->nhosts; i++)
        if (!*u->hosts[i].host)
            return refuse_hosts(ps, all, "a host is missing next to a ','");
    return ps->rule->hosts & HOST_LIBPQ ? 0 : check_twice(ps);
}

/*
 * Refuse, before decoding: a host where the store has none, several where it has one, and in the credentials a
 * character that would end them.
 */
static int check_authority(const struct uri_parser *ps, struct uri_span s, const char *at)
{
    struct uri_span creds = {s.p, at ? at : s.p}, list = {at ? at + 1 : s.p, s.end};
    const struct uri_rule *rule = ps->rule;
    bool named = list.p < list.end || (at && rule->path == PATH_FILE);

    if (named && (rule->hosts & HOST_NONE))
        return refuse_hosts(
            ps, list, "no host is allowed here: write a path that begins with '/' after \"://\"");
    if (!(rule->hosts & HOST_MANY) && span_find(list, ',') < list.end)
        return refuse_hosts(ps, list, "this kind of store has one host");
    if (rule->hosts & HOST_LIBPQ)
        return span_find(creds, '@') < creds.end
                   ? refuse(ps, s, "write a '@' in user or password as %40")
                   : 0;
    if ((rule->hosts & HOST_MANY) && span_find(creds, ',') < creds.end)
        return refuse(ps, s,
                      "user and password go before the first host (write a ',' in them as %2C)");
    return 0;
}

/* Everything between "://" and the path: [USER[:PASSWORD]@]HOST[:PORT],... */
static int parse_authority(const struct uri_parser *ps, struct uri_span s)
{
    bool each = ps->rule->hosts & HOST_CREDS; /* then parse_entry finds them */
    const char *at = each ? NULL : span_rfind(s, '@');
    struct uri_span list = {at ? at + 1 : s.p, s.end};
    size_t n = 1;
    int r = check_authority(ps, s, at);

    if (r < 0)
        return r;
    for (const char *p = list.p; p < list.end; p++)
        n += *p == ',';
    ps->u->hosts = calloc(n, sizeof(*ps->u->hosts));
    if (!ps->u->hosts)
        return no_memory(ps->err);
    ps->u->nhosts = 1; /* the first host holds the credentials of all */
    if (at)
        r = parse_userinfo(ps, &ps->u->hosts[0], (struct uri_span){s.p, at});
    if (r == 0)
        r = parse_list(ps, list);
    return r == 0 && each ? share_credentials(ps) : r;
}

/* ------------------------------------------------------------------ path --- */

/* "/db" as "/N" without leading zeros; "" and "/" are database 0. */
static int parse_db(const struct uri_parser *ps, struct uri_span s, char buf[16])
{
    int64_t n = 0;

    for (const char *p = s.p < s.end ? s.p + 1 : s.end; p < s.end; p++) {
        n = *p >= '0' && *p <= '9' ? 10 * n + (*p - '0') : INT64_MAX;
        if (n > INT_MAX)
            return refuse(ps, s, "a database is a number: /0");
        ps->u->has_db = true;
    }
    snprintf(buf, 16, "/%d", (int)n);
    return 0;
}

static int parse_service(const struct uri_parser *ps, struct uri_span s, char **path)
{
    struct uri_span service = {s.p < s.end ? s.p + 1 : s.end, s.end};
    char db[16];
    int r;

    service.end = span_find(service, '/');
    r = parse_db(ps, (struct uri_span){service.end, s.end}, db);
    if (r == 0)
        r = decode(ps, service, path, "the service");
    if (r < 0)
        return r;
    if (!**path || strchr(*path, '/') || !is_text(*path))
        return refuse(ps, s,
                      "the path must name the master as the sentinels do: /SERVICE or /SERVICE/DB");
    char *joined;
    if (asprintf(&joined, "/%s%s", *path, db) < 0)
        return no_memory(ps->err);
    free(*path);
    *path = joined;
    return 0;
}

/* A ZooKeeper path: "/a/b"; "" is the root. */
static int check_tree(const struct uri_parser *ps, struct uri_span s, char *path)
{
    size_t len = strlen(path);

    if (len > 0 && path[len - 1] == '/')
        path[--len] = '\0';
    for (const char *p = path; *p;) {
        size_t n = strcspn(++p, "/");

        if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return refuse(ps, s, "a path has no empty part, \".\" or \"..\"");
        p += n;
    }
    return 0;
}

static int check_file(const struct uri_parser *ps, struct uri_span s, char *path)
{
    if (*path != '/')
        return refuse(ps, s, "file:// needs an absolute path: file:///path");
    /* "dir/#name" and "dir#name" are the same lock. */
    for (size_t n = strlen(path); !ps->u->bare && n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = '\0';
    return 0;
}

static int check_socket(const struct uri_parser *ps, struct uri_span s, const char *path)
{
    if (*path != '/' || !path[1])
        return refuse(ps, s, "the socket's path is missing: redis+unix:///path#NAME");
    if (strlen(path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
        return refuse(ps, s, "the socket's path is too long");
    return 0;
}

static int parse_path(const struct uri_parser *ps, struct uri_span s)
{
    char **path = &ps->u->path, db[16];
    int r;

    if (ps->rule->path != PATH_FILE && span_find(s, '@') < s.end)
        return refuse(
            ps, s,
            "a '@' after the first '/': write a '/' in a password as %2F, a '@' in a path as %40");
    switch (ps->rule->path) {
    case PATH_DB:
        r = parse_db(ps, s, db);
        if (r == 0 && !(*path = strdup(db)))
            r = no_memory(ps->err);
        return r;
    case PATH_SERVICE:
        return parse_service(ps, s, path);
    case PATH_FILE:
    case PATH_SOCKET:
    case PATH_TREE:
    case PATH_ANY:
        break;
    }
    r = decode(ps, s, path, "the path");
    if (r < 0)
        return r;
    if (ps->rule->path == PATH_FILE)
        return check_file(ps, s, *path);
    if (!is_text(*path))
        return refuse(ps, s, "a path must be UTF-8 without control characters");
    if (ps->rule->path == PATH_ANY)
        return 0;
    return ps->rule->path == PATH_TREE ? check_tree(ps, s, *path) : check_socket(ps, s, *path);
}

/* ----------------------------------------------------------------- whole --- */

/* The store for messages: never user, password or query. A '@' would look like the end of a password. */
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
        bool v6 = strchr(h->host, ':');

        if (*h->host)
            fprintf(f, v6 ? "%s[%s]:%u" : "%s%s:%u", i > 0 ? "," : "", h->host, h->port);
    }
    for (const char *p = u->path; *p; p++)
        *p == '@' ? fputs("%40", f) : fputc(*p, f);
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

int dlock_uri_settle_where(struct dlock_uri *u, struct dlock_error *err)
{
    char *text = make_where(u);
    if (!text)
        return no_memory(err);
    free(u->where);
    u->where = text;
    return 0;
}

static bool is_scheme_char(char c, bool first)
{
    if ((c | 32) >= 'a' && (c | 32) <= 'z')
        return true;
    return !first && c && ((c >= '0' && c <= '9') || strchr("+-.", c));
}

/* The longest beginning of text that could be a scheme. */
static size_t scheme_chars(const char *text)
{
    size_t n = 0;

    while (is_scheme_char(text[n], n == 0))
        n++;
    return n;
}

size_t dlock_uri_scheme_len(const char *text)
{
    size_t n = scheme_chars(text);

    return strncmp(text + n, "://", 3) == 0 ? n : 0;
}

static const struct uri_rule *find_rule(const char *scheme)
{
    for (size_t i = 0; i < DLOCK_LEN(rules); i++)
        if (strcmp(rules[i].scheme, scheme) == 0)
            return &rules[i];
    return NULL;
}

/*
 * How many slips make a of b: a character added, left out, changed, or swapped with its neighbour? What is longer than
 * any name that we know is not like any.
 */
#define NAME_MAX_CHARS 40
static int slips(const char *a, const char *b)
{
    int d[NAME_MAX_CHARS + 1][NAME_MAX_CHARS + 1];
    size_t na = strlen(a), nb = strlen(b);

    if (na > NAME_MAX_CHARS || nb > NAME_MAX_CHARS)
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

/* What others call a store of ours, where it is not just another name of it. */
static const char *other_name(const char *scheme)
{
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

    for (size_t i = 0; i < DLOCK_LEN(names); i++)
        if (strcmp(names[i].scheme, scheme) == 0)
            return names[i].ours;
    return NULL;
}

static int unknown_store(const struct uri_parser *ps, const char *scheme)
{
    const char *ours = other_name(scheme);
    char near[64] = "";

    if (ours)
        snprintf(near, sizeof(near), "; write %s", ours);
    for (size_t i = 0; i + 1 < DLOCK_LEN(rules) && !*near; i++) /* not the last */
        if (slips(scheme, rules[i].scheme) == 1)
            snprintf(near, sizeof(near), "; did you mean %s://?", rules[i].scheme);
    return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                      "unknown store \"%.32s://\"%s (a file of that name: ./%.32s:...)", scheme,
                      near, scheme);
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
    r = parse_authority(ps, (struct uri_span){rest.p, path.p});
    if (r == 0)
        r = parse_path(ps, path);
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
    return u->name ? 0 : no_memory(ps->err);
}

/*
 * Resolve what the same store has several schemes for: "valkey", and the driver in "postgresql+psycopg2", which is for
 * SQLAlchemy only.
 */
static int settle_scheme(struct uri_parser *ps)
{
    struct dlock_uri *u = ps->u;
    char *plus = strchr(u->scheme, '+');

    if (plus && plus[1] &&
        (is_word((struct uri_span){u->scheme, plus}, "postgres") ||
         is_word((struct uri_span){u->scheme, plus}, "postgresql")))
        *plus = '\0';
    ps->rule = find_rule(u->scheme);
    if (!ps->rule)
        return unknown_store(ps, u->scheme);
    const char *same = strcmp(u->scheme, "valkey") == 0    ? "redis"
                       : strcmp(u->scheme, "valkeys") == 0 ? "rediss"
                                                           : NULL;
    if (!same)
        return 0;
    free(u->scheme);
    u->scheme = strdup(same);
    return u->scheme ? 0 : no_memory(ps->err);
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
        return no_memory(ps->err);
    for (char *p = u->scheme; *p; p++)
        *p = *p >= 'A' && *p <= 'Z' ? (char)(*p + 32) : *p;
    r = settle_scheme(ps);
    store.p += scheme_len + 3;
    if (r == 0)
        r = parse_store(ps, store, hash);
    if (r < 0)
        return r;
    u->where = ps->rule->path == PATH_FILE ? strdup(u->path) : make_where(u);
    return u->where ? 0 : no_memory(ps->err);
}

/* ------------------------------------------------------------ mistyped --- */

/* The scheme of a store of ours, also in "SCHEME+DRIVER". */
static bool is_ours(struct uri_span s)
{
    struct uri_span head = {s.p, span_find(s, '+')};

    for (size_t i = 0; i + 1 < DLOCK_LEN(rules); i++) /* not the last */
        if (is_word(s, rules[i].scheme) || is_word(head, rules[i].scheme))
            return true;
    return false;
}

/* One that people have in connection strings, or lock with. */
static bool is_others(struct uri_span s)
{
    static const char *const words[] = {
        "etcd",     "consul",   "mysql",     "mariadb", "sqlserver", "mongodb",
        "dynamodb", "memcache", "memcached", "keydb",   "nats",      "ldap",
        "ldaps",    "s3",       "gs",        "http",    "https",
    };

    s.end = span_find(s, '+');
    for (size_t i = 0; i < DLOCK_LEN(words); i++)
        if (is_word(s, words[i]))
            return true;
    return false;
}

/* "redis:host": the "//" is missing. */
static int refuse_no_slashes(const char *text, struct dlock_error *err)
{
    struct uri_span s = {text, text + scheme_chars(text)};
    int n = (int)span_len(s);

    if (*s.end != ':' || strncmp(s.end, "://", 3) == 0)
        return 0;
    if (is_ours(s))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "has no \"//\" after \"%.*s:\": write %.*s://...",
                          n, text, n, text);
    if (is_others(s))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "begins with \"%.*s:\", a store unknown to dlock",
                          n, text);
    return 0;
}

static bool is_blank_or_quote(char c)
{
    return c && strchr(" \t\n\v\f\r\"'`", c);
}

/* Something is before the "://" at slashes. Quoted is only what cannot be a part of a password. */
static int refuse_prefix(const char *text, const char *slashes, struct dlock_error *err)
{
    struct uri_span s = {slashes, slashes};
    size_t word = scheme_chars(text);
    int n;

    if (is_blank_or_quote(*text))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "begins with a %s: remove it",
                          strchr("\"'`", *text) ? "quotation mark" : "blank");
    while (s.p > text && is_scheme_char(s.p[-1], false))
        s.p--;
    while (s.p < s.end && !is_scheme_char(*s.p, true))
        s.p++;
    if (s.p == s.end)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "has no scheme, such as redis, before \"://\"");
    n = is_ours(s) || is_others(s) ? (int)span_len(s) : 0;
    if (n > 0 && word > 0 && word <= 32 && text[word] == ':' && text + word + 1 == s.p)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "has \"%.*s\" before \"%.*s://\": remove it",
                          (int)word + 1, text, n, s.p);
    return dlock_fail(err, DLOCK_EUSAGE, 0,
                      "has something before \"%.*s://\": remove what is no part of a URI", n, s.p);
}

int dlock_uri_check_typo(const char *text, struct dlock_error *err)
{
    const char *slashes = strstr(text, "://"), *first = strchr(text, '/');
    int r = refuse_no_slashes(text, err);

    if (r < 0 || !slashes || dlock_uri_scheme_len(text) > 0)
        return r;
    /* "dir/x://y" is a path. */
    return slashes < first || is_blank_or_quote(*text) ? refuse_prefix(text, slashes, err) : 0;
}

static int refuse_typo(const struct uri_parser *ps, const char *text)
{
    struct dlock_error why;
    int r = dlock_uri_check_typo(text, &why), n = (int)scheme_chars(text);

    if (r == 0)
        return 0;
    n = n > 0 && n <= 32 && text[n] == ':' ? n + 1 : 0;
    return dlock_fail(ps->err, r, 0, "LOCK %s (for a file of that name: ./%.*s...)", why.msg, n,
                      text);
}

/* A path, byte for byte. */
static int parse_plain(const struct uri_parser *ps, const char *text)
{
    struct dlock_uri *u = ps->u;
    int r;

    if (!*text)
        return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                          "the lock's name is empty (an unset variable?)");
    if (*text == '#')
        return dlock_fail(
            ps->err, DLOCK_EUSAGE, 0,
            "LOCK begins with '#': is a variable before it empty? (for a file of that name: ./#...)");
    if (*text == '@')
        return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                          "LOCK begins with '@': not a URI (for a file of that name: ./@...)");
    r = refuse_typo(ps, text);
    if (r < 0)
        return r;
    u->bare = true;
    u->scheme = strdup("file");
    u->raw = strdup(text);
    u->path = strdup(text);
    u->name = strdup(text);
    u->where = strdup(text);
    return u->scheme && u->raw && u->path && u->name && u->where ? 0 : no_memory(ps->err);
}

int dlock_uri_parse(struct dlock_uri **out, const char *text, struct dlock_error *err)
{
    struct uri_parser ps = {.u = calloc(1, sizeof(*ps.u)), .err = err};
    size_t scheme_len = dlock_uri_scheme_len(text);
    int r;

    if (!ps.u)
        return no_memory(err);
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

/* ------------------------------------------------- parameters, once parsed --- */

/* A name as far as it counts: clientName, client_name and client-name are the same. False: it is too long. */
static bool fold(char out[NAME_MAX_CHARS + 1], const char *name)
{
    size_t n = 0;

    for (; *name; name++) {
        if (*name == '_' || *name == '-')
            continue;
        if (n == NAME_MAX_CHARS)
            return false;
        out[n++] = *name >= 'A' && *name <= 'Z' ? (char)(*name + 32) : *name;
    }
    out[n] = '\0';
    return true;
}

/* pattern: "ssl*" is all that begin so. */
static bool is_foreign(const char *folded, const char *pattern)
{
    char f[NAME_MAX_CHARS + 1];

    if (!fold(f, pattern))
        return false;
    size_t n = strcspn(f, "*");
    return strncmp(folded, f, n) == 0 && (f[n] == '*' || folded[n] == '\0');
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

/* key resembles p: keep it if no known name resembles p more. */
static void note_near(struct dlock_param *p, const char *key)
{
    char a[NAME_MAX_CHARS + 1], b[NAME_MAX_CHARS + 1];
    size_t used = strlen(p->near);

    if (!fold(a, p->key) || !fold(b, key))
        return;
    int n = slips(a, b);
    if (n > (strlen(a) > 6 ? 2 : 1) || n >= (int)strlen(b) || (used > 0 && n > p->differs))
        return;
    if (used > 0 && n < p->differs)
        used = 0;
    if (used + strlen(key) + 3 > sizeof(p->near) || is_listed(p->near, key))
        return;
    snprintf(p->near + used, sizeof(p->near) - used, "%s%s", used > 0 ? ", " : "", key);
    p->differs = n;
}

void dlock_uri_known(struct dlock_uri *u, const char *key)
{
    for (int i = 0; i < u->nparams; i++)
        if (!u->params[i].used)
            note_near(&u->params[i], key);
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
    return strchr(strchr(u->raw, '?'), '@') || follows_secret(u, i);
}

static int rename_param(const struct dlock_uri *u, struct dlock_param *p, const char *to,
                        struct dlock_error *err)
{
    for (int i = 0; i < u->nparams; i++) {
        if (&u->params[i] == p || strcmp(u->params[i].key, to) != 0)
            continue;
        if (hides_key(u, (int)(p - u->params)))
            return dlock_fail(err, DLOCK_EUSAGE, 0,
                              "bad lock URI: %s= is given twice, once by another name", to);
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, u->where,
                             "%s= and %s= are the same: give one of them", p->key, to);
    }
    wipe(p->key);
    p->key = strdup(to);
    return p->key ? 0 : no_memory(err);
}

/* p has the name of rule. Its value is not quoted: it may be a password. */
static int apply_foreign(const struct dlock_uri *u, struct dlock_param *p,
                         const struct dlock_foreign *rule, struct dlock_error *err)
{
    if (rule->how == FOREIGN_RENAMED)
        return rename_param(u, p, rule->text, err);
    p->used = rule->how == FOREIGN_AS_OURS && is_listed(rule->values, p->value);
    if (p->used)
        return 0;
    if (hides_key(u, (int)(p - u->params)))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "bad lock URI: a parameter like %s: %s", rule->key,
                          rule->text);
    return dlock_fail_at(err, DLOCK_EUSAGE, 0, u->where, "parameter \"%.40s\": %s", p->key,
                         rule->text);
}

int dlock_uri_foreign(struct dlock_uri *u, const char *const *ignored,
                      const struct dlock_foreign *rules_, struct dlock_error *err)
{
    char name[NAME_MAX_CHARS + 1];
    int r = 0;

    for (int i = 0; i < u->nparams && r == 0; i++) {
        struct dlock_param *p = &u->params[i];
        const struct dlock_foreign *rule = rules_;

        if (p->used || !fold(name, p->key))
            continue;
        for (const char *const *s = ignored; *s && !p->ignored; s++) {
            p->ignored = p->used = is_foreign(name, *s);
            note_near(p, *s);
        }
        while (rule->key && !is_foreign(name, rule->key))
            rule++;
        if (!p->used && rule->key)
            r = apply_foreign(u, p, rule, err);
    }
    return r;
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

int dlock_uri_check_params(const struct dlock_uri *u, struct dlock_error *err)
{
    for (int i = 0; i < u->nparams; i++) {
        const struct dlock_param *p = &u->params[i];

        if (p->used)
            continue;
        if (hides_key(u, i))
            return dlock_fail(
                err, DLOCK_EUSAGE, 0,
                "bad lock URI: an unknown parameter after '?' (in a password, write '?' as %%3F and '&' as %%26)");
        if (*p->near)
            return dlock_fail_at(err, DLOCK_EUSAGE, 0, u->where,
                                 "unknown parameter \"%.64s\"; did you mean %s?", p->key, p->near);
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, u->where, "unknown parameter \"%.64s\"", p->key);
    }
    return 0;
}
