/*
 * test_mysql.c - the MySQL backend without a server: the settings that come from the URI and from
 * variables, the meaning of errors, and the places of a statement as literals in hex.
 *
 * tags: thread
 */
#include "unit.h"

#include "backends/mysql/mysql.h"
#include "uri.h"

#include <errmsg.h>
#include <mysqld_error.h>
#include <unistd.h>

/* Of the test that runs, or of the last test. */
static struct user {
    struct dlock_uri *uri;
    struct dlock_spec spec;
    struct my_backend be;
    struct dlock_error err;
    char names[256]; /* of the parameters that were ignored */
} u;

static void clean_environment(void)
{
    static const char *const names[] = {"MYSQL_PWD",
                                        "LIBMYSQL_PLUGINS",
                                        "MARIADB_PLUGIN_DIR",
                                        "LIBMYSQL_PLUGIN_DIR",
                                        "LIBMYSQL_ENABLE_CLEARTEXT_PLUGIN",
                                        "SUDO_UID"};
    for (size_t i = 0; i < DLOCK_LEN(names); i++)
        unsetenv(names[i]);
}

/* Connects to nothing; 0 or the code. */
static int open_with(const char *text, int64_t ttl)
{
    struct table_state *table = &u.be.store.table;
    my_settings_done(&u.be);
    free(table->name);
    free(table->holders);
    free(table->runs);
    free(table->schema);
    dlock_uri_free(u.uri);
    memset(&u, 0, sizeof(u));
    int rc = dlock_uri_parse(&u.uri, text, &u.err);
    if (rc != 0)
        return rc;
    u.spec = (struct dlock_spec){.env = &dlock_env_system, .uri = u.uri, .ttl = ttl};
    u.be.store.spec = &u.spec;
    rc = my_settings_init(&u.be, &u.err);
    if (rc == 0)
        rc = dlock_uri_check_params(u.uri, &u.err);
    dlock_uri_ignored(u.uri, u.names, sizeof(u.names));
    return rc;
}

static int open_uri(const char *text)
{
    return open_with(text, 30 * DLOCK_SEC);
}

static int open_query(const char *query)
{
    char text[256];
    snprintf(text, sizeof(text), "mysql://h/db?%s#n", query);
    return open_uri(text);
}

static const char *or_none(const char *text)
{
    return text ? text : "-";
}

/* ---------------------------------------------------------------------- the URI */

TEST(takes_the_server_from_the_uri)
{
    static const struct {
        const char *text, *want; /* user, password, database, socket, files */
    } rows[] = {
        {"mysql://h/db#n", "- - db - - - - -"},
        {"mysql://joe:s3cret@a,b:3307/db#n", "joe s3cret db - - - - -"},
        {"mysql://joe@h/db?password=pw#n", "joe pw db - - - - -"},
        {"mysql://h/db?user=joe&password=pw#n", "joe pw db - - - - -"},
        {"mysql2://joe@h/db?username=ann#n", "ann - db - - - - -"},
        {"mysql:///db?socket=/run/my.sock#n", "- - db /run/my.sock - - - -"},
        {"mysql://joe:pw@/db?unix_socket=/s#n", "joe pw db /s - - - -"},
        {"mysql://h/db?password-file=/p#n", "- - db - /p - - -"},
        {"mysql://h/db?sslca=/ca&sslCert=/c&ssl_key=/k#n", "- - db - - /ca /c /k"},
    };
    char got[256];
    clean_environment();
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        const struct my_settings *s = &u.be.settings;
        if (!CHECK_INT(open_uri(rows[i].text), 0)) {
            printf("# ... from %s: %s\n", rows[i].text, u.err.msg);
            continue;
        }
        snprintf(got, sizeof(got), "%s %s %s %s %s %s %s %s", or_none(s->user), or_none(s->given),
                 s->database, or_none(s->socket), or_none(s->password_file), or_none(s->ca),
                 or_none(s->cert), or_none(s->key));
        if (!CHECK_STR(got, rows[i].want))
            printf("# ... from %s\n", rows[i].text);
        CHECK_NULL(strstr(u.uri->where, "s3cret"));
    }
}

