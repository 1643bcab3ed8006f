/* rows.c - see sql.h. */
#include "sql.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sql_rows_free(struct sql_rows *rows)
{
    if (rows)
        rows->free(rows);
}

void sql_reply_done(struct sql_reply *r)
{
    sql_rows_free(r->rows);
    memset(r, 0, sizeof(*r));
}

bool sql_has(const struct sql_rows *rows, const char *columns)
{
    char name[32];
    bool there = true;
    for (int n; there && sscanf(columns, " %31s%n", name, &n) == 1; columns += n)
        (void)rows->field(rows, 0, name, &there);
    return there;
}

bool sql_one_row(const struct sql_reply *r, const char *columns)
{
    return r->fault == SQL_OK && r->rows && r->rows->n == 1 && sql_has(r->rows, columns);
}

const char *sql_field(const struct sql_rows *rows, int row, const char *column)
{
    bool there;
    return rows->field(rows, row, column, &there);
}

int64_t sql_number(const struct sql_rows *rows, int row, const char *column)
{
    return strtoll(sql_text(rows, row, column), NULL, 10);
}

int sql_count(const struct sql_rows *rows, int row, const char *column)
{
    return (int)dlock_max(0, dlock_min(sql_number(rows, row, column), INT_MAX));
}

int64_t sql_ms(const struct sql_rows *rows, int row, const char *column)
{
    const int64_t most = INT64_MAX / 4 / DLOCK_MSEC;
    return dlock_max(-most, dlock_min(sql_number(rows, row, column), most));
}
