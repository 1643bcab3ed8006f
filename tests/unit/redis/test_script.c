/*
 * test_script.c - the scripts of a lock in Redis: keys, answers (also those of a server that is not
 * Redis), values.
 */
#include "unit.h"

#include "backends/redis/script.h"

TEST(no_two_names_share_a_key)
{
    static const char *const t[][2] = {
        {"x", "{x}:dlock:"},       {"{x}", "{x}::dlock:"}, {"a{b}c", "a{b}c::dlock:"},
        {"a{}b", "{a{}b}:dlock:"}, {"}{", "{}{}:dlock:"},  {"a{b", "{a{b}:dlock:"},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        struct redis_script s;
        REQUIRE_INT(redis_script_init(&s, t[i][0], 0), 0);
        CHECK_STR(s.prefix, t[i][1]);
        redis_script_done(&s);
    }
}

/* Valid until the next call, and never NULL. */
static const redisReply *parse(const char *text)
{
    static void *r;
    redisReader *rd = redisReaderCreate();
    freeReplyObject(r);
    r = NULL;
    redisReaderFeed(rd, text, strlen(text));
    if (redisReaderGetReply(rd, &r) != REDIS_OK || !r)
        abort();
    redisReaderFree(rd);
    return r;
}

static int tried(const char *text, struct redis_script_tried *t)
{
    return redis_script_tried(parse(text), t);
}

TEST(answers_of_the_scripts)
{
    static const char *const bad[] = {
        "*0\r\n",
        ":1\r\n",
        "+granted\r\n",
        "*5\r\n$7\r\ngranted\r\n$2\r\nxx\r\n:1\r\n:1\r\n$0\r\n\r\n",
        "*5\r\n$7\r\ngranted\r\n$1\r\n0\r\n:1\r\n:1\r\n$0\r\n\r\n",
        "*5\r\n$7\r\ngranted\r\n$20\r\n99999999999999999999\r\n:1\r\n:1\r\n$0\r\n\r\n",
        "*5\r\n$4\r\nwhat\r\n$1\r\n1\r\n:1\r\n:1\r\n$0\r\n\r\n",
        "*5\r\n$4\r\nbusy\r\n$1\r\n1\r\n$1\r\n1\r\n:1\r\n$-1\r\n",
        "*10\r\n$7\r\ngranted\r\n$1\r\n5\r\n:1\r\n:1\r\n$0\r\n\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
    };
    struct redis_script_tried tr;
    struct redis_script_state st;
    struct redis_script_owned o;
    for (size_t i = 0; i < DLOCK_LEN(bad); i++) {
        const redisReply *r = parse(bad[i]);
        if (!CHECK_INT(redis_script_tried(r, &tr), DLOCK_EPROTO))
            printf("# %zu\n", i);
        CHECK_INT(redis_script_state(r, &st), DLOCK_EPROTO);
    }
    CHECK_INT(
        tried("*5\r\n$4\r\nbusy\r\n$1\r\n0\r\n:9223372036854775807\r\n:3\r\n$1\r\nx\r\n", &tr), 0);
    /* A lease of centuries, and the next try a third of a ttl away, not always in the past. */
    CHECK(tr.left_ms * DLOCK_MSEC > 365 * 86400 * DLOCK_SEC);
    CHECK(tr.left_ms * DLOCK_MSEC < INT64_MAX / 2);
    CHECK_INT(tr.now_ms, 0);
    CHECK_INT(tried("*6\r\n$7\r\ngranted\r\n$1\r\n5\r\n:1\r\n:0\r\n$0\r\n\r\n:1234\r\n", &tr), 0);
    CHECK_INT(tr.now_ms, 1234);
    CHECK_INT(tr.up_ms, 0);
    CHECK_INT(
        tried("*8\r\n$5\r\ngrace\r\n$1\r\n0\r\n:1\r\n:0\r\n$0\r\n\r\n:1\r\n:-5\r\n:-9\r\n", &tr),
        0);
    CHECK_INT(tr.up_ms, -5);
    CHECK_INT(tr.longest_ms, 0);
    CHECK_INT(tr.ticket, 0);
    CHECK_INT(tried("*9\r\n$4\r\nbusy\r\n$1\r\n0\r\n:1\r\n:3\r\n$0\r\n\r\n:1\r\n:0\r\n:0\r\n"
                    ":1795380000000001\r\n",
                    &tr),
              0);
    CHECK_INT(tr.ticket, 1795380000000001);
    CHECK_INT(redis_script_owned(parse("*2\r\n:0\r\n$-1\r\n"), &o), 0);
    CHECK(!o.ours);
    CHECK_NULL(o.found);
    CHECK_INT(o.now_ms, 0);
    static const struct {
        const char *text;
        int64_t at;
    } owned[] = {
        {"*3\r\n:1\r\n$-1\r\n:1234\r\n", 1234},
        {"*3\r\n:1\r\n$-1\r\n:-5\r\n", 0},
        {"*3\r\n:1\r\n$-1\r\n$1\r\n5\r\n", 0},
        {"*1\r\n:1\r\n", 0},
    };
    for (size_t i = 0; i < DLOCK_LEN(owned); i++) {
        CHECK_INT(redis_script_owned(parse(owned[i].text), &o), 0);
        CHECK(o.ours);
        CHECK_INT(o.now_ms, owned[i].at);
    }
    CHECK_INT(redis_script_owned(parse(":1\r\n"), &o), DLOCK_EPROTO);
}

