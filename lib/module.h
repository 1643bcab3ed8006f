/* module.h - what is loaded on first use: for registry.c alone. */
#ifndef DLOCK_MODULE_H
#define DLOCK_MODULE_H

#include "backend.h"

#include <string.h>

/* A backend, or TLS, in a shared object of its own, because of the libraries that it needs. */
struct dlock_loadable {
    const char *name, *file, *package; /* file: within the directory of modules */
    const char *const *schemes;        /* of a backend, NULL-terminated; NULL: it is none */
    unsigned abi;                      /* of its table; each kind has numbers of its own */
    const char *note;                  /* for --version when it is installed; NULL: "module" */
};

/* How every table that a module hands out begins. */
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
 * module.c: load it, or find it loaded; its table. NULL with err: DLOCK_ENOBACKEND (not installed, not of this
 * build, not loadable), DLOCK_EPERM (others could have changed it), DLOCK_EOS. May block for as long as its
 * libraries take to load. What is loaded stays until the process ends.
 */
const void *dlock_module_load(const struct dlock_loadable *, const char *scheme,
                              struct dlock_error *err);
/* Is its file there? Loads nothing. */
bool dlock_module_installed(const struct dlock_loadable *);

#endif
