/*
 * addr.h - an address named by a server (Sentinel's answer, "MOVED 42 host:port"): text to numbers.
 *
 * Nearly always an IP address, known at once. A name is looked up by the helper thread of
 * resolve.c, never by the loop:
 *     rc = redis_addr_start(&a, &named, &err);   1: a.peers is set; 0: later; or error
 *     later: poll redis_addr_fd(&a) for POLLIN, then rc = redis_addr_result(&a, &err), as above
 *     redis_addr_done(&a);                       in every state
 */
#ifndef DLOCK_REDIS_ADDR_H
#define DLOCK_REDIS_ADDR_H

#include "conn.h"

#define REDIS_ADDR_HOST 256 /* bytes of a host's name, with its NUL */

/* As the server writes it. */
struct redis_named {
    char host[REDIS_ADDR_HOST];
    unsigned port;
};

struct redis_addr {
    struct dlock_resolver *resolver; /* while a name is looked up */
    struct dlock_peer peers[REDIS_CONN_PEERS];
    int npeers; /* found; peers[].host is 0 */
};

/*
 * "HOST:PORT", the port behind the last ':' (an IPv6 address may have brackets). An empty host
 * means the server that sent the answer [cluster]. False: malformed, or an impossible host (a
 * control character, a space, too long); outputs are then undefined.
 */
bool redis_addr_split(const char *text, size_t len, struct redis_named *);
/* True: text (of len bytes) may be a host's name or address, and is copied to host. */
bool redis_addr_host(const char *text, size_t len, char host[REDIS_ADDR_HOST]);

/*
 * Begin: the host is a name or an address, the port 1 to 65535. Needs no initialised struct; a used
 * struct must be done first. 1: found; 0: ask redis_addr_result later; negative: error names the
 * host, and there is nothing to free.
 */
int redis_addr_start(struct redis_addr *, const struct redis_named *, struct dlock_error *);
/* The result of a look-up, as above; 1 again when called again. The caller has the deadline. */
int redis_addr_result(struct redis_addr *, struct dlock_error *);
/* Readable when there is a result; -1: no look-up is under way. */
int redis_addr_fd(const struct redis_addr *);
/* Cancels a look-up. Fine on zeroed memory, and twice; npeers becomes 0. */
void redis_addr_done(struct redis_addr *);
/* In a child process, which has no thread for look-ups: before redis_addr_done. */
void redis_addr_close_in_child(struct redis_addr *);

#endif
