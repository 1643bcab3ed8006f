/*
 * status.c - --status LOCK: print the lock's holders and waiters; exit 0 when free, 75 when held.
 * --schema LOCK: print the statement that creates the lock's table.
 */
#include "json.h"
#include "kind.h"
#include "messages.h"
#include "modes.h"
#include "query.h"
#include "util.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void text_one(const struct dlock_info *i)
{
    char holder[HOLDER_TEXT_MAX], broken[HOLDER_TEXT_MAX], left[32], kind[KIND_TEXT_SIZE];
    message_process(i, holder, sizeof(holder));
    kind_text(i, kind);
    if (i->waiter && i->place > 0)
        printf("  waiting %d%s: %s\n", i->place, kind, holder);
    else if (i->waiter)
        printf("  waiting%s: %s\n", kind, holder);
    else
        printf("  held%s by %s\n", kind, holder);
    if (i->silent)
        printf("    silent: stopped or cut off, as it seems; others are served before it\n");
    if (i->waiter)
        return;
    if (i->broken)
        printf("    %s\n", message_broken(i, broken, sizeof(broken)));
    if (i->left_ns == 0)
        printf("    lease left: none, it has run out\n");
    else if (i->left_ns > 0 && i->left_ns != DLOCK_NEVER)
        printf("    lease left: %s\n", dlock_format_duration(i->left_ns, left, sizeof(left)));
    if (i->fence)
        printf("    fence: %" PRIu64 "\n", i->fence);
    if (i->over)
        printf("    ended, kept until its --min-hold is over\n");
}

const char *status_run_word(const struct found *f)
{
    static const char *const states[] = {[DLOCK_RUN_RUNNING] = "running",
                                         [DLOCK_RUN_FAILED] = "failed",
                                         [DLOCK_RUN_SUCCEEDED] = "succeeded"};
    return f->crashed ? "crashed" : states[f->run.state];
}

void status_json_run(struct json *j, const struct found *f)
{
    const struct dlock_run *r = &f->run;
    const struct dlock_info process = kind_of_run(r);
    if (!f->has_run)
        return;
    json_open(j, "last_run", '{');
    json_str(j, "state", status_run_word(f));
    if (r->status >= 0)
        json_int(j, "exit_status", r->status);
    json_int(j, "begin_ms", r->begin_ms);
    if (r->end_ms > 0)
        json_int(j, "end_ms", r->end_ms);
    json_int(j, "age_ms", r->age_ns / DLOCK_MSEC);
    json_int(j, "kept_ms", r->kept_ns / DLOCK_MSEC);
    kind_json_process(j, &process, false);
    json_fence(j, r->fence);
    json_close(j, '}');
}

static void json_list(struct json *j, const struct found *f, const char *key, bool waiters)
{
    json_open(j, key, '[');
    for (size_t i = 0; i < f->n; i++)
        if (f->all[i].waiter == waiters) {
            json_open(j, NULL, '{');
            kind_json_hold(j, &f->all[i]);
            json_close(j, '}');
        }
    json_close(j, ']');
}

void status_print(const struct options *o, const dlock *lk, const struct found *f)
{
    const char *name = dlock_name(lk), *where = dlock_where(lk);
    char lock[LOCK_TEXT_MAX], text[LOCK_TEXT_MAX], number[32], raw[PATH_MAX], path[PATH_MAX],
        slots[48] = "";
    char run[RUN_TEXT_MAX];
    unsigned all = 0; /* slots, if a slot is held */
    int taken = 0;
    for (size_t i = 0; i < f->n; i++) {
        if (f->all[i].waiter || f->all[i].mode != DLOCK_MODE_SLOTS)
            continue;
        taken++;
        all = f->all[i].slots;
    }
    if (o->fd >= 0) { /* name and where are the file's path in /proc */
        ssize_t n = readlink(where, raw, sizeof(raw));
        dlock_clean_text(path, sizeof(path), raw, n > 0 ? (size_t)n : 0);
        snprintf(number, sizeof(number), "descriptor %d", o->fd);
        name = number;
        where = path;
    }
    if (o->json) {
        struct json j = {.f = stdout};
        json_open(&j, NULL, '{');
        json_int(&j, "schema", 1);
        json_str(&j, "lock", name);
        json_str(&j, "store", where);
        json_str(&j, "state", query_holder(f) ? "held" : "free");
        if (all > 0) {
            json_int(&j, "slots", all);
            json_int(&j, "slots_held", taken);
        }
        if (f->why_free[0])
            json_str(&j, "reason", f->why_free);
        json_list(&j, f, "holders", false);
        json_list(&j, f, "waiters", true);
        status_json_run(&j, f);
        json_close(&j, '}');
        putchar('\n');
        return;
    }
    if (all > 0)
        snprintf(slots, sizeof(slots), ", %d of %u slots", taken, all);
    int n = snprintf(text, sizeof(text), "%s (%s): %s%s", name, where,
                     query_holder(f) ? "held" : "free", slots);
    dlock_clean_text(lock, sizeof(lock), text, strlen(text));
    dlock_hide_secrets(lock, n >= (int)sizeof(lock));
    printf(f->why_free[0] ? "%s (%s)\n" : "%s%s\n", lock, f->why_free);
    for (size_t i = 0; i < f->n; i++)
        text_one(&f->all[i]);
    if (f->has_run)
        printf("  last run: %s\n", message_run(&f->run, f->crashed, run, sizeof(run)));
}

int schema_mode(const struct options *o, const struct sigstate *sig)
{
    struct dlock_error err;
    char *text = NULL;
    int code = 0;
    (void)sig;
    dlock *lk = query_open(o, &code);
    if (!lk)
        return code;
    if (dlock_schema(lk, &text, &err) == 0)
        printf("%s;\n", text);
    else
        code = message_error(o, &err);
    free(text);
    dlock_close(lk);
    return code;
}

/* LOCK as a word for a shell; "LOCK" in place of a text with a secret. */
static void print_lock_word(const char *lock)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "@%+=:,./_-";
    char shown[LOCK_TEXT_MAX];
    message_clean(shown, sizeof(shown), lock, false);
    if (strcmp(shown, lock) != 0) {
        fputs("LOCK", stdout);
        return;
    }
    bool quotes = strspn(lock, plain) != strlen(lock);
    if (quotes)
        putchar('\'');
    for (; *lock; lock++)
        if (*lock == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*lock);
    if (quotes)
        putchar('\'');
}

/* For a reader at a terminal: how to take the lock away. */
static void advise(const struct options *o, const struct found *f)
{
    const struct dlock_info *h = query_holder(f);
    int holders = 0;
    for (size_t i = 0; i < f->n; i++)
        holders += !f->all[i].waiter;
    if (!h || o->json || o->fd >= 0 || !isatty(STDOUT_FILENO))
        return;
    printf("  to end it: dlock %s--break ", o->fcntl ? "--fcntl " : "");
    if (holders > 1 && h->host[0] && h->pid > 0)
        printf("--holder %s:%ld ", h->host, h->pid);
    print_lock_word(o->lock);
    putchar('\n');
}

int status_mode(const struct options *o, const struct sigstate *sig)
{
    struct found f = {0};
    int code = 0;
    dlock *lk = query_open(o, &code);
    if (!lk)
        return code;
    dlock_start_status(lk, NULL);
    code = query_run(o, sig, lk, &f);
    if (code < 0) {
        status_print(o, lk, &f);
        advise(o, &f);
        code = query_holder(&f) ? dlock_error_exit(DLOCK_EBUSY) : 0;
    }
    query_free(&f);
    dlock_close(lk);
    return code;
}
