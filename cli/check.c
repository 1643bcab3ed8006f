/*
 * check.c - --check LOCK: what a run would meet in the store, a finding a line. Exit 0, 1 with
 * warnings, or with the first failure the code that a run would end with.
 */
#include "json.h"
#include "messages.h"
#include "modes.h"
#include "query.h"
#include "util.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define PINGS 5
/* So many round trips must fit into the lease: then a late renewal has time for more tries. */
#define TRIPS 20
#define WARNED 1 /* exit code */

static const char *const words[] = {[DLOCK_FINDING_OK] = "ok",
                                    [DLOCK_FINDING_WARNING] = "warning",
                                    [DLOCK_FINDING_FAILURE] = "failure"};

struct check {
    const struct options *o;
    struct json j; /* f: NULL without --json */
    enum dlock_finding worst;
    int error; /* DLOCK_E* of the first failure */
};

static void tell(struct check *c, enum dlock_finding finding, const char *text, int error)
{
    char line[sizeof((struct dlock_error){0}.msg)];
    if (finding == DLOCK_FINDING_FAILURE && c->error == 0)
        c->error = error;
    if (finding > c->worst)
        c->worst = finding;
    message_clean(line, sizeof(line), text, false);
    if (!c->j.f) {
        printf("%-8s %s\n", words[finding], line);
        return;
    }
    json_open(&c->j, NULL, '{');
    json_str(&c->j, "level", words[finding]);
    json_str(&c->j, "text", line);
    json_close(&c->j, '}');
}

static void found(void *arg, const struct dlock_report *r)
{
    tell(arg, r->finding, r->error.msg, r->error.code);
}

static int by_time(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void ping(struct check *c, const struct sigstate *sig, dlock *lk)
{
    int64_t took[PINGS];
    char text[256];
    for (int i = 0; i < PINGS; i++) {
        struct found f = {.silent = true};
        int64_t began = dlock_now();
        dlock_start_status(lk, NULL);
        int code = query_run(c->o, sig, lk, &f);
        if (code >= 0)
            tell(c, DLOCK_FINDING_FAILURE, f.error.msg, f.error.code);
        query_free(&f);
        if (code >= 0)
            return;
        took[i] = dlock_now() - began;
    }
    qsort(took, PINGS, sizeof(took[0]), by_time);
    int64_t worst = took[PINGS - 1];
    bool slow = worst > c->o->ttl_ns / TRIPS;
    int n = snprintf(text, sizeof(text), "round trip: %.1f ms least, %.1f ms median, %.1f ms most",
                     (double)took[0] / DLOCK_MSEC, (double)took[PINGS / 2] / DLOCK_MSEC,
                     (double)worst / DLOCK_MSEC);
    if (slow)
        snprintf(text + n, sizeof(text) - (size_t)n, "; use a --ttl of %" PRId64 "s or more",
                 worst * TRIPS / DLOCK_SEC + 1);
    tell(c, slow ? DLOCK_FINDING_WARNING : DLOCK_FINDING_OK, text, DLOCK_OK);
}

int check_mode(const struct options *o, const struct sigstate *sig)
{
    struct check c = {.o = o, .j.f = o->json ? stdout : NULL};
    struct found f = {.each = found, .arg = &c, .silent = true};
    int code = 0;
    dlock *lk = query_open(o, &code);
    if (!lk)
        return code;
    if (o->json) {
        json_open(&c.j, NULL, '{');
        json_int(&c.j, "schema", 1);
        json_str(&c.j, "lock", dlock_name(lk));
        json_str(&c.j, "store", dlock_where(lk));
        json_open(&c.j, "findings", '[');
    }
    dlock_start_check(lk, NULL);
    if (query_run(o, sig, lk, &f) >= 0)
        tell(&c, DLOCK_FINDING_FAILURE, f.error.msg, f.error.code);
    else if (!dlock_is_local(lk) && c.worst != DLOCK_FINDING_FAILURE)
        ping(&c, sig, lk);
    if (o->json) {
        json_close(&c.j, ']');
        json_str(&c.j, "result", words[c.worst]);
        json_close(&c.j, '}');
        putchar('\n');
    }
    query_free(&f);
    dlock_close(lk);
    return c.worst == DLOCK_FINDING_FAILURE   ? dlock_error_exit(c.error)
           : c.worst == DLOCK_FINDING_WARNING ? WARNED
                                              : 0;
}
