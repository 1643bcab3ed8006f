/*
 * test_frame.c - which packets a ZooKeeper server can send, in whatever pieces they arrive, and
 * which it cannot.
 */
#include "unit.h"

#include "backends/zookeeper/wire/frame.h"
#include "util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------- packets */

struct buf {
    unsigned char d[4096];
    size_t n;
};

static void num(struct buf *b, int64_t v, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--)
        b->d[b->n++] = (unsigned char)((uint64_t)v >> (8 * i));
}
static void str(struct buf *b, const char *s)
{
    num(b, (int64_t)strlen(s), 4);
    memcpy(b->d + b->n, s, strlen(s));
    b->n += strlen(s);
}
static void zeros(struct buf *b, size_t n)
{
    memset(b->d + b->n, 0, n);
    b->n += n;
}
static size_t open_packet(struct buf *b)
{
    num(b, 0, 4);
    return b->n;
}
/* extra: by how much the length is wrong */
static void close_packet(struct buf *b, size_t at, int extra)
{
    struct buf len = {.n = 0};
    num(&len, (int64_t)(b->n - at) + extra, 4);
    memcpy(b->d + at - 4, len.d, 4);
}
static size_t header(struct buf *b, int xid, int err)
{
    size_t at = open_packet(b);
    num(b, xid, 4);
    num(b, 77, 8);
    num(b, err, 4);
    return at;
}

static struct zk_frame f; /* of all tests: each begins a connection of its own */

static void ask(int xid, int op)
{
    struct buf b = {.n = 0};
    size_t at = open_packet(&b);
    num(&b, xid, 4);
    num(&b, op, 4);
    str(&b, "/some/path");
    close_packet(&b, at, 0);
    for (size_t i = 0; i < b.n; i++) /* byte by byte */
        zk_frame_sent(&f, b.d + i, 1);
}
/* A multi of these operations (0 ends them), in pieces of that size. */
static void ask_multi(int xid, const int *ops, size_t piece)
{
    struct buf b = {.n = 0};
    size_t at = open_packet(&b);
    num(&b, xid, 4);
    num(&b, 14, 4);
    for (; *ops != 0; ops++) {
        num(&b, *ops, 4);
        num(&b, 0, 1);
        num(&b, -1, 4);
        str(&b, "/some/path");
        if (*ops == 1 || *ops == 5)
            str(&b, *ops == 1 ? "" : "data");
        if (*ops == 1) {
            num(&b, 2, 4);
            for (int i = 0; i < 2; i++) {
                num(&b, 31, 4);
                str(&b, "world");
                str(&b, i ? "" : "anyone");
            }
        }
        num(&b, 0, 4);
    }
    num(&b, -1, 4);
    num(&b, 1, 1);
    num(&b, -1, 4);
    close_packet(&b, at, 0);
    for (size_t i = 0; i < b.n; i += piece)
        zk_frame_sent(&f, b.d + i, piece < b.n - i ? piece : b.n - i);
}
/* One result in the answer; type 0: the end. */
static void result(struct buf *b, int type, int err)
{
    num(b, type != 0 ? type : -1, 4);
    num(b, type == 0, 1);
    num(b, type == -1 ? 0 : err, 4);
    if (type == -1)
        num(b, err, 4);
    else if (type == 1)
        str(b, "/some/path");
    else if (type == 5)
        zeros(b, 68);
}

static void ask_session(int64_t id)
{
    struct buf b = {.n = 0};
    size_t at = open_packet(&b);
    num(&b, 0, 4);
    num(&b, 7, 8);
    num(&b, 3000, 4);
    num(&b, id, 8);
    num(&b, 16, 4);
    zeros(&b, 17);
    close_packet(&b, at, 0);
    zk_frame_begin(&f);
    zk_frame_sent(&f, b.d, b.n);
}
static void session(struct buf *b, int timeout, int64_t id, int password)
{
    size_t at = open_packet(b);
    num(b, 0, 4);
    num(b, timeout, 4);
    num(b, id, 8);
    num(b, password, 4);
    zeros(b, 17);
    close_packet(b, at, 0);
}

/* A new connection, and the answer that begins its session. */
static void begin_session(struct buf *b)
{
    b->n = 0;
    ask_session(0);
    session(b, 3000, 1, 16);
}
/* An answer without a body. */
static void empty_answer(struct buf *b, int xid)
{
    size_t at = header(b, xid, 0);
    close_packet(b, at, 0);
}

