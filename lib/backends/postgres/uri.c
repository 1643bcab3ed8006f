/*
 * uri.c - what the URI says about a PostgreSQL server, and what libpq adds to it.
 *
 * libpq's own parameters are handed to libpq as they are. Hosts that the URI leaves open come from where
 * libpq would take them (PGHOST, a service file), because names are looked up by the core: libpq blocks.
 */
#include "postgres.h"

#include <errno.h>
#include <inttypes.h>
#include <sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* idle_session_timeout is an int of milliseconds; 24 days are left of it. */
#define TTL_MAX (24 * 86400 * DLOCK_SEC)

/* The parameters are marked as used in the URI. */
static const char *param(const struct dlock_spec *spec, const char *key)
{
    return dlock_uri_param(spec->uri, key);
}

/* --------------------------------------------------------- libpq's parameters */

static int set_param(struct dlock_be *be, const char *key, const char *value,
                     struct dlock_error *err)
{
    struct pg_settings *s = &be->set;
    for (int i = PG_FIRST_PARAM; i < s->n; i++)
        if (strcmp(s->keys[i], key) == 0) {
            s->values[i] = value;
            return 0;
        }
    if (s->n == PG_PARAMS)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s: too many parameters", pg_where(be));
    s->keys[s->n] = key;
    s->values[s->n++] = value;
    return 0;
}

static bool is_known(const PQconninfoOption *known, const char *key)
{
    for (; known->keyword; known++)
        if (strcmp(known->keyword, key) == 0)
            return true;
    return false;
}

/* Host, address and port are given anew for each try; the name of the database stands in the path. */
static bool is_placed(const char *key)
{
    return strcmp(key, "host") == 0 || strcmp(key, "hostaddr") == 0 || strcmp(key, "port") == 0;
}

static int take_libpq_params(struct dlock_be *be, const PQconninfoOption *known,
                             struct dlock_error *err)
{
    struct dlock_uri *uri = be->spec->uri;
    int rc = 0;
    for (int i = 0; i < uri->nparams && rc == 0; i++) {
        struct dlock_param *p = &uri->params[i];
        if (strcmp(p->key, "ssl") == 0 &&
            strcmp(p->value, "true") == 0) { /* as libpq does, for JDBC's sake */
            p->used = true;
            rc = set_param(be, "sslmode", "require", err);
        } else if (is_known(known, p->key)) {
            p->used = true;
            if (!is_placed(p->key))
                rc = set_param(be, p->key, p->value, err);
        }
    }
    return rc;
}

static const char *uri_value(const struct dlock_spec *spec, const char *key)
{
    for (int i = 0; i < spec->uri->nparams; i++)
        if (strcmp(spec->uri->params[i].key, key) == 0)
            return spec->uri->params[i].value;
    return NULL;
}

/* Who waits in one long query has no other way to learn that the server is gone: within about a ttl. */
static int set_keepalives(struct dlock_be *be, struct dlock_error *err)
{
    int64_t third = dlock_max(1, be->spec->ttl / DLOCK_SEC / 3);
    snprintf(be->keepalive[0], sizeof be->keepalive[0], "%" PRId64, third);
    snprintf(be->keepalive[1], sizeof be->keepalive[1], "%" PRId64, dlock_max(1, third / 3));
    int rc = set_param(be, "keepalives_idle", be->keepalive[0], err);
    if (rc == 0)
        rc = set_param(be, "keepalives_interval", be->keepalive[1], err);
    return rc == 0 ? set_param(be, "keepalives_count", "3", err) : rc;
}

