/*
 * sql.h - the statements of sql/X.sql, which embed.awk makes sql_X_NAME, and their places "{name}".
 *
 * Every message begins with sql_session_path. Behind the path SQL is written as usual, and only the
 * user's tables have a schema; `make lint` keeps all SQL in these files.
 */
#ifndef DLOCK_PG_SQL_H
#define DLOCK_PG_SQL_H

#include "conn.h"

/* What stands in a place: text, or where that is NULL, the number. */
struct pg_place {
    const char *name, *text;
    int64_t number;
};
/* Lists that end with a place, or a statement, without a name. */
#define PLACES(...) ((const struct pg_place[]){__VA_ARGS__, {NULL, NULL, 0}})
#define STATEMENTS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* A message of the extended protocol. sql_add() makes room for the path, which comes first. */
struct pg_message {
    struct pg_statement list[PG_STATEMENTS];
    const char *values[PG_STATEMENTS][PG_VALUES];
    int n;
};
/*
 * Add a statement. A text in a quoted place, '{name}', becomes a parameter, and must live until the
 * message is sent. A place of own wins over common; own may be NULL.
 */
void sql_add(struct pg_message *, const char *statement, const struct pg_place *own,
             const struct pg_place *common);
void sql_send(struct pg_conn *, int tag, struct pg_message *);

/*
 * A message of the simple protocol: a comment (for pg_stat_activity, or NULL), the path and the
 * statements, malloc'ed; NULL: out of memory. A text in a quoted place must hold no quote.
 */
char *sql_text(const char *comment, const char *const *statements, const struct pg_place *);
/* The statement alone, for people. */
char *sql_fill(const char *statement, const struct pg_place *);

#endif
