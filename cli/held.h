/*
 * held.h - DLOCK_HELD: the locks that the dlocks above this process hold, "DIGEST:NAME:TOKEN:SOCKET ...", the innermost
 * last. Digest: of the lock's key (nested.h), in hexadecimal; name: the same of the lock's name; socket: of the keeper, "-"
 * where it does not listen.
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

/* Take the next entry that is well-formed from *list, the value of the variable or NULL. False: there is none. */
bool held_next(const char **list, struct held *);
/* The entry of this lock in list, the value of the variable (NULL: unset). False: there is none. */
bool held_find(const char *list, uint64_t digest, struct held *);
/*
 * "DLOCK_HELD=..." with these n entries (at most DLOCK_SET_MAX) behind the others, in the place of those with the same
 * digest; the first ones give way. What is not well-formed is left out. Allocates nothing. Returns buf.
 */
const char *held_add(char buf[HELD_SIZE], const char *list, const struct held *, int n);
/*
 * Is this holder, as the store knows it, a dlock that this process runs under? By its token; or, where the list may lack
 * it (sudo) or the store keeps no token, by its pid on this host. False also where that cannot be known.
 */
bool held_by_ancestor(const char *list, const struct dlock_info *);

#endif