static int set_all(struct dlock_be *be, struct dlock_error *err)
{
    const struct dlock_uri *uri = be->spec->uri;
    const struct dlock_host *h = uri->nhosts > 0 ? &uri->hosts[0] : NULL;
    const char *file = param(be->spec, "password-file");
    /* Not PQconndefaults(): it looks the user up, perhaps in a directory server, although the URI may say it. */
    PQconninfoOption *known = PQconninfoParse("", NULL);
    int rc = 0;

    be->set.keys[PG_HOST] = "host";
    be->set.keys[PG_HOSTADDR] = "hostaddr";
    be->set.keys[PG_PORT] = "port";
    be->set.n = PG_FIRST_PARAM;
    if (!known)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    if (h && h->user)
        rc = set_param(be, "user", h->user, err);
    if (rc == 0 && uri->path[0] == '/' && uri->path[1])
        rc = set_param(be, "dbname", uri->path + 1, err);
    if (rc == 0)
        rc = take_libpq_params(be, known, err);
    PQconninfoFree(known);
    if (rc == 0 && file)
        rc = dlock_read_secret(&be->secret, file, err);
    if (rc == 0 && be->secret)
        rc = set_param(be, "password", be->secret, err);
    if (rc == 0 && h && h->password)
        rc = set_param(be, "password", h->password, err);
    /* A standby grants advisory locks that nobody else sees. */
    if (rc == 0)
        rc = set_param(be, "target_session_attrs", "read-write", err);
    if (rc == 0)
        rc = set_param(be, "client_encoding", "UTF8", err);
    if (rc == 0)
        rc = set_param(be, "fallback_application_name", be->app, err);
    return rc == 0 && be->fair ? set_keepalives(be, err) : rc;
}

/* -------------------------------------------------------------------- hosts */

/* The n-th part of a list "a,b,c", malloc'ed; "" past its end. A list of one holds for all. */
static char *list_part(const char *list, int n, bool one_for_all)
{
    if (one_for_all && !strchr(list, ','))
        n = 0;
    for (; n > 0 && *list; n--)
        list += strcspn(list, ",") + (strchr(list, ',') != NULL);
    return strndup(list, strcspn(list, ","));
}

static int list_length(const char *list)
{
    int n = 1;
    for (; *list; list++)
        n += *list == ',';
    return n;
}

struct effective {
    const char *host, *addr, *port;
};

/*
 * libpq's opinion on everything that was not said. It has no call for that alone, so a connection is begun
 * with an sslmode that does not exist: libpq merges all its sources, finds that out, and does nothing.
 */
static PQconninfoOption *ask_libpq(struct dlock_be *be, struct effective *e,
                                   struct dlock_error *err)
{
    static const char nonsense[] = "dlock asks for the settings";
    struct pg_settings s = be->set;
    int n = PG_FIRST_PARAM;
    for (int i = PG_FIRST_PARAM; i < be->set.n; i++)
        if (strcmp(be->set.keys[i], "sslmode") != 0) {
            s.keys[n] = be->set.keys[i];
            s.values[n++] = be->set.values[i];
        }
    s.values[PG_HOST] = uri_value(be->spec, "host");
    s.values[PG_HOSTADDR] = uri_value(be->spec, "hostaddr");
    s.values[PG_PORT] = uri_value(be->spec, "port");
    s.keys[n] = "sslmode";
    s.values[n++] = nonsense;
    s.keys[n] = s.values[n] = NULL;
    PGconn *c = PQconnectStartParams(s.keys, s.values, 0);
    PQconninfoOption *all = c ? PQconninfo(c) : NULL;
    bool merged = false;
    for (PQconninfoOption *o = all; o && o->keyword; o++) {
        const char *v = o->val ? o->val : "";
        merged |= strcmp(o->keyword, "sslmode") == 0 && strcmp(v, nonsense) == 0;
        if (strcmp(o->keyword, "host") == 0)
            e->host = v;
        else if (strcmp(o->keyword, "hostaddr") == 0)
            e->addr = v;
        else if (strcmp(o->keyword, "port") == 0)
            e->port = v;
    }
    if (!merged) {
        char text[256];
        const char *why = all ? PQerrorMessage(c) : "out of memory";
        dlock_clean_text(text, sizeof text, why, strcspn(why, "\n"));
        /* It may also have come as far as we wanted, and yet not be able to say so. */
        if (pg_conn_says_no_memory(text) || strstr(text, nonsense))
            dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
        else
            dlock_fail(err, DLOCK_EUSAGE, 0, "%s: %s", pg_where(be), text);
        PQconninfoFree(all);
        all = NULL;
    }
    PQfinish(c);
    return all;
}

