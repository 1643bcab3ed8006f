/* params.h - the URI parameters of all stores in Redis servers. Each is marked as used. */
#ifndef DLOCK_REDIS_PARAMS_H
#define DLOCK_REDIS_PARAMS_H

#include "script.h"

/*
 * The parameters that all of these stores have. Parameters of other programs are ignored, mapped to
 * ours, or refused. ?db= is moved into the path of the URI (but for redis+unix, whose path is the
 * socket), and the script gets the database. *grace (ns) is left alone without ?restart-grace=. 0
 * or a negative code.
 */
int redis_params_read(const struct dlock_spec *, struct redis_script *, int64_t *grace,
                      struct dlock_error *);
/*
 * The password where the URI has none: from ?password-file=, else REDISCLI_AUTH (as redis-cli).
 * *secret: malloc'ed, or NULL; the caller overwrites the text before free(). 0 or a negative code.
 */
int redis_param_secret(const struct dlock_spec *, char **secret, struct dlock_error *);

#endif
