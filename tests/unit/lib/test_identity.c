/* The holder record: any text in it can be read back, and it never exceeds its limit. */
#include "unit.h"
#include "util.h"

#include <time.h>
#include <unistd.h>

static struct dlock_identity sample(void)
{
    struct dlock_identity w = {.pid = 123, .since_ms = INT64_C(1790000000000)};
    strcpy(w.host, "web1");
    strcpy(w.user, "root");
    strcpy(w.command, "backup.sh -v");
    return w;
}

/* Write the record of an identity into buf, and read it. */
static char buf[1000];
static struct dlock_info info;
static int round_trip(const struct dlock_identity *w, enum dlock_record kind)
{
    int n = dlock_identity_format(w, kind, buf, sizeof(buf));
    CHECK(n > 0 && dlock_identity_parse(buf, (size_t)n, &info));
    return n;
}

TEST(record)
{
    struct dlock_identity w = sample();
    info = (struct dlock_info){.place = 7};
    int n = round_trip(&w, RECORD_WAITS);
    CHECK_STR(buf,
              "dlock1 host=web1 pid=123 user=root since=1790000000000 cmd=backup.sh%20-v note=");
    CHECK_INT(n, strlen(buf));
    CHECK_STR(info.host, "web1");
    CHECK_STR(info.user, "root");
    CHECK_STR(info.command, "backup.sh -v");
    CHECK_STR(info.note, "");
    CHECK_INT(info.pid, 123);
    CHECK_INT(info.since_ms, INT64_C(1790000000000));
    CHECK_INT(info.waited_ms, -1);
    CHECK_INT(info.place, 7);
}

TEST(the_record_of_a_holder_tells_the_grant_and_the_wait)
{
    struct dlock_identity w = sample();
    w.since = dlock_now() - 90 * DLOCK_SEC;
    round_trip(&w, RECORD_HOLDS);
    CHECK_INT(info.since_ms - info.waited_ms, w.since_ms);
    CHECK(info.waited_ms >= 90000 && info.waited_ms < 150000);
}

TEST(every_character_survives)
{
    struct dlock_identity w = sample();
    strcpy(w.command, "a=b c%20d \"'\\{}[]|&;<>#?!$*~^`");
    strcpy(w.note, "Größe = 5 € 😀 100%");
    round_trip(&w, RECORD_WAITS);
    CHECK_STR(info.command, w.command);
    CHECK_STR(info.note, w.note);
    for (const char *p = buf; *p; p++)
        CHECK(*p > 0x1f && *p < 0x7f && *p != '"' && *p != '\\');
}

static void fill(char *dst, size_t size, const char *with)
{
    size_t n = strlen(with);
    dst[0] = '\0';
    for (size_t used = 0; used + n < size; used += n)
        memcpy(dst + used, with, n + 1);
}

/* Text that triples when encoded: first the command is cut, then the note, by whole characters. */
TEST(long_records_are_cut)
{
    struct dlock_identity w = sample();
    fill(w.note, sizeof(w.note), "n");
    fill(w.command, sizeof(w.command), "😀");
    int n = round_trip(&w, RECORD_WAITS);
    CHECK(n > 880 && n <= 900);
    CHECK_STR(info.note, w.note);
    CHECK(strlen(info.command) > 100 && strlen(info.command) < strlen(w.command));
    CHECK_INT(strlen(info.command) % 4, 0);
    CHECK_NULL(strchr(info.command, '?'));
    fill(w.note, sizeof(w.note), "😀");
    fill(w.host, sizeof(w.host), "h");
    n = round_trip(&w, RECORD_WAITS);
    CHECK(n > 880 && n <= 900);
    CHECK_STR(info.command, "");
    CHECK(strlen(info.note) > 150);
    CHECK_INT(strlen(info.note) % 4, 0);
}

TEST(small_buffers)
{
    struct dlock_identity w = sample();
    strcpy(w.note, "note");
    for (size_t size = 0; size < 200; size++) {
        memset(buf, '#', sizeof(buf));
        int n = dlock_identity_format(&w, RECORD_WAITS, buf, size);
        if (n < 0)
            continue;
        CHECK((size_t)n < size);
        CHECK_INT(strlen(buf), n);
        CHECK(size > 60);
    }
    CHECK_INT(dlock_identity_format(&w, RECORD_WAITS, buf, 0), -1);
    CHECK_INT(dlock_identity_format(&w, RECORD_WAITS, buf, 60), -1);
}

