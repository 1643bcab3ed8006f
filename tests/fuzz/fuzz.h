/*
 * fuzz.h - what the fuzz targets share. A target is one file, NAME.c, with one function for any
 * bytes; NAME.seeds has its seeds, and NAME.dict, if it is there, the words of its language.
 *
 * The sanitizers find memory errors; FUZZ_HOLDS says what else must be true of any input. A target
 * does the same for the same bytes: no clock, no random number and no environment of the caller
 * decides. It makes no process, talks to no other one, and writes only below $TMPDIR.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include "util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define FUZZ_HOLDS(cond)                                                                           \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #cond);                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* The rest of the input. */
struct fuzz {
    const uint8_t *p;
    size_t n;
};

/* The next byte; 0 past the end. */
static inline unsigned fuzz_byte(struct fuzz *f)
{
    if (f->n == 0)
        return 0;
    f->n--;
    return *f->p++;
}

/* A copy with a NUL behind it and nothing else: to read on is an error. The caller frees it. */
static inline char *fuzz_copy(const void *data, size_t n)
{
    char *copy = malloc(n + 1);
    FUZZ_HOLDS(copy);
    if (n > 0)
        memcpy(copy, data, n);
    copy[n] = '\0';
    return copy;
}

/* The next line, without its end, or the rest, as fuzz_copy(). NULL: the input is over. */
static inline char *fuzz_line(struct fuzz *f)
{
    if (f->n == 0)
        return NULL;
    const uint8_t *end = memchr(f->p, '\n', f->n);
    size_t n = end ? (size_t)(end - f->p) : f->n;
    char *line = fuzz_copy(f->p, n);
    n += end != NULL;
    f->p += n;
    f->n -= n;
    return line;
}

/* Up to size bytes of the input, with zeros behind them. */
static inline void fuzz_fill(struct fuzz *f, void *to, size_t size)
{
    size_t n = f->n < size ? f->n : size;
    memset(to, 0, size);
    if (n > 0)
        memcpy(to, f->p, n);
    f->p += n;
    f->n -= n;
}

/* Text for a terminal: it ends within size bytes, is UTF-8, and has no control characters. */
static inline void fuzz_clean(const char *text, size_t size)
{
    size_t len = strnlen(text, size);
    FUZZ_HOLDS(len < size);
    while (len > 0) {
        bool good;
        size_t n = dlock_text_char(text, len, &good);
        FUZZ_HOLDS(good && n <= len);
        text += n;
        len -= n;
    }
}

static inline void fuzz_clean_info(const struct dlock_info *i)
{
    fuzz_clean(i->host, sizeof(i->host));
    fuzz_clean(i->user, sizeof(i->user));
    fuzz_clean(i->command, sizeof(i->command));
    fuzz_clean(i->note, sizeof(i->note));
    fuzz_clean(i->broken_by, sizeof(i->broken_by));
    FUZZ_HOLDS(strnlen(i->token, sizeof(i->token)) <= DLOCK_TOKEN_LEN);
}

static inline void fuzz_clean_run(const struct dlock_run *r)
{
    fuzz_clean(r->host, sizeof(r->host));
    fuzz_clean(r->user, sizeof(r->user));
    fuzz_clean(r->command, sizeof(r->command));
    fuzz_clean(r->note, sizeof(r->note));
    FUZZ_HOLDS(strnlen(r->token, sizeof(r->token)) == DLOCK_TOKEN_LEN);
    FUZZ_HOLDS(r->status >= -1 && r->status <= 255 && r->begin_ms >= 0 && r->end_ms >= 0);
}

/* Unix ms of a store, and a time of ours in ns. */
#define FUZZ_NOW_MS INT64_C(1790000000000)
#define FUZZ_NOW (1000 * DLOCK_SEC)

static inline int64_t fuzz_now(void *ctx)
{
    (void)ctx;
    return FUZZ_NOW;
}
static inline int fuzz_random(void *ctx, void *buf, size_t len)
{
    (void)ctx;
    memset(buf, 7, len);
    return 0;
}
static const struct dlock_env fuzz_env
    __attribute__((unused)) = {.now = fuzz_now, .raw = fuzz_now, .random = fuzz_random};

#endif
