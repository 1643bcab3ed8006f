/*
 * test_zookeeper.c - the ZooKeeper backend without a server: names of nodes and their order, the
 * URI, records of other programs, the lease, our node.
 */
#include "unit.h"

#include "backends/zookeeper/acquire.c"
#include "backends/zookeeper/session.c"
#include "backends/zookeeper/wire/conn.c"
#include "user.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

/* --------------------------------------------------------------- sequences */

#define UUID "_c_0f8fad5b-d9cb-469f-a165-70867728950e"
#define HEX "0f8fad5bd9cb469fa16570867728950e"

TEST(reads_the_sequence_at_the_end_of_a_name)
{
    static const struct {
        const char *name;
        int64_t seq;
    } good[] = {
        {"0000000000", 0},
        {"lock-0000000001", 1},
        {"x0000000012", 12},
        {UUID "-lock-0000000007", 7},
        {UUID "-lock-2147483647", 2147483647},
        /* "%010d" of the counter after it has overflowed */
        {UUID "-lock--2147483648", -2147483648LL},
        {UUID "-lock--2147483647", -2147483647LL},
        {UUID "-lock--1000000000", -1000000000},
        {UUID "-lock--999999999", -999999999},
        {UUID "-lock--000000042", -42},
        {UUID "-lock--000000001", -1},
        {UUID "-__READ__0000000003", 3},
        {UUID "-__WRIT__0000000004", 4},
        {UUID "-__READ__-2147483648", -2147483648LL},
        {UUID "-__WRIT__-000000004", -4},
        {HEX "__lock__0000000005", 5},
        {HEX "__lock__2147483647", 2147483647},
        {HEX "__lock__-2147483648", -2147483648LL},
        {HEX "__lock__-000000005", -5},
        {HEX "__rlock__0000000006", 6},
        {HEX "__rlock__-000000006", -6},
        {"-2147483648", -2147483648LL},
        {"-000000001", -1},
        /* Curator's semaphore lock, the C recipe's x-SESSION-SEQ */
        {UUID "-lease-0000000009", 9},
        {"x-1099511627776000-0000000010", 10},
        {"job20240101000000000011", 11},
    };
    for (size_t i = 0; i < DLOCK_LEN(good); i++) {
        int64_t seq = INT64_MIN;
        if (!CHECK(zk_sequence(good[i].name, &seq)) || !CHECK_INT(seq, good[i].seq))
            printf("# %s\n", good[i].name);
    }
}

TEST(ignores_names_without_a_sequence)
{
    /* clang-format off */
    static const char *const bad[] = {
        "", "a", "1", "-", "-1", "123456789", "lock-123456789", "leases", "locks", "000000000x",
        UUID, UUID "-lock-", "lock-0000000001x", HEX, HEX "__lock__", "lock-00000 0001",
        "x000000001", ("lock-\xc3\xa4" "000000001")};
    /* clang-format on */
    for (size_t i = 0; i < DLOCK_LEN(bad); i++) {
        int64_t seq = 4711;
        if (!CHECK(!zk_sequence(bad[i], &seq)))
            printf("# %s gave %lld\n", bad[i], (long long)seq);
    }
}

static struct zk_child *line_of(const char *const *names, int nnames, int *n)
{
    return zk_line((char *const *)(uintptr_t)names, nnames, n);
}

TEST(sorts_the_queue_by_sequence_alone)
{
    static const char *const names[] = {
        HEX "__lock__0000000010",
        UUID "-lock-0000000009",
        UUID "-__WRIT__0000000100",
        "locks",
        HEX "__rlock__0000000011",
        UUID "-__READ__0000000007",
        "zz-0000000008",
        "leases",
        UUID "-lock--000000001",
        UUID "-lock--2147483648",
        HEX "__lock__-999999999",
        UUID "-lock--1000000000",
        UUID "-lock-2147483647",
    };
    static const int order[] = {9, 11, 10, 8, 5, 6, 1, 0, 4, 2, 12};
    int n;
    struct zk_child *line = line_of(names, (int)DLOCK_LEN(names), &n);
    REQUIRE(line);
    REQUIRE_INT(n, DLOCK_LEN(order));
    for (int i = 0; i < n; i++)
        if (!CHECK(line[i].name == names[order[i]]))
            printf("# at %d: %s\n", i, line[i].name);
    free(line);
    line = zk_line(NULL, 0, &n);
    CHECK(line != NULL);
    CHECK_INT(n, 0);
    free(line);
}

TEST(reads_the_kind_in_a_name)
{
    static const struct {
        const char *name;
        enum dlock_mode mode;
        unsigned slots;
    } rows[] = {
        {UUID "-lock-0000000001", DLOCK_MODE_EXCLUSIVE, 0},
        {UUID "-r-lock-0000000001", DLOCK_MODE_SHARED, 0},
        {UUID "-s1-lock-0000000001", DLOCK_MODE_SLOTS, 1},
        {UUID "-s20-lock-0000000001", DLOCK_MODE_SLOTS, 20},
        {UUID "-s1000-lock-0000000001", DLOCK_MODE_SLOTS, 1000},
        /* Of unknown kinds. */
        {UUID "-s1001-lock-0000000001", DLOCK_MODE_EXCLUSIVE, 0},
        {UUID "-s4294967298-lock-0000000001", DLOCK_MODE_EXCLUSIVE, 0},
        {UUID "-s02-lock-0000000001", DLOCK_MODE_EXCLUSIVE, 0},
        {UUID "-s-lock-0000000001", DLOCK_MODE_EXCLUSIVE, 0},
        {UUID "-s2x-lock-0000000001", DLOCK_MODE_EXCLUSIVE, 0},
        {UUID "-s2-0000000001", DLOCK_MODE_EXCLUSIVE, 0},
        {UUID "-q-lock-0000000001", DLOCK_MODE_EXCLUSIVE, 0},
        {UUID "r-lock-0000000001", DLOCK_MODE_EXCLUSIVE, 0},
        {"x-r-lock-0000000001", DLOCK_MODE_EXCLUSIVE, 0},
        {"_c_-r-lock-0000000001", DLOCK_MODE_EXCLUSIVE, 0},
        {"0000000001", DLOCK_MODE_EXCLUSIVE, 0},
        /* Others' read locks. */
        {UUID "-__READ__0000000001", DLOCK_MODE_SHARED, 0},
        {UUID "-__WRIT__0000000001", DLOCK_MODE_EXCLUSIVE, 0},
        {HEX "__rlock__0000000001", DLOCK_MODE_SHARED, 0},
        {HEX "__lock__0000000001", DLOCK_MODE_EXCLUSIVE, 0},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        int n;
        struct zk_child *line = line_of(&rows[i].name, 1, &n);
        REQUIRE(line && n == 1);
        if (!CHECK_INT(line[0].mode, rows[i].mode) || !CHECK_INT(line[0].slots, rows[i].slots))
            printf("# %s\n", rows[i].name);
        free(line);
    }
}

