/*
 * backend.h - the contract between libdlock's core and the backends.
 *
 * A backend knows one store's protocol and nothing else. Policy (when to renew,
 * margins, -w, back-off between whole acquires, messages) is the core's; so are
 * timers: a backend says in interest() when it wants to be woken.
 *
 * Rules for every slot: one thread; nothing blocks, prints, exits or resolves
 * names; no global state. A start call (acquire, renew, release, ask) is followed
 * by exactly one ending event, which process() hands out; LOST may come unasked.
 */
#ifndef DLOCK_BACKEND_H
#define DLOCK_BACKEND_H

#include "dlock.h"
#include "uri.h"

#include <poll.h>
#include <stddef.h>
#include <sys/socket.h>

#define DLOCK_BACKEND_ABI 1

enum dlock_cap {
    CAP_SHARED = 1,
    CAP_SLOTS = 2,
    CAP_FENCE = 4,
    CAP_LEASE = 8, /* the hold ends by itself: needs renewals and the guard */
    CAP_FIFO = 16,
    CAP_RECORD = 32,
    CAP_LIST = 64,
    CAP_FD = 128, /* the lock lives on a descriptor (inherit_fd) */
    CAP_LAG = 256 /* a renewal counts from an older send time (ZooKeeper) */
};

/* Clock and randomness, injected so that tests can own them. random returns 0 or a negative errno. */
struct dlock_env {
    int64_t (*now)(void *ctx);
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

/* What is told to others about us. All strings are valid UTF-8 without control characters. */
struct dlock_who {
    char host[256], user[64], command[256], note[256];
    long pid;
    int64_t since_ms; /* wall clock, Unix ms, of the start of this acquire */
};

struct tls_table; /* tls/tls.h */

struct dlock_spec {
    const struct dlock_env *env;
    /* The only holder of secrets. open() may add the hosts that the store's own configuration names. */
    struct dlock_uri *uri;
    const struct dlock_peer
        *peers; /* the core may replace them between calls; none for a store without hosts */
    int npeers;
    enum dlock_mode mode;
    unsigned slots;
    int64_t ttl;
    int64_t least_ttl;       /* with this grace: what the store may negotiate */
    int64_t connect_timeout; /* for one whole first contact */
    int64_t op_timeout;      /* after which an unanswered renewal is unclear */
    const struct dlock_who *who;
    /* dlock_registry_tls, which a store (it may be in a module) does not call itself. */
    const struct tls_table *(*tls)(const char *scheme, struct dlock_error *);
};

enum dlock_ev {
    EV_NONE,
    EV_WAITING, /* after acquire(wait), any number: info (may be NULL), place */
    EV_GRANTED, /* ends acquire: from, ttl, fence, token */
    EV_BUSY,    /* ends acquire(!wait): info (may be NULL) */
    EV_RENEWED, /* ends renew: from, ttl (as negotiated); error: a part of the store could not be reached */
    EV_UNCLEAR, /* ends renew: nothing known; the old deadline stands; error says why; the core calls renew again */
    EV_RELEASED, /* ends release: how, error (for UNCLEAR: why) */
    EV_LOST,     /* unasked, or ends renew; only while granted; certain; error says why */
    EV_INFO,     /* one per holder or waiter found by ask: info */
    EV_DONE,     /* ends ask */
    EV_NOTICE, /* unasked: error.msg is worth telling; error.code != 0: as a warning, 0: only with -v */
    EV_FAILED /* ends acquire or ask; never renew or release. Anything unclear is still to be released: the core calls release */
};

struct dlock_event {
    enum dlock_ev type;
    int64_t from;   /* clock before the send that counts */
    int64_t ttl;    /* DLOCK_NEVER where there is no lease */
    int64_t asked;  /* GRANTED, CAP_LAG: when the last heartbeat was sent */
    uint64_t fence; /* 0: none; below 2^63 */
    char token[DLOCK_TOKEN_LEN + 1];
    enum dlock_how how;
    int place;                     /* in the queue; 1 is next; 0 unknown */
    const struct dlock_info *info; /* the backend's, valid until the next call */
    struct dlock_error error;
};

enum dlock_ask { ASK_STATUS, ASK_LIST, ASK_BREAK };

struct dlock_be; /* each backend defines its own */

struct dlock_backend {
    unsigned abi;
    const char *build_id, *name, *package;
    const char *const *schemes; /* NULL-terminated */
    unsigned caps;

