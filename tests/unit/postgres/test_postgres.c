/*
 * test_postgres.c - the PostgreSQL backend without a server: the settings that come from the URI
 * and from libpq, and the holder record in answers to --status.
 *
 * tags: thread
 */
#include "unit.h"

#include "backends/postgres/postgres.h"
#include "uri.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Of the test that runs, or of the last test. */
static struct user {
    struct dlock_uri *uri;
    struct dlock_spec spec;
    struct dlock_identity identity;
    struct pg_backend be;
    struct dlock_error err;
    char text[256]; /* of open_query() */
} u;

static void clean_environment(void)
{
    static const char *const names[] = {
        "PGHOST",       "PGHOSTADDR",    "PGPORT",     "PGUSER",     "PGDATABASE",
        "PGSERVICE",    "PGSERVICEFILE", "PGPASSWORD", "PGPASSFILE", "PGTARGETSESSIONATTRS",
        "PGGSSENCMODE", "PGSSLKEY",      "SUDO_UID"};
    for (size_t i = 0; i < DLOCK_LEN(names); i++)
        unsetenv(names[i]);
}

/* Connects to nothing; 0 or the code. */
static int open_uri(const char *text)
{
    pg_settings_done(&u.be);
    struct table_state *table = &u.be.store.table;
    char *const texts[] = {table->name, table->holders, table->runs, table->schema, table->role};
    for (size_t i = 0; i < DLOCK_LEN(texts); i++)
        free(texts[i]);
    dlock_uri_free(u.uri);
    memset(&u, 0, sizeof(u));
    int rc = dlock_uri_parse(&u.uri, text, &u.err);
    if (rc != 0)
        return rc;
    dlock_identity_init(&u.identity, "unit", "");
    u.spec = (struct dlock_spec){
        .env = &dlock_env_system,
        .uri = u.uri,
        .ttl = 30 * DLOCK_SEC,
        .connect_timeout = 5 * DLOCK_SEC,
        .op_timeout = DLOCK_SEC,
        .identity = &u.identity,
    };
    u.be.store.spec = &u.spec;
    return pg_settings_init(&u.be, &u.err);
}

static int open_query(const char *query)
{
    char text[sizeof(u.text)];
    snprintf(text, sizeof(text), "postgres://h/db?%s#n", query);
    int rc = open_uri(text);
    memcpy(u.text, text, sizeof(text));
    return rc;
}

/* The value that libpq will get; NULL: none. */
static const char *given(const char *key)
{
    const struct pg_settings *s = &u.be.settings;
    for (int i = PG_FIRST_PARAM; i < s->n; i++)
        if (strcmp(s->keys[i], key) == 0)
            return s->values[i];
    return NULL;
}

/* ---------------------------------------------------------------------- keys */

TEST(key_of_a_name_is_the_first_half_of_its_sha256)
{
    REQUIRE_INT(open_uri("postgres://h/db#nightly"), 0);
    /* printf nightly | sha256sum */
    CHECK_STR(u.be.app, "dlock:2a3b62b53ddb9f16");
    CHECK_STR(given("fallback_application_name"), "dlock: nightly");
    CHECK_STR(u.be.advisory.key, "'3043134503785307926'::bigint");
    CHECK_STR(u.be.advisory.key_id, "2a3b62b53ddb9f16.1");
    CHECK_INT(u.be.advisory.high, 708534965);
    CHECK_INT(u.be.advisory.low, 1037803286);
    CHECK_INT(u.be.advisory.sub, 1);
    /* printf '"public"."dlock_locks"#nightly\\0line' | sha256sum */
    REQUIRE_INT(open_uri("postgres://h/db?mode=lease#nightly"), 0);
    CHECK_INT(u.be.lease.line_key, 6920429813197678385);
}

TEST(takes_keys_of_other_programs)
{
    static const struct {
        const char *query, *key, *id;
    } good[] = {
        {"key=0", "'0'::bigint", "0000000000000000.1"},
        {"key=42", "'42'::bigint", "000000000000002a.1"},
        {"key=-1", "'-1'::bigint", "ffffffffffffffff.1"},
        {"key=4294967298", "'4294967298'::bigint", "0000000100000002.1"},
        {"key=1,2", "'1'::int, '2'::int", "0000000100000002.2"},
        {"key=-1,-2", "'-1'::int, '-2'::int", "fffffffffffffffe.2"},
        {"key=9223372036854775807", "'9223372036854775807'::bigint", "7fffffffffffffff.1"},
        {"key=-9223372036854775808", "'-9223372036854775808'::bigint", "8000000000000000.1"},
        {"key=2147483647,-2147483648", "'2147483647'::int, '-2147483648'::int",
         "7fffffff80000000.2"},
    };
    for (size_t i = 0; i < DLOCK_LEN(good); i++) {
        if (!CHECK_INT(open_query(good[i].query), 0))
            printf("# %s: %s\n", u.text, u.err.msg);
        CHECK_STR(u.be.advisory.key, good[i].key);
        CHECK_STR(u.be.advisory.key_id, good[i].id);
    }
}

