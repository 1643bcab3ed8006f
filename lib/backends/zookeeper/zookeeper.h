/* zookeeper.h - what the files of the ZooKeeper backend share. */
#ifndef DLOCK_ZK_H
#define DLOCK_ZK_H

#include "backends/networked.h"
#include "backends/zookeeper/wire/conn.h"

enum zk_doing { ZK_NOTHING, ZK_ACQUIRE, ZK_HOLD, ZK_RELEASE, ZK_ASK };
enum zk_tag {
    T_AUTH = 1,
    T_CREATE,
    T_PARENT,
    T_SYNC,
    T_LIST,
    T_FIND, /* list, to see whether a create whose answer was lost has happened */
    T_PRED, /* get, with a watch */
    T_WHO,  /* get: who holds it */
    T_BEAT,
    T_DELETE,
    T_ORPHAN, /* delete: another one of ours */
    T_SELF,   /* get: an adopted node of ours */
    T_INFO    /* get: for status */
};

/* Is there a node of ours? */
enum zk_node { NODE_NONE, NODE_ASKED, NODE_UNCLEAR, NODE_THERE };

#define ZK_BEATS 32

struct dlock_be {
    const struct dlock_spec *spec;
    char *parent;      /* of the queue: chroot and name */
    size_t chroot_len; /* of parent: what is no container */
    char *credentials; /* "user:password" or NULL */
    const struct ACL_vector *acl;
    bool kazoo;        /* ?layout= */
    char record[1024]; /* our node's data */

    struct zk_conn *conn;
    struct zk_ending *ending; /* of the one before */
    bool connected, authed;
    int64_t opened_at; /* before the session was asked for */
    int64_t session;   /* its id; 0: not yet */
    int64_t timeout;   /* ns, as negotiated; before that, ttl */
    int64_t next_server_at;
    int servers_tried; /* since there was a connection */
    uint64_t
        refusing; /* before there is a session: peers, by bit, that could not be connected to */

    enum zk_doing doing;
    bool wait, first;
    int64_t op_until; /* of what is outstanding; DLOCK_NEVER: unbounded */
    int64_t rel_until;
    bool held;     /* granted, and not known to be lost */
    bool lost;     /* EV_LOST was given */
    bool renewing; /* the core waits for an answer to renew */
    int64_t renew_until;
    struct outage outage;
    struct dlock_error refused; /* first contact: what was in the way */

    enum zk_node node;
    char token[DLOCK_TOKEN_LEN + 1];
    char *
        stem; /* of our nodes' paths in this session, a GUID in it: what the sequence comes behind */
    char *path; /* of our node */
    uint64_t fence;
    bool flat_parents; /* the server knows no containers */
    size_t making;     /* the length of the parent's prefix that is being made; 0: none */
    bool again;        /* look again as soon as there is a connection, and */
    int64_t again_at;
    bool ripe; /* first in line; it becomes ours when heartbeats have made a lease of it */
    int64_t create_sent;
    unsigned list_serial, pred_serial, who_serial, beat_serial, delete_serial;
    char *pred, *front; /* the node that we watch; the first in line */
    int place;
    int64_t leave_by; /* until then a process that ends may wait for the end of its session */
    bool delete_lost; /* a delete was sent whose answer never came */
    bool busy;        /* !wait: not ours; giving up our place */
    bool have_info;

    int64_t beat_sent; /* of the outstanding one */
    int64_t beat_until;
    int64_t beats[ZK_BEATS]; /* when answered ones were sent, oldest first */
    int nbeats;
    int64_t next_beat_at; /* while waiting; when held, the core says */

    struct dlock_info *listing; /* the answer to ask, given out one by one */
    unsigned *list_gets;
    int nlisted, list_at, list_left;
    struct dlock_info info;
    struct event_queue events;
};

static inline int64_t zk_now(const struct dlock_be *be)
{
    return be->spec->env->now(be->spec->env->ctx);
}
static inline const char *zk_where(const struct dlock_be *be)
{
    return be->spec->uri->where;
}

