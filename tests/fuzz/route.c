/*
 * route.c - which server has the lock: the answers and announcements of sentinels, and what the
 * nodes of a cluster say (CLUSTER NODES, HELLO, MOVED, ASK).
 *
 * The first byte: 's' for three sentinels, whose input is in pieces: a byte that says which of six
 * connections, the length of the piece, the piece; 'c' or 'C' (with TLS) for the replies of a
 * cluster's nodes.
 */
#include "fuzz.h"

#include "../../lib/backends/redis/sentinel.c"

#include "../../lib/backends/redis/cluster.c"

static struct dlock_uri *sentinels, *cluster, *cluster_tls;
static struct redis_script script;

static void clean_up(void)
{
    dlock_uri_free(sentinels);
    dlock_uri_free(cluster);
    dlock_uri_free(cluster_tls);
    redis_script_done(&script);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    FUZZ_HOLDS(dlock_uri_parse(&sentinels, "redis+sentinel://a,b,c/svc#job", NULL) == 0 &&
               dlock_uri_parse(&cluster, "redis://a#job", NULL) == 0 &&
               dlock_uri_parse(&cluster_tls, "rediss://a#job", NULL) == 0 &&
               redis_script_init(&script, "job", 0) == 0);
    atexit(clean_up);
    return 0;
}

/* An address to connect to, as the messages show it. */
static void check_named(const struct redis_named *a)
{
    FUZZ_HOLDS(strnlen(a->host, sizeof(a->host)) < sizeof(a->host) && a->port <= 65535);
    for (const char *p = a->host; *p; p++)
        FUZZ_HOLDS((unsigned char)*p > ' ' && *p != 0x7f);
}

static void check_error(const struct dlock_error *err)
{
    FUZZ_HOLDS(err->code < 0 && err->msg[0]);
    fuzz_clean(err->msg, sizeof(err->msg));
}

/* ---------------------------------------------------------------- Sentinel --- */

static void start_round(struct redis_sentinel *m)
{
    static const char *const argv[] = {"PING"};
    m->since = FUZZ_NOW;
    m->until = FUZZ_NOW + DLOCK_SEC;
    m->master = (struct redis_named){.host = "127.0.0.1", .port = 6379};
    for (int i = 0; i < m->n; i++) {
        struct redis_conn *cmd = &m->one[i].node.cmd, *wake = &m->one[i].node.wake;
        FUZZ_HOLDS(redis_conn_open_later(cmd, NULL, DLOCK_NEVER) == 0 &&
                   redis_conn_open_later(wake, NULL, DLOCK_NEVER) == 0 &&
                   redis_conn_send(cmd, TAG_QUORUM, 1, argv) == 0 &&
                   redis_conn_send(cmd, TAG_ASK, 1, argv) == 0 &&
                   redis_conn_send(wake, TAG_LISTEN, 1, argv) == 0);
        cmd->peers[0].len = (socklen_t)(i + 1); /* three servers, and not one by three names */
    }
}

static void check_sentinels(const struct redis_route *r)
{
    const struct redis_sentinel *m = r->sentinel;
    struct tally t = count(m);
    struct redis_survey s;
    struct redis_named a;
    struct dlock_error err;
    FUZZ_HOLDS(t.votes >= 0 && t.pending >= 0 && t.votes + t.pending + t.unknown <= m->n);
    redis_sentinel_survey(r, &s);
    FUZZ_HOLDS(s.votes >= 0 && s.votes <= s.n && s.quorate <= s.n);
    FUZZ_HOLDS((redis_sentinel_answer(r, 0) == CONFIRM_YES) == (s.votes >= s.quorum));
    int rc = find_master(m, &a, &err);
    if (rc == 1) {
        check_named(&a);
        FUZZ_HOLDS(votes_for(m, &a) >= m->quorum);
    } else if (rc < 0) {
        check_error(&err);
    }
    for (int i = 0; i < m->n; i++) {
        FUZZ_HOLDS(strlen(m->one[i].no_quorum) < sizeof(m->one[i].no_quorum));
        if (m->one[i].says == SAYS_FAILED)
            check_error(&m->one[i].error);
    }
}

