/* lease.c - ?mode=lease: the statements of the lease table. */
#include "postgres.h"

#define SQL_TEXTS
#include "postgres_sql.h"

#define sql_table_make NULL /* take and try make the row */
#define INIT(name) .name = sql_table_##name,

const struct table_dialect pg_lease = {
    .path = sql_session_path,
    .not_durable = sql_session_not_durable,
    .check = sql_check_table,
    .check_end = sql_check_end,
    .line = &pg_line,
    .guard = pg_guard,
    .found = pg_found,
    TABLE_STATEMENTS(INIT) /* the last: each ends with a comma */
};
