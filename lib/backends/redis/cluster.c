/*
 * cluster.c - a lock in a Redis Cluster: on which node it is, and how to get there.
 *
 * All keys of a lock are in one slot, and a slot is on one master. Every other node answers "-MOVED slot
 * host:port" and has executed nothing; then both connections go there, the waiter's second one too: the
 * scripts take a PUBLISH that reaches nobody on their own node for a dead waiter, and SUBSCRIBE is never
 * redirected. A node that does not answer is looked for through the others: what the URI names, and a few
 * that CLUSTER NODES has told of, asked for in time, since the URI's host may be the dead one.
 *
 * While a slot is moved ("resharding") its keys go over one by one. NAME still on the old node: it serves NAME,
 * and fails scripts that want another key which has gone (script.c). NAME not there: "-ASK slot host:port".
 * A renewal, a release and a query are sent on behind ASKING, each of them anew: only the old node knows
 * whether NAME is still there. A try is not: it would make NAME on the new node while the fence and the queue
 * are on the old one, and the operator's MIGRATE would fail on what it finds there. It waits for the end of it.
 */
#include "redis.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#define LIST_AGAIN (60 * DLOCK_SEC)

/* -------------------------------------------------------------------- texts */

enum cluster_hint cluster_hint(const char *text, struct cluster_node *node)
{
    enum cluster_hint hint = HINT_MOVED;
    if (strncmp(text, "MOVED ", 6) == 0)
        text += 6;
    else if (strncmp(text, "ASK ", 4) == 0)
        text += 4, hint = HINT_ASK;
    else
        return HINT_NONE;

    size_t digits = strspn(text, "0123456789");
    if (digits < 1 || digits > 5 || text[digits] != ' ')
        return HINT_BAD;
    text += digits + 1;
    /* "cluster-preferred-endpoint-type hostname", and no name set: the same as none at all. */
    if (strncmp(text, "?:", 2) == 0)
        text++;
    return redis_addr_split(text, strlen(text), node->host, &node->port) ? hint : HINT_BAD;
}

/* The word at *p, which moves behind it; its length. */
static size_t word(const char **p, const char **begin)
{
    *p += strspn(*p, " ");
    *begin = *p;
    *p += strcspn(*p, " \n");
    return (size_t)(*p - *begin);
}

struct line {
    const char *id, *addr, *flags, *master;
    size_t id_len, addr_len, flags_len, master_len;
};

static bool has_flag(const struct line *l, const char *flag)
{
    size_t len = strlen(flag);
    for (const char *p = l->flags; p < l->flags + l->flags_len; p += strcspn(p, ", \n") + 1)
        if (strncmp(p, flag, len) == 0 && strchr(", \n", p[len]) != NULL)
            return true;
    return false;
}

/* Of "ip:port@bus,name": what clients connect to. */
static bool client_addr(const struct line *l, bool names, struct cluster_node *node)
{
    const char *end = l->addr + l->addr_len;
    const char *at = memchr(l->addr, '@', l->addr_len);
    const char *name = at != NULL ? memchr(at, ',', (size_t)(end - at)) : NULL;

    if (!redis_addr_split(l->addr, (size_t)((at != NULL ? at : end) - l->addr), node->host,
                          &node->port))
        return false;
    /* Redis 7.2 adds fields behind the name: ",shard-id=..." */
    if (names && name != NULL && ++name < end && *name != ',') {
        const char *more = memchr(name, ',', (size_t)(end - name));
        return redis_addr_host(name, (size_t)((more != NULL ? more : end) - name), node->host);
    }
    return node->host[0] != '\0';
}

/* The next line, or false at the end. */
static bool next_line(const char **p, struct line *l)
{
    while (**p != '\0') {
        l->id_len = word(p, &l->id);
        l->addr_len = word(p, &l->addr);
        l->flags_len = word(p, &l->flags);
        l->master_len = word(p, &l->master);
        *p += strcspn(*p, "\n");
        *p += **p == '\n';
        if (l->master_len > 0)
            return true;
    }
    return false;
}

int cluster_parse_nodes(const char *text, bool names, struct cluster_node *out, int max)
{
    struct line l, self = {0};
    int n = 0;

    for (const char *p = text; self.id == NULL && next_line(&p, &l);)
        if (has_flag(&l, "myself"))
            self = l;
    for (int replicas = 1; replicas >= 0; replicas--) {
        for (const char *p = text; n < max && next_line(&p, &l);) {
            bool ours = self.id != NULL && l.master_len == self.id_len &&
                        memcmp(l.master, self.id, self.id_len) == 0;
            if (has_flag(&l, "myself") || has_flag(&l, "fail") || has_flag(&l, "noaddr") ||
                has_flag(&l, "handshake"))
                continue;
            if ((replicas ? ours : has_flag(&l, "master")) && client_addr(&l, names, &out[n]))
                n++;
        }
    }
    return n;
}

