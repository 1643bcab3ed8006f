/*
 * health.c - warnings about a server's set-up and its clock. See health.h.
 *
 * INFO answers one section each time: Redis 6 takes no more, and from Redis 7 on one INFO with both
 * saves the server 2 % of a run. INFO is asked after the grant: the command must not be delayed,
 * and the warning does not change the lock. CONFIG GET would tell more, but administrators seldom
 * allow it.
 */
#include "health.h"

#include <stdio.h>
#include <string.h>

#define MAX_JUMP_SLACK (500 * DLOCK_MSEC)
#define DRIFT 100 /* the clocks drift apart by one part in */

/* ----------------------------------------------------------------------- INFO */

bool redis_info_value(const char *info, size_t len, const char *key, char *out, size_t size)
{
    size_t klen = strlen(key);
    const char *end = info + len;
    out[0] = '\0';
    for (const char *line = info, *next; line < end; line = next) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        next = stop ? stop + 1 : end;
        stop = stop ? stop : end;
        if (stop > line && stop[-1] == '\r')
            stop--;
        if ((size_t)(stop - line) > klen && memcmp(line, key, klen) == 0 && line[klen] == ':') {
            dlock_clean_text(out, size, line + klen + 1, (size_t)(stop - line) - klen - 1);
            return true;
        }
    }
    return false;
}

bool redis_check_eviction(const char *info, size_t len, const char *where,
                          struct dlock_error *warning)
{
    char limit[32], policy[32];
    /* Every other policy evicts keys that expire, as locks do. maxmemory 0: no limit. */
    if (!redis_info_value(info, len, "maxmemory", limit, sizeof(limit)) ||
        !redis_info_value(info, len, "maxmemory_policy", policy, sizeof(policy)) ||
        strcmp(limit, "0") == 0 || strcmp(policy, "noeviction") == 0)
        return false;
    dlock_fail_at(warning, DLOCK_EUNAVAIL, 0, where,
                  "this server evicts locks when its memory is full (maxmemory-policy %s): set "
                  "maxmemory-policy noeviction there",
                  policy);
    return true;
}

bool redis_check_persistence(const char *info, size_t len, const char *where, int64_t ttl,
                             int64_t grace, struct dlock_error *warning)
{
    long long ms = (long long)((ttl + DLOCK_MSEC - 1) / DLOCK_MSEC);
    char aof[8];
    if (grace >= ttl || !redis_info_value(info, len, "aof_enabled", aof, sizeof(aof)) ||
        strcmp(aof, "0") != 0)
        return false;
    dlock_fail_at(
        warning, DLOCK_EUNAVAIL, 0, where,
        "a crash or restart of this server can lose the lock (no append-only file): set appendonly "
        "yes there, or write " URI_PARAM("?restart-grace=%lld%s"),
        ms % 1000 == 0 ? ms / 1000 : ms, ms % 1000 == 0 ? "s" : "ms");
    return true;
}

void redis_check_refused(const char *where, struct dlock_error *warning)
{
    dlock_fail_at(
        warning, DLOCK_EUNAVAIL, 0, where,
        "INFO is refused: dlock cannot tell whether the server is a replica, or evicts or "
        "forgets locks; allow INFO (+info)");
}

bool redis_check_password(const struct redis_conn *conn, struct dlock_error *warning)
{
    if (conn->auth_ignored)
        dlock_fail_at(warning, DLOCK_EUNAVAIL, 0, conn->where,
                      "a password was sent, but this server has none: leave the password out, or "
                      "make sure that this is the right server");
    return conn->auth_ignored;
}

/* ------------------------------------------------------------------- warnings */

void redis_checks_ask(struct redis_checks *c, struct redis_conn *conn, int tag, bool persistence)
{
    static const char *const memory[] = {"INFO", "memory"}, *const loss[] = {"INFO", "persistence"};
    c->due = false;
    if (conn->state != RC_UP)
        return;
    c->asked = true;
    if (c->nwarnings == 0)
        c->nwarnings += redis_check_password(conn, &c->warnings[0]);
    if (redis_conn_send(conn, tag, 2, memory) == 0 && persistence)
        (void)redis_conn_send(conn, tag, 2, loss);
    redis_conn_flush(conn);
}

void redis_checks_answered(struct redis_checks *c, const redisReply *r, const char *where,
                           int64_t ttl, int64_t grace)
{
    struct dlock_error *warning = &c->warnings[c->nwarnings];
    bool warn = false;
    if (c->nwarnings == (int)DLOCK_LEN(c->warnings))
        return;
    /* The user lacks the right, the command was renamed, or a proxy does not know INFO. */
    if (r->type == REDIS_REPLY_ERROR && !c->refused) {
        warn = c->refused = true;
        redis_check_refused(where, warning);
    } else if (r->type == REDIS_REPLY_STRING && !c->evicts &&
               redis_check_eviction(r->str, (size_t)r->len, where, warning)) {
        warn = c->evicts = true;
    } else if (r->type == REDIS_REPLY_STRING) {
        warn = redis_check_persistence(r->str, (size_t)r->len, where, ttl, grace, warning);
    }
    c->nwarnings += warn;
}

bool redis_checks_take(struct redis_checks *c, const struct event_queue *events,
                       struct dlock_event *ev)
{
    if (c->nwarnings == 0 || (events->n > 0 && events->at[0].type != EV_RELEASED))
        return false;
    *ev = (struct dlock_event){.type = EV_NOTICE, .error = c->warnings[0]};
    memmove(c->warnings, c->warnings + 1, sizeof(c->warnings[0]) * (size_t)--c->nwarnings);
    return true;
}

/* ---------------------------------------------------------------------- clock */

int64_t redis_clock_jump(struct redis_clock *c, int64_t theirs_ms, int64_t sent, int64_t received)
{
    struct redis_clock old = *c;
    /* The bound, in 2116, keeps every sum and difference below within 64 bits. */
    if (theirs_ms <= 0 || theirs_ms >= INT64_MAX / 2 / DLOCK_MSEC || sent <= 0 || received < sent)
        return 0;
    /* Read between our send and our receive: a long round trip costs only precision. */
    *c = (struct redis_clock){
        .least = theirs_ms * DLOCK_MSEC - received,
        .most = (theirs_ms + 1) * DLOCK_MSEC - sent,
        .at = received,
    };
    if (old.at == 0)
        return 0;
    int64_t slack = MAX_JUMP_SLACK + (received - old.at) / DRIFT;
    int64_t jump = (c->least - old.least) / 2 + (c->most - old.most) / 2;
    return c->least > old.most + slack || c->most < old.least - slack ? jump : 0;
}

const char *redis_clock_text(int64_t jump, char *buf, size_t size)
{
    char by[32];
    int64_t abs = jump < 0 ? -jump : jump, step = 100 * DLOCK_MSEC;
    dlock_format_duration((abs + step / 2) / step * step, by, sizeof(by));
    snprintf(buf, size, "the server's clock was set %s by %s", jump < 0 ? "back" : "forward", by);
    return buf;
}

void redis_clock_warning(int64_t jump, const char *where, struct dlock_error *warning)
{
    char text[96];
    dlock_fail_at(
        warning, jump < 0 ? DLOCK_EUNAVAIL : DLOCK_ELOST, 0, where,
        "%s: leases there %s by as much; check its time synchronisation (slew, do not step)",
        redis_clock_text(jump, text, sizeof(text)), jump < 0 ? "last longer" : "end early");
}