/* The body of a good answer to each of our requests. */
static const struct body {
    int op;
    int64_t count;    /* in front of the text; 0: none */
    const char *text; /* as of a string or buffer; NULL: none */
    size_t behind;    /* zeros */
} bodies[] = {{2, 0, NULL, 0},   {-11, 0, NULL, 0}, {5, 0, NULL, 68},
              {4, 0, "xyz", 68}, {4, -1, NULL, 68}, /* no data */
              {8, 1, "xyz", 0},  {9, 0, "xyz", 0},  {1, 0, "/path", 0},
              {15, 0, "x", 68},  {19, 0, "x", 68}};

/* Returns where the text begins. */
static size_t add_body(struct buf *b, const struct body *body)
{
    if (body->count)
        num(b, body->count, 4);
    size_t at = b->n;
    if (body->text)
        str(b, body->text);
    zeros(b, body->behind);
    return at;
}

/* All our requests and the answers to them; ends: where each packet ends. */
static void dialogue(struct buf *b, size_t *ends)
{
    size_t at, n = 0;
    begin_session(b);
    ends[n++] = b->n;
    for (int i = 0; i < (int)DLOCK_LEN(bodies); i++) {
        ask(500 + i, bodies[i].op);
        at = header(b, 500 + i, 0);
        add_body(b, &bodies[i]);
        close_packet(b, at, 0);
        ends[n++] = b->n;
    }
    /* A refused request; lists of no and of several names. */
    for (int names = -1; names <= 3; names++) {
        ask(590 + names, 8);
        at = header(b, 590 + names, names < 0 ? -101 : 0);
        if (names >= 0)
            num(b, names, 4);
        for (int i = 0; i < names; i++)
            str(b, i == 1 ? "" : "_c_x-lock-0000000001");
        close_packet(b, at, 0);
        ends[n++] = b->n;
    }
    static const int multi[] = {2, 5, 1, 0}, refused[] = {5, 1, 0};
    ask_multi(600, multi, 1);
    at = header(b, 600, 0);
    for (size_t i = 0; i < 4; i++)
        result(b, multi[i], 0);
    close_packet(b, at, 0);
    ends[n++] = b->n;
    ask_multi(601, refused, 7);
    at = header(b, 601, 0);
    result(b, -1, -103);
    result(b, -1, -2);
    result(b, 0, 0);
    close_packet(b, at, 0);
    ends[n++] = b->n;
    ask(-2, 11);
    ask(-8, 101);
    ask(-4, 100);
    for (int xid = -8; xid <= -2; xid += xid == -8 ? 4 : 2) {
        empty_answer(b, xid);
        ends[n++] = b->n;
    }
    at = header(b, -1, 0);
    num(b, 3, 4);
    num(b, 3, 4);
    str(b, "/path");
    close_packet(b, at, 0);
    ends[n++] = b->n;
    ends[n] = 0;
}

/* -------------------------------------------------------------------- what is */

TEST(accepts_all_answers_whole_or_split_anywhere)
{
    struct buf b = {.n = 0};
    size_t ends[64];
    dialogue(&b, ends);
    CHECK(zk_frame_received(&f, b.d, b.n));
    for (size_t cut = 1; cut < b.n; cut++) {
        dialogue(&b, ends);
        CHECK(zk_frame_received(&f, b.d, cut));
        CHECK(zk_frame_received(&f, b.d + cut, b.n - cut));
    }
    dialogue(&b, ends);
    for (size_t i = 0; i < b.n; i++) {
        CHECK_INT(zk_frame_silent(&f), i == 0);
        CHECK_INT(f.opened, i >= (size_t)ends[0] + 4); /* with the second packet's length */
        CHECK(zk_frame_received(&f, b.d + i, 1));
    }
}

TEST(lets_no_read_cross_the_end_of_length_or_packet)
{
    struct buf b = {.n = 0};
    size_t ends[64], at = 0, n = 0;
    dialogue(&b, ends);
    while (at < b.n) {
        size_t begin = at;
        CHECK_INT(zk_frame_room(&f), 4);
        CHECK(zk_frame_received(&f, b.d + at, 3));
        CHECK_INT(zk_frame_room(&f), 1);
        CHECK(zk_frame_received(&f, b.d + at + 3, 1));
        CHECK_INT(zk_frame_room(&f), ends[n] - begin - 4);
        at = ends[n++];
        CHECK(zk_frame_received(&f, b.d + begin + 4, at - begin - 4));
    }
    CHECK_INT(ends[n], 0);
}

