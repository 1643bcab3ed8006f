/* registry.c - which backends there are. One line a backend. */
#include "backend.h"
#include "util.h"

#include <string.h>

extern const struct dlock_backend dlock_backend_file;
#ifdef WITH_REDIS
extern const struct dlock_backend dlock_backend_redis;
#endif
#ifdef DLOCK_TEST
extern const struct dlock_backend dlock_backend_fake;
#endif

static const struct dlock_backend *const built_in[] = {
    &dlock_backend_file,
#ifdef WITH_REDIS
    &dlock_backend_redis,
#endif
#ifdef DLOCK_TEST
    &dlock_backend_fake,
#endif
};

static bool serves(const struct dlock_backend *be, const char *scheme)
{
    for (const char *const *s = be->schemes; *s; s++)
        if (strcmp(*s, scheme) == 0)
            return true;
    return false;
}

const struct dlock_backend *dlock_registry_find(const char *scheme, struct dlock_error *err)
{
    for (size_t i = 0; i < DLOCK_LEN(built_in); i++)
        if (serves(built_in[i], scheme))
            return built_in[i];
    dlock_fail(err, DLOCK_ENOBACKEND, 0,
               "%s:// is not built in: this dlock knows only what 'dlock --version' lists", scheme);
    return NULL;
}

const struct dlock_backend *dlock_registry_at(int i)
{
    return i >= 0 && (size_t)i < DLOCK_LEN(built_in) ? built_in[i] : NULL;
}
