/* token.c - owner tokens: random, used once, the proof of ownership of a lock. */
#include "util.h"

int dlock_token_new(const struct dlock_env *env, char out[DLOCK_TOKEN_LEN + 1])
{
    static const char hex[] = "0123456789abcdef";
    unsigned char bytes[DLOCK_TOKEN_LEN / 2];
    int r = env->random(env->ctx, bytes, sizeof(bytes));
    if (r < 0)
        return r;
    for (size_t i = 0; i < sizeof(bytes); i++) {
        out[2 * i] = hex[bytes[i] >> 4];
        out[2 * i + 1] = hex[bytes[i] & 15];
    }
    out[DLOCK_TOKEN_LEN] = '\0';
    return 0;
}
