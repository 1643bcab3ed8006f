/* options_table.h - what the files options*.c share. */
#ifndef CLI_OPTIONS_TABLE_H
#define CLI_OPTIONS_TABLE_H

#include "options.h"

#include <getopt.h>

enum option_id {
    O_EXCLUSIVE,
    O_SHARED,
    O_NONBLOCK,
    O_WAIT,
    O_CONFLICT_CODE,
    O_COMMAND,
    O_CLOSE,
    O_NO_FORK,
    O_UNLOCK,
    O_TTL,
    O_GRACE,
    O_CONNECT_TIMEOUT,
    O_ON_LOST,
    O_LOST_CODE,
    O_NOTE,
    O_STATUS,
    O_JSON,
    O_SCHEMA,
    O_VERBOSE,
    O_QUIET,
    O_HELP,
    O_VERSION,
    O_PRINT_OPTIONS,
    O_COUNT
};

#define OPTIONS_LONGS_MAX 3

/* The first long name is the one that usage shows; the others are flock(1)'s synonyms. */
struct option_row {
    enum option_id id;
    const char *shorts;
    const char *longs[OPTIONS_LONGS_MAX];
    const char *arg;   /* NULL: takes none */
    const char *help;  /* NULL: not in --help; a second line after '\n' */
    const char *group; /* begins a group in --help */
};

/* What getopt_long(3) wants. A long option's value is OPTIONS_LONG_BASE + its row: never a character. */
#define OPTIONS_LONG_BASE 0x1000

struct getopt_tables {
    char shorts[2 + 4 * O_COUNT];
    struct option longs[OPTIONS_LONGS_MAX * O_COUNT + 1];
};

/* options_table.c: what getopt_long(3) is called with. */
void options_build_tables(struct getopt_tables *);
/* The row of what getopt_long returned or left in optopt; NULL: none. */
const struct option_row *options_find_row(int c);

/* options.c: is it made of digits, and of nothing else? */
bool options_is_number(const char *);
/* A decimal number from 0 to max, or -1. */
int options_read_number(const char *, int max);

/* options_args.c: LOCK and what follows it. 0, or DLOCK_EUSAGE or DLOCK_ENOMEM. */
int options_take_arguments(struct options *, char **rest, int n, struct dlock_error *);

#endif