/* ------------------------------------------------------- what others wrote */

static struct dlock_info info_of_bytes(const char *name, const char *data, int len)
{
    struct Stat stat = {.czxid = 0x1000000ffLL, .ctime = 1790000000123LL};
    struct dlock_info info;
    memset(&info, 0x55, sizeof info);
    zk_read_info(name, false, data, len, &stat, &info);
    CHECK_INT(info.fence, 0x1000000ffLL);
    CHECK_INT(info.left_ns, -1);
    CHECK(!info.waiter);
    return info;
}

static struct dlock_info info_of(const char *name, const char *text)
{
    return info_of_bytes(name, text, (int)strlen(text));
}

TEST(reads_our_own_record)
{
    struct dlock_info info;
    REQUIRE_INT(open_uri("zk://h#n"), 0);
    zk_set_data(&u.be, RECORD_HOLDS, WORD_HELD);
    CHECK_HAS(u.be.node.data.text, "dlock1 ");
    info = info_of(UUID "-lock-0000000001", u.be.node.data.text);
    CHECK(!info.foreign);
    CHECK_INT(info.pid, getpid());
    CHECK_STR(info.command, "unit");
    CHECK(info.since_ms > 0 && info.waited_ms >= 0);
    /* By its token a process finds that it waits for itself. */
    CHECK_STR(info.token, HEX);
    info = info_of(HEX "__rlock__0000000001", u.be.node.data.text);
    CHECK_STR(info.token, HEX);
    info = info_of("_c_12-r-lock-0000000001", u.be.node.data.text);
    CHECK_STR(info.token, "");
}

/* The record's since= is the start of its wait until a heartbeat after the grant: no time is
 * better than a wrong one. */
TEST(shows_no_time_of_the_grant_before_it_is_told)
{
    static const char record[] = "dlock1 host=web1 pid=7 user=joe since=1790000000000 cmd=x note=";
    struct Stat stat = {.czxid = 5};
    struct dlock_info info = info_of(UUID "-lock-0000000001", record);
    CHECK_INT(info.pid, 7);
    CHECK_INT(info.since_ms, 0);
    zk_read_info(UUID "-lock-0000000002", true, record, (int)strlen(record), &stat, &info);
    CHECK(info.waiter);
    CHECK_INT(info.since_ms, INT64_C(1790000000000));
    CHECK_INT(info.fence, 0);
}

static enum zk_word word_in(const char *text)
{
    return zk_read_word(text, (int)strlen(text));
}

/* What other releases must understand: the format of a node's data. */
TEST(a_node_says_who_waits_behind_whom)
{
    static const struct {
        enum zk_word word;
        const char *text;
    } words[] = {{WORD_WAITS, "waits"}, {WORD_NEXT, "next"}, {WORD_HELD, "held"}};
    char want[1024];
    REQUIRE_INT(open_uri("zk://h#n"), 0);
    u.identity = (struct dlock_identity){
        .host = "web1", .user = "joe", .command = "backup.sh -v", .pid = 7, .since_ms = 5};
    for (size_t i = 0; i < DLOCK_LEN(words); i++) {
        unsigned before = u.be.node.data.edition;
        zk_set_data(&u.be, RECORD_WAITS, words[i].word);
        snprintf(
            want, sizeof want,
            "dlock1 host=web1 pid=7 user=joe since=5 cmd=backup.sh%%20-v note= marks=1 state=%s",
            words[i].text);
        CHECK_STR(u.be.node.data.text, want);
        CHECK_INT(word_in(want), words[i].word);
        CHECK(u.be.node.data.edition != before);
    }
    /* However long the rest is. */
    memset(u.identity.note, '%', sizeof u.identity.note - 1);
    memset(u.identity.command, '%', sizeof u.identity.command - 1);
    memset(u.identity.host, 'h', sizeof u.identity.host - 1);
    zk_set_data(&u.be, RECORD_HOLDS, WORD_NEXT);
    CHECK_INT(word_in(u.be.node.data.text), WORD_NEXT);
    CHECK_STR(strrchr(u.be.node.data.text, ' '), " state=next");
}

TEST(a_mark_stays_in_the_data_and_is_shown)
{
    struct zk_mark mark;
    struct dlock_info info;
    struct Stat stat = {.czxid = 9};
    REQUIRE_INT(open_uri("zk://h#n"), 0);
    u.identity = (struct dlock_identity){.host = "web1", .user = "joe", .pid = 7};
    zk_set_data(&u.be, RECORD_HOLDS, WORD_HELD);
    const char *data = u.be.node.data.text;
    CHECK(zk_takes_marks(data, (int)strlen(data)));
    CHECK(!zk_read_mark(data, (int)strlen(data), &mark));
    u.be.node.mark = (struct zk_mark){.by = "root@db1, note \"5 % off\"", .at_ms = 1790000000000};
    zk_set_data(&u.be, RECORD_HOLDS, WORD_HELD);
    CHECK_STR(strstr(data, " state="),
              " state=held break=1790000000000:root@db1,%20note%20\"5%20%25%20off\"");
    CHECK_INT(word_in(data), WORD_HELD);
    zk_read_info(UUID "-lock-0000000001", false, data, (int)strlen(data), &stat, &info);
    CHECK(info.broken && !info.foreign);
    CHECK_STR(info.broken_by, u.be.node.mark.by);
    CHECK_INT(info.broken_ms, 1790000000000);
    CHECK_STR(info.user, "joe");
    /* However long it is. */
    memset(u.be.node.mark.by, ' ', sizeof u.be.node.mark.by - 1);
    zk_set_data(&u.be, RECORD_HOLDS, WORD_HELD);
    REQUIRE(zk_read_mark(data, (int)strlen(data), &mark));
    CHECK_STR(mark.by, u.be.node.mark.by);
}

