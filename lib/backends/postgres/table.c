/*
 * table.c - mode=lease: a row of a table is the lock, and expires by the server's clock.
 *
 *   name text primary key | fence bigint | owner text | expires timestamptz | holder text
 *
 * All that decides a grant stands in the lock's own row, so that one INSERT ... ON CONFLICT DO UPDATE ... WHERE
 * expires <= clock_timestamp() decides it: whoever comes second waits for the row and then sees what the
 * first one wrote. owner is new for each grant; renew and release name it. The fence is the larger of the
 * stored one plus one and the server's time in microseconds, so rows out of use can be deleted.
 *
 * It needs no session, so it works through a pooler in transaction mode, and a reconnect or the promotion of
 * a standby that has the row loses nothing. Waiters of a server that is reached directly LISTEN, and a
 * release calls two of them (one might be about to leave); timers stand behind it, and are all there is
 * through a pooler.
 *
 * Not guaranteed: the server's clock decides; when it steps forward, a lease ends early.
 */
#include "postgres.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POLL_ALONE DLOCK_SEC        /* between tries where nobody can call us */
#define POLL_CALLED (5 * DLOCK_SEC) /* ... and where the server does */
#define JITTER (200 * DLOCK_MSEC)
#define SWEEP_ONE_OF 100

/* A grant, a renewal or a release that a crash of the server undoes would be none. */
#define DURABLE                                                                                    \
    "pg_catalog.set_config('synchronous_commit', CASE "                                            \
    "pg_catalog.current_setting('synchronous_commit') WHEN 'off' THEN 'local' ELSE "               \
    "pg_catalog.current_setting('synchronous_commit') END, true)"
#define NOW "pg_catalog.clock_timestamp()"
#define TTL "pg_catalog.make_interval(secs => $3::float8)"
#define MICROSECONDS "(EXTRACT(epoch FROM " NOW ") * 1000000)::bigint"

/* ------------------------------------------------------------------ statements */

/* @T: the table. @W: who we are, in a comment. @C: the channel on which a waiter is called, its pid behind it. */
enum { R_FENCE, R_PID, R_HOLDER, R_HELD_FENCE, R_LEFT, R_TOKEN, R_COLUMNS };
static const char try_text[] =
    "@WWITH got AS (INSERT INTO @T AS l (name, fence, owner, expires, holder) "
    "SELECT $1, " MICROSECONDS ", $2, " NOW " + " TTL ", $4 "
    "FROM (SELECT " DURABLE " AS done OFFSET 0) s WHERE s.done IS NOT NULL "
    "ON CONFLICT (name) DO UPDATE SET fence = GREATEST(l.fence + 1, EXCLUDED.fence), "
    "owner = EXCLUDED.owner, expires = " NOW " + " TTL ", holder = EXCLUDED.holder "
    "WHERE l.expires <= " NOW " RETURNING l.fence) "
    "SELECT g.fence, pg_catalog.pg_backend_pid(), o.holder, o.fence, "
    "(EXTRACT(epoch FROM o.expires - " NOW ") * 1000)::bigint, $2::text "
    "FROM (SELECT 1) x LEFT JOIN got g ON true "
    "LEFT JOIN @T o ON o.name = $1 AND o.expires > " NOW;

enum { U_OURS, U_HOLDER, U_TOKEN };
static const char renew_text[] =
    "WITH u AS (UPDATE @T l SET expires = " NOW " + " TTL " FROM (SELECT " DURABLE
    " AS done OFFSET 0) s WHERE s.done IS NOT NULL AND l.name = $1 AND l.owner = $2 "
    "AND l.fence = $4::bigint AND l.expires > " NOW " RETURNING 1) "
    "SELECT (SELECT pg_catalog.count(*) FROM u), o.holder, $2::text FROM (SELECT 1) x "
    "LEFT JOIN @T o ON o.name = $1 AND o.owner <> $2 AND o.expires > " NOW;

