/*
 * wire/frame.c - see wire/frame.h.
 *
 * A packet is a length and that many bytes. The first packet of each side sets up the session. Each later request begins
 * with a number (xid) and an operation; each answer with the xid of the oldest unanswered request, or with a special xid.
 * The body of an answer depends on the operation: a string of field kinds describes it. (zookeeper.jute;
 * zookeeper_process(3) and process_completions() of libzookeeper 3.8.)
 */
#include "frame.h"

#include <stdlib.h>
#include <string.h>

enum { XID_EVENT = -1, XID_PING = -2, XID_AUTH = -4, XID_WATCHES = -8 };
enum { EVENT_CREATED = 1, EVENT_CHILD = 4 };

/* How much of each kind of field is collected and checked. */
#define SESSION "cpr"
#define SESSION_OLD "cp" /* before 3.4 */
#define HEADER "h"
#define EVENT "eis"
enum { OP_CREATE = 1, OP_DELETE = 2, OP_SET = 5, OP_CHECK = 13, OP_MULTI = 14, OP_ERROR = -1 };
#define MULTI "m"
static size_t item_size(char kind)
{
    switch (kind) {
    case 'c': /* protocol version, timeout, session, length of the password */
        return 20;
    case 'h': /* xid, zxid, error */
        return 16;
    case 'm': /* within a multi: type of operation, whether that was the last one, error */
        return 9;
    case 'e': /* the type of an event */
    case 's': /* a string's length */
    case 'b': /* a buffer's length; -1: none */
    case 'v': /* how many strings */
    case 'a': /* how many ACLs */
        return 4;
    case 'r': /* read-only, which we never ask for */
        return 1;
    default:
        return 0;
    }
}

/* The length of fields whose bytes may be anything. */
static uint32_t skipped(char kind)
{
    switch (kind) {
    case 'i':
        return 4;
    case 'p': /* the password */
        return 16;
    case 'k': /* Stat */
        return 68;
    default:
        return 0;
    }
}

/* The fields behind the header of an answer; NULL: we never send that operation. */
static const char *body_of(int32_t op)
{
    switch (op) {
    case 2:   /* delete */
    case -11: /* close */
        return "";
    case 3: /* exists */
    case 5: /* set */
        return "k";
    case 4: /* get */
        return "bk";
    case 8: /* children */
        return "v";
    case 1: /* create */
    case 9: /* sync */
        return "s";
    case 15: /* create2 */
    case 19: /* of a container */
        return "sk";
    case OP_MULTI:
        return MULTI;
    default:
        return NULL;
    }
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
    struct zk_frame_asked *asked = f->asked;
    size_t size = f->size;
    memset(f, 0, sizeof(*f));
    f->asked = asked;
    f->size = size;
    f->out.first = f->in.first = true;
}

void zk_frame_done(struct zk_frame *f)
{
    free(f->asked);
    memset(f, 0, sizeof(*f));
}

/* ----------------------------------------------------------------------- sent */

/* The fields of an operation in a multi, behind its header; NULL: we never send it. */
static const char *fields_of(int32_t op)
{
    switch (op) {
    case OP_CREATE:
        return "sbai" MULTI;
    case OP_SET:
        return "sbi" MULTI;
    case OP_DELETE:
    case OP_CHECK:
        return "si" MULTI;
    default:
        return NULL;
    }
}

static void op_sent(struct zk_frame *f)
{
    int32_t op = int_at(f->out.multi.item);
    f->out.multi.done = f->out.multi.item[4] != 0;
    f->out.multi.next = fields_of(op);
    if (f->out.multi.done)
        return;
    if (!f->out.multi.next || f->out.multi.n == ZK_FRAME_OPS)
        f->out.multi.bad = true;
    else
        f->out.multi.ops[f->out.multi.n++] = (unsigned char)op;
}

