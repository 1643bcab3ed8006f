/* test_queue.c - a queue in ZooKeeper: who holds, who waits for what; and many random queues. */
#include "unit.h"

#include "backends/zookeeper/queue.c"

/* One letter a node: x, r, or the number of slots. */
static int queue_of(struct zk_child *line, const char *kinds)
{
    int n = (int)strlen(kinds);
    for (int i = 0; i < n; i++) {
        bool slot = kinds[i] >= '1' && kinds[i] <= '9';
        line[i] = (struct zk_child){.seq = i,
                                    .mode = kinds[i] == 'x' ? DLOCK_MODE_EXCLUSIVE
                                            : slot          ? DLOCK_MODE_SLOTS
                                                            : DLOCK_MODE_SHARED,
                                    .slots = slot ? (unsigned)(kinds[i] - '0') : 0};
    }
    set_places(line, n);
    return n;
}

TEST(who_holds_and_who_waits_for_what)
{
    /* H: holds; a digit: waits for that node; s: for a slot; !: in vain. Below it the rank: n,
     * s, b(ehind). */
    static const struct {
        const char *queue, *waits, *ranks;
    } rows[] = {
        {"xxxxx", "H0123", "nnsbb"},
        /* Readers for the last writer in front, a writer for the one in front. */
        {"rrr", "HHH", "nnn"},
        {"rrxrrx", "HH1224", "nnnssb"},
        {"xrrrr", "H0000", "nnnnn"},
        {"xrrxr", "H0023", "nnnbb"},
        /* Slots: the first one for a slot, the others for each other; as many as there are beat
         * their hearts. */
        {"222", "HHs", "nnn"},
        {"2222222", "HHs2345", "nnnsbbb"},
        {"33333333", "HHHs3456", "nnnnssbb"},
        {"11111", "Hs123", "nnsbb"},
        /* A reader takes none. */
        {"r2r2r2", "HHHHHs", "nnnnnn"},
        {"r1r1r1", "HHHsH3", NULL},
        /* Those that come together when the writer goes wait for it. */
        {"x2222", "H0023", "nnnbb"},
        {"22x22222", "HH122456", "nnnssbbb"},
        {"2x2x2x", "H01234", "nnsbbb"},
        {"x2r2r2", "H00003", NULL},
        /* Another number. */
        {"23", "H!", NULL},
        {"x3r2", "H00!", NULL},
        {"2x3", "H0!", NULL},
        {"232", "H!1", NULL}, /* the last one waits until the one in the middle has given up */
        {"223x2", "HH!23", NULL},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        struct zk_child line[16];
        char waits[16] = "", ranks[16] = "";
        int n = queue_of(line, rows[i].queue);
        for (int at = 0; at < n; at++) {
            struct zk_wait w = zk_wait_of(line, at);
            waits[at] = w.what == WAIT_NODE ? (char)('0' + w.node) : "H?s!"[w.what];
            ranks[at] = "bsn"[w.rank];
            CHECK(w.what != WAIT_IN_VAIN ||
                  w.slots == (unsigned)(line[0].slots ? line[0].slots : line[1].slots));
        }
        if (!CHECK_STR(waits, rows[i].waits) || (rows[i].ranks && !CHECK_STR(ranks, rows[i].ranks)))
            printf("# %s\n", rows[i].queue);
    }
}

/*
 * A queue of clients that look at it only when they are woken, and each at a time of its own. No
 * two that exclude each other are ever granted, and none that may hold waits after the last event.
 */
struct client {
    char kind;
    bool looked, granted, waited, said; /* said: its word is "held" */
    int waits[64], n;                   /* the clients that it watches */
    bool behind_slot;
};
struct sim {
    struct client *queue[64];
    int n;
    unsigned random;
};

static unsigned draw(struct sim *s, unsigned below)
{
    s->random = s->random * 1103515245 + 12345;
    return (s->random >> 16) % below;
}

static void leave_queue(struct sim *s, int at);

/* The queue as it is now. */
static void kinds_of(const struct sim *s, char kinds[65], struct zk_child line[64])
{
    memset(kinds, 0, 65);
    for (int i = 0; i < s->n; i++)
        kinds[i] = s->queue[i]->kind;
    queue_of(line, kinds);
}

