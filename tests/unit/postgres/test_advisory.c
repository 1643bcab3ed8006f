/* test_advisory.c - the server's texts behind an advisory grant. The source is included. */
#include "../../../lib/backends/postgres/advisory.c"

#include "unit.h"

#include <limits.h>

TEST(reads_the_lease_that_the_server_keeps)
{
    static const struct {
        const char *text;
        int64_t ms;
    } cases[] = {{"1500ms", 1500},
                 {"30s", 30000},
                 {"2min", 120000},
                 {"1h", 3600000},
                 {"15d", 1296000000},
                 {"0", 0},
                 {"", -1},
                 {"s", -1},
                 {"1w", -1},
                 {"-5s", -1},
                 {"9223372036854775s", INT64_C(9223372036854775000)},
                 {"9223372036854776s", -1},
                 {"99999999999999999999d", -1}};
    for (size_t i = 0; i < DLOCK_LEN(cases); i++)
        CHECK_INT(shown_ms(cases[i].text), cases[i].ms);
}

TEST(counts_what_a_row_says_within_bounds)
{
    static char name[] = "n";
    static const struct {
        const char *text;
        int count;
    } cases[] = {{"0", 0}, {"7", 7}, {"-1", 0}, {"4294967295", INT_MAX}, {"9e9", 9}, {"", 0}};
    PGresAttDesc column = {.name = name};
    PGresult *res = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    REQUIRE(res && PQsetResultAttrs(res, 1, &column));
    for (size_t i = 0; i < DLOCK_LEN(cases); i++) {
        PQsetvalue(res, (int)i, 0, (char *)(uintptr_t)cases[i].text, (int)strlen(cases[i].text));
        CHECK_INT(pg_count(res, (int)i, "n"), cases[i].count);
    }
    PQclear(res);
}

/* By a server, a pooler or a proxy. */
TEST(an_answer_with_other_columns_is_not_read)
{
    static char names[][8] = {"token", "fence"}, text[] = "t7";
    PGresAttDesc columns[] = {{.name = names[0]}, {.name = names[1]}};
    struct pg_reply r = {.rows = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK)};
    REQUIRE(r.rows && PQsetResultAttrs(r.rows, 2, columns));
    CHECK(!pg_one_row(&r, "fence"));
    PQsetvalue(r.rows, 0, 0, text, 2);
    PQsetvalue(r.rows, 0, 1, NULL, -1);
    CHECK(pg_one_row(&r, "token") && pg_one_row(&r, "fence token"));
    CHECK(!pg_one_row(&r, "pid") && !pg_one_row(&r, "fence token pid") && !pg_one_row(&r, "fenc"));
    CHECK_STR(pg_field(r.rows, 0, "token"), "t7");
    CHECK(pg_true(r.rows, 0, "token") && !pg_null(r.rows, 0, "token"));
    CHECK(pg_null(r.rows, 0, "fence") && pg_null(r.rows, 0, "pid"));
    CHECK_STR(pg_text(r.rows, 0, "pid"), "");
    CHECK_INT(pg_number(r.rows, 0, "fence"), 0);
    PQsetvalue(r.rows, 1, 0, text, 2);
    CHECK(!pg_one_row(&r, "token"));
    PQclear(r.rows);
}

UNIT_MAIN
