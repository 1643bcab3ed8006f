/*
 * wire/frame.c - see wire/frame.h.
 *
 * A packet is a length and so many bytes. The first packet of each side sets up the session. Each
 * later request begins with a number (xid) and an operation; each answer with the xid of the oldest
 * unanswered request, or with a special xid. The operation decides the body of the answer, which a
 * string of field kinds describes. (zookeeper.jute; zookeeper_process(3) and process_completions()
 * of libzookeeper 3.8.)
 */
#include "frame.h"

#include <string.h>

enum { XID_EVENT = -1, XID_PING = -2, XID_AUTH = -4, XID_WATCHES = -8 };
enum { EVENT_CREATED = 1, EVENT_CHILD = 4 };

enum { OP_CREATE = 1, OP_DELETE = 2, OP_SET = 5, OP_CHECK = 13, OP_MULTI = 14, OP_ERROR = -1 };

/* The fields of a packet, a letter each: see field_of(). */
#define SESSION "cpr"
#define SESSION_OLD "cp" /* before 3.4 */
#define HEADER "h"
#define EVENT "eis"
#define MULTI "m"

/* A kind of field: how many bytes are collected and checked, else how many may be anything. */
struct field {
    char kind;
    unsigned char checked, skipped;
};
static const struct field *field_of(char kind)
{
    static const struct field fields[] = {
        {'c', 20, 0}, /* protocol version, timeout, session, length of the password */
        {'h', 16, 0}, /* xid, zxid, error */
        {'m', 9, 0},  /* within a multi: type of operation, is this the end?, error */
        {'e', 4, 0},  /* the type of an event */
        {'s', 4, 0},  /* a string's length */
        {'b', 4, 0},  /* a buffer's length; -1: none */
        {'v', 4, 0},  /* how many strings */
        {'a', 4, 0},  /* how many ACLs */
        {'r', 1, 0},  /* read-only, which we never ask for */
        {'i', 0, 4},  /* a number */
        {'p', 0, 16}, /* the password */
        {'k', 0, 68}, /* Stat */
        {0, 0, 0},
    };
    const struct field *f = fields;
    while (f->kind && f->kind != kind)
        f++;
    return f;
}

/*
 * An operation that we send: the fields behind the header of its answer; within a multi, the fields
 * behind the header of the operation, and of its result. NULL: never sent.
 */
struct operation {
    int32_t op;
    const char *answer, *fields, *result;
};
static const struct operation *operation_of(int32_t op)
{
    static const struct operation operations[] = {
        {OP_CREATE, "s", "sbai" MULTI, "s" MULTI},
        {OP_DELETE, "", "si" MULTI, MULTI},
        {3 /* exists */, "k", NULL, NULL},
        {4 /* get */, "bk", NULL, NULL},
        {OP_SET, "k", "sbi" MULTI, "k" MULTI},
        {8 /* children */, "v", NULL, NULL},
        {9 /* sync */, "s", NULL, NULL},
        {OP_CHECK, NULL, "si" MULTI, MULTI},
        {OP_MULTI, MULTI, NULL, NULL},
        {15 /* create2 */, "sk", NULL, NULL},
        {19 /* create2 of a container */, "sk", NULL, NULL},
        {-11 /* close */, "", NULL, NULL},
        {0, NULL, NULL, NULL},
    };
    const struct operation *o = operations;
    while (o->op != 0 && o->op != op)
        o++;
    return o;
}

static int32_t int_at(const unsigned char *p)
{
    return (int32_t)((uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]);
}

static int64_t long_at(const unsigned char *p)
{
    return (int64_t)((uint64_t)(uint32_t)int_at(p) << 32 | (uint32_t)int_at(p + 4));
}

void zk_frame_begin(struct zk_frame *f)
{
    memset(f, 0, offsetof(struct zk_frame, asked));
    f->out.first = f->in.first = true;
}

/* ----------------------------------------------------------------------- sent */

/* n bytes of an outgoing multi, behind the packet's header. */
static void multi_sent(struct zk_frame *f, const unsigned char *p, size_t n)
{
    while (n > 0 && !f->out.multi.bad && !f->out.multi.done) {
        size_t used = f->out.multi.skip < n ? f->out.multi.skip : n;
        f->out.multi.skip -= (uint32_t)used;
        p += used;
        n -= used;
        if (n == 0)
            break;
        /* Each ACL is a number and two strings. */
        uint32_t acl = f->out.multi.acl;
        char kind = acl == 0 ? *f->out.multi.next : acl % 3 == 0 ? 'i' : 's';
        f->out.multi.item[f->out.multi.at++] = *p++;
        n--;
        if (f->out.multi.at < (kind == 'i' ? 4 : field_of(kind)->checked))
            continue;
        f->out.multi.at = 0;
        if (acl > 0)
            f->out.multi.acl--;
        else
            f->out.multi.next++;
        int32_t item = int_at(f->out.multi.item);
        if (kind == 'a') {
            f->out.multi.acl = 3 * (uint32_t)item;
        } else if (kind == 'm') {
            f->out.multi.done = f->out.multi.item[4] != 0;
            f->out.multi.next = operation_of(item)->fields;
            if (f->out.multi.done)
                break;
            if (!f->out.multi.next || f->out.multi.n == ZK_FRAME_OPS)
                f->out.multi.bad = true;
            else
                f->out.multi.ops[f->out.multi.n++] = (unsigned char)item;
        } else if (kind != 'i') {
            f->out.multi.skip = item > 0 ? (uint32_t)item : 0;
        }
    }
}

