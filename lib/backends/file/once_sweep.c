/*
 * once_sweep.c - removes expired run records of other locks, a few each time.
 *
 * A run reads at most ENTRIES_MAX entries of directories and removes at most REMOVED_MAX records: a
 * directory with 10 000 dated names costs as much as one with 100. In the state directory a run
 * begins with a random shard. Beside the locks, among foreign files, a run goes on where the last
 * run stopped: the kernel's position in the directory is kept in .dlock-sweep while a run has not
 * seen all entries. A wrong position does no harm.
 *
 * A record may be removed only while no run of its lock can use it. Taking the lock, if only for a
 * moment, could make a "dlock -n" fail. So runs and sweepers exclude each other by a byte of
 * the lock's file, used for nothing else: a run has a read lock of the byte for as long as
 * its hold lasts, a sweeper tries the write lock. On network file systems, where such locks may be
 * the same as flock(2), nothing is swept.
 */
#include "flock_wait.h"
#include "once.h"
#include "util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ENTRIES_MAX 400
#define REMOVED_MAX 20
#define SHARDS_MAX 32
#define POSITION ".dlock-sweep"
#define STALE_TMP_SEC 86400

/* Below the bytes of slots.c, and where no file has data. */
#define CLAIM_BYTE (INT64_C(1) << 61)

struct sweep {
    const struct once_place *own;
    const struct dlock_spec *spec;
    int entries, removed;
};

int once_claim(int lock_fd)
{
    if (file_network(lock_fd))
        return 0;
    /* After a different error no process, nor a sweeper, can lock bytes here. */
    return ofd_try(lock_fd, F_RDLCK, CLAIM_BYTE, 1) == EWOULDBLOCK ? EWOULDBLOCK : 0;
}

static bool expired(const struct sweep *s, const struct once_place *o)
{
    struct dlock_run run;
    return once_read(o, s->spec, &run, NULL) == 1 && run.age_ns >= run.kept_ns;
}

/* dir/name ends in ".once". */
static void sweep_record(struct sweep *s, int dir, const char *name)
{
    struct file_place lock = *s->own->lock;
    struct once_place o = *s->own;
    struct stat st;
    snprintf(o.name, sizeof(o.name), "%s", name);
    snprintf(lock.lock, sizeof(lock.lock), "%.*s.lock", (int)(strlen(name) - strlen(ONCE_SUFFIX)),
             name);
    o.lock = &lock;
    o.dir = dir;
    /* Our own record is claimed by the lock's own descriptor. */
    if (strcmp(name, s->own->name) == 0 || !expired(s, &o))
        return;
    /*
     * After a reboot the locks of the embedded default have no files: make the file, since a run
     * could otherwise do so meanwhile.
     */
    int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (o.path ? O_CREAT : 0);
    int fd = openat(lock.dir, lock.lock, flags, 0660);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && ofd_try(fd, F_WRLCK, CLAIM_BYTE, 1) == 0 &&
        file_is_current(&lock, fd, NULL) == 1 && expired(s, &o) && unlinkat(dir, name, 0) == 0)
        s->removed++;
    close(fd);
}

/* Remove what a process killed within file_replace() has left, if its lock is long unused. */
static void sweep_tmp(int dir, const char *name)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
        dlock_wall() / DLOCK_SEC - st.st_mtime > STALE_TMP_SEC)
        unlinkat(dir, name, 0);
}

static bool done(const struct sweep *s)
{
    return s->entries >= ENTRIES_MAX || s->removed >= REMOVED_MAX;
}

/* Sweep the directory at/name from pos on. Returns where to go on; 0: all entries were seen. */
static int64_t sweep_dir(struct sweep *s, int at, const char *name, int64_t pos)
{
    const size_t suffix = strlen(ONCE_SUFFIX), tmp = strlen(FILE_TMP_BEGIN);
    int dir = openat(at, name, O_RDONLY | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC);
    const struct dirent *e = NULL;
    if (dir < 0)
        return 0;
    DIR *d = pos == 0 || lseek(dir, pos, SEEK_SET) >= 0 ? fdopendir(dir) : NULL;
    if (!d) {
        close(dir);
        return 0;
    }
    while (!done(s) && (e = readdir(d))) {
        size_t len = strlen(e->d_name);
        if (len > suffix && strcmp(e->d_name + len - suffix, ONCE_SUFFIX) == 0)
            sweep_record(s, dir, e->d_name);
        else if (strncmp(e->d_name, FILE_TMP_BEGIN, tmp) == 0 &&
                 strcmp(e->d_name + tmp + strspn(e->d_name + tmp, "0123456789"), FILE_TMP_END) == 0)
            sweep_tmp(dir, e->d_name);
        s->entries++;
        pos = e->d_off;
    }
    pos = e ? pos : 0;
    closedir(d);
    return pos;
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

void once_sweep(const struct once_place *o, const struct dlock_spec *spec, int lock_fd)
{
    struct sweep s = {.own = o, .spec = spec};
    uint32_t first = 0;
    char text[24];
    if (file_network(lock_fd))
        return;
    if (!o->path) {
        int64_t from = read_position(o->dir), to = sweep_dir(&s, o->dir, ".", from);
        int len = snprintf(text, sizeof(text), "%" PRId64 "\n", to);
        if (to != 0)
            file_replace(o->dir, POSITION, lock_fd, text, (size_t)len, false);
        else if (from != 0)
            unlinkat(o->dir, POSITION, 0);
        return;
    }
    spec->env->random(spec->env->ctx, &first, sizeof(first));
    for (uint32_t i = 0; i < SHARDS_MAX && !done(&s); i++) {
        snprintf(text, sizeof(text), "%02x", (first + i) % ONCE_SHARDS);
        sweep_dir(&s, o->shards, text, 0);
    }
}
