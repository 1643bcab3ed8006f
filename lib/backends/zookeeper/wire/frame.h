/*
 * wire/frame.h - are these bytes something that a ZooKeeper server can say? libzookeeper believes a server: it aborts
 * on a reply to nothing, allocates what a length says, and frees what it has not read out of a short body. So what it
 * reads is checked before it sees it, byte for byte as it comes, against what it has sent.
 */
#ifndef DLOCK_ZKFRAME_H
#define DLOCK_ZKFRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest packet that is taken: four times what a server takes itself (jute.maxbuffer). */
#define ZK_FRAME_MAX (4 << 20)

struct zk_frame_asked {
    int32_t xid, op;
};

/* One connection. Memory is needed for what is asked and not yet answered only. */
struct zk_frame {
    struct {
        uint32_t at,
            len;    /* within the packet, its length in front included; of what follows that */
        bool first; /* the one that asks for a session */
        unsigned char head[28];
    } out;
    int64_t session;              /* that was asked for; 0: a new one */
    struct zk_frame_asked *asked; /* in their order, which is that of the answers */
    size_t first, n, size;
    unsigned pings, auths, watches; /* these are answered out of that order */
    struct {
        bool bad, first;
        bool any; /* the rest of this packet is not looked at */
        uint32_t at;
        uint32_t left; /* of the packet */
        const char *next;
        uint32_t skip;    /* of a field whose bytes are no matter, but for */
        bool text;        /* that there is no NUL among them */
        uint32_t strings; /* of a list that are still to come */
        unsigned char item[20];
    } in;
};

/* A new connection; the structure is all zero before the first. */
void zk_frame_begin(struct zk_frame *);
void zk_frame_done(struct zk_frame *);

/* What was sent. */
void zk_frame_sent(struct zk_frame *, const void *, size_t);

/* How much may be read without going beyond the end of a packet, or of its length: 1 at least. */
size_t zk_frame_room(const struct zk_frame *);
/* What was read. False: it cannot be; there is no more to be had of this connection. */
bool zk_frame_received(struct zk_frame *, const void *, size_t);
/* Nothing has been received yet. */
bool zk_frame_silent(const struct zk_frame *);

#endif
