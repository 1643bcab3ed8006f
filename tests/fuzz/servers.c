/*
 * servers.c - what a server says of itself to --check: Redis' INFO, CONFIG, TIME and the like, and
 * ZooKeeper's words srvr and conf.
 *
 * The first byte: 'z' for ZooKeeper's text; any other byte has bits for the lock, and the replies
 * of a Redis server follow.
 */
#include "fuzz.h"

#define dlock_wall() (FUZZ_NOW_MS * DLOCK_MSEC)
#include "../../lib/backends/redis/server_check.c"

#pragma GCC diagnostic ignored "-Wunused-function"
#include "../../lib/backends/zookeeper/check.c"

static struct dlock_uri *uri;
static struct redis_script script;

static void clean_up(void)
{
    dlock_uri_free(uri);
    redis_script_done(&script);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    FUZZ_HOLDS(dlock_uri_parse(&uri, "redis://a#job", NULL) == 0 &&
               redis_script_init(&script, "job", 0) == 0);
    atexit(clean_up);
    return 0;
}

static void check_findings(struct findings *f)
{
    FUZZ_HOLDS(f->n <= FINDINGS_MAX && !f->no_memory);
    for (size_t i = 0; i < f->n; i++) {
        const struct dlock_error *err = &f->all[i].error;
        FUZZ_HOLDS(f->all[i].level != DLOCK_FINDING_FAILURE || err->code != 0);
        FUZZ_HOLDS(err->msg[0]);
        fuzz_clean(err->msg, sizeof(err->msg));
    }
    findings_drop(f);
}

/* Replies in the order of the questions. How many questions there are depends on the replies. */
static void judge_redis(struct fuzz *f, unsigned how)
{
    struct redis_node node = {0};
    struct findings found = {0};
    const struct dlock_spec spec = {.env = &fuzz_env, .uri = uri, .ttl = 30 * DLOCK_SEC};
    struct redis_check c = {.spec = &spec,
                            .script = &script,
                            .node = &node,
                            .found = &found,
                            .restart_grace = how & 1 ? 30 * DLOCK_SEC : 0,
                            .wait_replicas = how & 2 ? 1 : 0};
    void *r;
    redis_node_init(&node, &fuzz_env, uri->where, NULL);
    node.can_track = how & 4;
    FUZZ_HOLDS(redis_conn_open_later(&node.cmd, NULL, DLOCK_NEVER) == 0);
    redisReaderFeed(node.cmd.reader, (const char *)f->p, f->n);
    redis_check_begin(&c);
    redis_check_asked(&c, Q_STATUS);
    c.wake = SUB_OVER;
    while (c.nsaid < c.nasked && redisReaderGetReply(node.cmd.reader, &r) == REDIS_OK && r) {
        struct redis_conn_reply rep = {.tag = 1, .sent = FUZZ_NOW - DLOCK_MSEC, .r = r};
        redis_check_answered(&c, &rep);
        FUZZ_HOLDS(!rep.r && c.nasked <= QUESTIONS);
    }
    redis_check_judge(&c);
    fuzz_clean(c.version, sizeof(c.version));
    fuzz_clean(c.run_id, sizeof(c.run_id));
    fuzz_clean(c.policy, sizeof(c.policy));
    redis_check_done(&c);
    check_findings(&found);
    redis_node_done(&node);
}

static void judge_zookeeper(struct fuzz *f)
{
    static struct zk_backend be;
    struct zk_check check = {.words = {.fd = -1}};
    const struct dlock_spec spec = {.env = &fuzz_env, .npeers = 1};
    be = (struct zk_backend){.spec = &spec, .check = &check};
    fuzz_fill(f, check.words.text, sizeof(check.words.text) - 1);
    check_server(&be, "10.0.0.1:2181");
    check_settings(&be, "10.0.0.1:2181");
    check_ensemble(&be);
    check_findings(&be.found);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz f = {data, size};
    unsigned how = fuzz_byte(&f);
    if (how == 'z')
        judge_zookeeper(&f);
    else
        judge_redis(&f, how);
    return 0;
}
