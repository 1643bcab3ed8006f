/*
 * wire/conn.h - a ZooKeeper session: a handle of libzookeeper_mt. The library's threads only post
 * messages into a mailbox, which the caller's loop empties. A single thread calls all functions.
 */
#ifndef DLOCK_ZKCONN_H
#define DLOCK_ZKCONN_H

#include "backend.h"

#include <zookeeper/zookeeper.h>

struct zk_conn;

enum zk_what {
    ZK_STATE,  /* the session's state has changed: state, session, timeout_ms */
    ZK_ANSWER, /* a request is over: answered, serial, rc, and what the call returned */
    ZK_WATCH,  /* a watch has fired: event; serial of the request for the watch */
    /* A server is of no use: addr; rc as in zk_calls.trouble. EBADMSG: ZK_STATE may come later. */
    ZK_TROUBLE,
    /*
     * Out of memory: a request was not sent, or messages were dropped; state, session, timeout_ms
     * as now.
     */
    ZK_DROPPED
};

/* rc: there was no memory for the contents of the answer, or for sending the request. */
#define ZK_NOMEMORY (-1000)

/* The result of a step or an answer. Only zookeeper.c ends an operation. */
enum zk_verdict {
    ZK_GOES_ON,
    ZK_TURN, /* our node may hold the lock; the run record comes first */
    ZK_GRANTED,
    ZK_BUSY,
    ZK_SKIPPED,
    ZK_DONE, /* a query, or a step of one; ZK_BUSY: the step has found another hold or record */
    ZK_RENEWED,
    ZK_LOST,       /* a held lock's node is gone */
    ZK_MAY_DELETE, /* a release: our node exists, and no request for it is outstanding */
    ZK_RELEASED,   /* be->release.how; a be->err with a code says why */
    ZK_FAILED      /* be->err */
};

/* The caller's function for the answer to a request. */
struct zk_msg;
struct zk_backend;
typedef enum zk_verdict zk_answer_fn(struct zk_backend *, const struct zk_msg *);

/* A message, which owns data and names: zk_msg_done. */
struct zk_msg {
    struct zk_msg *next; /* within the mailbox */
    enum zk_what what;
    zk_answer_fn *answered; /* of the request */
    unsigned serial;
    int rc, state, event;
    int64_t session; /* its id, as negotiated */
    int timeout_ms;  /* as negotiated */
    struct sockaddr_storage addr;
    struct Stat stat; /* multi: of the first node set */
    int failed;       /* multi: index of the operation refused with rc; -1: none */
    char *data;       /* get: the node's (len bytes and a NUL); create: the path */
    int len;
    char **names; /* children */
    int nnames;
};
void zk_msg_done(struct zk_msg *m);

/*
 * Begin a session of timeout_ms with these servers, tried in this order. If *c is not NULL, but
 * has no connection: go on with the session of *c by a new handle, which replaces *c; the old
 * handle's requests are not answered. The new handle has seen no state, so even a server behind the
 * old handle's state talks to it. Returns a descriptor (the connection's), readable when there are
 * messages, or a negative code: DLOCK_ENOMEM, DLOCK_EOS; then *c is as before. The library
 * reconnects indefinitely; the caller decides when to give up.
 */
int zk_conn_open(struct zk_conn **c, const struct dlock_peer *, int n, int timeout_ms,
                 struct dlock_error *err);

/*
 * End the session, if there is a connection, and free c. Does not wait for the server; but without
 * the packet guard zookeeper_close(3) does, for up to 4.5 s: after wait ns a thread goes on with
 * that, and a process that ends before may leave the session for the session's ttl.
 */
void zk_conn_close(struct zk_conn *c, int64_t wait);
/*
 * In a child of the process that opened the connection: close the known descriptors, and tell the
 * server nothing. The library's threads are not in the child, and wait for nothing; the library's
 * memory is lost.
 */
void zk_conn_close_in_child(struct zk_conn *c);

/* Take the oldest message; false: there is none. */
bool zk_conn_next(struct zk_conn *c, struct zk_msg *m);

/*
 * Give up the connection, not the session: the library goes on to the next server. By itself the
 * library does so only after two thirds of the session's time-out without an answer. False:
 * impossible, since this build has no packet guard.
 */
bool zk_conn_cut(struct zk_conn *c);

/*
 * The servers have new addresses: the next connection goes to these peers (n > 0, tried in order);
 * the present connection stays. False: out of memory, nothing has changed.
 */
bool zk_conn_aim(struct zk_conn *c, const struct dlock_peer *, int n);

/* "addr:port"; brackets: an IPv6 address stands in brackets. */
#define ZK_ADDR_TEXT 64
const char *zk_addr_text(const struct sockaddr_storage *, char buf[ZK_ADDR_TEXT], bool brackets);

enum zk_call {
    ZK_AUTH,
    ZK_CREATE,
    ZK_CHILDREN,
    ZK_GET,
    ZK_GET_WATCHED, /* a single ZK_WATCH of this serial follows when the node changes or goes */
    ZK_SET,
    ZK_DELETE,
    ZK_SYNC,
    ZK_MULTI
};

/* A request. The strings are copied. */
struct zk_request {
    enum zk_call call;
    zk_answer_fn *answered; /* NULL: the answer means nothing */
    const char *path;
    const char *data;             /* create, set: the node's; auth: the digest's "user:password" */
    const struct ACL_vector *acl; /* create */
    int flags;                    /* create: ZOO_EPHEMERAL, ... */
    int version;                  /* set, delete: of the node; -1: any */
    /*
     * Of a multi: all operations are done, or none. ZK_CREATE (persistent), ZK_SET and ZK_DELETE
     * with path, data (NULL: empty), acl, version.
     */
    const struct zk_request *ops;
    int nops;
};
#define ZK_OPS_MAX 3

/*
 * Send a request; returns the serial, which is never 0. Exactly one ZK_ANSWER with answered and
 * serial follows, also for an unsendable request, unless the session is closed before; out of
 * memory: a ZK_DROPPED instead.
 */
unsigned zk_conn_ask(struct zk_conn *c, const struct zk_request *q);

#endif
