/*
 * uri.c - what the URI says about a PostgreSQL server, and what libpq adds to it.
 *
 * libpq's own parameters go to libpq unchanged. Hosts that the URI does not name are taken from where libpq would
 * take them (PGHOST, a service file), since the core has to look up their names: libpq would block.
 */
#include "postgres.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sha2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* idle_session_timeout is an int in milliseconds: 24.8 days at most. */
#define TTL_MAX (24 * 86400 * DLOCK_SEC)
/* The name of the second table is the first one's and this. */
#define HOLDERS_SUFFIX "_holders"
/* That of the third one. */
#define RUNS_SUFFIX "_runs"

/* NULL: not given. Marks the parameter as used. */
static const char *param(const struct dlock_spec *spec, const char *key)
{
    return dlock_uri_param(spec->uri, key);
}

/* --------------------------------------------------------- libpq's parameters */

/* The last value for a key counts. NULL: leave it out. */
static int set_param(struct pg_backend *be, const char *key, const char *value,
                     struct dlock_error *err)
{
    struct pg_settings *s = &be->settings;
    int i = PG_FIRST_PARAM;
    if (!value)
        return 0;
    while (i < s->n && strcmp(s->keys[i], key) != 0)
        i++;
    if (i == PG_PARAMS)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, pg_where(be), "too many parameters");
    s->keys[i] = key;
    s->values[i] = value;
    s->n = (int)dlock_max(s->n, i + 1);
    return 0;
}

static bool is_known(const PQconninfoOption *known, const char *key)
{
    for (; known->keyword; known++)
        if (strcmp(known->keyword, key) == 0)
            return true;
    return false;
}

/* These are set for each connection; they are read here by set_hosts(). */
static bool is_address_param(const char *key)
{
    return strcmp(key, "host") == 0 || strcmp(key, "hostaddr") == 0 || strcmp(key, "port") == 0;
}

/* These go to libpq unchanged. */
static void mark_libpq_params(struct dlock_uri *uri, const PQconninfoOption *known)
{
    for (int i = 0; i < uri->nparams; i++)
        uri->params[i].used = uri->params[i].used || is_known(known, uri->params[i].key);
    for (; known->keyword; known++)
        dlock_uri_known(uri, known->keyword);
}

static int set_libpq_params(struct pg_backend *be, const PQconninfoOption *known,
                            struct dlock_error *err)
{
    const struct dlock_uri *uri = be->spec->uri;
    int rc = 0;
    for (int i = 0; i < uri->nparams && rc == 0; i++) {
        struct dlock_param *p = &uri->params[i];
        if (!is_known(known, p->key))
            continue;
        p->used = true;
        if (!is_address_param(p->key))
            rc = set_param(be, p->key, p->value, err);
    }
    return rc;
}

/*
 * Whoever has a Kerberos ticket, perhaps for other purposes, would wait for its server at each connection: libpq's
 * default is to prefer GSS encryption. A default of our own must yield to the URI, to a service and to the variable. A
 * parameter wins over all of them, so it is given only where none of them can say anything. What a service says (in a file
 * or a directory server) cannot be told from libpq's default: there only the variable yields to it.
 */
