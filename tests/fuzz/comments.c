/*
 * comments.c - the comment of a holder or waiter in its last query, which PostgreSQL shows. Any
 * user can have one there. And the server's texts behind an advisory grant.
 */
#include "fuzz.h"

#include "../../lib/backends/postgres/advisory.c"

/* One row of an advisory lock's sessions, with this text as the last query; granted: a holder. */
static void read_session(char *text, const char *granted)
{
    static char name[] = "c";
    struct dlock_info info;
    PGresAttDesc columns[S_WAITERS + 1];
    PGresult *res = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    for (size_t i = 0; i < DLOCK_LEN(columns); i++)
        columns[i] = (PGresAttDesc){.name = name};
    FUZZ_HOLDS(res && PQsetResultAttrs(res, (int)DLOCK_LEN(columns), columns));
    PQsetvalue(res, 0, S_GRANTED, (char *)(uintptr_t)granted, (int)strlen(granted));
    PQsetvalue(res, 0, S_QUERY, text, (int)strlen(text));
    PQsetvalue(res, 0, S_APP, text, (int)strlen(text));
    PQsetvalue(res, 0, S_BREAKER, text, (int)strlen(text));
    if (adv_read_info(res, 0, &info))
        fuzz_clean_info(&info);
    FUZZ_HOLDS(info.slots <= DLOCK_SLOTS_MAX && info.slot >= 0 && info.slot <= DLOCK_SLOTS_MAX);
    PQclear(res);
}

/* Each half of the fencing token, and the lease that the server keeps. */
static void read_grant(const char *text)
{
    FUZZ_HOLDS(make_fence(text, "000000010000000000000001") <= INT64_MAX);
    FUZZ_HOLDS(make_fence("0/16B3748", text) <= INT64_MAX);
    FUZZ_HOLDS(shown_ms(text) >= -1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_copy(data, size);
    read_grant(text);
    read_session(text, "0");
    read_session(text, "1");
    free(text);
    return 0;
}