TEST(reads_marks_of_any_client)
{
    static const struct {
        const char *data, *by;
        int64_t at_ms;
    } marks[] = {
        {"dlock1 break=5:a", "a", 5}, {"dlock1 break=a", "a", 0},     {"dlock1 break=", "?", 0},
        {"dlock1 break=7:", "?", 7},  {"dlock1 break=x:%1b", "?", 0}, {"dlock1 break=1:%", "%", 1},
        {"dlock1 break", NULL, 0},    {"break=5:a", NULL, 0},         {"", NULL, 0},
    };
    for (size_t i = 0; i < DLOCK_LEN(marks); i++) {
        struct zk_mark mark;
        bool there = zk_read_mark(marks[i].data, (int)strlen(marks[i].data), &mark);
        if (!CHECK_INT(there, marks[i].by != NULL) || !there)
            continue;
        CHECK_STR(mark.by, marks[i].by);
        CHECK_INT(mark.at_ms, marks[i].at_ms);
    }
    CHECK(!zk_takes_marks("dlock1 marks=1", 14));
    CHECK(!zk_takes_marks("dlock1 state=held", 17));
    CHECK(!zk_takes_marks("other marks=1 ", 14));
    CHECK(!zk_takes_marks(NULL, -1));
}

TEST(an_unknown_predecessor_counts_as_the_holder)
{
    /* clang-format off */
    static const char *const held[] = {
        "", "x", "dlock", "dlock1", "dlock1 state", "dlock1 state=", "dlock1 state=nex",
        "dlock1 state=nextt", "dlock1 state=held", "dlock1 state=later next=1", "state=waits",
        "dlock1 host=a pid=1 user=b since=5 cmd=x note=state=waits", "\300\250\0\1 state=waits",
        "dlock12 state=waits"};
    /* clang-format on */
    for (size_t i = 0; i < DLOCK_LEN(held); i++)
        if (!CHECK_INT(word_in(held[i]), WORD_HELD))
            printf("# %s\n", held[i]);
    CHECK_INT(zk_read_word(NULL, 0), WORD_HELD);
    CHECK_INT(zk_read_word(NULL, -1), WORD_HELD);
    /* Not beyond its end; and later releases may say more. */
    CHECK_INT(zk_read_word("dlock1 state=waits", 17), WORD_HELD);
    CHECK_INT(word_in("dlock1 state=waits more=1"), WORD_WAITS);
    CHECK_INT(word_in("dlock1 state=next"), WORD_NEXT);
    char *huge = calloc(1, 1 << 20);
    REQUIRE(huge);
    memset(huge, ' ', 1 << 20);
    memcpy(huge, "dlock1", 6);
    CHECK_INT(zk_read_word(huge, 1 << 20), WORD_HELD);
    free(huge);
}

TEST(names_the_program_of_a_foreign_record)
{
    struct dlock_info info = info_of_bytes(UUID "-lock-0000000001", "\300\250\0\1", 4);
    CHECK(info.foreign);
    CHECK_STR(info.command, "Curator");
    CHECK_STR(info.note, "");
    CHECK_INT(info.since_ms, 0);
    CHECK_INT(info.pid, 0);
    struct Stat stat = {.ctime = 1790000000123LL};
    zk_read_info(UUID "-lock-0000000001", true, "\300\250\0\1", 4, &stat, &info);
    CHECK_INT(info.since_ms, 1790000000123LL);
    info = info_of(HEX "__lock__0000000001", "host1-worker");
    CHECK(info.foreign);
    CHECK_STR(info.command, "kazoo");
    CHECK_STR(info.note, "host1-worker");
    info = info_of(HEX "__rlock__0000000001", "");
    CHECK_STR(info.command, "kazoo");
    CHECK_STR(info.note, "");
    info = info_of_bytes("x-0000000001", NULL, 0);
    CHECK(info.foreign);
    CHECK_STR(info.command, "another program");
    /* It only looks like our record; its control characters never reach a terminal. */
    info = info_of(HEX "__lock__0000000001", "dlock");
    CHECK(info.foreign);
    info = info_of(HEX "__lock__0000000001", "\033[31mred\n\xff");
    CHECK_STR(info.note, "?[31mred??");
}

TEST(reads_a_record_with_a_nul_and_a_long_one)
{
    char text[70000];
    memset(text, 'x', sizeof text);
    struct dlock_info info = info_of_bytes("a-0000000001", text, (int)sizeof text);
    CHECK_INT(strlen(info.note), sizeof info.note - 1);
    info = info_of_bytes("a-0000000001", "ab\0cd", 5);
    CHECK(info.foreign);
    CHECK_STR(info.note, "");
}

/* ----------------------------------------------------------------- the URI */

TEST(makes_the_path_of_chroot_and_name)
{
    static const struct {
        const char *uri, *parent;
        size_t chroot;
    } good[] = {
        {"zk://h#n", "/n", 0},
        {"zookeeper://h#n", "/n", 0},
        {"zk://h/#n", "/n", 0},
        {"zk://h/a#n", "/a/n", 2},
        {"zk://h/a/b/#n", "/a/b/n", 4},
        {"zk://h#a/b", "/a/b", 0},
        {"zk://h/c#a/b", "/c/a/b", 2},
        {"zk://h/x#zookeeper", "/x/zookeeper", 2},
        {"zk://h#zookeeper2", "/zookeeper2", 0},
        {"zk://h#...", "/...", 0},
        {"zk://h#.a", "/.a", 0},
        {"zk://h#a.", "/a.", 0},
        {"zk://h#a%20b", "/a b", 0},
        {"zk://h#%C3%A4", "/\xc3\xa4", 0},
        {"zk://h#%E2%82%AC", "/\xe2\x82\xac", 0},
        {"zk://h#%EF%BF%AF", "/\xef\xbf\xaf", 0}, /* U+FFEF */
        {"zk://h#%ED%9F%BF", "/\xed\x9f\xbf", 0}, /* U+D7FF */
        {"zk://h#%EF%A4%80", "/\xef\xa4\x80", 0}, /* U+F900 */
        {"zk://h#%EF%BC%A1", "/\xef\xbc\xa1", 0},
        {"zk://h#job000000001", "/job000000001", 0}, /* nine digits */
        /* A lock's own node may look like that: its waiters are below it. */
        {"zk://h#job0000000001", "/job0000000001", 0},
        {"zk://h/job0000000001#x", "/job0000000001/x", 14},
        {"zk://h/c#job0000000001", "/c/job0000000001", 2},
    };
    for (size_t i = 0; i < DLOCK_LEN(good); i++) {
        if (!CHECK_INT(open_uri(good[i].uri), 0) || !CHECK_STR(u.be.lock.parent, good[i].parent) ||
            !CHECK_INT(u.be.lock.chroot_len, good[i].chroot))
            printf("# %s: %s\n", good[i].uri, u.err.msg);
    }
}