TEST(a_new_head_is_told_of_the_lease)
{
    static const struct {
        const char *text;
        enum redis_script_call call;
        int64_t left; /* 0: not told */
        const char *holder;
    } t[] = {
        {"head", RS_HEAD, 0, NULL},
        {"head 1500 abc d", RS_HEAD, 1500, "abc d"},
        {"head 9223372036854775807 a", RS_HEAD, INT64_MAX / 4 / DLOCK_MSEC, "a"},
        {"head 0 a", RS_HEAD, 0, NULL},
        {"head -5 a", RS_HEAD, 0, NULL},
        {"head x", RS_HEAD, 0, NULL},
        {"header", RS_NOTHING, 0, NULL},
        {"second", RS_SECOND, 0, NULL},
    };
    struct redis_script s;
    struct redis_script_tried tr;
    REQUIRE_INT(redis_script_init(&s, "x", 0), 0);
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        char text[128];
        snprintf(text, sizeof(text), "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$%zu\r\n%s\r\n",
                 strlen(t[i].text), t[i].text);
        const redisReply *r = parse(text);
        CHECK_INT(redis_script_called(&s, r), t[i].call);
        if (t[i].call == RS_HEAD && CHECK_INT(redis_script_head(r, &tr), t[i].left != 0) &&
            t[i].left != 0) {
            CHECK_INT(tr.left_ms, t[i].left);
            CHECK_INT(tr.place, 1);
            CHECK_STR(tr.holder, t[i].holder);
            CHECK_INT((int64_t)tr.holder_len, (int64_t)strlen(t[i].holder));
        }
    }
    redis_script_done(&s);
}

TEST(answers_to_looks)
{
    static const struct {
        const char *text;
        bool held;
        int64_t left;
    } t[] = {{":-2\r\n", false, 0},     {":-1\r\n", true, -1},          {":0\r\n", true, 0},
             {":1500\r\n", true, 1500}, {"-MOVED 1 h:1\r\n", false, 0}, {"+OK\r\n", false, 0}};
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        int64_t left = 0;
        CHECK_INT(redis_script_looked(parse(t[i].text), &left), t[i].held);
        CHECK_INT(left, t[i].left);
    }
}

TEST(values_and_ids_tell_their_kind)
{
    static const struct {
        enum dlock_mode mode;
        unsigned slots;
        const char *kind;
    } t[] = {{DLOCK_MODE_EXCLUSIVE, 0, ""},
             {DLOCK_MODE_SHARED, 0, "s:"},
             {DLOCK_MODE_SLOTS, 1000, "n1000:"}};
    static const char *const odd[] = {"n0:", "n:", "n12", "x:", "s", "n-1:", "n99999999:"};
    static const char record[] = "0123456789abcdef0123456789abcdef dlock1 pid=7 ttl=5";
    struct dlock_identity identity = {.host = "h", .user = "u", .command = "c", .pid = 7};
    struct dlock_info info;
    char kind[REDIS_SCRIPT_KIND], text[128];
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        struct dlock_spec spec = {
            .identity = &identity, .ttl = DLOCK_SEC, .mode = t[i].mode, .slots = t[i].slots};
        CHECK_STR(redis_script_kind(&spec, kind), t[i].kind);
        char *v = redis_script_value(&spec, spec.ttl, "0123456789abcdef0123456789abcdef");
        REQUIRE(v != NULL);
        redis_script_holder(v, strlen(v), &info);
        CHECK(!info.foreign);
        CHECK_INT(info.mode, t[i].mode);
        CHECK_INT(info.slots, t[i].slots);
        CHECK_STR(info.token, "0123456789abcdef0123456789abcdef");
        CHECK_INT(redis_script_ttl(v, strlen(v)), 1000);
        free(v);
        snprintf(text, sizeof(text), "%sab 1000 0 dlock1 pid=9", t[i].kind);
        CHECK(redis_script_waiter(text, strlen(text), 1000, &info));
        CHECK_INT(info.mode, t[i].mode);
        CHECK_INT(info.slots, t[i].slots);
    }
    for (size_t i = 0; i < DLOCK_LEN(odd); i++) {
        snprintf(text, sizeof(text), "%s%s", odd[i], record);
        redis_script_holder(text, strlen(text), &info);
        CHECK(info.foreign);
        CHECK_INT(info.mode, DLOCK_MODE_EXCLUSIVE);
        redis_script_holder(odd[i], strlen(odd[i]), &info);
        CHECK(info.foreign);
    }
    redis_script_holder("dlock:shared:0123", 17, &info);
    CHECK(!info.foreign);
    CHECK_INT(info.mode, DLOCK_MODE_SHARED);
    CHECK_STR(info.token, "");
}

