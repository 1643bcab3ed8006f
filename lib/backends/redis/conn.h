/*
 * conn.h - one connection to a Redis server: address list, AUTH, RESP, deadlines.
 *
 * Commands are queued by rconn_send under a tag; their answers come back from
 * rconn_next with the same tag, in order. What is queued before the connection
 * stands goes out in one write, behind AUTH. hiredis parses and formats; the
 * socket is ours, because hiredis' own is not CLOEXEC, writes without
 * MSG_NOSIGNAL, and its non-blocking connect tries one address only.
 */
#ifndef DLOCK_RCONN_H
#define DLOCK_RCONN_H

#include "tls/tls.h"
#include "util.h"

#include <hiredis/hiredis.h>

#define RCONN_TAGS 16   /* unanswered commands at most */
#define RCONN_PUSH (-1) /* tag of a pub/sub message */
#define RCONN_AUTH (-2) /* tags of our own AUTH and ROLE; never handed out */
#define RCONN_ROLE (-3)
#define RCONN_MAX_REPLY (1024 * 1024)
#define RCONN_PEERS 8 /* addresses tried at most */

enum rconn_state {
    RC_CLOSED,  /* no socket */
    RC_WAITING, /* the server's address is still being looked for (rconn_open_later) */
    RC_CONNECTING,
    RC_HANDSHAKE, /* of TLS; nothing that was queued leaves before its end */
    RC_UP,
    RC_FAILED /* no socket any more; error says why */
};

struct rconn_tag {
    int tag;
    int64_t sent; /* clock before the write that carried the command; 0: not written yet */
};

struct rconn_auth {
    const char *user, *password; /* not owned; password NULL: no AUTH */
};

/* What hiredis passes to createArray. */
#if HIREDIS_MAJOR >= 1
typedef size_t rconn_elements;
#else
typedef int rconn_elements;
#endif

struct rconn {
    enum rconn_state state;
    int fd;
    const struct dlock_env *env;
    struct dlock_peer peers[RCONN_PEERS]; /* a copy: the core may replace its list meanwhile */
    int npeers;
    int good;                      /* index of the address that worked last */
    int tried;                     /* addresses tried in this attempt, counted from good */
    int64_t until, next_at;        /* end of the whole attempt, and of this address' share */
    const struct rtls_config *tls; /* set before opening, as is tls_host: speak TLS. Not owned */
    const char *tls_host;          /* whom the addresses belong to; not owned, until closed */
    struct rtls *session;          /* from RC_HANDSHAKE on */
    bool tls_failed; /* the handshake with an earlier address failed; error says why */
    bool push;       /* this connection subscribes */
    bool
        only_master; /* set before opening: ROLE goes in front of everything, another answer is a failure */
    bool is_replica; /* failed for that reason */
    bool answered;   /* the server has said something */
    bool written;    /* something has left: the server may have seen it */
    bool
        auth_failed; /* AUTH was refused; error says why. What was sent behind it may have been served
                                       all the same, as a default user without a password */
    struct rconn_auth auth;
    const char *where;   /* for messages; not owned */
    char peer_text[128]; /* "host:port" of the current address */
    char *out;
    size_t out_len, out_size;
    redisReader *reader;
    redisReplyObjectFunctions fn; /* hiredis' own, with a bound on arrays */
    void *(*create_array)(const redisReadTask *, rconn_elements);
    size_t fed; /* bytes since the last complete reply */
    struct rconn_tag tags[RCONN_TAGS];
    int ntags;
    struct dlock_error error;
};

struct rconn_reply {
    int tag;
    int64_t sent;
    redisReply *r; /* the caller's to free (freeReplyObject) */
};

