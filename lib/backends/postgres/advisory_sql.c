/*
 * advisory_sql.c - see advisory_sql.h; the statements are in sql/advisory.sql.
 *
 * The main key, with the lock functions' own rules, excludes all clients. The further keys:
 *
 *   turnstile  passed by readers and slots in shared mode on their way to the main key. Held
 *              exclusively by a writer that has to wait, who so waits only for present readers.
 *              Without the turnstile, a writer that waits in chunks never gets between readers that
 *              come without pause [measured].
 *   size       first_size + N: shared by all holders and waiters of N slots. Taken under the key
 *              sizes, so that all have the same N.
 *   gate       held exclusively by the first client in line for a slot, which waits alone for the
 *              main key and for a slot. A newcomer passes in shared mode, which fails meanwhile.
 *   slot i     held exclusively.
 *   mark PID   held exclusively by a session that breaks the hold of the session with this pid.
 */
#include "advisory_sql.h"

#include "postgres_sql.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the error of the statement gate. */
#define FOUND_POOLER "dlock finding: pooler;"
#define FOUND_STANDBY "dlock finding: standby;"
#define FOUND_READ_ONLY "dlock finding: read-only;"

/* The statements of a message, in order. */
struct chain {
    const char *list[24];
    int n;
};

static void add(struct chain *c, const char *statement)
{
    c->list[c->n++] = statement;
}

/*
 * A record for pg_stat_activity. more: further " key=value" pairs. The lock's name comes last, if
 * it fits into the 1024 bytes that a server keeps of a query by default.
 */
static void comment(const struct sql_store *be, const char *record, const char *more,
                    char buf[1200])
{
    const int room = 1024 - (int)strlen("/*  */ ");
    char kind[64] = "";
    if (be->spec->mode == DLOCK_MODE_SHARED)
        snprintf(kind, sizeof(kind), " shared=1");
    else if (be->slot > 0)
        snprintf(kind, sizeof(kind), " slots=%u slot=%d", be->spec->slots, be->slot);
    else if (be->spec->mode == DLOCK_MODE_SLOTS)
        snprintf(kind, sizeof(kind), " slots=%u", be->spec->slots);
    int n = snprintf(buf, 1200, "%s ttl=%" PRId64 "%s%s", record, adv_ttl_ms(be), more, kind);
    const char *name = pg(be)->session + strlen(SESSION_NAME);
    if (strncmp(pg(be)->session, SESSION_NAME, strlen(SESSION_NAME)) == 0 &&
        n + (int)strlen(name) + (int)strlen(" lock=") < room)
        snprintf(buf + n, (size_t)(1200 - n), " lock=%s", name);
}

static bool has_idle(const struct sql_store *be)
{
    return PQserverVersion(pg(be)->conn.pq) >= WITH_IDLE_TIMEOUT;
}

static const char *truth(bool b)
{
    return b ? "true" : "false";
}

/* "{1,2,3}": the keys of the slots; NULL: out of memory. */
static char *slot_keys(const struct sql_store *be)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    for (unsigned i = 0; i < be->spec->slots; i++)
        fprintf(f, "%c%" PRId64, i > 0 ? ',' : '{', pg_slot_key(&pg(be)->advisory.keys, (int)i));
    fputc('}', f);
    return fclose(f) == 0 ? text : (free(text), NULL);
}

