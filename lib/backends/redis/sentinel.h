/*
 * sentinel.h - whom the sentinels of a Redis service take for its master.
 *
 * A round asks all of them in parallel, each on a connection of its own that ends with its answer: what counts
 * must be fresh, and a sentinel that hangs in one round has a new connection in the next. Beside the rounds
 * they can be listened to: +switch-master says that another round is worth while.
 */
#ifndef DLOCK_SENTINEL_H
#define DLOCK_SENTINEL_H

#include "addr.h"

#define SENTINEL_MAX 8
#define SENTINEL_PAUSE (100 * DLOCK_MSEC) /* for the others, behind the first answer */

/* As a sentinel says it: compared as text, never looked up here. */
struct sentinel_addr {
    char host[REDIS_ADDR_HOST];
    unsigned port;
};

enum sentinel_says {
    SAYS_NOTHING, /* not yet */
    SAYS_MASTER,  /* named */
    SAYS_UNKNOWN, /* it does not know the service */
    SAYS_FAILED   /* error */
};

struct sentinel {
    char where[300];
    struct redis_conn ask, hear;
    enum sentinel_says says; /* in this round */
    struct sentinel_addr named;
    struct dlock_peer at; /* which address has named it */
    struct dlock_error error;
};

struct sentinels {
    const struct dlock_spec *spec;
    char *service;
    struct redis_conn_auth auth; /* the sentinels', not the master's */
    char *secret;
    struct sentinel one[SENTINEL_MAX];
    int n;
    int64_t since, until; /* of the round; since 0: there was none yet */
    int64_t first_at;     /* its first answer; 0: none yet */
    int64_t listen_at;    /* when to subscribe where we are not; DLOCK_NEVER */
    bool heard;
};

/*
 * The hosts of spec->uri, the service of its path, and ?sentinel-user= ?sentinel-password-file=. 0, or a negative
 * code. close: fine on zeroed memory, sends nothing.
 */
int sentinels_open(struct sentinels *, const struct dlock_spec *, struct dlock_error *);
void sentinels_close(struct sentinels *);

/* Begin a round; what was asked before no longer counts. until: who has not answered by then has failed. */
void sentinels_ask(struct sentinels *, int64_t until);
/*
 * The master: what a majority names or, where there is none, what most of those name that have answered within
 * SENTINEL_PAUSE of the first. 1; 0: not yet; negative: nobody has named one.
 */
int sentinels_found(const struct sentinels *, struct sentinel_addr *, struct dlock_error *);

enum sentinels_verdict {
    VERDICT_PENDING,
    VERDICT_YES,   /* a majority of all sentinels names this one */
    VERDICT_OTHER, /* a majority names another one */
    VERDICT_NONE   /* there will be no majority in this round */
};
enum sentinels_verdict sentinels_verdict(const struct sentinels *, const struct sentinel_addr *);
/* Why it is not VERDICT_YES. Returns err's code. */
int sentinels_doubt(const struct sentinels *, const struct sentinel_addr *, struct dlock_error *);

/* Be told of a switch, from the time at on; DLOCK_NEVER: no longer. */
void sentinels_listen(struct sentinels *, int64_t at);
/*
 * True once after somebody has said so, or may have while we were not listening: ask again. That is kept until the
 * last round is SENTINEL_PAUSE old.
 */
bool sentinels_heard(struct sentinels *);

int sentinels_interest(const struct sentinels *, struct pollfd *, int cap, int64_t *wake_at);
/* pfd: what interest asked for, found by descriptor. */
void sentinels_work(struct sentinels *, const struct pollfd *pfd, int n);

#endif
