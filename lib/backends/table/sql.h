/*
 * sql.h - what the stores of SQL share: the places of a statement, and answers, whose rows are read
 * by the names of their columns.
 */
#ifndef DLOCK_SQL_H
#define DLOCK_SQL_H

#include "util.h"

#define SQL_STATEMENTS 8
#define SQL_VALUES 12

/* What stands in a place "{name}": text, or where that is NULL, the number. */
struct sql_place {
    const char *name, *text;
    int64_t number;
};
/* A list that ends with a place without a name. */
#define PLACES(...) ((const struct sql_place[]){__VA_ARGS__, {NULL, NULL, 0}})
/* A list and its length. NULL: the store has no such statement, and needs none. */
#define STATEMENTS(...)                                                                            \
    ((const char *const[]){__VA_ARGS__}), DLOCK_LEN(((const char *const[]){__VA_ARGS__}))

/* A message of several statements; owns its texts. */
struct sql_message {
    int tag, n;
    struct sql_statement {
        char *sql; /* NULL: there was no memory for the statement */
        int n;
        char *values[SQL_VALUES];
    } list[SQL_STATEMENTS];
};
/*
 * Add a statement. A text in a quoted place, '{name}', becomes a parameter, or with hex a literal
 * x'..'. A place of own wins over common; own may be NULL.
 */
void sql_add(struct sql_message *, const char *statement, const struct sql_place *own,
             const struct sql_place *common, bool hex);
bool sql_message_whole(const struct sql_message *); /* there was memory for all statements */
void sql_message_free(struct sql_message *);

/*
 * Statements in one text, malloc'ed; NULL: out of memory. A text in a quoted place must hold no
 * quote.
 */
char *sql_compose(const char *first, const char *between, const char *const *statements, size_t n,
                  const struct sql_place *);

/* Rows, as the driver has them. */
struct sql_rows {
    int n;
    /* A field as text; NULL: SQL's NULL. *there: is there such a column? */
    const char *(*field)(const struct sql_rows *, int row, const char *column, bool *there);
    void (*free)(struct sql_rows *);
};
void sql_rows_free(struct sql_rows *); /* or NULL */

/* What an error means. */
enum sql_fault {
    SQL_OK,
    SQL_NO_TABLE,
    SQL_EXISTS, /* the table to be made: another client was faster */
    SQL_RANGE,  /* a sum beyond 64 bits */
    SQL_READ_ONLY,
    SQL_REFUSED, /* a right is missing, or the table has another form */
    SQL_PASSES,  /* out of a resource, shutting down, a conflict */
    SQL_OTHER
};

/* The answer to one request; of sql_reply_done() to free. */
struct sql_reply {
    int tag;
    int64_t sent;          /* the clock before the first byte of the request could leave */
    struct sql_rows *rows; /* the last result with rows, or NULL */
    enum sql_fault fault;
    char state[6];     /* the server's code for the fault */
    bool unclear;      /* perhaps served before, or in part: behind an error, or a repeat */
    char text[256];    /* of the error */
    char warning[256]; /* see sql_unconfirmed(); "": none */
};
void sql_reply_done(struct sql_reply *);

/* The statement may not be run. */
static inline bool sql_is_refused(const struct sql_reply *r)
{
    return r->fault == SQL_NO_TABLE || r->fault == SQL_REFUSED;
}
/*
 * The answer to a request that has written: did the server warn before the end? Then what was
 * written is visible, and may be missing on the synchronous standby, for example because a person
 * has cancelled the wait. An error has undone the request: false.
 */
static inline bool sql_unconfirmed(const struct sql_reply *r)
{
    return r->fault == SQL_OK && r->warning[0];
}

/*
 * An answer is recognised by the names of its columns, "fence pid token": a server, a pooler or a
 * proxy may send any. An answer that lacks one is not read at all, but is an error.
 */
bool sql_has(const struct sql_rows *, const char *columns);
/* No error, and exactly one row, with these columns? */
bool sql_one_row(const struct sql_reply *, const char *columns);
/* A field of a row. NULL: it is NULL; or there is no such column, which sql_has() excludes. */
const char *sql_field(const struct sql_rows *, int row, const char *column);
static inline bool sql_null(const struct sql_rows *rows, int row, const char *column)
{
    return !sql_field(rows, row, column);
}
/* The same as text, "" when NULL; a boolean, false when NULL; a number, 0 when NULL. */
static inline const char *sql_text(const struct sql_rows *rows, int row, const char *column)
{
    const char *text = sql_field(rows, row, column);
    return text ? text : "";
}
static inline bool sql_true(const struct sql_rows *rows, int row, const char *column)
{
    char first = sql_text(rows, row, column)[0];
    return first == 't' || first == '1';
}
int64_t sql_number(const struct sql_rows *, int row, const char *column);
/* 0 to INT_MAX, whatever the server says. */
int sql_count(const struct sql_rows *, int row, const char *column);
/* Milliseconds of any row: bounded, so that sums with the time fit 64 bits in nanoseconds. */
int64_t sql_ms(const struct sql_rows *, int row, const char *column);

#endif
