/*
 * lease.pml - a store with a lease; a client with keeper, guard and command; and its rivals.
 *
 * Property: the commands of two clients never run at once, and fences rise with each start.
 *
 * Why one whole client is enough: the store gives the lock to one client at a time, so of two
 * commands that run at once one runs outside its lease. Client 1 stands for this client. All other
 * clients, any number of them, are the rival: it takes the free lock at any moment, its command
 * starts and ends with its hold. With -DWHOLE=2 two clients are whole beside the rival.
 *
 * Time is counted in ticks of the store's clock. A client's clock may lose DRIFT ticks in a lease
 * (design.md, section 2: 1 % of the ttl + 2 ms). Between two ticks everything may happen in any
 * order, and each step may be late by any number of ticks, save the steps that the assumptions of
 * reliability.md, section 1, make prompt: urgent() below.
 *
 * Modelled, with the place of each rule:
 *   timeline     lib/lease.h: deadline, hard_at, kill_at and term_at count from the time before the
 *                request was sent.
 *   store        try.lua grants a free lock; renew.lua and leave.lua compare the token. Requests
 *                and answers are late or lost; a request that the keeper gave up may still arrive
 *                (reliability.md, section 2). A silent store is a store that is late.
 *   restart      the store forgets everything, and grants nothing for its restart grace, which is
 *                the ttl (look.lua, `up < grace`). Its clock goes on, and so fences rise
 *                (fence.lua).
 *   keeper       lib/lock.c, lib/lease.c: asks, renews, releases after the tree is gone.
 *   guard        cli/guard.c: starts the command before term_at and while the keeper lives; kills
 *                the tree at kill_at, and when the keeper's end of the socket closes.
 *   kernel       cli/guard.c, set_hard_timer(): kills the guard at hard_at; the parent-death signal
 *                then kills the command, but not the processes that the command has started.
 *   faults       the keeper or the guard is stopped, continued, killed; the machine is suspended.
 *                Assumption: never keeper and guard together (reliability.md, section 1).
 *
 * Left out: TERM and its grace (a command may end at any time), --on-lost warn, the queue
 * (queue.pml), and the moment in which processes of a resumed machine run before the timers fire.
 *
 * Variants, each with a defect that must be found: NO_GUARD, LEASE_FROM_ANSWER,
 * DELETE_WITHOUT_COMPARE, NO_MARGIN, NO_GRACE.
 */
#ifndef WHOLE
#define WHOLE 1
#endif
#define RIVAL WHOLE
#define FREE (WHOLE + 1)

#ifndef TTL
#define TTL 8
#endif
#define DRIFT 1
#ifdef NO_MARGIN
#define MARGIN 0
#else
#define MARGIN 2
#endif
#define GRACE 1
#define DEADLINE (TTL - DRIFT)
#define HARD_AT (DEADLINE - MARGIN / 2)
#define KILL_AT (DEADLINE - MARGIN)
#define TERM_AT (KILL_AT - GRACE)

mtype = {NOTHING, ACQUIRE, RENEW, RELEASE};        /* requests */
mtype = {SILENCE, YES, NO};                        /* answers */
mtype = {IDLE, ASKING, STARTING, HELD, LOST, OVER} /* of the keeper */

typedef client {
    mtype phase = IDLE;
    byte token;         /* of the present acquisition; 0: none yet */
    bool outdone;       /* the store has granted the lock to another client since */
    mtype request = NOTHING; /* on its way to the store */
    mtype given_up = NOTHING; /* an earlier request, still on its way, and its token */
    byte old_token;
    mtype answer = SILENCE; /* on its way to the keeper */
    bool waits;         /* the keeper waits for an answer */
    byte age, asked;    /* ticks of the client since the request that counts, the last, was sent */
    bool slow, slow_asked; /* the client's clock has lost DRIFT ticks since then */
    bool child, others; /* the command, and the processes that it has started */
    bool keeper_stopped, keeper_dead, guard_stopped, guard_dead, suspended;
};
client c[WHOLE];

byte holder = FREE, holder_token, left, young; /* of the store */
bool rival_runs;

#define tree(i) (c[i].child || c[i].others)
#define keeper_runs(i) (!c[i].keeper_stopped && !c[i].keeper_dead && !c[i].suspended)
#define guard_runs(i) (!c[i].guard_stopped && !c[i].guard_dead && !c[i].suspended)
#define works(i) (tree(i) && !c[i].suspended)
#define leased(i) (c[i].phase == STARTING || c[i].phase == HELD || c[i].phase == LOST)