static bool together(const char *entry, struct dlock_info *info)
{
    char text[256];
    snprintf(text, sizeof(text), "$%zu\r\n%s\r\n", strlen(entry), entry);
    return redis_script_together(parse(text), info);
}

TEST(holders_that_stand_together)
{
    struct dlock_info info;
    CHECK(together("1500 0 s:0123456789abcdef0123456789abcdef dlock1 pid=7", &info));
    CHECK_INT(info.mode, DLOCK_MODE_SHARED);
    CHECK_INT(info.slot, 0);
    CHECK_INT(info.left_ns, 1500 * DLOCK_MSEC);
    CHECK(together("-5 3 n3:0123456789abcdef0123456789abcdef dlock1 pid=7", &info));
    CHECK_INT(info.slot, 3);
    CHECK_INT(info.slots, 3);
    CHECK_INT(info.left_ns, 0);
    /* The slot of another N. */
    CHECK(together("5 4 n3:0123456789abcdef0123456789abcdef dlock1 pid=7", &info));
    CHECK_INT(info.slot, 0);
    CHECK(!together("", &info));
    CHECK(!together("5 x", &info));
    CHECK(!together("5 0 s:other", &info));
    const redisReply *r = parse("*8\r\n:1\r\n$1\r\nx\r\n:5\r\n:6\r\n$1\r\n7\r\n"
                                "*2\r\n$1\r\na\r\n$1\r\nb\r\n$3\r\nrun\r\n*0\r\n");
    struct redis_script_state st;
    CHECK_INT(redis_script_state(r, &st), 0);
    CHECK_INT((int64_t)st.ntogether, 2);
    CHECK_INT((int64_t)st.nwaiters, 0);
    CHECK_STR(st.run, "run");
    CHECK_INT((int64_t)st.run_len, 3);
    static const char *const odd[] = {
        "*7\r\n:1\r\n$1\r\nx\r\n:5\r\n:6\r\n$1\r\n7\r\n$1\r\na\r\n$0\r\n\r\n",
        "*6\r\n:1\r\n$1\r\nx\r\n:5\r\n:6\r\n$1\r\n7\r\n*0\r\n",
        "*7\r\n:1\r\n$1\r\nx\r\n:5\r\n:6\r\n$1\r\n7\r\n*0\r\n:8\r\n",
        "*8\r\n:1\r\n$1\r\nx\r\n:5\r\n:6\r\n$1\r\n7\r\n*0\r\n$3\r\nrun\r\n$0\r\n\r\n",
    };
    for (size_t i = 0; i < DLOCK_LEN(odd); i++) {
        CHECK_INT(redis_script_state(parse(odd[i]), &st), DLOCK_EPROTO);
    }
}

TEST(a_holder_whose_run_is_over)
{
    static const char *const texts[] = {
        "0123456789abcdef0123456789abcdef dlock1 pid=7 ttl=5 over=1",
        "0123456789abcdef0123456789abcdef dlock1 pid=7 ttl=5",
        "s:0123456789abcdef0123456789abcdef dlock1 pid=7 ttl=5 over=1",
        " over=1",
    };
    static const bool over[] = {true, false, true, false};
    for (size_t i = 0; i < DLOCK_LEN(texts); i++) {
        struct dlock_info info;
        redis_script_holder(texts[i], strlen(texts[i]), &info);
        CHECK_INT(info.over, over[i]);
        CHECK_INT(info.foreign, i == 3);
        CHECK_INT(redis_script_ttl(texts[i], strlen(texts[i])), i == 3 ? 0 : 5);
    }
}

