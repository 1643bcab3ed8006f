/*
 * wire/calls.h - the system calls of libzookeeper, intercepted where it is linked statically (ld --wrap). That shows us
 * its socket, which its API hides, and is the packet guard: what a server sends is checked before the library reads it
 * (wire/frame.h). Without ZK_WRAP nothing is intercepted, and zk_calls_cut returns false.
 */
#ifndef DLOCK_ZKCALLS_H
#define DLOCK_ZKCALLS_H

#include "frame.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>

/* An outage can last: after so many pauses in a row, one session time-out, the library's attempts become rare. */
#define ZK_HURRY 60

/* The calls of one handle of the library. */
struct zk_calls {
    pthread_mutex_t lock;        /* for what follows, but trouble */
    int fd;                      /* its socket; -1: none, or unknown */
    int pipe[2];                 /* between its threads; -1: unknown */
    bool cut;                    /* we have shut that socket down */
    bool mute;                   /* nothing more is sent */
    struct sockaddr_storage *to; /* where to connect, in turn; NULL: where the library wants to */
    size_t nto, next;
    struct zk_frame frame; /* what goes over it */
    int hurry;             /* so many pauses of the library are not made longer */
    /*
     * A server is of no use. err is the errno of the connect; EPROTO: the server broke the protocol, and the connection
     * is closed; ESHUTDOWN: it hung up before it said anything. Called in a thread of the library.
     */
    void (*trouble)(struct zk_calls *c, int err, const struct sockaddr_storage *addr);
};

/* c is all zero. */
void zk_calls_init(struct zk_calls *c,
                   void (*trouble)(struct zk_calls *c, int err, const struct sockaddr_storage *));
void zk_calls_done(struct zk_calls *c);
/* In a child of the process, where nobody else uses them: closes the descriptors that are known. */
void zk_calls_close_in_child(struct zk_calls *c);
/*
 * From now on the calls of this thread, and of the threads that it starts, are those of c's handle; NULL: of none.
 * leaving: within zookeeper_close(3), which then does not wait for the server to hang up.
 */
void zk_calls_of(struct zk_calls *c, bool leaving);
/*
 * From now on connect to these addresses, not to those that the library was given. It takes over to, which is
 * malloc'ed. False: impossible, since nothing is intercepted.
 */
bool zk_calls_aim(struct zk_calls *c, struct sockaddr_storage *to, size_t n);
/* Send nothing more, on any connection. */
void zk_calls_mute(struct zk_calls *c);
/* Shut the connection down. False: there is none, or its socket is unknown. */
bool zk_calls_cut(struct zk_calls *c);

#endif
