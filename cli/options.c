/* options.c - the command line into one struct: the options one after the other, what each means, the defaults. */
#include "options.h"
#include "options_table.h"
#include "util.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ values --- */

static int bad_value(const char *name, const char *value, const char *want, struct dlock_error *err)
{
    /* The LOCK where a forgotten value should be: it may hold a password. */
    const char *shown = strstr(value, "://") ? "(a URI)" : value;

    return dlock_fail(err, DLOCK_EUSAGE, 0, "option %s: \"%.64s\" is not %s", name, shown, want);
}

bool options_is_number(const char *s)
{
    return *s && s[strspn(s, "0123456789")] == '\0';
}

/* A decimal number from 0 to max, or -1. */
int options_read_number(const char *s, int max)
{
    long long n = 0;

    if (!options_is_number(s))
        return -1;
    for (; *s && n <= max; s++)
        n = 10 * n + (*s - '0');
    return n <= max ? (int)n : -1;
}

static int set_code(int *code, const char *name, const char *value, struct dlock_error *err)
{
    int n = options_read_number(value, 255);

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
    const struct option_row *row = options_find_row(optopt);
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

    options_build_tables(&t);
    opterr = 0;
    optind = 0; /* glibc: start anew, whoever used it before */
    while (r == 0 && !is_final(o->mode)) {
        c = getopt_long(argc, argv, t.shorts, t.longs, NULL);
        if (c == -1)
            break;
        const struct option_row *row = options_find_row(c);
        char name[40];

        if (c == '?' || c == ':' || !row)
            return bad_option(&t, c, argv[optind - 1], err);
        option_name(name, c, row);
        r = row->arg ? apply_value(o, row->id, name, optarg, err) : apply_flag(o, row->id, err);
    }
    return r;
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
        r = options_take_arguments(o, argv + optind, argc - optind, err);
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
