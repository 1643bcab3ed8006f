/*
 * redlock.pml - a lock on a majority of three servers: two rounds, restarts without data.
 *
 * Property: the commands of two clients never run at once, and the later one has the higher fence.
 *
 * Why two rounds of two clients are enough: a violation has an earlier holder, client 1, and a
 * later holder, client 2, and one acquisition of each. All other rounds and clients can only keep a
 * server from voting, which a lost request does as well: here a server never has to vote.
 *
 * Time is counted in ticks. A message may be late by any number of ticks, or lost with the request
 * or with the answer; a client may be late with each step, save with the end of its command, which
 * keeper and guard bring about in time (lease.pml shows under which assumptions).
 *
 * Fences are no numbers here. A server knows the fence of client 1 if its counter has reached it,
 * so that its next vote has a higher one; all other counters may be lower. So the search needs no
 * limit of the number of grants.
 *
 * Modelled, with the place of each rule:
 *   vote         vote.lua: the first client that finds the server free; the vote lasts a ttl, and
 *                counts the server's fence counter up (fence.lua).
 *   first round  redlock_vote.c, end_votes(): with a majority of votes the fence is the highest of
 *                the voters' counters. Any of the voters may have this counter.
 *   second round redlock_vote.c, end_raise(): a majority of voters raises its counter to the fence,
 *                and extends the vote (keep.lua); the lease counts from the time before this round
 *                was sent. A vote that comes during the second round is confirmed, too. If its
 *                counter is above the fence, it counts only while the votes of the first round stand,
 *                whatever the clocks: dlock takes half a ttl for this, the model a whole one.
 *   renewal      redlock_renew.c: the lease counts from the time before a renewal that a majority
 *                of the voters has confirmed.
 *   young server vote.lua, redlock_young.h: a server that was restarted gives no vote for the
 *                restart grace, here the ttl of all clients. Any number of servers may restart, at
 *                any time.
 *   its fence    fence.lua: a server that has lost its counter begins at its clock. Assumption: the
 *                clock is then past the fences that were given before the restart, as the clocks of
 *                the servers are apart by less than a ttl. CLOCKS_APART: without it.
 *   giving back  redlock_vote.c, give_votes_back(), redlock_renew.c, redlock_release(): late, or
 *                lost, and after the command has ended.
 *
 * Left out: healing of a minority that has lost the lock, readers, queues (they decide nothing:
 * redlock_vote.c), run records, different ttls, counters that another program wrote, drift
 * (lease.pml).
 *
 * Variants, each with a defect that must be found: NO_SECOND_ROUND, RESTARTED_VOTES,
 * HALF_IS_ENOUGH, CLOCKS_APART, LATE_VOTES_COUNT.
 */
#define SERVERS 3
#define CLIENTS 2
#ifdef HALF_IS_ENOUGH
#define QUORUM(votes) (votes != 0)
#else
#define QUORUM(votes) (votes == 3 || votes >= 5) /* two or three bits of three */
#endif

#ifndef TTL
#define TTL 3
#endif
#define MARGIN 1
#define KILL_AT (TTL - MARGIN)
#define TERM_AT KILL_AT
#define FREE CLIENTS
#ifdef NO_SECOND_ROUND
#define VOTES_COUNT false /* the command starts at once, in its turn */
#else
#define VOTES_COUNT true
#endif
/* How many ticks after its beginning a round counts late votes with a higher counter. */
#ifdef LATE_VOTES_COUNT
#define STAND (TTL + 1)
#else
#define STAND TTL
#endif
#ifdef CLOCKS_APART
#define RESTARTED_KNOWS false
#else
#define RESTARTED_KNOWS fixed
#endif

mtype = {IDLE, VOTES, RAISE, RUNS, DONE};

