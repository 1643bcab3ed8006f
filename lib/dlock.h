/*
 * dlock.h - libdlock, the engine of dlock(1) for C programs.
 *
 * A handle names one lock in one store. It is driven either by the host
 * program's own loop (dlock_interest, poll, dlock_process) or by the blocking
 * calls at the end of this file, which are built on the former.
 *
 * The library prints nothing, never exits, installs no signal handler and keeps
 * no global state. (One exception: dlock_open() of a postgres:// lock sets the
 * environment variable PGGSSENCMODE to "disable", unless it is set.) A handle
 * belongs to one thread at a time.
 *
 * WARNING: dlock(1) has a second process (the guard) that ends the command
 * before the lease ends, even when dlock itself is stopped or killed. A program
 * that uses the library has no guard. A thread that is not scheduled cannot
 * notice that its lease is over: check dlock_time_left() before each step that
 * needs the lock, and pass dlock_fence() to the system that you write to, so
 * that it can refuse a holder that came too late.
 *
 * Times are int64_t nanoseconds. Points in time are on CLOCK_BOOTTIME. A time
 * service may slew that clock: the times of a lease have their equals on
 * CLOCK_MONOTONIC_RAW, and what comes first counts (struct dlock_times).
 */
#ifndef DLOCK_H
#define DLOCK_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#define DLOCK_VERSION "0.1.0"

#define DLOCK_NEVER INT64_MAX
#define DLOCK_MSEC INT64_C(1000000)
#define DLOCK_SEC INT64_C(1000000000)

/* Every failure: name, exit code of dlock(1), whether the same call may succeed later, meaning. */
#define DLOCK_ERRORS(X)                                                                            \
    X(USAGE, 64, 0, "the request is not well-formed")                                              \
    X(DATA, 65, 0, "foreign data under the lock's name")                                           \
    X(UNAVAIL, 69, 1, "the store cannot be reached")                                               \
    X(NOBACKEND, 69, 0, "no backend for this kind of store")                                       \
    X(UNUSABLE, 69, 0, "the store was reached, but cannot be used")                                \
    X(OS, 71, 0, "the operating system refused")                                                   \
    X(NOMEM, 71, 1, "out of memory")                                                               \
    X(CREATE, 73, 0, "the lock cannot be created")                                                 \
    X(BUSY, 75, 1, "the lock is held by others")                                                   \
    X(PROTO, 76, 0, "the store's answer is not its protocol")                                      \
    X(PERM, 77, 0, "authentication or permission refused")                                         \
    X(LOST, 79, 0, "the lock was lost")

enum dlock_error_index {
#define X(name, exit, retry, text) DLOCK_IX_##name,
    DLOCK_ERRORS(X)
#undef X
        DLOCK_ERROR_COUNT
};

enum dlock_error_code {
    DLOCK_OK = 0,
#define X(name, exit, retry, text) DLOCK_E##name = -(DLOCK_IX_##name + 1),
    DLOCK_ERRORS(X)
#undef X
};

/*
 * A failure: code (DLOCK_E*), sys (an errno, or 0) and one line that says what
 * failed, where, and what to do. The message never holds a password. Functions
 * take a pointer to one as their last parameter; it may be NULL, and is
 * untouched on success. The caller owns it.
 */
struct dlock_error {
    int code, sys;
    char msg[512];
};

/* The exit code of dlock(1) for a DLOCK_E* code; 0 for DLOCK_OK. */
int dlock_error_exit(int code);
/* The short text of a code, "DLOCK_EBUSY" style name, and whether a later try may succeed. */
const char *dlock_error_text(int code);
const char *dlock_error_name(int code);
bool dlock_error_retryable(int code);

/*
 * Who may hold the lock together. An exclusive holder is alone. Any number of shared holders stand together, and beside
 * the holders of slots, of which there are at most as many as each of them says (dlock_options.slots).
 */
enum dlock_mode { DLOCK_EXCLUSIVE, DLOCK_SHARED, DLOCK_SLOTS };
#define DLOCK_MAX_SLOTS 1000

/* How many descriptors one lock polls at most: two for each of 15 servers, and some. */
#define DLOCK_POLL_MAX 40
#define DLOCK_TOKEN_LEN 32 /* 128 bits in hexadecimal */