/* Two of those who wait are called. The function behind pg_stat_activity, because that view takes long to plan. */
static const char release_text[] =
    "WITH u AS (UPDATE @T l SET expires = '-infinity', owner = '' FROM (SELECT " DURABLE
    " AS done OFFSET 0) s WHERE s.done IS NOT NULL AND l.name = $1 AND l.owner = $2 "
    "AND l.expires > " NOW " RETURNING 1), "
    "w AS (SELECT a.pid FROM pg_catalog.pg_stat_get_activity(NULL) a WHERE a.application_name = $3 "
    "AND a.datid = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = "
    "pg_catalog.current_database()) AND EXISTS (SELECT 1 FROM u) ORDER BY a.backend_start, a.pid "
    "LIMIT 2), "
    "c AS (SELECT pg_catalog.pg_notify('@C' || w.pid, '') FROM w) "
    "SELECT (SELECT pg_catalog.count(*) FROM u), o.holder, $2::text, (SELECT pg_catalog.count(*) "
    "FROM c) "
    "FROM (SELECT 1) x LEFT JOIN @T o ON o.name = $1 AND o.owner <> $2 AND o.expires > " NOW;

/* Rows that nobody has used for a week. */
static const char sweep_text[] =
    "DELETE FROM @T d WHERE d.name IN (SELECT t.name FROM @T t WHERE "
    "t.expires < " NOW " - '7 days'::interval AND t.fence < " MICROSECONDS " - 604800000000 "
    "LIMIT 20 FOR UPDATE SKIP LOCKED)";

enum { A_WAITER, A_HOLDER, A_FENCE, A_LEFT, A_USER, A_PID };
static const char ask_text[] =
    "SELECT 0, t.holder, t.fence, (EXTRACT(epoch FROM t.expires - " NOW
    ") * 1000)::bigint, ''::text, 0 "
    "FROM @T t WHERE t.name = $1 AND t.expires > " NOW " UNION ALL "
    "(SELECT 1, w.query, 0, 0, w.usename::text, w.pid FROM pg_catalog.pg_stat_activity w WHERE "
    "w.application_name = $2 AND w.datname = pg_catalog.current_database() "
    "ORDER BY w.backend_start, w.pid)";

static const char schema_text[] =
    "CREATE TABLE IF NOT EXISTS @T (name text COLLATE \"C\" PRIMARY KEY, fence bigint NOT NULL, "
    "owner text NOT NULL, expires timestamptz NOT NULL, holder text NOT NULL)";

static char *fill(const struct dlock_be *be, const char *text)
{
    char *sql = NULL;
    size_t size;
    FILE *f = open_memstream(&sql, &size);
    if (!f)
        return NULL;
    for (const char *p = text; *p; p++) {
        if (*p != '@')
            fputc(*p, f);
        else if (*++p == 'T')
            fputs(be->table, f);
        else if (*p == 'C')
            fputs(be->channel, f);
        else
            fprintf(f, "/* %s */ ", be->record);
    }
    return fclose(f) == 0 ? sql : (free(sql), NULL);
}

static char *table_schema(const struct dlock_be *be)
{
    return fill(be, schema_text);
}

static void send_text(struct dlock_be *be, enum pg_tag tag, const char *text, int n,
                      const char *const *values)
{
    pg_send_params(be, tag, fill(be, text), n, values);
}

/* ----------------------------------------------------------------- what is sent */

static void seconds_of(char *buf, size_t size, int64_t ns)
{
    snprintf(buf, size, "%" PRId64 ".%03d", ns / DLOCK_SEC, (int)(ns % DLOCK_SEC / DLOCK_MSEC));
}

static void send_try(struct dlock_be *be)
{
    char ttl[32];
    be->try_at = DLOCK_NEVER;
    be->conn.notified = false;
    if (!be->first)
        be->op_until = pg_now(be) + pg_patience(be);
    be->tried = true;
    seconds_of(ttl, sizeof ttl, be->spec->ttl);
    send_text(be, T_TRY, try_text, 4,
              (const char *const[]){be->spec->uri->name, be->token, ttl, be->record});
}

static void give_back(struct dlock_be *be, enum pg_tag tag, const char *token)
{
    send_text(be, tag, release_text, 3,
              (const char *const[]){be->spec->uri->name, token, be->waiter_app});
}

static void send_undo(struct dlock_be *be, const char *token)
{
    give_back(be, T_UNDO, token);
}

static void send_release(struct dlock_be *be)
{
    be->release_sent = true;
    give_back(be, T_RELEASE, be->token);
}