static void ask_sentinels(struct fuzz *f)
{
    struct redis_node node = {0};
    const struct dlock_spec spec = {.env = &fuzz_env, .uri = sentinels};
    struct redis_route r = {.spec = &spec, .script = &script, .node = &node};
    redis_node_init(&node, &fuzz_env, sentinels->where, NULL);
    FUZZ_HOLDS(redis_sentinel_open(&r, NULL) == 0);
    start_round(r.sentinel);
    while (f->n > 0) {
        unsigned which = fuzz_byte(f);
        size_t len = fuzz_byte(f);
        struct sentinel *one = &r.sentinel->one[which % 3];
        struct redis_conn *c = which & 4 ? &one->node.wake : &one->node.cmd;
        len = len < f->n ? len : f->n;
        if (c->reader)
            redisReaderFeed(c->reader, (const char *)f->p, len);
        f->p += len;
        f->n -= len;
        take_answers(r.sentinel, one, FUZZ_NOW);
        read_announcements(r.sentinel, one, FUZZ_NOW);
    }
    check_sentinels(&r);
    redis_sentinel_close(&r);
    redis_node_done(&node);
}

/* ----------------------------------------------------------------- cluster --- */

static void list_masters(const struct redis_route *r, const char *text)
{
    struct redis_named *out;
    bool ours;
    int n = redis_cluster_masters(r, text, &ours, &out);
    for (int i = 0; i < n; i++)
        check_named(&out[i]);
    free(out);
}

static void take_reply(struct redis_route *r, redisReply *reply)
{
    const struct redis_cluster *cl = &r->cluster;
    struct dlock_error err;
    if (reply->type == REDIS_REPLY_ERROR) {
        enum redis_verdict v = redis_cluster_judge(r, reply, true);
        FUZZ_HOLDS((v == ROUTE_ASK) == (cl->redirect != 0) && cl->hops <= CLUSTER_HOPS);
        check_error((redis_cluster_error(r, &err, reply->str), &err));
        redis_cluster_lost(r, reply->str);
        redis_cluster_begin(r);
    } else {
        int tag = reply->type == REDIS_REPLY_ARRAY ? T_HELLO : T_NODES;
        if (!redis_cluster_answered(r, &(struct redis_conn_reply){.tag = tag, .r = reply}, &err))
            check_error(&err);
    }
    if (reply->type == REDIS_REPLY_STRING)
        list_masters(r, reply->str);
    FUZZ_HOLDS(cl->n >= 0 && cl->n <= CLUSTER_NODES && cl->owner >= 0 && cl->owner <= cl->n);
    FUZZ_HOLDS(cl->fallback >= 0 && cl->fallback <= cl->n && cl->redirect == 0);
    for (int i = 1; i <= cl->n; i++)
        check_named(&cl->nodes[i]);
}

static void ask_cluster(struct fuzz *f, const struct dlock_uri *uri)
{
    struct redis_node node = {0};
    const struct dlock_spec spec = {.env = &fuzz_env, .uri = (struct dlock_uri *)(uintptr_t)uri};
    struct redis_route r = {.spec = &spec, .script = &script, .node = &node};
    void *reply;
    redis_node_init(&node, &fuzz_env, uri->where, NULL);
    FUZZ_HOLDS(redis_conn_open_later(&node.wake, NULL, DLOCK_NEVER) == 0);
    redisReaderFeed(node.wake.reader, (const char *)f->p, f->n);
    while (node.wake.reader && redisReaderGetReply(node.wake.reader, &reply) == REDIS_OK && reply) {
        take_reply(&r, reply);
        freeReplyObject(reply);
    }
    redis_node_done(&node);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz f = {data, size};
    switch (fuzz_byte(&f)) {
    case 's':
        ask_sentinels(&f);
        break;
    case 'c':
        ask_cluster(&f, cluster);
        break;
    case 'C':
        ask_cluster(&f, cluster_tls);
        break;
    default:
        break;
    }
    return 0;
}
