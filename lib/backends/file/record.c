/*
 * record.c - DIR/NAME.fence, the fencing token and the holder record of a named lock.
 *
 *     dlock-fence1 1790000000000000 0123456789abcdef0123456789abcdef
 *     dlock1 host=web1 pid=123 user=root since=1790000000000 cmd=backup.sh note=
 *
 * Only exclusive holders write the file, so there is one writer; they replace it by rename, so a
 * reader sees all or nothing. The file stays when the lock is released: only the kernel knows
 * whether the lock is held. The token is the larger of the last token plus 1 and the wall clock in
 * microseconds, so tokens grow even if the file is lost or the clock steps back (not both). The
 * directory is synced too: a crash of a machine without a clock battery would lose both.
 */
#include "file.h"

#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "dlock-fence1 "
#define RECORD_MAX 2048
#define FENCE_MAX (INT64_MAX - 8) /* leaves room for later tokens below 2^63 */

static int bad_fence(const struct file_place *p, const char *why, struct dlock_error *err)
{
    return dlock_fail(err, DLOCK_EDATA, 0,
                      "%s/%s %s; the fencing token would start again: repair or remove the file",
                      p->path, p->fence, why);
}

static int fail_fence(const struct file_place *p, const char *what, int sys,
                      struct dlock_error *err)
{
    return dlock_fail(err, sys == EACCES || sys == EPERM ? DLOCK_EPERM : DLOCK_ECREATE, sys,
                      "cannot %s the fencing token in %s/%s: %s", what, p->path, p->fence,
                      sys == EWOULDBLOCK ? FILE_LEASED : strerror(sys));
}

/* "FENCE TOKEN\nrecord\n"; strict, because a restarted count of tokens protects nothing. */
static bool parse(const char *s, size_t len, struct file_record *rec)
{
    const char *end = s + len, *line = memchr(s, '\n', len);
    const char *blank = line ? memchr(s, ' ', (size_t)(line - s)) : NULL;
    int64_t fence;

    if (!blank || end[-1] != '\n' || line - blank != DLOCK_TOKEN_LEN + 1 ||
        !dlock_read_number(s, (size_t)(blank - s), &fence) || fence < 1 || fence > FENCE_MAX)
        return false;
    memcpy(rec->token, blank + 1, DLOCK_TOKEN_LEN);
    rec->token[DLOCK_TOKEN_LEN] = '\0';
    rec->fence = (uint64_t)fence;
    for (s = rec->token; *s; s++)
        if (dlock_hex(*s) < 0)
            return false;
    /* The record is for display only: ignored if malformed. */
    if (line + 1 < end)
        dlock_identity_parse(line + 1, (size_t)(end - line - 2), &rec->info);
    return true;
}

ssize_t file_read_all(int fd, char *buf, size_t size)
{
    size_t n = 0;

    while (n < size) {
        ssize_t r = read(fd, buf + n, size - n);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return -errno;
        if (r == 0)
            break;
        n += (size_t)r;
    }
    return (ssize_t)n;
}

int file_record_read(const struct file_place *p, struct file_record *rec, struct dlock_error *err)
{
    static const char family[] = "dlock-fence";
    const char *stranger = NULL;
    char buf[RECORD_MAX];
    struct stat st;

    *rec = (struct file_record){0};
    int fd = openat(p->dir, p->fence, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0 && errno == ELOOP)
        return bad_fence(p, "is a symbolic link", err);
    if (fd < 0)
        return fail_fence(p, "read", errno, err);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return bad_fence(p, "is not a regular file", err);
    }
    stranger = file_stranger(p->dir, &st, S_ISVTX);
    ssize_t n = stranger ? 0 : file_read_all(fd, buf, sizeof(buf));
    close(fd);
    if (stranger)
        return dlock_fail(err, DLOCK_EDATA, 0,
                          "the %s %s/%s is in the place of the fencing token, where any user can "
                          "add files: remove it, or use a directory of your own",
                          stranger, p->path, p->fence);
    if (n < 0)
        return fail_fence(p, "read", (int)-n, err);
    size_t len = (size_t)n, magic = strlen(MAGIC);
    if (len >= magic && len < sizeof(buf) && memcmp(buf, MAGIC, magic) == 0 &&
        parse(buf + magic, len - magic, rec))
        return 0;
    *rec = (struct file_record){0};
    if (len > magic && memcmp(buf, family, strlen(family)) == 0 && memcmp(buf, MAGIC, magic) != 0)
        return bad_fence(p, "was written by another version of dlock", err);
    return bad_fence(p, "is not a fencing token of dlock, or none above it is left", err);
}

