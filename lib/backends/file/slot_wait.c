/*
 * slot_wait.c - see slot_wait.h. No call waits for any of several byte locks, but every holder,
 * also a killed one, ends by closing the file, and inotify reports the close. The kernel sends the
 * event just before the locks are free, hence several tries after each event. A try each second
 * without an event covers lost events, and bytes that a foreign program has locked and unlocked
 * without a close.
 */
#include "slot_wait.h"

#include "util.h"

#include <stdio.h>
#include <sys/inotify.h>
#include <unistd.h>

#define EVERY DLOCK_SEC
/* Without inotify: no instance left for the user (128 by default), or no /proc. */
#define EVERY_BLIND (50 * DLOCK_MSEC)

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
