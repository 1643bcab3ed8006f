/* mod_undefined.c - calls what nobody has: that must come out before it is used. */
#include "backend.h"

int dlock_no_such_function(struct dlock_be **, const struct dlock_spec *, struct dlock_error *);

const struct dlock_backend DLOCK_BACKEND_SYMBOL(undefined) = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_BUILD_ID,
    .open = dlock_no_such_function,
};
