/*
 * wire/calls.h - the system calls of libzookeeper, intercepted where the library is linked
 * statically (ld --wrap). The interception shows us the socket, which the API hides, and is the
 * packet guard: all bytes from a server are checked before the library reads them (wire/frame.h).
 * Without ZK_WRAP nothing is intercepted, and zk_calls_cut returns false.
 */
#ifndef DLOCK_ZKCALLS_H
#define DLOCK_ZKCALLS_H

#include "frame.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <sys/socket.h>

/*
 * In a long outage the library's attempts become rare, after so many pauses in a row: a session's
 * time-out.
 */
#define ZK_HURRY 60

#define ZK_THREADS 2 /* of a handle */

/* The calls of one handle of the library. */
struct zk_calls {
    pthread_mutex_t lock;        /* for all fields up to trouble */
    int fd;                      /* the library's socket; -1: none, or unknown */
    int pipe[2];                 /* between the library's threads; -1: unknown */
    bool cut;                    /* we have shut the socket down */
    bool mute;                   /* nothing more is sent */
    struct sockaddr_storage *to; /* where to connect, in turn; NULL: where the library wants to */
    size_t nto, next;
    int hurry; /* so many further pauses of the library stay short */
    /*
     * A server is of no use. err is the errno of the connect; EPROTO: the server broke the
     * protocol, and the connection is closed; EBADMSG: the same, in a session; ESHUTDOWN: the
     * server hung up before it said anything. Called in a thread of the library.
     */
    void (*trouble)(struct zk_calls *c, int err, const struct sockaddr_storage *addr);
    struct zk_start { /* a thread for the library, and its first function */
        struct zk_calls *calls;
        void *(*fn)(void *);
        void *arg;
        sem_t go; /* fn is set; NULL: the library does not need the thread */
        pthread_t thread;
    } start[ZK_THREADS];
    int made, started;
    struct zk_frame frame; /* the packets on the socket; under the lock; last, see conn_new() */
};

/* Are the calls intercepted? */
#ifdef ZK_WRAP
#define ZK_GUARDED true
#else
#define ZK_GUARDED false
#endif
/* c is all zero. */
void zk_calls_init(struct zk_calls *c,
                   void (*trouble)(struct zk_calls *c, int err, const struct sockaddr_storage *));
void zk_calls_done(struct zk_calls *c);
/* In a child of the process, where no thread uses the calls: close the known descriptors. */
void zk_calls_close_in_child(struct zk_calls *c);
/*
 * Make the threads that zookeeper_init(3) will ask for: it aborts the process when it gets none. 0,
 * or an errno. dismiss: after zookeeper_init(3), end those that it did not ask for.
 */
int zk_calls_make_threads(struct zk_calls *c);
void zk_calls_dismiss_threads(struct zk_calls *c);
/*
 * From now on the calls of this thread, and of threads started by it, belong to c's handle; NULL:
 * to no handle. leaving: within zookeeper_close(3), which then waits for nothing of the server.
 */
void zk_calls_of(struct zk_calls *c, bool leaving);
/*
 * Guarded: from now on connect to these n addresses, not to the library's addresses. Takes over to,
 * which is malloc'ed.
 */
void zk_calls_aim(struct zk_calls *c, struct sockaddr_storage *to, size_t n);
/* Send nothing more, on any connection. */
void zk_calls_mute(struct zk_calls *c);
/* Shut the connection down. False: there is no connection, or its socket is unknown. */
bool zk_calls_cut(struct zk_calls *c);

#endif
