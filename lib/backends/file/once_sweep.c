/*
 * once_sweep.c - removes expired run records of other locks, a few each time.
 *
 * A run looks at ENTRIES_MAX entries of a directory and removes REMOVED_MAX records at most, wherever it is: a directory
 * with 10 000 dated names costs as much as one with 100. In the state directory it begins with a shard by chance. Beside
 * the locks, where other files are too, it goes on where the last run has stopped: the kernel's position in the directory
 * is kept in .dlock-sweep, which is there only where one run did not see all. Nothing depends on it.
 *
 * A record may go only while no run of its lock can use it. To take that lock, if only for a moment, could make a
 * "dlock -n" of it fail. So runs and sweepers exclude each other by a byte of the lock's file, which nobody else locks:
 * a run has a read lock of it for as long as its hold lasts, a sweeper tries the write lock. On network file systems, where
 * these may be the same as flock(2), nothing is swept.
 */
#include "once.h"

#include "util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENTRIES_MAX 400
#define REMOVED_MAX 20
#define SHARDS_MAX 32
#define POSITION ".dlock-sweep"
#define STALE_TMP_SEC 86400

/* Below those of slots.c, and where no file has any. */
#define CLAIM_BYTE (INT64_C(1) << 61)

/* With _FILE_OFFSET_BITS=64 the C library's struct is the kernel's. */
_Static_assert(sizeof(((struct dirent *)0)->d_ino) == 8 &&
                   sizeof(((struct dirent *)0)->d_off) == 8 &&
                   offsetof(struct dirent, d_name) == 19,
               "struct dirent is not what getdents64 fills");

struct sweep {
    const struct once_place *own;
    const struct dlock_spec *spec;
    int entries, removed;
};

/* 0 or an errno; EWOULDBLOCK: it is locked. */
static int lock_byte(int fd, short type)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = CLAIM_BYTE, .l_len = 1};

    if (fcntl(fd, F_OFD_SETLK, &l) == 0)
        return 0;
    return errno == EACCES ? EWOULDBLOCK : errno;
}

int once_claim(int lock_fd)
{
    const char *type;
    bool warn;

    if (file_on_network(lock_fd, &type, &warn))
        return 0;
    /* Any other error: no byte can be locked here, and a sweeper cannot either. */
    return lock_byte(lock_fd, F_RDLCK) == EWOULDBLOCK ? EWOULDBLOCK : 0;
}

static bool expired(const struct sweep *s, const struct once_place *o)
{
    struct dlock_run run;

    return once_read(o, s->spec, &run, NULL) == 1 && run.age_ns >= run.kept_ns;
}

/*
 * The file of a record's lock, claimed; -1: not now. After a reboot the locks of the embedded default have no files: it
 * is made, since a run could otherwise make it meanwhile.
 */
static int claim_other(const struct once_place *o)
{
    int make = o->path ? O_CREAT : 0, fd;
    struct stat st;

    fd = openat(o->lock->dir, o->lock->lock,
                O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | make, 0660);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && lock_byte(fd, F_WRLCK) == 0 &&
        file_is_current(o->lock, fd, NULL) == 1)
        return fd;
    close(fd);
    return -1;
}

/* dir/name ends in ".once". */
static void sweep_record(struct sweep *s, int dir, const char *name)
{
    struct file_place lock = *s->own->lock;
    struct once_place o = *s->own;
    int fd;

    snprintf(o.name, sizeof(o.name), "%s", name);
    snprintf(lock.lock, sizeof(lock.lock), "%.*s.lock", (int)(strlen(name) - strlen(ONCE_SUFFIX)),
             name);
    o.lock = &lock;
    o.dir = dir;
    /* We have our own record claimed by another descriptor. */
    if (strcmp(name, s->own->name) == 0 || !expired(s, &o))
        return;
    fd = claim_other(&o);
    if (fd < 0)
        return;
    if (expired(s, &o) && unlinkat(dir, name, 0) == 0)
        s->removed++;
    close(fd);
}

/* Of a process that was killed between two steps of file_replace(), when its lock is not used any more. */
static void sweep_tmp(int dir, const char *name)
{
    struct stat st;

    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
        once_now() / 1000 - st.st_mtime > STALE_TMP_SEC)
        unlinkat(dir, name, 0);
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), e = strlen(end);

    return n > e && strcmp(name + n - e, end) == 0;
}

static bool is_tmp(const char *name)
{
    size_t begin = strlen(FILE_TMP_BEGIN);

    return strncmp(name, FILE_TMP_BEGIN, begin) == 0 &&
           strcmp(name + begin + strspn(name + begin, "0123456789"), FILE_TMP_END) == 0;
}

static bool done(const struct sweep *s)
{
    return s->entries >= ENTRIES_MAX || s->removed >= REMOVED_MAX;
}

/* From the position pos on. Returns the one to go on with; 0: all have been seen. */
static int64_t sweep_dir(struct sweep *s, int dir, int64_t pos)
{
    _Alignas(struct dirent) char buf[4096];
    long n = -1;

    if (pos != 0 && lseek(dir, pos, SEEK_SET) < 0)
        return 0;
    while (!done(s) && (n = syscall(SYS_getdents64, dir, buf, sizeof(buf))) > 0) {
        for (long at = 0; at < n && !done(s);) {
            const struct dirent *e = (const struct dirent *)(const void *)(buf + at);

            if (ends_in(e->d_name, ONCE_SUFFIX))
                sweep_record(s, dir, e->d_name);
            else if (is_tmp(e->d_name))
                sweep_tmp(dir, e->d_name);
            s->entries++;
            pos = e->d_off;
            at += e->d_reclen;
        }
    }
    return n > 0 ? pos : 0;
}

static void sweep_shards(struct sweep *s)
{
    uint32_t from = 0;
    char name[4];

    s->spec->env->random(s->spec->env->ctx, &from, sizeof(from));
    for (uint32_t i = 0; i < SHARDS_MAX && !done(s); i++) {
        snprintf(name, sizeof(name), "%02x", (from + i) % ONCE_SHARDS);
        int dir = openat(s->own->shards, name, O_RDONLY | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC);
        if (dir < 0)
            continue;
        sweep_dir(s, dir, 0);
        close(dir);
    }
}

static int64_t read_position(int dir)
{
    int fd = openat(dir, POSITION, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    char text[24];
    struct stat st;
    ssize_t n = -1;

    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        n = file_read_all(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    return dlock_max(0, strtoll(text, NULL, 10));
}

static void sweep_beside(struct sweep *s, int lock_fd)
{
    int dir = openat(s->own->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char text[24];

    if (dir < 0)
        return;
    int64_t from = read_position(dir), to = sweep_dir(s, dir, from);
    if (to != 0) {
        int len = snprintf(text, sizeof(text), "%" PRId64 "\n", to);
        file_replace(dir, POSITION, lock_fd, text, (size_t)len, false);
    } else if (from != 0) {
        unlinkat(dir, POSITION, 0);
    }
    close(dir);
}

void once_sweep(const struct once_place *o, const struct dlock_spec *spec, int lock_fd)
{
    struct sweep s = {.own = o, .spec = spec};
    const char *type;
    bool warn;

    if (file_on_network(lock_fd, &type, &warn))
        return;
    if (o->path)
        sweep_shards(&s);
    else
        sweep_beside(&s, lock_fd);
}
