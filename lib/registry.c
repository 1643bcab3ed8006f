/* registry.c - the backends, a line for each, and TLS: built in, or loaded on first use. */
#include "backend.h"
#include "module.h"
#include "tls/tls.h"
#include "util.h"

extern const struct dlock_backend dlock_backend_file;
#ifdef WITH_REDIS
extern const struct dlock_backend dlock_backend_redis, dlock_backend_redlock;
#endif
#ifdef WITH_POSTGRES
extern const struct dlock_backend dlock_backend_postgres;
#endif
#ifdef WITH_MYSQL
extern const struct dlock_backend dlock_backend_mysql;
#endif
#ifdef WITH_ZOOKEEPER
extern const struct dlock_backend dlock_backend_zookeeper;
#endif
#ifdef DLOCK_TEST
extern const struct dlock_backend dlock_backend_fake;
#endif

static const struct dlock_backend *const built_in[] = {
    &dlock_backend_file,
#ifdef WITH_REDIS
    &dlock_backend_redis,     &dlock_backend_redlock,
#endif
#ifdef WITH_POSTGRES
    &dlock_backend_postgres,
#endif
#ifdef WITH_MYSQL
    &dlock_backend_mysql,
#endif
#ifdef WITH_ZOOKEEPER
    &dlock_backend_zookeeper,
#endif
#ifdef DLOCK_TEST
    &dlock_backend_fake,
#endif
};

/* Does the module check a server's packets before libzookeeper does? (zookeeper/wire/calls.h) */
#ifdef WITH_ZOOKEEPER_GUARD
#define ZOOKEEPER_NOTE "module, packet guard"
#else
#define ZOOKEEPER_NOTE "module, no packet guard"
#endif

static const struct dlock_loadable modules[] = {
#ifdef WITH_POSTGRES_MODULE
    {.name = "postgres",
     .file = "postgres.so",
     .package = "dlock-postgres",
     .abi = DLOCK_BACKEND_ABI,
     .schemes = (const char *const[]){"postgres", "postgresql", NULL}},
#endif
#ifdef WITH_MYSQL_MODULE
    {.name = "mysql",
     .file = "mysql.so",
     .package = "dlock-mysql",
     .abi = DLOCK_BACKEND_ABI,
     .schemes = (const char *const[]){"mysql", NULL}},
#endif
#ifdef WITH_ZOOKEEPER_MODULE
    {.name = "zookeeper",
     .file = "zookeeper.so",
     .package = "dlock-zookeeper",
     .abi = DLOCK_BACKEND_ABI,
     .schemes = (const char *const[]){"zk", "zookeeper", NULL},
     .note = ZOOKEEPER_NOTE},
#endif
#ifdef WITH_TLS_MODULE
    {.name = "tls", .file = "tls.so", .package = "dlock-tls", .abi = TLS_ABI},
#endif
    {0},
};

const struct dlock_backend *dlock_registry_find(const char *scheme, struct dlock_error *err)
{
    for (size_t i = 0; i < DLOCK_LEN(built_in); i++)
        if (dlock_serves(built_in[i]->schemes, scheme))
            return built_in[i];
    for (const struct dlock_loadable *m = modules; m->name; m++)
        if (m->schemes && dlock_serves(m->schemes, scheme))
            return dlock_module_load(m, scheme, err);
    dlock_fail(err, DLOCK_ENOBACKEND, 0,
               "%s:// is not built in: this dlock knows only what 'dlock --version' lists", scheme);
    return NULL;
}

unsigned dlock_registry_hold(const char *scheme)
{
    for (size_t i = 0; i < DLOCK_LEN(built_in); i++)
        if (dlock_serves(built_in[i]->schemes, scheme))
            return built_in[i]->caps & (CAP_FD | CAP_LEASE);
    for (const struct dlock_loadable *m = modules; m->name; m++)
        if (m->schemes && dlock_serves(m->schemes, scheme))
            return CAP_LEASE; /* module.c loads no backend without it */
    return 0;
}

const struct tls_table *dlock_registry_tls(const char *scheme, struct dlock_error *err)
{
#ifdef WITH_TLS
    (void)scheme;
    (void)err;
    return &dlock_tls;
#else
    for (const struct dlock_loadable *m = modules; m->name; m++)
        if (m->abi == TLS_ABI)
            return dlock_module_load(m, scheme, err);
    dlock_fail(err, DLOCK_ENOBACKEND, 0, "%s:// needs TLS, and this dlock was built without it",
               scheme);
    return NULL;
#endif
}

const char *dlock_registry_name(int i, const char **note)
{
    size_t n = (size_t)i;
    *note = NULL;
#ifdef WITH_ZOOKEEPER
    if (n < DLOCK_LEN(built_in) && built_in[n] == &dlock_backend_zookeeper)
        *note = "no packet guard"; /* only the module can have a packet guard */
#endif
    if (n < DLOCK_LEN(built_in))
        return built_in[n]->name;
    n -= DLOCK_LEN(built_in);
#ifdef WITH_TLS
    if (n-- == 0)
        return "tls";
#endif
    if (n >= DLOCK_LEN(modules) || !modules[n].name)
        return NULL;
    const char *here = modules[n].note ? modules[n].note : "module";
    *note = dlock_module_installed(&modules[n]) ? here : "module, not installed";
    return modules[n].name;
}
