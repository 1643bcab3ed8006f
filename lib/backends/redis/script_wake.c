/*
 * script_wake.c - the connection on which a waiter is called, and the server's word on a key that has changed.
 * See script.h for the messages.
 */
#include "script.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INVALIDATE "__redis__:invalidate"

char *redis_script_channel(const struct redis_script *s, const char *id)
{
    char *p;
    return asprintf(&p, "%swake:%s", s->prefix, id) < 0 ? NULL : p;
}

void redis_script_subscribe(struct redis_conn *c, const char *channel, int id_tag, int wake_tag,
                            int changed_tag)
{
    const char *ask_id[] = {"CLIENT", "ID"};
    const char *wake[] = {"SUBSCRIBE", channel};
    const char *changed[] = {"SUBSCRIBE", INVALIDATE};

    (void)redis_conn_send(c, id_tag, 2, ask_id, (size_t[]){6, 2});
    (void)redis_conn_send(c, wake_tag, 2, wake, (size_t[]){9, strlen(channel)});
    (void)redis_conn_send(c, changed_tag, 2, changed, (size_t[]){9, strlen(INVALIDATE)});
}

bool redis_script_track(struct redis_conn *c, int tag, long long id)
{
    char text[24];
    const char *argv[] = {"CLIENT", "TRACKING", "ON", "REDIRECT", text, "NOLOOP"};
    size_t len[DLOCK_LEN(argv)];

    snprintf(text, sizeof(text), "%lld", id);
    for (size_t i = 0; i < DLOCK_LEN(argv); i++)
        len[i] = strlen(argv[i]);
    return redis_conn_send(c, tag, DLOCK_LEN(argv), argv, len) == 0;
}

static bool names_lock(const struct redis_script *s, const redisReply *keys)
{
    size_t len = strlen(s->name);
    if (keys->type != REDIS_REPLY_ARRAY)
        return true; /* NULL: everything was flushed */
    for (size_t i = 0; i < keys->elements; i++) {
        const redisReply *k = keys->element[i];
        if (k->type == REDIS_REPLY_STRING && (size_t)k->len == len &&
            memcmp(k->str, s->name, len) == 0)
            return true;
    }
    return false;
}

enum redis_script_call redis_script_called(const struct redis_script *s, const redisReply *message)
{
    const redisReply *from = message->element[1], *what = message->element[2];

    if (from->type == REDIS_REPLY_STRING && strcmp(from->str, INVALIDATE) == 0)
        return names_lock(s, what) ? RS_CHANGED : RS_NOTHING;
    if (what->type != REDIS_REPLY_STRING)
        return RS_NOTHING;
    return strcmp(what->str, "go") == 0     ? RS_GO
           : strcmp(what->str, "next") == 0 ? RS_NEXT
           : strcmp(what->str, "head") == 0 ? RS_HEAD
                                            : RS_NOTHING;
}
