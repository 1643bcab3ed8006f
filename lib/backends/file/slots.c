/*
 * slots.c - see slots.h. The bytes, from AT on, where no file has data:
 *
 *     NUMBER + N           read lock of every holder and waiter with --slots N
 *     WAITERS + PID        read lock of a waiter
 *     SLOTS + i * 2^32     write lock of the holder of slot i, PID bytes long
 *
 * So the kernel alone keeps all state: the kernel frees the bytes of a killed process, and
 * F_OFD_GETLK tells the place and the length of a lock without taking any. The locks of a slot
 * always overlap in its first byte, whatever their length.
 */
#include "slots.h"

#include "flock_wait.h"
#include "util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <unistd.h>

#define AT (INT64_C(1) << 62)
#define PIDS (INT64_C(1) << 32)
#define NUMBER AT
#define WAITERS (AT + PIDS)
#define SLOTS (AT + 2 * PIDS)

/* How often a wait tries again without an event. */
#define EVERY DLOCK_SEC
/* Without inotify: no instance left for the user (128 by default), or no /proc. */
#define EVERY_BLIND (50 * DLOCK_MSEC)

/* Find a foreign lock in [from, to). False: none, or a lock beyond these bytes. */
static bool find(int fd, int64_t from, int64_t to, struct flock *l)
{
    *l = (struct flock){
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = from, .l_len = to - from};
    if (from >= to || fcntl(fd, F_OFD_GETLK, l) != 0 || l->l_type == F_UNLCK)
        return false;
    return l->l_start >= from && l->l_len > 0 && l->l_len <= to - l->l_start;
}

/* The number of slots in use, if different from n; else 0. */
static unsigned number_but(int fd, unsigned n)
{
    struct flock l;
    if (!find(fd, NUMBER + 1, NUMBER + n, &l) &&
        !find(fd, NUMBER + n + 1, NUMBER + DLOCK_SLOTS_MAX + 1, &l))
        return 0;
    return (unsigned)(l.l_start - NUMBER);
}

int slots_register(int fd, unsigned n, unsigned *in_use)
{
    /* First without a lock of our own: a wrong number must not disturb users of the right one. */
    *in_use = number_but(fd, n);
    if (*in_use != 0)
        return 0;
    int sys = ofd_try(fd, F_RDLCK, NUMBER + n, 1);
    /* Each caller looks again after it has registered, so one of two sees the different number. */
    if (sys == 0)
        *in_use = number_but(fd, n);
    return sys;
}

int slots_take(int fd, unsigned n, long pid, int *slot)
{
    for (unsigned i = 0; i < n; i++) {
        int sys = ofd_try(fd, F_WRLCK, SLOTS + i * PIDS, pid);
        if (sys == EWOULDBLOCK)
            continue;
        if (sys == 0) {
            *slot = (int)i;
            ofd_try(fd, F_UNLCK, WAITERS, PIDS);
        }
        return sys;
    }
    return EWOULDBLOCK;
}

void slots_show_waiter(int fd, long pid)
{
    ofd_try(fd, F_RDLCK, WAITERS + pid, 1);
}

void slots_drop(int fd)
{
    ofd_try(fd, F_UNLCK, AT, 0);
}

/* List at most max locks in [from, to), in parts: the kernel names any of several locks. */
static int list(int fd, int64_t from, int64_t to, struct slot_user *out, int max)
{
    struct flock l;
    int n = 0;
    while (find(fd, from, to, &l)) {
        n += list(fd, from, l.l_start, out + n, max - n);
        if (n >= max)
            return n;
        bool waiter = l.l_start < SLOTS;
        out[n++] = (struct slot_user){
            .waiter = waiter,
            .slot = waiter ? 0 : (int)((l.l_start - SLOTS) / PIDS),
            .pid = waiter ? (long)(l.l_start - WAITERS) : (long)l.l_len,
        };
        from = l.l_start + l.l_len;
    }
    return n;
}

int slots_list(int fd, struct slot_user *out, int max, unsigned *slots)
{
    *slots = number_but(fd, 0);
    if (*slots == 0)
        return 0;
    int n = list(fd, SLOTS, SLOTS + *slots * PIDS, out, max);
    return n + list(fd, WAITERS, WAITERS + PIDS, out + n, max - n);
}

/* --- the wait for a free slot ----------------------------------------------------------------- */

/*
 * No call waits for any of several byte locks, but every holder, also a killed one, ends by closing
 * the file, and inotify reports the close. The kernel sends the event just before the locks are
 * free, hence several tries after each event. A try each second without an event covers lost
 * events, and bytes that a foreign program has locked and unlocked without a close.
 */
static const int64_t after[] = {0, 1 * DLOCK_MSEC, 5 * DLOCK_MSEC, 20 * DLOCK_MSEC};

void slot_wait_start(struct slot_wait *w, int lock_fd, int64_t now)
{
    char path[64];
    *w = (struct slot_wait){
        .fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK), .since = now, .try_at = now};
    if (w->fd < 0)
        return;
    /* Watches the open file itself, whatever its name is now. */
    snprintf(path, sizeof(path), "/proc/self/fd/%d", lock_fd);
    if (inotify_add_watch(w->fd, path, IN_CLOSE) < 0)
        slot_wait_end(w);
}

int slot_wait_interest(const struct slot_wait *w, struct pollfd *pfd, int cap, int64_t *wake_at)
{
    *wake_at = dlock_min(*wake_at, w->try_at);
    if (w->fd < 0 || cap < 1)
        return 0;
    *pfd = (struct pollfd){.fd = w->fd, .events = POLLIN};
    return 1;
}

bool slot_wait_due(struct slot_wait *w, int64_t now)
{
    _Alignas(struct inotify_event) char buf[4096];
    while (w->fd >= 0 && read(w->fd, buf, sizeof(buf)) > 0) {
        w->step = 0;
        w->since = w->try_at = now;
    }
    if (now < w->try_at)
        return false;
    if (w->step < (int)DLOCK_LEN(after))
        w->step++;
    w->try_at = w->step < (int)DLOCK_LEN(after) ? w->since + after[w->step]
                                                : now + (w->fd < 0 ? EVERY_BLIND : EVERY);
    return true;
}

void slot_wait_end(struct slot_wait *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
}