/* One holder or waiter, as the store knows it. Unknown: "", 0, -1. */
struct dlock_info {
    bool waiter;  /* false: a holder */
    bool foreign; /* the program is not dlock */
    bool
        over; /* of a holder: it has released the lock, which stays held until its min_hold_ns have passed */
    int place; /* of a waiter: 1 is next, 0 unknown */
    enum dlock_mode mode;
    unsigned slots; /* DLOCK_SLOTS: how many there are; 0 unknown */
    int slot;       /* DLOCK_SLOTS: which one a holder has, counted from 1; 0 unknown */
    long pid;
    /*
     * Unix milliseconds, when a holder was granted the lock, or when a waiter came. By the wall clock of that
     * process or of the store: for display only.
     */
    int64_t since_ms;
    int64_t waited_ms; /* how long a holder waited for the grant; -1 unknown */
    int64_t left_ns; /* rest of the lease by the store's clock; -1 unknown, DLOCK_NEVER unlimited */
    uint64_t fence;  /* fencing token; 0 none */
    char token[DLOCK_TOKEN_LEN + 1];
    char host[256], user[64], command[256], note[256]; /* no control characters, valid UTF-8 */
};

/*
 * The record of the last run with dlock_options.once_ns. RUNNING under a free lock: that run has crashed, or was lost.
 */
enum dlock_run_state { DLOCK_RUN_RUNNING, DLOCK_RUN_FAILED, DLOCK_RUN_SUCCEEDED };

/* Times: Unix milliseconds by the store's clock. Unknown: "", 0, -1. */
struct dlock_run {
    enum dlock_run_state state;
    int status; /* how it ended: 0 to 255, 128 + N for signal N; -1 while it runs, or where nobody could tell */
    int64_t begin_ms, end_ms; /* end_ms: 0 while it runs */
    int64_t
        age_ns; /* since its end, or since its begin while it runs, as of now by the store's clock; at least 0 */
    int64_t kept_ns; /* its writer's once_ns: how long the record is kept */
    uint64_t fence;  /* of the hold; 0: none */
    long pid;
    char token[DLOCK_TOKEN_LEN + 1];                   /* of the hold: names this record */
    char host[256], user[64], command[256], note[256]; /* no control characters, valid UTF-8 */
};

enum dlock_on_lost { DLOCK_LOST_TERM, DLOCK_LOST_KILL, DLOCK_LOST_WARN };

/*
 * When the holder of a file lock is looked for. That reads /proc, and may take as long as thousands of flock(2) calls.
 * Other stores name it by themselves.
 */
enum dlock_holder {
    DLOCK_HOLDER_WAITING, /* 1 s after the wait began, then every 5 s, and for BUSY */
    DLOCK_HOLDER_BUSY,    /* for BUSY only */
    DLOCK_HOLDER_NEVER
};

/*
 * How to lock. Start from DLOCK_OPTIONS_INIT. grace_ns is the time between
 * "end the work" (term_at) and "the work is killed" (kill_at); it is a part of
 * the ttl.
 */
struct dlock_options {
    enum dlock_mode mode;
    unsigned
        slots; /* DLOCK_SLOTS: how many holders at a time, 1 to DLOCK_MAX_SLOTS; the same for all of them */
    int64_t ttl_ns;   /* lease; at least 1 s; default 30 s */
    int64_t grace_ns; /* -1: min(5 s, ttl/6) */
    int64_t
        wait_ns; /* 0: one try; DLOCK_NEVER: unbounded; bounds name look-up and connecting too */
    int64_t connect_timeout_ns; /* first contact; default 5 s */
    bool
        retry; /* a store that cannot be reached at first contact is tried again for as long as wait_ns allows */
    bool fcntl; /* bare files: an open file description lock (fcntl(2)) instead of flock(2) */
    enum dlock_holder holder;
    /*
     * Skip the work if it has succeeded within this time: the acquire ends with DLOCK_R_SKIPPED then, and dlock_note_result()
     * before the release says how the work has ended. 0: no record is read or written. Exclusive locks only; of the store,
     * Redis, Redlock, PostgreSQL's lease table, ZooKeeper and named files have records.
     */
    int64_t once_ns;
    /* From the grant on the lock stays held for so long, also if it is released before: see dlock_min_hold_left(). */
    int64_t min_hold_ns;
    const char *command, *note; /* for the holder record that others see; copied; may be NULL */
};
/* clang-format 14 and 19 disagree here. */
/* clang-format off */
#define DLOCK_OPTIONS_INIT                                                                         \
    {                                                                                              \
        .mode = DLOCK_EXCLUSIVE,                                                                   \
        .ttl_ns = 30 * DLOCK_SEC,                                                                  \
        .grace_ns = -1,                                                                            \
        .wait_ns = DLOCK_NEVER,                                                                    \
        .connect_timeout_ns = 5 * DLOCK_SEC,                                                       \
    }
