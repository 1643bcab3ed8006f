/*
 * wire/frame.c - see wire/frame.h.
 *
 * A packet is a length and so many bytes. The first packet of each side sets up the session. Each
 * later request begins with a number (xid) and an operation; each answer with the xid of the oldest
 * unanswered request, or with a special xid. The operation decides the body of the answer.
 * (zookeeper.jute; zookeeper_process(3) and process_completions() of libzookeeper 3.8.)
 */
#include "frame.h"

#include <string.h>

enum { XID_EVENT = -1, XID_PING = -2, XID_AUTH = -4, XID_WATCHES = -8 };
enum { EVENT_CREATED = 1, EVENT_CHILD = 4 };

/* The operations that we send; OP_ERROR: within the answer to a multi. */
enum { OP_CREATE = 1, OP_DELETE = 2, OP_GET = 4, OP_SET = 5, OP_CHILDREN = 8, OP_SYNC = 9 };
enum { OP_MULTI = 14, OP_CREATE2 = 15, OP_CREATE_CONTAINER = 19, OP_CLOSE = -11, OP_ERROR = -1 };

/* Lengths of parts of packets. */
enum { LENGTH = 4, SESSION = 20, HEADER = 16, STAT = 68, ASK_SESSION = 24 };

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

/* --------------------------------------------------------------------- fields */

/* The rest of a packet. bad: a field had no room. */
struct rest {
    const unsigned char *p;
    size_t n;
    bool bad;
};

/* Skip so many bytes, which may be anything. NULL: no room. */
static const unsigned char *skip(struct rest *r, size_t n)
{
    const unsigned char *p = r->p;
    r->bad = r->bad || n > r->n;
    if (r->bad)
        return NULL;
    r->p += n;
    r->n -= n;
    return p;
}

static int32_t take_int(struct rest *r)
{
    const unsigned char *p = skip(r, 4);
    return p ? int_at(p) : 0;
}

static int take_byte(struct rest *r)
{
    const unsigned char *p = skip(r, 1);
    return p ? *p : 0;
}

/* A buffer; its length -1: none. */
static void skip_buffer(struct rest *r)
{
    int32_t n = take_int(r);
    r->bad = r->bad || n < -1;
    skip(r, n > 0 ? (size_t)n : 0);
}

/* A string, which the library ends at a NUL. */
static void skip_string(struct rest *r)
{
    int32_t n = take_int(r);
    r->bad = r->bad || n < 0;
    const unsigned char *p = skip(r, n > 0 ? (size_t)n : 0);
    r->bad = r->bad || (p && memchr(p, '\0', (size_t)n));
}

/* ----------------------------------------------------------------------- sent */

/* The number of unanswered requests of this kind, whose answers come out of order, or NULL. */
static unsigned *special_of(struct zk_frame *f, int32_t xid)
{
    return xid == XID_PING      ? &f->pings
           : xid == XID_AUTH    ? &f->auths
           : xid == XID_WATCHES ? &f->watches
                                : NULL;
}

/* Note the operations of a multi, which decide the form of its answer. */
static bool multi_sent(struct rest *r, unsigned char *ops)
{
    for (int i = 0; !r->bad; i++) {
        int32_t op = take_int(r), acls = 0;
        bool is_end = take_byte(r) != 0;
        take_int(r); /* an error */
        if (is_end)
            break;
        if (i == ZK_FRAME_OPS || (op != OP_CREATE && op != OP_SET && op != OP_DELETE))
            return false;
        ops[i] = (unsigned char)op;
        skip_buffer(r); /* the path */
        if (op != OP_DELETE)
            skip_buffer(r); /* the data */
        if (op == OP_CREATE)
            acls = take_int(r);
        for (; acls > 0 && !r->bad; acls--) {
            take_int(r); /* permissions */
            skip_buffer(r);
            skip_buffer(r);
        }
        take_int(r); /* flags or version */
    }
    return !r->bad;
}

