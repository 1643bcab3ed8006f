/*
 * dlock.h - libdlock, the engine of dlock(1) for C programs. See libdlock(3).
 *
 * A handle names one lock in one store, or a set of locks that are held together: see
 * dlock_open_set(). A program drives the handle from its own loop: it polls the descriptors of
 * dlock_interest() and calls dlock_process(), or polls the single descriptor of dlock_poll_fd() and
 * calls dlock_dispatch(). Or it uses the blocking calls at the end of this file. A program that
 * holds a lock must do one of these all the time: nothing else renews the lease.
 *
 * The library prints nothing, never exits, installs no signal handler and keeps no global state.
 * (Exception: dlock_open() of a postgres:// lock that names a service sets the environment variable
 * PGGSSENCMODE to "disable", unless it is set.)
 *
 * Threads: one thread at a time may use a handle; different threads may take turns. Different
 * handles may be used at the same moment. A set counts as one handle with its locks. Any thread
 * may call dlock_time_left() and dlock_deadline() at any time until the close, also while another
 * thread is in a call on the same handle.
 *
 * Fork: a handle belongs to the process that opened it. In a child, dlock_close() closes the
 * child's descriptors and sends nothing; every other call fails with DLOCK_EUSAGE or does nothing.
 * So a child cannot release its parent's lock. All descriptors are close-on-exec. A child that goes
 * on without dlock_close() keeps no lock that its parent releases; but see dlock_fd(). After the
 * death of the parent the child's copy of a descriptor keeps the lock of a file.
 *
 * WARNING: dlock(1) has a second process (the guard) that ends the command before the lease ends,
 * even when dlock itself is stopped or killed. A program that uses the library has no guard. A
 * thread that is not scheduled cannot notice the end of its lease: check dlock_time_left() before
 * each step that needs the lock, and pass dlock_fence() to the system that you write to, which can
 * then refuse a holder that came too late.
 *
 * Memory: without memory a call fails with DLOCK_ENOMEM, and a held lock stays held. But
 * libzookeeper then ends the program (SIGSEGV, or SIGABRT by assert(3)), and the GSSAPI library may
 * crash where libpq uses it: with another gssencmode than "disable", or a server that wants GSSAPI.
 * The library sets no limit. A PostgreSQL or MySQL server decides how long an answer is, and the
 * client library keeps all of it: a hostile server can fill the memory. dlock(1) sets RLIMIT_DATA
 * for itself; where servers are not trusted, the program does so, too.
 *
 * Times are int64_t nanoseconds; DLOCK_NEVER means "without end" as an argument. Points in time are
 * on CLOCK_BOOTTIME (dlock_now()). A time service may slew that clock: so each time of a lease also
 * stands on CLOCK_MONOTONIC_RAW, and passes by the first clock to reach it (struct dlock_times).
 *
 * Growth: struct dlock_options begins with its size. Reports, infos and runs belong to the library,
 * are lent to the caller, and grow at their ends: do not copy a whole structure into a file or to
 * another program. struct dlock_error and struct dlock_times stay unchanged.
 *
 * Pointers must not be NULL unless the text allows NULL.
 */
#ifndef DLOCK_H
#define DLOCK_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DLOCK_VERSION "0.1.0"
#define DLOCK_VERSION_NUMBER 0x000100 /* two digits each: major, minor, patch */

/* The version of the running library, which may differ from this file's. Static. */
const char *dlock_version(void);
unsigned dlock_version_number(void);

#define DLOCK_NEVER INT64_MAX
#define DLOCK_MSEC INT64_C(1000000)
#define DLOCK_SEC INT64_C(1000000000)

/* Every failure. (r): the same call may succeed later; see dlock_error_retryable(). */
enum dlock_error_code {
    DLOCK_OK = 0,
    DLOCK_EUSAGE = -1,     /* the request is malformed, or not possible in the handle's state */
    DLOCK_EDATA = -2,      /* foreign data under the lock's name */
    DLOCK_EUNAVAIL = -3,   /* (r) the store cannot be reached */
    DLOCK_ENOBACKEND = -4, /* no backend for this kind of store */
    DLOCK_EUNUSABLE = -5,  /* the store was reached, but cannot be used */
    DLOCK_EOS = -6,        /* the operating system refused */
    DLOCK_ENOMEM = -7,     /* (r) out of memory */
    DLOCK_ECREATE = -8,    /* the lock cannot be created */
    DLOCK_EBUSY = -9,      /* (r) the lock is held by others */
    DLOCK_EPROTO = -10,    /* the store's answer is not its protocol */
    DLOCK_EPERM = -11,     /* authentication or permission refused */
    DLOCK_ELOST = -12,     /* the lock was lost */
    DLOCK_ECANCELED = -13  /* (r) a blocking call was interrupted by cancel_fd */
};

