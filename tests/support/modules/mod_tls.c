/* mod_tls.c - wants more static TLS than the dynamic linker has. */
#include "backend.h"

__attribute__((tls_model("initial-exec"))) static _Thread_local volatile char big[1 << 20];

static int open_uses(struct dlock_be **be, const struct dlock_spec *spec, struct dlock_error *err)
{
    (void)be;
    (void)spec;
    return err->code + big[0];
}

const struct dlock_backend DLOCK_BACKEND_SYMBOL(tls) = {
    .abi = DLOCK_BACKEND_ABI,
    .build_id = DLOCK_BUILD_ID,
    .schemes = (const char *const[]){"postgres", NULL},
    .open = open_uses,
};
