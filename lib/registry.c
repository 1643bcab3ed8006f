/* registry.c - which backends there are: built in, or loaded on first use. One line a backend. */
#include "backend.h"
#include "module.h"
#include "util.h"

extern const struct dlock_backend dlock_backend_file;
#ifdef WITH_REDIS
extern const struct dlock_backend dlock_backend_redis, dlock_backend_redlock;
#endif
#ifdef WITH_POSTGRES
extern const struct dlock_backend dlock_backend_postgres;
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
#ifdef WITH_ZOOKEEPER
    &dlock_backend_zookeeper,
#endif
#ifdef DLOCK_TEST
    &dlock_backend_fake,
#endif
};

static const struct dlock_loadable modules[] = {
#ifdef WITH_POSTGRES_MODULE
    {.name = "postgres",
     .file = "postgres.so",
     .package = "dlock-postgres",
     .schemes = (const char *const[]){"postgres", "postgresql", NULL}},
#endif
#ifdef WITH_ZOOKEEPER_MODULE
    {.name = "zookeeper",
     .file = "zookeeper.so",
     .package = "dlock-zookeeper",
     .schemes = (const char *const[]){"zk", "zookeeper", NULL}},
#endif
    {0},
};

const struct dlock_backend *dlock_registry_find(const char *scheme, struct dlock_error *err)
{
    for (size_t i = 0; i < DLOCK_LEN(built_in); i++)
        if (dlock_serves(built_in[i]->schemes, scheme))
            return built_in[i];
    for (const struct dlock_loadable *m = modules; m->name; m++)
        if (dlock_serves(m->schemes, scheme))
            return dlock_module_load(m, scheme, err);
    dlock_fail(err, DLOCK_ENOBACKEND, 0,
               "%s:// is not built in: this dlock knows only what 'dlock --version' lists", scheme);
    return NULL;
}

const struct dlock_backend *dlock_registry_at(int i)
{
    return i >= 0 && (size_t)i < DLOCK_LEN(built_in) ? built_in[i] : NULL;
}

const char *dlock_registry_module(int i, bool *installed)
{
    if (i < 0 || (size_t)i >= DLOCK_LEN(modules) || !modules[i].name)
        return NULL;
    *installed = dlock_module_installed(&modules[i]);
    return modules[i].name;
}
