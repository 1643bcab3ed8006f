/*
 * route.h - which Redis server has the lock, and does the answer count?
 *
 * The URI names a server, or some nodes of a cluster (cluster.c), or the sentinels of a service
 * (sentinel.c). The route opens the connections of its node and answers questions about them.
 * redis.c sends an operation's commands, asks the route, and moves the operation on.
 */
#ifndef DLOCK_REDIS_ROUTE_H
#define DLOCK_REDIS_ROUTE_H

#include "addr.h"
#include "backends/networked.h"
#include "node.h"

#define CLUSTER_NODES 8 /* known besides what the URI names */

/* Node 0: the URI's hosts, any of them; 1 to n: nodes named by the cluster. Begins as zeros. */
struct redis_cluster {
    bool known;                                  /* the server is part of a cluster */
    bool hello_sent;                             /* the server was asked */
    struct redis_named nodes[1 + CLUSTER_NODES]; /* a certificate must have the same host, too */
    int n;
    int owner;    /* of the slot, as far as we know */
    int fallback; /* the node to ask when the owner does not answer */
    int redirect; /* not 0: this operation was redirected to this node, once (ASK) */
    int hops;     /* redirections in a row */
    int evict;    /* the next node to forget where there are too many */
    int64_t listed_at;
    struct redis_addr addr; /* of node addr_of; 0: none */
    int addr_of;
};

struct redis_sentinel; /* sentinel.c */

/* Tags of the route's own commands on cmd; redis.c uses lower tags. */
enum redis_route_tag { T_WAIT = 64, T_HELLO, T_NODES };

/* Does the master's answer count? */
enum redis_confirmed {
    CONFIRM_YES,     /* a majority of all sentinels names this server, and the replicas have it */
    CONFIRM_ASKED,   /* wait: too few have answered */
    CONFIRM_MOVED,   /* a majority of the sentinels names a different master */
    CONFIRM_REFUSED, /* the answer does not count; ask again after a while. err says why */
    CONFIRM_MISSING  /* too few replicas have the answer. err says why */
};

/* The fields up to wait_replicas are set before the first call, and not owned. */
struct redis_route {
    const struct dlock_spec *spec;
    const struct redis_script *script;
    struct redis_node *node;
    bool is_unix;
    struct dlock_peer unix_peer;
    unsigned wait_replicas;

    struct redis_cluster cluster;    /* zeroed */
    struct redis_sentinel *sentinel; /* NULL: the URI has the address of the server */

    /* The confirmation under way (confirm.c). */
    enum redis_confirmed replicas; /* what they say */
    struct dlock_error missing;    /* CONFIRM_REFUSED, CONFIRM_MISSING: why */
    int64_t fresh;                 /* what the sentinels said before does not count */
};

/* ---------------------------------------------------------------------- confirm.c */

/* Begin to connect cmd or wake, unless open. A failure shows up as the state RC_FAILED. */
void redis_route_connect(struct redis_route *, struct redis_conn *, int64_t until);

/*
 * An answer of the master counts once enough replicas have it too (?wait-replicas=N), and once a
 * majority of the sentinels names this master. Begin to ask the sentinels, and, with replicas, the
 * replicas. fresh: only a round of questions to the sentinels that began at this time or later
 * counts, and need not be repeated (0: any round). until: when the caller gives up.
 */
void redis_route_ask_confirmation(struct redis_route *, bool replicas, int64_t fresh,
                                  int64_t until);
/* The reply under T_WAIT. */
void redis_route_replicas_answered(struct redis_route *, const redisReply *);
enum redis_confirmed redis_route_confirm(const struct redis_route *, struct dlock_error *err);
/* CONFIRM_ASKED, and the time is over: overwrite err where the missing confirmation is known. */
void redis_route_unconfirmed(const struct redis_route *, struct dlock_error *err);

/* ---------------------------------------------------------------------- cluster.c */

/* A new attempt at an operation: redirections are counted anew, from the node with the slot. */
void redis_cluster_begin(struct redis_route *);
/* As redis_route_connect. False: nothing is done, because the URI names the server. */
bool redis_cluster_connect(struct redis_route *, struct redis_conn *, int64_t until);
/* The look-up of a node's name: fills at most one entry for poll(), returns the number; goes on. */
int redis_cluster_interest(const struct redis_route *, struct pollfd *);
void redis_cluster_work(struct redis_route *);

