/*
 * wire/calls.h - the system calls of libzookeeper, where it is linked statically (ld --wrap): for its socket, which it
 * shows nobody, and so that what a server says is checked before the library believes it (wire/frame.h). Elsewhere nothing
 * of this is ever called, and zk_calls_cut says so.
 */
#ifndef DLOCK_ZKCALLS_H
#define DLOCK_ZKCALLS_H

#include "frame.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/socket.h>

/* Of one handle of the library. */
struct zk_calls {
    pthread_mutex_t lock;
    int fd;                /* its socket; -1: none, or unknown */
    bool cut;              /* ... which we have shut down */
    struct zk_frame frame; /* what goes over it */
    /*
     * A server could not be connected to: errno, its address. EPROTO: it says what no server can, and the connection is
     * over. ESHUTDOWN: it hung up and had said nothing. In a thread of the library's.
     */
    void (*trouble)(struct zk_calls *, int err, const struct sockaddr_storage *);
};

void zk_calls_init(struct zk_calls *,
                   void (*trouble)(struct zk_calls *, int err, const struct sockaddr_storage *));
void zk_calls_done(struct zk_calls *);
/*
 * The calls of this thread, and of those it starts, are of that handle from now on; NULL: of none. leaving: in
 * zookeeper_close(3), where it is not waited for the server to hang up.
 */
void zk_calls_of(struct zk_calls *, bool leaving);
/* End the connection. False: there is none, or it is not known. */
bool zk_calls_cut(struct zk_calls *);

#endif
