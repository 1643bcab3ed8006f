/* params.h - parameters that all stores made of Redis servers take. */
#ifndef DLOCK_REDIS_PARAMS_H
#define DLOCK_REDIS_PARAMS_H

#include "util.h"

/*
 * The password of who has none in the URI: from ?password-file=, else REDISCLI_AUTH (as redis-cli does). *secret:
 * malloc'ed, or NULL. 0 or a negative code. Marks the parameter as used.
 */
int redis_find_secret(const struct dlock_spec *, char **secret, struct dlock_error *);
/* "3" or "": the number of a database. 0 or DLOCK_EUSAGE. */
int redis_parse_db(const char *text, int *db, struct dlock_error *);

#endif
