/* params.h - what every store made of Redis servers reads from its URI. Each parameter is marked as used. */
#ifndef DLOCK_REDIS_PARAMS_H
#define DLOCK_REDIS_PARAMS_H

#include "script.h"

/* "no shared locks here", "no --slots": DLOCK_EUSAGE, or 0. why: "is not available for redlock". */
int redis_param_mode(const struct dlock_spec *, const char *why, struct dlock_error *);
/* ?restart-grace=: *grace (ns) is left alone where it is missing. 0 or a negative code. */
int redis_param_grace(const struct dlock_spec *, int64_t *grace, struct dlock_error *);
/*
 * The password where the URI has none: from ?password-file=, else REDISCLI_AUTH (as redis-cli does).
 * *secret: malloc'ed, or NULL; the caller overwrites it before it is freed. 0 or a negative code.
 */
int redis_param_secret(const struct dlock_spec *, char **secret, struct dlock_error *);
/* The lock's script, for the database dbtext: "3"; "" or NULL: 0. 0 or a negative code. */
int redis_param_script(const struct dlock_spec *, const char *dbtext, struct redis_script *,
                       struct dlock_error *);

#endif