TEST(parameters_of_other_programs)
{
    static const struct {
        const char *uri;
        const char *ignored; /* the names; NULL: refused */
        const char *refused; /* a part of the message */
    } rows[] = {
        {"zookeeper://h?timeout=3000&client=curator", "timeout, client", NULL},
        {"zk://h?session_timeout=3&connectionTimeout=1", "session_timeout, connectionTimeout",
         NULL},
        {"zk://h?read_only=false&use_ssl=no&layout=kazoo&acl=open", "", NULL},
        {"zookeeper://h?backup=i:2181,j:2181", NULL, "\"backup\": list all servers after '//'"},
        {"zookeeper://h?group=dubbo", NULL, "\"group\""},
        {"zk://h?chroot=/x", NULL, "write /CHROOT behind the hosts"},
        {"zk://h?read_only=true", NULL, "\"read_only\""},
        {"zk://h?username=u&password=hunter", NULL, "USER:PASSWORD@ before the first host"},
        {"zk://h?auth_data=hunter", NULL, "\"auth_data\""},
        {"zk://h?ssl=true", NULL, "no TLS to ZooKeeper"},
        {"zk://h?verify_certs=false", NULL, "no TLS to ZooKeeper"},
        {"zk://h?ssl_password=hunter", NULL, "no TLS to ZooKeeper"},
        {"zk://h?layot=kazoo", NULL, "did you mean layout?"},
        {"zk://h?frobnicate=hunter", NULL, "unknown parameter \"frobnicate\""},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        char text[128], names[128] = "";
        snprintf(text, sizeof(text), "%s#n", rows[i].uri);
        int rc = open_uri(text);
        if (rc == 0)
            rc = dlock_uri_check_params(u.uri, &u.err);
        if (!CHECK_INT(rc, rows[i].refused ? DLOCK_EUSAGE : 0)) {
            printf("# ... from %s: %s\n", text, u.err.msg);
        } else if (rc == 0) {
            dlock_uri_ignored(u.uri, names, sizeof(names));
            CHECK_STR(names, rows[i].ignored);
            CHECK_STR(u.be.lock.parent, "/n"); /* the same lock as without them */
        } else {
            CHECK_HAS(u.err.msg, rows[i].refused);
        }
        CHECK_NULL(strstr(u.err.msg, "hunter"));
    }
}

TEST(refuses_names_that_are_no_path)
{
    static const char *const bad[] = {
        /* parts */
        "zk://h#..", "zk://h#.", "zk://h#a/..", "zk://h#../a", "zk://h#a/./b", "zk://h#a//b",
        "zk://h#a/", "zk://h#/a", "zk://h#/", "zk://h/a//b#n", "zk://h/../a#n", "zk://h/.#n",
        /* emojis, and U+E000, U+F8FF, U+FFF0, U+FFFD */
        "zk://h#%F0%9F%94%92", "zk://h#a%F0%9F%94%92b/c", "zk://h/%F0%9F%94%92#n",
        "zk://h#%EE%80%80", "zk://h#%EF%A3%BF", "zk://h#%EF%BF%B0", "zk://h#%EF%BF%BD",
        /* waiters; the server's */
        "zk://h#x/job0000000001", "zk://h#x/job0000000001/y", "zk://h/c#x/lock--000000001",
        "zk://h#zookeeper", "zk://h#zookeeper/x", "zk://h/zookeeper#x", "zk://h/zookeeper/quota#x"};
    check_refused(bad, DLOCK_LEN(bad), "");
}

/* The same lock with the spec as it is now. */
static int check_again(void)
{
    zk_done(&u.be);
    memset(&u.be, 0, sizeof u.be);
    u.be.spec = &u.spec;
    u.rc = zk_check_spec(&u.be, &u.err);
    return u.rc;
}

/* What stands behind the GUID, which is the token and new each time. */
static const char *kind_named(const char *uri, enum dlock_mode mode, unsigned slots)
{
    static char last[DLOCK_TOKEN_LEN + 1];
    const char *t = u.be.node.token;
    char guid[64];
    CHECK_INT(open_uri(uri), 0);
    u.spec.mode = mode;
    u.spec.slots = slots;
    if (check_again() != 0) {
        CHECK_INT(u.rc, DLOCK_EUSAGE);
        CHECK_HAS(u.err.msg, "leave the layout out");
        return "usage";
    }
    CHECK_INT(zk_new_stem(&u.be, &u.err), 0);
    CHECK_INT(strlen(t), DLOCK_TOKEN_LEN);
    CHECK(strcmp(t, last) != 0);
    memcpy(last, t, sizeof last);
    if (u.be.lock.layout == LAYOUT_KAZOO)
        snprintf(guid, sizeof guid, "/c/n/%.32s", t);
    else
        snprintf(guid, sizeof guid, "/c/n/_c_%.8s-%.4s-%.4s-%.4s-%.12s-", t, t + 8, t + 12, t + 16,
                 t + 20);
    CHECK(strncmp(u.be.node.stem, guid, strlen(guid)) == 0);
    return u.be.node.stem + strlen(guid);
}

TEST(names_nodes_as_the_layout_says)
{
    static const struct {
        const char *uri;
        enum dlock_mode mode;
        const char *kind;
    } rows[] = {
        {"zk://h/c#n", DLOCK_MODE_EXCLUSIVE, "lock-"},
        {"zk://h/c#n", DLOCK_MODE_EXCLUSIVE, "lock-"},
        {"zk://h/c#n", DLOCK_MODE_SHARED, "r-lock-"},
        {"zk://h/c#n", DLOCK_MODE_SLOTS, "s12-lock-"},
        {"zk://h/c?layout=curator#n", DLOCK_MODE_EXCLUSIVE, "lock-"},
        {"zk://h/c?layout=curator-rw#n", DLOCK_MODE_EXCLUSIVE, "__WRIT__"},
        {"zk://h/c?layout=curator-rw#n", DLOCK_MODE_SHARED, "__READ__"},
        {"zk://h/c?layout=curator-rw#n", DLOCK_MODE_SLOTS, "usage"},
        {"zk://h/c?layout=kazoo#n", DLOCK_MODE_EXCLUSIVE, "__lock__"},
        {"zk://h/c?layout=kazoo#n", DLOCK_MODE_SHARED, "__rlock__"},
        {"zk://h/c?layout=kazoo#n", DLOCK_MODE_SLOTS, "usage"},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++)
        CHECK_STR(kind_named(rows[i].uri, rows[i].mode, 12), rows[i].kind);
    static const char *const bad[] = {"zk://h?layout=x#n", "zk://h?layout=#n"};
    check_refused(bad, DLOCK_LEN(bad), "layout=");
}

