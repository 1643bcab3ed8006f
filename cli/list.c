/*
 * list.c - --list [STORE]: the locks of a store that are held or waited for, sorted by name; at a
 * terminal as a table. Exit 0 also where there is none. --all: the store names its free locks, too,
 * and each of these is asked for its run record. --print-names (not in --help), for the shells'
 * completions: the names of the store of @NAME, on a line each, as LOCK is written. Neither makes a
 * folder.
 */
#include "json.h"
#include "kind.h"
#include "messages.h"
#include "modes.h"
#include "open.h"
#include "query.h"
#include "util.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define NAME_COLUMNS 32 /* longer names push the rest of their line to the right */
/* Of a table, which a narrower terminal wraps. */
#define TABLE_LEAST 60
#define TABLE_USUAL 80
#define COLUMNS 5
/* A completion is of no use later. */
#define NAMES_TIME (200 * DLOCK_MSEC)

/* A lock as it will be printed. A store may have thousands. */
struct listed {
    char *name;
    char *line; /* of a table: its cells, with tabs between; NULL: free, and not asked yet */
};

struct listing {
    bool json, runs; /* runs: --all */
    int columns;     /* of the table; 0: no table */
    struct listed *all;
    size_t n, cap;
    bool no_memory;
};

/* ------------------------------------------------------------- lines --- */

/* Each number is -1 where it is not known. */
static bool is_held(const struct dlock_entry *e)
{
    return e->holder || e->holders != 0;
}

/* "held", "shared 3", "slots 2 of 4", "free". */
static const char *state_text(const struct dlock_entry *e, char buf[64])
{
    const struct dlock_info *h = e->holder;
    int n = e->holders > 0 ? e->holders : 1;
    if (h && h->mode == DLOCK_MODE_SHARED)
        snprintf(buf, 64, "shared %d", n);
    else if (h && h->mode == DLOCK_MODE_SLOTS && h->slots > 0)
        snprintf(buf, 64, "slots %d of %u", n, h->slots);
    else if (h && h->mode == DLOCK_MODE_SLOTS)
        snprintf(buf, 64, "slots %d", n);
    else
        snprintf(buf, 64, "%s", is_held(e) ? "held" : "free");
    return buf;
}

/* run: of a lock that is free, or NULL. */
static void text_line(FILE *f, const struct dlock_entry *e, const struct found *run)
{
    char state[64], holder[HOLDER_TEXT_MAX], last[RUN_TEXT_MAX];
    const struct dlock_info *h = e->holder;
    fputs(state_text(e, state), f);
    if (run)
        fprintf(f, ", last run: %s", message_run(&run->run, run->crashed, last, sizeof(last)));
    if (e->waiters > 0)
        fprintf(f, ", %d waiting", e->waiters);
    if (h && h->fence)
        fprintf(f, ", fence %" PRIu64, h->fence);
    if (h && h->broken)
        fputs(", being broken", f);
    if (h)
        fprintf(f, ": %s", message_process(h, holder, sizeof(holder)));
}

/* The cells of a row behind the name. SINCE: "17:05", "2026-11-20" or "". */
static void table_line(FILE *f, const struct dlock_entry *e, const struct found *run)
{
    char state[64], who[HOLDER_TEXT_MAX] = "", since[16] = "", waiters[16] = "?";
    const struct dlock_info last = run ? kind_of_run(&run->run) : (struct dlock_info){0};
    const struct dlock_info *h = run ? &last : e->holder;
    int64_t ms = run ? dlock_max(run->run.begin_ms, run->run.end_ms) : h ? h->since_ms : 0;
    time_t at = (time_t)(ms / 1000);
    struct tm tm;
    if (at > 0 && localtime_r(&at, &tm))
        strftime(since, sizeof(since), time(NULL) - at < 86400 ? "%H:%M" : "%Y-%m-%d", &tm);
    if (e->waiters >= 0)
        snprintf(waiters, sizeof(waiters), "%d", e->waiters);
    fprintf(f, "%s\t%s%s%s%s\t%s\t%s", state_text(e, state), run ? status_run_word(run) : "",
            run ? ": " : "", h && h->broken ? "being broken: " : "",
            h ? message_who(h, who, sizeof(who)) : "", since, waiters);
}