TEST(refuses_malformed_parameters)
{
    /* clang-format off */
    static const char *const bad[] = {
        "key=", "key=x", "key=1x", "key=x1", "key=1,", "key=,1", "key=,", "key=1,2,3", "key=1,x",
        "key=-", "key=1,-", "key=-,1", "key=+1", "key=%201", "key=1%20", "key=1,%202", "key=0x10",
        "key=--1", "key=1.0", "key=1;2", "key=1'::int)--", "key=9223372036854775808",
        "key=-9223372036854775809", "key=2147483648,1", "key=1,2147483648", "key=-2147483649,1",
        "key=1,-2147483649", "key=99999999999999999999999999", "key=1,99999999999999999999999999",
        "mode=x", "mode=", "fair=2", "fair=", "renew=x", "restart-grace=x", "table=public.x",
        "table=a.b&mode=advisory", "table-owner=a",
        "key=1&mode=lease", "fair=1&mode=lease", "renew=write&mode=lease",
        "restart-grace=x&mode=lease", "table=x&mode=lease", "table=.x&mode=lease",
        "table=x.&mode=lease", "table=a.b.c&mode=lease"};
    /* clang-format on */
    for (size_t i = 0; i < DLOCK_LEN(bad); i++) {
        char key[32];
        snprintf(key, sizeof(key), "%.*s", (int)strcspn(bad[i], "=") + 1, bad[i]);
        if (!CHECK_INT(open_query(bad[i]), DLOCK_EUSAGE))
            printf("# %s gave %s\n", u.text, u.be.advisory.key);
        CHECK_HAS(u.err.msg, strcmp(key, "restart-grace=") == 0 ? "duration" : key);
    }
}

/* --------------------------------------------------------------------- hosts */

TEST(takes_user_password_and_database_from_the_uri)
{
    REQUIRE_INT(open_uri("postgres://joe:s3cret@a:1111,b:2222,[::1]:3333/db#n"), 0);
    CHECK_STR(given("user"), "joe");
    CHECK_STR(given("password"), "s3cret");
    CHECK_STR(given("dbname"), "db");
    CHECK_STR(given("target_session_attrs"), "read-write");
    CHECK_STR(given("client_encoding"), "UTF8");
    CHECK(!strstr(u.uri->where, "s3cret"));
}

