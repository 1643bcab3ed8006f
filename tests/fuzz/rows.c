/*
 * rows.c - rows of PostgreSQL: of a status, of a list, of a run. Any role that may write the table
 * chooses them. The input's lines are the columns, \N is NULL; after the last line they begin anew.
 */
#include "fuzz.h"

#include "../../lib/backends/table/runs.c"
#include "backends/postgres/postgres.h"

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

/* A row with these columns: "fence pid token". */
static struct sql_rows *make_row(struct fuzz f, const char *columns)
{
    char names[256], *rest = names, *name;
    PGresAttDesc list[32];
    int n = 0;
    struct fuzz left = f;
    PGresult *res = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    snprintf(names, sizeof(names), "%s", columns);
    while ((name = strtok_r(rest, " ", &rest)))
        list[n++] = (PGresAttDesc){.name = name};
    FUZZ_HOLDS(res && PQsetResultAttrs(res, n, list));
    for (int i = 0; i < n; i++) {
        char *text = fuzz_line(&left);
        if (!text) {
            left = f;
            text = fuzz_line(&left);
        }
        bool null = !text || strcmp(text, "\\N") == 0;
        FUZZ_HOLDS(PQsetvalue(res, 0, i, text, null ? -1 : (int)strlen(text)));
        free(text);
    }
    struct sql_rows *rows = pg_rows(res);
    FUZZ_HOLDS(rows && sql_has(rows, columns));
    return rows;
}

static void check_info(const struct dlock_info *i)
{
    fuzz_clean_info(i);
    FUZZ_HOLDS(i->slots <= DLOCK_SLOTS_MAX && i->slot >= 0 && i->slot <= DLOCK_SLOTS_MAX);
    FUZZ_HOLDS(i->left_ns >= -1 || !i->waiter);
}

static void read_rows(const struct sql_protocol *protocol, struct fuzz f)
{
    static struct sql_store be;
    const struct dlock_spec spec = {.env = &fuzz_env, .uri = uri, .ttl = 30 * DLOCK_SEC};
    struct dlock_info info;
    struct dlock_entry entry;
    struct sql_rows *row = make_row(f, protocol->status_columns);
    if (protocol->read_info(row, 0, &info))
        check_info(&info);
    sql_rows_free(row);
    row = make_row(f, protocol->list_columns);
    be = (struct sql_store){.spec = &spec, .protocol = protocol, .status = {.rows = row}};
    protocol->read_entry(&be, 0, &entry);
    fuzz_clean(entry.name, sizeof(be.name));
    FUZZ_HOLDS(entry.holders >= -1 && entry.waiters >= 0);
    if (entry.holder)
        check_info(entry.holder);
    sql_rows_free(row);
}

static void read_run(struct fuzz f)
{
    struct dlock_run run;
    struct sql_rows *row = make_row(f, RECORD_COLUMNS);
    read_record(&run, row);
    sql_rows_free(row);
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
    struct fuzz f = {data, size};
    read_rows(&table_lease, f);
    read_rows(&pg_advisory, f);
    read_run(f);
    return 0;
}