typedef client {
    mtype phase = IDLE;
    byte age;     /* ticks since the request that counts was sent */
    byte asked;   /* since the renewal under way was sent */
    bool renews;
    byte votes;   /* the servers whose vote the client has heard of, as bits */
    byte raised;  /* those that have confirmed the fence, or the renewal under way */
    byte late;    /* of client 2: those that voted late, with a counter above its fence */
    byte round;   /* of client 2: ticks since its round began, while this decides */
};
typedef server {
    byte voted = FREE; /* for which client */
    byte left;         /* of the vote */
    byte young;        /* ticks until it may vote */
    bool knows;        /* the fence of client 1 */
};
client c[CLIENTS];
server s[SERVERS];
bool fixed;  /* client 1 has a fence */
bool started; /* the command of client 1 */
bool higher; /* a vote that counts gave client 2 a higher fence */

#define bit(k) (1 << k)
#define asks(i) (c[i].phase == VOTES || c[i].phase == RAISE)
#define confirms(i) (c[i].phase == RAISE || c[i].renews)
#define may_vote(i, k) (asks(i) && !(c[i].votes & bit(k)) && s[k].voted == FREE && \
                        s[k].young == 0)
#define may_confirm(i, k) (confirms(i) && (c[i].votes & bit(k)) && \
                           !(c[i].raised & bit(k)) && s[k].voted == i)

/* The answer to a vote. In the second round the fence stands. */
inline heard(i, k) {
    c[i].votes = c[i].votes | bit(k);
    if
    :: i == 1 && c[i].phase == RAISE && s[k].knows && !higher ->
        c[i].late = c[i].late | bit(k);
        printf("    (too late for the fence of client 2, which is lower)\n")
    :: i == 1 && c[i].phase == VOTES && s[k].knows ->
        higher = true;
        c[i].round = 0
    :: else
    fi
}

/* The servers whose confirmation of the fence counts. */
#define counted(i) (c[i].round < STAND -> c[i].raised : c[i].raised & ~c[i].late)

inline end_renewal(i) {
    c[i].asked = 0;
    c[i].renews = false;
    c[i].raised = 0
}

inline vote(i, k) {
    s[k].voted = i;
    s[k].left = TTL;
    printf("server %c: votes for client %d\n", 'A' + k, i + 1);
    if
    :: i == 1 && fixed && !s[k].knows ->
        printf("    (its counter is lower than the fence of client 1)\n")
    :: else
    fi
}

inline confirm(i, k) {
    s[k].left = TTL;
    if
    :: i == 0 -> s[k].knows = true
    :: else
    fi;
    printf("server %c: confirms the lock of client %d\n", 'A' + k, i + 1)
}

inline forget(k) {
    s[k].voted = FREE;
    s[k].left = 0
}

/* The client is done. Its votes go, at once or later: a server that is free need not vote. */
inline leave(i) {
    if
    :: s[0].voted == i -> forget(0)
    :: else
    fi;
    if
    :: s[1].voted == i -> forget(1)
    :: else
    fi;
    if
    :: s[2].voted == i -> forget(2)
    :: else
    fi;
    c[i].phase = DONE;
    c[i].age = 0;
    c[i].asked = 0;
    c[i].renews = false;
    c[i].votes = 0;
    c[i].raised = 0;
    c[i].late = 0;
    c[i].round = 0
}

inline start(i) {
    c[i].phase = RUNS;
    c[i].raised = 0;
    started = true;
    printf("client %d: the command starts\n", i + 1);
    if
    :: i == 1 ->
        assert(c[0].phase != RUNS);
        assert(higher);
        leave(i)
    :: else
    fi
}

/*
 * The servers are alike. So let A be the voter of client 1 with the highest counter, and B another
 * voter.
 */
#ifdef HALF_IS_ENOUGH
#define first_two(i) (i == 1 || (c[i].votes & bit(0)))
#else
#define first_two(i) (i == 1 || (c[i].votes & 3) == 3)
#endif

/* A majority has voted. Client 1 has its fence now. */
inline end_votes(i) {
    if
    :: i == 0 ->
        fixed = true;
        s[0].knows = true;
        printf("client 1: has a majority, its fence is the counter of server A\n")
    :: else -> printf("client 2: has a majority\n")
    fi;
#ifdef NO_SECOND_ROUND
    if
    :: c[i].age < TERM_AT -> start(i)
    :: else -> leave(i)
    fi
#else
    c[i].phase = RAISE;
    c[i].age = 0
#endif
}

