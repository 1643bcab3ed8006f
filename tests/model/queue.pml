/*
 * queue.pml - the queue of a lock in one Redis, with its claims.
 *
 * Property: no live waiter is starved. While a waiter stands in the queue, lives, and has
 * tried since it was last stopped,
 *   - no more grants go to others than there are other clients: nobody overtakes it;
 *   - the lock is free for at most MOST_FREE ticks before a client has it.
 *
 * CLIENTS clients come, wait, hold the lock and go, again and again. Each may be stopped in the
 * queue at any time, and continued at any time. A client that is stopped still listens for the
 * server, which cannot know. A tick is half a second.
 *
 * Modelled, with the place of each rule (queue.lua, if nothing else is said):
 *   release      quit.lua: calls the first, with a claim of CLAIM; the second is told so.
 *   expiry       the lock goes without a call (an expiry, or a DEL by another program). The first
 *                hears of it by tracking, if it lives.
 *   try          offer(): waits for the claims in front that run; sets aside the waiters in front
 *                whose claim has ended; calls those that had no claim, for LATE or SHORT; takes the
 *                lock when none is left in front. A try ends the claim of its own waiter, and a
 *                waiter that was set aside gets a new ticket (stand.lua).
 *   looks        LOOK_SECOND and LOOK_OTHERS in acquire.c: the second and those behind look
 *                whether the lock is free, and whether the key PREFIXclaim says that claims run.
 *   a live waiter  tries before its claim ends. Assumption: its round trip is below 0.3 s
 *                (reliability.md, limits known).
 *
 * Left out: shared holders and slots, waiters that are dropped because they no longer listen (their
 * place is then free at once), the limit of four and its growth (there are fewer waiters),
 * clusters, restarts, renewals of a place.
 *
 * Variants, each with a defect that must be found: SKIP_INSTEAD_OF_CLAIM (a try takes the free
 * lock, whichever waiter stands in front), NO_LOOKS (waiters wait for a call).
 */
#ifndef CLIENTS
#define CLIENTS 3
#endif
#define NONE CLIENTS
#define CLAIM 2 /* ticks */
#define LATE 1
#define SHORT 1
#define LOOK_SECOND 1
#define LOOK_OTHERS 3
#ifndef MOST_FREE
#define MOST_FREE 4 /* 2 s; with 4 clients 6: the 3 s that P8 and P9 promise (reliability.md) */
#endif

/* The claim of a waiter: never called, over, or the ticks that are left + OVER. */
#define UNCALLED 0
#define OVER 1

typedef client {
    bool stopped;
    bool waits;      /* in the queue */
    bool steady;     /* has tried since it was last stopped */
    bool aside;      /* set aside */
    byte claim;
    bool told;       /* a message to try is on its way */
    byte look;       /* ticks to the next look */
    byte overtaken;  /* how many grants went to others since this waiter lives in the queue */
    byte idle;       /* ticks in which it waited for a free lock */
};
client c[CLIENTS];
byte line[CLIENTS]; /* the queue; the waiters that were set aside are at its end */
byte n;             /* its length */
byte holder = NONE;
byte claim_key;     /* ticks */

#define lives(i) (c[i].waits && !c[i].stopped)
#define counts(i) (lives(i) && c[i].steady)

byte p, q, w, ends, called, moved; /* 0 between two steps */

inline clear() {
    p = 0;
    q = 0;
    w = 0;
    ends = 0;
    called = 0;
    moved = 0
}

inline drop(i) {
    p = 0;
    q = 0;
    do
    :: p < n ->
        if
        :: line[p] != i -> line[q] = line[p]; q++
        :: else
        fi;
        p++
    :: else -> break
    od;
    if
    :: q < n -> n = q; line[n] = 0
    :: else
    fi;
    c[i].waits = false;
    c[i].aside = false;
    c[i].steady = false;
    c[i].claim = UNCALLED
}

/* Put i behind the others in line, or behind all. */
inline tail(i, behind_all) {
    drop(i);
    p = n;
    do
    :: p > 0 && !behind_all && c[line[p - 1]].aside -> line[p] = line[p - 1]; p--
    :: else -> break
    od;
    line[p] = i;
    n++;
    c[i].waits = true;
    c[i].aside = behind_all
}

inline tell(i) { c[i].told = true }

/* A release, or a waiter that leaves while the lock is free: offer(fresh). */
inline call_first() {
    claim_key = 0;
    if
    :: n > 0 && !c[line[0]].aside ->
        c[line[0]].claim = OVER + CLAIM;
        claim_key = CLAIM;
        tell(line[0]);
        if
        :: n > 1 && c[line[1]].look > LOOK_SECOND -> c[line[1]].look = LOOK_SECOND
        :: else
        fi
    :: n > 0 && c[line[0]].aside -> tell(line[0])
    :: else
    fi
}

