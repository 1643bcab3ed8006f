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

/*
 * Add a statement to a message of the extended protocol, behind the path, which comes first. A text
 * in a quoted place, '{name}', becomes a parameter. A place of own wins over common; own may be
 * NULL.
 */
void sql_add(struct pg_message *, const char *statement, const struct pg_place *own,
             const struct pg_place *common);
void sql_send(struct pg_conn *, int tag, struct pg_message *);

/*
 * Statements of the simple protocol, malloc'ed; NULL: out of memory. comment: for pg_stat_activity,
 * or "", in front of the path; NULL: the statements alone, for people. A text in a quoted place
 * must hold no quote.
 */
char *sql_text(const char *comment, const char *const *statements, const struct pg_place *);

#endif
