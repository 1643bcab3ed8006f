/*
 * conn_replies.c - what the server says: bytes to replies, and which command each of them answers. The answers
 * to our own AUTH and ROLE are judged here.
 *
 * Bounds against a server that is not one: a reply is at most REDIS_CONN_MAX_REPLY
 * bytes and REDIS_CONN_MAX_ITEMS array entries, REDIS_CONN_MAX_DEPTH arrays deep.
 */
#include "conn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REDIS_CONN_MAX_ITEMS 4096
#define REDIS_CONN_MAX_DEPTH 8 /* hiredis 0.14 has this limit itself, later ones none */

/* -------------------------------------------------------------------- reader */

/* hiredis allocates by what the header says: "*2000000000" would cost 16 GB before the first entry came. */
static void *bounded_array(const redisReadTask *task, redis_conn_elements elements)
{
    struct redis_conn *c = task->privdata;
    int depth = 0; /* freeReplyObject() recurses */
    for (const redisReadTask *t = task; t != NULL; t = t->parent)
        if (++depth > REDIS_CONN_MAX_DEPTH)
            return NULL;
    return elements > REDIS_CONN_MAX_ITEMS ? NULL : c->create_array(task, elements);
}

bool redis_conn_new_reader(struct redis_conn *c)
{
    c->reader = redisReaderCreate();
    if (c->reader == NULL)
        return false;
    c->fn = *c->reader->fn;
    c->create_array = c->fn.createArray;
    c->fn.createArray = bounded_array;
    c->reader->fn = &c->fn;
    c->reader->privdata = c;
    return true;
}

/* ------------------------------------------------------------------- replies */

/* Our AUTH was answered. The connection stays: what went out behind it may need to be undone on it. */
static void auth_answered(struct redis_conn *c, const redisReply *r)
{
    /* A password nobody asked for (REDISCLI_AUTH is meant for another server) harms nothing; redis-cli goes on too. */
    if (r->type != REDIS_REPLY_ERROR || strstr(r->str, "without any password configured") != NULL)
        return;
    c->auth_failed = true;
    redis_conn_auth_error(&c->error, c->where, &c->auth, r->str);
}

/* Whatever else was answered by a server that is no master counts for nothing. False: failed. */
static bool role_answered(struct redis_conn *c, const redisReply *r)
{
    if (c->auth_failed) /* that is the reason, and what it concerns is still to be handed out */
        return true;
    if (r->type == REDIS_REPLY_ERROR) {
        redis_conn_drop_socket(c);
        c->state = RC_FAILED;
        redis_conn_reply_error(&c->error, c->where, &c->auth, r->str);
        return false;
    }
    if (r->type == REDIS_REPLY_ARRAY && r->elements > 0 &&
        r->element[0]->type == REDIS_REPLY_STRING && strcmp(r->element[0]->str, "master") == 0)
        return true;
    c->is_replica = true;
    redis_conn_fail(c, DLOCK_EUNAVAIL, 0, "the server is not the master (any more)");
    return false;
}

static bool is_push(const struct redis_conn *c, const redisReply *r)
{
    return c->push && r->type == REDIS_REPLY_ARRAY && r->elements == 3 &&
           r->element[0]->type == REDIS_REPLY_STRING && strcmp(r->element[0]->str, "message") == 0;
}

/*
 * hiredis has no memory left, too, when the server announces more than there is anywhere: what a reply of ours may
 * need is there then.
 */
static bool is_out_of_memory(const struct redis_conn *c)
{
    void *volatile most; /* or a compiler leaves it out, and says that there was memory */
    bool none;

    if (c->reader->err != REDIS_ERR_OOM)
        return false;
    most = malloc(REDIS_CONN_MAX_REPLY);
    none = most == NULL;
    free(most);
    return none;
}

int redis_conn_fail_reader(struct redis_conn *c)
{
    char t[192];
    if (is_out_of_memory(c))
        return redis_conn_fail(c, DLOCK_ENOMEM, 0, "out of memory");
    snprintf(t, sizeof(t), "the answer is not the Redis protocol: %.127s", c->reader->errstr);
    return redis_conn_fail(c, DLOCK_EPROTO, 0, t);
}

/* A reply, or NULL with *rc 0 (none) or negative (failed). */
static redisReply *next_reply(struct redis_conn *c, int *rc)
{
    void *p = NULL;
    *rc = 0;
    if (c->reader != NULL && redisReaderGetReply(c->reader, &p) != REDIS_OK) {
        *rc = redis_conn_fail_reader(c);
        redisReaderFree(c->reader); /* unusable after an error */
        c->reader = NULL;
        return NULL;
    }
    if (p != NULL) {
        c->fed = c->reader->len - c->reader->pos;
        return p;
    }
    if (c->state == RC_FAILED)
        *rc = c->error.code;
    else if (c->fed > REDIS_CONN_MAX_REPLY)
        *rc = redis_conn_fail(c, DLOCK_EPROTO, 0, "the answer is not the Redis protocol: too long");
    return NULL;
}

int redis_conn_next(struct redis_conn *c, struct redis_conn_reply *out)
{
    for (;;) {
        int rc;
        redisReply *r = next_reply(c, &rc);
        if (r == NULL)
            return rc;
        *out = (struct redis_conn_reply){.tag = REDIS_CONN_PUSH, .r = r};
        if (is_push(c, r))
            return 1;
        if (c->ntags == 0) {
            /* Said without being asked: "-ERR max number of clients reached", "-DENIED". */
            if (r->type == REDIS_REPLY_ERROR && !c->auth_failed) {
                redis_conn_drop_socket(c);
                c->state = RC_FAILED;
                rc = redis_conn_reply_error(&c->error, c->where, &c->auth, r->str);
            } else {
                rc = redis_conn_fail(c, DLOCK_EPROTO, 0, "an answer that nobody asked for");
            }
            freeReplyObject(r);
            return rc;
        }
        out->tag = c->tags[0].tag;
        out->sent = c->tags[0].sent;
        memmove(c->tags, c->tags + 1, sizeof(c->tags[0]) * (size_t)--c->ntags);
        if (out->tag != REDIS_CONN_AUTH && out->tag != REDIS_CONN_ROLE)
            return 1;
        bool good = true;
        if (out->tag == REDIS_CONN_AUTH)
            auth_answered(c, r);
        else
            good = role_answered(c, r);
        freeReplyObject(r);
        if (!good) {
            redisReaderFree(c->reader);
            c->reader = NULL;
            return c->error.code;
        }
    }
}
