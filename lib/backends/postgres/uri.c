/*
 * uri.c - what the URI says about a PostgreSQL server, and what libpq adds to the URI.
 *
 * libpq's own parameters go to libpq unchanged. The core looks up the names of hosts: of the URI,
 * or of libpq's variables. Only libpq can read a service; the hosts of a service are left to libpq.
 */
#include "postgres.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

/* idle_session_timeout is an int in milliseconds: 24.8 days at most. */
#define TTL_MAX (24 * 86400 * DLOCK_SEC)
/* The names of the second and the third table are the name of the first table and a suffix. */
#define HOLDERS_SUFFIX "_holders"
#define RUNS_SUFFIX "_runs"

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
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store), "too many parameters");
    s->keys[i] = key;
    s->values[i] = value;
    s->n = (int)dlock_max(s->n, i + 1);
    return 0;
}

/* The value that libpq uses without a service: parameter, else variable, else libpq's default. */
static const char *option(const struct pg_backend *be, const PQconninfoOption *known,
                          const char *key)
{
    const struct pg_settings *s = &be->settings;
    const PQconninfoOption *o = pg_option(known, key);
    const char *value = dlock_uri_peek(be->store.spec->uri, key);
    for (int i = PG_FIRST_PARAM; i < s->n; i++)
        if (strcmp(s->keys[i], key) == 0)
            value = s->values[i];
    /* To libpq an empty parameter is not given, but an empty variable is. */
    if ((!value || !*value) && o && (!o->envvar || !(value = getenv(o->envvar))))
        value = o->compiled;
    return value ? value : "";
}

/*
 * libpq's default is to prefer GSS encryption. A user with a Kerberos ticket, perhaps for other
 * purposes, would wait for the Kerberos server at each connection. A default of our own must yield
 * to the URI, to a service and to the variable. A parameter wins over all of them, so set the
 * parameter only where none of them can say anything. A service's setting cannot be told from
 * libpq's default: with a service set the variable, which yields to the service.
 */