/*
 * A failure: code (DLOCK_E*), sys (an errno, or 0) and one line that says what failed, where, and
 * what to do. The message never holds a password. The caller owns the structure; a function takes a
 * pointer to it as its last parameter, which may be NULL, and leaves it untouched on success.
 *
 * cause_at and cause_len mark the cause in msg, without the store and the lock, for a message that
 * names both: printf("%.*s", err.cause_len, err.msg + err.cause_at).
 */
struct dlock_error {
    int code, sys;
    char msg[512]; /* "WHERE: CAUSE (lock 'NAME')"; WHERE and the lock may be missing */
    unsigned short cause_at, cause_len;
};

/* The short text of a code, its name ("DLOCK_EBUSY"), and may a later try succeed? Static. */
const char *dlock_error_text(int code);
const char *dlock_error_name(int code);
bool dlock_error_retryable(int code);

/*
 * Who may hold the lock together. An exclusive holder is alone. Any number of shared holders stand
 * together, also beside holders of slots; of these there are at most as many as each of them says
 * (dlock_options.slots).
 */
enum dlock_mode { DLOCK_MODE_EXCLUSIVE, DLOCK_MODE_SHARED, DLOCK_MODE_SLOTS };
#define DLOCK_SLOTS_MAX 1000

/* The most descriptors of a lock: two for each of 15 servers, and some. */
#define DLOCK_POLL_MAX 40
#define DLOCK_TOKEN_LEN 32 /* 128 bits in hexadecimal */

/* A holder or waiter, as the store knows it. Unknown: "", 0, -1. */
struct dlock_info {
    bool waiter;  /* false: a holder */
    bool foreign; /* the program is not dlock */
    bool over;    /* of a holder: released, but held until its min_hold_ns have passed */
    bool silent;  /* of a waiter: stopped or cut off, as it seems; others are served before it */
    int place;    /* of a waiter: 1 is next, 0 unknown */
    enum dlock_mode mode;
    unsigned slots; /* DLOCK_MODE_SLOTS: the number of slots; 0 unknown */
    int slot;       /* DLOCK_MODE_SLOTS: the holder's slot, counted from 1; 0 unknown */
    long pid;
    bool server_pid; /* pid is that of the server's process for this client, whose own is unknown */
    /*
     * Unix milliseconds, when the holder was granted the lock, or the waiter came. By the wall
     * clock of that process or of the store: for display only.
     */
    int64_t since_ms;
    int64_t waited_ms; /* how long a holder waited for the grant; -1 unknown */
    int64_t left_ns; /* rest of the lease by the store's clock; -1 unknown, DLOCK_NEVER unlimited */
    uint64_t fence;  /* fencing token; 0 none */
    char token[DLOCK_TOKEN_LEN + 1];
    char host[256], user[64], command[256], note[256]; /* no control characters, valid UTF-8 */
    /*
     * Of a holder: dlock_start_break() has marked the hold, which ends with the holder's next
     * renewal or with the lease. By whom, 'root@db1, note "stuck"', and when (Unix milliseconds).
     */
    bool broken;
    char broken_by[640];
    int64_t broken_ms;
};

/* A lock in a store, in answer to dlock_start_list(). */
struct dlock_entry {
    const char *name;
    int holders, waiters;            /* how many; -1 unknown */
    const struct dlock_info *holder; /* one of the holders; NULL: free, or not known */
};

/* What dlock_start_check() has found. */
enum dlock_finding {
    DLOCK_FINDING_OK,
    DLOCK_FINDING_WARNING, /* the store works, but the lock is weaker than it could be */
    DLOCK_FINDING_FAILURE  /* a run would fail, with this error */
};

/*
 * The record of the last run with dlock_options.once_ns. RUNNING under a free lock: that run has
 * crashed, or was lost (dlock_report.crashed).
 */
enum dlock_run_state { DLOCK_RUN_RUNNING, DLOCK_RUN_FAILED, DLOCK_RUN_SUCCEEDED };

/* Times: Unix milliseconds by the store's clock. Unknown: "", 0, -1. */
struct dlock_run {
    enum dlock_run_state state;
    int status; /* 0 to 255; 128 + N for signal N; -1 while the run goes on, or unknown */
    int64_t begin_ms, end_ms; /* end_ms: 0 while the run goes on */
    /*
     * Time since the end, or since the begin while the run goes on, by the store's clock. Negative:
     * the record lies more than 1000 s in the future, and counts for nothing.
     */
    int64_t age_ns;
    int64_t kept_ns; /* the writer's once_ns: how long the record is kept */
    uint64_t fence;  /* of the hold; 0: none */
    long pid;
    char token[DLOCK_TOKEN_LEN + 1];                   /* of the hold: names this record */
    char host[256], user[64], command[256], note[256]; /* no control characters, valid UTF-8 */
};

/*
 * When to look for the holder of a file lock. That reads /proc, and may take as long as thousands
 * of flock(2) calls. Other stores name the holder by themselves.
 */
enum dlock_holder {
    DLOCK_HOLDER_WAITING, /* 1 s after the wait began, then every 5 s, and for BUSY */
    DLOCK_HOLDER_BUSY,    /* for BUSY only */
    DLOCK_HOLDER_NEVER
};

