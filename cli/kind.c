/* kind.c - see kind.h. */
#include "kind.h"

#include <stdio.h>
#include <string.h>

/* The longest texts in a line of --events, in bytes of JSON (events.c). */
#define HOST_MAX 300
#define USER_MAX 130
#define TEXT_MAX 520 /* command, note */

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

bool kind_is_unknown(const struct dlock_info *i)
{
    return !i->waiter && !i->foreign && i->pid <= 0 && i->left_ns == DLOCK_NEVER;
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

void kind_json_process(struct json *j, const struct dlock_info *i, bool cut)
{
    json_known(j, "host", i->host, cut ? HOST_MAX : SIZE_MAX);
    if (i->pid > 0)
        json_int(j, i->server_pid ? "server_pid" : "pid", i->pid);
    json_known(j, "user", i->user, cut ? USER_MAX : SIZE_MAX);
    json_known(j, "command", i->command, cut ? TEXT_MAX : SIZE_MAX);
    json_known(j, "note", i->note, cut ? TEXT_MAX : SIZE_MAX);
}

void kind_json_holder(struct json *j, const struct dlock_info *i, bool cut)
{
    if (i->foreign || kind_is_unknown(i))
        json_str(j, "kind", i->foreign ? "foreign" : "unknown");
    kind_json(j, i);
    if (i->over)
        json_bool(j, "over", true);
    kind_json_process(j, i, cut);
    if (i->since_ms > 0)
        json_int(j, "since_ms", i->since_ms);
    if (!i->waiter && i->waited_ms >= 0)
        json_int(j, "waited_ms", i->waited_ms);
}

void kind_json_hold(struct json *j, const struct dlock_info *i)
{
    if (i->waiter)
        json_int(j, "place", i->place);
    if (i->silent)
        json_bool(j, "silent", true);
    kind_json_holder(j, i, false);
    if (i->left_ns >= 0 && i->left_ns != DLOCK_NEVER)
        json_int(j, "lease_left_ms", i->left_ns / DLOCK_MSEC);
    json_fence(j, i->fence);
    if (!i->waiter)
        json_known(j, "token", i->token, SIZE_MAX);
    if (!i->broken)
        return;
    json_open(j, "broken", '{');
    json_known(j, "by", i->broken_by, SIZE_MAX);
    if (i->broken_ms > 0)
        json_int(j, "since_ms", i->broken_ms);
    json_close(j, '}');
}

struct dlock_info kind_of_run(const struct dlock_run *r)
{
    struct dlock_info i = {.pid = r->pid, .fence = r->fence};
    memcpy(i.host, r->host, sizeof(i.host));
    memcpy(i.user, r->user, sizeof(i.user));
    memcpy(i.command, r->command, sizeof(i.command));
    memcpy(i.note, r->note, sizeof(i.note));
    return i;
}