static int set_gss_default(struct pg_backend *be, const PQconninfoOption *known,
                           struct dlock_error *err)
{
    /* To libpq an empty parameter is not given. */
    const char *given = dlock_uri_peek(be->store.spec->uri, "gssencmode");
    if ((given && *given) || getenv("PGGSSENCMODE") || !pg_option(known, "gssencmode"))
        return 0;
    if (!be->settings.service)
        return set_param(be, "gssencmode", "disable", err);
    return setenv("PGGSSENCMODE", "disable", 0) == 0
               ? 0
               : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

static int set_libpq_params(struct pg_backend *be, const PQconninfoOption *known,
                            struct dlock_error *err)
{
    struct dlock_uri *uri = be->store.spec->uri;
    bool no_table = be->store.sql && !dlock_uri_peek(uri, "table");
    const char *sslmode = NULL, *service = dlock_uri_peek(uri, "service");
    be->settings.service = (service && *service) || getenv("PGSERVICE");
    for (const PQconninfoOption *o = known; o->keyword; o++) {
        (void)dlock_uri_param(uri, o->keyword);
        dlock_uri_known(uri, o->keyword);
    }
    int rc = pg_foreign_params(uri, no_table, &sslmode, err);
    for (int i = 0; i < uri->nparams && rc == 0; i++) {
        struct dlock_param *p = &uri->params[i];
        /*
         * pg_foreign_params() has renamed some. set_hosts() reads the address, which each
         * connection has.
         */
        if (!pg_option(known, p->key))
            continue;
        p->used = true;
        if (strcmp(p->key, "host") != 0 && strcmp(p->key, "hostaddr") != 0 &&
            strcmp(p->key, "port") != 0)
            rc = set_param(be, p->key, p->value, err);
    }
    if (rc == 0)
        rc = set_gss_default(be, known, err);
    return rc == 0 ? set_param(be, "sslmode", sslmode, err) : rc;
}

/* Is the folder or file on a local file system, which does not wait for a server? */
static bool is_local_disk(const char *path)
{
    static const uint32_t local[] = {
        0xEF53,     /* ext4 */
        0x58465342, /* XFS */
        0x9123683E, /* Btrfs */
        0x01021994, /* tmpfs */
        0x794C7630, /* overlayfs */
        0x2FC12FC1, /* ZFS */
        0xF2F52010, /* F2FS */
    };
    struct statfs fs;
    if (statfs(path, &fs) != 0)
        return false;
    for (size_t i = 0; i < DLOCK_LEN(local); i++)
        if ((uint32_t)fs.f_type == local[i])
            return true;
    return false;
}

/*
 * Can libpq block before the server has said anything? A service may be in a directory server, and
 * names the hosts; GSS encryption asks a Kerberos server; without a user, a home directory or for
 * requirepeer libpq asks the user database; the password file may be remote. (libpq looks into
 * $HOME since 15.) sslnegotiation=direct begins with TLS, which attempt.c leaves to a thread.
 */
static bool may_block(const struct pg_backend *be, const PQconninfoOption *known)
{
    const char *file = option(be, known, "passfile"), *home = getenv("HOME");
    if (be->settings.service || strcmp(option(be, known, "gssencmode"), "disable") != 0 ||
        !*option(be, known, "user") || *option(be, known, "requirepeer") ||
        strcmp(option(be, known, "sslnegotiation"), "direct") == 0)
        return true;
    if (*option(be, known, "password"))
        return false;
    if (!*file && PQlibVersion() >= 150000)
        file = home;
    return !file || !*file || !is_local_disk(file);
}

/*
 * Variables that name a file, or a host for the passwords in one, must not come from a user with
 * fewer rights; a key that loads code from no user.
 */
static int check_trust(const struct pg_backend *be, const PQconninfoOption *known,
                       struct dlock_error *err)
{
    static const char *const names[] = {
        "PGSERVICE",       "PGSERVICEFILE",   "PGSYSCONFDIR",  "PGPASSFILE",  "PGSSLKEY",
        "PGSSLCERT",       "PGSSLROOTCERT",   "PGSSLCRL",      "PGSSLCRLDIR", "PGHOSTADDR",
        "PGGSSDELEGATION", "PGSSLKEYLOGFILE", "PGOAUTHCAFILE", "PGLOCALEDIR"};
    for (size_t i = 0; i < DLOCK_LEN(names) && dlock_env_is_foreign(); i++)
        if (getenv(names[i]))
            return dlock_fail_at(err, DLOCK_EPERM, 0, sql_where(&be->store),
                                 "%s was set by a user with fewer rights (sudo): unset it, and "
                                 "write what it says into the URI",
                                 names[i]);
    if (pg_loads_code(option(be, known, "sslkey")))
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store), PG_LOADS_CODE);
    return 0;
}

/* The parameters of the URI, and then what we need. */
static int set_params(struct pg_backend *be, const PQconninfoOption *known, struct dlock_error *err)
{
    const struct dlock_uri *uri = be->store.spec->uri;
    const struct dlock_host *h = uri->nhosts > 0 ? &uri->hosts[0] : NULL;
    const char *database = uri->path[0] == '/' && uri->path[1] ? uri->path + 1 : NULL;
    int rc;
    be->settings.password_file = dlock_uri_param(be->store.spec->uri, "password-file");
    be->settings.keys[PG_HOST] = "host";
    be->settings.keys[PG_HOSTADDR] = "hostaddr";
    be->settings.keys[PG_PORT] = "port";
    be->settings.keys[PG_TARGET] = "target_session_attrs";
    be->settings.n = PG_TARGET + 1;
    if ((rc = set_param(be, "user", h ? h->user : NULL, err)) != 0 ||
        (rc = set_param(be, "dbname", database, err)) != 0 ||
        (rc = set_libpq_params(be, known, err)) != 0 || (rc = check_trust(be, known, err)) != 0 ||
        (rc = pg_read_password(&be->settings, err)) != 0 ||
        (rc = set_param(be, "password", be->settings.password, err)) != 0 ||
        (rc = set_param(be, "password", h ? h->password : NULL, err)) != 0 ||
        (rc = set_param(be, "target_session_attrs", PG_WRITABLE, err)) != 0 ||
        (rc = set_param(be, "client_encoding", "UTF8", err)) != 0 ||
        (rc = set_param(be, "fallback_application_name", be->session, err)) != 0)
        return rc;
    be->settings.thread = may_block(be, known);
    /* Only keepalives tell a waiter in a long query within about a ttl of a lost server. */
    struct pg_keepalives k = pg_keepalives(be->store.spec->ttl);
    const struct {
        const char *key;
        int64_t value;
    } all[] = {{"keepalives_idle", k.idle},
               {"keepalives_interval", k.interval},
               {"keepalives_count", k.count}};
    for (size_t i = 0; i < DLOCK_LEN(all) && be->advisory.fair && rc == 0; i++) {
        snprintf(be->keepalive[i], sizeof(be->keepalive[i]), "%" PRId64, all[i].value);
        rc = set_param(be, all[i].key, be->keepalive[i], err);
    }
    return rc;
}

