/*
 * foreign.c - parameters in the URL of a MySQL server for ORMs, pools and other drivers. dlock
 * ignores parameters without meaning here; one for the place of the lock, or for the verification
 * of the server, is mapped to dlock's own or refused, never ignored.
 *
 * The names come from the programs' documentation, and from the functions that parse their URLs.
 */
#include "mysql.h"

/* clang-format off */
static const char *const ignored[] = {
    /* Rails (mysql2, trilogy), SQLAlchemy, Django, dj-database-url */
    "pool", "pool_size", "max_overflow", "pool_timeout", "pool_recycle", "pool_pre_ping",
    "pool_use_lifo", "echo", "checkout_timeout", "idle_timeout", "reaping_frequency",
    "prepared_statements", "statement_limit", "advisory_locks", "encoding", "charset", "collation",
    "reconnect", "conn_max_age", "conn_health_checks", "read_timeout", "write_timeout",
    "connect_timeout", "timeout", "variables", "init_command", "sql_mode", "use_unicode",
    "local_infile", "autocommit", "strict", "prefix", "engine", "username_prefix",
    /* Prisma, Sequelize, mysql2 of Node.js, TypeORM */
    "connection_limit", "socket_timeout", "statement_cache_size", "max_connection_lifetime",
    "max_idle_connection_lifetime", "timezone", "multiple_statements", "date_strings",
    "support_big_numbers", "big_number_strings", "debug", "wait_for_connections", "queue_limit",
    "enable_keep_alive", "decimal_numbers", "named_placeholders", "flags", "max_idle",
    "keep_alive_initial_delay", "supa", "pscale",
    /* Go's driver, golang-migrate, goose */
    "parse_time", "loc", "interpolate_params", "columns_with_alias", "client_found_rows",
    "multi_statements", "max_allowed_packet", "check_conn_liveness", "reject_read_only",
    "connection_attributes", "x-migrations-table", "x-no-lock", "x-statement-timeout",
    /* JDBC (MySQL and MariaDB Connector/J), R2DBC */
    "server_timezone", "connection_time_zone", "use_unicode", "character_encoding",
    "auto_reconnect", "use_legacy_datetime_code", "rewrite_batched_statements", "cache_prep_stmts",
    "prep_stmt_cache_size", "prep_stmt_cache_sql_limit", "use_server_prep_stmts",
    "zero_date_time_behavior", "tiny_int1is_bit", "create_database_if_not_exist",
    "use_affected_rows", "max_pool_size", "min_pool_size", "socket_factory", "use_compression",
    "tcp_keep_alive", "tcp_no_delay", "use_information_schema", "null_catalog_means_current",
    "use_bulk_stmts", "log_slow_queries", "profile_sql", "jdbc_compliant_truncation",
    /* Laravel, Doctrine, Symfony, sqlx, Diesel, Ecto */
    "server_version", "persistent", "driver_options", "default_table_options", "modes",
    "statement_cache_capacity", "max_connections", "min_connections", "acquire_timeout",
    "queue_target", "queue_interval",
    NULL,
};

#define DATABASE "write the database's name after the host's '/'"
#define HOST "write the host behind the '//'"
#define TLS "write ssl-mode=disabled, preferred, required or verify_identity"
#define VERIFY "to verify the server, write ssl-mode=verify_identity&ssl-ca=FILE"
#define CLEAR "the password would be sent unencrypted: leave it out"
#define PLUGIN "dlock takes the plugins that never show the password: leave it out"
static const struct dlock_foreign rules[] = {
    {"username", FOREIGN_RENAMED, "user", NULL},
    {"database db database_name dbname schema", FOREIGN_REFUSED, DATABASE, NULL},
    {"host hostname port", FOREIGN_REFUSED, HOST, NULL},
    {"unix_socket local_socket", FOREIGN_RENAMED, "socket", NULL},
    {"sslmode ssl_mode", FOREIGN_RENAMED, "ssl-mode", NULL},
    {"sslca ssl_ca sslrootcert server_ssl_cert", FOREIGN_RENAMED, "ssl-ca", NULL},
    {"ssl_capath sslcapath", FOREIGN_RENAMED, "ssl-capath", NULL},
    {"sslcert ssl_cert", FOREIGN_RENAMED, "ssl-cert", NULL},
    {"sslkey ssl_key", FOREIGN_RENAMED, "ssl-key", NULL},
    {"use_ssl require_ssl ssl tls sslaccept", FOREIGN_REFUSED, TLS, NULL},
    {"verify_server_certificate ssl_verify* trust_server_certificate reject_unauthorized",
        FOREIGN_REFUSED, VERIFY, NULL},
    {"ssl* tls* trust_certificate* client_certificate* key_store*", FOREIGN_REFUSED, TLS, NULL},
    {"allow_cleartext_passwords enable_cleartext_plugin", FOREIGN_AS_OURS, CLEAR, "false 0"},
    {"allow_public_key_retrieval server_rsa_public_key_file get_server_public_key",
        FOREIGN_AS_OURS, CLEAR, "false 0"},
    {"allow_old_passwords allow_fallback_to_plaintext", FOREIGN_AS_OURS, CLEAR, "false 0"},
    {"default_auth default_authentication_plugin auth_plugin", FOREIGN_REFUSED, PLUGIN, NULL},
    {"read_only", FOREIGN_AS_OURS, "a lock must be written: leave it out", "false 0"},
    {NULL, 0, NULL, NULL},
};
/* clang-format on */

int my_foreign_params(struct dlock_uri *uri, struct dlock_error *err)
{
    return dlock_uri_foreign(uri, ignored, rules, err);
}
