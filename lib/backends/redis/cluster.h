/*
 * cluster.h - which node of a cluster has the lock: what the backend remembers, and the texts it reads.
 */
#ifndef DLOCK_REDIS_CLUSTER_H
#define DLOCK_REDIS_CLUSTER_H

#include "addr.h"

#define CLUSTER_NODES 8 /* known besides what the URI names */
#define CLUSTER_HOPS 5  /* redirections followed in a row */

struct cluster_node {
    char host
        [REDIS_ADDR_HOST]; /* as the cluster calls it: also what a certificate is to be checked against */
    unsigned port;
};

enum cluster_hint {
    HINT_NONE,  /* another error */
    HINT_MOVED, /* the slot is there */
    HINT_ASK,   /* the key may be there; the slot is being moved to it */
    HINT_BAD    /* begins like one of them and goes on like none */
};

/* "MOVED 3999 127.0.0.1:6381". host comes out as "" for the host that the answer came from. */
enum cluster_hint cluster_hint(const char *text, struct cluster_node *);

/*
 * The answer to CLUSTER NODES: at most max other nodes that are not known to have failed, first the replicas of
 * the node that answers (one of them takes over from it), then the masters. names: their host names where they
 * have some, instead of addresses. Returns how many.
 */
int cluster_parse_nodes(const char *text, bool names, struct cluster_node *out, int max);

/*
 * Node 0 is what the URI names, whichever host of it answers; 1 to n are those that we were told of. Zeroed
 * memory is right at the beginning.
 */
struct redis_cluster {
    bool known;      /* the server is part of a cluster */
    bool hello_sent; /* it was asked whether it is */
    struct cluster_node nodes[1 + CLUSTER_NODES];
    int n;
    int at;    /* this one has the slot, as far as we know */
    int guide; /* whom to ask when that one does not answer any more */
    int ask;   /* not 0: this operation was sent on to this one (ASK), for once */
    int hops;  /* in a row */
    int evict; /* the next one to be forgotten where there are too many */
    int64_t listed_at;
    char tls_host[2][REDIS_ADDR_HOST]; /* whom cmd's and wake's certificates are to name */
    struct redis_addr addr;            /* of node addr_of; 0: none */
    int addr_of;
};

#endif