/* "scheme:id=perms" of each entry */
static const char *acl_text(const struct ACL_vector *v)
{
    static char out[256];
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; i < v->count; i++)
        n += (size_t)snprintf(out + n, sizeof out - n, "%s%s:%s=%d", i ? " " : "",
                              v->data[i].id.scheme, v->data[i].id.id, (int)v->data[i].perms);
    return out;
}

TEST(reads_user_and_password_and_sets_the_acl)
{
    static const struct {
        const char *uri, *acl, *credentials;
    } good[] = {
        {"zk://h#n", "world:anyone=31", NULL},
        {"zk://h?acl=open#n", "world:anyone=31", NULL},
        {"zk://joe:s3cret@a,b,c#n", "auth:=31", "joe:s3cret"},
        {"zk://joe:s3cret%3Ab%40c@h#n", "auth:=31", "joe:s3cret:b@c"},
        {"zk://joe:s3cret@h?acl=creator#n", "auth:=31", "joe:s3cret"},
        {"zk://joe:s3cret@h?acl=open#n", "world:anyone=31", "joe:s3cret"},
        {"zk://joe:s3cret@h?acl=read#n", "auth:=31 world:anyone=1", "joe:s3cret"},
    };
    for (size_t i = 0; i < DLOCK_LEN(good); i++) {
        if (!CHECK_INT(open_uri(good[i].uri), 0) ||
            !CHECK_STR(acl_text(u.be.lock.acl), good[i].acl) ||
            !CHECK_STR(u.be.lock.credentials, good[i].credentials))
            printf("# %s: %s\n", good[i].uri, u.err.msg);
        CHECK(!strstr(u.uri->where, "s3cret") && !strstr(u.be.node.data.text, "s3cret"));
    }
    static const char *const bad[] = {"zk://h?acl=creator#n", "zk://h?acl=read#n", "zk://h?acl=x#n",
                                      "zk://h?acl=#n", "zk://joe:pw@h?acl=all#n"};
    check_refused(bad, DLOCK_LEN(bad), "acl=");
    static const char *const half[] = {"zk://joe@h#n", "zk://:pw@h#n"};
    check_refused(half, DLOCK_LEN(half), "password");
}

TEST(reads_the_password_file)
{
    char file[] = "/tmp/dlock-unit.XXXXXX", uri[128];
    int fd = mkstemp(file);
    REQUIRE(fd >= 0);
    dprintf(fd, "from-file\nnot this\n");
    close(fd);
    snprintf(uri, sizeof uri, "zk://joe@h?password-file=%s#n", file);
    REQUIRE_INT(open_uri(uri), 0);
    CHECK_STR(u.be.lock.credentials, "joe:from-file");
    CHECK_STR(acl_text(u.be.lock.acl), "auth:=31");
    /* As each new session does. */
    REQUIRE((fd = open(file, O_WRONLY | O_TRUNC)) >= 0);
    dprintf(fd, "rotated\n");
    close(fd);
    CHECK_INT(zk_set_credentials(&u.be, &u.err), 0);
    CHECK_STR(u.be.lock.credentials, "joe:rotated");
    chmod(file, 0644);
    CHECK_INT(zk_set_credentials(&u.be, &u.err), DLOCK_EPERM);
    CHECK_STR(u.be.lock.credentials, "joe:rotated");
    chmod(file, 0600);
    /* A password without a user. */
    snprintf(uri, sizeof uri, "zk://h?password-file=%s#n", file);
    CHECK_INT(open_uri(uri), DLOCK_EUSAGE);
    snprintf(uri, sizeof uri, "zk://joe@h?password-file=%s#n", file);
    chmod(file, 0644);
    CHECK_INT(open_uri(uri), DLOCK_EPERM);
    CHECK_HAS(u.err.msg, "chmod 600");
    unlink(file);
    CHECK(open_uri(uri) < 0);
}

TEST(refuses_a_ttl_beyond_24_days)
{
    REQUIRE_INT(open_uri("zk://h#n"), 0);
    u.spec.ttl = 25 * 24 * 3600 * DLOCK_SEC;
    CHECK_INT(check_again(), DLOCK_EUSAGE);
    CHECK_HAS(u.err.msg, "24 days");
}

/* ------------------------------------------------------------- the servers */

static struct dlock_peer peer(const char *addr, unsigned short port)
{
    struct dlock_peer p = {.len = sizeof(struct sockaddr_in)};
    struct sockaddr_in *in = (void *)&p.addr;
    *in = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, addr, &in->sin_addr);
    return p;
}

TEST(lists_the_servers_in_random_order)
{
    struct dlock_peer peers[3] = {peer("192.0.2.1", 2181), peer("127.0.0.1", 65535)};
    struct sockaddr_in6 *c = (void *)&peers[2].addr;
    bool first[3] = {false, false, false};
    REQUIRE_INT(open_uri("zk://h#n"), 0);
    *c = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(1)};
    inet_pton(AF_INET6, "2001:db8::1", &c->sin6_addr);
    u.spec.peers = peers;
    u.spec.npeers = 3;
    for (int i = 0; i < 200; i++) {
        struct dlock_peer *servers = shuffled(&u.spec);
        REQUIRE(servers);
        char *s = servers_text(servers, 3);
        REQUIRE(s);
        CHECK_INT(strlen(s), strlen("192.0.2.1:2181,127.0.0.1:65535,2001:db8::1:1"));
        CHECK_HAS(s, "192.0.2.1:2181");
        CHECK_HAS(s, "127.0.0.1:65535");
        CHECK_HAS(s, "2001:db8::1:1");
        first[s[0] == '2' ? 2 : s[1] == '9' ? 0 : 1] = true;
        free(s);
        free(servers);
    }
    /* Clients spread: each of them is the first now and then. */
    CHECK(first[0] && first[1] && first[2]);
}