/* offer(me): the result is ends, the ticks to wait; 0: the lock is kept for no waiter. */
inline offer(me) {
    moved = 0;
    ends = 0;
    w = 0;
    /* Set aside one waiter after the other whose claim is over. */
    do
    :: w < n && line[w] != me && !c[line[w]].aside ->
        if
        :: c[line[w]].claim > OVER ->
            ends = (c[line[w]].claim - OVER > ends -> c[line[w]].claim - OVER : ends);
            w++
        :: c[line[w]].claim == OVER ->
            called = line[w];
            printf("server: sets client %d aside\n", called + 1);
            tail(called, true);
            moved++
        :: else -> w++
        fi
    :: else -> break
    od;
    if
    :: ends == 0 && w > 0 ->
        ends = (moved > 0 -> SHORT : LATE);
        claim_key = ends;
        called = 0;
        do
        :: called < w ->
            c[line[called]].claim = OVER + ends;
            tell(line[called]);
            printf("server: calls client %d\n", line[called] + 1);
            called++
        :: else -> break
        od
    :: w == 0 && n > 0 && c[line[0]].aside && line[0] != me -> tell(line[0])
    :: else
    fi
}

inline join(i) {
    if
    :: !c[i].waits || c[i].aside -> tail(i, false)
    :: else
    fi;
    c[i].steady = true;
    c[i].claim = UNCALLED
}

inline grant(i) {
    drop(i);
    holder = i;
    c[i].told = false;
    c[i].look = 0;
    c[i].overtaken = 0;
    c[i].idle = 0;
    printf("client %d: gets the lock\n", i + 1);
    w = 0;
    do
    :: w < CLIENTS ->
        if
        :: counts(w) ->
            c[w].overtaken++;
            c[w].idle = 0;
            assert(c[w].overtaken < CLIENTS)
        :: else
        fi;
        w++
    :: else -> break
    od;
    /* watch(): the new first tries at once, and learns its place; the second looks in time. */
    if
    :: n > 0 -> tell(line[0])
    :: else
    fi;
    if
    :: n > 1 && c[line[1]].look > LOOK_SECOND -> c[line[1]].look = LOOK_SECOND
    :: else
    fi
}

inline plan(i) {
    p = 0;
    do
    :: p < n && line[p] != i -> p++
    :: else -> break
    od;
    /* The first needs no look while the lock is held: it hears of the end. */
    c[i].look = (ends > 0 -> ends : (p == 1 -> LOOK_SECOND : LOOK_OTHERS))
}

inline try(i) {
    c[i].told = false;
    ends = 0;
    if
    :: holder == NONE ->
#ifndef SKIP_INSTEAD_OF_CLAIM
        offer(i);
#endif
        if
        :: ends == 0 -> grant(i)
        :: else ->
            join(i);
            plan(i);
            printf("client %d: tries, and has to wait for claims\n", i + 1)
        fi
    :: else ->
        join(i);
        plan(i);
        printf("client %d: tries, and waits: client %d has the lock\n", i + 1, holder + 1)
    fi;
    ends = 0
}

inline looks(i) {
    if
#ifdef NO_LOOKS
    :: true -> ends = 0; plan(i)
#else
    :: holder == NONE && claim_key > 0 -> c[i].look = claim_key
    :: holder == NONE && claim_key == 0 -> try(i)
    :: else -> ends = 0; plan(i)
#endif
    fi
}

proctype runs(byte i) {
    do
    /* A client that comes. Its first try joins the queue, if it fails. */
    :: d_step { !c[i].waits && !c[i].stopped && holder != i -> try(i); clear() }
    :: d_step { lives(i) && c[i].told -> try(i); clear() }
    :: d_step { lives(i) && c[i].look == 0 -> looks(i); clear() }
    :: d_step { holder == i ->
        holder = NONE;
        printf("client %d: releases the lock\n", i + 1);
        call_first();
        clear() }
    :: d_step { holder == i ->
        holder = NONE;
        claim_key = 0;
        printf("client %d: its lease ends\n", i + 1);
        if
        :: n > 0 -> tell(line[0])
        :: else
        fi }
    :: d_step { lives(i) ->
        c[i].stopped = true;
        c[i].steady = false;
        c[i].overtaken = 0;
        c[i].idle = 0;
        printf("client %d: is stopped\n", i + 1) }
    :: d_step { c[i].stopped ->
        c[i].stopped = false;
        printf("client %d: is continued\n", i + 1) }
    od
}

/* A message to a live waiter, or a look, is not late by a whole tick. */
#define urgent(i) (lives(i) && (c[i].told || c[i].look == 0))

inline tick(i) {
    if
    :: c[i].claim > OVER -> c[i].claim--
    :: else
    fi;
    if
    :: c[i].waits && c[i].look > 0 -> c[i].look--
    :: else
    fi;
    if
    :: holder == NONE && counts(i) ->
        c[i].idle++;
        assert(c[i].idle <= MOST_FREE)
    :: else -> c[i].idle = 0
    fi
}

#if CLIENTS > 3
#define urgent_any (urgent(0) || urgent(1) || urgent(2) || urgent(3))
#else
#define urgent_any (urgent(0) || urgent(1) || urgent(2))
#endif

proctype time() {
    do
    :: d_step { !urgent_any ->
        printf("time: a tick\n");
        tick(0);
        tick(1);
        tick(2);
#if CLIENTS > 3
        tick(3);
#endif
        if
        :: claim_key > 0 -> claim_key--
        :: else
        fi }
    od
}

init {
    byte i;
    atomic {
        do
        :: i < CLIENTS -> run runs(i); i++
        :: else -> break
        od;
        i = 0;
        run time()
    }
}