TEST(parameters_of_other_programs)
{
    static const struct {
        const char *query;
        const char *sslmode; /* accepted: what libpq is given, "" for nothing; NULL: refused */
        const char *ignored; /* the names; of what is refused: a part of the message */
    } rows[] = {
        {"pool=5&pool_size=5&max_overflow=1&pool_timeout=3", "",
         "pool, pool_size, max_overflow, pool_timeout"},
        {"connection_limit=1&pgbouncer=true&statement_cache_size=0&socket_timeout=3", "",
         "connection_limit, pgbouncer, statement_cache_size, socket_timeout"},
        {"prepared_statements=false&encoding=utf8&charset=utf8&serverVersion=16", "",
         "prepared_statements, encoding, charset, serverVersion"},
        {"prepareThreshold=0&prepare_threshold=0&reWriteBatchedInserts=true", "",
         "prepareThreshold, prepare_threshold, reWriteBatchedInserts"},
        {"tcpNoDelay=true&readOnly=false&logServerErrorDetail=false&hostRecheckSeconds=5", "",
         "tcpNoDelay, logServerErrorDetail, hostRecheckSeconds"},
        {"readOnly=true", NULL, "a lock must be written"},
        {"pool_max_conns=3&default_query_exec_mode=exec&binary_parameters=yes&x-migrations-table=m",
         "", "pool_max_conns, default_query_exec_mode, binary_parameters, x-migrations-table"},
        {"prepared_statement_cache_size=0&command_timeout=3&conn_max_age=60", "",
         "prepared_statement_cache_size, command_timeout, conn_max_age"},
        {"max=3&idleTimeoutMillis=1&uselibpqcompat=true&supa=x&statement_timeout=5", "",
         "max, idleTimeoutMillis, uselibpqcompat, supa, statement_timeout"},
        /* no schema in advisory mode */
        {"schema=public", "", "schema"},
        {"currentSchema=x&search_path=x&schema_search_path=x", "",
         "currentSchema, search_path, schema_search_path"},
        {"schema=x&mode=lease", NULL, "\"schema\": use table=SCHEMA.NAME"},
        {"search_path=x&mode=lease", NULL, "use table=SCHEMA.NAME"},
        {"mode=lease&currentSchema=x", NULL, "use table=SCHEMA.NAME"},
        {"mode=lease&schema_search_path=x", NULL, "use table=SCHEMA.NAME"},
        {"mode=lease&schema=x&table=app.locks", "", "schema"},
        {"mode=lease&pool=5", "", "pool"},
        /* TLS */
        {"sslmode=require", "require", ""},
        {"sslmode=verify-full&sslrootcert=/x&sslcert=/y&sslkey=/z&sslpassword=hunter",
         "verify-full", ""},
        {"ssl=true", "require", ""},
        {"ssl=1", "require", ""},
        {"ssl=require", "require", ""},
        {"ssl=verify-full", "verify-full", ""},
        {"ssl=false", "disable", ""},
        {"ssl=0", "disable", ""},
        {"ssl=true&sslmode=verify-full", "verify-full", ""},
        {"sslmode=verify-full&ssl=true", "verify-full", ""},
        {"sslmode=verify-full&ssl=require", NULL, "contradict"},
        {"sslmode=disable&ssl=true", NULL, "contradict"},
        {"sslmode=prefer&ssl=1", NULL, "contradict"},
        {"sslmode=require&ssl=0", NULL, "contradict"},
        {"sslmode=disable&ssl=0", "disable", ""},
        {"ssl=hunter", NULL, "ssl= must be true, false"},
        {"ssl=", NULL, "ssl= must be"},
        {"ssl=no-verify", NULL, "ssl= must be"},
        {"sslmode=no-verify", NULL, "sslmode=verify-full"},
        {"sslaccept=strict", "verify-full", ""},
        {"sslmode=require&sslaccept=strict", "verify-full", ""},
        {"sslmode=prefer&sslaccept=strict", "verify-full", ""},
        {"sslmode=disable&sslaccept=strict", NULL, "contradict"},
        {"sslaccept=accept_invalid_certs", NULL, "sslaccept= must be strict"},
        {"sslmode=require&sslaccept=accept_invalid_certs", NULL, "sslaccept= must be strict"},
        {"sslidentity=/x&sslpassword=hunter", NULL,
         "\"sslidentity\": write sslcert=FILE&sslkey=FILE"},
        {"sslMode=verify-ca&ssl-root-cert=/x", "verify-ca", ""},
        {"sslMode=verify-ca&sslmode=disable", NULL, "are the same"},
        {"sslfactory=org.postgresql.ssl.NonValidatingFactory", NULL,
         "\"sslfactory\": libpq has no such"},
        {"rejectUnauthorized=false", NULL, "sslmode=verify-full"},
        {"ssl_cert_reqs=none", NULL, "\"ssl_cert_reqs\""},
        {"tls=hunter", NULL, "\"tls\""},
        /* the server and the database */
        {"targetServerType=primary", "", ""},
        {"targetServerType=secondary", NULL, "always uses the primary"},
        {"loadBalanceHosts=true", NULL, "in their order"},
        {"database=x", NULL, "dbname=NAME"},
        {"unix_sock=/x", NULL, "host=DIRECTORY"},
        {"username=u", "", ""},
        {"username=u&user=v", NULL, "are the same"},
        {"connectTimeout=3&ApplicationName=x", "", ""},
        /* unknown */
        {"conect_timout=3", NULL, "did you mean connect_timeout?"},
        {"application=hunter", NULL, "unknown parameter \"application\""},
        {"restart_grace=3", NULL, "did you mean restart-grace?"},
        {"role=x", NULL, "unknown parameter \"role\""},
    };
    clean_environment();
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        char text[256], names[256] = "";
        snprintf(text, sizeof(text), "postgresql+psycopg2://h/db?%s#n", rows[i].query);
        int rc = open_uri(text);
        if (rc == 0)
            rc = dlock_uri_check_params(u.uri, &u.err);
        if (!CHECK_INT(rc, rows[i].sslmode ? 0 : DLOCK_EUSAGE)) {
            printf("# ... from %s: %s\n", text, u.err.msg);
        } else if (rc == 0) {
            const char *mode = given("sslmode");
            dlock_uri_ignored(u.uri, names, sizeof(names));
            if (!CHECK_STR(names, rows[i].ignored) || !CHECK_STR(mode ? mode : "", rows[i].sslmode))
                printf("# ... from %s\n", text);
        } else if (!CHECK_HAS(u.err.msg, rows[i].ignored)) {
            printf("# ... from %s\n", text);
        }
        CHECK_NULL(strstr(u.err.msg, "hunter"));
    }
}

TEST(an_sslmode_of_another_spelling_reaches_libpq)
{
    REQUIRE_INT(open_query("ssl-root-cert=/c&username=u&connectTimeout=3"), 0);
    CHECK_STR(given("sslrootcert"), "/c");
    CHECK_STR(given("user"), "u");
    CHECK_STR(given("connect_timeout"), "3");
    clean_environment();
}

/* Each host and port for libpq, and the address and port for the core to look up. */
static const char *hosts(void)
{
    static char text[256];
    const struct pg_settings *s = &u.be.settings;
    int n = 0;
    for (int i = 0; i < s->nhosts; i++)
        n += snprintf(text + n, sizeof(text) - (size_t)n, "%s%s:%s %s:%u", i > 0 ? ", " : "",
                      s->hosts[i], s->ports[i], u.uri->hosts[i].host, u.uri->hosts[i].port);
    return text;
}

/*
 * As libpq does. Without a service we find the hosts; with a service, libpq finds the hosts that
 * the URI does not name. Prisma's form of a socket has a host behind "//" without a meaning. A name
 * beside an address is for the certificate.
 */
