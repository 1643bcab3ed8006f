/* seen.h - a set of texts by their digests: SCAN may tell a key twice. */
#ifndef DLOCK_REDIS_SEEN_H
#define DLOCK_REDIS_SEEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed memory is the empty set. 16 bytes a text, at most. */
struct redis_seen {
    uint64_t *at; /* open addressing; 0: free */
    size_t n, cap;
};
enum redis_seen_add { SEEN_NEW, SEEN_BEFORE, SEEN_NO_MEMORY };
enum redis_seen_add redis_seen_add(struct redis_seen *, const char *text);
void redis_seen_done(struct redis_seen *);

#endif
