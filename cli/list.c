/*
 * list.c - --list [STORE]: the locks of a store that are held or waited for, sorted by name. Exit 0
 * also where there is none. --print-names (not in --help), for the shells' completions: the names
 * of the store of @NAME, on a line each, as LOCK is written. Neither makes a folder.
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
#include <stdlib.h>
#include <string.h>

#define NAME_COLUMNS 32 /* longer names push the rest of their line to the right */
/* A completion is of no use later. */
#define NAMES_TIME (200 * DLOCK_MSEC)

/* A lock as it will be printed. A store may have thousands. */
struct listed {
    char *name, *line;
};

struct listing {
    bool json;
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

static void text_line(FILE *f, const struct dlock_entry *e)
{
    char state[64], holder[HOLDER_TEXT_MAX];
    const struct dlock_info *h = e->holder;
    fputs(state_text(e, state), f);
    if (e->waiters > 0)
        fprintf(f, ", %d waiting", e->waiters);
    if (h && h->fence)
        fprintf(f, ", fence %" PRIu64, h->fence);
    if (h && h->broken)
        fputs(", being broken", f);
    if (h)
        fprintf(f, ": %s", message_process(h, holder, sizeof(holder)));
}

static void json_line(FILE *f, const struct dlock_entry *e)
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

static void add_lock(void *arg, const struct dlock_report *r)
{
    struct listing *l = arg;
    const struct dlock_entry *entry = r->entry;
    size_t size;
    if (!is_held(entry) && entry->waiters == 0)
        return;
    struct listed *e = add(l, entry->name);
    FILE *f = e ? open_memstream(&e->line, &size) : NULL;
    if (f && l->json)
        json_line(f, entry);
    else if (f)
        text_line(f, entry);
    if (!f || fclose(f) != 0)
        l->no_memory = true;
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

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct listed *)a)->name, ((const struct listed *)b)->name);
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

static void print_locks(const struct listing *l)
{
    char name[LOCK_TEXT_MAX];
    int width = 0;
    for (size_t i = 0; i < l->n; i++)
        width = (int)dlock_max(width, (int64_t)strlen(l->all[i].name));
    width = (int)dlock_min(width, NAME_COLUMNS);
    for (size_t i = 0; i < l->n; i++) {
        message_clean(name, sizeof(name), l->all[i].name, false);
        if (l->json)
            printf("%s\n", l->all[i].line);
        else
            printf("%-*s  %s\n", width, name, l->all[i].line);
    }
}

/* "@name", as LOCK is written: '#', '?' and '%' stand for themselves only when encoded. */
static void print_names(const struct listing *l)
{
    for (size_t i = 0; i < l->n; i++) {
        putchar('@');
        for (const char *c = l->all[i].name; *c; c++) {
            if (strchr("#?%", *c))
                printf("%%%02X", (unsigned)*c);
            else
                putchar(*c);
        }
        putchar('\n');
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

/* '?' is a wildcard in GLOB, but not in the URI of a lock. malloc'ed; NULL: out of memory. */
static char *encode(const char *glob)
{
    char *text = malloc(3 * strlen(glob) + 1), *to = text;
    for (; text && *glob; glob++) {
        if (*glob == '?')
            to = stpcpy(to, "%3F");
        else
            *to++ = *glob;
    }
    if (text)
        *to = '\0';
    return text;
}

/*
 * The URI of the locks in store: NULL, "@", "@GLOB", or STORE with or without "#GLOB". NULL after
 * the error was printed.
 */
static struct dlock_uri *uri_of(const struct options *o, const char *store, int *code)
{
    const char *hash = store ? strrchr(store, '#') : NULL;
    bool by_name = !store || *store == '@';
    const char *given = by_name ? (store ? store + 1 : "") : hash ? hash + 1 : "";
    char *glob = encode(*given ? given : "*"), *base = NULL, *text = NULL;
    struct dlock_uri *uri = NULL;
    struct dlock_error err;
    int rc = glob ? 0 : dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
    if (rc == 0 && by_name)
        rc = open_name(&text, glob, false, &err);
    else if (rc == 0)
        rc = named_store(&base, store, hash ? (size_t)(hash - store) : strlen(store), &err);
    if (rc == 0 && !by_name && asprintf(&text, "%s#%s", base, glob) < 0) {
        text = NULL;
        rc = dlock_fail(&err, DLOCK_ENOMEM, 0, "out of memory");
    }
    if (rc == 0)
        rc = dlock_uri_parse(&uri, text, &err);
    dlock_wipe(base);
    dlock_wipe(text);
    free(glob);
    if (rc < 0)
        *code = message_error(o, &err);
    return uri;
}

/* Ask for all locks that store names. -1: done; else an exit code. */
static int list(const struct options *o, const struct sigstate *sig, const char *store,
                struct found *f)
{
    int code = 0;
    struct listing *l = f->arg;
    struct dlock_uri *uri = uri_of(o, store, &code);
    if (!uri)
        return code;
    open_bound_memory();
    dlock *lk = open_handle(o, DLOCK_MODE_EXCLUSIVE, &uri, &code);
    if (!lk)
        return code;
    dlock_start_list(lk, NULL);
    code = query_run(o, sig, lk, f);
    if (code < 0 && l->no_memory) {
        message("out of memory");
        code = dlock_error_exit(DLOCK_ENOMEM);
    }
    if (code < 0 && l->n == 0 && !f->silent && message_tells(o, ABOUT_CONDITION))
        message("%s: no lock%s%s", dlock_where(lk), f->why_free[0] ? ": " : " is held there",
                f->why_free);
    query_free(f);
    dlock_close(lk);
    return code;
}

int list_mode(const struct options *o, const struct sigstate *sig)
{
    struct listing l = {.json = o->json};
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