TEST(takes_hosts_from_the_uri_and_the_variables)
{
    static const struct {
        const char *host, *hostaddr, *port, *service, *uri, *hosts; /* hosts NULL: refused */
    } rows[] = {
        {"elsewhere", NULL, "1", NULL, "postgres://a:1111,b:2222,[::1]:3333/db#n",
         "a:1111 a:1111, b:2222 b:2222, ::1:3333 ::1:3333"},
        {NULL, NULL, "6543", NULL, "postgres://a/db#n", "a:6543 a:6543"},
        {NULL, NULL, "6543", NULL, "postgres://a:/db#n", "a:6543 a:6543"},
        {NULL, NULL, "6543", NULL, "postgres://a:5432/db#n", "a:5432 a:5432"},
        {NULL, NULL, "6543", NULL, "postgres://a,b:7/db#n", "a:5432 a:5432, b:7 b:7"},
        {NULL, NULL, "6543", NULL, "postgres://a,b/db#n", "a:5432 a:5432, b:5432 b:5432"},
        {NULL, NULL, "6543", NULL, "postgres://a/db?port=7#n", "a:7 a:7"},
        {NULL, NULL, "6543", NULL, "postgres://a/db?host=b#n", "b:6543 b:6543"},
        {NULL, NULL, "6543", NULL, "postgres://a:7/db?host=b#n", "b:7 b:7"},
        {"one,two", NULL, "5555", NULL, "postgres:///db#n", "one:5555 one:5555, two:5555 two:5555"},
        {"one,two", NULL, "5555,6666", NULL, "postgres:///db#n",
         "one:5555 one:5555, two:6666 two:6666"},
        {"elsewhere", NULL, NULL, NULL, "postgres:///db?host=/run/pg,b&port=1,2#n",
         "/run/pg:1 /run/pg:1, b:2 b:2"},
        {"elsewhere", NULL, NULL, NULL, "postgres:///db?hostaddr=192.0.2.1&host=name#n",
         "name:5432 192.0.2.1:5432"},
        {NULL, NULL, NULL, NULL, "postgres://h/db?port=1#n", "h:1 h:1"},
        {NULL, NULL, NULL, NULL, "postgres://h:7/db?host=x#n", "x:7 x:7"},
        {NULL, NULL, NULL, NULL, "postgres://u:p@localhost/db?host=/run/pg#n",
         "/run/pg:5432 /run/pg:5432"},
        {NULL, NULL, NULL, NULL, "postgres://localhost:7/db?host=%2Frun%2Fpg&port=8#n",
         "/run/pg:8 /run/pg:8"},
        {NULL, NULL, NULL, NULL, "postgres://h/db?hostaddr=192.0.2.1#n", "h:5432 192.0.2.1:5432"},
        {NULL, NULL, NULL, NULL, "postgres://[::1]/db?port=1#n", "::1:1 ::1:1"},
        {NULL, NULL, NULL, NULL, "postgres://u:p@a:1,b:2/db?host=x#n", NULL},
        {NULL, NULL, NULL, NULL, "postgres://u:p@a:1,b:2/db?port=3#n", "a:3 a:3, b:3 b:3"},
        {NULL, NULL, NULL, NULL, "postgres://a,b/db?hostaddr=192.0.2.1#n", NULL},
        {NULL, NULL, NULL, NULL, "postgres://a/db?hostaddr=192.0.2.1,192.0.2.2#n", NULL},
        {NULL, NULL, NULL, NULL, "postgres:///db?host=a,b&port=,2#n", "a:5432 a:5432, b:2 b:2"},
        {NULL, NULL, NULL, NULL, "postgres://:7/db#n", ":7 :7"},
        {NULL, NULL, NULL, NULL, "postgres://,b:7/db#n", NULL}, /* an unset variable? */
        {NULL, NULL, NULL, NULL, "postgres://u@h:1/db#n", "h:1 h:1"},
        {"x", NULL, "7", NULL, "postgres://u@h/db#n", "h:7 h:7"},
        {"x", NULL, "7", NULL, "postgres://u@h:1,i/db#n", "h:1 h:1, i:5432 i:5432"},
        {"x", NULL, NULL, NULL, "postgres:///db#n", "x:5432 x:5432"},
        {"x,y,z", NULL, "7", NULL, "postgres:///db#n", "x:7 x:7, y:7 y:7, z:7 z:7"},
        {"x", "10.0.0.1", "7", NULL, "postgres:///db#n", "x:7 10.0.0.1:7"},
        {"x", NULL, "7", NULL, "postgres:///db?host=/run&port=8#n", "/run:8 /run:8"},
        {"x", NULL, "7", NULL, "postgres:///db?hostaddr=10.0.0.1#n", "x:7 10.0.0.1:7"},
        {NULL, NULL, NULL, NULL, "postgres:///db?hostaddr=10.0.0.1#n",
         "10.0.0.1:5432 10.0.0.1:5432"},
        {"x", NULL, "7", "s", "postgres:///db#n", ": :5432"},
        {"x", NULL, "7", "s", "postgres://u@h/db#n", "h: h:5432"},
        {"x", NULL, "7", "s", "postgres://u@h:1/db#n", "h:1 h:1"},
        {NULL, NULL, NULL, NULL, "postgres:///db?service=s&port=8#n", ":8 :8"},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        clean_environment();
        const char *const vars[] = {rows[i].host, rows[i].hostaddr, rows[i].port, rows[i].service};
        const char *const names[] = {"PGHOST", "PGHOSTADDR", "PGPORT", "PGSERVICE"};
        for (size_t k = 0; k < DLOCK_LEN(names); k++)
            if (vars[k])
                setenv(names[k], vars[k], 1);
        int rc = open_uri(rows[i].uri);
        if (!CHECK_INT(rc, rows[i].hosts ? 0 : DLOCK_EUSAGE) ||
            (rc == 0 && !CHECK_STR(hosts(), rows[i].hosts)))
            printf("# ... %s: %s\n", rows[i].uri, u.err.msg);
        if (rc == 0) {
            /* These are set for each connection, not here. */
            CHECK_NULL(given("host"));
            CHECK_NULL(given("port"));
            if (u.uri->hosts[0].host[0] && !rows[i].service) {
                CHECK_HAS(u.uri->where, u.uri->hosts[0].host);
                CHECK_HAS(u.uri->where, u.be.settings.ports[0]);
            }
            if (strstr(rows[i].uri, "u:p@"))
                CHECK_STR(given("password"), "p");
        }
    }
    clean_environment();
}

