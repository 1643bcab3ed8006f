/*
 * comments.c - the comment of a holder or waiter in its last query, which PostgreSQL shows. Any
 * user can have one there. And the server's texts behind an advisory grant.
 */
#include "fuzz.h"

#include "../../lib/backends/postgres/advisory.c"

/* One row of an advisory lock's sessions, with this text as the last query; granted: a holder. */
static void read_session(char *text, const char *granted)
{
    static char names[][20] = {"granted", "query", "application_name", "breaker"};
    struct dlock_info info;
    PGresAttDesc columns[DLOCK_LEN(names)];
    PGresult *res = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    for (size_t i = 0; i < DLOCK_LEN(names); i++)
        columns[i] = (PGresAttDesc){.name = names[i]};
    FUZZ_HOLDS(res && PQsetResultAttrs(res, (int)DLOCK_LEN(columns), columns));
    PQsetvalue(res, 0, 0, (char *)(uintptr_t)granted, (int)strlen(granted));
    for (int i = 1; i < (int)DLOCK_LEN(names); i++)
        PQsetvalue(res, 0, i, text, (int)strlen(text));
    struct sql_rows *rows = pg_rows(res);
    FUZZ_HOLDS(rows);
    read_info(rows, 0, &info);
    fuzz_clean_info(&info);
    FUZZ_HOLDS(info.slots <= DLOCK_SLOTS_MAX && info.slot >= 0 && info.slot <= DLOCK_SLOTS_MAX);
    sql_rows_free(rows);
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
    read_session(text, "f");
    read_session(text, "t");
    free(text);
    return 0;
}
