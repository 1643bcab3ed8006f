/*
 * record.c - DIR/NAME.fence, the fencing token and the holder record of a named lock.
 *
 *     dlock-fence1 1790000000000000 0123456789abcdef0123456789abcdef
 *     dlock1 host=web1 pid=123 user=root since=1790000000000 cmd=backup.sh note=
 *     until 1790003600000000 01234567-89ab-cdef-0123-456789abcdef
 *
 * Only exclusive holders write the file, so there is one writer. The file stays when the lock is
 * released: only the kernel knows whether the lock is held. The token is the larger of the last
 * token plus 1 and the wall clock in microseconds, so tokens grow even if the file is lost or the
 * clock steps back (not both). --status reads without the lock: beside a write it may see half of
 * the new text, and shows no record then.
 *
 * A crash of the machine loses what is not on disk, and a machine without a clock battery its clock
 * too. So each token is below a limit that is on disk with the id of the boot that set it: until
 * then holders write in place without a sync, and after a crash tokens go on above the limit. A new
 * limit, or a boot's first token, replaces the file by rename, and file and directory are synced.
 */
#include "file.h"

#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "dlock-fence1 "
#define RECORD_MAX 2048
#define FENCE_MAX (INT64_MAX / 10 * 10 - 10) /* leaves room for later tokens below 2^63 */
#define LIMIT_BEGIN "\nuntil "
#define LIMIT_AHEAD UINT64_C(3600000000) /* an hour */
/* What is written in place fits into a sector, which a disk writes as a whole. */
#define SECTOR 512

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

/* The digits at *s, a number up to FENCE_MAX. 0: none, or too large. */
static uint64_t parse_fence(const char **s)
{
    size_t n = strspn(*s, "0123456789");
    int64_t fence;
    if (!dlock_read_number(*s, n, &fence) || fence > FENCE_MAX)
        return 0;
    *s += n;
    return (uint64_t)fence;
}

/* The boot's id, and a NUL; "": unknown. */
static void read_boot(char boot[FILE_BOOT_SIZE])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? file_read_all(fd, boot, FILE_BOOT_SIZE - 1) : 0;
    if (fd >= 0)
        close(fd);
    boot[n == FILE_BOOT_SIZE - 1 ? n : 0] = '\0';
}

/*
 * "FENCE TOKEN\nrecord\nuntil LIMIT BOOT\n" and a NUL; strict, because a restarted count of tokens
 * protects nothing.
 */
static bool parse(const char *s, size_t len, struct file_record *rec)
{
    const char *end = s + len, *line = memchr(s, '\n', len), *limit = strstr(s, LIMIT_BEGIN);
    if (!line || end[-1] != '\n')
        return false;
    rec->fence = parse_fence(&s);
    if (rec->fence == 0 || *s != ' ' || line - s != DLOCK_TOKEN_LEN + 1)
        return false;
    memcpy(rec->token, s + 1, DLOCK_TOKEN_LEN);
    rec->token[DLOCK_TOKEN_LEN] = '\0';
    for (s = rec->token; *s; s++)
        if (dlock_hex(*s) < 0)
            return false;
    if (limit) { /* without: written by an earlier version */
        s = limit + strlen(LIMIT_BEGIN);
        rec->limit = parse_fence(&s);
        if (rec->limit < rec->fence || *s != ' ')
            return false;
        snprintf(rec->boot, sizeof(rec->boot), "%.*s", (int)strcspn(s + 1, " \n"), s + 1);
    }
    /* The record is for display only: ignored if malformed. */
    const char *after = limit ? limit : end - 1;
    if (line < after)
        dlock_identity_parse(line + 1, (size_t)(after - line) - 1, &rec->info);
    return true;
}

