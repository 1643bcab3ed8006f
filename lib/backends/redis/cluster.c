/*
 * cluster.c - a lock in a Redis Cluster: which node has the lock, and how to connect to this node.
 *
 * All keys of a lock are in one slot, and one master owns a slot. Every other node answers "-MOVED
 * slot host:port" and has executed nothing; then both connections go to the named node. The
 * waiter's second connection, too: the scripts take a PUBLISH without a receiver on their own node
 * for a dead waiter, and SUBSCRIBE is never redirected. Where a node does not answer, we ask the
 * URI's hosts and a few nodes from CLUSTER NODES. This list is asked for in time, since the URI's
 * host may be dead.
 *
 * While a slot is moved ("resharding") its keys move one by one. While NAME is still on the old
 * node, the old node serves NAME and fails scripts that need a key that has left (script.c). Once
 * NAME has left, the old node answers "-ASK slot host:port". A renewal, a release and a query are
 * then sent to the new node behind ASKING, each of them anew: only the old node knows whether NAME
 * is still there. A try waits for the end of the move: it would create NAME on the new node while
 * the fence and the queue are on the old node, and the operator's MIGRATE would fail because NAME
 * exists on the new node.
 */
#include "route.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * Redirections followed in a row. Behind Sentinel none: they would lead away from the server that a
 * majority of the sentinels names, and no other server may be asked.
 */
#define CLUSTER_HOPS 5
#define LIST_AGAIN (60 * DLOCK_SEC)

/* -------------------------------------------------------------------- texts */

enum cluster_hint {
    HINT_NONE,  /* not a redirection */
    HINT_MOVED, /* the slot is there */
    HINT_ASK,   /* the key may be there; the slot is being moved there */
    HINT_BAD    /* a malformed redirection */
};

/* "MOVED 3999 127.0.0.1:6381". host comes out as "" for the answering host. */
static enum cluster_hint cluster_hint(const char *text, struct redis_named *node)
{
    enum cluster_hint hint = HINT_MOVED;
    if (strncmp(text, "MOVED ", 6) == 0) {
        text += 6;
    } else if (strncmp(text, "ASK ", 4) == 0) {
        text += 4;
        hint = HINT_ASK;
    } else {
        return HINT_NONE;
    }
    size_t digits = strspn(text, "0123456789");
    if (digits < 1 || digits > 5 || text[digits] != ' ')
        return HINT_BAD;
    text += digits + 1;
    /* "cluster-preferred-endpoint-type hostname", and no name set: the same as none at all. */
    if (strncmp(text, "?:", 2) == 0)
        text++;
    return redis_addr_split(text, strlen(text), node) ? hint : HINT_BAD;
}

struct line {
    char id[64], addr[400], flags[128], master[64];
    bool slots; /* the node serves some */
};

static bool has_flag(const struct line *l, const char *flag)
{
    char flags[sizeof(l->flags) + 2], wanted[32];
    snprintf(flags, sizeof(flags), ",%s,", l->flags);
    snprintf(wanted, sizeof(wanted), ",%s,", flag);
    return strstr(flags, wanted);
}

/* Of "ip:port@bus,name": what clients connect to. */
static bool client_addr(const struct line *l, bool names, struct redis_named *node)
{
    size_t at = strcspn(l->addr, "@");
    const char *name = strchr(l->addr + at, ',');
    if (!redis_addr_split(l->addr, at, node))
        return false;
    /* Redis 7.2 adds fields behind the name: ",shard-id=..." */
    size_t len = name ? strcspn(++name, ",") : 0;
    if (names && len > 0)
        return redis_addr_host(name, len, node->host);
    return node->host[0] != '\0';
}

/* The next line, or false at the end. */
static bool next_line(const char **p, struct line *l)
{
    char text[1024]; /* a copy, cut: sscanf() looks for the end of its text */
    while (**p != '\0') {
        size_t len = strcspn(*p, "\n");
        snprintf(text, sizeof(text), "%.*s", (int)len, *p);
        *p += len + ((*p)[len] == '\n');
        char slot[2];
        int got = sscanf(text, " %63[^ ] %399[^ ] %127[^ ] %63[^ ] %*s %*s %*s %*s %1s", l->id,
                         l->addr, l->flags, l->master, slot);
        l->slots = got == 5;
        if (got >= 4)
            return true;
    }
    return false;
}

