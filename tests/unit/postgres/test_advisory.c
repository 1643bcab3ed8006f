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

/* n rows with the columns token, "t7", and fence, NULL. */
static struct sql_rows *make_rows(int n)
{
    static char names[][8] = {"token", "fence"}, text[] = "t7";
    PGresAttDesc columns[] = {{.name = names[0]}, {.name = names[1]}};
    PGresult *res = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    PQsetResultAttrs(res, 2, columns);
    for (int i = 0; i < n; i++) {
        PQsetvalue(res, i, 0, text, 2);
        PQsetvalue(res, i, 1, NULL, -1);
    }
    return pg_rows(res);
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
    for (size_t i = 0; i < DLOCK_LEN(cases); i++)
        PQsetvalue(res, (int)i, 0, (char *)(uintptr_t)cases[i].text, (int)strlen(cases[i].text));
    struct sql_rows *rows = pg_rows(res);
    REQUIRE(rows);
    for (size_t i = 0; i < DLOCK_LEN(cases); i++)
        CHECK_INT(sql_count(rows, (int)i, "n"), cases[i].count);
    sql_rows_free(rows);
}

/* By a server, a pooler or a proxy. */
TEST(an_answer_with_other_columns_is_not_read)
{
    struct sql_reply none = {.rows = make_rows(0)}, r = {.rows = make_rows(1)},
                     two = {.rows = make_rows(2)};
    REQUIRE(none.rows && r.rows && two.rows);
    CHECK(!sql_one_row(&none, "fence") && sql_has(none.rows, "fence token"));
    CHECK(sql_one_row(&r, "token") && sql_one_row(&r, "fence token"));
    CHECK(!sql_one_row(&r, "pid") && !sql_one_row(&r, "fence token pid"));
    CHECK(!sql_one_row(&r, "fenc"));
    CHECK_STR(sql_field(r.rows, 0, "token"), "t7");
    CHECK(sql_true(r.rows, 0, "token") && !sql_null(r.rows, 0, "token"));
    CHECK(sql_null(r.rows, 0, "fence") && sql_null(r.rows, 0, "pid"));
    CHECK_STR(sql_text(r.rows, 0, "pid"), "");
    CHECK_INT(sql_number(r.rows, 0, "fence"), 0);
    CHECK(!sql_one_row(&two, "token"));
    sql_reply_done(&none);
    sql_reply_done(&r);
    sql_reply_done(&two);
}

UNIT_MAIN