/* The URI names the hosts: its own are to be looked up. */
static int hosts_of_uri(struct dlock_be *be, struct dlock_error *err)
{
    const struct dlock_uri *uri = be->spec->uri;
    for (int i = 0; i < uri->nhosts; i++) {
        be->set.hosts[i] = strdup(uri->hosts[i].host);
        if (!be->set.hosts[i] || asprintf(&be->set.ports[i], "%u", uri->hosts[i].port) < 0)
            return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    }
    return 0;
}

/* They come from elsewhere: put into the URI what the core is to look up. */
static int hosts_of_libpq(struct dlock_be *be, const struct effective *e, int n,
                          struct dlock_error *err)
{
    struct dlock_uri *uri = be->spec->uri;
    struct dlock_host *hosts = calloc((size_t)n, sizeof *hosts);
    if (!hosts)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    for (int i = 0; i < n; i++) {
        char *addr = list_part(e->addr, i, false), *end;
        be->set.hosts[i] = list_part(e->host, i, false);
        be->set.ports[i] = list_part(e->port, i, true);
        long port = be->set.ports[i] ? strtol(be->set.ports[i], &end, 10) : 0;
        hosts[i].port = port > 0 && port < 65536 ? (unsigned short)port : 5432;
        hosts[i].host =
            addr && *addr ? strdup(addr) : strdup(be->set.hosts[i] ? be->set.hosts[i] : "");
        /* An address without a name is not the default socket. */
        if (addr && *addr && be->set.hosts[i] && !*be->set.hosts[i]) {
            free(be->set.hosts[i]);
            be->set.hosts[i] = strdup(addr);
        }
        free(addr);
    }
    /* Credentials were copied from the first of the URI's hosts, if there was one: pass their memory on. */
    if (uri->nhosts > 0) {
        hosts[0].user = uri->hosts[0].user;
        hosts[0].password = uri->hosts[0].password;
        free(uri->hosts[0].host);
    }
    free(uri->hosts);
    uri->hosts = hosts;
    uri->nhosts = n;
    for (int i = 0; i < n; i++)
        if (!hosts[i].host || !be->set.hosts[i] || !be->set.ports[i])
            return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    return dlock_uri_settle_where(uri, err);
}

static int set_hosts(struct dlock_be *be, struct dlock_error *err)
{
    const struct dlock_uri *uri = be->spec->uri;
    struct effective e = {"", "", ""};
    bool named = uri->nhosts > 0 && *uri->hosts[0].host;
    if (named && (uri_value(be->spec, "host") || uri_value(be->spec, "hostaddr") ||
                  uri_value(be->spec, "port")))
        return dlock_fail(
            err, DLOCK_EUSAGE, 0,
            "%s: hosts and ports stand either after '//' or in parameters, not in both",
            pg_where(be));
    PQconninfoOption *all = ask_libpq(be, &e, err);
    if (!all)
        return DLOCK_EUSAGE;
    int n = named ? uri->nhosts : (int)dlock_max(list_length(e.host), list_length(e.addr)), rc;
    be->set.hosts = calloc((size_t)n, sizeof *be->set.hosts);
    be->set.ports = calloc((size_t)n, sizeof *be->set.ports);
    be->set.nhosts = n;
    if (!be->set.hosts || !be->set.ports)
        rc = dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    else
        rc = named ? hosts_of_uri(be, err) : hosts_of_libpq(be, &e, n, err);
    PQconninfoFree(all);
    return rc;
}

/* ---------------------------------------------------------------------- key */

