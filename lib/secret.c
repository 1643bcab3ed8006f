/* secret.c - passwords from files. */
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PASSWORD_MAX 4096

/* A file that others can read or replace is no secret: refuse it, as ssh refuses such keys. */
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

static int read_line(int fd, const char *path, char **out, struct dlock_error *err)
{
    char buf[PASSWORD_MAX + 1];
    ssize_t n = read(fd, buf, PASSWORD_MAX);
    if (n < 0)
        return dlock_fail(err, DLOCK_EPERM, errno, "password-file %s: %s", path, strerror(errno));
    buf[n] = '\0';
    *out = strndup(buf, strcspn(buf, "\r\n"));
    explicit_bzero(buf, sizeof(buf));
    return *out ? 0 : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

int dlock_read_secret(char **out, const char *path, struct dlock_error *err)
{
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return dlock_fail(err, DLOCK_EPERM, errno, "password-file %s: %s", path, strerror(errno));
    int rc = check_secret_file(fd, path, err);
    if (rc == 0)
        rc = read_line(fd, path, out, err);
    close(fd);
    return rc;
}
