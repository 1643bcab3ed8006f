/*
 * options.c - the options of a handle: defaults, callers compiled with another dlock.h, and options
 * by name and text for other languages, from one table.
 */
#include "util.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* The first version of the structure ended here: no caller has a shorter one. */
#define LEAST_SIZE (offsetof(struct dlock_options, reserved) + sizeof(int))
#define NOT_SET_UP "struct dlock_options was not set up by dlock_options_init()"

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
            return dlock_fail(err, DLOCK_EUSAGE, 0, NOT_SET_UP);
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

/* --------------------------------------------------------------- by name --- */

/* What dlock_options_new() makes. The texts are these, whatever the members point to. */
struct made {
    struct dlock_options o;
    char *command, *note;
};

#define NAMES_MAX 2

struct row {
    const char *names[NAMES_MAX]; /* as the long options of dlock(1), where it has the option */
    int (*set)(struct dlock_options *, const struct row *, const char *text, struct dlock_error *);
    size_t field; /* offset in struct dlock_options */
    size_t copy;  /* for set_text: offset in struct made */
    int64_t least;
};

/* NULL: a structure of the caller, or a copy of another one. */
static struct made *made_of(struct dlock_options *o)
{
    bool made = o->size >= sizeof(*o) && o->self == o;
    return made ? (struct made *)(void *)o : NULL;
}

static void *field_of(struct dlock_options *o, const struct row *row)
{
    return (char *)o + row->field;
}

static int bad_value(const struct row *row, const char *text, const char *want,
                     struct dlock_error *err)
{
    return dlock_fail(err, DLOCK_EUSAGE, 0, "%s: \"%.64s\" is not %s", row->names[0], text, want);
}

static int set_slots(struct dlock_options *o, const struct row *row, const char *text,
                     struct dlock_error *err)
{
    int64_t n;
    if (!dlock_read_number(text, strlen(text), &n) || n < 1 || n > DLOCK_SLOTS_MAX)
        return bad_value(row, text, "a number from 1 to 1000", err);
    o->mode = DLOCK_MODE_SLOTS;
    o->slots = (unsigned)n;
    return 0;
}

static int set_mode(struct dlock_options *o, const struct row *row, const char *text,
                    struct dlock_error *err)
{
    bool shared = strcmp(text, "shared") == 0;
    if (strncmp(text, "slots ", 6) == 0)
        return set_slots(o, row, text + 6, err);
    if (!shared && strcmp(text, "exclusive") != 0)
        return bad_value(row, text, "exclusive, shared or slots N", err);
    o->mode = shared ? DLOCK_MODE_SHARED : DLOCK_MODE_EXCLUSIVE;
    o->slots = 0;
    return 0;
}

static int set_duration(struct dlock_options *o, const struct row *row, const char *text,
                        struct dlock_error *err)
{
    struct dlock_error why;
    int64_t ns;
    int rc = dlock_parse_duration(text, &ns, &why);
    if (rc < 0)
        return dlock_fail(err, rc, 0, "%s: %s", row->names[0], why.msg);
    if (ns < row->least)
        return bad_value(row, text, row->least == 1 ? "greater than zero" : "at least 1 s", err);
    *(int64_t *)field_of(o, row) = ns;
    return 0;
}

/* Without a value: on, as on the command line. */
static int set_flag(struct dlock_options *o, const struct row *row, const char *text,
                    struct dlock_error *err)
{
    bool on = !text || strcmp(text, "yes") == 0;
    if (!on && strcmp(text, "no") != 0)
        return bad_value(row, text, "yes or no", err);
    *(bool *)field_of(o, row) = on;
    return 0;
}