/* One bigint, or two ints: as pg_advisory_lock has them. */
static int parse_key(struct dlock_be *be, const char *text, struct dlock_error *err)
{
    char *end;
    bool digits = (text[0] >= '0' && text[0] <= '9') || text[0] == '-';
    errno = 0;
    long long a = strtoll(text, &end, 10), b = 0;
    bool two = *end == ',';
    if (two) {
        digits = digits && ((end[1] >= '0' && end[1] <= '9') || end[1] == '-');
        b = strtoll(end + 1, &end, 10);
    }
    bool small = a >= INT32_MIN && a <= INT32_MAX && b >= INT32_MIN && b <= INT32_MAX;
    if (!digits || errno != 0 || *end != '\0' || end[-1] == '-' || (two && !small))
        return dlock_fail(
            err, DLOCK_EUSAGE, 0,
            "%s: key=%.40s: a key is one 64-bit number, or two 32-bit numbers with a comma",
            pg_where(be), text);
    if (two) {
        snprintf(be->key, sizeof be->key, "'%lld'::int,'%lld'::int", a, b);
    } else {
        snprintf(be->key, sizeof be->key, "'%lld'::bigint", a);
        b = (long long)(uint32_t)a;
        a = (long long)((uint64_t)a >> 32);
    }
    snprintf(be->key_id, sizeof be->key_id, "%08x%08x.%d", (unsigned)(uint32_t)a,
             (unsigned)(uint32_t)b, two ? 2 : 1);
    snprintf(be->where_key, sizeof be->where_key,
             "l.classid='%u'::oid AND l.objid='%u'::oid AND l.objsubid=%d", (unsigned)(uint32_t)a,
             (unsigned)(uint32_t)b, two ? 2 : 1);
    return 0;
}

/*
 * The first eight bytes of SHA-256(name), big-endian. In lease mode only to find each other: with the table's name in
 * it. Not OpenSSL's, which reads its configuration and sets all of itself up first: a millisecond or two that a
 * connection without TLS and password need not pay.
 */
static int set_key(struct dlock_be *be, struct dlock_error *err)
{
    const char *name = be->spec->uri->name, *given = param(be->spec, "key");
    uint8_t hash[SHA256_DIGEST_LENGTH];
    SHA2_CTX sha;
    uint64_t n = 0;
    char text[1024];
    int len = snprintf(text, sizeof text, "%s%s%s", be->table ? be->table : "",
                       be->table ? "#" : "", name);

    SHA256Init(&sha);
    SHA256Update(&sha, (const uint8_t *)text, (size_t)len);
    SHA256Final(hash, &sha);
    for (int i = 0; i < 8; i++)
        n = n << 8 | hash[i];
    snprintf(be->app, sizeof be->app, "dlock:%016llx", (unsigned long long)n);
    snprintf(be->waiter_app, sizeof be->waiter_app, "%s:w", be->app);
    snprintf(be->channel, sizeof be->channel, "dlock_%016llx_", (unsigned long long)n);
    snprintf(text, sizeof text, "%lld", (long long)(int64_t)n);
    return parse_key(be, given ? given : text, err);
}

/* ------------------------------------------------------------------- options */

