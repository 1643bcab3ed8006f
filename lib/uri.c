/*
 * uri.c - the lock's name: a store's ordinary connection string, '#', and the name.
 *
 * The text is cut at the '#', then at '?', then at the first '/': authority (credentials and
 * hosts), path, parameters, name. A table of rules holds the specialities of each scheme.
 *
 * Messages quote the wrong part, so that one line is enough to repair the URI, but no text in front
 * of a '@': no part of a password with an unencoded '/' or '#' may appear in a log.
 */
#include "uri.h"

#include "uri_parts.h"
#include "util.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

/* The characters of a host name, and of the key of a parameter. */
#define NAME_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._"

enum path_kind { PATH_FILE, PATH_DB, PATH_SERVICE, PATH_SOCKET, PATH_TREE, PATH_ANY };

enum {
    HOST_MANY = 1,  /* a comma list */
    HOST_CREDS = 2, /* each host may bring its own user:pass@ */
    HOST_REQUIRED = 4,
    HOST_NONE = 8,
    HOST_LOCAL = 16, /* without a host: 127.0.0.1 */
    HOST_LIBPQ = 32  /* libpq checks the list: sockets as hosts, empty ports */
};

struct uri_rule {
    const char *scheme;
    unsigned short port;
    enum path_kind path;
    int hosts;
};

struct uri_parser {
    struct dlock_uri *u;
    const struct uri_rule *rule;
    struct dlock_error *err;
};

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
    {"mysql", 3306, PATH_ANY, HOST_MANY},
    {"mariadb", 3306, PATH_ANY, HOST_MANY},
    {"zk", 2181, PATH_TREE, HOST_MANY | HOST_REQUIRED},
    {"zookeeper", 2181, PATH_TREE, HOST_MANY | HOST_REQUIRED},
    /* For tests; the last rule, see uri_scheme(). */
    {"fake", 6379, PATH_ANY, HOST_MANY | HOST_CREDS},
};

const char *uri_scheme(size_t i)
{
    return i + 1 < DLOCK_LEN(rules) ? rules[i].scheme : NULL;
}

int uri_no_memory(struct dlock_error *err)
{
    return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

/* Refuse without a quotation: the text may be a password that lost its '@'. */
static int refuse_unseen(const struct uri_parser *ps, const char *why)
{
    return dlock_fail(ps->err, DLOCK_EUSAGE, 0, "bad lock URI: %s", why);
}

static int refuse(const struct uri_parser *ps, struct uri_span s, const char *why)
{
    /* s points into the whole text: in front of a '@' it may be part of a secret. */
    if (s.p >= s.end || strchr(s.p, '@'))
        return refuse_unseen(ps, why);
    return dlock_fail(ps->err, DLOCK_EUSAGE, 0, "bad lock URI: \"%.*s\": %s",
                      s.end - s.p > 70 ? 70 : (int)(s.end - s.p), s.p, why);
}

/* A '@' behind the character that ended the host: the host probably begins a password. */
static int refuse_at(const struct uri_parser *ps, char ended)
{
    return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                      "bad lock URI: a '@' after the first '%c': write a '%c' in a password as "
                      "%%%02X, or the '@' as %%40",
                      ended, ended, (unsigned)ended);
}

/*
 * What an unset, badly read or unencoded variable puts into a URI. This comes first: the part
 * around it is not to blame. s: the store.
 */
static int check_odd(const struct uri_parser *ps, struct uri_span s)
{
    for (const char *p = s.p; p < s.end; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f || (*p == ' ' && p + 1 == s.end))
            return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                              "bad lock URI: a %s (at the end of a variable?): remove it, or write "
                              "%%%02X",
                              *p == '\r'   ? "carriage return"
                              : *p == '\n' ? "newline"
                              : *p == ' '  ? "blank"
                                           : "control character",
                              (unsigned)*p);
    if (span_find(s, '#') < s.end)
        return refuse_unseen(ps, "a second '#': in a password or a lock's name, write it as %23");
    return 0;
}

static char *copy(struct uri_span s)
{
    return strndup(s.p, span_len(s));
}

