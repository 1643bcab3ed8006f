/*
 * events.c - the events of a run as lines of JSON.
 *
 * The schema is in dlock-formats(5), EVENTS. VERSION changes when a reader of the old schema would
 * misunderstand the new schema, not when a key or an event is added. Keys have the same names as in
 * --status --json. The owner token is left out: a program with the token can pass for the owner.
 *
 * A line has at most SINK_LINE bytes. The limits of the texts, here and in kind.c, with quotes and
 * backslashes doubled, keep the longest line ("waiting") below SINK_LINE.
 */
#include "events.h"

#include "json.h"
#include "kind.h"
#include "messages.h"
#include "sink.h"
#include "util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#define VERSION 1
#define LAST_FLUSH_MS 100

/* Of the system's log, as in most libraries: what is longer loses its end. */
#define LOG_LINE 1024

/* The longest text in a line, in bytes of JSON. */
#define PLACE_MAX 900 /* lock, store */
#define SET_MAX 260   /* set */
#define REASON_MAX 1030
#define PART_MAX 500 /* address, database, parameters */

struct events {
    struct sink *sink;  /* NULL: only for the log */
    int facility;       /* of the log, or 0 */
    char *lock, *store; /* NULL: not known yet */
    char *set;          /* the first of lock: the name of LOCK, whatever --also adds */
    int64_t began;
    int64_t granted, released; /* 0: not yet */
    uint64_t fence;
    unsigned long renewals;
    bool terminal; /* message_draw() may have drawn a line there */
    bool ended;
};

struct line {
    struct json j;
    char text[SINK_LINE + 1]; /* and a NUL */
};

int events_open(struct events **out, const char *where, int facility, struct dlock_error *err)
{
    struct events *e;
    *out = NULL;
    if (!where && facility == 0)
        return 0;
    e = calloc(1, sizeof(*e));
    if (!e)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    int rc = where ? sink_open(&e->sink, where, err) : 0;
    if (rc < 0) {
        free(e);
        return rc;
    }
    e->facility = facility;
    e->terminal = where && isatty(sink_fd(e->sink));
    e->began = dlock_now();
    *out = e;
    return 0;
}

int events_fd(const struct events *e)
{
    return e && e->sink ? sink_fd(e->sink) : -1;
}

void events_start_thread(struct events *e)
{
    if (e && e->sink)
        sink_start_thread(e->sink);
}

void events_set_lock(struct events *e, const char *lock, const char *store)
{
    if (!e)
        return;
    free(e->lock);
    free(e->store);
    e->lock = strdup(lock);
    e->store = strdup(store);
    if (!e->set)
        e->set = strdup(lock);
}

/* ------------------------------------------------------------- lines --- */

/* In milliseconds, rounded down. */
static void put_ms(struct json *j, const char *key, int64_t ns)
{
    json_int(j, key, dlock_max(0, ns) / DLOCK_MSEC);
}