TEST(a_thread_connects_where_libpq_may_ask_another_server)
{
    static const struct {
        const char *variable, *value, *uri;
        bool thread;
    } rows[] = {
        {NULL, NULL, "postgres://u@h/db#n", false},
        {NULL, NULL, "postgres://u@/db?host=/run#n", false},
        {"PGUSER", "u", "postgres://h/db#n", false},
        {NULL, NULL, "postgres://h/db#n", true}, /* the user database */
        {"HOME", "", "postgres://u@h/db#n", true},
        {"HOME", "/proc", "postgres://u@h/db#n", true}, /* not known to be local */
        {"HOME", "", "postgres://u:p@h/db#n", false},   /* no password file */
        {"PGPASSWORD", "p", "postgres://u@h/db?passfile=/proc/x#n", false},
        {"PGPASSFILE", "/proc/x", "postgres://u@h/db#n", true},
        {"PGSERVICE", "s", "postgres://u@h/db#n", true},
        {NULL, NULL, "postgres://u@h/db?service=s#n", true},
        {"PGGSSENCMODE", "prefer", "postgres://u@h/db#n", true},
        {"PGGSSENCMODE", "prefer", "postgres://u@h/db?gssencmode=disable#n", false},
        {NULL, NULL, "postgres://u@h/db?gssencmode=require#n", true},
        {"PGREQUIREPEER", "root", "postgres://u@/db?host=/run#n", true},
    };
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        clean_environment();
        setenv("HOME", "/dev/shm", 1);
        if (rows[i].variable)
            setenv(rows[i].variable, rows[i].value, 1);
        if (!CHECK_INT(open_uri(rows[i].uri), 0) ||
            !CHECK_INT(u.be.settings.thread, rows[i].thread))
            printf("# ... %s, %s\n", rows[i].uri, rows[i].variable ? rows[i].variable : "");
        if (rows[i].variable)
            unsetenv(rows[i].variable);
    }
    if (home)
        setenv("HOME", home, 1);
    free(home);
    clean_environment();
}

TEST(uses_the_default_host_of_libpq)
{
    clean_environment();
    REQUIRE_INT(open_uri("postgres://#n"), 0);
    /* libpq's own default: a socket, or localhost. */
    CHECK_INT(u.be.settings.nhosts, 1);
    CHECK_NULL(given("dbname"));
}

/* ---------------------------------------------------------------- parameters */

TEST(passes_on_parameters_of_libpq)
{
    REQUIRE_INT(open_query("sslmode=verify-full&application_name=x&options=-cfoo%3D1"), 0);
    CHECK_STR(given("sslmode"), "verify-full");
    CHECK_STR(given("application_name"), "x");
    CHECK_STR(given("options"), "-cfoo=1");
    CHECK_INT(dlock_uri_check_params(u.uri, &u.err), 0);
    REQUIRE_INT(open_query("ssl=true"), 0);
    CHECK_STR(given("sslmode"), "require");
    /* A standby would grant locks of its own. */
    REQUIRE_INT(open_query("target_session_attrs=any"), 0);
    CHECK_STR(given("target_session_attrs"), "read-write");
    REQUIRE_INT(open_query("unheard=1"), 0);
    CHECK_INT(dlock_uri_check_params(u.uri, &u.err), DLOCK_EUSAGE);
    CHECK_HAS(u.err.msg, "unheard");
}

/* What libpq makes of the settings, the service and the environment; malloc'ed. */
static char *effective(const char *key)
{
    struct pg_settings s = u.be.settings;
    char *value = NULL;
    s.values[PG_HOST] = s.values[PG_HOSTADDR] = s.values[PG_PORT] = "";
    s.keys[s.n] = "sslmode";
    s.values[s.n++] = "no such mode"; /* so nothing is connected to */
    s.keys[s.n] = NULL;
    PGconn *c = PQconnectStartParams(s.keys, s.values, 0);
    PQconninfoOption *all = PQconninfo(c);
    for (const PQconninfoOption *o = all; o && o->keyword; o++)
        if (strcmp(o->keyword, key) == 0 && o->val)
            value = strdup(o->val);
    PQconninfoFree(all);
    PQfinish(c);
    return value;
}

