/*
 * handles.c - how long many handles of one process take: each acquires a lock of its own, all at
 * once, on one epoll(7) set; then all release.
 *
 *     handles COUNT MODE URI    MODE: exclusive, shared, "slots 3"; URI: its name gets ".N"
 *
 * It writes one line: the seconds, and how many releases were confirmed within ten seconds.
 */
#include "lib.h"

#include <sys/epoll.h>

static int count, epfd;
static dlock **locks;

static void open_all(const char *mode, const char *uri)
{
    struct dlock_options *o = dlock_options_new();
    MUST(o && (locks = calloc((size_t)count, sizeof *locks)));
    CODE(dlock_options_set(o, "ttl", "60s", &err), 0);
    CODE(dlock_options_set(o, "wait", "60s", &err), 0);
    CODE(dlock_options_set(o, "connect-timeout", "60s", &err), 0);
    CODE(dlock_options_set(o, "mode", mode, &err), 0);
    for (int i = 0; i < count; i++) {
        char name[512];
        snprintf(name, sizeof name, "%s.%d", uri, i);
        CODE(dlock_open(&locks[i], name, o, &err), 0);
        struct epoll_event e = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        int fd = dlock_poll_fd(locks[i], &err);
        if (fd < 0 || epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &e) != 0)
            FAIL("%d: %s", i, fd < 0 ? err.msg : "epoll_ctl");
    }
    dlock_options_free(o);
}

/* Until each handle has said type, or has ended otherwise; how many said it. */
static int all_say(enum dlock_report_type type, int *clean)
{
    int said = 0, ended = 0;
    while (ended < count) {
        struct epoll_event events[64];
        int n = epoll_wait(epfd, events, 64, -1);
        for (int i = 0; i < n; i++) {
            const struct dlock_report *r;
            while ((r = dlock_dispatch(locks[events[i].data.u32]))) {
                said += r->type == type;
                *clean += r->type == DLOCK_REPORT_RELEASED && r->how == DLOCK_RELEASE_CLEAN;
                ended += r->type == type || r->type == DLOCK_REPORT_FAILED ||
                         r->type == DLOCK_REPORT_BUSY || r->type == DLOCK_REPORT_LOST;
                if (r->type == DLOCK_REPORT_FAILED)
                    fprintf(stderr, "handles: %s\n", r->error.msg);
            }
        }
    }
    return said;
}

static double seconds_since(int64_t begin)
{
    return (double)(dlock_now() - begin) / (double)DLOCK_SEC;
}

int main(int argc, char **argv)
{
    int clean = 0;
    MUST(argc == 4 && (count = atoi(argv[1])) > 0);
    MUST((epfd = epoll_create1(EPOLL_CLOEXEC)) >= 0);
    open_all(argv[2], argv[3]);
    int64_t begin = dlock_now();
    for (int i = 0; i < count; i++)
        CODE(dlock_start_acquire(locks[i], &err), 0);
    int held = all_say(DLOCK_REPORT_ACQUIRED, &clean);
    double acquired = seconds_since(begin);
    begin = dlock_now();
    for (int i = 0; i < count; i++)
        CODE(dlock_start_release(locks[i], begin + 10 * DLOCK_SEC, &err), 0);
    all_say(DLOCK_REPORT_RELEASED, &clean);
    printf("%4d %-9s %4d held in %5.2f s, %4d released in %5.2f s\n", count, argv[2], held,
           acquired, clean, seconds_since(begin));
    return held == count && clean == count ? 0 : 1;
}
