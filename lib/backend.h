/*
 * backend.h - the contract between libdlock's core and the backends.
 *
 * A backend implements the protocol of one store and nothing else. The core (lock.c) owns policy:
 * when to renew, margins, -w, pauses between whole acquires, messages. The core owns the timers,
 * too: a backend says in interest() when it must run.
 *
 * Rules for every slot: it runs in one thread; it does not block, print, exit or resolve names;
 * there is no global state. Exactly one ending event follows a start call (acquire, renew, release,
 * ask, step); process() hands out the events. EV_LOST may come at any time while the lock is
 * granted.
 */
#ifndef DLOCK_BACKEND_H
#define DLOCK_BACKEND_H

#include "dlock.h"
#include "uri.h"

#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>

#define DLOCK_BACKEND_ABI 12

enum dlock_cap {
    CAP_SHARED = 1,
    CAP_SLOTS = 2,
    CAP_FENCE = 4,
    CAP_LEASE = 8,    /* a hold expires: it needs renewals, and a guard */
    CAP_TELLS = 16,   /* of exclusive holds: a renewal begins to watch the lock (EV_CHANGED) */
    CAP_FD = 32,      /* the kernel keeps the lock on a descriptor (inherit_fd) */
    CAP_LAG = 64,     /* a renewal counts from an older send time (ZooKeeper) */
    CAP_NESTED = 128, /* the hold and its lease belong to another dlock (nested.h) */
    CAP_ONCE = 256    /* run records exist; open() may still refuse spec->once for this lock */
};

/*
 * Clocks and randomness; tests inject their own. random returns 0 or a negative errno. A backend
 * reads only now(), in the thread that calls its slots: the core notes each reading, and so knows
 * both clocks of an event's from.
 */
struct dlock_env {
    int64_t (*now)(void *ctx); /* CLOCK_BOOTTIME */
    int64_t (*raw)(void *ctx); /* CLOCK_MONOTONIC_RAW */
    int (*random)(void *ctx, void *buf, size_t len);
    void *ctx;
};
extern const struct dlock_env dlock_env_system;

/* A numeric address of the store. host is an index into uri->hosts. */
struct dlock_peer {
    int host;
    socklen_t len;
    struct sockaddr_storage addr;
};

/* The holder record that others see. All strings are valid UTF-8 without control characters. */
struct dlock_identity {
    char host[256], user[64], command[256], note[256];
    long pid;
    int64_t since_ms; /* wall clock, Unix ms, of the start of this acquire */
    int64_t since;    /* the same moment by dlock_now() */
};

/*
 * spec->once: when the run record says "running". A command that never ran must not look failed,
 * and the record of a success must not be lost to it. So in a set, whose other locks may never be
 * granted, the grant only reads the record. The record changes when all locks are held: by a
 * renewal, which is one message more. Killed before: the record is as it was; killed after: it says
 * "running", as that of each run that was killed before its end.
 */
enum dlock_begin {
    RUN_BEGINS, /* with the grant; of a set: has begun */
    RUN_LATER,  /* in a set: a success is skipped; grant, renewal and release write nothing */
    RUN_NOW     /* the next renewal writes "running": EV_RENEWED confirms the record as well */
};

/* What the core knows of the hold, for renewals and the release. */
struct dlock_hold {
    /* spec->min_hold: the lock stays held until then, by env->now; 0: until the release. */
    int64_t until;
    enum dlock_begin begin;
    /* spec->once: what the release records. Unless ended, the run has failed, with status -1. */
    bool ended, success;
    int status;
};

struct tls_table;    /* tls/tls.h */
struct nested_outer; /* nested.h */

struct dlock_spec {
    const struct dlock_env *env;
    /* The only place of secrets. open() may add the hosts that the store's own settings name. */
    struct dlock_uri *uri;
    /* Addresses of uri->hosts; the core may replace them between calls. None without hosts. */
    const struct dlock_peer *peers;
    int npeers;
    enum dlock_mode mode;
    bool fcntl;     /* CAP_FD: fcntl(2) instead of flock(2) */
    unsigned slots; /* DLOCK_MODE_SLOTS: their number, checked; else 0 */
    int64_t ttl;
    int64_t least_ttl;       /* the store may negotiate down to this: the grace needs the rest */
    int64_t connect_timeout; /* for the whole first contact */
    int64_t op_timeout;      /* a renewal without an answer is unclear after this time */
    enum dlock_holder holder;
    /* CAP_ONCE: skip if a run has succeeded within this time, keep our record as long; 0: none. */
    int64_t once;
    int64_t min_hold; /* stays(): the least time from the grant to the end of the hold; 0: none */
    const struct dlock_hold *hold;
    const struct dlock_identity *identity;
    /* dlock_registry_tls(), which a store in a module cannot call: TLS may be a module, too. */
    const struct tls_table *(*tls)(const char *scheme, struct dlock_error *);
    const struct nested_outer *outer; /* CAP_NESTED: the dlock that holds the lock */
};

