/*
 * status.c - the holders of a file lock and its waiters.
 *
 * /proc/locks answers without touching the lock. Only where it may be incomplete (another PID
 * namespace, a network file system, btrfs) the lock itself is tried for a moment; a "flock -n" in that
 * moment finds it held. Slots are asked for with F_OFD_GETLK, which takes none: it knows them all, also
 * those of other PID namespaces, where /proc/locks shows no process.
 */
#include "file.h"

#include "flock_wait.h"
#include "slots.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define PLOCKS_MAX 256
#define USERS_MAX (DLOCK_SLOTS_MAX + PLOCKS_MAX)

/* Who uses slots. One that has been found in /proc/locks has pid 0 from then on. */
struct slot_users {
    struct slot_user *all;
    int n;
    unsigned number;
};

/*
 * Complete info with the record beside a named lock, if pid, the process that took the lock, wrote it. That may be a
 * dlock that has ended while its command keeps the descriptor: who has it now is in info already, if anybody knows.
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

static void read_record(const struct file_place *p, struct file_record *rec)
{
    *rec = (struct file_record){0};
    if (p->named)
        file_record_read(p, rec, NULL);
}

/* There are none where they cannot be known. The caller frees u->all. */
static void read_slots(const struct file_place *p, int fd, struct slot_users *u)
{
    *u = (struct slot_users){0};
    if (p->fcntl)
        return;
    u->all = malloc(USERS_MAX * sizeof(*u->all));
    if (u->all)
        u->n = slots_list(fd, u->all, USERS_MAX, &u->number);
}

/* info is about u: say so. */
static void add_slot(const struct slot_users *all, const struct slot_user *u,
                     struct dlock_info *info)
{
    info->mode = DLOCK_MODE_SLOTS;
    info->slots = all->number;
    info->slot = u->waiter ? 0 : u->slot + 1;
}

/* The user of a slot that /proc/locks has as l; NULL: a shared or an exclusive one. */
static struct slot_user *slot_user_of(struct slot_users *u, const struct proc_lock *l)
{
    for (int i = 0; i < u->n; i++)
        if (l->shared && l->pid > 0 && u->all[i].pid == l->pid && u->all[i].waiter == l->waiter)
            return &u->all[i];
    return NULL;
}

static void describe(const struct proc_lock *l, const struct proc_locks_file *lf,
                     const struct file_record *rec, struct slot_users *slots,
                     struct dlock_info *info)
{
    struct slot_user *u = slot_user_of(slots, l);

    proc_locks_describe(l, lf, info);
    add_record(rec, l->pid, info);
    if (!u)
        return;
    add_slot(slots, u, info);
    u->pid = 0;
}

/* A user of a slot that /proc/locks does not have: a waiter, which is in no queue there, or one of another PID namespace. */
static void describe_slot(const struct slot_users *slots, const struct slot_user *u,
                          const struct proc_locks_file *lf, struct dlock_info *info)
{
    struct proc_locks_file bytes = *lf;
    struct proc_lock l = {.waiter = u->waiter, .shared = true, .unnamed = true};

    bytes.kind = PROC_LOCKS_FCNTL;
    if (u->waiter && proc_locks_may_have(u->pid, &bytes))
        l.pid = u->pid;
    proc_locks_describe(&l, lf, info);
    add_slot(slots, u, info);
}

static enum proc_locks_kind kind_of(const struct file_place *p)
{
    return p->fcntl ? PROC_LOCKS_FCNTL : PROC_LOCKS_FLOCK;
}

bool file_first_holder(const struct file_place *p, int fd, long pid, struct dlock_info *info,
                       int *place)
{
    struct proc_lock locks[PLOCKS_MAX];
    struct proc_locks_file lf;
    struct slot_users slots;
    struct file_record rec;
    int n;

    *place = 0;
    if (proc_locks_file(fd, &lf) < 0)
        return false;
    lf.kind = kind_of(p);
    n = proc_locks_read(&lf, locks, PLOCKS_MAX);
    for (int i = 0; i < n && *place == 0; i++)
        if (locks[i].waiter && locks[i].pid == pid)
            *place = locks[i].place;
    if (n <= 0 || locks[0].waiter)
        return false;
    read_record(p, &rec);
    read_slots(p, fd, &slots);
    /* Of several holders one of a slot: it may be in the way where a shared one is not. */
    for (int i = n - 1; i > 0; i--)
        if (!locks[i].waiter && slot_user_of(&slots, &locks[i]))
            locks[0] = locks[i];
    describe(&locks[0], &lf, &rec, &slots, info);
    free(slots.all);
    return true;
}

bool file_lease_holder(struct file_place *p, struct dlock_info *info)
{
    struct proc_locks_file lf;
    struct proc_lock lease;
    int fd, n;

    if (file_open(p, FILE_TO_NAME, &fd, NULL) < 0 || fd < 0)
        return false;
    n = proc_locks_file(fd, &lf);
    close(fd);
    lf.kind = PROC_LOCKS_LEASE;
    if (n < 0 || proc_locks_read(&lf, &lease, 1) != 1 || lease.waiter)
        return false;
    proc_locks_describe(&lease, &lf, info);
    return true;
}

/* fcntl(2) answers without taking the lock. 0: free, EWOULDBLOCK: held, *shared says how; else an errno. */
static int ask_fcntl(int fd, bool *shared)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

    if (fcntl(fd, F_OFD_GETLK, &l) != 0)
        return errno;
    *shared = l.l_type == F_RDLCK;
    return l.l_type == F_UNLCK ? 0 : EWOULDBLOCK;
}

