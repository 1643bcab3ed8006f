/*
 * addr.h - an address that a server names (Sentinel's answer, "MOVED 42 host:port"): text to numbers.
 *
 * Nearly always it is an IP address, and known at once. A name is looked up by the helper thread of resolve.c,
 * never in the loop:
 *     rc = raddr_start(&a, "db1.example", 6379, &err);      1: a.peers are there; 0: later; negative: error
 *     later: poll raddr_fd(&a) for POLLIN, then rc = raddr_result(&a, &err), as above
 *     raddr_done(&a);                                        in every state
 */
#ifndef DLOCK_RADDR_H
#define DLOCK_RADDR_H

#include "conn.h"

#define RADDR_HOST 256 /* bytes of a host's name, with its NUL */

struct raddr {
    struct dlock_resolver *resolver; /* while a name is looked up */
    struct dlock_peer peers[RCONN_PEERS];
    int npeers; /* what was found; peers[].host is 0 */
};

/*
 * "HOST:PORT", the port behind the last ':' (an IPv6 address has no brackets there; with them is fine too).
 * host may come out as "": whom the answer came from [cluster]. False: not of this form, or a host that could
 * not be one (a control character, a space, too long); outputs are then undefined.
 */
bool raddr_split(const char *text, size_t len, char host[RADDR_HOST], unsigned *port);
/* True: text (of len bytes) may be a host's name or address; copied to host. */
bool raddr_host(const char *text, size_t len, char host[RADDR_HOST]);

/*
 * Begin: host is a name or an address, port 1 to 65535. The struct need not be initialised, but what it held
 * must be done. 1: found; 0: raddr_result will tell; negative: error that names the host (nothing to free).
 */
int raddr_start(struct raddr *, const char *host, unsigned port, struct dlock_error *);
/* The same for a look-up under way; 1 again once it is there. A deadline is the caller's business. */
int raddr_result(struct raddr *, struct dlock_error *);
/* Readable when there is a result; -1: nothing is being looked up. */
int raddr_fd(const struct raddr *);
/* Gives a look-up up. Fine on zeroed memory, and twice; npeers becomes 0. */
void raddr_done(struct raddr *);

#endif