/* The number of unanswered requests of this kind, whose answers come out of order, or NULL. */
static unsigned *special_of(struct zk_frame *f, int32_t xid)
{
    return xid == XID_PING      ? &f->pings
           : xid == XID_AUTH    ? &f->auths
           : xid == XID_WATCHES ? &f->watches
                                : NULL;
}

/* Note a sent request. False: too many requests, or a request we never send. */
static bool packet_sent(struct zk_frame *f)
{
    int32_t xid = int_at(f->out.head + 4), op = int_at(f->out.head + 8);
    if (f->out.first) {
        f->out.first = false;
        f->session = long_at(f->out.head + 20);
        return true;
    }
    unsigned *special = special_of(f, xid);
    if (special) {
        ++*special;
        return true;
    }
    if (f->n == ZK_FRAME_ASKED)
        return false;
    struct zk_frame_asked *last = &f->asked[(f->first + f->n++) % ZK_FRAME_ASKED];
    *last = (struct zk_frame_asked){xid, op, {0}};
    if (op != OP_MULTI)
        return true;
    memcpy(last->ops, f->out.multi.ops, sizeof(last->ops));
    return f->out.multi.done && !f->out.multi.bad;
}

void zk_frame_sent(struct zk_frame *f, const void *data, size_t n)
{
    const unsigned char *p = data;
    while (n > 0) {
        size_t whole = f->out.at < 4 ? 4 : (size_t)f->out.len + 4;
        size_t part = whole - f->out.at < n ? whole - f->out.at : n;
        for (size_t i = 0; i < part && f->out.at + i < sizeof(f->out.head); i++)
            f->out.head[f->out.at + i] = p[i];
        /* A multi's operations are behind the length, the xid and the operation. */
        size_t before = f->out.at < 12 ? 12 - f->out.at : 0;
        if (before > 0) {
            memset(&f->out.multi, 0, sizeof(f->out.multi));
            f->out.multi.next = MULTI;
        }
        if (part > before && !f->out.first && int_at(f->out.head + 8) == OP_MULTI)
            multi_sent(f, p + before, part - before);
        f->out.at += (uint32_t)part;
        p += part;
        n -= part;
        if (f->out.at == 4)
            f->out.len = (uint32_t)int_at(f->out.head);
        if (f->out.at >= 4 && f->out.at == f->out.len + 4) {
            if (!packet_sent(f)) /* the answer would match no request */
                f->in.bad = true;
            f->out.at = 0;
        }
    }
}

/* ------------------------------------------------------------------- received */

/* The server grants the requested session, a new session, or none (the session has expired). */
static bool session_ok(const struct zk_frame *f, const unsigned char *p)
{
    int32_t timeout = int_at(p + 4);
    int64_t session = long_at(p + 8);
    if (int_at(p + 16) != 16)
        return false;
    if (session == 0)
        return f->session != 0 && timeout >= 0;
    /* The library doubles the time-out, in an int. */
    return timeout > 0 && timeout < INT32_MAX / 2 && (f->session == 0 || session == f->session);
}

static bool header_ok(struct zk_frame *f, const unsigned char *p)
{
    int32_t xid = int_at(p);
    unsigned *special = special_of(f, xid);
    if (xid == XID_EVENT) {
        f->in.next = EVENT;
        return true;
    }
    if (special) {
        f->in.any = true;
        return *special > 0 && (*special)--;
    }
    const struct zk_frame_asked *asked = &f->asked[f->first];
    if (f->n == 0 || asked->xid != xid)
        return false;
    f->in.next = operation_of(asked->op)->answer;
    memcpy(f->in.ops, asked->ops, sizeof(f->in.ops));
    f->in.op = 0;
    f->first = (f->first + 1) % ZK_FRAME_ASKED;
    f->n--;
    /* The library ignores the bytes behind an error. */
    f->in.any = int_at(p + 12) != 0;
    return f->in.next;
}

/*
 * The header of a result in the answer to a multi. The library aborts if there are more results
 * than operations.
 */
