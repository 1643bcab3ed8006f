/* params.h - the URI parameters of all stores in Redis servers. Each is marked as used. */
#ifndef DLOCK_REDIS_PARAMS_H
#define DLOCK_REDIS_PARAMS_H

#include "script.h"

/* ?restart-grace=: *grace (ns) is left alone where it is missing. 0 or a negative code. */
int redis_param_grace(const struct dlock_spec *, int64_t *grace, struct dlock_error *);
/*
 * The password where the URI has none: from ?password-file=, else REDISCLI_AUTH (as redis-cli).
 * *secret: malloc'ed, or NULL; the caller overwrites the text before free(). 0 or a negative code.
 */
int redis_param_secret(const struct dlock_spec *, char **secret, struct dlock_error *);
/*
 * Parameters of other programs: ignored, mapped to our parameters, or refused. Call it
 * before our parameters are read. tls: the connections use it. 0 or a negative code.
 */
int redis_param_foreign(const struct dlock_spec *, bool tls, struct dlock_error *);
/*
 * Move ?db= into the path of the URI (not for redis+unix, whose path is the socket).
 * DLOCK_EUSAGE when the path names a different database; 0 or a negative code.
 */
int redis_param_db(const struct dlock_spec *, struct dlock_error *);
/* The lock's script, for the database dbtext: "3"; "" or NULL: 0. 0 or a negative code. */
int redis_param_script(const struct dlock_spec *, const char *dbtext, struct redis_script *,
                       struct dlock_error *);

#endif
