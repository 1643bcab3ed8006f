/*
 * default.c - the URI for "@name".
 *
 * Without $DLOCK_STORE it is a file in a directory that depends only on the machine and the user,
 * never on the environment: cron and a shell must use the same lock. So a directory that fails for
 * a temporary reason is an error, and the next directory is not tried: another process would still
 * use the first.
 */
#include "uri.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Other users must not be able to replace the directory or to write in it. */
static int check_dir(const char *dir, struct dlock_error *err)
{
    struct stat st;
    /* O_PATH: needs no right to read, and opens no device. */
    int fd = open(dir, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC), r;

    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        return dlock_fail(err, DLOCK_EPERM, errno, "%s is not a plain directory: remove it", dir);
    if (fd < 0)
        return dlock_fail(err, DLOCK_ECREATE, errno, "cannot open %s: %s", dir, strerror(errno));
    r = fstat(fd, &st) < 0 ? -errno : 0;
    close(fd);
    if (r < 0)
        return dlock_fail(err, DLOCK_ECREATE, -r, "cannot check %s: %s", dir, strerror(-r));
    if (st.st_uid != geteuid())
        return dlock_fail(err, DLOCK_EPERM, 0, "%s belongs to uid %lu, not to us: remove it", dir,
                          (unsigned long)st.st_uid);
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return dlock_fail(err, DLOCK_EPERM, 0, "others may write to %s: chmod 700 it", dir);
    return 0;
}

/* The directory base/dlock-UID; it is made if it is missing. 1: this user cannot have one below base. */
static int try_base(char *dir, size_t size, const char *base, bool last, struct dlock_error *err)
{
    int r;

    snprintf(dir, size, "%s/dlock-%lu", base, (unsigned long)geteuid());
    r = mkdir(dir, 0700);
    /* A umask such as 0177, meant for files, would lock us out of it permanently. Base is sticky: it is still ours. */
    if (r == 0)
        r = chmod(dir, 0700);
    if (r < 0 && errno != EEXIST) {
        /*
         * Not for EROFS: a service with a read-only /run/lock in its sandbox would lock in /tmp, and a shell on the
         * same machine in /run/lock.
         */
        if (!last && (errno == EACCES || errno == ENOENT))
            return 1;
        return dlock_fail(
            err, errno == EACCES ? DLOCK_EPERM : DLOCK_ECREATE, errno,
            "cannot make the lock directory %s: %s (DLOCK_STORE can name another place)", dir,
            strerror(errno));
    }
    return check_dir(dir, err);
}

static int embedded_store(char **store, struct dlock_error *err)
{
    char dir[64];
    int r = try_base(dir, sizeof(dir), "/run/lock", false, err);

    if (r > 0)
        r = try_base(dir, sizeof(dir), "/tmp", true, err);
    if (r < 0)
        return r;
    if (asprintf(store, "file://%s", dir) < 0)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    return 0;
}

/* An absolute path as a URI. */
static int path_store(char **store, const char *path, struct dlock_error *err)
{
    static const char scheme[] = "file://";
    char *p = malloc(sizeof(scheme) + 3 * strlen(path));

    if (!p)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    *store = p;
    for (p = stpcpy(p, scheme); *path; path++) {
        if (strchr("%?#", *path))
            p += sprintf(p, "%%%02X", (unsigned char)*path);
        else
            *p++ = *path;
    }
    *p = '\0';
    return 0;
}

/* Messages do not quote $DLOCK_STORE: it may hold a password. */
static int given_store(char **store, const char *text, struct dlock_error *err)
{
    struct dlock_error why;

    if (strchr(text, '#'))
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "DLOCK_STORE must name a store only: it has a '#' (in a password: %%23)");
    if (*text == '/')
        return path_store(store, text, err);
    if (dlock_uri_check_typo(text, &why) < 0)
        return dlock_fail(err, why.code, 0, "DLOCK_STORE %s", why.msg);
    if (dlock_uri_scheme_len(text) == 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "DLOCK_STORE is neither a URI (redis://host) nor an absolute path");
    *store = strdup(text);
    return *store ? 0 : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

int dlock_default_uri(char **out, const char *name, const char *store, struct dlock_error *err)
{
    char *base = NULL, *uri = NULL;
    int r;

    if (!*name)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "the lock's name after '@' is empty (an unset variable?)");
    if (strstr(name, "://"))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "LOCK has a '@' before a URI: remove it");
    if (strchr(name, '#'))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "\"@%.80s\": write a '#' in a name as %%23", name);
    r = store && *store ? given_store(&base, store, err) : embedded_store(&base, err);
    if (r == 0 && asprintf(&uri, "%s#%s", base, name) < 0)
        r = dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    if (base)
        explicit_bzero(base, strlen(base));
    free(base);
    if (r == 0)
        *out = uri;
    return r;
}
