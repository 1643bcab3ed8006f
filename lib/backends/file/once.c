/*
 * once.c - DIR/NAME.once, the run record of a named lock: one line, as in run_record.h.
 *
 * It is replaced by rename and synced, as the fencing token is (record.c). A directory in memory
 * would forget the record: for the embedded default's directory the record is in the state
 * directory (default.c); elsewhere a directory in memory is refused. The clock is this machine's,
 * so a state directory on a network file system, shared with more machines, is refused as well.
 */
#include "once.h"

#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define NAME_LEN(lock) ((int)(strlen(lock) - strlen(".lock")))

/* ---------------------------------------------------------------- where --- */

/* In memory, and in /run, which is emptied also on disk. */
bool once_forgets(int dir)
{
    static const uint32_t memory[] = {0x01021994 /* tmpfs */, 0x858458f6 /* ramfs */,
                                      0x958458f6 /* hugetlbfs */};
    char link[32], path[8];
    struct statfs fs;
    if (fstatfs(dir, &fs) == 0)
        for (size_t i = 0; i < DLOCK_LEN(memory); i++)
            if ((uint32_t)fs.f_type == memory[i])
                return true;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
    ssize_t n = readlink(link, path, sizeof(path));
    return n >= 4 && memcmp(path, "/run", 4) == 0 && (n == 4 || path[4] == '/');
}

static int fail_forgets(const char *path, struct dlock_error *err)
{
    return dlock_fail(err, DLOCK_EUSAGE, 0,
                      "%s: a reboot empties this directory, run records with it: name one on "
                      "disk, such as file:///var/lib/DIRECTORY#NAME",
                      path);
}

/* The directory of all "@name" of this user, malloc'ed, if the lock is there; else NULL. */
static char *embedded_dir(const struct file_place *lock)
{
    struct stat mine, there;
    char *path = NULL;
    if (dlock_default_dir(&path, NULL, NULL) < 0 || !path)
        return NULL;
    if (fstat(lock->dir, &mine) == 0 && stat(path, &there) == 0 && mine.st_dev == there.st_dev &&
        mine.st_ino == there.st_ino)
        return path;
    free(path);
    return NULL;
}

/* Open the directory at/name; without make *out is -1 if missing. 0 or an errno. */
static int sub_dir(int at, const char *name, bool make, int *out)
{
    int made = make ? mkdirat(at, name, 0700) : -1;
    if (make && made != 0 && errno != EEXIST)
        return errno;
    *out = openat(at, name, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC);
    if (*out < 0)
        return errno == ENOENT && !make ? 0 : errno;
    /* Despite a umask for files only. */
    if (made == 0 && fchmodat(at, name, 0700, 0) != 0)
        return errno;
    return made == 0 ? file_sync_dir(at) : 0;
}

