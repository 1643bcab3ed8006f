/*
 * rows.c - rows of a SQL store: of a status, of a list, of a run. Any account that may write the
 * table chooses them. The input's lines are the columns, \N is NULL; after the last line they begin
 * anew.
 */
#include "fuzz.h"

#include "../../lib/backends/table/runs.c"

extern const struct sql_protocol pg_advisory;

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

/* One row, as a driver has it. */
struct fuzz_row {
    struct sql_rows rows;
    int n;
    char *names[32], *fields[32];
};

static const char *field(const struct sql_rows *rows, int row, const char *column, bool *there)
{
    const struct fuzz_row *r = (const struct fuzz_row *)rows;
    int i = 0;
    while (i < r->n && strcmp(r->names[i], column) != 0)
        i++;
    *there = i < r->n;
    return *there && row == 0 ? r->fields[i] : NULL;
}

static void free_row(struct sql_rows *rows)
{
    struct fuzz_row *r = (struct fuzz_row *)rows;
    for (int i = 0; i < r->n; i++) {
        free(r->names[i]);
        free(r->fields[i]);
    }
    free(r);
}

/* A row with these columns: "fence pid token". */
static struct sql_rows *make_row(struct fuzz f, const char *columns)
{
    struct fuzz_row *r = calloc(1, sizeof(*r));
    struct fuzz left = f;
    FUZZ_HOLDS(r);
    r->rows = (struct sql_rows){.n = 1, .field = field, .free = free_row};
    for (size_t len; *columns; columns += len + strspn(columns + len, " ")) {
        len = strcspn(columns, " ");
        char *text = fuzz_line(&left);
        if (!text) {
            left = f;
            text = fuzz_line(&left);
        }
        if (text && strcmp(text, "\\N") == 0) {
            free(text);
            text = NULL;
        }
        FUZZ_HOLDS(r->n < (int)DLOCK_LEN(r->names));
        r->names[r->n] = fuzz_copy(columns, len);
        r->fields[r->n++] = text;
    }
    return &r->rows;
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