/* clang-format on */

/* When a held lease needs what (see "TIMELINE" in dlock(1)); the times are DLOCK_NEVER where the store has no lease. */
struct dlock_times {
    int64_t renew_at; /* the next renewal */
    int64_t term_at;  /* the work under the lock is asked to end */
    int64_t kill_at;  /* the work is killed */
    int64_t hard_at;  /* a kernel timer kills the guard, and with it the command */
    int64_t deadline; /* no other holder is possible before this */
    /*
     * Each of these times has also passed when CLOCK_MONOTONIC_RAW has reached it plus this. It is the difference of
     * the clocks at the moment from which the lease counts.
     */
    int64_t raw_minus_boot;
};

enum dlock_how {
    DLOCK_REL_CLEAN,    /* the store confirmed the release */
    DLOCK_REL_NOT_OURS, /* the store says the lock was no longer ours: it was lost */
    DLOCK_REL_UNCLEAR,  /* no answer, or a refusal: the lease expires by itself */
    DLOCK_REL_NOTHING   /* nothing was held */
};

enum dlock_report_type {
    DLOCK_R_NONE,
    /* info: a holder (may be NULL); kept; place: ours in the queue, -1: not looked yet, more follows */
    DLOCK_R_WAITING,
    DLOCK_R_ACQUIRED, /* times, fence, token: work may start */
    DLOCK_R_BUSY, /* ends acquire: held by others, or wait_ns has passed; info (may be NULL); kept */
    DLOCK_R_SKIPPED, /* ends acquire: with once_ns the work has succeeded already; run. Nothing is held */
    DLOCK_R_EXTENDED, /* times moved */
    /*
     * Held: half of the time to term_at has passed without a renewal; error: why; since: the last confirmed request.
     * (ZooKeeper: half of the time from when a renewal was due.)
     * Waiting: there is no connection; error: why; since: when that began. Once, until RECOVERED or an end.
     */
    DLOCK_R_TROUBLE,
    DLOCK_R_RECOVERED, /* the TROUBLE is over; since: as there */
    DLOCK_R_TERM,      /* term_at passed without a renewal: end the work; renewals go on */
    DLOCK_R_LOST,      /* stop at once: certain loss (error.code DLOCK_ELOST), or kill_at passed */
    DLOCK_R_RELEASED,  /* how */
    DLOCK_R_INFO,      /* info: one holder or waiter, in answer to a status query */
    DLOCK_R_RUN,       /* run: the record of --once, in answer to a status query; at most one */
    DLOCK_R_DONE, /* ends a status query, or dlock_start_forget(): there is no such record now */
    /*
     * error.msg. error.code 0: a detail, for -v only; DLOCK_ELOST: the lock may not exclude others; else a warning about
     * how the store is set up.
     */
    DLOCK_R_NOTICE,
    DLOCK_R_FAILED /* ends acquire, a status query or dlock_start_forget(): error */
};

/* error.msg of TROUBLE, TERM, LOST and RELEASED is the cause alone: see dlock_where() and dlock_name() for the rest. */
struct dlock_report {
    enum dlock_report_type type;
    struct dlock_times times;
    uint64_t fence;
    const char *token; /* valid until close */
    enum dlock_how how;
    int place;
    bool kept;     /* info could share the lock with us, but an earlier waiter is next */
    int64_t since; /* by dlock_now() */
    const struct dlock_info *info; /* valid until the next call on the handle */
    const struct dlock_run *run;   /* the same */
    struct dlock_error error;      /* DONE: msg is why the lock is free ("no such file"), or "" */
};

typedef struct dlock dlock;

/*
 * dlock_open - make a handle for the lock that uri names. Checks everything that
 * can be checked without I/O on the store (the URI, its parameters, ttl against
 * grace); may read a password file and load a module.
 * uri: see LOCK in dlock(1), without "@name" (dlock_default_uri resolves that).
 * Both arguments are copied. Returns 0, or a negative code with err filled and
 * *out untouched.
 */
int dlock_open(dlock **out, const char *uri, const struct dlock_options *, struct dlock_error *err);