/*
 * How to lock. dlock_options_init() fills in the defaults. grace_ns is the time between "end the
 * work" (term_at) and "the work must be dead" (kill_at), a part of the ttl.
 */
struct dlock_options {
    size_t size; /* of this structure, as passed to dlock_options_init() */
    enum dlock_mode mode;
    /* DLOCK_MODE_SLOTS: the most holders at a time, 1 to DLOCK_SLOTS_MAX, as all say; else 0. */
    unsigned slots;
    /*
     * The lease: at least 1 s; default 30 s. More than ten years, DLOCK_NEVER too, count as ten
     * years, as with all times below but wait_ns. PostgreSQL and ZooKeeper refuse more than 24
     * days, MySQL more than a year.
     */
    int64_t ttl_ns;
    int64_t grace_ns; /* -1: min(5 s, ttl/6) */
    /* 0: one try; DLOCK_NEVER: unbounded. Bounds name look-up and connecting, too. */
    int64_t wait_ns;
    int64_t connect_timeout_ns; /* first contact; default 5 s */
    /*
     * Try a store that cannot be reached at first contact again, within wait_ns. dlock_open() waits
     * for nothing, and fails at once where a module is missing.
     */
    bool retry;
    bool fcntl; /* bare files: an open file description lock (fcntl(2)) instead of flock(2) */
    enum dlock_holder holder;
    /*
     * Skip the work if it has succeeded within this time: then the acquire ends with
     * DLOCK_REPORT_SKIPPED. dlock_note_result() before the release says how the work has ended.
     * 0: no record is read or written. Exclusive locks only; of the stores, Redis, Redlock,
     * PostgreSQL's lease table, MySQL, ZooKeeper and named files have records. In a set the run
     * begins when all locks are held.
     */
    int64_t once_ns;
    /*
     * The least time from the grant to the end of the hold, also after an earlier release. Where
     * the store cannot keep the lock, the caller must, also with the blocking calls: see
     * dlock_min_hold_left().
     */
    int64_t min_hold_ns;
    const char *command, *note; /* for the holder record that others see; copied; may be NULL */
    void *user;                 /* the caller's own: see dlock_user() */
    /*
     * -1, or a descriptor that interrupts the blocking calls when poll() finds it readable, hung up
     * or in error: an eventfd, a signalfd, the read end of a pipe. The caller owns the descriptor.
     * The library never reads it: later calls return at once until the caller has emptied it. Where
     * the descriptor is not open, the calls fail with DLOCK_EUSAGE.
     */
    int cancel_fd;
    int reserved;               /* 0 */
    struct dlock_options *self; /* the library's: of dlock_options_new(); else NULL */
};

/*
 * dlock_options_init - the defaults: exclusive, ttl 30 s, wait without end. size: sizeof(struct
 * dlock_options) in the caller; members that only a newer library knows keep their defaults.
 */
void dlock_options_init(struct dlock_options *, size_t size);

/*
 * For other languages, which then need not know the structure.
 *
 * dlock_options_new - a structure with the defaults. NULL: out of memory. dlock_options_free()
 * frees the structure, and the texts that were set by name; dlock_open() has copied them. NULL is
 * fine.
 */
struct dlock_options *dlock_options_new(void);
void dlock_options_free(struct dlock_options *);

/*
 * dlock_options_set - set an option by the name and the text that the long options of dlock(1)
 * have. DUR is a duration of dlock(1): "10", "500ms", "1h30m".
 *
 *   mode              exclusive, shared, or slots N
 *   slots             N: the mode and the number
 *   ttl               DUR, at least 1s
 *   grace             DUR
 *   timeout, wait     DUR; 0: one try
 *   connect-timeout   DUR, not 0
 *   retry, fcntl      yes or no; NULL: yes
 *   holder            waiting, busy or never (enum dlock_holder)
 *   once              DUR, not 0
 *   min-hold          DUR, not 0
 *   command, note     a text, which is copied; only with a structure of dlock_options_new()
 *   cancel-fd         the number of a descriptor
 *
 * Returns 0, DLOCK_EUSAGE (the message names the option) or DLOCK_ENOMEM; then nothing is changed.
 * How options fit together and to the store is checked by dlock_open().
 */
int dlock_options_set(struct dlock_options *, const char *name, const char *value,
                      struct dlock_error *err);

/*
 * The times of a held lease (see "THE LEASE" in libdlock(3)); DLOCK_NEVER where the store has no
 * lease.
 */
struct dlock_times {
    int64_t renew_at; /* the next renewal */
    int64_t term_at;  /* the work under the lock is asked to end */
    int64_t kill_at;  /* the work must be dead */
    int64_t deadline; /* no other holder is possible before this */
    /*
     * Each of these times has also passed when CLOCK_MONOTONIC_RAW has reached it plus this: the
     * difference of the clocks at the moment from which the lease counts.
     */
    int64_t raw_minus_boot;
};

