/* json.h - writes flat JSON to a FILE: as much of it as --status needs. */
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
void json_str(struct json *, const char *key, const char *value);
void json_int(struct json *, const char *key, int64_t value);

#endif
