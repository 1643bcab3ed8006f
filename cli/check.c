/*
 * check.c - --check LOCK: what a run would meet in the store, a finding a line. Exit 0, 1 with
 * warnings, or with the first failure the code that a run would end with.
 */
#include "json.h"
#include "messages.h"
#include "modes.h"
#include "query.h"
#include "util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PINGS 5
#define WARNED 1 /* exit code */

struct check {
    const struct options *o;
    struct json j; /* f: NULL without --json */
    enum dlock_finding worst;
    int code; /* of the first failure */
};

static void tell(struct check *c, enum dlock_finding finding, const char *text, int error)
{
    static const char *const words[] = {[DLOCK_FINDING_OK] = "ok",
                                        [DLOCK_FINDING_WARNING] = "warning",
                                        [DLOCK_FINDING_FAILURE] = "failure"};
    char line[sizeof((struct dlock_error){0}.msg)];
    if (finding == DLOCK_FINDING_FAILURE && c->code == 0)
        c->code = dlock_error_exit(error);
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

/* The round trip against the lease: three renewals fit into the time between two of them. */
static void ping(struct check *c, const struct sigstate *sig, dlock *lk)
{
    int64_t took[PINGS];
    char text[256], least[32], middle[32], most[32];
    for (int i = 0; i < PINGS; i++) {
        struct found f = {0};
        int64_t began = dlock_now();
        dlock_start_status(lk, NULL);
        int code = query_run(c->o, sig, lk, &f);
        query_free(&f);
        if (code >= 0)
            return;
        took[i] = dlock_now() - began;
    }
    qsort(took, PINGS, sizeof(took[0]), by_time);
    int64_t worst = took[PINGS - 1];
    bool slow = !dlock_is_local(lk) && worst > c->o->ttl_ns / 20;
    int n = snprintf(text, sizeof(text), "round trip: %s least, %s median, %s most of %d",
                     message_duration(took[0], least, sizeof(least)),
                     message_duration(took[PINGS / 2], middle, sizeof(middle)),
                     message_duration(worst, most, sizeof(most)), PINGS);
    if (slow)
        snprintf(text + n, sizeof(text) - (size_t)n, "; use a --ttl of %s or more",
                 message_duration(worst * 20, least, sizeof(least)));
    tell(c, slow ? DLOCK_FINDING_WARNING : DLOCK_FINDING_OK, text, DLOCK_OK);
}

int check_mode(const struct options *o, const struct sigstate *sig)
{
    struct check c = {.o = o, .j.f = o->json ? stdout : NULL};
    struct found f = {.each = found, .arg = &c};
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
    code = query_run(o, sig, lk, &f);
    if (code < 0 && c.worst < DLOCK_FINDING_FAILURE)
        ping(&c, sig, lk);
    if (o->json) {
        json_close(&c.j, ']');
        json_close(&c.j, '}');
        putchar('\n');
    }
    if (code < 0)
        code = c.code != 0 ? c.code : c.worst == DLOCK_FINDING_WARNING ? WARNED : 0;
    query_free(&f);
    dlock_close(lk);
    return code;
}