/* 0: free, EWOULDBLOCK: held, *shared says how; else an errno. */
static int try_flock(int fd, bool *shared)
{
    int sys = flock_try(fd, LOCK_EX, false);

    /* NFS needs a writable descriptor for LOCK_EX; without it we can only detect an exclusive holder. */
    if (sys != EWOULDBLOCK && sys != EBADF && sys != EIO)
        return sys;
    int sh = flock_try(fd, LOCK_SH, false);
    *shared = sh == 0 && sys == EWOULDBLOCK;
    return *shared ? EWOULDBLOCK : sh;
}

/* Test the lock. 1: held, *shared says how; 0: free; negative: error. */
static int probe(struct file_place *p, bool *shared, struct dlock_error *err)
{
    int fd, sys, rc = file_open(p, FILE_TO_PROBE, &fd, err);

    if (rc < 0 || fd < 0)
        return rc;
    *shared = false;
    sys = p->fcntl ? ask_fcntl(fd, shared) : try_flock(fd, shared);
    close(fd);
    if (sys != 0 && sys != EWOULDBLOCK)
        return dlock_fail(err, DLOCK_EOS, sys, "cannot test the lock on %s%s%s: %s", p->path,
                          p->named ? "/" : "", p->lock, strerror(sys));
    return sys == EWOULDBLOCK;
}

/*
 * Try the lock itself. If no process here has it open, an exclusive holder has most likely written the record: only
 * another program than dlock would not have, and that cannot be distinguished from a dlock in another container.
 */
static int add_unknown(struct file_place *p, const struct proc_locks_file *lf,
                       const struct file_record *rec, struct file_holders *out,
                       struct dlock_error *err)
{
    bool shared = false;
    int rc = probe(p, &shared, err);
    struct dlock_info *info = &out->info[0];

    out->n = 0;
    if (rc <= 0)
        return rc;
    out->n = 1;
    proc_locks_describe(&(struct proc_lock){.shared = shared}, lf, info);
    if (info->pid == 0 && !shared) {
        info->foreign = rec->fence == 0;
        info->pid = rec->info.pid;
        memcpy(info->host, rec->info.host, sizeof(info->host));
    }
    add_record(rec, info->pid, info);
    return 0;
}

/* All that is known, holders first: n entries of /proc/locks, and the users of slots that are not among them. */
static int add_known(const struct proc_lock *locks, int n, const struct proc_locks_file *lf,
                     const struct file_record *rec, struct slot_users *slots,
                     struct file_holders *out, struct dlock_error *err)
{
    struct dlock_info *all = realloc(out->info, (size_t)(n + slots->n + 1) * sizeof(*all));

    if (!all)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    out->info = all;
    for (int waiter = 0; waiter < 2; waiter++) {
        for (int i = 0; i < n; i++)
            if (locks[i].waiter == waiter)
                describe(&locks[i], lf, rec, slots, &all[out->n++]);
        for (int i = 0; i < slots->n; i++)
            if (slots->all[i].waiter == waiter && slots->all[i].pid != 0)
                describe_slot(slots, &slots->all[i], lf, &all[out->n++]);
    }
    return 0;
}

/* Slots in use are known without a look at /proc/locks. To open the file wakes their waiters: only if it is in use. */
static void probe_slots(struct file_place *p, struct slot_users *u)
{
    int fd;

    *u = (struct slot_users){0};
    if (file_open(p, FILE_TO_PROBE, &fd, NULL) < 0 || fd < 0)
        return;
    read_slots(p, fd, u);
    close(fd);
}

/* /proc/locks has been read: n entries or -errno. believe: a missing one means "free". */
static int add_all(struct file_place *p, const struct proc_lock *locks, int n, bool believe,
                   const struct proc_locks_file *lf, struct file_holders *out,
                   struct dlock_error *err)
{
    struct slot_users slots = {0};
    struct file_record rec;
    int rc = 0;

    /* As -n would find it. Nobody else has the file open then. */
    if (n == 0 && lf->exact && file_lease_holder(p, &out->info[0])) {
        out->n = 1;
        return 0;
    }
    read_record(p, &rec);
    if (n > 0 || !believe)
        probe_slots(p, &slots);
    n = n > 0 ? n : 0;
    bool slot_held = slots.n > 0 && !slots.all[0].waiter;
    bool held = slot_held || (n > 0 && !locks[0].waiter);
    /* Entries in /proc/locks are true; a missing entry means "free" only where it is complete. */
    if ((!held || !lf->exact) && !slot_held && !believe) {
        rc = add_unknown(p, lf, &rec, out, err);
        if (!held || out->n == 0) {
            free(slots.all);
            return rc;
        }
        out->n = 0;
    }
    rc = add_known(locks, n, lf, &rec, &slots, out, err);
    free(slots.all);
    return rc;
}

int file_status(struct file_place *p, struct file_holders *out, struct dlock_error *err)
{
    struct proc_lock *locks = malloc(USERS_MAX * sizeof(*locks));
    struct proc_locks_file lf = {0};
    const char *type;
    bool warn;
    int fd, n, rc;

    *out = (struct file_holders){.info = calloc(1, sizeof(*out->info))};
    if (!locks || !out->info) {
        free(locks);
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    }
    rc = file_open(p, FILE_TO_NAME, &fd, err);
    out->no_file = rc == 0 && fd < 0;
    if (rc == 0 && fd >= 0) {
        n = proc_locks_file(fd, &lf);
        lf.kind = kind_of(p);
        if (n == 0)
            n = proc_locks_read(&lf, locks, USERS_MAX);
        /* fstatfs works with an O_PATH descriptor. */
        bool believe =
            n >= 0 && lf.exact && !file_on_network(fd, &type, &warn) && proc_locks_complete();
        close(fd);
        rc = add_all(p, locks, n, believe, &lf, out, err);
    }
    free(locks);
    return rc;
}