/* -------------------------------------------------------------------- hosts */

/* libpq's lists "a,b,c". */
struct address_lists {
    const char *host, *addr, *port;
};

/* Part n of a list, malloc'ed; "" past the end. one_for_all: a single part holds for all n. */
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

/* The hosts or ports behind "//" as libpq's list, malloc'ed. */
static char *join(const struct dlock_uri *uri, bool ports)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    for (int i = 0; f && i < uri->nhosts; i++) {
        fputs(i > 0 ? "," : "", f);
        if (ports)
            fprintf(f, "%u", uri->hosts[i].port);
        else
            fputs(uri->hosts[i].host, f);
    }
    return f && fclose(f) == 0 ? text : NULL;
}

/* Host i of libpq's lists, to connect (s) and for the core to look up (h). False: no memory. */
static bool set_host(struct pg_settings *s, struct dlock_host *h, int i,
                     const struct address_lists *all)
{
    char *addr = list_part(all->addr, i, false);
    char *host = list_part(all->host, i, false);
    char *port = list_part(all->port, i, true);
    bool ok = addr && host && port;
    /* A name beside an address is for the certificate. No name is not the default socket. */
    if (ok && *addr && !*host) {
        free(host);
        host = strdup(addr);
    } else if (ok && !*addr) {
        free(addr);
        addr = strdup(host);
    }
    /* libpq's rule for an empty part of a list; a single empty port would mean PGPORT. */
    if (ok && !*port && *all->port) {
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

/*
 * The hosts of the URI, else of libpq's variables; put them into the URI for the core to look up.
 * With a service an empty host or port is left to libpq, which takes the service's.
 *
 * Parameters replace what stands behind "//": "postgres://localhost/db?host=/run/postgresql" is
 * Prisma's form of a socket. A service or PGPORT names the port of a single host without a port;
 * for several hosts libpq takes 5432.
 */
static int set_hosts(struct pg_backend *be, const PQconninfoOption *known, struct dlock_error *err)
{
    struct dlock_uri *uri = be->store.spec->uri;
    struct pg_settings *s = &be->settings;
    const char *host = dlock_uri_peek(uri, "host"), *port = dlock_uri_peek(uri, "port");
    const char *addr = dlock_uri_peek(uri, "hostaddr");
    bool named = uri->nhosts > 0 && (*uri->hosts[0].host || uri->hosts[0].has_port);
    bool has_port = named && (uri->nhosts > 1 || uri->hosts[0].has_port);
    if ((named && !(be->named.host = join(uri, false))) ||
        (has_port && !(be->named.port = join(uri, true))))
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    struct address_lists all = {.host = host             ? host
                                        : be->named.host ? be->named.host
                                                         : "",
                                .addr = addr ? addr : "",
                                .port = port             ? port
                                        : be->named.port ? be->named.port
                                                         : ""};
    if (!s->service) {
        all.host = *all.host ? all.host : option(be, known, "host");
        all.addr = *all.addr ? all.addr : option(be, known, "hostaddr");
        all.port = *all.port ? all.port : option(be, known, "port");
    }
    s->by_libpq =
        s->service && !*all.host && !*all.addr && !dlock_uri_peek(uri, "tcp_user_timeout");
    int rc = s->by_libpq ? set_param(be, "tcp_user_timeout", PG_SERVICE_PATIENCE, err) : 0;
    if (rc != 0)
        return rc;
    int nhosts = list_length(all.host), naddrs = list_length(all.addr);
    int n = *all.addr ? naddrs : nhosts, nports = list_length(all.port);
    if (*all.host && *all.addr && nhosts != naddrs)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store),
                             "%d host%s do not match %d hostaddr", nhosts, nhosts > 1 ? "s" : "",
                             naddrs);
    if (nports > 1 && nports != n) /* libpq's rule */
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store),
                             "%d ports do not match %d host%s", nports, n, n > 1 ? "s" : "");
    struct dlock_host *hosts = calloc((size_t)n, sizeof(*hosts));
    s->hosts = calloc((size_t)n, sizeof(*s->hosts));
    s->ports = calloc((size_t)n, sizeof(*s->ports));
    s->nhosts = n;
    bool ok = hosts && s->hosts && s->ports;
    for (int i = 0; i < n && ok; i++)
        ok = set_host(s, &hosts[i], i, &all);
    /* The settings point to the user and the password of the URI's first host: keep both. */
    if (hosts && uri->nhosts > 0) {
        hosts[0].user = uri->hosts[0].user;
        hosts[0].password = uri->hosts[0].password;
    }
    if (hosts) {
        for (int i = 0; i < uri->nhosts; i++)
            free(uri->hosts[i].host);
        free(uri->hosts);
        uri->hosts = hosts;
        uri->nhosts = n;
    }
    const char *database = option(be, known, "dbname");
    if (ok && !s->service && strlen(uri->path) <= 1 && *database) { /* for messages */
        free(uri->path);
        ok = asprintf(&uri->path, "/%s", database) >= 0;
        uri->path = ok ? uri->path : NULL;
    }
    return ok ? dlock_uri_settle_where(uri, err)
              : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
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
            err, DLOCK_EUSAGE, 0, sql_where(&be->store),
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
 * The key is the hash of the name. Lease mode hashes the table's name as well, only to let sessions
 * find each other.
 */
