/*
 * slot_wait.c - see slot_wait.h. No call waits for one of several byte locks, but every holder ends by closing the file,
 * also when it is killed, and inotify reports that. The kernel does so just before it frees the locks, hence several
 * tries after each event. Now and then it is tried without one: for events that are lost, and for a part of the file
 * that another program has locked and unlocked without closing it.
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
    /* This way it is the very file that is open, whatever its name is now. */
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

/* Which events, and how many, does not matter. */
static bool take_events(int fd)
{
    _Alignas(struct inotify_event) char buf[4096];
    bool any = false;

    while (fd >= 0 && read(fd, buf, sizeof(buf)) > 0)
        any = true;
    return any;
}

bool slot_wait_due(struct slot_wait *w, int64_t now)
{
    if (take_events(w->fd)) {
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