static void send_sweep(struct dlock_be *be)
{
    send_text(be, T_SWEEP, sweep_text, 0, NULL);
}

static void send_schema(struct dlock_be *be)
{
    send_text(be, T_SCHEMA, schema_text, 0, NULL);
}

static void send_ask(struct dlock_be *be)
{
    send_text(be, T_ASK, ask_text, 2, (const char *const[]){be->spec->uri->name, be->waiter_app});
}

static void send_renew(struct dlock_be *be)
{
    char ttl[32], fence[24];
    seconds_of(ttl, sizeof ttl, be->spec->ttl);
    snprintf(fence, sizeof fence, "%" PRIu64, be->fence);
    send_text(be, T_BEAT, renew_text, 4,
              (const char *const[]){be->spec->uri->name, be->token, ttl, fence});
}

/* Only on a session that is ours alone: behind a pooler it would stay with somebody else's. */
static void send_name(struct dlock_be *be, const char *app)
{
    char sql[256];
    snprintf(sql, sizeof sql,
             "SELECT CASE WHEN pg_catalog.pg_backend_pid() = %d THEN "
             "pg_catalog.set_config('application_name', '%s', false) END",
             PQbackendPID(be->conn.pq), app);
    pg_conn_send_params(&be->conn, T_LISTEN, sql, 0, NULL);
}

/* The name says who can be called. A release from before that calls nobody, so another try follows. */
static void send_listen(struct dlock_be *be)
{
    char sql[128];
    be->listening = true;
    snprintf(sql, sizeof sql, "LISTEN \"%s%d\"", be->channel, PQbackendPID(be->conn.pq));
    pg_conn_send_params(&be->conn, T_LISTEN, sql, 0, NULL);
    send_name(be, be->waiter_app);
    send_try(be);
}

/* ------------------------------------------------------------------- connected */

static int64_t random_part(const struct dlock_be *be, int64_t most)
{
    uint32_t r = 0;
    (void)be->spec->env->random(be->spec->env->ctx, &r, sizeof r);
    return (int64_t)r % most;
}

/*
 * One release of a hundred tidies up. Behind the release, on the same connection: nobody waits for it. Through a pooler
 * nothing may stand behind what we wait for, so there it is a grant of a hundred.
 */
static void sweep(struct dlock_be *be)
{
    if (random_part(be, SWEEP_ONE_OF) == 0)
        send_sweep(be);
}

static void table_ready(struct dlock_be *be)
{
    be->listening = false;
    switch (be->doing) {
    case PG_ACQUIRE:
        if (be->ghost) {
            send_undo(be, be->token);
            be->ghost = false;
            memcpy(be->ghost_token, be->token, sizeof be->ghost_token);
            if (!pg_new_token(be))
                break;
        }
        send_try(be);
        break;
    case PG_RENEW:
        send_renew(be);
        break;
    case PG_RELEASE:
        send_release(be);
        if (be->granted && !be->conn.alone)
            sweep(be);
        break;
    case PG_ASK:
        send_ask(be);
        break;
    case PG_NOTHING:
        break;
    }
}

/* ----------------------------------------------------------------------- tries */

/*
 * A try that is unanswered may be served later: its undo follows it on the same connection, and the next
 * try has another token, which that undo does not touch.
 */
static void table_abandon(struct dlock_be *be)
{
    if (be->tried && be->conn.state == PC_UP && pg_conn_busy(&be->conn))
        send_release(be);
}

static void no_answer_to_try(struct dlock_be *be)
{
    struct dlock_error err;
    no_answer(&err, be->spec, pg_patience(be));
    /* Nothing may follow it there: the undo goes first on the next connection. */
    if (be->conn.alone) {
        be->ghost = be->tried;
        pg_try_later(be, &err, true);
        return;
    }
    table_abandon(be);
    be->tried = false;
    if (pg_new_token(be))
        pg_try_later(be, &err, true);
}