enum dlock_ev {
    EV_NONE,
    /* Any number after acquire(wait): info: a holder (may be NULL); place: ours, -1: not known. */
    EV_WAITING,
    EV_GRANTED, /* ends acquire: from, ttl, fence, token */
    /*
     * Ends acquire(!wait): info: a holder (may be NULL). Of ask.c, ends ASK_FORGET: that run goes
     * on; ends ASK_BREAK: the lock has changed hands; info: the new holder.
     */
    EV_BUSY,
    /* Ends acquire with spec->once: run has succeeded already; we have left and woken the next. */
    EV_SKIPPED,
    /*
     * Ends renew: from, ttl (as negotiated); error: some servers were not reached. broken: the hold
     * is marked (ASK_BREAK); error: by whom, of dlock_broken() (util.h). The store keeps the lock
     * until the release, so renewals go on, and report the mark again.
     */
    EV_RENEWED,
    /*
     * Ends renew: no result, the old deadline stands; error says why; the core renews again. With
     * RUN_NOW, and an error that no later try mends, it gives the lock back.
     */
    EV_UNCLEAR,
    EV_RELEASED, /* ends release: how; error: why the release is unclear */
    EV_LOST,     /* at any time while granted, or ends renew: certain loss; error says why */
    /*
     * Ends STEP_READ: run: the record, or NULL; error: why the record cannot be used (foreign data,
     * no right to read it), or with code 0 why the lock is free. next() has holders and waiters.
     */
    EV_READ,
    /* Ends another step: stepped. STEP_MARK: error.msg: what ends the mark, or "". */
    EV_STEPPED,
    EV_INFO,    /* of ask.c, ASK_STATUS: for each holder and waiter: info */
    EV_RUN,     /* of ask.c, ASK_STATUS: at most once, if there is a run record: run, crashed */
    EV_ENTRY,   /* ASK_LIST: for each lock: entry. The core drops the names it does not want */
    EV_FINDING, /* ASK_CHECK: finding, error: see ASK_CHECK */
    /*
     * Ends ask. Of ask.c, ends ASK_STATUS: error.msg: why the lock is free ("no such file"), or "".
     * ASK_BREAK: broken: the hold is marked, and not over yet; error.msg: what ends the mark, "":
     * the end of the hold.
     */
    EV_DONE,
    /*
     * At any time, now and then: no connection; error: why; the core looks the names up again.
     * While granted: the store may have lost the lock; the core renews at once (not with CAP_LAG).
     */
    EV_AWAY,
    /*
     * While acquire waits: the first answer since EV_AWAY. Of a query: a part of a long answer, or
     * the answer to a step that another step follows.
     */
    EV_BACK,
    EV_CHANGED, /* while granted: another client may have changed the lock; likewise */
    EV_NOTICE,  /* at any time: as DLOCK_REPORT_NOTICE */
    /*
     * Ends acquire, ask or step, never renew or release. The store may still hold an unclear grant:
     * the core calls release.
     */
    EV_FAILED
};

/*
 * dlock_fail_at(), dlock_fail_lock() and dlock_fail_site() (util.h) make an error about a store,
 * with uri->where as WHERE. The core reports only the cause (dlock_error_cause()) of EV_UNCLEAR,
 * EV_LOST, EV_RELEASED and EV_AWAY, since the message names store and lock already. So the cause
 * must read well behind "the lock is lost: ".
 */
struct dlock_event {
    enum dlock_ev type;
    int64_t from; /* env->now before the request that counts was sent */
    /* Filled in by the core (but CAP_NESTED): CLOCK_MONOTONIC_RAW - CLOCK_BOOTTIME at from. */
    int64_t raw_minus_boot;
    int64_t ttl;   /* DLOCK_NEVER where there is no lease */
    int64_t asked; /* EV_GRANTED with CAP_LAG: when the last heartbeat was sent */
    /*
     * 0: none; below 2^63. An exclusive grant has a greater fence than all grants before. A shared
     * grant or a slot has at least the fence of the last exclusive grant, and less than the next.
     */
    uint64_t fence;
    enum dlock_mode mode; /* EV_GRANTED of CAP_NESTED: the mode of the hold, and its slots */
    unsigned slots;
    int slot; /* EV_GRANTED with DLOCK_MODE_SLOTS: counted from 1; 0: slots have no numbers */
    char token[DLOCK_TOKEN_LEN + 1];
    enum dlock_release_how how;
    int place;                       /* in the queue: 1 is next, 0 unknown */
    int server;                      /* EV_AWAY, EV_CHANGED: below LEASE_SERVERS */
    const struct dlock_info *info;   /* the backend's, valid until the next call */
    const struct dlock_run *run;     /* the same */
    const struct dlock_entry *entry; /* the same */
    bool broken;                     /* EV_RENEWED, EV_DONE */
    bool stepped; /* EV_STEPPED; false: hold or record are not as read, and nothing was done */
    bool crashed; /* EV_RUN: the run goes on by its record, but no holder can be this run */
    enum dlock_finding finding;
    struct dlock_error error;
};

