/* test_held.c - DLOCK_HELD, and which inner locks a hold allows. */
#include "held.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOKEN_A "0123456789abcdef0123456789abcdef"
#define TOKEN_B "fedcba9876543210fedcba9876543210"
/* The name's digest that entry() makes for the key's digest 1. */
#define NAME_1 "0000000000000100"

static struct held entry(uint64_t digest, const char *token, const char *socket)
{
    struct held e = {.digest = digest, .name = digest << 8};
    snprintf(e.token, sizeof(e.token), "%s", token);
    snprintf(e.socket, sizeof(e.socket), "%s", socket);
    return e;
}

/* The innermost keeper of this lock in list; NULL: none. */
static const struct nested_outer *find(const char *list, uint64_t digest)
{
    static struct nested_outer found;
    found = (struct nested_outer){.key = NULL};
    return held_above(list, digest, &found) ? &found : NULL;
}

TEST(an_entry_replaces_that_of_the_same_lock_and_comes_last)
{
    char one[HELD_SIZE], two[HELD_SIZE], three[HELD_SIZE];
    struct held a = entry(1, TOKEN_A, "a"), b = entry(0xb, TOKEN_B, "b"),
                c = entry(1, TOKEN_B, "c");
    CHECK_STR(held_add(one, NULL, &a, 1), "DLOCK_HELD=0000000000000001:" NAME_1 ":" TOKEN_A ":a");
    held_add(two, one + strlen(HELD_NAME), &b, 1);
    CHECK_STR(held_add(three, two + strlen(HELD_NAME), &c, 1),
              "DLOCK_HELD=000000000000000b:0000000000000b00:" TOKEN_B ":b 0000000000000001:" NAME_1
              ":" TOKEN_B ":c");
    CHECK_STR(find(three + strlen(HELD_NAME), 0xb)->token, TOKEN_B);
    CHECK_STR(find(three + strlen(HELD_NAME), 0xb)->socket, "b");
    CHECK(!find(three + strlen(HELD_NAME), 2));
}

TEST(the_outermost_keeper_of_a_hold_stays_and_is_found_from_the_keepers_below)
{
    char list[2][HELD_SIZE] = {HELD_NAME, ""};
    struct held e = entry(1, TOKEN_B, "stale");
    struct nested_outer outer = {.token = TOKEN_A, .socket = "c"};
    held_add(list[1], NULL, &e, 1);
    for (const char *socket = "abc"; *socket; socket++) {
        char name[2] = {*socket, '\0'};
        e = entry(1, TOKEN_A, name);
        held_add(list[0], list[1] + strlen(HELD_NAME), &e, 1);
        strcpy(list[1], list[0]);
    }
    const char *value = list[1] + strlen(HELD_NAME);
    CHECK_STR(value, "0000000000000001:" NAME_1 ":" TOKEN_A ":a "
                     "0000000000000001:" NAME_1 ":" TOKEN_A ":c");
    CHECK_STR(find(value, 1)->socket, "c");
    CHECK(!held_above(value, 2, &outer));
    CHECK(held_above(value, 1, &outer));
    CHECK_STR(outer.socket, "a");
    CHECK(!held_above(value, 1, &outer));
}

TEST(there_are_32_entries_at_most_the_innermost_ones)
{
    char list[2][HELD_SIZE] = {HELD_NAME, ""};
    char socket[NESTED_SOCKET_MAX + 1];
    struct held e;
    memset(socket, 's', NESTED_SOCKET_MAX);
    socket[NESTED_SOCKET_MAX] = '\0';
    for (unsigned i = 0; i < 100; i++) {
        e = entry(UINT64_MAX - i, TOKEN_A, socket);
        held_add(list[(i + 1) % 2], list[i % 2] + strlen(HELD_NAME), &e, 1);
    }
    const char *last = list[0] + strlen(HELD_NAME);
    CHECK_INT(strlen(last), HELD_MAX * (2 * 16 + 32 + NESTED_SOCKET_MAX + 4) - 1);
    CHECK_STR(find(last, UINT64_MAX - 99)->socket, socket);
    CHECK(find(last, UINT64_MAX - 68));
    CHECK(!find(last, UINT64_MAX - 67));
}