enum dlock_release_how {
    DLOCK_RELEASE_CLEAN,    /* the store confirmed the release */
    DLOCK_RELEASE_NOT_OURS, /* the store says the lock was no longer ours: it was lost */
    /*
     * No answer, a refusal, or the answer that the lock is not ours any more after the lease has
     * ended by itself: the lease expires, or has expired. A file is free, and only the run's record
     * (once_ns) was not written.
     */
    DLOCK_RELEASE_UNCLEAR,
    DLOCK_RELEASE_NOTHING /* nothing was held */
};

enum dlock_report_type {
    DLOCK_REPORT_NONE,
    /* info: a holder (may be NULL); kept; place: ours in the queue, -1: not known yet, another
     * report follows */
    DLOCK_REPORT_WAITING,
    DLOCK_REPORT_ACQUIRED, /* times, fence, token: work may start */
    /* Ends acquire: held by others, or wait_ns has passed; info (may be NULL); kept. */
    DLOCK_REPORT_BUSY,
    /* Ends acquire: with once_ns, the work has succeeded already; run. Nothing is held. */
    DLOCK_REPORT_SKIPPED,
    DLOCK_REPORT_EXTENDED, /* times moved */
    /*
     * Held: half of the time to term_at has passed without a renewal; error: why; since: the last
     * confirmed request. (ZooKeeper: half of the time from when a renewal was due.) Waiting: there
     * is no connection; error: why; since: when that began. Once, until RECOVERED or an end.
     */
    DLOCK_REPORT_TROUBLE,
    DLOCK_REPORT_RECOVERED, /* the TROUBLE is over; since: as in TROUBLE */
    /* term_at passed: end the work. Renewals go on, but kill_at stays, and then LOST comes. */
    DLOCK_REPORT_TERM,
    DLOCK_REPORT_LOST, /* stop at once: certain loss (error.code DLOCK_ELOST), or kill_at passed */
    DLOCK_REPORT_RELEASED, /* how */
    DLOCK_REPORT_INFO,     /* info: a holder or waiter, in answer to a status query */
    DLOCK_REPORT_RUN,      /* run: the record of --once, in answer to a status query; at most one */
    /*
     * Ends a status query, a list, a check; dlock_start_forget(): no such record exists now;
     * dlock_start_break(): the hold is marked, or over.
     */
    DLOCK_REPORT_DONE,
    /*
     * error.msg. error.code 0: a detail, for -v only; DLOCK_ELOST: the lock may not exclude others;
     * else a warning about how the store is set up.
     */
    DLOCK_REPORT_NOTICE,
    DLOCK_REPORT_FAILED, /* ends acquire, a query or an order: error */
    DLOCK_REPORT_ENTRY,  /* entry: a lock, in answer to dlock_start_list() */
    DLOCK_REPORT_FINDING /* finding, error: in answer to dlock_start_check() */
};

/* The name of a report: "ACQUIRED" for DLOCK_REPORT_ACQUIRED; "?": unknown. Static. */
const char *dlock_report_name(enum dlock_report_type);

typedef struct dlock dlock;

/*
 * A report belongs to the library, and stays valid until the next call on the handle, except for
 * calls that only ask something. error.msg of TROUBLE, TERM, LOST and RELEASED is the cause alone:
 * dlock_where() and dlock_name() have the rest.
 */
struct dlock_report {
    enum dlock_report_type type;
    enum dlock_release_how how;
    struct dlock_times times;
    uint64_t fence;
    const char *token;
    const dlock *lock; /* the lock of the report; NULL: all locks of a set */
    int place;
    bool kept;     /* info could share the lock with us, but an earlier waiter is next */
    int64_t since; /* by dlock_now() */
    /*
     * FAILED: when the same call makes sense again, by dlock_now(); DLOCK_NEVER: only after some
     * change (the error is not retryable, nor a lack of descriptors, EMFILE or ENFILE). A loop
     * without a pause burns a processor while the store is away. The pause grows from failure to
     * failure, to a second and a random part.
     */
    int64_t retry_at;
    const struct dlock_info *info;
    const struct dlock_run *run;
    struct dlock_error error; /* DONE: msg is why the lock is free ("no such file"), or "" */
    /*
     * TERM, LOST: by dlock_start_break() of another process; error.msg: 'by root@db1 ...'. DONE of
     * dlock_start_break(): the hold is marked, and not over yet; error.msg: what ends the mark, "":
     * only the end of the hold.
     */
    bool broken;
    const struct dlock_entry *entry;
    enum dlock_finding finding;
    /* RUN, which follows the holders: the state is RUNNING, but no holder can be this run. */
    bool crashed;
};

/* Members of a report, for other languages, which then need not know the structure. */
enum dlock_report_type dlock_report_type(const struct dlock_report *);
const struct dlock_error *dlock_report_error(const struct dlock_report *);
int64_t dlock_report_retry_at(const struct dlock_report *);