/* dlock_start_acquire - begin to acquire; ends with exactly one of ACQUIRED, BUSY, FAILED. Only on an idle handle. */
void dlock_start_acquire(dlock *);

/*
 * dlock_start_release - release the lock, or cancel the acquire or query under
 * way; legal in every state, also twice. Ends with RELEASED, at the latest at the
 * time until.
 */
void dlock_start_release(dlock *, int64_t until);

/* dlock_start_status - ask for holders and waiters; INFO..., then DONE or FAILED. Only on an idle handle. */
void dlock_start_status(dlock *);

/*
 * dlock_start_forget - remove the record of the last run, if it is still the one with this token (struct dlock_run). Ends
 * with DONE (removed, or there was none), BUSY (that run goes on), or FAILED (DLOCK_EBUSY: it is another record now). Only
 * on an idle handle.
 */
void dlock_start_forget(dlock *, const char *token);

/*
 * dlock_note_result - before the release, with once_ns: how the work has ended. status: as in struct dlock_run. Without it
 * the record says that the run has failed. The store writes it in the step that releases the lock: where the release is
 * not confirmed (DLOCK_REL_CLEAN), the success may not be recorded.
 */
void dlock_note_result(dlock *, bool success, int status);

/*
 * dlock_min_hold_left - with min_hold_ns: how long the caller must go on holding the lock before it releases it. 0 where
 * the store has an expiry and keeps the lock by itself (Redis, Redlock, lease table).
 */
int64_t dlock_min_hold_left(const dlock *);
/* dlock_end_min_hold - the next release frees the lock at once, whatever is left of min_hold_ns. */
void dlock_end_min_hold(dlock *);

/*
 * dlock_interest - what to poll for. Fills at most cap entries (DLOCK_POLL_MAX
 * are enough), and sets *wake_at to the time at which dlock_process must run even
 * if poll() finds nothing (DLOCK_NEVER: none). Returns the number of entries.
 */
int dlock_interest(dlock *, struct pollfd *, int cap, int64_t *wake_at);

/*
 * dlock_process - handle what poll() found, and the times that have passed.
 * Returns 1 and one report, or 0. After a 1, call again with n = 0 until it
 * returns 0. Never blocks.
 */
int dlock_process(dlock *, const struct pollfd *, int n, struct dlock_report *);

/*
 * dlock_time_left - how long no other holder is possible, by the clock that says less (CLOCK_BOOTTIME or
 * CLOCK_MONOTONIC_RAW); 0 when nothing is held or the lease is over, DLOCK_NEVER where it cannot expire.
 */
int64_t dlock_time_left(const dlock *);
/* The end of the current lease by CLOCK_BOOTTIME, 0 when nothing is held; the fencing token (0: none); the owner token. */
int64_t dlock_deadline(const dlock *);
uint64_t dlock_fence(const dlock *);
const char *dlock_token(const dlock *);
/*
 * dlock_slot - DLOCK_SLOTS: which of the slots is held, 0 to slots - 1: no other holder has it at the same time. -1: none
 * is held, or the store does not number them (ZooKeeper).
 */
int dlock_slot(const dlock *);
/* The lock's name, the store without secrets ("redis://host:6379/0"), and the backend's name. */
const char *dlock_name(const dlock *);
const char *dlock_where(const dlock *);
const char *dlock_backend_name(const dlock *);
/*
 * dlock_is_local - true where the kernel keeps the lock on a descriptor, and it
 * cannot expire. Then dlock_fd is that descriptor, once held; else -1. It stays
 * the handle's.
 */
bool dlock_is_local(const dlock *);
int dlock_fd(const dlock *);

/*
 * dlock_session_fd - the connection whose end frees the lock at once (PostgreSQL's
 * advisory locks), once held; else -1. Give a copy to a process that must end
 * before another holder may start: as long as the copy is open, the death of this
 * process does not free the lock before its ttl. Do not read or write it.
 */
int dlock_session_fd(const dlock *);

/*
 * dlock_schema - the SQL statement that creates what this lock needs in its store.
 * *out is malloc'ed; no I/O. Returns 0, or DLOCK_EUSAGE (this kind of store needs
 * no preparation), DLOCK_ENOMEM; then *out is untouched.
 */
int dlock_schema(const dlock *, char **out, struct dlock_error *err);

