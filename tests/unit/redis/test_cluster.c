/* What the nodes of a Redis Cluster say: redirections, and the list of the other nodes. */
#include "unit.h"

#include "backends/redis/cluster.c"

TEST(redirections_are_read)
{
    static const struct {
        const char *text;
        enum cluster_hint hint;
        const char *host;
        int port;
    } t[] = {
        {"MOVED 3999 127.0.0.1:6381", HINT_MOVED, "127.0.0.1", 6381},
        {"ASK 0 10.1.2.3:1", HINT_ASK, "10.1.2.3", 1},
        {"MOVED 16383 2001:db8::1:7000", HINT_MOVED, "2001:db8::1", 7000},
        {"MOVED 16383 db1.example:65535", HINT_MOVED, "db1.example", 65535},
        {"MOVED 866 :6379", HINT_MOVED, "", 6379},
        {"MOVED 866 ?:6379", HINT_MOVED, "", 6379},
        {"ERR unknown command", HINT_NONE, "", 0},
        {"MOVEDX 1 h:1", HINT_NONE, "", 0},
        {"", HINT_NONE, "", 0},
        {"MOVED ", HINT_BAD, "", 0},
        {"MOVED x y", HINT_BAD, "", 0},
        {"MOVED 1", HINT_BAD, "", 0},
        {"MOVED 1 ", HINT_BAD, "", 0},
        {"MOVED -1 h:1", HINT_BAD, "", 0},
        {"MOVED 123456 h:1", HINT_BAD, "", 0},
        {"MOVED 1 h:0", HINT_BAD, "", 0},
        {"ASK 1 h:99999", HINT_BAD, "", 0},
        {"MOVED 1 h", HINT_BAD, "", 0},
        {"MOVED 1 h:1 more", HINT_BAD, "", 0},
        {"MOVED 1 a b:1", HINT_BAD, "", 0},
        {"MOVED 1 ?", HINT_BAD, "", 0},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        struct redis_named node = {.host = ""};
        enum cluster_hint hint = cluster_hint(t[i].text, &node);
        if (!CHECK_INT(hint, t[i].hint))
            printf("# '%s'\n", t[i].text);
        if (hint == HINT_NONE || hint == HINT_BAD)
            continue;
        CHECK_STR(node.host, t[i].host);
        CHECK_INT(node.port, t[i].port);
    }
    char text[600] = "MOVED 1 ";
    memset(text + 8, 'a', 500);
    memcpy(text + 508, ":1", 3);
    struct redis_named node;
    CHECK_INT(cluster_hint(text, &node), HINT_BAD);
}

static const char nodes[] =
    "aa 10.0.0.1:7001@17001 myself,master - 0 0 1 connected 0-5460 [93-<-bb]\n"
    "bb 10.0.0.2:7002@17002,db2.example master - 0 1 2 connected 5461-10922\n"
    "cc 10.0.0.3:7003@17003 master,fail - 0 1 3 disconnected 10923-16383\n"
    "dd 10.0.0.4:7004@17004,db4.example,shard-id=77 slave aa 0 1 1 connected\n"
    "ee :0@0 master,noaddr - 0 1 3 disconnected\n"
    "ff 10.0.0.6:7006@17006 handshake - 0 1 3 connected\n"
    "gg 10.0.0.7:7007@17007 slave bb 0 1 2 connected\n"
    "hh 10.0.0.8:7008@17008 master,fail? - 0 1 2 connected\n"
    "ii 10.0.0.9:7009@17009 slave,fail aa 0 1 2 connected\n"
    "jj 2001:db8::5:7010@17010,,shard-id=1 master - 0 1 2 connected\n";

TEST(the_other_nodes_are_read)
{
    struct redis_named n[8];
    /* Our replica first; a master that may have failed is asked as well. */
    REQUIRE_INT(cluster_parse_nodes(nodes, false, n, 8), 4);
    CHECK_STR(n[0].host, "10.0.0.4");
    CHECK_INT(n[0].port, 7004);
    CHECK_STR(n[1].host, "10.0.0.2");
    CHECK_STR(n[2].host, "10.0.0.8");
    CHECK_STR(n[3].host, "2001:db8::5");
    REQUIRE_INT(cluster_parse_nodes(nodes, true, n, 8), 4);
    CHECK_STR(n[0].host, "db4.example");
    CHECK_STR(n[1].host, "db2.example");
    CHECK_STR(n[2].host, "10.0.0.8");
    CHECK_STR(n[3].host, "2001:db8::5");
    CHECK_INT(cluster_parse_nodes(nodes, true, n, 2), 2);
}

TEST(a_malformed_list_names_no_node)
{
    static const char *const t[] = {"",
                                    "\n\n",
                                    "a",
                                    "a b c",
                                    "a b:1 master -",
                                    "a b:1 master",
                                    "a :1@2 master - 0",
                                    "a b:1@2,h\x1b master -\n\n   \n"};
    static const int n[] = {0, 0, 0, 0, 1, 0, 0, 1};
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        struct redis_named node[2];
        CHECK_INT(cluster_parse_nodes(t[i], false, node, 2), n[i]);
    }
}

UNIT_MAIN
