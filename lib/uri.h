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
    char *key, *value; /* percent-decoded; value "" without '=' */
    bool used;         /* a backend has read it; the rest is refused (DLOCK_EUSAGE) */
    bool ignored;      /* another program's, without meaning here; used, too */
    char hint[64];     /* known names with a similar spelling: "a, b" */
    int differs;       /* the number of slips between key and hint */
};

/* An advice to add a parameter: behind the '#' it would be part of the name. */
#define URI_PARAM(text) text " before the '#' (of @NAME: in DLOCK_STORE)"

/* What to do with a parameter that another program reads from the URI of the same store. */
enum dlock_foreign_how {
    FOREIGN_RENAMED, /* text: our name; refused if both names are given */
    FOREIGN_AS_OURS, /* values: what dlock does anyway; other values are refused */
    FOREIGN_REFUSED
};

struct dlock_foreign {
    const char *keys; /* "a b*": b* is a prefix; without regard to case, '_', '-'; NULL: the end */
    enum dlock_foreign_how how;
    const char *text;   /* refused: what to write instead */
    const char *values; /* "true 1", in any case */
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
 * How many slips make a of b: a character added, left out, changed, or swapped with its neighbour.
 * INT_MAX where a or b is longer than URI_SLIPS_MAX; no known name is.
 */
#define URI_SLIPS_MAX 40
int uri_slips(const char *a, const char *b);
/* The length of SCHEME when text begins with "SCHEME://"; 0: text is a path (or "@name"). */
size_t dlock_uri_scheme_len(const char *text);
/* The value of a parameter, marked as used; NULL when absent. The parser refuses duplicates. */
const char *dlock_uri_param(struct dlock_uri *, const char *key);
/* The same, not marked. */
const char *dlock_uri_peek(const struct dlock_uri *, const char *key);
/* A parameter of this name exists: an error about a similar unknown name suggests it. */
void dlock_uri_known(struct dlock_uri *, const char *key);
/*
 * Look for parameters of other programs among the unused parameters. ignored: NULL, or their names,
 * spelled as in struct dlock_foreign, NULL at the end. Neither list has a name of ours. 0,
 * DLOCK_EUSAGE or DLOCK_ENOMEM.
 */
int dlock_uri_foreign(struct dlock_uri *, const char *const *ignored, const struct dlock_foreign *,
                      struct dlock_error *);
/*
 * The kind of a parameter that has a file read or written, such as "sslkey", or that sends this
 * user's saved secrets to another host (hostaddr, gssdelegation). NULL: there is none.
 */
const char *dlock_uri_file_param(const struct dlock_uri *);
/* The names of ignored parameters, "a, b", cut to size (which may be 0). False: none is ignored. */
bool dlock_uri_ignored(const struct dlock_uri *, char *buf, size_t size);
/* "a=1&b=2": the parameters that count, without user and secrets, cut to size. Returns buf. */
const char *dlock_uri_params_text(const struct dlock_uri *, char *buf, size_t size);
/* 0, or DLOCK_EUSAGE that names the first unused parameter, and known names like it. */
int dlock_uri_check_params(const struct dlock_uri *, struct dlock_error *);

/*
 * default.c: the store of "@name" as a URI without a name, malloc'ed, which may hold a password.
 * store: the value of $DLOCK_STORE, or NULL. NULL: the embedded default. 0, or an error as from
 * dlock_default_uri().
 */
int dlock_find_store(char **base, const char *store, struct dlock_error *);
/*
 * default.c: the directory with the files of all "@name" of this store, malloc'ed; NULL: the store
 * is on a network. base: of dlock_find_store(). Makes nothing: the directory may be missing.
 */
int dlock_default_dir(char **out, const char *base, struct dlock_error *);

/*
 * default.c: the private directory that outlives a reboot, for the records of "@name" in the
 * default store: /var/lib/dlock for root, else .local/state/dlock in the home directory by
 * /etc/passwd. make: make the directory if missing. *out is malloc'ed, *fd O_PATH; without make,
 * *fd is -1 if it is missing. 0 or a negative DLOCK_E*; then both are untouched.
 */
int dlock_state_dir(char **out, int *fd, bool make, struct dlock_error *);

/* lock.c: as dlock_open() has completed it; of the handle. */
const struct dlock_uri *dlock_uri_of(const dlock *);
/*
 * lock.c: the descriptors that a file lock needs for its release, beside dlock_fd(): for a caller
 * that closes unknown descriptors. Fills at most DLOCK_FDS_MAX entries and returns their number; 0
 * unless the lock is held.
 */
#define DLOCK_FDS_MAX 4
int dlock_own_fds(const dlock *, int fds[DLOCK_FDS_MAX]);
/* lock.c: dlock_start_list() when idle; all: with each free lock that may have a run record. */
void dlock_begin_list(dlock *, bool all);

#endif