static bool result_ok(struct zk_frame *f, const unsigned char *p)
{
    int32_t type = int_at(p);
    unsigned char op = f->in.ops[f->in.op];
    if (p[4] > 1 || (p[4] == 1) != (op == 0))
        return false;
    f->in.next = "";
    if (op == 0)
        return true;
    f->in.op++;
    f->in.next = type == OP_ERROR ? "i" MULTI : operation_of(op)->result;
    return type == OP_ERROR || (type == op && int_at(p + 5) == 0);
}

/* Check the collected field; in.next is the field behind. */
static bool item_ok(struct zk_frame *f, char kind)
{
    const unsigned char *p = f->in.item;
    int32_t n = int_at(p);
    switch (kind) {
    case 'c':
        return session_ok(f, p);
    case 'h':
        return header_ok(f, p);
    case 'm':
        return result_ok(f, p);
    case 'r':
        return p[0] == 0;
    case 'e':
        return n >= EVENT_CREATED && n <= EVENT_CHILD;
    case 'b':
        f->in.skip = n > 0 ? (uint32_t)n : 0;
        f->in.text = false;
        return n >= -1 && f->in.skip <= f->in.left;
    case 's':
        f->in.skip = (uint32_t)n;
        f->in.text = true;
        return n >= 0 && f->in.skip <= f->in.left;
    case 'v':
        f->in.strings = (uint32_t)n;
        return n >= 0 && f->in.strings <= f->in.left / 4;
    default:
        return false;
    }
}

static bool packet_begins(struct zk_frame *f)
{
    int32_t len = int_at(f->in.item);
    f->in.any = false;
    f->in.skip = f->in.strings = 0;
    f->in.left = (uint32_t)len;
    if (f->in.first) {
        f->in.first = false;
        f->in.next = len == 37 ? SESSION : SESSION_OLD;
        return len == 36 || len == 37;
    }
    f->in.next = HEADER;
    return len >= 16 && len <= ZK_FRAME_MAX;
}

/* The kind of the current field; 0: the packet is over. */
static char kind_now(const struct zk_frame *f)
{
    return f->in.strings > 0 ? 's' : *f->in.next;
}

/* Go on to the next field to collect. */
static bool settle(struct zk_frame *f)
{
    while (f->in.skip == 0 && f->in.left > 0) {
        char kind = kind_now(f);
        if (f->in.any)
            f->in.skip = f->in.left, f->in.text = false;
        else if ((f->in.skip = field_of(kind)->skipped) > 0)
            f->in.next++, f->in.text = false;
        else
            break;
    }
    return f->in.skip <= f->in.left;
}

static bool skip(struct zk_frame *f, const unsigned char *p, size_t n)
{
    f->in.skip -= (uint32_t)n;
    f->in.left -= (uint32_t)n;
    return !f->in.text || !memchr(p, '\0', n);
}

/* Use a part of p (n bytes, at least 1); returns the length used, 0: no server sends such bytes. */
static size_t take(struct zk_frame *f, const unsigned char *p, size_t n)
{
    bool length = f->in.left == 0;
    if (!length && f->in.skip > 0) {
        n = n < f->in.skip ? n : f->in.skip;
        return skip(f, p, n) ? n : 0;
    }
    char kind = length ? '\0' : kind_now(f);
    size_t size = length ? 4 : field_of(kind)->checked, used = size - f->in.at;
    if (size == 0 || (!length && used > f->in.left))
        return 0; /* too much, or too little */
    used = used < n ? used : n;
    memcpy(f->in.item + f->in.at, p, used);
    f->in.at += (uint32_t)used;
    if (!length)
        f->in.left -= (uint32_t)used;
    if (f->in.at < size)
        return f->in.left > 0 || length ? used : 0;
    f->in.at = 0;
    if (length)
        return packet_begins(f) ? used : 0;
    if (f->in.strings > 0)
        f->in.strings--;
    else
        f->in.next++;
    return item_ok(f, kind) ? used : 0;
}

bool zk_frame_received(struct zk_frame *f, const void *data, size_t n)
{
    const unsigned char *p = data;
    while (n > 0 && !f->in.bad) {
        size_t used = take(f, p, n);
        f->in.bad = used == 0 || !settle(f);
        bool at_end = f->in.left == 0 && f->in.at == 0;
        if (!f->in.bad && at_end) /* all fields of the packet must have come */
            f->in.bad = f->in.skip > 0 || (!f->in.any && kind_now(f) != '\0');
        p += used;
        n -= used;
    }
    return !f->in.bad;
}

size_t zk_frame_room(const struct zk_frame *f)
{
    return f->in.left > 0 ? f->in.left : 4 - f->in.at;
}

bool zk_frame_silent(const struct zk_frame *f)
{
    return f->in.first && f->in.at == 0;
}
