/*
 * redlock_young.h - which votes of recently started servers count. Pure: no I/O and no clock.
 *
 * A restarted server may have forgotten its vote for a client with a running lease, for at most
 * this client's ttl. So a server is young, and its vote does not count, until its uptime reaches
 * the largest ttl of all clients of the lock: ours, and the ttls of the holders and waiters that
 * any server has reported. A server that has not answered may know of a larger ttl. So votes of
 * servers below the largest possible ttl (a day, or a given restart grace) complete a majority only
 * after every server has answered or timed out.
 */
#ifndef DLOCK_REDLOCK_YOUNG_H
#define DLOCK_REDLOCK_YOUNG_H

#include "quorum.h"
#include "util.h"

/* The ttl of a client with an unknown ttl: another program's, or unreported by a silent server. */
#define REDLOCK_LONGEST_TTL (24 * 3600 * DLOCK_SEC)

/* A round of votes, as far as the servers have answered. Times are ns. */
struct redlock_young {
    int64_t grace;          /* the restart grace: our ttl, or the user's value; 0: off */
    int64_t unreported_ttl; /* the largest ttl possibly known to a silent server */
    int64_t began;          /* when the votes were asked */
    int64_t until;          /* the end of the round, or of the first contact */
    bool first_contact;
    int64_t op_timeout;
    int n, quorum;
    struct redlock_young_server {
        bool voted;         /* for us, and the vote counts so far */
        int64_t up_ms;      /* uptime at the vote; negative: the server's clock was set back */
        int64_t longest_ms; /* the largest ttl of other clients in the last answer; 0: no client */
        int64_t asked;      /* when the unanswered request was sent; 0: no answer is missing */
    } server[REDLOCK_NODES];
};

/*
 * The largest ttl of other clients in a server's answer. held: by a client with the ttl ttl_ms (0:
 * the holder reports no ttl, because another program wrote it) and left_ms left of the lease (-1:
 * no expiry). others_ms: the largest ttl of shared holders and waiters.
 */
int64_t redlock_young_longest_ms(bool held, int64_t ttl_ms, int64_t left_ms, int64_t others_ms);
/* How much of longest_ms counts in the next round while the server is silent. */
int64_t redlock_young_kept_ms(int64_t longest_ms);
/* The uptime at which a vote counts, by the reports so far. 0: the restart grace is off. */
int64_t redlock_young_age_ms(const struct redlock_young *);
/* When every server will have answered or timed out. 0: no answer is missing. */
int64_t redlock_young_complete_at(const struct redlock_young *);
/* The uptime at which a vote counts now: also by the ttl possibly known to a silent server. */
int64_t redlock_young_needed_ms(const struct redlock_young *, int64_t now);
/* False: wait until redlock_young_complete_at(), because only young votes make the majority. */
bool redlock_young_decides(const struct redlock_young *, int64_t now);

#endif