/* What an error reply means to us. */
enum rconn_class {
    RE_OTHER,
    RE_PERM,      /* NOAUTH WRONGPASS NOPERM DENIED */
    RE_TYPE,      /* WRONGTYPE */
    RE_TRANSIENT, /* LOADING BUSY TRYAGAIN MASTERDOWN CLUSTERDOWN: ask again on this connection */
    RE_REPLICA,   /* READONLY UNBLOCKED */
    RE_CLUSTER,   /* MOVED ASK */
    RE_REFUSED    /* MISCONF OOM NOREPLICAS, too many clients */
};
enum rconn_class rconn_classify(const char *text);
/*
 * Fill err from an error reply; returns its code. Servers quote what they did not understand, so whatever
 * of the text is shown has user and password blanked.
 */
int rconn_reply_error(struct dlock_error *err, const char *where, const struct rconn_auth *,
                      const char *text);
/* Whatever else of a server's text is shown: with user and password blanked, fit for a message. */
void rconn_show(char *out, size_t size, const struct rconn_auth *, const char *text);
/* The same for the answer to AUTH, of which only the first word is shown. */
int rconn_auth_error(struct dlock_error *err, const char *where, const struct rconn_auth *,
                     const char *text);

/*
 * Begin to connect; the addresses are tried in turn from the one that worked last, all of them before
 * the time until. Not while open. Returns 0, or a negative code (and state RC_FAILED).
 */
int rconn_open(struct rconn *, const struct dlock_env *, const struct dlock_peer *, int npeers,
               const struct rconn_auth *, const char *where, int64_t until);
/* The same while the addresses are not known yet: commands can be queued, and wait for rconn_aim. */
int rconn_open_later(struct rconn *, const struct dlock_env *, const struct rconn_auth *,
                     const char *where, int64_t until);
/* Only in RC_WAITING: here they are. Returns as rconn_open. */
int rconn_aim(struct rconn *, const struct dlock_peer *, int npeers);
/* Only in RC_WAITING: they could not be found out, and that is why. State RC_FAILED. */
void rconn_give_up(struct rconn *, const struct dlock_error *why);
static inline bool rconn_is_open(const struct rconn *c)
{
    return c->state == RC_WAITING || c->state == RC_CONNECTING || c->state == RC_HANDSHAKE ||
           c->state == RC_UP;
}
/* On the way to an address: next_at is to be watched, rconn_work to be called then. */
static inline bool rconn_is_connecting(const struct rconn *c)
{
    return c->state == RC_CONNECTING || c->state == RC_HANDSHAKE;
}
/* Queue a command. 0, or DLOCK_ENOMEM (and state RC_FAILED). Needs rconn_flush. */
int rconn_send(struct rconn *, int tag, int argc, const char **argv, const size_t *len);
/* Write what is queued, as far as the socket takes it. */
void rconn_flush(struct rconn *);
/* True while a command with this tag is unanswered. */
bool rconn_waits(const struct rconn *, int tag);
int rconn_interest(const struct rconn *, struct pollfd *, int64_t *wake_at);
/* Connect, read, write: whatever is possible now. */
void rconn_work(struct rconn *);
/* 1 and a reply; 0: none; negative: state RC_FAILED, see error. Replies that came before a failure come first. */
int rconn_next(struct rconn *, struct rconn_reply *);
/* Close in a way that lets the server still read what was sent. State RC_CLOSED. */
void rconn_close(struct rconn *);
/* The same, because the server is a replica: the next attempt begins with the next address. */
void rconn_close_replica(struct rconn *);

/* --- for the files rconn*.c alone --- */

/* conn.c */
void rconn_drop_socket(struct rconn *);
/* State RC_FAILED; error says why, unless it has a better reason already. sys: an errno, or 0. Returns error's code. */
int rconn_fail(struct rconn *, int code, int sys, const char *text);
/* conn_replies.c: the same for what the reader of replies says. */
int rconn_fail_reader(struct rconn *);
/*
 * conn_io.c: how many bytes came; 0: nothing now, or enough: the caller takes what is complete first.
 * Negative: state RC_FAILED.
 */
ssize_t rconn_receive(struct rconn *, char *buf, size_t size);
/* conn_replies.c. False: out of memory. */
bool rconn_new_reader(struct rconn *);

#endif