/* What happens before time passes (reliability.md, section 1: the guard gets the processor). */
#define kernel_must(i) (c[i].child && !c[i].suspended && c[i].age >= HARD_AT)
#define guard_must(i) (guard_runs(i) && tree(i) && \
    (c[i].age >= KILL_AT || c[i].phase == LOST || c[i].keeper_dead))
#ifdef NO_GUARD
#define keeper_must(i) (keeper_runs(i) && tree(i) && (c[i].age >= KILL_AT || c[i].phase == LOST))
#define urgent(i) keeper_must(i)
#else
#define keeper_must(i) (keeper_runs(i) && tree(i) && c[i].guard_dead)
#define urgent(i) (keeper_must(i) || guard_must(i) || kernel_must(i))
#endif

inline no_overlap(i) {
    assert(i == RIVAL || !rival_runs);
    assert(i == 0 || !works(0));
#if WHOLE > 1
    assert(i == 1 || !works(1))
#endif
}

inline end_tree(i) {
    c[i].child = false;
    c[i].others = false
}

/* A request that the keeper no longer waits for may still arrive; an older request is lost. */
inline give_up(i) {
    if
    :: c[i].request != NOTHING ->
        c[i].given_up = c[i].request;
        c[i].old_token = c[i].token;
        c[i].request = NOTHING
    :: else
    fi;
    c[i].answer = SILENCE;
    c[i].waits = false;
    c[i].asked = 0;
    c[i].slow_asked = false
}

inline send(i, what) {
    c[i].request = what;
    c[i].waits = true;
    c[i].asked = 0;
    c[i].slow_asked = false
}

/* lib/lease.c, confirm(): the lease counts from the time before the request was sent. */
inline confirm(i) {
#ifdef LEASE_FROM_ANSWER
    c[i].age = 0;
    c[i].slow = false;
#else
    c[i].age = c[i].asked;
    c[i].slow = c[i].slow_asked;
#endif
    give_up(i)
}

inline end_lease(i) {
    c[i].age = 0;
    c[i].slow = false
}

/* Not the token of a hold, nor of a request on its way. Three numbers are enough. */
#define used(i, t) (holder == i && holder_token == t || c[i].given_up != NOTHING && \
                    c[i].old_token == t)
inline new_token(i) {
    if
    :: !used(i, 1) -> c[i].token = 1
    :: else ->
        if
        :: !used(i, 2) -> c[i].token = 2
        :: else -> c[i].token = 3
        fi
    fi
}

/* The process that starts the command looks at the clock before (cli/spawn.c). */
inline start(i) {
    if
    :: c[i].age < TERM_AT ->
        c[i].phase = HELD;
        c[i].child = true;
        c[i].others = true;
        printf("client %d: the command starts, %d ticks after the request\n", i + 1, c[i].age);
        no_overlap(i);
        assert(!c[i].outdone) /* or its fence would be lower */
    :: else ->
        c[i].phase = OVER;
        end_lease(i);
        printf("client %d: too late to start the command\n", i + 1)
    fi
}

