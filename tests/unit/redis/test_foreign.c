/* What URLs of Redis have for other programs: what is mapped, what is ignored, what is refused. */
#include "unit.h"

#include "backends/redis/params.h"
#include "uri.h"
#include "util.h"

/* As a backend reads its URI; 0 or the code. */
static int take(struct dlock_uri *uri, struct dlock_error *err)
{
    static const char *const own[] = {"db",     "restart-grace", "wait-replicas", "password-file",
                                      "cacert", "cert",          "key",           "sni"};
    const char *s = uri->scheme;
    bool tls = strcmp(s, "rediss") == 0 || strcmp(s, "redlocks") == 0;
    struct dlock_spec spec = {.uri = uri};
    struct redis_script script = {0};
    int64_t grace;
    int rc = redis_params_read(&spec, &script, &grace, err);
    redis_script_done(&script);
    for (size_t i = 0; i < (tls ? DLOCK_LEN(own) : 4); i++)
        (void)dlock_uri_param(uri, own[i]);
    return rc == 0 ? dlock_uri_check_params(uri, err) : rc;
}

/* Everything else is about one URI each: "-" is a secret, or what may be one. */
static const struct {
    const char *uri;
    const char *where;   /* accepted: the store as it is then; NULL: refused */
    const char *ignored; /* the names; of what is refused: a part of the message */
} rows[] = {
    /* ignored: pools, time-outs, names */
    {"redis://h?socket_timeout=5&socket_connect_timeout=5&retry_on_timeout=true",
     "redis://h:6379/0", "socket_timeout, socket_connect_timeout, retry_on_timeout"},
    {"redis://h?protocol=3&client_name=x&clientName=x", "redis://h:6379/0",
     "protocol, client_name, clientName"},
    {"redis://h?decode_responses=True&max_connections=9&health_check_interval=30",
     "redis://h:6379/0", "decode_responses, max_connections, health_check_interval"},
    {"redis://h?dial_timeout=3&read_timeout=6s&max_retries=2&pool_size=3", "redis://h:6379/0",
     "dial_timeout, read_timeout, max_retries, pool_size"},
    {"redis://h?family=6&connectTimeout=1&maxRetriesPerRequest=1&lazyConnect=1", "redis://h:6379/0",
     "family, connectTimeout, maxRetriesPerRequest, lazyConnect"},
    {"redis://h?timeout=10s&libraryName=x", "redis://h:6379/0", "timeout, libraryName"},
    {"redis://h?persistent=1&read_write_timeout=0&redis_cluster=1&cluster=true", "redis://h:6379/0",
     "persistent, read_write_timeout, redis_cluster, cluster"},
    {"redlock://h,i,j?socket_timeout=5", "redlock://h:6379,i:6379,j:6379/0", "socket_timeout"},
    {"redis+unix:///s?timeout=1", "redis+unix:///s", "timeout"},
    /* the database */
    {"redis://h?db=3", "redis://h:6379/3", ""},
    {"redis://h/?db=3", "redis://h:6379/3", ""},
    {"redis://h/3?db=3", "redis://h:6379/3", ""},
    {"redis://h/3?db=03", "redis://h:6379/3", ""},
    {"redis://h?database=3", "redis://h:6379/3", ""},
    {"redis://h?virtual_host=3", "redis://h:6379/3", ""},
    {"redis://h?dbindex=3", "redis://h:6379/3", ""},
    {"valkey://h?db=3", "redis://h:6379/3", ""},
    {"rediss://h?db=3", "rediss://h:6379/3", ""},
    {"redlock://h,i?db=3", "redlock://h:6379,i:6379/3", ""},
    {"redis+sentinel://h/s?db=3", "redis+sentinel://h:26379/s/3", ""},
    {"redis+sentinel://h/s/3?db=3", "redis+sentinel://h:26379/s/3", ""},
    {"redis://h/0?db=3", NULL, "/0 and db=3 are two databases"},
    {"redis+sentinel://h/s/1?db=3", NULL, "/1 and db=3 are two databases"},
    {"redis://h?db=3&database=3", NULL, "database= and db= are the same"},
    {"redis://h?db=", NULL, "db= is not the number"},
    {"redis://h?db=-1", NULL, "db= is not the number"},
    {"redis://h?db=hunter", NULL, "db= is not the number"},
    {"redis://h?db=9999999999", NULL, "db= is not the number"},
    {"redis://h?db=99999999999999999999999", NULL, "db= is not the number"},
    /* what chooses the server, and who we are */
    {"redis://h?addr=i:1", NULL, "\"addr\": list the servers after '//'"},
    {"redis://h?host=i", NULL, "\"host\""},
    {"redis://h?port=1", NULL, "\"port\""},
    {"redis://h?master_name=m", NULL, "redis+sentinel://S1,S2,S3/SERVICE"},
    {"redis://h?sentinelMasterId=m", NULL, "redis+sentinel://S1,S2,S3/SERVICE"},
    {"redis://h?redis_sentinel=m", NULL, "redis+sentinel://S1,S2,S3/SERVICE"},
    {"redis+sentinel://h/s?service_name=m", NULL, "SERVICE"},
    {"redis+sentinel://h/s?sentinel_password=hunter", NULL, "sentinel-password-file=FILE"},
    {"redis+sentinel://h/s?sentinel_username=u", NULL, "sentinel-user=USER"},
    {"redis://h?read_only=true", NULL, "always uses the master"},
    {"redis://h?read_only=false", "redis://h:6379/0", ""},
    {"redis://h?role=slave", NULL, "always uses the master"},
    {"redis://h?route_randomly=1", NULL, "always uses the master"},
    {"redis://h?keyPrefix=app:", NULL, "\"keyPrefix\": write the prefix in the lock's name"},
    {"redis://h?username=hunter", NULL, "\"username\": write USER:PASSWORD@ before the host"},
    {"redis://h?password=hunter", NULL, "\"password\": write USER:PASSWORD@ before the host"},
    {"redis://h?auth=hunter", NULL, "\"auth\""},
    {"redis+unix:///s?user=u&pass=hunter", NULL, "\"user\""},
    /* TLS: required, as it is here anyway */
    {"rediss://h?ssl_cert_reqs=required", "rediss://h:6379/0", ""},
    {"rediss://h?ssl_cert_reqs=CERT_REQUIRED", "rediss://h:6379/0", ""},
    {"rediss://h?ssl_check_hostname=True", "rediss://h:6379/0", ""},
    {"rediss://h?ssl=true", "rediss://h:6379/0", ""},
    {"valkeys://h?tls=1", "rediss://h:6379/0", ""},
    {"rediss://h?verifyPeer=FULL", "rediss://h:6379/0", ""},
    {"rediss://h?skip_verify=false", "rediss://h:6379/0", ""},
    {"rediss://h?ssl_ca_certs=/c&ssl_certfile=/d&ssl_keyfile=/k", "rediss://h:6379/0", ""},
    {"redlocks://h,i?ssl_ca_certs=/c", "redlocks://h:6379,i:6379/0", ""},
    {"redis://h?ssl=false", "redis://h:6379/0", ""},
    {"redis://h?tls=0", "redis://h:6379/0", ""},
    /* TLS: less than here, or another way */
    {"rediss://h?ssl_cert_reqs=none", NULL, "\"ssl_cert_reqs\": dlock verifies"},
    {"rediss://h?ssl_cert_reqs=CERT_NONE", NULL, "\"ssl_cert_reqs\": dlock verifies"},
    {"rediss://h?ssl_cert_reqs=optional", NULL, "dlock verifies"},
    {"rediss://h?ssl_cert_reqs=", NULL, "dlock verifies"},
    {"rediss://h?ssl_check_hostname=false", NULL, "dlock verifies"},
    {"rediss://h?skip_verify=true", NULL, "dlock verifies"},
    {"rediss://h?verifyPeer=NONE", NULL, "dlock verifies"},
    {"rediss://h?verifyPeer=CA", NULL, "dlock verifies"},
    {"rediss://h?verify=no", NULL, "dlock verifies"},
    {"rediss://h?rejectUnauthorized=false", NULL, "dlock verifies"},
    {"rediss://h?ssl=false", NULL, "this scheme is TLS"},
    {"rediss://h?tls=no", NULL, "this scheme is TLS"},
    {"rediss://h?ssl_ca_certs=/c&cacert=/c", NULL, "ssl_ca_certs= and cacert= are the same"},
    {"rediss://h?ssl_password=hunter", NULL, "\"ssl_password\": not a parameter of dlock"},
    {"rediss://h?ssl_ca_data=hunter", NULL, "cacert=FILE"},
    {"rediss://h?sslmode=verify-full", NULL, "\"sslmode\""},
    {"rediss://h?tls_ca=x", NULL, "\"tls_ca\""},
    {"redis://h?ssl=true", NULL, "\"ssl\": there is no TLS with this scheme: write rediss://"},
    {"redis://h?ssl_cert_reqs=none", NULL, "write rediss://"},
    {"redis://h?ssl_ca_certs=/c", NULL, "write rediss://"},
    {"redis://h?tls=hunter", NULL, "write rediss://"},
    {"redis+sentinel://h/s?ssl=1", NULL, "no TLS with this scheme"},
    {"redlock://h?skip_verify=true", NULL, "write rediss:// or redlocks://"},
    /* unknown */
    {"redis://h?socket_timout=5", NULL, "did you mean socket_timeout"},
    {"redis://h?restart_grace=5", NULL, "did you mean restart-grace?"},
    {"redis://h?frobnicate=hunter", NULL, "unknown parameter \"frobnicate\""},
    {"redis://h?ttl=5", NULL, "unknown parameter \"ttl\": it is the option --ttl"},
    {"redis://h?cacert=/c", NULL, "unknown parameter \"cacert\""},
};