TEST(an_answer_about_a_foreign_record)
{
    struct redis_script_owned o;
    CHECK_INT(redis_script_owned(parse("*3\r\n:3\r\n$4\r\nhash\r\n:5\r\n"), &o), 0);
    CHECK(o.foreign);
    CHECK_STR(o.found, "hash");
    CHECK_INT(redis_script_owned(parse("*3\r\n:1\r\n$4\r\nhash\r\n:5\r\n"), &o), 0);
    CHECK(!o.foreign);
}

TEST(slots_in_answers)
{
    struct redis_script_tried tr;
    CHECK_INT(tried("*5\r\n$7\r\ngranted\r\n$1\r\n5\r\n:1\r\n:3\r\n$0\r\n\r\n", &tr), 0);
    CHECK_INT(tr.slot, 3);
    CHECK_INT(tried("*5\r\n$5\r\nslots\r\n$1\r\n0\r\n:0\r\n:99999\r\n$0\r\n\r\n", &tr), 0);
    CHECK_INT(tr.status, RS_SLOTS);
    CHECK_INT(tr.slot, DLOCK_SLOTS_MAX);
    CHECK(redis_script_shared(parse("$13\r\ndlock:shared:\r\n")));
    CHECK(!redis_script_shared(parse("$-1\r\n")));
}

TEST(values_and_entries)
{
    struct dlock_identity identity = {
        .host = "h", .user = "u", .command = "c d", .pid = 7, .since_ms = 8};
    struct dlock_info info;
    struct dlock_spec spec = {.identity = &identity, .ttl = 1500 * DLOCK_MSEC};
    char *v = redis_script_value(&spec, spec.ttl, "0123456789abcdef0123456789abcdef");
    REQUIRE(v != NULL);
    redis_script_holder(v, strlen(v), &info);
    CHECK(!info.foreign);
    CHECK_STR(info.token, "0123456789abcdef0123456789abcdef");
    CHECK_STR(info.command, "c d");
    CHECK_INT(info.pid, 7);
    CHECK_INT(redis_script_ttl(v, strlen(v)), 1500);
    CHECK_INT(redis_script_ttl(v, strlen(v) - 1), 150); /* cut */
    CHECK_INT(redis_script_ttl("x ttl=5", 7), 0);
    redis_script_holder("abc", 3, &info);
    CHECK(info.foreign);
    redis_script_holder("", 0, &info);
    CHECK(info.foreign);
    v[0] = 'X'; /* not a token */
    redis_script_holder(v, strlen(v), &info);
    CHECK(info.foreign);
    CHECK_STR(info.host, "");
    free(v);
    static const char entry[] = "id 1000 0 dlock1 host=h pid=9 user=u since=9000 waited=2000 cmd=x";
    CHECK(redis_script_waiter(entry, strlen(entry), 1000, &info));
    CHECK_INT(info.pid, 9);
    CHECK(info.waiter);
    CHECK_INT(info.since_ms, 7000);
    CHECK_INT(info.waited_ms, -1);
    CHECK_INT(redis_script_waiter_id(entry), 2);
    CHECK(!info.silent);
    CHECK(redis_script_waiter(entry, strlen(entry), 1001, &info));
    CHECK(info.silent);
    CHECK(!redis_script_waiter("", 0, 0, &info));
    CHECK(!redis_script_waiter("id", 2, 0, &info));
    CHECK(!redis_script_waiter("id ", 3, 0, &info));
    CHECK(!redis_script_waiter("id 12", 5, 0, &info));
    CHECK(!redis_script_waiter("id 12 0", 7, 0, &info));
    /* Numbers that another program has written. */
    static const char odd[] = "id 9 0 dlock1 since=5 waited=9";
    CHECK(redis_script_waiter(odd, strlen(odd), 9, &info));
    CHECK_INT(info.since_ms, 0);
}

#define TOKEN "0123456789abcdef0123456789abcdef"

TEST(a_mark_tells_by_whom_and_when)
{
    static const struct {
        const char *text, *by;
        int64_t when_ms;
    } marks[] = {
        {"1790000000000 root@db1, note \"stuck\"", "root@db1, note \"stuck\"", 1790000000000},
        /* The key is gone, or another program has written it. */
        {"", "an unknown client", 0},
        {"17", "an unknown client", 0},
        {"17 ", "an unknown client", 17},
        {"root@db1", "an unknown client", 0},
        {"99999999999999999999999 root@db1", "an unknown client", 0},
    };
    for (size_t i = 0; i < DLOCK_LEN(marks); i++) {
        size_t len = strlen(marks[i].text);
        int64_t when_ms = -1;
        const char *by = redis_script_mark(marks[i].text, &len, &when_ms);
        CHECK_STR(by, marks[i].by);
        CHECK_INT((int64_t)len, (int64_t)strlen(marks[i].by));
        CHECK_INT(when_ms, marks[i].when_ms);
    }
}