TEST(remembers_many_unanswered_requests)
{
    struct buf b;
    begin_session(&b);
    CHECK(zk_frame_received(&f, b.d, b.n));
    int asked = 0, answered = 0;
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < 50; i++)
            ask(asked++, 2);
        for (int i = 0; i < (round < 20 ? 30 : 70); i++) {
            b.n = 0;
            empty_answer(&b, answered++);
            CHECK(zk_frame_received(&f, b.d, b.n));
        }
    }
    CHECK_INT(answered, asked);
    b.n = 0;
    empty_answer(&b, asked);
    CHECK(!zk_frame_received(&f, b.d, b.n));
}

TEST(accepts_an_answer_of_the_largest_size_and_none_beyond)
{
    const size_t data = 16 + 4; /* in front of the node's data */
    unsigned char *packet = calloc(1, ZK_FRAME_MAX);
    REQUIRE(packet);
    for (int extra = 0; extra < 2; extra++) {
        struct buf b, h = {.n = 0};
        begin_session(&b);
        ask(1, 4);
        num(&b, ZK_FRAME_MAX + extra, 4);
        CHECK_INT(zk_frame_received(&f, b.d, b.n), extra == 0);
        num(&h, 1, 4);
        num(&h, 1, 8);
        num(&h, 0, 4);
        num(&h, ZK_FRAME_MAX - (int64_t)data - 68, 4);
        memcpy(packet, h.d, h.n);
        for (size_t at = 0; extra == 0 && at < ZK_FRAME_MAX; at += 1 << 16)
            CHECK(zk_frame_received(&f, packet + at, 1 << 16));
    }
    free(packet);
}

TEST(accepts_a_new_a_resumed_and_an_expired_session)
{
    static const struct {
        int64_t asked;
        int timeout;
        int64_t got;
        int password;
        bool ok;
    } t[] = {
        {0, 3000, 1, 16, true},  {0, 3000, -5, 16, true},       {9, 3000, 9, 16, true},
        {9, 0, 0, 16, true}, /* over */
        {9, 3000, 8, 16, false}, {0, 0, 0, 16, false},          {0, 0, 5, 16, false},
        {0, -1, 5, 16, false},   {0, INT32_MAX, 5, 16, false},  {0, INT32_MAX / 2, 5, 16, false},
        {9, 0, 9, 16, false},    {9, -1, 0, 16, false},         {0, 3000, 1, 17, false},
        {0, 3000, 1, -1, false}, {0, 3000, 1, 0x100000, false},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        struct buf b = {.n = 0};
        ask_session(t[i].asked);
        session(&b, t[i].timeout, t[i].got, t[i].password);
        CHECK_INT(zk_frame_received(&f, b.d, b.n), t[i].ok);
    }
    /* Before 3.4 without the last byte; it is not 1 either. */
    for (int which = 0; which < 3; which++) {
        struct buf b;
        begin_session(&b);
        if (which == 0)
            b.d[3]--, b.n--;
        else if (which == 1)
            b.d[b.n - 1] = 1;
        else
            b.d[3]++;
        CHECK_INT(zk_frame_received(&f, b.d, b.n), which == 0);
    }
}

/* ------------------------------------------------------------------ what is not */

/* A session, and one request with that answer. */
static bool answer(int op, int xid, int err, const struct buf *body, int extra)
{
    struct buf b;
    begin_session(&b);
    ask(10, op);
    size_t at = header(&b, xid, err);
    memcpy(b.d + b.n, body->d, body->n);
    b.n += body->n;
    close_packet(&b, at, extra);
    zeros(&b, extra > 0 ? (size_t)extra : 0);
    bool ok = zk_frame_received(&f, b.d, b.n);
    /* A bad connection stays bad; the next one starts good. */
    if (!ok)
        CHECK(!zk_frame_received(&f, b.d, 1));
    begin_session(&b);
    CHECK(zk_frame_received(&f, b.d, b.n));
    return ok;
}