/* The message, malloc'ed, or NULL. first: its begin. grace: is in the chain. */
static char *text_of(const struct sql_store *be, const char *first, struct chain *c,
                     const char *slots, bool grace)
{
    const struct pg_keys *keys = &pg(be)->advisory.keys;
    struct pg_keepalives keep = pg_keepalives(be->spec->ttl);
    bool with_slots = be->spec->mode == DLOCK_MODE_SLOTS,
         gate = pg(be)->advisory.awaits == WAIT_GATE;
    char number[32];
    long broken = pg(be)->advisory.breaks.session[0]
                      ? strtol(pg(be)->advisory.breaks.session, NULL, 10)
                      : be->conn->session;
    int64_t mark = pg_mark_key(keys, broken);
    char mark_begin[2 * sizeof(keys->name) + 32], mark_hex[17], breaker[DLOCK_BREAKER_SIZE];
    snprintf(mark_hex, sizeof(mark_hex), "%016" PRIx64, (uint64_t)mark);
    /* No quote stands in a string, and no backslash. */
    dlock_breaker(be->spec->identity, breaker);
    for (char *at = breaker; (at = strpbrk(at, "'\\")); at++)
        *at = '?';
    pg_mark_begin(keys, mark_begin);
    snprintf(number, sizeof(number), "'%" PRId64 "'", gate ? keys->gate : keys->turnstile);
    const struct sql_place places[] = {
        {"pid", NULL, be->conn->session},
        {"key", pg(be)->advisory.key, 0},
        {"_shared", be->spec->mode == DLOCK_MODE_EXCLUSIVE ? "" : "_shared", 0},
        {"_wait", gate || be->spec->mode == DLOCK_MODE_EXCLUSIVE ? "" : "_shared", 0},
        {"turnstile", NULL, keys->turnstile},
        {"gate", NULL, keys->gate},
        {"sizes", NULL, keys->sizes},
        {"size_key", NULL, keys->first_size + be->spec->slots},
        {"slot_key", NULL, be->slot > 0 ? pg_slot_key(keys, be->slot - 1) : 0},
        {"slot_keys", slots, 0},
        {"high", NULL, (uint32_t)((uint64_t)keys->first_size >> 32)},
        {"low", NULL, (uint32_t)keys->first_size},
        {"most", NULL, DLOCK_SLOTS_MAX},
        {"slots", NULL, be->spec->slots},
        {"main_high", NULL, pg(be)->advisory.high},
        {"main_low", NULL, pg(be)->advisory.low},
        {"main_sub", NULL, pg(be)->advisory.sub},
        {"turn_high", NULL, (uint32_t)((uint64_t)keys->turnstile >> 32)},
        {"turn_low", NULL, (uint32_t)keys->turnstile},
        {"gate_high", NULL, (uint32_t)((uint64_t)keys->gate >> 32)},
        {"gate_low", NULL, (uint32_t)keys->gate},
        {"mark_key", NULL, mark},
        {"mark_high", NULL, (uint32_t)((uint64_t)mark >> 32)},
        {"mark_low", NULL, (uint32_t)mark},
        {"mark_hex", mark_hex, 0},
        {"mark_begin", mark_begin, 0},
        {"breaker", breaker, 0},
        {"session_id", pg(be)->advisory.breaks.session, 0},
        {"key_id", pg(be)->advisory.key_id, 0},
        {"channel", keys->channel, 0},
        {"token", be->token, 0},
        {"turn", truth(pg(be)->advisory.has.turn), 0},
        {"main", truth(pg(be)->advisory.has.main), 0},
        {"size", truth(pg(be)->advisory.has.size), 0},
        {"wait", truth(be->acquire.wait), 0},
        {"keep", truth(with_slots ? pg(be)->advisory.has.gate : be->acquire.wait), 0},
        {"may",
         with_slots ? "current_setting('dlock.may')::bool"
         : grace    ? "current_setting('dlock.grace')::bigint <= 0"
                    : "true",
         0},
        {"shorten",
         !has_idle(be) || !be->acquire.wait ? "false"
         : grace                            ? "current_setting('dlock.grace')::bigint <= 0"
                                            : "true",
         0},
        {"grace_left", grace ? "current_setting('dlock.grace')::bigint" : "0", 0},
        {"lease", has_idle(be) ? "current_setting('idle_session_timeout')" : "NULL", 0},
        {"ttl", NULL, adv_ttl_ms(be)},
        {"wait_idle", NULL, adv_wait_idle_ms(be)},
        {"idle", NULL, keep.idle},
        {"interval", NULL, keep.interval},
        {"count", NULL, keep.count},
        {"user_timeout", NULL, dlock_min(adv_ttl_ms(be), INT32_MAX)},
        {"grace", NULL, be->restart_grace / DLOCK_MSEC},
        {"wait_key", pg(be)->advisory.awaits == WAIT_MAIN ? pg(be)->advisory.key : number, 0},
        {"chunk", NULL, pg(be)->advisory.fair ? 0 : CHUNK_MS},
        {NULL, NULL, 0},
    };
    return sql_compose(first, "; ", c->list, (size_t)c->n, places);
}

/* ------------------------------------------------------------------------- try */

static void add_slots(struct chain *c, const struct sql_store *be)
{
    bool first = pg(be)->advisory.has.gate, pass = !first && !pg(be)->advisory.polls;
    add(c, sql_advisory_begin_slots);
    if (!pg(be)->advisory.has.size)
        add(c, sql_advisory_take_size);
    if (pass)
        add(c, sql_advisory_pass_gate);
    add(c, sql_advisory_pass_slots);
    add(c, sql_advisory_take_slot);
    add(c, first ? sql_advisory_leave_gate_first : sql_advisory_leave_main);
    if (pass)
        add(c, sql_advisory_leave_gate);
    if (!first && !be->acquire.wait)
        add(c, sql_advisory_leave_size);
    add(c, sql_advisory_answer_slot);
}