static void json_line(FILE *f, const struct dlock_entry *e, const struct found *run)
{
    struct json j = {.f = f};
    json_open(&j, NULL, '{');
    json_int(&j, "schema", 1);
    json_str(&j, "lock", e->name);
    json_str(&j, "state", is_held(e) ? "held" : "free");
    if (e->holders >= 0)
        json_int(&j, "holders", e->holders);
    if (e->waiters >= 0)
        json_int(&j, "waiters", e->waiters);
    if (e->holder) {
        json_open(&j, "holder", '{');
        kind_json_hold(&j, e->holder);
        json_close(&j, '}');
    }
    if (run)
        status_json_run(&j, run);
    json_close(&j, '}');
}

/* ----------------------------------------------------------- listing --- */

/* Room for one more lock. NULL: out of memory. */
static struct listed *add(struct listing *l, const char *name)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        struct listed *more = realloc(l->all, cap * sizeof(*more));
        if (!more)
            return NULL;
        l->all = more;
        l->cap = cap;
    }
    struct listed *e = &l->all[l->n];
    *e = (struct listed){.name = strdup(name)};
    if (!e->name)
        return NULL;
    l->n++;
    return e;
}

static void write_line(struct listing *l, struct listed *e, const struct dlock_entry *entry,
                       const struct found *run)
{
    size_t size;
    FILE *f = open_memstream(&e->line, &size);
    if (f && l->json)
        json_line(f, entry, run);
    else if (f && l->columns > 0)
        table_line(f, entry, run);
    else if (f)
        text_line(f, entry, run);
    if (!f || fclose(f) != 0)
        l->no_memory = true;
}

static void add_lock(void *arg, const struct dlock_report *r)
{
    struct listing *l = arg;
    bool unused = !is_held(r->entry) && r->entry->waiters == 0;
    if (unused && !l->runs)
        return;
    struct listed *e = add(l, r->entry->name);
    if (!e)
        l->no_memory = true;
    else if (!unused)
        write_line(l, e, r->entry, NULL);
}

static void add_name(void *arg, const struct dlock_report *r)
{
    struct listing *l = arg;
    const char *name = r->entry->name;
    bool good = *name;
    for (size_t at = 0, len = strlen(name); good && at < len;)
        at += dlock_text_char(name + at, len - at, &good);
    if (good && !add(l, name))
        l->no_memory = true;
}

/* Of one name, the lock that is held comes first. */
static int by_name(const void *a, const void *b)
{
    const struct listed *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order != 0 ? order : (y->line != NULL) - (x->line != NULL);
}

static void sort(struct listing *l)
{
    if (l->n > 0)
        qsort(l->all, l->n, sizeof(*l->all), by_name);
}

static void drop(struct listing *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->all[i].name);
        free(l->all[i].line);
    }
    free(l->all);
}

/* How wide the columns are, so that all fit: at the cost of the name and of the holder. */
static void fit_columns(int width[COLUMNS], int columns)
{
    int room = columns - width[1] - width[3] - width[4] - 2 * (COLUMNS - 1);
    if (width[0] + width[2] <= room)
        return;
    width[0] = (int)dlock_min(width[0], dlock_max(room / 2, room - width[2]));
    width[2] = (int)dlock_min(width[2], room - width[0]);
}

/* The cells of a row, in buf; row 0: the heads. */
static void row_cells(const struct listing *l, size_t row, char *cell[COLUMNS],
                      char buf[LOCK_TEXT_MAX + HOLDER_TEXT_MAX])
{
    const struct listed *e = row > 0 ? &l->all[row - 1] : NULL;
    message_clean(buf, LOCK_TEXT_MAX, e ? e->name : "NAME", false);
    sprintf(buf + strlen(buf), "\t%.*s", HOLDER_TEXT_MAX - 2,
            e ? e->line : "STATE\tHOLDER\tSINCE\tWAITERS");
    for (int i = 0; i < COLUMNS; i++)
        cell[i] = buf ? strsep(&buf, "\t") : "";
}

