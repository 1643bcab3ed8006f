/*
 * uri.h - the lock's name as a URI. The grammar is documented under LOCK in dlock(1) and frozen.
 */
#ifndef DLOCK_URI_H
#define DLOCK_URI_H

#include "dlock.h"

#include <stddef.h>

struct dlock_host {
    char *host;            /* without brackets; "" when the URI names none */
    unsigned short port;   /* the scheme's default filled in */
    char *user, *password; /* NULL: none given for this host */
};

struct dlock_param {
    char *key, *value; /* percent-decoded; value "" when there is no '=' */
    bool used;         /* a backend has read it; the others are refused (DLOCK_EUSAGE) */
};

/*
 * A parsed lock URI. All strings are percent-decoded, malloc'ed, zeroed before they are freed, and
 * never NULL unless stated. raw is the store part as given, before '#': libpq parses it again.
 */
struct dlock_uri {
    char *scheme; /* lower case; "file" for a path */
    char *raw;
    /*
     * file: the whole path, or the directory of "#name"; redis, redlock: "/0"; redis+unix: the socket;
     * redis+sentinel: "/service/0"; zk: chroot or ""; postgres: "/db" or ""
     */
    char *path;
    char *name; /* the lock's name, percent-decoded; for a bare path the path itself */
    bool bare;  /* a path without '#name' (file only): dlock never writes to it */
    struct dlock_host *hosts;
    int nhosts;
    struct dlock_param *params;
    int nparams;
    char *where; /* the store for messages, without secrets: "redis://h:6379/0" */
};

/* Parse text. 0, or DLOCK_EUSAGE (the message quotes the wrong part, never a password), DLOCK_ENOMEM; then *out is untouched. */
int dlock_uri_parse(struct dlock_uri **out, const char *text, struct dlock_error *);
/* Rewrite u->where after a backend has completed the hosts. 0 or DLOCK_ENOMEM. */
int dlock_uri_settle_where(struct dlock_uri *, struct dlock_error *);
/* Frees; overwrites the secrets first. NULL is fine. */
void dlock_uri_free(struct dlock_uri *);
/*
 * 0, or DLOCK_EUSAGE when text, which would be taken for a path, looks like a URI: a known scheme and ':' without "//",
 * or a "://" with something before its scheme. The message has the verb but no subject: "begins with a blank: ...".
 */
int dlock_uri_check_typo(const char *text, struct dlock_error *);
/* The length of SCHEME when text begins with "SCHEME://", else 0: then it is a path (or "@name"). */
size_t dlock_uri_scheme_len(const char *text);
/* The value of a query parameter, marked as used; NULL when absent. Duplicates are refused by the parser. */
const char *dlock_uri_param(struct dlock_uri *, const char *key);
/* 0, or DLOCK_EUSAGE that names the first unused parameter. */
int dlock_uri_check_params(const struct dlock_uri *, struct dlock_error *);

/*
 * lock.c: dlock_open() for a parsed URI. Takes *uri over and sets it to NULL, also when it fails.
 */
int dlock_open_uri(dlock **out, struct dlock_uri **uri, const struct dlock_options *,
                   struct dlock_error *);

#endif