/* Client 2 starts second. */
#define in_turn(i) (i == 0 || started)

proctype acquires(byte i) {
    do
    :: d_step { c[i].phase == IDLE ->
        c[i].phase = VOTES;
        printf("client %d: asks all servers for votes\n", i + 1) }
    :: d_step { c[i].phase == VOTES && QUORUM(c[i].votes) && first_two(i) &&
                (VOTES_COUNT || in_turn(i)) -> end_votes(i) }
    :: d_step { c[i].phase == RAISE && QUORUM(counted(i)) && c[i].age < TERM_AT && in_turn(i) ->
        start(i) }
    :: d_step { c[i].phase == RUNS && !c[i].renews && c[i].age > 0 ->
        c[i].renews = true;
        c[i].raised = 0;
        printf("client %d: asks for a renewal\n", i + 1) }
    :: d_step { c[i].renews && QUORUM(c[i].raised) ->
        c[i].age = c[i].asked;
        end_renewal(i);
        printf("client %d: has renewed the lease, asked for %d ticks ago\n", i + 1, c[i].age) }
    :: d_step { c[i].renews ->
        end_renewal(i);
        printf("client %d: gives up the renewal\n", i + 1) }
    :: d_step { c[i].phase == RUNS ->
        leave(i);
        printf("client %d: the command ends, the lock is released\n", i + 1) }
    od
}

/* Between client i and server k. A lost request is one that is not served. */
proctype link(byte i; byte k) {
    do
    :: d_step { may_vote(i, k) -> vote(i, k); heard(i, k) }
    :: d_step { may_vote(i, k) -> vote(i, k); printf("    (the answer is lost)\n") }
    :: d_step { may_confirm(i, k) -> confirm(i, k); c[i].raised = c[i].raised | bit(k) }
    :: d_step { may_confirm(i, k) -> confirm(i, k); printf("    (the answer is lost)\n") }
    od
}

proctype node(byte k) {
    do
    /* A server that has nothing to forget need not restart: a young server only does not vote. */
    :: d_step { s[k].voted != FREE || s[k].knows ->
        forget(k);
        s[k].knows = RESTARTED_KNOWS;
#ifndef RESTARTED_VOTES
        s[k].young = TTL;
#endif
        printf("server %c: restarts without its data\n", 'A' + k) }
    od
}

inline tick(k) {
    if
    :: s[k].left > 1 -> s[k].left--
    :: s[k].left == 1 -> forget(k); printf("server %c: the vote expires\n", 'A' + k)
    :: else
    fi;
    if
    :: s[k].young > 0 -> s[k].young--
    :: else
    fi
}

#ifdef NO_SECOND_ROUND
#define grows(i) (c[i].phase == VOTES || c[i].phase == RUNS)
#else
#define grows(i) (c[i].phase == RAISE || c[i].phase == RUNS)
#endif

inline grow(i) {
    if
    :: grows(i) && c[i].age < TTL -> c[i].age++
    :: else
    fi;
    if
    :: c[i].renews && c[i].asked < TTL -> c[i].asked++
    :: else
    fi;
    if
    :: i == 1 && asks(i) && !higher && c[i].round < STAND -> c[i].round++
    :: else
    fi
}

/* The command of a lease that was not renewed has ended at kill_at. */
#define urgent(i) (c[i].phase == RUNS && c[i].age >= KILL_AT)

proctype time() {
    do
    :: d_step { !urgent(0) && !urgent(1) ->
        printf("time: a tick\n");
        tick(0);
        tick(1);
        tick(2);
        grow(0);
        grow(1) }
    od
}

init {
    byte i, k;
    atomic {
        do
        :: i < CLIENTS ->
            run acquires(i);
            do
            :: k < SERVERS -> run link(i, k); k++
            :: else -> break
            od;
            k = 0;
            i++
        :: else -> break
        od;
        do
        :: k < SERVERS -> run node(k); k++
        :: else -> break
        od;
        i = 0;
        k = 0;
        run time()
    }
}
