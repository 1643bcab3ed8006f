/*
 * open.c - what the URI says about a Redis server: address, database, password.
 */
#include "redis.h"

#include "params.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

/* The parameters are marked as used in the URI. */
static const char *param(const struct dlock_spec *spec, const char *key)
{
    return dlock_uri_param(spec->uri, key);
}

int redis_find_secret(const struct dlock_spec *spec, char **secret, struct dlock_error *err)
{
    const char *file = param(spec, "password-file"), *env = getenv("REDISCLI_AUTH");

    *secret = NULL;
    if (file != NULL)
        return dlock_read_secret(secret, file, err);
    if (env != NULL && *env != '\0' && (*secret = strdup(env)) == NULL)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    return 0;
}

static int find_password(struct dlock_be *be, struct dlock_error *err)
{
    const struct dlock_uri *uri = be->spec->uri;

    if (uri->nhosts > 0) {
        be->auth.user = uri->hosts[0].user;
        be->auth.password = uri->hosts[0].password;
    }
    if (be->auth.password != NULL) {
        (void)param(be->spec, "password-file");
        return 0;
    }
    int rc = redis_find_secret(be->spec, &be->secret, err);
    be->auth.password = be->secret;
    /* A user without a password ("nopass") still has to be named. */
    if (be->auth.password == NULL && be->auth.user != NULL && *be->auth.user != '\0')
        be->auth.password = "";
    return rc;
}

int redis_parse_db(const char *text, int *db, struct dlock_error *err)
{
    char *end;
    long n;
    *db = 0;
    if (text == NULL || *text == '\0')
        return 0;
    errno = 0;
    n = strtol(text, &end, 10);
    if (*end != '\0' || *text < '0' || *text > '9' || errno != 0 || n > 1000000)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "'%s' is not the number of a database", text);
    *db = (int)n;
    return 0;
}

static int set_unix_peer(struct dlock_be *be, struct dlock_error *err)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    const char *path = be->spec->uri->path;
    if (strlen(path) == 0 || strlen(path) >= sizeof(un.sun_path))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "'%s': the path of a socket has 1 to %zu bytes",
                          path, sizeof(un.sun_path) - 1);
    strcpy(un.sun_path, path);
    memcpy(&be->unix_peer.addr, &un, sizeof(un));
    be->unix_peer.len = sizeof(un);
    return 0;
}

static int parse_replicas(const char *text, unsigned *n, struct dlock_error *err)
{
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value > 1000)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "wait-replicas=%s: a number from 0 to 1000", text);
    *n = (unsigned)value;
    return 0;
}

int redis_check_spec(struct dlock_be *be, struct dlock_error *err)
{
    const struct dlock_spec *spec = be->spec;
    const char *grace = param(spec, "restart-grace");
    const char *replicas = param(spec, "wait-replicas");
    const char *dbtext = spec->uri->path;
    int db, rc;

    if (spec->mode != DLOCK_EXCLUSIVE)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s is not yet supported for redis",
                          spec->mode == DLOCK_SHARED ? "a shared lock" : "--slots");
    be->is_unix = strcmp(spec->uri->scheme, "redis+unix") == 0;
    if (grace != NULL && (rc = dlock_parse_duration(grace, &be->restart_grace, err)) != 0)
        return rc;
    if (replicas != NULL && (rc = parse_replicas(replicas, &be->wait_replicas, err)) != 0)
        return rc;
    if (strcmp(spec->uri->scheme, "redis+sentinel") == 0) {
        if ((rc = redis_sentinel_open(be, err)) != 0)
            return rc;
        dbtext = strrchr(dbtext, '/') + 1; /* "/service/0" */
    } else if (be->is_unix) {
        dbtext = param(spec, "db");
        if ((rc = set_unix_peer(be, err)) != 0)
            return rc;
    } else if (*dbtext == '/') {
        dbtext++;
    }
    if ((rc = redis_parse_db(dbtext, &db, err)) != 0)
        return rc;
    if (redis_script_init(&be->script, spec->uri->name, db) != 0)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    if (strcmp(spec->uri->scheme, "rediss") == 0 &&
        (rc = tls_config_from_uri(spec, &be->tls, err)) != 0)
        return rc;
    return find_password(be, err);
}