/*
 * The states of a handle. Calls that are not legal in a state return DLOCK_EUSAGE and change
 * nothing.
 *
 *                        IDLE       ACQUIRING  ASKING     HELD       LOST       RELEASING  FOREIGN
 *   start_acquire        ACQUIRING  EUSAGE     EUSAGE     EUSAGE     EUSAGE     EUSAGE     EUSAGE
 *   start_status, forget,
 *     break, list, check ASKING     EUSAGE     EUSAGE     EUSAGE     EUSAGE     EUSAGE     EUSAGE
 *   start_release        RELEASING  RELEASING  RELEASING  RELEASING  RELEASING  RELEASING  EUSAGE
 *   start_renew          EUSAGE     EUSAGE     EUSAGE     0          EUSAGE     EUSAGE     EUSAGE
 *   note_result          EUSAGE     EUSAGE     EUSAGE     0          0          EUSAGE     EUSAGE
 *   acquire              blocks     EUSAGE     EUSAGE     EUSAGE     EUSAGE     EUSAGE     EUSAGE
 *   keep, renew_now      EUSAGE     EUSAGE     EUSAGE     renews     ELOST      EUSAGE     EUSAGE
 *   release              0          blocks     blocks     blocks     blocks     blocks     EUSAGE
 *   open_set             0          EUSAGE     EUSAGE     EUSAGE     EUSAGE     EUSAGE     EUSAGE
 *   poll_fd              fd         fd         fd         fd         fd         fd         EUSAGE
 *   interest, process,
 *     dispatch           legal in every state; in FOREIGN nothing to poll, nothing to report
 *   close                legal in every state
 *
 * ACQUIRED leads to HELD; BUSY, SKIPPED, FAILED, DONE and RELEASED to IDLE; LOST to LOST. A release
 * in IDLE reports RELEASED (NOTHING); in RELEASING a release only changes until. TERM does not
 * change HELD, but from then on dlock_keep() returns DLOCK_ELOST: a late renewal (EXTENDED) keeps
 * others out while the work ends, and LOST still comes at kill_at. In LOST something of the lock
 * may still be in the store: only a release (or close) leads on. After RELEASED with UNCLEAR the
 * handle is idle, and the lock may stay held in the store for its ttl, also for this handle's next
 * acquire.
 */
enum dlock_state {
    DLOCK_STATE_IDLE,
    DLOCK_STATE_ACQUIRING,
    DLOCK_STATE_ASKING,
    DLOCK_STATE_HELD,
    DLOCK_STATE_LOST,
    DLOCK_STATE_RELEASING,
    DLOCK_STATE_FOREIGN /* this process is a child of the handle's process */
};

/*
 * dlock_open - make a handle for the lock that uri names. Checks everything that can be checked
 * without the store (the URI, its parameters, ttl against grace). It blocks on the file system: it
 * may read a password file, and load a module with the store's own library (libpq, libzookeeper,
 * OpenSSL), which then stays in the process. uri: see "LOCK" in libdlock(3), without "@name"
 * (dlock_default_uri() resolves names). options may be NULL: the defaults. Both are copied. Returns
 * 0, or a negative code with err (may be NULL) filled and *out untouched.
 *
 * DLOCK_ENOBACKEND with an err.sys that is not 0 (ENOENT: the module is missing; ELIBBAD: it is of
 * another build, or cannot be loaded) passes while an upgrade replaces the package: the same call
 * may succeed a second later. dlock_error_retryable(), which knows the code only, says no.
 */
int dlock_open(dlock **out, const char *uri, const struct dlock_options *, struct dlock_error *err);

/* dlock_options.user. */
void *dlock_user(const dlock *);
enum dlock_state dlock_state(const dlock *);

/*
 * The dlock_start calls return 0, or DLOCK_EUSAGE with err (may be NULL) where the state of the
 * handle does not allow the call; all else comes as reports. They never block.
 *
 * dlock_start_acquire - begin to acquire; ends with exactly one of ACQUIRED, BUSY, SKIPPED and
 * FAILED.
 */
int dlock_start_acquire(dlock *, struct dlock_error *err);

/*
 * dlock_start_release - release the lock, or cancel the acquire or query under way. Ends with
 * RELEASED, at the latest at the time until. No report of a cancelled call follows.
 */
int dlock_start_release(dlock *, int64_t until, struct dlock_error *err);

/*
 * dlock_start_renew - renew the lease now, not only at renew_at. EXTENDED follows when the store
 * has confirmed the renewal, as after each renewal. The call costs one request (Redlock: one for
 * each server), and none while a renewal is under way, whose EXTENDED counts for both. Nothing
 * happens where the lock cannot expire (a file), or where another process renews the lease (an
 * inner dlock).
 */
int dlock_start_renew(dlock *, struct dlock_error *err);

/* dlock_start_status - ask for holders and waiters; INFO..., RUN, then DONE; or FAILED. */
int dlock_start_status(dlock *, struct dlock_error *err);