static int set_gss_default(struct pg_backend *be, const PQconninfoOption *known,
                           struct dlock_error *err)
{
    /* Empty: to libpq it is as if it were not given. */
    const char *given = dlock_uri_peek(be->spec->uri, "gssencmode");
    if ((given && *given) || getenv("PGGSSENCMODE") || !is_known(known, "gssencmode"))
        return 0;
    if (!getenv("PGSERVICE") && !dlock_uri_peek(be->spec->uri, "service"))
        return set_param(be, "gssencmode", "disable", err);
    return setenv("PGGSSENCMODE", "disable", 0) == 0
               ? 0
               : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

static int take_libpq_params(struct pg_backend *be, struct dlock_error *err)
{
    struct dlock_uri *uri = be->spec->uri;
    bool no_table = be->protocol == &pg_table && !dlock_uri_peek(be->spec->uri, "table");
    const char *sslmode = NULL;
    /* Not PQconndefaults(): it looks up the user, perhaps in a directory server, even if the URI names one. */
    PQconninfoOption *known = PQconninfoParse("", NULL);
    int rc;
    if (!known)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    mark_libpq_params(uri, known);
    rc = pg_foreign_params(uri, no_table, &sslmode, err);
    if (rc == 0)
        rc = set_libpq_params(be, known, err);
    if (rc == 0)
        rc = set_gss_default(be, known, err);
    if (rc == 0)
        rc = set_param(be, "sslmode", sslmode, err);
    PQconninfoFree(known);
    return rc;
}

/*
 * TCP gives up at idle + count * interval. Not before the ttl is over: a server without TCP_USER_TIMEOUT (which is
 * Linux's alone) would free the lock of a holder that is cut off and has not ended yet. Linux takes an idle time and an
 * interval of 32767 s, and 127 probes, at most.
 */
struct pg_keepalives pg_keepalives(int64_t ttl)
{
    int64_t all = dlock_max(2, (ttl + DLOCK_SEC - 1) / DLOCK_SEC);
    struct pg_keepalives k = {.count = dlock_min(all / 2, 100)};
    k.idle = dlock_min(all - k.count, 32767);
    k.interval = (all - k.idle + k.count - 1) / k.count;
    return k;
}

/* A waiter in one long query has no other way to notice that the server is gone, within about a ttl. */
static int set_keepalives(struct pg_backend *be, struct dlock_error *err)
{
    struct pg_keepalives k = pg_keepalives(be->spec->ttl);
    const struct {
        const char *key;
        int64_t value;
    } all[] = {{"keepalives_idle", k.idle},
               {"keepalives_interval", k.interval},
               {"keepalives_count", k.count}};
    int rc = 0;
    for (size_t i = 0; i < DLOCK_LEN(all) && rc == 0; i++) {
        snprintf(be->keepalive[i], sizeof(be->keepalive[i]), "%" PRId64, all[i].value);
        rc = set_param(be, all[i].key, be->keepalive[i], err);
    }
    return rc;
}

static int read_password(struct pg_backend *be, struct dlock_error *err)
{
    const char *file = param(be->spec, "password-file");
    return file ? dlock_read_secret(&be->password, file, err) : 0;
}

/* What the URI says goes in, and over it what we need. */
static int set_params(struct pg_backend *be, struct dlock_error *err)
{
    const struct dlock_uri *uri = be->spec->uri;
    const struct dlock_host *h = uri->nhosts > 0 ? &uri->hosts[0] : NULL;
    const char *database = uri->path[0] == '/' && uri->path[1] ? uri->path + 1 : NULL;
    int rc;

    be->settings.keys[PG_HOST] = "host";
    be->settings.keys[PG_HOSTADDR] = "hostaddr";
    be->settings.keys[PG_PORT] = "port";
    be->settings.n = PG_FIRST_PARAM;
    if ((rc = set_param(be, "user", h ? h->user : NULL, err)) != 0 ||
        (rc = set_param(be, "dbname", database, err)) != 0 ||
        (rc = take_libpq_params(be, err)) != 0 || (rc = read_password(be, err)) != 0 ||
        (rc = set_param(be, "password", be->password, err)) != 0 ||
        (rc = set_param(be, "password", h ? h->password : NULL, err)) != 0 ||
        /* A standby grants advisory locks that exclude no client of the primary. */
        (rc = set_param(be, "target_session_attrs", "read-write", err)) != 0 ||
        (rc = set_param(be, "client_encoding", "UTF8", err)) != 0 ||
        (rc = set_param(be, "fallback_application_name", be->app, err)) != 0)
        return rc;
    return be->advisory.fair ? set_keepalives(be, err) : 0;
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

static const char *option(const PQconninfoOption *all, const char *key)
{
    for (; all && all->keyword; all++)
        if (strcmp(all->keyword, key) == 0)
            return all->val ? all->val : "";
    return "";
}

static bool names_hosts(const struct dlock_uri *uri)
{
    return uri->nhosts > 0 && (*uri->hosts[0].host || uri->hosts[0].has_port);
}

/*
 * The hosts behind "//" as libpq's lists. Parameters replace them: "postgres://localhost/db?host=/run/postgresql" is
 * Prisma's form of a socket. For one host without a port a service or PGPORT names it; for several libpq takes 5432.
 */
static int join_hosts(struct pg_backend *be, struct dlock_error *err)
{
    const struct dlock_uri *uri = be->spec->uri;
    bool has_port = uri->nhosts > 1;
    size_t size;
    FILE *host, *port;
    if (!names_hosts(uri))
        return 0;
    host = open_memstream(&be->named.host, &size);
    port = open_memstream(&be->named.port, &size);
    for (int i = 0; i < uri->nhosts && host && port; i++) {
        fprintf(host, "%s%s", i > 0 ? "," : "", uri->hosts[i].host);
        fprintf(port, "%s%u", i > 0 ? "," : "", uri->hosts[i].port);
        has_port = has_port || uri->hosts[i].has_port;
    }
    bool ok = host && port;
    ok = host && fclose(host) == 0 && ok;
    ok = port && fclose(port) == 0 && ok;
    /* fclose() does not report that it got no memory. Without the texts we would ask another server. */
    ok = ok && be->named.host && be->named.port;
    if (ok && !has_port) {
        free(be->named.port);
        be->named.port = NULL;
    }
    return ok ? 0 : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

static const char no_such_sslmode[] = "dlock asks for the settings";

/* The settings with the hosts of the URI's parameters, and with an sslmode that does not exist. */
static void set_probe(const struct pg_backend *be, struct pg_settings *s)
{
    const char *host = dlock_uri_peek(be->spec->uri, "host"),
               *port = dlock_uri_peek(be->spec->uri, "port");
    *s = be->settings;
    s->values[PG_HOST] = host ? host : be->named.host;
    s->values[PG_HOSTADDR] = dlock_uri_peek(be->spec->uri, "hostaddr");
    s->values[PG_PORT] = port ? port : be->named.port;
    s->n = PG_FIRST_PARAM;
    for (int i = PG_FIRST_PARAM; i < be->settings.n; i++) {
        if (strcmp(be->settings.keys[i], "sslmode") == 0)
            continue;
        s->keys[s->n] = be->settings.keys[i];
        s->values[s->n++] = be->settings.values[i];
    }
    s->keys[s->n] = "sslmode";
    s->values[s->n++] = no_such_sslmode;
    s->keys[s->n] = s->values[s->n] = NULL;
}

/* libpq says 'service file "PATH" not found' whatever fopen(3) has said: without memory, too. */
static int service_file_error(const char *text)
{
    char path[PATH_MAX];
    if (sscanf(text, "service file \"%4095[^\"]\" not found", path) != 1)
        return DLOCK_EUSAGE;
    if (access(path, R_OK) == 0)
        return DLOCK_ENOMEM;
    return errno == EACCES ? DLOCK_EPERM : DLOCK_EUSAGE;
}

/* Why libpq did not get as far as the check of sslmode. text: its error. */
static int probe_error(const struct pg_backend *be, const char *text, struct dlock_error *err)
{
    char line[256];
    int code = service_file_error(text);
    dlock_clean_text(line, sizeof(line), text, strcspn(text, "\n"));
    /* It may also have got there, and then lacked the memory for its list of options. */
    if (code == DLOCK_ENOMEM || pg_conn_says_no_memory(line) || strstr(line, no_such_sslmode))
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    if (code == DLOCK_EPERM)
        return dlock_fail_at(err, code, EACCES, pg_where(be), "%.*s cannot be read: %s",
                             (int)(strlen(line) - strlen(" not found")), line, strerror(EACCES));
    return dlock_fail_at(err, code, 0, pg_where(be), "%s", line);
}

/*
 * Ask libpq what it would connect to, by the parameters of the URI, a service file, the environment and its
 * defaults. Connects to nothing, but a service can be in a directory server. 0 or a negative code.
 *
 * No call of libpq answers that: PQconninfoParse() adds no defaults; PQconndefaults() ignores the URI's service,
 * and looks up the user even if the URI names one; PQconninfo() needs a connection, and starting one looks up
 * names, which blocks. But libpq merges all sources, and checks the result before it uses any of it: so we start a
 * connection with an sslmode that does not exist. The check refuses it, and PQconninfo() has what was merged.
 */
static int start_probe(struct pg_backend *be, struct dlock_error *err)
{
    struct pg_settings probe;
    set_probe(be, &probe);
    int rc = pg_attempt_start(&be->probe, probe.keys, probe.values);
    if (rc == -ENOMEM)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    if (rc == 0)
        return 0;
    /* EAGAIN: no memory for a thread, or too many of them. */
    return dlock_fail_at(err, rc == -EAGAIN ? DLOCK_ENOMEM : DLOCK_EOS, -rc, pg_where(be),
                         "cannot start a thread to connect: %s", strerror(-rc));
}

/*
 * PQconninfo() leaves out each value that it gets no memory for, and does not say so: without the host or the port we would
 * lock in another server. So it is asked twice, and must say the same. NULL: out of memory.
 */
static PQconninfoOption *whole_info(PGconn *c)
{
    PQconninfoOption *all = PQconninfo(c), *again = PQconninfo(c);
    bool same = all && again;
    for (int i = 0; same && all[i].keyword; i++)
        same = strcmp(all[i].val ? all[i].val : "", again[i].val ? again[i].val : "") == 0;
    PQconninfoFree(again);
    if (same)
        return all;
    PQconninfoFree(all);
    return NULL;
}

/* *all: every option and its value, for PQconninfoFree(). 0 or a negative code. */
static int probe_answer(const struct pg_backend *be, PGconn *c, PQconninfoOption **all,
                        struct dlock_error *err)
{
    PQconninfoOption *options = c ? whole_info(c) : NULL;
    int rc = 0;
    if (strcmp(option(options, "sslmode"), no_such_sslmode) == 0)
        *all = options;
    else
        rc = probe_error(be, options ? PQerrorMessage(c) : "out of memory", err);
    if (rc != 0)
        PQconninfoFree(options);
    PQfinish(c);
    return rc;
}

/* Host i of libpq's lists, for connections (s) and for the core to look up (h). False: out of memory. */
static bool set_host(struct pg_settings *s, struct dlock_host *h, int i,
                     const PQconninfoOption *all)
{
    char *addr = list_part(option(all, "hostaddr"), i, false);
    char *host = list_part(option(all, "host"), i, false);
    char *port = list_part(option(all, "port"), i, true);
    bool ok = addr && host && port;
    /* Connect to the address; a name with it is for the certificate. No name is not the default socket. */
    if (ok && *addr && !*host) {
        free(host);
        host = strdup(addr);
    } else if (ok && !*addr) {
        free(addr);
        addr = strdup(host);
    }
    /* As libpq has it for an empty part of a list; an empty port alone would be that of PGPORT. */
    if (ok && !*port) {
        free(port);
        port = strdup("5432");
        ok = port;
    }
    long number = ok ? strtol(port, NULL, 10) : 0;
    h->port = number > 0 && number < 65536 ? (unsigned short)number : 5432;
    h->host = addr;
    s->hosts[i] = host;
    s->ports[i] = port;
    return addr && host && port;
}

/* Put them into the URI for the core to look up. */
static int hosts_of_libpq(struct pg_backend *be, const PQconninfoOption *all,
                          struct dlock_error *err)
{
    struct dlock_uri *uri = be->spec->uri;
    int n = be->settings.nhosts;
    bool ok = true;
    struct dlock_host *hosts = calloc((size_t)n, sizeof(*hosts));
    if (!hosts)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    for (int i = 0; i < n; i++)
        ok = set_host(&be->settings, &hosts[i], i, all) && ok;
    /* The settings point to the user and the password of the URI's first host, so these must live on. */
    if (uri->nhosts > 0) {
        hosts[0].user = uri->hosts[0].user;
        hosts[0].password = uri->hosts[0].password;
    }
    for (int i = 0; i < uri->nhosts; i++)
        free(uri->hosts[i].host);
    free(uri->hosts);
    uri->hosts = hosts;
    uri->nhosts = n;
    return ok ? dlock_uri_settle_where(uri, err)
              : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

static void free_hosts(struct pg_settings *s)
{
    for (int i = 0; i < s->nhosts; i++) {
        if (s->hosts)
            free(s->hosts[i]);
        if (s->ports)
            free(s->ports[i]);
    }
    free(s->hosts);
    free(s->ports);
    s->hosts = s->ports = NULL;
    s->nhosts = 0;
}

static int set_hosts(struct pg_backend *be, const PQconninfoOption *all, struct dlock_error *err)
{
    const char *host = option(all, "host"), *addr = option(all, "hostaddr");
    int nhosts = list_length(host), naddrs = list_length(addr);
    int n = *addr ? naddrs : nhosts, nports = list_length(option(all, "port"));
    if (*host && *addr && nhosts != naddrs)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, pg_where(be),
                             "%d host%s do not match %d hostaddr", nhosts, nhosts > 1 ? "s" : "",
                             naddrs);
    if (nports > 1 && nports != n) /* as libpq has it */
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, pg_where(be), "%d ports do not match %d host%s",
                             nports, n, n > 1 ? "s" : "");
    be->settings.hosts = calloc((size_t)n, sizeof(*be->settings.hosts));
    be->settings.ports = calloc((size_t)n, sizeof(*be->settings.ports));
    be->settings.nhosts = n;
    if (!be->settings.hosts || !be->settings.ports)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    return hosts_of_libpq(be, all, err);
}

/* Also for named hosts: errors in the rest show here. */
int pg_settings_locate(struct pg_backend *be, int *fd, struct dlock_error *err)
{
    PQconninfoOption *all = NULL;
    PGconn *c = NULL;
    int rc = 0;
    if (be->settings.nhosts > 0)
        return 1;
    if (!be->probe)
        rc = start_probe(be, err);
    if (rc == 0 && !pg_attempt_take(be->probe, &c)) {
        *fd = pg_attempt_fd(be->probe);
        return 0;
    }
    if (rc == 0) {
        be->probe = NULL;
        rc = probe_answer(be, c, &all, err);
    }
    if (rc != 0)
        return rc;
    rc = set_hosts(be, all, err);
    if (rc != 0)
        free_hosts(&be->settings);
    PQconninfoFree(all);
    return rc == 0 ? 1 : rc;
}

/* ---------------------------------------------------------------------- key */

/* One bigint or two ints, as pg_advisory_lock takes them. */
static int parse_key(struct pg_backend *be, const char *text, struct dlock_error *err)
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
        return dlock_fail_at(
            err, DLOCK_EUSAGE, 0, pg_where(be),
            "key=%.40s: expected one 64-bit number, or two 32-bit numbers and a comma", text);
    if (two) {
        snprintf(be->advisory.key, sizeof(be->advisory.key), "'%lld'::int, '%lld'::int", a, b);
        snprintf(be->advisory.number, sizeof(be->advisory.number), "%lld,%lld", a, b);
    } else {
        snprintf(be->advisory.number, sizeof(be->advisory.number), "%lld", a);
        snprintf(be->advisory.key, sizeof(be->advisory.key), "'%lld'::bigint", a);
        b = (long long)(uint32_t)a;
        a = (long long)((uint64_t)a >> 32);
    }
    snprintf(be->advisory.key_id, sizeof(be->advisory.key_id), "%08x%08x.%d", (unsigned)(uint32_t)a,
             (unsigned)(uint32_t)b, two ? 2 : 1);
    be->advisory.high = (uint32_t)a;
    be->advisory.low = (uint32_t)b;
    be->advisory.sub = two ? 2 : 1;
    return 0;
}

/*
 * The first eight bytes of SHA-256(name), big-endian. Lease mode hashes the table's name as well, and uses it only
 * so that sessions find each other. Not OpenSSL's SHA-256: it would read its configuration and initialise all of
 * itself, a millisecond or two that a connection without TLS and password need not spend.
 */
static int set_key(struct pg_backend *be, struct dlock_error *err)
{
    const char *name = be->spec->uri->name, *given = param(be->spec, "key");
    uint8_t hash[SHA256_DIGEST_LENGTH];
    SHA2_CTX sha;
    uint64_t n = 0;
    char text[1024];
    int len = snprintf(text, sizeof(text), "%s%s%s", be->table.name ? be->table.name : "",
                       be->table.name ? "#" : "", name);

    SHA256Init(&sha);
    SHA256Update(&sha, (const uint8_t *)text, (size_t)len);
    SHA256Final(hash, &sha);
    for (int i = 0; i < 8; i++)
        n = n << 8 | hash[i];
    snprintf(be->app, sizeof(be->app), "dlock:%016llx", (unsigned long long)n);
    snprintf(be->table.channel, sizeof(be->table.channel), "dlock_%016llx_", (unsigned long long)n);
    snprintf(text, sizeof(text), "%lld", (long long)(int64_t)n);
    int rc = parse_key(be, given ? given : text, err);
    if (rc == 0)
        pg_keys_init(be, given != NULL);
    return rc;
}

/* ------------------------------------------------------------------- options */

static int read_flag(const struct dlock_spec *spec, const char *key, bool *flag,
                     struct dlock_error *err)
{
    const char *v = param(spec, key);
    if (v && strcmp(v, "0") != 0 && strcmp(v, "1") != 0)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, spec->uri->where, "%s=%.40s: expected 0 or 1",
                             key, v);
    *flag = v && *v == '1';
    return 0;
}

