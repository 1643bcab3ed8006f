/*
 * uri.c - a LOCK: the parser, its messages, and what each store makes of the URI when it opens it.
 * No store connects then. A URI whose parameters name a file is not opened.
 */
#include "fuzz.h"

#include "backend.h"
#include "module.h"
#include "nested.h"
#include "uri.h"

#include <unistd.h>

extern const struct dlock_backend dlock_backend_file, dlock_backend_redis, dlock_backend_redlock,
    dlock_backend_postgres, dlock_backend_mysql, dlock_backend_zookeeper;

static const struct dlock_backend *const stores[] = {
    &dlock_backend_file,     &dlock_backend_redis, &dlock_backend_redlock,
    &dlock_backend_postgres, &dlock_backend_mysql, &dlock_backend_zookeeper};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    clearenv(); /* those of libpq, and MYSQL_PWD */
    return 0;
}

/* Certificates are not loaded. */
static const struct tls_table *no_tls(const char *scheme, struct dlock_error *err)
{
    dlock_fail(err, DLOCK_ENOBACKEND, 0, "%s:// needs TLS", scheme);
    return NULL;
}

static void check_error(int rc, const struct dlock_error *err)
{
    FUZZ_HOLDS(rc == 0 || (rc == err->code && err->msg[0]));
    if (rc != 0)
        fuzz_clean(err->msg, sizeof(err->msg));
}

static void open_store(struct dlock_uri *uri, enum dlock_mode mode, int64_t once)
{
    static const struct dlock_identity who = {.host = "h", .user = "u", .command = "c", .pid = 7};
    struct dlock_hold hold = {0};
    struct dlock_error err = {0};
    struct dlock_be *be = NULL;
    const struct dlock_backend *store = NULL;
    for (size_t i = 0; i < DLOCK_LEN(stores); i++)
        if (dlock_serves(stores[i]->schemes, uri->scheme))
            store = stores[i];
    FUZZ_HOLDS(store);
    struct dlock_spec spec = {
        .env = &fuzz_env,
        .uri = uri,
        .mode = mode,
        .slots = mode == DLOCK_MODE_SLOTS ? 3 : 0,
        .ttl = 30 * DLOCK_SEC,
        .least_ttl = 10 * DLOCK_SEC,
        .connect_timeout = 5 * DLOCK_SEC,
        .op_timeout = DLOCK_SEC,
        .once = once,
        .hold = &hold,
        .identity = &who,
        .tls = no_tls,
    };
    int rc = store->open(&be, &spec, &err);
    check_error(rc, &err);
    if (rc == 0)
        check_error(dlock_uri_check_params(uri, &err), &err);
    if (be)
        store->close(be);
}

/* The parsed text in its other forms. */
static void describe(struct dlock_uri *uri)
{
    char text[80];
    char *key = nested_key(uri);
    FUZZ_HOLDS(key && strlen(dlock_uri_params_text(uri, text, sizeof(text))) < sizeof(text));
    dlock_uri_ignored(uri, text, sizeof(text));
    FUZZ_HOLDS(uri->scheme && uri->raw && uri->path && uri->name && uri->where);
    for (int i = 0; i < uri->nhosts; i++)
        FUZZ_HOLDS(uri->hosts[i].host);
    free(key);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct {
        enum dlock_mode mode;
        int64_t once;
    } as[] = {{DLOCK_MODE_EXCLUSIVE, 0},
              {DLOCK_MODE_EXCLUSIVE, DLOCK_SEC},
              {DLOCK_MODE_SHARED, 0},
              {DLOCK_MODE_SLOTS, 0}};
    char *text = fuzz_copy(data, size);
    size_t how = size > 0 ? data[size - 1] % DLOCK_LEN(as) : 0; /* by the end of the lock's name */
    struct dlock_uri *uri = NULL;
    struct dlock_error err = {0};
    int rc = dlock_uri_parse(&uri, text, &err);
    check_error(rc, &err);
    if (rc == 0) {
        describe(uri);
        if (!dlock_uri_file_param(uri))
            open_store(uri, as[how].mode, as[how].once);
        dlock_uri_free(uri);
    }
    dlock_hide_secrets(text, false);
    dlock_blank_lock(text);
    free(text);
    return 0;
}