/*
 * dlock_start_forget - remove the record of the last run, if its token (struct dlock_run) is still
 * this token. Ends with DONE (removed, or no record existed), BUSY (that run goes on), or FAILED
 * (DLOCK_EBUSY: now there is another record).
 */
int dlock_start_forget(dlock *, const char *token, struct dlock_error *err);

/*
 * dlock_start_break - take the lock away from a holder, which is copied as a status query has shown
 * it. Where that hold is over meanwhile, nothing is touched. The hold is marked with this handle's
 * user, host and note; the holder's next renewal finds the mark, ends its work as at the end of the
 * lease (DLOCK_REPORT_TERM with broken), and only then releases. A dead holder's lock ends with the
 * lease. The mark of an advisory lock of PostgreSQL lasts as long as this handle is open. force:
 * free the lock at once, though the holder's work may go on beside the next holder's.
 *
 * Ends with DONE (marked, freed, or free already), BUSY (info: another holder has the lock now), or
 * FAILED (DLOCK_EPERM: the right is missing; DLOCK_EUNUSABLE: no mark can reach this holder).
 */
int dlock_start_break(dlock *, const struct dlock_info *holder, bool force,
                      struct dlock_error *err);

/*
 * dlock_start_list - ask for all locks of the store that are held or waited for, and whose names
 * match the handle's name, a pattern as of fnmatch(3). ENTRY..., in no order, then DONE; or FAILED.
 * A store may also tell of names whose lock is free, with no holders and no waiters.
 * A NOTICE says which locks cannot be seen. Takes no lock and changes nothing.
 */
int dlock_start_list(dlock *, struct dlock_error *err);

/*
 * dlock_start_check - try what an acquire, the renewals and the release of this lock need, and look
 * for settings of the store that weaken the lock. FINDING..., then DONE; FAILED: the store cannot
 * be reached. Takes no lock and changes nothing.
 */
int dlock_start_check(dlock *, struct dlock_error *err);

/*
 * dlock_note_result - before the release, with once_ns: how the work has ended. status: as in
 * struct dlock_run. Without this call the record says that the run has failed. The store writes the
 * record in the step that releases the lock: where the release is not confirmed
 * (DLOCK_RELEASE_CLEAN), the success may not be recorded. Returns 0 or DLOCK_EUSAGE.
 */
int dlock_note_result(dlock *, bool success, int status, struct dlock_error *err);

/*
 * dlock_min_hold_left - with min_hold_ns: how long the caller must still hold the lock before the
 * release. 0 where the store has an expiry and keeps the lock by itself (Redis, Redlock, lease
 * table).
 */
int64_t dlock_min_hold_left(const dlock *);
/* dlock_end_min_hold - the next release frees the lock at once, before min_hold_ns are over. */
void dlock_end_min_hold(dlock *);

/*
 * dlock_interest - what to poll for. Fills at most cap entries (dlock_poll_max() are enough), and
 * sets *wake_at to the time at which dlock_process() must run even if poll() finds nothing
 * (DLOCK_NEVER: none). Returns the number of entries. Ask again after each dlock_process(), which
 * may close a descriptor and open another, also under the same number. Where cap is less than the
 * handle needs, *wake_at is at most 20 ms away, and dlock_process() looks at all descriptors by
 * itself.
 */
int dlock_interest(dlock *, struct pollfd *, int cap, int64_t *wake_at);

/* dlock_poll_max - the most entries of dlock_interest(): DLOCK_POLL_MAX for each lock. */
int dlock_poll_max(const dlock *);

/*
 * dlock_process - handle the events that poll() found, and the times that have passed; never
 * blocks. pfd may be NULL where n is 0: then nothing is known of the descriptors. Returns a report,
 * or NULL: wait now. After a report, call again with n = 0 until the result is NULL. Poll before
 * the first call after a pause: an unread answer counts as missing once its time is over.
 */
const struct dlock_report *dlock_process(dlock *, const struct pollfd *pfd, int n);

/*
 * dlock_poll_fd - one descriptor for the whole handle, for epoll(7), select(2) and foreign event
 * loops: readable when dlock_dispatch() has something to do, be it I/O, a time that has passed, or
 * a call that has begun something. The descriptor stays the same until close, belongs to the
 * handle, and must not be read or closed by the caller. It costs three descriptors and, for each
 * dlock_dispatch(), some system calls. It is level-triggered: do not use EPOLLET. Returns the
 * descriptor, or DLOCK_EOS, DLOCK_ENOMEM, DLOCK_EUSAGE with err.
 */
int dlock_poll_fd(dlock *, struct dlock_error *err);
/*
 * dlock_dispatch - dlock_process(), which finds the ready descriptors by itself. Call it until it
 * returns NULL: only then is the descriptor of dlock_poll_fd() up to date. It never blocks. Other
 * calls may be mixed with it, also blocking calls: after them the descriptor is readable, and asks
 * for dlock_dispatch(). Without dlock_poll_fd() this is a dlock_process() that polls.
 */
const struct dlock_report *dlock_dispatch(dlock *);

