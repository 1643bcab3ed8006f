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
#define RESULT "m" /* of a multi */
#define ASK_SESSION "q"
#define REQUEST "x"
#define OPERATION "o" /* of a multi */

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
        {'q', 24, 0}, /* protocol version, zxid, time-out, session */
        {'x', 8, 0},  /* xid, operation */
        {'o', 9, 0},  /* as 'm', of a request */
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
        {OP_CREATE, "s", "sba", "s" RESULT},
        {OP_DELETE, "", "si" OPERATION, RESULT},
        {3 /* exists */, "k", NULL, NULL},
        {4 /* get */, "bk", NULL, NULL},
        {OP_SET, "k", "sbi" OPERATION, "k" RESULT},
        {8 /* children */, "v", NULL, NULL},
        {9 /* sync */, "s", NULL, NULL},
        {OP_CHECK, NULL, "si" OPERATION, RESULT},
        {OP_MULTI, RESULT, NULL, NULL},
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

/* The number of unanswered requests of this kind, whose answers come out of order, or NULL. */
static unsigned *special_of(struct zk_frame *f, int32_t xid)
{
    return xid == XID_PING      ? &f->pings
           : xid == XID_AUTH    ? &f->auths
           : xid == XID_WATCHES ? &f->watches
                                : NULL;
}

/* Note a request. False: too many are unanswered. */
static bool request_sent(struct zk_frame *f, int32_t xid, int32_t op)
{
    unsigned *special = special_of(f, xid);
    f->out.any = special || op != OP_MULTI;
    f->out.next = OPERATION;
    f->out.op = 0;
    if (special)
        ++*special;
    else if (f->n < ZK_FRAME_ASKED)
        f->asked[(f->first + f->n++) % ZK_FRAME_ASKED] = (struct zk_frame_asked){xid, op, {0}};
    else
        return false;
    return true;
}

/* Note an operation of a multi, which decides the form of the answer. False: we never send this. */
static bool operation_sent(struct zk_frame *f, int32_t op, bool is_end)
{
    unsigned char *ops = f->asked[(f->first + f->n - 1) % ZK_FRAME_ASKED].ops;
    f->out.any = is_end;
    f->out.next = operation_of(op)->fields;
    if (is_end)
        return true;
    if (!f->out.next || f->out.op == ZK_FRAME_OPS)
        return false;
    ops[f->out.op++] = (unsigned char)op;
    return true;
}

/* The collected field; out.next is the field behind. */
static bool item_sent(struct zk_frame *f, char kind)
{
    /* By the number of ACLs: permissions, scheme and id of each, flags. */
    static const char *const acls[] = {"i" OPERATION, "issi" OPERATION, "ississi" OPERATION};
    const unsigned char *p = f->out.item;
    int32_t n = int_at(p);
    switch (kind) {
    case '\0':
        f->out.next = f->out.first ? ASK_SESSION : REQUEST;
        f->out.first = false;
        return true;
    case 'q':
        f->session = long_at(p + 16);
        f->out.any = true;
        return true;
    case 'x':
        return request_sent(f, n, int_at(p + 4));
    case 'o':
        return operation_sent(f, n, p[4] != 0);
    case 'a':
        f->out.next = n >= 0 && n <= 2 ? acls[n] : "";
        return true;
    default: /* a string or a buffer */
        f->out.skip = n > 0 ? (uint32_t)n : 0;
        return true;
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
    memcpy(f->ops, asked->ops, sizeof(f->ops));
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
    unsigned char op = f->ops[f->in.op];
    if (p[4] > 1 || (p[4] == 1) != (op == 0))
        return false;
    f->in.next = "";
    if (op == 0)
        return true;
    f->in.op++;
    f->in.next = type == OP_ERROR ? "i" RESULT : operation_of(op)->result;
    return type == OP_ERROR || (type == op && int_at(p + 5) == 0);
}

static bool packet_begins(struct zk_frame *f, int32_t len)
{
    if (!f->in.first) {
        f->opened = true;
        f->in.next = HEADER;
        return len >= 16 && len <= ZK_FRAME_MAX;
    }
    f->in.first = false;
    f->in.next = len == 37 ? SESSION : SESSION_OLD;
    return len == 36 || len == 37;
}

/* Check the collected field; in.next is the field behind. */
static bool item_received(struct zk_frame *f, char kind)
{
    const unsigned char *p = f->in.item;
    int32_t n = int_at(p);
    switch (kind) {
    case '\0':
        return packet_begins(f, n);
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

/* ---------------------------------------------------------------------- bytes */

/* The kind of the current field; 0: the packet is over. */
static char kind_now(const struct zk_frame_side *s)
{
    return s->strings > 0 ? 's' : *s->next;
}

/* Go on to the next field to collect. */
static bool settle(struct zk_frame_side *s)
{
    while (s->skip == 0 && s->left > 0) {
        s->text = false;
        if (s->any)
            s->skip = s->left;
        else if ((s->skip = field_of(kind_now(s))->skipped) > 0)
            s->next++;
        else
            break;
    }
    return s->skip <= s->left;
}

/* What a side makes of a collected field; '\0': of the length. False: no such packet exists. */
typedef bool item_fn(struct zk_frame *f, char kind);

/* Use a part of p (n bytes, at least 1); returns the length used, 0: no such packet exists. */
static size_t take(struct zk_frame *f, struct zk_frame_side *s, item_fn *item,
                   const unsigned char *p, size_t n)
{
    bool length = s->left == 0;
    if (!length && s->skip > 0) {
        n = n < s->skip ? n : s->skip;
        s->skip -= (uint32_t)n;
        s->left -= (uint32_t)n;
        return s->text && memchr(p, '\0', n) ? 0 : n;
    }
    char kind = length ? '\0' : kind_now(s);
    size_t size = length ? 4 : field_of(kind)->checked, used = size - s->at;
    if (size == 0 || (!length && used > s->left))
        return 0; /* too much, or too little */
    used = used < n ? used : n;
    memcpy(s->item + s->at, p, used);
    s->at += (uint32_t)used;
    if (!length)
        s->left -= (uint32_t)used;
    if (s->at < size)
        return s->left > 0 || length ? used : 0;
    s->at = 0;
    if (length) {
        s->left = (uint32_t)int_at(s->item);
        s->skip = s->strings = 0;
        s->any = false;
    } else if (s->strings > 0) {
        s->strings--;
    } else {
        s->next++;
    }
    return item(f, kind) ? used : 0;
}

static bool pass(struct zk_frame *f, struct zk_frame_side *s, item_fn *item, const void *data,
                 size_t n)
{
    const unsigned char *p = data;
    while (n > 0 && !s->bad) {
        size_t used = take(f, s, item, p, n);
        s->bad = used == 0 || !settle(s);
        bool at_end = s->left == 0 && s->at == 0;
        if (!s->bad && at_end) /* all fields of the packet must have come */
            s->bad = s->skip > 0 || (!s->any && kind_now(s) != '\0');
        p += used;
        n -= used;
    }
    return !s->bad;
}

void zk_frame_sent(struct zk_frame *f, const void *data, size_t n)
{
    if (!pass(f, &f->out, item_sent, data, n)) /* the answer would match no request */
        f->in.bad = true;
}

bool zk_frame_received(struct zk_frame *f, const void *data, size_t n)
{
    return pass(f, &f->in, item_received, data, n);
}

size_t zk_frame_room(const struct zk_frame *f)
{
    return f->in.left > 0 ? f->in.left : 4 - f->in.at;
}

bool zk_frame_silent(const struct zk_frame *f)
{
    return f->in.first && f->in.at == 0;
}