static void granted(struct dlock_be *be, const struct pg_reply *r)
{
    be->fence = (uint64_t)pg_number(r->rows, 0, R_FENCE);
    be->granted = true;
    be->release_sent = be->release_lost = false;
    be->doing = PG_NOTHING;
    be->op_until = DLOCK_NEVER;
    if (be->listening)
        send_name(be, be->app);
    if (be->conn.alone)
        sweep(be);
    struct dlock_event *ev = events_add(&be->events, EV_GRANTED);
    ev->from = r->sent;
    ev->ttl = be->spec->ttl;
    ev->fence = be->fence;
    memcpy(ev->token, be->token, sizeof ev->token);
}

/* A holder's row. An older dlock, or somebody by hand, may have written what is no record. */
static void read_holder(struct dlock_info *info, const char *holder, int64_t left_ms, int64_t fence)
{
    *info = (struct dlock_info){.left_ns = left_ms * DLOCK_MSEC, .fence = (uint64_t)fence};
    info->foreign = !dlock_who_parse(holder, strlen(holder), info);
}

static void not_granted(struct dlock_be *be, const struct pg_reply *r)
{
    bool held = !PQgetisnull(r->rows, 0, R_LEFT);
    int64_t now = pg_now(be), left = pg_number(r->rows, 0, R_LEFT) * DLOCK_MSEC;
    be->tried = false;
    if (held)
        read_holder(&be->info, pg_text(r->rows, 0, R_HOLDER), left / DLOCK_MSEC,
                    pg_number(r->rows, 0, R_HELD_FENCE));
    struct dlock_event *ev = events_add(&be->events, be->wait ? EV_WAITING : EV_BUSY);
    ev->info = held ? &be->info : NULL;
    if (!be->wait) {
        be->doing = PG_NOTHING;
        be->op_until = DLOCK_NEVER;
        pg_conn_close(&be->conn);
        return;
    }
    if (held && be->ghost_token[0] && strcmp(pg_text(r->rows, 0, R_HOLDER), be->record) == 0) {
        /* It stood in line for the row, in a session that does not know of the broken connection. */
        send_undo(be, be->ghost_token);
        be->ghost_token[0] = '\0';
        send_try(be);
        return;
    }
    if (!be->listening && pg_number(r->rows, 0, R_PID) == PQbackendPID(be->conn.pq)) {
        send_listen(be);
        return;
    }
    be->op_until = DLOCK_NEVER;
    be->try_at = now + (be->listening ? POLL_CALLED : POLL_ALONE) + random_part(be, JITTER);
    if (!held) /* somebody was quicker, and this statement is too old to see its row */
        be->try_at = now + random_part(be, JITTER);
    else /* whoever holds it may be dead */
        be->try_at =
            dlock_min(be->try_at, now + dlock_max(0, left) + DLOCK_MSEC + random_part(be, JITTER));
    if (be->conn.notified)
        send_try(be);
}

static void make_table(struct dlock_be *be)
{
    be->made_table = true;
    be->tried = false;
    send_schema(be);
}

static void table_made(struct dlock_be *be, const struct pg_reply *r)
{
    struct dlock_error err;
    char *ddl = table_schema(be);
    /* 23505, 42P07: somebody else has made it at the same time. */
    bool there = strcmp(r->sqlstate, "23505") == 0 || strcmp(r->sqlstate, "42P07") == 0;
    if (!r->sqlstate[0] || there) {
        send_try(be);
    } else {
        dlock_fail(&err, strcmp(r->sqlstate, "42501") == 0 ? DLOCK_EPERM : DLOCK_EUNAVAIL, 0,
                   "%s: there is no table for locks, and it cannot be made: %s; somebody who may "
                   "do it: %s",
                   pg_where(be), r->text, ddl ? ddl : "CREATE TABLE");
        pg_fail(be, &err);
    }
    free(ddl);
}

/* Nothing was granted: the statement was rolled back as a whole. */
static void refused(struct dlock_be *be, const struct pg_reply *r)
{
    struct dlock_error err;
    be->tried = false;
    if (strcmp(r->sqlstate, "42P01") == 0 && !be->made_table) {
        make_table(be);
        return;
    }
    pg_conn_reply_error(&be->conn, r, &err);
    bool passes = strncmp(r->sqlstate, "53", 2) == 0 || strncmp(r->sqlstate, "57", 2) == 0 ||
                  strncmp(r->sqlstate, "40", 2) == 0 || strcmp(r->sqlstate, "55P03") == 0;
    pg_try_later(be, &err, passes);
}

