/*
 * records.c - what a store keeps as text: holder record, run record, a row of PostgreSQL's table,
 * the fence's file. Each reader gets each input.
 */
#include "fuzz.h"

#include "backends/file/file.h"
#include "backends/table/table.h"
#include "run_record.h"

#include <fcntl.h>
#include <unistd.h>

static struct file_place place = {.path = "", .where = "", .fence = "fence", .dir = -1};
static int fence_fd;
static char dir[200];

static void clean_up(void)
{
    unlinkat(place.dir, place.fence, 0);
    rmdir(dir);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *tmp = getenv("TMPDIR");
    (void)argc;
    (void)argv;
    snprintf(dir, sizeof(dir), "%s/fuzz.XXXXXX", tmp ? tmp : "/tmp");
    FUZZ_HOLDS(mkdtemp(dir));
    place.dir = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    fence_fd = openat(place.dir, place.fence, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    FUZZ_HOLDS(fence_fd >= 0);
    atexit(clean_up);
    return 0;
}

static void read_holder(const char *text, size_t n)
{
    struct dlock_info info = {0};
    if (dlock_identity_parse(text, n, &info))
        fuzz_clean_info(&info);
}

/* The columns of a row. */
static void read_row(const char *text)
{
    struct dlock_info info = {0};
    table_read_holder(&info, text, 1, 1);
    fuzz_clean_info(&info);
    FUZZ_HOLDS(info.slot >= 0 && (unsigned)info.slot <= info.slots);
    table_read_owner(&info, text);
    fuzz_clean_info(&info);
}

/* What is read is written in the same words, and read again. */
static void read_run(const char *text, size_t n)
{
    struct dlock_run run, again;
    char line[RUN_RECORD_MAX];
    if (!run_record_parse(text, n, FUZZ_NOW_MS, &run))
        return;
    fuzz_clean_run(&run);
    int len = run_record_format(&run, "dlock1 host=h", line, sizeof(line));
    FUZZ_HOLDS(len > 0 && run_record_parse(line, (size_t)len, FUZZ_NOW_MS, &again));
    FUZZ_HOLDS(again.state == run.state && again.status == run.status && again.fence == run.fence &&
               again.begin_ms == run.begin_ms && again.end_ms == run.end_ms &&
               again.kept_ns == run.kept_ns && strcmp(again.token, run.token) == 0);
    run_record_skips(&run, DLOCK_SEC);
}

static void read_fence(const char *text, size_t n)
{
    struct file_record rec;
    struct dlock_error err;
    FUZZ_HOLDS(pwrite(fence_fd, text, n, 0) == (ssize_t)n && ftruncate(fence_fd, (off_t)n) == 0);
    if (file_record_read(&place, &rec, &err) != 0)
        return;
    fuzz_clean_info(&rec.info);
    FUZZ_HOLDS(rec.fence > 0 && strnlen(rec.boot, sizeof(rec.boot)) < sizeof(rec.boot));
    FUZZ_HOLDS(strlen(rec.token) == DLOCK_TOKEN_LEN);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_copy(data, size);
    /* These two need no NUL at the end. */
    read_holder((const char *)data, size);
    read_run((const char *)data, size);
    read_row(text);
    read_fence(text, size);
    free(text);
    return 0;
}