/*
 * Percent-decode s into *out (malloc'ed). what: the name of s in messages: s itself may be a
 * secret.
 */
static int decode(const struct uri_parser *ps, struct uri_span s, char **out, const char *what)
{
    char *buf = malloc(span_len(s) + 1), *w = buf;
    if (!buf)
        return uri_no_memory(ps->err);
    for (const char *p = s.p; p < s.end; p++) {
        int c = *p == '%' ? dlock_percent(p, s.end) : *p;
        if (*p == '%' && c <= 0) {
            *w = '\0';
            dlock_wipe(buf);
            return dlock_fail(
                ps->err, DLOCK_EUSAGE, 0,
                "bad lock URI: in %s, '%%' is not followed by two hexadecimal digits (01 to FF; a "
                "'%%' itself is %%25)",
                what);
        }
        *w++ = (char)c;
        p += *p == '%' ? 2 : 0;
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

static int parse_name(const struct uri_parser *ps, struct uri_span s)
{
    struct uri_span before = {s.p, span_find(s, '?')};
    size_t file_name = 0;
    if (before.end < s.end)
        return refuse(ps, before,
                      "a '?' after the '#': parameters stand before it (STORE?KEY=VALUE#NAME); "
                      "write a '?' in the name as %3F");
    int r = decode(ps, s, &ps->u->name, "the lock's name");
    if (r < 0)
        return r;
    if (!*ps->u->name)
        return refuse(ps, s, "the lock's name after '#' is empty: add one");
    if (!is_text(ps->u->name))
        return refuse(ps, s, "a lock's name must be UTF-8 without control characters");
    if (strlen(ps->u->name) > 255)
        return refuse(ps, s, "a lock's name is at most 255 bytes long");
    /* A file name has 255 bytes; ".lock" takes 5, and '/' and '%' are written as three bytes. */
    for (const char *p = ps->u->name; *p; p++)
        file_name += *p == '/' || *p == '%' ? 3 : 1;
    if (ps->rule->path == PATH_FILE && file_name > 250)
        return refuse(ps, s, "the name of a lock in a directory is at most 250 bytes long");
    return 0;
}

/* ------------------------------------------------------------ parameters --- */

static bool is_key(struct uri_span s)
{
    return s.p < s.end && strspn(s.p, NAME_CHARS) >= span_len(s);
}

/* "?a=1?b=2": from two joined texts. Not decoded yet: %3F is a part of a value. */
static int refuse_second(const struct uri_parser *ps, struct uri_span s, const char *mark)
{
    struct uri_span key = {s.p, span_find(s, '=')}, next = {mark + 1, s.end};
    key.end = key.end < mark ? key.end : mark;
    next.end = span_find(next, '=');
    if (!is_key(next) || uri_follows_secret(ps->u, ps->u->nparams) || strchr(s.p, '@') ||
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
    bool hide = strchr(s.p, '@') || uri_follows_secret(u, u->nparams);
    char what[64];
    if (mark < s.end)
        return refuse_second(ps, s, mark);
    /* A key with other characters is probably the rest of a password with a '?' in it. */
    if (!is_key(key) && strchr(s.p, '@'))
        return refuse_at(ps, '?');
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
        return uri_no_memory(ps->err);
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
        return uri_no_memory(ps->err);
    while (n-- > 0 && r == 0) {
        struct uri_span one = {s.p, span_find(s, '&')};
        r = parse_param(ps, one);
        s.p = one.end < s.end ? one.end + 1 : s.end;
    }
    return r;
}

/* ----------------------------------------------------------------- hosts --- */

/*
 * s is no host: with a '@' further on, or a blank in it, that is the reason. The '@' of a
 * parameter's value, or of the lock's name behind a path, does not count. A text with a ':' is not
 * quoted: it may be "user:password", with the '@' forgotten.
 */
static int refuse_host(const struct uri_parser *ps, struct uri_span s, const char *why)
{
    const char *ended = strpbrk(s.p, "/?#"), *query = ended ? strchr(ended, '?') : NULL;
    const char *at = ended ? memchr(ended, '@', 1 + strcspn(ended + 1, "#")) : NULL;
    if (at && query && query < at) {
        struct uri_span key = {query + 1, query + 1 + strcspn(query + 1, "=@")};
        at = *key.end == '=' && is_key(key) ? NULL : at;
    }
    if (at)
        return refuse_at(ps, *ended);
    if (span_find(s, ' ') < s.end)
        return refuse_unseen(ps, "a blank in the host: remove it (in a password, write %20)");
    return span_find(s, ':') < s.end ? refuse_unseen(ps, why) : refuse(ps, s, why);
}

/* user, user:pass or :pass; an empty part, as from an empty variable, counts as not given. */
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

/* s stands behind a ':'. */
static int parse_port(const struct uri_parser *ps, struct dlock_host *h, struct uri_span s)
{
    int64_t n = 0;
    if (s.p == s.end && (ps->rule->hosts & HOST_LIBPQ))
        return 0;
    if (strspn(s.p, "0123456789") < span_len(s))
        return refuse_host(ps, (struct uri_span){s.p - 1, s.end},
                           "the port after the host is not a number from 1 to 65535");
    if (!dlock_read_number(s.p, span_len(s), &n) || n < 1 || n > 65535)
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

static int parse_brackets(const struct uri_parser *ps, struct dlock_host *h, struct uri_span s)
{
    struct uri_span in = {s.p + 1, span_find(s, ']')};
    if (in.end == s.end)
        return refuse(ps, s, "']' is missing after the IPv6 address");
    int r = decode(ps, in, &h->host, "the host");
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
    h->port = ps->rule->port;
    if (s.p < s.end && *s.p == '[')
        return parse_brackets(ps, h, s);
    if (name.end < s.end && span_find(port, ':') < s.end)
        return refuse_host(
            ps, s, "a host has more than one ':' (an IPv6 address needs brackets: [::1]:6379)");
    int r = decode(ps, name, &h->host, "the host");
    if (r == 0 && name.end < s.end)
        r = parse_port(ps, h, port);
    if (r < 0 || (ps->rule->hosts & HOST_LIBPQ))
        return r;
    if (h->host[strspn(h->host, NAME_CHARS)])
        return refuse_host(ps, name, "a host name has letters, digits, '-' and '.' only");
    if (!*h->host && name.end < s.end)
        return refuse_host(ps, s, "a port without a host");
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
        return u->hosts[0].host ? 0 : uri_no_memory(ps->err);
    }
    if (!u->hosts[0].user && !u->hosts[0].password && !u->hosts[0].has_port) {
        free(u->hosts[0].host);
        u->hosts[0].host = NULL;
        u->nhosts = 0;
    }
    return 0;
}

static int parse_list(const struct uri_parser *ps, struct uri_span s)
{
    struct dlock_uri *u = ps->u;
    struct uri_span all = s;
    bool ported = false;
    u->nhosts = 0;
    for (bool more = true; more;) {
        struct uri_span entry = {s.p, ps->rule->hosts & HOST_MANY ? span_find(s, ',') : s.end};
        struct dlock_host *h = &u->hosts[u->nhosts++];
        /* Without HOST_CREDS the credentials of the whole list are parsed already. */
        const char *at = ps->rule->hosts & HOST_CREDS ? span_rfind(entry, '@') : NULL;
        /* "u:12,34@h": a password with a ',', not a host with a port. */
        if (at && ported)
            return refuse_unseen(ps, "a HOST:PORT without credentials before a host with them: "
                                     "write \"@\" before it (a ',' in a password is %2C)");
        ported |= !at && span_find(entry, ':') < entry.end;
        int r = at ? parse_userinfo(ps, h, (struct uri_span){entry.p, at}) : 0;
        if (r == 0)
            r = parse_host(ps, h, (struct uri_span){at ? at + 1 : entry.p, entry.end});
        if (r < 0)
            return r;
        more = entry.end < s.end;
        s.p = more ? entry.end + 1 : s.p;
    }
    if (u->nhosts == 1 && !*u->hosts[0].host)
        return settle_no_host(ps, s);
    for (int i = 0; i < u->nhosts; i++)
        if (!*u->hosts[i].host)
            return refuse_host(ps, all, "a host is missing next to a ','");
    if (ps->rule->hosts & HOST_LIBPQ)
        return 0;
    /* The same server twice would have two votes, or hide a missing standby. */
    for (int i = 0; i < u->nhosts; i++)
        for (int k = 0; k < i; k++)
            if (u->hosts[i].port == u->hosts[k].port &&
                strcasecmp(u->hosts[i].host, u->hosts[k].host) == 0)
                return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                                  "bad lock URI: the host \"%s:%u\" is named twice",
                                  u->hosts[i].host, u->hosts[i].port);
    return 0;
}

/* Everything between "://" and the path: [USER[:PASSWORD]@]HOST[:PORT],... */
static int parse_authority(const struct uri_parser *ps, struct uri_span s)
{
    const struct uri_rule *rule = ps->rule;
    bool each = rule->hosts & HOST_CREDS; /* then parse_list() finds the credentials */
    const char *at = each ? NULL : span_rfind(s, '@');
    struct uri_span creds = {s.p, at ? at : s.p}, list = {at ? at + 1 : s.p, s.end};
    bool named = list.p < list.end || (at && rule->path == PATH_FILE);
    size_t n = 1;
    int r = 0;
    /* Before decoding, which may make a ',' or '@'. */
    if (named && (rule->hosts & HOST_NONE))
        return refuse_host(
            ps, list, "no host is allowed here: write a path that begins with '/' after \"://\"");
    if (!(rule->hosts & HOST_MANY) && span_find(list, ',') < list.end)
        return refuse_host(ps, list, "this kind of store has one host");
    if ((rule->hosts & HOST_LIBPQ) && span_find(creds, '@') < creds.end)
        return refuse(ps, s, "write a '@' in user or password as %40");
    if (!(rule->hosts & HOST_LIBPQ) && (rule->hosts & HOST_MANY) &&
        span_find(creds, ',') < creds.end)
        return refuse(ps, s,
                      "user and password go before the first host (write a ',' in them as %2C)");
    for (const char *p = list.p; p < list.end; p++)
        n += *p == ',';
    ps->u->hosts = calloc(n, sizeof(*ps->u->hosts));
    if (!ps->u->hosts)
        return uri_no_memory(ps->err);
    ps->u->nhosts = 1; /* the first host holds the credentials of all */
    if (at)
        r = parse_userinfo(ps, &ps->u->hosts[0], creds);
    if (r == 0)
        r = parse_list(ps, list);
    if (r < 0 || !each)
        return r;
    /* Credentials before the first host alone are those of all hosts. */
    struct dlock_host *h = ps->u->hosts;
    for (int i = 1; i < ps->u->nhosts; i++)
        if (h[i].user || h[i].password)
            return 0;
    for (int i = 1; i < ps->u->nhosts; i++) {
        if (h[0].user && !(h[i].user = strdup(h[0].user)))
            return uri_no_memory(ps->err);
        if (h[0].password && !(h[i].password = strdup(h[0].password)))
            return uri_no_memory(ps->err);
    }
    return 0;
}

/* ------------------------------------------------------------------ path --- */

/* "/db" as "/N" without leading zeros; "" and "/" are database 0. */
static int parse_db(const struct uri_parser *ps, struct uri_span s, char buf[16])
{
    int64_t n = 0;
    ps->u->has_db = span_len(s) > 1;
    if (ps->u->has_db && (!dlock_read_number(s.p + 1, span_len(s) - 1, &n) || n > INT_MAX))
        return refuse(ps, s, "a database is a number: /0");
    snprintf(buf, 16, "/%d", (int)n);
    return 0;
}

static int parse_service(const struct uri_parser *ps, struct uri_span s, char **path)
{
    struct uri_span service = {s.p < s.end ? s.p + 1 : s.end, s.end};
    char db[16];
    service.end = span_find(service, '/');
    int r = parse_db(ps, (struct uri_span){service.end, s.end}, db);
    if (r == 0)
        r = decode(ps, service, path, "the service");
    if (r < 0)
        return r;
    if (!**path || strchr(*path, '/') || !is_text(*path))
        return refuse(ps, s,
                      "the path must name the master as the sentinels do: /SERVICE or /SERVICE/DB");
    char *joined;
    if (asprintf(&joined, "/%s%s", *path, db) < 0)
        return uri_no_memory(ps->err);
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

static int parse_path(const struct uri_parser *ps, struct uri_span s)
{
    char **path = &ps->u->path, db[16];
    int r;
    if (ps->rule->path != PATH_FILE && span_find(s, '@') < s.end)
        return refuse_at(ps, '/');
    if (ps->rule->path == PATH_SERVICE)
        return parse_service(ps, s, path);
    if (ps->rule->path == PATH_DB) {
        r = parse_db(ps, s, db);
        if (r == 0 && !(*path = strdup(db)))
            r = uri_no_memory(ps->err);
        return r;
    }
    r = decode(ps, s, path, "the path");
    if (r < 0)
        return r;
    if (ps->rule->path == PATH_FILE) {
        if (**path != '/')
            return refuse(ps, s, "file:// needs an absolute path: file:///path");
        /* "dir/#name" and "dir#name" are the same lock. */
        for (size_t n = strlen(*path); !ps->u->bare && n > 1 && (*path)[n - 1] == '/'; n--)
            (*path)[n - 1] = '\0';
        return 0;
    }
    if (!is_text(*path))
        return refuse(ps, s, "a path must be UTF-8 without control characters");
    if (ps->rule->path == PATH_TREE)
        return check_tree(ps, s, *path);
    if (ps->rule->path == PATH_SOCKET) {
        if (**path != '/' || !(*path)[1])
            return refuse(ps, s, "the socket's path is missing: redis+unix:///path#NAME");
        if (strlen(*path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
            return refuse(ps, s, "the socket's path is too long");
    }
    return 0;
}

/* ----------------------------------------------------------------- whole --- */

/*
 * The store for messages: never user, password or query. A '@' would look like the end of a
 * password.
 */
int dlock_uri_settle_where(struct dlock_uri *u, struct dlock_error *err)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return uri_no_memory(err);
    fprintf(f, "%s://", u->scheme);
    for (int i = 0; i < u->nhosts; i++) {
        const struct dlock_host *h = &u->hosts[i];
        bool v6 = strchr(h->host, ':');
        if (*h->host)
            fprintf(f, v6 ? "%s[%s]:%u" : "%s%s:%u", i > 0 ? "," : "", h->host, h->port);
    }
    for (const char *p = u->path; *p; p++)
        *p == '@' ? fputs("%40", f) : fputc(*p, f);
    if (fclose(f) != 0 || !text) { /* without memory text alone may tell it */
        free(text);
        return uri_no_memory(err);
    }
    free(u->where);
    u->where = text;
    return 0;
}

/* The store part s (all of it) and, after '#', the name. */
static int parse_store(const struct uri_parser *ps, struct uri_span s, const char *hash)
{
    struct dlock_uri *u = ps->u;
    struct uri_span query = {span_find(s, '?'), s.end}, rest = {s.p, query.p}, path;
    if (query.p < query.end)
        query.p++;
    path = (struct uri_span){span_find(rest, '/'), rest.end};
    u->bare = ps->rule->path == PATH_FILE && !hash;
    if (ps->rule->path == PATH_FILE && path.p - rest.p == 9 &&
        strncasecmp(rest.p, "localhost", 9) == 0)
        rest.p = path.p;
    int r = check_odd(ps, s);
    if (r == 0)
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
    return u->name ? 0 : uri_no_memory(ps->err);
}

/* Find the rule of the scheme, which becomes our own word for the store. */
static int settle_scheme(struct uri_parser *ps)
{
    /* "postgresql+psycopg2": the driver is for SQLAlchemy only. */
    static const char *const with_driver[] = {"postgres", "postgresql", "mysql", "mariadb"};
    static const struct {
        const char *scheme, *ours;
    } others[] = {
        {"valkey", "redis"}, {"valkeys", "rediss"}, {"mariadb", "mysql"},
        {"mysql2", "mysql"}, {"trilogy", "mysql"}, /* Rails */
    };
    struct dlock_uri *u = ps->u;
    char *plus = strchr(u->scheme, '+');
    for (size_t i = 0; plus && plus[1] && *plus && i < DLOCK_LEN(with_driver); i++)
        if (uri_is_word((struct uri_span){u->scheme, plus}, with_driver[i]))
            *plus = '\0';
    for (size_t i = 0; i < DLOCK_LEN(others); i++)
        if (strcmp(others[i].scheme, u->scheme) == 0) {
            free(u->scheme);
            u->scheme = strdup(others[i].ours);
            if (!u->scheme)
                return uri_no_memory(ps->err);
        }
    for (size_t i = 0; i < DLOCK_LEN(rules) && !ps->rule; i++)
        if (strcmp(rules[i].scheme, u->scheme) == 0)
            ps->rule = &rules[i];
    return ps->rule ? 0 : uri_unknown_store(u->scheme, ps->err);
}

static int parse_uri(struct uri_parser *ps, const char *text, size_t scheme_len)
{
    struct dlock_uri *u = ps->u;
    int r;
    const char *hash = strrchr(text, '#');
    struct uri_span store = {text, hash ? hash : text + strlen(text)};
    u->scheme = copy((struct uri_span){text, text + scheme_len});
    u->raw = copy(store);
    if (!u->scheme || !u->raw)
        return uri_no_memory(ps->err);
    for (char *p = u->scheme; *p; p++)
        *p = *p >= 'A' && *p <= 'Z' ? (char)(*p + 32) : *p;
    r = settle_scheme(ps);
    if (r < 0)
        return r;
    store.p += scheme_len + 3;
    r = parse_store(ps, store, hash);
    if (r < 0)
        return r;
    if (ps->rule->path != PATH_FILE)
        return dlock_uri_settle_where(u, ps->err);
    u->where = strdup(u->path);
    return u->where ? 0 : uri_no_memory(ps->err);
}

/* A path, byte for byte. */
static int parse_plain(const struct uri_parser *ps, const char *text)
{
    struct dlock_uri *u = ps->u;
    struct dlock_error why;
    if (!*text)
        return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                          "the lock's name is empty (an unset variable?)");
    if (*text == '#')
        return dlock_fail(
            ps->err, DLOCK_EUSAGE, 0,
            "LOCK begins with '#': is a variable before it empty? (for a file of that name: "
            "./#...)");
    if (*text == '@')
        return dlock_fail(ps->err, DLOCK_EUSAGE, 0,
                          "LOCK begins with '@': not a URI (for a file of that name: ./@...)");
    int r = dlock_uri_check_typo(text, &why);
    if (r < 0) {
        int n = (int)uri_scheme_chars(text);
        n = n > 0 && n <= 32 && text[n] == ':' ? n + 1 : 0;
        return dlock_fail(ps->err, r, 0, "LOCK %s (for a file of that name: ./%.*s...)", why.msg, n,
                          text);
    }
    r = uri_check_forgotten(text, ps->err);
    if (r < 0)
        return r;
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
    if (!ps.u)
        return uri_no_memory(err);
    int r = scheme_len > 0 ? parse_uri(&ps, text, scheme_len) : parse_plain(&ps, text);
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
        dlock_wipe(u->hosts[i].host);
        dlock_wipe(u->hosts[i].user);
        dlock_wipe(u->hosts[i].password);
    }
    for (int i = 0; i < u->nparams; i++) {
        dlock_wipe(u->params[i].key);
        dlock_wipe(u->params[i].value);
    }
    free(u->hosts);
    free(u->params);
    dlock_wipe(u->scheme);
    dlock_wipe(u->raw);
    dlock_wipe(u->path);
    dlock_wipe(u->name);
    dlock_wipe(u->where);
    free(u);
}
