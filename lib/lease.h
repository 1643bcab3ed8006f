/*
 * lease.h - the life of one lock as a pure state machine: times and events in, one action out. No
 * I/O, no clock of its own.
 *
 * Every decision about time is made here: when to renew, when to ask the command to end, when the
 * command must be dead, whether a late grant can still be used.
 *
 * With sent = the clock before the request that counts was sent (protocols: Redlock paper's drift):
 *   deadline = sent + ttl - (1 % of ttl + 2 ms)     no other holder before this
 *   margin   = max(50 ms, ttl/20)
 *   hard_at  = deadline - margin/2                  kernel timer (dlock_hard_at())
 *   kill_at  = deadline - margin
 *   term_at  = kill_at - grace
 *   usable   = term_at - sent; renew at sent + usable/3 (with lag: ttl/6); earlier after EV_AWAY
 *              and EV_CHANGED, twice a second for each server at most, and once soon after a
 *              grant (CAP_TELLS)
 *   With EV_RENEWED and broken: term_at is now, and kill_at follows after the grace
 *   trouble  at sent + usable/2 (with lag: half-way from renew_at to term_at), and later by the
 *            delay of the first renewal without an answer
 *
 * sent is a pair, CLOCK_BOOTTIME and CLOCK_MONOTONIC_RAW, and so are the times that follow from
 * sent: a time has passed when either clock has reached it. Only renewals and pauses, which may be
 * late, go by CLOCK_BOOTTIME alone.
 */
#ifndef DLOCK_LEASE_H
#define DLOCK_LEASE_H

#include "util.h"

struct lease_config {
    int64_t ttl;        /* DLOCK_NEVER: no lease, no renewals */
    int64_t grace;      /* between TERM and KILL; 0 with --on-lost kill */
    bool lag;           /* CAP_LAG */
    bool tells;         /* CAP_TELLS: a renewal soon after the grant */
    bool follows;       /* CAP_NESTED: another process renews; its confirmations come unasked */
    bool default_grace; /* recompute the grace when the store negotiates another ttl */
};

enum lease_state {
    LEASE_IDLE, /* also after the release, or after LEASE_UNUSABLE */
    LEASE_ACQUIRING,
    LEASE_CONFIRMING, /* granted, but late: the work starts after one confirmed renewal */
    LEASE_HELD,
    LEASE_ENDING, /* term_at passed: the work is ending; renewals go on to keep other holders out */
    LEASE_LOST,   /* kill_at passed; renewals go on until the release */
    LEASE_GONE    /* the store itself says that the lock is not ours */
};

#define LEASE_SERVERS 16

/* What the core must do next. */
enum lease_do {
    LEASE_NOTHING,  /* until lease_wake() or an event */
    LEASE_RENEW,    /* call the backend's renew */
    LEASE_START,    /* held: work may start (times are valid) */
    LEASE_EXTEND,   /* times moved */
    LEASE_TERM,     /* term_at has passed: the work must end */
    LEASE_KILL,     /* lost: the work must be dead */
    LEASE_UNUSABLE, /* granted too late to start the work: release, then retry or give up */
    LEASE_TROUBLE,  /* half of the time to term_at has passed without a renewal; reported once */
    LEASE_RECOVERED /* after EXTEND: the trouble is over */
};

struct lease {
    struct lease_config cfg;
    enum lease_state state;
    struct dlock_times times;
    int64_t sent;        /* of the request that counts */
    int64_t ttl;         /* in force: as negotiated */
    int64_t retry_at;    /* after an unclear renewal: no renewal before this */
    int64_t pause;       /* before retry_at */
    int64_t asked;       /* when the last renewal began; with lag, the confirmed sent is older */
    int64_t early_at;    /* a renewal is due before renew_at; DLOCK_NEVER: none is */
    int64_t demanded_at; /* the last demand, which a renewal begun since fulfils */
    int64_t early[LEASE_SERVERS]; /* when the last demand of this server was due */
    int64_t first_asked;          /* when the first renewal since renew_at was set began; 0: none */
    bool renewing;                /* a renewal awaits its answer */
    bool unusable;                /* the confirmation took too long for this ttl */
    bool start_due, extend_due;
    bool wanted;           /* the caller's renewal has no confirmation yet: EXTEND follows */
    bool troubled;         /* LEASE_TROUBLE was returned, and not LEASE_RECOVERED since */
    bool recovering;       /* troubled, and a renewal was confirmed since */
    int64_t trouble_since; /* sent at the time of the trouble */
};

#define LEASE_MIN_TTL DLOCK_SEC

/*
 * What CLOCK_MONOTONIC_RAW was when a backend read CLOCK_BOOTTIME: for each window of half a ttl
 * the least difference of the clocks seen. So the result is never too much, and too little by the
 * slew of one window at most. 32 ttls are remembered: a store may grant a longer lease.
 */
#define LEASE_WINDOWS 64
struct lease_clocks {
    int64_t width;
    struct {
        int64_t end; /* by CLOCK_BOOTTIME; 0: nothing was noted */
        int64_t least;
    } window[LEASE_WINDOWS];
};
void lease_clocks_init(struct lease_clocks *, int64_t ttl);
void lease_clocks_note(struct lease_clocks *, struct dlock_clocks now);
/*
 * CLOCK_MONOTONIC_RAW - CLOCK_BOOTTIME, or less, when boot was noted; -DLOCK_RAW_NEVER: too long
 * ago.
 */
int64_t lease_clocks_difference(const struct lease_clocks *, int64_t boot);

/* Default grace for a ttl: min(5 s, ttl/6). */
int64_t lease_default_grace(int64_t ttl);
/* The smallest ttl that leaves room for the grace (a default grace shrinks with the ttl). */
int64_t lease_least_ttl(const struct lease_config *);
/* The timeline for a request sent at this time. */
void lease_timeline(struct dlock_times *, const struct lease_config *, int64_t ttl, int64_t sent,
                    int64_t raw_minus_boot);
/*
 * 0, or DLOCK_EUSAGE naming the smallest ttl for this grace: ttl below 1 s, or usable < ttl/3 (with
 * lag: < 2/3 ttl).
 */
int lease_check(const struct lease_config *, struct dlock_error *);

/* The backend's acquire has been called: begin anew. */
void lease_acquire(struct lease *, const struct lease_config *);
/*
 * The lease is renewed now, unless a renewal is under way, or has just failed. LEASE_EXTEND follows
 * the confirmation, also where no time moves. Does nothing where this process renews nothing.
 */
void lease_renew_now(struct lease *, int64_t now);
void lease_release(struct lease *); /* release has been called: no more renewals */
/*
 * One step. ev: an event from the backend (GRANTED, RENEWED, UNCLEAR, AWAY, CHANGED, LOST matter)
 * or NULL. Call again with NULL until the result is LEASE_NOTHING.
 */
enum lease_do lease_step(struct lease *, struct dlock_clocks now, const struct dlock_event *ev);
/* When lease_step() must run next at the latest, by CLOCK_BOOTTIME; DLOCK_NEVER: on an event. */
int64_t lease_wake(const struct lease *, struct dlock_clocks now);
/*
 * No other holder is possible before either clock shows this: 0 when nothing is held, DLOCK_NEVER
 * without a lease.
 */
struct dlock_clocks lease_end(const struct lease *);
/* How long no other holder is possible. */
int64_t lease_time_left(struct dlock_clocks end, struct dlock_clocks now);

#endif
