/* run_record.c - see run_record.h. */
#include "run_record.h"

#include "util.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MAGIC "dlock-run1"

static const char *const states[] = {
    [DLOCK_RUN_RUNNING] = "running",
    [DLOCK_RUN_FAILED] = "failed",
    [DLOCK_RUN_SUCCEEDED] = "succeeded",
};

const char *run_record_state(enum dlock_run_state state)
{
    return states[state];
}

int run_record_who(const struct dlock_spec *spec, char *buf, size_t size)
{
    return dlock_identity_format(spec->identity, RECORD_HOLDS, buf, size);
}

int run_record_format(const struct dlock_run *r, const char *who, char *buf, size_t size)
{
    int n =
        snprintf(buf, size, MAGIC " %s %d %" PRIu64 " %s %" PRId64 " %" PRId64 " %" PRId64 " %s",
                 states[r->state], r->status, r->fence, r->token, r->begin_ms, r->end_ms,
                 r->kept_ns / DLOCK_MSEC, who);
    return n < 0 || (size_t)n >= size ? -1 : n;
}

/* Read a word, and move *at behind it. False: none, longer than size - 1, or with a NUL. */
static bool next_word(const char **at, const char *end, char *word, size_t size)
{
    const char *space = *at < end ? memchr(*at, ' ', (size_t)(end - *at)) : NULL;
    size_t n = space ? (size_t)(space - *at) : 0;
    if (!space || n == 0 || n >= size || memchr(*at, '\0', n))
        return false;
    memcpy(word, *at, n);
    word[n] = '\0';
    *at = space + 1;
    return true;
}

/* A decimal number from min to max. */
static bool next_number(const char **at, const char *end, int64_t min, int64_t max, int64_t *out)
{
    char word[24];
    if (!next_word(at, end, word, sizeof(word)))
        return false;
    const char *digits = word[0] == '-' ? word + 1 : word;
    if (!dlock_read_number(digits, strlen(digits), out))
        return false;
    if (word[0] == '-')
        *out = -*out;
    return *out >= min && *out <= max;
}

static bool next_state(const char **at, const char *end, enum dlock_run_state *state)
{
    char word[12];
    if (!next_word(at, end, word, sizeof(word)))
        return false;
    for (size_t i = 0; i < DLOCK_LEN(states); i++) {
        if (strcmp(word, states[i]) == 0) {
            *state = (enum dlock_run_state)i;
            return true;
        }
    }
    return false;
}

bool run_record_parse(const char *text, size_t len, int64_t now_ms, struct dlock_run *r)
{
    const char *at = text, *end = text + len;
    struct dlock_run run = {0};
    struct dlock_info who = {0};
    char magic[sizeof(MAGIC)];
    int64_t status, fence, kept;
    if (len >= RUN_RECORD_MAX || !next_word(&at, end, magic, sizeof(magic)) ||
        strcmp(magic, MAGIC) != 0 || !next_state(&at, end, &run.state) ||
        !next_number(&at, end, -1, 255, &status) ||
        !next_number(&at, end, 0, INT64_MAX - 1, &fence) ||
        !next_word(&at, end, run.token, sizeof(run.token)) ||
        strspn(run.token, "0123456789abcdef") != DLOCK_TOKEN_LEN ||
        !next_number(&at, end, 0, INT64_MAX / 2, &run.begin_ms) ||
        !next_number(&at, end, 0, INT64_MAX / 2, &run.end_ms) ||
        !next_number(&at, end, 0, INT64_MAX / DLOCK_MSEC, &kept) ||
        !dlock_identity_parse(at, (size_t)(end - at), &who))
        return false;
    run.status = (int)status;
    run.fence = (uint64_t)fence;
    run.kept_ns = kept * DLOCK_MSEC;
    run.pid = who.pid;
    memcpy(run.host, who.host, sizeof(run.host));
    memcpy(run.user, who.user, sizeof(run.user));
    memcpy(run.command, who.command, sizeof(run.command));
    memcpy(run.note, who.note, sizeof(run.note));
    run.age_ns = run_record_age(now_ms - (run.end_ms ? run.end_ms : run.begin_ms));
    *r = run;
    return true;
}

int64_t run_record_age(int64_t ms)
{
    const int64_t limit = INT64_MAX / DLOCK_MSEC;
    if (ms < 0 && ms >= -RUN_RECORD_AHEAD_MS)
        return 0;
    return dlock_max(-limit, dlock_min(ms, limit)) * DLOCK_MSEC;
}

bool run_record_skips(const struct dlock_run *r, int64_t once)
{
    return r->state == DLOCK_RUN_SUCCEEDED && r->age_ns >= 0 && r->age_ns < once;
}

bool run_record_ahead(const struct dlock_run *r, const struct dlock_spec *spec,
                      struct dlock_error *warning)
{
    char text[32];
    if (r->state != DLOCK_RUN_SUCCEEDED || r->age_ns >= 0)
        return false;
    dlock_format_duration(-r->age_ns / DLOCK_SEC * DLOCK_SEC, text, sizeof(text));
    dlock_fail_lock(warning, DLOCK_ELOST, 0, spec->uri,
                    "the last run succeeded %s in the future: its record is forged, or the clock "
                    "was set back; it does not count",
                    text);
    return true;
}

void run_record_end(const struct dlock_spec *spec, struct dlock_run *r)
{
    const struct dlock_hold *h = spec->hold;
    r->state = h->ended && h->success ? DLOCK_RUN_SUCCEEDED : DLOCK_RUN_FAILED;
    r->status = h->ended ? h->status : -1;
}

int run_record_foreign(struct dlock_error *err, const struct dlock_spec *spec, const char *what)
{
    return dlock_fail_lock(err, DLOCK_EDATA, 0, spec->uri,
                           "%s is in the place of the run record, and dlock has not written it: "
                           "remove it, or use another name",
                           what);
}
