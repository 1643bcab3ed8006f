/*
 * options.c - the command line as one struct. A row of the table has everything about an option:
 * names, help and setter. getopt's tables, the usage text and the completion data come from the
 * table.
 *
 * Behind the options comes LOCK, then the command or a descriptor. LOCK may hold a password: its
 * secret parts in argv are overwritten at once, even on a command line that is refused later.
 */
#include "options.h"

#include "lease.h"
#include "uri.h"
#include "util.h"

#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>

#define LOCK_MAX 4096
/* How long --once without a value keeps the record. */
#define ONCE_DEFAULT (30 * 86400 * DLOCK_SEC)

/* An option of the command line or the environment. */
struct given {
    const struct option_row *row;
    const char *name; /* "option -w", "option --timeout" or "DLOCK_TIMEOUT", for messages */
    char *value;      /* NULL: the option takes none */
};

/* A value of an option in words. */
struct word {
    const char *name;
    int value;
};

#define LONGS_MAX 3

struct option_row {
    const char *shorts;
    /* --help shows the first name only; flock(1) has the same synonyms. */
    const char *longs[LONGS_MAX];
    const char *arg;   /* NULL: the option takes none */
    const char *help;  /* lines separated by '\n'; NULL: not in --help */
    const char *group; /* begins a group in --help */
    const char *env;   /* the variable for the option's value, unless on the command line */
    /* Sets the option. 0, or DLOCK_EUSAGE. */
    int (*set)(struct options *, const struct given *, struct dlock_error *);
    size_t field;             /* for setters of a plain field: offset in struct options */
    int number;               /* for setters of an enum: the value */
    int64_t least;            /* for set_duration and set_number */
    int most;                 /* for set_number */
    const struct word *words; /* for set_word, up to one without a name */
    const char *want;         /* for set_number and set_word: what the value should be */
    bool optional;            /* --long or --long=VALUE; without VALUE given.value is NULL */
    bool is_lock;             /* the value is a LOCK: the setter copies and blanks it */
    unsigned modes;           /* IN() of each mode that the option is for; 0: for all modes */
};

#define misuse(err, ...) dlock_fail(err, DLOCK_EUSAGE, 0, __VA_ARGS__)

/* ----------------------------------------------------------- setters --- */

static int bad_value(const struct given *g, const char *want, struct dlock_error *err)
{
    /* LOCK instead of a forgotten value: it may hold a password. */
    const char *shown = strstr(g->value, "://") ? "(a URI)" : g->value;
    return misuse(err, "%s: \"%.64s\" is not %s", g->name, shown, want);
}

static bool is_number(const char *s)
{
    return *s && s[strspn(s, "0123456789")] == '\0';
}

/* A decimal number from 0 to max, or -1. */
static int read_number(const char *s, int max)
{
    int64_t n;
    return dlock_read_number(s, strlen(s), &n) && n <= max ? (int)n : -1;
}

static void *field_of(struct options *o, const struct given *g)
{
    return (char *)o + g->row->field;
}

static int set_flag(struct options *o, const struct given *g, struct dlock_error *err)
{
    (void)err;
    *(bool *)field_of(o, g) = true;
    return 0;
}

static int set_text(struct options *o, const struct given *g, struct dlock_error *err)
{
    (void)err;
    *(const char **)field_of(o, g) = g->value;
    return 0;
}

static int set_events(struct options *o, const struct given *g, struct dlock_error *err)
{
    if (!g->value[0])
        return bad_value(g, "a descriptor or a file (an unset variable?)", err);
    /* "-" would be a file named "-", and "-n" the next option. */
    if (g->value[0] == '-')
        return bad_value(g, "a descriptor or a file: 1 is standard output, and such a file is ./-",
                         err);
    return set_text(o, g, err);
}

static int set_number(struct options *o, const struct given *g, struct dlock_error *err)
{
    int n = read_number(g->value, g->row->most);
    if (n < g->row->least)
        return bad_value(g, g->row->want, err);
    *(int *)field_of(o, g) = n;
    return 0;
}

/* Without a value: the first word. */
static int set_word(struct options *o, const struct given *g, struct dlock_error *err)
{
    for (const struct word *w = g->row->words; w->name; w++) {
        if (!g->value || strcmp(w->name, g->value) == 0) {
            *(int *)field_of(o, g) = w->value;
            return 0;
        }
    }
    return bad_value(g, g->row->want, err);
}

/*
 * A ttl is checked for a file too, where a ttl has no effect: the command line may get another LOCK
 * tomorrow.
 */
static int set_duration(struct options *o, const struct given *g, struct dlock_error *err)
{
    int64_t *ns = field_of(o, g);
    struct dlock_error why;
    int r = dlock_parse_duration(g->value, ns, &why);
    if (r < 0 && strstr(g->value, "://"))
        return misuse(err, "%s needs a time, such as 10s, and not \"(a URI)\"", g->name);
    if (r < 0)
        return dlock_fail(err, r, 0, "%s: %s", g->name, why.msg);
    if (*ns < g->row->least)
        return bad_value(g, g->row->least == 1 ? "greater than zero" : "a ttl of at least 1 s",
                         err);
    return 0;
}

