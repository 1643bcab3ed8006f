/* mod_good.c - a module of this build: its open() says that it was asked. */
#include "backend.h"

#include <stdio.h>

static int open_says(struct dlock_be **be, const struct dlock_spec *spec, struct dlock_error *err)
{
    (void)be;
    (void)spec;
    err->code = DLOCK_EDATA;
    err->sys = 0;
    snprintf(err->msg, sizeof err->msg, "mod_good was asked");
    return DLOCK_EDATA;
}

const struct dlock_backend DLOCK_BACKEND_SYMBOL(good) = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_BUILD_ID,
    .name = "postgres",
    .schemes = (const char *const[]){"postgres", "postgresql", NULL},
    .open = open_says,
};
