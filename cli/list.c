/*
 * list.c - --list [STORE]: the locks of a store that are held or waited for, sorted by name. Exit 0
 * also where there is none.
 */
#include "json.h"
#include "kind.h"
#include "messages.h"
#include "modes.h"
#include "open.h"
#include "query.h"
#include "util.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NAME_COLUMNS 32 /* longer names push the rest of their line to the right */

/* A lock as it will be printed: a store may have thousands. */
struct listed {
    char *name, *line;
};

struct listing {
    const struct options *o;
    struct listed *all;
    size_t n, cap;
    bool no_memory;
};

/* "held", "shared 3", "slots 2 of 4", "free". */
static const char *state_text(const struct dlock_entry *e, char buf[64])
{
    const struct dlock_info *h = e->holder;
    int n = e->holders > 0 ? e->holders : 1;
    if (!h && e->holders <= 0)
        return "free";
    if (h && h->mode == DLOCK_MODE_SHARED)
        snprintf(buf, 64, "shared %d", n);
    else if (h && h->mode == DLOCK_MODE_SLOTS && h->slots > 0)
        snprintf(buf, 64, "slots %d of %u", n, h->slots);
    else if (h && h->mode == DLOCK_MODE_SLOTS)
        snprintf(buf, 64, "slots %d", n);
    else
        return "held";
    return buf;
}

static void text_line(FILE *f, const struct dlock_entry *e)
{
    char state[64], holder[HOLDER_TEXT_MAX];
    const struct dlock_info *h = e->holder;
    fprintf(f, "%s", state_text(e, state));
    if (e->waiters > 0)
        fprintf(f, ", %d waiting", e->waiters);
    if (h)
        fprintf(f, "%s%s", h->broken ? ", being broken: " : ": ",
                message_process(h, holder, sizeof(holder)));
    if (h && h->fence)
        fprintf(f, ", fence %" PRIu64, h->fence);
}

static void json_line(FILE *f, const struct dlock_entry *e)
{
    struct json j = {.f = f};
    const struct dlock_info *h = e->holder;
    json_open(&j, NULL, '{');
    json_int(&j, "schema", 1);
    json_str(&j, "lock", e->name);
    json_str(&j, "state", h || e->holders > 0 ? "held" : "free");
    if (e->holders >= 0)
        json_int(&j, "holders", e->holders);
    if (e->waiters >= 0)
        json_int(&j, "waiters", e->waiters);
    if (h) {
        json_open(&j, "holder", '{');
        kind_json_holder(&j, h, false);
        json_fence(&j, h->fence);
        json_close(&j, '}');
    }
    json_close(&j, '}');
}

static void add(void *arg, const struct dlock_report *r)
{
    struct listing *l = arg;
    size_t size;
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 64;
        struct listed *more = realloc(l->all, cap * sizeof(*more));
        l->no_memory |= !more;
        if (!more)
            return;
        l->all = more;
        l->cap = cap;
    }
    struct listed *e = &l->all[l->n];
    *e = (struct listed){.name = strdup(r->entry->name)};
    FILE *f = e->name ? open_memstream(&e->line, &size) : NULL;
    if (f && l->o->json)
        json_line(f, r->entry);
    else if (f)
        text_line(f, r->entry);
    if (!f || fclose(f) != 0)
        l->no_memory = true;
    else
        l->n++;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct listed *)a)->name, ((const struct listed *)b)->name);
}

static void print(const struct listing *l)
{
    int width = 0;
    for (size_t i = 0; i < l->n; i++)
        width = (int)dlock_max(width, (int64_t)strlen(l->all[i].name));
    width = (int)dlock_min(width, NAME_COLUMNS);
    for (size_t i = 0; i < l->n; i++) {
        if (l->o->json)
            printf("%s\n", l->all[i].line);
        else
            printf("%-*s  %s\n", width, l->all[i].name, l->all[i].line);
    }
}

/* The URI of all locks in a store, malloc'ed; NULL: out of memory. store: NULL: that of @NAME. */
static char *pattern_of(const char *store)
{
    char *text = NULL;
    if (!store || strcmp(store, "@") == 0)
        return strdup("@*");
    if (store[0] == '@' || strchr(store, '#'))
        return strdup(store);
    if (asprintf(&text, "%s%s#*", strstr(store, "://") ? "" : "file://", store) < 0)
        return NULL;
    return text;
}

int list_mode(const struct options *o, const struct sigstate *sig)
{
    struct listing l = {.o = o};
    struct found f = {.each = add, .arg = &l};
    int code = 0;
    char *text = pattern_of(o->lock);
    struct dlock_uri *uri = text ? open_uri(o, text, &code) : NULL;
    dlock_wipe(text);
    dlock *lk = NULL;
    if (uri) {
        open_bound_memory();
        lk = open_handle(o, o->lock_mode, &uri, &(struct open_how){0}, &code);
    }
    if (!lk)
        return code != 0 ? code : dlock_error_exit(DLOCK_ENOMEM);
    dlock_start_list(lk, NULL);
    code = query_run(o, sig, lk, &f);
    if (code < 0 && l.no_memory) {
        message("out of memory");
        code = dlock_error_exit(DLOCK_ENOMEM);
    } else if (code < 0) {
        if (l.n > 0)
            qsort(l.all, l.n, sizeof(*l.all), by_name);
        print(&l);
        code = 0;
    }
    for (size_t i = 0; i < l.n; i++) {
        free(l.all[i].name);
        free(l.all[i].line);
    }
    free(l.all);
    query_free(&f);
    dlock_close(lk);
    return code;
}
