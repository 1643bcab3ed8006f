/* mod_undefined.c - calls an undefined function: loading must detect that. */
#include "backend.h"

int dlock_no_such_function(struct dlock_be **, const struct dlock_spec *, struct dlock_error *);

const struct dlock_backend DLOCK_BACKEND_SYMBOL(undefined) = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_BUILD_ID,
    .open = dlock_no_such_function,
};
