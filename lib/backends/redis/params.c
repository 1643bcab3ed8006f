/* params.c - the URI parameters of all stores in Redis servers. See params.h. */
#include "params.h"

#include "uri.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int redis_param_grace(const struct dlock_spec *spec, int64_t *grace, struct dlock_error *err)
{
    const char *text = dlock_uri_param(spec->uri, "restart-grace");
    return text ? dlock_parse_duration(text, grace, err) : 0;
}

int redis_param_secret(const struct dlock_spec *spec, char **secret, struct dlock_error *err)
{
    const char *file = dlock_uri_param(spec->uri, "password-file"), *env = getenv("REDISCLI_AUTH");

    *secret = NULL;
    if (file)
        return dlock_read_secret(secret, file, err);
    if (env && *env != '\0' && !(*secret = strdup(env)))
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    return 0;
}

int redis_param_script(const struct dlock_spec *spec, const char *dbtext, struct redis_script *s,
                       struct dlock_error *err)
{
    long db = 0;

    if (dbtext && *dbtext != '\0') {
        char *end;
        errno = 0;
        db = strtol(dbtext, &end, 10);
        if (*end != '\0' || *dbtext < '0' || *dbtext > '9' || errno != 0 || db > 1000000)
            return dlock_fail(err, DLOCK_EUSAGE, 0, "'%s' is not the number of a database", dbtext);
    }
    if (redis_script_init(s, spec->uri->name, (int)db) != 0)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    return 0;
}
