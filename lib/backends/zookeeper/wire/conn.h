/*
 * wire/conn.h - one ZooKeeper session: libzookeeper_mt's handle, whose threads only post to a mailbox that the
 * caller's loop empties. All functions are called by one thread, and none of them blocks but
 * zk_ending_wait, for as long as it is told.
 */
#ifndef DLOCK_ZKCONN_H
#define DLOCK_ZKCONN_H

#include "backend.h"

#include <zookeeper/zookeeper.h>

struct zk_conn;

enum zk_what {
    ZK_STATE,  /* the session's state has changed: state, see zk_conn_state */
    ZK_ANSWER, /* a request is over: tag, serial, rc and what came with it */
    ZK_WATCH,  /* a watch has fired: event; serial of the request that set it */
    ZK_TROUBLE /* a server could not be connected to: rc is errno, data its sockaddr_storage. EPROTO: it could, but
                  what it says is not ZooKeeper's protocol, and that connection is over; ESHUTDOWN: it
                  hung up without a word */
};

/* A message; text and lists are its own: zk_msg_free. */
struct zk_msg {
    struct zk_msg *next;
    enum zk_what what;
    int tag;
    unsigned serial;
    int rc, state, event;
    struct Stat stat;
    char *data; /* get: the node's (len bytes and a NUL); create: the path */
    int len;
    char **names; /* children */
    int nnames;
};
void zk_msg_free(struct zk_msg *);

/*
 * Begin a session of timeout_ms with the servers "addr:port,addr:port" in that order. 0, or a negative
 * code. The library reconnects by itself for ever; it is for the caller to say when that is over.
 */
int zk_conn_open(struct zk_conn **, const char *servers, int timeout_ms, struct dlock_error *);

/*
 * End the session, as far as the server can be reached, in a thread of its own, since zookeeper_close(3) blocks
 * for up to 4.5 s. NULL in, NULL out. zk_ending_wait waits for that for at most wait ns, and frees.
 */
struct zk_ending;
struct zk_ending *zk_conn_close(struct zk_conn *);
void zk_ending_wait(struct zk_ending *, int64_t wait);

/* Readable when there are messages. */
int zk_conn_fd(const struct zk_conn *);
/* The oldest message, the caller's; NULL: none. */
struct zk_msg *zk_conn_next(struct zk_conn *);

/* As negotiated; valid once connected. */
int zk_conn_timeout_ms(struct zk_conn *);
int64_t zk_conn_session(struct zk_conn *);

/*
 * Give up the connection (not the session): the library goes on to the next server. It does so by itself
 * only when it has heard nothing for two thirds of the session's time. False: not possible in this build.
 */
bool zk_conn_cut(struct zk_conn *);

/*
 * Requests. Each is answered by exactly one ZK_ANSWER with tag and the serial that is returned, also when
 * it cannot be sent, unless the session is closed before. Strings are copied.
 */
unsigned zk_conn_create(struct zk_conn *, int tag, const char *path, const char *data,
                        const struct ACL_vector *, int flags);
unsigned zk_conn_children(struct zk_conn *, int tag, const char *path);
/* watch: one ZK_WATCH of this serial follows when the node changes or goes. */
unsigned zk_conn_get(struct zk_conn *, int tag, const char *path, bool watch);
unsigned zk_conn_set(struct zk_conn *, int tag, const char *path, const char *data);
unsigned zk_conn_delete(struct zk_conn *, int tag, const char *path);
unsigned zk_conn_sync(struct zk_conn *, int tag, const char *path);
unsigned zk_conn_auth(struct zk_conn *, int tag, const char *scheme, const char *cert);

#endif