TEST(tls_modes)
{
    static const struct {
        const char *query;
        enum my_tls tls;
    } rows[] = {
        {"", MY_TLS_PREFERRED},
        {"ssl-mode=disabled", MY_TLS_OFF},
        {"ssl-mode=DISABLED", MY_TLS_OFF},
        {"sslmode=disable", MY_TLS_OFF},
        {"ssl_mode=preferred", MY_TLS_PREFERRED},
        {"sslmode=prefer", MY_TLS_PREFERRED},
        {"ssl-mode=required", MY_TLS_REQUIRED},
        {"sslmode=require", MY_TLS_REQUIRED},
        {"ssl-mode=VERIFY_CA", MY_TLS_VERIFIED},
        {"sslMode=verify-ca", MY_TLS_VERIFIED},
        {"ssl-mode=verify_identity", MY_TLS_VERIFIED},
        {"sslmode=verify-full", MY_TLS_VERIFIED},
        {"ssl-ca=/x", MY_TLS_VERIFIED},
        {"ssl-capath=/x", MY_TLS_VERIFIED},
        {"ssl-ca=/x&ssl-mode=verify_ca", MY_TLS_VERIFIED},
    };
    clean_environment();
    for (size_t i = 0; i < DLOCK_LEN(rows); i++)
        if (!CHECK_INT(open_query(rows[i].query), 0) || !CHECK_INT(u.be.settings.tls, rows[i].tls))
            printf("# ... from %s: %s\n", rows[i].query, u.err.msg);
}

TEST(names_of_tables)
{
    static const char long_name[] =
        "table=aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffff";
    const struct table_state *table = &u.be.store.table;
    clean_environment();
    REQUIRE_INT(open_query(""), 0);
    CHECK_STR(table->name, "`db`.`dlock_locks`");
    CHECK_STR(table->holders, "`db`.`dlock_locks_clients`");
    CHECK_STR(table->runs, "`db`.`dlock_locks`");
    CHECK_STR(table->schema, "`db`");
    REQUIRE_INT(open_query("table=ops.my'lo%20cks"), 0);
    CHECK_STR(table->name, "`ops`.`my'lo cks`");
    CHECK_STR(table->holders, "`ops`.`my'lo cks_clients`");
    CHECK_STR(table->schema, "`ops`");
    CHECK_STR(u.be.schema_name, "ops");
    CHECK_STR(u.be.table_name, "my'lo cks");
    CHECK_STR(u.be.holders_name, "my'lo cks_clients");
    REQUIRE_INT(open_query(long_name), 0); /* 56 characters */
    CHECK_INT(strlen(u.be.holders_name), 64);
}

TEST(options_of_our_own)
{
    REQUIRE_INT(open_query("mode=lease&restart-grace=1m"), 0);
    CHECK_INT(u.be.store.restart_grace, 60 * DLOCK_SEC);
    CHECK_INT(open_with("mysql://h/db#n", 365 * 86400 * DLOCK_SEC), 0);
    CHECK_INT(open_with("mysql://h/db#n", (365 * 86400 + 1) * DLOCK_SEC), DLOCK_EUSAGE);
    CHECK_HAS(u.err.msg, "ttl is too long");
}

TEST(refuses_malformed_uris)
{
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"mysql://h#n", "no database"},
        {"mysql://h/#n", "no database"},
        {"mysql:///db#n", "no host"},
        {"mysql://h/db?socket=/s#n", "socket=/s: expected a path, and no host"},
        {"mysql:///db?socket=s#n", "socket=s: expected a path"},
        {"mysql://h/db?ssl-mode=on#n", "ssl-mode=on: expected disabled, preferred"},
        {"mysql://h/db?ssl-mode=#n", "ssl-mode=: expected"},
        {"mysql://h/db?ssl-mode=required&ssl-ca=/x#n", "ssl-mode=verify_identity"},
        {"mysql://h/db?ssl-mode=disabled&ssl-capath=/x#n", "ssl-mode=verify_identity"},
        {"mysql://h/db?sslmode=require&ssl-mode=required#n", "are the same"},
        {"mysql://h/db?table=#n", "table=: expected NAME or DATABASE.NAME"},
        {"mysql://h/db?table=.x#n", "table=.x: expected"},
        {"mysql://h/db?table=x.#n", "table=x.: expected"},
        {"mysql://h/db?table=a.b.c#n", "table=a.b.c: expected"},
        {"mysql://h/db?table=a%60b#n", "table=a`b: expected"},
        {"mysql://h/db?table=a%0ab#n", "expected NAME"},
        {"mysql://h/a%60b#n", "expected NAME"},
        {"mysql://h/a/b.c#n", "expected NAME"},
        {"mysql://h/db?table=aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeefffffff#n",
         "56 characters"},
        {"mysql://h/db?mode=advisory#n", "mode=advisory: expected lease"},
        {"mysql://h/db?restart-grace=x#n", "duration"},
    };
    clean_environment();
    for (size_t i = 0; i < DLOCK_LEN(rows); i++)
        if (!CHECK_INT(open_uri(rows[i].text), DLOCK_EUSAGE) || !CHECK_HAS(u.err.msg, rows[i].want))
            printf("# ... from %s: %s\n", rows[i].text, u.err.msg);
}