TEST(foreign_records)
{
    static const char *const bad[] = {"",
                                      "dlock",
                                      "dlock2 host=a",
                                      "dlock12 host=a",
                                      "dlock1host=a",
                                      "Dlock1 host=a",
                                      " dlock1 host=a",
                                      "12345\n",
                                      "\xff\xfe"};
    for (size_t i = 0; i < DLOCK_LEN(bad); i++)
        if (dlock_identity_parse(bad[i], strlen(bad[i]), &info))
            CHECK_FAIL("\"%s\" was taken", bad[i]);
}

TEST(odd_records)
{
    static const char text[] =
        "dlock1  host=a%41%zz%4 new=1 pid=12x user=%1b[31m since=99999999999999999999 "
        "=x cmd note=%ff%C3%A4%00 hostx=no\ntrailing host=second";
    memset(&info, 'z', sizeof(info));
    CHECK(dlock_identity_parse(text, sizeof(text) - 1, &info));
    CHECK_STR(info.host, "aA%zz%4");
    CHECK_INT(info.pid, 0);
    CHECK_INT(info.since_ms, 0);
    CHECK_STR(info.user, "?[31m");
    CHECK_STR(info.command, "");
    CHECK_STR(info.note, "?ä?");
    CHECK(dlock_identity_parse("dlock1", 6, &info));
    CHECK_STR(info.host, "");
    CHECK(dlock_identity_parse("dlock1 ", 7, &info));
    CHECK(dlock_identity_parse("dlock1 host", 11, &info));
}

/* Exact buffers on the heap: a sanitizer detects one byte too far. */
TEST(every_prefix)
{
    struct dlock_identity w = sample();
    strcpy(w.note, "ä ä");
    int n = round_trip(&w, RECORD_WAITS);
    for (int i = 1; i <= n; i++) {
        char *copy = malloc((size_t)i);
        memcpy(copy, buf, (size_t)i);
        dlock_identity_parse(copy, (size_t)i, &info);
        free(copy);
    }
}

TEST(a_long_value)
{
    char text[3000];
    int n = snprintf(text, sizeof(text), "dlock1 cmd=%0*d user=%0*d", 1500, 7, 1000, 8);
    CHECK(dlock_identity_parse(text, (size_t)n, &info));
    CHECK_INT(strlen(info.command), 255);
    CHECK_INT(strlen(info.user), 63);
}

TEST(init)
{
    struct dlock_identity w;
    char big[600];
    memset(&w, 0xff, sizeof(w));
    memset(big, 'x', sizeof(big));
    big[sizeof(big) - 1] = '\0';
    setenv("USER", "somebody-else", 1);
    dlock_identity_init(&w, big, "two\nlines");
    CHECK(w.host[0]);
    CHECK(w.user[0]);
    CHECK(strcmp(w.user, "somebody-else") != 0);
    if (geteuid() == 0)
        CHECK_STR(w.user, "root");
    CHECK_INT(strlen(w.command), 255);
    CHECK_STR(w.note, "two?lines");
    CHECK_INT(w.pid, getpid());
    CHECK(llabs(w.since_ms - (long long)time(NULL) * 1000) < 60000);
    CHECK(dlock_now() - w.since < 60 * DLOCK_SEC);
    dlock_identity_init(&w, NULL, NULL);
    CHECK_STR(w.command, "");
    CHECK_STR(w.note, "");
}

TEST(one_hold_seen_twice)
{
    static const struct {
        struct dlock_info a, b;
        bool same;
    } t[] = {
        {{.token = "a", .fence = 1}, {.token = "a", .fence = 2, .pid = 3}, true},
        {{.token = "a"}, {.token = "b"}, false},
        {{.token = "a", .pid = 1}, {.pid = 1}, false},
        /* Without a token: by the fence where both have one, else by the process. */
        {{.fence = 5}, {.fence = 5}, true},
        {{.fence = 5, .pid = 1}, {.fence = 6, .pid = 1}, false},
        {{.fence = 5, .pid = 1}, {.pid = 1}, true},
        {{.pid = 1, .host = "h"}, {.pid = 1, .host = "h"}, true},
        {{.pid = 1, .host = "h"}, {.pid = 1, .host = "i"}, false},
        {{.pid = 1, .since_ms = 7}, {.pid = 1, .since_ms = 8}, false},
        {{.pid = 1, .since_ms = 7}, {.pid = 0, .since_ms = 7}, true}, /* executes a program */
        {{.pid = 1, .since_ms = 7}, {.pid = 2, .since_ms = 7}, false},
        {{.pid = 1}, {.pid = 0}, false},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        CHECK_INT(dlock_same_hold(&t[i].a, &t[i].b), t[i].same);
        CHECK_INT(dlock_same_hold(&t[i].b, &t[i].a), t[i].same);
    }
}

UNIT_MAIN