/* -------------------------------------------------------------------- nodes */

/*
 * Behind Sentinel nothing of a cluster is believed: only the server that a majority of the sentinels names may be
 * spoken to, and a redirection would lead away from it.
 */
static bool may_be_cluster(const struct dlock_be *be)
{
    return be->sentinel == NULL;
}

static void drop_address(struct redis_cluster *cl)
{
    redis_addr_done(&cl->addr);
    cl->addr_of = 0;
}

static int add_node(struct redis_cluster *cl, const struct cluster_node *node)
{
    int i;
    for (i = 1; i <= cl->n; i++)
        if (cl->nodes[i].port == node->port && strcmp(cl->nodes[i].host, node->host) == 0)
            return i;
    if (cl->n < CLUSTER_NODES) {
        i = ++cl->n;
    } else {
        do
            i = 1 + cl->evict++ % CLUSTER_NODES;
        while (i == cl->at || i == cl->guide || i == cl->ask);
        if (cl->addr_of == i)
            drop_address(cl);
    }
    cl->nodes[i] = *node;
    return i;
}

/* The host that cmd is connected to, as a text: a redirection may leave it out. */
static void own_host(const struct dlock_be *be, char host[REDIS_ADDR_HOST])
{
    const struct redis_cluster *cl = &be->cluster;
    const struct dlock_peer *p = &be->cmd.peers[be->cmd.good];
    int node = cl->ask != 0 ? cl->ask : cl->at;

    if (node != 0)
        memcpy(host, cl->nodes[node].host, REDIS_ADDR_HOST);
    else if (be->is_unix)
        strcpy(host, "127.0.0.1");
    else
        snprintf(host, REDIS_ADDR_HOST, "%s",
                 p->host < be->spec->uri->nhosts ? be->spec->uri->hosts[p->host].host : "");
}

void redis_cluster_failed(struct dlock_be *be)
{
    struct redis_cluster *cl = &be->cluster;
    if (!cl->known)
        return;
    cl->listed_at = 0;
    drop_address(cl);
    if (be->wake.state == RC_WAITING) {
        struct dlock_error err;
        dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: the node of the lock is looked for again",
                   redis_where(be));
        redis_conn_give_up(&be->wake, &err);
    }
    if (cl->ask == 0 && cl->at == cl->guide)
        cl->guide = (cl->guide + 1) % (cl->n + 1);
    cl->at = cl->ask != 0 ? cl->at : cl->guide;
    cl->ask = 0;
}

/* --------------------------------------------------------------- connecting */

void redis_cluster_begin(struct dlock_be *be)
{
    be->cluster.hops = 0;
    if (be->cluster.ask != 0)
        redis_close_cmd(be);
    be->cluster.ask = 0;
}

/* A copy: the list of nodes is written anew while a connection lives. */
static void set_tls(struct dlock_be *be, struct redis_conn *c, const char *host)
{
    char *name = be->cluster.tls_host[c == &be->wake];
    if (host != name)
        snprintf(name, REDIS_ADDR_HOST, "%s", host != NULL ? host : "");
    c->tls = be->tls;
    c->tls_host = name;
}

bool redis_cluster_connect(struct dlock_be *be, struct redis_conn *c, int64_t until)
{
    struct redis_cluster *cl = &be->cluster;
    int node = cl->ask != 0 ? cl->ask : cl->at, rc = 1;
    struct dlock_error err;

    if (c == &be->wake && cl->known && be->cmd.state == RC_UP) {
        set_tls(be, c, be->cmd.tls_host);
        (void)redis_conn_open(c, be->spec->env, &be->cmd.peers[be->cmd.good], 1, &be->auth,
                              redis_where(be), until);
        return true;
    }
    if (node == 0)
        return false;
    c->good = 0; /* counted in another list until now */
    set_tls(be, c, cl->nodes[node].host);
    if (redis_conn_open_later(c, be->spec->env, &be->auth, redis_where(be), until) != 0)
        return true;
    if (cl->addr_of != node) {
        drop_address(cl);
        rc = redis_addr_start(&cl->addr, cl->nodes[node].host, cl->nodes[node].port, &err);
        cl->addr_of = rc < 0 ? 0 : node;
    } else if (cl->addr.npeers == 0) {
        rc = 0;
    }
    if (rc > 0)
        (void)redis_conn_aim(c, cl->addr.peers, cl->addr.npeers);
    else if (rc < 0)
        redis_conn_give_up(c, &err);
    return true;
}

int redis_cluster_interest(const struct dlock_be *be, struct pollfd *pfd)
{
    int fd = redis_addr_fd(&be->cluster.addr);
    if (fd < 0)
        return 0;
    *pfd = (struct pollfd){.fd = fd, .events = POLLIN};
    return 1;
}

