/* table.h - what the files pg_table*.c share. */
#ifndef DLOCK_PG_TABLE_H
#define DLOCK_PG_TABLE_H

#include "postgres.h"

/* table_sql.c: send a statement. The enums: the columns of what is answered. */
enum { R_FENCE, R_PID, R_HOLDER, R_HELD_FENCE, R_LEFT, R_TOKEN, R_COLUMNS };
void pg_table_send_try(struct dlock_be *);
enum { U_OURS, U_HOLDER, U_TOKEN };
void pg_table_send_renew(struct dlock_be *);
void pg_table_send_release(struct dlock_be *);
/* The same for what a try with this token may have got. */
void pg_table_send_undo(struct dlock_be *, const char *token);
enum { A_WAITER, A_HOLDER, A_FENCE, A_LEFT, A_USER, A_PID };
void pg_table_send_ask(struct dlock_be *);
/* Delete rows out of use; make the table. */
void pg_table_send_sweep(struct dlock_be *);
void pg_table_send_schema(struct dlock_be *);
/* The session's application_name; only on a session that is ours alone. */
void pg_table_send_name(struct dlock_be *, const char *app);
/* Be called by a release from now on, and try again. */
void pg_table_send_listen(struct dlock_be *);

#endif