/* Note a whole packet. False: we never send this, or too many requests are unanswered. */
static bool packet_sent(struct zk_frame *f, int32_t len, struct rest r)
{
    if (r.n < (size_t)len)
        return true;
    if (f->out.first) {
        f->out.first = false;
        f->session = r.n < ASK_SESSION ? 0 : long_at(r.p + 16);
        return r.n >= ASK_SESSION;
    }
    int32_t xid = take_int(&r), op = take_int(&r);
    unsigned *special = special_of(f, xid);
    if (special)
        ++*special;
    if (special || r.bad || f->n == ZK_FRAME_ASKED)
        return special && !r.bad;
    struct zk_frame_asked *asked = &f->asked[(f->first + f->n++) % ZK_FRAME_ASKED];
    *asked = (struct zk_frame_asked){xid, op, {0}};
    return op != OP_MULTI || multi_sent(&r, asked->ops);
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

/* Does an answer with this number answer a request? */
static bool is_awaited(struct zk_frame *f, int32_t xid)
{
    const unsigned *special = special_of(f, xid);
    if (xid == XID_EVENT)
        return true;
    return special ? *special > 0 : f->n > 0 && f->asked[f->first].xid == xid;
}

/* The library aborts if there are more results than operations. */
static void skip_results(struct rest *r, const unsigned char *ops)
{
    for (;; ops++) {
        int32_t type = take_int(r);
        int is_end = take_byte(r);
        int32_t err = take_int(r);
        r->bad = r->bad || is_end > 1 || (is_end == 1) != (*ops == 0);
        if (r->bad || *ops == 0)
            return;
        if (type == OP_ERROR) {
            take_int(r);
            continue;
        }
        r->bad = type != *ops || err != 0;
        if (type == OP_CREATE)
            skip_string(r);
        else if (type == OP_SET)
            skip(r, STAT);
    }
}

/* The body of the answer to a request. False: we never send such a request. */
static bool skip_body(struct rest *r, const struct zk_frame_asked *asked)
{
    int32_t n;
    switch (asked->op) {
    case OP_DELETE:
    case OP_CLOSE:
        return true;
    case OP_CREATE:
    case OP_SYNC:
        skip_string(r);
        return true;
    case OP_GET:
        skip_buffer(r);
        skip(r, STAT);
        return true;
    case OP_SET:
        skip(r, STAT);
        return true;
    case OP_CREATE2:
    case OP_CREATE_CONTAINER:
        skip_string(r);
        skip(r, STAT);
        return true;
    case OP_CHILDREN:
        n = take_int(r);
        r->bad = r->bad || n < 0 || (size_t)n > r->n / 4;
        while (!r->bad && n-- > 0)
            skip_string(r);
        return true;
    case OP_MULTI:
        skip_results(r, asked->ops);
        return true;
    default:
        return false;
    }
}

/* A whole packet of an open session, whose number is awaited. */
static bool answer_ok(struct zk_frame *f, struct rest r)
{
    const unsigned char *header = skip(&r, HEADER);
    int32_t xid = int_at(header);
    unsigned *special = special_of(f, xid);
    if (special)
        return (*special)--; /* the library ignores the rest */
    if (xid == XID_EVENT) {
        int32_t type = take_int(&r);
        take_int(&r); /* the session's state */
        skip_string(&r);
        return type >= EVENT_CREATED && type <= EVENT_CHILD && !r.bad && r.n == 0;
    }
    const struct zk_frame_asked *asked = &f->asked[f->first];
    f->first = (f->first + 1) % ZK_FRAME_ASKED;
    f->n--;
    bool known = skip_body(&r, asked), failed = int_at(header + 12) != 0;
    /* The library ignores the bytes behind an error. */
    return known && (failed || (!r.bad && r.n == 0));
}

/* The part of a packet that is there: its length at least. */
static bool packet_ok(struct zk_frame *f, int32_t len, struct rest r)
{
    bool whole = r.n == (size_t)len;
    if (!f->in.first) {
        f->opened = true;
        if (len < HEADER || len > ZK_FRAME_MAX || (r.n >= HEADER && !is_awaited(f, int_at(r.p))))
            return false;
        return !whole || answer_ok(f, r);
    }
    f->in.first = !whole;
    if ((len != 36 && len != 37) || (r.n >= SESSION && !session_ok(f, r.p)))
        return false;
    /* Before 3.4 without the last byte: read-only, which we never ask for. */
    return !whole || len == 36 || r.p[36] == 0;
}

/* ---------------------------------------------------------------------- bytes */

/* The bytes up to the end of the length, or of the packet. */
static size_t room(const struct zk_frame_side *s)
{
    return s->at < LENGTH ? LENGTH - s->at : LENGTH + (size_t)s->len - s->at;
}

/* Is the beginning of a packet good, its length at least? */
typedef bool packet_fn(struct zk_frame *f, int32_t len, struct rest r);

static bool pass(struct zk_frame *f, struct zk_frame_side *s, packet_fn *is_good,
                 const unsigned char *p, size_t n)
{
    for (size_t used; n > 0 && !f->bad; p += used, n -= used) {
        used = n < room(s) ? n : room(s);
        if (s->at < LENGTH)
            memcpy(s->length + s->at, p, used);
        else if (s->at == LENGTH)
            s->packet = p;
        else /* the library keeps each packet in one piece */
            f->bad = p != s->packet + (s->at - LENGTH);
        s->at += used;
        if (s->at == LENGTH)
            s->len = int_at(s->length);
        if (s->at >= LENGTH && !f->bad)
            f->bad = !is_good(f, s->len, (struct rest){s->packet, s->at - LENGTH, false});
        if (room(s) == 0)
            s->at = 0;
    }
    return !f->bad;
}

void zk_frame_sent(struct zk_frame *f, const void *data, size_t n)
{
    pass(f, &f->out, packet_sent, data, n); /* false: the answer would match no request */
}

bool zk_frame_received(struct zk_frame *f, const void *data, size_t n)
{
    return pass(f, &f->in, packet_ok, data, n);
}

size_t zk_frame_room(const struct zk_frame *f)
{
    return room(&f->in);
}

bool zk_frame_silent(const struct zk_frame *f)
{
    return f->in.first && f->in.at == 0;
}
