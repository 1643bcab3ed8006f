/* mod_nobuild.c - does not say of which build it is. */
#include "backend.h"

const struct dlock_backend DLOCK_BACKEND_SYMBOL(nobuild) = {.abi = DLOCK_BACKEND_ABI};