TEST(gss_encryption_is_off_unless_uri_service_or_variable_say_otherwise)
{
    static const struct {
        const char *variable, *service, *uri, *result;
    } cases[] = {
        {NULL, "none", "", "disable"},
        {"prefer", "none", "", "prefer"},
        {"disable", "prefer", "", "prefer"},
        {"prefer", "disable", "", "disable"},
        {NULL, "prefer", "", "prefer"},
        {NULL, "disable", "&gssencmode=require", "require"},
        {"disable", "none", "&gssencmode=prefer", "prefer"},
        {"prefer", "prefer", "&gssencmode=disable", "disable"},
        {NULL, NULL, "", "disable"},
        {"prefer", NULL, "", "prefer"},
        {NULL, NULL, "&gssencmode=", "disable"},
        {NULL, NULL, "&gssencmode=prefer", "prefer"},
        {"prefer", NULL, "&gssencmode=disable", "disable"},
    };
    char file[] = "/tmp/dlock-unit.XXXXXX";
    int fd = mkstemp(file);
    REQUIRE(fd >= 0);
    dprintf(fd, "[none]\nport=1\n[prefer]\ngssencmode=prefer\n[disable]\ngssencmode=disable\n");
    close(fd);
    for (size_t i = 0; i < DLOCK_LEN(cases); i++) {
        char query[128];
        clean_environment();
        setenv("PGSERVICEFILE", file, 1);
        if (cases[i].variable)
            setenv("PGGSSENCMODE", cases[i].variable, 1);
        snprintf(query, sizeof(query), "%s%s%s", cases[i].service ? "service=" : "ssl=0",
                 cases[i].service ? cases[i].service : "", cases[i].uri);
        if (!CHECK_INT(open_query(query), 0))
            printf("# %s: %s\n", u.text, u.err.msg);
        char *value = effective("gssencmode");
        if (!CHECK_STR(value, cases[i].result))
            printf("# %s, PGGSSENCMODE=%s\n", query, cases[i].variable ? cases[i].variable : "");
        free(value);
        /* Other threads may read the environment. */
        const char *now = getenv("PGGSSENCMODE");
        if (!cases[i].service)
            CHECK_STR(now ? now : "", cases[i].variable ? cases[i].variable : "");
    }
    unlink(file);
    clean_environment();
}

/* What Linux takes, too: 32767 s, 127 probes. */
TEST(keepalives_give_up_between_ttl_and_two_seconds_more)
{
    static const int64_t ttls[] = {1000,  1001,    1500,     2000,     3000,     9000,      30000,
                                   60001, 3600000, 32767000, 32867000, 32868000, 2073600000};
    for (size_t i = 0; i < DLOCK_LEN(ttls); i++) {
        struct pg_keepalives k = pg_keepalives(ttls[i] * DLOCK_MSEC);
        int64_t ms = (k.idle + k.interval * k.count) * 1000;
        if (!CHECK(ms >= ttls[i]) || !CHECK(k.interval > 1 || ms <= ttls[i] + 2000))
            printf("# ttl %d ms: %d ms\n", (int)ttls[i], (int)ms);
        CHECK(k.idle >= 1 && k.idle <= 32767 && k.interval >= 1 && k.interval <= 32767);
        CHECK(k.count >= 1 && k.count <= 127);
        CHECK_INT(k.interval > 1, ttls[i] > 32867000);
    }
    REQUIRE_INT(open_query("fair=1"), 0);
    CHECK_STR(given("keepalives_idle"), "15");
    CHECK_STR(given("keepalives_interval"), "1");
    CHECK_STR(given("keepalives_count"), "15");
}

TEST(variables_of_a_user_name_no_file_to_root)
{
    CHECK_INT(open_uri("postgres://h/db?sslkey=engine:key#n"), DLOCK_EUSAGE);
    setenv("PGSSLKEY", "/x", 1);
    CHECK_INT(open_uri("postgres://h/db#n"), 0);
    setenv("PGSSLKEY", "engine:key", 1);
    CHECK_INT(open_uri("postgres://h/db#n"), DLOCK_EUSAGE);
    CHECK_HAS(u.err.msg, "sslkey");
    unsetenv("PGSSLKEY");
    if (geteuid() != 0)
        SKIP("needs root");
    static const char *const names[] = {"PGSSLKEY",      "PGSERVICE",  "PGPASSFILE",
                                        "PGSERVICEFILE", "PGHOSTADDR", "PGPORT"};
    setenv("SUDO_UID", "1000", 1);
    for (size_t i = 0; i < DLOCK_LEN(names); i++) {
        bool port = strcmp(names[i], "PGPORT") == 0;
        setenv(names[i], "5433", 1);
        CHECK_INT(open_uri("postgres://h/db#n"), port ? 0 : DLOCK_EPERM);
        CHECK_HAS(port ? names[i] : u.err.msg, names[i]);
        unsetenv(names[i]);
    }
    clean_environment();
}

