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
    bool has_port;         /* the URI names it */
    char *user, *password; /* NULL: none given for this host */
};

struct dlock_param {
    char *key, *value; /* percent-decoded; value "" when there is no '=' */
    bool used;         /* a backend has read it; the others are refused (DLOCK_EUSAGE) */
    bool ignored;      /* of another program's, without meaning here; it is used, too */
    char near
        [64]; /* the known names that are spelled most like it: "a, b"; and how much they differ */
    int differs;
};

/* What to do with a parameter that another program reads from the URI of the same store. */
enum dlock_foreign_how {
    FOREIGN_RENAMED, /* text: our name for it; both of them given: refused */
    FOREIGN_AS_OURS, /* values: those that ask for what dlock does anyway; others: refused */
    FOREIGN_REFUSED
};

struct dlock_foreign {
    const char *key; /* case, '_' and '-' do not count; "ssl*": all that begin so; NULL: the end */
    enum dlock_foreign_how how;
    const char *text;   /* refused: what to write instead */
    const char *values; /* "true 1"; case does not count */
};

/*
 * A parsed lock URI. All strings are percent-decoded, malloc'ed, zeroed before they are freed, and
 * never NULL unless stated. raw is the store part as given, before '#': libpq parses it again.
 */
struct dlock_uri {
    char *scheme; /* lower case, an alias and "+DRIVER" resolved; "file" for a path */
    char *raw;
    /*
     * file: the whole path, or the directory of "#name"; redis, redlock: "/0"; redis+unix: the
     * socket; redis+sentinel: "/service/0"; zk: chroot or ""; postgres: "/db" or ""
     */
    char *path;
    char *name;  /* the lock's name, percent-decoded; for a bare path the path itself */
    bool bare;   /* a path without '#name' (file only): dlock never writes to it */
    bool has_db; /* redis: the path names a database, if only 0 */
    struct dlock_host *hosts;
    int nhosts;
    struct dlock_param *params;
    int nparams;
    char *where; /* the store for messages, without secrets: "redis://h:6379/0" */
};

/*
 * Parse text. 0, or DLOCK_EUSAGE (the message quotes the wrong part, never a password),
 * DLOCK_ENOMEM; then *out is untouched.
 */
int dlock_uri_parse(struct dlock_uri **out, const char *text, struct dlock_error *);
/* Rewrite u->where after a backend has completed the hosts. 0 or DLOCK_ENOMEM. */
int dlock_uri_settle_where(struct dlock_uri *, struct dlock_error *);
/* Frees; overwrites the secrets first. NULL is fine. */
void dlock_uri_free(struct dlock_uri *);
/*
 * 0, or DLOCK_EUSAGE when text, which would be taken for a path, looks like a URI: a known scheme
 * and ':' without "//", or a "://" with something before its scheme. The message has the verb but
 * no subject: "begins with a blank: ...".
 */
int dlock_uri_check_typo(const char *text, struct dlock_error *);
/*
 * The length of SCHEME when text begins with "SCHEME://", else 0: then it is a path (or "@name").
 */
size_t dlock_uri_scheme_len(const char *text);
/*
 * The value of a query parameter, marked as used; NULL when absent. Duplicates are refused by the
 * parser.
 */
const char *dlock_uri_param(struct dlock_uri *, const char *key);
/* The same, not marked. */
const char *dlock_uri_peek(const struct dlock_uri *, const char *key);
/* There is a parameter of that name: it is named where an unknown one is spelled nearly so. */
void dlock_uri_known(struct dlock_uri *, const char *key);
/*
 * Look through the parameters that are not used yet for those of other programs. ignored: their
 * names, spelled as in struct dlock_foreign, NULL at the end. Neither list has a name of ours. 0,
 * DLOCK_EUSAGE or DLOCK_ENOMEM.
 */
int dlock_uri_foreign(struct dlock_uri *, const char *const *ignored, const struct dlock_foreign *,
                      struct dlock_error *);
/* The names of what is ignored, "a, b", cut to size (which may be 0). False: nothing is. */
bool dlock_uri_ignored(const struct dlock_uri *, char *buf, size_t size);
/*
 * 0, or DLOCK_EUSAGE that names the first unused parameter, and known ones that are spelled like
 * it.
 */
int dlock_uri_check_params(const struct dlock_uri *, struct dlock_error *);

/*
 * default.c: the directory with the files of all "@name", malloc'ed; NULL where store, the value of
 * $DLOCK_STORE, is on a network. Makes nothing: the directory may be missing. 0, or an error as
 * dlock_default_uri() reports it.
 */
int dlock_default_dir(char **out, const char *store, struct dlock_error *);

/*
 * default.c: the private directory that outlives a reboot, for what is kept of "@name" of the
 * embedded default: /var/lib/dlock for root, else .local/state/dlock in the home directory that
 * /etc/passwd has. make: make it if it is missing. *out is malloc'ed, *fd O_PATH; without make, *fd
 * is -1 if it is missing. 0 or a negative DLOCK_E*; then both are untouched.
 */
int dlock_state_dir(char **out, int *fd, bool make, struct dlock_error *);

/*
 * lock.c: dlock_open() for a parsed URI. Takes *uri over and sets it to NULL, also when it fails.
 */
int dlock_open_uri(dlock **out, struct dlock_uri **uri, const struct dlock_options *,
                   struct dlock_error *);
/*
 * lock.c: the descriptors that a file lock needs to release it, beside dlock_fd(): for a caller
 * that closes what it does not know. Fills at most DLOCK_FDS_MAX entries and returns their number;
 * 0 unless it is held.
 */
#define DLOCK_FDS_MAX 4
int dlock_own_fds(const dlock *, int fds[DLOCK_FDS_MAX]);

#endif