/* 0 or an errno. */
static int write_all(int fd, const char *buf, size_t len)
{
    while (len > 0) {
        ssize_t r = write(fd, buf, len);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return errno;
        buf += r;
        len -= (size_t)r;
    }
    return 0;
}

static int sync_fd(int fd)
{
    int rc;

    do
        rc = fsync(fd);
    while (rc != 0 && errno == EINTR);
    return rc == 0 ? 0 : errno;
}

int file_sync_dir(int dir)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return 0; /* no permission to read the directory: rely on the clock */
    int sys = sync_fd(fd);
    close(fd);
    return sys == EINVAL ? 0 : sys; /* a file system whose directories cannot be synced */
}

int file_replace(int dir, const char *name, int lock_fd, const char *text, size_t len, bool sync)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    struct stat st;
    uint64_t random;
    char tmp[64];
    int fd = -1;

    /* The inode makes the name unique to this lock; no file of ours but this ends in ".tmp". */
    if (fstat(lock_fd, &st) != 0)
        return errno;
    snprintf(tmp, sizeof(tmp), FILE_TMP_BEGIN "%" PRIuMAX FILE_TMP_END, (uintmax_t)st.st_ino);
    /* A holder may have died between two of these steps. */
    if (unlinkat(dir, tmp, 0) == 0 || errno == ENOENT)
        fd = openat(dir, tmp, flags, 0660);
    /* Another user took the name, or put a directory there: take a name that nobody can guess. */
    if (fd < 0 && (errno == EPERM || errno == EACCES || errno == EEXIST || errno == EISDIR)) {
        if (getrandom(&random, sizeof(random), 0) != sizeof(random))
            return EIO;
        snprintf(tmp, sizeof(tmp), FILE_TMP_BEGIN "%" PRIuMAX "%020" PRIu64 FILE_TMP_END,
                 (uintmax_t)st.st_ino, random);
        fd = openat(dir, tmp, flags, 0660);
    }
    if (fd < 0)
        return errno;
    int sys = write_all(fd, text, len);
    if (sys == 0 && sync)
        sys = sync_fd(fd);
    if (close(fd) != 0 && sys == 0 && errno != EINTR)
        sys = errno;
    if (sys == 0 && renameat(dir, tmp, dir, name) != 0)
        sys = errno;
    if (sys != 0)
        unlinkat(dir, tmp, 0);
    else if (sync)
        sys = file_sync_dir(dir);
    return sys;
}

int file_record_write(const struct file_place *p, int lock_fd,
                      const struct dlock_identity *identity, const char *token, uint64_t *fence,
                      struct dlock_error *err)
{
    char text[RECORD_MAX];
    struct file_record old;
    int rc = file_record_read(p, &old, err);

    if (rc < 0)
        return rc;
    uint64_t next = (uint64_t)dlock_wall() / 1000;
    if (next <= old.fence)
        next = old.fence + 1;
    int head = snprintf(text, sizeof(text), MAGIC "%" PRIu64 " %s\n", next, token);
    int body =
        dlock_identity_format(identity, RECORD_HOLDS, text + head, sizeof(text) - (size_t)head - 1);
    body = body > 0 ? body : 0;
    text[head + body] = '\n';
    rc = file_replace(p->dir, p->fence, lock_fd, text, (size_t)(head + body) + (body > 0), true);
    if (rc != 0)
        return fail_fence(p, "write", rc, err);
    *fence = next;
    return 0;
}
