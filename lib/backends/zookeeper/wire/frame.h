/*
 * wire/frame.h - could a ZooKeeper server send these bytes? libzookeeper trusts the server: it
 * aborts on an unrequested answer, allocates as much as a length says, and frees fields not set by
 * a short body. So each byte is checked against the library's requests, before the library reads
 * the byte.
 */
#ifndef DLOCK_ZKFRAME_H
#define DLOCK_ZKFRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest accepted packet: four times a server's default limit (jute.maxbuffer). */
#define ZK_FRAME_MAX (4 << 20)

/* The most operations of a multi. */
#define ZK_FRAME_OPS 4

/* The most unanswered requests: a status, and the watches of 1000 slots, need half of them. */
#define ZK_FRAME_ASKED 2048

struct zk_frame_asked {
    int32_t xid, op;
    unsigned char ops[ZK_FRAME_OPS + 1]; /* of a multi: the type of each, then 0 */
};

/* The packets of one side: a length, and so many bytes, which the library keeps in one piece. */
struct zk_frame_side {
    bool first; /* the first packet has not come yet */
    size_t at;  /* bytes of length and packet that have come */
    unsigned char length[4];
    int32_t len;
    const unsigned char *packet; /* in the library's memory */
};

/* A connection. */
struct zk_frame {
    struct zk_frame_side out, in;
    bool bad;                       /* stays so */
    bool opened;                    /* the server has opened the session, and sends on */
    int64_t session;                /* the requested id; 0: new */
    unsigned first, n;              /* of asked */
    unsigned pings, auths, watches; /* unanswered requests whose answers come out of order */
    struct zk_frame_asked asked[ZK_FRAME_ASKED]; /* a ring, in the order of the answers */
};

/* A new connection. */
void zk_frame_begin(struct zk_frame *f);

/*
 * The client has sent these n bytes. The packet they belong to lies in one piece in the memory of
 * the library, up to the end of these bytes; likewise below.
 */
void zk_frame_sent(struct zk_frame *f, const void *data, size_t n);

/* How many bytes may be read up to the end of a packet or of its length field: at least 1. */
size_t zk_frame_room(const struct zk_frame *f);
/* The server has sent these n bytes. False: no server sends such bytes; drop the connection. */
bool zk_frame_received(struct zk_frame *f, const void *data, size_t n);
/* Has nothing been received yet? */
bool zk_frame_silent(const struct zk_frame *f);

#endif
