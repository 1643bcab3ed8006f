/* Options by name and text: each member can be set, and what is refused names the option. */
#include "unit.h"
#include "util.h"

#define MEMBER(m)                                                                                  \
    .member = #m, .at = offsetof(struct dlock_options, m),                                         \
    .size = sizeof((struct dlock_options){0}.m),                                                   \
    .align = _Alignof(__typeof__((struct dlock_options){0}.m))

/* All members in their order. Without an option: why. */
static const struct {
    const char *member;
    size_t at, size, align;
    const char *name, *text, *why;
} members[] = {
    {MEMBER(size), .why = "of the caller's compiler"},
    {MEMBER(mode), .name = "mode", .text = "shared"},
    {MEMBER(slots), .name = "slots", .text = "3"},
    {MEMBER(ttl_ns), .name = "ttl", .text = "20s"},
    {MEMBER(grace_ns), .name = "grace", .text = "1.5"},
    {MEMBER(wait_ns), .name = "wait", .text = "0"},
    {MEMBER(connect_timeout_ns), .name = "connect-timeout", .text = "700ms"},
    {MEMBER(retry), .name = "retry", .text = NULL},
    {MEMBER(fcntl), .name = "fcntl", .text = "yes"},
    {MEMBER(holder), .name = "holder", .text = "never"},
    {MEMBER(once_ns), .name = "once", .text = "1d"},
    {MEMBER(min_hold_ns), .name = "min-hold", .text = "1m"},
    {MEMBER(command), .name = "command", .text = "backup"},
    {MEMBER(note), .name = "note", .text = "nightly"},
    {MEMBER(user), .why = "another language keeps its objects by the handle's address"},
    {MEMBER(cancel_fd), .name = "cancel-fd", .text = "7"},
    {MEMBER(reserved), .why = "0"},
    {MEMBER(self), .why = "of dlock_options_new()"},
};

TEST(each_member_can_be_set_by_name_or_has_a_reason)
{
    struct dlock_options was, *o = dlock_options_new();
    struct dlock_error err;
    size_t end = 0;
    REQUIRE(o != NULL);
    for (size_t i = 0; i < DLOCK_LEN(members); i++) {
        size_t align = members[i].align, at = members[i].at;
        /* A member that is not listed leaves a gap. */
        if (at != (end + align - 1) / align * align)
            CHECK_FAIL("the member before %s is not listed", members[i].member);
        end = at + members[i].size;
        if (members[i].why)
            continue;
        was = *o;
        CHECK_INT(dlock_options_set(o, members[i].name, members[i].text, &err), 0);
        if (memcmp((char *)o + at, (char *)&was + at, members[i].size) == 0)
            CHECK_FAIL("%s does not set %s", members[i].name, members[i].member);
    }
    CHECK_INT(end, sizeof(*o));
    CHECK_INT(o->mode, DLOCK_MODE_SLOTS);
    CHECK_INT(o->slots, 3);
    CHECK_INT(o->ttl_ns, 20 * DLOCK_SEC);
    CHECK_INT(o->grace_ns, 1500 * DLOCK_MSEC);
    CHECK_INT(o->wait_ns, 0);
    CHECK_INT(o->connect_timeout_ns, 700 * DLOCK_MSEC);
    CHECK_INT(o->retry && o->fcntl, 1);
    CHECK_INT(o->holder, DLOCK_HOLDER_NEVER);
    CHECK_INT(o->once_ns, 86400 * DLOCK_SEC);
    CHECK_INT(o->min_hold_ns, 60 * DLOCK_SEC);
    CHECK_STR(o->command, "backup");
    CHECK_STR(o->note, "nightly");
    CHECK_INT(o->cancel_fd, 7);
    dlock_options_free(o);
    dlock_options_free(NULL);
}

TEST(the_mode_and_its_number_are_set_together)
{
    struct dlock_options o;
    dlock_options_init(&o, sizeof(o));
    CHECK_INT(dlock_options_set(&o, "mode", "slots 4", NULL), 0);
    CHECK_INT(o.mode, DLOCK_MODE_SLOTS);
    CHECK_INT(o.slots, 4);
    CHECK_INT(dlock_options_set(&o, "mode", "exclusive", NULL), 0);
    CHECK_INT(o.mode, DLOCK_MODE_EXCLUSIVE);
    CHECK_INT(o.slots, 0);
    CHECK_INT(dlock_options_set(&o, "retry", NULL, NULL), 0);
    CHECK_INT(dlock_options_set(&o, "retry", "no", NULL), 0);
    CHECK(!o.retry);
}

