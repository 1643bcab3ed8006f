/* paging.c - see paging.h. */
#include "paging.h"

#include "util.h"

#include <string.h>

/* Keys that a call looks at: so many that the server is busy for a fraction of 5 ms. */
#define COUNT_FIRST 100
#define COUNT_MOST 1000
#define LOCKS_WANTED 50 /* of a page */

void redis_paging_start(struct redis_paging *p)
{
    *p = (struct redis_paging){.cursor = "0", .count = COUNT_FIRST};
}

void redis_paging_send(const struct redis_paging *p, const struct redis_script *script,
                       struct redis_conn *c, int tag, bool all)
{
    (void)redis_script_send(
        script, c, tag, SCRIPT_LIST,
        &(struct redis_script_args){.cursor = p->cursor, .count = p->count, .all = all});
}

int redis_paging_take(struct redis_paging *p, const redisReply *r, struct redis_script_page *page)
{
    if (redis_script_page(r, page) != 0 || strlen(page->cursor) >= sizeof(p->cursor))
        return DLOCK_EPROTO;
    strcpy(p->cursor, page->cursor);
    /* Most keys of a server may be no keys of dlock. */
    if (page->nlocks < LOCKS_WANTED / 2)
        p->count = (unsigned)dlock_min(2 * p->count, COUNT_MOST);
    else if (page->nlocks > LOCKS_WANTED)
        p->count = (unsigned)dlock_max(p->count / 2, 10);
    return 0;
}