static int read_flag(const struct dlock_spec *spec, const char *key, bool *flag,
                     struct dlock_error *err)
{
    const char *v = param(spec, key);
    if (v && strcmp(v, "0") != 0 && strcmp(v, "1") != 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s: %s=%.40s: 0 or 1", spec->uri->where, key, v);
    *flag = v && *v == '1';
    return 0;
}

/* "schema.name", each part quoted. The schema must be said: a search_path may differ from one role to the next. */
static int set_table(struct dlock_be *be, const char *text, struct dlock_error *err)
{
    const char *dot = strchr(text, '.');
    size_t size;
    if (!dot || dot == text || !dot[1] || strchr(dot + 1, '.') || strlen(text) > 127)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s: table=%.80s: SCHEMA.NAME is needed",
                          pg_where(be), text);
    FILE *f = open_memstream(&be->table, &size);
    if (!f)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    fputc('"', f);
    for (const char *p = text; *p; p++)
        fputs(p == dot ? "\".\"" : *p == '"' ? "\"\"" : (char[]){*p, '\0'}, f);
    fputc('"', f);
    /* fclose() shortens the memory to what is used, and says nothing when that fails. */
    return fclose(f) == 0 && be->table ? 0 : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

/* A parameter that would have no effect is a mistake of whoever gave it. */
static int check_mode_params(const struct dlock_be *be, bool lease, struct dlock_error *err)
{
    static const struct {
        const char *key;
        bool lease;
    } only[] = {{"table", true},
                {"key", false},
                {"fair", false},
                {"renew", false},
                {"restart-grace", false}};
    for (size_t i = 0; i < DLOCK_LEN(only); i++)
        if (only[i].lease != lease && uri_value(be->spec, only[i].key))
            return dlock_fail(err, DLOCK_EUSAGE, 0, "%s: %s= has a meaning only with mode=%s",
                              pg_where(be), only[i].key, only[i].lease ? "lease" : "advisory");
    return 0;
}

static int set_mode(struct dlock_be *be, struct dlock_error *err)
{
    const struct dlock_spec *spec = be->spec;
    const char *mode = param(spec, "mode"), *table = param(spec, "table");
    bool lease = mode && strcmp(mode, "lease") == 0;
    if (mode && !lease && strcmp(mode, "advisory") != 0)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s: mode=%.40s: advisory or lease", pg_where(be),
                          mode);
    be->protocol = lease ? &pg_table : &pg_advisory;
    int rc = check_mode_params(be, lease, err);
    return rc == 0 && lease ? set_table(be, table ? table : "public.dlock_locks", err) : rc;
}

static int set_options(struct dlock_be *be, struct dlock_error *err)
{
    const struct dlock_spec *spec = be->spec;
    const char *grace = param(spec, "restart-grace"), *renew = param(spec, "renew");
    int rc = grace ? dlock_parse_duration(grace, &be->restart_grace, err) : 0;
    if (rc == 0)
        rc = read_flag(spec, "fair", &be->fair, err);
    if (rc == 0 && renew && strcmp(renew, "write") != 0 && strcmp(renew, "read") != 0)
        rc =
            dlock_fail(err, DLOCK_EUSAGE, 0, "%s: renew=%.40s: read or write", pg_where(be), renew);
    be->renew_writes = renew && strcmp(renew, "write") == 0;
    return rc;
}

int pg_check_spec(struct dlock_be *be, struct dlock_error *err)
{
    const struct dlock_spec *spec = be->spec;
    int rc;
    if (spec->mode != DLOCK_EXCLUSIVE)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s is not yet supported for postgres",
                          spec->mode == DLOCK_SHARED ? "a shared lock" : "--slots");
    if (spec->ttl > TTL_MAX)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "%s: a ttl of more than 24 days is more than PostgreSQL can time",
                          pg_where(be));
    if ((rc = set_mode(be, err)) != 0 || (rc = set_options(be, err)) != 0 ||
        (rc = set_key(be, err)) != 0 || (rc = set_all(be, err)) != 0 ||
        (rc = set_hosts(be, err)) != 0)
        return rc;
    /* In a comment in SQL: percent-encoded, so neither a quote nor the end of a comment can be in it. */
    if (dlock_who_format(spec->who, be->record, sizeof be->record) < 0)
        snprintf(be->record, sizeof be->record, "dlock1 pid=%ld", spec->who->pid);
    return 0;
}

void pg_done(struct dlock_be *be)
{
    for (int i = 0; i < be->set.nhosts; i++) {
        if (be->set.hosts)
            free(be->set.hosts[i]);
        if (be->set.ports)
            free(be->set.ports[i]);
    }
    free(be->set.hosts);
    free(be->set.ports);
    if (be->secret)
        explicit_bzero(be->secret, strlen(be->secret));
    free(be->secret);
    free(be->table);
}
