/* mod_abi.c - for another interface: what is behind its number means something else. */
#include "backend.h"

const struct dlock_backend DLOCK_BACKEND_SYMBOL(abi) = {
    .abi = DLOCK_BACKEND_ABI + 1,
    .build_id = (const char *)1,
    .schemes = (const char *const *)1,
};