/* The holder in a state with these marks; value: of NAME. */
static void marked_holder(const char *value, const char *mark, struct dlock_info *info)
{
    char reply[512];
    struct redis_script_state st;
    snprintf(
        reply, sizeof(reply),
        "*8\r\n:1\r\n$%zu\r\n%s\r\n:5\r\n:6\r\n$1\r\n7\r\n*0\r\n$0\r\n\r\n*1\r\n$%zu\r\n%s\r\n",
        strlen(value), value, strlen(mark), mark);
    REQUIRE(redis_script_state(parse(reply), &st) == 0 && redis_script_holder_at(&st, 0, info));
}

TEST(the_state_tells_who_has_broken_a_hold)
{
    struct dlock_info info;
    marked_holder(TOKEN " dlock1 host=h pid=7 ttl=3000 break=1", TOKEN " 1790000000000 root@db1",
                  &info);
    CHECK(info.broken && !info.foreign && !info.over);
    CHECK_STR(info.broken_by, "root@db1");
    CHECK_INT(info.broken_ms, 1790000000000);
    CHECK_STR(info.host, "h");
    /* The mark of another holder; a mark without a text. */
    marked_holder(TOKEN " dlock1 ttl=3000 break=1", "fedcba9876543210fedcba9876543210 17 me",
                  &info);
    CHECK(info.broken && info.broken_by[0] == '\0');
    marked_holder(TOKEN " dlock1 ttl=3000 break=1", TOKEN " ", &info);
    CHECK_STR(info.broken_by, "an unknown client");
    /* No mark; the name of a value that dlock has not written. */
    marked_holder(TOKEN " dlock1 ttl=3000", "fedcba9876543210fedcba9876543210", &info);
    CHECK(!info.broken);
    CHECK_STR(info.token, TOKEN);
    marked_holder("other", "fedcba9876543210fedcba9876543210", &info);
    CHECK(info.foreign && !info.broken);
    CHECK_STR(info.token, "fedcba9876543210fedcba9876543210");
    marked_holder("other", "fedcba", &info);
    CHECK_STR(info.token, "");
}

TEST(answers_to_a_step_of_a_query)
{
    static const struct {
        const char *word;
        enum redis_script_stepped what;
    } answers[] = {{"done", STEPPED_DONE},
                   {"changed", STEPPED_CHANGED},
                   {"foreign", STEPPED_FOREIGN},
                   {"record", STEPPED_RECORD}};
    static const char *const odd[] = {"$4\r\ndone\r\n", "*0\r\n", "*1\r\n:1\r\n",
                                      "*1\r\n$4\r\nwhat\r\n"};
    enum redis_script_stepped what;
    char text[64];
    for (size_t i = 0; i < DLOCK_LEN(answers); i++) {
        snprintf(text, sizeof(text), "*2\r\n$%zu\r\n%s\r\n$4\r\nhash\r\n", strlen(answers[i].word),
                 answers[i].word);
        CHECK_INT(redis_script_stepped(parse(text), &what), 0);
        CHECK_INT(what, answers[i].what);
    }
    for (size_t i = 0; i < DLOCK_LEN(odd); i++)
        CHECK_INT(redis_script_stepped(parse(odd[i]), &what), DLOCK_EPROTO);
}

/* The hash of the embedded text, by another program. */
TEST(each_script_is_named_by_its_sha1)
{
    for (int op = SCRIPT_TRY; op <= SCRIPT_LIST; op++) {
        const struct lua *lua = redis_script_lua((enum redis_script_op)op);
        char command[64], sum[41] = "";
        FILE *text = tmpfile();
        REQUIRE(text != NULL && fputs(lua->text, text) >= 0 && fflush(text) == 0);
        snprintf(command, sizeof(command), "sha1sum </proc/self/fd/%d", fileno(text));
        FILE *p = popen(command, "r");
        REQUIRE(p != NULL && fgets(sum, sizeof(sum), p) != NULL);
        pclose(p);
        fclose(text);
        CHECK_STR(sum, lua->sha1);
    }
}

UNIT_MAIN
