/* json.h - write flat JSON to a FILE, for --status and --events. */
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
/* Hides secrets in the text; bytes that are not UTF-8 become U+FFFD. */
void json_str(struct json *, const char *key, const char *value);
/* As json_str, with at most this many bytes (3 or more) between the quotes; a cut ends in "...". */
void json_text(struct json *, const char *key, const char *value, size_t most);
/* As json_text, but an empty text is left out. */
void json_known(struct json *, const char *key, const char *value, size_t most);
/* As a string: numbers in JSON are exact only below 2^53. 0 is left out. */
void json_fence(struct json *, uint64_t fence);
void json_int(struct json *, const char *key, int64_t value);
void json_bool(struct json *, const char *key, bool value);

#endif
