/*
 * status.c - the holders of a file lock and its waiters.
 *
 * /proc/locks answers without touching the lock. Only where it may be incomplete (another PID
 * namespace, a network file system, btrfs) the lock itself is tried for a moment; a "flock -n" in that
 * moment finds it held.
 */
#include "file.h"

#include "util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define PLOCKS_MAX 256

/*
 * Complete info with the record beside a named lock, if pid, the process that took the lock, wrote it. That may be a
 * dlock that has ended while its command keeps the descriptor: who has it now is in info already, if anybody knows.
 */
static void add_record(const struct file_record *rec, long pid, struct dlock_info *info)
{
    if (rec->fence == 0 || info->waiter || info->mode != DLOCK_EXCLUSIVE || rec->info.pid != pid)
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

bool file_first_holder(const struct file_place *p, int fd, long pid, struct dlock_info *info,
                       int *place)
{
    struct proc_lock locks[PLOCKS_MAX];
    struct proc_locks_file lf;
    struct file_record rec;
    int n;

    *place = 0;
    if (proc_locks_file(fd, &lf) < 0)
        return false;
    n = proc_locks_read(&lf, locks, PLOCKS_MAX);
    for (int i = 0; i < n && *place == 0; i++)
        if (locks[i].waiter && locks[i].pid == pid)
            *place = locks[i].place;
    if (n <= 0 || locks[0].waiter)
        return false;
    proc_locks_describe(&locks[0], &lf, info);
    read_record(p, &rec);
    add_record(&rec, locks[0].pid, info);
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
    lf.lease = true;
    if (n < 0 || proc_locks_read(&lf, &lease, 1) != 1 || lease.waiter)
        return false;
    proc_locks_describe(&lease, &lf, info);
    return true;
}

/* Try the lock. 1: held, *shared says how; 0: free; negative: error. */
static int probe(struct file_place *p, bool *shared, struct dlock_error *err)
{
    int fd, sys, rc = file_open(p, FILE_TO_PROBE, &fd, err);

    if (rc < 0 || fd < 0)
        return rc;
    *shared = false;
    sys = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    /* NFS needs a writable descriptor for LOCK_EX; without it we can only detect an exclusive holder. */
    if (sys == EWOULDBLOCK || sys == EBADF || sys == EIO) {
        bool busy = sys == EWOULDBLOCK;
        sys = flock(fd, LOCK_SH | LOCK_NB) == 0 ? 0 : errno;
        *shared = sys == 0 && busy;
    }
    close(fd);
    if (sys != 0 && sys != EWOULDBLOCK)
        return dlock_fail(err, DLOCK_EOS, sys, "cannot test the lock on %s%s%s: %s", p->path,
                          p->named ? "/" : "", p->lock, strerror(sys));
    return sys == EWOULDBLOCK || *shared;
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

int file_status(struct file_place *p, struct file_holders *out, struct dlock_error *err)
{
    struct proc_lock locks[PLOCKS_MAX];
    struct proc_locks_file lf = {0};
    struct file_record rec;
    const char *type;
    bool warn, believe;
    int fd, n, rc;

    *out = (struct file_holders){0};
    rc = file_open(p, FILE_TO_NAME, &fd, err);
    if (rc < 0 || fd < 0)
        return rc;
    rc = proc_locks_file(fd, &lf);
    n = rc < 0 ? rc : proc_locks_read(&lf, locks, PLOCKS_MAX);
    /* fstatfs works with an O_PATH descriptor. */
    believe = n >= 0 && lf.exact && !file_on_network(fd, &type, &warn);
    close(fd);
    out->info = calloc((size_t)(n > 0 ? n : 1), sizeof(*out->info));
    if (!out->info)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    /* As -n would find it. Nobody else has the file open then. */
    if (n == 0 && lf.exact && file_lease_holder(p, &out->info[0])) {
        out->n = 1;
        return 0;
    }
    read_record(p, &rec);
    /* Entries in /proc/locks are true; a missing entry means "free" only where it is complete. */
    if (n <= 0 || locks[0].waiter || !lf.exact) {
        bool is_free = believe && proc_locks_complete();
        rc = is_free ? 0 : add_unknown(p, &lf, &rec, out, err);
        if (n <= 0 || out->n == 0 || locks[0].waiter)
            return rc;
    }
    for (int i = 0; i < n; i++) {
        proc_locks_describe(&locks[i], &lf, &out->info[i]);
        add_record(&rec, locks[i].pid, &out->info[i]);
    }
    out->n = n;
    return 0;
}
