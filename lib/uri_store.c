/* uri_store.c - the store part of a lock's URI: credentials, hosts, and the path after them. */
#include "uri_parse.h"

#include <arpa/inet.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/un.h>

/* ----------------------------------------------------------------- hosts --- */

/* user, user:pass or :pass; what is empty counts as not given, as when a variable was empty. */
static int parse_userinfo(const struct uri_parser *ps, struct dlock_host *h, struct uri_span s)
{
    struct uri_span user = {s.p, span_find(s, ':')};
    struct uri_span pass = {user.end < s.end ? user.end + 1 : s.end, s.end};
    int r = 0;

    if (user.p < user.end)
        r = uri_decode(ps, user, &h->user, "the user name");
    if (r == 0 && pass.p < pass.end)
        r = uri_decode(ps, pass, &h->password, "the password");
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
        return uri_refuse_unseen(
            ps, "what follows ':' after the host is not a port, a number from 1 to 65535");
    if (n < 1 || n > 65535)
        return uri_refuse(ps, s, "a port is a number from 1 to 65535");
    h->port = (unsigned short)n;
    return 0;
}

static bool is_ipv6(const char *text)
{
    char buf[INET6_ADDRSTRLEN];
    struct in6_addr addr;
    size_t n = strcspn(text, "%"); /* a zone follows */

    if (n >= sizeof(buf) || (text[n] && !text[n + 1]) || !uri_is_text(text))
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
        return uri_refuse(ps, s, "']' is missing after the IPv6 address");
    r = uri_decode(ps, in, &h->host, "the host");
    if (r < 0)
        return r;
    if (!is_ipv6(h->host))
        return uri_refuse(ps, s, "this is not an IPv6 address");
    s.p = in.end + 1;
    if (s.p == s.end)
        return 0;
    if (*s.p != ':')
        return uri_refuse(ps, s, "only \":PORT\" may follow an IPv6 address");
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
        return uri_refuse_unseen(
            ps, "a host has more than one ':' (an IPv6 address needs brackets: [::1]:6379)");
    r = uri_decode(ps, name, &h->host, "the host");
    if (r == 0 && name.end < s.end)
        r = parse_port(ps, h, port);
    if (r < 0 || (ps->rule->hosts & HOST_LIBPQ))
        return r;
    if (!is_host_name(h->host))
        return uri_refuse(ps, name, "a host name has letters, digits, '-' and '.' only");
    if (!*h->host && name.end < s.end)
        return uri_refuse(ps, s, "a port without a host");
    return 0;
}

/* One entry of the list. What belongs to the whole list (not HOST_CREDS) was taken off before. */
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

/* The same server twice would have two votes, or hide that a standby is missing. */
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
            return uri_no_memory(ps->err);
        if (h[0].password && !(h[i].password = strdup(h[0].password)))
            return uri_no_memory(ps->err);
    }
    return 0;
}

/* A list that names nobody: 127.0.0.1, an entry that holds only credentials, or no entry. */
static int settle_nobody(const struct uri_parser *ps, struct uri_span s)
{
    struct dlock_uri *u = ps->u;

    if (ps->rule->hosts & HOST_REQUIRED)
        return uri_refuse(ps, s, "the host is missing");
    if (ps->rule->hosts & HOST_LOCAL) {
        free(u->hosts[0].host);
        u->hosts[0].host = strdup("127.0.0.1");
        return u->hosts[0].host ? 0 : uri_no_memory(ps->err);
    }
    if (!u->hosts[0].user && !u->hosts[0].password) {
        free(u->hosts[0].host);
        u->hosts[0].host = NULL;
        u->nhosts = 0;
    }
    return 0;
}

static int parse_list(const struct uri_parser *ps, struct uri_span s)
{
    struct dlock_uri *u = ps->u;
    int r = 0;

    for (;;) {
        struct uri_span one = {s.p, ps->rule->hosts & HOST_MANY ? span_find(s, ',') : s.end};

        r = parse_entry(ps, one);
        if (r < 0 || one.end == s.end)
            break;
        s.p = one.end + 1;
    }
    if (r < 0 || (ps->rule->hosts & HOST_LIBPQ && u->nhosts > 1))
        return r;
    if (u->nhosts == 1 && !*u->hosts[0].host)
        return settle_nobody(ps, s);
    for (int i = 0; i < u->nhosts; i++)
        if (!*u->hosts[i].host)
            return uri_refuse(ps, s, "a host is missing next to a ','");
    return check_twice(ps);
}

