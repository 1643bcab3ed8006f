/* options.h - the command line as one struct. */
#ifndef CLI_OPTIONS_H
#define CLI_OPTIONS_H

#include "dlock.h"

#include <stdio.h>

enum cli_mode {
    MODE_RUN,    /* LOCK [--] COMMAND [ARG...] or LOCK -c STRING */
    MODE_FD,     /* a descriptor number alone: lock the open file for the caller, and exit */
    MODE_UNLOCK, /* -u FD */
    MODE_STATUS, /* --status LOCK */
    MODE_SCHEMA, /* --schema LOCK */
    MODE_FORGET, /* --forget LOCK */
    MODE_LIST,   /* --list [STORE[#GLOB]] */
    MODE_BREAK,  /* --break LOCK */
    MODE_CHECK,  /* --check LOCK */
    MODE_HELD,   /* --held [NAME] */
    MODE_HELP,
    MODE_VERSION,
    MODE_PRINT_OPTIONS, /* --print-options (not in --help): the table for completions and tests */
    MODE_PRINT_NAMES    /* --print-names (not in --help): the locks "@name", for completions */
};

/* --also, --also-shared. */
struct also_lock {
    char *lock; /* malloc'ed, as options.lock */
    enum dlock_mode mode;
};

enum on_lost { ON_LOST_TERM, ON_LOST_KILL, ON_LOST_WARN };

struct options {
    enum cli_mode mode;
    enum dlock_mode lock_mode;
    int slots;     /* --slots; 0: not given */
    bool nonblock; /* -n, or -w 0: one try */
    bool close_fd; /* -o, --slots */
    bool no_fork;  /* -F */
    bool fcntl;    /* --fcntl: fcntl(2) instead of flock(2) */
    bool verbose, quiet, json;
    int conflict_code;              /* -E, 75 */
    int lost_code;                  /* --lost-exit-code, 79 */
    int64_t wait_ns;                /* -w; DLOCK_NEVER when not given */
    bool retry;                     /* --retry */
    bool no_reentrant;              /* --no-reentrant */
    int64_t once_ns;                /* --once; 0: not given */
    int64_t min_hold_ns;            /* --min-hold; 0: not given */
    uint8_t success_codes[256 / 8]; /* --success-codes: bits; 0 alone when not given */
    int skip_code;                  /* --skip-exit-code, 0 */
    bool yes;                       /* --yes */
    bool all;                       /* --list --all */
    bool force;                     /* --force */
    const char *holder;             /* --holder: a token, or HOST:PID; NULL: none */
    int64_t ttl_ns, connect_timeout_ns;
    int64_t grace_ns;   /* -1: not given */
    int64_t max_run_ns; /* --max-run; 0: not given */
    int on_lost;        /* --on-lost: enum on_lost */
    const char *note;   /* NULL: none */
    const char *events; /* --events: a descriptor's number or a path; NULL: none */
    int syslog;         /* --syslog: the facility; 0: not given */
    /* malloc'ed copy of LOCK as given, "@name" included; MODE_HELD, MODE_LIST: NULL if not given */
    char *lock;
    struct also_lock also[DLOCK_SET_MAX - 1];
    int nalso;
    int fd;                   /* MODE_FD, MODE_UNLOCK, MODE_STATUS of an open file; else -1 */
    char **command;           /* NULL-terminated, for execvp; with -c: the shell, "-c", STRING */
    const char *shell_string; /* -c: STRING; else NULL */
    char *title;              /* the bytes of argv, which ps(1) shows */
    size_t title_size;
};

/*
 * Fill *o from argv. 0, or DLOCK_EUSAGE or DLOCK_ENOMEM with nothing to free. LOCK may hold a
 * password: its secret parts in argv are overwritten, so that ps(1) does not show them. command,
 * note, events and shell_string point into argv and the environment. The environment is read
 * (SHELL, DLOCK_TTL, ...) and never changed.
 */
int options_parse(struct options *o, int argc, char **argv, struct dlock_error *err);
/* Does this exit code of the command count as a success? */
bool options_success(const struct options *, int code);
/* Does a file lock need a guard, which keeps the descriptor? (A lease always has a guard.) */
bool options_need_guard(const struct options *);
/* The same, and without a guard the command must not run. */
bool options_must_guard(const struct options *);
/* Overwrite the copies of locks, and free all memory. A second call is harmless. */
void options_done(struct options *o);
/* --help. */
void options_usage(FILE *f);
/* --print-options: for each option in --help SHORTS <tab> LONGS <tab> ARGUMENT <tab> HELP. */
void options_print_table(FILE *f);

#endif