/*
 * The answer to CLUSTER NODES: at most max further nodes, without nodes known to have failed. First
 * the replicas of the answering node (a replica takes over from it), then the masters. names: host
 * names where the nodes have names, instead of addresses. Returns the number of nodes.
 */
static int cluster_parse_nodes(const char *text, bool names, struct redis_named *out, int max)
{
    struct line l, self = {0};
    int n = 0;
    for (const char *p = text; self.id[0] == '\0' && next_line(&p, &l);)
        if (has_flag(&l, "myself"))
            self = l;
    for (int replicas = 1; replicas >= 0; replicas--) {
        for (const char *p = text; n < max && next_line(&p, &l);) {
            bool ours = strcmp(l.master, self.id) == 0;
            if (has_flag(&l, "myself") || has_flag(&l, "fail") || has_flag(&l, "noaddr") ||
                has_flag(&l, "handshake"))
                continue;
            if ((replicas ? ours : has_flag(&l, "master")) && client_addr(&l, names, &out[n]))
                n++;
        }
    }
    return n;
}

int redis_cluster_masters(const struct redis_route *r, const char *nodes, bool *ours,
                          struct redis_named **out)
{
    bool names = strncmp(r->spec->uri->scheme, "rediss", 6) == 0;
    struct line l;
    int n = 0, cap = 0;
    *ours = false;
    *out = NULL;
    for (const char *p = nodes; next_line(&p, &l);) {
        if (!has_flag(&l, "master") || !l.slots)
            continue;
        if (has_flag(&l, "myself")) {
            *ours = true;
            continue;
        }
        if (n == cap) {
            cap = cap > 0 ? 2 * cap : 16;
            struct redis_named *more = realloc(*out, (size_t)cap * sizeof(**out));
            if (!more)
                return DLOCK_ENOMEM;
            *out = more;
        }
        if (!client_addr(&l, names, &(*out)[n]))
            return DLOCK_EPROTO;
        n++;
    }
    return n;
}

/* -------------------------------------------------------------------- nodes */

static void drop_address(struct redis_cluster *cl)
{
    redis_addr_done(&cl->addr);
    cl->addr_of = 0;
}

static int add_node(struct redis_cluster *cl, const struct redis_named *node)
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
        while (i == cl->owner || i == cl->fallback || i == cl->redirect);
        if (cl->addr_of == i)
            drop_address(cl);
    }
    cl->nodes[i] = *node;
    return i;
}

void redis_cluster_failed(struct redis_route *r)
{
    struct redis_cluster *cl = &r->cluster;
    if (!cl->known)
        return;
    cl->listed_at = 0;
    drop_address(cl);
    if (r->node->wake.state == RC_WAITING) {
        struct dlock_error err;
        dlock_fail_at(&err, DLOCK_EUNAVAIL, 0, r->spec->uri->where,
                      "looking for the lock's node again");
        redis_conn_give_up(&r->node->wake, &err);
    }
    if (cl->redirect == 0 && cl->owner == cl->fallback)
        cl->fallback = (cl->fallback + 1) % (cl->n + 1);
    cl->owner = cl->redirect != 0 ? cl->owner : cl->fallback;
    cl->redirect = 0;
}

void redis_cluster_visit(struct redis_route *r, const struct redis_named *node)
{
    redis_node_close(r->node);
    r->cluster.known = true;
    r->cluster.redirect = 0;
    r->cluster.owner = add_node(&r->cluster, node);
}

/* --------------------------------------------------------------- connecting */

void redis_cluster_begin(struct redis_route *r)
{
    r->cluster.hops = 0;
    if (r->cluster.redirect != 0)
        redis_node_close(r->node);
    r->cluster.redirect = 0;
}