/* Everything between "://" and the path. */
int uri_parse_authority(const struct uri_parser *ps, struct uri_span s)
{
    const struct uri_rule *rule = ps->rule;
    const char *at = rule->hosts & HOST_CREDS ? NULL : span_rfind(s, '@');
    struct uri_span list = {at ? at + 1 : s.p, s.end};
    size_t n = 1;
    int r = 0;

    for (const char *p = list.p; p < list.end; p++)
        n += *p == ',';
    if (n > 1 && !(rule->hosts & HOST_MANY))
        return uri_refuse(ps, list, "this kind of store has one host");
    if (rule->hosts & HOST_LIBPQ && at && span_find(s, '@') < at)
        return uri_refuse(ps, s, "write a '@' in user or password as %40");
    if (rule->hosts & HOST_MANY && !(rule->hosts & HOST_LIBPQ) && at && span_find(s, ',') < at)
        return uri_refuse(
            ps, s, "user and password go before the first host (write a ',' in them as %2C)");
    ps->u->hosts = calloc(n, sizeof(*ps->u->hosts));
    if (!ps->u->hosts)
        return uri_no_memory(ps->err);
    if (at && (r = parse_userinfo(ps, &ps->u->hosts[0], (struct uri_span){s.p, at})) < 0)
        ps->u->nhosts = 1; /* for dlock_uri_free: the user's name is there already */
    if (r == 0)
        r = parse_list(ps, list);
    if (r == 0 && (rule->hosts & HOST_NONE) &&
        (list.p < list.end || (at && rule->path == PATH_FILE)))
        return uri_refuse(
            ps, list, "no host is allowed here: write a path that begins with '/' after \"://\"");
    return r == 0 && (rule->hosts & HOST_CREDS) ? share_credentials(ps) : r;
}

/* ------------------------------------------------------------------ path --- */

/* "/db" as "/N" without leading zeros; "" and "/" are database 0. */
static int parse_db(const struct uri_parser *ps, struct uri_span s, char buf[16])
{
    int64_t n = 0;

    for (const char *p = s.p < s.end ? s.p + 1 : s.end; p < s.end; p++) {
        n = *p >= '0' && *p <= '9' ? 10 * n + (*p - '0') : INT64_MAX;
        if (n > INT_MAX)
            return uri_refuse(ps, s, "a database is a number: /0");
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
        r = uri_decode(ps, service, path, "the service");
    if (r < 0)
        return r;
    if (!**path || strchr(*path, '/') || !uri_is_text(*path))
        return uri_refuse(ps, s,
                          "the sentinels' name of the master is needed: /SERVICE or /SERVICE/DB");
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
            return uri_refuse(ps, s, "a path has no empty part, \".\" or \"..\"");
        p += n;
    }
    return 0;
}

static int check_file(const struct uri_parser *ps, struct uri_span s, char *path)
{
    if (*path != '/')
        return uri_refuse(ps, s, "file:// needs an absolute path: file:///path");
    /* "dir/#name" is "dir#name", also when two of them are compared. */
    for (size_t n = strlen(path); !ps->u->bare && n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = '\0';
    return 0;
}

static int check_socket(const struct uri_parser *ps, struct uri_span s, const char *path)
{
    if (*path != '/' || !path[1])
        return uri_refuse(ps, s, "the socket's path is missing: redis+unix:///path#NAME");
    if (strlen(path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
        return uri_refuse(ps, s, "the socket's path is too long");
    return 0;
}

int uri_parse_path(const struct uri_parser *ps, struct uri_span s)
{
    char **path = &ps->u->path, db[16];
    int r;

    if (ps->rule->path != PATH_FILE && span_find(s, '@') < s.end)
        return uri_refuse(ps, s,
                          "a '@' after the first '/': write a '/' in a password as %2F, "
                          "a '@' in a path as %40");
    switch (ps->rule->path) {
    case PATH_DB:
        r = parse_db(ps, s, db);
        if (r == 0 && !(*path = strdup(db)))
            r = uri_no_memory(ps->err);
        return r;
    case PATH_SERVICE:
        return parse_service(ps, s, path);
    case PATH_FILE:
    case PATH_SOCKET:
    case PATH_TREE:
    case PATH_ANY:
        break;
    }
    r = uri_decode(ps, s, path, "the path");
    if (r < 0)
        return r;
    if (ps->rule->path == PATH_FILE)
        return check_file(ps, s, *path);
    if (!uri_is_text(*path))
        return uri_refuse(ps, s, "a path must be UTF-8 without control characters");
    if (ps->rule->path == PATH_ANY)
        return 0;
    return ps->rule->path == PATH_TREE ? check_tree(ps, s, *path) : check_socket(ps, s, *path);
}
