/*
 * held.h - DLOCK_HELD: the locks that the dlocks above this process hold, "DIGEST:NAME:TOKEN:SOCKET
 * ...", the innermost last. DIGEST and NAME: digests of the lock's key (nested.h) and of the lock's
 * name, in hexadecimal. SOCKET: the keeper's, or "-" where the keeper does not listen.
 */
#ifndef CLI_HELD_H
#define CLI_HELD_H

#include "nested.h"

#define HELD_MAX 32
#define HELD_NAME "DLOCK_HELD="
/* "DLOCK_HELD=" and all entries. */
#define HELD_SIZE                                                                                  \
    (sizeof(HELD_NAME) + (size_t)HELD_MAX * (2 * 16 + DLOCK_TOKEN_LEN + NESTED_SOCKET_MAX + 4))

struct held {
    uint64_t digest, name; /* of nested_digest(): the key, the name as DLOCK_NAME has it */
    char token[DLOCK_TOKEN_LEN + 1];
    char socket[NESTED_SOCKET_MAX + 1];
};

/* Take the next well-formed entry from *list, the variable's value or NULL. False: none is left. */
bool held_next(const char **list, struct held *);
/*
 * Go from a keeper to the next keeper above with the same lock and token; with token and socket "",
 * to the innermost keeper of the lock. False: list, the variable's value or NULL, has none.
 */
bool held_above(const char *list, uint64_t digest, struct nested_outer *);
/*
 * "DLOCK_HELD=..." of list's entries and these n (at most DLOCK_SET_MAX) behind them. A new entry
 * replaces those with the same digest, except the first with the same token: the outermost keeper
 * outlives those in between. Where the list is full, its first entries go; malformed entries go
 * always. Allocates nothing. Returns buf.
 */
const char *held_add(char buf[HELD_SIZE], const char *list, const struct held *, int n);
/*
 * Is the holder in this record of the store a dlock above this process? Compares the token; where
 * list may lack the token (sudo) or the store keeps none, the pid on this host. False also where
 * the answer cannot be known.
 */
bool held_by_ancestor(const char *list, const struct dlock_info *);

#endif