TEST(takes_parameters_of_our_own)
{
    REQUIRE_INT(open_query("mode=advisory&fair=1&renew=write&restart-grace=1m"), 0);
    CHECK(u.be.store.protocol == &pg_advisory);
    CHECK(u.be.advisory.fair && u.be.advisory.renew_writes);
    CHECK_INT(u.be.store.restart_grace, 60 * DLOCK_SEC);
    REQUIRE_INT(open_query("mode=lease&table=my%22.ta%22ble&restart-grace=2s"), 0);
    CHECK(u.be.store.protocol == &table_lease);
    CHECK_INT(u.be.store.restart_grace, 2 * DLOCK_SEC);
    CHECK_STR(u.be.lease.owner, "");
    CHECK_STR(u.be.store.table.name, "\"my\"\"\".\"ta\"\"ble\"");
    REQUIRE_INT(open_query("mode=lease&table-owner=us%25er"), 0);
    CHECK_STR(u.be.lease.owner, "us%er");
}

TEST(reads_a_password_file)
{
    char file[] = "/tmp/dlock-unit.XXXXXX", uri[128];
    int fd = mkstemp(file);
    REQUIRE(fd >= 0);
    dprintf(fd, "from-file\n");
    close(fd);
    snprintf(uri, sizeof(uri), "postgres://h/db?password-file=%s#n", file);
    REQUIRE_INT(open_uri(uri), 0);
    CHECK_STR(given("password"), "from-file");
    chmod(file, 0644);
    CHECK_INT(open_uri(uri), DLOCK_EPERM);
    CHECK_HAS(u.err.msg, "chmod 600");
    unlink(file);
    CHECK(open_uri(uri) < 0);
}

/* -------------------------------------------------------------------- status */

TEST(reads_our_comment)
{
    struct dlock_info info = {0};
    const char *begin;
    size_t n = sql_read_comment(
        "/* dlock1 host=h pid=7 user=u since=5 cmd=sh ttl=3000 fence=9 */ SELECT 1", &info, &begin);
    CHECK(n > 0);
    CHECK_INT(info.pid, 7);
    CHECK_STR(info.host, "h");
    CHECK_INT(sql_read_comment("SELECT 1 /* dlock1 host=h pid=7 */", &info, &begin), 0);
    CHECK_INT(sql_read_comment("/* dlock1 host=h pid=7", &info, &begin), 0);
    CHECK_INT(sql_read_comment("/* another program */ SELECT 1", &info, &begin), 0);
    CHECK_INT(sql_read_comment("", &info, &begin), 0);
}

/* At the end of readable memory: nothing behind the query is read. */
TEST(an_empty_comment_ends_with_the_query)
{
    struct dlock_info info = {0};
    const char *begin;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *p = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(p != MAP_FAILED && mprotect(p + page, page, PROT_NONE) == 0);
    static const char query[] = "/* */ SELECT 1";
    memcpy(p + page - sizeof(query), query, sizeof(query));
    CHECK_INT(sql_read_comment(p + page - sizeof(query), &info, &begin), 0);
    munmap(p, 2 * page);
}

/* A note can neither end the comment nor pass for a value of ours. */
TEST(the_record_cannot_leave_its_comment)
{
    REQUIRE_INT(open_uri("postgres://h/db#n"), 0);
    dlock_identity_init(&u.identity, "*/ select 1; --", "*/ drop table x; /* ' \\ ttl=1 fence=5");
    sql_describe(&u.be.store, RECORD_WAITS);
    sql_describe(&u.be.store, RECORD_HOLDS);
    for (int i = 0; i < 2; i++) {
        const char *record = i == 0 ? u.be.store.waiter : u.be.store.holder;
        CHECK_HAS(record, i == 0 ? "note=" : " waited=");
        CHECK(!strstr(record, "*/") && !strstr(record, "/*"));
        CHECK(!strchr(record, '\'') && !strchr(record, '\\'));
        CHECK(!strstr(record, " ttl=") && !strstr(record, " fence="));
    }
}

/* ------------------------------------------------------------------ attempts */

/* Start to connect to a server that accepts and is silent; returns the server's end, or -1. */
static int start_attempt(struct pg_attempt **a, int listener, bool thread)
{
    struct sockaddr_in at;
    socklen_t len = sizeof(at);
    char port[8];
    getsockname(listener, (struct sockaddr *)&at, &len);
    snprintf(port, sizeof(port), "%d", ntohs(at.sin_port));
    const char *const keys[] = {"hostaddr", "port", "user", "sslmode", "gssencmode", NULL};
    const char *const values[] = {"127.0.0.1", port, "u", "disable", "disable", NULL};
    return pg_attempt_start(a, keys, values, thread) == 0 ? accept(listener, NULL, NULL) : -1;
}

/* Drive the attempt to its end; what pg_attempt_work() returns. */
static int end_attempt(struct pg_attempt *a, PGconn **c)
{
    int rc;
    while ((rc = pg_attempt_work(a, c)) == 0) {
        struct pollfd p = pg_attempt_pollfd(a);
        if (poll(&p, 1, 10000) != 1)
            return 0;
    }
    return rc;
}

static int listen_here(void)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return bind(listener, (struct sockaddr *)&any, sizeof(any)) == 0 && listen(listener, 5) == 0
               ? listener
               : -1;
}