enum redis_verdict {
    ROUTE_PASS, /* no redirection to be followed */
    ROUTE_ASK,  /* send the command again, to a different node, this time only */
    ROUTE_MOVED /* the lock's slot is on a different node: send the command there */
};
/* An operation's answer on cmd. follow_ask: false where an -ASK is not followed. */
enum redis_verdict redis_cluster_judge(struct redis_route *, const redisReply *, bool follow_ask);
/* cmd has failed. True: send the command again, to a different node. */
bool redis_cluster_elsewhere(struct redis_route *);
/* The node has not answered: ask the next node next time. */
void redis_cluster_failed(struct redis_route *);
/* True: after this error the next node must be asked, so the caller closes cmd. */
bool redis_cluster_lost(struct redis_route *, const char *text);
/* Is the operation redirected by ASK, so that its commands need redis_node_asking? */
static inline bool redis_cluster_asks(const struct redis_route *r)
{
    return r->cluster.redirect != 0;
}
/* Are wake and cmd connected to different nodes? */
bool redis_cluster_nodes_differ(const struct redis_route *);
/* As redis_conn_reply_error, also for the errors of a cluster. */
int redis_cluster_error(struct redis_route *, struct dlock_error *err, const char *text);
/* Is the server in a cluster, by its reply to HELLO? An old server knows no HELLO, and is not. */
bool redis_cluster_mode(const redisReply *);
/* Queue on cmd, once: is the server in a cluster? */
void redis_cluster_hello(struct redis_route *);
/* Queue the same question and, in a cluster, now and then CLUSTER NODES. Only in RC_UP. */
void redis_cluster_learn(struct redis_route *);
/* The reply under T_HELLO or T_NODES. False: the cluster cannot have this lock; err says why. */
bool redis_cluster_answered(struct redis_route *, const struct redis_conn_reply *,
                            struct dlock_error *);

/*
 * The masters that serve slots, by the answer to CLUSTER NODES: their number, *out malloc'ed, NULL:
 * none. ours: the answering node is one, and is not in *out. Negative: a code; *out is to be freed.
 */
int redis_cluster_masters(const struct redis_route *, const char *nodes, bool *ours,
                          struct redis_named **out);
/* From now on this node is asked: cmd is closed. */
void redis_cluster_visit(struct redis_route *, const struct redis_named *);

/* --------------------------------------------------------------------- sentinel.c */

/*
 * Without Sentinel all but open and connect do nothing, and the answer is CONFIRM_YES. open reads
 * the URI: 0 or a negative code. connect is as redis_route_connect; the connection waits
 * (RC_WAITING) until the master is found.
 */
int redis_sentinel_open(struct redis_route *, struct dlock_error *);
void redis_sentinel_close(struct redis_route *);
void redis_sentinel_close_in_child(struct redis_route *); /* as redis_conn_close_in_child() */
void redis_sentinel_connect(struct redis_route *, struct redis_conn *, int64_t until);
int redis_sentinel_interest(const struct redis_route *, struct pollfd *, int cap, int64_t *wake_at);
void redis_sentinel_work(struct redis_route *, const struct pollfd *, int n);
/* First contact, until that time: the sentinels do not agree on a master that accepts us yet. */
bool redis_sentinel_worth_retry(const struct redis_route *, const struct dlock_error *,
                                int64_t until);
/* Ask the sentinels again, unless the last round began at newer_than or later. */
void redis_sentinel_question(struct redis_route *, int64_t newer_than);
/*
 * In a round of questions that began at fresh or later, is cmd connected to the master?
 * CONFIRM_REFUSED: there will be no majority in this round; redis_sentinel_doubt() says why.
 */
enum redis_confirmed redis_sentinel_answer(const struct redis_route *, int64_t fresh);
void redis_sentinel_doubt(const struct redis_route *, struct dlock_error *);
/*
 * What the sentinels have said in the last round. False: pending, or there are none (then it is not
 * pending). The pointers are valid until the next call.
 */
struct redis_survey {
    bool pending;
    int votes, n, quorum; /* votes: for master */
    const struct redis_named *master;
    const struct dlock_error *error; /* of a sentinel without an answer; NULL: none */
    /* With redis_sentinel_ask_quorum(): */
    int quorate;                     /* sentinels that could start a failover */
    const char *doubter, *no_quorum; /* a sentinel that could not, and why; NULL: none */
};
/* From now on each round asks the sentinels for their quorum, too; or no longer. */
void redis_sentinel_ask_quorum(struct redis_route *, bool ask);
bool redis_sentinel_survey(const struct redis_route *, struct redis_survey *);
/* Subscribe to announcements of a new master, from the time at on; DLOCK_NEVER: no longer. */
void redis_sentinel_listen(struct redis_route *, int64_t at);
/*
 * Go on with the search for the master; both connections begin to connect once it is found. True:
 * wake is connected to a different server, so the caller closes wake.
 */
bool redis_sentinel_seek(struct redis_route *);
enum redis_watch {
    WATCH_NOTHING,
    WATCH_RETRY, /* there may be a new master, and cmd is closed: try again at once */
    WATCH_MOVED  /* a majority names a different master */
};
/*
 * Was a new master announced, and do the sentinels agree? acquiring: an acquire is under way;
 * granted: the lock is ours; renewing: a renewal is under way.
 */
enum redis_watch redis_sentinel_watch(struct redis_route *, bool acquiring, bool granted,
                                      bool renewing);

#endif
