/*
 * open.c - names to paths, and opening a lock file, but no symbolic link, FIFO or character device
 * in its place.
 */
#include "file.h"

#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* O_NONBLOCK: do not hang on a FIFO that appears after the check, nor on a lease. */
#define OPEN_FLAGS (O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC)

/* Encode only '/', which would lead out of the directory, and '%': names stay readable. */
bool file_encode_name(char out[FILE_NAME_LIMIT + 1], const char *name)
{
    size_t n = 0;
    for (; *name; name++) {
        bool special = *name == '/' || *name == '%';
        if (n + (special ? 3 : 1) > FILE_NAME_LIMIT)
            return false;
        if (special)
            n += (size_t)sprintf(out + n, "%%%02X", (unsigned)*name);
        else
            out[n++] = *name;
    }
    out[n] = '\0';
    return n > 0;
}

bool file_decode_name(char out[FILE_NAME_LIMIT + 1], const char *file, size_t len)
{
    size_t n = 0;
    for (size_t at = 0; at < len && n < FILE_NAME_LIMIT; at++) {
        out[n] = file[at];
        if (file[at] == '%') {
            int byte = dlock_percent(file + at, file + len);
            if ((byte != '/' && byte != '%') || strncmp(file + at, byte == '/' ? "%2F" : "%25", 3))
                return false;
            out[n] = (char)byte;
            at += 2;
        }
        n++;
    }
    out[n] = '\0';
    return n > 0;
}

