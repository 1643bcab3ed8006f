/*
 * resp.c - what a Redis server sends over a connection, RESP2 or RESP3. The bytes come once in one
 * piece and once in many: replies and error must be the same, and no error shows the password.
 *
 * The input: a byte with bits for the kind of the connection, the length of the pieces, the bytes.
 */
#include "fuzz.h"

#include "../../lib/backends/redis/conn.c"

#define PASSWORD "hunter2-hunter2"

static void show(FILE *f, const redisReply *r)
{
    fprintf(f, " %d", r->type);
    if (r->type == REDIS_REPLY_INTEGER)
        fprintf(f, ":%lld", r->integer);
    if (r->str)
        fwrite(r->str, 1, (size_t)r->len, f);
    for (size_t i = 0; r->type == REDIS_REPLY_ARRAY && i < (size_t)r->elements; i++)
        show(f, r->element[i]);
}

static void check_error(const struct redis_conn *c, const struct dlock_error *err)
{
    FUZZ_HOLDS(err->code < 0 && err->msg[0]);
    fuzz_clean(err->msg, sizeof(err->msg));
    FUZZ_HOLDS(!c->auth.password || !strstr(err->msg, c->auth.password));
}

/* All replies, and the error at the end. Ends with rc of the last look. */
static int take_replies(struct redis_conn *c, FILE *f)
{
    struct redis_conn_reply rep;
    struct dlock_error err;
    int rc;
    while ((rc = redis_conn_next(c, &rep)) == 1) {
        fprintf(f, "\n%d", rep.tag);
        show(f, rep.r);
        if (rep.r->type == REDIS_REPLY_ERROR) {
            redis_conn_reply_error(&err, c, rep.r->str);
            check_error(c, &err);
        }
        freeReplyObject(rep.r);
    }
    if (rc < 0) {
        check_error(c, &c->error);
        fprintf(f, "\n%d %s", rc, c->error.msg);
    }
    return rc;
}

/* What comes out when the bytes come in pieces of so many. The caller frees it. */
static char *receive_all(unsigned how, size_t piece, const uint8_t *p, size_t n)
{
    static const char *const argv[] = {"PING"};
    struct redis_conn c = {.env = &fuzz_env,
                           .where = "redis://h",
                           .fd = -1,
                           .auth = {"user", how & 4 ? PASSWORD : NULL},
                           .push = how & 1,
                           .only_master = how & 2};
    char *text;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    FUZZ_HOLDS(f && redis_conn_open_later(&c, NULL, DLOCK_NEVER) == 0);
    if (how & 8)
        redis_conn_track(&c, 9);
    for (int tag = 1; tag < 6; tag++)
        FUZZ_HOLDS(redis_conn_send(&c, tag, 1, argv) == 0);
    for (int rc = 0; n > 0 && rc >= 0;) {
        size_t part = piece < n ? piece : n;
        if (feed(&c, (const char *)p, part) != REDIS_OK)
            fail_reader(&c);
        p += part;
        n -= part;
        rc = take_replies(&c, f);
    }
    redis_conn_close(&c);
    fclose(f);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz f = {data, size};
    unsigned how = fuzz_byte(&f), piece = 1 + fuzz_byte(&f) % 32;
    char *whole = receive_all(how, SIZE_MAX, f.p, f.n);
    char *pieces = receive_all(how, piece, f.p, f.n);
    FUZZ_HOLDS(strcmp(whole, pieces) == 0);
    if (f.n > 0)
        find_protocol((const char *)f.p, f.n);
    free(whole);
    free(pieces);
    return 0;
}
