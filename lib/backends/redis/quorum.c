/* quorum.c - see quorum.h. */
#include "quorum.h"

#include "util.h"

#include <string.h>

/* Ten years: the counters follow the servers' clocks, in us. */
#define FENCE_LEAD (INT64_C(10) * 366 * 86400 * 1000000)

int quorum_of(int n)
{
    return n / 2 + 1;
}

int64_t quorum_reached(const int64_t *values, int n, int count)
{
    int64_t best = 0;
    for (int i = 0; i < n; i++) {
        int reached = 0;
        for (int k = 0; k < n; k++)
            reached += values[k] >= values[i];
        if (reached >= count)
            best = dlock_max(best, values[i]);
    }
    return best;
}

struct quorum_tally quorum_tally(const struct quorum_vote *v, int n)
{
    struct quorum_tally t = {.quorum = quorum_of(n)};
    int64_t fences[REDLOCK_NODES];
    for (int i = 0; i < n; i++) {
        if (v[i].answer == A_YES)
            fences[t.voted++] = (int64_t)v[i].fence;
        t.denied += v[i].answer == A_BUSY || v[i].answer == A_GRACE;
        t.pending += v[i].answer == A_PENDING;
    }
    int64_t median = quorum_reached(fences, t.voted, quorum_of(t.voted));
    for (int i = 0; i < n; i++) {
        t.ahead[i] = v[i].answer == A_YES && (int64_t)v[i].fence - median > FENCE_LEAD;
        if (v[i].answer != A_YES || (t.ahead[i] && t.voted >= t.quorum))
            continue;
        t.votes++;
        t.token = v[i].fence > t.token ? v[i].fence : t.token;
    }
    return t;
}

enum quorum_round quorum_round(const struct quorum_tally *t, bool late)
{
    if (t->votes >= t->quorum)
        return ROUND_WON;
    if (t->votes + t->pending >= t->quorum)
        return ROUND_OPEN;
    /* Where no majority can be used, the round waits for all answers, for the message. */
    bool usable = t->votes + t->denied >= t->quorum;
    return usable || t->pending == 0 || late ? ROUND_LOST : ROUND_OPEN;
}

struct quorum_hold quorum_hold(const struct quorum_hold *of, int n, int quorum)
{
    struct quorum_hold hold = {.fence = UINT64_MAX};
    int64_t left_ns[REDLOCK_NODES];
    int marks = 0;
    for (int i = 0; i < n; i++) {
        left_ns[i] = of[i].left_ns;
        hold.fence = of[i].fence < hold.fence ? of[i].fence : hold.fence;
        marks += of[i].marked;
    }
    hold.left_ns = quorum_reached(left_ns, n, quorum);
    hold.marked = marks >= quorum;
    return hold;
}

const struct dlock_run *quorum_run(const struct dlock_run *runs, int n, int quorum)
{
    const struct dlock_run *ended = NULL, *running = NULL; /* the newest */
    int recorded = 0;
    for (const struct dlock_run *r = runs; r < runs + n; r++) {
        const struct dlock_run **newest = r->state == DLOCK_RUN_RUNNING ? &running : &ended;
        if (!*newest || r->fence > (*newest)->fence)
            *newest = r;
    }
    for (int i = 0; i < n && running; i++)
        recorded += strcmp(runs[i].token, running->token) == 0;
    /* Fewer servers than a majority may have recorded a run that was never granted the lock. */
    if (running && (!ended || (recorded >= quorum && running->fence > ended->fence)))
        return running;
    return ended;
}
