/*
 * log.c - see log.h. The form of a line is that of syslog(3), without the time's zone and the host
 * (RFC 3164). A connection per line: no descriptor is open beside the command, and a log that is
 * started again gets the next line.
 */
#include "log.h"

#include "messages.h"
#include "util.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

/* As syslog(3) in most libraries; what is longer loses its end. */
#define LINE_MAX_BYTES 1024

int log_facility(const char *name)
{
    static const struct {
        const char *name;
        int value;
    } known[] = {{"cron", LOG_CRON},     {"daemon", LOG_DAEMON},     {"user", LOG_USER},
                 {"auth", LOG_AUTH},     {"authpriv", LOG_AUTHPRIV}, {"mail", LOG_MAIL},
                 {"local0", LOG_LOCAL0}, {"local1", LOG_LOCAL1},     {"local2", LOG_LOCAL2},
                 {"local3", LOG_LOCAL3}, {"local4", LOG_LOCAL4},     {"local5", LOG_LOCAL5},
                 {"local6", LOG_LOCAL6}, {"local7", LOG_LOCAL7}};

    for (size_t i = 0; i < DLOCK_LEN(known); i++)
        if (strcmp(known[i].name, name) == 0)
            return known[i].value;
    return -1;
}

/* The log is a datagram socket, or in old systems a stream of lines that end with a NUL. */
static void deliver(const char *line, size_t len, int wait_ms)
{
    static const int types[] = {SOCK_DGRAM, SOCK_STREAM};
    const struct sockaddr_un log = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};

    for (size_t i = 0; i < DLOCK_LEN(types); i++) {
        int fd = socket(AF_UNIX, types[i] | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        bool open = fd >= 0 && connect(fd, (const struct sockaddr *)&log, sizeof(log)) == 0;
        bool other = fd >= 0 && !open && errno == EPROTOTYPE;

        if (open && poll(&p, 1, wait_ms) == 1)
            (void)!send(fd, line, len + (types[i] == SOCK_STREAM), MSG_NOSIGNAL);
        if (fd >= 0)
            close(fd);
        if (!other)
            return;
    }
}

void log_put(int facility, int priority, int wait_ms, const char *fmt, ...)
{
    char line[LINE_MAX_BYTES], stamp[32] = "";
    time_t now = time(NULL);
    struct tm tm;
    va_list ap;

    if (localtime_r(&now, &tm))
        strftime(stamp, sizeof(stamp), "%b %e %H:%M:%S", &tm);
    int at = snprintf(line, sizeof(line), "<%d>%s dlock[%d]: ", facility | priority, stamp,
                      (int)getpid());
    va_start(ap, fmt);
    bool good = message_text(line + at, sizeof(line) - (size_t)at, fmt, ap);
    va_end(ap);
    if (good)
        deliver(line, strlen(line), wait_ms);
}
