/* lease.c - ?mode=lease: the statements of the lease table. */
#include "postgres.h"

#define SQL_TEXTS
#include "postgres_sql.h"

#define sql_table_make NULL /* take and try make the row */

const struct table_dialect pg_lease = {
    .path = sql_session_path,
    .not_durable = sql_session_not_durable,
    .check = sql_check_table,
    .check_end = sql_check_end,
    .line = &pg_line,
    .guard = pg_guard,
    .found = pg_found,
    TABLE_STATEMENTS(TABLE_STATEMENT_INIT) /* the last: each ends with a comma */
};