/*
 * dlock_close - free the handle (NULL is fine). Sends nothing: a held lease expires by itself. Blocks briefly at most.
 * A thread that waits for a silent name, directory or Kerberos server ends later by itself. Exit handlers of the
 * libraries that it uses may destroy what it still needs: exit by _exit(2) after a lock that could not be reached.
 */
void dlock_close(dlock *);

/* dlock_now - CLOCK_BOOTTIME: counts the time that a machine sleeps, and never jumps (but may be slewed). */
int64_t dlock_now(void);

/*
 * dlock_default_uri - the URI for "@name": in store, the value of $DLOCK_STORE,
 * unless it is NULL or empty; then a file in the machine's lock directory, which
 * is made if it is missing. *out is malloc'ed, the caller's, and may hold a
 * password. Returns 0, or a negative code with err filled and *out untouched.
 */
int dlock_default_uri(char **out, const char *name, const char *store, struct dlock_error *err);

/* -------------------------------------------------------- several locks --- */

/*
 * A set of handles, all of whose locks are held or none. They are taken one after the other in an order that is the same
 * in every process (by the lock's name, the kind of store and the store), so that two processes that need the same locks
 * do not wait for each other in a circle. Where one lock has two spellings that order may differ: a process that holds
 * some of its locks and gets no other one within 10 s gives them back, and begins again after a random pause.
 */
typedef struct dlock_set dlock_set;
#define DLOCK_SET_MAX 16

/*
 * dlock_set_open - make a set of n idle handles, 1 to DLOCK_SET_MAX, each with the mode, the ttl and the grace of its own.
 * wait_ns: as in dlock_options, for the whole set; those of the handles count no more. Takes the handles over: from now
 * on only dlock_set_close() closes them, and only the set is driven. Returns 0, or DLOCK_EUSAGE (a lock is there twice,
 * or too many), DLOCK_ENOMEM; then the handles are the caller's still, and *out is untouched.
 */
int dlock_set_open(dlock_set **out, dlock *const *locks, int n, int64_t wait_ns,
                   struct dlock_error *err);
/* dlock_set_start_acquire - as dlock_start_acquire(). */
void dlock_set_start_acquire(dlock_set *);
/* dlock_set_start_release - as dlock_start_release(); begins with the lock that was taken last. */
void dlock_set_start_release(dlock_set *, int64_t until);
/* dlock_set_interest - as dlock_interest(); a set of n handles needs n times DLOCK_POLL_MAX entries. */
int dlock_set_interest(dlock_set *, struct pollfd *, int cap, int64_t *wake_at);
/*
 * dlock_set_process - as dlock_process(). *which: the lock that the report is about, or NULL: all of them (ACQUIRED,
 * EXTENDED, and the RELEASED at the end). The times are the earliest of all locks; fence and token are those of *which.
 * A lock whose release is not confirmed has a RELEASED of its own before that of the set, whose how is the worst.
 * Before ACQUIRED, a NOTICE says that locks are given back, and why. SKIPPED of one lock ends the acquire of all of them.
 */
int dlock_set_process(dlock_set *, const struct pollfd *, int n, struct dlock_report *,
                      const dlock **which);
/* dlock_set_time_left - the least dlock_time_left() of all locks; 0 unless all of them are held. */
int64_t dlock_set_time_left(const dlock_set *);
/* dlock_set_at - the i-th handle of dlock_set_open(), for its name, fence, token, slot and descriptors; NULL past the last. */
const dlock *dlock_set_at(const dlock_set *, int i);
/* dlock_set_close - free the set and its handles, as dlock_close(). NULL is fine. */
void dlock_set_close(dlock_set *);

/* ------------------------------------------------------------- blocking --- */

/*
 * dlock_acquire - acquire, waiting for as long as the options say. Returns 0, DLOCK_SKIPPED (with once_ns: the work has
 * succeeded already, and nothing is held), DLOCK_EBUSY, or another error.
 */
#define DLOCK_SKIPPED 1
int dlock_acquire(dlock *, struct dlock_error *err);

/*
 * dlock_keep - renew until the time until. Returns 0 at that time if the lock is
 * still held, DLOCK_ELOST as soon as it is lost or term_at has passed.
 */
int dlock_keep(dlock *, int64_t until, struct dlock_error *err);

/*
 * dlock_release - release within timeout_ns. Returns 0, DLOCK_ELOST (it was not ours), DLOCK_EUNAVAIL (no answer), or
 * why the store has refused it.
 */
int dlock_release(dlock *, int64_t timeout_ns, struct dlock_error *err);

#endif