proctype keeper(byte i) {
    do
    :: d_step { keeper_runs(i) && c[i].phase == IDLE ->
        new_token(i);
        c[i].phase = ASKING;
        send(i, ACQUIRE);
        printf("client %d: asks for the lock\n", i + 1) }
    :: d_step { keeper_runs(i) && c[i].phase == ASKING && c[i].answer == YES ->
        c[i].phase = STARTING;
        confirm(i);
        printf("client %d: hears that the lock is granted\n", i + 1) }
    :: d_step { keeper_runs(i) && c[i].phase == ASKING && c[i].answer == NO ->
        c[i].phase = IDLE;
        give_up(i);
        printf("client %d: hears that the lock is held\n", i + 1) }
    :: d_step { keeper_runs(i) && c[i].phase == ASKING && c[i].answer == SILENCE ->
        c[i].phase = IDLE;
        give_up(i);
        printf("client %d: gives up the request\n", i + 1) }
    :: d_step { keeper_runs(i) && c[i].phase == HELD && !c[i].waits && c[i].age > 0 ->
        send(i, RENEW);
        printf("client %d: asks for a renewal\n", i + 1) }
    :: d_step { keeper_runs(i) && c[i].phase == HELD && c[i].answer == YES ->
        confirm(i);
        printf("client %d: hears of the renewal, asked for %d ticks ago\n", i + 1, c[i].age) }
    :: d_step { keeper_runs(i) && c[i].phase == HELD && c[i].answer == NO ->
        c[i].phase = LOST;
        give_up(i);
        printf("client %d: hears that the lock is lost\n", i + 1) }
    :: d_step { keeper_runs(i) && c[i].phase == HELD && c[i].waits && c[i].answer == SILENCE ->
        give_up(i);
        printf("client %d: gives up the renewal\n", i + 1) }
    /* The guard was killed: its witness ends the tree for the keeper (design.md, section 2). */
    :: d_step { keeper_must(i) ->
        end_tree(i);
        printf("client %d: the keeper kills the tree\n", i + 1) }
    :: d_step { keeper_runs(i) && (c[i].phase == STARTING && c[i].guard_dead ||
                                  (c[i].phase == HELD || c[i].phase == LOST) && !tree(i)) ->
        c[i].phase = OVER;
        end_lease(i) }
    /* The release ends the waiting for a renewal. Its answer changes nothing here. */
    :: d_step { keeper_runs(i) && c[i].phase == OVER ->
        give_up(i);
        c[i].given_up = RELEASE;
        c[i].old_token = c[i].token;
        c[i].phase = IDLE;
        c[i].guard_stopped = false; /* the next acquisition has a new guard */
        c[i].guard_dead = false;
        printf("client %d: sends the release\n", i + 1) }
#ifdef NO_GUARD
    :: d_step { keeper_runs(i) && c[i].phase == STARTING -> start(i) }
#endif
    od
}

/* Messages first: an EXTEND that the keeper has sent counts, so keeper and guard share the age. */
proctype guard(byte i) {
    do
    :: d_step { guard_runs(i) && c[i].phase == STARTING && !c[i].keeper_dead -> start(i) }
    :: d_step { guard_must(i) ->
        end_tree(i);
        printf("client %d: the guard kills the tree\n", i + 1) }
    :: d_step { guard_runs(i) && c[i].keeper_dead && !tree(i) ->
        c[i].keeper_dead = false; /* the next acquisition has a new keeper */
        c[i].phase = IDLE;
        give_up(i);
        end_lease(i) }
    od
}

proctype kernel(byte i) {
    do
    :: d_step { kernel_must(i) ->
        c[i].guard_dead = true;
        c[i].child = false;
        printf("client %d: the kernel's timer kills the guard, and so the command\n", i + 1) }
    od
}

proctype command(byte i) {
    do
    :: d_step { works(i) && !c[i].guard_dead && !c[i].keeper_dead ->
        end_tree(i);
        printf("client %d: the command ends\n", i + 1) }
    od
}

proctype faults(byte i) {
    do
    /* A guard that was stopped and is late counts as stopped until it has acted. */
    :: d_step { c[i].phase != IDLE && keeper_runs(i) && guard_runs(i) && !urgent(i) ->
        c[i].keeper_stopped = true;
        printf("client %d: the keeper is stopped\n", i + 1) }
    :: d_step { c[i].keeper_stopped && !c[i].suspended ->
        c[i].keeper_stopped = false;
        printf("client %d: the keeper is continued\n", i + 1) }
    :: d_step { c[i].phase != IDLE && c[i].phase != OVER && guard_runs(i) && !c[i].keeper_dead &&
                !urgent(i) ->
        c[i].keeper_stopped = false;
        c[i].keeper_dead = true;
        printf("client %d: the keeper is killed\n", i + 1) }
#ifndef NO_GUARD
    :: d_step { c[i].phase != IDLE && keeper_runs(i) && guard_runs(i) ->
        c[i].guard_stopped = true;
        printf("client %d: the guard is stopped\n", i + 1) }
    :: d_step { c[i].guard_stopped && !c[i].guard_dead && !c[i].suspended ->
        c[i].guard_stopped = false;
        printf("client %d: the guard is continued\n", i + 1) }
    :: d_step { c[i].phase != IDLE && keeper_runs(i) && !c[i].guard_dead ->
        c[i].guard_dead = true;
        c[i].child = false;
        printf("client %d: the guard is killed, and so the command\n", i + 1) }
#endif
    :: d_step { tree(i) && !c[i].suspended ->
        c[i].suspended = true;
        printf("client %d: the machine is suspended\n", i + 1) }
    /* The timers count the suspended time (CLOCK_BOOTTIME), and fire first. */
    :: d_step { c[i].suspended ->
        c[i].suspended = false;
        printf("client %d: the machine resumes\n", i + 1);
        if
        :: c[i].age >= KILL_AT -> end_tree(i)
        :: else -> no_overlap(i)
        fi }
    od
}

