/*
 * redis_open.c - what the URI says about a Redis server: address, database, password.
 */
#include "redis.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PASSWORD_MAX 4096

/* The parameters are marked as used in the URI, which is constant for us in every other respect. */
static const char *param(const struct dlock_spec *spec, const char *key)
{
    return dlock_uri_param((struct dlock_uri *)spec->uri, key);
}

/* A file that others can read or replace is no secret: refused like ssh does with its keys. */
static int check_secret_file(int fd, const char *path, struct dlock_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return dlock_fail(err, DLOCK_EPERM, errno, "password-file %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return dlock_fail(err, DLOCK_EPERM, 0, "password-file %s: not a regular file", path);
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return dlock_fail(err, DLOCK_EPERM, 0, "password-file %s: belongs to another user", path);
    if (st.st_mode & (S_IRWXG | S_IRWXO))
        return dlock_fail(err, DLOCK_EPERM, 0,
                          "password-file %s: others have access to it (use chmod 600)", path);
    if (st.st_size > PASSWORD_MAX)
        return dlock_fail(err, DLOCK_EPERM, 0, "password-file %s: larger than 4 KiB", path);
    return 0;
}

/* The first line of path, malloc'ed. */
static int read_secret(char **out, const char *path, struct dlock_error *err)
{
    char buf[PASSWORD_MAX + 1];
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return dlock_fail(err, DLOCK_EPERM, errno, "password-file %s: %s", path, strerror(errno));
    int rc = check_secret_file(fd, path, err);
    if (rc == 0) {
        ssize_t n = read(fd, buf, PASSWORD_MAX);
        if (n < 0) {
            rc = dlock_fail(err, DLOCK_EPERM, errno, "password-file %s: %s", path, strerror(errno));
        } else {
            buf[n] = '\0';
            buf[strcspn(buf, "\r\n")] = '\0';
            *out = strdup(buf);
            if (*out == NULL)
                rc = dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
        }
        explicit_bzero(buf, sizeof(buf));
    }
    close(fd);
    return rc;
}

/* From the URI, else ?password-file=, else REDISCLI_AUTH (as redis-cli does). */
static int find_password(struct dlock_be *be, struct dlock_error *err)
{
    const struct dlock_uri *uri = be->spec->uri;
    const char *file = param(be->spec, "password-file"), *env = getenv("REDISCLI_AUTH");

    if (uri->nhosts > 0) {
        be->auth.user = uri->hosts[0].user;
        be->auth.password = uri->hosts[0].password;
    }
    if (be->auth.password != NULL)
        return 0;
    if (file != NULL) {
        int rc = read_secret(&be->secret, file, err);
        if (rc != 0)
            return rc;
    } else if (env != NULL && *env != '\0') {
        be->secret = strdup(env);
        if (be->secret == NULL)
            return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    }
    be->auth.password = be->secret;
    /* A user without a password ("nopass") still has to be named. */
    if (be->auth.password == NULL && be->auth.user != NULL && *be->auth.user != '\0')
        be->auth.password = "";
    return 0;
}

static int parse_db(const char *text, int *db, struct dlock_error *err)
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

int redis_check_spec(struct dlock_be *be, struct dlock_error *err)
{
    const struct dlock_spec *spec = be->spec;
    const char *grace = param(spec, "restart-grace");
    const char *dbtext = spec->uri->path;
    int db, rc;

    if (spec->mode != DLOCK_EXCLUSIVE)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s is not yet supported for redis",
                          spec->mode == DLOCK_SHARED ? "a shared lock" : "--slots");
    be->is_unix = strcmp(spec->uri->scheme, "redis+unix") == 0;
    if (grace != NULL && (rc = dlock_parse_duration(grace, &be->restart_grace, err)) != 0)
        return rc;
    if (be->is_unix) {
        dbtext = param(spec, "db");
        if ((rc = set_unix_peer(be, err)) != 0)
            return rc;
    } else if (*dbtext == '/') {
        dbtext++;
    }
    if ((rc = parse_db(dbtext, &db, err)) != 0)
        return rc;
    if (rscript_init(&be->script, spec->uri->name, db) != 0)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    return find_password(be, err);
}