static int set_key(struct pg_backend *be, struct dlock_error *err)
{
    const char *name = be->store.spec->uri->name,
               *given = dlock_uri_param(be->store.spec->uri, "key");
    char text[1024];
    int len = snprintf(text, sizeof(text), "%s%s%s%cline",
                       be->store.table.name ? be->store.table.name : "",
                       be->store.table.name ? "#" : "", name, '\0');
    uint64_t n = pg_hash(text, strlen(text));
    be->lease.line_key = (int64_t)pg_hash(text, (size_t)len); /* no name contains NUL */
    snprintf(be->app, sizeof(be->app), "dlock:%016llx", (unsigned long long)n);
    /* Plain characters, of which neither a comment's end nor a secret can be made. */
    bool plain = name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                   "0123456789-._~/:,+")] == '\0';
    len = snprintf(be->session, sizeof(be->session), SESSION_NAME "%s", name);
    if (!plain || len >= (int)sizeof(be->session))
        memcpy(be->session, be->app, sizeof(be->app));
    snprintf(be->lease.channel, sizeof(be->lease.channel), "dlock_%016llx_", (unsigned long long)n);
    snprintf(text, sizeof(text), "%lld", (long long)(int64_t)n);
    int rc = parse_key(be, given ? given : text, err);
    if (rc == 0)
        pg_keys_init(be, given != NULL);
    return rc;
}

/* ------------------------------------------------------------------- options */

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
    /* fclose() shrinks the memory to the used size, and reports no failure. */
    return fclose(f) == 0 ? out : NULL;
}

/* The schema is required: a search_path may differ from role to role. */
static int set_table(struct pg_backend *be, const char *text, struct dlock_error *err)
{
    struct table_state *table = &be->store.table;
    const char *dot = strchr(text, '.');
    if (!dot || dot == text || !dot[1] || strchr(dot + 1, '.') || strlen(text) > 127 ||
        strpbrk(text, "\r\n"))
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store),
                             "table=%.80s: expected SCHEMA.NAME", text);
    /* The server would cut the name of a second table, perhaps to the name of the first. */
    const struct {
        bool used;
        const char *suffix, *what;
    } more[] = {
        {be->store.spec->mode != DLOCK_MODE_EXCLUSIVE, HOLDERS_SUFFIX, "shared locks and slots"},
        {be->store.spec->once > 0, RUNS_SUFFIX, "run records"}};
    for (size_t i = 0; i < DLOCK_LEN(more); i++)
        if (more[i].used && strlen(dot + 1) + strlen(more[i].suffix) > 63)
            return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store),
                                 "table=%.80s: with %s the name may have %d bytes", text,
                                 more[i].what, 63 - (int)strlen(more[i].suffix));
    table->name = quote_table(text, dot, "");
    table->holders = quote_table(text, dot, HOLDERS_SUFFIX);
    table->runs = quote_table(text, dot, RUNS_SUFFIX);
    if (table->name)
        table->schema =
            strndup(table->name, (size_t)(strstr(table->name, "\".\"") + 1 - table->name));
    const char *role = dlock_uri_peek(be->store.spec->uri, "user");
    if (!role && be->store.spec->uri->nhosts > 0)
        role = be->store.spec->uri->hosts[0].user;
    table->role = role ? quote_table(role, NULL, "") : NULL;
    return table->schema && table->holders && table->runs && (!role || table->role)
               ? 0
               : dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
}