void redis_cluster_work(struct dlock_be *be)
{
    struct redis_cluster *cl = &be->cluster;
    struct redis_conn *conns[] = {&be->cmd, &be->wake};
    struct dlock_error err;
    int rc;

    if (redis_addr_fd(&cl->addr) < 0 || (rc = redis_addr_result(&cl->addr, &err)) == 0)
        return;
    for (size_t i = 0; i < DLOCK_LEN(conns); i++) {
        if (conns[i]->state != RC_WAITING)
            continue;
        if (rc > 0)
            (void)redis_conn_aim(conns[i], cl->addr.peers, cl->addr.npeers);
        else
            redis_conn_give_up(conns[i], &err);
    }
    if (rc < 0)
        drop_address(cl);
}

bool redis_cluster_strayed(const struct dlock_be *be)
{
    const struct dlock_peer *c = &be->cmd.peers[be->cmd.good];
    const struct dlock_peer *w = &be->wake.peers[be->wake.good];
    if (!be->cluster.known || be->cmd.state != RC_UP || be->wake.state != RC_UP)
        return false;
    return c->len != w->len || memcmp(&c->addr, &w->addr, c->len) != 0;
}

/* ---------------------------------------------------------------- redirected */

/* Send what is being done once more, to where the lock is now. */
static void again(struct dlock_be *be, bool moved)
{
    redis_close_cmd(be);
    switch (be->doing) {
    case DO_ACQUIRE:
        redis_try_again(be, moved);
        break;
    case DO_RENEW:
        redis_send_renew(be);
        break;
    case DO_RELEASE:
        redis_send_leave(be);
        break;
    case DO_ASK:
        redis_ask_now(be);
        break;
    case DO_NOTHING:
        break;
    }
}

static bool concerns(enum redis_doing doing, int tag)
{
    static const int tags[] = {
        [DO_ACQUIRE] = T_TRY, [DO_RENEW] = T_RENEW, [DO_RELEASE] = T_LEAVE, [DO_ASK] = T_ASK};
    return doing != DO_NOTHING && tags[doing] == tag;
}

bool redis_cluster_redirected(struct dlock_be *be, const struct redis_conn_reply *rep)
{
    struct redis_cluster *cl = &be->cluster;
    struct cluster_node node;

    if (!may_be_cluster(be) || be->cmd.auth_failed || !concerns(be->doing, rep->tag))
        return false;
    if (rep->r->type != REDIS_REPLY_ERROR) {
        cl->hops = 0;
        return false;
    }
    enum cluster_hint hint = cluster_hint(rep->r->str, &node);
    if (hint == HINT_NONE)
        return false;
    cl->known = true;
    if (hint == HINT_BAD || redis_cluster_refuses(be, NULL))
        return false;
    if (hint == HINT_ASK && be->doing == DO_ACQUIRE)
        return false;
    if (cl->hops >= CLUSTER_HOPS)
        return false;
    cl->hops++;
    if (node.host[0] == '\0')
        own_host(be, node.host);
    int to = add_node(cl, &node);
    if (hint == HINT_MOVED) {
        cl->at = to;
        cl->ask = 0;
        cl->listed_at = 0;
    } else {
        cl->ask = to;
    }
    again(be, hint == HINT_MOVED);
    return true;
}

bool redis_cluster_elsewhere(struct dlock_be *be)
{
    struct redis_cluster *cl = &be->cluster;
    /* A server may close a connection that was idle: it is asked first. */
    if (!cl->known || be->doing == DO_NOTHING)
        return false;
    redis_cluster_failed(be);
    if (be->cmd.written || cl->hops >= CLUSTER_HOPS)
        return false;
    cl->hops++;
    again(be, false);
    return true;
}

bool redis_cluster_lost(struct dlock_be *be, const char *text)
{
    struct cluster_node node;
    if (!may_be_cluster(be))
        return false;
    if (strncmp(text, "CLUSTERDOWN", 11) == 0)
        be->cluster.known = true;
    else if (!be->cluster.known ||
             (cluster_hint(text, &node) != HINT_MOVED && redis_conn_classify(text) != RE_REPLICA))
        return false;
    redis_cluster_failed(be);
    return true;
}

/* ------------------------------------------------------------------ messages */

bool redis_cluster_refuses(const struct dlock_be *be, struct dlock_error *err)
{
    if (be->script.torn)
        dlock_fail(err, DLOCK_EUSAGE, 0,
                   "%s: the name '%s' cannot be used in a cluster: with a '}', and no {tag} in it, "
                   "the keys of the lock would be on several nodes",
                   redis_where(be), be->spec->uri->name);
    else if (strcmp(be->script.db, "0") != 0)
        dlock_fail(err, DLOCK_EUSAGE, 0, "%s: a cluster has no database %s, only 0",
                   redis_where(be), be->script.db);
    else
        return false;
    return true;
}

