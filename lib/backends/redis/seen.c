/* seen.c - see seen.h. */
#include "seen.h"

#include <stdlib.h>

void redis_seen_done(struct redis_seen *s)
{
    free(s->at);
    *s = (struct redis_seen){0};
}

/* Where a digest is, or would be. */
static size_t seen_slot(const struct redis_seen *s, uint64_t digest)
{
    size_t i = digest & (s->cap - 1);
    while (s->at[i] != 0 && s->at[i] != digest)
        i = (i + 1) & (s->cap - 1);
    return i;
}

enum redis_seen_add redis_seen_add(struct redis_seen *s, const char *text)
{
    uint64_t digest = UINT64_C(14695981039346656037); /* FNV-1a */
    for (const char *p = text; *p; p++)
        digest = (digest ^ (unsigned char)*p) * UINT64_C(1099511628211);
    digest += digest == 0;
    if (2 * s->n >= s->cap) {
        struct redis_seen more = {.n = s->n, .cap = s->cap > 0 ? 2 * s->cap : 256};
        more.at = calloc(more.cap, sizeof(*more.at));
        if (!more.at)
            return SEEN_NO_MEMORY;
        for (size_t i = 0; i < s->cap; i++)
            if (s->at[i] != 0)
                more.at[seen_slot(&more, s->at[i])] = s->at[i];
        free(s->at);
        *s = more;
    }
    size_t i = seen_slot(s, digest);
    if (s->at[i] != 0)
        return SEEN_BEFORE;
    s->at[i] = digest;
    s->n++;
    return SEEN_NEW;
}
