/* uri_parse.h - what uri.c (the whole) and uri_store.c (hosts and path) share. */
#ifndef DLOCK_URI_PARSE_H
#define DLOCK_URI_PARSE_H

#include "uri.h"
#include "util.h"

#include <string.h>

enum path_kind { PATH_FILE, PATH_DB, PATH_SERVICE, PATH_SOCKET, PATH_TREE, PATH_ANY };

enum {
    HOST_MANY = 1,  /* a comma list */
    HOST_CREDS = 2, /* each host may bring its own user:pass@ */
    HOST_REQUIRED = 4,
    HOST_NONE = 8,
    HOST_LOCAL = 16, /* none named: 127.0.0.1 */
    HOST_LIBPQ = 32  /* libpq judges: sockets as hosts, empty ports */
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

/* Errors. The span is quoted, unless it may be part of a secret; refuse_unseen quotes nothing. */
int uri_refuse(const struct uri_parser *, struct uri_span, const char *why);
int uri_refuse_unseen(const struct uri_parser *, const char *why);
int uri_no_memory(struct dlock_error *);
/* Percent-decode into *out (malloc'ed). what: how a message names the span, never quoted. */
int uri_decode(const struct uri_parser *, struct uri_span, char **out, const char *what);
/* UTF-8 without control characters? */
bool uri_is_text(const char *);

/* uri_store.c: everything between "://" and the path; then the path. */
int uri_parse_authority(const struct uri_parser *, struct uri_span);
int uri_parse_path(const struct uri_parser *, struct uri_span);

#endif
