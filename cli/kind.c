/* kind.c - see kind.h. */
#include "kind.h"

#include <stdio.h>

const char *kind_text(const struct dlock_info *i, char buf[KIND_TEXT_SIZE])
{
    buf[0] = '\0';
    if (i->mode == DLOCK_MODE_SHARED)
        snprintf(buf, KIND_TEXT_SIZE, " (shared)");
    else if (i->mode == DLOCK_MODE_SLOTS && i->slots == 0)
        snprintf(buf, KIND_TEXT_SIZE, " (slot)");
    else if (i->mode == DLOCK_MODE_SLOTS && i->slot == 0)
        snprintf(buf, KIND_TEXT_SIZE, " (%sone of %u slots)", i->waiter ? "for " : "", i->slots);
    else if (i->mode == DLOCK_MODE_SLOTS)
        snprintf(buf, KIND_TEXT_SIZE, " (slot %d of %u)", i->slot - 1, i->slots);
    return buf;
}

void kind_json(struct json *j, const struct dlock_info *i)
{
    if (i->mode == DLOCK_MODE_EXCLUSIVE)
        return;
    json_str(j, "mode", i->mode == DLOCK_MODE_SHARED ? "shared" : "slots");
    if (i->slots > 0)
        json_int(j, "slots", i->slots);
    if (i->slot > 0)
        json_int(j, "slot", i->slot - 1);
}
