/*
 * foreign.c - parameters in the URL of a PostgreSQL server for ORMs and for clients without libpq.
 * dlock ignores parameters without meaning here; a parameter for the place of the lock, or for the
 * verification of the server, is mapped to libpq's parameters or refused, never ignored.
 *
 * The names come from the programs' documentation, and from the functions that parse their URLs.
 */
#include "postgres.h"

#include <string.h>
#include <strings.h>

/* clang-format off */
static const char *const ignored[] = {
    /* Rails, SQLAlchemy, dj-database-url, django-environ */
    "pool", "pool_size", "max_overflow", "pool_timeout", "pool_recycle", "pool_pre_ping",
    "pool_use_lifo", "echo", "checkout_timeout", "idle_timeout", "reaping_frequency",
    "prepared_statements", "statement_limit", "advisory_locks", "min_messages", "encoding",
    "charset", "timeout", "reconnect", "conn_max_age", "conn_health_checks",
    "disable_server_side_cursors", "atomic_requests", "async_fallback",
    /* Prisma; Vercel and Supabase add their own */
    "connection_limit", "pgbouncer", "statement_cache_size", "socket_timeout",
    "max_connection_lifetime", "max_idle_connection_lifetime", "single_use_connections", "supa",
    "workaround",
    /* node-postgres, pg-promise, postgres.js, Sequelize */
    "max", "min", "max_uses", "max_lifetime", "idle_timeout_millis", "connection_timeout_millis",
    "query_timeout", "statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout",
    "keep_alive", "keep_alive_initial_delay_millis", "allow_exit_on_idle", "binary",
    "parse_input_dates_as_utc", "prepare", "fetch_types", "use_libpq_compat",
    /* asyncpg, psycopg, pg8000 */
    "command_timeout", "max_cached_statement_lifetime", "max_cacheable_statement_size", "min_size",
    "max_size", "prepared_statement_cache_size", "prepared_statement_name_func",
    "prepare_threshold", "autocommit", "tcp_keepalive",
    /* pgx, lib/pq, golang-migrate */
    "pool_max_conns", "pool_min_conns", "pool_min_idle_conns", "pool_max_conn_lifetime",
    "pool_max_conn_lifetime_jitter", "pool_max_conn_idle_time", "pool_health_check_period",
    "default_query_exec_mode", "statement_cache_capacity", "statement_cache_mode",
    "description_cache_capacity", "prefer_simple_protocol", "binary_parameters",
    "disable_prepared_binary_result", "timezone", "x-migrations-table", "x-migrations-table-quoted",
    "x-statement-timeout", "x-multi-statement", "x-multi-statement-max-size",
    /* JDBC */
    "prepared_statement_cache_queries", "prepared_statement_cache_size_mib",
    "default_row_fetch_size", "login_timeout", "cancel_signal_timeout", "re_write_batched_inserts",
    "string_type", "binary_transfer", "binary_transfer_enable", "binary_transfer_disable",
    "autosave", "cleanup_savepoints", "prefer_query_mode", "log_unclosed_connections",
    "assume_min_server_version", "max_result_buffer", "adaptive_fetch", "escape_syntax_call_mode",
    "disable_column_sanitiser", "database_metadata_cache_fields", "protocol_version",
    "unknown_length", "quote_returning_identifiers", "group_startup_parameters", "tcp_no_delay",
    "send_buffer_size", "receive_buffer_size", "max_send_buffer_size", "log_server_error_detail",
    "logger_level", "logger_file", "host_recheck_seconds", "read_only_mode",
    "adaptive_fetch_minimum", "adaptive_fetch_maximum", "allow_encoding_changes",
    "database_metadata_cache_fields_mib", "gss_response_timeout", "ssl_response_timeout",
    /* Doctrine and Symfony; sqlx, Diesel and SeaORM; Ecto */
    "server_version", "persistent", "max_connections", "min_connections", "acquire_timeout",
    "queue_target", "queue_interval",
    /* Advisory locks have no schema; in lease mode table= names the schema (schema_rules) */
    "schema", "search_path", "current_schema", "schema_search_path",
    NULL,
};

#define TABLE "use table=SCHEMA.NAME for the lock's table"
static const struct dlock_foreign schema_rules[] = {
    /* Prisma; pgx and lib/pq; JDBC; Rails */
    {"schema search_path current_schema schema_search_path", FOREIGN_REFUSED, TABLE, NULL},
    {NULL, 0, NULL, NULL},
};