inline grant(i) {
    holder = i;
    left = TTL;
    c[0].outdone = i != 0;
#if WHOLE > 1
    c[1].outdone = i != 1
#endif
}

inline set_free() {
    holder = FREE;
    holder_token = 0;
    left = 0
}

inline serve(i, what, its) {
    if
    :: what == ACQUIRE && holder == FREE && young == 0 ->
        grant(i);
        holder_token = its;
        ours = true;
        printf("store: grants the lock to client %d\n", i + 1)
    :: what == RENEW && holder == i && holder_token == its ->
        left = TTL;
        ours = true;
        printf("store: renews the lease of client %d\n", i + 1)
#ifdef DELETE_WITHOUT_COMPARE
    :: what == RELEASE && holder != FREE ->
#else
    :: what == RELEASE && holder == i && holder_token == its ->
#endif
        set_free();
        printf("store: the release of client %d frees the lock\n", i + 1)
    :: else -> printf("store: refuses a request of client %d\n", i + 1)
    fi
}

/* The requests of client i: served, or lost; and the answers on their way back. */
proctype store(byte i) {
    bool ours;
    do
    :: d_step { c[i].request != NOTHING ->
        ours = false;
        serve(i, c[i].request, c[i].token);
        c[i].answer = (ours -> YES : NO);
        c[i].request = NOTHING;
        ours = false }
    :: d_step { c[i].given_up != NOTHING ->
        serve(i, c[i].given_up, c[i].old_token);
        c[i].given_up = NOTHING;
        c[i].old_token = 0;
        ours = false }
    :: d_step { c[i].answer != SILENCE ->
        c[i].answer = SILENCE;
        printf("network: loses the answer to client %d\n", i + 1) }
    od
}

/* All other clients. A rival renews in time, so its lease does not end before its command. */
proctype rival() {
    do
    :: d_step { holder == FREE && young == 0 ->
        grant(RIVAL);
        rival_runs = true;
        printf("another client: gets the lock, and its command starts\n");
        no_overlap(RIVAL) }
    :: d_step { rival_runs ->
        rival_runs = false;
        printf("another client: the command ends, and the lock is released\n");
        if
        :: holder == RIVAL -> set_free()
        :: else
        fi }
    od
}

proctype restarts() {
    do
    :: d_step { holder != FREE && !rival_runs ->
        set_free();
#ifndef NO_GRACE
        young = TTL;
#endif
        printf("store: restarts without its data\n") }
    od
}

/* A tick of the clock of client i, which the clock loses if lost. */
inline tick(i, lost) {
    if
    :: lost ->
        c[i].slow = leased(i);
        c[i].slow_asked = c[i].waits
    :: else ->
        if
        :: leased(i) && c[i].age < TTL -> c[i].age++
        :: else
        fi;
        if
        :: c[i].waits && c[i].asked < TTL -> c[i].asked++
        :: else
        fi
    fi
}

inline pass(lost_0, lost_1) {
    tick(0, lost_0);
#if WHOLE > 1
    tick(1, lost_1);
#endif
    if
    :: left > 1 -> left = (holder == RIVAL -> left : left - 1)
    :: left == 1 ->
        set_free();
        printf("store: the lease ends\n")
    :: else
    fi;
    if
    :: young > 0 -> young--
    :: else
    fi
}

#define may_lose(i) (!c[i].slow && !c[i].slow_asked && (leased(i) || c[i].waits))
#if WHOLE > 1
#define urgent_any (urgent(0) || urgent(1))
#else
#define urgent_any urgent(0)
#endif

proctype time() {
    do
    :: d_step { !urgent_any -> printf("time: a tick\n"); pass(false, false) }
    :: d_step { !urgent_any && may_lose(0) ->
        printf("time: a tick, which the clock of client 1 loses\n");
        pass(true, false) }
#if WHOLE > 1
    :: d_step { !urgent_any && may_lose(1) ->
        printf("time: a tick, which the clock of client 2 loses\n");
        pass(false, true) }
#endif
    od
}

init {
    byte i;
    atomic {
        do
        :: i < WHOLE ->
            run keeper(i);
            run command(i);
            run faults(i);
            run store(i);
#ifndef NO_GUARD
            run guard(i);
            run kernel(i);
#endif
            i++
        :: else -> break
        od;
        i = 0;
        run rival();
        run restarts();
        run time()
    }
}