enum dlock_ask {
    ASK_STATUS,
    /* All locks that are held or waited for, in any order, with the rights of a plain client. */
    ASK_LIST,
    /*
     * Mark the hold of question.holder, or free it (force). A hold that is over (info.over) is
     * freed.
     */
    ASK_BREAK,
    ASK_FORGET, /* remove the run record of question.token, unless this run goes on */
    /*
     * What a run would meet: log-in, rights for spec's kind of lock, version, settings. error.msg
     * of EV_FINDING is "SUBJECT: what was found", and with a warning or a failure "; what to do";
     * error.code of a failure is that of a run. Writes nothing.
     */
    ASK_CHECK
};

struct dlock_question {
    enum dlock_ask what;
    /* Valid until the end of ask: */
    const char *token;               /* ASK_FORGET: a record's, see dlock_start_forget() */
    const struct dlock_info *holder; /* ASK_BREAK: as ASK_STATUS has shown it */
    bool force;
    bool all; /* ASK_LIST: also each free lock that may have a run record */
};

/*
 * The steps of a store for ASK_STATUS, ASK_BREAK and ASK_FORGET. ask.c decides which step follows
 * from what was read. A step that changes something is conditional: it does nothing where another
 * client has changed the hold or the record since.
 */
enum dlock_step {
    STEP_READ,
    /*
     * The mark changes no expiry, and no waiter's place. A hold that has a mark already counts as
     * marked. A holder that no mark can reach: EV_FAILED with DLOCK_EUNUSABLE, which names --force.
     */
    STEP_MARK,
    STEP_FREE,
    /* Remove the record. EV_BUSY instead: a holder that STEP_READ does not see has the lock. */
    STEP_FORGET
};

/* Until the end of the step all of it is valid. */
struct dlock_order {
    enum dlock_step what;
    int64_t until; /* for the answers to all steps of the question */
    const struct dlock_question *question;
    const struct dlock_info *holder; /* STEP_MARK, STEP_FREE: as read */
    const struct dlock_run *run;     /* STEP_FORGET: as read */
};

struct dlock_be; /* never defined: each backend casts it to a struct of its own */

struct dlock_backend {
    unsigned abi;
    const char *build_id, *name, *package;
    const char *const *schemes; /* NULL-terminated */
    unsigned caps;
    const char *no_slots; /* without CAP_SLOTS: why, for the message; may be NULL */
    const char *no_once;  /* without CAP_ONCE: the same */
    const char *no_break; /* why no hold can be marked or freed; NULL: holds can */

    /*
     * Check the URI's parameters and the rest of spec; no I/O on the store. spec stays valid and,
     * peers aside, constant until close. 0 or a negative code; then *out is untouched, or good for
     * close.
     */
    int (*open)(struct dlock_be **, const struct dlock_spec *, struct dlock_error *);

    /*
     * Idle only. wait: queue until granted; !wait: one try. Each call makes a new token. The core
     * cancels by release.
     */
    void (*acquire)(struct dlock_be *, bool wait);

    /*
     * After a release the lock stays held until spec->hold->until, by the store's own expiry; the
     * release has changed what others see as the holder. acquire and renew ask for at least that
     * time. NULL or false: the lock stays held only until the release.
     */
    bool (*stays)(struct dlock_be *);

    /*
     * Granted only, one at a time. Read the clock immediately before sending. Without CAP_LEASE:
     * only with RUN_NOW, and NULL without CAP_ONCE. NULL with CAP_NESTED.
     */
    void (*renew)(struct dlock_be *);

    /*
     * In any state: release, or cancel: leave the queue, undo an unclear acquire, give up a renewal
     * or a query. EV_RELEASED comes at the latest at the time until, and no event of the cancelled
     * operation after it. With spec->once, and a run that has begun, the conditional step of the
     * store that ends our hold also records the end of the run, from spec->hold.
     */
    void (*release)(struct dlock_be *, int64_t until);

    /*
     * While acquire waits, before the cancel: a holder as of now. False: none is known. NULL:
     * EV_WAITING names the holder.
     */
    bool (*look)(struct dlock_be *, struct dlock_info *);

