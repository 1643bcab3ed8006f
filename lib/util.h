/* util.h - small helpers shared by the core, the backends and the program. */
#ifndef DLOCK_UTIL_H
#define DLOCK_UTIL_H

#include "backend.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>

/*
 * error.c: fill err (if not NULL) with code, sys and a one-line message, in which control
 * characters are replaced and secrets hidden: "WHERE (ADDRESS): CAUSE (lock 'NAME')". A part that
 * is NULL is left out; without a site there is only the cause. Returns code.
 */
struct dlock_site {
    const char *where; /* the store (dlock_uri.where) or a server of the store */
    const char *address, *lock;
};
int dlock_fail_site(struct dlock_error *err, int code, int sys, const struct dlock_site *,
                    const char *fmt, ...) __attribute__((format(printf, 5, 6)));
#define dlock_fail(err, code, sys, ...) dlock_fail_site(err, code, sys, NULL, __VA_ARGS__)
/* "WHERE: CAUSE" */
#define dlock_fail_at(err, code, sys, place, ...)                                                  \
    dlock_fail_site(err, code, sys, &(struct dlock_site){.where = place}, __VA_ARGS__)
/* "WHERE: CAUSE (lock 'NAME')", with WHERE and NAME from the URI. */
#define dlock_fail_lock(err, code, sys, uri, ...)                                                  \
    dlock_fail_site(err, code, sys,                                                                \
                    &(struct dlock_site){.where = (uri)->where, .lock = (uri)->name}, __VA_ARGS__)
/* Add the store and the lock, unless the message names them. */
void dlock_error_add_lock(struct dlock_error *, const struct dlock_uri *);
/*
 * Set *out to the failure err with "ADDRESS: CAUSE" or "CAUSE" as its message, for a text that
 * names the store and the lock already. An error of another place than where keeps its WHERE. Only
 * the functions above make an error with a cause.
 */
void dlock_error_cause(struct dlock_error *out, const struct dlock_error *err, const char *where);

/* The exit code of dlock(1) for a DLOCK_E* code; 0 for DLOCK_OK. */
int dlock_error_exit(int code);

/*
 * clock.c: both clocks at one moment. A time service may slew CLOCK_BOOTTIME by up to 10 %, but
 * CLOCK_MONOTONIC_RAW does not count the sleep of a machine. A lease is over when either clock says
 * so.
 */
struct dlock_clocks {
    int64_t boot, raw;
};
/* As raw_minus_boot: only CLOCK_BOOTTIME counts. With a minus: all times have passed. */
#define DLOCK_RAW_NEVER (DLOCK_NEVER / 2)
/* raw is read first: when boot shows some time, CLOCK_MONOTONIC_RAW has reached raw at least. */
struct dlock_clocks dlock_clocks_read(const struct dlock_env *);
/*
 * A time t of a lease has passed, by either clock, when the result is at least t. raw_minus_boot:
 * of the lease's dlock_times.
 */
static inline int64_t dlock_later_clock(struct dlock_clocks now, int64_t raw_minus_boot)
{
    int64_t by_raw = now.raw - raw_minus_boot;
    return now.boot > by_raw ? now.boot : by_raw;
}
/* The same by the clocks of this machine. */
int64_t dlock_lease_now(int64_t raw_minus_boot);
/* The wall clock, Unix ns: people on any machine read it. At least 1 ms: 0 says "unknown". */
int64_t dlock_wall(void);
/* Between kill_at and deadline: a kernel timer kills the guard, and so the command. */
static inline int64_t dlock_hard_at(const struct dlock_times *t)
{
    return t->deadline == DLOCK_NEVER ? DLOCK_NEVER : t->deadline - (t->deadline - t->kill_at) / 2;
}
/*
 * How long to wait when a time of a lease is left ns away: a part of left, since the kernel waits
 * by a clock that is slewed like CLOCK_BOOTTIME, and CLOCK_MONOTONIC_RAW must not pass the time
 * either. Then look again.
 */
static inline int64_t dlock_wait_part(int64_t left)
{
    return left < DLOCK_MSEC ? left : left - left / 10;
}

/*
 * The time-out for poll(2) until a time, rounded up, so that a loop never wakes too early and
 * spins. At most an hour; -1 for DLOCK_NEVER.
 */
static inline int dlock_poll_ms(int64_t now, int64_t until)
{
    if (until == DLOCK_NEVER)
        return -1;
    if (until <= now)
        return 0;
    int64_t ms = (until - now + DLOCK_MSEC - 1) / DLOCK_MSEC;
    return ms > 3600000 ? 3600000 : (int)ms;
}

/* token.c: a fresh owner token, DLOCK_TOKEN_LEN hexadecimal digits. 0 or a negative errno. */
int dlock_token_new(const struct dlock_env *, char out[DLOCK_TOKEN_LEN + 1]);

/*
 * identity.c: the holder record as stores keep it:
 *   "dlock1 host=web1 pid=123 user=root since=1790000000000 waited=0 cmd=backup.sh%20-v note="
 * Values are percent-encoded (everything but unreserved characters and "/:@,+"). A reader skips
 * unknown keys, so that later versions can add some. At most 900 bytes. A mark appends " broken=MS
 * by=BREAKER" where a store keeps the mark in the record.
 */
