/*
 * redis.c - what a server answers. The bytes go through hiredis' reader, as those of a connection,
 * and each reply to the readers of the answers of all scripts.
 */
#include "fuzz.h"

#include "backends/redis/script.h"

/* As conn.c bounds an array: hiredis believes the header. */
static void *(*create_array)(const redisReadTask *, redis_conn_elements);
static void *bounded_array(const redisReadTask *task, redis_conn_elements elements)
{
    int depth = 0;
    for (const redisReadTask *t = task; t; t = t->parent)
        depth++;
    return depth > 8 || elements > 4096 ? NULL : create_array(task, elements);
}

static void read_run(const char *text, size_t len)
{
    struct dlock_run run;
    if (run_record_parse(text, len, FUZZ_NOW_MS, &run))
        fuzz_clean_run(&run);
}

static void read_value(const char *value, size_t len)
{
    struct dlock_info info;
    redis_script_holder(value, len, &info);
    fuzz_clean_info(&info);
    FUZZ_HOLDS(redis_script_ttl(value, len) >= 0);
}

static void read_state(const redisReply *r)
{
    struct redis_script_state s;
    struct dlock_info info;
    size_t len;
    if (redis_script_state(r, &s) != 0)
        return;
    read_run(s.run, s.run_len);
    for (size_t i = 0; i < redis_script_holders(&s); i++) {
        const char *value = redis_script_value_at(&s, i, &len);
        if (value)
            read_value(value, len);
        if (redis_script_holder_at(&s, i, &info))
            fuzz_clean_info(&info);
    }
    for (size_t i = 0; i < s.nwaiters; i++) {
        const redisReply *w = s.waiters[i];
        if (w->type == REDIS_REPLY_STRING &&
            redis_script_waiter(w->str, (size_t)w->len, s.now_ms, &info))
            fuzz_clean_info(&info);
    }
}

/* The answers of try, vote, renew, leave, drop, keep, unvote, break and forget. */
static void read_answer(const redisReply *r)
{
    struct redis_script_tried tried;
    struct redis_script_owned owned;
    struct dlock_info info = {0};
    enum redis_script_stepped stepped;
    if (redis_script_tried(r, &tried) == 0) {
        read_value(tried.holder, tried.holder_len);
        read_run(tried.run ? tried.run : tried.holder,
                 tried.run ? tried.run_len : tried.holder_len);
    }
    if (redis_script_owned(r, &owned) == 0 && owned.found) {
        int64_t when;
        read_value(owned.found, owned.len);
        const char *by = redis_script_mark(owned.found, &owned.len, &when);
        dlock_clean_text(info.broken_by, sizeof(info.broken_by), by, owned.len);
        fuzz_clean_info(&info);
    }
    if (redis_script_stepped(r, &stepped) == 0)
        FUZZ_HOLDS((unsigned)stepped <= STEPPED_RECORD);
}

static void read_list(const redisReply *r)
{
    struct redis_script_page page;
    struct dlock_entry entry;
    struct dlock_info holder;
    if (redis_script_page(r, &page) != 0)
        return;
    for (size_t i = 0; i < page.nlocks; i++)
        if (redis_script_listed(page.locks[i], &entry, &holder)) {
            FUZZ_HOLDS(entry.name[0] && entry.holders >= 0 && entry.waiters >= 0);
            if (entry.holder)
                fuzz_clean_info(entry.holder);
        }
}

/* A message of a channel has the form that conn.c has checked. */
static void read_message(const struct redis_script *s, const redisReply *r)
{
    struct redis_script_tried tried;
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 3 ||
        r->element[0]->type != REDIS_REPLY_STRING || strcmp(r->element[0]->str, "message") != 0)
        return;
    enum redis_script_call call = redis_script_called(s, r);
    if ((call == RS_HEAD || call == RS_GO) && redis_script_head(r, &tried))
        read_value(tried.holder, tried.holder_len);
}

static void read_reply(const struct redis_script *s, const redisReply *r)
{
    int64_t left;
    if (r->type == REDIS_REPLY_ERROR) {
        redis_conn_classify(r->str);
        redis_conn_is_vague(r->str);
        redis_conn_explains(r);
        return;
    }
    redis_conn_has_role(r, "master");
    redis_script_looked(r, &left);
    redis_script_shared(r);
    read_answer(r);
    read_state(r);
    read_list(r);
    read_message(s, r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct redis_script script;
    redisReader *reader = redisReaderCreate();
    void *r = NULL;
    FUZZ_HOLDS(reader && redis_script_init(&script, "job", 0) == 0);
    redisReplyObjectFunctions fn = *reader->fn;
    create_array = fn.createArray;
    fn.createArray = bounded_array;
    reader->fn = &fn;
    redisReaderFeed(reader, (const char *)data, size);
    while (redisReaderGetReply(reader, &r) == REDIS_OK && r) {
        read_reply(&script, r);
        freeReplyObject(r);
    }
    redisReaderFree(reader);
    redis_script_done(&script);
    return 0;
}