    /*
     * While acquire awaits its first answer, before the cancel: what the store said last instead
     * (it loads its data); code 0: nothing. NULL: only EV_FAILED tells it.
     */
    const struct dlock_error *(*refusal)(const struct dlock_be *);

    /*
     * Idle only: ASK_LIST and ASK_CHECK. NULL with CAP_NESTED: a query opens a handle without the
     * outer dlock. The question stays valid until the end of ask.
     */
    void (*ask)(struct dlock_be *, const struct dlock_question *);

    /*
     * Idle only: begin a step, which ends with EV_READ or EV_STEPPED, or with EV_FAILED. Several
     * steps may follow each other. NULL with CAP_NESTED.
     */
    void (*step)(struct dlock_be *, const struct dlock_order *);
    /* After EV_READ: the next holder; behind the holders, the next waiter. False: no more. */
    bool (*next)(struct dlock_be *, struct dlock_info *);
    /* The question is over: drop what was read. NULL: nothing to do. */
    void (*rest)(struct dlock_be *);

    /*
     * Fill at most cap entries (up to DLOCK_POLL_MAX) and return their number. Lower *wake_at to
     * the time of the next timer.
     */
    int (*interest)(struct dlock_be *, struct pollfd *, int cap, int64_t *wake_at);

    /*
     * Handle I/O and timers. 1 and an event (the core calls again with n = 0), or 0. pfd: find
     * entries by fd number.
     */
    int (*process)(struct dlock_be *, const struct pollfd *, int n, struct dlock_event *);

    /*
     * CAP_FD, once granted: the descriptor that carries the lock, the backend's own. shared: other
     * processes may get copies, which keep the lock: the backend closes the descriptor, and never
     * unlocks the file. Else NULL.
     */
    int (*inherit_fd)(struct dlock_be *, bool shared);

    /* CAP_FD, in any state: does the lock's name lead to the file open as fd? Else NULL. */
    bool (*is_file)(struct dlock_be *, int fd);
    /* CAP_FD: the path of the lock's file, malloc'ed. NULL: out of memory. Else NULL. */
    char *(*path)(const struct dlock_uri *);

    /*
     * While granted: the connection whose end frees the lock at once, or -1. A process that
     * outlives this process can keep a copy open. NULL: only the end of the ttl frees a lock.
     */
    int (*session_fd)(struct dlock_be *);

    /*
     * CAP_FD, while granted: the other descriptors needed until the release. Fills at most cap
     * (DLOCK_FDS_MAX) entries, and returns their number. Without CAP_FD: NULL.
     */
    int (*own_fds)(struct dlock_be *, int *fds, int cap);

    /* The statement that prepares the store, malloc'ed; 0 or a negative code. NULL: none needed. */
    int (*schema)(struct dlock_be *, char **out, struct dlock_error *);

    /* Also for NULL and after a failed open. Sends nothing, blocks briefly at most. */
    void (*close)(struct dlock_be *);

    /*
     * Instead of close, in a child of the process that opened the handle: close the descriptors,
     * say nothing to the store, free what can be freed. The child lacks the threads of a library,
     * and the library's mutexes may be locked indefinitely. Never for NULL.
     */
    void (*close_in_child)(struct dlock_be *);
};

/*
 * The name of a backend's table: DLOCK_BACKEND_SYMBOL(redis). A module exports only this symbol,
 * and its .build_id must be DLOCK_BUILD_ID.
 */
#ifdef DLOCK_MODULE
#define DLOCK_BACKEND_SYMBOL(name) dlock_module
#else
#define DLOCK_BACKEND_SYMBOL(name) dlock_backend_##name
#endif

/*
 * registry.c: the backend of a URI scheme; loads the backend's module, if any, and then blocks on
 * the file system. NULL with err: DLOCK_ENOBACKEND (names the package to install), DLOCK_EPERM
 * (others could have changed the module), DLOCK_EOS.
 */
const struct dlock_backend *dlock_registry_find(const char *scheme, struct dlock_error *err);
/*
 * CAP_FD or CAP_LEASE of the backend of this scheme; 0 when dlock_registry_find() will fail. Loads
 * nothing: the program forks its guard, or not, before it may load a module.
 */
unsigned dlock_registry_hold(const char *scheme);
/* The same for TLS; the scheme is for the message. */
const struct tls_table *dlock_registry_tls(const char *scheme, struct dlock_error *err);
/*
 * For --version: the name of the i-th backend or of TLS (i >= 0), NULL past the last. *note: NULL,
 * or whether the backend is a module, and installed. Loads nothing.
 */
const char *dlock_registry_name(int i, const char **note);

#endif