/* flags: O_RDONLY or O_RDWR. *fd: the open file; -1 where there is none yet, and on failure. */
static int open_record(const struct file_place *p, int flags, struct file_record *rec, int *fd,
                       struct dlock_error *err)
{
    static const char family[] = "dlock-fence";
    const size_t magic = strlen(MAGIC);
    const char *untrusted = NULL;
    char buf[RECORD_MAX + 1];
    struct stat st;
    ssize_t n = 0;
    *rec = (struct file_record){0};
    flags |= O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    *fd = openat(p->dir, p->fence, flags);
    if (*fd < 0 && errno == ENOENT)
        return 0;
    if (*fd < 0 && errno == ELOOP)
        return bad_fence(p, "is a symbolic link", err);
    if (*fd < 0)
        return fail_fence(p, "read", errno, err);
    bool regular = fstat(*fd, &st) == 0 && S_ISREG(st.st_mode);
    if (regular) {
        untrusted = file_untrusted(p->dir, &st, S_ISVTX);
        rec->linked = st.st_nlink > 1;
    }
    if (regular && !untrusted)
        n = file_read_all(*fd, buf, RECORD_MAX);
    size_t len = n > 0 ? (size_t)n : 0;
    buf[len] = '\0';
    rec->size = len;
    if (n > 0 && len >= magic && len < RECORD_MAX && memcmp(buf, MAGIC, magic) == 0 &&
        strlen(buf) == len && parse(buf + magic, len - magic, rec))
        return 0;
    *rec = (struct file_record){0};
    close(*fd);
    *fd = -1;
    if (!regular)
        return bad_fence(p, "is not a regular file", err);
    if (untrusted)
        return dlock_fail(err, DLOCK_EDATA, 0,
                          "the %s %s/%s is in the place of the fencing token, where any user can "
                          "add files: remove it, or use a directory of your own",
                          untrusted, p->path, p->fence);
    if (n < 0)
        return fail_fence(p, "read", (int)-n, err);
    if (len > magic && memcmp(buf, family, strlen(family)) == 0 && memcmp(buf, MAGIC, magic) != 0)
        return bad_fence(p, "was written by another version of dlock", err);
    return bad_fence(p, "is not a fencing token of dlock, or none above it is left", err);
}

int file_record_read(const struct file_place *p, struct file_record *rec, struct dlock_error *err)
{
    int fd, rc = open_record(p, O_RDONLY, rec, &fd, err);
    if (fd >= 0)
        close(fd);
    return rc;
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
    int sys;
    if (fd < 0)
        return 0; /* no permission to read the directory: rely on the clock */
    sys = sync_fd(fd);
    close(fd);
    return sys == EINVAL ? 0 : sys; /* a file system whose directories cannot be synced */
}

int file_replace(int dir, const char *name, int lock_fd, const char *text, size_t len, bool sync)
{
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    struct stat st;
    uint64_t random;
    char tmp[64];
    int fd = -1, sys;
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
    sys = write_all(fd, text, len);
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

/* The file's new text, which fills a sector if it can. Returns its length. */
static size_t format(char text[RECORD_MAX], const struct file_record *rec,
                     const struct dlock_identity *identity)
{
    char *end = text + RECORD_MAX - SECTOR, *p = text;
    int n = snprintf(p, RECORD_MAX, MAGIC "%" PRIu64 " %s", rec->fence, rec->token);
    p += n;
    *p++ = '\n';
    n = dlock_identity_format(identity, RECORD_HOLDS, p, (size_t)(end - p));
    p += n > 0 ? n : 0;
    p += snprintf(p, (size_t)(end - p) + SECTOR / 2, LIMIT_BEGIN "%" PRIu64 " %s", rec->limit,
                  rec->boot);
    while (p - text < SECTOR - 1)
        *p++ = ' ';
    *p++ = '\n';
    return (size_t)(p - text);
}

int file_record_write(const struct file_place *p, int lock_fd,
                      const struct dlock_identity *identity, const char *token, uint64_t *fence,
                      struct dlock_error *err)
{
    char text[RECORD_MAX];
    struct file_record old, new;
    int fd, rc = open_record(p, O_RDWR, &old, &fd, err);
    /* Without the right to write, as for the file of another user, a rename may do. */
    if (rc < 0 && rc != DLOCK_EDATA)
        rc = open_record(p, O_RDONLY, &old, &fd, err);
    if (rc < 0)
        return rc;
    read_boot(new.boot);
    bool same = *new.boot &&strcmp(old.boot, new.boot) == 0;
    uint64_t last = same || old.limit < old.fence ? old.fence : old.limit;
    new.fence = (uint64_t)dlock_wall() / 1000;
    if (new.fence <= last)
        new.fence = last + 1;
    bool below = same && new.fence <= old.limit;
    new.limit = below ? old.limit : new.fence + LIMIT_AHEAD;
    if (new.limit > FENCE_MAX)
        new.limit = FENCE_MAX;
    memcpy(new.token, token, sizeof(new.token));
    size_t len = format(text, &new, identity);
    bool written = below && len == SECTOR && old.size == len && !old.linked &&
                   pwrite(fd, text, len, 0) == (ssize_t)len;
    if (fd >= 0 && close(fd) != 0) /* as of NFS, when the server's disk is full */
        written = false;
    if (!written && (rc = file_replace(p->dir, p->fence, lock_fd, text, len, true)) != 0)
        return fail_fence(p, "write", rc, err);
    *fence = new.fence;
    return 0;
}