/*
 * Is it the answer to our own statement, which has our token in it? A pooler that mixes up the answers of its clients
 * (see struct pg_conn) would have us believe in somebody else's grant. column: of the token.
 */
static bool is_ours(const struct dlock_be *be, const struct pg_reply *r, int columns, int column)
{
    return pg_one_row(r, columns) && strcmp(pg_text(r->rows, 0, column), be->token) == 0;
}

/* Why not: what the server says against it, or nothing that makes sense; then its code is that one. */
static void not_ours(const struct dlock_be *be, const struct pg_reply *r, int code,
                     struct dlock_error *err)
{
    if (r->sqlstate[0])
        pg_conn_reply_error(&be->conn, r, err);
    else
        dlock_fail(err, code, 0,
                   "%s: unexpected answer to the lock query: does a pooler mix up its sessions?",
                   pg_where(be));
}

static void tried(struct dlock_be *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (r->sqlstate[0]) {
        refused(be, r);
    } else if (!is_ours(be, r, R_COLUMNS, R_TOKEN)) {
        not_ours(be, r, DLOCK_EPROTO, &err);
        pg_fail(be, &err);
    } else {
        be->conn.alone = pg_number(r->rows, 0, R_PID) != PQbackendPID(be->conn.pq);
        be->first = false;
        outage_over(&be->outage);
        if (PQgetisnull(r->rows, 0, R_FENCE))
            not_granted(be, r);
        else
            granted(be, r);
    }
}

/* ------------------------------------------------------------ renew and release */

static void say_found(const struct dlock_be *be, struct dlock_error *err, const struct pg_reply *r)
{
    struct dlock_info info;
    if (PQgetisnull(r->rows, 0, U_HOLDER)) {
        dlock_fail(err, DLOCK_ELOST, 0,
                   "%s: the lock '%s' is gone: it expired, or its row was changed", pg_where(be),
                   be->spec->uri->name);
        return;
    }
    read_holder(&info, pg_text(r->rows, 0, U_HOLDER), 0, 0);
    dlock_fail(err, DLOCK_ELOST, 0, "%s: the lock '%s' is now held by %s@%s, pid %ld", pg_where(be),
               be->spec->uri->name, info.user, info.host, info.pid);
}

static void unclear(struct dlock_be *be, const struct dlock_error *err)
{
    be->doing = PG_NOTHING;
    be->op_until = DLOCK_NEVER;
    events_add(&be->events, EV_UNCLEAR)->error = *err;
}

static void renewed(struct dlock_be *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (!is_ours(be, r, 3, U_TOKEN)) {
        not_ours(be, r, DLOCK_EUNAVAIL, &err);
        /* "read-only", say: another server may be the primary by now. */
        pg_conn_close(&be->conn);
        unclear(be, &err);
        return;
    }
    be->doing = PG_NOTHING;
    be->op_until = DLOCK_NEVER;
    if (pg_number(r->rows, 0, U_OURS) == 1) {
        struct dlock_event *ev = events_add(&be->events, EV_RENEWED);
        ev->from = r->sent;
        ev->ttl = be->spec->ttl;
    } else {
        say_found(be, &events_add(&be->events, EV_LOST)->error, r);
    }
}

static void release_later(struct dlock_be *be, const struct dlock_error *err)
{
    int64_t now = pg_now(be);
    bool passes = err->code == DLOCK_EUNAVAIL || err->code == DLOCK_ENOMEM;
    if (now >= be->rel_until || !passes)
        pg_end_release(be, DLOCK_REL_UNCLEAR, err);
    else
        be->outage.retry_at =
            dlock_min(be->rel_until, now + dlock_backoff_next(&be->outage.pause, be->spec->env));
}

static void released(struct dlock_be *be, const struct pg_reply *r)
{
    struct dlock_error err;
    if (!is_ours(be, r, 4, U_TOKEN)) {
        not_ours(be, r, DLOCK_EUNAVAIL, &err);
        be->release_lost =
            be->release_lost || r->unheard || !r->sqlstate[0]; /* it may have been served */
        pg_conn_close(&be->conn);
        release_later(be, &err);
    } else if (pg_number(r->rows, 0, U_OURS) == 1 || (be->granted && be->release_lost)) {
        pg_end_release(be, DLOCK_REL_CLEAN, NULL);
    } else if (be->granted) {
        say_found(be, &err, r);
        pg_end_release(be, DLOCK_REL_NOT_OURS, &err);
    } else {
        pg_end_release(be, DLOCK_REL_NOTHING, NULL);
    }
}

