/*
 * rows.c - rows of PostgreSQL: of a status, of a list, of a run. Any role that may write the table
 * chooses them. The input's lines are the columns, \N is NULL; after the last line they begin anew.
 */
#include "fuzz.h"

#include "../../lib/backends/postgres/table_runs.c"

#define COLUMNS 32

static struct dlock_uri *uri;

static void clean_up(void)
{
    dlock_uri_free(uri);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    FUZZ_HOLDS(dlock_uri_parse(&uri, "postgres://h/db#job", NULL) == 0);
    atexit(clean_up);
    return 0;
}

/* More columns than any reader wants. */
static PGresult *make_row(struct fuzz f)
{
    static char name[] = "c";
    PGresAttDesc columns[COLUMNS];
    struct fuzz left = f;
    PGresult *res = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    for (int i = 0; i < COLUMNS; i++)
        columns[i] = (PGresAttDesc){.name = name};
    FUZZ_HOLDS(res && PQsetResultAttrs(res, COLUMNS, columns));
    for (int i = 0; i < COLUMNS; i++) {
        char *text = fuzz_line(&left);
        if (!text) {
            left = f;
            text = fuzz_line(&left);
        }
        bool null = !text || strcmp(text, "\\N") == 0;
        FUZZ_HOLDS(PQsetvalue(res, 0, i, text, null ? -1 : (int)strlen(text)));
        free(text);
    }
    return res;
}

static void check_info(const struct dlock_info *i)
{
    fuzz_clean_info(i);
    FUZZ_HOLDS(i->slots <= DLOCK_SLOTS_MAX && i->slot >= 0 && i->slot <= DLOCK_SLOTS_MAX);
    FUZZ_HOLDS(i->left_ns >= -1 || !i->waiter);
}

static void read_rows(const struct pg_protocol *protocol, PGresult *res)
{
    static struct pg_backend be;
    const struct dlock_spec spec = {.env = &fuzz_env, .uri = uri, .ttl = 30 * DLOCK_SEC};
    struct dlock_info info;
    struct dlock_entry entry;
    be = (struct pg_backend){.spec = &spec, .protocol = protocol, .status = {.rows = res}};
    if (protocol->read_info(res, 0, &info))
        check_info(&info);
    protocol->read_entry(&be, 0, &entry);
    fuzz_clean(entry.name, sizeof(be.name));
    FUZZ_HOLDS(entry.holders >= -1 && entry.waiters >= 0);
    if (entry.holder)
        check_info(entry.holder);
}

static void read_run(const PGresult *res)
{
    struct dlock_run run;
    read_record(&run, res, 0);
    fuzz_clean(run.host, sizeof(run.host));
    fuzz_clean(run.user, sizeof(run.user));
    fuzz_clean(run.command, sizeof(run.command));
    fuzz_clean(run.note, sizeof(run.note));
    fuzz_clean(run.token, sizeof(run.token));
    FUZZ_HOLDS(run.kept_ns >= 0);
    run_record_skips(&run, DLOCK_SEC);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    PGresult *res = make_row((struct fuzz){data, size});
    read_rows(&pg_table, res);
    read_rows(&pg_advisory, res);
    read_run(res);
    PQclear(res);
    return 0;
}