TEST(refuses_answers_without_a_request)
{
    struct buf none = {.n = 0};
    CHECK(answer(2, 10, 0, &none, 0));
    CHECK(!answer(2, 11, 0, &none, 0));
    CHECK(!answer(2, 9, 0, &none, 0));
    CHECK(!answer(2, 0x31415926, 0, &none, 0));
    CHECK(!answer(2, -2, 0, &none, 0)); /* none of these was sent */
    CHECK(!answer(2, -4, 0, &none, 0));
    CHECK(!answer(2, -4, -115, &none, 0));
    CHECK(!answer(2, -8, 0, &none, 0));
    CHECK(!answer(2, -3, 0, &none, 0));
    CHECK(!answer(77, 10, 0, &none, 0)); /* of an unknown form */
    struct buf b;
    begin_session(&b);
    ask(10, 2);
    ask(11, 2);
    CHECK(zk_frame_received(&f, b.d, b.n));
    b.n = 0;
    empty_answer(&b, 11); /* out of order */
    CHECK(!zk_frame_received(&f, b.d, b.n));
}

TEST(refuses_impossible_lengths)
{
    static const int64_t lens[] = {0, 1, 15, -1, INT32_MIN, INT32_MAX, ZK_FRAME_MAX + 1};
    for (size_t i = 0; i < DLOCK_LEN(lens); i++) {
        struct buf b = {.n = 0};
        ask_session(0);
        num(&b, lens[i], 4);
        CHECK(!zk_frame_received(&f, b.d, b.n));
        begin_session(&b);
        num(&b, lens[i], 4);
        CHECK(zk_frame_received(&f, b.d, b.n - 1));
        CHECK(!zk_frame_received(&f, b.d + b.n - 1, 1));
    }
}

TEST(refuses_bodies_that_do_not_fill_their_packet)
{
    for (size_t i = 0; i < DLOCK_LEN(bodies); i++) {
        const struct body *body = &bodies[i];
        struct buf b = {.n = 0};
        size_t at = add_body(&b, body);
        CHECK(answer(body->op, 10, 0, &b, 0));
        CHECK(answer(body->op, 10, -101, &b, 0)); /* ignored */
        CHECK(!answer(body->op, 10, 0, &b, 1));
        for (struct buf less = b; less.n-- > 0;)
            CHECK(!answer(body->op, 10, 0, &less, 0));
        static const int64_t lens[] = {-2, INT32_MIN, INT32_MAX, 1000, 2, 4};
        for (size_t j = 0; body->text && j < DLOCK_LEN(lens); j++) {
            struct buf l = b;
            l.n = at;
            num(&l, lens[j], 4);
            l.n = b.n;
            CHECK_INT(answer(body->op, 10, 0, &l, 0), lens[j] == (int64_t)strlen(body->text));
        }
    }
}

/* A session, a multi of a delete, a set and a create, and that answer. */
static bool multi_answer(const int *ops, int err, const struct buf *body)
{
    bool all = true;
    for (size_t piece = 1; piece < 300; piece += 7) {
        struct buf b;
        begin_session(&b);
        ask(9, 2);
        ask_multi(10, ops, piece);
        ask(11, 2);
        for (int xid = 9; xid < 12; xid++) {
            size_t at = header(&b, xid, xid == 10 ? err : 0);
            if (xid == 10) {
                memcpy(b.d + b.n, body->d, body->n);
                b.n += body->n;
            }
            close_packet(&b, at, 0);
        }
        bool ok = zk_frame_received(&f, b.d, b.n);
        CHECK(piece == 1 || ok == all);
        all = all && ok;
    }
    return all;
}

TEST(checks_each_result_of_a_multi)
{
    static const int ops[] = {2, 5, 1, 0};
    static const struct {
        struct {
            int type, err;
        } r[5]; /* the end included */
        int n;
        bool ok;
    } t[] = {
        {{{2, 0}, {5, 0}, {1, 0}, {0, 0}}, 4, true},
        {{{-1, 0}, {-1, -103}, {-1, -2}, {0, 0}}, 4, true},
        {{{-1, -101}, {5, 0}, {1, 0}, {0, 0}}, 4, true}, /* odd, and harmless */
        {{{2, 0}, {5, 0}, {0, 0}}, 3, false},            /* too few: the library would keep one */
        {{{0, 0}}, 1, false},
        {{{2, 0}, {5, 0}, {1, 0}, {2, 0}, {0, 0}}, 5, false}, /* too many: it would abort */
        {{{2, 0}, {5, 0}, {1, 0}}, 3, false},                 /* no end */
        {{{2, 0}, {5, 0}, {1, 0}, {0, 0}, {0, 0}}, 5, false},
        {{{5, 0}, {5, 0}, {1, 0}, {0, 0}}, 4, false}, /* of other operations */
        {{{2, 0}, {1, 0}, {5, 0}, {0, 0}}, 4, false},
        {{{2, 0}, {5, 0}, {15, 0}, {0, 0}}, 4, false},
        {{{2, -103}, {5, 0}, {1, 0}, {0, 0}}, 4, false}, /* an error that is none */
        {{{-2, 0}, {5, 0}, {1, 0}, {0, 0}}, 4, false},
    };
    for (size_t i = 0; i < DLOCK_LEN(t); i++) {
        struct buf b = {.n = 0};
        for (int j = 0; j < t[i].n; j++)
            result(&b, t[i].r[j].type, t[i].r[j].err);
        if (!CHECK_INT(multi_answer(ops, 0, &b), t[i].ok))
            printf("# row %zu\n", i);
        CHECK(multi_answer(ops, -101, &b)); /* what follows an error is ignored */
    }
    struct buf b = {.n = 0};
    for (size_t i = 0; i < 4; i++)
        result(&b, ops[i], 0);
    CHECK(multi_answer(ops, 0, &b));
    for (struct buf less = b; less.n-- > 0;)
        CHECK(!multi_answer(ops, 0, &less));
    b.d[4] = 2; /* neither the end nor not */
    CHECK(!multi_answer(ops, 0, &b));
}

