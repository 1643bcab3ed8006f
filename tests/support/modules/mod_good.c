/* mod_good.c - a module of this build: its open() says that it was asked, and its name. */
#include "backend.h"

#include <dlfcn.h>
#include <stdio.h>

/* As a debugger and a backtrace have it. */
static const char *own_name(void)
{
    static const char here;
    Dl_info info;
    return dladdr(&here, &info) ? info.dli_fname : "?";
}

static int open_says(struct dlock_be **be, const struct dlock_spec *spec, struct dlock_error *err)
{
    (void)be;
    (void)spec;
    err->code = DLOCK_EDATA;
    err->sys = 0;
    snprintf(err->msg, sizeof err->msg, "mod_good was asked as %s", own_name());
    return DLOCK_EDATA;
}

const struct dlock_backend DLOCK_BACKEND_SYMBOL(good) = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_BUILD_ID,
    .name = "postgres",
    .schemes = (const char *const[]){"postgres", "postgresql", NULL},
    .open = open_says,
};