static void print_table(const struct listing *l)
{
    char buf[LOCK_TEXT_MAX + HOLDER_TEXT_MAX], *cell[COLUMNS];
    int width[COLUMNS] = {0};
    for (size_t row = 0; row <= l->n; row++) {
        row_cells(l, row, cell, buf);
        for (int i = 0; i < COLUMNS; i++)
            width[i] = (int)dlock_max(width[i], message_fit(cell[i], INT_MAX));
    }
    fit_columns(width, l->columns);
    for (size_t row = 0; row <= l->n && l->n > 0; row++) {
        row_cells(l, row, cell, buf);
        for (int i = 0; i < COLUMNS; i++) {
            int used = message_fit(cell[i], width[i]);
            printf("%s%*s", cell[i], i + 1 < COLUMNS ? width[i] + 2 - used : 0, "");
        }
        putchar('\n');
    }
}

static void print_locks(const struct listing *l)
{
    char name[LOCK_TEXT_MAX];
    int width = 0;
    for (size_t i = 0; i < l->n; i++)
        width = (int)dlock_max(width, (int64_t)strlen(l->all[i].name));
    width = (int)dlock_min(width, NAME_COLUMNS);
    if (l->columns > 0)
        print_table(l);
    for (size_t i = 0; i < l->n && l->columns == 0; i++) {
        message_clean(name, sizeof(name), l->all[i].name, false);
        if (l->json)
            printf("%s\n", l->all[i].line);
        else
            printf("%-*s  %s\n", width, name, l->all[i].line);
    }
}

/* These stand for themselves in LOCK only when encoded. */
#define IN_NAMES "#?%"

/* With these characters encoded. malloc'ed; NULL: out of memory. */
static char *encode(const char *name, const char *which)
{
    char *text = malloc(3 * strlen(name) + 1), *to = text;
    for (; text && *name; name++) {
        if (strchr(which, *name))
            to += sprintf(to, "%%%02X", (unsigned char)*name);
        else
            *to++ = *name;
    }
    if (text)
        *to = '\0';
    return text;
}

/* "@name", as LOCK is written. */
static void print_names(const struct listing *l)
{
    for (size_t i = 0; i < l->n; i++) {
        char *name = encode(l->all[i].name, IN_NAMES);
        if (name)
            printf("@%s\n", name);
        free(name);
    }
}

/* ------------------------------------------------------------- store --- */

/* The store that the first len bytes of text name: a URI or a folder. */
static int named_store(char **base, const char *text, size_t len, struct dlock_error *err)
{
    char *store = strndup(text, len), *here = realpath(".", NULL), *path = NULL;
    struct dlock_error why;
    int rc = store ? 0 : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    if (rc == 0 && dlock_uri_scheme_len(store) > 0) {
        *base = store;
        store = NULL;
    } else if (rc == 0 && dlock_uri_check_typo(store, &why) < 0) {
        rc = dlock_fail(err, why.code, 0, "STORE %s", why.msg);
    } else if (rc == 0 && *store == '/') {
        rc = dlock_find_store(base, store, err);
    } else if (rc == 0) {
        if (!here || asprintf(&path, "%s/%s", here, store) < 0)
            rc = dlock_fail(err, DLOCK_ECREATE, errno, "the folder is not known: %s",
                            strerror(errno));
        else
            rc = dlock_find_store(base, path, err);
    }
    free(path);
    free(here);
    dlock_wipe(store);
    return rc;
}

/*
 * The URI of the locks in store: NULL, "@", "@GLOB", or STORE with or without "#GLOB"; or of the
 * lock name there. 0, or a negative DLOCK_E* with err filled.
 */
static int uri_of(struct dlock_uri **uri, const char *store, const char *name,
                  struct dlock_error *err)
{
    const char *hash = store ? strrchr(store, '#') : NULL;
    bool by_name = !store || *store == '@';
    const char *given = by_name ? (store ? store + 1 : "") : hash ? hash + 1 : "";
    /* '?' is a wildcard in GLOB, but not in the URI of a lock. */
    char *glob = name ? encode(name, IN_NAMES) : encode(*given ? given : "*", "?"), *base = NULL,
         *text = NULL;
    int rc = glob ? 0 : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    if (rc == 0 && by_name)
        rc = open_name(&text, glob, false, err);
    else if (rc == 0)
        rc = named_store(&base, store, hash ? (size_t)(hash - store) : strlen(store), err);
    if (rc == 0 && !by_name && asprintf(&text, "%s#%s", base, glob) < 0) {
        text = NULL;
        rc = dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    }
    if (rc == 0)
        rc = dlock_uri_parse(uri, text, err);
    dlock_wipe(base);
    dlock_wipe(text);
    free(glob);
    return rc;
}

