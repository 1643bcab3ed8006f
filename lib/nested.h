/*
 * nested.h - a dlock under another one that holds the same lock: what both say to each other, and the backend of the inner
 * one, whose store is the outer one's keeper.
 *
 * The outer keeper listens on an abstract socket (SOCK_SEQPACKET), named in DLOCK_HELD. The inner one connects and sends
 * a request; the answer is a reply, or the end of the connection where the outer does not hold that lock for this client.
 * As long as an accepted connection is open, the outer neither releases the lock nor exits. It sends a reply
 * NESTED_HELD for each renewal, NESTED_LOST when the lock is lost.
 *
 * A query (dlock --held) gets one reply, NESTED_HELD or NESTED_LOST, and no hold.
 */
#ifndef DLOCK_NESTED_H
#define DLOCK_NESTED_H

#include "backend.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/un.h>

#define NESTED_VERSION 2
#define NESTED_SOCKET_MAX 40
#define NESTED_KEY_MAX 8000

#define NESTED_QUERY (-1) /* only: is it held? */

struct nested_request {
    uint32_t version;
    int32_t mode; /* enum dlock_mode, or NESTED_QUERY */
    uint32_t slots;
    char token[DLOCK_TOKEN_LEN + 4]; /* of the lock, from DLOCK_HELD */
    char key[NESTED_KEY_MAX]; /* nested_key(), of a query nested_digests(); sent up to its end */
};

/* A hold as it is: of the outermost dlock, whatever those in between asked for. */
struct nested_hold {
    int64_t from, ttl, raw_minus_boot; /* as in struct dlock_event */
    /* All that runs under it is told to end by then: term_at of the outermost, or earlier. 0: it is ending. */
    int64_t end_at;
    uint64_t fence;
    int32_t mode;
    uint32_t slots;
    int32_t slot; /* counted from 1; 0: none */
};

enum nested_type {
    NESTED_HELD =
        1, /* hold; the first one may bring the lock's descriptor (SCM_RIGHTS). To a query: left */
    NESTED_REFUSED, /* hold: its kind does not allow what was asked for */
    NESTED_LOST,    /* text: why, or "". To a query: or about to be; text: the lock's name */
    NESTED_FULL     /* too many inner ones */
};

struct nested_reply {
    int32_t type;
    struct nested_hold hold;
    int64_t left; /* from now to end_at; DLOCK_NEVER: without end */
    char text[256];
};

/* The keeper of an outer dlock, by DLOCK_HELD. */
struct nested_outer {
    char token[DLOCK_TOKEN_LEN + 1];
    char socket[NESTED_SOCKET_MAX + 1];
    const char *key;
};

/* The backend of an inner dlock: of a lease, and of a lock that the kernel keeps on a descriptor. */
extern const struct dlock_backend dlock_nested_lease, dlock_nested_local;

/*
 * The lock that uri names, as a text, malloc'ed: two locks never have the same one. The same lock under another spelling
 * (a host's name and its address) may have another one. No credentials are in it, but it is not for messages. NULL: out
 * of memory. Of a file: its inode, and the kind of lock.
 */
char *nested_key(const struct dlock_uri *uri);
char *nested_file_key(const struct stat *, bool fcntl);
/* 64 bits of it, or of a name, for DLOCK_HELD. */
uint64_t nested_digest(const char *key);
/* What a query has as its key. Returns buf. */
#define NESTED_DIGESTS_SIZE (2 * 16 + 2)
const char *nested_digests(char buf[NESTED_DIGESTS_SIZE], uint64_t key, uint64_t name);
/* A new name for an abstract socket. It tells in which network namespace it is. 0 or -errno. */
int nested_new_name(char name[NESTED_SOCKET_MAX + 1]);
/* The length of the address of that abstract socket. */
socklen_t nested_address(struct sockaddr_un *, const char *name);
/* Can that socket be reached from our network namespace? Abstract ones belong to a namespace. */
bool nested_is_here(const char *name);
/*
 * Is a process of this user and pid (0: unknown) a keeper that we trust? Any user can take the name of an abstract socket
 * once its keeper is gone. Root trusts another user's keeper only when it runs under it (sudo).
 */
bool nested_trusts(uid_t uid, long pid);
/* May a hold of that kind be shared with an inner dlock that asks for this? 0, DLOCK_EBUSY or DLOCK_EDATA. */
int nested_allows(const struct nested_hold *, enum dlock_mode, unsigned slots);
/* Of an inner one's backend: nested_hold.end_at of the newest reply. */
int64_t nested_end_at(struct dlock_be *);
/* Does process pid descend from that one, or is it that one? False where /proc does not tell. */
bool nested_descends(long pid, long from);

/* Has the error of an acquire this meaning: the outer's keeper cannot be reached, or does not hold the lock any more? */
static inline bool nested_unreachable(const struct dlock_error *err)
{
    return err->code == DLOCK_EUNUSABLE && (err->sys == ECONNREFUSED || err->sys == ESHUTDOWN);
}

/* The same: and it has ended, or is about to release the lock? Then a wait for the lock is not one for this process itself. */
static inline bool nested_has_ended(const struct dlock_error *err)
{
    return err->code == DLOCK_EUNUSABLE && err->sys == ESHUTDOWN;
}

/* lock.c: as dlock_open_uri(), for an inner dlock. *outer stays the caller's, and valid until the handle is closed. */
int dlock_open_nested(dlock **out, struct dlock_uri **uri, const struct nested_outer *outer,
                      const struct dlock_options *, struct dlock_error *);
/* lock.c: the hold, once it is granted. */
void dlock_describe(const dlock *, struct nested_hold *);

#endif
