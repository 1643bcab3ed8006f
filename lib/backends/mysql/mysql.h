/* mysql.h - the backend of MySQL and MariaDB: its state. */
#ifndef DLOCK_MYSQL_H
#define DLOCK_MYSQL_H

#include "backends/table/table.h"
#include "conn.h"

struct my_backend {
    struct sql_store store;
    struct my_settings settings; /* from the URI, by my_settings_init() */
    /* The tables, as they are called in information_schema. */
    char schema_name[65], table_name[65], holders_name[65];
    struct my_conn conn;

    char line[DLOCK_TOKEN_LEN + 2]; /* of this acquire, for its row in the line */
    bool in_line;                   /* the row is there */
    bool galera;                    /* the server is a node of Galera */
    int64_t version;                /* of the lock's row, at the last try */
    int64_t due;                    /* the next try, if nothing wakes us */
};

static inline struct my_backend *my(const struct sql_store *be)
{
    return (struct my_backend *)be;
}

extern const struct table_dialect my_lease; /* lease.c */

/*
 * uri.c: fill in what comes from spec and spec->uri; reads only files. 0 or a negative code;
 * _done() is due in any case.
 */
int my_settings_init(struct my_backend *, struct dlock_error *);
void my_settings_done(struct my_backend *);
/* foreign.c: parameters for other programs; called when our own are marked as used. */
int my_foreign_params(struct dlock_uri *, struct dlock_error *);

#endif