TEST(parameters_of_other_programs)
{
    static const struct {
        const char *query;
        const char *ignored; /* their names; NULL: refused */
        const char *want;    /* a part of the message */
    } rows[] = {
        {"pool=5&reconnect=true&encoding=utf8mb4", "pool, reconnect, encoding", ""},
        {"charset=utf8mb4&pool_recycle=3600&read_timeout=3", "charset, pool_recycle, read_timeout",
         ""},
        {"connection_limit=1&socket_timeout=3", "connection_limit, socket_timeout", ""},
        {"parseTime=true&loc=UTC&multiStatements=true", "parseTime, loc, multiStatements", ""},
        {"serverTimezone=UTC&useUnicode=yes&characterEncoding=utf8",
         "serverTimezone, useUnicode, characterEncoding", ""},
        {"serverVersion=8.0.32", "serverVersion", ""},
        {"allowPublicKeyRetrieval=false&readOnly=false", "", ""},
        {"allowPublicKeyRetrieval=true", NULL, "would be sent unencrypted"},
        {"allowCleartextPasswords=1", NULL, "would be sent unencrypted"},
        {"readOnly=true", NULL, "a lock must be written"},
        {"useSSL=true", NULL, "write ssl-mode=disabled, preferred, required"},
        {"tls=skip-verify", NULL, "write ssl-mode="},
        {"sslaccept=strict", NULL, "write ssl-mode="},
        {"ssl_cipher=x", NULL, "write ssl-mode="},
        {"verifyServerCertificate=false", NULL, "to verify the server"},
        {"ssl_verify_cert=true", NULL, "to verify the server"},
        {"trustCertificateKeyStoreUrl=x", NULL, "write ssl-mode="},
        {"host=x", NULL, "write the host behind the '//'"},
        {"port=1", NULL, "behind the '//'"},
        {"database=x", NULL, "write the database's name after"},
        {"default_auth=mysql_clear_password", NULL, "leave it out"},
        {"unix_socket=/x&socket=/y", NULL, "are the same"},
        {"tabel=x", NULL, "did you mean table?"},
        {"ssl-mod=x", NULL, "write ssl-mode="},
        {"hunter=hunter2", NULL, "unknown parameter \"hunter\""},
    };
    clean_environment();
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        if (!CHECK_INT(open_query(rows[i].query), rows[i].ignored ? 0 : DLOCK_EUSAGE) ||
            !CHECK_HAS(u.err.msg, rows[i].want))
            printf("# ... from %s: %s\n", rows[i].query, u.err.msg);
        if (rows[i].ignored && !CHECK_STR(u.names, rows[i].ignored))
            printf("# ... from %s\n", rows[i].query);
        CHECK_NULL(strstr(u.err.msg, "hunter2"));
    }
}

/* -------------------------------------------------------------------- variables */

TEST(the_variable_has_the_password_where_the_uri_has_none)
{
    clean_environment();
    setenv("MYSQL_PWD", "variable", 1);
    REQUIRE_INT(open_uri("mysql://u@h/db#n"), 0);
    CHECK_STR(u.be.settings.given, "variable");
    REQUIRE_INT(open_uri("mysql://u:pw@h/db#n"), 0);
    CHECK_STR(u.be.settings.given, "pw");
    REQUIRE_INT(open_uri("mysql://u@h/db?password=pw#n"), 0);
    CHECK_STR(u.be.settings.given, "pw");
    REQUIRE_INT(open_uri("mysql://u@h/db?password-file=/p#n"), 0);
    CHECK_NULL(u.be.settings.given);
    clean_environment();
}

/* libmariadb loads what they name. */
TEST(variables_of_a_user_load_nothing_as_root)
{
    static const char *const names[] = {"LIBMYSQL_PLUGINS", "MARIADB_PLUGIN_DIR",
                                        "LIBMYSQL_PLUGIN_DIR", "LIBMYSQL_ENABLE_CLEARTEXT_PLUGIN"};
    clean_environment();
    if (geteuid() != 0)
        SKIP("needs root");
    for (size_t i = 0; i < DLOCK_LEN(names); i++) {
        setenv(names[i], "/x", 1);
        setenv("SUDO_UID", "0", 1);
        CHECK_INT(open_uri("mysql://h/db#n"), 0);
        setenv("SUDO_UID", "1000", 1);
        CHECK_INT(open_uri("mysql://h/db#n"), DLOCK_EPERM);
        CHECK_HAS(u.err.msg, names[i]);
        unsetenv(names[i]);
        CHECK_INT(open_uri("mysql://h/db#n"), 0);
    }
    clean_environment();
}