/* Ask for the run record of a lock that is free. -1: done; else an exit code after the message. */
static int ask_run(const struct options *o, const struct sigstate *sig, const char *store,
                   struct listing *l, struct listed *e)
{
    const struct dlock_entry entry = {.name = e->name};
    struct found f = {.silent = true};
    struct dlock_uri *uri = NULL;
    struct dlock_error err;
    dlock *lk = NULL;
    int rc = uri_of(&uri, store, e->name, &err);
    if (rc == 0)
        rc = open_lock(&lk, o, DLOCK_MODE_EXCLUSIVE, &uri, &(struct open_how){0}, &err);
    if (rc < 0) /* a name that dlock refuses has no record */
        return rc == DLOCK_EUSAGE ? -1 : message_error(o, &err);
    dlock_start_status(lk, NULL);
    int code = query_run(o, sig, lk, &f);
    if (code >= 0 && f.error.code != 0)
        message_error(o, &f.error);
    else if (f.has_run && !query_holder(&f)) /* else the lock has been taken meanwhile */
        write_line(l, e, &entry, &f);
    query_free(&f);
    dlock_close(lk);
    return code;
}

/* --all: keep the free locks that have a run record. The same results. */
static int ask_runs(const struct options *o, const struct sigstate *sig, const char *store,
                    struct listing *l)
{
    size_t kept = 0;
    int code = -1;
    sort(l);
    for (size_t i = 0; i < l->n; i++) {
        struct listed *e = &l->all[i];
        bool again = kept > 0 && strcmp(l->all[kept - 1].name, e->name) == 0;
        if (code < 0 && !again && !e->line)
            code = ask_run(o, sig, store, l, e);
        if (again || !e->line) {
            free(e->name);
            free(e->line);
        } else {
            l->all[kept++] = *e;
        }
    }
    l->n = kept;
    return code;
}

/* Ask for all locks that store names. -1: done; else an exit code. */
static int list(const struct options *o, const struct sigstate *sig, const char *store,
                struct found *f)
{
    int code = 0;
    struct listing *l = f->arg;
    struct dlock_uri *uri = NULL;
    struct dlock_error err;
    if (uri_of(&uri, store, NULL, &err) < 0)
        return message_error(o, &err);
    open_bound_memory();
    dlock *lk = open_handle(o, DLOCK_MODE_EXCLUSIVE, &uri, &code);
    if (!lk)
        return code;
    dlock_begin_list(lk, l->runs);
    code = query_run(o, sig, lk, f);
    if (code < 0 && l->runs)
        code = ask_runs(o, sig, store, l);
    if (code < 0 && l->no_memory) {
        message("out of memory");
        code = dlock_error_exit(DLOCK_ENOMEM);
    }
    if (code < 0 && l->n == 0 && !f->silent && message_tells(o, ABOUT_CONDITION))
        message("%s: no lock%s%s", dlock_where(lk),
                f->why_free[0] ? ": "
                : l->runs      ? " is held or has a run record there"
                               : " is held there",
                f->why_free);
    query_free(f);
    dlock_close(lk);
    return code;
}

/* The width of the table; 0: no terminal reads. */
static int table_columns(const struct options *o)
{
    struct winsize size;
    if (o->json || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
        return 0;
    return size.ws_col > 0 ? (int)dlock_max(size.ws_col, TABLE_LEAST) : TABLE_USUAL;
}

int list_mode(const struct options *o, const struct sigstate *sig)
{
    struct listing l = {.json = o->json, .runs = o->all, .columns = table_columns(o)};
    struct found f = {.each = add_lock, .arg = &l};
    int code = list(o, sig, o->lock, &f);
    if (code < 0) {
        sort(&l);
        print_locks(&l);
    }
    drop(&l);
    return code < 0 ? 0 : code;
}

/* A store that does not answer in time has no names. */
int names_mode(const struct options *o, const struct sigstate *sig)
{
    struct listing l = {0};
    struct found f = {
        .each = add_name, .arg = &l, .silent = true, .until = dlock_now() + NAMES_TIME};
    if (list(o, sig, NULL, &f) < 0) {
        sort(&l);
        print_names(&l);
    }
    drop(&l);
    return 0;
}