TEST(what_is_not_well_formed_is_left_out)
{
    static const char *const bad[] = {
        "",
        " ",
        "x",
        ":::",
        "::::",
        "0000000000000001:" TOKEN_A ":a", /* of an older dlock */
        "0000000000000001:" NAME_1 ":" TOKEN_A,
        "0000000000000001:" NAME_1 ":" TOKEN_A ":",
        "000000000000000g:" NAME_1 ":" TOKEN_A ":a",
        "0000000000000001:000000000000000g:" TOKEN_A ":a",
        "0000000000000001:" NAME_1 ":0123456789abcdef0123456789abcdeg:a",
        "0000000000000001:" NAME_1 "." TOKEN_A ":a",
        "00000000000000001:" NAME_1 ":" TOKEN_A ":a",
        "0000000000000001:" NAME_1 ":" TOKEN_A ":12345678901234567890123456789012345678901",
    };
    char buf[HELD_SIZE], list[400];
    struct held e = entry(5, TOKEN_B, "e"), found;
    const char *rest = list;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECK(!find(bad[i], 1));
        CHECK_STR(held_add(buf, bad[i], &e, 1),
                  "DLOCK_HELD=0000000000000005:0000000000000500:" TOKEN_B ":e");
        snprintf(list, sizeof(list), "%s  0000000000000001:" NAME_1 ":" TOKEN_A ":a %s", bad[i],
                 bad[i]);
        rest = list;
        CHECK(held_next(&rest, &found));
        CHECK_STR(found.socket, "a");
        CHECK_INT(found.name, 0x100);
        CHECK(!held_next(&rest, &found));
    }
}

TEST(a_holder_is_an_ancestor_by_its_token_or_by_its_pid_where_the_list_may_lack_it)
{
    static const char list[] = "0000000000000001:" NAME_1 ":" TOKEN_A ":a";
    struct dlock_info info = {.token = TOKEN_A, .host = "elsewhere", .pid = 1};
    CHECK(held_by_ancestor(list, &info));
    CHECK(!held_by_ancestor(NULL, &info));
    snprintf(info.token, sizeof(info.token), "%s", TOKEN_B);
    gethostname(info.host, sizeof(info.host));
    info.pid = getppid();
    CHECK(!held_by_ancestor(list, &info)); /* the list is complete */
    CHECK(
        !held_by_ancestor(NULL, &info)); /* no dlock: the holder is on another host of that name */
    info.pid = getpid();
    CHECK(!held_by_ancestor(NULL, &info));
    pid_t child = fork();
    if (child == 0) {
        bool found = held_by_ancestor(NULL, &info);
        info.since_ms = 1000; /* long before that process */
        _exit(found && !held_by_ancestor(NULL, &info) ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static char *key_of(const char *text)
{
    struct dlock_uri *uri = NULL;
    char *key;
    CHECK_INT(dlock_uri_parse(&uri, text, NULL), 0);
    key = nested_key(uri);
    dlock_uri_free(uri);
    return key;
}

/* Have these two the same key? */
static bool same(const char *a, const char *b)
{
    char *one = key_of(a), *two = key_of(b);
    bool equal = strcmp(one, two) == 0;
    CHECK(!strstr(one, "s3cret") && !strstr(two, "s3cret"));
    free(one);
    free(two);
    return equal;
}

TEST(the_key_of_a_lock_has_no_credentials_and_tells_locks_apart)
{
    CHECK(same("redis://h#n", "redis://me:s3cret@h:6379/0#n"));
    CHECK(!same("redis://h#n", "redis://h#m"));
    CHECK(!same("redis://h#n", "redis://h/1#n"));
    CHECK(!same("redis+unix:///s?db=1#n", "redis+unix:///s?db=2#n"));
    CHECK(!same("postgres://h/d?mode=lease#n", "postgres://h/d#n"));
    CHECK(same("postgres://a@h/d#n", "postgres://b:s3cret@h/d#n"));
    CHECK(!same("postgres://a@h#n", "postgres://b@h#n")); /* the user's database */
    setenv("PGHOST", "one", 1);
    char *one = key_of("postgres:///d#n");
    setenv("PGHOST", "two", 1);
    char *two = key_of("postgres:///d#n");
    CHECK(strcmp(one, two) != 0);
    free(one);
    free(two);
    unsetenv("PGHOST");
}

UNIT_MAIN