enum dlock_record {
    RECORD_WAITS, /* of a waiter: since= is the start of the wait */
    RECORD_HOLDS  /* of a holder: since= is now, the grant; waited=MS: how long the wait took */
};
/* The length, or -1 if the record does not fit. A long command is cut first, then a long note. */
int dlock_identity_format(const struct dlock_identity *, enum dlock_record, char *buf, size_t size);
/*
 * False: text is not such a record, *info is untouched. Else sets host, user, command, note, pid,
 * since_ms and waited_ms; and from a mark broken_by and broken_ms.
 */
bool dlock_identity_parse(const char *text, size_t len, struct dlock_info *);
/*
 * The record of this process, with a dlock_identity_begin(). Reads /etc/passwd; asks no directory
 * server. command and note may be NULL.
 */
void dlock_identity_init(struct dlock_identity *, const char *command, const char *note);
/*
 * Who breaks a hold, for the mark and for dlock_info.broken_by: 'root@db1, note "stuck"'. A reader
 * of the mark cleans the text (dlock_clean_text): any client of the store may have written it.
 */
#define DLOCK_BREAKER_SIZE sizeof((struct dlock_info){0}.broken_by)
const char *dlock_breaker(const struct dlock_identity *, char buf[DLOCK_BREAKER_SIZE]);
/* The error of EV_RENEWED with broken: 'by root@db1 ...'. by: the text of the mark. */
void dlock_broken(struct dlock_error *, const struct dlock_spec *, const char *by, size_t len);
/* The home directory of the record's user by /etc/passwd, malloc'ed; NULL: none, or no memory. */
char *dlock_home_dir(void);
/*
 * Has this process more rights than the user who may have set its environment? Root below sudo, and
 * whatever the kernel marks so (setuid, setgid, file capabilities).
 */
bool dlock_env_is_foreign(void);
/* The name of a user, by /etc/passwd; "uid:NUMBER" without one. */
void dlock_user_name(unsigned long uid, char *buf, size_t size);
/* The wait for the lock starts: sets since_ms and since. The core calls it before each acquire. */
void dlock_identity_begin(struct dlock_identity *);
/* Do both describe one hold? a and b are holders, seen at different times. */
bool dlock_same_hold(const struct dlock_info *a, const struct dlock_info *b);
/*
 * Copy at most size-1 bytes, cut at a character boundary; control characters and invalid UTF-8
 * become '?'.
 */
void dlock_clean_text(char *dst, size_t size, const char *src, size_t len);
/* The same of a sentence, such as a server's: what is too long ends behind a word, with " ...". */
void dlock_clean_words(char *dst, size_t size, const char *src, size_t len);
/*
 * The length in bytes of the character at s. *good: valid UTF-8 and no control character; otherwise
 * the length is the number of bytes to skip. len is at least 1.
 */
size_t dlock_text_char(const char *s, size_t len, bool *good);
/* The value of a hexadecimal digit, or -1. */
static inline int dlock_hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 32);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}
/* The byte that "%XX" at s stands for, or -1; end: of the text. */
static inline int dlock_percent(const char *s, const char *end)
{
    int hi = end - s > 2 && *s == '%' ? dlock_hex(s[1]) : -1, lo = hi >= 0 ? dlock_hex(s[2]) : -1;
    return lo >= 0 ? hi << 4 | lo : -1;
}

/*
 * secret.c: the first line of a password file, malloc'ed; the caller overwrites it before freeing
 * it. The file, and a link in its place, must belong to root or to this user; the group may read
 * the file, but not write to it, and others have no access. 0, or DLOCK_EPERM with the reason,
 * DLOCK_ENOMEM.
 */
int dlock_read_secret(char **out, const char *path, struct dlock_error *err);
/*
 * The whole text of a file of root or of this user that others cannot write, and that has at most
 * 4 KiB; malloc'ed, for the caller to overwrite. what: for messages. Results as above.
 */
int dlock_read_config(char **out, const char *path, const char *what, struct dlock_error *err);
/* Overwrite and free s, which may be a secret or NULL. */
void dlock_wipe(char *s);
/* Is the value of a parameter with this name a secret? */
bool dlock_names_secret(const char *name, size_t len);
/*
 * Put "***" in place of each secret in a text of one line: between "://" and the last '@' of any
 * word, and the value of a parameter with "password", "secret" and the like in its key. cut: the
 * end of the text is missing. Breaks commands to CI systems, too, such as "##vso[".
 */
void dlock_hide_secrets(char *text, bool cut);
/* The same in place for ps(1), with the length unchanged: each byte becomes 'x'. */
void dlock_blank_secrets(char *text);
/*
 * The same for a LOCK, a single word, blanks included. The name behind the last '#' may have a '@'.
 */
void dlock_blank_lock(char *lock);

