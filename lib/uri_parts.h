/*
 * uri_parts.h - what the parser of URIs (uri.c), its messages about typos (uri_typo.c), parameters
 * (uri_params.c) and "@name" (default.c) share.
 */
#ifndef DLOCK_URI_PARTS_H
#define DLOCK_URI_PARTS_H

#include "uri.h"

#include <string.h>
#include <strings.h>

/* A piece of the text. */
struct uri_span {
    const char *p, *end;
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

static inline bool uri_is_word(struct uri_span s, const char *word)
{
    return strlen(word) == span_len(s) && strncasecmp(word, s.p, span_len(s)) == 0;
}

/* uri.c: the i-th scheme of a store, without the tests' store; NULL past the last. */
const char *uri_scheme(size_t i);
/* DLOCK_ENOMEM. */
int uri_no_memory(struct dlock_error *);

/* uri_typo.c: the longest beginning of text that could be a scheme. */
size_t uri_scheme_chars(const char *text);
/* DLOCK_EUSAGE for a scheme (in lower case) without a rule, with the scheme probably meant. */
int uri_unknown_store(const char *scheme, struct dlock_error *);
/*
 * 0, or DLOCK_EUSAGE when text, a word without '/', looks like a URI whose scheme was forgotten:
 * "db1#nightly", "cache1:6379", "$REDIS_URL".
 */
int uri_check_forgotten(const char *text, struct dlock_error *err);
/*
 * uri_params.c: does a parameter before i have the name of a secret? Parameter i may be the rest of
 * a secret with a '&'.
 */
bool uri_follows_secret(const struct dlock_uri *, int i);

#endif
