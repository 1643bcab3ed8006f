/* backoff.c - random pauses: clients that failed together must not retry together. */
#include "util.h"

void dlock_backoff_reset(struct dlock_backoff *b)
{
    b->cur = b->base;
}

int64_t dlock_backoff_next(struct dlock_backoff *b, const struct dlock_env *env)
{
    int64_t floor = b->base / 2;
    int64_t cap = dlock_min(dlock_max(b->cur, b->base), dlock_max(b->max, b->base));
    uint64_t r;
    b->cur = cap > b->max / 2 ? dlock_max(b->max, b->base) : 2 * cap;
    if (cap <= floor)
        return dlock_max(cap, 0);
    /* Without randomness take the full pause. */
    if (env->random(env->ctx, &r, sizeof(r)) < 0)
        return cap;
    return floor + (int64_t)(r % (uint64_t)(cap - floor + 1));
}