    /* Check uri parameters and the rest of spec; no I/O. spec stays valid and constant (peers aside) until close. */
    int (*open)(struct dlock_be **, const struct dlock_spec *, struct dlock_error *);

    /* Idle only. wait: stand in line until granted; !wait: one try. A new token each call. The core cancels by release. */
    void (*acquire)(struct dlock_be *, bool wait);

    /* Granted only; one outstanding. The clock is read immediately before the send. NULL without CAP_LEASE. */
    void (*renew)(struct dlock_be *);

    /*
     * Any state; gives back, or cancels: leaves the queue, undoes an unclear acquire, gives up a renewal or an ask.
     * Ends at the latest at until. No event of what it cancelled comes after it.
     */
    void (*release)(struct dlock_be *, int64_t until);

    /* Idle only. arg: ASK_BREAK's token. */
    void (*ask)(struct dlock_be *, enum dlock_ask, const char *arg);

    /* Fill at most cap (up to DLOCK_POLL_MAX) entries; *wake_at is set by the caller to DLOCK_NEVER and only lowered. Returns how many. */
    int (*interest)(struct dlock_be *, struct pollfd *, int cap, int64_t *wake_at);

    /* 1 and an event (call again with n = 0), or 0. pfd: what interest() asked for, found by fd number. */
    int (*process)(struct dlock_be *, const struct pollfd *, int n, struct dlock_event *);

    /* CAP_FD: the descriptor that carries the lock once granted, else NULL. The backend's; CLOEXEC is the caller's business. */
    int (*inherit_fd)(struct dlock_be *);

    /*
     * The connection whose end frees the lock at once, while granted, or -1. Somebody who outlives us can keep
     * a copy open. NULL: the store frees nothing before the ttl is over.
     */
    int (*session_fd)(struct dlock_be *);

    /* What must be made in the store first, malloc'ed; 0 or a negative code. NULL: nothing ever has to. */
    int (*schema)(struct dlock_be *, char **out, struct dlock_error *);

    /* NULL and half-open allowed; sends nothing, blocks at most briefly. */
    void (*close)(struct dlock_be *);
};

/*
 * What a backend calls its table: DLOCK_BACKEND_SYMBOL(redis). In a module, all that is seen from outside; there
 * .build_id must be DLOCK_BUILD_ID.
 */
#ifdef DLOCK_MODULE
#define DLOCK_BACKEND_SYMBOL(name) dlock_module
#else
#define DLOCK_BACKEND_SYMBOL(name) dlock_backend_##name
#endif

/*
 * registry.c: the backend for a URI scheme; its module is loaded when it is in one. NULL with err: DLOCK_ENOBACKEND
 * (naming what to install), DLOCK_EPERM (others could have changed the module), DLOCK_EOS.
 */
const struct dlock_backend *dlock_registry_find(const char *scheme, struct dlock_error *err);
/*
 * What a hold on a store of this scheme lives on, CAP_FD or CAP_LEASE; 0: dlock_registry_find will fail. Loads
 * nothing: the program must know it before it may load a module.
 */
unsigned dlock_registry_hold(const char *scheme);
/* TLS, in the same way, for a URI of this scheme. */
const struct tls_table *dlock_registry_tls(const char *scheme, struct dlock_error *err);
/*
 * For --version: the i-th of what there is (i >= 0), NULL past the last. *note: NULL, or what is to be said of it:
 * whether it is a module, and whether its file is there. Loads nothing.
 */
const char *dlock_registry_name(int i, const char **note);

#endif