TEST(params_are_mapped_ignored_or_refused)
{
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        struct dlock_error err = {0};
        struct dlock_uri *u = NULL;
        char text[256], names[256] = "";
        snprintf(text, sizeof(text), "%s#n", rows[i].uri);
        REQUIRE_INT(dlock_uri_parse(&u, text, &err), 0);
        int rc = take(u, &err);
        if (!CHECK_INT(rc, rows[i].where ? 0 : DLOCK_EUSAGE)) {
            printf("# ... from %s: %s\n", text, err.msg);
        } else if (rc == 0) {
            dlock_uri_ignored(u, names, sizeof(names));
            CHECK_STR(names, rows[i].ignored);
            CHECK_STR(u->where, rows[i].where);
        } else if (!CHECK_HAS(err.msg, rows[i].ignored)) {
            printf("# ... from %s\n", text);
        }
        CHECK_NULL(strstr(err.msg, "hunter"));
        dlock_uri_free(u);
    }
}

TEST(files_of_redis_py_are_ours)
{
    struct dlock_uri *u = NULL;
    REQUIRE_INT(
        dlock_uri_parse(&u, "rediss://h?ssl_ca_certs=/a&ssl_certfile=/b&ssl_keyfile=/c#n", NULL),
        0);
    REQUIRE_INT(take(u, NULL), 0);
    CHECK_STR(dlock_uri_param(u, "cacert"), "/a");
    CHECK_STR(dlock_uri_param(u, "cert"), "/b");
    CHECK_STR(dlock_uri_param(u, "key"), "/c");
    dlock_uri_free(u);
}