/* ----------------------------------------------------------------------- slots */

static void table_answered(struct dlock_be *be, const struct pg_reply *r)
{
    if (r->tag == T_TRY && be->doing == PG_ACQUIRE)
        tried(be, r);
    else if (r->tag == T_SCHEMA && be->doing == PG_ACQUIRE)
        table_made(be, r);
    else if (r->tag == T_LISTEN && r->sqlstate[0])
        be->listening = false; /* the timer does it, then */
    else if (r->tag == T_BEAT && be->doing == PG_RENEW)
        renewed(be, r);
    else if (r->tag == T_RELEASE && be->doing == PG_RELEASE)
        released(be, r);
}

/* A connection is only a way to the row. */
static void table_failed(struct dlock_be *be, const struct dlock_error *err)
{
    if (be->doing == PG_ACQUIRE) {
        /* At the first contact the core gives up, and has the release undo this try. */
        if (be->first && !be->conn.transient) {
            pg_fail(be, err);
            return;
        }
        be->ghost = be->tried; /* it may have been served: we would wait for ourselves */
        pg_try_later(be, err, be->conn.transient);
    } else if (be->doing == PG_RENEW) {
        unclear(be, err);
    } else if (be->doing == PG_RELEASE) {
        be->release_lost = be->release_lost || be->release_sent;
        release_later(be, err);
    }
}

static void table_acquire(struct dlock_be *be)
{
    be->ghost_token[0] = '\0';
    be->tried = be->ghost = be->made_table = be->release_lost = be->release_sent = false;
    pg_connect(be);
}

static void table_renew(struct dlock_be *be)
{
    pg_connect(be);
}

static void table_release(struct dlock_be *be)
{
    if (!be->granted && !be->tried)
        pg_end_release(be, DLOCK_REL_NOTHING, NULL);
    else
        pg_connect(be);
}

static void table_timeout(struct dlock_be *be, int64_t now)
{
    struct dlock_error err;
    if (be->doing == PG_RELEASE && now >= be->rel_until) {
        dlock_fail(&err, DLOCK_EUNAVAIL, 0, "%s: no answer to the release", pg_where(be));
        pg_end_release(be, DLOCK_REL_UNCLEAR, &err);
    } else if (now >= be->op_until && (be->doing == PG_RENEW || be->doing == PG_ACQUIRE)) {
        if (be->doing == PG_ACQUIRE) {
            no_answer_to_try(be);
            return;
        }
        no_answer(&err, be->spec, be->spec->op_timeout);
        pg_conn_close(&be->conn);
        unclear(be, &err);
    } else if (be->doing == PG_ACQUIRE && be->conn.state == PC_UP && !pg_conn_busy(&be->conn) &&
               (now >= be->try_at || be->conn.notified)) {
        send_try(be);
    }
}

static void table_read_info(struct dlock_be *be, const PGresult *res, int i,
                            struct dlock_info *info)
{
    const char *text = pg_text(res, i, A_HOLDER), *user = pg_text(res, i, A_USER), *begin;
    (void)be;
    if (!pg_number(res, i, A_WAITER)) {
        read_holder(info, text, pg_number(res, i, A_LEFT), pg_number(res, i, A_FENCE));
        return;
    }
    *info = (struct dlock_info){.waiter = true, .left_ns = -1};
    if (pg_read_comment(text, info, &begin) == 0) { /* a role whose queries we may not read */
        info->pid = (long)pg_number(res, i, A_PID);
        dlock_clean_text(info->user, sizeof info->user, user, strlen(user));
    }
}

const struct pg_protocol pg_table = {
    .pipeline = true,
    .abandon = table_abandon,
    .acquire = table_acquire,
    .ready = table_ready,
    .answered = table_answered,
    .failed = table_failed,
    .renew = table_renew,
    .release = table_release,
    .timeout = table_timeout,
    .read_info = table_read_info,
    .schema = table_schema,
};
