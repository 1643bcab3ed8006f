/* The event queue of the networked stores: bursts of events between two calls of process(). */
#include "backends/networked.h"
#include "unit.h"

static struct event_queue q;

/* The numbers of the queued events, oldest first, as "7 3 ". */
static const char *taken(char buf[static 100])
{
    struct dlock_event ev;
    int n = 0;
    buf[0] = '\0';
    while (events_take(&q, &ev))
        n += snprintf(buf + n, 100 - (size_t)n, "%d ", ev.place);
    return buf;
}

static void add(enum dlock_ev type, int number)
{
    events_add(&q, type)->place = number;
}

TEST(two_notices_are_both_told)
{
    char buf[100];
    add(EV_NOTICE, 1);
    add(EV_NOTICE, 2);
    add(EV_GRANTED, 3);
    CHECK_STR(taken(buf), "1 2 3 ");
    CHECK_INT(q.n, 0);
}

TEST(news_replaces_older_news_of_its_type)
{
    static const enum dlock_ev types[] = {EV_WAITING, EV_AWAY, EV_BACK, EV_CHANGED, EV_RENEWED};
    char buf[100];
    for (size_t i = 0; i < DLOCK_LEN(types); i++) {
        add(EV_NOTICE, 1);
        for (int k = 2; k < 40; k++)
            add(types[i], k);
        add(EV_LOST, 40);
        CHECK_STR(taken(buf), "1 39 40 ");
    }
    /* In their order: the store is away now. */
    add(EV_AWAY, 1);
    add(EV_BACK, 2);
    add(EV_AWAY, 3);
    CHECK_STR(taken(buf), "1 2 3 ");
}

TEST(a_burst_loses_no_end_of_an_operation)
{
    static const enum dlock_ev kept[] = {EV_RUN, EV_SKIPPED, EV_LOST, EV_RELEASED};
    static const enum dlock_ev burst[] = {EV_NOTICE, EV_AWAY, EV_BACK, EV_CHANGED, EV_WAITING};
    char buf[100];
    for (int at = 0; at <= 40; at++) {
        for (int i = 0; i < 44; i++) {
            add(burst[i % 5], i);
            if (i >= at && i < at + 4)
                add(kept[i - at], 1000 + i - at);
        }
        CHECK_INT(q.n, EVENTS_MAX);
        const char *p = taken(buf);
        for (int k = 0; k < 4; k++) {
            char want[16];
            snprintf(want, sizeof(want), "%d ", 1000 + k);
            p = p ? strstr(p, want) : NULL;
            if (!CHECK(p != NULL))
                printf("# ... of %d in %s\n", 1000 + k, buf);
        }
    }
}

TEST(a_full_queue_drops_its_oldest_notice)
{
    char buf[100];
    add(EV_GRANTED, 1);
    for (int i = 2; i < 20; i++)
        add(EV_NOTICE, i);
    add(EV_LOST, 20);
    CHECK_STR(taken(buf), "1 14 15 16 17 18 19 20 ");
}

UNIT_MAIN
