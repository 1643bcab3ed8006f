/*
 * check.c - what a run would meet: the folder, the lock's files, the file system, room, and /proc.
 * Each is looked at by calls that change nothing; the lock's file is not made, nor locked.
 */
#include "file.h"

#include "once.h"
#include "uri.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* A lock's files take some KiB. */
#define ROOM_LEAST (1 << 20)

static int code_of(int sys)
{
    return sys == EACCES || sys == EPERM ? DLOCK_EPERM : DLOCK_ECREATE;
}

/* The folder of all @NAME: dlock makes it, for one user. */
static void check_own_folder(const struct file_place *p, const struct stat *st, struct findings *f)
{
    if (st->st_uid != geteuid())
        finding_fail(f, DLOCK_EPERM,
                     "folder: %s belongs to uid %lu, not to us; remove it, or set DLOCK_STORE",
                     p->path, (unsigned long)st->st_uid);
    else if (st->st_mode & (S_IRWXG | S_IRWXO))
        finding_fail(f, DLOCK_EPERM, "folder: %s is open to other users; chmod 700 it", p->path);
    else
        finding_ok(f, "folder: %s, for this user only", p->path);
}

/* False: no further look is of use. */
static bool check_folder(struct file_place *p, struct findings *f)
{
    char *own = NULL, owner[64];
    struct dlock_error why;
    struct stat st;
    bool is_own = dlock_default_dir(&own, NULL, NULL) == 0 && own && strcmp(own, p->path) == 0;
    free(own);
    int rc = file_place_open(p, &why);
    if (rc < 0 && why.sys == ENOENT && is_own) {
        finding_ok(f, "folder: %s does not exist yet; a run makes it", p->path);
        return false;
    }
    if (rc < 0 || fstat(p->dir, &st) != 0) {
        finding_fail(f, rc < 0 ? rc : DLOCK_EOS, "folder: %s; make it",
                     rc < 0 ? why.msg : strerror(errno));
        return false;
    }
    dlock_user_name(st.st_uid, owner, sizeof(owner));
    if (is_own)
        check_own_folder(p, &st, f);
    else if (st.st_mode & S_IWOTH && !(st.st_mode & S_ISVTX))
        finding_warn(
            f,
            "folder: any user can replace the files in %s (mode %o), and so run beside a holder; "
            "chmod o-w it",
            p->path, (unsigned)(st.st_mode & 07777));
    else if (st.st_mode & S_IWOTH)
        finding_warn(
            f,
            "folder: any user can add files to %s (mode %o), and hold or take the lock's name; use "
            "a folder of your own",
            p->path, (unsigned)(st.st_mode & 07777));
    else
        finding_ok(f, "folder: %s of %s, mode %o", p->path, owner, (unsigned)(st.st_mode & 07777));
    return true;
}

/* The rights that the lock's own file needs. */
static int rights_of(const struct file_place *p, const struct dlock_spec *spec)
{
    if (spec->mode == DLOCK_MODE_SLOTS)
        return R_OK | W_OK;
    return p->fcntl && spec->mode == DLOCK_MODE_EXCLUSIVE ? W_OK : R_OK;
}

/* 0, or the errno of a file name at dir without these rights. */
static int refused(int dir, const char *name, int rights)
{
    return faccessat(dir, name, rights, AT_EACCESS) == 0 ? 0 : errno;
}

/* The folder of a bare file, malloc'ed; NULL: out of memory. */
static char *folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return !slash          ? strdup(".")
           : slash == path ? strdup("/")
                           : strndup(path, (size_t)(slash - path));
}

/* The lock's file, and whether a missing one can be made. */
static void check_file(struct file_place *p, const struct dlock_spec *spec, struct findings *f)
{
    struct dlock_error err;
    struct stat st;
    int fd, rc = file_open(p, FILE_TO_NAME, &fd, &err);
    if (rc < 0) {
        finding_fail(f, rc, "file: %s", err.msg);
        return;
    }
    if (fd < 0) {
        char *folder = p->named ? NULL : folder_of(p->path);
        int sys = p->named ? refused(p->dir, ".", W_OK | X_OK)
                           : refused(AT_FDCWD, folder ? folder : ".", W_OK | X_OK);
        free(folder);
        if (sys == ENOENT)
            finding_fail(f, DLOCK_ECREATE, "file: the folder of %s does not exist; make it",
                         p->where);
        else if (sys != 0)
            finding_fail(
                f, code_of(sys),
                "file: %s does not exist, and cannot be made: %s; make it, or give this user the "
                "right to write its folder",
                p->where, strerror(sys));
        else
            finding_ok(f, "file: %s does not exist yet; a run makes it", p->where);
        return;
    }
    bool known = fstat(fd, &st) == 0;
    const char *untrusted = known && p->named ? file_untrusted(p->dir, &st, S_ISVTX) : NULL;
    close(fd);
    int sys =
        refused(p->named ? p->dir : AT_FDCWD, p->named ? p->lock : p->path, rights_of(p, spec));
    if (untrusted)
        finding_fail(
            f, DLOCK_EDATA,
            "file: the %s %s is in the place of the lock file; remove it, or use a folder of your "
            "own",
            untrusted, p->where);
    else if (sys != 0)
        finding_fail(
            f, code_of(sys),
            "file: %s cannot be opened for this lock: %s; give this user the right to %s it",
            p->where, strerror(sys), rights_of(p, spec) & W_OK ? "read and write" : "read");
    else if (known && !p->named && S_ISREG(st.st_mode) && st.st_mode & S_IWOTH &&
             st.st_mode & S_IROTH)
        finding_ok(f, "file: %s; any user can hold this lock", p->where);
    else
        finding_ok(f, "file: %s", p->where);
}