TEST(knows_when_the_servers_have_moved)
{
    struct dlock_peer had[] = {peer("192.0.2.1", 1), peer("192.0.2.1", 2), peer("192.0.2.3", 1)};
    struct dlock_peer now[] = {had[2], had[0], had[1]};
    struct zk_session s = {.servers = {.list = had, .n = 3}};
    struct dlock_spec spec = {.peers = now, .npeers = 3};
    CHECK(servers_are_current(&s, &spec)); /* a name server answers in another order each time */
    spec.npeers = 2;
    CHECK(!servers_are_current(&s, &spec));
    spec.npeers = 3;
    now[1] = peer("192.0.2.4", 1);
    CHECK(!servers_are_current(&s, &spec));
    now[1] = peer("192.0.2.1", 3);
    CHECK(!servers_are_current(&s, &spec));
}

/* -------------------------------------------------------------- outages */

static struct dlock_peer server;

/* A waiter in the queue that has no connection now. id: of its session, 0: of a new session. */
static void without_connection(int64_t id)
{
    server = peer("192.0.2.1", 2181);
    REQUIRE_INT(open_uri("zk://h#n"), 0);
    u.be.op = ZK_OP_ACQUIRE;
    u.be.contact_until = DLOCK_NEVER;
    outage_none(&u.be.outage);
    u.be.session =
        (struct zk_session){.id = id, .servers = {.list = &server, .n = 1}, .timeout = DLOCK_SEC};
}

static enum zk_news trouble(int rc)
{
    struct zk_msg m = {.what = ZK_TROUBLE, .rc = rc, .addr = server.addr};
    return on_trouble(&u.be, &m);
}

/* The next event is an EV_AWAY that says this. */
static void check_away(const char *why)
{
    struct dlock_event ev = {0};
    u.be.session.away_at = 0;
    follow_servers(&u.be, zk_now(&u.be));
    CHECK(events_take(&u.be.events, &ev));
    CHECK_INT(ev.type, EV_AWAY);
    CHECK_INT(ev.error.code, DLOCK_EUNAVAIL);
    CHECK_HAS(ev.error.msg, why);
}

TEST(an_outage_ends_no_wait_and_is_told_until_an_answer_comes)
{
    struct zk_msg answer = {.what = ZK_ANSWER, .rc = ZOK};
    struct dlock_event ev = {0};
    for (int id = 0; id < 2; id++) {
        without_connection(id);
        check_away("the connection is lost");
        CHECK_INT(trouble(ECONNREFUSED), NEWS_NONE);
        check_away("192.0.2.1:2181: Connection refused");
        CHECK_INT(trouble(EPROTO), NEWS_NONE);
        check_away("not ZooKeeper's protocol");
        CHECK(u.be.outage.since != 0);
        on_answer(&u.be, &answer);
        CHECK(events_take(&u.be.events, &ev));
        CHECK_INT(ev.type, EV_BACK);
        CHECK(!events_take(&u.be.events, &ev));
    }
    /* The first contact is over when all servers refuse it. */
    without_connection(0);
    u.be.contact_until = zk_now(&u.be) + DLOCK_SEC;
    CHECK_INT(trouble(ECONNREFUSED), NEWS_FAILED);
    CHECK_INT(u.be.err.code, DLOCK_EUNAVAIL);
    CHECK_INT(trouble(EPROTO), NEWS_FAILED);
    CHECK_INT(u.be.err.code, DLOCK_EPROTO);
    /* A bad answer in a session, of which we have not heard yet, is no refusal. */
    CHECK_INT(trouble(EBADMSG), NEWS_NONE);
    check_away("not ZooKeeper's protocol");
}

TEST(no_attempt_takes_longer_than_the_connect_timeout)
{
    /* A new session at a lone server, too. */
    for (int id = 0; id < 2; id++) {
        int64_t now, each = 0;
        without_connection(id);
        for (int i = 0; i < 20; i++) {
            now = zk_now(&u.be);
            expect_connection(&u.be);
            CHECK(u.be.session.servers.next_at - now >= each - DLOCK_SEC / 10);
            each = u.be.session.servers.next_at - now;
            CHECK(each <= u.spec.connect_timeout + DLOCK_SEC);
        }
        CHECK(each >= u.spec.connect_timeout);
    }
}

TEST(a_waiter_resumes_its_session_by_a_new_handle_once_in_an_outage)
{
    without_connection(1);
    int64_t late = zk_now(&u.be) + 2 * DLOCK_SEC;
    CHECK(!must_resume(&u.be, late));
    check_away("lost");
    CHECK(!must_resume(&u.be, u.be.outage.since + DLOCK_SEC));
    CHECK(must_resume(&u.be, late));
    u.be.session.resumed = true;
    CHECK(!must_resume(&u.be, late));
    u.be.session.resumed = false;
    u.be.op = ZK_OP_HOLD;
    CHECK(!must_resume(&u.be, late));
}

/* ---------------------------------------------------- the lease that lags */

static struct zk_session with_session(int64_t opened, int64_t timeout)
{
    return (struct zk_session){.timeout = timeout, .lease = {.sent = {opened}, .n = 1}};
}

/* In any rhythm: the newest heartbeat that is a third older than the last one, and never an
 * older one than before. */
TEST(computes_the_lease_as_a_simple_model_does)
{
    const int64_t timeout = 3000;
    unsigned seed = 7;
    for (int round = 0; round < 200; round++) {
        int64_t all[200], now = 0, last = 0;
        int n = 0;
        struct zk_session z = with_session(0, timeout);
        all[n++] = 0;
        while (n < 200) {
            seed = seed * 1103515245 + 12345;
            /* At least a 30th of the time-out apart, so that all that count are remembered. */
            now += 100 + (int64_t)((seed >> 16) % (round % 2 ? 300 : 3000));
            zk_lease_confirm(&z, now, true);
            all[n++] = now;
            int64_t want = 0;
            for (int i = 0; i < n; i++)
                if (all[i] <= now - timeout / 3)
                    want = all[i];
            REQUIRE_INT(z.lease.sent[0], want);
            REQUIRE(z.lease.sent[0] >= last);
            last = z.lease.sent[0];
        }
    }
}