/*
 * dlock_time_left - how long no other holder is possible, by the clock that says less
 * (CLOCK_BOOTTIME or CLOCK_MONOTONIC_RAW); 0 when nothing is held or the lease is over, DLOCK_NEVER
 * where the lock cannot expire. Any thread may ask.
 */
int64_t dlock_time_left(const dlock *);
/*
 * The end of the current lease by CLOCK_BOOTTIME, 0 when nothing is held (any thread may ask); the
 * fencing token (0: none) and the owner token of the last hold, which stay until the next acquire.
 */
int64_t dlock_deadline(const dlock *);
uint64_t dlock_fence(const dlock *);
/* The fencing token in decimal, for systems that take text (SQL, HTTP headers); "": none. */
const char *dlock_fence_text(const dlock *);
const char *dlock_token(const dlock *);
/*
 * dlock_slot - DLOCK_MODE_SLOTS: the held slot, 0 to slots - 1; no other holder has this slot at
 * the same time. -1: none is held (any more), or the store does not number slots (ZooKeeper).
 */
int dlock_slot(const dlock *);
/* The lock's name, the store without secrets ("redis://host:6379/0"), and the backend's name. */
const char *dlock_name(const dlock *);
const char *dlock_where(const dlock *);
const char *dlock_backend_name(const dlock *);
/*
 * dlock_is_local - true where the kernel keeps the lock on a descriptor, so that the lock cannot
 * expire.
 */
bool dlock_is_local(const dlock *);
/*
 * dlock_fd - that descriptor, which belongs to the handle, once held; else -1. It is for processes
 * that are to keep the lock, as the command of flock(1) does. So this call changes how this hold
 * ends: the release (CLEAN), and dlock_close(), only close the descriptor, and the lock is free
 * when the last copy is closed, or one is unlocked. Without this call the release unlocks the file,
 * whatever copies a fork has made.
 */
int dlock_fd(const dlock *);

/*
 * dlock_session_fd - the connection whose end frees the lock at once (PostgreSQL's advisory locks),
 * once held; else -1. Give a copy to a process that must end before another holder may start: as
 * long as the copy is open, the death of this process does not free the lock before its ttl. Do not
 * read or write the connection.
 */
int dlock_session_fd(const dlock *);

/*
 * dlock_schema - the SQL statements that create what this lock needs in its store, without the last
 * ';'. *out is malloc'ed; no I/O. Returns 0, or DLOCK_EUSAGE (this kind of store needs no
 * preparation), DLOCK_ENOMEM; then *out is untouched.
 */
int dlock_schema(const dlock *, char **out, struct dlock_error *err);

/*
 * dlock_close - free the handle; NULL is fine. It does not wait for the store: release first. What
 * remains of a held lock depends on the store. A file, PostgreSQL's advisory lock and ZooKeeper
 * keep a lock for as long as a descriptor, a connection or a session lasts, which ends here: the
 * lock is free (of a file, unless dlock_fd() was called; ZooKeeper is told the end of the session;
 * if that message is lost, after the ttl).
 * On Redis, Redlock, PostgreSQL's lease table and MySQL the lease runs out. Blocks for 1 s at most
 * (ZooKeeper), else not. In a child process: see "Fork" above. A thread that waits for a silent
 * name, directory or Kerberos server ends later by itself. Exit handlers of the libraries that the
 * thread uses may destroy what it still needs: exit by _exit(2) after a lock that could not be
 * reached.
 */
void dlock_close(dlock *);

/* dlock_now - CLOCK_BOOTTIME: counts the sleep of a machine; never jumps, but may be slewed. */
int64_t dlock_now(void);

/*
 * dlock_default_uri - the URI for "@name": in store, the value of $DLOCK_STORE, unless NULL or
 * empty; else in the store that the file $DLOCK_STORE_FILE names, or /etc/dlock/store; without
 * these, a file in the machine's lock directory, which is made if missing. *out is malloc'ed, the
 * caller's, and may hold a password. Returns 0, or a negative code with err filled and *out
 * untouched. Below sudo(8), a store with a parameter that names a file is DLOCK_EPERM.
 */
int dlock_default_uri(char **out, const char *name, const char *store, struct dlock_error *err);

/* -------------------------------------------------------- several locks --- */

