/*
 * keys.c - the further keys of an advisory lock, each a part of SHA-256(NAME NUL WORD), and so the
 * same for all clients of a lock.
 */
#include "postgres.h"

#include <inttypes.h>
#include <sha2.h>
#include <stdio.h>
#include <string.h>

uint64_t pg_hash(const char *text, size_t len)
{
    uint8_t hash[SHA256_DIGEST_LENGTH];
    SHA2_CTX sha;
    uint64_t n = 0;
    SHA256Init(&sha);
    SHA256Update(&sha, (const uint8_t *)text, len);
    SHA256Final(hash, &sha);
    for (int i = 0; i < 8; i++)
        n = n << 8 | hash[i];
    return n;
}

/* NAME NUL word, or with i >= 0 NAME NUL word NUL i. */
static int64_t hashed(const struct pg_keys *keys, const char *word, int i)
{
    char text[sizeof(keys->name) + 64];
    memcpy(text, keys->name, keys->name_len);
    char *at = text + keys->name_len;
    int len = snprintf(at, 64, i < 0 ? "%c%s" : "%c%s%c%d", '\0', word, '\0', i);
    return (int64_t)pg_hash(text, keys->name_len + (size_t)len);
}

void pg_keys_init(struct pg_backend *be, bool given)
{
    struct pg_keys *keys = &be->advisory.keys;
    /* No name is empty or contains NUL. */
    keys->name_len = (size_t)snprintf(keys->name, sizeof(keys->name), "%s%s", given ? "?" : "",
                                      given ? be->advisory.number : be->store.spec->uri->name);
    if (given)
        keys->name[0] = '\0';
    keys->turnstile = hashed(keys, "turnstile", -1);
    keys->gate = hashed(keys, "gate", -1);
    keys->sizes = hashed(keys, "sizes", -1);
    snprintf(keys->channel, sizeof(keys->channel), "dlock_%016" PRIx64, (uint64_t)keys->gate);
    keys->first_size = hashed(keys, "slots", -1) & ~INT64_C(0xffff);
}

int64_t pg_slot_key(const struct pg_keys *keys, int i)
{
    return hashed(keys, "slot", i);
}

/* NAME NUL "break" NUL pid: any client that sees the holder's session can compute the key. */
int64_t pg_mark_key(const struct pg_keys *keys, long pid)
{
    return hashed(keys, "break", (int)pid);
}

void pg_mark_begin(const struct pg_keys *keys, char *hex)
{
    for (size_t i = 0; i < keys->name_len; i++)
        hex += sprintf(hex, "%02x", (unsigned)(unsigned char)keys->name[i]);
    strcpy(hex, "00627265616b00");
}
