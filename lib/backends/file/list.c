/*
 * list.c - the named locks in a folder.
 *
 * The folder, /proc/locks and the descriptors of the processes are read once, then each lock is
 * looked at by what was read: no lock is tried. So a holder that /proc/locks does not show is not
 * listed: of another machine (a network file system), or outside of this PID namespace.
 */
#include "file.h"

#include "util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The length of a file's name without ".lock"; 0: no file of a lock. */
static size_t name_len(const char *file)
{
    size_t len = strlen(file), suffix = strlen(FILE_SUFFIX);
    return len > suffix && strcmp(file + len - suffix, FILE_SUFFIX) == 0 ? len - suffix : 0;
}

static bool is_lock(const struct dirent *e)
{
    char name[FILE_NAME_LIMIT + 1];
    size_t len = name_len(e->d_name);
    return (e->d_type == DT_REG || e->d_type == DT_UNKNOWN) && len > 0 && len <= FILE_NAME_LIMIT &&
           file_decode_name(name, e->d_name, len);
}

/* Read the folder; takes dir over. 0 or an errno. */
static int read_names(struct file_list *l, int dir)
{
    DIR *d = fdopendir(dir);
    const struct dirent *e;
    int cap = 0, sys = d ? 0 : errno;
    while (sys == 0 && (errno = 0, e = readdir(d))) {
        if (!is_lock(e))
            continue;
        if (l->n == cap) {
            cap = cap ? cap * 2 : 64;
            char **more = realloc(l->files, (size_t)cap * sizeof(*more));
            sys = more ? 0 : ENOMEM;
            l->files = more ? more : l->files;
        }
        if (sys == 0)
            l->files[l->n] = strdup(e->d_name);
        if (sys == 0 && l->files[l->n])
            l->n++;
        else
            sys = ENOMEM;
    }
    sys = sys != 0 ? sys : errno;
    if (d)
        closedir(d);
    else
        close(dir);
    return sys;
}

static int fail_read(const struct file_place *p, int sys, struct dlock_error *err)
{
    return dlock_fail(err, sys == EACCES ? DLOCK_EPERM : DLOCK_ECREATE, sys,
                      "cannot read the lock directory %s: %s", p->path, strerror(sys));
}

/* Which locks cannot be seen. */
static void note_unseen(const struct file_place *p, int dir, struct dlock_error *notice)
{
    const struct file_network *net = file_network(dir);
    notice->code = 0;
    if (net)
        dlock_fail(notice, DLOCK_EPERM, 0,
                   "%s is on a network file system (%s): holders on other machines are not shown",
                   p->path, net->name);
    else if (!proc_locks_complete())
        dlock_fail(notice, DLOCK_EPERM, 0, "%s: holders outside of this container are not shown",
                   p->path);
}

int file_list_start(struct file_list *l, const struct file_place *p, struct dlock_error *notice,
                    struct dlock_error *err)
{
    struct proc_locks_file lf;
    struct dlock_error why;
    *l = (struct file_list){.place = {.path = p->path, .named = true, .dir = -1}};
    notice->code = 0;
    if (!p->named)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "%s is one lock, not a folder of locks: file://%s#*", p->path, p->path);
    int rc = file_place_open(&l->place, &why);
    l->no_dir = rc < 0 && why.sys == ENOENT;
    if (rc < 0) {
        if (err && !l->no_dir)
            *err = why;
        return l->no_dir ? 0 : rc;
    }
    int dir = openat(l->place.dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return fail_read(p, errno, err);
    note_unseen(p, dir, notice);
    int sys = -proc_locks_file(dir, &lf);
    int failed = read_names(l, dir);
    sys = failed != 0 ? failed : sys;
    if (sys != 0)
        return fail_read(p, sys, err);
    lf.kind = PROC_LOCKS_FLOCK;
    sys = l->n > 0 ? -proc_locks_read_all(&lf, &l->all) : 0;
    return sys == 0 ? 0
                    : dlock_fail(err, sys == ENOMEM ? DLOCK_ENOMEM : DLOCK_EOS, sys,
                                 "cannot read /proc/locks: %s", strerror(sys));
}

/* The holders and waiters of the lock in file. */
static int look(struct file_list *l, const char *file, struct dlock_error *err)
{
    char encoded[FILE_NAME_LIMIT + 1];
    snprintf(encoded, sizeof(encoded), "%.*s", (int)name_len(file), file);
    int rc = file_place_name(&l->place, encoded, err);
    if (rc == 0)
        rc = file_status(&l->place, &l->all, &l->found, err);
    for (int i = 0; rc == 0 && i < l->found.n; i++) {
        const struct dlock_info *info = &l->found.info[i];
        l->entry.waiters += info->waiter;
        l->entry.holders += !info->waiter;
        l->hidden |= !info->waiter && info->pid > 0 && !info->user[0];
    }
    if (l->entry.holders > 0)
        l->entry.holder = &l->found.info[0];
    return rc;
}

int file_list_next(struct file_list *l, struct dlock_error *err)
{
    struct proc_lock first;
    struct stat st;
    free(l->found.info);
    l->found = (struct file_holders){0};
    for (; l->next < l->n; l->next++) {
        const char *file = l->files[l->next];
        if (fstatat(l->place.dir, file, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        file_decode_name(l->name, file, name_len(file));
        l->entry = (struct dlock_entry){.name = l->name};
        bool used = proc_locks_pick(&l->all, st.st_ino, &first, 1) > 0;
        int rc = used ? look(l, file, err) : 0;
        l->next++;
        return rc < 0 ? rc : 1;
    }
    return 0;
}

void file_list_done(struct file_list *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->files[i]);
    free(l->files);
    free(l->found.info);
    proc_locks_drop(&l->all);
    file_place_done(&l->place);
    *l = (struct file_list){.place.dir = -1};
}