static void look(struct sim *s, int at)
{
    char kinds[65];
    struct zk_child line[64];
    struct client *c = s->queue[at];
    kinds_of(s, kinds, line);
    struct zk_wait w = zk_wait_of(line, at);
    c->looked = true;
    c->n = 0;
    if (w.what == WAIT_NONE) {
        c->granted = true;
        c->said = c->waited;
        for (int i = at + 1; i < s->n && line[at].mode == DLOCK_MODE_SLOTS; i++)
            c->said = c->said || line[i].mode == DLOCK_MODE_SLOTS; /* acquire.followed */
        return;
    }
    if (w.what == WAIT_IN_VAIN) {
        leave_queue(s, at);
        return;
    }
    c->behind_slot = w.what == WAIT_NODE && line[w.node].mode == DLOCK_MODE_SLOTS &&
                     line[w.node].slots == line[at].slots;
    c->waited = true;
    for (int i = 0; i < at; i++)
        if (w.what == WAIT_NODE ? i == w.node : line[i].mode == DLOCK_MODE_SLOTS)
            c->waits[c->n++] = i;
}

/* The watches are by index: they move with the queue. The first one that fires counts. */
static void leave_queue(struct sim *s, int at)
{
    free(s->queue[at]);
    s->n--;
    memmove(s->queue + at, s->queue + at + 1, (size_t)(s->n - at) * sizeof(*s->queue));
    for (int i = at; i < s->n; i++)
        for (int k = 0; k < s->queue[i]->n; k++) {
            int *w = &s->queue[i]->waits[k];
            *w = *w == at ? -1 : *w > at ? *w - 1 : *w;
        }
}

static bool must_look(const struct sim *s, int at)
{
    const struct client *c = s->queue[at];
    bool fired = !c->looked;
    for (int k = 0; k < c->n && !c->granted && !fired; k++)
        fired = c->waits[k] < 0 || (c->behind_slot && s->queue[c->waits[k]]->said);
    return fired;
}

/* Any of those that must look does so. False: there is none. */
static bool look_around(struct sim *s)
{
    int first = s->n > 0 ? (int)draw(s, (unsigned)s->n) : 0;
    for (int i = 0; i < s->n; i++)
        if (must_look(s, (first + i) % s->n)) {
            look(s, (first + i) % s->n);
            return true;
        }
    return false;
}

static void check_holders(struct sim *s, bool quiet)
{
    char all[65], got[65] = "";
    struct zk_child line[64];
    unsigned writers = 0, others = 0, slots = 0, number = 0;
    kinds_of(s, all, line);
    for (int i = 0; i < s->n; i++) {
        bool granted = s->queue[i]->granted;
        got[i] = granted ? 'H' : '.';
        CHECK(!granted || line[i].place == 0);
        CHECK(!quiet || granted == (line[i].place == 0));
        writers += granted && line[i].mode == DLOCK_MODE_EXCLUSIVE;
        others += granted && line[i].mode != DLOCK_MODE_EXCLUSIVE;
        slots += granted && line[i].mode == DLOCK_MODE_SLOTS;
        number = granted && line[i].mode == DLOCK_MODE_SLOTS ? line[i].slots : number;
    }
    if (!CHECK(writers == 0 || (writers == 1 && others == 0)) || !CHECK(slots <= number))
        printf("# %s\n# %s\n", all, got);
}

TEST(no_waiter_sleeps_on_and_none_holds_against_another)
{
    static const char kinds[] = "xrr2222222223";
    for (unsigned seed = 1; seed <= 400 && unit_failures == 0; seed++) {
        struct sim s = {.random = seed};
        for (int step = 0; step < 400; step++) {
            unsigned what = draw(&s, 8);
            if (what < 3 && s.n < 40) {
                struct client *c = calloc(1, sizeof(*c));
                REQUIRE(c);
                c->kind = kinds[draw(&s, sizeof(kinds) - 1)];
                s.queue[s.n++] = c;
            } else if (what == 3 && s.n > 0) {
                leave_queue(&s, (int)draw(&s, (unsigned)s.n));
            } else {
                look_around(&s);
            }
            check_holders(&s, false);
            if (step % 50 == 49) {
                while (look_around(&s))
                    ;
                check_holders(&s, true);
            }
        }
        while (s.n > 0)
            leave_queue(&s, 0);
    }
}

UNIT_MAIN