int file_place_name(struct file_place *p, const char *file, struct dlock_error *err)
{
    snprintf(p->lock, sizeof(p->lock), "%.*s" FILE_SUFFIX, FILE_NAME_LIMIT, file);
    /* The longest name leaves room for ".fenc" only. No different file ends so: cut it. */
    int len = snprintf(p->fence, sizeof(p->fence), "%.*s.fence", FILE_NAME_LIMIT, file);
    free(p->where);
    if (len >= 0 && asprintf(&p->where, "%s/%s", p->path, p->lock) >= 0)
        return 0;
    p->where = NULL;
    return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

int file_place_init(struct file_place *p, const struct dlock_uri *uri, struct dlock_error *err)
{
    char name[FILE_NAME_LIMIT + 1];
    *p = (struct file_place){.path = uri->path, .named = !uri->bare, .dir = -1};
    if (p->named && !file_encode_name(name, uri->name)) /* uri.c refuses such a name earlier */
        return dlock_fail(err, DLOCK_EUSAGE, 0, "a file lock's name has 1 to %d bytes",
                          FILE_NAME_LIMIT);
    if (p->named)
        return file_place_name(p, name, err);
    p->where = strdup(p->path);
    return p->where ? 0 : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

void file_place_done(struct file_place *p)
{
    if (p->dir >= 0)
        close(p->dir);
    p->dir = -1;
    free(p->where);
    p->where = NULL;
}

static int fail_open(const struct file_place *p, enum file_how how, int sys,
                     struct dlock_error *err)
{
    int code = sys == EWOULDBLOCK               ? DLOCK_EBUSY
               : sys == EACCES || sys == EPERM  ? DLOCK_EPERM
               : sys == EMFILE || sys == ENFILE ? DLOCK_EOS
               : sys == ENOMEM                  ? DLOCK_ENOMEM
                                                : DLOCK_ECREATE;
    const char *why = sys == EWOULDBLOCK         ? FILE_LEASED
                      : sys == ENOENT            ? "its directory is missing"
                      : sys == ELOOP && p->named ? "it is a symbolic link"
                                                 : strerror(sys);
    bool writing = sys == EISDIR || sys == EACCES || sys == EPERM || sys == EROFS || sys == ETXTBSY;
    const char *needs = writing && how == FILE_FOR_SLOTS
                            ? " (slots need a file that can be read and written)"
                        : writing && how == FILE_FOR_WRITE_LOCK
                            ? " (an exclusive fcntl(2) lock needs a file that can be written)"
                            : "";
    return dlock_fail(err, code, sys, "cannot open the lock file %s: %s%s", p->where, why, needs);
}

/* Can a directory or a block device be the lock, too? */
static bool any_type(const struct file_place *p, enum file_how how)
{
    return !p->named && how != FILE_FOR_SLOTS;
}

static int fail_type(const struct file_place *p, enum file_how how, struct dlock_error *err)
{
    return dlock_fail(err, DLOCK_ECREATE, 0, "%s cannot be a lock%s: it is not a regular file%s",
                      p->where, how == FILE_FOR_SLOTS ? " with slots" : "",
                      any_type(p, how) ? ", directory or block device" : "");
}

static bool good_type(const struct file_place *p, enum file_how how, mode_t mode)
{
    return S_ISREG(mode) || (any_type(p, how) && (S_ISDIR(mode) || S_ISBLK(mode)));
}

const char *file_untrusted(int dir, const struct stat *st, mode_t modes)
{
    struct stat d;
    if (fstat(dir, &d) != 0 || !(d.st_mode & modes))
        return NULL;
    if (st->st_uid != geteuid() && st->st_uid != 0 && st->st_uid != d.st_uid)
        return "other user's file";
    return st->st_nlink > 1 ? "hard link" : NULL;
}

static int fail_untrusted(const struct file_place *p, const char *what, struct dlock_error *err)
{
    return dlock_fail(err, DLOCK_EDATA, 0,
                      "the %s %s is in the place of the lock file, where any user can add "
                      "files: remove it, or use a directory of your own",
                      what, p->where);
}

int file_place_open(struct file_place *p, struct dlock_error *err)
{
    if (!p->named || p->dir >= 0)
        return 0;
    p->dir = open(p->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (p->dir >= 0)
        return 0;
    int sys = errno;
    return dlock_fail(err, sys == EACCES ? DLOCK_EPERM : DLOCK_ECREATE, sys,
                      "cannot open the lock directory %s: %s", p->path,
                      sys == ENOENT ? "it is missing" : strerror(sys));
}

/* A descriptor or -errno. */
static int open_place(const struct file_place *p, int flags, mode_t mode)
{
    int fd;
    if (p->named)
        flags |= O_NOFOLLOW;
    do {
        fd = openat(p->named ? p->dir : AT_FDCWD, p->named ? p->lock : p->path, flags, mode);
    } while (fd < 0 && errno == EINTR);
    return fd < 0 ? -errno : fd;
}

static int stat_place(const struct file_place *p, struct stat *st)
{
    return fstatat(p->named ? p->dir : AT_FDCWD, p->named ? p->lock : p->path, st,
                   p->named ? AT_SYMLINK_NOFOLLOW : 0);
}

int file_open(struct file_place *p, enum file_how how, int *fd, struct dlock_error *err)
{
    bool make = how != FILE_TO_PROBE && how != FILE_TO_NAME, may_write = true;
    int flags = how == FILE_TO_NAME ? O_PATH | O_CLOEXEC : OPEN_FLAGS;
    const char *untrusted = NULL;
    struct dlock_error why;
    struct stat st;
    int r = file_place_open(p, &why);
    if (r < 0 && why.sys == ENOENT && !make) {
        *fd = -1;
        return 0;
    }
    if (r < 0) {
        if (err)
            *err = why;
        return r;
    }
    /* Check the type before opening: opening a character device may have effects. */
    if (stat_place(p, &st) == 0) {
        if (S_ISLNK(st.st_mode))
            return fail_open(p, FILE_FOR_LOCK, ELOOP, err);
        if (!good_type(p, how, st.st_mode))
            return fail_type(p, how, err);
        untrusted = p->named && make ? file_untrusted(p->dir, &st, S_ISVTX) : NULL;
        if (untrusted)
            return fail_untrusted(p, untrusted, err);
        /* When a writable disk is closed, udev probes the disk as if its content had changed. */
        may_write = !S_ISBLK(st.st_mode);
    }
    if ((how == FILE_FOR_NFS_LOCK && may_write) || how == FILE_FOR_SLOTS)
        flags = (flags & ~O_ACCMODE) | O_RDWR;
    if (how == FILE_FOR_WRITE_LOCK)
        flags = (flags & ~O_ACCMODE) | O_WRONLY;
    /*
     * First without O_CREAT: with it the kernel refuses directories, files on a read-only file
     * system, and (fs.protected_regular) existing files of foreign users in /tmp, and all of these
     * can be locks. The mode is flock(1)'s for a bare path; a named lock gives other users no
     * access.
     */
    r = open_place(p, flags, 0);
    if (r == -ENOENT && !make) {
        *fd = -1;
        return 0;
    }
    bool made = r == -ENOENT;
    if (made)
        r = open_place(p, flags | O_CREAT, p->named ? 0660 : 0666);
    if (r < 0)
        return fail_open(p, how, -r, err);
    bool good = fstat(r, &st) == 0 && good_type(p, how, st.st_mode);
    if (good && p->named && make)
        untrusted = file_untrusted(p->dir, &st, S_ISVTX);
    if (!good || untrusted) {
        close(r);
        return good ? fail_untrusted(p, untrusted, err) : fail_type(p, how, err);
    }
    *fd = r;
    p->made |= made;
    return 0;
}

int file_is_current(const struct file_place *p, int fd, struct dlock_error *err)
{
    struct stat mine, there;
    if (fstat(fd, &mine) != 0)
        return fail_open(p, FILE_FOR_LOCK, errno, err);
    if (stat_place(p, &there) != 0)
        return errno == ENOENT ? 0 : fail_open(p, FILE_FOR_LOCK, errno, err);
    return mine.st_dev == there.st_dev && mine.st_ino == there.st_ino;
}

const struct file_network *file_network(int fd)
{
    static const struct file_network known[] = {
        {0x6969, "NFS", true},
        {0x517b, "SMB", true},
        {0xff534d42, "CIFS", true},
        {0xfe534d42, "SMB", true},
        {0x01021997, "9P", true},
        {0x5346414f, "AFS", true},
        {0x6b414653, "AFS", true},
        {0x73757245, "Coda", true},
        {0x0bd00bd0, "Lustre", true},
        /* Locks of these are cluster-wide by design; FUSE is often no network at all. */
        {0x00c36400, "Ceph", false},
        {0x65735546, "FUSE", false},
        {0x01161970, "GFS2", false},
        {0x7461636f, "OCFS2", false},
    };
    struct statfs fs;
    if (fstatfs(fd, &fs) == 0)
        for (size_t i = 0; i < DLOCK_LEN(known); i++)
            /* f_type is signed and 32 bits wide on some machines. */
            if ((uint32_t)fs.f_type == (uint32_t)known[i].magic)
                return &known[i];
    return NULL;
}
