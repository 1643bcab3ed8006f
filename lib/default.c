/*
 * default.c - the URI for "@name".
 *
 * The store is that of $DLOCK_STORE, else of the file $DLOCK_STORE_FILE, else of /etc/dlock/store.
 * That file can say "require" instead: then there is no store without DLOCK_STORE.
 *
 * Without all of them: a file in a directory that depends only on the machine and the user,
 * never on the environment or the groups of a process: cron and a shell must use the same lock.
 *   root   /run/dlock-0: only root can make it
 *   users  /run/lock/dlock-UID, where /run/lock has mode 1777;
 *          /run/dlock/dlock-UID, where /run/lock is missing or its mode closes it to users;
 *          whichever exists already
 * These are empty after a boot. Run records, which must outlive a boot, are in /var/lib/dlock
 * (root), or in .local/state/dlock below the home directory (users): see dlock_state_dir().
 *
 * Never below /tmp, which services have for themselves, or /dev/shm, which a logout may empty. Any
 * other failure (a read-only or full file system) is an error: a process may be using the
 * first directory.
 */
#include "uri_parts.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define USUAL_BASE "/run/lock"
#define OTHER_BASE "/run/dlock"
#define ROOT_DIR "/run/dlock-0"
#define STORE_FILE "/etc/dlock/store"
#define REQUIRE "require"

/* Every user may make a directory there, and no user may replace a foreign directory. */
#define OPEN_TO_ALL (S_ISVTX | 0777)

static bool open_to_all(const struct stat *st)
{
    return S_ISDIR(st->st_mode) && (st->st_mode & OPEN_TO_ALL) == OPEN_TO_ALL;
}

/* The directory itself: a symbolic link is refused. */
static int stat_dir(const char *dir, struct stat *st, struct dlock_error *err)
{
    /* O_PATH: needs no right to read, and opens no device. */
    int fd = open(dir, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC), r;
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        return dlock_fail(err, DLOCK_EPERM, errno, "%s is not a plain directory: remove it", dir);
    if (fd < 0)
        return dlock_fail(err, DLOCK_ECREATE, errno, "cannot open %s: %s", dir, strerror(errno));
    r = fstat(fd, st) < 0 ? -errno : 0;
    close(fd);
    return r < 0 ? dlock_fail(err, DLOCK_ECREATE, -r, "cannot check %s: %s", dir, strerror(-r)) : 0;
}

/* Foreign users must not be able to replace the directory, or to open and lock its files. */
static int check_dir(const char *dir, struct dlock_error *err)
{
    struct stat st;
    int r = stat_dir(dir, &st, err);
    if (r < 0)
        return r;
    /*
     * Only root can make root's directory: the "root" of a user namespace does not see the real
     * owner, and must not remove the directory.
     */
    if (st.st_uid != geteuid())
        return dlock_fail(err, DLOCK_EPERM, 0, "%s belongs to uid %lu, not to us%s set DLOCK_STORE",
                          dir, (unsigned long)st.st_uid,
                          geteuid() == 0 ? " (is this a user namespace?):"
                                         : ": have root remove it, or");
    if (st.st_mode & (S_IRWXG | S_IRWXO))
        return dlock_fail(err, DLOCK_EPERM, 0, "%s is open to other users: chmod 700 it", dir);
    return 0;
}