/* ----------------------------------------------------------------------- errors */

TEST(meaning_of_errors)
{
    static const struct {
        unsigned error;
        int code;
        bool transient;
    } rows[] = {
        {ER_ACCESS_DENIED_ERROR, DLOCK_EPERM, false},
        {ER_DBACCESS_DENIED_ERROR, DLOCK_EPERM, false},
        {ER_TABLEACCESS_DENIED_ERROR, DLOCK_EPERM, false},
        {ER_HOST_NOT_PRIVILEGED, DLOCK_EPERM, false},
        {ER_MUST_CHANGE_PASSWORD_LOGIN, DLOCK_EPERM, false},
        {CR_UNKNOWN_ERROR, DLOCK_EPERM, false},
        {5010, DLOCK_EPERM, false}, /* the plugin is not one of ours */
        {ER_BAD_DB_ERROR, DLOCK_EUNUSABLE, false},
        {ER_PARSE_ERROR, DLOCK_EUNUSABLE, false},
        {CR_SSL_CONNECTION_ERROR, DLOCK_EUNUSABLE, false},
        {CR_AUTH_PLUGIN_CANNOT_LOAD, DLOCK_EUNUSABLE, false},
        {CR_OUT_OF_MEMORY, DLOCK_ENOMEM, false},
        {CR_CONN_HOST_ERROR, DLOCK_EUNAVAIL, false},
        {CR_SERVER_GONE_ERROR, DLOCK_EUNAVAIL, false},
        {CR_SERVER_LOST, DLOCK_EUNAVAIL, false},
        {ER_CON_COUNT_ERROR, DLOCK_EUNAVAIL, true},
        {ER_TOO_MANY_USER_CONNECTIONS, DLOCK_EUNAVAIL, true},
        {ER_USER_LIMIT_REACHED, DLOCK_EUNAVAIL, true},
        {ER_SERVER_SHUTDOWN, DLOCK_EUNAVAIL, true},
        {ER_OUT_OF_RESOURCES, DLOCK_EUNAVAIL, true},
        {99999, DLOCK_EUNAVAIL, false},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++)
        if (!CHECK_INT(my_code(rows[i].error), rows[i].code) ||
            !CHECK_INT(my_is_transient(rows[i].error), rows[i].transient))
            printf("# ... of %u\n", rows[i].error);
}

/* ------------------------------------------------------------------- statements */

/* The statement with its places filled in, in a buffer of its own; hex: as for this store. */
static const char *filled(const char *statement, const struct sql_place *own, bool hex)
{
    static char text[512];
    static const struct sql_place common[] = {
        {"name", "it's", 0}, {"table", "`t`", 0}, {"ttl", NULL, 30}, {NULL, NULL, 0}};
    struct sql_message m = {.n = 0};
    sql_add(&m, statement, own, common, hex);
    CHECK(m.n == 1 && sql_message_whole(&m));
    CHECK_INT(m.list[0].n, hex ? 0 : 1);
    snprintf(text, sizeof(text), "%s", m.list[0].sql);
    sql_message_free(&m);
    return text;
}

TEST(a_quoted_place_is_a_literal_in_hex)
{
    CHECK_STR(filled("SELECT '{name}' FROM {table} WHERE {ttl} = '{ttl}'", NULL, true),
              "SELECT x'69742773' FROM `t` WHERE 30 = '30'");
    CHECK_STR(filled("SELECT '{name}', '{name}'", NULL, false), "SELECT $1, $1");
    CHECK_STR(filled("'{name}'", PLACES({"name", "", 0}), true), "x''");
    CHECK_STR(filled("'{name}'", PLACES({"name", "\xff\\;\n{table}", 0}), true),
              "x'ff5c3b0a7b7461626c657d'");
}

/* The server refuses an unknown place; {changed} is filled in before each statement. */
TEST(other_braces_stay_as_they_are)
{
    static const char text[] = "{changed} {8} {} '{unknown' {Name} {";
    CHECK_STR(filled(text, NULL, true), text);
}

UNIT_MAIN
