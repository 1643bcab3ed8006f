/*
 * nested.h - a dlock below an outer dlock that holds the same lock: their messages, and the backend
 * of the inner dlock, whose store is the outer keeper.
 *
 * The outer keeper listens on an abstract socket (SOCK_SEQPACKET), named in DLOCK_HELD. An inner
 * dlock connects and sends a request. The answer is a reply, or the end of the connection where the
 * keeper does not hold the lock for this client. While an accepted connection is open, the keeper
 * neither releases the lock nor exits. It sends NESTED_HELD for each renewal, and NESTED_LOST when
 * the lock is lost.
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

#define NESTED_QUERY (-1) /* asks only whether the lock is held */

struct nested_request {
    uint32_t version;
    int32_t mode; /* enum dlock_mode, or NESTED_QUERY */
    uint32_t slots;
    char token[DLOCK_TOKEN_LEN + 4]; /* of the lock, from DLOCK_HELD */
    char key[NESTED_KEY_MAX]; /* nested_key(), of a query nested_digests(); sent up to its end */
};

/* The hold of the outermost dlock. */
struct nested_hold {
    int64_t from, ttl, raw_minus_boot; /* as in struct dlock_event */
    /* The work under the lock must end by then: the outermost term_at, or earlier. 0: is ending. */
    int64_t end_at;
    uint64_t fence;
    int32_t mode;
    uint32_t slots;
    int32_t slot; /* counted from 1; 0: none */
};

enum nested_type {
    /*
     * hold; the first reply may bring a descriptor (SCM_RIGHTS): of the lock's file, or of what the
     * lock ends with (dlock_session_fd). To a query: left.
     */
    NESTED_HELD = 1,
    NESTED_REFUSED, /* hold: its mode does not allow the requested mode */
    NESTED_LOST,    /* text: why, or "". To a query: or about to be; text: the lock's name */
    NESTED_FULL     /* too many inner dlocks */
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

/* The backends of an inner dlock: for a lease, and for a lock that the kernel keeps. */
extern const struct dlock_backend dlock_nested_lease, dlock_nested_local;

/*
 * The identity of a lock as a text, malloc'ed; NULL: out of memory. Two locks never have the same
 * key; one lock under two spellings (a host's name and address) may have two keys. It holds no
 * credentials, but is not for messages. The key of a file: its inode, and the kind of lock.
 */
char *nested_key(const struct dlock_uri *uri);
char *nested_file_key(const struct stat *, bool fcntl);
/* 64 bits of a key, or of a name, for DLOCK_HELD. */
uint64_t nested_digest(const char *key);
/* The key in a query. Returns buf. */
#define NESTED_DIGESTS_SIZE (2 * 16 + 2)
const char *nested_digests(char buf[NESTED_DIGESTS_SIZE], uint64_t key, uint64_t name);
/* A new name for an abstract socket, which tells its network namespace. 0 or -errno. */
int nested_new_name(char name[NESTED_SOCKET_MAX + 1]);
/* The length of the address of an abstract socket. */
socklen_t nested_address(struct sockaddr_un *, const char *name);
/* Is the socket in our network namespace? Abstract sockets belong to a namespace. */
bool nested_is_here(const char *name);
/*
 * Do we trust a process of this user as a keeper? Any user can take the name of an abstract socket
 * once its keeper is gone, or keep DLOCK_HELD through sudo: root trusts no other user.
 */
bool nested_trusts(uid_t uid);
/* May an inner dlock with this mode share the hold? 0, DLOCK_EBUSY or DLOCK_EDATA. */
int nested_allows(const struct nested_hold *, enum dlock_mode, unsigned slots);
/* nested_hold.end_at of the newest reply. */
int64_t nested_end_at(struct dlock_be *);

/* An acquire's error: the outer keeper cannot be reached, or does not hold the lock any more. */
static inline bool nested_unreachable(const struct dlock_error *err)
{
    return err->code == DLOCK_EUNUSABLE && (err->sys == ECONNREFUSED || err->sys == ESHUTDOWN);
}

/*
 * An acquire's error: the outer keeper has ended, or is about to release the lock. So a process
 * that waits for the lock does not wait for itself.
 */
static inline bool nested_has_ended(const struct dlock_error *err)
{
    return err->code == DLOCK_EUNUSABLE && err->sys == ESHUTDOWN;
}

/*
 * lock.c: dlock_open() for a parsed URI. Takes *uri over, and sets it to NULL, also on failure.
 * outer: NULL, or of an inner dlock; *outer is the caller's, valid until the close.
 */
int dlock_open_nested(dlock **out, struct dlock_uri **uri, const struct nested_outer *outer,
                      const struct dlock_options *, struct dlock_error *);
/* lock.c: the granted hold. */
void dlock_describe(const dlock *, struct nested_hold *);

#endif