/* "schema.name" and a suffix, each part quoted; malloc'ed; NULL: out of memory. */
static char *quote_table(const char *text, const char *dot, const char *suffix)
{
    char *out = NULL;
    size_t size;
    FILE *f = open_memstream(&out, &size);
    if (!f)
        return NULL;
    fputc('"', f);
    for (const char *p = text; *p; p++)
        fputs(p == dot ? "\".\"" : *p == '"' ? "\"\"" : (char[]){*p, '\0'}, f);
    fprintf(f, "%s\"", suffix);
    /* fclose() shrinks the memory to the used size, and does not report when that fails. */
    return fclose(f) == 0 ? out : NULL;
}

/* The schema is required: a search_path may differ from role to role. */
static int set_table(struct pg_backend *be, const char *text, struct dlock_error *err)
{
    const char *dot = strchr(text, '.');
    if (!dot || dot == text || !dot[1] || strchr(dot + 1, '.') || strlen(text) > 127)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, pg_where(be),
                             "table=%.80s: expected SCHEMA.NAME", text);
    /* The server would cut the second table's name, perhaps to that of the first. */
    if (be->spec->mode != DLOCK_MODE_EXCLUSIVE && strlen(dot + 1) + strlen(HOLDERS_SUFFIX) > 63)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, pg_where(be),
                             "table=%.80s: with shared locks and slots the name may have %d bytes",
                             text, 63 - (int)strlen(HOLDERS_SUFFIX));
    if (be->spec->once > 0 && strlen(dot + 1) + strlen(RUNS_SUFFIX) > 63)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, pg_where(be),
                             "table=%.80s: with run records the name may have %d bytes", text,
                             63 - (int)strlen(RUNS_SUFFIX));
    be->table.name = quote_table(text, dot, "");
    be->table.holders = quote_table(text, dot, HOLDERS_SUFFIX);
    be->table.runs = quote_table(text, dot, RUNS_SUFFIX);
    return be->table.name && be->table.holders && be->table.runs
               ? 0
               : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

