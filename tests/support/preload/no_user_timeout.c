/*
 * no_user_timeout.c - LD_PRELOAD, for a PostgreSQL server without TCP_USER_TIMEOUT, as on other
 * systems than Linux. A session by TCP has no timers, so it does not end when idle, as before
 * version 14.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

static bool by_tcp;

int setsockopt(int fd, int level, int option, const void *value, socklen_t len)
{
    if (level == IPPROTO_TCP && option == TCP_USER_TIMEOUT) {
        by_tcp = true;
        errno = ENOPROTOOPT;
        return -1;
    }
    return (int)syscall(SYS_setsockopt, fd, level, option, value, len);
}

int setitimer(__itimer_which_t which, const struct itimerval *new, struct itimerval *old)
{
    return by_tcp ? 0 : (int)syscall(SYS_setitimer, which, new, old);
}