/* Many answers in a short time: a forgotten heartbeat makes the lease shorter, never longer. */
TEST(forgets_heartbeats_safely)
{
    const int64_t timeout = 6000;
    struct zk_session z = with_session(0, timeout);
    int64_t last = 0;
    for (int64_t t = 1; t < 20000; t++) {
        zk_lease_confirm(&z, t, true);
        REQUIRE(z.lease.sent[0] <= (t > timeout / 3 ? t - timeout / 3 : 0));
        REQUIRE(z.lease.sent[0] >= last);
        last = z.lease.sent[0];
        REQUIRE(z.lease.n >= 1 && z.lease.n <= ZK_BEATS);
    }
    /* And the lease does advance. */
    CHECK(last > 20000 - 2 * timeout);
}

TEST(looks_alone_never_move_the_lease)
{
    const int64_t s = DLOCK_SEC;
    struct zk_session z = with_session(1, 6 * s);
    zk_lease_confirm(&z, 2, true);
    for (int64_t t = s; t < 10000 * s; t += s) {
        zk_lease_confirm(&z, t, false);
        REQUIRE_INT(z.lease.sent[0], 1);
        REQUIRE(z.lease.n <= 6); /* the lease's, one that is old enough, those that are not */
    }
}

TEST(a_write_moves_the_lease_to_a_look_a_third_older)
{
    const int64_t s = DLOCK_SEC;
    struct zk_session z = with_session(0, 6 * s);
    zk_lease_confirm(&z, 1, true);
    for (int64_t t = 100 * s; t <= 110 * s; t += s)
        zk_lease_confirm(&z, t, false);
    zk_lease_confirm(&z, 110 * s + s / 2, true);
    CHECK_INT(z.lease.sent[0], 108 * s);
    /* None of the last third: the one before counts, however old it is. */
    z = with_session(0, 6 * s);
    zk_lease_confirm(&z, 50 * s, false);
    zk_lease_confirm(&z, 100 * s, false);
    zk_lease_confirm(&z, 101 * s, true);
    CHECK_INT(z.lease.sent[0], 50 * s);
}

/* An operation on a lock whose node exists. */
static bool with_node(enum zk_op op)
{
    bool opened = CHECK_INT(open_uri("zk://h#n"), 0);
    u.be.op = op;
    u.be.node.state = NODE_THERE;
    return opened;
}

/* The lease after the answer to a look. sync: the answer to its sync; 1: no answer yet. */
static int64_t look_answered(int sync)
{
    struct zk_msg synced = {.what = ZK_ANSWER, .serial = 4, .rc = sync};
    struct zk_msg seen = {.what = ZK_ANSWER, .serial = 5, .rc = ZOK};
    with_node(ZK_OP_NONE);
    u.be.session = with_session(0, 6 * DLOCK_SEC);
    u.be.session.beat.serial = 5;
    u.be.session.beat.sync_serial = 4;
    u.be.session.beat.sent = 10 * DLOCK_SEC;
    if (sync != 1)
        CHECK_INT(on_answer(&u.be, &synced), NEWS_MESSAGE);
    CHECK_INT(on_answer(&u.be, &seen), NEWS_BEAT);
    zk_lease_confirm(&u.be.session, 13 * DLOCK_SEC, true);
    return u.be.session.lease.sent[0];
}

/* A server that has lost its leader answers reads. */
TEST(a_look_counts_only_behind_a_sync)
{
    CHECK_INT(look_answered(ZOK), 10 * DLOCK_SEC);
    CHECK_INT(look_answered(1), 0);
    CHECK_INT(look_answered(ZTHROTTLEDOP), 0);
}

/* --------------------------------------------------------------- our node */

/* The node in front of ours, at that place, has this data. */
static enum zk_rank rank_after(int place, const char *data)
{
    char text[64];
    snprintf(text, sizeof text, "%s", data);
    struct zk_msg m = {.what = ZK_ANSWER, .serial = 3, .data = text};
    m.len = (int)strlen(text);
    if (!with_node(ZK_OP_ACQUIRE))
        return RANK_BEHIND;
    u.be.acquire.place = place;
    u.be.acquire.rank_by_place = place == 1 ? RANK_NEXT : place == 2 ? RANK_SECOND : RANK_BEHIND;
    u.be.acquire.front.known = true;
    u.be.acquire.watch.nodes = calloc(1, sizeof(*u.be.acquire.watch.nodes));
    if (!CHECK(u.be.acquire.watch.nodes != NULL))
        return RANK_BEHIND;
    u.be.acquire.watch.nodes[0].serial = 3;
    u.be.acquire.watch.n = 1;
    zk_set_data(&u.be, RECORD_HOLDS, WORD_WAITS);
    u.be.node.data.confirmed = u.be.node.data.edition;
    CHECK_INT(pred_read(&u.be, &m), ZK_GOES_ON);
    enum zk_rank rank = u.be.acquire.rank;
    CHECK_INT(word_in(u.be.node.data.text), rank == RANK_NEXT ? WORD_NEXT : WORD_WAITS);
    CHECK(u.be.node.data.kind == RECORD_WAITS &&
          u.be.node.data.confirmed != u.be.node.data.edition);
    return rank;
}

TEST(a_waiter_knows_its_rank_by_its_place_and_the_word_in_front)
{
    CHECK_INT(rank_after(1, "dlock1 state=waits"),
              RANK_NEXT); /* of a holder that was granted at once */
    CHECK_INT(rank_after(1, "dlock1 state=held"), RANK_NEXT);
    CHECK_INT(rank_after(2, "dlock1 state=next"), RANK_SECOND);
    CHECK_INT(rank_after(2, "dlock1 state=waits"), RANK_SECOND);
    CHECK_INT(rank_after(3, "dlock1 state=waits"), RANK_BEHIND);
    /* Those in front have gone since we looked. */
    CHECK_INT(rank_after(7, "dlock1 state=next"), RANK_SECOND);
    CHECK_INT(rank_after(7, "dlock1 state=held"), RANK_NEXT);
    CHECK_INT(rank_after(7, "dlock1"), RANK_NEXT);
    CHECK_INT(rank_after(7, "of kazoo"), RANK_NEXT);
}

