/*
 * script_answers.c - what the scripts of a lock answer, and the values and waiters' entries that they find. See
 * script.h for their forms.
 *
 * Another program, or a server that is not one, may have written any of it: all of it is checked.
 */
#include "script.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- answers */

static bool is_string(const redisReply *r)
{
    return r->type == REDIS_REPLY_STRING || r->type == REDIS_REPLY_STATUS;
}

static uint64_t to_fence(const redisReply *r)
{
    char *end;
    errno = 0;
    unsigned long long f = strtoull(r->str, &end, 10);
    return errno != 0 || *end != '\0' || f > INT64_MAX ? 0 : f;
}

/* ms, or -1. Another program's lease may be one of centuries: now and some of these must have room in 64 bits of ns. */
static int64_t to_left(const redisReply *r)
{
    return dlock_max(-1, dlock_min(r->integer, INT64_MAX / 4 / DLOCK_MSEC));
}

/* The element that says what time it is there; 0: it does not. */
static int64_t clock_at(const redisReply *r, size_t i)
{
    if (i >= r->elements || r->element[i]->type != REDIS_REPLY_INTEGER)
        return 0;
    return dlock_max(0, r->element[i]->integer);
}

int redis_script_tried(const redisReply *r, struct redis_script_tried *t)
{
    static const char *const words[] = {"granted", "busy", "claim", "grace", "type", "twice"};
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 5 || r->elements > 6 ||
        !is_string(r->element[0]) || !is_string(r->element[1]) ||
        r->element[2]->type != REDIS_REPLY_INTEGER || r->element[3]->type != REDIS_REPLY_INTEGER ||
        !is_string(r->element[4]))
        return DLOCK_EPROTO;
    for (size_t i = 0; i < DLOCK_LEN(words); i++) {
        if (strcmp(words[i], r->element[0]->str) != 0)
            continue;
        *t = (struct redis_script_tried){
            .status = (enum redis_script_status)i,
            .fence = to_fence(r->element[1]),
            .left_ms = to_left(r->element[2]),
            .place = (int)dlock_max(0, dlock_min(r->element[3]->integer, INT32_MAX)),
            .holder = r->element[4]->str,
            .holder_len = (size_t)r->element[4]->len,
            .now_ms = clock_at(r, 5),
        };
        return t->status == RS_GRANTED && t->fence == 0 ? DLOCK_EPROTO : 0;
    }
    return DLOCK_EPROTO;
}

int redis_script_owned(const redisReply *r, bool *ours, const char **found, size_t *len)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 1 ||
        r->element[0]->type != REDIS_REPLY_INTEGER)
        return DLOCK_EPROTO;
    *ours = r->element[0]->integer == 1;
    *found = NULL;
    *len = 0;
    if (r->elements > 1 && is_string(r->element[1])) {
        *found = r->element[1]->str;
        *len = (size_t)r->element[1]->len;
    }
    return 0;
}

bool redis_script_forgotten(const redisReply *r)
{
    return r->elements > 0 && r->element[0]->type == REDIS_REPLY_INTEGER &&
           r->element[0]->integer == 2;
}

int64_t redis_script_owned_at(const redisReply *r)
{
    return r->type == REDIS_REPLY_ARRAY ? clock_at(r, 2) : 0;
}

int redis_script_state(const redisReply *r, struct redis_script_state *s)
{
    if (r->type != REDIS_REPLY_ARRAY || r->elements < 5 ||
        r->element[0]->type != REDIS_REPLY_INTEGER || !is_string(r->element[1]) ||
        r->element[2]->type != REDIS_REPLY_INTEGER || r->element[3]->type != REDIS_REPLY_INTEGER ||
        !is_string(r->element[4]))
        return DLOCK_EPROTO;
    *s = (struct redis_script_state){
        .held = r->element[0]->integer != 0,
        .value = r->element[1]->str,
        .len = (size_t)r->element[1]->len,
        .now_ms = r->element[2]->integer,
        .left_ms = to_left(r->element[3]),
        .fence = to_fence(r->element[4]),
        .waiters = r->element + 5,
        .nwaiters = r->elements - 5,
    };
    return 0;
}

/* -------------------------------------------------------------------- values */

char *redis_script_value(const char *token, const struct dlock_who *who)
{
    char record[1024], *p;
    if (dlock_who_format(who, record, sizeof(record)) < 0)
        snprintf(record, sizeof(record), "dlock1");
    return asprintf(&p, "%s %s", token, record) < 0 ? NULL : p;
}

void redis_script_holder(const char *value, size_t len, struct dlock_info *info)
{
    *info = (struct dlock_info){.left_ns = -1, .mode = DLOCK_EXCLUSIVE};
    if (len > DLOCK_TOKEN_LEN && value[DLOCK_TOKEN_LEN] == ' ' &&
        strspn(value, "0123456789abcdef") == DLOCK_TOKEN_LEN &&
        dlock_who_parse(value + DLOCK_TOKEN_LEN + 1, len - DLOCK_TOKEN_LEN - 1, info)) {
        memcpy(info->token, value, DLOCK_TOKEN_LEN);
        info->token[DLOCK_TOKEN_LEN] = '\0';
    } else {
        info->foreign = true;
    }
}

bool redis_script_waiter(const char *entry, size_t len, int64_t now_ms, struct dlock_info *info)
{
    char *p;
    *info = (struct dlock_info){.waiter = true, .left_ns = -1, .mode = DLOCK_EXCLUSIVE};
    long long alive = strtoll(entry, &p, 10);
    if (p == entry || *p != ' ' || alive < now_ms)
        return false;
    (void)strtoll(p, &p, 10);
    if (*p != ' ')
        return false;
    p++;
    return dlock_who_parse(p, len - (size_t)(p - entry), info);
}