static int set_lock_mode(struct options *o, const struct given *g, struct dlock_error *err)
{
    (void)err;
    o->lock_mode = (enum dlock_mode)g->row->number;
    return 0;
}

/* --once or --once=RETENTION. */
static int set_once(struct options *o, const struct given *g, struct dlock_error *err)
{
    o->once_ns = ONCE_DEFAULT;
    return g->value ? set_duration(o, g, err) : 0;
}

/* "0,24" */
static int set_success_codes(struct options *o, const struct given *g, struct dlock_error *err)
{
    memset(o->success_codes, 0, sizeof(o->success_codes));
    for (const char *s = g->value;; s++) {
        size_t len = strcspn(s, ",");
        int64_t n;
        if (len > 3 || !dlock_read_number(s, len, &n) || n > 255)
            return bad_value(g, "a list of exit codes as 0,24", err);
        o->success_codes[n / 8] |= (uint8_t)(1U << n % 8);
        s += len;
        if (!*s)
            return 0;
    }
}

static int copy_lock(char **out, char *arg, struct dlock_error *err);

static int set_also(struct options *o, const struct given *g, struct dlock_error *err)
{
    struct also_lock *also = &o->also[o->nalso];
    if (o->nalso == DLOCK_SET_MAX - 1) {
        dlock_blank_lock(g->value);
        return misuse(err, "more than %d locks", DLOCK_SET_MAX);
    }
    int r = copy_lock(&also->lock, g->value, err);
    if (r < 0)
        return r;
    also->mode = (enum dlock_mode)g->row->number;
    o->nalso++;
    return 0;
}

static const char *const mode_names[] = {
    [MODE_RUN] = "a command",   [MODE_FD] = "a descriptor", [MODE_STATUS] = "--status",
    [MODE_SCHEMA] = "--schema", [MODE_FORGET] = "--forget", [MODE_LIST] = "--list",
    [MODE_BREAK] = "--break",   [MODE_CHECK] = "--check",   [MODE_HELD] = "--held",
    [MODE_UNLOCK] = "-u"};

static int exclude(struct dlock_error *err, const char *a, const char *b)
{
    return misuse(err, "%s and %s cannot be used together", a, b);
}

/* These modes end the command line: the words behind are not read. */
static bool is_final(enum cli_mode mode)
{
    return mode == MODE_HELP || mode == MODE_VERSION || mode == MODE_PRINT_OPTIONS ||
           mode == MODE_PRINT_NAMES;
}

/* The modes, and -u, exclude each other. */
static int set_mode(struct options *o, const struct given *g, struct dlock_error *err)
{
    enum cli_mode mode = (enum cli_mode)g->row->number, before = o->mode;
    if (before != MODE_RUN && before != mode && !is_final(mode))
        return exclude(err, mode_names[before < mode ? mode : before],
                       mode_names[before < mode ? before : mode]);
    o->mode = mode;
    return 0;
}

static int refuse_command(struct options *o, const struct given *g, struct dlock_error *err)
{
    (void)o;
    (void)g;
    return misuse(err, "-c goes after the lock: dlock LOCK -c 'COMMAND LINE'");
}

/* ------------------------------------------------------------- table --- */

#define FIELD(f) .field = offsetof(struct options, f)
#define CODE .set = set_number, .most = 255, .want = "an exit code from 0 to 255"
#define IN(mode) (1U << (mode))
/* flock(1) takes each of its options in each of its forms. */
#define IN_FLOCK (IN(MODE_RUN) | IN(MODE_FD) | IN(MODE_UNLOCK))
#define IN_QUERY                                                                                   \
    (IN(MODE_STATUS) | IN(MODE_FORGET) | IN(MODE_LIST) | IN(MODE_BREAK) | IN(MODE_CHECK))

static const struct word facilities[] = {
    {"cron", LOG_CRON},     {"daemon", LOG_DAEMON},     {"user", LOG_USER},
    {"auth", LOG_AUTH},     {"authpriv", LOG_AUTHPRIV}, {"mail", LOG_MAIL},
    {"local0", LOG_LOCAL0}, {"local1", LOG_LOCAL1},     {"local2", LOG_LOCAL2},
    {"local3", LOG_LOCAL3}, {"local4", LOG_LOCAL4},     {"local5", LOG_LOCAL5},
    {"local6", LOG_LOCAL6}, {"local7", LOG_LOCAL7},     {NULL, 0}};
static const struct word losses[] = {
    {"kill", ON_LOST_KILL}, {"term", ON_LOST_TERM}, {"warn", ON_LOST_WARN}, {NULL, 0}};

