/*
 * wire/frame.h - could a ZooKeeper server send these bytes? libzookeeper trusts the server: it aborts on an answer that
 * nothing asked for, allocates as much as a length says, and frees what a body that is too short has not set. So each
 * byte is checked against what the library has sent, before the library reads it.
 */
#ifndef DLOCK_ZKFRAME_H
#define DLOCK_ZKFRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest packet that is accepted: four times what a server accepts by default (jute.maxbuffer). */
#define ZK_FRAME_MAX (4 << 20)

/* The most operations of one multi. */
#define ZK_FRAME_OPS 4

struct zk_frame_asked {
    int32_t xid, op;
    unsigned char ops[ZK_FRAME_OPS + 1]; /* of a multi: the type of each, then 0 */
};

/* One connection. It allocates only for requests that are not answered yet. */
struct zk_frame {
    struct {
        uint32_t at;  /* position within the packet, counted from its length field */
        uint32_t len; /* of what follows the length field */
        bool first;   /* the packet asks for a session */
        unsigned char head[28];
        struct { /* a multi: its operations, which decide the form of its answer */
            const char *next;
            uint32_t at, skip, acl; /* as in in; acl: fields of ACLs that are still to come */
            unsigned char item[9];
            unsigned char ops[ZK_FRAME_OPS + 1];
            int n;
            bool bad, done;
        } multi;
    } out;
    int64_t session;              /* the id that was asked for; 0: a new one */
    struct zk_frame_asked *asked; /* requests in the order of their answers */
    size_t first, n, size;
    unsigned pings, auths, watches; /* unanswered requests whose answers come out of order */
    struct {
        bool bad, first;
        bool any;                            /* the rest of this packet may be anything */
        uint32_t at;                         /* how much of item is there */
        uint32_t left;                       /* of the packet */
        const char *next;                    /* the kinds of its next fields */
        uint32_t skip;                       /* of a field whose bytes may be anything, but for */
        bool text;                           /* a NUL among them */
        uint32_t strings;                    /* of a list that are still to come */
        unsigned char ops[ZK_FRAME_OPS + 1]; /* of the multi that is answered */
        int op;                              /* how many of them are */
        unsigned char item[20];
    } in;
};

/* A new connection; f is all zero before the first. */
void zk_frame_begin(struct zk_frame *f);
/* Free what f has allocated. */
void zk_frame_done(struct zk_frame *f);

/* The client has sent these n bytes. */
void zk_frame_sent(struct zk_frame *f, const void *data, size_t n);

/* How much may be read without crossing the end of a packet or of its length field: at least 1. */
size_t zk_frame_room(const struct zk_frame *f);
/* The server has sent these n bytes. False: no server can send that; the connection is of no more use. */
bool zk_frame_received(struct zk_frame *f, const void *data, size_t n);
/* Nothing has been received yet. */
bool zk_frame_silent(const struct zk_frame *f);

#endif
