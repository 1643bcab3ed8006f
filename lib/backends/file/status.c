/*
 * status.c - the holders of a file lock and its waiters.
 *
 * /proc/locks answers without touching the lock. Only where it may be incomplete (a PID
 * namespace, a network file system, btrfs) the lock itself is tried for a moment; a "flock -n" in
 * that moment finds it held. Slots are asked for with F_OFD_GETLK, which takes no lock and knows
 * all slots, in all PID namespaces, while /proc/locks shows no process.
 */
#include "file.h"

#include "flock_wait.h"
#include "slots.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define PLOCKS_MAX 256
#define USERS_MAX (DLOCK_SLOTS_MAX + PLOCKS_MAX)

/* The known facts of a lock. */
struct known {
    struct proc_locks_file file;
    struct proc_lock *locks; /* n entries of /proc/locks, holders first; -errno: not readable */
    int n;
    struct file_record record; /* of a named lock */
    struct slot_user *users;   /* n_users; pid 0: found in /proc/locks too */
    int n_users;
    unsigned slots; /* their number */
};

/* Leaves no users where they cannot be known. The caller frees k->users. */
static void read_slots(const struct file_place *p, int fd, struct known *k)
{
    if (!p->fcntl)
        k->users = malloc(USERS_MAX * sizeof(*k->users));
    if (k->users)
        k->n_users = slots_list(fd, k->users, USERS_MAX, &k->slots);
}

/*
 * Complete info with the record beside a named lock, if pid, the process that took the lock, wrote
 * the record. This process may have ended while its command keeps the descriptor: then info
 * already says which process, if known, has the lock now.
 */
static void add_record(const struct file_record *rec, long pid, struct dlock_info *info)
{
    if (rec->fence == 0 || info->waiter || info->mode != DLOCK_MODE_EXCLUSIVE ||
        rec->info.pid != pid)
        return;
    info->foreign = false;
    info->fence = rec->fence;
    info->since_ms = rec->info.since_ms;
    info->waited_ms = rec->info.waited_ms;
    memcpy(info->token, rec->token, sizeof(info->token));
    memcpy(info->note, rec->info.note, sizeof(info->note));
    if (info->pid != 0 && info->pid != pid)
        return;
    memcpy(info->user, rec->info.user, sizeof(info->user));
    memcpy(info->command, rec->info.command, sizeof(info->command));
}

static void add_slot(const struct known *k, const struct slot_user *u, struct dlock_info *info)
{
    info->mode = DLOCK_MODE_SLOTS;
    info->slots = k->slots;
    info->slot = u->waiter ? 0 : u->slot + 1;
}

/* The user of a slot that /proc/locks has as l; NULL: a shared or an exclusive lock. */
static struct slot_user *slot_user_of(const struct known *k, const struct proc_lock *l)
{
    for (int i = 0; i < k->n_users; i++)
        if (l->shared && l->pid > 0 && k->users[i].pid == l->pid && k->users[i].waiter == l->waiter)
            return &k->users[i];
    return NULL;
}

static void describe(const struct known *k, const struct proc_lock *l, struct dlock_info *info)
{
    struct slot_user *u = slot_user_of(k, l);
    long taker = l->pid, writer = k->record.info.pid;
    /* In a PID namespace a taker that has ended has no number: most likely it wrote the record. */
    if (taker == 0 && l->carrier > 0 && writer > 0 && kill((pid_t)writer, 0) != 0 && errno == ESRCH)
        taker = writer;
    proc_locks_describe(l, &k->file, info);
    add_record(&k->record, taker, info);
    if (!u)
        return;
    add_slot(k, u, info);
    u->pid = 0;
}

/* Describe a user of a slot that /proc/locks lacks: a waiter, or in a foreign PID namespace. */
static void describe_slot(const struct known *k, const struct slot_user *u, struct dlock_info *info)
{
    struct proc_locks_file bytes = k->file;
    struct proc_lock l = {.waiter = u->waiter, .shared = true, .unnamed = true};
    bytes.kind = PROC_LOCKS_FCNTL;
    if (u->waiter && proc_locks_may_have(u->pid, &bytes))
        l.pid = u->pid;
    proc_locks_describe(&l, &k->file, info);
    add_slot(k, u, info);
}

bool file_first_holder(const struct file_place *p, int fd, long pid, struct dlock_info *info,
                       int *place)
{
    struct proc_lock locks[PLOCKS_MAX];
    struct known k = {.locks = locks};
    *place = 0;
    if (proc_locks_file(fd, &k.file) < 0)
        return false;
    k.file.kind = p->fcntl ? PROC_LOCKS_FCNTL : PROC_LOCKS_FLOCK;
    k.n = proc_locks_read(&k.file, locks, PLOCKS_MAX);
    for (int i = 0; i < k.n && *place == 0; i++)
        if (locks[i].waiter && locks[i].pid == pid)
            *place = locks[i].place;
    if (k.n <= 0 || locks[0].waiter)
        return false;
    if (p->named)
        file_record_read(p, &k.record, NULL);
    read_slots(p, fd, &k);
    /* Prefer the holder of a slot: a slot may be in the way where a shared holder is not. */
    for (int i = k.n - 1; i > 0; i--)
        if (!locks[i].waiter && slot_user_of(&k, &locks[i]))
            locks[0] = locks[i];
    describe(&k, &locks[0], info);
    free(k.users);
    return true;
}