/* After a new handle, no answer tells whether the node was created. */
TEST(a_create_without_an_answer_is_unclear)
{
    REQUIRE(with_node(ZK_OP_ACQUIRE));
    u.be.node.delete_serial = 7;
    zk_forget_requests(&u.be);
    CHECK_INT(u.be.node.state, NODE_THERE);
    CHECK_INT(u.be.node.delete_serial, 0);
    u.be.node.state = NODE_ASKED;
    zk_forget_requests(&u.be);
    CHECK_INT(u.be.node.state, NODE_UNCLEAR);
}

/* Without a write there is no grant: it must not wait indefinitely. */
TEST(a_refused_proof_of_the_lease_ends_the_acquire)
{
    struct zk_msg m = {.what = ZK_ANSWER, .serial = 6, .rc = ZNOAUTH};
    REQUIRE(with_node(ZK_OP_ACQUIRE));
    CHECK_INT(zk_beat_answered(&u.be, &m), ZK_GOES_ON);
    u.be.acquire.stage = STAGE_LEASE;
    CHECK_INT(zk_beat_answered(&u.be, &m), ZK_FAILED);
    CHECK_INT(u.be.err.code, DLOCK_EPERM);
    m.rc = ZCONNECTIONLOSS;
    CHECK_INT(zk_beat_answered(&u.be, &m), ZK_GOES_ON);
}

/* Giving the place up: a heartbeat, sent before the delete, finds that another client has
 * deleted the node already. */
TEST(is_busy_when_the_node_is_gone_before_the_delete)
{
    struct zk_msg beat = {.what = ZK_ANSWER, .serial = 6, .rc = ZNONODE};
    struct zk_msg gone = {.what = ZK_ANSWER, .serial = 7, .rc = ZNONODE};
    REQUIRE(with_node(ZK_OP_ACQUIRE));
    u.be.advance_at = DLOCK_NEVER;
    u.be.acquire.stage = STAGE_BUSY;
    u.be.node.delete_serial = 7;
    CHECK_INT(zk_beat_answered(&u.be, &beat), ZK_GOES_ON);
    CHECK_INT(u.be.advance_at, DLOCK_NEVER); /* no other node is created */
    CHECK_INT(node_deleted(&u.be, &gone), ZK_BUSY);
}

/* A release of a held lock: answers to the delete, or to a heartbeat that was sent before. */
TEST(a_release_is_as_clean_as_its_answers)
{
    static const struct {
        int64_t unanswered; /* heartbeat; 0: none */
        struct {
            zk_answer_fn *answered;
            int rc;
        } answers[2];
        int how;
        const char *why;
    } rows[] = {
        {0, {{node_deleted, ZCONNECTIONLOSS}, {node_deleted, ZNONODE}}, DLOCK_RELEASE_CLEAN, ""},
        {20,
         {{node_deleted, ZCONNECTIONLOSS}, {node_deleted, ZNONODE}},
         DLOCK_RELEASE_UNCLEAR,
         "heartbeat"},
        /* Deleted now: it was there all the time. */
        {20, {{node_deleted, ZCONNECTIONLOSS}, {node_deleted, ZOK}}, DLOCK_RELEASE_CLEAN, ""},
        {20, {{zk_beat_answered, ZNONODE}}, DLOCK_RELEASE_NOT_OURS, ""},
    };
    for (size_t i = 0; i < DLOCK_LEN(rows); i++) {
        enum zk_verdict verdict = ZK_GOES_ON;
        REQUIRE(with_node(ZK_OP_RELEASE));
        u.be.hold.grant = GRANT_HELD;
        u.be.session = with_session(1, 6 * DLOCK_SEC);
        zk_lease_confirm(&u.be.session, 10, true);
        u.be.session.beat.sent = rows[i].unanswered ? rows[i].unanswered : 10;
        for (int k = 0; k < 2 && verdict == ZK_GOES_ON; k++) {
            struct zk_msg m = {.what = ZK_ANSWER, .serial = 7};
            m.rc = rows[i].answers[k].rc;
            u.be.release.how = DLOCK_RELEASE_NOTHING;
            u.be.node.delete_serial = 7;
            verdict = rows[i].answers[k].answered(&u.be, &m);
            CHECK_INT(verdict, m.rc == ZCONNECTIONLOSS ? ZK_GOES_ON : ZK_RELEASED);
        }
        CHECK_INT(u.be.release.how, rows[i].how);
        CHECK_INT(u.be.err.code,
                  rows[i].how == DLOCK_RELEASE_NOT_OURS ? DLOCK_ELOST : u.be.err.code);
        CHECK_HAS(u.be.err.msg, rows[i].why);
    }
}

/* ------------------------------------------------------------------ errors */

static int error_of(int rc, const char *what)
{
    zk_error(&u.be, rc, what);
    return u.be.err.code;
}

TEST(describes_errors)
{
    REQUIRE_INT(open_uri("zk://joe:s3cret@h#n"), 0);
    CHECK_INT(error_of(ZNOAUTH, "no place"), DLOCK_EPERM);
    CHECK_HAS(u.be.err.msg, "this user has no permission");
    CHECK(!strstr(u.be.err.msg, "s3cret"));
    CHECK_INT(error_of(ZAUTHFAILED, "no session"), DLOCK_EPERM);
    CHECK_INT(error_of(ZCONNECTIONLOSS, "x"), DLOCK_EUNAVAIL);
    CHECK_INT(error_of(ZMARSHALLINGERROR, "x"), DLOCK_EPROTO);
    CHECK_HAS(u.be.err.msg, "'n'");
    REQUIRE_INT(open_uri("zk://h#n"), 0);
    CHECK_INT(error_of(ZNOAUTH, "no place"), DLOCK_EPERM);
    CHECK_HAS(u.be.err.msg, "(user:password@ before the servers)");
    CHECK(zk_transient(ZCONNECTIONLOSS) && zk_transient(ZOPERATIONTIMEOUT));
    CHECK(zk_transient(ZSESSIONEXPIRED) && zk_transient(ZSESSIONMOVED));
    CHECK(!zk_transient(ZNOAUTH) && !zk_transient(ZNONODE) && !zk_transient(ZNODEEXISTS));
}

extern const struct dlock_backend dlock_backend_zookeeper;

/* The program forks its guard before it loads the module: the registry must know. */
TEST(the_registry_knows_that_a_hold_is_a_lease)
{
    CHECK_INT(dlock_backend_zookeeper.caps & (CAP_FD | CAP_LEASE), CAP_LEASE);
    CHECK_INT(dlock_registry_hold("zk"), CAP_LEASE);
}

UNIT_MAIN
