/* module.h - loading a module on first use: for registry.c alone. */
#ifndef DLOCK_MODULE_H
#define DLOCK_MODULE_H

#include "backend.h"

#include <string.h>

/* A backend, or TLS, in a shared object, because of its large libraries. */
struct dlock_loadable {
    const char *name, *file, *package; /* file: within the directory of modules */
    const char *const *schemes;        /* of a backend, NULL-terminated; NULL: not a backend */
    unsigned abi;                      /* of its table; each kind of table has its own count */
    const char *note;                  /* for --version if installed; NULL: "module" */
};

/* The first members of every module's table. */
struct dlock_module_head {
    unsigned abi;
    const char *build_id;
};

static inline bool dlock_serves(const char *const *schemes, const char *scheme)
{
    for (; *schemes; schemes++)
        if (strcmp(*schemes, scheme) == 0)
            return true;
    return false;
}

/*
 * module.c: load the module, unless it is loaded already, and return its table. NULL with err:
 * DLOCK_ENOBACKEND (not installed: sys ENOENT or ENOTDIR; not of this build, not loadable: sys
 * ELIBBAD), DLOCK_EPERM (foreign users could have changed the module), DLOCK_EOS. A later call may
 * find another file. Blocks while the module's libraries are loaded. A module stays loaded until
 * the process ends.
 */
const void *dlock_module_load(const struct dlock_loadable *, const char *scheme,
                              struct dlock_error *err);
/* Does the module's file exist? Loads nothing. */
bool dlock_module_installed(const struct dlock_loadable *);

#endif