static int set_holder(struct dlock_options *o, const struct row *row, const char *text,
                      struct dlock_error *err)
{
    static const char *const words[] = {[DLOCK_HOLDER_WAITING] = "waiting",
                                        [DLOCK_HOLDER_BUSY] = "busy",
                                        [DLOCK_HOLDER_NEVER] = "never"};
    for (size_t i = 0; i < DLOCK_LEN(words); i++) {
        if (strcmp(text, words[i]) == 0) {
            o->holder = (enum dlock_holder)i;
            return 0;
        }
    }
    return bad_value(row, text, "waiting, busy or never", err);
}

static int set_text(struct dlock_options *o, const struct row *row, const char *text,
                    struct dlock_error *err)
{
    struct made *m = made_of(o);
    if (!m)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "%s: only a structure of dlock_options_new() keeps texts: set the member",
                          row->names[0]);
    char *copy = strdup(text), **owned = (char **)(void *)((char *)m + row->copy);
    if (!copy)
        return dlock_fail(err, DLOCK_ENOMEM, 0, "%s: out of memory", row->names[0]);
    free(*owned);
    *owned = copy;
    *(const char **)field_of(o, row) = copy;
    return 0;
}

static int set_fd(struct dlock_options *o, const struct row *row, const char *text,
                  struct dlock_error *err)
{
    int64_t fd;
    if (!dlock_read_number(text, strlen(text), &fd) || fd > INT_MAX)
        return bad_value(row, text, "a descriptor's number", err);
    o->cancel_fd = (int)fd;
    return 0;
}

#define FIELD(f) .field = offsetof(struct dlock_options, f)
#define TEXT(f) .set = set_text, FIELD(f), .copy = offsetof(struct made, f)

static const struct row rows[] = {
    {{"mode"}, .set = set_mode},
    {{"slots"}, .set = set_slots},
    {{"ttl"}, .set = set_duration, FIELD(ttl_ns), .least = DLOCK_SEC},
    {{"grace"}, .set = set_duration, FIELD(grace_ns)},
    {{"timeout", "wait"}, .set = set_duration, FIELD(wait_ns)},
    {{"connect-timeout"}, .set = set_duration, FIELD(connect_timeout_ns), .least = 1},
    {{"retry"}, .set = set_flag, FIELD(retry)},
    {{"fcntl"}, .set = set_flag, FIELD(fcntl)},
    {{"holder"}, .set = set_holder},
    {{"once"}, .set = set_duration, FIELD(once_ns), .least = 1},
    {{"min-hold"}, .set = set_duration, FIELD(min_hold_ns), .least = 1},
    {{"command"}, TEXT(command)},
    {{"note"}, TEXT(note)},
    {{"cancel-fd"}, .set = set_fd},
};

static const struct row *find_row(const char *name)
{
    for (size_t i = 0; i < DLOCK_LEN(rows); i++)
        for (int k = 0; k < NAMES_MAX && rows[i].names[k]; k++)
            if (strcmp(rows[i].names[k], name) == 0)
                return &rows[i];
    return NULL;
}

struct dlock_options *dlock_options_new(void)
{
    struct made *m = calloc(1, sizeof(*m));
    if (!m)
        return NULL;
    dlock_options_init(&m->o, sizeof(m->o));
    m->o.self = &m->o;
    return &m->o;
}

int dlock_options_set(struct dlock_options *o, const char *name, const char *value,
                      struct dlock_error *err)
{
    const struct row *row = find_row(name);
    if (o->size < LEAST_SIZE)
        return dlock_fail(err, DLOCK_EUSAGE, 0, NOT_SET_UP);
    if (!row)
        return dlock_fail(err, DLOCK_EUSAGE, 0,
                          "there is no option \"%.64s\": see dlock_options_set() in dlock.h", name);
    if (!value && row->set != set_flag)
        return dlock_fail(err, DLOCK_EUSAGE, 0, "%s needs a value", row->names[0]);
    return row->set(o, row, value, err);
}

void dlock_options_free(struct dlock_options *o)
{
    struct made *m = o ? made_of(o) : NULL;
    if (!m)
        return;
    free(m->command);
    free(m->note);
    free(m);
}