/* False: out of memory, or no line is wanted. */
static bool begin_about(struct events *e, struct line *l, const char *event, const char *lock,
                        const char *store)
{
    char time[40]; /* "2026-11-20T16:00:03.123Z" */
    struct timespec now;
    struct tm tm;
    if (!e->sink)
        return false;
    l->j = (struct json){.f = fmemopen(l->text, sizeof(l->text), "w")};
    if (!l->j.f) {
        sink_drop(e->sink);
        return false;
    }
    json_open(&l->j, NULL, '{');
    json_int(&l->j, "v", VERSION);
    json_str(&l->j, "event", event);
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(time, sizeof(time), "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(time + n, sizeof(time) - n, ".%03dZ", (int)(now.tv_nsec / DLOCK_MSEC));
    json_str(&l->j, "time", time);
    json_int(&l->j, "pid", getpid());
    json_known(&l->j, "lock", lock ? lock : "", PLACE_MAX);
    json_known(&l->j, "store", store ? store : "", PLACE_MAX);
    json_known(&l->j, "set", lock && e->set && strcmp(lock, e->set) != 0 ? e->set : "", SET_MAX);
    return true;
}

static bool begin(struct events *e, struct line *l, const char *event)
{
    return begin_about(e, l, event, e->lock, e->store);
}

static void finish(struct events *e, struct line *l, bool last)
{
    json_close(&l->j, '}');
    putc('\n', l->j.f);
    long n = ftell(l->j.f);
    bool whole = !ferror(l->j.f);
    if (e->terminal)
        message_erase();
    if (fclose(l->j.f) != 0 || !whole || n <= 0 || n > SINK_LINE)
        sink_drop(e->sink);
    else
        sink_put(e->sink, l->text, (size_t)n, last);
}

/* ------------------------------------------------------------- start --- */

void events_start(struct events *e, const struct dlock_uri *u, const char *path)
{
    char params[PART_MAX], address[PLACE_MAX];
    const char *hosts = strstr(u->where, "://");
    struct line l;
    if (!e)
        return;
    events_set_lock(e, u->name, u->where);
    if (!begin(e, &l, "start"))
        return;
    json_str(&l.j, "kind", u->scheme);
    json_known(&l.j, "path", path, PLACE_MAX);
    if (!*path && hosts) {
        size_t n = u->nhosts > 0 ? strcspn(hosts + 3, "/") : strlen(hosts + 3);
        snprintf(address, sizeof(address), "%.*s", (int)n, hosts + 3);
        json_known(&l.j, "address", address, PART_MAX);
        json_known(&l.j, "database", hosts[3 + n] ? hosts + 3 + n + 1 : "", PART_MAX);
    }
    json_known(&l.j, "parameters", dlock_uri_params_text(u, params, sizeof(params)), PART_MAX);
    finish(e, &l, false);
}

/*
 * A line for the system's log: "got redis://h:6379/0: 'nightly'; after 3 s", in the form of
 * syslog(3), without the time's zone and the host (RFC 3164). A line for which the log has no room
 * within wait_ms, or no reader, is dropped; syslog(3) waits without limit. A connection per line:
 * no descriptor is open beside the command, and a log that is started again gets the next line.
 */
static void put_log(const struct events *e, int priority, const char *event, const char *more,
                    int wait_ms)
{
    /* The log is a datagram socket, or in old systems a stream of lines that end with a NUL. */
    static const int types[] = {SOCK_DGRAM, SOCK_STREAM};
    const struct sockaddr_un log = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};
    const char *lock = e && e->lock ? e->lock : "", *store = e && e->store ? e->store : lock;
    bool same = strcmp(lock, store) == 0, known = lock[0];
    char line[LOG_LINE], text[LOG_LINE], stamp[32] = "";
    time_t now = time(NULL);
    struct tm tm;
    if (!e || !e->facility)
        return;
    if (localtime_r(&now, &tm))
        strftime(stamp, sizeof(stamp), "%b %e %H:%M:%S", &tm);
    size_t at = (size_t)snprintf(line, sizeof(line), "<%d>%s dlock[%d]: ", e->facility | priority,
                                 stamp, (int)getpid());
    int n = snprintf(text, sizeof(text) - at, "%s%s%s%s%s%s%s%s%s", event, known ? " " : "",
                     same ? "" : store, same ? "" : ": ", known ? "'" : "", lock, known ? "'" : "",
                     more[0] ? "; " : "", more);
    message_clean(line + at, sizeof(line) - at, text, (size_t)n >= sizeof(text) - at);
    for (size_t i = 0; i < DLOCK_LEN(types); i++) {
        int fd = socket(AF_UNIX, types[i] | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        bool open = fd >= 0 && connect(fd, (const struct sockaddr *)&log, sizeof(log)) == 0;
        bool other = fd >= 0 && !open && errno == EPROTOTYPE;
        if (open && poll(&p, 1, wait_ms) == 1)
            (void)!send(fd, line, strlen(line) + (types[i] == SOCK_STREAM), MSG_NOSIGNAL);
        if (fd >= 0)
            close(fd);
        if (!other)
            return;
    }
}

/* -------------------------------------------------------------- wait --- */

void events_waiting(struct events *e, const char *lock, const char *store,
                    const struct dlock_info *holder, int place, int64_t now)
{
    struct line l;
    if (!e || !begin_about(e, &l, "waiting", lock, store))
        return;
    put_ms(&l.j, "wait_ms", now - e->began);
    if (place > 0)
        json_int(&l.j, "place", place);
    if (holder) {
        json_open(&l.j, "holder", '{');
        kind_json_holder(&l.j, holder, true);
        json_fence(&l.j, holder->fence);
        json_close(&l.j, '}');
    }
    finish(e, &l, false);
}

void events_turn(struct events *e)
{
    if (e && e->sink)
        sink_flush(e->sink, 0);
}

int events_interest(const struct events *e, struct pollfd *p)
{
    return e && e->sink ? sink_interest(e->sink, p) : 0;
}

/* -------------------------------------------------------------- hold --- */

void events_granted(struct events *e, const struct dlock_info *held, int64_t left, int64_t now)
{
    struct line l;
    char waited[32], after[48];
    if (!e)
        return;
    e->granted = now;
    e->fence = held->fence;
    snprintf(after, sizeof(after), "after %s",
             dlock_format_duration(now - e->began, waited, sizeof(waited)));
    put_log(e, LOG_INFO, "got", after, 0);
    if (!begin(e, &l, "granted"))
        return;
    put_ms(&l.j, "wait_ms", now - e->began);
    kind_json(&l.j, held);
    json_fence(&l.j, held->fence);
    if (left != DLOCK_NEVER)
        put_ms(&l.j, "lease_left_ms", left);
    finish(e, &l, false);
}

void events_renewed(struct events *e)
{
    if (e)
        e->renewals++;
}

void events_trouble(struct events *e, const char *why, int64_t since, int64_t term_in, int64_t now)
{
    struct line l;
    if (!e || !begin(e, &l, "trouble"))
        return;
    put_ms(&l.j, "for_ms", now - since);
    if (term_in >= 0)
        put_ms(&l.j, "term_in_ms", term_in);
    json_known(&l.j, "reason", why, REASON_MAX);
    finish(e, &l, false);
}

/* A line with a time, unless key is NULL, and with a reason, unless why is "". */
static void tell(struct events *e, const char *event, const char *key, int64_t ns, const char *why)
{
    struct line l;
    if (!e || !begin(e, &l, event))
        return;
    if (key)
        put_ms(&l.j, key, ns);
    json_known(&l.j, "reason", why, REASON_MAX);
    finish(e, &l, false);
}

void events_recovered(struct events *e, int64_t since, int64_t now)
{
    tell(e, "recovered", "after_ms", now - since, "");
}

void events_lost(struct events *e, bool broken, const char *why)
{
    struct line l;
    put_log(e, LOG_ERR, broken ? "broken" : "lost", why, 0);
    if (!e || !begin(e, &l, "lost"))
        return;
    if (broken)
        json_str(&l.j, "cause", "broken");
    json_known(&l.j, "reason", why, REASON_MAX);
    finish(e, &l, false);
}

void events_term(struct events *e, int64_t kill_in)
{
    tell(e, "term", "kill_in_ms", kill_in, "");
}

void events_kill(struct events *e)
{
    tell(e, "kill", NULL, 0, "");
}

void events_released(struct events *e, const char *how, int64_t now)
{
    struct line l;
    if (!e || !e->granted)
        return;
    e->released = now;
    if (!begin(e, &l, "released"))
        return;
    put_ms(&l.j, "hold_ms", now - e->granted);
    json_str(&l.j, "how", how);
    finish(e, &l, false);
}

/* --------------------------------------------------------------- end --- */

void events_end(struct events *e, const struct events_end *end, int64_t now)
{
    static const char *const words[] = {
        [EVENTS_EXITED] = "exited",
        [EVENTS_BUSY] = "busy",
        [EVENTS_TIMEOUT] = "timeout",
        [EVENTS_CANCELLED] = "cancelled",
        [EVENTS_LOST] = "lost",
        [EVENTS_OVERRUN] = "overrun",
        [EVENTS_SKIPPED] = "skipped",
        [EVENTS_UNRECORDED] = "unrecorded",
        [EVENTS_UNAVAILABLE] = "unavailable",
        [EVENTS_NOT_RUN] = "not-run",
        [EVENTS_ERROR] = "error",
    };
    const char *reason = end->reason ? end->reason : "", *outcome = words[end->outcome];
    char more[sizeof((struct dlock_error){0}.msg) + 32];
    int64_t until = dlock_now() + LAST_FLUSH_MS * DLOCK_MSEC;
    struct line l;
    if (!e || e->ended)
        return;
    e->ended = true;
    snprintf(more, sizeof(more), "exit code %d%s%s", end->code, *reason ? ": " : "", reason);
    put_log(e, end->code == 0 ? LOG_INFO : LOG_NOTICE, e->granted ? "end" : outcome, more,
            LAST_FLUSH_MS);
    if (!e->sink)
        return;
    sink_flush(e->sink, LAST_FLUSH_MS); /* may drop lines, which "dropped" counts */
    if (!begin(e, &l, "end"))
        return;
    json_str(&l.j, "outcome", outcome);
    put_ms(&l.j, "wait_ms", (e->granted ? e->granted : now) - e->began);
    if (e->granted)
        put_ms(&l.j, "hold_ms", (e->released ? e->released : now) - e->granted);
    json_fence(&l.j, e->fence);
    json_int(&l.j, "renewals", (int64_t)e->renewals);
    if (end->status >= 0 && WIFSIGNALED(end->status))
        json_int(&l.j, "signal", WTERMSIG(end->status));
    else if (end->status >= 0)
        json_int(&l.j, "exit_status", WEXITSTATUS(end->status));
    json_int(&l.j, "exit_code", end->code);
    json_known(&l.j, "reason", reason, REASON_MAX);
    json_int(&l.j, "dropped", (int64_t)sink_dropped(e->sink));
    finish(e, &l, true);
    sink_flush(e->sink, (int)(dlock_max(0, until - dlock_now()) / DLOCK_MSEC));
}

void events_flush(struct events *e)
{
    if (e && e->sink)
        sink_flush(e->sink, LAST_FLUSH_MS);
}

void events_close(struct events *e)
{
    if (!e)
        return;
    sink_close(e->sink);
    free(e->lock);
    free(e->store);
    free(e->set);
    free(e);
}