bool file_lease_holder(struct file_place *p, struct dlock_info *info)
{
    struct proc_locks_file lf;
    struct proc_lock lease;
    int fd;
    if (file_open(p, FILE_TO_NAME, &fd, NULL) < 0 || fd < 0)
        return false;
    int n = proc_locks_file(fd, &lf);
    close(fd);
    lf.kind = PROC_LOCKS_LEASE;
    if (n < 0 || proc_locks_read(&lf, &lease, 1) != 1 || lease.waiter)
        return false;
    proc_locks_describe(&lease, &lf, info);
    return true;
}

/* Test the lock without waiting. 1: held, *shared says how; 0: free; negative: error. */
static int probe(struct file_place *p, bool *shared, struct dlock_error *err)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd, sys, rc = file_open(p, FILE_TO_PROBE, &fd, err);
    if (rc < 0 || fd < 0)
        return rc;
    if (p->fcntl) {
        /* fcntl(2) answers without taking the lock. */
        sys = fcntl(fd, F_OFD_GETLK, &all) != 0 ? errno : all.l_type == F_UNLCK ? 0 : EWOULDBLOCK;
        *shared = sys == EWOULDBLOCK && all.l_type == F_RDLCK;
    } else {
        bool busy = (sys = flock_try(fd, LOCK_EX, false)) == EWOULDBLOCK;
        /* NFS needs a writable descriptor for LOCK_EX: only an exclusive holder is detected. */
        if (busy || sys == EBADF || sys == EIO)
            sys = flock_try(fd, LOCK_SH, false);
        *shared = busy && sys == 0;
        if (*shared)
            sys = EWOULDBLOCK;
    }
    close(fd);
    if (sys != 0 && sys != EWOULDBLOCK)
        return dlock_fail(err, DLOCK_EOS, sys, "cannot test the lock on %s: %s", p->where,
                          strerror(sys));
    return sys == EWOULDBLOCK;
}

/*
 * Try the lock itself. If no process here has the file open, an exclusive holder has most likely
 * written the record. Without a record the holder is unknown: another program, and a dlock in
 * another container, look the same.
 */
static int add_unknown(struct file_place *p, const struct known *k, struct file_holders *out,
                       struct dlock_error *err)
{
    struct dlock_info *info = &out->info[0];
    bool shared = false;
    int rc = probe(p, &shared, err);
    if (rc <= 0)
        return rc;
    out->n = 1;
    proc_locks_describe(&(struct proc_lock){.shared = shared}, &k->file, info);
    if (info->pid == 0 && !shared) {
        info->pid = k->record.info.pid;
        memcpy(info->host, k->record.info.host, sizeof(info->host));
    }
    add_record(&k->record, info->pid, info);
    return 0;
}

/* Add the entries of /proc/locks, and the missing users of slots; holders first. */
static int add_known(const struct known *k, struct file_holders *out, struct dlock_error *err)
{
    struct dlock_info *all = realloc(out->info, (size_t)(k->n + k->n_users + 1) * sizeof(*all));
    if (!all)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    out->info = all;
    for (int waiter = 0; waiter < 2; waiter++) {
        for (int i = 0; i < k->n; i++)
            if (k->locks[i].waiter == waiter)
                describe(k, &k->locks[i], &all[out->n++]);
        for (int i = 0; i < k->n_users; i++)
            if (k->users[i].waiter == waiter && k->users[i].pid != 0)
                describe_slot(k, &k->users[i], &all[out->n++]);
    }
    return 0;
}

static ino_t inode_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

int file_status(struct file_place *p, const struct proc_locks_all *all, struct file_holders *out,
                struct dlock_error *err)
{
    struct known k = {.locks = malloc(USERS_MAX * sizeof(*k.locks))};
    int fd, rc;
    *out = (struct file_holders){.info = calloc(1, sizeof(*out->info))};
    if (!k.locks || !out->info) {
        free(k.locks);
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    }
    rc = file_open(p, FILE_TO_NAME, &fd, err);
    out->no_file = rc == 0 && fd < 0;
    if (rc < 0 || fd < 0)
        goto out;
    if (all) {
        k.file = all->file;
        k.file.ino = inode_of(fd);
        k.n = proc_locks_pick(all, k.file.ino, k.locks, USERS_MAX);
    } else {
        k.n = proc_locks_file(fd, &k.file);
        k.file.kind = p->fcntl ? PROC_LOCKS_FCNTL : PROC_LOCKS_FLOCK;
        if (k.n == 0)
            k.n = proc_locks_read(&k.file, k.locks, USERS_MAX);
    }
    /* A lock not shown there is free. fstatfs works with an O_PATH descriptor. */
    bool believe = all || (k.n >= 0 && k.file.exact && !file_network(fd) && proc_locks_complete());
    close(fd);
    /* A lease counts as "-n" would find it. No process has the file open then. */
    if (k.n == 0 && !all && k.file.exact && file_lease_holder(p, &out->info[0])) {
        out->n = 1;
        goto out;
    }
    if (p->named)
        file_record_read(p, &k.record, NULL);
    /* Opening the file wakes the waiters of its slots: only if the lock is in use. */
    if ((k.n > 0 || !believe) && file_open(p, FILE_TO_PROBE, &fd, NULL) == 0 && fd >= 0) {
        read_slots(p, fd, &k);
        close(fd);
    }
    k.n = k.n > 0 ? k.n : 0;
    bool slot_held = k.n_users > 0 && !k.users[0].waiter;
    bool held = slot_held || (k.n > 0 && !k.locks[0].waiter);
    /* Entries in /proc/locks are true; a missing entry means "free" only where it is complete. */
    if ((!held || !k.file.exact) && !slot_held && !believe) {
        rc = add_unknown(p, &k, out, err);
        if (!held || out->n == 0)
            goto out;
        out->n = 0;
    }
    rc = add_known(&k, out, err);
out:
    free(k.users);
    free(k.locks);
    return rc;
}