/* The directory of this user below base, where no foreign user can have moved directories. */
static bool is_made(const char *base, unsigned long uid)
{
    char dir[64];
    struct stat st;
    if (stat(base, &st) < 0 || st.st_uid != 0 ||
        ((st.st_mode & (S_IWGRP | S_IWOTH)) && !(st.st_mode & S_ISVTX)))
        return false;
    snprintf(dir, sizeof(dir), "%s/dlock-%lu", base, uid);
    return lstat(dir, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == uid;
}

/* Is /run/dlock there, and trustworthy? 0 or a negative DLOCK_E*. */
static int check_other_base(struct dlock_error *err)
{
    static const char command[] = "install -d -m 1777 -o root " OTHER_BASE;
    struct stat st;
    if (lstat(OTHER_BASE, &st) < 0 && errno == ENOENT)
        return dlock_fail(err, DLOCK_ECREATE, ENOENT,
                          "no directory for @name: users cannot use " USUAL_BASE ", and " OTHER_BASE
                          " is missing: run \"%s\" as root, or set DLOCK_STORE",
                          command);
    int r = stat_dir(OTHER_BASE, &st, err);
    if (r < 0)
        return r;
    if (st.st_uid != 0 || !open_to_all(&st))
        return dlock_fail(err, DLOCK_EPERM, 0,
                          OTHER_BASE
                          " is not root's with mode 1777: run \"%s\" as root, or set DLOCK_STORE",
                          command);
    return 0;
}

/* The directory of the locks, which may be missing yet. */
static int choose_dir(char *dir, size_t size, struct dlock_error *err)
{
    unsigned long uid = geteuid();
    bool usual = false;
    struct stat st;
    if (uid == 0) {
        snprintf(dir, size, ROOT_DIR);
        return 0;
    }
    /* May users make directories in /run/lock? Its mode decides, not the rights of this process. */
    if (stat(USUAL_BASE, &st) == 0) {
        /* The sandbox of a service can hide /run/lock so. A shell outside still uses it. */
        if ((st.st_mode & 0777) == 0)
            return dlock_fail(err, DLOCK_EPERM, EACCES,
                              USUAL_BASE " has mode 0, as in a sandbox: set DLOCK_STORE");
        usual = open_to_all(&st);
    } else if (errno != ENOENT) {
        return dlock_fail(err, DLOCK_ECREATE, errno,
                          "cannot check " USUAL_BASE ": %s (DLOCK_STORE can name another place)",
                          strerror(errno));
    }
    /*
     * A directory made since the boot stays in use: a system upgrade may change the mode
     * of /run/lock while locks are held there.
     */
    if (is_made(USUAL_BASE, uid))
        usual = true;
    else if (usual && is_made(OTHER_BASE, uid))
        usual = false;
    int r = usual ? 0 : check_other_base(err);
    if (r == 0)
        snprintf(dir, size, "%s/dlock-%lu", usual ? USUAL_BASE : OTHER_BASE, uid);
    return r;
}

static int embedded_store(char **store, struct dlock_error *err)
{
    char dir[64];
    int r = choose_dir(dir, sizeof(dir), err);
    if (r < 0)
        return r;
    /* chmod: a umask such as 0177, meant for files, would lock us out of the directory for good. */
    r = mkdir(dir, 0700) == 0 ? chmod(dir, 0700) : errno == EEXIST ? 0 : -1;
    if (r < 0)
        return dlock_fail(err, errno == EACCES ? DLOCK_EPERM : DLOCK_ECREATE, errno,
                          "cannot make the lock directory %s: %s (DLOCK_STORE can name another "
                          "place)",
                          dir, strerror(errno));
    r = check_dir(dir, err);
    if (r < 0)
        return r;
    if (asprintf(store, "file://%s", dir) < 0)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    return 0;
}

/* A store in text, which comes from source. Messages do not quote text: it may hold a password. */
static int given_store(char **store, const char *text, const char *source, struct dlock_error *err)
{
    static const char file[] = "file://";
    struct dlock_error why;
    char *p;
    if (strchr(text, '#'))
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "%s must name a store only: it has a '#' (in a password: %%23)", source);
    if (*text == '/') {
        *store = p = malloc(sizeof(file) + 3 * strlen(text));
        if (!p)
            return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
        for (p = stpcpy(p, file); *text; text++) {
            if (strchr("%?#", *text))
                p += sprintf(p, "%%%02X", (unsigned char)*text);
            else
                *p++ = *text;
        }
        *p = '\0';
        return 0;
    }
    if (dlock_uri_check_typo(text, &why) < 0)
        return dlock_fail(err, why.code, 0, "%s %s", source, why.msg);
    if (dlock_uri_scheme_len(text) == 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "%s is neither a URI (redis://host) nor an absolute path", source);
    *store = strdup(text);
    return *store ? 0 : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

/* The URI of any lock in the store base. */
static int parse_base(struct dlock_uri **uri, const char *base, struct dlock_error *err)
{
    char *text = NULL;
    int r = asprintf(&text, "%s#name", base) < 0 ? dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory")
                                                 : dlock_uri_parse(uri, text, err);
    dlock_wipe(text);
    return r;
}

/*
 * A user whom sudo lets run a program as root must not choose files that root reads, or hosts that
 * get the passwords in them.
 */
static int check_foreign_store(const char *base, struct dlock_error *err)
{
    struct dlock_uri *uri = NULL;
    const char *kind = NULL;
    int r = dlock_env_is_foreign() ? parse_base(&uri, base, err) : 0;
    if (r == 0 && uri)
        kind = dlock_uri_file_param(uri);
    dlock_uri_free(uri);
    return !kind ? r
                 : dlock_fail(err, DLOCK_EPERM, 0,
                              "DLOCK_STORE was set by a user with fewer rights (sudo), and has a "
                              "parameter (%s) that can name a file: write the whole URI as LOCK, "
                              "or put it into " STORE_FILE,
                              kind);
}

/* The store in the file path: its only line, but for comments. Cuts text. */
static int store_in_file(char **base, char *text, const char *path, struct dlock_error *err)
{
    char *save, *store = NULL, *line = strtok_r(text, "\r\n", &save);
    for (; line; line = strtok_r(NULL, "\r\n", &save)) {
        line += strspn(line, " \t");
        if (!*line || *line == '#')
            continue;
        if (store)
            return dlock_fail(err, DLOCK_EUSAGE, 0, "%s must have one line only, beside comments",
                              path);
        store = line;
    }
    if (!store)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s names no store (redis://host, /directory)",
                          path);
    for (size_t n = strlen(store); n > 0 && strchr(" \t", store[n - 1]); n--)
        store[n - 1] = '\0';
    if (strcmp(store, REQUIRE) == 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "@name needs a store: set DLOCK_STORE, or name one in %s", path);
    return given_store(base, store, path, err);
}

int dlock_find_store(char **base, const char *store, struct dlock_error *err)
{
    const char *given = getenv("DLOCK_STORE_FILE"), *path = given ? given : STORE_FILE;
    struct dlock_error why;
    char *text = NULL;
    int r;
    *base = NULL;
    if (store && *store) {
        r = given_store(base, store, "DLOCK_STORE", err);
        if (r == 0)
            r = check_foreign_store(*base, err);
    } else if (!*path) {
        r = 0;
    } else if (*path != '/') {
        r = dlock_fail(err, DLOCK_EUSAGE, 0, "DLOCK_STORE_FILE must be an absolute path");
    } else {
        r = dlock_read_config(&text, path, "the store's file", &why);
        if (r == 0)
            r = store_in_file(base, text, path, err);
        else if (why.sys == ENOENT && !given)
            r = 0;
        else
            dlock_fail(err, r, why.sys, "%s (DLOCK_STORE can name the store)", why.msg);
        dlock_wipe(text);
    }
    if (r < 0) {
        dlock_wipe(*base);
        *base = NULL;
    }
    return r;
}

int dlock_default_uri(char **out, const char *name, const char *store, struct dlock_error *err)
{
    const char *slashes = strstr(name, "://");
    char *base = NULL, *uri = NULL;
    if (!*name)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "the lock's name after '@' is empty (an unset variable?)");
    /* "@jdbc:redis://:password@host" would make a file with the password in its name. */
    if (dlock_uri_scheme_len(name) > 0 || (slashes && strchr(slashes, '@')))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "LOCK has a '@' before a URI: remove it");
    if (strchr(name, '#'))
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "LOCK has a '#' in the name after '@': write it as %%23");
    if (strchr(name, '?'))
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "LOCK has a '?' in the name after '@': write it as %%3F (parameters of "
                          "the store stand in DLOCK_STORE)");
    int r = dlock_find_store(&base, store, err);
    if (r == 0 && !base)
        r = embedded_store(&base, err);
    if (r == 0 && asprintf(&uri, "%s#%s", base, name) < 0)
        r = dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    dlock_wipe(base);
    if (r == 0)
        *out = uri;
    return r;
}

