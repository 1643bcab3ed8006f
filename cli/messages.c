/* messages.c - lines on stderr, without ever blocking. */
#include "messages.h"

#include "util.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/*
 * A holder must never wait for the reader of its messages: a full pipe, or a terminal that Ctrl-S
 * has stopped, would keep the keeper from renewing and from killing. So a line is written only when
 * poll() says that it will not block (a pipe that is writable has room for PIPE_BUF bytes), else it
 * is kept here until there is room; what does not fit here is dropped. One write per line, so that
 * the lines of several processes on one log do not mix.
 */
#define LINE_MAX_BYTES 2048
static char kept[4 * LINE_MAX_BYTES];
static size_t nkept;

static bool writable(int wait_ms)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&p, 1, wait_ms) == 1 && (p.revents & (POLLOUT | POLLERR | POLLNVAL));
}

void message_flush(int wait_ms)
{
    while (nkept > 0 && writable(wait_ms)) {
        const char *end = memchr(kept, '\n', nkept);
        size_t n = end ? (size_t)(end - kept) + 1 : nkept;
        if (write(STDERR_FILENO, kept, n) < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        nkept -= n; /* written, or stderr is closed */
        memmove(kept, kept + n, nkept);
    }
}

static void emit(const char *fmt, va_list ap)
{
    char text[LINE_MAX_BYTES], line[LINE_MAX_BYTES] = "dlock: ";
    size_t at = strlen(line);
    int n = vsnprintf(text, sizeof(text) - at - 1, fmt, ap);
    if (n < 0)
        return;
    /* A command's name may have any byte in it. */
    dlock_clean_text(line + at, sizeof(line) - at - 1, text, strlen(text));
    dlock_hide_secrets(line + at, (size_t)n >= sizeof(text) - at - 1);
    at = strlen(line);
    line[at++] = '\n';
    if (at > sizeof(kept) - nkept)
        return;
    memcpy(kept + nkept, line, at);
    nkept += at;
    message_flush(0);
}

void message(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    emit(fmt, ap);
    va_end(ap);
}

bool message_tells_wait(const struct options *o)
{
    return !o->quiet && (o->verbose || isatty(STDERR_FILENO));
}

void message_took(const char *lock, int64_t since)
{
    int64_t us = (dlock_now() - since) / 1000;

    message("%s: getting lock took %" PRId64 ".%06" PRId64 " seconds", lock, us / 1000000,
            us % 1000000);
}

int message_error(const struct options *o, const struct dlock_error *e)
{
    if (!(o->quiet && e->code == DLOCK_EBUSY))
        message("%s", e->msg);
    return e->code == DLOCK_EBUSY ? o->conflict_code : dlock_error_exit(e->code);
}

/* "2026-11-20 17:00:03 +0100", local time. */
static const char *format_time(int64_t unix_ms, char *buf, size_t size)
{
    time_t t = (time_t)(unix_ms / 1000);
    struct tm tm;
    if (!localtime_r(&t, &tm) || strftime(buf, size, "%Y-%m-%d %H:%M:%S %z", &tm) == 0)
        snprintf(buf, size, "an unknown time");
    return buf;
}

/* Appends to buf; what does not fit is cut. */
static void add(char *buf, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void add(char *buf, size_t size, const char *fmt, ...)
{
    va_list ap;
    size_t at = strlen(buf);
    va_start(ap, fmt);
    vsnprintf(buf + at, size - at, fmt, ap);
    va_end(ap);
}

/* "45 s", "3 min", "5 h", "9 days": rounded down. */
static const char *format_rough(int64_t ms, char *buf, size_t size)
{
    int64_t s = ms / 1000;

    if (s < 120)
        snprintf(buf, size, "%lld s", (long long)s);
    else if (s < 120 * 60)
        snprintf(buf, size, "%lld min", (long long)(s / 60));
    else if (s < 48 * 3600)
        snprintf(buf, size, "%lld h", (long long)(s / 3600));
    else
        snprintf(buf, size, "%lld days", (long long)(s / 86400));
    return buf;
}

/* " since 2026-11-20 17:00:03 +0100 (3 min ago, waited 45 s)"; the clock of another machine may be ahead of ours. */
static void add_since(char *buf, size_t size, const struct dlock_info *i)
{
    char text[64];
    struct timespec now;

    if (i->since_ms <= 0)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t ago = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 - i->since_ms;
    bool waited = i->waited_ms >= 1000;
    add(buf, size, " since %s", format_time(i->since_ms, text, sizeof(text)));
    if (ago >= 0)
        add(buf, size, " (%s ago", format_rough(ago, text, sizeof(text)));
    if (waited)
        add(buf, size, "%swaited %s", ago >= 0 ? ", " : " (",
            format_rough(i->waited_ms, text, sizeof(text)));
    if (ago >= 0 || waited)
        add(buf, size, ")");
}

const char *message_holder(const struct dlock_info *i, char *buf, size_t size)
{
    buf[0] = '\0';
    if (i->pid > 0)
        add(buf, size, "pid %ld", i->pid);
    else if (i->foreign)
        add(buf, size, "a program that is not dlock");
    else
        add(buf, size, "another process");
    if (i->command[0])
        add(buf, size, " (%s)", i->command);
    if (i->host[0])
        add(buf, size, " on %s", i->host);
    if (i->user[0])
        add(buf, size, " by %s", i->user);
    add_since(buf, size, i);
    if (i->note[0])
        add(buf, size, ": %s", i->note);
    dlock_hide_secrets(buf, false);
    return buf;
}
