/* messages.c - see messages.h. */
#include "messages.h"

#include "kind.h"
#include "sink.h"
#include "util.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/*
 * A holder must never wait for the reader of its messages: a full pipe, or a terminal stopped by
 * Ctrl-S, would keep the keeper from renewing and from killing. So a line is written only when
 * poll() says that the write will not block (a writable pipe has room for PIPE_BUF bytes). Until
 * then the line is kept here; a line without room here is dropped. One write per line keeps the
 * lines of several processes on one log apart.
 *
 * A terminal without a reader (ssh without a network, a stopped window) is writable with room for
 * less than a line. So, where possible, the write goes through a non-blocking open file of our own:
 * the flags of stderr belong to the caller.
 */
#define LINE_MAX_BYTES 2048
static char kept[4 * LINE_MAX_BYTES];
static size_t nkept;
static char last[LINE_MAX_BYTES];

static bool writable(int wait_ms)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&p, 1, wait_ms) == 1 && (p.revents & (POLLOUT | POLLERR | POLLNVAL));
}

/* As write(2). */
static ssize_t put(const char *bytes, size_t n)
{
    int own = sink_reopen(STDERR_FILENO);
    ssize_t done = write(own >= 0 ? own : STDERR_FILENO, bytes, n);
    int sys = errno;
    if (own >= 0)
        close(own);
    errno = sys;
    return done;
}