static const struct option_row table[] = {
    /* clang-format off */
    {"xe", {"exclusive"}, NULL, "one holder at a time (the default)",
     .group = "The lock", .set = set_lock_mode, .number = DLOCK_MODE_EXCLUSIVE, .modes = IN_FLOCK},
    {"s", {"shared"}, NULL, "share it with other shared holders",
     .set = set_lock_mode, .number = DLOCK_MODE_SHARED, .modes = IN_FLOCK | IN(MODE_CHECK)},
    {"", {"slots"}, "N", "share it with N - 1 others that say the same",
     .set = set_number, .least = 1, .most = DLOCK_SLOTS_MAX, .want = "a number from 1 to 1000",
     FIELD(slots), .modes = IN(MODE_RUN) | IN(MODE_CHECK)},
    {"", {"also"}, "LOCK", "hold this lock, too: all of them or none",
     .set = set_also, .number = DLOCK_MODE_EXCLUSIVE, .is_lock = true, .modes = IN(MODE_RUN)},
    {"", {"also-shared"}, "LOCK", "the same for a shared one",
     .set = set_also, .number = DLOCK_MODE_SHARED, .is_lock = true, .modes = IN(MODE_RUN)},
    {"n", {"nonblock", "nb", "nonblocking"}, NULL, "do not wait: exit 75 when the lock is held",
     .set = set_flag, FIELD(nonblock), .modes = IN_FLOCK},
    {"w", {"timeout", "wait"}, "DUR",
     "wait at most this long, then exit 75\n"
     "(default: $DLOCK_TIMEOUT, or no limit)",
     .env = "DLOCK_TIMEOUT", .set = set_duration, FIELD(wait_ns),
     .modes = IN_FLOCK | IN(MODE_BREAK)},
    {"", {"retry"}, NULL, "try again while the store cannot be reached,\nfor as long as -w allows",
     .set = set_flag, FIELD(retry), .modes = IN(MODE_RUN)},
    {"", {"no-reentrant"}, NULL,
     "under a dlock that holds LOCK: exit 75, do not\n"
     "run under its lock",
     .set = set_flag, FIELD(no_reentrant), .modes = IN(MODE_RUN)},
    {"", {"once"}, "DUR", "do not run if COMMAND has succeeded within DUR\n(default 30d)",
     .set = set_once, .least = 1, FIELD(once_ns), .optional = true,
     .modes = IN(MODE_RUN) | IN(MODE_CHECK)},
    {"", {"success-codes"}, "N,...", "with --once: exit codes that are a success\n(default 0)",
     .set = set_success_codes, .modes = IN(MODE_RUN)},
    {"", {"skip-exit-code"}, "N", "with --once: exit N when it is not run again\n(default 0)",
     CODE, FIELD(skip_code), .modes = IN(MODE_RUN)},
    {"", {"min-hold"}, "DUR", "hold LOCK for at least DUR, from its grant on",
     .set = set_duration, .least = 1, FIELD(min_hold_ns), .modes = IN(MODE_RUN)},
    {"E", {"conflict-exit-code"}, "N", "exit N instead of 75",
     CODE, FIELD(conflict_code), .modes = IN_FLOCK | IN(MODE_FORGET) | IN(MODE_BREAK)},
    {"", {"note"}, "TEXT", "a text that --status shows to others\n(default: $DLOCK_NOTE)",
     .env = "DLOCK_NOTE", .set = set_text, FIELD(note), .modes = IN(MODE_RUN) | IN(MODE_BREAK)},

    {"c", {"command"}, NULL, "after LOCK: run one STRING by $SHELL or /bin/sh",
     .group = "The command", .set = refuse_command},
    {"o", {"close"}, NULL, "files: the command does not inherit the lock",
     .set = set_flag, FIELD(close_fd), .modes = IN_FLOCK},
    {"F", {"no-fork"}, NULL, "files: become the command",
     .set = set_flag, FIELD(no_fork), .modes = IN_FLOCK},
    {"", {"max-run"}, "DUR",
     "end the command when it has run for so long:\n"
     "TERM, KILL after the grace, exit 124",
     .set = set_duration, .least = 1, FIELD(max_run_ns), .modes = IN(MODE_RUN)},
    {"", {"fcntl"}, NULL, "files: use fcntl(2) locks, not those of flock(2)",
     .set = set_flag, FIELD(fcntl),
     .modes = IN_FLOCK | IN(MODE_STATUS) | IN(MODE_BREAK) | IN(MODE_CHECK)},
    {"u", {"unlock"}, NULL, "unlock the open file FD",
     .set = set_mode, .number = MODE_UNLOCK},

    {"", {"ttl"}, "DUR",
     "length of the lease, which is renewed while the\n"
     "command runs (default: $DLOCK_TTL, or 30s)",
     .group = "The lease", .env = "DLOCK_TTL",
     .set = set_duration, .least = LEASE_MIN_TTL, FIELD(ttl_ns),
     .modes = IN(MODE_RUN) | IN(MODE_BREAK) | IN(MODE_CHECK)},
    {"", {"grace"}, "DUR",
     "time from TERM to KILL when the lease cannot be\n"
     "renewed (default: ttl/6, at most 5s)",
     .set = set_duration, FIELD(grace_ns), .modes = IN(MODE_RUN) | IN(MODE_BREAK) | IN(MODE_CHECK)},
    {"", {"connect-timeout"}, "DUR", "give up when no server answers for this long\n(default 5s)",
     .set = set_duration, .least = 1, FIELD(connect_timeout_ns),
     .modes = IN(MODE_RUN) | IN_QUERY},
    {"", {"on-lost"}, "kill|term|warn",
     "what to do to the command when the lock is lost\n"
     "(default term)",
     .set = set_word, .words = losses, .want = "kill, term or warn", FIELD(on_lost),
     .modes = IN(MODE_RUN)},
    {"", {"lost-exit-code"}, "N", "exit N instead of 79 when the lock was lost",
     CODE, FIELD(lost_code), .modes = IN(MODE_RUN)},

    {"", {"status"}, NULL, "show holders and waiters of LOCK;\nexit 0: free, 75: held",
     .group = "Information", .set = set_mode, .number = MODE_STATUS},
    {"", {"list"}, NULL,
     "show all locks of a store; LOCK: the store,\n"
     "also with #PATTERN (default: that of @NAME)",
     .set = set_mode, .number = MODE_LIST},
    {"", {"all"}, NULL, "with --list: also free locks with a run record",
     .set = set_flag, FIELD(all), .modes = IN(MODE_LIST)},
    {"", {"break"}, NULL,
     "take LOCK away from its holder, whose command is\n"
     "ended first; asks at a terminal",
     .set = set_mode, .number = MODE_BREAK},
    {"", {"holder"}, "ID", "with --break: the holder, as HOST:PID or token",
     .set = set_text, FIELD(holder), .modes = IN(MODE_BREAK)},
    {"", {"force"}, NULL, "with --break: at once; its command may go on",
     .set = set_flag, FIELD(force), .modes = IN(MODE_BREAK)},
    {"", {"check"}, NULL,
     "try what a run needs of the store, and look for\n"
     "settings that weaken LOCK",
     .set = set_mode, .number = MODE_CHECK},
    {"", {"json"}, NULL, "with --status, --list, --check: as JSON",
     .set = set_flag, FIELD(json), .modes = IN(MODE_STATUS) | IN(MODE_LIST) | IN(MODE_CHECK)},
    {"", {"schema"}, NULL, "print the SQL statement that makes LOCK's table",
     .set = set_mode, .number = MODE_SCHEMA},
    {"", {"forget"}, NULL,
     "remove the record of --once, so that COMMAND may\n"
     "run again; asks at a terminal",
     .set = set_mode, .number = MODE_FORGET},
    {"", {"yes"}, NULL, "with --forget, --break: do not ask",
     .set = set_flag, FIELD(yes), .modes = IN(MODE_FORGET) | IN(MODE_BREAK)},
    {"", {"held"}, NULL,
     "inside a command: print for how many ms its lock\n"
     "is safe (inf: no lease); exit 79: it is not held",
     .set = set_mode, .number = MODE_HELD},
    {"", {"events"}, "FD|FILE",
     "tell a program what happens, in lines of JSON\n(default: $DLOCK_EVENTS)",
     .env = "DLOCK_EVENTS", .set = set_events, FIELD(events), .modes = IN(MODE_RUN)},
    {"", {"syslog"}, "FACILITY",
     "tell the system's log of each run, skipped ones\n"
     "too (default: cron)",
     .set = set_word, .words = facilities, FIELD(syslog), .optional = true, .modes = IN(MODE_RUN),
     .want = "a facility: cron, daemon, user, local0 ..."},
    {"v", {"verbose"}, NULL, "say all that a terminal would show, and details",
     .set = set_flag, FIELD(verbose)},
    {"q", {"quiet"}, NULL, "say only errors and losses",
     .set = set_flag, FIELD(quiet)},
    {"h", {"help"}, NULL, "this text",
     .set = set_mode, .number = MODE_HELP},
    {"V", {"version"}, NULL, "version and stores",
     .set = set_mode, .number = MODE_VERSION},
    {"", {"print-options"}, NULL, NULL,
     .set = set_mode, .number = MODE_PRINT_OPTIONS},
    {"", {"print-names"}, NULL, NULL,
     .set = set_mode, .number = MODE_PRINT_NAMES},
    /* clang-format on */
};

/* ------------------------------------------------------------ getopt --- */

/* getopt_long(3) returns LONG_BASE + its row for a long option: never a character. */
#define LONG_BASE 0x1000

struct getopt_tables {
    char shorts[2 + 4 * DLOCK_LEN(table) + 1];
    struct option longs[LONGS_MAX * DLOCK_LEN(table) + 1];
};

static void build_tables(struct getopt_tables *t)
{
    /* '+': options end at LOCK. ':': getopt tells a missing argument from an unknown option. */
    char *s = stpcpy(t->shorts, "+:");
    size_t n = 0;
    for (size_t i = 0; i < DLOCK_LEN(table); i++) {
        for (const char *c = table[i].shorts; *c; c++) {
            *s++ = *c;
            if (table[i].arg)
                *s++ = ':';
        }
        for (size_t k = 0; k < LONGS_MAX && table[i].longs[k]; k++)
            t->longs[n++] = (struct option){.name = table[i].longs[k],
                                            .has_arg = table[i].optional ? optional_argument
                                                       : table[i].arg    ? required_argument
                                                                         : no_argument,
                                            .val = LONG_BASE + (int)i};
    }
    *s = '\0';
    t->longs[n] = (struct option){0};
}

/* The row for a value of getopt_long or optopt; NULL: none. */
static const struct option_row *find_row(int c)
{
    if (c >= LONG_BASE)
        return &table[c - LONG_BASE];
    for (size_t i = 0; i < DLOCK_LEN(table); i++)
        if (c > 0 && c < 128 && strchr(table[i].shorts, c))
            return &table[i];
    return NULL;
}

/* getopt_long returned '?' or ':' for this word of argv. */
static int bad_option(const struct getopt_tables *t, int c, const char *word,
                      struct dlock_error *err)
{
    const struct option_row *row = find_row(optopt);
    const char *hint = NULL;
    bool is_long = strncmp(word, "--", 2) == 0 && (optopt == 0 || optopt >= LONG_BASE);
    size_t whole = strcspn(word, "="); /* the value may be secret */
    int len = is_long ? (int)dlock_min((int64_t)whole, 64) : 2, last = -1;
    char name[3] = {'-', (char)optopt, '\0'};
    word = is_long ? word : name;
    if (c == ':')
        return misuse(err, "option %.*s needs a value: %s", len, word,
                      row && row->arg ? row->arg : "");
    if (is_long && optopt)
        return misuse(err, "option %.*s takes no value", len, word);
    for (const struct option *l = t->longs; is_long && l->name; l++) {
        char given[URI_SLIPS_MAX + 1];
        snprintf(given, sizeof(given), "%.*s", (int)whole - 2, word + 2);
        if (!hint && uri_slips(given, l->name) <= (strlen(l->name) > 6 ? 2 : 1))
            hint = l->name;
        if (strncmp(l->name, word + 2, whole - 2) != 0)
            continue;
        if (last >= 0 && last != l->val)
            return misuse(err, "option %.*s is ambiguous: write it in full", len, word);
        last = l->val;
    }
    if (hint)
        return misuse(err, "unknown option %.*s; did you mean --%s?", len, word, hint);
    return misuse(err, "unknown option %.*s (see dlock --help)", len, word);
}

/* given[i]: the option of row i is on the command line. */
static int parse_switches(struct options *o, int argc, char **argv, bool given[DLOCK_LEN(table)],
                          struct dlock_error *err)
{
    struct getopt_tables t;
    int r = 0;
    build_tables(&t);
    opterr = 0;
    optind = 0; /* begin again, also after an earlier call */
    while (r == 0 && !is_final(o->mode)) {
        /* Before the call: musl sets optind past the end behind an option without its value. */
        int at = optind > 0 ? optind : 1;
        int c = getopt_long(argc, argv, t.shorts, t.longs, NULL);
        if (c == -1)
            break;
        const struct option_row *row = find_row(c);
        char name[48];
        if (c == '?' || c == ':' || !row) {
            /* Also behind a '#': outside a LOCK, the end of a password is unknown. */
            dlock_blank_secrets(argv[at]);
            dlock_blank_lock(argv[at]);
            return bad_option(&t, c, argv[at], err);
        }
        if (c >= LONG_BASE)
            snprintf(name, sizeof(name), "option --%s", row->longs[0]);
        else
            snprintf(name, sizeof(name), "option -%c", c);
        /* A note with a URI, or LOCK in place of a forgotten value: hide its secrets. */
        if (optarg && !row->is_lock)
            dlock_blank_secrets(optarg);
        given[row - table] = true;
        r = row->set(o, &(struct given){.row = row, .name = name, .value = optarg}, err);
    }
    return r;
}

/*
 * Set the options that are not on the command line from their variables; an empty variable counts
 * as unset. Only where a lock is taken: bad variables must not break a query. -n counts as a -w.
 */
static int read_environment(struct options *o, const bool given[DLOCK_LEN(table)],
                            struct dlock_error *err)
{
    bool nonblock = o->nonblock;
    int r = 0;
    if (o->mode != MODE_RUN && o->mode != MODE_FD)
        return 0;
    for (size_t i = 0; i < DLOCK_LEN(table) && r == 0; i++) {
        const struct option_row *row = &table[i];
        char *value = row->env ? getenv(row->env) : NULL;
        bool is_wait = row->field == offsetof(struct options, wait_ns);
        if (!value || !*value || given[i] || (is_wait && nonblock))
            continue;
        r = row->set(o, &(struct given){.row = row, .name = row->env, .value = value}, err);
    }
    return r;
}

/* --------------------------------------------------------- arguments --- */

/* Copy a LOCK of the command line to *out, and overwrite its secrets in arg. */
static int copy_lock(char **out, char *arg, struct dlock_error *err)
{
    size_t len = strlen(arg);
    if (len == 0)
        return misuse(err, "the lock's name is empty (an unset variable?)");
    if (len <= LOCK_MAX)
        *out = strdup(arg);
    dlock_blank_lock(arg);
    if (len > LOCK_MAX)
        return misuse(err, "the lock's name is longer than %d bytes", LOCK_MAX);
    return *out ? 0 : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

static bool is_command_switch(const char *word)
{
    return strcmp(word, "-c") == 0 || strcmp(word, "--command") == 0;
}

/*
 * The word behind LOCK. flock(1) would execute "-n" there; here the word is a misplaced option, and
 * a command of such a name stands behind "--". An option's value may hold a password: blank the
 * word first.
 */
static int check_behind_lock(const struct options *o, char *word, struct dlock_error *err)
{
    bool run = o->mode == MODE_RUN;
    if (word[0] != '-' || word[1] == '\0' || strcmp(word, "--") == 0)
        return 0;
    if (run && is_command_switch(word))
        return 0;
    if (run && (strncmp(word, "-c", 2) == 0 || strncmp(word, "--command=", 10) == 0))
        return misuse(err, "write -c and its string as two words: dlock LOCK -c 'COMMAND LINE'");
    dlock_blank_secrets(word);
    return misuse(err, "options go before LOCK: \"%.*s\" is behind it%s",
                  (int)dlock_min((int64_t)strcspn(word, "="), 64), word,
                  run ? " (for a command of that name: dlock LOCK -- COMMAND)" : "");
}

/* rest: the words behind LOCK: a command, or -c and a string for the shell. */
static int take_command(struct options *o, char **rest, int n, struct dlock_error *err)
{
    bool by_shell = n > 0 && is_command_switch(rest[0]);
    char *shell = getenv("SHELL");
    if (by_shell && n != 2)
        return misuse(err, "%s needs exactly one argument: the command line", rest[0]);
    if (!by_shell && n > 0 && strcmp(rest[0], "--") == 0) {
        rest++;
        n--;
    }
    if (n == 0)
        return misuse(err, "no command to run: dlock [OPTION...] LOCK COMMAND [ARG...] "
                           "(a lock across steps: dlock-migrating(7))");
    o->command = calloc((size_t)n + 2, sizeof(*o->command));
    if (!o->command)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    if (by_shell) {
        static char sh[] = "/bin/sh", minus_c[] = "-c";
        o->command[0] = shell && *shell ? shell : sh;
        o->command[1] = minus_c;
        o->command[2] = rest[1];
        o->shell_string = rest[1];
    } else {
        memcpy(o->command, rest, (size_t)n * sizeof(*rest));
    }
    return 0;
}

/* The descriptor form: only a number, no command. */
static int take_fd(struct options *o, char **rest, int n, struct dlock_error *err)
{
    if (n > 1)
        return misuse(err, "-u takes one descriptor number and no command");
    if (!is_number(rest[0]))
        return misuse(err, "-u needs the number of an open descriptor");
    o->fd = read_number(rest[0], INT_MAX);
    if (o->fd < 0)
        return misuse(err, "\"%.64s\" is not a descriptor number", rest[0]);
    return 0;
}

/*
 * "-n 5 URI COMMAND": without -w the 5 would be a file, and the URI, mistyped or not, a command.
 * "--once 5d LOCK COMMAND": the same, and a bare file has no record.
 */
static int check_time_as_lock(const struct options *o, char **rest, int n, struct dlock_error *err)
{
    const char *how = o->once_ns ? "the time of --once as --once=" : "a time to wait as -w ";
    int64_t ns;
    if (n < 2 || dlock_parse_duration(rest[0], &ns, NULL) < 0)
        return 0;
    if (!o->once_ns && dlock_uri_scheme_len(rest[1]) == 0 &&
        dlock_uri_check_typo(rest[1], NULL) == 0)
        return 0;
    dlock_blank_lock(rest[1]);
    return misuse(err, "\"%.32s\" is in the place of LOCK: write %s%.32s", rest[0], how, rest[0]);
}

static int take_arguments(struct options *o, char **rest, int n, struct dlock_error *err)
{
    if (n == 0 && (o->mode == MODE_HELD || o->mode == MODE_LIST))
        return 0;
    if (n == 0)
        return misuse(err, "no lock named: dlock [OPTION...] LOCK COMMAND [ARG...]");
    if (o->mode == MODE_FD)
        return take_fd(o, rest, n, err);
    int r = o->mode == MODE_RUN ? check_time_as_lock(o, rest, n, err) : 0;
    if (r < 0)
        return r;
    /* --status of the caller's open file; our own descriptors are close-on-exec. */
    if (o->mode == MODE_STATUS && n == 1 && is_number(rest[0]) &&
        fcntl(read_number(rest[0], INT_MAX), F_GETFD) == 0) {
        r = take_fd(o, rest, n, err);
        /* /proc leads to this file, even if its path names another file by now. */
        if (r == 0 && asprintf(&o->lock, "/proc/self/fd/%d", o->fd) < 0) {
            o->lock = NULL;
            r = dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
        }
        return r;
    }
    /* Before the command line may be refused: ps(1) must not show a password. */
    r = copy_lock(&o->lock, rest[0], err);
    if (r == 0 && n > 1)
        r = check_behind_lock(o, rest[1], err);
    if (r < 0)
        return r;
    if (o->mode == MODE_UNLOCK)
        return take_fd(o, rest, n, err);
    if (o->mode == MODE_RUN)
        return take_command(o, rest + 1, n - 1, err);
    if (n > 1)
        return misuse(err, "%s takes a lock and no command", mode_names[o->mode]);
    return 0;
}

/* ------------------------------------------------- whole command line --- */

/* The size of the memory from argv[0] on in which the words stand without gaps. */
static size_t argv_size(int argc, char **argv)
{
    const char *end = argc > 0 ? argv[0] : NULL;
    for (int i = 0; i < argc && argv[i] == end; i++)
        end += strlen(end) + 1;
    return argc > 0 ? (size_t)(end - argv[0]) : 0;
}

static bool is_given(const bool given[DLOCK_LEN(table)], const char *name)
{
    for (size_t i = 0; i < DLOCK_LEN(table); i++)
        if (given[i] && strcmp(table[i].longs[0], name) == 0)
            return true;
    return false;
}

/* "-F", or "--json" for an option without a letter. */
static const char *name_of(const struct option_row *row, char buf[static 32])
{
    if (row->shorts[0])
        snprintf(buf, 32, "-%c", row->shorts[0]);
    else
        snprintf(buf, 32, "--%s", row->longs[0]);
    return buf;
}

/* Refuse an option that means nothing in this mode; variables are defaults and are not refused. */
static int check_mode(const struct options *o, const bool given[DLOCK_LEN(table)],
                      struct dlock_error *err)
{
    char name[32], better[128] = "";
    size_t n = 0;
    for (const struct option_row *row = table; row < table + DLOCK_LEN(table); row++) {
        if (!given[row - table] || row->modes == 0 || row->modes & IN(o->mode))
            continue;
        for (size_t mode = 0; mode < DLOCK_LEN(mode_names); mode++)
            if (row->modes & IN(mode))
                n += (size_t)snprintf(better + n, sizeof(better) - n, "%s%s", n > 0 ? " or " : "",
                                      mode_names[mode]);
        return misuse(err, "%s is not for %s, but for %s", name_of(row, name), mode_names[o->mode],
                      better);
    }
    return 0;
}

/* Options that are good alone but not together. */
static int check_together(struct options *o, const bool given[DLOCK_LEN(table)],
                          struct dlock_error *err)
{
    /* Of -x and -s the last counts, as in flock(1). Beside --slots both are mistakes. */
    bool shared = o->lock_mode == DLOCK_MODE_SHARED;
    bool kind = is_given(given, "exclusive") || is_given(given, "shared");
    const struct {
        bool both;
        const char *a, *b;
    } excluded[] = {
        {o->no_fork && o->close_fd, "-o", "-F"},
        {o->slots && kind, shared ? "-s" : "-x", "--slots"},
        {o->no_fork && o->nalso, "-F", "--also"},
        {o->fcntl && o->nalso, "--fcntl", "--also"},
        {shared && o->once_ns, "-s", "--once"},
        {o->no_fork && o->once_ns, "-F", "--once"},
        {o->slots && o->once_ns, "--slots", "--once"},
        {o->no_fork && o->min_hold_ns, "-F", "--min-hold"},
        {o->no_fork && o->max_run_ns, "-F", "--max-run"},
    };
    for (size_t i = 0; i < DLOCK_LEN(excluded); i++)
        if (excluded[i].both)
            return exclude(err, excluded[i].a, excluded[i].b);
    if (o->slots > 0 && o->no_fork)
        return misuse(err, "--slots needs a process that keeps the slot: not -F");
    if (o->slots > 0) {
        o->lock_mode = DLOCK_MODE_SLOTS;
        o->close_fd = true; /* a process that the command leaves behind must not keep a slot */
    }
    if (!o->once_ns && (is_given(given, "success-codes") || is_given(given, "skip-exit-code")))
        return misuse(err, "--%s needs --once",
                      is_given(given, "success-codes") ? "success-codes" : "skip-exit-code");
    if (o->retry && (o->nonblock || o->wait_ns == 0))
        return misuse(err, "--retry waits for the store, and %s does not wait: use -w with a time",
                      o->nonblock                  ? "-n"
                      : is_given(given, "timeout") ? "-w 0"
                                                   : "DLOCK_TIMEOUT=0");
    return 0;
}

bool options_success(const struct options *o, int code)
{
    return code >= 0 && code < 256 && o->success_codes[code / 8] >> code % 8 & 1;
}

int options_parse(struct options *o, int argc, char **argv, struct dlock_error *err)
{
    bool given[DLOCK_LEN(table)] = {false};
    *o = (struct options){
        .mode = MODE_RUN,
        .lock_mode = DLOCK_MODE_EXCLUSIVE,
        .conflict_code = 75,
        .lost_code = 79,
        .wait_ns = DLOCK_NEVER,
        .ttl_ns = 30 * DLOCK_SEC,
        .connect_timeout_ns = 5 * DLOCK_SEC,
        .grace_ns = -1,
        .on_lost = ON_LOST_TERM,
        .success_codes = {1},
        .fd = -1,
        .title = argc > 0 ? argv[0] : NULL,
        .title_size = argv_size(argc, argv),
    };
    int r = parse_switches(o, argc, argv, given, err);
    if (r == 0 && is_final(o->mode))
        return 0;
    if (r == 0 && o->mode == MODE_RUN && argc - optind == 1 && is_number(argv[optind]))
        o->mode = MODE_FD;
    if (r == 0)
        r = check_mode(o, given, err);
    if (r == 0)
        r = take_arguments(o, argv + optind, argc - optind, err);
    if (r == 0)
        r = read_environment(o, given, err);
    if (r == 0)
        r = check_together(o, given, err);
    if (r < 0) {
        /* A word that was not read may be the LOCK, or an option's value. */
        for (int i = 1; i < argc; i++)
            dlock_blank_lock(argv[i]);
        options_done(o);
        return r;
    }
    o->verbose = o->verbose && !o->quiet;
    /* -n and -w 0 both mean one try. */
    if (o->nonblock || o->wait_ns == 0) {
        o->nonblock = true;
        o->wait_ns = 0;
    }
    return 0;
}

bool options_must_guard(const struct options *o)
{
    return o->once_ns > 0 || o->min_hold_ns > 0 || o->max_run_ns > 0;
}

bool options_need_guard(const struct options *o)
{
    return o->close_fd || options_must_guard(o);
}

static void drop_lock(char **lock)
{
    dlock_wipe(*lock);
    *lock = NULL;
}

void options_done(struct options *o)
{
    drop_lock(&o->lock);
    while (o->nalso > 0)
        drop_lock(&o->also[--o->nalso].lock);
    free(o->command);
    o->command = NULL;
}

/* ------------------------------------------------------------- texts --- */

#define HELP_COLUMN 31

static const char usage_head[] =
    "Usage: dlock [OPTION...] LOCK [--] COMMAND [ARG...]\n"
    "       dlock [OPTION...] LOCK -c 'SHELL COMMAND LINE'\n"
    "       dlock [OPTION...] FD | -u FD\n"
    "       dlock --status|--check [--json] LOCK | --list [--all] [--json] [STORE]\n"
    "       dlock --break|--forget [--yes] LOCK | --schema LOCK\n"
    "       dlock --held [NAME]\n"
    "Run COMMAND while holding LOCK, on one machine or on many.\n"
    "\n"
    "LOCK: a file (as for flock(1)), or a store's URI, '#' and a name, or @NAME:\n"
    "  /run/lock/job.lock   \"$REDIS_URL#nightly\"   redis://host/0#nightly   @nightly\n"
    "  (@NAME: in the store of $DLOCK_STORE; if unset, a file on this machine)\n"
    "Stores:\n"
    "  file://  redis://  rediss:// (TLS)  redis+unix://  postgres://  mysql://\n"
    "  redis+sentinel://s1,s2,s3/service  redlock://h1,h2,h3  redlocks:// (TLS)\n"
    "  zk://h1,h2,h3  (dlock --version lists those of this build)\n";

static const char usage_tail[] =
    "\n"
    "DUR: 10, 0.5, 500ms, 30s, 1.5m, 10min, 1h30m, 1d. The exit code is the\n"
    "command's, or 64 usage, 69 no answer from the store, 75 lock held by others,\n"
    "77 refused, 79 lock lost. See man dlock for all of them.\n"
    "\n"
    "Examples:\n"
    "  dlock -n /run/lock/backup.lock /usr/local/bin/backup.sh\n"
    "  dlock -w 10m redis://db1/0#report -c 'make-report | mail -s report root'\n";

void options_usage(FILE *f)
{
    fputs(usage_head, f);
    for (size_t i = 0; i < DLOCK_LEN(table); i++) {
        const struct option_row *row = &table[i];
        const char *arg = row->arg ? row->arg : "", *before = row->arg ? " " : "";
        char left[64];
        int n = 0;
        if (row->group)
            fprintf(f, "\n%s:\n", row->group);
        for (const char *c = row->shorts; *c; c++)
            n += snprintf(left + n, sizeof(left) - (size_t)n, "%s-%c", n ? ", " : "  ", *c);
        snprintf(left + n, sizeof(left) - (size_t)n, "%s--%s%s%s%s", n ? ", " : "      ",
                 row->longs[0], row->optional ? "[=" : before, arg, row->optional ? "]" : "");
        for (const char *line = row->help, *end; line; line = *end ? end + 1 : NULL) {
            end = strchrnul(line, '\n');
            fprintf(f, "%-*s %.*s\n", HELP_COLUMN, left, (int)(end - line), line);
            left[0] = '\0';
        }
    }
    fputs(usage_tail, f);
}

void options_print_table(FILE *f)
{
    for (size_t i = 0; i < DLOCK_LEN(table); i++) {
        const struct option_row *row = &table[i];
        if (!row->help)
            continue;
        for (const char *c = row->shorts; *c; c++)
            fprintf(f, "%s-%c", c > row->shorts ? "," : "", *c);
        fputc('\t', f);
        for (size_t k = 0; k < LONGS_MAX && row->longs[k]; k++)
            fprintf(f, "%s--%s", k > 0 ? "," : "", row->longs[k]);
        fprintf(f, row->optional ? "\t[=%s]\t" : "\t%s\t", row->arg ? row->arg : "");
        for (const char *c = row->help; *c; c++)
            fputc(*c == '\n' ? ' ' : *c, f);
        fputc('\n', f);
    }
}