/* The kind of the current field. Each ACL is a number and two strings. */
static char multi_kind(const struct zk_frame *f)
{
    uint32_t acl = f->out.multi.acl;
    return acl == 0 ? *f->out.multi.next : acl % 3 == 0 ? 'i' : 's';
}

static void multi_item(struct zk_frame *f, char kind)
{
    int32_t n = int_at(f->out.multi.item);
    if (kind == 'm')
        op_sent(f);
    else if (kind == 'a')
        f->out.multi.acl = 3 * (uint32_t)n;
    else
        f->out.multi.skip = n > 0 ? (uint32_t)n : 0;
}

/* Of a multi that is being sent, what follows the header. */
static void multi_sent(struct zk_frame *f, const unsigned char *p, size_t n)
{
    while (n > 0 && !f->out.multi.bad && !f->out.multi.done) {
        size_t used = f->out.multi.skip < n ? f->out.multi.skip : n;
        f->out.multi.skip -= (uint32_t)used;
        p += used;
        n -= used;
        if (n == 0)
            break;
        char kind = multi_kind(f);
        f->out.multi.item[f->out.multi.at++] = *p++;
        n--;
        if (f->out.multi.at < (kind == 'i' ? 4 : item_size(kind)))
            continue;
        f->out.multi.at = 0;
        if (f->out.multi.acl > 0)
            f->out.multi.acl--;
        else
            f->out.multi.next++;
        if (kind != 'i')
            multi_item(f, kind);
    }
}

static bool remember(struct zk_frame *f, int32_t xid, int32_t op)
{
    if (f->first + f->n == f->size) {
        if (f->n <= f->size / 2 && f->size > 0) {
            memmove(f->asked, f->asked + f->first, f->n * sizeof(*f->asked));
        } else {
            size_t size = f->size ? 2 * f->size : 16;
            struct zk_frame_asked *more = malloc(size * sizeof(*more));
            if (!more)
                return false;
            if (f->n > 0)
                memcpy(more, f->asked + f->first, f->n * sizeof(*more));
            free(f->asked);
            f->asked = more;
            f->size = size;
        }
        f->first = 0;
    }
    struct zk_frame_asked *last = &f->asked[f->first + f->n++];
    *last = (struct zk_frame_asked){xid, op, {0}};
    if (op == OP_MULTI)
        memcpy(last->ops, f->out.multi.ops, sizeof(last->ops));
    return op != OP_MULTI || (f->out.multi.done && !f->out.multi.bad);
}

static void packet_sent(struct zk_frame *f)
{
    int32_t xid = int_at(f->out.head + 4), op = int_at(f->out.head + 8);
    if (f->out.first) {
        f->out.first = false;
        f->session = long_at(f->out.head + 20);
    } else if (xid == XID_PING) {
        f->pings++;
    } else if (xid == XID_AUTH) {
        f->auths++;
    } else if (xid == XID_WATCHES) {
        f->watches++;
    } else if (!remember(f, xid, op)) {
        f->in.bad =
            true; /* out of memory, or not what we send: its answer would match no request */
    }
}

/* n more bytes of the packet that is being sent are at p; the head has them already. */
static void multi_part(struct zk_frame *f, const unsigned char *p, size_t n)
{
    const uint32_t begin = 12; /* behind the length, the xid and the operation */
    size_t before = f->out.at < begin ? begin - f->out.at : 0;
    if (f->out.at < begin) {
        memset(&f->out.multi, 0, sizeof(f->out.multi));
        f->out.multi.next = MULTI;
    }
    if (n > before && !f->out.first && int_at(f->out.head + 8) == OP_MULTI)
        multi_sent(f, p + before, n - before);
}