/* One lock's fence, queue or claim as another lock's key: two commands would run. */
TEST(a_name_cannot_be_a_key_of_another_lock)
{
    static const char *const stores[] = {"redis://h", "redlock://h,i", "redis+sentinel://h/s"};
    static const struct {
        const char *name;
        int rc;
    } names[] = {
        {"{q}:dlock:claim", DLOCK_EUSAGE},
        {"a{q}::dlock:fence", DLOCK_EUSAGE},
        {"q}:dlock:x", DLOCK_EUSAGE},
        {"app:dlock:nightly", 0},
        {"{app}:dlock", 0},
        {"{app}.dlock:x", 0},
    };
    for (size_t i = 0; i < DLOCK_LEN(stores) * DLOCK_LEN(names); i++) {
        struct dlock_error err = {0};
        struct dlock_uri *u = NULL;
        char text[256];
        snprintf(text, sizeof(text), "%s#%s", stores[i / DLOCK_LEN(names)],
                 names[i % DLOCK_LEN(names)].name);
        REQUIRE_INT(dlock_uri_parse(&u, text, &err), 0);
        if (CHECK_INT(take(u, &err), names[i % DLOCK_LEN(names)].rc) && err.code != 0)
            CHECK_HAS(err.msg, "choose another name");
        dlock_uri_free(u);
    }
}

UNIT_MAIN
