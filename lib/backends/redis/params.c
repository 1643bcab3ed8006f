/*
 * params.c - the URI parameters of all stores in Redis servers. See params.h.
 *
 * A Redis URL may have parameters for other programs. Parameters without a meaning for dlock are
 * ignored. Parameters that say which server and database hold the lock, or how the server is
 * verified, are obeyed or refused, never ignored.
 *
 * The names are from the clients' documentation, and from the functions that parse their URLs.
 */
#include "params.h"

#include "uri.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off */
static const char *const ignored[] = {
    /* redis-py and valkey-py: from_url(), the arguments of a connection and of a pool */
    "socket_timeout", "socket_connect_timeout", "socket_keepalive", "socket_keepalive_options",
    "socket_read_size", "socket_type", "retry_on_timeout", "retry_on_error", "max_connections",
    "health_check_interval", "decode_responses", "encoding", "encoding_errors", "charset",
    "errors", "client_name", "lib_name", "lib_version", "protocol", "timeout",
    "single_connection_client",
    /* kombu and Celery */
    "visibility_timeout", "fanout_prefix", "fanout_patterns", "queue_order_strategy",
    "polling_interval",
    /* go-redis: ParseURL() */
    "max_retries", "min_retry_backoff", "max_retry_backoff", "dial_timeout", "read_timeout",
    "write_timeout", "pool_fifo", "pool_size", "pool_timeout", "min_idle_conns", "max_idle_conns",
    "max_active_conns", "conn_max_idle_time", "conn_max_lifetime", "max_conn_age", "idle_timeout",
    "idle_check_frequency", "context_timeout_enabled", "identity_suffix", "disable_identity",
    "max_redirects",
    /* ioredis and node-redis */
    "family", "connect_timeout", "command_timeout", "keep_alive", "no_delay", "connection_name",
    "max_retries_per_request", "enable_ready_check", "enable_offline_queue",
    "disable_offline_queue", "lazy_connect", "auto_resubscribe",
    "auto_resend_unfulfilled_commands", "enable_auto_pipelining", "show_friendly_error_stack",
    "string_numbers", "ping_interval", "allow_username_in_uri", "max_loading_retry_time",
    /* Lettuce, Jedis and Spring */
    "library_name", "library_version", "so_timeout", "max_total", "max_idle", "min_idle",
    /* redis-rb, Rails and Sidekiq */
    "reconnect_attempts", "driver", "pool", "network_timeout",
    /* Predis, phpredis, Laravel and Symfony */
    "read_write_timeout", "persistent", "persistent_id", "async_connect", "tcp_nodelay",
    "tcp_keepalive", "lazy", "retry_interval", "weight", "alias", "serializer",
    "igbinary_serializer", "compression",
    /* dlock finds out by itself */
    "cluster", "redis_cluster",
    NULL,
};

#define SENTINEL "the master's name is a part of redis+sentinel://S1,S2,S3/SERVICE"
#define HOSTS                                                              \
    "list the servers after '//': redlock:// for independent ones, "       \
    "redis+sentinel:// for sentinels"
#define MASTER "dlock always uses the master: leave it out"
#define CREDENTIALS "write USER:PASSWORD@ before the host, or ?password-file=FILE"
#define PREFIX "write the prefix in the lock's name, behind '#'"

/* Whatever the connection is. */
static const struct dlock_foreign rules[] = {
    /* Lettuce, Predis; kombu; Symfony */
    {"database virtual_host dbindex", FOREIGN_RENAMED, "db", NULL},
    {"user username password pass auth", FOREIGN_REFUSED, CREDENTIALS, NULL},
    {"host hosts port addr", FOREIGN_REFUSED, HOSTS, NULL}, /* go-redis, rueidis */
    {"path", FOREIGN_REFUSED, "a socket is redis+unix:///SOCKET", NULL},
    /* go-redis, Lettuce, redis-sentinel-url, Symfony */
    {"master_name sentinel_master_id service_name redis_sentinel", FOREIGN_REFUSED, SENTINEL, NULL},
    /* ioredis, redis-rb */
    {"sentinel_master sentinel sentinels master name", FOREIGN_REFUSED, SENTINEL, NULL},
    {"sentinel_username", FOREIGN_REFUSED, "write sentinel-user=USER", NULL},
    {"sentinel_password", FOREIGN_REFUSED, "write sentinel-password-file=FILE", NULL},
    {"role client_type", FOREIGN_AS_OURS, MASTER, "master"}, /* ioredis, redis-sentinel-url */
    {"read_from", FOREIGN_AS_OURS, MASTER, "master upstream"},
    {"read_only read_from_replicas route_by_latency route_randomly", /* go-redis, ioredis */
        FOREIGN_AS_OURS, MASTER, "false 0"},
    {"replica_only slave_only use_disconnected_replicas", FOREIGN_AS_OURS, MASTER, "false 0"},
    {"key_prefix prefix namespace", FOREIGN_REFUSED, PREFIX, NULL}, /* ioredis, Predis */
    {NULL, 0, NULL, NULL},
};