void message_flush(int wait_ms)
{
    while (nkept > 0 && writable(wait_ms)) {
        const char *end = memchr(kept, '\n', nkept);
        size_t n = end ? (size_t)(end - kept) + 1 : nkept;
        ssize_t done = put(kept, n);
        if (done < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        n = done > 0 ? (size_t)done : n; /* stderr is closed: drop the line */
        nkept -= n;
        memmove(kept, kept + n, nkept);
    }
}

static void keep(const char *bytes, size_t n)
{
    if (n > sizeof(kept) - nkept)
        return;
    memcpy(kept + nkept, bytes, n);
    nkept += n;
}

#define ERASE_LINE "\r\033[K"
static bool drawn; /* message_draw() wrote the terminal's last line */

static void keep_erase(void)
{
    if (drawn)
        keep(ERASE_LINE, strlen(ERASE_LINE));
    drawn = false;
}

#define PREFIX "dlock: "

void message_clean(char *buf, size_t room, const char *text, bool cut)
{
    /* The name of a command may hold any byte. */
    dlock_clean_text(buf, room, text, strlen(text));
    dlock_hide_secrets(buf, cut);
}

void message(const char *fmt, ...)
{
    char line[LINE_MAX_BYTES] = PREFIX, text[sizeof(line) - sizeof(PREFIX)];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    /* With room for the end of the line. */
    message_clean(line + strlen(PREFIX), sizeof(text), text, (size_t)n >= sizeof(text));
    snprintf(last, sizeof(last), "%s", line + strlen(PREFIX));
    size_t len = strlen(line);
    line[len++] = '\n';
    keep_erase();
    keep(line, len);
    message_flush(0);
}

/* ---------------------------------------------------------- terminal --- */

/* Room for "^C", which the terminal echoes: a line that wraps cannot be erased. */
#define ECHO_COLUMNS 3
#define USUAL_COLUMNS 80

bool message_could_draw(void)
{
    const char *term = getenv("TERM");
    return term && *term && strcmp(term, "dumb") != 0 && isatty(STDERR_FILENO);
}

bool message_draws(void)
{
    return message_could_draw() && tcgetpgrp(STDERR_FILENO) == getpgrp();
}

int message_fit(char *text, int columns)
{
    enum { DOTS = 3 };
    size_t len = strlen(text), at = 0, cut = 0;
    int used = 0, shown = 0, dots = columns > DOTS ? DOTS : 0;
    while (at < len) {
        bool good;
        /* Latin, Greek, Cyrillic and the like have 1 column, later scripts 2 at most. */
        int more = (unsigned char)text[at] < 0xE1 ? 1 : 2;
        if (used + more > columns)
            break;
        used += more;
        at += dlock_text_char(text + at, len - at, &good);
        if (used <= columns - DOTS) {
            cut = at;
            shown = used;
        }
    }
    if (at == len)
        return used;
    snprintf(text + cut, len - cut + 1, "%.*s", dots, "...");
    return shown + dots;
}

void message_draw(const char *text)
{
    char line[LINE_MAX_BYTES] = PREFIX, out[LINE_MAX_BYTES + 8];
    struct winsize size;
    int columns = USUAL_COLUMNS;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        columns = size.ws_col;
    message_flush(0);
    if (nkept > 0 || !writable(0))
        return;
    message_clean(line + strlen(PREFIX), sizeof(line) - strlen(PREFIX), text,
                  strlen(text) + sizeof(PREFIX) > sizeof(line));
    message_fit(line, columns - ECHO_COLUMNS);
    int n = snprintf(out, sizeof(out), "\r%s\033[K", line);
    drawn = put(out, (size_t)n) > 0 || drawn;
}

void message_erase(void)
{
    keep_erase();
    message_flush(0);
}

/* -------------------------------------------------------- what is said --- */

const char *message_last(void)
{
    return last;
}

bool message_tells(const struct options *o, enum message_subject about)
{
    enum verbosity { QUIET, PLAIN, TALKATIVE, VERBOSE };
    static const enum verbosity least[] = {
        [ABOUT_ERROR] = QUIET,    [ABOUT_LOSS] = QUIET,          [ABOUT_TROUBLE] = PLAIN,
        [ABOUT_TIMEOUT] = PLAIN,  [ABOUT_RELEASE] = PLAIN,       [ABOUT_HELD] = TALKATIVE,
        [ABOUT_WAIT] = TALKATIVE, [ABOUT_CONDITION] = TALKATIVE, [ABOUT_DETAIL] = VERBOSE,
    };
    const char *ci = getenv("CI"); /* GitLab, GitHub and most CI systems set CI */
    if (o->quiet || o->verbose)
        return (o->quiet ? QUIET : VERBOSE) >= least[about];
    if (ci && *ci && strcmp(ci, "0") != 0 && strcmp(ci, "false") != 0)
        return TALKATIVE >= least[about];
    return (isatty(STDERR_FILENO) ? TALKATIVE : PLAIN) >= least[about];
}

enum message_subject message_about_busy(const struct options *o)
{
    return o->nonblock ? ABOUT_HELD : ABOUT_TIMEOUT;
}

void message_notice(const struct options *o, const struct dlock_error *notice)
{
    enum message_subject about = notice->code == 0             ? ABOUT_DETAIL
                                 : notice->code == DLOCK_ELOST ? ABOUT_TROUBLE
                                                               : ABOUT_CONDITION;
    if (message_tells(o, about))
        message("%s", notice->msg);
}

const char *message_lock(const dlock *lk, const char *words, char buf[LOCK_TEXT_MAX])
{
    const char *name = dlock_name(lk), *where = dlock_where(lk);
    bool same = strcmp(name, where) == 0;
    snprintf(buf, LOCK_TEXT_MAX, "%s%s%s'%s'", same ? "" : where, same ? "" : ": ", words, name);
    return buf;
}

int message_error(const struct options *o, const struct dlock_error *e)
{
    if (message_tells(o, e->code == DLOCK_EBUSY ? message_about_busy(o) : ABOUT_ERROR))
        message("%s", e->msg);
    return e->code == DLOCK_EBUSY ? o->conflict_code : dlock_error_exit(e->code);
}

/* Append to buf; cut a text that is too long. */
static void add(char *buf, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void add(char *buf, size_t size, const char *fmt, ...)
{
    va_list ap;
    size_t at = strlen(buf);
    va_start(ap, fmt);
    vsnprintf(buf + at, size - at, fmt, ap);
    va_end(ap);
}

const char *message_duration(int64_t ns, char *buf, size_t size)
{
    static const struct {
        int64_t s;
        char name;
    } units[] = {{86400, 'd'}, {3600, 'h'}, {60, 'm'}, {1, 's'}};
    int64_t s = dlock_max(ns, 0) / DLOCK_SEC, tenths = ns / (DLOCK_SEC / 10) % 10;
    size_t i = 0;
    if (s == 0) {
        snprintf(buf, size, "%dms", (int)(dlock_max(ns, 0) / DLOCK_MSEC));
        return buf;
    }
    if (s < 10 && tenths > 0) {
        snprintf(buf, size, "%d.%ds", (int)s, (int)tenths);
        return buf;
    }
    while (s < units[i].s)
        i++;
    snprintf(buf, size, "%lld%c", (long long)(s / units[i].s), units[i].name);
    s = i + 1 < DLOCK_LEN(units) ? s % units[i].s / units[i + 1].s : 0;
    if (s > 0)
        add(buf, size, "%lld%c", (long long)s, units[i + 1].name);
    return buf;
}

/* How long ago a time of the wall clock was. Negative: unknown, or later than our clock. */
static int64_t ago_ms(int64_t unix_ms)
{
    return unix_ms <= 0 ? -1 : dlock_wall() / DLOCK_MSEC - unix_ms;
}

/* In whole seconds: the clocks of two machines do not agree to the millisecond. */
static const char *format_ms(int64_t ms, char *buf, size_t size)
{
    if (ms >= 1000)
        return message_duration(ms / 1000 * DLOCK_SEC, buf, size);
    snprintf(buf, size, "0s");
    return buf;
}

/* "root@ci-4, pid 812 (deploy.sh)" */
static void add_who(char *buf, size_t size, const struct dlock_info *i)
{
    const char *unknown = i->foreign ? "a program that is not dlock" : "another process";
    /* A key of Redis: elsewhere a hold without an end is that of a process. */
    if (i->foreign && i->pid <= 0 && i->left_ns == DLOCK_NEVER)
        unknown = "a program that is not dlock, in a key that never expires";
    if (kind_is_unknown(i))
        add(buf, size, "a process that cannot be seen from here");
    else if (i->user[0])
        add(buf, size, "%s%s%s", i->user, i->host[0] ? "@" : "", i->host);
    else if (i->pid <= 0)
        add(buf, size, i->host[0] ? "%s on %s" : "%s%s", unknown, i->host);
    else
        add(buf, size, "%s", i->host);
    if (i->pid > 0)
        add(buf, size, "%s%s %ld", i->user[0] || i->host[0] ? ", " : "",
            i->server_pid ? "server process" : "pid", i->pid);
    if (i->command[0])
        add(buf, size, " (%s)", i->command);
}

/*
 * Hide secrets, and add ", note "disk 2"": the user's text stands last, and in quotes so that its
 * end is clear. Returns buf.
 */
static const char *end_text(char *buf, size_t size, const struct dlock_info *i)
{
    char note[sizeof(i->note)], quoted[2 * sizeof(note)], *q = quoted;
    dlock_hide_secrets(buf, false);
    if (!i->note[0])
        return buf;
    memcpy(note, i->note, sizeof(note));
    dlock_hide_secrets(note, false);
    for (const char *c = note; *c; *q++ = *c++)
        if (*c == '"' || *c == '\\')
            *q++ = '\\';
    *q = '\0';
    add(buf, size, ", note \"%s\"", quoted);
    return buf;
}

const char *message_holder(const struct dlock_info *i, char *buf, size_t size)
{
    static const struct dlock_info unknown;
    char kind[KIND_TEXT_SIZE], text[32];
    i = i ? i : &unknown;
    int64_t ago = ago_ms(i->since_ms);
    snprintf(buf, size, "held%s", kind_text(i, kind));
    if (ago >= 1000)
        add(buf, size, " for %s", format_ms(ago, text, sizeof(text)));
    add(buf, size, " by ");
    add_who(buf, size, i);
    if (i->over)
        add(buf, size, ", ended, kept until its --min-hold is over");
    return end_text(buf, size, i);
}

const char *message_who(const struct dlock_info *i, char *buf, size_t size)
{
    buf[0] = '\0';
    add_who(buf, size, i);
    dlock_hide_secrets(buf, false);
    return buf;
}

const char *message_process(const struct dlock_info *i, char *buf, size_t size)
{
    int64_t ago = ago_ms(i->since_ms);
    bool waited = i->since_ms > 0 && i->waited_ms >= 1000;
    time_t since = (time_t)(i->since_ms / 1000);
    char text[64];
    struct tm tm;
    buf[0] = '\0';
    add_who(buf, size, i);
    if (i->since_ms > 0 && (!localtime_r(&since, &tm) ||
                            strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S %z", &tm) == 0))
        snprintf(text, sizeof(text), "an unknown time");
    if (i->since_ms > 0)
        add(buf, size, ", since %s", text);
    if (ago >= 0)
        add(buf, size, " (%s ago", format_ms(ago, text, sizeof(text)));
    if (waited)
        add(buf, size, "%swaited %s", ago >= 0 ? ", " : " (",
            format_ms(i->waited_ms, text, sizeof(text)));
    if (ago >= 0 || waited)
        add(buf, size, ")");
    return end_text(buf, size, i);
}

const char *message_broken(const struct dlock_info *i, char *buf, size_t size)
{
    int64_t ago = ago_ms(i->broken_ms);
    char text[32];
    snprintf(buf, size, "being broken%s%s", i->broken_by[0] ? " by " : "", i->broken_by);
    dlock_hide_secrets(buf, false);
    if (ago >= 0)
        add(buf, size, ", since %s", format_ms(ago, text, sizeof(text)));
    return buf;
}

const char *message_run(const struct dlock_run *r, bool crashed, char *buf, size_t size)
{
    static const char *const words[] = {[DLOCK_RUN_RUNNING] = "began",
                                        [DLOCK_RUN_FAILED] = "failed",
                                        [DLOCK_RUN_SUCCEEDED] = "succeeded"};
    const struct dlock_info i = kind_of_run(r);
    char text[32];
    snprintf(buf, size, "%s %s %s", words[r->state],
             format_ms((r->age_ns < 0 ? -r->age_ns : r->age_ns) / DLOCK_MSEC, text, sizeof(text)),
             r->age_ns < 0 ? "in the future" : "ago");
    if (r->status > 0 || (r->status == 0 && r->state == DLOCK_RUN_FAILED)) /* see --success-codes */
        add(buf, size, " with status %d", r->status);
    if (crashed)
        add(buf, size, " and did not end: crashed;");
    add(buf, size, " by ");
    add_who(buf, size, &i);
    return end_text(buf, size, &i);
}