int pg_no_records(const struct sql_store *be, struct dlock_error *err)
{
    return dlock_fail_at(
        err, DLOCK_EUSAGE, 0, sql_where(be),
        "an advisory lock has no place for a run record: write " URI_PARAM("?mode=lease"));
}

static int set_mode(struct pg_backend *be, struct dlock_error *err)
{
    static const struct {
        const char *key;
        bool lease;
    } only[] = {
        {"table", true}, {"table-owner", true}, {"key", false}, {"fair", false}, {"renew", false}};
    const struct dlock_spec *spec = be->store.spec;
    const char *mode = dlock_uri_param(spec->uri, "mode"),
               *table = dlock_uri_param(spec->uri, "table");
    const char *owner = dlock_uri_param(spec->uri, "table-owner");
    bool lease = mode && strcmp(mode, "lease") == 0;
    if (mode && !lease && strcmp(mode, "advisory") != 0)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store),
                             "mode=%.40s: expected advisory or lease", mode);
    be->store.protocol = lease ? &table_lease : &pg_advisory;
    be->store.sql = lease ? &pg_lease : NULL;
    be->lease.owner = owner ? owner : "";
    /* A parameter that would have no effect is a mistake of the user. */
    for (size_t i = 0; i < DLOCK_LEN(only); i++)
        if (only[i].lease != lease && dlock_uri_peek(spec->uri, only[i].key))
            return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store),
                                 "%s= applies only to mode=%s", only[i].key,
                                 only[i].lease ? "lease" : "advisory");
    if (spec->once > 0 && be->store.protocol->session)
        return pg_no_records(&be->store, err);
    return lease ? set_table(be, table ? table : "public.dlock_locks", err) : 0;
}

static int set_options(struct pg_backend *be, struct dlock_error *err)
{
    const struct dlock_spec *spec = be->store.spec;
    const char *grace = dlock_uri_param(spec->uri, "restart-grace"),
               *renew = dlock_uri_param(spec->uri, "renew");
    const char *fair = dlock_uri_param(spec->uri, "fair");
    int rc = grace ? dlock_parse_duration(grace, &be->store.restart_grace, err) : 0;
    if (rc == 0 && fair && strcmp(fair, "0") != 0 && strcmp(fair, "1") != 0)
        rc = dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store),
                           "fair=%.40s: expected 0 or 1", fair);
    if (rc == 0 && renew && strcmp(renew, "write") != 0 && strcmp(renew, "read") != 0)
        rc = dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store),
                           "renew=%.40s: expected read or write", renew);
    be->advisory.fair = fair && *fair == '1';
    be->advisory.renew_writes = renew && strcmp(renew, "write") == 0;
    return rc;
}

int pg_settings_init(struct pg_backend *be, struct dlock_error *err)
{
    const struct dlock_spec *spec = be->store.spec;
    int rc;
    if (spec->ttl > TTL_MAX)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, sql_where(&be->store),
                             "the ttl is too long: PostgreSQL can time 24 days at most");
    if ((rc = set_mode(be, err)) != 0 || (rc = set_options(be, err)) != 0 ||
        (rc = set_key(be, err)) != 0)
        return rc;
    /* Not PQconndefaults(), which looks up the user, perhaps in a directory server. */
    PQconninfoOption *known = PQconninfoParse("", NULL);
    if (!known)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    rc = set_params(be, known, err);
    if (rc == 0)
        rc = set_hosts(be, known, err);
    PQconninfoFree(known);
    return rc;
}

void pg_settings_done(struct pg_backend *be)
{
    struct pg_settings *s = &be->settings;
    for (int i = 0; i < s->nhosts; i++) {
        free(s->hosts ? s->hosts[i] : NULL);
        free(s->ports ? s->ports[i] : NULL);
    }
    free(s->hosts);
    free(s->ports);
    free(be->named.host);
    free(be->named.port);
    dlock_wipe(s->password);
}