/* A parameter that would have no effect is a mistake of the user. */
static int check_mode_params(const struct pg_backend *be, bool lease, struct dlock_error *err)
{
    static const struct {
        const char *key;
        bool lease;
    } only[] = {
        {"table", true}, {"table-owner", true}, {"key", false}, {"fair", false}, {"renew", false}};
    for (size_t i = 0; i < DLOCK_LEN(only); i++)
        if (only[i].lease != lease && dlock_uri_peek(be->spec->uri, only[i].key))
            return dlock_fail_at(err, DLOCK_EUSAGE, 0, pg_where(be), "%s= applies only to mode=%s",
                                 only[i].key, only[i].lease ? "lease" : "advisory");
    return 0;
}

int pg_no_records(const struct pg_backend *be, struct dlock_error *err)
{
    return dlock_fail_at(err, DLOCK_EUSAGE, 0, pg_where(be),
                         "an advisory lock has no place for a run record: that needs "
                         "?mode=lease in the URI");
}

static int check_kind(const struct pg_backend *be, const char *mode, struct dlock_error *err)
{
    enum dlock_mode kind = be->spec->mode;
    unsigned needed = kind == DLOCK_MODE_SHARED  ? CAP_SHARED
                      : kind == DLOCK_MODE_SLOTS ? CAP_SLOTS
                                                 : 0;
    if (be->spec->once > 0 && !(be->protocol->kinds & CAP_ONCE))
        return pg_no_records(be, err);
    if (!(needed & ~be->protocol->kinds))
        return 0;
    return dlock_fail_at(err, DLOCK_EUSAGE, 0, pg_where(be), "%s not available with mode=%s",
                         kind == DLOCK_MODE_SHARED ? "shared locks are" : "slots are", mode);
}