/* A try, with all settings, or a confirmation. */
static void add_lock(struct chain *c, const struct sql_store *be, bool all_settings)
{
    int version = PQserverVersion(pg(be)->conn.pq);
    bool with_slots = be->spec->mode == DLOCK_MODE_SLOTS;
    if (all_settings) {
        add(c, sql_advisory_settings);
        if (version >= 140000)
            add(c, sql_advisory_settings_since_14);
        if (version >= 170000)
            add(c, sql_advisory_settings_since_17);
        if (with_slots)
            add(c, sql_advisory_settings_slots);
        if (be->restart_grace > 0)
            add(c, sql_advisory_grace);
    }
    if (has_idle(be))
        add(c, sql_advisory_lease_since_14);
    if (with_slots)
        add_slots(c, be);
    else
        add(c, be->spec->mode == DLOCK_MODE_SHARED ? sql_advisory_try_shared
                                                   : sql_advisory_try_exclusive);
}

static void add_renewal(struct chain *c, const struct sql_store *be)
{
    if (!pg(be)->advisory.renew_writes && be->restart_grace > 0)
        add(c, sql_session_not_durable);
    if (pg(be)->advisory.renew_writes || be->restart_grace > 0)
        add(c, sql_advisory_emit);
    if (pg(be)->advisory.has.listens)
        add(c, sql_advisory_unlisten);
    add(c, sql_advisory_renew);
}

char *adv_sql(const struct sql_store *be, enum sql_tag tag)
{
    bool locks = tag == T_TRY || tag == T_CONFIRM, waits = tag == T_WAIT || tag == T_LISTEN;
    bool with_slots = be->spec->mode == DLOCK_MODE_SLOTS;
    bool checks = be->op == SQL_OP_STATUS && be->question->what == ASK_CHECK;
    bool lists = be->op == SQL_OP_STATUS && be->question->what == ASK_LIST;
    char more[80] = "", record[1200], first[1600], *keys = NULL, *sql;
    struct chain c = {.n = 0};
    if (locks && with_slots && !(keys = slot_keys(be)))
        return NULL;
    if (locks || waits || tag == T_RELEASE || tag == T_BREAK || tag == T_FREE)
        add(&c, sql_advisory_gate);
    if (tag == T_BREAK)
        add(&c, sql_advisory_name_breaker);
    if (locks)
        add_lock(&c, be, tag == T_TRY);
    else if (tag == T_RENEW)
        add_renewal(&c, be);
    else if (tag == T_RELEASE)
        add(&c, with_slots ? sql_advisory_unlock_slot : sql_advisory_unlock);
    else
        add(&c, tag == T_WAIT      ? sql_advisory_wait
                : tag == T_LISTEN  ? sql_advisory_listen
                : tag == T_HOLDER  ? sql_advisory_holder
                : tag == T_BREAKER ? sql_advisory_breaker
                : tag == T_BREAK   ? sql_advisory_mark
                : tag == T_FREE    ? sql_advisory_terminate
                : lists            ? sql_advisory_list
                : checks           ? sql_check_advisory
                                   : sql_advisory_status);
    if (waits)
        snprintf(more, sizeof(more), " wait=%s", pg(be)->advisory.key_id);
    else if (tag == T_RENEW)
        snprintf(more, sizeof(more), " fence=%" PRIu64 " holds=%s", be->fence,
                 pg(be)->advisory.key_id);
    else if (locks)
        snprintf(more, sizeof(more), " holds=%s", pg(be)->advisory.key_id);
    comment(be, waits ? be->waiter : be->holder, more, record);
    bool described = locks || waits || tag == T_RENEW;
    snprintf(first, sizeof(first), described ? "/* %s */ %s; " : "%s%s; ", described ? record : "",
             sql_session_local_path);
    sql = text_of(be, first, &c, keys, tag == T_TRY && be->restart_grace > 0);
    free(keys);
    return sql;
}

void adv_request(struct sql_store *be, enum sql_tag tag)
{
    char *sql = adv_sql(be, tag);
    if (!pg_conn_send(&pg(be)->conn, (int)tag, sql))
        pg_conn_fail_no_memory(&pg(be)->conn);
    free(sql);
}

void adv_refusal(const struct sql_store *be, const struct sql_reply *r, struct dlock_error *err)
{
    if (strstr(r->text, FOUND_POOLER))
        dlock_fail_at(
            err, DLOCK_EUSAGE, 0, sql_where(be),
            "this is a connection pooler, which would keep an advisory lock "
            "for other clients: connect to the server itself, or write " URI_PARAM("?mode=lease"));
    else if (strstr(r->text, FOUND_STANDBY))
        dlock_fail_at(err, DLOCK_EUNAVAIL, 0, sql_where(be), "the server is a standby");
    else if (strstr(r->text, FOUND_READ_ONLY))
        dlock_fail_at(err, DLOCK_EUNAVAIL, 0, sql_where(be), PG_NO_WRITES);
    else
        sql_error(be, r, err);
}