/* The fencing token and the run record, in files beside the lock's file. */
static void check_records(struct file_place *p, const struct dlock_spec *spec, struct findings *f)
{
    struct file_record record;
    struct dlock_error err;
    int rc = file_record_read(p, &record, &err), sys = 0;
    if (rc == 0 && spec->mode == DLOCK_MODE_EXCLUSIVE) {
        sys = refused(p->dir, p->fence, R_OK | W_OK);
        /* Missing, or another user's: a rename puts a new file there. */
        sys = sys != 0 ? refused(p->dir, ".", W_OK | X_OK) : 0;
    }
    if (rc < 0)
        finding_fail(f, rc, "records: %s", err.msg);
    else if (sys != 0)
        finding_fail(
            f, code_of(sys),
            "records: the fencing token in %s/%s cannot be written: %s; give this user the right "
            "to write the folder",
            p->path, p->fence, strerror(sys));
    else if (spec->once != 0 && once_check(p, &err) < 0)
        finding_fail(f, err.code, "records: %s", err.msg);
    else if (record.fence == 0)
        finding_ok(f, "records: %s/%s does not exist yet; a run makes it", p->path, p->fence);
    else
        finding_ok(f, "records: %s/%s, last token %llu", p->path, p->fence,
                   (unsigned long long)record.fence);
}

/* Is one of these words among the options of the mount of dir? */
static const char *mounted_with(int dir, const char *const *words)
{
    char *line = proc_locks_mount(dir), *save, *options = line ? strstr(line, " - ") : NULL;
    const char *found = NULL;
    options = options ? strrchr(options, ' ') : NULL;
    for (char *o = options ? strtok_r(options, " ,\n", &save) : NULL; o && !found;
         o = strtok_r(NULL, " ,\n", &save))
        for (const char *const *w = words; *w && !found; w++)
            if (strcmp(o, *w) == 0)
                found = *w;
    free(line);
    return found;
}

static void check_network(const struct file_place *p, int dir, const struct dlock_spec *spec,
                          const struct file_network *net, struct findings *f)
{
    static const char *const flock_local[] = {"nolock", "local_lock=flock", "local_lock=all", NULL};
    static const char *const fcntl_local[] = {"nolock", "local_lock=posix", "local_lock=all", NULL};
    const char *local = mounted_with(dir, p->fcntl ? fcntl_local : flock_local);
    if (spec->mode == DLOCK_MODE_SLOTS)
        finding_fail(
            f, DLOCK_EUSAGE,
            "file system: %s, where slots do not work; use a folder of this machine, or a lock "
            "server",
            net->name);
    else if (local)
        finding_warn(
            f,
            "file system: %s, mounted with %s: the lock excludes no other machine; mount it "
            "without",
            net->name, local);
    else if (net->warn && strcmp(net->name, "NFS") != 0)
        finding_warn(
            f,
            "file system: %s: whether the lock excludes other machines depends on the server and "
            "the mount; test it, or use a lock server",
            net->name);
    else
        finding_ok(f, "file system: %s: the lock excludes other machines as far as its server does",
                   net->name);
}

static void check_system(const struct file_place *p, int dir, const struct dlock_spec *spec,
                         struct findings *f)
{
    const struct file_network *net = file_network(dir);
    struct statvfs fs;
    if (net)
        check_network(p, dir, spec, net, f);
    else
        finding_ok(f, "file system: of this machine%s",
                   p->named && once_forgets(dir) ? "; a reboot empties the folder" : "");
    if (fstatvfs(dir, &fs) != 0)
        return;
    uint64_t left = (uint64_t)(geteuid() == 0 ? fs.f_bfree : fs.f_bavail) * fs.f_frsize;
    bool no_inodes = fs.f_files > 0 && (geteuid() == 0 ? fs.f_ffree : fs.f_favail) == 0;
    if (fs.f_flag & ST_RDONLY && p->named && spec->mode == DLOCK_MODE_EXCLUSIVE)
        return; /* told of the records */
    if ((fs.f_blocks > 0 && left == 0) || no_inodes)
        finding_fail(f, DLOCK_ECREATE, "room: the disk of %s is full%s; free some", p->path,
                     no_inodes ? " (no inodes)" : "");
    else if (fs.f_blocks > 0 && left < ROOM_LEAST)
        finding_warn(f, "room: %llu KiB are left on the disk of %s; free some",
                     (unsigned long long)left / 1024, p->path);
    else
        finding_ok(f, "room: there is some on the disk of %s", p->path);
}

static void check_proc(struct findings *f)
{
    if (access("/proc/locks", R_OK) != 0)
        finding_warn(
            f, "holders: /proc/locks cannot be read: %s; nobody can be told who holds the lock",
            strerror(errno));
    else if (access("/proc/1/stat", F_OK) != 0)
        finding_warn(
            f, "holders: /proc hides the processes of other users (hidepid); ask as root who holds "
               "the lock");
    else if (!proc_locks_complete())
        finding_ok(f, "holders: those of this container only can be named");
    else
        finding_ok(f, "holders: all of this machine can be named");
}

void file_check(struct file_place *p, const struct dlock_spec *spec, struct findings *f)
{
    f->ended = true;
    if (p->named && !check_folder(p, f))
        return;
    check_file(p, spec, f);
    if (p->named)
        check_records(p, spec, f);
    char *folder = p->named ? NULL : folder_of(p->path);
    int dir = folder ? open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC) : p->dir;
    if (dir >= 0)
        check_system(p, dir, spec, f);
    if (folder && dir >= 0)
        close(dir);
    free(folder);
    check_proc(f);
}
