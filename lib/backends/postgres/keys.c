/*
 * keys.c - the further keys of an advisory lock, each a part of SHA-256(NAME NUL WORD), and so the
 * same for all clients of a lock.
 */
#include "postgres.h"

#include <inttypes.h>
#include <sha2.h>
#include <stdio.h>
#include <string.h>

/* The first eight bytes of SHA-256(NAME NUL word), or of NAME NUL word NUL number. */
static uint64_t hashed(const struct pg_keys *keys, const char *word, const char *number)
{
    uint8_t hash[SHA256_DIGEST_LENGTH];
    SHA2_CTX sha;
    uint64_t n = 0;
    SHA256Init(&sha);
    SHA256Update(&sha, (const uint8_t *)keys->name, keys->name_len);
    SHA256Update(&sha, (const uint8_t *)"", 1);
    /* With the NUL at the end of word. */
    SHA256Update(&sha, (const uint8_t *)word, strlen(word) + (number ? 1 : 0));
    if (number)
        SHA256Update(&sha, (const uint8_t *)number, strlen(number));
    SHA256Final(hash, &sha);
    for (int i = 0; i < 8; i++)
        n = n << 8 | hash[i];
    return n;
}

void pg_keys_init(struct pg_backend *be, bool given)
{
    struct pg_keys *keys = &be->advisory.keys;
    /* No name is empty or contains NUL. */
    keys->name_len = (size_t)snprintf(keys->name, sizeof(keys->name), "%s%s", given ? "?" : "",
                                      given ? be->advisory.number : be->spec->uri->name);
    if (given)
        keys->name[0] = '\0';
    keys->turnstile = (int64_t)hashed(keys, "turnstile", NULL);
    keys->gate = (int64_t)hashed(keys, "gate", NULL);
    keys->sizes = (int64_t)hashed(keys, "sizes", NULL);
    snprintf(keys->channel, sizeof(keys->channel), "dlock_%016" PRIx64, (uint64_t)keys->gate);
    keys->first_size = (int64_t)(hashed(keys, "slots", NULL) & ~UINT64_C(0xffff));
}

int64_t pg_slot_key(const struct pg_keys *keys, int i)
{
    char number[16];
    snprintf(number, sizeof(number), "%d", i);
    return (int64_t)hashed(keys, "slot", number);
}
