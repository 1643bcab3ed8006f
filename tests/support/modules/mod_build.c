/* mod_build.c - of another build. */
#include "backend.h"

const struct dlock_backend DLOCK_BACKEND_SYMBOL(build) = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = "0.0.0+other",
    .schemes = (const char *const *)1,
};