#define YES "1 true yes on"
#define NO "0 false no off"
#define OURS "; dlock's own are cacert=FILE, cert=FILE, key=FILE, sni=NAME"
#define VERIFIED                                                           \
    "dlock verifies the certificate and its name: leave it out, or see "   \
    "cacert= and sni=; insecure=1 verifies nothing"
#define NO_TLS                                                             \
    "there is no TLS with this scheme: write rediss:// or redlocks://, "   \
    "whose parameters are cacert=, cert=, key= and sni="

/* With TLS. */
static const struct dlock_foreign tls_rules[] = {
    {"ssl tls", FOREIGN_AS_OURS, "this scheme is TLS: without it, write redis:// or redlock://",
        YES},
    /* redis-py, Celery */
    {"ssl_cert_reqs", FOREIGN_AS_OURS, VERIFIED, "required cert_required"},
    {"ssl_check_hostname ssl_match_hostname", FOREIGN_AS_OURS, VERIFIED, YES},
    {"ssl_ca_certs", FOREIGN_RENAMED, "cacert", NULL},
    {"ssl_certfile", FOREIGN_RENAMED, "cert", NULL},
    {"ssl_keyfile", FOREIGN_RENAMED, "key", NULL},
    /* go-redis, Lettuce, node */
    {"skip_verify insecure_skip_verify", FOREIGN_AS_OURS, VERIFIED, NO},
    {"verify_peer", FOREIGN_AS_OURS, VERIFIED, "full true"},
    {"verify reject_unauthorized", FOREIGN_AS_OURS, VERIFIED, YES},
    {"start_tls", FOREIGN_AS_OURS, "rediss:// is TLS from the first byte on", NO},
    {"ssl* tls*", FOREIGN_REFUSED, "not a parameter of dlock" OURS, NULL},
    {NULL, 0, NULL, NULL},
};

/* Without TLS. */
static const struct dlock_foreign plain_rules[] = {
    {"ssl tls start_tls", FOREIGN_AS_OURS, NO_TLS, NO},
    {"ssl* tls* verify*", FOREIGN_REFUSED, NO_TLS, NULL},
    {"skip_verify insecure_skip_verify reject_unauthorized", FOREIGN_REFUSED, NO_TLS, NULL},
    {NULL, 0, NULL, NULL},
};
/* clang-format on */

/* Move ?db= into the path of the URI. */
static int move_db(struct dlock_uri *uri, struct dlock_error *err)
{
    const char *text = dlock_uri_param(uri, "db");
    char *slash = strrchr(uri->path, '/'), *path;
    int64_t n;
    if (!text)
        return 0;
    if (!dlock_read_number(text, strlen(text), &n) || n > INT_MAX)
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, uri->where,
                             "db= is not the number of a database");
    if (uri->has_db && n != atoi(slash + 1))
        return dlock_fail_at(err, DLOCK_EUSAGE, 0, uri->where,
                             "%s and db=%d are two databases: give one of them", slash, (int)n);
    if (asprintf(&path, "%.*s/%d", (int)(slash - uri->path), uri->path, (int)n) < 0)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    free(uri->path);
    uri->path = path;
    return dlock_uri_settle_where(uri, err);
}

int redis_params_read(const struct dlock_spec *spec, struct redis_script *script, int64_t *grace,
                      struct dlock_error *err)
{
    struct dlock_uri *uri = spec->uri;
    bool has_tls = strcmp(uri->scheme, "rediss") == 0 || strcmp(uri->scheme, "redlocks") == 0;
    bool is_unix = strcmp(uri->scheme, "redis+unix") == 0;
    int64_t db = 0;
    int rc;
    if ((rc = dlock_uri_foreign(uri, NULL, has_tls ? tls_rules : plain_rules, err)) != 0 ||
        (rc = dlock_uri_foreign(uri, ignored, rules, err)) != 0 ||
        (!is_unix && (rc = move_db(uri, err)) != 0))
        return rc;
    const char *text = dlock_uri_param(uri, "restart-grace");
    if (text && (rc = dlock_parse_duration(text, grace, err)) != 0)
        return rc;
    text = is_unix ? dlock_uri_param(uri, "db") : strrchr(uri->path, '/');
    if (text && !is_unix)
        text++;
    if (text && *text != '\0' && (!dlock_read_number(text, strlen(text), &db) || db > 1000000))
        return dlock_fail(err, DLOCK_EUSAGE, 0, "'%s' is not the number of a database", text);
    /* Else the lock's key would be one of those of another lock: see script.h. */
    if (strstr(uri->name, "}:dlock:") || strstr(uri->name, "::dlock:"))
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "the lock's name has \"}:dlock:\" or \"::dlock:\", as dlock's own keys "
                          "of another lock have: choose another name");
    if (redis_script_init(script, uri->name, (int)db) != 0)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    return 0;
}

int redis_param_secret(const struct dlock_spec *spec, char **secret, struct dlock_error *err)
{
    const char *file = dlock_uri_param(spec->uri, "password-file"), *env = getenv("REDISCLI_AUTH");
    *secret = NULL;
    if (file)
        return dlock_read_secret(secret, file, err);
    if (env && *env != '\0' && !(*secret = strdup(env)))
        return dlock_fail(err, DLOCK_ENOMEM, 0, "out of memory");
    return 0;
}
