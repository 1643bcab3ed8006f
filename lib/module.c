/*
 * module.c - loading modules on first use, so that a lock on a file does not pay for libpq or
 * OpenSSL.
 *
 * A module is code that runs with the caller's rights. It comes from one of two directories,
 * neither named by the environment: beside the object that holds this code (a build that was not
 * installed), or where `make install` put it. Dlock loads it only if no user but root, the caller
 * and the owner of this program could have changed the file, and uses only modules of exactly this
 * build: then the structures are the same.
 */
#include "module.h"

#include "util.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef DLOCK_BUILD_ID
#define DLOCK_BUILD_ID DLOCK_VERSION
#endif
#ifndef DLOCK_MODDIR
#define DLOCK_MODDIR "/usr/local/lib/dlock"
#endif

#define UNINSTALLED "/dlock-modules"
#define ONE_BUILD "reinstall dlock and its modules from one build"
/* Wrong, but the next moment of an upgrade may put another module in this place. */
#define mismatch(err, ...) dlock_fail(err, DLOCK_ENOBACKEND, ELIBBAD, __VA_ARGS__)

static const char build_id[] = DLOCK_BUILD_ID;

/* The directory to load from, and the module's file. */
struct place {
    int fd;    /* the directory, O_PATH, or -1 with errno */
    uid_t own; /* the owner of this program: can change this code already */
    dev_t dev; /* the module's file, once checked */
    ino_t ino;
    char dir[PATH_MAX], file[PATH_MAX + NAME_MAX + 2];
};

/* The file of this code: the program, or libdlock.so. False without an absolute path. */
static bool own_file(char path[PATH_MAX])
{
    Dl_info here, program;
    if (!dladdr(build_id, &here) || !dladdr((void *)getauxval(AT_PHDR), &program))
        return false;
    if (here.dli_fbase != program.dli_fbase)
        return snprintf(path, PATH_MAX, "%s", here.dli_fname) < PATH_MAX && path[0] == '/';
    /* For the program dladdr() gives argv[0], which the caller chooses. */
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
    if (n <= 0 || n >= PATH_MAX)
        return false;
    path[n] = '\0';
    return path[0] == '/';
}

/* Choose the directory: beside the program, if it exists, else where modules are installed. */
static void find_place(struct place *p, const struct dlock_loadable *m)
{
    const int flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    struct stat st;
    p->fd = -1;
    p->own = own_file(p->dir) && stat(p->dir, &st) == 0 ? st.st_uid : 0;
    /* A program with more rights than its caller does not trust its own location. */
    if (!getauxval(AT_SECURE) && own_file(p->dir)) {
        char *end = strrchr(p->dir, '/');
        size_t room = (size_t)(p->dir + sizeof(p->dir) - end);
        if (snprintf(end, room, UNINSTALLED) < (int)room)
            p->fd = open(p->dir, flags);
    }
    if (p->fd < 0) {
        snprintf(p->dir, sizeof(p->dir), "%s", DLOCK_MODDIR);
        p->fd = open(p->dir, flags);
    }
    int saved = errno;
    snprintf(p->file, sizeof(p->file), "%s/%s", p->dir, m->file);
    errno = saved;
}

/* Of the program, which comes first. */
static int find_interpreter(struct dl_phdr_info *info, size_t size, void *found)
{
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_INTERP)
            *(bool *)found = true;
    return 1;
}

/* As by gcc -static: dlopen(3) would bring in a second libc, and pthread_create(3) would crash. */
static bool is_static(void)
{
    bool found = false;
    dl_iterate_phdr(find_interpreter, &found);
    return !found;
}

static int cannot_open(const struct dlock_loadable *m, const char *scheme, const struct place *p,
                       struct dlock_error *err)
{
    int e = errno;
    if (e == ENOENT || e == ENOTDIR)
        return dlock_fail(err, DLOCK_ENOBACKEND, e,
                          "%s:// needs the module %s, which is not in %s: install the package %s",
                          scheme, m->file, p->dir, m->package);
    return dlock_fail(err, e == EACCES ? DLOCK_EPERM : DLOCK_EOS, e, "cannot open %s: %s", p->file,
                      strerror(e));
}

/* Root, the caller, or a user who can change this code already. */
static bool is_trusted(uid_t uid, uid_t own)
{
    return uid == 0 || uid == geteuid() || uid == own;
}

