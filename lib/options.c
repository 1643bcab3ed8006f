/* options.c - the options of a handle: defaults, and callers compiled with another dlock.h. */
#include "util.h"

#include <string.h>

/* The first version of the structure ended here: no caller has a shorter one. */
#define LEAST_SIZE (offsetof(struct dlock_options, reserved) + sizeof(int))

static const struct dlock_options defaults = {
    .mode = DLOCK_MODE_EXCLUSIVE,
    .ttl_ns = 30 * DLOCK_SEC,
    .grace_ns = -1,
    .wait_ns = DLOCK_NEVER,
    .connect_timeout_ns = 5 * DLOCK_SEC,
    .cancel_fd = -1,
};

void dlock_options_init(struct dlock_options *o, size_t size)
{
    /* Zero is the default of all members that only a newer caller knows. */
    memset(o, 0, size);
    memcpy(o, &defaults, size < sizeof(*o) ? size : sizeof(*o));
    o->size = size;
}

int dlock_options_read(struct dlock_options *o, const struct dlock_options *from,
                       struct dlock_error *err)
{
    *o = defaults;
    if (from) {
        const char *bytes = (const char *)from;
        if (from->size < LEAST_SIZE)
            return dlock_fail(err, DLOCK_EUSAGE, 0,
                              "struct dlock_options was not set up by dlock_options_init()");
        bool unknown = from->reserved != 0;
        for (size_t i = sizeof(*from); i < from->size; i++)
            unknown = unknown || bytes[i];
        if (unknown)
            return dlock_fail(
                err, DLOCK_EUSAGE, 0,
                "struct dlock_options has a member that this libdlock (%s) does not know",
                DLOCK_VERSION);
        memcpy(o, from, from->size < sizeof(*o) ? from->size : sizeof(*o));
    }
    o->size = sizeof(*o);
    return 0;
}