int dlock_default_dir(char **out, const char *base, struct dlock_error *err)
{
    struct dlock_uri *uri = NULL;
    char dir[64];
    int r;
    if (!base) {
        r = choose_dir(dir, sizeof(dir), err);
        if (r == 0)
            *out = strdup(dir);
        return r;
    }
    r = parse_base(&uri, base, err);
    if (r == 0)
        *out = strcmp(uri->scheme, "file") == 0 ? strdup(uri->path) : NULL;
    dlock_uri_free(uri);
    return r;
}

/* ------------------------------------------------------ the state directory --- */

/*
 * A new directory survives a crash only if the directory above is written. Without permission to
 * read the directory above, survival is left to chance.
 */
static void sync_above(const char *dir)
{
    const char *slash = strrchr(dir, '/');
    char *above = strndup(dir, (size_t)(slash - dir));
    int fd = above ? open(*above ? above : "/", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(above);
}

/*
 * Make dir and the directories above, but for the first home bytes of its path. Existing
 * directories may be links of the user's own.
 */
static int make_state_dir(char *dir, size_t home, struct dlock_error *err)
{
    for (char *slash = strchr(dir + home + 1, '/');; slash = strchr(slash + 1, '/')) {
        int r;
        if (slash)
            *slash = '\0';
        r = mkdir(dir, 0700) == 0 ? chmod(dir, 0700) : errno == EEXIST ? 1 : -1;
        if (r < 0)
            r = dlock_fail(err, errno == EACCES || errno == EPERM ? DLOCK_EPERM : DLOCK_ECREATE,
                           errno,
                           "cannot make %s for the run records of @name: %s (DLOCK_STORE can name "
                           "another place)",
                           dir, strerror(errno));
        if (r == 0)
            sync_above(dir);
        if (slash)
            *slash = '/';
        if (r < 0 || !slash)
            return r < 0 ? r : 0;
    }
}

int dlock_state_dir(char **out, int *fd, bool make, struct dlock_error *err)
{
    char *home = geteuid() == 0 ? strdup("/var/lib") : dlock_home_dir(), *dir = NULL;
    struct stat st;
    int r = 0, at = -1;
    if (!home)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "uid %lu has no home directory in /etc/passwd for the run records of "
                          "@name: set DLOCK_STORE to a directory on disk, or to a server",
                          (unsigned long)geteuid());
    if (asprintf(&dir, "%s/%s", home, geteuid() == 0 ? "dlock" : ".local/state/dlock") < 0) {
        free(home);
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    }
    if (make)
        r = make_state_dir(dir, strlen(home), err);
    if (r == 0 && (make || lstat(dir, &st) == 0))
        r = check_dir(dir, err);
    if (r == 0)
        at = open(dir, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC);
    if (r == 0 && at < 0 && (make || errno != ENOENT))
        r = dlock_fail(err, DLOCK_ECREATE, errno, "cannot open %s: %s", dir, strerror(errno));
    free(home);
    if (r < 0) {
        free(dir);
        return r;
    }
    *out = dir;
    *fd = at;
    return 0;
}