bool redis_cluster_connect(struct redis_route *r, struct redis_conn *c, int64_t until)
{
    struct redis_cluster *cl = &r->cluster;
    const struct redis_conn *cmd = &r->node->cmd;
    int node = cl->redirect != 0 ? cl->redirect : cl->owner, rc = 1;
    bool to_cmd = c == &r->node->wake && cl->known && cmd->state == RC_UP;
    struct dlock_error err;
    if (!to_cmd && node == 0)
        return false;
    if (to_cmd) {
        (void)redis_conn_open(c, cmd->tls_host, until, &cmd->peers[cmd->good], 1);
        return true;
    }
    c->good = 0; /* the index was valid in the last list of addresses */
    if (redis_conn_open_later(c, cl->nodes[node].host, until) != 0)
        return true;
    if (cl->addr_of != node) {
        drop_address(cl);
        rc = redis_addr_start(&cl->addr, &cl->nodes[node], &err);
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

int redis_cluster_interest(const struct redis_route *r, struct pollfd *pfd)
{
    int fd = redis_addr_fd(&r->cluster.addr);
    if (fd < 0)
        return 0;
    *pfd = (struct pollfd){.fd = fd, .events = POLLIN};
    return 1;
}

void redis_cluster_work(struct redis_route *r)
{
    struct redis_cluster *cl = &r->cluster;
    struct redis_conn *conns[] = {&r->node->cmd, &r->node->wake};
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

bool redis_cluster_nodes_differ(const struct redis_route *r)
{
    const struct redis_conn *cmd = &r->node->cmd, *wake = &r->node->wake;
    return r->cluster.known && cmd->state == RC_UP && wake->state == RC_UP &&
           !redis_same_peer(&cmd->peers[cmd->good], &wake->peers[wake->good]);
}

/* ---------------------------------------------------------------- redirected */

/* Can this lock not be in a cluster? err says why. */
static bool refuses(const struct redis_route *r, struct dlock_error *err)
{
    if (r->script->torn)
        dlock_fail_at(err, DLOCK_EUSAGE, 0, r->spec->uri->where,
                      "the name '%s' cannot be used in a cluster: it has a '}', but no {tag}",
                      r->spec->uri->name);
    else if (strcmp(r->script->db, "0") != 0)
        dlock_fail_at(err, DLOCK_EUSAGE, 0, r->spec->uri->where,
                      "a cluster has no database %s, only 0", r->script->db);
    else
        return false;
    return true;
}

enum redis_verdict redis_cluster_judge(struct redis_route *r, const redisReply *reply,
                                       bool follow_ask)
{
    struct redis_cluster *cl = &r->cluster;
    struct redis_named node;
    if (r->sentinel)
        return ROUTE_PASS;
    if (reply->type != REDIS_REPLY_ERROR) {
        cl->hops = 0;
        return ROUTE_PASS;
    }
    enum cluster_hint hint = cluster_hint(reply->str, &node);
    if (hint == HINT_NONE)
        return ROUTE_PASS;
    cl->known = true;
    if (hint == HINT_BAD || refuses(r, NULL) || (hint == HINT_ASK && !follow_ask) ||
        cl->hops >= CLUSTER_HOPS)
        return ROUTE_PASS;
    cl->hops++;
    if (node.host[0] == '\0') { /* left out: the host that cmd is connected to */
        const struct dlock_uri *uri = r->spec->uri;
        int from = cl->redirect != 0 ? cl->redirect : cl->owner;
        int host = r->node->cmd.peers[r->node->cmd.good].host;
        snprintf(node.host, sizeof(node.host), "%s",
                 from != 0            ? cl->nodes[from].host
                 : r->is_unix         ? "127.0.0.1"
                 : host < uri->nhosts ? uri->hosts[host].host
                                      : "");
    }
    int to = add_node(cl, &node);
    if (hint == HINT_ASK) {
        cl->redirect = to;
        return ROUTE_ASK;
    }
    cl->owner = to;
    cl->redirect = 0;
    cl->listed_at = 0;
    return ROUTE_MOVED;
}

bool redis_cluster_elsewhere(struct redis_route *r)
{
    struct redis_cluster *cl = &r->cluster;
    if (!cl->known)
        return false;
    redis_cluster_failed(r);
    if (r->node->cmd.written || cl->hops >= CLUSTER_HOPS)
        return false;
    cl->hops++;
    return true;
}

bool redis_cluster_lost(struct redis_route *r, const char *text)
{
    struct redis_named node;
    if (r->sentinel)
        return false;
    if (strncmp(text, "CLUSTERDOWN", 11) == 0)
        r->cluster.known = true;
    else if (!r->cluster.known ||
             (cluster_hint(text, &node) != HINT_MOVED && redis_conn_classify(text) != RE_REPLICA))
        return false;
    redis_cluster_failed(r);
    return true;
}

/* ------------------------------------------------------------------ messages */

int redis_cluster_error(struct redis_route *r, struct dlock_error *err, const char *text)
{
    struct redis_named node;
    if (r->sentinel)
        return redis_conn_reply_error(err, &r->node->cmd, text);
    enum cluster_hint hint = cluster_hint(text, &node);
    bool apart = strstr(text, "non local key") != NULL || strstr(text, "same slot") != NULL;
    char t[120];
    redis_conn_show(t, sizeof(t), &r->node->cmd.auth, text);
    r->cluster.known = r->cluster.known || hint != HINT_NONE || apart;
    if ((hint != HINT_NONE || apart) && refuses(r, err))
        return DLOCK_EUSAGE;
    if (hint == HINT_BAD)
        return dlock_fail_at(err, DLOCK_EPROTO, 0, r->spec->uri->where, "malformed redirection: %s",
                             t);
    if (hint == HINT_MOVED)
        return dlock_fail_at(err, DLOCK_EUNAVAIL, 0, r->spec->uri->where,
                             "the cluster's nodes redirect in circles (%s)", t);
    if (hint == HINT_ASK || apart)
        return dlock_fail_lock(err, DLOCK_EUNAVAIL, 0, r->spec->uri,
                               "the cluster is moving the slot of the lock to another node: %s", t);
    return redis_conn_reply_error(err, &r->node->cmd, text);
}

/* ------------------------------------------------------------- further nodes */

bool redis_cluster_mode(const redisReply *hello)
{
    for (size_t i = 0; hello->type == REDIS_REPLY_ARRAY && i + 1 < hello->elements; i += 2) {
        const redisReply *k = hello->element[i], *v = hello->element[i + 1];
        if (k->type == REDIS_REPLY_STRING && v->type == REDIS_REPLY_STRING &&
            strcmp(k->str, "mode") == 0 && strcmp(v->str, "cluster") == 0)
            return true;
    }
    return false;
}

/*
 * HELLO needs no permission and answers "mode cluster". So a server outside a cluster is asked
 * nothing else, and its ACL log does not fill up with our questions.
 */
void redis_cluster_hello(struct redis_route *r)
{
    if (r->cluster.known || r->cluster.hello_sent || r->sentinel)
        return;
    r->cluster.hello_sent = true;
    (void)redis_conn_send(&r->node->cmd, T_HELLO, 2, (const char *const[]){"HELLO", "2"});
}

void redis_cluster_learn(struct redis_route *r)
{
    struct redis_cluster *cl = &r->cluster;
    int64_t now = spec_now(r->spec);
    if (r->node->cmd.state != RC_UP || cl->redirect != 0)
        return;
    redis_cluster_hello(r);
    if (cl->known && (cl->listed_at == 0 || now - cl->listed_at >= LIST_AGAIN)) {
        cl->listed_at = now;
        (void)redis_conn_send(&r->node->cmd, T_NODES, 2, (const char *const[]){"CLUSTER", "NODES"});
    }
}

static void keep_nodes(struct redis_route *r, const char *nodes)
{
    struct redis_cluster *cl = &r->cluster;
    struct redis_named owner = cl->nodes[cl->owner], listed[CLUSTER_NODES];
    bool names = strncmp(r->spec->uri->scheme, "rediss", 6) == 0;
    int n = cluster_parse_nodes(nodes, names, listed, CLUSTER_NODES - 1);
    if (n == 0 || cl->redirect != 0)
        return;
    cl->n = cl->fallback = 0;
    cl->addr_of = cl->addr_of == cl->owner && cl->owner != 0 ? 1 : 0;
    if (cl->owner != 0)
        cl->owner = add_node(cl, &owner);
    for (int i = 0; i < n; i++)
        (void)add_node(cl, &listed[i]);
}

bool redis_cluster_answered(struct redis_route *r, const struct redis_conn_reply *rep,
                            struct dlock_error *err)
{
    const redisReply *reply = rep->r;
    if (rep->tag != T_HELLO && reply->type == REDIS_REPLY_STRING)
        keep_nodes(r, reply->str);
    /* CLUSTER NODES refused for want of a permission: the URI's hosts must do. */
    if (rep->tag != T_HELLO || reply->type != REDIS_REPLY_ARRAY)
        return true;
    r->cluster.known = r->cluster.known || redis_cluster_mode(reply);
    if (r->cluster.known && refuses(r, err))
        return false;
    redis_cluster_learn(r);
    redis_conn_flush(&r->node->cmd);
    return true;
}
