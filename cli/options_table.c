/*
 * options_table.c - the one table of options, and what is made of it: getopt's tables, the usage text and
 * completion data.
 */
#include "options_table.h"
#include "util.h"

#include <string.h>

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

void options_build_tables(struct getopt_tables *t)
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
const struct option_row *options_find_row(int c)
{
    if (c >= OPTIONS_LONG_BASE)
        return &table[c - OPTIONS_LONG_BASE];
    for (size_t i = 0; i < DLOCK_LEN(table); i++)
        if (c > 0 && c < 128 && strchr(table[i].shorts, c))
            return &table[i];
    return NULL;
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