/* The lock is in the directory dir, which a reboot empties: use the state directory. */
static int open_state(struct once_place *o, const char *dir, bool make, struct dlock_error *err)
{
    char key[FILE_NAME_LIMIT + 1], *state;
    int fd, sys = 0, rc = dlock_state_dir(&state, &fd, make, err);
    const struct file_network *net;
    uint32_t hash = 2166136261U; /* FNV-1a: it must never change */
    if (rc < 0)                  /* without make a missing home directory has no records */
        return make || rc != DLOCK_EUSAGE ? rc : 0;
    if (fd >= 0 && make && once_forgets(fd))
        rc = fail_forgets(state, err);
    else if (fd >= 0 && make && (net = file_network(fd)))
        rc = dlock_fail(err, DLOCK_EUSAGE, 0,
                        "%s is on a network file system (%s): other machines would share the run "
                        "records of this machine's @name: set DLOCK_STORE to a directory on a "
                        "local disk, or to a server",
                        state, net->name);
    if (!file_encode_name(key, dir + 1) || asprintf(&o->path, "%s/%s", state, key) < 0) {
        o->path = NULL;
        rc = dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    }
    free(state);
    for (const char *c = o->name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619U;
    hash ^= hash >> 8 ^ hash >> 16 ^ hash >> 24;
    snprintf(o->shard, sizeof(o->shard), "%02x", hash % ONCE_SHARDS);
    if (rc == 0 && fd >= 0)
        sys = sub_dir(fd, key, make, &o->shards);
    if (rc == 0 && sys == 0 && o->shards >= 0)
        sys = sub_dir(o->shards, o->shard, make, &o->dir);
    if (fd >= 0)
        close(fd);
    return sys == 0 ? rc
                    : dlock_fail(err, sys == EACCES || sys == EPERM ? DLOCK_EPERM : DLOCK_ECREATE,
                                 sys, "cannot make a directory for the run records in %s: %s",
                                 o->path, strerror(sys));
}

int once_open(struct once_place *o, struct file_place *lock, bool make, struct dlock_error *err)
{
    once_done(o);
    o->lock = lock;
    snprintf(o->name, sizeof(o->name), "%.*s" ONCE_SUFFIX, NAME_LEN(lock->lock), lock->lock);
    int rc = file_place_open(lock, err);
    if (rc < 0)
        return make ? rc : 0;
    char *embedded = embedded_dir(lock);
    if (embedded) {
        rc = open_state(o, embedded, make, err);
        free(embedded);
        return rc;
    }
    if (make && once_forgets(lock->dir))
        return fail_forgets(lock->path, err);
    o->dir = lock->dir;
    return 0;
}

int once_check(struct file_place *lock, struct dlock_error *err)
{
    int rc = file_place_open(lock, err);
    char *embedded = rc == 0 ? embedded_dir(lock) : NULL;
    if (rc == 0 && !embedded && once_forgets(lock->dir))
        rc = fail_forgets(lock->path, err);
    free(embedded);
    return rc;
}

void once_done(struct once_place *o)
{
    if (o->path && o->dir >= 0)
        close(o->dir);
    if (o->shards >= 0)
        close(o->shards);
    free(o->path);
    *o = ONCE_NOWHERE;
}

/* -------------------------------------------------------------- the file --- */

static int fail_run(const struct once_place *o, const char *what, int sys, struct dlock_error *err)
{
    return dlock_fail(err, sys == EACCES || sys == EPERM ? DLOCK_EPERM : DLOCK_ECREATE, sys,
                      "cannot %s the run record %s/%s%s%s: %s", what,
                      o->path ? o->path : o->lock->path, o->shard, *o->shard ? "/" : "", o->name,
                      sys == EWOULDBLOCK ? FILE_LEASED : strerror(sys));
}

static int foreign(const struct once_place *o, const struct dlock_spec *spec, const char *kind,
                   struct dlock_error *err)
{
    char what[PATH_MAX];
    if (o->path)
        snprintf(what, sizeof(what), "the %s %s/%s/%s", kind, o->path, o->shard, o->name);
    else
        snprintf(what, sizeof(what), "the %s %s", kind, o->name);
    return run_record_foreign(err, spec, what);
}

/* What is wrong with the file, or NULL. Another user could have the command skipped by it. */
static const char *unfit(const struct once_place *o, const struct stat *st)
{
    if (!S_ISREG(st->st_mode))
        return S_ISLNK(st->st_mode)    ? "symbolic link"
               : S_ISDIR(st->st_mode)  ? "directory"
               : S_ISFIFO(st->st_mode) ? "FIFO"
               : S_ISSOCK(st->st_mode) ? "socket"
                                       : "device";
    return st->st_nlink > 1 ? "hard link" : file_untrusted(o->dir, st, S_ISVTX | S_IWOTH);
}

int once_read(const struct once_place *o, const struct dlock_spec *spec, struct dlock_run *run,
              struct dlock_error *err)
{
    char text[RUN_RECORD_MAX + 1];
    struct stat st;
    const char *why;
    if (o->dir < 0)
        return 0;
    /* Check the type before opening: opening a device may have effects. */
    if (fstatat(o->dir, o->name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? 0 : fail_run(o, "read", errno, err);
    why = unfit(o, &st);
    if (why)
        return foreign(o, spec, why, err);
    int fd = openat(o->dir, o->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : fail_run(o, "read", errno, err);
    why = fstat(fd, &st) == 0 ? unfit(o, &st) : NULL;
    ssize_t n = why ? 0 : file_read_all(fd, text, sizeof(text));
    close(fd);
    if (why)
        return foreign(o, spec, why, err);
    if (n < 0)
        return fail_run(o, "read", (int)-n, err);
    /* A record without the end of its line was cut off. */
    if (n == 0 || text[n - 1] != '\n' ||
        !run_record_parse(text, (size_t)n - 1, dlock_wall() / DLOCK_MSEC, run))
        return foreign(o, spec, "file", err);
    return 1;
}

int once_write(const struct once_place *o, int lock_fd, const struct dlock_run *run,
               const char *who, struct dlock_error *err)
{
    char text[RUN_RECORD_MAX + 1];
    int len = run_record_format(run, who, text, RUN_RECORD_MAX), sys;
    if (len < 0)
        return fail_run(o, "write", ENAMETOOLONG, err);
    text[len++] = '\n';
    sys = file_replace(o->dir, o->name, lock_fd, text, (size_t)len, true);
    return sys == 0 ? 0 : fail_run(o, "write", sys, err);
}

int once_remove(const struct once_place *o, struct dlock_error *err)
{
    if (unlinkat(o->dir, o->name, 0) != 0)
        return errno == ENOENT ? 0 : fail_run(o, "remove", errno, err);
    int sys = file_sync_dir(o->dir);
    return sys == 0 ? 0 : fail_run(o, "remove", sys, err);
}