int redis_reply_error(struct dlock_be *be, struct dlock_error *err, const char *text)
{
    struct cluster_node node;
    if (!may_be_cluster(be))
        return redis_conn_reply_error(err, redis_where(be), &be->auth, text);
    enum cluster_hint hint = cluster_hint(text, &node);
    bool apart = strstr(text, "non local key") != NULL || strstr(text, "same slot") != NULL;

    char t[120];
    redis_conn_show(t, sizeof(t), &be->auth, text);
    be->cluster.known = be->cluster.known || hint != HINT_NONE || apart;
    if ((hint != HINT_NONE || apart) && redis_cluster_refuses(be, err))
        return DLOCK_EUSAGE;
    if (hint == HINT_BAD)
        return dlock_fail(err, DLOCK_EPROTO, 0, "%s: a redirection that leads nowhere: %s",
                          redis_where(be), t);
    if (hint == HINT_MOVED)
        return dlock_fail(err, DLOCK_EUNAVAIL, 0,
                          "%s: the nodes of the cluster send us from one to the other (%s)",
                          redis_where(be), t);
    if (hint == HINT_ASK || apart)
        return dlock_fail(
            err, DLOCK_EUNAVAIL, 0,
            "%s: the cluster is moving the slot of the lock '%s' to another node (%s)",
            redis_where(be), be->spec->uri->name, t);
    return redis_conn_reply_error(err, redis_where(be), &be->auth, text);
}

/* ------------------------------------------------------------- other nodes */

static void send_words(struct dlock_be *be, int tag, const char *a, const char *b)
{
    const char *argv[] = {a, b};
    (void)redis_conn_send(&be->cmd, tag, b != NULL ? 2 : 1, argv,
                          (size_t[]){strlen(a), b != NULL ? strlen(b) : 0});
}

void redis_cluster_asking(struct dlock_be *be)
{
    if (be->cluster.ask != 0)
        send_words(be, T_NONE, "ASKING", NULL);
}

/*
 * HELLO needs no right and says "mode cluster", so that a server that is none is asked for nothing else, and
 * no ACL's log fills up with what dlock wanted to know.
 */
void redis_cluster_hello(struct dlock_be *be)
{
    if (be->cluster.known || be->cluster.hello_sent || !may_be_cluster(be))
        return;
    be->cluster.hello_sent = true;
    send_words(be, T_HELLO, "HELLO", "2");
}

void redis_cluster_learn(struct dlock_be *be)
{
    struct redis_cluster *cl = &be->cluster;
    int64_t now = redis_now(be);

    if (be->cmd.state != RC_UP || cl->ask != 0)
        return;
    redis_cluster_hello(be);
    if (cl->known && (cl->listed_at == 0 || now - cl->listed_at >= LIST_AGAIN)) {
        cl->listed_at = now;
        send_words(be, T_NODES, "CLUSTER", "NODES");
    }
}

void redis_cluster_hello_answered(struct dlock_be *be, const redisReply *r)
{
    if (r->type != REDIS_REPLY_ARRAY)
        return;
    for (size_t i = 0; i + 1 < r->elements; i += 2) {
        const redisReply *k = r->element[i], *v = r->element[i + 1];
        if (k->type == REDIS_REPLY_STRING && v->type == REDIS_REPLY_STRING &&
            strcmp(k->str, "mode") == 0 && strcmp(v->str, "cluster") == 0)
            be->cluster.known = true;
    }
    struct dlock_error err;
    if (be->doing == DO_ACQUIRE && be->cluster.known && redis_cluster_refuses(be, &err)) {
        redis_wait_fail(be, &err); /* the try behind it is undone by the release that follows */
        return;
    }
    redis_cluster_learn(be);
    redis_conn_flush(&be->cmd);
}

void redis_cluster_nodes_answered(struct dlock_be *be, const redisReply *r)
{
    struct redis_cluster *cl = &be->cluster;
    struct cluster_node at = cl->nodes[cl->at], told[CLUSTER_NODES];
    bool names = strncmp(be->spec->uri->scheme, "rediss", 6) == 0;

    if (r->type != REDIS_REPLY_STRING) /* no right to ask: the URI's hosts have to do */
        return;
    int n = cluster_parse_nodes(r->str, names, told, CLUSTER_NODES - 1);
    if (n == 0 || cl->ask != 0)
        return;
    cl->n = cl->guide = 0;
    cl->addr_of = cl->addr_of == cl->at && cl->at != 0 ? 1 : 0;
    if (cl->at != 0)
        cl->at = add_node(cl, &at);
    for (int i = 0; i < n; i++)
        (void)add_node(cl, &told[i]);
}

void redis_cluster_done(struct dlock_be *be)
{
    drop_address(&be->cluster);
}
