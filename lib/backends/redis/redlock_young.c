/* redlock_young.c - see redlock_young.h. */
#include "redlock_young.h"

/* A silent server has timed out after this time at the latest. */
#define ANSWER_TIME DLOCK_SEC

static int64_t in_ms(int64_t ns)
{
    return (ns + DLOCK_MSEC - 1) / DLOCK_MSEC;
}

int64_t redlock_young_longest_ms(bool held, int64_t ttl_ms, int64_t left_ms, int64_t others_ms)
{
    if (!held)
        return others_ms;
    return dlock_max(others_ms,
                     ttl_ms > 0 ? ttl_ms : dlock_max(in_ms(REDLOCK_LONGEST_TTL), left_ms));
}

int64_t redlock_young_kept_ms(int64_t longest_ms)
{
    /*
     * A known ttl stays: the server may be cut off from us alone, and the holder may still run. An
     * unknown ttl would keep waiters out for a day.
     */
    return longest_ms >= in_ms(REDLOCK_LONGEST_TTL) ? 0 : longest_ms;
}

int64_t redlock_young_age_ms(const struct redlock_young *y)
{
    int64_t age = in_ms(y->grace);
    for (int i = 0; i < y->n && age > 0; i++)
        age = dlock_max(age, y->server[i].longest_ms);
    return age;
}

int64_t redlock_young_complete_at(const struct redlock_young *y)
{
    /* The second round needs time, too, before the first contact ends. */
    int64_t until = y->first_contact ? y->until - (y->until - y->began) / 2 : y->until;
    int64_t at = 0;
    for (int i = 0; i < y->n; i++) {
        int64_t silent_at = y->server[i].asked + dlock_min(y->op_timeout, ANSWER_TIME);
        if (y->server[i].asked != 0)
            at = dlock_max(at, dlock_min(until, silent_at));
    }
    return at;
}

int64_t redlock_young_needed_ms(const struct redlock_young *y, int64_t now)
{
    int64_t age = redlock_young_age_ms(y);
    return age > 0 && now < redlock_young_complete_at(y) ? dlock_max(age, in_ms(y->unreported_ttl))
                                                         : age;
}

bool redlock_young_decides(const struct redlock_young *y, int64_t now)
{
    int64_t needed = redlock_young_needed_ms(y, now);
    int old = 0;
    for (int i = 0; i < y->n; i++)
        old += y->server[i].voted && y->server[i].up_ms >= needed;
    return old >= y->quorum || now >= redlock_young_complete_at(y);
}