/* Its answer has a form that the guard does not know, so it is let through by no means. */
TEST(refuses_the_answer_to_a_multi_that_we_never_send)
{
    static const int create2[] = {15, 0}, many[] = {2, 2, 2, 2, 2, 0}, most[] = {2, 5, 2, 2, 0};
    struct buf b = {.n = 0};
    num(&b, 15, 4);
    num(&b, 0, 5);
    str(&b, "/some/path");
    zeros(&b, 68);
    result(&b, 0, 0);
    CHECK(!multi_answer(create2, 0, &b));
    b.n = 0;
    for (size_t i = 0; i < 6; i++)
        result(&b, many[i], 0);
    CHECK(!multi_answer(many, 0, &b));
    b.n = 0;
    for (size_t i = 0; i < 5; i++)
        result(&b, most[i], 0);
    CHECK(multi_answer(most, 0, &b));
}

TEST(checks_lists_and_strings)
{
    static const int64_t counts[] = {-1, 0, 2, 1000, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < DLOCK_LEN(counts); i++) {
        struct buf b = {.n = 0};
        num(&b, counts[i], 4);
        str(&b, "name");
        CHECK(!answer(8, 10, 0, &b, 0));
    }
    struct buf b = {.n = 0};
    num(&b, 1, 4);
    str(&b, "name");
    CHECK(answer(8, 10, 0, &b, 0));
    b.d[b.n - 2] = '\0'; /* the library would take it for the end */
    CHECK(!answer(8, 10, 0, &b, 0));
    b.n = 0;
    num(&b, -1, 4);
    CHECK(!answer(9, 10, 0, &b, 0)); /* no string */
    b.n = 0;
    num(&b, 3, 4);
    num(&b, 3, 4);
    str(&b, "/path");
    CHECK(answer(2, -1, 0, &b, 0)); /* an event */
    CHECK(!answer(2, -1, 0, &b, 2));
    for (int type = -2; type < 9; type++) {
        b.d[0] = b.d[1] = b.d[2] = type < 0 ? 0xff : 0;
        b.d[3] = (unsigned char)type;
        CHECK_INT(answer(2, -1, 0, &b, 0), type >= 1 && type <= 4);
    }
}

/* Any bytes: no access to other memory (under a sanitizer), and no packet that is too long. */
TEST(survives_garbage)
{
    unsigned seed = 1;
    int bad = 0;
    for (int round = 0; round < 20000; round++) {
        struct buf b = {.n = 0};
        size_t ends[64];
        dialogue(&b, ends);
        for (int i = 0; i < 1 + round % 3; i++) {
            seed = seed * 1103515245 + 12345;
            size_t at = (seed >> 8) % b.n;
            seed = seed * 1103515245 + 12345;
            b.d[at] ^= (unsigned char)(1U << ((seed >> 8) % 8));
        }
        for (size_t at = 0; at < b.n;) {
            seed = seed * 1103515245 + 12345;
            size_t n = 1 + (seed >> 8) % 40;
            n = n < b.n - at ? n : b.n - at;
            if (!zk_frame_received(&f, b.d + at, n)) {
                bad++;
                break;
            }
            CHECK(zk_frame_room(&f) >= 1 && zk_frame_room(&f) <= ZK_FRAME_MAX);
            at += n;
        }
    }
    CHECK(bad > 1000);
}

UNIT_MAIN