/* uri.c: fill in what comes from spec; 0 or a negative code. zk_done frees it. */
int zk_check_spec(struct dlock_be *, struct dlock_error *);
void zk_done(struct dlock_be *);
/* The servers as "addr:port,addr:port", in an order of their own; malloc'ed, NULL: none. */
char *zk_servers(const struct dlock_spec *);
/* "addr:port" */
const char *zk_place(const struct sockaddr_storage *, char *buf, size_t size, bool brackets);
/* A fresh token, and the stem with it; 0 or a negative code. */
int zk_new_stem(struct dlock_be *, struct dlock_error *);

/* queue.c: the children of a lock, as they stand in line. */
struct zk_child {
    int64_t seq;
    const char *name; /* in the list it was made from */
    bool reader;      /* shared with the readers next to it */
};
/* The sequence at the end of a name; false: no contender. */
bool zk_sequence(const char *name, int64_t *seq);
/* The contenders among names, first in line first; malloc'ed, *n of them. NULL: out of memory. */
struct zk_child *zk_line(char *const *names, int nnames, int *n);
/* What a node's data and name tell of its owner. */
void zk_read_info(const char *name, const char *data, int len, const struct Stat *,
                  struct dlock_info *);

/* errors.c */
/* The connection, not the request, is at fault: to be tried again. */
bool zk_transient(int rc);
/* An error of the library or the server, with where, in one line; the code. */
int zk_error(const struct dlock_be *, int rc, const char *what, struct dlock_error *);

/* session.c */
/* Begin to connect unless there is a session. */
void zk_connect(struct dlock_be *);
/* The acquire, the ask is over without success: EV_FAILED. */
void zk_fail(struct dlock_be *, const struct dlock_error *);
/* End the session. */
void zk_leave(struct dlock_be *);
void zk_on_state(struct dlock_be *, int state);
void zk_on_trouble(struct dlock_be *, const struct zk_msg *);
/* Without a connection: when is it another server's turn? */
void zk_expect_connection(struct dlock_be *);

/* zookeeper.c */
/* EV_RELEASED. */
void zk_released(struct dlock_be *, enum dlock_how, const struct dlock_error *);
/* Give our node back, or go after one that may be there. */
void zk_give_back(struct dlock_be *);
/* Look again, after a moment. */
void zk_again(struct dlock_be *);

/* acquire.c: a place in the line */
void zk_stand_in_line(struct dlock_be *); /* connected: create, find or look at our node */
void zk_node_gone(struct dlock_be *);     /* acquiring: it was deleted, or never there */
void zk_list(struct dlock_be *);
void zk_on_created(struct dlock_be *, const struct zk_msg *);
void zk_on_parent(struct dlock_be *, const struct zk_msg *);
void zk_on_list(struct dlock_be *, const struct zk_msg *);
void zk_on_found(struct dlock_be *, const struct zk_msg *);
void zk_on_self(struct dlock_be *, const struct zk_msg *);
void zk_on_pred(struct dlock_be *, const struct zk_msg *);
void zk_on_who(struct dlock_be *, const struct zk_msg *);
void zk_on_watch(struct dlock_be *, const struct zk_msg *);
void zk_busy_over(struct dlock_be *);

/* heartbeat.c: the lease */
void zk_beats_begin(struct dlock_be *);
/* The server has answered what was sent at that time. */
void zk_heard(struct dlock_be *, int64_t sent);
void zk_beat(struct dlock_be *);
void zk_renew(struct dlock_be *);
/* Held, and certainly not any more: EV_LOST. */
void zk_lost(struct dlock_be *, const char *why);
void zk_on_beat(struct dlock_be *, const struct zk_msg *);
/* From when on the lease counts: see the file. */
int64_t zk_lease_from(const struct dlock_be *);
void zk_beat_timers(struct dlock_be *, int64_t now);

/* status.c: status */
void zk_ask_listed(struct dlock_be *, struct zk_msg *);
void zk_ask_info(struct dlock_be *, const struct zk_msg *);
int zk_give_listed(struct dlock_be *, struct dlock_event *);
void zk_drop_listing(struct dlock_be *);

#endif