/*
 * Check that only root, the caller and the owner of this program could have changed the file fd, or
 * the entries of the directory fd. Fills st.
 */
static int check_owned(int fd, const char *path, mode_t type, uid_t own, struct stat *st,
                       struct dlock_error *err)
{
    if (fstat(fd, st) < 0)
        return dlock_fail(err, DLOCK_EOS, errno, "cannot check %s: %s", path, strerror(errno));
    if ((st->st_mode & S_IFMT) != type)
        return dlock_fail(err, DLOCK_EPERM, 0, "%s is not a regular file: no module is loaded",
                          path);
    if (!is_trusted(st->st_uid, own))
        return dlock_fail(err, DLOCK_EPERM, 0,
                          "%s belongs to user %u: modules are loaded only from files of root or "
                          "your own",
                          path, (unsigned)st->st_uid);
    if (st->st_mode & (S_IWGRP | S_IWOTH))
        return dlock_fail(err, DLOCK_EPERM, 0,
                          "%s can be changed by others (mode %04o): no module is loaded; "
                          "chmod go-w it",
                          path, (unsigned)st->st_mode & 07777);
    return 0;
}

/* O_PATH does not open the file: opening a FIFO would wait, opening a device may have effects. */
static int check_place(const struct dlock_loadable *m, const char *scheme, struct place *p,
                       struct dlock_error *err)
{
    struct stat st;
    int rc = check_owned(p->fd, p->dir, S_IFDIR, p->own, &st, err);
    if (rc < 0)
        return rc;
    int fd = openat(p->fd, m->file, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return cannot_open(m, scheme, p, err);
    rc = check_owned(fd, p->file, S_IFREG, p->own, &st, err);
    close(fd);
    if (rc < 0)
        return rc;
    p->dev = st.st_dev;
    p->ino = st.st_ino;
    return 0;
}

/*
 * Open the directory path, if only trusted users can replace it or a directory on the
 * way. In a sticky directory (/tmp) other users may write, but not rename or remove files of its
 * owners. Else -1.
 */
static int walk(const char *path, uid_t own)
{
    const int flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = open("/", flags);
    while (fd >= 0) {
        char name[NAME_MAX + 1];
        struct stat st;
        int next = -1;
        bool safe = fstat(fd, &st) == 0 && is_trusted(st.st_uid, own) &&
                    (!(st.st_mode & (S_IWGRP | S_IWOTH)) || (st.st_mode & S_ISVTX));
        path += strspn(path, "/");
        size_t len = strcspn(path, "/");
        if (safe && len == 0)
            return fd;
        if (safe && len < sizeof(name)) {
            memcpy(name, path, len);
            name[len] = '\0';
            next = openat(fd, name, flags);
        }
        close(fd);
        fd = next;
        path += len;
    }
    return -1;
}

/*
 * The path of the module without links, so that the linker's list, a debugger and a backtrace name
 * the file. False where another user could replace the file between our check and the linker's
 * open: below a directory open to this user, or behind a path that does not lead to the
 * checked directory (a chroot, a removed directory). Also with a '$': the linker expands "$ORIGIN"
 * and the like.
 */
static bool real_path(const struct dlock_loadable *m, const struct place *p, char path[PATH_MAX])
{
    char link[64];
    struct stat st, checked;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", p->fd);
    ssize_t n = readlink(link, path, PATH_MAX);
    if (n <= 0 || (size_t)n + strlen(m->file) + 2 > PATH_MAX || path[0] != '/')
        return false;
    path[n] = '\0';
    if (strchr(path, '$'))
        return false;
    int fd = walk(path, p->own);
    if (fd < 0)
        return false;
    bool same = fstat(fd, &st) == 0 && fstat(p->fd, &checked) == 0 && st.st_dev == checked.st_dev &&
                st.st_ino == checked.st_ino;
    close(fd);
    snprintf(path + n, PATH_MAX - (size_t)n, "/%s", m->file);
    return same;
}

/*
 * The linker recognizes a loaded file under any name: there is never a second copy. RTLD_LAZY: the
 * module is linked with -z now, and so is bound, and its GOT made read-only, at once all the same;
 * libraries below libpq that are linked without (Kerberos) are bound as in every other program,
 * which saves half a millisecond.
 */
static void *load(const struct dlock_loadable *m, const struct place *p, struct dlock_error *err)
{
    char path[PATH_MAX];
    const char *name = path;
    struct stat st;
    void *so = NULL;
    bool real = real_path(m, p, path);
    if (real)
        so = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    /* A trusted user may have moved files since the check: is the path still the checked file's? */
    if (!real || lstat(path, &st) != 0 || st.st_dev != p->dev || st.st_ino != p->ino) {
        /*
         * Through the descriptor of the checked directory: only trusted users can replace a file
         * there. Not through a descriptor of the file: the dynamic linker compares names first, and
         * would return a module that was loaded earlier as "/proc/self/fd/7", although 7 is another
         * file now.
         */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        name = p->file; /* a report opens the file again to name functions */
#else
        snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", p->fd, m->file);
#endif
        so = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    }
    if (so)
        return so;
    const char *why = dlerror();
    size_t len = strlen(name);
    if (!why)
        why = "unknown error";
    else if (strncmp(why, name, len) == 0 && strncmp(why + len, ": ", 2) == 0)
        why += len + 2;
    /* Messages of glibc's dynamic linker. The room for static TLS is fixed: no use to retry. */
    bool memory =
        (strstr(why, "annot allocate memory") || strstr(why, "cannot create shared object")) &&
        !strstr(why, "static TLS");
    if (memory)
        dlock_fail(err, DLOCK_ENOMEM, 0, "%s cannot be loaded: %s", p->file, why);
    else
        mismatch(err, "%s cannot be loaded: %s; install the package %s and the libraries it needs",
                 p->file, why, m->package);
    return NULL;
}

_Static_assert(offsetof(struct dlock_backend, abi) == offsetof(struct dlock_module_head, abi) &&
                   offsetof(struct dlock_backend, build_id) ==
                       offsetof(struct dlock_module_head, build_id),
               "a backend's table begins like every module's");

/* Compares abi before reading build_id, and build_id before the rest. */
static bool check_table(const void *table, const struct dlock_loadable *m, const char *path,
                        const char *scheme, struct dlock_error *err)
{
    const struct dlock_module_head *h = table;
    if (!h)
        mismatch(err, "%s is not a module of dlock: " ONE_BUILD, path);
    else if (h->abi != m->abi)
        mismatch(err, "%s is for interface %u, this dlock has %u: " ONE_BUILD, path, h->abi,
                 m->abi);
    else if (!h->build_id || strcmp(h->build_id, build_id) != 0)
        mismatch(err, "%s is of build %s, this dlock of %s: " ONE_BUILD, path,
                 h->build_id ? h->build_id : "(none)", build_id);
    else if (m->schemes && !dlock_serves(((const struct dlock_backend *)table)->schemes, scheme))
        mismatch(err, "%s does not serve %s://: " ONE_BUILD, path, scheme);
    else
        return true;
    return false;
}

const void *dlock_module_load(const struct dlock_loadable *m, const char *scheme,
                              struct dlock_error *err)
{
    const void *table = NULL;
    struct place p;
    if (is_static()) {
        dlock_fail(err, DLOCK_ENOBACKEND, 0,
                   "%s:// needs the module %s, which a statically linked program cannot load: "
                   "link the program dynamically",
                   scheme, m->file);
        return NULL;
    }
    /* For own_file(), real_path() and load(). */
    if (access("/proc/self/fd", F_OK) < 0) {
        dlock_fail(err, DLOCK_EOS, errno,
                   "%s:// needs the module %s, which cannot be loaded without /proc: mount /proc",
                   scheme, m->file);
        return NULL;
    }
    find_place(&p, m);
    if (p.fd < 0) {
        cannot_open(m, scheme, &p, err);
        return NULL;
    }
    if (check_place(m, scheme, &p, err) < 0)
        goto out;
    void *so = load(m, &p, err);
    if (!so)
        goto out;
    table = dlsym(so, "dlock_module");
    if (check_table(table, m, p.file, scheme, err))
        goto out; /* no dlclose, ever: libraries leave exit handlers and threads */
    table = NULL;
    /* Not used yet. Else the linker would return this copy for a module that replaces the file. */
    dlclose(so);
out:
    close(p.fd);
    return table;
}

bool dlock_module_installed(const struct dlock_loadable *m)
{
    struct place p;
    struct stat st;
    find_place(&p, m);
    if (p.fd < 0)
        return false;
    bool there = fstatat(p.fd, m->file, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
    close(p.fd);
    return there;
}