/* duration.c: digits alone, and no number above INT64_MAX. False: *out is not to be used. */
bool dlock_read_number(const char *s, size_t len, int64_t *out);
/* duration.c: "10", "0.5", "500ms", "1.5m", "2h", "1d" -> ns >= 0. 0, or DLOCK_EUSAGE with text. */
int dlock_parse_duration(const char *text, int64_t *ns, struct dlock_error *err);
/* "30 s", "1.5 s", "250 ms": for messages. */
const char *dlock_format_duration(int64_t ns, char *buf, size_t size);

/*
 * backoff.c: full-jitter exponential back-off. next() gives the next pause in ns, between base/2
 * and the current cap, doubling up to max; reset() after success.
 */
struct dlock_backoff {
    int64_t base, max, cur;
};
void dlock_backoff_reset(struct dlock_backoff *);
int64_t dlock_backoff_next(struct dlock_backoff *, const struct dlock_env *);

/*
 * thread.c: start a thread that no signal reaches: signals go to the caller's threads. stack: in
 * bytes; 0: the default. The caller joins or detaches the thread. 0 or an errno.
 */
int dlock_thread_start(pthread_t *, size_t stack, void *(*run)(void *), void *arg);
/*
 * thread.c: a thread for the blocking calls of a library that connects, and a socket pair between
 * the thread and its caller: a side tells the other by a byte, or by the end of its own side.
 */
struct dlock_helper {
    pthread_t thread;
    int fd, thread_fd; /* the caller's end; the thread's */
    ino_t thread_ino;  /* tells whether thread_fd is still the thread's end */
};
/* *h is set before the thread runs, except for its thread. 0 or a negative errno. */
int dlock_helper_start(struct dlock_helper *h, void *(*run)(void *), void *arg);
/* Close one's end, which the other side notices. The thread's last call, with its thread_fd. */
void dlock_helper_close(int fd);
/* The caller knows that the thread has only to return: close, and wait for it. */
void dlock_helper_join(struct dlock_helper);
/*
 * The thread ends at once, or when a call of its library returns. The program may exit then, and
 * exit handlers of OpenSSL destroy data in use: so wait for the thread, but for 20 ms at most. A
 * copy, since the thread may free the original with its own memory.
 */
void dlock_helper_leave(struct dlock_helper);
/* In a child process, which has no such thread. */
void dlock_helper_close_in_child(const struct dlock_helper *);

/*
 * resolve.c: names to addresses in helper threads, one for each host of the URI. getaddrinfo(3) has
 * no time-out: freeing the resolver leaves an unfinished thread behind, which owns its memory.
 */
struct dlock_resolver;
/* 0, or DLOCK_ENOMEM, DLOCK_EOS. Numeric addresses need no thread. */
int dlock_resolver_start(struct dlock_resolver **, const struct dlock_uri *, struct dlock_error *);
/* Readable when a look-up has ended; -1: all have. */
int dlock_resolver_fd(const struct dlock_resolver *);
/*
 * Once all look-ups have ended: frees the resolver, which becomes NULL. partly: the results of the
 * ended look-ups suffice, the rest go on. 1: *peers (malloc'ed, the caller's) and *n; a host
 * without a new address keeps those that stood there. 0: not yet; negative: no address at all, the
 * message names a host.
 */
int dlock_resolver_result(struct dlock_resolver **, bool partly, struct dlock_peer **peers, int *n,
                          struct dlock_error *);
void dlock_resolver_free(struct dlock_resolver *);
/* In a child process, which has no such threads: frees the resolver, closes its descriptor. */
void dlock_resolver_close_in_child(struct dlock_resolver *);

/*
 * options.c: the options of a caller, of the caller's size; NULL: the defaults. 0, or DLOCK_EUSAGE.
 */
int dlock_options_read(struct dlock_options *, const struct dlock_options *from,
                       struct dlock_error *);

/*
 * poller.c: one descriptor that is readable when a descriptor of a changing set is ready, or a time
 * has come.
 */
struct poller;
/* How often to look at descriptors that cannot be watched. */
#define POLLER_LOOK_AGAIN (20 * DLOCK_MSEC)
/* The descriptor. Where *p is NULL, it is made first, and readable. Or DLOCK_ENOMEM, DLOCK_EOS. */
int poller_fd(struct poller **p, struct dlock_error *);
/* What to wait for: as of dlock_interest(). The descriptors of the last update may be closed. */
void poller_update(struct poller *, const struct pollfd *, int n, int64_t wake_at);
/* Readable until the next update. */
void poller_kick(struct poller *);
void poller_close(struct poller *); /* NULL is fine; also in a child process */

/* A time in the future: now + ns, which may be DLOCK_NEVER. */
static inline int64_t dlock_after(int64_t now, int64_t ns)
{
    return ns >= DLOCK_NEVER - now ? DLOCK_NEVER : now + ns;
}

/* A send that failed with this errno may go later: no room, or the kernel has no memory now. */
static inline bool dlock_may_send_later(int e)
{
    return e == EAGAIN || e == EWOULDBLOCK || e == ENOBUFS || e == ENOMEM;
}

#define DLOCK_LEN(a) (sizeof(a) / sizeof((a)[0]))
static inline int64_t dlock_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t dlock_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif
