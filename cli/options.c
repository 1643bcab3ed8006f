/* options.c - the command line as one struct. One table makes the getopt string, the usage text and completion data. */
#include "options.h"

#include "uri.h"
#include "util.h"

#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

static const struct option_row table[] = {
    /* clang-format off */
    {O_EXCLUSIVE, "xe", {"exclusive"}, NULL,
     "one holder at a time (the default)", "The lock"},
    {O_SHARED, "s", {"shared"}, NULL,
     "share it with other shared holders (file locks only)", NULL},
    {O_NONBLOCK, "n", {"nonblock", "nb"}, NULL,
     "do not wait: exit 75 when somebody has it", NULL},
    {O_WAIT, "w", {"timeout", "wait"}, "DUR",
     "wait at most so long, then exit 75 (default: no limit)", NULL},
    {O_CONFLICT_CODE, "E", {"conflict-exit-code"}, "N",
     "exit N instead of 75", NULL},
    {O_NOTE, "", {"note"}, "TEXT",
     "say this to whoever asks who has the lock", NULL},

    {O_COMMAND, "c", {"command"}, NULL,
     "after LOCK: run one STRING by $SHELL or /bin/sh", "The command"},
    {O_CLOSE, "o", {"close"}, NULL,
     "file locks: the command does not inherit the lock", NULL},
    {O_NO_FORK, "F", {"no-fork"}, NULL,
     "file locks: become the command", NULL},
    {O_UNLOCK, "u", {"unlock"}, NULL,
     "unlock the open file FD", NULL},

    {O_TTL, "", {"ttl"}, "DUR",
     "length of the lease, renewed while the command runs (30s)", "The lease"},
    {O_GRACE, "", {"grace"}, "DUR",
     "from TERM to KILL when the lease cannot be renewed\n(a sixth of the ttl, at most 5s)", NULL},
    {O_CONNECT_TIMEOUT, "", {"connect-timeout"}, "DUR",
     "give up when no server answers for so long (5s)", NULL},
    {O_ON_LOST, "", {"on-lost"}, "kill|term|warn",
     "what to do to the command when the lock is lost (term)", NULL},
    {O_LOST_CODE, "", {"lost-exit-code"}, "N",
     "exit N instead of 79 when the lock was lost", NULL},

    {O_STATUS, "", {"status"}, NULL,
     "show who has LOCK and who waits; 0: free, 75: held", "Information"},
    {O_JSON, "", {"json"}, NULL, "as JSON", NULL},
    {O_SCHEMA, "", {"schema"}, NULL,
     "print the statement that makes LOCK's table", NULL},
    {O_VERBOSE, "v", {"verbose"}, NULL, "say more", NULL},
    {O_QUIET, "q", {"quiet"}, NULL, "only errors and a lost lock: nothing about waiting, a lock that\nis taken, or the store's condition", NULL},
    {O_HELP, "h", {"help"}, NULL, "this text", NULL},
    {O_VERSION, "V", {"version"}, NULL, "version and stores", NULL},
    {O_PRINT_OPTIONS, "", {"print-options"}, NULL, NULL, NULL},
    /* clang-format on */
};

_Static_assert(DLOCK_LEN(table) == O_COUNT, "one row for each option");

static void build_tables(struct getopt_tables *t)
{
    /* '+': options end at LOCK. ':': a missing argument is told apart from an unknown option. */
    char *s = stpcpy(t->shorts, "+:");
    size_t n = 0;

    for (size_t i = 0; i < DLOCK_LEN(table); i++) {
        for (const char *c = table[i].shorts; *c; c++) {
            *s++ = *c;
            if (table[i].arg)
                *s++ = ':';
        }
        for (size_t k = 0; k < OPTIONS_LONGS_MAX && table[i].longs[k]; k++)
            t->longs[n++] = (struct option){.name = table[i].longs[k],
                                            .has_arg = table[i].arg != NULL,
                                            .val = OPTIONS_LONG_BASE + (int)i};
    }
    *s = '\0';
    t->longs[n] = (struct option){0};
}

/* The row of what getopt_long returned or left in optopt; NULL: none. */
static const struct option_row *find_row(int c)
{
    if (c >= OPTIONS_LONG_BASE)
        return &table[c - OPTIONS_LONG_BASE];
    for (size_t i = 0; i < DLOCK_LEN(table); i++)
        if (c > 0 && c < 128 && strchr(table[i].shorts, c))
            return &table[i];
    return NULL;
}

/* ------------------------------------------------------------------ values --- */

static int bad_value(const char *name, const char *value, const char *want, struct dlock_error *err)
{
    /* The LOCK where a forgotten value should be: it may hold a password. */
    const char *shown = strstr(value, "://") ? "(a URI)" : value;

    return dlock_fail(err, DLOCK_EUSAGE, 0, "option %s: \"%.64s\" is not %s", name, shown, want);
}

static bool is_number(const char *s)
{
    return *s && s[strspn(s, "0123456789")] == '\0';
}

/* A decimal number from 0 to max, or -1. */
static int read_number(const char *s, int max)
{
    long long n = 0;

    if (!is_number(s))
        return -1;
    for (; *s && n <= max; s++)
        n = 10 * n + (*s - '0');
    return n <= max ? (int)n : -1;
}

static int set_code(int *code, const char *name, const char *value, struct dlock_error *err)
{
    int n = read_number(value, 255);

    if (n < 0)
        return bad_value(name, value, "an exit code from 0 to 255", err);
    *code = n;
    return 0;
}

static int set_duration(int64_t *ns, const char *name, const char *value, struct dlock_error *err)
{
    struct dlock_error why;
    int r = dlock_parse_duration(value, ns, &why);

    return r < 0 ? dlock_fail(err, r, 0, "option %s: %s", name, why.msg) : 0;
}

static int set_on_lost(struct options *o, const char *name, const char *value,
                       struct dlock_error *err)
{
    static const struct {
        const char *word;
        enum dlock_on_lost value;
    } words[] = {{"kill", DLOCK_LOST_KILL}, {"term", DLOCK_LOST_TERM}, {"warn", DLOCK_LOST_WARN}};

    for (size_t i = 0; i < DLOCK_LEN(words); i++) {
        if (strcmp(words[i].word, value) == 0) {
            o->on_lost = words[i].value;
            return 0;
        }
    }
    return bad_value(name, value, "kill, term or warn", err);
}

static int set_timeout(struct options *o, const char *name, const char *value,
                       struct dlock_error *err)
{
    int r = set_duration(&o->connect_timeout_ns, name, value, err);

    if (r == 0 && o->connect_timeout_ns == 0)
        return bad_value(name, value, "more than nothing: no server answers that fast", err);
    return r;
}

/* Options that take a value. */
static int apply_value(struct options *o, enum option_id id, const char *name, const char *value,
                       struct dlock_error *err)
{
    switch (id) {
    case O_WAIT:
        return set_duration(&o->wait_ns, name, value, err);
    case O_CONFLICT_CODE:
        return set_code(&o->conflict_code, name, value, err);
    case O_TTL:
        o->ttl_given = true;
        return set_duration(&o->ttl_ns, name, value, err);
    case O_GRACE:
        return set_duration(&o->grace_ns, name, value, err);
    case O_CONNECT_TIMEOUT:
        return set_timeout(o, name, value, err);
    case O_ON_LOST:
        return set_on_lost(o, name, value, err);
    case O_LOST_CODE:
        return set_code(&o->lost_code, name, value, err);
    case O_NOTE:
        o->note = value;
        return 0;
    default:
        return 0;
    }
}

static int set_mode(struct options *o, enum cli_mode mode, struct dlock_error *err)
{
    static const char *const names[] = {
        [MODE_STATUS] = "--status", [MODE_SCHEMA] = "--schema", [MODE_UNLOCK] = "-u"};
    if (o->mode != MODE_RUN && o->mode != mode)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s and %s cannot be used together",
                          names[o->mode < mode ? mode : o->mode],
                          names[o->mode < mode ? o->mode : mode]);
    o->mode = mode;
    return 0;
}

/* Options that are on or off. */
static int apply_flag(struct options *o, enum option_id id, struct dlock_error *err)
{
    switch (id) {
    case O_EXCLUSIVE:
        o->lock_mode = DLOCK_EXCLUSIVE;
        break;
    case O_SHARED:
        o->lock_mode = DLOCK_SHARED;
        break;
    case O_NONBLOCK:
        o->nonblock = true;
        break;
    case O_CLOSE:
        o->close_fd = true;
        break;
    case O_NO_FORK:
        o->no_fork = true;
        break;
    case O_JSON:
        o->json = true;
        break;
    case O_VERBOSE:
        o->verbose = true;
        break;
    case O_QUIET:
        o->quiet = true;
        break;
    case O_HELP:
        o->mode = MODE_HELP;
        break;
    case O_VERSION:
        o->mode = MODE_VERSION;
        break;
    case O_PRINT_OPTIONS:
        o->mode = MODE_PRINT_OPTIONS;
        break;
    case O_COMMAND:
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "-c goes after the lock: dlock LOCK -c 'COMMAND LINE'");
    case O_STATUS:
        return set_mode(o, MODE_STATUS, err);
    case O_SCHEMA:
        return set_mode(o, MODE_SCHEMA, err);
    case O_UNLOCK:
        return set_mode(o, MODE_UNLOCK, err);
    default:
        break;
    }
    return 0;
}

/* --------------------------------------------------------------- the loop --- */

/* Does word, "--long" or "--long=value" as given, begin more than one long option? */
static bool is_ambiguous(const struct getopt_tables *t, const char *word)
{
    size_t len = strcspn(word + 2, "=");
    int last = -1;

    for (const struct option *l = t->longs; l->name; l++) {
        if (strncmp(l->name, word + 2, len) != 0)
            continue;
        if (last >= 0 && last != l->val)
            return true;
        last = l->val;
    }
    return false;
}

/* After getopt_long returned '?' or ':'; word is the argument it was working on. */
static int bad_option(const struct getopt_tables *t, int c, const char *word,
                      struct dlock_error *err)
{
    const struct option_row *row = find_row(optopt);
    bool is_long = strncmp(word, "--", 2) == 0 && (optopt == 0 || optopt >= OPTIONS_LONG_BASE);
    int len = (int)strcspn(word, "="); /* the value may be secret */
    char name[3] = {'-', (char)optopt, '\0'};

    len = len > 64 ? 64 : len;
    if (!is_long) {
        word = name;
        len = 2;
    }
    if (c == ':')
        return dlock_fail(err, DLOCK_EUSAGE, 0, "option %.*s needs a value: %s", len, word,
                          row && row->arg ? row->arg : "");
    if (is_long && optopt)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "option %.*s takes no value", len, word);
    if (is_long && is_ambiguous(t, word))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "option %.*s is ambiguous: write it in full", len,
                          word);
    return dlock_fail(err, DLOCK_EUSAGE, 0, "unknown option %.*s (see dlock --help)", len, word);
}

/* "-w" or "--timeout", for messages. */
static void option_name(char buf[40], int c, const struct option_row *row)
{
    if (c >= OPTIONS_LONG_BASE)
        snprintf(buf, 40, "--%s", row->longs[0]);
    else
        snprintf(buf, 40, "-%c", c);
}

static bool is_final(enum cli_mode mode)
{
    return mode == MODE_HELP || mode == MODE_VERSION || mode == MODE_PRINT_OPTIONS;
}

static int parse_switches(struct options *o, int argc, char **argv, struct dlock_error *err)
{
    struct getopt_tables t;
    int c, r = 0;

    build_tables(&t);
    opterr = 0;
    optind = 0; /* glibc: start anew, whoever used it before */
    while (r == 0 && !is_final(o->mode)) {
        c = getopt_long(argc, argv, t.shorts, t.longs, NULL);
        if (c == -1)
            break;
        const struct option_row *row = find_row(c);
        char name[40];

        if (c == '?' || c == ':' || !row)
            return bad_option(&t, c, argv[optind - 1], err);
        option_name(name, c, row);
        r = row->arg ? apply_value(o, row->id, name, optarg, err) : apply_flag(o, row->id, err);
    }
    return r;
}

/* ------------------------------------------------------------- arguments --- */

#define LOCK_MAX 4096

static void blank(char *p, const char *end)
{
    for (; p < end; p++)
        *p = 'x';
}

static bool names_secret(const char *key, const char *end)
{
    for (; key + 6 <= end; key++)
        if (strncasecmp(key, "secret", 6) == 0 ||
            (key + 8 <= end && strncasecmp(key, "password", 8) == 0))
            return true;
    return false;
}

/* Overwrite the secret parts of a URI in place: user and password, and parameters that hold one. */
static void blank_secrets(char *uri)
{
    size_t scheme = dlock_uri_scheme_len(uri);
    char *start = uri + scheme + 3, *end, *at, *p;

    if (scheme == 0)
        return;
    end = strrchr(start, '#');
    end = end ? end : start + strlen(start);
    p = memchr(start, '?', (size_t)(end - start));
    while (p && p < end) {
        char *key = p + 1, *next = memchr(key, '&', (size_t)(end - key));
        char *stop = next ? next : end, *eq = memchr(key, '=', (size_t)(stop - key));

        if (eq && names_secret(key, eq))
            blank(eq + 1, stop);
        p = next;
    }
    /* Only the length shows, and the rest tells which lock it is. */
    at = memrchr(start, '@', (size_t)(end - start));
    blank(start, at ? at : start);
}

static int take_lock(struct options *o, char *arg, struct dlock_error *err)
{
    size_t len = strlen(arg);

    if (len == 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "the lock's name is empty (an unset variable?)");
    if (len <= LOCK_MAX)
        o->lock = strdup(arg);
    blank_secrets(arg);
    if (len > LOCK_MAX)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "the lock's name is longer than %d bytes",
                          LOCK_MAX);
    return o->lock ? 0 : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

/* The command as given, or the shell's -c with one string. rest: all that follows LOCK. */
static int take_command(struct options *o, char **rest, int n, struct dlock_error *err)
{
    bool by_shell = n > 0 && (strcmp(rest[0], "-c") == 0 || strcmp(rest[0], "--command") == 0);
    char *shell = getenv("SHELL");

    if (by_shell && n != 2)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s needs exactly one argument: the command line",
                          rest[0]);
    if (!by_shell && n > 0 && strcmp(rest[0], "--") == 0) {
        rest++;
        n--;
    }
    if (n == 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "no command to run: dlock [OPTION...] LOCK COMMAND [ARG...]");
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
        return dlock_fail(err, DLOCK_EUSAGE, 0, "-u takes one descriptor number and no command");
    if (!is_number(rest[0]))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "-u needs the number of an open descriptor");
    o->fd = read_number(rest[0], INT_MAX);
    if (o->fd < 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "\"%.64s\" is not a descriptor number", rest[0]);
    return 0;
}

static int take_arguments(struct options *o, char **rest, int n, struct dlock_error *err)
{
    int r;

    if (n == 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "no lock named: dlock [OPTION...] LOCK COMMAND [ARG...]");
    if (o->mode == MODE_RUN && n == 1 && is_number(rest[0]))
        o->mode = MODE_FD;
    if (o->mode == MODE_FD)
        return take_fd(o, rest, n, err);
    r = take_lock(o, rest[0],
                  err); /* also where it is refused below, so that nothing shows in ps */
    if (r < 0)
        return r;
    if (o->mode == MODE_UNLOCK)
        return take_fd(o, rest, n, err);
    if (o->mode == MODE_RUN)
        return take_command(o, rest + 1, n - 1, err);
    if (n > 1)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s takes a lock and no command",
                          o->mode == MODE_STATUS ? "--status" : "--schema");
    return 0;
}

/* --------------------------------------------------------------- the whole --- */

int options_parse(struct options *o, int argc, char **argv, struct dlock_error *err)
{
    int r;

    *o = (struct options){
        .mode = MODE_RUN,
        .lock_mode = DLOCK_EXCLUSIVE,
        .conflict_code = 75,
        .lost_code = 79,
        .wait_ns = DLOCK_NEVER,
        .ttl_ns = 30 * DLOCK_SEC,
        .connect_timeout_ns = 5 * DLOCK_SEC,
        .grace_ns = -1,
        .on_lost = DLOCK_LOST_TERM,
        .fd = -1,
    };
    r = parse_switches(o, argc, argv, err);
    if (r == 0 && is_final(o->mode))
        return 0;
    if (r == 0)
        r = take_arguments(o, argv + optind, argc - optind, err);
    if (r == 0 && o->close_fd && o->no_fork)
        r = dlock_fail(err, DLOCK_EUSAGE, 0, "-o and -F cannot be used together");
    if (r < 0) {
        options_done(o);
        return r;
    }
    /* One way to say "one try", whichever way it was asked for. */
    if (o->nonblock || o->wait_ns == 0) {
        o->nonblock = true;
        o->wait_ns = 0;
    }
    return 0;
}

void options_done(struct options *o)
{
    if (o->lock)
        explicit_bzero(o->lock, strlen(o->lock));
    free(o->lock);
    free(o->command);
    o->lock = NULL;
    o->command = NULL;
}

/* -------------------------------------------------------------------- texts --- */

static void print_row(FILE *f, const struct option_row *row)
{
    const char *help = row->help, *nl = strchr(help, '\n');
    char left[64];
    int n = 2;

    if (*row->shorts) {
        n = 0;
        for (const char *c = row->shorts; *c; c++)
            n += snprintf(left + n, sizeof(left) - (size_t)n, "%s-%c", n ? ", " : "  ", *c);
        snprintf(left + n, sizeof(left) - (size_t)n, ", --%s%s%s", row->longs[0],
                 row->arg ? " " : "", row->arg ? row->arg : "");
    } else {
        snprintf(left, sizeof(left), "      --%s%s%s", row->longs[0], row->arg ? " " : "",
                 row->arg ? row->arg : "");
    }
    if (strlen(left) > 31) {
        fprintf(f, "%s\n", left);
        left[0] = '\0';
    }
    fprintf(f, "%-31s %.*s\n", left, nl ? (int)(nl - help) : (int)strlen(help), help);
    if (nl)
        fprintf(f, "%-31s %s\n", "", nl + 1);
}

void options_usage(FILE *f)
{
    fputs(
        "Usage: dlock [OPTION...] LOCK [--] COMMAND [ARG...]\n"
        "       dlock [OPTION...] LOCK -c 'SHELL COMMAND LINE'\n"
        "       dlock [OPTION...] FD | -u FD\n"
        "       dlock --status [--json] LOCK\n"
        "       dlock --schema LOCK\n"
        "Run COMMAND while holding LOCK, on one machine or on many.\n"
        "\n"
        "LOCK: a file (as for flock(1)), or a store's URI, '#' and a name, or @NAME:\n"
        "  /run/lock/job.lock     \"$REDIS_URL#nightly\"     redis://host/0#nightly     @nightly\n"
        "  (@NAME: in the store of $DLOCK_STORE, without it a file of this machine)\n"
        "Stores: file://  redis://  rediss:// (TLS)  redis+unix://  "
        "redis+sentinel://s1,s2,s3/service\n"
        "  redlock://h1,h2,h3  redlocks:// (TLS)  postgres://  zk://h1,h2,h3     (see dlock "
        "--version)\n",
        f);
    for (size_t i = 0; i < DLOCK_LEN(table); i++) {
        if (table[i].group)
            fprintf(f, "\n%s:\n", table[i].group);
        if (table[i].help)
            print_row(f, &table[i]);
    }
    fputs(
        "\n"
        "DUR: 10, 0.5, 500ms, 30s, 1.5m, 2h, 1d. The exit code is the command's, but: 64 usage, 69 "
        "no\n"
        "answer from the store, 75 lock taken, 77 refused, 79 lock lost. All of them: man dlock.\n",
        f);
}

void options_print_table(FILE *f)
{
    for (size_t i = 0; i < DLOCK_LEN(table); i++) {
        const struct option_row *row = &table[i];

        if (!row->help)
            continue;
        /* SHORTS <tab> LONGS <tab> ARGUMENT <tab> HELP; several names are separated by commas */
        for (const char *c = row->shorts; *c; c++)
            fprintf(f, "%s-%c", c > row->shorts ? "," : "", *c);
        fputc('\t', f);
        for (size_t k = 0; k < OPTIONS_LONGS_MAX && row->longs[k]; k++)
            fprintf(f, "%s--%s", k > 0 ? "," : "", row->longs[k]);
        fprintf(f, "\t%s\t", row->arg ? row->arg : "");
        for (const char *c = row->help; *c; c++)
            fputc(*c == '\n' ? ' ' : *c, f);
        fputc('\n', f);
    }
}