void zk_frame_sent(struct zk_frame *f, const void *data, size_t n)
{
    const unsigned char *p = data;
    while (n > 0) {
        size_t whole = f->out.at < 4 ? 4 : (size_t)f->out.len + 4;
        size_t part = whole - f->out.at < n ? whole - f->out.at : n;
        for (size_t i = 0; i < part && f->out.at + i < sizeof(f->out.head); i++)
            f->out.head[f->out.at + i] = p[i];
        multi_part(f, p, part);
        f->out.at += (uint32_t)part;
        p += part;
        n -= part;
        if (f->out.at == 4)
            f->out.len = (uint32_t)int_at(f->out.head);
        if (f->out.at >= 4 && f->out.at == f->out.len + 4) {
            packet_sent(f);
            f->out.at = 0;
        }
    }
}

/* ------------------------------------------------------------------- received */

/* The session that the server grants: the one that was asked for, a new one, or none (it has expired). */
static bool session_ok(const struct zk_frame *f, const unsigned char *p)
{
    int32_t timeout = int_at(p + 4);
    int64_t session = long_at(p + 8);
    if (int_at(p + 16) != 16)
        return false;
    if (session == 0)
        return f->session != 0 && timeout >= 0;
    /* The library doubles it, in an int. */
    return timeout > 0 && timeout < INT32_MAX / 2 && (f->session == 0 || session == f->session);
}

static bool count_down(unsigned *n)
{
    return *n > 0 && (*n)--;
}

static bool header_ok(struct zk_frame *f, const unsigned char *p)
{
    int32_t xid = int_at(p);
    switch (xid) {
    case XID_EVENT:
        f->in.next = EVENT;
        return true;
    case XID_PING:
        f->in.any = true;
        return count_down(&f->pings);
    case XID_AUTH:
        f->in.any = true;
        return count_down(&f->auths);
    case XID_WATCHES:
        f->in.any = true;
        return count_down(&f->watches);
    default:
        break;
    }
    if (f->n == 0 || f->asked[f->first].xid != xid)
        return false;
    f->in.next = body_of(f->asked[f->first].op);
    memcpy(f->in.ops, f->asked[f->first].ops, sizeof(f->in.ops));
    f->in.op = 0;
    f->first++;
    f->n--;
    /* The library ignores what follows an error. */
    f->in.any = int_at(p + 12) != 0;
    return f->in.next;
}

/* The header of one result in the answer to a multi. The library aborts if there are more results than operations. */
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
    if (type == OP_ERROR)
        f->in.next = "i" MULTI;
    else if (op == OP_CREATE)
        f->in.next = "s" MULTI;
    else if (op == OP_SET)
        f->in.next = "k" MULTI;
    else
        f->in.next = MULTI;
    return type == OP_ERROR || (type == op && int_at(p + 5) == 0);
}

/* Check the field of that kind that was collected; in.next is the field behind it. */
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
        else if ((f->in.skip = skipped(kind)) > 0)
            f->in.next++, f->in.text = false;
        else
            break;
    }
    return f->in.skip <= f->in.left;
}

/* Has the packet had all of its fields, and nothing else? */
static bool packet_ends(const struct zk_frame *f)
{
    return f->in.skip == 0 && (f->in.any || kind_now(f) == '\0');
}

static bool skip(struct zk_frame *f, const unsigned char *p, size_t n)
{
    f->in.skip -= (uint32_t)n;
    f->in.left -= (uint32_t)n;
    return !f->in.text || !memchr(p, '\0', n);
}

/* Use a part of p (n bytes, at least 1); returns how much, 0: no server can send that. */
static size_t take(struct zk_frame *f, const unsigned char *p, size_t n)
{
    bool length = f->in.left == 0;
    if (!length && f->in.skip > 0) {
        n = n < f->in.skip ? n : f->in.skip;
        return skip(f, p, n) ? n : 0;
    }
    char kind = length ? '\0' : kind_now(f);
    size_t size = length ? 4 : item_size(kind), used = size - f->in.at;
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
        f->in.bad =
            used == 0 || !settle(f) || (f->in.left == 0 && f->in.at == 0 && !packet_ends(f));
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