TEST(texts_are_owned_by_what_dlock_options_new_has_made)
{
    struct dlock_options mine, copy, *o = dlock_options_new();
    struct dlock_error err;
    char text[] = "first";
    REQUIRE(o != NULL);
    CHECK_INT(dlock_options_set(o, "note", text, &err), 0);
    text[0] = 'F';
    CHECK_STR(o->note, "first");
    CHECK_INT(dlock_options_set(o, "note", o->note, &err), 0);
    CHECK_STR(o->note, "first");
    o->command = "a constant"; /* not freed */
    dlock_options_init(&mine, sizeof(mine));
    copy = *o;
    CHECK_INT(dlock_options_set(&mine, "note", "x", &err), DLOCK_EUSAGE);
    CHECK_STR(err.msg, "note: only a structure of dlock_options_new() keeps texts: set the member");
    CHECK_INT(dlock_options_set(&copy, "note", "x", &err), DLOCK_EUSAGE);
    CHECK_STR(copy.note, "first");
    CHECK_INT(dlock_options_set(&copy, "ttl", "9s", &err), 0);
    dlock_options_free(&copy);
    dlock_options_free(&mine);
    dlock_options_free(o);
}

/* Made and copied structures are options as any other. */
TEST(a_made_structure_is_read_as_the_caller_s)
{
    struct dlock_options read, *o = dlock_options_new();
    REQUIRE(o != NULL);
    CHECK_INT(dlock_options_set(o, "ttl", "9s", NULL), 0);
    CHECK_INT(dlock_options_read(&read, o, NULL), 0);
    CHECK_INT(read.ttl_ns, 9 * DLOCK_SEC);
    dlock_options_free(o);
}

TEST(what_is_refused_is_named_and_changes_nothing)
{
    static const struct {
        const char *name, *text, *msg;
    } bad[] = {
        {"TTL", "9s", "there is no option \"TTL\": see dlock_options_set() in dlock.h"},
        {"", "", "there is no option \"\": see dlock_options_set() in dlock.h"},
        {"user", "x", "there is no option \"user\": see dlock_options_set() in dlock.h"},
        {"ttl", NULL, "ttl needs a value"},
        {"ttl", "0.5", "ttl: \"0.5\" is not at least 1 s"},
        {"wait", "-1", "timeout: \"-1\" is not a duration: "},
        {"grace", "", "grace: \"\" is not a duration: "},
        {"connect-timeout", "0", "connect-timeout: \"0\" is not greater than zero"},
        {"once", "1000000d", "once: \"1000000d\" is too long: at most 100 years"},
        {"min-hold", "redis://u:secret@h", "min-hold: \"(a URI)\" is not a duration: "},
        {"mode", "slots", "mode: \"slots\" is not exclusive, shared or slots N"},
        {"mode", "slots 1001", "mode: \"1001\" is not a number from 1 to 1000"},
        {"slots", "0", "slots: \"0\" is not a number from 1 to 1000"},
        {"slots", "+3", "slots: \"+3\" is not a number from 1 to 1000"},
        {"retry", "", "retry: \"\" is not yes or no"},
        {"holder", "always", "holder: \"always\" is not waiting, busy or never"},
        {"cancel-fd", "-1", "cancel-fd: \"-1\" is not a descriptor's number"},
        {"cancel-fd", "2147483648", "cancel-fd: \"2147483648\" is not a descriptor's number"},
        {"note", NULL, "note needs a value"},
    };
    struct dlock_options was, *o = dlock_options_new();
    struct dlock_error err;
    REQUIRE(o != NULL);
    was = *o;
    for (size_t i = 0; i < DLOCK_LEN(bad); i++) {
        CHECK_INT(dlock_options_set(o, bad[i].name, bad[i].text, &err), DLOCK_EUSAGE);
        err.msg[strnlen(bad[i].msg, sizeof(err.msg) - 1)] = '\0';
        CHECK_STR(err.msg, bad[i].msg);
        CHECK(memcmp(o, &was, sizeof(was)) == 0);
    }
    o->size = 8;
    CHECK_INT(dlock_options_set(o, "ttl", "9s", &err), DLOCK_EUSAGE);
    CHECK_HAS(err.msg, "was not set up");
    *o = was;
    dlock_options_free(o);
}

UNIT_MAIN
