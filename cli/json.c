/* json.c - flat JSON on a FILE. */
#include "json.h"

#include "util.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CUT "..." /* in place of the text's end */

/*
 * Spell the first character of s for JSON, which is UTF-8; the path of a bare file may hold any
 * byte. Returns its length in s.
 */
static size_t escape(const char *s, size_t left, char out[8])
{
    bool good;
    size_t n = dlock_text_char(s, left, &good);
    if (*s == '"' || *s == '\\')
        snprintf(out, 8, "\\%c", *s);
    else if (good)
        snprintf(out, 8, "%.*s", (int)n, s);
    else if ((unsigned char)*s < 0x20 || *s == 0x7f)
        snprintf(out, 8, "\\u%04x", (unsigned char)*s);
    else
        snprintf(out, 8, "\\ufffd");
    return n;
}

/* most: bytes between the quotes. */
static void quoted(FILE *f, const char *s, size_t most)
{
    size_t len = strlen(s), all = 0, end = 0; /* where to cut, if it must be */
    char c[8];
    for (size_t at = 0; at < len;) {
        at += escape(s + at, len - at, c);
        all += strlen(c);
        if (all <= most - strlen(CUT))
            end = at;
    }
    putc('"', f);
    for (size_t at = 0; at < (all > most ? end : len);) {
        at += escape(s + at, len - at, c);
        fputs(c, f);
    }
    fputs(all > most ? CUT "\"" : "\"", f);
}

static void begin(struct json *j, const char *key)
{
    if (j->more)
        putc(',', j->f);
    j->more = true;
    if (key) {
        quoted(j->f, key, SIZE_MAX);
        putc(':', j->f);
    }
}

void json_open(struct json *j, const char *key, char bracket)
{
    begin(j, key);
    putc(bracket, j->f);
    j->more = false;
}

void json_close(struct json *j, char bracket)
{
    putc(bracket, j->f);
    j->more = true;
}

void json_text(struct json *j, const char *key, const char *value, size_t most)
{
    char *copy = strdup(value);
    begin(j, key);
    if (copy)
        dlock_hide_secrets(copy, false);
    quoted(j->f, copy ? copy : "", most);
    free(copy);
}

void json_str(struct json *j, const char *key, const char *value)
{
    json_text(j, key, value, SIZE_MAX);
}

void json_known(struct json *j, const char *key, const char *value, size_t most)
{
    if (value[0])
        json_text(j, key, value, most);
}

void json_fence(struct json *j, uint64_t fence)
{
    char digits[24];
    snprintf(digits, sizeof(digits), "%" PRIu64, fence);
    if (fence > 0)
        json_str(j, "fence", digits);
}

void json_int(struct json *j, const char *key, int64_t value)
{
    begin(j, key);
    fprintf(j->f, "%" PRId64, value);
}

void json_bool(struct json *j, const char *key, bool value)
{
    begin(j, key);
    fputs(value ? "true" : "false", j->f);
}
