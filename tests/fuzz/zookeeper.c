/*
 * zookeeper.c - the packet guard. The input is a connection's traffic in pieces: '>' (sent) or any
 * other byte (received), a byte with the length of the piece, the piece. As in libzookeeper, a
 * length lies in a field of its own and a packet in a block of its own. An input that begins with
 * 'd' is the data of a node; with 'n', the names of a lock's children, a line each.
 */
#include "fuzz.h"

#include "backends/zookeeper/wire/frame.h"
#include "backends/zookeeper/zookeeper.h"

struct side {
    unsigned char length[4];
    unsigned char *packet;
    size_t at, len; /* bytes that have come of length and packet; the packet's length */
};

/* The length is known: the block, as far as this input can fill it. */
static void begin_packet(struct side *s, size_t most)
{
    uint32_t n = (uint32_t)s->length[0] << 24 | (uint32_t)s->length[1] << 16 |
                 (uint32_t)s->length[2] << 8 | s->length[3];
    s->len = n;
    free(s->packet);
    s->packet = malloc(n < most ? (n ? n : 1) : most);
    FUZZ_HOLDS(s->packet);
}

/* Take part of a piece, up to the end of a length or of a packet. Returns how much. */
static size_t pass(struct zk_frame *f, struct side *s, bool sent, const uint8_t *p, size_t n,
                   size_t most)
{
    size_t room = s->at < 4 ? 4 - s->at : s->len - (s->at - 4);
    unsigned char *to = s->at < 4 ? s->length + s->at : s->packet + (s->at - 4);
    FUZZ_HOLDS(sent || zk_frame_room(f) == room);
    n = n < room ? n : room;
    memcpy(to, p, n);
    if (sent)
        zk_frame_sent(f, to, n);
    else if (!zk_frame_received(f, to, n))
        return 0;
    s->at += n;
    if (s->at == 4)
        begin_packet(s, most);
    if (s->at >= 4 && s->at == 4 + s->len)
        s->at = 0;
    return n;
}

/* A node, whose last byte tells the times of its Stat. */
static void read_node(const char *text, size_t n)
{
    struct zk_run run = {0};
    struct zk_msg m = {.data = (char *)(uintptr_t)text, .len = (int)n};
    struct zk_mark mark;
    if (zk_read_mark(text, (int)n, &mark))
        fuzz_clean(mark.by, sizeof(mark.by));
    zk_takes_marks(text, (int)n);
    zk_read_word(text, (int)n);
    m.stat.mtime = n > 0 && text[n - 1] % 2 ? INT64_MAX : FUZZ_NOW_MS;
    if (zk_read_run(&m, FUZZ_NOW_MS, &run))
        return;
    fuzz_clean_run(&run.run);
    FUZZ_HOLDS(strnlen(run.day, sizeof(run.day)) <= ZK_DAY_LEN);
    zk_run_over_ms(&run.run);
}

#define NAMES 64

/* The line, and what each node in it waits for: a node in front that keeps ours out, or nothing. */
static void read_names(struct fuzz f)
{
    static const struct Stat stat = {.ctime = FUZZ_NOW_MS, .czxid = 7};
    char *names[NAMES];
    int n = 0, in_line = 0;
    while (n < NAMES && (names[n] = fuzz_line(&f)) != NULL)
        n++;
    struct zk_child *line = zk_line(names, n, &in_line);
    FUZZ_HOLDS(line && in_line <= n);
    for (int i = 0; i < in_line; i++) {
        struct zk_wait w = zk_wait_of(line, i);
        struct dlock_info info;
        FUZZ_HOLDS(i == 0 || line[i - 1].seq <= line[i].seq);
        FUZZ_HOLDS((w.what == WAIT_NONE) == (line[i].place == 0));
        FUZZ_HOLDS(w.what != WAIT_NODE || (w.node >= 0 && w.node < i));
        zk_read_info(line[i].name, line[i].place > 0, names[0], (int)strlen(names[0]), &stat,
                     &info);
        fuzz_clean_info(&info);
        FUZZ_HOLDS(info.slots <= DLOCK_SLOTS_MAX);
    }
    free(line);
    while (n > 0)
        free(names[--n]);
}

static void read_traffic(struct fuzz f, size_t size)
{
    static struct zk_frame frame;
    struct side out = {.packet = NULL}, in = {.packet = NULL};
    bool good = true;
    zk_frame_begin(&frame);
    FUZZ_HOLDS(zk_frame_silent(&frame));
    while (good && f.n > 0) {
        bool sent = fuzz_byte(&f) == '>';
        size_t n = fuzz_byte(&f);
        n = n < f.n ? n : f.n;
        while (good && n > 0) {
            size_t used = pass(&frame, sent ? &out : &in, sent, f.p, n, size);
            good = used > 0 && !frame.bad;
            f.p += used;
            f.n -= used;
            n -= used;
        }
    }
    FUZZ_HOLDS(frame.n <= ZK_FRAME_ASKED && frame.first < ZK_FRAME_ASKED);
    free(out.packet);
    free(in.packet);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] == 'n') {
        read_names((struct fuzz){data + 1, size - 1});
        return 0;
    }
    if (size == 0 || data[0] != 'd') {
        read_traffic((struct fuzz){data, size}, size);
        return 0;
    }
    char *text = fuzz_copy(data, size);
    read_node(text, size);
    free(text);
    return 0;
}
