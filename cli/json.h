/* json.h - writes flat JSON to a FILE: as much of it as --status and --events need. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
    FILE *f;
    bool more; /* a comma is due */
};

void json_open(struct json *, const char *key, char bracket); /* '{' or '['; key NULL: none */
void json_close(struct json *, char bracket);                 /* '}' or ']' */
/* Secrets in a text are hidden; what is not UTF-8 becomes U+FFFD. */
void json_str(struct json *, const char *key, const char *value);
/* The same in at most so many bytes between the quotes (at least 3): a longer text is cut and ends in "...". */
void json_text(struct json *, const char *key, const char *value, size_t most);
void json_int(struct json *, const char *key, int64_t value);
void json_bool(struct json *, const char *key, bool value);

#endif
