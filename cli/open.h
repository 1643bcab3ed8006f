/* open.h - from LOCK to a handle. */
#ifndef CLI_OPEN_H
#define CLI_OPEN_H

#include "options.h"
#include "uri.h"

/*
 * The URI that LOCK names, parsed ("@name" is resolved). Free it with dlock_uri_free. NULL after
 * the error was printed; then *code is its exit code.
 */
struct dlock_uri *open_uri(const struct options *, int *code);
/*
 * A handle as the options ask for. Takes *uri over and sets it to NULL. NULL after the error was
 * printed; then *code is its exit code.
 */
dlock *open_handle(const struct options *, struct dlock_uri **uri, int *code);
/*
 * Limit the memory of this process, so that an endless answer of a server ends in "out of memory".
 * Not in a process that becomes the command, or forks it: the command would inherit the limit.
 */
void open_bound_memory(void);

#endif