/*
 * A set is a handle for several locks, all of which are held or none. The locks are taken one by
 * one in an order that is the same in every process (by the lock's name, the kind of store and the
 * URI), so that two processes that need the same locks do not wait for each other in a circle.
 * Where a lock has two spellings the order may differ: a process that holds some of its locks and
 * gets no further lock within 10 s, or loses a lock, gives all back, and begins again after a
 * random pause. Then an outage of a store that has answered before is no failed first contact.
 *
 * Each call on a set concerns all its locks:
 *
 *   start_renew, renew_now   An EXTENDED follows for each lock.
 *   start_release, release   Begins with the lock that was taken last.
 *   process, dispatch        The report's lock names the lock concerned; NULL: all (ACQUIRED,
 *                            EXTENDED, and the RELEASED at the end). The times are the earliest of
 *                            all locks; fence and token belong to the named lock. A lock whose
 *                            release is not confirmed has a RELEASED of its own before the set's
 *                            RELEASED, whose how is the worst. Before ACQUIRED, a NOTICE says that
 *                            locks are given back, and why. SKIPPED of a lock ends the acquire of
 *                            all. LOST and TERM come for each lock; with the first LOST the set is
 *                            lost.
 *   time_left, deadline      The least of all locks; 0 unless all are held.
 *   min_hold_left            The longest of all locks.
 *   note_result              Of the locks with once_ns.
 *   acquire, keep, renew_now The cancel_fd of any lock counts.
 *   start_status, _forget, _break, _list, _check, and schema: DLOCK_EUSAGE.
 *   fence, fence_text, token, slot, name, where, backend_name, user, is_local, fd, session_fd:
 *                            Empty (0, "", NULL, false; slot and descriptors -1): see dlock_at().
 */
#define DLOCK_SET_MAX 16

/*
 * dlock_open_set - make a set of n idle handles, 1 to DLOCK_SET_MAX, each of one lock, with the
 * mode, the ttl and the grace of its own. wait_ns: as in dlock_options, for the whole set; the
 * handles' wait_ns count no more. Takes the handles over: from now on only dlock_close() of the set
 * closes them, and only the set is driven. Of the calls on such a handle only dlock_note_result(),
 * dlock_end_min_hold() and those that ask something still work, and the descriptor of its
 * dlock_poll_fd() is silent. Returns 0, or DLOCK_EUSAGE (a lock is there twice, a handle is a set,
 * or too many), DLOCK_ENOMEM; then the handles are still the caller's, and *out is untouched.
 */
int dlock_open_set(dlock **out, dlock *const *locks, int n, int64_t wait_ns,
                   struct dlock_error *err);
/*
 * dlock_at - the i-th handle of dlock_open_set(), for the name, fence, token, slot and descriptors
 * of that lock; NULL past the last. A handle of one lock is its own first: a loop over dlock_at()
 * finds the locks of either.
 */
dlock *dlock_at(const dlock *, int i);

/* ------------------------------------------------------------- blocking --- */

/*
 * These calls drive the handle by a poll() loop of their own. Besides the results below they return
 * DLOCK_EUSAGE in a state that does not allow the call, and DLOCK_EOS where poll() fails. Signals
 * do not end them (poll() goes on after EINTR): to be interrupted, write to a pipe in a handler, or
 * make a signalfd, and name that descriptor as cancel_fd. err may be NULL.
 *
 * dlock_acquire - acquire, waiting for as long as the options say. Returns 0, DLOCK_SKIPPED (with
 * once_ns: the work has succeeded already, and nothing is held), DLOCK_EBUSY, DLOCK_ECANCELED
 * (nothing is held; leaving the queue takes up to 0.5 s; a grant by a store that was silent for so
 * long ends with its ttl), or another error. After an error the handle is idle again; if the error
 * is retryable, pause before the next try (dlock_options.retry pauses for you while the store is
 * away).
 */
#define DLOCK_SKIPPED 1
int dlock_acquire(dlock *, struct dlock_error *err);

/*
 * dlock_keep - renew the lease until the time until, by dlock_now(). Looks once for news, even if
 * that time is over: dlock_keep(d, 0, &err) asks "is the lock still mine?", and does not block.
 * Returns 0 if the lock is held at that time; DLOCK_ELOST as soon as the lock is lost or term_at
 * has passed, and from then on; DLOCK_ECANCELED (the lock is held, and all news was handled: a
 * caller that ends its work first goes on calling dlock_keep()).
 */
int dlock_keep(dlock *, int64_t until, struct dlock_error *err);

/*
 * dlock_renew_now - dlock_start_renew(), and wait for the confirmation, at most until the time
 * until: for a caller that calls nothing during its next step. (dlock_keep() may send a renewal
 * whose answer is read only after the step: too late.) Returns 0, at once for a lock that cannot
 * expire. Then, with the default grace, term_at is three quarters of the ttl away, and the deadline
 * nearly all of it (dlock_time_left()). On ZooKeeper a renewal counts from an older request: there,
 * ask dlock_time_left(). DLOCK_ELOST and DLOCK_ECANCELED: as dlock_keep(). DLOCK_EUNAVAIL: not
 * confirmed by then; the lock is still held, and the renewal goes on with the next call.
 */
int dlock_renew_now(dlock *, int64_t until, struct dlock_error *err);

/*
 * dlock_release - release within timeout_ns. Returns 0, DLOCK_ELOST (the lock was not ours),
 * DLOCK_EUNAVAIL (no answer), or why the store has refused. cancel_fd does not interrupt this call.
 * The handle is idle afterwards.
 */
int dlock_release(dlock *, int64_t timeout_ns, struct dlock_error *err);

#ifdef __cplusplus
}
#endif

#endif