#define DATABASE "write the database's name after the host's '/', or dbname=NAME"
#define SOCKET "write host=DIRECTORY, the folder of the socket"
#define PEM "write sslcert=FILE&sslkey=FILE, both PEM"
#define LIBPQ "libpq has no such parameter; its own are sslmode, sslrootcert, sslcert and sslkey"
#define VERIFY "to verify the server, write sslmode=verify-full"
#define PRIMARY "dlock always uses the primary: leave it out"
static const struct dlock_foreign rules[] = {
    {"username", FOREIGN_RENAMED, "user", NULL},
    {"database db database_name", FOREIGN_REFUSED, DATABASE, NULL},
    {"unix_sock unix_socket socket", FOREIGN_REFUSED, SOCKET, NULL}, /* the first is pg8000's */
    {"hostname", FOREIGN_REFUSED, "write host=", NULL},
    /* JDBC */
    {"target_server_type", FOREIGN_AS_OURS, PRIMARY, "any primary master preferprimary"},
    {"load_balance_hosts", FOREIGN_AS_OURS, "dlock tries the hosts in their order: leave it out",
        "false disable 0"},
    {"read_only", FOREIGN_AS_OURS, "a lock must be written: leave it out", "false 0"},
    {"connectTimeout", FOREIGN_RENAMED, "connect_timeout", NULL}, /* seconds, too */
    {"ApplicationName", FOREIGN_RENAMED, "application_name", NULL},
    {"gss_enc_mode", FOREIGN_RENAMED, "gssencmode", NULL},
    {"channel_binding", FOREIGN_RENAMED, "channel_binding", NULL},
    /* libpq's names in another spelling (JDBC, sqlx) */
    {"ssl_mode", FOREIGN_RENAMED, "sslmode", NULL},
    {"ssl_root_cert ssl_ca", FOREIGN_RENAMED, "sslrootcert", NULL},
    {"ssl_cert", FOREIGN_RENAMED, "sslcert", NULL},
    {"ssl_key", FOREIGN_RENAMED, "sslkey", NULL},
    {"ssl_identity", FOREIGN_REFUSED, PEM, NULL}, /* Prisma: PKCS #12 */
    {"use_ssl", FOREIGN_REFUSED, "write sslmode=require, or sslmode=verify-full", NULL},
    {"ssl* tls*", FOREIGN_REFUSED, LIBPQ, NULL},
    {"reject_unauthorized verify*", FOREIGN_REFUSED, VERIFY, NULL},
    {NULL, 0, NULL, NULL},
};
/* clang-format on */

static bool is_one_of(const char *value, const char *const *words)
{
    for (; *words; words++)
        if (strcasecmp(value, *words) == 0)
            return true;
    return false;
}

/* ?ssl= of JDBC, node-postgres and asyncpg as libpq's sslmode; never weakens the URI's sslmode. */
static int read_ssl(struct dlock_uri *uri, const char **mode, struct dlock_error *err)
{
    static const char *const yes[] = {"true", "1", "on", "yes", NULL};
    static const char *const no[] = {"false", "0", "off", "no", NULL};
    static const char *const verbatim[] = {"disable",   "allow",       "prefer", "require",
                                           "verify-ca", "verify-full", NULL};
    static const char *const tls[] = {"require", "verify-ca", "verify-full", NULL};
    const char *ssl = dlock_uri_param(uri, "ssl"), *want;
    if (!ssl)
        return 0;
    if (is_one_of(ssl, yes))
        want = "require";
    else if (is_one_of(ssl, no))
        want = "disable";
    else if (is_one_of(ssl, verbatim))
        want = ssl;
    else
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, uri->where,
                             "ssl= must be true, false or one of libpq's sslmode; " VERIFY);
    if (*mode && strcasecmp(*mode, want) != 0 && !(is_one_of(ssl, yes) && is_one_of(*mode, tls)))
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, uri->where,
                             "ssl= and sslmode= contradict each other: leave ssl= out");
    *mode = *mode ? *mode : want;
    return 0;
}

/* ?sslaccept= of Prisma. All values but strict verify nothing, and are refused. */
static int read_sslaccept(struct dlock_uri *uri, const char **mode, struct dlock_error *err)
{
    const char *accept = dlock_uri_param(uri, "sslaccept");
    if (!accept)
        return 0;
    if (strcmp(accept, "strict") != 0)
        return dlock_fail_at(
            err, DLOCK_EUSAGE, 0, uri->where,
            "sslaccept= must be strict: leave it out, and write sslmode=require for TLS, "
            "sslmode=verify-full to verify the server");
    if (*mode && strcmp(*mode, "disable") == 0)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, uri->where,
                             "sslaccept=strict and sslmode=disable contradict each other");
    *mode = "verify-full";
    return 0;
}

int pg_foreign_params(struct dlock_uri *uri, bool no_table, const char **sslmode,
                      struct dlock_error *err)
{
    int rc = 0;
    /* Mark both as used: the rules refuse all further names that begin with ssl. */
    (void)dlock_uri_param(uri, "ssl");
    (void)dlock_uri_param(uri, "sslaccept");
    if ((no_table && (rc = dlock_uri_foreign(uri, NULL, schema_rules, err)) != 0) ||
        (rc = dlock_uri_foreign(uri, ignored, rules, err)) != 0)
        return rc;
    *sslmode = dlock_uri_peek(uri, "sslmode");
    if (*sslmode && strcmp(*sslmode, "no-verify") == 0) /* node-postgres */
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, uri->where,
                             "sslmode=no-verify is not libpq's: sslmode=require is TLS; " VERIFY);
    rc = read_ssl(uri, sslmode, err);
    return rc == 0 ? read_sslaccept(uri, sslmode, err) : rc;
}