TEST(an_attempt_that_is_given_up_ends_its_connection)
{
    struct pg_attempt *a = NULL;
    PGconn *c = NULL;
    char buf[256];
    int listener = listen_here();
    REQUIRE(listener >= 0);
    /* While it waits for the answer, and right after its start; with a thread and without. */
    for (int i = 0; i < 40; i++) {
        int peer = start_attempt(&a, listener, i % 4 < 2);
        REQUIRE(peer >= 0);
        CHECK_INT(pg_attempt_work(a, &c), 0);
        if (i % 2 == 0)
            CHECK(read(peer, buf, sizeof(buf)) > 0);
        CHECK_INT(pg_attempt_work(a, &c), 0);
        pg_attempt_drop(a);
        while (read(peer, buf, sizeof(buf)) > 0)
            ;
        close(peer);
    }
    /* One that has ended is there to be taken, or to be dropped. */
    for (int i = 0; i < 4; i++) {
        int peer = start_attempt(&a, listener, i < 2);
        REQUIRE(peer >= 0);
        close(peer);
        struct pollfd p = pg_attempt_pollfd(a);
        REQUIRE_INT(poll(&p, 1, 10000), 1);
        if (i % 2 == 0) {
            REQUIRE_INT(end_attempt(a, &c), 1);
            CHECK_INT(PQstatus(c), CONNECTION_BAD);
            PQfinish(c);
        } else {
            pg_attempt_drop(a);
        }
    }
    close(listener);
}

static int threads(void)
{
    int n = 0;
    struct dirent *e;
    DIR *tasks = opendir("/proc/self/task");
    while ((e = readdir(tasks)))
        n += e->d_name[0] != '.';
    closedir(tasks);
    return n;
}

/* What could make libpq wait, or compute for long, goes on in a thread; all else without. */
TEST(an_attempt_gets_a_thread_when_the_server_asks_for_one)
{
    static const struct {
        const char *bytes;
        size_t n;
        bool thread;
    } rows[] = {
        {"R\0\0\0\x8\0\0\0\0", 9, false},                     /* accepted */
        {"R\0\0\0\x8\0\0\0\x3", 9, false},                    /* a password */
        {"R\0\0\0\xc\0\0\0\x5salt", 13, false},               /* ... as MD5 */
        {"R\0\0\0\x8\0\0\0\x7", 9, true},                     /* GSS */
        {"R\0\0\0\x17\0\0\0\xaSCRAM-SHA-256\0", 24, true},    /* SCRAM */
        {"R\0\0\0\x8\0\0\0\x3R\0\0\0\x8\0\0\0\x7", 18, true}, /* one behind the other */
        {"R\0\0\0", 4, true},                                 /* cut off */
        {"v\0\0\0\xc\0\0\0\0\0\0\0\0", 13, true},             /* an unusual message */
    };
    int listener = listen_here();
    REQUIRE(listener >= 0);
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        struct pg_attempt *a = NULL;
        PGconn *c = NULL;
        char buf[256];
        int peer = start_attempt(&a, listener, false), before = threads();
        REQUIRE(peer >= 0);
        CHECK_INT(pg_attempt_work(a, &c), 0);
        CHECK(read(peer, buf, sizeof(buf)) > 0);
        CHECK(write(peer, rows[i].bytes, rows[i].n) == (ssize_t)rows[i].n);
        struct pollfd p = pg_attempt_pollfd(a);
        CHECK_INT(poll(&p, 1, 10000), 1);
        int fd = p.fd, rc = pg_attempt_work(a, &c);
        if (rc == 0) {
            bool moved = pg_attempt_pollfd(a).fd != fd;
            if (!CHECK_INT(moved, rows[i].thread))
                printf("# ... in row %zu\n", i);
            pg_attempt_drop(a);
        } else {
            /* No password: refused. */
            CHECK(!rows[i].thread);
            PQfinish(c);
        }
        CHECK(rows[i].thread || threads() == before);
        close(peer);
    }
    close(listener);
}

/* A program may fork while an attempt goes on; the child inherits all descriptors. */
TEST(a_fork_of_the_caller_does_not_hide_the_end_of_an_attempt)
{
    int listener = listen_here();
    REQUIRE(listener >= 0);
    for (int thread = 0; thread < 2; thread++) {
        struct pg_attempt *a = NULL;
        PGconn *c = NULL;
        int peer = start_attempt(&a, listener, thread);
        REQUIRE(peer >= 0);
        CHECK_INT(pg_attempt_work(a, &c), 0);
        pid_t child = fork();
        if (child == 0)
            for (alarm(60);;)
                pause();
        shutdown(peer, SHUT_RDWR);
        REQUIRE_INT(end_attempt(a, &c), 1);
        CHECK_INT(PQstatus(c), CONNECTION_BAD);
        PQfinish(c);
        kill(child, SIGKILL);
        CHECK_INT(waitpid(child, NULL, 0), child);
        close(peer);
    }
    close(listener);
}

extern const struct dlock_backend dlock_backend_postgres;

/* The program forks its guard before it loads the module: the registry must know. */
TEST(the_registry_knows_that_a_hold_is_a_lease)
{
    CHECK_INT(dlock_backend_postgres.caps & (CAP_FD | CAP_LEASE), CAP_LEASE);
    CHECK_INT(dlock_registry_hold("postgresql"), CAP_LEASE);
}

UNIT_MAIN
