/* open.h - from LOCK to a handle. */
#ifndef CLI_OPEN_H
#define CLI_OPEN_H

#include "nested.h"
#include "options.h"
#include "uri.h"

/*
 * The URI that lock, options.lock or one of options.also, names, parsed ("@name" is resolved). Free it with
 * dlock_uri_free. NULL after the error was printed; then *code is its exit code.
 */
struct dlock_uri *open_uri(const struct options *, const char *lock, int *code);
/*
 * What names the lock for dlocks below and above this one, as in nested.h, malloc'ed. NULL: out of memory, or a file that
 * is missing or not accessible.
 */
char *open_key(const struct dlock_uri *, bool fcntl);
struct open_how {
    const struct nested_outer *outer; /* NULL, or the dlock that holds the lock */
    int64_t waited;                   /* this much of -w is over */
    bool also;                        /* a lock of --also: without a run record */
    bool look; /* the holder may be a dlock above this one: find out who it is */
};
/*
 * A handle as the options ask for, but for the mode. Takes *uri over and sets it to NULL. NULL after the error was
 * printed; then *code is its exit code.
 */
dlock *open_handle(const struct options *, enum dlock_mode, struct dlock_uri **uri,
                   const struct open_how *, int *code);
/* All of them; the caller frees them, also after an error. 0, or an exit code after the message. */
int open_uris(const struct options *, struct dlock_uri *uris[DLOCK_SET_MAX]);
/* How long to wait for a lock, when this much of -w is over. */
int64_t open_wait(const struct options *, int64_t waited);
/*
 * Limit the memory of this process, so that an endless answer of a server ends in "out of memory".
 * Not in a process that becomes the command, or forks it: the command would inherit the limit.
 */
void open_bound_memory(void);

#endif
