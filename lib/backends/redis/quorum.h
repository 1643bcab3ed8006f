/*
 * quorum.h - counting what the servers of a Redlock have answered. Pure: no I/O and no clock.
 *
 * Two majorities of the configured servers have a server in common. So a vote, a mark or a record
 * counts on a majority of all servers, however many of them have answered.
 */
#ifndef DLOCK_REDIS_QUORUM_H
#define DLOCK_REDIS_QUORUM_H

#include "dlock.h"

#define REDLOCK_NODES ((DLOCK_POLL_MAX - 1) / 2 < 15 ? (DLOCK_POLL_MAX - 1) / 2 : 15)

/* What a server has answered in the operation under way. */
enum redlock_answer {
    A_NONE,    /* not asked */
    A_PENDING, /* asked */
    A_YES,     /* vote, renewal, release: ours; a step of a query: read, or done */
    A_BUSY,    /* a different client holds the lock */
    A_GONE,    /* renewal, release: there is no lock; a step: the hold or record is another */
    A_GRACE,   /* vote: not up for long enough; the server may have our value all the same */
    A_FOREIGN, /* another program's data: fence counter, run record, or holder to be marked */
    A_REFUSED, /* an error reply */
    A_FAILED,  /* not reachable */
    A_LATE     /* still busy with earlier commands: not asked */
};

/* How many of n servers are a majority. */
int quorum_of(int n);
/* The largest value that count of the n values reach; 0: none is. */
int64_t quorum_reached(const int64_t *values, int n, int count);

/* ----------------------------------------------------------------- a round of votes */

struct quorum_vote {
    enum redlock_answer answer;
    uint64_t fence; /* A_YES: the server's fence counter */
};
struct quorum_tally {
    int quorum;
    int voted;  /* A_YES */
    int votes;  /* those that count */
    int denied; /* the lock is in use there, or the server is young */
    int pending;
    uint64_t token; /* the highest counter of the votes that count */
    /*
     * Votes with a counter more than ten years above the median (the lower one of two middle
     * counters), which another program has written: they do not count once a majority has voted.
     */
    bool ahead[REDLOCK_NODES];
};
struct quorum_tally quorum_tally(const struct quorum_vote *, int n);

enum quorum_round { ROUND_OPEN, ROUND_WON, ROUND_LOST };
/* late: a round that cannot be won waits no longer for the other servers' errors. */
enum quorum_round quorum_round(const struct quorum_tally *, bool late);

/* ------------------------------------------------------------------ the replies of a read */

/* A hold, as a server has it. */
struct quorum_hold {
    int64_t left_ns;
    uint64_t fence;
    bool marked;
};
/*
 * The hold, as a majority of all servers has it, from the n servers that name it. The fence is the
 * lowest of their counters: failed rounds raise single counters, and no counter is below the token.
 */
struct quorum_hold quorum_hold(const struct quorum_hold *, int n, int quorum);
/* The last one of the n runs that servers have recorded; NULL: none. */
const struct dlock_run *quorum_run(const struct dlock_run *, int n, int quorum);

#endif
