/* paging.h - the pages of a server's locks (SCAN, in scripts/list.lua), one after the other. */
#ifndef DLOCK_REDIS_PAGING_H
#define DLOCK_REDIS_PAGING_H

#include "script.h"

struct redis_paging {
    char cursor[24];
    unsigned count; /* keys that the next call looks at */
};

void redis_paging_start(struct redis_paging *);
/* Ask for the next page, all: also for free locks with a run record; the caller flushes. */
void redis_paging_send(const struct redis_paging *, const struct redis_script *,
                       struct redis_conn *, int tag, bool all);
/* Read the reply, which is no error, and go on to the page behind. 0 or DLOCK_EPROTO. */
int redis_paging_take(struct redis_paging *, const redisReply *, struct redis_script_page *);

#endif
