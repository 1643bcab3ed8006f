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

#include "dlock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

#define AT (INT64_C(1) << 62)
#define PIDS (INT64_C(1) << 32)
#define NUMBER AT
#define WAITERS (AT + PIDS)
#define SLOTS (AT + 2 * PIDS)

static int set(int fd, short type, int64_t start, int64_t len)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len};

    if (fcntl(fd, F_OFD_SETLK, &l) == 0)
        return 0;
    return errno == EACCES ? EWOULDBLOCK : errno;
}

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
    int sys = set(fd, F_RDLCK, NUMBER + n, 1);
    /* Each caller looks again after it has registered, so one of two sees the different number. */
    if (sys == 0)
        *in_use = number_but(fd, n);
    return sys;
}

int slots_take(int fd, unsigned n, long pid, int *slot)
{
    for (unsigned i = 0; i < n; i++) {
        int sys = set(fd, F_WRLCK, SLOTS + i * PIDS, pid);
        if (sys == EWOULDBLOCK)
            continue;
        if (sys == 0) {
            *slot = (int)i;
            set(fd, F_UNLCK, WAITERS, PIDS);
        }
        return sys;
    }
    return EWOULDBLOCK;
}

void slots_show_waiter(int fd, long pid)
{
    set(fd, F_RDLCK, WAITERS + pid, 1);
}

void slots_drop(int fd)
{
    set(fd, F_UNLCK, AT, 0);
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
    struct flock l;

    *slots =
        find(fd, NUMBER + 1, NUMBER + DLOCK_SLOTS_MAX + 1, &l) ? (unsigned)(l.l_start - NUMBER) : 0;
    if (*slots == 0)
        return 0;
    int n = list(fd, SLOTS, SLOTS + *slots * PIDS, out, max);
    return n + list(fd, WAITERS, WAITERS + PIDS, out + n, max - n);
}
