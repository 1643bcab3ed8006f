/* open.h - from LOCK to a handle. */
#ifndef CLI_OPEN_H
#define CLI_OPEN_H

#include "nested.h"
#include "options.h"
#include "uri.h"

#include <limits.h>

/*
 * Parse lock, which is options.lock or of options.also; "@name" is resolved. The caller calls
 * dlock_uri_free. NULL after printing the error; then *code is the exit code.
 */
struct dlock_uri *open_uri(const struct options *, const char *lock, int *code);
/*
 * The URI of "@name", malloc'ed, which may hold a password. make: the folder of the embedded
 * default, if it is missing. 0 or a negative DLOCK_E*.
 */
int open_name(char **text, const char *name, bool make, struct dlock_error *);
/*
 * Where output is talkative: which locks are on this machine because nothing names a store, and
 * which names end as those do to which a script adds an empty variable.
 */
void open_tell_names(const struct options *, struct dlock_uri *const *uris);
/* The path of a file lock's file, with links resolved. False: another store, or no memory. */
bool open_path(const struct dlock_uri *, char buf[PATH_MAX]);
/* The lock's key (nested.h), malloc'ed. NULL: out of memory, or the file is not accessible. */
char *open_key(const struct dlock_uri *, bool fcntl);
struct open_how {
    const struct nested_outer *outer; /* NULL, or the dlock that holds the lock */
    int64_t waited;                   /* the part of -w that is over */
    bool also;                        /* a lock of --also: without a run record */
    bool look; /* find out who holds the lock: perhaps a dlock above this process */
};
/*
 * Open a handle by the options, but in this mode. Takes *uri over and sets *uri to NULL. 0, or a
 * negative DLOCK_E* with err filled and *out untouched.
 */
int open_lock(dlock **out, const struct options *, enum dlock_mode, struct dlock_uri **uri,
              const struct open_how *, struct dlock_error *err);
/* For -v: which lock this is. */
void open_tell(const struct options *, const dlock *);
/* open_lock(), open_tell(). NULL after printing the error; then *code is the exit code. */
dlock *open_handle(const struct options *, enum dlock_mode, struct dlock_uri **uri, int *code);
/* The length of NAME= at the beginning of a command's word; 0: the word assigns nothing. */
size_t open_assigned_len(const char *word);
/* Parse all locks; the caller always frees the URIs. 0, or an exit code after the message. */
int open_uris(const struct options *, struct dlock_uri *uris[DLOCK_SET_MAX]);
/* The time to wait for a lock when this part of -w is over. */
int64_t open_wait(const struct options *, int64_t waited);
/*
 * Limit the memory of this process, so that an endless answer of a server ends in "out of memory".
 * Not for a process that becomes or forks the command: the command would inherit the limit.
 */
void open_bound_memory(void);

#endif