static int set_mode(struct pg_backend *be, struct dlock_error *err)
{
    const struct dlock_spec *spec = be->spec;
    const char *mode = param(spec, "mode"), *table = param(spec, "table");
    const char *owner = param(spec, "table-owner");
    bool lease = mode && strcmp(mode, "lease") == 0;
    if (mode && !lease && strcmp(mode, "advisory") != 0)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, pg_where(be),
                             "mode=%.40s: expected advisory or lease", mode);
    be->protocol = lease ? &pg_table : &pg_advisory;
    be->table.shared = &pg_table_shared;
    be->table.more = &pg_table_runs;
    be->table.owner = owner ? owner : "";
    int rc = check_mode_params(be, lease, err);
    if (rc == 0)
        rc = check_kind(be, mode ? mode : "advisory", err);
    return rc == 0 && lease ? set_table(be, table ? table : "public.dlock_locks", err) : rc;
}

static int set_options(struct pg_backend *be, struct dlock_error *err)
{
    const struct dlock_spec *spec = be->spec;
    const char *grace = param(spec, "restart-grace"), *renew = param(spec, "renew");
    int rc = grace ? dlock_parse_duration(grace, &be->restart_grace, err) : 0;
    if (rc == 0)
        rc = read_flag(spec, "fair", &be->advisory.fair, err);
    if (rc == 0 && renew && strcmp(renew, "write") != 0 && strcmp(renew, "read") != 0)
        rc = dlock_fail_at(err, DLOCK_EUSAGE, 0, pg_where(be),
                           "renew=%.40s: expected read or write", renew);
    be->advisory.renew_writes = renew && strcmp(renew, "write") == 0;
    return rc;
}

int pg_settings_init(struct pg_backend *be, struct dlock_error *err)
{
    const struct dlock_spec *spec = be->spec;
    int rc;
    if (spec->ttl > TTL_MAX)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, pg_where(be),
                             "the ttl is too long: PostgreSQL can time 24 days at most");
    if ((rc = set_mode(be, err)) != 0 || (rc = set_options(be, err)) != 0 ||
        (rc = set_key(be, err)) != 0 || (rc = set_params(be, err)) != 0)
        return rc;
    return join_hosts(be, err);
}

void pg_settings_done(struct pg_backend *be)
{
    pg_attempt_drop(be->probe);
    free_hosts(&be->settings);
    free(be->named.host);
    free(be->named.port);
    if (be->password)
        explicit_bzero(be->password, strlen(be->password));
    free(be->password);
    free(be->table.name);
    free(be->table.holders);
    free(be->table.runs);
}
