/* json.c - flat JSON on a FILE. */
#include "json.h"

#include "util.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The path of a bare file may hold any byte; JSON is UTF-8. */
static void quoted(FILE *f, const char *s)
{
    size_t left = strlen(s);
    putc('"', f);
    while (left > 0) {
        bool good;
        size_t n = dlock_text_char(s, left, &good);
        if (*s == '"' || *s == '\\')
            fprintf(f, "\\%c", *s);
        else if (good)
            fwrite(s, 1, n, f);
        else if ((unsigned char)*s < 0x20 || *s == 0x7f)
            fprintf(f, "\\u%04x", (unsigned char)*s);
        else
            fputs("\\ufffd", f);
        s += n;
        left -= n;
    }
    putc('"', f);
}

static void begin(struct json *j, const char *key)
{
    if (j->more)
        putc(',', j->f);
    j->more = true;
    if (key) {
        quoted(j->f, key);
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

void json_str(struct json *j, const char *key, const char *value)
{
    char *copy = strdup(value);

    begin(j, key);
    if (copy)
        dlock_hide_secrets(copy, false);
    quoted(j->f, copy ? copy : "");
    free(copy);
}

void json_int(struct json *j, const char *key, int64_t value)
{
    begin(j, key);
    fprintf(j->f, "%" PRId64, value);
}
