/* mod_scheme.c - of this build, for another store. */
#include "backend.h"

const struct dlock_backend DLOCK_BACKEND_SYMBOL(scheme) = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_BUILD_ID,
    .name = "zookeeper",
    .schemes = (const char *const[]){"zk", "postgre", "postgres2", NULL},
};
